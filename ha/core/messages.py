"""The messages between the members of a cluster.

Every message has its sender's epoch. PreVote, Vote and Append have the id of the cluster for which the sender acts: ""
if it knows none, None from a release that does not send it. SnapshotChunk and Attest have it in their membership.
Refused requests are answered with a `reason` for people. The bytes of batches and snapshots travel beside an `Append`
or a `SnapshotChunk` and never enter the core. The receiving edge checks them, and fills `Append.entries` from their
headers before it steps the message.

On the wire, a message is the JSON object of its fields with its `kind` (see ha.amqp.replication_link). A release may
add fields that have a default: members of wire version 2 ignore fields that they do not know, and the fields in
`SINCE_WIRE_2` are not sent to a member of version 1. A new kind, or a field that changes the meaning of a message,
needs a new `versions.WIRE_VERSION`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from ha.core.membership import Membership

SINCE_WIRE_2 = ("cluster_id", "checkpoint", "hears", "end_index", "end_epoch", "stand", "later")
"""Fields of messages that release 0.1 does not have and does not accept."""


class Entry(msgspec.Struct, frozen=True):
    """One entry of the log, without its bytes: `nbytes` is the size of the sealed batch, `members` the membership in
    it, if any.
    """

    index: int
    epoch: int
    nbytes: int
    members: Membership | None = None
    n_records: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The end of a log. Compared as Raft does it, by epoch first (§5.4.1): the greater position is the newer log."""

    epoch: int
    index: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, index {self.index}"


@dataclass(frozen=True, slots=True)
class Attested:
    """The position on the disk of a witness (see `witness.py`): the log of `primary`, in its `epoch`, was on that
    broker's disk up to `index`. `members` were in force then, and are in the log at `members_index`.
    """

    epoch: int
    index: int
    primary: str
    members: Membership
    members_index: int


class PreVote(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """Asks whether the receiver would vote for the sender in a new epoch (dissertation §9.6). It changes nothing at the
    receiver. The answer repeats `campaign`.
    """

    epoch: int
    campaign: int
    last_index: int
    last_epoch: int
    cluster_id: str | None = None


class PreVoteReply(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """`epoch` is the voter's own, so that the candidate can choose one above all of them. `provisional`: see
    `election.py`.

    `hears`: the primary that the voter hears, or is ("": none). `end_index`, `end_epoch`: the end of its log (0: not
    sent).
    """

    epoch: int
    campaign: int
    granted: bool
    provisional: bool = False
    reason: str = ""
    hears: str = ""
    end_index: int = 0
    end_epoch: int = 0


class Vote(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """RequestVote (§5.2). `transfer`: the primary has asked for this election (dissertation §3.10, §4.2.3)."""

    epoch: int
    last_index: int
    last_epoch: int
    transfer: bool = False
    cluster_id: str | None = None


class VoteReply(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """`epoch` is the voter's own after its decision, `for_epoch` the requested one."""

    epoch: int
    for_epoch: int
    granted: bool
    provisional: bool = False
    reason: str = ""


class Append(msgspec.Struct, frozen=True, tag_field="kind", tag=True, omit_defaults=True):
    """AppendEntries (§5.3): the batches `first` .. `last`, which follow the entry `prev_index` of epoch `prev_epoch`.

    With `last == prev_index` there are no batches. This is a heartbeat, and at the same time the probe that finds where
    two logs agree. `round` numbers heartbeats from 1 on, and is 0 in an Append with batches. `entries` describes the
    batches at the receiver. It is empty, and so not sent, in an Append that `SendEntries` gives to the sending edge.
    """

    epoch: int
    round: int
    prev_index: int
    prev_epoch: int
    first: int
    last: int
    commit_index: int
    entries: tuple[Entry, ...] = ()
    cluster_id: str | None = None


class AppendReply(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """The position of a backup.

    `match_index`: the backup agrees with the primary up to here, on disk. `received_index`: the same, on disk or on its
    way there. If not `accepted`: the two logs do not agree at `prev_index`. The last place where they may agree is
    `hint_index` or, further back, the last entry of the primary whose epoch is at most `hint_epoch` (§5.3, "the
    follower can include the term of the conflicting entry"). `round` is that of the answered heartbeat, else 0.
    """

    epoch: int
    round: int
    accepted: bool
    match_index: int
    received_index: int
    prev_index: int = 0
    hint_index: int = 0
    hint_epoch: int = 0
    reason: str = ""


class SnapshotChunk(msgspec.Struct, frozen=True, tag_field="kind", tag=True, omit_defaults=True):
    """InstallSnapshot (§7): `nbytes` at `offset` of the checkpoint file of `total_bytes`, which has the state up to
    `index`.

    `index_epoch` is the epoch of the entry at `index`; `members` are those in force there. `checkpoint` is the checksum
    of the file: after a compaction there is another file of the same index, perhaps of the same length, with other
    places (0: not sent).
    """

    epoch: int
    index: int
    index_epoch: int
    members: Membership
    offset: int
    nbytes: int
    total_bytes: int
    checkpoint: int = 0


class Attest(msgspec.Struct, frozen=True, tag_field="kind", tag=True, omit_defaults=True):
    """Primary to witness: a heartbeat. With an `index`: attest that my log of this epoch is on my disk up to there.

    `members` are in force, and are in the log at `members_index`. `round` is as in an Append. The answer is an
    AppendReply.
    """

    epoch: int
    round: int
    index: int
    members: Membership
    members_index: int
    commit_index: int


class SnapshotReply(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """The backup requests the bytes of the snapshot of `index` from `next_offset` on. When it has all of them, it sends
    an `AppendReply`.
    """

    epoch: int
    index: int
    next_offset: int


class TransferRequest(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """Backup to primary: hand over to me. `stand`: if you are not the primary, hear none, and are still in this epoch,
    campaign for votes (-1: do not).
    """

    epoch: int
    stand: int = -1


class TransferReply(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """Primary to backup: no, or not any more; `reason` says why. (Yes is `TimeoutNow`.) `later`: the reason will pass.

    Backup to backup: I do not campaign, or was not elected. Backup to primary: I must not take over; members of older
    releases say nothing instead.
    """

    epoch: int
    reason: str
    later: bool = False


class TimeoutNow(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """Primary to backup: you have everything that I have, ask for votes now (dissertation §3.10)."""

    epoch: int


Message: TypeAlias = (
    PreVote
    | PreVoteReply
    | Vote
    | VoteReply
    | Append
    | AppendReply
    | SnapshotChunk
    | Attest
    | SnapshotReply
    | TransferRequest
    | TransferReply
    | TimeoutNow
)


def fault_of(message: Append | SnapshotChunk) -> str:
    """What is wrong with a received message, in one line, or "" if it is consistent. The edge calls it before it steps
    the message.
    """
    if isinstance(message, SnapshotChunk):
        return _fault_of_chunk(message)
    entries = message.entries
    if message.prev_index < 0 or message.last < message.prev_index or message.first != message.prev_index + 1:
        return f"batches {message.first} to {message.last} cannot follow batch {message.prev_index}"
    if len(entries) != message.last - message.prev_index:
        return f"{len(entries)} batches came where {message.first} to {message.last} were announced"
    index, epoch = message.prev_index, message.prev_epoch
    for entry in entries:
        index += 1
        if entry.index != index:
            return f"batch {entry.index} came where batch {index} was announced"
        if not epoch <= entry.epoch <= message.epoch:
            return f"batch {index} is of epoch {entry.epoch}, between epoch {epoch} and the primary's epoch {message.epoch}"
        epoch = entry.epoch
    return ""


def _fault_of_chunk(chunk: SnapshotChunk) -> str:
    if chunk.offset < 0 or chunk.nbytes < 1 or chunk.offset + chunk.nbytes > chunk.total_bytes:
        return f"{chunk.nbytes} bytes at {chunk.offset} are not part of a snapshot of {chunk.total_bytes} bytes"
    if chunk.index < 1 or not 0 < chunk.index_epoch <= chunk.epoch:
        return f"a snapshot of index {chunk.index}, epoch {chunk.index_epoch} cannot be a primary's of epoch {chunk.epoch}"
    return ""
