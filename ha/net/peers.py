"""Links to the other members, and discovery: every member keeps one connection open to each other one, and sends over
its own.

Life of a link: it looks up the IP addresses of its host (`ha.net.names`) and connects to one of them. After a failure
it waits, each time a little longer (`_DELAYS_S`), and then tries the next address of the host. Its Open states its
address, its cluster, and its versions (ha.core.versions). When its sending link has credit, the member is connected.
When the connection ends, the member is disconnected, and the link tries again. Messages of the other side arrive over
the connection that the other side opened (`IncomingPeer`); when such a connection arrives, our own link tries at once.
So a joining broker finds the primary wherever it is: any member that answers tells it. A broker of the same cluster
that is not a member, as far as this one knows, is answered over a separate link while it keeps its own.

Invariants: messages to a member leave in order over one connection, or not at all. Nothing is kept for a member that is
not connected. A link that does not read holds back at most `limits.PEER_BUFFER_BYTES` before it is dropped and started
again. A link on which nothing is heard for `silence_s`, although heartbeats are due, is also dropped and started again
(AMQP part 2.4.5). No messages are exchanged with a member whose versions do not fit this broker's, and both sides
report why (`refusals`). None are sent to a broker that states another name than that of its link. With TLS, no messages
are exchanged with a peer without the certificate of its member (ha.core.identity). If logins are required, messages are
accepted only from a peer that has logged in as the user of the brokers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTCP, IReactorTime, ITCPTransport
from twisted.internet.protocol import ClientFactory
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.amqp.data import Condition
from broker.amqp.engine import Engine
from broker.amqp.links import Link
from broker.amqp.receiver import Receiver
from broker.amqp.scratch import Scratch
from broker.amqp.sender import Sender
from broker.core import urls
from broker.core.limits import SESSION_WINDOW_BYTES
from broker.core.sasl_client import ANONYMOUS, WAY_IN, Login
from broker.host import new_uuid
from broker.net.logins import Logins
from broker.net.output import READ_BYTES, TlsFailed, write_output
from broker.sessions.connection import Connection
from broker.sessions.refusals import Refusals
from ha import limits
from ha.amqp import replication_link
from ha.awake_clock import AwakeClock
from ha.core.identity import objection_to_member
from ha.core.membership import Membership
from ha.core.messages import Message
from ha.core.versions import SNAPSHOTS_SINCE, WITNESS_SINCE, Versions, objection_to, objection_to_part, versions_of
from ha.net.names import Names

if TYPE_CHECKING:
    from OpenSSL import SSL

    from broker.net.credentials import Credentials

_log = Logger()
_DELAYS_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.5)
_CONNECT_TIMEOUT_S = 3
_LOOK_S = 0.05
_SILENT = "it accepts the connection but does not answer; its log may say why"
PEER_ADDRESS = "$ha"
REMOVED_PROPERTY = "qpid.ha-removed"
"""The property of an Open that tells a broker of this cluster that it is no longer a member, with the index of the log
since which this is so.
"""
PEER_PROPERTY = "qpid.ha-peer"
"""The property of an Open with which a member requests a replication connection; its value is the member's address."""
TICK_S = 0.2
"""Often enough for proton to send heartbeats in time: after a quarter of the other side's `silence_s`, which is at
least 1 s.
"""


class PeerEvents(Protocol):
    """What the owner of the links (see ReplicatedLog) is told: connected, disconnected, and a decoded message."""

    def connected(self, peer: str) -> None:
        """Messages can go to this member."""

    def disconnected(self, peer: str) -> None:
        """Messages can no longer go to this member."""

    def receive(self, peer: str, message: Message, payload: bytes | memoryview) -> None:
        """A message has arrived."""

    def heard(self, peer: str) -> None:
        """A part of a large message has arrived; the message is not complete yet."""


class _Pieces:
    """A large message, as the bytes that it consists of, which are not joined. Fulfils `links.PieceSource`."""

    def __init__(self, connection: _Outgoing, pieces: Sequence[bytes]) -> None:
        self._connection = connection
        self._pieces = deque(pieces)
        connection.waiting_bytes += sum(map(len, pieces))

    @property
    def has_more(self) -> bool:
        """Whether there are further pieces."""
        return bool(self._pieces)

    def next_piece(self) -> bytes:
        """The next piece."""
        piece = self._pieces.popleft()
        self._connection.waiting_bytes -= len(piece)
        return piece

    def sent(self) -> None:
        """All of it is with the engine."""

    def dropped(self) -> None:
        """A member settles nothing: all that it gets is settled."""


@implementer(IPushProducer)
class _Outgoing(TwistedProtocol):
    """The connection that one OutgoingLink has opened."""

    def __init__(self, link: OutgoingLink) -> None:
        self.link = link
        peers = link.peers
        self.engine = Engine(
            self, server=False, container=peers.broker_id, login=peers.login, nonce=new_uuid(), scratch=peers.scratch
        )
        self._logins = Logins(peers.reactor)
        self.sender: Sender | None = None
        self.up = False
        self.waiting_bytes = 0
        """Bytes of messages that its sender has not asked for yet."""
        self._paused = False
        self._refusal = ""

    def connectionMade(self) -> None:
        """Send Open, Begin and Attach together."""
        assert self.transport is not None
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
            self.transport.bufferSize = READ_BYTES  # type: ignore[attr-defined]
        self.transport.registerProducer(self, True)  # type: ignore[attr-defined]
        engine = self.engine
        engine.open(
            self.link.peers.open_properties(),
            hostname=self.link.address,
            idle_timeout_s=self.link.peers.silence_s,
        )
        session = engine.new_session()
        self.sender = engine.attach_sender(session, f"ha-{self.link.peers.me}", PEER_ADDRESS)
        self.flush()

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the member: only protocol, because it sends its messages over its own connection."""
        self.engine.push(data)
        self.engine.drain()
        self._logins.follow(self.engine, self._logged_in)
        self.flush()

    def _logged_in(self, result: bytes) -> None:
        if self.engine.alive:
            self.engine.resume_login(result)
            self.engine.drain()
            self.flush()

    def connectionLost(self, reason: Failure = TwistedProtocol.connectionLost.__defaults__[0]) -> None:  # type: ignore[index]
        """The connection ended."""
        if isinstance(reason.value, TlsFailed):
            self._refusal = self._refusal or str(reason.value)
        self.engine.free()
        self.sender = None  # the messages that wait in it would hold this until the garbage collector runs
        self.link.ended(self, self._refusal)

    def flush(self) -> None:
        """Write the engine's output, unless the socket is full."""
        if self.engine.alive and self.transport is not None and not self._paused:
            write_output(self.transport, self.engine)
            if self.engine.finished:
                self.transport.loseConnection()

    def pauseProducing(self) -> None:
        """The socket is full: the engine keeps its output until there is room."""
        self._paused = True

    def resumeProducing(self) -> None:
        """The socket accepts bytes again."""
        self._paused = False
        self.flush()

    def stopProducing(self) -> None:
        """The socket accepts no more bytes at all."""
        self._paused = True

    def send(self, pieces: Sequence[bytes]) -> None:
        """Send one message, which consists of these bytes. If too many bytes are unsent, the link is started again instead."""
        sender = self.sender
        if sender is None or not sender.open or not self.engine.alive:
            return
        if len(pieces) == 1:
            sender.send_one(pieces[0], 0, True)
        else:
            sender.send_pieces(_Pieces(self, pieces), 0, True)
        self.flush()
        if sender.buffered_bytes + self.waiting_bytes > limits.PEER_BUFFER_BYTES:
            _log.warn("{peer} does not read from its link: the link is opened again", peer=self.link.address)
            self.drop()

    def drop(self) -> None:
        """End the connection now."""
        if self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]

    # ---- EngineListener

    def on_open(self, engine: Engine) -> None:
        """The member answered. Its versions are checked before messages are sent to it."""
        removed_at = engine.remote.properties.get(REMOVED_PROPERTY)
        if isinstance(removed_at, int) and removed_at > 0:
            self.link.peers.on_removed(removed_at)

    def on_link(self, engine: Engine, link: Link) -> None:
        """A member attaches no links over a connection that it did not open."""
        link.close()

    def on_link_open(self, engine: Engine, link: Link) -> None:
        """Our link is attached; credit comes next."""

    def on_credit(self, engine: Engine, link: Sender) -> None:
        """The member has given credit: it is connected, if messages may be exchanged with it."""
        if not self.up and link.credit > 0:
            theirs = versions_of(engine.remote.properties)
            self._refusal = self._other_name() or self.link.peers.objection_to(theirs, self.link.address)
            if self._refusal:
                self.drop()
                return
            self.up = True
            self.link.opened(theirs)

    def _other_name(self) -> str:
        """Why the broker at this address is not this member: it states another name, which its messages would come from."""
        name, address = self.engine.remote.properties.get(PEER_PROPERTY), self.link.address
        if not isinstance(name, str) or name == address:
            return ""
        return f"the broker there calls itself {name:.80}: use this name, or give that broker --ha-address {address}"

    def on_messages(self, engine: Engine, link: Receiver) -> None:
        """No messages arrive here."""

    def on_lost_post(self, engine: Engine, txn_id: bytes) -> None:
        """No messages arrive here."""

    def on_outcomes(self, engine: Engine, link: Sender) -> None:
        """Everything is sent settled."""

    def on_link_closed(self, engine: Engine, link: Link) -> None:
        """The member closed our link: start anew."""
        self.drop()

    def on_close(self, engine: Engine, reason: str) -> None:
        """The member closed the connection, perhaps with a reason."""
        self._refusal = reason or self._refusal

    def tick(self, now_s: float) -> None:
        """Send heartbeats, and end the connection if none arrived for too long. A silent peer does not read either, so
        a full socket would stay full.
        """
        silent = self.engine.tick(int(now_s * 1000))
        self.engine.drain()
        self.flush()
        if silent and not self.up:
            self._refusal = self._refusal or _SILENT
        if silent or self.engine.finished:
            self.drop()


class OutgoingLink(ClientFactory):
    """This broker's link to one member, through all its connections."""

    noisy = False

    def __init__(self, peers: Peers, address: str) -> None:
        self.peers = peers
        self.address = address
        self._connection: _Outgoing | None = None
        self._connector: Any = None
        self._retry: IDelayedCall | None = None
        self._failures = 0
        self._host = ""
        """The IP address of the last attempt."""
        self._turn = 0
        """Attempts that failed, so that the next one is made to the next address."""
        self._unreached: dict[str, str] = {}
        """Why the last attempt to each address failed, since the last success."""
        self._told = self._refused = ""
        self.wire = 1
        self.obstacle = ""
        """Why the member cannot catch up over this link, or ""."""
        self.is_witness = False
        self._stopped = False

    def start(self) -> None:
        """Try to connect, until `stop`."""
        self._try()

    def stop(self) -> None:
        """End the link for good."""
        self._stopped = True
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        if self._connector is not None:
            self._connector.disconnect()
        if self._connection is not None:
            self._connection.drop()

    def hurry(self) -> None:
        """The member has shown that it lives: make the next attempt now."""
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
            self._failures = 0
            self._try()

    @property
    def trouble(self) -> str:
        """Why messages cannot be sent, or ""."""
        return "" if self.connected else self._told or "is not connected yet"

    @property
    def refusal(self) -> str:
        """Why one side refuses the link, or ""."""
        return self._refused

    @property
    def refusing(self) -> bool:
        """Whether the member answered the last attempt, and one side refused the link."""
        return self._refused not in ("", _SILENT) and self._told == _without_messages(self._refused)

    @property
    def connected(self) -> bool:
        """Whether messages can be sent."""
        return self._connection is not None and self._connection.up

    def send(self, pieces: Sequence[bytes]) -> None:
        """Send an encoded message, which consists of these bytes. It is dropped if the member is not connected."""
        if self._connection is not None and self._connection.up:
            self._connection.send(pieces)

    def restart(self, reason: str) -> None:
        """Drop the connection, and open another one."""
        _log.warn("link to {peer} opened again: {reason}", peer=self.address, reason=reason)
        if self._connection is not None:
            self._connection.drop()

    def tick(self, now_s: float) -> None:
        """Heartbeats."""
        if self._connection is not None:
            self._connection.tick(now_s)

    def buildProtocol(self, addr: object) -> TwistedProtocol:
        """The connection is open."""
        self._connection = _Outgoing(self)
        credentials = self.peers.credentials
        return self._connection if credentials is None else self._over_tls(self._connection, credentials)

    def _over_tls(self, connection: _Outgoing, credentials: Credentials) -> TwistedProtocol:
        """With TLS, check that the peer is the right member before anything is sent to it."""
        from broker.net.credentials import certificate_of
        from broker.net.tls import over_tls

        def objection(tls: SSL.Connection) -> str:
            why = objection_to_member(self.address, certificate_of(tls))
            return why and f"{self.address} {why}"

        host = urls.parse(self.address).addresses[0].host
        return over_tls(self.peers.clock, credentials, host, connection, _CONNECT_TIMEOUT_S, objection)

    def _try(self) -> None:
        self._retry = None
        if self._stopped:
            return
        address = urls.parse(self.address).addresses[0]
        self.peers.names.addresses(address.host).addCallbacks(self._connect, self._without_address, callbackArgs=(address.port,))

    def _connect(self, hosts: list[str], port: int) -> None:
        if self._stopped:
            return
        self._unreached = {host: why for host, why in self._unreached.items() if host in hosts}
        self._host = hosts[self._turn % len(hosts)]
        self._connector = self.peers.reactor.connectTCP(self._host, port, self, timeout=_CONNECT_TIMEOUT_S)

    def _without_address(self, reason: Failure) -> None:
        if not self._stopped:
            self._tell(f"cannot be reached ({reason.getErrorMessage()})")
            self._again()

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:
        """The connection failed. The text names the reasons of all addresses, so that it does not change at each attempt."""
        self._turn += 1
        self._unreached[self._host] = reason.getErrorMessage()
        self._tell(f"cannot be reached ({'; '.join(dict.fromkeys(self._unreached.values()))})")
        self._again()

    def opened(self, theirs: Versions) -> None:
        """Messages can be sent now, in a form that both sides read."""
        self.wire = self.peers.wire_with(theirs)
        self.is_witness = theirs.witness
        self._failures = 0
        self._unreached.clear()
        self._told = self._refused = self.obstacle = ""
        _log.info("connected to {peer}", peer=self.address)
        self.peers.events.connected(self.address)

    def ended(self, connection: _Outgoing, refusal: str) -> None:
        """A connection ended."""
        was_up = connection.up
        self._connection = None
        self.obstacle = ""
        refusal = refusal.replace(WAY_IN, "give --ha-username and --ha-password-file, as that broker has them")
        if was_up:
            _log.info("link to {peer} lost{why}", peer=self.address, why=f": {refusal}" if refusal else "")
        elif refusal:
            self._refused = refusal
            self._tell(_without_messages(refusal))
        if was_up:
            self.peers.events.disconnected(self.address)
        else:
            self._turn += 1
        self._again()

    def _again(self) -> None:
        if self._stopped or self._connection is not None:
            return
        delay = _DELAYS_S[min(self._failures, len(_DELAYS_S) - 1)]
        self._failures += 1
        self._retry = self.peers.clock.callLater(delay, self._try)

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            _log.info("{peer} {text}; trying again", peer=self.address, text=text)


def _without_messages(refusal: str) -> str:
    """For people: what a member does with which one side refuses the link."""
    return f"exchanges no messages with this broker: {_in_words(refusal)}"


def _in_words(refusal: str) -> str:
    """A refusal for people: the text of the member's AMQP error as its words, in which "this broker" is the member."""
    name, _, text = refusal.partition(": ")
    return f'it answered "{text}" ({name})' if text and name.startswith("amqp:") else refusal


class IncomingPeer:
    """The session of a connection that another member opened to this broker: it sends messages, and nothing else uses
    the connection.

    It fulfils `broker.sessions.connection.Session`. It outlives this broker's times of service, and `Peers.tick` sends
    its heartbeats.
    """

    serves_clients = False

    def __init__(self, peers: Peers, connection: Connection, peer: str) -> None:
        self.peers = peers
        self.connection = connection
        self.peer = peer
        self._link: Receiver | None = None
        self._heard_s = 0.0
        self._messages = self._bytes = 0
        """Messages accepted, and their bytes, whose credit was not yet returned to the member."""
        self.versions = versions_of(connection.properties)

    # ---- broker.sessions.connection.Session

    def open_properties(self) -> dict[str, Any]:
        """This broker's properties for a member; and for a broker that is no longer a member, this fact."""
        removed_at = self.peers.removed_at(self.peer)
        return self.peers.open_properties() | ({REMOVED_PROPERTY: removed_at} if removed_at else {})

    def opened(self) -> None:
        """Our Open is sent; the member attaches its link."""

    def on_link(self, link: Link) -> None:
        """Accept the member's link, and all messages on it."""
        link.accept()
        if isinstance(link, Receiver):
            self._link = link
            link.flow(limits.PEER_CREDIT)

    def on_messages(self, link: Receiver) -> None:
        """Messages, in order."""
        _, messages = link.take()
        self._grant_again(link, messages)
        for data in messages:
            try:
                message, payload = replication_link.decode(data)
            except replication_link.BadReplication as error:
                _log.error("link from {peer} dropped: {error}", peer=self.peer, error=str(error))
                self.connection.drop()
                return
            self.peers.events.receive(self.peer, message, payload)

    def beat(self, now_s: float) -> None:
        """Each TICK_S: send the connection's heartbeats. A member that is sending a large message counts as heard
        meanwhile.
        """
        heard_s, link = self.connection.heard, self._link
        if link is not None and link.open and link.partial is not None and heard_s != self._heard_s:
            self._heard_s = heard_s
            self.peers.events.heard(self.peer)
        self.connection.beat(now_s)

    def _grant_again(self, link: Receiver, messages: list[bytes]) -> None:
        """Return credit to the member in large amounts, because each grant is a frame that it must read.

        A grant also opens the session's window again. The window counts frames, so bytes count as well as messages.
        """
        self._messages += len(messages)
        self._bytes += sum(map(len, messages))
        if self._messages >= limits.PEER_CREDIT_LOT or self._bytes >= SESSION_WINDOW_BYTES // 4:
            link.flow(self._messages)
            self._messages = self._bytes = 0

    def on_lost_post(self, txn_id: bytes) -> None:
        """A member has no transactions."""

    def on_outcomes(self, link: Sender) -> None:
        """Nothing is sent over this connection."""

    def on_credit(self, link: Sender) -> None:
        """Nothing is sent over this connection."""

    def on_link_closed(self, link: Link) -> None:
        """The member will end its connection next."""

    def resume(self) -> None:
        """Nothing waits for this."""

    def subscriptions(self, behind: tuple[Any, ...] = ()) -> list[tuple[int, dict[str, Any]]]:
        """A member has no subscriptions."""
        return []

    def end(self) -> None:
        """Nothing depends on its links."""

    def end_service(self, condition: Condition) -> None:
        """Members exchange messages whether this broker serves or not."""

    def look_again(self) -> None:
        """A changed ACL needs no check here: replication is one right, which was checked before."""

    def lost(self) -> None:
        """The connection ended; the member may have opened another one since."""
        self.peers.lost(self)


class Peers:
    """All links of this broker. `me` is its own address; fulfils `ha.replicated_log.Peers` and the role of a member
    (`broker.sessions.connection.Role`)."""

    def __init__(
        self,
        reactor: IReactorTCP,
        clock: IReactorTime,
        *,
        me: str,
        broker_id: str,
        events: PeerEvents,
        silence_s: float,
        cluster_id: Callable[[], str],
        members: Callable[[], Membership],
        versions: Versions,
        cluster_version: Callable[[], int],
        login: Login = ANONYMOUS,
        user: str = "",
        credentials: Credentials | None = None,
        removed_at: Callable[[str], int] = lambda address: 0,
        on_removed: Callable[[int], None] = lambda index: None,
        names: Names | None = None,
    ) -> None:
        self.reactor = reactor
        self.names = Names(reactor) if names is None else names
        self.clock = clock
        self._awake = AwakeClock(clock.seconds, 2 * TICK_S)
        self.me = me
        self.broker_id = broker_id
        self.events = events
        self.silence_s = silence_s
        self.login = login
        """The login of this broker at the others."""
        self._user = user
        """The user as which they must log in at this one; "" for any."""
        self.credentials = credentials
        """With credentials, all links use TLS, and a member is identified by its certificate."""
        self.removed_at = removed_at
        """The index of the log since which a broker is not a member; 0 if it is one."""
        self.on_removed = on_removed
        """Called when a member reports that this broker is no longer a member, with the index of the log."""
        self.scratch = Scratch()
        self.incoming: dict[str, IncomingPeer] = {}
        """The newest connection of each member to this broker."""
        self._accepted: dict[IncomingPeer, None] = {}
        """All of them: a member that reaches this broker by two names, or that has lost a connection, has several for a while."""
        self._cluster_id = cluster_id
        self._members = members
        self._versions = versions
        self._cluster_version = cluster_version
        self._refused: dict[str, str] = {}
        self._impostors = Refusals(clock.seconds, lambda line: _log.error("{line}", line=line))
        self._links: dict[str, OutgoingLink] = {}
        self._last_encoded: tuple[Message | None, Sequence[bytes], int, Sequence[bytes]] = (None, (), 0, ())

    def objection_to(self, theirs: Versions, peer: str) -> str:
        """Why this broker must not exchange messages with that member, or ""."""
        return objection_to(theirs, self._versions, peer, self._cluster_version()) or objection_to_part(
            theirs, peer, self._members()
        )

    def wire_with(self, theirs: Versions) -> int:
        """The newest form of messages that this broker and that member read."""
        return self._versions.wire_with(theirs)

    def machine_versions(self) -> dict[str, int]:
        """The machine versions that the members connected now have stated."""
        return {address: incoming.versions.machine for address, incoming in self.incoming.items()}

    def of_older_release(self) -> list[str]:
        """The connected members whose release knows neither witnesses nor learners that stay learners."""
        return sorted(address for address, incoming in self.incoming.items() if incoming.versions.wire < WITNESS_SINCE)

    def runs_as_witness(self, address: str) -> bool:
        """Whether the broker of this address stated that it is a witness when a link to it came up."""
        link = self._links.get(address)
        return link is not None and link.is_witness

    def refusals(self) -> dict[str, str]:
        """The reasons for which one side refuses a link, or the snapshot that a member needs, by member."""
        refused = {address: _in_words(link.refusal) for address, link in self._links.items() if link.refusal}
        return self._refused | refused | {address: link.obstacle for address, link in self._links.items() if link.obstacle}

    def open_properties(self) -> dict[str, Any]:
        """This broker's properties for a member."""
        return self._versions.properties() | {
            "product": "understudy",
            PEER_PROPERTY: self.me,
            "qpid.ha-cluster": self._cluster_id(),
            "qpid.ha-broker": self.broker_id,
        }

    # ---- ha.replicated_log.Peers

    def send(self, peer: str, message: Message, batches: Sequence[bytes]) -> None:
        """Send a message and the bytes beside it."""
        link = self._links.get(peer)
        if link is not None and link.connected:
            link.send(self._encoded(message, batches, link.wire))

    def _encoded(self, message: Message, batches: Sequence[bytes], wire: int) -> Sequence[bytes]:
        """The message's bytes. A message that was just sent to another member is not encoded again."""
        last, last_batches, last_wire, pieces = self._last_encoded
        if not batches:
            return (replication_link.encode(message, batches, wire),)
        same = message == last and wire == last_wire and len(batches) == len(last_batches)
        if not same or not all(map(is_, batches, last_batches)):
            pieces = replication_link.pieces(message, batches, wire)
            self._last_encoded = (message, batches, wire, pieces)
        return pieces

    def set_members(self, members: Membership) -> None:
        """Keep links to these members, and to others only while they keep one to this broker."""
        for address in list(self._links):
            if address not in members.addresses and address not in self.incoming:
                self._links.pop(address).stop()
        for address in members.addresses:
            if address != self.me:
                self._link_to(address)

    def _link_to(self, address: str) -> OutgoingLink:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = OutgoingLink(self, address)
            link.start()
        return link

    def tell_removed(self, members: Membership) -> None:
        """End the connections of brokers that are not members: they connect again, and are told so."""
        for incoming in list(self._accepted):
            if incoming.peer not in members.addresses:
                incoming.connection.drop()

    def reads_snapshots(self, peer: str) -> bool:
        """Whether this member, which needs a snapshot, can read those of this release. If not, this is logged, once a link."""
        link = self._links.get(peer)
        if link is None or not link.connected or link.wire >= SNAPSHOTS_SINCE:
            return True
        if not link.obstacle:
            link.obstacle = f"it needs a snapshot, and runs release 0.1, which cannot read those of this release: upgrade {peer}"
            _log.error("{peer} cannot catch up: {why}", peer=peer, why=link.obstacle)
        return False

    def reach(self, address: str, within_s: float) -> Deferred[str]:
        """Open a link to this broker, member or not. The Deferred fires with "" when messages can be sent, else with
        the reason.
        """
        link, until_s = self._link_to(address), self.clock.seconds() + within_s
        reached: Deferred[str] = Deferred()

        def look() -> None:
            if link.connected or link.refusal or self.clock.seconds() >= until_s:
                reached.callback("" if link.connected else link.trouble)
            else:
                self.clock.callLater(_LOOK_S, look)

        look()
        return reached

    def lost(self, incoming: IncomingPeer) -> None:
        """A connection of a member has ended: an earlier one may still be there."""
        self._accepted.pop(incoming, None)
        address = incoming.peer
        if self.incoming.get(address) is incoming:
            left = next((each for each in reversed(self._accepted) if each.peer == address), None)
            if left is not None:
                self.incoming[address] = left
            else:
                del self.incoming[address]
                self.drop_stranger(address)

    def drop_stranger(self, address: str) -> None:
        """The broker's link to us has ended. If it is not a member, our link to it is no longer needed."""
        if address in self._links and address not in self._members().addresses:
            self._links.pop(address).stop()

    def close(self, peer: str, reason: str) -> None:
        """Drop the connections with a member that sent an invalid message."""
        for incoming in [each for each in self._accepted if each.peer == peer]:
            _log.error("link from {peer} dropped: {reason}", peer=peer, reason=reason)
            incoming.connection.drop()
        link = self._links.get(peer)
        if link is not None:
            link.restart(reason)

    def trouble(self) -> dict[str, str]:
        """The members with which no messages can be exchanged, and why, by address."""
        return {address: link.trouble for address, link in self._links.items() if link.trouble}

    def refusing(self) -> dict[str, str]:
        """The members that answer, but with which one side refuses the link, and why, by address."""
        return {address: link.trouble for address, link in self._links.items() if link.refusing}

    def stop(self) -> None:
        """End all links."""
        for link in self._links.values():
            link.stop()
        self._links.clear()

    # ---- broker.sessions.connection.Role

    def accept(self, connection: Connection, value: str) -> IncomingPeer:
        """A member, whose address is `value`, opened a connection to this broker: accept it, or return the reason in a
        Condition.
        """
        self._recognise(value, connection)
        principal = connection.principal
        if self._user and not (principal.authenticated and principal.user == self._user and principal.until_s is None):
            raise Condition(
                "amqp:unauthorized-access", f"{principal.user} is not the user of links between brokers (--ha-username)"
            )
        theirs, ours = str(connection.properties.get("qpid.ha-cluster") or ""), self._cluster_id()
        if theirs and ours and theirs != ours:
            raise Condition(
                "amqp:not-allowed",
                f"{value} belongs to cluster {theirs}, this broker to cluster {ours}; check --ha-brokers-url and the data folder",
            )
        if not _is_name(value):
            raise Condition("amqp:not-allowed", f"{value:.80} is not an address of a broker, host:port")
        known = value in self._members().addresses
        if not known and not (theirs and ours):
            members = ", ".join(self._members().addresses)
            text = f"{value} is not among the members {members}; add it with qpid-ha add-broker"
            raise Condition("amqp:not-allowed", text)
        objection = self.objection_to(versions_of(connection.properties), value)
        if objection:
            if self._refused.get(value) != objection:
                _log.error("link from {peer} refused: {why}", peer=value, why=objection)
            self._refused[value] = objection
            raise Condition("amqp:not-allowed", objection)
        self._refused.pop(value, None)
        connection.engine.max_message_bytes = limits.PEER_MESSAGE_BYTES
        connection.engine.take_frames(limits.PEER_FRAME_BYTES)
        connection.idle_timeout_s = self.silence_s
        peer = IncomingPeer(self, connection, value)
        self.incoming[value] = peer
        self._accepted[peer] = None
        # If that primary joined while this broker was away, this broker may not know it, but must answer to learn of it.
        self._link_to(value).hurry()
        return peer

    def _recognise(self, address: str, connection: Connection) -> None:
        """A Condition unless the peer may act as that member. Other peers get no information about the cluster."""
        if self.credentials is None:
            return
        why = objection_to_member(address, connection.socket.certificate)
        if why:
            self._impostors.told(connection.address, f"it says that it is the member {address}, and {why}")
            if address in self._members().addresses:
                self._refused[address] = why
            raise Condition("amqp:unauthorized-access", f"{address} {why}")

    def tick(self) -> None:
        """Every TICK_S: send the heartbeats of the connections in both directions."""
        now = self._awake.seconds()
        for link in list(self._links.values()):
            link.tick(now)
        for peer in list(self._accepted):
            peer.beat(now)


def _is_name(value: str) -> bool:
    """Whether a member can have this name."""
    try:
        return urls.parse(value).names == (value,)
    except urls.BadUrl:
        return False
