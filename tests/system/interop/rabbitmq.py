"""Clients on RabbitMQ's AMQP 1.0 client for Python: rabbitmq.py send|receive URL,... QUEUE COUNT, which outlives its broker, and
rabbitmq.py types URL EXCHANGE QUEUE CHOSEN (see `values`; it has bodies of bytes alone, and no selectors).

Its connection takes a list of URLs, and tells its program when the broker is killed: the program makes another connection, by the
same list. A sender sends numbered messages one by one; one whose outcome was not heard is sent again. A receiver counts the
different numbers that come. Both print their count whenever it has grown, and end when it is COUNT.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rabbitmq_amqp_python_client import (
    AddressHelper,
    AMQPMessagingHandler,
    Connection,
    ConnectionClosed,
    Environment,
    Event,
    ExchangeSpecification,
    ExchangeToQueueBindingSpecification,
    ExchangeType,
    Message,
    QuorumQueueSpecification,
)
from rabbitmq_amqp_python_client.qpid.proton import ProtonException

RETRY_S = 0.02


class Numbers(AMQPMessagingHandler):  # type: ignore[misc]
    """Counts the different numbers that come."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.seen: set[int] = set()
        self.count = count

    def on_message(self, event: Event) -> None:
        """Accept it, and note its number. (Its own `on_message`, which calls `on_amqp_message`, fails on a message without
        annotations, which RabbitMQ has none of.)"""
        self.delivery_context.accept(event)
        note(int(event.message.body), self.seen)


def note(number: int, seen: set[int]) -> None:
    if number not in seen:
        seen.add(number)
        print(len(seen), flush=True)


def send(connection: Connection, queue: str, numbers: Numbers) -> None:
    publisher = connection.publisher(AddressHelper.queue_address(queue))
    while len(numbers.seen) < numbers.count:
        number = len(numbers.seen)
        publisher.publish(Message(body=b"%d" % number, inferred=True, durable=True))
        note(number, numbers.seen)


def receive(connection: Connection, queue: str, numbers: Numbers) -> None:
    connection.consumer(AddressHelper.queue_address(queue), message_handler=numbers, credit=50)
    waiting: Any = connection._conn  # the consumer's own `run` does not end when a broker is killed
    waiting.wait(lambda: len(numbers.seen) == numbers.count, timeout=None)
    connection.close()


VALUES = {"binary": b"\x00\xff", "large": b"\xa5" * 3_000_000}
HEADER: dict[str, Any] = {"durable": True, "priority": 7, "id": "the id", "correlation_id": "the question", "group_id": "a group"}
HEADER |= {"subject": "a subject", "reply_to": "answers", "content_type": "text/x-made-up", "group_sequence": 3}


class Same(AMQPMessagingHandler):  # type: ignore[misc]
    """Compares what comes with what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.same: list[str] = []
        self.count = 0

    def on_message(self, event: Event) -> None:
        """Accept it, and look at it."""
        self.delivery_context.accept(event)
        message, self.count = event.message, self.count + 1
        name = message.application_properties["name"]
        if bytes(message.body) == VALUES[name] and all(getattr(message, field) == value for field, value in HEADER.items()):
            self.same.append(name)


def types(url: str, exchange: str, queue: str) -> None:
    """Make nodes and delete them; send each, and look at what comes."""
    connection = Environment(uri=url).connection()
    connection.dial()
    management = connection.management()
    for _ in range(2):  # to declare what is there is what its programs do
        management.declare_queue(QuorumQueueSpecification(name=f"{queue}-own"))
        management.declare_exchange(ExchangeSpecification(name=f"{exchange}-own", exchange_type=ExchangeType.topic))
    ends = ExchangeToQueueBindingSpecification(
        source_exchange=f"{exchange}-own", destination_queue=f"{queue}-own", binding_key="a.#"
    )
    path = management.bind(ends)
    own = connection.publisher(AddressHelper.exchange_address(f"{exchange}-own", "a.b"))
    own.publish(Message(body=b"own", inferred=True))
    own.close()  # else it would end with its exchange, and this client takes the end of any link for a failure
    assert management.queue_info(f"{queue}-own").message_count == 1
    management.unbind(path)
    management.delete_queue(f"{queue}-own")
    management.delete_exchange(f"{exchange}-own")
    publisher, same = connection.publisher(AddressHelper.exchange_address(exchange)), Same()
    for name, value in VALUES.items():
        publisher.publish(Message(body=value, inferred=True, application_properties={"name": name}, **HEADER))
    connection.consumer(AddressHelper.queue_address(queue), message_handler=same)
    waiting: Any = connection._conn
    waiting.wait(lambda: same.count == len(VALUES))
    print(json.dumps({"same": same.same, "chosen": []}), flush=True)
    connection.close()


def main(role: str, urls: str, queue: str, count: int) -> None:
    """Do it over as many connections as it takes."""
    environment, numbers = Environment(uris=urls.split(",")), Numbers(count)
    while len(numbers.seen) < count:
        try:
            connection = environment.connection()
            connection.dial()
            (send if role == "send" else receive)(connection, queue, numbers)
        except (ProtonException, ConnectionClosed) as error:
            print(f"client: {type(error).__name__}: {error}", file=sys.stderr)
            time.sleep(RETRY_S)


if __name__ == "__main__":
    if sys.argv[1] == "types":
        types(f"amqp://{sys.argv[2]}", sys.argv[3], sys.argv[4])
    else:
        main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
