"""The stream: micro-batches of lines to mergeable rows in a `store.Store`, each exactly once.

The life of a micro-batch: its lines are added up, each once (`micro_batch`). The rows are written to a folder of the batch's own,
over whatever an earlier attempt left there; and then the manifest is replaced, which counts the rows and remembers the numbers of
their lines in one step. A batch that Spark runs again after that is known by its id and skipped. There is no
watermark: rows of any time are added to what is there, and how many came late is counted
(docs/adr/0010-partials-without-a-watermark.md). Hours that are over are compacted beside the batches
(docs/adr/0012-compaction-beside-the-batches.md).

What is kept in this process is bounded by a batch: the numbers of a batch as runs, and for each sender the ranges of numbers that
were seen, which are few because a sender numbers its lines without a break.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_analytics import sources, tail
from spark_analytics.errors import Refused
from spark_analytics.jobs import compact, micro_batch
from spark_analytics.places import is_remote, located
from spark_analytics.store import HOUR_MS, Manifest, Store, is_store, names
from spark_analytics.transforms import columnar, parse, told
from spark_analytics.transforms.partials import Grains

LATE_MS: Final = 60_000
FILES_PER_BATCH: Final = 64
MESSAGES_PER_BATCH: Final = 300_000
_BATCHES_KEPT: Final = "10"


@dataclass(frozen=True, slots=True)
class Streaming:
    """What to stream: from a folder, a URL or a topic, into `output`. Times in ms."""

    path: str
    output: str
    grains: Grains
    objective_ms: float = 1000.0
    trigger_ms: int = 10_000
    since_ms: int | None = None
    available_now: bool = False
    checkpoint: str | None = None
    batch_bytes: int = tail.BYTES_PER_BATCH
    kafka: sources.Kafka | None = None
    keep_ms: int | None = None

    @property
    def checkpoint_dir(self) -> str:
        """Where Spark keeps how far it is."""
        return self.checkpoint or str(Path(self.output) / "_checkpoint")


@dataclass(frozen=True, slots=True)
class Progress:
    """After a batch: its number, how many lines it had and there were in all, and when who was last heard (ms since 1970)."""

    batch: int
    lines: int
    total: int
    newest_ms: int | None
    heard: dict[str, int]


def prepare(asked: Streaming) -> Store:
    """The store to write to, made if it is new. Refused when the folder is something else, or was made with other settings."""
    for option, place in (("--output", asked.output), ("--checkpoint", asked.checkpoint_dir)):
        if is_remote(place):
            raise Refused(f"{option} {place} is a URL: a stream keeps its sums in a folder that is mounted; give its path")
    store = Store(asked.output)
    settings = {
        "grains": [asked.grains.whole_ms, asked.grains.queue_ms],
        "objective_ms": asked.objective_ms,
    }
    folder = store.path
    try:
        if is_store(folder):
            manifest = store.load()
            if manifest.settings != settings:
                was = manifest.settings
                raise Refused(
                    f"{folder} was begun with an objective of {was['objective_ms']:g} ms and grains of {was['grains']} ms: "
                    "give the same again, or a new --output"
                )
            store.tidy(manifest)
            _check_checkpoint(asked, manifest)
            return store
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise Refused(f"{folder} is not empty and no stream's folder: choose a new --output")
        store.commit(Manifest(settings=settings))
    except OSError as error:
        raise Refused(f"cannot write to {folder}: {error.strerror}; choose another --output") from None
    return store


def _check_checkpoint(asked: Streaming, manifest: Manifest) -> None:
    """Batches are known by their numbers, so a checkpoint and a folder belong together."""
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
    """Thrown into a batch that would begin after the stop: it must not look done to Spark."""


_running = threading.Lock()


class Following:
    """A stream that runs."""

    def __init__(self, query: StreamingQuery, beside: compact.Beside) -> None:
        self.query = query
        self._beside = beside

    def await_end(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended, and all that was due is compacted, or for so long; whether it has. Raises what it died of."""
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
    """Start the query. It runs until it is stopped, or, with `available_now`, until what was there has been read.

    Once `stopping` is set, no further batch begins.
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
    rules = tail.written(_rules(asked, now_ms=0))
    return reader.option("path", os.path.abspath(asked.path)).option("rules", rules).load()


def _rules(asked: Streaming, *, now_ms: int) -> columnar.Rules:
    return columnar.Rules(asked.grains, asked.objective_ms, parse.future_ms(now_ms), asked.since_ms, numbers="runs")


# -- one micro-batch


def add_batch(store: Store, asked: Streaming, batch: DataFrame, number: int, *, now_ms: int, query: str = "") -> Progress | None:
    """Add one micro-batch of `schemas.LINES`, or of what `tail` has found in such; None when it was added before."""
    manifest = store.load()
    if number <= manifest.batch:
        return None
    added = micro_batch.added(batch, manifest.seen, _rules(asked, now_ms=now_ms), now_ms=now_ms)
    if added.presence:
        _write(store, manifest, number, added, now_ms)
    count = sum(row["lines"] for row in added.presence) + added.repeated
    _remember(manifest, added, count)
    manifest.batch, manifest.updated_ms, manifest.query = number, now_ms, query or manifest.query
    with store.changing() as current:
        manifest.counted_in(current)
    newest = max((ts_ms for ts_ms in manifest.newest.values()), default=None)
    return Progress(number, count, manifest.counters["lines"], newest, dict(manifest.heard))


def _write(store: Store, manifest: Manifest, number: int, added: micro_batch.Added, now_ms: int) -> None:
    """The batch's tables, each split by hour; only those that have rows."""
    kinds = {row["kind"] for row in added.presence if not row["problem"] and row["inside"]}
    tables = {"told": added.rows}
    if "event" in kinds:
        tables["events"] = told.events(added.few)
    if "roster" in kinds:
        tables["rosters"] = told.rosters(added.few)
    if added.quarantine is not None and any(row["problem"] for row in added.presence):
        tables["quarantine"] = added.quarantine
    manifest.parts[number] = {}
    when = {"told": "start_ms", "events": "ts_ms", "rosters": "first_ms"}
    for table, frame in tables.items():
        this_hour = F.lit(now_ms // HOUR_MS * HOUR_MS)
        moment = F.coalesce(F.col(when[table]), this_hour) if table in when else this_hour
        manifest.schemas[table] = frame.schema.json()
        placed = frame.withColumn("hour", F.floor(moment / HOUR_MS))
        folder = store.part(number, table)
        placed.coalesce(1).write.mode("overwrite").partitionBy("hour").parquet(located(folder))
        manifest.parts[number][table] = sorted(int(path.name.removeprefix("hour=")) for path in folder.glob("hour=*"))


def _remember(manifest: Manifest, added: micro_batch.Added, count: int) -> None:
    """What the next batches and the reader need to know besides the rows."""
    counters = manifest.counters
    counters["lines"] += count
    counters["repeated"] += added.repeated
    counters["files"] += len(added.files - set(manifest.files))
    manifest.files, manifest.seen = sorted(added.files), added.seen
    newest = dict(manifest.newest)
    for row in added.presence:
        if row["problem"]:
            counters["bad"] += row["lines"]
        elif row["inside"]:
            key = names(row["cluster"], row["sender"])
            if row["last_ms"] < newest.get(key, 0) - LATE_MS:
                counters["late"] += row["lines"]
            manifest.newest[key] = max(manifest.newest.get(key, 0), row["last_ms"])
            if row["mine"]:
                _reign(manifest, row)
            if row["heard_ms"] is not None:
                manifest.heard[row["backup"]] = max(manifest.heard.get(row["backup"], 0), row["heard_ms"])


def _reign(manifest: Manifest, row: Row) -> None:
    key = names(row["cluster"], str(row["epoch"]), row["primary"])
    begin, last = manifest.reigns.get(key, (row["first_ms"], row["last_ms"]))
    manifest.reigns[key] = [min(begin, row["first_ms"]), max(last, row["last_ms"])]
