"""The page as people meet it, in a real browser: by mouse, by keys, narrow and wide, with nothing, much, and nonsense in it."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_analytics.dashboard import page, picture
from spark_analytics.errors import Refused
from tests.spark_analytics import reports
from tests.spark_analytics.browsing import Browser, show

WEEK_MS = 7 * 86_400_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


def test_every_part_of_the_report_is_drawn_and_nothing_is_asked_of_anybody(browser: Browser, tmp_path: Path) -> None:
    tab = show(browser, tmp_path, reports.made())
    parts = tab.evaluate("[...document.querySelectorAll('main > section')].map(s => s.id || s.className)")
    assert len(parts) == 11, parts
    assert tab.count(".failed") == 0
    assert (tab.text(".verdict .word"), tab.text(".verdict h2")) == ("Can I lose the primary now?", "Yes")
    assert "2 of 2 backups can be reached, and hold every record; no other broker may fail as well." in tab.text(".verdict")
    assert tab.text(".verdict h3") == "Every backup keeps up"
    for wanted in ("epoch 3", "2 of 2", "58 s", "within", "Budget left", "old when this was made"):
        assert wanted.lower() in tab.text(".hero").lower(), wanted
    assert tab.count("#card-lag .line") == 3
    assert tab.count("#card-lag .hatch") == 3
    assert tab.count("#card-lag .mark") >= 2
    assert tab.text("#card-lag svg").count("switchover") == 1
    assert browser.asked_for() == {(tmp_path / "page.html").as_uri()}
    assert browser.complaints() == []


def test_a_real_report_is_drawn_as_well_as_a_made_up_one(browser: Browser, tmp_path: Path, report: dict[str, Any]) -> None:
    tab = show(browser, tmp_path, report)
    assert tab.count(".failed") == 0
    assert tab.text("#card-failovers").count("without a primary") == 3
    assert browser.complaints() == []


def test_a_backup_a_queue_and_a_time_open_by_click_and_the_way_back_closes_them(browser: Browser, tmp_path: Path) -> None:
    tab = show(browser, tmp_path, reports.made())
    tab.click("#card-backups tbody button")
    assert tab.text("#h-detail") == "127.0.0.1:5672"
    assert "Time in each state" in tab.text("#detail")
    assert tab.evaluate("document.activeElement.id") == "h-detail"
    assert tab.evaluate("location.hash") == "#backup=127.0.0.1%3A5672", "it can be sent to somebody"
    tab.click("[data-chart=heat]", across=0.5, down=0.06)
    assert tab.text("#h-detail") == "orders.0"
    assert tab.count("#detail .line") == 3, "a line a backup"
    tab.click("[data-chart=lag]", across=0.6)
    assert "STOPPED" in tab.text("#detail")
    assert "Queues, worst first".lower() in tab.text("#detail").lower()
    tab.evaluate("history.back()")
    tab.wait("document.querySelector('#h-detail').innerText === 'orders.0'")
    tab.press("Escape")
    assert tab.count("#detail") == 0
    assert browser.complaints() == []


def test_the_first_of_the_worst_hours_opens_the_part_of_it_that_is_in_the_span(browser: Browser, tmp_path: Path) -> None:
    """The span begins 50 minutes into the hour: ten minutes of it are left."""
    report = reports.made(span_ms=3_600_000)
    hour, begin_ms = report["worst_hours"][0], report["from_ms"]
    report["worst_hours"] = [hour | {"start_ms": begin_ms - 3_000_000, "length_ms": 600_000}]
    tab = show(browser, tmp_path, report)
    tab.click("#card-hours tbody button")
    assert tab.evaluate("location.hash") == f"#from={begin_ms}&to={begin_ms + 600_000}"
    assert "08:00:00 – 08:10:00" in tab.text("#h-detail")


def test_of_a_time_that_is_not_in_the_report_nothing_is_told(browser: Browser, tmp_path: Path) -> None:
    """A link to a time stays when the span has moved on."""
    report = reports.made(span_ms=3_600_000)
    begin_ms, end_ms = report["from_ms"], report["to_ms"]
    for from_ms in (begin_ms - 86_400_000, end_ms + 7_200_000):
        tab = show(browser, tmp_path, report, at=f"#from={from_ms}&to={from_ms + 60_000}")
        assert "only: that time is not in it" in tab.text("#detail .body")
        assert tab.count("#detail table") == tab.count("#detail .move") == tab.count(".picked") == 0
    assert tab.text("#h-detail") == "2026-01-05 11:00:00 – 11:01:00 UTC"
    tab = show(browser, tmp_path, report, at=f"#from={begin_ms - 60_000}&to={begin_ms + 60_000}")
    assert "08:00:00 – 08:01:00" in tab.text("#h-detail"), "the part that is in the report"
    assert "1 min. Primary: " in tab.text("#detail header")
    assert tab.count(".picked") > 0


def test_a_removed_broker_is_shown_and_counts_as_no_backup(browser: Browser, tmp_path: Path) -> None:
    report = reports.made(brokers=4)
    report["backups"][3]["now"] = "REMOVED"
    tab = show(browser, tmp_path, report)
    assert "REMOVED" in tab.text("#card-backups")
    assert tab.text(".verdict h3") == "Every backup keeps up"
    assert "2 of 2" in tab.text(".hero")
    assert browser.complaints() == []


def test_all_of_it_can_be_reached_with_keys_alone(browser: Browser, tmp_path: Path) -> None:
    tab = show(browser, tmp_path, reports.made())
    tab.press("Tab")
    assert tab.text(":focus") == "Skip to the figures"
    tab.focus("[data-chart=lag]")
    tab.press("Home", "ArrowRight", "ArrowRight")
    assert tab.evaluate("document.activeElement.getAttribute('aria-valuenow')") == "2"
    assert "127.0.0.1:5673: OK" in tab.evaluate("document.activeElement.getAttribute('aria-valuetext')")
    tab.press("Enter")
    assert tab.text("#detail .kicker") == "Time"
    tab.press("Escape")
    assert tab.evaluate("document.activeElement.dataset.chart") == "lag", "the focus is where it was"
    tab.focus("[data-chart=heat]")
    tab.press("Home", "ArrowRight")
    told = tab.evaluate("document.activeElement.getAttribute('aria-valuetext')")
    assert told.count(": ") == 5, "a screen reader is told the worst queues of each step"
    tab.press("Enter")
    assert "Queues, worst first".lower() in tab.text("#detail").lower()
    tab.focus("#detail [data-pick*=queue]")
    tab.press("Enter")
    assert tab.text("#detail .kicker") == "Queue"


def test_every_picture_has_a_name_and_a_table_and_every_table_heads_and_a_caption(browser: Browser, tmp_path: Path) -> None:
    tab = show(browser, tmp_path, reports.made())
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    tab.wait("document.querySelectorAll('.behind table').length === 2")
    assert tab.evaluate(
        "[...document.querySelectorAll('[data-chart]')].every(c => c.getAttribute('aria-label') && c.tabIndex === 0)"
    )
    assert tab.evaluate("[...document.querySelectorAll('table')].every(t => t.caption && t.querySelector('th[scope=col]'))")
    pictures = "[...document.querySelectorAll('.card')].filter(c => c.querySelector('[data-chart]'))"
    assert tab.evaluate(f"{pictures}.filter(c => !c.querySelector('table')).map(c => c.id)") == []
    assert tab.evaluate("[...document.querySelectorAll('button')].every(b => (b.innerText || b.ariaLabel || '').trim())")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_against_what_is_behind_it(browser: Browser, tmp_path: Path, theme: str) -> None:
    tab = show(browser, tmp_path, reports.made(), dark=theme == "dark")
    bright = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(v => v > 127)"
    assert tab.evaluate(bright) == (theme == "light"), "as the system prefers"
    poor = tab.evaluate(
        """(() => {
          const style = (name) => {
            document.body.style.color = `var(${name})`;
            return getComputedStyle(document.body).color;
          };
          const light = (colour) => {
            const [r, g, b] = colour.match(/\\d+/g).map((v) => v / 255)
              .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const contrast = (a, b) => {
            const [x, y] = [light(style(a)), light(style(b))].sort((m, n) => n - m);
            return (x + 0.05) / (y + 0.05);
          };
          const words = ["--ink", "--soft", "--accent", "--good", "--warn", "--bad"];
          const text = words.flatMap((a) => ["--bg", "--card"].map((b) => [a, b, 4.5]));
          const lines = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"].map((a) => [a, "--card", 3]);
          return [...text, ...lines].filter(([a, b, least]) => contrast(a, b) < least).map((row) => row.join(" "));
        })()"""
    )
    assert poor == []


def test_the_picture_over_time_shows_what_is_asked_of_it(browser: Browser, tmp_path: Path) -> None:
    tab = show(browser, tmp_path, reports.made())
    drawn = set()
    for number, name in enumerate(("Lag", "Waiting records", "Waiting bytes", "Stalls", "Rates", "Burn"), start=1):
        tab.click(f".choices button:nth-child({number})")
        assert tab.text(".choices [aria-pressed=true]") == name
        assert name in tab.evaluate("document.querySelector('[data-chart=lag]').ariaLabel")
        assert tab.count("#card-lag .line") == (4 if name == "Rates" else 3), "one a backup; and what was committed"
        drawn.add(tab.evaluate("document.querySelector('#card-lag .line').getAttribute('d')"))
    assert len(drawn) == 6
    assert browser.complaints() == []


@pytest.mark.parametrize("width", [320, 390, 1024, 3840])
def test_nothing_is_wider_than_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    tab = show(browser, tmp_path, reports.made(), at="#backup=127.0.0.1:5674", width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    box = tab.evaluate("(({left, right}) => [left, right])(document.querySelector('#detail').getBoundingClientRect())")
    assert 0 <= box[0] < box[1] <= width


def test_a_cluster_of_one_is_a_page_too(browser: Browser, tmp_path: Path) -> None:
    tab = show(browser, tmp_path, reports.empty())
    assert (tab.text(".verdict h2"), tab.text(".verdict h3")) == ("No", "No backup at the end")
    assert "The primary did not change" in tab.text("main")
    assert "No backup was expected" in tab.text("#card-lag")
    assert browser.complaints() == []


@pytest.mark.parametrize(
    "p99_ms, over_share, said",
    [(10.0, 0.0, "within the objective"), (5000.0, 0.0, "not always"), (10.0, 0.5, "not always")],
)
def test_the_verdict_says_that_all_was_well_only_if_it_was(
    browser: Browser, tmp_path: Path, p99_ms: float, over_share: float, said: str
) -> None:
    """Time over the objective is silence too, which no sample's percentile knows of."""
    report = copy.deepcopy(reports.made())
    for row in report["backups"]:
        row |= {"p99_ms": 10.0, "over_share": 0.0}
    report["backups"][0] |= {"p99_ms": p99_ms, "over_share": over_share}
    assert said in show(browser, tmp_path, report).text(".verdict")


def test_what_is_known_of_one_span_only_is_not_the_same_in_both(browser: Browser, tmp_path: Path) -> None:
    """As of a backup that was added meanwhile."""
    report = reports.made()
    first = report["comparison"]["backups"][0]
    report["comparison"]["backups"] = [first | {"before": dict.fromkeys(first["before"])}]
    row = show(browser, tmp_path, report).text("#card-comparison tbody tr:last-child")
    assert "– → " in row
    assert "same" not in row


def test_lost_lines_of_telemetry_are_no_lost_records(browser: Browser, tmp_path: Path) -> None:
    report = reports.made()
    report["events"] = [report["events"][0] | {"type": "drop", "from": None, "to": None, "detail": "full", "lost_records": 7}]
    assert "full · 7 lines" in show(browser, tmp_path, report).text("#card-events tbody")


def test_a_broken_part_says_so_and_leaves_the_others_standing(browser: Browser, tmp_path: Path) -> None:
    broken = copy.deepcopy(reports.made())
    broken["slo"] = {"target": "high", "backups": [None], "series": {"backups": {"a": None}}}
    broken["comparison"]["backups"] = [{"backup": "a"}]
    broken["heat"]["rows"][0] = {"queue": None, "worst_ms": "many", "silent": {}}
    broken["failovers"].append({"kind": "coup", "at_ms": None})
    broken["timeline"]["backups"]["127.0.0.1:5672"]["p99_ms"][3] = "slow"
    tab = show(browser, tmp_path, broken)
    assert "could not be drawn" in tab.text(".failed")
    assert tab.text(".verdict h3") == "Every backup keeps up"
    assert tab.count("#card-lag .line") == 3
    assert tab.count("#card-events tbody tr") == 5


def test_hostile_names_are_shown_as_they_are(browser: Browser, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>%%DATA%%"
    report = reports.made()
    report["cluster"] = evil
    report["queues"][0]["queue"] = evil
    tab = show(browser, tmp_path, report)
    assert tab.text("h1") == evil
    assert evil in tab.text("#card-queues")
    assert tab.count("img") == 0
    assert browser.complaints() == []


def test_a_week_of_three_backups_and_a_thousand_queues_is_light_and_quick(browser: Browser, tmp_path: Path) -> None:
    tab = show(browser, tmp_path, reports.made(span_ms=WEEK_MS, brokers=4, queues=1000))
    assert "1,000 queues" in tab.text("#card-heat")
    assert (tmp_path / "page.html").stat().st_size < 1_500_000
    assert tab.count("*") < 8000, "what is drawn is bounded"
    slowest = tab.evaluate(
        """(() => {
          let slowest = 0;
          for (const what of ["#backup=127.0.0.1:5672", "#queue=orders.0", "#"]) {
            location.hash = what;
            const begin = performance.now();
            dispatchEvent(new Event("popstate"));
            document.body.getBoundingClientRect();
            slowest = Math.max(slowest, performance.now() - begin);
          }
          return slowest;
        })()"""
    )
    assert slowest < 2500, "milliseconds, on a machine that may be doing ten other things"


def test_a_picture_is_of_the_whole_page_as_wide_as_asked_and_in_the_colours_asked_for() -> None:
    made = page.render(reports.made())
    light, dark = (picture.picture_of(made, width=800, dark=dark) for dark in (False, True))
    for one in (light, dark):
        assert one.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", one[16:24])
        assert width == 800
        assert height > 2500
    assert light != dark


def test_a_browser_that_is_none_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="apt-get install chromium"):
        picture.picture_of("", binary=str(tmp_path / "none"))
    with pytest.raises(Refused, match="has ended before"):
        picture.picture_of("", binary="/bin/true")
