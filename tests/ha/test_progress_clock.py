"""How old the oldest batch is that a backup has not acknowledged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ha.progress_clock import ProgressClock


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60), st.integers(1, 60))
def test_the_time_of_a_recent_batch_is_exact(steps: list[float], index: int) -> None:
    """Else the lag in time would be wrong while all is well."""
    clock, now, times = ProgressClock(), 0.0, {}
    for number, step in enumerate(steps, 1):
        now += step
        times[number] = now
        clock.proposed(number, now)
    if index in times:
        assert clock.since(index) == times[index]


def test_of_batches_long_ago_the_time_is_known_to_a_second() -> None:
    """A backup that has been away for long: its lag goes on growing, and memory does not."""
    clock = ProgressClock()
    for number in range(1, 20_001):
        clock.proposed(number, number * 0.01)
    found = clock.since(500)
    assert found is not None
    assert 4.0 <= found <= 5.0
    assert clock.since(20_000) == 200.0


def test_before_anything_was_proposed_there_is_no_age() -> None:
    """A new primary knows nothing of its predecessor's times: at least since its own first batch."""
    clock = ProgressClock()
    assert clock.since(1) is None
    clock.proposed(50, 7.0)
    assert clock.since(10) == 7.0


def test_batches_that_are_proposed_anew_have_their_new_time() -> None:
    """After a truncation the same index is another batch."""
    clock = ProgressClock()
    for number in range(1, 6):
        clock.proposed(number, float(number))
    clock.proposed(3, 100.0)
    assert clock.since(3) == 100.0
    assert clock.since(2) == 2.0
