"""A turn of the reactor as the broker sees it: work that is done once at its end, however often it was requested.

Life of a turn: bytes, commits or a timer arrive. Links that get output, and queues that can deliver, register here. At the end of
every entry from the reactor, `flush` first dispatches each queue once, and then writes to each connection once.

Invariant: a connection's output of one turn is one write.
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet.interfaces import IReactorTime


class Output(Protocol):
    """A connection that has something to write."""

    def flush(self) -> None:
        """Write it."""


class Dispatching(Protocol):
    """A queue that has something to give out."""

    def dispatch(self) -> None:
        """Deliver its messages."""


class Turn:
    """See the module. `clock` is the reactor's time."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._dirty: dict[Output, None] = {}
        self._waiting: dict[Dispatching, None] = {}
        self._call: Any = None
        self.is_open = False
        """Whether the caller of this code calls `flush` at its end."""

    def touch(self, connection: Output) -> None:
        """This connection has output."""
        self._dirty[connection] = None

    def forget(self, connection: Output) -> None:
        """This connection is gone."""
        self._dirty.pop(connection, None)

    def dispatch_soon(self, queue: Dispatching) -> None:
        """Dispatch the queue at the end of this turn, or in the next one."""
        self._waiting[queue] = None
        if self._call is None and not self.is_open:
            self._call = self._clock.callLater(0, self._next)

    def _next(self) -> None:
        self._call = None
        self.flush()

    def flush(self) -> None:
        """Dispatch the registered queues, then write each connection's output once."""
        self.is_open = False  # when output has left, queues may be registered that only the next turn gives out
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            for queue in waiting:
                queue.dispatch()
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for connection in dirty:
                connection.flush()

    def close(self) -> None:
        """Stop: no turn follows."""
        if self._call is not None and self._call.active():
            self._call.cancel()
