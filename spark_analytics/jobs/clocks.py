"""How far the senders' clocks are apart, from the log itself: two senders that report the same commit index report the same
moment.

A backup learns of a commit a little after the primary, so its clock seems to be a little behind. The result is accurate to
the time of a heartbeat, which is enough to explain times that do not fit. Lag itself is measured only with the primary's
clock, and does not need this.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, Final

FEWEST: Final = 3
"""With fewer comparisons there is no result."""


def offsets(views: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `lines.views` to a row for each sender that could be compared: `sender`, `against`, `offset_ms` (above 0: its
    clock is ahead), `pairs`.
    """
    looks: dict[tuple[int, str], dict[str, list[tuple[int, int]]]] = {}
    for view in views:
        senders = looks.setdefault((view["epoch"], view["primary"]), {})
        senders.setdefault(view["sender"], []).append((view["commit_index"], view["ts_ms"]))
    found: dict[tuple[str, str], list[float]] = {}
    for (_, primary), senders in looks.items():
        line, still = _rising(senders.pop(primary, []))
        for sender, own in senders.items():
            told = [(commit, ts_ms) for commit, ts_ms in own if commit not in still]
            found.setdefault((sender, primary), []).extend(
                ts_ms - at for commit, ts_ms in told if (at := _when(line, commit)) is not None
            )
    return [
        {"sender": sender, "against": primary, "offset_ms": round(median(differences)), "pairs": len(differences)}
        for (sender, primary), differences in sorted(found.items())
        if len(differences) >= FEWEST
    ]


def _rising(looks: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], set[int]]:
    """(commit, time) in order where both rise, and the indexes that stayed the same for a while, which have no single moment."""
    line: list[tuple[int, int]] = []
    still: set[int] = set()
    for commit, ts_ms in sorted(looks, key=lambda look: look[1]):
        if not line or commit > line[-1][0]:
            line.append((commit, ts_ms))
        elif commit == line[-1][0]:
            line[-1] = (commit, ts_ms)
            still.add(commit)
    return line, still


def _when(line: list[tuple[int, int]], commit: int) -> float | None:
    """When the primary's clock reached the commit index; None outside the range that it reported."""
    i = bisect_left(line, commit, key=lambda look: look[0])
    if i == len(line) or (i == 0 and line[0][0] != commit):
        return None
    if line[i][0] == commit:
        return float(line[i][1])
    (c0, t0), (c1, t1) = line[i - 1], line[i]
    return t0 + (t1 - t0) * (commit - c0) / (c1 - c0)
