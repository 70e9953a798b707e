"""Steps that make bytes survive a power cut: files are replaced as a whole and folders are synced; and the errors of these steps.

Life of a small file: its new content is written to another file, synced, and renamed to its name, and the folder is synced. A
crash at any moment leaves the old content or the new one, never a mixture, because a rename within a folder is atomic and the
content is durable before it. An unfinished write leaves a file whose name ends in `.tmp`, which the next start removes.

Invariant: after a failed sync nobody knows what is on the disk, so a `StorageError` that is `fatal` is final.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c

from broker.disk.files import Disk

ASIDE = ".tmp"
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_PAGE = 4096


class StorageError(Exception):
    """The disk refused. `fatal` is false when the disk is only full, or when too many files are open: then nothing is lost, and
    the write may be tried again."""

    def __init__(self, text: str, *, fatal: bool) -> None:
        super().__init__(text)
        self.fatal = fatal


class DamagedStore(Exception):
    """A file of the store does not have the content that was written. The text names the file and says what to do."""


class NewerFormat(DamagedStore):
    """The file was written by a later version of the program. It has not been changed."""


def write_all(disk: Disk, fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`, with as many calls as necessary."""
    written = 0
    while written < len(data):
        written += disk.write(fd, [data[written:] if written else data], offset + written)


def read_whatever(disk: Disk, fd: int, nbytes: int, offset: int) -> bytes:
    """Read up to `nbytes`, even if sectors are unreadable: their pages are returned as 0xFF bytes, which no checksum accepts."""
    try:
        data = disk.read(fd, nbytes, offset)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    else:
        if not data or len(data) == nbytes or offset + len(data) >= disk.size(fd):
            return data
        # A read that ends before the end of the file has met an unreadable page; readable bytes may follow it.
        return data + read_whatever(disk, fd, nbytes - len(data), offset + len(data))
    if offset // _PAGE < (offset + nbytes - 1) // _PAGE:  # page by page: one read of two pages would lose the good one too
        edges = [offset, *range((offset // _PAGE + 1) * _PAGE, offset + nbytes, _PAGE), offset + nbytes]
        return b"".join(read_whatever(disk, fd, stop - start, start) for start, stop in pairwise(edges))
    present = disk.size(fd) - offset
    return b"\xff" * max(0, min(nbytes, present))


def sync_or_stop(disk: Disk, fd: int, path: Path) -> None:
    """Sync a file that stays in use. Any error is fatal, also a full disk, because the kernel may have dropped written pages.

    These pages may still be in the page cache, marked as clean. So the page cache is told to drop them, and the next start reads
    what is really on the disk.
    """
    try:
        disk.sync(fd)
    except OSError as error:
        with contextlib.suppress(OSError):
            disk.forget(fd)
        text = f"cannot sync {path}: {error.strerror}; what the disk holds is unknown, so the broker must stop"
        raise StorageError(text, fatal=True) from error


def unlink_if_there(disk: Disk, path: Path) -> None:
    """Remove a file, if it exists. OSError."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(path)


def replace_durably(disk: Disk, path: Path, data: bytes) -> None:
    """Replace the content of `path` completely or not at all. StorageError when the disk refuses; then the old content stays."""
    aside = path.with_name(path.name + ASIDE)
    try:
        fd = disk.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(disk, fd, data, 0)
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.replace(aside, path)
        disk.sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            disk.unlink(aside)
        raise refused(error, "write", path) from error


def remove_durably(disk: Disk, path: Path) -> None:
    """Remove a file, if it exists, durably: a power cut does not bring it back. StorageError when the disk refuses."""
    try:
        unlink_if_there(disk, path)
        disk.sync_folder(path.parent)
    except OSError as error:
        raise refused(error, "remove", path) from error


def remove_if_there(disk: Disk, path: Path) -> None:
    """The same for a file that is durably absent if it does not exist: then nothing is synced."""
    try:
        disk.unlink(path)
        disk.sync_folder(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise refused(error, "remove", path) from error


def refused(error: OSError, doing: str, path: Path | str) -> StorageError:
    """The StorageError for an error of the operating system."""
    if error.errno in NO_ROOM:
        return StorageError(f"cannot {doing} {path}: {error.strerror}; make room on that disk", fatal=False)
    if error.errno in NO_DESCRIPTORS:
        text = f"cannot {doing} {path}: {error.strerror}; close connections, or raise the limit of open files (LimitNOFILE=)"
        return StorageError(text, fatal=False)
    return StorageError(
        f"cannot {doing} {path}: {error.strerror}; what the disk holds is unknown, so the broker must stop", fatal=True
    )


def exists(disk: Disk, path: Path) -> bool:
    """Whether a file or folder of this name exists. OSError."""
    try:
        disk.status(path)
    except FileNotFoundError:
        return False
    return True


def read_small(disk: Disk, path: Path) -> bytes:
    """The whole content of a small file. FileNotFoundError, OSError."""
    with opened(disk, path) as fd:
        return disk.read(fd, disk.size(fd), 0)


@contextlib.contextmanager
def opened(disk: Disk, path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A descriptor of a file, which is closed at the end. OSError."""
    fd = disk.open(path, flags)
    try:
        yield fd
    finally:
        disk.close(fd)


def seal_json(content: dict[str, Any]) -> bytes:
    """A line of JSON for people and a line with its checksum."""
    line = json.dumps(content, sort_keys=True).encode() + b"\n"
    return line + b"%08x\n" % google_crc32c.value(line)


def unseal_json(data: bytes) -> dict[str, Any] | None:
    """The content that `seal_json` encoded as these bytes; None when they have been altered."""
    line, newline, checksum = data.partition(b"\n")
    line += newline
    if checksum != b"%08x\n" % google_crc32c.value(line):
        return None
    content: dict[str, Any] = json.loads(line)
    return content


def read_json(disk: Disk, path: Path) -> dict[str, Any] | None:
    """The content of a file that `seal_json` encoded; None when there is no such file. DamagedStore when it has been altered."""
    try:
        data = read_small(disk, path)
    except FileNotFoundError:
        return None
    content = unseal_json(data)
    if content is None:
        raise DamagedStore(f"{path} is damaged: its checksum does not fit its content")
    return content
