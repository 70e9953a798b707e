"""Links to other members: who has not shown that it is a broker replicates nothing, and each is tried until it can be reached."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
from cproton_ffi import lib
from twisted.internet.defer import maybeDeferred
from twisted.internet.error import ConnectError, ConnectionDone, NoRouteError
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactor, StringTransport
from twisted.python.failure import Failure

from broker.amqp.engine import Engine
from broker.core import users
from broker.core.commands import MACHINE_VERSION
from broker.core.identity import Socket
from broker.core.limits import MAX_BATCH_BYTES, PIECE_BYTES
from broker.core.users import SHA_256, Users
from broker.sessions.authentication import Authentication
from ha.amqp.replication_link import encode
from ha.core.membership import Membership
from ha.core.messages import Append
from ha.core.settings import ReplicaSettings
from ha.core.versions import Versions
from ha.limits import PEER_BUFFER_BYTES, PEER_FRAME_BYTES, PEER_MESSAGE_BYTES
from ha.net.peers import PEER_PROPERTY, TICK_S, IncomingPeer, Peers
from tests.broker.amqp.pairs import Side
from tests.broker.clients import Bench, bench
from tests.ha.net.name_server import NameServer
from tests.ha.test_snapshots import error_lines

USERS = Users({name: {SHA_256: users.derive(SHA_256, "secret", b"salt" * 4)} for name in ("ann", "brokers")}, b"nobody knows")
OTHER, ME, THIRD = "10.0.0.2:5672", "10.0.0.1:5672", "10.0.0.3:5672"


def demanding(clock: Clock) -> Authentication:
    return Authentication(clock, maybeDeferred, lambda: "nonce", demanded=True, users=USERS)


def peers(b: Bench, user: str, server: NameServer | None = None) -> Any:
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
        names=None if server is None else server.names,
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


def test_a_member_keeps_its_connection_while_another_one_of_it_comes_and_goes() -> None:
    """It reaches this broker by an alias, too, and refuses that link. Breaks when the good one gets no heartbeats any more."""
    with bench() as b:
        made = peers(b, "")
        first = b.client({PEER_PROPERTY: OTHER})
        good = made.incoming[OTHER]
        second = b.client({PEER_PROPERTY: OTHER})
        assert made.incoming[OTHER] is not good
        second.lose()
        assert made.incoming == {OTHER: good}
        third = b.client({PEER_PROPERTY: OTHER})
        for _ in range(3):
            pass_time(b, made, 2)
            b.settle()
        assert (first.lost, third.lost) == (True, True), "all that are silent end"
        assert made.incoming == {}
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
        assert made.refusing() == {}, "an operator can give up a broker that answers nothing"
        made.stop()


def pass_time(b: Bench, made: Any, seconds: float) -> None:
    for _ in range(round(seconds / TICK_S)):
        b.clock.advance(TICK_S)
        made.tick()


def test_a_name_server_that_does_not_answer_is_asked_once_for_each_member() -> None:
    """Breaks when each attempt begins another lookup: soon they use all threads, and logins and reads from disk wait."""
    server = NameServer({"broker2": ["192.0.2.2"]}, silent=True)
    with bench() as b:
        made = peers(b, "", server)
        made.set_members(Membership.of([ME, "broker2:5672", "broker3:5672"]))
        pass_time(b, made, 60)
        assert [name for name, _ in server.held] == ["name broker2", "name broker3"]
        assert made.reactor.tcpClients == []
        server.answer()
        assert [client[:2] for client in made.reactor.tcpClients] == [("192.0.2.2", 5672)]
        told = "cannot be reached (no address of broker3 was found: Name or service not known)"
        assert made.trouble() == {"broker2:5672": "is not connected yet", "broker3:5672": told}
        server.known["broker3"] = ["192.0.2.3"]
        pass_time(b, made, 1)
        assert [client[:2] for client in made.reactor.tcpClients] == [("192.0.2.2", 5672), ("192.0.2.3", 5672)]
        made.stop()


@pytest.mark.parametrize("known", [{}, {"broker2": ["192.0.2.2"]}])
def test_a_link_that_ended_during_the_lookup_stays_ended(known: dict[str, list[str]]) -> None:
    server = NameServer(known, silent=True)
    with bench() as b:
        made = peers(b, "", server)
        made.set_members(Membership.of([ME, "broker2:5672"]))
        made.set_members(Membership.of([ME, OTHER]))
        server.answer()
        pass_time(b, made, 5)
        assert [client[0] for client in made.reactor.tcpClients] == ["10.0.0.2"]
        assert server.held == []
        made.stop()


def test_a_member_that_has_an_ipv6_address_only_is_called_there() -> None:
    with bench() as b:
        made = peers(b, "", NameServer({"broker2": ["2001:db8::2"]}))
        made.set_members(Membership.of([ME, "broker2:5672"]))
        assert [client[:2] for client in made.reactor.tcpClients] == [("2001:db8::2", 5672)]
        made.stop()


def test_each_attempt_is_made_to_the_next_address_and_the_reasons_of_all_are_told() -> None:
    """Breaks when a member is called only where it does not listen, or when each attempt logs another reason."""
    server = NameServer({"broker2": ["2001:db8::2", "192.0.2.2"]})
    with bench() as b:
        made = peers(b, "", server)
        made.set_members(Membership.of([ME, "broker2:5672"]))
        reasons = {"192.0.2.2": ConnectError(), "2001:db8::2": NoRouteError()}
        called, told = [], []
        for _ in range(4):
            host, _, link, *_ = made.reactor.tcpClients[-1]
            link.clientConnectionFailed(None, Failure(reasons[host]))
            called.append(host)
            told.append(made.trouble()["broker2:5672"])
            b.clock.advance(0.5)
        assert called == ["192.0.2.2", "2001:db8::2"] * 2
        assert told[1:] == ["cannot be reached (An error occurred while connecting.; No route to host.)"] * 3
        server.known["broker2"] = ["2001:db8::2"]
        host, _, link, *_ = made.reactor.tcpClients[-1]
        link.clientConnectionFailed(None, Failure(reasons[host]))
        b.clock.advance(0.5)
        link.clientConnectionFailed(None, Failure(NoRouteError()))
        assert made.trouble()["broker2:5672"] == "cannot be reached (No route to host.)"
        made.stop()


def test_an_address_where_something_else_answers_is_not_called_again_at_once() -> None:
    with bench() as b:
        made = peers(b, "", NameServer({"broker2": ["192.0.2.2", "192.0.2.3"]}))
        made.set_members(Membership.of([ME, "broker2:5672"]))
        connection: Any = made.reactor.tcpClients[0][2].buildProtocol(None)
        connection.makeConnection(StringTransport())
        connection.connectionLost(Failure(ConnectionDone()))
        b.clock.advance(0.5)
        assert [client[0] for client in made.reactor.tcpClients] == ["192.0.2.2", "192.0.2.3"]
        made.stop()


class _Events:
    """What the owner of the links was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def connected(self, peer: str) -> None:
        self.told.append(("connected", peer))

    def disconnected(self, peer: str) -> None:
        self.told.append(("disconnected", peer))


class _Member(Side):
    """The other end of a link to a member, which may call itself by another name."""

    def __init__(self, made: Any, address: str, name: str = "", versions: Versions | None = None) -> None:
        super().__init__(server=True, credit=100)
        self.engine.max_message_bytes = PEER_MESSAGE_BYTES
        self.engine.take_frames(PEER_FRAME_BYTES)
        self._properties = made.open_properties() | {PEER_PROPERTY: name or address}
        if versions is not None:
            self._properties |= versions.properties()
        (link,) = (factory for _, _, factory, *_ in made.reactor.tcpClients if factory.address == address)
        self.connection: Any = link.buildProtocol(None)
        self.transport = StringTransport()
        self.connection.makeConnection(self.transport)

    def on_open(self, engine: Engine) -> None:
        engine.open(self._properties)

    def settle(self) -> None:
        """Exchange all bytes."""
        while data := self.transport.value():
            self.transport.clear()
            self.engine.push(data)
            self.engine.drain()
            self.connection.dataReceived(b"".join(self.engine.take_output()))


def test_members_get_large_batches_in_pieces_of_one_frame_each() -> None:
    """Breaks when a piece takes two frames: the second one, for its last bytes, costs a write and a turn of its own."""
    batches = [bytes([number]) * (3 * PIECE_BYTES) for number in range(2)]
    append, beat = Append(3, 0, 6, 3, 7, 8, 6), Append(3, 1, 8, 3, 9, 8, 8)
    with bench() as b:
        made = peers(b, "")
        made.events = events = _Events()
        made.set_members(Membership.of([ME, OTHER, THIRD]))
        members = [_Member(made, address) for address in (OTHER, THIRD)]
        for member in members:
            member.settle()
        assert events.told == [("connected", OTHER), ("connected", THIRD)]
        before = lib.pn_transport_get_frames_input(members[0].engine.transport)
        for member in members:
            made.send(member.connection.link.address, append, batches)
            made.send(member.connection.link.address, beat, ())
        for member in members:
            member.settle()
            assert member.messages == [encode(append, batches), encode(beat, ())]
            assert member.connection.waiting_bytes == 0
        frames = lib.pn_transport_get_frames_input(members[0].engine.transport) - before
        assert frames == 2 * 3 + 1, "the beginning of the message is in the frame of its first piece"
        made.stop()


def test_a_broker_without_a_login_for_links_is_told_the_options_for_them() -> None:
    """Breaks when it is told the options of commands, which a broker does not have."""
    with bench() as b:
        made = peers(b, "")
        made.set_members(Membership.of([ME, OTHER]))
        ((_, _, link, *_),) = made.reactor.tcpClients
        connection: Any = link.buildProtocol(None)
        connection.makeConnection(StringTransport())
        offer = b"\0\x53\x40\xc0\x10\1\xa3\x0d" + SHA_256.encode()
        connection.dataReceived(b"AMQP\3\1\0\0" + (8 + len(offer)).to_bytes(4, "big") + b"\2\1\0\0" + offer)
        b.clock.advance(0.1)
        connection.connectionLost(Failure(ConnectionDone()))
        b.clock.advance(0.1)
        way = "it wants to know who you are: give --ha-username and --ha-password-file, as that broker has them"
        assert way in made.trouble()[OTHER]
        assert made.refusals()[OTHER].count("--") == 2
        made.stop()


def test_a_broker_that_calls_itself_by_another_name_is_not_the_member() -> None:
    """Its own messages come from a name that is no member's. `qpid-ha add-broker` waited for its vote, and said nothing."""
    with bench() as b:
        made = peers(b, "")
        made.events = events = _Events()
        reached: list[str] = []
        made.reach(OTHER, 3).addCallback(reached.append)
        member = _Member(made, OTHER, name="broker2:5672")
        member.settle()
        assert member.transport.disconnected
        member.connection.connectionLost(Failure(ConnectionDone()))
        b.clock.advance(0.1)
        why = f"the broker there calls itself broker2:5672: use this name, or give that broker --ha-address {OTHER}"
        assert reached == [f"exchanges no messages with this broker: {why}"]
        assert made.refusals() == {OTHER: why}
        assert made.refusing() == {OTHER: f"exchanges no messages with this broker: {why}"}
        made._links[OTHER].clientConnectionFailed(None, Failure(ConnectionRefusedError("refused")))
        assert made.refusing() == {}, "it does not run any more"
        assert events.told == []
        made.stop()


def test_a_member_of_a_release_that_reads_no_snapshot_of_this_one_is_named_until_it_is_upgraded() -> None:
    with bench() as b, error_lines() as lines:
        made = peers(b, "")
        made.events = _Events()
        made.set_members(Membership.of([ME, OTHER]))
        member = _Member(made, OTHER, versions=Versions(1, 1, 1))
        assert made.reads_snapshots(OTHER), "it is not known yet"
        member.settle()
        assert made.refusals() == {}
        assert [made.reads_snapshots(OTHER) for _ in range(3)] == [False] * 3
        why = f"it needs a snapshot, and runs release 0.1, which cannot read those of this release: upgrade {OTHER}"
        assert made.refusals() == {OTHER: why}
        assert lines == [f"{OTHER} cannot catch up: {why}"]
        member.connection.connectionLost(Failure(ConnectionDone()))
        assert made.refusals() == {}
        made.reactor.tcpClients.clear()
        b.clock.advance(0.1)
        _Member(made, OTHER).settle()
        assert made.reads_snapshots(OTHER)
        assert made.refusals() == {}
        made.stop()


def _unread(b: Bench) -> tuple[Any, _Member]:
    """The links of a broker to one member, which does not read."""
    made = peers(b, "")
    made.events = _Events()
    made.set_members(Membership.of([ME, OTHER]))
    member = _Member(made, OTHER)
    member.settle()
    member.connection.pauseProducing()
    return made, member


def test_a_member_that_does_not_read_is_called_again_before_much_waits_for_it() -> None:
    """What the engine has not asked for counts too."""
    batch = bytes(PEER_BUFFER_BYTES // 4)
    with bench() as b:
        made, member = _unread(b)
        left = []
        for index in range(1, 6):
            made.send(OTHER, Append(1, 0, index - 1, 1, index, index, 0), [batch])
            left.append(member.transport.disconnected)
        assert left == [False, False, False, True, True]
        made.stop()


def test_the_largest_batch_waits_for_a_member_behind_all_that_may_be_on_its_way() -> None:
    """Breaks when a link is opened again for a batch: then it is sent again, and the link is opened again, for ever."""
    others, batch = bytes(ReplicaSettings().max_inflight_bytes), bytes(MAX_BATCH_BYTES)
    assert PEER_MESSAGE_BYTES + len(others) < PEER_BUFFER_BYTES
    with bench() as b:
        made, member = _unread(b)
        for index, each in enumerate((others, batch, b"the next one")):
            made.send(OTHER, Append(1, 0, index, 1, index + 1, index + 1, 0), [each])
        assert not member.transport.disconnected
        made.stop()


def test_what_waits_for_a_member_is_freed_when_its_link_ends() -> None:
    """Breaks when it waits for the garbage collector: a member that does not read is called again and again."""
    batch = bytes(PEER_BUFFER_BYTES // 4)
    with bench() as b:
        made, member = _unread(b)
        before = sys.getrefcount(batch)
        gc.disable()
        try:
            for index, each in enumerate((batch, b"the last one")):
                made.send(OTHER, Append(1, 0, index, 1, index + 1, index + 1, 0), [each])
            assert sys.getrefcount(batch) > before
            member.connection.connectionLost(Failure(ConnectionDone()))
            del member.connection
            assert sys.getrefcount(batch) == before
        finally:
            gc.enable()
        made.stop()
