"""Threads, and what they wait for each other with, behind a Protocol, so that a simulation can decide who runs when.

The store's few threads (a writer and a preparation for each log, one while a checkpoint is written) are started here, and wait
by nothing but the conditions and events that are made here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol


class Thread(Protocol):
    """A thread that was started."""

    def join(self) -> None:
        """Wait until it has ended."""


class Condition(Protocol):
    """A reentrant lock, and a line of those that wait for a change: `threading.Condition`, as far as it is used."""

    def __enter__(self) -> Any:
        """Wait for the lock, then hold it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None:
        """Give it back."""

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock back until notified, or for `timeout` seconds at the most; False when time ran out."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until the predicate holds; returns its last value."""

    def notify(self, n: int = 1) -> None:
        """Wake one who waits. The lock is held."""


class Event(Protocol):
    """A flag that is set once: `threading.Event`, as far as it is used."""

    def is_set(self) -> bool:
        """Whether it is set."""

    def set(self) -> None:
        """Set it, and wake all who wait."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for `timeout` seconds at the most; returns whether it is."""


class Threads(Protocol):
    """Makes threads and what they share."""

    def start(self, name: str, run: Callable[[], None]) -> Thread:
        """Run a function in a new thread, which does not keep the process alive."""

    def condition(self) -> Condition:
        """A new condition, with a lock of its own."""

    def event(self) -> Event:
        """A new event, not set."""

    def seconds(self) -> float:
        """A clock that never goes back, for how long something took."""


class RealThreads:
    """The operating system's threads."""

    seconds = staticmethod(time.perf_counter)

    def start(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """A daemon thread."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def condition(self) -> threading.Condition:
        """On an RLock."""
        return threading.Condition()

    def event(self) -> threading.Event:
        """A threading.Event."""
        return threading.Event()


REAL_THREADS = RealThreads()
