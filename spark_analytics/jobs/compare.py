"""Compares two spans: what became better or worse, from the rows of their reports."""

from __future__ import annotations

from typing import Any, Final

from spark_analytics.jobs.series import GONE, spells

_WORST: Final = ("p50_ms", "p95_ms", "p99_ms", "max_ms", "worst_ms", "stall_ms", "silence_ms")
FIGURES: Final = (*_WORST[:5], "over_share", *_WORST[5:], "stalls", "silences")
Report = dict[str, Any]


def compare(before: Report, after: Report) -> dict[str, Any]:
    """The report's `comparison`; `before` is the report of the other span."""
    then, now = _by_backup(before), _by_backup(after)
    backups = [{"backup": name} | _beside(then.get(name, {}), now.get(name, {})) for name in sorted(then.keys() | now.keys())]
    all_then, all_now = (
        _together(list(rows.values())) | {"failovers": len(report["failovers"])}
        for rows, report in ((then, before), (now, after))
    )
    return {
        "from_ms": before["from_ms"],
        "to_ms": before["to_ms"],
        "backups": backups,
        "all": _beside(all_then, all_now),
    }


def _by_backup(report: Report) -> dict[str, dict[str, Any]]:
    return {
        row["backup"]: {name: row.get(name) for name in FIGURES}
        | {
            "stalls": spells(report["lanes"][row["backup"]], ["STALLED"]),
            "silences": spells(report["lanes"][row["backup"]], GONE),
            "_expected": row["expected"],
        }
        for row in report["backups"]
    }


def _together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    worst = {name: max((row[name] for row in rows if row[name] is not None), default=None) for name in _WORST}
    expected = sum(row["_expected"] for row in rows)
    share = sum(row["over_share"] * row["_expected"] for row in rows) / expected if expected else None
    sums = {name: sum(row[name] for row in rows) for name in ("stalls", "silences")}
    return worst | {"over_share": share} | sums


def _beside(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in (*FIGURES, "failovers") if name in before or name in after]
    old, new = ({name: _short(side.get(name)) for name in names} for side in (before, after))
    return {"before": old, "after": new, "change": {name: _less(new[name], old[name]) for name in names}}


def _less(new: float | None, old: float | None) -> float | None:
    return None if new is None or old is None else _short(new - old)


def _short(value: float | None) -> float | None:
    return round(value, 4) if isinstance(value, float) else value
