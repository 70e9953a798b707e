"""The role of the primary: it replicates, counts what a majority has, and notices when it is no longer the primary.

A `Primary` lives for one term. Its life: after its election it requests a first batch of its own epoch, which repeats
the membership. Until this batch is committed it is recovering and proposes nothing else, because only then does it know
what is committed (§5.4.2, §8). Then it is active: proposals are stored here and sent to every member at once, and are
committed when a majority has them on disk. The term ends when another epoch is seen, when no majority has answered for
`election_s` (check-quorum, dissertation §6.2), when it has handed over, or when it has been removed.

Invariants: a primary never truncates its own log. By counting it commits only entries of its own epoch (§5.4.2, Figure
8). Its own disk counts only as far as the journal has reported. There is one membership change at a time, and none
before an entry of its epoch is committed (dissertation §4.1 and the correction of 2015).
"""

from __future__ import annotations

from ha.core.effects import (
    MembershipEnded,
    ProposeMembers,
    Quiesce,
    Resume,
    SendEntries,
    SendSnapshot,
    State,
    StoreEntries,
    TermEnded,
    TransferEnded,
)
from ha.core.member import Member
from ha.core.membership import BadMembership, Change, Membership
from ha.core.messages import Append, AppendReply, Attest, Entry, SnapshotReply, TimeoutNow, TransferReply
from ha.core.progress import Pace, Progress
from ha.core.quorum import held_by_majority
from ha.core.witness import NO_CANDIDATE, Asking


class Handover:
    """A transfer in progress (dissertation §3.10). `asked`: the candidate itself asked for it. While the candidate is
    far behind, the primary continues to serve and waits until `level_by`. Then the clients are `quieting`. Once they
    are `quiet`, nothing more is proposed. The primary's own disk is then waited for until `own_disk_by`. `sent_at` is when
    the candidate was last told to ask for votes. From the first time on it has `patience_s`, and in any case until the
    `deadline`, `timeout_s` after it `began`.
    """

    __slots__ = (
        "asked",
        "began",
        "candidate",
        "deadline",
        "level_by",
        "own_disk_by",
        "patience_s",
        "quiet",
        "quieting",
        "sent_at",
        "timeout_s",
    )

    def __init__(self, candidate: str, now: float, timeout_s: float, asked: bool, patience_s: float | None) -> None:
        self.candidate = candidate
        self.began = now
        self.timeout_s = timeout_s
        self.patience_s = timeout_s if patience_s is None else patience_s
        self.level_by = now + timeout_s / 2
        self.deadline = self.own_disk_by = now + timeout_s
        self.asked = asked
        self.quieting = False
        self.quiet = False
        self.sent_at: float | None = None


class Primary:
    """The role of the primary in one epoch. `resigned` says why it must step down, or ""."""

    __slots__ = (
        "_asked_members",
        "_change",
        "_first_own",
        "_handover",
        "_heartbeat_at",
        "_member",
        "_round",
        "_round_at",
        "_when_active",
        "_witness",
        "active",
        "peers",
        "primary",
        "resigned",
    )

    def __init__(self, member: Member, now: float) -> None:
        self._member = member
        self._first_own = member.log.last_index + 1
        self._round = 0
        self._round_at = now
        self._heartbeat_at = now
        self._asked_members: Membership | None = None
        self._change: tuple[str, int] | None = None
        self._handover: Handover | None = None
        self._when_active = State.STANDALONE if member.settings.standalone else State.ACTIVE
        self.active = False
        self.primary = member.me
        self.resigned = ""
        self.peers: dict[str, Progress] = {}
        self._follow_members(now)

    @property
    def state(self) -> State:
        """recovering, active or standalone."""
        return self._when_active if self.active else State.RECOVERING

    @property
    def writable(self) -> bool:
        """Whether batches may be proposed."""
        return self.active and not (self._handover is not None and self._handover.quiet)

    def begin(self, now: float, members: Membership | None = None) -> None:
        """Begin the term: tell all members, and request the first batch of this epoch. With `members` a new lineage
        begins, with these members.
        """
        if members is None:
            self._heartbeat(now)
        self._ask_for(members or self._member.log.members)

    def end(self, reason: str) -> None:
        """End the term: end everything that waits for this primary."""
        if self._change is not None:
            self._member.emit(MembershipEnded(self._change[0], False, f"{reason}; ask the next primary what its members are"))
        handed_over = self._handover is not None and self._handover.sent_at is not None
        if self._handover is not None:
            self._member.emit(TransferEnded(self._handover.candidate, handed_over, reason))
        removed = self._member.me not in self._member.log.members.voters
        self._member.emit(TermEnded(reason, planned=handed_over or removed))

    def propose(self, now: float, nbytes: int, n_records: int, members: Membership | None) -> None:
        """Add a sealed batch to the log."""
        member = self._member
        if members is None:
            assert self.writable, "a batch was proposed while the primary takes none"
        else:
            assert self._asked_members == members.named(self._asked_members.cluster_id if self._asked_members else ""), (
                f"{members} was proposed where {self._asked_members} was asked for"
            )
            self._asked_members = None
        index = member.log.last_index + 1
        member.append(Entry(index, member.epoch, nbytes, members, n_records))
        if members is not None:
            if self._change is not None:
                self._change = (self._change[0], index)
            self._follow_members(now)
        member.emit(StoreEntries(index, index))
        for progress in self.peers.values():
            self._feed(progress, now)

    def stored(self, now: float) -> None:
        """More of the own log is on disk."""
        self._advance_commit(now)
        if self._witness is not None:
            self._ask_witness(now, self._witness)
        self._let_go(now)

    def append_reply(self, now: float, sender: str, reply: AppendReply) -> None:
        """A member reports its position."""
        progress = self.peers.get(sender)
        if progress is None:
            return
        progress.heard_at = now
        if progress.answered_round < reply.round <= self._round:
            progress.answered_round = reply.round
            if reply.round == self._round:
                progress.round_trip_s = now - self._round_at
        if reply.accepted:
            if progress.accepted(reply, self._member.log):
                self._advance_commit(now)
            if progress.next_index <= self._member.log.last_index:
                self._feed(progress, now)
            if self._witness is not None:
                self._ask_witness(now, self._witness)
            if self._handover is not None:
                self._quiesce()
                self._let_go(now)
            self._raise_learner(progress)
        elif progress.refused(reply, self._member.log, current=reply.round == self._round):
            self._probe(progress, now)

    def snapshot_reply(self, now: float, sender: str, reply: SnapshotReply) -> None:
        """A member wants more of a snapshot."""
        progress = self.peers.get(sender)
        if progress is None or progress.outgoing is None:
            return
        progress.heard_at = now
        outgoing = progress.outgoing
        if (reply.index, reply.next_offset) != (outgoing.index, outgoing.offset):
            outgoing.wanted(now, reply.index, reply.next_offset, self._round)
            self._member.emit(SendSnapshot(sender, self._member.epoch, reply.index, reply.next_offset))

    def tick(self, now: float) -> None:
        """Send heartbeats, repeat unanswered requests, and check whether a majority still answers."""
        if now >= self._heartbeat_at:
            self._heartbeat(now)
            self._let_go(now)
        handover = self._handover
        if handover is not None and not handover.quieting and now >= handover.level_by:
            self._call_off(self._distance(handover.candidate, handover.timeout_s / 2))
        elif handover is not None and now >= handover.deadline:
            member = self._member
            held_up = handover.sent_at is None and member.durable_index < member.log.last_index
            why = ": the disk of the primary has not taken its last batches (it may be full, or slow)" if held_up else ""
            self._call_off(f"{handover.candidate} has not taken over within {handover.deadline - handover.began:.3g} s{why}")
        if self._witness is not None:
            self._ask_witness(now, self._witness)
        self._check_quorum(now)

    def connected(self, now: float, peer: str) -> None:
        """A link has come up."""
        progress = self.peers.get(peer)
        if progress is not None:
            progress.link(connected=True)
            self._probe(progress, now)

    def disconnected(self, peer: str) -> None:
        """A link has broken."""
        progress = self.peers.get(peer)
        if progress is not None:
            progress.link(connected=False)
        if self._handover is not None and self._handover.candidate == peer:
            self._call_off(f"the link to {peer} broke")

    def transfer(
        self, now: float, candidate: str, *, asked: bool, patience_s: float | None = None, within_s: float | None = None
    ) -> None:
        """Hand over to a backup (dissertation §3.10): let the clients become quiet, accept no more proposals, wait
        until the backup has everything, and let it ask for votes.
        """
        if self._handover is not None and self._handover.candidate == candidate:
            return
        obstacle, later = self._obstacle_to(candidate)
        if obstacle:
            self._end_transfer(candidate, obstacle, asked=asked, later=later)
            return
        timeout_s = self._member.settings.transfer_timeout_s if within_s is None else within_s
        self._handover = Handover(candidate, now, timeout_s, asked, patience_s)
        self._quiesce()

    def handover_refused(self, candidate: str, reason: str) -> None:
        """The candidate was told to ask for votes, and says why it must not. Members of older releases say nothing."""
        handover = self._handover
        if handover is not None and handover.candidate == candidate and handover.sent_at is not None:
            self._call_off(f"{candidate} cannot take over: {reason}")

    def _quiesce(self) -> None:
        """Let the clients become quiet, once the candidate is so near that it can catch up while they wait."""
        handover = self._handover
        if handover is None or handover.quieting or self._lag(handover.candidate) > self._member.settings.ready_lag_batches:
            return
        handover.quieting = True
        self._member.emit(Quiesce(handover.timeout_s / 2))

    def _lag(self, candidate: str) -> int:
        return self._member.log.last_index - self.peers[candidate].match_index

    def _distance(self, candidate: str, within_s: float) -> str:
        log = self._member.log
        left = log.bytes_between(self.peers[candidate].match_index, log.last_index)
        return f"{candidate} catches up, and is {self._lag(candidate)} batches ({left} bytes) behind after {within_s:g} s"

    def quiesced(self, now: float) -> None:
        """The clients are quiet, and the edge proposes nothing more."""
        if self._handover is not None:
            self._handover.quiet = True
            self._handover.own_disk_by = (now + self._handover.deadline) / 2
            self._let_go(now)

    def change_members(self, request_id: str, address: str, change: Change) -> None:
        """Add or remove a member (dissertation §4.1, §4.2)."""
        reason = ""
        if not self.active:
            reason = "the primary has not committed a batch of its own epoch yet; try again"
        elif self._handover is not None:
            reason = f"the primary is handing over to {self._handover.candidate}"
        elif self._changing:
            reason = "another change of members is not committed yet; try again"
        else:
            try:
                self._ask_for(self._member.log.members.changed(change, address))
            except BadMembership as error:
                reason = str(error)
        if reason:
            self._member.emit(MembershipEnded(request_id, False, reason))
        else:
            self._change = (request_id, 0)

    @property
    def _changing(self) -> bool:
        return self._asked_members is not None or self._member.log.members_index > self._member.commit_index

    def _ask_for(self, members: Membership) -> None:
        self._asked_members = members
        self._member.emit(ProposeMembers(members))

    def _follow_members(self, now: float) -> None:
        """Keep a progress for each other member in force."""
        member = self._member
        others = [address for address in member.log.members.addresses if address != member.me]
        next_index = member.log.last_index + 1
        witness = member.log.members.witness
        self.peers = {
            address: self.peers.get(address)
            or (Asking if address == witness else Progress)(address, next_index, now, address in member.connected)
            for address in others
        }
        asked = self.peers.get(witness)
        self._witness = asked if isinstance(asked, Asking) else None

    def _feed(self, progress: Progress, now: float) -> None:
        """Send the available batches as far as the limits allow, without waiting for answers (dissertation §10.2.1)."""
        if isinstance(progress, Asking):
            return  # the witness is asked in `_ask_witness`: only if needed, and only about entries that are on this disk alone
        member, log, settings = self._member, self._member.log, self._member.settings
        while progress.next_index <= log.last_index and progress.has_room(log, settings):
            prev_index = progress.next_index - 1
            prev_epoch = log.epoch_at(prev_index)
            if prev_epoch is None:
                self._send_snapshot(progress, now)
                return
            last = log.last_within(prev_index, settings.max_append_bytes)
            first, commit = prev_index + 1, member.commit_index
            append = Append(member.epoch, 0, prev_index, prev_epoch, first, last, commit, cluster_id=member.claimed_id)
            progress.next_index = last + 1
            member.emit(SendEntries(progress.address, append))

    def _heartbeat(self, now: float) -> None:
        self._round += 1
        self._round_at = now
        self._heartbeat_at = now + self._member.settings.heartbeat_s
        for progress in self.peers.values():
            if progress.connected:
                self._probe(progress, now)
                self._repeat_snapshot(progress, now)

    def _probe(self, progress: Progress, now: float) -> None:
        """Send an empty Append after the last batch sent. It shows that the primary lives and what is committed, and
        asks whether the logs agree so far.
        """
        member = self._member
        if isinstance(progress, Asking):
            self._send_attest(progress, progress.question(member, self.peers, now, again=True), self._round)
            return
        prev_index = 0 if progress.pace is Pace.SNAPSHOT else progress.next_index - 1
        prev_epoch = member.log.epoch_at(prev_index)
        if prev_epoch is None:
            if progress.pace is not Pace.SNAPSHOT:
                self._send_snapshot(progress, now)
            prev_index = prev_epoch = 0  # on index 0 all logs agree
        first, commit = prev_index + 1, member.commit_index
        append = Append(
            member.epoch, self._round, prev_index, prev_epoch, first, prev_index, commit, cluster_id=member.claimed_id
        )
        member.send(progress.address, append)

    def _ask_witness(self, now: float, witness: Asking) -> None:
        """Ask the witness to attest what is on this disk, if that is needed."""
        if witness.connected:
            index = witness.question(self._member, self.peers, now, again=False)
            if index:
                self._send_attest(witness, index, 0)

    def _send_attest(self, witness: Asking, index: int, round_number: int) -> None:
        member = self._member
        members_index, members = member.log.membership_at(index or member.log.last_index)
        attest = Attest(member.epoch, round_number, index, members, members_index, member.commit_index)
        member.send(witness.address, attest)

    def _send_snapshot(self, progress: Progress, now: float) -> None:
        progress.send_snapshot(now, self._round)
        self._member.emit(SendSnapshot(progress.address, self._member.epoch, 0, 0))

    def _repeat_snapshot(self, progress: Progress, now: float) -> None:
        """Repeat an unanswered request, but not while it may be on its way: links keep their order, so nothing is lost before a
        heartbeat that was sent after it has been answered."""
        outgoing = progress.outgoing
        if outgoing is None:
            return
        if progress.answered_round <= outgoing.round:
            outgoing.waits_since = now
        elif now - outgoing.waits_since >= self._member.settings.election_s:
            outgoing.asked(now, self._round)
            self._member.emit(SendSnapshot(progress.address, self._member.epoch, outgoing.index, outgoing.offset))

    def _advance_commit(self, now: float) -> None:
        """Commit the entries that a majority of the voters in force has on disk, if they are of this epoch (§5.4.2)."""
        member = self._member
        if member.commit_index == member.log.last_index:
            return
        index = held_by_majority(
            [member.durable_index if voter == member.me else self.peers[voter].match_index for voter in member.log.members.voters]
        )
        if index <= member.commit_index or member.log.epoch_at(index) != member.epoch:
            return
        member.commit_to(index)
        if not self.active:
            self.active = True
            member.make_whole()
        if self._change is not None and 0 < self._change[1] <= index:
            member.emit(MembershipEnded(self._change[0], True, "committed"))
            self._change = None
        if member.me not in member.log.members.voters and member.log.members_index <= index:
            self._heartbeat(now)  # tells the other members about the commit
            learns = member.me in member.log.members.learners
            self.resigned = f"{member.me} {'is a learner now' if learns else 'has been removed from the cluster'}"

    def _raise_learner(self, progress: Progress) -> None:
        """Make a learner that has caught up a voter (dissertation §4.2.1). While it gets a snapshot it has not, however short
        the log is.
        """
        member = self._member
        members, settings = member.log.members, member.settings
        learns = progress.address in members.learners and progress.address not in members.standby
        if not learns or progress.pace is not Pace.REPLICATE:
            return
        lacks = member.commit_index - progress.match_index
        lacks_bytes = member.log.bytes_between(progress.match_index, member.commit_index)
        caught_up = lacks <= settings.ready_lag_batches and lacks_bytes <= settings.max_inflight_bytes
        if caught_up and self.active and not (self._handover or self._changing):
            self._ask_for(members.with_voter(progress.address))

    def _check_quorum(self, now: float) -> None:
        """Step down if no majority answers (dissertation §6.2)."""
        member = self._member
        voters = member.log.members.voters
        election_s = member.settings.election_s
        heard = sum(voter == member.me or now - self.peers[voter].heard_at <= election_s for voter in voters)
        if 2 * heard <= len(voters):
            self.resigned = f"{member.me} heard from {heard} of {len(voters)} members only within {election_s:g} s"

    def _obstacle_to(self, candidate: str) -> tuple[str, bool]:
        """Why this primary cannot hand over to this member, or ""; and whether the reason will pass."""
        member = self._member
        progress = self.peers.get(candidate)
        if not self.active:
            return "the primary has not committed a batch of its own epoch yet; try again", True
        if self._handover is not None:
            return f"the primary is handing over to {self._handover.candidate} already", True
        if self._changing:
            return "a change of members is not committed yet; try again", True
        if progress is None or candidate not in member.log.members.voters:
            return f"{candidate} is not another voting member of this cluster", False
        if candidate == member.log.members.witness:
            return f"{candidate} {NO_CANDIDATE}", False
        if not progress.connected:
            return f"{candidate} is not connected to the primary", False
        return "", False

    def _let_go(self, now: float) -> None:
        """When the candidate has everything, tell it to ask for votes now; repeat this with every heartbeat.

        Everything must also be committed, and on this disk, so that it is applied here and every client has its answer. A
        disk that takes nothing (it is full, or hangs) does not keep the primary here: what is committed is on others.
        """
        handover, member = self._handover, self._member
        if handover is None or not handover.quiet:
            return
        held = min(self.peers[handover.candidate].match_index, member.commit_index)
        if now < handover.own_disk_by:
            held = min(held, member.durable_index)
        if held < member.log.last_index:
            return
        if handover.sent_at is None:
            handover.deadline = min(handover.deadline, now + handover.patience_s)
        if handover.sent_at is None or now - handover.sent_at >= self._member.settings.heartbeat_s:
            handover.sent_at = now
            self._member.send(handover.candidate, TimeoutNow(self._member.epoch))

    def _call_off(self, reason: str) -> None:
        assert self._handover is not None
        handover, self._handover = self._handover, None
        if handover.quieting:
            self._member.emit(Resume())
        self._end_transfer(handover.candidate, f"the handover was cancelled: {reason}", asked=handover.asked)

    def _end_transfer(self, candidate: str, reason: str, *, asked: bool, later: bool = False) -> None:
        self._member.emit(TransferEnded(candidate, False, reason))
        if asked:
            self._member.send(candidate, TransferReply(self._member.epoch, reason, later))
