"""Gaps in time, and latencies, each in bounded memory. Times are seconds of a monotonic clock, given by the caller."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

MAX_GAPS = 1000
SHORTEST_GAP_S = 0.02
"""A shorter pause is normal."""

Gap = tuple[float, float]
"""Its begin and its end."""


class Gaps:
    """The longest pauses between expected events. The shorter ones are forgotten when there are too many."""

    def __init__(self) -> None:
        self._longest: list[tuple[float, Gap]] = []
        self._since_s: float | None = None

    def event(self, now_s: float) -> None:
        """An event has happened."""
        since_s, self._since_s = self._since_s, now_s
        if since_s is None or now_s - since_s < SHORTEST_GAP_S:
            return
        keep = heapq.heappush if len(self._longest) < MAX_GAPS else heapq.heappushpop
        keep(self._longest, (now_s - since_s, (since_s, now_s)))

    def rest(self) -> None:
        """No event is expected: the time until `wait` is not a gap."""
        self._since_s = None

    def wait(self, now_s: float) -> None:
        """An event is expected from now on, or already was."""
        if self._since_s is None:
            self._since_s = now_s

    def end(self, now_s: float) -> None:
        """No event comes any more: if one is expected, the time until now is a gap."""
        self.event(now_s)
        self.rest()

    def all(self) -> list[Gap]:
        """The gaps, in order of time."""
        return sorted(gap for _, gap in self._longest)


def longest_gap_s(gaps: Iterable[Gap], from_s: float = -math.inf, until_s: float = math.inf) -> float:
    """The longest gap that overlaps this span, counted completely; 0 if there is none."""
    return max((end - begin for begin, end in gaps if end >= from_s and begin <= until_s), default=0.0)


class Histogram:
    """Durations, to within a sixteenth: 16 buckets for each power of two of a microsecond."""

    _PARTS = 16

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Add a duration."""
        micros = max(int(seconds * 1e6), 1)
        power = max(micros.bit_length() - 5, 0)
        self._buckets[power * self._PARTS + (micros >> power)] += 1

    def merge(self, other: Histogram) -> None:
        """Add the durations of another histogram."""
        self._buckets.update(other._buckets)

    def percentile_s(self, percent: float) -> float:
        """A percentile: this many of a hundred durations were not longer; 0 without any duration."""
        wanted = math.ceil(self._buckets.total() * percent / 100)
        for bucket in sorted(self._buckets):
            wanted -= self._buckets[bucket]
            if wanted <= 0:
                return self._upper_s(bucket)
        return 0.0

    def _upper_s(self, bucket: int) -> float:
        """The longest duration of a bucket."""
        power = max(bucket // self._PARTS - 1, 0)
        return ((bucket - power * self._PARTS + 1 << power) - 1) / 1e6


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of a duration, in seconds."""

    p50_s: float = 0.0
    p99_s: float = 0.0

    @classmethod
    def of(cls, histogram: Histogram) -> Latency:
        """The percentiles of a histogram."""
        return cls(histogram.percentile_s(50), histogram.percentile_s(99))


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of a run that are not about single messages."""

    seconds: float = 0.0
    """From the first message sent to the last one accepted."""
    connections: int = 0
    """How often a client connected to a broker that serves it."""
    accept_gap_s: float = 0.0
    """The longest time that a producer waited without an accepted message."""
    receive_gap_s: float = 0.0
    """The longest time that a consumer was without a message, between two messages."""
    accept_latency: Latency = Latency()
    """From a message's first sending until it was accepted."""
    receive_latency: Latency = Latency()
    """From a message's first sending until it was received, each time."""
    drained: bool = True
    """Whether every producer knew its outcomes, and every accepted message had arrived, when the report was made."""
    served: bool = True
    """Whether every client had a broker that serves it when the report was made."""
