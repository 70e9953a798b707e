"""How a route connects to its source: to the primary among the addresses of its URL, over TLS if they require it, as the URL's
user.

Passwords are in a file of this broker (`--route-passwords`), not in a route or in the log. The file has lines of the form `USER
PASSWORD`, or `USER@HOST:PORT PASSWORD` for one source only, which takes precedence. Blank lines, and lines that begin with `#`,
are skipped. It is read at each attempt to connect, so a changed password needs no restart, and at the start of the broker, which
is refused if the file cannot be read or has a wrong line, or two lines for the same user. In a file that becomes wrong later, the
other lines remain valid.

Invariant: errors name the file and the line, and do not quote it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from broker.client import ConnectError, ManagementClient, find_primary
from broker.core import urls
from broker.core.sasl_client import WAY_IN
from broker.core.urls import BadUrl, Url
from broker.options import SettingsError

if TYPE_CHECKING:
    from broker.net.credentials import Credentials

Dial = Callable[[str, str], Deferred[ManagementClient]]
"""Takes a route's URL and SASL mechanism; fires with a connection to the source's primary, or fails with a ClientError."""

TIMEOUT_S = 5.0
HEARTBEAT_S = 5.0
MAX_FILE_BYTES = 1 << 20


class Dialer:
    """Fulfils `Dial`. `passwords` is the file, `credentials` are for addresses over TLS; `container` is the AMQP container id of
    its connections."""

    def __init__(
        self, reactor: Any, passwords: Path | None = None, credentials: Credentials | None = None, container: str = "route"
    ) -> None:
        self._reactor = reactor
        self._container = container
        self._passwords = passwords
        self._credentials = credentials

    def __call__(self, source: str, mechanism: str) -> Deferred[ManagementClient]:
        """Connect."""
        url = urls.parse(source)
        try:
            password = password_of(url, self._lines())
        except ConnectError as error:
            return fail(error)
        return find_primary(
            self._reactor,
            url.addresses,
            user=url.user or None,
            password=password,
            mechanism=mechanism or None,
            timeout_s=TIMEOUT_S,
            heartbeat_s=HEARTBEAT_S,
            container=self._container,
            seconds=self._reactor.seconds,
            credentials=self._credentials,
        ).addErrback(_with_the_way_in)

    def _lines(self) -> list[str]:
        if self._passwords is None:
            return []
        try:
            return lines_of(self._passwords)
        except SettingsError as error:
            raise ConnectError(str(error)) from None


def _with_the_way_in(failure: Failure) -> Failure:
    """The same, if a source wants a login; but with the way in that a route has, not a command's."""
    text = str(failure.value)
    if WAY_IN in text:
        way = "give a user in the URL of the route's source, as in ann@host, and the password in the file of --route-passwords"
        raise ConnectError(text.replace(WAY_IN, way))
    return failure


def lines_of(passwords: Path) -> list[str]:
    """The lines of the file of passwords. SettingsError if it cannot be read. The text has nothing of its content."""
    try:
        with passwords.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"--route-passwords {passwords}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        number = content.count(b"\n", 0, MAX_FILE_BYTES) + 1
        reason = f"here the file has more than {MAX_FILE_BYTES} bytes, which is too many: give a shorter one"
        raise SettingsError(f"--route-passwords {passwords}:{number}: {reason}")
    try:
        return [line.removesuffix("\r") for line in content.decode().split("\n")]  # other ends of lines may be in a password
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"--route-passwords {passwords}:{number}: is not UTF-8 text") from None


def check_passwords(passwords: Path) -> None:
    """SettingsError if the file of passwords cannot be read, or has a wrong line."""
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines_of(passwords), 1):
        reason = _fault(line)
        if not reason and not _skipped(line):
            first = numbers.setdefault(line.partition(" ")[0], number)
            reason = "" if first == number else f"is for the same user as line {first}: keep one of them"
        if reason:
            raise SettingsError(f"--route-passwords {passwords}:{number}: {reason}")


def password_of(url: Url, lines: list[str]) -> str | None:
    """The password of the URL's user by these lines. ConnectError, when it has a user and they have none for it."""
    if not url.user:
        return None
    found: dict[str, set[str]] = {}
    for who, _, password in (line.partition(" ") for line in lines if not _skipped(line)):
        if password:
            found.setdefault(who, set()).add(password)
    for who in (*(f"{url.user}@{name}" for name in url.names), url.user):
        match list(found.get(who, ())):
            case [password]:
                return password
            case [_, *_]:
                raise ConnectError(f"the file of --route-passwords has several passwords for {who}: keep one of them")
    raise ConnectError(f"there is no password for {url.user} in the file of --route-passwords")


def _skipped(line: str) -> bool:
    return not line.strip() or line.startswith("#")


def _fault(line: str) -> str:
    """Why this line gives no user a password; "" if it does. It is not quoted: any part of a wrong line may be the password."""
    who, _, password = line.partition(" ")
    user, at, address = who.partition("@")
    if _skipped(line):
        return ""
    if not user or not password:
        return "a line is USER PASSWORD or USER@HOST:PORT PASSWORD, with one space between"
    try:
        right = not at or urls.parse(address).names == (address,)
    except BadUrl:
        right = False
    return "" if right else "after the @ is not HOST:PORT, as in w1:5672 or [::1]:5672"
