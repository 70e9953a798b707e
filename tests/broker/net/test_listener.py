"""What a listening port tells the broker of a socket."""

from __future__ import annotations

import socket as socket_module
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor, task
from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Protocol
from twisted.internet.tcp import Port

from broker.core import limits
from broker.core.identity import Certificate, Socket
from broker.net.listener import ConnectionFactory, listen
from tests.broker.clients import bench


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


def told(address: IAddress) -> Socket:
    sockets: list[Socket] = []

    def taken(socket: Socket) -> Protocol:
        sockets.append(socket)
        return Protocol()

    ConnectionFactory(taken).buildProtocol(address)
    return sockets[0]
