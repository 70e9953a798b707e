"""Queues that are bound to an exchange get its last message, if the exchange keeps it (`qpid.ive`).

Life of a debt: a binding is committed that owes its queue the exchange's last message. The serving broker puts this message on
the queue, if the binding and the queue's gate accept it and the queue has room for it. The same batch records that the binding
owes nothing any more. If the term ends before that is committed, the next primary finds the debt in the log, and puts the message
that is the last one then.

Invariants: a queue gets the message that was the last one when its binding became effective, and no message between it and the
later ones of the binding is missing; it gets the message once, however many of its bindings match. Exceptions: if its messages
are in another log than its binding, it gets the message once or more; a queue that is full gets nothing, then or later.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.commands import Bind, Key, ValueGiven
from broker.core.definitions import Bound, Change, PlaceMade
from broker.core.lifetimes import Said, when
from broker.core.nodes import ExchangeNode, QueueNode
from broker.core.passage import Value
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.room import has_room


class InitialValues:
    """See the module."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._paying: set[Key] = set()
        """Bindings whose debt is being paid and is not committed yet."""

    def over(self) -> None:
        """This broker stops serving: it gets no result for proposals in progress."""
        self._paying.clear()

    def follow(self, changes: Iterable[tuple[Change, str]]) -> None:
        """A log has applied these changes."""
        if not self._logs.serving:
            return
        for change, reason in changes:
            match change:
                case Bound(binding) if binding.owes and not reason:
                    self._give(binding)
                case PlaceMade(place):
                    self._give_all(each for each in self._logs.nodes.bindings_of(place.uuid) if each.owes)
                case _:
                    pass

    def begin(self) -> None:
        """This broker serves, or one more of its logs does."""
        if self._logs.serving:
            self._give_all(self._logs.nodes.owed())

    def _give_all(self, bindings: Iterable[Bind]) -> None:
        for binding in bindings:
            self._give(binding)

    def _give(self, binding: Bind) -> None:
        """Pay the debt of this binding, if its queue can accept the message now."""
        nodes = self._logs.nodes
        queue, log = nodes.queue_by_uuid(binding.queue), nodes.log_of_binding(binding.identity)
        exchange = nodes.find_exchange(binding.exchange)
        if queue is None or exchange is None or queue.messages is None or log is None or binding.identity in self._paying:
            return
        debtor, ledger = self._logs.ledgers[log], self._logs.ledger_of(queue)
        if not (debtor.serving and ledger.serving):
            return
        paid = ValueGiven(exchange=binding.exchange, queue=binding.queue, key=binding.key)
        value = self._value_for(exchange, queue, binding, ledger)
        self._paying.add(binding.identity)
        with ledger.pending.one_batch(0 if value is None else len(value.data)):
            if value is not None:
                said = Said(expires_ms=value.expires_ms, available_ms=value.available_ms)
                times = when(said, ledger.now_ms, queue.ttl_ms)
                ledger.enqueue(queue, [value.data], len(value.data), times=[times] if any(times) else None)
            if debtor is ledger:
                ledger.change(paid, lambda reason: self._paying.discard(binding.identity))
        if debtor is not ledger:
            ledger.pending.when_committed(lambda: debtor.change(paid, lambda reason: self._paying.discard(binding.identity)))

    def _value_for(self, exchange: ExchangeNode, queue: QueueNode, binding: Bind, ledger: Ledger) -> Value | None:
        """The message for the queue; None if it gets nothing, for example because another binding has given it the same."""
        value, kind = None if exchange.passage is None else exchange.passage.value, exchange.definition.kind
        if value is None or not value.is_for(kind, binding):
            return None
        for other in self._logs.nodes.bindings_of(queue.uuid):
            counts = other.exchange == exchange.uuid and (not other.owes or other.identity in self._paying)
            if counts and other.identity != binding.identity and value.is_for(kind, other):
                return None
        if 0 < value.expires_ms <= ledger.now_ms or (queue.gate is not None and not queue.gate(value.data, value.origin)):
            return None
        return None if queue.repeats(value.data, ledger.now_ms) or not has_room(queue, 1, len(value.data)) else value
