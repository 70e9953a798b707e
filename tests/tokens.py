"""Tokens for tests: keys of an issuer, what it signs with them, and what it publishes of them."""

from __future__ import annotations

import functools
import json
import warnings
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc import jwk, jws
from joserfc.errors import SecurityWarning

ISSUER, AUDIENCE = "https://issuer.example", "understudy"
NOW_S = 1_000_000.0
CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": NOW_S + 600}


@functools.cache
def key(algorithm: str) -> Any:
    """The issuer's private key for this algorithm, the same in a session; its name is the algorithm's."""
    kind, made = _made(algorithm)
    pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return jwk.JWKRegistry.import_key(pem, kind, {"kid": algorithm})


def _made(algorithm: str) -> tuple[str, Any]:
    if algorithm in ("EdDSA", "Ed25519"):
        return "OKP", ed25519.Ed25519PrivateKey.generate()
    if algorithm.startswith("ES"):
        return "EC", ec.generate_private_key(ec.SECP256R1() if algorithm == "ES256" else ec.SECP384R1())
    return "RSA", rsa.generate_private_key(65537, 2048)


def public(algorithm: str, **more: Any) -> dict[str, Any]:
    """What the issuer publishes of it; None leaves a member out."""
    said = dict(key(algorithm).as_dict(private=False)) | more
    return {name: value for name, value in said.items() if value is not None}


def key_set(*algorithms: str) -> str:
    """A JSON Web Key Set."""
    return json.dumps({"keys": [public(algorithm) for algorithm in algorithms]})


def token(algorithm: str = "ES256", header: dict[str, Any] | None = None, by: Any = None, **claims: Any) -> str:
    """A token with `CLAIMS` and these; None leaves one out."""
    said = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return signed(algorithm, json.dumps(said), header, by)


def signed(algorithm: str, payload: str, header: dict[str, Any] | None = None, by: Any = None) -> str:
    """The same with any text instead of claims."""
    head = {"alg": algorithm, "kid": algorithm} | (header or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)  # about names and keys that are to be refused here
        return jws.serialize_compact(
            {name: value for name, value in head.items() if value is not None}, payload, by or key(algorithm), [algorithm]
        )
