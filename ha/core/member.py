"""The state of every member, in any role (Raft, Figure 2): the persistent state, the commit index, and the list of
effects.

`Backup` and `Primary` work on one shared `Member`. Its methods change state and add effects together, so that neither
changes without the other: a new commit index is reported to the edge, and a new epoch or vote is saved.
"""

from __future__ import annotations

from ha.core.effects import Commit, Effect, MembershipChanged, SaveHardState, Send, StoreWhole, TruncateLog
from ha.core.log import Log
from ha.core.messages import Attested, Entry, Message, Position
from ha.core.settings import ReplicaSettings


class Member:
    """The state that outlives roles. `durable_index`: the journal is synced up to here; `connected`: the members that
    messages can reach; `cluster_id`: the cluster to which the store belongs permanently, that of the first membership
    that it knows to be committed; `halted`: why this member applies nothing more ("": it does); `heard_at`: when it
    last heard a primary or was one (None: not since its start); `attested`: the position that a witness has instead of
    a log.
    """

    __slots__ = (
        "_effects",
        "attested",
        "blank",
        "cluster_id",
        "commit_index",
        "connected",
        "durable_index",
        "epoch",
        "floor",
        "halted",
        "heard_at",
        "log",
        "me",
        "settings",
        "voted_for",
    )

    def __init__(self, me: str, settings: ReplicaSettings, log: Log, epoch: int, voted_for: str | None) -> None:
        self.me = me
        self.settings = settings
        self.log = log
        self.epoch = epoch
        self.voted_for = voted_for
        self.commit_index = log.base_index
        self.durable_index = log.last_index
        self.connected: set[str] = set()
        self.blank = False
        self.cluster_id = ""
        self.floor: Position | None = None
        self.halted = ""
        self.attested: Attested | None = None
        self.heard_at: float | None = None
        self._effects: list[Effect] = []

    def emit(self, effect: Effect) -> None:
        """Add an effect for the edge."""
        self._effects.append(effect)

    def take(self) -> list[Effect]:
        """Take the effects for the edge, in order."""
        taken = self._effects
        self._effects = []
        return taken

    def send(self, peer: str, message: Message) -> None:
        """Send a message without additional bytes."""
        self._effects.append(Send(peer, message))

    def save(self, epoch: int, voted_for: str | None) -> None:
        """Enter an epoch, or vote in it. This is synced before the following effects."""
        assert epoch >= self.epoch, f"epoch {epoch} cannot follow epoch {self.epoch}"
        self.epoch = epoch
        self.voted_for = voted_for
        self._effects.append(SaveHardState(epoch, voted_for, self.attested))

    def attest(self, attested: Attested) -> None:
        """As a witness, attest this. It is synced before the following effects."""
        before = self.log.members
        self.attested = attested
        self._effects.append(SaveHardState(self.epoch, self.voted_for, attested))
        self.log.restore(attested.index, attested.epoch, attested.members, attested.members_index)
        self.durable_index = attested.index
        if attested.members != before:
            self._effects.append(MembershipChanged(attested.members))

    def silence_s(self, now: float) -> float | None:
        """The seconds since a primary was last heard, or since this member was one; None: not since its start."""
        return None if self.heard_at is None else now - self.heard_at

    @property
    def position(self) -> Position:
        """The end of the log."""
        return Position(self.log.last_epoch, self.log.last_index)

    @property
    def claimed_id(self) -> str:
        """The id of the cluster for which this member acts: its own, or the one that its log names, committed or not."""
        return self.cluster_id or self.log.members.cluster_id

    def append(self, entry: Entry) -> None:
        """Append an entry to the log. A membership in it is in force at once."""
        self.log.append(entry)
        if entry.members is not None:
            self._effects.append(MembershipChanged(entry.members))

    def truncate(self, from_index: int) -> None:
        """Remove a divergent tail from the log (§5.3). Committed entries never diverge (§5.4.3)."""
        assert from_index > self.commit_index, f"entry {from_index} is committed ({self.commit_index}) and cannot be taken back"
        before = self.log.members
        self.log.truncate(from_index)
        self.durable_index = min(self.durable_index, from_index - 1)
        self._effects.append(TruncateLog(from_index))
        if self.log.members != before:
            self._effects.append(MembershipChanged(self.log.members))

    def stored(self, index: int, epoch: int) -> bool:
        """The journal is synced up to this entry. Returns whether this is new: the entry may have been truncated since."""
        if index <= self.durable_index or self.log.epoch_at(index) != epoch:
            return False
        self.durable_index = index
        return True

    def commit_to(self, index: int) -> bool:
        """Everything up to `index` is committed. Returns whether this is new."""
        if index <= self.commit_index:
            return False
        self.commit_index = index
        self.cluster_id = self.cluster_id or self.log.members_at(index).cluster_id
        self._effects.append(Commit(index))
        return True

    @property
    def is_only_store(self) -> bool:
        """Whether no other member stores the log."""
        members = self.log.members
        return {*members.addresses} - {members.witness} == {self.me}

    def make_whole(self) -> None:
        """This store has caught up: it may vote without restrictions and be a candidate again."""
        if self.blank or self.floor is not None:
            self.blank = False
            self.floor = None
            self._effects.append(StoreWhole())
