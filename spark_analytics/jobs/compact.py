"""Compaction: the rows of an hour from many micro-batches become one sorted file.

An hour is compacted when it is over (the data's own time has passed it), when many batches have added rows to it since, and
when its day is over. Later rows stay beside its file until the hour is compacted again. All of this runs beside the batches
(`Beside`), in its own thread: the folder of an hour is written from the manifest at the start of that hour's compaction, and
then the current manifest is changed. Rows that batches have added to the hour meanwhile stay where they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_analytics.errors import Refused
from spark_analytics.locations import located, pattern
from spark_analytics.schemas import LINE
from spark_analytics.store import HOUR_MS, HOURS_A_DAY, Manifest, Store, drop

MANY_PARTS: Final = 60
WAIT_MS: Final = 2 * 60_000
_ORDER: Final = ("kind", "backup", "queue", "ts_ms")
"""The order of rows in a file: equal values are together, and compress well."""


class Beside:
    """Compaction beside the batches of one stream, in one thread: a run may continue while one batch ends; the next batch
    waits for it."""

    def __init__(self, spark: SparkSession, store: Store, *, keep_ms: int | None = None) -> None:
        self._spark, self._store, self._keep_ms = spark, store, keep_ms
        self._thread = ThreadPoolExecutor(1, "compaction")
        self._run: Future[int] | None = None
        self._left_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """Begin a run after a batch. An error of the last run is raised here: Refused, or an exception of Spark."""
        if self._left_ms is None and self._run is not None and not self._run.done():
            self._left_ms = now_ms
            return
        self._wait()
        self._left_ms = None
        self._run = self._thread.submit(compact, self._spark, self._store, now_ms=now_ms, keep_ms=self._keep_ms)

    def finish(self) -> None:
        """Wait until all work that is due after the last batch is done. Raises the same exceptions as `begin`."""
        if self._left_ms is not None:
            self.begin(self._left_ms)
        self._wait()

    def _wait(self) -> None:
        if self._run is not None:
            try:
                self._run.result()
            except OSError as error:
                raise Refused(f"cannot write to {self._store.path}: {error.strerror}; make room, and start it again") from None


def compact(spark: SparkSession, store: Store, *, now_ms: int, keep_ms: int | None = None) -> int:
    """Delete rows older than `keep_ms`, compact the hours that are due, and commit; returns the number of compacted hours."""
    if keep_ms is not None and drop(store.load(), keep_ms, now_ms):
        with store.changing() as manifest:
            drop(manifest, keep_ms, now_ms)
            store.sweep(manifest, now_ms)
    due = due_hours(store.load(), now_ms)
    for hour in due:
        version, batches = write_hour(spark, store, store.load(), hour)
        with store.changing() as manifest:
            _replace(manifest, hour, version, batches, now_ms)
            store.sweep(manifest, now_ms)
    return len(due)


def due_hours(manifest: Manifest, now_ms: int) -> list[int]:
    """The hours that are to be compacted."""

    def is_over(until_ms: int) -> bool:
        return manifest.newest_ms(now_ms) >= until_ms + WAIT_MS

    parts: dict[int, int] = {}
    for hours in manifest.parts.values():
        for hour in hours:
            parts[hour] = parts.get(hour, 0) + 1
    return sorted(
        hour
        for hour, count in parts.items()
        if count >= MANY_PARTS
        or (is_over((hour + 1) * HOUR_MS) and hour not in manifest.hours)
        or is_over((hour // HOURS_A_DAY + 1) * HOURS_A_DAY * HOUR_MS)
    )


def write_hour(spark: SparkSession, store: Store, manifest: Manifest, hour: int) -> tuple[int, frozenset[int]]:
    """Write an hour's lines again as one file; returns its version and the batches in it. It is not read before the manifest
    names it."""
    version = manifest.hours.get(hour, 0) + 1
    rows = read(spark, store, manifest, [hour])
    assert rows is not None, "an hour that is due has rows"
    rows.coalesce(1).sortWithinPartitions(*_ORDER).write.mode("overwrite").parquet(located(store.hour(hour, version)))
    return version, frozenset(batch for batch, hours in manifest.parts.items() if hour in hours)


def _replace(manifest: Manifest, hour: int, version: int, batches: frozenset[int], now_ms: int) -> None:
    """Put the hour's new folder into the manifest, in place of the folders that it was made from."""
    if hour in manifest.hours:
        manifest.garbage.append((f"hours/hour={hour}/v={manifest.hours[hour]}", now_ms))
    manifest.hours[hour] = version
    for batch in batches & manifest.parts.keys():
        manifest.parts[batch] = [one for one in manifest.parts[batch] if one != hour]
        if not manifest.parts[batch]:
            del manifest.parts[batch]
            manifest.garbage.append((f"parts/batch_id={batch}", now_ms))


def read(spark: SparkSession, store: Store, manifest: Manifest, hours: Iterable[int]) -> DataFrame | None:
    """The lines of those hours, each once, with the newest schema and with fields that are newer than the store; None if there
    are none.

    A file that cannot be read is an error here; it is not skipped.
    """
    folders = store.dirs(manifest, hours)
    if not folders:
        return None
    schema = StructType.fromJson(json.loads(manifest.schema))
    newer = [field for field in LINE.fields if field.name not in schema.names]
    schema = StructType([*schema.fields, *newer])
    return spark.read.option("ignoreCorruptFiles", "false").schema(schema).parquet(*map(pattern, folders))
