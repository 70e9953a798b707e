"""Compaction: what many micro-batches have written of an hour becomes one file a table, and roll-ups beside it.

An hour is compacted when it is over (the data's own time has passed it), and again when many batches have added to it since, or
its day is over.
Its roll-ups are of all its rows or are not used: rows that come later make the hour *dirty*, and readers then take its rows from
below until it has been compacted anew. A day's roll-up is made of its hours' when all of them are over and clean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_analytics.places import located
from spark_analytics.store import HOUR_MS, HOURS_A_DAY, Manifest, Store, drop, names_of
from spark_analytics.transforms import combine, partials, told

MANY_PARTS: Final = 60
WAIT_MS: Final = 2 * 60_000
MINUTE_MS: Final = 60_000


def compact(spark: SparkSession, store: Store, manifest: Manifest, *, now_ms: int, keep_ms: int | None = None) -> int:
    """Drop what is older than `keep_ms`, compact what is due, and commit; how many hours were compacted."""
    if keep_ms is not None and drop(manifest, keep_ms, now_ms):
        store.sweep(manifest, now_ms)
        store.commit(manifest)
    due = _due(manifest)
    for hour in due:
        _compact_hour(spark, store, manifest, hour, now_ms)
        store.sweep(manifest, now_ms)
        store.commit(manifest)
    for day in sorted({hour // HOURS_A_DAY for hour in due}):
        if _roll_day(spark, store, manifest, day, now_ms):
            store.commit(manifest)
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


def _compact_hour(spark: SparkSession, store: Store, manifest: Manifest, hour: int, now_ms: int) -> None:
    tables = _tables(spark, store, manifest, hour)
    old = manifest.hours.get(hour)
    version = old["v"] + 1 if old else 1
    for table, frame in tables.items():
        manifest.schemas[table] = frame.schema.json()
        frame.coalesce(1).write.mode("overwrite").parquet(located(store.hour(hour, version, table)))
    if old:
        manifest.garbage.append((f"hours/hour={hour}/v={old['v']}", now_ms))
    manifest.hours[hour] = {"v": version, "tables": sorted(tables), "rolled": "lag_1h" in tables}
    for batch, hours_of in list(manifest.parts.items()):
        left = {table: [other for other in hours if other != hour] for table, hours in hours_of.items()}
        manifest.parts[batch] = {table: hours for table, hours in left.items() if hours}
        if not manifest.parts[batch]:
            del manifest.parts[batch]
            manifest.garbage.append((f"parts/batch_id={batch}", now_ms))
    if (day := hour // HOURS_A_DAY) in manifest.days:
        manifest.garbage.append((f"days/day={day}/v={manifest.days.pop(day)}", now_ms))


def _tables(spark: SparkSession, store: Store, manifest: Manifest, hour: int) -> dict[str, DataFrame]:
    """An hour's tables, each in one piece."""
    made: dict[str, DataFrame] = {}
    alone: dict[str, Callable[[DataFrame], DataFrame]] = {
        "told": combine.combined,
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
        made["lag_1m"] = partials.rolled(lag.where("queue IS NULL"), MINUTE_MS)
        made["lag_1h"] = partials.rolled(lag, HOUR_MS)
    return made


def _roll_day(spark: SparkSession, store: Store, manifest: Manifest, day: int, now_ms: int) -> bool:
    """Roll a day up if it is over and all its hours are clean; whether it was."""
    hours, dirty = manifest.hours_of(day), manifest.dirty()
    over = _is_over(manifest, (day + 1) * HOURS_A_DAY * HOUR_MS)
    clean = all(hour not in dirty and manifest.hours[hour]["rolled"] for hour in hours)
    if day in manifest.days or not over or not hours or not clean:
        return False
    rows = read(spark, store, manifest, "lag_1h", hours)
    if rows is None:
        return False
    version = now_ms
    rolled = partials.rolled(rows, HOURS_A_DAY * HOUR_MS)
    rolled.coalesce(1).write.mode("overwrite").parquet(located(store.day(day, version)))
    manifest.days[day] = version
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
