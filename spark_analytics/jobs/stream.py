"""The stream: micro-batches of lines to typed Parquet in a `store.Store`, each line exactly once.

Life of a micro-batch: its lines are validated and typed (`parse`), and repeated ones are left out. The others are written to a
folder of the batch, by the hour, and replace what an earlier attempt left there. Then the manifest is replaced. This one step
counts the rows and stores the numbers of their lines. If Spark runs the batch again after that, it is recognised by its id and
skipped. There is no watermark: lines of any time are accepted, and late ones are counted. Completed hours are compacted beside
the batches. The reasons are in docs/adr/0018-typed-lines-and-plain-spark.md.

The memory of this process is bounded: for each sender it keeps the ranges of received numbers. They are few, because a sender
numbers its lines without gaps.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_analytics import ranges, sources, tail
from spark_analytics.errors import Refused, WrongUsage
from spark_analytics.jobs import compact, inputs
from spark_analytics.jobs.inputs import materialised
from spark_analytics.locations import is_remote, located
from spark_analytics.ranges import Ranges
from spark_analytics.store import ASIDE, HOUR_MS, MAX_RANGES, Manifest, Store, is_store, names, names_of
from spark_analytics.transforms import lines as of_lines
from spark_analytics.transforms import parse

LATE_MS: Final = 60_000
FILES_PER_BATCH: Final = 64
MESSAGES_PER_BATCH: Final = 300_000
_BATCHES_KEPT: Final = "10"


@dataclass(frozen=True, slots=True)
class Streaming:
    """What to stream: from a folder, a URL or a topic, into `output`. Times in ms."""

    path: str
    output: str
    trigger_ms: int = 10_000
    since_ms: int | None = None
    available_now: bool = False
    checkpoint: str | None = None
    batch_bytes: int = tail.BYTES_PER_BATCH
    kafka: sources.Kafka | None = None
    keep_ms: int | None = None

    @property
    def checkpoint_dir(self) -> str:
        """The folder in which Spark stores its progress."""
        return self.checkpoint or str(Path(self.output) / "_checkpoint")


@dataclass(frozen=True, slots=True)
class Progress:
    """After a batch: its number, its lines and all lines so far, and when each backup was last heard (ms since 1970)."""

    batch: int
    lines: int
    total: int
    newest_ms: int | None
    heard: dict[str, int]


def prepare(asked: Streaming) -> Store:
    """The store to write to; it is created if it does not exist. Refused when the folder contains something else."""
    for option, place in (("--output", asked.output), ("--checkpoint", asked.checkpoint_dir)):
        if is_remote(place):
            raise WrongUsage(f"{option} {place} is a URL: a stream keeps its sums in a folder that is mounted; give its path")
    store = Store(asked.output)
    folder = store.path
    try:
        if is_store(folder):
            manifest = store.load()
            store.tidy(manifest)
            _check_checkpoint(asked, manifest)
            return store
        folder.mkdir(parents=True, exist_ok=True)
        if any(file.name != ASIDE for file in folder.iterdir()):  # a start that was killed leaves that
            raise Refused(f"{folder} is not empty and no stream's folder: choose a new --output")
        store.commit(Manifest())
    except OSError as error:
        raise Refused(f"cannot write to {folder}: {error.strerror}; choose another --output") from None
    return store


def _check_checkpoint(asked: Streaming, manifest: Manifest) -> None:
    """Refuse a checkpoint of another folder: batches are identified only by their numbers."""
    if manifest.query and manifest.query != _query_id(asked):
        raise Refused(
            f"the checkpoint {asked.checkpoint_dir} is not the one that {asked.output} was written with: "
            "give that one with --checkpoint, or stream into a new --output"
        )


def _query_id(asked: Streaming) -> str:
    try:
        return str(json.loads((Path(asked.checkpoint_dir) / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError):
        return ""


class _Stopping(Exception):
    """Raised in a batch that begins after the stop, so that Spark does not count it as done."""


_running = threading.Lock()


class Following:
    """A running stream."""

    def __init__(self, query: StreamingQuery, beside: compact.Beside) -> None:
        self.query = query
        self._beside = beside

    @property
    def is_busy(self) -> bool:
        """Whether a batch is running."""
        return _running.locked()

    def await_end(self, timeout_s: float | None = None) -> bool:
        """Wait until the stream and its compactions have ended, or for this time. Returns whether they have ended. Raises the
        error that ended it."""
        if timeout_s is None:
            self.query.awaitTermination()
        ended = timeout_s is None or bool(self.query.awaitTermination(timeout_s))  # type: ignore[arg-type]
        if ended:
            self._beside.finish()
        return ended

    def stop(self) -> None:
        """Stop it between two batches. Set the event of `start` first."""
        with _running:
            self.query.stop()
        self._beside.finish()


def start(
    spark: SparkSession,
    asked: Streaming,
    on_batch: Callable[[Progress], None] = lambda _: None,
    stopping: threading.Event | None = None,
) -> Following:
    """Start the query. It runs until it is stopped or, with `available_now`, until the existing lines have been read.

    After `stopping` is set, no further batch begins.
    """
    store = prepare(asked)
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", _BATCHES_KEPT)
    lines = _lines(spark, asked)
    beside = compact.Beside(spark, store, keep_ms=asked.keep_ms)

    def add(batch: DataFrame, number: int) -> None:
        now_ms = int(time.time() * 1000)
        with _running:
            if stopping is not None and stopping.is_set():
                raise _Stopping
            done = add_batch(store, asked, batch, number, now_ms=now_ms, query=_query_id(asked))
            beside.begin(now_ms)
        if done is not None:
            on_batch(done)

    writer = lines.writeStream.foreachBatch(add).option("checkpointLocation", located(asked.checkpoint_dir))
    trigger = {"availableNow": True} if asked.available_now else {"processingTime": f"{asked.trigger_ms} milliseconds"}
    return Following(writer.trigger(**trigger).start(), beside)


def _lines(spark: SparkSession, asked: Streaming) -> DataFrame:
    if asked.kafka is not None:
        try:
            messages = (
                spark.readStream.format("kafka")
                .option("kafka.bootstrap.servers", asked.kafka.servers)
                .option("subscribe", asked.kafka.topic)
                .option("startingOffsets", "earliest")
                .option("failOnDataLoss", "false")
                .option("maxOffsetsPerTrigger", MESSAGES_PER_BATCH)
                .load()
            )
        except AnalysisException as error:
            raise Refused(sources.no_kafka(error)) from None
        return sources.kafka_lines(messages)
    if is_remote(asked.path):
        return sources.stream_lines(spark, asked.path, files_per_batch=FILES_PER_BATCH)
    spark.dataSource.register(tail.Telemetry)
    reader = spark.readStream.format(tail.NAME).option("bytes", asked.batch_bytes)
    return reader.option("path", os.path.abspath(asked.path)).load()


# -- one micro-batch


def add_batch(store: Store, asked: Streaming, batch: DataFrame, number: int, *, now_ms: int, query: str = "") -> Progress | None:
    """Add one micro-batch of `schemas.LINES`; None when it was added before."""
    manifest = store.load()
    if number <= manifest.batch:
        return None
    parsed = of_lines.kept(parse.parse(batch, now_ms=now_ms), F.xxhash64("file").alias("origin"))
    typed = materialised(of_lines.tagged(parsed, since_ms=asked.since_ms))
    files = {row["origin"] for row in typed.select("origin").distinct().collect()}
    blocks = materialised(of_lines.blocks(typed))
    numbers = _numbers(blocks)
    lines, repeated = _new(typed, blocks, numbers, manifest.seen)
    presence = of_lines.presence(lines).collect()
    if presence:
        _write(store, manifest, number, lines.where("inside"), now_ms)
    count = sum(row["lines"] for row in presence) + repeated
    counters = manifest.counters
    counters["lines"] += count
    counters["repeated"] += repeated
    counters["files"] += len(files - set(manifest.files))
    manifest.files = sorted(files)
    its = {key: ranges.united(manifest.seen.get(key, []), numbers.get(key, [])) for key in numbers}
    manifest.seen |= {key: ranges.capped(found, MAX_RANGES) for key, found in its.items()}
    _remember(manifest, presence)
    _listen(manifest, _told(lines))
    manifest.batch, manifest.updated_ms, manifest.query = number, now_ms, query or manifest.query
    with store.changing() as current:
        manifest.counted_in(current)
    newest = max(manifest.newest.values(), default=None)
    return Progress(number, count, manifest.counters["lines"], newest, dict(manifest.heard))


def _numbers(blocks: DataFrame) -> dict[str, Ranges]:
    """The numbers of a batch's valid lines by `store.names` of cluster and sender. They are few ranges, because gaps are rare."""
    found: dict[str, Ranges] = {}
    for row in blocks.collect():
        found.setdefault(names(row["cluster"], row["sender"]), []).extend(
            ranges.of_bits(row["block"] * of_lines.BLOCK, row["bits"])
        )
    return {key: ranges.united(its) for key, its in found.items()}


def _new(lines: DataFrame, blocks: DataFrame, numbers: dict[str, Ranges], seen: dict[str, Ranges]) -> tuple[DataFrame, int]:
    """The new lines, each once, and the number of repeated ones."""
    lines, repeated = inputs.single(lines, blocks, materialised)
    known: list[tuple[str, str, int, int]] = [
        (names_of(key)[0], names_of(key)[1], first, last)
        for key, its in numbers.items()
        for first, last in ranges.common(ranges.united(its), seen.get(key, []))
    ]
    if known:
        schema = "its_cluster string, its_sender string, first long, last long"
        before = F.broadcast(lines.sparkSession.createDataFrame(known, schema))
        same = (F.col("cluster") == F.col("its_cluster")) & (F.col("sender") == F.col("its_sender"))
        within = F.col("seq").between(F.col("first"), F.col("last"))
        lines = lines.join(before, same & within, "left_anti")
        repeated += sum(last - first + 1 for _, _, first, last in known)
    return (materialised(lines) if repeated else lines), repeated


def _write(store: Store, manifest: Manifest, number: int, lines: DataFrame, now_ms: int) -> None:
    """Write the batch's lines, split by hour."""
    columns = lines.drop("origin", "inside", "mine")
    hour = F.floor(F.coalesce("ts_ms", F.lit(now_ms)) / HOUR_MS)
    folder = store.part(number)
    columns.withColumn("hour", hour).coalesce(1).write.mode("overwrite").partitionBy("hour").parquet(located(folder))
    hours = sorted(int(path.name.removeprefix("hour=")) for path in folder.glob("hour=*"))
    if hours:
        manifest.schema = columns.schema.json()
        manifest.parts[number] = hours


def _told(lines: DataFrame) -> list[Row]:
    """What the primaries say, few rows: for each backup when it was last heard (`heard_ms`), for each primary when it last said
    something (`said_ms`), and its newest roster."""
    col = F.col
    told = lines.where("problem IS NULL AND inside AND mine AND queue IS NULL").groupBy("cluster", "kind", "primary", "backup")
    heard_ms, said_ms = F.max(F.when(col("connected"), col("ts_ms"))).alias("heard_ms"), F.max("ts_ms").alias("said_ms")
    return told.agg(heard_ms, said_ms, F.max(F.struct("epoch", "ts_ms", "backups")).alias("newest")).collect()


def _listen(manifest: Manifest, told: Iterable[Row]) -> None:
    """Store when each backup was last heard, according to the primary. A broker is no backup any more when it is the primary, and
    when a newer roster of its cluster does not name it."""
    rows = list(told)
    for row in rows:
        if row["heard_ms"] is not None:
            manifest.heard[row["backup"]] = max(manifest.heard.get(row["backup"], 0), row["heard_ms"])
            manifest.heard_in[row["backup"]] = row["cluster"]
    rosters: dict[str, Row] = {}
    for row in (row for row in rows if row["kind"] == "roster"):
        before = rosters.get(row["cluster"])
        rosters[row["cluster"]] = row["newest"] if before is None else max(before, row["newest"])
    for backup, heard_ms in list(manifest.heard.items()):
        roster = rosters.get(manifest.heard_in.get(backup, ""))
        left_out = roster is not None and roster["ts_ms"] > heard_ms and backup not in roster["backups"]
        if left_out or any(row["primary"] == backup and row["said_ms"] > heard_ms for row in rows):
            del manifest.heard[backup]
            manifest.heard_in.pop(backup, None)


def _remember(manifest: Manifest, presence: Iterable[Row]) -> None:
    """Store in the manifest what the next batches and the reader need besides the rows."""
    newest = dict(manifest.newest)
    for row in presence:
        if row["problem"]:
            manifest.counters["bad"] += row["lines"]
        elif row["inside"]:
            key = names(row["cluster"], row["sender"])
            if row["last_ms"] < newest.get(key, 0) - LATE_MS:
                manifest.counters["late"] += row["lines"]
            manifest.newest[key] = max(manifest.newest.get(key, 0), row["last_ms"])
