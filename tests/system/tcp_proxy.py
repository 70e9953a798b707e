"""A proxy for TCP between two processes of a test, which stalls and cuts: a partition that affects only these two; or it is slow.

Life: it listens on a port of loopback and forwards the bytes of each connection both ways, in one thread for all. `stall`
holds back all bytes, as a network that loses every packet does. `cut` ends all connections with a reset and refuses new ones.
`mend` continues, with the bytes that were held back. With a `rate` it forwards so many bytes a second. Leaving the context ends
it.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Iterator

_READ_BYTES = 1 << 16
_HELD_BYTES = 1 << 20
"""What is read of one end before the other has taken it."""
_LOOK_S = 0.05
_RESET = struct.pack("ii", 1, 0)


class _End:
    """One end of a connection, and what it is to be sent."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.other: _End = self
        self.unsent = bytearray()


class TcpProxy:
    """See the module. It carries to `to`, host and port."""

    def __init__(self, listening: socket.socket, to: tuple[str, int], rate: float | None) -> None:
        self.address = "{}:{}".format(*listening.getsockname())
        self._to = to
        self._rate = rate
        self._listening = listening
        self._selector = selectors.DefaultSelector()
        self._ends: set[_End] = set()
        self._stalled = threading.Event()
        self._is_cut = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def stall(self) -> None:
        """Nothing goes through, and nobody is told."""
        self._stalled.set()

    def cut(self) -> None:
        """Every connection ends, and none begins."""
        self._is_cut.set()

    def mend(self) -> None:
        """All goes through again."""
        self._stalled.clear()
        self._is_cut.clear()

    def close(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join()

    def _carry(self) -> None:
        self._listening.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ)
        while not self._over.is_set():
            if self._is_cut.is_set():
                for end in list(self._ends):
                    self._end(end)
            if self._stalled.is_set():
                self._over.wait(_LOOK_S)
                continue
            nbytes = 0
            for key, events in self._selector.select(_LOOK_S):
                if key.data is None:
                    self._accept()
                elif key.data in self._ends:
                    nbytes += self._serve(key.data, events)
            if self._rate is not None:
                self._over.wait(nbytes / self._rate)
        for end in list(self._ends):
            self._end(end)
        self._selector.close()
        self._listening.close()

    def _accept(self) -> None:
        near, _ = self._listening.accept()
        try:
            if self._is_cut.is_set():
                raise ConnectionRefusedError
            far = socket.create_connection(self._to, timeout=5)
        except OSError:
            _reset(near)
            return
        one, two = _End(near), _End(far)
        one.other, two.other = two, one
        for end in (one, two):
            self._ends.add(end)
            self._selector.register(end.sock, selectors.EVENT_READ, end)

    def _serve(self, end: _End, events: int) -> int:
        """Read from this end, and write to it. Returns how many bytes were read."""
        nbytes = 0
        try:
            if events & selectors.EVENT_READ:
                data = end.sock.recv(_READ_BYTES)
                if not data:
                    self._end(end)
                    return 0
                nbytes = len(data)
                end.other.unsent += data
                self._send(end.other)
            if events & selectors.EVENT_WRITE:
                self._send(end)
        except BlockingIOError:
            return nbytes
        except OSError:
            self._end(end)
        return nbytes

    def _send(self, end: _End) -> None:
        with contextlib.suppress(BlockingIOError):
            while end.unsent:
                del end.unsent[: end.sock.send(end.unsent[:_READ_BYTES])]
        for each in (end, end.other):
            wanted = selectors.EVENT_WRITE if each.unsent else 0
            if len(each.other.unsent) < _HELD_BYTES:
                wanted |= selectors.EVENT_READ
            registered = each.sock in self._selector.get_map()
            if registered and wanted:
                self._selector.modify(each.sock, wanted, each)
            elif registered:
                self._selector.unregister(each.sock)
            elif wanted:
                self._selector.register(each.sock, wanted, each)

    def _end(self, end: _End) -> None:
        for each in (end, end.other):
            self._ends.discard(each)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each.sock)
            _reset(each.sock)


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


@contextlib.contextmanager
def tcp_proxy(to: str, port: int = 0, rate: float | None = None) -> Iterator[TcpProxy]:
    """A proxy before the address `to`, which listens on that port of loopback. `rate`: bytes a second."""
    host, _, number = to.rpartition(":")
    proxy = TcpProxy(socket.create_server(("127.0.0.1", port)), (host, int(number)), rate)
    try:
        yield proxy
    finally:
        proxy.close()
