"""Links to other members where logins are demanded: who has not shown that it is a broker replicates nothing."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactor, StringTransport
from twisted.python.failure import Failure

from broker.core import users
from broker.core.commands import MACHINE_VERSION
from broker.core.identity import Socket
from broker.core.users import SHA_256, Users
from broker.sessions.authentication import Authentication
from ha.core.membership import Membership
from ha.core.versions import Versions
from ha.net.peers import PEER_PROPERTY, TICK_S, IncomingPeer, Peers
from tests.broker.clients import Bench, bench

USERS = Users({name: {SHA_256: users.derive(SHA_256, "secret", b"salt" * 4)} for name in ("ann", "brokers")}, b"nobody knows")
OTHER, ME = "10.0.0.2:5672", "10.0.0.1:5672"


def demanding(clock: Clock) -> Authentication:
    return Authentication(clock, maybeDeferred, lambda: "nonce", demanded=True, users=USERS)


def peers(b: Bench, user: str) -> Any:
    reactor: Any = MemoryReactor()
    made: Any = Peers(
        reactor,
        b.clock,
        me=ME,
        broker_id="broker-1",
        events=None,  # type: ignore[arg-type]
        silence_s=2.0,
        cluster_id=lambda: "",
        members=lambda: Membership.of([ME, OTHER]),
        versions=Versions(MACHINE_VERSION),
        cluster_version=lambda: 1,
        user=user,
    )
    b.broker.admission.roles[PEER_PROPERTY] = made
    return made


@pytest.mark.parametrize("user, taken", [("brokers", True), ("ann", False)])
def test_only_the_user_of_the_brokers_replicates_where_logins_are_demanded(user: str, taken: bool) -> None:
    with bench(authentication=demanding) as b:
        made = peers(b, "brokers@QPID")
        socket = Socket("10.0.0.2:1", encrypted=True)
        client = b.client({PEER_PROPERTY: OTHER}, mechanism="PLAIN", user=user, password="secret", socket=socket)
        assert isinstance(getattr(client.server, "session", None), IncomingPeer) is taken
        assert (OTHER in made.incoming) is taken
        condition = client.connection.remote_condition
        said = None if condition is None else (condition.name, condition.description)
        refused = ("amqp:unauthorized-access", "ann@QPID is not the user of links between brokers (--ha-username)")
        assert said == (None if taken else refused)
        made.stop()


def test_a_name_that_nothing_has_shown_is_not_enough() -> None:
    """With `--auth no` PLAIN is taken at its word. Breaks when the name alone counts."""
    with bench() as b:
        made = peers(b, "brokers@QPID")
        client = b.client({PEER_PROPERTY: OTHER}, mechanism="PLAIN", user="brokers", password="whatever")
        assert client.server.principal.user == "brokers@QPID"
        assert made.incoming == {}


def test_where_no_login_is_demanded_members_are_taken_as_before() -> None:
    with bench() as b:
        made = peers(b, "")
        b.client({PEER_PROPERTY: OTHER})
        assert list(made.incoming) == [OTHER]
        made.stop()


def test_a_member_that_takes_the_connection_and_says_nothing_is_tried_again() -> None:
    """Its host went away in the middle of the login. The link to it stood still for ever, and it stayed `joining` when it was
    back."""
    with bench() as b:
        made = peers(b, "")
        made.set_members(Membership.of([ME, OTHER]))
        reactor = made.reactor
        ((_, _, link, *_),) = reactor.tcpClients
        connection: Any = link.buildProtocol(None)
        transport = StringTransport()
        connection.makeConnection(transport)
        ended = []
        for _ in range(12):
            b.clock.advance(TICK_S)
            made.tick()
            ended.append(transport.disconnected)
        assert ended.index(True) in (10, 11), "after silence_s, from the first tick on"
        connection.connectionLost(Failure(ConnectionDone()))
        b.clock.advance(1)
        assert len(reactor.tcpClients) == 2
        told = "exchanges no messages with this broker: it accepts the connection but does not answer; its log may say why"
        assert made.trouble() == {OTHER: told}
        made.stop()
