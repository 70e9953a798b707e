"""The common part of the clients of external stores: HTTP by treq, in Twisted's reactor, with a timeout and limited
sizes.

Life of a `Web`: `send` makes a request. `whole` reads an answer, or raises `Refused` with the store's error. `in_time`
gives the work of one attempt its timeout, and keeps track of it. `stream` passes an endless answer on, line by line.
`close` ends everything in progress, and the connections.

Invariants: an answer has at most MAX_ANSWER_BYTES, and so has a line. The caller tries again; nothing here does. No
text contains a header, because headers have passwords and tokens. `said` has the texts for a timeout or a lost
connection.
"""

from __future__ import annotations

import json
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
from twisted.web.client import Agent, ResponseDone
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from broker.net.web_pool import QuietPool
from resource_manager.core.candidate import Trouble

T = TypeVar("T")
MAX_ANSWER_BYTES = 1 << 20
LONGEST_WAIT_S = 60.0
"""If a store, or a proxy before it, asks for a pause, the pause lasts at most this time."""
ENDED = "the watch's connection has ended"
"""The reason of a stream that the sender or the network has ended without a reason."""
_IDLE_S = 30.0


class StoreError(Exception):
    """A call gave no usable answer. The text names the server and the reason; `wait_s` is the requested pause, `status`
    the answer's status, 0 without one.
    """

    def __init__(self, trouble: Trouble, text: str, wait_s: float = 0.0, status: int = 0) -> None:
        super().__init__(text)
        self.trouble = trouble
        self.wait_s = wait_s
        self.status = status


@dataclass(slots=True)
class Refused(Exception):
    """The store, or a proxy before it, has answered with an error. `code` is the code in the answer's body; else it is
    0.
    """

    status: int
    text: str
    code: int
    retry_after_s: float


class Web:
    """See the module. `tls` makes the https connections; a host's connections are kept for a while."""

    def __init__(self, reactor: Any, timeout_s: float, tls: Callable[[str], Any] | None = None) -> None:
        self._reactor = reactor
        self.timeout_s = timeout_s
        self._pool = QuietPool(reactor, persistent=True)
        self._pool.cachedConnectionTimeout = round(_IDLE_S)
        self._pool.retryAutomatically = False
        self._http = HTTPClient(Agent(reactor, _Policy(tls), connectTimeout=timeout_s, pool=self._pool))
        self._under_way: set[Deferred[Any]] = set()

    def send(self, method: str, url: str, headers: dict[str, str], data: bytes = b"") -> Deferred[Any]:
        """Send a request. Returns the answer's head."""
        fields: dict[bytes | str, bytes | str] = dict(headers.items())
        sent: Deferred[Any] = self._http.request(
            method, url, data=data or None, headers=fields, allow_redirects=False, unbuffered=True, reactor=self._reactor
        )
        return sent

    async def whole(self, response: Any) -> bytes:
        """The answer's body. Refused if the answer is an error."""
        reading = _Body()
        response.deliverBody(reading)
        content = await reading.done
        if not 200 <= response.code < 300:
            raise _refusal(response, content)
        return content

    def in_time(self, work: Coroutine[Any, Any, T], error: Callable[[BaseException, bool], StoreError]) -> Deferred[T]:
        """Do the work within the timeout. `error` makes the exception from a failure and from whether the time was
        over.
        """
        done = ensureDeferred(work)
        timer = self._reactor.callLater(self.timeout_s, done.cancel)
        self._under_way.add(done)

        def ended(result: Any) -> Any:
            self._under_way.discard(done)
            timed_out = not timer.active()
            if not timed_out:
                timer.cancel()
            return Failure(error(value(result), timed_out)) if isinstance(result, Failure) else result

        return done.addBoth(ended)

    def stream(self, begin: Callable[[], Deferred[Any]], on_line: Callable[[bytes], str]) -> Deferred[str]:
        """Pass on each line of the answer that `begin` opens. Fires with the reason when the stream ends, which may
        come from `on_line`.
        """
        lines = _Lines(on_line)

        async def follow() -> str:
            response = await begin()
            response.deliverBody(lines)
            return await lines.done

        done = ensureDeferred(follow())
        self._under_way.add(done)

        def ended(result: Any) -> str:
            self._under_way.discard(done)
            return said(value(result)) if isinstance(result, Failure) else str(result)

        return done.addBoth(ended)

    def close(self) -> Deferred[None]:
        """End everything in progress, and the connections."""
        for one in list(self._under_way):
            one.cancel()
        # Connections return to the pool some turns after their last answer was delivered: close them then.
        self._pool.cachedConnectionTimeout = 0
        closed: Deferred[None] = self._pool.closeCachedConnections()
        return closed


# ---- answers


def parsed(content: bytes) -> dict[str, Any]:
    """A JSON object. ValueError if the text is not one."""
    answer = json.loads(content)
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")
    return answer


def _refusal(response: Any, content: bytes) -> Refused:
    """The error in an answer that is not a success."""
    text, code = response.phrase.decode("ascii", "replace"), 0
    try:
        found = parsed(content)
        text, code = str(found.get("message") or text), int(found.get("code") or 0)
    except (ValueError, TypeError):
        pass
    asked = (response.headers.getRawHeaders("Retry-After") or ["0"])[0].strip()
    wait_s = float(asked) if asked.isdecimal() and len(asked) < 9 else 0.0
    return Refused(response.code, " ".join(text.split())[:200], code, wait_s)


def value(failure: Failure) -> BaseException:
    """The error of a failure."""
    assert failure.value is not None, "a failure has an error"
    return failure.value


def said(error: BaseException) -> str:
    """An error in half a line."""
    reasons = getattr(error, "reasons", None)  # treq wraps the reasons for an interrupted request or answer
    if reasons:
        return said(value(reasons[0]))
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
    """A whole answer of limited size."""

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
            self.done.errback(StoreError(Trouble.AWAY, f"an answer of more than {MAX_ANSWER_BYTES} bytes"))
            self._end()

    def connectionLost(self, reason: Any = None) -> None:
        if self.done.called:
            return
        if reason.check(ResponseDone):
            self.done.callback(b"".join(self._parts))
        else:
            self.done.errback(reason)


class _Lines(Protocol):
    """An endless answer, line by line. `on_line` returns the reason to end, or ""."""

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
            except (ValueError, TypeError, KeyError, AttributeError):
                why = "the watch tells what cannot be read"
        if why and not self.done.called:
            self.done.callback(why)
            self._end()

    def connectionLost(self, reason: Any = None) -> None:
        if not self.done.called:
            self.done.callback(ENDED)


@implementer(IPolicyForHTTPS)
class _Policy:
    """Gives each https connection the TLS settings that `tls` makes for its host."""

    def __init__(self, tls: Callable[[str], Any] | None) -> None:
        self._tls = tls

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:
        assert self._tls is not None, "there is an endpoint over https, and nothing for TLS"
        return self._tls(hostname.decode("ascii"))
