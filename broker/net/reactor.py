"""The reactor that every daemon runs on: epoll, with timers that follow the monotonic clock.

Twisted's reactors take their time from the wall clock: a step of that clock fires a three-second timer after one second, or
never. Detection times and leases must not depend on it.
"""

from __future__ import annotations

import time
from typing import cast

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
