"""What the consumers of one queue give back without having accepted it, on the broker that serves.

Life of a return: a consumer has acquired messages and gives them another outcome than `accepted`, or its connection ends. What
the outcome changes for the next consumer is written to the log: raised delivery counts, annotations, delays. When this is
committed, the messages are available in their old places, wait, or leave as dead letters (broker.sessions.dead_letters): those
that were rejected, and those that have failed as often as the queue allows. An outcome that changes nothing is effective at once.

Invariants: no consumer gets a message with an outdated count or without its annotations; while a return waits for its commit
(`under_way`), the queue gives out nothing that must come after it; a message that has failed too often leaves once. On a broker
that leaves, or with no limit, messages stay however often they fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from broker.core import letters as reasons
from broker.core import limits
from broker.core.commands import NOTES_SINCE, TIMES_SINCE
from broker.core.links import FAILED, REJECTED, UNDELIVERABLE
from broker.core.nodes import QueueNode
from broker.core.notes import waits_until
from broker.sessions.dead_letters import DeadLetters
from broker.sessions.due import Due
from broker.sessions.ledger import Ledger

NO_NOTES: Mapping[int, bytes] = MappingProxyType({})


class Acquired(Protocol):
    """The queue."""

    node: QueueNode
    ledger: Ledger

    @property
    def serves(self) -> bool:
        """Whether this broker is the primary: a backup, too, writes to the log that only it has."""

    @property
    def leaves(self) -> bool:
        """Whether a drain takes the messages, with the times at which they expire and the counts of their failures."""

    def give_back(self, sequences: list[int]) -> None:
        """These are available again, in their old places."""


class Returns:
    """See the module."""

    __slots__ = ("_due", "_letters", "_queue", "_waiting")

    def __init__(self, queue: Acquired, letters: DeadLetters, due: Due) -> None:
        self._queue = queue
        self._letters = letters
        self._due = due
        self._waiting: set[object] = set()
        """A token for each return that waits for its commit."""

    @property
    def under_way(self) -> bool:
        """Whether a return waits for its commit."""
        return bool(self._waiting)

    def clear(self) -> None:
        """The term ends, and with it everything that was acquired."""
        self._waiting.clear()

    def settle(self, sequences: list[int], outcome: int, notes: Mapping[int, bytes] = NO_NOTES) -> None:
        """These acquired messages have this outcome, which is not `accepted`, and some of them come with annotations."""
        if notes:
            with self._queue.ledger.pending.one_batch(sum(map(len, notes.values()))):
                self._settle(sequences, outcome, notes)
        else:
            self._settle(sequences, outcome, notes)

    def _settle(self, sequences: list[int], outcome: int, notes: Mapping[int, bytes]) -> None:
        noted = bool(notes) and self._note(notes)  # the next consumer must get the message with its annotations
        if outcome == REJECTED or outcome & UNDELIVERABLE:
            if noted:
                self._when_committed(sequences, self._let_die)
            else:
                self._let_die(sequences)
        elif outcome & FAILED:
            self.undo(sequences, count=True, notes=notes)
        elif self._let_wait(notes):
            self._when_committed(sequences, self.failed)
        elif noted:
            self._when_committed(sequences, self._queue.give_back)
        else:
            self._queue.give_back(sequences)

    def undo(self, sequences: list[int], *, count: bool, notes: Mapping[int, bytes] = NO_NOTES) -> None:
        """These acquired messages are available again; `count`: when their delivery counts have been raised by one. `notes`: the
        annotations of their consumer."""
        node, ledger = self._queue.node, self._queue.ledger
        messages = node.messages
        if not count or messages is None or not ledger.serving:
            self._queue.give_back(sequences)
            return
        (retry_ms, most_ms), limit = node.retry_ms, node.delivery_limit
        waits: dict[int, int] = {}
        with ledger.pending.one_batch(0):  # no delay may end while others of them are still to be counted
            for sequence in sequences:
                ledger.count(messages.number, sequence)
                failures = messages.order.lane_of(sequence).delivery_count(sequence) + 1
                if retry_ms and not 0 < limit <= failures:
                    waits[sequence] = min(retry_ms * failures, most_ms)
            if waits:
                ledger.let_wait(messages.number, waits)
            self._let_wait(notes)  # the consumer's own delay has precedence over that of the queue
            self._when_committed(sequences, self.failed)  # the next consumer must get the message with the increased count

    def failed(self, sequences: list[int]) -> None:
        """The outcomes of these messages are committed: they are available again, wait, or have failed too often."""
        messages, limit, given = self._queue.node.messages, self._limit, sequences
        if limit and messages is not None and self._queue.serves:
            order = messages.order
            over = [each for each in sequences if order.lane_of(each).delivery_count(each) >= limit and order.is_acquired(each)]
            if over:
                self._letters.add(over, reasons.DELIVERY_LIMIT)
                sequences = list(set(sequences).difference(over))
        if messages is not None and messages.delays is not None:
            sequences = [each for each in sequences if not messages.delays.is_waiting(each)]
            self._due.look()
        if messages is not None and sequences is not given:
            messages.order.set_aside(set(given).difference(sequences))
        self._queue.give_back(sequences)

    def limited(self) -> None:
        """Remove the messages that have failed too often for the limit, which may be a new one, and keep those that were to leave
        and have not. What a consumer has stays, and leaves when it has come back: at once if it has failed again or is to wait,
        or else when it is about to be delivered."""
        messages, limit = self._queue.node.messages, self._limit
        if messages is None:
            return
        order, delays = messages.order, messages.delays
        stay = self._letters.recall(
            reasons.DELIVERY_LIMIT, lambda each: not 0 < limit <= order.lane_of(each).delivery_count(each)
        )
        self._due.remain(stay)
        if limit and order.has_counts:
            over = sorted(each for lane in order.lanes for each, count in lane.delivery_counts().items() if count >= limit)
            free = [each for each in over if not order.is_acquired(each) or (delays is not None and delays.is_waiting(each))]
            self._letters.add([each for each in free if each not in self._letters], reasons.DELIVERY_LIMIT)

    @property
    def _limit(self) -> int:
        """After how many failures a message leaves; 0: it stays however often it fails, for example for a drain's target."""
        return 0 if self._queue.leaves else self._queue.node.delivery_limit

    def _when_committed(self, sequences: list[int], then: Callable[[list[int]], None]) -> None:
        """Let these acquired messages return, or leave, by `then` when everything that was put so far is committed, in the same
        step: no other code sees them with their new counts and times, but still acquired, because these are in one batch. Until
        then, nothing that must come after them is given out."""
        if self._queue.node.messages is not None:
            self._queue.node.messages.order.will_return(sequences)
        one = object()
        self._waiting.add(one)

        def committed() -> None:
            if one in self._waiting:  # otherwise the term has ended, and with it all that was acquired
                self._waiting.remove(one)
                then(sequences)

        self._queue.ledger.pending.when_applied(committed)

    def _note(self, notes: Mapping[int, bytes]) -> bool:
        """Propose the annotations of a consumer, as far as there is room for them. Returns whether there were any."""
        messages, ledger = self._queue.node.messages, self._queue.ledger
        if messages is None or ledger.version < NOTES_SINCE or not ledger.serving:
            return False
        room = limits.MAX_NOTES - len(messages.notes)
        some = [(sequence, note) for sequence, note in notes.items() if len(note) <= limits.MAX_NOTE_BYTES][: max(0, room)]
        for sequence, note in some:
            ledger.note(messages.number, sequence, note)
        return bool(some)

    def _let_wait(self, notes: Mapping[int, bytes]) -> bool:
        """Propose the delays that consumers request by annotations. Returns whether there were any."""
        messages, ledger = self._queue.node.messages, self._queue.ledger
        if not notes or messages is None or ledger.version < TIMES_SINCE or not ledger.serving:
            return False
        now_ms, waits = ledger.now_ms, {}
        for sequence, note in notes.items():
            until_ms = waits_until(note, now_ms) if len(note) <= limits.MAX_NOTE_BYTES else 0
            if until_ms:
                waits[sequence] = until_ms - now_ms
        if waits:
            ledger.let_wait(messages.number, waits)
        return bool(waits)

    def _let_die(self, sequences: list[int]) -> None:
        if self._queue.node.messages is not None:
            self._letters.add(sequences, reasons.REJECTED)
