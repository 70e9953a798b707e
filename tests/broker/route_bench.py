"""Brokers in memory with routes between them: bytes go from one to the other while `Network.settle` runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from broker.client import ConnectError, ManagementClient
from broker.core import urls
from broker.core.identity import Socket
from broker.core.sasl_client import Login
from broker.net.management_wire import Wire
from tests.broker.clients import ADMIN, Bench

_A_MOMENT_S = 0.02
"""Longer than a log lets what only leaves queues wait for company."""


class _Transport(StringTransport):
    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: N802
        """As TCP has it."""

    def stopped(self) -> bool:
        return bool(self.disconnecting or self.disconnected)


class Road:
    """A connection of a route of `near` to `far`. One of `near`'s clients, as far as its bench is concerned."""

    def __init__(self, near: Bench, far: Bench, name: str) -> None:
        self.wire = Wire(near.clock, name, Login(), True, None, near.clock.seconds)
        self.moved = 0
        self.lost = False
        found = far.broker.new_connection(Socket("127.0.0.1:2"))
        assert found is not None
        self.server: Any = found
        self.there, self.here = _Transport(), _Transport()
        self.server.makeConnection(self.there)
        self.wire.makeConnection(self.here)
        near.clients.append(self)  # type: ignore[arg-type]

    def pump(self) -> bool:
        """Carry bytes both ways once; whether any moved."""
        if self.lost:
            return False
        out, back = self.here.value(), self.there.value()
        self.here.clear()
        self.there.clear()
        if out:
            self.server.dataReceived(out)
        if back and not self.lost:
            self.wire.dataReceived(back)
        self.moved += len(out) + len(back)
        if self.here.stopped() or self.there.stopped():
            self.lose()
        return bool(out or back)

    def lose(self) -> None:
        """The TCP connection is gone."""
        if not self.lost:
            self.lost = True
            self.moved += 1
            self.server.connectionLost(Failure(ConnectionDone()))
            self.wire.connectionLost(Failure(ConnectionDone()))


class Network:
    """Brokers by the names that routes know them by. `away`: names that nobody answers at."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.brokers: dict[str, Bench] = {}
        self.away: set[str] = set()
        self.roads: list[Road] = []
        self.dialed = 0

    def add(self, name: str, **options: Any) -> Bench:
        """A broker of this name; it is closed at the end."""
        near: Bench = Bench(**options, dial=lambda source, mechanism: self._dial(near, source), new_id=_ids(name), identity=name)
        self.brokers[name] = near
        if near.broker.logs.nodes.clustered and "machine_version" not in options:
            near.upgraded()
        self._stack.callback(near.close)
        return near

    def _dial(self, near: Bench, source: str) -> Deferred[ManagementClient]:
        self.dialed += 1
        names = [address.host for address in urls.parse(source).addresses]
        found = next((name for name in names if name not in self.away and self.brokers[name].broker.logs.serving), None)
        if found is None:
            return fail(ConnectError(f"no primary among {', '.join(names)}"))
        road = Road(near, self.brokers[found], f"{found}:5672")
        self.roads.append(road)
        opened = road.wire.opened.addCallback(lambda _: ManagementClient(near.clock, f"{found}:5672", road.wire))
        made: Deferred[ManagementClient] = opened
        return made

    def settle(self) -> None:
        """Let everything happen that happens without the passing of noticeable time."""
        for _ in range(2000):
            before = sum(road.moved for road in self.roads), self.dialed
            for each in self.brokers.values():
                each.settle()
            if before == (sum(road.moved for road in self.roads), self.dialed):
                return
        raise AssertionError("the brokers never come to rest")

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        """Let time pass, and settle at each step."""
        passed = 0.0
        while passed < seconds:
            for each in self.brokers.values():
                each.clock.advance(step)
            self.settle()
            passed += step

    def ask(self, at: str, operation: str, type: str, name: str = "", /, **body: Any) -> tuple[int, str, Any]:
        """A request to management, and what came of it."""
        client = self.brokers[at].client(ADMIN)
        answer = client.request(operation, type, name, body)
        client.connection.close()
        self.settle()
        return answer

    def route(self, at: str, source: str, exchange: str, key: str, kind: str = "queue", **more: Any) -> None:
        """Make a route there, and let it begin."""
        status, text, _ = self.ask(at, "CREATE", "route", kind=kind, source=source, exchange=exchange, key=key, **more)
        assert status == 201, text
        self.pass_time(2 * _A_MOMENT_S, _A_MOMENT_S)

    def item(self, at: str) -> dict[str, Any]:
        """The one route that there is."""
        _, _, body = self.ask(at, "QUERY", "route")
        (item,) = body["items"]
        return dict(item)

    def send(self, at: str, address: str, *bodies: Any, **fields: Any) -> None:
        """Messages from a client."""
        client = self.brokers[at].client()
        client.send(client.sender(address), *bodies, **fields)
        client.connection.close()
        self.pass_time(2 * _A_MOMENT_S, _A_MOMENT_S)

    def messages(self, at: str, queue: str) -> list[Any]:
        """What is on a queue, as a browser sees it."""
        client = self.brokers[at].client(ADMIN)
        link = client.receiver(queue, browse=True, credit=10_000)
        found = [message for _, message in client.received[link.name]]
        client.connection.close()
        self.settle()
        return found

    def bodies(self, at: str, queue: str) -> list[Any]:
        """Their bodies."""
        return [message.body for message in self.messages(at, queue)]

    def cut(self) -> None:
        """Every connection of a route breaks, with all that is on it."""
        for road in self.roads:
            road.lose()
        self.pass_time(2 * _A_MOMENT_S, _A_MOMENT_S)


def _ids(name: str) -> Any:
    made = iter(range(1 << 30))
    return lambda: f"{name}-{next(made)}"


@contextmanager
def network() -> Iterator[Network]:
    """Brokers that are closed and checked at the end."""
    with ExitStack() as stack:
        made = Network(stack)
        yield made
        for each in made.brokers.values():
            each.broker.routes.over()
        made.settle()
