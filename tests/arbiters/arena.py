"""Brokers, two daemons and clients, each on a host of its own in one network, and the system of one arbiter.

Life of an `Arena`: brokers, system and daemons start; a first primary is promoted by the daemons; faults are done to it one after
the other, each while messages flow (`Arena.play`), and after each it must be whole again; leaving the context stops everything.
"""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from cli.programs import MODULES
from cli.verify.run import Run, RunError, Workload
from tests.arbiters.outcome import Outcome, longest_s
from tests.arbiters.systems import System, system
from tests.cli.running import ROOT, environment
from tests.system.harness import BrokerProcess, Cluster, ask, eventually
from tests.system.namespaces import BridgedLan, bridged_lan
from tests.system.terms import active, check_one_primary_an_epoch, go_on, healthy, terms
from tests.system.traffic import accounted

DAEMONS = (1, 2)
"""The numbers of their hosts. The clients' is 0, those of brokers follow."""
RATE = 700.0
CLIENT_HEARTBEAT_S = 1.0
_FAKETIME = "faketime/libfaketime.so.1"


@dataclass(frozen=True, slots=True)
class Times:
    """How long faults last, in seconds."""

    control_plane: float = 60.0
    freeze: float = 30.0
    short: float = 5.0
    """For which a daemon is cut off, or two of three brokers are dead."""
    patience: float = 10.0
    """The daemons' --arbiter-patience."""
    control: bool = False
    """Whether each fault comes after a span as long as the longest of them in which nothing is done."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What a fault was: the span in which the primary had to serve on, and the moment from which another one could; monotonic.
    `detected`: whether it was then that there was something to detect."""

    served: tuple[float, float] | None = None
    since_s: float | None = None
    detected: bool = True


class Daemon:
    """A resource manager on one host, through all its lives. Its wall clock can be set."""

    def __init__(self, folder: Path, name: str, lan: BridgedLan, host: int, options: Sequence[str]) -> None:
        self.log_file, self._clock = folder / f"{name}.log", folder / f"{name}.clock"
        self._lan, self._host = lan, host
        self._words = ["--name", name, "--cluster-name", "orders", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, if it does not run."""
        if self._process is not None:
            return
        self.set_clock(0)
        clock = {}
        if (library := faketime()) is not None:
            clock = {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(self._clock)}
            clock |= {"FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        words = [sys.executable, "-m", MODULES["qpid-resource-manager"], *self._words]
        with self._lan.inside(self._host), self.log_file.open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, cwd=ROOT, env=environment() | clock)

    def set_clock(self, ahead_s: int) -> None:
        """Step its wall clock so far from ours, at once."""
        aside = self._clock.with_suffix(".new")
        aside.write_text(f"{ahead_s:+d}s")
        aside.replace(self._clock)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def log(self) -> str:
        """What it has written."""
        return self.log_file.read_text(errors="replace")


class Arena:
    """See the module."""

    def __init__(self, brokers: Cluster, lan: BridgedLan, control: System, daemons: Sequence[Daemon], times: Times) -> None:
        self.brokers, self.lan, self.system, self.daemons, self.times = brokers, lan, control, daemons, times
        self._queues = 0
        self._run: Run | None = None

    @property
    def primary(self) -> BrokerProcess:
        """The broker that serves."""
        return self.brokers.primary()

    def host_of(self, broker: BrokerProcess) -> int:
        """The number of its host."""
        return len(DAEMONS) + 1 + self.brokers.brokers.index(broker)

    def another(self, was: BrokerProcess) -> BrokerProcess:
        """Wait for another primary."""
        found = eventually(lambda: active(self.brokers, but=was), bool, f"another primary than {was.address}", 120)
        assert found is not None
        return found

    def go_on_for(self, seconds: float) -> tuple[float, float]:
        """Let the clients go on for so long; the span."""
        began_s = time.monotonic()
        assert self._run is not None
        self._run.pause(seconds)
        return began_s, time.monotonic()

    def play(self, fault: Callable[[Arena], Happened]) -> Outcome:
        """Do that to it while messages flow."""
        outcome = Outcome()
        self._queues += 1
        queue = f"jobs-{self._queues}"
        try:
            before = terms(healthy(self.brokers))
            self.primary.create("queue", queue)
            work = Workload(self.brokers.addresses, [queue], rate=RATE, heartbeat_s=CLIENT_HEARTBEAT_S)
            with Run(work) as self._run, _Detection(self.daemons) as detection:
                run = self._run
                run.wait_for(accepted=500)
                control = self.go_on_for(self.times.control_plane) if self.times.control else None
                happened = fault(self)
                go_on(run)
                primary = healthy(self.brokers, 120)
                go_on(run)
                with redirect_stdout(io.StringIO()):
                    report = accounted(run, self.brokers.primary)
                self._judge(outcome, happened, run, detection)
                if control is not None and happened.served is not None:
                    began_s, ended_s = happened.served
                    before_s = max(control[0], control[1] - (ended_s - began_s))
                    outcome.control_s = longest_s(run.gaps("producer"), before_s, control[1])
                outcome.duplicated = report.duplicated
            moves = ask(primary.address, "QUERY", "history")["items"][len(before) :]
            if len(moves) != (happened.since_s is not None):
                why = "; ".join(f"to {move['primary']} because {move['reason']}" for move in moves)
                outcome.broken.append(f"the primary moved {len(moves)} times: {why}")
            check_one_primary_an_epoch(self.brokers)
        except (AssertionError, RunError) as error:
            outcome.broken.append(str(error))
        return outcome

    def _judge(self, outcome: Outcome, happened: Happened, run: Run, detection: _Detection) -> None:
        gaps = run.gaps("producer")
        if happened.served is not None:
            outcome.wait_s = longest_s(gaps, *happened.served)
        since_s = happened.since_s
        if since_s is not None:
            outcome.failover_s = longest_s(gaps, since_s, math.inf)
            outcome.detection_s = detection.after(since_s) if happened.detected else None


class _Detection:
    """When a daemon said that a primary had failed, to within some ms: its log has whole seconds."""

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        self._daemons = daemons
        self._said: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Detection:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def after(self, since_s: float) -> float | None:
        """How long after that moment it was said first; None when it was not."""
        return min((said_s - since_s for said_s in self._said if said_s >= since_s), default=None)

    def _watch(self) -> None:
        files = [daemon.log_file.open("rb") for daemon in self._daemons]
        try:
            for file in files:
                file.seek(0, os.SEEK_END)
            while not self._over.wait(0.005):
                for file in files:
                    if b" failed: " in file.read():
                        self._said.append(time.monotonic())
        finally:
            for file in files:
                file.close()


def faketime() -> Path | None:
    """The library that sets a process's clock, if it is installed (Debian: faketime)."""
    return next((path for path in Path("/usr/lib").glob(f"*/{_FAKETIME}")), None)


@contextmanager
def arena(folder: Path, arbiter: str, times: Times, size: int = 3) -> Iterator[Arena]:
    """A running one, of so many brokers. NotHere where the machine lacks what it needs."""
    with ExitStack() as stack:
        lan = stack.enter_context(bridged_lan(len(DAEMONS) + size))
        control = stack.enter_context(system(arbiter, folder, lan, DAEMONS))
        brokers = Cluster(folder, size, ["--ha-replicate", "all"], lan.places[len(DAEMONS) :])
        stack.callback(brokers.close)
        brokers.start()
        own = ["--brokers", brokers.url, "--arbiter-patience", f"{times.patience:g}"]
        daemons = [Daemon(folder, f"rm-{host}", lan, host, [*own, *control.options(host)]) for host in DAEMONS]
        for daemon in daemons:
            stack.callback(daemon.kill)
            daemon.start()
        healthy(brokers)
        yield Arena(brokers, lan, control, daemons, times)
        for broker in brokers.brokers:
            broker.check_log()
        for daemon in daemons:
            assert "Traceback" not in daemon.log(), daemon.log()
