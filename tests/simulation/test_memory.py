"""A run leaves nothing behind: a worker makes hundreds of them."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from tests.simulation import departures, mutations, takeovers, world
from tests.simulation.history import Violation

FEW = 300
"""Objects: a world has thousands."""


@pytest.mark.simulation
@pytest.mark.parametrize("run", [world.run, departures.run, departures.race, takeovers.run])
def test_a_run_collects_what_its_world_was_made_of(run: Callable[[int], object]) -> None:
    gc.collect()
    run(1)
    assert gc.collect() < FEW


def test_a_run_with_a_violation_is_collected_when_it_was_caught() -> None:
    class World:
        def __init__(self) -> None:
            self.me = self
            self.parts = [[self] for _ in range(10 * FEW)]

    def broken(seed: int) -> None:
        made = World()
        raise Violation(f"seed {seed}: {len(made.parts)} parts are lost")

    gc.collect()
    assert mutations._objection(lambda seed: world.swept(lambda: broken(seed)), 7) == f"seed 7: {10 * FEW} parts are lost"
    assert gc.collect() < FEW
