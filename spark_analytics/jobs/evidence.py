"""What a summary is made of, wherever it comes from: lines that are read now, or (`kept`) the folder that a stream has written.

Either way it is the same few frames with the same columns, so that everything after this is one code. From lines: one pass adds
up what is plain and hands back the rest, which is little: events, rosters, and lines to be judged (`columnar`); lines that came
twice cost a second look at the files in which they did, and only then (`repeats`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_analytics.schemas import LINE, LOOK
from spark_analytics.sources import Lines
from spark_analytics.transforms import columnar, combine, parse, partials, quality, repeats, told
from spark_analytics.transforms.partials import Grains

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


def add_up(lines: Lines, typed: Typed, rules: columnar.Rules, *, small: bool) -> Sums:
    """Lines, added up. `typed` types `schemas.LINES` by a schema and tags them, by the same rules."""

    def told_of(lines: DataFrame) -> DataFrame:
        return told.told(lines, rules.grains, objective_ms=rules.objective_ms)

    keep = settled if small else DataFrame.cache
    found = keep(lines.looked_over(rules))
    back = settled(typed(columnar.handed_back(found), LINE))
    kept, rest = told.usable(back), back.where("problem IS NOT NULL OR NOT inside")
    few = settled(kept.dropDuplicates(told.LINE))
    repeated = kept.count() - few.count()
    if repeated or not back.where("NOT counted").isEmpty():
        every = columnar.sums(found, few=False).unionByName(told_of(few.unionByName(rest)))
    else:
        every = columnar.sums(found)
    rows = keep(combine.combined(every))
    cached = [] if small else [found, rows]
    suspects = settled(repeats.suspected(rows, rules.grains))
    odd = kept.where("NOT counted")
    again = suspects if suspects.isEmpty() else settled(repeats.doubtful(found, suspects, odd, rules.grains))
    if not again.isEmpty():
        files = repeats.files_with(found, again, rules.grains) | {row["file"] for row in odd.select("file").distinct().collect()}
        before = rows
        anew = settled(told_of(repeats.once(typed(lines.of(files), LOOK), again, rules.grains)))
        rows = repeats.without(before, again, rules.grains).unionByName(anew)
        repeated += _lines(before) - _lines(rows)
    return Sums(rows, told.events(few), told.rosters(few), quality.quarantine(rest), repeated, cached)


def settled(frame: DataFrame) -> DataFrame:
    """The frame's rows, worked out now and without the plan that made them: analysing long plans is what small jobs spend their
    time on.
    """
    return frame.localCheckpoint()


def _lines(rows: DataFrame) -> int:
    return int(rows.agg(F.coalesce(F.sum("lines"), F.lit(0)).alias("lines")).collect()[0]["lines"])


def from_lines(
    lines: Lines, grains: Grains, *, now_ms: int, objective_ms: float, since_ms: int | None, until_ms: int | None, small: bool
) -> Evidence:
    """Add up lines. `small`: worth keeping in memory, rather than to be read again."""

    def typed(text: DataFrame, schema: StructType) -> DataFrame:
        return told.tagged(parse.parse(text, now_ms=now_ms, schema=schema), since_ms=since_ms, until_ms=until_ms)

    rules = columnar.Rules(grains, objective_ms, parse.future_ms(now_ms), since_ms, until_ms, numbers="prints")
    sums = add_up(lines, typed, rules, small=small)
    presence = settled(told.presence(sums.rows, grains))
    lag = told.lag(sums.rows)

    def lag_of(own: Own, reigns: DataFrame, _lengths: Sequence[int], _whole_log_only: Sequence[int]) -> DataFrame:
        return partials.counted(own(lag), reigns, grains)

    return Evidence(
        source="telemetry",
        grains=grains,
        objective_ms=objective_ms,
        presence=presence,
        views=told.views(sums.rows),
        events=sums.events,
        rosters=sums.rosters,
        quarantine=sums.quarantine,
        lag_of=lag_of,
        counters={"repeated": sums.repeated, "late": None},
        cached=sums.cached,
    )
