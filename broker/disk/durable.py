"""What it takes for bytes to survive a power cut: the disk behind a small Protocol, files replaced whole, folders synced.

A small file's life here: its new content is written beside it, synced, renamed over it, and the folder is synced. A crash at any
moment leaves the old content or the new one, never a mixture, because a rename within a folder is atomic and the content was
durable before it. What is left of an unfinished write is a file ending in `.tmp`, which the next start removes.

Invariant: after a failed sync nothing may be assumed of what the disk holds, so a `StorageError` that is `fatal` is final.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import google_crc32c

ASIDE = ".tmp"
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PAGE = 4096


class StorageError(Exception):
    """The disk refused. `fatal` is false when it is merely full: nothing was lost, and the write may be tried again."""

    def __init__(self, text: str, *, fatal: bool) -> None:
        super().__init__(text)
        self.fatal = fatal


class DamagedStore(Exception):
    """A file of the store cannot be what was written there. The text names the file and says what to do."""


class NewerFormat(DamagedStore):
    """The file was written by a later version of the program. It was not touched."""


class Disk(Protocol):
    """The calls that carry durable bytes, so that a simulation can fail, tear or forget them."""

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers end to end at `offset`; returns the bytes written, which may be fewer. OSError when refused."""

    def sync(self, fd: int) -> None:
        """Return when the file's content is durable. OSError: what the disk holds is unknown."""

    def read(self, fd: int, nbytes: int, offset: int) -> bytes:
        """Up to `nbytes` from `offset`; fewer only at the end of the file."""


class RealDisk:
    """The operating system's own calls."""

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """pwritev: the caller keeps within IOV_MAX buffers."""
        return os.pwritev(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        """fdatasync: the content, and the file's length when that has changed."""
        os.fdatasync(fd)

    def read(self, fd: int, nbytes: int, offset: int) -> bytes:
        """pread."""
        return os.pread(fd, nbytes, offset)


REAL_DISK = RealDisk()


def write_all(disk: Disk, fd: int, data: bytes, offset: int) -> None:
    """Write the whole of `data` at `offset`, however many calls that takes."""
    written = 0
    while written < len(data):
        written += disk.write(fd, [data[written:] if written else data], offset + written)


def read_whatever(disk: Disk, fd: int, nbytes: int, offset: int) -> bytes:
    """Read even where sectors are unreadable: their pages come back as 0xFF, which no checksum accepts."""
    try:
        return disk.read(fd, nbytes, offset)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    if nbytes > _PAGE:
        pages = (read_whatever(disk, fd, min(_PAGE, nbytes - at), offset + at) for at in range(0, nbytes, _PAGE))
        return b"".join(pages)
    present = os.fstat(fd).st_size - offset
    return b"\xff" * max(0, min(nbytes, present))


def sync_or_stop(disk: Disk, fd: int, path: Path) -> None:
    """Sync a file that stays in use. Whatever makes that fail is fatal, a full disk too: written pages may have been dropped."""
    try:
        disk.sync(fd)
    except OSError as error:
        text = f"cannot sync {path}: {error.strerror}; what the disk holds is unknown, so the broker must stop"
        raise StorageError(text, fatal=True) from error


def sync_folder(folder: Path) -> None:
    """Make renames, creations and removals in this folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_durably(path: Path, data: bytes, disk: Disk = REAL_DISK) -> None:
    """Give `path` this content, all or nothing. StorageError when the disk refuses; the old content then still stands."""
    aside = path.with_name(path.name + ASIDE)
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            write_all(disk, fd, data, 0)
            disk.sync(fd)
        finally:
            os.close(fd)
        aside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise refused(error, "write", path) from error


def remove_durably(path: Path) -> None:
    """Remove a file, if it is there, so that no power cut brings it back. StorageError when the disk refuses."""
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise refused(error, "remove", path) from error


def refused(error: OSError, doing: str, path: Path | str) -> StorageError:
    """The StorageError for what the operating system answered."""
    if error.errno in NO_ROOM:
        return StorageError(f"cannot {doing} {path}: {error.strerror}; make room on that disk", fatal=False)
    return StorageError(
        f"cannot {doing} {path}: {error.strerror}; what the disk holds is unknown, so the broker must stop", fatal=True
    )


def seal_json(content: dict[str, Any]) -> bytes:
    """A line of JSON for people and a line with its checksum."""
    line = json.dumps(content, sort_keys=True).encode() + b"\n"
    return line + b"%08x\n" % google_crc32c.value(line)


def read_json(path: Path) -> dict[str, Any] | None:
    """What `seal_json` wrote to this file; None when there is no such file. DamagedStore when it has been altered."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    line, newline, checksum = data.partition(b"\n")
    line += newline
    if checksum != b"%08x\n" % google_crc32c.value(line):
        raise DamagedStore(f"{path} is damaged: its checksum does not fit its content")
    content: dict[str, Any] = json.loads(line)
    return content
