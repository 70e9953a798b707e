"""A record that its holder renews, as one daemon sees it change: only this daemon's clock decides whether the record
has expired.

Life: `sees` gets each record that the store returned, and the time. When the record differs from the previous one, its
duration begins again. `holder` returns its holder, or none if the record has not changed for its duration. Times in the
record are only compared as text, because the clocks of two machines are never compared. A record that is seen for the
first time has its whole duration left.

Source: client-go, tools/leaderelection, which calls this the "observed time". Pure: times are in seconds of a monotonic
clock, passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_DURATION_S = 600.0
"""The longest duration that daemons use. A record with a longer one was not written by a daemon."""


@dataclass(frozen=True, slots=True)
class Record:
    """The holder of the turn ("" for none), its duration after a renewal, and a text that changes with each renewal."""

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
        """The last record that was seen."""
        return self._record

    def sees(self, record: Record, now_s: float) -> None:
        """The store returned this record now."""
        if record != self._record:
            self._record, self._changed_s = record, now_s

    def holder(self, now_s: float) -> str:
        """Its holder; "" if there is none, or the record has not changed for its duration."""
        runs_s = min(max(self._record.duration_s, 0.0), MAX_DURATION_S)
        return self._record.holder if now_s < self._changed_s + runs_s else ""
