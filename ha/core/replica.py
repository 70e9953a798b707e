"""One member of a cluster: events in, effects out.

Inputs are methods that return a list of effects (see `effects.py`), to be carried out in order. `now` is in seconds of a
monotonic clock and never goes back.

Life of a member: it begins as a backup that knows no primary. Appends of a primary make it catch up and be ready. `promote` makes
it campaign (see `election.py`) or, when a primary is alive, asks that one to hand over; if it wins, it is the primary until it
sees a higher epoch or loses its majority, and then a backup again. A promotion that is insisted on goes further (see
`pursuit.py`). Nothing but `promote`, here or at a member that asks this one to stand in its place, or a primary's handover, ever
begins a campaign.

The rule of epochs (§5.1): a message of a higher epoch ends whatever this member was doing and brings it into that epoch. Excepted
are pre-votes, which change nothing, and votes asked for while a live primary is heard, which are refused unread (dissertation
§4.2.3): a member that was cut off, or removed, cannot unseat a healthy primary. Excepted too is what another cluster says (see
`election.stranger`): its votes are refused, its batches dropped, and its epochs are none of this cluster's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from ha.core import lineage
from ha.core.backup import Backup
from ha.core.effects import (
    Effect,
    MembershipChanged,
    MembershipEnded,
    PromotionEnded,
    State,
    StateChanged,
    Strange,
    TransferEnded,
    WritableChanged,
)
from ha.core.election import Campaign, Round, objection, stranger, unfitness
from ha.core.log import Log
from ha.core.member import Member
from ha.core.membership import Change, Membership
from ha.core.messages import (
    Append,
    AppendReply,
    Attest,
    Attested,
    Message,
    Position,
    PreVote,
    PreVoteReply,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    TransferReply,
    TransferRequest,
    Vote,
    VoteReply,
)
from ha.core.primary import Primary
from ha.core.pursuit import Pursuit
from ha.core.settings import ReplicaSettings
from ha.core.witness import NO_CANDIDATE, Witness, objection_of


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A primary's view of one other member. Times in seconds; None when not known.

    `match_index` is what the member has last acknowledged to this primary (0: nothing yet), also while its link is down.
    """

    address: str
    role: str
    connected: bool
    progress: str
    match_index: int
    received_index: int
    sent_index: int
    lag_batches: int
    lag_bytes: int
    lag_records: int
    round_trip_s: float | None
    last_heard_s: float

    @property
    def stores(self) -> bool:
        """Whether batches are sent to it: to all but a witness."""
        return self.role != "witness"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A member's view of itself, and, on a primary, of the others."""

    state: State
    epoch: int
    primary: str
    first_index: int
    last_index: int
    last_epoch: int
    durable_index: int
    commit_index: int
    told_commit: int
    """The highest commit index that it has heard of; a backup may not have all of that yet."""
    writable: bool
    members: Membership
    peers: tuple[PeerStatus, ...]


class Replica:
    """A member of a cluster (see the module's docstring)."""

    __slots__ = (
        "_announced",
        "_campaign",
        "_campaigns",
        "_handover_by",
        "_member",
        "_patrons",
        "_pursuit",
        "_requests",
        "_role",
        "_writable",
        "begun_without",
    )

    def __init__(
        self,
        me: str,
        settings: ReplicaSettings,
        *,
        epoch: int,
        voted_for: str | None,
        log: Log,
        commit_index: int = 0,
        blank: bool = False,
        vote_floor: Position | None = None,
        cluster_id: str = "",
        attested: Attested | None = None,
    ) -> None:
        """A member as its store describes it, all of `log` being durable.

        `commit_index`: what the checkpoint covers. `blank`: the store has never been whole (see `effects.StoreWhole`).
        `vote_floor`: the end of what the store once held before a part of it was lost. `cluster_id`: the cluster that the store
        belongs to, "" when it does not know of one. `attested`: what the store of a witness says, where `log` ends then.
        """
        assert epoch >= log.last_epoch, f"the store's epoch {epoch} is older than its log's {log.last_epoch}"
        assert commit_index <= log.last_index, (
            f"the store's log ends at {log.last_index}, before the checkpoint at {commit_index}"
        )
        self._member = Member(me, settings, log, epoch, voted_for)
        self._member.commit_index = commit_index if settings.witness else max(commit_index, log.base_index)
        self._member.attested = attested
        self._member.blank = blank
        self._member.floor = vote_floor
        self._member.cluster_id = cluster_id or log.members_at(self._member.commit_index).cluster_id
        self._role: Backup | Primary = self._follower()
        self._campaign: Campaign | None = None
        self._campaigns = 0
        self._requests: list[tuple[str, bool]] = []
        """Their ids, and whether each is insisted on."""
        self._pursuit: Pursuit | None = None
        self._patrons: set[str] = set()
        """The members that have asked this one to stand for election in their place."""
        self._handover_by: float | None = None
        self._announced: tuple[State, int, str] | None = None
        self._writable = False
        self.begun_without: tuple[str, ...] = ()
        """The members that were silent when this one was made primary by force, for the record; empty otherwise."""

    def _follower(self) -> Backup:
        """The role of a member that is not the primary, when an epoch begins."""
        return Witness(self._member) if self._member.settings.witness else Backup(self._member)

    # What can be seen

    @property
    def state(self) -> State:
        """In Apache Qpid's words."""
        role = self._role
        if isinstance(role, Backup):
            return role.state
        if not role.active:
            return State.RECOVERING
        return State.STANDALONE if self._member.settings.standalone else State.ACTIVE

    @property
    def epoch(self) -> int:
        """The epoch that this member is in."""
        return self._member.epoch

    @property
    def primary(self) -> str:
        """The primary's address, or "" when none is known."""
        return self._role.primary if isinstance(self._role, Backup) else self._member.me

    @property
    def writable(self) -> bool:
        """Whether batches may be proposed."""
        return isinstance(self._role, Primary) and self._role.writable

    @property
    def next_index(self) -> int:
        """The index that the next proposal gets."""
        return self._member.log.last_index + 1

    @property
    def blank(self) -> bool:
        """Whether this store has never been level with a primary, so that its vote is provisional."""
        return self._member.blank

    @property
    def attested(self) -> Attested | None:
        """What a witness attests; None when this is none, or has attested nothing."""
        return self._member.attested

    @property
    def is_witness(self) -> bool:
        """Whether this member is a witness."""
        return self._member.settings.witness

    @property
    def unfit(self) -> str:
        """Why this member must not stand for election now, or ""."""
        return self._unfit()

    @property
    def commit_index(self) -> int:
        """How far the log is known to be committed."""
        return self._member.commit_index

    @property
    def members(self) -> Membership:
        """The membership in force."""
        return self._member.log.members

    @property
    def log(self) -> Log:
        """The log, for reading."""
        return self._member.log

    @property
    def durable_index(self) -> int:
        """How far the log is synced here."""
        return self._member.durable_index

    def silence_s(self, now: float) -> float | None:
        """How long ago the last primary that this member knows of may have accepted something: it heard it then, or was it
        itself. None: it has heard of none since its start.
        """
        return self._member.silence_s(now)

    def status(self, now: float) -> ReplicaStatus:
        """For people and telemetry."""
        member, log = self._member, self._member.log
        peers: tuple[PeerStatus, ...] = ()
        if isinstance(self._role, Primary):
            peers = tuple(
                PeerStatus(
                    address=each.address,
                    role=log.members.role(each.address),
                    connected=each.connected,
                    progress=each.pace,
                    match_index=each.acked_index,
                    received_index=each.received_index,
                    sent_index=each.next_index - 1,
                    lag_batches=log.last_index - each.acked_index,
                    lag_bytes=log.bytes_between(each.acked_index, log.last_index),
                    lag_records=log.records_between(each.acked_index, log.last_index),
                    round_trip_s=each.round_trip_s,
                    last_heard_s=now - each.heard_at,
                )
                for each in self._role.peers.values()
            )
        return ReplicaStatus(
            state=self.state,
            epoch=member.epoch,
            primary=self.primary,
            first_index=log.first_index,
            last_index=log.last_index,
            last_epoch=log.last_epoch,
            durable_index=member.durable_index,
            commit_index=member.commit_index,
            told_commit=max(member.commit_index, self._role.told_commit if isinstance(self._role, Backup) else 0),
            writable=self.writable,
            members=log.members,
            peers=peers,
        )

    # Inputs

    def start(self, now: float) -> list[Effect]:
        """To be called once, first. A standalone log makes itself its own primary."""
        member = self._member
        member.emit(MembershipChanged(member.log.members))
        if member.floor is not None and not member.blank and not unfitness(member.position, member.floor):
            member.make_whole()
        if member.settings.standalone:
            assert member.log.members.voters == (member.me,), (
                f"{member.me} cannot be standalone among {member.log.members.voters}"
            )
            member.save(member.epoch + 1, member.me)
            self._lead(now)
        return self._done(now)

    def step(self, now: float, sender: str, message: Message) -> list[Effect]:
        """A message has come from a member. An Append must have passed `messages.fault_of`."""
        match message:
            case PreVote():
                self._on_pre_vote(now, sender, message)
            case PreVoteReply():
                self._on_pre_vote_reply(now, sender, message)
            case Vote():
                self._on_vote(now, sender, message)
            case Append() | SnapshotChunk() | Attest() if self._is_strange(message):
                self._member.emit(Strange(sender, _cluster_of(message) or ""))
            case _:
                if message.epoch > self._member.epoch:
                    self._enter(now, message.epoch, None, f"epoch {message.epoch} has begun, says {sender}")
                self._on_message(now, sender, message)
        return self._done(now)

    def tick(self, now: float) -> list[Effect]:
        """Time has passed; to be called at least every heartbeat_s / 2."""
        self._role.tick(now)
        campaign = self._campaign
        if campaign is not None:
            if now >= campaign.deadline:
                found = f"no majority within {self._member.settings.campaign_timeout_s:g} s: {self._verdict(campaign)}"
                self._give_up(found if self._pursuit is None else self._pursuit.told(found))
            else:
                if now - campaign.asked_at >= self._member.settings.heartbeat_s:
                    self._ask(now, campaign)
                if campaign.forced:
                    self._weigh(now, campaign)
        elif self._handover_by is not None:
            self._await_handover(now, self._handover_by)
        elif self._pursuit is not None:
            self._pursue(now, self._pursuit)
        return self._done(now)

    def propose(self, now: float, nbytes: int, n_records: int, members: Membership | None = None) -> list[Effect]:
        """The batch sealed with `epoch` and `next_index` enters the log. Only while `writable`, or to answer ProposeMembers."""
        role = self._role
        assert isinstance(role, Primary), "a batch was proposed on a backup"
        role.propose(now, nbytes, n_records, members)
        return self._done(now)

    def stored(self, now: float, index: int, epoch: int) -> list[Effect]:
        """The journal is synced up to `index`, whose batch is of `epoch`."""
        if self._member.stored(index, epoch):
            self._role.stored(now)
        return self._done(now)

    def chunk_stored(self, now: float, index: int) -> list[Effect]:
        """The chunk of the last StoreChunk is written (not the last chunk of the snapshot: see `snapshot_stored`)."""
        if isinstance(self._role, Backup):
            self._role.chunk_stored(index)
        return self._done(now)

    def snapshot_stored(self, now: float, index: int, epoch: int, members: Membership) -> list[Effect]:
        """A received checkpoint is complete, synced and whole. It counts when InstallSnapshot is among the effects."""
        if isinstance(self._role, Backup):
            self._role.snapshot_stored(now, index, epoch, members)
        return self._done(now)

    def snapshot_failed(self, now: float, index: int) -> list[Effect]:
        """A received checkpoint turned out to be damaged: fetch it again."""
        if isinstance(self._role, Backup):
            self._role.snapshot_failed(index)
        return self._done(now)

    def halt(self, now: float, reason: str) -> list[Effect]:
        """The edge has met a committed batch that it must not apply: this member stores and votes on, and leads nobody."""
        member, role = self._member, self._role
        member.halted = reason
        if isinstance(role, Primary):
            role.resigned = reason
        elif self._campaign is not None or self._handover_by is not None:
            self._give_up(reason)
        return self._done(now)

    def compacted(self, first_index: int) -> list[Effect]:
        """The journal begins at `first_index` now; what came before is in a checkpoint."""
        assert first_index <= self._member.commit_index + 1, (
            f"entry {first_index} is not committed, and all before it were dropped"
        )
        self._member.log.compact(first_index)
        return self._member.take()

    def connected(self, now: float, peer: str) -> list[Effect]:
        """Messages can go to and come from this member."""
        self._member.connected.add(peer)
        if isinstance(self._role, Primary):
            self._role.connected(now, peer)
        elif self._campaign is not None and peer in self._campaign.tally.unconvinced:
            self._ask_one(peer, self._campaign)
        return self._done(now)

    def heard(self, now: float, peer: str) -> list[Effect]:
        """A part of a message has come from this member: it is not silent, however long the rest takes."""
        if isinstance(self._role, Backup) and self._role.primary == peer:
            self._role.heard(now)
        return self._done(now)

    def disconnected(self, now: float, peer: str) -> list[Effect]:
        """The link to this member is gone. If it was the primary, its lease ends here."""
        self._member.connected.discard(peer)
        if isinstance(self._role, Primary):
            self._role.disconnected(peer)
        elif self._role.primary == peer:
            self._role.forget()
            if self._handover_by is not None:
                self._stand_alone(now, self._role)
        return self._done(now)

    def promote(self, now: float, request_id: str, *, insist: bool = False) -> list[Effect]:
        """Become the primary, by a planned switchover if there is a healthy one; `insist`: by every way there is (`pursuit.py`).

        Ends with PromotionEnded.
        """
        member, role = self._member, self._role
        self._requests.append((request_id, insist))
        if insist and self._pursuit is None:
            times = member.settings
            within_s = times.campaign_timeout_s + times.transfer_timeout_s
            self._pursuit = Pursuit(now, within_s, times.heartbeat_s)
        if isinstance(role, Primary):
            if role.active:
                self._end_requests(True, f"{member.me} is the primary of epoch {member.epoch} already")
        elif self._campaign is None and self._handover_by is None:
            self._stand(now, role)
        return self._done(now)

    def bootstrap(self, now: float, request_id: str) -> list[Effect]:
        """Begin a new cluster from this blank store, without the members that are silent. Ends with PromotionEnded.

        A promotion that is under way is given up for it.
        """
        obstacle = self.obstacle_to_bootstrap(now)
        if obstacle:
            self._member.emit(PromotionEnded(request_id, False, obstacle))
        else:
            self._give_up("an operator begins a new cluster with this broker")
            self._requests.append((request_id, False))
            self._run(now, forced=True)
        return self._done(now)

    def obstacle_to_bootstrap(self, now: float) -> str:
        """Why no new cluster can begin with this store, or ""."""
        member, role = self._member, self._role
        if isinstance(role, Primary):
            return f"{member.me} is the primary of epoch {member.epoch}"
        if role.hears(now):
            return f"{member.me} hears the primary {role.primary} of epoch {member.epoch}, from which it fetches what it lacks"
        if member.settings.witness:
            return f"{member.me} {NO_CANDIDATE}"
        if not member.blank or member.cluster_id:
            named = f" of cluster {member.cluster_id}" if member.cluster_id else ""
            return f"the store of {member.me} is not new: it holds data{named}; use `qpid-ha promote`"
        return self._unfit()

    def take_over(self, now: float, request_id: str, cluster_id: str) -> list[Effect]:
        """Begin a new lineage with what is here, as the primary of a cluster of this broker alone (`lineage.py`), whose id is in
        the store already. Ends with PromotionEnded.
        """
        obstacle = self.obstacle_to_takeover(now)
        if obstacle:
            self._member.emit(PromotionEnded(request_id, False, obstacle))
        else:
            member = self._member
            self._give_up("an operator begins a new lineage with this broker")
            self._requests.append((request_id, False))
            member.cluster_id = cluster_id
            member.save(member.epoch + 1, member.me)
            self._lead(now, lineage.alone(member.me, cluster_id))
        return self._done(now)

    def obstacle_to_takeover(self, now: float) -> str:
        """Why no new lineage can begin here, or ""."""
        role = self._role
        hears = self._member.me if isinstance(role, Primary) else role.primary if role.hears(now) else ""
        return lineage.obstacle(self._member, hears)

    def transfer(self, now: float, candidate: str) -> list[Effect]:
        """Hand over to this backup. Ends with TransferEnded."""
        if isinstance(self._role, Primary):
            self._role.transfer(now, candidate, asked=False)
        else:
            self._member.emit(TransferEnded(candidate, False, self._not_primary()))
        return self._done(now)

    def quiesced(self, now: float) -> list[Effect]:
        """The clients are quiet, as `Quiesce` asked: what comes now may be left to the next primary."""
        if isinstance(self._role, Primary):
            self._role.quiesced(now)
        return self._done(now)

    def add_member(self, now: float, address: str, request_id: str, *, witness: bool = False) -> list[Effect]:
        """Add a member, as a learner that becomes a voter when it has caught up, or as the witness. Ends with MembershipEnded."""
        return self._change_members(now, request_id, address, Change.ADD_WITNESS if witness else Change.ADD)

    def change_member(self, now: float, address: str, request_id: str, *, change: Change) -> list[Effect]:
        """Change one member, or who is one. Ends with MembershipEnded."""
        return self._change_members(now, request_id, address, change)

    def remove_member(self, now: float, address: str, request_id: str) -> list[Effect]:
        """Remove a member. Ends with MembershipEnded."""
        return self._change_members(now, request_id, address, Change.REMOVE)

    # Messages

    def _on_message(self, now: float, sender: str, message: Message) -> None:
        """A message of this epoch, or of an older one."""
        assert not isinstance(message, PreVote | PreVoteReply | Vote)
        role = self._role
        current = message.epoch == self._member.epoch
        match message:
            case Append() | SnapshotChunk() | Attest():
                self._on_primary(now, sender, message)
            case AppendReply():
                if current and isinstance(role, Primary):
                    role.append_reply(now, sender, message)
            case SnapshotReply():
                if current and isinstance(role, Primary):
                    role.snapshot_reply(now, sender, message)
            case VoteReply():
                self._on_vote_reply(now, sender, message)
            case TransferRequest():
                if isinstance(role, Backup) and message.stand == self._member.epoch:
                    self._stand_for(now, sender, role)
                elif current and isinstance(role, Primary):
                    role.transfer(now, sender, asked=True)
                else:
                    self._member.send(sender, TransferReply(self._member.epoch, self._not_primary(), later=True))
            case TransferReply():
                self._on_transfer_reply(now, sender, message)
            case TimeoutNow():
                if (
                    current
                    and isinstance(role, Backup)
                    and role.primary == sender
                    and self._campaign is None
                    and not self._unfit()
                ):
                    self._member.heard_at = now
                    self._run(now, transfer=True)
            case _:
                assert_never(message)

    def _on_primary(self, now: float, sender: str, message: Append | SnapshotChunk | Attest) -> None:
        member, role = self._member, self._role
        if message.epoch < member.epoch or isinstance(role, Primary):
            round_number = 0 if isinstance(message, SnapshotChunk) else message.round
            reason = f"epoch {message.epoch} is over: {member.me} is in epoch {member.epoch}"
            member.send(sender, AppendReply(member.epoch, round_number, False, 0, 0, reason=reason))
            return
        if self._campaign is not None:
            self._set_back(now, f"{sender} is the primary of epoch {message.epoch}")
        is_news = role.primary != sender
        if isinstance(message, Append):
            role.append(now, sender, message)
        elif isinstance(message, Attest):
            role.attest(now, sender, message)
        else:
            role.chunk(now, sender, message)
        if is_news and self._pursuit is not None and self._handover_by is None:
            self._stand(now, role)

    def _on_transfer_reply(self, now: float, sender: str, message: TransferReply) -> None:
        """The primary does not hand over, or a member that was asked to stand for election does not."""
        if self._handover_by is not None and sender == self.primary:
            reason = f"the primary {sender} does not hand over: {message.reason}"
            if message.later:
                self._set_back(now, reason)
            else:
                self._give_up(reason)
        campaign, pursuit = self._campaign, self._pursuit
        if campaign is not None and pursuit is not None and not message.later and pursuit.refused(sender, message.reason):
            self._seek(now, campaign, pursuit)

    def _on_pre_vote(self, now: float, sender: str, message: PreVote) -> None:
        member = self._member
        reason = (
            stranger(message.cluster_id, member.cluster_id)
            or self._loyalty(now)
            or self._objection(message.last_epoch, message.last_index)
        )
        hears = self.primary if self._loyalty(now) else ""
        end = Position(0, 0) if member.settings.witness else member.position
        member.send(
            sender,
            PreVoteReply(member.epoch, message.campaign, not reason, member.blank, reason, hears, end.index, end.epoch),
        )

    def _on_pre_vote_reply(self, now: float, sender: str, message: PreVoteReply) -> None:
        campaign = self._campaign
        if campaign is not None and campaign.round is Round.PRE_VOTE and campaign.number == message.campaign:
            campaign.highest_epoch = max(campaign.highest_epoch, message.epoch)
            campaign.replies[sender] = message
            campaign.count(sender, message.granted, provisional=message.provisional, reason=message.reason)
            self._weigh(now, campaign)

    def _on_vote(self, now: float, sender: str, message: Vote) -> None:
        """One vote an epoch, saved before it is given (§5.2); epoch and vote are saved at once."""
        member = self._member
        if message.epoch < member.epoch:
            reason = f"epoch {message.epoch} is over: {member.me} is in epoch {member.epoch}"
        elif strange := stranger(message.cluster_id, member.cluster_id):
            reason = strange
        elif not message.transfer and (loyalty := self._loyalty(now)):
            reason = loyalty
        else:
            voted_for = member.voted_for if message.epoch == member.epoch else None
            if voted_for not in (None, sender):
                reason = f"it has voted for {voted_for} in epoch {message.epoch}"
            else:
                reason = self._objection(message.last_epoch, message.last_index)
            vote = voted_for if reason else sender
            if (message.epoch, vote) != (member.epoch, member.voted_for):
                self._enter(now, message.epoch, vote, f"{sender} asks for votes in epoch {message.epoch}")
        member.send(sender, VoteReply(member.epoch, message.epoch, not reason, member.blank, reason))

    def _on_vote_reply(self, now: float, sender: str, message: VoteReply) -> None:
        campaign = self._campaign
        if campaign is not None and campaign.round is Round.VOTE and message.for_epoch == self._member.epoch:
            campaign.count(sender, message.granted, provisional=message.provisional, reason=message.reason)
            self._weigh(now, campaign)

    # Votes

    def _is_strange(self, message: Append | SnapshotChunk | Attest) -> bool:
        """Whether this comes from a primary of another cluster than the one that this store belongs to."""
        mine, theirs = self._member.cluster_id, _cluster_of(message)
        return bool(mine) and theirs is not None and theirs != mine

    def _loyalty(self, now: float) -> str:
        """Why nobody need be elected, as far as this member can tell, or ""."""
        role = self._role
        if isinstance(role, Primary):
            return f"it is itself the primary, of epoch {self._member.epoch}"
        return f"it hears the primary {role.primary} of epoch {self._member.epoch}" if role.hears(now) else ""

    def _objection(self, last_epoch: int, last_index: int) -> str:
        member, theirs = self._member, Position(last_epoch, last_index)
        found = objection(theirs, member.position, member.floor)
        return objection_of(member.attested, theirs) if found and member.attested is not None else found

    def _unfit(self) -> str:
        """Why this member must not stand for election, or "".

        One that is being removed may: until that is committed, nobody else may have a log new enough (dissertation §4.2.2).
        """
        member = self._member
        if member.settings.witness:
            return f"{member.me} {NO_CANDIDATE}"
        role = member.log.members.role(member.me)
        if role == "learner" or (not role and member.log.members_index <= member.commit_index):
            return f"{member.me} is not a voting member of the cluster ({', '.join(member.log.members.voters)})"
        return member.halted or unfitness(member.position, member.floor)

    def _stand(self, now: float, role: Backup) -> None:
        """A promotion begins: refused, by handover, or by votes."""
        reason = self._unfit()
        if role.hears(now) and (not reason or (self._pursuit is not None and self._may_mend())):
            self._handover_by = now + self._member.settings.transfer_timeout_s + self._member.settings.heartbeat_s
            self._member.send(role.primary, TransferRequest(self._member.epoch))
        elif not reason:
            self._run(now)
        elif self._pursuit is not None and self._may_mend():
            self._run(now, unfit=reason)
        else:
            self._give_up(reason)

    def _may_mend(self) -> bool:
        """Whether what makes this member unfit is only that it must catch up with a primary first."""
        member = self._member
        return not member.halted and not member.settings.witness and member.me in member.log.members.voters

    def _stand_for(self, now: float, patron: str, role: Backup) -> None:
        """A member with an older log is to be the primary: be elected, so that it can catch up here and be handed over to."""
        member = self._member
        heard, unfit = self._loyalty(now), self._unfit()
        if heard or unfit:
            member.send(patron, TransferReply(member.epoch, heard or unfit, later=not unfit))
        elif self._handover_by is None:
            self._patrons.add(patron)
            if self._campaign is None:
                self._run(now)

    def _pursue(self, now: float, pursuit: Pursuit) -> None:
        """Between two attempts of a promotion that is insisted on."""
        role = self._role
        if isinstance(role, Backup):
            if now >= pursuit.deadline:
                self._give_up(pursuit.told(pursuit.reason))
            elif now >= pursuit.retry_at:
                self._stand(now, role)

    def _seek(self, now: float, campaign: Campaign, pursuit: Pursuit) -> None:
        """Nobody can be elected here before another member was: ask the best of those that can be reached to stand."""
        member = self._member
        replies = {voter: reply for voter, reply in campaign.replies.items() if voter in member.connected}
        if campaign.unfit:
            if any(voter in member.connected for voter in campaign.tally.silent if voter != member.me):
                return
        elif not campaign.tally.hopeless(member.connected):
            return
        best = pursuit.best_of(replies, Position(0, 0) if campaign.unfit else member.position)
        if best:
            if pursuit.may_ask(now, best):
                member.send(best, TransferRequest(member.epoch, stand=replies[best].epoch))
        elif not campaign.is_heard_of and (campaign.lost or campaign.unfit):
            self._give_up(pursuit.told(self._verdict(campaign)))

    def _await_handover(self, now: float, deadline: float) -> None:
        """Waiting for the primary to let go: it may be gone in the meantime, or never answer."""
        if not self.primary and isinstance(self._role, Backup):
            self._stand_alone(now, self._role)
        elif now >= deadline:
            self._give_up(f"the primary {self.primary} has not handed over within {self._member.settings.transfer_timeout_s:g} s")

    def _stand_alone(self, now: float, role: Backup) -> None:
        """The primary that was to hand over is gone: by votes then, unless only that primary could have made this member fit."""
        self._handover_by = None
        self._stand(now, role)

    def _run(self, now: float, *, transfer: bool = False, forced: bool = False, unfit: str = "") -> None:
        """Begin a campaign."""
        member = self._member
        self._handover_by = None
        self._campaigns += 1
        timeout_s = member.settings.campaign_timeout_s
        campaign = self._campaign = Campaign(
            self._campaigns, member.log.members.voters, now, timeout_s, transfer=transfer, forced=forced, unfit=unfit
        )
        if transfer:
            self._begin_vote(now, campaign)
        else:
            if not unfit:
                self._vote_for_oneself(campaign)
            self._ask(now, campaign)
            self._weigh(now, campaign)

    def _begin_vote(self, now: float, campaign: Campaign) -> None:
        """Begin a new epoch and vote for oneself (§5.2)."""
        member = self._member
        campaign.begin_vote(member.log.members.voters)
        member.save(max(member.epoch, campaign.highest_epoch) + 1, member.me)
        self._role = self._follower()
        self._announce()
        self._vote_for_oneself(campaign)
        self._ask(now, campaign)
        self._weigh(now, campaign)

    def _vote_for_oneself(self, campaign: Campaign) -> None:
        member = self._member
        campaign.count(member.me, True, provisional=member.blank)

    def _ask(self, now: float, campaign: Campaign) -> None:
        campaign.asked_at = now
        for voter in campaign.tally.unconvinced:
            self._ask_one(voter, campaign)

    def _ask_one(self, voter: str, campaign: Campaign) -> None:
        member = self._member
        end = member.position
        if campaign.round is Round.PRE_VOTE:
            member.send(voter, PreVote(member.epoch, campaign.number, end.index, end.epoch, member.claimed_id))
        else:
            member.send(voter, Vote(member.epoch, end.index, end.epoch, campaign.transfer, member.claimed_id))

    def _weigh(self, now: float, campaign: Campaign) -> None:
        if campaign.won(now):
            if campaign.round is Round.PRE_VOTE:
                self._begin_vote(now, campaign)
            else:
                self.begun_without = campaign.without
                self._lead(now)
        elif self._pursuit is not None and campaign.round is Round.PRE_VOTE:
            self._seek(now, campaign, self._pursuit)
        elif campaign.lost or (self._pursuit is not None and campaign.tally.hopeless(self._member.connected)):
            addresses, me = self._member.log.members.addresses, self._member.me  # one that is being removed is the last to try
            self._set_back(now, self._verdict(campaign), turn=addresses.index(me) if me in addresses else len(addresses))

    def _verdict(self, campaign: Campaign) -> str:
        return campaign.verdict(self._member.me, self._member.connected)

    def _lead(self, now: float, members: Membership | None = None) -> None:
        """Elected; or the primary of other members than those in force."""
        self._campaign = None
        self._patrons.clear()
        role = self._role = Primary(self._member, now)
        self._announce()
        role.begin(now, members)

    # Ends

    def _give_up(self, reason: str) -> None:
        """The promotion under way, if any, is refused."""
        self._campaign = None
        self._handover_by = None
        patrons, self._patrons = self._patrons, set()
        for patron in sorted(patrons):
            self._member.send(patron, TransferReply(self._member.epoch, reason))
        self._end_requests(False, reason)

    def _set_back(self, now: float, reason: str, turn: int = 0) -> None:
        """The attempt under way, if any, has failed for a reason that may pass: who insists tries again, others are refused."""
        pursuit = self._pursuit
        insisting = [each for each in self._requests if each[1]]
        self._requests = [each for each in self._requests if not each[1]]
        self._give_up(reason)
        self._requests = insisting
        if insisting and pursuit is not None:
            self._pursuit = pursuit
            pursuit.set_back(now, reason, turn)

    def _end_requests(self, won: bool, reason: str) -> None:
        requests, self._requests = self._requests, []
        self._pursuit = None
        for request_id, _ in requests:
            self._member.emit(PromotionEnded(request_id, won, reason))

    def _enter(self, now: float, epoch: int, voted_for: str | None, reason: str) -> None:
        """Enter an epoch that somebody else began, or vote in the one that this member is in."""
        begun = epoch > self._member.epoch
        self._member.save(epoch, voted_for)
        if begun:
            self._retire(now, reason)
        else:
            self._set_back(now, reason)

    def _retire(self, now: float, reason: str) -> None:
        """Be a backup that knows no primary. Announced at once: what follows in this list is no longer a primary's."""
        if isinstance(self._role, Primary):
            if self._role.active:
                self._member.heard_at = now
            self._role.end(reason)
        self._role = self._follower()
        self._set_back(now, reason)
        self._announce()

    def _not_primary(self) -> str:
        known = f"; {self.primary} is" if self.primary else ""
        return f"{self._member.me} is not the primary{known}"

    def _change_members(self, now: float, request_id: str, address: str, change: Change) -> list[Effect]:
        if isinstance(self._role, Primary):
            self._role.change_members(request_id, address, change)
        else:
            self._member.emit(MembershipEnded(request_id, False, self._not_primary()))
        return self._done(now)

    def _done(self, now: float) -> list[Effect]:
        """Every input ends here: a primary that must step down does, and what has changed is announced."""
        if isinstance(self._role, Primary) and self._role.resigned:
            self._retire(now, self._role.resigned)
        self._announce()
        return self._member.take()

    def _announce(self) -> None:
        now_is = (self.state, self._member.epoch, self.primary)
        if now_is != self._announced:
            self._announced = now_is
            self._member.emit(StateChanged(*now_is))
            if isinstance(self._role, Primary) and self._role.active:
                without = f", begun anew without {', '.join(self.begun_without)}" if self.begun_without else ""
                self._end_requests(True, f"{self._member.me} is the primary of epoch {self._member.epoch}{without}")
        writable = self.writable
        if writable != self._writable:
            self._writable = writable
            self._member.emit(WritableChanged(writable))


def _cluster_of(message: Append | SnapshotChunk | Attest) -> str | None:
    """The id of the cluster whose primary has sent this."""
    return message.cluster_id if isinstance(message, Append) else message.members.cluster_id
