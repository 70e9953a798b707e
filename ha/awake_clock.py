"""A clock to judge the silence of others by: it counts only time in which this process could have heard them.

A process that was stopped, or had to wait for a processor, wakes up late: its timers are overdue, and what the others have said
meanwhile waits in its sockets, unread. By any other clock everybody else would have been silent for as long, and a primary would
give up with its backups' answers in front of it: on a machine that is too busy, without anybody having failed.

Life: whoever judges silence has a timer that is due more often than every `at_most_s`, and asks this clock for the time with
each of its events. When more than that has passed since it was last asked, the process stood still, and no more than `at_most_s`
of it counts.

Invariants: it never goes back, and never goes faster than the clock that it is made of.
"""

from __future__ import annotations

from collections.abc import Callable


class AwakeClock:
    """See the module. `seconds` is a monotonic clock's."""

    def __init__(self, seconds: Callable[[], float], at_most_s: float) -> None:
        self._seconds = seconds
        self._at_most_s = at_most_s
        self._asked_s = seconds()
        self._missed_s = 0.0

    def seconds(self) -> float:
        """What the clock says, less the time in which this process stood still."""
        now_s = self._seconds()
        self._missed_s += max(0.0, now_s - self._asked_s - self._at_most_s)
        self._asked_s = now_s
        return now_s - self._missed_s
