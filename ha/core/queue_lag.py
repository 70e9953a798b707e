"""The backlog of each queue that a backup has not acknowledged, from a few counters in each interval instead of a check
of every batch.

Life of a mark: once an interval the primary records how many records and bytes each queue has had in total, and the
index up to which this holds. A backup's backlog of a queue is the present total minus the total at the newest mark that
the backup has acknowledged. All of the newest marks are kept, and older ones are thinned out, so that a backup's
absence of hours costs no more than one of minutes.

Invariants: a queue's lag is never too low. It is too high by at most the records between a mark and the acknowledged
index. There are at most `MAX_MARKS` marks; the first one means that nothing is acknowledged.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import sub

MAX_MARKS = 24


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of each queue (of `numbers`, in their order), as of `index` and the time `at_s`."""

    index: int
    at_s: float
    numbers: tuple[int, ...]
    records: Sequence[int]
    nbytes: Sequence[int]

    def since(self, before: Totals) -> tuple[list[int], list[int]]:
        """The records and bytes that each queue has had since `before`; for a queue that did not exist then, all its
        records and bytes.
        """
        return self._less(self.records, before, before.records), self._less(self.nbytes, before, before.nbytes)

    def _less(self, now: Sequence[int], before: Totals, then: Sequence[int]) -> list[int]:
        if before.numbers != self.numbers:
            known = dict(zip(before.numbers, then, strict=True))
            then = [known.get(number, 0) for number in self.numbers]
        return list(map(sub, now, then))


def totals(index: int, at_s: float, numbers: tuple[int, ...], records: Iterable[int], nbytes: Iterable[int]) -> Totals:
    """Make totals, packed because many are kept."""
    return Totals(index, at_s, numbers, array("Q", records), array("Q", nbytes))


class Marks:
    """The marks of one term."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks = [totals(0, 0.0, (), (), ())]

    @property
    def newest(self) -> Totals | None:
        """The last one added; None when there is none."""
        return self._marks[-1] if len(self._marks) > 1 else None

    def add(self, mark: Totals) -> None:
        """The next mark, of no lower an index than the one before."""
        assert mark.index >= self._marks[-1].index, f"mark {mark.index} comes after {self._marks[-1].index}"
        self._marks.append(mark)
        if len(self._marks) > MAX_MARKS:
            del self._marks[min(range(1, len(self._marks) - 1), key=self._worth)]

    def _worth(self, position: int) -> float:
        """The loss of precision without this mark: the gap that it would leave, compared with the age of that gap."""
        before, after, now_s = self._marks[position - 1], self._marks[position + 1], self._marks[-1].at_s
        return (after.at_s - before.at_s) / max(now_s - before.at_s, 1e-9)

    def acknowledged(self, index: int) -> Totals:
        """The newest mark at or below the `index` that a backup has acknowledged."""
        return self._marks[bisect_right(self._marks, index, key=lambda mark: mark.index) - 1]


class Standstill:
    """How long one backup's acknowledged index has not moved while there was a backlog."""

    __slots__ = ("_acked", "_looked_s", "_since")

    def __init__(self) -> None:
        self._acked = -1
        self._looked_s = 0.0
        self._since: dict[object, float] = {}

    def stalls_ms(self, acked_index: int, now_s: float, waiting: Iterable[object]) -> dict[object, float]:
        """The stall of the whole log and of each queue with a backlog, in ms. Call it once an interval.

        A queue without a backlog at the last call has had one since then at the longest.
        """
        known, floor_s = self._since, self._looked_s
        if acked_index != self._acked:
            known, floor_s = {}, now_s
        self._since = {key: known.get(key, floor_s) for key in waiting}
        self._acked, self._looked_s = acked_index, now_s
        return {key: (now_s - since_s) * 1000 for key, since_s in self._since.items()}
