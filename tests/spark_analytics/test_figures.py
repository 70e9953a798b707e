"""What is worked out from rows without Spark: clocks, burn rates, lanes, worst hours, and two spans beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from spark_analytics.jobs import clocks, compare, series, slo, summarise
from spark_analytics.jobs.scope import Scope
from spark_analytics.jobs.series import Axis
from spark_analytics.jobs.spans import DAY, HOUR, MINUTE
from spark_analytics.transforms.expected import Segment, within


def view(sender: str, second: int, commit: int, *, clock_ms: int = 0) -> dict[str, Any]:
    return {"epoch": 1, "primary": "p", "sender": sender, "ts_ms": 1000 * second + clock_ms, "commit_index": commit}


def test_a_clock_that_is_ahead_is_found_from_the_commit_indexes_that_both_name() -> None:
    primary = [view("p", second, 10 * second) for second in range(0, 100, 10)]
    ahead = [view("b", second, 10 * second, clock_ms=90_000) for second in range(5, 95, 7)]
    behind = [view("c", second, 10 * second, clock_ms=-250) for second in range(5, 95, 7)]
    assert clocks.offsets([*primary, *ahead, *behind]) == [
        {"sender": "b", "against": "p", "offset_ms": 90_000, "pairs": 13},
        {"sender": "c", "against": "p", "offset_ms": -250, "pairs": 13},
    ]


def test_an_index_that_stands_still_says_nothing_of_clocks_and_neither_do_two_looks() -> None:
    still = [view(sender, second, 7) for sender in "pb" for second in range(0, 100, 10)]
    few = [view("c", second, 7 + second) for second in (200, 210)]
    assert clocks.offsets([*still, *few, *(view("p", second, 7 + second) for second in range(200, 300, 10))]) == []


@pytest.mark.parametrize("interval_ms", [100, 700, 1000, 3000, 7000, 30_000])
@pytest.mark.parametrize("window_ms", [None, 2000, 10_000])
def test_the_last_interval_is_on_the_axes_wherever_the_span_ends_in_it(interval_ms: int, window_ms: int | None) -> None:
    for end_ms in (181_000, 302_000, 599_950, 605_000):
        found = Scope(0, end_ms, end_ms, interval_ms, "c", ("c",), {}, 100, interval_ms, [], frozenset())
        cut = summarise.cut_of(found, window_ms)
        (its,) = within([Segment("b", "q", 0, end_ms + interval_ms, interval_ms)], 0, end_ms, interval_ms=interval_ms)
        for length in (cut.step_ms, cut.heat_ms):
            last = {"start_ms": (its.to_ms - 1) // length * length}
            assert Axis.over(0, end_ms, length).at(last) < Axis.over(0, end_ms, length).count


def step(start_ms: int, over: int, *, expected: int = 60, backup: str = "b") -> dict[str, Any]:
    return {"backup": backup, "start_ms": start_ms, "over_ms": 1000 * over, "expected_ms": 1000 * expected}


def test_burn_rates_are_shares_over_the_objective_in_units_of_the_budget() -> None:
    axis = Axis.over(0, 7 * HOUR, MINUTE)
    rows = [step(minute * MINUTE, 60 if minute >= 410 else 0) for minute in range(420)]
    found = slo.burn(rows, rows, axis, axis, end_ms=7 * HOUR, target=0.99)
    state = found["backups"][0]
    assert state["rates"] == {"5m": 100.0, "1h": pytest.approx(16.667), "6h": pytest.approx(2.778), "3d": None}
    assert state["alerts"] == ["fast"]
    assert state["over_ms"] == 600_000
    assert found["budget_ms"] == 252_000
    assert state["spent"] == pytest.approx(600 / 252, abs=1e-3)
    assert found["backups"][1]["backup"] is None
    assert found["series"]["backups"]["b"]["5m"][408:412] == [0.0, 0.0, 20.0, 40.0]
    assert found["series"]["backups"]["b"]["1h"][58:60] == [None, 0.0], "an hour must have passed"


def test_a_step_that_is_longer_than_a_rates_span_gives_none() -> None:
    axis = Axis.over(0, 2 * DAY, 10 * MINUTE)
    rows = [step(at * 10 * MINUTE, 0, expected=600) for at in range(288)]
    assert slo.burn(rows, rows, axis, axis, end_ms=2 * DAY, target=0.5)["backups"][0]["rates"]["5m"] is None


@pytest.mark.parametrize("step_minutes", [1, 2, 5])
@pytest.mark.parametrize("over_s", [1, 60, 120, 150, 240, 300])
def test_the_last_rates_are_known_however_little_of_the_last_step_is_over(step_minutes: int, over_s: int) -> None:
    """Half of the time is over the objective, since the start."""
    length, end_ms = step_minutes * MINUTE, 12 * HOUR + over_s * 1000
    axis = Axis.over(0, end_ms, length)
    of_step = [min((at + 1) * length, end_ms) - at * length for at in range(axis.count)]
    rows = [
        {"backup": "b", "start_ms": at * length, "over_ms": passed // 2, "expected_ms": passed}
        for at, passed in enumerate(of_step)
    ]
    found = slo.burn(rows, rows, axis, axis, end_ms=end_ms, target=0.99)
    for state in found["backups"]:
        assert {name: rate and round(rate) for name, rate in state["rates"].items()} == {"5m": 50, "1h": 50, "6h": 50, "3d": None}
        assert state["alerts"] == ["fast", "slow"]
    assert round(found["series"]["backups"]["b"]["5m"][-1]) == 50


def test_a_rate_at_the_end_forgets_what_is_a_step_older_than_its_span() -> None:
    end_ms = 12 * HOUR + MINUTE
    axis = Axis.over(0, end_ms, 5 * MINUTE)
    rows = [step(at * 5 * MINUTE, 150 if at < axis.count - 2 else 0, expected=300) for at in range(axis.count - 1)]
    rows.append(step(12 * HOUR, 0))
    assert slo.burn(rows, rows, axis, axis, end_ms=end_ms, target=0.99)["backups"][0]["rates"]["5m"] == 0


def test_a_backup_that_was_just_added_has_no_budget_that_it_could_overspend() -> None:
    """b is there for seven hours, and c for the last ten minutes, one of which was over the objective."""
    axis = Axis.over(0, 7 * HOUR, MINUTE)
    rows = [step(minute * MINUTE, 0) for minute in range(420)]
    rows += [step(minute * MINUTE, 60 if minute == 410 else 0, backup="c") for minute in range(410, 420)]
    found = slo.burn(rows, rows, axis, axis, end_ms=7 * HOUR, target=0.99)
    assert [(row["backup"], row["over_ms"], row["spent"]) for row in found["backups"]] == [
        ("b", 0, 0),
        ("c", 60_000, None),
        (None, 60_000, pytest.approx(60 / 25800 / 0.01, abs=1e-4)),
    ]


def test_a_backup_that_has_become_the_primary_burns_nothing_by_its_last_second_as_a_backup() -> None:
    axis = Axis.over(0, 10 * MINUTE, MINUTE)
    rows = [step(0, 0), step(MINUTE, 0), step(2 * MINUTE, 0), step(3 * MINUTE, 1, expected=1)]
    rates = slo.burn(rows, rows, axis, axis, end_ms=10 * MINUTE, target=0.99)["series"]["backups"]["b"]["5m"]
    assert rates[4:] == [pytest.approx(100 / 181, abs=1e-3), None, None, None, None, None]


def test_neighbouring_steps_of_one_status_are_one_piece_of_a_lane_and_spells_are_counted_by_coming_to_it() -> None:
    axis = Axis.over(500, 6000, 1000)
    statuses = ["OK", "SILENT", "STOPPED", "STALLED", "SILENT"]
    rows = [{"backup": "b", "start_ms": 1000 * i, "status": status} for i, status in enumerate(statuses)]
    terms = [{"primary": "b", "begin_ms": 5200, "end_ms": 6000, "last_said_ms": 5500}]
    lanes = series.lanes(rows, terms, axis, begin_ms=500, end_ms=6000, interval_ms=1000)
    assert lanes == {
        "b": [
            [500, 1000, "OK"],
            [1000, 2000, "SILENT"],
            [2000, 3000, "STOPPED"],
            [3000, 4000, "STALLED"],
            [4000, 5000, "SILENT"],
            [5200, 6000, "PRIMARY"],
        ]
    }
    assert series.spells(lanes["b"], ["SILENT", "STOPPED"]) == 2


def short(backup: str, minute: int, status: str, backlog: int = 0, **figures: float | None) -> dict[str, Any]:
    """A window of a minute."""
    rates = {"ack_rate": 1.0, "commit_rate": 1.0, "catch_up_rate": 0.0, "forecast_ms": None}
    return rates | {"backup": backup, "start_ms": minute * MINUTE, "status": status, "backlog": backlog} | figures


def test_the_state_at_the_end_is_that_of_the_last_short_window() -> None:
    rows = [short("b", 0, "REWOUND"), short("b", 1, "OK", 7, ack_rate=5.0)]
    found = series.states(rows, length_ms=MINUTE, end_ms=MINUTE + 30_000)
    assert found == {
        "b": {"status": "OK", "backlog": 7, "ack_rate": 5.0, "commit_rate": 1.0, "catch_up_rate": 0.0} | {"forecast_ms": None}
    }


def test_while_the_last_short_window_has_just_begun_the_one_before_counts_too() -> None:
    rows = [
        *(short("b", 0, "STALLED"), short("c", 0, "OK", 60, catch_up_rate=4.0), short("gone", 0, "LAGGING")),
        *(short("b", 1, "OK"), short("c", 1, "STOPPED", 20, catch_up_rate=None), short("new", 1, "OK")),
        *(short("b", 2, "OK"), short("c", 2, "OK", 8, catch_up_rate=None), short("back", 0, "SILENT"), short("back", 2, "OK")),
    ]
    of = {
        end: series.states(rows[:at], length_ms=MINUTE, end_ms=end)
        for end, at in ((MINUTE + 10_000, 6), (2 * MINUTE + 10_000, 10))
    }
    assert {name: row["status"] for name, row in of[MINUTE + 10_000].items()} == {
        "b": "STALLED",
        "c": "STOPPED",
        "gone": "LAGGING",
        "new": "OK",
    }
    c = of[MINUTE + 10_000]["c"]
    assert (c["backlog"], c["catch_up_rate"], c["forecast_ms"]) == (20, 4.0, 5000), (
        "the newest backlog at the pace of the minute before"
    )
    assert {name: row["status"] for name, row in of[2 * MINUTE + 10_000].items()} == {
        "b": "OK",
        "c": "STOPPED",
        "gone": "LAGGING",
        "new": "OK",
        "back": "OK",
    }, "a window before a gap is no longer the state"


def test_worst_hours_leave_out_those_within_the_objective_and_are_cut_at_the_ends_of_the_span() -> None:
    def hour(start_ms: int, over: int, queue: str | None = None) -> dict[str, Any]:
        figures = {"status": "OK", "p99_ms": 1.0, "worst_ms": 2.0, "stall_ms": 0.0}
        return step(start_ms, over) | figures | {"queue": queue, "over_share": over / 60}

    rows = [hour(0, 0), hour(HOUR, 2), hour(2 * HOUR, 5), hour(2 * HOUR, 9, "q")]
    found = series.worst_hours(rows, length_ms=HOUR, begin_ms=0, end_ms=2 * HOUR + MINUTE)
    assert [(row["queue"], row["start_ms"], row["length_ms"]) for row in found] == [
        (None, 2 * HOUR, MINUTE),
        (None, HOUR, HOUR),
        ("q", 2 * HOUR, MINUTE),
    ]


def test_two_spans_are_set_beside_each_other_also_where_a_backup_is_in_one_only() -> None:
    def report(**p99: float) -> dict[str, Any]:
        names = dict.fromkeys(compare.FIGURES, 1.0)
        rows = [names | {"backup": name, "p99_ms": value, "over_share": 0.5, "expected": 10} for name, value in p99.items()]
        lanes = {name: [[0, 1, "OK"], [1, 2, "STALLED"]] for name in p99}
        return {"from_ms": 0, "to_ms": 2, "backups": rows, "lanes": lanes, "failovers": [{}]}

    found = compare.compare(report(a=5.0), report(a=7.5, b=1.0))
    a, b = found["backups"]
    assert (a["before"]["p99_ms"], a["after"]["p99_ms"], a["change"]["p99_ms"]) == (5.0, 7.5, 2.5)
    assert (b["before"]["p99_ms"], b["change"]["p99_ms"]) == (None, None)
    assert found["all"]["change"]["p99_ms"] == 2.5
    assert (found["all"]["before"]["stalls"], found["all"]["after"]["stalls"], found["all"]["change"]["failovers"]) == (1, 2, 0)


def test_the_map_shows_only_queues_that_were_looked_at_and_counts_the_others() -> None:
    cells = [{"queue": "worse", "start_ms": 0, "worst_ms": 5.0, "status": "OK"}]
    found = series.heat(cells, ["worst", "worse"], Axis.over(0, 2000, 1000))
    assert [(row["queue"], row["worst_ms"]) for row in found["rows"]] == [("worse", [5.0, None])]
    assert found["queues_in_all"] == 2
