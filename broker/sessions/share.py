"""The share of a reactor's turn for expensive work without messages: connections before their Open, and links that come and go.

Life of a piece of such work: a connection before its Open was read, or an open connection has sent more begins, attaches,
detaches, ends and requests for a state than fit into a turn. If this turn has time left and no connection waits, the work is done
at once. Otherwise it waits here, its connection is not read, and the next turns do a piece of each waiting connection in order.
So a flood gets only its share of each turn, however many connections it uses, and all other work gets the rest.

The size of the share depends on whether messages move (`Allowance`): a message needs several turns of the reactor, and waits in
each of them for the work of the turn before. Without messages a flood gets half of the time, so that many reconnecting clients
are admitted quickly. With messages it gets a shorter piece of each turn, and a smaller part of the time.

Invariants: a turn spends `Allowance.turn_s` on such work, plus at most one piece of work; while work waits, at least half of the
time is left for others, so that a broker without other work sleeps, and wakes quickly for a message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core import limits


class Allowance:
    """See the module. `moved_s` returns the time of the last proposal or commit, by the clock."""

    def __init__(self, clock: IReactorTime, moved_s: Callable[[], float] = lambda: -math.inf) -> None:
        self._clock = clock
        self._moved_s = moved_s

    @property
    def _busy(self) -> bool:
        return self._clock.seconds() - self._moved_s() < limits.BUSY_S

    def turn_s(self, most_s: float) -> float:
        """The current limit in a turn for work whose highest limit is `most_s`."""
        return most_s * limits.BUSY_SHARE if self._busy else most_s

    def rest_s(self, most_s: float) -> float:
        """The current pause after it."""
        return most_s * limits.BUSY_REST if self._busy else most_s


class Work(Protocol):
    """A piece of work: of a connection, or of a port with sockets to accept."""

    def go_on(self) -> bool:
        """Do a piece of it. Returns whether there is more."""


class Share:
    """See the module. `flush` ends an entry from the reactor. Without an `allowance` it is as if no message came."""

    def __init__(self, clock: IReactorTime, flush: Callable[[], None], allowance: Allowance | None = None) -> None:
        self._clock = clock
        self._flush = flush
        self._allowance = allowance or Allowance(clock)
        self._spent_s = 0.0
        self._waiting: dict[Work, None] = {}
        self._call: IDelayedCall | None = None
        self._closed = False

    @property
    def is_left(self) -> bool:
        """Whether a piece of work may be done at once."""
        if self._waiting:
            return False
        return self._spent_s < limits.BUSY_SHARE * limits.SHARE_TURN_S or self._spent_s < self._turn_s

    @property
    def _turn_s(self) -> float:
        return self._allowance.turn_s(limits.SHARE_TURN_S)

    def spent(self, seconds: float) -> None:
        """A piece of work was done at once."""
        self._spent_s += seconds
        self._arm()

    def later(self, work: Work) -> None:
        """Let this work continue in a later turn."""
        self._waiting[work] = None
        self._arm()

    def forget(self, work: Work) -> None:
        """There is nothing more to be done."""
        self._waiting.pop(work, None)

    def _arm(self) -> None:
        if self._call is None and not self._closed:
            rest_s = self._allowance.rest_s(limits.SHARE_TURN_S) if self._spent_s else 0
            self._call = self._clock.callLater(rest_s, self._next_turn)

    def _next_turn(self) -> None:
        self._call, self._spent_s = None, 0.0
        began_s, turn_s = self._clock.seconds(), self._turn_s
        while self._waiting:
            work = next(iter(self._waiting))
            del self._waiting[work]
            if work.go_on():
                self._waiting[work] = None
            self._spent_s = self._clock.seconds() - began_s
            if self._spent_s >= turn_s:
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
