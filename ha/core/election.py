"""Who gets a vote, and how a campaign for votes goes.

There is no election timeout: a campaign begins because somebody asked for it. It has two rounds. In the first (pre-vote,
dissertation §9.6) the candidate asks whether it would be elected, which changes nothing anywhere; only with a majority of those
answers does it begin a new epoch and ask for votes (§5.2). A candidate that the primary itself has named skips the first round
(dissertation §3.10).

Whom a voter refuses, whatever the epoch:
- a candidate whose log is older than its own (§5.4.1);
- while its own store is blank, one whose log is not empty: the store may be the replacement of one that helped to commit what
  this candidate lacks;
- while its own store is short of what it once held (`vote_floor`), one whose log is short of that too, for the same reason.
"""

from __future__ import annotations

from enum import StrEnum

from ha.core.messages import Position
from ha.core.quorum import Tally


def objection(theirs: Position, mine: Position, *, blank: bool, floor: Position | None) -> str:
    """Why a candidate whose log ends at `theirs` gets no vote from a store whose log ends at `mine`, or ""."""
    if blank and theirs.index > 0:
        return "its store is new and has not caught up with a primary yet, so that it cannot judge your log"
    if floor is not None and theirs < floor:
        return f"its store has lost a part and once held {floor}, and your log ends at {theirs}"
    if theirs < mine:
        return f"its log is newer ({mine}; yours ends at {theirs})"
    return ""


def unfitness(mine: Position, *, blank: bool, floor: Position | None) -> str:
    """Why a store whose log ends at `mine` must not stand for election, or ""."""
    if blank and mine.index > 0:
        return "this broker's store is new and has not caught up with a primary yet"
    if floor is not None and mine < floor:
        return f"this broker's store has lost a part: it once held {floor} and now ends at {mine}"
    return ""


class Round(StrEnum):
    """The two rounds of a campaign."""

    PRE_VOTE = "pre-vote"
    VOTE = "vote"


class Campaign:
    """One attempt to be elected. `number` marks its pre-votes, `deadline` ends it."""

    __slots__ = ("asked_at", "deadline", "highest_epoch", "number", "round", "tally", "transfer")

    def __init__(self, number: int, voters: tuple[str, ...], now: float, timeout_s: float, transfer: bool) -> None:
        self.number = number
        self.transfer = transfer
        self.deadline = now + timeout_s
        self.asked_at = now
        self.highest_epoch = 0
        self.round = Round.PRE_VOTE
        self.tally = Tally(voters)

    def begin_vote(self, voters: tuple[str, ...]) -> None:
        """The second round."""
        self.round = Round.VOTE
        self.tally = Tally(voters)

    def verdict(self, me: str, connected: set[str]) -> str:
        """For people: who did not vote for us, and why."""
        refusals = [f"{voter} refused: {reason}" for voter, reason in sorted(self.tally.refused.items())]
        silences = [f"{voter} {'did not answer' if voter in connected else 'is not connected'}" for voter in self.tally.silent]
        others = "; ".join((*refusals, *silences))
        return f"{me} got {len(self.tally.granted)} of the {self.tally.needed} votes needed ({self.round}): {others}"
