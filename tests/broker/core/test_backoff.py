"""Failed logins make the next ones wait, for a bounded time and in a bounded table, and lock nobody out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from broker.core import limits
from broker.core.backoff import Backoff


def test_the_first_failures_cost_nothing_and_each_further_one_doubles_the_delay() -> None:
    backoff, delays = Backoff(), []
    for _ in range(10):
        delays.append(backoff.delay_s("h", "ann", 0.0))
        backoff.failed("h", "ann", 0.0)
    assert delays == [0.0, 0.0, 0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_a_host_waits_for_its_failures_and_a_user_for_those_as_it_wherever_they_came_from() -> None:
    backoff = Backoff()
    for i in range(5):
        backoff.failed("here", f"user{i}", 0.0)
        backoff.failed(f"host{i}", "ann", 0.0)
    assert backoff.delay_s("here", "bob", 0.0) > 0
    assert backoff.delay_s("elsewhere", "ann", 0.0) > 0
    assert backoff.delay_s("elsewhere", "bob", 0.0) == 0


def test_failures_are_forgotten_when_no_more_come() -> None:
    backoff = Backoff()
    for _ in range(9):
        backoff.failed("h", "", 0.0)
    assert backoff.delay_s("h", "", limits.LOGIN_FORGET_S - 1) > 0
    assert backoff.delay_s("h", "", limits.LOGIN_FORGET_S) == 0
    backoff.failed("h", "", limits.LOGIN_FORGET_S)
    assert backoff.delay_s("h", "", limits.LOGIN_FORGET_S) == 0, "it counts from the beginning"
    assert len(backoff) == 1, "nobody was named"


@given(some.lists(some.tuples(some.text(max_size=2), some.text(max_size=2))))
def test_the_table_is_bounded_and_the_oldest_go_first(failures: list[tuple[str, str]]) -> None:
    backoff = Backoff(max_entries=4)
    for host, user in failures:
        for _ in range(4):
            backoff.failed(host, user, 0.0)
        assert len(backoff) <= 4
        assert backoff.delay_s(host, user, 0.0) > 0 or not (host or user)


def test_a_thousand_failures_are_no_longer_than_the_bound() -> None:
    backoff = Backoff()
    for _ in range(1000):
        backoff.failed("h", "", 0.0)
    assert backoff.delay_s("h", "", 0.0) == limits.LOGIN_DELAY_S
