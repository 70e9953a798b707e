"""Simulated time: one queue of events for a whole world.

Life of an event: `at` puts it in the queue. It comes out at its time; events of the same time come out in the order in
which they were put in. An event belongs to an `Owner`: a process on a simulated host. If the process no longer exists,
the event is dropped. If the process is frozen, the event waits until it is woken. The holder of a timer may move or
cancel it, as with Twisted's delayed calls.

Invariants: time never goes back. No real clock and no random number is used here, so the same calls give the same
order.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall
from zope.interface import implementer


class Owner:
    """Whose an event is. Gone: its events never happen. Frozen: they wait."""

    def __init__(self) -> None:
        self.gone = False
        self.frozen = False
        self.backlog: list[Event] = []
        self.enter: Callable[..., None] | None = None
        """Runs a call, with its arguments, in the owner's main thread, where it has threads; at the latest when that thread has
        nothing else to do."""


@implementer(IDelayedCall)
class Event:
    """Something that will happen; Twisted's IDelayedCall.."""

    __slots__ = ("_events", "arguments", "bare", "call", "done", "named", "order", "owner", "time")

    def __init__(
        self, events: Events, time: float, order: int, owner: Owner | None, call: Any, arguments: Any, named: Any
    ) -> None:
        self._events = events
        self.time = time
        self.order = order
        self.owner = owner
        self.call = call
        self.arguments = arguments
        self.named = named
        self.done = ""
        self.bare = False
        """Whether it is not a call in the owner's main thread, but one that lets another thread of it go on."""

    def happen(self, order: int) -> None:
        """Now, unless it was cancelled or put off while it stood in line for the owner's thread."""
        if self.done or order != self.order:
            return
        self.done = "called"
        if self.named:
            self.call(*self.arguments, **self.named)
        elif self.arguments:
            self.call(*self.arguments)
        else:
            self.call()

    def active(self) -> bool:
        """Whether it is still to come."""
        return not self.done

    def cancel(self) -> None:
        """It will not happen."""
        self._must_be_active()
        self.done = "cancelled"
        self.call = self.arguments = self.named = None

    def reset(self, seconds: float) -> None:
        """It happens so long from now instead."""
        self._must_be_active()
        self.time = self._events.now + seconds
        self._events.push(self)

    def delay(self, seconds: float) -> None:
        """It happens so much later than it would have."""
        self._must_be_active()
        self.time += seconds
        self._events.push(self)

    def getTime(self) -> float:  # noqa: N802
        """When it happens."""
        return self.time

    def _must_be_active(self) -> None:
        if self.done:
            raise AlreadyCancelled() if self.done == "cancelled" else AlreadyCalled()


class Events:
    """The queue. `now` is in seconds since the world began."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        self.current: Owner | None = None
        """Whose event the last one was, or is."""
        self._order = 0
        self.queue: list[tuple[float, int, Event]] = []
        """A heap: when each is due at the earliest, where it stands among those of one moment, and the event."""

    def at(self, time: float, owner: Owner | None, call: Callable[..., object], *arguments: Any, **named: Any) -> Event:
        """Call this then, as an event of this owner (None: of the world itself)."""
        self._order = order = self._order + 1
        event = Event(self, time, order, owner, call, arguments, named)
        heappush(self.queue, (time, order, event))
        return event

    def after(self, seconds: float, owner: Owner | None, call: Callable[..., object], *arguments: Any) -> Event:
        """Call this so long from now."""
        self._order = order = self._order + 1
        event = Event(self, self.now + seconds, order, owner, call, arguments, None)
        heappush(self.queue, (event.time, order, event))
        return event

    def push(self, event: Event) -> None:
        """Put an event into the queue at its time; where it stood before does not count any more."""
        self._order += 1
        event.order = self._order
        heappush(self.queue, (event.time, self._order, event))

    def step(self) -> bool:
        """Let the next event happen; False when there is none."""
        queue = self.queue
        while queue:
            time, order, event = heappop(queue)
            if event.done or order != event.order:
                continue
            owner = event.owner
            if owner is not None:
                if owner.gone:
                    continue
                if owner.frozen:
                    owner.backlog.append(event)
                    continue
            self.now = max(self.now, time)
            self.happened += 1
            self.current = owner
            if owner is None or event.bare or owner.enter is None:
                event.happen(order)
            else:
                owner.enter(event.happen, order)
            return True
        return False

    def thaw(self, owner: Owner) -> None:
        """What waited while the owner was frozen happens now, in its order."""
        owner.frozen = False
        backlog, owner.backlog = owner.backlog, []
        for event in backlog:
            if not event.done:
                event.time = max(event.time, self.now)
                self.push(event)
