"""The target of another store's drain or route: a queue that accepts each message of an origin once.

Life of such a link: the drain has announced the origin (`broker.core.commands.OriginAdd`). The link attaches to
`$drain/DRAIN/QUEUE`: the drain's uuid, and the name of the queue at the source (`broker.core.origins.named`). The tag of each
delivery is the sequence of its message in that store, in 8 bytes, most significant first. Traits may follow
(`broker.core.origins.Traits`): then the message gets the times of the traits, whatever the message and the queue define, and its
failures are counted on. A new message is put on the origin's queue, and its batch records this (HELD records). A message that is
held already, committed or in progress, is not enqueued, and gets its `accepted` when the one in progress is committed. If the
queue or the disk is full, or the queue is deleted, or its deletion is not committed yet, the link ends, so that no message
overtakes one that was not accepted.

Invariants: a message of an origin is enqueued once, however often it is sent, before and after a failover; an origin has one
link, and a later link replaces an earlier one, so that messages keep their order; messages are on the queue in the order in which
they arrived over the link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.amqp.data import Condition
from broker.core import limits
from broker.core.acl import questions
from broker.core.acl.questions import Lookups
from broker.core.commands import OriginAdd
from broker.core.definitions import Change, OriginMade, OriginsReleased
from broker.core.links import REJECTED
from broker.core.nodes import QueueNode, Routed
from broker.core.origins import (
    LAST_SEQUENCE,
    PLAIN,
    SEQUENCE_BYTES,
    TAG_BYTES,
    Held,
    Traits,
    read_tags,
    store_and_queue,
    traits_of,
)
from broker.core.packs import Credit
from broker.sessions.attach import Attach, Output
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.producer import Producer, Upload
from broker.sessions.queue_terminus import QueueTerminus
from broker.sessions.queues import Queues
from broker.sessions.room import full_text, has_room
from broker.sessions.uploads import Uploading

NODE, PACKS = "$drain", "packs"
_Tags = tuple[Sequence[int], list[Traits] | None]
"""Sequences, and the traits of these messages; None if their store sends no traits."""
_FindTags = Callable[[Producer, int, int], _Tags | None]


def origin_address(drain: str, queue: str) -> str:
    """Where the messages of an origin are sent to. With `/packs` behind it they come in packs (`broker.core.packs`)."""
    return f"{NODE}/{drain}/{queue}"


class Origins:
    """The origins of both logs, by their addresses."""

    def __init__(self, logs: Logs, queues: Queues) -> None:
        self.logs = logs
        self.queues = queues
        self.links: dict[tuple[str, str], Producer] = {}
        """Drain and queue -> the link over which its messages come."""
        self.declining: set[tuple[str, str]] = set()
        """Drain and queue, of which nothing more is put while it is looked whether anything has come."""
        self.stopped: set[str] = set()
        """Drains of which nothing more is put in this term, because they are being called off."""

    @property
    def count(self) -> int:
        """How many queues of other brokers drains have announced here, and not ended so far."""
        logs = [ledger.state.definitions for ledger in self.logs.ledgers.values()]
        return sum(drain not in each.routes for each in logs for drain, _ in each.origins)

    def known_as(self, drain: str, queue: str) -> str:
        """The name by which an origin is known here. An earlier release announced every queue by its uuid alone, in the name of
        the store whose broker was the source's primary then."""
        store, uuid = store_and_queue(queue)
        for ledger in self.logs.ledgers.values() if store else ():
            origin = ledger.state.definitions.origins.get((drain, uuid))
            if origin is not None and origin.store == store:
                return uuid
        return queue

    def has_declined(self, drain: str, queue: str) -> bool:
        """Whether nothing of this queue is taken any more, because another target of the drain has it."""
        key = drain, queue
        known = [ledger.state.definitions.origins.get(key) for ledger in self.logs.ledgers.values()]
        return key in self.declining or any(each is not None and not each.into for each in known)

    def decline(self, drain: str, queue: str) -> None:
        """Put nothing more of this queue, until it is known whether anything of it has come: then it is in the log, or not so."""
        self.declining.add((drain, queue))
        producer = self.links.get((drain, queue))
        if producer is not None:
            stop(producer, Condition("amqp:not-found", f"queue {queue} goes to another target of drain {drain}"))

    def named(self, address: str) -> OriginTerminus | None:
        """The origin that an address names, be it known or not."""
        words = address.split("/")
        packed = words[3:] == [PACKS]
        return OriginTerminus(self, words[1], words[2], packed=packed) if len(words) == 3 + packed and words[0] == NODE else None

    def find(self, drain: str, queue: str) -> tuple[Ledger, OriginAdd, QueueNode] | None:
        """The log that has an origin, and the queue that its messages come to; None when there is none, or that queue is gone."""
        for name, ledger in self.logs.ledgers.items():
            origin = ledger.state.definitions.origins.get((drain, queue))
            node = None if origin is None else self.logs.nodes.queue_by_uuid(origin.into)
            if origin is not None and node is not None and node.messages_log == name and node.messages is not None:
                return ledger, origin, node
        return None

    def held(self, drain: str, queue: str) -> Held | None:
        """The held sequences of an origin, even if their queue no longer exists; None if there is no such origin."""
        found: Held | None = None
        for ledger in self.logs.ledgers.values():
            origin = ledger.state.definitions.origins.get((drain, queue))
            if origin is not None:
                assert origin.number is not None
                here = ledger.state.held[origin.number]
                found = here if found is None else found.with_runs(here.runs())
        return found

    def stores(self, drain: str) -> dict[str, str]:
        """By the name of each queue of this drain: the store that it was announced for."""
        logs = [ledger.state.definitions.origins for ledger in self.logs.ledgers.values()]
        return {queue: origin.store for each in logs for (of, queue), origin in each.items() if of == drain}

    def of(self, drain: str) -> dict[str, int]:
        """How much is held of each queue of this drain, by the queue's name, in ascending order."""
        known = [each for ledger in self.logs.ledgers.values() for each in ledger.state.definitions.origins]
        held = {queue: self.held(drain, queue) for of, queue in sorted(known) if of == drain}
        return {queue: found.count for queue, found in held.items() if found is not None}

    def follow(self, changes: Iterable[tuple[Change, str]]) -> None:
        """End the links of released drains, and the pause of queues that get no more messages of a drain."""
        for change, _ in changes:
            if isinstance(change, OriginsReleased):
                self._end_links(change.drain.drain, "was released")
                self._go_on_with(change.origins)
            elif isinstance(change, OriginMade):
                self._go_on_with((change.origin,))

    def _go_on_with(self, origins: Iterable[OriginAdd]) -> None:
        for origin in origins:
            node = self.logs.nodes.queue_by_uuid(origin.into)
            if node is not None and node.terms is not None:
                self.queues.at(node).dispatch_soon()

    def stop(self, drain: str) -> None:
        """Accept no more messages of this drain, except those in progress, until `go_on` or the end of the term."""
        self.stopped.add(drain)
        self._end_links(drain, "is cancelled")

    def go_on(self, drain: str) -> None:
        """Take its messages again."""
        self.stopped.discard(drain)

    def _end_links(self, drain: str, why: str) -> None:
        for key, producer in list(self.links.items()):
            if key[0] == drain:
                stop(producer, Condition("amqp:not-found", f"drain {drain} {why}"))


class OriginTerminus:
    """Fulfils `broker.sessions.producer.Target`."""

    __slots__ = ("_key", "_origins", "_packed")
    window = limits.CREDIT_WINDOW
    serves_queues = True
    takes_large = True
    in_transactions = False
    in_any_order = False
    of_any_user = True

    def __init__(self, origins: Origins, drain: str, queue: str, *, packed: bool = False) -> None:
        self._origins = origins
        self._key = drain, queue
        self._packed = packed

    @property
    def identity(self) -> str:
        """Its address."""
        return origin_address(*self._key)

    @property
    def _queue(self) -> QueueTerminus | None:
        found = self._origins.find(*self._key)
        return None if found is None else self._origins.queues.at(found[2])

    def needs_of_sender(self, session: Output) -> Lookups:
        """The lookups for sending to the queue; if the queue does not exist, for its address."""
        found = self._origins.find(*self._key)
        return questions.unknown(self.identity)[:1] if found is None else questions.send_to_queue(found[2])

    def admit(self, attach: Attach) -> None:
        """Condition, when the origin is unknown, or its queue does not accept clients now."""
        queue = self._queue
        self._origins.logs.must_serve()
        if self._key[0] in self._origins.stopped:
            raise Condition("amqp:not-found", f"drain {self._key[0]} is cancelled")
        if queue is None or self._key in self._origins.declining:
            raise Condition("amqp:not-found", f"no messages of queue {self._key[1]} are expected of drain {self._key[0]} here")
        queue.admit(attach)

    def attached(self, producer: Producer) -> None:
        """This is the origin's link now."""
        earlier = self._origins.links.get(self._key)
        if earlier is not None:
            stop(earlier, Condition("amqp:link:stolen", "another link for this queue of this drain has attached"))
        self._origins.links[self._key] = producer
        if self._packed:
            producer.link.packed = Credit()
        queue = self._queue
        if queue is not None:
            queue.attached(producer)

    def left(self, producer: Producer) -> None:
        """The link has ended."""
        if self._origins.links.get(self._key) is producer:
            del self._origins.links[self._key]
        queue = self._queue
        if queue is not None:
            queue.left(producer)

    def may_flow(self, producer: Producer) -> bool:
        """As the queue lets its producers."""
        queue = self._queue
        return queue is not None and queue.may_flow(producer)

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """None: a transaction has no part in a drain."""
        return Routed([])

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """Put new messages; consecutive ones together."""
        tags = self._tags(producer, first, len(messages))
        found = self._origins.find(*self._key)
        if found is None or tags is None:
            return
        (ledger, origin, node), (sequences, traits) = found, tags
        assert origin.number is not None
        for start, end, known in ledger.arriving.stretches(origin.number, sequences):
            if known:
                confirm(ledger, producer, first + start, end - start)
            else:
                held = origin.number, sequences[start:end]
                told = None if traits is None else traits[start:end]
                full = self._put(ledger, node, producer, first + start, messages[start:end], held, told)
                if full:
                    stop(producer, Condition("amqp:resource-limit-exceeded", full))
                    return

    def _put(
        self,
        ledger: Ledger,
        node: QueueNode,
        producer: Producer,
        first: int,
        messages: list[bytes],
        held: tuple[int, Sequence[int]],
        traits: list[Traits] | None,
    ) -> str:
        """Put these messages, or those in front of the first that does not fit. Returns why that one does not. Where messages
        make others leave, several may not fit that fit one after the other."""
        at, full = 0, ""
        while at < len(messages) and not full:
            fit, nbytes, full = self._fitting(ledger, node, messages[at:], at)
            new, end = (held[0], held[1][at : at + fit]), at + fit
            if fit and traits is None:
                ledger.enqueue(node, messages[at:end], nbytes, producer.link, first + at, new, timed=producer.timed, moved=True)
            elif fit and traits is not None:
                self._put_with(ledger, node, producer, first + at, messages[at:end], new, traits[at:end])
            if fit and node.displacing is not None:
                full = ""
            at = end
        return full

    def _fitting(self, ledger: Ledger, node: QueueNode, messages: list[bytes], before: int) -> tuple[int, int, str]:
        """How many of these messages fit together behind so many others, their bytes, and why the next one does not."""
        sizes = list(map(len, messages))
        fit, nbytes = len(messages), sum(sizes)
        if not self._full_of(ledger, node, before, fit, nbytes, max(sizes)):
            return fit, nbytes, ""
        fit = nbytes = largest = 0
        while True:
            largest = max(largest, sizes[fit])
            full = self._full_of(ledger, node, before, fit + 1, nbytes + sizes[fit], largest)
            if full:
                return fit, nbytes, full
            nbytes += sizes[fit]
            fit += 1

    @staticmethod
    def _put_with(
        ledger: Ledger,
        node: QueueNode,
        producer: Producer,
        first: int,
        messages: list[bytes],
        held: tuple[int, Sequence[int]],
        traits: list[Traits],
    ) -> None:
        """Put messages with the traits of their store. A message with failed deliveries is put alone, followed by their count."""
        assert node.messages is not None, "it was found"
        number, start = node.messages.number, 0
        plain = all(each is PLAIN for each in traits)
        times = [] if plain else times_of(traits, ledger.now_ms)
        if node.ttl_ms and plain:
            times = [(0, 0)] * len(traits)

        def put(begin: int, end: int) -> None:
            if begin < end:
                found, part = messages[begin:end], (held[0], held[1][begin:end])
                told = times[begin:end] or None
                ledger.enqueue(node, found, sum(map(len, found)), producer.link, first + begin, part, times=told)

        for at in [] if plain else [at for at, each in enumerate(traits) if each.failures]:
            put(start, at)
            with ledger.pending.one_batch(len(messages[at])):
                lane = lane_of(node, messages[at])
                sequence = node.proposed_seqs[lane]
                put(at, at + 1)
                if node.proposed_seqs[lane] > sequence:
                    ledger.count(number, sequence, traits[at].failures)
            start = at + 1
        put(start, len(messages))

    def _full_of(self, ledger: Ledger, node: QueueNode, before: int, count: int, nbytes: int, largest: int) -> str:
        """Why so many messages cannot be taken now, behind so many that were just put; "" if they can."""
        if self._origins.logs.closed:
            return "this broker leaves itself"
        if self._origins.logs.nodes.is_going(node.uuid):
            return f"queue {node.name!r} is being deleted"
        if ledger.state.held_runs + before + count > limits.MAX_HELD_RUNS:
            return f"the runs of sequences that are remembered of all drains have reached their limit of {limits.MAX_HELD_RUNS}"
        if not has_room(node, count, nbytes, largest):
            return full_text(node, nbytes, count, largest)
        return ledger.room.text if ledger.room.low else ""

    def _tags(self, producer: Producer, first: int, count: int) -> _Tags | None:
        """The sequences and traits in the tags of these deliveries; None if the link has ended, also because of a wrong tag."""
        if not producer.link.open:
            return None
        tags = producer.link.tags(first, count)
        sequences, traits = read_tags(tags)
        if len(set(sequences)) < count or len(tags[0]) not in (SEQUENCE_BYTES, TAG_BYTES) or max(sequences) > LAST_SEQUENCE:
            text = f"the tag of each delivery is the sequence of its message, another one each time, in {SEQUENCE_BYTES} bytes"
            text += f", alone or with traits of {TAG_BYTES - SEQUENCE_BYTES} bytes behind it"
            stop(producer, Condition("amqp:invalid-field", text))
            return None
        return sequences, None if len(tags[0]) == SEQUENCE_BYTES else traits_of(traits)

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A large message."""
        found = self._origins.find(*self._key)
        if found is None:
            raise LookupError(f"the queue of {self.identity} is gone")
        return OriginUpload(self._origins.logs, producer, found, head, self._tags)


def times_of(traits: list[Traits], now_ms: int) -> list[tuple[int, int]]:
    """When these messages expire, and when they are given out, if that is not now."""
    return [(each.expires_ms, each.available_ms if each.available_ms > now_ms else 0) for each in traits]


def lane_of(node: QueueNode, message: bytes) -> int:
    """The lane of this queue that a message goes to."""
    return node.messages.order.lane_for(message) if node.messages is not None and len(node.proposed_seqs) > 1 else 0


def confirm(ledger: Ledger, producer: Producer, first: int, count: int) -> None:
    """Accept deliveries whose messages are held already, when all messages in progress are committed."""

    def committed() -> None:
        for delivery_id in range(first, first + count):
            producer.done(delivery_id)

    ledger.pending.when_committed(committed)


def stop(producer: Producer, condition: Condition) -> None:
    """End this link, and take nothing that is still on its way."""
    producer.session.end_link(producer.link, condition)


class OriginUpload(Uploading):
    """A large message of an origin."""

    def __init__(
        self,
        logs: Logs,
        producer: Producer,
        found: tuple[Ledger, OriginAdd, QueueNode],
        head: bytes,
        tags: _FindTags,
    ) -> None:
        super().__init__(logs, producer, [found[2]], head, named=found[2])
        self._ledger, self._origin, _ = found
        self._says = self._says._replace(delay_ms=0)  # the source has applied the delay already
        self._tags = tags

    def put(self, data: bytes) -> Upload:
        """Propose one more part; without room the link ends."""
        self._nbytes += len(data)
        if not self._stopped():
            for ledger, parts in self._parts.items():
                parts.append(ledger.put_part(data))
        return self

    def _stopped(self) -> bool:
        fault = self._fault()
        if fault is None:
            return False
        condition = fault[1] if fault[0] == REJECTED else None
        self.abandon()
        stop(self._producer, condition or Condition("amqp:resource-limit-exceeded", "nothing large is taken now"))
        return True

    def finish(self, delivery_id: int) -> None:
        """The message is complete: put it on its queue, unless it is held already."""
        number = self._origin.number
        assert number is not None
        tags = self._tags(self._producer, delivery_id, 1)
        if tags is None:
            self.abandon()
        elif self._ledger.arriving.has(number, tags[0][0]):
            self.abandon()
            confirm(self._ledger, self._producer, delivery_id, 1)
        elif not self._stopped():
            if tags[1] is None:
                super().finish(delivery_id)
            else:
                self._finish_with(delivery_id, tags[1][0])

    def _finish_with(self, delivery_id: int, traits: Traits) -> None:
        """Put it with the traits of its store."""
        (node,), (lane,), ledger = self._queues, self._lanes, self._ledger
        (self._times,) = times_of([traits], ledger.now_ms)
        sequence = node.proposed_seqs[lane]
        with ledger.pending.one_batch(0):
            super().finish(delivery_id)
            if traits.failures and node.messages is not None and node.proposed_seqs[lane] > sequence:
                ledger.count(node.messages.number, sequence, traits.failures)

    def _held(self, delivery_id: int, ledger: Ledger) -> tuple[int, Sequence[int]] | None:
        tags = self._tags(self._producer, delivery_id, 1)
        assert tags is not None, "it was looked at when it had become whole"
        assert self._origin.number is not None
        return self._origin.number, tags[0]
