"""A run leaves nothing behind: a worker makes hundreds of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FEW = 300
"""Objects: a world has thousands."""
RUNS = """
import gc, sys
from twisted.logger import globalLogBeginner
sys.path.append(sys.argv[1])
from tests.simulation import departures, mutations, takeovers, world
from tests.simulation.history import Violation
globalLogBeginner.beginLoggingTo([lambda event: None], redirectStandardIO=False, discardBuffer=True)

class World:
    def __init__(self):
        self.me = self
        self.parts = [[self] for _ in range(10_000)]

def broken(seed):
    made = World()
    raise Violation(f"{len(made.parts)} parts are lost")

gc.collect()
assert mutations._objection(lambda seed: world.swept(lambda: broken(seed)), 7) == "10000 parts are lost"
print("caught", gc.collect())
for run in (world.run, departures.run, departures.race, takeovers.run):
    for _ in range(2):
        gc.collect()
        run(1)
        print(run.__module__, gc.collect())
"""
"""A violation, whose exception holds a world until it was caught, and runs of all kinds. In a process of its own: Twisted's log
holds the last 200 events, and so their worlds, until somebody takes them; and what earlier tests have left may end here.
"""


@pytest.mark.simulation
def test_a_run_collects_what_its_world_was_made_of() -> None:
    told = subprocess.check_output([sys.executable, "-P", "-c", RUNS, str(Path(__file__).parents[2])], text=True, timeout=120)
    left = [(name, int(count)) for name, _, count in (line.partition(" ") for line in told.splitlines())]
    assert [name for name, _ in left].count("caught") == 1
    assert len(left) == 9
    assert [each for each in left if each[1] >= FEW] == []
