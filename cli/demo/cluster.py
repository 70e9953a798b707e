"""The demo's processes: brokers, resource manager, commands. Each is on loopback and has a log, and none is left running at
the end.

Life of a process: it is started in its own session, so that Ctrl-C reaches only the demo; its log is in the demo's folder. It
is checked whenever the demo waits. It is killed on purpose, or stopped in order at the end. `setpriv` ties its life to the
demo's, so that it ends even after a kill -9 of the demo. A cluster that is to outlive the demo is not tied.

Invariants: a process is signalled only by its own id, and only before it has been waited for; the demo fails if a process
ends unexpectedly."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cli.demo.credentials import MANAGER, OPERATOR, Credentials
from cli.programs import MODULES

STEP_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.05
TAIL_LINES = 4


class Failed(Exception):
    """The demo cannot continue. The text is one line for people."""


def free_ports(count: int) -> list[int]:
    """Free loopback ports. None of them can be given to an outgoing connection while its broker is down."""
    try:
        end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        end = 32_768
    found: list[int] = []
    for port in random.sample(range(10_000, max(end, 20_000)), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise Failed(f"there are not {count} free ports on 127.0.0.1")


def command(name: str) -> list[str]:
    """The words that call one of our commands: the script beside this interpreter, or else its module."""
    script = Path(sys.executable).with_name(name)
    return [str(script)] if script.exists() else [sys.executable, "-m", MODULES[name]]


def environment() -> dict[str, str]:
    """The environment of this process, without variables that would change the options of a broker or a command."""
    return {name: value for name, value in os.environ.items() if not name.startswith("QPID_")}


class Process:
    """One process, over all its restarts."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, *, tied: bool = True) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.may_end = False
        """Whether it may end without a failure of the demo."""
        setpriv = shutil.which("setpriv") if tied else None
        self._arguments = [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        self.may_end = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended; None while it runs, or before it was started."""
        return self._process.poll() if self._process is not None else None

    def check(self) -> None:
        """Failed if it has ended unexpectedly."""
        if self.status is not None and not self.may_end:
            raise Failed(f"{self.name} has ended by itself, with status {self.status}")

    def kill(self) -> None:
        """kill -9, and wait until it has ended."""
        assert self._process is not None
        self.may_end = True
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        """Send SIGTERM, if it still runs."""
        self.may_end = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Wait until it has ended; after too long, kill it."""
        if self._process is None:
            return
        self.ask_to_stop()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self) -> list[str]:
        """The last lines of its log."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            lines = log.read().decode(errors="replace").splitlines()
        return [line[:200] for line in lines if line.strip()][-TAIL_LINES:]


class Cluster:
    """Three brokers and a resource manager, and our own commands to query them. All connections use TLS and log in."""

    def __init__(self, folder: Path, *, tied: bool) -> None:
        self.folder = folder
        self.telemetry = folder / "telemetry"
        *self.addresses, self.fresh_address = [f"127.0.0.1:{port}" for port in free_ports(4)]
        self.credentials = Credentials(folder, self.addresses, [self.fresh_address])
        self.brokers: dict[str, Process] = {}
        every = ",".join(self.addresses)
        shared = ["--ha-cluster", "yes", "--ha-brokers-url", f"amqps:{every}", "--telemetry-dir", str(self.telemetry)]
        shared += ["--telemetry-interval-ms", "200"]
        for number, address in enumerate(self.addresses, 1):
            self.brokers[address] = self._broker(number, address, shared, tied=tied)
        alone = ["--ha-cluster", "yes", "--ha-brokers-url", f"amqps:{self.fresh_address}"]
        self.fresh = self._broker(4, self.fresh_address, alone, tied=True)
        """A broker in its own cluster, which is started when the first cluster leaves."""
        arguments = [*command("qpid-resource-manager"), "--brokers", f"amqps:{MANAGER}@{every}"]
        arguments += [*self.credentials.of_manager(), "--telemetry-dir", str(self.telemetry)]
        self.resource_manager = Process("qpid-resource-manager", arguments, folder, tied=tied)

    def _broker(self, number: int, address: str, shared: Sequence[str], *, tied: bool) -> Process:
        own = ["--ssl-port", address.rpartition(":")[2], "--data-dir", str(self.folder / f"store{number}")]
        arguments = [*command("qpidd"), *own, *shared, *self.credentials.of_broker(number)]
        return Process(f"qpidd-{number}", arguments, self.folder, tied=tied)

    @property
    def processes(self) -> list[Process]:
        """The resource manager comes before the brokers: it is stopped first, so that it does not promote while they stop."""
        return [self.resource_manager, *self.brokers.values()]

    def start(self) -> None:
        """Start all processes except the fresh broker."""
        for process in self.processes:
            process.start()

    def stop(self) -> None:
        """Stop all running processes, in order."""
        self.resource_manager.stop()
        brokers = [*self.brokers.values(), self.fresh]
        for broker in brokers:
            broker.ask_to_stop()
        for broker in brokers:
            broker.stop()

    def ask(self, *words: str, also_fine: Sequence[int] = ()) -> str:
        """Run one of our commands as the user that administers the cluster; see `ask`."""
        return ask([*words, "--config", str(self.credentials.config)], also_fine=also_fine)

    def connections(self) -> list[dict[str, Any]]:
        """The connections of the primary, as `qpid-stat -c` reports them."""
        return list(json.loads(self.ask("qpid-stat", "-c", "--format", "json")))

    def states(self) -> dict[str, str]:
        """The state of each broker by address, as `qpid-ha status --all` reports it; "" if the broker does not answer."""
        answer = self.ask("qpid-ha", "status", "--all", "--format", "json", "--timeout", "3", also_fine=(3,))
        return {str(item["broker"]): str(item["status"]) for item in json.loads(answer)}

    def state(self, address: str) -> str:
        """The state of one broker; "" while it does not answer."""
        url = f"amqps:{OPERATOR}@{address}"
        answer = self.ask("qpid-ha", "status", "--format", "json", "-b", url, "--timeout", "3", also_fine=(3,))
        return str(json.loads(answer)["status"]) if answer else ""

    @property
    def url(self) -> str:
        """The cluster's URL for the user that administers it."""
        return f"amqps:{OPERATOR}@{','.join(self.addresses)}"

    @property
    def fresh_url(self) -> str:
        """The fresh broker's URL for the same user."""
        return f"amqps:{OPERATOR}@{self.fresh_address}"

    def primary(self) -> str:
        """The address of the primary; "" if there is none now."""
        return next((address for address, state in self.states().items() if state == "active"), "")


def ask(words: Sequence[str], *, also_fine: Sequence[int] = (), timeout_s: float = STEP_TIMEOUT_S) -> str:
    """Run one of our commands to its end, and return its stdout. Failed if it is refused."""
    try:
        done = subprocess.run(
            [*command(words[0]), *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment(),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{words[0]} has not ended after {timeout_s:.0f} s") from None
    if done.returncode not in (0, *also_fine):
        why = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        raise Failed(f"`{' '.join(words[:3])} ...` failed: {why}")
    return done.stdout


def wait_until(
    is_so: Callable[[], bool], what: str, meanwhile: Callable[[], None], timeout_s: float = STEP_TIMEOUT_S, poll_s: float = POLL_S
) -> None:
    """Check again and again; `meanwhile` is called each time. Failed after too long."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        meanwhile()
        if time.monotonic() > deadline:
            raise Failed(f"after {timeout_s:.0f} s still not so: {what}")
        time.sleep(poll_s)
