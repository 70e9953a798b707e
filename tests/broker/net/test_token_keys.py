"""The keys for tokens, from a file and from a server: when they are read, and what stays in force when that goes wrong."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred
from twisted.internet.ssl import PrivateCertificate, trustRootFromCertificates
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from broker.core import limits
from broker.core.tokens import BadKeys, BadToken, Rules, Tokens
from broker.net import token_keys
from broker.net.token_keys import TokenKeys
from tests.certificates import authority
from tests.tokens import AUDIENCE, ISSUER, NOW_S, key_set, token

reactor: Any = installed


def looking() -> Tokens:
    return Tokens(Rules(ISSUER, AUDIENCE), lambda: NOW_S)


def names(tokens: Tokens) -> list[str]:
    return [key.kid for key in tokens.keys]


def test_a_file_is_read_at_the_start_and_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    file, tokens = tmp_path / "keys.json", looking()
    keys = TokenKeys(reactor, file, tokens)
    for content, why in (
        (None, "cannot be read: No such file"),
        (b"\xff", "not UTF-8"),
        (b"{}", "has a list"),
        (b"x" * 300_000, "has more"),
    ):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(BadKeys, match=f"^{file}: .*{why}"):
            keys.load()
    file.write_text(key_set("ES256"))
    keys.load()
    keys.start()
    file.write_text("nonsense")
    keys.reload()
    assert names(tokens) == ["ES256"]
    file.write_text(key_set("ES256", "RS256"))
    keys.reload()
    assert names(tokens) == ["ES256", "RS256"]
    keys.stop()


class Issuer(Resource):
    """Publishes what it is told to. `silent`: nothing, and it does not end; `stalls`: the beginning, and then nothing."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.status, self.content = 200, key_set("ES256").encode()
        self.asked = 0
        self.silent = self.stalls = False
        self.left = 0
        """How many clients have ended their connection before the answer was whole."""

    def render_GET(self, request: Any) -> Any:
        self.asked += 1
        request.setResponseCode(self.status)
        request.setHeader(b"location", b"/elsewhere")
        if self.stalls:
            request.notifyFinish().addErrback(self._was_left)
            request.write(self.content)
        return NOT_DONE_YET if self.silent or self.stalls else self.content

    def _was_left(self, failure: Any) -> None:
        self.left += 1


@contextlib.asynccontextmanager
async def published(secure: bool = False) -> AsyncIterator[tuple[Issuer, str]]:
    """An issuer, and its URL."""
    issuer = Issuer()
    site = Site(issuer)
    if secure:
        made = authority().issue("issuer", "127.0.0.1")
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        pem = made.certificate.public_bytes(Encoding.PEM) + made.key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        port = reactor.listenSSL(0, site, PrivateCertificate.loadPEM(pem).options(), interface="127.0.0.1")
    else:
        port = reactor.listenTCP(0, site, interface="127.0.0.1")
    try:
        yield issuer, f"http{'s' if secure else ''}://127.0.0.1:{port.getHost().port}/keys"
    finally:
        await port.stopListening()


async def until(is_so: Any) -> None:
    for _ in range(1000):
        if is_so():
            return
        await deferLater(reactor, 0.01, lambda: None)
    raise AssertionError("it did not come to that within ten seconds")


@pytest_twisted.ensureDeferred
async def test_keys_are_fetched_and_fetched_again_when_a_token_names_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_keys, "MISSING_S", 0.0)
    tokens = looking()
    async with published() as (issuer, url):
        keys = TokenKeys(reactor, url, tokens)
        keys.load()
        assert names(tokens) == [], "a broker starts without its issuer"
        keys.start()
        await until(lambda: names(tokens) == ["ES256"])
        issuer.content = key_set("ES256", "RS256").encode()
        for _ in range(3):
            with pytest.raises(BadToken, match="not among those"):
                tokens.looked_at(token("RS256"))
        await until(lambda: names(tokens) == ["ES256", "RS256"])
        assert tokens.bearer(tokens.looked_at(token("RS256"))()).user == "ann"
        assert issuer.asked == 2, "while it is asked, it is not asked again"
        monkeypatch.setattr(token_keys, "MISSING_S", 600.0)
        with pytest.raises(BadToken):
            tokens.looked_at(token("RS256", {"kid": "other"}))
        keys.stop()
        assert issuer.asked == 2, "who makes names up has it asked but now and then"


@pytest_twisted.ensureDeferred
async def test_what_a_server_does_wrong_leaves_the_keys_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "RETRY_S", 0.05)
    tokens = looking()
    async with published() as (issuer, url):
        keys = TokenKeys(reactor, url, tokens)
        keys.start()
        await until(lambda: names(tokens) == ["ES256"])
        for status, content, silent, why in (
            (200, b"nonsense", False, "this is neither a JSON Web Key Set nor PEM"),
            (200, b"x" * (limits.MAX_TOKEN_KEYS_BYTES + 1), False, "the answer has more than"),
            (302, b"", False, "the server answers 302, and not 200"),
            (200, b"", True, "no answer within 0.3 s"),
        ):
            issuer.status, issuer.content, issuer.silent = status, content, silent
            if silent:
                monkeypatch.setattr(limits, "TOKEN_KEYS_TIMEOUT_S", 0.3)
            with capturedLogs() as said:
                keys.reload()
                await until(lambda said=said, why=why: any(f"{url}: {why}" in str(event.get("why")) for event in said))
            assert names(tokens) == ["ES256"]
        monkeypatch.undo()
        issuer.status, issuer.content, issuer.silent = 200, key_set("RS256").encode(), False
        keys.reload()
        await until(lambda: names(tokens) == ["RS256"])
        keys.stop()


@pytest_twisted.ensureDeferred
async def test_a_server_over_tls_has_to_be_who_it_is() -> None:
    trust = trustRootFromCertificates([_certificate()])
    async with published(secure=True) as (issuer, url):
        tokens = looking()
        keys = TokenKeys(reactor, url, tokens, trust)
        keys.start()
        await until(lambda: names(tokens) == ["ES256"])
        keys.stop()
        stranger = looking()
        for where, trusted in ((url, None), (url.replace("127.0.0.1", "localhost"), trust)):
            keys = TokenKeys(reactor, where, stranger, trusted)
            with capturedLogs() as said:
                keys.start()
                await until(lambda said=said, where=where: any(where in str(event.get("why")) for event in said))
            keys.stop()
            assert names(stranger) == []
        assert issuer.asked == 1


def _certificate() -> Any:
    from cryptography.hazmat.primitives.serialization import Encoding
    from twisted.internet.ssl import Certificate

    return Certificate.loadPEM(authority().certificate.public_bytes(Encoding.PEM))


@pytest_twisted.ensureDeferred
async def test_a_broker_that_stops_does_not_wait_for_an_answer() -> None:
    async with published() as (issuer, url):
        issuer.silent = True
        keys = TokenKeys(reactor, url, looking())
        keys.start()
        await until(lambda: issuer.asked == 1)
        keys.stop()
        gone: Deferred[None] = Deferred()
        reactor.callLater(0.05, gone.callback, None)
        await gone
        assert keys._call is None


@pytest_twisted.ensureDeferred
async def test_the_connection_of_an_answer_that_stalls_is_closed_whatever_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when each attempt leaves a socket open."""
    monkeypatch.setattr(token_keys, "RETRY_S", 0.05)
    monkeypatch.setattr(limits, "TOKEN_KEYS_TIMEOUT_S", 0.2)
    tokens = looking()
    async with published() as (issuer, url):
        issuer.stalls = True
        keys = TokenKeys(reactor, url, tokens)
        with capturedLogs() as logs:
            keys.start()
            for status in (200, 503):
                issuer.status, left = status, issuer.left
                await until(lambda left=left: issuer.left >= left + 2)
            issuer.content = b"x" * 300_000
            await until(lambda: issuer.left >= left + 5)
            keys.stop()
        assert names(tokens) == []
        told = [event["why"] for event in logs if "why" in event]
        assert any("the server answers 503, and not 200" in why for why in told)
        assert not [event for event in logs if "log_failure" in event], "nor is an error left without anybody to take it"
