"""Urgent sockets go first: the real reactor, whose turn is long because of others."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from broker.net.listener import listen
from broker.net.reactor import LOOK_S
from tests.broker.real_time import until

reactor: Any = installed_reactor
BUSY = 12


class Answering(Protocol):
    """Says what it was told, and ends."""

    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)
        self.transport.loseConnection()


class Turn:
    """Sockets that all have something in one turn of the reactor, each of which takes long. At the first one a client connects to
    the other port; what it has heard is looked up at each of those that follow."""

    def __init__(self) -> None:
        self.port = 0
        self.heard: list[bytes] = []
        self.client = socket.socket()

    def busy(self) -> None:
        if self.heard:
            said = b""
            with suppress(BlockingIOError):
                said = self.client.recv(100)
            self.heard.append(said)
        else:
            self.client.connect(("127.0.0.1", self.port))
            self.client.sendall(b"alive?")
            self.client.setblocking(False)
            self.heard.append(b"")
        time.sleep(LOOK_S)


@pytest.mark.parametrize("urgent", [True, False])
@pytest_twisted.ensureDeferred
async def test_an_urgent_socket_waits_for_one_that_is_served_and_others_for_all(urgent: bool) -> None:
    """Breaks when a probe waits for every client of a busy broker, three times: to be accepted, read and answered."""
    turn = Turn()

    class Busy(Protocol):
        def dataReceived(self, data: bytes) -> None:
            turn.busy()

    def serve(protocol: type[Protocol], *, urgent: bool = False) -> Any:
        factory: Any = ServerFactory.forProtocol(protocol)
        return listen(reactor, factory, 0, "127.0.0.1", urgent=urgent)

    busy, other = serve(Busy), serve(Answering, urgent=urgent)
    turn.port = other.getHost().port
    clients = [socket.create_connection(("127.0.0.1", busy.getHost().port)) for _ in range(BUSY)]
    try:
        before = len(reactor.getReaders())
        await until(lambda: len(reactor.getReaders()) >= before + BUSY)
        for client in clients:
            client.sendall(b"work")
        await until(lambda: len(turn.heard) == BUSY)
        if urgent:
            assert b"alive?" in turn.heard[1:4]
        else:
            assert set(turn.heard) == {b""}, "it is accepted in the next turn"
    finally:
        for client in (*clients, turn.client):
            client.close()
        await busy.stopListening()
        await other.stopListening()


class Failing(Protocol):
    """Has an error when its socket ends."""

    def connectionLost(self, *reason: Failure) -> None:
        raise ZeroDivisionError("at the end of a socket")


@pytest_twisted.ensureDeferred
async def test_an_error_at_the_end_of_a_socket_is_logged_and_stays_there() -> None:
    """Breaks when it leaves the turn: the sockets that come after it wait for the next one."""
    factory: Any = ServerFactory.forProtocol(Failing)
    port: Any = listen(reactor, factory, 0, "127.0.0.1")
    with capturedLogs() as logs:
        before = len(reactor.getReaders())
        clients = [socket.create_connection(("127.0.0.1", port.getHost().port)) for _ in range(2)]
        await until(lambda: len(reactor.getReaders()) == before + 2)
        for client in clients:
            client.close()
        await until(lambda: len(reactor.getReaders()) == before)
    await port.stopListening()
    failures = [event["log_failure"] for event in logs if "log_failure" in event]
    assert [failure.type for failure in failures] == [ZeroDivisionError] * 2
    assert not [event for event in logs if "main loop" in (formatEvent(event) or "")], "the turn ended early"
