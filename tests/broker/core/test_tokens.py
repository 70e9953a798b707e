"""Tokens and the keys for them: what counts, what does not, and that nothing else is taken for either."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import OctKey

from broker.core import limits
from broker.core.tokens import ALGORITHMS, BadKeys, BadToken, Bearer, Rules, Tokens, may_be_token, parse_keys
from tests.certificates import authority
from tests.tokens import AUDIENCE, CLAIMS, ISSUER, NOW_S, key, key_set, public, signed, token


def looking(keys: str | None = None, now_s: float = NOW_S, **rules: Any) -> Tokens:
    tokens = Tokens(Rules(ISSUER, AUDIENCE, **rules), lambda: now_s)
    tokens.keys = parse_keys(key_set("ES256", "RS256", "PS256", "EdDSA") if keys is None else keys)
    return tokens


def bearer(text: str, tokens: Tokens | None = None) -> Bearer:
    tokens = tokens or looking()
    return tokens.bearer(tokens.looked_at(text)())


def pem(*algorithms: str) -> str:
    found = (key(algorithm).public_key for algorithm in algorithms)
    return "".join(one.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode() for one in found)


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
def test_a_token_that_is_signed_names_its_user_and_its_end(algorithm: str) -> None:
    text = token(algorithm)
    assert bearer(text) == Bearer("ann", NOW_S + 600 + limits.TOKEN_LEEWAY_S)
    assert bearer(text, looking(pem("RS256", "PS256", "ES256", "EdDSA"))).user == "ann", "keys in PEM form have no names"
    head, payload, signature = text.split(".")
    other = base64.urlsafe_b64encode(json.dumps(CLAIMS | {"sub": "root"}).encode()).decode().rstrip("=")
    for forged in (f"{head}.{other}.{signature}", f"{head}.{payload}.{signature[:-8]}AAAAAAAA", f"{head}.{payload}."):
        with pytest.raises(BadToken, match="has a wrong signature"):
            bearer(forged)


@given(st.sampled_from(["RS256", "PS256", "ES256", "EdDSA"]), st.binary(max_size=300))
def test_bytes_of_any_kind_are_no_signature(algorithm: str, signature: bytes) -> None:
    signed_part = token(algorithm).rpartition(".")[0]
    encoded = base64.urlsafe_b64encode(signature).decode().rstrip("=")
    assert looking().looked_at(f"{signed_part}.{encoded}")() == b""


def test_the_newer_name_of_an_algorithm_is_taken_too() -> None:
    assert bearer(token("Ed25519", {"kid": "EdDSA"}, key("EdDSA"))).user == "ann"
    assert set(ALGORITHMS.values()) == {"RS256", "PS256", "ES256", "Ed25519"}


def test_a_public_key_is_no_secret_to_sign_with_and_no_signature_is_none() -> None:
    """Breaks when the header decides how a key is used: then whoever reads the public keys is anybody (RFC 8725, 2.1)."""
    for secret in (pem("RS256"), key_set("RS256")):
        forged = signed("HS256", json.dumps(CLAIMS), {"kid": "RS256"}, OctKey.import_key(base64.b64encode(secret.encode())))
        with pytest.raises(BadToken, match="is not signed by RS256"):
            bearer(forged)
    head, payload, _ = token().split(".")
    for algorithm in ("none", "None", "RS512", "ES256K", None, ["ES256"]):
        head = base64.urlsafe_b64encode(json.dumps({"alg": algorithm}).encode()).decode().rstrip("=")
        with pytest.raises(BadToken, match="is not signed by"):
            bearer(f"{head}.{payload}.")


@pytest.mark.parametrize(
    "claims, why",
    [
        ({"iss": "https://other.example"}, "is of another issuer than --token-issuer"),
        ({"iss": None}, "is of another issuer"),
        ({"aud": "other"}, "is not for --token-audience"),
        ({"aud": ["other", "others"]}, "is not for --token-audience"),
        ({"aud": None}, "is not for --token-audience"),
        ({"aud": {"understudy": 1}}, "is not for --token-audience"),
        ({"exp": None}, "has no expiry time"),
        ({"exp": "tomorrow"}, "has no expiry time"),
        ({"exp": True}, "has no expiry time"),
        ({"exp": 10**400}, "has no expiry time"),
        ({"exp": float("nan")}, "has no expiry time"),
        ({"nbf": "now"}, "has no expiry time"),
        ({"exp": NOW_S - limits.TOKEN_LEEWAY_S}, "has expired 60 s ago"),
        ({"nbf": NOW_S + limits.TOKEN_LEEWAY_S + 1}, "is not valid yet, for 61 s"),
        ({"sub": None}, "has no claim sub with a name"),
        ({"sub": 7}, "has no claim sub with a name"),
        ({"sub": ""}, "has a claim sub that cannot be a user's name"),
        ({"sub": "a b"}, "has a claim sub that cannot be a user's name"),
        ({"sub": "ann@example.org\n"}, "has a claim sub that cannot be a user's name"),
        ({"sub": "a@" + "b" * limits.MAX_NAME_BYTES}, "has a claim sub that cannot be a user's name"),
    ],
)
def test_a_token_that_says_otherwise_does_not_count(claims: dict[str, Any], why: str) -> None:
    with pytest.raises(BadToken, match=why):
        bearer(token(**claims))


@pytest.mark.parametrize(
    "claims, rules, user",
    [
        ({"aud": ["other", AUDIENCE]}, {}, "ann"),
        ({"sub": "ann@example.org"}, {}, "ann@example.org"),
        ({"client_id": "app-7"}, {"user_claim": "client_id"}, "app-7"),
        ({"exp": NOW_S - limits.TOKEN_LEEWAY_S + 1}, {}, "ann"),
        ({"nbf": NOW_S + limits.TOKEN_LEEWAY_S, "exp": NOW_S + 1e6}, {}, "ann"),
    ],
)
def test_a_token_may_say_more_and_clocks_may_differ(claims: dict[str, Any], rules: dict[str, Any], user: str) -> None:
    assert bearer(token(**claims), looking(**rules)).user == user


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "is not a JSON Web Token"),
        ("a.b", "is not a JSON Web Token"),
        ("a.b.c.d", "is not a JSON Web Token"),
        ("eyJ.e30.AAAAA", "is not a JSON Web Token"),
        ("e+0.e30.AA", "is not a JSON Web Token"),
        ("W10.e30.AA", "has a header that cannot be read"),
        ("eyJ.e30.AA", "has a header that cannot be read"),
        (signed("ES256", "[]"), "has claims that cannot be read"),
        (signed("ES256", "[" * 5000), "has claims that cannot be read"),
        (base64.urlsafe_b64encode(b"[" * 3000).decode() + ".e30.AA", "has a header that cannot be read"),
        (
            base64.urlsafe_b64encode(b'{"alg":"ES256","crit":["exp"]}').decode().rstrip("=") + ".e30.AA",
            "has a header that cannot be read, or that asks for an unknown feature",
        ),
    ],
)
def test_what_is_no_token_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadToken, match=why):
        bearer(text)


@given(st.binary(max_size=60), st.text(alphabet="ab.eyJ0-_{}\0\x01", max_size=60))
def test_any_text_is_read_or_refused(header: bytes, text: str) -> None:
    tokens = looking()
    for each in (text, base64.urlsafe_b64encode(header).decode().rstrip("=") + ".e30.AA"):
        with pytest.raises(BadToken) as refused:
            tokens.looked_at(each)
        assert len(each) < 20 or each not in str(refused.value)


def test_a_key_that_is_not_there_is_asked_for() -> None:
    asked: list[str] = []
    tokens = looking(key_set("RS256"))
    tokens.key_is_missing = lambda: asked.append("now")
    for text in (token("ES256"), token("RS256", {"kid": "other"}), token("EdDSA", {"kid": None})):
        with pytest.raises(BadToken, match="not among those of --token-keys"):
            tokens.looked_at(text)
    assert len(asked) == 3
    assert bearer(token("RS256", {"kid": None}), tokens).user == "ann", "a token need not name its key"
    assert len(asked) == 3


def test_a_key_is_for_what_its_set_says() -> None:
    said = [public("RS256", alg="PS256"), public("ES256"), public("EdDSA", alg="EdDSA")]
    assert [one.algorithms for one in parse_keys(json.dumps({"keys": said}))] == [("PS256",), ("ES256",), ("Ed25519",)]
    left_out = [
        public("ES256", use="enc"),
        public("ES256", key_ops=["encrypt"]),
        public("ES256", alg="ECDH-ES"),
        public("ES384"),
        public("RS256", alg="RS512"),
        {"kty": "new"},
    ]
    (only,) = parse_keys(json.dumps({"keys": [*left_out, public("ES256", kid=None)]}))
    assert only.kid == ""
    with pytest.raises(BadKeys, match="it has no key for signatures by RS256"):
        parse_keys(json.dumps({"keys": left_out}))


def small_rsa() -> dict[str, Any]:
    numbers = rsa.generate_private_key(65537, 1024).public_key().public_numbers()
    encoded = base64.urlsafe_b64encode(numbers.n.to_bytes(128, "big")).decode().rstrip("=")
    return {"kty": "RSA", "n": encoded, "e": "AQAB"}


def small_rsa_pem() -> str:
    made = rsa.generate_private_key(65537, 1024).public_key()
    return made.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def private_pem() -> str:
    made = ec.generate_private_key(ec.SECP256R1())
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "neither a JSON Web Key Set nor PEM"),
        ("[" * 100_000, "neither a JSON Web Key Set nor PEM"),
        ("[]", 'has a list "keys"'),
        ('{"keys": {}}', 'has a list "keys"'),
        (json.dumps({"keys": [{}] * (limits.MAX_TOKEN_KEYS + 1)}), f"of {limits.MAX_TOKEN_KEYS} at most"),
        ('{"keys": []}', "it has no key for signatures"),
        ('{"keys": [1]}', "key 1 is not a JSON object"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "key 1 is a secret: only public keys"),
        (json.dumps({"keys": [{"kty": "new"}, key("ES256").as_dict(private=True)]}), "key 2 is a secret"),
        (json.dumps({"keys": [public("ES256", x="AA")]}), "key 1 cannot be read"),
        (json.dumps({"keys": [public("ES256", x=7)]}), "key 1 cannot be read"),
        (json.dumps({"keys": [small_rsa()]}), "key 1 has 1024 bits: 2048 are the least"),
        (json.dumps({"keys": [small_rsa() | {"n": "AAAAA"}]}), "key 1 cannot be read"),
        (json.dumps({"keys": [{"kty": "RSA", "e": "AQAB"}]}), "key 1 cannot be read"),
        (small_rsa_pem(), "PEM block 1 has 1024 bits: 2048 are the least"),
        (private_pem(), "PEM block 1 is neither a public key nor a certificate"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "PEM block 1 cannot be read"),
        (pem("ES256") * (limits.MAX_TOKEN_KEYS + 1), "there are more than"),
        (pem("ES384"), "it has no key for signatures"),
    ],
)
def test_what_are_no_keys_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadKeys, match=why):
        parse_keys(text)


def test_a_certificate_has_a_key_in_it_and_other_kinds_of_keys_are_left_out() -> None:
    certified = authority().certificate.public_bytes(Encoding.PEM).decode()
    other = dsa.generate_private_key(2048).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    assert [one.algorithms for one in parse_keys(other + certified)] == [("ES256",)]


def test_a_password_that_looks_like_a_token_is_told_from_one_that_does_not() -> None:
    assert may_be_token(token())
    assert not any(map(may_be_token, ("secret", "eyJ", "eyJ.a", "eyJ.a.b.c", "a.b.c", "eyJ.a.b ")))
