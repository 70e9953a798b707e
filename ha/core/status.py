"""The state of a member, and on the primary of the others, for people and telemetry. Nothing here changes anything."""

from __future__ import annotations

from dataclasses import dataclass

from ha.core.backup import Backup
from ha.core.effects import State
from ha.core.log import Log
from ha.core.membership import Membership
from ha.core.office import Office
from ha.core.primary import Primary


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A primary's view of one other member. Times are in seconds; None if not known.

    `match_index` is the last index that the member has acknowledged to this primary (0: none yet), also while its link
    is down.
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
    snapshot_index: int
    """The index of the snapshot that the member is receiving; 0 if none, or if it has not stored any of it yet."""

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


def status_of(office: Office, now: float) -> ReplicaStatus:
    """The view of the member that holds this office."""
    member, role = office.member, office.role
    log = member.log
    return ReplicaStatus(
        state=office.state,
        epoch=member.epoch,
        primary=office.primary,
        first_index=log.first_index,
        last_index=log.last_index,
        last_epoch=log.last_epoch,
        durable_index=member.durable_index,
        commit_index=member.commit_index,
        told_commit=max(member.commit_index, role.told_commit if isinstance(role, Backup) else 0),
        writable=office.writable,
        members=log.members,
        peers=_peers(role, log, now) if isinstance(role, Primary) else (),
    )


def _peers(role: Primary, log: Log, now: float) -> tuple[PeerStatus, ...]:
    return tuple(
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
            snapshot_index=0 if each.outgoing is None else each.outgoing.index,
        )
        for each in role.peers.values()
    )
