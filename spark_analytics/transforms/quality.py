"""How much of the telemetry could be used: counts, per file and kind, of what was read, and a few of the lines that could not
be.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

EXAMPLES = 20
EXAMPLE_CHARS = 200


def inventory(parsed: DataFrame) -> DataFrame:
    """One row per file, sender, cluster, kind and problem: `lines`, the ranges of `ts_ms` and `seq`, the longest interval.

    Small whatever the data's size, and one pass gives the span, the clusters, all counts of bad lines, and the holes.
    """
    return parsed.groupBy("file", "sender", "cluster", "kind", "problem").agg(
        F.count("*").alias("lines"),
        F.min("ts_ms").alias("first_ms"),
        F.max("ts_ms").alias("last_ms"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.max("interval_ms").alias("interval_ms"),
    )


def holes(usable: Iterable[Row]) -> int:
    """How many lines were numbered by their writer and are not there, from the inventory's rows without a problem.

    A sender numbers a file's lines without a break. A line that could not be read is a hole too, since its number is not known.
    """
    runs: dict[tuple[str, str], tuple[int, int, int]] = {}
    for row in usable:
        key = (row["file"], row["sender"])
        first, last, lines = runs.get(key, (row["first_seq"], row["last_seq"], 0))
        runs[key] = (min(first, row["first_seq"]), max(last, row["last_seq"]), lines + row["lines"])
    return sum(max(0, last - first + 1 - lines) for first, last, lines in runs.values())


def quarantine(parsed: DataFrame) -> DataFrame:
    """The lines that were kept aside: `problem`, `file`, and the text as it stood."""
    return parsed.where(F.col("problem").isNotNull()).select("problem", "file", "value")


def examples(parsed: DataFrame) -> DataFrame:
    """A few lines of the quarantine, cut to a readable length."""
    return quarantine(parsed).select("problem", "file", F.substring("value", 1, EXAMPLE_CHARS).alias("text")).limit(EXAMPLES)
