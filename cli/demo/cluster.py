"""The demo's processes: brokers, resource manager, commands; each on loopback, each with a log, none left behind.

Life of a process: it is started in a session of its own, so that Ctrl-C reaches the demo alone, with its log in the demo's
folder; it is looked at whenever the demo waits; it is killed on purpose, or stopped in order at the end. `setpriv` ties its
life to the demo's, so that even a kill -9 of the demo leaves none; a cluster that is to outlive the demo is not tied.

Invariants: a process is signalled by its own id only, and only while it has not been waited for; a process that ends unasked
fails the demo."""

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
    """The demo cannot go on. The text of this is one line for people."""


def free_ports(count: int) -> list[int]:
    """Free loopback ports, none that an outgoing connection could be given while its broker is dead."""
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
    """How to call one of our commands: the script beside this interpreter, or else its module."""
    script = Path(sys.executable).with_name(name)
    return [str(script)] if script.exists() else [sys.executable, "-m", MODULES[name]]


def environment() -> dict[str, str]:
    """Ours, without what would change a broker's or a command's options."""
    return {name: value for name, value in os.environ.items() if not name.startswith("QPID_")}


class Process:
    """One process, through all its lives."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, *, tied: bool = True) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.may_end = False
        """Whether nobody minds when it ends."""
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
        """Of its present life."""
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended; None while it lives, or before it was started."""
        return self._process.poll() if self._process is not None else None

    def check(self) -> None:
        """Failed when it has ended unasked."""
        if self.status is not None and not self.may_end:
            raise Failed(f"{self.name} has ended by itself, with status {self.status}")

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self._process is not None
        self.may_end = True
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        """SIGTERM, when it still lives."""
        self.may_end = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Wait until it is gone; after too long, make it so."""
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
    """Three brokers and a resource manager, and our own commands to look at them. All of it is over TLS, and logs in."""

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
        """A broker of a cluster of its own, which is started when the other one leaves."""
        arguments = [*command("qpid-resource-manager"), "--brokers", f"amqps:{MANAGER}@{every}"]
        arguments += [*self.credentials.of_manager(), "--telemetry-dir", str(self.telemetry)]
        self.resource_manager = Process("qpid-resource-manager", arguments, folder, tied=tied)

    def _broker(self, number: int, address: str, shared: Sequence[str], *, tied: bool) -> Process:
        own = ["--ssl-port", address.rpartition(":")[2], "--data-dir", str(self.folder / f"store{number}")]
        arguments = [*command("qpidd"), *own, *shared, *self.credentials.of_broker(number)]
        return Process(f"qpidd-{number}", arguments, self.folder, tied=tied)

    @property
    def processes(self) -> list[Process]:
        """The resource manager before the brokers: it is stopped first, so that it does not promote while they stop."""
        return [self.resource_manager, *self.brokers.values()]

    def start(self) -> None:
        """Start all of them but the fresh broker."""
        for process in self.processes:
            process.start()

    def stop(self) -> None:
        """Stop all that live, in order."""
        self.resource_manager.stop()
        brokers = [*self.brokers.values(), self.fresh]
        for broker in brokers:
            broker.ask_to_stop()
        for broker in brokers:
            broker.stop()

    def ask(self, *words: str, also_fine: Sequence[int] = ()) -> str:
        """Run one of our commands as who administers the cluster; see `ask`."""
        return ask([*words, "--config", str(self.credentials.config)], also_fine=also_fine)

    def connections(self) -> list[dict[str, Any]]:
        """Those of the primary, as `qpid-stat -c` tells them."""
        return list(json.loads(self.ask("qpid-stat", "-c", "--format", "json")))

    def states(self) -> dict[str, str]:
        """What each broker says it is, by address, as `qpid-ha status --all` tells it; "" for one that does not answer."""
        answer = self.ask("qpid-ha", "status", "--all", "--format", "json", "--timeout", "3", also_fine=(3,))
        return {str(item["broker"]): str(item["status"]) for item in json.loads(answer)}

    def state(self, address: str) -> str:
        """The same of one; "" while it does not answer."""
        url = f"amqps:{OPERATOR}@{address}"
        answer = self.ask("qpid-ha", "status", "--format", "json", "-b", url, "--timeout", "3", also_fine=(3,))
        return str(json.loads(answer)["status"]) if answer else ""

    @property
    def url(self) -> str:
        """The cluster's, for who administers it."""
        return f"amqps:{OPERATOR}@{','.join(self.addresses)}"

    @property
    def fresh_url(self) -> str:
        """The same of the fresh broker."""
        return f"amqps:{OPERATOR}@{self.fresh_address}"

    def primary(self) -> str:
        """The address of the primary; "" when there is none just now."""
        return next((address for address, state in self.states().items() if state == "active"), "")


def ask(words: Sequence[str], *, also_fine: Sequence[int] = (), timeout_s: float = STEP_TIMEOUT_S) -> str:
    """Run one of our commands to its end, and return its stdout. Failed when it is refused."""
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
    """Ask again and again; `meanwhile` is called each time. Failed after too long."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        meanwhile()
        if time.monotonic() > deadline:
            raise Failed(f"after {timeout_s:.0f} s still not so: {what}")
        time.sleep(poll_s)
