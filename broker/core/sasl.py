"""The SASL layer of a server (AMQP 1.0 part 5.3): the offered mechanisms, and the exchange with a client.

Life of an exchange: the server sends its mechanisms; the client chooses one in its init; the mechanism does a step for each
response, which is a challenge, or grants or denies the login; the outcome ends the layer.

A mechanism is an object for one exchange, with one method (`Mechanism`); an `Offer` contains the functions that make it. The
mechanisms that verify passwords are in `mechanisms.py`. A mechanism that is not offered is refused with the outcome `auth`, and
its response is not read. A step that takes long, or must be delayed, is a `Wait`: the exchange is paused, the caller does the
work in a thread, and continues with `resume`.

Invariants: a client gets one outcome; texts never repeat what it has sent, except a well-formed name of a mechanism; an
unexpected response ends the exchange; no frame is taken while the exchange is paused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, TypeAlias, assert_never

from broker.core import values
from broker.core.performatives import DECODE_ERROR, NOT_ALLOWED, Refusal, code_of

HEADER = b"AMQP\x03\x01\x00\x00"
MECHANISMS, INIT, CHALLENGE, RESPONSE, OUTCOME = range(0x40, 0x45)
OK, AUTH, SYS_TEMP = 0, 1, 4
"""Codes of an outcome (part 5.3.3.6): the login is granted, is denied, or may be tried again later."""

UNAUTHORIZED = "amqp:unauthorized-access"
ANONYMOUS, PLAIN, EXTERNAL = "ANONYMOUS", "PLAIN", "EXTERNAL"
NOBODY = "anonymous"
"""The user of a client that has not logged in."""
_NAME = re.compile(r"[A-Z0-9_-]{1,20}")
_MAX_VALUES = 16
"""Values in one frame of this layer: three fields, and additional ones of a peer."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The mechanism continues: `challenge` is sent to the client, and its response is passed to the next step."""

    challenge: bytes


@dataclass(frozen=True, slots=True)
class Grant:
    """The client is `user`, by this `mechanism`. `authenticated`: whether the client has proved it. `until_s`: the end of this
    login, in seconds since 1970 (None: the end of the connection)."""

    user: str
    mechanism: str
    authenticated: bool = False
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """The client has not proved who it is. `reason` is for the log and contains no secret. `user`: the name that the client gave,
    "" if it gave none that could be read."""

    reason: str
    user: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """The next step comes later: after `delay_s` seconds, `work` is done, which may take long and uses no shared data. Then
    `then` makes the step from its result (b"" if there is no work)."""

    then: Callable[[bytes], Step] = field(repr=False)
    work: Callable[[], bytes] | None = field(default=None, repr=False)
    delay_s: float = 0.0


Step: TypeAlias = Ask | Grant | Deny | Wait


class Mechanism(Protocol):
    """One exchange by one mechanism."""

    def step(self, response: bytes) -> Step:
        """Take the initial response (empty if there was none), or the response to the last challenge."""


class Anonymous:
    """ANONYMOUS (RFC 4505): every client is the same user. What the client sends about itself is ignored."""

    def step(self, response: bytes) -> Step:
        """Grant the login."""
        return Grant(NOBODY, ANONYMOUS)


Offer: TypeAlias = Mapping[str, Callable[[], Mechanism]]
OFFERED: Offer = {ANONYMOUS: Anonymous}


def frame(code: int, *fields: bytes) -> bytes:
    """A SASL frame (part 5.3.1) with encoded fields."""
    body = b"\x00\x53" + bytes((code,)) + values.items(fields)
    return struct.pack(">IBBH", 8 + len(body), 2, 1, 0) + body


class Exchange:
    """The layer of one connection. `output` has the bytes to send; the code that sends them empties it."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._mechanism: Mechanism | None = None
        self.output = bytearray(HEADER)
        self.output += frame(MECHANISMS, values.symbols(offer))
        self.granted: Grant | None = None
        self.denied: Deny | None = None
        """The denial, if a mechanism has denied the login. The code that counts it sets it to None."""
        self.waits: Wait | None = None
        """The work to be done before `resume`."""

    @property
    def admits_strangers(self) -> bool:
        """Whether a client may begin with AMQP, without this layer and without a login."""
        return self._offer.get(ANONYMOUS) is Anonymous

    def take(self, body: bytes) -> None:
        """Take the body of the client's next frame. Then `granted` tells whether the layer has ended, and `waits` whether it is
        paused. A Refusal ends it too."""
        assert self.waits is None, "a frame was taken while the exchange was paused"
        code, position = code_of(body, 0, len(body))
        if code == INIT and self._mechanism is None:
            name, response = self._init(body[position:])
            make = self._offer.get(name)
            if make is None:
                said = name if _NAME.fullmatch(name) else "a mechanism without a proper name"
                hint = "; PLAIN is offered under TLS, or with --plain-without-tls yes" if name == PLAIN else ""
                self._deny(f"SASL {said} is not offered; there is {' '.join(self._offer)}{hint}")
            self._mechanism = make()
        elif code == RESPONSE and self._mechanism is not None:
            response = self._bytes(self._fields(body[position:]), 0)
        else:
            raise Refusal(NOT_ALLOWED, f"the SASL performative {code:#04x} may not come now")
        self._follow(self._mechanism.step(response))

    def resume(self, result: bytes) -> None:
        """Continue with the result of the work of `waits`. Then see `granted` and `waits`, as after `take`."""
        waits, self.waits = self.waits, None
        assert waits is not None, "an exchange that is not paused was resumed"
        self._follow(waits.then(result))

    def _follow(self, step: Step) -> None:
        match step:
            case Ask(challenge):
                self.output += frame(CHALLENGE, values.encode(challenge))
            case Grant() as granted:
                self.output += frame(OUTCOME, b"\x50" + bytes((OK,)))
                self.granted = granted
            case Deny() as denied:
                self.denied = denied
                self._deny(denied.reason)
            case Wait() as waits:
                self.waits = waits
            case _:
                assert_never(step)

    def _deny(self, reason: str) -> NoReturn:
        self.output += frame(OUTCOME, b"\x50" + bytes((AUTH,)))
        raise Refusal(UNAUTHORIZED, reason)

    def _init(self, encoded: bytes) -> tuple[str, bytes]:
        """The mechanism in an init, and the initial response."""
        fields = self._fields(encoded)
        if not fields or not isinstance(fields[0], str):
            raise Refusal(DECODE_ERROR, "a SASL init names no mechanism")
        return fields[0], self._bytes(fields, 1)

    @staticmethod
    def _fields(encoded: bytes) -> list[object]:
        try:
            found = values.decode(encoded, _MAX_VALUES)
        except values.BadValue as error:
            raise Refusal(DECODE_ERROR, f"a SASL frame cannot be decoded: {error}") from None
        if not isinstance(found, list):
            raise Refusal(DECODE_ERROR, "a SASL frame has no list of fields")
        return found

    @staticmethod
    def _bytes(fields: list[object], position: int) -> bytes:
        found = fields[position] if position < len(fields) else None
        return found if isinstance(found, bytes) else b""
