"""The story of `qpid-lag demo-data`: its lines are a broker's, its answers are right, and its size costs time, not memory."""

from __future__ import annotations

import json
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.lag.qpid_lag import main
from spark_analytics import demo_data
from spark_analytics.demo_data import Shape
from spark_analytics.demo_data.incidents import PROBLEMS
from spark_analytics.demo_data.story import MANAGER
from spark_analytics.jobs.summarise import Report
from telemetry import lines, schema
from tests.spark_analytics.conftest import Summarise

DAY_BEGINS_MS = 1_767_571_200_000
BEGIN_MS = 1_767_600_000_000
SHAPES = {
    "ten minutes": Shape(BEGIN_MS, seconds=600, queues=3, seed=1),
    "the shortest": Shape(BEGIN_MS, seconds=120, queues=1, seed=7),
    "a day by the minute": Shape(DAY_BEGINS_MS, seconds=86_400, queues=1, seed=3, backups=3, interval_ms=60_000),
    "an hour by ten seconds": Shape(BEGIN_MS, seconds=3600, queues=40, seed=4, backups=4, interval_ms=10_000),
}
Line = dict[str, Any]
Written = tuple[Shape, Path, dict[str, Any]]


@pytest.fixture(scope="module", params=SHAPES, ids=lambda name: name.replace(" ", "_"))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A shape, its folder and its answers."""
    shape, folder = SHAPES[request.param], tmp_path_factory.mktemp("story")
    return shape, folder, demo_data.write(folder, shape)


@pytest.fixture(scope="module")
def sound(written: Written) -> list[Line]:
    """Its `good` lines, which several tests look at."""
    return good(written[1])


def texts(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        yield from path.read_text().splitlines(keepends=True)


def good(folder: Path) -> list[Line]:
    """Every line that is one, each once, in the order of its sender's numbers."""
    found: dict[tuple[str, int], Line] = {}
    for text in texts(folder):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        is_good = line.get("v") == 1 and line["kind"] in ("sample", "event", "roster", "probe") and line["ts"][:2] == "20"
        if is_good and (line["kind"] != "sample" or ("backup" in line and line["lag_records"] >= 0)):
            found[line["sender"], line["seq"]] = line
    return [found[key] for key in sorted(found)]


def ms(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def of_broker(line: Line) -> str:
    """The same line by the brokers' own functions."""
    head = lines.Head(line["cluster"], line["epoch"], line["sender"], line["ts"])
    own = {name: value for name, value in line.items() if name not in ("v", "kind", "cluster", "epoch", "sender", "seq", "ts")}
    if line["kind"] == "sample":
        interval_ms, primary = own.pop("interval_ms"), own.pop("primary")
        return lines.SampleText(head, interval_ms=interval_ms, primary=primary).line(line["seq"], lines.LagSample(**own))
    if line["kind"] == "event":
        named = {{"from": "from_", "bytes": "nbytes"}.get(name, name): value for name, value in own.items()}
        return lines.line(lines.event_record(head, line["seq"], **named)).decode()
    if line["kind"] == "roster":
        return lines.line(lines.roster_record(head, line["seq"], **own)).decode()
    interval_ms = own.pop("interval_ms")
    return lines.line(lines.probe_record(head, line["seq"], interval_ms=interval_ms, probe=lines.Probe(**own))).decode()


def test_every_line_is_to_the_byte_what_a_broker_would_write(written: Written, sound: list[Line]) -> None:
    said = set(texts(written[1]))
    kinds: dict[str, int] = {}
    for line in sound:
        assert of_broker(line) in said, line
        kinds[line["kind"]] = kinds.get(line["kind"], 0) + 1
    assert kinds.keys() == {"sample", "event", "roster", "probe"}
    types = {line["type"] for line in sound if line["kind"] == "event"}
    assert {"drop", "failover_done", "promote_asked", "catch_up_end", "backup_lost"} <= types <= schema.EVENT_TYPES


def test_a_broker_numbers_its_lines_in_order_and_calls_its_files_as_brokers_do(written: Written, sound: list[Line]) -> None:
    shape, folder, answers = written
    for path in folder.iterdir():
        sender, stamp, suffix = path.name.rsplit(".", 2)
        assert (len(stamp), suffix) == (15, "jsonl")
        assert sender in {name.replace(":", "_") for name in (*shape.brokers, MANAGER)}
    assert answers["files"] == len([*folder.iterdir()])
    assert answers["lines"] == sum(1 for _ in texts(folder))
    by_sender: dict[str, list[Line]] = {}
    for line in sound:
        by_sender.setdefault(line["sender"], []).append(line)
    holes = 0
    for sender, own in by_sender.items():
        again = [b for a, b in pairwise(own) if b["seq"] - a["seq"] >= 1_000_000]
        assert len(again) == (2 if sender == shape.brokers[0] else 1), "after the outage, and who was killed once more"
        assert all(0 <= ms(line["ts"]) - line["seq"] // 1000 < shape.interval_ms for line in again), "from its clock"
        assert all(ms(a["ts"]) - 10 <= ms(b["ts"]) for a, b in pairwise(own)), "numbers rise with time"
        steps = [b["seq"] - a["seq"] for a, b in pairwise(own)]
        holes += sum(step - 1 for step in steps if step < 1_000_000)
    assert holes == answers["holes"]
    drops = [line for own in by_sender.values() for line in own if line.get("type") == "drop"]
    assert sum(line["lost_records"] for line in drops) == answers["drops"]["lines"] > 0


def test_the_answers_are_what_is_found_when_every_line_is_looked_at(written: Written, sound: list[Line]) -> None:
    """By nothing but a dictionary of slots: slow, and hard to get wrong."""
    shape, _, answers = written
    samples = [line for line in sound if line["kind"] == "sample" and line["sender"] == line["primary"]]
    assert len(samples) == answers["samples_used"]
    whole = {
        (line["backup"], (ms(line["ts"]) - shape.start_ms) // shape.interval_ms): line
        for line in samples
        if line["queue"] is None
    }
    begins: dict[int, tuple[int, str]] = {}
    for (_, slot), line in whole.items():
        first = begins.get(line["epoch"], (slot, ""))[0]
        begins[line["epoch"]] = (min(first, slot), line["primary"])
    order = sorted(begins.values())
    for row in answers["backups"]:
        expected = [slot for slot in range(shape.slots) if order[bisect_right(order, (slot, "~")) - 1][1] != row["backup"]]
        told = [whole[row["backup"], slot] for slot in expected if (row["backup"], slot) in whole]
        heard = [line for line in told if line["connected"]]
        assert (row["expected"], row["samples"], row["stopped"]) == (len(expected), len(told), len(told) - len(heard))
        over = len(expected) - sum(line["lag_ms"] <= 1000 for line in heard)
        assert row["over_share"] == pytest.approx(over / len(expected), abs=1e-6)
        assert row["longest_stall_ms"] == max(line["stall_ms"] for line in told)
        assert row["max_ms"] == max(line["lag_ms"] for line in told)
        lags = sorted(line["lag_ms"] for line in heard)
        for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99)):
            rank = ceil(share * len(expected))
            assert row[name] == (lags[rank - 1] if rank <= len(lags) else None), (row["backup"], name)


def test_a_backups_index_never_falls_within_an_epoch_and_nothing_waits_for_longer_than_it_can(sound: list[Line]) -> None:
    last: dict[tuple[int, str], Line] = {}
    for line in sorted(sound, key=lambda line: str(line["ts"])):
        if line["kind"] != "sample" or line["queue"] is not None or line["sender"] != line["primary"]:
            continue
        before = last.get((line["epoch"], line["backup"]))
        assert line["acked_index"] <= line["commit_index"]
        assert (line["lag_records"] > 0) == (line["lag_ms"] > 0)
        if before is not None:
            assert line["acked_index"] >= before["acked_index"]
            assert line["commit_index"] > before["commit_index"]
            assert line["lag_ms"] <= before["lag_ms"] + ms(line["ts"]) - ms(before["ts"]) + 10
        last[line["epoch"], line["backup"]] = line


@pytest.mark.parametrize("written", ["a day by the minute"], indirect=True, ids=["a_day_by_the_minute"])
def test_load_rises_and_falls_with_the_day_and_lag_with_it(written: Written, sound: list[Line]) -> None:
    shape = written[0]
    rates: dict[int, list[float]] = {}
    lags: dict[int, list[float]] = {}
    for line in sound:
        if line["kind"] == "sample" and line["queue"] is None and line["backup"] == shape.brokers[2] and line["connected"]:
            hour = (ms(line["ts"]) - shape.start_ms) // 3_600_000
            if line["records_per_s"] is not None and line["sender"] == line["primary"]:
                rates.setdefault(hour, []).append(line["records_per_s"])
                lags.setdefault(hour, []).append(line["lag_ms"])
    night, afternoon = (sum(rates[hour]) / len(rates[hour]) for hour in (3, 15))
    assert afternoon > 3 * night
    assert sorted(lags[15])[30] > 2 * sorted(lags[3])[30], "the median of an hour"


def test_the_same_arguments_give_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    def content(name: str, shape: Shape) -> dict[str, bytes]:
        demo_data.write(tmp_path / name, shape)
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    shape = Shape(BEGIN_MS, seconds=120, queues=300)
    one = content("one", shape)
    assert len(one) == 8, "two files a sender"
    assert content("again", shape) == one
    assert content("other", Shape(BEGIN_MS, seconds=120, queues=300, seed=2)) != one


def test_a_story_ten_times_as_long_is_written_in_the_same_memory(tmp_path: Path) -> None:
    """By the kernel's high-water mark of a process of its own; its `ru_maxrss` would begin with this one's."""
    code = (
        "import re, sys; from pathlib import Path; from spark_analytics import demo_data; "
        "made = demo_data.write(sys.argv[1], demo_data.Shape(0, seconds=int(sys.argv[2]), queues=150)); "
        "print(made['lines'], re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])"
    )
    peaks = []
    for seconds in (120, 1200):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / str(seconds)), str(seconds)],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        number, peak_kib = map(int, done.stdout.split())
        peaks.append(peak_kib)
    assert number > 300_000
    assert peaks[1] < peaks[0] + 4096, "the lines alone are 200 MB"


# ---- what Spark finds in it


def test_the_real_summary_finds_every_answer(report: Report, story: tuple[Path, dict[str, Any]]) -> None:
    assert_found(report, story[1])
    assert report["quality"]["holes"] > 0
    assert "time in the future" in report["quality"]["problems"], "and it does not stretch the span"


def test_it_finds_them_in_a_day_of_a_sample_a_minute(summary: Summarise, tmp_path: Path) -> None:
    """A row of the sums holds ten minutes of samples then, and senders start again within it."""
    shape = Shape(BEGIN_MS, seconds=86_400, queues=1, interval_ms=60_000)
    answers = demo_data.write(tmp_path, shape)
    found = summary(tmp_path, now_ms=BEGIN_MS + 2 * 86_400_000)
    assert found["window_ms"] == 600_000
    assert_found(found, answers)


def assert_found(report: Report, answers: dict[str, Any]) -> None:
    """Every answer that is a number is in the report."""
    quality = report["quality"]
    assert (report["from_ms"], report["to_ms"]) == (ms(answers["from"]), ms(answers["to"]))
    for name in ("lines", "samples_used", "holes", "drops", "problems", "files"):
        assert quality[name] == answers[name], name
    assert (quality["bad"], quality["repeated"]) == (answers["bad_lines"], answers["repeated_lines"])
    found = {row["backup"]: row for row in report["backups"]}
    for answer in answers["backups"]:
        row = found[answer["backup"]]
        assert (row["n"], row["expected"], row["sampled"] - row["heard"]) == (
            answer["samples"],
            answer["expected"],
            answer["stopped"],
        )
        assert row["over_share"] == pytest.approx(answer["over_share"], abs=1e-4)
        assert (row["stall_ms"], row["max_ms"]) == (answer["longest_stall_ms"], answer["max_ms"])
        assert 0 <= row["silence_ms"] - answer["longest_silence_ms"] <= 2 * answers["interval_ms"]
        for name in ("p50_ms", "p95_ms", "p99_ms"):
            exact = answer[name]
            if exact is None:
                assert row[name] == row["worst_ms"], (row["backup"], name)
            else:
                assert row[name] == pytest.approx(exact, abs=1e-3), (row["backup"], name)
    worst = report["worst_hours"][0]
    assert worst["over_share"] == pytest.approx(answers["worst_hours"][0]["over_share"], abs=1e-4)
    assert (worst["backup"], worst["start_ms"]) in {(hour["backup"], ms(hour["from"])) for hour in answers["worst_hours"]}


def test_the_real_summary_finds_each_change_of_primary(report: Report, story: tuple[Path, dict[str, Any]]) -> None:
    found = [
        {
            "kind": row["kind"],
            "epoch": row["epoch"],
            "from": row["previous"],
            "to": row["primary"],
            "at": demo_data.iso(row["at_ms"]),
            "gap_ms": row["gap_ms"],
            "measured": row["measured"],
        }
        for row in report["failovers"]
    ]
    assert found == story[1]["failovers"]


@pytest.mark.parametrize(
    "what, status",
    [("stalled", "STALLED"), ("stopped", "STOPPED"), ("silent", "SILENT"), ("lost", "SILENT"), ("outage", "SILENT")],
)
def test_the_real_summary_shows_what_happens_when_it_does(
    report: Report, story: tuple[Path, dict[str, Any]], what: str, status: str
) -> None:
    answer, step_ms = story[1][what], report["timeline"]["step_ms"]
    begin, end = ms(answer["from"]), ms(answer["to"])
    (primary,) = {term["primary"] for term in report["terms"] if term["begin_ms"] <= begin + step_ms < term["end_ms"]}
    backups = [answer["backup"]] if "backup" in answer else [name for name in report["lanes"] if name != primary]
    for backup in backups:
        spans = [(first, last) for first, last, said in report["lanes"][backup] if said == status]
        near = [(first, last) for first, last in spans if max(abs(first - begin), abs(last - end)) <= 2 * step_ms]
        assert len(near) == 1, (backup, spans)


def test_a_slow_disk_raises_the_lag_of_its_backup_for_as_long_as_it_is_slow(
    report: Report, story: tuple[Path, dict[str, Any]]
) -> None:
    slow, timeline = story[1]["slow_disk"], report["timeline"]
    begin, end = ((ms(slow[at]) - timeline["start_ms"]) // timeline["step_ms"] for at in ("from", "to"))
    lags = timeline["backups"][slow["backup"]]["p50_ms"]
    assert min(lags[begin + 1 : end]) > 300
    assert max(timeline["backups"][demo_data.BROKERS[1]]["p50_ms"][begin + 1 : end]) < 300
    own = [line for line in good(story[0]) if line.get("role") == "backup" and line["sender"] == slow["backup"]]
    within = [line["sync_ms"] for line in own if ms(slow["from"]) <= ms(line["ts"]) < ms(slow["to"])]
    assert min(within) > 20 > max(line["sync_ms"] or 0 for line in own if ms(line["ts"]) < ms(slow["from"]))


# ---- the command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["demo-data", *arguments])


def test_the_command_writes_and_prints_the_answers_as_tables_or_as_json(tmp_path: Path) -> None:
    asked = ("--duration", "2m", "--queues", "2", "--backups", "3", "--start", "2026-01-05T08:00:00Z", "--seed", "5")
    told = run("--output", str(tmp_path / "a"), *asked)
    assert told.exit_code == 0, told.output
    for word in ("a truthful summary finds", "127.0.0.1:5675", "switchover", "its disk is slow", "The worst hour"):
        assert word in told.stdout
    answers = json.loads(run("--output", str(tmp_path / "b"), *asked, "--format", "json").stdout)
    shape = Shape(1_767_600_000_000, seconds=120, queues=2, seed=5, backups=3)
    assert answers == demo_data.write(tmp_path / "c", shape)
    assert answers["bad_lines"] == sum(PROBLEMS.values())


def test_a_story_that_cannot_be_is_refused_in_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    output = ("--output", str(tmp_path / "new"))
    cases = {
        ("--output", str(tmp_path / "full")): "is not empty: choose a new folder",
        ("--output", str(tmp_path / "full" / "letter.txt" / "deep")): "choose another --output",
        (*output, "--start", "soon"): "--start soon is not a time",
        (*output, "--duration", "1m"): "is too short for all that happens",
        (*output, "--duration", "1h", "--interval", "60s"): "at least 7200 s",
        (*output, "--interval", "7s"): "is not a whole fraction of a minute",
        (*output, "--duration", "soon"): "--duration soon is not a length of time",
        (*output, "--start", "9999-01-01T00:00:00Z"): "--start 9999-01-01T00:00:00Z is not in the past",
        (*output, "--start", "1800-01-01T00:00:00Z"): "--start 1800-01-01T00:00:00Z is not in the past, from 1970 on",
        (*output, "--start", "99999d"): "--start 99999d is not in the past, from 1970 on",
        (*output, "--duration", "99999d"): "the begin of a story of 8639913600 s is not in the past, from 1970 on",
        (*output, "--duration", "3650d", "--queues", "5000"): "choose another --output, a longer --interval, or fewer --queues",
    }
    for arguments, sentence in cases.items():
        result = run(*arguments)
        status = 1 if sentence.endswith(("folder", "--output", "--queues")) else 2  # 1: the folder or the disk does not do
        assert (result.exit_code, sentence in result.stderr, result.stderr.count("\n")) == (status, True, 1), result.output
    assert run(*output, "--duration", "10m", "--seconds", "600").exit_code == 2
    assert not (tmp_path / "new").exists()
