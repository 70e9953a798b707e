"""Whether a record has expired, told as what is seen at which time."""

from __future__ import annotations

import pytest

from resource_manager.core.observed import Observed, Record

HELD = Record("rm-1", 5.0, "2026-11-23T10:00:00.000001Z", "2026-11-23T10:00:00.000000Z", 1)
RENEWED = Record("rm-1", 5.0, "2026-11-23T10:00:02.000000Z", "2026-11-23T10:00:00.000000Z", 1)


def test_nobody_holds_what_was_never_seen() -> None:
    assert Observed().holder(0.0) == ""


def test_a_record_expires_when_it_has_not_changed_for_its_duration() -> None:
    observed = Observed()
    for now_s in (100.0, 101.0, 104.0):
        observed.sees(HELD, now_s)
    assert [observed.holder(now_s) for now_s in (104.9, 105.0)] == ["rm-1", ""]
    assert observed.record == HELD


def test_a_renewal_begins_its_time_anew_whatever_the_holders_clock_says() -> None:
    """Breaks when clocks of two machines are compared: here the holder's stands in the past, and goes backwards."""
    observed = Observed()
    observed.sees(RENEWED, 100.0)
    observed.sees(HELD, 104.0)
    assert [observed.holder(now_s) for now_s in (105.0, 108.9, 109.0)] == ["rm-1", "rm-1", ""]


def test_a_record_of_a_dead_daemon_has_all_its_time_before_it_when_it_is_first_seen() -> None:
    observed = Observed()
    observed.sees(HELD, 9000.0)
    assert observed.holder(9004.9) == "rm-1"


def test_what_was_given_up_is_free_at_once() -> None:
    observed = Observed()
    observed.sees(HELD, 1.0)
    observed.sees(Record("", 1.0), 2.0)
    assert observed.holder(2.0) == ""


@pytest.mark.parametrize("duration_s, holders", [(1e9, ["by hand", "by hand", ""]), (-1.0, ["", "", ""])])
def test_a_duration_that_no_daemon_wrote_is_bounded(duration_s: float, holders: list[str]) -> None:
    observed = Observed()
    observed.sees(Record("by hand", duration_s), 0.0)
    assert [observed.holder(now_s) for now_s in (0.0, 599.9, 600.0)] == holders
