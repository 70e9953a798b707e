"""What brokers write of their replication lag, through a failover: true to the page that describes it, and enough for a summary.

One story is told once for the module: three brokers serve a producer, the primary is killed with kill -9, a backup is promoted,
the killed one comes back, and all are stopped in order. The tests look at the files that are left.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import ROOT, cluster, environment, eventually
from tests.system.traffic import producer

INTERVAL_MS = 200
PAGE = (ROOT / "docs/reference/telemetry.md").read_text()
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "number": (int, float),
    "text": (str,),
    "bool": (bool,),
    "null": (type(None),),
}
Line = dict[str, Any]


@dataclass(frozen=True)
class Story:
    """What happened, and every line that tells of it, in the order of the files' names."""

    folder: Path
    killed: str
    successor: str
    lines: list[Line]

    def samples(self, sender: str, epoch: int, queue: str | None) -> list[Line]:
        """A sender's samples of a queue (None: of the whole log) in that epoch."""
        return [
            line
            for line in self.lines
            if (line["kind"], line["sender"], line["epoch"]) == ("sample", sender, epoch) and line["queue"] == queue
        ]

    def events(self, sender: str, type: str) -> list[Line]:
        """A sender's events of this type."""
        return [line for line in self.lines if (line["kind"], line["sender"], line.get("type")) == ("event", sender, type)]


def written(paths: Iterable[Path]) -> list[Line]:
    """The whole lines of files that may be being written."""
    texts = [line for path in sorted(paths) for line in path.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in texts if line.endswith("\n")]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    base = tmp_path_factory.mktemp("telemetry")
    folder = base / "lag"
    options = ["--ha-replicate", "all", "--telemetry-dir", str(folder), "--telemetry-interval-ms", str(INTERVAL_MS)]

    def samples_of(primary: str, queue: str) -> int:
        lines = written([*folder.glob("*.jsonl"), *folder.glob(".*.part")])
        return sum(line["kind"] == "sample" and (line["sender"], line["queue"]) == (primary, queue) for line in lines)

    with cluster(base, 3, *options) as brokers:
        first, second, third = brokers.brokers
        first.create("queue", "orders")
        with producer(brokers.addresses, "orders", rate=500) as sender:
            eventually(lambda: samples_of(first.address, "orders"), lambda count: count > 20, "samples of the first primary")
            first.kill()
            brokers.promote(second)
            eventually(lambda: samples_of(second.address, "orders"), lambda count: count > 20, "samples of the second primary")
            first.start()
            first.wait_for("ready")
            seen = samples_of(second.address, "orders")
            eventually(lambda: samples_of(second.address, "orders"), lambda count: count > seen + 10, "samples of both backups")
            sender.finish()
        for broker in (third, first, second):
            assert broker.stop() == 0
    return Story(folder, first.address, second.address, written(folder.glob("*.jsonl")))


# ---- the page


def fields(title: str) -> dict[str, tuple[type, ...]]:
    """Field → the types that it may have, from the table below a title of the page."""
    section = PAGE.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]
    found: dict[str, tuple[type, ...]] = {}
    for names, types in re.findall(r"^\| (`[^|]+`) \| ([a-z ]+) \|", section, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            found[name] = tuple(one for word in types.split(" or ") for one in _TYPES[word])
    return found


EVERY = fields("Every line")
OF_KIND: dict[str, dict[str, tuple[type, ...]]] = {
    "sample": fields("`sample`"),
    "roster": {"interval_ms": (int,), "primary": (str,), "backups": (list,), "queues": (list,)},
    "event": {
        "broker": (str,),
        "type": (str,),
        "duration_ms": (int, float, type(None)),
        **{name: (str, type(None)) for name in ("from", "to", "detail")},
        **{name: (int, type(None)) for name in ("index", "lost_records")},
    },
}
EVENTS = set(
    re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*`) \| \D", PAGE.split("## `event`")[1].split("## `roster`")[0], re.M)))
)


def test_every_line_has_the_fields_that_the_page_gives_its_kind_and_no_others(story: Story) -> None:
    assert set(EVERY) == {"v", "kind", "cluster", "epoch", "sender", "seq", "ts"}, "the page's table was read"
    assert {line["kind"] for line in story.lines} == set(OF_KIND)
    for line in story.lines:
        expected = EVERY | OF_KIND[line["kind"]]
        assert set(line) == set(expected)
        for name, types in expected.items():
            right = isinstance(line[name], types) and (bool in types or not isinstance(line[name], bool))
            assert right, f"{name} is {line[name]!r} in {line}"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
        assert line["v"] == 1


def test_every_event_is_one_of_the_page(story: Story) -> None:
    assert {"role", "failover_done"} <= EVENTS, "the page's table was read"
    assert {line["type"] for line in story.lines if line["kind"] == "event"} <= EVENTS


def test_numbers_of_lines_never_repeat_though_a_sender_was_killed_and_restarted(story: Story) -> None:
    """And its clean end shows as no hole: every line from its last start on is there."""
    for sender in {line["sender"] for line in story.lines}:
        numbers = sorted(line["seq"] for line in story.lines if line["sender"] == sender)
        assert len(set(numbers)) == len(numbers)
        holes = [pair for pair in pairwise(numbers) if pair[1] != pair[0] + 1]
        assert len(holes) == (1 if sender == story.killed else 0)


def test_no_unfinished_file_is_left_and_every_file_of_a_primary_begins_with_the_roster(story: Story) -> None:
    assert list(story.folder.glob(".*")) == []
    rosters = [line for line in story.lines if line["kind"] == "roster" and line["sender"] == story.successor]
    assert rosters[-1]["queues"] == ["orders"]
    assert story.killed in rosters[-1]["backups"]


# ---- the story


def test_the_killed_primary_has_left_what_it_measured(story: Story) -> None:
    backups = {line["backup"] for line in story.samples(story.killed, 1, "orders")}
    assert len(backups) == 2
    assert story.killed not in backups
    assert [event["to"] for event in story.events(story.killed, "role")][:2] == ["recovering", "active"]


def test_samples_come_once_an_interval_for_the_whole_log_and_each_queue(story: Story) -> None:
    for queue in (None, "orders"):
        samples = story.samples(story.successor, 2, queue)
        for backup in {line["backup"] for line in samples}:
            stamps = [int(line["ts"][-7:-5]) * 1000 + int(line["ts"][-4:-1]) for line in samples if line["backup"] == backup]
            steps = [(after - before) % 60_000 for before, after in pairwise(stamps)]
            assert sorted(steps)[len(steps) // 2] == pytest.approx(INTERVAL_MS, abs=INTERVAL_MS / 2)


def test_a_dead_backup_lags_more_with_every_sample_and_is_level_again_when_it_is_back(story: Story) -> None:
    """Breaks when a backup that is not connected is taken for one without lag."""
    samples = [line for line in story.samples(story.successor, 2, None) if line["backup"] == story.killed]
    away = list(takewhile(lambda line: not line["connected"], samples))
    assert len(away) > 10
    assert away[-1]["lag_records"] > away[0]["lag_records"]
    assert away[-1]["lag_ms"] > away[0]["lag_ms"]
    assert not any(line["in_sync"] for line in away)
    assert any(line["connected"] and line["in_sync"] and line["lag_records"] < away[0]["lag_records"] for line in samples)


def test_the_failover_is_told_by_the_broker_that_took_over(story: Story) -> None:
    (noticed,) = story.events(story.successor, "failure_detected")
    assert (noticed["broker"], noticed["epoch"]) == (story.killed, 1)
    assert story.events(story.successor, "promote_asked")[-1]["detail"] == "test"
    assert story.events(story.successor, "promote_won")
    (done,) = story.events(story.successor, "failover_done")
    assert (done["epoch"], done["to"]) == (2, story.successor)
    assert 0 < done["duration_ms"] < 60_000
    roles = [(event["from"], event["to"]) for event in story.events(story.successor, "role")]
    assert roles[-1] == ("recovering", "active")
    assert ("joining", "ready") in roles or ("catchup", "ready") in roles
    (back,) = story.events(story.killed, "role")[-1:]
    assert back["to"] == "ready"


@pytest.mark.spark
def test_a_summary_of_it_shows_the_failover(story: Story) -> None:
    command = [sys.executable, "-m", "cli.qpid_lag", "summarise", "--input", str(story.folder), "--format", "json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment(), check=False)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    report = json.loads(ran.stdout)
    assert len(report["failovers"]) == 1, report["failovers"]
    (failover,) = report["failovers"]
    assert (failover["kind"], failover["previous"], failover["primary"]) == ("failover", story.killed, story.successor)
