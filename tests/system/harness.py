"""Real broker processes on loopback, for tests that kill them.

Life of a `Cluster`: it takes free ports, starts brokers with stores below one folder, and waits until they answer. A test
kills and restarts them. Leaving the context stops every process that it started, by its id. No test sleeps for a fixed time:
`eventually` asks until the answer is right or a deadline has passed, and then reports the last answer.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from proton import Message, ProtonException, symbol
from proton.utils import BlockingConnection, SyncRequestResponse

from cli.programs import MODULES
from tests import shared_tls
from tests.cli.running import Forked

shared_tls.share()

T = TypeVar("T")
Request = tuple[str, str, str, dict[str, Any]]
"""Operation, type, name and body of a management request."""
START_S = 120.0
"""How long to wait for actions that take a moment on an idle machine; the value matters only when a test fails."""
_SIGNS_OF_A_FAULT = ("Traceback", "Unhandled", "AssertionError", "critical")


class Refused(Exception):
    """A management request was refused, with this status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class NoPrimary(Exception):
    """No broker of the cluster reports that it is active."""


def eventually(ask: Callable[[], T], wanted: Callable[[T], bool], what: str, timeout_s: float = START_S) -> T:
    """Ask until the answer is wanted. The interval grows, because the brokers need the processor too. AssertionError with the
    last answer if the wanted one does not come in time."""
    began, last = time.monotonic(), "none"
    while (waited := time.monotonic() - began) < timeout_s:
        try:
            answer = ask()
            if wanted(answer):
                return answer
            last = repr(answer)
        except (ProtonException, OSError, Refused, NoPrimary) as error:
            last = repr(error)
        time.sleep(min(max(0.02, waited / 20), 0.2))
    raise AssertionError(f"{what} did not happen within {timeout_s} s; last answer: {last}")


@functools.cache
def ports_of(worker: int, workers: int) -> Iterator[int]:
    """The ports that this process tries; all of them are tried before one is repeated."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    own = range(10_000 + worker, max(end, 20_000), workers)
    return itertools.cycle(random.sample(own, len(own)))


def free_ports(count: int) -> list[int]:
    """Free ports of loopback. No outgoing connection can get one of them while its broker is down, no other worker of the
    same run takes them, and this worker has not used them lately, because such a port may not be ready to listen again."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % workers
    found: list[int] = []
    for port in itertools.islice(ports_of(own, workers), 200):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"there are not {count} free ports on 127.0.0.1")


def spawn(log_file: Path, command: str, *words: str) -> Forked:
    """Start one of our commands (qpidd, ...) as a process that writes to `log_file`, in the network namespace of this thread.

    It is forked from a process that has its modules loaded (`tests.cli.zygote`): this takes a few hundredths of a second of
    processor time; a new interpreter takes half a second.
    """
    with log_file.open("ab") as log:
        return Forked(MODULES[command], command, words, log.fileno(), log.fileno())


class AdminConnection(BlockingConnection):
    """An administrative connection, which a backup accepts too."""

    def on_transport_tail_closed(self, event: Any) -> None:
        """Notice a dead broker also while closing. Without this, proton waits for the broker's answer until the timeout."""
        super().on_transport_tail_closed(event)
        self.disconnected = self.disconnected or True


def admin(address: str, timeout_s: float = 5.0) -> AdminConnection:
    """Open an administrative connection."""
    return AdminConnection(address, timeout=timeout_s, properties={symbol("qpid.ha-admin"): True})


class Asker:
    """Asks one broker over one connection, which is made when it is first needed, and again after it was lost.

    A new connection costs both sides four times as much as a request, so this is for callers that ask many times.
    """

    def __init__(self, address: str, timeout_s: float = 10.0) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._connection: AdminConnection | None = None
        self._client: Any = None

    def ask(self, operation: str, kind: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make one management request; Refused if the status is not 2xx."""
        try:
            if self._connection is None:
                self._connection = admin(self._address, self._timeout_s)
                self._client = SyncRequestResponse(self._connection, "$management")
            request = Message(body=body, properties={"operation": operation, "type": kind, "name": name})
            reply = self._client.call(request)
        except BaseException:
            self.close()
            raise
        status = int(reply.properties["statusCode"])
        if not 200 <= status < 300:
            raise Refused(status, reply.properties["statusDescription"])
        return dict(reply.body)

    def close(self) -> None:
        """End the connection. Errors are ignored, because the broker may have ended, or be stopped."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(ProtonException, OSError):
                connection.close()


def ask_all(address: str, *requests: Request, timeout_s: float = 10.0) -> list[dict[str, Any]]:
    """Make management requests to the broker at `address`, one after the other over one connection.

    Refused if the status of one is not 2xx.
    """
    with contextlib.closing(Asker(address, timeout_s)) as asker:
        return [asker.ask(*request) for request in requests]


def ask(
    address: str, operation: str, kind: str, name: str = "", body: dict[str, Any] | None = None, timeout_s: float = 10.0
) -> dict[str, Any]:
    """Make one management request to the broker at `address`; Refused if the status is not 2xx."""
    return ask_all(address, (operation, kind, name, body or {}), timeout_s=timeout_s)[0]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a broker: its IP address, the context (for example a network namespace) in which it is started, and its
    port, 0 for any free one."""

    host: str = "127.0.0.1"
    inside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    port: int = 0


LOOPBACK = Place()


class BrokerProcess:
    """One qpidd process and its store, over all its restarts."""

    def __init__(self, folder: Path, port: int, options: list[str], place: Place = LOOPBACK) -> None:
        self.store = folder / "store"
        self.port = port
        self.place = place
        self.address = f"{place.host}:{port}"
        self.url = self.address
        """The address for clients."""
        self.options = options
        self.process: Forked | subprocess.Popen[bytes] | None = None
        self._logged_before = 0
        self.log_file = folder / "qpidd.log"
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start the process; it does not answer at once."""
        assert self.process is None or self.process.poll() is not None, "it runs already"
        self._logged_before = self.log_file.stat().st_size if self.log_file.exists() else 0
        own = ["--port", str(self.port), "--data-dir", str(self.store), "--log-enable", "info+"]
        if self.place is not LOOPBACK:
            own += ["--interface", self.place.host]
        with self.place.inside():
            self.process = spawn(self.log_file, "qpidd", *own, *self.options)

    @property
    def running(self) -> bool:
        """Whether the process exists (it may be stopped by a signal)."""
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def freeze(self) -> None:
        """Send SIGSTOP, and wait until all its threads are stopped: a thread in a sync first ends the sync."""
        self.signal(signal.SIGSTOP)
        assert self.process is not None
        tasks = Path(f"/proc/{self.process.pid}/task")
        eventually(
            lambda: {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()},
            lambda states: states == {"T"},
            f"{self.address} standing still",
        )

    def wipe(self) -> None:
        """Delete the store of a broker that is down."""
        assert not self.running, "it runs"
        shutil.rmtree(self.store)

    def kill(self) -> None:
        """kill -9, and wait until it has ended."""
        if self.running:
            assert self.process is not None
            self.signal(signal.SIGKILL)
            self.process.wait(START_S)

    def stop(self) -> int:
        """Stop in order; returns the exit status."""
        assert self.process is not None
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        return self.process.wait(START_S)

    def status(self) -> dict[str, Any]:
        """The broker's report of itself and its cluster."""
        return dict(ask(self.address, "QUERY", "ha")["items"][0])

    def state(self) -> str:
        """joining, catchup, ready, recovering, active or standalone."""
        return str(self.status()["status"])

    def wait_for(self, *states: str, timeout_s: float = START_S) -> None:
        """Wait until the broker is in one of these states."""
        self.wait_until("status", lambda state: state in states, f"being {' or '.join(states)}", timeout_s)

    def wait_until(self, key: str, wanted: Callable[[Any], bool], what: str, timeout_s: float = START_S) -> None:
        """Wait until the broker reports a wanted value under this key."""
        with contextlib.closing(Asker(self.address)) as asker:
            eventually(lambda: asker.ask("QUERY", "ha", "", {})["items"][0][key], wanted, f"{self.address} {what}", timeout_s)

    def log(self) -> str:
        """The text that it has written to stderr."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def _said(self, *texts: bytes) -> bool:
        """Whether it has logged one of these since its last start. To look is cheaper than a request."""
        with self.log_file.open("rb") as log:
            log.seek(self._logged_before)
            said = log.read()
        return any(text in said for text in texts)

    def listens(self) -> bool:
        """Whether it has logged, since its last start, that it listens: it has replayed its logs, and answers."""
        return self._said(b"Listening on TCP", b"Listening for SSL connections on TCP")

    def has_joined(self) -> bool:
        """Whether it has logged, since its last start, that it is ready or active."""
        return self._said(b" ready in epoch ", b" active in epoch ")

    def queue(self, name: str) -> dict[str, Any]:
        """The attributes of a queue on this broker."""
        return dict(ask(self.address, "QUERY", "queue", name)["items"][0])

    def create(self, kind: str, name: str, **attributes: Any) -> None:
        """Create a queue, an exchange or a binding."""
        ask(self.address, "CREATE", kind, name, attributes)

    def check_log(self) -> None:
        """AssertionError if the log shows an error of the software: whatever happens to a broker, it must report it in a
        sentence."""
        lines = self.log().splitlines()
        for number, line in enumerate(lines):
            if any(sign in line for sign in _SIGNS_OF_A_FAULT):
                raise AssertionError(
                    f"the log of {self.address} tells of a fault:\n" + "\n".join(lines[max(number - 5, 0) : number + 40])
                )


class Cluster:
    """Brokers that know each other."""

    def __init__(
        self,
        folder: Path,
        size: int,
        options: list[str],
        places: Sequence[Place] = (),
        make: type[BrokerProcess] = BrokerProcess,
    ) -> None:
        places = places or [LOOPBACK] * size
        ports = [place.port or port for place, port in zip(places, free_ports(size), strict=True)]
        url = "amqp:" + ",".join(f"{place.host}:{port}" for place, port in zip(places, ports, strict=True))
        own = ["--ha-cluster", "yes", "--ha-brokers-url", url, *options]
        self.url = url
        self.brokers = [
            make(folder / f"broker{position}", port, own, place)
            for position, (place, port) in enumerate(zip(places, ports, strict=True))
        ]

    @property
    def addresses(self) -> list[str]:
        """host:port of each broker."""
        return [broker.address for broker in self.brokers]

    def start(self) -> None:
        """Start all brokers and wait until they answer."""
        for broker in self.brokers:
            broker.start()
        for broker in self.brokers:
            eventually(broker.listens, bool, f"{broker.address} listening")

    def promote(self, broker: BrokerProcess, timeout_s: float = START_S) -> dict[str, Any]:
        """Ask until this broker is the primary."""
        return eventually(
            lambda: ask(broker.address, "PROMOTE", "ha", body={"reason": "test"}),
            bool,
            f"promotion of {broker.address}",
            timeout_s,
        )

    def succeed(self, reason: str = "test") -> BrokerProcess:
        """Promote any running broker, after the end of the primary. Only a request shows which brokers have everything that a
        majority has accepted, and can be elected."""
        asked = {"reason": reason}

        def successor() -> BrokerProcess:
            refusals = []
            for broker in self.brokers:
                if broker.running:
                    try:
                        ask(broker.address, "PROMOTE", "ha", body=asked)
                    except Refused as refusal:
                        refusals.append(refusal)
                    else:
                        return broker
            raise NoPrimary("; ".join(map(str, refusals)))

        return eventually(successor, lambda _: True, "another primary")

    def level(self, broker: BrokerProcess) -> None:
        """Wait until this broker has applied the primary's last batch; then the batch is also on its disk."""
        last = self.primary().status()["lastIndex"]
        broker.wait_until("appliedIndex", lambda index: index >= last, f"applying batch {last}")

    def primary(self) -> BrokerProcess:
        """The active broker; NoPrimary if there is none."""
        for broker in self.brokers:
            if broker.running:
                with contextlib.suppress(ProtonException, OSError, Refused):
                    if broker.state() == "active":
                        return broker
        raise NoPrimary(f"none of {', '.join(self.addresses)} is active")

    def close(self) -> None:
        """Kill all running brokers."""
        for broker in self.brokers:
            if broker.running:
                broker.signal(signal.SIGCONT)
            broker.kill()


@contextlib.contextmanager
def cluster(
    folder: Path,
    size: int = 3,
    *options: str,
    promote: bool = True,
    places: Sequence[Place] = (),
    make: type[BrokerProcess] = BrokerProcess,
) -> Iterator[Cluster]:
    """A running cluster: the first broker is promoted, and the others are ready. It is on loopback by default."""
    brokers = Cluster(folder, size, list(options), places, make)
    try:
        brokers.start()
        if promote:
            brokers.promote(brokers.brokers[0])
            for backup in brokers.brokers[1:]:
                eventually(backup.has_joined, bool, f"{backup.address} being ready")
            rises = f"{brokers.url} rising to the version of its brokers"  # a new one begins with that of the first release
            eventually(brokers.brokers[0].status, lambda told: told.get("version") == told.get("versionHere"), rises)
        yield brokers
        for broker in brokers.brokers:
            broker.check_log()
    except BaseException:
        for broker in brokers.brokers:
            print(f"--- {broker.address}\n{broker.log()[-3000:]}", file=sys.stderr)
        raise
    finally:
        brokers.close()


@contextlib.contextmanager
def standalone(folder: Path, *options: str) -> Iterator[BrokerProcess]:
    """A running broker without a cluster."""
    broker = BrokerProcess(folder, free_ports(1)[0], list(options))
    try:
        broker.start()
        broker.wait_for("standalone")
        yield broker
        broker.check_log()
    except BaseException:
        print(f"--- {broker.address}\n{broker.log()[-3000:]}", file=sys.stderr)
        raise
    finally:
        broker.kill()
