"""A consumer that continues over failovers: it takes messages from queues of a cluster, from whichever broker serves them,
and keeps an account of them.

Life: a thread connects to one address after the other until one accepts it (a backup does not). It attaches to each queue,
accepts messages, and waits for the broker's confirmation. When the connection ends it looks for the next primary. Messages
that it accepted without a confirmation may come again, and the checker knows this. `close` ends it in order: it takes no more
messages, and waits for the missing confirmations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import proton
from proton import Delivery, Handler
from proton.reactor import Container

from cli.verify.core.checker import Checker

_LOOK_S = 0.1
_CREDIT = 200


class _Connection(Handler):
    """One connection's life."""

    def __init__(self, taker: Taker, address: str) -> None:
        super().__init__()
        self._taker = taker
        self._address = address
        self._links: dict[str, int] = {}
        self._unconfirmed: dict[Any, tuple[int, int]] = {}
        self._connection: Any = None
        self._looks = 0

    def on_reactor_init(self, event: Any) -> None:
        self._connection = event.container.connect(url=self._address, reconnect=False, heartbeat=10)
        for at, queue in enumerate(self._taker.queues):
            link = event.container.create_receiver(self._connection, queue, name=f"taker-{at}")
            self._links[link.name] = at
            link.flow(_CREDIT)
        event.container.schedule(_LOOK_S, self)

    def on_delivery(self, event: Any) -> None:
        delivery, link = event.delivery, event.link
        if delivery.readable and not delivery.partial and link.name in self._links:
            at = self._links[link.name]
            number = self._taker.came(at, bytes(link.recv(delivery.pending)))
            link.advance()
            delivery.update(Delivery.ACCEPTED)
            self._unconfirmed[delivery.tag, link.name] = at, number
            if not self._taker.ending.is_set():
                link.flow(1)
        if delivery.settled:
            self._unconfirmed.pop((delivery.tag, link.name), None)
            delivery.settle()

    def on_timer_task(self, event: Any) -> None:
        if self._taker.ending.is_set():
            self._looks += 1
            if not self._unconfirmed or self._looks > 100:
                self._connection.close()
                return
        event.container.schedule(_LOOK_S, self)

    def on_link_remote_close(self, event: Any) -> None:
        """There is no such queue: what comes on the other links meanwhile is not accepted, and goes back with the connection."""
        self._links.clear()
        self._connection.close()

    def on_transport_closed(self, event: Any) -> None:
        """Not before: a connection that is left open has messages."""
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for at, number in unconfirmed.values():
            self._taker.checker.unconfirmed((0, at), number)
        event.container.stop()


class Taker:
    """See the module. `made` says how each message, of a queue and with its number as its id, was sent."""

    def __init__(self, addresses: Sequence[str], queues: Sequence[str], checker: Checker, made: Callable[[str, int], bytes]):
        self.queues = list(queues)
        self.checker = checker
        self.ending = threading.Event()
        self.taken = self.connections = 0
        self._made = made
        self._addresses = list(addresses)
        checker.attached(0, 0.0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for address in cycle(self._addresses):
            if self.ending.is_set():
                return
            before = self.taken
            Container(_Connection(self, address)).run()
            self.connections += self.taken > before
            self.ending.wait(_LOOK_S)

    def came(self, at: int, data: bytes) -> int:
        """A message of that queue. Returns its number."""
        message: Any = proton.Message()
        message.decode(data)
        number = int(message.id)
        self.taken += 1
        self.checker.received(0, (0, at), number, 1, 1.0)
        if data != self._made(self.queues[at], number):
            self.checker.altered((0, at), number)
        return number

    def close(self) -> None:
        """End it."""
        self.ending.set()
        self._thread.join()
