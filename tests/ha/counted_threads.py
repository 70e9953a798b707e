"""The operating system's threads, counted: whether any of the store's has something to do.

A test on a simulated clock must not let its time pass while a thread still works in real time: on a busy machine a sync takes
long enough for every time-out of the simulated cluster to run out. So time passes only while `busy` is 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from broker.disk.threads import RealThreads


class CountedThreads(RealThreads):
    """`busy`: threads that were started here, have not ended, and wait for nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.busy = 0

    def count(self, change: int) -> None:
        """So many more threads are busy."""
        with self._lock:
            self.busy += change

    def start(self, name: str, run: Callable[[], None]) -> threading.Thread:
        self.count(1)

        def counted() -> None:
            try:
                run()
            finally:
                self.count(-1)

        return super().start(name, counted)

    def condition(self) -> threading.Condition:
        return _Condition(self)

    def event(self) -> threading.Event:
        return _Event(self)


class _Condition(threading.Condition):
    """One who waits is not busy; one who is notified is, from that moment on and not only once the system lets it run."""

    def __init__(self, threads: CountedThreads) -> None:
        super().__init__()
        self._threads = threads
        self._sleeping = self._notified = 0

    def wait(self, timeout: float | None = None) -> bool:
        self._sleeping += 1
        self._threads.count(-1)
        try:
            return super().wait(timeout)
        finally:
            self._sleeping -= 1
            if self._notified:
                self._notified -= 1
            else:
                self._threads.count(1)

    def notify(self, n: int = 1) -> None:
        woken = min(n, self._sleeping - self._notified)
        self._notified += woken
        self._threads.count(woken)
        super().notify(n)


class _Event(threading.Event):
    def __init__(self, threads: CountedThreads) -> None:
        super().__init__()
        self._threads = threads

    def wait(self, timeout: float | None = None) -> bool:
        self._threads.count(-1)
        try:
            return super().wait(timeout)
        finally:
            self._threads.count(1)
