"""A page of any size as the answer to an HTTP request, written in pieces, so that it delays no other work.

Life of a page: pieces of text are taken and written until the share of a turn is used up. The next turns continue, with as much
time for other work in between. While the reader does not read, no piece is taken. At the end the request is finished. If the
reader disconnects, or takes longer than `limits.SCRAPE_S`, the page ends.

Invariants: a page takes at most half of the reactor's time, in pieces of `limits.MANAGEMENT_TURN_S` plus the cost of one piece of
text; at most a socket's buffers and the text of one turn wait to be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from twisted.web.http import Request
from zope.interface import implementer

from broker.core import limits


@implementer(IPushProducer)
class Page:
    """See the module. `ended` is called once, however it ends."""

    def __init__(self, clock: IReactorTime, request: Request, pieces: Iterator[str], ended: Callable[[], None]) -> None:
        self._clock = clock
        self._request = request
        self._pieces = pieces
        self._ended = ended
        self._paused = False
        self._next: IDelayedCall | None = None
        self._limit = clock.callLater(limits.SCRAPE_S, self._too_slow)
        request.notifyFinish().addBoth(lambda _: self._end())
        request.registerProducer(self, True)
        self._write()

    def _write(self) -> None:
        self._next = None
        began_s = self._clock.seconds()
        text, spent_s, more = [], 0.0, False
        for piece in self._pieces:
            text.append(piece)
            spent_s = self._clock.seconds() - began_s
            if spent_s >= limits.MANAGEMENT_TURN_S:
                more = True
                break
        if more:
            self._next = self._clock.callLater(spent_s, self._write)
        data = "".join(text).encode()
        if data:
            self._request.write(data)  # this call may pause the page
        if not more:
            self._request.unregisterProducer()
            self._request.finish()

    def pauseProducing(self) -> None:
        """The reader does not keep up."""
        self._paused = True
        self._cancel()

    def resumeProducing(self) -> None:
        """It reads again."""
        if self._paused:
            self._paused = False
            self._next = self._clock.callLater(0, self._write)

    def stopProducing(self) -> None:
        """The reader has disconnected."""
        self._cancel()

    def _cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _too_slow(self) -> None:
        channel: Any = self._request.channel
        channel.transport.abortConnection()

    def _end(self) -> None:
        self._cancel()
        if self._limit.active():
            self._limit.cancel()
        self._ended()
