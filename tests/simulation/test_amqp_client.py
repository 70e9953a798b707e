"""The simulated clients' end of a connection: what it reports of a broker that is right, and of one that ignores
credit.
"""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from broker.amqp.engine import Engine
from broker.amqp.links import Link
from tests.broker.amqp.pairs import Listener
from tests.broker.core.stream import transfer
from tests.simulation.amqp_client import ACCEPTED, ClientConnection

MESSAGE = b"\x00\x53\x75\xa0\x02hi"


class User:
    """Takes each message, and gives credit back as it is told to. Fulfils LinkUser."""

    name, queue = "bob", "q"

    def __init__(self, grants: bool) -> None:
        self.reactor = Clock()
        self.grants = grants
        self.came = 0
        self.beyond: list[int] = []
        self.connection: Any = None

    def usable(self) -> None: ...
    def credit(self) -> None: ...
    def outcome(self, delivery: Any, outcome: int) -> None: ...
    def settled(self, delivery: Any) -> None: ...

    def taken_back(self, delivery: Any) -> None: ...
    def over(self, *, opened: bool, reason: str) -> None: ...

    def message(self, delivery: Any, data: bytes) -> None:
        self.came += 1
        self.connection.dispose(delivery, ACCEPTED, settle=True)
        if self.grants:
            self.connection.grant(1)

    def overdrawn(self, count: int) -> None:
        self.beyond.append(count)


class Broker(Listener):
    """The broker's end: an engine, and a way around it."""

    def __init__(self, user: User, credit: int, *, settled: bool = False) -> None:
        self.link: Any = None
        self.engine = Engine(self, server=True, container="broker")
        self.transport = StringTransport()
        self.client = user.connection = ClientConnection(
            user, credit=credit, browse=False, idle_s=2.0, max_frame=65536, settled=settled
        )
        self.client.makeConnection(self.transport)
        for _ in range(4):
            self.exchange()

    def exchange(self) -> None:
        """Each end hears what the other has said."""
        self.engine.push(self.transport.value())
        self.transport.clear()
        self.engine.drain()
        self.client.dataReceived(b"".join(self.engine.take_output()))

    def send(self, count: int) -> None:
        """So many messages, as the engine lets them go, all in one flight."""
        for _ in range(count):
            self.link.send_one(MESSAGE, None, True)
        self.exchange()

    def force(self, *numbers: int) -> None:
        """Messages with these numbers, whatever the engine says, all in one flight."""
        self.client.dataReceived(b"".join(transfer(MESSAGE, number=number, settled=True, more=False) for number in numbers))

    def end(self) -> None:
        self.client.release()
        self.engine.free()

    def on_open(self, engine: Engine) -> None:
        engine.open()

    def on_link(self, engine: Engine, link: Link) -> None:
        self.link = link
        link.accept()


@pytest.mark.parametrize("grants", [False, True])
def test_a_message_that_came_without_credit_is_told_of_and_credit_that_has_not_left_is_none(grants: bool) -> None:
    """Breaks when credit counts from the moment when it is meant, and not when it has left: a client that gives one back for each
    message would never see that it got too many at once."""
    user = User(grants)
    broker = Broker(user, credit=3)
    broker.send(3)
    assert (user.came, user.beyond) == (3, [])
    if grants:
        broker.exchange()
        broker.send(3)
        assert (user.came, user.beyond) == (6, [])
    broker.force(*range(user.came, user.came + 3 * grants + 2))
    assert user.beyond == [1, 2]
    broker.end()


def test_what_goes_over_a_settled_link_is_settled_in_both_directions() -> None:
    """Breaks when the broker is left to say what became of it: those would not be the messages that may get lost."""
    receiving = Broker(User(grants=False), credit=3, settled=True)
    assert receiving.link.presettled
    receiving.end()
    sending = Broker(User(grants=False), credit=0, settled=True)
    sending.link.flow(5)
    sending.exchange()
    sending.client.send(b"hi")
    sending.client.flush()
    sending.exchange()
    assert sending.link.inbox == [MESSAGE]
    assert not sending.client.unsettled
    sending.end()
