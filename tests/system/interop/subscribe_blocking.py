"""A client on python-qpid-proton's BlockingConnection with a durable subscription and a temporary queue:
subscribe_blocking.py HOST:PORT TOPIC.

It does what subscribe.js does, with the library's own option for durable subscriptions.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from proton import Link, Message, Terminus, symbol
from proton.reactor import Container, DurableSubscription, LinkOption
from proton.utils import BlockingConnection, LinkDetached

NAME = "news|global"


class Capabilities(LinkOption):
    """What the terminus at the broker's end is to be."""

    def __init__(self, *names: str) -> None:
        self.names = [symbol(each) for each in names]

    def apply(self, link: Link) -> None:
        (link.target if link.is_sender else link.source).capabilities.put_object(self.names)


class DynamicTarget(LinkOption):
    """A node that the broker is to make."""

    def apply(self, link: Link) -> None:
        link.target.dynamic = True
        link.target.properties.put_dict({symbol("supported-dist-modes"): symbol("move")})


class NoSource(LinkOption):
    """Asks for what stands under the link's name."""

    def apply(self, link: Link) -> None:
        link.source.type = Terminus.UNSPECIFIED


def main(address: str, topic: str) -> None:
    got: dict[str, Any] = {}
    options = [DurableSubscription(), Capabilities("topic", "shared", "global")]

    def connected() -> Any:
        container = Container()
        container.container_id = "proton-subscriber"
        return BlockingConnection(f"amqp://{address}", container=container, timeout=30)

    away = connected()
    away.create_receiver(topic, credit=0, name=NAME, options=options).link.detach()
    away.close()
    connection = connected()
    sender = connection.create_sender(topic)
    for body in (1, 2, 3):
        sender.send(Message(body=body))
    receiver = connection.create_receiver(topic, credit=3, name=NAME, options=options)
    got["back"] = [receiver.receive(timeout=30).body for _ in range(3)]
    for _ in range(3):
        receiver.accept()
    connection.close()
    connection = connected()
    found = connection.create_receiver(None, name=NAME, options=NoSource())
    got["found"] = found.link.remote_source.address
    found.close()
    try:
        connection.create_receiver(None, name=NAME, options=NoSource())
    except LinkDetached as detached:
        got["missing"] = str(detached.condition)
    made = connection.create_sender(None, options=[DynamicTarget(), Capabilities("temporary-queue")])
    connection.create_sender(made.link.remote_target.address).send(Message(body="for a time"))
    got["temporary"] = [connection.create_receiver(made.link.remote_target.address).receive(timeout=30).body]
    print(json.dumps(got), flush=True)
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
