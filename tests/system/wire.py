"""AMQP below any client library: frames made by hand, for saying to a broker what no client would say, and faster than any would.

Life of a `Wire`: it connects, says bytes, and listens until the broker ends the connection or a deadline passes. A `Peer` is the
broker's own engine at the client's end of a blocking socket: it sends by the thousand, and it can pretend to be another broker.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from proton import symbol

from broker.amqp.engine import Engine
from broker.amqp.links import Link, Receiver, Sender

HEADER = b"AMQP\x00\x01\x00\x00"
OPEN_CODE, BEGIN_CODE, ATTACH_CODE, TRANSFER_CODE = 0x10, 0x11, 0x12, 0x14
WAIT_S = 30.0


def frame(body: bytes, channel: int = 0) -> bytes:
    """An AMQP frame (part 2.3) with this body."""
    return struct.pack(">IBBH", 8 + len(body), 2, 0, channel) + body


def performative(code: int, *fields: bytes) -> bytes:
    """A frame with a performative: its descriptor and a list of encoded fields."""
    content = b"".join(fields)
    return frame(bytes((0x00, 0x53, code, 0xC0, len(content) + 1, len(fields))) + content)


OPEN = performative(OPEN_CODE, b"\xa1\x04wire")
BEGIN = performative(BEGIN_CODE, b"\x40", b"\x43", b"\x70\x00\x00\x10\x00", b"\x70\x00\x00\x10\x00")


def attach(target: str) -> bytes:
    """A frame that attaches a sending link to a target, with the handle 0, whose messages are all settled."""
    address = b"\xa1" + bytes((len(target),)) + target.encode()
    terminus = b"\x00\x53\x29\xc0" + bytes((len(address) + 1, 1)) + address
    source, unsettled = b"\x00\x53\x28\x45", (b"\x40", b"\x40")
    fields = (b"\xa1\x04wire", b"\x43", b"\x42", b"\x50\x01", b"\x40", source, terminus, *unsettled, b"\x43")
    return performative(ATTACH_CODE, *fields)


def transfer(number: int, message: bytes) -> bytes:
    """The body of a frame with an encoded message, settled, on the link with the handle 0."""
    fields = b"".join((b"\x43", b"\x70" + struct.pack(">I", number), b"\xa0\x01x", b"\x43", b"\x41"))
    return bytes((0x00, 0x53, TRANSFER_CODE, 0xC0, len(fields) + 1, 5)) + fields + message


class Wire:
    """A TCP connection on which anything can be said."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)

    def say(self, data: bytes) -> None:
        """Send bytes; a broker that has hung up already has heard enough."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def last_words(self) -> bytes:
        """All that the broker says until it ends the connection; AssertionError when it does not."""
        heard = b""
        try:
            while True:
                data = self.socket.recv(65_536)
                if not data:
                    return heard
                heard += data
        except ConnectionResetError:
            return heard
        except TimeoutError:
            raise AssertionError(f"the broker keeps the connection and has said {heard!r}") from None

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.socket.close()


class Peer:
    """A connection on the broker's own engine. Its sending links are presettled, so that nothing has to be remembered.

    Fulfils EngineListener.
    """

    def __init__(self, port: int, properties: dict[str, Any] | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.engine = Engine(self, server=False, container="peer")
        self.engine.open({symbol(key): value for key, value in (properties or {}).items()}, hostname="127.0.0.1")
        self.session = self.engine.new_session()
        self.reason = ""
        self.ended = False

    def sender(self, target: str) -> Sender:
        """A sending link that has credit; AssertionError with the broker's reason when there is none."""
        link = self.engine.attach_sender(self.session, f"to-{target}", target)
        self.run(lambda: self.ended or link.credit > 0, f"credit on {target}")
        assert not self.ended, self.reason
        return link

    def send(self, link: Sender, message: bytes, count: int) -> None:
        """Send this encoded message so often, as fast as the broker gives credit; returns when all have left.

        Ask the broker for what has come before closing the connection: what it has not read by then, the kernel may throw away.
        """
        left = count
        while left:
            self.run(lambda: self.ended or link.credit > 0, f"credit for {left} messages")
            assert not self.ended, self.reason
            batch = min(left, link.credit)
            offsets: Sequence[int] = range(0, (batch + 1) * len(message), len(message))
            link.send(message * batch, offsets, 0, batch, 0, True)
            left -= batch
        self.run(lambda: not (link.buffered_bytes or self.engine.pending), "the last messages leaving")

    def run(self, done: Callable[[], bool], what: str) -> None:
        """Read and write until it is done; AssertionError when that takes too long."""
        deadline = time.monotonic() + WAIT_S
        while True:
            self._turn(0.05)
            if done():
                return
            assert time.monotonic() < deadline, f"{what} did not come; {self.reason}"

    def _turn(self, wait_s: float) -> None:
        for piece in self.engine.take_output():
            self.socket.sendall(piece)
        if self.ended or not select.select([self.socket], [], [], wait_s)[0]:
            return
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        if data:
            self.engine.push(data)
            self.engine.drain()
        else:
            self.ended = True

    def close(self) -> None:
        """End the connection without a word."""
        self.engine.free()
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # ---- EngineListener

    def on_open(self, engine: Engine) -> None: ...
    def on_link(self, engine: Engine, link: Link) -> None: ...
    def on_link_open(self, engine: Engine, link: Link) -> None: ...
    def on_messages(self, engine: Engine, link: Receiver) -> None: ...
    def on_outcomes(self, engine: Engine, link: Sender) -> None: ...
    def on_credit(self, engine: Engine, link: Sender) -> None: ...
    def on_link_closed(self, engine: Engine, link: Link) -> None: ...

    def on_close(self, engine: Engine, reason: str) -> None:
        self.reason = reason
