"""The line to one broker: a management connection that is kept up, and the questions asked over it.

Life of a `Probe`: it connects. If that fails, it tries again after a short pause that doubles up to a limit. While
connected it sends QUERY ha each interval (with jitter, so that daemons do not ask at the same time), and at once when
`ask` is called. It calls the listener: connected, answered, lost. The connection's own heartbeat ends it when the
broker is silent for long. The detector decides about shorter silences, from the times of the answers.

Invariants: at most `MAX_QUESTIONS` questions wait for an answer. After `stop` the listener is not called any more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from broker.client import ClientError, ManagementClient
from broker.core.urls import Address
from resource_manager.settings import jittered

if TYPE_CHECKING:
    from broker.net.credentials import Credentials

MAX_QUESTIONS = 8
CONTAINER = "qpid-resource-manager:"
"""The AMQP container id of a daemon's connection is this and its name, so that daemons find each other in a broker's
list.
"""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class ProbeListener(Protocol):
    """The listener. It is called in the reactor's thread."""

    def on_connected(self, name: str) -> None:
        """The connection to that broker is open."""

    def on_answer(self, name: str, item: dict[str, Any]) -> None:
        """The broker has answered QUERY ha with that item."""

    def on_lost(self, name: str, reason: str) -> None:
        """The connection has ended, or could not be made."""


@dataclass(frozen=True, slots=True)
class Line:
    """The settings of the connection to a broker: the login, and the times in seconds."""

    user: str
    password: str = field(repr=False)
    mechanism: str
    daemon: str
    interval_s: float
    detection_s: float
    credentials: Credentials | None = None
    """The credentials for brokers over TLS."""


class Answers:
    """One broker's answers since they were last taken. Times are in seconds."""

    __slots__ = ("answered", "asked", "longest_s", "total_s")

    def __init__(self) -> None:
        self.asked = self.answered = 0
        self.total_s = self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Add an answer after that time."""
        self.answered += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    @property
    def mean_s(self) -> float | None:
        """The mean time; None without an answer."""
        return self.total_s / self.answered if self.answered else None


class Probe:
    """Keeps the connection to one broker. `jitter` gives numbers in [0, 1)."""

    def __init__(self, reactor: Any, address: Address, line: Line, listener: ProbeListener, jitter: Callable[[], float]) -> None:
        self.name = address.name
        self._reactor = reactor
        self._address = address
        self._line = line
        self._listener = listener
        self._jitter = jitter
        self._client: ManagementClient | None = None
        self._connecting: Deferred[ManagementClient] | None = None
        self._timer: Any = None
        self._pause_s = _FIRST_PAUSE_S
        self._questions = 0
        self._epoch: int | None = None
        """The last epoch of whose primary its last answer can know: while an epoch has none, an election in it may go on."""
        self._answers = Answers()
        self._stopped = False

    def start(self) -> None:
        """Begin to connect."""
        self._connect()

    def stop(self) -> None:
        """End the connection without a call to the listener."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._client is not None:
            self._client.abort()

    def ask(self) -> None:
        """Query the broker at once, if it is connected and not too many answers are outstanding."""
        client = self._client
        if client is None or self._questions >= MAX_QUESTIONS:
            return
        self._questions += 1
        self._answers.asked += 1
        asked_s = self._reactor.seconds()
        question = client.request("QUERY", "ha", timeout_s=4 * self._line.detection_s)
        question.addCallbacks(
            lambda body: self._answered(client, body, asked_s), lambda failure: self._unanswered(client, failure)
        )

    def take_answers(self) -> Answers:
        """The broker's answers since the last call."""
        found, self._answers = self._answers, Answers()
        return found

    def promote(self, reason: str, timeout_s: float, manager: str) -> Deferred[dict[str, Any]]:
        """Ask the broker to promote itself, as this kind of manager, unless a primary was elected since its last
        answer. Returns the answer's body, or raises ClientError. Call it only while connected.
        """
        assert self._client is not None, "a broker without a connection was asked to promote itself"
        body = {"reason": reason, "insist": False, "manager": manager, "epoch": self._epoch}
        return self._client.request("PROMOTE", "ha", body=body, timeout_s=timeout_s + 0.5)

    def daemons(self) -> Deferred[frozenset[str]]:
        """The names of the daemons that are connected to this broker; none if it cannot tell."""
        return ensureDeferred(self._daemons())

    async def _daemons(self) -> frozenset[str]:
        names: set[str] = set()
        with suppress(ClientError):
            if self._client is not None:
                items = await self._client.query("connection", timeout_s=4 * self._line.detection_s)
                containers = [str(item.get("container", "")) for item in items if isinstance(item, dict)]
                names.update(one.removeprefix(CONTAINER) for one in containers if one.startswith(CONTAINER))
        return frozenset(names)

    def _connect(self) -> None:
        line = self._line
        self._connecting = ManagementClient.connect(
            self._reactor,
            self._address,
            user=line.user or None,
            password=line.password or None,
            mechanism=line.mechanism or None,
            timeout_s=2 * line.detection_s,
            heartbeat_s=line.detection_s,
            container=f"{CONTAINER}{line.daemon}",
            seconds=self._reactor.seconds,
            credentials=line.credentials,
        )
        self._connecting.addCallbacks(self._connected, self._refused)

    def _connected(self, client: ManagementClient) -> None:
        self._connecting = None
        if self._stopped:
            client.abort()
            return
        self._client, self._questions, self._pause_s = client, 0, _FIRST_PAUSE_S
        client.lost.addCallback(self._lost)
        self._listener.on_connected(self.name)
        self._ask_regularly()

    def _ask_regularly(self) -> None:
        self.ask()
        self._timer = self._reactor.callLater(jittered(self._line.interval_s, self._jitter), self._ask_regularly)

    def _answered(self, client: ManagementClient, body: dict[str, Any], asked_s: float) -> None:
        self._questions -= 1
        self._answers.add(self._reactor.seconds() - asked_s)
        items = body.get("items") or [{}]
        if not self._stopped and client is self._client and isinstance(items[0], dict):
            epoch = items[0].get("epoch")
            self._epoch = None if not isinstance(epoch, int) else epoch if items[0].get("primary") else epoch - 1
            self._listener.on_answer(self.name, items[0])

    def _unanswered(self, client: ManagementClient, failure: Failure) -> None:
        if not isinstance(failure.value, ClientError):
            failure.raiseException()
        if client is self._client:
            self._questions -= 1

    def _refused(self, failure: Failure) -> None:
        self._connecting = None
        if not isinstance(failure.value, ClientError):
            failure.raiseException()
        self._lost(str(failure.value).removeprefix(f"{self.name}: "))

    def _lost(self, reason: str) -> None:
        self._client = None
        if self._stopped:
            return
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = self._reactor.callLater(jittered(self._pause_s, self._jitter), self._connect)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._listener.on_lost(self.name, reason)
