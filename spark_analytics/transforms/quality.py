"""How much of the telemetry could be used: counts of the lines read and of the missing lines, and a few examples of bad
lines."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

EXAMPLES = 20
EXAMPLE_CHARS = 200
RESTART = 1_000_000
"""A sender's numbers begin at its clock's ms times a thousand: so a jump of this size is a restart, and not lost lines."""


def inventory(presence: DataFrame) -> DataFrame:
    """One row per cluster, epoch, sender, kind, primary, problem, `inside` and `mine`: `lines`, the range of `ts_ms`, the
    shortest and the longest interval, and the first and the last interval. Few rows.
    """
    return presence.groupBy("cluster", "epoch", "sender", "kind", "primary", "problem", "inside", "mine").agg(
        F.sum("lines").alias("lines"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
        F.min("shortest_ms").alias("shortest_ms"),
        F.max("interval_ms").alias("interval_ms"),
        F.min_by("shortest_ms", "first_ms").alias("begin_interval_ms"),
        F.max_by("interval_ms", "last_ms").alias("end_interval_ms"),
    )


def holes(presence: DataFrame) -> DataFrame:
    """One row, `holes`: how many lines were numbered by their writer and are missing, from a cluster's `lines.presence`.

    A sender numbers its lines without a gap until it restarts. An unreadable line is a hole too, because its number is not
    known.
    """
    col = F.col
    usable = presence.where(col("inside") & col("problem").isNull())
    minutes = usable.groupBy("sender", "epoch", "start_ms").agg(
        F.sum("lines").alias("lines"), F.min("first_seq").alias("first"), F.max("last_seq").alias("last")
    )
    restarted = col("last") - col("first") - col("lines") >= RESTART
    minutes = minutes.withColumn("lines", F.when(restarted, 1).otherwise(col("lines")))
    minutes = minutes.withColumn("first", F.when(restarted, col("last")).otherwise(col("first")))
    order = Window.partitionBy("sender").orderBy("first", "last")
    before = F.max("last").over(order.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.coalesce(col("first") - before >= RESTART, F.lit(True)).cast("int")
    runs = minutes.withColumn("begins", begins).withColumn("run", F.sum("begins").over(order))
    missing = F.max("last") - F.min("first") + 1 - F.sum("lines")
    found = runs.groupBy("sender", "run").agg(F.greatest(missing, F.lit(0).cast("long")).alias("holes"))
    return found.agg(F.coalesce(F.sum("holes"), F.lit(0).cast("long")).alias("holes"))


def examples(lines: DataFrame) -> DataFrame:
    """A few of the lines with a problem, cut to a readable length; always the same few."""
    text = F.substring(F.coalesce("value", F.concat_ws(" ", "sender", "ts")), 1, EXAMPLE_CHARS).alias("text")
    return (
        lines.where(F.col("problem").isNotNull())
        .select("problem", "file", text)
        .orderBy("problem", "text", "file")
        .limit(EXAMPLES)
    )
