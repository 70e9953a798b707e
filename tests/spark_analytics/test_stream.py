"""A stream must count what a summary of the same lines counts: each line once, whatever is repeated, late, bad or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyarrow import parquet
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from cli.lag.stream import _Watch as Watch
from spark_analytics import demo_data, requests, tail
from spark_analytics.errors import Refused
from spark_analytics.jobs import compact, inputs, spans, stream
from spark_analytics.jobs.summarise import Report, Request, summarise
from spark_analytics.locations import first_line
from spark_analytics.schemas import LINES
from spark_analytics.store import HOUR_MS, Manifest, Store, names_of
from spark_analytics.transforms import lines as of_lines
from tests.spark_analytics.conftest import START_MS
from tests.spark_analytics.stories import Teller
from tests.spark_analytics.test_summarise import sample

NOW_MS = START_MS + 2 * spans.HOUR
BEGIN_MS = START_MS + 57 * spans.MINUTE
SECONDS = 360
"""The end of an hour, and enough of the next that the first is over."""
SINCE_MS = START_MS + 20_000
SHORT_LIVED = os.environ | {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""For a stream that ends after a batch: Java's optimising compiler, which a long one has, would take longer than all of it."""
DIFFERENT = {"source", "input", "quality"}


def asked(telemetry: Path, output: Path, **fields: Any) -> stream.Streaming:
    return stream.Streaming(path=str(telemetry), output=str(output), available_now=True, **fields)


def run(spark: SparkSession, telemetry: Path, output: Path, **fields: Any) -> list[stream.Progress]:
    """Stream what is there, and return what each batch said."""
    done: list[stream.Progress] = []
    assert stream.start(spark, asked(telemetry, output, **fields), done.append).await_end()
    return done


@pytest.fixture(scope="module")
def telemetry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bit more than an hour of the story, with its bad and repeated lines."""
    folder = tmp_path_factory.mktemp("telemetry")
    demo_data.write(folder, demo_data.Shape(BEGIN_MS, seconds=SECONDS, queues=1))
    return folder


@pytest.fixture(scope="module")
def from_lines(spark: SparkSession, telemetry: Path) -> Report:
    return summarise(spark, Request(str(telemetry), NOW_MS))


@pytest.fixture(scope="module")
def streamed(spark: SparkSession, telemetry: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same lines in several batches: late ones, a file that comes twice, and a piece after its hour was compacted."""
    folder, output = tmp_path_factory.mktemp("arriving"), tmp_path_factory.mktemp("kept") / "out"
    first, second, third, manager = ([*path.read_text().splitlines(keepends=True)] for path in sorted(telemetry.iterdir()))
    half, piece = len(first) // 2, slice(len(second) // 3, len(second) // 2)

    def arrives(name: str, lines: list[str]) -> None:
        (folder / f"{name}.jsonl").write_text("".join(lines))

    arrives("a.000000000000002", first[half:])
    run(spark, folder, output)
    arrives("a.000000000000001", first[:half])
    arrives("b", second[: piece.start] + second[piece.stop :])
    arrives("c", third)
    arrives("m", manager)
    arrives("z", list(reversed(first)))
    assert len(run(spark, folder, output, batch_bytes=8 << 20)) > 1
    assert Store(output).load().hours, "an hour was compacted"
    arrives("d", second[piece])
    run(spark, folder, output)
    return output


def test_a_stream_in_several_batches_with_late_repeated_and_bad_lines_is_summarised_as_the_lines_are(
    spark: SparkSession, from_lines: Report, streamed: Path
) -> None:
    kept = summarise(spark, Request(str(streamed), NOW_MS))
    assert kept.keys() == from_lines.keys()
    for part in from_lines.keys() - DIFFERENT:
        assert kept[part] == from_lines[part], part
    assert kept["source"] == "stream"
    for count in ("samples_used", "holes", "drops", "clocks"):
        assert kept["quality"][count] == from_lines["quality"][count], count
    assert kept["quality"]["repeated"] > from_lines["quality"]["repeated"] + 500, "a whole file came twice"
    assert kept["quality"]["late"] > 100, "half of a sender's lines came after the other half"
    assert kept["quality"]["bad"] == 2 * from_lines["quality"]["bad"]


def test_a_batch_that_spark_runs_again_changes_nothing(spark: SparkSession, telemetry: Path, streamed: Path) -> None:
    store = Store(streamed)
    before = store.load()
    lines = spark.read.text(str(telemetry)).selectExpr("value", "'x' AS file")
    assert stream.add_batch(store, asked(telemetry, streamed), lines, before.batch, now_ms=NOW_MS) is None
    assert store.load() == before


def test_of_few_lines_a_short_summary_reads_the_files_once(spark: SparkSession, streamed: Path) -> None:
    """It keeps them in one part, and lets go of them."""
    read = inputs.read(spark, str(streamed), None, now_ms=NOW_MS, since_ms=None, until_ms=None)
    assert (read.source, read.lines.rdd.getNumPartitions()) == ("stream", 1)
    read.release()


def test_the_size_of_a_streams_folder_is_told_in_lines_and_not_in_bytes(
    spark: SparkSession, streamed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line has 600 bytes as text and 4 to 26 in Parquet: by its bytes, a session for short jobs was started for millions."""
    store = Store(streamed)
    manifest = store.load()
    hours = manifest.hours_within(None, None)
    there = spark.read.parquet(*store.dirs(manifest, hours)).count()
    assert store.n_lines(manifest, hours) == there
    assert store.n_lines(manifest, hours[:1]) < there
    request = requests.request_of({"path": str(streamed), "objective_ms": None, "target": 0.99}, NOW_MS)
    monkeypatch.setattr(requests, "LONG_LINES", there)
    assert requests.work_of(request) == "short"
    monkeypatch.setattr(requests, "LONG_LINES", there - 1)
    assert requests.work_of(request) == "long"
    assert requests.work_of(replace(request, until_ms=(hours[0] + 1) * HOUR_MS)) == "short", "of the span, not of the folder"
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(Store, "dirs", lambda *_: [str(tmp_path)])
    assert store.n_lines(manifest, hours) == 0


def test_what_is_small_as_files_is_not_taken_for_small_in_memory(spark: SparkSession, streamed: Path) -> None:
    """Spark took the size of Parquet files for that of their rows, and summaries of two million lines ran out of memory."""
    lines = spark.read.parquet(*Store(streamed).dirs(Store(streamed).load(), range(1 << 20)))
    plan: Any = lines.join(lines.withColumnRenamed("seq", "other"), "sender")._jdf.queryExecution()
    assert "Join" in plan.executedPlan().toString()
    assert "Broadcast" not in plan.executedPlan().toString()


CUTS = {
    "going on": [[7, 8, 9], [10, 11]],
    "one twice in place of another": [[7, 8, 8, 10], [11]],
    "one again in the next batch": [[7, 8, 9], [9, 10]],
    "late": [[10, 11], [7, 8]],
    "holes that are filled later": [[7, 9, 12], [8, 11]],
    "holes, and one again": [[7, 9, 12], [10, 9, 8]],
    "over the edge of a block of numbers": [[62, 63, 64, 65], [64, 66]],
}
"""By sender, the numbers of its lines in two batches."""


def test_each_number_counts_once_however_the_batches_are_cut(spark: SparkSession, tmp_path: Path) -> None:
    store = stream.prepare(asked(tmp_path, tmp_path / "out"))
    for batch in (0, 1):
        numbers = [(sender, number) for sender, its in CUTS.items() for number in its[batch]]
        lines = [(json.dumps(sample(float(number), sender=sender, seq=number)), "file:///one") for sender, number in numbers]
        done = stream.add_batch(
            store, asked(tmp_path, tmp_path / "out"), spark.createDataFrame(lines, LINES), batch, now_ms=NOW_MS
        )
        assert done is not None
        assert done.lines == len(numbers)
    manifest = store.load()
    once = {sender: sorted({number for numbers in its for number in numbers}) for sender, its in CUTS.items()}
    assert manifest.counters["repeated"] == sum(len(its[0] + its[1]) - len(once[sender]) for sender, its in CUTS.items()) == 4
    seen = {names_of(key)[1]: [n for first, last in its for n in range(first, last + 1)] for key, its in manifest.seen.items()}
    assert seen == once
    rows = compact.read(spark, store, manifest, sorted(manifest.dirty()))
    assert rows is not None
    found: dict[str, list[int]] = {}
    for row in rows.select("sender", "seq").orderBy("sender", "seq").collect():
        found.setdefault(row["sender"], []).append(row["seq"])
    assert found == once
    assert manifest.counters["files"] == 1


def test_what_a_batch_adds_to_an_hour_that_is_just_being_compacted_is_neither_lost_nor_counted_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, writes = stream.prepare(asked(tmp_path, tmp_path / "out")), compact.write_hour
    hour, after = START_MS // spans.HOUR, 2 * 3600.0

    def batch(number: int, seconds: list[float]) -> None:
        lines = [(json.dumps(sample(at, seq=int(at))), f"file:///{number}") for at in seconds]
        assert stream.add_batch(
            store, asked(tmp_path, tmp_path / "out"), spark.createDataFrame(lines, LINES), number, now_ms=NOW_MS
        )

    def meanwhile(*about: Any) -> Any:
        done = writes(*about)
        monkeypatch.undo()
        batch(2, [9.0, 10.0, after + 2])
        return done

    def lines() -> int:
        rows = compact.read(spark, store, store.load(), store.load().hours_within(None, None))
        assert rows is not None
        return rows.count()

    batch(0, [7.0, 8.0])
    batch(1, [after, after + 1])
    monkeypatch.setattr(compact, "write_hour", meanwhile)
    assert compact.compact(spark, store, now_ms=NOW_MS) == 1
    manifest = store.load()
    assert manifest.hours[hour] == 1
    assert (manifest.batch, manifest.counters["lines"], lines()) == (2, 7, 7)
    assert sorted(manifest.parts) == [1, 2], "what was compacted lies nowhere else"
    assert hour in manifest.dirty(), "what came meanwhile lies below"
    with store.changing() as newer:
        newer.newest["a later line"] = START_MS + 3 * spans.DAY
    assert compact.compact(spark, store, now_ms=START_MS + 3 * spans.DAY) == 2
    assert (lines(), store.load().dirty(), store.load().parts) == (7, set(), {})


def test_a_file_that_cannot_be_read_ends_the_stream_with_a_line_that_says_so(spark: SparkSession, tmp_path: Path) -> None:
    """And not with the first of a traceback's lines. The batch was begun while the file could be read, and is run again."""
    file = tmp_path / "in" / "a.jsonl"
    file.parent.mkdir()
    file.write_text(json.dumps(sample(1.0)) + "\n")
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(StreamingQueryException):
        stream.start(spark, asked(file.parent, tmp_path / "out"), stopping=stopping).await_end()
    file.unlink()
    file.mkdir()
    with pytest.raises(StreamingQueryException) as died:
        stream.start(spark, asked(file.parent, tmp_path / "out")).await_end()
    assert first_line(died.value) == f"cannot read {file}: Is a directory; check its owner and mode"


def test_batches_wait_for_a_compaction_that_is_two_of_them_behind_and_their_end_for_the_last(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that last as long as this test wants them to."""
    ended: list[int] = []
    gate = threading.Semaphore(0)

    def run(*_: Any, now_ms: int, **__: Any) -> int:
        assert gate.acquire(timeout=60)
        ended.append(now_ms)
        return 0

    monkeypatch.setattr(compact, "compact", run)
    beside = compact.Beside(spark, Store(tmp_path))
    beside.begin(1)
    beside.begin(2)
    assert ended == [], "the second batch has not waited"
    gate.release()
    beside.begin(3)
    assert ended == [1], "the third has"
    beside.begin(4)
    gate.release(2)
    beside.finish()
    assert ended == [1, 3, 4]


def test_what_goes_wrong_beside_the_batches_ends_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    store = stream.prepare(asked(tmp_path, tmp_path / "out"))
    with store.changing() as manifest:
        manifest.newest["a line"] = START_MS + 3 * spans.HOUR
        manifest.parts[0] = [START_MS // spans.HOUR]
        manifest.schema = StructType([StructField(name, LongType()) for name in ("kind", "backup", "queue", "ts_ms")]).json()
    beside = compact.Beside(spark, store)
    beside.begin(NOW_MS)
    with pytest.raises(AnalysisException, match="batch_id=0"):
        beside.finish()


def kept(output: Path) -> list[tuple[Any, ...]]:
    """The good lines that a store holds, whatever batches they came in."""
    store = Store(output)
    manifest = store.load()
    folders = store.dirs(manifest, manifest.hours_within(None, None))
    files = [str(file) for folder in folders for file in Path(folder).glob("*.parquet")]
    rows = ds.dataset(files, format="parquet").to_table().to_pylist()
    return sorted(tuple(map(str, row.values())) for row in rows if row["problem"] is None)


@dataclass(frozen=True)
class Broken:
    """A stream that was broken off twice: its folder, and what its first process said when its Java was gone, and its status."""

    output: Path
    said: list[str]
    status: int


@pytest.fixture(scope="module")
def broken(spark: SparkSession, telemetry: Path, tmp_path_factory: pytest.TempPathFactory) -> Broken:
    """The Java of a first process ends, all of a second one, each between two batches or within one; a third one goes on."""
    output = tmp_path_factory.mktemp("broken") / "out"
    command = [sys.executable, "-m", "cli.lag.qpid_lag", "stream", "--input", str(telemetry), "--output", str(output)]
    command += ["--available-now", "--batch-mib", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=SHORT_LIVED) as process:
        assert process.stderr is not None
        assert "following" in process.stderr.readline()
        assert "batch 0: " in process.stderr.readline()
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        (java,) = [pid for pid in children if "java" in Path(f"/proc/{pid}/exe").readlink().name]
        os.kill(java, signal.SIGKILL)
        said = process.stderr.read().splitlines()
    begun = Store(output).load().batch
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=SHORT_LIVED) as again:
        assert again.stderr is not None
        while "batch " not in (line := again.stderr.readline()):
            assert line, "it ended before it could be killed"
        os.killpg(again.pid, signal.SIGKILL)
    batches = Store(output).load().batch
    assert batches > begun >= 0
    assert run(spark, telemetry, output), "there was something left to do"
    assert Store(output).load().batch > batches
    return Broken(output, said, process.returncode)


def its_lines() -> list[dict[str, Any]]:
    """Four minutes of a primary's lines in the order of their numbers: samples of two backups and a queue, rosters, events."""
    lines = [sample(second, backup=backup, queue=queue) for second in range(240) for backup in "bc" for queue in (None, "q")]
    roster = {"kind": "roster", "queues": ["q"], "backups": ["b", "c"]}
    event = {"kind": "event", "broker": "p", "type": "catch_up_begin"}
    for second in range(200, -1, -40):
        lines[4 * second : 4 * second] = [sample(second) | roster, sample(second) | event]
    return [line | {"seq": number} for number, line in enumerate(lines)]


@pytest.fixture(scope="module")
def streamed_once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """What is kept of `its_lines` when each comes once."""
    folder = tmp_path_factory.mktemp("once")
    (folder / "all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in its_lines()))
    output = tmp_path_factory.mktemp("single") / "out"
    run(spark, folder, output, since_ms=SINCE_MS)
    return kept(output)


@pytest.mark.parametrize("as_text", [pytest.param(False, id="files"), pytest.param(True, id="text")])
def test_what_comes_again_counts_once_wherever_it_stands(
    spark: SparkSession, tmp_path: Path, streamed_once: list[tuple[Any, ...]], as_text: bool
) -> None:
    """In the same file, in another one, in an earlier batch, written another way, as an event, and before the span; some
    lines stand only in a file of which others came again."""
    once = its_lines()
    half, end = 520, len(once)
    other_way = [line | {"ts": str(line["ts"]).replace("Z", "+00:00")} for line in once[700:720]]
    left_out = {*range(650, 660), *range(715, 720)}
    most = [line for line in once[half - 100 :] if line["seq"] not in left_out]
    again = {"b": once[640:660], "c": other_way, "d": once[40:50] + other_way}
    batches = [
        {"a.000000000000001": once[:half] + once[:30] + once[200:210] * 2},
        {"a.000000000000002": most + once[600:603], **again},
    ]
    folder, output = tmp_path / "again", tmp_path / "out"
    folder.mkdir()
    for number, files in enumerate(batches):
        if as_text:
            settings = asked(folder, output, since_ms=SINCE_MS)
            rows = [(json.dumps(line), f"file:///{name}") for name, its in files.items() for line in its]
            stream.add_batch(stream.prepare(settings), settings, spark.createDataFrame(rows, LINES), number, now_ms=NOW_MS)
        else:
            for name, its in files.items():
                (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in its))
            run(spark, folder, output, since_ms=SINCE_MS)
    manifest = Store(output).load()
    every = sum(len(its) for files in batches for its in files.values())
    assert (manifest.batch, manifest.counters["lines"], manifest.counters["repeated"]) == (1, every, every - end)
    assert list(manifest.seen.values()) == [[[0, end - 1]]]
    assert [line[:6] for line in kept(output)] == [line[:6] for line in streamed_once]


def test_a_stream_that_is_killed_and_started_again_has_the_same_lines(broken: Broken, streamed: Path) -> None:
    assert kept(broken.output) == kept(streamed)


def test_a_stream_whose_java_ends_under_it_says_so_in_one_line(broken: Broken) -> None:
    """As when the kernel takes its memory back. Every thread that talks to Java notices, and one of them is heard."""
    told = [line for line in broken.said if not line.startswith("batch ")]
    assert broken.status == 1
    assert len(told) == 1, broken.said
    assert told[0].startswith("qpid-lag: Spark's Java process has ended, killed or out of memory: ")


def test_days_that_are_too_old_are_dropped_and_a_summary_of_them_says_so(spark: SparkSession, tmp_path: Path) -> None:
    telemetry, later, output = tmp_path / "telemetry", tmp_path / "later", tmp_path / "kept"
    demo_data.write(telemetry, demo_data.Shape(START_MS, seconds=120, queues=1))
    run(spark, telemetry, output)
    store = Store(output)
    (old,) = store.dirs(store.load(), [START_MS // spans.HOUR])
    later.mkdir()
    for path in list(telemetry.iterdir()):
        lines = "".join(_later(line, 2 * spans.DAY) for line in path.read_text().splitlines())
        (telemetry / f"later-{path.name}").write_text(lines)
        (later / path.name).write_text(lines)
    run(spark, telemetry, output, keep_ms=spans.DAY)
    manifest = store.load()
    assert manifest.kept_from_ms == START_MS // spans.DAY * spans.DAY + spans.DAY
    assert min(manifest.dirty() | manifest.hours.keys()) >= manifest.kept_from_ms // spans.HOUR
    store.sweep(manifest, manifest.updated_ms + spans.HOUR)
    assert not Path(old).exists()
    now_ms = START_MS + 3 * spans.DAY
    request = Request(str(output), now_ms, since_ms=START_MS)
    report = summarise(spark, request)
    assert report["dropped_before_ms"] == manifest.kept_from_ms
    assert report["backups"] == summarise(spark, Request(str(later), now_ms))["backups"]
    refusal = "keeps nothing from before 2026-01-06T00:00:00Z: ask for a later span"
    with pytest.raises(Refused, match=refusal):
        summarise(spark, replace(request, until_ms=START_MS + spans.HOUR))
    with pytest.raises(Refused, match=f"the span to compare with .* cannot be summarised: .* {refusal}"):
        summarise(spark, replace(request, compare_ms=(START_MS, START_MS + spans.HOUR)))


def _later(line: str, ms: int) -> str:
    """The same told later, as another line; nothing of a bad one."""
    try:
        told = json.loads(line)
        moment = int(datetime.fromisoformat(told["ts"]).timestamp() * 1000)
    except (ValueError, KeyError, TypeError):
        return ""
    return json.dumps(told | {"seq": told["seq"] + 1_000_000, "ts": demo_data.iso(moment + ms)}) + "\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_stream_that_is_told_to_end_together_with_its_java_process_has_not_failed(tmp_path: Path, number: int) -> None:
    """Breaks when Ctrl-C, or a service manager that stops all processes of a service, is reported as a failure."""
    (tmp_path / "in").mkdir()
    source, kept_in = str(tmp_path / "in"), str(tmp_path / "out")
    command = [sys.executable, "-m", "cli.lag.qpid_lag", "stream", "--input", source, "--output", kept_in]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=SHORT_LIVED) as process:
        assert process.stderr is not None
        assert "following" in process.stderr.readline()
        os.killpg(process.pid, number)
        rest = process.stderr.read()
    assert (process.returncode, rest) == (0, "stopped after no batch; start it again to continue\n")


@pytest.fixture
def output(streamed: Path, tmp_path: Path) -> Path:
    """A folder with the streamed one's manifest alone, to be spoiled."""
    (tmp_path / "lag.json").write_text((streamed / "lag.json").read_text())
    return tmp_path


def test_folders_that_do_not_fit_are_refused_in_one_line(
    spark: SparkSession, telemetry: Path, streamed: Path, output: Path
) -> None:
    manifest = json.loads((output / "lag.json").read_text())
    cases: list[tuple[Any, str]] = [
        (lambda: stream.prepare(asked(telemetry, streamed, checkpoint=str(output))), "give that one with --checkpoint"),
        (lambda: stream.prepare(asked(telemetry, telemetry)), "choose a new --output"),
        (lambda: summarise(spark, Request(str(streamed), NOW_MS, since_ms=NOW_MS)), "mind --since and --until"),
    ]
    for call, sentence in cases:
        with pytest.raises(Refused, match=sentence) as refused:
            call()
        assert "\n" not in str(refused.value)
    (output / "lag.json").write_text(json.dumps(manifest | {"version": 9}))
    with pytest.raises(Refused, match="was written as version 9, this qpid-lag reads version 2: use the qpid-lag that wrote it"):
        Store(output).load()
    (output / "lag.json").write_text("{")
    with pytest.raises(Refused, match="is damaged"):
        Store(output).load()


def heard(spark: SparkSession, output: Path, number: int, *tellers: Teller) -> dict[str, float]:
    """Whom a stream has heard, and at which second, after one more batch with what they say."""
    settings = asked(output, output)
    lines = [(json.dumps(line), f"file:///{teller.name}") for teller in tellers for line in teller.lines]
    done = stream.add_batch(stream.prepare(settings), settings, spark.createDataFrame(lines, LINES), number, now_ms=NOW_MS)
    assert done is not None
    return {backup: (ts_ms - START_MS) / 1000 for backup, ts_ms in done.heard.items()}


def test_nobody_waits_for_a_backup_that_became_the_primary_or_left_the_cluster(spark: SparkSession, tmp_path: Path) -> None:
    output, p, q, other = tmp_path / "out", Teller("p"), Teller("q"), Teller("x")
    p.roster(0.4, ["q", "r"])
    p.sample(0.5, "q")
    p.sample(0.5, "r")
    other.roster(0.4, ["y"])
    other.sample(0.5, "y")
    other.lines = [line | {"cluster": "another"} for line in other.lines]
    assert heard(spark, output, 0, p, other) == {"q": 0.5, "r": 0.5, "y": 0.5}
    q.sample(1.5, "p", epoch=2)
    assert heard(spark, output, 1, q) == {"p": 1.5, "r": 0.5, "y": 0.5}, "q serves"
    q.roster(2.4, ["p"], epoch=2)
    q.sample(2.5, "p", epoch=2, connected=False)
    assert heard(spark, output, 2, q) == {"p": 1.5, "y": 0.5}, "r was removed; of another cluster q says nothing"


def test_while_old_lines_are_read_nobody_is_said_to_be_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a pause of an hour. If nothing comes for the limit of 30 s, and no batch runs, what is old is silent."""
    now_s, began_s = [1000.0], round(time.time() * 1000)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    watch = Watch(stream.Streaming(str(tmp_path), str(tmp_path)))

    def said(back_s: int | None, after_s: float, *, busy: bool = False) -> list[str]:
        if back_s is not None:
            heard_ms = began_s - back_s * 1000
            watch.batch(stream.Progress(0, 1, 1, heard_ms, {"b": heard_ms}))
        now_s[0] += after_s
        watch.look(busy=busy)
        return [line.split(":")[0] for line in capsys.readouterr().err.splitlines() if not line.startswith("batch")]

    assert [said(back_s, 9.5) for back_s in (3500, 1200, 1200, 2)] == [[], [], [], []]
    assert said(600, 9.5) == said(None, 50, busy=True) == said(None, 29) == []
    assert said(None, 2) == ["SILENT b"]
    assert said(2, 0.5) == ["heard again"]


def test_old_lines_of_another_sender_that_are_read_later_show_no_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a pause of an hour, when the files of a backup are read before those of the primary."""
    watch = Watch(stream.Streaming(str(tmp_path), str(tmp_path)))
    now_ms = round(time.time() * 1000)
    for newest_s, heard_s in ((3600, 3600), (600, 3600), (600, 3600), (600, 900), (2, 2)):
        watch.batch(stream.Progress(0, 1, 1, now_ms - newest_s * 1000, {"b": now_ms - heard_s * 1000}))
        watch.look()
    assert [line for line in capsys.readouterr().err.splitlines() if not line.startswith("batch")] == []


@pytest.mark.parametrize("behind_s, every_s, busy_s", [(40, 10, 3), (45, 35, 35)])
def test_a_stream_that_is_behind_for_good_knows_by_the_time_of_its_lines_who_is_silent(
    behind_s: int,
    every_s: int,
    busy_s: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when lines come in late, or when each batch takes longer than the limit of 30 s."""
    now_s = [1_767_600_000]
    monkeypatch.setattr(time, "time", lambda: float(now_s[0]))
    monkeypatch.setattr(time, "monotonic", lambda: float(now_s[0]))
    watch = Watch(stream.Streaming(str(tmp_path), str(tmp_path)))

    def said(batches: int, c_ms: int | None) -> list[str]:
        for _ in range(batches):
            newest_ms = (now_s[0] - behind_s) * 1000
            heard = {"b": newest_ms - 500, "c": newest_ms if c_ms is None else c_ms}
            watch.batch(stream.Progress(0, 1, 1, newest_ms, heard))
            for second in range(every_s):
                now_s[0] += 1
                watch.look(busy=second >= every_s - busy_s)
        return [line for line in capsys.readouterr().err.splitlines() if not line.startswith("batch")]

    gone_ms = (now_s[0] - behind_s - 600 + every_s) * 1000
    assert said(100, gone_ms) == ["SILENT c: not heard for 10 min"]
    assert said(100, None) == ["heard again: c"]


def test_a_backup_that_is_said_to_be_silent_is_said_to_be_none_when_it_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = Watch(stream.Streaming(str(tmp_path), str(tmp_path)))
    for backups in ({"b": 1000}, {}, {}):
        watch.batch(stream.Progress(0, 1, 1, None, backups))
        watch.look()
    said = [line.split(":")[0] for line in capsys.readouterr().err.splitlines() if not line.startswith("batch")]
    assert said == ["SILENT b", "no longer a backup"]


def test_a_store_of_an_older_release_that_lacks_the_newest_fields_is_read(spark: SparkSession, tmp_path: Path) -> None:
    settings = asked(tmp_path, tmp_path / "out")
    store = stream.prepare(settings)
    roster = sample(1.0) | {"kind": "roster", "backups": ["b"], "queues": []}
    stream.add_batch(store, settings, spark.createDataFrame([(json.dumps(roster), "file:///one")], LINES), 0, now_ms=NOW_MS)
    newest = {"voters", "witness", "witness_connected"}
    for file in store.path.rglob("*.parquet"):
        old = parquet.read_table(file, partitioning=None).drop_columns([*newest])
        (file.parent / f".{file.name}.crc").unlink()
        parquet.write_table(old, file)
    with store.changing() as manifest:
        fields = StructType.fromJson(json.loads(manifest.schema)).fields
        manifest.schema = StructType([field for field in fields if field.name not in newest]).json()
    lines = compact.read(spark, store, store.load(), [START_MS // HOUR_MS])
    assert lines is not None
    (row,) = of_lines.rosters(of_lines.tagged(lines)).collect()
    assert (row["backups"], row["voters"], row["witness"], row["witness_connected"]) == (["b"], None, None, None)


def test_a_file_that_is_renamed_while_it_is_opened_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offset moves on, so its lines would be lost without an error."""
    part, whole = tmp_path / ".p.000000000000001.part", tmp_path / "p.000000000000001.jsonl"
    part.write_text("one\ntwo\n")
    end = tail.next_offset(tmp_path, {}, None, None)
    opened = Path.open

    def renamed_before_the_second_attempt(path: Path, *how: Any, **more: Any) -> Any:
        if path == part and not whole.exists():
            part.rename(whole)
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", renamed_before_the_second_attempt)
    ((name, first, last),) = tail.ranges_of({}, end)
    assert [line for lines in tail.lines_of(tmp_path / name, first, last) for line in lines.to_pylist()] == ["one", "two"]
    whole.unlink()
    assert list(tail.lines_of(tmp_path / name, first, last)) == [], "it is deleted"


def test_a_start_that_ended_while_it_made_the_folder_does_not_forbid_the_next_one(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / ".lag.json.part").write_text('{"for')
    assert stream.prepare(asked(tmp_path, output)).load() == Manifest()


def test_a_start_deletes_what_was_never_committed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest = Manifest(batch=1, parts={1: [5]})
    for batch in (1, 2):
        store.part(batch).mkdir(parents=True)
    store.hour(5, 1).mkdir(parents=True)
    store.tidy(manifest)
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["batch_id=1"]
    assert not store.hour(5, 1).exists()
