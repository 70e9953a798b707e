"""A quick round of `make arbiters`: faults of the table with real brokers, daemons and control planes. The missing faults (a
primary that is killed, cut off or frozen) have their own tests (test_failover, test_faults_network).

Breaks when trouble of the control plane reaches a healthy primary, when a primary that cannot serve is not replaced, or when
the tool counts a broken promise as kept.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.arbiters import faults
from tests.arbiters.arena import Happened, Times, arena, faketime
from tests.arbiters.systems import SYSTEMS
from tests.system.means import where_possible

TIMES = Times(control_plane=1.0, freeze=1.5, short=1.0, patience=2.0)
ROUND = {
    "builtin": [
        "the primary is cut from the daemons",
        "a daemon is cut off, then the primary is killed",
        "the majority is killed, one of it comes back",
        "the daemons' clocks are set, then the primary is killed",
    ],
    "kubernetes": ["the primary is killed", "kubernetes: 409 for ever, then the primary is killed"],
    "etcd": ["the primary is killed", "the control plane is dead", "etcd: hang in half a body, then the primary is killed"],
}


@where_possible
@pytest.mark.parametrize("name", SYSTEMS)
def test_no_fault_moves_a_primary_that_serves_or_keeps_one_that_cannot(name: str, tmp_path: Path) -> None:
    """And what is broken would be said: a fault that promises a move, and makes none."""
    every = faults.of(SYSTEMS[name])
    with arena(tmp_path, name, TIMES) as place:
        for fault in ROUND[name]:
            if every[fault] is not faults.set_the_daemons_clocks or faketime():
                assert place.play(every[fault]).broken == [], fault
        if name == "builtin":
            assert place.play(lambda place: Happened(since_s=place.go_on_for(0.1)[0])).broken == ["the primary moved 0 times: "]
            place.times = replace(TIMES, control=True)
            outcome = place.play(lambda place: Happened(place.go_on_for(0.1)))
            assert outcome.broken == []
            assert outcome.control_s is not None, "the span before it, in which nothing was done, has no longest wait"
