"""A bag of numbers is known to be a range by how many they are and by their fingerprint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_analytics.transforms import fingerprint

STAMP = 1_767_600_000_000_000


@pytest.mark.parametrize("first, count", [(0, 1), (0, 1000), (STAMP, 70_000), ((1 << 63) - 2, 1)])
def test_the_hash_is_the_one_that_spark_computes(spark: SparkSession, first: int, count: int) -> None:
    mark = F.sum(F.xxhash64("id").bitwiseAND(F.lit((1 << 40) - 1)))
    found = spark.range(first, first + count).agg(mark.alias("found")).collect()[0]["found"]
    assert found == fingerprint.of_range(first, first + count - 1)


@given(first=st.integers(0, 1 << 60), count=st.integers(2, 300), data=st.data())
def test_numbers_that_are_there_twice_in_place_of_others_have_another_fingerprint(
    first: int, count: int, data: st.DataObject
) -> None:
    numbers = list(range(first, first + count))
    missing = data.draw(st.sets(st.sampled_from(numbers), min_size=1, max_size=count - 1))
    there = [number for number in numbers if number not in missing]
    twice = [data.draw(st.sampled_from(there)) for _ in missing]
    marks = [fingerprint.of_range(number, number) for number in (*there, *twice)]
    assert len(marks) == count
    assert sum(marks) != fingerprint.of_range(first, first + count - 1)


def test_the_fingerprints_of_two_ranges_that_touch_add_up_to_that_of_both() -> None:
    assert fingerprint.of_range(5, 9) + fingerprint.of_range(10, 4000) == fingerprint.of_range(5, 4000)
