"""Writing an engine's output to a socket at once.

Twisted writes on its next turn: it asks epoll to be told that the socket takes bytes, is told, writes, and asks to be told no
more. When a connection has nothing unwritten the socket nearly always takes bytes at once, and trying that first saves two
system calls and a turn of the reactor for each write, which is most of what a small batch costs; and it saves three copies of
every byte, for what the socket takes goes to it as it lies in memory. What it does not take stays in the engine, but for
`REST_BYTES` that go Twisted's way: it writes them when the socket takes bytes again, and then asks for more, which go at once.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.tcp import Connection

from broker.amqp.engine import Engine

READ_BYTES = 256 * 1024
"""Bytes asked of a socket at a time. Twisted's own 64 KiB make a busy connection's batches small and its turns many."""
REST_BYTES = 64 * 1024
"""What Twisted is given to wait with for a full socket. It copies what it is given, and hands on little of it at a time."""


def write_output(transport: Any, engine: Engine) -> bool:
    """Write what the engine has after all that was written before, at once as far as the socket takes it. Errors show as a
    lost connection. Returns whether there was something to write.
    """
    if not isinstance(transport, Connection):
        rest = engine.take_output()
        if rest:
            transport.writeSequence(rest)
        return bool(rest)
    sent, all_gone = engine.send_output(transport.getHandle().send) if _is_idle(transport) else (0, False)
    rest = [] if all_gone else engine.take_output(REST_BYTES)
    if rest:
        transport.writeSequence(rest)
        producer: Any = transport.producer
        if producer is not None and not transport.producerPaused and engine.pending:
            transport.producerPaused = True  # so that it asks for more when this has left
            producer.pauseProducing()
    return sent > 0 or bool(rest)


def _is_idle(transport: Connection) -> bool:
    """Whether nothing waits to be written on a connected socket, in the clear."""
    return (
        not getattr(transport, "TLS", False)
        and bool(transport.connected)
        and not transport.disconnecting
        and not transport.dataBuffer
        and not transport._tempDataBuffer
    )
