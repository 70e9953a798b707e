"""The users' file on disk: a broker reads it as a whole, and `qpid-passwd` replaces it as a whole.

Life: `qpid-passwd` changes it while it holds a lock on its folder, so that none of two simultaneous changes is lost. The new
content is durable before it gets the name. A broker reads it at its start, and again at SIGHUP. `Accounts` keeps the content, and
keeps the previous content when the file has become invalid.

Invariants: a reader sees the old content or the new one, never a part; only its owner can read the file (mode 0600); errors name
the file and the line, and do not quote it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from broker.core import limits
from broker.core.users import BadUsers, KeysOf, Users, parse
from broker.disk.durable import StorageError, replace_durably
from broker.disk.files import RealDisk


class BadUsersFile(Exception):
    """The file cannot be read or written. The text names the file, the place and the reason."""


def read(path: Path) -> str:
    """Its text. BadUsersFile; FileNotFoundError."""
    try:
        with path.open("rb") as file:
            content = file.read(limits.MAX_USERS_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadUsersFile(f"cannot read the users' file {path}: {error.strerror}") from None
    if len(content) > limits.MAX_USERS_BYTES:
        raise BadUsersFile(f"{path} has more than {limits.MAX_USERS_BYTES} bytes: it is not a users' file")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise BadUsersFile(f"{path}:{number}: not UTF-8 text: is it a users' file?") from None


def checked(path: Path, text: str) -> dict[str, KeysOf]:
    """The users of its text. BadUsersFile."""
    try:
        return dict(parse(text))
    except BadUsers as error:
        raise BadUsersFile(f"{path}:{error.line}: {error}") from None


def change(path: Path, edit: Callable[[str], str]) -> None:
    """Give it the content that `edit` makes of the old one ("" where there is no file). BadUsersFile, and what `edit` raises."""
    path = path.resolve()
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise BadUsersFile(f"cannot write {path}: it is not a file")
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BadUsersFile(f"cannot write {path}: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        try:
            text = read(path)
        except FileNotFoundError:
            text = ""
        checked(path, text)
        new = edit(text)
        checked(path, new)
        replace_durably(RealDisk(), path, new.encode())
    except StorageError as error:
        raise BadUsersFile(str(error).partition("; what the disk")[0]) from None
    finally:
        os.close(folder)


class Accounts:
    """The users' file of a broker. `secret` is for the keys of unknown users."""

    def __init__(self, path: Path, secret: bytes) -> None:
        self.path = path
        self._secret = secret

    def load(self) -> Users:
        """The users that the file has now. BadUsersFile."""
        try:
            return Users(checked(self.path, read(self.path)), self._secret)
        except FileNotFoundError:
            raise BadUsersFile(f"there is no users' file {self.path}: make one with qpid-passwd add {self.path} NAME") from None
