"""Answers an operator's question: can I lose the primary now? The answer comes from the primary's last report.

A promotion needs a majority of the members, and a record that a majority has is never lost. So the primary can be lost if the
remaining backups are a majority by themselves. Records that no backup has acknowledged are only on the primary; their senders
have not received an acceptance.
"""

from __future__ import annotations

from typing import Any, Final

from spark_analytics.jobs.series import GONE, Rows

_AWAY: Final = (*GONE, "REWOUND")


def primary_loss(backups: Rows, timeline: dict[str, Any], terms: Rows, *, begin_ms: int, end_ms: int) -> dict[str, Any]:
    """The report's `loss`: `answer` (`yes`, `at risk` or `no`), the sentences `said` and `why`, `records` at risk,
    `since_ms`, `as_of_ms`, the number of `members`, the number `needed` for a promotion, the number of connected backups
    (`left`), and `away`: the other backups, with their status `now`.
    """
    standing = [row for row in backups if row["now"] != "PRIMARY"]
    away = [{"backup": row["backup"], "now": row["now"]} for row in standing if row["now"] in _AWAY]
    gone = {row["backup"] for row in away}
    left = [row for row in standing if row["backup"] not in gone]
    members = 1 + len(standing)
    needed = members // 2 + 1
    records = min((row["lag_records"] or 0 for row in left), default=0)
    can = len(left) >= needed
    found: dict[str, Any] = {
        "answer": "no" if not can else "at risk" if records else "yes",
        "records": records,
        "since_ms": max(_since(standing, timeline, needed, can, begin_ms), terms[-1]["begin_ms"] if terms else begin_ms),
        "as_of_ms": end_ms,
        "members": members,
        "needed": needed,
        "left": len(left),
        "away": away,
    }
    said, why = _sentence(found)
    return found | {"said": said, "why": why}


def _since(standing: Rows, timeline: dict[str, Any], needed: int, can: bool, begin_ms: int) -> int:
    """The start of the steps, up to the last one, in which the answer was the same."""
    statuses = [timeline["backups"][row["backup"]]["status"] for row in standing]
    step = timeline["count"]
    while step:
        there = sum(one[step - 1] is not None and one[step - 1] not in _AWAY for one in statuses)
        if (there >= needed) != can:
            break
        step -= 1
    return int(max(begin_ms, timeline["start_ms"] + step * timeline["step_ms"]))


def _sentence(loss: dict[str, Any]) -> tuple[str, str]:
    """The answer and its reason, as sentences for people."""
    left, members, needed, records = (loss[name] for name in ("left", "members", "needed", "records"))
    if members == 1:
        return "No", "there is no backup: every record stands on the primary alone."
    if loss["answer"] == "no":
        return "No", f"{left} of {members - 1} backups can be reached, and a promotion needs {needed} of the {members} brokers."
    spare = left - needed
    more = f"{spare} more may fail" if spare else "no other broker may fail as well"
    if loss["answer"] == "yes":
        return "Yes", f"{left} of {members - 1} backups can be reached, and hold every record; {more}."
    some, are = ("record", "is") if records == 1 else ("records", "are")
    return f"Yes, with {records:,} {some} at risk", f"{records:,} {some} {are} on no backup yet, and not accepted; {more}."
