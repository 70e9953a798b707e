"""Percentiles that can be added up: 44 buckets in steps of the square root of two, and one of them for exactly zero.

Bucket 0 holds zero; bucket 1 holds (0, 1]; bucket k holds (2^((k-2)/2), 2^((k-1)/2)]; bucket 43 holds all above 2^20.5. With
milliseconds that reaches 25 minutes, with records 1.5 million, with KiB 1.4 GiB; above that the observed maximum bounds the
answer.

Counters travel two to a long, 31 bits each (22 longs instead of 44 columns): a key may hold two thousand million samples, 68
years at one a second. While samples are counted, of an hour at the most, they are three to a long. Percentiles of any span come
from summed counters, never from averaged percentiles. The error of a percentile is at most one step (41 %) and about 8 %
on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp2, sqrt
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StructField, StructType

BUCKETS: Final = 44
PER_WORD: Final = 2
BITS: Final = 31
WORDS: Final = -(-BUCKETS // PER_WORD)
MASK: Final = (1 << BITS) - 1
PER_NARROW: Final = 3
NARROW_BITS: Final = 21
_NARROW: Final = (1 << NARROW_BITS) - 1
PERCENTS: Final = (0.50, 0.95, 0.99)


def bucket_of(value: Column) -> Column:
    """The bucket of a value, as an int; nulls stay null."""
    steps = F.ceil(F.log2(value.cast("double")) * 2 - 1e-9).cast("int") + 1
    within = F.when(value <= 0, F.lit(0)).when(value <= 1, F.lit(1)).otherwise(F.least(steps, F.lit(BUCKETS - 1)))
    return F.when(value.isNotNull(), within)


def upper_edge(bucket: int) -> float:
    """The largest value that bucket holds; infinite for the last."""
    return 0.0 if bucket == 0 else float("inf") if bucket == BUCKETS - 1 else exp2((bucket - 1) / 2)


def middle(bucket: int) -> float:
    """The value that stands for a bucket: the geometric mean of its edges."""
    if bucket == 0:
        return 0.0
    return sqrt(0.5) if bucket == 1 else exp2((bucket - 1) / 2 - 0.25)


def packed_counts(prefix: str, bucket: str) -> Column:
    """The aggregate column `{prefix}`, an array of narrow words: counts of the column `bucket` (null: not counted).

    Three to a long, 21 bits each, because what is added up for every sample should be little; `widened` makes of them what can be
    merged. Not a column a word: wide plans are slow to analyse. As text: one call to Java, not two hundred.
    """
    unit = f"shiftleft(1L, ({bucket} % {PER_NARROW}) * {NARROW_BITS})"
    sums = (f"sum(if({bucket} div {PER_NARROW} = {index}, {unit}, 0L))" for index in range(-(-BUCKETS // PER_NARROW)))
    return F.expr(f"array({', '.join(sums)}) AS {prefix}")


def widened(prefix: str) -> Column:
    """`packed_counts` as `summed` takes them: counters two to a long."""

    def count(bucket: int) -> str:
        return f"(shiftright({prefix}[{bucket // PER_NARROW}], {bucket % PER_NARROW * NARROW_BITS}) & {_NARROW}L)"

    words = (f"{count(bucket)} | shiftleft({count(bucket + 1)}, {BITS})" for bucket in range(0, BUCKETS, PER_WORD))
    return F.expr(f"array({', '.join(words)})")


def summed(prefix: str) -> Column:
    """The aggregate column `{prefix}` that merges packed counts."""
    return F.expr(f"array({', '.join(f'sum({prefix}[{index}])' for index in range(WORDS))}) AS {prefix}")


@dataclass(frozen=True, slots=True)
class Measure:
    """What to take percentiles of: the packed counts in the array column `prefix`, bounded by the column `highest`.

    `worse` counts observations that rank above every bucket (seconds of silence), which answer `worst`: columns or SQL, all of
    them. Answers are multiplied by `unit`.
    """

    prefix: str
    name: str
    highest: str
    worse: str
    worst: str
    unit: float = 1.0


def with_percentiles(rows: DataFrame, measures: list[Measure]) -> DataFrame:
    """Add `p50_{name}`, `p95_{name}`, `p99_{name}` of each measure by nearest rank; null where nothing was observed.

    In a Python worker, by the column: as Spark's own expressions over arrays it takes a fifth of a millisecond a row.
    """
    answers = F.arrow_udf(percentiles, returnType=_ANSWERS)  # type: ignore[attr-defined]
    found = {
        f"_{m.prefix}": answers(
            F.col(m.prefix),
            F.expr(f"cast({m.highest} AS double)"),
            F.expr(f"cast({m.worse} AS bigint)"),
            F.expr(f"cast({m.worst} AS double)"),
            F.lit(m.unit),
        )
        for m in measures
    }
    named = [F.col(f"_{m.prefix}.{_name(percent)}").alias(f"{_name(percent)}_{m.name}") for m in measures for percent in PERCENTS]
    return rows.withColumns(found).select("*", *named).drop(*found)


def percentiles(words: pa.Array, highest: pa.Array, worse: pa.Array, worst: pa.Array, unit: pa.Array) -> pa.Array:
    """PERCENTS of rows of packed counts, as structures, by nearest rank."""
    packed = words.flatten().to_numpy().reshape(-1, WORDS)
    counts = np.zeros((len(words), WORDS * PER_WORD), np.int64)
    there = words.is_valid().to_numpy(zero_copy_only=False)
    counts[there, 0::2], counts[there, 1::2] = packed & MASK, packed >> BITS
    below = counts.cumsum(axis=1)
    total = below[:, -1] + worse.to_numpy(zero_copy_only=False)
    at_most, above, times = (column.to_numpy(zero_copy_only=False).astype(float) for column in (highest, worst, unit))
    answers = []
    for percent in PERCENTS:
        place = (below < np.ceil(total * percent)[:, np.newaxis]).sum(axis=1)
        middles = np.fmin(_MIDDLES[np.minimum(place, BUCKETS - 1)] * times, at_most)
        found = np.where(place >= BUCKETS, above, np.where(place == BUCKETS - 1, at_most, middles))
        answers.append(pa.array(found, mask=(total <= 0) | np.isnan(found)))
    return pa.StructArray.from_arrays(answers, names=[_name(percent) for percent in PERCENTS])


_MIDDLES: Final = np.array([middle(bucket) for bucket in range(BUCKETS)])


def _name(percent: float) -> str:
    return f"p{round(percent * 100)}"


_ANSWERS: Final = StructType([StructField(_name(percent), DoubleType()) for percent in PERCENTS])
