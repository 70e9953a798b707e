"""A side of a drain whose broker runs in this process.

Life: the caller that made the broker starts and stops it. When the side is asked without a connection, a pair of
sockets is made. The broker gets one end as it gets any socket, and a client has the other end. No other process can use
such a pair, so the broker requires neither a login nor a right (`Socket.own`).
"""

from __future__ import annotations

import socket
import time

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol

from broker.client import ManagementClient
from broker.core.identity import Socket
from broker.core.sasl_client import ANONYMOUS
from broker.net.listener import text_of
from broker.net.management_wire import Wire
from cli.drain.sides import Clock, Side
from cli.options import Target
from ha.service import Process


class Inside(Side):
    """See the module."""

    def __init__(self, clock: Clock, target: Target, what: str, process: Process) -> None:
        super().__init__(clock, target, what)
        self._process = process

    def _connect(self) -> Deferred[ManagementClient]:
        return ensureDeferred(self._join())

    async def _join(self) -> ManagementClient:
        reactor = self._clock.reactor
        wire = Wire(reactor, "inside:0", ANONYMOUS, True, None, time.monotonic)
        ours = Factory.forProtocol(lambda: wire)
        ours.noisy = False
        for end, factory in zip(_pair(), (ours, _Accepting(self._process)), strict=True):
            with end:
                reactor.adoptStreamConnection(end.fileno(), socket.AF_INET, factory)
        await wire.opened
        return ManagementClient(reactor, self.what, wire)


class _Accepting(Factory):
    """The broker's end of the pair."""

    noisy = False

    def __init__(self, process: Process) -> None:
        self._process = process

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        """Make a connection of the broker."""
        return self._process.broker.new_connection(Socket(text_of(addr), own=True))


def _pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a TCP connection within this process. No other process can have connected in between: the
    listening port exists for a moment, accepts one connection, and the owner of that connection is checked.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listening:
        ours = socket.create_connection(listening.getsockname())
        while True:
            theirs, peer = listening.accept()
            if peer == ours.getsockname():
                break
            theirs.close()
    for end in (ours, theirs):
        end.setblocking(False)
    return ours, theirs
