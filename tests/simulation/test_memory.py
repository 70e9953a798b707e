"""A run leaves nothing behind: a worker makes hundreds of them."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import mutations, world
from tests.simulation.history import Violation

FEW = 300
"""Objects: a world has thousands."""
RUNS = """
import gc, sys
from twisted.logger import globalLogBeginner
sys.path.append(sys.argv[1])
from tests.simulation import departures, takeovers, world
globalLogBeginner.beginLoggingTo([lambda event: None], redirectStandardIO=False, discardBuffer=True)
for run in (world.run, departures.run, departures.race, takeovers.run):
    for _ in range(2):
        gc.collect()
        run(1)
        print(run.__module__, gc.collect())
"""
"""In a process of its own, because Twisted's log holds the last 200 events, and so their worlds, until somebody takes them."""


@pytest.mark.simulation
def test_a_run_collects_what_its_world_was_made_of() -> None:
    told = subprocess.check_output([sys.executable, "-P", "-c", RUNS, str(Path(__file__).parents[2])], text=True, timeout=120)
    left = [(name, int(count)) for name, _, count in (line.partition(" ") for line in told.splitlines())]
    assert len(left) == 8
    assert [each for each in left if each[1] >= FEW] == []


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
