"""Durations and moments in forms for people, in milliseconds. Pure text and arithmetic, without Spark."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from spark_analytics.errors import WrongUsage

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
LENGTH: Final = re.compile(r"(\d{1,18})\s*(s|m|h|d)")
LONGEST: Final = 365_250 * DAY
"""The longest length of time, a thousand years: longer ones are slips, and overflow what Spark counts with."""
UNITS: Final = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}


def parse_span(text: str, option: str) -> int:
    """Any duration, for example `90s` or `7d`, in ms. WrongUsage if it is not valid."""
    found = LENGTH.fullmatch(text.strip())
    length = int(found[1]) * UNITS[found[2]] if found else 0
    if not 0 < length <= LONGEST:
        raise WrongUsage(f"{option} {text} is not a length of time: try 1h, 1d or 7d")
    return length


def parse_moment(text: str, now_ms: int, option: str) -> int:
    """`now`, an ISO 8601 time (UTC without an offset), or an age, for example `15m`, in ms since 1970, which is the
    earliest. WrongUsage otherwise."""
    return max(0, moment_of(text, now_ms, option))


def moment_of(text: str, now_ms: int, option: str) -> int:
    """The same, but negative before 1970."""
    if text == "now":
        return now_ms
    if age := LENGTH.fullmatch(text.strip()):
        return now_ms - int(age[1]) * UNITS[age[2]]
    try:
        moment = datetime.fromisoformat(text)
        moment_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise WrongUsage(
            f"{option} {text} is not a time: write 2026-01-02T15:04:05Z, or 15m for a quarter of an hour ago, or now"
        ) from None
    return int(moment_s * 1000)
