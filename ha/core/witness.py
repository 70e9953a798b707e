"""A witness: a voter that stores no messages, for a cluster with an even number of brokers that do.

Life of a witness: it hears the primary and votes like every voter. Instead of a log it has one position on its disk: it
*attests* that the log of a primary was on that primary's own disk up to this position (`Attested`). By Raft's rules
(§5.3, log matching), a position of an epoch represents everything before it. So a witness counts for a commit like any
voter whose log ends there, and refuses its vote to every log that ends before it (§5.4.1). It is never a candidate,
because it has nothing to serve.

Batches that commit with its help are on fewer disks: with two brokers, on one. A broker that lacks them cannot be
elected. So the primary asks the witness only while the brokers that keep up are not a majority (`Asking`), and once for
each new membership when that is committed: by then enough brokers have what is attested.

Invariants: an attested position is saved before it is reported, and only grows. A primary asks only about batches of
its own epoch that are on its own disk. So the position of a witness is never beyond what was on the disk of one broker,
whose name it keeps.

Source: the witnesses of Paris (1986, "Voting with Witnesses"), and Ongaro's dissertation, §11.7.2, on those of Harp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ha.core.backup import Backup
from ha.core.effects import MembersCommitted
from ha.core.member import Member
from ha.core.membership import Membership
from ha.core.messages import Append, AppendReply, Attest, Attested, Position, SnapshotChunk
from ha.core.progress import Pace, Progress

NO_CANDIDATE = "is a witness: it votes, stores no messages, and is never the primary"
NO_LOG = "it is a witness and stores no messages: give every broker the same --ha-witness"


def attested_from(fields: Any) -> Attested:
    """Parses the output of `attested_fields`. ValueError, or its subclass BadMembership, if `fields` has another form."""
    match fields:
        case {"epoch": int(epoch), "index": int(index), "primary": str(primary), "members": members, "members_index": int(at)}:
            return Attested(epoch, index, primary, Membership.from_dict(members), at)
    raise ValueError(f"not what a witness attests: {fields!r:.200}")


def attested_fields(attested: Attested) -> dict[str, Any]:
    """The position as an object for JSON."""
    return {
        "epoch": attested.epoch,
        "index": attested.index,
        "primary": attested.primary,
        "members": attested.members.to_dict(),
        "members_index": attested.members_index,
    }


def objection_of(attested: Attested, theirs: Position) -> str:
    """Why a witness refuses its vote to a log that ends at `theirs`, before the attested position, and which broker has
    the rest.
    """
    return (
        f"it attests the log of {attested.primary} up to epoch {attested.epoch}, index {attested.index}, which may be on that "
        f"broker's disk alone; yours ends at {theirs}: start {attested.primary}"
    )


class Witness(Backup):
    """The role of a witness in one epoch."""

    __slots__ = ("_settled",)

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self._settled: Membership | None = None
        """The last membership that was reported as committed."""

    @property
    def match_index(self) -> int:
        """The index up to which it attests the log of this epoch's primary.

        While it is blank, it may have attested more before its disk was lost. So it must first attest everything that
        the primary reports as committed.
        """
        attested = self._of_this_epoch
        if attested is None or (self._member.blank and self.told_commit >= attested.members_index):
            return 0
        return attested.index

    @property
    def _of_this_epoch(self) -> Attested | None:
        attested = self._member.attested
        return attested if attested is not None and attested.epoch == self._member.epoch else None

    def append(self, now: float, sender: str, message: Append) -> None:
        """The primary treats it as a broker with a log."""
        self._hear(now, sender, message.commit_index)
        self._decline(message.round)

    def chunk(self, now: float, sender: str, chunk: SnapshotChunk) -> None:
        """The same."""
        self._hear(now, sender, chunk.index)
        self._decline(0)

    def attest(self, now: float, sender: str, message: Attest) -> None:
        """A heartbeat of the primary, which may ask it to attest more."""
        self._hear(now, sender, message.commit_index)
        self._ready = True
        member = self._member
        if message.index and Position(message.epoch, message.index) > member.position:
            member.attest(Attested(message.epoch, message.index, sender, message.members, message.members_index))
        self._judge_members()
        self._reply(message.round)

    def _judge_members(self) -> None:
        """Decide whether the membership is committed, and whether this store is whole, like a log that has everything."""
        member, attested = self._member, self._of_this_epoch
        if attested is None or self.told_commit < attested.members_index:
            return
        member.commit_index = max(member.commit_index, min(self.told_commit, attested.index))
        if attested.members != self._settled:
            self._settled = attested.members
            member.cluster_id = member.cluster_id or attested.members.cluster_id
            member.emit(MembersCommitted(attested.members))
        if attested.index >= self.told_commit:  # of this epoch, since its first batch repeats the membership
            member.make_whole()

    def _decline(self, round_number: int) -> None:
        member = self._member
        member.send(self.primary, AppendReply(member.epoch, round_number, False, 0, 0, reason=NO_LOG))

    def _reply(self, round_number: int) -> None:
        member = self._member
        member.send(self.primary, AppendReply(member.epoch, round_number, True, self.match_index, self.match_index))


class Asking(Progress):
    """The witness, as its primary sees it. Only one question is open at a time; a heartbeat repeats it."""

    __slots__ = ("_asked", "_moved")

    def __init__(self, address: str, next_index: int, now: float, connected: bool) -> None:
        super().__init__(address, next_index, now, connected)
        self._asked = 0
        self._moved: dict[str, tuple[int, float]] = {}
        """By store: its acknowledged index, and when this last grew or nothing was left to acknowledge."""

    def link(self, connected: bool) -> None:
        """The link came up or broke."""
        super().link(connected)
        self._asked = 0

    def refused(self, reply: AppendReply, log: object, *, current: bool) -> bool:
        """A witness has no log, so there is nothing to agree on."""
        return False

    def question(self, member: Member, peers: Mapping[str, Progress], now: float, *, again: bool) -> int:
        """The index up to which it must attest now; 0 if there is nothing to ask. `again`: also repeat an open
        question.
        """
        index = member.durable_index
        if not self._needed(member, peers, now):
            index = min(index, member.commit_index)
            if not self.match_index < member.log.members_index <= index:
                return 0
        if index <= self.match_index or member.log.epoch_at(index) != member.epoch:
            return 0
        if self._asked > self.match_index and not again:
            return 0
        self._asked = index
        return index

    def _needed(self, member: Member, peers: Mapping[str, Progress], now: float) -> bool:
        """Whether the stores that keep up, including the primary's own, are less than a majority of the voters."""
        members = member.log.members
        others = [peers[address] for address in members.stores if address != member.me]
        keeping_up = [self._keeps_up(member, each, now) for each in others]
        return sum(keeping_up) + (member.me in members.stores) < members.majority

    def _keeps_up(self, member: Member, store: Progress, now: float) -> bool:
        """Whether this store's acknowledgement is worth waiting for."""
        patience_s = member.settings.election_s / 2
        before, since = self._moved.get(store.address, (-1, now))
        if store.match_index != before or store.match_index >= member.durable_index:
            since = now
        self._moved[store.address] = store.match_index, since
        if not store.connected or now - store.heard_at > patience_s or now - since > patience_s:
            return False
        lag = member.log.last_index - store.match_index
        return store.pace is Pace.PROBE or (store.pace is Pace.REPLICATE and lag <= member.settings.ready_lag_batches)
