"""What a summary reads: typed lines, straight from text or from the Parquet of a stream. The columns are the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from spark_analytics import sources
from spark_analytics.errors import Refused
from spark_analytics.jobs import compact
from spark_analytics.jobs.scope import iso
from spark_analytics.places import is_remote
from spark_analytics.store import Store, is_store
from spark_analytics.transforms import lines as of_lines
from spark_analytics.transforms import parse


@dataclass(frozen=True, slots=True)
class Inputs:
    """`lines.kept` lines, each once; how many came again; and what else is known of them."""

    source: str
    lines: DataFrame
    repeated: int
    counters: dict[str, Any] = field(default_factory=dict)
    cached: list[DataFrame] = field(default_factory=list)

    def release(self) -> None:
        """Let go of what is cached."""
        for frame in self.cached:
            frame.unpersist()


def materialised(frame: DataFrame) -> DataFrame:
    """The frame's rows, worked out now and without the plan that made them: analysing long plans is what small jobs spend their
    time on. Where a shuffle makes one part, Spark is told that there is but one: whatever follows then needs no shuffle.
    """
    is_one = frame.sparkSession.conf.get("spark.sql.shuffle.partitions") == "1"
    return (frame.coalesce(1) if is_one else frame).localCheckpoint()


def read(
    spark: SparkSession, path: str, kafka: sources.Kafka | None, *, now_ms: int, since_ms: int | None, until_ms: int | None
) -> Inputs:
    """The lines of a folder, a URL or a topic, or of a stream's folder. Refused when there are none to be had."""
    if kafka is None and is_store(path):
        return _from_store(spark, Store(path), since_ms=since_ms, until_ms=until_ms)
    text = sources.read_kafka(spark, kafka) if kafka is not None else sources.read_lines(spark, path)
    lines = of_lines.kept(parse.parse(text, now_ms=now_ms)).persist(StorageLevel.MEMORY_AND_DISK)
    again = materialised(of_lines.copies(lines))
    repeated = sum(row["copies"] - 1 for row in again.select("copies").collect())
    single = of_lines.single(lines, again) if repeated else lines
    files = None if kafka is not None else len(text.inputFiles())
    return Inputs("telemetry", single, repeated, {"files": files, "late": None}, [lines])


def _from_store(spark: SparkSession, store: Store, *, since_ms: int | None, until_ms: int | None) -> Inputs:
    manifest = store.load()
    if until_ms is not None and until_ms <= manifest.kept_from_ms:
        raise Refused(f"{store.path} keeps nothing from before {iso(manifest.kept_from_ms)}: ask for a later span")
    dropped = since_ms is not None and since_ms < manifest.kept_from_ms
    lines = compact.read(spark, store, manifest, manifest.hours_within(since_ms, until_ms))
    if lines is None:
        raise Refused(f"{store.path} holds nothing of that span: mind --since and --until, or wait for the stream's first batch")
    counters: dict[str, Any] = {name: manifest.counters[name] for name in ("files", "late")}
    counters["dropped_before_ms"] = manifest.kept_from_ms if dropped else None
    return Inputs("stream", lines, manifest.counters["repeated"], counters)


def folder_of(path: str, kafka: sources.Kafka | None) -> sources.Folder | None:
    """A local folder of lines, looked at; None for other places. Refused when there is nothing to read."""
    if kafka is not None or is_remote(path) or is_store(path):
        return None
    return sources.inspect(str(Path(path)))
