"""Changes of primary, from stories that are worked out by hand: the driver's part of a summary, without Spark.

The rows that Spark counts lines to (`quality.inventory`) are counted here by a plain loop.
"""

from __future__ import annotations

from typing import Any

import pytest

from spark_analytics.schemas import EVENT
from spark_analytics.transforms import expected, failovers
from tests.spark_analytics.stories import START_MS, Teller, middles, moment_ms


def changed(*tellers: Teller) -> list[dict[str, Any]]:
    """The changes of primary that they speak of."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    events = []
    for line in (line for teller in tellers for line in teller.lines):
        ts_ms, kind = moment_ms(line), line["kind"]
        if kind == "event":
            events.append(dict.fromkeys(EVENT) | line | {"ts_ms": ts_ms})
        if kind != "sample" or line["primary"] != line["sender"]:
            continue
        names = {name: line[name] for name in ("epoch", "primary", "kind")}
        row = rows.setdefault(tuple(names.values()), names | {"first_ms": ts_ms, "begin_interval_ms": line["interval_ms"]})
        row |= {"last_ms": ts_ms, "end_interval_ms": line["interval_ms"], "mine": True, "inside": True, "problem": None}
    terms = expected.terms(rows.values(), end_ms=max(row["last_ms"] for row in rows.values()) + 1)
    return failovers.failovers(terms, events)


def times(change: dict[str, Any]) -> list[float | None]:
    """The gap, and its parts."""
    return [change[f"{name}_ms"] for name in ("gap", "detection", "decision", "promotion")]


def test_an_alarm_that_was_false_is_no_cause() -> None:
    """A backup that was paused at 25 s took the primary for dead. The primary died at 55 s: noticed 20 ms later, asked 20 ms on,
    served 60 ms after that.
    """
    p, q, c = Teller("p"), Teller("q"), Teller("c")
    for second in middles(0, 55):
        p.sample(second, "q")
        p.sample(second, "c")
    c.event(25.0, "failure_detected", "p", epoch=1)
    q.event(55.02, "failure_detected", "p", epoch=1)
    q.event(55.04, "promote_asked", epoch=1)
    q.event(55.1, "failover_done", epoch=2, to="q", duration_ms=100.0)
    for second in middles(55, 90):
        q.sample(second + 0.2, "c", epoch=2)
    (change,) = changed(p, q, c)
    assert (change["kind"], times(change)) == ("failover", [100, 20, 20, 60])
    assert change["at_ms"] == START_MS + 55_100


def test_a_gap_that_is_counted_from_noticing_has_the_time_until_then_added() -> None:
    """The primary's machine froze: 947 ms until the new one noticed, and 101 ms from there, which is what it says of the gap.

    A minute later that one froze, and nobody says how long it took to notice: its last sample is of 89.5 s, the gap is no longer
    than from there, and so it is told.
    """
    p, q, r = Teller("p"), Teller("q"), Teller("r")
    for second in middles(0, 30):
        p.sample(second, "q")
    q.event(30.947, "failure_detected", "p", epoch=1, duration_ms=947.0)
    q.event(30.957, "promote_asked", epoch=1)
    q.event(31.048, "failover_done", epoch=2, to="q", duration_ms=101.0)
    for second in middles(31, 90):
        q.sample(second, "p", epoch=2, connected=False)
    r.event(90.947, "failure_detected", "q", epoch=2)
    r.event(91.048, "failover_done", epoch=3, to="r", duration_ms=101.0)
    for second in middles(91, 120):
        r.sample(second + 0.2, "q", epoch=3, connected=False)
    measured, estimated = changed(p, q, r)
    assert (times(measured), measured["measured"]) == ([1048, 947, 10, 91], True)
    assert (estimated["gap_ms"], estimated["detection_ms"], estimated["measured"]) == (1548, 1447, False)


@pytest.mark.parametrize("ahead_s", [3.0, -1.5], ids=["ahead", "behind"])
def test_a_resource_managers_clock_changes_no_length(ahead_s: float) -> None:
    """Killed at 40 s, noticed 500 ms later, asked 50 ms later, served 300 ms after that; the role is told 50 ms before."""
    p, q, manager = Teller("p"), Teller("q"), Teller("rm", ahead_s=ahead_s)
    for second in middles(0, 40):
        p.sample(second, "q")
    manager.event(40.5, "failure_detected", "p", epoch=1)
    manager.event(40.55, "promote_asked", "q", epoch=1)
    q.event(40.55, "promote_asked", epoch=1)
    q.event(40.8, "role", epoch=2, to="active", **{"from": "recovering"})
    q.event(40.85, "failover_done", epoch=2, to="q", duration_ms=850.0)
    manager.event(40.86, "promote_won", "q", epoch=2, duration_ms=310.0)
    for second in middles(41, 70):
        q.sample(second, "p", epoch=2, connected=False)
    (change,) = changed(p, q, manager)
    assert (times(change), change["at_ms"]) == ([850, 500, 50, 300], START_MS + 40_850)


def test_two_failovers_in_a_minute_have_their_own_times() -> None:
    """Each is noticed after 600 ms, asked at once, and over 300 ms later."""
    tellers = {name: Teller(name) for name in "pqr"}
    for epoch, (old, new, killed_s) in enumerate([("p", "q", 20), ("q", "r", 40)], 1):
        for second in middles(killed_s - 20, killed_s):
            tellers[old].sample(second + (0.95 if epoch > 1 and second < 21 else 0), "c", epoch=epoch)
        teller = tellers[new]
        teller.event(killed_s + 0.6, "failure_detected", old, epoch=epoch)
        teller.event(killed_s + 0.6, "promote_asked", epoch=epoch)
        teller.event(killed_s + 0.9, "failover_done", epoch=epoch + 1, to=new, duration_ms=900.0)
    for second in middles(41, 60):
        tellers["r"].sample(second, "c", epoch=3)
    found = changed(*tellers.values())
    assert [times(change) for change in found] == [[900, 600, 0, 300]] * 2


def test_a_restart_after_an_outage_is_a_failover_although_nobody_noticed_a_failure() -> None:
    p = Teller("p")
    for second in (*middles(0, 10), *middles(20, 30)):
        if second == 20.5:
            p.event(20.1, "promote_asked", detail="there is no primary yet")
            p.event(20.2, "failover_done", epoch=2, to="p")
        p.sample(second, "b", epoch=1 if second < 10 else 2)
    (change,) = changed(p)
    assert (change["kind"], change["measured"], change["gap_ms"]) == ("failover", False, 10_700)


def test_a_switchover_is_one_although_its_new_primary_fails_later() -> None:
    p, q, manager = Teller("p"), Teller("q"), Teller("rm")
    for second in (*middles(0, 10), *middles(22, 30)):
        p.sample(second, "b", epoch=1 if second < 10 else 3)
    q.event(10.1, "promote_asked", detail="planned switchover")
    q.event(10.2, "failover_done", epoch=2, to="q", duration_ms=100.0)
    for second in middles(10, 20):
        q.sample(second, "b", epoch=2)
    manager.event(21.0, "failure_detected", "q", epoch=2)
    changes = changed(p, q, manager)
    assert [change["kind"] for change in changes] == ["switchover", "failover"]
    assert [change["detection_ms"] is not None for change in changes] == [False, True]


def test_a_failover_without_any_event_is_still_found_and_its_gap_said_to_be_estimated() -> None:
    p, q = Teller("p"), Teller("q")
    for second in middles(0, 10):
        p.sample(second, "b")
    for second in middles(13, 20):
        q.sample(second, "b", epoch=2)
    (change,) = changed(p, q)
    assert (change["kind"], change["previous"], change["primary"], change["measured"]) == ("failover", "p", "q", False)
    assert change["gap_ms"] == 4000
