"""Links between brokers over TLS: nobody is taken for a member who has not its certificate, in either direction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock

from broker.core import sasl, values
from broker.core.door import HEADER
from broker.core.identity import Certificate, Socket
from broker.core.sasl_client import Login
from broker.core.tokens import Rules, Tokens, parse_keys
from broker.net.credentials import Credentials
from broker.sessions.authentication import Authentication
from broker.sessions.principal import Principal
from broker.tls_files import TlsFiles
from ha.core.membership import Membership
from ha.core.versions import Versions
from ha.net.peers import PEER_PROPERTY, Peers
from tests.broker.clients import Bench, Client, bench, condition
from tests.broker.core.stream import init
from tests.broker.net.visitor import Visitor
from tests.certificates import CLIENT, authority
from tests.ha.net.name_server import NameServer
from tests.tokens import AUDIENCE, ISSUER, NOW_S, key_set, token

ME, OTHER, THIRD = "broker1:5671", "broker2:5671", "broker3:5671"
CLUSTER_ID = "the cluster's id"


class Events:
    """Who is told of the links."""

    def __init__(self) -> None:
        self.up: list[str] = []

    def connected(self, peer: str) -> None:
        self.up.append(peer)

    def disconnected(self, peer: str) -> None:
        self.up.remove(peer)

    def receive(self, peer: str, message: Any, payload: Any) -> None:
        raise AssertionError("nothing was sent")

    def heard(self, peer: str) -> None:
        pass


def peers_of(folder: Path, **options: Any) -> Peers:
    """The links of broker1, with a certificate of its own."""
    certificate, key = authority().issue("broker1", "broker1").write(folder, "broker1")
    reactor = MemoryReactorClock()
    return Peers(
        reactor,
        reactor,
        me=ME,
        broker_id="b1",
        events=Events(),
        silence_s=2.0,
        cluster_id=lambda: CLUSTER_ID,
        members=lambda: Membership.of([ME, OTHER, THIRD]),
        versions=Versions(1),
        cluster_version=lambda: 1,
        names=NameServer({"broker2": ["192.0.2.2"], "broker3": ["192.0.2.3"]}).names,
        credentials=Credentials(TlsFiles(certificate, key, authorities=authority().write(folder))),
        **options,
    )


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    made = peers_of(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def broker(peers: Peers) -> Iterator[Bench]:
    """The broker that these links belong to."""
    with bench() as made:
        made.broker.admission.roles[PEER_PROPERTY] = peers
        yield made


def knocks(broker: Bench, socket: Socket, says: str = OTHER, **login: Any) -> Client:
    """Who opens a connection by this socket and says that it is that member."""
    properties = Versions(1).properties() | {PEER_PROPERTY: says, "qpid.ha-cluster": CLUSTER_ID}
    client = Client(broker, properties, socket=socket, **login)
    broker.clients.append(client)
    return client.open()


def over_tls(**told: Any) -> Socket:
    return Socket("192.0.2.2:40000", True, Certificate("CN=somebody", **told))


def test_a_member_with_its_own_certificate_is_taken(broker: Bench, peers: Peers) -> None:
    client = knocks(broker, over_tls(dns_names=("broker2",)))
    assert condition(client.connection) == ""
    assert list(peers.incoming) == [OTHER]


@pytest.mark.parametrize(
    "socket",
    [
        Socket("192.0.2.2:40000"),
        Socket("192.0.2.2:40000", encrypted=True),
        over_tls(dns_names=("broker2",), serves=False),
        over_tls(dns_names=("broker3",)),
        over_tls(common_name="app"),
    ],
    ids=["in the clear", "no certificate", "a client's", "another broker's", "a stranger's"],
)
def test_nobody_else_replicates_as_that_member(broker: Bench, peers: Peers, socket: Socket) -> None:
    """Breaks when a client's certificate, or another broker's, is enough; or when who is refused learns of the cluster."""
    client = knocks(broker, socket)
    assert condition(client.connection) == "amqp:unauthorized-access"
    assert peers.incoming == {}
    assert OTHER in peers.refusals()
    assert CLUSTER_ID not in str(client.connection.remote_properties)
    assert CLUSTER_ID not in str(client.connection.remote_condition)


def test_who_says_that_it_is_nobody_in_particular_is_kept_nowhere(broker: Bench, peers: Peers) -> None:
    """Breaks when strangers can fill the memory with names."""
    for number in range(10):
        client = knocks(broker, over_tls(dns_names=("x",)), says=f"x{number}:1:2")
        assert condition(client.connection) == "amqp:unauthorized-access"
    assert peers.refusals() == {}


def test_a_member_that_is_taken_in_the_end_is_refused_no_more(broker: Bench, peers: Peers) -> None:
    knocks(broker, over_tls(dns_names=("broker3",)))
    assert "certificate of broker3" in peers.refusals()[OTHER]
    knocks(broker, over_tls(dns_names=("broker2",)))
    assert peers.refusals() == {}


@pytest.mark.parametrize("says", ["x:1:2", "amqp:broker4:5671", "broker4", "a:1,b:2"])
def test_who_has_no_address_is_no_member_though_it_knows_the_cluster(broker: Bench, peers: Peers, says: str) -> None:
    """Breaks when a link is begun to what cannot be reached, and the attempt breaks off in the midst of the answer."""
    peers.credentials = None
    client = knocks(broker, Socket("192.0.2.2:40000"), says=says)
    assert condition(client.connection) == "amqp:not-allowed"
    assert "is not an address of a broker" in str(client.connection.remote_condition.description)


def demanding(clock: Clock) -> Authentication:
    """By certificate or by token."""
    tokens = Tokens(Rules(ISSUER, AUDIENCE), lambda: NOW_S)
    tokens.keys = parse_keys(key_set("ES256"))
    return Authentication(clock, maybeDeferred, lambda: "nonce", demanded=True, tokens=tokens)


def test_where_logins_are_demanded_a_member_logs_in_by_its_certificate_alone(peers: Peers) -> None:
    """It is both: who it is for access control, and which member."""
    with bench(authentication=demanding) as broker:
        broker.broker.admission.roles[PEER_PROPERTY] = peers
        socket = over_tls(dns_names=("broker2",), common_name="broker2")
        taken = knocks(broker, socket, mechanism="EXTERNAL")
        assert (condition(taken.connection), list(peers.incoming)) == ("", [OTHER])
        assert taken.server.principal == Principal("broker2@QPID", "EXTERNAL", authenticated=True)
        other = knocks(broker, over_tls(dns_names=("broker3",), common_name="broker2"), mechanism="EXTERNAL")
        assert condition(other.connection) == "amqp:unauthorized-access"
        assert not knocks(broker, socket, mechanism="ANONYMOUS").server.opened


def test_nobody_is_a_member_by_a_token(tmp_path: Path) -> None:
    """Breaks when a member's certificate will do together with any name that a provider of identities lets somebody choose."""
    peers = peers_of(tmp_path, user="brokers@QPID")
    with bench(authentication=demanding) as broker:
        broker.broker.admission.roles[PEER_PROPERTY] = peers
        login = {"mechanism": "PLAIN", "user": "brokers", "password": token(sub="brokers")}
        refused = knocks(broker, over_tls(dns_names=("broker2",)), **login)
        assert refused.server.principal.user == "brokers@QPID"
        assert (condition(refused.connection), peers.incoming) == ("amqp:unauthorized-access", {})


# ---- the other direction


def test_a_member_that_is_told_to_shows_its_certificate_as_its_login(tmp_path: Path) -> None:
    peers = peers_of(tmp_path, login=Login(mechanism="EXTERNAL", encrypted=True))
    visitor = called(peers, tmp_path, "broker2").turn()
    visitor.send(sasl.HEADER, sasl.frame(sasl.MECHANISMS, values.symbols(["PLAIN", "EXTERNAL"])))
    assert visitor.came == sasl.HEADER + init("EXTERNAL", values.encode(b""))
    visitor.send(sasl.frame(sasl.OUTCOME, b"\x50\x00"))
    assert visitor.came.removeprefix(sasl.HEADER + init("EXTERNAL", values.encode(b""))).startswith(HEADER)
    visitor.lose()
    peers.stop()


def called(peers: Peers, folder: Path, *names: str, **options: Any) -> Visitor:
    """What has come of this broker's attempt to reach OTHER: the far end shows a certificate with these names."""
    peers.set_members(Membership.of([ME, OTHER]))
    reactor: Any = peers.reactor
    host, port, factory = reactor.tcpClients[-1][:3]
    assert (host, port) == ("192.0.2.2", 5671)
    shown = authority().issue("other", *names, **options).write(folder, "other")
    return Visitor(factory.buildProtocol(None), trusts=authority().write(folder), shows=shown, serves=True)


def test_the_member_itself_is_spoken_to(peers: Peers, tmp_path: Path) -> None:
    visitor = called(peers, tmp_path, "broker2").turn()
    assert visitor.came.startswith(b"AMQP")
    visitor.lose()


@pytest.mark.parametrize("names", [("broker3",), ("*.example",), ("192.0.2.2",)])
def test_who_answers_in_a_member_s_place_is_told_nothing(peers: Peers, tmp_path: Path, names: tuple[str, ...]) -> None:
    """Breaks when messages go to whoever has taken over a name or an address on the network."""
    visitor = called(peers, tmp_path, *names).turn()
    visitor.lose()
    assert visitor.came == b""
    assert "broker2:5671 presented the certificate of" in peers.trouble()[OTHER]


def test_a_client_s_certificate_makes_no_member_of_a_server(peers: Peers, tmp_path: Path) -> None:
    visitor = called(peers, tmp_path, "broker2", purposes=CLIENT).turn()
    visitor.lose()
    assert visitor.came == b""
    assert "not trusted" in peers.trouble()[OTHER]


def test_a_handshake_that_hangs_is_given_up_and_begun_anew(peers: Peers, tmp_path: Path) -> None:
    """Breaks when a member that is frozen in the midst of a handshake is waited for without end."""
    visitor = called(peers, tmp_path, "broker2")
    reactor: Any = peers.reactor
    reactor.advance(3.1)
    assert visitor.socket.disconnecting
    visitor.lose()
    assert "TLS handshake was not done" in peers.trouble()[OTHER]
    attempts = len(reactor.tcpClients)
    reactor.advance(1.0)
    assert len(reactor.tcpClients) == attempts + 1
