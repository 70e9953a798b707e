"""Objective burn: how fast the error budget is spent, over short and long spans at once. Arithmetic on lengths of time.

A burn rate of 1 spends exactly the budget. Alerts use a long span, so that a short peak does not page, and a short one, so
that paging stops when the problem is over (Google's site reliability workbook, chapter 5).
"""

from __future__ import annotations

from typing import Any, Final

from spark_analytics.jobs.series import Axis, Rows
from spark_analytics.jobs.spans import DAY, HOUR, MINUTE

SPANS: Final = {"5m": 5 * MINUTE, "1h": HOUR, "6h": 6 * HOUR, "3d": 3 * DAY}
SHORTEST: Final = 6 * HOUR
"""What was expected for a shorter time has no budget: one restart of some seconds would have spent it several times."""
ALERTS: Final = {"fast": (14.4, "1h", "5m"), "slow": (6.0, "6h", "1h"), "steady": (1.0, "3d", "6h")}


def burn(steps: Rows, fine: Rows, axis: Axis, fine_axis: Axis, *, end_ms: int, target: float) -> dict[str, Any]:
    """The burn, from rows of the whole log in the timeline's steps, and from the `fine` steps for the rates at the end of the
    span, `end_ms`."""
    budget = 1 - target
    expected_ms = max((sum(r["expected_ms"] for r in rows) for rows in _by_backup(steps).values()), default=0)
    long_enough = expected_ms >= SHORTEST
    backups = []
    series = {}
    for backup, rows in sorted(_by_backup(steps).items()):
        own = _rates(_by_backup(fine).get(backup, []), fine_axis, budget, end_ms)
        is_long = sum(row["expected_ms"] for row in rows) >= SHORTEST
        backups.append(_state(backup, rows, _ending(own), budget, long_enough=is_long))
        series[backup] = _rates(rows, axis, budget, end_ms)
    together = _ending(_rates(fine, fine_axis, budget, end_ms))
    backups.append(_state(None, steps, together, budget, long_enough=long_enough))
    return {
        "target": target,
        "budget_ms": round(budget * expected_ms),
        "backups": backups,
        "series": axis.head() | {"backups": series},
    }


def _by_backup(rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row["backup"], []).append(row)
    return found


def _state(backup: str | None, rows: Rows, rates: dict[str, float | None], budget: float, *, long_enough: bool) -> dict[str, Any]:
    over, expected = sum(row["over_ms"] for row in rows), sum(row["expected_ms"] for row in rows)
    alerts = [
        name for name, (limit, long, short) in ALERTS.items() if (rates[long] or 0.0) >= limit and (rates[short] or 0.0) >= limit
    ]
    spent = round(over / expected / budget, 4) if long_enough and expected else None
    return {"backup": backup, "over_ms": over, "spent": spent, "rates": rates, "alerts": alerts}


def _ending(rates: dict[str, list[float | None]]) -> dict[str, float | None]:
    return {name: values[-1] for name, values in rates.items()}


def _rates(rows: Rows, axis: Axis, budget: float, end_ms: int) -> dict[str, list[float | None]]:
    """The burn rate over each of SPANS at the end of each step. It is None if less than half of the span was expected, for
    example of a backup that has just become the primary: one second of lag would then count like an outage.

    The last step may have just begun. So the last rate is over all steps that are in the SPANS' length before `end_ms`, also
    over the one that is partly in it: it is over up to a step more, and never over less.
    """
    over, expected = [0] * (axis.count + 1), [0] * (axis.count + 1)
    for row in rows:
        over[axis.at(row) + 1] += row["over_ms"]
        expected[axis.at(row) + 1] += row["expected_ms"]
    for i in range(axis.count):
        over[i + 1] += over[i]
        expected[i + 1] += expected[i]
    rates: dict[str, list[float | None]] = {}
    for name, length in SPANS.items():
        steps = length // axis.step_ms
        values: list[float | None] = [None] * max(1, axis.count)
        for end in range(max(1, steps), axis.count + 1) if steps else ():
            is_last = end == axis.count
            first = max(0, (end_ms - length - axis.start_ms) // axis.step_ms) if is_last else end - steps
            seen = expected[end] - expected[first]
            if seen * 2 >= length:
                values[end - 1] = round((over[end] - over[first]) / seen / budget, 3)
        rates[name] = values
    return rates
