"""Ranges hold what sets hold."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark_analytics import ranges
from spark_analytics.ranges import Ranges

RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda run: [run[0], run[0] + run[1]]), max_size=8)


def members(some: Ranges) -> set[int]:
    return {number for first, last in some for number in range(first, last + 1)}


def is_plain(some: Ranges) -> bool:
    """As few ranges as can be, in order."""
    return all(left[1] + 1 < right[0] for left, right in pairwise(some))


@given(RUNS, RUNS)
def test_ranges_hold_what_sets_hold(one: Ranges, other: Ranges) -> None:
    first, second = ranges.united(one), ranges.united(other)
    both = ranges.united(first, second)
    assert members(first) == members(one)
    assert members(both) == members(one) | members(other)
    assert is_plain(both)
    assert members(ranges.common(first, second)) == members(one) & members(other)


@given(st.integers(0, 2**40), st.sets(st.integers(0, 63)))
def test_the_bits_of_a_long_are_the_numbers_that_they_stand_for(first: int, numbers: set[int]) -> None:
    unsigned = sum(1 << number for number in numbers)
    found = ranges.of_bits(first, unsigned - (1 << 64 if 63 in numbers else 0))
    assert members(found) == {first + number for number in numbers}
    assert is_plain(found)


def test_endless_holes_are_bounded_by_taking_in_the_oldest_gaps() -> None:
    many = [[10 * i, 10 * i + 1] for i in range(250)]
    kept = ranges.capped(many, 200)
    assert len(kept) == 200
    assert kept[0] == [0, many[50][1]]
    assert kept[1:] == many[51:]
    assert ranges.capped(kept, 200) == kept
