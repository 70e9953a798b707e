"""Stories whose right answer is worked out by hand, here, and not by the product: each was told wrongly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_analytics.dashboard import metrics, text
from spark_analytics.errors import Refused
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


@pytest.mark.parametrize(
    "missing, ahead_s", [(0, 180.0), (30, 3.0)], ids=["three minutes, the newest file still hidden", "3 s, and not copied"]
)
def test_clocks_of_others_that_are_ahead_make_nobody_silent(
    summary: Summarise, tmp_path: Path, missing: int, ahead_s: float
) -> None:
    """The primary's last 30 s stand in a hidden file, whose last line is a half; the backups' own files are whole."""
    p, manager = Teller("p"), Teller("rm", ahead_s=ahead_s)
    backups = [Teller(name, ahead_s=ahead_s) for name in "bc"]
    for second in middles(0, 120):
        manager.probe(second, "p")
        for own in backups:
            own.sample(second + 0.1, own.name, primary="p", role="backup")
            if second < 120 - missing:
                p.sample(second, own.name, 2.0)
    p.write(tmp_path, hidden_from_s=None if missing else 90)
    report = told(summary, tmp_path, *backups, manager, now_ms=START_MS + 121_000)
    heard = 120 - missing
    assert [(row["backup"], row["now"], row["n"]) for row in report["backups"]] == [("b", "OK", heard), ("c", "OK", heard)]
    assert report["to_ms"] == START_MS + heard * 1000, "the end of the primary's last interval"


@pytest.fixture(scope="module")
def all_lost(summary: Summarise, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The primary is lost after 120 s and its backups, which spoke on, after 240 s; the resource manager speaks until 600 s."""
    p, manager, backups = Teller("p"), Teller("rm"), [Teller(name) for name in "bc"]
    for second in middles(0, 600):
        manager.probe(second, "p")
        for own in backups if second < 240 else ():
            own.sample(second, own.name, primary="p", role="backup")
            if second < 120:
                p.sample(second, own.name)
    return told(summary, tmp_path_factory.mktemp("all_lost"), p, manager, *backups)


def test_a_primary_that_is_gone_while_others_speak_on_leaves_its_backups_silent(all_lost: Report) -> None:
    assert {row["backup"]: row["now"] for row in all_lost["backups"]} == {"b": "SILENT", "c": "SILENT"}
    assert {row["silence_ms"] for row in all_lost["backups"]} == {480_500}, "since the last sample, to the end of the interval"


def test_when_all_brokers_are_lost_the_resource_manager_still_shows_it(all_lost: Report) -> None:
    assert all_lost["to_ms"] >= START_MS + 599_500, "it alone speaks of these minutes"
    assert all_lost["loss"]["answer"] == "no"


# ---- one lost sample, a short gap, and a planned restart


@pytest.fixture(scope="module")
def restarted(summary: Summarise, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Ten minutes: of `idle` one sample is lost, q takes over from p within a second at 200 s, and p from q at 400 s, when q is
    restarted as planned."""
    p, q = Teller("p"), Teller("q")
    for second in middles(0, 200):
        p.sample(second, "c", 3.0)
        if second != 100.5:
            p.sample(second, "idle")
    q.event(200.9, "failover_done", epoch=2, to="q", duration_ms=900.0)
    for second in middles(201, 400):
        q.sample(second, "c", 3.0, epoch=2)
        q.sample(second, "idle", epoch=2)
    p.event(400.1, "promote_asked", epoch=2, detail="planned switchover")
    p.event(401.4, "failover_done", epoch=3, to="p", duration_ms=1200.0)
    for second in middles(402, 600):
        p.sample(second, "c", 3.0, epoch=3)
        p.sample(second, "idle", epoch=3)
    return told(summary, tmp_path_factory.mktemp("restarted"), p, q)


def test_a_lost_sample_and_a_gap_of_less_than_a_second_leave_percentiles_alone(restarted: Report) -> None:
    """Three seconds are without a primary, and one sample is lost: less than 1 % of 600."""
    idle, steady = backup(restarted, "idle"), backup(restarted, "c")
    assert (idle["n"], idle["p50_ms"], idle["p95_ms"], idle["p99_ms"]) == (596, 0, 0, 0)
    assert (steady["n"], steady["max_ms"]) == (597, 3)
    assert [steady[name] for name in ("p50_ms", "p95_ms", "p99_ms")] == pytest.approx([3, 3, 3], rel=0.2)


# ---- the error budget


def assert_burns_nothing(report: Report, name: str) -> None:
    """Of its budget."""
    (row,) = [row for row in report["slo"]["backups"] if row["backup"] == name]
    assert (row["spent"], row["alerts"]) == (0, [])
    assert {rate for rate in row["rates"].values() if rate is not None} == {0}


def test_a_backup_that_is_well_burns_nothing_at_a_sample_every_ten_seconds(summary: Summarise, tmp_path: Path) -> None:
    p = Teller("p", interval_s=10)
    for second in middles(0, 14 * 3600, 10):
        p.sample(second, "b", 1.0)
    assert_burns_nothing(told(summary, tmp_path, p, now_ms=START_MS + 14 * 3_600_000), "b")


def test_a_backup_that_is_well_burns_nothing_at_a_sample_a_minute(three_days: Report) -> None:
    assert_burns_nothing(three_days, "well")


def test_a_backup_that_is_well_burns_nothing_if_hours_and_minutes_are_no_multiples_of_the_interval(
    summary: Summarise, tmp_path: Path
) -> None:
    """A sample every 35 seconds: of two hours, one may have a sample more than the other."""
    p = Teller("p", interval_s=35)
    begin = -(START_MS // 1000) % 35
    for second in middles(begin, begin + 31 * 3600, 35):
        p.sample(second, "b", 1.0)
    report = told(summary, tmp_path, p, now_ms=START_MS + 32 * 3_600_000)
    assert_burns_nothing(report, "b")
    assert (report["worst_hours"], {window["over_share"] for window in report["windows"]}) == ([], {0})


def test_a_planned_restart_in_ten_minutes_is_not_set_against_a_budget(restarted: Report) -> None:
    """1 % of ten minutes are six seconds: of so short a span no budget is told, and nothing burns."""
    changes = [(change["kind"], change["gap_ms"]) for change in restarted["failovers"]]
    assert changes == [("failover", 900), ("switchover", 1200)]
    assert {(row["spent"], *row["alerts"]) for row in restarted["slo"]["backups"]} == {(None,)}


# ---- times and intervals


@pytest.fixture(scope="module")
def begun_anew(summary: Summarise, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """p numbers its lines from an hour ago on after it has begun anew at 1805 s, because its clock was set only then. In the
    process before, one sample of each backup is told with a time that is two hours late."""
    p = Teller("p")
    for second in middles(0, 1800):
        for name in "bc":
            p.sample(second + (7200 if second == 300.5 else 0), name, 2.0)
    before = len(p.lines)
    for second in middles(1805, 1865):
        p.sample(second, "b", 9000.0, epoch=2)
        p.sample(second, "c", 2.0, epoch=2)
    for number, line in enumerate(p.lines[before:]):
        line["seq"] = (START_MS - 1_795_000) * 1000 + number
    return told(summary, tmp_path_factory.mktemp("begun_anew"), p, now_ms=START_MS + 10_000_000)


def test_a_clock_that_leaps_two_hours_for_one_line_stretches_nothing(begun_anew: Report) -> None:
    """1865 seconds, of which c lacks the one that is told late, and the five without a primary."""
    row = backup(begun_anew, "c")
    assert (row["expected"], row["n"], row["p50_ms"], row["p99_ms"]) == (1865, 1859, 2, 2)
    assert row["over_share"] == pytest.approx(6 / 1865, abs=1e-4)
    assert begun_anew["quality"]["problems"] == {"time ahead of later lines": 2}


def test_of_a_minute_only_the_lines_of_the_wrong_clock_are_set_aside(summary: Summarise, tmp_path: Path) -> None:
    """From 300 s to 330 s the clock is ten minutes ahead, so two times of 30 samples are in the minutes from 900 s on."""
    p = Teller("p")
    p.roster(0.4, ["b"])
    for second in middles(0, 1200):
        p.sample(second + (600 if 300 <= second < 330 else 0), "b", 2.0)
    report = told(summary, tmp_path, p, now_ms=START_MS + 2_000_000)
    row = backup(report, "b")
    assert (row["expected"], row["n"], row["silence_ms"]) == (1200, 1170, 31_000)
    assert report["quality"]["problems"] == {"time ahead of later lines": 30}


def test_a_clock_of_the_primary_that_is_set_back_makes_no_backup_lose_records(summary: Summarise, tmp_path: Path) -> None:
    """At 400 s it is set back by 90 s, so these 90 s are told twice. Only c loses records, at 500 s by its clock."""
    p = Teller("p")
    for second in middles(0, 690):
        p.ahead_s = 0.0 if second < 400 else -90.0
        p.sample(second, "b", acked_index=1000 + int(second))
        p.sample(second, "c", acked_index=1000 + int(second) - (40 if second > 590 else 0))
    report = told(summary, tmp_path, p)
    assert [(row["backup"], row["now"], row["status"]) for row in report["backups"]] == [
        ("b", "OK", "OK"),
        ("c", "OK", "REWOUND"),
    ]
    (spell,) = [piece for piece in report["lanes"]["c"] if piece[2] == "REWOUND"]
    assert spell[0] <= START_MS + 500_000 < spell[1]


def test_a_process_whose_numbers_are_too_low_is_heard_and_a_leap_of_the_process_before_is_not(begun_anew: Report) -> None:
    assert begun_anew["to_ms"] == START_MS + 1_865_000
    assert [term["epoch"] for term in begun_anew["terms"]] == [1, 2]
    assert len(begun_anew["failovers"]) == 1
    assert (backup(begun_anew, "b")["now"], backup(begun_anew, "b")["n"]) == ("LAGGING", 1859)


def test_a_line_of_1970_does_not_lengthen_a_summary(rosters: Report) -> None:
    """A machine without a battery for its clock starts in 1970, until it is told the time."""
    assert (rosters["from_ms"], rosters["to_ms"]) == (START_MS, START_MS + 600_000)
    assert backup(rosters, "b")["n"] == 600
    assert rosters["quality"]["lines"] == 600 * 2 + 400 * 2 + 3 + 1, "and it was there"


def test_when_the_interval_changes_a_minute_of_silence_is_still_a_minute(summary: Summarise, tmp_path: Path) -> None:
    """300 s at a second, 300 s at ten; nothing is said of the backup from 400 s to 460 s: 60 of 600 s."""
    p = Teller("p")
    for second in middles(0, 300):
        p.sample(second, "b", 1.5)
    p.interval_s = 10.0
    for second in middles(300, 600, 10):
        p.sample(second, "c", 1.5)
        if not 400 <= second < 460:
            p.sample(second, "b", 1.5)
    row = backup(told(summary, tmp_path, p), "b")
    assert row["over_share"] == pytest.approx(0.1)
    assert (row["p50_ms"], row["max_ms"]) == (1.5, 1.5)
    assert row["p95_ms"] == row["worst_ms"] == row["silence_ms"] == 70_000, "from 395 s to 465 s"


def test_a_span_may_end_anywhere_whatever_the_intervals_of_its_primaries(summary: Summarise, tmp_path: Path) -> None:
    """q samples every 5 s, then p every 3 s, because there are many queues: in the first second of the three."""
    q, p = Teller("q", interval_s=5), Teller("p", interval_s=3)
    for second in middles(0, 300, 5):
        q.sample(second, "b", 1.0)
    for number in range(200):
        p.sample(300.5 + 3 * number, "b", 1.0, epoch=2)
    other_ms = (START_MS + 600_000, START_MS + 750_000)
    report = told(summary, tmp_path, q, p, now_ms=START_MS + 1_000_000, until_ms=START_MS + 700_000, compare_ms=other_ms)
    row = backup(report, "b")
    assert (report["to_ms"], row["n"], row["silence_ms"], row["now"]) == (START_MS + 700_000, 60 + 134, 0, "OK")
    (before,) = report["comparison"]["backups"]
    assert (before["before"]["silence_ms"], before["before"]["over_share"]) == (0, 0)


def test_a_span_that_ends_before_a_sample_is_due_makes_nobody_silent(summary: Summarise, tmp_path: Path) -> None:
    """As one that ends now, and as the one that another is compared with, if that begins in the middle of an interval."""
    p = Teller("p")
    for second in middles(0, 120):
        for name in ("b", "c"):
            p.sample(second, name, 1.0)
    report = told(summary, tmp_path, p, until_ms=START_MS + 60_500)
    assert [(row["now"], row["n"], row["expected"], row["over_share"]) for row in report["backups"]] == [("OK", 60, 60, 0)] * 2
    assert (report["to_ms"], report["loss"]["answer"]) == (START_MS + 60_500, "at risk")
    assert report["loss"]["since_ms"] == report["terms"][0]["begin_ms"]


def test_at_a_sample_every_100_ms_a_share_is_a_share_of_samples(summary: Summarise, tmp_path: Path) -> None:
    """3 of each 100 samples are over the objective, and in each second of three there is one."""
    p = Teller("p", interval_s=0.1)
    for number, second in enumerate(middles(0, 60, 0.1)):
        p.sample(second, "b", 2000.0 if number % 100 in (5, 35, 65) else 1.0)
    row = backup(told(summary, tmp_path, p), "b")
    assert (row["n"], row["expected"]) == (600, 600)
    assert row["over_share"] == pytest.approx(0.03)


# ---- ten minutes in which something else happens to each backup and queue

PAINTS, OWNS = "b\x1b[31m", "\x1b]0;owned\x07\u202eq\nq"
FALLS_S = (47, 50, 53, 60)


@pytest.fixture(scope="module")
def ten_minutes(summary: Summarise, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of one story, since each costs seconds: each test below is of a backup or queue that no other one looks at."""
    p = Teller("p")
    for second in middles(0, 600):
        p.sample(second, "whole")
        p.sample(second, PAINTS)
        for lag_ms in (0.45, 0.25, 2_567_352.0):
            p.sample(second, f"lags {lag_ms}", lag_ms)
        for fall_s in FALLS_S:
            p.sample(second, f"falls {fall_s}", 5.0, acked_index=1000 + int(second) - (40 if second > fall_s else 0))
        p.sample(second, "spike", 5000.0 if second == 4.5 else 1.0)
        p.sample(second, "grows", 900.0 + 60 * int(second), acked_index=1000 + int(second) // 2, lag_records=9 + int(second))
        there = {
            "two lost": second not in (200.5, 599.5),
            "twice silent": not (100 <= second < 120 or 300 <= second < 320),
            "flaps": int(second) % 2 == 0 or second < 300,
            OWNS: True,
        }
        for queue in (queue for queue, is_there in there.items() if is_there):
            p.sample(second, "whole", queue=queue)
    return told(summary, tmp_path_factory.mktemp("ten_minutes"), p, window_ms=10_000)


def queue_of(report: Report, name: str) -> dict[str, Any]:
    """A queue's row."""
    (row,) = [row for row in report["queues"] if row["queue"] == name]
    return dict(row)


def test_six_hundred_samples_are_six_hundred_expected_and_a_second_that_is_lost_costs_one(ten_minutes: Report) -> None:
    for row, heard in ((backup(ten_minutes, "whole"), 600), (queue_of(ten_minutes, "two lost"), 598)):
        assert (row["expected"], row["n"]) == (600, heard)
        assert row["over_share"] == pytest.approx((600 - heard) / 600, abs=1e-4)


def test_lags_below_a_millisecond_and_above_an_hour_are_told_as_they_are(ten_minutes: Report) -> None:
    for lag_ms in (0.45, 0.25, 2_567_352.0):
        row = backup(ten_minutes, f"lags {lag_ms}")
        assert (row["p50_ms"], row["p99_ms"]) == (lag_ms, lag_ms)


def test_silences_of_a_queue_are_each_as_long_as_it_was_not_heard(ten_minutes: Report) -> None:
    """Samples of 100 s to 120 s and of 300 s to 320 s are not there: from 99.5 s to 120.5 s. Of `flaps` every other one."""
    assert queue_of(ten_minutes, "twice silent")["silence_ms"] == 21_000
    assert queue_of(ten_minutes, "flaps")["silence_ms"] == 2000


def test_an_index_that_goes_back_is_seen_wherever_in_a_window_it_does(ten_minutes: Report) -> None:
    """Stores that were restored: from then on each backup holds 40 batches less, at the same pace."""
    rewound = {(row["backup"], row["start_ms"] - START_MS) for row in ten_minutes["windows"] if row["status"] == "REWOUND"}
    assert rewound == {(f"falls {fall_s}", fall_s // 10 * 10_000) for fall_s in FALLS_S}
    for fall_s in FALLS_S:
        assert backup(ten_minutes, f"falls {fall_s}")["status"] == "REWOUND"


def test_lagging_is_decided_over_a_window_and_not_by_one_sample(ten_minutes: Report) -> None:
    of = {name: {row["status"] for row in ten_minutes["windows"] if row["backup"] == name} for name in ("spike", "grows")}
    assert of == {"spike": {"OK"}, "grows": {"LAGGING"}}
    assert backup(ten_minutes, "grows")["backlog"] > 0
    assert backup(ten_minutes, "grows")["forecast_ms"] is None, "it gains nothing: never"


def test_a_name_that_would_paint_the_terminal_is_shown_in_letters(ten_minutes: Report) -> None:
    shown = text.render(ten_minutes)
    assert not [letter for letter in shown if letter != "\n" and not letter.isprintable()]
    assert "\\x1b[31m" in shown
    assert "\\x1b]0;owned" in shown


# ---- can the primary be lost?


@pytest.fixture(scope="module")
def rosters(summary: Summarise, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Ten minutes of voters p, b and a witness, which had been away, and a learner x of another site. From 200 s to 400 s there
    is no queue. A line of b is of 1970."""
    p, b = Teller("p"), Teller("b")
    votes: dict[str, Any] = {"voters": ["b", "p", "w"], "witness": "w"}
    for second in middles(0, 600):
        there = not 200 <= second < 400
        if second in (0.5, 200.5, 400.5):
            p.roster(second - 0.1, ["b", "x"], ["q"] if there else [], **votes, witness_connected=second > 400)
        for name in "bx":
            p.sample(second, name)
            if there:
                p.sample(second, name, 2.0, queue="q")
    b.event(30 - START_MS / 1000, "discovery", epoch=0)
    return told(summary, tmp_path_factory.mktemp("rosters"), p, b)


def test_the_newest_roster_says_whose_votes_count_when_the_primary_is_lost(rosters: Report) -> None:
    loss = rosters["loss"]
    assert (loss["answer"], loss["members"], loss["needed"], loss["left"], loss["witness"]) == ("yes", 3, 2, 1, True)


def test_a_new_primary_is_no_backup_though_it_was_one_in_the_same_step(summary: Summarise, tmp_path: Path) -> None:
    """Four brokers, and a step is 30 s. The primary is killed 10 s after the last step begins: two backups are left, of three."""
    p, q = Teller("p", interval_s=10), Teller("q", interval_s=10)
    for second in middles(0, 10_780, 10):
        for name in "qrs":
            p.sample(second, name)
    for second in middles(10_780, 10_800, 10):
        q.sample(second, "p", 5000.0, epoch=2, connected=False)
        for name in "rs":
            q.sample(second, name, epoch=2)
    report = told(summary, tmp_path, p, q, now_ms=START_MS + 11_000_000)
    assert report["timeline"]["step_ms"] == 30_000
    assert {row["backup"]: row["now"] for row in report["backups"]} == {"p": "STOPPED", "q": "PRIMARY", "r": "OK", "s": "OK"}
    loss = report["loss"]
    assert (loss["answer"], loss["members"], loss["needed"], loss["left"]) == ("no", 4, 3, 2)
    assert loss["away"] == [{"backup": "p", "now": "STOPPED"}]


@pytest.fixture(scope="module")
def replaced(summary: Summarise, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """After 100 s, c is replaced by d, and nobody comes for `gone`."""
    p = Teller("p")
    p.roster(0.4, ["b", "c", "gone"])
    for second in middles(0, 300):
        if second == 100.5:
            p.roster(100.4, ["b", "d"])
        for name in ("b", "c", "gone") if second < 100 else ("b", "d"):
            p.sample(second, name, 2.0)
    return told(summary, tmp_path_factory.mktemp("replaced"), p)


def test_a_broker_that_was_removed_from_the_cluster_is_neither_a_primary_nor_a_backup(replaced: Report) -> None:
    at_the_end = {row["backup"]: row["now"] for row in replaced["backups"]}
    assert at_the_end == {"b": "OK", "c": "REMOVED", "d": "OK", "gone": "REMOVED"}
    assert (replaced["loss"]["members"], replaced["loss"]["away"]) == (3, [])
    assert "2 of 2 backups keep up at the end." in text.render(replaced)


def test_a_primary_without_backups_has_a_report_that_says_so(summary: Summarise, tmp_path: Path) -> None:
    """A cluster of one broker and a witness: there are rosters, and no samples."""
    p = Teller("p")
    for second in range(0, 600, 30):
        p.roster(second + 0.6, [], ["q"], voters=["p", "w"], witness="w", witness_connected=True)
    report = told(summary, tmp_path, p)
    assert (report["backups"], report["queues"]) == ([], [])
    assert report["lanes"] == {"p": [[START_MS + 600, report["terms"][0]["end_ms"], "PRIMARY"]]}
    loss = report["loss"]
    assert (loss["answer"], loss["left"], loss["witness"]) == ("no", 0, True)
    assert loss["why"].startswith("there is no backup: every record stands on the primary alone.")
    shown = " ".join(text.render(report).split())
    assert "Can I lose the primary now? No: there is no backup, every record stands on one broker." in shown
    assert 'understudy_lag_primary_can_be_lost{cluster="c"} 0' in metrics.render(report)


@pytest.fixture(scope="module")
def three_days(summary: Summarise, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A step of the timeline is 20 minutes, and the last one is 15 minutes old: 12 minutes ago b stopped to acknowledge, and 15
    minutes ago c lost records once and has been well since. The third backup has been well all the time."""
    p, end = Teller("p", interval_s=60), 73 * 3600 + 900
    names = ["b", "c", "well"]
    p.roster(0.4, names, voters=["p", *names])
    for second in middles(0, end, 60):
        stood = max(0, round(second) - (end - 720))
        acked, lost = 1000 + int(second) - stood, end - 900 <= second < end - 840
        p.sample(second, "b", stood * 1000.0, acked_index=acked, lag_records=stood, stall_ms=stood * 1000.0)
        p.sample(second, "c", acked_index=5 if lost else 1000 + int(second))
        p.sample(second, "well", 1.0)
    return told(summary, tmp_path_factory.mktemp("three_days"), p, now_ms=START_MS + end * 1000 + 1000)


def test_in_a_span_of_days_the_state_at_the_end_is_that_of_its_last_minutes(three_days: Report) -> None:
    assert three_days["timeline"]["step_ms"] == 1_200_000
    assert {row["backup"]: row["now"] for row in three_days["backups"]} == {"b": "STALLED", "c": "OK", "well": "OK"}
    assert backup(three_days, "b")["ack_rate"] == 0
    assert (three_days["loss"]["answer"], three_days["loss"]["left"]) == ("yes", 3)


# ---- who is expected


def test_a_queue_that_is_deleted_and_made_again_is_not_silent_while_it_does_not_exist(rosters: Report) -> None:
    (queue,) = rosters["queues"]
    assert (queue["expected"], queue["n"], queue["over_share"], queue["p99_ms"], queue["silence_ms"]) == (400, 400, 0, 2, 0)
    assert queue["status"] == "OK"


def test_a_backup_that_is_replaced_by_another_is_not_missed(replaced: Report) -> None:
    assert {row["backup"]: (row["expected"], row["over_share"], row["status"]) for row in replaced["backups"]} == {
        "b": (300, 0, "OK"),
        "c": (100, 0, "OK"),
        "d": (200, 0, "OK"),
        "gone": (100, 0, "OK"),
    }


def test_a_deposed_primary_has_no_say_once_the_next_has_begun(summary: Summarise, tmp_path: Path) -> None:
    """It praises one backup, which the next one cannot reach, and speaks ill of another one. Nobody told of the change: how long
    it took is estimated."""
    p, q = Teller("p"), Teller("q")
    for second in middles(0, 110):
        p.sample(second, "c", 77_777.0 if second > 100 else 2.0)
        p.sample(second, "gone")
    for second in middles(100, 200):
        q.sample(second, "c", 3.0, epoch=2)
        q.sample(second, "gone", 9000.0, epoch=2, connected=False)
    report = told(summary, tmp_path, p, q)
    row, gone = backup(report, "c"), backup(report, "gone")
    assert (row["n"], row["max_ms"], row["worst_ms"], row["over_share"]) == (200, 3, 3, 0)
    assert (gone["n"], gone["now"]) == (200, "STOPPED")


@pytest.fixture(scope="module")
def switchover(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned switchover at 60 s. Brokers of older releases repeated their last roster in each new file. The new primary says
    nothing from 70 s to 100 s."""
    folder = tmp_path_factory.mktemp("switchover")
    p, q = Teller("p"), Teller("q")
    p.roster(0.4, ["q", "r"])
    q.event(60.0, "promote_asked", epoch=1, detail="qpid-ha promote")
    q.event(60.3, "failover_done", epoch=2, to="q", duration_ms=300.0)
    q.roster(60.4, ["p", "r"], epoch=2)
    for second in middles(0, 300):
        if second < 60:
            p.sample(second, "q")
            p.sample(second, "r")
            continue
        if not 70 <= second < 100:
            q.sample(second, "p", epoch=2)
            q.sample(second, "r", epoch=2)
        if second % 30 == 0.5:
            p.roster(second - 0.2, ["q", "r"])
            p.sample(second, "p", epoch=2, primary="q", role="backup")
    p.write(folder)
    q.write(folder)
    return folder


@pytest.fixture(scope="module")
def switched(summary: Summarise, switchover: Path) -> Report:
    """The report of all of it."""
    return summary(switchover, now_ms=START_MS + 700_000)


def test_when_the_primary_alone_is_silent_for_half_a_minute_it_is_31_seconds(switched: Report) -> None:
    assert {name: backup(switched, name)["silence_ms"] for name in "pr"} == {"p": 31_000, "r": 31_000}


def test_a_roster_that_a_former_primary_repeats_makes_it_no_primary(
    summary: Summarise, switchover: Path, switched: Report
) -> None:
    """The span may begin after the switchover, and at a roster."""
    assert [(row["kind"], row["gap_ms"]) for row in switched["failovers"]] == [("switchover", 300)]
    assert [(row["primary"], row["last_said_ms"] - START_MS) for row in switched["terms"]] == [("p", 59_500), ("q", 299_500)]
    assert switched["lanes"]["p"][0] == [START_MS + 400, START_MS + 60_400, "PRIMARY"]
    for since in (120_000, 150_250):
        later = summary(switchover, now_ms=START_MS + 700_000, since_ms=START_MS + since)
        assert ([row["primary"] for row in later["terms"]], later["failovers"]) == (["q"], [])
        assert "PRIMARY" not in {status for _, _, status in later["lanes"]["p"]}
        assert later["loss"]["since_ms"] == later["terms"][0]["begin_ms"]


def test_an_empty_span_to_compare_with_is_refused_in_a_line_that_names_it(summary: Summarise, tmp_path: Path) -> None:
    p = Teller("p")
    for second in middles(0, 30):
        p.sample(second, "b")
    with pytest.raises(
        Refused, match=r"the span to compare with \(2026-01-05 06:00:00 .* UTC\) cannot be summarised: no telemetry"
    ):
        told(summary, tmp_path, p, compare_ms=(START_MS - 7_200_000, START_MS - 3_600_000))
