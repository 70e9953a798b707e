"""Percentiles that can be added up: 44 buckets in steps of the square root of two, and one of them for exactly zero.

Bucket 0 holds zero; bucket 1 holds (0, 1]; bucket k holds (2^((k-2)/2), 2^((k-1)/2)]; bucket 43 holds all above 2^20.5. With
milliseconds that reaches 25 minutes, with records 1.5 million, with KiB 1.4 GiB; above that the observed maximum bounds the
answer.

Counters travel two to a long, 31 bits each (22 longs instead of 44 columns): a key may hold two thousand million samples, 68
years at one a second. While samples are counted, of a minute at the most, they are four to a long. Percentiles of any span come
from summed counters, never from averaged percentiles. The error of a percentile is at most one step (41 %) and about 8 %
on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp2, sqrt
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

BUCKETS: Final = 44
PER_WORD: Final = 2
BITS: Final = 31
WORDS: Final = -(-BUCKETS // PER_WORD)
MASK: Final = (1 << BITS) - 1
PER_NARROW: Final = 4
NARROW_BITS: Final = 15
_NARROW: Final = (1 << NARROW_BITS) - 1
PERCENTS: Final = (0.50, 0.95, 0.99)


def bucket_of(value: Column) -> Column:
    """The bucket of a value, as an int; nulls stay null."""
    steps = F.ceil(F.log2(value.cast("double")) * 2 - 1e-9).cast("int") + 1
    return F.when(value <= 0, F.lit(0)).when(value <= 1, F.lit(1)).otherwise(F.least(steps, F.lit(BUCKETS - 1)))


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

    Four to a long, 15 bits each, because what is added up for every sample should be little; `widened` makes of them what can be
    merged. Not a column a word: wide plans are slow to analyse. As text: one call to Java, not two hundred.
    """
    unit = f"shiftleft(1L, ({bucket} & {PER_NARROW - 1}) * {NARROW_BITS})"
    sums = (f"sum(if(shiftright({bucket}, 2) = {index}, {unit}, 0L))" for index in range(-(-BUCKETS // PER_NARROW)))
    return F.expr(f"array({', '.join(sums)}) AS {prefix}")


def widened(prefix: str) -> Column:
    """`packed_counts` as `summed` takes them: counters two to a long."""
    pairs = ((word, shift) for word in range(-(-BUCKETS // PER_NARROW)) for shift in (0, PER_WORD * NARROW_BITS))
    words = (
        f"(shiftright({prefix}[{word}], {shift}) & {_NARROW}L)"
        f" | shiftleft(shiftright({prefix}[{word}], {shift + NARROW_BITS}) & {_NARROW}L, {BITS})"
        for word, shift in pairs
    )
    return F.expr(f"array({', '.join(list(words)[:WORDS])})")


def summed(prefix: str) -> Column:
    """The aggregate column `{prefix}` that merges packed counts."""
    return F.expr(f"array({', '.join(f'sum({prefix}[{index}])' for index in range(WORDS))}) AS {prefix}")


def unpacked(words: str) -> str:
    """The counts of all buckets as one array, as SQL, from the array column `words`; empty for null."""
    return (
        f"coalesce(flatten(transform({words}, w -> array(w & {MASK}L, shiftright(w, {BITS})))), cast(array() AS array<bigint>))"
    )


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

    In stages, each a projection of its own: one expression for all of it would be repeated by the optimiser wherever it is
    used, which made a small summary take a minute.
    """
    for stage in (_counts, _total, _places):
        rows = rows.select("*", *(F.expr(stage(m)) for m in measures))
    answers = (_answer(m, percent) for m in measures for percent in PERCENTS)
    kinds = ("counts", "total", "places")
    return rows.select("*", *(F.expr(answer) for answer in answers)).drop(
        *(f"_{kind}_{m.prefix}" for m in measures for kind in kinds)
    )


def _counts(m: Measure) -> str:
    return f"{unpacked(m.prefix)} AS _counts_{m.prefix}"


def _total(m: Measure) -> str:
    return f"aggregate(_counts_{m.prefix}, 0L, (total, n) -> total + n) + {m.worse} AS _total_{m.prefix}"


def _places(m: Measure) -> str:
    """In which bucket each percentile's rank falls: how many buckets lie wholly below it."""
    begin = ", ".join(f"'{_name(percent)}', 0" for percent in PERCENTS)
    step = ", ".join(
        f"'{_name(percent)}', x.{_name(percent)} + if(x.seen + n < ceil(_total_{m.prefix} * {percent}D), 1, 0)"
        for percent in PERCENTS
    )
    return (
        f"aggregate(_counts_{m.prefix}, named_struct('seen', 0L, {begin}), (x, n) -> named_struct('seen', x.seen + n, {step}))"
        f" AS _places_{m.prefix}"
    )


def _answer(m: Measure, percent: float) -> str:
    at = f"_places_{m.prefix}.{_name(percent)}"
    middle_ = f"CASE {at} WHEN 0 THEN 0D WHEN 1 THEN sqrt(0.5D) ELSE pow(2D, ({at} - 1.5D) / 2) END * {m.unit}D"
    return (
        f"CASE WHEN _total_{m.prefix} <= 0 THEN NULL WHEN {at} >= size(_counts_{m.prefix}) THEN cast({m.worst} AS double) "
        f"WHEN {at} = {BUCKETS - 1} THEN cast({m.highest} AS double) ELSE least({middle_}, cast({m.highest} AS double)) END "
        f"AS {_name(percent)}_{m.name}"
    )


def _name(percent: float) -> str:
    return f"p{round(percent * 100)}"
