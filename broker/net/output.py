"""Writing to a socket at once.

Twisted writes on its next turn: it asks epoll to be told that the socket takes bytes, is told, writes, and asks to be told no
more. When a connection has nothing unwritten the socket nearly always takes bytes at once, and trying that first saves two
system calls and a turn of the reactor for each write, which is most of what a small batch costs. What the socket does not
take goes Twisted's way, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.interfaces import ITCPTransport


def write_now(transport: Any, pieces: Sequence[bytes]) -> None:
    """Write these bytes after all that was written before, at once as far as the socket takes them. Errors show as a lost
    connection.
    """
    if not pieces:
        return
    if not _is_idle(transport):
        transport.writeSequence(pieces)
        return
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    try:
        sent = transport.getHandle().send(data)
    except OSError:
        sent = 0  # full, or gone: Twisted finds out which
    if sent < len(data):
        transport.write(data[sent:] if sent else data)


def _is_idle(transport: Any) -> bool:
    """Whether nothing waits to be written on a connected socket of Twisted's own kind."""
    return bool(
        ITCPTransport.providedBy(transport)
        and getattr(transport, "connected", False)
        and not getattr(transport, "disconnecting", True)
        and not getattr(transport, "dataBuffer", True)
        and not getattr(transport, "_tempDataBuffer", True)
    )
