"""Spans, windows and steps of time: which length to use, from a set of round lengths. Pure arithmetic on milliseconds."""

from __future__ import annotations

from math import gcd
from typing import Final

from spark_analytics.errors import Refused, WrongUsage
from spark_analytics.times import DAY, HOUR, LENGTH, LONGEST, MINUTE, SECOND, UNITS, parse_moment, parse_span
from spark_analytics.transforms.lag import SLOTS

__all__ = [
    "DAY",
    "HOUR",
    "MAX_WINDOWS",
    "MINUTE",
    "ROUND_STEPS",
    "SECOND",
    "check_count",
    "grain_for",
    "parse_keep",
    "parse_length",
    "parse_moment",
    "parse_span",
    "step_for",
    "window_for",
]
ROUND_STEPS: Final = (
    *(SECOND * n for n in (1, 2, 5, 10, 20, 30)),
    *(MINUTE * n for n in (1, 2, 5, 10, 20, 30)),
    *(HOUR * n for n in (1, 2, 6, 12)),
    *(DAY * n for n in (1, 2, 7, 28)),
)
MAX_WINDOWS: Final = 100_000
"""The largest number of windows of one key in a summary."""


def parse_length(text: str, option: str = "--window") -> int:
    """`10s`, `1m`, `1h` as ms. WrongUsage unless it is a divisor or a multiple of a minute."""
    found = LENGTH.fullmatch(text.strip())
    length = int(found[1]) * UNITS[found[2]] if found else 0
    if not 0 < length <= LONGEST or (MINUTE % length and length % MINUTE):
        raise WrongUsage(f"{option} {text} is not a length that fits whole minutes: try 10s, 1m or 1h")
    return length


def parse_keep(text: str) -> int:
    """How long a stream keeps its sums, in ms. WrongUsage below a day, because whole days are deleted."""
    length = parse_span(text, "--keep")
    if length < DAY:
        raise WrongUsage(f"--keep {text} is less than a day, and days are dropped whole: try 7d or 90d")
    return length


def step_for(span_ms: int, *, at_most: int, multiple_of: int) -> int:
    """The shortest round step that cuts the span into at most `at_most` pieces and is a multiple of `multiple_of` ms.

    If there is no round step of about that length (sampling every 7 s), the step is not round.
    """
    shortest = max(multiple_of, -(-span_ms // at_most))
    fitting = (step for step in ROUND_STEPS if shortest <= step <= 10 * shortest and step % multiple_of == 0)
    return next(fitting, -(-shortest // multiple_of) * multiple_of)


def window_for(span_ms: int, interval_ms: int = SECOND) -> int:
    """The default window: 10 s up to 20 minutes, 1 minute up to a day, else an hour; and at least ten samples."""
    usual = 10 * SECOND if span_ms <= 20 * MINUTE else MINUTE if span_ms <= DAY else HOUR
    least = 10 * interval_ms
    return usual if least <= usual else next((step for step in ROUND_STEPS if step >= least), ROUND_STEPS[-1])


def grain_for(interval_ms: int, *lengths: int) -> int:
    """The longest grain that divides all those lengths and separates samples of that interval."""
    longest = min(HOUR, SLOTS * max(SECOND, interval_ms))
    fitting = (step for step in reversed(ROUND_STEPS) if step <= longest)
    round_one = next((step for step in fitting if not any(length % step for length in lengths)), 0)
    return max(round_one, gcd(MINUTE, *lengths))


def check_count(span_ms: int, window_ms: int) -> None:
    """Refused if a span would have too many windows."""
    if span_ms // window_ms > MAX_WINDOWS:
        days = span_ms / DAY
        raise Refused(f"{days:.0f} days are more than {MAX_WINDOWS:,} windows: choose a longer --window, or a --since")
