"""Percentiles from buckets, against plain sorting."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from spark_analytics.transforms import buckets


@given(st.integers(0, buckets.BUCKETS - 1))
def test_the_value_that_stands_for_a_bucket_lies_in_it(bucket: int) -> None:
    lower = buckets.upper_edge(bucket - 1) if bucket else 0.0
    assert lower <= buckets.middle(bucket) <= buckets.upper_edge(bucket)


def test_zero_has_a_bucket_of_its_own_and_edges_belong_to_the_bucket_below(spark: SparkSession) -> None:
    values = [0.0, 0.2, 1.0, 1.01, math.sqrt(2), 2.0, 2.1, 2.0**20, 2.0**20.4, 1e12]
    frame = spark.createDataFrame([Row(i=i, x=x) for i, x in enumerate(values)])
    found = [row["b"] for row in frame.select("i", buckets.bucket_of(F.col("x")).alias("b")).orderBy("i").collect()]
    assert found == [0, 1, 1, 2, 2, 3, 4, 41, 42, 43]
    assert all(x <= buckets.upper_edge(b) for x, b in zip(values, found, strict=True))


def test_percentiles_are_within_one_step_of_the_sorted_truth_and_silence_ranks_above_everything(spark: SparkSession) -> None:
    chance = random.Random(5)
    groups = {
        "spread": [math.exp(chance.gauss(3, 2)) for _ in range(800)],
        "mostly zero": [0.0] * 97 + [50.0] * 3,
        "one": [7.0],
        "beyond the last bucket": [3e6] * 10,
    }
    rows = [Row(group=name, x=float(x), silent=0) for name, values in groups.items() for x in values]
    rows += [Row(group="silent", x=5.0, silent=0)] * 90 + [Row(group="silent", x=None, silent=1)] * 10
    frame = spark.createDataFrame(rows).withColumn("bucket", buckets.bucket_of(F.col("x")))
    sums = frame.groupBy("group").agg(
        F.max("x").alias("highest"), F.sum("silent").alias("silent"), buckets.packed_counts("m", "bucket")
    )
    sums = sums.withColumn("m", buckets.widened("m"))
    merged = sums.groupBy("group").agg(F.max("highest").alias("highest"), F.sum("silent").alias("silent"), buckets.summed("m"))
    measure = buckets.Measure("m", "x", highest="highest", worse="silent", worst="99999D")
    found = {row["group"]: row for row in buckets.with_percentiles(merged, [measure]).collect()}
    for name, values in groups.items():
        for percent in buckets.PERCENTS:
            truth = sorted(values)[math.ceil(percent * len(values)) - 1]
            answer = found[name][f"p{round(percent * 100)}_x"]
            assert answer == truth == 0 or truth / math.sqrt(2) <= answer <= truth * math.sqrt(2), (name, percent)
    assert found["silent"]["p50_x"] < 6
    assert found["silent"]["p95_x"] == found["silent"]["p99_x"] == 99999, (
        "a tenth of silence is more than a hundredth: p99 is the silence"
    )
