"""The listening port: every socket that is accepted becomes a connection of the broker's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress, IListeningPort, IReactorTCP
from twisted.internet.protocol import Protocol, ServerFactory

from broker.core.identity import Socket

NewConnection = Callable[[Socket], Protocol | None]
"""Makes the connection for an accepted socket; None when there are too many."""

_BACKLOG = 512


class CannotListen(Exception):
    """The port cannot be had; the text says why and what to do."""


class ConnectionFactory(ServerFactory):
    """A connection for each accepted socket."""

    noisy = False

    def __init__(self, new_connection: NewConnection) -> None:
        self._new_connection = new_connection

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        """A connection for an accepted socket; None ends it."""
        return self._new_connection(Socket(text_of(addr)))


def text_of(addr: IAddress | None) -> str:
    """Where a socket comes from, `host:port`."""
    where: Any = addr
    return f"{where.host}:{where.port}" if where is not None and hasattr(where, "port") else "unknown"


def listen(reactor: IReactorTCP, new_connection: NewConnection, port: int, interface: str) -> IListeningPort:
    """Listen; CannotListen with a text for people when the port is taken or the interface is not there."""
    try:
        return reactor.listenTCP(port, ConnectionFactory(new_connection), backlog=_BACKLOG, interface=interface)
    except CannotListenError as error:
        why = error.socketError.strerror if isinstance(error.socketError, OSError) else str(error.socketError)
        raise CannotListen(
            f"cannot listen on {interface}:{port}: {why}; choose another --port or --interface, or stop what uses it"
        ) from None
