"""When the cluster changed its primary: to whom, why, how long nobody served, and what it cost.

A failover is a reign that follows another. Its times come from the events of those who took part, and where one is missing from
the telemetry itself: the old primary's last sample and the new one's first. The gap is what the new primary measured
(`failover_done`) when it said so; otherwise from the last sign of the old primary to the new one's taking over, which is exact
only to the sampling interval.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

LEAD_MS = 120_000
"""How long before the new reign its causes are looked for."""


def failovers(reigns: DataFrame, events: DataFrame) -> DataFrame:
    """One row per change of primary: `at_ms`, `epoch`, `primary`, `previous`, `kind`, `gap_ms`, `measured`, `detected_ms`,
    `asked_ms`, `lost_records`.

    `kind` is `failover` (somebody noticed a failure, or the old primary fell silent first) or `switchover` (asked for on a
    healthy primary).
    """
    col = F.col
    order = Window.partitionBy("cluster").orderBy("epoch", "begin_ms")
    changes = (
        reigns.withColumn("previous", F.lag("primary").over(order))
        .withColumn("old_said_ms", F.lag("last_said_ms").over(order))
        .withColumn("old_begin_ms", F.lag("begin_ms").over(order))
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
    cause = told["type"].isin("failure_detected", "promote_asked") & (told["event_ms"] <= changes["begin_ms"])
    near = changes.join(told, (told["cluster"] == changes["cluster"]) & before & (mine | cause), "left").drop(told["cluster"])

    def first(type_: str) -> Column:
        return F.min(F.when(col("type") == type_, col("event_ms")))

    done = (col("type") == "failover_done") & (col("event_epoch") == col("epoch"))
    active = (col("event_epoch") == col("epoch")) & (
        ((col("type") == "role") & (col("to") == "active")) | (col("type") == "promote_won") | (col("type") == "failover_done")
    )
    facts = near.groupBy("cluster", "epoch", "primary", "previous", "begin_ms", "old_said_ms").agg(
        first("failure_detected").alias("detected_ms"),
        first("promote_asked").alias("asked_ms"),
        F.min(F.when(active, col("event_ms"))).alias("active_ms"),
        F.max(F.when(done, col("duration_ms"))).alias("done_ms"),
        F.max(F.when(done | (col("type") == "promote_won"), col("lost_records"))).alias("lost_records"),
        F.max(F.when(done | (col("type") == "promote_won"), col("detail"))).alias("detail"),
    )
    at = F.coalesce("active_ms", "begin_ms")
    since = F.coalesce(F.least("detected_ms", "asked_ms"), col("old_said_ms"))
    seen_gap = F.greatest(at - F.least(since, col("old_said_ms")), F.lit(0).cast("long")).cast("double")
    planned = col("detected_ms").isNull() & col("asked_ms").isNotNull()
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
        "lost_records",
        "detail",
    ).orderBy("at_ms")
