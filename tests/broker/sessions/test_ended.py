"""What a connection leaves behind that has ended: nothing, without the garbage collector.

That stands still for tens of milliseconds when a flood of connections has left it thousands of objects that keep each other.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from twisted.internet import defer
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IReactorTime
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from broker.core import sasl, values
from broker.core.door import HEADER
from broker.core.identity import Socket
from broker.core.users import SHA_256, Users, derive
from broker.sessions.authentication import Authentication
from tests.broker.clients import Bench, bench
from tests.broker.core.stream import BEGIN, OPEN, attach, init, transfer

GONE = Failure(ConnectionDone())
SCRAM = init("SCRAM-SHA-256", values.encode(b"n,,n=user,r=abcdefghijklmnop"))
PLAIN = init("PLAIN", values.encode(b"\0user\0wrong"))


def authentication(clock: IReactorTime) -> Authentication:
    """That of a broker with a user, and passwords that are looked at at once."""
    users = Users({"user": {SHA_256: derive(SHA_256, "password", bytes(16))}}, bytes(16))
    mechanisms = ("SCRAM-SHA-256", "PLAIN", "ANONYMOUS")

    def at_once(work: Any) -> defer.Deferred[bytes]:
        return defer.succeed(work())

    return Authentication(clock, at_once, lambda: "nonce", demanded=True, users=users, mechanisms=mechanisms, plain_in_clear=True)


def come_and_go(b: Bench, says: bytes) -> list[weakref.ref[Any]]:
    """A connection that says this and ends. Returns what it consisted of."""
    connection = b.broker.new_connection(Socket("10.0.0.1:5"))
    assert connection is not None
    transport: Any = StringTransport()
    transport.abortConnection = lambda: None
    connection.makeConnection(transport)
    connection.dataReceived(says)
    b.settle()
    parts = (connection, connection.engine, connection.session, connection.engine.login)
    transport.producer = transport.protocol = None  # as a socket does
    connection.connectionLost(GONE)
    return [weakref.ref(part) for part in parts]


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(sasl.HEADER, id="nothing"),
        pytest.param(sasl.HEADER + SCRAM, id="scram"),
        pytest.param(sasl.HEADER + PLAIN, id="a wrong password"),
        pytest.param(sasl.HEADER + PLAIN + PLAIN, id="a wrong password and more"),
        pytest.param(sasl.HEADER + init() + HEADER + OPEN + BEGIN, id="a session"),
        pytest.param(sasl.HEADER + init() + HEADER + OPEN + BEGIN + attach(0) + transfer(b"\0Sw@"), id="a message"),
    ],
)
def test_a_connection_that_has_ended_needs_no_garbage_collector(says: bytes) -> None:
    with bench(authentication=authentication) as b:
        b.queue("q")
        gc.disable()
        try:
            for _ in range(8):  # from the fourth failure on, logins wait
                left = come_and_go(b, says)
                assert [part() for part in left] == [None] * 4
        finally:
            gc.enable()
