"""Whether the primary can be lost, from rows as a report has them."""

from __future__ import annotations

from typing import Any

import pytest

from spark_analytics.jobs.loss import primary_loss

MINUTE = 60_000


def asked(
    *, now: dict[str, str], records: dict[str, int] | None = None, steps: dict[str, list[str]] | None = None
) -> dict[str, Any]:
    """The answer for backups that have these statuses at the end, and in the four minutes before it."""
    rows = [{"backup": name, "now": status, "lag_records": (records or {}).get(name, 0)} for name, status in now.items()]
    line = {name: {"status": (steps or {}).get(name, [status] * 4)} for name, status in now.items()}
    timeline = {"start_ms": 0, "step_ms": MINUTE, "count": 4, "backups": line}
    return primary_loss(rows, timeline, [{"begin_ms": 0}], begin_ms=0, end_ms=4 * MINUTE)


@pytest.mark.parametrize(
    "now, records, answer, said",
    [
        ({"b": "OK", "c": "OK"}, {}, "yes", "Yes"),
        ({"b": "OK", "c": "STOPPED"}, {}, "no", "No"),
        ({"b": "OK"}, {}, "no", "No"),
        ({}, {}, "no", "No"),
        ({"b": "LAGGING", "c": "GAP"}, {"b": 900, "c": 3}, "at risk", "Yes, with 3 records at risk"),
        ({"b": "OK", "c": "OK", "d": "OK", "e": "SILENT"}, {"b": 5}, "yes", "Yes"),
        ({"b": "OK", "c": "OK", "d": "REWOUND", "e": "SILENT"}, {}, "no", "No"),
        ({"b": "OK", "c": "OK", "d": "PRIMARY"}, {}, "yes", "Yes"),
    ],
)
def test_the_primary_can_be_lost_when_the_backups_are_a_majority_without_it(
    now: dict[str, str], records: dict[str, int], answer: str, said: str
) -> None:
    found = asked(now=now, records=records)
    assert (found["answer"], found["said"]) == (answer, said)


def test_what_is_at_risk_is_what_no_backup_has() -> None:
    found = asked(now={"b": "OK", "c": "OK"}, records={"b": 12, "c": 7})
    assert (found["records"], "7 records are on no backup yet" in found["why"]) == (7, True)


def test_the_answer_holds_since_the_backups_that_decide_it_came_or_went() -> None:
    came = asked(now={"b": "OK", "c": "OK"}, steps={"b": ["OK"] * 4, "c": ["OK", "SILENT", "OK", "LAGGING"]})
    went = asked(now={"b": "OK", "c": "SILENT"}, steps={"b": ["OK"] * 4, "c": ["OK", "OK", "SILENT", "STOPPED"]})
    assert (came["since_ms"], went["since_ms"]) == (2 * MINUTE, 2 * MINUTE)
    assert went["away"] == [{"backup": "c", "now": "SILENT"}]
    assert went["why"] == "1 of 2 backups can be reached, and a promotion needs 2 of the 3 brokers."
