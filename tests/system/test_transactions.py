"""A client by other authors moves messages in transactions, on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

from tests.system.harness import standalone
from tests.system.traffic import send, take


class Mover(MessagingHandler, TransactionHandler):
    """Moves messages from one queue to another by twos: the first two are aborted once, and come again."""

    def __init__(self, url: str, count: int) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self.url = url
        self.left = count
        self.said: list[str] = []
        self.got: list[tuple[str, int]] = []
        self.transaction: Any = None

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.connection = event.container.connect(self.url, reconnect=False)
        self.receiver = event.container.create_receiver(self.connection, "orders")
        self.sender = event.container.create_sender(self.connection, "bills")
        event.container.declare_transaction(self.connection, handler=self, settle_before_discharge=True)

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        self.in_this = 0
        self.receiver.flow(2)

    def on_message(self, event: Any) -> None:
        self.got.append((event.message.body, event.message.delivery_count))
        self.transaction.accept(event.delivery)
        self.transaction.send(self.sender, Message(body=event.message.body.upper()))
        self.in_this += 1
        if self.in_this == 2:
            if self.said:
                self.transaction.commit()
            else:
                self.transaction.abort()

    def on_transaction_committed(self, event: Any) -> None:
        self.said.append("committed")
        self.left -= 2
        self._next(event)

    def on_transaction_aborted(self, event: Any) -> None:
        self.said.append("aborted")
        self._next(event)

    def _next(self, event: Any) -> None:
        if self.left:
            self.container.declare_transaction(self.connection, handler=self, settle_before_discharge=True)
        else:
            self.connection.close()


def test_protons_client_moves_messages_by_transactions_and_what_it_aborts_comes_again(tmp_path: Path) -> None:
    with standalone(tmp_path) as broker:
        for name in ("orders", "bills"):
            broker.create("queue", name)
        send(broker.address, "orders", [bytes(Message(body=f"m{number}").encode()) for number in range(6)])
        mover = Mover(broker.address, 6)
        Container(mover).run()
        assert mover.said == ["aborted", "committed", "committed", "committed"]
        assert mover.got == [("m0", 0), ("m1", 0), ("m0", 1), ("m1", 1), *((f"m{number}", 0) for number in range(2, 6))]
        assert broker.queue("orders")["messages"] == 0
        moved = [Message() for _ in range(6)]
        for message, data in zip(moved, take(broker.address, "bills", 6), strict=True):
            message.decode(data)
        assert [message.body for message in moved] == [f"M{number}" for number in range(6)]
