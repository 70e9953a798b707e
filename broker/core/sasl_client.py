"""The SASL layer of a client (AMQP 1.0 part 5.3): it logs in to a server.

Life of a layer: it sends its header, and waits for the header and the mechanisms of the server; it chooses a mechanism and sends
its init; it answers challenges; the outcome ends the layer, and all later bytes are AMQP. The derivation of a key takes long, and
is a `sasl.Wait`, as on the server's side.

The mechanism is the one that the login names. Otherwise it is SCRAM-SHA-512, SCRAM-SHA-256, or PLAIN on an encrypted connection
for a user, and ANONYMOUS without a user. Without encryption, a password is sent only if the login names PLAIN: otherwise an
attacker in between could remove SCRAM from the list and read the password.

Invariants: any bytes, divided in any way, give bytes of AMQP, a wait or a refusal, and never an exception; no text contains a
password; after SCRAM, the client continues only if the server has proved that it knows the user's key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from broker.core import limits, sasl, values
from broker.core.performatives import DECODE_ERROR, FRAMING_ERROR, NOT_ALLOWED, Refusal, code_of
from broker.core.users import HASHES

WAY_IN = "give a user and a password (the user in the URL, as in ann@host, and a file with the password: --password-file)"
"""What commands and daemons do when a broker asks for a login."""
MECHANISMS = (*HASHES, sasl.PLAIN, sasl.EXTERNAL, sasl.ANONYMOUS)
"""The mechanisms that can be configured."""
NO_AMQP = "the broker does not speak AMQP 1.0 with a SASL layer"
TLS_HERE = "this port is for TLS: write amqps: instead of amqp: in the URL"
"""Said when the answer is one of TLS."""
PERHAPS_TLS = "if this port is for TLS, write amqps: instead of amqp: in the URL"
"""Said when the connection ends without an answer, as a port for TLS may end it."""
PERHAPS_PLAIN = "if this port does not use TLS, write amqp: instead of amqps: in the URL, and no ssl: before its host"
"""The same the other way round."""
_TLS_RECORDS = (0x15, 0x16)
"""The first byte of an alert and of a handshake's message (RFC 8446, 5.1)."""
_SIZE_BYTES = 4
_HEAD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Login:
    """The login of a client: `user` None: no user; `mechanism` "": the best one of the server. `encrypted`: whether the
    connection is encrypted. `or_nobody`: whether to use ANONYMOUS if the server has no better mechanism."""

    user: str | None = None
    password: str = field(default="", repr=False)
    mechanism: str = ""
    encrypted: bool = False
    or_nobody: bool = False


ANONYMOUS = Login()

Step: TypeAlias = sasl.Ask | sasl.Wait
"""The next response, or the work before it. A mechanism that cannot continue raises Refusal."""


class _Saying:
    """A mechanism with a single message."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self.satisfied = True

    def first(self) -> bytes:
        return self._said

    def step(self, challenge: bytes) -> Step:
        raise Refusal(NOT_ALLOWED, "the broker asks for more than this mechanism has to say")


class _Scram:
    """SCRAM (RFC 5802). `nonce` is used only in this exchange."""

    def __init__(self, mechanism: str, login: Login, nonce: str) -> None:
        from scramp import ScramClient  # not before: most clients do not need it, and it takes long to load

        self.satisfied = False
        """Whether the server has proved that it knows the user."""
        self._client = ScramClient([mechanism], login.user or "", login.password, c_nonce=nonce)
        self._next: Callable[[str], Step] = self._salted

    def first(self) -> bytes:
        message: str = self._client.get_client_first()
        return message.encode()

    def step(self, challenge: bytes) -> Step:
        from scramp import ScramException

        try:
            return self._next(challenge.decode())
        except (ScramException, UnicodeDecodeError):
            raise Refusal(sasl.UNAUTHORIZED, "the broker has not shown that it knows this user") from None

    def _salted(self, message: str) -> Step:
        self._client.set_server_first(message)
        if int(self._client.iterations) > limits.MAX_ITERATIONS:
            text = f"the broker asks for more than {limits.MAX_ITERATIONS} iterations of a hash function"
            raise Refusal(sasl.UNAUTHORIZED, text)
        self._next = self._signed
        return sasl.Wait(sasl.Ask, self._proof)

    def _proof(self) -> bytes:
        message: str = self._client.get_client_final()
        return message.encode()

    def _signed(self, message: str) -> Step:
        self._client.set_server_final(message)
        self.satisfied = True
        self._next = self._over
        return sasl.Ask(b"")

    def _over(self, message: str) -> Step:
        raise Refusal(NOT_ALLOWED, "the broker asks for more than this mechanism has to say")


class ClientLayer:
    """See the module. `nonce` cannot be guessed and is never used again. `output` has the bytes to send; the code that sends them
    empties it."""

    def __init__(self, login: Login, nonce: str) -> None:
        self.output = bytearray(sasl.HEADER)
        self.done = False
        """Whether the layer has ended and AMQP begins."""
        self.refusal: Refusal | None = None
        self.waits: sasl.Wait | None = None
        """The work to be done before `resume`."""
        self._login = login
        self._nonce = nonce
        self._mechanism: _Saying | _Scram | None = None
        self._by_password = False
        self._began = False
        self._held = b""

    def take(self, data: bytes) -> bytes:
        """Take received bytes. Returns those of AMQP, which are all bytes after the layer. Then see `done`, `waits` and
        `refusal`."""
        if self.done:
            return data
        self._held += data
        return self._go_on()

    def resume(self, result: bytes) -> bytes:
        """Continue with the result of the work of `waits`. Returns the bytes of AMQP that were received meanwhile."""
        waits, self.waits = self.waits, None
        if waits is not None and self.refusal is None:
            step = waits.then(result)
            assert isinstance(step, sasl.Ask), "a client waits once for an answer"
            self._answer(step)
        return self._go_on()

    def _go_on(self) -> bytes:
        try:
            while self.refusal is None and self.waits is None and not self.done and self._one():
                continue
            if self.waits is not None and len(self._held) > limits.EARLY_BYTES:
                raise Refusal(NOT_ALLOWED, "the broker continues without a SASL outcome")
        except Refusal as refusal:
            self.refusal, self._held = refusal, b""
        if not self.done:
            return b""
        rest, self._held = self._held, b""
        return rest

    def _one(self) -> bool:
        """Take the next header or frame. Returns False if it is not complete. Refusal."""
        held = self._held
        if not self._began:
            found = held[:_HEAD_BYTES]
            if not sasl.HEADER.startswith(found):
                raise Refusal(FRAMING_ERROR, TLS_HERE if found[0] in _TLS_RECORDS else NO_AMQP)
            if len(found) < _HEAD_BYTES:
                return False
            self._began, self._held = True, held[_HEAD_BYTES:]
            return True
        if len(held) < _HEAD_BYTES:
            return False
        nbytes, offset = int.from_bytes(held[:_SIZE_BYTES], "big"), 4 * held[4]
        if held[5] != 1 or not _HEAD_BYTES <= offset <= nbytes <= limits.EARLY_FRAME_BYTES:
            raise Refusal(FRAMING_ERROR, "the broker sent a frame that is not a SASL frame")
        if len(held) < nbytes:
            return False
        self._held = held[nbytes:]
        self._frame(held[offset:nbytes])
        return True

    def _frame(self, body: bytes) -> None:
        code, position = code_of(body, 0, len(body))
        fields = _fields(body[position:])
        if code == sasl.MECHANISMS and self._mechanism is None:
            self._begin(_names(fields))
        elif code == sasl.CHALLENGE and self._mechanism is not None:
            step = self._mechanism.step(_bytes(fields))
            match step:
                case sasl.Ask():
                    self._answer(step)
                case sasl.Wait():
                    self.waits = step
                case _:
                    assert_never(step)
        elif code == sasl.OUTCOME and self._mechanism is not None:
            self._end(self._mechanism, fields)
        else:
            raise Refusal(NOT_ALLOWED, f"the broker sent the SASL performative {code:#04x}, which may not come now")

    def _answer(self, step: sasl.Ask) -> None:
        self.output += sasl.frame(sasl.RESPONSE, values.encode(step.challenge))

    def _begin(self, offered: list[str]) -> None:
        name = self._picked(offered)
        self._by_password = name in (*HASHES, sasl.PLAIN)
        self._mechanism = mechanism = self._made(name)
        self.output += sasl.frame(sasl.INIT, values.encode(values.Symbol(name)), values.encode(mechanism.first()))

    def _picked(self, offered: list[str]) -> str:
        login = self._login
        there = " ".join(name for name in offered if name.isascii() and name.isprintable())[:200] or "nothing"
        if login.mechanism:
            wanted: tuple[str, ...] = (login.mechanism,)
        elif login.user is None:
            wanted = (sasl.ANONYMOUS,)
        else:
            wanted = (*HASHES, sasl.PLAIN) if login.encrypted or not login.password else tuple(HASHES)
        for name in (*wanted, sasl.ANONYMOUS) if login.or_nobody else wanted:
            if name in offered:
                return name
        hint = ""
        if login.user is None and not login.mechanism:
            hint = f"; it wants to know who you are: {WAY_IN}"
        elif sasl.PLAIN in offered and not login.mechanism:
            hint = "; a password goes over a connection without encryption only with the mechanism PLAIN named"
        raise Refusal(sasl.UNAUTHORIZED, f"the broker offers {there}, and this client wants {' or '.join(wanted)}{hint}")

    def _made(self, name: str) -> _Saying | _Scram:
        login = self._login
        if name == sasl.EXTERNAL:
            return _Saying(b"")
        if name == sasl.ANONYMOUS:
            return _Saying(sasl.NOBODY.encode())
        if name == sasl.PLAIN:
            return _Saying(f"\0{login.user or ''}\0{login.password}".encode())
        from scramp import ScramException

        try:
            return _Scram(name, login, self._nonce)
        except ScramException:
            text = f"{name} needs a user and a password in characters that SASL allows"
            raise Refusal(sasl.UNAUTHORIZED, self._with_hint(text)) from None

    def _with_hint(self, text: str) -> str:
        """The text, and what the login lacks for a mechanism that needs a password."""
        login = self._login
        if not self._by_password or (login.user and login.password):
            return text
        how = "write the password into a file, and name the file with --password-file"
        if login.user:
            return f"{text}: no password is given for the user {login.user!r}; {how}"
        return f"{text}: no user is given; write the user into the URL, as in ann@host; {how}"

    def _end(self, mechanism: _Saying | _Scram, fields: list[object]) -> None:
        code = fields[0] if fields else None
        if code != sasl.OK:
            later = code == sasl.SYS_TEMP
            text = "the broker cannot look at logins now" if later else "the broker does not let this login in"
            raise Refusal(sasl.UNAUTHORIZED, text if later else self._with_hint(text))
        if not mechanism.satisfied:
            mechanism.step(_bytes(fields[1:]))  # what the server shows may come with the outcome
        if not mechanism.satisfied:
            raise Refusal(sasl.UNAUTHORIZED, "the broker has not shown that it knows this user")
        self.done = True


def _fields(encoded: bytes) -> list[object]:
    try:
        found = values.decode(encoded, 64)
    except values.BadValue:
        found = None
    if not isinstance(found, list):
        raise Refusal(DECODE_ERROR, "the broker sent a SASL frame that cannot be decoded")
    return found


def _bytes(fields: list[object]) -> bytes:
    return fields[0] if fields and isinstance(fields[0], bytes) else b""


def _names(fields: list[object]) -> list[str]:
    found = fields[0] if fields else None
    return [str(name) for name in (found if isinstance(found, list) else [found]) if isinstance(name, str)]
