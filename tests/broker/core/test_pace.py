"""Batches that take long become smaller, those that take little larger, and others say nothing."""

from __future__ import annotations

from broker.core import limits
from broker.core.pace import LEAST_BYTES, QUICK_S, SLOW_S, TURNS, Pace

MOST = limits.BATCH_TARGET_BYTES


def test_it_begins_at_the_most_and_slow_batches_halve_it_down_to_the_least() -> None:
    pace = Pace()
    assert pace.batch_bytes == MOST
    seen: list[int] = []
    while not seen or pace.batch_bytes != seen[-1]:
        seen.append(pace.batch_bytes)
        pace.took(pace.batch_bytes, 2 * SLOW_S)
    assert seen == [MOST >> n for n in range(len(seen))]
    assert seen[-1] == LEAST_BYTES


def test_quick_batches_double_it_up_to_the_most() -> None:
    pace = Pace()
    for _ in range(10):
        pace.took(MOST, 2 * SLOW_S)
    pace.took(LEAST_BYTES, QUICK_S / 2)
    assert pace.batch_bytes == 2 * LEAST_BYTES
    for _ in range(10):
        pace.took(MOST, QUICK_S / 2)
    assert pace.batch_bytes == MOST


def test_a_batch_that_is_small_for_another_reason_changes_nothing() -> None:
    """A single small message behind a slow disk says nothing of what a full batch takes, nor does a quick one."""
    pace = Pace()
    pace.took(MOST // 2 - 1, 10 * SLOW_S)
    assert pace.batch_bytes == MOST
    pace.took(MOST, 2 * SLOW_S)
    pace.took(MOST // 2 - 1, QUICK_S / 2)
    assert pace.batch_bytes == MOST // 2


def test_in_between_it_stays() -> None:
    pace = Pace()
    pace.took(MOST, 2 * SLOW_S)
    pace.took(MOST, (SLOW_S + QUICK_S) / 2)
    assert pace.batch_bytes == MOST // 2


def test_the_turns_of_a_busy_reactor_do_not_count() -> None:
    """Breaks when a broker that is busy with many producers makes its batches small, which makes it busier still."""
    pace = Pace()
    lag_s = SLOW_S
    pace.took(MOST, 0.9 * SLOW_S + TURNS * lag_s, lag_s)
    assert pace.batch_bytes == MOST
    pace.took(MOST, 0.9 * SLOW_S + TURNS * lag_s, lag_s / 2)
    assert pace.batch_bytes == MOST // 2
    pace.took(MOST, QUICK_S / 2 + TURNS * lag_s, lag_s)
    assert pace.batch_bytes == MOST
