"""The times of one queue's messages, on the broker that serves: messages expire, and delayed messages become available.

Life: when messages with times arrive, or a term begins, `look` sets the schedule to the first of these times. A sweep then
handles the messages whose time has come, a limited number in one turn of the reactor. An expired message that no consumer holds
leaves as a dead letter (broker.sessions.dead_letters), or at once if the queue has no alternate exchange. If a consumer holds it,
it is checked again later. A delayed message becomes available in its old place. While many dead letters wait, no more expire.

A message is also checked just before it is delivered (`fit`), so the result does not depend on a late sweep: an expired one, or
one that has failed too often, is not delivered and leaves, and a delayed one is held back, without a consumer, until a sweep
handles its time.

On a broker that leaves, messages do not expire, and none leaves because it has failed too often. The target of the drain may have
a message that is still here, because its drainer was stopped, and a consumer there may have taken it: as a dead letter it would
move once more. The drain takes the time and the count of each message to the target, which applies them. Messages that were to
leave when the broker began to, and have not, stay for the drain (`stay`).

Invariants: a time is handled once in a term, by a sweep or when its message is about to be delivered, and once more if its
message was a dead letter then and stays on the queue after all (`remain`); a delayed message is available only after a sweep has
handled its time, or to a drain, which passes the time on to the next store; sweeps are `EVERY_MS` apart, and handle about `MOST`
times each (`MORE_MS` apart while there are more).

Time is that of the log (broker.core.log_time).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.core.letters import DELIVERY_LIMIT, EXPIRED
from broker.core.nodes import QueueNode
from broker.core.queues.blocks import Lot
from broker.core.queues.owned import Owned
from broker.core.queues.sifting import removed, without
from broker.core.queues.times import MAX_MS, Times
from broker.core.state import Messages
from broker.sessions.dead_letters import DeadLetters, withdraw
from broker.sessions.ledger import Ledger
from broker.sessions.schedule import Schedule

EVERY_MS = 20
"""Minimum interval between sweeps of one queue: messages that become due in between are handled together."""
MORE_MS = 4
"""Interval after a sweep that has left messages: other work is done in between."""
MOST = 1024
"""Approximate number of times that one sweep handles."""
HELD_MS = 1000
"""Delay until a message that has expired while a consumer holds it is checked again."""


class Swept(Protocol):
    """The queue."""

    node: QueueNode
    ledger: Ledger

    @property
    def held(self) -> bool:
        """Whether consumers get nothing, because another broker is about to take over."""

    @property
    def serves(self) -> bool:
        """Whether this broker is the primary: a backup, too, writes to the log that only it has."""

    @property
    def leaves(self) -> bool:
        """Whether a drain takes the messages, with the times at which they expire and the counts of their failures."""

    def give_back(self, sequences: list[int]) -> None:
        """These are available from now on."""


class _Over:
    """Messages that are not delivered any more: their deliveries have failed too often, or they have expired."""

    __slots__ = ("expired", "failed")

    def __init__(self) -> None:
        self.failed: list[int] = []
        self.expired: list[int] = []


class Due:
    """See the module."""

    __slots__ = ("_armed_ms", "_letters", "_queue", "_schedule", "_swept_ms")

    def __init__(self, queue: Swept, letters: DeadLetters, schedule: Schedule) -> None:
        self._queue = queue
        self._letters = letters
        self._schedule = schedule
        self._armed_ms = 0
        """When the next sweep is; 0: none is to come."""
        self._swept_ms = 0

    @property
    def _key(self) -> tuple[str, str]:
        return "due", self._queue.node.uuid

    def clear(self) -> None:
        """The queue was deleted, or this broker stops serving."""
        self._armed_ms = self._swept_ms = 0
        self._schedule.cancel(self._key)

    def begin(self) -> None:
        """A term begins: nothing was taken in it."""
        messages = self._queue.node.messages
        self._armed_ms = 0
        if messages is not None:
            for times in (messages.expiries, messages.delays):
                if times is not None:
                    times.rewind()
            self.look()

    def look(self) -> None:
        """Let a sweep come when the next time is due."""
        messages = self._queue.node.messages
        if messages is None:
            return
        delays = messages.delays
        next_ms = messages.next_due_ms if not self._queue.leaves else None if delays is None else delays.next_ms
        if next_ms is None:
            return
        when_ms = max(int(next_ms), self._swept_ms + EVERY_MS)
        if not self._armed_ms or when_ms < self._armed_ms:
            self._arm(when_ms)

    def _arm(self, when_ms: int) -> None:
        self._armed_ms = when_ms
        delay_s = max(when_ms - self._queue.ledger.now_ms, 0) / 1000
        self._schedule.after(self._key, delay_s, self._sweep)

    def _sweep(self) -> None:
        self._armed_ms = 0
        queue, now_ms = self._queue, self._queue.ledger.now_ms
        messages = queue.node.messages
        if messages is None or not (queue.serves and queue.ledger.serving):
            return
        self._swept_ms = now_ms
        if queue.held:
            self._arm(now_ms + EVERY_MS)
            return
        more = self._let_go(messages, now_ms)
        if (
            messages.expiries is not None
            and not queue.leaves
            and not self._letters.has_more
            and len(self._letters.waiting) < MOST
        ):
            gone = messages.expiries.take(now_ms, MOST)
            more = more or len(gone) >= MOST
            self._expire(messages, messages.expiries, gone, now_ms)
        if more:
            self._arm(now_ms + MORE_MS)
        else:
            self.look()

    def _let_go(self, messages: Messages, now_ms: int) -> bool:
        """Make messages available whose delay has ended. Returns whether there are more."""
        if messages.delays is None:
            return False
        found = messages.delays.take(now_ms, MOST)
        if found:
            self._queue.give_back(found)
        return len(found) >= MOST

    def let_all_go(self) -> None:
        """Hold back no delayed messages any more: the drain that takes them keeps their times."""
        messages = self._queue.node.messages
        if messages is not None and messages.delays is not None:
            while found := messages.delays.take(MAX_MS, MOST):
                self._queue.give_back(found)

    def hold_back(self) -> None:
        """The drain has ended, perhaps because it was cancelled: hold back delayed messages again."""
        messages = self._queue.node.messages
        if messages is not None and messages.delays is not None:
            messages.delays.rewind_after(self._queue.ledger.now_ms)
            self.look()

    def _expire(self, messages: Messages, expiries: Times, found: list[int], now_ms: int) -> None:
        """These messages have expired, and their times are handled. A message that a consumer holds may still be accepted."""
        order, delays, letters = messages.order, messages.delays, self._letters
        held = [
            each
            for each in found
            if each not in letters and order.is_acquired(each) and not (delays is not None and delays.is_waiting(each))
        ]
        expiries.again(held, now_ms + HELD_MS)
        self._leave(messages, sorted({*found}.difference(held)) if held else found)

    def stay(self) -> None:
        """The broker leaves: expired messages that have not left yet are for the drain, or expire again if it is cancelled."""
        self.remain(self._letters.recall(EXPIRED, lambda sequence: True))

    def remain(self, sequences: list[int]) -> None:
        """These were dead letters and have not left: they are available again, or still delayed, and expire if their time has
        come meanwhile."""
        messages = self._queue.node.messages
        if messages is None or not sequences:
            return
        if messages.expiries is not None:
            messages.expiries.again(sequences, self._queue.ledger.now_ms)
            self.look()
        delays = messages.delays
        self._queue.give_back([each for each in sequences if delays is None or not delays.is_waiting(each)])

    def _leave(self, messages: Messages, sequences: list[int]) -> None:
        node = self._queue.node
        if not sequences:
            return
        if node.definition.alternate:
            self._letters.add([each for each in sequences if each not in self._letters], EXPIRED)
        else:
            node.expired += len(sequences)
            node.dropped += len(sequences)
            withdraw(messages, sequences)
            self._queue.ledger.dequeue(messages.number, sequences)

    # ---- what is about to be given out

    def left_ms(self, messages: Messages, sequence: int) -> int:
        """How long this message, which is about to be sent, may still live; 0: for any time."""
        expires_ms = 0 if messages.expiries is None else messages.expiries.at(sequence)
        return max(expires_ms - self._queue.ledger.now_ms, 1) if expires_ms else 0

    def fit(self, messages: Messages, lots: list[Lot], *, browse: bool) -> list[Lot]:
        """Those of these messages that may be delivered now. The others stay acquired, if they were, without a consumer."""
        if not (messages.has_times or (self._queue.node.delivery_limit and messages.order.has_counts)):
            return lots
        given, over = lots, _Over()
        for unfit in self._tests(messages, over, [(lot.first_seq, lot.n_messages) for lot in lots]):
            lots = without(lots, unfit)
        if lots is not given and not browse:
            # before they are dead letters, which are set aside as given
            messages.order.set_aside(removed(given, lots), given=False)
            self._let_leave(messages, over)
        return lots

    def withhold(self, messages: Messages, order: Owned) -> int:
        """Set aside the first messages of groups that are asked for, if they cannot be delivered now. Returns how many."""
        asked, over = order.asked_for, _Over()
        tests = self._tests(messages, over, [(each, 1) for each in asked])
        found = [each for each in asked if any(unfit(each) for unfit in tests)]
        order.withhold(found)
        self._let_leave(messages, over)
        return len(found)

    def _tests(self, messages: Messages, over: _Over, runs: list[tuple[int, int]]) -> list[Callable[[int], bool]]:
        """What tells of a message in these runs that it cannot be delivered now. What is to leave is noted in `over`."""
        tests: list[Callable[[int], bool]] = []
        limit, order, leaves = self._queue.node.delivery_limit, messages.order, self._queue.leaves
        if limit and order.has_counts and not leaves:

            def has_failed(sequence: int) -> bool:
                if order.lane_of(sequence).delivery_count(sequence) < limit:
                    return False
                over.failed.append(sequence)
                return True

            tests.append(has_failed)
        delays, expiries = messages.delays, messages.expiries
        if delays is not None and delays.waiting:
            tests.append(delays.is_waiting)
        if expiries is not None and not leaves and any(expiries.any_of(first, count) for first, count in runs):
            now_ms, times = self._queue.ledger.now_ms, expiries.at

            def has_expired(sequence: int) -> bool:
                if not 0 < times(sequence) <= now_ms:
                    return False
                over.expired.append(sequence)
                return True

            tests.append(has_expired)
        return tests

    def _let_leave(self, messages: Messages, over: _Over) -> None:
        if over.failed:  # the limit is a new one, and a consumer had them when it was set
            self._letters.add([each for each in over.failed if each not in self._letters], DELIVERY_LIMIT)
        if over.expired and messages.expiries is not None:
            self._leave(messages, [each for each in over.expired if messages.expiries.claim(each)])
