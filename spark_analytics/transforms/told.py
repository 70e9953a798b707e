"""Lines to what was told, batch or stream. Everything that a report says is summed from its rows.

Life of a line: `parse.parse` types it; `tagged` says what it counts for; `told` adds it into one row of its key. (Plain lines,
which nearly all are, come to the same rows by a shorter way: `columnar`.) For a sample by
the reigning primary the key is the backup, the queue and a short grain of time, and the row is the additive state of lag
(`partials` has its columns). A backup's own view is kept for the whole log alone, to compare clocks by. Lines with a problem and
lines outside the span leave only their counts. Rows of the same key may be added up in any order, by `combine.combined`.

A line that came twice must count once: `repeats` finds those. Events and rosters are few, and are made single before they are
added up.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_analytics.schemas import EVENT
from spark_analytics.transforms import partials
from spark_analytics.transforms.partials import MINUTE_MS, Grains

KEY = ("cluster", "epoch", "sender", "kind", "primary", "mine", "problem", "inside", "backup", "queue", "start_ms")
FEW = ("event", "roster")
"""The kinds of lines that are kept as they are. They are few."""
LINE = ["cluster", "sender", "seq"]
"""A line's identity, which no restart repeats."""
ROSTER = ("cluster", "epoch", "primary", "backups", "queues")


def tagged(parsed: DataFrame, *, since_ms: int | None = None, until_ms: int | None = None) -> DataFrame:
    """Add `inside` (the span) and `mine` (a sample by the primary that it names, of one of its backups)."""
    inside = F.lit(True)
    if since_ms is not None:
        inside = inside & (F.col("ts_ms") >= since_ms)
    if until_ms is not None:
        inside = inside & (F.col("ts_ms") < until_ms)
    mine = F.col("problem").isNull() & (F.col("sender") == F.col("primary"))
    return parsed.withColumn("inside", F.coalesce(inside, F.lit(True))).withColumn("mine", F.coalesce(mine, F.lit(False)))


def usable(lines: DataFrame) -> DataFrame:
    """Of `tagged` lines, those without a problem and in the span."""
    return lines.where(F.col("problem").isNull() & F.col("inside"))


def told(lines: DataFrame, grains: Grains, *, objective_ms: float) -> DataFrame:
    """`tagged` lines to one row per KEY, with the columns of `partials.added_up` (null where the key is no backup's)."""
    col = F.col
    good = col("problem").isNull() & col("inside")
    is_sample = good & (col("kind") == "sample")
    state = is_sample & col("mine")
    own = is_sample & ~col("mine")
    grain = grains.of(F.when(state, col("queue")))
    start = F.when(is_sample, F.floor(col("ts_ms") / grain) * grain).when(good, F.floor(col("ts_ms") / MINUTE_MS) * MINUTE_MS)

    def only(condition: Column, name: str) -> Column:
        return F.when(condition, col(name)).alias(name)

    keyed = lines.select(
        only(col("problem").isNull(), "cluster"),
        only(good, "epoch"),
        only(col("problem").isNull(), "sender"),
        only(col("problem").isNull(), "kind"),
        only(good, "primary"),
        (good & col("mine")).alias("mine"),
        "problem",
        "inside",
        only(is_sample, "backup"),
        only(state, "queue"),
        start.alias("start_ms"),
        grain.alias("grain_ms"),
        only(col("problem").isNull(), "ts_ms"),
        only(col("problem").isNull(), "seq"),
        only(good, "interval_ms"),
        (state | (own & col("queue").isNull())).alias("counts"),
        *("lag_records", "lag_bytes", "lag_ms", "stall_ms", "commit_index", "acked_index"),
        *("state", "connected", "in_sync", "headroom_bytes"),
    )
    return partials.added_up(partials.observed(keyed, objective_ms=objective_ms), KEY)


def period(name: str, grains: Grains) -> Column:
    """The number of the time, `period_ms` long, that a moment lies in."""
    return F.floor(F.col(name) / period_ms(grains)).alias("period")


def period_ms(grains: Grains) -> int:
    """The shortest time that no row of samples reaches out of."""
    return max(MINUTE_MS, grains.queue_ms)


def lag(rows: DataFrame) -> DataFrame:
    """Of `told` rows, those that a reigning primary said of a backup: the state of lag."""
    return rows.where((F.col("kind") == "sample") & F.col("mine") & F.col("inside") & F.col("problem").isNull())


def presence(rows: DataFrame, grains: Grains, *, by: Sequence[str] = (), besides: Sequence[Column] = ()) -> DataFrame:
    """Who wrote how many lines in each minute, or in each grain of a queue if that is longer: `told` rows without the lag, few
    whatever the number of queues.

    `by` names more columns to tell rows apart by, `besides` further aggregates.
    """
    key = [name for name in KEY if name not in ("backup", "queue", "start_ms")] + list(by)
    start = (period("start_ms", grains) * period_ms(grains)).alias("start_ms")
    return rows.groupBy(*key, start).agg(
        F.sum("lines").alias("lines"),
        *(F.min(name).alias(name) for name in ("first_ms", "first_seq")),
        *(F.max(name).alias(name) for name in ("last_ms", "last_seq", "interval_ms")),
        *besides,
    )


def views(rows: DataFrame) -> DataFrame:
    """Where the log was in each grain as each sender saw it last: `sender`, `epoch`, `primary`, `ts_ms`, `commit_index`."""
    col = F.col
    whole = rows.where((col("kind") == "sample") & col("queue").isNull() & col("last").isNotNull())
    newest = F.max(F.struct(col("last.ts_ms").alias("ts_ms"), col("last.commit_index").alias("commit_index"))).alias("newest")
    key = ("cluster", "epoch", "primary", "sender", "start_ms")
    return whole.groupBy(*key).agg(newest).select(*key, "newest.*")


def rosters(lines: DataFrame) -> DataFrame:
    """`tagged` roster lines to one row per content: `first_ms` and `last_ms`, between which it was said."""
    said = usable(lines).where((F.col("kind") == "roster") & F.col("mine"))
    return said.groupBy(*ROSTER).agg(F.min("ts_ms").alias("first_ms"), F.max("ts_ms").alias("last_ms"))


def events(lines: DataFrame) -> DataFrame:
    """`tagged` event lines, with their fields only."""
    return usable(lines).where(F.col("kind") == "event").select(*(F.col(f"`{name}`") for name in EVENT), "ts_ms")
