"""A client's connection: a socket, an engine, and the producers and subscriptions on its links.

Life of a connection: bytes come, the engine is drained, the broker does what the batch asks, and one write goes out. A backup
reads the client's Open and ends the TCP connection without an Open of its own: after that, and only after that, every client goes
on to its next address at once. A connection whose Open names a peer becomes a replication link. A broker that has been promoted
but is not active yet keeps Opens, and the links that come behind them, waiting for the moment.

Invariants: nothing is written while the socket is full (the engine keeps it, boundedly: see `Subscription.room`); when the
connection ends, from either side, everything acquired over it goes back to its queue at once, and before its C objects are freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IPushProducer, ITCPTransport
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.amqp.engine import Engine
from broker.amqp.links import Condition, Link, Receiver, Sender
from broker.core import limits
from broker.net.output import READ_BYTES, write_output

if TYPE_CHECKING:
    from broker.service import Broker

_log = Logger()


@implementer(IPushProducer)
class BrokerConnection(TwistedProtocol):
    """One accepted connection."""

    def __init__(self, broker: Broker, number: int, address: str) -> None:
        self.broker = broker
        self.number = number
        self.address = address
        self.engine = Engine(self, server=True, container=broker.container, max_frame=broker.max_frame_bytes)
        self.engine.max_message_bytes = broker.max_message_bytes
        self.opened = False
        self.admin = False
        self.peer = ""
        self.idle_timeout_s = limits.IDLE_TIMEOUT_S
        """After so long a silence the peer is taken to be dead."""
        self.waiting = False
        """Whether its Open is kept until the broker is active."""
        self.choked = False
        """Whether a subscription waits for output to leave."""
        self.since = broker.clock.seconds()
        self.heard = self.since
        self._paused = False
        self._gone = False
        self._ended_at: float | None = None
        self._early_links: list[Link] = []
        self._peer_listener: Any = None
        self._peer_messages = self._peer_bytes = 0
        """Messages taken from a member, and their bytes, whose credit it has not got back."""
        self.properties: dict[str, Any] = {}
        self.container = ""

    # ---- Twisted

    def connectionMade(self) -> None:
        """The socket is there."""
        assert self.transport is not None
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
            self.transport.bufferSize = READ_BYTES  # type: ignore[attr-defined]
        self.transport.registerProducer(self, True)  # type: ignore[attr-defined]
        self.broker.connection_made(self)

    def dataReceived(self, data: bytes) -> None:
        """Bytes have come."""
        if self._gone:
            return
        self.heard = self.broker.clock.seconds()
        engine = self.engine
        engine.push(data)
        engine.drain()
        self.broker.touch(self)
        self.broker.flush()

    def connectionLost(self, reason: Failure = TwistedProtocol.connectionLost.__defaults__[0]) -> None:  # type: ignore[index]
        """The socket is gone: give back what was acquired, then the C objects."""
        self._gone = True
        self._end_links()
        self.engine.free()
        if self._peer_listener is not None:
            self._peer_listener.lost()
            self._peer_listener = None
        self.broker.connection_lost(self)

    def pauseProducing(self) -> None:
        """The socket is full: the engine keeps what comes until it is not."""
        self._paused = True

    def resumeProducing(self) -> None:
        """The socket takes bytes again."""
        self._paused = False
        if not self._gone:
            self.flush()
            self.broker.room_again(self)

    def stopProducing(self) -> None:
        """The socket will take no more at all."""
        self._paused = True

    # ---- output

    def flush(self) -> None:
        """Write what the engine has."""
        engine = self.engine
        if self._paused or not engine.alive or self.transport is None:
            return
        wrote = write_output(self.transport, engine)
        if engine.finished and not self._gone:
            self._end()
        elif self.choked and wrote and not self._paused:
            self.choked = False
            self.broker.room_again(self)

    def _end(self) -> None:
        """End the TCP connection when what was written has left."""
        self._gone = True
        self._ended_at = self.broker.clock.seconds()
        assert self.transport is not None
        self.transport.loseConnection()

    def drop(self) -> None:
        """End the TCP connection now, saying nothing more."""
        if not self._gone:
            self._gone = True
            assert self.transport is not None
            self.transport.abortConnection()  # type: ignore[attr-defined]

    def cut_off(self) -> None:
        """This broker serves no more: write what is due, then end the TCP connection without a Close, as a crash would.

        That is the one end after which every client goes on to its next address at once (docs/adr/0007).
        """
        if self._gone:
            return
        self._end_links()
        self._paused = False
        self.flush()
        if not self._gone:
            self._end()

    def tick(self, now_s: float) -> None:
        """Once a second: heartbeats, and an end to those who connect and say nothing, or do not read that it is over."""
        if self._gone:
            if self._ended_at is not None and now_s - self._ended_at > limits.OPEN_TIMEOUT_S:
                self._ended_at = None
                assert self.transport is not None
                self.transport.abortConnection()  # type: ignore[attr-defined]
            return
        limit_s = self.broker.open_timeout_s
        if not self.opened and not self.waiting and now_s - self.since > limit_s:
            _log.warn("{address} is not open after {limit_s:g} s: dropped", address=self.address, limit_s=limit_s)
            self.drop()
        elif self._peer_listener is None:
            self.beat(now_s)

    def beat(self, now_s: float) -> None:
        """Heartbeats, and the end of a peer that has been silent for too long; a member's by the clock of its links alone."""
        if not self._gone:
            self.engine.tick(int(now_s * 1000))
            self.engine.drain()
            self.flush()

    # ---- EngineListener

    def on_open(self, engine: Engine) -> None:
        """The peer's Open: a client, an administrator, or another broker."""
        if self._gone:
            return
        self.properties = engine.remote_properties
        self.container = engine.remote_container
        self.admin = bool(self.properties.get("qpid.ha-admin"))
        self.peer = str(self.properties.get("qpid.ha-peer") or "")
        if self.peer:
            self._peer_listener = self.broker.accept_peer(self)
            if self._peer_listener is None:
                self.refuse(Condition("amqp:not-allowed", self.broker.peer_refusal))
                return
            self.complete_open()
            return
        self.broker.admit(self)

    def refuse(self, condition: Condition) -> None:
        """Answer the Open with a Close that says why; who does not take it as the end is dropped after the time for an Open."""
        self.engine.open()
        self.engine.close(condition)

    def complete_open(self) -> None:
        """Answer the Open."""
        if self._gone or self.opened:
            return
        self.opened = True
        self.engine.open(
            self.broker.open_properties(self.engine.remote_max_frame),
            offered=("ANONYMOUS-RELAY",),
            idle_timeout_s=self.idle_timeout_s,
        )
        early, self._early_links = self._early_links, []
        for link in early:
            if link.open:
                self.on_link(self.engine, link)

    def on_link(self, engine: Engine, link: Link) -> None:
        """A link: let the broker attach it."""
        if self._gone:
            return
        if self._peer_listener is not None:
            link.context = self._peer_listener
            link.accept()
            if isinstance(link, Receiver):
                link.flow(limits.PEER_CREDIT)
            return
        if not self.opened:
            self._early_links.append(link)
            return
        try:
            self.broker.attach(self, link)
        except Condition as condition:
            link.refuse(condition)

    def on_link_open(self, engine: Engine, link: Link) -> None:
        """This side attaches no links over accepted connections."""

    def on_messages(self, engine: Engine, link: Receiver) -> None:
        """Messages: to the producer, or to the consensus."""
        if self._peer_listener is not None:
            messages, link.inbox, link.inbox_deliveries = link.inbox, [], []
            self._grant_again(link, messages)
            self._peer_listener.received(messages)
        elif link.context is not None and not self._gone:
            link.context.take()

    def _grant_again(self, link: Receiver, messages: list[bytes]) -> None:
        """Give a member its credit back by the lot: each grant is a frame that it has to read.

        A grant opens the session's window again too, which counts frames, so bytes count as well as messages.
        """
        self._peer_messages += len(messages)
        self._peer_bytes += sum(map(len, messages))
        if self._peer_messages >= limits.PEER_CREDIT_LOT or self._peer_bytes >= limits.SESSION_WINDOW_BYTES // 4:
            link.flow(self._peer_messages)
            self._peer_messages = self._peer_bytes = 0

    def on_outcomes(self, engine: Engine, link: Sender) -> None:
        """Outcomes of what a subscription sent."""
        if link.context is not None and hasattr(link.context, "outcomes"):
            link.context.outcomes()
        else:
            link.settle([delivery for delivery, _, _, _ in link.outcomes])
            link.outcomes.clear()

    def on_credit(self, engine: Engine, link: Sender) -> None:
        """Credit: there may be something to send."""
        if not self._gone:
            self.broker.credit(link)

    def on_link_closed(self, engine: Engine, link: Link) -> None:
        """A link is gone."""
        self._end_link(link)

    def on_close(self, engine: Engine, reason: str) -> None:
        """The peer closed, or broke the protocol."""
        if reason:
            _log.warn("connection from {address} ended: {reason}", address=self.address, reason=reason)
        self._end_links()

    def _end_links(self) -> None:
        for link in self.engine.links:
            self._end_link(link)

    def _end_link(self, link: Link) -> None:
        if self._peer_listener is None and link.context is not None:
            self.broker.detached(link)
            link.context = None

    def describe(self) -> dict[str, Any]:
        """For `qpid-stat -c`."""
        now = self.broker.clock.seconds()
        pid = self.properties.get("qpid.client_pid")
        return {
            "id": f"qpid.{self.number}",
            "address": self.address,
            "container": self.container,
            "processName": str(self.properties.get("qpid.client_process", self.properties.get("product", ""))),
            "processId": pid if isinstance(pid, int) else 0,
            "mechanism": "ANONYMOUS",
            "user": "anonymous",
            "connected_s": now - self.since,
            "idle_s": now - self.heard,
            "messagesIn": self.engine.messages_in,
            "messagesOut": self.engine.messages_out,
        }
