"""The SASL mechanisms that take a token instead of a password: OAUTHBEARER, XOAUTH2, and PLAIN with a token as its password.

Life of an exchange: the client sends everything in its first message. The token's signature is verified in a thread
(`sasl.Wait`), and its claims afterwards. The client is the token's user until the token expires. If the client also sends a name,
it must be the same one.

A token that is not accepted ends the exchange at once. In RFC 7628 the server first sends the reason in a challenge, which the
client answers with one byte. AMQP's outcome tells a client as much, and a client that never answers would not be counted as a
failure.

Invariants: any bytes give a step and never an exception; a reason contains nothing of a token, except the name in a valid one.

Source: RFC 7628 (OAUTHBEARER); XOAUTH2 is Google's older form of the same, without the header of RFC 5801.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from broker.core import sasl
from broker.core.tokens import BadToken, Tokens

OAUTHBEARER, XOAUTH2 = "OAUTHBEARER", "XOAUTH2"
_END = "\x01\x01"
_HEADER = re.compile(r"[ny],(?:a=([^,]*))?,")
_SCHEME = "bearer "


CBS, CBS_NODE = "CBS", "$cbs"
"""The mechanism's name for clients that send a token after their Open (AMQP Claims-based Security), and the node that they send
it to."""


class Later:
    """ANONYMOUS for a client that must send its token after its Open."""

    def step(self, response: bytes) -> sasl.Step:
        """Grant the login without a user."""
        return sasl.Grant(sasl.NOBODY, CBS)


@dataclass(frozen=True, slots=True)
class Desk:
    """Verifies the tokens of one connection with `tokens`. Users without a realm belong to `realm`. A login is delayed by
    `delay_s` seconds."""

    tokens: Tokens
    realm: str
    delay_s: Callable[[], float]

    def look(self, mechanism: str, name: str, token: str) -> sasl.Step:
        """The step that verifies this token. `name` is the name that the client gave ("" if it gave none)."""
        try:
            work = self.tokens.looked_at(token)
        except BadToken as error:
            return sasl.Deny(f"SASL {mechanism}: the token {error}")
        return sasl.Wait(partial(self._signed, mechanism, name), work, self.delay_s())

    def _signed(self, mechanism: str, name: str, payload: bytes) -> sasl.Step:
        try:
            bearer = self.tokens.bearer(payload)
        except BadToken as error:
            return sasl.Deny(f"SASL {mechanism}: the token {error}")
        user = bearer.user if "@" in bearer.user or not self.realm else f"{bearer.user}@{self.realm}"
        if name not in ("", bearer.user, user):
            return sasl.Deny(f"SASL {mechanism}: the token is {user}'s, and the client says that it is somebody else")
        return sasl.Grant(user, mechanism, authenticated=True, until_s=bearer.until_s)


class Oauth:
    """OAUTHBEARER or XOAUTH2: see `mechanism`."""

    def __init__(self, mechanism: str, desk: Desk) -> None:
        self._mechanism = mechanism
        self._desk = desk

    def step(self, response: bytes) -> sasl.Step:
        """Take the only message."""
        try:
            name, token = _read(self._mechanism, response.decode())
        except ValueError:
            return sasl.Deny(f"SASL {self._mechanism}: cannot be read")
        return self._desk.look(self._mechanism, name, token)


def _read(mechanism: str, text: str) -> tuple[str, str]:
    """Name and token of a message. ValueError."""
    if not text.endswith(_END):
        raise ValueError
    first, *rest = text.removesuffix(_END).split("\x01")
    if mechanism == OAUTHBEARER:
        header = _HEADER.fullmatch(first)
        if header is None:
            raise ValueError
        name, pairs = (header[1] or "").replace("=2C", ",").replace("=3D", "="), rest
    else:
        name, pairs = "", [first, *rest]
    said = dict(pair.split("=", 1) for pair in pairs)
    if len(said) != len(pairs) or not said.get("auth", "").lower().startswith(_SCHEME):
        raise ValueError
    return said.get("user", "") if mechanism == XOAUTH2 else name, said["auth"][len(_SCHEME) :].strip()
