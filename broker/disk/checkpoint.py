"""Checkpoints: what is alive at one index, in one file, so that the log before it can go.

A checkpoint's life: sealed snapshot batches are written end to end into a file aside, with a trailer that says how many they
are and the checksum of everything; the file is synced, renamed in and the folder synced. Only then may older checkpoints, and
after them the log's segments before it, be deleted. So a crash at any moment leaves a whole checkpoint with all of the log
after it: the old pair, the new one, or both.

A backup that lacks what was deleted gets the same file in chunks, verifies the whole, and renames it in; then its log starts anew
(`Journal.reset`).

Layout, little-endian: magic "USC1", version, bytes of members, index, epoch, CRC-32C of these and of the members; the members
as JSON; batches end to end; magic "USCE", number of batches, bytes of batches, CRC-32C of everything before it. A file that
was cut lacks the trailer.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from broker.core.records import HEADER_BYTES, BadBatch, parse_header, verify
from broker.disk.durable import ASIDE, NewerFormat, read_whatever, refused, unlink_if_there, write_all
from broker.disk.durable import opened as _file
from broker.disk.files import Disk

VERSION = 1
_SUFFIX = ".checkpoint"
_HEAD = struct.Struct("<4sIIQQ")
_HEAD_MAGIC = b"USC1"
_TRAILER = struct.Struct("<4sQQI")
_TRAILER_MAGIC = b"USCE"
_CRC = struct.Struct("<I")
_BLOCK = 4 * 1024 * 1024
_MAX_MEMBERS_BYTES = 1024 * 1024


class CheckpointGone(LookupError):
    """A newer checkpoint has replaced this one. Ask for the newest again and start from its beginning."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole, verified checkpoint on disk: the state after the batch `index` of `epoch`, with the `members` of that moment."""

    path: Path
    index: int
    epoch: int
    members: dict[str, Any]
    nbytes: int

    @staticmethod
    def newest(folder: Path, *, disk: Disk) -> Checkpoint | None:
        """The newest checkpoint of a log's folder that is whole (every byte is read), or None.

        One that another thread replaces meanwhile is passed over for what has replaced it.
        """
        passed: set[Path] = set()
        while left := [path for path in listed(disk, folder) if path not in passed]:
            passed.add(left[-1])
            with contextlib.suppress(BadBatch, CheckpointGone):
                return load(left[-1], disk=disk)
        return None

    @staticmethod
    def read(path: Path, *, disk: Disk) -> Iterator[bytes]:
        """The snapshot batches, each verified. BadBatch names the file and the offset where it is damaged."""
        with _opened(disk, path) as fd:
            _, _, _, offset = _read_head(disk, fd, path)
            end = disk.size(fd) - _TRAILER.size
            while offset < end:
                try:
                    length = parse_header(read_whatever(disk, fd, HEADER_BYTES, offset)).length
                    batch = read_whatever(disk, fd, length, offset)
                    verify(batch)
                except BadBatch as error:
                    raise BadBatch(f"checkpoint {path} is damaged at byte {offset}: {error}") from None
                yield batch
                offset += length


def listed(disk: Disk, folder: Path) -> list[Path]:
    """The checkpoint files of a folder, oldest first, whole or not."""
    names = (name for name in disk.names(folder) if name.endswith(_SUFFIX) and len(name) == 20 + len(_SUFFIX))
    return [folder / name for name in sorted(names) if name[:20].isdecimal()]


def load(path: Path, *, disk: Disk) -> Checkpoint:
    """Check a checkpoint's every byte. BadBatch says what is wrong with it; CheckpointGone; NewerFormat."""
    with _opened(disk, path) as fd:
        index, epoch, members, _ = _read_head(disk, fd, path)
        nbytes = disk.size(fd)
        trailer = read_whatever(disk, fd, _TRAILER.size, max(0, nbytes - _TRAILER.size))
        if len(trailer) < _TRAILER.size or not trailer.startswith(_TRAILER_MAGIC):
            raise BadBatch(f"checkpoint {path} is cut off after {nbytes} bytes: it has no trailer")
        stored = _TRAILER.unpack(trailer)[3]
        found = 0
        end = nbytes - _CRC.size
        for at in range(0, end, _BLOCK):
            found = google_crc32c.extend(found, read_whatever(disk, fd, min(_BLOCK, end - at), at))
        if found != stored:
            raise BadBatch(f"checkpoint {path} is damaged: checksum {found:08x} is not the stored {stored:08x}")
        return Checkpoint(path, index, epoch, members, nbytes)


def write(folder: Path, index: int, epoch: int, members: dict[str, Any], batches: Iterable[bytes], *, disk: Disk) -> Checkpoint:
    """Write a checkpoint durably; older ones stay. Blocks: call it in a thread (`Journal.write_checkpoint` does).

    StorageError when the disk refuses; nothing is left of it then, as when `batches` itself raises.
    """
    path = folder / f"{index:020d}{_SUFFIX}"
    aside = path.with_name(path.name + ASIDE)
    try:
        with _file(disk, aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            nbytes = _write_content(disk, fd, _head(index, epoch, members), batches)
            disk.sync(fd)
        disk.replace(aside, path)
        disk.sync_folder(folder)
    except BaseException as error:
        with contextlib.suppress(OSError):
            disk.unlink(aside)
        if isinstance(error, OSError):
            raise refused(error, "write the checkpoint", path) from error
        raise
    return Checkpoint(path, index, epoch, members, nbytes)


def remove_older(than: Checkpoint, *, disk: Disk) -> None:
    """Delete the checkpoints before this one, which must be durable. OSError when the disk refuses."""
    for path in listed(disk, than.path.parent):
        if path.name < than.path.name:
            unlink_if_there(disk, path)
    disk.sync_folder(than.path.parent)


def read_chunk(path: Path, offset: int, nbytes: int, *, disk: Disk) -> bytes:
    """Bytes of the file for a peer; empty at its end. CheckpointGone when it was replaced. Blocks for one read."""
    with _opened(disk, path) as fd:
        return disk.read(fd, nbytes, offset)


class Receiver:
    """A checkpoint arriving from a peer in chunks. Blocks: call it in a thread; one at a time for each folder.

    Nothing that arrives counts before `finish` has found every byte of it right and made it durable.
    """

    def __init__(self, folder: Path, nbytes: int, *, disk: Disk) -> None:
        """Begin to receive a file of `nbytes`; whatever an earlier Receiver left is dropped. StorageError."""
        self.nbytes = nbytes
        self._received = 0
        self._disk = disk
        self._folder = folder
        self._aside = folder / f"received{ASIDE}"
        try:
            self._fd = disk.open(self._aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise refused(error, "receive a checkpoint into", self._aside) from error

    @property
    def received(self) -> int:
        """The offset that the next chunk must have."""
        return self._received

    def write(self, offset: int, data: bytes) -> None:
        """Add a chunk. ValueError when it is not the next one or runs past the end. StorageError when the disk refuses."""
        if offset != self._received or offset + len(data) > self.nbytes:
            raise ValueError(
                f"{len(data)} bytes at {offset} of a checkpoint do not fit {self._received} received of {self.nbytes}"
            )
        try:
            write_all(self._disk, self._fd, data, offset)
        except OSError as error:
            raise refused(error, "receive a checkpoint into", self._aside) from error
        self._received += len(data)

    def finish(self) -> Checkpoint:
        """Verify the whole, make it durable and rename it in; then call `Journal.reset(index, epoch)`.

        BadBatch: it has to be fetched again. NewerFormat: the peer's version is newer."""
        try:
            self._disk.sync(self._fd)
            found = load(self._aside, disk=self._disk)
            for _ in Checkpoint.read(self._aside, disk=self._disk):
                pass
            path = self._folder / f"{found.index:020d}{_SUFFIX}"
            self._disk.replace(self._aside, path)
            self._disk.sync_folder(self._folder)
        except OSError as error:
            raise refused(error, "keep the received checkpoint", self._aside) from error
        finally:
            self.abort()
        return Checkpoint(path, found.index, found.epoch, found.members, found.nbytes)

    def abort(self) -> None:
        """Drop what has arrived; after `finish`, nothing."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self._disk.unlink(self._aside)


@contextlib.contextmanager
def _opened(disk: Disk, path: Path) -> Iterator[int]:
    try:
        fd = disk.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise CheckpointGone(f"there is no checkpoint {path} (any more)") from None
    try:
        yield fd
    finally:
        disk.close(fd)


def _head(index: int, epoch: int, members: dict[str, Any]) -> bytes:
    text = json.dumps(members, separators=(",", ":"), sort_keys=True).encode()
    fixed = _HEAD.pack(_HEAD_MAGIC, VERSION, len(text), index, epoch)
    return b"".join((fixed, _CRC.pack(google_crc32c.value(fixed + text)), text))


def _write_content(disk: Disk, fd: int, head: bytes, batches: Iterable[bytes]) -> int:
    """Head, batches and trailer; returns the bytes of all of them."""
    write_all(disk, fd, head, 0)
    offset = len(head)
    crc = google_crc32c.value(head)
    count = 0
    for batch in batches:
        write_all(disk, fd, batch, offset)
        crc = google_crc32c.extend(crc, batch)
        offset += len(batch)
        count += 1
    trailer = _TRAILER.pack(_TRAILER_MAGIC, count, offset - len(head), 0)[: -_CRC.size]
    write_all(disk, fd, trailer + _CRC.pack(google_crc32c.extend(crc, trailer)), offset)
    return offset + _TRAILER.size


def _read_head(disk: Disk, fd: int, path: Path) -> tuple[int, int, dict[str, Any], int]:
    """Index, epoch, members, and the offset of the first batch."""
    fixed = read_whatever(disk, fd, _HEAD.size + _CRC.size, 0)
    if len(fixed) < _HEAD.size + _CRC.size or not fixed.startswith(_HEAD_MAGIC):
        raise BadBatch(f"{path} does not begin like a checkpoint")
    _, version, n_members, index, epoch = _HEAD.unpack_from(fixed)
    text = read_whatever(disk, fd, min(n_members, _MAX_MEMBERS_BYTES), len(fixed))
    if _CRC.unpack_from(fixed, _HEAD.size)[0] != google_crc32c.value(fixed[: _HEAD.size] + text):
        raise BadBatch(f"the head of checkpoint {path} is damaged")
    if version > VERSION:
        raise NewerFormat(
            f"checkpoint {path} has format {version}, newer than {VERSION}; use the version of the program that wrote it"
        )
    return index, epoch, json.loads(text), len(fixed) + len(text)
