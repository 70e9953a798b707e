"""Ranges hold what sets hold."""

from __future__ import annotations

from collections import Counter
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
    assert ranges.size(both) == len(members(both))
    assert members(ranges.common(first, second)) == members(one) & members(other)
    assert members(ranges.without(first, second)) == members(one) - members(other)


@given(RUNS)
def test_what_is_in_several_runs_is_doubled(runs: Ranges) -> None:
    times = Counter(number for run in runs for number in members([run]))
    found = ranges.doubled(runs)
    assert members(found) == {number for number, count in times.items() if count > 1}
    assert is_plain(found)


@given(RUNS, st.integers(0, 60), st.integers(0, 9))
def test_what_reaches_is_what_has_numbers_in_common(runs: Ranges, first: int, more: int) -> None:
    found = ranges.reaching(runs, first, first + more)
    assert found == [run for run in runs if members([run]) & members([[first, first + more]])]


def test_endless_holes_are_bounded_by_taking_in_the_oldest_gaps() -> None:
    many = [[10 * i, 10 * i + 1] for i in range(250)]
    kept = ranges.capped(many, 200)
    assert len(kept) == 200
    assert kept[0] == [0, many[50][1]]
    assert kept[1:] == many[51:]
    assert ranges.capped(kept, 200) == kept
