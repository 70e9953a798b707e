"""Which bodies of a queue are read from disk before its consumers need them: pure planning, for one queue.

Life of a plan: consumers got the messages in memory. Where they stopped at a message that is not in memory, and where the
following messages are not in memory either, `plan` returns the runs to read, about a window of bytes. Another thread reads them;
meanwhile no other plan is made. When the bytes are back in their blocks, the queue delivers again, and the next window is read
while its consumers work on this one.

Invariants: a message at which a consumer stopped is in the next plan, whatever the size of its run; a run whose body is in
memory, that is dead, or that cannot be read, is in no plan; messages that are needed alone make a plan no larger than a window
and one run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker.core.queues.blocks import Block
from broker.core.queues.discipline import Discipline
from broker.core.queues.lane import LANE_SHIFT, Lane


class Body(NamedTuple):
    """A run to read: a message of it, its place, the bytes of its payload and their CRC-32C."""

    sequence: int
    place: int
    nbytes: int
    crc: int


def body_of(lane: Lane, sequence: int) -> Body | None:
    """The run that is this message alone, as each part of a large message is; None when it is not on the queue."""
    block = lane.block_of(sequence)
    if block is None or not block.is_live(sequence - block.first_seq):
        return None
    run = block.run_of(sequence - block.first_seq)
    assert block.bounds(run) == (sequence - block.first_seq, sequence - block.first_seq + 1), "it is a run of its own"
    return Body(sequence, block.places[run], block.run_bytes(run), block.crcs[run])


class ReadAhead:
    """How far a queue was read ahead. `reading`: whether a plan is being executed."""

    __slots__ = ("_ahead", "order", "reading")

    def __init__(self, order: Discipline) -> None:
        self.order = order
        self.reading = False
        self._ahead: dict[int, int] = {}

    def plan(self, stops: Iterable[int], singles: Iterable[int], window_bytes: int) -> list[Body]:
        """The runs to read now. `stops` are messages at which a consumer stopped, `singles` are messages that are needed alone:
        the first of them, and others until they make a window. Without these, the next runs are read when less than half a window
        is in memory.
        """
        wanted: dict[int, Body] = {}
        left = window_bytes
        for sequence in singles:
            n_before = len(wanted)
            self._runs(wanted, self.order.lane_of(sequence), sequence, 0)
            if len(wanted) > n_before:
                left -= next(reversed(wanted.values())).nbytes
                if left <= 0:
                    break
        for sequence in stops:
            self._ahead[sequence >> LANE_SHIFT] = self._runs(wanted, self.order.lane_of(sequence), sequence, window_bytes)
        if not wanted:
            self._come_next(wanted, window_bytes)
        return list(wanted.values())

    def alone(self, sequences: Iterable[int]) -> list[Body]:
        """The runs of all these messages that are not in memory, whatever their size."""
        wanted: dict[int, Body] = {}
        for sequence in sequences:
            self._runs(wanted, self.order.lane_of(sequence), sequence, 0)
        return list(wanted.values())

    def _come_next(self, wanted: dict[int, Body], window_bytes: int) -> None:
        left = window_bytes
        for lane, cursor in self.order.upcoming():
            if lane.spilled:
                number = lane.next_seq >> LANE_SHIFT
                ahead = max(self._ahead.get(number, 0), cursor)
                left -= lane.bytes_between(cursor, ahead)
                if left <= 0 or (2 * left <= window_bytes and not wanted):
                    return
                self._ahead[number] = end = self._runs(wanted, lane, ahead, left)
                left -= lane.bytes_between(ahead, end)
                if end < lane.next_seq:
                    return
                lane.spilled = False  # every message of this lane is in memory or being read: new ones may stay in memory

    def _runs(self, wanted: dict[int, Body], lane: Lane, sequence: int, max_bytes: int) -> int:
        """Add the runs from `sequence` on that are not in memory, within about so many bytes. Returns where that ends."""
        for block in lane.blocks_from(sequence):
            run = block.run_of(max(sequence - block.first_seq, block.start))
            while run < len(block.run_starts) and block.run_starts[run] < block.stop:
                lo, hi = block.bounds(run)
                if next(block.stretches(lo, hi), None) is not None:
                    body = _body(block, run)
                    if body is not None:
                        wanted[body.sequence] = body
                    max_bytes -= block.offsets[hi] - block.offsets[lo]
                    if max_bytes <= 0:
                        return block.first_seq + hi
                run += 1
        return lane.next_seq


def _body(block: Block, run: int) -> Body | None:
    if block.body(run) is not None or (block.rotten is not None and run in block.rotten):
        return None
    return Body(block.first_seq + block.run_starts[run], block.places[run], block.run_bytes(run), block.crcs[run])
