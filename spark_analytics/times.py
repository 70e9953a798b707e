"""Durations and moments in forms for people, in milliseconds. Pure text and arithmetic, without Spark."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from spark_analytics.errors import WrongUsage

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
LENGTH: Final = re.compile(r"(\d+)\s*(s|m|h|d)")
UNITS: Final = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}


def parse_span(text: str, option: str) -> int:
    """Any duration, for example `90s` or `7d`, in ms. WrongUsage if it is not valid."""
    found = LENGTH.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise WrongUsage(f"{option} {text} is not a length of time: try 1h, 1d or 7d")
    return int(found[1]) * UNITS[found[2]]


def parse_moment(text: str, now_ms: int, option: str) -> int:
    """`now`, an ISO 8601 time (UTC without an offset), or an age, for example `15m`, in ms since 1970. WrongUsage otherwise."""
    if text == "now":
        return now_ms
    if age := LENGTH.fullmatch(text.strip()):
        return now_ms - int(age[1]) * UNITS[age[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUsage(
            f"{option} {text} is not a time: write 2026-01-02T15:04:05Z, or 15m for a quarter of an hour ago, or now"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
