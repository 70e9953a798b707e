"""The management client: all our tools use it to talk to a broker.

Life of a `ManagementClient`: `connect` opens TCP, then AMQP as an anonymous or named user, a session, a sender to `$management`,
and a receiver whose address the broker creates. When the broker has answered all of these, the Deferred fires. Each `request` is
one message with its own number in `correlation-id`; the answer with the same number fires the request's Deferred. The connection
is ended by `close`, the broker, the network or, with a heartbeat, by silence. Then every waiting request fails, and `lost` fires
with the reason, always exactly once.

`broker.net.management_wire` handles AMQP itself.

Invariants: an answer never fires two requests; a request is answered, fails or times out, and is then forgotten; at most
MAX_WAITING_REQUESTS wait at once.

Protocol: docs/reference/management.md. Liveness: AMQP 1.0 part 2, section 2.4.5 (idle time out).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.error import ConnectError as TwistedConnectError
from twisted.internet.error import ConnectionDone, DNSLookupError
from twisted.internet.error import TimeoutError as TwistedTimeout
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from broker.amqp.management_node import Answer, encode_request
from broker.core.sasl_client import Login
from broker.core.urls import SSL, Address
from broker.net.management_wire import ClientError, ConnectError, Denied, Wire
from broker.tls_files import NO_TLS

if TYPE_CHECKING:
    from broker.net.credentials import Credentials

__all__ = [
    "ClientError",
    "ConnectError",
    "Denied",
    "ManagementClient",
    "ManagementError",
    "NoPrimary",
    "TimedOut",
    "find_primary",
]

Reactor = Any
"""IReactorTCP and IReactorTime at once (zope.interface has no type for "both")."""

MAX_WAITING_REQUESTS = 256
_CLOSE_GRACE_S = 2.0
_OTHERS_GRACE_S = 0.3
_LAST_NUMBER = (1 << 64) - 1
_tcp6: Any = TCP6ClientEndpoint


class TimedOut(ClientError):
    """No answer within the time limit. The request may still be executed."""


class ManagementError(ClientError):
    """The broker answered, and refused: `status` is an HTTP number, `text` its description."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class NoPrimary(ConnectError):
    """None of these brokers is the primary; `said` maps each one's `host:port` to its answer. `refused` names those that are
    there, but refuse this client, or are in no cluster: another attempt will find nothing else there.
    """

    def __init__(self, said: Mapping[str, str], refused: Iterable[str] = ()) -> None:
        self.said = dict(said)
        self.refused = tuple(refused)
        alike: dict[str, list[str]] = {}
        for name, text in self.said.items():
            alike.setdefault(text, []).append(name)
        groups = ((" and ".join(filter(None, (", ".join(names[:-1]), names[-1]))), text) for text, names in alike.items())
        super().__init__("no primary among " + ", ".join(f"{names} ({text})" for names, text in groups))


@dataclass(slots=True)
class _Waiting:
    """A request that has no answer yet."""

    what: str
    answer: Deferred[dict[str, Any]]
    timer: Any


class ManagementClient:
    """An open management connection. Make one with `connect`; see the module's text for its life."""

    def __init__(self, reactor: Reactor, name: str, wire: Wire) -> None:
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
        credentials: Credentials | None = None,
    ) -> Deferred[ManagementClient]:
        """Open a management connection.

        admin: send `qpid.ha-admin`, so that a backup answers too. user None means ANONYMOUS. heartbeat_s: a broker that says
        nothing for twice as long counts as lost. container: the AMQP container id, made up when "". seconds: a clock that is
        never set back. credentials: for an address over TLS; without them the system's authorities are trusted. Cancelling the
        Deferred drops the connection. Fails with ConnectError (Denied if one side does not let the other in) or TimedOut.
        """
        login = Login(user, password or "", mechanism or "", encrypted=address.transport == SSL)
        wire = Wire(reactor, address.name, login, admin, heartbeat_s, seconds, container)
        return _open(cls, reactor, address, wire, timeout_s, credentials)

    def request(
        self, operation: str, type: str, name: str | None = None, body: Mapping[str, Any] | None = None, timeout_s: float = 10.0
    ) -> Deferred[dict[str, Any]]:
        """Ask, and get the answer's body map ({} when it has none).

        Fails with ManagementError when the broker refuses or the request cannot be encoded, TimedOut after timeout_s,
        ConnectError when the connection ends first.
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
        try:
            message = encode_request(number, self._wire.reply_to, operation, type, name, body)
        except (TypeError, ValueError) as error:  # a name that is not UTF-8, a number beyond 64 bits
            why = "a text in it is not UTF-8" if isinstance(error, UnicodeEncodeError) else str(error)
            return _failed(ManagementError(400, f"{what.encode(errors='backslashreplace').decode()} cannot be sent: {why}"))
        answer: Deferred[dict[str, Any]] = Deferred(lambda _: self._cancelled(number))
        timer = self._reactor.callLater(timeout_s, self._timed_out, number, timeout_s)
        self._waiting[number] = _Waiting(what, answer, timer)
        self._wire.send(number, message)
        return answer

    @property
    def wire(self) -> Wire:
        """The wire, for links with messages."""
        return self._wire

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        return self._closed

    async def query(self, type: str, name: str | None = None, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """All items of a type, or those of that name, page by page, each of which may take `timeout_s`. Fails as `request`."""
        items: list[dict[str, Any]] = []
        body: dict[str, Any] = {} if name is None else {"name": name}
        while True:
            answer = await self.request("QUERY", type, body=body, timeout_s=timeout_s)
            items += answer.get("items") or []
            after = answer.get("next")
            if not after:
                return items
            body["after"] = after

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
        """Drop the connection without waiting (a broker that hangs would never answer a Close)."""
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

    def _answered(self, number: Any, answer: Answer | str) -> None:
        waiting = self._forget(number)
        if waiting is None:
            return  # too late: it has timed out
        if isinstance(answer, str):
            waiting.answer.errback(ManagementError(400, f"{self.name}: {answer}"))
            return
        if answer.status is None:
            waiting.answer.errback(ManagementError(500, f"{self.name}: the answer to {waiting.what} has no statusCode"))
        elif 200 <= answer.status < 300:
            waiting.answer.callback(answer.body)
        else:
            waiting.answer.errback(ManagementError(answer.status, answer.text or f"status {answer.status}"))

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
    heartbeat_s: float | None = None,
    container: str = "",
    seconds: Callable[[], float] = time.monotonic,
    credentials: Credentials | None = None,
) -> Deferred[ManagementClient]:
    """An administrative client to the one broker of these that is active (or standalone, if it is the only one).

    All are asked at once. A frozen broker does not hold the search up: after the first that says "active" the others get
    0.3 s more, in case one of them is active in a higher epoch, which is then the true one. Fails with NoPrimary, which
    tells what each has said.
    """
    search = _Search(reactor, addresses)
    for address in addresses:
        connected = ManagementClient.connect(
            reactor,
            address,
            user=user,
            password=password,
            mechanism=mechanism,
            timeout_s=timeout_s,
            heartbeat_s=heartbeat_s,
            container=container,
            seconds=seconds,
            credentials=credentials,
        )
        search.ask(address.name, connected, timeout_s)
    return search.found


class _Search:
    """One search for the primary: the brokers that were asked, their answers, and the best one so far."""

    def __init__(self, reactor: Reactor, addresses: Sequence[Address]) -> None:
        self.found: Deferred[ManagementClient] = Deferred(lambda _: self._drop_all())
        self._reactor = reactor
        self._said = {address.name: "not asked" for address in addresses}
        self._refused: list[str] = []
        self._asking: dict[str, Deferred[None]] = {}
        self._silent = dict.fromkeys(self._said)
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
            if self._said[name] == "standalone" and len(self._said) > 1:
                self._said[name] = "standalone: it is in no cluster (--ha-cluster yes)"
                self._refused.append(name)
            if self._said[name] in ("active", "standalone"):
                self._primaries.append((int(view.get("epoch") or 0), clients.pop()))

        def failed(failure: Failure) -> None:
            if not isinstance(failure.value, ClientError | CancelledError):
                failure.raiseException()
            self._said[name] = str(failure.value).removeprefix(f"{name}: ")
            if isinstance(failure.value, Denied | ManagementError):
                self._refused.append(name)

        def done(_: None) -> None:
            for client in clients:
                client.abort()
            self._silent.pop(name, None)
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
            self.found.errback(NoPrimary(self._said, self._refused))
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


def _factory(reactor: Reactor, address: Address, wire: Wire, timeout_s: float, credentials: Credentials | None) -> Factory:
    """For the wire itself, or for TLS below it."""
    if address.transport != SSL:
        return Factory.forProtocol(lambda: wire)
    from broker.net.credentials import Credentials  # these imports take time
    from broker.net.tls import over_tls

    trusted = credentials or Credentials(NO_TLS)
    return Factory.forProtocol(lambda: over_tls(reactor, trusted, address.host, wire, timeout_s))


def _open(
    cls: type[ManagementClient],
    reactor: Reactor,
    address: Address,
    wire: Wire,
    timeout_s: float,
    credentials: Credentials | None,
) -> Deferred[ManagementClient]:
    """TCP, TLS where it is to be, then AMQP, within timeout_s in all."""
    result: Deferred[ManagementClient] = Deferred(lambda _: give_up("cancelled"))
    factory = _factory(reactor, address, wire, timeout_s, credentials)
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
    """A Twisted failure to reach `name`, as one line; `reason` is our own, if this side has given up."""
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
    if isinstance(error, TwistedConnectError) and isinstance(inner := next(iter(error.args), None), Failure):
        return _explain(name, inner, reason)  # the socket ended while it was connecting
    if isinstance(error, ConnectionDone):
        return ConnectError(f"{name}: closed the connection")
    return ConnectError(f"{name}: {failure.getErrorMessage()}")
