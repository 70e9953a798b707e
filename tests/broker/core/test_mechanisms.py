"""PLAIN and SCRAM: who knows the password gets in, nobody else does, and a stranger costs what a wrong password costs."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from scramp import ScramClient

from broker.core import sasl, users
from broker.core.identity import Certificate
from broker.core.mechanisms import External, Plain, Register, Scram, TakenAtItsWord, qualified
from broker.core.users import HASHES, SHA_256, SHA_512, Users

PASSWORD = "pen\u00adcil é"
NONCE = "server-nonce"


@cache
def known() -> Users:
    password = users.prepared(PASSWORD, "password")
    ann = {mechanism: users.derive(mechanism, password, b"salt" * 4) for mechanism in HASHES}
    return Users({"ann": ann}, b"secret")


def register(delay_s: float = 0.0) -> Register:
    return Register(known(), "QPID", lambda user: delay_s)


def finished(step: sasl.Step) -> sasl.Step:
    """What has been waited for is done."""
    while isinstance(step, sasl.Wait):
        step = step.then(b"" if step.work is None else step.work())
    return step


def plain(name: str, password: str, act_for: str = "") -> sasl.Step:
    return finished(Plain(register()).step(f"{act_for}\0{name}\0{password}".encode()))


ANN_BY_PLAIN = sasl.Grant("ann@QPID", "PLAIN", authenticated=True)


@pytest.mark.parametrize("name, act_for", [("ann", ""), ("ann", "ann"), ("ann@QPID", "")])
def test_plain_lets_in_who_knows_the_password(name: str, act_for: str) -> None:
    assert plain(name, PASSWORD, act_for) == ANN_BY_PLAIN


def test_a_password_is_compared_in_its_prepared_form() -> None:
    """RFC 4013: a soft hyphen counts for nothing, and a letter is itself in either of its encodings."""
    assert plain("ann", "pencil e\u0301") == ANN_BY_PLAIN


def test_plain_turns_away_who_does_not_and_says_the_same_of_whoever_is_not_there() -> None:
    assert plain("ann", "pencil") == sasl.Deny("SASL PLAIN as ann: name or password is wrong", "ann")
    assert plain("bob", PASSWORD) == sasl.Deny("SASL PLAIN as bob: name or password is wrong", "bob")


@pytest.mark.parametrize(
    "response, why",
    [
        (b"", "cannot be read"),
        (b"\0ann", "cannot be read"),
        (b"\0ann\0hunter2\0more", "cannot be read"),
        (b"\0ann\0hunter2\xff", "cannot be read"),
        (b"bob\0ann\0hunter2", "asks to act for another user, which is not allowed"),
        (b"\0ann\0", "the password is empty"),
        (b"\0ann\0hunter2\x07", "the password has a character that SASL does not allow"),
        (
            b"\0ann@elsewhere\0hunter2",
            "a name has no spaces, no @ , = in it, does not begin with #, and has at most 255 bytes",
        ),
    ],
)
def test_what_is_no_plain_response_is_turned_away_without_its_secret(response: bytes, why: str) -> None:
    assert Plain(register()).step(response) == sasl.Deny(f"SASL PLAIN: {why}")


def test_what_is_waited_for_shows_no_password() -> None:
    waits = Plain(register(0.5)).step(b"\0ann\0hunter2")
    assert isinstance(waits, sasl.Wait)
    assert waits.delay_s == 0.5
    assert repr(waits) == "Wait(delay_s=0.5)"


def test_where_nobody_has_to_log_in_plain_is_taken_at_its_word() -> None:
    assert TakenAtItsWord("QPID").step(b"\0ann\0whatever") == sasl.Grant("ann@QPID", "PLAIN")
    assert TakenAtItsWord("QPID").step(b"\0ann@QPID\0") == sasl.Grant("ann@QPID", "PLAIN")
    assert TakenAtItsWord("QPID").step(b"ann\0hunter2") == sasl.Deny("SASL PLAIN: cannot be read")


def test_a_user_has_a_realm_once_if_there_is_one() -> None:
    assert [qualified("ann", "QPID"), qualified("ann@QPID", "QPID"), qualified("ann", "")] == ["ann@QPID", "ann@QPID", "ann"]


# ---- SCRAM


def scram(mechanism: str, name: str, password: str, delay_s: float = 0.0) -> sasl.Step:
    """The last step of an exchange with a client of scramp's."""
    client, server = ScramClient([mechanism], name, password), Scram(mechanism, register(delay_s), NONCE)
    asked = finished(server.step(client.get_client_first().encode()))
    assert isinstance(asked, sasl.Ask)
    client.set_server_first(asked.challenge.decode())
    proved = server.step(client.get_client_final().encode())
    if not isinstance(proved, sasl.Ask):
        return proved
    client.set_server_final(proved.challenge.decode())  # it knows the server, too
    return server.step(b"")


@pytest.mark.parametrize("mechanism", HASHES)
def test_scram_lets_in_who_knows_the_password_and_shows_that_it_knows_the_user(mechanism: str) -> None:
    assert scram(mechanism, "ann", PASSWORD) == sasl.Grant("ann@QPID", mechanism, authenticated=True)


@pytest.mark.parametrize("name, password", [("ann", "pencil"), ("bob", PASSWORD)])
def test_scram_turns_away_who_does_not_after_the_same_steps(name: str, password: str) -> None:
    assert scram(SHA_256, name, password) == sasl.Deny(f"SASL SCRAM-SHA-256 as {name}: name or password is wrong", name)


def test_the_exchange_is_that_of_rfc_7677() -> None:
    """Its section 3, byte by byte."""
    salt = b"[m\x99h\x9d\x125\x8e\xec\xa0K\x14\x126\xfa\x81"
    user = {"user": {SHA_256: users.derive(SHA_256, "pencil", salt)}}
    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    server = Scram(SHA_256, Register(Users(user, b""), "", lambda user: 0.0), nonce)
    assert server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == sasl.Ask(
        f"r=rOprNGfwEbeRWgbNEkqO{nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    )
    final = f"c=biws,r=rOprNGfwEbeRWgbNEkqO{nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert server.step(final.encode()) == sasl.Ask(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert server.step(b"") == sasl.Grant("user", SHA_256, authenticated=True)


def test_a_login_that_is_put_off_is_put_off_before_anything_is_said() -> None:
    assert scram(SHA_256, "ann", PASSWORD, delay_s=0.5) == sasl.Grant("ann@QPID", SHA_256, authenticated=True)
    waits = Scram(SHA_256, register(0.5), NONCE).step(b"n,,n=ann,r=abc")
    assert isinstance(waits, sasl.Wait)
    assert (waits.delay_s, waits.work) == (0.5, None)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,n=ann",
        b"n,,m=x,n=ann,r=abc",
        b"p=tls-unique,,n=ann,r=abc",
        b"n,,n=ann,r=\xff",
        b"n,a=bob,n=ann,r=abc",
        b"n,,n=a=2Cnn,r=abc",
        b"n,,n=ann@elsewhere,r=abc",
    ],
)
def test_what_is_no_first_message_is_turned_away(message: bytes) -> None:
    assert Scram(SHA_256, register(), NONCE).step(message) == sasl.Deny("SASL SCRAM-SHA-256: cannot be read")


@pytest.mark.parametrize("letter, count", [("\ufdfa", 160), ("\ufdfa", 1290), ("\u0301", 1900)])
def test_what_grows_or_is_long_is_not_prepared(letter: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a stranger's frame of 4 KiB takes a quarter of a second: a ligature becomes eighteen letters, and SASLprep
    looks at each of them."""

    def prepare(text: str) -> str:
        raise AssertionError(f"{len(text)} characters are prepared")

    monkeypatch.setattr("scramp.core.saslprep", prepare)
    text, wrong = letter * count, "a name has no spaces, no @ , = in it, does not begin with #, and has at most 255 bytes"
    assert plain("ann", text) == sasl.Deny("SASL PLAIN: the password has more than 1024 characters")
    assert plain(text, "x") == sasl.Deny(f"SASL PLAIN: {wrong}")
    assert TakenAtItsWord("QPID").step(f"\0{text}\0x".encode()) == sasl.Deny(f"SASL PLAIN: {wrong}")
    first = f"n,,n={text},r=abc".encode()
    assert Scram(SHA_256, register(), NONCE).step(first) == sasl.Deny("SASL SCRAM-SHA-256: cannot be read")


@pytest.mark.parametrize("message", [b"y,,n=ann,r=abc", b"n,,n=ann@QPID,r=abc"])
def test_a_client_may_know_of_channel_bindings_or_write_its_realm(message: bytes) -> None:
    assert isinstance(Scram(SHA_256, register(), NONCE).step(message), sasl.Ask)


PROOF = b64encode(b"p" * 32)
RIGHT = b"c=biws,r=abc" + NONCE.encode() + b",p="


@pytest.mark.parametrize(
    "message",
    [
        RIGHT + PROOF,
        b"c=biws,r=abc,p=" + PROOF,
        b"c=eSws,r=abc" + NONCE.encode() + b",p=" + PROOF,
        RIGHT + b"cA==",
        RIGHT + b"cA",
    ],
    ids=["proof", "nonce", "binding", "short", "base64"],
)
def test_a_last_message_that_proves_nothing_is_turned_away(message: bytes) -> None:
    server = Scram(SHA_256, register(), NONCE)
    server.step(b"n,,n=ann,r=abc")
    assert server.step(message) == sasl.Deny("SASL SCRAM-SHA-256 as ann: name or password is wrong", "ann")


# ---- EXTERNAL


CERTIFICATE = Certificate(
    "CN=ann,O=Example", "ann", ("a.example", "b.example"), uris=("urn:ann",), emails=("ann@example.org", "")
)


@pytest.mark.parametrize(
    "where, user",
    [("cn", "ann@QPID"), ("email", "ann@example.org"), ("uri", "urn:ann"), ("subject", "CN=ann,O=Example")],
)
@pytest.mark.parametrize("says_so", [False, True])
def test_external_lets_in_whom_the_certificate_names(where: str, user: str, says_so: bool) -> None:
    step = External(CERTIFICATE, where, "QPID").step(user.encode() if says_so else b"")
    assert step == sasl.Grant(user, "EXTERNAL", authenticated=True)


@pytest.mark.parametrize(
    "certificate, where, why",
    [
        (CERTIFICATE, "dns", "the certificate has 2 names of the kind dns, and must have one"),
        (Certificate("O=Example"), "cn", "the certificate has 0 names of the kind cn, and must have one"),
        (
            Certificate("CN=a b", "a b"),
            "cn",
            "a name has no spaces, no @ , = in it, does not begin with #, and has at most 255 bytes",
        ),
        (
            Certificate("x" * 256),
            "subject",
            "the certificate's subject has more than 255 bytes, or what cannot be printed",
        ),
        (
            Certificate("", uris=("a\nb",)),
            "uri",
            "the certificate's uri has more than 255 bytes, or what cannot be printed",
        ),
    ],
)
def test_a_certificate_that_names_nobody_lets_nobody_in(certificate: Certificate, where: str, why: str) -> None:
    assert External(certificate, where, "QPID").step(b"") == sasl.Deny(f"SASL EXTERNAL: {why}")


def test_who_has_a_certificate_acts_for_itself() -> None:
    assert External(CERTIFICATE, "cn", "QPID").step(b"ann") == sasl.Grant("ann@QPID", "EXTERNAL", authenticated=True)
    denied = sasl.Deny("SASL EXTERNAL: asks to act for another user, which is not allowed", "ann@QPID")
    assert External(CERTIFICATE, "cn", "QPID").step(b"bob") == denied


# ---- for all of them

MESSAGES = some.one_of(
    some.binary(max_size=80),
    some.text("\0,=@nryacpimev ab1+/é\u0007", max_size=60).map(str.encode),
    some.builds(lambda a, b: b"n,,n=" + a + b",r=" + b, some.binary(max_size=20), some.binary(max_size=20)),
    some.builds(lambda a, b: b"c=" + a + b",r=abc" + NONCE.encode() + b",p=" + b, *[some.binary(max_size=20).map(b64encode)] * 2),
    some.sampled_from([b"n,,n=ann,r=abc", RIGHT + PROOF, b"\0ann\0hunter2"]),
)
MAKERS: list[Callable[[], Any]] = [
    lambda: Plain(register()),
    lambda: TakenAtItsWord("QPID"),
    lambda: External(Certificate("O=Example"), "cn", "QPID"),
    lambda: Scram(SHA_256, register(), NONCE),
    lambda: Scram(SHA_512, register(), NONCE),
]


@given(some.sampled_from(MAKERS), some.lists(MESSAGES, min_size=1, max_size=4))
def test_any_bytes_give_a_step_and_no_error(make: Callable[[], Any], messages: list[bytes]) -> None:
    mechanism = make()
    for message in messages:
        step = mechanism.step(message)
        if isinstance(step, sasl.Wait):
            step = step.then(b"not the key")
        assert not isinstance(step, sasl.Grant) or not step.authenticated
        if not isinstance(step, sasl.Ask):
            return


@given(some.text("abcdefgh", min_size=8, max_size=20))
def test_a_reason_has_no_secret_in_it(password: str) -> None:
    for response in (f"\0ann\0{password}", f"\0ann\0{password}\0", f"\0{password}", f"bob\0ann\0{password}", password):
        for mechanism in (Plain(register()), Scram(SHA_256, register(), NONCE)):
            step = mechanism.step(response.encode())
            step = step.then(b"wrong") if isinstance(step, sasl.Wait) else step
            assert password not in repr(step)


@pytest.mark.parametrize("mechanism", ["PLAIN", *HASHES])
def test_whoever_is_not_there_costs_the_work_of_a_wrong_password(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted and not measured: each call of a hash function's, with the iterations that it was asked for."""
    work: Counter[tuple[object, ...]] = Counter()
    pbkdf2, digest, new = hashlib.pbkdf2_hmac, hmac.digest, hmac.new

    def counting(function: Any, *told: int) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            work[function.__name__, *(arguments[i] for i in told)] += 1
            return function(*arguments, **named)

        return call

    def cost(name: str) -> Counter[tuple[object, ...]]:
        work.clear()
        assert isinstance(plain(name, "wrong") if mechanism == "PLAIN" else answered(name), sasl.Deny)
        return Counter(work)

    def answered(name: str) -> sasl.Step:
        server = Scram(mechanism, register(), NONCE)
        server.step(f"n,,n={name},r=abc".encode())
        return server.step(RIGHT + b64encode(b"p" * hashlib.new(HASHES[mechanism]).digest_size))

    cost("ann")
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counting(pbkdf2, 0, 3))
    monkeypatch.setattr(hmac, "digest", counting(digest))
    monkeypatch.setattr(hmac, "new", counting(new))
    there, nowhere = cost("ann"), cost("bob")
    assert there == nowhere
    assert sum(count for (name, *_), count in there.items() if name == "pbkdf2_hmac") == (mechanism == "PLAIN")
    assert sum(there.values()) > 1
