"""How many logins a host with failed ones may try."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.turnstile import Turnstile


def tries(turnstile: Turnstile, host: str, now_s: float) -> int:
    """How many there are just now; they are taken."""
    count = 0
    while turnstile.enter(host, now_s) == 0:
        count += 1
    return count


def test_a_host_that_fails_has_a_few_tries_at_once_and_then_as_many_as_time_brings() -> None:
    turnstile = Turnstile(at_once=10, per_s=2)
    assert tries(turnstile, "a", 0.0) == 10
    assert turnstile.enter("a", 0.0) == 0.5
    assert turnstile.enter("a", 0.5 - 1e-15) == 0.001, "a clock that does not see the difference would ask for ever"
    assert tries(turnstile, "b", 0.0) == 10, "another host has its own"
    assert tries(turnstile, "a", 3.0) == 6
    assert tries(turnstile, "a", 1000.0) == 10


def test_a_host_whose_logins_succeed_has_no_bound() -> None:
    turnstile = Turnstile(at_once=10, per_s=2)
    for _ in range(1000):
        assert turnstile.enter("a", 0.0) == 0
        turnstile.give_back("a", 0.0)
    assert len(turnstile) == 0, "and is not remembered"
    turnstile.give_back("a", 0.0)
    assert tries(turnstile, "a", 0.0) == 10, "what was not taken is not given back"


def test_the_host_that_has_not_tried_for_the_longest_is_forgotten_first() -> None:
    turnstile = Turnstile(at_once=2, per_s=0.001, max_hosts=2)
    for host in ("a", "b", "a", "c"):
        assert turnstile.enter(host, 0.0) == 0
    assert len(turnstile) == 2
    assert [tries(turnstile, host, 0.0) for host in ("a", "c")] == [0, 1]
    assert tries(turnstile, "b", 0.0) == 2


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=60))
def test_what_fails_is_never_more_than_time_allows(steps: list[tuple[float, bool]]) -> None:
    turnstile, now_s, failed, taken = Turnstile(at_once=5, per_s=1.5), 0.0, 0, 0
    for pause_s, succeeds in steps:
        now_s += pause_s
        if turnstile.enter("a", now_s) == 0:
            taken += 1
            if succeeds:
                turnstile.give_back("a", now_s)
            else:
                failed += 1
    assert failed <= 5 + 1.5 * now_s + 1e-6
    assert taken > 0 or not steps
