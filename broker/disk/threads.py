"""Threads, conditions and events, behind a Protocol, so that a simulation can decide which thread runs.

All threads of the store start here: for each log a writer, a preparation, and one during a checkpoint or a compaction. They wait
only with conditions and events that are made here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol


class Thread(Protocol):
    """A started thread."""

    def join(self) -> None:
        """Wait until it has ended."""


class Condition(Protocol):
    """A reentrant lock with a queue of threads that wait for a change: the used part of `threading.Condition`."""

    def __enter__(self) -> Any:
        """Wait for the lock and take it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None:
        """Release it."""

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock and wait until notified, for at most `timeout` seconds; returns False at the timeout."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until the predicate is true; returns its last value."""

    def notify(self, n: int = 1) -> None:
        """Wake up to `n` waiting threads. The caller holds the lock."""


class Event(Protocol):
    """A flag that is set once: the used part of `threading.Event`."""

    def is_set(self) -> bool:
        """Whether it is set."""

    def set(self) -> None:
        """Set it, and wake all waiting threads."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for at most `timeout` seconds; returns whether it is set."""


class Threads(Protocol):
    """Makes threads, conditions and events."""

    def start(self, name: str, run: Callable[[], None]) -> Thread:
        """Run a function in a new thread, which does not keep the process alive."""

    def condition(self) -> Condition:
        """A new condition, with its own lock."""

    def event(self) -> Event:
        """A new event, not set."""

    def seconds(self) -> float:
        """A monotonic clock, to measure durations."""


class RealThreads:
    """The operating system's threads."""

    seconds = staticmethod(time.perf_counter)

    def start(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """A daemon thread."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def condition(self) -> threading.Condition:
        """A condition with an RLock."""
        return threading.Condition()

    def event(self) -> threading.Event:
        """A threading.Event."""
        return threading.Event()


REAL_THREADS = RealThreads()
