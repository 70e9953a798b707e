"""What a listening port tells the broker of a socket."""

from __future__ import annotations

import socket as socket_module
import time
from collections.abc import Callable
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import defer, reactor, task
from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Protocol
from twisted.internet.tcp import Port

from broker.core import limits
from broker.core.identity import Certificate, Socket
from broker.net.listener import ConnectionFactory, listen
from tests.broker.clients import bench

PATIENCE_S = 30.0


def test_a_socket_in_the_clear_has_an_address_and_no_certificate() -> None:
    """Breaks when what comes in the clear counts as encrypted: passwords would be taken over it."""
    assert told(IPv4Address("TCP", "192.0.2.7", 40_000)) == Socket("192.0.2.7:40000", encrypted=False, certificate=None)


def test_a_socket_without_an_address_is_taken_all_the_same() -> None:
    assert told(UNIXAddress("")).address == "unknown"


def test_a_connection_keeps_what_its_socket_told() -> None:
    """Breaks when who logs a client in, or a member, cannot see by what it came."""
    with bench() as broker:
        socket = Socket("192.0.2.7:40000", True, Certificate("CN=app"))
        connection = broker.broker.new_connection(socket)
        assert connection is not None
        assert connection.socket is socket
        shown = connection.describe()
        assert (shown["address"], shown["encrypted"], shown["certificate"]) == ("192.0.2.7:40000", True, "CN=app")
        connection.engine.free()


@pytest_twisted.inlineCallbacks
def test_a_port_accepts_few_sockets_at_once_and_all_of_them_in_the_end(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Breaks when a flood of connections makes one turn of the reactor as long as there are connections."""
    turns: list[int] = []
    do_read = Port.doRead

    def counting(port: Port) -> None:
        before = len(sockets)
        do_read(port)
        turns.append(len(sockets) - before)

    sockets: list[Socket] = []

    def taken(socket: Socket) -> Protocol:
        sockets.append(socket)
        return Protocol()

    monkeypatch.setattr(Port, "doRead", counting)
    port: Any = listen(reactor, ConnectionFactory(taken), 0, "127.0.0.1")
    clients = [socket_module.create_connection(("127.0.0.1", port.getHost().port)) for _ in range(3 * limits.ACCEPTS_AT_ONCE + 1)]
    while len(sockets) < len(clients):
        yield task.deferLater(reactor, 0.001, lambda: None)
    assert max(turns) == limits.ACCEPTS_AT_ONCE
    for client in clients:
        client.close()
    yield port.stopListening()


@pytest_twisted.inlineCallbacks
def test_a_port_for_clients_accepts_in_the_share_of_a_turn_and_no_faster_than_they_are_let_in() -> Any:
    """Breaks when sockets are accepted while those who are connected already wait for their share."""
    share, sockets = Share(), []

    def taken(socket: Socket) -> Protocol:
        sockets.append(socket)
        return Protocol()

    port: Any = listen(reactor, ConnectionFactory(taken), 0, "127.0.0.1", share=share)
    where = "127.0.0.1", port.getHost().port
    count = limits.ACCEPTS_AT_ONCE + 1
    clients = [socket_module.create_connection(where) for _ in range(count)]
    yield until(lambda: len(sockets) == count)
    assert share.spent_s > 0, "it is counted"
    assert share.waiting == []
    share.is_left = False
    clients += [socket_module.create_connection(where) for _ in range(count)]
    yield until(lambda: bool(share.waiting))
    assert (share.waiting, len(sockets)) == ([port], count), "it waits for its share"
    assert port.go_on(), "there are more"
    assert len(sockets) == count + limits.ACCEPTS_AT_ONCE
    assert not port.go_on()
    assert len(sockets) == 2 * count
    share.is_left = True
    clients.append(socket_module.create_connection(where))
    yield until(lambda: len(sockets) == len(clients))
    for client in clients:
        client.close()
    yield port.stopListening()
    assert share.waiting == [], "a port that is closed waits for nothing"


@defer.inlineCallbacks
def until(happened: Callable[[], bool]) -> Any:
    """Let the reactor turn until this holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "it has not happened"
        yield task.deferLater(reactor, 0.001, lambda: None)


class Share:
    """The share of a turn, which a test gives and takes."""

    def __init__(self) -> None:
        self.is_left = True
        self.spent_s = 0.0
        self.waiting: list[Any] = []

    def spent(self, seconds: float) -> None:
        self.spent_s += seconds

    def later(self, work: Any) -> None:
        self.waiting.append(work)

    def forget(self, work: Any) -> None:
        self.waiting = [each for each in self.waiting if each is not work]


def told(address: IAddress) -> Socket:
    sockets: list[Socket] = []

    def taken(socket: Socket) -> Protocol:
        sockets.append(socket)
        return Protocol()

    ConnectionFactory(taken).buildProtocol(address)
    return sockets[0]
