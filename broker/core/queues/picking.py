"""The progress of an operator's request on a queue: the messages that it has examined, and where the next request continues.

Life of a walk: a request to purge, move or reroute messages creates it. It goes through the messages that existed then, first
those of the highest level of priority, each level in order, a few at a time. When the time of the request is over, `place` is its
position. A next request with this place continues there. The broker keeps nothing in between, and a new primary can continue as
well, because sequences belong to the log.

Invariants: messages that arrived after the `place` or the start of a walk are not examined, so it also ends on a busy queue; a
message is examined once, unless the walk was put `back`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from broker.core.queues.discipline import Discipline
from broker.core.queues.lane import LANE_SHIFT

_COUNTER = (1 << LANE_SHIFT) - 1


class Walk:
    """See the module. ValueError, when `place` is not of a queue of this kind."""

    __slots__ = ("_cursor", "_ends", "_order")

    def __init__(self, order: Discipline, place: Sequence[object] = ()) -> None:
        self._order = order
        n_lanes = len(order.lanes)
        if not place:
            self._ends = [lane.next_seq for lane in order.lanes]
            self._cursor = (n_lanes - 1) << LANE_SHIFT
            return
        cursor, *counters = [each for each in place if type(each) is int and 0 <= each < 1 << 63]
        if len(counters) + 1 != len(place) or len(counters) != n_lanes + 1 or counters[0] >= n_lanes:
            raise ValueError("this is not a position on this queue")
        self._cursor = counters[0] << LANE_SHIFT | cursor & _COUNTER
        self._ends = [lane << LANE_SHIFT | each & _COUNTER for lane, each in enumerate(counters[1:])]

    @property
    def place(self) -> list[int]:
        """Its position, for another walk: counter and lane of the next message, and the counter at which each lane ends."""
        return [self._cursor & _COUNTER, self._cursor >> LANE_SHIFT, *(end & _COUNTER for end in self._ends)]

    def look(self, most: int) -> list[int]:
        """The next messages that are alive, up to so many; [] at the end."""
        found: list[int] = []
        while True:
            number = self._cursor >> LANE_SHIFT
            lane, end = self._order.lanes[number], self._ends[number]
            for sequence, _ in islice(lane.alive_from(self._cursor), most - len(found)):
                if sequence >= end:
                    break
                found.append(sequence)
            if len(found) == most:
                self._cursor = found[-1] + 1
                return found
            if not number:
                self._cursor = max(end, self._cursor)
                return found
            self._cursor = (number - 1) << LANE_SHIFT

    def back(self, sequence: int) -> None:
        """Look at this message, and at those behind it, once more."""
        self._cursor = sequence
