"""The reactor of every daemon: epoll, with timers that follow the monotonic clock, and with sockets that are served first.

Twisted's reactors use the wall clock: if that clock is changed, a three-second timer may fire after one second, or never.
Detection times and leases must not depend on it.

Life of a turn: the calls of threads and timers are made, the kernel reports the ready sockets, and these are served one after the
other. On a busy broker that takes long, and a new socket needs three turns to be accepted, read and written. Urgent sockets
(`Urgent`) are also checked in between, after each `LOOK_S`: they wait only for the call that is running.

Invariant: an event that the kernel has reported for a socket is never used for a new socket that has got the same number
meanwhile.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, cast

from twisted.internet import epollreactor, main
from twisted.internet.interfaces import IReactorCore
from twisted.logger import Logger

_log = Logger()
LOOK_S = 0.005
_STEPS = 4
"""Accept, read, write, and see the end: as often urgent sockets are looked at, at most, before the others go on."""


class MonotonicEPollReactor(epollreactor.EPollReactor):
    """Twisted's epoll reactor on `time.monotonic`."""

    seconds = staticmethod(time.monotonic)

    def __init__(self) -> None:
        super().__init__()
        self._urgent: select.epoll | None = None
        self._look_at_s = 0.0
        self.on_term: Callable[[], None] | None = None
        """Called in the reactor's thread at each SIGTERM. None: the reactor stops, as Twisted's do."""

    def sigTerm(self, number: int, frame: FrameType | None = None) -> None:
        """Twisted's."""
        if self.on_term is None:
            super().sigTerm(number, frame)
        else:
            self.callFromThread(self.on_term)

    def attend(self, selectable: Any) -> None:
        """Look at this socket before others, for what it waits for at this moment. The kernel forgets those that are closed."""
        urgent = self._urgent = self._urgent or select.epoll()
        number = selectable.fileno()
        flags = (select.EPOLLIN if number in self._reads else 0) | (select.EPOLLOUT if number in self._writes else 0)
        try:
            urgent.modify(number, flags)
        except FileNotFoundError:
            urgent.register(number, flags)
        if not flags:
            urgent.unregister(number)  # otherwise the poll would report its hang-up again and again

    def doPoll(self, timeout: float | None) -> None:
        """One turn: wait for that time in s, None for ever, and serve what is ready."""
        ready = self._poller.poll(-1 if timeout is None else timeout, len(self._selectables))
        found = [(self._selectables.get(number), number, event) for number, event in ready]
        for selectable, number, event in found:
            if self._urgent is not None and self.seconds() >= self._look_at_s:
                self._look(self._urgent)
            if selectable is not None and self._selectables.get(number) is selectable:
                # Twisted would make a context of the log for each event, with the socket's name, which the daemons do not
                # write: ten calls of Python for each read of a socket.
                try:
                    self._doReadOrWrite(selectable, number, event)
                except Exception:
                    _failed(number)

    doIteration = doPoll

    def _look(self, urgent: select.epoll) -> None:
        """Serve urgent sockets, and go on with what follows from that. Then the others have as long as that took, at least."""
        began_s = self.seconds()
        for _ in range(_STEPS):
            ready = urgent.poll(0)
            if not ready:
                break
            for number, event in ready:
                selectable = self._selectables.get(number)
                if selectable is not None:
                    try:
                        self._doReadOrWrite(selectable, number, event)
                    except Exception:
                        _failed(number)
        now_s = self.seconds()
        self._look_at_s = now_s + max(LOOK_S, now_s - began_s)


def _failed(number: int) -> None:
    """An error came out of the handling of this socket: the others go on."""
    _log.failure("an error in this program, while it served socket {number}", number=number)


class Urgent:
    """Mixed into a socket, or a port, of Twisted's: the reactor of this module serves it before others."""

    reactor: Any

    def startReading(self) -> None:
        """Twisted's."""
        super().startReading()  # type: ignore[misc]
        self._attend()

    def stopReading(self) -> None:
        """Twisted's."""
        super().stopReading()  # type: ignore[misc]
        self._attend()

    def startWriting(self) -> None:
        """Twisted's."""
        super().startWriting()  # type: ignore[misc]
        self._attend()

    def stopWriting(self) -> None:
        """Twisted's."""
        super().stopWriting()  # type: ignore[misc]
        self._attend()

    def _attend(self) -> None:
        with suppress(OSError, ValueError):  # the descriptor is closed
            self.reactor.attend(self)


def install() -> IReactorCore:
    """Make it the process's reactor. Call before anything imports `twisted.internet.reactor`."""
    reactor = MonotonicEPollReactor()
    main.installReactor(reactor)
    return cast("IReactorCore", reactor)


def on_hangup(reactor: Any, hung_up: Callable[[], None]) -> None:
    """Have SIGHUP call this in the reactor's thread; by itself the signal ends a process. Call in the main thread."""
    signal.signal(signal.SIGHUP, lambda number, frame: reactor.callFromThread(hung_up))
