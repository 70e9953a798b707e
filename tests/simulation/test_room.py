"""The limit of logs on a disk: it is kept at the end of a run, and a violation is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.checks.room import overfull
from tests.simulation.mutations import planted
from tests.simulation.provoked import PROVOKED
from tests.simulation.world import World

SEEDS = (1,)
HOARD = replace(PROVOKED["compacts-nothing"], seed=SEEDS[0])


def test_a_log_keeps_its_bound_though_what_is_alive_lies_scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a file too many in any of its folders is noticed."""
    seen: list[tuple[list[str], list[str], list[str]]] = []
    finish = World._finish

    def look(world: World) -> None:
        finish(world)
        primary = world.primary()
        assert primary is not None
        members: list[Any] = world._members(primary)
        right = list(overfull(members))
        assert primary.process.broker.lead.live_bytes() > 1000
        nbytes = 8 * HOARD.segment_bytes + 2 * primary.process.broker.lead.live_bytes()
        disk = primary.disk
        write(disk, "/store/cluster/damaged-00000000000000000007.seg", nbytes)
        aside = list(overfull(members))
        write(disk, "/store/local/00000000000000000007.seg", nbytes + 1)
        seen.append((right, aside, list(overfull(members))))

    monkeypatch.setattr(World, "_finish", look)
    assert not World(HOARD).run().violation
    ((right, aside, wrong),) = seen
    assert (right, aside) == ([], [])
    (fault,) = wrong
    assert fault.startswith("the local log of this broker takes ")


def write(disk: Any, path: str, nbytes: int) -> None:
    fd = disk.open(Path(path), 0o102)
    disk.write(fd, [bytes(nbytes)], 0)


def test_a_log_that_is_never_compacted_breaks_its_bound() -> None:
    with planted("compacts-nothing"):
        outcome = World(HOARD).run()
    assert outcome.violation.startswith("room: the cluster log of ")
