"""Lines that came more than once: at which times, in which files, and what is counted instead.

Remembering every number of every line would cost more than all the rest, so lines are added up as they come, and this is asked
afterwards. The life of a doubt: a sender's time is `suspected` when two samples of a key share a slot, which costs nothing to
see. An interval that ends a little early puts two into a slot as well; but a sender's lines are numbered without a hole, and
where the numbers of a time are a range, each once, their fingerprint proves it. What is left is `doubtful`: what came twice, and
what stands beside a lost line. Of these times alone, and of the files that reach into them (`files_with`), the lines are read
again, and each is counted `once` instead of what was added up before (`without`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_analytics.transforms import fingerprint, partials, told
from spark_analytics.transforms.partials import Grains

SENDERS = ("cluster", "sender", "kind")
_TIME = (*SENDERS, "period")
TIMES = "cluster string, sender string, kind string, period long"


def suspected(rows: DataFrame, grains: Grains) -> DataFrame:
    """The senders' times (`cluster`, `sender`, `kind`, `period`: minutes, or longer grains) in which a sample may have come
    twice, from combined `told` rows.

    Two samples of a key never share a slot unless the interval is shorter than a slot; those are always suspected.
    """
    col = F.col
    shared = col("interval_ms") < partials.slot_ms(col("interval_ms"), grains.of(col("queue")))
    more = (col("n") > F.bit_count("told")) | shared
    return rows.where((col("kind") == "sample") & more).select(*SENDERS, told.period("start_ms", grains)).distinct()


def doubtful(found: DataFrame, suspects: DataFrame, odd: DataFrame, grains: Grains) -> DataFrame:
    """Of the `suspected` times those in which the numbers of the lines that were `found` (`columnar.FOUND` with prints) are no
    range, and those of `odd` samples, which were not found there.
    """
    strange = F.broadcast(odd.where("kind = 'sample'").select(*SENDERS, told.period("ts_ms", grains)).distinct())
    plain = F.broadcast(suspects.join(strange, [*_TIME], "left_anti"))
    rows = found.where("file IS NULL AND inside").drop("kind").withColumn("period", told.period("start_ms", grains))
    sums = rows.join(plain, ["cluster", "sender", "period"]).groupBy(*_TIME)
    numbers = sums.agg(
        F.sum("lines").alias("lines"),
        F.min("first_seq").alias("first_seq"),
        F.max("last_seq").alias("last_seq"),
        F.sum(F.col("print").cast("decimal(38, 0)")).cast("string").alias("print"),
    )
    return numbers.mapInArrow(_no_ranges, TIMES).unionByName(suspects.join(strange, [*_TIME], "left_semi"))


def _no_ranges(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sums = zip(*(batch.column(name).to_pylist() for name in ("lines", "first_seq", "last_seq", "print")), strict=True)
        doubted = [
            lines != last - first + 1 or int(found) != fingerprint.of_range(first, last) for lines, first, last, found in sums
        ]
        yield batch.filter(pa.array(doubted, pa.bool_())).select(_TIME)


def files_with(found: DataFrame, again: DataFrame, grains: Grains) -> set[str]:
    """The files that hold plain lines of those times, and perhaps some more."""
    is_mark = F.col("file").isNotNull() & F.col("value").isNull() & F.col("first_ms").isNotNull()
    files = found.where(is_mark).select("file", "first_ms", "last_ms").collect()
    periods = np.unique([row["period"] for row in again.select("period").distinct().collect()])
    firsts, lasts = (
        np.array([row[name] for row in files], np.int64) // told.period_ms(grains) for name in ("first_ms", "last_ms")
    )
    reached = np.searchsorted(periods, firsts) < np.searchsorted(periods, lasts, "right")
    return {row["file"] for row, chosen in zip(files, reached, strict=True) if chosen}


def within(frame: DataFrame, times: DataFrame, grains: Grains, *, moment: str = "start_ms") -> DataFrame:
    """Of `told` rows, or of `told.usable` lines by their `ts_ms`, those of senders' times (TIMES; null outside the span)."""
    return _by_time(frame, times, grains, moment, "left_semi")


def without(frame: DataFrame, times: DataFrame, grains: Grains, *, moment: str = "start_ms") -> DataFrame:
    """The others."""
    return _by_time(frame, times, grains, moment, "left_anti")


def _by_time(frame: DataFrame, times: DataFrame, grains: Grains, moment: str, how: str) -> DataFrame:
    others = times.select(*(F.col(name).alias(f"of_{name}") for name in _TIME))
    placed = frame.withColumn("period", told.period(moment, grains))
    same = [F.col(name).eqNullSafe(F.col(f"of_{name}")) for name in _TIME]
    return placed.join(others, same, how).drop("period")


def once(lines: DataFrame, again: DataFrame, grains: Grains) -> DataFrame:
    """`told.tagged` samples of those senders' times, each once."""
    samples = told.usable(lines).where(F.col("kind") == "sample")
    return within(samples, again, grains, moment="ts_ms").dropDuplicates(told.LINE)
