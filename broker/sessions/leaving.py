"""The time before a handover: the clients become quiet, so that the next primary repeats no message that they have settled.

Life of a handover here: the log requests quiet (`begin`). Queues stop delivering, and new connections wait. Consumers settle what
they have. When nothing is unsettled, when nobody has settled anything for a while, or after half of the time that the log gave,
no more input of clients is accepted: the next primary will get it. When all earlier input is committed and answered, and the
messages that were rejected have left their queues (the bodies of some must be read from disk first), except those for which a
disk has no room, the log is told. Then the log hands over, and this broker's service ends (`over`). Or the handover is cancelled
(`give_up`): clients whose input was dropped are disconnected, and all others continue.

Invariants: the log is told once for each `begin`, unless that was cancelled or the service has ended; consumers get nothing
between `begin` and `give_up`; input that arrived before the clients' input was dropped is answered, if the log accepts it in
time.

Source: a link that ends without settlement makes its unsettled messages available again, AMQP 1.0 part 2.6.13.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core import limits
from broker.sessions.admission import Admission
from broker.sessions.logs import Logs
from broker.sessions.queues import Queues


class Leaving:
    """See the module."""

    def __init__(self, clock: IReactorTime, logs: Logs, queues: Queues, admission: Admission) -> None:
        self._clock = clock
        self._logs = logs
        self._queues = queues
        self._admission = admission
        self._done: Callable[[], None] | None = None
        self._call: IDelayedCall | None = None
        self._settle_until_s = self._until_s = self._moved_s = self._quiet_s = 0.0
        self._unsettled = 0
        self._heeds = True
        """Whether clients are listened to."""

    @property
    def under_way(self) -> bool:
        """Whether a handover is."""
        return self._queues.held

    def begin(self, within_s: float, done: Callable[[], None]) -> None:
        """Let the clients become quiet, then call `done`: after `within_s` seconds in any case, and not at once."""
        now_s = self._clock.seconds()
        self._done, self._heeds = done, True
        self._until_s = now_s + within_s
        self._settle_until_s = now_s + within_s / 2
        self._quiet_s = within_s / limits.QUIET_SHARE
        self._moved_s, self._unsettled = now_s, 0
        self._queues.hold()
        self._admission.hold()
        self._look_again(0)

    def _look_again(self, after_s: float) -> None:
        self._call = self._clock.callLater(after_s, self._look)

    def _look(self) -> None:
        self._call = None
        now_s, ledgers = self._clock.seconds(), self._logs.ledgers.values()
        if self._heeds and self._settled(now_s):
            self._heeds = False
            self._admission.heed_no_clients()
        if not self._heeds:
            for ledger in ledgers:
                ledger.pending.pump()
            done_with = all(ledger.pending.idle for ledger in ledgers) and not self._queues.owe_letters()
            if done_with or now_s >= self._until_s:
                done, self._done = self._done, None
                assert done is not None
                done()
                return
        self._look_again(limits.QUIET_LOOK_S)

    def _settled(self, now_s: float) -> bool:
        """Whether waiting longer for consumers is useless."""
        unsettled = self._queues.unsettled()
        if unsettled != self._unsettled:
            self._unsettled, self._moved_s = unsettled, now_s
        return not unsettled or now_s - self._moved_s >= self._quiet_s or now_s >= self._settle_until_s

    def give_up(self) -> None:
        """The handover was called off: serve on."""
        if self._queues.held:
            self._forget()
            self._admission.serve_again()
            self._queues.give_out_again()

    def over(self) -> None:
        """This broker stops serving."""
        if self._queues.held:
            self._forget()
            self._admission.drop_held()

    def _forget(self) -> None:
        self._done = None
        self._queues.held = False
        if self._call is not None:
            self._call.cancel()
            self._call = None
