"""Writing an engine's output to a socket at once.

Twisted writes on its next turn: it asks epoll to be told that the socket takes bytes, is told, writes, and asks to be told no
more. When a connection has nothing unwritten the socket nearly always takes bytes at once, and trying that first saves two
system calls and a turn of the reactor for each write, which is most of what a small batch costs; and it saves three copies of
every byte, for what the socket takes goes to it as it lies in memory. What it does not take goes Twisted's way, in order, and no
more than `WRITE_BYTES` at a time: Twisted then says that it is full, and asks for more when that has left.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.tcp import Connection

from broker.amqp.engine import Engine

READ_BYTES = 256 * 1024
"""Bytes asked of a socket at a time. Twisted's own 64 KiB make a busy connection's batches small and its turns many."""
WRITE_BYTES = 2 * READ_BYTES
"""More than a transport of this buffer size keeps before it pauses its producer."""


def write_output(transport: Any, engine: Engine) -> bool:
    """Write what the engine has after all that was written before, at once as far as the socket takes it. Errors show as a
    lost connection. Returns whether there was something to write.
    """
    sent, all_gone = engine.send_output(transport.getHandle().send) if _is_idle(transport) else (0, False)
    rest = [] if all_gone else engine.take_output(WRITE_BYTES) if isinstance(transport, Connection) else engine.take_output()
    if rest:
        transport.writeSequence(rest)
    return sent > 0 or bool(rest)


def _is_idle(transport: Any) -> bool:
    """Whether nothing waits to be written on a connected socket of Twisted's own kind, in the clear."""
    return (
        isinstance(transport, Connection)
        and not getattr(transport, "TLS", False)
        and bool(transport.connected)
        and not transport.disconnecting
        and not transport.dataBuffer
        and not transport._tempDataBuffer
    )
