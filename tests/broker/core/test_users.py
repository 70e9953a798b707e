"""The users' file: what is written can be read, what is wrong is named by its line, and a stranger looks like a user."""

from __future__ import annotations

import hashlib
import hmac
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as some

from broker.core import limits, users
from broker.core.users import SHA_256, SHA_512, BadPassword, BadUsers, Keys, Users, derive, line_of, parse, with_line

KEYS = Keys(b"salt" * 4, 4096, b"s" * 32, b"v" * 32)
LINE = line_of("ann", {SHA_256: KEYS})


def test_the_keys_are_those_of_rfc_5802() -> None:
    """Its section 3: StoredKey is the hash of ClientKey, which is not kept, and ServerKey stands beside it."""
    keys, salted = derive(SHA_256, "pencil", b"salt" * 4), hashlib.pbkdf2_hmac("sha256", b"pencil", b"salt" * 4, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    assert keys == Keys(b"salt" * 4, 4096, hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", "sha256"))
    assert derive(SHA_512, "pencil", b"salt" * 4).stored != keys.stored


def test_what_calculates_is_loaded_once_for_each_mechanism() -> None:
    """Most commands do not need it, and it takes long to load."""
    users.scram.cache_clear()
    found = users.scram(SHA_256)
    assert users.scram(SHA_256) is found is not users.scram(SHA_512)


def _is_name(text: str) -> bool:
    try:
        return users.name_of(text) == text
    except BadPassword:
        return False


NAMES = some.text(min_size=1, max_size=20).filter(_is_name)
VERIFIERS = some.builds(
    Keys, some.binary(min_size=16, max_size=20), some.integers(4096, 10_000), *[some.binary(min_size=32, max_size=32)] * 2
)


@given(some.dictionaries(NAMES, VERIFIERS, max_size=5))
def test_what_is_written_can_be_read(found: dict[str, Keys]) -> None:
    text = "# users\n\n"
    for name, keys in found.items():
        text = with_line(text, name, line_of(name, {SHA_256: keys}))
    assert parse(text) == {name: {SHA_256: keys} for name, keys in found.items()}
    for name in found:
        text = with_line(text, name, None)
    assert text == "# users\n\n"


@given(some.text())
def test_any_text_is_read_or_is_refused_by_line(text: str) -> None:
    found: object = None
    line = 1
    try:
        found = parse(text)
    except BadUsers as error:
        line = error.line
    assert not found
    assert 1 <= line <= text.count("\n") + 1


def test_a_user_s_line_is_replaced_where_it_stands() -> None:
    text = f"# ours\nbob x\n{LINE}\neve y\n"
    assert with_line(text, "bob", "bob z") == f"# ours\nbob z\n{LINE}\neve y\n"
    assert with_line(text, "dan", "dan z") == f"{text}dan z\n"


SECRET = "hunter2"


@pytest.mark.parametrize(
    "line, said",
    [
        (f"ann {SECRET}", "ann has keys that cannot be read; they look like SCRAM-SHA-256$4096:SALT$KEY:KEY"),
        ("ann", "ann has no keys: add this user again with qpid-passwd"),
        (LINE.replace("256", "1"), "ann has keys for SCRAM-SHA-1; there are SCRAM-SHA-512 and SCRAM-SHA-256"),
        (LINE.replace("4096", "4095"), "ann has keys of 4095 iterations: 4096 to 1000000 can be"),
        (LINE.replace("4096", "999999999"), "ann has keys of 999999999 iterations: 4096 to 1000000 can be"),
        (LINE.replace("256", "512"), "ann has keys for SCRAM-SHA-512 that are not of 64 bytes each, with 16 of salt"),
        (LINE + "=", "ann has keys that are not base64"),
        (
            LINE.replace("ann", "ann@QPID"),
            "a name has no spaces, no @ , = in it, does not begin with #, and has at most 255 bytes; "
            "qpid-passwd writes such lines",
        ),
        (LINE.replace("ann", "a\u00adnn"), "the name is not in its prepared form (RFC 4013); qpid-passwd writes such lines"),
        (LINE.replace("ann", "a\u0007nn"), "the name has a character that SASL does not allow; qpid-passwd writes such lines"),
    ],
)
def test_a_wrong_line_is_named_and_no_secret_with_it(line: str, said: str) -> None:
    with pytest.raises(BadUsers) as caught:
        parse(f"# ours\n\n{line}\n")
    assert (caught.value.line, str(caught.value)) == (3, said)
    assert SECRET not in said


def test_a_name_stands_once_and_there_is_a_most_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadUsers, match=r"^ann is also in line 1"):
        parse(f"{LINE}\n{LINE}\n")
    monkeypatch.setattr(limits, "MAX_USERS", 1)
    with pytest.raises(BadUsers, match="more than 1 users"):
        parse(f"{LINE}\n{LINE.replace('ann', 'bob')}\n")


def test_an_empty_password_is_none() -> None:
    with pytest.raises(BadPassword, match=r"^the password is empty$"):
        users.prepared("\u00ad", "password")


def test_a_name_may_come_in_more_characters_than_it_has() -> None:
    """The longest names of Greek letters, each of which a client may send as four characters."""
    name = "\u1f82" * 85
    assert users.name_of(normalize("NFD", name)) == name
    with pytest.raises(BadPassword, match="at most 255 bytes"):
        users.name_of(normalize("NFD", name + "\u1f82"))


def test_nothing_secret_is_in_a_repr() -> None:
    assert repr(KEYS) == "Keys(iterations=4096)"


def test_whoever_is_not_there_has_keys_that_stay_the_same_and_look_like_the_others() -> None:
    many = {f"user{i}": {SHA_256: Keys(b"x" * 16, 5000, b"s" * 32, b"v" * 32)} for i in range(3)}
    many["ann"] = {SHA_256: KEYS}
    found = Users(many, b"secret")
    keys = found.find(SHA_256, "nobody")
    assert (len(keys.salt), keys.iterations, len(keys.stored)) == (16, 5000, 32)
    assert found.find(SHA_256, "nobody") == keys
    assert found.find(SHA_256, "nobody else") != keys
    assert Users(many, b"another process").find(SHA_256, "nobody") != keys
    assert found.find(SHA_256, "ann") == KEYS
    assert len(found.find(SHA_512, "ann").stored) == 64, "there are no keys of its own for that"
    assert len(found) == 4


def test_passwords_are_looked_at_by_the_cheapest_keys_that_a_user_has_and_a_stranger_s_by_those_of_most() -> None:
    large = Keys(b"x" * 16, 4096, b"s" * 64, b"v" * 64)
    few = Users({"ann": {SHA_512: large}, "bob": {SHA_512: large}, "eve": {SHA_512: large, SHA_256: KEYS}}, b"")
    assert [few.mechanism_of(name) for name in ("ann", "eve", "nobody")] == [SHA_512, SHA_256, SHA_512]
    assert Users({}, b"").mechanism_of("nobody") == SHA_256


def test_who_is_in_the_file_is_known_by_name_alone() -> None:
    found = Users({"ann": {SHA_256: users.derive(SHA_256, "secret", b"salt" * 4)}}, b"nobody knows")
    assert ("ann" in found, "bob" in found, 7 in found) == (True, False, False)
