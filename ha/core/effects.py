"""The effects with which the core instructs its edge.

The edge executes a list of effects in order, and begins each after the one before. "Save before send": `SaveHardState` is
complete and synced to disk before the next effect begins (§5, Figure 2: "updated on stable storage before responding to RPCs").
Entries need no such wait: nothing reports them as stored before the edge has called `Replica.stored`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ha.core.membership import Membership
from ha.core.messages import Append, Attested, Message, SnapshotChunk


class State(StrEnum):
    """The state of a broker in its cluster, in Apache Qpid's words."""

    JOINING = "joining"
    """No live primary is known."""
    CATCHUP = "catchup"
    """A primary is known; what it has committed is not all on this broker's disk."""
    READY = "ready"
    """All that the primary has said to be committed is on this broker's disk, or nearly so (`ready_lag_batches`)."""
    RECOVERING = "recovering"
    """Promoted; the first batch of the new epoch is not committed yet."""
    ACTIVE = "active"
    """The primary."""
    STANDALONE = "standalone"
    """The primary of a log that is this broker's alone."""


@dataclass(frozen=True, slots=True)
class SaveHardState:
    """Write epoch, vote and, on a witness, what it attests, and sync, before anything else is done."""

    epoch: int
    voted_for: str | None
    attested: Attested | None = None


@dataclass(frozen=True, slots=True)
class StoreWhole:
    """This store has caught up with a primary: note, synced, that it is neither `blank` nor below a `vote_floor` any more."""


@dataclass(frozen=True, slots=True)
class StoreEntries:
    """Append these batches to the journal and call `Replica.stored` when they are synced.

    On a backup they are those of the Append just stepped; on a primary the one just proposed.
    """

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Take this batch and all after it out of the journal, before any StoreEntries that follows (§5.3)."""

    from_index: int


@dataclass(frozen=True, slots=True)
class Commit:
    """All batches up to this index are committed: apply them, in order."""

    index: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message that needs no bytes beside it."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class Strange:
    """This member speaks as the primary of another cluster, whose id is `cluster_id` ("": none yet): close the link to it."""

    peer: str
    cluster_id: str


@dataclass(frozen=True, slots=True)
class SendEntries:
    """Send this Append with the bytes of its batches, from the cache or the journal, in the order of all that is sent to this
    peer.
    """

    peer: str
    append: Append


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """Send a chunk of the checkpoint of `index` from `offset` on.

    When `index` is 0, or that checkpoint is gone: the newest checkpoint from its beginning.
    """

    peer: str
    epoch: int
    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class StoreChunk:
    """Write the bytes of the SnapshotChunk just stepped at its offset (0: of a new file), then call `Replica.chunk_stored`.

    When it is the last: sync, check the whole checkpoint, and call `Replica.snapshot_stored` instead. `snapshot_failed` when
    either cannot be done.
    """

    chunk: SnapshotChunk


@dataclass(frozen=True, slots=True)
class LeaveSnapshot:
    """The log has overtaken the snapshot of which chunks were stored: remove them. Should more come, they begin anew."""


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """The checkpoint received replaces all that was stored and applied: the log goes on after `index` (§7)."""

    index: int
    epoch: int
    members: Membership


@dataclass(frozen=True, slots=True)
class StateChanged:
    """`primary` is "" when none is known."""

    state: State
    epoch: int
    primary: str


@dataclass(frozen=True, slots=True)
class TermEnded:
    """This member is no primary any more, for that reason; `planned` when it has handed over or was removed."""

    reason: str
    planned: bool


@dataclass(frozen=True, slots=True)
class WritableChanged:
    """Whether batches may be proposed: not before the primary is active, nor once its clients are quiet and it lets go."""

    writable: bool


@dataclass(frozen=True, slots=True)
class Quiesce:
    """This primary is to hand over: let its clients settle what they have, for at most `within_s` seconds, and call
    `Replica.quiesced` when nothing that they sent waits to be committed or to be answered.
    """

    within_s: float


@dataclass(frozen=True, slots=True)
class Resume:
    """The handover for which the edge was asked to `Quiesce` was called off: serve the clients again."""


@dataclass(frozen=True, slots=True)
class ProposeMembers:
    """Seal a batch that carries this membership (with a new cluster id if it has none) and call `Replica.propose` with it.

    To be done as soon as the list of effects is through, before any other proposal.
    """

    members: Membership


@dataclass(frozen=True, slots=True)
class MembershipChanged:
    """These members are in force: keep links to them, and only to them."""

    members: Membership


@dataclass(frozen=True, slots=True)
class MembersCommitted:
    """A witness, which has no log, was told that this membership is committed."""

    members: Membership


@dataclass(frozen=True, slots=True)
class PromotionEnded:
    """A `Replica.promote` has come to its end. `reason` says why it was refused, or how it was won."""

    request_id: str
    won: bool
    reason: str


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """A `Replica.transfer`, or a backup's request for one, has come to its end at the primary that was to hand over."""

    candidate: str
    done: bool
    reason: str


@dataclass(frozen=True, slots=True)
class MembershipEnded:
    """A `Replica.add_member` or `remove_member` has come to its end: `done` when committed, else `reason` says why not."""

    request_id: str
    done: bool
    reason: str


Effect: TypeAlias = (
    SaveHardState
    | StoreWhole
    | StoreEntries
    | TruncateLog
    | Commit
    | Send
    | Strange
    | SendEntries
    | SendSnapshot
    | StoreChunk
    | LeaveSnapshot
    | InstallSnapshot
    | StateChanged
    | TermEnded
    | WritableChanged
    | Quiesce
    | Resume
    | ProposeMembers
    | MembershipChanged
    | MembersCommitted
    | PromotionEnded
    | TransferEnded
    | MembershipEnded
)
