"""File systems for one test, mounted below its folder: small ones that fill up, disks that lose power or stop accepting
writes.

Life of each: it is made and mounted at the beginning of its context, damaged by the test, and removed at the end in any case.
Its loop device is released with its mount. A process with open files there only delays this.

A `Disk` is ext4 on a loop device. `lose_power` shuts it down without a flush (the ioctl EXT4_IOC_SHUTDOWN, made for such
tests): after `repair`, synced data is there, and other data is lost. A disk may have less backing space than its size: then
writes succeed and their sync fails, as on a thin volume whose pool is full.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.system.harness import eventually
from tests.system.means import NotHere, must_be_root, program, run

_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2
_WRITES_ONLY_WHEN_ASKED = "commit=3600,noauto_da_alloc"
"""ext4 would else end a transaction every five seconds, and write a file that was emptied and filled again as it is closed."""
MIB = 1024 * 1024


def _mount(*words: str) -> None:
    """NotHere where the kernel, or whoever contains this machine, does not let us."""
    made = subprocess.run([program("mount", "mount"), *words], capture_output=True, text=True, timeout=60, check=False)
    if made.returncode != 0:
        raise NotHere(f"the right to mount, loop devices and ext4 ({made.stderr.strip()})")


def _unmount(folder: Path) -> None:
    """Take a mount away from its folder now; it ends when nobody uses it any more."""
    if os.path.ismount(folder):
        run(program("umount", "mount"), "--lazy", str(folder))


class Memory:
    """A tmpfs of a certain size."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        _mount("-t", "tmpfs", "-o", f"size={nbytes}", "test", str(folder))

    def grow(self, nbytes: int) -> None:
        """Make room."""
        _mount("-o", f"remount,size={nbytes}", str(self.folder))

    def shrink(self, spare_bytes: int = 256 * 1024) -> None:
        """Leave room for so much alone: full, without taking memory."""
        found = os.statvfs(self.folder)
        self.grow((found.f_blocks - found.f_bfree) * found.f_frsize + spare_bytes)

    def free_bytes(self) -> int:
        """What is left."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Use up what is left."""
        with contextlib.suppress(OSError), (self.folder / "filling").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))


class Disk:
    """An ext4 in the file `image`, mounted on `folder`."""

    def __init__(self, folder: Path, image: Path, nbytes: int = 64 * MIB) -> None:
        self.folder = folder
        self.image = image
        folder.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(nbytes)
        run(program("mkfs.ext4", "e2fsprogs"), "-q", "-E", "lazy_journal_init=1", "-m", "0", str(image))
        self._mount()

    def _mount(self) -> None:
        _mount("-o", f"loop,{_WRITES_ONLY_WHEN_ASKED}", str(self.image), str(self.folder))

    def lose_power(self) -> None:
        """Nothing reaches the disk from here on, and nothing that was not synced has."""
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def repair(self) -> None:
        """Power is back: mount again, which replays the file system's own journal. Whoever had files open there has ended."""
        eventually(self._unmounted, bool, f"nobody using {self.folder}")
        self._mount()

    def _unmounted(self) -> bool:
        return subprocess.run([program("umount", "mount"), self.folder], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def memory(folder: Path, nbytes: int) -> Iterator[Memory]:
    """A tmpfs mounted on this folder."""
    must_be_root()
    try:
        yield Memory(folder, nbytes)
    finally:
        _unmount(folder)


@contextlib.contextmanager
def disk(folder: Path, image: Path, nbytes: int = 64 * MIB) -> Iterator[Disk]:
    """A disk mounted on this folder."""
    must_be_root()
    try:
        yield Disk(folder, image, nbytes)
    finally:
        _unmount(folder)
