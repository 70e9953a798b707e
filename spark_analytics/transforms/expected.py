"""Who should have said something, and when: without it silence would be missing data instead of the worst lag there is.

A *reign* is one primary's epoch. Within it each backup and queue that the primary's roster names (or, for lack of a roster,
that it ever sampled) is expected in every slot, from when it was first named until the roster drops it or the reign ends. A
reign ends when the next begins, not when its primary falls silent: the gap between two primaries is silence of everybody.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_analytics.transforms.partials import KEY, Grains, lengths_of, slot_ms
from spark_analytics.transforms.told import ROSTER

REIGN = ("cluster", "epoch", "primary")


def reigns(presence: DataFrame, *, end_ms: int) -> DataFrame:
    """One row per cluster, epoch and primary, from `told.presence`: `begin_ms`, `end_ms`, `next_ms` (when the next one began,
    null for the last), `last_said_ms` (the primary's last sample or roster).
    """
    col = F.col
    said = presence.where(col("mine") & col("inside") & col("problem").isNull())
    spans = said.groupBy(*REIGN).agg(
        F.min("first_ms").alias("begin_ms"), F.max("last_ms").alias("last_said_ms"), F.max("interval_ms").alias("interval_ms")
    )
    order = Window.partitionBy("cluster").orderBy("epoch", "begin_ms")
    following = F.lead("begin_ms").over(order)
    spans = spans.withColumn("next_ms", F.when(following.isNotNull(), F.greatest(following, col("begin_ms"))))
    return spans.withColumn("end_ms", F.greatest(F.coalesce("next_ms", F.lit(end_ms).cast("long")), "begin_ms"))


def expected_keys(lag: DataFrame, rosters: DataFrame, reigns: DataFrame, grains: Grains) -> DataFrame:
    """One row per KEY: it is expected from `from_ms` until `to_ms`, both on a slot's edge, once every `slot_ms`.

    `lag` holds `partials.counted` rows, `rosters` those of `told.rosters`.
    """
    col = F.col
    seen = lag.select(*KEY, "first_ms", "last_ms", F.lit(None).cast("long").alias("named_ms"))
    both = rosters.groupBy(*ROSTER).agg(F.min("first_ms").alias("first_ms"), F.max("last_ms").alias("last_ms"))
    whole_log = F.array(F.lit(None).cast("string"))
    named = (
        both.withColumn("backup", F.explode("backups"))
        .withColumn("queue", F.explode(F.concat(whole_log, "queues")))
        .select(*KEY, "first_ms", "last_ms", col("last_ms").alias("named_ms"))
    )
    keys = (
        seen.unionByName(named)
        .groupBy(*KEY)
        .agg(F.min("first_ms").alias("first_ms"), F.max("last_ms").alias("last_ms"), F.max("named_ms").alias("named_ms"))
    )
    newest = both.groupBy("cluster", "epoch").agg(F.max("last_ms").alias("roster_ms"))
    slot = slot_ms(col("interval_ms"), grains.of(col("queue")))
    dropped = col("roster_ms").isNotNull() & ~F.coalesce(col("named_ms") == col("roster_ms"), F.lit(False))
    until = F.when(dropped, F.least(col("last_ms") + slot, col("end_ms"))).otherwise(col("end_ms"))
    return (
        keys.join(F.broadcast(reigns.select("cluster", "epoch", "interval_ms", "begin_ms", "end_ms")), ["cluster", "epoch"])
        .join(F.broadcast(newest), ["cluster", "epoch"], "left")
        .where(col("first_ms") < col("end_ms"))
        .select(
            *KEY,
            (F.floor(F.greatest("first_ms", "begin_ms") / slot) * slot).alias("from_ms"),
            (F.floor(until / slot) * slot).alias("to_ms"),
            slot.alias("slot_ms"),
        )
    )


def expected_windows(keys: DataFrame, lengths: Sequence[int], *, whole_log_only: Sequence[int] = ()) -> DataFrame:
    """Keys to one row per cluster, backup, queue, `window_ms` and `start_ms`: `expected` slots in it, and the time they cover.

    The arguments are those of `partials.merge`, and so are the rows where something was said.
    """
    col = F.col
    cut = keys.withColumn("window_ms", F.explode(lengths_of(lengths, whole_log_only)))
    first = F.floor(col("from_ms") / col("window_ms")) * col("window_ms")
    last = F.floor(F.greatest(col("to_ms") - 1, col("from_ms")) / col("window_ms")) * col("window_ms")
    rows = cut.withColumn("start_ms", F.explode(F.sequence(first, last, "window_ms")))
    begin, end = F.greatest("from_ms", "start_ms"), F.least(col("to_ms"), col("start_ms") + col("window_ms"))
    slots = F.greatest(F.floor(end / col("slot_ms")) - F.floor(begin / col("slot_ms")), F.lit(0).cast("long"))
    return rows.groupBy("cluster", "backup", "queue", "window_ms", "start_ms").agg(
        F.sum(slots).alias("expected"),
        F.min("from_ms").alias("since_ms"),
        F.max(end).alias("to_ms"),
        F.max("slot_ms").alias("slot_ms"),
    )
