"""The times and bounds that a member works with. They are arguments of the core: nothing here reads an environment or a clock."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Times in seconds of a monotonic clock.

    `standalone`: a log of this broker alone, which makes itself its primary (see `Replica.start`).
    `witness`: a member without a log (see `witness.py`).
    `heartbeat_s`: how often the primary is heard when it has nothing to say, and how often lost requests are asked again.
    `election_s`: a backup that has not heard its primary for so long, or a primary that has not heard a majority, gives it up.
    `campaign_timeout_s`: a promotion without a majority of votes by then is refused.
    `transfer_timeout_s`: a planned switchover that has not happened by then is called off.
    `max_append_bytes`: the most batch bytes in one Append, unless one batch alone is larger.
    `max_inflight_bytes`, `max_inflight_batches`: the most that may be on its way to one backup without its answer.
    `ready_lag_batches`: a ready backup that is further behind the commit index is in catchup again.
    A learner becomes a voter when it lacks at most `ready_lag_batches` and `max_inflight_bytes` of what is committed.
    """

    standalone: bool = False
    witness: bool = False
    heartbeat_s: float = 0.1
    election_s: float = 1.0
    campaign_timeout_s: float = 2.0
    transfer_timeout_s: float = 5.0
    max_append_bytes: int = MIB
    max_inflight_bytes: int = 16 * MIB
    max_inflight_batches: int = 256
    ready_lag_batches: int = 256
