"""What a listening port tells the broker of a socket."""

from __future__ import annotations

from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Protocol

from broker.core.identity import Certificate, Socket
from broker.net.listener import ConnectionFactory
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


def told(address: IAddress) -> Socket:
    sockets: list[Socket] = []

    def taken(socket: Socket) -> Protocol:
        sockets.append(socket)
        return Protocol()

    ConnectionFactory(taken).buildProtocol(address)
    return sockets[0]
