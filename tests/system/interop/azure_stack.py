"""Clients on what Azure's libraries for Python speak AMQP with: azure_stack.py send|receive HOST:PORT,... QUEUE COUNT, which
outlive their broker, and azure_stack.py types HOST:PORT EXCHANGE QUEUE CHOSEN (see `values`).

It has no list of addresses and connects once: a program goes on to the next address itself. A sender sends numbered messages one
by one; one whose outcome was not heard is sent again. A receiver counts the different numbers that come.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from itertools import cycle
from typing import Any

from azure.servicebus._pyamqp import sasl
from azure.servicebus._pyamqp._connection import Connection
from azure.servicebus._pyamqp.constants import ConnectionState, LinkState, SenderSettleMode
from azure.servicebus._pyamqp.endpoints import Source
from azure.servicebus._pyamqp.message import Header, Message, Properties
from azure.servicebus._pyamqp.outcomes import Accepted

PATIENCE_S = 30.0
RETRY_S = 0.02
CREDIT = 50
CHOSEN = "uuid"
SELECTOR = b"apache.org:selector-filter:string"
VALUES: dict[str, Any] = {
    "true": True,
    "int": -(1 << 31),
    "double": -0.25,
    "uuid": uuid.UUID(bytes=bytes(range(16))),
    "binary": b"\x00\xff",
    "string": "\N{SNOWMAN} and snow",
    "list": ["one", True, ["nested"]],
    "map": {"one": "first", "two": ["second"]},
    "large": b"\xa5" * 3_000_000,
}
"""Those of `values.VALUES` that it writes: it has one type for each of Python's, and leaves out a body that is false."""
HEADER = Header(durable=True, priority=7)
PROPERTIES = Properties(
    "the id", None, None, "a subject", "answers", "the question", "text/x-made-up", group_id="a group", group_sequence=3
)


class Lost(Exception):
    """The connection is not there any more, or what was waited for does not come."""


class Client:
    """A connection with one session. Everything waits until it is done."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        credential = sasl.SASLAnonymousCredential()
        transport = sasl.SASLTransport(host, credential, port=int(port), use_tls=False, socket_timeout=0.05)
        self.connection = Connection(f"amqp://{address}", transport=transport, sasl_credential=credential)
        self.came: deque[Any] = deque()
        self._try(lambda: self.connection.open(wait=True))
        self._until(lambda: self.connection.state == ConnectionState.OPENED)
        self.session = self.connection.create_session(incoming_window=65_536, outgoing_window=65_536)
        self._try(self.session.begin)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # what it raises has no base of its own
            raise Lost(repr(error)) from error

    def _until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            if self.connection.state in (ConnectionState.END, ConnectionState.CLOSE_RCVD) or time.monotonic() > deadline:
                raise Lost(str(self.connection.state))
            self._try(self.connection.listen)

    def _attached(self, link: Any) -> Any:
        self._try(link.attach)
        self._until(lambda: link.state == LinkState.ATTACHED)
        return link

    def sender(self, address: str) -> Any:
        """A link to this node."""
        return self._attached(self.session.create_sender_link(address, send_settle_mode=SenderSettleMode.Unsettled))

    def receive_from(self, source: Any) -> None:
        """Have messages come from there; they are accepted as they come."""

        def take(frame: Any, message: Any) -> None:
            self.came.append(message)
            if link.current_link_credit <= CREDIT // 2:  # it does not ask for more itself
                link.flow(link_credit=CREDIT)
            link.send_disposition(first_delivery_id=frame[1], delivery_tag=frame[2], settled=True, delivery_state=Accepted())

        link = self.session.create_receiver_link(source, link_credit=CREDIT, on_transfer=take)
        self._attached(link)

    def send(self, link: Any, message: Message) -> None:
        """Send it, and wait until it is accepted."""
        outcomes: list[Any] = []
        self._try(lambda: link.send_transfer(message, on_send_complete=lambda _, state: outcomes.append(state)))
        self._until(lambda: outcomes)
        if not outcomes[0] or "accepted" not in outcomes[0]:
            raise Lost(str(outcomes[0]))

    def receive(self) -> Any:
        """The next message."""
        self._until(lambda: self.came)
        return self.came.popleft()


def note(number: int, seen: set[int]) -> None:
    if number not in seen:
        seen.add(number)
        print(len(seen), flush=True)


def outlive(role: str, addresses: str, queue: str, count: int) -> None:
    """Over as many connections as it takes."""
    seen: set[int] = set()
    for address in cycle(addresses.split(",")):
        try:
            client = Client(address)
            if role == "receive":
                client.receive_from(queue)
            link = client.sender(queue) if role == "send" else None
            while len(seen) < count:
                number = len(seen)
                if link is None:
                    number = int(client.receive().value)
                else:
                    client.send(link, Message(value=str(number)))
                note(number, seen)
            return
        except Lost as error:
            print(f"client: {address}: {error}", file=sys.stderr)
            time.sleep(RETRY_S)


def text(value: Any) -> Any:
    """What it has read, which has bytes for texts, as it was written."""
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if isinstance(value, list):
        return [text(each) for each in value]
    return {text(key): text(each) for key, each in value.items()} if isinstance(value, dict) else value


def types(address: str, exchange: str, queue: str, chosen: str) -> None:
    """Send each, and look at what comes."""
    client = Client(address)
    link = client.sender(exchange)
    for name, value in VALUES.items():
        body: dict[str, Any] = {"value": value}
        client.send(link, Message(HEADER, properties=PROPERTIES, application_properties={"name": name}, **body))
    client.receive_from(queue)
    same = []
    for name, value in VALUES.items():
        found = client.receive()
        properties = Properties(*map(text, found.properties))
        header = found.header[:2] == HEADER[:2] and properties == PROPERTIES
        if header and text(found.application_properties) == {"name": name} and text(found.value) == text(value):
            same.append(name)
        else:
            print(f"client: {name}: {found!r:.500}", file=sys.stderr)
    client.receive_from(Source(address=chosen, filters={SELECTOR: (SELECTOR, f"name = '{CHOSEN}'")}))
    print(json.dumps({"same": same, "chosen": [text(client.receive().application_properties)["name"]]}), flush=True)
    client.connection.close()


if __name__ == "__main__":
    if sys.argv[1] == "types":
        types(*sys.argv[2:])
    else:
        outlive(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
