"""A pause of a whole cluster: while it lasts, daemons promote no broker, and a person's request is carried out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.provoked import PAUSED, PAUSED_OVER_ALL, SCHEDULED, TWO_KINDS
from tests.simulation.world import World

SEEDS = (1,)
"""Of all stories but that of the death of all brokers."""


@pytest.mark.simulation
@pytest.mark.parametrize("message_links", [False, True])
def test_in_a_pause_nobody_is_promoted_but_by_hand(message_links: bool) -> None:
    world = World(replace(PAUSED, seed=SEEDS[0], message_links=message_links))
    outcome = world.run()
    assert not outcome.violation, "\n".join([*outcome.trace[-60:], outcome.violation])
    assert (outcome.done["pause"], outcome.done["resume"]) == (1, 1)
    assert world.operators.done["SET"] == 2
    assert outcome.counts["accepted"] > 50


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_pause_outlives_the_death_of_all_brokers_and_of_the_daemon(seed: int) -> None:
    """Breaks when a broker that has started knows only what a primary tells it."""
    outcome = World(replace(PAUSED_OVER_ALL, seed=seed)).run()
    assert not outcome.violation, "\n".join([*outcome.trace[-60:], outcome.violation])
    assert (outcome.done["pause"], outcome.done["blackout"], outcome.done["resume"]) == (1, 1, 1)


@pytest.mark.simulation
def test_a_second_kind_of_manager_moves_no_primary_that_the_first_has_made() -> None:
    world = World(replace(TWO_KINDS, seed=SEEDS[0]))
    outcome = world.run()
    assert not outcome.violation, "\n".join([*outcome.trace[-60:], outcome.violation])
    assert outcome.done["promote-as"] == 3
    assert world.operators.done.get("PROMOTE", 0) == 0
    assert len(world.checks.consensus.primaries) == 1


@pytest.mark.simulation
def test_a_planned_switchover_happens_at_its_time_and_once() -> None:
    """Breaks when the plan dies with the term that took it, is carried out again by the next primary, or costs a message."""
    world = World(replace(SCHEDULED, seed=SEEDS[0]))
    outcome = world.run()
    assert not outcome.violation, "\n".join([*outcome.trace[-60:], outcome.violation])
    assert world.operators.done["SET"] == 2
    assert len(world.checks.consensus.primaries) == 2
    assert list(world.checks.reference.settings) == [f"tags:{world.hosts[1].address}"]
