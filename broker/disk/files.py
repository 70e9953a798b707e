"""The file system as the store uses it, behind a Protocol, so that a simulation can fail, tear, slow or forget each of its calls.

Every call that the store makes to the file system is one of `Disk`'s. `RealDisk` hands each to the operating system as it is,
without a buffer or a loop of its own. Errors are the operating system's `OSError`s, told apart by `errno`.

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
    """What a folder says of one of its entries."""

    nbytes: int
    modified_ns: int
    is_folder: bool


class Space(NamedTuple):
    """Bytes of a file system: those that may still be written, and all."""

    free: int
    total: int


class LockHeld(Exception):
    """Another process holds the lock. The text is what that process wrote into the file: its id, or ""."""


class Disk(Protocol):
    """A file system. Whatever changes it is durable only after `sync` (content and length) or `sync_folder` (names)."""

    def open(self, path: Path, flags: int) -> int:
        """A descriptor, by the flags of `os.open`; a file that this creates is its owner's alone (mode 0600)."""

    def close(self, fd: int) -> None:
        """Let go of a descriptor."""

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers end to end at `offset`; returns the bytes written, which may be fewer. OSError when refused."""

    def read(self, fd: int, nbytes: int, offset: int) -> bytes:
        """Up to `nbytes` from `offset`; fewer only at the end of the file."""

    def sync(self, fd: int) -> None:
        """Return when the file's content is durable. OSError: what the disk holds is unknown."""

    def forget(self, fd: int) -> None:
        """Have the file's content read from the disk from now on, as far as nothing waits to be written there."""

    def truncate(self, fd: int, nbytes: int) -> None:
        """Give the file this length; what is new reads as zeros."""

    def size(self, fd: int) -> int:
        """The file's length now."""

    def replace(self, path: Path, target: Path) -> None:
        """Rename within a folder, atomically, over what has the name already."""

    def unlink(self, path: Path) -> None:
        """Remove a name. FileNotFoundError when there is none."""

    def sync_folder(self, folder: Path) -> None:
        """Make renames, creations and removals in this folder durable."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder, and those above it, where they are missing."""

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, in no order. FileNotFoundError, NotADirectoryError."""

    def status(self, path: Path) -> Status:
        """Of a file or folder. FileNotFoundError when there is none."""

    def free(self, folder: Path) -> Space:
        """What the file system of a folder has room for."""

    def lock(self, path: Path) -> int:
        """Open a file, made if missing, that belongs to this process alone until it is closed or the process ends, and write
        the process's id into it. LockHeld when another has it."""


class RealDisk:
    """The operating system's own calls."""

    def open(self, path: Path, flags: int) -> int:
        """open."""
        return os.open(path, flags, 0o600)

    def close(self, fd: int) -> None:
        """close."""
        os.close(fd)

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """pwritev: the caller keeps within IOV_MAX buffers."""
        return os.pwritev(fd, buffers, offset)

    def read(self, fd: int, nbytes: int, offset: int) -> bytes:
        """pread."""
        return os.pread(fd, nbytes, offset)

    def sync(self, fd: int) -> None:
        """fdatasync: the content, and the file's length when that has changed."""
        os.fdatasync(fd)

    def forget(self, fd: int) -> None:
        """posix_fadvise: the page cache lets go of what is clean."""
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
        """statvfs: what is free for those who are not root."""
        found = os.statvfs(folder)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def lock(self, path: Path) -> int:
        """flock, which the kernel gives back when the process ends, however it ends."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise LockHeld(holder) from None
        mine = b"%d\n" % os.getpid()
        os.pwrite(fd, mine, 0)  # over what stands there, which needs no room
        os.ftruncate(fd, len(mine))
        return fd


REAL_DISK = RealDisk()
