"""The SASL layer of a server (AMQP 1.0 part 5.3): which mechanisms are offered, and what a client answers.

Life of an exchange: the server names its mechanisms; the client picks one in its init; the mechanism takes a step with each
response and says whether it asks once more, knows who the client is, or turns it away; the outcome ends the layer.

A mechanism is an object that lives for one exchange and has one method (`Mechanism`); an `Offer` says what makes it. The
mechanisms that look at passwords are in `mechanisms.py`. What is not offered is refused with the outcome `auth`, and never looked
into. A step that takes long, or is not to be taken at once, is a `Wait`: the exchange is paused, whoever drives it does the work
elsewhere, and goes on with `resume`.

Invariants: a client gets one outcome; nothing that it sends is repeated in a text, but for the name of a mechanism that could be
one; a response that nobody asked for ends the exchange; nothing is taken while the exchange is paused.
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
"""Codes of an outcome (part 5.3.3.6): the client is let in, is not, or may try again later."""

UNAUTHORIZED = "amqp:unauthorized-access"
ANONYMOUS, PLAIN, EXTERNAL = "ANONYMOUS", "PLAIN", "EXTERNAL"
NOBODY = "anonymous"
"""The user of a client that has not said who it is."""
_NAME = re.compile(r"[A-Z0-9_-]{1,20}")
_MAX_VALUES = 16
"""Values in one frame of this layer: three fields, and what a peer may add to them."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The mechanism asks once more: `challenge` goes to the client, and its response comes to the next step."""

    challenge: bytes


@dataclass(frozen=True, slots=True)
class Grant:
    """The client is `user`. `mechanism` says by which means that came out, `authenticated` whether it has been shown; `until_s`,
    in seconds since 1970, until when that counts (None: as long as it stays)."""

    user: str
    mechanism: str
    authenticated: bool = False
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """The client has not shown who it is. `reason` is for the log, and has no secrets in it. `user`: whom it said it was, "" when
    it said nothing that could be looked at."""

    reason: str
    user: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """The next step is not to be taken now: `delay_s` seconds pass, then `work` is done, which may take long and touches nothing
    that anybody shares, and `then` makes the step of its result (b"" where there is no work)."""

    then: Callable[[bytes], Step] = field(repr=False)
    work: Callable[[], bytes] | None = field(default=None, repr=False)
    delay_s: float = 0.0


Step: TypeAlias = Ask | Grant | Deny | Wait


class Mechanism(Protocol):
    """One exchange by one mechanism."""

    def step(self, response: bytes) -> Step:
        """Take the initial response (empty where there was none), or the response to what was asked."""


class Anonymous:
    """Everybody is the same, and nobody is asked (RFC 4505). What the client says of itself is not kept."""

    def step(self, response: bytes) -> Step:
        """Let it in."""
        return Grant(NOBODY, ANONYMOUS)


Offer: TypeAlias = Mapping[str, Callable[[], Mechanism]]
OFFERED: Offer = {ANONYMOUS: Anonymous}


def frame(code: int, *fields: bytes) -> bytes:
    """A SASL frame (part 5.3.1) with encoded fields."""
    body = b"\x00\x53" + bytes((code,)) + values.items(fields)
    return struct.pack(">IBBH", 8 + len(body), 2, 1, 0) + body


class Exchange:
    """The layer of one connection. What is to be written is in `output`, whose reader empties it."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._mechanism: Mechanism | None = None
        self.output = bytearray(HEADER)
        self.output += frame(MECHANISMS, values.symbols(offer))
        self.granted: Grant | None = None
        self.denied: Deny | None = None
        """Why the client was turned away, if a mechanism has done that; who counts it takes it away."""
        self.waits: Wait | None = None
        """What is to be done before `resume`."""

    @property
    def admits_strangers(self) -> bool:
        """Whether a client may come in without this layer, and without saying who it is."""
        return self._offer.get(ANONYMOUS) is Anonymous

    def take(self, body: bytes) -> None:
        """The body of the client's next frame. Afterwards `granted` says whether the layer has ended, and `waits` whether it is
        paused. Refusal ends it too."""
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
        """What the exchange has waited for is done. Afterwards as after `take`."""
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
        """The mechanism that an init names, and its initial response."""
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
