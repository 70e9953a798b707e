"""The time of the log, which only goes forward: messages expire and wait by this time.

Life: when a term begins, the log time of its primary is set to the wall clock, or to the time at which the newest batch was made,
if that is later. From then on it follows the monotonic clock, even if the wall clock changes. Times in records are ms since 1970
of this time. So the next primary continues where the last one was, even if its own wall clock is behind.

Invariant: within a term, and from one term to the next, it is never earlier than the time of a committed batch.
"""

from __future__ import annotations


class LogTime:
    """See the module. Clocks come in as arguments: `now_s` is a monotonic one's."""

    __slots__ = ("_base_ms",)

    def __init__(self) -> None:
        self._base_ms = 0.0

    def begin(self, now_s: float, wall_s: float, made_ms: int) -> None:
        """A term begins; the newest batch that is applied was made at `made_ms`."""
        self._base_ms = max(wall_s * 1000, made_ms) - now_s * 1000

    def now_ms(self, now_s: float) -> int:
        """Ms since 1970."""
        return int(self._base_ms + now_s * 1000)
