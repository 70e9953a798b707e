"""A clock to measure the silence of others: it counts only time in which this process could have heard them.

A process that was stopped, or had to wait for a processor, wakes up late. Its timers are overdue, and the messages from
others wait unread in its sockets. By any other clock all others would have been silent for that time. A primary on an
overloaded machine would then give up although its backups have answered and nobody has failed.

Life: the user of this clock has a timer with a period below `at_most_s`, and reads the clock at each of its events. If more
than `at_most_s` has passed since the last reading, the process stood still, and only `at_most_s` of that time counts.

Invariants: it never goes back, and never runs faster than the clock that it is based on.
"""

from __future__ import annotations

from collections.abc import Callable


class AwakeClock:
    """See the module. `seconds` reads a monotonic clock."""

    def __init__(self, seconds: Callable[[], float], at_most_s: float) -> None:
        self._seconds = seconds
        self._at_most_s = at_most_s
        self._asked_s = seconds()
        self._missed_s = 0.0

    def seconds(self) -> float:
        """The time of the clock, without the time in which this process stood still."""
        now_s = self._seconds()
        missed_s = now_s - self._asked_s - self._at_most_s
        if missed_s > 0:
            self._missed_s += missed_s
        self._asked_s = now_s
        return now_s - self._missed_s
