"""The other end of a TlsSocket: Python's own `ssl`, joined to it in memory."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

_RECORD_HEAD_BYTES = 5


class Socket(StringTransport):
    """Counts how often it is written to."""

    writes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        super().write(data)


class Visitor:
    """A client (or with `serves` a server) of the `ssl` module; `turn` carries bytes to and fro until nothing moves."""

    def __init__(
        self,
        end: Any,
        *,
        trusts: Path,
        shows: tuple[Path, Path] | None = None,
        host: str = "localhost",
        serves: bool = False,
        newest: ssl.TLSVersion | None = None,
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(trusts)
        if shows is not None:
            context.load_cert_chain(*shows)
        if newest is not None:
            context.minimum_version = min(newest, context.minimum_version)
            context.maximum_version = newest
            context.set_ciphers("ALL:@SECLEVEL=0")  # else it would not offer what is old
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.into, self.out, server_side=serves, server_hostname=None if serves else host)
        self.end = end
        self.socket = Socket()
        self.error = ""
        self.ready = self.closed = False
        self.came = b""
        self.wire = b""
        """All that the other end has written."""
        end.makeConnection(self.socket)

    def say(self) -> None:
        """Say what is due, and do not listen."""
        self._read()
        if out := self.out.read():
            self.end.dataReceived(out)

    def listen(self) -> None:
        """Take what the other end has written, and say nothing yet."""
        data = self.socket.value()
        self.socket.clear()
        self.wire += data
        self.into.write(data)
        self._read()

    def turn(self) -> Visitor:
        """Let happen what happens without the passing of time."""
        for _ in range(50):
            self.listen()
            out = self.out.read()
            if out and not self.socket.disconnecting:
                self.end.dataReceived(out)
            if not out and not self.socket.value():
                break
        return self

    def _read(self) -> None:
        try:
            if not self.ready:
                self.tls.do_handshake()
                self.ready = True
            while data := self.tls.read(1 << 16):
                self.came += data
            self.closed = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.closed = True
        except ssl.SSLError as error:
            self.error = self.error or str(error)

    def send(self, *pieces: bytes) -> None:
        """A record each, all of them in one read of the other end."""
        for piece in pieces:
            self.tls.write(piece)
        self.end.dataReceived(self.out.read())
        self.turn()

    def lose(self) -> None:
        """The socket is gone."""
        with suppress(AttributeError):
            self.end.connectionLost(Failure(ConnectionDone()))


def records(wire: bytes) -> list[int]:
    """The sizes of the records that hold data (their type is 23)."""
    sizes, position = [], 0
    while position + _RECORD_HEAD_BYTES <= len(wire):
        nbytes = int.from_bytes(wire[position + 3 : position + 5], "big")
        if wire[position] == 23:
            sizes.append(nbytes)
        position += _RECORD_HEAD_BYTES + nbytes
    assert position == len(wire), "the wire ends in the midst of a record"
    return sizes
