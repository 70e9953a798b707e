"""Figures in a form for people, the same on the page and in the terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

MEANING: Final = {
    "PRIMARY": "serving as the primary",
    "SILENT": "no broker reported on it: counts as the worst lag",
    "STOPPED": "not connected to the primary",
    "REWOUND": "lost records that it had acknowledged",
    "STALLED": "connected, but acknowledges nothing",
    "LAGGING": "over the objective and not catching up",
    "GAP": "answers, but some of its samples are missing",
    "OK": "keeps up",
    "REMOVED": "no longer a backup",
}
_MOST_DAYS: Final = 99_999
_BARS: Final = "▁▂▃▄▅▆▇█"


def shown(value: Any) -> Any:
    """A report whose texts contain only visible characters: a character that would move a cursor, colour a terminal or change
    the direction of writing is replaced with its number.
    """
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in value)
    if isinstance(value, dict):
        return {shown(key): shown(each) for key, each in value.items()}
    return [shown(each) for each in value] if isinstance(value, list) else value


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode() if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def duration(ms: float | None) -> str:
    """`0`, `0.8 ms`, `12 ms`, `3.4 s`, `12 min`, `3.1 h`, `2 d`, and `> 99999 d` for what no clock measures; a dash for None."""
    if ms is None:
        return "–"
    if ms == 0:
        return "0"
    for limit, unit, name in ((1000, 1, "ms"), (60_000, 1000, "s"), (3_600_000, 60_000, "min"), (86_400_000, 3_600_000, "h")):
        if ms < limit:
            return f"{_short(ms / unit)} {name}"
    days = ms / 86_400_000
    return f"{_short(days)} d" if days <= _MOST_DAYS else f"> {_MOST_DAYS} d"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")


def count(value: float | None) -> str:
    """`1,234`, `56 k`, `7.8 M`; a dash for None."""
    if value is None:
        return "–"
    for limit, unit, name in ((10_000, 1, ""), (1_000_000, 1000, " k"), (1e9, 1e6, " M"), (1e12, 1e9, " G")):
        if value < limit:
            return f"{value:,.0f}" if unit == 1 else f"{_short(value / unit)}{name}"
    return f"{value / 1e12:.0f} T"


def size(nbytes: float | None) -> str:
    """Bytes as `512 B`, `1.2 KiB`, `3.4 MiB`; a dash for None."""
    if nbytes is None:
        return "–"
    value = float(nbytes)
    for name in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if name == "B" else f"{_short(value)} {name}"
        value /= 1024
    return f"{_short(value)} TiB"


def share(value: float | None) -> str:
    """A share of 1 in per cent, never rounded up to 100 or down to 0."""
    if value is None:
        return "–"
    percent = value * 100
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.0f} %" if percent in (0, 100) else f"{percent:.1f} %"


def moment(ts_ms: int | None, *, day: bool = False) -> str:
    """A time of day in UTC, with the date if `day` is set."""
    if ts_ms is None:
        return "–"
    return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S")


def span(from_ms: int, to_ms: int) -> str:
    """`2026-01-02 15:04:05 – 15:14:05 UTC`; the second date only if it differs."""
    first, last = moment(from_ms, day=True), moment(to_ms, day=True)
    return f"{first} – {last[11:] if first[:10] == last[:10] else last} UTC"


def sparkline(values: list[float | None], silent: list[bool], width: int) -> str:
    """Values as bars on a log scale from 1 to 100,000 (ms), with the worst value of each piece. A cross means silent, a blank
    not expected.
    """
    bars = []
    for i in range(width):
        first, last = i * len(values) // width, max(i * len(values) // width + 1, (i + 1) * len(values) // width)
        piece = [value for value in values[first:last] if value is not None]
        if any(silent[first:last]):
            bars.append("×")
        elif not piece:
            bars.append(" ")
        else:
            bars.append(_BARS[_level(max(piece))])
    return "".join(bars)


def _level(ms: float) -> int:
    level = 0
    for limit in (1, 5, 25, 100, 500, 2500, 15_000):
        level += ms > limit
    return level
