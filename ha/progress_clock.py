"""When each batch was proposed, and the age of the oldest batch that a backup has not acknowledged.

Life: `proposed` notes each batch's time. The newest times are all kept; of older ones, one for each second. So a backup that
is absent for hours costs little memory. An age beyond the kept times is a lower bound. On a primary there is a new clock for
each term, which begins with the last batch before the term: the age of older batches is counted from then on, because other
primaries have proposed some of them.

Invariant: an age is never overstated by more than a second, and 0 exactly when nothing waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from ha.core.status import PeerStatus, ReplicaStatus

_FINE = 4096
_COARSE = 36_000
_COARSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one member is behind, as its primary knows. `lag_ms` is the age of the oldest batch that it has not
    acknowledged."""

    address: str
    connected: bool
    sent_index: int
    received_index: int
    acked_index: int
    lag_records: int
    lag_bytes: int
    lag_ms: float
    state: str
    round_trip_s: float | None


class ProgressClock:
    """Times in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._fine: deque[tuple[int, float]] = deque(maxlen=_FINE)
        self._coarse: deque[tuple[int, float]] = deque(maxlen=_COARSE)

    def proposed(self, index: int, now: float) -> None:
        """This batch was proposed now."""
        while self._fine and self._fine[-1][0] >= index:
            self._fine.pop()
        while self._coarse and self._coarse[-1][0] >= index:
            self._coarse.pop()
        self._fine.append((index, now))
        if not self._coarse or now - self._coarse[-1][1] >= _COARSE_S:
            self._coarse.append((index, now))

    def since(self, index: int) -> float | None:
        """When batch `index` was proposed, to a second; None if no time is known for it or an earlier batch."""
        times = self._fine if self._fine and self._fine[0][0] <= index else self._coarse
        position = bisect_right(times, index, key=lambda item: item[0])
        if position == 0:
            return times[0][1] if times else None
        return times[position - 1][1]

    def age_ms(self, index: int, now: float) -> float:
        """How long ago batch `index` was proposed, to a second; 0 if no time is known."""
        since = self.since(index)
        return 0.0 if since is None else max(0.0, now - since) * 1000

    def lag(self, status: ReplicaStatus, now: float) -> dict[str, Lag]:
        """The lag of each member in the status that stores batches."""
        return {peer.address: self._of(peer, status.last_index, now) for peer in status.peers if peer.stores}

    def _of(self, peer: PeerStatus, last_index: int, now: float) -> Lag:
        state = "" if not peer.connected else "ready" if peer.lag_batches <= _READY_BATCHES else "catchup"
        return Lag(
            address=peer.address,
            connected=peer.connected,
            sent_index=peer.sent_index,
            received_index=peer.received_index,
            acked_index=peer.match_index,
            lag_records=peer.lag_records,
            lag_bytes=peer.lag_bytes,
            lag_ms=0.0 if peer.match_index >= last_index else self.age_ms(peer.match_index + 1, now),
            state=state,
            round_trip_s=peer.round_trip_s,
        )


_READY_BATCHES = 256


class SyncTimes:
    """How long the journal's syncs have taken since the last call of `take`: mean and longest."""

    def __init__(self) -> None:
        self._count = 0
        self._total_s = self._longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one more sync."""
        self._count += 1
        self._total_s += seconds
        self._longest_s = max(self._longest_s, seconds)

    def take(self) -> tuple[float, float] | None:
        """Mean and longest in seconds since the last call; None when there was none."""
        if not self._count:
            return None
        found = self._total_s / self._count, self._longest_s
        self._count, self._total_s, self._longest_s = 0, 0.0, 0.0
        return found
