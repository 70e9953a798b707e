"""What users saw of a fault, and its row in the table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cli.verify.core.measures import Gap

HEAD = """| arbiter | fault | rounds | wait while it serves | without the fault | detection | failover | came twice | broken |
|---|---|---|---|---|---|---|---|---|"""


@dataclass(slots=True)
class Outcome:
    """What users saw of a fault. Times in seconds, None where the fault has none; `broken` are promises that were not kept."""

    wait_s: float | None = None
    """The longest time without an accept while the primary had to serve on."""
    control_s: float | None = None
    """The same in a span of the same length just before the fault, in which nothing was done: what the machine makes of it."""
    detection_s: float | None = None
    """Until a daemon said that the primary has failed."""
    failover_s: float | None = None
    """Until another primary accepted."""
    duplicated: int = 0
    broken: list[str] = field(default_factory=list)


def longest_s(gaps: Iterable[Gap], from_s: float, until_s: float) -> float:
    """The longest part of a gap that lies in that span."""
    return max((min(end, until_s) - max(begin, from_s) for begin, end in gaps if begin < until_s and end > from_s), default=0.0)


def row(name: str, fault: str, outcomes: Sequence[Outcome]) -> str:
    """Median and longest of each time."""
    cells = [name, fault, str(len(outcomes))]
    for times_s in ("wait_s", "control_s", "detection_s", "failover_s"):
        found = [value for outcome in outcomes if (value := getattr(outcome, times_s)) is not None]
        cells.append(f"{statistics.median(found):.2f} / {max(found):.2f} s" if found else "")
    cells += [str(sum(outcome.duplicated for outcome in outcomes)), str(sum(bool(outcome.broken) for outcome in outcomes))]
    return f"| {' | '.join(cells)} |"
