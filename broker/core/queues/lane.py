"""A lane: ascending sequences in blocks, either the whole FIFO queue or one level of a priority queue.

Life of a message here: `append` puts its run at the end of the last block; `walk` returns it in a `Lot` if its body is in memory;
`remove` marks it as dead; a block without live messages is dropped. The residency drops bodies, and `restore` puts them back.

Invariants: sequences ascend strictly along a lane, with gaps between blocks; a removed sequence never returns; for each file,
`live_by_file` of a lane's log is the sum of the bytes of live messages with a place in this file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

from broker.core.queues.blocks import FILE_SHIFT, Block, Columns, LiveRun, Lot, Move
from broker.core.queues.residency import RUN_BYTES, Residency

BLOCK_MESSAGES = 4096
"""A block with so many messages takes no further run."""
BLOCK_BYTES = 1 << 30
"""Nor does a block whose bytes would exceed this: positions in it are 32 bits wide."""
LANE_SHIFT = 56
"""A sequence has its lane in the upper 8 of its 64 bits."""
_EMPTY_KEPT = 64
"""The last block of a lane stays when all in it are dead, unless it has so many messages: a new one costs more than a run."""
SPLIT_GAP = 64
"""Blocks are split where this many messages of dead runs stand in a row."""
_TIDY_FROM = 256
"""A block of fewer messages is not worth the work."""


class Lane:
    """The messages of one lane. Sequences are given by the log; `next_seq` is the lowest that may come.

    `live_by_file` is shared with the other lanes of one log, `residency` with all of a broker.
    """

    __slots__ = (
        "_counts",
        "blocks",
        "depth",
        "firsts",
        "live_by_file",
        "live_bytes",
        "next_seq",
        "residency",
        "spilled",
    )

    def __init__(self, next_seq: int, live_by_file: dict[int, int], residency: Residency) -> None:
        self.next_seq = next_seq
        self.live_by_file = live_by_file
        self.residency = residency
        self.blocks: list[Block] = []
        self.firsts: list[int] = []
        self.depth = 0
        """Messages alive."""
        self.live_bytes = 0
        """Encoded bytes of the messages alive."""
        self.spilled = False
        """Whether what arrives at the tail stays out of memory: something before it is, so it is far from any consumer."""
        self._counts: dict[int, int] = {}

    @property
    def head_seq(self) -> int:
        """The sequence of the oldest live message; `next_seq` when there is none."""
        if not self.depth:
            return self.next_seq
        block = self.blocks[0]
        return block.first_seq + block.start

    # ---- what the log says

    def append(
        self, first_seq: int, lengths: array[int], nbytes: int, place: int, crc: int, data: bytes, start: int, *, keep: bool
    ) -> None:
        """Put the messages of one run at the tail, with sequences from `first_seq` on.

        Their `lengths` make `nbytes` in all; the payload is `data[start : start + nbytes]` and lies at `place`. It stays in
        memory if `keep` says so and nothing before it is out of memory, or if it lies nowhere else. ValueError when `first_seq`
        is below `next_seq`.
        """
        if first_seq < self.next_seq:
            raise ValueError(f"sequence {first_seq} was given already: the next one is {self.next_seq}")
        count = len(lengths)
        self.next_seq = first_seq + count
        if not count:
            return
        blocks = self.blocks
        block = blocks[-1] if blocks else None
        if block is None or not self._takes(block, first_seq, nbytes):
            block = self._new_block(first_seq)
        before = block.offsets[-1]
        run = block.add_run(lengths, nbytes, place, crc)
        self.depth += count
        self.live_bytes += nbytes
        file = place >> FILE_SHIFT
        self.live_by_file[file] = self.live_by_file.get(file, 0) + nbytes
        if (keep and not self.spilled) or not place:
            if nbytes * 2 < len(data):
                data, start = data[start : start + nbytes], 0
            block.bodies[run] = (data, start - before)
            if place:
                self.residency.kept(block, len(data) + RUN_BYTES)
        else:
            self.spilled = True

    @staticmethod
    def _takes(block: Block, first_seq: int, nbytes: int) -> bool:
        offsets = block.offsets
        n = len(offsets) - 1
        return block.first_seq + n == first_seq and n < BLOCK_MESSAGES and offsets[-1] + nbytes <= BLOCK_BYTES

    def _new_block(self, first_seq: int) -> Block:
        if self.blocks:
            last = self.blocks[-1]
            if last.live:
                last.offsets, last.run_starts = last.offsets[:], last.run_starts[:]  # a copied array has no spare room allocated
                last.places, last.crcs = last.places[:], last.crcs[:]
                last.tidy_below = last.count // 4 if last.count >= _TIDY_FROM else 0
            else:
                self._let_go(len(self.blocks) - 1)
        block = Block(first_seq, self)
        self.blocks.append(block)
        self.firsts.append(first_seq)
        return block

    def remove(self, first_seq: int, end_seq: int) -> tuple[int, int]:
        """Drop the messages of [first_seq, end_seq) for good. Returns how many were alive, and their bytes."""
        blocks, n, nbytes = self.blocks, 0, 0
        index = bisect_right(self.firsts, first_seq) - 1
        index = max(index, 0)
        while index < len(blocks) and (base := (block := blocks[index]).first_seq) < end_seq:
            gone, gone_bytes = self._kill(block, first_seq - base, end_seq - base)
            n += gone
            nbytes += gone_bytes
            if not block.live and (index < len(blocks) - 1 or len(block.offsets) > _EMPTY_KEPT):
                self._let_go(index)
            else:
                if block.live < block.tidy_below:
                    index += self._tidy(index) - 1
                index += 1
        if n:
            self.depth -= n
            self.live_bytes -= nbytes
            if not self.depth:
                self.spilled = False
            if self._counts:
                for sequence in inside(self._counts, first_seq, end_seq):
                    del self._counts[sequence]
        return n, nbytes

    def _kill(self, block: Block, start: int, stop: int) -> tuple[int, int]:
        files = block.file_numbers
        start = start if start > 0 else 0
        stop = stop if stop < len(block.offsets) - 1 else len(block.offsets) - 1
        if len(files) == 1:
            n, nbytes = block.kill(start, stop)
            if nbytes:
                self.live_by_file[files[0]] -= nbytes
        else:
            n = nbytes = 0
            first = max(bisect_right(block.file_starts, start) - 1, 0)
            for file, lo, hi in zip(
                files[first:], block.file_starts[first:], [*block.file_starts[first + 1 :], stop], strict=True
            ):
                if lo >= stop:
                    break
                gone, gone_bytes = block.kill(max(start, lo), min(stop, hi))
                self.live_by_file[file] -= gone_bytes
                n += gone
                nbytes += gone_bytes
        if n and block.bodies:
            if not block.live:
                block.bodies = {}
                self.residency.forget(block)
            elif freed := block.forget(start, stop):
                self.residency.let_go(block, freed)
        return n, nbytes

    def _let_go(self, index: int) -> None:
        block = self.blocks.pop(index)
        del self.firsts[index]
        block.lane = None
        self.residency.forget(block)

    def _tidy(self, index: int) -> int:
        """Replace a block that is mostly dead by blocks of the runs that are alive. Returns how many."""
        block = self.blocks[index]
        groups: list[list[int]] = []
        last_end = 0
        for run in range(len(block.run_starts)):
            lo, hi = block.bounds(run)
            if next(block.stretches(lo, hi), None) is not None:
                if not groups or lo - last_end >= SPLIT_GAP:
                    groups.append([run, run])
                groups[-1][1] = run + 1
                last_end = hi
        parts = [block.live_part(run, stop_run) for run, stop_run in groups]
        for part in parts:
            part.tidy_below = part.live // 4 if part.count >= _TIDY_FROM else 0
        self.blocks[index : index + 1] = parts
        self.firsts[index : index + 1] = [part.first_seq for part in parts]
        self._replaced(block, parts)
        return len(parts)

    def _replaced(self, block: Block, parts: list[Block]) -> None:
        block.lane = None
        self.residency.forget(block)
        for part in parts:
            if part.bodies:
                self.residency.kept(part, part.held)

    def clear(self) -> None:
        """The queue was deleted: do not count it any more."""
        for block in self.blocks:
            for file, nbytes in block.bytes_by_file():
                self.live_by_file[file] -= nbytes
            block.lane = None
            self.residency.forget(block)
        self.blocks, self.firsts = [], []
        self.depth = self.live_bytes = 0
        self._counts.clear()

    def skip_to(self, next_seq: int) -> None:
        """The next message gets this sequence: those before it came and went before this lane was loaded.

        ValueError when it would go back.
        """
        if next_seq < self.next_seq:
            raise ValueError(f"sequence {next_seq} was given already: the next one is {self.next_seq}")
        self.next_seq = next_seq

    # ---- what is asked

    def block_of(self, sequence: int) -> Block | None:
        """The block with this sequence, dead or alive; None when there is none."""
        index = bisect_right(self.firsts, sequence) - 1
        if index < 0:
            return None
        block = self.blocks[index]
        return block if sequence < block.end_seq else None

    def blocks_from(self, sequence: int) -> Iterator[Block]:
        """The blocks that have messages from this one on, in order; the lane must not change in between."""
        for index in range(max(bisect_right(self.firsts, sequence) - 1, 0), len(self.blocks)):
            if sequence < self.blocks[index].end_seq:
                yield self.blocks[index]

    def is_live(self, sequence: int) -> bool:
        """Whether this message is on the queue."""
        block = self.block_of(sequence)
        return block is not None and block.is_live(sequence - block.first_seq)

    def alive_from(self, sequence: int) -> Iterator[tuple[int, int]]:
        """Sequence and bytes of the live messages from this one on, in order; the lane must not change in between."""
        for block in self.blocks_from(sequence):
            base, offsets = block.first_seq, block.offsets
            for lo, hi in block.stretches(sequence - base, block.stop):
                for position in range(lo, hi):
                    yield base + position, offsets[position + 1] - offsets[position]

    def alive_between(self, sequence: int, end_seq: int) -> Iterator[tuple[int, int]]:
        """The live messages from this one on and before `end_seq`, as first sequence and count, a stretch of a block at a time;
        the lane must not change in between."""
        for block in self.blocks_from(sequence):
            base = block.first_seq
            if base >= end_seq:
                return
            for lo, hi in block.stretches(sequence - base, end_seq - base):
                yield base + lo, hi - lo

    def size_of(self, sequence: int) -> int:
        """The encoded bytes of a message that is on the queue."""
        block = self.block_of(sequence)
        assert block is not None, "it is on the queue"
        position = sequence - block.first_seq
        return block.offsets[position + 1] - block.offsets[position]

    def lot_of(self, sequence: int) -> Lot | None:
        """This message alone; None when it is not on the queue, or not in memory."""
        block = self.block_of(sequence)
        if block is None or not block.is_live(sequence - block.first_seq):
            return None
        position = sequence - block.first_seq
        body = block.body(block.run_of(position))
        return None if body is None else Lot(block, position, position + 1, *body)

    def walk(self, lots: list[Lot], seq: int, max_count: int, max_bytes: int) -> tuple[int, bool]:
        """Add lots of live messages from `seq` on, within the bounds, the first lot's first message always.

        Returns the sequence where it ended, and whether that is because the message there is not in memory.
        """
        blocks = self.blocks
        index = bisect_right(self.firsts, seq) - 1
        index = max(index, 0)
        while index < len(blocks):
            block = blocks[index]
            index += 1
            offsets, run_starts, bodies, dead, live_end = block.offsets, block.run_starts, block.bodies, block.dead, block.stop
            position = seq - block.first_seq
            position = max(position, block.start)
            run = run_end = -1
            while position < live_end:
                if dead is not None:
                    position = dead.find(0, position, live_end)
                    if position < 0:
                        break
                if position >= run_end:
                    run = run + 1 if position == run_end else bisect_right(run_starts, position, run + 1) - 1
                    run_end = run_starts[run + 1] if run + 1 < len(run_starts) else len(offsets) - 1
                body = bodies.get(run)
                if body is None:
                    body = block.body(run)
                    if body is None:
                        return block.first_seq + position, True
                stop = run_end if run_end < live_end else live_end
                if dead is not None:
                    end = dead.find(1, position, stop)
                    if end >= 0:
                        stop = end
                stop = min(stop, position + max_count)
                most = offsets[position] + max_bytes
                full = offsets[stop] > most
                if full:
                    stop = bisect_right(offsets, most, position, stop) - 1
                    if stop <= position:
                        if lots:
                            return block.first_seq + position, False
                        stop = position + 1
                lots.append(Lot(block, position, stop, *body))
                max_count -= stop - position
                max_bytes -= offsets[stop] - offsets[position]
                position = stop
                if full or not max_count:
                    return block.first_seq + position, False
        return max(seq, self.next_seq), False

    def unreadable(self, sequence: int) -> tuple[int, int]:
        """The sequence after the run of this message, if it was given up, and how many of it are alive from there on; or 0, 0."""
        block = self.block_of(sequence)
        if block is None or block.rotten is None:
            return 0, 0
        position = sequence - block.first_seq
        run = block.run_of(position)
        if run not in block.rotten:
            return 0, 0
        end = block.bounds(run)[1]
        return block.first_seq + end, sum(hi - lo for lo, hi in block.stretches(position, end))

    def bytes_between(self, first_seq: int, end_seq: int) -> int:
        """The bytes of the messages of [first_seq, end_seq), dead ones in between counted too."""
        nbytes = 0
        for block in self.blocks_from(first_seq):
            if block.first_seq >= end_seq:
                break
            lo, hi = max(first_seq - block.first_seq, 0), min(end_seq - block.first_seq, block.count)
            nbytes += block.offsets[hi] - block.offsets[lo]
        return nbytes

    # ---- delivery counts

    @property
    def has_counts(self) -> bool:
        """Whether any message has a delivery count that is not 0."""
        return bool(self._counts)

    def raise_count(self, first_seq: int, count: int, by: int) -> None:
        """Raise the delivery count of those messages that are alive."""
        end = first_seq + count
        for block in self.blocks_from(first_seq):
            base = block.first_seq
            if base >= end:
                return
            for lo, hi in block.stretches(max(first_seq - base, 0), end - base):
                for sequence in range(base + lo, base + hi):
                    self._counts[sequence] = self._counts.get(sequence, 0) + by

    def delivery_count(self, sequence: int) -> int:
        """How often delivery of this message is known to have failed."""
        return self._counts.get(sequence, 0)

    def delivery_counts(self) -> dict[int, int]:
        """A copy of all delivery counts that are not 0, by sequence (checkpoints)."""
        return dict(self._counts)

    # ---- bodies that come back

    def restore(self, sequence: int, place: int, data: bytes, start: int) -> None:
        """Put back the body of the run at `place` that has this message: `data` from `start` on. Nothing if it is gone."""
        block = self.block_of(sequence)
        if block is None:
            return
        run = block.run_of(sequence - block.first_seq)
        lo, hi = block.bounds(run)
        if block.places[run] == place and run not in block.bodies and next(block.stretches(lo, hi), None) is not None:
            block.bodies[run] = (data, start - block.offsets[lo])
            self.residency.kept(block, len(data) + RUN_BYTES)

    def lies_at(self, sequence: int, place: int) -> bool:
        """Whether a message is alive in the run at this place that has `sequence`."""
        block = self.block_of(sequence)
        if block is None:
            return False
        run = block.run_of(sequence - block.first_seq)
        return block.places[run] == place and next(block.stretches(*block.bounds(run)), None) is not None

    def give_up(self, sequence: int, place: int) -> int:
        """The run at `place` that has this message cannot be read: it stays on the queue, and is not asked for any more.

        Returns how many messages that are.
        """
        block = self.block_of(sequence)
        if block is None:
            return 0
        run = block.run_of(sequence - block.first_seq)
        if block.places[run] != place:
            return 0
        if block.rotten is None:
            block.rotten = set()
        block.rotten.add(run)
        return sum(hi - lo for lo, hi in block.stretches(*block.bounds(run)))

    # ---- checkpoints and compaction

    def snapshot(self) -> list[Columns | Lot]:
        """What is alive at this moment, in order: columns, and the messages themselves where they lie in no file.

        Safe to use later and in another thread: it sees no later change.
        """
        parts: list[Columns | Lot] = []
        for block in self.blocks:
            if 0 not in block.file_numbers:
                if block.live:
                    parts.append(Columns.of(block))
                continue
            for file, start, end in zip(
                block.file_numbers, block.file_starts, [*block.file_starts[1:], block.count], strict=True
            ):
                run, stop_run = block.run_of(start), block.run_of(end - 1) + 1
                if not file:
                    for each in range(run, stop_run):
                        parts += [Lot(block, lo, hi, *block.bodies[each]) for lo, hi in block.stretches(*block.bounds(each))]
                elif next(block.stretches(start, end), None) is not None:
                    parts.append(Columns.of(block.live_part(run, stop_run)))
        return parts

    def put_block(self, first_seq: int, count: int, columns: bytes) -> tuple[int, int]:
        """Put a whole block of a checkpoint at the tail. Returns how many are alive, and their bytes.

        BadColumns when it does not fit; ValueError when its sequences were given already.
        """
        if first_seq < self.next_seq:
            raise ValueError(f"sequence {first_seq} was given already: the next one is {self.next_seq}")
        block = Block.from_columns(first_seq, count, columns)
        self.next_seq = first_seq + count
        if not block.live:
            return 0, 0
        block.lane = self
        block.tidy_below = block.live // 4 if count >= _TIDY_FROM else 0
        self.blocks.append(block)
        self.firsts.append(first_seq)
        self.depth += block.live
        self.live_bytes += block.live_bytes
        for file, nbytes in block.bytes_by_file():
            self.live_by_file[file] = self.live_by_file.get(file, 0) + nbytes
        self.spilled = True
        return block.live, block.live_bytes

    def drop_bodies(self) -> None:
        """Forget all bodies that lie on disk."""
        for block in self.blocks:
            freed = block.drop(1 << 62)
            if freed:
                self.residency.let_go(block, freed)

    def live_runs_in(self, file: int) -> Iterator[LiveRun]:
        """The runs in this file of which something is alive. The lane may change between two of them.

        Of a run of which nearly all is alive the whole is worth copying, of others the live stretches: what is copied dead would
        have to be copied again.
        """
        seq = 0
        while (found := self._run_in(file, seq)) is not None:
            block, run = found
            lo, hi = block.bounds(run)
            seq = block.first_seq + hi
            stretches = list(block.stretches(lo, hi))
            if stretches:
                offsets = block.offsets
                nbytes = offsets[hi] - offsets[lo]
                if 8 * sum(offsets[end] - offsets[start] for start, end in stretches) >= 7 * nbytes:
                    stretches = [(lo, hi)]
                lengths = array("I", [end - start for start, end in pairwise(offsets[lo : hi + 1])])
                here = [(start - lo, end - lo) for start, end in stretches]
                yield LiveRun(block.first_seq + lo, block.places[run], nbytes, block.crcs[run], lengths, here)

    def _run_in(self, file: int, seq: int) -> tuple[Block, int] | None:
        """The first run in this file of which a message from `seq` on may be alive, and its block."""
        for index in range(max(bisect_right(self.firsts, seq) - 1, 0), len(self.blocks)):
            block = self.blocks[index]
            if file in block.file_numbers:
                position = block.next_in(file, max(seq - block.first_seq, block.start))
                if position < block.stop:
                    return block, block.run_of(position)
        return None

    def moved(self, moves: Iterable[Move]) -> None:
        """Messages have new places. Moves of messages that were removed, or have another place meanwhile, have no effect. The
        moves of one run are given together: messages of the run that are in none of them are dead.
        """
        by_block: dict[int, list[Move]] = {}
        for move in moves:
            index = bisect_right(self.firsts, move.first_seq) - 1
            if index >= 0:
                by_block.setdefault(index, []).append(move)
        for index in sorted(by_block):
            self._move(self.blocks[index], sorted(by_block[index]))

    def _move(self, block: Block, moves: list[Move]) -> None:
        for file, nbytes in block.bytes_by_file():  # files without live bytes may be missing in the table
            self.live_by_file[file] = self.live_by_file.get(file, 0) - nbytes
        pieces: dict[int, list[Move]] = {}
        for move in moves:
            position = move.first_seq - block.first_seq
            if 0 <= position < block.count:
                run = block.run_of(position)
                lo, _ = block.bounds(run)
                if block.places[run] and block.places[run] + block.offsets[position] - block.offsets[lo] == move.was:
                    pieces.setdefault(run, []).append(move)
        starts, places, crcs = array("I"), array("Q"), array("I")
        bodies: dict[int, tuple[bytes, int]] = {}
        with_bodies = iter([*sorted(block.bodies), -1])
        next_body, done = next(with_bodies), 0

        def keep(stop: int) -> None:
            """The runs from `done` up to this one stay where they are."""
            nonlocal next_body
            shift = len(starts) - done
            starts.extend(block.run_starts[done:stop])
            places.extend(block.places[done:stop])
            crcs.extend(block.crcs[done:stop])
            while 0 <= next_body < stop:
                bodies[next_body + shift] = block.bodies[next_body]
                next_body = next(with_bodies)

        def put(position: int, place: int, crc: int) -> None:
            starts.append(position)
            places.append(place)
            crcs.append(crc)

        for run, here in pieces.items():  # ascending, as the moves are
            keep(run)
            done = run + 1
            body = None
            if next_body == run:
                body, next_body = block.bodies[run], next(with_bodies)
            lo, hi = block.bounds(run)
            for move in here:
                position = move.first_seq - block.first_seq
                if position > lo:
                    put(lo, 0, 0)
                if body is not None and next(block.stretches(position, position + move.n_messages), None) is not None:
                    bodies[len(starts)] = body
                put(position, move.place, move.crc)
                lo = position + move.n_messages
            if lo < hi:
                put(lo, 0, 0)
        keep(len(block.run_starts))
        held = block.held
        block.run_starts, block.places, block.crcs, block.bodies = starts, places, crcs, bodies
        block.rotten = None
        block.find_files()
        for file, nbytes in block.bytes_by_file():
            self.live_by_file[file] = self.live_by_file.get(file, 0) + nbytes
        if held:
            self.residency.let_go(block, held)
        if bodies:
            self.residency.kept(block, block.held)


def inside(sequences: Collection[int], first_seq: int, end_seq: int) -> list[int]:
    """Those of `sequences` in [first_seq, end_seq), looked for in whichever is shorter."""
    if end_seq - first_seq < len(sequences):
        return [sequence for sequence in range(first_seq, end_seq) if sequence in sequences]
    return [sequence for sequence in sequences if first_seq <= sequence < end_seq]
