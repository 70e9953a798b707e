"""Blocks: some thousand consecutive messages of a queue, in columns.

A block has the end of each of its messages (4 bytes). For each run (the messages of one ENQUEUE run of a batch, which are on disk
without gaps) it has the beginning in the block, the place and the checksum (16 bytes). There is no object for a message.

A place is a number: a file of the log (upper 32 bits) and the offset in it (lower 32 bits) where the run's payload begins; 0 is
no place. A body in memory is a copy of the bytes at the run's place, and may be dropped at any time; a body without a place is
kept.

Life of a block: runs are added at its end until it is full. Its messages are removed, in any order. When few are left, it is
replaced by smaller blocks with these; when none is left, it is dropped.

Invariants: columns only grow at their end, and any other change replaces them, so that a slice in another thread and a `Lot` stay
valid; messages outside of [start, stop) are dead, whatever their byte in `dead` is.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate, groupby, pairwise, repeat
from operator import rshift
from typing import NamedTuple, Protocol

from broker.core.queues.residency import RUN_BYTES

FILE_SHIFT = 32
_COLUMNS = struct.Struct("<IIII")


class Owner(Protocol):
    """The owner of a block: a lane."""

    spilled: bool
    """Whether a message alive may be out of memory."""


class BadColumns(ValueError):
    """The columns of a block do not fit together."""


class Move(NamedTuple):
    """The messages `first_seq` .. `first_seq + n_messages - 1` were copied: they lie at `place` now, with that checksum.

    `was` is the place at which the first of them lay.
    """

    first_seq: int
    n_messages: int
    was: int
    place: int
    crc: int


class LiveRun(NamedTuple):
    """A run of which something is alive: its place, bytes and checksum, the bytes of each of its messages, and which stretches
    [start, stop) of them are worth copying.
    """

    first_seq: int
    place: int
    nbytes: int
    crc: int
    lengths: array[int]
    stretches: list[tuple[int, int]]


class Block:
    """Consecutive messages of one lane from `first_seq` on. The messages of run r begin at `run_starts[r]`. Message i has the
    bytes `offsets[i]` to `offsets[i + 1]`; only differences of offsets have a meaning. Messages in [start, stop) are alive,
    except those whose byte in `dead` is 1. `bodies` has, for runs in memory, the bytes and the number that is added to an offset
    to find a message in them.
    """

    __slots__ = (
        "bodies",
        "crcs",
        "dead",
        "file_numbers",
        "file_starts",
        "first_seq",
        "lane",
        "live",
        "live_bytes",
        "offsets",
        "places",
        "rotten",
        "run_starts",
        "start",
        "stop",
        "tidy_below",
    )

    def __init__(self, first_seq: int, lane: Owner | None = None) -> None:
        self.first_seq = first_seq
        self.lane = lane
        self.offsets = array("I", (0,))
        self.run_starts = array("I")
        self.places = array("Q")
        self.crcs = array("I")
        self.start = self.stop = self.live = self.live_bytes = 0
        self.dead: bytearray | None = None
        self.bodies: dict[int, tuple[bytes, int]] = {}
        self.rotten: set[int] | None = None
        self.file_starts: list[int] = []
        """Where, in messages, another file begins, and which: most blocks lie in one."""
        self.file_numbers: list[int] = []
        self.tidy_below = 0

    @property
    def count(self) -> int:
        """Its messages, dead ones too."""
        return len(self.offsets) - 1

    @property
    def end_seq(self) -> int:
        """The sequence after its last message."""
        return self.first_seq + len(self.offsets) - 1

    def is_live(self, position: int) -> bool:
        """Whether message `position` of this block is still on the queue."""
        return self.start <= position < self.stop and not (self.dead is not None and self.dead[position])

    def run_of(self, position: int) -> int:
        """The run that message `position` belongs to."""
        return bisect_right(self.run_starts, position) - 1

    def bounds(self, run: int) -> tuple[int, int]:
        """Where the messages of a run begin and end."""
        run_starts = self.run_starts
        return run_starts[run], run_starts[run + 1] if run + 1 < len(run_starts) else len(self.offsets) - 1

    def run_bytes(self, run: int) -> int:
        """The bytes of a run's payload."""
        start, end = self.bounds(run)
        return self.offsets[end] - self.offsets[start]

    def stretches(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The stretches of live messages in [start, stop), ascending."""
        start, stop = max(start, self.start), min(stop, self.stop)
        dead = self.dead
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

    def add_run(self, lengths: array[int], nbytes: int, place: int, crc: int) -> int:
        """Put a run at the end. Returns its number."""
        offsets, run_starts = self.offsets, self.run_starts
        n, run = len(offsets) - 1, len(run_starts)
        run_starts.append(n)
        self.places.append(place)
        self.crcs.append(crc)
        file = place >> FILE_SHIFT
        if not run or self.file_numbers[-1] != file:
            self.file_starts.append(n)
            self.file_numbers.append(file)
        count = len(lengths)
        if count == 1:
            offsets.append(offsets[-1] + nbytes)
        else:
            ends = list(accumulate(lengths, initial=offsets[-1]))
            del ends[0]
            offsets.fromlist(ends)  # twice as fast as `extend` by an iterator
        if not self.live:
            self.start = n
            self.dead = None
        elif self.stop < n:
            if self.dead is None:
                self.dead = bytearray(n)
            self.dead[self.stop : n] = b"\1" * (n - self.stop)
        if self.dead is not None:
            self.dead.extend(bytes(count))
        self.stop = n + count
        self.live += count
        self.live_bytes += nbytes
        return run

    def kill(self, start: int, stop: int) -> tuple[int, int]:
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
                    stretches = list(self.stretches(start, stop))
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

    # ---- bodies

    def body(self, run: int) -> tuple[bytes, int] | None:
        """The body of a run if it is in memory; one of no bytes always is."""
        found = self.bodies.get(run)
        if found is None and not self.run_bytes(run):
            return b"", -self.offsets[self.run_starts[run]]
        return found

    def forget(self, start: int, stop: int) -> int:
        """Drop the bodies of runs that are dead since the messages [start, stop) were removed. Returns their bytes."""
        bodies, freed = self.bodies, 0
        run, last = self.run_of(start), self.run_of(stop - 1)
        if last - run > len(bodies):
            died = [each for each in bodies if run <= each <= last]
        else:
            died = [each for each in range(run, last + 1) if each in bodies]
        for each in died:
            if run < each < last or self._is_dead(each, start, stop):
                freed += self._pop(each)
        return freed

    def _is_dead(self, run: int, start: int, stop: int) -> bool:
        """Whether no message of a run is alive; those in [start, stop) are not."""
        lo, hi = self.bounds(run)
        return (start <= lo and hi <= stop) or next(self.stretches(lo, hi), None) is None

    def _pop(self, run: int) -> int:
        data, _ = self.bodies.pop(run)
        return len(data) + RUN_BYTES if self.places[run] else 0

    def drop(self, most: int) -> int:
        """Drop bodies, the oldest first, until `most` bytes are freed or no body is left that is also on disk. Returns the
        bytes."""
        freed = 0
        for run in list(self.bodies):
            if freed >= most:
                break
            if self.places[run]:
                freed += self._pop(run)
        if freed and self.lane is not None:
            self.lane.spilled = True
        return freed

    @property
    def held(self) -> int:
        """The bytes in memory that are counted."""
        return sum(len(data) + RUN_BYTES for run, (data, _) in self.bodies.items() if self.places[run])

    # ---- columns as bytes, and parts

    def part(self, run: int, stop_run: int) -> Block:
        """A block of the runs [run, stop_run) of this one with their bodies, all messages of which count as alive."""
        lo, hi = self.run_starts[run], self.bounds(stop_run - 1)[1]
        part = Block(self.first_seq + lo, self.lane)
        part.offsets = self.offsets[lo : hi + 1]
        part.run_starts = (
            array("I", [start - lo for start in self.run_starts[run:stop_run]]) if lo else self.run_starts[:stop_run]
        )
        part.places, part.crcs = self.places[run:stop_run], self.crcs[run:stop_run]
        part.stop = part.live = hi - lo
        part.live_bytes = part.offsets[-1] - part.offsets[0]
        part.bodies = {each - run: self.bodies[each] for each in range(run, stop_run) if each in self.bodies}
        if self.rotten is not None:
            part.rotten = {each - run for each in self.rotten if run <= each < stop_run}
        part.find_files()
        return part

    def live_part(self, run: int, stop_run: int) -> Block:
        """A block of the runs [run, stop_run) of this one with their bodies; the same messages are alive."""
        part = self.part(run, stop_run)
        lo = part.first_seq - self.first_seq
        dead = b"" if self.dead is None else bytes(self.dead[lo : lo + part.count])
        start = min(max(self.start - lo, 0), part.count)
        part.set_live(start, max(min(self.stop - lo, part.count), start), dead)
        return part

    def find_files(self) -> None:
        """Note where the runs of each file begin."""
        first = self.places[0] >> FILE_SHIFT
        if first == min(self.places) >> FILE_SHIFT == max(self.places) >> FILE_SHIFT:
            self.file_starts, self.file_numbers = [0], [first]
            return
        self.file_starts, self.file_numbers = [], []
        run = 0
        for file, places in groupby(map(rshift, self.places, repeat(FILE_SHIFT))):
            self.file_starts.append(self.run_starts[run])
            self.file_numbers.append(file)
            run += len(list(places))

    def next_in(self, file: int, position: int) -> int:
        """The first message at `position` or later whose run is in this file; the number of messages if there is none."""
        starts, numbers = self.file_starts, self.file_numbers
        for at in range(max(bisect_right(starts, position) - 1, 0), len(starts)):
            if numbers[at] == file:
                return max(position, starts[at])
        return self.count

    def bytes_by_file(self) -> list[tuple[int, int]]:
        """Its live bytes by file; a file may come more than once."""
        offsets = self.offsets
        ends = [*self.file_starts[1:], self.count]
        return [
            (file, sum(offsets[hi] - offsets[lo] for lo, hi in self.stretches(start, end)))
            for file, start, end in zip(self.file_numbers, self.file_starts, ends, strict=True)
        ]

    def set_live(self, start: int, stop: int, dead: bytes) -> None:
        """Set the live messages of a new block: those in [start, stop) whose byte in `dead`, if any, is 0."""
        self.start, self.stop = start, stop
        self.dead = bytearray(dead) if dead else None
        stretches = list(self.stretches(start, stop))
        self.live = sum(hi - lo for lo, hi in stretches)
        self.live_bytes = sum(self.offsets[hi] - self.offsets[lo] for lo, hi in stretches)

    @classmethod
    def from_columns(cls, first_seq: int, count: int, columns: bytes) -> Block:
        """The block that `Columns.to_bytes` wrote. BadColumns when it cannot be."""
        block = cls(first_seq)
        if len(columns) < _COLUMNS.size:
            raise BadColumns(f"{len(columns)} bytes are too few for the columns of a block")
        n_runs, start, stop, n_dead = _COLUMNS.unpack_from(columns)
        size = _COLUMNS.size + 4 * (count + 1) + 16 * n_runs + n_dead
        if size != len(columns) or n_dead not in (0, count) or not start <= stop <= count or not (count and n_runs):
            raise BadColumns(f"{len(columns)} bytes are not the columns of {count} messages in {n_runs} runs")
        at = _COLUMNS.size
        block.offsets = array("I")
        for column, nbytes in (
            (block.offsets, 4 * (count + 1)),
            (block.run_starts, 4 * n_runs),
            (block.places, 8 * n_runs),
            (block.crcs, 4 * n_runs),
        ):
            column.frombytes(columns[at : at + nbytes])
            at += nbytes
        block.set_live(start, stop, columns[at:])
        block.find_files()
        return block


class Columns(NamedTuple):
    """A block of one moment, for a checkpoint: its columns are never changed, only replaced, and the rest is a copy."""

    first_seq: int
    n_messages: int
    n_runs: int
    start: int
    stop: int
    dead: bytes
    offsets: array[int]
    run_starts: array[int]
    places: array[int]
    crcs: array[int]

    @classmethod
    def of(cls, block: Block) -> Columns:
        """This block as it is now."""
        dead = b"" if block.dead is None else bytes(block.dead)
        n_runs = len(block.run_starts)
        rest = (block.start, block.stop, dead, block.offsets, block.run_starts, block.places, block.crcs)
        return cls(block.first_seq, block.count, n_runs, *rest)

    def to_bytes(self) -> tuple[int, int, bytes]:
        """First sequence, count and columns of the runs between the first and the last live message. Any thread may call it."""
        run = bisect_right(self.run_starts, self.start, 0, self.n_runs) - 1
        stop_run = bisect_left(self.run_starts, self.stop, 0, self.n_runs)
        lo = self.run_starts[run]
        hi = self.run_starts[stop_run] if stop_run < self.n_runs else self.n_messages
        run_starts = self.run_starts[run:stop_run]
        if lo:
            run_starts = array("I", [start - lo for start in run_starts])
        dead = self.dead[lo:hi]
        head = _COLUMNS.pack(stop_run - run, self.start - lo, self.stop - lo, len(dead))
        columns = (self.offsets[lo : hi + 1], run_starts, self.places[run:stop_run], self.crcs[run:stop_run])
        return self.first_seq + lo, hi - lo, b"".join((head, *(column.tobytes() for column in columns), dead))


class Lot(NamedTuple):
    """The messages [start, stop) of a block, each alive when the lot was made, and their bytes. Never changes.

    Message i is `data[base + block.offsets[i] : base + block.offsets[i + 1]]`.
    """

    block: Block
    start: int
    stop: int
    data: bytes
    base: int

    @property
    def first_seq(self) -> int:
        """The sequence of its first message."""
        return self.block.first_seq + self.start

    @property
    def n_messages(self) -> int:
        """How many messages it is."""
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """The encoded bytes of its messages."""
        return self.block.offsets[self.stop] - self.block.offsets[self.start]

    def messages(self) -> list[bytes]:
        """Copies of its encoded messages."""
        data, base = self.data, self.base
        return [data[base + lo : base + hi] for lo, hi in pairwise(self.block.offsets[self.start : self.stop + 1])]
