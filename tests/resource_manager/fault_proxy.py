"""A proxy in front of a store over HTTP (a real etcd, an API server) that does to it what control planes do to their users.

Life: it listens on loopback and forwards each request, streams too, in a thread of its own for each connection. `fault` says what
becomes of requests that come from then on, and of streams that are under way; "" is none. What a fault has held up goes on, late,
when it is over. A `Dialect` says how the store talks.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import Any

SILENT = ("hang after accept", "hang", "delay")
"""Faults in which a stream tells nothing either."""


@dataclass(frozen=True)
class Dialect:
    """How a store talks. `refusals` are status, body and headers by fault; `stream_ends` is what a stream says by fault instead
    of anything else. The predicates are told method and path."""

    is_stream: Callable[[str, str], bool]
    is_reading: Callable[[str, str], bool]
    is_write: Callable[[str, str], bool]
    refusals: Mapping[str, tuple[int, Any, Mapping[str, str]]]
    write_refusals: Mapping[str, tuple[int, Any, Mapping[str, str]]]
    stream_ends: Mapping[str, bytes]


_ANY = {
    "500": (500, "<html>Internal Server Error</html>", {}),
    "503": (503, "upstream connect error", {"Retry-After": "1"}),
    "nonsense": (200, "<html>Welcome to the hotel</html>", {}),
    "no store": (200, {}, {}),
}
ETCD = Dialect(
    is_stream=lambda method, path: path == "/v3/watch",
    is_reading=lambda method, path: path == "/v3/kv/range",
    is_write=lambda method, path: False,
    refusals=_ANY
    | {
        "429": (429, {"message": "too many requests", "code": 8}, {"Retry-After": "1"}),
        "401": (401, {"message": "etcdserver: invalid auth token", "code": 16}, {}),
        "no leader": (503, {"message": "etcdserver: no leader", "code": 14}, {}),
    },
    write_refusals={},
    stream_ends={"compacted": b'{"result":{"header":{"cluster_id":"1"},"canceled":true,"compact_revision":"99"}}\n'},
)


def _status(code: int, text: str, **headers: str) -> tuple[int, Any, Mapping[str, str]]:
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": text, "code": code}
    return code, said, {name.replace("_", "-"): value for name, value in headers.items()}


def _event(kind: str, thing: Any) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


KUBERNETES = Dialect(
    is_stream=lambda method, path: "watch=true" in path,
    is_reading=lambda method, path: method == "GET",
    is_write=lambda method, path: method != "GET",
    refusals=_ANY
    | {
        "429": _status(429, "too many requests, please try again later", Retry_After="1"),
        "401": _status(401, "Unauthorized"),
        "no leader": _status(500, "etcdserver: no leader"),
    },
    write_refusals={
        "409 for ever": _status(409, "the object has been modified; please apply your changes to the latest version"),
        "403 on writes": _status(403, 'leases.coordination.k8s.io "understudy" is forbidden'),
        "500 on writes": _status(500, "etcdserver: request timed out"),
    },
    stream_ends={
        "410": json.dumps({"type": "ERROR", "object": _status(410, "too old resource version: 1 (99)")[1]}).encode() + b"\n"
    },
)


class FaultProxy:
    """See the module."""

    def __init__(
        self,
        port: int,
        inside: Callable[[], AbstractContextManager[Any]] = nullcontext,
        dialect: Dialect = ETCD,
        tls: SSLContext | None = None,
    ) -> None:
        """In front of what listens on that port of loopback, over TLS with `tls`; it listens in the clear itself. `inside` is
        the context (a network namespace, say) in which it listens."""
        self._tls = tls
        self.dialect = dialect
        self.fault = ""
        self.read_first: bytes | None = None
        """The first answer to a reading: what a member that has lost the others would go on to say."""
        self.late = 0
        """The answers that "late answers" has held up, of all time."""
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
        """A connection to the store."""
        there = "127.0.0.1", self._upstream
        return HTTPSConnection(*there, timeout=60, context=self._tls) if self._tls else HTTPConnection(*there, timeout=60)

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

        def do_GET(self) -> None:
            self.take()

        def do_POST(self) -> None:
            self.take()

        def do_PUT(self) -> None:
            self.take()

        def do_PATCH(self) -> None:
            self.take()

        def take(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault, dialect, what = proxy.fault, proxy.dialect, (self.command, self.path)
            if fault in SILENT or (fault == "hang in writes" and dialect.is_write(*what)):
                proxy.wait_while(*SILENT, "hang in writes")
            refusals = {**dialect.refusals, **(dialect.write_refusals if dialect.is_write(*what) else {})}
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
            elif fault in refusals:
                status, said, headers = refusals[fault]
                self.answer(status, (said if isinstance(said, str) else json.dumps(said)).encode(), headers)
            elif fault in dialect.stream_ends and dialect.is_stream(*what):
                self.answer(200, dialect.stream_ends[fault], {})
            else:
                self.forward(body, fault)

        def forward(self, body: bytes, fault: str) -> None:
            upstream, dialect, what = proxy.upstream(), proxy.dialect, (self.command, self.path)
            try:
                headers = {name: self.headers[name] for name in ("Authorization", "Content-Type") if name in self.headers}
                upstream.request(self.command, self.path, body or None, headers)
                response = upstream.getresponse()
                if dialect.is_stream(*what) and response.status == 200:
                    self.stream(response)
                    return
                content = response.read()
            finally:
                upstream.close()
            if dialect.is_reading(*what) and response.status == 200:
                proxy.read_first = proxy.read_first or content
                content = proxy.read_first if fault == "stale read" else content
            if fault == "late answers":
                proxy.late += 1
                proxy.wait_while("late answers")
            self.answer(response.status, content, {}, half=fault == "hang in half a body")

        def stream(self, response: Any) -> None:
            self.send_response(response.status)
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            while line := response.readline():
                proxy.wait_while(*SILENT)
                self.wfile.write(line)

        def answer(self, status: int, content: bytes, headers: Mapping[str, str], *, half: bool = False) -> None:
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
def fault_proxy(port: int, dialect: Dialect = ETCD, tls: SSLContext | None = None) -> Iterator[FaultProxy]:
    """One that runs in front of what listens on that port of loopback."""
    proxy = FaultProxy(port, dialect=dialect, tls=tls)
    try:
        yield proxy
    finally:
        proxy.close()
