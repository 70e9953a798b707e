"""The role of a member that is not the primary: it stores the batches of its epoch's primary, and reports its position.

A `Backup` lives for one epoch. Its life: it knows no primary (joining) until an Append of its epoch arrives. Together
with the primary it finds the place where their logs agree, and fetches the missing batches (catchup), until it has all
of them (ready). When the link breaks, or nothing was heard for `election_s`, it forgets the primary, and also the lease
because of which it refused other candidates (dissertation §4.2.3, §6.2).

Invariants: up to `verified_index` this log is known to be the primary's. Only verified batches are committed (§5.3),
and only verified batches that are on disk are acknowledged.
"""

from __future__ import annotations

from ha.core.effects import InstallSnapshot, LeaveSnapshot, MembershipChanged, State, StoreChunk, StoreEntries
from ha.core.member import Member
from ha.core.membership import Membership
from ha.core.messages import Append, AppendReply, Attest, Entry, Position, SnapshotChunk, SnapshotReply
from ha.core.snapshot import Incoming


class Backup:
    """The role of a backup in one epoch. `told_commit` is the highest commit index that the primary has reported."""

    __slots__ = (
        "_goal",
        "_incoming",
        "_member",
        "_ready",
        "_target",
        "_target_at",
        "_told",
        "primary",
        "told_commit",
        "verified_index",
    )

    writable = False
    """See `Primary`."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._ready = False
        self._target = 0
        self._target_at = 0.0
        self._told = False
        """Whether an Append has reported the commit index. A snapshot only has its own index, which may be an old one."""
        self._goal = 0
        """The commit index that a blank store has to reach to be whole."""
        self._incoming: Incoming | None = None
        self.primary = ""
        self.told_commit = 0
        self.verified_index = 0

    @property
    def state(self) -> State:
        """joining, catchup or ready."""
        if not self.primary:
            return State.JOINING
        return State.READY if self._ready else State.CATCHUP

    @property
    def match_index(self) -> int:
        """The highest index up to which the primary's log is on this member's disk."""
        return min(self._member.durable_index, self.verified_index)

    def tick(self, now: float) -> None:
        """Forget a primary that has been silent for too long."""
        if self.primary and not self.hears(now):
            self.forget()

    def forget(self) -> None:
        """This member no longer knows a primary."""
        self.primary = ""
        self._ready = False

    def append(self, now: float, sender: str, message: Append) -> None:
        """Batches, or a heartbeat (§5.3)."""
        self._told = True
        self._hear(now, sender, message.commit_index)
        member = self._member
        entries = message.entries
        if message.prev_index < member.commit_index:
            # Every primary's log contains all committed entries (§5.4.3), so the logs agree up to there: no comparison is needed.
            agreed = member.commit_index
            entries = entries[agreed - message.prev_index :]
        elif member.log.epoch_at(message.prev_index) != message.prev_epoch:
            self._refuse(message)
            return
        else:
            agreed = message.prev_index
        added = self._add(entries)
        self._agree(now, max(agreed, message.last))
        if message.round or not added:
            self._reply(message.round)

    def heard(self, now: float) -> None:
        """The primary is sending a large message. It is told, without a request, that this member lives."""
        self._member.heard_at = now
        self._reply(0)

    def stored(self, now: float) -> None:
        """More of the log is on disk. It may make the store whole after the primary is gone, too."""
        if self.primary:
            self._judge(now)
            self._reply(0)
        else:
            self._judge_store()

    def chunk(self, now: float, sender: str, chunk: SnapshotChunk) -> None:
        """A part of a snapshot (§7)."""
        self._hear(now, sender, chunk.index)
        member = self._member
        if chunk.index <= member.commit_index or member.log.epoch_at(chunk.index) == chunk.index_epoch:
            # The log contains this batch already: keep it and all entries after it (§7, receiver rule 6).
            self._agree(now, chunk.index)
            self._reply(0)
            return
        incoming = self._incoming
        if incoming is not None and incoming.writing and incoming.complete:
            return  # the edge verifies it: the result decides, and until then the primary repeats itself
        if incoming is None or not incoming.same_file(sender, chunk):
            incoming = self._incoming = Incoming(sender, chunk)
        if incoming.writing:
            return
        if chunk.offset == incoming.next_offset:
            incoming.writing = chunk.nbytes
            member.emit(StoreChunk(chunk))
        else:
            member.send(sender, SnapshotReply(member.epoch, incoming.index, incoming.next_offset))

    def attest(self, now: float, sender: str, message: Attest) -> None:
        """The primary treats this member as a witness. It must not attest a log that it does not have."""
        self._hear(now, sender, message.commit_index)
        reason = "it is not a witness: give every broker the same --ha-witness"
        self._member.send(sender, AppendReply(self._member.epoch, message.round, False, 0, 0, reason=reason))

    def chunk_stored(self, index: int) -> None:
        """The edge has written a chunk that was not the last one: request the next one."""
        incoming = self._incoming
        if incoming is None or incoming.index != index or incoming.complete:
            return
        incoming.next_offset += incoming.writing
        incoming.writing = 0
        if self.primary:
            self._member.send(self.primary, SnapshotReply(self._member.epoch, index, incoming.next_offset))

    def snapshot_stored(self, now: float, index: int, epoch: int, members: Membership) -> None:
        """The edge has the whole snapshot durably. A snapshot that is no longer needed is ignored."""
        member = self._member
        incoming = self._incoming
        if incoming is None or not incoming.complete or incoming.index != index:
            return
        self._incoming = None
        if index > member.commit_index:
            before = member.log.members
            member.log.restore(index, epoch, members)
            member.durable_index = member.commit_index = index
            member.cluster_id = member.cluster_id or members.cluster_id
            member.emit(InstallSnapshot(index, epoch, members))
            if members != before:
                member.emit(MembershipChanged(members))
        self._agree(now, index)
        if self.primary:
            self._reply(0)

    def chunk_refused(self, index: int, *, kept: bool) -> None:
        """The disk has refused a chunk. Nothing is requested now: the primary repeats its request a little later. Unless the
        chunks before it are `kept`, the snapshot then begins again.
        """
        incoming = self._incoming
        if incoming is None or incoming.index != index:
            return
        incoming.writing = 0
        if not kept:
            self._incoming = None

    def snapshot_failed(self, index: int) -> None:
        """The edge found that the snapshot is damaged: begin again."""
        incoming = self._incoming
        if incoming is None or incoming.index != index:
            return
        self._incoming = None
        if self.primary:
            self._member.send(self.primary, SnapshotReply(self._member.epoch, index, 0))

    def hears(self, now: float) -> bool:
        """Whether a primary was heard lately, so that no other one need be elected (the lease)."""
        silence_s = self._member.silence_s(now)
        return bool(self.primary) and silence_s is not None and silence_s < self._member.settings.election_s

    def _hear(self, now: float, sender: str, commit_index: int) -> None:
        self._member.heard_at = now
        self.told_commit = max(self.told_commit, commit_index)
        if self.primary != sender:
            self.primary = sender
            self._target = self.told_commit
            self._target_at = now

    def _refuse(self, message: Append) -> None:
        """Refuse, and report where the logs may agree: at the last entry here whose epoch is not above that of the
        primary's entry (§5.3).
        """
        member, log = self._member, self._member.log
        hint = log.agreement(min(message.prev_index, log.last_index), message.prev_epoch)
        member.send(
            self.primary,
            AppendReply(
                epoch=member.epoch,
                round=message.round,
                accepted=False,
                match_index=self.match_index,
                received_index=self.verified_index,
                prev_index=message.prev_index,
                hint_index=hint,
                hint_epoch=log.epoch_at(hint) or 0,
                reason=f"its log ends at {member.position} and has no entry {message.prev_index} of epoch {message.prev_epoch}",
            ),
        )

    def _add(self, entries: tuple[Entry, ...]) -> bool:
        """Append the missing entries, after truncating entries that contradict them. Returns whether there were any."""
        member, log = self._member, self._member.log
        for skipped, entry in enumerate(entries):
            if entry.index <= log.last_index:
                if log.epoch_at(entry.index) == entry.epoch:
                    continue
                member.truncate(entry.index)
            added = entries[skipped:]
            for one in added:
                member.append(one)
            member.emit(StoreEntries(entry.index, added[-1].index))
            return True
        return False

    def _agree(self, now: float, index: int) -> None:
        """The log is the primary's up to `index`: commit up to the primary's commit index (§5.3, "min(leaderCommit,
        index of last new entry)").
        """
        self.verified_index = max(self.verified_index, index)
        self._member.commit_to(min(self.told_commit, self.verified_index))
        incoming = self._incoming
        if incoming is not None and not incoming.complete and incoming.index <= self._member.commit_index:
            self._incoming = None
            self._member.emit(LeaveSnapshot())
        self._judge(now)

    def _judge(self, now: float) -> None:
        """Decide whether this member is ready, and whether its store is whole.

        Under load the commit index grows while this member writes. So it is enough to reach the commit index from the
        beginning of the current attempt, if the attempt took no longer than `election_s` (the rounds of dissertation
        §4.2.1).
        """
        self._judge_store()
        member = self._member
        match = self.match_index
        if not self._told:
            pass
        elif match >= self.told_commit:
            self._ready = True
        elif self._ready:
            if self.told_commit - match > member.settings.ready_lag_batches:
                self._ready = False
                self._target, self._target_at = self.told_commit, now
        elif match >= self._target:
            self._ready = now - self._target_at <= member.settings.election_s
            self._target, self._target_at = self.told_commit, now

    def _judge_store(self) -> None:
        """Decide whether the store is whole."""
        member = self._member
        match = self.match_index
        if member.blank:
            if self._has_everything(match):
                member.make_whole()
        elif member.floor is not None and Position(member.log.epoch_at(match) or 0, match) >= member.floor:
            member.make_whole()

    def _has_everything(self, match: int) -> bool:
        """Whether a blank store has all that it may have acknowledged before it was lost.

        The primary has committed an entry of its own epoch, so all entries ever committed are below it (§5.4.2). What this
        store acknowledged in that epoch before it was lost still counts: the primary's Appends tell up to where. One of
        them is enough, because later commits count only what this store acknowledges now. Under load the newest commit
        index is always ahead of this store. So the goal is the one from when this store had caught up with the first one.
        """
        member = self._member
        if self._told and match >= max(self._goal, self._target) and member.log.epoch_at(self._goal) != member.epoch:
            self._goal = self.told_commit
        return match >= self._goal and member.log.epoch_at(self._goal) == member.epoch

    def _reply(self, round_number: int) -> None:
        member = self._member
        member.send(self.primary, AppendReply(member.epoch, round_number, True, self.match_index, self.verified_index))
