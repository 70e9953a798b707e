"""Where a summary ends: worked out from who said something until when, without Spark."""

from __future__ import annotations

from pyspark.sql import Row

from spark_analytics.jobs import scope
from spark_analytics.jobs.scope import Scope

START_MS = 1_767_600_000_000


def said(sender: str, until_s: float, kind: str = "sample", *, since_s: float = 0, is_primary: bool = False) -> Row:
    """The lines of a sender, one each second, in the middle of the second."""
    return Row(
        cluster="c",
        epoch=1,
        sender=sender,
        kind=kind,
        primary="p",
        problem=None,
        inside=True,
        mine=is_primary,
        lines=round(until_s - since_s),
        first_ms=START_MS + round(since_s * 1000) + 500,
        last_ms=START_MS + round(until_s * 1000) - 500,
        shortest_ms=1000,
        interval_ms=1000,
        begin_interval_ms=1000,
        end_interval_ms=1000,
    )


P = said("p", 600, is_primary=True)


def found(*rows: Row, now_s: float) -> Scope:
    now_ms = START_MS + round(now_s * 1000)
    return scope.find(rows, "telemetry", now_ms=now_ms, since_ms=None, until_ms=None, cluster=None)


def end_s(*rows: Row, now_s: float = 5000) -> float:
    return (found(*rows, now_s=now_s).end_ms - START_MS) / 1000


def test_a_clock_that_is_minutes_ahead_does_not_lengthen_a_summary_of_now() -> None:
    for other in (said("rm", 780, "probe", since_s=180), said("b", 780, since_s=180)):
        its = found(P, other, now_s=601)
        assert (its.end_ms, its.quality["age_ms"]) == (START_MS + 600_000, 0)
    assert end_s(P, said("b", 780, since_s=180), now_s=719) == 600
    assert end_s(P, said("b", 900, since_s=180), now_s=721) == 721 + 1, "nothing of the primary for two minutes: it is gone"


def test_when_most_others_end_with_the_primary_the_one_that_continues_has_a_wrong_clock() -> None:
    ahead = said("b", 780, since_s=180)
    assert end_s(P, ahead, said("c", 600), said("rm", 600, "probe")) == 600
    assert end_s(P, ahead, said("c", 780), said("rm", 600, "probe")) == 780
    assert end_s(P, ahead, said("c", 600)) == 780, "half of them: the primary may have failed together with c"
    assert end_s(P, ahead, said("c", 400), said("d", 300)) == 780, "those that were away before say nothing about it"


def test_a_primary_that_continues_as_a_backup_is_no_primary_any_more() -> None:
    assert end_s(P, said("p", 900, since_s=600), said("b", 610), said("c", 610)) == 900


def test_when_all_brokers_are_lost_the_one_that_still_speaks_now_has_no_wrong_clock() -> None:
    brokers, managers = [said(name, 600) for name in "bcde"], [said(name, 1800, "probe") for name in ("rm", "rm2")]
    for backups, others in ((2, 1), (4, 1), (4, 2)):
        its = found(P, *brokers[:backups], *managers[:others], now_s=1800)
        assert (its.end_ms, its.quality["age_ms"]) == (START_MS + 1_800_000, 500)
    assert end_s(P, *brokers, managers[0], now_s=9000) == 600, "nobody speaks now"


def test_a_clock_that_is_an_hour_ahead_is_not_taken_for_one_that_still_speaks_now() -> None:
    """As in a folder that was copied, or is copied every few minutes: all others seem to have ended with the primary."""
    ahead, others = said("b", 4200, since_s=3600), [said("c", 600), said("d", 600), said("rm", 600, "probe")]
    assert [end_s(P, ahead, *others, now_s=now_s) for now_s in (719, 725, 900, 1800, 3600)] == [600] * 5
