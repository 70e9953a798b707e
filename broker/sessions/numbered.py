"""Links with numbered deliveries, which the log remembers: a producer's message is enqueued once, even over failovers.

Life of such a link: a client attaches to a queue, and its target has the capability `NUMBERED` (broker.core.links). The log
records the link (`broker.core.commands.LinkAdd`) by user, container id, name and queue, and gives it a number. Then the link gets
its first credit. The tag of each delivery is its number, in decimal digits; the client uses it for no other message over links of
that name. The batch that enqueues the message records the number (a HELD record, as for messages of another store). When the
connection is lost, the client attaches again, to this broker or to the next primary, and sends all messages without an outcome
again, with the same numbers. A message that is held, committed or in progress, is not enqueued and gets its `accepted`. The
answer to the attach contains the held numbers. A link is forgotten by a record when it has not been attached for its terminus'
timeout.

Invariants: until its link is forgotten, a message is enqueued once, however often it is sent; a message that was not accepted is
not held; a link has one link end here, and a later one replaces an earlier one; the held numbers are removed with the queue.

The held numbers are exact: there is no window that a late message could miss. Ascending numbers cost one run of 16 bytes. A
message that was not accepted leaves a gap, and more than `limits.MAX_LINK_RUNS` runs end the link.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker.amqp.data import Condition
from broker.amqp.receiver import Kept, Receiver
from broker.core import limits
from broker.core.acl.questions import Lookups
from broker.core.commands import LINKS_SINCE, LinkAdd, LinkForget, LinkKey
from broker.core.definitions import Change, PlaceGone, QueueGone
from broker.core.links import NUMBERED
from broker.core.nodes import QueueNode, Routed
from broker.sessions import routing
from broker.sessions.attach import Attach, Output
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.origins import confirm, stop
from broker.sessions.producer import Producer, Upload
from broker.sessions.queue_terminus import QueueTerminus
from broker.sessions.queues import Queues
from broker.sessions.room import has_room
from broker.sessions.schedule import Schedule
from broker.sessions.uploads import Uploading

MAX_DIGITS = 18
"""Maximum number of digits of a number."""
MAX_NAME_CHARS = 256
"""Maximum number of characters of a container id and of a link's name."""


class NumberedLinks:
    """The numbered links of both logs: those that are attached, and the times when the others are forgotten."""

    def __init__(self, logs: Logs, queues: Queues, schedule: Schedule) -> None:
        self.logs = logs
        self.queues = queues
        self.attached: dict[LinkKey, Producer] = {}
        self.forgotten: dict[LinkKey, Ledger] = {}
        """Links whose forgetting is proposed and not committed."""
        self._schedule = schedule

    def asked(self, attach: Attach) -> NumberedTerminus | None:
        """The terminus of an attach that requests numbered deliveries. None if it does not, or if they are not possible: then
        nothing is remembered, and the answer shows it."""
        asked = attach.asked
        if NUMBERED not in asked.capabilities:
            return None
        queue = self.queues.named(asked.address)
        if queue is None or queue.ledger.version < LINKS_SINCE:
            return None
        keep_s = limits.LINK_KEPT_S if asked.keep_s is None else asked.keep_s or limits.MAX_LINK_KEPT_S
        return NumberedTerminus(self, queue, attach, min(keep_s, limits.MAX_LINK_KEPT_S))

    def begin(self, ledger: Ledger) -> None:
        """This broker begins to serve: links of the last term have their full time to attach again."""
        self.forgotten = {key: each for key, each in self.forgotten.items() if each is not ledger}
        for link in ledger.state.definitions.links.values():
            self.ended(ledger, link)

    def ended(self, ledger: Ledger, link: LinkAdd) -> None:
        """This link is not attached any more: forget it when its time is over. A new primary starts the time again."""
        if self.logs.serving:
            key = link.identity
            self._schedule.after(("numbered", key), link.kept_s, lambda: self._forget(ledger, key))

    def follow(self, changes: Iterable[tuple[Change, str]]) -> None:
        """A log has applied these changes: links are removed with their queues."""
        for change, _ in changes:
            if isinstance(change, QueueGone | PlaceGone):
                for link in change.links:
                    self.attached.pop(link.identity, None)
                    self.came_back(link.identity)

    def came_back(self, key: LinkKey) -> None:
        """Do not forget this link: it is attached, or already removed."""
        self._schedule.cancel(("numbered", key))

    def _forget(self, ledger: Ledger, key: LinkKey) -> None:
        if key not in self.attached and ledger.serving:
            user, container, link, into = key
            self.forgotten[key] = ledger
            ledger.change(LinkForget(user=user, container=container, link=link, into=into), lambda reason: self._anew(key))

    def _anew(self, key: LinkKey) -> None:
        """The link is forgotten. If it was attached meanwhile, it begins again."""
        self.forgotten.pop(key, None)
        producer = self.attached.get(key)
        if producer is not None:
            assert isinstance(producer.target, NumberedTerminus), "what is attached here sends to one"
            producer.target.make_known(producer)


class _Known(NamedTuple):
    """A link that the log knows: its number, the log, and the queue's node."""

    number: int
    ledger: Ledger
    node: QueueNode


class NumberedTerminus:
    """A queue, as a numbered link sees it. Fulfils `broker.sessions.producer.Target`."""

    __slots__ = ("_kept_s", "_key", "_links", "_queue")
    window = limits.CREDIT_WINDOW
    serves_queues = True
    takes_large = True
    in_transactions = False
    in_any_order = False
    of_any_user = False

    def __init__(self, links: NumberedLinks, queue: QueueTerminus, attach: Attach, kept_s: int) -> None:
        session = attach.session
        self._links = links
        self._queue = queue
        self._key = session.principal.user, session.container, attach.link.name, queue.node.uuid
        self._kept_s = kept_s

    @property
    def identity(self) -> str:
        """The queue's."""
        return self._queue.identity

    @property
    def _link(self) -> LinkAdd | None:
        """The link in the log; None if the log does not have it, or is about to forget it."""
        if self._key in self._links.forgotten:
            return None
        return self._queue.ledger.state.definitions.links.get(self._key)

    @property
    def _known(self) -> _Known | None:
        link, node = self._link, self._queue.node
        if link is None or node.messages is None:
            return None
        assert link.number is not None
        return _Known(link.number, self._queue.ledger, node)

    def needs_of_sender(self, session: Output) -> Lookups:
        """As the queue."""
        return self._queue.needs_of_sender(session)

    def admit(self, attach: Attach) -> None:
        """As the queue; and Condition, when its names are too long to be remembered."""
        self._queue.admit(attach)
        if any(len(name) > MAX_NAME_CHARS for name in self._key[1:3]):
            text = f"the container id and the name of a numbered link may have {MAX_NAME_CHARS} characters each"
            raise Condition("amqp:invalid-field", text)
        assert isinstance(attach.link, Receiver), "a target is on a receiving link"
        attach.link.kept = self._kept()

    def _kept(self) -> Kept:
        known = self._known
        runs = [] if known is None else known.ledger.state.held[known.number].runs()
        return Kept(self._kept_s, runs[-limits.HELD_SHOWN :])

    def attached(self, producer: Producer) -> None:
        """This is the link's end now; it has credit once the log knows of it."""
        links, key = self._links, self._key
        earlier = links.attached.get(key)
        if earlier is not None:
            stop(earlier, Condition("amqp:link:stolen", "another connection has attached the link of this name"))
        links.attached[key] = producer
        links.came_back(key)
        self._queue.attached(producer)
        if key not in links.forgotten and (self._link is None or self._link.kept_s != self._kept_s):
            self.make_known(producer)

    def make_known(self, producer: Producer) -> None:
        """Let the log know of the link, and give it credit when it does."""
        user, container, name, into = self._key
        command = LinkAdd(user=user, container=container, link=name, into=into, kept_s=self._kept_s)
        self._queue.ledger.change(command, lambda reason: self._made(producer, reason))

    def _made(self, producer: Producer, reason: str) -> None:
        link = self._link
        if link is not None:
            producer.resume()
            if self._key not in self._links.attached:  # it ended before this was committed
                self._links.ended(self._queue.ledger, link)
        elif producer.link.open:
            stop(producer, Condition("amqp:resource-limit-exceeded", reason))
        elif self._links.attached.get(self._key) is producer:  # the queue of the link was deleted meanwhile
            del self._links.attached[self._key]

    def left(self, producer: Producer) -> None:
        """The link has gone, and may come back."""
        self._queue.left(producer)
        if self._links.attached.get(self._key) is producer:
            del self._links.attached[self._key]
            if self._link is not None:
                self._links.ended(self._queue.ledger, self._link)

    def may_flow(self, producer: Producer) -> bool:
        """As the queue lets its producers, once the log knows of the link."""
        return self._link is not None and self._queue.may_flow(producer)

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """No: messages in a transaction are not remembered."""
        return Routed([])

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """Put new messages, and accept those that are held; consecutive ones of a kind together."""
        numbers, known = self.numbers_of(producer, first, len(messages)), self._known
        if numbers is None or known is None:
            return
        number, ledger, _ = known
        for start, end, is_held in ledger.arriving.stretches(number, numbers):
            if is_held:
                confirm(ledger, producer, first + start, end - start)
            elif self.remembers(producer, known, end - start):
                self._put(producer, known, first + start, messages[start:end], numbers[start:end])
            else:
                return

    def remembers(self, producer: Producer, known: _Known, count: int) -> bool:
        """Whether so many more can be remembered; if not, the link ends."""
        state = known.ledger.state
        if state.held[known.number].n_runs < limits.MAX_LINK_RUNS and state.held_runs + count <= limits.MAX_HELD_RUNS:
            return True
        text = (
            "the numbers of this link have too many gaps between them, or those of all links: send what was not accepted, or "
            "use a link of another name"
        )
        stop(producer, Condition("amqp:resource-limit-exceeded", text))
        return False

    def _put(self, producer: Producer, known: _Known, first: int, messages: list[bytes], numbers: list[int]) -> None:
        """All of it at once if there is room for all of it, and else one by one."""
        number, ledger, node = known
        nbytes, logs = sum(map(len, messages)), self._links.logs
        held_back = ledger.room.low or logs.closed or node.detects_duplicates or logs.nodes.is_going(node.uuid)
        if not held_back and has_room(node, len(messages), nbytes):
            ledger.enqueue(node, messages, nbytes, producer.link, first, (number, numbers), timed=producer.timed)
            return

        def put(producer: Producer, delivery_id: int, data: bytes) -> None:
            routing.check_stays(logs, node)
            routing.put(logs, Routed([node]), producer, delivery_id, data, (number, (numbers[delivery_id - first],)))

        producer.one_by_one(first, messages, put)

    def numbers_of(self, producer: Producer, first: int, count: int) -> list[int] | None:
        """The numbers of these deliveries; None when the link has ended, because one of them has none, too."""
        if not producer.link.open:
            return None
        tags = producer.link.tags(first, count)
        numbers = [int(tag) if tag.isdigit() and len(tag) <= MAX_DIGITS else -1 for tag in tags]
        if min(numbers) < 0 or len(set(numbers)) < count:
            text = (
                f"the tag of each delivery is its number, another one each time, in up to {MAX_DIGITS} decimal digits, and it "
                "waits for its outcome"
            )
            stop(producer, Condition("amqp:invalid-field", text))
            return None
        return numbers

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A large message. LookupError, when the queue has just been deleted."""
        known = self._known
        if known is None:
            raise LookupError("the queue of this link is gone")
        return _NumberedUpload(self._links.logs, producer, self, known, head)


class _NumberedUpload(Uploading):
    """A large message of a numbered link. When it is complete, its tag shows whether it is held already."""

    def __init__(self, logs: Logs, producer: Producer, target: NumberedTerminus, known: _Known, head: bytes) -> None:
        super().__init__(logs, producer, [known.node], head, named=known.node)
        self._target = target
        self._known = known

    def finish(self, delivery_id: int) -> None:
        """The message is complete: put it on its queue, unless it is held already."""
        numbers, known = self._target.numbers_of(self._producer, delivery_id, 1), self._known
        if numbers is None:
            self.abandon()
        elif known.ledger.arriving.has(known.number, numbers[0]):
            self.abandon()
            confirm(known.ledger, self._producer, delivery_id, 1)
        elif self._target.remembers(self._producer, known, 1):
            self._held_number = numbers[0]
            super().finish(delivery_id)
        else:
            self.abandon()

    def _held(self, delivery_id: int, ledger: Ledger) -> tuple[int, list[int]] | None:
        return self._known.number, [self._held_number]
