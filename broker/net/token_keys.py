"""The keys that verify tokens, from a file or from a web server, and their updates.

Life: a file is read at the start, where a fault is an error, and again at SIGHUP. Keys from a server are fetched while the broker
runs, so it starts without the server. They are fetched again every REFRESH_S, earlier after a failure, and when a token names an
unknown key, for example after the issuer has begun to sign with a new one.

Invariants: the last valid keys are in force until others were read completely and are valid; a server may take
TOKEN_KEYS_TIMEOUT_S and send MAX_TOKEN_KEYS_BYTES, over TLS or from this machine, and its redirects are not followed; tokens that
name unknown keys cause at most one request in MISSING_S.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core import limits
from broker.core.tokens import BadKeys, Tokens, parse_keys

_log = Logger()
REFRESH_S = 300.0
RETRY_S = 10.0
MISSING_S = 10.0


class TokenKeys:
    """See the module. `source`: a file, or a URL as text. `trust`: the authorities of the server, where those of the system will
    not do."""

    def __init__(self, reactor: Any, source: Path | str, tokens: Tokens, trust: Any = None) -> None:
        self._reactor = reactor
        self._source = source
        self._tokens = tokens
        self._trust = trust
        self._call: IDelayedCall | None = None
        self._fetching: Deferred[None] | None = None
        self._fetched_s: float | None = None
        self._trouble = ""
        self._agent: Any = None

    def load(self) -> None:
        """Read the file; does nothing for a URL. BadKeys names the file and the reason."""
        if isinstance(self._source, Path):
            self._take(_read(self._source))

    def start(self) -> None:
        """Begin to fetch, where that is to be done."""
        if isinstance(self._source, str):
            self._tokens.key_is_missing = self._missing
            self._fetch()

    def reload(self) -> None:
        """Read the file again, or ask the server now."""
        if isinstance(self._source, str):
            self._fetch()
            return
        try:
            self.load()
        except BadKeys as error:
            self._stay(str(error))

    def stop(self) -> None:
        """Stop fetching."""
        self._tokens.key_is_missing = lambda: None
        if self._call is not None and self._call.active():
            self._call.cancel()
        if self._fetching is not None:
            fetching, self._fetching = self._fetching, None
            fetching.addErrback(lambda failure: None)
            fetching.cancel()

    # ---- from a server

    def _missing(self) -> None:
        now = self._reactor.seconds()
        if self._fetched_s is None or now - self._fetched_s >= MISSING_S:
            self._fetch()

    def _fetch(self) -> None:
        if self._fetching is not None:
            return
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._fetched_s = self._reactor.seconds()
        self._fetching = fetching = self._fetched()
        fetching.addErrback(self._failed)

    def _fetched(self) -> Deferred[None]:
        from twisted.web.client import Agent, BrowserLikePolicyForHTTPS  # these imports take time
        from twisted.web.http_headers import Headers

        from broker.net.web_pool import QuietPool

        if self._agent is None:
            policy = BrowserLikePolicyForHTTPS(self._trust)
            pool = QuietPool(self._reactor, persistent=False)
            self._agent = Agent(self._reactor, policy, connectTimeout=limits.TOKEN_KEYS_TIMEOUT_S, pool=pool)
        headers = Headers({b"accept": [b"application/json"]})
        asked: Deferred[Any] = self._agent.request(b"GET", str(self._source).encode(), headers)
        asked.addCallback(_body)
        asked.addTimeout(limits.TOKEN_KEYS_TIMEOUT_S, self._reactor, _too_slow)
        asked.addCallback(self._came)
        return asked

    def _came(self, content: bytes) -> None:
        self._take(content)
        self._again(REFRESH_S)

    def _failed(self, failure: Failure) -> None:
        if self._fetching is not None:
            why = (failure.getErrorMessage() or repr(failure.value)).removeprefix(f"{self._source}: ")
            self._stay(f"{self._source}: {why}")
            self._again(RETRY_S)

    def _again(self, delay_s: float) -> None:
        self._fetching = None
        self._call = self._reactor.callLater(delay_s, self._fetch)

    # ---- what came

    def _take(self, content: bytes) -> None:
        """Let these keys be in force. BadKeys."""
        try:
            keys = parse_keys(content.decode())
        except UnicodeDecodeError:
            raise BadKeys(f"{self._source}: not UTF-8 text: are these keys?") from None
        except BadKeys as error:
            raise BadKeys(f"{self._source}: {error}") from None
        before, self._tokens.keys = self._tokens.keys, keys
        if len(before) != len(keys) or [key.kid for key in before] != [key.kid for key in keys] or self._trouble:
            _log.info("{n} keys for tokens read from {source}", n=len(keys), source=self._source)
        self._trouble = ""

    def _stay(self, why: str) -> None:
        if why != self._trouble:
            _log.error("{why}; the {n} old keys for tokens stay in force", why=why, n=len(self._tokens.keys))
        self._trouble = why


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limits.MAX_TOKEN_KEYS_BYTES + 1)
    except OSError as error:
        raise BadKeys(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > limits.MAX_TOKEN_KEYS_BYTES:
        raise BadKeys(f"{path}: has more than {limits.MAX_TOKEN_KEYS_BYTES} bytes")
    return content


class _Body(Protocol):
    """Takes an answer, as much as it may be."""

    transport: Any

    def __init__(self) -> None:
        self._content = bytearray()
        self.whole: Deferred[bytes] = Deferred(lambda _: self._end())

    def dataReceived(self, data: bytes) -> None:
        """A piece of it."""
        self._content += data
        if len(self._content) > limits.MAX_TOKEN_KEYS_BYTES:
            self._end()
            self._fire(BadKeys(f"the answer has more than {limits.MAX_TOKEN_KEYS_BYTES} bytes"))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Its end."""
        from twisted.web.client import ResponseDone
        from twisted.web.http import PotentialDataLoss

        ended = reason.check(ResponseDone, PotentialDataLoss) is not None
        self._fire(bytes(self._content) if ended else BadKeys("the answer broke off"))

    def _end(self) -> None:
        self.transport.loseConnection()

    def _fire(self, result: bytes | BadKeys) -> None:
        if not self.whole.called:
            if isinstance(result, bytes):
                self.whole.callback(result)
            else:
                self.whole.errback(result)


def _body(response: Any) -> Deferred[bytes]:
    body = _Body()
    response.deliverBody(body)
    if response.code != 200:
        body.whole.addErrback(lambda _: None)
        body.whole.cancel()  # nobody reads it: this closes its connection
        raise BadKeys(f"the server answers {response.code}, and not 200")
    return body.whole


def _too_slow(result: Any, timeout_s: float) -> Any:
    raise BadKeys(f"no answer within {timeout_s:g} s")
