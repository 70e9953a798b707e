"""Probes by HTTP: what they say of a broker, and what strangers can do to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

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
        (Health("ready", False, False, "b1:5672", stopped=True), 200, 503, 503),
    ],
)
def test_what_each_state_means_to_who_asks(health: Health, live: int, started: int, ready: int) -> None:
    answers = [answer(path, health) for path in ("/livez", "/startedz", "/readyz")]
    assert [found and found[0] for found in answers] == [live, started, ready]


def test_the_text_says_where_clients_belong() -> None:
    assert answer("/readyz", Health("ready", False, False, "b1:5672")) == (503, "ready: the primary is b1:5672")
    stopped = Health("ready", False, False, "b1:5672", stopped=True)
    assert answer("/startedz", stopped) == (503, "ready: it has stopped applying the log")
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


class Pages:
    """Metrics in pieces that take their time, on an admin port."""

    def __init__(self, pieces: int, piece_s: float = 0.0) -> None:
        self.clock = Clock()
        self.made = 0
        self.probes = Probes(self.clock, lambda: ACTIVE, metrics=lambda: self._pieces(pieces, piece_s))

    def _pieces(self, pieces: int, piece_s: float) -> Iterator[str]:
        for number in range(pieces):
            self.made += 1
            self.clock.rightNow += piece_s
            yield f"piece_{number} 1\n"


SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: b1\r\n\r\n"


def content(said: bytes) -> bytes:
    """Of an answer in chunks."""
    head, _, chunks = said.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    found = b""
    while chunks:
        size, _, chunks = chunks.partition(b"\r\n")
        found, chunks = found + chunks[: int(size, 16)], chunks[int(size, 16) + 2 :]
    return found


def test_a_page_of_metrics_comes_in_pieces_between_which_there_is_time_for_other_work() -> None:
    pages = Pages(10, piece_s=limits.MANAGEMENT_TURN_S)
    socket = Asked(pages.probes)
    said = socket.says(SCRAPE)
    assert said.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"version=0.0.4" in said
    assert pages.made == 1, "one piece used up this turn's share"
    pages.clock.advance(limits.MANAGEMENT_TURN_S / 2)
    assert pages.made == 1, "others have as much time"
    socket.transport.clear()
    began_s = pages.clock.seconds()
    while pages.made < 10:
        pages.clock.advance(limits.MANAGEMENT_TURN_S / 2)
    pages.clock.advance(limits.MANAGEMENT_TURN_S)
    assert pages.clock.seconds() - began_s >= 2 * 9 * limits.MANAGEMENT_TURN_S
    assert content(said + socket.transport.value()) == b"".join(b"piece_%d 1\n" % number for number in range(10))
    assert socket.says(b"GET /livez HTTP/1.1\r\nHost: b1\r\n\r\n").startswith(b"HTTP/1.1 200 OK")


def test_what_costs_little_is_there_at_once() -> None:
    socket = Asked(Pages(3).probes)
    assert content(socket.says(SCRAPE)) == b"piece_0 1\npiece_1 1\npiece_2 1\n"


def test_while_the_reader_does_not_read_nothing_more_is_made() -> None:
    pages = Pages(10, piece_s=2 * limits.MANAGEMENT_TURN_S)
    socket = Asked(pages.probes)
    socket.says(SCRAPE)
    assert socket.transport.producer is not None
    socket.transport.producer.pauseProducing()
    pages.clock.advance(1)
    assert pages.made == 1
    socket.transport.producer.resumeProducing()
    pages.clock.advance(0)
    assert pages.made == 2


def test_who_reads_a_page_too_slowly_is_cut_off_and_makes_room() -> None:
    pages = Pages(10, piece_s=limits.MANAGEMENT_TURN_S)
    sockets = [Asked(pages.probes) for _ in range(limits.SCRAPES + 1)]
    for socket in sockets[:-1]:
        socket.says(SCRAPE)
        assert socket.transport.producer is not None
        socket.transport.producer.pauseProducing()
    assert b"ask later" in sockets[-1].says(SCRAPE)
    pages.clock.advance(limits.SCRAPE_S)
    for socket in sockets[:-1]:
        assert socket.transport.disconnecting
        assert isinstance(socket.protocol, Protocol)
        socket.protocol.connectionLost(Failure(ConnectionDone()))
    assert Asked(pages.probes).says(SCRAPE).startswith(b"HTTP/1.1 200 OK")


def test_a_port_without_metrics_has_no_such_page() -> None:
    assert asked().says(SCRAPE).split()[1] == b"404"
    assert Asked(Pages(1).probes).says(SCRAPE.replace(b"GET", b"POST")).split()[1] == b"405"
    assert Asked(Pages(1).probes).says(SCRAPE.replace(b"GET", b"HEAD")).split()[1] == b"200"
