"""One micro-batch of a stream, added up: each of its lines once, whatever came twice.

The life of a batch: one pass over its lines adds up what is plain, hands back the rest, which is little, and tells the numbers of
each sender's lines in each file as runs. If no number is in two runs or was there before, that was all. Else the *times* of the
senders in which such numbers lie are thrown away and made anew: the files that have lines of them are passed over once more, now
without what is counted elsewhere (`Numbers.skips`), and what stands in one file twice is handed back and made single. So what
comes again costs as much as a second pass over the files in which it does.

Which lines count is decided by their numbers alone, here in the driver: the first file of a batch has a line, the others do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark_analytics import ranges, tail
from spark_analytics.jobs.evidence import settled
from spark_analytics.ranges import Ranges
from spark_analytics.schemas import LINE, LINES
from spark_analytics.store import MAX_RANGES, names, names_of
from spark_analytics.transforms import columnar, parse, quality, repeats, runs, told
from spark_analytics.transforms.partials import Grains

Seen = dict[str, Ranges]
"""By `store.names` of cluster and sender, the numbers of the lines that have been counted."""


@dataclass(frozen=True, slots=True)
class Added:
    """A batch, added up: `told` rows and who wrote when, by backup; lines among which are those to be kept whole (`few`), and
    those kept aside, None where there are none; hashes of its files' names, how many lines came again, and what is `seen` now.
    """

    rows: DataFrame
    presence: list[Row]
    few: DataFrame
    quarantine: DataFrame | None
    files: set[int]
    repeated: int
    seen: Seen


def added(batch: DataFrame, seen: Seen, rules: columnar.Rules, *, now_ms: int) -> Added:
    """Add up a batch of `schemas.LINES`, or of what `tail` has found in such."""
    work = _Batch(batch, rules, now_ms)
    found = settled(columnar.looked_over(batch, rules) if work.is_text else batch)
    files, odd_lines, numbers = _noted(found)
    few = settled(work.typed(columnar.handed_back(found)))
    rows, quarantine = columnar.sums(found), None
    if odd_lines:
        odd = few.where("NOT counted")
        quarantine = quality.quarantine(odd)
        numbers.add(runs.told(odd.where("problem IS NULL")).collect())
        rows = rows.unionByName(settled(work.told(odd)))
    presence = _presence(rows, rules.grains)
    lines = _lines(presence)
    again = numbers.again(seen)
    if again:
        doubtful = numbers.doubtful(again, presence, rules.grains)
        rows, few = work.looked_at_again(found, rows, few, doubtful, numbers.skips(again, seen))
        presence = _presence(rows, rules.grains)
    return Added(rows, presence, few, quarantine, files, lines - _lines(presence), numbers.joined(seen))


def _noted(found: DataFrame) -> tuple[set[int], int, Numbers]:
    """The hashes of the files that were met, how many lines were handed back uncounted, and the numbers of the others."""
    rows = found.where("file IS NOT NULL AND value IS NULL")
    noted = rows.select("cluster", "sender", "file", "runs", "lines", F.xxhash64("file").alias("hash")).collect()
    numbers = Numbers()
    numbers.add(row for row in noted if row["runs"])
    return {row["hash"] for row in noted}, sum(row["lines"] or 0 for row in noted), numbers


def _presence(rows: DataFrame, grains: Grains) -> list[Row]:
    """`told.presence` by backup, with `heard_ms`: when the primary last heard it."""
    col = F.col
    heard = F.max(F.when(col("mine") & col("queue").isNull(), col("last_heard_ms"))).alias("heard_ms")
    return told.presence(rows, grains, by=("backup",), besides=(heard,)).collect()


def _lines(presence: Iterable[Row]) -> int:
    return sum(row["lines"] for row in presence)


# -- which lines count


@dataclass(frozen=True, slots=True)
class Doubtful:
    """What is to be made anew: senders' times as `repeats.TIMES`, and the files that have lines of them."""

    times: list[tuple[str, str, str, int | None]]
    files: list[str]


@dataclass(slots=True)
class Numbers:
    """The numbers of a batch's lines by sender and file, as runs."""

    of: dict[str, dict[str, Ranges]] = field(default_factory=dict)

    def add(self, rows: Iterable[Any]) -> None:
        """Add rows of `runs.TOLD`."""
        for row in rows:
            told_now = self.of.setdefault(names(row["cluster"], row["sender"]), {}).setdefault(row["file"], [])
            ends = iter(row["runs"])
            told_now += ([first, last] for first, last in zip(ends, ends, strict=True))

    def again(self, seen: Seen) -> Seen:
        """Those that came more than once, in this batch or before; senders of which there are some."""
        found = {}
        for sender, by_file in self.of.items():
            its = [run for file in by_file.values() for run in file]
            known = ranges.common(seen.get(sender, []), ranges.united(its))
            if more := ranges.united(ranges.doubled(its), known):
                found[sender] = more
        return found

    def joined(self, seen: Seen) -> Seen:
        """What has been seen with this batch."""
        its = {key: ranges.united(seen.get(key, []), *by_file.values()) for key, by_file in self.of.items()}
        return seen | {key: ranges.capped(numbers, MAX_RANGES) for key, numbers in its.items()}

    def doubtful(self, again: Seen, presence: Iterable[Any], grains: Grains) -> Doubtful:
        """What those numbers put into doubt, by rows of `told.presence` with all lines of the batch."""
        times, files = set(), set()
        for row in presence:
            sender = () if row["problem"] else (row["cluster"], row["sender"])
            span = row["first_seq"], row["last_seq"]
            if not sender or not ranges.reaching(again.get(names(*sender), []), *span):
                continue
            period = row["start_ms"] // told.period_ms(grains) if row["inside"] else None
            times.add((*sender, row["kind"], period))
            its = self.of[names(*sender)].items()
            files |= {file for file, numbers in its if file not in files and ranges.reaching(numbers, *span)}
        return Doubtful(list(times), sorted(files))

    def skips(self, again: Seen, seen: Seen) -> dict[str, list[runs.Skip]]:
        """What the files are to leave out, for each number that came again to count once in all."""
        found: dict[str, list[runs.Skip]] = {}
        for sender, numbers in again.items():
            taken = ranges.common(numbers, seen.get(sender, []))
            for file in sorted(self.of[sender]):
                its = ranges.common(ranges.united(self.of[sender][file]), numbers)
                if its:
                    twice = ranges.without(ranges.doubled(self.of[sender][file]), taken)
                    cluster, name = names_of(sender)
                    found.setdefault(file, []).append(runs.Skip(cluster, name, ranges.common(its, taken), twice))
                    taken = ranges.united(taken, its)
        return found


# -- looking again


@dataclass(frozen=True, slots=True)
class _Batch:
    batch: DataFrame
    rules: columnar.Rules
    now_ms: int

    @property
    def is_text(self) -> bool:
        """Whether these are lines, and not yet what was found in them."""
        return self.batch.columns == LINES.names

    def typed(self, lines: DataFrame) -> DataFrame:
        """`schemas.LINES`, typed and tagged."""
        return told.tagged(parse.parse(lines, now_ms=self.now_ms, schema=LINE), since_ms=self.rules.since_ms)

    def told(self, lines: DataFrame) -> DataFrame:
        """Typed lines, added up by Spark's expressions."""
        return told.told(lines, self.rules.grains, objective_ms=self.rules.objective_ms)

    def looked_at_again(
        self, found: DataFrame, rows: DataFrame, few: DataFrame, doubtful: Doubtful, skips: Mapping[str, list[runs.Skip]]
    ) -> tuple[DataFrame, DataFrame]:
        """Rows and few lines with what was doubtful made anew."""
        rules, grains = replace(self.rules, skips=skips), self.rules.grains
        if self.is_text:
            anew = columnar.looked_over(self.batch.where(F.col("file").isin(*doubtful.files)), rules)
        else:
            anew = tail.looked_over_again(found, doubtful.files, rules)
        anew = settled(anew)
        back = settled(self.typed(columnar.handed_back(anew)))
        single = _single(back.where("NOT counted AND problem IS NULL"), skips)
        kept = back.where("counted").unionByName(single)
        sums = columnar.sums(anew).unionByName(self.told(single))
        times = _local(found.sparkSession, doubtful.times, repeats.TIMES)
        rows = repeats.without(rows, times, grains).unionByName(repeats.within(sums, times, grains))
        kept = repeats.within(kept, times, grains, moment="ts_ms")
        few = repeats.without(few, times, grains, moment="ts_ms").unionByName(kept)
        return settled(rows), few


def _single(lines: DataFrame, skips: Mapping[str, list[runs.Skip]]) -> DataFrame:
    """Lines that were handed back, each once, without those that are counted elsewhere."""
    every = ((file, skip) for file, its in skips.items() for skip in its)
    left_out = [(file, skip.cluster, skip.sender, *numbers) for file, skip in every for numbers in skip.counted]
    schema = "of_file string, of_cluster string, of_sender string, low long, high long"
    others = _local(lines.sparkSession, left_out, schema)
    same = [F.col(name) == F.col(f"of_{name}") for name in ("file", "cluster", "sender")]
    its = lines.join(others, [*same, F.col("seq").between(F.col("low"), F.col("high"))], "left_anti")
    return its.dropDuplicates(told.LINE)


def _local(spark: SparkSession, rows: list[Any], schema: str) -> DataFrame:
    """Rows that go with the plan: as an Arrow table they need no job to be brought to where they are joined."""
    fields = [part.split() for part in schema.split(", ")]
    types = {"string": pa.string(), "long": pa.int64()}
    columns = list(zip(*rows, strict=True)) or [()] * len(fields)
    arrays = [pa.array(column, types[kind]) for column, (_, kind) in zip(columns, fields, strict=True)]
    return F.broadcast(spark.createDataFrame(pa.table(arrays, [name for name, _ in fields])))
