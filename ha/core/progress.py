"""What a primary knows about one other member, and what it may send to it next.

Life of a progress: it is `probe` when the link comes up: each heartbeat asks whether the logs agree at `next_index -
1`, and nothing else is sent. Once they agree it is `replicate`: batches are sent without waiting for answers, up to the
limits, and `next_index` runs ahead. It is `snapshot` if the member needs batches that the log no longer has. A refusal
or a broken link leads back to `probe`.

Invariant: match_index < next_index. The batches between them are in flight, so the limits need no extra counters.
"""

from __future__ import annotations

from enum import StrEnum

from ha.core.log import Log
from ha.core.messages import AppendReply
from ha.core.settings import ReplicaSettings
from ha.core.snapshot import Outgoing


class Pace(StrEnum):
    """How a member gets its batches."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


_REPLICATE = Pace.REPLICATE
"""Asked for with every batch and answer, and a member of an enumeration takes long to look up."""


class Progress:
    """One other member, as its primary sees it. Times are in seconds of the monotonic clock.

    `answered_round` is the newest heartbeat that the member has answered. `match_index` counts for commits. `acked_index`
    is the last reported position, for people; it is kept while the link is down.
    """

    __slots__ = (
        "acked_index",
        "address",
        "answered_round",
        "connected",
        "heard_at",
        "match_index",
        "next_index",
        "outgoing",
        "pace",
        "received_index",
        "round_trip_s",
    )

    def __init__(self, address: str, next_index: int, now: float, connected: bool) -> None:
        self.address = address
        self.connected = connected
        self.pace = Pace.PROBE
        self.match_index = self.acked_index = 0
        self.received_index = 0
        self.next_index = next_index
        self.heard_at = now
        self.answered_round = 0
        self.round_trip_s: float | None = None
        self.outgoing: Outgoing | None = None

    def link(self, connected: bool) -> None:
        """The link came up or broke: batches in flight may be lost, and the member may have lost its store."""
        self.connected = connected
        self.next_index = max(self.match_index, self.received_index) + 1
        self.match_index = self.received_index = 0
        self.probe()

    def probe(self) -> None:
        """Stop sending batches until it is known where the logs agree."""
        self.pace = Pace.PROBE
        self.outgoing = None

    def send_snapshot(self, now: float, round_number: int) -> Outgoing:
        """The log no longer has the batches that the member needs: send it a checkpoint. See `Outgoing.asked`."""
        self.pace = Pace.SNAPSHOT
        self.outgoing = Outgoing(now, round_number)
        return self.outgoing

    def accepted(self, reply: AppendReply, log: Log) -> bool:
        """The logs agree. Returns whether `match_index` has grown."""
        match = min(reply.match_index, log.last_index)
        received = min(max(reply.received_index, match), log.last_index)
        grown = match > self.match_index
        if grown:
            self.match_index = match
        self.acked_index = self.match_index
        self.received_index = max(self.received_index, received)
        if self.pace is not _REPLICATE and (self.pace is Pace.PROBE or received >= log.base_index):
            self.pace = _REPLICATE
            self.outgoing = None
            self.next_index = self.received_index + 1
        self.next_index = max(self.next_index, self.received_index + 1)
        return grown

    def refused(self, reply: AppendReply, log: Log, *, current: bool) -> bool:
        """The logs do not agree at `reply.prev_index`: go back. Returns whether this was new.

        `current`: the reply is to the newest heartbeat. Then it describes the present log, and batches that the member
        acknowledged after that position are gone. So the member came back without a part of its log, and an earlier
        answer reached the primary after its new link.
        """
        if self.pace is Pace.SNAPSHOT:
            return False
        if reply.prev_index <= self.match_index:
            if not current:
                return False
            self.match_index = 0
        if self.pace is Pace.PROBE and reply.prev_index != self.next_index - 1:
            return False
        agreed = log.agreement(min(reply.hint_index, reply.prev_index - 1), reply.hint_epoch)
        self.next_index = max(agreed, self.match_index) + 1
        self.received_index = self.match_index
        self.probe()
        return True

    def has_room(self, log: Log, settings: ReplicaSettings) -> bool:
        """Whether more batches may be sent, if there are any: those in flight are within the limits."""
        sent = self.next_index - 1
        return (
            self.connected
            and self.pace is _REPLICATE
            and sent - self.match_index < settings.max_inflight_batches
            and log.bytes_between(self.match_index, sent) < settings.max_inflight_bytes
        )
