"""Output over TLS to a real socket that is full: what does not fit waits in the engine, in the clear, and goes on as the peer
reads."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater

from broker.net.credentials import Credentials
from broker.net.output import READ_BYTES
from broker.net.tls import TlsSocket
from broker.tls_files import TlsFiles
from tests.broker.amqp.pairs import Pair
from tests.broker.net.test_output import LARGE, Writer
from tests.certificates import authority

reactor: Any = installed_reactor


class Taken(Factory):
    """A socket that shakes hands, with the writer above it. Fulfils TlsOwner."""

    def __init__(self, credentials: Credentials, writer: Writer) -> None:
        self.end = TlsSocket(reactor, credentials.server(), self, 10.0)
        self.writer = writer

    def buildProtocol(self, addr: Any) -> TlsSocket:
        return self.end

    def ready(self, socket: TlsSocket) -> Writer:
        return self.writer

    def failed(self, socket: TlsSocket, reason: str) -> None:
        raise AssertionError(reason)


@pytest_twisted.ensureDeferred
async def test_a_large_message_over_tls_goes_on_as_the_peer_reads_though_it_says_nothing(tmp_path: Path) -> None:
    """Breaks when nobody asks for the rest, or when all of it is enciphered at once and waits in memory a second time."""
    pair = Pair()
    sender = pair.sender()
    sender.send_one(b"x" * LARGE)
    certificate, key = authority().issue("broker", "localhost").write(tmp_path, "broker")
    context = ssl.create_default_context(cafile=str(authority().write(tmp_path)))
    taken = Taken(Credentials(TlsFiles(certificate, key)), Writer(pair.client.engine))
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, context.wrap_socket(theirs, server_hostname="localhost", do_handshake_on_connect=False) as visitor:
        reactor.adoptStreamConnection(ours.fileno(), socket.AF_UNIX, taken)
        most_waiting = 0
        for _ in range(10_000):
            await _a_turn()
            with suppress(ssl.SSLWantReadError):
                visitor.do_handshake()
                data = visitor.recv(READ_BYTES)
                pair.server.engine.push(data)
                pair.server.engine.drain()
            below: Any = taken.end.transport
            most_waiting = max(most_waiting, len(below.dataBuffer) - below.offset + below._tempDataLen)
            if pair.server.messages:
                break
        assert pair.server.messages == [b"x" * LARGE]
        assert 0 < most_waiting <= READ_BYTES + 4096
        taken.end.abortConnection()
        await _a_turn()
    pair.client.engine.free()
    pair.server.engine.free()


def _a_turn() -> Deferred[None]:
    return deferLater(reactor, 0, lambda: None)
