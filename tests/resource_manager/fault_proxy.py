"""A proxy in front of a real etcd that does to it what control planes do to their users.

Life: it listens on loopback and forwards each POST, streams too, in a thread of its own for each connection. `fault` says what
becomes of requests that come from then on, and of streams that are under way; "" is none. What a fault has held up goes on, late,
when it is over.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SILENT = ("hang after accept", "hang", "delay")
"""Faults in which a stream tells nothing either."""
_REFUSALS: dict[str, tuple[int, Any, dict[str, str]]] = {
    "500": (500, "<html>Internal Server Error</html>", {}),
    "503": (503, "upstream connect error", {"Retry-After": "1"}),
    "429": (429, {"message": "too many requests", "code": 8}, {"Retry-After": "1"}),
    "401": (401, {"message": "etcdserver: invalid auth token", "code": 16}, {}),
    "no leader": (503, {"message": "etcdserver: no leader", "code": 14}, {}),
    "nonsense": (200, "<html>Welcome to the hotel</html>", {}),
    "not etcd": (200, {}, {}),
}


class FaultProxy:
    """See the module."""

    def __init__(self, port: int, inside: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        """In front of what listens on that port of loopback. `inside` is the context (a network namespace, say) in which it
        listens."""
        self.fault = ""
        self.read_first: bytes | None = None
        """The first answer to a reading: what a member that has lost the others would go on to say."""
        self._upstream = port
        self._mended = threading.Condition()
        with inside():
            self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def becomes(self, fault: str) -> None:
        """From now on."""
        with self._mended:
            self.fault = fault
            self._mended.notify_all()

    def wait_while(self, *faults: str) -> None:
        """Until the fault is none of these."""
        with self._mended:
            self._mended.wait_for(lambda: self.fault not in faults, timeout=600)

    def upstream(self) -> HTTPConnection:
        """A connection to etcd."""
        return HTTPConnection("127.0.0.1", self._upstream, timeout=60)

    def close(self) -> None:
        """End."""
        self.becomes("")
        self._server.shutdown()
        self._server.server_close()


def _handler_for(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            proxy.wait_while("hang after accept")
            with suppress(OSError, HTTPException):
                super().handle()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.fault
            if fault in SILENT:
                proxy.wait_while(*SILENT)
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
            elif fault in _REFUSALS:
                status, said, headers = _REFUSALS[fault]
                self.answer(status, (said if isinstance(said, str) else json.dumps(said)).encode(), headers)
            elif fault == "compacted" and self.path == "/v3/watch":
                self.answer(200, b'{"result":{"header":{"cluster_id":"1"},"canceled":true,"compact_revision":"99"}}\n', {})
            else:
                self.forward(body, fault)

        def forward(self, body: bytes, fault: str) -> None:
            upstream = proxy.upstream()
            try:
                headers = {"Authorization": self.headers["Authorization"]} if "Authorization" in self.headers else {}
                upstream.request("POST", self.path, body, headers)
                response = upstream.getresponse()
                if self.path == "/v3/watch":
                    self.stream(response)
                    return
                content = response.read()
            finally:
                upstream.close()
            if self.path == "/v3/kv/range":
                proxy.read_first = proxy.read_first or content
                content = proxy.read_first if fault == "stale read" else content
            self.answer(response.status, content, {}, half=fault == "hang in half a body")

        def stream(self, response: Any) -> None:
            self.send_response(response.status)
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            while line := response.readline():
                proxy.wait_while(*SILENT)
                self.wfile.write(line)

        def answer(self, status: int, content: bytes, headers: dict[str, str], *, half: bool = False) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if half else content)
            if half:
                proxy.wait_while("hang in half a body")
                self.close_connection = True

        def log_message(self, *arguments: Any) -> None:
            """Nobody reads it."""

    return Handler


@contextmanager
def fault_proxy(port: int) -> Iterator[FaultProxy]:
    """One that runs in front of what listens on that port of loopback."""
    proxy = FaultProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
