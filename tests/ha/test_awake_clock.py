"""Time that others may be blamed for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from ha.awake_clock import AwakeClock


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    """Breaks when a process that wakes up late takes everybody else for silent."""
    clock = Clock()
    awake = AwakeClock(clock.seconds, 0.5)
    clock.advance(0.25)
    assert awake.seconds() == 0.25
    clock.advance(60)
    assert awake.seconds() == 0.75
    assert awake.seconds() == 0.75
    clock.advance(0.5)
    assert awake.seconds() == 1.25


@given(st.lists(st.floats(0, 10)))
def test_it_never_goes_back_and_never_faster_than_time(steps: list[float]) -> None:
    clock = Clock()
    awake = AwakeClock(clock.seconds, 1.0)
    told = [(clock.seconds(), awake.seconds())]
    for step in steps:
        clock.advance(step)
        told.append((clock.seconds(), awake.seconds()))
    for (before_s, then_s), (now_s, told_s) in pairwise(told):
        assert 0 <= told_s - then_s <= min(now_s - before_s, 1.0) + 1e-9
