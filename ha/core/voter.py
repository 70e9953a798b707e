"""The answers of a member to candidates (`election.py` has the rules), and the check to which cluster a message
belongs.

A member gives one vote in an epoch, which is saved, with the epoch, before it is given (§5.2). When it enters an epoch
that another member began, it gives up what it was doing itself.
"""

from __future__ import annotations

from ha.core.candidacy import Candidacy
from ha.core.election import objection, stranger
from ha.core.messages import Append, Attest, Position, PreVote, PreVoteReply, SnapshotChunk, Vote, VoteReply
from ha.core.office import Office
from ha.core.witness import objection_of


class Voter:
    """Judges candidates for the member that holds this office."""

    __slots__ = ("_candidacy", "_member", "_office")

    def __init__(self, office: Office, candidacy: Candidacy) -> None:
        self._office = office
        self._member = office.member
        self._candidacy = candidacy

    def on_pre_vote(self, now: float, sender: str, message: PreVote) -> None:
        """A candidate asks whether it would get this member's vote. This changes nothing."""
        member = self._member
        loyalty = self._office.loyalty(now)
        reason = (
            stranger(message.cluster_id, member.cluster_id) or loyalty or self._objection(message.last_epoch, message.last_index)
        )
        hears = self._office.primary if loyalty else ""
        end = Position(0, 0) if member.settings.witness else member.position
        member.send(
            sender,
            PreVoteReply(member.epoch, message.campaign, not reason, member.blank, reason, hears, end.index, end.epoch),
        )

    def on_vote(self, now: float, sender: str, message: Vote) -> None:
        """A candidate asks for this member's vote."""
        member = self._member
        if message.epoch < member.epoch:
            reason = f"epoch {message.epoch} is over: {member.me} is in epoch {member.epoch}"
        elif strange := stranger(message.cluster_id, member.cluster_id):
            reason = strange
        elif not message.transfer and (loyalty := self._office.loyalty(now)):
            reason = loyalty
        else:
            voted_for = member.voted_for if message.epoch == member.epoch else None
            if voted_for not in (None, sender):
                reason = f"it has voted for {voted_for} in epoch {message.epoch}"
            else:
                reason = self._objection(message.last_epoch, message.last_index)
            vote = voted_for if reason else sender
            if (message.epoch, vote) != (member.epoch, member.voted_for):
                self._candidacy.enter(now, message.epoch, vote, f"{sender} asks for votes in epoch {message.epoch}")
        member.send(sender, VoteReply(member.epoch, message.epoch, not reason, member.blank, reason))

    def is_strange(self, message: Append | SnapshotChunk | Attest) -> bool:
        """Whether this message is from a primary of another cluster than this store's."""
        mine, theirs = self._member.cluster_id, cluster_of(message)
        return bool(mine) and theirs is not None and theirs != mine

    def _objection(self, last_epoch: int, last_index: int) -> str:
        member, theirs = self._member, Position(last_epoch, last_index)
        found = objection(theirs, member.position, member.floor)
        return objection_of(member.attested, theirs) if found and member.attested is not None else found


def cluster_of(message: Append | SnapshotChunk | Attest) -> str | None:
    """The id of the cluster whose primary has sent this message."""
    return message.cluster_id if isinstance(message, Append) else message.members.cluster_id
