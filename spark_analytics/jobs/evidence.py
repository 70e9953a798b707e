"""What a summary is made of, wherever it comes from: lines that are read now, or (`kept`) the folder that a stream has written.

Either way it is the same few frames with the same columns, so that everything after this is one code. From lines: one pass adds
up the samples and keeps the events and rosters, which are few, as they are (`told.looked_over`); lines that came twice cost a
second pass over the minutes in which they did, and only then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_analytics.schemas import LINE, LOOK
from spark_analytics.transforms import parse, partials, quality, told
from spark_analytics.transforms.told import Grains

Own = Callable[[DataFrame], DataFrame]
Typed = Callable[[DataFrame, StructType], DataFrame]
LagOf = Callable[[Own, DataFrame, Sequence[int], Sequence[int]], DataFrame]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Frames of `told`'s functions, and what is known besides.

    `lag_of(own, reigns, lengths, whole_log_only)` gives `partials.counted` rows, of the frames that `own` passes, that are fine
    enough for windows of those lengths.
    """

    source: str
    grains: Grains
    objective_ms: float
    presence: DataFrame
    views: DataFrame
    events: DataFrame
    rosters: DataFrame
    quarantine: DataFrame
    lag_of: LagOf
    counters: dict[str, Any] = field(default_factory=dict)
    cached: list[DataFrame] = field(default_factory=list)

    def release(self) -> None:
        """Let go of what is cached."""
        for frame in self.cached:
            frame.unpersist()


@dataclass(frozen=True, slots=True)
class Sums:
    """What lines come to: `told` rows with each line once, events, rosters, and how many lines were repeats."""

    rows: DataFrame
    events: DataFrame
    rosters: DataFrame
    quarantine: DataFrame
    repeated: int
    cached: list[DataFrame]


def add_up(text: DataFrame, typed: Typed, grains: Grains, *, objective_ms: float, small: bool) -> Sums:
    """`schemas.LINES`, added up. `typed` types lines by a schema and tags them."""
    lines = typed(text, LOOK)
    look = (settled if small else DataFrame.cache)(told.looked_over(lines, grains, objective_ms=objective_ms))
    few = settled(typed(told.whole_lines(look), LINE))
    kept, odd = told.usable(few), few.where("problem IS NOT NULL")
    single = settled(kept.dropDuplicates(told.LINE))
    repeated = kept.count() - single.count()
    samples = look.where("line IS NULL").drop("line")
    again = settled(told.repeats(samples))
    if not again.isEmpty():
        before = samples
        anew = settled(told.told(told.once(lines, again), grains, objective_ms=objective_ms))
        samples = told.without(before, again).unionByName(anew)
        repeated += _lines(before) - _lines(samples)
    rows = samples.unionByName(told.told(single.unionByName(odd), grains, objective_ms=objective_ms))
    rows = settled(rows) if small else rows
    events, rosters, cached = told.events(single), told.rosters(single), [] if small else [look]
    return Sums(rows, events, rosters, quality.quarantine(odd), repeated, cached)


def settled(frame: DataFrame) -> DataFrame:
    """The frame's rows, worked out now and without the plan that made them: analysing long plans is what small jobs spend their
    time on.
    """
    return frame.localCheckpoint()


def _of_bad_files(lines: DataFrame, presence: DataFrame) -> DataFrame:
    """The lines of some of the files that hold bad ones, so that a few examples do not cost another look at everything."""
    found = presence.where("problem IS NOT NULL").select("bad_file").distinct().collect()
    return lines.where(F.xxhash64("file").isin([row["bad_file"] for row in found]))


def _lines(rows: DataFrame) -> int:
    return int(rows.agg(F.coalesce(F.sum("lines"), F.lit(0)).alias("lines")).collect()[0]["lines"])


def from_lines(
    lines: DataFrame, grains: Grains, *, now_ms: int, objective_ms: float, since_ms: int | None, until_ms: int | None, small: bool
) -> Evidence:
    """Add up `schemas.LINES`. `small`: worth keeping in memory, rather than to be read again."""

    def typed(text: DataFrame, schema: StructType) -> DataFrame:
        return told.tagged(parse.parse(text, now_ms=now_ms, schema=schema), since_ms=since_ms, until_ms=until_ms)

    sums = add_up(lines, typed, grains, objective_ms=objective_ms, small=small)
    presence = settled(told.presence(sums.rows))
    lag = told.lag(sums.rows)

    def lag_of(own: Own, reigns: DataFrame, _lengths: Sequence[int], _whole_log_only: Sequence[int]) -> DataFrame:
        return partials.counted(own(lag), reigns)

    return Evidence(
        source="telemetry",
        grains=grains,
        objective_ms=objective_ms,
        presence=presence,
        views=told.views(sums.rows),
        events=sums.events,
        rosters=sums.rosters,
        quarantine=quality.quarantine(typed(_of_bad_files(lines, presence), LOOK)).unionByName(sums.quarantine),
        lag_of=lag_of,
        counters={"repeated": sums.repeated, "late": None},
        cached=sums.cached,
    )
