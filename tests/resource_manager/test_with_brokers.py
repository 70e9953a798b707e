"""The daemon and the tools with real brokers: three `qpidd` processes, killed and frozen while two daemons watch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.broker.management_peer import ROOT
from tests.cli.running import run


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; all are held until all are known, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in sockets]


@dataclass
class Cluster:
    """Brokers and daemons as processes."""

    folder: Path
    ports: list[int]
    stack: ExitStack
    brokers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def _start(self, module: str, log: str, *words: str) -> subprocess.Popen[bytes]:
        file = self.stack.enter_context((self.folder / f"{log}.log").open("ab"))
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words], stdout=file, stderr=file, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def start_broker(self, name: str) -> None:
        port = name.rpartition(":")[2]
        own = ("--port", port, "--data-dir", str(self.folder / port))
        together = ("--ha-cluster", "yes", "--ha-brokers-url", self.url, "--ha-replicate", "all")
        self.brokers[name] = self._start("cli.qpidd", f"broker-{port}", *own, *together)

    def start_daemon(self, name: str) -> None:
        self.daemons[name] = self._start("cli.qpid_resource_manager", name, "--brokers", self.url, "--name", name)

    def statuses(self) -> dict[str, str]:
        lines = run("qpid-ha", "status", "--all", "--timeout", "1", "-b", self.url).out.splitlines()
        return dict(line.split(" ", 1) for line in lines)

    def primary(self, *, other_than: str = "", within_s: float = 20.0) -> str:
        """Wait until a broker other than that one is active while at most one of the others is not ready."""
        deadline, statuses = time.monotonic() + within_s, {}
        while time.monotonic() < deadline:
            statuses = self.statuses()
            active = [name for name, status in statuses.items() if status == "active" and name != other_than]
            if active and list(statuses.values()).count("ready") >= len(self.ports) - 2:
                return active[0]
        logs = "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))
        pytest.fail(f"no new primary in {within_s} s: {statuses}\n{logs}")

    def until_ready(self, name: str, within_s: float = 20.0) -> None:
        """Wait until this broker has caught up with the primary."""
        deadline = time.monotonic() + within_s
        while (status := self.statuses()[name]) != "ready":
            assert time.monotonic() < deadline, f"{name} is {status} after {within_s} s"

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        made = Cluster(tmp_path, free_ports(3), stack)
        for port in made.ports:
            made.start_broker(f"127.0.0.1:{port}")
        for daemon in ("rm-1", "rm-2"):
            made.start_daemon(daemon)
        yield made


def test_a_cluster_gets_a_primary_and_a_new_one_when_it_is_killed_and_when_it_is_frozen(cluster: Cluster) -> None:
    """Breaks when any of the daemon, the tools and the brokers stops understanding the others."""
    first = cluster.primary()
    assert run("qpid-config", "add", "queue", "jobs", "-b", cluster.url).status == 0

    cluster.brokers[first].kill()
    second = cluster.primary(other_than=first)
    assert "jobs" in run("qpid-stat", "-q", "-b", cluster.url).out

    cluster.start_broker(first)
    cluster.until_ready(first)
    cluster.brokers[second].send_signal(signal.SIGSTOP)
    third = cluster.primary(other_than=second)
    cluster.brokers[second].send_signal(signal.SIGCONT)
    cluster.until_ready(second)

    moved = run("qpid-ha", "switchover", "-b", cluster.url, "--candidate", second)
    assert moved.status == 0, moved.err
    assert cluster.primary(other_than=third) == second
    history = run("qpid-ha", "history", "-b", cluster.url).out
    assert [history.count(f" {name} ") > 0 for name in (first, second, third)] == [True] * 3
    assert "planned switchover" in history


def test_when_the_first_daemon_is_gone_the_second_acts(cluster: Cluster) -> None:
    """Breaks when daemons rely on the one whose turn comes first."""
    first = cluster.primary()
    cluster.daemons["rm-1"].kill()
    cluster.brokers[first].kill()
    second = cluster.primary(other_than=first)
    assert f"{second}: asked to become the primary" in cluster.log("rm-2")
