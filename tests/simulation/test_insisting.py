"""Operators insist on the broker that lags most, with and without a primary: it becomes the primary, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.provoked import INSISTED
from tests.simulation.world import World

SEEDS = range(1, 4)


@pytest.mark.simulation
@pytest.mark.parametrize("message_links", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_is_insisted_on_becomes_the_primary(seed: int, message_links: bool) -> None:
    world = World(replace(INSISTED, seed=seed, message_links=message_links))
    outcome = world.run()
    assert not outcome.violation, "\n".join([*outcome.trace[-60:], outcome.violation])
    assert outcome.done["promote-laggiest"] == 3
    assert world.operators.done["PROMOTE"] == 3
    assert outcome.counts["accepted"] > 50
