"""TLS between a socket and the broker, with Python's own `ssl` at the other end and nothing but memory between them."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from broker.core import limits
from broker.core.identity import Socket
from broker.net.credentials import Credentials
from broker.net.listener import Handshakes
from broker.net.output import TlsFailed, write_output
from broker.net.tls import RECORD_BYTES
from broker.sessions.share import Share
from broker.tls_files import TlsFiles
from tests.broker.amqp.pairs import Pair
from tests.broker.net.visitor import Visitor, records
from tests.certificates import CLIENT, Authority, Issued, authority


class Above(Protocol):
    """Who speaks over TLS: keeps what it is told."""

    def __init__(self) -> None:
        self.reads: list[bytes] = []
        self.made = False
        self.lost = ""

    def connectionMade(self) -> None:
        self.made = True

    def dataReceived(self, data: bytes) -> None:
        self.reads.append(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost = str(reason.value) if isinstance(reason.value, TlsFailed) else "ended"


class Port:
    """A port for TLS without its socket: what it took, and what came to nothing."""

    def __init__(self, folder: Path, *, files: dict[str, Any] | None = None, demands: bool = False, full: bool = False) -> None:
        self.clock = Clock()
        self.share = Share(self.clock, lambda: None)
        self.sockets: list[Socket] = []
        self.taken: list[Above] = []
        self.failed: list[tuple[str, str]] = []
        self.full = full
        self.ca = authority().write(folder)
        certificate, key = authority().issue("broker", "localhost", "127.0.0.1").write(folder, "broker")
        given: dict[str, Any] = {"certificate": certificate, "key": key, "authorities": self.ca}
        self.credentials = Credentials(TlsFiles(**given | (files or {})), demands=demands)
        self.handshakes = Handshakes(
            self.clock, self.credentials, self._new, lambda *what: self.failed.append(what), 10.0, self.share
        )
        self.visitors: list[Visitor] = []

    def _new(self, socket: Socket) -> Above | None:
        if self.full:
            return None
        self.sockets.append(socket)
        self.taken.append(Above())
        return self.taken[-1]

    def accept(self) -> Any:
        """A socket has come."""
        return self.handshakes.buildProtocol(IPv4Address("TCP", "192.0.2.7", 40_000 + len(self.visitors)))

    def visit(self, **options: Any) -> Visitor:
        """A visitor that has begun to shake hands."""
        visitor = Visitor(self.accept(), **{"trusts": self.ca} | options)
        self.visitors.append(visitor)
        return visitor

    def close(self) -> None:
        for visitor in self.visitors:
            visitor.lose()
        self.clock.advance(1)
        assert not len(self.handshakes), "a socket that is gone is still among the handshakes"
        assert not self.clock.getDelayedCalls(), "a socket that is gone leaves a timer behind"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Any]:
    """`port(**options)` opens one; what it leaves behind is looked at after the test."""
    with ExitStack() as stack:

        def opened(**options: Any) -> Port:
            made = Port(tmp_path, **options)
            stack.callback(made.close)
            return made

        yield opened


def shown(issued: Issued, folder: Path) -> tuple[Path, Path]:
    return issued.write(folder, "client")


# ---- handshakes


def test_the_broker_is_told_of_a_socket_when_it_has_shaken_hands_and_not_before(port: Any) -> None:
    """Breaks when a connection is made for each socket that says nothing."""
    opened = port()
    visitor = opened.visit()
    assert not opened.sockets
    assert len(opened.handshakes) == 1
    assert visitor.turn().ready
    assert opened.sockets == [Socket("192.0.2.7:40000", encrypted=True, certificate=None)]
    assert opened.taken[0].made
    assert len(opened.handshakes) == 0


def test_a_handshake_that_is_not_done_in_time_ends(port: Any) -> None:
    opened = port()
    visitor = opened.visit()
    opened.clock.advance(9.9)
    assert not visitor.socket.disconnecting
    opened.clock.advance(0.2)
    assert visitor.socket.disconnecting
    visitor.lose()
    assert opened.failed == [("192.0.2.7:40000", "the TLS handshake was not done after 10 s")]


def test_a_handshake_waits_for_its_share_of_a_turn_and_its_socket_is_not_read_meanwhile(port: Any) -> None:
    """Breaks when many who shake hands at once have a turn for all of their signatures."""
    opened = port()
    opened.share.spent(limits.SHARE_TURN_S)
    visitors = [opened.visit().turn() for _ in range(2)]
    assert [visitor.socket.producerState for visitor in visitors] == ["paused", "paused"]
    assert [visitor.wire for visitor in visitors] == [b"", b""]
    opened.clock.advance(limits.SHARE_TURN_S)
    assert [visitor.socket.producerState for visitor in visitors] == ["producing", "producing"]
    assert [visitor.turn().ready for visitor in visitors] == [True, True]
    assert [above.made for above in opened.taken] == [True, True]


def test_what_a_step_of_a_handshake_takes_is_taken_from_the_share(port: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = port()
    times = itertools.count()
    monkeypatch.setattr(opened.clock, "seconds", lambda: next(times) * limits.SHARE_TURN_S)
    first, second = opened.visit(), opened.visit()
    first.say()
    second.say()
    assert (bool(first.socket.value()), bool(second.socket.value())) == (True, False)


def test_what_comes_with_the_last_of_a_handshake_that_waited_is_passed_on(port: Any) -> None:
    """Breaks when a client that says its first words with the end of its handshake waits for an answer for ever."""
    opened = port()
    visitor = opened.visit()
    visitor.say()
    visitor.listen()
    assert visitor.ready
    opened.share.spent(limits.SHARE_TURN_S)
    visitor.send(b"first words")
    assert not opened.taken
    opened.clock.advance(limits.SHARE_TURN_S)
    assert opened.taken[0].reads == [b"first words"]


def test_a_socket_that_ends_while_its_handshake_waits_has_no_turn(port: Any) -> None:
    opened = port()
    opened.share.spent(limits.SHARE_TURN_S)
    gone, late = opened.visit(), opened.visit()
    for visitor in (gone, late):
        visitor.say()
    gone.lose()
    opened.handshakes.stop()
    opened.clock.advance(limits.SHARE_TURN_S)
    assert (gone.wire, late.socket.value(), len(opened.share._waiting)) == (b"", b"", 0)


def test_one_handshake_too_many_takes_the_place_of_the_oldest(port: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when those who connect and say nothing keep everybody out until their time is over."""
    monkeypatch.setattr(limits, "MAX_HANDSHAKES", 3)
    opened = port()
    silent = [opened.visit() for _ in range(3)]
    late = opened.visit()
    assert [visitor.socket.disconnecting for visitor in silent] == [True, False, False]
    assert late.turn().ready
    assert "more than 3 TLS handshakes" in opened.failed[0][1]


def test_a_burst_of_sockets_in_one_turn_has_no_more_handshakes_than_others(port: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when who is given up counts until its socket hears of it, a turn later: then each takes the same one's place."""
    monkeypatch.setattr(limits, "MAX_HANDSHAKES", 3)
    opened = port()
    burst = [opened.visit() for _ in range(6)]
    assert len(opened.handshakes) == 3
    assert [visitor.socket.disconnecting for visitor in burst] == [True] * 3 + [False] * 3
    assert opened.accept() is None, "three are in a handshake, and three wait for their end"
    burst[0].lose()
    assert opened.visit().turn().ready


def test_a_broker_that_is_full_ends_the_connection(port: Any) -> None:
    opened = port(full=True)
    assert opened.visit().turn().socket.disconnecting


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
def test_what_is_older_than_tls_1_2_is_refused(port: Any, newest: ssl.TLSVersion) -> None:
    opened = port()
    visitor = opened.visit(newest=newest).turn()
    assert not visitor.ready
    visitor.lose()
    assert opened.failed
    assert not opened.sockets


def test_tls_1_2_is_spoken_with_forward_secrecy(port: Any) -> None:
    visitor = port().visit(newest=ssl.TLSVersion.TLSv1_2).turn()
    assert visitor.tls.version() == "TLSv1.2"
    assert visitor.tls.cipher()[0].startswith("ECDHE-")


def test_amqp_in_the_clear_on_the_port_for_tls_is_told_of(port: Any) -> None:
    """Breaks when the log says nothing of a client that has the wrong scheme in its URL."""
    opened = port()
    visitor = opened.visit()
    visitor.end.dataReceived(b"AMQP\x03\x01\x00\x00")
    assert visitor.socket.disconnecting
    visitor.lose()
    assert opened.failed[0][1].startswith("TLS: wrong version number: the other side does not use TLS here; amqps: is for")
    assert not opened.sockets


def test_a_session_is_not_resumed(port: Any) -> None:
    """Breaks when a certificate that was revoked comes in again by a ticket."""
    opened = port()
    first = opened.visit(newest=ssl.TLSVersion.TLSv1_2).turn()
    session = first.tls.session
    again = opened.visit(newest=ssl.TLSVersion.TLSv1_2)
    again.tls = first.tls.context.wrap_bio(again.into, again.out, server_hostname="localhost", session=session)
    assert again.turn().ready
    assert not again.tls.session_reused


# ---- certificates of clients


def test_a_verified_certificate_is_told_of_with_all_its_names(port: Any, tmp_path: Path) -> None:
    opened = port()
    names = ("app.example", "192.0.2.9", "amqps://app.example:5671", "app@example.org")
    opened.visit(shows=shown(authority().issue("app", *names, purposes=CLIENT), tmp_path)).turn()
    certificate = opened.sockets[0].certificate
    assert certificate.subject == "CN=app,O=Understudy"
    assert certificate.common_name == "app"
    assert certificate.dns_names == ("app.example",)
    assert certificate.addresses == ("192.0.2.9",)
    assert certificate.uris == ("amqps://app.example:5671",)
    assert certificate.emails == ("app@example.org",)
    assert not certificate.serves


def test_a_certificate_by_another_authority_ends_the_handshake(port: Any, tmp_path: Path) -> None:
    """Breaks when a certificate is told of that nobody has verified."""
    opened = port()
    visitor = opened.visit(shows=shown(Authority().issue("app"), tmp_path)).turn()
    visitor.lose()
    assert not opened.sockets
    assert "unable to get" in opened.failed[0][1]


def test_an_expired_certificate_ends_the_handshake_and_the_reason_says_so(port: Any, tmp_path: Path) -> None:
    opened = port()
    visitor = opened.visit(shows=shown(authority().issue("app", days=(-2, -1)), tmp_path)).turn()
    visitor.lose()
    assert not opened.sockets
    assert opened.failed[0][1] == "the other side's certificate is not trusted: cert has expired"


def test_a_revoked_certificate_ends_the_handshake_and_others_do_not(port: Any, tmp_path: Path) -> None:
    good, bad = authority().issue("good"), authority().issue("bad")
    opened = port(files={"revoked": authority().revoke(tmp_path, bad)})
    opened.visit(shows=shown(bad, tmp_path)).turn().lose()
    assert opened.failed[0][1] == "the other side's certificate is not trusted: cert revoked"
    opened.visit(shows=shown(good, tmp_path)).turn()
    assert [socket.certificate.common_name for socket in opened.sockets] == ["good"]


def test_who_shows_no_certificate_is_refused_where_one_is_demanded(port: Any, tmp_path: Path) -> None:
    opened = port(demands=True)
    opened.visit().turn().lose()
    assert not opened.sockets
    opened.visit(shows=shown(authority().issue("app"), tmp_path)).turn()
    assert len(opened.sockets) == 1


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=300), st.integers(0, 6), st.booleans())
def test_no_bytes_at_all_break_the_broker(garbage: bytes, after: int, record: bool) -> None:
    """Bytes of any kind, at any moment, end a handshake or a connection with a reason, or wait for more."""
    with TemporaryDirectory() as folder:
        opened = Port(Path(folder))
        visitor = opened.visit()
        for _ in range(after):
            visitor.say()
            visitor.listen()
        head = b"\x17\x03\x03" + len(garbage).to_bytes(2, "big") if record else b""
        visitor.end.dataReceived(head + garbage)
        opened.close()
        assert len(opened.failed) + len(opened.taken) == 1


# ---- data


@settings(max_examples=60)
@given(st.lists(st.binary(min_size=1, max_size=40_000), min_size=1, max_size=5), st.lists(st.integers(1, 3000), min_size=1))
def test_how_the_stream_is_cut_changes_nothing(pieces: list[bytes], cuts: list[int]) -> None:
    """Breaks when a record that comes in two reads is lost, or comes twice."""
    with TemporaryDirectory() as folder:
        opened = Port(Path(folder))
        visitor = opened.visit()
        sizes = itertools.cycle(cuts)

        def carry() -> None:
            data = visitor.out.read()
            while data:
                size = next(sizes)
                visitor.end.dataReceived(data[:size])
                data = data[size:]

        while not opened.taken:
            visitor.listen()
            carry()
        for piece in pieces:
            visitor.tls.write(piece)
        carry()
        opened.close()
        assert b"".join(opened.taken[0].reads) == b"".join(pieces)


def test_all_records_of_one_read_are_handed_on_in_one_piece(port: Any) -> None:
    """Breaks when each record is a turn of the broker by itself, with a batch of its own."""
    opened = port()
    visitor = opened.visit().turn()
    pieces = [bytes([number]) * 1000 for number in range(50)]
    visitor.send(*pieces)
    assert opened.taken[0].reads == [b"".join(pieces)]


def test_what_an_engine_has_to_write_goes_out_in_full_records_and_one_write(port: Any) -> None:
    """Breaks when each message, or each frame, is a record of its own: small ones cost eight times as much."""
    opened = port()
    visitor = opened.visit().turn()
    pair = Pair()
    link = pair.sender()
    for _ in range(100):
        link.send_one(b"x" * 1024)
    visitor.turn()
    visitor.wire, visitor.socket.writes = b"", 0
    assert write_output(visitor.end, pair.client.engine)
    assert visitor.socket.writes == 1
    assert not write_output(visitor.end, pair.client.engine)
    visitor.turn()
    sizes = records(visitor.wire)
    assert len(visitor.came) > 100 * 1024
    assert len(sizes) <= len(visitor.came) // RECORD_BYTES + 2, f"{sizes} bytes in records"
    pair.server.engine.push(visitor.came)
    pair.server.engine.drain()
    assert pair.server.messages == [b"x" * 1024] * 100
    pair.client.engine.free()
    pair.server.engine.free()


def test_the_end_is_said_after_all_that_was_written(port: Any) -> None:
    """Breaks when the last words of a broker are cut off, or when the end looks like an attack."""
    opened = port()
    visitor = opened.visit().turn()
    visitor.end.write(b"farewell")
    visitor.end.loseConnection()
    visitor.turn()
    assert visitor.came == b"farewell"
    assert visitor.closed
    assert visitor.socket.disconnecting


def test_what_a_peer_says_before_its_end_is_handed_on(port: Any) -> None:
    opened = port()
    visitor = opened.visit().turn()
    visitor.tls.write(b"farewell")
    with pytest.raises(ssl.SSLWantReadError):
        visitor.tls.unwrap()
    visitor.end.dataReceived(visitor.out.read())
    assert opened.taken[0].reads == [b"farewell"]
    assert visitor.socket.disconnecting
    visitor.lose()
    assert opened.taken[0].lost == "ended"


def test_garbage_in_the_midst_of_a_connection_ends_it_with_a_reason(port: Any) -> None:
    opened = port()
    visitor = opened.visit().turn()
    visitor.end.dataReceived(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert visitor.socket.disconnecting
    visitor.lose()
    assert opened.taken[0].lost.startswith("TLS: ")
