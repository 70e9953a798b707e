"""Transactions: the messages and outcomes of a client take effect together, in one batch of the log, or not at all.

Life of a transaction: a client attaches a link to the coordinator and declares a transaction. Messages that it sends in the
transaction, over any link of its connection, are kept here, and consumed messages whose outcomes are part of it stay acquired. A
discharge commits it: every message is routed; all of them, and the dequeues of the accepted messages, go into one batch; when
that is committed, the discharge is accepted. The transaction is rolled back by a discharge with `fail`, and by the end of the
coordinator's link, of the connection or of this broker's service. Then nothing was enqueued, and the consumed messages are
available again; after a discharge, their delivery count is raised.

Invariants: the log has the whole transaction in one batch or nothing of it; the content of a transaction is limited (`Account`);
a transaction with a refused part is never committed, nor is one of which a message was dropped with a link that this side ended,
nor one that was open when a message of its connection went back to its queue, because an outcome of it in the transaction would
be lost (broker.sessions.overdue); only its own connection knows a transaction, and no other one has its id.

A queue that is only on this broker is in a separate log. A transaction over both logs is written to the cluster's log first, and
to the local one when that is committed. The queues of the second part stay until then (`Logs.promised`). A failover in between
loses what a failover always loses: the queues of only this broker. The local log goes on after the term: what it commits then is
committed, but outcomes other than `accepted` have no effect any more, because the messages are available again.

Source: AMQP 1.0 part 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from broker.amqp.data import Condition
from broker.core import limits
from broker.core.duplicates import id_of
from broker.core.links import ACCEPTED, REJECTED, TRANSACTION_SHIFT
from broker.core.nodes import QueueNode, Routed, Unplaced
from broker.core.transactions import ROLLBACK, UNKNOWN_ID, Account, BadRequest, Budget
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.passing import pass_on, too_long
from broker.sessions.room import check_places, full_text, has_room

_LOST = "one of its messages came on a link that the broker has ended, and was dropped"
_LIMIT = "amqp:resource-limit-exceeded"
_OUTCOMES = (1 << TRANSACTION_SHIFT) - 1


class Poster(Protocol):
    """A client's sending link, as far as a transaction needs it."""

    @property
    def in_transactions(self) -> bool:
        """Whether its messages may be part of a transaction."""

    def destinations(self, data: bytes) -> Routed:
        """The queues for a message of this link. Raises the exceptions that `producer.outcome_of` handles."""

    def enlisted(self, first: int, count: int, txn_id: bytes) -> None:
        """These messages are kept for a transaction."""

    def refuse(self, delivery_id: int, outcome: int, condition: Condition | None) -> None:
        """This message was not taken."""


class GiveBack(Protocol):
    """Takes back what consumers had from a queue (broker.sessions.returns)."""

    def settle(self, sequences: list[int], outcome: int) -> None:
        """These acquired messages have an outcome other than `accepted`."""

    def undo(self, sequences: list[int], *, count: bool) -> None:
        """These are available again; `count`: with a delivery count that is higher by one."""


class Place(Protocol):
    """A queue that messages are consumed from, as far as a transaction needs it."""

    @property
    def node(self) -> QueueNode:
        """The queue."""

    @property
    def ledger(self) -> Ledger:
        """That has its messages."""

    @property
    def returns(self) -> GiveBack:
        """Takes what is given back to it."""


class _Post:
    __slots__ = ("arrived_ms", "data", "poster")

    def __init__(self, poster: Poster, data: bytes, arrived_ms: int) -> None:
        self.poster = poster
        self.data = data
        self.arrived_ms = arrived_ms


def _nbytes(posts: Iterable[_Post]) -> int:
    return sum([len(post.data) for post in posts])


def _not_repeated(node: QueueNode, posts: list[_Post], now_ms: int) -> list[_Post]:
    """Those of these that the queue does not have as duplicates: since the discharge, which has looked, another log has committed
    the first part, and their sender may have sent them again."""
    return [post for post in posts if not node.repeats(post.data, now_ms)] if node.detects_duplicates else posts


class _Retired(NamedTuple):
    queue: Place
    sequences: list[int]
    outcome: int


class _Part(NamedTuple):
    """The part of a transaction for one log."""

    puts: list[tuple[QueueNode, list[_Post]]]
    retired: list[_Retired]
    through: list[tuple[Routed, _Post]]
    """The messages that pass through exchanges which number or keep them."""


def _too_large(part: _Part) -> str:
    """Why this part does not fit into one batch, "" if it does: each queue that gets a message has its own copy."""
    count = sum([len(posts) for _, posts in part.puts])
    nbytes = sum([_nbytes(posts) for _, posts in part.puts]) + count * limits.BATCH_COPY_BYTES
    if nbytes <= limits.MAX_BATCH_BYTES:
        return ""
    return f"its messages are {nbytes} bytes in all the queues that they are routed to, and {limits.MAX_BATCH_BYTES} are the most"


class Transaction:
    """See the module. `coordinator`: the link that it was declared on."""

    def __init__(self, txn_id: bytes, coordinator: Poster, budget: Budget) -> None:
        self.txn_id = txn_id
        self.coordinator = coordinator
        self.account = Account(budget)
        self._posts: list[_Post] = []
        self._retired: list[_Retired] = []
        self._promised: list[str] = []
        """Identities of the queues that get its messages when another log has committed its first part."""

    def post(self, poster: Poster, messages: list[bytes], now_ms: int) -> bool:
        """Keep messages, which arrive now, until the discharge; False: that is too much, and it can no longer be carried out."""
        if not self.account.takes_messages(len(messages), sum(map(len, messages))):
            return False
        self._posts += [_Post(poster, data, now_ms) for data in messages]
        return True

    def retire(self, queue: Place, ranges: Iterable[range], outcome: int) -> None:
        """Keep an outcome of consumed messages until the discharge. If it exceeds a limit, the discharge will fail."""
        sequences = [sequence for each in ranges for sequence in each]
        self.account.takes(len(sequences))
        self._retired.append(_Retired(queue, sequences, outcome))

    def drop(self) -> None:
        """Roll it back because its link or connection has ended: the consumed messages are available again."""
        self.account.close()
        for queue, sequences, _ in self._retired:
            queue.returns.undo(sequences, count=False)

    def roll_back(self, done: Callable[[], None]) -> None:
        """Roll it back on request, or because it cannot be committed: its deliveries count as failed. `done` is called when all
        consumed messages are in their old places again, so that the client gets them before later ones."""
        self.account.close()
        for queue, sequences, _ in self._retired:
            queue.returns.undo(sequences, count=True)
        left = list(dict.fromkeys(retired.queue.ledger for retired in self._retired))

        def counted() -> None:
            if left:
                left.pop().pending.when_committed(counted)
            else:
                done()

        counted()

    def carry_out(self, logs: Logs, done: Callable[[], None]) -> None:
        """Propose it; `done` is called when it is committed. After a BadRequest, or an exception of `Poster.destinations`,
        nothing was proposed."""
        puts: dict[QueueNode, list[_Post]] = {}
        once: set[tuple[QueueNode, bytes | None]] = set()
        through: list[tuple[Routed, _Post]] = []
        for post in self._posts:
            data, routed = post.data, post.poster.destinations(post.data)
            if routed.through:
                fault = too_long(routed, len(data))
                if fault:
                    raise BadRequest(ROLLBACK, fault)
                through.append((routed, post))
            for node in routed.queues:
                if node.detects_duplicates:
                    seen = node, id_of(data)
                    if seen[1] is not None and (seen in once or node.repeats(data, logs.ledger_of(node).now_ms)):
                        continue
                    once.add(seen)
                puts.setdefault(node, []).append(post)
        check_places(puts)
        if (puts or through) and logs.closed:
            raise Unplaced
        for node, posts in puts.items():
            nbytes, largest = _nbytes(posts), max([len(post.data) for post in posts])
            if not has_room(node, len(posts), nbytes, largest):
                raise BadRequest(ROLLBACK, full_text(node, nbytes, len(posts), largest))
        parts: Mapping[Ledger, _Part] = {ledger: _Part([], [], []) for ledger in logs.ledgers.values()}
        for node, posts in puts.items():
            parts[logs.ledger_of(node)].puts.append((node, posts))
        for retired in self._retired:
            parts[retired.queue.ledger].retired.append(retired)
        for ledger, part in parts.items():
            fault = _too_large(part)
            if fault:
                raise BadRequest(ROLLBACK, fault)
            if not ledger.room.takes(sum(_nbytes(posts) for _, posts in part.puts)):
                raise Unplaced
        lead = logs.lead
        parts[lead].through.extend(through)
        order = [lead, *(ledger for ledger in parts if ledger is not lead)]
        said = {logs.ledger_at(exchange) for routed, _ in through for exchange in routed.through}
        steps = [(ledger, parts[ledger]) for ledger in order if any(parts[ledger]) or ledger in said]
        for _, part in steps[1:]:  # what an exchange routes to a queue that is going already goes with it
            self._promised += [node.uuid for node, _ in part.puts if not logs.nodes.is_going(node.uuid)]
        logs.promised.update(self._promised)
        self._propose(logs, steps, done)

    def _propose(self, logs: Logs, parts: list[tuple[Ledger, _Part]], done: Callable[[], None]) -> None:
        """The first of these parts, and the others when it is committed."""
        if not parts:
            goes_on = self.account.is_open
            self.account.close()
            for queue, sequences, outcome in self._retired if goes_on else ():
                if outcome != ACCEPTED:
                    queue.returns.settle(sequences, outcome)
            done()
            return
        ledger, (puts, retired, through) = parts[0]
        now_ms = logs.lead.now_ms
        if len(parts) == 1:
            logs.fulfil(self._promised)
        with ledger.pending.one_batch(sum(_nbytes(posts) for _, posts in puts)):
            for routed, post in through:
                post.data = pass_on(logs, routed, post.data)
            for node, coming in puts:
                posts = _not_repeated(node, coming, ledger.now_ms)
                waited_ms = [now_ms - post.arrived_ms for post in posts]
                if posts:
                    ledger.enqueue(node, [post.data for post in posts], _nbytes(posts), timed=True, waited_ms=waited_ms)
            for queue, sequences, outcome in retired:
                if outcome == ACCEPTED and queue.node.messages is not None:
                    ledger.dequeue(queue.node.messages.number, sequences)
            ledger.pending.when_committed(lambda: self._propose(logs, parts[1:], done))


class Transactions:
    """The open transactions of one connection. `new_id` makes ids that no other transaction of any broker has."""

    def __init__(self, logs: Logs, budget: Budget, new_id: Callable[[], str]) -> None:
        self._logs = logs
        self._budget = budget
        self._new_id = new_id
        self._open: dict[bytes, Transaction] = {}

    def declare(self, coordinator: Poster) -> Transaction:
        """A new one. BadRequest, when there are too many."""
        if len(self._open) >= limits.MAX_TRANSACTIONS_PER_CONNECTION:
            text = f"a connection may have {limits.MAX_TRANSACTIONS_PER_CONNECTION} transactions open: discharge some first"
            raise BadRequest(_LIMIT, text)
        txn_id = self._new_id().encode()
        made = self._open[txn_id] = Transaction(txn_id, coordinator, self._budget)
        return made

    def take(self, txn_id: bytes) -> Transaction | None:
        """The transaction of this id, which is not open any more."""
        return self._open.pop(txn_id, None)

    def left(self, coordinator: Poster) -> None:
        """Its link has ended: roll back the transactions that were declared over it."""
        for one in [each for each in self._open.values() if each.coordinator is coordinator]:
            del self._open[one.txn_id]
            one.drop()

    def post(self, poster: Poster, first: int, messages: list[bytes], txn_id: bytes) -> None:
        """Messages of this link, with the ids from `first` on, have come in a transaction."""
        one = self._open.get(txn_id)
        if one is None:
            condition = Condition(UNKNOWN_ID, "this connection has no such transaction: it was discharged, or never declared")
        elif not poster.in_transactions:
            text = "messages to this node cannot be part of a transaction: send them without one"
            one.account.fail(text)
            condition = Condition("amqp:not-implemented", text)
        elif not one.post(poster, messages, self._logs.lead.now_ms):
            condition = Condition(_LIMIT, one.account.fault)
        else:
            poster.enlisted(first, len(messages), txn_id)
            return
        for delivery_id in range(first, first + len(messages)):
            poster.refuse(delivery_id, REJECTED, condition)

    def at_once(self, poster: Poster, messages: list[bytes], done: Callable[[], None]) -> None:
        """Put the messages of a bundle from this link, all of them or none; `done` is called when that is committed. After a
        BadRequest, or an exception of `Poster.destinations`, nothing was proposed."""
        one = Transaction(b"", poster, self._budget)
        try:
            if not one.post(poster, messages, self._logs.lead.now_ms):
                raise BadRequest(_LIMIT, f"these messages cannot come as one: {one.account.fault}")
            one.carry_out(self._logs, done)
        except Exception as error:
            one.account.close()
            if isinstance(error, BadRequest):
                raise BadRequest(_LIMIT, str(error)) from None
            raise

    def refuse(self, txn_id: bytes, why: str) -> None:
        """A message of this transaction was not taken."""
        one = self._open.get(txn_id)
        if one is not None:
            one.account.fail(why)

    def lost(self, txn_id: bytes) -> None:
        """A message of this transaction was dropped with its link, which this side has ended."""
        self.refuse(txn_id, _LOST)

    def fail_open(self, why: str) -> None:
        """Something has happened that a client may not know of when it discharges a transaction that is open now: none of them
        is committed."""
        for one in self._open.values():
            one.account.fail(why)

    def retire(self, txn_id: bytes, queue: Place, ranges: list[range], outcome: int) -> bool:
        """A consumer has given messages of a queue this outcome in a transaction; False: there is no such transaction."""
        one = self._open.get(txn_id)
        if one is None:
            return False
        one.retire(queue, ranges, outcome & _OUTCOMES)
        return True
