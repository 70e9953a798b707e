"""Messages that leave their queue without being accepted: through its alternate exchange, with the reason, or for good.

Life of a dead letter: a consumer has rejected a message, its deliveries have failed too often, or it has expired. It is `add`ed
here. When its body is in memory, the queue's alternate exchange routes it, with its subject as the key. A copy with the reason
(broker.core.letters) is put on each queue. The message leaves its own queue in the same batch if both queues are in one log,
otherwise when the copies are committed. If no queue accepts it, it is removed for good, and counted. If its subject is no text,
it goes where a message without a subject goes; if no queue accepts that, or a headers exchange cannot read what it compares, it
is kept, and tried again. A large message is passed on with the same parts, so its copy does not contain the reason; one that
would go to another log or to a queue with groups is kept as well.

Consumers of a queue go on while its dead letters cannot leave, so all of a large backlog may expire under them. Behind
`limits.MAX_LETTERS_WAITING` that wait one by one, expired messages wait as runs of sequences (`_more`), which take little memory.
So do those that are kept, because there may be as many as the queue has messages (broker.sessions.kept_letters).

Invariants: messages that wait here are not delivered; they leave in the order in which they were added, except those that cannot
be put anywhere at the moment, and expired ones in runs, which leave in their order on the queue; when one is sent, it is
withdrawn (`withdraw`), so that nothing else is done with it until that is committed; a message that cannot be read stays on its
queue, and is not counted; what is kept or stays holds no group of messages; no message leaves its queue before its copies are
safe; one turn of the reactor sends at most `limits.MAX_TURN_LETTERS`, and one second tries at most so many of those that are
kept, which are all tried once, by the piece, when the broker begins to leave or serves again (`look_again`); while a log has
`limits.LETTERS_INFLOW_BYTES` of letters to commit, none is sent and no body is read for one; nor while a queue that the next one
goes to is being deleted, because it would be lost there, or the deletion of this queue is proposed, with which the parts of a
large one go; none is sent that a newer message of a last value queue replaces, for the same reason, or while it is not known
which messages are about to leave by what was proposed before a change of roles (`Pending.interrupt`); nor while a disk is nearly
full and takes no more letters, or this broker does not have the alternate exchange; on a broker that leaves, a rejected message
that cannot go is given back, for the drain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import islice
from typing import NoReturn, Protocol

from twisted.logger import Logger

from broker.core import letters, limits, message
from broker.core.letters import DELIVERY_LIMIT, EXPIRED, REJECTED
from broker.core.nodes import ExchangeNode, QueueNode, Routed, Unplaced
from broker.core.origins import Held
from broker.core.parts import Manifest
from broker.core.queues.arguments import GROUP_KEY
from broker.core.records import runs_of
from broker.core.state import Messages
from broker.sessions import routing
from broker.sessions.kept_letters import KeptLetters
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.passing import pass_on
from broker.sessions.queue_bodies import QueueBodies
from broker.sessions.room import check_places
from broker.sessions.schedule import Schedule

RETRY_S = 1.0
"""Delay until a message that cannot be put anywhere is tried again."""
_log = Logger()


class Origin(Protocol):
    """The queue that they leave."""

    node: QueueNode
    ledger: Ledger
    bodies: QueueBodies

    @property
    def leaves(self) -> bool:
        """Whether a drain takes the messages, with the times at which they expire and the counts of their failures."""

    def remain(self, sequences: list[int]) -> None:
        """These do not leave, and are available again."""

    def dispatch_soon(self) -> None:
        """Look at this again at the end of the turn."""


def withdraw(messages: Messages, sequences: Collection[int]) -> None:
    """The end of these messages on their queue is about to be committed: from now on they are not delivered or moved, and their
    delays are not handled."""
    order, delays = messages.order, messages.delays
    for first, count in runs_of([each for each in sequences if not order.is_acquired(each)]):
        order.claim(first, count)
    if delays is not None:
        for sequence in sequences:
            delays.claim(sequence)


class _Unreadable(Exception):
    """The message cannot be read, and its content would decide where it goes."""


class _Kept(Exception):
    """The message cannot leave until somebody changes something: its content cannot be read, or no queue there takes large
    messages."""


class DeadLetters:
    """See the module."""

    __slots__ = (
        "_blocked",
        "_heads",
        "_kept",
        "_later",
        "_logs",
        "_more",
        "_origin",
        "_retries",
        "_round",
        "_schedule",
        "_stands",
        "_told",
        "_told_of_none",
        "waiting",
    )

    def __init__(self, origin: Origin, logs: Logs, schedule: Schedule) -> None:
        self.waiting: dict[int, str] = {}
        """Sequence -> reason, in the order in which they are to leave."""
        self._more = Held()
        """Expired ones behind those. They are not available on the queue, and hold no group."""
        self._origin = origin
        self._logs = logs
        self._schedule = schedule
        self._heads: dict[int, bytes | None] = {}
        """The first parts of large ones; None: it is being read."""
        self._later: dict[int, str] = {}
        """Those that have no place to go to, and are tried again."""
        self._kept = KeptLetters()
        """Those that cannot leave until somebody changes something: they are tried again in turn, some at a time."""
        self._round = 0
        """How many of those are still to be tried now, one piece after the other, because the broker leaves or serves again."""
        self._retries = False
        """Whether it is scheduled to try those again."""
        self._stands = False
        """Whether none is sent until a log has committed some of the letters of all queues, or the end of a queue, or until it is
        looked again whether a disk that is nearly full takes one, or the alternate exchange is here."""
        self._blocked = False
        """Whether none is sent because of such a disk, or because the alternate exchange is not here."""
        self._told = Held()
        """The large messages that cannot leave and are already reported in the log file."""
        self._told_of_none = False
        """Whether it is reported there that this broker does not have the alternate exchange."""

    def add(self, sequences: Iterable[int], reason: str) -> None:
        """Add messages that must leave. The caller ensures that they are not delivered any more."""
        added = list(sequences)
        if reason == EXPIRED and (self.has_more or len(self.waiting) >= limits.MAX_LETTERS_WAITING):
            for first, count in runs_of(added):
                self._more.add(first, count)
        else:
            self.waiting.update(dict.fromkeys(added, reason))
        messages = self._origin.node.messages
        if self._blocked and messages is not None:
            messages.order.set_aside(added)
        self._origin.dispatch_soon()

    def recall(self, reason: str, stays: Callable[[int], bool]) -> list[int]:
        """The messages that were to leave for this reason, have not left, and are to stay: they are forgotten here."""
        found = [each for some in (self.waiting, self._later) for each, why in some.items() if why == reason and stays(each)]
        for first, count in (*self._kept.runs(reason), *(self._more.runs() if reason == EXPIRED else ())):
            found += filter(stays, range(first, first + count))
        self.forget(found)
        return found

    def forget(self, sequences: Iterable[int]) -> None:
        """These are to stay, or leave in another way."""
        for each in sequences:
            for some in (self.waiting, self._later):
                some.pop(each, None)
            self._kept.forget(each)
            self._heads.pop(each, None)
            if self.has_more:
                self._more.remove(each, 1)
        self._refill()

    @property
    def has_more(self) -> bool:
        """Whether more expired messages wait than are in `waiting`."""
        return self._more.n_runs > 0

    def _refill(self) -> None:
        """While few are in `waiting`, move some there that wait in runs: kept ones whose turn it is, and expired ones."""
        while self._round > 0 and len(self.waiting) < limits.MAX_TURN_MESSAGES:
            some = self._kept.take(min(self._round, limits.MAX_TURN_MESSAGES))
            self._round = self._round - len(some) if some else 0
            self.waiting.update(some)
        while self.has_more and len(self.waiting) < limits.MAX_TURN_MESSAGES:
            ((first, count),) = self._more.runs(most=1)
            count = min(count, limits.MAX_TURN_MESSAGES)
            self._more.remove(first, count)
            self.waiting.update(dict.fromkeys(range(first, first + count), EXPIRED))

    def look_again(self) -> None:
        """The broker begins to leave, or serves again: what cannot leave is looked at now."""
        self._round = self._kept.count
        self._refill()

    @property
    def owed(self) -> bool:
        """Whether messages wait here that a consumer has rejected, and can leave soon: their outcomes are settled, and nothing in
        the log says so yet."""
        waits = REJECTED in self.waiting.values() or (self._round > 0 and bool(self._kept.runs(REJECTED, most=1)))
        return not self._blocked and waits

    def __contains__(self, sequence: int) -> bool:
        """Whether this message is on its way out."""
        return sequence in self.waiting or sequence in self._later or sequence in self._kept or sequence in self._more

    def wanted(self) -> list[int]:
        """The messages whose bodies are needed next."""
        if self._stands or not self._origin.node.definition.alternate:
            return []
        return list(islice(self.waiting, limits.MAX_TURN_MESSAGES))

    def clear(self) -> None:
        """The queue was deleted, or this broker stops serving."""
        self.waiting.clear()
        self._more = Held()
        self._heads.clear()
        self._later.clear()
        self._kept = KeptLetters()
        self._round = 0
        self._told = Held()
        self._retries = self._stands = self._blocked = self._told_of_none = False
        self._schedule.cancel(self._key)
        self._schedule.cancel(self._retry_key)
        self._schedule.cancel(self._stand_key)

    @property
    def _key(self) -> tuple[str, str]:
        return "dead letters", self._origin.node.uuid

    @property
    def _retry_key(self) -> tuple[str, str]:
        return "dead letters again", self._origin.node.uuid

    @property
    def _stand_key(self) -> tuple[str, str]:
        return "dead letters stand", self._origin.node.uuid

    def send(self) -> None:
        """Send them on, in order, as far as their bodies are in memory."""
        messages = self._origin.node.messages
        if messages is None:
            self.clear()
            return
        some = list(islice(self.waiting.items(), limits.MAX_TURN_LETTERS))
        back: list[int] = []
        left: list[int] = []
        stuck: list[int] = []
        dropped: Counter[str] = Counter()
        for sequence, reason in some:
            try:
                if messages.order.lane_of(sequence).is_live(sequence) and not self._origin.node.displaces(sequence):
                    sent = self._send(messages, sequence, reason)
                    if sent is None:
                        break
                    left.append(sequence)
                    self._count(reason, dropped, sent=sent)
            except Unplaced:
                if reason == REJECTED:
                    back.append(sequence)
                else:
                    self._later[sequence] = reason
            except _Kept:
                if reason == REJECTED and self._origin.leaves:
                    back.append(sequence)
                else:
                    self._kept.add(sequence, reason)
                    stuck.append(sequence)
            except _Unreadable:
                stuck.append(sequence)
            del self.waiting[sequence]
            self._heads.pop(sequence, None)
            self._refill()
        else:
            if self.waiting:
                self._schedule.after(self._key, 0.0, self._origin.dispatch_soon)
        if (self._later or self._kept) and not self._retries:
            self._retries = True
            self._schedule.after(self._retry_key, RETRY_S, self._try_again)
        withdraw(messages, left)
        messages.order.set_aside(stuck)
        if dropped[DELIVERY_LIMIT]:
            self._tell(dropped[DELIVERY_LIMIT])
        if back:
            self._origin.remain(back)

    def _try_again(self) -> None:
        self._retries = False
        later, self._later = self._later, {}
        self.waiting.update(later)
        self.waiting.update(self._kept.take(limits.MAX_TURN_LETTERS))
        self._origin.dispatch_soon()

    def _count(self, reason: str, dropped: Counter[str], *, sent: bool) -> None:
        node = self._origin.node
        if reason == EXPIRED:
            node.expired += 1
        elif reason == DELIVERY_LIMIT:
            node.over_limit += 1
        else:
            node.rejected += 1
        if not sent:
            node.dropped += 1
            dropped[reason] += 1

    def _tell(self, count: int) -> None:
        node = self._origin.node
        _log.warn(
            "queue {name!r}: {n} messages are dropped: their delivery has failed {limit} times and no queue takes dead letters",
            name=node.name,
            n=count,
            limit=node.delivery_limit,
        )

    def _tell_of_none(self) -> None:
        if not self._told_of_none:
            self._told_of_none = True
            node = self._origin.node
            text = "messages stay on queue {name!r}: its alternate exchange {alternate!r} does not exist on this broker"
            _log.warn(text, name=node.name, alternate=node.definition.alternate)

    def _send(self, messages: Messages, sequence: int, reason: str) -> bool | None:
        """Send one on: whether any queue has it now, None when its body must be read first, or something else be committed.
        Unplaced, _Kept, _Unreadable: it stays where it is."""
        origin = self._origin
        if not origin.node.definition.alternate:
            origin.ledger.dequeue(messages.number, (sequence,))
            return False
        if self._exchange is None:
            if origin.leaves or not self._blocked:
                self._tell_of_none()
                self._stand(messages)
            return None
        manifest = messages.large.get(sequence)
        if manifest is not None:
            head = self._head_of(sequence, manifest)
            if head is None:
                if sequence in origin.bodies.unreadable:
                    raise _Unreadable
                return None
            return self._send_large(messages, sequence, manifest, head)
        lane = messages.order.lane_of(sequence)
        lot = lane.lot_of(sequence)
        if lot is None:
            if lane.unreadable(sequence)[0]:
                raise _Unreadable
            return None
        if self._must_stand():
            return None
        data = messages.noted(sequence, lot.messages()[0])
        return self._send_small(data, reason, partial(origin.ledger.dequeue, messages.number, (sequence,)))

    def _must_stand(self) -> bool:
        """Whether too many letters are not committed yet. Then the queue is dispatched again when they are."""
        if not self._stands:
            for ledger in self._logs.ledgers.values():
                if ledger.pending.letter_bytes >= limits.LETTERS_INFLOW_BYTES:
                    self._stands = True
                    ledger.pending.when_committed(self._go_on)
                    break
        return self._stands

    def _cannot_go_to(self, queues: list[QueueNode], nbytes: int = 0) -> bool:
        """Whether one of these queues is being deleted, or the deletion of this queue is proposed, or a disk is nearly full and
        takes no letter of so many bytes for each of them. Then the queue is dispatched again when the deletion is committed, or
        after a while. Unplaced, if a drain is to take the message instead of that disk. A letter that cannot go uses up no room
        of the others."""
        logs, own, messages = self._logs, self._origin.node, self._origin.node.messages
        going = next((queue for queue in queues if logs.nodes.is_going(queue.uuid)), None)
        if logs.ledgers[own.log].pending.is_going(own.uuid):  # its messages go with it, and so do the parts of large ones
            going = own
        if going is not None:
            self._stands = True
            logs.when_decided(going, self._go_on)
            return True
        nbytes *= len(queues)
        if messages is not None and not all(ledger.room.fits_letter(nbytes) for ledger in set(map(logs.ledger_of, queues))):
            self._stand(messages)
            return True
        for ledger in logs.ledgers.values():
            ledger.room.take_letter(nbytes)
        return False

    def _stand(self, messages: Messages) -> None:
        """Send nothing for a while: it may take long until there is a way. Unplaced, if a drain is to take the messages."""
        if self._origin.leaves:
            raise Unplaced
        self._stands = self._blocked = True
        self._schedule.after(self._stand_key, RETRY_S, self._go_on)
        messages.order.set_aside(self.waiting)

    def _go_on(self) -> None:
        self._stands = self._blocked = False
        self._origin.dispatch_soon()

    def _send_small(self, data: bytes, reason: str, take_off: Callable[[], None]) -> bool | None:
        """Send a message to the queues that want it; `take_off` is called when it is safe there. Limits of those queues do not
        hold it back: it is on this broker already. None: it must wait."""
        node, own, logs = self._origin.node, self._origin.ledger, self._logs
        routed = self._alternates(data)
        queues = routed.queues
        check_places(queues)
        letter = letters.letter(data, node.name, node.definition.alternate, reason) if queues else data
        if self._cannot_go_to(queues, len(letter)):
            return None
        self._count_at_exchange(routed)
        others = dict.fromkeys(logs.ledger_of(queue) for queue in queues if logs.ledger_of(queue) is not own)
        with own.pending.one_batch(len(letter) * len(queues)):
            letter = pass_on(logs, routed, letter)
            for queue in queues:
                logs.ledger_of(queue).put_letter(queue, letter)
            if not others:
                take_off()
        if not others:
            return bool(queues)
        outstanding = [len(others)]

        def committed() -> None:
            outstanding[0] -= 1
            if not outstanding[0]:
                take_off()

        for ledger in others:
            ledger.pending.when_committed(committed)
        return True

    @property
    def _exchange(self) -> ExchangeNode | None:
        """The queue's alternate exchange."""
        return self._logs.nodes.exchanges.get(self._origin.node.definition.alternate)

    def _alternates(self, data: bytes) -> Routed:
        """Where the queue's alternate exchange routes a message, but not back to this queue. The exchange does not count it.
        _Kept."""
        node, exchange = self._origin.node, self._exchange
        assert exchange is not None, "without one, messages are kept"
        try:
            key, readable = message.subject(data) or "", True
        except message.BadMessage:
            key, readable = "", False
        try:
            found = routing.find(self._logs.nodes, exchange, key, data)
        except message.BadMessage:
            raise _Kept from None
        found = found._replace(queues=[queue for queue in found.queues if queue is not node])
        if not (found.queues or readable):
            raise _Kept
        return found

    def _count_at_exchange(self, routed: Routed) -> None:
        """A message leaves like this: the alternate exchange counts it, once, however often it had to wait before."""
        assert self._exchange is not None, "it has routed the message"
        routing.count(self._exchange, routed)

    # ---- large messages

    def _head_of(self, sequence: int, manifest: Manifest) -> bytes | None:
        """The first part of a large message, which is needed to route it; None while it is being read."""
        if sequence not in self._heads and sequence not in self._origin.bodies.unreadable:
            self._heads[sequence] = None
            self._origin.bodies.parts_of(manifest).read(lambda parts, why: self._head_came(sequence, parts, why), 1)
        return self._heads.get(sequence)

    def _head_came(self, sequence: int, parts: list[bytes] | None, why_not: str) -> None:
        self._heads.pop(sequence, None)
        if parts is not None and sequence in self.waiting:
            self._heads[sequence] = parts[0]
        elif why_not or (parts is None and self._origin.bodies.lacks_parts(sequence)):
            self._origin.bodies.unreadable.add(sequence)
        self._origin.dispatch_soon()

    def _send_large(self, messages: Messages, sequence: int, manifest: Manifest, head: bytes) -> bool | None:
        """Send a large message on: the queues there refer to the same parts. None: it must wait.

        _Kept, when one of them is in another log, which does not have the parts, or has groups of messages; Unplaced, when it has
        no place for it yet.
        """
        ledger = self._origin.ledger
        routed = self._alternates(head)
        queues = routed.queues
        check_places(queues)
        if any(self._logs.ledger_of(queue) is not ledger for queue in queues):
            self._stays(sequence, "a queue of another log")
        if any(queue.asked.get(GROUP_KEY) for queue in queues):
            self._stays(sequence, "a queue with groups of messages")
        if self._cannot_go_to(queues):
            return None
        self._count_at_exchange(routed)
        lanes = [queue.messages.order.lane_for(head) for queue in queues if queue.messages is not None]
        with ledger.pending.one_batch(0):
            if queues:
                ledger.put_large(zip(queues, lanes, strict=True), manifest, head)
            # If no queue keeps it, the parts go with its last holder: the dequeue lets them go here, and others may have it.
            ledger.dequeue(messages.number, (sequence,))
        return bool(queues)

    def _stays(self, sequence: int, where: str) -> NoReturn:
        """This large message cannot go where the alternate exchange leads, unless somebody changes that. _Kept."""
        if sequence not in self._told:
            self._told.add(sequence, 1)
            text = "a large message stays on queue {name!r}: its alternate exchange leads to {where}"
            _log.warn(text, name=self._origin.node.name, where=where)
        raise _Kept
