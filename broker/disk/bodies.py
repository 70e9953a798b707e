"""Body files: files with live bodies that are not part of the log any more; and how a body is read from its place.

A **place** is one unsigned 64-bit number: the number of a file (upper 32 bits) and an offset in it (lower 32 bits). Life of a
body file: a segment that a checkpoint covers leaves the log and stays as it is; or a compaction writes a body file; or a peer
sends one with a checkpoint. A body file never changes. The newest checkpoint lists it; when a checkpoint no longer lists it, it
is deleted. So a start deletes every body file that its checkpoint does not list.

A file number is unique within one log on one broker. A broker that gets a snapshot gets the sender's files under the sender's
numbers. So that these do not conflict with the broker's own files of the same numbers, three things name a file: its number, its
**origin** (which store wrote it), and how many of its bytes are in use. Equal names mean equal content, on every broker.

Layout of `<number>-<origin>-<used>.bodies`, the same as that of a segment: a page of header, then complete batches without gaps,
up to `used` bytes. The page is never read: the checkpoint that lists the file says which file it is, and how long.

Invariants: a file has at most one descriptor that is used again; it is closed only when nobody reads with it; of the descriptors
that nobody uses, at most `MAX_OPEN` stay open; when a file cannot be opened because too many files are open, this is not damage:
the file is read when a descriptor is free.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from broker.core.records import BadBatch
from broker.disk.durable import ASIDE, NO_DESCRIPTORS, refused, write_all
from broker.disk.files import Disk
from broker.disk.segments import FIRST_BATCH, Window
from broker.disk.threads import Threads

SUFFIX = ".bodies"
MAX_OPEN = 32
_OFFSET_BITS = 32
_NAME = re.compile(r"(\d{10})-([0-9a-f]{16})-(\d{10,})\.bodies")
_GAP = 4096
_MAX_READ = 4 * 1024 * 1024
_DESCRIPTOR_WAIT_S = 0.05


class FileInUse(NamedTuple):
    """A file as a checkpoint lists it: its number, the store that wrote it, and the offset at which its last batch ends."""

    number: int
    origin: int
    used: int

    @property
    def name(self) -> str:
        """The name of a body file. A segment that a checkpoint covers keeps its own name instead."""
        return f"{self.number:010d}-{self.origin:016x}-{self.used:010d}{SUFFIX}"


class Unreadable(Exception):
    """A body cannot be read at its `place`. The text names the file and says why."""

    def __init__(self, place: int, text: str) -> None:
        super().__init__(text)
        self.place = place


def place_of(number: int, offset: int) -> int:
    """The place at an offset of a file."""
    return number << _OFFSET_BITS | offset


def file_of(place: int) -> int:
    """The file number of a place."""
    return place >> _OFFSET_BITS


def offset_of(place: int) -> int:
    """The offset of a place in its file, in bytes."""
    return place & ((1 << _OFFSET_BITS) - 1)


def listed(disk: Disk, folder: Path) -> list[FileInUse]:
    """The body files in a folder, in order of their numbers."""
    found = []
    for name in disk.names(folder):
        match = _NAME.fullmatch(name)
        if match is not None:
            found.append(FileInUse(int(match[1]), int(match[2], 16), int(match[3])))
    return sorted(found)


def verify_batches(disk: Disk, fd: int, file: FileInUse, path: Path) -> None:
    """Check every batch in the used part of a file. BadBatch names the file and the offset of the first batch that is damaged."""
    nbytes = disk.size(fd)
    if nbytes < file.used:
        raise BadBatch(f"{path} ends after {nbytes} bytes, and {file.used} are in use")
    window = Window(disk, fd, file.used)
    offset = FIRST_BATCH
    while offset < file.used:
        try:
            offset += window.batch(offset).length
        except BadBatch as error:
            raise BadBatch(f"{path} is damaged at byte {offset}: {error}") from None


class BodyWriter:
    """Writes a body file. Blocks: call it in a thread. The file does not count before `finish` has made it durable."""

    def __init__(self, disk: Disk, folder: Path, number: int, origin: int) -> None:
        """Begin file `number`. StorageError."""
        self.used = FIRST_BATCH
        self._disk = disk
        self._folder = folder
        self._number, self._origin = number, origin
        self._aside = folder / f"{number:010d}{SUFFIX}{ASIDE}"
        try:
            self._fd = disk.open(self._aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise refused(error, "write bodies to", self._aside) from error

    def add(self, batch: bytes) -> int:
        """Append a sealed batch; returns its place. StorageError."""
        place = place_of(self._number, self.used)
        try:
            write_all(self._disk, self._fd, batch, self.used)
        except OSError as error:
            raise refused(error, "write bodies to", self._aside) from error
        self.used += len(batch)
        return place

    def sync(self) -> None:
        """Sync what was written so far, so that the last sync is short. StorageError."""
        try:
            self._disk.sync(self._fd)
        except OSError as error:
            raise refused(error, "sync", self._aside) from error

    def finish(self) -> FileInUse:
        """Make the file durable under its name. StorageError."""
        file = FileInUse(self._number, self._origin, self.used)
        self.sync()
        try:
            self._disk.replace(self._aside, self._folder / file.name)
            self._disk.sync_folder(self._folder)
        except OSError as error:
            raise refused(error, "keep", self._aside) from error
        self._close()
        return file

    def abort(self) -> None:
        """Delete the unfinished file. Does nothing after `finish`."""
        if self._fd >= 0:
            self._close()
            with contextlib.suppress(OSError):
                self._disk.unlink(self._aside)

    def _close(self) -> None:
        self._disk.close(self._fd)
        self._fd = -1


class _Open:
    __slots__ = ("fd", "gone", "readers")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.readers = 0
        self.gone = False


class Readers:
    """Read-only descriptors of a log's files, by file number, for any thread. At most `MAX_OPEN` unused ones stay open."""

    def __init__(self, disk: Disk, threads: Threads, path_of: Callable[[int], Path | None]) -> None:
        """`path_of` returns the current path of a file, or None when it no longer exists. The reading threads call it."""
        self._disk = disk
        self._path_of = path_of
        self._lock = threads.condition()
        self._open: OrderedDict[int, _Open] = OrderedDict()

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes at these spans, each (place, length in bytes), in the same order.

        Unreadable: the disk refuses, the file is too short, or it no longer exists.
        """
        found = [b""] * len(spans)
        for group in _together(spans):
            start = spans[group[0]][0]
            nbytes = max(spans[at][0] + spans[at][1] for at in group) - start
            data = self._read(start, nbytes, alone=len(group) == 1)
            for at in group:
                place, length = spans[at]
                piece = data[place - start : place - start + length] if data is not None else b""
                found[at] = piece if len(piece) == length else self._whole(place, length)
        return found

    def _whole(self, place: int, nbytes: int) -> bytes:
        data = self._read(place, nbytes, alone=True)
        assert data is not None
        if len(data) < nbytes:
            text = f"{self._path_of(file_of(place))} ends before byte {offset_of(place) + nbytes}, the end of a body"
            raise Unreadable(place, text)
        return data

    def _read(self, place: int, nbytes: int, *, alone: bool) -> bytes | None:
        """Read one span. None when the disk refuses a span of several bodies: then the caller reads each body by itself."""
        with self._lock:
            held = self._held(place)
            self._open.move_to_end(file_of(place))
            held.readers += 1
        try:
            return self._disk.read(held.fd, nbytes, offset_of(place))
        except OSError as error:
            if not alone:
                return None
            path = self._path_of(file_of(place))
            raise Unreadable(place, f"{path} cannot be read at byte {offset_of(place)}: {error.strerror}") from error
        finally:
            with self._lock:
                held.readers -= 1
                if held.gone and not held.readers:
                    self._disk.close(held.fd)
                self._trim()

    def _held(self, place: int) -> _Open:
        """The open file of this place. While no descriptor is free, this waits with the lock released. Then another thread may
        have opened the file, or the number may mean another file, so it looks again from the beginning."""
        number = file_of(place)
        while True:
            held = self._open.get(number)
            if held is not None:
                return held
            path = self._path_of(number)
            if path is None:
                raise Unreadable(place, f"this log has no file {number} (any more)")
            try:
                held = self._open[number] = _Open(self._disk.open(path, os.O_RDONLY))
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise Unreadable(place, f"{path} cannot be opened: {error.strerror}") from error
            else:
                return held
            self._trim(0)
            self._lock.wait(_DESCRIPTOR_WAIT_S)

    def _trim(self, most: int | None = None) -> None:
        spare = len(self._open) - (MAX_OPEN if most is None else most)
        if spare > 0:
            for number in [number for number, held in self._open.items() if not held.readers][:spare]:
                self._disk.close(self._open.pop(number).fd)

    def forget(self, numbers: Sequence[int] | None = None) -> None:
        """Stop using the open descriptors of these files (None: all), because the files are about to be deleted or their numbers
        now mean other files."""
        with self._lock:
            for number in list(self._open) if numbers is None else numbers:
                held = self._open.pop(number, None)
                if held is not None and held.readers:
                    held.gone = True
                elif held is not None:
                    self._disk.close(held.fd)


def _together(spans: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Group the indexes of spans that are near each other in one file, so that one read gets each group."""
    if len(spans) == 1:
        yield [0]
        return
    group: list[int] = []
    start = end = 0
    for at in sorted(range(len(spans)), key=lambda at: spans[at][0]):
        place, nbytes = spans[at]
        near = group and file_of(place) == file_of(start) and place <= end + _GAP and place + nbytes - start <= _MAX_READ
        if not near:
            if group:
                yield group
            group, start, end = [], place, place
        group.append(at)
        end = max(end, place + nbytes)
    if group:
        yield group
