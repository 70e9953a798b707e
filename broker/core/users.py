"""The users who may log in, and their keys: the users' file and lookups in it.

Life of a user: `qpid-passwd` derives keys from a password (`derive`), and writes them as a line of the file. A broker reads the
whole file (`parse`), and looks up the keys for each login (`Users.find`). An unknown user has keys too, made from a secret of the
process, so such a login takes the same steps as any other. There is no password for these keys.

A line of the file is a name and a verifier for each mechanism, separated by spaces:

    NAME SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY SCRAM-SHA-512$...

Blank lines, and lines that begin with `#`, are skipped. Salt and keys are in base64.

Invariants: no password is in the file, or in a text or repr of this module; any text is read, or raises BadUsers with the line; a
name is in the file only once.

Source: RFC 5802 (keys), RFC 7677 (SHA-256), RFC 5803 (the form of a verifier).
"""

from __future__ import annotations

import binascii
import functools
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from unicodedata import normalize

from broker.core import limits

if TYPE_CHECKING:
    from scramp import ScramMechanism

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
HASHES = {SHA_512: "sha512", SHA_256: "sha256"}
"""The mechanisms with keys, the stronger first -> their hash functions by hashlib's names."""
ITERATIONS = 4096
"""The minimum of RFC 7677. More iterations make each PLAIN login and each SCRAM client slower."""
SALT_BYTES = 16

_Counted = TypeVar("_Counted")
_NAME = re.compile(r"[^\s@,=#][^\s@,=]*")
_ASCII_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_VERIFIER = re.compile(r"(SCRAM-SHA-[0-9]+)\$([0-9]{1,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")


@functools.cache
def scram(mechanism: str) -> ScramMechanism:
    """What calculates for this mechanism."""
    from scramp import ScramMechanism  # not before: most commands do not need it, and it takes long to load

    return ScramMechanism(mechanism)


class BadUsers(ValueError):
    """The text is not a users' file; `line` is the number of the wrong line."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


class BadPassword(ValueError):
    """This cannot be a name or a password; the text says why, and does not repeat it."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a user for one mechanism: RFC 5802 calls the fields salt, i, StoredKey and ServerKey."""

    salt: bytes = field(repr=False)
    iterations: int
    stored: bytes = field(repr=False)
    server: bytes = field(repr=False)


KeysOf = Mapping[str, Keys]
"""Mechanism -> a user's keys."""


def is_long(text: str, most: int) -> bool:
    """Whether a text has more characters than these, as it is or normalised: one may become eighteen. SASLprep looks at each of
    them for 10 us, and anybody may send such a text."""
    return len(text) > most or len(normalize("NFKC", text)) > most


def prepared(text: str, what: str) -> str:
    """A name or password in the form for comparisons (SASLprep, RFC 4013). BadPassword when it is not allowed."""
    from scramp import ScramException
    from scramp.core import saslprep

    if is_long(text, limits.MAX_PASSWORD_CHARS):
        raise BadPassword(f"the {what} has more than {limits.MAX_PASSWORD_CHARS} characters")
    try:
        found: str = saslprep(text)
    except ScramException:
        raise BadPassword(f"the {what} has a character that SASL does not allow") from None
    if not found:
        raise BadPassword(f"the {what} is empty")
    return found


def name_of(text: str) -> str:
    """The prepared name of a user. BadPassword when it is not allowed."""
    if _ASCII_NAME.fullmatch(text):
        return text  # like most names: SASLprep would not change it, and is slow
    name = "" if is_long(text, 2 * limits.MAX_NAME_BYTES) else prepared(text, "name")
    if not _NAME.fullmatch(name) or len(name.encode()) > limits.MAX_NAME_BYTES:
        raise BadPassword(
            f"a name has no spaces, no @ , = in it, does not begin with #, and has at most {limits.MAX_NAME_BYTES} bytes"
        )
    return name


def derive(mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Keys:
    """Derive the keys of a password. This takes milliseconds, in proportion to `iterations`; other threads run meanwhile."""
    _, stored, server, _ = scram(mechanism).make_auth_info(password, iterations, salt)
    return Keys(salt, iterations, stored, server)


def line_of(name: str, keys: KeysOf) -> str:
    """A user's line in the file, without its end."""
    return " ".join((name, *(_verifier(mechanism, each) for mechanism, each in keys.items())))


def _verifier(mechanism: str, keys: Keys) -> str:
    salt, stored, server = (b64encode(each).decode() for each in (keys.salt, keys.stored, keys.server))
    return f"{mechanism}${keys.iterations}:{salt}${stored}:{server}"


def parse(text: str) -> dict[str, dict[str, Keys]]:
    """The users of a file: name -> mechanism -> keys. BadUsers."""
    found: dict[str, dict[str, Keys]] = {}
    line_of_user: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name = words[0]
        try:
            if name_of(name) != name:
                raise BadPassword("the name is not in its prepared form (RFC 4013)")
        except BadPassword as error:
            raise BadUsers(number, f"{error}; qpid-passwd writes such lines") from None
        if name in found:
            raise BadUsers(number, f"{name} is also in line {line_of_user[name]}: keep one of them")
        if len(found) >= limits.MAX_USERS:
            raise BadUsers(number, f"there are more than {limits.MAX_USERS} users")
        line_of_user[name] = number
        found[name] = dict(_read(word, number, name) for word in words[1:])
        if not found[name]:
            raise BadUsers(number, f"{name} has no keys: add this user again with qpid-passwd")
    return found


def _read(word: str, number: int, name: str) -> tuple[str, Keys]:
    """Read one verifier. Errors do not quote it, because it may be a password that somebody has put there."""
    parts = _VERIFIER.fullmatch(word)
    if parts is None:
        raise BadUsers(number, f"{name} has keys that cannot be read; they look like {SHA_256}$4096:SALT$KEY:KEY")
    mechanism, iterations = parts[1], int(parts[2])
    if mechanism not in HASHES:
        raise BadUsers(number, f"{name} has keys for {mechanism}; there are {' and '.join(HASHES)}")
    if not ITERATIONS <= iterations <= limits.MAX_ITERATIONS:
        raise BadUsers(number, f"{name} has keys of {iterations} iterations: {ITERATIONS} to {limits.MAX_ITERATIONS} can be")
    try:
        salt, stored, server = (b64decode(parts[i], validate=True) for i in (3, 4, 5))
    except binascii.Error:
        raise BadUsers(number, f"{name} has keys that are not base64") from None
    nbytes = hashlib.new(HASHES[mechanism]).digest_size
    if len(salt) < SALT_BYTES or len(stored) != nbytes or len(server) != nbytes:
        raise BadUsers(number, f"{name} has keys for {mechanism} that are not of {nbytes} bytes each, with {SALT_BYTES} of salt")
    return mechanism, Keys(salt, iterations, stored, server)


def with_line(text: str, name: str, line: str | None) -> str:
    """The file's text with a new line for this user, at the old place or at the end; None removes the user."""
    kept: list[str] = []
    for each in text.splitlines():
        if each.split()[:1] != [name]:
            kept.append(each)
        elif line is not None:
            kept.append(line)
            line = None
    if line is not None:
        kept.append(line)
    return "".join(f"{each}\n" for each in kept)


def _cheapest(keys: KeysOf) -> str:
    """The mechanism whose keys are the cheapest to derive: SHA-256 takes less than half of the time of SHA-512."""
    return SHA_256 if SHA_256 in keys else SHA_512


def _most(counts: Counter[_Counted], default: _Counted) -> _Counted:
    return max(counts, key=counts.__getitem__, default=default)


class Users:
    """The users of a file, and keys for unknown users, made from `secret`, which only this process knows."""

    def __init__(self, by_name: Mapping[str, KeysOf], secret: bytes) -> None:
        self._by_name = by_name
        self._secret = secret
        for mechanism in HASHES:
            scram(mechanism)  # now, so that no login waits until it is loaded
        counts = {mechanism: Counter[int]() for mechanism in HASHES}
        for keys in by_name.values():
            for mechanism, each in keys.items():
                counts[mechanism][each.iterations] += 1
        self._usual = {mechanism: _most(found, ITERATIONS) for mechanism, found in counts.items()}
        self._first = _most(Counter(_cheapest(keys) for keys in by_name.values()), SHA_256)
        """The mechanism that verifies the passwords of most users, and therefore those of unknown users."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def find(self, mechanism: str, name: str) -> Keys:
        """The user's keys; for unknown users, keys that belong to no password."""
        decoy = self._decoy(mechanism, name)
        return self._by_name.get(name, {}).get(mechanism, decoy)

    def mechanism_of(self, name: str) -> str:
        """The mechanism whose keys verify the password of this user."""
        keys = self._by_name.get(name)
        return self._first if keys is None else _cheapest(keys)

    def _decoy(self, mechanism: str, name: str) -> Keys:
        """Keys for an unknown user. A name always has the same ones, like a real user. They are made for every login, so each
        login costs the same."""
        salt, stored, server = (
            hmac.digest(self._secret, f"{use} {mechanism} {name}".encode(), HASHES[mechanism])
            for use in ("salt", "stored", "server")
        )
        return Keys(salt[:SALT_BYTES], self._usual[mechanism], stored, server)
