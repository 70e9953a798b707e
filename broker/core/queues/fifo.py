"""First in, first out: the messages of one lane, and which of them are acquired.

The state is small, so a range of messages costs the same as one message:

* A cursor: a live message at or after it is available, unless it was claimed. A live message before it is acquired, unless it was
  released.
* The released messages, as a heap and a set; usually empty.
* The claimed messages, which were taken out of order; empty unless a selector picked messages.

Invariants: released messages are live and before the cursor, claimed ones are live and at or after it; no message overtakes one
that is not in memory; only an unreadable message (see `Lane.unreadable`) is skipped: it counts as acquired, without a consumer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from broker.core.queues.blocks import Lot
from broker.core.queues.lane import Lane, inside
from broker.core.queues.returned import Returned

_MIN_REBUILD = 64


class Fifo:
    """Fulfils Discipline for one lane."""

    __slots__ = ("_claimed", "_cursor", "_heap", "_released", "absent", "acquired", "lane", "returned")
    searching = False

    def __init__(self, lane: Lane, returned: Returned | None = None) -> None:
        self.lane = lane
        self.returned = Returned() if returned is None else returned
        self.absent = -1
        self.acquired = 0
        self._cursor = lane.head_seq
        self._released: set[int] = set()
        self._heap: list[int] = []
        self._claimed: set[int] = set()

    @property
    def lanes(self) -> Sequence[Lane]:
        """The one lane."""
        return (self.lane,)

    @property
    def depth(self) -> int:
        """Messages alive."""
        return self.lane.depth

    @property
    def available(self) -> int:
        """Messages alive that `acquire` may give out."""
        return self.lane.depth - self.acquired

    @property
    def live_bytes(self) -> int:
        """Encoded bytes of the messages alive."""
        return self.lane.live_bytes

    @property
    def is_spilled(self) -> bool:
        """Whether the lane may have bodies that are not in memory."""
        return self.lane.spilled

    @property
    def has_counts(self) -> bool:
        """Whether any message has a delivery count that is not 0."""
        return self.lane.has_counts

    def upcoming(self) -> Iterable[tuple[Lane, int]]:
        """The one lane, and the first sequence that was not acquired yet, released ones apart."""
        return ((self.lane, self._cursor),)

    def lane_of(self, sequence: int) -> Lane:
        """The one lane. ValueError for a sequence of another."""
        if sequence >> 56 != self.lane.next_seq >> 56:
            raise ValueError(f"sequence {sequence:#x} belongs to a lane that this queue does not have")
        return self.lane

    def lane_for(self, message: bytes) -> int:
        """The one lane."""
        return 0

    def acquire(self, consumer: object, max_count: int, max_bytes: int) -> list[Lot]:
        """Take the oldest available messages. Released ones come first: they are older than all that were never acquired."""
        lots: list[Lot] = []
        self.take(lots, max_count, max_bytes)
        return lots

    def take(self, lots: list[Lot], max_count: int, max_bytes: int) -> tuple[int, int]:
        """Like `acquire`, but adds to existing lots. Returns the rest of the limits; a count of 0 when a message did not fit."""
        lane, before = self.lane, len(lots)
        self.absent = -1
        if self._released:
            max_count, max_bytes = self._take_released(lots, max_count, max_bytes)
        if max_count > 0:
            here = len(lots)
            absent = self._walk(lots, max_count, max_bytes)
            while absent:
                end, n = lane.unreadable(self._cursor)
                if not end:
                    self.absent = self._cursor
                    break
                self.acquired += n - self._forget_claimed(self._cursor, end)
                self._cursor = end
                if lots:  # the rest is for the next call
                    break
                absent = self._walk(lots, max_count, max_bytes)
            for lot in lots[here:]:
                max_count -= lot.stop - lot.start
                max_bytes -= lot.nbytes
            if lane.spilled and self._cursor >= lane.next_seq:
                lane.spilled = False
        for lot in lots[before:]:
            self.acquired += lot.stop - lot.start
        return max_count, max_bytes

    def _walk(self, lots: list[Lot], max_count: int, max_bytes: int) -> bool:
        """Continue from the cursor and skip claimed messages. Returns whether it ended at a message that is not in memory."""
        lane, here = self.lane, len(lots)
        cursor, absent = lane.walk(lots, self._cursor, max_count, max_bytes)
        while self._claimed:
            found: list[Lot] = []
            for lot in lots[here:]:
                found += _parts(lot, inside(self._claimed, lot.first_seq, lot.first_seq + lot.n_messages))
            lots[here:] = found
            went_on = cursor > self._cursor
            self._forget_claimed(self._cursor, cursor)
            self._cursor = cursor
            if found or absent or not went_on:
                break
            cursor, absent = lane.walk(lots, cursor, max_count, max_bytes)
        self._cursor = cursor
        return absent

    def _forget_claimed(self, first_seq: int, end_seq: int) -> int:
        """The cursor passes these messages, or they are removed. Returns how many of them were claimed."""
        if not self._claimed:
            return 0
        gone = inside(self._claimed, first_seq, end_seq)
        self._claimed.difference_update(gone)
        return len(gone)

    def claim(self, first_seq: int, count: int) -> None:
        """Acquire these messages, all of which are available, out of turn."""
        for sequence in range(first_seq, first_seq + count):
            if sequence < self._cursor:
                self._released.remove(sequence)
            else:
                self._claimed.add(sequence)
        self.acquired += count
        self._trim()

    def available_again(self) -> Iterable[int]:
        """The released messages before the first one that was never delivered."""
        return tuple(self._released)

    def browse(self, cursors: list[int], max_count: int, max_bytes: int) -> list[Lot]:
        """Look at the live messages from the cursor on, acquired or not."""
        lots: list[Lot] = []
        cursors[0], _, _ = self.look(lots, cursors[0], max_count, max_bytes)
        return lots

    def look(self, lots: list[Lot], cursor: int, max_count: int, max_bytes: int) -> tuple[int, int, int]:
        """Like `browse`, but adds to existing lots. Returns the cursor and the rest of the limits."""
        self.absent = -1
        if max_count <= 0:
            return cursor, 0, 0
        lane, before = self.lane, len(lots)
        cursor, absent = lane.walk(lots, cursor, max_count, max_bytes)
        while absent:
            end, _ = lane.unreadable(cursor)
            if not end:
                self.absent = cursor
                break
            cursor = end
            if lots:
                break
            cursor, absent = lane.walk(lots, end, max_count, max_bytes)
        for lot in lots[before:]:
            max_count -= lot.stop - lot.start
            max_bytes -= lot.nbytes
        return cursor, max_count, max_bytes

    def release(self, sequences: Iterable[int]) -> None:
        """Make acquired messages available again, in their old places. Those that are not acquired are passed over."""
        returned = self.returned
        for sequence in sequences:
            if self.is_acquired(sequence):
                if sequence < self._cursor:
                    self._released.add(sequence)
                    heappush(self._heap, sequence)
                else:
                    self._claimed.remove(sequence)
                self.acquired -= 1
                if returned.readers:
                    returned.note(sequence)

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
        if sequence >= self._cursor:
            return sequence in self._claimed
        return sequence not in self._released and self.lane.is_live(sequence)

    def remove(self, first_seq: int, count: int) -> tuple[int, int]:
        """Drop these messages for good, in whatever state. Returns how many were alive, and their bytes; again gives (0, 0)."""
        end, cursor, lane = first_seq + count, self._cursor, self.lane
        if end <= cursor:
            n, nbytes = lane.remove(first_seq, end)
            n_before = n
        else:
            n_before, nbytes_before = lane.remove(first_seq, cursor) if first_seq < cursor else (0, 0)
            n_after, nbytes_after = lane.remove(max(first_seq, cursor), end)
            n, nbytes = n_before + n_after, nbytes_before + nbytes_after
        if n:
            self.acquired -= n_before + self._forget_claimed(first_seq, end)
            if self._released:
                self.acquired += self._forget_released(first_seq, end)
        return n, nbytes

    def release_all(self) -> None:
        """Make every acquired message available again: the term in which they were acquired has ended."""
        self._cursor = self.lane.head_seq
        self._released.clear()
        self._heap.clear()
        self._claimed.clear()
        self.acquired = 0
        self.returned.restart()

    def _take_released(self, lots: list[Lot], max_count: int, max_bytes: int) -> tuple[int, int]:
        """Add lots of released messages, in order. Returns the rest of the limits; a count of 0 when a message did not fit."""
        heap, released, lane = self._heap, self._released, self.lane
        while released and max_count > 0:
            first = heap[0]
            if first not in released:
                heappop(heap)
                continue
            block = lane.block_of(first)
            assert block is not None, "a released message is live"
            start = stop = first - block.first_seq
            run = block.run_of(start)
            body = block.body(run)
            if body is None:
                if not lane.unreadable(first)[0]:
                    self.absent = first
                    return 0, 0
                released.remove(heappop(heap))
                self.acquired += 1
                continue
            offsets, run_end = block.offsets, block.bounds(run)[1]
            while heap and heap[0] == block.first_seq + stop and heap[0] in released and stop < run_end and max_count:
                max_bytes -= offsets[stop + 1] - offsets[stop]
                if max_bytes < 0 and (lots or stop > start):
                    max_count = 0
                    break
                released.remove(heappop(heap))
                stop += 1
                max_count -= 1
            if stop > start:
                lots.append(Lot(block, start, stop, *body))
        return max_count, max_bytes

    def _forget_released(self, first_seq: int, end_seq: int) -> int:
        gone = inside(self._released, first_seq, end_seq)
        self._released.difference_update(gone)
        self._trim()
        return len(gone)

    def _trim(self) -> None:
        if len(self._heap) > 2 * len(self._released) + _MIN_REBUILD:
            self._heap = list(self._released)
            heapify(self._heap)


def _parts(lot: Lot, without: list[int]) -> list[Lot]:
    """A lot without some of its messages."""
    parts: list[Lot] = []
    start = lot.start
    for position in sorted(sequence - lot.block.first_seq for sequence in without):
        if start < position:
            parts.append(lot._replace(start=start, stop=position))
        start = position + 1
    if start < lot.stop:
        parts.append(lot._replace(start=start))
    return parts
