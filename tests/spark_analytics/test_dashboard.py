"""The page must need nothing but itself and run no text of anybody's; the terminal's table must fit its terminal."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest

from spark_analytics.dashboard import page, text, words
from spark_analytics.jobs.summarise import Report
from spark_analytics.transforms.windows import STATUSES

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def hostile(report: Report) -> Report:
    """The report with a name that tries to break out, everywhere that a name can stand."""

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {spoil(key) if ":" in key else key: spoil(one) for key, one in value.items()}
        if isinstance(value, list):
            return [spoil(one) for one in value]
        return EVIL + value if isinstance(value, str) and value not in (*STATUSES, "PRIMARY", "failover", "switchover") else value

    spoiled = spoil(report)
    assert isinstance(spoiled, dict)
    return spoiled


def test_the_policy_names_exactly_the_script_and_style_that_the_page_holds(report: Report) -> None:
    made = page.render(report)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', made)
    assert policy.startswith("default-src 'none';")
    for tag in ("style", "script"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", made, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert " style=" not in made, "the policy would refuse styles in attributes"


def test_the_page_points_at_nothing_outside_itself(report: Report) -> None:
    made = page.render(report)
    assert set(re.findall(r"https?://[^\s\"'<]+", made)) == {"http://www.w3.org/2000/svg"}, "a name space is no address to fetch"
    assert not re.findall(r"<(link|img|iframe|object)\b|@import|url\((?!#)", made.replace("url(#hatch${c})", ""))


def test_no_name_can_become_markup_or_a_script(report: Report) -> None:
    made = page.render(hostile(report))
    assert made.count("<script") == 2
    assert "<img" not in made
    (data,) = re.findall(r'id="report">(.*?)</script>', made, re.DOTALL)
    assert json.loads(data)["cluster"] == EVIL + "demo"


def test_every_figure_of_the_pictures_stands_in_a_table_with_heads_and_a_caption(report: Report) -> None:
    made = page.render(report)
    assert made.count("<table>") == made.count("<caption") >= 5
    assert "<th>" not in made, "each head says what it is the head of"
    for row in report["backups"]:
        assert words.duration(row["p99_ms"]) in made


def test_the_terminal_table_fits_80_columns_and_says_the_main_things(report: Report) -> None:
    made = text.render(report)
    assert max(map(len, made.splitlines())) <= 80
    for wanted in (
        "failover",
        "1.2s",
        "switchover",
        "6 unreadable, 25 repeated",
        "×",
        *(row["backup"] for row in report["backups"]),
    ):
        assert wanted in made


def test_a_report_without_queues_failovers_or_events_is_a_page_too(report: Report) -> None:
    bare = report | {"queues": [], "failovers": [], "events": [], "heat": report["heat"] | {"rows": [], "queues_in_all": 0}}
    assert "did not change" in page.render(bare)
    assert "No failover" in text.render(bare)


def test_every_status_has_a_meaning() -> None:
    assert set(words.MEANING) == {*STATUSES, "PRIMARY"}


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
    ],
)
def test_durations_are_written_as_people_do(ms: float | None, said: str) -> None:
    assert words.duration(ms) == said


def test_a_share_is_never_rounded_to_perfection() -> None:
    assert [words.share(x) for x in (0, 0.00001, 0.5, 0.99999, 1)] == ["0 %", "< 0.1 %", "50.0 %", "> 99.9 %", "100 %"]


def test_a_sparkline_shows_the_worst_of_each_piece_and_a_cross_where_nothing_was_heard() -> None:
    assert words.sparkline([0.0, 9e9, None, None, 1.0, 1.0], [False, False, False, False, True, False], 3) == "█ ×"
