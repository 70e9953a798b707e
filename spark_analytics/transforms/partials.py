"""The additive state of lag: what one backup and queue did in one short grain of time, in a form that can be merged to any span.

Every column is a sum, a maximum, a minimum or a bitwise or, so partials of the same key may be merged in any order and any
number of times. Keys carry the epoch: an index is never compared with one of another epoch. A sample counts as *told* when the
primary spoke of the backup, and as *heard* when it also said that the backup is connected: a primary that reports a dead backup
each second is not news of that backup.

Time is counted in slots: a slot is the sampling interval, but at least a second, so that a grain of at most a minute fits the
64 bits of a long. `told`, `heard` and `over` are bitmaps of slots.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_analytics.transforms import buckets

KEY = ("cluster", "epoch", "backup", "queue")
MAX_GRAIN_MS = 60_000
BYTES_UNIT = 1024


def slot_ms(interval_ms: Column) -> Column:
    """The length of a slot for an interval."""
    return F.greatest(interval_ms, F.lit(1000).cast("long"))


def current_view(samples: DataFrame, reigns: DataFrame) -> DataFrame:
    """Only what a primary said of its backups while it reigned.

    `reigns`: cluster, epoch, primary, begin_ms, end_ms (small). A backup's own view has another clock and knows less; a primary
    that has been deposed goes on saying that all is well until it notices.
    """
    reign = F.broadcast(reigns.select("cluster", "epoch", "primary", "end_ms"))
    spoken = samples.where(F.col("sender") == F.col("primary"))
    return spoken.join(reign, ["cluster", "epoch", "primary"]).where(F.col("ts_ms") < F.col("end_ms")).drop("end_ms")


def lag_partials(samples: DataFrame, *, grain_ms: int, queue_grain_ms: int | None = None, objective_ms: float) -> DataFrame:
    """Samples to partials, one row per cluster, epoch, backup, queue and grain (`start_ms`). Grains are at most a minute.

    `queue_grain_ms` is for single queues, of which there are many; `grain_ms` for the whole log, which deserves a finer look.
    """
    queue_grain_ms = queue_grain_ms or grain_ms
    assert all(0 < grain <= MAX_GRAIN_MS for grain in (grain_ms, queue_grain_ms)), "a grain must fit a bitmap of slots"
    col = F.col
    grain = F.when(col("queue").isNull(), F.lit(grain_ms)).otherwise(F.lit(queue_grain_ms))
    start = F.floor(col("ts_ms") / grain) * grain
    slot = F.floor((col("ts_ms") - start) / slot_ms(col("interval_ms"))).cast("int")
    bit = F.call_function("shiftleft", F.lit(1).cast("long"), slot)
    nothing = F.lit(0).cast("long")
    late = ~col("connected") | (col("lag_ms") > objective_ms)
    here = col("connected")
    state = F.struct(
        "ts_ms",
        "acked_index",
        "commit_index",
        "lag_records",
        "lag_bytes",
        "lag_ms",
        "stall_ms",
        "state",
        "connected",
        "in_sync",
        "headroom_bytes",
    )
    ready = samples.select(
        *KEY,
        start.alias("start_ms"),
        "ts_ms",
        "interval_ms",
        "lag_records",
        "lag_bytes",
        "lag_ms",
        "stall_ms",
        "acked_index",
        here.alias("here"),
        bit.alias("bit"),
        F.when(here, bit).otherwise(nothing).alias("heard_bit"),
        F.when(late, bit).otherwise(nothing).alias("over_bit"),
        F.when(here, buckets.bucket_of(col("lag_ms"))).alias("ms_bucket"),
        buckets.bucket_of(col("lag_records")).alias("records_bucket"),
        buckets.bucket_of(col("lag_bytes") / BYTES_UNIT).alias("bytes_bucket"),
        state.alias("state"),
    )
    return ready.groupBy(*KEY, "start_ms").agg(
        F.count("*").alias("n"),
        F.count_if(~col("here")).alias("n_unreachable"),
        F.max("interval_ms").alias("interval_ms"),
        F.bit_or("bit").alias("told"),
        F.bit_or("heard_bit").alias("heard"),
        F.bit_or("over_bit").alias("over"),
        F.max("lag_ms").alias("max_ms"),
        F.max("lag_records").alias("max_records"),
        F.max("lag_bytes").alias("max_bytes"),
        F.min("lag_records").alias("min_records"),
        F.max("stall_ms").alias("max_stall_ms"),
        F.min(F.when(col("here"), col("ts_ms"))).alias("first_heard_ms"),
        F.max(F.when(col("here"), col("ts_ms"))).alias("last_heard_ms"),
        F.min("state").alias("first"),
        F.max("state").alias("last"),
        F.max("acked_index").alias("max_acked"),
        *buckets.packed_counts("m", "ms_bucket"),
        *buckets.packed_counts("r", "records_bucket"),
        *buckets.packed_counts("b", "bytes_bucket"),
    )


def merge(partials: DataFrame, lengths: Sequence[int], *, whole_log_only: Sequence[int] = ()) -> DataFrame:
    """Partials to one row per cluster, backup, queue, `window_ms` and `start_ms`, for several window lengths at once.

    `lengths` in ms are multiples of the grain; those of `whole_log_only` are not made for single queues. Epochs meet here, so
    what compares indexes is settled first: `rewound` within each partial's epoch, `first` and `last` from the newest epoch in
    the window.
    """
    col = F.col
    cut = partials.withColumn("window_ms", F.explode(F.array(*(F.lit(length).cast("long") for length in lengths))))
    if whole_log_only:
        cut = cut.where(col("queue").isNull() | ~col("window_ms").isin(*whole_log_only))
    newest_first = F.struct((-col("epoch")).alias("minus_epoch"), col("first").alias("state"))
    newest_last = F.struct("epoch", col("last").alias("state"))
    start = (F.floor(col("start_ms") / col("window_ms")) * col("window_ms")).alias("start_ms")
    merged = cut.groupBy("cluster", "backup", "queue", "window_ms", start).agg(
        F.sum("n").alias("n"),
        F.sum("n_unreachable").alias("n_unreachable"),
        F.max("interval_ms").alias("interval_ms"),
        F.sum(F.bit_count("told")).cast("long").alias("told"),
        F.sum(F.bit_count("heard")).cast("long").alias("heard"),
        F.sum(F.bit_count("over")).cast("long").alias("over"),
        F.max("max_ms").alias("max_ms"),
        F.max("max_records").alias("max_records"),
        F.max("max_bytes").alias("max_bytes"),
        F.min("min_records").alias("min_records"),
        F.max("max_stall_ms").alias("max_stall_ms"),
        F.min("first_heard_ms").alias("first_heard_ms"),
        F.max("last_heard_ms").alias("last_heard_ms"),
        F.min(newest_first).alias("newest_first"),
        F.max(newest_last).alias("newest_last"),
        F.max(F.struct("epoch", "max_acked")).alias("acked"),
        F.max(col("max_acked") > col("last.acked_index")).alias("fell"),
        *(buckets.summed(prefix) for prefix in "mrb"),
    )
    newest = col("newest_last.epoch")
    fell_since = (col("acked.epoch") == newest) & (col("acked.max_acked") > col("newest_last.state.acked_index"))
    settled = {
        "first": F.when(-col("newest_first.minus_epoch") == newest, col("newest_first.state")),
        "last": col("newest_last.state"),
        "epoch": newest,
        "rewound": F.coalesce(col("fell") | fell_since, F.lit(False)),
    }
    return merged.withColumns(settled).drop("newest_first", "newest_last", "acked", "fell")
