"""A record that its holder renews, as one daemon sees it change: whether it has expired is told by this daemon's clock alone.

Life: `sees` is told each record that the store gave, and when. As long as it is another than before, its time begins anew;
`holder` says who holds it, or nobody once the record has stood for its duration. Times in the record are text to be compared and
never a clock's: clocks of two machines are not compared. A record that is seen for the first time has all its time before it.

Source: client-go, tools/leaderelection, whose "observed time" this is.
Pure: times in seconds of a monotonic clock, passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_DURATION_S = 600.0
"""No daemon asks for a longer time: what a record has beyond it was not written by one."""


@dataclass(frozen=True, slots=True)
class Record:
    """Who holds the turn ("" for nobody), for how long after a renewal, and what changes with each renewal."""

    holder: str = ""
    duration_s: float = 0.0
    renewed: str = ""
    acquired: str = ""
    transitions: int = 0


class Observed:
    """See the module."""

    def __init__(self) -> None:
        self._record = Record()
        self._changed_s = 0.0

    @property
    def record(self) -> Record:
        """The last one that was seen."""
        return self._record

    def sees(self, record: Record, now_s: float) -> None:
        """The store has this now."""
        if record != self._record:
            self._record, self._changed_s = record, now_s

    def holder(self, now_s: float) -> str:
        """Who holds it; "" when nobody does, or the record has not changed for its duration."""
        runs_s = min(max(self._record.duration_s, 0.0), MAX_DURATION_S)
        return self._record.holder if now_s < self._changed_s + runs_s else ""
