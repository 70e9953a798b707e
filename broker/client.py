"""The management client: how every tool of ours talks to a broker.

Life of a `ManagementClient`: `connect` opens TCP, then AMQP as an anonymous or named user, a session, a sender to
`$management` and a receiver whose address the broker makes up; when the broker has answered all of these the Deferred
fires. Each `request` is one message with a number of its own in `correlation-id`; the answer with the same number fires the
request's Deferred. The connection ends through `close`, the broker, the network or, with a heartbeat, through silence; then
every request that still waits fails, and `lost` fires with the reason, always and exactly once.

The AMQP engine is proton's, without its I/O: bytes from a Twisted Protocol go into the engine, events and bytes come out.

Invariants: an answer never fires two requests; a request is answered, fails or times out, and is then forgotten; the
engine's event loop is never entered from within, whatever a callback does; the engine's memory is given back when the
connection ends (a daemon reconnects for years).

Protocol: docs/reference/management.md. Liveness: AMQP 1.0 part 2, section 2.4.5 (idle time out).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import proton
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.error import ConnectError as TwistedConnectError
from twisted.internet.error import ConnectionDone, DNSLookupError
from twisted.internet.error import TimeoutError as TwistedTimeout
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from broker.core.urls import Address

Reactor = Any
"""IReactorTCP and IReactorTime at once (zope.interface has no type for "both")."""

MANAGEMENT_ADDRESS = "$management"
MAX_WAITING_REQUESTS = 256
MAX_ANSWER_BYTES = 64 << 20
REPLY_CREDIT = 64
_CLOSE_GRACE_S = 2.0
_OTHERS_GRACE_S = 0.3
_LAST_NUMBER = (1 << 64) - 1
_tcp6: Any = TCP6ClientEndpoint


class ClientError(Exception):
    """A broker could not be asked, or did not do as asked. The text is one line for a person."""


class ConnectError(ClientError):
    """There is no usable connection: refused, lost, not authenticated, or not AMQP."""


class TimedOut(ClientError):
    """No answer in the time given. What was asked may still happen."""


class ManagementError(ClientError):
    """The broker answered, and refused: `status` is an HTTP number, `text` its description."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class NoPrimary(ConnectError):
    """None of the brokers asked is the primary; `said` maps each one's `host:port` to what it said."""

    def __init__(self, said: Mapping[str, str]) -> None:
        self.said = dict(said)
        super().__init__("no primary among " + ", ".join(f"{name} ({text})" for name, text in self.said.items()))


@dataclass(frozen=True, slots=True)
class _Login:
    user: str | None
    password: str | None
    mechanism: str | None
    container: str


@dataclass(slots=True)
class _Waiting:
    """A request that has no answer yet."""

    what: str
    answer: Deferred[dict[str, Any]]
    timer: Any


class _Wire(Protocol):
    """The socket and the AMQP engine behind one client. `opened` fires when requests may be sent, or fails with a ClientError."""

    transport: Any

    def __init__(
        self, reactor: Reactor, name: str, login: _Login, admin: bool, heartbeat_s: float | None, seconds: Callable[[], float]
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

    def _build(self, login: _Login) -> None:
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


class ManagementClient:
    """An open management connection. Make one with `connect`; see the module's text for its life."""

    def __init__(self, reactor: Reactor, name: str, wire: _Wire) -> None:
        self.name = name
        """The broker's address, `host:port`."""
        self.properties: dict[str, Any] = wire.remote_properties
        """The properties of the broker's Open."""
        self.lost: Deferred[str] = Deferred()
        """Fires with the reason, as one line, when the connection has ended. Never fails."""
        self._reactor = reactor
        self._wire = wire
        self._next = 1
        self._waiting: dict[int, _Waiting] = {}
        self._closed = False
        wire.listen(self._answered)
        wire.on_lost = self._connection_lost

    @classmethod
    def connect(
        cls,
        reactor: Reactor,
        address: Address,
        *,
        admin: bool = True,
        user: str | None = None,
        password: str | None = None,
        mechanism: str | None = None,
        timeout_s: float = 10.0,
        heartbeat_s: float | None = None,
        container: str = "",
        seconds: Callable[[], float] = time.monotonic,
    ) -> Deferred[ManagementClient]:
        """Open a management connection.

        admin: send `qpid.ha-admin`, so that a backup answers too. user None means ANONYMOUS. heartbeat_s: a broker that says
        nothing for twice as long counts as lost. container: the AMQP container id, made up when "". seconds: a clock that is
        never set back. Cancelling the Deferred drops the connection. Fails with ConnectError or TimedOut.
        """
        if address.transport != "tcp":
            return _failed(ConnectError(f"{address.name}: transport {address.transport!r} is not supported, only tcp"))
        wire = _Wire(reactor, address.name, _Login(user, password, mechanism, container), admin, heartbeat_s, seconds)
        return _open(cls, reactor, address, wire, timeout_s)

    def request(
        self, operation: str, type: str, name: str | None = None, body: Mapping[str, Any] | None = None, timeout_s: float = 10.0
    ) -> Deferred[dict[str, Any]]:
        """Ask, and get the answer's body map ({} when it has none).

        Fails with ManagementError when the broker refuses, TimedOut after timeout_s, ConnectError when the connection ends first.
        """
        what = " ".join(filter(None, (operation, type, name)))
        if self._closed:
            return _failed(ConnectError(f"{self.name}: {self._wire.reason}"))
        if len(self._waiting) >= MAX_WAITING_REQUESTS:
            return _failed(
                ConnectError(f"{self.name}: {MAX_WAITING_REQUESTS} requests wait for an answer already; {what} was not sent")
            )
        number = self._next
        self._next = self._next % _LAST_NUMBER + 1
        answer: Deferred[dict[str, Any]] = Deferred(lambda _: self._cancelled(number))
        timer = self._reactor.callLater(timeout_s, self._timed_out, number, timeout_s)
        self._waiting[number] = _Waiting(what, answer, timer)
        properties = {"operation": operation, "type": type} | ({} if name is None else {"name": name})
        self._wire.send(
            proton.Message(
                id=proton.ulong(number),
                correlation_id=proton.ulong(number),
                address=MANAGEMENT_ADDRESS,
                reply_to=self._wire.reply_to,
                properties=properties,
                body=None if body is None else dict(body),
            )
        )
        return answer

    def close(self) -> Deferred[None]:
        """End the connection; fires when it has ended, at most two seconds later."""
        if self._closed:
            return succeed(None)
        done: Deferred[None] = Deferred()
        grace = self._reactor.callLater(_CLOSE_GRACE_S, self._wire.abort, "")

        def ended(reason: str) -> str:
            if grace.active():
                grace.cancel()
            done.callback(None)
            return reason

        self.lost.addCallback(ended)
        self._wire.close()
        return done

    def abort(self) -> None:
        """Drop the connection without waiting for anybody (a broker that hangs would never answer a close)."""
        self._wire.abort("dropped by this program")

    def _forget(self, number: Any) -> _Waiting | None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None and waiting.timer.active():
            waiting.timer.cancel()
        return waiting

    def _cancelled(self, number: int) -> None:
        self._forget(number)

    def _timed_out(self, number: int, timeout_s: float) -> None:
        waiting = self._forget(number)
        assert waiting is not None, "a forgotten request has no timer"
        waiting.answer.errback(TimedOut(f"{self.name}: no answer to {waiting.what} in {timeout_s:g} s"))

    def _answered(self, number: Any, answer: proton.Message | str) -> None:
        waiting = self._forget(number)
        if waiting is None:
            return  # too late: it has timed out
        if isinstance(answer, str):
            waiting.answer.errback(ManagementError(400, f"{self.name}: {answer}"))
            return
        properties: dict[str, Any] = answer.properties or {}
        status = properties.get("statusCode")
        if not isinstance(status, int):
            waiting.answer.errback(ManagementError(500, f"{self.name}: the answer to {waiting.what} has no statusCode"))
        elif 200 <= status < 300:
            waiting.answer.callback(dict(answer.body) if isinstance(answer.body, dict) else {})
        else:
            waiting.answer.errback(ManagementError(status, str(properties.get("statusDescription") or f"status {status}")))

    def _connection_lost(self, reason: str) -> None:
        self._closed = True
        for number in list(self._waiting):
            waiting = self._forget(number)
            if waiting is not None:
                waiting.answer.errback(ConnectError(f"{self.name}: {reason} before it answered {waiting.what}"))
        self.lost.callback(reason)


def find_primary(
    reactor: Reactor,
    addresses: Sequence[Address],
    *,
    user: str | None = None,
    password: str | None = None,
    mechanism: str | None = None,
    timeout_s: float = 10.0,
) -> Deferred[ManagementClient]:
    """An administrative client to the one broker of these that is active or standalone.

    All are asked at once. A frozen broker does not hold the search up: after the first that says "active" the others get
    0.3 s more, in case one of them is active in a higher epoch, which is then the true one. Fails with NoPrimary, which
    tells what each has said.
    """
    search = _Search(reactor, addresses)
    for address in addresses:
        connected = ManagementClient.connect(
            reactor, address, user=user, password=password, mechanism=mechanism, timeout_s=timeout_s
        )
        search.ask(address.name, connected, timeout_s)
    return search.found


class _Search:
    """One search for the primary: who has been asked, what each said, and the best so far."""

    def __init__(self, reactor: Reactor, addresses: Sequence[Address]) -> None:
        self.found: Deferred[ManagementClient] = Deferred(lambda _: self._drop_all())
        self._reactor = reactor
        self._said = {address.name: "not asked" for address in addresses}
        self._asking: dict[str, Deferred[None]] = {}
        self._silent = set(self._said)
        self._primaries: list[tuple[int, ManagementClient]] = []
        self._grace: Any = None

    def ask(self, name: str, connected: Deferred[ManagementClient], timeout_s: float) -> None:
        """Wait for this connection and for its broker's view."""
        clients: list[ManagementClient] = []

        def ask(client: ManagementClient) -> Deferred[dict[str, Any]]:
            clients.append(client)
            return client.request("QUERY", "ha", timeout_s=timeout_s)

        def answered(body: dict[str, Any]) -> None:
            view = (body.get("items") or [{}])[0]
            self._said[name] = str(view.get("status", "no status"))
            if self._said[name] in ("active", "standalone"):
                self._primaries.append((int(view.get("epoch") or 0), clients.pop()))

        def failed(failure: Failure) -> None:
            if not isinstance(failure.value, ClientError):
                failure.raiseException()
            self._said[name] = str(failure.value).removeprefix(f"{name}: ")

        def done(_: None) -> None:
            for client in clients:
                client.abort()
            self._silent.discard(name)
            self._decide()

        asking: Deferred[None] = connected.addCallback(ask).addCallbacks(answered, failed).addCallback(done)
        self._asking[name] = asking

    def _decide(self) -> None:
        if self.found.called:
            for _, client in self._primaries:
                client.abort()
        elif not self._silent:
            self._finish()
        elif self._primaries and self._grace is None:
            self._grace = self._reactor.callLater(_OTHERS_GRACE_S, self._finish)

    def _finish(self) -> None:
        if self._grace is not None and self._grace.active():
            self._grace.cancel()
        if not self._primaries:
            self.found.errback(NoPrimary(self._said))
            return
        best = max(self._primaries, key=lambda found: found[0])
        self._primaries.remove(best)
        self.found.callback(best[1])
        self._drop_all()

    def _drop_all(self) -> None:
        if self._grace is not None and self._grace.active():
            self._grace.cancel()
        for name in list(self._silent):
            self._asking[name].cancel()
        for _, client in self._primaries:
            client.abort()
        self._primaries.clear()


def _failed(error: ClientError) -> Deferred[Any]:
    result: Deferred[Any] = Deferred()
    result.errback(error)
    return result


def _endpoint(reactor: Reactor, host: str, port: int, timeout_s: float) -> Any:
    """Numbers need no resolver, and so no thread."""
    if isIPAddress(host):
        return TCP4ClientEndpoint(reactor, host, port, timeout_s)
    if isIPv6Address(host):
        return _tcp6(reactor, host, port, timeout_s)
    return HostnameEndpoint(reactor, host, port, timeout_s)


def _open(
    cls: type[ManagementClient], reactor: Reactor, address: Address, wire: _Wire, timeout_s: float
) -> Deferred[ManagementClient]:
    """TCP, then AMQP, within timeout_s in all."""
    result: Deferred[ManagementClient] = Deferred(lambda _: give_up("cancelled"))
    factory = Factory.forProtocol(lambda: wire)
    factory.noisy = False
    reaching: Deferred[Any] = _endpoint(reactor, address.host, address.port, timeout_s).connect(factory)

    def give_up(reason: str) -> None:
        wire.abort(reason)
        if not reaching.called:
            reaching.cancel()

    def too_late() -> None:
        result.errback(TimedOut(f"{address.name}: no answer in {timeout_s:g} s"))
        give_up(f"no answer in {timeout_s:g} s")

    timer = reactor.callLater(timeout_s, too_late)

    def settled(passed: Any) -> Any:
        if timer.active():
            timer.cancel()
        return passed

    def ready(_: None) -> None:
        client = cls(reactor, address.name, wire)
        if result.called:  # cancelled or timed out while the last answer was on its way
            wire.abort("given up")
        else:
            result.callback(client)

    def failed(failure: Failure) -> None:
        if not result.called:
            result.errback(_explain(address.name, failure, wire.reason))

    reaching.addCallback(lambda _: wire.opened)
    reaching.addBoth(settled)
    reaching.addCallbacks(ready, failed)
    return result


def _explain(name: str, failure: Failure, reason: str) -> ClientError:
    """A Twisted failure to reach `name`, as one line; `reason` is our own, where it was us who gave up."""
    error = failure.value
    if isinstance(error, ClientError):
        return error
    if reason:
        return ConnectError(f"{name}: {reason}")
    if isinstance(error, DNSLookupError):
        return ConnectError(f"{name}: no such host")
    if isinstance(error, TwistedTimeout):
        return TimedOut(f"{name}: no answer to the connection attempt")
    if isinstance(error, TwistedConnectError) and error.osError:
        return ConnectError(f"{name}: {os.strerror(error.osError).lower()}")
    return ConnectError(f"{name}: {failure.getErrorMessage()}")
