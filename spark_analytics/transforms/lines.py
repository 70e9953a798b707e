"""Typed lines to the facts about them: sender and time, events, rosters, views of the log. The same for batch and stream.

The life of a line: `parse.parse` types and checks it. `kept` gives it the form that a stream stores and a summary reads.
`tagged` says whether it is in the span and whether its sender reported as the primary. `single` keeps one copy of a repeated
line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_analytics.schemas import EVENT, LINE
from spark_analytics.transforms.quality import RESTART

IDENTITY: Final = ("cluster", "sender", "seq")
"""The identity of a line. No restart repeats it, because the numbers begin at the start time of the process, its epoch."""
ROSTER: Final = ("cluster", "epoch", "primary", "seq", "backups", "voters", "witness", "witness_connected")
UNUSED: Final = (
    *("replicate", "role", "sent_index", "received_index", "applied_index", "sync_ms", "sync_max_ms", "round_trip_ms"),
    *("records_per_s", "bytes_per_s", "reach", "asked", "answered", "round_trip_max_ms", "broker_epoch", "last_index"),
)
"""The fields that no summary uses."""
MINUTE_MS: Final = 60_000
_LEAP_MS: Final = 5 * MINUTE_MS
WRONG_CLOCK: Final = "time ahead of later lines"


def kept(parsed: DataFrame, *besides: Column) -> DataFrame:
    """`parse.parse`d lines with the fields of LINE, `ts_ms`, `problem`, and the columns `besides`. Lines with a problem keep
    their text and file, and have no fields.
    """
    bad = F.col("problem").isNotNull()
    fields = [F.when(~bad, F.col(f"`{name}`")).alias(name) for name in LINE.names]
    text = [F.when(bad, F.col(name)).alias(name) for name in ("value", "file")]
    return parsed.select(*fields, F.when(~bad, F.col("ts_ms")).alias("ts_ms"), "problem", *text, *besides)


def tagged(lines: DataFrame, *, since_ms: int | None = None, until_ms: int | None = None) -> DataFrame:
    """Add `inside` (the span) and `mine` (a sample or roster by the primary that it names)."""
    inside = F.lit(True)
    if since_ms is not None:
        inside = inside & (F.col("ts_ms") >= since_ms)
    if until_ms is not None:
        inside = inside & (F.col("ts_ms") < until_ms)
    mine = F.col("kind").isin("sample", "roster") & (F.col("sender") == F.col("primary"))
    return lines.withColumns({"inside": F.coalesce(inside, F.lit(True)), "mine": F.coalesce(mine, F.lit(False))})


def blocks(lines: DataFrame) -> DataFrame:
    """The numbers of good lines in groups of 64: `cluster`, `sender`, `block`, its number of `lines`, and `bits`, one for
    each number.

    A sender numbers its lines without a gap, so there are few blocks, and the lines themselves are not moved.
    """
    bits = F.expr("bit_or(shiftleft(1L, cast(seq & 63 AS int)))").alias("bits")
    good = lines.where("problem IS NULL").groupBy("cluster", "sender", _block().alias("block"))
    return good.agg(F.count("*").alias("lines"), bits)


def repeats(blocks: DataFrame) -> DataFrame:
    """The rows of `blocks` with repeated lines, and how many lines there are besides the first of each number (`again`)."""
    again = F.expr("lines - bit_count(bits)").alias("again")
    return blocks.select(*_OF_BLOCK, again).where("again > 0")


def single(lines: DataFrame, repeats: DataFrame, few: Sequence[int] | None) -> tuple[DataFrame, DataFrame]:
    """The lines in two parts, with one line of each number: unchanged lines, and lines from blocks in `repeats`.

    `few` are the numbers of the blocks in `repeats`, if they are so few that they alone select the lines.
    """
    if few is None:
        marks = F.broadcast(repeats.select(*_OF_BLOCK, F.lit(True).alias("doubtful")))
        marked = lines.withColumn("block", _block()).join(marks, [*_OF_BLOCK], "left")
    else:
        marked = lines.withColumn("doubtful", _block().isin(*few))
    doubtful = F.coalesce("doubtful", F.lit(False)) & F.col("problem").isNull()
    once = marked.where(doubtful).dropDuplicates([*IDENTITY])
    return marked.where(~doubtful).select(*lines.columns), once.select(*lines.columns)


BLOCK: Final = 64
_OF_BLOCK: Final = ("cluster", "sender", "block")


def _block() -> Column:
    return F.shiftright("seq", 6)


def presence(lines: DataFrame) -> DataFrame:
    """How many lines each sender wrote in each minute, from `tagged` lines: few rows, whatever the number of queues.

    A row has no lines of two processes, because their numbers are far from each other.
    """
    start = F.when(F.col("inside"), F.floor(F.col("ts_ms") / MINUTE_MS) * MINUTE_MS).alias("start_ms")
    key = ("cluster", "epoch", "sender", "kind", "primary", "mine", "problem", "inside")
    near = F.floor(F.col("seq") / RESTART).alias("near")
    found = lines.groupBy(*key, start, near).agg(
        F.count("*").alias("lines"),
        *(F.min(name).alias(f"first_{short}") for name, short in _ENDS.items()),
        *(F.max(name).alias(f"last_{short}") for name, short in _ENDS.items()),
        F.min("interval_ms").alias("shortest_ms"),
        F.max("interval_ms").alias("interval_ms"),
    )
    return found.drop("near")


_ENDS: Final = {"ts_ms": "ms", "seq": "seq"}


def with_leaps(presence: DataFrame) -> DataFrame:
    """`presence`, with the problem WRONG_CLOCK for minutes in which a sender's clock had leapt ahead: lines with higher
    numbers are minutes older. Of such a minute, the lines with numbers up to `ahead_until` are ahead: the highest number of a
    line that is minutes older. This applies only if few of the sender's lines are ahead: a clock that was set back for good is
    not wrong. It also does not apply to a process of which all lines are ahead: its clock was behind when it began, or that of
    the process before was ahead, so its numbers are too low, and its times are right.
    """
    col = F.col
    good = col("problem").isNull() & col("inside")
    whose = Window.partitionBy("cluster", "sender")
    # In descending order, because Spark computes a frame that ends in the future again for each row.
    after = whose.orderBy(col("first_seq").desc()).rowsBetween(Window.unboundedPreceding, -1)
    later_ms = F.min(F.when(good, col("start_ms"))).over(after)
    older = whose.orderBy("start_ms").rangeBetween(Window.unboundedPreceding, -_LEAP_MS - 1)
    rows = presence.withColumn("ahead_until", F.max(F.when(good, col("last_seq"))).over(older))
    rows = rows.withColumn("ahead", good & F.coalesce(col("start_ms") > later_ms + _LEAP_MS, F.lit(False)))
    order = whose.orderBy("first_seq", "last_seq")
    before = F.max(F.when(good, col("last_seq"))).over(order.rowsBetween(Window.unboundedPreceding, -1))
    rows = rows.withColumn("begins", F.when(col("first_seq") - before >= RESTART, 1).otherwise(0))
    rows = rows.withColumn("run", F.sum("begins").over(order.rowsBetween(Window.unboundedPreceding, 0)))
    all_ahead = F.min(F.when(good, col("ahead"))).over(Window.partitionBy("cluster", "sender", "run"))
    rows = rows.withColumn("ahead", col("ahead") & ~F.coalesce(all_ahead, F.lit(False)))
    ahead = F.sum(F.when(col("ahead"), col("lines")).otherwise(0)).over(whose)
    few = ahead * 10 < F.sum(F.when(good, col("lines")).otherwise(0)).over(whose)
    leapt = good & few & F.max("ahead").over(Window.partitionBy("cluster", "sender", "start_ms"))
    return rows.withColumn("problem", F.when(leapt, F.lit(WRONG_CLOCK)).otherwise(col("problem"))).drop("ahead", "begins", "run")


def without_leaps(lines: DataFrame, presence: DataFrame) -> DataFrame:
    """`kept` lines; those that `with_leaps` has marked have the problem WRONG_CLOCK instead of their time."""
    minute = F.floor(F.col("ts_ms") / MINUTE_MS) * MINUTE_MS
    leapt = presence.where(F.col("problem") == WRONG_CLOCK).groupBy("cluster", "sender", "start_ms")
    marks = F.broadcast(leapt.agg(F.max("ahead_until").alias("ahead_until")))
    marked = lines.withColumn("start_ms", minute).join(marks, ["cluster", "sender", "start_ms"], "left")
    problem = F.when(F.col("seq") <= F.col("ahead_until"), F.lit(WRONG_CLOCK)).otherwise(F.col("problem"))
    return marked.withColumn("problem", problem).select(*lines.columns)


def of(lines: DataFrame, kind: str) -> DataFrame:
    """Good lines of a kind in the span, from `tagged` lines."""
    return lines.where(F.col("problem").isNull() & F.col("inside") & (F.col("kind") == kind))


def events(lines: DataFrame) -> DataFrame:
    """Events, with their fields only."""
    return of(lines, "event").select(*(F.col(f"`{name}`") for name in EVENT), "ts_ms")


def newest_events(lines: DataFrame, most: int, types: Sequence[str]) -> DataFrame:
    """The newest events, all events of some types, and one for each reason of dropped lines. `newest` is the place among all
    events, from 1 on; `dropped` is the total number of lines that were dropped for its reason.
    """
    col = F.col
    newest = F.row_number().over(Window.partitionBy(F.lit(1)).orderBy(col("ts_ms").desc(), "sender", col("seq").desc()))
    alike = Window.partitionBy("type", F.coalesce("detail", F.lit("")))
    told = (
        events(lines)
        .drop("v", "kind", "cluster", "ts")
        .withColumns(
            {"newest": newest, "dropped": F.sum("lost_records").over(alike), "turn": F.row_number().over(alike.orderBy("seq"))}
        )
    )
    is_first_drop = (col("type") == "drop") & (col("turn") == 1)
    return told.where((col("newest") <= most) | col("type").isin(*types) | is_first_drop).drop("turn")


def rosters(lines: DataFrame) -> DataFrame:
    """The rosters that differ from the one before of the same epoch and primary: ROSTER's columns, `from_ms`, and the queues
    `added` and `removed` since that one.

    A roster names all queues. If a queue comes or goes each second, all of the names are too much for one process.
    """
    col = F.col
    order = Window.partitionBy("cluster", "epoch", "primary").orderBy("ts_ms", "seq")
    said = of(lines, "roster").where(col("mine"))
    changes = said.withColumn("before", F.lag(_content()).over(order)).where(~col("before").eqNullSafe(_content()))
    queues, before = (F.coalesce(name, F.array().cast("array<string>")) for name in ("queues", "before.queues"))
    return changes.select(
        *ROSTER,
        col("ts_ms").alias("from_ms"),
        F.array_except(queues, before).alias("added"),
        F.array_except(before, queues).alias("removed"),
    )


def _content() -> Column:
    names = (F.array_sort(name).alias(name) for name in ("backups", "queues", "voters"))
    return F.struct(*names, "witness", "witness_connected")


def views(lines: DataFrame, *, since_ms: int, every_ms: int) -> DataFrame:
    """The last view of the log of each sender in each `every_ms`: `sender`, `epoch`, `primary`, `ts_ms`, `commit_index`."""
    start = F.floor(F.col("ts_ms") / every_ms).alias("step")
    looks = of(lines, "sample").where(F.col("queue").isNull() & (F.col("ts_ms") >= since_ms))
    newest = F.max(F.struct("ts_ms", "commit_index")).alias("newest")
    return looks.groupBy("epoch", "primary", "sender", start).agg(newest).select("epoch", "primary", "sender", "newest.*")
