"""An accepted connection: a socket, an engine, and the session for its peer.

Life of a connection: bytes arrive, the engine's events are read, the session handles them as one batch, and one write is made.
The peer's Open decides on the session: an ordinary Open gets a client's session; an Open with a property that is registered as a
role gets the session of this role. A backup reads a client's Open and ends the TCP connection without sending its own Open: only
then does every client try its next address at once. A broker that does not serve yet keeps Opens, and the links that follow them,
until it serves.

Work before the answer to an Open, and begins, attaches, detaches, ends and requests for a state above a small number, uses the
share of a turn (`broker.sessions.share`). While the connection waits for this share, its socket is not read.

Invariants: nothing is written while the socket is full (the engine keeps a limited amount: see `Subscription.room`); when either
side ends the connection, its session is told at once, before its C objects are freed; of the properties in a client's Open, only
the name and the number of its process are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime, ITCPTransport
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
from broker.amqp.unfinished import Unfinished
from broker.core import limits, sasl
from broker.core.bearer import CBS_NODE
from broker.core.identity import Socket
from broker.core.management import told
from broker.net.output import READ_BYTES, write_output
from broker.sessions.principal import ANONYMOUS, Principal, principal_of
from broker.sessions.share import Share
from broker.sessions.turn import Turn

_log = Logger()
SOLE = "sole-connection-for-container"
"""Capability of a connection: no other is to have its container's name."""


class Session(Protocol):
    """The purpose of a connection. It gets the events of its links, as `broker.amqp.engine.EngineListener`."""

    @property
    def serves_clients(self) -> bool:
        """Whether it ends when this broker stops serving. If not, it has its own time for heartbeats: see `beat`."""

    def open_properties(self) -> dict[str, Any]:
        """Additional properties in the answer to the peer's Open."""

    def opened(self) -> None:
        """The peer's Open is answered."""

    def on_link(self, link: Link) -> None:
        """The peer attached a link."""

    def on_messages(self, link: Receiver) -> None:
        """Messages have come: take them."""

    def on_lost_post(self, txn_id: bytes) -> None:
        """A message in this transaction came on a link that this side has ended."""

    def on_outcomes(self, link: Sender) -> None:
        """Outcomes have come: take them."""

    def on_credit(self, link: Sender) -> None:
        """The peer changed the link's credit."""

    def on_link_closed(self, link: Link) -> None:
        """The link is gone."""

    def resume(self) -> None:
        """Output that waited has gone: there is room for more."""

    def subscriptions(self, behind: tuple[Any, ...] = ()) -> Iterable[tuple[int, dict[str, Any]]]:
        """The entries of its links in a query for subscriptions, by their numbers, after `behind` (empty: all); without the
        connection's part."""

    def end(self) -> None:
        """The connection ends: so do all links."""

    def end_service(self, condition: Condition) -> None:
        """This broker stops serving, and the connection stays."""

    def look_again(self) -> None:
        """Other rules are in force, and the connection stays."""

    def lost(self) -> None:
        """The connection is gone."""


class Role(Protocol):
    """Makes the sessions of connections whose Open has a certain property."""

    def accept(self, connection: Connection, value: str) -> Session:
        """The session for this connection; `value` is the property's. Condition: it is refused."""


class Owner(Protocol):
    """The owner of the connections."""

    def connection_made(self, connection: Connection) -> None:
        """A socket was accepted."""

    def connection_lost(self, connection: Connection) -> None:
        """A socket is gone."""

    def ended_with(self, connection: Connection, reason: str) -> None:
        """Its peer broke the protocol, or closed it with an error."""

    def not_opened(self, connection: Connection, limit_s: float) -> None:
        """It has sent no Open within this time, and is dropped."""

    def login_waits(self, connection: Connection, waits: sasl.Wait) -> None:
        """Its login is paused: call `resume_login` when that is done."""

    def login_failed(self, connection: Connection, denied: sasl.Deny) -> None:
        """A mechanism has turned it away."""

    def admit(self, connection: Connection) -> None:
        """An Open has come: answer it, keep it waiting, or turn the peer away."""

    def open_properties(self, max_frame: int) -> dict[str, Any]:
        """The properties of this broker's Open, for a peer that takes frames of `max_frame` bytes (0: any size)."""

    def capabilities(self) -> tuple[str, ...]:
        """The capabilities that this broker's Open offers."""


@implementer(IPushProducer)
class Connection(TwistedProtocol):
    """One accepted connection. Its owner sets its `session` before the first byte arrives. `socket`: what is known of the peer.
    `offer`: the mechanisms for the peer's login, in frames of at most `sasl_frame_bytes`. `container`: this broker's container
    id. `open_timeout_s`: the time limit until the peer's Open.
    """

    session: Session
    _next_beat: IDelayedCall | None = None
    """For a peer that wants heartbeats sooner than `tick` could send them."""

    def __init__(
        self,
        owner: Owner,
        turn: Turn,
        clock: IReactorTime,
        number: int,
        socket: Socket,
        *,
        offer: sasl.Offer,
        sasl_frame_bytes: int,
        container: str,
        max_frame_bytes: int,
        max_message_bytes: int,
        part_bytes: int,
        open_timeout_s: float,
        scratch: Scratch,
        share: Share,
        unfinished: Unfinished,
    ) -> None:
        self._owner = owner
        self._turn = turn
        self._share = share
        self._clock = clock
        self._open_timeout_s = open_timeout_s
        self.number = number
        self.socket = socket
        self.address = socket.address
        self.engine = Engine(
            self,
            server=True,
            container=container,
            max_frame=max_frame_bytes,
            offer=offer,
            sasl_frame=sasl_frame_bytes,
            scratch=scratch,
            unfinished=unfinished,
        )
        self.engine.max_message_bytes = max_message_bytes
        self.engine.part_bytes = part_bytes
        self.principal: Principal = ANONYMOUS
        self._login_waits: sasl.Wait | None = None
        self.opened = False
        self._opened_s = 0.0
        self.admin = False
        self.idle_timeout_s = limits.IDLE_TIMEOUT_S
        """After so long a silence the peer is taken to be dead."""
        self.heeded = True
        """Whether the peer's input is accepted."""
        self.waiting = False
        """Whether its Open is kept until the broker is active."""
        self.choked = False
        """Whether its session waits for output to leave."""
        self.loaded = False
        """Whether its session waits until fewer deliveries are unsettled."""
        self.since = clock.seconds()
        self.heard = self.since
        self._paused = False
        self._paused_s: float | None = None
        """Since when the socket is full."""
        self._unread = False
        """Whether reading is paused, by those above."""
        self._late = False
        """Whether it waits for its share of a turn, and is not read meanwhile."""
        self._to_do: list[Callable[[], object]] = []
        """The calls to make when it gets its share."""
        self._forgiven = False
        """Whether its silence is not its own: from when it is not read until something comes when it is again."""
        self._read_again_s: float | None = None
        """While it is forgiven: since when it is read again."""
        self._gone = False
        self.is_lost = False
        """Whether its socket has ended, or its peer was silent for too long. Links that end only then have lost their client."""
        self.is_closed = False
        """Whether its peer has closed it in order."""
        self._turned_out_at: float | None = None
        """The time when the Close was sent, while the peer has not answered it."""
        self._ended_at: float | None = None
        self.properties: dict[str, Any] = {}
        """Those of the peer's Open. A client's are dropped when it is looked at."""
        self._process: dict[str, Any] = {"processName": "", "processId": 0}
        self.container = ""
        self.is_sole = False
        """Whether it is to be the only connection of its container."""

    # ---- Twisted

    def connectionMade(self) -> None:
        """The socket is connected."""
        assert self.transport is not None
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
            self.transport.bufferSize = limits.STRANGER_READ_BYTES  # type: ignore[attr-defined]
        self.transport.registerProducer(self, True)  # type: ignore[attr-defined]
        self._owner.connection_made(self)

    def dataReceived(self, data: bytes) -> None:
        """Bytes have come."""
        if self._gone:
            return
        self.heard = self._clock.seconds()
        self._turn.is_open = True
        if self._forgiven and not self._unread:
            self._forgiven, self._read_again_s = False, None
            self.engine.expect_within(self.idle_timeout_s)
        if self._late:
            self._to_do.append(lambda: self._take(data))
        elif self.opened:
            self.engine.allow(limits.LINKS_AT_ONCE if self._share.is_left else 0)
            if self._take(data):
                if self.engine.was_costly:
                    self._share.spent(self._clock.seconds() - self.heard)
                if self.engine.has_more:
                    self._wait_for_share()
        else:
            self._do(lambda: self._take(data))
        self._turn.flush()

    def _take(self, data: bytes) -> bool:
        """Take bytes that have come. Returns whether they were too much or costly (see `Engine.push`)."""
        if not self.heeded:
            return False
        notable = self.engine.push(data)
        self.engine.drain()
        if not self.opened:
            self._follow_login()
        self._turn.touch(self)
        return notable

    # ---- its share of a turn

    def _do(self, work: Callable[[], object]) -> None:
        """Do this now, if there is time left for it, or in a later turn."""
        if not self._late and self._share.is_left:
            began_s = self._clock.seconds()
            self.engine.allow(limits.LINKS_AT_ONCE)
            work()
            self._share.spent(self._clock.seconds() - began_s)
            if not self._gone and self.engine.has_more:
                self._wait_for_share()
        else:
            self._to_do.append(work)
            self._wait_for_share()

    def _wait_for_share(self) -> None:
        if not self._late:
            self._late = True
            self._share.later(self)
            self._follow_reading()

    def go_on(self) -> bool:
        """See `share.Work`."""
        if not self._gone:
            self.engine.allow(limits.LINKS_AT_ONCE)
            try:
                if self._to_do:
                    self._to_do.pop(0)()
                else:
                    self._take(b"")
            except Exception:  # Twisted does the same with an exception from `dataReceived`
                _log.failure("{address} is dropped", address=self.address)
                self.drop()
        self._late = not self._gone and self.heeded and (bool(self._to_do) or self.engine.has_more)
        if not self._late:
            self._to_do.clear()
            self._follow_reading()
        return self._late

    def _follow_login(self) -> None:
        login = self.engine.login
        assert login is not None, "an accepted connection has a door"
        if login.denied is not None:
            denied, login.denied = login.denied, None
            self._owner.login_failed(self, denied)
        if login.waits is not self._login_waits and not self._gone:
            self._login_waits = login.waits
            if login.waits is not None:
                self._owner.login_waits(self, login.waits)

    def resume_login(self, result: bytes) -> None:
        """The work of its login is done."""
        self._do(lambda: self._resume_login(result))
        self._turn.flush()

    def _resume_login(self, result: bytes) -> None:
        if not self._gone:
            self.engine.resume_login(result)
            self.engine.drain()
            self._follow_login()
            self._turn.touch(self)

    def refuse_login(self, reason: str) -> None:
        """Its login cannot be looked at."""
        if not self._gone:
            self.engine.refuse_login(reason)
            self.engine.drain()
            self._turn.touch(self)
            self._turn.flush()

    def connectionLost(self, reason: Failure = TwistedProtocol.connectionLost.__defaults__[0]) -> None:  # type: ignore[index]
        """The socket is closed: the session releases the acquired messages, then the C objects are freed."""
        self._gone = self.is_lost = True
        self._share.forget(self)
        self._to_do.clear()
        if self._next_beat is not None:
            self._next_beat.cancel()
            self._next_beat = None
        self.session.end()
        self.engine.free()
        self.session.lost()
        self._owner.connection_lost(self)
        del self.session  # breaks a reference cycle: otherwise thousands of these wait for the garbage collector

    def pauseProducing(self) -> None:
        """The socket is full: the engine keeps further output until it accepts bytes again."""
        self._paused = True
        if self._paused_s is None:
            self._paused_s = self._clock.seconds()

    def resumeProducing(self) -> None:
        """The socket takes bytes again."""
        self._paused, self._paused_s = False, None
        if not self._gone:
            self.flush()
            self.session.resume()

    @property
    def now_s(self) -> float:
        """The reactor's time."""
        return self._clock.seconds()

    @property
    def unread_s(self) -> float:
        """For how long the socket has been full because the peer does not read; 0 if it is not full."""
        return 0.0 if self._paused_s is None else self._clock.seconds() - self._paused_s

    def stopProducing(self) -> None:
        """The socket accepts no more bytes at all."""
        self._paused = True

    def stop_reading(self) -> None:
        """Stop reading the socket. Meanwhile the peer does not count as silent."""
        if not self._gone and self.transport is not None:
            self._unread = self._forgiven = True
            self._read_again_s = None
            self.engine.expect_within(0)
            self._follow_reading()

    def read_again(self) -> None:
        """Read the socket again. The peer counts as silent if nothing comes for its idle timeout from now on."""
        self._unread = False
        if self._forgiven:
            self._read_again_s = self._clock.seconds()
        self._follow_reading()

    def _follow_reading(self) -> None:
        """Start or stop reading the socket."""
        if self._gone or self.transport is None:
            return
        if self._unread or self._late:
            self.transport.pauseProducing()  # type: ignore[attr-defined]
        else:
            self.transport.resumeProducing()  # type: ignore[attr-defined]

    # ---- output

    def flush(self) -> None:
        """Write the engine's output."""
        engine = self.engine
        if self._paused or not engine.alive or self.transport is None:
            return
        wrote = False
        if not engine.is_quiet:
            wrote = write_output(self.transport, engine)
            engine.recount_sent()
            if engine.finished and not self._gone:
                self._end()
                return
        if not self._paused and (
            (self.choked and wrote) or (self.loaded and engine.unsettled < limits.MAX_UNSETTLED_PER_CONNECTION // 2)
        ):
            self.choked = self.loaded = False
            self.session.resume()

    def _end(self) -> None:
        """End the TCP connection when its output is sent."""
        self._gone = True
        self._ended_at = self._clock.seconds()
        assert self.transport is not None
        self.transport.loseConnection()

    def drop(self) -> None:
        """End the TCP connection now, saying nothing more."""
        if not self._gone:
            self._gone = True
            assert self.transport is not None
            self.transport.abortConnection()  # type: ignore[attr-defined]

    def cut_off(self) -> None:
        """This broker stops serving: write the output, then end the TCP connection without a Close, as in a crash. Only then does
        every client try its next address at once (docs/adr/0007).
        """
        if self._gone:
            return
        self.session.end()
        self._paused = False
        self.flush()
        if not self._gone:
            self._end()

    def turn_out(self, condition: Condition) -> None:
        """End it with a Close and the reason. Further input is ignored. A peer that does not answer is disconnected after the
        time limit of an Open."""
        if self._gone or self._turned_out_at is not None:
            return
        self._turned_out_at = self._clock.seconds()
        self.waiting = False
        self.session.end()
        self.engine.gathering.drop(self.engine.links)
        if self.opened:
            self.engine.close(condition)
        else:
            self.refuse(condition)
        self._turn.touch(self)

    def tick(self, now_s: float) -> None:
        """Once a second: heartbeats, and the end of connections without an Open, or without an answer to a Close, after their
        time limit."""
        if self._gone:
            if self._ended_at is not None and now_s - self._ended_at > limits.OPEN_TIMEOUT_S:
                self._ended_at = None
                assert self.transport is not None
                self.transport.abortConnection()  # type: ignore[attr-defined]
            return
        limit_s = self._open_timeout_s
        if not self.opened and not self.waiting and now_s - self.since > limit_s:
            self._owner.not_opened(self, limit_s)
            self.drop()
        elif self._serves and self.opened and self.principal.owes_token and now_s - self._opened_s > limit_s:
            text = f"the client sent no token to {CBS_NODE} within {limit_s:g} s"
            self._owner.ended_with(self, text)
            self.turn_out(Condition("amqp:unauthorized-access", text))
        elif self._turned_out_at is not None and now_s - self._turned_out_at > limit_s:
            self.drop()
        elif self.session.serves_clients:
            self.beat(now_s)

    def beat(self, now_s: float) -> None:
        """Heartbeats, and the end of a peer that has been silent for too long."""
        if not self._gone:
            silent = self.engine.tick(int(now_s * 1000))
            if self._read_again_s is not None and 0 < self.idle_timeout_s < now_s - self._read_again_s:
                # proton does not count the time since then: its timeout was off, and its deadline lies before that
                silent, self._read_again_s = True, None
                self.turn_out(Condition("amqp:resource-limit-exceeded", "local-idle-timeout expired"))
            self.is_lost |= silent
            self.engine.drain()
            self.flush()
            if silent and self._paused:  # a peer that is gone never makes room in the socket for the Close
                self.drop()

    def _beat_later(self) -> None:
        """Beat four times in the silence that the peer bears: proton sends a heartbeat when half of it is over, and counts that
        half from the first beat after its last output."""
        pause_s = max(self.engine.remote.idle_timeout_s / 4, limits.LEAST_BEAT_S)
        self._next_beat = self._clock.callLater(pause_s, self._beat_again)

    def _beat_again(self) -> None:
        self._next_beat = None
        if not self._gone:
            self._beat_later()
            self.beat(self._clock.seconds())

    # ---- EngineListener

    def on_open(self, engine: Engine) -> None:
        """The peer's Open: of an administrator, a client, or a peer with another role."""
        if self._gone:
            return
        self.principal = principal_of(engine.login.granted if engine.login is not None else None)
        self.properties = engine.remote.properties
        self._process = _process_of(self.properties)
        self.container = engine.remote.container
        self.is_sole = SOLE in engine.remote.desired
        self.admin = bool(self.properties.get("qpid.ha-admin"))
        try:
            self._owner.admit(self)
        except Condition as condition:
            self.refuse(condition)
        if self.session.serves_clients and 0 < engine.remote.idle_timeout_s < 4 * limits.TICK_S and not self._gone:
            self._beat_later()

    def refuse(self, condition: Condition) -> None:
        """Answer the Open with a Close and the reason. A peer that does not answer it is disconnected after the time limit of an
        Open. The property in our Open tells JMS clients to wait for the Close."""
        self.engine.open({"amqp:connection-establishment-failed": True})
        self.engine.close(condition)

    def complete_open(self) -> None:
        """Answer the Open."""
        if self.opened or not self._serves:
            return
        self.opened, self._opened_s = True, self._clock.seconds()
        if ITCPTransport.providedBy(self.transport):
            self.transport.bufferSize = READ_BYTES  # type: ignore[attr-defined]
        self.engine.open(
            self._owner.open_properties(self.engine.remote.max_frame) | self.session.open_properties(),
            offered=self._owner.capabilities(),
            idle_timeout_s=self.idle_timeout_s,
        )
        self.session.opened()

    @property
    def _serves(self) -> bool:
        return not self._gone and self._turned_out_at is None

    def on_link(self, engine: Engine, link: Link) -> None:
        """A link."""
        if self._serves:
            self.session.on_link(link)

    def on_link_open(self, engine: Engine, link: Link) -> None:
        """This side attaches no links over accepted connections."""

    def on_messages(self, engine: Engine, link: Receiver) -> None:
        """Messages."""
        if not self._gone:
            self.session.on_messages(link)

    def on_lost_post(self, engine: Engine, txn_id: bytes) -> None:
        """A message of a transaction that nothing takes any more."""
        self.session.on_lost_post(txn_id)

    def on_outcomes(self, engine: Engine, link: Sender) -> None:
        """Outcomes of sent deliveries."""
        self.session.on_outcomes(link)

    def on_credit(self, engine: Engine, link: Sender) -> None:
        """Credit: there may be something to send."""
        if not self._gone:
            self.session.on_credit(link)

    def on_link_closed(self, engine: Engine, link: Link) -> None:
        """A link is gone."""
        self.session.on_link_closed(link)

    def on_close(self, engine: Engine, reason: str) -> None:
        """The peer closed, or broke the protocol."""
        if reason:
            self._owner.ended_with(self, reason)
        self.is_closed = not reason
        self.session.end()

    def describe(self) -> dict[str, Any]:
        """For `qpid-stat -c`."""
        now = self._clock.seconds()
        return {
            "id": f"qpid.{self.number}",
            "address": self.address,
            "container": told(self.container),
            **self._process,
            "mechanism": self.principal.mechanism,
            "user": self.principal.user,
            "encrypted": self.socket.encrypted,
            "certificate": self.socket.certificate.subject if self.socket.certificate is not None else "",
            "connected_s": now - self.since,
            "idle_s": now - self.heard,
            "unread_s": self.unread_s,
            "messagesIn": self.engine.messages_in,
            "messagesOut": self.engine.messages_out,
        }


def _process_of(properties: dict[str, Any]) -> dict[str, Any]:
    """The name and the number of its process, as a client gives them."""
    name, number = properties.get("qpid.client_process", properties.get("product", "")), properties.get("qpid.client_pid")
    return {"processName": told(str(name)), "processId": number if isinstance(number, int) else 0}
