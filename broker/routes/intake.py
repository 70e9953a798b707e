"""Enqueues the messages of a route: each one once on every replicated queue that it is routed to, whatever fails meanwhile.

Life of a message here: its delivery tag is its sequence at the source. If the log already has this sequence, the message is
accepted and not enqueued. Otherwise it gets an annotation with the places it has passed (broker.core.hops), is routed like a
client's message, and enqueued with a HELD record in the same batch. When that is committed, it is accepted and leaves the
source. A message that has been here before, by its annotation, is accepted and dropped if the route is from an exchange: it is a
copy. On a route from a queue it may be the only copy: it stops the route and stays at the source. A message that can never be
accepted is rejected: the source has rules for such messages. A message that cannot be accepted now (a full queue or disk) stops
the route, which starts again after a pause; nothing overtakes the message.

Only the log that has the route remembers the sequences. A queue whose messages are in another log (level `none` or
`configuration` in a cluster) may get a message again: at least once instead of exactly once. So may all queues if a message has
more than `limits.MAX_BATCH_BYTES` with a copy for each of them, and so is not in one batch.

Invariants: the batch that enqueues a route's message on the last queue of the route's log has its HELD record; messages are
enqueued in the order of the link; after a stop, no further message of the link is accepted; a message passes through the
exchanges of the route's log once, so that it gets one number there, and is their last message only when it is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from broker.amqp.data import Condition
from broker.core import limits, message
from broker.core.acl.questions import Lookups
from broker.core.commands import RouteAdd
from broker.core.hops import CameBack, Hops, TooFar
from broker.core.links import REJECTED
from broker.core.nodes import QueueNode, Routed
from broker.core.origins import SEQUENCE_BYTES
from broker.core.routes import QUEUE, Place
from broker.sessions import routing
from broker.sessions.attach import Attach, Output
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.origins import confirm
from broker.sessions.passing import pass_on
from broker.sessions.producer import Producer, Refused, Upload
from broker.sessions.queue_terminus import QueueTerminus
from broker.sessions.queues import Queues
from broker.sessions.room import full_text, has_room
from broker.sessions.uploads import Uploading


class Stopped(Exception):
    """No more messages are accepted now; the text says why."""


@dataclass(slots=True)
class _Stretch:
    """Messages that follow one another and go the same way. `queues`: those that they are to be put on."""

    routed: Routed
    queues: list[QueueNode]
    first: int
    messages: list[bytes]
    sequences: list[int]
    nbytes: int = 0

    def add(self, data: bytes, sequence: int) -> None:
        """One more."""
        self.messages.append(data)
        self.sequences.append(sequence)
        self.nbytes += len(data)


def _way(routed: Routed) -> tuple[object, ...]:
    """The key that is equal for messages with the same destinations."""
    return tuple(map(id, routed.queues)), tuple(map(id, routed.through)), routed.key if routed.through else ""


class Intake:
    """Fulfils `broker.sessions.producer.Target` for the link of one route from one place. `stop` is called once, with why."""

    window = limits.CREDIT_WINDOW
    serves_queues = True
    takes_large = True
    in_transactions = False
    in_any_order = False
    of_any_user = True

    def __init__(self, logs: Logs, queues: Queues, route: RouteAdd, place: Place, stop: Callable[[str], None]) -> None:
        self.logs = logs
        self.taken = 0
        """Messages that were put since this was made."""
        self._queues = queues
        self._route = route
        self._place = place
        self._stop = stop
        self._stopped = False
        self._at: QueueTerminus | None = None
        """The queue that counts the link among its producers."""
        self.hops = Hops(logs.identify(), place.cluster, route.tag, route.exclude, place.queue)

    @property
    def identity(self) -> str:
        """The route's."""
        return self._route.uuid

    @property
    def to_exchange(self) -> bool:
        """Whether the messages go to an exchange, which takes precedence over a queue of its name."""
        return self._route.exchange in self.logs.nodes.exchanges

    @property
    def number(self) -> int:
        """By which HELD records name the origin. Stopped, when there is none any more."""
        origin = self.logs.lead.state.definitions.origins.get((self._route.uuid, self._place.key))
        if origin is None or origin.number is None:
            raise Stopped("the route was deleted")
        return origin.number

    def _queue(self) -> QueueTerminus | None:
        """The queue that all messages go to, if they go to none but one."""
        nodes, name = self.logs.nodes, self._route.exchange
        node = None if name in nodes.exchanges else nodes.queues.get(name)
        return None if node is None or node.messages is None else self._queues.at(node)

    def needs_of_sender(self, session: Output) -> Lookups:
        """Nothing: the rights were checked when the route was created."""
        return ()

    def admit(self, attach: Attach) -> None:
        """A route's link is attached from this side."""

    def attached(self, producer: Producer) -> None:
        """It is one of the producers of its queue, if it has one."""
        self._join(producer, self._queue())

    def _join(self, producer: Producer, queue: QueueTerminus | None) -> None:
        """From now on this queue, and no other one, counts the link among its producers."""
        if queue is self._at:
            return
        if self._at is not None:
            self._at.left(producer)
        self._at = queue
        if queue is not None:
            queue.attached(producer)

    def left(self, producer: Producer) -> None:
        """The link has ended."""
        self._stopped = True
        self._queues.wait_for_disk.pop(producer, None)
        self._join(producer, None)

    def may_flow(self, producer: Producer) -> bool:
        """As a queue lets its producers; towards an exchange not while a disk is full. The queue may be a newer one than the
        link."""
        queue = self._queue()
        if not self._stopped:
            self._join(producer, queue)
        if queue is not None:
            return queue.may_flow(producer)
        if any(ledger.room.text for ledger in self.logs.ledgers.values()):
            self._queues.wait_for_disk[producer] = None
            return False
        return True

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """None: a transaction has no part in a route."""
        return Routed([])

    def stop(self, reason: str) -> None:
        """Take nothing more."""
        if not self._stopped:
            self._stopped = True
            self._stop(reason)

    # ---- messages

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """Put new messages; consecutive ones together."""
        if self._stopped:
            return
        try:
            self.check()
            number, ledger = self.number, self.logs.lead
            sequences = self.sequences(producer, first, len(messages))
            for start, end, known in ledger.arriving.stretches(number, sequences):
                if known and len(self.logs.ledgers) == 1:
                    confirm(ledger, producer, first + start, end - start)
                else:
                    self._take(producer, first + start, messages[start:end], sequences[start:end], known=known)
        except Stopped as error:
            self.stop(str(error))

    def check(self) -> None:
        """Stopped, when nothing is taken now."""
        if self.logs.closed:
            raise Stopped("this broker leaves: it takes nothing more")
        if not self.logs.lead.serving:
            raise Stopped(f"this broker is {self.logs.state}")

    def sequences(self, producer: Producer, first: int, count: int) -> list[int]:
        """The sequences of these deliveries. Stopped, when they have none."""
        tags = producer.link.tags(first, count)
        if any(len(tag) != SEQUENCE_BYTES for tag in tags):
            raise Stopped("the source gives messages without their sequences: it must be a broker of this kind, of this release")
        return [int.from_bytes(tag, "big") for tag in tags]

    def _take(self, producer: Producer, first: int, messages: list[bytes], sequences: list[int], *, known: bool) -> None:
        stretch: _Stretch | None = None
        for delivery_id, (data, sequence) in enumerate(zip(messages, sequences, strict=True), first):
            try:
                directed = self._directed(producer, delivery_id, data)
            except Stopped:
                self._put(producer, stretch, known=known)
                raise
            if directed is None:
                self._put(producer, stretch, known=known)
                stretch = None
                continue
            found, routed = directed
            if stretch is None or _way(routed) != _way(stretch.routed):
                self._put(producer, stretch, known=known)
                stretch = _Stretch(routed, routed.queues, delivery_id, [], [])
            stretch.add(found, sequence)
        self._put(producer, stretch, known=known)

    def _directed(self, producer: Producer, delivery_id: int, data: bytes) -> tuple[bytes, Routed] | None:
        """The message as it is put, and where it goes; None when it is not put, and has its outcome. Stopped, when it must stay
        at the source."""
        try:
            found = self._mark(data)
            if found is not None:
                return found, self.wanted_by(found)
        except (TooFar, message.BadMessage) as error:
            producer.refuse(delivery_id, REJECTED, refusal(error))
        else:
            producer.done(delivery_id)
        return None

    def _mark(self, data: bytes) -> bytes | None:
        """The message with this route in its annotation; None when it is dropped. BadMessage; Stopped; TooFar."""
        try:
            return self.hops.mark(data)
        except CameBack as error:
            if self._route.kind == QUEUE:
                raise Stopped(f"a message stays on the source's queue: {error}") from None
            return None

    def wanted_by(self, data: bytes) -> Routed:
        """Where a message goes. BadMessage, when an exchange cannot read what it needs of the message. Stopped, when there is
        nowhere to go to, or one of them is not ready."""
        nodes, name = self.logs.nodes, self._route.exchange
        exchange = nodes.exchanges.get(name)
        if exchange is not None:
            routed = routing.find(nodes, exchange, message.subject(data) or "", data)
        elif name in nodes.queues:
            routed = Routed([nodes.queues[name]])
            if nodes.is_going(routed.queues[0].uuid):
                raise Stopped(f"queue {name!r} is being deleted")
        else:
            raise Stopped(f"there is no exchange and no queue named {name!r} any more")
        for queue in routed.queues:
            if queue.messages is None or not self.logs.ledger_of(queue).serving:
                raise Stopped(f"queue {queue.name!r} is not ready")
        return routed

    def _put(self, producer: Producer, stretch: _Stretch | None, *, known: bool) -> None:
        """Put this stretch; where there is no room for all of it, message by message up to the first that does not fit."""
        if stretch is None:
            return
        repeats = any(queue.detects_duplicates for queue in stretch.queues)
        if not repeats and not self._why_not(stretch.queues, len(stretch.messages), stretch.nbytes):
            self._put_all(producer, stretch, known=known)
            return
        for at, data in enumerate(stretch.messages):
            queues = [each for each in stretch.queues if not each.repeats(data, self.logs.ledger_of(each).now_ms)]
            delivery_id, size = stretch.first + at, len(data)
            too_small = next((each for each in queues if each.max_bytes and size > each.max_bytes), None)
            if too_small is not None:
                condition = Condition("amqp:resource-limit-exceeded", full_text(too_small, size))
                producer.refuse(delivery_id, REJECTED, condition)
                continue
            why = self._why_not(queues, 1, size)
            if why:
                raise Stopped(why)
            one = _Stretch(stretch.routed, queues, delivery_id, [data], [stretch.sequences[at]], size)
            self._put_all(producer, one, known=known)

    def _why_not(self, queues: Sequence[QueueNode], count: int, nbytes: int) -> str:
        """Why so many messages cannot be taken now; "" if they can."""
        if self.logs.lead.state.held_runs + count > limits.MAX_HELD_RUNS:
            return f"the runs of sequences that are remembered have reached their limit of {limits.MAX_HELD_RUNS}"
        for queue in queues:
            if not has_room(queue, count, nbytes):
                return full_text(queue, nbytes)
        low = (ledger.room.text for ledger in {self.logs.ledger_of(queue) for queue in queues} if ledger.room.low)
        return next(low, "")

    def _put_all(self, producer: Producer, stretch: _Stretch, *, known: bool) -> None:
        """Put these messages; `known`: on the queues of other logs alone."""
        lead, number, messages, nbytes = self.logs.lead, self.number, stretch.messages, stretch.nbytes
        first, count, timed = stretch.first, len(messages), producer.timed
        own = [] if known else [queue for queue in stretch.queues if self.logs.ledger_of(queue) is lead]
        others = [queue for queue in stretch.queues if self.logs.ledger_of(queue) is not lead]
        through = stretch.routed.through
        if known:
            through = tuple(each for each in through if others and self.logs.ledger_at(each) is not lead)
        beside = {self.logs.ledger_at(exchange) for exchange in through} - {lead}
        if through:
            routed = stretch.routed._replace(through=through)
            messages = [pass_on(self.logs, routed, data) for data in messages]
            nbytes = sum(map(len, messages))
        if not known:
            self.has_put(stretch.routed, count)
        for queue in others:
            self.logs.ledger_of(queue).enqueue(queue, messages, nbytes, held=(number, ()), timed=timed, moved=True)
        if len(own) == 1 and not others and not beside:
            lead.enqueue(own[0], messages, nbytes, producer.link, first, (number, stretch.sequences), timed=timed, moved=True)
            return
        if own:
            with lead.pending.one_batch(nbytes * len(own)):
                for queue in own[:-1]:
                    lead.enqueue(queue, messages, nbytes, held=(number, ()), timed=timed, moved=True)
                # Only the last one says that they have come: if they are too large for one batch, none of them is left out.
                lead.enqueue(own[-1], messages, nbytes, held=(number, stretch.sequences), timed=timed, moved=True)
        self._when_all_committed({lead, *beside, *map(self.logs.ledger_of, others)}, producer, first, count)

    def has_put(self, routed: Routed, count: int) -> None:
        """So many messages are being put where they go: count them."""
        self.taken += count
        exchange = self.logs.nodes.exchanges.get(self._route.exchange)
        if exchange is not None:
            routing.count(exchange, routed, count)

    def _when_all_committed(self, ledgers: Iterable[Ledger], producer: Producer, first: int, count: int) -> None:
        outstanding = {ledger.name for ledger in ledgers}

        def committed(name: str) -> None:
            outstanding.discard(name)
            for delivery_id in () if outstanding else range(first, first + count):
                producer.done(delivery_id)

        for ledger in list(ledgers):
            ledger.pending.when_committed(lambda name=ledger.name: committed(name))  # type: ignore[misc]

    # ---- large messages

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A large message: its first part decides its queues."""
        try:
            self.check()
            marked = self._mark(head)
            return Dropped(producer) if marked is None else RouteUpload(self, producer, self.wanted_by(marked), marked)
        except TooFar as error:
            return Refused(producer, REJECTED, refusal(error))
        except Stopped as error:
            self.stop(str(error))
            return Swallowed(producer)


def refusal(error: TooFar | message.BadMessage) -> Condition:
    """Why a route rejects a message."""
    name = "amqp:not-allowed" if isinstance(error, TooFar) else "amqp:decode-error"
    return Condition(name, f"the route takes no such message: {error}")


class Dropped(Refused):
    """A large message that the route drops: its parts are dropped as they arrive, and it is accepted at its end."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer, REJECTED, None)

    def finish(self, delivery_id: int) -> None:
        """It may leave the source."""
        self._producer.done(delivery_id)


class Swallowed(Refused):
    """A large message of a link that takes nothing more: it stays at the source."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer, REJECTED, None)

    def finish(self, delivery_id: int) -> None:
        """It has no outcome."""


class RouteUpload(Uploading):
    """A large message of a route. `marked` is its first part, as it is put."""

    def __init__(self, intake: Intake, producer: Producer, routed: Routed, marked: bytes) -> None:
        named = None if intake.to_exchange else routed.queues[0]
        super().__init__(intake.logs, producer, routed.queues, marked, named=named)
        self._says = self._says._replace(delay_ms=0)  # the source has applied the delay already
        self._intake = intake
        self._routed = routed
        self._marked = marked

    def put(self, data: bytes) -> Upload:
        """Propose one more part; without room the route stops."""
        data, self._marked = self._marked or data, b""
        self._nbytes += len(data)
        if self._is_too_large():
            self.abandon()
            return Refused(
                self._producer, REJECTED, Condition("amqp:resource-limit-exceeded", "a target queue is too small for it")
            )
        if self._stops():
            return Swallowed(self._producer)
        for ledger, parts in self._parts.items():
            parts.append(ledger.put_part(data))
        return self

    def _is_too_large(self) -> bool:
        return any(queue.max_bytes and self._nbytes > queue.max_bytes for queue in self._queues)

    def _stops(self) -> bool:
        fault = self._fault()
        if fault is None:
            return False
        self.abandon()
        self._intake.stop(fault[1].text if fault[1] is not None else "nothing large is taken now")
        return True

    def finish(self, delivery_id: int) -> None:
        """The message is complete: put it on its queues, unless it is held already."""
        try:
            number, lead = self._intake.number, self._logs.lead
            sequences = self._intake.sequences(self._producer, delivery_id, 1)
        except Stopped as error:
            self.abandon()
            self._intake.stop(str(error))
            return
        known = lead.arriving.has(number, sequences[0])
        if known:
            self._leave_out(lead)
        if known and not self._queues:
            self.abandon()
            confirm(lead, self._producer, delivery_id, 1)
        elif not self._stops():
            if not known:
                self._intake.has_put(self._routed, 1)
            super().finish(delivery_id)

    def _leave_out(self, lead: Ledger) -> None:
        """The queues of the route's log have it, or get it: put it on those of other logs alone."""
        self._parts.setdefault(lead, [])  # it is accepted when this log has committed it, too
        others = [self._logs.ledger_of(queue) is not lead for queue in self._queues]
        self._lanes = [lane for lane, other in zip(self._lanes, others, strict=True) if other]
        self._queues = [queue for queue, other in zip(self._queues, others, strict=True) if other]

    def _held(self, delivery_id: int, ledger: Ledger) -> tuple[int, Sequence[int]] | None:
        return (
            (self._intake.number, self._intake.sequences(self._producer, delivery_id, 1)) if ledger is self._logs.lead else None
        )
