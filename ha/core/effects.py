"""The effects with which the core instructs its edge.

The edge executes a list of effects in order, and begins each after the one before. "Save before send": `SaveHardState` is
complete and synced to disk before the next effect begins (§5, Figure 2: "updated on stable storage before responding to RPCs").
Entries need no such wait: nothing reports them as stored before the edge has called `Replica.stored`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from ha.core.membership import Membership
from ha.core.messages import Append, Attested, Message, SnapshotChunk


class State(StrEnum):
    """The state of a broker in its cluster, in Apache Qpid's words."""

    JOINING = "joining"
    """No live primary is known."""
    CATCHUP = "catchup"
    """A primary is known. Not all its committed batches are on this broker's disk."""
    READY = "ready"
    """All batches that the primary reported as committed are on this broker's disk, or nearly all
    (`ready_lag_batches`).
    """
    RECOVERING = "recovering"
    """Promoted; the first batch of the new epoch is not committed yet."""
    ACTIVE = "active"
    """The primary."""
    STANDALONE = "standalone"
    """The primary of a log that only this broker has."""


class SaveHardState(msgspec.Struct, frozen=True):
    """Write the epoch, the vote and, on a witness, what it attests, and sync them before anything else is done."""

    epoch: int
    voted_for: str | None
    attested: Attested | None = None


class StoreWhole(msgspec.Struct, frozen=True):
    """This store has caught up with a primary: record durably that it is no longer `blank` or below a `vote_floor`."""


class StoreEntries(msgspec.Struct, frozen=True):
    """Append these batches to the journal, and call `Replica.stored` when they are synced.

    On a backup they are the batches of the Append that was just stepped; on a primary, the batch that was just
    proposed.
    """

    first: int
    last: int


class TruncateLog(msgspec.Struct, frozen=True):
    """Remove this batch and all after it from the journal, before any StoreEntries that follows (§5.3)."""

    from_index: int


class Commit(msgspec.Struct, frozen=True):
    """All batches up to this index are committed: apply them, in order."""

    index: int


class Send(msgspec.Struct, frozen=True):
    """Send a message without additional bytes."""

    peer: str
    message: Message


class Strange(msgspec.Struct, frozen=True):
    """This member is the primary of another cluster, whose id is `cluster_id` ("": none yet): close the link to it."""

    peer: str
    cluster_id: str


class SendEntries(msgspec.Struct, frozen=True):
    """Send this Append with the bytes of its batches, from the cache or the journal, in order with everything else that
    is sent to this peer.
    """

    peer: str
    append: Append


class SendSnapshot(msgspec.Struct, frozen=True):
    """Send a chunk of the checkpoint of `index`, beginning at `offset`.

    If `index` is 0, or this checkpoint no longer exists: send the newest checkpoint from its beginning.
    """

    peer: str
    epoch: int
    index: int
    offset: int


class StoreChunk(msgspec.Struct, frozen=True):
    """Write the bytes of the SnapshotChunk that was just stepped at its offset (0: in a new file), then call
    `Replica.chunk_stored`.

    After the last chunk: sync, check the whole checkpoint, and call `Replica.snapshot_stored` instead. Call
    `chunk_refused` if the disk refuses either, and `snapshot_failed` if what has come is damaged. A chunk that was
    refused comes again.
    """

    chunk: SnapshotChunk


class LeaveSnapshot(msgspec.Struct, frozen=True):
    """The log has passed the snapshot whose chunks were stored: delete them. If more chunks arrive, they begin again."""


class InstallSnapshot(msgspec.Struct, frozen=True):
    """The received checkpoint replaces everything that was stored and applied: the log continues after `index` (§7)."""

    index: int
    epoch: int
    members: Membership


class StateChanged(msgspec.Struct, frozen=True):
    """`primary` is "" when none is known."""

    state: State
    epoch: int
    primary: str


class TermEnded(msgspec.Struct, frozen=True):
    """This member is no longer the primary, for this reason. `planned`: it has handed over or was removed."""

    reason: str
    planned: bool


class WritableChanged(msgspec.Struct, frozen=True):
    """Whether batches may be proposed: not before the primary is active, and not after its clients are quiet and it
    hands over.
    """

    writable: bool


class Quiesce(msgspec.Struct, frozen=True):
    """This primary will hand over: let its clients settle their messages, for at most `within_s` seconds. Call
    `Replica.quiesced` when no message of the clients waits for its commit or its answer.
    """

    within_s: float


class Resume(msgspec.Struct, frozen=True):
    """The handover for which the edge was asked to `Quiesce` was cancelled: serve the clients again."""


class ProposeMembers(msgspec.Struct, frozen=True):
    """Seal a batch with this membership (with a new cluster id if it has none), and call `Replica.propose` with it.

    Do this as soon as the list of effects is done, before any other proposal.
    """

    members: Membership


class MembershipChanged(msgspec.Struct, frozen=True):
    """These members are in force: keep links to them, and to no others."""

    members: Membership


class MembersCommitted(msgspec.Struct, frozen=True):
    """A witness, which has no log, learned that this membership is committed."""

    members: Membership


class PromotionEnded(msgspec.Struct, frozen=True):
    """A `Replica.promote` has ended. `reason` says why it was refused, or how it was won."""

    request_id: str
    won: bool
    reason: str


class TransferEnded(msgspec.Struct, frozen=True):
    """A `Replica.transfer`, or a backup's request for one, has ended at the primary that was asked to hand over."""

    candidate: str
    done: bool
    reason: str


class MembershipEnded(msgspec.Struct, frozen=True):
    """A `Replica.add_member` or `remove_member` has ended: `done` if it was committed, else `reason` says why not."""

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
