"""All stores but one are lost while that one is down: no member begins a new cluster without it, and no accepted
message is lost.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.mutations import planted
from tests.simulation.provoked import LOST_STORES
from tests.simulation.world import World

SEEDS = range(1, 5)


@pytest.mark.parametrize("message_links", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_store_that_is_left_brings_everything_back(seed: int, message_links: bool) -> None:
    """Operators ask the empty brokers all the while; the last one to come is elected, with every accepted message."""
    outcome = World(replace(LOST_STORES, seed=seed, message_links=message_links)).run()
    assert not outcome.violation
    assert outcome.done["lose-stores"] == 1
    assert outcome.counts["accepted"] > 100
    assert outcome.counts["lost"] == 0


def test_empty_stores_that_begin_anew_are_noticed() -> None:
    """The votes are counted at the first election already, so the test above can fail."""
    with planted("begins-anew"):
        outcome = World(replace(LOST_STORES, seed=7)).run()
    assert outcome.violation.startswith("votes: ")
