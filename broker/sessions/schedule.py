"""Timed actions on the broker that serves: one timer for all of them.

Life of an entry: `after` sets the action of a key and its time. The action is done once, at that time or at the end of the next
turn of the reactor after it, unless the key was cancelled or got another time. If many are due at once, such as the messages or
the deletions of thousands of queues, a turn does some of them, and the next ones go on. When this broker stops serving, `clear`
removes all entries, because another broker decides now.

An action proposes a record to a log, like a client's request (docs/adr/0020). So no record depends on a clock: a backup applies
what the primary has decided, and has no schedule.

Invariants: there is one timer for all keys, and none without keys; time is the reactor's, which does not follow the wall clock;
an action checks again whether it is still needed; an action that raises an exception ends no other one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.schedule import Agenda
from broker.sessions.turn import Turn

TURN_S = 0.005
"""For so long actions are done in one turn, and one more."""
MOST = 256
"""In one turn no more actions than this are done."""


class Schedule:
    """See the module. `clock` is the reactor's time."""

    def __init__(self, clock: IReactorTime, turn: Turn) -> None:
        self._clock = clock
        self._turn = turn
        self._agenda: Agenda[Hashable] = Agenda()
        self._calls: dict[Hashable, Callable[[], None]] = {}
        self._timer: IDelayedCall | None = None

    def after(self, key: Hashable, delay_s: float, call: Callable[[], None]) -> None:
        """Call in so many seconds, and not when this key was to be due before."""
        self._agenda.put(key, self._clock.seconds() + delay_s)
        self._calls[key] = call
        self._arm()

    def cancel(self, key: Hashable) -> None:
        """Nothing is due for this key, if anything was."""
        self._agenda.drop(key)
        if self._calls.pop(key, None) is not None and not self._calls:
            self.clear()

    def clear(self) -> None:
        """Nothing is due for any key."""
        self._agenda.clear()
        self._calls.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """The timer fires when the next key is due, or earlier: then it looks again."""
        next_s = self._agenda.next_s
        if next_s is None:
            return
        if self._timer is not None:
            if self._timer.getTime() <= next_s:
                return
            self._timer.cancel()
        self._timer = self._clock.callLater(max(next_s - self._clock.seconds(), 0.0), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_s = self._clock.seconds()
        due = deque(self._agenda.take(now_s, MOST))
        try:
            while due:
                key = due.popleft()
                if key in self._agenda:
                    continue  # an earlier call in this loop has given it another time
                call = self._calls.pop(key, None)  # or may have cancelled it
                if call is not None:
                    call()
                if self._clock.seconds() - now_s >= TURN_S:
                    break
        finally:  # after that time, or an exception, which the reactor logs, the others are done in its next turn
            for key in due:
                if key in self._calls and key not in self._agenda:
                    self._agenda.put(key, now_s)
            self._arm()
            self._turn.flush()
