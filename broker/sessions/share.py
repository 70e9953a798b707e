"""The share of a reactor's turn that goes to what costs much and brings no message: strangers, and links that come and go.

Life of a piece of such work: a connection that is not open yet has been read, or one that is open has brought more begins,
attaches, detaches and ends than fit a turn; as long as this turn has time left and nobody waits, it is done at once; else it
waits here, its connection is not read, and the next turns do a piece of each in turn. So a flood takes its share of each turn,
however many connections it comes over, and everybody else has the rest.

Invariants: a turn spends `limits.SHARE_TURN_S` on it, and one piece of work more at the most; while work waits, half of the time
is left to others, so that a broker which has nothing else to do sleeps, and is quick to wake for a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core import limits


class Work(Protocol):
    """A connection that has work to be done."""

    def go_on(self) -> bool:
        """Do a piece of it. Returns whether there is more."""


class Share:
    """See the module. `flush` ends an entry from the reactor."""

    def __init__(self, clock: IReactorTime, flush: Callable[[], None]) -> None:
        self._clock = clock
        self._flush = flush
        self._spent_s = 0.0
        self._waiting: dict[Work, None] = {}
        self._call: IDelayedCall | None = None
        self._closed = False

    @property
    def is_left(self) -> bool:
        """Whether a piece of work may be done at once."""
        return not self._waiting and self._spent_s < limits.SHARE_TURN_S

    def spent(self, seconds: float) -> None:
        """A piece of work was done at once."""
        self._spent_s += seconds
        self._arm()

    def later(self, work: Work) -> None:
        """Let it go on in a later turn."""
        self._waiting[work] = None
        self._arm()

    def forget(self, work: Work) -> None:
        """There is nothing more to be done."""
        self._waiting.pop(work, None)

    def _arm(self) -> None:
        if self._call is None and not self._closed:
            self._call = self._clock.callLater(limits.SHARE_TURN_S if self._spent_s else 0, self._next_turn)

    def _next_turn(self) -> None:
        self._call, self._spent_s = None, 0.0
        began_s = self._clock.seconds()
        while self._waiting:
            work = next(iter(self._waiting))
            del self._waiting[work]
            if work.go_on():
                self._waiting[work] = None
            self._spent_s = self._clock.seconds() - began_s
            if self._spent_s >= limits.SHARE_TURN_S:
                break
        if self._waiting or self._spent_s:
            self._arm()
        self._flush()

    def close(self) -> None:
        """Stop: no turn follows."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()
            self._call = None
