"""Which tests run after one another in one worker, and which are begun first, when pytest-xdist spreads them (`-n 3`).

A worker takes a group whole. What has no group is taken test by test by whichever worker is free, so it stands last and fills
what the long groups leave. Tests of one group never run at the same time:

- `machine`: tests whose outcome hangs on when something happens (networks that are cut, disks that fail, processes that stand
  still, clients that flood, failovers). Two of them at once would starve each other, and measure that.
- `spark`: tests that share the session of Spark, which takes longer to start than any of them.
- every other module is a group, so that what its tests share is made once.

Without xdist nothing is reordered.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

import pytest

MACHINE, SPARK = "machine", "spark"
FIRST = (MACHINE, "system/test_thousand_steps.py", SPARK, "test_static.py")
"""Begun before everything else: each may take minutes."""
THEN = ("system", "spark_analytics", "cli")
"""Folders whose groups come next, the longest first."""
WHOLE_MACHINE = {
    "system/test_failover.py",
    "system/test_faults_clients.py",
    "system/test_faults_disk.py",
    "system/test_faults_network.py",
    "system/test_faults_outage.py",
    "system/test_faults_power.py",
    "system/test_faults_processes.py",
}
ONE_BY_ONE = ("simulation",)
"""Folders of many seeds: each test makes all that it needs."""


def group_of(path: PurePath, fixtures: Iterable[str]) -> str:
    """The group of a test of the file at `path` below tests/ that uses these fixtures; empty for none."""
    if str(path) in WHOLE_MACHINE:
        return MACHINE
    if "spark" in fixtures:
        return SPARK
    return "" if path.parts[0] in ONE_BY_ONE else str(path)


def rank(group: str) -> tuple[int, ...]:
    """Where a group stands: the smallest is begun first."""
    if not group:
        return (2,)
    if group in FIRST:
        return 0, FIRST.index(group)
    folder = PurePath(group).parts[0]
    return 1, THEN.index(folder) if folder in THEN else len(THEN)


def spread(items: list[pytest.Item], below: PurePath) -> None:
    """Give each test its group, and put them in the order in which workers are to begin them."""
    groups = {item: group_of(item.path.relative_to(below), getattr(item, "fixturenames", ())) for item in items}
    for item, group in groups.items():
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: rank(groups[item]))
