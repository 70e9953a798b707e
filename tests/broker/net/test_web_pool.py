"""The pool of connections to web servers: an answer over it, one connection for several requests, and nothing in the log."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_twisted
from twisted.internet import error
from twisted.internet import reactor as installed_reactor
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from twisted.web.client import Agent
from twisted.web.resource import Resource
from twisted.web.server import Site
from zope.interface import implementer

from broker.net.web_pool import QuietPool

reactor: Any = installed_reactor


class Page(Resource):
    """Answers with the port of the client, in a header."""

    isLeaf = True

    def render_GET(self, request: Any) -> bytes:
        request.setHeader(b"x-port", str(request.getClientAddress().port).encode())
        return b""


async def port_of(agent: Agent, url: bytes) -> list[bytes]:
    """The port from which the agent asks."""
    answer: Any = await agent.request(b"GET", url)
    ports: list[bytes] = answer.headers.getRawHeaders(b"x-port")
    return ports


@pytest_twisted.ensureDeferred
async def test_connections_that_are_made_kept_and_refused_leave_no_line_in_the_log() -> None:
    """Breaks when a server that is away for a night fills the log with lines about factories."""
    lines: list[str] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        lines.append(formatEvent(event))

    site = reactor.listenTCP(0, Site(Page()), interface="127.0.0.1")
    url = f"http://127.0.0.1:{site.getHost().port}/".encode()
    pool = QuietPool(reactor)
    agent = Agent(reactor, pool=pool)
    globalLogPublisher.addObserver(observe)
    try:
        first = await port_of(agent, url)
        assert await port_of(agent, url) == first, "the connection is kept"
        await site.stopListening()
        await pool.closeCachedConnections()
        with pytest.raises(error.ConnectionRefusedError):
            await agent.request(b"GET", url)
    finally:
        globalLogPublisher.removeObserver(observe)
    assert [line for line in lines if "HTTP11" in line] == []
