"""Slow consumers, which delay messages: the broker looks for them, logs them, and ends them if configured.

Life of a slow consumer: messages wait on its queue, or another consumer waits for messages, and for `limit_s` seconds this
consumer has sent no outcome for the messages that it holds, or its client has read nothing. The log file reports it. It counts as
slow until it moves again, or nobody waits any more. With `closes` it is ended instead: its link is detached, so that its messages
go to others; if its client does not read, its connection is closed, because a detach would not reach the client. Both get
`amqp:resource-limit-exceeded`.

A client that takes long for a message while nobody waits is not slow. A browser is never slow, because it delays nobody.

Invariant: a check takes small pieces of turns, however many queues there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.amqp.data import Condition
from broker.core import limits
from broker.core.management import told
from broker.sessions.consumer import Subscription
from broker.sessions.queue_terminus import QueueTerminus
from broker.sessions.queues import Queues
from broker.sessions.refusals import Bounded
from broker.sessions.turn import Turn

_log = Logger()


class SlowConsumers:
    """See the module. `limit_s` 0: no consumer is slow."""

    def __init__(self, clock: IReactorTime, queues: Queues, turn: Turn, limit_s: float, closes: bool) -> None:
        self._clock = clock
        self._queues = queues
        self._turn = turn
        self._limit_s = limit_s
        self._closes = closes
        self._known: dict[Subscription, None] = {}
        self.ended = 0
        """The number of ended consumers."""
        self._lines = Bounded(clock.seconds, lambda line: _log.warn("{line}", line=line), "lines about slow consumers")
        self._looking: Iterator[None] = iter(())
        self._call: IDelayedCall | None = None
        if limit_s:
            self._call = clock.callLater(self._pause_s, self._look)

    @property
    def count(self) -> int:
        """The number of slow consumers."""
        return len(self._known)

    @property
    def _pause_s(self) -> float:
        return max(self._limit_s / 4, 0.25)

    def close(self) -> None:
        """Stop the checks."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _look(self) -> None:
        """Begin or continue a check."""
        self._looking = self._look_at_all()
        self._look_on()

    def _look_on(self) -> None:
        began_s = self._clock.seconds()
        for _ in self._looking:
            if self._clock.seconds() - began_s >= limits.SHARE_TURN_S:
                self._call = self._clock.callLater(0, self._look_on)
                break
        else:
            self._call = self._clock.callLater(self._pause_s, self._look)
        self._turn.flush()

    def _look_at_all(self) -> Iterator[None]:
        for subscription in [each for each in self._known if not _is_there(each)]:
            del self._known[subscription]
        for terminus in self._queues.termini:
            hungry: list[Subscription] | None = None
            for subscription in list(terminus.subscriptions):
                if subscription.still_s >= self._limit_s and (hungry is None or not all(map(_is_hungry, hungry))):
                    hungry = terminus.hungry()  # all consumers are searched: not again for each of them
                self._look_at(terminus, subscription, hungry or [])
                yield
            yield

    def _look_at(self, terminus: QueueTerminus, subscription: Subscription, hungry: list[Subscription]) -> None:
        still_s = subscription.still_s
        if still_s < self._limit_s or not terminus.has_others_wait(subscription, hungry):
            self._known.pop(subscription, None)
        elif subscription not in self._known:
            name, address = told(subscription.link.name), subscription.session.address
            text = (
                f"consumer {name!r} of {address} is slow: for {still_s:.0f} s no outcome has come for the "
                f"{subscription.link.account.n_unsettled} messages that it holds of queue {terminus.node.name!r}, or its client "
                "does not read, while others wait"
            )
            if self._closes:
                self.ended += 1
                subscription.end_slow(Condition("amqp:resource-limit-exceeded", text))
                self._lines.line(f"{text}: it was ended")
            else:
                self._known[subscription] = None
                self._lines.line(text)


def _is_there(subscription: Subscription) -> bool:
    """Whether its link has not ended."""
    return subscription.link.context is subscription


def _is_hungry(subscription: Subscription) -> bool:
    """Whether it still waits for messages."""
    return _is_there(subscription) and subscription.link.account.room() > 0
