"""Messages that a consumer keeps for too long: they return to their queue, and the link stays.

Life of a deadline: messages are sent to a consumer that must settle them, and `sent` notes the time and the last delivery. When
the time limit has passed, those of these deliveries that have no outcome are taken back: the consumer gets `released`, or an
abort if it does not have all of the message, the delivery counts as failed (for the limit of deliveries and the delay of
retries), and other consumers may get the message. A later outcome of the consumer is too late and changes nothing. It may have
been for a transaction, so no transaction that the consumer's connection has open is committed any more.

Time is the reactor's, only on the serving broker; a failure is an ordinary COUNT record (docs/adr/0020).

Invariants: nothing is taken back before its time limit, and nothing stays longer than a sixteenth of it more; a link has at most
17 deadlines; messages in a transaction are not taken back, and neither are those of drains and routes, which have no deadlines.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from broker.amqp.sender import Sender
from broker.sessions.schedule import Schedule

_GRAIN = 16


class Holder(Protocol):
    """The consumer."""

    link: Sender

    @property
    def now_s(self) -> float:
        """The reactor's time."""

    def take_back(self, before: int) -> None:
        """Its deliveries with ids below this one, as far as they have no outcome, are overdue."""


class Overdue:
    """The deadlines of one consumer, which has `limit_s` for each delivery."""

    __slots__ = ("_holder", "_limit_s", "_marks", "_schedule")

    def __init__(self, holder: Holder, schedule: Schedule, limit_s: float) -> None:
        self._holder = holder
        self._schedule = schedule
        self._limit_s = limit_s
        self._marks: deque[tuple[float, float, int]] = deque()
        """Of deliveries that went out in one short time: when the first and the last did, and the id behind the last."""

    def sent(self) -> None:
        """Deliveries have gone out."""
        now_s, behind, marks = self._holder.now_s, self._holder.link.account.next_id, self._marks
        if marks and now_s - marks[-1][0] < self._limit_s / _GRAIN:
            marks[-1] = marks[-1][0], now_s, behind
            return
        marks.append((now_s, now_s, behind))
        if len(marks) == 1:
            self._arm()

    def _arm(self) -> None:
        """Look again when the first deadline has come: a little late, as more may have been added to it."""
        if self._marks:
            self._schedule.after(self, self._marks[0][1] + self._limit_s - self._holder.now_s, self._look)

    def _look(self) -> None:
        before, now_s = 0, self._holder.now_s
        while self._marks and self._marks[0][1] + self._limit_s <= now_s:
            before = self._marks.popleft()[2]
        if before:
            self._holder.take_back(before)
        self._arm()

    def close(self) -> None:
        """The consumer is gone."""
        self._marks.clear()
        self._schedule.cancel(self)
