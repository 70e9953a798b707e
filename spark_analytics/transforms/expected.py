"""Who should have said something, and when: without it silence would be missing data instead of the worst lag there is.

A *reign* is one primary's epoch; it ends when the next begins, not when its primary falls silent: the gap between two primaries
is silence of everybody. Within it each backup and queue is expected while the primary's roster names it, or, for lack of a
roster, from when it was first sampled; what is sampled and on no roster is expected while it is sampled. What is not on the
roster does not exist, and is not silent. Times are cut at whole sampling intervals, so that a sample's interval lies where the
sample does, and no interval at either end is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_analytics.transforms.lag import lengths_of

_KEY = ("backup", "queue")


def reigns(presence: DataFrame, *, end_ms: int) -> DataFrame:
    """One row per epoch and primary, from `lines.presence` of one cluster: `begin_ms`, `end_ms`, `next_ms` (when the next one
    began, null for the last), `last_said_ms` (the primary's last sample or roster), and the first and last `interval_ms`.
    """
    col = F.col
    said = presence.where(col("mine") & col("inside") & col("problem").isNull())
    spans = said.groupBy("epoch", "primary").agg(
        F.min("first_ms").alias("begin_ms"),
        F.max("last_ms").alias("last_said_ms"),
        F.min_by("shortest_ms", "first_ms").alias("first_interval_ms"),
        F.max_by("interval_ms", "last_ms").alias("interval_ms"),
    )
    following = F.lead("begin_ms").over(Window.partitionBy(F.lit(1)).orderBy("epoch", "begin_ms"))
    spans = spans.withColumn("next_ms", F.when(following.isNotNull(), F.greatest(following, col("begin_ms"))))
    return spans.withColumn("end_ms", F.greatest(F.coalesce("next_ms", F.lit(end_ms).cast("long")), "begin_ms"))


def segments(rows: DataFrame, rosters: DataFrame, reigns: DataFrame) -> DataFrame:
    """One row per backup, queue and time in which it is expected without a break: `from_ms`, `to_ms`, `interval_ms`.

    `rows` are those of `lag.grains`, `rosters` those of `lines.rosters`.
    """
    col = F.col
    ends = F.broadcast(reigns.select("epoch", "begin_ms", "end_ms", "next_ms", "first_interval_ms", "interval_ms"))
    whole_log = F.array(F.lit(None).cast("string"))
    named = (
        rosters.select("epoch", "backups", "queues", "from_ms", "to_ms")
        .withColumn("backup", F.explode("backups"))
        .withColumn("queue", F.explode(F.concat(whole_log, "queues")))
        .select("epoch", *_KEY, "from_ms", "to_ms")
    )
    with_roster = F.broadcast(rosters.groupBy("epoch").agg(F.lit(True).alias("has_roster")))
    keys = ["epoch", *_KEY]
    ever = F.broadcast(named.select(*(col(name).alias(f"_{name}") for name in keys)).distinct())
    same = col("queue").eqNullSafe(col("_queue")) & (col("epoch") == col("_epoch")) & (col("backup") == col("_backup"))
    seen = (
        rows.groupBy(*keys)
        .agg(F.min("first_ts_ms").alias("from_ms"), F.max(col("last_ts_ms") + col("interval_ms")).alias("last_ms"))
        .join(ever, same, "left_anti")
        .join(with_roster, ["epoch"], "left")
        .select(*keys, "from_ms", F.when(col("has_roster"), col("last_ms")).alias("to_ms"))
    )
    both = named.unionByName(seen).join(ends, ["epoch"]).withColumn("to_ms", F.least(F.coalesce("to_ms", "end_ms"), "end_ms"))
    begin = _floor(F.greatest("from_ms", "begin_ms"), col("first_interval_ms"))
    # A roster's end, and the next primary's beginning, lie within an interval of which the old one has no sample yet. At the end
    # of the span the interval of the last sample counts, which lies in each where the first did, give or take a quarter.
    phase = col("begin_ms") % col("interval_ms")
    samples = F.floor((col("to_ms") - 1 - phase + F.floor(col("interval_ms") / 4)) / col("interval_ms")) + 1
    is_end = col("next_ms").isNull() & (col("to_ms") >= col("end_ms"))
    until = F.when(is_end, samples * col("interval_ms")).otherwise(_floor(col("to_ms"), col("interval_ms")))
    cut = both.select(*_KEY, begin.alias("from_ms"), until.alias("to_ms"), "interval_ms").where("from_ms < to_ms")
    order = Window.partitionBy(*_KEY).orderBy("from_ms", "to_ms")
    reach = F.max("to_ms").over(order.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.coalesce(col("from_ms") > reach + col("interval_ms"), F.lit(True)).cast("int")
    joined = cut.withColumn("begins", begins).withColumn("part", F.sum("begins").over(order))
    return joined.groupBy(*_KEY, "part").agg(
        F.min("from_ms").alias("from_ms"), F.max("to_ms").alias("to_ms"), F.max("interval_ms").alias("interval_ms")
    )


def _floor(moment: Column, interval_ms: Column) -> Column:
    return F.floor(moment / interval_ms) * interval_ms


def windows(segments: DataFrame, lengths: Sequence[int], *, whole_log_only: Sequence[int] = ()) -> DataFrame:
    """Segments to one row per `lag.WINDOW`: `expected_ms` in it, since when (`since_ms`) and until when (`to_ms`) it was expected
    without a break at its end, and the `slot_ms` of one sample.
    """
    col = F.col
    cut = segments.withColumn("window_ms", F.explode(lengths_of(lengths, whole_log_only)))
    first = F.floor(col("from_ms") / col("window_ms")) * col("window_ms")
    last = F.floor((col("to_ms") - 1) / col("window_ms")) * col("window_ms")
    rows = cut.withColumn("start_ms", F.explode(F.sequence(first, last, "window_ms")))
    begin, end = F.greatest("from_ms", "start_ms"), F.least(col("to_ms"), col("start_ms") + col("window_ms"))
    return rows.groupBy(*_KEY, "window_ms", "start_ms").agg(
        F.sum(end - begin).alias("expected_ms"),
        F.max("from_ms").alias("since_ms"),
        F.max(end).alias("to_ms"),
        F.max("interval_ms").alias("slot_ms"),
    )
