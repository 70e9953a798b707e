"""The listening port: every socket that is accepted becomes a BrokerConnection."""

from __future__ import annotations

from typing import Any

from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress, IListeningPort, IReactorTCP
from twisted.internet.protocol import ServerFactory

from broker.net.connection import BrokerConnection
from broker.service import Broker

_BACKLOG = 512


class CannotListen(Exception):
    """The port cannot be had; the text says why and what to do."""


class BrokerFactory(ServerFactory):
    """Connections for one broker."""

    noisy = False

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def buildProtocol(self, addr: IAddress | None) -> BrokerConnection | None:
        """A connection for an accepted socket; None ends it."""
        where: Any = addr
        return self.broker.new_connection(
            f"{where.host}:{where.port}" if where is not None and hasattr(where, "port") else "unknown"
        )


def listen(reactor: IReactorTCP, broker: Broker, port: int, interface: str) -> IListeningPort:
    """Listen; CannotListen with a text for people when the port is taken or the interface is not there."""
    try:
        return reactor.listenTCP(port, BrokerFactory(broker), backlog=_BACKLOG, interface=interface)
    except CannotListenError as error:
        why = error.socketError.strerror if isinstance(error.socketError, OSError) else str(error.socketError)
        raise CannotListen(
            f"cannot listen on {interface}:{port}: {why}; choose another --port or --interface, or stop what uses it"
        ) from None
