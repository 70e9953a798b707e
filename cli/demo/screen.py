"""The output of the demo: its story with the time before each line, its progress, and a table at the end.

Invariants: output to a terminal fits its window, however narrow; other output has no control characters. A figure is never
cut: one that does not fit is left out, or is on its own line.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping

from cli.output import filled

LIVE_S, SPARSE_S = 0.2, 5.0
"""The interval between two lines of progress: on a terminal, and elsewhere."""
INDENT = 10


class Screen:
    """The story, and the progress below it: one line that is rewritten on a terminal; elsewhere, a new line every few
    seconds."""

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self.began = time.monotonic()
        self._live = sys.stdout.isatty()
        self._shown_s = 0.0
        self._before = 0

    @property
    def width(self) -> int:
        """The usable columns; more than enough if the output is not a terminal."""
        return shutil.get_terminal_size().columns - 1 if self._live else 130

    def say(self, text: str) -> None:
        """Print a line of the story."""
        self._wipe()
        print(wrapped(time.monotonic() - self.began, text, self.width), flush=True)

    def show(self, figures: Mapping[str, int]) -> None:
        """Print the progress, if it is time for it."""
        now, received = time.monotonic(), figures["received"]
        since_s = now - self._shown_s
        if since_s < (LIVE_S if self._live else SPARSE_S):
            return
        rate = (received - self._before) / since_s
        first, self._shown_s, self._before = not self._shown_s, now, received
        if self._live:
            self._wipe()
            print(progress(figures, self.whole, rate, self.width), end="", flush=True)
        elif not first:
            self.say(progress(figures, self.whole, rate, self.width - INDENT))

    def _wipe(self) -> None:
        if self._live:
            print("\r\033[K", end="")


def progress(figures: Mapping[str, int], whole: int, rate: float, width: int) -> str:
    """The progress in one line of at most `width` characters. The percentage is first, because figures that do not fit are
    left out."""
    percent = min(100, 100 * figures["received"] // whole)
    parts = [f"{percent:3} %", *(f"{figures[name]:,} {name}" for name in ("accepted", "received")), f"{rate:,.0f}/s"]
    line = parts[0]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += f"  {part}"
    return line[:width]


def wrapped(moment_s: float, text: str, width: int) -> str:
    """A line of the demo's story, with the seconds since its start; in a narrow window it is split into several lines."""
    return filled(text, width, f"{moment_s:6.1f} s  ", " " * INDENT)
