"""Operations on many messages of a queue: operators purge them, move them to another queue, or reroute them by an exchange.

Life of an operation: management starts it (`Bulk.start`) with the queue, the number of messages, and a filter. It walks through
the existing messages (broker.core.queues.picking), a few in each turn of the reactor, within the share for searches. Messages
that it takes are claimed, so that no consumer gets them. They leave in one batch of the log, together with their copies. The
operation ends when all messages were examined, when enough were taken, when a target queue is full or goes, when messages are put
somewhere and their own queue goes or this broker begins to leave, or after `limits.BULK_S`. When everything is committed, the
caller gets the count, and the place where the next request continues if there are more messages. When this broker stops serving,
the operation ends without an answer.

Some messages are left where they are: those that a consumer has, dead letters whose copies are not committed yet, and those that
a ring or a last value queue lets go for newer ones. When messages are put somewhere, these are left too: messages that cannot be
read, that no queue accepts, that would go into another log or to a queue that is being deleted, large ones that would go to a
queue of groups, and those that the target queue has as duplicates. A message keeps its times: when it expires, and when it may
first be delivered. Its failed deliveries are counted from zero.

The last operation of a queue that is about to be deleted (`Bulk.clear`, broker.sessions.removal) takes more: a message that the
exchange routes nowhere, or only to queues that have it as a duplicate, leaves for good. Dead letters and expired messages are
left to broker.sessions.dead_letters, which adds the reason. It counts what it leaves by reason (`Result.stays`).

Invariants: the dequeue of a message and its copies are in one batch, so that after a failover it is either in the old place or in
the new one; a queue has one operation at a time; an operation has at most `_IN_FLIGHT` uncommitted steps, each of
`limits.BULK_LOOKS` messages (`limits.BULK_READS` if it reads bodies) and about `limits.MAX_TURN_BYTES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from broker.core import limits, message
from broker.core.duplicates import id_of
from broker.core.lifetimes import Said, when
from broker.core.nodes import ExchangeNode, QueueNode, Refused, Routed
from broker.core.parts import Manifest
from broker.core.queues.arguments import GROUP_KEY
from broker.core.queues.picking import Walk
from broker.core.selector.grammar import BadSelector
from broker.core.selector.selected import Selector, compiled
from broker.core.state import Messages
from broker.sessions import routing
from broker.sessions.dead_letters import DeadLetters, withdraw
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.passing import pass_on
from broker.sessions.queue_bodies import QueueBodies
from broker.sessions.room import full_text, has_room
from broker.sessions.schedule import Schedule
from broker.sessions.share import Share

PURGE, MOVE, REROUTE = OPERATIONS = "PURGE", "MOVE", "REROUTE"
_IN_FLIGHT = 8
_HELD_S = 0.02
"""So much later it is looked at again whether consumers get something: while they do not, another broker is to take over."""


class Place(Protocol):
    """The queue that they are on."""

    node: QueueNode
    ledger: Ledger
    letters: DeadLetters
    bodies: QueueBodies
    operation: Operation | None

    @property
    def held(self) -> bool:
        """Whether consumers get nothing, because another broker is about to take over."""


class Result(NamedTuple):
    """The result of an operation: how many messages were `taken`, and how many matching ones were left. `next`: where the next
    request continues; None at the end. `fault`: why it could not continue, "" if it could. `dropped`: how many of those taken no
    queue has; only the last operation of a queue drops any. `stays`: why messages were left that were to be put somewhere."""

    taken: int
    left: int
    next: list[int] | None
    fault: str
    dropped: int = 0
    stays: Mapping[str, int] = MappingProxyType({})


class Asked(NamedTuple):
    """A request: at most `most` messages (0: all) that match the selector, if there is one. `to` is the queue or exchange that
    they are put on; None: they are purged. `last`: the queue is about to be deleted."""

    most: int
    selector: Selector | None
    to: QueueNode | ExchangeNode | None
    last: bool = False


class _Absent(Exception):
    """The body that decides about a message is not in memory."""


HELD = "are with consumers, or in transactions that are not over"
DUE = "are dead letters, or have expired, and have not left yet"
GOING = "go to a queue that is being deleted, or is not ready"
OTHER_LOG = "go to a queue with another replication level, whose messages are stored in another log"
GROUPS = "are larger than 1.25 MiB, and go to a queue with message groups"
UNREADABLE = "cannot be read"
REPEATED = "are duplicates on the queue that they go to"
NOWHERE = "go to no queue"
PASSING = (HELD, DUE, GOING)
"""Reasons why messages are left that may soon be over."""


class _Stays(Exception):
    """A message stays where it is, for this reason."""


class _One:
    """A message that one step puts somewhere."""

    __slots__ = ("data", "routed")

    def __init__(self, routed: Routed, data: bytes) -> None:
        self.routed = routed
        self.data = data


class _Puts:
    """The messages that one step puts on one queue."""

    __slots__ = ("ids", "messages", "nbytes", "times")

    def __init__(self) -> None:
        self.messages: list[_One] = []
        self.times: list[tuple[int, int]] = []
        self.nbytes = 0
        self.ids: set[bytes] = set()


class Operation:
    """See the module. Fulfils `share.Work`. `seconds` is the reactor's time; `done` gets the result, unless the operation is
    void."""

    def __init__(
        self,
        place: Place,
        asked: Asked,
        walk: Walk,
        logs: Logs,
        share: Share,
        schedule: Schedule,
        seconds: Callable[[], float],
        done: Callable[[Result], None],
    ) -> None:
        self.reads = False
        """Whether it continues when the queue is dispatched, because bodies may be in memory then."""
        self._place = place
        self._asked = asked
        self._walk = walk
        self._logs = logs
        self._share = share
        self._schedule = schedule
        self._seconds = seconds
        self._done = done
        self._ends_s = seconds() + limits.BULK_S
        self._over = self._stopped = self._reads_head = False
        self._in_flight = self._taken = self._left = self._dropped = 0
        self._stays: Counter[str] = Counter()
        self._next: list[int] | None = None
        self._fault = ""
        self._head: tuple[int, bytes] = (-1, b"")
        """A large message, and its first part."""
        place.operation = self
        share.later(self)

    # ---- its end

    def void(self) -> None:
        """This broker stops serving: there is no answer."""
        self._over = True
        self._share.forget(self)
        self._schedule.cancel(self._key)
        self._place.operation = None

    def gone(self) -> None:
        """The queue was deleted, with the messages that were left."""
        self._fault = f"queue {self._place.node.name!r} was deleted"
        self._finish()

    def _stop(self, fault: str = "", *, goes_on: bool = False) -> None:
        """Examine no more messages, and answer when all steps are committed."""
        self._stopped, self._fault = True, fault
        self._next = self._walk.place if goes_on else None
        if not self._in_flight:
            self._finish()

    def _finish(self) -> None:
        self.void()
        self._done(Result(self._taken, self._left, self._next, self._fault, self._dropped, self._stays))

    @property
    def _key(self) -> tuple[str, str]:
        return "bulk", self._place.node.uuid

    # ---- its steps

    def go_on(self) -> bool:
        """See `share.Work`."""
        if self._over or self._stopped or self.reads or self._reads_head or self._in_flight >= _IN_FLIGHT:
            return False
        if self._place.held or self._place.ledger.pending.interrupted:
            self._schedule.after(self._key, _HELD_S, self._later)
            return False
        if self._asked.to is not None and self._logs.closed:  # what is put somewhere now may come too late for the drain
            self._stop(self._logs.redirect().text)
            return False
        to, node = self._asked.to, self._place.node
        if to is not None and not self._asked.last and self._logs.nodes.is_going(node.uuid):  # its messages go with it
            self._stop(f"queue {node.name!r} is being deleted")
            return False
        changed = self._asked.last and to is not None and node.definition.alternate != to.name
        if changed or self._seconds() >= self._ends_s:
            self._stop(goes_on=True)
            return False
        if isinstance(to, ExchangeNode) and self._logs.nodes.find_exchange(to.uuid) is None:
            self._stop(f"exchange {to.name!r} was deleted")
            return False
        return self._step()

    def _later(self) -> None:
        self._share.later(self)

    def look_again(self) -> None:
        """The queue is dispatched."""
        self.reads = False
        if self.go_on():
            self._later()

    def _step(self) -> bool:
        """Take some messages. Returns whether there is more to be done at once."""
        messages = self._place.node.messages
        assert messages is not None, "a queue that is gone, or has no messages any more, ends its operation"
        reads = self._asked.to is not None or self._asked.selector is not None
        most = min(limits.BULK_LOOKS, limits.BULK_READS) if reads else limits.BULK_LOOKS
        if self._asked.most:
            most = min(most, self._asked.most - self._taken)
        looked = self._walk.look(most) if most else []
        if not looked:
            self._stop()
        elif self._asked.to is None:
            self._purge(messages, looked)
        else:
            self._put(messages, looked, self._asked.to)
        return not (self._stopped or self.reads or self._reads_head or self._in_flight >= _IN_FLIGHT)

    def _is_free(self, messages: Messages, sequence: int) -> bool:
        """Whether no consumer holds this message, and its end is not proposed. A dead letter that waits is free."""
        if self._place.node.displaces(sequence):
            return False
        if sequence in self._place.letters:
            return True
        return not messages.order.is_acquired(sequence) or (messages.delays is not None and messages.delays.is_waiting(sequence))

    def _has_expired(self, messages: Messages, sequence: int) -> bool:
        return messages.expiries is not None and 0 < messages.expiries.at(sequence) <= self._place.ledger.now_ms

    def _purge(self, messages: Messages, looked: list[int]) -> None:
        found: list[int] = []
        selector = self._asked.selector
        for sequence in looked:
            if not self._is_free(messages, sequence):
                self._left += 1
                continue
            if selector is not None:
                try:
                    data = self._data_of(messages, sequence)
                except _Absent:
                    self._wait_for(messages, sequence)
                    break
                if data is None or not self._picks(selector, messages, sequence, data):
                    continue
            found.append(sequence)
        if found:
            self._take(messages, found)
            self._place.ledger.dequeue(messages.number, found)
            self._await()

    def _picks(self, selector: Selector, messages: Messages, sequence: int, data: bytes) -> bool:
        failures = messages.order.lane_of(sequence).delivery_count(sequence) if selector.counts else 0
        return selector.takes(data, failures)

    def _data_of(self, messages: Messages, sequence: int) -> bytes | None:
        """A message, or the first part of a large one; None when it cannot be read. _Absent."""
        if sequence in messages.large:
            if sequence in self._place.bodies.unreadable:
                return None
            if self._head[0] != sequence:
                raise _Absent
            return self._head[1]
        lane = messages.order.lane_of(sequence)
        lot = lane.lot_of(sequence)
        if lot is not None:
            return messages.noted(sequence, lot.messages()[0])
        if lane.unreadable(sequence)[0]:
            return None
        raise _Absent

    def _free_data_of(self, messages: Messages, sequence: int) -> bytes:
        """The same, of a message that may leave. _Absent, _Stays."""
        if self._asked.last and sequence in self._place.letters:
            raise _Stays(DUE)
        if not self._is_free(messages, sequence):
            raise _Stays(HELD)
        if self._asked.last and self._has_expired(messages, sequence):
            raise _Stays(DUE)
        data = self._data_of(messages, sequence)
        if data is None:
            raise _Stays(UNREADABLE)
        return data

    def _wait_for(self, messages: Messages, sequence: int) -> None:
        """Continue at this message when it is in memory."""
        self._walk.back(sequence)
        if sequence in messages.large:
            self._reads_head = True
            self._place.bodies.parts_of(messages.large[sequence]).read(partial(self._head_came, sequence), 1)
        else:
            self.reads = True
            self._place.bodies.fetch(sequence)

    def _head_came(self, sequence: int, parts: list[bytes] | None, why_not: str) -> None:
        self._reads_head = False
        if parts is not None:
            self._head = sequence, parts[0]
        elif why_not or self._place.bodies.lacks_parts(sequence):
            self._place.bodies.unreadable.add(sequence)
        self._later()

    def _take(self, messages: Messages, sequences: list[int]) -> None:
        """These are about to leave."""
        self._place.letters.forget(sequences)
        withdraw(messages, sequences)
        self._taken += len(sequences)

    def _await(self) -> None:
        """A step's batch is put in."""
        self._in_flight += 1
        self._place.ledger.pending.when_committed(self._committed)

    def _committed(self) -> None:
        self._in_flight -= 1
        if self._over:
            return
        if not self._stopped:
            self._later()
        elif not self._in_flight:
            self._finish()

    # ---- what is put somewhere

    def _put(self, messages: Messages, looked: list[int], to: QueueNode | ExchangeNode) -> None:
        selector, ledger = self._asked.selector, self._place.ledger
        found: list[int] = []
        ones: list[_One] = []
        puts: dict[QueueNode, _Puts] = {}
        for sequence in looked:
            if sum(each.nbytes for each in puts.values()) >= limits.MAX_TURN_BYTES or (found and sequence in messages.large):
                self._walk.back(sequence)
                break
            try:
                data = self._free_data_of(messages, sequence)
                if selector is not None and not self._picks(selector, messages, sequence, data):
                    continue
                routed, queues = self._routed(data, to, puts, large=sequence in messages.large)
            except _Absent:
                self._wait_for(messages, sequence)
                break
            except _Stays as why:
                self._left += 1
                self._stays[str(why)] += 1
                continue
            manifest = messages.large.get(sequence)
            nbytes = len(data) if manifest is None else manifest.nbytes
            fault = self._fault_of(queues, nbytes, puts)
            if fault:
                self._walk.back(sequence)
                if not found:  # otherwise it is examined again after the messages of this step are counted
                    self._stop(fault)
                break
            if manifest is not None:
                self._walk.back(sequence + 1)
                self._leaves(to, routed)
                self._put_large(messages, sequence, manifest, data, queues)
                return
            found.append(sequence)
            ones.append(_One(routed, data))
            for queue in queues:
                self._add(puts.setdefault(queue, _Puts()), messages, sequence, ones[-1], queue)
        if found:
            self._take(messages, found)
            with ledger.pending.one_batch(sum(each.nbytes for each in puts.values())):
                for one in ones:
                    self._leaves(to, one.routed)
                    one.data = pass_on(self._logs, one.routed, one.data)
                for queue, each in puts.items():
                    timed = any(map(any, each.times))
                    put = [one.data for one in each.messages]
                    ledger.enqueue(queue, put, sum(map(len, put)), times=each.times if timed else None)
                ledger.dequeue(messages.number, found)
                self._await()

    def _leaves(self, to: QueueNode | ExchangeNode, routed: Routed) -> None:
        """Count a message that is about to be put on these queues."""
        if isinstance(to, ExchangeNode):
            routing.count(to, routed)
        self._dropped += not routed.queues

    def _routed(
        self, data: bytes, to: QueueNode | ExchangeNode, puts: Mapping[QueueNode, _Puts], *, large: bool
    ) -> tuple[Routed, list[QueueNode]]:
        """Where this message goes, of which `data` is the first part if it is large, and the queues there that it is put on: not
        those that have it as a duplicate. _Stays."""
        logs, node, ledger = self._logs, self._place.node, self._place.ledger
        if isinstance(to, QueueNode):
            routed = Routed([to])
        else:
            try:
                routed = routing.find(logs.nodes, to, message.subject(data) or "", data)
            except message.BadMessage:
                raise _Stays(UNREADABLE) from None
            routed = routed._replace(queues=[queue for queue in routed.queues if queue is not node])
        if not routed.queues and not self._asked.last:
            raise _Stays(NOWHERE)
        repeated: list[QueueNode] = []
        for queue in routed.queues:
            if queue.messages is None or (queue is not to and logs.nodes.is_going(queue.uuid)):
                raise _Stays(GOING)
            if logs.ledger_of(queue) is not ledger:
                raise _Stays(OTHER_LOG)
            if large and queue.asked.get(GROUP_KEY):
                raise _Stays(GROUPS)
            if self._is_repeated(data, queue, puts):
                if not self._asked.last:
                    raise _Stays(REPEATED)
                repeated.append(queue)
        return routed, [queue for queue in routed.queues if queue not in repeated] if repeated else routed.queues

    def _is_repeated(self, data: bytes, queue: QueueNode, puts: Mapping[QueueNode, _Puts]) -> bool:
        """Whether the queue has this message already, or gets it in this step."""
        one = id_of(data) if queue.detects_duplicates else None
        put = puts.get(queue)
        return one is not None and (queue.repeats(data, self._place.ledger.now_ms) or (put is not None and one in put.ids))

    def _fault_of(self, queues: list[QueueNode], nbytes: int, puts: Mapping[QueueNode, _Puts]) -> str:
        """Why a message cannot be put on all of these; "" when it can."""
        logs, ledger, to = self._logs, self._place.ledger, self._asked.to
        if isinstance(to, QueueNode) and logs.nodes.queue_by_uuid(to.uuid) is None:
            return f"queue {to.name!r} was deleted"
        if isinstance(to, QueueNode) and logs.nodes.is_going(to.uuid):
            return f"queue {to.name!r} is being deleted"
        for queue in queues:
            put = puts.get(queue)
            count, before = (1, 0) if put is None else (len(put.messages) + 1, put.nbytes)
            if not has_room(queue, count, before + nbytes):
                return full_text(queue, before + nbytes)
        return "" if not queues or ledger.room.takes(nbytes * len(queues)) else ledger.room.text

    def _times_of(self, messages: Messages, sequence: int) -> Said:
        expiries, delays = messages.expiries, messages.delays
        expires_ms = 0 if expiries is None else expiries.at(sequence)
        return Said(expires_ms=expires_ms, available_ms=0 if delays is None else delays.at(sequence))

    def _add(self, put: _Puts, messages: Messages, sequence: int, one: _One, queue: QueueNode) -> None:
        data = one.data
        put.messages.append(one)
        put.nbytes += len(data)
        if messages.has_times:
            put.times.append(when(self._times_of(messages, sequence), self._place.ledger.now_ms, queue.ttl_ms))
        if queue.detects_duplicates and (known := id_of(data)) is not None:
            put.ids.add(known)

    def _put_large(self, messages: Messages, sequence: int, manifest: Manifest, head: bytes, queues: list[QueueNode]) -> None:
        """Put a large message on these queues: they refer to the same parts. If none of them keeps it, the parts go with the last
        queue that has the message."""
        ledger, says = self._place.ledger, self._times_of(messages, sequence)
        lanes = [queue.messages.order.lane_for(head) for queue in queues if queue.messages is not None]
        self._take(messages, [sequence])
        with ledger.pending.one_batch(len(head)):
            ledger.put_large(zip(queues, lanes, strict=True), manifest, head, says=says)
            ledger.dequeue(messages.number, (sequence,))
            self._await()


class Places(Protocol):
    """The queues of a serving broker."""

    def at(self, node: QueueNode) -> Place:
        """This queue, as operations need it."""


class Bulk:
    """The operations that are under way on a broker. `seconds` is the reactor's time."""

    def __init__(self, logs: Logs, places: Places, share: Share, schedule: Schedule, seconds: Callable[[], float]) -> None:
        self._logs = logs
        self._places = places
        self._share = share
        self._schedule = schedule
        self._seconds = seconds

    def start(self, name: str, operation: str, body: Mapping[str, Any], done: Callable[[Result], None]) -> None:
        """Start an operation on the queue of this name; `done` gets the result later. Refused."""
        node = self._logs.nodes.queues.get(name)  # no address: the access rules were asked about the queue of exactly this name
        if node is None:
            raise Refused(404, f"there is no queue named {name!r}")
        place = self._places.at(node)
        messages = place.node.messages
        if not place.ledger.serving or messages is None:
            where = f"; send it to the primary, {self._logs.primary}" if self._logs.primary else ""
            raise Refused(409, f"this broker is {self._logs.state}: only the primary can change the messages of a queue{where}")
        asked = self._asked(place.node, operation, body)
        if place.operation is not None:
            raise Refused(409, f"messages of queue {name!r} are already being purged or moved: wait until that request is done")
        try:
            walk = Walk(messages.order, _list(body, "after"))
        except ValueError:
            raise Refused(400, "`after` must be the `next` of an earlier answer") from None
        Operation(place, asked, walk, self._logs, self._share, self._schedule, self._seconds, done)

    def clear(self, node: QueueNode, to: ExchangeNode, after: list[int], done: Callable[[Result], None]) -> None:
        """Start the last operation on this queue, which is about to be deleted and has no other operation: send its messages
        through this exchange, from the place `after` on ([]: from the beginning)."""
        place = self._places.at(node)
        assert node.messages is not None, "the caller has looked"
        walk = Walk(node.messages.order, after)
        Operation(place, Asked(0, None, to, last=True), walk, self._logs, self._share, self._schedule, self._seconds, done)

    def _asked(self, node: QueueNode, operation: str, body: Mapping[str, Any]) -> Asked:
        fields = {"count", "filter", "after"} | {PURGE: set(), MOVE: {"to"}, REROUTE: {"exchange"}}[operation]
        for field in body.keys() - fields:
            raise Refused(400, f"{operation} of messages has no {field!r} (it has {', '.join(sorted(fields))})")
        count, text = body.get("count"), body.get("filter")
        if count is not None and (type(count) is not int or count < 0):
            raise Refused(400, f"`count` must be a number of messages, or 0 for all, not {count!r}")
        if text is not None and not isinstance(text, str):
            raise Refused(400, "`filter` must be the text of a selector")
        if text is not None and not text.strip():
            raise Refused(400, "`filter` is empty: leave it out for all messages")
        try:
            selector = None if text is None else compiled(text)
        except BadSelector as error:
            raise Refused(400, str(error)) from None
        if operation == REROUTE and not self._logs.serving:
            raise Refused(409, f"this broker is {self._logs.state}: only the primary puts messages through an exchange")
        if operation != PURGE and self._logs.closed:
            raise Refused(409, self._logs.redirect().text)
        if operation == PURGE:
            return Asked(count or 0, selector, None)
        return Asked(count or 0, selector, self._queue(node, body) if operation == MOVE else self._exchange(node, body))

    def _queue(self, node: QueueNode, body: Mapping[str, Any]) -> QueueNode:
        name = body.get("to")
        to = self._logs.nodes.queues.get(str(name or ""))
        if not name:
            raise Refused(400, "`to` must be the name of the queue that gets the messages")
        if to is None:
            raise Refused(404, f"there is no queue named {name!r}")
        if to is node:
            raise Refused(400, f"messages of queue {name!r} cannot be moved to itself")
        if to.messages is None:
            raise Refused(409, f"queue {name!r} is not ready yet; try again")
        if to.messages_log != node.messages_log:
            text = f"messages of queue {node.name!r} are of level {node.definition.level!r}, those of {name!r} of level"
            raise Refused(501, f"{text} {to.definition.level!r}, and are stored in another log: they cannot be moved in one step")
        return to

    def _exchange(self, node: QueueNode, body: Mapping[str, Any]) -> ExchangeNode:
        name = body.get("exchange")
        if name is None and not node.definition.alternate:
            raise Refused(409, f"queue {node.name!r} has no alternate exchange: name the `exchange` for its messages")
        name = str(node.definition.alternate if name is None else name)
        to = self._logs.nodes.exchanges.get(name)
        if to is None:
            raise Refused(404, f"there is no exchange named {name!r}")
        return to


def _list(body: Mapping[str, Any], field: str) -> list[object]:
    found = body.get(field)
    if found is not None and not isinstance(found, list):
        raise ValueError(f"{field} is not a list")
    return found or []
