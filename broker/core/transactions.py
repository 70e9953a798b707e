"""The protocol of transactions, as bytes and numbers, and the account of one transaction.

Life of a transaction: a client requests one with a `Declare`, and gets its id in a `declared` outcome. Its messages and outcomes
may contain this id in a `transactional-state`. A `Discharge` commits it or rolls it back.

An `Account` counts the content of a transaction, and has the reason if it can no longer be committed. Invariant of its limits: a
transaction has at most `limits.MAX_TRANSACTION_OPERATIONS` operations, and its message bodies at most
`limits.MAX_TRANSACTION_BYTES`; the messages of all open transactions together take at most the memory of the `Budget` that they
share. An account holds its part of the budget until it is closed: when its transaction is committed or rolled back, or at the end
of the term.

Source: AMQP 1.0 part 4 (transactions), 4.5 (the types).
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.core import limits, message, values
from broker.core.links import ACCEPTED, FAILED, MODIFIED, REJECTED, RELEASED, UNDELIVERABLE

UNKNOWN_ID, ROLLBACK = "amqp:transaction:unknown-id", "amqp:transaction:rollback"
"""Conditions (4.5.8): there is no such transaction; it was undone, because something in it cannot be."""
DECLARED, TRANSACTIONAL = 0x33, 0x34
"""States of a delivery, by the low byte of their descriptors (4.5.5, 4.5.8)."""
_DECLARE, _DISCHARGE = 0x31, 0x32
_OUTCOMES = {
    b"amqp:accepted:list": ACCEPTED,
    b"amqp:rejected:list": REJECTED,
    b"amqp:released:list": RELEASED,
    b"amqp:modified:list": MODIFIED,
}
_REQUESTS = {b"amqp:declare:list": _DECLARE, b"amqp:discharge:list": _DISCHARGE}
LOCAL_TRANSACTIONS = "amqp:local-transactions"
_NOTHING = (values.Described(None, None),) * 2
CAPABILITIES = frozenset({LOCAL_TRANSACTIONS, "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn"})
"""The supported capabilities of a coordinator (4.5.4): several transactions in a session, and several sessions of one connection
in a transaction. Distributed transactions are not supported, and neither is passing an id to another connection."""


class BadRequest(ValueError):
    """A coordinator cannot do this. `name` is the condition, the text names the fault."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


@dataclass(frozen=True, slots=True)
class Declare:
    """A new transaction is asked for."""


@dataclass(frozen=True, slots=True)
class Discharge:
    """The end of a transaction is asked for: it is carried out, or, when it is to `fail`, leaves no trace."""

    txn_id: bytes
    fail: bool


def read_request(data: bytes) -> Declare | Discharge:
    """The request in a message to a coordinator (4.5.2, 4.5.3). BadRequest if it contains none; BadMessage."""
    found = message.described_body(data)
    if found is None:
        raise BadRequest("amqp:decode-error", "a coordinator accepts only a declare or a discharge as the value of a message")
    descriptor, fields = found
    kind = _code(descriptor, _REQUESTS)
    if not isinstance(fields, list):
        fields = []
    if kind == _DECLARE:
        if fields and fields[0] is not None:
            raise BadRequest("amqp:not-implemented", "this broker has no distributed transactions: declare without a global-id")
        return Declare()
    if kind == _DISCHARGE:
        if not fields or not isinstance(fields[0], bytes):
            raise BadRequest("amqp:decode-error", "a discharge needs the id of a transaction, a binary")
        return Discharge(fields[0], len(fields) > 1 and fields[1] is True)
    raise BadRequest("amqp:decode-error", "a coordinator accepts only a declare or a discharge")


def id_fields(txn_id: bytes) -> bytes:
    """The fields of a `declared` outcome (4.5.7)."""
    return values.encode([txn_id])


def accepted_fields(txn_id: bytes) -> bytes:
    """The fields of a `transactional-state` with the outcome `accepted` (4.5.8)."""
    return values.encode([txn_id, values.Ready(bytes((0x00, 0x53, ACCEPTED)) + values.items(()))])


def read_state(fields: bytes) -> tuple[bytes, int]:
    """The id and the outcome of a `transactional-state`, given its fields. One that names no
    outcome has RELEASED. An id that cannot be read is b"", which no transaction has.
    """
    try:
        txn_id, outcome = (*values.described_items(fields), *_NOTHING)[:2]
    except values.BadValue:
        return b"", RELEASED
    if not isinstance(txn_id.value, bytes):
        return b"", RELEASED
    found = _code(outcome.descriptor, _OUTCOMES)
    if found == MODIFIED and isinstance(outcome.value, list):
        failed, undeliverable = (*outcome.value, None, None)[:2]
        found |= (FAILED if failed is True else 0) | (UNDELIVERABLE if undeliverable is True else 0)
    return txn_id.value, found if found & 0xFF in _OUTCOMES.values() else RELEASED


def _code(descriptor: object, names: dict[bytes, int]) -> int:
    """The low byte of a descriptor; 0 for one that is not a number and not among these names."""
    if isinstance(descriptor, int):
        return descriptor & 0xFF if descriptor >> 8 == 0 else 0
    return names.get(descriptor.encode(), 0) if isinstance(descriptor, str) else 0


class Budget:
    """The memory limit of all open transactions of a broker. `nbytes` is their current sum."""

    __slots__ = ("limit_bytes", "nbytes", "open")

    def __init__(self, limit_bytes: int = limits.TRANSACTIONS_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self.open: set[Account] = set()
        """The accounts that are not closed."""

    @property
    def n_open(self) -> int:
        """Number of open accounts."""
        return len(self.open)

    def close_all(self) -> None:
        """The term has ended: what was not committed is void, and nobody will close its account."""
        for account in tuple(self.open):
            account.close()


class Account:
    """The content of one transaction. `fault`: why it cannot be committed; "" if it can."""

    __slots__ = ("_budget", "_held_bytes", "fault", "nbytes", "operations")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        budget.open.add(self)
        self.operations = 0
        self.nbytes = 0
        self.fault = ""
        self._held_bytes = 0

    def takes_messages(self, count: int, nbytes: int) -> bool:
        """Count so many more messages, of so many bytes together; False, and a `fault`, when that is too much."""
        return self.takes(count, nbytes, nbytes + count * limits.TRANSACTION_MESSAGE_BYTES)

    def takes(self, operations: int, nbytes: int = 0, held_bytes: int = 0) -> bool:
        """Count so many more operations, with bodies of so many bytes, and the memory for these; see `takes_messages`."""
        if self.operations + operations > limits.MAX_TRANSACTION_OPERATIONS:
            self.fail(f"a transaction may have {limits.MAX_TRANSACTION_OPERATIONS} operations")
        elif self.nbytes + nbytes > limits.MAX_TRANSACTION_BYTES:
            self.fail(f"the messages of a transaction may have {limits.MAX_TRANSACTION_BYTES} bytes in all")
        elif self._budget.nbytes + held_bytes > self._budget.limit_bytes:
            self.fail(f"the open transactions of all clients hold {self._budget.limit_bytes} bytes, their limit; try again")
        else:
            self.operations += operations
            self.nbytes += nbytes
            self._held_bytes += held_bytes
            self._budget.nbytes += held_bytes
            return True
        return False

    @property
    def is_open(self) -> bool:
        """Whether it holds its content: neither it nor the term has ended."""
        return self in self._budget.open

    def fail(self, why: str) -> None:
        """It can no longer be carried out. The first reason stays."""
        self.fault = self.fault or why

    def close(self) -> None:
        """It holds nothing any more. Again does nothing."""
        self._budget.nbytes -= self._held_bytes
        self._budget.open.discard(self)
        self._held_bytes = self.nbytes = 0
