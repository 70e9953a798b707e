"""Gaps and latencies."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.verify.core.measures import MAX_GAPS, Gaps, Histogram, Latency, longest_gap_s


def test_the_longest_gap_that_touches_the_span_counts_whole() -> None:
    gaps = Gaps()
    for now_s in (0.0, 5.0, 5.001, 6.0, 6.5):
        gaps.event(now_s)
    assert gaps.all() == [(0.0, 5.0), (5.001, 6.0), (6.0, 6.5)], "and the millisecond is forgotten"
    assert longest_gap_s(gaps.all()) == 5.0
    assert longest_gap_s(gaps.all(), 5.5, 7.0) == pytest.approx(0.999)
    assert longest_gap_s(gaps.all(), 4.9, 7.0) == pytest.approx(5.0)
    assert longest_gap_s(gaps.all(), 7.0, 8.0) == 0.0


def test_of_too_many_gaps_the_longest_are_kept_and_not_the_latest() -> None:
    gaps, now_s = Gaps(), 0.0
    gaps.event(now_s)
    for length_s in (1.0,) * MAX_GAPS + (9.0, 0.1):
        now_s += length_s
        gaps.event(now_s)
    lengths = sorted(end - begin for begin, end in gaps.all())
    assert lengths == pytest.approx([1.0] * (MAX_GAPS - 1) + [9.0])


def test_time_in_which_nothing_was_waited_for_is_no_gap() -> None:
    gaps = Gaps()
    gaps.wait(0.0)
    gaps.wait(0.9)
    gaps.event(1.0)
    gaps.rest()
    gaps.wait(9.0)
    gaps.event(9.5)
    assert gaps.all() == [(0.0, 1.0), (9.0, 9.5)]


def test_a_gap_that_lasts_until_the_end_counts_and_the_end_without_one_does_not() -> None:
    gaps = Gaps()
    gaps.end(1.0)
    gaps.wait(5.0)
    gaps.end(8.0)
    gaps.end(9.0)
    assert gaps.all() == [(5.0, 8.0)]


@given(st.lists(st.floats(1e-6, 1000), min_size=1), st.integers(1, 100))
def test_a_percentile_is_right_to_within_a_sixteenth(times_s: list[float], percent: int) -> None:
    histogram = Histogram()
    for time_s in times_s:
        histogram.add(time_s)
    true_s = sorted(times_s)[math.ceil(len(times_s) * percent / 100) - 1]
    assert true_s - 2e-6 <= histogram.percentile_s(percent) <= true_s * 17 / 16 + 2e-6


def test_two_clients_latencies_are_those_of_both() -> None:
    first, second = Histogram(), Histogram()
    for _ in range(98):
        first.add(0.001)
    second.add(1.0)
    second.add(1.0)
    first.merge(second)
    latency = Latency.of(first)
    assert latency.p50_s == pytest.approx(0.001, rel=0.07)
    assert latency.p99_s == pytest.approx(1.0, rel=0.07)


def test_nothing_took_no_time() -> None:
    assert Latency.of(Histogram()) == Latency(0.0, 0.0)
