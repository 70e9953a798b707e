"""Lines in the log file about faults of clients: a limited number of lines, and then the number of omitted ones.

Life: each fault is `told`. Within `_PERIOD_S` seconds `_LINES` of them are written; the first one after that writes how many were
omitted. A text may repeat a name of any length, and is cut to `_MAX_CHARS`. Invariant: a client that connects again and again, or
repeats a forbidden request, cannot fill the log file.
"""

from __future__ import annotations

from collections.abc import Callable

_LINES = 20
_PERIOD_S = 10.0
_MAX_CHARS = 4096


class Bounded:
    """Lines of one sort, so many at a time. `write` gets each; `more` completes "3 more ...", for those that were not written."""

    def __init__(self, seconds: Callable[[], float], write: Callable[[str], None], more: str) -> None:
        self._seconds = seconds
        self._write = write
        self._more = more
        self._since = -_PERIOD_S
        self._lines = self._unwritten = 0

    def line(self, text: str) -> None:
        """Write this, unless it is one too many."""
        now = self._seconds()
        if now - self._since >= _PERIOD_S:
            if self._unwritten:
                self._write(f"{self._unwritten} more {self._more} in the {now - self._since:.0f} s before")
            self._since, self._lines, self._unwritten = now, 0, 0
        if self._lines < _LINES:
            self._lines += 1
            self._write(text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 3]}...")
        else:
            self._unwritten += 1


class Refusals(Bounded):
    """Connections that end with a fault. `write` gets each line."""

    def __init__(self, seconds: Callable[[], float], write: Callable[[str], None]) -> None:
        super().__init__(seconds, write, "connections ended with a fault")

    def told(self, address: str, reason: str) -> None:
        """The connection from `address` has ended because of this."""
        self.line(f"connection from {address} ended: {reason}")
