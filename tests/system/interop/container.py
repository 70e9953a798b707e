"""A client on python-qpid-proton's Container that outlives its broker: container.py send|receive URL,URL,... ADDRESS COUNT.

A sender numbers its messages and sends a few of them every few milliseconds; what has no outcome when the connection drops, it
sends again over the next one. A receiver counts the different numbers that come. Both print their count whenever it has
grown, and end when it is COUNT.
"""

from __future__ import annotations

import sys
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container


class Client(MessagingHandler):
    """Either role."""

    def __init__(self, role: str, urls: str, address: str, count: int) -> None:
        super().__init__(prefetch=100)
        self.sends, self.urls, self.address, self.count = role == "send", urls.split(","), address, count
        self.seen: set[int] = set()
        self.unsettled: dict[int, None] = {}
        self.again: list[int] = []
        self.next = 0
        self.link: Any = None
        self.connection: Any = None

    def on_start(self, event: Any) -> None:
        self.connection = event.container.connect(urls=self.urls, reconnect=[0.02] * 1000)
        if self.sends:
            event.container.schedule(0.003, self)

    def on_connection_opened(self, event: Any) -> None:
        make = event.container.create_sender if self.sends else event.container.create_receiver
        self.link = make(event.connection, self.address)

    def on_disconnected(self, event: Any) -> None:
        if self.link is not None:
            self.link.free()
            self.link = None
        self.again = list(self.unsettled)

    def on_timer_task(self, event: Any) -> None:
        for _ in range(5):
            if self.link is None or not self.link.credit or (not self.again and self.next == self.count):
                break
            number = self.again.pop(0) if self.again else self.next
            self.next = max(self.next, number + 1)
            self.unsettled[number] = None
            self.link.send(Message(body=number, durable=True), tag=str(number))
        if len(self.seen) < self.count:
            event.container.schedule(0.003, self)

    def on_accepted(self, event: Any) -> None:
        number = int(event.delivery.tag)
        self.unsettled.pop(number, None)
        self._note(number)

    def on_message(self, event: Any) -> None:
        self._note(event.message.body)

    def _note(self, number: int) -> None:
        if number not in self.seen:
            self.seen.add(number)
            print(len(self.seen), flush=True)
        if len(self.seen) == self.count:
            self.connection.close()


if __name__ == "__main__":
    Container(Client(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))).run()
