"""Counting: what a majority has, and which candidate has won a vote."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def held_by_majority(indexes: Iterable[int]) -> int:
    """The highest index that more than half of these voters have (§5.3, §5.4)."""
    ordered = sorted(indexes, reverse=True)
    return ordered[len(ordered) // 2]


class Tally:
    """The votes of one election round. A granted vote stays granted. Answers of members that are not voters do not
    count.

    A refusal may become a grant when the voter is asked again, because it may have heard the old primary a moment
    longer. A provisional vote counts only if every voter has granted (see `election.py`).
    """

    __slots__ = ("_voters", "granted", "provisional", "refused")

    def __init__(self, voters: Iterable[str]) -> None:
        self._voters = frozenset(voters)
        self.granted: set[str] = set()
        self.provisional: set[str] = set()
        self.refused: dict[str, str] = {}

    def count(self, voter: str, granted: bool, *, provisional: bool = False, reason: str = "") -> None:
        """Count a voter's answer."""
        if voter not in self._voters or voter in self.granted or voter in self.provisional:
            return
        if not granted:
            self.refused[voter] = reason
            return
        self.refused.pop(voter, None)
        (self.provisional if provisional else self.granted).add(voter)

    @property
    def needed(self) -> int:
        """The number of votes that wins."""
        return len(self._voters) // 2 + 1

    @property
    def won(self) -> bool:
        """Whether a majority has granted, or all voters have, including provisional votes."""
        return len(self.granted) >= self.needed or len(self.granted) + len(self.provisional) == len(self._voters)

    @property
    def lost(self) -> bool:
        """Whether the round can no longer be won."""
        return bool(self.refused) and len(self._voters) - len(self.refused) - len(self.provisional) < self.needed

    def hopeless(self, connected: Collection[str]) -> bool:
        """Whether the votes granted and the connected voters without an answer are together too few to win."""
        silent = set(self.silent)
        if len(self.granted | (silent & set(connected))) >= self.needed:
            return False
        return bool(self.refused) or not silent.issubset(connected)

    @property
    def unconvinced(self) -> list[str]:
        """The voters that have not granted, sorted: those to ask again."""
        return sorted(self._voters - self.granted - self.provisional)

    @property
    def silent(self) -> list[str]:
        """The voters that have not answered, sorted."""
        return sorted(self._voters - self.granted - self.provisional - self.refused.keys())
