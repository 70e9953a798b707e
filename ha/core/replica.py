"""One member of a cluster: events in, effects out.

Inputs are methods that return a list of effects (see `effects.py`), to be carried out in order. `now` is in seconds of
a monotonic clock and never goes back.

Life of a member: it begins as a backup that knows no primary. Appends of a primary let it catch up and become ready.
After `promote` it campaigns or, if a primary is alive, asks it to hand over (see `candidacy.py`). If it wins, it is the
primary until it sees a higher epoch or loses its majority, and then a backup again. A campaign begins only by
`promote`, here or at a member that asks this one to be elected first, or by a primary's handover.

State has owners: `member.py` has the state that outlives roles, `office.py` the role of this epoch and what was
announced about it, `candidacy.py` the promotion in progress, `backup.py` and `primary.py` the state of a role.
`voter.py` answers candidates. The class here passes each event to the owner of the state that it changes, and owns
nothing itself.

The rule of epochs (§5.1): a message of a higher epoch ends whatever this member was doing and brings it into that
epoch. There are three exceptions. Pre-votes change nothing. Requests for votes while a primary is heard are refused
without reading them (dissertation §4.2.3): a member that was disconnected or removed cannot depose a healthy primary.
Messages of another cluster (see `election.stranger`) have no effect: its votes are refused, its batches are dropped,
and its epochs do not count in this cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from ha.core.backup import Backup
from ha.core.candidacy import Candidacy
from ha.core.effects import Effect, MembershipChanged, MembershipEnded, State, Strange, TransferEnded
from ha.core.election import unfitness
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
from ha.core.office import Office
from ha.core.primary import Primary
from ha.core.settings import ReplicaSettings
from ha.core.status import ReplicaStatus, status_of
from ha.core.voter import Voter, cluster_of


class Replica:
    """A member of a cluster (see the module's docstring)."""

    __slots__ = ("_candidacy", "_member", "_office", "_voter")

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
        """A member as its store describes it. All of `log` is durable.

        `commit_index`: the index that the checkpoint covers. `blank`: the store has never been whole (see
        `effects.StoreWhole`). `vote_floor`: the end of the store's log before a part of it was lost. `cluster_id`: the
        cluster to which the store belongs, "" if it knows none. `attested`: the position of a witness's store, where
        `log` then ends.
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
        at, members = log.membership_at(self._member.commit_index)
        committed = at <= self._member.commit_index  # what a witness attests need not be
        self._member.cluster_id = cluster_id or (members.cluster_id if committed else "")
        self._office = Office(self._member)
        self._candidacy = Candidacy(self._office)
        self._voter = Voter(self._office, self._candidacy)

    # What can be seen

    @property
    def state(self) -> State:
        """The state in Apache Qpid's words."""
        return self._office.state

    @property
    def epoch(self) -> int:
        """The epoch that this member is in."""
        return self._member.epoch

    @property
    def primary(self) -> str:
        """The primary's address, or "" when none is known."""
        return self._office.primary

    @property
    def writable(self) -> bool:
        """Whether batches may be proposed."""
        return self._office.writable

    @property
    def next_index(self) -> int:
        """The index that the next proposal gets."""
        return self._member.log.last_index + 1

    @property
    def blank(self) -> bool:
        """Whether this store has never caught up with a primary, so that its vote is provisional."""
        return self._member.blank

    @property
    def attested(self) -> Attested | None:
        """The position that a witness attests; None if this is not a witness, or it has attested nothing."""
        return self._member.attested

    @property
    def is_witness(self) -> bool:
        """Whether this member is a witness."""
        return self._member.settings.witness

    @property
    def unfit(self) -> str:
        """Why this member must not be a candidate now, or ""."""
        return self._candidacy.unfit

    @property
    def begun_without(self) -> tuple[str, ...]:
        """The members that were silent when this one was made the primary by force, for the history; empty otherwise."""
        return self._candidacy.begun_without

    @property
    def begun_for(self) -> tuple[str, ...]:
        """The members that asked this one to be elected first, so that it hands over to them; empty after other elections."""
        return self._candidacy.begun_for

    @property
    def commit_index(self) -> int:
        """The highest index that is known to be committed."""
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
        """The highest index that is synced here."""
        return self._member.durable_index

    def silence_s(self, now: float) -> float | None:
        """How long ago the last primary that this member knows may have accepted something: when this member last heard
        it, or was the primary itself. None: it has heard none since its start.
        """
        return self._member.silence_s(now)

    def status(self, now: float) -> ReplicaStatus:
        """For people and telemetry."""
        return status_of(self._office, now)

    # Inputs

    def start(self, now: float) -> list[Effect]:
        """Call this once, first. A standalone log makes itself its own primary."""
        member = self._member
        member.emit(MembershipChanged(member.log.members))
        if member.floor is not None and not member.blank and not unfitness(member.position, member.floor):
            member.make_whole()
        if member.settings.standalone:
            assert member.log.members.voters == (member.me,), (
                f"{member.me} cannot be standalone among {member.log.members.voters}"
            )
            member.save(member.epoch + 1, member.me)
            self._candidacy.lead(now)
        return self._done(now)

    def step(self, now: float, sender: str, message: Message) -> list[Effect]:
        """A message has arrived from a member. An Append must have passed `messages.fault_of`."""
        match message:
            case PreVote():
                self._voter.on_pre_vote(now, sender, message)
            case PreVoteReply():
                self._candidacy.on_pre_vote_reply(now, sender, message)
            case Vote():
                self._voter.on_vote(now, sender, message)
            case Append() | SnapshotChunk() | Attest() if self._voter.is_strange(message):
                self._member.emit(Strange(sender, cluster_of(message) or ""))
            case _:
                if message.epoch > self._member.epoch:
                    self._candidacy.enter(now, message.epoch, None, f"epoch {message.epoch} has begun, says {sender}")
                self._on_message(now, sender, message)
        return self._done(now)

    def tick(self, now: float) -> list[Effect]:
        """Time has passed. Call this at least every heartbeat_s / 2."""
        self._office.role.tick(now)
        self._candidacy.tick(now)
        return self._done(now)

    def propose(self, now: float, nbytes: int, n_records: int, members: Membership | None = None) -> list[Effect]:
        """Add the batch that was sealed with `epoch` and `next_index` to the log. Only while `writable`, or to answer
        ProposeMembers.
        """
        role = self._office.role
        assert isinstance(role, Primary), "a batch was proposed on a backup"
        role.propose(now, nbytes, n_records, members)
        return self._done(now)

    def stored(self, now: float, index: int, epoch: int) -> list[Effect]:
        """The journal is synced up to `index`, whose batch is of `epoch`."""
        if self._member.stored(index, epoch):
            self._office.role.stored(now)
        return self._done(now)

    def chunk_stored(self, now: float, index: int) -> list[Effect]:
        """The chunk of the last StoreChunk is written (not the last chunk of the snapshot: see `snapshot_stored`)."""
        if isinstance(self._office.role, Backup):
            self._office.role.chunk_stored(index)
        return self._done(now)

    def snapshot_stored(self, now: float, index: int, epoch: int, members: Membership) -> list[Effect]:
        """A received checkpoint is complete, synced and undamaged. It counts if InstallSnapshot is among the effects."""
        if isinstance(self._office.role, Backup):
            self._office.role.snapshot_stored(now, index, epoch, members)
        return self._done(now)

    def chunk_refused(self, now: float, index: int, *, kept: bool) -> list[Effect]:
        """The disk has refused the chunk of the last StoreChunk: it may be full. `kept`: it has those before."""
        if isinstance(self._office.role, Backup):
            self._office.role.chunk_refused(index, kept=kept)
        return self._done(now)

    def snapshot_failed(self, now: float, index: int) -> list[Effect]:
        """A received checkpoint is damaged: fetch it again."""
        if isinstance(self._office.role, Backup):
            self._office.role.snapshot_failed(index)
        return self._done(now)

    def halt(self, now: float, reason: str) -> list[Effect]:
        """The edge found a committed batch that it must not apply. This member still stores and votes, but cannot be
        the primary.
        """
        member, role = self._member, self._office.role
        member.halted = reason
        if isinstance(role, Primary):
            role.resigned = reason
        else:
            self._candidacy.halted(reason)
        return self._done(now)

    def compacted(self, first_index: int) -> list[Effect]:
        """The journal begins at `first_index` now; earlier batches are covered by a checkpoint."""
        assert first_index <= self._member.commit_index + 1, (
            f"entry {first_index} is not committed, and all before it were dropped"
        )
        self._member.log.compact(first_index)
        return self._member.take()

    def connected(self, now: float, peer: str) -> list[Effect]:
        """This member is connected: messages can be exchanged with it."""
        self._member.connected.add(peer)
        if isinstance(self._office.role, Primary):
            self._office.role.connected(now, peer)
        else:
            self._candidacy.connected(peer)
        return self._done(now)

    def heard(self, now: float, peer: str) -> list[Effect]:
        """A part of a message has arrived from this member: it is not silent, however long the rest takes."""
        if isinstance(self._office.role, Backup) and self._office.role.primary == peer:
            self._office.role.heard(now)
        return self._done(now)

    def disconnected(self, now: float, peer: str) -> list[Effect]:
        """The link to this member is gone. If it was the primary, its lease ends here."""
        self._member.connected.discard(peer)
        if isinstance(self._office.role, Primary):
            self._office.role.disconnected(peer)
        elif self._office.role.primary == peer:
            self._office.role.forget()
            self._candidacy.primary_lost(now, self._office.role)
        return self._done(now)

    def promote(
        self, now: float, request_id: str, *, insist: bool = False, refusing: Mapping[str, str] | None = None
    ) -> list[Effect]:
        """Become the primary, by a planned switchover if there is a healthy primary; `insist`: by every possible way
        (`pursuit.py`). `refusing`: the members that run but exchange no messages with this one, and why, for people.

        It ends with PromotionEnded.
        """
        self._candidacy.promote(now, request_id, insist=insist, refusing=refusing or {})
        return self._done(now)

    def bootstrap(self, now: float, request_id: str) -> list[Effect]:
        """Begin a new cluster from this blank store, without the silent members. It ends with PromotionEnded.

        A promotion in progress is given up for it.
        """
        self._candidacy.bootstrap(now, request_id)
        return self._done(now)

    def obstacle_to_bootstrap(self, now: float) -> str:
        """Why no new cluster can begin with this store, or ""."""
        return self._candidacy.obstacle_to_bootstrap(now)

    def take_over(self, now: float, request_id: str, cluster_id: str) -> list[Effect]:
        """Begin a new lineage with the log of this broker, as the primary of a cluster of this broker only
        (`lineage.py`). Its id is already in the store. It ends with PromotionEnded.
        """
        self._candidacy.take_over(now, request_id, cluster_id)
        return self._done(now)

    def obstacle_to_takeover(self, now: float) -> str:
        """Why no new lineage can begin here, or ""."""
        return self._candidacy.obstacle_to_takeover(now)

    def transfer(
        self, now: float, candidate: str, patience_s: float | None = None, within_s: float | None = None
    ) -> list[Effect]:
        """Hand over to this backup. It ends with TransferEnded. `within_s`: how long all of it may take, if that is not the time
        for a handover. `patience_s`: how long the backup may take when it has everything, if that is less.
        """
        if isinstance(self._office.role, Primary):
            self._office.role.transfer(now, candidate, asked=False, patience_s=patience_s, within_s=within_s)
        else:
            self._member.emit(TransferEnded(candidate, False, self._not_primary()))
        return self._done(now)

    def quiesced(self, now: float) -> list[Effect]:
        """The clients are quiet, as `Quiesce` asked: new messages may be left to the next primary."""
        if isinstance(self._office.role, Primary):
            self._office.role.quiesced(now)
        return self._done(now)

    def add_member(self, now: float, address: str, request_id: str, *, witness: bool = False) -> list[Effect]:
        """Add a member, as a learner that becomes a voter when it has caught up, or as the witness. It ends with
        MembershipEnded.
        """
        return self._change_members(now, request_id, address, Change.ADD_WITNESS if witness else Change.ADD)

    def change_member(self, now: float, address: str, request_id: str, *, change: Change) -> list[Effect]:
        """Make one change of the membership. It ends with MembershipEnded."""
        return self._change_members(now, request_id, address, change)

    def remove_member(self, now: float, address: str, request_id: str) -> list[Effect]:
        """Remove a member. It ends with MembershipEnded."""
        return self._change_members(now, request_id, address, Change.REMOVE)

    # Messages

    def _on_message(self, now: float, sender: str, message: Message) -> None:
        """A message of this epoch, or of an older one."""
        assert not isinstance(message, (PreVote, PreVoteReply, Vote))
        role = self._office.role
        current = message.epoch == self._member.epoch
        match message:
            case AppendReply():
                if current and isinstance(role, Primary):
                    role.append_reply(now, sender, message)
            case Append() | SnapshotChunk() | Attest():
                self._on_primary(now, sender, message)
            case SnapshotReply():
                if current and isinstance(role, Primary):
                    role.snapshot_reply(now, sender, message)
            case VoteReply():
                self._candidacy.on_vote_reply(now, sender, message)
            case TransferRequest():
                if isinstance(role, Backup) and message.stand == self._member.epoch:
                    self._candidacy.stand_for(now, sender, role)
                elif current and isinstance(role, Primary):
                    role.transfer(now, sender, asked=True)
                else:
                    self._member.send(sender, TransferReply(self._member.epoch, self._not_primary(), later=True))
            case TransferReply():
                if current and isinstance(role, Primary):
                    role.handover_refused(sender, message.reason)
                else:
                    self._candidacy.on_transfer_reply(now, sender, message)
            case TimeoutNow():
                if current and isinstance(role, Backup) and role.primary == sender:
                    self._candidacy.on_timeout_now(now)
            case _:
                assert_never(message)

    def _on_primary(self, now: float, sender: str, message: Append | SnapshotChunk | Attest) -> None:
        member, role = self._member, self._office.role
        if message.epoch < member.epoch or isinstance(role, Primary):
            round_number = 0 if isinstance(message, SnapshotChunk) else message.round
            reason = f"epoch {message.epoch} is over: {member.me} is in epoch {member.epoch}"
            member.send(sender, AppendReply(member.epoch, round_number, False, 0, 0, reason=reason))
            return
        self._candidacy.superseded(now, sender, message.epoch)
        is_news = role.primary != sender
        if isinstance(message, Append):
            role.append(now, sender, message)
        elif isinstance(message, Attest):
            role.attest(now, sender, message)
        else:
            role.chunk(now, sender, message)
        if is_news:
            self._candidacy.primary_heard(now, role)

    def _not_primary(self) -> str:
        known = f"; {self.primary} is" if self.primary else ""
        return f"{self._member.me} is not the primary{known}"

    def _change_members(self, now: float, request_id: str, address: str, change: Change) -> list[Effect]:
        if isinstance(self._office.role, Primary):
            self._office.role.change_members(request_id, address, change)
        else:
            self._member.emit(MembershipEnded(request_id, False, self._not_primary()))
        return self._done(now)

    def _done(self, now: float) -> list[Effect]:
        """Every input ends here: a primary that must step down does so, and changes are announced."""
        role = self._office.role
        if isinstance(role, Primary) and role.resigned:
            self._candidacy.retire(now, role.resigned)
        if self._office.has_news:
            self._candidacy.announce()
        return self._member.take()
