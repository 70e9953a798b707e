"""Priority queues: a lane for each level, and the highest level first.

Arguments: `qpid.priorities`, `x-qpid-priorities` (qpidd's) or `x-max-priority` (one less: the highest level). A message's
priority is that of its AMQP header (part 3.2.1; 4 if it has none). Clients use 0 to 9; where there are fewer than ten levels they
are mapped as qpidd does (PriorityQueue.cpp, by the rule of AMQP 0-10): with n levels, the lowest is for priorities up to 5 - n/2
(n/2 rounded up), each priority above has a level of its own, and the highest level is for all the rest. With RabbitMQ's name
`x-max-priority` they are mapped as in RabbitMQ: each priority up to the highest level has its own, and the highest level is for
all the rest. A message without a priority has 4 there, too, if that has a level of its own below the highest; otherwise it has 0,
as in RabbitMQ. (Many clients do not send the 4 that an application sets, because it is the default.)

Invariants: the level of a message is its lane, which the primary assigns and which never changes; within a level the order is
that of a Fifo, also for released messages; while a message is not in memory, lower levels wait too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from broker.core import message
from broker.core.queues.blocks import Lot
from broker.core.queues.fifo import Fifo
from broker.core.queues.lane import LANE_SHIFT, Lane
from broker.core.queues.residency import Residency
from broker.core.queues.returned import Returned

LEVELS = ("qpid.priorities", "x-qpid-priorities")
HIGHEST = "x-max-priority"
MAX_LEVELS = 256
"""As many as a priority in AMQP 1.0 has values, and as there are lanes."""


class Priority:
    """Fulfils Discipline with a Fifo for each level."""

    __slots__ = ("_by_level", "_from_zero", "_highest_first", "absent", "returned")
    searching = False

    def __init__(self, n_levels: int, live_by_file: dict[int, int], residency: Residency, *, from_zero: bool = False) -> None:
        self.returned = Returned()
        self._from_zero = from_zero
        lanes = [Lane((level << LANE_SHIFT) + 1, live_by_file, residency) for level in range(n_levels)]
        self._by_level = [Fifo(lane, self.returned) for lane in lanes]
        self._highest_first = self._by_level[::-1]
        self.absent = -1

    @property
    def lanes(self) -> Sequence[Lane]:
        """The lanes by level, the lowest first."""
        return [fifo.lane for fifo in self._by_level]

    @property
    def depth(self) -> int:
        """Messages alive."""
        return sum(fifo.lane.depth for fifo in self._by_level)

    @property
    def acquired(self) -> int:
        """Live messages that are acquired."""
        return sum(fifo.acquired for fifo in self._by_level)

    @property
    def available(self) -> int:
        """Messages alive that `acquire` may give out."""
        return sum(fifo.available for fifo in self._by_level)

    @property
    def live_bytes(self) -> int:
        """Encoded bytes of the messages alive."""
        return sum(fifo.lane.live_bytes for fifo in self._by_level)

    @property
    def is_spilled(self) -> bool:
        """Whether a lane may have bodies that are not in memory."""
        return any(lane.spilled for lane in self.lanes)

    @property
    def has_counts(self) -> bool:
        """Whether any message has a delivery count that is not 0."""
        return any(fifo.lane.has_counts for fifo in self._by_level)

    def lane_of(self, sequence: int) -> Lane:
        """The lane of its level. ValueError when there is no such level."""
        return self._fifo(sequence).lane

    def _fifo(self, sequence: int) -> Fifo:
        level = sequence >> LANE_SHIFT
        if level >= len(self._by_level):
            raise ValueError(f"sequence {sequence:#x} is of level {level}: this queue has {len(self._by_level)}")
        return self._by_level[level]

    def lane_for(self, message_bytes: bytes) -> int:
        """The level of a message; bytes that are not an AMQP message have the default priority."""
        standard = message.Header().priority
        default = 0 if self._from_zero and len(self._by_level) <= standard + 1 else standard
        try:
            asked = message.header(message_bytes, default).priority
        except message.BadMessage:
            asked = default
        return level_for(asked, len(self._by_level), from_zero=self._from_zero)

    def acquire(self, consumer: object, max_count: int, max_bytes: int) -> list[Lot]:
        """Take the oldest available messages of the highest level, then those of the next."""
        lots: list[Lot] = []
        self.absent = -1
        for fifo in self._highest_first:
            if fifo.available:
                max_count, max_bytes = fifo.take(lots, max_count, max_bytes)
                if fifo.available or not max_count:
                    self.absent = fifo.absent
                    break
        return lots

    def claim(self, first_seq: int, count: int) -> None:
        """Acquire these messages, all of which are available, out of turn."""
        self._fifo(first_seq).claim(first_seq, count)

    def available_again(self) -> Iterable[int]:
        """The released messages before the first one that was never delivered."""
        return [sequence for fifo in self._by_level for sequence in fifo.available_again()]

    def browse(self, cursors: list[int], max_count: int, max_bytes: int) -> list[Lot]:
        """Look at the live messages behind the cursors, those of the highest level first."""
        lots: list[Lot] = []
        self.absent = -1
        cursors.extend([0] * (len(self._by_level) - len(cursors)))
        for level in range(len(self._by_level) - 1, -1, -1):
            fifo = self._by_level[level]
            if fifo.lane.depth and cursors[level] < fifo.lane.next_seq:
                cursors[level], max_count, max_bytes = fifo.look(lots, cursors[level], max_count, max_bytes)
                if fifo.absent >= 0 or cursors[level] < fifo.lane.next_seq:
                    self.absent = fifo.absent
                    break
        return lots

    def upcoming(self) -> Iterable[tuple[Lane, int]]:
        """The lanes, the highest level first."""
        return [each for fifo in self._highest_first for each in fifo.upcoming()]

    def release(self, sequences: Iterable[int]) -> None:
        """Make acquired messages available again, in their old places. Those that are not acquired are passed over."""
        for sequence in sequences:
            self._fifo(sequence).release((sequence,))

    def release_all(self) -> None:
        """Make every acquired message available again: the term in which they were acquired has ended."""
        for fifo in self._by_level:
            fifo.release_all()

    def will_return(self, sequences: Iterable[int]) -> None:
        """Nothing: a message that returns is one of the next."""

    def set_aside(self, sequences: Iterable[int], *, given: bool = True) -> None:
        """Nothing: the order does not depend on which messages a consumer has."""

    def left(self, consumer: object) -> None:
        """Nothing: the order does not depend on the consumer."""

    def search_on(self) -> None:
        """Nothing: the next message for a consumer is the next one."""

    def take_opened(self) -> bool:
        """Never: whatever is available is available to everybody."""
        return False

    def is_acquired(self, sequence: int) -> bool:
        """Whether this message is on the queue and acquired."""
        return self._fifo(sequence).is_acquired(sequence)

    def remove(self, first_seq: int, count: int) -> tuple[int, int]:
        """Drop these messages for good, in whatever state. Returns how many were alive, and their bytes; again gives (0, 0)."""
        return self._fifo(first_seq).remove(first_seq, count)


def level_for(asked: int, n_levels: int, *, from_zero: bool = False) -> int:
    """The level, from 0 to `n_levels` - 1, of a message that asks for this priority. `from_zero`: as RabbitMQ does it."""
    first = 0 if from_zero else max(5 - (n_levels + 1) // 2, 0)
    return min(max(asked - first, 0), n_levels - 1)


def levels_of(arguments: dict[str, Any]) -> int:
    """How many levels a queue's arguments ask for; 0 when it is not a priority queue. ValueError when they cannot be."""
    for name in (*LEVELS, HIGHEST):
        if name in arguments:
            value = arguments[name]
            n_levels = value + 1 if name == HIGHEST and isinstance(value, int) else value
            if isinstance(value, bool) or not isinstance(n_levels, int) or not 1 <= n_levels <= MAX_LEVELS:
                least, most = (0, MAX_LEVELS - 1) if name == HIGHEST else (1, MAX_LEVELS)
                raise ValueError(f"{name} is {value!r}: it must be a number from {least} to {most}")
            return n_levels
    return 0


def is_from_zero(arguments: dict[str, Any]) -> bool:
    """Whether priorities are mapped to levels as in RabbitMQ."""
    return HIGHEST in arguments and not any(name in arguments for name in LEVELS)


def make(arguments: dict[str, Any], live_by_file: dict[int, int], residency: Residency) -> Priority | None:
    """The discipline of a queue with these arguments, if it is a priority queue."""
    try:
        n_levels = levels_of(arguments)
    except ValueError:  # made by an earlier version, which accepted any argument
        return None
    return Priority(n_levels, live_by_file, residency, from_zero=is_from_zero(arguments)) if n_levels > 1 else None
