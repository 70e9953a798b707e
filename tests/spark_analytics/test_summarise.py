"""The summary must find what happened, and above all not be fooled by what was not said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import REFLECTION_COMMAND_NAME
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from spark_analytics import demo_data, sources
from spark_analytics.demo_data import BROKERS
from spark_analytics.errors import Refused
from spark_analytics.jobs import inputs
from spark_analytics.jobs.summarise import Report
from tests.spark_analytics.conftest import START_MS, Summarise

FIRST, SECOND, THIRD = BROKERS
Story = tuple[Path, dict[str, Any]]


def row_of(report: Report, backup: str) -> dict[str, Any]:
    """A backup's whole log over the whole span."""
    (row,) = [row for row in report["backups"] if row["backup"] == backup]
    return dict(row)


def statuses(report: Report, backup: str) -> set[str]:
    """The statuses that a backup had on the timeline."""
    return {status for status in report["timeline"]["backups"][backup]["status"] if status}


def ms(moment: str) -> int:
    """As the answers write it, in ms since 1970."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def sample(second: float, *, sender: str = "p", backup: str = "b", epoch: int = 1, seq: int = 0, **fields: Any) -> dict[str, Any]:
    """A healthy sample at `second`, with `fields` changed."""
    base = {
        "v": 1,
        "kind": "sample",
        "cluster": "c",
        "epoch": epoch,
        "sender": sender,
        "seq": seq or int(second * 1000) * 10 + epoch,
        "ts": demo_data.iso(START_MS + int(second * 1000)),
        "interval_ms": 1000,
        "primary": sender,
        "backup": backup,
        "queue": None,
        "replicate": "all",
        "commit_index": 100 + int(second),
        "sent_index": None,
        "received_index": None,
        "acked_index": 100 + int(second),
        "applied_index": None,
        "lag_records": 0,
        "lag_bytes": 0,
        "lag_ms": 0.0,
        "stall_ms": 0.0,
        "state": "ready",
        "in_sync": True,
        "connected": True,
        "headroom_bytes": None,
    }
    return base | fields


def written(folder: Path, lines: Iterable[dict[str, Any]], name: str = "a") -> Path:
    """A folder with those lines in one file."""
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_stalled_backup_is_stalled_for_as_long_as_it_stood_still(report: Report, story: Story) -> None:
    assert row_of(report, THIRD)["stall_ms"] == story[1]["stalled"]["longest_stall_ms"]
    assert "STALLED" in statuses(report, THIRD)
    assert "STALLED" not in statuses(report, SECOND)


def test_a_silent_backup_is_the_worst_lag_and_not_a_gap(report: Report, story: Story) -> None:
    silent, timeline = story[1]["silent"], report["timeline"]
    third = timeline["backups"][THIRD]
    begin, end = ((ms(silent[at]) - timeline["start_ms"]) // timeline["step_ms"] for at in ("from", "to"))
    assert set(third["status"][begin + 1 : end]) == {"SILENT"}
    assert third["worst_ms"][end - 1] > (silent["slots"] - 4) * 1000, "the lag grows for as long as nothing is heard"
    missing = row_of(report, THIRD)["expected"] - row_of(report, THIRD)["sampled"]
    together = sum(story[1][what]["slots"] for what in ("silent", "lost", "outage"))
    assert missing == together + 1, "and the second without a primary"
    assert row_of(report, THIRD)["over_share"] >= missing / row_of(report, THIRD)["expected"]
    assert row_of(report, THIRD)["silence_ms"] < together * 1000, "three silences are not one long one"


def test_a_dead_backup_of_which_the_primary_speaks_is_stopped_and_over_the_objective(report: Report, story: Story) -> None:
    assert "STOPPED" in statuses(report, FIRST)
    first = row_of(report, FIRST)
    assert first["sampled"] - first["heard"] == story[1]["stopped"]["slots"]
    assert first["over_share"] * first["expected"] >= story[1]["stopped"]["slots"]


def test_bad_lines_and_repeats_are_counted_and_change_nothing_else(
    summary: Summarise, report: Report, story: Story, tmp_path: Path
) -> None:
    quality = report["quality"]
    assert (quality["bad"], quality["repeated"]) == (story[1]["bad_lines"], story[1]["repeated_lines"])
    assert len(quality["examples"]) == quality["bad"]
    for path in story[0].glob("*.jsonl"):
        shutil.copy(path, tmp_path / path.name)
        lines = path.read_text().splitlines()
        (tmp_path / f"again-{path.name}").write_text("\n".join(reversed(lines)) + "\n")
    twice = summary(tmp_path)
    for part in ("backups", "queues", "windows", "timeline", "heat", "failovers"):
        assert twice[part] == report[part], f"{part} of the same telemetry twice over, the second time backwards"
    assert twice["quality"]["repeated"] > 1000


def test_with_too_many_windows_the_totals_are_the_same_and_the_worst_queue_is_looked_at(
    summary: Summarise, report: Report, story: Story
) -> None:
    few = summary(story[0], max_rows=1)
    for part in ("backups", "queues", "timeline", "lanes", "slo", "failovers"):
        assert few[part] == report[part], part
    worst = [row for row in report["detail"]["rows"] if row["queue"] == report["queues"][0]["queue"]]
    assert few["detail"]["rows"] == worst
    assert few["heat"]["queues_in_all"] == report["heat"]["queues_in_all"]
    assert few["windows_left_out"]


def test_a_summary_asks_spark_for_few_jobs(counted: tuple[Report, int]) -> None:
    """A small job's time is Spark's planning. This story has all that takes jobs of their own: repeats, bad lines, failovers."""
    assert 5 < counted[1] <= 12


def test_few_lines_are_kept_in_one_part_and_others_in_as_many_as_there_are_cores(spark: SparkSession, story: Story) -> None:
    """In one part no job needs a shuffle. Of the repeated lines, which are kept beside the others, too."""
    for nbytes, parts in ((1_000_000, {1}), (1_000_000_000, {2, 3, 4})):
        read = inputs.read(spark, str(story[0]), None, now_ms=START_MS + 400_000, since_ms=None, until_ms=None, nbytes=nbytes)
        assert read.repeated
        assert read.lines.rdd.getNumPartitions() in parts
        read.release()


def test_columns_are_made_without_a_look_at_sparks_jars_for_each(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark asks Java by name for what makes each column; one that is known need not be looked for."""

    def made() -> Column:
        return F.when(F.col("a") > F.lit(1), F.coalesce(F.col("b"), F.max("c")))

    made()
    gateway: Any = spark.sparkContext._gateway
    client, asked = gateway._gateway_client, []

    def send(command: str, *more: Any, **options: Any) -> Any:
        asked.append(command)
        return client_sends(command, *more, **options)

    client_sends = client.send_command
    monkeypatch.setattr(client, "send_command", send)
    made()
    assert len(asked) > 5
    assert [command for command in asked if command.startswith(REFLECTION_COMMAND_NAME)] == []


def test_the_rules_that_a_short_session_does_without_are_rules_of_this_spark(spark: SparkSession) -> None:
    """Spark says nothing of a name that it does not know."""
    java: Any = spark._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    rules = spark.conf.get("spark.sql.optimizer.excludedRules")
    assert [rule for rule in str(rules).split(",") if loader.getResource(f"{rule.replace('.', '/')}.class") is None] == []


def test_the_lines_that_a_summary_has_kept_are_let_go(spark: SparkSession, story: Story) -> None:
    """A dashboard asks again and again of one session."""
    context: Any = spark.sparkContext

    def kept_bytes() -> int:
        return sum(int(one.memSize() + one.diskSize()) for one in context._jsc.sc().getRDDStorageInfo())

    before = kept_bytes()
    read = inputs.read(spark, str(story[0]), None, now_ms=START_MS + 400_000, since_ms=None, until_ms=None)
    assert read.repeated == story[1]["repeated_lines"]
    assert read.lines.count() == story[1]["lines"] - read.repeated
    of_lines = kept_bytes() - before
    assert of_lines > 100 * story[1]["lines"]
    read.release()
    assert kept_bytes() - before < of_lines / 100


def test_a_failovers_phases_and_what_the_peers_lacked_are_told(report: Report) -> None:
    failover, _, switchover = report["failovers"]
    phases = [failover[f"{phase}_ms"] for phase in ("detection", "decision", "promotion")]
    assert (phases, sum(phases)) == ([900, 50, 290], failover["gap_ms"])
    assert failover["recovery_ms"] > 10_000, "the killed broker has come back and caught up long after"
    assert {peer["backup"] for peer in failover["peers"]} == {FIRST, THIRD}
    assert (switchover["detection_ms"], switchover["promotion_ms"]) == (None, 200)


def test_a_primary_that_was_killed_is_no_backup_that_lacks_records(report: Report) -> None:
    failover, _, switchover = report["failovers"]
    records = {peer["backup"]: peer["records"] for peer in failover["peers"]}
    assert {peer["backup"]: peer["connected"] for peer in failover["peers"]} == {FIRST: False, THIRD: True}
    assert records[FIRST] > records[THIRD] > 0, "what the new primary cannot know of the killed one is the larger figure"
    assert failover["unreplicated_records"] == records[THIRD]
    assert {peer["backup"]: peer["connected"] for peer in switchover["peers"]} == {FIRST: True, SECOND: True}
    assert switchover["unreplicated_records"] == max(peer["records"] for peer in switchover["peers"])


def test_two_spans_are_compared(compared: Report) -> None:
    comparison = compared["comparison"]
    assert comparison["to_ms"] == compared["from_ms"], "just before"
    assert comparison["from_ms"] == pytest.approx(START_MS, abs=1000)
    assert comparison["all"]["change"]["failovers"] == 1
    third = next(row for row in comparison["backups"] if row["backup"] == THIRD)
    assert (third["before"]["stalls"], third["after"]["stalls"]) == (1, 0)


def test_lines_are_read_once_for_the_two_spans_of_a_comparison(compared: Report) -> None:
    """Breaks when a comparison takes the time to read all lines twice. `compared` has their folder away for the second span."""
    assert compared["comparison"]["all"]["before"]["stalls"] == 1


def test_windows_add_up_to_the_whole(report: Report) -> None:
    for backup in BROKERS:
        rows = [row for row in report["windows"] if row["backup"] == backup and row["queue"] is None]
        whole = row_of(report, backup)
        assert sum(row["n"] for row in rows) == whole["n"]
        assert max(row["max_ms"] or 0 for row in rows) == whole["max_ms"]
        assert max(row["stall_ms"] or 0 for row in rows) == whole["stall_ms"]


@pytest.fixture(scope="module")
def of_two_epochs(summary: Summarise, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Twenty seconds, in the first three of which p does not know the cluster's name; from 10 s on q is the primary, and its
    indexes are lower. A resource manager tells of an event. A roster names a backup that nobody samples."""
    before = [sample(s + 0.5, cluster="c" if s >= 3 else "new", acked_index=500 + s, commit_index=500 + s) for s in range(10)]
    after = [sample(s + 0.5, epoch=2, sender="q", acked_index=10 + s, commit_index=10 + s) for s in range(10, 20)]
    head = ("v", "cluster", "epoch", "sender", "seq", "ts", "interval_ms", "primary")
    roster = {name: sample(3.4)[name] for name in head} | {"kind": "roster", "backups": ["b", "ghost"], "queues": []}
    event = {name: sample(9.2)[name] for name in ("v", "epoch", "seq", "ts")}
    told = event | {"kind": "event", "cluster": "a,b,c", "sender": "manager", "broker": "p", "type": "failure_detected"}
    return summary(written(tmp_path_factory.mktemp("of_two_epochs"), [roster, *before, *after, told]))


def test_indexes_are_never_compared_across_epochs(of_two_epochs: Report) -> None:
    assert statuses(of_two_epochs, "b") == {"OK"}, "a new epoch's indexes may start anywhere"


def test_a_cluster_that_was_down_is_silent_until_the_end_that_was_asked_for(summary: Summarise, tmp_path: Path) -> None:
    folder = written(tmp_path, [sample(s + 0.5) for s in range(30)])
    quiet = summary(folder, until_ms=START_MS + 60_000)
    assert row_of(quiet, "b")["now"] == "SILENT"
    assert row_of(quiet, "b")["over_share"] == pytest.approx(0.5)
    assert row_of(quiet, "b")["worst_ms"] == pytest.approx(30_500, abs=600)
    assert row_of(quiet, "b")["p99_ms"] == row_of(quiet, "b")["worst_ms"], (
        "the 99th percentile is the silence, not the last good sample"
    )


def test_a_backup_on_the_roster_that_was_never_sampled_is_silent_all_along(of_two_epochs: Report) -> None:
    assert row_of(of_two_epochs, "ghost")["status"] == "SILENT"
    assert row_of(of_two_epochs, "ghost")["over_share"] == 1


@pytest.mark.parametrize(
    "lines, asked, sentence",
    [
        ([{"hello": "world"}], {}, "is telemetry of version 1"),
        ([sample(1), sample(2, seq=7, cluster="d")], {}, "choose one with --cluster"),
        ([sample(1)], {"cluster": "e"}, "no cluster e in there, only c"),
        ([sample(1)], {"since_ms": START_MS + 9_000_000}, "no telemetry in that span"),
        ([sample(1, primary="q")], {}, "no sample by a primary of its backups"),
    ],
    ids=["other schema", "two clusters", "no such cluster", "another time", "no primary"],
)
def test_what_cannot_be_summarised_is_refused_in_one_line_that_says_what_to_do(
    summary: Summarise, tmp_path: Path, lines: list[dict[str, Any]], asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Refused, match=sentence) as refused:
        summary(written(tmp_path, lines), **asked)
    assert "\n" not in str(refused.value)


def test_lines_from_before_the_name_was_known_and_from_a_resource_manager_belong_to_the_one_cluster(
    of_two_epochs: Report,
) -> None:
    assert (of_two_epochs["cluster"], row_of(of_two_epochs, "b")["n"]) == ("c", 20)
    assert of_two_epochs["events"][0]["sender"] == "manager"


def test_a_file_that_its_broker_deletes_before_it_is_read_is_only_missing(spark: SparkSession, tmp_path: Path) -> None:
    """A broker deletes its oldest file at any time, also after Spark has listed it."""
    for name, seconds in (("old", range(5)), ("new", range(5, 20))):
        written(tmp_path, [sample(second + 0.5) for second in seconds], name)
    lines = sources.read_lines(spark, str(tmp_path))
    assert len(lines.inputFiles()) == 2
    (tmp_path / "old.jsonl").unlink()
    assert lines.count() == 15


@pytest.mark.parametrize("touched", ["stat", "open"])
def test_a_file_that_its_broker_deletes_while_the_folder_is_inspected_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, touched: str
) -> None:
    for name in ("new", "old"):
        written(tmp_path, [sample(0.5)], name)
    real, old = getattr(Path, touched), tmp_path / "old.jsonl"

    def just_deleted(path: Path, *how: Any, **more: Any) -> Any:
        if path == old:
            old.unlink(missing_ok=True)
        return real(path, *how, **more)

    monkeypatch.setattr(Path, touched, just_deleted)
    found = sources.inspect(str(tmp_path))
    assert (found.files, found.unreadable) == (1 if touched == "stat" else 2, 0)
