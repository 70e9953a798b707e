"""Connects a proton client to a broker: TLS and login are done here, and proton gets only AMQP.

Proton's wheels have no SCRAM, and an application cannot add it. So these clients do what the brokers' own links do:
`broker.core.sasl_client` handles the SASL layer, `broker.net.credentials` handles TLS, and the client uses the best
mechanism that the broker offers. Proton's part begins with AMQP's header.

Life of a `Channel`: a socket connects to the addresses of its host, one after the other. TLS makes its handshake, and
the server must be the one that the address names. Then the client logs in. From then on the channel carries proton's
bytes. A failure before that becomes the transport's condition, and proton tries its next address.

Invariants: nothing blocks, except the derivation of a key, which takes milliseconds. A broker that has not let the
client in after LOGIN_S is given up. Before the login is done, no bytes go to proton or come from it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from proton import Condition, Handler, TransportException, Url
from proton._handlers import IOHandler
from proton._reactor import GlobalOverrides
from proton._selectable import Selectable
from proton.reactor import Container

from broker.core.sasl_client import PERHAPS_PLAIN, PERHAPS_TLS, ClientLayer, Login
from broker.tls_files import TlsFiles

if TYPE_CHECKING:
    from broker.net.credentials import Credentials

LOGIN_S = 5.0
"""Maximum time of TCP, TLS and the login together. A broker may delay a login by up to two seconds."""
READ_BYTES = 256 * 1024
UNAUTHORIZED = "amqp:unauthorized-access"
REFUSED = "the connection was refused"
_GOES_ON = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)

Found = Sequence[tuple[Any, ...]]
"""The result of a name lookup, as `socket.getaddrinfo` returns it."""


class Gate(IOHandler):
    """Proton's I/O, with channels for its connections. `addresses` are `host:port`, or `amqps://host:port`."""

    def __init__(self, addresses: Sequence[str], login: Login, files: TlsFiles) -> None:
        super().__init__()
        self.urls = [f"amqp://{address.removeprefix('amqps://')}" for address in addresses]
        """The addresses for proton, without TLS, because TLS is done here."""
        secure = [url for url, address in zip(self.urls, addresses, strict=True) if address.startswith("amqps://")]
        self.reason = ""
        """Why the last failed connection was not let in."""
        self.denied = False
        """Whether its login failed, which will not succeed at the next attempt either."""
        self._login = login
        self._secure = {_host_and_port(url) for url in map(Url, secure)}
        self._credentials: Credentials | None = None
        if secure:
            from broker.net.credentials import Credentials  # this import takes time

            self._credentials = Credentials(files)

    def on_connection_bound(self, event: Any) -> None:
        """Connect. OSError if the host is not known."""
        transport, connection = event.transport, event.connection
        transport._reactor = connection._reactor
        transport._selectable = None
        host, port = _host_and_port(connection.url)
        cipher = None
        if (host, port) in self._secure and self._credentials is not None:
            cipher = Cipher(self._credentials, host)
        layer = ClientLayer(replace(self._login, encrypted=cipher is not None), secrets.token_urlsafe(18))
        found = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
        Channel(self, connection._reactor, transport, found, layer, cipher)


class Gated(Container):
    """A container whose connections go through a gate. Proton would prepare TLS for it, as a client and as a server, which
    takes 40 ms of processor time, and is not used behind a gate.
    """

    def __init__(self, gate: Gate, *handlers: Handler, name: str = "") -> None:
        super().__init__(*handlers, impl=None)  # with this word it leaves out the TLS, and all that is set here
        self.ssl = None  # type: ignore[assignment]  # as proton says where there is no TLS
        self.global_handler = GlobalOverrides(gate)
        self.trigger = None
        self.container_id = name or str(uuid.uuid4())
        self.allow_insecure_mechs = self.sasl_enabled = True
        self.allowed_mechs = self.user = self.password = None


def _host_and_port(url: Any) -> tuple[str, int]:
    return str(url.host), int(url.port)


class Failed(Exception):
    """The connection failed; the text says why."""


class Cipher:
    """TLS of one connection, in memory."""

    def __init__(self, credentials: Credentials, host: str) -> None:
        self.untrusted = 0
        """Why the broker's certificate was not accepted: OpenSSL's number, or 0."""
        self._host = host
        self._tls = credentials.client(host)
        self._tls.set_app_data(self)
        self.shaken = False

    def take(self, data: bytes) -> bytes:
        """Decrypt bytes from the socket; b"" begins the handshake. Failed."""
        from OpenSSL import SSL

        from broker.net.credentials import objection_to_server, what_failed

        tls = self._tls
        if data:
            tls.bio_write(data)
        pieces: list[bytes] = []
        try:
            if not self.shaken:
                tls.do_handshake()
                self.shaken = True
                why = objection_to_server(tls, self._host)
                if why:
                    raise Failed(why)
            while True:
                pieces.append(tls.recv(READ_BYTES))
        except (SSL.WantReadError, SSL.ZeroReturnError):  # after a close alert the peer closes the socket
            return b"".join(pieces)
        except SSL.Error as error:
            raise Failed(what_failed(error, self.untrusted)) from None

    def give(self, data: bytes) -> None:
        """Encrypt these bytes, for `drain`."""
        self._tls.send(data)

    def drain(self) -> bytes:
        """The bytes to write to the socket."""
        from OpenSSL import SSL

        pieces: list[bytes] = []
        with contextlib.suppress(SSL.WantReadError):
            while True:
                pieces.append(self._tls.bio_read(READ_BYTES))
        return b"".join(pieces)

    def end(self) -> None:
        """Tell the peer that no more bytes follow."""
        from OpenSSL import SSL

        with contextlib.suppress(SSL.Error):
            self._tls.shutdown()


class Channel(Selectable):
    """See the module. Proton's loop makes it, and from then on asks it to read and write."""

    _delegate: Any

    def __init__(self, gate: Gate, reactor: Any, transport: Any, found: Found, layer: ClientLayer, cipher: Cipher | None) -> None:
        self._gate = gate
        self._wish = False
        self._output = bytearray()
        self._connected = self._heard = self._entered = False
        self._found = list(found)
        self._layer = layer
        self._cipher = cipher
        super().__init__(None, reactor)
        self._transport = transport
        transport._connect_selectable = self
        self.deadline = time.time() + LOGIN_S
        self._connect()
        self.update()

    @property
    def writing(self) -> bool:
        """Whether the loop must report that the socket accepts bytes."""
        return not self._connected or self._wish or bool(self._output)

    @writing.setter
    def writing(self, wish: bool) -> None:
        """Whether proton has something to write."""
        self._wish = wish

    # ---- as proton's loop calls them

    def readable(self) -> None:
        """Bytes have arrived, or the socket has ended."""
        if self._transport is None or not self._connected:
            return
        try:
            data = self._delegate.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(error.strerror or str(error))
            return
        if not data:
            hint = PERHAPS_TLS if self._cipher is None else PERHAPS_PLAIN
            self._broken(f"the broker has closed the connection{'' if self._heard else f'; {hint}'}")
            return
        self._heard = True
        self._take(data)

    def writable(self) -> None:
        """The socket accepts bytes, or has connected, or has failed to connect."""
        if self._transport is None:
            return
        if not self._connected:
            self._connecting()
        elif self._entered:
            self._pop()
            self._follow()
        else:
            self._flush()
            self.update()

    def expired(self) -> None:
        """The login took too long, or a heartbeat is due."""
        if self._entered:
            super().expired()
        elif self._transport is not None:
            self._fail(f"not let in after {LOGIN_S:g} s")

    def close(self) -> None:
        """Close the socket."""
        if self._cipher is not None and self._entered:
            self._cipher.end()
            self._output += self._cipher.drain()
            with contextlib.suppress(OSError):
                self._delegate.send(self._output)
        super().close()

    # ---- until it is let in

    def _connect(self) -> None:
        """Connect to the next address."""
        family, kind, protocol, _, where = self._found.pop(0)
        if self._delegate is not None:
            self._delegate.close()
        self._delegate = made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        number = made.connect_ex(where)
        if number not in _GOES_ON:
            self._not_there(number)

    def _connecting(self) -> None:
        number = self._delegate.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._not_there(number)
            return
        self._connected = self.reading = True
        self._take(b"")

    def _not_there(self, number: int) -> None:
        if self._found:
            self._connect()
        else:
            self._fail(REFUSED if number == errno.ECONNREFUSED else os.strerror(number))

    def _take(self, data: bytes) -> None:
        """Handle bytes from the socket; b"" when it has just connected."""
        try:
            plain = self._cipher.take(data) if self._cipher is not None else data
        except Failed as failed:
            self._broken(str(failed))
            return
        if self._entered:
            self._push(plain)
            self._follow()
        else:
            self._log_in(plain)

    def _log_in(self, plain: bytes) -> None:
        """Continue with TLS and the login."""
        layer, cipher = self._layer, self._cipher
        rest = layer.take(plain)
        while layer.waits is not None and layer.waits.work is not None:
            rest += layer.resume(layer.waits.work())
        if cipher is None or cipher.shaken:
            self._say(layer)
        self._flush()
        if layer.refusal is not None:
            self._fail(layer.refusal.text, layer.refusal.name)
        elif layer.done:
            self._enter(rest)
        else:
            self.update()

    def _say(self, layer: ClientLayer) -> None:
        if self._cipher is None:
            self._output += layer.output
        elif layer.output:
            self._cipher.give(bytes(layer.output))
        layer.output.clear()

    def _enter(self, rest: bytes) -> None:
        """The login is done: the following bytes are for proton."""
        self._entered = True
        self._transport._connect_selectable = None
        self._transport._selectable = self
        self._push(rest)
        self._follow()

    def _fail(self, text: str, name: str = "proton.pythonio") -> None:
        transport = self._transport
        self._flush()  # sends the alert in which TLS gives the reason
        transport.condition = Condition(name, text)
        self._gate.reason, self._gate.denied = text, name == UNAUTHORIZED
        transport._connect_selectable = None
        self._detach()
        transport.close_tail()
        transport.close_head()

    # ---- afterwards

    def _push(self, plain: bytes) -> None:
        transport, position = self._transport, 0
        with contextlib.suppress(TransportException):  # the transport has ended, and accepts no more bytes
            while position < len(plain) and (capacity := transport.capacity()) > 0:
                transport.push(plain[position : position + capacity])
                position += capacity

    def _pop(self) -> None:
        transport, cipher = self._transport, self._cipher
        with contextlib.suppress(TransportException):
            pending = transport.pending()
            if pending > 0 and not self._output:
                data = transport.peek(pending)
                if cipher is not None:
                    cipher.give(data)
                    transport.pop(len(data))
                else:
                    try:
                        transport.pop(self._delegate.send(data))
                    except BlockingIOError:
                        return
                    except OSError:
                        transport.close_head()
                        return
        self._flush()

    def _flush(self) -> None:
        """Write the prepared bytes."""
        if self._cipher is not None:
            self._output += self._cipher.drain()
        if self._output:
            try:
                del self._output[: self._delegate.send(self._output)]
            except BlockingIOError:
                return
            except OSError:
                self._output.clear()  # the next read reports the end of the socket

    def _follow(self) -> None:
        """Do what proton wants next."""
        if self._transport is not None:
            IOHandler.update(self._transport, self, self._reactor.now)

    def _broken(self, text: str) -> None:
        """The socket has ended."""
        if not self._entered:
            self._fail(text)
            return
        transport = self._transport
        transport.close_head()
        transport.close_tail()
        transport._selectable = None
        self._detach()

    def _detach(self) -> None:
        self.terminate()
        self._transport = None
        self.update()
