"""The reactor that every daemon runs on: epoll, with timers that follow the monotonic clock.

Twisted's reactors take their time from the wall clock: a step of that clock fires a three-second timer after one second, or
never. Detection times and leases must not depend on it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any, cast

from twisted.internet import epollreactor, main
from twisted.internet.interfaces import IReactorCore


class MonotonicEPollReactor(epollreactor.EPollReactor):
    """Twisted's epoll reactor on `time.monotonic`."""

    seconds = staticmethod(time.monotonic)


def install() -> IReactorCore:
    """Make it the process's reactor. Call before anything imports `twisted.internet.reactor`."""
    reactor = MonotonicEPollReactor()
    main.installReactor(reactor)
    return cast("IReactorCore", reactor)


def on_hangup(reactor: Any, hung_up: Callable[[], None]) -> None:
    """Have SIGHUP call this in the reactor's thread; by itself the signal ends a process. Call in the main thread."""
    signal.signal(signal.SIGHUP, lambda number, frame: reactor.callFromThread(hung_up))
