"""The listening ports: every accepted socket becomes a connection of the broker; with TLS, after the handshake.

Life of a socket of the TLS port: it waits among the `Handshakes` until its handshake is done, for at most the time that a client
has for its Open. Then the broker gets it like a socket without TLS, together with the data of its certificate.

Invariant: at most `limits.MAX_HANDSHAKES` sockets are in a handshake. One more replaces the oldest, so that clients that connect
and send nothing block others for no longer than a handshake takes. At most as many more sockets are open that have been given up
in this turn. A port accepts `limits.ACCEPTS_AT_ONCE` sockets at once: the others wait in the kernel, and connected clients do
not wait for them. A port for clients uses the share of a turn for connections before their Open (`SharingPort`), and so does each
step of a handshake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress, IListeningPort, IReactorTCP, IReactorTime
from twisted.internet.posixbase import PosixReactorBase
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.internet.tcp import Port, Server
from twisted.python.failure import Failure

from broker.core import limits
from broker.core.identity import Socket
from broker.net.reactor import MonotonicEPollReactor, Urgent
from broker.net.sharing import Share

if TYPE_CHECKING:
    from broker.net.credentials import Credentials
    from broker.net.tls import TlsSocket

NewConnection = Callable[[Socket], Protocol | None]
"""Makes the connection for an accepted socket; None when there are too many."""

_BACKLOG = 512


class CannotListen(Exception):
    """The port cannot be had; the text says why and what to do."""


class PatientPort(Port):
    """A port that accepts few sockets a turn, and then leaves others some time, at least as much as that took. Twisted's own
    begins with a hundred, and takes twenty more each time."""

    def doRead(self) -> None:
        """Accept."""
        reactor: Any = self.reactor
        began_s = reactor.seconds()
        if self._accept():
            self.stopReading()
            reactor.callLater(max(limits.ACCEPT_PAUSE_S, reactor.seconds() - began_s), self._go_on)

    def _accept(self) -> bool:
        """Accept a few. Returns whether there may be more."""
        self.numberAccepts = limits.ACCEPTS_AT_ONCE
        super().doRead()
        return self.numberAccepts > limits.ACCEPTS_AT_ONCE and self.is_open

    @property
    def is_open(self) -> bool:
        """Whether it listens."""
        return bool(self.connected) and not self.disconnecting

    def _go_on(self) -> None:
        if self.is_open:
            self.startReading()


class SharingPort(PatientPort):
    """A port whose sockets are accepted in the share of a turn that those who connect have: in turn with what those say who are
    connected already, and no faster than they are let in."""

    share: Share

    def doRead(self) -> None:
        """Accept, in this turn or in a later one."""
        if self.share.is_left:
            began_s = self.reactor.seconds()  # type: ignore[attr-defined]
            self._accept()
            self.share.spent(self.reactor.seconds() - began_s)  # type: ignore[attr-defined]
        else:
            self.stopReading()
            self.share.later(self)

    def go_on(self) -> bool:
        """See `share.Work`."""
        more = self.is_open and self._accept()
        if not more:
            self._go_on()
        return more

    def connectionLost(self, reason: Failure) -> None:
        """Twisted's."""
        self.share.forget(self)
        super().connectionLost(reason)


class UrgentServer(Urgent, Server):
    """A socket that was accepted by an `UrgentPort`."""


class UrgentPort(Urgent, PatientPort):
    """A port whose sockets are served before all others: for few of them, and little work."""

    transport = UrgentServer


class ConnectionFactory(ServerFactory):
    """A connection for each accepted socket."""

    noisy = False

    def __init__(self, new_connection: NewConnection) -> None:
        self._new_connection = new_connection

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        """A connection for an accepted socket; None ends it."""
        return self._new_connection(Socket(text_of(addr)))


class Handshakes(ServerFactory):
    """A connection for each accepted socket that has shaken hands. `failed` is told the address of one that has not, and why.

    Fulfils `tls.TlsOwner`.
    """

    noisy = False

    def __init__(
        self,
        clock: IReactorTime,
        credentials: Credentials,
        new_connection: NewConnection,
        failed: Callable[[str, str], None],
        timeout_s: float,
        share: Share | None = None,
    ) -> None:
        self._clock = clock
        self._share = share
        self._credentials = credentials
        self._new_connection = new_connection
        self._failed = failed
        self._timeout_s = timeout_s
        self._going_on: dict[TlsSocket, str] = {}
        self._given_up: set[TlsSocket] = set()
        """Those that are to end, whose sockets are open until the next turn."""

    def __len__(self) -> int:
        """How many go on."""
        return len(self._going_on)

    def buildProtocol(self, addr: IAddress | None) -> TlsSocket | None:
        """The server's side of a handshake; None ends a socket of which there are too many at once."""
        from broker.net.tls import TlsSocket

        if len(self._going_on) >= limits.MAX_HANDSHAKES:
            if len(self._given_up) >= limits.MAX_HANDSHAKES:
                return None
            self._give_up_oldest()
        socket = TlsSocket(self._clock, self._credentials.server(), self, self._timeout_s, self._share)
        self._going_on[socket] = text_of(addr)
        return socket

    def _give_up_oldest(self) -> None:
        oldest = next(iter(self._going_on))
        address = self._going_on.pop(oldest)
        self._given_up.add(oldest)
        reason = f"more than {limits.MAX_HANDSHAKES} TLS handshakes at a time, and this was the oldest"
        oldest.give_up(reason)
        self._failed(address, reason)

    def ready(self, socket: TlsSocket) -> Protocol | None:
        """See TlsOwner."""
        from broker.net.credentials import certificate_of

        address = self._going_on.pop(socket)
        return self._new_connection(Socket(address, True, certificate_of(socket.tls)))

    def failed(self, socket: TlsSocket, reason: str) -> None:
        """See TlsOwner."""
        self._given_up.discard(socket)
        address = self._going_on.pop(socket, None)
        if address is not None:
            self._failed(address, reason)

    def stop(self) -> None:
        """Drop those that go on."""
        for socket in list(self._going_on):
            socket.give_up("this broker stops")


def text_of(addr: IAddress | None) -> str:
    """Where a socket comes from, `host:port`."""
    where: Any = addr
    return f"{where.host}:{where.port}" if where is not None and hasattr(where, "port") else "unknown"


def listen(
    reactor: IReactorTCP,
    factory: ServerFactory,
    port: int,
    interface: str,
    options: tuple[str, str] = ("--port", "--interface"),
    *,
    urgent: bool = False,
    share: Share | None = None,
) -> IListeningPort:
    """Listen; CannotListen with a text for people when the port is taken or the interface is not there. `urgent`: before other
    sockets, where the reactor can do that. `options`: those for port and interface. `share`: what accepting has of a turn;
    without it, the port makes pauses."""
    try:
        if not isinstance(reactor, PosixReactorBase):
            return reactor.listenTCP(port, factory, backlog=_BACKLOG, interface=interface)
        listening: PatientPort
        if share is not None:
            listening = SharingPort(port, factory, _BACKLOG, interface, reactor)
            listening.share = share
        else:
            kind = UrgentPort if urgent and isinstance(reactor, MonotonicEPollReactor) else PatientPort
            listening = kind(port, factory, _BACKLOG, interface, reactor)
        listening.startListening()
        return listening
    except CannotListenError as error:
        why = error.socketError.strerror if isinstance(error.socketError, OSError) else str(error.socketError)
        raise CannotListen(
            f"cannot listen on {interface}:{port}: {why}; choose another {' or '.join(options)}, or stop what uses it"
        ) from None
