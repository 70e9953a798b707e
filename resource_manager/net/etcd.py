"""A client for etcd's JSON gateway (etcd v3, POST /v3/...), in Twisted's reactor, by treq.

Life of an `EtcdClient`: it has a list of endpoints and stays with one while that answers. `call` makes one attempt, with one
time-out for all of it, and moves on to the next endpoint when it fails: whoever calls tries again, after a pause of its own. With
a user, it gets a token first, and another one when etcd does not take the token any more. `watch` streams the changes of a key.
`close` ends what is under way.

Invariants: an answer has at most MAX_ANSWER_BYTES; an answer of another etcd cluster than the first is refused; one to a reading
or a transaction that is older than what was seen before is stale and refused; passwords and tokens stand in no text.

Gateway: false, zero and empty fields are left out of answers; numbers of 64 bits are strings; keys and values are Base64; what is
wrong stands in `message` (and in etcd 3.4 in `error` too).
Source: https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/ and rpc.proto of etcd 3.4.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from OpenSSL import SSL
from service_identity import VerificationError
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool, ResponseDone
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from resource_manager.core.candidate import NO_LEASE, Holder, Trouble

T = TypeVar("T")
MAX_ANSWER_BYTES = 1 << 20
LONGEST_WAIT_S = 60.0
"""A pause that etcd, or what stands before it, asks for is kept up to this time."""
_IDLE_S = 30.0
_UNAUTHENTICATED = 16
_NO_SPACE = "database space exceeded"
_NO_LEASE = "requested lease not found"


class EtcdError(Exception):
    """A call brought no usable answer. The text says which endpoint, and why; `wait_s` is the pause that was asked for."""

    def __init__(self, trouble: Trouble, text: str, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.trouble = trouble
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Access:
    """Who to be: `password` is read anew for each login. Both empty for an etcd without users."""

    user: str = ""
    password: Callable[[], str] = str


@dataclass(slots=True)
class _Refused(Exception):
    """etcd, or what stands before it, has answered with an error."""

    status: int
    text: str
    code: int
    retry_after_s: float


class EtcdClient:
    """See the module. `endpoints` are URLs without a path; `tls` makes the connections to those that are https."""

    def __init__(
        self,
        reactor: Any,
        endpoints: tuple[str, ...],
        access: Access,
        timeout_s: float,
        tls: Callable[[str], Any] | None = None,
    ) -> None:
        self._reactor = reactor
        self._endpoints = endpoints
        self._access = access
        self._timeout_s = timeout_s
        self._pool = HTTPConnectionPool(reactor, persistent=True)
        self._pool.cachedConnectionTimeout = round(_IDLE_S)
        self._pool.retryAutomatically = False
        agent = Agent(reactor, _Policy(tls), connectTimeout=timeout_s, pool=self._pool)
        self._http = HTTPClient(agent)
        self._at = 0
        self._not_before_s = [0.0] * len(endpoints)
        self._token = ""
        self._cluster = ""
        self._revision = 0
        self._under_way: set[Deferred[Any]] = set()

    # ---- calls

    def call(self, path: str, body: dict[str, Any], *, linearizable: bool = True) -> Deferred[dict[str, Any]]:
        """One attempt; EtcdError. `linearizable`: whether the answer must not be older than those before."""

        at = self._at

        async def attempt() -> dict[str, Any]:
            try:
                answer = await self._post(at, path, body)
            except _Refused as refused:
                if refused.code != _UNAUTHENTICATED or not self._access.user:
                    raise
                self._token = ""
                answer = await self._post(at, path, body)
            self._check(at, answer, linearizable)
            return answer

        return self._in_time(at, attempt())

    async def _post(self, at: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._access.user and not self._token:
            login = {"name": self._access.user, "password": self._access.password()}
            self._token = str(_parsed(await self._exchange(at, "/v3/auth/authenticate", login)).get("token", ""))
        return _parsed(await self._exchange(at, path, body))

    async def _exchange(self, at: int, path: str, body: dict[str, Any]) -> bytes:
        response = await self._send(at, path, body)
        content = await _body(response)
        if response.code != 200:
            raise _refusal(response, content)
        return content

    def _send(self, at: int, path: str, body: dict[str, Any]) -> Deferred[Any]:
        headers: dict[bytes | str, bytes | str] = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        sent: Deferred[Any] = self._http.post(
            self._endpoints[at] + path,
            data=json.dumps(body).encode(),
            headers=headers,
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,
        )
        return sent

    def _in_time(self, at: int, work: Coroutine[Any, Any, T]) -> Deferred[T]:
        """The work, or an EtcdError, within the time-out; the next endpoint after an error."""
        done = ensureDeferred(work)
        timer = self._reactor.callLater(self._timeout_s, done.cancel)
        self._under_way.add(done)

        def ended(result: Any) -> Any:
            self._under_way.discard(done)
            timed_out = not timer.active()
            if not timed_out:
                timer.cancel()
            if not isinstance(result, Failure):
                return result
            error = self._error(self._endpoints[at], _value(result), timed_out)
            if error.trouble is Trouble.AWAY:
                error.wait_s = self._turn_from(at, error.wait_s)
            return Failure(error)

        return done.addBoth(ended)

    def _error(self, endpoint: str, error: BaseException, timed_out: bool) -> EtcdError:
        match error:
            case EtcdError():
                return error
            case _Refused(status, text, _, retry_after_s):
                if _NO_LEASE in text:
                    return EtcdError(Trouble.LEASE_GONE, f"{endpoint}: {text}")
                trouble = Trouble.READ_ONLY if _NO_SPACE in text else Trouble.AWAY
                return EtcdError(trouble, f"{endpoint}: {status} {text}", retry_after_s)
            case _ if timed_out:
                return EtcdError(Trouble.AWAY, f"{endpoint}: no answer for {self._timeout_s:g} s")
            case _:
                return EtcdError(Trouble.AWAY, f"{endpoint}: {_said(error)}")

    def _turn_from(self, at: int, wait_s: float) -> float:
        """Go to the endpoint that may be asked first; for how long it must not be yet."""
        now_s, count = float(self._reactor.seconds()), len(self._endpoints)
        self._not_before_s[at] = now_s + min(wait_s, LONGEST_WAIT_S)
        if self._at == at:
            following = [(at + step) % count for step in range(1, count + 1)]
            self._at = min(following, key=lambda number: max(self._not_before_s[number], now_s))
        return max(self._not_before_s[self._at] - now_s, 0.0)

    def _check(self, at: int, answer: dict[str, Any], linearizable: bool) -> None:
        header = answer.get("header") or (answer.get("result") or {}).get("header") or {}
        endpoint, cluster, revision = self._endpoints[at], str(header.get("cluster_id", "")), _number(header, "revision")
        if not cluster:
            raise EtcdError(Trouble.AWAY, f"{endpoint}: the answer is not one of etcd's")
        if self._cluster not in ("", cluster):
            raise EtcdError(Trouble.AWAY, f"{endpoint}: it is of another etcd cluster: {cluster} instead of {self._cluster}")
        if linearizable and revision < self._revision:
            raise EtcdError(
                Trouble.AWAY,
                f"{endpoint}: a stale answer, of revision {revision} after {self._revision}; if etcd was restored from a backup, "
                "restart this daemon",
            )
        self._cluster, self._revision = cluster, max(self._revision, revision if linearizable else 0)

    # ---- a watch

    def watch(self, key: bytes, revision: int, on_change: Callable[[Holder], None]) -> Deferred[str]:
        """Call `on_change` for each change of the key after that revision. Fires with the reason when the watch ends."""
        body = {"create_request": {"key": encoded(key), "start_revision": str(revision + 1)}}
        lines, at = _Lines(lambda line: _watched(line, on_change)), self._at

        async def begin() -> Any:
            if self._access.user and not self._token:
                raise EtcdError(Trouble.AWAY, "not logged in")
            response = await self._send(at, "/v3/watch", body)
            if response.code != 200:
                raise _refusal(response, await _body(response))
            return response

        async def stream() -> str:
            response = await self._in_time(at, begin())
            response.deliverBody(lines)
            return await lines.done

        done = ensureDeferred(stream())
        self._under_way.add(done)

        def ended(result: Any) -> str:
            self._under_way.discard(done)
            return _said(_value(result)) if isinstance(result, Failure) else str(result)

        return done.addBoth(ended)

    def close(self) -> Deferred[None]:
        """End what is under way, and the connections."""
        for one in list(self._under_way):
            one.cancel()
        # A connection goes back to the pool only some turns after its last answer was delivered: it is not to stay there.
        self._pool.cachedConnectionTimeout = 0
        closed: Deferred[None] = self._pool.closeCachedConnections()
        return closed


def encoded(value: bytes) -> str:
    """As the gateway has keys and values."""
    return b64encode(value).decode()


def holder_of(kv: dict[str, Any], revision: int) -> Holder:
    """Who has the turn by this key, at this revision; nobody when it is {}."""
    name = b64decode(kv.get("value", "")).decode(errors="replace")
    return Holder(_number(kv, "lease"), name, revision) if kv else Holder(NO_LEASE, "", revision)


def revision_of(answer: dict[str, Any]) -> int:
    """The revision at which etcd answered."""
    return _number(answer.get("header") or {}, "revision")


# ---- answers


def _number(fields: dict[str, Any], name: str) -> int:
    return int(fields.get(name) or 0)


def _parsed(content: bytes) -> dict[str, Any]:
    answer = json.loads(content)
    if not isinstance(answer, dict):
        raise ValueError("the answer is not one of etcd's")
    return answer


def _refusal(response: Any, content: bytes) -> _Refused:
    """What an answer that is not 200 says."""
    text, code = response.phrase.decode("ascii", "replace"), 0
    try:
        said = _parsed(content)
        text, code = str(said.get("message") or text), int(said.get("code") or 0)
    except ValueError:
        pass
    asked = (response.headers.getRawHeaders("Retry-After") or ["0"])[0].strip()
    wait_s = float(asked) if asked.isdecimal() and len(asked) < 9 else 0.0
    return _Refused(response.code, " ".join(text.split())[:200], _UNAUTHENTICATED if response.code == 401 else code, wait_s)


def _watched(line: bytes, on_change: Callable[[Holder], None]) -> str:
    """Tell of the changes in a line of a watch; why it has ended, "" when it has not."""
    said = _parsed(line)
    result = said.get("result")
    if not isinstance(result, dict):
        refused = said.get("error")
        return f"the watch failed: {refused.get('message') if isinstance(refused, dict) else refused or 'it tells nothing'}"
    for event in result.get("events") or ():
        kv = event.get("kv") or {}
        on_change(holder_of({} if event.get("type") == "DELETE" else kv, _number(kv, "mod_revision")))
    compacted = _number(result, "compact_revision")
    if result.get("canceled"):
        return f"etcd was compacted up to revision {compacted}" if compacted else "etcd has ended the watch"
    return ""


def _value(failure: Failure) -> BaseException:
    assert failure.value is not None, "a failure has an error"
    return failure.value


def _said(error: BaseException) -> str:
    """An error in half a line."""
    reasons = getattr(error, "reasons", None)  # of a request or an answer that broke off
    if reasons:
        return _said(_value(reasons[0]))
    if isinstance(error, CancelledError):
        return "it was given up"
    if isinstance(error, ConnectionDone):
        return "closed the connection"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "the answer cannot be read"
    if isinstance(error, SSL.Error):
        parts = error.args[0] if error.args and isinstance(error.args[0], list | tuple) else ()
        return f"TLS failed: {', '.join(str(part[-1]).strip(chr(39)) for part in parts) or type(error).__name__}"
    if isinstance(error, VerificationError):
        return "TLS failed: the server's certificate is for another host"
    text = " ".join(str(error).split()).rstrip(".")
    return f"{text[:1].lower()}{text[1:200]}" or type(error).__name__


class _Body(Protocol):
    """A whole answer, of a bounded size."""

    def __init__(self) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: self._end())
        self._parts: list[bytes] = []
        self._nbytes = 0

    def _end(self) -> None:
        if self.transport is not None:
            getattr(self.transport, "abortConnection", self.transport.loseConnection)()

    def dataReceived(self, data: bytes) -> None:
        self._nbytes += len(data)
        self._parts.append(data)
        if self._nbytes > MAX_ANSWER_BYTES and not self.done.called:
            self.done.errback(EtcdError(Trouble.AWAY, f"an answer of more than {MAX_ANSWER_BYTES} bytes"))
            self._end()

    def connectionLost(self, reason: Any = None) -> None:
        if self.done.called:
            return
        if reason.check(ResponseDone):
            self.done.callback(b"".join(self._parts))
        else:
            self.done.errback(reason)


class _Lines(Protocol):
    """An answer that goes on, line by line. `on_line` gives the reason to end, or ""."""

    def __init__(self, on_line: Callable[[bytes], str]) -> None:
        self.done: Deferred[str] = Deferred(lambda _: self._end())
        self._on_line = on_line
        self._rest = b""

    def _end(self) -> None:
        if self.transport is not None:
            getattr(self.transport, "abortConnection", self.transport.loseConnection)()

    def dataReceived(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        why = f"a line of more than {MAX_ANSWER_BYTES} bytes" if len(self._rest) > MAX_ANSWER_BYTES else ""
        for line in lines:
            if self.done.called:
                return
            try:
                why = why or (self._on_line(line) if line.strip() else "")
            except (ValueError, TypeError, AttributeError):
                why = "the watch tells what cannot be read"
        if why and not self.done.called:
            self.done.callback(why)
            self._end()

    def connectionLost(self, reason: Any = None) -> None:
        if not self.done.called:
            self.done.callback("the watch's connection has ended")


def _body(response: Any) -> Deferred[bytes]:
    reading = _Body()
    response.deliverBody(reading)
    return reading.done


@implementer(IPolicyForHTTPS)
class _Policy:
    """Gives each https connection what `tls` makes for its host."""

    def __init__(self, tls: Callable[[str], Any] | None) -> None:
        self._tls = tls

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:
        assert self._tls is not None, "there is an endpoint over https, and nothing for TLS"
        return self._tls(hostname.decode("ascii"))
