"""A run of the workload: clients in their own processes, their reports to the checker, and the end of the run.

Life of a run: entering it starts the clients, which send and receive until `finish`. A thread reads and counts their reports.
`finish` tells the producers to stop, waits until each message has its outcome, waits until the consumers have received
everything that was accepted and nothing more arrives, ends them, and completes the report. Leaving the run ends every process,
and a process whose run is gone, for any reason, ends by itself.

Invariants: no client outlives its run; no wait is unlimited: when nothing has arrived for a while, missing messages count as
missing, and the report says that the queues were not drained.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from broker.core.sasl_client import ANONYMOUS, Login
from broker.tls_files import NO_TLS, TlsFiles
from cli.verify import clients
from cli.verify.clients import Broken, Ended, Setting, Turn
from cli.verify.core.bodies import Bodies, Numbered
from cli.verify.core.checker import Checker, Report
from cli.verify.core.measures import Gap, Histogram, Latency, Measures, longest_gap_s

POLL_S = 0.05
QUIET_S = 0.5
"""A queue that nobody can be asked about counts as empty when nothing has come for so long."""
END_S = 15.0
RECONNECT_S = 0.015
"""Between two attempts to connect, of all clients together: many of them must not keep brokers from recovering."""
MAX_TROUBLE = 100
MAX_TOLD = 2
FASTEST_PER_S = 1e6
"""What "as fast as it goes" means."""


_FORKS = multiprocessing.get_context("forkserver")
"""Clients are forked from a process that has their module loaded: to load it takes a fifth of a second of processor time."""
_FORKS.set_forkserver_preload([clients.__name__])


class RunError(Exception):
    """The run cannot go on. The text of this is one line for people."""


@dataclass(frozen=True)
class Workload:
    """What is to be sent and received. The queues exist already.

    `rate`: messages a second over all producers; None is as fast as they go. `login`: who the clients are.
    """

    addresses: Sequence[str]
    queues: Sequence[str]
    producers: int = 1
    consumers: int = 1
    size: int = 100
    bodies: Bodies | None = None
    """What messages hold, instead of `size` bytes that are made up."""
    rate: float | None = None
    window: int = 300
    """Messages that a producer may have without an outcome, and a consumer's credit for each queue."""
    at_least: int = 0
    """Messages that each producer sends before it may end."""
    heartbeat_s: float = 5.0
    """A broker that is silent for so long is given up."""
    once: bool = False
    """Whether producers number what they send, so that what is sent again is there once."""
    login: Login = field(default=ANONYMOUS, repr=False)
    tls: TlsFiles = NO_TLS


@dataclass
class ClientState:
    """A client as it last told of itself."""

    name: str
    role: str
    number: int
    pipe: Connection
    process: Any
    opened: int = 0
    here: int = 0
    connected: bool = False
    idle: bool = True
    ended: Ended | None = None
    gone: bool = False
    """Whether its pipe has ended."""
    trouble: list[str] = field(default_factory=list)


class Run:
    """One run; see the module."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.clients: list[ClientState] = []
        self.accepted = 0
        """Messages accepted so far."""
        self.received = 0
        """Messages received so far, each counted once."""
        self.checker = Checker(workload.queues, workload.producers, workload.consumers, once=workload.once)
        self._name = uuid.uuid4().hex[:8]
        self._changed = threading.Condition()
        self._broken = ""
        self._moved_s = self._came_s = time.monotonic()
        self._first_s, self._last_s = math.inf, 0.0
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._leaving = False
        self._meanwhile: Callable[[], None] = lambda: None

    # ---- its life

    def __enter__(self) -> Run:
        self.open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self) -> None:
        """Start the clients."""
        try:
            for role, count in (("consumer", self.workload.consumers), ("producer", self.workload.producers)):
                for number in range(count):
                    self.clients.append(self._start(role, number))
        except BaseException:
            self._end()
            raise
        self._listener.start()

    def close(self) -> None:
        """End the clients that have not ended; nothing when there are none."""
        self._leaving = True
        self._end()
        if self._listener.is_alive():
            self._listener.join(END_S)

    def _start(self, role: str, number: int) -> ClientState:
        work = self.workload
        setting = Setting(
            role=role,
            number=number,
            run=self._name,
            addresses=tuple(work.addresses),
            queues=tuple(work.queues),
            bodies=work.bodies or Numbered(work.size),
            window=work.window,
            rate=FASTEST_PER_S if work.rate is None else work.rate / work.producers,
            at_least=work.at_least,
            heartbeat_s=work.heartbeat_s,
            once=work.once,
            reconnect_s=RECONNECT_S * max(work.producers + work.consumers, 2),
            login=work.login,
            tls=work.tls,
        )
        ours, theirs = _FORKS.Pipe()
        process = _FORKS.Process(target=clients.run, args=(theirs, setting), daemon=True)
        _without_interrupts(process.start)
        theirs.close()
        return ClientState(f"{role} {number}", role, number, ours, process)

    def _end(self) -> None:
        for client in self.clients:
            if client.process.is_alive():
                client.process.kill()
        for client in self.clients:
            client.process.join(END_S)

    # ---- what the clients tell

    def _listen(self) -> None:
        try:
            self._hear_all()
        except Exception:
            with self._changed:
                self._broken = f"the checker has failed:\n{traceback.format_exc()}"
                self._changed.notify_all()

    def _hear_all(self) -> None:
        pipes = {client.pipe: client for client in self.clients}
        while pipes:
            for pipe in wait(list(pipes), timeout=1.0):
                assert isinstance(pipe, Connection)
                client = pipes[pipe]
                try:
                    said = pipe.recv()
                except (EOFError, OSError):
                    said = None
                    del pipes[pipe]
                with self._changed:
                    self._hear(client, said)
                    self._changed.notify_all()

    def _hear(self, client: ClientState, said: Turn | Ended | Broken | None) -> None:
        match said:
            case Turn():
                self._hear_turn(client, said)
            case Ended():
                client.ended = said
            case Broken():
                self._broken = f"the {client.name} has failed:\n{said.text}"
            case None:
                client.gone = True
                if client.ended is None and not self._leaving and not self._broken:
                    self._broken = f"the process of the {client.name} has ended by itself"

    def _hear_turn(self, client: ClientState, turn: Turn) -> None:
        checker, number = self.checker, client.number
        client.opened, client.here, client.idle = turn.opened, turn.here, turn.idle
        client.trouble = (client.trouble + turn.trouble)[-MAX_TROUBLE:]
        if turn.attached:
            client.connected = True
            if client.role == "consumer":
                checker.attached(number, turn.at_s)
        for runs, count in (
            (turn.sent, checker.sent),
            (turn.sent_again, checker.sent_again),
            (turn.accepted, checker.accepted),
            (turn.refused, checker.refused),
            (turn.unconfirmed, checker.unconfirmed),
        ):
            for stream, found in runs.items():
                for run in found:
                    count(stream, *run)
        for stream, found in turn.received.items():
            for run in found:
                checker.received(number, stream, *run, turn.at_s)
        for stream, one in turn.altered:
            checker.altered(stream, one)
        for what in turn.strange:
            checker.strange(what)
        if turn.detached:
            client.connected = False
            if client.role == "consumer":
                checker.detached(number, turn.at_s, silent=turn.silent)
        self._count(turn)

    def _count(self, turn: Turn) -> None:
        accepted, received = _numbers(turn.accepted), _numbers(turn.received)
        self.accepted += accepted
        self.received = self.checker.arrived
        if turn.sent:
            self._first_s = min(self._first_s, turn.at_s)
        if accepted:
            self._last_s = turn.at_s
        if received or turn.strange:
            self._came_s = turn.at_s
        if accepted or received or turn.refused or turn.strange:
            self._moved_s = turn.at_s

    # ---- waiting

    def check(self) -> None:
        """RunError when a client has failed."""
        if self._broken:
            raise RunError(self._broken)

    def reaches(self, *, accepted: int = 0, received: int = 0, timeout_s: float = 60.0) -> bool:
        """Wait until so many messages were accepted and received, or the time is over; whether they were."""
        return self._until(lambda: self.accepted >= accepted and self.received >= received, timeout_s)

    def wait_for(self, *, accepted: int = 0, received: int = 0, timeout_s: float = 60.0) -> None:
        """Wait until so many messages were accepted and received. RunError when the time is over."""
        if not self.reaches(accepted=accepted, received=received, timeout_s=timeout_s):
            raise RunError(
                f"{self.accepted} accepted and {self.received} received, and not {accepted} and {received}, "
                f"after {timeout_s:g} s; {self.plight()}"
            )

    def begins(self, timeout_s: float) -> bool:
        """Wait until every client has found a broker, or the time is over; whether they have."""
        return self._until(lambda: all(client.opened for client in self.clients), timeout_s)

    def pause(self, seconds: float) -> None:
        """Let it go on for so long."""
        self._until(lambda: False, seconds)

    def _until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._broken) or is_so(), timeout_s)
            self.check()
            return is_so()

    def _while_moving(self, is_so: Callable[[], bool], still_s: float) -> bool:
        """Wait until it is so, or nothing has moved for so long; whether it is."""
        began_s = time.monotonic()
        while not self._until(is_so, POLL_S):
            self._meanwhile()
            if time.monotonic() - max(self._moved_s, began_s) > still_s:
                return False
        return True

    def plight(self) -> str:
        """How the clients are, for one who wonders why nothing moves."""
        said = []
        for role in ("producer", "consumer"):
            some = self._of(role)
            served = sum(client.connected or client.ended is not None for client in some)
            said.append(f"{served} of {len(some)} {role}s with a broker")
        return "; ".join([*said, *self.trouble()[-MAX_TOLD:]])

    def trouble(self) -> list[str]:
        """What brokers have said when they refused a client something."""
        return [f"{client.name}: {text}" for client in self.clients for text in client.trouble]

    def opened(self, role: str) -> int:
        """How many connections the producers, or consumers, have had so far."""
        return sum(client.opened for client in self._of(role))

    def is_served(self) -> bool:
        """Whether every client has a connection, or has ended in order."""
        return all(client.connected or client.ended for client in self.clients)

    def _of(self, role: str) -> list[ClientState]:
        return [client for client in self.clients if client.role == role]

    # ---- the end

    def finish(
        self, *, timeout_s: float = 90.0, empty: Callable[[], bool] | None = None, meanwhile: Callable[[], None] | None = None
    ) -> Report:
        """Let the producers settle and the consumers drain, end them, and settle the account.

        timeout_s: when nothing has moved for so long, what is missing is given up. empty: whether the queues are; without it they
        count as empty when nothing has come for QUIET_S. meanwhile: is called every POLL_S. This may be called again after an
        exception that came while it waited.
        """
        self._meanwhile = meanwhile or self._meanwhile
        producers, consumers = self._of("producer"), self._of("consumer")
        self._say(producers, "enough")
        settled = self._while_moving(lambda: all(client.ended for client in producers), timeout_s)
        self._stop(producers)
        drained = not consumers or self._drain(empty, timeout_s)
        served = self.is_served()
        self._stop(consumers)
        with self._changed:
            return self.checker.report(self._measures(drained and settled, served))

    def _drain(self, empty: Callable[[], bool] | None, still_s: float) -> bool:
        """Wait until everything has come and nothing is left, or nothing has moved for so long; whether nothing is left."""
        began_s = time.monotonic()
        while True:
            if self._until(self._has_come, POLL_S) and (empty() if empty else time.monotonic() - self._came_s > QUIET_S):
                return True
            if time.monotonic() - max(self._moved_s, began_s) > still_s:
                return False
            self._until(lambda: False, POLL_S)
            self._meanwhile()

    def _has_come(self) -> bool:
        return self.checker.missing() == 0 and all(client.idle for client in self._of("consumer"))

    def _stop(self, some: list[ClientState]) -> None:
        """End clients, and hear their last words."""
        self._say(some, "stop")
        if not self._until(lambda: all(client.ended for client in some), END_S):
            raise RunError(f"a client has not ended after {END_S:g} s; {self.plight()}")

    def _say(self, some: list[ClientState], word: str) -> None:
        for client in some:
            if not client.ended:
                try:
                    client.pipe.send(word)
                except OSError:
                    continue  # it has just ended, and its last words are on their way

    def gaps(self, role: str) -> list[Gap]:
        """The gaps of all producers, or consumers, that have ended."""
        return sorted(gap for client in self._of(role) if client.ended for gap in client.ended.gaps)

    def _measures(self, drained: bool, served: bool) -> Measures:
        return Measures(
            seconds=max(self._last_s - self._first_s, 0.0),
            connections=sum(client.opened for client in self.clients),
            accept_gap_s=longest_gap_s(self.gaps("producer")),
            receive_gap_s=longest_gap_s(self.gaps("consumer")),
            accept_latency=self._latency("producer"),
            receive_latency=self._latency("consumer"),
            drained=drained,
            served=served,
        )

    def _latency(self, role: str) -> Latency:
        merged = Histogram()
        for client in self._of(role):
            if client.ended:
                merged.merge(client.ended.latency)
        return Latency.of(merged)


def _numbers(runs: clients.Runs) -> int:
    return sum(count for found in runs.values() for _, count in found)


def _without_interrupts(start: Callable[[], None]) -> None:
    """Start a process that does not hear Ctrl-C, not even while it starts."""
    if threading.current_thread() is not threading.main_thread():
        start()
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        start()
    finally:
        signal.signal(signal.SIGINT, before)
