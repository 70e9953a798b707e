"""Which messages of other stores, routes and numbered links were put into one log, committed or not.

Each such source is an *origin* (a link counts as one), and numbers its messages. Life of a number here: it is put with its
message (`put`), and counts as held from then on. When the batch is applied, the state has it, and it is dropped here (`applied`).
When the term ends before that, its message is lost and must come again (`void`).

Invariant: a number is here only while the batch with its message waits to be applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from broker.core.origins import Held

_MOST_LOOKED_AT = 4096
"""Sequences between the first and the last of some messages of an origin that are looked at together."""
_NONE: frozenset[int] = frozenset()


class Arriving:
    """See the module. `held`: what the applied state has, by the number of the origin."""

    def __init__(self, held: Callable[[], Mapping[int, Held]]) -> None:
        self._held = held
        self._coming: dict[int, set[int]] = {}

    def put(self, origin: int, sequences: Sequence[int]) -> None:
        """These messages of an origin are put into a batch."""
        self._coming.setdefault(origin, set()).update(sequences)

    def applied(self, origin: int, sequences: Sequence[int]) -> None:
        """The batch with these messages is applied."""
        coming = self._coming.get(origin)
        if coming is not None:
            coming.difference_update(sequences)
            if not coming:
                del self._coming[origin]

    def void(self) -> None:
        """The term ended: what is not applied never will be."""
        self._coming.clear()

    def has(self, origin: int, sequence: int) -> bool:
        """Whether this message of an origin was put, committed or not: a wait for the next commit includes it."""
        held = self._held().get(origin)
        return (held is not None and sequence in held) or sequence in self._coming.get(origin, ())

    def stretches(self, origin: int, sequences: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
        """Cut messages of an origin, given by their sequences, into stretches that were put (see `has`) and stretches that were
        not, as (start, stop, whether they were). What a caller does with a stretch counts for the next ones."""
        count, start = len(sequences), 0
        if count and self._has_none(origin, min(sequences), max(sequences) + 1):
            yield 0, count, False
            return
        while start < count:
            known, stop = self.has(origin, sequences[start]), start + 1
            while stop < count and self.has(origin, sequences[stop]) is known:
                stop += 1
            yield start, stop, known
            start = stop

    def _has_none(self, origin: int, first: int, end: int) -> bool:
        """Whether none of these messages was put, which is how nearly all arrive; False if there are too many to look at."""
        if end - first > _MOST_LOOKED_AT:
            return False
        held = self._held().get(origin)
        if held is not None and held.covered(first, end - first)[0]:
            return False
        return self._coming.get(origin, _NONE).isdisjoint(range(first, end))
