"""The file system as the store uses it, behind a Protocol, so that a simulation can fail, tear, slow or forget each of its calls.

The store calls the file system only through the methods of `Disk`. `RealDisk` makes one call to the operating system for each,
without a buffer or a loop. Errors are the operating system's `OSError`s, distinguished by `errno`.

Invariant: a file descriptor is meaningful only to the disk that opened it.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol


class Status(NamedTuple):
    """Size, time and kind of a file or folder."""

    nbytes: int
    modified_ns: int
    is_folder: bool


class Space(NamedTuple):
    """Bytes of a file system: free and total."""

    free: int
    total: int


class LockHeld(Exception):
    """Another process holds the lock. The text is the content of the lock file: the id of that process, or ""."""


class Disk(Protocol):
    """A file system. A change is durable only after `sync` (content and length) or `sync_folder` (names)."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file with the flags of `os.open`; returns a descriptor. A new file gets mode 0600: only its owner can read
        it."""

    def close(self, fd: int) -> None:
        """Close a descriptor."""

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers without gaps at `offset`; returns the number of bytes written, which may be fewer. OSError when
        refused."""

    def read(self, fd: int, nbytes: int, offset: int) -> bytes:
        """Read `nbytes` from `offset`; fewer only at the end of the file."""

    def sync(self, fd: int) -> None:
        """Return when the file's content is durable. After an OSError, the content of the disk is unknown."""

    def forget(self, fd: int) -> None:
        """Drop the file's clean pages from the page cache: later reads get them from the disk."""

    def truncate(self, fd: int, nbytes: int) -> None:
        """Give the file this length; added bytes read as zeros."""

    def size(self, fd: int) -> int:
        """The file's current length."""

    def replace(self, path: Path, target: Path) -> None:
        """Rename within a folder, atomically; replaces an existing file of that name."""

    def unlink(self, path: Path) -> None:
        """Remove a file. FileNotFoundError when there is none."""

    def sync_folder(self, folder: Path) -> None:
        """Make renames, creations and removals in this folder durable."""

    def make_folder(self, folder: Path) -> None:
        """Create a folder, and its parents, if they are missing."""

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, in no order. FileNotFoundError, NotADirectoryError."""

    def status(self, path: Path) -> Status:
        """The status of a file or folder. FileNotFoundError when there is none."""

    def free(self, folder: Path) -> Space:
        """The free and total space of the folder's file system."""

    def lock(self, path: Path) -> int:
        """Open a file, create it if it is missing, lock it until it is closed or the process ends, and write the process id into
        it. LockHeld when another process has the lock."""


class RealDisk:
    """The operating system's own calls."""

    def open(self, path: Path, flags: int) -> int:
        """open."""
        return os.open(path, flags, 0o600)

    def close(self, fd: int) -> None:
        """close."""
        os.close(fd)

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """pwritev: the caller passes at most IOV_MAX buffers."""
        return os.pwritev(fd, buffers, offset)

    def read(self, fd: int, nbytes: int, offset: int) -> bytes:
        """pread."""
        return os.pread(fd, nbytes, offset)

    def sync(self, fd: int) -> None:
        """fdatasync: the content, and the file's length if it has changed."""
        os.fdatasync(fd)

    def forget(self, fd: int) -> None:
        """posix_fadvise: the page cache drops clean pages."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def truncate(self, fd: int, nbytes: int) -> None:
        """ftruncate."""
        os.ftruncate(fd, nbytes)

    def size(self, fd: int) -> int:
        """fstat."""
        return os.fstat(fd).st_size

    def replace(self, path: Path, target: Path) -> None:
        """rename."""
        path.replace(target)

    def unlink(self, path: Path) -> None:
        """unlink."""
        path.unlink()

    def sync_folder(self, folder: Path) -> None:
        """fsync of the folder."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_folder(self, folder: Path) -> None:
        """mkdir -p."""
        folder.mkdir(parents=True, exist_ok=True)

    def names(self, folder: Path) -> list[str]:
        """readdir."""
        return os.listdir(folder)

    def status(self, path: Path) -> Status:
        """stat."""
        found = path.stat()
        return Status(found.st_size, found.st_mtime_ns, stat.S_ISDIR(found.st_mode))

    def free(self, folder: Path) -> Space:
        """statvfs: the space that is free for users other than root."""
        found = os.statvfs(folder)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def lock(self, path: Path) -> int:
        """flock: the kernel releases it when the process ends, even if it is killed."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise LockHeld(holder) from None
        mine = b"%d\n" % os.getpid()
        os.pwrite(fd, mine, 0)  # overwrites the old id, so it needs no free space
        os.ftruncate(fd, len(mine))
        return fd


REAL_DISK = RealDisk()
