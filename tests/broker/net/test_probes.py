"""Probes by HTTP: what they say of a broker, and what strangers can do to them."""

from __future__ import annotations

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from broker.core import limits
from broker.net.probes import Health, Probes, answer

ACTIVE = Health("active", serves=True, leaves=False, primary="b1:5672")


class Asked:
    """A socket of an admin port, on which bytes are said."""

    def __init__(self, probes: Probes) -> None:
        self.protocol = probes.buildProtocol(IPv4Address("TCP", "127.0.0.1", 5000))
        self.transport = StringTransport()
        self.transport.abortConnection = self.transport.loseConnection  # type: ignore[method-assign]
        if self.protocol is not None:
            self.protocol.makeConnection(self.transport)

    def says(self, data: bytes) -> bytes:
        """What is answered to these bytes."""
        assert isinstance(self.protocol, Protocol)
        self.transport.clear()
        self.protocol.dataReceived(data)
        said: bytes = self.transport.value()
        return said


def asked(health: Health = ACTIVE, clock: Clock | None = None) -> Asked:
    return Asked(Probes(clock or Clock(), lambda: health))


@pytest.mark.parametrize(
    "health, live, started, ready",
    [
        (ACTIVE, 200, 200, 200),
        (Health("standalone", True, False, ""), 200, 200, 200),
        (Health("active", True, True, "b1:5672"), 200, 200, 503),
        (Health("recovering", False, False, "b1:5672"), 200, 200, 503),
        (Health("ready", False, False, "b1:5672"), 200, 200, 503),
        (Health("catchup", False, False, "b1:5672"), 200, 503, 503),
        (Health("joining", False, False, ""), 200, 503, 503),
    ],
)
def test_what_each_state_means_to_who_asks(health: Health, live: int, started: int, ready: int) -> None:
    answers = [answer(path, health) for path in ("/livez", "/startedz", "/readyz")]
    assert [found and found[0] for found in answers] == [live, started, ready]


def test_the_text_says_where_clients_belong() -> None:
    assert answer("/readyz", Health("ready", False, False, "b1:5672")) == (503, "ready: the primary is b1:5672")
    assert answer("/readyz", Health("joining", False, False, "")) == (503, "joining: no primary is known")
    assert answer("/readyz", Health("active", True, True, "b1:5672")) == (503, "active: about to hand over to another broker")


def test_one_socket_is_asked_again_and_again() -> None:
    socket = asked()
    for _ in range(3):
        said = socket.says(b"GET /readyz HTTP/1.1\r\nHost: b1\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 200 OK\r\n")
        assert said.endswith(b"\r\n\r\nactive\n")
        assert b"no-store" in said.lower()
    assert socket.says(b"HEAD /readyz HTTP/1.1\r\nHost: b1\r\n\r\n").endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "request_line, status",
    [
        (b"GET / HTTP/1.1", b"404"),
        (b"GET /readyz/../etc HTTP/1.1", b"404"),
        (b"GET /\xff HTTP/1.1", b"400"),
        (b"POST /readyz HTTP/1.1", b"405"),
        (b"DELETE /readyz HTTP/1.1", b"405"),
        (b"nonsense", b"400"),
    ],
)
def test_what_is_no_probe_is_refused(request_line: bytes, status: bytes) -> None:
    assert asked().says(request_line + b"\r\nHost: b1\r\n\r\n").split()[1] == status


@pytest.mark.parametrize("header", [b"Content-Length: 5", b"Content-Length: 99999999999", b"Transfer-Encoding: chunked"])
def test_a_request_with_a_body_is_not_read(header: bytes) -> None:
    socket = asked()
    assert socket.says(b"GET /readyz HTTP/1.1\r\n" + header + b"\r\n\r\n") == b""
    assert socket.transport.disconnecting


def test_long_headers_end_the_socket() -> None:
    socket = asked()
    said = socket.says(b"GET /readyz HTTP/1.1\r\n" + b"X: y\r\n" * limits.PROBE_HEADER_BYTES)
    assert said.split()[1] == b"400"
    assert socket.transport.disconnecting


def test_who_says_nothing_is_cut_off() -> None:
    clock = Clock()
    socket = asked(clock=clock)
    clock.advance(limits.PROBE_IDLE_S - 1)
    assert not socket.transport.disconnecting
    clock.advance(2)
    assert socket.transport.disconnecting


def test_sockets_are_few_and_who_ends_makes_room() -> None:
    probes = Probes(Clock(), lambda: ACTIVE)
    sockets = [Asked(probes) for _ in range(limits.PROBE_CONNECTIONS)]
    assert Asked(probes).protocol is None
    assert sockets[0].protocol is not None
    sockets[0].protocol.connectionLost()
    assert Asked(probes).says(b"GET /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200")
