"""Who gets a vote, and how a campaign for votes goes.

There is no election timeout: a campaign begins because somebody asked for it. It has two rounds. In the first (pre-vote,
dissertation §9.6) the candidate asks whether it would be elected, which changes nothing anywhere; only with a majority of those
answers does it begin a new epoch and ask for votes (§5.2). A candidate that the primary itself has named skips the first round
(dissertation §3.10).

A voter refuses, whatever the epoch, a candidate whose log is older than its own (§5.4.1), and, while its own store is short of
what it once held (`vote_floor`), one whose log is short of that too: the voter may have helped to commit what both lack now.

A voter whose store is blank does not know what it once helped to commit: it may be the replacement of a lost one. It votes as
others do for a candidate whose log is empty too, since that is how a cluster begins. For any other candidate its vote is
provisional: it counts only when every voter grants, so that no log anywhere is newer than the candidate's. So is a blank
candidate's own vote. Without provisional votes a cluster whose first primary is killed before it could tell the others of
its first commit would never elect anybody again.
"""

from __future__ import annotations

from enum import StrEnum

from ha.core.messages import Position
from ha.core.quorum import Tally


def objection(theirs: Position, mine: Position, floor: Position | None) -> str:
    """Why a candidate whose log ends at `theirs` gets no vote from a store whose log ends at `mine`, or ""."""
    if floor is not None and theirs < floor:
        return f"its store has lost a part and once held {floor}; your log ends at {theirs}"
    if theirs < mine:
        return f"its log is newer ({mine}; yours ends at {theirs})"
    return ""


def is_provisional(theirs: Position, *, blank: bool) -> bool:
    """Whether the vote of a store counts only when all grant."""
    return blank and theirs.index > 0


def unfitness(mine: Position, floor: Position | None) -> str:
    """Why a store whose log ends at `mine` must not stand for election, or ""."""
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
        refusals += [f"{voter} has a new store and votes only if all do" for voter in sorted(self.tally.provisional)]
        silences = [f"{voter} {'did not answer' if voter in connected else 'is not connected'}" for voter in self.tally.silent]
        others = "; ".join((*refusals, *silences))
        return f"{me} got {len(self.tally.granted)} of the {self.tally.needed} votes needed ({self.round}): {others}"
