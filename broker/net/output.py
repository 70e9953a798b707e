"""Writing an engine's output to a socket at once.

Twisted writes on its next turn: it asks epoll to be told that the socket takes bytes, is told, writes, and asks to be told no
more. When a connection has nothing unwritten the socket nearly always takes bytes at once, and trying that first saves two
system calls and a turn of the reactor for each write, which is most of what a small batch costs; and it saves three copies of
every byte, for what the socket takes goes to it as it lies in memory. What it does not take stays in the engine, but for
`REST_BYTES` that go Twisted's way: it writes them when the socket takes bytes again, and then asks for more, which go at once.

A transport that does something with the bytes on their way (`Writing`) writes an engine's output itself, by the same rules.
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
"""What Twisted is given to wait with for a full socket. It copies what it is given, and hands on little of it at a time."""


class TlsFailed(Exception):
    """A connection ended because of TLS (`broker.net.tls`). The text, one line, says what was wrong."""


class Writing(ABC):
    """A transport that has a way of its own with an engine's output. `transport` is the one below it."""

    transport: Any

    @abstractmethod
    def write_output(self, engine: Engine) -> bool:
        """See the function of this name."""


def write_output(transport: Any, engine: Engine) -> bool:
    """Write what the engine has after all that was written before, at once as far as the socket takes it. Errors show as a
    lost connection. Returns whether there was something to write.
    """
    if isinstance(transport, Writing):
        return transport.write_output(engine)
    if not isinstance(transport, Connection):
        rest = engine.take_output()
        if rest:
            transport.writeSequence(rest)
        return bool(rest)
    sent, all_gone = engine.send_output(transport.getHandle().send) if is_idle(transport) else (0, False)
    rest = [] if all_gone else engine.take_output(REST_BYTES)
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
    """Tell the other end now that nothing more comes, behind what the kernel has of it still. What reads from the socket, and
    whoever has it, is not told. Over TLS it is the end of TCP alone, as of a process that has died."""
    below = transport.transport if isinstance(transport, Writing) else transport
    if isinstance(below, Connection):
        with suppress(OSError):  # it has ended by itself
            below.getHandle().shutdown(socket.SHUT_WR)
