"""Threads that take turns on simulated time: greenlets, resumed only by the event queue of their host.

Life of a thread: `start` lets the event queue begin it. It runs until it waits (for a lock, a condition, an event,
another thread, or a time). Then the event queue continues. Whatever ends the wait puts the thread's resumption into the
queue. So threads run in the order of the queue, which is the same for the same seed.

The host's reactor is such a thread too: `enter` runs a function in it, at once if it is idle. While the reactor waits,
for example for a slow sync or to join a thread, entered functions wait in line, as calls do in a real reactor that is
blocked.

`kill` ends all threads where they are, as the end of a process does. The caller switches the host's disk off before, so
that code that runs while they unwind has no effect.

Invariants: a thread is resumed only by the event queue, in a greenlet that is none of these threads. An exception that
leaves a thread is raised there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet
from twisted.python.failure import Failure

from tests.simulation.disk import PowerOff


class Call(Protocol):
    """What is in the event queue."""

    def cancel(self) -> object:
        """Take it out again."""


class SimulatedThread(greenlet):  # type: ignore[misc]
    """One thread. Fulfils `broker.disk.threads.Thread`."""

    def __init__(self, threads: SimulatedThreads, name: str, run: Callable[[], None]) -> None:
        super().__init__()
        self.name = name
        self.done = False
        self._threads = threads
        self._run = run
        self._joining: list[SimulatedThread] = []

    def join(self) -> None:
        """Wait until it has ended."""
        while not self.done:
            me = self._threads.must_be_thread()
            self._joining.append(me)
            self._threads.block()

    def run(self) -> None:
        """What the greenlet runs."""
        try:
            self._run()
        except (GreenletExit, PowerOff):
            pass
        except Exception as error:
            self._threads.raised = error
        finally:
            self.done = True
            self._threads.ended(self)
            for thread in self._joining:
                self._threads.wake(thread)


class SimulatedThreads:
    """The threads of one process. Fulfils `broker.disk.threads.Threads`."""

    def __init__(self, call_later: Callable[..., Call], seconds: Callable[[], float]) -> None:
        """`call_later(delay_s, f, *arguments)` is the host's part of the event queue: while the host is paused, so are its
        threads."""
        self.seconds = seconds
        self.call_later = call_later
        self.dead = False
        self.raised: Exception | None = None
        self._living: dict[SimulatedThread, None] = {}
        self._entered: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._idle = True
        self._event_queue: Any = None
        """The greenlet that resumed a thread last."""
        self._reactor = self._add("reactor", self._react)

    # ---- Threads

    def start(self, name: str, run: Callable[[], None]) -> SimulatedThread:
        """A thread, which begins in its turn."""
        self.must_live()
        thread = self._add(name, run)
        self.wake(thread)
        return thread

    def condition(self) -> SimulatedCondition:
        """A condition of these threads."""
        return SimulatedCondition(self)

    def event(self) -> SimulatedEvent:
        """An event of these threads."""
        return SimulatedEvent(self)

    def sleep(self, seconds: float) -> None:
        """Have the thread that calls wait. In the event queue's own greenlet, where nothing can wait, no time passes."""
        self.must_live()
        me = self.current()
        if me is not None:
            self.call_later(seconds, self.resume, me)
            self.block()

    # ---- for the simulation

    def enter(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run a function in the reactor's thread, now or when that is free. What it raises is raised here."""
        if self.dead:
            return
        self._entered.append((call, arguments))
        if self._idle:
            self._idle = False
            self.resume(self._reactor)

    @property
    def reactor_waits(self) -> bool:
        """Whether the reactor's thread waits for something, so that what is entered waits too."""
        return not self._idle

    def kill(self) -> None:
        """End every thread where it stands. Its disk is off already."""
        event_queue = getcurrent()
        assert not isinstance(event_queue, SimulatedThread), "a thread cannot kill its own process"
        self.dead = True
        self._entered.clear()
        for thread in list(self._living):
            thread.parent = event_queue
            thread.throw(GreenletExit)
            self.ended(thread)
        self.raised = None

    def _react(self) -> None:
        entered = self._entered
        while True:
            while entered:
                call, arguments = entered.popleft()
                try:
                    call(*arguments)
                except Exception as error:
                    self.raised = error
                    break
            if entered:
                self.wake(self._reactor)
            else:
                self._idle = True
            self.block()

    # ---- below

    def _add(self, name: str, run: Callable[[], None]) -> SimulatedThread:
        thread = SimulatedThread(self, name, run)
        self._living[thread] = None
        return thread

    def ended(self, thread: SimulatedThread) -> None:
        """This thread runs no more."""
        thread.done = True
        self._living.pop(thread, None)

    def current(self) -> SimulatedThread | None:
        """The thread that runs; None in the event queue's own greenlet."""
        me = getcurrent()
        return me if isinstance(me, SimulatedThread) else None

    def must_live(self) -> None:
        """Nothing goes on in a process that is gone."""
        if self.dead:
            raise GreenletExit

    def must_be_thread(self) -> SimulatedThread:
        """The thread that runs and is about to wait."""
        self.must_live()
        me = self.current()
        assert me is not None, "the event queue itself cannot wait: run this through `enter`"
        return me

    def wake(self, thread: SimulatedThread) -> None:
        """Resume a thread in its turn."""
        if not self.dead:
            self.call_later(0.0, self.resume, thread)

    def block(self) -> None:
        """Let the event queue go on; returns when this thread is resumed."""
        if not self.dead:
            self._event_queue.switch()
        if self.dead:
            raise GreenletExit

    def resume(self, thread: SimulatedThread) -> None:
        """Run a thread until it waits or ends. Called by the event queue."""
        if self.dead or thread.done:
            return
        event_queue = getcurrent()
        if event_queue is not self._event_queue:
            assert not isinstance(event_queue, SimulatedThread), "only the event queue resumes threads"
            self._event_queue = event_queue
        if thread.parent is not event_queue:
            thread.parent = event_queue
        thread.switch()
        if self.raised is not None:
            error, self.raised = self.raised, None
            raise error


class _Waiter:
    """A thread in a line, until something or its time ends the wait: whichever comes first."""

    __slots__ = ("_timer", "over", "thread", "threads")

    def __init__(self, threads: SimulatedThreads, thread: SimulatedThread) -> None:
        self.threads = threads
        self.thread = thread
        self.over = False
        self._timer: Call | None = None

    def wait(self, timeout: float | None) -> bool:
        """False when time ran out."""
        if timeout is not None:
            self._timer = self.threads.call_later(max(0.0, timeout), self._time_is_up)
        self.threads.block()
        return self.over

    def end(self) -> None:
        """What was waited for has come."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        self.threads.wake(self.thread)

    def _time_is_up(self) -> None:
        self._timer = None
        self.threads.resume(self.thread)


class SimulatedCondition:
    """Fulfils `broker.disk.threads.Condition`. The lock is handed to those who wait for it in the order in which they came.

    In the event queue's own greenlet, which cannot wait, the lock stands open: checkers look at what is guarded from there.
    """

    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._owner: SimulatedThread | None = None
        self._depth = 0
        self._locking: deque[SimulatedThread] = deque()
        self._waiting: list[_Waiter] = []

    def __enter__(self) -> bool:
        me = getcurrent()
        if isinstance(me, SimulatedThread) and not self._threads.dead:
            if self._owner is None:
                self._owner, self._depth = me, 1
            elif self._owner is me:
                self._depth += 1
            else:
                self._acquire(me, 1)
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /) -> None:
        if self._owner is not None and self._owner is getcurrent():
            self._depth -= 1
            if not self._depth:
                self._release()

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock back until notified or until time has run out."""
        me = self._threads.must_be_thread()
        assert self._owner is me, f"{me.name} waits on a condition whose lock it does not hold"
        depth, self._depth = self._depth, 0
        self._release()
        waiter = _Waiter(self._threads, me)
        self._waiting.append(waiter)
        notified = waiter.wait(timeout)
        if not notified:
            self._waiting.remove(waiter)
        self._acquire(me, depth)
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until the predicate holds; returns its last value."""
        end = None if timeout is None else self._threads.seconds() + timeout
        while not (found := predicate()):
            left = None if end is None else end - self._threads.seconds()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        """End the wait of those who have waited longest."""
        assert self._threads.dead or self._owner is self._threads.current() or self._threads.current() is None
        for waiter in self._waiting[:n]:
            waiter.end()
        del self._waiting[:n]

    def _acquire(self, me: SimulatedThread, depth: int) -> None:
        if self._owner is not None:
            self._locking.append(me)
            self._threads.block()
            assert self._owner is me
        self._owner, self._depth = me, depth

    def _release(self) -> None:
        self._owner = None
        if self._locking:
            self._owner = self._locking.popleft()
            self._threads.wake(self._owner)


class SimulatedEvent:
    """Fulfils `broker.disk.threads.Event`."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._set = False
        self._waiting: list[_Waiter] = []

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it, and end every wait."""
        self._set = True
        for waiter in self._waiting:
            waiter.end()
        self._waiting.clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set or until time has run out."""
        if not self._set:
            waiter = _Waiter(self._threads, self._threads.must_be_thread())
            self._waiting.append(waiter)
            if not waiter.wait(timeout):
                self._waiting.remove(waiter)
        return self._set


class SimulatedPool:
    """The reactor's thread pool, as `twisted.internet.threads.deferToThreadPool` uses it: a thread for each call."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads

    def callInThreadWithCallback(  # noqa: N802
        self, told: Callable[[bool, Any], object], function: Callable[..., Any], *arguments: Any, **named: Any
    ) -> None:
        """Run a function in a thread, and tell there what came of it."""

        def run() -> None:
            try:
                result = function(*arguments, **named)
            except Exception:
                told(False, Failure())
            else:
                told(True, result)

        self._threads.start("pool", run)
