"""The anonymous terminus: each message on a link without a target address names its own node in its `to`.

Invariant: a broker that does not serve puts no message on a queue. Administrators, who may connect to it, get such a message
back: it is rejected with the condition that an attach to its node would get.

The credit of a link depends on no node. A message is released while its node is being deleted, the disk is full, or this broker
leaves, and a client that sends it again at once would do so without end. So the credit of a released message comes back only
after a pause; what is left of the credit is for messages to other nodes.

Source: the OASIS specification "Using the Anonymous Terminus for Message Routing" (capability ANONYMOUS-RELAY).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core import limits, message
from broker.core.acl import questions
from broker.core.acl.questions import Lookups
from broker.core.nodes import Routed
from broker.sessions.attach import Attach, Output
from broker.sessions.logs import Logs
from broker.sessions.producer import Denied, Producer, Target, Upload
from broker.sessions.turn import Turn

Named = Callable[[str], Target | None]
"""Finds a terminus by its address."""


class Relay:
    """See the module. `named` are asked in order for the node of each message."""

    __slots__ = ("_clock", "_logs", "_named", "_paused", "_timer", "_turn")
    window = limits.CREDIT_WINDOW
    serves_queues = False
    takes_large = True
    in_transactions = True
    in_any_order = False
    of_any_user = False
    identity = ""

    def __init__(self, clock: IReactorTime, turn: Turn, logs: Logs, named: Sequence[Named]) -> None:
        self._clock = clock
        self._turn = turn
        self._logs = logs
        self._named = tuple(named)
        self._paused: dict[Producer, int] = {}
        """How many messages of it were released since the timer was set."""
        self._timer: IDelayedCall | None = None
        """There is one while there are any."""

    def close(self) -> None:
        """Stop: no credit comes back any more."""
        self._paused.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def anonymous(self, attach: Attach) -> Relay | None:
        """For a target without an address."""
        return None if attach.asked.address else self

    def needs_of_sender(self, session: Output) -> Lookups:
        """Nothing: the lookups of a message depend on its node."""
        return ()

    def admit(self, attach: Attach) -> None:
        """Each message is checked on its own."""

    def attached(self, producer: Producer) -> None:
        """Its released messages pause it."""
        producer.pause = self._pause

    def left(self, producer: Producer) -> None:
        """It gets no credit any more."""
        self._paused.pop(producer, None)

    def _pause(self, producer: Producer) -> None:
        self._paused[producer] = self._paused.get(producer, 0) + 1
        if self._timer is None:
            self._timer = self._clock.callLater(limits.RELEASED_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._timer, paused, self._paused = None, self._paused, {}
        for producer, count in paused.items():
            producer.go_on(count)
        self._turn.flush()

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """Each to its own node."""
        producer.one_by_one(first, messages, self._put if self._logs.serving else self._put_unless_on_queue)

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """Those of its own node. LookupError, when that takes no part in transactions; Denied."""
        target = self._serving_target(producer, data)
        if not target.in_transactions:
            raise LookupError(f"a message to {message.to(data)!r:.120} cannot be part of a transaction: send it without one")
        return target.destinations(producer, data)

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A large message: its first part names its node."""
        return self._serving_target(producer, head).begin(producer, head)

    def _put(self, producer: Producer, delivery_id: int, data: bytes) -> None:
        self._target(producer, data).receive(producer, delivery_id, [data])

    def _put_unless_on_queue(self, producer: Producer, delivery_id: int, data: bytes) -> None:
        self._serving_target(producer, data).receive(producer, delivery_id, [data])

    def _serving_target(self, producer: Producer, data: bytes) -> Target:
        """The node of a message. Denied, when that is for queues and this broker does not serve."""
        target = self._target(producer, data)
        if target.serves_queues:
            self._must_serve()
        return target

    def _must_serve(self) -> None:
        if not self._logs.serving:
            unserved = self._logs.unserved()
            raise Denied(unserved.text, unserved.name)

    def _target(self, producer: Producer, data: bytes) -> Target:
        address = message.to(data)
        if not address:
            raise LookupError("a message sent on a link without a target address needs an address in its 'to'")
        for named in self._named:
            target = named(address)
            if target is not None:
                rights = producer.session.rights
                if rights.guard.acl is not None and target.identity:
                    denial = rights.denial_at(target.identity, target.needs_of_sender(producer.session))
                    if denial:
                        raise Denied(denial)
                return target
        denials = [producer.session.rights.denial((need,)) for need in questions.unknown(address)]
        if all(denials):
            raise Denied(denials[0])
        self._must_serve()
        raise LookupError(f"there is no queue and no exchange named {address!r:.120}")

    def may_flow(self, producer: Producer) -> bool:
        """Where the next message goes is not known yet."""
        return True
