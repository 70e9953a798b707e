"""The page must need nothing but itself and run no text of anybody's; the terminal's table must fit its terminal."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest

from spark_analytics.dashboard import formatting, page, text
from spark_analytics.jobs.summarise import Report
from spark_analytics.transforms.windows import STATUSES
from tests.spark_analytics import reports

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def scripts_data(made: str) -> Any:
    """What the page carries."""
    (data,) = re.findall(r'id="report">(.*?)</script>', made, re.DOTALL)
    return json.loads(data)


@pytest.mark.parametrize("live", ["", "/report"])
def test_the_policy_names_exactly_the_script_and_style_that_the_page_holds(live: str) -> None:
    made = page.render(reports.made(), live=live)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', made)
    assert policy.startswith("default-src 'none';")
    for tag in ("style", "script"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", made, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert ("connect-src 'self'" in policy) == bool(live), "only a page that is served may ask, and only its server"
    assert " style=" not in made, "the policy would refuse styles in attributes"


def test_the_page_points_at_nothing_outside_itself() -> None:
    made = page.render(reports.made())
    assert set(re.findall(r"https?://[^\s\"'<]+", made)) == {"http://www.w3.org/2000/svg"}, "a name space is never fetched"
    assert not re.findall(r"<(img|iframe|object|script src)\b|@import", made)


def test_no_name_can_become_markup_or_a_script() -> None:
    report = reports.made() | {"cluster": EVIL}
    report["events"][0]["detail"] = report["queues"][0]["queue"] = EVIL
    made = page.render(report)
    assert made.count("<script") == 2
    assert "<img" not in made
    assert scripts_data(made)["report"]["cluster"] == EVIL


def test_without_scripts_the_page_still_has_the_figures() -> None:
    made = page.render(reports.made())
    (said,) = re.findall(r"<noscript>(.*?)</noscript>", made, re.DOTALL)
    assert "127.0.0.1:5674" in said
    assert "failover" in said


def test_the_page_carries_what_is_drawn_and_no_windows() -> None:
    report = reports.made()
    report["windows"] = [{"backup": "a"}] * 1000
    report["queues"] = report["queues"] * 100
    carried = page.drawn(report)
    assert "windows" not in carried
    assert len(carried["queues"]) == 200
    assert carried["timeline"]["start_ms"] == reports.START_MS, "times are exact"
    assert carried["backups"][0]["p99_ms"] == report["backups"][0]["p99_ms"]


def test_the_terminal_table_of_a_real_report_says_the_main_things(report: Report) -> None:
    made, quality = text.render(report), report["quality"]
    assert max(map(len, made.splitlines())) <= 80
    assert min(quality["bad"], quality["repeated"]) > 0
    for wanted in (
        "failover",
        "1.2s",
        "switchover",
        f"{quality['bad']} unreadable, {quality['repeated']} repeated",
        "×",
        *(row["backup"] for row in report["backups"]),
    ):
        assert wanted in made


@pytest.mark.parametrize("width", [20, 32, 40, 79, 80, 132, 400])
def test_no_line_is_longer_than_the_terminal_is_wide(width: int) -> None:
    bad = reports.made(queues=1000)
    bad["backups"][0]["now"] = "SILENT"
    bad["backups"][0]["backup"] = "a-broker-with-a-very-long-name.example.org:5672"
    bad["timeline"]["backups"]["a-broker-with-a-very-long-name.example.org:5672"] = bad["timeline"]["backups"]["127.0.0.1:5672"]
    lines = text.render(bad, width=width).splitlines()
    assert max(map(len, lines)) <= max(width, text.MIN_WIDTH)
    said = " ".join(" ".join(lines).split())
    for wanted in ("SILENT", "failover", "noticed", "overspent", "×", "not written"):
        assert wanted in said, wanted


def test_files_that_cannot_be_read_are_told_of() -> None:
    report = reports.made()
    assert "cannot be read" not in text.render(report)
    report["quality"]["unreadable_files"] = 2
    assert "2 files that cannot be read" in " ".join(text.render(report).split())


@pytest.mark.parametrize("width", [32, 80])
def test_a_lag_that_no_clock_measures_is_not_wider_than_others(width: int) -> None:
    report = reports.made()
    for row in report["backups"] + report["queues"]:
        row.update(dict.fromkeys(("p50_ms", "p99_ms", "worst_ms", "stall_ms"), 1e300))
    assert max(map(len, text.render(report, width=width).splitlines())) <= width


@pytest.mark.parametrize("width", [40, 80])
def test_a_failover_of_a_longer_span_has_its_day_beside_its_time(width: int) -> None:
    day = 86_400_000
    short, long = (text.render(reports.made(span_ms=span_ms), width=width) for span_ms in (600_000, 7 * day))
    assert re.search(r"^08:05:00 +failover", short, re.MULTILINE), short
    assert re.search(r"^01-08 20:00 +failover", long, re.MULTILINE), long


def test_colours_only_repeat_what_words_say() -> None:
    bad = reports.made()
    bad["backups"][0]["now"] = "STALLED"
    painted = text.render(bad, colour=True)
    assert "\x1b[33mSTALLED" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == text.render(bad)


def test_a_terminal_is_asked_for_its_width_and_whether_it_wants_colours() -> None:
    def asked(environment: dict[str, str], **more: Any) -> tuple[int, bool]:
        found = text.terminal(environment, **({"columns": 50, "is_terminal": True} | more))
        return found["width"], found["colour"]

    assert asked({}) == (50, True)
    assert asked({"NO_COLOR": "1"}) == (50, False)
    assert asked({"NO_COLOR": ""}) == (50, True)
    assert asked({"TERM": "dumb"}) == (50, False)
    assert asked({}, is_terminal=False) == (80, False)


def test_a_report_without_queues_failovers_or_events_is_a_page_too(report: Report) -> None:
    bare = report | {"queues": [], "failovers": [], "events": [], "heat": report["heat"] | {"rows": [], "queues_in_all": 0}}
    assert scripts_data(page.render(bare))["report"]["failovers"] == []
    assert "No failover" in text.render(bare)


def test_every_status_has_a_meaning() -> None:
    assert set(formatting.MEANING) == {*STATUSES, "PRIMARY", "REMOVED"}


@pytest.mark.parametrize(
    "ms, said",
    [
        (None, "–"),
        (0, "0"),
        (0.84, "0.8 ms"),
        (5, "5 ms"),
        (999, "999 ms"),
        (1240, "1.2 s"),
        (60_000, "1 min"),
        (5_400_000, "1.5 h"),
        (2e9, "23 d"),
        (99_999 * 86_400_000, "99999 d"),
        (1e300, "> 99999 d"),
    ],
)
def test_durations_are_written_as_people_do(ms: float | None, said: str) -> None:
    assert formatting.duration(ms) == said


def test_a_share_is_never_rounded_to_perfection() -> None:
    assert [formatting.share(x) for x in (0, 0.00001, 0.5, 0.99999, 1)] == ["0 %", "< 0.1 %", "50.0 %", "> 99.9 %", "100 %"]


def test_a_sparkline_shows_the_worst_of_each_piece_and_a_cross_where_nothing_was_heard() -> None:
    assert formatting.sparkline([0.0, 9e9, None, None, 1.0, 1.0], [False, False, False, False, True, False], 3) == "█ ×"
