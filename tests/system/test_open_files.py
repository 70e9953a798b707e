"""Brokers with a low limit of open files: clients get the rest after the disk and the other brokers, and no broker stops at
the limit."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from broker.core.limits import RESERVED_DESCRIPTORS, SPARE_CONNECTIONS
from tests.cli.running import ROOT, environment
from tests.system.harness import BrokerProcess, cluster, eventually
from tests.system.terms import go_on, traffic

CLIENTS = 60
FILES = RESERVED_DESCRIPTORS + SPARE_CONNECTIONS + CLIENTS


class Confined(BrokerProcess):
    """A broker that may open `FILES` files, and no more."""

    def start(self) -> None:
        """Start it by a program that sets the limit first: it is read at once."""
        own = ["--port", str(self.port), "--data-dir", str(self.store), "--log-enable", "info+", *self.options]
        command = ["prlimit", f"--nofile={FILES // 2}:{FILES}", sys.executable, "-m", "cli.commands.qpidd", *own]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment())

    @property
    def open_files(self) -> int:
        """How many it has open now."""
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def count_of(broker: Confined) -> Callable[[], int]:
    """Asks for its open files: the kernel makes a connection before the broker takes it."""
    return lambda: broker.open_files


def test_connections_without_end_leave_the_disk_and_the_other_brokers_their_files(tmp_path: Path) -> None:
    """Each broker is asked for more connections than it may have files, while messages fill one segment after the other. Breaks
    when a socket gets the last file: a journal or checkpoint then cannot open its next one, and that has ended brokers for good.
    """
    size = 40_000
    options = ["--ha-replicate", "all", "--max-negotiate-time", "2000"]
    with (
        cluster(tmp_path, 3, *options, make=Confined) as brokers,
        traffic(brokers, rate=2000, before=100, after=100, size=size) as run,
    ):
        first = brokers.primary()
        epoch, segment_messages = first.status()["epoch"], (16 << 20) // size
        assert (
            f"{CLIENTS} connections are served instead of 10000 (--max-connections), because only {FILES} files may be open"
            in first.log()
        )
        for broker in brokers.brokers:
            assert isinstance(broker, Confined)
            with contextlib.ExitStack() as sockets:
                for _ in range(FILES + 50):
                    with contextlib.suppress(ConnectionError):
                        sockets.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=10))
                taken = eventually(count_of(broker), lambda files: files > CLIENTS + SPARE_CONNECTIONS, "connections being taken")
                assert taken < FILES
                go_on(run, segment_messages)
        eventually(lambda: [one.status()["epoch"] for one in brokers.brokers], lambda epochs: epochs == [epoch] * 3, "one term")
        assert first.state() == "active"
        for broker in brokers.brokers:
            assert "refused: there are" in broker.log()
            assert "Too many open files" not in broker.log()
