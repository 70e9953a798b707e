"""Checkpoints: one file with what is alive at one index and with the names of the files that have the bodies, so that the log up
to this index can be deleted.

Life of a checkpoint: sealed snapshot batches (definitions, and the places of messages) are written to a temporary file, followed
by a trailer with their number and a checksum of everything. The file is synced, renamed to its name, and the folder is synced.
Only then may older checkpoints be deleted, and after them the log's segments and the body files that the new one does not list.
So a crash at any moment leaves a complete checkpoint with all files that it needs: the old one, the new one, or both.

A backup that lacks batches which were deleted gets this same file and the files that it lists: see `transfer`.

Layout, little-endian: magic "USC1", version, bytes of JSON, index, epoch, CRC-32C of these fields and of the JSON; the JSON;
batches without gaps; magic "USCE", number of batches, bytes of batches, CRC-32C of everything before it. A file that was cut off
has no trailer.

The JSON: `members`; `next`, the next file number; `origin`, which store wrote this checkpoint; `tail`, the place of the batch
after `index` in that store; `files`, for each file that it needs its number, origin and bytes in use. In version 1 the JSON had
only the members, and the batches had the bodies.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c

from broker.core.records import HEADER_BYTES, BadBatch, parse_header, verify
from broker.disk.bodies import FileInUse
from broker.disk.durable import ASIDE, NewerFormat, read_whatever, refused, unlink_if_there, write_all
from broker.disk.durable import opened as _file
from broker.disk.files import Disk

VERSION = 2
WITH_BODIES = 1
"""The version whose checkpoints have the bodies in them."""
_SUFFIX = ".checkpoint"
_HEAD = struct.Struct("<4sIIQQ")
_HEAD_MAGIC = b"USC1"
_TRAILER = struct.Struct("<4sQQI")
_TRAILER_MAGIC = b"USCE"
_CRC = struct.Struct("<I")
FIXED_BYTES = _HEAD.size + _CRC.size
"""Bytes of the head before its JSON."""
_BLOCK = 4 * 1024 * 1024
MAX_HEAD_BYTES = 16 * 1024 * 1024


class CheckpointGone(LookupError):
    """A newer checkpoint has replaced this one. Get the newest one and start again at its beginning."""


class LogFiles(NamedTuple):
    """The files of a log, as its checkpoint lists them. `origin`: the store that wrote the checkpoint; `tail` is valid only for
    this store."""

    origin: int = 0
    next_number: int = 1
    tail: int = 0
    """The place at which the batch after the checkpoint's index begins, or will begin; 0: unknown."""
    in_use: tuple[FileInUse, ...] = ()


_NO_FILES = LogFiles()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete, verified checkpoint on disk: the state after batch `index` of `epoch`, with the `members` at that index.
    `nbytes` is the length of the checkpoint file."""

    path: Path
    index: int
    epoch: int
    members: dict[str, Any]
    nbytes: int
    files: LogFiles = _NO_FILES
    version: int = VERSION

    @property
    def bytes_with_files(self) -> int:
        """Bytes that a peer must get: the checkpoint file and the used part of the files that it lists."""
        return self.nbytes + sum(file.used for file in self.files.in_use)

    @staticmethod
    def newest(folder: Path, *, disk: Disk) -> Checkpoint | None:
        """The newest complete checkpoint in a log's folder, or None. Reads and verifies every byte.

        If another thread replaces a checkpoint meanwhile, the newer one is used.
        """
        passed: set[Path] = set()
        while left := [path for path in listed(disk, folder) if path not in passed]:
            passed.add(left[-1])
            with contextlib.suppress(BadBatch, CheckpointGone):
                return load(left[-1], disk=disk)
        return None

    @staticmethod
    def read(path: Path, *, disk: Disk) -> Iterator[bytes]:
        """The snapshot batches, each verified. BadBatch names the file and the offset of the damage."""
        with opened(disk, path) as fd:
            offset = read_head(disk, fd, path).nbytes
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
    """The checkpoint files of a folder, the oldest first, including damaged ones."""
    names = (name for name in disk.names(folder) if name.endswith(_SUFFIX) and len(name) == 20 + len(_SUFFIX))
    return [folder / name for name in sorted(names) if name[:20].isdecimal()]


def load(path: Path, *, disk: Disk) -> Checkpoint:
    """Read a checkpoint and verify every byte of it. BadBatch says what is wrong; CheckpointGone; NewerFormat."""
    with opened(disk, path) as fd:
        head = read_head(disk, fd, path)
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
        return Checkpoint(path, head.index, head.epoch, head.members, nbytes, head.files, head.version)


def identity(disk: Disk, fd: int, found: Checkpoint) -> int:
    """The checksum at the end of a checkpoint, which is open as `fd`. Checkpoints with the same checksum are the same, byte for
    byte."""
    return int(_CRC.unpack(read_whatever(disk, fd, _CRC.size, found.nbytes - _CRC.size))[0])


def write(
    folder: Path,
    index: int,
    epoch: int,
    members: dict[str, Any],
    batches: Iterable[bytes],
    files: LogFiles = _NO_FILES,
    *,
    disk: Disk,
) -> Checkpoint:
    """Write a checkpoint durably; older ones stay. Blocks: call it in a thread (`Journal.write_checkpoint` does).

    StorageError when the disk refuses. After this error, and after an error that `batches` raises, no part of the new checkpoint
    is left.
    """
    path = path_of(folder, index)
    aside = path.with_name(path.name + ASIDE)
    try:
        with _file(disk, aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            nbytes = _write_content(disk, fd, _head(index, epoch, members, files), batches)
            disk.sync(fd)
        disk.replace(aside, path)
        disk.sync_folder(folder)
    except BaseException as error:
        with contextlib.suppress(OSError):
            disk.unlink(aside)
        if isinstance(error, OSError):
            raise refused(error, "write the checkpoint", path) from error
        raise
    return Checkpoint(path, index, epoch, members, nbytes, files)


def path_of(folder: Path, index: int) -> Path:
    """The path of the checkpoint of this index."""
    return folder / f"{index:020d}{_SUFFIX}"


def remove_older(than: Checkpoint, *, disk: Disk) -> None:
    """Delete the checkpoints that are older than this one, which must be durable. OSError when the disk refuses."""
    for path in listed(disk, than.path.parent):
        if path.name < than.path.name:
            unlink_if_there(disk, path)
    disk.sync_folder(than.path.parent)


@contextlib.contextmanager
def opened(disk: Disk, path: Path) -> Iterator[int]:
    """A descriptor of a checkpoint, which is closed at the end. CheckpointGone."""
    try:
        fd = disk.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise CheckpointGone(f"checkpoint {path} does not exist (any more)") from None
    try:
        yield fd
    finally:
        disk.close(fd)


def _head(index: int, epoch: int, members: dict[str, Any], files: LogFiles) -> bytes:
    content = {
        "members": members,
        "next": files.next_number,
        "origin": f"{files.origin:x}",
        "tail": files.tail,
        "files": [[number, f"{origin:x}", used] for number, origin, used in files.in_use],
    }
    text = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    assert len(text) <= MAX_HEAD_BYTES, f"a checkpoint cannot list {len(files.in_use)} files"
    fixed = _HEAD.pack(_HEAD_MAGIC, VERSION, len(text), index, epoch)
    return b"".join((fixed, _CRC.pack(google_crc32c.value(fixed + text)), text))


def _write_content(disk: Disk, fd: int, head: bytes, batches: Iterable[bytes]) -> int:
    """Write head, batches and trailer; returns the number of bytes."""
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


class Head(NamedTuple):
    """A checkpoint's head, and its length in bytes."""

    version: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    epoch: int
    members: dict[str, Any]
    files: LogFiles
    nbytes: int


def read_head(disk: Disk, fd: int, path: Path) -> Head:
    """Read the head, the part before the first batch. BadBatch; NewerFormat."""
    fixed = read_whatever(disk, fd, FIXED_BYTES, 0)
    text = read_whatever(disk, fd, min(head_bytes(fixed, path), MAX_HEAD_BYTES), len(fixed))
    return parse_head(fixed + text, path)


def head_bytes(data: bytes, path: Path) -> int:
    """The length in bytes of the JSON of the head that begins with `data`. BadBatch when this is not a head, or `data` is too
    short."""
    if len(data) < FIXED_BYTES or not data.startswith(_HEAD_MAGIC):
        raise BadBatch(f"{path} does not begin like a checkpoint")
    return int(_HEAD.unpack_from(data)[2])


def parse_head(data: bytes, path: Path) -> Head:
    """The head at the beginning of these bytes. BadBatch; NewerFormat."""
    start = FIXED_BYTES
    text = data[start : start + head_bytes(data, path)]
    _, version, _, index, epoch = _HEAD.unpack_from(data)
    if _CRC.unpack_from(data, _HEAD.size)[0] != google_crc32c.value(data[: _HEAD.size] + text):
        raise BadBatch(f"the head of checkpoint {path} is damaged")
    if version > VERSION:
        raise NewerFormat(
            f"checkpoint {path} has format {version}, newer than {VERSION}; use the version of the program that wrote it"
        )
    content = json.loads(text)
    if version == WITH_BODIES:
        return Head(version, index, epoch, content, LogFiles(), start + len(text))
    in_use = tuple(FileInUse(number, int(origin, 16), used) for number, origin, used in content["files"])
    files = LogFiles(int(content["origin"], 16), content["next"], content["tail"], in_use)
    return Head(version, index, epoch, content["members"], files, start + len(text))
