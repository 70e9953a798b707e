"""When the cluster changed its primary: to whom, why, how long nobody served, and what it cost.

A failover is a reign that follows another. Its times come from the events of those who took part, and where one is missing from
the telemetry itself: the old primary's last sample and the new one's first. The gap is what the new primary measured
(`failover_done`) when it said so; otherwise from the last sign of the old primary to the new one's taking over, which is exact
only to the sampling interval.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_analytics.transforms.partials import slot_ms

LEAD_MS = 120_000
"""How long before the new reign its causes are looked for."""


def failovers(reigns: DataFrame, events: DataFrame) -> DataFrame:
    """One row per change of primary: `at_ms`, `epoch`, `primary`, `previous`, `kind`, `gap_ms`, `measured`, `detected_ms`,
    `asked_ms`, `detection_ms`, `decision_ms`, `promotion_ms`, `lost_records`, `detail`.

    Lengths between two senders' clocks are never below zero.

    `kind` is `failover` (somebody noticed a failure, or the old primary fell silent first) or `switchover` (asked for on a
    healthy primary).
    """
    col = F.col
    order = Window.partitionBy("cluster").orderBy("epoch", "begin_ms")
    changes = (
        reigns.withColumn("previous", F.lag("primary").over(order))
        .withColumn("old_said_ms", F.lag("last_said_ms").over(order))
        .withColumn("old_begin_ms", F.lag("begin_ms").over(order))
        .withColumn("old_interval_ms", F.lag("interval_ms").over(order))
        .where(col("previous").isNotNull())
    )
    told = events.select(
        "cluster",
        col("epoch").alias("event_epoch"),
        col("ts_ms").alias("event_ms"),
        "broker",
        "type",
        "to",
        "lost_records",
        "duration_ms",
        "detail",
    )
    mine = told["event_epoch"] == changes["epoch"]
    before = told["event_ms"].between(F.greatest(changes["begin_ms"] - LEAD_MS, changes["old_begin_ms"]), changes["end_ms"])
    is_cause = told["type"].isin("failure_detected", "promote_asked")
    # A failure that is noticed within the reign is its end, and the next one's cause.
    part = F.when(is_cause, told["event_ms"] <= changes["begin_ms"]).otherwise(mine)
    near = changes.join(told, (told["cluster"] == changes["cluster"]) & before & part, "left").drop(told["cluster"])

    def first(type_: str) -> Column:
        return F.min(F.when(col("type") == type_, col("event_ms")))

    done = (col("type") == "failover_done") & (col("event_epoch") == col("epoch"))
    active = (col("event_epoch") == col("epoch")) & (
        ((col("type") == "role") & (col("to") == "active")) | (col("type") == "promote_won") | (col("type") == "failover_done")
    )
    facts = near.groupBy("cluster", "epoch", "primary", "previous", "begin_ms", "old_said_ms", "old_interval_ms").agg(
        first("failure_detected").alias("detected_ms"),
        first("promote_asked").alias("asked_ms"),
        F.max(F.when(col("type") == "failure_detected", col("duration_ms"))).alias("noticing_ms"),
        F.min(F.when(active, col("event_ms"))).alias("active_ms"),
        F.max(F.when(done, col("duration_ms"))).alias("done_ms"),
        F.max(F.when(done | (col("type") == "promote_won"), col("lost_records"))).alias("lost_records"),
        F.max(F.when(done | (col("type") == "promote_won"), col("detail"))).alias("detail"),
    )
    at = F.coalesce("active_ms", "begin_ms")
    since = F.coalesce(F.least("detected_ms", "asked_ms"), col("old_said_ms"))
    seen_gap = F.greatest(at - F.least(since, col("old_said_ms")), F.lit(0).cast("long")).cast("double")
    was_silent = col("asked_ms") - col("old_said_ms") > 2 * slot_ms(col("old_interval_ms"))
    # What is left of a measured gap is exact; from the old primary's last sample it is so to the interval only.
    left_of_gap = _length(at - col("detected_ms"), col("done_ms"))
    planned = col("detected_ms").isNull() & col("asked_ms").isNotNull() & ~was_silent
    return facts.select(
        "cluster",
        at.alias("at_ms"),
        "epoch",
        "primary",
        "previous",
        F.when(planned, "switchover").otherwise("failover").alias("kind"),
        F.coalesce(col("done_ms"), seen_gap).alias("gap_ms"),
        col("done_ms").isNotNull().alias("measured"),
        "detected_ms",
        "asked_ms",
        F.coalesce("noticing_ms", left_of_gap, _length(col("old_said_ms"), col("detected_ms"))).alias("detection_ms"),
        _length(col("detected_ms"), col("asked_ms")).alias("decision_ms"),
        _length(F.coalesce("asked_ms", "detected_ms"), at).alias("promotion_ms"),
        "lost_records",
        "detail",
    ).orderBy("at_ms")


def _length(begin: Column, end: Column) -> Column:
    """The ms between, at least 0; null when one is."""
    length = end - begin
    return F.when(length < 0, F.lit(0.0)).otherwise(length.cast("double"))


def first_looks(lag: DataFrame) -> DataFrame:
    """What each epoch's primary said first of each backup's whole log: `epoch`, `backup`, `connected`, `records`."""
    first = F.min("first").alias("first")
    whole = lag.where(F.col("queue").isNull()).groupBy("epoch", "backup").agg(first)
    return whole.select(
        "epoch", "backup", F.col("first.connected").alias("connected"), F.col("first.lag_records").alias("records")
    )
