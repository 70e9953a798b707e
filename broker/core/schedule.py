"""A schedule: keys and their times, the earliest first.

Life of an entry: `put` gives a key its time, or a new one; `drop` removes it; `take` returns the keys that are due, each once.
Times are float seconds of the caller's clock.

Invariants: a key has at most one time; a returned or dropped key is removed; keys that are due at the same time are returned in
the order in which they were put; a change costs the logarithm of the number of entries; dropped and repeated entries use at most
as much memory as the remaining ones.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
_MIN_REBUILD = 64


class Agenda(Generic[K]):
    """See the module."""

    __slots__ = ("_entries", "_heap", "_put")

    def __init__(self) -> None:
        self._entries: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._put = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    @property
    def next_s(self) -> float | None:
        """When the next key is due; None when there is none."""
        self._tidy()
        return self._heap[0][0] if self._heap else None

    def put(self, key: K, when_s: float) -> None:
        """This key is due then, and at no other time."""
        self._put += 1
        self._entries[key] = when_s, self._put
        heappush(self._heap, (when_s, self._put, key))
        self._shrink()

    def drop(self, key: K) -> None:
        """This key is not due any more, if it was."""
        if self._entries.pop(key, None) is not None:
            self._shrink()

    def take(self, now_s: float, most: int = sys.maxsize) -> list[K]:
        """Remove and return the keys that are due, in order; of many, the first `most`."""
        found: list[K] = []
        while len(found) < most and (key := self.take_next(now_s)) is not None:
            found.append(key)
        return found

    def take_next(self, now_s: float) -> K | None:
        """The first of them; None when nothing is due by now."""
        next_s = self.next_s
        if next_s is None or next_s > now_s:
            return None
        key = heappop(self._heap)[2]
        del self._entries[key]
        return key

    def clear(self) -> None:
        """Nothing is due."""
        self._entries.clear()
        self._heap.clear()

    def _shrink(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _MIN_REBUILD:
            self._heap = [(when_s, number, key) for key, (when_s, number) in self._entries.items()]
            heapify(self._heap)

    def _tidy(self) -> None:
        """Let the next one in the heap be one that is still due."""
        heap = self._heap
        while heap and self._entries.get(heap[0][2]) != heap[0][:2]:
            heappop(heap)
