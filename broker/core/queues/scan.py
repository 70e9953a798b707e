"""The messages of a queue that one selector has examined, and those that it picks out of order.

Life of a scan: the first consumer with a selector creates it, and all consumers of the queue with the same selector share it.
Each `take` examines messages in the order of delivery, from where the last one ended, and claims matching ones for the consumer.
It ends when the consumer has enough, at a message whose body must be read from disk first (`absent`), at a large message whose
first part must be read (`headless`), when it has examined the maximum number for one step (`has_more`), or at the end of the
queue. A released message is examined again, because it is available again, and its delivery may have failed meanwhile: the scan
reads the notes of such messages (see `returned`) before it examines anything.

Invariants: a message that was examined and not claimed is not examined again, unless it was released, or exceeded the requested
bytes; every available message that matches is claimed or will be examined, even if messages are acquired, released and removed
meanwhile; messages are claimed in the queue's order; unreadable messages are skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Protocol

from broker.core.queues.blocks import Lot
from broker.core.queues.discipline import Discipline
from broker.core.queues.lane import LANE_SHIFT, Lane

_WALK = 256
"""Messages that are walked over at once."""
_MIN_REBUILD = 64
_ANY_BYTES = 1 << 62
_READS = 8
"""Notes of released messages that are read in the time of one look."""
_LOOK_SHIFT = 13
"""Searching 8 KiB for one piece of a pattern takes as long as about three looks without a search, and counts as one more."""


class Condition(Protocol):
    """It picks messages: a selector."""

    @property
    def counts(self) -> bool:
        """Whether it depends on the number of failed deliveries."""

    @property
    def weight(self) -> int:
        """How many pieces of patterns it searches for in a message."""

    def matches(self, data: bytes, start: int, end: int, failures: int) -> bool:
        """Whether it picks the message `data[start:end]`, delivery of which has failed so many times."""


def looks(n_messages: int, nbytes: int, condition: Condition) -> int:
    """How many looks it is to examine these messages, of so many bytes together."""
    return n_messages + (nbytes * condition.weight >> _LOOK_SHIFT)


def bytes_of(n_looks: int, condition: Condition) -> int:
    """How many bytes may be examined in so many looks."""
    return (n_looks << _LOOK_SHIFT) // condition.weight if condition.weight else _ANY_BYTES


class _Place:
    """How far one lane was examined: all messages before the cursor, except those in the heap, some of which are there twice."""

    __slots__ = ("cursor", "heap")

    def __init__(self) -> None:
        self.cursor = 0
        self.heap: list[int] = []

    def drop_first(self) -> None:
        heap = self.heap
        first = heappop(heap)
        while heap and heap[0] == first:
            heappop(heap)


class Scan:
    """See the module. Fulfils `returned.Reader`."""

    __slots__ = (
        "_bytes",
        "_condition",
        "_fits",
        "_heads",
        "_large",
        "_left",
        "_places",
        "absent",
        "has_more",
        "headless",
        "n_read",
        "order",
    )

    def __init__(self, order: Discipline, condition: Condition) -> None:
        self.order = order
        self._condition = condition
        self._places: dict[int, _Place] = {}
        self.absent = self.headless = -1
        """The message at which the last `take` stopped because its body, or its first part, is not in memory; -1: none."""
        self.has_more = False
        """Whether the last `take` ended because it had examined the maximum number of messages."""
        self._left = self._fits = self._bytes = 0
        self._large: Collection[int] = ()
        self._heads: Mapping[int, bytes | None] = {}
        for sequence in order.available_again():
            self._place(sequence >> LANE_SHIFT).heap.append(sequence)
        for place in self._places.values():
            heapify(place.heap)
        self.n_read = 0
        order.returned.add(self)

    def close(self) -> None:
        """No consumer uses it any more."""
        self.order.returned.remove(self)

    def _place(self, lane: int) -> _Place:
        return self._places.setdefault(lane, _Place())

    # ---- what becomes available again

    def is_available(self, sequence: int) -> bool:
        """See `returned.Reader`."""
        return self.order.lane_of(sequence).is_live(sequence) and not self.order.is_acquired(sequence)

    def restart(self) -> None:
        """See `returned.Reader`."""
        self._places.clear()
        self.n_read = 0

    def _read(self, upcoming: Iterable[tuple[Lane, int]]) -> bool:
        """Read what became available again: it is examined again, unless that is still to come. Returns whether this is all."""
        notes = self.order.returned.sequences
        unread = len(notes) - self.n_read
        if not unread:
            return True
        n = min(unread, max(self._left, 0) * _READS)
        firsts = {lane.next_seq >> LANE_SHIFT: first for lane, first in upcoming}
        for sequence in notes[self.n_read : self.n_read + n]:
            place = self._place(sequence >> LANE_SHIFT)
            if sequence < place.cursor or sequence < firsts[sequence >> LANE_SHIFT]:
                heappush(place.heap, sequence)
        self.n_read += n
        self._left -= -(-n // _READS)
        most = 2 * self.order.available + _MIN_REBUILD
        for place in self._places.values():
            if len(place.heap) > most:
                place.heap = [each for each in set(place.heap) if self.is_available(each)]
                heapify(place.heap)
        return n == unread

    # ---- taking

    def take(
        self,
        max_count: int,
        max_bytes: int,
        max_looks: int,
        large: Collection[int] = (),
        heads: Mapping[int, bytes | None] | None = None,
    ) -> list[Lot]:
        """Claim the next matching messages, up to `max_count` and `max_bytes`, but at least one if there is one.

        It examines at most `max_looks` messages, fewer if that is expensive (`looks`). `large` are messages that are manifests
        here: their first parts are in `heads`.
        """
        lots: list[Lot] = []
        self.absent = self.headless = -1
        self.has_more = False
        self._fits, self._bytes, self._left = max_count, max_bytes, max_looks
        self._large, self._heads = large, heads or {}
        upcoming = self.order.upcoming()
        if not self._read(upcoming):
            self._may_look()
            return lots
        for lane, first in upcoming:
            place = self._place(lane.next_seq >> LANE_SHIFT)
            if not (self._look_again(lots, lane, place) and self._look_on(lots, lane, place, first)):
                break
        return lots

    @property
    def looks_left(self) -> int:
        """How many more messages the last `take` could have examined."""
        return self._left

    def _may_look(self) -> bool:
        self.has_more = self._fits > 0 and self._left <= 0
        return self._fits > 0 and self._left > 0

    def _look_again(self, lots: list[Lot], lane: Lane, place: _Place) -> bool:
        """Examine messages that are available again. Returns whether all are done."""
        while place.heap:
            if not self._may_look():
                return False
            sequence = place.heap[0]
            if lane.is_live(sequence) and not self.order.is_acquired(sequence):
                lot = lane.lot_of(sequence)
                if lot is None and not lane.unreadable(sequence)[0]:
                    self.absent = sequence
                    return False
                if lot is not None and self._look(lots, lane, lot) == sequence:
                    return False
            place.drop_first()
        return True

    def _look_on(self, lots: list[Lot], lane: Lane, place: _Place, first: int) -> bool:
        """Examine the messages after the cursor. Returns whether all are done."""
        place.cursor = max(place.cursor, first)
        while place.cursor < lane.next_seq:
            if not self._may_look():
                return False
            found: list[Lot] = []
            end, absent = lane.walk(found, place.cursor, min(self._left, _WALK), bytes_of(self._left, self._condition))
            for lot in found:
                place.cursor = self._look(lots, lane, lot)
                if place.cursor < lot.first_seq + lot.n_messages:
                    return False
            place.cursor = end
            if absent:
                place.cursor, _ = lane.unreadable(end)
                if not place.cursor:
                    place.cursor = self.absent = end
                    return False
        return True

    def _look(self, lots: list[Lot], lane: Lane, lot: Lot) -> int:
        """Examine the messages of a lot, one after the other. Returns the sequence of the first one that was not examined."""
        matches, is_acquired = self._condition.matches, self.order.is_acquired
        counted = self._condition.counts and lane.has_counts
        large, data, base, offsets, first = self._large, lot.data, lot.base, lot.block.offsets, lot.block.first_seq
        before, looked = lot.start, lot.start
        for position in range(lot.start, lot.stop):
            if not self._fits:
                break
            sequence = first + position
            failures = lane.delivery_count(sequence) if counted else 0
            if large and sequence in large:
                head = self._heads.get(sequence)
                if head is None:
                    self.headless = sequence
                    break
                matched = matches(head, 0, len(head), failures)
            else:
                matched = matches(data, base + offsets[position], base + offsets[position + 1], failures)
            if matched and not is_acquired(sequence):
                nbytes = offsets[position + 1] - offsets[position]
                if nbytes > self._bytes and (lots or before < looked):
                    self._fits = 0
                    break
                self._fits -= 1
                self._bytes -= nbytes
            else:
                if before < position:
                    self._claim(lots, lot, before, position)
                before = position + 1
            looked = position + 1
        if before < looked:
            self._claim(lots, lot, before, looked)
        self._left -= looks(looked - lot.start, offsets[looked] - offsets[lot.start], self._condition)
        return first + looked

    def _claim(self, lots: list[Lot], lot: Lot, start: int, stop: int) -> None:
        self.order.claim(lot.block.first_seq + start, stop - start)
        lots.append(lot._replace(start=start, stop=stop))
