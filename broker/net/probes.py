"""The admin port: HTTP probes for load balancers, Kubernetes and monitoring (is this broker alive, in sync, and the one that
serves?), and the metrics, if they are enabled.

Life of a probe: a socket of the admin port is accepted. Its request is answered in the turn in which it is complete, and the
socket is kept for the next request for a few seconds. Only the reactor answers, so a blocked reactor does not look alive. When
the broker stops serving, or is about to hand over, the next probe reports it.

    /livez     200 while the broker answers
    /startedz  200 when it is in sync with its primary and applies the log, or serves
    /readyz    200 while it serves clients

    /metrics   200 with the figures of the broker, in Prometheus' text format

Any other answer to the probes is 503, with one line that says why. The line contains only what a broker tells every client that
connects: its state, the address of the primary, and whether it has stopped applying the log. A page of metrics is sent in pieces
(`broker.net.page`).

Invariants: no login is needed, and nothing can be changed; a request has no body and at most a few KiB; at most
`limits.PROBE_CONNECTIONS` sockets are open, and open files are reserved for them; at most `limits.SCRAPES` pages of metrics are
written at the same time.

Names: those of Kubernetes' own components (kubernetes.io, "Kubernetes API health endpoints") and of Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.web import http

from broker.core import limits
from broker.net.page import Page
from telemetry.exposition import CONTENT_TYPE

_METRICS = b"/metrics"
_IN_SYNC = ("ready", "recovering")


@dataclass(frozen=True, slots=True)
class Health:
    """What a broker says of itself: its state, whether it serves clients, whether it is about to hand over, the primary's
    address ("": none is known), and whether it has stopped applying the log."""

    state: str
    serves: bool
    leaves: bool
    primary: str
    stopped: bool = False


def answer(path: str, health: Health) -> tuple[int, str] | None:
    """Status and text for that path; None when there is no such probe."""
    serves = health.serves and not health.leaves
    if path == "/livez":
        return http.OK, health.state
    if path == "/startedz":
        if health.stopped and not health.serves:
            return http.SERVICE_UNAVAILABLE, f"{health.state}: it has stopped applying the log"
        started = health.serves or health.state in _IN_SYNC
        return (http.OK if started else http.SERVICE_UNAVAILABLE), health.state
    if path == "/readyz":
        return (http.OK, health.state) if serves else (http.SERVICE_UNAVAILABLE, _why_not(health))
    return None


def _why_not(health: Health) -> str:
    if health.leaves:
        return f"{health.state}: about to hand over to another broker"
    if health.primary:
        return f"{health.state}: the primary is {health.primary}"
    return f"{health.state}: no primary is known"


class _Probe(http.Request):
    """One request."""

    def gotLength(self, length: int | None) -> None:
        """What has a body is not a probe: it is not read."""
        super().gotLength(0)
        if length != 0:
            transport: Any = self.channel.transport
            transport.abortConnection()

    def process(self) -> None:
        """Answer it."""
        factory: Any = self.channel.factory
        self.setHeader(b"cache-control", b"no-store")
        if self.method == b"GET" and self.path == _METRICS and factory.may_scrape:
            self.setHeader(b"content-type", CONTENT_TYPE.encode())
            factory.scrape(self)
            return
        self.setHeader(b"content-type", b"text/plain; charset=utf-8")
        if self.method not in (b"GET", b"HEAD"):
            self.setHeader(b"allow", b"GET, HEAD")
            status, text = http.NOT_ALLOWED, "only GET and HEAD"
        else:
            path = self.path.decode("ascii", "replace")
            status, text = factory.answer(path) or (http.NOT_FOUND, "there is no such probe here")
        content = f"{text}\n".encode()
        self.setResponseCode(status)
        self.setHeader(b"content-length", str(len(content)).encode())
        if self.method != b"HEAD":
            self.write(content)
        self.finish()


class _Channel(http.HTTPChannel):
    """One socket."""

    requestFactory = _Probe

    def connectionLost(self, reason: Any = None) -> None:
        """The socket has ended."""
        factory: Any = self.factory
        factory.ended()
        super().connectionLost(reason)


class Probes(ServerFactory):
    """Answers the probes of an admin port. `health` is asked for each; `answer` makes status and text of its path and of that.
    `metrics` makes a page of metrics, in pieces; None: there is none."""

    noisy = False

    def __init__(
        self,
        clock: IReactorTime,
        health: Callable[[], Any],
        answer: Callable[[str, Any], tuple[int, str] | None] = answer,
        metrics: Callable[[], Iterator[str]] | None = None,
    ) -> None:
        self._health = health
        self._answer = answer
        self._metrics = metrics
        self._clock = clock
        self._open = 0
        self._scrapes = 0

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        """For an accepted socket; None ends it."""
        if self._open >= limits.PROBE_CONNECTIONS:
            return None
        channel: Any = _Channel()
        channel.factory = self
        channel.totalHeadersSize = limits.PROBE_HEADER_BYTES
        channel.timeOut = limits.PROBE_IDLE_S
        channel.callLater = self._clock.callLater
        self._open += 1
        made: Protocol = channel
        return made

    def ended(self) -> None:
        """A socket has."""
        self._open -= 1

    def answer(self, path: str) -> tuple[int, str] | None:
        """Status and text of what is answered in one line; None: there is no such path."""
        if path.encode() == _METRICS and self._metrics is not None:
            if self.may_scrape:
                return http.OK, "metrics"
            return http.SERVICE_UNAVAILABLE, f"{limits.SCRAPES} pages of metrics are being written: ask later"
        return self._answer(path, self._health())

    @property
    def may_scrape(self) -> bool:
        """Whether there are metrics, and not too many who read them."""
        return self._metrics is not None and self._scrapes < limits.SCRAPES

    def scrape(self, request: http.Request) -> None:
        """Write a page of metrics."""
        assert self._metrics is not None, "there are metrics"
        self._scrapes += 1
        Page(self._clock, request, self._metrics(), self._scraped)

    def _scraped(self) -> None:
        self._scrapes -= 1

    def log(self, request: http.Request) -> None:
        """Nothing: probes come every second."""
