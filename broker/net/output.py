"""Writing an engine's output to a socket at once.

Twisted writes on its next turn: it registers the socket with epoll, waits for the event, writes, and unregisters the socket. When
a connection has no unwritten output, the socket nearly always accepts bytes at once. Trying this first saves two system calls and
a turn of the reactor for each write, which is most of the cost of a small batch. It also saves three copies of every byte,
because the bytes go to the socket directly from the engine's memory. The rest stays in the engine, except for `REST_BYTES`, which
Twisted writes when the socket accepts bytes again. Then it asks for more, which is written at once.

A transport that changes the bytes (`Writing`) writes an engine's output itself, by the same rules.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

from twisted.internet.tcp import Connection

from broker.amqp.engine import Engine

READ_BYTES = 256 * 1024
"""Bytes asked of a socket at a time. Twisted's own 64 KiB make a busy connection's batches small and its turns many."""
REST_BYTES = 64 * 1024
"""The bytes that Twisted gets while the socket is full. It copies them, and writes small pieces of them."""


class TlsFailed(Exception):
    """A connection ended because of TLS (`broker.net.tls`). The text is one line with the reason."""


class Writing(ABC):
    """A transport that has a way of its own with an engine's output. `transport` is the one below it."""

    transport: Any

    @abstractmethod
    def write_output(self, engine: Engine) -> bool:
        """See the function of this name."""


def write_output(transport: Any, engine: Engine) -> bool:
    """Write the engine's output after all earlier output, at once as far as the socket accepts it. After an error the connection
    is lost. Returns whether there was output.
    """
    if not isinstance(transport, Connection):
        if isinstance(transport, Writing):
            return transport.write_output(engine)
        rest = engine.take_output()
        if rest:
            transport.writeSequence(rest)
        return bool(rest)
    sent, all_gone = engine.send_output(transport.socket.send) if is_idle(transport) else (0, False)
    if all_gone:
        return sent > 0
    rest = engine.take_output(REST_BYTES)
    if rest:
        transport.writeSequence(rest)
        wait_with_more(transport, engine)
    return sent > 0 or bool(rest)


def is_idle(transport: Connection) -> bool:
    """Whether nothing waits to be written on a connected socket."""
    return (
        bool(transport.connected) and not transport.disconnecting and not transport.dataBuffer and not transport._tempDataBuffer
    )


def wait_with_more(transport: Connection, engine: Engine) -> None:
    """Twisted has been given bytes to write: if there are more, have it ask for them when these have left."""
    producer: Any = transport.producer
    if producer is not None and not transport.producerPaused and engine.pending:
        transport.producerPaused = True
        producer.pauseProducing()


def end_output(transport: Any) -> None:
    """Send the end of the stream now, after the bytes that the kernel still has. The readers and the owner of the socket are not
    notified. With TLS, only TCP ends, as if the process had died."""
    below = transport.transport if isinstance(transport, Writing) else transport
    if isinstance(below, Connection):
        with suppress(OSError):  # the connection is closed already
            below.getHandle().shutdown(socket.SHUT_WR)
