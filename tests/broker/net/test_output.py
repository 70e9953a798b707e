"""Output to a real socket that is full: what does not fit waits in the engine, and goes on as the peer reads."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater

from broker.net.output import READ_BYTES, REST_BYTES, write_output
from tests.broker.amqp.pairs import Pair

reactor: Any = installed_reactor
LARGE = 8 * 1024 * 1024


class Writer(Protocol):
    """One end of a connection, which writes what its engine has whenever it is asked for more, and at no other time."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.registerProducer(self, True)  # type: ignore[attr-defined]
        self.transport.bufferSize = READ_BYTES  # type: ignore[attr-defined]
        write_output(self.transport, self.engine)

    def pauseProducing(self) -> None:
        pass

    def resumeProducing(self) -> None:
        write_output(self.transport, self.engine)

    def stopProducing(self) -> None:
        pass


class Writers(Factory):
    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def buildProtocol(self, addr: Any) -> Writer:
        return self.writer


@pytest_twisted.ensureDeferred
async def test_a_message_larger_than_the_socket_takes_goes_on_as_the_peer_reads_though_it_says_nothing() -> None:
    """Breaks when nobody asks the engine for the rest: until the next frame of the peer, the message would stand still."""
    pair = Pair()
    sender = pair.sender()
    sender.send_one(b"x" * LARGE)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        writer = Writer(pair.client.engine)
        reactor.adoptStreamConnection(ours.fileno(), socket.AF_UNIX, Writers(writer))
        came = 0
        for _ in range(10_000):
            await _a_turn()
            with suppress(BlockingIOError):
                data = theirs.recv(READ_BYTES)
                came += len(data)
                pair.server.engine.push(data)
                pair.server.engine.drain()
            transport: Any = writer.transport
            assert len(transport.dataBuffer) - transport.offset + transport._tempDataLen <= REST_BYTES
            if pair.server.messages:
                break
        assert pair.server.messages == [b"x" * LARGE]
        assert came > LARGE
        transport.abortConnection()
        await _a_turn()
    pair.client.engine.free()
    pair.server.engine.free()


def _a_turn() -> Deferred[None]:
    return deferLater(reactor, 0, lambda: None)
