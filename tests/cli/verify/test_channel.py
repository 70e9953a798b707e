"""How proton's clients are let in, against a peer on a loopback port that does what brokers rarely do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from proton.handlers import MessagingHandler

from broker.core import sasl, values
from broker.core.door import HEADER
from broker.core.sasl_client import NO_AMQP, PERHAPS_TLS, TLS_HERE, Login
from broker.tls_files import NO_TLS
from cli.verify import channel
from cli.verify.channel import REFUSED, Gate, Gated
from tests.broker.core.stream import OPEN

OFFER = sasl.HEADER + sasl.frame(sasl.MECHANISMS, values.symbols(["ANONYMOUS"]))
OUTCOME = sasl.frame(sasl.OUTCOME, b"\x50\x00")
DENIAL = sasl.frame(sasl.OUTCOME, b"\x50\x01")


class Client(MessagingHandler):
    """One connection, which ends when it is open, or was not let in."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.opened = False

    def on_start(self, event: Any) -> None:
        event.container.connect(url=self.gate.urls[0], reconnect=False, sasl_enabled=False)

    def on_connection_opened(self, event: Any) -> None:
        self.opened = True
        event.connection.close()
        event.container.stop()

    def on_transport_error(self, event: Any) -> None:
        """It was not let in."""


def comes_in(address: str) -> tuple[bool, str]:
    """Whether a client came in, and why not."""
    gate = Gate([address], Login(), NO_TLS)
    client = Client(gate)
    Gated(gate, client).run()
    return client.opened, gate.reason


@contextmanager
def peer(acts: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of one that acts so towards its one client, and stays until the context ends."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                acts(accepted)
                over.wait(20)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        over.set()
        thread.join(20)
        assert not thread.is_alive()


def test_what_a_broker_says_in_one_breath_or_byte_by_byte_lets_a_client_in() -> None:
    """Breaks when what comes behind the outcome of a login is lost."""
    said = OFFER + OUTCOME + HEADER + OPEN

    def in_pieces(client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        for byte in said:
            client.sendall(bytes((byte,)))

    for acts in (lambda client: client.sendall(said), in_pieces):
        with peer(acts) as address:
            assert comes_in(address) == (True, "")


def test_whoever_does_not_let_a_client_in_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LOGIN_S", 0.3)
    for said, why in (
        (b"", "not let in after 0.3 s"),
        (OFFER, "not let in after 0.3 s"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", NO_AMQP),
        (b"\x15\x03\x03\0\x02\x02\x46", TLS_HERE),
        (OFFER + DENIAL, "the broker does not let this login in"),
    ):
        with peer(lambda client, said=said: client.sendall(said)) as address:  # type: ignore[misc]
            assert comes_in(address) == (False, why)
    with peer(lambda client: client.shutdown(socket.SHUT_WR)) as address:
        assert comes_in(address) == (False, f"the broker has closed the connection; {PERHAPS_TLS}")
    with peer(lambda client: client.sendall(OFFER) or client.shutdown(socket.SHUT_WR)) as address:  # type: ignore[func-returns-value]
        assert comes_in(address) == (False, "the broker has closed the connection")
    assert comes_in("127.0.0.1:1") == (False, REFUSED)


def test_each_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As localhost is ::1 and 127.0.0.1, of which a broker listens on one."""
    with peer(lambda client: client.sendall(OFFER + OUTCOME + HEADER + OPEN)) as address:
        port = int(address.rpartition(":")[2])
        stream = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        found = [(*stream, ("127.0.0.1", 1)), (*stream, ("127.0.0.1", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
        assert comes_in("somewhere:5672") == (True, "")
