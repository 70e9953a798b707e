"""A file system in memory for a host's store. It loses, tears, delays and refuses writes as a real one may.

Life of a byte: `write` puts it into a page of the cache, which is then dirty. `sync` makes those pages durable that
were dirty when it began. A crash decides for each dirty page whether it has the old content afterwards, the new one, or
a mixture of their 512-byte sectors. A page may also have been written back at any earlier time. The length of a file is
the old or the new one. A change of a name in a folder (create, rename, unlink) is kept or undone as the seed says; each
change is atomic. So the promises are those of POSIX with atomic renames, and no more.

After a failed sync, pages may be *phantoms*: the cache has the new content and treats it as written, but the disk has
the old content. The old content comes back with a crash or when the cache drops the file (`forget`).

Invariants: the same calls and the same random numbers give the same content. While the host is down, every call raises
`PowerOff`, so that a process that unwinds changes nothing. A page of zeros costs no memory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from broker.disk.files import LockHeld, Space, Status

PAGE = 4096
SECTOR = 512
_ZERO = bytes(PAGE)


class PowerOff(BaseException):
    """The host is down: what still runs of its process must end without a trace."""


@dataclass(slots=True, eq=False)
class _File:
    """Content as the cache has it, and what the disk has where that differs."""

    pages: dict[int, bytes] = field(default_factory=dict)
    """Those that were ever written; others are zeros, and take no room."""
    size: int = 0
    dirty: dict[int, bytes | None] = field(default_factory=dict)
    """What the disk has of the pages that are not synced; None where it has nothing."""
    durable_size: int = 0
    phantoms: dict[int, bytes | None] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)
    decayed: bool = False
    """Whether something of it was lost at rest, at any time."""
    modified: int = 0

    def put(self, number: int, content: bytes) -> None:
        """Change a page in the cache."""
        before = self.pages.get(number)
        if number not in self.dirty:
            self.dirty[number] = self.phantoms.pop(number, before)
        self.pages[number] = content
        self.unreadable.discard(number)

    def back(self, number: int, content: bytes | None) -> None:
        """The disk's content comes back into the cache."""
        if content is None:
            self.pages.pop(number, None)
        else:
            self.pages[number] = content

    def crash(self, rng: Random) -> None:
        """Keep of what is not durable whatever chance gives."""
        for number, old in sorted(self.phantoms.items()):
            self.back(number, old)
        for number, old in sorted(self.dirty.items()):
            fate = rng.random()
            if fate < 0.4:
                self.back(number, old)
            elif fate < 0.6:
                self.back(number, _torn(old or _ZERO, self.pages.get(number, _ZERO), rng))
        if self.size != self.durable_size and rng.random() < 0.5:
            self.size = self.durable_size
        for number in [number for number in self.pages if number * PAGE >= self.size]:
            del self.pages[number]
        self.settle()

    def settle(self) -> None:
        """What the cache has is what the disk has."""
        self.dirty.clear()
        self.phantoms.clear()
        self.durable_size = self.size


def _torn(old: bytes, new: bytes, rng: Random) -> bytes:
    which = rng.getrandbits(PAGE // SECTOR)
    halves = (old, new)
    return b"".join(halves[which >> at & 1][at * SECTOR : (at + 1) * SECTOR] for at in range(PAGE // SECTOR))


@dataclass(slots=True, eq=False)
class _Folder:
    """Names as they are, as they were when they were last synced, and what was done to them since."""

    entries: dict[str, _File | _Folder] = field(default_factory=dict)
    durable: dict[str, _File | _Folder] = field(default_factory=dict)
    done: list[tuple[str, _File | _Folder | str | None]] = field(default_factory=list)
    """(name, what has it now), (name, None) when it was removed, (name, new name) when it was renamed."""

    def crash(self, rng: Random) -> None:
        """Keep some of what was done: all, nothing, what was done first, or each thing by itself."""
        match rng.randrange(4):
            case 0:
                kept = self.done
            case 1:
                kept = []
            case 2:
                kept = self.done[: rng.randrange(len(self.done) + 1)]
            case _:
                kept = [step for step in self.done if rng.random() < 0.5]
        self.entries = _replayed(self.durable, kept)
        self.durable = dict(self.entries)
        self.done.clear()


def _replayed(
    names: dict[str, _File | _Folder], done: list[tuple[str, _File | _Folder | str | None]]
) -> dict[str, _File | _Folder]:
    found = dict(names)
    for name, what in done:
        if what is None:
            found.pop(name, None)
        elif not isinstance(what, str):
            found[name] = what
        elif name in found:
            found[what] = found.pop(name)
    return found


@dataclass(slots=True)
class _Descriptor:
    file: _File
    path: str
    locks: bool = False


class SimulatedDisk:
    """One host's file system. Fulfils `broker.disk.files.Disk`; the faults are set from outside, at any time.

    A disk starts switched on with an empty folder `/`. Names that exist are found by their text.
    """

    def __init__(self, rng: Random, sleep: Callable[[float], None] = lambda seconds: None) -> None:
        """`sleep` has the thread that calls wait for simulated seconds (`SimulatedThreads.sleep`)."""
        self.sync_s = 0.0
        """About how long a sync takes; no scheduling point when zero."""
        self.call_s: float | None = None
        """At most how long any other call that changes something takes; None: they are not scheduling points."""
        self.short_writes = 0.0
        """How likely a write is to stop early."""
        self.capacity: int | None = None
        """Bytes that files may take in all; None: no bound."""
        self.bad_syncs = 0
        """So many syncs to come fail with EIO."""
        self.syncs = 0
        self._rng = rng
        self._sleep = sleep
        self._root = _Folder()
        self._folders: dict[str, _Folder] = {"": self._root}
        self._descriptors: dict[int, _Descriptor] = {}
        self._next_descriptor = self._first_descriptor = 3
        self._modified = 0
        self._off = False

    # ---- power

    def start(self, sleep: Callable[[float], None]) -> None:
        """The host is up again; its threads wait by `sleep`."""
        self._sleep = sleep
        self._first_descriptor = self._next_descriptor
        self._off = False

    def kill(self) -> None:
        """The process is gone: nothing is lost but its descriptors and its lock. Down until `start`."""
        self._off = True
        self._descriptors.clear()

    def crash(self) -> None:
        """The power is gone: what was not synced survives or not. Down until `start`."""
        self._off = True
        self._descriptors.clear()
        self._folders = {"": self._root}
        self._crash_folder("", self._root)

    def _crash_folder(self, path: str, folder: _Folder) -> None:
        folder.crash(self._rng)
        for name, node in sorted(folder.entries.items()):
            if isinstance(node, _Folder):
                self._folders[f"{path}/{name}"] = node
                self._crash_folder(f"{path}/{name}", node)
            else:
                node.crash(self._rng)

    # ---- faults at rest, and views

    def paths(self) -> list[str]:
        """The files that there are, in order."""
        return sorted(path for path, _ in self._files())

    def content(self, path: str) -> bytes:
        """What a file holds, as the cache has it."""
        file = self._file(path)
        return b"".join(file.pages.get(number, _ZERO) for number in range(-(-file.size // PAGE)))[: file.size]

    def flip(self, path: str, offset: int, bit: int) -> None:
        """Flip a bit of a file at rest."""
        file = self._file(path)
        file.decayed = True
        number, at = divmod(offset, PAGE)
        at_rest = file.dirty if number in file.dirty else file.pages
        page = bytearray(at_rest.get(number) or _ZERO)
        page[at] ^= 1 << bit
        at_rest[number] = bytes(page)

    def make_unreadable(self, path: str, offset: int) -> None:
        """The page at this offset cannot be read any more until it is written."""
        file = self._file(path)
        file.decayed = True
        file.unreadable.add(offset // PAGE)

    def decayed(self) -> list[str]:
        """The files that there are of which something was lost at rest."""
        return sorted(path for path, file in self._files() if file.decayed)

    def lose(self, path: str) -> None:
        """A file is gone for good."""
        folder, name = self._folder_of(path)
        file = self._file(path)
        for names in (folder.entries, folder.durable):
            names.pop(name, None)
        folder.done = [(each, what) for each, what in folder.done if what is not file and what != name]

    def is_synced(self, path: str) -> bool:
        """Whether a power cut can change nothing of what this file holds; of its name nothing is said."""
        file = self._file(path)
        return not file.dirty and not file.phantoms and file.size == file.durable_size

    def is_durable(self, path: str) -> bool:
        """Whether a power cut can change nothing of this file and its name; False when there is no such file."""
        folder, name = self._folder_of(path)
        node = folder.entries.get(name)
        if not isinstance(node, _File) or folder.durable.get(name) is not node:
            return False
        return self.is_synced(path) and not any(name in step for step in folder.done)

    @property
    def used(self) -> int:
        """Bytes that files take."""
        return PAGE * sum(len(file.pages) for _, file in self._files())

    def _files(self) -> Iterator[tuple[str, _File]]:
        for path, folder in self._folders.items():
            for name, node in folder.entries.items():
                if isinstance(node, _File):
                    yield f"{path}/{name}", node

    # ---- of an open file

    def open(self, path: Path, flags: int) -> int:
        """open."""
        return self._open(path, flags, locks=False)

    def _open(self, path: Path, flags: int, *, locks: bool) -> int:
        self._call()
        text = str(path)
        folder, name = self._folder_of(text)
        node = folder.entries.get(name)
        if isinstance(node, _Folder):
            raise _refusal(errno.EISDIR, text)
        if node is None:
            if not flags & os.O_CREAT:
                raise _refusal(errno.ENOENT, text)
            node = folder.entries[name] = _File(modified=self._now())
            folder.done.append((name, node))
        elif flags & os.O_TRUNC and node.size:
            self._cut(node, 0)
        fd, self._next_descriptor = self._next_descriptor, self._next_descriptor + 1
        self._descriptors[fd] = _Descriptor(node, text, locks)
        return fd

    def close(self, fd: int) -> None:
        """close; one of a process that is gone is closed already."""
        if not self._off and fd >= self._first_descriptor:
            del self._descriptors[fd]

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """pwritev, which may stop early."""
        self._call()
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        if self.short_writes and len(data) > 1 and self._rng.random() < self.short_writes:
            data = data[: self._rng.randrange(1, len(data))]
        file = self._descriptors[fd].file
        room = (1 << 62) if self.capacity is None else self.capacity - self.used
        done = 0
        while done < len(data):
            number, at = divmod(offset + done, PAGE)
            piece = data[done : done + PAGE - at]
            page = file.pages.get(number)
            if page is None:
                if room < PAGE:
                    break
                room -= PAGE
                page = _ZERO
            elif number in file.dirty and self._rng.random() < 0.1:
                file.dirty[number] = page  # it was written back meanwhile
            if len(piece) == PAGE:
                file.put(number, _ZERO if piece == _ZERO else piece)
            else:
                file.put(number, b"".join((page[:at], piece, page[at + len(piece) :])))
            done += len(piece)
        if not done and data:
            raise _refusal(errno.ENOSPC, self._descriptors[fd].path)
        file.size = max(file.size, offset + done)
        file.modified = self._now()
        return done

    def read(self, fd: int, nbytes: int, offset: int) -> bytes:
        """pread, which stops before a page that cannot be read, or fails at once when that is the first."""
        self._must_be_on()
        file = self._descriptors[fd].file
        end = min(offset + nbytes, file.size)
        if end <= offset:
            return b""
        first, stop = offset // PAGE, -(-end // PAGE)
        if file.unreadable:
            bad = min((number for number in file.unreadable if first <= number < stop), default=stop)
            if bad == first:
                raise _refusal(errno.EIO, self._descriptors[fd].path)
            if bad < stop:
                stop, end = bad, bad * PAGE
        get = file.pages.get
        data = get(first, _ZERO) if stop == first + 1 else b"".join([get(number, _ZERO) for number in range(first, stop)])
        return data[offset - first * PAGE : end - first * PAGE]

    def sync(self, fd: int) -> None:
        """fdatasync. When it fails, each page may be durable or not, and the next sync does not try again."""
        self._must_be_on()
        file = self._descriptors[fd].file
        self.syncs += 1
        begun = {number: file.pages.get(number) for number in file.dirty}
        size = file.size
        self._take(self.sync_s, at_least=0.5)
        if self.bad_syncs:
            self.bad_syncs -= 1
            self._drop(file, begun)
            raise _refusal(errno.EIO, self._descriptors[fd].path)
        for number, content in begun.items():
            if number in file.dirty:
                if file.pages.get(number) is content:
                    del file.dirty[number]
                else:
                    file.dirty[number] = content
        file.durable_size = size

    def _drop(self, file: _File, begun: dict[int, bytes | None]) -> None:
        """After a failed sync: what was written through is clean, and so, wrongly, is what was not."""
        reverts = self._rng.random() < 0.5
        for number in sorted(begun):
            if number not in file.dirty:
                continue
            old = file.dirty.pop(number)
            if self._rng.random() < 0.5:
                continue
            if reverts:
                file.back(number, old)
            else:
                file.phantoms[number] = old

    def truncate(self, fd: int, nbytes: int) -> None:
        """ftruncate."""
        self._call()
        self._cut(self._descriptors[fd].file, nbytes)

    def _cut(self, file: _File, nbytes: int) -> None:
        for number in sorted(number for number in file.pages if number * PAGE >= nbytes):
            file.dirty.setdefault(number, file.phantoms.pop(number, file.pages[number]))
            del file.pages[number]
        number, at = divmod(nbytes, PAGE)
        if at and number in file.pages and nbytes < file.size:
            file.put(number, file.pages[number][:at] + _ZERO[at:])
        file.size = nbytes
        file.modified = self._now()

    def size(self, fd: int) -> int:
        """fstat."""
        self._must_be_on()
        return self._descriptors[fd].file.size

    def forget(self, fd: int) -> None:
        """posix_fadvise(DONTNEED): what is clean leaves the cache, and what the disk has is read from then on."""
        self._must_be_on()
        file = self._descriptors[fd].file
        for number, old in sorted(file.phantoms.items()):
            file.back(number, old)
        file.phantoms.clear()

    # ---- of names

    def replace(self, path: Path, target: Path) -> None:
        """rename, within a folder."""
        self._call()
        folder, name = self._folder_of(str(path))
        beside, new_name = self._folder_of(str(target))
        assert folder is beside, f"{path} is renamed into another folder, {target}"
        node = folder.entries.pop(name, None)
        if node is None:
            raise _refusal(errno.ENOENT, str(path))
        folder.entries[new_name] = node
        folder.done.append((name, new_name))

    def unlink(self, path: Path) -> None:
        """unlink."""
        self._call()
        self._file(str(path))
        folder, name = self._folder_of(str(path))
        del folder.entries[name]
        folder.done.append((name, None))

    def sync_folder(self, folder: Path) -> None:
        """fsync of a folder."""
        self._must_be_on()
        found = self._folder(str(folder))
        self.syncs += 1
        n = len(found.done)
        self._take(self.sync_s, at_least=0.5)
        if self.bad_syncs:
            self.bad_syncs -= 1
            raise _refusal(errno.EIO, str(folder))
        found.durable = _replayed(found.durable, found.done[:n])
        del found.done[:n]

    def make_folder(self, folder: Path) -> None:
        """mkdir -p."""
        self._call()
        parts = str(folder).strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            path = "/" + "/".join(parts[:depth])
            if path in self._folders:
                continue
            above, name = self._folder_of(path)
            if name in above.entries:
                raise _refusal(errno.EEXIST, path)
            made = self._folders[path] = above.entries[name] = _Folder()
            above.done.append((name, made))

    def names(self, folder: Path) -> list[str]:
        """readdir."""
        self._must_be_on()
        return list(self._folder(str(folder)).entries)

    def status(self, path: Path) -> Status:
        """stat."""
        self._must_be_on()
        text = str(path)
        if text in self._folders:
            return Status(0, 0, True)
        file = self._file(text)
        return Status(file.size, file.modified, False)

    def free(self, folder: Path) -> Space:
        """statvfs."""
        self._must_be_on()
        if self.capacity is None:
            return Space(1 << 62, 1 << 62)
        return Space(max(0, self.capacity - self.used), self.capacity)

    def lock(self, path: Path) -> int:
        """flock: there is one process on this host, so who asks twice is refused."""
        if any(each.locks and each.path == str(path) for each in self._descriptors.values()):
            raise LockHeld("1")
        return self._open(path, os.O_RDWR | os.O_CREAT, locks=True)

    # ---- below

    def _must_be_on(self) -> None:
        if self._off:
            raise PowerOff

    def _call(self) -> None:
        """Something is about to change: it may take a while."""
        if self._off:
            raise PowerOff
        if self.call_s is not None:
            self._take(self.call_s, at_least=0.0)

    def _take(self, seconds: float, *, at_least: float) -> None:
        if seconds or not at_least:
            self._sleep(seconds * (at_least + self._rng.random()))
            self._must_be_on()

    def _now(self) -> int:
        self._modified += 1
        return self._modified

    def _folder(self, path: str) -> _Folder:
        found = self._folders.get("" if path == "/" else path)
        if found is None:
            raise _refusal(errno.ENOENT, path)
        return found

    def _folder_of(self, path: str) -> tuple[_Folder, str]:
        above, _, name = path.rpartition("/")
        found = self._folders.get(above)
        if found is None:
            raise _refusal(errno.ENOENT, path)
        return found, name

    def _file(self, path: str) -> _File:
        folder, name = self._folder_of(path)
        found = folder.entries.get(name)
        if not isinstance(found, _File):
            raise _refusal(errno.ENOENT, path)
        return found


def _refusal(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
