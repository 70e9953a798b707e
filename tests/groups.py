"""Which tests run after one another in one worker, and which are begun first, when pytest-xdist spreads them.

`-n 3 --dist loadgroup --no-loadscope-reorder` (`make test`; `-n 2` in `make spark`): a worker takes a group whole. What has no
group is taken test by test by whichever worker is free, so it stands last and fills what the long groups leave. Tests of one
group never run at the same time:

- `machine`: tests whose outcome hangs on when something happens (networks that are cut, disks that fail, processes that stand
  still, clients that flood, failovers). Two of them at once would starve each other, and measure that.
- `spark` and `streams`: tests that share a session of Spark, which takes longer to start than any of them. They are two groups so
  that two workers with nothing else to do (`make spark`) take one each, and need about the same time. Otherwise the worker that
  has a session takes the second group as well: a second session costs as much as four reports.
- `resource_manager`: tests that mostly wait, for timeouts and leases of daemons. In one worker they cost nothing, because the
  others keep the processors busy; when all workers came to such tests at the same time, the processors were idle for 45 s.
- `clients`: tests that compile and install the clients that others wrote, which is done once.
- every other module is a group, so that what its tests share is made once.
- planted bugs that are hunted in one plan, whose run without a bug is then made once. The test's id says so: `SHARED`.

The group follows from the test's id alone: xdist's own marks for groups (3.8) do nothing with pytest 9.2, which no longer lets a
plugin change a test's id. Without xdist nothing is reordered.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

MACHINE, SPARK, STREAMS, CLIENTS = "machine", "spark", "streams", "clients"
SESSIONS = {SPARK, STREAMS}
"""Groups of tests that share a session of Spark."""
FIRST = (MACHINE, SPARK, STREAMS, "system/test_thousand_steps.py", CLIENTS, "test_static.py")
"""Begun before everything else: each may take minutes."""
THEN = ("system", "spark_analytics", "resource_manager", "cli")
"""Folders whose groups come next, the longest first."""
WHOLE_MACHINE = {
    "system/test_arbiters.py",
    "system/test_failover.py",
    "system/test_faults_clients.py",
    "system/test_faults_disk.py",
    "system/test_faults_network.py",
    "system/test_faults_outage.py",
    "system/test_faults_power.py",
    "system/test_faults_processes.py",
    "system/test_pacemaker.py",
    "system/test_virtual_ip.py",
}
THEIR_CLIENTS = {"system/test_interop.py", "system/test_logins.py"}
"""Tests that run clients that others wrote."""
OF_STREAMS = {
    "spark_analytics/test_real_telemetry.py",
    "spark_analytics/test_stream.py",
    "spark_analytics/test_watch.py",
}
"""Tests with Spark that look at none of the reports that others share: so many that the two groups take about the same time."""
WAITING = ("resource_manager",)
"""Folders whose tests mostly wait."""
WITHOUT_SESSION = {"spark_analytics/test_submit.py"}
"""Tests that start Spark as processes of their own alone, and take long."""
ONE_BY_ONE = ("simulation",)
"""Folders of many seeds: each test makes all that it needs, unless its id ends with `SHARED` and a name."""
SHARED = " in the plan of "
"""What stands in the brackets of an id before the name of a group."""


def group_of(nodeid: str) -> str:
    """The group of a test; empty for none."""
    path = PurePath(nodeid.partition("::")[0]).relative_to("tests")
    if str(path) in WHOLE_MACHINE:
        return MACHINE
    if str(path) in THEIR_CLIENTS:
        return CLIENTS
    if str(path) in OF_STREAMS:
        return STREAMS
    if path.parts[0] == "spark_analytics" and str(path) not in WITHOUT_SESSION:
        return SPARK
    if path.parts[0] in WAITING:
        return path.parts[0]
    if path.parts[0] in ONE_BY_ONE:
        return nodeid.partition(SHARED)[2].removesuffix("]")
    return str(path)


def rank(group: str) -> tuple[int, ...]:
    """Where a group stands: the smallest is begun first."""
    if not group:
        return (2,)
    if group in FIRST:
        return 0, FIRST.index(group)
    folder = PurePath(group).parts[0]
    return 1, THEN.index(folder) if folder in THEN else len(THEN)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker, put the tests in the order in which they are begun."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(group_of(item.nodeid)))


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist brings no types
    """Gives each worker a group at a time, in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid) or nodeid

    def _assign_work_unit(self, node: Any) -> None:
        """Leave the second group with Spark to the worker that has a session, as long as there is anything else."""
        begun = {group for groups in self.assigned_work.values() for group in groups}
        if SESSIONS & begun and SESSIONS.isdisjoint(self.assigned_work[node]):
            other = next((group for group in self.workqueue if group not in SESSIONS), None)
            if other is not None:
                self.workqueue.move_to_end(other, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    """Spread by our own groups where groups are asked for."""
    return Groups(config, log) if config.getoption("dist") == "loadgroup" else None
