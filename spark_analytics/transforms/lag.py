"""Samples by primaries to the state of lag in windows of any length: plain aggregation, nothing counted twice.

Time is counted in ms: a sample stands for its interval, so that shares stay right when the interval changes, or is 100 ms.
*Sampled* is the time for which the primary reported. *Heard* is the part of it in which it reported the backup as connected.
*Over* is the part in which the backup was not connected, or its lag was above the objective. Time that is expected and not
sampled is missing (`expected`, `windows`).

    samples -> grains: one row per epoch, backup, queue and a short time, with the first and the last look at the backup
            -> histogram: how long each lag lasted, by the same short times
    grains -> gaps: with the silence before each row, and whether the acknowledged index fell
           -> merged: windows

Indexes are never compared across epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_analytics.transforms.lines import of

SLOTS: Final = 60
"""Slots of a grain: they fit in the bits of a long."""
WINDOW: Final = ("backup", "queue", "window_ms", "start_ms")
_FIRST: Final = ("ts_ms", "acked_index", "commit_index", "lag_records", "connected")
_LAST: Final = (*_FIRST, "lag_bytes", "lag_ms", "stall_ms", "in_sync", "headroom_bytes", "state_code")
STATES: Final = ("", "joining", "catchup", "ready", "recovering", "active", "standalone")
PERCENTS: Final = (50, 95, 99)
_STEPS: Final = 32
"""Steps for each doubling, if lags are rounded: a step is 2.2 %, so the error of a percentile is at most 1.1 %."""


@dataclass(frozen=True, slots=True)
class Grains:
    """The shortest lengths of time, in ms: for the whole log, and for queues, because there are many queues."""

    whole_ms: int
    queue_ms: int

    def __post_init__(self) -> None:
        assert self.whole_ms > 0, "a grain has a length"
        assert not self.queue_ms % self.whole_ms, "a queue's grain is a multiple of the whole log's"

    def of(self, queue: Column) -> Column:
        """The grain of a queue, or of the whole log."""
        return F.when(queue.isNull(), F.lit(self.whole_ms)).otherwise(F.lit(self.queue_ms))


def samples(lines: DataFrame, terms: Iterable[Mapping[str, Any]]) -> DataFrame:
    """The samples of primaries about their backups in their own terms, from `lines.tagged` lines of one cluster.

    A deposed primary continues to report that all is well until it notices; its samples do not count after the next term has
    begun.
    """
    col = F.col
    deposed = F.when(F.lit(False), F.lit(True))
    for term in terms:
        if term["next_ms"] is not None and term["next_ms"] <= term["last_said_ms"]:
            its = (col("epoch") == term["epoch"]) & (col("primary") == term["primary"])
            deposed = deposed.when(its & (col("ts_ms") >= term["next_ms"]), F.lit(True))
    return of(lines, "sample").where(col("mine") & ~deposed.otherwise(F.lit(False)))


def grains(samples: DataFrame, grains: Grains, *, objective_ms: float) -> DataFrame:
    """One row per epoch, backup, queue and `start_ms`."""
    col = F.col
    grain = grains.of(col("queue"))
    start = F.floor(col("ts_ms") / grain) * grain
    late = ~col("connected") | (col("lag_ms") > objective_ms)
    nothing = F.lit(0).cast("long")
    code = F.lit(0)
    for at, state in enumerate(STATES):
        code = F.when(col("state") == state, F.lit(at)).otherwise(code)
    slot = F.greatest(col("interval_ms"), F.ceil(grain / SLOTS))
    looks = samples.withColumns({"start_ms": start, "slot_ms": slot, "state_code": code})
    bit = F.call_function(
        "shiftleft", F.lit(1).cast("long"), F.floor((col("ts_ms") - col("start_ms")) / col("slot_ms")).cast("int")
    )
    here = col("connected")
    first = [F.min_by(name, "seq").alias(f"first_{name}") for name in _FIRST]
    last = [F.max_by(name, "seq").alias(f"last_{name}") for name in _LAST]
    return looks.groupBy("epoch", "backup", "queue", "start_ms").agg(
        F.count("*").alias("n"),
        F.sum("interval_ms").alias("sampled_ms"),
        F.sum(F.when(here, col("interval_ms")).otherwise(nothing)).alias("heard_ms"),
        F.sum(F.when(late, col("interval_ms")).otherwise(nothing)).alias("over_ms"),
        F.max("interval_ms").alias("interval_ms"),
        F.max("slot_ms").alias("slot_ms"),
        F.bit_or(F.when(here, bit).otherwise(nothing)).alias("heard"),
        F.min(F.when(here, col("ts_ms"))).alias("first_heard_ms"),
        F.max(F.when(here, col("ts_ms"))).alias("last_heard_ms"),
        *(F.max(name).alias(f"max_{short}") for name, short in _HIGHEST.items()),
        F.min("lag_records").alias("min_records"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        *first,
        *last,
    )


_HIGHEST: Final = {
    "lag_ms": "ms",
    "lag_records": "records",
    "lag_bytes": "bytes",
    "stall_ms": "stall_ms",
    "acked_index": "acked",
}


def histogram(samples: DataFrame, grains: Grains, *, exact: bool) -> DataFrame:
    """How long each lag (`value_ms`) of a connected backup lasted: `weight_ms` by backup, queue and `start_ms`.

    Lags are as measured, or rounded to 2.2 % if there are too many different ones.
    """
    col = F.col
    grain = grains.of(col("queue"))
    rounded = F.when(col("lag_ms") > 0, F.pow(F.lit(2.0), F.round(F.log2("lag_ms") * _STEPS) / _STEPS)).otherwise(F.lit(0.0))
    value = col("lag_ms") if exact else rounded
    start = (F.floor(col("ts_ms") / grain) * grain).alias("start_ms")
    return (
        samples.where("connected")
        .groupBy("backup", "queue", start, value.alias("value_ms"))
        .agg(F.sum("interval_ms").alias("weight_ms"))
    )


def gaps(rows: DataFrame, expected: DataFrame) -> DataFrame:
    """`grains` with `gap_ms`, the longest time without hearing the backup that ended in the row (0: none longer than an
    interval and a half), and `fell`: whether its acknowledged index decreased within the epoch, in the order in which the
    primary numbered its lines.

    `expected` are `expected.segments`: before a segment begins, there is no silence.
    """
    col = F.col
    segments = F.broadcast(expected.select(col("backup").alias("b"), col("queue").alias("q"), "from_ms", "to_ms"))
    same = (col("b") == col("backup")) & col("q").eqNullSafe(col("queue"))
    within = (col("from_ms") <= col("first_ts_ms")) & (col("first_ts_ms") < col("to_ms"))
    placed = rows.join(segments, same & within, "left").drop("b", "q", "to_ms")
    order = Window.partitionBy("backup", "queue").orderBy("start_ms", "epoch")
    before = F.last("last_heard_ms", ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, -1))
    along = Window.partitionBy("epoch", "backup", "queue").orderBy("start_ms")
    acked_before, seq_before = (F.lag(name).over(along) for name in ("last_acked_index", "last_seq"))
    # The bits between the first and the last set bit; each run of zeros among them is a time in which the backup was not
    # heard.
    runs = F.expr("transform(split(trim(TRAILING '0' FROM bin(heard)), '1'), run -> length(run))")
    longest = F.coalesce(F.array_max(runs), F.lit(0))
    inner = F.when(longest > 0, (longest + 1) * col("slot_ms")).otherwise(0)
    edge = col("first_heard_ms") - F.greatest("before_ms", "from_ms")
    gap = F.greatest(inner, F.when(edge * 2 > col("interval_ms") * 3, edge).otherwise(0))
    # After a step back of the primary's clock, the row before also has lines that were said later.
    in_order = col("first_seq") > col("seq_before")
    fell = (col("max_acked") > col("last_acked_index")) | (in_order & (col("first_acked_index") < col("acked_before")))
    known = placed.withColumns({"before_ms": before, "acked_before": acked_before, "seq_before": seq_before})
    known = known.withColumns({"gap_ms": F.coalesce(gap, F.lit(0).cast("long")), "fell": F.coalesce(fell, F.lit(False))})
    return known.drop("before_ms", "acked_before", "seq_before", "first_seq", "last_seq", "from_ms", "heard")


def lengths_of(lengths: Sequence[int], whole_log_only: Sequence[int]) -> Column:
    """The window lengths for a row's queue, as an array: all of them for the whole log."""
    everything, some = (
        F.array(*(F.lit(length) for length in chosen)).cast("array<long>")
        for chosen in (lengths, [length for length in lengths if length not in whole_log_only])
    )
    return F.when(F.col("queue").isNull(), everything).otherwise(some)


def _windowed(rows: DataFrame, lengths: Sequence[int], whole_log_only: Sequence[int]) -> DataFrame:
    cut = rows.withColumn("window_ms", F.explode(lengths_of(lengths, whole_log_only)))
    return cut.withColumn("start_ms", F.floor(F.col("start_ms") / F.col("window_ms")) * F.col("window_ms"))


def merged(rows: DataFrame, lengths: Sequence[int], *, whole_log_only: Sequence[int] = ()) -> DataFrame:
    """`gaps` to one row per WINDOW, for several window lengths at once.

    `lengths` in ms are multiples of the grain; those of `whole_log_only` are not made for single queues. `first` and `last` are
    of the newest epoch in the window.
    """
    col = F.col
    looks = rows.withColumns(
        {
            "first": F.struct(*(col(f"first_{name}").alias(name) for name in _FIRST)),
            "last": F.struct(*(col(f"last_{name}").alias(name) for name in _LAST)),
            "order": F.struct("epoch", "start_ms"),
            "first_order": F.struct((-col("epoch")).alias("minus_epoch"), "start_ms"),
        }
    )
    found = (
        _windowed(looks, lengths, whole_log_only)
        .groupBy(*WINDOW)
        .agg(
            *(F.sum(name).alias(name) for name in ("n", "sampled_ms", "heard_ms", "over_ms")),
            *(
                F.max(name).alias(name)
                for name in ("interval_ms", "max_ms", "max_records", "max_bytes", "max_stall_ms", "gap_ms")
            ),
            F.min("min_records").alias("min_records"),
            F.max("last_heard_ms").alias("last_heard_ms"),
            F.max("epoch").alias("epoch"),
            F.max("fell").alias("rewound"),
            F.min_by("first", "first_order").alias("first"),
            F.max_by("last", "order").alias("last"),
        )
    )
    names = F.array(*(F.lit(state) for state in STATES))
    return found.withColumn("last", col("last").withField("state", F.get(names, col("last.state_code"))))


def percentiles(
    histogram: DataFrame,
    windows: DataFrame,
    lengths: Sequence[int],
    *,
    whole_log_only: Sequence[int] = (),
    grain_ms: int | None = None,
) -> DataFrame:
    """`p50_ms`, `p95_ms`, `p99_ms` per WINDOW by nearest rank over the time `total_ms` of `windows`; null if the rank falls
    on time in which the backup was not heard, which is worse than any lag.

    With `grain_ms`, a queue's grain, windows of that length are not added up, because the histogram already has them. With
    many samples these windows are most of the work. With few samples the longer plan costs more than it saves.
    """
    col = F.col
    is_there = grain_ms is not None and grain_ms in lengths and grain_ms not in whole_log_only
    besides = [*whole_log_only, grain_ms] if is_there and grain_ms is not None else whole_log_only
    values = _windowed(histogram, lengths, besides).groupBy(*WINDOW, "value_ms").agg(F.sum("weight_ms").alias("weight_ms"))
    if is_there:
        of_grains = histogram.where("queue IS NOT NULL").withColumn("window_ms", F.lit(grain_ms).cast("long"))
        values = values.unionByName(of_grains)
    totals = windows.select(*(col(name).alias(f"_{name}") for name in WINDOW), "total_ms")
    ranked = values.join(totals, same_window(), "inner").withColumn(
        "reached_ms", F.sum("weight_ms").over(Window.partitionBy(*WINDOW).orderBy("value_ms"))
    )
    return ranked.groupBy(*WINDOW).agg(
        *(
            F.min(F.when(col("reached_ms") * 100 >= col("total_ms") * percent, col("value_ms"))).alias(f"p{percent}_ms")
            for percent in PERCENTS
        )
    )


def same_window() -> Column:
    """The condition that a row's WINDOW is that of the columns with an underscore in front."""
    same = F.col("queue").eqNullSafe(F.col("_queue"))
    for name in ("backup", "window_ms", "start_ms"):
        same = same & (F.col(name) == F.col(f"_{name}"))
    return same


def seen(rows: DataFrame) -> DataFrame:
    """When each epoch's primary reported each backup and queue (`from_ms`, `to_ms`), and its first report (`connected`,
    `records`), from `grains`, by `epoch`, `backup` and `queue`.
    """
    first = F.min_by(F.struct("first_connected", "first_lag_records"), "start_ms").alias("first")
    ends = F.min("first_ts_ms").alias("from_ms"), F.max(F.col("last_ts_ms") + F.col("interval_ms")).alias("to_ms")
    found = rows.groupBy("epoch", "backup", "queue").agg(*ends, first)
    return found.select(
        *("epoch", "backup", "queue", "from_ms", "to_ms"),
        F.col("first.first_connected").alias("connected"),
        F.col("first.first_lag_records").alias("records"),
    )
