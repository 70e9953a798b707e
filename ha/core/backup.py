"""What a member does that is not the primary: it stores what the primary of its epoch sends, and says how far it has got.

A `Backup` lives for one epoch. Its life: it knows no primary (joining) until an Append of its epoch comes; it finds out with the
primary where their logs agree, takes what it lacks (catchup), and has it all (ready). When the link breaks, or nothing was heard
for `election_s`, the primary is forgotten, and so is the lease that made this member refuse other candidates (dissertation
§4.2.3, §6.2).

Invariants: `verified_index` is how far this log is known to be the primary's; only what is verified is committed (§5.3), and only
what is verified and on disk is acknowledged.
"""

from __future__ import annotations

from ha.core.effects import InstallSnapshot, LeaveSnapshot, MembershipChanged, State, StoreChunk, StoreEntries
from ha.core.member import Member
from ha.core.membership import Membership
from ha.core.messages import Append, AppendReply, Attest, Entry, Position, SnapshotChunk, SnapshotReply
from ha.core.snapshot import Incoming


class Backup:
    """The role of a backup in one epoch. `told_commit` is the highest commit index that the primary has spoken of."""

    __slots__ = (
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

    def __init__(self, member: Member) -> None:
        self._member = member
        self._ready = False
        self._target = 0
        self._target_at = 0.0
        self._told = False
        """Whether an Append has said how far is committed: a snapshot speaks of its own index, which may be an old one."""
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
        """Up to here the primary's log is on this member's disk."""
        return min(self._member.durable_index, self.verified_index)

    def tick(self, now: float) -> None:
        """Forget a primary that has been silent for too long."""
        if self.primary and not self.hears(now):
            self.forget()

    def forget(self) -> None:
        """There is no primary any more, as far as this member can tell."""
        self.primary = ""
        self._ready = False

    def append(self, now: float, sender: str, message: Append) -> None:
        """Batches, or a heartbeat (§5.3)."""
        self._told = True
        self._hear(now, sender, message.commit_index)
        member = self._member
        entries = message.entries
        if message.prev_index < member.commit_index:
            # What is committed is in every primary's log (§5.4.3): the logs agree up to there without a look.
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
        """The primary is in the midst of a large message. It is told, unasked, that this member lives."""
        self._member.heard_at = now
        self._reply(0)

    def stored(self, now: float) -> None:
        """More of the log is on disk."""
        if self.primary:
            self._judge(now)
            self._reply(0)

    def chunk(self, now: float, sender: str, chunk: SnapshotChunk) -> None:
        """A part of a snapshot (§7)."""
        self._hear(now, sender, chunk.index)
        member = self._member
        if chunk.index <= member.commit_index or member.log.epoch_at(chunk.index) == chunk.index_epoch:
            # The log itself reaches as far: keep it, and whatever follows (§7, receiver rule 6).
            self._agree(now, chunk.index)
            self._reply(0)
            return
        incoming = self._incoming
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
        """A primary that takes it for a witness. A log that is not here must not be attested."""
        self._hear(now, sender, message.commit_index)
        reason = "it is no witness: give every broker the same --ha-witness"
        self._member.send(sender, AppendReply(self._member.epoch, message.round, False, 0, 0, reason=reason))

    def chunk_stored(self, index: int) -> None:
        """The edge has written a chunk that was not the last: ask for the next."""
        incoming = self._incoming
        if incoming is None or incoming.index != index or incoming.complete:
            return
        incoming.next_offset += incoming.writing
        incoming.writing = 0
        if self.primary:
            self._member.send(self.primary, SnapshotReply(self._member.epoch, index, incoming.next_offset))

    def snapshot_stored(self, now: float, index: int, epoch: int, members: Membership) -> None:
        """The edge holds the whole snapshot, durably. One that is not wanted any more is ignored."""
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

    def snapshot_failed(self, index: int) -> None:
        """The edge found the snapshot damaged: begin again."""
        incoming = self._incoming
        if incoming is None or incoming.index != index:
            return
        self._incoming = None
        if self.primary:
            self._member.send(self.primary, SnapshotReply(self._member.epoch, index, 0))

    def hears(self, now: float) -> bool:
        """Whether a live primary was heard lately, so that nobody else need be elected (the lease)."""
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
        """Say where the logs may agree: at the last entry here whose epoch is not above that of the primary's entry (§5.3)."""
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
        """Append those that are not here yet, after truncating what contradicts them. Returns whether there were any."""
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
        """The log is the primary's up to `index`: commit as far as the primary says (§5.3, "min(leaderCommit, index of last new
        entry)").
        """
        self.verified_index = max(self.verified_index, index)
        self._member.commit_to(min(self.told_commit, self.verified_index))
        incoming = self._incoming
        if incoming is not None and not incoming.complete and incoming.index <= self._member.commit_index:
            self._incoming = None
            self._member.emit(LeaveSnapshot())
        self._judge(now)

    def _judge(self, now: float) -> None:
        """Decide on ready and on wholeness.

        Under load the commit index moves on while this member writes, so it is enough to reach what was committed when the
        current attempt began, if that attempt took no longer than `election_s` (the rounds of dissertation §4.2.1).
        """
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
        if member.blank:
            # An entry of the primary's own epoch is committed, so all that was ever committed before lies below it (§5.4.2). What
            # this store acknowledged in that epoch before it was lost counts at the primary, whose Appends say how far that goes.
            if self._told and match >= self.told_commit and member.log.epoch_at(self.told_commit) == member.epoch:
                member.make_whole()
        elif member.floor is not None and Position(member.log.epoch_at(match) or 0, match) >= member.floor:
            member.make_whole()

    def _reply(self, round_number: int) -> None:
        member = self._member
        member.send(self.primary, AppendReply(member.epoch, round_number, True, self.match_index, self.verified_index))
