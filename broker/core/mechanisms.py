"""The SASL mechanisms PLAIN, SCRAM and EXTERNAL, and PLAIN without a check.

Life of a PLAIN exchange (RFC 4616): the client sends name and password; the password's key is derived in a thread, which takes
milliseconds (`sasl.Wait`); the key is compared with the user's. Life of a SCRAM exchange (RFC 5802): the client sends its name
and a nonce; the server answers with salt, iterations and its own nonce; the client proves that it has the key, which costs the
server microseconds; the server proves that it knows the user's keys, and the client confirms this.

EXTERNAL (RFC 4422, appendix A) sends no challenge: TLS has verified the client's certificate, and a name in it is the user.

The server's last SCRAM message is a challenge, which the client answers with an empty response. It is not sent with the outcome,
because clients with Cyrus SASL (for example Proton C) do not read additional data of an outcome, and would not check the server.

Invariants: any bytes give a step and never an exception; an unknown user causes the same steps, work and answer as a user with a
wrong password; a reason contains at most a name that could be in the file, and never a password or a key.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from broker.core import limits, sasl
from broker.core.bearer import OAUTHBEARER, XOAUTH2, Desk
from broker.core.identity import Certificate
from broker.core.tokens import may_be_token
from broker.core.users import HASHES, BadPassword, Keys, Users, derive, is_long, name_of, prepared, scram

_NOT_READ = "cannot be read"
_WRONG = "name or password is wrong"


@dataclass(frozen=True, slots=True)
class Register:
    """What mechanisms need: the `users`, the `realm` that is appended to their names, and the delay of a user's login."""

    users: Users
    realm: str
    delay_s: Callable[[str], float]

    def granted(self, name: str, mechanism: str) -> sasl.Grant:
        """The login of a user who has proved their name."""
        return sasl.Grant(qualified(name, self.realm), mechanism, authenticated=True)

    def name_of(self, text: str) -> str:
        """The user's name in the file: a client may append the realm. BadPassword when it is not allowed."""
        return name_of(text.removesuffix(f"@{self.realm}"))


def qualified(name: str, realm: str) -> str:
    """The name of a user for access control: with its realm."""
    return f"{name}@{realm}" if realm and not name.endswith(f"@{realm}") else name


def _plain(response: bytes) -> tuple[str, str]:
    """Name and password of a response. BadPassword; a request to act for another user is denied."""
    try:
        act_for, name, password = response.decode().split("\0")
    except ValueError:
        raise BadPassword(_NOT_READ) from None
    if act_for not in ("", name):
        raise BadPassword("asks to act for another user, which is not allowed")
    return name, password


class TakenAtItsWord:
    """PLAIN if no login is required, as in qpidd with `--auth no`: it takes the name, and does not verify the password."""

    def __init__(self, realm: str) -> None:
        self._realm = realm

    def step(self, response: bytes) -> sasl.Step:
        """Grant the login with this name."""
        try:
            name = name_of(_plain(response)[0].removesuffix(f"@{self._realm}"))
        except BadPassword as error:
            return sasl.Deny(f"SASL PLAIN: {error}")
        return sasl.Grant(qualified(name, self._realm), sasl.PLAIN)


class Plain:
    """PLAIN with a check of the password. If there is a `desk`, a password in the form of a token is verified as a token."""

    def __init__(self, register: Register | None, desk: Desk | None = None) -> None:
        self._register = register
        self._desk = desk

    def step(self, response: bytes) -> sasl.Step:
        """Verify name and password in a thread."""
        register = self._register
        try:
            name, password = _plain(response)
            if self._desk is not None and may_be_token(password):
                return self._desk.look(sasl.PLAIN, name, password)
            if register is None:
                raise BadPassword("the password is not a token, and there are no users (--users)")
            name, password = register.name_of(name), prepared(password, "password")
        except BadPassword as error:
            return sasl.Deny(f"SASL PLAIN: {error}")
        mechanism = register.users.mechanism_of(name)
        keys = register.users.find(mechanism, name)
        work = partial(_stored_key, mechanism, password, keys)
        return sasl.Wait(partial(_compared, register, name, keys), work, register.delay_s(name))


def _compared(register: Register, name: str, keys: Keys, stored: bytes) -> sasl.Step:
    if hmac.compare_digest(stored, keys.stored):
        return register.granted(name, sasl.PLAIN)
    return sasl.Deny(f"SASL PLAIN as {name}: {_WRONG}", name)


def _stored_key(mechanism: str, password: str, keys: Keys) -> bytes:
    return derive(mechanism, password, keys.salt, keys.iterations).stored


class _LookUp:
    """Gives a SCRAM server the keys of a user. It remembers the `name`, which is "" before."""

    def __init__(self, mechanism: str, register: Register) -> None:
        self.name = ""
        self._mechanism = mechanism
        self._register = register

    def __call__(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self.name = self._register.name_of(name)
        keys = self._register.users.find(self._mechanism, self.name)
        return keys.salt, keys.stored, keys.server, keys.iterations


class Scram:
    """SCRAM with the hash function of `mechanism`. `nonce` is used only in this exchange, and cannot be guessed.

    The object has no reference cycle: otherwise a flood of unfinished logins would leave work for the garbage collector.
    """

    def __init__(self, mechanism: str, register: Register, nonce: str) -> None:
        self._mechanism = mechanism
        self._register = register
        self._user = _LookUp(mechanism, register)
        self._server = scram(mechanism).make_server(self._user, s_nonce=nonce)
        self._next: Callable[[Scram, str], sasl.Step] = Scram._first

    def step(self, response: bytes) -> sasl.Step:
        """Take one message."""
        from scramp import ScramException

        try:
            return self._next(self, response.decode())
        except (ScramException, UnicodeDecodeError):
            name = self._user.name
            why = f" as {name}: {_WRONG}" if name else f": {_NOT_READ}"
            return sasl.Deny(f"SASL {self._mechanism}{why}", name)

    def _first(self, message: str) -> sasl.Step:
        if is_long(message, limits.SASL_FRAME_BYTES):  # scramp would prepare the name in it
            return sasl.Deny(f"SASL {self._mechanism}: {_NOT_READ}")
        self._server.set_client_first(message)
        asked = sasl.Ask(self._server.get_server_first().encode())
        self._next = Scram._final
        delay_s = self._register.delay_s(self._user.name)
        return sasl.Wait(lambda _: asked, delay_s=delay_s) if delay_s else asked

    def _final(self, message: str) -> sasl.Step:
        self._server.set_client_final(message)
        self._next = Scram._seen
        return sasl.Ask(self._server.get_server_final().encode())

    def _seen(self, message: str) -> sasl.Step:
        return self._register.granted(self._user.name, self._mechanism)


REALM = "QPID"
"""The default realm, as in qpidd."""
NAMES_IN_CERTIFICATES = ("cn", "dns", "email", "uri", "subject")
"""The fields of a certificate that may contain the user's name."""


def user_of(certificate: Certificate, where: str, realm: str) -> str:
    """The user of this certificate. BadPassword when it names no user, or several.

    Common names and host names get the realm. The other names are unique everywhere, and are not changed.
    """
    found = {
        "cn": (certificate.common_name,),
        "dns": certificate.dns_names,
        "email": certificate.emails,
        "uri": certificate.uris,
        "subject": (certificate.subject,),
    }[where]
    names = [name for name in found if name]
    if len(names) != 1:
        raise BadPassword(f"the certificate has {len(names)} names of the kind {where}, and must have one")
    if where in ("cn", "dns"):
        return qualified(name_of(names[0].removesuffix(f"@{realm}")), realm)
    if not names[0].isprintable() or len(names[0].encode()) > limits.MAX_NAME_BYTES:
        raise BadPassword(f"the certificate's {where} has more than {limits.MAX_NAME_BYTES} bytes, or what cannot be printed")
    return names[0]


class External:
    """EXTERNAL, by the client's certificate. `where`: one of `NAMES_IN_CERTIFICATES`."""

    def __init__(self, certificate: Certificate, where: str, realm: str) -> None:
        self._certificate = certificate
        self._where = where
        self._realm = realm

    def step(self, response: bytes) -> sasl.Step:
        """Grant the login as the certificate's user. A request to act for another user is denied."""
        try:
            user = user_of(self._certificate, self._where, self._realm)
        except BadPassword as error:
            return sasl.Deny(f"SASL EXTERNAL: {error}")
        if response not in (b"", user.encode(), user.removesuffix(f"@{self._realm}").encode()):
            return sasl.Deny("SASL EXTERNAL: asks to act for another user, which is not allowed", user)
        return sasl.Grant(user, sasl.EXTERNAL, authenticated=True)


LOOKED_AT = (sasl.EXTERNAL, *HASHES, OAUTHBEARER, XOAUTH2, sasl.PLAIN)
"""The mechanisms by which a client can prove who it is, the best first."""
