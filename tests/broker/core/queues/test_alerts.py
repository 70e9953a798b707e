"""Thresholds of queues."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.queues.alerts import COUNT, SIZE, fault_of, thresholds_of


def test_an_alert_is_raised_at_the_upper_threshold_and_over_below_the_lower_one() -> None:
    found = thresholds_of(
        {"qpid.alert_count": 10, "qpid.alert_count_down": 4, "qpid.alert_size_up": 100, "qpid.alert_repeat_gap": 9}
    )
    assert found is not None
    assert (found.of[COUNT], found.of[SIZE], found.gap_s) == ((10, 4), (100, 50), 9)
    assert [found.crossed((), depth, 99) for depth in (0, 9, 10, 11)] == [[], [], [COUNT], [COUNT]]
    assert [found.crossed({COUNT}, depth, 0) for depth in (11, 4, 3)] == [[], [], [COUNT]]
    assert found.crossed((), 10, 100) == found.crossed({COUNT, SIZE}, 0, 0) == [COUNT, SIZE]


@pytest.mark.parametrize("asked", [{}, {"qpid.alert_count_up": 0}, {"qpid.alert_repeat_gap": 5}])
def test_without_an_upper_threshold_there_is_none(asked: dict[str, Any]) -> None:
    assert thresholds_of(asked) is None


@pytest.mark.parametrize(
    "arguments, fault",
    [
        ({}, ""),
        ({"qpid.alert_size": 9, "qpid.alert_size_down": 9}, ""),
        ({"qpid.alert_count_up": 0, "qpid.alert_count_down": 0}, ""),
        ({"qpid.alert_count_up": 1, "qpid.alert_count": 1}, "are names of one threshold"),
        ({"qpid.alert_repeat_gap": 1, "x-qpid-minimum-alert-repeat-gap": 1}, "are names of one threshold"),
        ({"qpid.alert_count_up": 1, "qpid.alert_count_down": 2}, "must not be more than qpid.alert_count_up: 2 is, than 1"),
        ({"qpid.alert_size_down": 2}, "must not be more than qpid.alert_size_up: 2 is, than 0"),
        ({"qpid.alert_size_up": 2, "qpid.alert_size_down": 0}, "must be 1 or more"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(arguments: dict[str, Any], fault: str) -> None:
    assert (fault in fault_of(arguments)) if fault else fault_of(arguments) == ""
