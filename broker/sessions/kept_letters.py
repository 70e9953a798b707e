"""The dead letters of one queue that cannot leave until somebody changes something (broker.sessions.dead_letters).

There may be as many as the queue has messages, so only the runs of their sequences are in memory, by reason. They are tried again
in turn, in ascending order, some at a time (`take`).

Invariants: a sequence has one reason; who is taken is not here any more, and added again if it still cannot leave.
"""

from __future__ import annotations

from broker.core.origins import Held


class KeptLetters:
    """See the module."""

    __slots__ = ("_after", "_by_reason")

    def __init__(self) -> None:
        self._by_reason: dict[str, Held] = {}
        self._after = 0
        """The last sequence that was taken."""

    def __bool__(self) -> bool:
        return bool(self._by_reason)

    def __contains__(self, sequence: int) -> bool:
        return any(sequence in held for held in self._by_reason.values())

    def add(self, sequence: int, reason: str) -> None:
        """This one cannot leave."""
        self._by_reason.setdefault(reason, Held()).add(sequence, 1)

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(held.count for held in self._by_reason.values())

    def runs(self, reason: str, most: int = 1 << 62) -> list[tuple[int, int]]:
        """The first `most` runs of those that were to leave for this reason, as (first, count), ascending."""
        held = self._by_reason.get(reason)
        return [] if held is None else held.runs(most=most)

    def forget(self, sequence: int) -> None:
        """This one is to stay on its queue, or leaves in another way."""
        for reason in list(self._by_reason):
            self._remove(reason, sequence, 1)

    def take(self, most: int) -> dict[int, str]:
        """The next ones to be tried again, with their reasons."""
        found: dict[int, str] = {}
        for _ in range(2):  # from the last one on, and again from the beginning
            while len(found) < most and (following := self._following()) is not None:
                reason, first, count = following
                count = min(count, most - len(found))
                found |= dict.fromkeys(range(first, first + count), reason)
                self._remove(reason, first, count)
                self._after = first + count - 1
            if len(found) < most:
                self._after = 0
        return found

    def _following(self) -> tuple[str, int, int] | None:
        """The run behind the last one taken, of any reason."""
        behind = self._after + 1
        found: tuple[int, int, str] | None = None
        for reason, held in self._by_reason.items():
            for first, count in held.runs(behind, most=1):
                this = max(first, behind), first + count, reason
                found = this if found is None else min(found, this)
        return None if found is None else (found[2], found[0], found[1] - found[0])

    def _remove(self, reason: str, first: int, count: int) -> None:
        held = self._by_reason[reason]
        held.remove(first, count)
        if not held.n_runs:
            del self._by_reason[reason]
