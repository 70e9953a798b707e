"""Links to the other members, and discovery: every member keeps one connection open to each other one, and sends over its own.

Life of a link: it tries its address, waits a little longer after each failure (`_DELAYS_S`), and says in its Open who it is
and to which cluster it belongs; once its sending link has credit the member counts as connected; when the connection ends it
is disconnected, and the link tries again. What the other side sends comes in over the connection that it opened
(`IncomingPeer`); that it has come is a reason to try our own at once. A joining broker therefore finds the primary wherever
it is: whichever of its addresses answers tells it. A broker of the same cluster that is no member, as far as this one knows, is
answered over a link of its own for as long as it keeps its.

Invariants: messages to a member leave in order over one connection, or not at all; nothing is kept for a member that is not
connected; a link that does not read holds back at most `limits.PEER_BUFFER_BYTES` before it is dropped and started anew; a
link on which nothing is heard for `silence_s`, though heartbeats are due, is dropped and started anew too (AMQP part 2.4.5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTCP, IReactorTime, ITCPTransport
from twisted.internet.protocol import ClientFactory
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.amqp.engine import Engine
from broker.amqp.links import Condition, Link, Receiver, Sender
from broker.amqp.scratch import Scratch
from broker.core import urls
from broker.core.limits import SESSION_WINDOW_BYTES
from broker.net.output import READ_BYTES, write_output
from broker.sessions.connection import Connection
from ha import limits
from ha.amqp import replication_link
from ha.awake_clock import AwakeClock
from ha.core.membership import Membership
from ha.core.messages import Message

_log = Logger()
_DELAYS_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.5)
_CONNECT_TIMEOUT_S = 3
PEER_ADDRESS = "$ha"
PEER_PROPERTY = "qpid.ha-peer"
"""The property of an Open by which a member asks for a connection of its own kind; its value is the member's address."""
TICK_S = 0.2
"""Often enough for proton to send heartbeats in time: after a quarter of the other side's `silence_s`, which is 1 at the
least.
"""


class PeerEvents(Protocol):
    """What the owner of the links is told (see ReplicatedLog): connected, disconnected, and a decoded message."""

    def connected(self, peer: str) -> None:
        """Messages can go to this member."""

    def disconnected(self, peer: str) -> None:
        """They cannot any more."""

    def receive(self, peer: str, message: Message, payload: bytes) -> None:
        """A message came."""


class _Outgoing(TwistedProtocol):
    """The connection that one OutgoingLink has opened."""

    def __init__(self, link: OutgoingLink) -> None:
        self.link = link
        self.engine = Engine(self, server=False, container=link.peers.broker_id, scratch=link.peers.scratch)
        self.sender: Sender | None = None
        self.up = False
        self._refusal = ""

    def connectionMade(self) -> None:
        """Open, begin, attach: all in one flight."""
        assert self.transport is not None
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
            self.transport.bufferSize = READ_BYTES  # type: ignore[attr-defined]
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
        """Bytes from the member: protocol only, it says what it has to say over its own connection."""
        self.engine.push(data)
        self.engine.drain()
        self.flush()

    def connectionLost(self, reason: Failure = TwistedProtocol.connectionLost.__defaults__[0]) -> None:  # type: ignore[index]
        """The connection ended."""
        self.engine.free()
        self.link.ended(self, self._refusal)

    def flush(self) -> None:
        """Write what the engine has."""
        if self.engine.alive and self.transport is not None:
            write_output(self.transport, self.engine)
            if self.engine.finished:
                self.transport.loseConnection()

    def send(self, data: bytes) -> None:
        """Send one message, unless this link has too much unsent already: then it starts anew."""
        sender = self.sender
        if sender is None or not sender.open or not self.engine.alive:
            return
        sender.send_one(data, 0, True)
        self.flush()
        if sender.buffered_bytes > limits.PEER_BUFFER_BYTES:
            _log.warn("{peer} does not read what it is sent: its link is started anew", peer=self.link.address)
            self.drop()

    def drop(self) -> None:
        """End it now."""
        if self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]

    # ---- EngineListener

    def on_open(self, engine: Engine) -> None:
        """The member answered."""

    def on_link(self, engine: Engine, link: Link) -> None:
        """A member attaches nothing over a connection that it did not open."""
        link.close()

    def on_link_open(self, engine: Engine, link: Link) -> None:
        """Our link is attached; credit comes next."""

    def on_credit(self, engine: Engine, link: Sender) -> None:
        """The member reads: it is connected."""
        if not self.up and link.credit > 0:
            self.up = True
            self.link.opened()

    def on_messages(self, engine: Engine, link: Receiver) -> None:
        """Nothing comes in here."""

    def on_outcomes(self, engine: Engine, link: Sender) -> None:
        """Everything is sent settled."""

    def on_link_closed(self, engine: Engine, link: Link) -> None:
        """The member closed our link: start anew."""
        self.drop()

    def on_close(self, engine: Engine, reason: str) -> None:
        """The member closed the connection, perhaps with a reason."""
        self._refusal = reason

    def tick(self, now_s: float) -> None:
        """Heartbeats of the AMQP connection, and its end when none came for too long: whoever is silent does not read either."""
        self.engine.tick(int(now_s * 1000))
        self.engine.drain()
        self.flush()
        if self.engine.finished:
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
        self._told = ""
        self._stopped = False

    def start(self) -> None:
        """Try to connect, from now on until `stop`."""
        self._try()

    def stop(self) -> None:
        """End for good."""
        self._stopped = True
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        if self._connector is not None:
            self._connector.disconnect()
        if self._connection is not None:
            self._connection.drop()

    def hurry(self) -> None:
        """The member has shown that it lives: do not wait with the next try."""
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
            self._failures = 0
            self._try()

    @property
    def connected(self) -> bool:
        """Whether messages go through."""
        return self._connection is not None and self._connection.up

    def send(self, data: bytes) -> None:
        """Send an encoded message; dropped when the member is not connected."""
        if self._connection is not None and self._connection.up:
            self._connection.send(data)

    def restart(self, reason: str) -> None:
        """Drop the connection and open another."""
        _log.warn("link to {peer} started anew: {reason}", peer=self.address, reason=reason)
        if self._connection is not None:
            self._connection.drop()

    def tick(self, now_s: float) -> None:
        """Heartbeats."""
        if self._connection is not None:
            self._connection.tick(now_s)

    def buildProtocol(self, addr: object) -> _Outgoing:
        """The connection is there."""
        self._connection = _Outgoing(self)
        return self._connection

    def _try(self) -> None:
        self._retry = None
        if self._stopped:
            return
        address = urls.parse(self.address).addresses[0]
        self._connector = self.peers.reactor.connectTCP(address.host, address.port, self, timeout=_CONNECT_TIMEOUT_S)

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:
        """Nobody there yet."""
        self._tell(f"cannot be reached ({reason.getErrorMessage()})")
        self._again()

    def opened(self) -> None:
        """Messages go through now."""
        self._failures = 0
        self._told = ""
        _log.info("connected to {peer}", peer=self.address)
        self.peers.events.connected(self.address)

    def ended(self, connection: _Outgoing, refusal: str) -> None:
        """A connection ended."""
        was_up = connection.up
        self._connection = None
        if was_up:
            _log.info("link to {peer} lost{why}", peer=self.address, why=f": {refusal}" if refusal else "")
        elif refusal:
            self._tell(f"refused the link: {refusal}")
        if was_up:
            self.peers.events.disconnected(self.address)
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


class IncomingPeer:
    """The session of a connection that another member opened to us: it sends messages, and nothing else goes over it.

    Fulfils `broker.sessions.connection.Session`. It outlives this broker's times of service, and `Peers.tick` beats for it.
    """

    serves_clients = False

    def __init__(self, peers: Peers, connection: Connection, peer: str) -> None:
        self.peers = peers
        self.connection = connection
        self.peer = peer
        self._messages = self._bytes = 0
        """Messages taken, and their bytes, whose credit the member has not got back."""

    # ---- broker.sessions.connection.Session

    def opened(self) -> None:
        """Our Open is on its way; the member attaches its link."""

    def on_link(self, link: Link) -> None:
        """The member's link: take all that it sends."""
        link.accept()
        if isinstance(link, Receiver):
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

    def _grant_again(self, link: Receiver, messages: list[bytes]) -> None:
        """Give the member its credit back by the lot: each grant is a frame that it has to read.

        A grant opens the session's window again too, which counts frames, so bytes count as well as messages.
        """
        self._messages += len(messages)
        self._bytes += sum(map(len, messages))
        if self._messages >= limits.PEER_CREDIT_LOT or self._bytes >= SESSION_WINDOW_BYTES // 4:
            link.flow(self._messages)
            self._messages = self._bytes = 0

    def on_outcomes(self, link: Sender) -> None:
        """Nothing is sent over this connection."""

    def on_credit(self, link: Sender) -> None:
        """Nothing is sent over this connection."""

    def on_link_closed(self, link: Link) -> None:
        """The member ends its connection next."""

    def wrote(self, all_gone: bool) -> None:
        """Nothing waits for that."""

    def end(self) -> None:
        """Nothing hangs on its links."""

    def end_service(self, condition: Condition) -> None:
        """Members talk to each other whoever serves."""

    def lost(self) -> None:
        """The connection ended; the member may have opened another one since."""
        if self.peers.incoming.get(self.peer) is self:
            del self.peers.incoming[self.peer]
            self.peers.drop_stranger(self.peer)


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
    ) -> None:
        self.reactor = reactor
        self.clock = clock
        self._awake = AwakeClock(clock.seconds, 2 * TICK_S)
        self.me = me
        self.broker_id = broker_id
        self.events = events
        self.silence_s = silence_s
        self.scratch = Scratch()
        self.incoming: dict[str, IncomingPeer] = {}
        self._cluster_id = cluster_id
        self._members = members
        self._links: dict[str, OutgoingLink] = {}
        self._last_encoded: tuple[Message | None, Sequence[bytes], bytes] = (None, (), b"")

    def open_properties(self) -> dict[str, str]:
        """What this broker says of itself to a member."""
        return {
            "product": "understudy",
            PEER_PROPERTY: self.me,
            "qpid.ha-cluster": self._cluster_id(),
            "qpid.ha-broker": self.broker_id,
        }

    # ---- ha.replicated_log.Peers

    def send(self, peer: str, message: Message, batches: Sequence[bytes]) -> None:
        """Send a message and what goes beside it."""
        link = self._links.get(peer)
        if link is not None and link.connected:
            link.send(self._encoded(message, batches))

    def _encoded(self, message: Message, batches: Sequence[bytes]) -> bytes:
        """The message's bytes; what was just sent to another member is not encoded again."""
        last, last_batches, data = self._last_encoded
        if not batches:
            return replication_link.encode(message, batches)
        if message != last or len(batches) != len(last_batches) or not all(map(is_, batches, last_batches)):
            data = replication_link.encode(message, batches)
            self._last_encoded = (message, batches, data)
        return data

    def set_members(self, members: Membership) -> None:
        """Keep links to these members, and to no others but those that keep one to us."""
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

    def drop_stranger(self, address: str) -> None:
        """This broker's link to us has ended: if it is no member, nothing is left to say to it."""
        if address in self._links and address not in self._members().addresses:
            self._links.pop(address).stop()

    def close(self, peer: str, reason: str) -> None:
        """Drop both connections with a member that sent something that cannot be right."""
        incoming = self.incoming.get(peer)
        if incoming is not None:
            _log.error("link from {peer} dropped: {reason}", peer=peer, reason=reason)
            incoming.connection.drop()
        link = self._links.get(peer)
        if link is not None:
            link.restart(reason)

    def stop(self) -> None:
        """End all links."""
        for link in self._links.values():
            link.stop()
        self._links.clear()

    # ---- broker.sessions.connection.Role

    def accept(self, connection: Connection, value: str) -> IncomingPeer:
        """A member, whose address is `value`, opened a connection to us: take it, or say in a Condition why not."""
        theirs, ours = str(connection.properties.get("qpid.ha-cluster") or ""), self._cluster_id()
        if theirs and ours and theirs != ours:
            raise Condition(
                "amqp:not-allowed",
                f"{value} belongs to cluster {theirs}, this broker to cluster {ours}; check --ha-brokers-url and the data folder",
            )
        known = value in self._members().addresses
        if not known and not (theirs and ours):
            members = ", ".join(self._members().addresses)
            text = f"{value} is not among the members {members}; add it with qpid-ha add-broker"
            raise Condition("amqp:not-allowed", text)
        connection.engine.max_message_bytes = limits.PEER_MESSAGE_BYTES
        connection.idle_timeout_s = self.silence_s
        peer = IncomingPeer(self, connection, value)
        self.incoming[value] = peer
        # Of a primary that joined while this broker was away it may not know yet, but must answer to be told.
        self._link_to(value).hurry()
        return peer

    def tick(self) -> None:
        """Every TICK_S: the heartbeats of the connections in both directions."""
        now = self._awake.seconds()
        for link in list(self._links.values()):
            link.tick(now)
        for peer in list(self.incoming.values()):
            peer.connection.beat(now)
