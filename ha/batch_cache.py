"""The newest batches of a log, in memory: for applying them, and for backups that are almost up to date.

Life of a batch here: `put` adds it when it is proposed or received, and it is looked up by index. `trim` drops it from the
front when it is no longer needed (it is durable and applied, or committed if this member has stopped applying) and the cache
is above its bound. It is also dropped when all connected backups have it and the cache is above `least_bytes`. `truncate`
drops batches from the back.

Invariant: the batches are consecutive. A batch that is still needed is never dropped, so batches in progress may exceed the
bound.
"""

from __future__ import annotations

CACHE_BYTES = 16 * 1024 * 1024
LEAST_BYTES = 4 * 1024 * 1024
"""Up to here, batches stay even if nobody needs them: a link between brokers that was cut for a moment then continues from
memory."""


class BatchCache:
    """Batches `first` .. `last` by index; `first > last` when it is empty."""

    __slots__ = ("_batches", "first", "last", "least_bytes", "max_bytes", "nbytes")

    def __init__(self, next_index: int, max_bytes: int = CACHE_BYTES, least_bytes: int = LEAST_BYTES) -> None:
        self._batches: dict[int, bytes] = {}
        self.first = next_index
        self.last = next_index - 1
        self.nbytes = 0
        self.max_bytes = max_bytes
        self.least_bytes = least_bytes

    def __contains__(self, index: int) -> bool:
        return self.first <= index <= self.last

    def put(self, index: int, batch: bytes) -> None:
        """Add the next batch."""
        assert index == self.last + 1, f"batch {index} put after {self.last}"
        self._batches[index] = batch
        self.last = index
        self.nbytes += len(batch)

    def span(self, first: int, last: int) -> list[bytes] | None:
        """The batches first .. last; None when not all of them are here."""
        if first < self.first or last > self.last:
            return None
        batches = self._batches
        return [batches[index] for index in range(first, last + 1)]

    def some(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        """The batches from `first` on, at most up to `last`, until they make `max_bytes`: at least one. Nothing if `first` is not
        here."""
        found: list[bytes] = []
        if first >= self.first:
            for index in range(first, min(last, self.last) + 1):
                batch = self._batches[index]
                found.append(batch)
                max_bytes -= len(batch)
                if max_bytes <= 0:
                    break
        return found

    def truncate(self, from_index: int) -> None:
        """Drop this batch and all after it."""
        while self.last >= max(from_index, self.first):
            self.nbytes -= len(self._batches.pop(self.last))
            self.last -= 1
        self.last = min(self.last, from_index - 1)
        self.first = min(self.first, self.last + 1)

    def trim(self, needed_from: int, wanted_from: int) -> None:
        """Drop batches before `needed_from` while the cache is above its bound, and before `wanted_from` while it is above
        `least_bytes`."""
        while self.first <= self.last and (
            (self.nbytes > self.max_bytes and self.first < needed_from)
            or (self.nbytes > self.least_bytes and self.first < wanted_from)
        ):
            self.nbytes -= len(self._batches.pop(self.first))
            self.first += 1

    def clear(self, next_index: int) -> None:
        """Drop all batches; the next one is `next_index`."""
        self._batches.clear()
        self.first, self.last, self.nbytes = next_index, next_index - 1, 0
