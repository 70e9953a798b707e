"""Who should have said something, and when: without it silence would be missing data instead of the worst lag there is.

A *reign* is one primary's epoch. Within it each backup and queue that the primary's roster names (or, for lack of a roster,
that it ever sampled) is expected in every slot, from when it was first named until the roster drops it or the reign ends. A
reign ends when the next begins, not when its primary falls silent: the gap between two primaries is silence of everybody.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_analytics.transforms.partials import KEY, slot_ms

REIGN = ("cluster", "epoch", "primary")


def reigns(samples: DataFrame, rosters: DataFrame, *, end_ms: int) -> DataFrame:
    """One row per cluster, epoch and primary: `begin_ms`, `end_ms`, `last_said_ms` (the primary's last sample or roster)."""
    col = F.col
    said = samples.where(col("sender") == col("primary")).select(*REIGN, "ts_ms", "interval_ms")
    said = said.unionByName(rosters.where(col("sender") == col("primary")).select(*REIGN, "ts_ms", "interval_ms"))
    spans = said.groupBy(*REIGN).agg(
        F.min("ts_ms").alias("begin_ms"), F.max("ts_ms").alias("last_said_ms"), F.max("interval_ms").alias("interval_ms")
    )
    order = Window.partitionBy("cluster").orderBy("epoch", "begin_ms")
    until = F.coalesce(F.lead("begin_ms").over(order), F.lit(end_ms).cast("long"))
    return spans.withColumn("end_ms", F.greatest(until, col("begin_ms")))


def expected_keys(view: DataFrame, rosters: DataFrame, reigns: DataFrame) -> DataFrame:
    """One row per KEY: it is expected from `from_ms` until `to_ms`, both on a slot's edge, once every `slot_ms`.

    `view` is `partials.current_view`: samples by their reigning primary.
    """
    col = F.col
    seen = view.select(*KEY, "ts_ms", F.lit(None).cast("long").alias("named_ms"))
    both = rosters.where(col("sender") == col("primary")).select("cluster", "epoch", "ts_ms", "backups", "queues").distinct()
    whole_log = F.array(F.lit(None).cast("string"))
    named = (
        both.withColumn("backup", F.explode("backups"))
        .withColumn("queue", F.explode(F.concat(whole_log, "queues")))
        .select(*KEY, "ts_ms", col("ts_ms").alias("named_ms"))
    )
    keys = (
        seen.unionByName(named)
        .groupBy(*KEY)
        .agg(F.min("ts_ms").alias("first_ms"), F.max("ts_ms").alias("last_ms"), F.max("named_ms").alias("named_ms"))
    )
    newest = both.groupBy("cluster", "epoch").agg(F.max("ts_ms").alias("roster_ms"))
    slot = slot_ms(col("interval_ms"))
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
    cut = keys.withColumn("window_ms", F.explode(F.array(*(F.lit(length).cast("long") for length in lengths))))
    if whole_log_only:
        cut = cut.where(col("queue").isNull() | ~col("window_ms").isin(*whole_log_only))
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
