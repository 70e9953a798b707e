"""Files of bodies for tests: what lies at a place, as a disk would give it back."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

import google_crc32c

from broker.core.queues.blocks import FILE_SHIFT, Block, Lot
from broker.core.queues.discipline import Discipline
from broker.core.queues.lane import Lane
from broker.disk.compaction import Read


class Files:
    """Bytes by the number of their file; what is written goes to the newest. No file begins with a body."""

    def __init__(self) -> None:
        self.contents: dict[int, bytearray] = {1: bytearray(b"head")}

    def begin(self) -> int:
        """Go on in a new file."""
        number = max(self.contents) + 1
        self.contents[number] = bytearray(b"head")
        return number

    def write(self, data: bytes) -> int:
        """Write at the end of the newest file. Returns the place."""
        number = max(self.contents)
        content = self.contents[number]
        place = number << FILE_SHIFT | len(content)
        content += data
        return place

    def read(self, place: int, nbytes: int) -> bytes:
        content, offset = self.contents[place >> FILE_SHIFT], place & (1 << FILE_SHIFT) - 1
        assert offset + nbytes <= len(content)
        return bytes(content[offset : offset + nbytes])

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes at each (place, length)."""
        return [self.read(place, nbytes) for place, nbytes in spans]


def append(
    lane: Lane,
    first_seq: int,
    messages: list[bytes],
    place: int = 0,
    *,
    before: bytes = b"",
    after: bytes = b"",
    keep: bool = True,
) -> None:
    """Put one run on a lane, among what else is in its batch. `place` is that of the batch."""
    data = before + b"".join(messages) + after
    payload = data[len(before) : len(data) - len(after)]
    at = place + len(before) if place else 0
    crc = google_crc32c.value(payload)
    lane.append(first_seq, array("I", map(len, messages)), len(payload), at, crc, data, len(before), keep=keep)


def sequences(lots: Iterable[Lot]) -> list[int]:
    return [sequence for lot in lots for sequence in range(lot.first_seq, lot.first_seq + lot.n_messages)]


def lots_of(order: Discipline) -> Iterator[Lot]:
    """All messages alive whose bodies are in memory, by sequence."""
    for lane in order.lanes:
        for block in lane.blocks:
            for run in sorted(block.bodies):
                for lo, hi in block.stretches(*block.bounds(run)):
                    yield Lot(block, lo, hi, *block.bodies[run])


def all_messages(lane: Lane, read: Read) -> Iterator[tuple[int, bytes]]:
    """Sequence and bytes of all messages alive, from memory or from where they lie; what lies there is read by the block."""
    for block in lane.blocks:
        parts: list[tuple[int, int, int]] = []
        for start, stop in block.stretches(0, block.stop):
            for run in range(block.run_of(start), block.run_of(stop - 1) + 1):
                lo, hi = block.bounds(run)
                parts.append((run, max(start, lo), min(stop, hi)))
        bodies = bodies_of(block, [run for run, _, _ in parts], read)
        for run, first, end in parts:
            yield from enumerate(Lot(block, first, end, *bodies[run]).messages(), block.first_seq + first)


def bodies_of(block: Block, runs: Iterable[int], read: Read) -> dict[int, tuple[bytes, int]]:
    """The bodies of these runs, from memory or from where they lie."""
    found = {run: block.body(run) for run in runs}
    away = [run for run, body in found.items() if body is None]
    data = read([(block.places[run], block.run_bytes(run)) for run in away]) if away else []
    here = {run: body for run, body in found.items() if body is not None}
    return here | {run: (one, -block.offsets[block.run_starts[run]]) for run, one in zip(away, data, strict=True)}


def read_back(lane: Lane, files: Files, sequence: int) -> None:
    """Put the body of this message's run back into memory."""
    block = lane.block_of(sequence)
    assert block is not None
    run = block.run_of(sequence - block.first_seq)
    place = block.places[run]
    data = files.read(place, block.run_bytes(run))
    assert google_crc32c.value(data) == block.crcs[run]
    lane.restore(sequence, place, b"x" + data, 1)


def message(lane: Lane, files: Files, sequence: int) -> bytes | None:
    """The bytes of a message from where it lies; None when it is not alive. What is in memory must be the same."""
    block = lane.block_of(sequence)
    if block is None or not block.is_live(position := sequence - block.first_seq):
        return None
    run = block.run_of(position)
    lo, hi = (block.offsets[position + side] - block.offsets[block.bounds(run)[0]] for side in (0, 1))
    lot = lane.lot_of(sequence)
    here = None if lot is None else lot.messages()[0]
    if not block.places[run]:
        return here
    there = files.read(block.places[run] + lo, hi - lo)
    assert here in (None, there)
    return there


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, or generators resumed, by this."""
    calls = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
