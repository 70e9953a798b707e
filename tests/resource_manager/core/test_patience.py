"""When a daemon acts without its arbiter."""

from __future__ import annotations

from math import inf

import pytest

from resource_manager.core.arbiter import NEVER, Health
from resource_manager.core.patience import Turn, away_since, turn

GOOD = Health(True)


def away(answered_s: float | None) -> Health:
    return Health(False, answered_s, "connection refused")


def when(said_s: float, health: Health, needed_since_s: float = 100.0, now_s: float = 100.0, patience_s: float = 10.0) -> Turn:
    return turn(said_s, health, needed_since_s, now_s, 20.0, patience_s, delay_s=0.2)


def test_while_the_arbiter_is_reachable_its_word_counts_alone() -> None:
    """Breaks when a daemon takes the built-in arbiter's turn while another daemon has that of etcd."""
    assert when(NEVER, GOOD, now_s=500.0) == Turn(NEVER)
    assert when(103.0, GOOD) == Turn(103.0)


@pytest.mark.parametrize(
    "answered_s, turn_s",
    [
        (99.0, 109.2),  # away for a second when the need arose: the patience is waited for
        (50.0, 100.2),  # away for long: the need has its turn at once
        (None, 100.2),  # never there since the start at 20
    ],
)
def test_after_the_patience_the_builtin_arbiters_turn_begins(answered_s: float | None, turn_s: float) -> None:
    assert when(NEVER, away(answered_s)) == Turn(pytest.approx(turn_s), without=True)  # type: ignore[arg-type]


def test_a_lease_that_is_held_counts_on_while_the_outside_system_is_away() -> None:
    assert when(98.0, away(50.0)) == Turn(98.0)
    assert when(100.1, away(50.0)) == Turn(100.1)


def test_who_has_infinite_patience_never_acts_without() -> None:
    assert when(NEVER, away(None), now_s=1e9, patience_s=inf) == Turn(NEVER)


def test_an_arbiter_that_says_it_is_reachable_and_has_not_answered_for_long_is_not_believed() -> None:
    """Breaks when a plug-in that hangs without a notice blocks promotions for ever."""
    assert when(NEVER, Health(True, 95.0), now_s=105.0) == Turn(NEVER)
    assert when(NEVER, Health(True, 95.0), now_s=105.5) == Turn(pytest.approx(105.2), without=True)  # type: ignore[arg-type]
    assert away_since(Health(True, 95.0), 20.0, 105.5, 10.0) == 95.0


@pytest.mark.parametrize("patience_s", [0.0, 1.0])
def test_an_arbiter_that_answers_every_two_seconds_is_believed_however_short_the_patience_is(patience_s: float) -> None:
    """Breaks when daemons act without the turn, because an arbiter that works has not been asked for a second."""
    assert when(NEVER, Health(True, 97.0), now_s=100.0, patience_s=patience_s) == Turn(NEVER)
    assert when(NEVER, Health(True, 95.0), now_s=100.5, patience_s=patience_s).without
