"""Lines that came twice count once, and only where they may have come twice are lines looked at one by one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_analytics import sources
from spark_analytics.jobs import evidence
from spark_analytics.schemas import LINE
from spark_analytics.transforms import columnar, combine, parse, repeats, told
from tests.spark_analytics.conftest import START_MS
from tests.spark_analytics.test_columnar import GRAINS, NOW_MS, OBJECTIVE_MS, record, rules

Records = list[dict[str, Any]]


def sample(number: int, **fields: Any) -> dict[str, Any]:
    """One a second. The last of each half minute is ahead of its time: it has the slot of the one before it."""
    second, ms = number % 60, 500
    if second in (29, 59):
        second, ms = second - 1, 900
    ts = f"2026-01-05T08:{number // 60:02d}:{second:02d}.{ms}Z"
    return record(number, ts=ts, backup="b:0", queue=None) | fields


def samples(first: int, last: int, **fields: Any) -> Records:
    return [sample(number, **fields) for number in range(first, last)]


def write(folder: Path, **files: Records) -> None:
    for name, records in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))


@dataclass(frozen=True, slots=True)
class Doubts:
    """Of whom, and in which minute after eight; `suspected` before their numbers were looked at. `files` are read again."""

    suspected: set[tuple[str, int]]
    doubted: set[tuple[str, int]]
    files: set[str]


def doubts(spark: SparkSession, folder: Path) -> Doubts:
    found = sources.lines_below(spark, str(folder)).looked_over(rules(numbers="prints")).cache()
    odd = told.tagged(parse.parse(columnar.handed_back(found).where("NOT counted"), now_ms=NOW_MS, schema=LINE))
    suspects = repeats.suspected(combine.combined(columnar.sums(found)), GRAINS)
    again = repeats.doubtful(found, suspects, told.usable(odd), GRAINS)
    suspected, doubted = (
        {(row["sender"], row["period"] - START_MS // 60_000) for row in frame.collect()} for frame in (suspects, again)
    )
    return Doubts(suspected, doubted, {Path(name).stem for name in repeats.files_with(found, again, GRAINS)})


def counted(spark: SparkSession, folder: Path) -> tuple[int, int]:
    """How many lines a summary counts, and how many it says have come again."""
    lines = sources.lines_below(spark, str(folder))
    span: dict[str, Any] = {"since_ms": None, "until_ms": None}
    found = evidence.from_lines(lines, GRAINS, now_ms=NOW_MS, objective_ms=OBJECTIVE_MS, small=True, **span)
    return sum(row["lines"] for row in found.presence.collect()), found.counters["repeated"]


def test_samples_that_share_a_slot_are_suspected_and_cleared_by_their_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever is a little early now and then has sent nothing twice: no file is read again for that."""
    write(tmp_path, one=samples(0, 90), other=samples(90, 180))
    found = doubts(spark, tmp_path)
    assert found == Doubts({("a:1", minute) for minute in range(3)}, set(), set())
    assert counted(spark, tmp_path) == (180, 0)


def test_a_number_that_is_there_twice_beside_one_that_is_missing_is_doubted(spark: SparkSession, tmp_path: Path) -> None:
    """They are as many as in a range: only the fingerprint differs. What other minutes hold, and other senders, stays clear."""
    numbers = [*range(70), 70, 70, *range(72, 180)]
    write(tmp_path, a=[sample(number) for number in numbers], b=samples(0, 180, sender="b:0", primary="b:0", backup="a:1"))
    found = doubts(spark, tmp_path)
    assert found.doubted == {("a:1", 1)}
    assert found.suspected > found.doubted
    assert counted(spark, tmp_path) == (359, 1)


def test_only_files_that_reach_into_a_doubtful_time_are_read_again(spark: SparkSession, tmp_path: Path) -> None:
    """One ends in it, one lies within, one begins in it, and one is a copy from it; the others hold other minutes."""
    parts = {"before": samples(0, 60), "ends": samples(60, 130), "within": samples(130, 150), "begins": samples(150, 240)}
    write(tmp_path, **parts, after=samples(240, 300), copy=[sample(140)])
    found = doubts(spark, tmp_path)
    assert (found.doubted, found.files) == ({("a:1", 2)}, {"ends", "within", "begins", "copy"})
    assert counted(spark, tmp_path) == (300, 1)


@pytest.mark.parametrize("few_names", [True, False])
def test_a_folder_twice_over_is_a_folder_once(
    spark: SparkSession, tmp_path: Path, few_names: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the files are named to Spark or are too many for that."""
    monkeypatch.setattr(sources, "_MOST_NAMED", 1000 if few_names else 1)
    write(tmp_path, a=samples(0, 100), b=samples(100, 200), c=samples(0, 100)[::-1], d=samples(100, 200))
    assert counted(spark, tmp_path) == (200, 200)


def test_a_sample_that_came_again_and_is_written_another_way_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    """The pass by the column hands it back: the numbers that it has seen are a range without it, and prove nothing."""
    again = {"ts": "2026-01-05T09:01:05.500+01:00"}
    write(tmp_path, a=samples(0, 180), b=[sample(65) | again])
    found = doubts(spark, tmp_path)
    assert found.doubted == {("a:1", 1)}
    assert counted(spark, tmp_path) == (180, 1)


def test_what_stands_in_a_file_that_is_all_odd_is_read_again_too(spark: SparkSession, tmp_path: Path) -> None:
    odd = [one | {"ts": one["ts"].replace("Z", "+00:00")} for one in samples(0, 60)]
    write(tmp_path, plain=samples(60, 120), odd=odd, twice=odd[10:20])
    assert counted(spark, tmp_path) == (120, 10)
