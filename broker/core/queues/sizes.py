"""Finds the large messages of a queue by the lengths in its columns, without reading a body.

Pure. A block or a run whose total bytes are not more than the requested size is skipped, so a queue of small messages costs one
comparison for each 4,096 messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from broker.core.queues.lane import Lane

Sized = tuple[int, int]
"""Sequence and bytes of a message."""


class Whole(Protocol):
    """A large message in its lane: `broker.core.parts.Manifest`."""

    @property
    def nbytes(self) -> int:
        """Its bytes in all."""


def larger(lanes: Iterable[Lane], large: Mapping[int, Whole], than: int, after: int, most: int) -> tuple[list[Sized], int | None]:
    """The live messages of more than `than` bytes after the sequence `after`, by their sequences, and where to continue, None at
    the end. About `most` messages are examined; `large` are those that are manifests in their lanes."""
    found = [(sequence, manifest.nbytes) for sequence, manifest in large.items() if manifest.nbytes > than and sequence > after]
    looked, last = 0, None
    for lane in lanes:
        for count, end_seq, sized in _by_block(lane, than, after + 1):
            found += [each for each in sized if each[0] not in large]
            looked, last = looked + count, end_seq - 1
            if looked >= most:
                return sorted(each for each in found if each[0] <= last), last
    return sorted(found), None


def _by_block(lane: Lane, than: int, from_seq: int) -> Iterator[tuple[int, int, list[Sized]]]:
    """For each block: how many messages were looked at, where it ends, and those that are larger."""
    for block in lane.blocks_from(from_seq):
        found: list[Sized] = []
        offsets, count = block.offsets, 1
        if offsets[-1] - offsets[0] > than:
            count = block.count
            for run in range(len(block.run_starts)):
                lo, hi = block.bounds(run)
                if offsets[hi] - offsets[lo] > than:
                    for start, stop in block.stretches(max(lo, from_seq - block.first_seq), hi):
                        sizes = [offsets[at + 1] - offsets[at] for at in range(start, stop)]
                        found += [(block.first_seq + at, size) for at, size in enumerate(sizes, start) if size > than]
        yield count, block.end_seq, found
