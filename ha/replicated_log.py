"""A replicated log: a Replica (ha.core), a Journal (broker.disk) and links to the other members, as one CommitLog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from twisted.internet.defer import Deferred

from broker.core.records import BatchBuilder
from ha.core.effects import MembershipEnded, PromotionEnded, State, TransferEnded
from ha.core.membership import Membership
from ha.core.messages import Message
from ha.core.replica import ReplicaStatus


class Peers(Protocol):
    """The links to the other members, by address. Calls return at once and never raise."""

    def send(self, peer: str, message: Message, batches: Sequence[bytes]) -> None:
        """Send a message, and beside it these batches (Append), or the one chunk of bytes (SnapshotChunk). In order; dropped when the
        peer is not connected."""

    def set_members(self, members: Membership) -> None:
        """Keep links to these members, and to no others."""

    def close(self, peer: str, reason: str) -> None:
        """Close the link to this peer, which has sent something that cannot be right; it may be opened again."""


class ReplicatedLog:
    """Fulfils broker.commit_log.CommitLog. Everything is called in the reactor thread.

    The edge calls `start`, then `connected` / `disconnected` / `receive` as links come and go and messages arrive.
    """

    state: State
    epoch: int
    primary: str
    may_propose: bool

    def start(self) -> None:
        """Begin: from here on the listener is called."""

    def stop(self) -> Deferred[None]:
        """End: fires when nothing is in flight to the disk; the journal is left open."""

    def propose(self, builder: BatchBuilder) -> int:
        """See CommitLog."""

    def connected(self, peer: str) -> None:
        """A link to this member is up (either side may have opened it)."""

    def disconnected(self, peer: str) -> None:
        """The link to this member is gone."""

    def receive(self, peer: str, message: Message, payload: bytes) -> None:
        """A message came; `payload` is what stood beside it: whole batches end to end, or a chunk of a snapshot."""

    def promote(self, reason: str) -> Deferred[PromotionEnded]:
        """Become the primary; fires when active, or when refused."""

    def transfer(self, candidate: str) -> Deferred[TransferEnded]:
        """Hand over to this backup (on a primary)."""

    def add_member(self, address: str) -> Deferred[MembershipEnded]:
        """Add a broker to the cluster (on a primary)."""

    def remove_member(self, address: str) -> Deferred[MembershipEnded]:
        """Remove a broker from the cluster (on a primary)."""

    def status(self) -> ReplicaStatus:
        """The replica's own figures."""
