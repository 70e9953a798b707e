"""A summary's evidence from the folder that a stream has written: the same frames as from lines, and far fewer rows.

For each window length the coarsest roll-ups are read that it is a multiple of, for hours that are complete and lie in the span
whole; what is not compacted yet, or has got late rows since, is taken from the micro-batches' own rows and merged here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType

from spark_analytics.errors import Refused
from spark_analytics.jobs import compact
from spark_analytics.jobs.evidence import Evidence, Own, settled
from spark_analytics.jobs.stock import iso
from spark_analytics.schemas import EVENT
from spark_analytics.store import HOUR_MS, HOURS_A_DAY, Manifest, Store
from spark_analytics.transforms import combine, partials, told
from spark_analytics.transforms.partials import Grains

_TEXT, _LONG, _TEXTS = StringType(), LongType(), ArrayType(StringType())
_EVENTS: Final[dict[str, DataType]] = EVENT | {"ts_ms": _LONG}
_ROSTERS: Final[dict[str, DataType]] = {
    "cluster": _TEXT,
    "epoch": _LONG,
    "primary": _TEXT,
    "backups": _TEXTS,
    "queues": _TEXTS,
    "first_ms": _LONG,
    "last_ms": _LONG,
}
_QUARANTINE: Final[dict[str, DataType]] = {"problem": _TEXT, "file": _TEXT, "value": _TEXT}


def from_store(
    spark: SparkSession, store: Store, *, objective_ms: float | None, since_ms: int | None, until_ms: int | None
) -> Evidence:
    """Take what the manifest names now. The span is cut at whole grains of queues.

    Refused when the stream has counted by another objective, or has written nothing of that span.
    """
    manifest = store.load()
    counted_ms = float(manifest.settings["objective_ms"])
    if objective_ms is not None and objective_ms != counted_ms:
        raise Refused(
            f"{store.path} counts what is over {counted_ms:g} ms: ask for --objective-ms {counted_ms:g}, "
            f"or stream into a new folder with --objective-ms {objective_ms:g}"
        )
    grains = Grains(*manifest.settings["grains"])
    kept = _Kept(
        spark,
        store,
        manifest,
        None if since_ms is None else since_ms // grains.queue_ms * grains.queue_ms,
        None if until_ms is None else -(-until_ms // grains.queue_ms) * grains.queue_ms,
    )
    dropped = since_ms is not None and since_ms < manifest.kept_from_ms
    if until_ms is not None and until_ms <= manifest.kept_from_ms:
        raise Refused(f"{store.path} keeps nothing from before {iso(manifest.kept_from_ms)}: ask for a later span")
    raw = kept.rows("told", kept.dirty)
    if raw is not None:
        raw = combine.combined(raw, len(store.dirs(manifest, "told", kept.dirty))).cache()
    presence = _joined(kept.rows("presence", kept.closed), None if raw is None else told.presence(raw, grains))
    views = _joined(kept.rows("views", kept.closed), None if raw is None else told.views(raw))
    presence = None if presence is None else settled(presence)
    if presence is None or views is None or presence.where("start_ms IS NOT NULL").isEmpty():
        raise Refused(f"{store.path} holds nothing of that span: mind --since and --until, or wait for the stream's first batch")

    def lag_of(own: Own, reigns: DataFrame, lengths: Sequence[int], whole_log_only: Sequence[int]) -> DataFrame:
        found = [] if raw is None else [partials.counted(own(told.lag(raw)), reigns, grains)]
        found += _closed_lag(kept, own, reigns, grains, "queue IS NULL", lengths)
        of_queues = [length for length in lengths if length not in whole_log_only]
        found += _closed_lag(kept, own, reigns, grains, "queue IS NOT NULL", of_queues)
        lag = found[0]
        for more in found[1:]:
            lag = lag.unionByName(more)
        return lag

    return Evidence(
        source="stream",
        grains=grains,
        objective_ms=counted_ms,
        presence=presence,
        views=views,
        events=kept.rows("events", kept.hours, "ts_ms") or kept.empty(_EVENTS),
        rosters=kept.rows("rosters", kept.hours, None) or kept.empty(_ROSTERS),
        quarantine=kept.rows("quarantine", kept.hours, None) or kept.empty(_QUARANTINE),
        lag_of=lag_of,
        counters={name: manifest.counters[name] for name in ("files", "repeated", "late")}
        | {"dropped_before_ms": manifest.kept_from_ms if dropped else None},
        cached=[] if raw is None else [raw],
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """The tables of a store, cut to a span."""

    spark: SparkSession
    store: Store
    manifest: Manifest
    first_ms: int | None
    last_ms: int | None

    @property
    def hours(self) -> list[int]:
        """All that the span touches."""
        return [
            hour
            for hour in sorted(self.manifest.dirty() | self.manifest.hours.keys())
            if (self.first_ms is None or (hour + 1) * HOUR_MS > self.first_ms)
            and (self.last_ms is None or hour * HOUR_MS < self.last_ms)
        ]

    @property
    def dirty(self) -> list[int]:
        """Those with rows outside their compacted folder."""
        dirty = self.manifest.dirty()
        return [hour for hour in self.hours if hour in dirty]

    @property
    def closed(self) -> list[int]:
        """Those that one compacted folder has all of."""
        dirty = self.manifest.dirty()
        return [hour for hour in self.hours if hour not in dirty]

    @property
    def whole(self) -> list[int]:
        """Closed ones that lie in the span whole and have roll-ups."""
        return [
            hour
            for hour in self.closed
            if self.manifest.hours[hour]["rolled"]
            and (self.first_ms is None or hour * HOUR_MS >= self.first_ms)
            and (self.last_ms is None or (hour + 1) * HOUR_MS <= self.last_ms)
        ]

    def rows(self, table: str, hours: Sequence[int], moment: str | None = "start_ms") -> DataFrame | None:
        """A table's rows of those hours and in the span (rows of no time are always in it); None when there are none."""
        frame = compact.read(self.spark, self.store, self.manifest, table, hours)
        if frame is None or moment is None:
            return frame
        at = F.col(moment)
        if self.first_ms is not None:
            frame = frame.where(at.isNull() | (at >= self.first_ms))
        if self.last_ms is not None:
            frame = frame.where(at.isNull() | (at < self.last_ms))
        return frame

    def days(self, days: Sequence[int]) -> DataFrame:
        """The roll-ups of those days."""
        folders = [str(self.store.day(day, self.manifest.days[day])) for day in days]
        return compact.read_folders(self.spark, self.manifest, "lag_1h", folders)

    def empty(self, fields: Mapping[str, DataType]) -> DataFrame:
        """No rows of those fields."""
        return self.spark.createDataFrame([], StructType([StructField(name, kind) for name, kind in fields.items()]))


def _joined(one: DataFrame | None, other: DataFrame | None) -> DataFrame | None:
    return one.unionByName(other) if one is not None and other is not None else one or other


def _closed_lag(
    kept: _Kept, own: Own, reigns: DataFrame, grains: Grains, condition: str, lengths: Sequence[int]
) -> list[DataFrame]:
    """`counted` rows of the closed hours, from the coarsest tables that windows of those lengths can be made of."""
    step = gcd(*lengths)
    whole = set(kept.whole)
    days: list[int] = []
    table = None
    if step % HOUR_MS == 0:
        table = "lag_1h"
        if step % (HOURS_A_DAY * HOUR_MS) == 0:
            days = [day for day in kept.manifest.days if set(kept.manifest.hours_of(day)) <= whole]
    elif step % partials.MINUTE_MS == 0 and condition == "queue IS NULL":
        table = "lag_1m"
    rolled = [hour for hour in sorted(whole) if table and hour // HOURS_A_DAY not in days]
    fine = [hour for hour in kept.closed if table is None or hour not in whole]
    found = [kept.days(days)] if days else []
    if table and (rows := kept.rows(table, rolled)) is not None:
        found.append(rows)
    found = [_reigning(own(rows), reigns) for rows in found]
    if (rows := kept.rows("told", fine)) is not None:
        found.append(partials.counted(own(told.lag(rows)), reigns, grains))
    return [rows.where(condition) for rows in found]


def _reigning(rolled: DataFrame, reigns: DataFrame) -> DataFrame:
    """Rolled rows without those that begin after their epoch's end."""
    ends = F.broadcast(reigns.select("cluster", "epoch", "next_ms"))
    rows = rolled.join(ends, ["cluster", "epoch"])
    return rows.where(F.col("next_ms").isNull() | (F.col("start_ms") < F.col("next_ms"))).drop("next_ms")
