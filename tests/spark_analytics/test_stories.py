"""Stories whose right answer is worked out by hand, here, and not by the product: each was told wrongly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_analytics.jobs.summarise import Report
from tests.spark_analytics.conftest import Summarise
from tests.spark_analytics.stories import START_MS, Teller, middles


def told(summary: Summarise, folder: Path, *tellers: Teller, **asked: Any) -> Report:
    """The report of what they said."""
    for teller in tellers:
        teller.write(folder)
    return summary(folder, **({"now_ms": START_MS + 700_000} | asked))


def backup(report: Report, name: str) -> dict[str, Any]:
    """A backup's whole log over the whole span."""
    (row,) = [row for row in report["backups"] if row["backup"] == name]
    return dict(row)


# ---- a cluster that is well


def test_a_running_primary_whose_newest_file_is_still_hidden_keeps_its_backups_ok(summary: Summarise, tmp_path: Path) -> None:
    """The primary's last 30 s stand in a hidden file, whose last line is a half; the backups' own files are whole."""
    p, b, c = Teller("p"), Teller("b"), Teller("c")
    for second in middles(0, 60):
        p.sample(second, "b", 2.0)
        p.sample(second, "c", 2.0)
        for own in (b, c):
            own.sample(second + 0.1, own.name, primary="p", role="backup")
    for own in (b, c):
        own.write(tmp_path)
    p.write(tmp_path, hidden_from_s=30)
    report = summary(tmp_path)
    assert {row["backup"]: row["now"] for row in report["backups"]} == {"b": "OK", "c": "OK"}
    assert [row["n"] for row in report["backups"]] == [60, 60]


@pytest.mark.parametrize("missing", [0, 30], ids=["all there", "the primary's newest file not copied"])
def test_clocks_that_are_three_seconds_ahead_make_nobody_silent(summary: Summarise, tmp_path: Path, missing: int) -> None:
    p, b, manager = Teller("p"), Teller("b", ahead_s=3), Teller("rm", ahead_s=3)
    for second in middles(0, 120):
        if second < 120 - missing:
            p.sample(second, "b", 2.0)
            p.sample(second, "c", 2.0)
        b.sample(second, "b", primary="p", role="backup")
        manager.probe(second, "p")
    report = told(summary, tmp_path, p, b, manager)
    assert {row["now"] for row in report["backups"]} == {"OK"}
    assert report["to_ms"] == START_MS + (120 - missing) * 1000 - 499, "the primary's last line, at the half second"


def test_a_primary_that_is_gone_while_others_speak_on_leaves_its_backups_silent(summary: Summarise, tmp_path: Path) -> None:
    p, manager = Teller("p"), Teller("rm")
    for second in middles(0, 600):
        if second < 300:
            p.sample(second, "b")
        manager.probe(second, "p")
    assert backup(told(summary, tmp_path, p, manager), "b")["now"] == "SILENT"


# ---- one lost sample, and a short gap


def test_one_sample_of_an_idle_backup_that_is_lost_moves_no_percentile(summary: Summarise, tmp_path: Path) -> None:
    p = Teller("p")
    for second in middles(0, 400):
        p.sample(second, "b")
    del p.lines[200]
    row = backup(told(summary, tmp_path, p), "b")
    assert (row["p50_ms"], row["p95_ms"], row["p99_ms"]) == (0, 0, 0), "399 of 400 are 0"


def test_a_gap_of_less_than_a_second_leaves_a_steady_brokers_percentiles_alone(summary: Summarise, tmp_path: Path) -> None:
    p, q = Teller("p"), Teller("q")
    for second in middles(0, 200):
        p.sample(second, "c", 3.0)
    for second in middles(201, 400):
        q.sample(second, "c", 3.0, epoch=2)
    q.event(200.9, "failover_done", epoch=2, to="q", duration_ms=900.0)
    row = backup(told(summary, tmp_path, p, q), "c")
    assert row["max_ms"] == 3
    assert [row[name] for name in ("p50_ms", "p95_ms", "p99_ms")] == pytest.approx([3, 3, 3], rel=0.2)


# ---- failovers


def changed(summary: Summarise, folder: Path, *tellers: Teller) -> list[dict[str, Any]]:
    """The changes of primary."""
    return list(told(summary, folder, *tellers)["failovers"])


def times(change: dict[str, Any]) -> list[float | None]:
    """The gap, and its parts."""
    return [change[f"{name}_ms"] for name in ("gap", "detection", "decision", "promotion")]


def test_an_alarm_that_was_false_is_no_cause(summary: Summarise, tmp_path: Path) -> None:
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
    (change,) = changed(summary, tmp_path, p, q, c)
    assert (change["kind"], times(change)) == ("failover", [100, 20, 20, 60])
    assert change["at_ms"] == START_MS + 55_100


def test_a_gap_that_is_counted_from_noticing_has_the_time_until_then_added(summary: Summarise, tmp_path: Path) -> None:
    """The primary's machine froze: 947 ms until the new one noticed, and 101 ms from there, which is what it says of the gap."""
    p, q = Teller("p"), Teller("q")
    for second in middles(0, 30):
        p.sample(second, "q")
    q.event(30.947, "failure_detected", "p", epoch=1, duration_ms=947.0)
    q.event(30.957, "promote_asked", epoch=1)
    q.event(31.048, "failover_done", epoch=2, to="q", duration_ms=101.0)
    for second in middles(31, 60):
        q.sample(second + 0.2, "p", epoch=2, connected=False)
    (change,) = changed(summary, tmp_path, p, q)
    assert (times(change), change["measured"]) == ([1048, 947, 10, 91], True)


def test_without_a_word_on_how_long_it_took_to_notice_the_gap_is_estimated_and_said_to_be(
    summary: Summarise, tmp_path: Path
) -> None:
    """The old primary's last sample is of 29.5 s: the gap is no longer than from there, and so it is told."""
    p, q = Teller("p"), Teller("q")
    for second in middles(0, 30):
        p.sample(second, "q")
    q.event(30.947, "failure_detected", "p", epoch=1)
    q.event(31.048, "failover_done", epoch=2, to="q", duration_ms=101.0)
    for second in middles(31, 60):
        q.sample(second + 0.2, "p", epoch=2, connected=False)
    (change,) = changed(summary, tmp_path, p, q)
    assert (change["gap_ms"], change["detection_ms"], change["measured"]) == (1548, 1447, False)


@pytest.mark.parametrize("ahead_s", [0.0, 3.0, -1.5], ids=["one clock", "ahead", "behind"])
def test_a_resource_managers_clock_changes_no_length(summary: Summarise, tmp_path: Path, ahead_s: float) -> None:
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
    (change,) = changed(summary, tmp_path, p, q, manager)
    assert (times(change), change["at_ms"]) == ([850, 500, 50, 300], START_MS + 40_850)


def test_two_failovers_in_a_minute_have_their_own_times(summary: Summarise, tmp_path: Path) -> None:
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
    found = changed(summary, tmp_path, *tellers.values())
    assert [times(change) for change in found] == [[900, 600, 0, 300]] * 2


# ---- the error budget


@pytest.mark.parametrize("interval_s, hours", [(10, 14), (60, 73)], ids=["10 s", "60 s"])
def test_a_backup_that_is_well_burns_nothing_whatever_the_interval(
    summary: Summarise, tmp_path: Path, interval_s: int, hours: int
) -> None:
    p = Teller("p", interval_s=interval_s)
    for second in middles(0, hours * 3600, interval_s):
        p.sample(second, "b", 1.0)
    report = told(summary, tmp_path, p, now_ms=START_MS + hours * 3_600_000)
    for row in report["slo"]["backups"]:
        assert (row["spent"], row["alerts"]) == (0, [])
        assert {rate for rate in row["rates"].values() if rate is not None} == {0}


def test_a_planned_restart_in_ten_minutes_is_not_set_against_a_budget(summary: Summarise, tmp_path: Path) -> None:
    """1 % of ten minutes are six seconds: of so short a span no budget is told, and nothing burns."""
    p, q = Teller("p"), Teller("q")
    for second in middles(0, 300):
        p.sample(second, "c")
    q.event(300.1, "promote_asked", epoch=1, detail="planned switchover")
    q.event(301.4, "failover_done", epoch=2, to="q", duration_ms=1200.0)
    for second in middles(302, 600):
        q.sample(second, "c", epoch=2)
    report = told(summary, tmp_path, p, q)
    (change,) = report["failovers"]
    assert (change["kind"], change["gap_ms"]) == ("switchover", 1200)
    assert {(row["spent"], *row["alerts"]) for row in report["slo"]["backups"]} == {(None,)}
