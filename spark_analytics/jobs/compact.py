"""Compaction: what many micro-batches have written of an hour becomes one file a table, and roll-ups beside it.

An hour is compacted when it is over (the data's own time has passed it), and again when many batches have added to it since, or
its day is over.
Its roll-ups are of all its rows or are not used: rows that come later make the hour *dirty*, and readers then take its rows from
below until it has been compacted anew. A day's roll-up is made of its hours' when all of them are over and clean.

All of that goes on beside the batches (`Beside`), in a thread of its own: an hour's folders are written from the manifest as it
was when the hour's turn came, and then the manifest as it is by then is changed. What batches have added to that hour meanwhile
stays below, and makes it dirty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_analytics.errors import Refused
from spark_analytics.places import located
from spark_analytics.store import HOUR_MS, HOURS_A_DAY, Manifest, Store, drop, names_of
from spark_analytics.transforms import combine, partials, told

MANY_PARTS: Final = 60
WAIT_MS: Final = 2 * 60_000
MINUTE_MS: Final = 60_000


class Beside:
    """Compaction beside the batches of one stream, by one thread: a run may go on while one batch ends, and the next waits."""

    def __init__(self, spark: SparkSession, store: Store, *, keep_ms: int | None = None) -> None:
        self._spark, self._store, self._keep_ms = spark, store, keep_ms
        self._thread = ThreadPoolExecutor(1, "compaction")
        self._run: Future[int] | None = None
        self._left_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """After a batch: begin a run. What went wrong in the last one is raised here: Refused, or what Spark raises."""
        if self._left_ms is None and self._run is not None and not self._run.done():
            self._left_ms = now_ms
            return
        self._wait()
        self._left_ms = None
        self._run = self._thread.submit(compact, self._spark, self._store, now_ms=now_ms, keep_ms=self._keep_ms)

    def finish(self) -> None:
        """Wait until all that is due after the last batch has been done. Raises as `begin` does."""
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
    """Drop what is older than `keep_ms`, compact what is due, and commit; how many hours were compacted."""
    if keep_ms is not None and drop(store.load(), keep_ms, now_ms):
        with store.changing() as manifest:
            drop(manifest, keep_ms, now_ms)
            store.sweep(manifest, now_ms)
    due = _due(store.load())
    for hour in due:
        done = _compact_hour(spark, store, store.load(), hour)
        with store.changing() as manifest:
            _replace(manifest, done, now_ms)
            store.sweep(manifest, now_ms)
    for day in sorted({hour // HOURS_A_DAY for hour in due}):
        if _roll_day(spark, store, store.load(), day, now_ms):
            with store.changing() as manifest:
                manifest.days[day] = now_ms
    return len(due)


def _newest_ms(manifest: Manifest) -> int:
    return max(manifest.newest.values(), default=0)


def _is_over(manifest: Manifest, until_ms: int) -> bool:
    return _newest_ms(manifest) >= until_ms + WAIT_MS


def _due(manifest: Manifest) -> list[int]:
    parts: dict[int, int] = {}
    for tables in manifest.parts.values():
        for hour in {hour for hours in tables.values() for hour in hours}:
            parts[hour] = parts.get(hour, 0) + 1
    return sorted(
        hour
        for hour, count in parts.items()
        if count >= MANY_PARTS
        or (_is_over(manifest, (hour + 1) * HOUR_MS) and not manifest.hours.get(hour, {}).get("rolled", False))
        or _is_over(manifest, (hour // HOURS_A_DAY + 1) * HOURS_A_DAY * HOUR_MS)
    )


@dataclass(frozen=True, slots=True)
class _Compacted:
    """An hour's new folders: what is in them, of which batches, and whether they have roll-ups of all of the hour."""

    hour: int
    version: int
    schemas: dict[str, str]
    batches: frozenset[int]

    @property
    def entry(self) -> dict[str, Any]:
        """As the manifest has it."""
        return {"v": self.version, "tables": sorted(self.schemas), "rolled": "lag_1h" in self.schemas}


def _compact_hour(spark: SparkSession, store: Store, manifest: Manifest, hour: int) -> _Compacted:
    """Write an hour's tables anew. Nobody reads them before the manifest names them."""
    old = manifest.hours.get(hour)
    version = old["v"] + 1 if old else 1
    schemas = {}
    for table, frame in _tables(spark, store, manifest, hour).items():
        schemas[table] = frame.schema.json()
        frame.coalesce(1).write.mode("overwrite").parquet(located(store.hour(hour, version, table)))
    batches = {batch for batch, tables in manifest.parts.items() if any(hour in hours for hours in tables.values())}
    return _Compacted(hour, version, schemas, frozenset(batches))


def _replace(manifest: Manifest, done: _Compacted, now_ms: int) -> None:
    """Name an hour's new folders instead of those that they were made of."""
    old = manifest.hours.get(done.hour)
    if old:
        manifest.garbage.append((f"hours/hour={done.hour}/v={old['v']}", now_ms))
    manifest.schemas |= done.schemas
    manifest.hours[done.hour] = done.entry
    for batch in done.batches & manifest.parts.keys():
        left = {table: [hour for hour in hours if hour != done.hour] for table, hours in manifest.parts[batch].items()}
        manifest.parts[batch] = {table: hours for table, hours in left.items() if hours}
        if not manifest.parts[batch]:
            del manifest.parts[batch]
            manifest.garbage.append((f"parts/batch_id={batch}", now_ms))
    if (day := done.hour // HOURS_A_DAY) in manifest.days:
        manifest.garbage.append((f"days/day={day}/v={manifest.days.pop(day)}", now_ms))


def _tables(spark: SparkSession, store: Store, manifest: Manifest, hour: int) -> dict[str, DataFrame]:
    """An hour's tables, each in one piece."""
    made: dict[str, DataFrame] = {}
    alone: dict[str, Callable[[DataFrame], DataFrame]] = {
        "told": lambda rows: combine.combined(rows, len(store.dirs(manifest, "told", [hour]))),
        "events": lambda rows: rows,
        "rosters": lambda rows: rows.groupBy(*told.ROSTER).agg(
            F.min("first_ms").alias("first_ms"), F.max("last_ms").alias("last_ms")
        ),
        "quarantine": lambda rows: rows,
    }
    for table, joined in alone.items():
        rows = read(spark, store, manifest, table, [hour])
        if rows is not None:
            made[table] = joined(rows)
    if "told" not in made:
        return made
    rows = made["told"] = made["told"].localCheckpoint()
    grains = partials.Grains(*manifest.settings["grains"])
    made["presence"], made["views"] = told.presence(rows, grains), told.views(rows)
    if _is_over(manifest, (hour + 1) * HOUR_MS):
        lag = partials.counted(told.lag(rows), reigns(spark, manifest), grains)
        made["lag_1m"] = combine.rolled(lag.where("queue IS NULL"), MINUTE_MS)
        made["lag_1h"] = combine.rolled(lag, HOUR_MS)
    return made


def _roll_day(spark: SparkSession, store: Store, manifest: Manifest, day: int, now_ms: int) -> bool:
    """Roll a day up, as version `now_ms`, if it is over and all its hours are clean; whether it was."""
    hours, dirty = manifest.hours_of(day), manifest.dirty()
    over = _is_over(manifest, (day + 1) * HOURS_A_DAY * HOUR_MS)
    clean = all(hour not in dirty and manifest.hours[hour]["rolled"] for hour in hours)
    if day in manifest.days or not over or not hours or not clean:
        return False
    rows = read(spark, store, manifest, "lag_1h", hours)
    if rows is None:
        return False
    rolled = combine.rolled(rows, HOURS_A_DAY * HOUR_MS)
    rolled.coalesce(1).write.mode("overwrite").parquet(located(store.day(day, now_ms)))
    return True


def read(spark: SparkSession, store: Store, manifest: Manifest, table: str, hours: Iterable[int]) -> DataFrame | None:
    """A table's rows of those hours, each once; None when there are none."""
    folders = store.dirs(manifest, table, hours)
    return read_folders(spark, manifest, table, folders) if folders else None


def read_folders(spark: SparkSession, manifest: Manifest, table: str, folders: list[str]) -> DataFrame:
    """Parquet folders by the newest schema of their table. Here a file that cannot be read is an error, and not passed over."""
    schema = StructType.fromJson(json.loads(manifest.schemas[table]))
    return spark.read.option("ignoreCorruptFiles", "false").schema(schema).parquet(*map(located, folders))


def reigns(spark: SparkSession, manifest: Manifest) -> DataFrame:
    """The reigns that the manifest knows: cluster, epoch, primary, `begin_ms`, and `next_ms` as `expected.reigns` has it."""
    rows = []
    for key, (begin_ms, _) in manifest.reigns.items():
        cluster, epoch, primary = names_of(key)
        rows.append((cluster, int(epoch), primary, int(begin_ms)))
    rows.sort(key=lambda row: (row[0], row[1], row[3]))
    placed = [
        (*row, max(after[3], row[3]) if after is not None and after[0] == row[0] else None)
        for row, after in zip(rows, [*rows[1:], None], strict=True)
    ]
    return spark.createDataFrame(placed, "cluster string, epoch long, primary string, begin_ms long, next_ms long")
