"""Raft's promises, checked at every member as it carries out its effects.

Each member has a shadow of what its disk must have: its entries, how far they are synced, its vote, and what it has
told others to be safe. A shadow outlives its process. When the member comes back, its store is compared with the
shadow. All shadows together give the promises between members.

What is checked (Ongaro and Ousterhout, Figure 3, and its assumptions): a member gives one vote in an epoch, saves it
first, and votes for no log older than its own. An epoch has one primary. It was asked to campaign, its log has all
committed batches, and it serves only when a batch of its own epoch is committed. The same index and epoch is the same
batch after the same batches. A primary commits batches of its own epoch that a majority of its voters has on disk;
other members commit nothing more. Committed batches are not truncated. Acknowledged batches exist after a restart.
There is one change of the members at a time, by one member. What a witness attests is on its primary's disk at that
time, is not taken back, and counts only for commits of its epoch.

A campaign by force (`qpid-ha bootstrap --force`) counts the votes of blank stores like any others: the operator has
given up what the silent members may have.

Also checked is what a store must know about itself (docs/adr/0004): after damage, what it has lost; after a crash
alone, that nothing is lost. A store that lacks something gives no vote that counts for a log that may lack it too. It
is not a candidate, and counts as whole again only when it has what it lacked. A primary is elected by votes that were
given, and by those that count.

Invariant: a shadow never claims more than the member's own effects did. So a check that trusts it assumes no more than
Raft does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ha.core.membership import Membership
from ha.core.messages import Position


class Stored(Protocol):
    """What a store has come back with (ha.core.log.Log)."""

    base_index: int
    last_index: int
    last_epoch: int

    @property
    def members(self) -> Membership:
        """Those in force."""

    @property
    def members_index(self) -> int:
        """Since when."""

    def epoch_at(self, index: int) -> int | None:
        """The epoch of this entry."""


@dataclass(slots=True)
class StoredEntry:
    """A batch that goes to a journal."""

    index: int
    epoch: int
    data: bytes
    members: Membership | None = None


@dataclass(slots=True)
class Shadow:
    """What one member's disk must hold, and what it is doing."""

    epochs: dict[int, int] = field(default_factory=lambda: {0: 0})
    base: int = 0
    last: int = 0
    durable: int = 0
    commit: int = 0
    promised: Position = field(default_factory=lambda: Position(0, 0))
    saved: tuple[int, str | None] = (0, None)
    votes: dict[int, str] = field(default_factory=dict)
    asked_for: dict[str, Position] = field(default_factory=dict)
    asked: int = 0
    forced: bool = False
    let_go: bool = False
    term: int = 0
    decayed: bool = False
    members: tuple[int, Membership | None] = (0, None)
    blank: bool = True
    witness: bool = False
    """Whether it is a witness: what it attests is its `base`, and it holds what comes before that in the same epoch."""
    floor: Position | None = None
    lost: Shadow | None = None
    """What the disk held before it was damaged or replaced, until the store is whole again."""

    @property
    def end(self) -> Position:
        """The end of the log, synced or not."""
        return Position(self.epochs.get(self.last, 0), self.last)

    def holds(self, index: int, epoch: int) -> bool:
        """Whether this log has that entry, be it in its snapshot."""
        return index <= self.base or self.epochs.get(index) == epoch

    def before_damage(self) -> Shadow:
        """What the disk held when nothing of it was lost yet."""
        return self if self.lost is None or self.lost.durable < self.durable else self.lost


class Consensus:
    """See the module. What is wrong is added to `faults`, in sentences."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        self.shadows: dict[str, Shadow] = {}
        self.primaries: dict[int, str] = {}
        self._elected: dict[int, Shadow] = {}
        self.commit = 0
        self.committed: dict[int, int] = {0: 0}
        self._batches: dict[tuple[int, int], tuple[bytes, int | None]] = {}
        self._holders: dict[tuple[int, int], set[str]] = {}
        self._memberships: dict[tuple[int, int], Membership] = {}
        self._given: dict[tuple[int, str], dict[str, bool]] = {}
        """By epoch and candidate, who has given it a vote, and whether that counts only if all grant."""
        self._forced: set[tuple[int, str]] = set()
        """Epochs and candidates of campaigns in which an operator has given up the members that are silent."""
        self._first_of: dict[int, int] = {}
        """By epoch, its first committed batch."""

    def of(self, me: str) -> Shadow:
        """The shadow of this member."""
        found = self.shadows.get(me)
        if found is None:
            found = self.shadows[me] = Shadow()
        return found

    # ---- life of a store

    def wiped(self, me: str) -> None:
        """The member's disk is replaced by an empty one."""
        self.shadows[me] = Shadow(decayed=True, lost=self.of(me).before_damage())

    def decayed(self, me: str) -> None:
        """Something on the member's disk was altered or lost at rest: what it promised may be gone."""
        self.of(me).decayed = True

    def started(
        self, me: str, log: Stored, epoch: int, voted_for: str | None, *, blank: bool = False, floor: Position | None = None
    ) -> None:
        """A process has read its store."""
        was = self.of(me)
        end = Position(log.last_epoch, log.last_index)
        known, promised = max(end, floor or end), was.promised
        if not blank and (known < promised or (floor is None and log.epoch_at(promised.index) not in (promised.epoch, None))):
            self.faults.append(f"durability: {me} had acknowledged ({promised}), and its store came back with ({known})")
        if epoch < was.saved[0] or (epoch == was.saved[0] and was.saved[1] not in (None, voted_for)):
            self.faults.append(
                f"durability: {me} had saved epoch {was.saved[0]} and vote {was.saved[1]}, and came back with epoch {epoch} "
                f"and vote {voted_for}"
            )
        if not was.decayed and ((blank and not was.blank) or (floor is not None and was.floor is None and not was.blank)):
            self.faults.append(f"durability: {me} came back {'blank' if blank else 'damaged'}, and nothing had damaged its disk")
        now = self.shadows[me] = Shadow(base=log.base_index, last=log.last_index, durable=log.last_index, commit=log.base_index)
        now.blank, now.floor = blank, floor
        if blank or floor is not None:
            now.lost = was.before_damage() if was.decayed else was.lost
        for index in range(log.base_index, log.last_index + 1):
            now.epochs[index] = log.epoch_at(index) or 0
            self._holders.setdefault((index, now.epochs[index]), set()).add(me)
        now.votes = was.votes
        now.saved = (epoch, voted_for)
        now.promised = min(was.promised, end)
        now.members = (log.members_index, log.members)

    def attested(self, me: str, epoch: int, index: int, primary: str) -> None:
        """A witness has saved what it attests, perhaps once more: the log of that primary, in its epoch, up to there."""
        shadow, position = self.of(me), Position(epoch, index)
        if position == shadow.end:
            return
        if position < shadow.end:
            self.faults.append(f"witness: {me} attests ({position}), and has attested ({shadow.end})")
        if not shadow.witness:
            self.faults.append(f"witness: {me} attests ({position}), and is not a witness")
        if primary not in self._holders.get((index, epoch), ()) or self.primaries.get(epoch) != primary:
            self.faults.append(f"witness: {me} attests ({position}) of {primary}, which does not have it on disk as its primary")
        shadow.epochs = {index: epoch}
        shadow.base = shadow.last = shadow.durable = index
        self._holders.setdefault((index, epoch), set()).add(me)

    def _has(self, me: str, index: int, epoch: int) -> bool:
        """Whether this member's disk has a batch that a primary of this epoch has made."""
        shadow = self.of(me)
        if shadow.witness:
            return index <= shadow.base and shadow.epochs.get(shadow.base) == epoch
        return me in self._holders.get((index, epoch), ()) or index <= shadow.base

    def counts_as_whole(self, me: str) -> None:
        """The member is about to note that its store is neither blank nor below a floor any more."""
        shadow = self.of(me)
        epoch = shadow.saved[0]
        first = self._first_of.get(epoch)
        if shadow.blank and (first is None or not shadow.holds(first, epoch) or not (shadow.term or first <= shadow.durable)):
            self.faults.append(
                f"whole: {me}, whose store was blank, counts as whole, and no committed batch of epoch {epoch} is on its disk"
            )
        lost = shadow.lost
        if lost is not None:
            index = min(self.commit, lost.durable)
            while not lost.holds(index, self.committed[index]):
                index -= 1
            if not shadow.holds(index, self.committed[index]) or not (shadow.term or index <= shadow.durable):
                self.faults.append(
                    f"whole: {me} counts as whole without batch {index}, which is committed, and which its store has lost"
                )

    def noted_whole(self, me: str) -> None:
        """It has noted it."""
        shadow = self.of(me)
        shadow.blank, shadow.floor, shadow.lost = False, None, None

    # ---- votes

    def saved(self, me: str, epoch: int, voted_for: str | None) -> None:
        """Epoch and vote are on disk."""
        shadow = self.of(me)
        if epoch < shadow.saved[0]:
            self.faults.append(f"epochs: {me} went from epoch {shadow.saved[0]} back to epoch {epoch}")
        if voted_for == me and shadow.saved != (epoch, me) and not shadow.asked and not shadow.let_go:
            self.faults.append(f"asked for: {me} stands for election in epoch {epoch}, and nobody had asked it to")
        if epoch == shadow.saved[0] and voted_for is None and shadow.saved[1] is not None:
            self.faults.append(f"votes: {me} forgets that it has voted for {shadow.saved[1]} in epoch {epoch}")
        if voted_for == me and shadow.floor is not None and shadow.end < shadow.floor:
            self.faults.append(
                f"votes: {me} stands for election with a log that ends at ({shadow.end}), and once held ({shadow.floor})"
            )
        shadow.saved = (epoch, voted_for)
        if voted_for is not None:
            self._vote(me, shadow, epoch, voted_for)
        if voted_for == me:
            shadow.let_go = False
            if shadow.forced:
                self._forced.add((epoch, me))

    def vote_wanted(self, me: str, candidate: str, end: Position) -> None:
        """A candidate whose log ends there asks for this member's vote, or whether it would get it."""
        self.of(me).asked_for[candidate] = end

    def would_grant(self, me: str, candidate: str, *, provisional: bool) -> None:
        """The member tells a candidate that it has its vote, or would have it."""
        shadow = self.of(me)
        theirs = shadow.asked_for.get(candidate)
        if shadow.floor is not None and theirs is not None and theirs < shadow.floor:
            self.faults.append(
                f"votes: {me}, whose store once held ({shadow.floor}), votes for {candidate}, whose log ends at ({theirs})"
            )
        if shadow.blank and not provisional:
            self.faults.append(
                f"votes: {me}, whose store is blank, gives {candidate} a vote that counts, be others silent or not"
            )

    def granted(self, me: str, epoch: int, candidate: str, *, provisional: bool = False) -> None:
        """The member tells a candidate that it has its vote."""
        self.would_grant(me, candidate, provisional=provisional)
        given = self._given.setdefault((epoch, candidate), {})
        given[me] = given.get(me, True) and provisional
        shadow = self.of(me)
        if shadow.saved != (epoch, candidate):
            self.faults.append(f"votes: {me} gives {candidate} its vote of epoch {epoch}, and has saved {shadow.saved}")
        theirs = shadow.asked_for.get(candidate)
        if theirs is not None and theirs < shadow.end:
            self.faults.append(
                f"votes: {me}, whose log ends at ({shadow.end}), votes for {candidate}, whose log ends at ({theirs})"
            )
        self._vote(me, shadow, epoch, candidate)

    def _vote(self, me: str, shadow: Shadow, epoch: int, candidate: str) -> None:
        before = shadow.votes.setdefault(epoch, candidate)
        if before != candidate:
            self.faults.append(f"votes: {me} votes for {candidate} in epoch {epoch}, in which it has voted for {before}")

    # ---- promotions

    def asked(self, me: str) -> None:
        """Somebody asks the member to become primary."""
        self.of(me).asked += 1

    def answered(self, me: str) -> None:
        """A promotion has come to its end."""
        shadow = self.of(me)
        shadow.asked -= 1
        shadow.forced = False

    def forced(self, me: str) -> None:
        """An operator has the member begin a new cluster, without those who are silent (`qpid-ha bootstrap --force`)."""
        self.of(me).forced = True

    def let_go(self, me: str) -> None:
        """The primary has named this member as its successor, or a member with an older log has asked it to stand first."""
        self.of(me).let_go = True

    def announces(self, me: str, epoch: int, *, primary: bool, active: bool, voters: Collection[str] = ()) -> None:
        """The member's role changes. `voters` are those in force at it, if they are to be counted."""
        self.of(me).term = epoch if primary else 0
        if primary and self.of(me).witness:
            self.faults.append(f"witness: {me} is primary of epoch {epoch}, and stores nothing that it could serve")
        if primary and voters and epoch not in self.primaries:
            self._count_votes(me, epoch, voters)
        if primary:
            self._leads(me, epoch)
        if active:
            self._serves(me, epoch)

    def _leads(self, me: str, epoch: int) -> None:
        first = self.primaries.get(epoch)
        if first is None:
            shadow = self.of(me)
            self.primaries[epoch] = me
            self._elected[epoch] = Shadow(epochs=dict(shadow.epochs), base=shadow.base)
            # Votes may reach a candidate when a later primary has committed already: it will not commit anything.
            if epoch == max(self.primaries) and not shadow.holds(self.commit, self.committed[self.commit]):
                self.faults.append(
                    f"completeness: {me} is primary of epoch {epoch}, and its log lacks batch {self.commit} of epoch "
                    f"{self.committed[self.commit]}, which is committed"
                )
        elif first != me:
            self.faults.append(f"one primary: epoch {epoch} has two, {first} and {me}")

    def _count_votes(self, me: str, epoch: int, voters: Collection[str]) -> None:
        """Who has become primary was given a majority of votes that count, or everybody's. By force, any votes count."""
        shadow = self.of(me)
        given = {**self._given.get((epoch, me), {}), me: shadow.blank}
        granted = [voter for voter in voters if voter in given]
        full = len(granted) if (epoch, me) in self._forced else sum(not given[voter] for voter in granted)
        if 2 * full <= len(voters) and len(granted) < len(voters):
            self.faults.append(
                f"votes: {me} is primary of epoch {epoch} by {full} votes that count and {len(granted) - full} that count only "
                f"if all grant, of {len(voters)} voters"
            )

    def _serves(self, me: str, epoch: int) -> None:
        shadow = self.of(me)
        if shadow.epochs.get(shadow.commit) != epoch:
            self.faults.append(f"term: {me} is active in epoch {epoch} before a batch of that epoch is committed")

    # ---- the log

    def stored(self, me: str, entries: list[StoredEntry]) -> None:
        """Batches go to the journal."""
        shadow = self.of(me)
        if shadow.witness:
            self.faults.append(f"witness: {me} stores messages, and is a witness")
        for entry in entries:
            index, epoch = entry.index, entry.epoch
            if index != shadow.last + 1:
                self.faults.append(f"log: {me} stores batch {index} after batch {shadow.last}")
            before = shadow.epochs.get(index - 1)
            known = self._batches.setdefault((index, epoch), (entry.data, before))
            if known[0] != entry.data:
                self.faults.append(f"log matching: {me} holds another batch {index} of epoch {epoch} than others do")
            elif before is not None and known[1] not in (before, None):
                self.faults.append(
                    f"log matching: batch {index} of epoch {epoch} follows epoch {before} at {me}, and epoch {known[1]} elsewhere"
                )
            shadow.epochs[index] = epoch
            shadow.last = index
            if entry.members is not None:
                if shadow.term:
                    self._judge_change(me, shadow, index, entry.members)
                shadow.members = (index, entry.members)
                self._memberships[index, epoch] = entry.members

    def _judge_change(self, me: str, shadow: Shadow, index: int, members: Membership) -> None:
        before, old = shadow.members
        if old is None or members.named("") == old.named(""):
            return
        if before > shadow.commit:
            self.faults.append(
                f"members: {me} changes the members in batch {index}, and the change in batch {before} is not committed"
            )
        moved = {address for address in {*old.addresses, *members.addresses} if old.role(address) != members.role(address)}
        if len(moved) > 1:
            self.faults.append(f"members: batch {index} changes {', '.join(sorted(moved))} in one step")
        raised = moved & set(old.standby) & set(members.voters)
        if raised:
            self.faults.append(f"members: batch {index} lets {', '.join(sorted(raised))} vote, which is to stay a learner")

    def _members_in(self, shadow: Shadow) -> tuple[int, Membership | None]:
        """The newest change of the members in this log or its snapshot, and where; (0, None) when none was ever seen."""
        found: tuple[int, Membership | None] = (0, None)
        for (index, epoch), members in self._memberships.items():
            if index > found[0] and (self.committed if index <= shadow.base else shadow.epochs).get(index) == epoch:
                found = index, members
        return found

    def synced(self, me: str, index: int, epoch: int) -> None:
        """The journal says that all up to this entry is on disk."""
        shadow = self.of(me)
        if shadow.epochs.get(index) == epoch:
            for each in range(shadow.durable + 1, index + 1):
                self._holders.setdefault((each, shadow.epochs.get(each, 0)), set()).add(me)
            shadow.durable = max(shadow.durable, index)

    def truncated(self, me: str, from_index: int) -> list[tuple[int, int]]:
        """The tail from there on is taken off. Returns the index and epoch of each batch of it."""
        shadow = self.of(me)
        gone: list[tuple[int, int]] = []
        for index in range(from_index, shadow.last + 1):
            epoch = shadow.epochs.pop(index, None)
            if epoch is not None:
                gone.append((index, epoch))
            if epoch is not None and self.committed.get(index) == epoch:
                self.faults.append(
                    f"committed changed: {me} takes batch {index} of epoch {epoch} off its log, which is committed"
                )
        shadow.last = from_index - 1
        shadow.durable = min(shadow.durable, shadow.last)
        if shadow.promised.index >= from_index:
            shadow.promised = shadow.end
        if shadow.members[0] >= from_index:
            shadow.members = self._members_in(shadow)
        return gone

    def installed(self, me: str, index: int, epoch: int) -> list[tuple[int, int]]:
        """A snapshot takes the place of the log. Returns the index and epoch of the log's batches."""
        shadow = self.of(me)
        gone = [entry for entry in shadow.epochs.items() if entry[0] > shadow.base]
        if self.committed.get(index) != epoch:
            self.faults.append(f"commit: {me} installs a snapshot of batch {index} of epoch {epoch}, which nobody has committed")
        shadow.epochs = {index: epoch}
        shadow.base = shadow.last = shadow.durable = shadow.commit = index
        shadow.promised = Position(epoch, index)
        shadow.members = self._members_in(shadow)
        return gone

    def bytes_of(self, me: str, entries: Iterable[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        """Those of these batches, by index and epoch, that are known and that this member's log does not have any more."""
        epochs = self.of(me).epochs
        gone = (entry for entry in entries if epochs.get(entry[0]) != entry[1])
        return {entry: self._batches[entry][0] for entry in gone if entry in self._batches}

    def acknowledged(self, me: str, index: int) -> None:
        """The member tells its primary that it holds everything up to there on disk."""
        shadow = self.of(me)
        if index > shadow.durable:
            self.faults.append(f"durability: {me} acknowledges batch {index}, and its journal has synced {shadow.durable}")
        position = Position(shadow.epochs.get(index, 0), index)
        shadow.promised = max(shadow.promised, position)

    # ---- commits

    def commits(self, me: str, index: int, *, members: Membership) -> None:
        """The member says that all up to there is committed; `members` are those in force at it."""
        shadow = self.of(me)
        shadow.commit = max(shadow.commit, index)
        if not shadow.term:
            if index > self.commit:
                self.faults.append(
                    f"commit: {me} takes batch {index} as committed, and no primary has committed more than {self.commit}"
                )
            return
        epoch = shadow.epochs.get(index, 0)
        if epoch != shadow.term:
            self.faults.append(f"commit: {me} commits batch {index} of epoch {epoch} by counting, in epoch {shadow.term}")
        held = sorted(voter for voter in members.voters if self._has(voter, index, epoch))
        voters = len(members.voters)
        if not any(voter in members.stores for voter in held):
            self.faults.append(f"commit: {me} commits batch {index} of epoch {epoch}, which no store has on disk")
        if 2 * len(held) <= voters:
            self.faults.append(
                f"commit: {me} commits batch {index} of epoch {epoch}, which {len(held)} of {voters} voters have on disk"
            )
        if me in held:
            shadow.promised = max(shadow.promised, Position(epoch, index))
        later = max(self.primaries)
        if later > shadow.term and not self._elected[later].holds(index, epoch):
            # What a majority had on disk before it voted for a later primary was in that one's log then.
            self.faults.append(
                f"completeness: {self.primaries[later]} became primary of epoch {later} without batch {index} of epoch "
                f"{epoch}, which {me} commits"
            )
        for each in range(self.commit + 1, index + 1):
            self.committed[each] = shadow.epochs.get(each, 0)
            self._first_of.setdefault(self.committed[each], each)
        self.commit = max(self.commit, index)
