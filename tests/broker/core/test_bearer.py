"""SASL by tokens: what clients send, who they are then, and what is said of those who do not get in."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.core import limits, sasl, users
from broker.core.bearer import CBS, OAUTHBEARER, XOAUTH2, Desk, Later, Oauth
from broker.core.mechanisms import Plain, Register
from broker.core.tokens import Rules, Tokens, parse_keys
from broker.core.users import SHA_256, Users
from tests.tokens import AUDIENCE, ISSUER, NOW_S, key_set, token

TOKEN = token()
UNTIL_S = NOW_S + 600 + limits.TOKEN_LEEWAY_S
USERS = Users({"bob": {SHA_256: users.derive(SHA_256, "secret", b"salt" * 4)}}, b"nobody knows")
REGISTER = Register(USERS, "QPID", lambda name: 0.0)


def desk(realm: str = "QPID") -> Desk:
    tokens = Tokens(Rules(ISSUER, AUDIENCE), lambda: NOW_S)
    tokens.keys = parse_keys(key_set("ES256"))
    return Desk(tokens, realm, lambda: 0.5)


def done(step: sasl.Step) -> sasl.Step:
    """The step behind the waiting, which is as long as the desk says."""
    if isinstance(step, sasl.Wait):
        assert step.work is not None
        return step.then(step.work())
    return step


def oauthbearer(name: str, said: str) -> tuple[str, bytes]:
    return OAUTHBEARER, f"n,a={name},\x01host=broker\x01port=5671\x01auth=Bearer {said}\x01\x01".encode()


def xoauth2(name: str, said: str) -> tuple[str, bytes]:
    return XOAUTH2, f"user={name}\x01auth=Bearer {said}\x01\x01".encode()


def plain(name: str, said: str) -> tuple[str, bytes]:
    return sasl.PLAIN, f"\0{name}\0{said}".encode()


FORMS = [oauthbearer, xoauth2, plain]


def take(mechanism: str, response: bytes, at: Desk | None = None) -> sasl.Step:
    at = at or desk()
    made = Plain(REGISTER, at) if mechanism == sasl.PLAIN else Oauth(mechanism, at)
    return done(made.step(response))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["", "ann", "ann@QPID"])
def test_a_client_is_whom_its_token_names_for_as_long_as_that_counts(form: object, name: str) -> None:
    mechanism, response = form(name, TOKEN)  # type: ignore[operator]
    assert take(mechanism, response) == sasl.Grant("ann@QPID", mechanism, authenticated=True, until_s=UNTIL_S)


def test_a_name_of_elsewhere_gets_no_realm_and_where_there_is_none_nobody_does() -> None:
    assert take(*xoauth2("", token(sub="ann@example.org"))) == sasl.Grant("ann@example.org", XOAUTH2, True, UNTIL_S)
    assert take(*xoauth2("", TOKEN), desk(realm="")) == sasl.Grant("ann", XOAUTH2, True, UNTIL_S)


@pytest.mark.parametrize("form", FORMS)
def test_who_shows_no_good_token_is_turned_away_and_nothing_of_it_is_told(form: object) -> None:
    bad = {
        "eyJhbGciOiJub25lIn0.e30.": "the token is not signed by RS256",
        token(exp=NOW_S - 100): "the token has expired 100 s ago",
        TOKEN[:-4] + "AAAA": "the token has a wrong signature",
    }
    for said, why in bad.items():
        mechanism, response = form("ann", said)  # type: ignore[operator]
        step = take(mechanism, response)
        assert isinstance(step, sasl.Deny)
        assert why in step.reason
        assert step.user == "", "whom it names has not been shown"
        assert not any(part and part in repr(step) for part in said.split("."))
    mechanism, response = form("root", TOKEN)  # type: ignore[operator]
    step = take(mechanism, response)
    assert isinstance(step, sasl.Deny)
    assert step.reason == f"SASL {mechanism}: the token is ann@QPID's, and the client says that it is somebody else"


def test_a_login_by_token_is_put_off_as_any_other() -> None:
    mechanism, response = xoauth2("", TOKEN)
    step = Oauth(mechanism, desk()).step(response)
    assert isinstance(step, sasl.Wait)
    assert step.delay_s == 0.5


@given(st.binary(max_size=80) | st.text(alphabet="n,ay=\x01uthBer \0", max_size=40).map(str.encode))
@example(b"n,,\x01auth=Bearer\x01\x01")
@example(b"p=tls-unique,,\x01auth=Bearer a.b.c\x01\x01")
@example(b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer a.b.c\x01\x01")
@example(b"user=ann\x01auth=Basic abc\x01\x01")
@example(b"user=ann\x01\x01")
@example(b"user\x01auth=Bearer a.b.c\x01\x01")
@example(b"\xff\x01\x01")
def test_bytes_of_any_kind_are_refused(response: bytes) -> None:
    assert all(isinstance(take(mechanism, response), sasl.Deny) for mechanism in (OAUTHBEARER, XOAUTH2))


def test_the_names_of_rfc_5801_are_read() -> None:
    """A comma and an equals sign are written otherwise there."""
    name, said = "o'hara=2C=3D", token(sub="x@o'hara,=")
    step = take(OAUTHBEARER, f"y,a=x@{name},\x01auth=bearer {said} \x01\x01".encode())
    assert step == sasl.Grant("x@o'hara,=", OAUTHBEARER, True, UNTIL_S)
    assert take(OAUTHBEARER, f"n,,\x01auth=Bearer {TOKEN}\x01\x01".encode()) == sasl.Grant("ann@QPID", OAUTHBEARER, True, UNTIL_S)


def test_a_password_that_is_no_token_is_looked_at_as_before() -> None:
    assert take(*plain("bob", "secret")) == sasl.Grant("bob@QPID", sasl.PLAIN, authenticated=True)
    assert take(*plain("bob", "wrong")) == sasl.Deny("SASL PLAIN as bob: name or password is wrong", "bob")
    assert done(Plain(None, desk()).step(plain("bob", "secret")[1])) == sasl.Deny(
        "SASL PLAIN: the password is not a token, and there are no users (--users)"
    )
    without = done(Plain(REGISTER).step(plain("bob", TOKEN)[1]))
    assert without == sasl.Deny("SASL PLAIN as bob: name or password is wrong", "bob")


def test_who_is_to_show_a_token_later_comes_in_as_nobody_and_not_without_the_sasl_layer() -> None:
    exchange = sasl.Exchange({sasl.ANONYMOUS: Later})
    assert not exchange.admits_strangers
    assert Later().step(b"me") == sasl.Grant(sasl.NOBODY, CBS)
    assert sasl.Exchange(sasl.OFFERED).admits_strangers
