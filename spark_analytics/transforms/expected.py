"""Who should have said something, and when: without it silence would be missing data instead of the worst lag there is.

A primary's *term* is the time of its epoch. It ends when the next begins, not when its primary falls silent: the gap between two
primaries is silence of everybody. Within it each backup and queue is expected while the primary's roster names it, or, for lack
of a roster, from when it was first sampled; what is sampled and on no roster is expected while it is sampled. What is not on the
roster does not exist, and is not silent. Times are cut at whole sampling intervals, so that a sample's interval lies where the
sample does, and no interval at either end is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_analytics.transforms.lag import lengths_of

_KEY: Final = ("backup", "queue")
_OF_TERMS: Final = ("epoch", "begin_ms", "end_ms", "next_ms", "first_interval_ms", "interval_ms")
Term = dict[str, Any]


def terms(inventory: Iterable[Mapping[str, Any]], *, end_ms: int) -> list[Term]:
    """One for each epoch and primary, in order, from `quality.inventory` of one cluster: `epoch`, `primary`, `begin_ms`,
    `end_ms`, `next_ms` (when the next one began, None for the last), `last_said_ms` (the primary's last sample or roster), the
    first and the last `interval_ms`, and `has_roster`: whether one was told in the epoch.
    """
    said: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in inventory:
        if row["mine"] and row["inside"] and not row["problem"]:
            said.setdefault((row["epoch"], row["primary"]), []).append(row)
    with_roster = {epoch for (epoch, _), rows in said.items() if any(row["kind"] == "roster" for row in rows)}
    found: list[Term] = []
    for (epoch, primary), rows in said.items():
        first, last = min(rows, key=lambda row: row["first_ms"]), max(rows, key=lambda row: row["last_ms"])
        found.append(
            {
                "epoch": epoch,
                "primary": primary,
                "begin_ms": first["first_ms"],
                "last_said_ms": last["last_ms"],
                "first_interval_ms": first["begin_interval_ms"],
                "interval_ms": last["end_interval_ms"],
                "has_roster": epoch in with_roster,
            }
        )
    found.sort(key=lambda term: (term["epoch"], term["begin_ms"]))
    for term, following in zip(found, [*found[1:], None], strict=True):
        term["next_ms"] = None if following is None else max(following["begin_ms"], term["begin_ms"])
        term["end_ms"] = max(end_ms if following is None else term["next_ms"], term["begin_ms"])
    return found


def segments(rows: DataFrame, rosters: DataFrame, terms: Sequence[Term]) -> DataFrame:
    """One row per backup, queue and time in which it is expected without a break: `from_ms`, `to_ms`, `interval_ms`.

    `rows` are those of `lag.grains`, `rosters` those of `lines.rosters`.
    """
    col = F.col
    columns = {name: pa.array([term[name] for term in terms], pa.int64()) for name in _OF_TERMS}
    known = pa.table(columns | {"has_roster": pa.array([term["has_roster"] for term in terms], pa.bool_())})
    ends = F.broadcast(rows.sparkSession.createDataFrame(known))
    keys = ["epoch", *_KEY]
    whole_log = F.array(F.lit(None).cast("string"))
    named = (
        rosters.select("epoch", "backups", "queues", "from_ms", "to_ms")
        .withColumn("backup", F.explode("backups"))
        .withColumn("queue", F.explode(F.concat(whole_log, "queues")))
        .select(*keys, "from_ms", "to_ms", F.lit(True).alias("named"))
    )
    seen = (
        rows.groupBy(*keys)
        .agg(F.min("first_ts_ms").alias("from_ms"), F.max(col("last_ts_ms") + col("interval_ms")).alias("to_ms"))
        .withColumn("named", F.lit(False))
    )
    any_named = F.max("named").over(Window.partitionBy(*keys))
    told = named.unionByName(seen).withColumn("any_named", any_named).where(col("named") | ~col("any_named"))
    # Who is sampled and on no roster is expected while it is sampled; without any roster, as long as the term lasts.
    until_ms = F.when(col("named") | col("has_roster"), col("to_ms"))
    both = told.join(ends, ["epoch"]).withColumn("to_ms", F.least(F.coalesce(until_ms, "end_ms"), "end_ms"))
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
