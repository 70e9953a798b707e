"""Tokens with which clients log in: JSON Web Tokens (RFC 7519), signed by an identity provider, and the keys to verify them.

Life of a token: a mechanism passes it to `Tokens.looked_at`, which reads its header (which is not verified yet), chooses the keys
that may have signed it, and returns the work of verifying the signature. The caller does this work in a thread. The result is the
signed content as bytes. From its claims `Tokens.bearer` reads the user and the end of validity.

Keys are public keys, from a set in JSON (RFC 7517) or in PEM form (public keys or certificates). Keys of a set for other
purposes, or of unknown kinds, are ignored (RFC 7517, part 5).

Invariants: any text is read, or refused with a reason that contains nothing of the token; a token is accepted only if it is
signed by one of `ALGORITHMS` with a key for that algorithm, has the right issuer and audience, and is within its time; a token
without an expiry is never accepted; no symmetric or private key is accepted.

Source: RFC 8725 (which tokens to accept), RFC 7518, RFC 8037 and RFC 9864 (algorithms).
"""

from __future__ import annotations

import json
import math
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.core import limits
from broker.core.users import BadPassword, name_of

ALGORITHMS = {"RS256": "RS256", "PS256": "PS256", "ES256": "ES256", "EdDSA": "Ed25519", "Ed25519": "Ed25519"}
"""Names of algorithms in a header -> the algorithm."""
_KINDS = {("RSA", ""): ("RS256", "PS256"), ("EC", "P-256"): ("ES256",), ("OKP", "Ed25519"): ("Ed25519",)}
"""Kind and curve of a key -> its algorithms."""
_MIN_RSA_BITS = 2048
_TRIED = 4
"""Maximum number of keys that are tried for a token that does not name its key."""
_PART = re.compile(r"[A-Za-z0-9_-]*")
_SHAPE = re.compile(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")
"""A header in JSON begins with `{"`, which is `eyJ` in base64."""
_PEM = re.compile(r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)


class BadToken(ValueError):
    """The token is not accepted. The text completes "the token ...", and contains nothing of it."""


class BadKeys(ValueError):
    """These keys cannot verify tokens. The text says why."""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key: its name ("" if it has none), its allowed algorithms, and the key."""

    kid: str
    algorithms: tuple[str, ...]
    key: Any = field(repr=False)


def parse_keys(text: str) -> tuple[Key, ...]:
    """The keys of a file's text, in JSON or PEM form. BadKeys."""
    found = _from_pem(text) if "-----BEGIN " in text else _from_json(text)
    if not found:
        raise BadKeys(f"it has no key for signatures by {', '.join(ALGORITHMS)}")
    return tuple(found)


def _from_json(text: str) -> list[Key]:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise BadKeys("this is neither a JSON Web Key Set nor PEM") from None
    keys = said.get("keys") if isinstance(said, dict) else None
    if not isinstance(keys, list) or len(keys) > limits.MAX_TOKEN_KEYS:
        raise BadKeys(f'a JSON Web Key Set has a list "keys", of {limits.MAX_TOKEN_KEYS} at most')
    read = (_from_jwk(number, one) for number, one in enumerate(keys, 1))
    return [key for key in read if key is not None]


def _from_jwk(number: int, said: Any) -> Key | None:
    """One key of a set; None if it is for another purpose."""
    if not isinstance(said, dict):
        raise BadKeys(f"key {number} is not a JSON object")
    if said.get("kty") == "oct" or "d" in said or "k" in said:
        raise BadKeys(f"key {number} is a secret: only public keys belong here")
    kind = str(said.get("kty"))
    algorithms = _KINDS.get((kind, str(said.get("crv", ""))), ())
    kid, operations = said.get("kid", ""), said.get("key_ops", ["verify"])
    if "alg" in said:
        algorithms = tuple(name for name in algorithms if name == ALGORITHMS.get(str(said["alg"])))
    if not algorithms or said.get("use", "sig") != "sig" or "verify" not in operations:
        return None
    return _made(f"key {number}", kind, said, algorithms, kid if isinstance(kid, str) else "")


def _made(what: str, kind: str, data: Any, algorithms: tuple[str, ...], kid: str) -> Key:
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    try:
        if kind == "RSA":
            _weigh(what, data)
        return Key(kid, algorithms, JWKRegistry.import_key(data, kind))
    except BadKeys:
        raise
    except (JoseError, ValueError, TypeError, KeyError):
        raise BadKeys(f"{what} cannot be read") from None


def _weigh(what: str, data: Any) -> None:
    """BadKeys when an RSA key is too small. joserfc would only write a warning to stderr."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if isinstance(data, bytes):
        public: Any = load_pem_public_key(data)
        bits = int(public.key_size)
    else:
        bits = int.from_bytes(_decoded(data["n"]), "big").bit_length()
    if bits < _MIN_RSA_BITS:
        raise BadKeys(f"{what} has {bits} bits: {_MIN_RSA_BITS} are the least for RSA")


def _from_pem(text: str) -> list[Key]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    found = []
    for number, block in enumerate(_PEM.finditer(text), 1):
        what, pem = f"PEM block {number}", block[0].encode()
        if block[1] not in ("PUBLIC KEY", "CERTIFICATE"):
            raise BadKeys(f"{what} is neither a public key nor a certificate")
        if number > limits.MAX_TOKEN_KEYS:
            raise BadKeys(f"there are more than {limits.MAX_TOKEN_KEYS} keys")
        try:
            certified = block[1] == "CERTIFICATE"
            public: Any = x509.load_pem_x509_certificate(pem).public_key() if certified else load_pem_public_key(pem)
            pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        except ValueError:
            raise BadKeys(f"{what} cannot be read") from None
        kind = _kind_of(public)
        if kind in _KINDS:
            found.append(_made(what, kind[0], pem, _KINDS[kind], ""))
    return found


def _kind_of(public: Any) -> tuple[str, str]:
    """Kind and curve of a key of the cryptography package, as a JSON Web Key names them; others than those of `_KINDS` differ."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(public, rsa.RSAPublicKey):
        return "RSA", ""
    if isinstance(public, ed25519.Ed25519PublicKey):
        return "OKP", "Ed25519"
    return "EC", "P-256" if isinstance(getattr(public, "curve", None), ec.SECP256R1) else "other"


def may_be_token(text: str) -> bool:
    """Whether a password has the shape of a token."""
    return _SHAPE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Bearer:
    """The user of a token, and the end of its validity, in seconds since 1970."""

    user: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Rules:
    """The required issuer and audience of a token, and the claim with the user. `leeway_s`: the allowed difference between the
    clocks of issuer and broker."""

    issuer: str
    audience: str
    user_claim: str = "sub"
    leeway_s: float = limits.TOKEN_LEEWAY_S


class Tokens:
    """See the module. `wall` gives seconds since 1970. `key_is_missing` is called when a token names an unknown key."""

    def __init__(self, rules: Rules, wall: Callable[[], float]) -> None:
        self.keys: Sequence[Key] = ()
        """May be replaced."""
        self.key_is_missing: Callable[[], None] = lambda: None
        self._rules = rules
        self.wall = wall

    def looked_at(self, token: str) -> Callable[[], bytes]:
        """The work of verifying a token's signature. It returns the signed content, or b"" if the signature is wrong.
        BadToken."""
        from joserfc.jws import JWSRegistry

        parts = token.split(".")
        if len(parts) != 3 or not all(map(_PART.fullmatch, parts)):
            raise BadToken("is not a JSON Web Token in compact form")
        header, payload, signature = map(_decoded, parts)
        said = _object(header)
        if said is None or "crit" in said:
            raise BadToken("has a header that cannot be read, or that asks for an unknown feature")
        algorithm = ALGORITHMS.get(str(said.get("alg")))
        if algorithm is None:
            raise BadToken(f"is not signed by {', '.join(ALGORITHMS)}")
        keys = self._keys_for(algorithm, said.get("kid"))
        signed = f"{parts[0]}.{parts[1]}".encode()
        verify = JWSRegistry.algorithms[algorithm].verify
        return lambda: payload if any(verify(signed, signature, key.key) for key in keys) else b""

    def _keys_for(self, algorithm: str, kid: Any) -> list[Key]:
        keys = [key for key in self.keys if algorithm in key.algorithms]
        if kid is not None:
            keys = [key for key in keys if key.kid in (kid, "")]
        if not keys:
            self.key_is_missing()
            raise BadToken("is signed with a key that is not among those of --token-keys")
        return keys[:_TRIED]

    def bearer(self, payload: bytes) -> Bearer:
        """Read the user and the end from the signed content. BadToken."""
        rules, now_s = self._rules, self.wall()
        if not payload:
            raise BadToken("has a wrong signature")
        said = _object(payload)
        if said is None:
            raise BadToken("has claims that cannot be read")
        if said.get("iss") != rules.issuer:
            raise BadToken("is of another issuer than --token-issuer")
        audience = said.get("aud")
        if rules.audience not in (audience if isinstance(audience, list) else [audience]):
            raise BadToken("is not for --token-audience")
        until_s, from_s = _time(said.get("exp")), _time(said.get("nbf", 0))
        if until_s is None or from_s is None:
            raise BadToken("has no expiry time (exp), or one that is not a number")
        if now_s >= until_s + rules.leeway_s:
            raise BadToken(f"has expired {now_s - until_s:.0f} s ago")
        if now_s < from_s - rules.leeway_s:
            raise BadToken(f"is not valid yet, for {from_s - now_s:.0f} s")
        return Bearer(self._user(said), until_s + rules.leeway_s)

    def _user(self, said: dict[str, Any]) -> str:
        name = said.get(self._rules.user_claim)
        if not isinstance(name, str):
            raise BadToken(f"has no claim {self._rules.user_claim} with a name")
        if "@" in name and name.isprintable() and " " not in name and len(name.encode()) <= limits.MAX_NAME_BYTES:
            return name
        try:
            return name_of(name)
        except BadPassword:
            raise BadToken(f"has a claim {self._rules.user_claim} that cannot be a user's name") from None


def _decoded(part: str) -> bytes:
    try:
        return urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        raise BadToken("is not a JSON Web Token in compact form") from None


def _object(encoded: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(encoded)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _time(said: Any) -> float | None:
    """A NumericDate (RFC 7519, part 2)."""
    if isinstance(said, bool) or not isinstance(said, (int, float)) or abs(said) > 1e12 or not math.isfinite(said):
        return None
    return float(said)
