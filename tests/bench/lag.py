"""`make bench-lag`: how quickly replication lag is summarised on this machine, beside Spark's plain aggregation and DuckDB.

In one run and one Spark session, as `qpid-lag` starts it: first a tenth of the samples, then all of them. Each time the lines are
counted, added up and searched for maxima by Spark alone; summarised; given to DuckDB, which finds exact percentiles; streamed
into a folder of Parquet; and that folder goes through the same three. Ratios are of wall time to the plain aggregation's over the
same columns and files. The small run comes first and pays for the start of everything: the large one is the one to read.

Every answer is compared with what is known of the data, and with DuckDB's; a wrong one ends the run with 1. A target that is
missed does not: it is said. Options: `--samples N`, `--part lines`, `--part stream`. Files lie in a temporary folder (`TMPDIR`),
some 640 bytes a sample, and are removed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_analytics import session
from spark_analytics.errors import Refused
from spark_analytics.jobs import compact, stream
from spark_analytics.jobs.summarise import Report, Request, summarise
from spark_analytics.schemas import SAMPLE
from spark_analytics.store import Store
from tests.bench import lag_data
from tests.bench.duck import COLUMNS, NUMBERS, TEXTS
from tests.bench.lag_data import Backlog
from tests.bench.meter import Reading, machine, measured

PLAIN, SUMMARY, DUCKDB, STREAM = "plain aggregation", "summarise", "DuckDB, exact", "stream --available-now"
LINES, ROWS = "JSON lines", "the stream's Parquet"
MOST_TIMES_PLAIN: Final = {LINES: 1.2, ROWS: 1.5}
LEAST_A_S: Final = 100_000
LONGEST_BATCH_S: Final = 10.0
_GROWTH: Final = 10
_STAGES_SHOWN: Final = 8
_STEP: Final = 1.03
"""Lags are rounded before they are ranked, by 1.1 % at the most, if there are many."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table."""

    what: str
    source: str
    samples: int
    reading: Reading


class Wrong(Exception):
    """An answer that is not the known one."""


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-lag", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=2_000_000, help="how many samples in the large run")
    parser.add_argument("--part", action="append", choices=["lines", "stream"], help="only this one")
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # else Ctrl-C is a traceback: the call to Java that it ends
    try:
        with tempfile.TemporaryDirectory(prefix="understudy-bench-lag-") as folder:
            _check_room(Path(folder), options.samples)
            print("the machine:", machine(Path(folder)), flush=True)
            parts = options.part or ["lines", "stream"]
            spark = session.start(work="stream" if parts == ["stream"] else "long")
            try:
                Bench(spark, Path(folder), parts).run(options.samples)
            finally:
                spark.stop()
    except (Refused, Wrong) as error:
        print(f"bench-lag: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench-lag: stopped", file=sys.stderr)
        return 130
    return 0


def _check_room(folder: Path, samples: int) -> None:
    if samples < _GROWTH * 60 * lag_data.KEYS:
        raise Refused(f"{samples:,} samples are too few to tell anything: ask for {_GROWTH * 60 * lag_data.KEYS:,} or more")
    needed, free = int(1.2 * samples * lag_data.BYTES_PER_LINE), shutil.disk_usage(folder).free
    if needed > free:
        there = f"{folder.parent}, where {free / 1e9:.0f} are free"
        raise Refused(f"{samples:,} samples need {needed / 1e9:.0f} GB in {there}: set TMPDIR, or ask for fewer")


class Bench:
    """One session, and what has been measured in it."""

    def __init__(self, spark: SparkSession, folder: Path, parts: list[str]) -> None:
        self._spark, self._folder, self._parts = spark, folder, parts
        self._figures: list[Figure] = []
        self._explaining = False
        self._batches: list[dict[str, Any]] = []

    def run(self, samples: int) -> None:
        """All of it, and the table."""
        java = self._spark._jvm.System.getProperty("java.version")  # type: ignore[union-attr]
        duckdb = _duck("lines", [])["version"]
        print(
            f"versions: Python {sys.version.split()[0]}, Spark {pyspark.__version__} on Java {java}, DuckDB {duckdb}", flush=True
        )
        print(f"{'what':<24}{'of':<22}{'samples':>12}{'wall s':>9}{'CPU s':>9}{'x plain':>9}{'peak MiB':>10}{'samples/s':>12}")
        for size in (samples // _GROWTH, samples):
            self._explaining = size == samples
            self._size(self._folder / str(size), size)
        self._conclude()

    def _size(self, folder: Path, samples: int) -> None:
        with measured() as making:
            backlog = lag_data.write(self._spark, folder, samples)
        shape = f"{len(lag_data.BACKUPS)} backups x {lag_data.QUEUES} queues x {backlog.seconds:,} s"
        size = f"{backlog.nbytes / 1e6:,.0f} MB in {backlog.files:,} files"
        print(f"-- {backlog.samples:,} samples, {shape}: {size}, written in {making.wall_s:.0f} s", flush=True)
        if "lines" in self._parts:
            self._lines(backlog)
        if "stream" in self._parts:
            self._stream(backlog, folder.with_name(f"{folder.name}-lag"))
        shutil.rmtree(folder)

    # -- what is measured

    def _lines(self, backlog: Backlog) -> None:
        path = str(backlog.folder)
        found = self._measure(PLAIN, LINES, backlog, lambda: _plain_of_lines(self._spark, path))
        request = Request(
            path, now_ms=backlog.end_ms, nbytes=backlog.nbytes, files=backlog.files, objective_ms=1000.0, cluster=lag_data.CLUSTER
        )
        report = self._measure(SUMMARY, LINES, backlog, lambda: summarise(self._spark, request, self._phase))
        exact = self._measure(DUCKDB, LINES, backlog, lambda: _duck("lines", [f"{path}/*.jsonl"]))["rows"]
        _check_sums(found, exact)
        _check_report(report, backlog, exact)

    def _stream(self, backlog: Backlog, output: Path) -> None:
        asked = stream.Streaming(str(backlog.folder), str(output), available_now=True)
        self._batches = self._measure(STREAM, LINES, backlog, lambda: self._run_stream(asked))
        store = Store(str(output))
        manifest = store.load()
        if manifest.counters["lines"] != backlog.samples + 1:
            raise Wrong(f"the stream has counted {manifest.counters['lines']:,} lines of {backlog.samples + 1:,}")
        rows = compact.read(self._spark, store, manifest, manifest.hours_within(None, None))
        assert rows is not None
        found = self._measure(PLAIN, ROWS, backlog, lambda: _plain(rows))
        request = Request(str(output), now_ms=backlog.end_ms, cluster=lag_data.CLUSTER)
        report = self._measure(SUMMARY, ROWS, backlog, lambda: summarise(self._spark, request, self._phase))
        files = [name.removeprefix("file://") for name in rows.inputFiles()]
        exact = self._measure(DUCKDB.removesuffix(", exact"), ROWS, backlog, lambda: _duck("rows", files))["rows"]
        _check_sums(found, exact)
        _check_report(report, backlog, exact)
        shutil.rmtree(output)

    def _run_stream(self, asked: stream.Streaming) -> list[dict[str, Any]]:
        self._spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "100000")
        following = stream.start(self._spark, asked)
        following.await_end()
        return [dict(progress) for progress in following.query.recentProgress if progress["numInputRows"]]

    def _measure(self, what: str, source: str, backlog: Backlog, work: Callable[[], Any]) -> Any:
        """Collect Java's garbage, run it, and print its row."""
        self._spark._jvm.System.gc()  # type: ignore[union-attr]
        before = max((stage.stageId() for stage in self._all_stages()), default=-1)
        self._phase(what)
        with measured() as reading:
            answer = work()
        if what.startswith("DuckDB"):
            reading.cpu_s, reading.peak_bytes = answer["cpu_s"], answer["peak_bytes"]
        figure = Figure(what, source, backlog.samples, reading)
        self._figures.append(figure)
        print(
            f"{what:<24}{source:<22}{backlog.samples:>12,}{reading.wall_s:>9.1f}{reading.cpu_s:>9.1f}{self._ratio(figure):>9}"
            f"{reading.peak_bytes / (1 << 20):>10,.0f}{backlog.samples / reading.wall_s:>12,.0f}",
            flush=True,
        )
        if what in (SUMMARY, STREAM) and self._explaining:
            print("\n".join(["   its tasks' time, by Spark's stages:", *self._stages_since(before)]), flush=True)
        return answer

    def _ratio(self, figure: Figure) -> str:
        plain = self._find(PLAIN, figure.source, figure.samples)
        return f"{figure.reading.wall_s / plain.reading.wall_s:.2f}" if plain and figure.what != STREAM else ""

    def _find(self, what: str, source: str, samples: int) -> Figure | None:
        wanted = (what, source, samples)
        return next((figure for figure in self._figures if (figure.what, figure.source, figure.samples) == wanted), None)

    # -- where the time goes, as Spark itself counts it

    def _phase(self, text: str) -> None:
        self._spark.sparkContext.setJobDescription(text)

    def _all_stages(self) -> list[Any]:
        context = self._spark.sparkContext
        quantiles = context._gateway.new_array(context._jvm.double, 0)  # type: ignore[union-attr]
        none = context._jvm.java.util.ArrayList()  # type: ignore[union-attr]
        found = context._jsc.sc().statusStore().stageList(none, False, False, quantiles, none)
        return [found.apply(at) for at in range(found.size())]

    def _stages_since(self, last: int) -> list[str]:
        stages = [stage for stage in self._all_stages() if stage.stageId() > last and stage.numCompleteTasks()]
        total = sum(stage.executorRunTime() for stage in stages) or 1
        lines = []
        for stage in sorted(stages, key=lambda stage: -stage.executorRunTime())[:_STAGES_SHOWN]:
            run, cpu, gc = stage.executorRunTime() / 1e3, stage.executorCpuTime() / 1e9, stage.jvmGcTime() / 1e3
            read, shuffled = stage.inputBytes() / 1e6, (stage.shuffleReadBytes() + stage.shuffleWriteBytes()) / 1e6
            phase = stage.description().get().splitlines()[0] if stage.description().isDefined() else ""
            spent = f"{100 * run * 1e3 / total:4.0f} % {run:7.1f} s ({cpu:.1f} of processor, {gc:.1f} of garbage)"
            moved = f"{read:,.0f} MB read, {shuffled:,.1f} shuffled"
            lines.append(f"   {spent} in {stage.numCompleteTasks():,} tasks, {moved}: {phase} [{stage.stageId()}]")
        return lines

    # -- what it comes to

    def _conclude(self) -> None:
        large = max(figure.samples for figure in self._figures)
        for source in (LINES, ROWS):
            plain, summary = self._find(PLAIN, source, large), self._find(SUMMARY, source, large)
            if plain and summary:
                times = summary.reading.wall_s / plain.reading.wall_s
                _say(
                    times <= MOST_TIMES_PLAIN[source],
                    f"summarise takes {times:.2f} times the plain aggregation of {source}",
                    f"{MOST_TIMES_PLAIN[source]} at the most",
                )
        streamed = self._find(STREAM, LINES, large)
        if streamed:
            rate = streamed.samples / streamed.reading.wall_s
            took = [batch["durationMs"]["triggerExecution"] / 1000 for batch in self._batches]
            _say(rate >= LEAST_A_S, f"the stream takes {rate:,.0f} samples/s", f"{LEAST_A_S:,} or more")
            _say(
                max(took) < LONGEST_BATCH_S,
                f"the longest of {len(took)} micro-batches takes {max(took):.1f} s",
                f"below {LONGEST_BATCH_S:g}",
            )
            self._of_batches()
        for small in (figure for figure in self._figures if figure.samples < large and figure.what in (SUMMARY, STREAM)):
            big = self._find(small.what, small.source, large)
            if big:
                grown = big.reading.peak_bytes / small.reading.peak_bytes
                mib = small.reading.peak_bytes / (1 << 20), big.reading.peak_bytes / (1 << 20)
                what = f"{small.what} of {small.source}: {mib[0]:,.0f} MiB with a tenth, {mib[1]:,.0f} with all"
                _say(grown < 2, f"peak memory of {what}", "less than twice")

    def _of_batches(self) -> None:
        """Where the micro-batches' time goes, by Spark's own names."""
        names = sorted({name for batch in self._batches for name in batch["durationMs"]})
        spent = {name: sum(batch["durationMs"].get(name, 0) for batch in self._batches) / 1000 for name in names}
        print("  of its batches:", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items()))


def _say(met: bool, what: str, target: str) -> None:
    print(f"{'met' if met else 'NOT MET':<8}{what} (wanted: {target})", flush=True)


# -- the plain aggregations


def _plain_of_lines(spark: SparkSession, path: str) -> list[dict[str, Any]]:
    """Counts, maxima and sums over every column that a summary looks at, by Spark's own reader, for each backup and queue."""
    schema = StructType()
    for name in COLUMNS:
        schema.add(name, SAMPLE[name])
    return _plain(spark.read.schema(schema).json(path))


def _plain(lines: DataFrame) -> list[dict[str, Any]]:
    """The same over typed lines, which is what a stream keeps."""
    found = (
        lines.where("kind = 'sample'")
        .groupBy("backup", "queue")
        .agg(
            F.count("*").alias("n"),
            F.max("lag_ms").alias("max_ms"),
            F.sum("lag_records").alias("records"),
            *(F.max(name).alias(f"max_{name}") for name in NUMBERS),
            *(F.sum(F.col(name).cast("double")).alias(f"sum_{name}") for name in NUMBERS),
            *(F.count(name).alias(f"count_{name}") for name in TEXTS),
        )
    )
    return [row.asDict() for row in found.collect()]


def _duck(what: str, files: list[str]) -> dict[str, Any]:
    """DuckDB's answer, from a process of its own."""
    command = [sys.executable, "-m", "tests.bench.duck", what]
    done = subprocess.run(command, input="\n".join(files), capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error: " in line]
        raise Refused(
            f"DuckDB gave no answer: {lines[0] if lines else done.returncode} (it comes with `pip install --group bench`)"
        )
    return dict(json.loads(done.stdout))


# -- the answers


def _check_sums(found: list[dict[str, Any]], exact: list[dict[str, Any]]) -> None:
    whole = {row["backup"]: row for row in found if row["queue"] is None}
    for row in exact:
        mine = whole[row["backup"]]
        for name in ("n", "max_ms", "records"):
            if name in row and name in mine and float(mine[name]) != float(row[name]):
                raise Wrong(f"{name} of {row['backup']}: {mine[name]} by Spark, {row[name]} by DuckDB")


def _check_report(report: Report, backlog: Backlog, exact: list[dict[str, Any]] | None) -> None:
    quality = report["quality"]
    known = {"samples_used": backlog.samples, "bad": 0, "holes": 0, "repeated": 0, "lines": backlog.samples + 1}
    for name, value in known.items():
        if quality[name] != value:
            raise Wrong(f"{report['source']}: {name} is {quality[name]:,}, and should be {value:,}")
    stalls = {row["backup"]: row["stall_ms"] for row in report["backups"]}
    if stalls != {lag_data.BACKUPS[0]: 0.0, lag_data.BACKUPS[1]: backlog.longest_stall_ms}:
        raise Wrong(
            f"{report['source']}: longest stalls are {stalls}, and should be {backlog.longest_stall_ms} of the second backup"
        )
    for row in exact or ():
        mine = next(mine for mine in report["backups"] if mine["backup"] == row["backup"])
        if row["backup"] != lag_data.BACKUPS[0]:
            continue
        for percent, value in zip(("p50", "p95", "p99"), row["p_lag_ms"], strict=True):
            if not value / _STEP <= mine[f"{percent}_ms"] <= value * _STEP:
                raise Wrong(f"{percent} of {row['backup']}: {mine[f'{percent}_ms']} ms, and {value} ms by DuckDB")


if __name__ == "__main__":
    sys.exit(main())
