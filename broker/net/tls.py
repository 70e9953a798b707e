"""TLS between a socket and an AMQP protocol: a Protocol towards the socket, a transport towards AMQP.

Life of a `TlsSocket`: the socket is accepted, and the handshake begins, which has a time limit. On a server, each step of it uses
the share of a turn for strangers, because the signature takes longer than many messages. When the handshake is done, the owner is
asked for the protocol above (`TlsOwner.ready`), which is then connected. From then on, the data of one read of the socket is
decrypted and passed on in one piece, and the output of an engine in one turn is encrypted in records of maximum size and written
to the socket in one piece. When the connection ends, the protocol above is notified, or, if there is none yet, the owner with
the reason.

Twisted's own layer (`twisted.protocols.tls`) passes on one record at a time. Each record would be its own turn of the broker,
with its own batch and write, for at most sixteen messages of 1 KiB.

Invariants: nothing reaches the protocol above before the handshake is done and the certificate, if there is one, is verified; at
most `READ_BYTES` of encrypted output wait for the socket; there is no renegotiation and no resumption (the contexts of
`broker.net.credentials` allow neither), so a verification is valid for the whole connection.

Sources: RFC 8446 (TLS 1.3), RFC 5246 (TLS 1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from OpenSSL import SSL
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure

from broker.amqp.engine import Engine
from broker.core.sasl_client import PERHAPS_PLAIN
from broker.net.credentials import Credentials, objection_to_server, what_failed
from broker.net.output import READ_BYTES, REST_BYTES, TlsFailed, Writing, is_idle, wait_with_more
from broker.net.sharing import Share

RECORD_BYTES = 16 * 1024
"""The most that a record holds (RFC 8446, 5.1)."""
_OVERHEAD_BYTES = 64
"""An upper limit of a record's additional bytes: head, nonce, tag."""
_ANY_BYTES = 1 << 24


class TlsOwner(Protocol):
    """The owner of a TlsSocket."""

    def ready(self, socket: TlsSocket) -> Any:
        """The handshake is done. The protocol to connect, or None to end the connection; TlsFailed says why it must end."""

    def failed(self, socket: TlsSocket, reason: str) -> None:
        """The connection ended before that."""


class TlsSocket(Writing, TwistedProtocol):
    """See the module. `tls` is a connection over memory, in accept or connect state, of a context of `Credentials`."""

    transport: Any

    def __init__(
        self, clock: IReactorTime, tls: SSL.Connection, owner: TlsOwner, timeout_s: float, share: Share | None = None
    ) -> None:
        self.untrusted = 0
        """Why the peer's certificate was not taken: OpenSSL's number, or 0."""
        self.heard = False
        """Whether anything has come from the peer."""
        self._tls: SSL.Connection | None = tls
        self._clock = clock
        self._owner = owner
        self._timeout_s = timeout_s
        self._timer: IDelayedCall | None = None
        self._share = share
        """What the handshake has of a turn; None: it is not limited."""
        self._above: Any = None
        self._reason = ""
        self._over = False
        self._room = 0
        self._records = 0
        tls.set_app_data(self)

    # ---- the socket's side

    def connectionMade(self) -> None:
        """The socket is connected: begin the handshake."""
        if isinstance(self.transport, Connection):
            self.transport.setTcpNoDelay(True)
            self.transport.bufferSize = READ_BYTES
        self._timer = self._clock.callLater(self._timeout_s, self._too_slow)
        self._shake()

    def dataReceived(self, data: bytes) -> None:
        """Bytes have arrived."""
        self.heard = True
        tls = self._tls
        if tls is None or self._over:
            return
        tls.bio_write(data)
        share = self._share
        if self._above is not None:
            self._read(tls)
        elif share is None:
            self._step()
        elif share.is_left:
            began_s = self._clock.seconds()
            self._step()
            share.spent(self._clock.seconds() - began_s)
        else:
            self.transport.pauseProducing()
            share.later(self)

    def go_on(self) -> bool:
        """See `sharing.Work`: the handshake's next step."""
        if self._tls is not None and not self._over:
            self.transport.resumeProducing()
            self._step()
        return False

    def _step(self) -> None:
        """Continue the handshake with the arrived bytes. After its end there may be first data."""
        self._shake()
        if self._above is not None and self._tls is not None:
            self._read(self._tls)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The socket is closed."""
        self._over = True
        self._end_timer()
        if self._share is not None:
            self._share.forget(self)
        if self._tls is not None:
            self._tls.set_app_data(None)  # breaks the reference cycle that would keep OpenSSL's memory
            self._tls = None
        above, self._above = self._above, None
        if above is not None:
            above.connectionLost(Failure(TlsFailed(self._reason)) if self._reason else reason)
        else:
            done = isinstance(reason.value, ConnectionDone)
            how = "the connection was closed" if done else f"the connection was lost ({reason.getErrorMessage()})"
            self._owner.failed(self, self._reason or f"{how} during the TLS handshake")

    def _shake(self) -> None:
        tls = self._tls
        if tls is None or self._over:
            return
        try:
            tls.do_handshake()
        except SSL.WantReadError:
            self._pass_down(tls)
            return
        except SSL.Error as error:
            self._fail(self._told(error))
            return
        self._pass_down(tls)
        self._end_timer()
        try:
            above = self._owner.ready(self)
        except TlsFailed as failed:
            self._fail(str(failed))
            return
        if above is None:
            self.abortConnection()
            return
        self._above = above
        above.makeConnection(self)

    def _read(self, tls: SSL.Connection) -> None:
        pieces: list[bytes] = []
        ended = False
        try:
            while True:
                pieces.append(tls.recv(RECORD_BYTES))
        except SSL.WantReadError:
            pass
        except SSL.ZeroReturnError:
            ended = True
        except SSL.Error as error:
            ended = True
            self._reason = self._told(error)
        if pieces:
            self._above.dataReceived(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended:
            self.loseConnection()
        elif self._tls is not None and not self._over:
            self._pass_down(tls)

    def _told(self, error: SSL.Error) -> str:
        """The text about an error for people."""
        return what_failed(error, self.untrusted)

    def _too_slow(self) -> None:
        self._timer = None
        self.give_up(f"the TLS handshake was not done after {self._timeout_s:g} s")

    def give_up(self, reason: str) -> None:
        """End it at once, for this reason."""
        self._reason = self._reason or reason
        self.abortConnection()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, reason: str) -> None:
        """End it; the alert that OpenSSL has for the peer goes first."""
        self._reason = self._reason or reason
        if self._tls is not None:
            self._pass_down(self._tls)
        self._over = True
        self.transport.loseConnection()

    # ---- what TLS says of the peer

    @property
    def tls(self) -> SSL.Connection:
        """The connection of OpenSSL, while there is one."""
        assert self._tls is not None, "asked of a connection that has ended"
        return self._tls

    # ---- a transport to the protocol above

    def write_output(self, engine: Engine) -> bool:
        """See `broker.net.output`."""
        tls, below = self._tls, self.transport
        if tls is None or self._over or self._above is None:
            return False
        real = isinstance(below, Connection)
        idle = real and is_idle(below)
        wrote = False
        while True:
            self._room = given = READ_BYTES if idle else REST_BYTES if real else _ANY_BYTES
            self._records = 0
            _, all_gone = engine.send_output(self._encipher)
            enciphered = given - self._room
            if not enciphered:
                break
            wrote = True
            data = self._sealed(tls, enciphered)
            sent = 0
            if idle:
                try:
                    sent = below.getHandle().send(data)
                except OSError:  # the socket is full or gone: the code that writes the rest finds out which
                    sent = 0
            if sent < len(data):
                below.write(data[sent:] if sent else data)
                if real:
                    wait_with_more(below, engine)
                    break
            if all_gone:
                break
        return wrote

    def _encipher(self, data: Any) -> int:
        """As a socket's `send`, up to the room that there is."""
        room = self._room
        if room <= 0 or self._tls is None:
            raise BlockingIOError
        if len(data) > room:
            data = memoryview(data)[:room]
        try:
            count = self._tls.send(data)
        except SSL.Error as error:
            self._fail(self._told(error))
            raise BlockingIOError from None
        self._room = room - count
        self._records += 1 + count // RECORD_BYTES
        return count

    def _sealed(self, tls: SSL.Connection, nbytes: int) -> bytes:
        """What so many bytes have become."""
        at_most = nbytes + _OVERHEAD_BYTES * (self._records + 1)
        data = tls.bio_read(at_most)
        if len(data) < at_most:
            return data
        pieces = [data]
        while more := _waiting(tls, RECORD_BYTES):  # OpenSSL had records of its own to send, such as alerts
            pieces.append(more)
        return b"".join(pieces)

    def _pass_down(self, tls: SSL.Connection) -> None:
        """Write the output of OpenSSL itself, for example of the handshake."""
        while data := _waiting(tls, RECORD_BYTES):
            self.transport.write(data)

    def write(self, data: bytes) -> None:
        """Encrypt and write. The protocols of this broker use `write_output` instead, whose output waits in the engine."""
        if self._tls is not None and not self._over:
            for start in range(0, len(data), READ_BYTES):
                self._tls.send(data[start : start + READ_BYTES])
                self._pass_down(self._tls)

    def writeSequence(self, pieces: Iterable[bytes]) -> None:
        """Encipher and write."""
        self.write(b"".join(pieces))

    def loseConnection(self) -> None:
        """Say that it ends, and end it when all that was written has left."""
        if self._over or self._tls is None:
            return
        self._over = True
        with suppress(SSL.Error):  # fails during a handshake and after an error: then no close alert can be sent
            self._tls.shutdown()
        self._pass_down(self._tls)
        self.transport.loseConnection()

    def abortConnection(self) -> None:  # noqa: N802
        """End it now."""
        self._over = True
        self.transport.abortConnection()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Register a producer, which is told when the socket is full and when it accepts bytes again."""
        self.transport.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        """Remove the producer."""
        self.transport.unregisterProducer()

    def pauseProducing(self) -> None:
        """Stop reading the socket."""
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Read the socket again."""
        self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """Take nothing more at all."""
        self.transport.stopProducing()

    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: N802
        """It is set already."""

    def getPeer(self) -> Any:
        """The other end of the socket."""
        return self.transport.getPeer()

    def getHost(self) -> Any:
        """This end of the socket."""
        return self.transport.getHost()


def over_tls(
    clock: IReactorTime,
    credentials: Credentials,
    host: str,
    above: TwistedProtocol,
    timeout_s: float,
    objection: Callable[[SSL.Connection], str] | None = None,
) -> TlsSocket:
    """A connection to the server of this name or address, for this protocol. The protocol is connected when the server's identity
    is verified; otherwise its connection is lost with TlsFailed. It may abort its transport at any time. `objection` returns why
    a server with a verified certificate is not accepted; by default its names decide.
    """
    server = _Server(above, objection or (lambda tls: objection_to_server(tls, host)))
    socket = TlsSocket(clock, credentials.client(host), server, timeout_s)
    above.transport = socket  # type: ignore[assignment]
    return socket


class _Server:
    """The owner of a client's connection."""

    def __init__(self, above: TwistedProtocol, objection: Callable[[SSL.Connection], str]) -> None:
        self._above = above
        self._objection = objection

    def ready(self, socket: TlsSocket) -> TwistedProtocol:
        """See TlsOwner."""
        why = self._objection(socket.tls)
        if why:
            raise TlsFailed(why)
        return self._above

    def failed(self, socket: TlsSocket, reason: str) -> None:
        """See TlsOwner."""
        why = reason if socket.heard else f"{reason}; {PERHAPS_PLAIN}"
        self._above.connectionLost(Failure(TlsFailed(why)))


def _waiting(tls: SSL.Connection, at_most: int) -> bytes:
    try:
        return tls.bio_read(at_most)
    except SSL.WantReadError:
        return b""
