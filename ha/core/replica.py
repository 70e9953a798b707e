"""One member of a cluster: events in, effects out.

Inputs are methods that return a list of effects (see `effects.py`), to be carried out in order. `now` is in seconds of a monotonic
clock and never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from ha.core.effects import Effect, State
from ha.core.log import Log
from ha.core.membership import Membership
from ha.core.messages import Message, Position
from ha.core.settings import ReplicaSettings


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A primary's view of one other member. Times in seconds; None when not known."""

    address: str
    role: str
    connected: bool
    progress: str
    match_index: int
    received_index: int
    lag_batches: int
    lag_bytes: int
    lag_records: int
    round_trip_s: float | None
    last_heard_s: float | None


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
    writable: bool
    members: Membership
    peers: tuple[PeerStatus, ...]


class Replica:
    """A member of a cluster (see the module's docstring)."""

    def __init__(
        self,
        me: str,
        settings: ReplicaSettings,
        *,
        epoch: int,
        voted_for: str | None,
        log: Log,
        now: float,
        commit_index: int = 0,
        blank: bool = False,
        vote_floor: Position | None = None,
    ) -> None:
        """A member as its store describes it, all of `log` being durable.

        `commit_index`: what the checkpoint covers. `blank`: the store has never been whole (see `effects.StoreWhole`).
        `vote_floor`: the end of what the store once held before a part of it was lost.
        """

    state: State
    epoch: int
    primary: str
    writable: bool
    next_index: int
    commit_index: int
    members: Membership

    def start(self, now: float) -> list[Effect]:
        """To be called once, first. A standalone log makes itself its own primary."""

    def step(self, now: float, sender: str, message: Message) -> list[Effect]:
        """A message has come from a member."""

    def tick(self, now: float) -> list[Effect]:
        """Time has passed; to be called at least every heartbeat_s / 2."""

    def propose(self, now: float, nbytes: int, n_records: int, members: Membership | None = None) -> list[Effect]:
        """The batch sealed with `epoch` and `next_index` enters the log. Only while `writable`, or to answer ProposeMembers."""

    def stored(self, now: float, index: int, epoch: int) -> list[Effect]:
        """The journal is synced up to `index`, whose batch is of `epoch`."""

    def snapshot_stored(self, now: float, index: int, epoch: int, members: Membership) -> list[Effect]:
        """A received checkpoint is complete, synced and found to be whole."""

    def snapshot_failed(self, now: float, index: int) -> list[Effect]:
        """A received checkpoint turned out to be damaged: fetch it again."""

    def compacted(self, first_index: int) -> list[Effect]:
        """The journal begins at `first_index` now; what came before is in a checkpoint."""

    def connected(self, now: float, peer: str) -> list[Effect]:
        """Messages can go to and come from this member."""

    def disconnected(self, now: float, peer: str) -> list[Effect]:
        """The link to this member is gone."""

    def promote(self, now: float, request_id: str) -> list[Effect]:
        """Become the primary, by a planned switchover if there is a healthy one. Ends with PromotionEnded."""

    def transfer(self, now: float, candidate: str) -> list[Effect]:
        """Hand over to this backup. Ends with TransferEnded."""

    def add_member(self, now: float, address: str, request_id: str) -> list[Effect]:
        """Add a member, as a learner that becomes a voter when it has caught up. Ends with MembershipEnded."""

    def remove_member(self, now: float, address: str, request_id: str) -> list[Effect]:
        """Remove a member. Ends with MembershipEnded."""

    def status(self, now: float) -> ReplicaStatus:
        """For people and telemetry."""
