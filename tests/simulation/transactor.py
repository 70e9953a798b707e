"""A client of a simulated cluster that works in transactions: it consumes from one queue and sends to two others.

Life of its work: on one connection it has a link to the coordinator, a consuming link, and a link to each of the two
queues. It declares a transaction, consumes some messages in it, sends two for each, and discharges it, as a commit or
as a rollback. If it is told that the transaction was carried out, all of it has happened. If it is told that it was
rolled back, or if the connection ended before the discharge, nothing has happened. If the connection ends in between,
either may be true.

Invariant: consumed messages leave their queue by the batch that has the messages sent in the same transaction, and by
no other batch (`checks.reference` checks this, by the history).
"""

from __future__ import annotations

from typing import Any

from cproton_ffi import ffi, lib

from broker.amqp.data import put_value
from broker.core import values
from broker.core.transactions import DECLARED, TRANSACTIONAL, accepted_fields
from tests.simulation.amqp_client import ACCEPTED, ClientConnection
from tests.simulation.clients import Client
from tests.simulation.history import Key, body
from tests.simulation.layouts import TARGETS

_MOST = 4
"""Messages that are consumed in one transaction."""
_WINDOW = 8
_LINGER_S = 0.15
"""After so long a transaction is discharged with what it has."""
_FAILS = 0.2
_DECLARE = b"\x00\x53\x77\x00\x53\x31\x45"
_LINKS = 4


class TransactorConnection(ClientConnection):
    """One connection with the four links."""

    control: Any
    targets: dict[str, Any]

    def _attach(self) -> None:
        name = self.user.name.encode()
        self.control = lib.pn_sender(self._session, name + b" control")
        lib.pn_terminus_set_type(lib.pn_link_target(self.control), lib.PN_COORDINATOR)
        self.targets = {queue: self._sender(name + b" to " + queue.encode(), queue) for queue in TARGETS}
        self.link = self._receiver(name + b" from", self.user.queue)
        for link in (self.control, *self.targets.values(), self.link):
            lib.pn_link_open(link)
        self.grant(self._credit)

    def ask(self, request: bytes) -> Any:
        """Send a request to the coordinator; returns its delivery."""
        return self._put(self.control, request, b"")

    def post(self, queue: str, data: bytes, txn_id: bytes) -> None:
        """Send a message in a transaction. What becomes of it, the discharge says."""
        size = len(data)
        head = b"\x00\x53\x75\xa0" + bytes((size,)) if size < 256 else b"\x00\x53\x75\xb0" + size.to_bytes(4, "big")
        self._put(self.targets[queue], head + data, values.encode([txn_id]))

    def retire(self, delivery: Any, txn_id: bytes) -> None:
        """Accept a received message in a transaction."""
        if self.alive:
            put_value(lib.pn_disposition_data(lib.pn_delivery_local(delivery)), accepted_fields(txn_id))
            lib.pn_delivery_update(delivery, TRANSACTIONAL)
            self.unsettled.pop(delivery, None)
            lib.pn_delivery_settle(delivery)

    def _put(self, link: Any, data: bytes, state: bytes) -> Any:
        self._tag += 1
        tag = ffi.new("uint32_t *", self._tag)
        delivery = lib.pn_delivery(link, ffi.new("pn_delivery_tag_t *", {"size": 4, "start": ffi.cast("char *", tag)})[0])
        if state:
            put_value(lib.pn_disposition_data(lib.pn_delivery_local(delivery)), state)
            lib.pn_delivery_update(delivery, TRANSACTIONAL)
        lib.pn_link_send(link, ffi.from_buffer(data), len(data))
        lib.pn_link_advance(link)
        self.unsettled[delivery] = None
        return delivery

    @property
    def may_send(self) -> bool:
        """Whether every sending link has credit for a transaction."""
        return self.alive and all(lib.pn_link_credit(link) >= _MOST for link in (self.control, *self.targets.values()))

    def _outcome(self, delivery: Any, outcome: int, said: bytes) -> None:
        user = self.user
        assert isinstance(user, Transactor)
        user.answered(delivery, outcome, said)


class Transactor(Client):
    """See the module."""

    connects = TransactorConnection
    connection: TransactorConnection | None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.credit_window = _WINDOW
        self._attached = 0
        self._stays = False
        self._next_number = 0
        self._got: list[tuple[Any, Key | None]] = []
        self._request: Any = None
        """The delivery of the declare or discharge that waits for its outcome."""
        self._txn_id = b""
        self._take = 0
        self._posts: list[Key] = []
        self._retired: list[Key] = []
        self._discharged = self._fails = False
        self.carried_out = self.undone = 0

    # ---- links

    def usable(self) -> None:
        """One of the links is attached."""
        self._attached += 1
        if self._attached == _LINKS:
            super().usable()
            self._declare()

    def unlinked(self) -> None:
        """Nobody knows what became of a transaction that was discharged; nothing of another."""
        self._end(self.history.unknown if self._discharged and not self._fails else self.history.refused)

    def over(self, *, opened: bool, reason: str) -> None:
        """See LinkUser."""
        super().over(opened=opened, reason=reason)
        self._attached = 0
        self._got.clear()
        self._request = None

    def message(self, delivery: Any, data: bytes) -> None:
        """Something to do."""
        key = self.history.received(self.name, self.plan.queue, data, self.now, link=self.link_number)
        self._got.append((delivery, key))
        self._work()

    def enough(self) -> None:
        """Stay, and take everything."""
        self._stays = True

    def _leave(self, connection: ClientConnection) -> None:
        if not self._stays:
            super()._leave(connection)

    # ---- transactions

    def _declare(self) -> None:
        connection = self.connection
        if not self.ready or connection is None or self._request is not None or self._txn_id:
            return
        if not connection.may_send:
            self.reactor.callLater(_LINGER_S, self._declare)
            return
        self._request = connection.ask(_DECLARE)
        connection.flush()

    def answered(self, delivery: Any, outcome: int, said: bytes) -> None:
        """The broker's word on a request, or on a message."""
        if delivery is not self._request and delivery != self._request:
            return
        self._request = None
        connection = self.connection
        assert connection is not None
        if outcome == DECLARED:
            self._txn_id = values.decode(said)[0]
            self._take = self.rng.randint(1, _MOST)
            self.reactor.callLater(_LINGER_S + self.plan.settle_delay_s, self._discharge, connection, self._txn_id)
            self._work()
            return
        if self._discharged:
            taken = len(self._retired)
            if outcome == ACCEPTED and not self._fails:
                self.carried_out += 1
                for key in self._retired:
                    self.history.settled(key)
                self._end(self.history.accepted)
            else:
                self.undone += 1
                if not self._fails:
                    self.history.undone(self._retired)
                self._end(self.history.refused)
            connection.grant(taken)
        self.reactor.callLater(0.01, self._declare)

    def _work(self) -> None:
        connection = self.connection
        if not self._txn_id or self._discharged or connection is None or not connection.alive:
            return
        while self._got and len(self._retired) < self._take:
            delivery, key = self._got.pop(0)
            connection.retire(delivery, self._txn_id)
            if key is not None:
                self.history.consumed_in_transactions(key)
                self._retired.append(key)
            for queue in TARGETS:
                self.history.sent(self.name, queue, self._next_number, self.now, link=self.link_number)
                self._posts.append(Key(self.name, self.link_number, self._next_number, queue))
                data = body(self.name, self.link_number, self._next_number, self.rng.randint(*self.plan.size))
                connection.post(queue, data, self._txn_id)
            self._next_number += 1
        if len(self._retired) == self._take:
            self.reactor.callLater(self.plan.settle_delay_s * self.rng.random(), self._discharge, connection, self._txn_id)
        connection.flush()

    def _discharge(self, connection: TransactorConnection, txn_id: bytes) -> None:
        if connection is not self.connection or txn_id != self._txn_id or self._discharged or not connection.alive:
            return
        self._discharged, self._fails = True, self.rng.random() < _FAILS
        if not self._fails:
            self.history.discharging(self._posts, self._retired)
        fields = values.encode([txn_id, self._fails])
        self._request = connection.ask(b"\x00\x53\x77\x00\x53\x32" + fields)
        connection.flush()

    def _end(self, became: Any) -> None:
        """This transaction is over: that became of what was sent in it."""
        for key in self._posts:
            became(self.name, key.queue, key.number, self.now, link=key.link)
        self._posts, self._retired = [], []
        self._txn_id, self._discharged, self._fails = b"", False, False
