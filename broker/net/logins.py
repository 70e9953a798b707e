"""The work for a client's login, done in a thread: deriving a key from a password takes milliseconds.

Life: after each read, the owner of an engine calls `follow`. If the engine has begun to wait for work, the work goes to the
reactor's threads, and its result is passed on in the reactor's thread.

Invariant: the work of each wait is done once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from broker.amqp.engine import Engine
from broker.core import sasl


class Logins:
    """The login of one connection that this side has opened."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._waits: sasl.Wait | None = None

    def follow(self, engine: Engine, resume: Callable[[bytes], None]) -> None:
        """Do the work that the engine waits for, once, in a thread; `resume` gets the result."""
        waits = engine.login_waits
        if waits is self._waits:
            return
        self._waits = waits
        if waits is not None:
            assert waits.work is not None, "a client waits for work alone"
            done: Deferred[bytes] = deferToThreadPool(self._reactor, self._reactor.getThreadPool(), waits.work)
            done.addCallback(resume)
