"""The wire under a management client: a Twisted Protocol with proton's engine inside, from TCP up to both links.

Life: TCP comes up; the engine is made, opened down to its two links, and says so to the broker; when the broker has opened both
links as well, `opened` fires. From then on `send` takes requests, and what comes in goes to whoever `listen`s. Whatever ends it
(`close`, `abort`, the broker, the network, silence) is kept as `reason`, one line; `on_lost` is called once, at the very end.

Invariants: the engine's event loop is never entered from within, whatever a callback does; the engine's memory is given back when
TCP has ended; nothing is written after that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import proton
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

MANAGEMENT_ADDRESS = "$management"
MAX_ANSWER_BYTES = 64 << 20
REPLY_CREDIT = 64


class ClientError(Exception):
    """A broker could not be asked, or did not do as asked. The text is one line for a person."""


class ConnectError(ClientError):
    """There is no usable connection: refused, lost, not authenticated, or not AMQP."""


@dataclass(frozen=True, slots=True)
class Login:
    """Who to be: user None is ANONYMOUS; `container` "" makes one up."""

    user: str | None
    password: str | None = field(repr=False)
    mechanism: str | None
    container: str


class Wire(Protocol):
    """The socket and the AMQP engine behind one client. `opened` fires when requests may be sent, or fails with a ClientError."""

    transport: Any

    def __init__(
        self, reactor: Any, name: str, login: Login, admin: bool, heartbeat_s: float | None, seconds: Callable[[], float]
    ):
        self._name = name
        self._admin = admin
        self._seconds = seconds
        self._heartbeat_s = heartbeat_s
        self._on_answer: Callable[[Any, Any], None] = lambda number, answer: None
        self.on_lost: Callable[[str], None] = lambda reason: None
        self.opened: Deferred[None] = Deferred()
        self.reason = ""
        self.reply_to = ""
        self._pumping = False
        self._ended = False
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = reactor
        self._partial = bytearray()
        self._dispatch = {
            proton.Event.CONNECTION_REMOTE_OPEN: self._remote_opened,
            proton.Event.LINK_REMOTE_OPEN: self._link_opened,
            proton.Event.DELIVERY: self._delivery,
            proton.Event.TRANSPORT_ERROR: self._transport_failed,
            proton.Event.LINK_REMOTE_CLOSE: self._closed_by_broker,
            proton.Event.LINK_REMOTE_DETACH: self._closed_by_broker,
            proton.Event.SESSION_REMOTE_CLOSE: self._closed_by_broker,
            proton.Event.CONNECTION_REMOTE_CLOSE: self._closed_by_broker,
        }
        self._login = login

    def _build(self, login: Login) -> None:
        """The engine, opened from the connection down to both links. Its memory lives until `_release`."""
        self._engine = proton.Transport()
        self._connection = proton.Connection()
        self._collector = proton.Collector()
        self._connection.collect(self._collector)
        sasl = self._engine.sasl()
        if login.user is None:
            sasl.allowed_mechs(login.mechanism or "ANONYMOUS")
        else:
            self._connection.user = login.user
            self._connection.password = login.password or ""
            sasl.allow_insecure_mechs = True
            sasl.allowed_mechs(login.mechanism or "PLAIN")
        if self._heartbeat_s:
            self._engine.idle_timeout = self._heartbeat_s * 1.5
        self._connection.container = login.container or f"{os.path.basename(sys.argv[0]) or 'client'}-{os.getpid()}-{id(self):x}"
        self._connection.hostname = self._name.rpartition(":")[0]
        properties: dict[str, Any] = {"qpid.client_process": os.path.basename(sys.argv[0]), "qpid.client_pid": os.getpid()}
        if self._admin:
            properties["qpid.ha-admin"] = True
        self._connection.properties = proton.PropertyDict(properties)
        self._engine.bind(self._connection)
        session = self._connection.session()
        session.incoming_capacity = 16 << 20
        self._sender = session.sender("requests")
        self._sender.target.address = MANAGEMENT_ADDRESS
        self._receiver = session.receiver("answers")
        self._receiver.source.dynamic = True
        self._receiver.max_message_size = MAX_ANSWER_BYTES
        for endpoint in (self._connection, session, self._sender, self._receiver):
            endpoint.open()
        self._receiver.flow(REPLY_CREDIT)

    # The Twisted side.

    def connectionMade(self) -> None:
        """TCP is up: say what the engine has to say."""
        self._build(self._login)
        self.transport.setTcpNoDelay(True)
        if self._heartbeat_s:
            self._ticker.start(self._heartbeat_s / 4)
        self.pump()

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the broker."""
        while data and not self._ended:
            room = self._engine.capacity()
            if room <= 0:
                break
            self._engine.push(data[:room])
            data = data[room:]
            self.pump()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """TCP has ended, for whatever reason."""
        if not self.reason:
            how = (
                "closed the connection"
                if isinstance(reason.value, ConnectionDone)
                else f"connection lost ({reason.getErrorMessage()})"
            )
            if not self.opened.called and not self._admin:
                how += "; a backup does this to clients: name all the brokers, or use --ha-admin"
            self.reason = how
        self._ended = True
        if self._ticker.running:
            self._ticker.stop()
        if not self._pumping:
            self._release()
        self._fail_opening()
        self.on_lost(self.reason)

    def _fail_opening(self) -> None:
        if not self.opened.called:
            self.opened.errback(ConnectError(f"{self._name}: {self.reason}"))

    def abort(self, reason: str) -> None:
        """Drop TCP at once; `reason` is what `lost` will say."""
        self.reason = self.reason or reason
        if self.transport is not None and not self._ended:
            self.transport.abortConnection()

    def close(self) -> None:
        """End the AMQP connection in order."""
        self.reason = self.reason or "closed by this program"
        if not self._ended:
            self._connection.close()
            self.pump()

    def _release(self) -> None:
        """Give the engine's memory back, in the one order that proton bears."""
        with suppress(proton.ProtonException):
            self._engine.unbind()
        self._collector.release()
        self._connection.free()
        del self._sender, self._receiver, self._connection, self._engine, self._collector

    # The engine's side.

    def pump(self) -> None:
        """Handle all events, then write all bytes. A nested call does nothing: the outer one goes on until nothing is left."""
        if self._is_busy():
            return
        self._pumping = True
        try:
            while True:
                self._drain_events()
                if not self._flush():
                    break
        finally:
            self._pumping = False
        if self._ended:
            self._release()
        elif self.reply_to and not self.reason and not self.opened.called:
            self.opened.callback(None)

    def _is_busy(self) -> bool:
        return self._pumping or self._ended

    def _drain_events(self) -> None:
        while (event := self._collector.peek()) is not None:
            react = self._dispatch.get(event.type)
            if react is not None:
                react(event)
            self._collector.pop()

    def _flush(self) -> bool:
        """Write what the engine wants to send. Whether there may be more to do."""
        pending = self._engine.pending()
        if pending < 0:
            self.transport.loseConnection()
            return self._collector.peek() is not None
        if pending == 0:
            return False
        data = self._engine.peek(pending)
        if data:
            self.transport.write(bytes(data))
            self._engine.pop(len(data))
        return True

    def _tick(self) -> None:
        self._engine.tick(self._seconds())
        self.pump()

    def _remote_opened(self, event: Any) -> None:
        every = [self._engine.remote_idle_timeout / 4] if self._engine.remote_idle_timeout else []
        if self._heartbeat_s:
            every.append(self._heartbeat_s / 4)
        if every and (not self._ticker.running or min(every) < (self._ticker.interval or 0)):
            if self._ticker.running:
                self._ticker.stop()
            self._ticker.start(min(every), now=False)

    @property
    def remote_properties(self) -> dict[str, Any]:
        """The properties of the broker's Open."""
        return {str(key): value for key, value in (self._connection.remote_properties or {}).items()}

    def _link_opened(self, event: Any) -> None:
        both = (self._sender, self._receiver)
        if self.opened.called or not all(link.state & proton.Endpoint.REMOTE_ACTIVE for link in both):
            return
        if self._receiver.remote_source.address and self._sender.remote_target.address:
            self.reply_to = self._receiver.remote_source.address

    def _transport_failed(self, event: Any) -> None:
        condition = self._engine.condition
        text = f"{condition.name}: {condition.description}" if condition else "the AMQP engine failed"
        if condition and "idle-timeout" in (condition.description or ""):
            text = "the broker is silent"
        self.reason = self.reason or text
        self.transport.loseConnection()

    def _closed_by_broker(self, event: Any) -> None:
        endpoint = event.link or event.session or event.connection
        condition = endpoint.remote_condition
        if condition is None:
            self.reason = self.reason or "the broker closed the connection"
        else:
            self.reason = self.reason or f"{condition.description or 'closed by the broker'} ({condition.name})"
        self._connection.close()

    def send(self, message: proton.Message) -> None:
        """Send a request to the broker; a refusal of the message itself comes back through `on_answer` by its number."""
        delivery = self._sender.delivery(str(message.id))
        delivery.number = message.id
        self._sender.stream(message.encode())
        self._sender.advance()
        self.pump()

    def listen(self, on_answer: Callable[[Any, Any], None]) -> None:
        """From now on call `on_answer(number, message or refusal text)`."""
        self._on_answer = on_answer

    def _delivery(self, event: Any) -> None:
        delivery = event.delivery
        if event.link.is_sender:
            if delivery.updated:
                self._request_settled(delivery)
            return
        if delivery.readable:
            self._read_answer(event.link, delivery)

    def _request_settled(self, delivery: proton.Delivery) -> None:
        number, state = delivery.number, delivery.remote_state
        condition = delivery.remote.condition if state == proton.Delivery.REJECTED else None
        delivery.settle()
        if state in (proton.Delivery.REJECTED, proton.Delivery.RELEASED, proton.Delivery.MODIFIED):
            text = f"{condition.description} ({condition.name})" if condition else "the broker did not take the request"
            self._on_answer(number, text)

    def _read_answer(self, link: proton.Receiver, delivery: proton.Delivery) -> None:
        self._partial += link.recv(delivery.pending) or b""
        if len(self._partial) > MAX_ANSWER_BYTES:
            self.abort(f"the broker's answer is longer than {MAX_ANSWER_BYTES} bytes")
            return
        if delivery.partial:
            return
        data, self._partial = bytes(self._partial), bytearray()
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
        link.flow(1)
        message = proton.Message()
        try:
            message.decode(data)
        except (proton.ProtonException, ValueError) as error:
            self.abort(f"the broker sent an answer that cannot be read: {error}")
            return
        self._on_answer(message.correlation_id, message)
