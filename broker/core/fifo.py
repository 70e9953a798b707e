"""The messages of one queue, by sequence, in chunks.

A chunk is one ENQUEUE run of a committed batch: the batch's bytes, and the positions of the messages in them. There is no object
for a message. Its life: `append` puts a chunk at the tail; `acquire` gives its messages out in order, in lots, each a stretch of
consecutive messages of one chunk; `release` takes some back; `remove` drops those whose dequeue is committed; a chunk without
live messages is let go.

How little there is to keep, which is why whole stretches cost the same as one message:

* A cursor: each live message at or after it is available. Each live message before it is acquired, unless it was released.
* The released ones, as a heap and a set; empty unless somebody released something.
* For each chunk the bounds of its live messages, and a bitmap of the dead ones between, made only when they die out of order.

Invariants: sequences ascend strictly along the queue, with gaps; a sequence that was removed never comes back; released messages
are live and before the cursor; `first_seq`, `data` and `offsets` of a chunk never change, so that a `Lot` stays true whatever
happens to the queue. Memory: `held_bytes <= SPARSE_RATIO * live_bytes + sparse_limit`, because chunks that hold much more than is
alive in them (the rest died, or belongs to other queues of that batch) are copied once they hold more than `sparse_limit`
together. A copy is at most 1 / SPARSE_RATIO of its chunk, so copying costs less than what died had cost before.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

SPARSE_RATIO = 4
"""A chunk is sparse when it holds more than this many times the bytes that are alive in it."""
SPARSE_LIMIT = 2 * 1024 * 1024
"""Bytes that the sparse chunks of one queue may hold together before they are copied."""
_SPLIT_GAP = 64
"""A copied chunk is split where this many messages in a row are dead, so that their offsets cost nothing either."""
_MIN_REBUILD = 64


class Chunk:
    """Messages `first_seq` .. of one queue: message i is `data[offsets[i]:offsets[i + 1]]`. These three never change.

    The rest is the queue's own bookkeeping: the live messages lie in [start, stop), except those whose byte in `dead` is 1.
    """

    __slots__ = ("data", "dead", "first_seq", "live", "live_bytes", "offsets", "sparse", "start", "stop")

    def __init__(self, first_seq: int, data: bytes, offsets: Sequence[int]) -> None:
        self.first_seq = first_seq
        self.data = data
        self.offsets = offsets
        self.start = 0
        self.stop = self.live = len(offsets) - 1
        self.live_bytes = offsets[-1] - offsets[0]
        self.dead: bytearray | None = None
        self.sparse = False

    def is_live(self, position: int) -> bool:
        """Whether message `position` of this chunk is still on the queue."""
        return self.start <= position < self.stop and not (self.dead is not None and self.dead[position])

    def remove(self, start: int, stop: int) -> tuple[int, int]:
        """Let the messages at [start, stop) die. Returns how many were alive, and their bytes."""
        start = start if start > self.start else self.start
        stop = stop if stop < self.stop else self.stop
        if start >= stop:
            return 0, 0
        offsets, dead = self.offsets, self.dead
        n, nbytes = stop - start, offsets[stop] - offsets[start]
        if dead is None:
            if start == self.start:
                self.start = stop
            elif stop == self.stop:
                self.stop = start
            else:
                self.dead = bytearray(len(offsets) - 1)
                self.dead[start:stop] = b"\1" * n
        else:
            if n == 1:
                if dead[start]:
                    return 0, 0
                dead[start] = 1
            else:
                if dead.find(1, start, stop) >= 0:
                    stretches = list(_live_stretches(dead, start, stop))
                    n = sum(hi - lo for lo, hi in stretches)
                    nbytes = sum(offsets[hi] - offsets[lo] for lo, hi in stretches)
                dead[start:stop] = b"\1" * (stop - start)
            if n < self.live:
                if start == self.start:
                    self.start = dead.find(0, stop, self.stop)
                elif stop == self.stop:
                    self.stop = dead.rfind(0, self.start, start) + 1
        self.live -= n
        self.live_bytes -= nbytes
        return n, nbytes

    def copied(self) -> list[Chunk]:
        """The live messages in chunks that hold nothing else, in order, under the same sequences."""
        groups: list[list[tuple[int, int]]] = []
        last = -_SPLIT_GAP
        for stretch in _live_stretches(self.dead, self.start, self.stop):
            if stretch[0] - last >= _SPLIT_GAP or not groups:
                groups.append([])
            groups[-1].append(stretch)
            last = stretch[1]
        return [self._copy(group) for group in groups]

    def _copy(self, stretches: list[tuple[int, int]]) -> Chunk:
        base = stretches[0][0]
        offsets = array("Q", (0,))
        parts: list[bytes] = []
        dead = bytearray(stretches[-1][1] - base) if len(stretches) > 1 else None
        last = base
        for start, stop in stretches:
            if dead is not None:
                dead[last - base : start - base] = b"\1" * (start - last)
            end = offsets[-1]
            offsets.extend([end] * (start - last))
            offsets.extend(array("Q", map((end - self.offsets[start]).__add__, self.offsets[start + 1 : stop + 1])))
            parts.append(self.data[self.offsets[start] : self.offsets[stop]])
            last = stop
        copy = Chunk(self.first_seq + base, b"".join(parts), offsets)
        copy.dead = dead
        copy.live = sum(stop - start for start, stop in stretches)
        return copy


def _live_stretches(dead: bytearray | bytes | None, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The stretches of [start, stop) whose bytes in `dead` are 0, ascending."""
    if dead is None:
        if start < stop:
            yield start, stop
        return
    start = dead.find(0, start, stop)
    while start >= 0:
        end = dead.find(1, start, stop)
        if end < 0:
            yield start, stop
            return
        yield start, end
        start = dead.find(0, end, stop)


class Lot(NamedTuple):
    """The messages [start, stop) of a chunk: consecutive sequences, each alive when the lot was made. Never changes."""

    chunk: Chunk
    start: int
    stop: int

    @property
    def first_seq(self) -> int:
        """The sequence of its first message."""
        return self.chunk.first_seq + self.start

    @property
    def n_messages(self) -> int:
        """How many messages it is."""
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """The encoded bytes of its messages."""
        return self.chunk.offsets[self.stop] - self.chunk.offsets[self.start]

    def messages(self) -> list[bytes]:
        """Copies of its encoded messages."""
        data, offsets = self.chunk.data, self.chunk.offsets
        return [data[offsets[i] : offsets[i + 1]] for i in range(self.start, self.stop)]


class Fifo:
    """One queue's messages, first in, first out. Sequences are given by the log; `next_seq` is the lowest that may come."""

    __slots__ = (
        "_chunks",
        "_counts",
        "_cursor",
        "_empty",
        "_firsts",
        "_front",
        "_heap",
        "_released",
        "_sparse",
        "_sparse_bytes",
        "acquired",
        "depth",
        "held_bytes",
        "live_bytes",
        "next_seq",
        "sparse_limit",
    )

    def __init__(self, next_seq: int = 0, *, sparse_limit: int = SPARSE_LIMIT) -> None:
        self.next_seq = next_seq
        self.sparse_limit = sparse_limit
        self.depth = 0
        """Messages alive."""
        self.acquired = 0
        """Messages alive that somebody has acquired."""
        self.live_bytes = 0
        """Encoded bytes of the messages alive."""
        self.held_bytes = 0
        """Bytes kept in memory for them. Batches shared with other queues count in full."""
        self._chunks: list[Chunk | None] = []
        self._firsts: list[int] = []
        self._front = 0
        self._empty = 0
        self._cursor = next_seq
        self._released: set[int] = set()
        self._heap: list[int] = []
        self._counts: dict[int, int] = {}
        self._sparse: dict[int, Chunk] = {}
        self._sparse_bytes = 0

    @property
    def available(self) -> int:
        """Messages alive that `acquire` may give out."""
        return self.depth - self.acquired

    @property
    def head_seq(self) -> int:
        """The sequence of the oldest live message; `next_seq` when there is none."""
        if not self.depth:
            return self.next_seq
        chunk = self._chunks[self._front]
        assert chunk is not None, "the front of a queue that is not empty is a chunk"
        return chunk.first_seq + chunk.start

    def append(self, first_seq: int, data: bytes, offsets: Sequence[int]) -> None:
        """Put messages at the tail: message i is `data[offsets[i]:offsets[i + 1]]` and has the sequence `first_seq + i`.

        `offsets` has one position more than there are messages; with a single one, only `next_seq` moves. The two are kept, not
        copied: they must not change. ValueError when `first_seq` is below `next_seq`.
        """
        if first_seq < self.next_seq:
            raise ValueError(f"sequence {first_seq} was given already: the next one is {self.next_seq}")
        count = len(offsets) - 1
        self.next_seq = first_seq + count
        if count > 0:
            chunk = Chunk(first_seq, data, offsets)
            if not self.depth:
                self._front = len(self._chunks)
            self._chunks.append(chunk)
            self._firsts.append(first_seq)
            self.depth += count
            self.live_bytes += chunk.live_bytes
            self.held_bytes += len(data)
            if len(data) > SPARSE_RATIO * chunk.live_bytes:
                self._note_sparse(chunk)
                self._tidy()

    def acquire(self, max_count: int, max_bytes: int) -> list[Lot]:
        """Take the oldest available messages, up to `max_count` and `max_bytes`, but one at least if there is any.

        Released ones come first, for they are older than all that were never acquired.
        """
        lots: list[Lot] = []
        if self._released:
            max_count, max_bytes = self._take_released(lots, max_count, max_bytes)
        if max_count > 0:
            self._cursor = self._walk(lots, self._cursor, max_count, max_bytes)
        for lot in lots:
            self.acquired += lot.stop - lot.start
        return lots

    def browse(self, cursor_seq: int, max_count: int, max_bytes: int) -> tuple[list[Lot], int]:
        """Look at the live messages from `cursor_seq` on, acquired or not: one at least if there is any, and the next cursor."""
        lots: list[Lot] = []
        if max_count > 0:
            cursor_seq = self._walk(lots, cursor_seq, max_count, max_bytes)
        return lots, cursor_seq

    def release(self, sequences: Iterable[int]) -> None:
        """Make acquired messages available again, in their old places. Those that are not acquired are passed over."""
        for sequence in sequences:
            if self.is_acquired(sequence):
                self._released.add(sequence)
                heappush(self._heap, sequence)
                self.acquired -= 1

    def is_live(self, sequence: int) -> bool:
        """Whether this message is on the queue, acquired or not."""
        chunk = self._chunk_of(sequence)
        return chunk is not None and chunk.is_live(sequence - chunk.first_seq)

    def is_acquired(self, sequence: int) -> bool:
        """Whether this message is on the queue and acquired."""
        return sequence < self._cursor and sequence not in self._released and self.is_live(sequence)

    def remove(self, first_seq: int, count: int) -> tuple[int, int]:
        """Drop these messages for good, in whatever state. Returns how many were alive, and their bytes; again gives (0, 0)."""
        end, cursor = first_seq + count, self._cursor
        if end <= cursor:
            n, nbytes = self._drop(first_seq, end)
            n_before = n
        else:
            n_before, nbytes_before = self._drop(first_seq, cursor)
            n_after, nbytes_after = self._drop(max(first_seq, cursor), end)
            n, nbytes = n_before + n_after, nbytes_before + nbytes_after
        if n:
            self.depth -= n
            self.live_bytes -= nbytes
            self.acquired -= n_before
            if self._released:
                self.acquired += self._forget_released(first_seq, end)
            if self._counts:
                for sequence in _inside(self._counts, first_seq, end):
                    del self._counts[sequence]
            if self._empty or self._sparse_bytes > self.sparse_limit:
                self._tidy()
        return n, nbytes

    def raise_count(self, first_seq: int, count: int, by: int) -> None:
        """Raise the delivery count of those messages that are alive."""
        end = first_seq + count
        for place in range(max(bisect_right(self._firsts, first_seq) - 1, self._front), len(self._chunks)):
            base = self._firsts[place]
            if base >= end:
                return
            chunk = self._chunks[place]
            if chunk is not None:
                for lo, hi in _live_stretches(chunk.dead, max(first_seq - base, chunk.start), min(end - base, chunk.stop)):
                    for sequence in range(base + lo, base + hi):
                        self._counts[sequence] = self._counts.get(sequence, 0) + by

    @property
    def has_counts(self) -> bool:
        """Whether any message has a delivery count that is not 0."""
        return bool(self._counts)

    def message(self, sequence: int) -> bytes | None:
        """This message's bytes; None when it is not on the queue."""
        chunk = self._chunk_of(sequence)
        if chunk is None or not chunk.is_live(sequence - chunk.first_seq):
            return None
        position = sequence - chunk.first_seq
        return chunk.data[chunk.offsets[position] : chunk.offsets[position + 1]]

    def release_all(self) -> None:
        """Make every acquired message available again: the reign in which they were acquired has ended."""
        self._cursor = self.head_seq
        self._released.clear()
        self._heap.clear()
        self.acquired = 0

    def skip_to(self, next_seq: int) -> None:
        """The next message gets this sequence: those before it came and went before this queue was loaded.

        ValueError when it would go back.
        """
        if next_seq < self.next_seq:
            raise ValueError(f"sequence {next_seq} was given already: the next one is {self.next_seq}")
        self.next_seq = next_seq

    def delivery_count(self, sequence: int) -> int:
        """How often delivery of this message is known to have failed."""
        return self._counts.get(sequence, 0)

    def delivery_counts(self) -> dict[int, int]:
        """A copy of all delivery counts that are not 0, by sequence (checkpoints)."""
        return dict(self._counts)

    def lots(self) -> Iterator[Lot]:
        """All live messages of this moment, in order. Safe to go through later and in another thread: it sees no later change."""
        now = [(c, c.start, c.stop, None if c.dead is None else bytes(c.dead)) for c in self._chunks if c is not None]
        return (Lot(c, lo, hi) for c, start, stop, dead in now for lo, hi in _live_stretches(dead, start, stop))

    def _chunk_of(self, sequence: int) -> Chunk | None:
        index = bisect_right(self._firsts, sequence) - 1
        return self._chunks[index] if index >= 0 else None

    def _walk(self, lots: list[Lot], seq: int, max_count: int, max_bytes: int) -> int:
        """Add lots of live messages from `seq` on, within the bounds, the first lot's first message always. Where it ended."""
        index = max(bisect_right(self._firsts, seq) - 1, self._front)
        for place in range(index, len(self._chunks)):
            chunk = self._chunks[place]
            if chunk is None:
                continue
            offsets = chunk.offsets
            for start, end in _live_stretches(chunk.dead, max(seq - chunk.first_seq, chunk.start), chunk.stop):
                stop = min(end, start + max_count)
                most = offsets[start] + max_bytes
                full = offsets[stop] > most
                if full:
                    stop = bisect_right(offsets, most, start, stop) - 1
                    if stop <= start:
                        if lots:
                            return chunk.first_seq + start
                        stop = start + 1
                lots.append(Lot(chunk, start, stop))
                max_count -= stop - start
                max_bytes -= offsets[stop] - offsets[start]
                if full or not max_count:
                    return chunk.first_seq + stop
        return max(seq, self.next_seq)

    def _take_released(self, lots: list[Lot], max_count: int, max_bytes: int) -> tuple[int, int]:
        """Add lots of released messages, in order. Returns what the bounds leave for others: no count when one did not fit."""
        heap, released = self._heap, self._released
        while released and max_count > 0:
            first = heap[0]
            if first not in released:
                heappop(heap)
                continue
            chunk = self._chunk_of(first)
            assert chunk is not None, "a released message is live"
            offsets = chunk.offsets
            start = stop = first - chunk.first_seq
            while heap and heap[0] == chunk.first_seq + stop and heap[0] in released and stop < chunk.stop and max_count:
                max_bytes -= offsets[stop + 1] - offsets[stop]
                if max_bytes < 0 and (lots or stop > start):
                    max_count = 0
                    break
                released.remove(heappop(heap))
                stop += 1
                max_count -= 1
            if stop > start:
                lots.append(Lot(chunk, start, stop))
        return max_count, max_bytes

    def _forget_released(self, first_seq: int, end_seq: int) -> int:
        gone = _inside(self._released, first_seq, end_seq)
        self._released.difference_update(gone)
        if len(self._heap) > 2 * len(self._released) + _MIN_REBUILD:
            self._heap = list(self._released)
            heapify(self._heap)
        return len(gone)

    def _drop(self, first_seq: int, end_seq: int) -> tuple[int, int]:
        """Let messages die; chunks without live ones go. Returns how many were alive, and their bytes."""
        firsts, chunks = self._firsts, self._chunks
        n = nbytes = 0
        found, front = bisect_right(firsts, first_seq) - 1, self._front
        place = found if found > front else front
        while place < len(firsts) and (base := firsts[place]) < end_seq:
            chunk = chunks[place]
            if chunk is not None:
                n_chunk, nbytes_chunk = chunk.remove(first_seq - base, end_seq - base)
                n += n_chunk
                nbytes += nbytes_chunk
                if not chunk.live:
                    self._let_go(place, chunk)
                elif not chunk.sparse and len(chunk.data) > SPARSE_RATIO * chunk.live_bytes:
                    self._note_sparse(chunk)
            place += 1
        return n, nbytes

    def _let_go(self, place: int, chunk: Chunk) -> None:
        self._chunks[place] = None
        self._empty += 1
        self.held_bytes -= len(chunk.data)
        if chunk.sparse:
            del self._sparse[chunk.first_seq]
            self._sparse_bytes -= len(chunk.data)

    def _note_sparse(self, chunk: Chunk) -> None:
        chunk.sparse = True
        self._sparse[chunk.first_seq] = chunk
        self._sparse_bytes += len(chunk.data)

    def _tidy(self) -> None:
        """Copy sparse chunks when they hold too much, and close up the places of chunks that are gone."""
        chunks = self._chunks
        if self._empty:
            if not self.depth or (self._empty > _MIN_REBUILD and 2 * self._empty > len(chunks)):
                self._chunks = [chunk for chunk in chunks if chunk is not None]
                self._firsts = [chunk.first_seq for chunk in chunks if chunk is not None]
                self._empty = self._front = 0
            else:
                while chunks[self._front] is None:
                    self._front += 1
        if self._sparse_bytes > self.sparse_limit:
            self._copy_sparse()

    def _copy_sparse(self) -> None:
        for chunk in self._sparse.values():
            place = bisect_right(self._firsts, chunk.first_seq) - 1
            copies = chunk.copied()
            self._chunks[place : place + 1] = copies
            self._firsts[place : place + 1] = [copy.first_seq for copy in copies]
            self.held_bytes += sum(len(copy.data) for copy in copies) - len(chunk.data)
        self._sparse.clear()
        self._sparse_bytes = 0


def _inside(sequences: dict[int, int] | set[int], first_seq: int, end_seq: int) -> list[int]:
    """Those of `sequences` in [first_seq, end_seq), looked for in whichever is shorter."""
    if end_seq - first_seq < len(sequences):
        return [sequence for sequence in range(first_seq, end_seq) if sequence in sequences]
    return [sequence for sequence in sequences if first_seq <= sequence < end_seq]
