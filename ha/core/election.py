"""The rules for votes, and the course of a campaign.

There is no election timeout: a campaign begins only on request. It has two rounds. In the first one (pre-vote,
dissertation §9.6) the candidate asks whether it would be elected, which changes no state. Only with a majority of those
answers does it begin a new epoch and ask for votes (§5.2). A candidate that the primary itself has named skips the
first round (dissertation §3.10).

In any epoch, a voter refuses a candidate whose log is older than its own (§5.4.1). While its own store lacks a part of
what it once had (`vote_floor`), it also refuses a candidate whose log lacks that part, because the voter may have
helped to commit what both lack now.

A voter with a blank store does not know what it once helped to commit, because it may be the replacement of a lost
store. Its vote is provisional: it counts only if every voter grants, so that no log is newer than the candidate's. The
own vote of a blank candidate is provisional too. So a cluster begins when all its members are present (docs/adr/0017).
Provisional votes are needed: otherwise, if a cluster's first primary were killed before it could report its first
commit, no member could ever be elected again.

A forced campaign (`Replica.bootstrap`) counts provisional votes as votes, and ends with any refusal. It asks every
voter for `listen_s` before it continues without the silent ones. From then on it belongs to a cluster with a new id.

Two clusters that began separately never mix: a store that belongs to a cluster answers no other cluster (`stranger`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ha.core.messages import Position, PreVoteReply
from ha.core.quorum import Tally


def objection(theirs: Position, mine: Position, floor: Position | None) -> str:
    """Why a candidate whose log ends at `theirs` gets no vote from a store whose log ends at `mine`, or ""."""
    if floor is not None and theirs < floor:
        return f"its store has lost a part and once held {floor}; your log ends at {theirs}"
    if theirs < mine:
        return f"its log is newer ({mine}; yours ends at {theirs})"
    return ""


def stranger(theirs: str | None, mine: str) -> str:
    """Why a candidate of the cluster `theirs` gets no vote from a store of the cluster `mine`, or "". The ids are those
    of messages.py.
    """
    return f"it belongs to cluster {mine}, you to cluster {theirs}" if theirs and mine and theirs != mine else ""


def unfitness(mine: Position, floor: Position | None) -> str:
    """Why a store whose log ends at `mine` must not be a candidate, or ""."""
    if floor is not None and mine < floor:
        return f"this broker's store has lost a part: it once held {floor} and now ends at {mine}"
    return ""


class Round(StrEnum):
    """The two rounds of a campaign."""

    PRE_VOTE = "pre-vote"
    VOTE = "vote"


class Campaign:
    """One attempt to be elected. `number` marks its pre-votes, and `deadline` ends it. A `forced` one waits for
    everybody's answer until `listen_until`, and then continues `without` those that gave none. `transfer`: the primary
    has asked for it. `unfit`: why the candidate must not be elected; then it only learns what others have. `replies`:
    the last answers of voters to pre-votes. Times are in seconds.
    """

    __slots__ = (
        "asked_at",
        "deadline",
        "forced",
        "highest_epoch",
        "listen_until",
        "number",
        "replies",
        "round",
        "tally",
        "transfer",
        "unfit",
        "without",
    )

    def __init__(
        self,
        number: int,
        voters: tuple[str, ...],
        now: float,
        timeout_s: float,
        *,
        transfer: bool = False,
        forced: bool = False,
        unfit: str = "",
    ) -> None:
        self.number = number
        self.transfer = transfer
        self.forced = forced
        self.listen_until = now + timeout_s / 2
        self.deadline = now + timeout_s
        self.asked_at = now
        self.highest_epoch = 0
        self.unfit = unfit
        self.replies: dict[str, PreVoteReply] = {}
        self.without: tuple[str, ...] = ()
        self.round = Round.PRE_VOTE
        self.tally = Tally(voters)

    def begin_vote(self, voters: tuple[str, ...]) -> None:
        """The second round."""
        self.without = tuple(self.tally.silent) if self.forced else ()
        self.round = Round.VOTE
        self.tally = Tally(voters)

    def count(self, voter: str, granted: bool, *, provisional: bool, reason: str = "") -> None:
        """Count a voter's answer."""
        self.tally.count(voter, granted, provisional=provisional and not self.forced, reason=reason)

    def won(self, now: float) -> bool:
        """Whether this round is won. A forced campaign continues without the silent members only after `listen_until`."""
        tally = self.tally
        if not self.forced:
            return tally.won and not self.unfit
        patient = self.round is Round.VOTE or now >= self.listen_until or not tally.unconvinced
        return tally.won and not tally.refused and patient

    @property
    def is_heard_of(self) -> bool:
        """Whether a voter reports a primary."""
        return any(reply.hears for reply in self.replies.values())

    @property
    def lost(self) -> bool:
        """Whether this round can no longer be won."""
        return bool(self.tally.refused) if self.forced else self.tally.lost

    def verdict(self, me: str, connected: set[str], refusing: Mapping[str, str]) -> str:
        """For people: which members did not vote for this one, and why. `refusing`: see `Replica.promote`."""
        refusals = [f"{voter} refused: {reason}" for voter, reason in sorted(self.tally.refused.items())]
        refusals += [
            f"{voter} has an empty store, so its vote counts only if all members vote" for voter in sorted(self.tally.provisional)
        ]
        silent = [voter for voter in self.tally.silent if voter != me]
        apart = {voter: refusing.get(voter, "is not connected") for voter in silent if voter not in connected}
        silences = [f"{voter} {apart.get(voter, 'did not answer')}" for voter in silent]
        others = "; ".join((*refusals, *silences))
        if self.unfit:
            return f"{self.unfit}; no other broker was elected first: {others}" if others else self.unfit
        text = f"{me} got {len(self.tally.granted)} of the {self.tally.needed} votes needed ({self.round}): {others}"
        return text if refusing.keys() & apart.keys() else text + self._way_out(me)

    def _way_out(self, me: str) -> str:
        """What to do if only new stores have answered: one of the silent members may have the cluster's data."""
        tally = self.tally
        if self.forced or tally.granted or tally.refused or not tally.silent:
            return ""
        missing = ", ".join(tally.silent)
        return (
            f". All stores that answer are empty, so no broker is elected without {missing}, which may hold messages: start "
            f"{missing}. If that data is lost for good, `qpid-ha bootstrap --force -b {me}` begins a new cluster and gives up "
            f"whatever {missing} holds"
        )
