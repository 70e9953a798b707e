"""The coordinator: the terminus at which clients declare and discharge transactions (broker.sessions.transactions).

Life of a request: a message with a `declare` gets the outcome `declared` with the id of a new transaction. A message with a
`discharge` is accepted when the work of the transaction is committed, or rolled back if the client requested this. If it cannot
be committed, the message is rejected with a condition, and the transaction is rolled back.

Invariant: when a link ends, the transactions that were declared over it are rolled back (AMQP 1.0 part 4.2).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.amqp.data import Condition
from broker.core import limits, message
from broker.core.acl.questions import Lookups
from broker.core.links import REJECTED
from broker.core.nodes import Routed, Unplaced
from broker.core.transactions import CAPABILITIES, ROLLBACK, UNKNOWN_ID, BadRequest, Budget, Declare, read_request
from broker.sessions.attach import Attach, Output
from broker.sessions.logs import Logs
from broker.sessions.producer import Denied, Full, Producer, Upload, outcome_of
from broker.sessions.transactions import Transaction, Transactions
from broker.sessions.uploads import Gathering


class Coordinator:
    """The terminus of links on which transactions are declared and discharged (4.2)."""

    window = limits.MAX_TRANSACTIONS_PER_CONNECTION
    serves_queues = True
    takes_large = False
    in_transactions = False
    in_any_order = False
    of_any_user = False
    identity = ""

    def __init__(self, logs: Logs, new_id: Callable[[], str]) -> None:
        self._logs = logs
        self._new_id = new_id
        self.budget = Budget()
        """The content of the open transactions of all connections."""

    def new_connection(self) -> Transactions:
        """The transactions of one more connection."""
        return Transactions(self._logs, self.budget, self._new_id)

    def over(self) -> None:
        """This broker has stopped serving, and the links of all transactions have ended."""
        self.budget.close_all()

    def asked(self, attach: Attach) -> Coordinator | None:
        """For a target that is a coordinator."""
        return self if attach.asked.coordinator else None

    def needs_of_sender(self, session: Output) -> Lookups:
        """None: rights are checked for each message and outcome of a transaction."""
        return ()

    def admit(self, attach: Attach) -> None:
        """Condition, when this broker does not serve, or cannot do what the client requests."""
        self._logs.must_serve()
        unknown = sorted(set(attach.asked.capabilities) - CAPABILITIES)
        if unknown:
            text = f"this broker's coordinator has no {', '.join(unknown)}: it has {', '.join(sorted(CAPABILITIES))}"
            raise Condition("amqp:not-implemented", text)

    def attached(self, producer: Producer) -> None:
        """Its transactions are kept with its session."""

    def left(self, producer: Producer) -> None:
        """Roll back the transactions that were declared over it."""
        producer.session.transactions.left(producer)

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """None: a transaction has no part in others."""
        return Routed([])

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """Declare or discharge, one by one."""
        for delivery_id, data in enumerate(messages, first):
            try:
                self._request(producer, delivery_id, data)
            except (BadRequest, message.BadMessage) as error:
                name = error.name if isinstance(error, BadRequest) else "amqp:decode-error"
                producer.refuse(delivery_id, REJECTED, Condition(name, str(error)))

    def _request(self, producer: Producer, delivery_id: int, data: bytes) -> None:
        request, transactions = read_request(data), producer.session.transactions
        if isinstance(request, Declare):
            producer.declared(delivery_id, transactions.declare(producer).txn_id)
            return
        one = transactions.take(request.txn_id)
        if one is None:
            text = "this connection has no such transaction: if another connection, or another primary, has discharged it, "
            raise BadRequest(UNKNOWN_ID, f"{text}check whether its messages have arrived")
        if request.fail:
            one.roll_back(lambda: producer.done(delivery_id))
            return
        why = one.account.fault or self._carry_out(one, producer, delivery_id)
        if why:
            condition = Condition(ROLLBACK, f"the transaction was undone: {why}")
            one.roll_back(lambda: producer.refuse(delivery_id, REJECTED, condition))

    def _carry_out(self, one: Transaction, producer: Producer, delivery_id: int) -> str:
        """Carry it out, and say so when it is committed. Returns why that cannot be, "" when it is under way."""
        try:
            one.carry_out(self._logs, lambda: producer.done(delivery_id))
        except BadRequest as error:
            return str(error)
        except (Unplaced, Full, Denied, message.BadMessage, LookupError) as error:
            condition = outcome_of(error)[1]
            return "a queue or the disk has no place for its messages now" if condition is None else condition.text
        return ""

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A request in many frames."""
        return Gathering(producer, self.receive, "a coordinator")

    def may_flow(self, producer: Producer) -> bool:
        """Always: a client that waits for room must be able to discharge."""
        return True
