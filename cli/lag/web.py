"""The dashboard's pages over HTTP, for browsers on this machine.

`Board` holds the shown data: the last report, and the problem since then, if any. Each change has a new tag, which is also
the ETag. A browser gets the page with the newest report in it, and then requests `/report?after=TAG`. That answer waits until
there is a change, or until HOLD_S has passed. Prometheus gets `/metrics`.

Other requests get no data. A Host header with a foreign name (of a page elsewhere whose name was made to point here) is
refused, other origins may read nothing, and requests, viewers and connections are bounded.
"""

from __future__ import annotations

import json
import secrets
from ipaddress import ip_address
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.protocols.policies import ThrottlingFactory
from twisted.web import http, resource, server

from spark_analytics.dashboard import metrics, page

HOLD_S: Final = 25.0
MAX_WAITING: Final = 64
MAX_BODY: Final = 1024
MAX_CONNECTIONS: Final = 256
IDLE_S: Final = 60.0
MISDIRECTED: Final = 421
_HEADERS: Final = {
    b"Cache-Control": b"no-cache",
    b"Cross-Origin-Opener-Policy": b"same-origin",
    b"Cross-Origin-Resource-Policy": b"same-origin",
    b"Referrer-Policy": b"no-referrer",
    b"X-Content-Type-Options": b"nosniff",
    b"X-Frame-Options": b"DENY",
}


class Board:
    """The shown data. `report`, `trouble` and `doing` change it; `changed` fires at a change. A report is made every
    `refresh_s`."""

    def __init__(self, refresh_s: float = 0.0) -> None:
        self._refresh_s = refresh_s
        self._run = secrets.token_hex(4)
        self._report: dict[str, Any] | None = None
        self._reports = self._changes = 0
        self.problem = ""
        self._doing = ""
        self._waiting: list[Deferred[None]] = []
        self._page: tuple[str, bytes] = ("", b"")
        self._news: dict[bool, bytes] = {}

    @property
    def tag(self) -> str:
        """The name of the shown data: the run of the server, the report, the change."""
        return f"{self._run}-{self._reports}-{self._changes}"

    def report(self, report: dict[str, Any]) -> None:
        """Show a new report; an earlier problem is over."""
        self._report = report
        self._reports += 1
        self.problem = ""
        self._tell()

    def trouble(self, problem: str) -> None:
        """Show a problem, and keep the last report."""
        if problem != self.problem:
            self.problem = problem
            self._tell()

    def doing(self, what: str) -> None:
        """Show the progress of the first report; later reports need none, because nobody waits for them."""
        if self._report is None and what != self._doing:
            self._doing = what
            self._tell()

    def page(self) -> bytes:
        """The complete page, with the current data in it."""
        if self._page[0] != self.tag:
            told = {"problem": self.problem, "doing": self._doing, "tag": self.tag}
            made = page.render(self._report, live="/report", refresh_ms=round(self._refresh_s * 1000), **told)
            self._page = self.tag, made.encode()
        return self._page[1]

    def metrics(self) -> bytes:
        """The newest figures, for Prometheus."""
        return metrics.render(self._report, self._refresh_s).encode()

    def news(self, after: str) -> bytes:
        """The current data as JSON for a browser that has the tag `after`; the report only if `after` has another one."""
        same = after.rpartition("-")[0] == self.tag.rpartition("-")[0]
        if same not in self._news:
            report = page.drawn(self._report) if self._report and not same else None
            words = {"tag": self.tag, "problem": self.problem, "doing": self._doing, "report": report}
            self._news[same] = json.dumps(words, separators=(",", ":"), allow_nan=False).encode()
        return self._news[same]

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a change."""
        return len(self._waiting)

    def changed(self) -> Deferred[None]:
        """Fires at the next change; cancel it to stop waiting."""
        waiter: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiter)
        return waiter

    def _tell(self) -> None:
        self._changes += 1
        self._news.clear()
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.callback(None)


class _Page(resource.Resource):
    isLeaf = True

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board

    def render_GET(self, request: server.Request) -> bytes:
        request.setHeader(b"Content-Type", b"text/html; charset=utf-8")
        request.setHeader(b"Content-Security-Policy", (page.policy(live=True) + "; frame-ancestors 'none'").encode())
        if request.setETag(self._board.tag.encode().join([b'"', b'"'])) is http.CACHED:
            return b""
        return self._board.page()


class _Metrics(resource.Resource):
    isLeaf = True

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board

    def render_GET(self, request: server.Request) -> bytes:
        request.setHeader(b"Content-Type", metrics.CONTENT_TYPE.encode())
        return self._board.metrics()


class _News(resource.Resource):
    isLeaf = True

    def __init__(self, board: Board, clock: IReactorTime) -> None:
        super().__init__()
        self._board, self._clock = board, clock

    def render_GET(self, request: server.Request) -> bytes | int:
        request.setHeader(b"Content-Type", b"application/json")
        after = request.args.get(b"after", [b""])[0].decode(errors="replace")
        if after != self._board.tag or request.method == b"HEAD":
            return self._answer(request, after)
        if self._board.waiting >= MAX_WAITING:
            request.setResponseCode(http.SERVICE_UNAVAILABLE)
            request.setHeader(b"Retry-After", b"5")
            return b'{"problem":"too many viewers wait already"}'
        waiter = self._board.changed()
        patience: IDelayedCall = self._clock.callLater(HOLD_S, waiter.cancel)
        gone = request.notifyFinish()
        gone.addErrback(lambda _: waiter.cancel())

        def answer(_: object) -> None:
            if patience.active():
                patience.cancel()
            if not request.finished and request.channel is not None:
                request.write(self._answer(request, after))
                request.finish()

        waiter.addBoth(answer)
        return server.NOT_DONE_YET

    def _answer(self, request: server.Request, after: str) -> bytes:
        request.setHeader(b"Date", http.datetimeToString())  # of now, and not of the request: the page tells ages by it
        tag = self._board.tag
        cached = request.setETag(f'"{tag}"'.encode()) is http.CACHED
        if cached or after == tag:
            request.setResponseCode(http.NOT_MODIFIED)
            return b""
        return self._board.news(after)


class _Refusal(resource.Resource):
    isLeaf = True

    def __init__(self, code: int, text: str) -> None:
        super().__init__()
        self._code, self._text = code, text

    def render(self, request: server.Request) -> bytes:
        request.setResponseCode(self._code)
        request.setHeader(b"Content-Type", b"text/plain; charset=utf-8")
        return f"{self._text}\n".encode()


class _Request(server.Request):
    """A request of a bounded size."""

    def gotLength(self, length: int | None) -> None:
        if length is None or length > MAX_BODY:
            self.channel.loseConnection()
            length = 0
        super().gotLength(length)


class Site(server.Site):
    """The pages of one board. `names` are the host names under which it answers, besides localhost and addresses."""

    requestFactory = _Request
    displayTracebacks = False

    def __init__(self, board: Board, clock: IReactorTime, names: frozenset[str] = frozenset()) -> None:
        root = resource.Resource()
        root.putChild(b"", _Page(board))
        root.putChild(b"report", _News(board, clock))
        root.putChild(b"metrics", _Metrics(board))
        super().__init__(root, timeout=IDLE_S, reactor=clock)
        self._names = names

    def getResourceFor(self, request: server.Request) -> resource.IResource:
        """The page of the request; a refusal if its Host header is a foreign name, or if there is no such page."""
        for name, value in _HEADERS.items():
            request.setHeader(name, value)
        if not self._ours(request.getHeader(b"host")):
            return _Refusal(MISDIRECTED, "this dashboard answers to localhost and to addresses only; see --name")
        if request.method not in (b"GET", b"HEAD"):
            request.setHeader(b"Allow", b"GET, HEAD")
            return _Refusal(http.NOT_ALLOWED, "this dashboard only shows")
        if request.path not in (b"/", b"/report", b"/metrics"):
            return _Refusal(http.NOT_FOUND, "there are only the page at / and /metrics")
        found: resource.IResource = super().getResourceFor(request)
        return found

    def _ours(self, host: bytes | None) -> bool:
        if host is None:
            return False
        text = host.decode("ascii", errors="replace").lower()
        name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
        if name == "localhost" or name in self._names:
            return True
        try:
            return bool(ip_address(name))
        except ValueError:
            return False

    def log(self, request: http.Request) -> None:
        """There is no access log."""


def bounded(site: Site) -> ThrottlingFactory:
    """The site with at most MAX_CONNECTIONS at once: further connections wait until one ends."""
    return ThrottlingFactory(site, maxConnectionCount=MAX_CONNECTIONS)
