"""Spans, windows and steps of time: how finely to cut, chosen from round lengths. Pure arithmetic on milliseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import gcd
from typing import Final

from spark_analytics.errors import Refused
from spark_analytics.transforms.partials import MAX_GRAIN_MS

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
ROUND_STEPS: Final = (
    *(SECOND * n for n in (1, 2, 5, 10, 20, 30)),
    *(MINUTE * n for n in (1, 2, 5, 10, 20, 30)),
    *(HOUR * n for n in (1, 2, 6, 12)),
    *(DAY * n for n in (1, 2, 7, 28)),
)
MAX_WINDOWS: Final = 100_000
"""How many windows of one key a summary may have."""
_LENGTH: Final = re.compile(r"(\d+)\s*(s|m|h|d)")
_UNITS: Final = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}


def parse_length(text: str) -> int:
    """`10s`, `1m`, `1h` as ms. Refused unless it is a divisor or a multiple of a minute."""
    found = _LENGTH.fullmatch(text.strip())
    length = int(found[1]) * _UNITS[found[2]] if found else 0
    if length <= 0 or (MINUTE % length and length % MINUTE):
        raise Refused(f"--window {text} is no length that fits whole minutes: try 10s, 1m or 1h")
    return length


def parse_moment(text: str, now_ms: int) -> int:
    """`now`, an ISO 8601 time (UTC when it has no offset), or an age as `15m`, in ms since 1970. Refused otherwise."""
    if text == "now":
        return now_ms
    if age := _LENGTH.fullmatch(text.strip()):
        return now_ms - int(age[1]) * _UNITS[age[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"{text} is no time: write 2026-01-02T15:04:05Z, or 15m for a quarter of an hour ago, or now") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def step_for(span_ms: int, *, at_most: int, multiple_of: int) -> int:
    """The shortest round step that cuts the span into `at_most` pieces and is a multiple of `multiple_of` ms.

    Where no round step of about that length is (sampling every 7 s), it is not round.
    """
    shortest = max(multiple_of, -(-span_ms // at_most))
    fitting = (step for step in ROUND_STEPS if shortest <= step <= 10 * shortest and step % multiple_of == 0)
    return next(fitting, -(-shortest // multiple_of) * multiple_of)


def window_for(span_ms: int) -> int:
    """The window when none is asked for: 10 s up to 20 minutes, 1 minute up to a day, else an hour."""
    return 10 * SECOND if span_ms <= 20 * MINUTE else MINUTE if span_ms <= DAY else HOUR


def grain_for(*lengths: int) -> int:
    """The grain that all those lengths are multiples of."""
    return gcd(MAX_GRAIN_MS, *lengths)


def check_count(span_ms: int, window_ms: int) -> None:
    """Refused when a span would have more windows than anybody can use."""
    if span_ms // window_ms > MAX_WINDOWS:
        days = span_ms / DAY
        raise Refused(f"{days:.0f} days are more than {MAX_WINDOWS:,} windows: choose a longer --window, or a --since")
