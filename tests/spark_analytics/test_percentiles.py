"""Percentiles of many samples: windows as long as a queue's grain are taken as the histogram has them, and not added up."""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_analytics.transforms import lag

GRAIN_MS, WHOLE_GRAIN_MS, LONG_MS = 60_000, 20_000, 180_000
QUEUES = ((None, WHOLE_GRAIN_MS, 0), ("orders", GRAIN_MS, 1000), ("bills", GRAIN_MS, 2000))


@pytest.fixture(scope="module")
def histogram(spark: SparkSession) -> DataFrame:
    """Three minutes of two backups: in each grain lags of 10, 20 ... 100 ms for as long, and of single queues a second more."""
    rows = [
        {"backup": backup, "queue": queue, "start_ms": start_ms, "value_ms": 10.0 * step + more, "weight_ms": grain_ms // 10}
        for backup, (queue, grain_ms, more), step in product("bc", QUEUES, range(1, 11))
        for start_ms in range(0, LONG_MS, grain_ms)
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows))


def found(histogram: DataFrame, lengths: list[int], grain_ms: int | None, **which: Any) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    windows = [
        {"backup": backup, "queue": queue, "window_ms": length, "start_ms": start_ms, "total_ms": length + length // 10}
        for backup, (queue, _, _), length in product("bc", QUEUES, lengths)
        for start_ms in range(0, LONG_MS, length)
    ]
    frame = histogram.sparkSession.createDataFrame(pa.Table.from_pylist(windows))
    rows = lag.percentiles(histogram, frame, lengths, grain_ms=grain_ms, **which).collect()
    assert len({row[:4] for row in rows}) == len(rows), "a window is there once"
    return {tuple(row[name] for name in lag.WINDOW): tuple(row[f"p{percent}_ms"] for percent in lag.PERCENTS) for row in rows}


def test_a_queues_window_of_one_grain_has_the_rank_that_its_time_has(histogram: DataFrame) -> None:
    ranks = found(histogram, [GRAIN_MS, LONG_MS], GRAIN_MS)
    assert ranks["b", "orders", GRAIN_MS, 60_000] == (1060.0, None, None), "half of 66 s, of which 60 were heard"
    assert ranks["c", "bills", LONG_MS, 0] == (2060.0, None, None)


@pytest.mark.parametrize(
    "lengths, whole_log_only",
    [([GRAIN_MS, LONG_MS], []), ([GRAIN_MS], []), ([LONG_MS], []), ([GRAIN_MS, LONG_MS], [GRAIN_MS])],
    ids=["two-lengths", "the-grain-alone", "not-the-grain", "the-grain-for-the-whole-log"],
)
def test_the_ranks_are_those_of_windows_that_are_all_added_up(
    histogram: DataFrame, lengths: list[int], whole_log_only: list[int]
) -> None:
    added_up = found(histogram, lengths, None, whole_log_only=whole_log_only)
    assert added_up
    assert found(histogram, lengths, GRAIN_MS, whole_log_only=whole_log_only) == added_up
