"""Two brokers in memory: one leaves, the other takes its messages over; and a drainer's links to both."""

from __future__ import annotations

from typing import Any

import proton
from cproton_ffi import ffi, lib

from broker.core.origins import Held
from broker.sessions.origins import origin_address
from tests.broker.clients import ADMIN, Bench, Client

DRAIN, STORE, QUEUE = "drain-1", "store-1", "queue-1"
"""The names of an origin, as the target hears of it."""


def tagged(sequence: int) -> bytes:
    """The tag of a delivery that has this sequence."""
    return sequence.to_bytes(8, "big")


def send(client: Client, link: Any, sequence: int, data: bytes, traits: bytes = b"") -> None:
    """Send a message of an origin. Proton's Python takes no tag of bytes, so this calls what it calls."""
    tag = ffi.new("char[]", tagged(sequence) + traits)
    lib.pn_delivery(link._impl, {"size": 8 + len(traits), "start": tag})
    link.stream(data)
    link.advance()


def tag_of(delivery: Any) -> bytes:
    """The tag of a delivery that has come."""
    found = lib.pn_delivery_tag(delivery._impl)
    return bytes(ffi.buffer(found.start, found.size))


def body(text: Any) -> bytes:
    return bytes(proton.Message(body=text).encode())


class Taking:
    """A target with the queue `q`, to which messages of an origin come."""

    def __init__(self, bench: Bench, **attributes: Any) -> None:
        self.bench = bench
        bench.queue("q", **attributes)
        self.client = bench.client(ADMIN)
        self.ask("TAKE", store=STORE, queue=QUEUE, into="q")

    def ask(self, operation: str, **body: Any) -> tuple[int, str, Any]:
        client = self.bench.client(ADMIN)
        answer = client.request(operation, "drain", "", {"drain": DRAIN} | body)
        client.connection.close()
        self.bench.settle()
        return answer

    def link(self) -> Any:
        return self.client.sender(origin_address(DRAIN, QUEUE))

    def send(self, link: Any, *sequences: int, size: int = 0) -> None:
        for sequence in sequences:
            send(self.client, link, sequence, body(f"{sequence}" + "x" * size))
        self.bench.settle()

    @property
    def held(self) -> Held:
        (found,) = self.bench.lead.ledger.state.held.values()
        return found

    def bodies(self) -> list[str]:
        """What is on the queue, as a browser sees it."""
        client = self.bench.client(ADMIN)
        link = client.receiver("q", browse=True, credit=10_000)
        found = [each.rstrip("x") for each in client.bodies(link)]
        client.connection.close()
        self.bench.settle()
        return found
