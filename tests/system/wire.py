"""AMQP without a client library: frames made by hand, to send what no client would send, and faster than any client would.

Life of a `Wire`: it connects, sends bytes, and reads until the broker ends the connection or a deadline passes. A `Peer` is
the broker's own engine at the client's end of a blocking socket: it sends thousands of messages at once, and it can pretend
to be another broker.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from proton import symbol

from broker.amqp.engine import Engine
from broker.amqp.links import Link
from broker.amqp.sender import Sender
from tests.broker.amqp.pairs import Listener

WAIT_S = 30.0


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


class Peer(Listener):
    """A connection on the broker's own engine, on a socket that never blocks. Its sending links are presettled, unless an heir
    makes others, so that nothing has to be remembered.

    `reason` is what the broker gave for closing the link or the connection, and `ended` whether it has ended the TCP stream.
    """

    def __init__(self, port: int, properties: dict[str, Any] | None = None, container: str = "peer") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.socket.setblocking(False)
        self.engine = Engine(self, server=False, container=container)
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
        self.run(lambda: self.ended or not (link.buffered_bytes or self.engine.pending), "the last messages leaving")

    def run(self, done: Callable[[], bool], what: str) -> None:
        """Read and write until it is done; AssertionError when that takes too long."""
        deadline = time.monotonic() + WAIT_S
        self.move()
        while not done():
            assert time.monotonic() < deadline, f"{what} did not come; {self.reason}"
            if not self.ended:
                select.select([self.socket], [self.socket] if self.engine.pending else [], [], 0.05)
            self.move()

    def move(self) -> None:
        """Carry bytes both ways, as far as they go at once."""
        if self.ended:
            return
        self.engine.send_output(self.socket.send)
        with contextlib.suppress(BlockingIOError):
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            self.ended = not data
            self.engine.push(data)
            self.engine.drain()

    def close(self) -> None:
        """End the connection without a word."""
        self.engine.free()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # ---- EngineListener

    def on_link_closed(self, engine: Engine, link: Link) -> None:
        self.reason = f"link closed: {link.reason}"

    def on_close(self, engine: Engine, reason: str) -> None:
        self.reason = reason
