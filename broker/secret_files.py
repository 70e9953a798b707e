"""Whether other users can read or write a file with a secret: one rule and one sentence for brokers, daemons and commands.

Only the owner may read such a file. If the owner is root, its group may read it too: this is how a Secret's files are mounted in
a pod with `fsGroup`, and how root gives a file to the user of a service.
"""

from __future__ import annotations

import os
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
    way = way_out(found.st_uid, os.geteuid(), mounted=(path.expanduser().parent / "..data").is_symlink())
    return f"{path} can be read or written by other users, but {what} secret: {way}"


def way_out(owner: int, user: int, *, mounted: bool) -> str:
    """What to do about a file of this owner that this user reads. `mounted`: it is in a volume of Kubernetes, where nobody can
    change a mode. Another owner's file would not be readable any more with mode 600."""
    if mounted:
        return "set defaultMode: 0440 for the volume, and fsGroup for the pod"
    return "run chmod 600" if user in (0, owner) else "give it to the user of this process, and run chmod 600"


def warnings(private: Iterable[tuple[Path, str]]) -> list[str]:
    """The sentences about these files, of which each is given with what is secret in it."""
    return [line for path, what in private if (line := warning(path, what))]


def is_exposed(mode: int, owner: int) -> bool:
    """Whether a file of this mode and owner can be read or written by others. Its group may read it if root owns it."""
    return bool(stat.S_IMODE(mode) & (0o037 if owner == 0 else 0o077))
