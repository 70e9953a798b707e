"""Whole simulated clusters keep every promise, on a fixed set of seeds and on those that found bugs; a seed is a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tests.simulation import plan as plans
from tests.simulation import promises, world
from tests.simulation.__main__ import report
from tests.simulation.disk import SimulatedDisk
from tests.simulation.regressions import REGRESSIONS
from tests.simulation.shrink import ddmin

pytestmark = pytest.mark.simulation

FIXED = range(1, 101)
"""Enough for every kind of fault and operation to happen dozens of times, in about a minute."""


@pytest.mark.parametrize("seed", FIXED)
def test_a_cluster_keeps_its_promises(seed: int) -> None:
    outcome = world.attempt(seed)
    assert not outcome.violation, "\n".join(report(outcome, None))


@pytest.mark.parametrize("story", REGRESSIONS)
def test_what_was_broken_once_is_not_broken_again(story: str) -> None:
    outcome = world.World(REGRESSIONS[story]).run()
    assert not outcome.violation, "\n".join([story, *outcome.trace[-60:], outcome.violation])


def test_the_fixed_seeds_have_every_kind_of_fault_and_operation() -> None:
    planned = {action.kind for seed in FIXED for _, action in plans.make(seed).actions}
    assert planned == {*plans.KINDS, plans.ROLE}


def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    """Breaks when anything of a run depends on hash values, addresses in memory, the wall clock or the process."""

    def said(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.simulation", "--seed", "2", "--trace"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout

    first, second = said("1"), said("2")
    assert "digest" in first
    assert len(first.splitlines()) > 100
    assert first == second


def test_leaving_an_item_out_changes_no_other_one() -> None:
    plan = plans.make(2)
    kept = plan.keeping([0, 3, 5])
    assert list(kept.items) == [0, 3, 5]
    assert all(kept.items[number] == plan.items[number] for number in kept.items)
    assert (kept.brokers, kept.rates) == (plan.brokers, plan.rates)


def test_the_shrinker_finds_the_two_items_that_a_failure_needs() -> None:
    runs = []

    def fails(items: Sequence[int]) -> bool:
        runs.append(items)
        return {3, 17} <= set(items)

    assert ddmin(list(range(30)), fails) == [3, 17]
    assert len(runs) < 60
    assert len({tuple(items) for items in runs}) == len(runs), "nothing is run twice"


def test_the_shrinker_ends_in_time_with_what_fails_still() -> None:
    """A failure that needs nearly everything would take as many runs as the square of its items."""
    runs = []

    def fails(items: Sequence[int]) -> bool:
        runs.append(items)
        return set(range(0, 60, 2)) <= set(items)

    kept = ddmin(list(range(60)), fails, most_runs=40)
    assert fails(kept)
    assert len(kept) < 60
    assert len(runs) <= 41


def test_what_was_put_aside_as_damaged_is_no_part_of_a_store_that_may_be_hurt() -> None:
    """Its name stands behind those of all segments: it was taken for the newest one, and so the newest one was damaged."""
    names = ("00000000000000000044.seg", "00000000000000000048.seg", "damaged-00000000000000000020.seg")
    paths = [f"/store/cluster/{name}" for name in names]
    assert promises.files_to_lose(paths) == paths[:1]
    assert {promises.file_to_rot(paths, Random(seed)) for seed in range(20)} == set(paths[:2])
    disk = SimulatedDisk(Random(1))
    disk.make_folder(Path("/store/cluster"))
    for path in paths:
        fd = disk.open(Path(path), os.O_RDWR | os.O_CREAT)
        disk.write(fd, [bytes(8192), b"unmarked"], 0)
        disk.close(fd)
    assert promises.bytes_to_flip(paths[0], disk) == range(8200)
    assert not promises.bytes_to_flip(paths[1], disk), "its last group is not marked"
