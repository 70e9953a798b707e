"""A client on python-qpid-proton's Container with a selector: select_container.py HOST:PORT QUEUE TOPIC.

It receives with a selector from a queue and from a topic, sends numbered messages to both, prints the numbers that came from each
when the last has come from both, as JSON, and ends.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container, Selector

LAST = 9


class Client(MessagingHandler):
    """Sends when both of its receivers are there."""

    def __init__(self, address: str, *nodes: str) -> None:
        super().__init__()
        self.address = address
        self.got: dict[str, list[Any]] = {node: [] for node in nodes}
        self.open = 0

    def on_start(self, event: Any) -> None:
        self.connection = event.container.connect(f"amqp://{self.address}", reconnect=False)
        for node in self.got:
            event.container.create_receiver(self.connection, node, options=Selector("colour = 'red' AND n > 2"))

    def on_link_opened(self, event: Any) -> None:
        self.open += event.link.is_receiver
        if event.link.is_receiver and self.open == len(self.got):
            for node in self.got:
                event.container.create_sender(self.connection, node)

    def on_sendable(self, event: Any) -> None:
        if not event.link.queued and not getattr(event.link, "context", None):
            event.link.context = "sent"
            for n in range(LAST + 1):
                event.link.send(Message(body=n, properties={"n": n, "colour": "red" if n % 2 else "blue"}))

    def on_message(self, event: Any) -> None:
        self.got[event.link.source.address].append(event.message.body)
        if all(LAST in numbers for numbers in self.got.values()):
            print(json.dumps(self.got), flush=True)
            self.connection.close()


if __name__ == "__main__":
    Container(Client(*sys.argv[1:])).run()
