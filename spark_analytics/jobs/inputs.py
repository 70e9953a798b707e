"""The input of a summary: typed lines, read from text or from the Parquet of a stream. The columns are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_analytics import sources
from spark_analytics.errors import Refused
from spark_analytics.jobs import compact
from spark_analytics.jobs.scope import iso
from spark_analytics.locations import is_remote
from spark_analytics.store import Store, is_store
from spark_analytics.transforms import lines as of_lines
from spark_analytics.transforms import parse

_COMPILING: Final = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
_WORTH_COMPILING: Final = 20_000
_BYTES_A_LINE: Final = 600
_FEW_BLOCKS: Final = 32
"""Up to this many blocks of repeated lines are found by their numbers alone, without a join."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """`lines.kept` lines, each once; the number of repeated ones; and other known facts."""

    source: str
    lines: DataFrame
    repeated: int
    counters: dict[str, Any] = field(default_factory=dict)
    release: Callable[[], Any] = lambda: None
    """Release the cached rows."""


def is_small(spark: SparkSession) -> bool:
    """Whether the session is one for short jobs, where Spark's planning takes longer than the rows do."""
    return spark.conf.get("spark.sql.shuffle.partitions") == "1"


def materialised(frame: DataFrame) -> DataFrame:
    """The frame's rows, without the plan that made them. The first job that needs them computes and keeps them. Small jobs spend
    most of their time on the analysis of long plans. In a session for short jobs the rows are in one partition, so that later
    steps need no shuffle.
    """
    return (frame.coalesce(1) if is_small(frame.sparkSession) else frame).localCheckpoint(eager=False)


def _worked_out_once(lines: DataFrame) -> tuple[DataFrame, Callable[[], Any]]:
    """The lines, computed by the first job that needs them and kept for the others; and a function that releases them. Few lines
    are kept as rows, because columns take longer to write than to read. Many are kept in columns, which are smaller.
    """
    spark: Any = lines.sparkSession
    if not is_small(spark):
        lines.persist(StorageLevel.MEMORY_AND_DISK)
        return lines, lines.unpersist
    rows: Any = lines.localCheckpoint(eager=False)
    return rows, lambda: rows._jdf.queryExecution().analyzed().rdd().unpersist(False)


@contextmanager
def compiled(spark: SparkSession, *, lines: int | None) -> Iterator[None]:
    """While the context lasts, Spark compiles its plans, if there are enough lines to be worth it (None: their number is
    unknown)."""
    if lines is not None and lines < _WORTH_COMPILING:
        yield
        return
    before = {name: str(spark.conf.get(name)) for name in _COMPILING}
    try:
        for name, value in _COMPILING.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def read(
    spark: SparkSession,
    path: str,
    kafka: sources.Kafka | None,
    *,
    now_ms: int,
    since_ms: int | None,
    until_ms: int | None,
    nbytes: int | None = None,
) -> Inputs:
    """The lines of a folder, a URL or a topic (of `nbytes` in total, if known), or of a stream's folder. Refused when there are
    none.
    """
    if kafka is None and is_store(path):
        return _from_store(spark, Store(path), since_ms=since_ms, until_ms=until_ms)
    text = sources.read_kafka(spark, kafka) if kafka is not None else sources.read_lines(spark, path)
    releases: list[Callable[[], Any]] = []
    number = None if nbytes is None else nbytes // _BYTES_A_LINE

    def in_one(frame: DataFrame) -> DataFrame:
        """Few lines in one partition: later steps need no shuffle, and each job needs one task."""
        return frame.coalesce(1) if number is not None and number < _WORTH_COMPILING else frame

    def keep(frame: DataFrame) -> DataFrame:
        kept, release = _worked_out_once(in_one(frame))
        releases.append(release)
        return kept

    with compiled(spark, lines=number):
        lines = keep(of_lines.kept(parse.parse(text, now_ms=now_ms)).drop(*of_lines.UNUSED))
        lines, repeated = single(lines, of_lines.blocks(lines), keep)
    lines = in_one(lines)
    files = None if kafka is not None else len(text.inputFiles())
    return Inputs("telemetry", lines, repeated, {"files": files, "late": None}, lambda: [release() for release in releases])


def single(lines: DataFrame, blocks: DataFrame, keep: Callable[[DataFrame], DataFrame]) -> tuple[DataFrame, int]:
    """The lines, one of each number, and how many others there were.

    `blocks` are `lines.blocks` of them. The repeated lines are computed once, and kept by `keep`.
    """
    again = materialised(of_lines.repeats(blocks))
    found = again.limit(_FEW_BLOCKS + 1).collect()
    if not found:
        return lines, 0
    few = len(found) <= _FEW_BLOCKS
    untouched, once = of_lines.single(lines, again, [row["block"] for row in found] if few else None)
    counts = found if few else again.agg(F.sum("again").alias("again")).collect()
    return untouched.unionByName(keep(once)), sum(row["again"] for row in counts)


def _from_store(spark: SparkSession, store: Store, *, since_ms: int | None, until_ms: int | None) -> Inputs:
    manifest = store.load()
    if until_ms is not None and until_ms <= manifest.kept_from_ms:
        raise Refused(f"{store.path} keeps nothing from before {iso(manifest.kept_from_ms)}: ask for a later span")
    dropped = since_ms is not None and since_ms < manifest.kept_from_ms
    hours = manifest.hours_within(since_ms, until_ms)
    lines = compact.read(spark, store, manifest, hours)
    if lines is None:
        raise Refused(f"{store.path} holds nothing of that span: mind --since and --until, or wait for the stream's first batch")
    counters: dict[str, Any] = {name: manifest.counters[name] for name in ("files", "late")}
    counters["dropped_before_ms"] = manifest.kept_from_ms if dropped else None
    repeated = manifest.counters["repeated"]
    if not is_small(spark) or store.n_lines(manifest, hours) >= _WORTH_COMPILING:
        return Inputs("stream", lines, repeated, counters)
    kept, release = _worked_out_once(lines.drop(*of_lines.UNUSED).coalesce(1))
    return Inputs("stream", kept, repeated, counters, release)


def folder_of(path: str, kafka: sources.Kafka | None) -> sources.Folder | None:
    """The facts about a local folder of lines; None for other places. Refused when there is nothing to read."""
    if kafka is not None or is_remote(path) or is_store(path):
        return None
    return sources.inspect(str(Path(path)))
