"""What Prometheus reads is what the report says, and what the rules, the board and the page of reference speak of is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spark_analytics.dashboard import metrics
from tests.broker.scraped import promtool, read
from tests.spark_analytics import reports

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus"


def test_the_figures_are_the_reports() -> None:
    report = reports.made()
    report["backups"][0]["now"] = "LAGGING"
    found = read(metrics.render(report))
    first = report["backups"][0]["backup"]
    of = {
        status: found["understudy_lag_status"][f'cluster="demo",backup="{first}",status="{status}"']
        for status in ("OK", "LAGGING")
    }
    assert of == {"OK": 0, "LAGGING": 1}
    assert found["understudy_lag_primary_can_be_lost"] == {'cluster="demo"': 1}
    p99 = report["timeline"]["backups"][first]["p99_ms"][-1]
    assert found["understudy_lag_p99_seconds"][f'cluster="demo",backup="{first}"'] == pytest.approx(p99 / 1000)
    assert found["understudy_lag_last_gap_seconds"] == {'cluster="demo"': 0.18}
    assert read(metrics.render(report, 300.0))["understudy_lag_refresh_seconds"] == {'cluster="demo"': 300}
    assert found["understudy_lag_burn_rate"].keys() == {
        f'cluster="demo",backup="{row["backup"]}",window="{window}"' for row in report["backups"] for window in ("5m", "1h")
    }, "a rate that is not known has no sample"


def test_a_step_in_which_no_sample_was_due_yet_is_not_the_newest_one() -> None:
    report = reports.made()
    first = report["backups"][0]["backup"]
    series = report["timeline"]["backups"][first]
    for values in series.values():
        values.append(None)
    found = read(metrics.render(report))["understudy_lag_p99_seconds"]
    assert found[f'cluster="demo",backup="{first}"'] == pytest.approx(series["p99_ms"][-2] / 1000)


def test_names_are_escaped_and_without_a_report_that_is_said() -> None:
    report = reports.made()
    report["queues"][0]["queue"] = 'a"b\\c\nd'
    assert 'queue="a\\"b\\\\c\\nd"' in metrics.render(report)
    read(metrics.render(report))
    assert read(metrics.render(None)) == {"understudy_lag_up": {"": 0}}


def test_rules_board_and_reference_speak_of_metrics_that_there_are() -> None:
    made = set(read(metrics.render(reports.made())))
    named = re.compile(r"understudy_lag_\w+")
    assert set(named.findall((RULES / "lag.rules.yml").read_text())) <= made
    board = (ROOT / "deploy" / "grafana" / "lag.json").read_text()
    assert json.loads(board)["panels"]
    assert set(named.findall(board)) <= made
    page = (ROOT / "docs" / "reference" / "lag-metrics.md").read_text()
    assert set(named.findall(page)) == made


def test_prometheus_finds_the_metrics_and_the_rules_right() -> None:
    promtool("check", "rules", "lag.rules.yml")
    promtool("test", "rules", "lag.rules.test.yml")
    promtool("check", "metrics", text=metrics.render(reports.made()))
    alerts = re.findall(r"^ +- alert: (\w+)$", (RULES / "lag.rules.yml").read_text(), re.MULTILINE)
    tested = set(re.findall(r"alertname: (\w+)", (RULES / "lag.rules.test.yml").read_text()))
    assert set(alerts) - tested == {"BackupRewound", "LagBudgetBurnsSlowly"}, "these differ from others by a word alone"
