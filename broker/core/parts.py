"""Large messages: a manifest on each queue that has one, and the store of their parts.

Life of a large message: its bytes arrive in parts, and each part is an ordinary message of the store of parts of its log
(`PARTS_QUEUE`). When the message is complete, a LARGE record puts its manifest on every queue that it was routed to, and each of
these queues holds the parts. When the last holder releases them (the message is dequeued, or the queue deleted), the parts are
removed. An incomplete message leaves parts without a holder. `orphans` names them for a new primary, which removes them by an
ordinary DEQUEUE record.

Invariants: the parts of a message belong to no other message; parts with a holder are alive; only records decide what happens
here, so every broker removes the same parts at the same place of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from broker.core.queues.discipline import Discipline

PARTS_QUEUE = 0xFFFFFFFF
"""The number that records name the store of parts by. No queue gets it: numbers ascend from 1."""
_HEAD = struct.Struct("<QI")
_RANGE = struct.Struct("<QI")


class BadManifest(ValueError):
    """These bytes are not a manifest. The text gives the reason."""


class Manifest(NamedTuple):
    """A large message: its encoded bytes in all, and its parts in order, as ranges (first sequence, count) of the store."""

    nbytes: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def key(self) -> int:
        """The identity of this message: the sequence of its first part."""
        return self.ranges[0][0]

    @property
    def sequences(self) -> Iterator[int]:
        """The sequences of its parts, in order."""
        for first, count in self.ranges:
            yield from range(first, first + count)

    def to_bytes(self) -> bytes:
        """The form in a LARGE record: total bytes (u64), number of ranges (u32), then first (u64) and count (u32) of each."""
        return _HEAD.pack(self.nbytes, len(self.ranges)) + b"".join(_RANGE.pack(*each) for each in self.ranges)

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """What `to_bytes` wrote. BadManifest."""
        if len(data) < _HEAD.size:
            raise BadManifest(f"{len(data)} bytes are too few for a manifest")
        nbytes, n_ranges = _HEAD.unpack_from(data)
        if not n_ranges or len(data) != _HEAD.size + n_ranges * _RANGE.size:
            raise BadManifest(f"{len(data)} bytes are not a manifest of {n_ranges} ranges")
        ranges = tuple(_RANGE.iter_unpack(data[_HEAD.size :]))
        after = 0
        for first, count in ranges:
            if first < after or not count:
                raise BadManifest("the ranges of a manifest do not ascend")
            after = first + count
        return cls(nbytes, ranges)


class Parts:
    """The parts of one log's large messages, in `order`, and how many queues hold each message."""

    __slots__ = ("_held", "order")

    def __init__(self, order: Discipline) -> None:
        self.order = order
        self._held: dict[int, list[Manifest]] = {}

    @property
    def next_seq(self) -> int:
        """The lowest sequence that the next part may get."""
        return self.order.lanes[0].next_seq

    def missing(self, manifest: Manifest) -> int:
        """The number of missing parts of this message."""
        is_live = self.order.lanes[0].is_live
        return sum(not is_live(sequence) for sequence in manifest.sequences)

    def hold(self, manifest: Manifest) -> None:
        """One more queue has this message."""
        self._held.setdefault(manifest.key, []).append(manifest)

    def let_go(self, manifest: Manifest) -> None:
        """One queue fewer has it: with the last, its parts go."""
        held = self._held[manifest.key]
        held.pop()
        if not held:
            del self._held[manifest.key]
            self._remove(manifest)

    def drop_unheld(self, manifests: Iterable[Manifest]) -> None:
        """Remove the parts of those that no queue has taken."""
        for manifest in manifests:
            if manifest.key not in self._held:
                self._remove(manifest)

    def _remove(self, manifest: Manifest) -> None:
        for first, count in manifest.ranges:
            self.order.remove(first, count)

    def orphans(self) -> list[tuple[int, int]]:
        """The parts alive that no queue's message refers to, as ranges (first sequence, count), ascending."""
        held = sorted((first, first + count) for manifests in self._held.values() for first, count in manifests[0].ranges)
        found: list[tuple[int, int]] = []
        at = 0
        for block in self.order.lanes[0].blocks_from(0):
            for lo, hi in block.stretches(0, block.count):
                first, end = block.first_seq + lo, block.first_seq + hi
                while first < end:
                    while at < len(held) and held[at][1] <= first:
                        at += 1
                    stop = min(end, held[at][0]) if at < len(held) else end
                    if stop > first:
                        found.append((first, stop - first))
                        first = stop
                    else:
                        first = min(held[at][1], end)
        return found
