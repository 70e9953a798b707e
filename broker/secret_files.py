"""Whether other users can read or write a file with a secret: one rule and one sentence for brokers, daemons and commands.

Only the owner may read such a file. If the owner is root, its group may read it too: this is how a Secret's files are mounted in
a pod with `fsGroup`, and how root gives a file to the user of a service.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path


def warning(path: Path, what: str) -> str:
    """The sentence about this file, if others may read or write it; "" if not. `what`: "its password is", "its keys are"."""
    try:
        found = path.expanduser().stat()
    except (OSError, RuntimeError):
        return ""  # who reads it says why it cannot be read
    if not stat.S_ISREG(found.st_mode) or not is_exposed(found.st_mode, found.st_uid):
        return ""
    return f"{path} can be read or written by other users, but {what} secret: run chmod 600"


def warnings(private: Iterable[tuple[Path, str]]) -> list[str]:
    """The sentences about these files, of which each is given with what is secret in it."""
    return [line for path, what in private if (line := warning(path, what))]


def is_exposed(mode: int, owner: int) -> bool:
    """Whether a file of this mode and owner can be read or written by others. Its group may read it if root owns it."""
    return bool(stat.S_IMODE(mode) & (0o037 if owner == 0 else 0o077))
