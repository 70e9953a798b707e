"""Segments: the files of a log, and what their bytes alone show.

Life of a segment: long before it is needed, a temporary file of zeros is written and synced. Then it gets its header and is
synced; it is renamed to the index of its first batch, and the folder is synced. Batches are appended without gaps, exactly as
they were sealed. When a batch does not fit, the segment is synced and the next one is made. From then on this segment does not
change until the whole file is deleted. When a checkpoint covers it, it leaves the log. While bodies in it are alive, the file
stays, and is read by its file number (see `bodies`).

Layout: one page of header, then batches, then zeros up to the end of the file::

    0     magic "USG1", version, first index, epoch of the batch before it, CRC-32C, file number, CRC-32C of all before it
    512   mark A    magic "MARK", number, end offset, index, epoch, CRC-32C      (the complete mark with the higher number counts)
    1024  mark B
    1536  the header again
    4096  the batches

A **file number** is used once in this log, in ascending order: a place in the log is a file number and an offset. The header with
the number is stored twice, because the number is in no other place. Version 1 had no number and only one header: such a segment
gets its number when it is opened.

The **mark** is the offset up to which this segment is known to be synced. The mark of a group of batches is written together with
the next group, into the two slots in turn. The mark distinguishes damage from a crash; the batches alone cannot (Alagappan et
al., "Protocol-Aware Recovery for Consensus-Based Storage", FAST '18, §3). A damaged batch before the mark was acknowledged, so
this is bit rot. A damaged batch after the mark belongs to the last group: a power failure may leave any pages of it, in any
order, and nobody relies on it. The last group before a crash may be synced but not yet marked. When no further group follows, the
mark is written within a second.

An unreadable mark is not treated as damage, because a power failure may tear the mark that is being written. The other mark is
used then, which covers one group less. So if two places are damaged at the same time, the newest mark and a batch of the group
that only this mark covers, this looks like a torn group. To treat an unreadable mark as damage would be worse: after a power
failure of the whole cluster, each member might set a floor that no log reaches, and no member would vote. Damage in a single
place is always detected.

Because every file contains zeros after its batches, an append changes neither the file's length nor its blocks, and fdatasync
writes no file-system metadata. (If each sync writes many bytes, a sparse file is as good: see `preparation`.) When a segment is
shortened, the removed bytes are set to zero before the next append, so that parts of old batches can never follow new ones.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from broker.core.records import HEADER_BYTES, MAGIC_START, BadBatch, Header, parse_header, verify
from broker.disk.durable import ASIDE, NewerFormat, opened, read_whatever, sync_or_stop, write_all
from broker.disk.files import Disk

SUFFIX = ".seg"
VERSION = 2
FIRST_BATCH = 4096
SMALLEST = 1024 * 1024
_HEADER = struct.Struct("<4sIQQ")
_HEADER_MAGIC = b"USG1"
_HEADER_OFFSETS = (0, 1536)
_NUMBER = struct.Struct("<I")
_MARK = struct.Struct("<4sQQQQ")
_MARK_MAGIC = b"MARK"
_MARK_OFFSETS = (512, 1024)
_CRC = struct.Struct("<I")
_BLOCK = 4 * 1024 * 1024
_ZEROS = bytes(1024 * 1024)
_SEARCH_EFFORT = 8


class Entry(NamedTuple):
    """One batch of the log, without its bytes."""

    index: int  # type: ignore[assignment]  # nobody searches in an entry
    epoch: int
    nbytes: int
    n_records: int
    flags: int


class Position(NamedTuple):
    """A position in the log. Positions compare like logs: by epoch, then by index (Raft §5.4.1)."""

    epoch: int
    index: int  # type: ignore[assignment]  # nobody searches in a position

    def __str__(self) -> str:
        return f"epoch {self.epoch}, index {self.index}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A segment was synced up to the offset `end`, which is the end of the batch at `last`."""

    number: int
    end: int
    last: Position


@dataclass(slots=True)
class Segment:
    """A segment of an open log. It keeps 16 bytes for each batch: its start and its epoch."""

    path: Path
    number: int
    fd: int
    size: int
    first_index: int
    prev_epoch: int
    mark: Mark
    starts: array[int] = field(default_factory=lambda: array("Q", [FIRST_BATCH]))
    """Where each batch starts, and last where the next one will start."""
    epochs: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def end(self) -> int:
        """Where the next batch will start."""
        return self.starts[-1]

    @property
    def room(self) -> int:
        """Free bytes."""
        return self.size - self.starts[-1]

    @property
    def last(self) -> Position:
        """The position of the last batch here, or of the one before the first if there is none."""
        return self.position(len(self.epochs))

    def position(self, n: int) -> Position:
        """The position of the last one of the first `n` batches."""
        return Position(self.epochs[n - 1] if n else self.prev_epoch, self.first_index + n - 1)

    def add(self, length: int, epoch: int) -> None:
        """Add a batch that was written at `end`."""
        self.starts.append(self.starts[-1] + length)
        self.epochs.append(epoch)

    def span(self, first: int, last: int, max_bytes: int) -> list[int]:
        """The offsets at which the batches `first` to `last` start, and the end of the last one: at least one batch, otherwise at
        most `max_bytes`."""
        at = first - self.first_index
        stop = min(len(self.epochs), last - self.first_index + 1)
        upto = bisect_right(self.starts, self.starts[at] + max_bytes, at + 1, stop + 1)
        return self.starts[at : max(upto, at + 2)].tolist()

    def write_mark(self, disk: Disk, end: int, last: Position) -> None:
        """Write the mark that the segment is synced up to `end`; the next sync makes it durable. The other slot keeps the
        previous mark."""
        mark = Mark(self.mark.number + 1, end, last)
        write_all(disk, self.fd, *_packed(mark))
        self.mark = mark

    def shorten(self, n: int) -> None:
        """Forget all but the first `n` batches; `clear` does the same on disk."""
        del self.starts[n + 1 :]
        del self.epochs[n:]

    def clear(self, disk: Disk, dirty_end: int) -> None:
        """Overwrite the bytes from `end` to `dirty_end` with zeros. They are synced when it returns; it may be repeated.

        First it writes both marks, each with its own sync, so that neither covers the removed batches. Then it writes the zeros.
        It writes both marks even if the mark that was read does not cover these batches: a slot that was unreadable may be
        readable later, and a higher number in it would count. A crash in between leaves batches after the mark. Complete ones are
        found again at the next start, as before the call. Incomplete ones are treated as a torn group and overwritten with zeros
        then.
        """
        end, last = (self.end, self.last) if self.mark.end > self.end else (self.mark.end, self.mark.last)
        for _ in _MARK_OFFSETS:
            self.write_mark(disk, end, last)
            sync_or_stop(disk, self.fd, self.path)
        for at in range(self.end, dirty_end, len(_ZEROS)):
            write_all(disk, self.fd, _ZEROS[: dirty_end - at], at)
        sync_or_stop(disk, self.fd, self.path)

    def close(self, disk: Disk) -> None:
        """Close the file. A second call does nothing."""
        if self.fd >= 0:
            disk.close(self.fd)
            self.fd = -1


def name_of(first_index: int) -> str:
    """The file name of the segment that starts with this batch."""
    return f"{first_index:020d}{SUFFIX}"


def listed(disk: Disk, folder: Path) -> list[tuple[int, Path]]:
    """The segments in a folder with their first indexes, in order. Other files are ignored."""
    names = (name for name in disk.names(folder) if name.endswith(SUFFIX) and len(name) == 20 + len(SUFFIX))
    return [(int(name[:20]), folder / name) for name in sorted(names) if name[:20].isdecimal()]


def size_after(size: int, segment_bytes: int) -> int:
    """The size of the next segment: four times this size, up to the full size, so that a log that nobody uses stays small."""
    return min(segment_bytes, max(size, SMALLEST // 4) * 4)


def write_zeros(disk: Disk, path: Path, size: int) -> None:
    """Write a new file of zeros and sync it. OSError when the disk refuses; the caller then deletes the incomplete file."""
    with opened(disk, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        for at in range(0, size, len(_ZEROS)):
            write_all(disk, fd, _ZEROS[: size - at], at)
            if at % (16 * len(_ZEROS)) == 0:
                disk.sync(fd)  # in portions, so that the log's own syncs do not wait for all of it
        disk.sync(fd)


def create(folder: Path, number: int, before: Position, size: int, disk: Disk, zeros: Path | None = None) -> Segment:
    """Make a new, durable segment, file `number`, for the batches after `before`, from the prepared file `zeros`, or from a
    sparse file if there is none.

    It gets its name only after its header is synced. So every segment that exists was complete once.
    """
    path = folder / name_of(before.index + 1)
    aside = zeros if zeros is not None else path.with_name(path.name + ASIDE)
    fd = disk.open(aside, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if zeros is None else 0))
    try:
        size = max(size, disk.size(fd))
        disk.truncate(fd, size)
        mark = Mark(1, FIRST_BATCH, before)
        write_head(disk, fd, number, before)
        write_all(disk, fd, *_packed(mark))
        disk.sync(fd)
        disk.replace(aside, path)
        disk.sync_folder(folder)
    except OSError:
        disk.close(fd)
        raise
    return Segment(path, number, fd, size, before.index + 1, before.epoch, mark)


def write_head(disk: Disk, fd: int, number: int, before: Position) -> None:
    """Write a segment's header to both places, without a sync: it is file `number`, and its batches follow `before`."""
    head = _HEADER.pack(_HEADER_MAGIC, VERSION, before.index + 1, before.epoch)
    head += _CRC.pack(google_crc32c.value(head))
    head += _NUMBER.pack(number)
    head += _CRC.pack(google_crc32c.value(head))
    for offset in reversed(_HEADER_OFFSETS):  # the first copy is written last, because an older version reads only that one
        write_all(disk, fd, head, offset)


class Head(NamedTuple):
    """The content of a segment's header: the epoch of the batch before its first one, and its file number, 0 in version 1."""

    prev_epoch: int
    number: int


def read_head(disk: Disk, fd: int, path: Path) -> Head | None:
    """The header, from a complete copy; None when both are damaged (the batches and the file name give most of the same facts).

    NewerFormat when its version is newer than this program's.
    """
    found: Head | None = None
    for offset in _HEADER_OFFSETS:
        data = read_whatever(disk, fd, _HEADER.size + 2 * _CRC.size + _NUMBER.size, offset)
        head = _parsed_head(data, path)
        if head is not None and (found is None or head.number > found.number):
            found = head
    return found


def _parsed_head(data: bytes, path: Path) -> Head | None:
    end = _HEADER.size
    if len(data) < end + _CRC.size or _CRC.unpack_from(data, end)[0] != google_crc32c.value(data[:end]):
        return None
    magic, version, first_index, prev_epoch = _HEADER.unpack_from(data)
    if magic == _HEADER_MAGIC and version > VERSION:
        raise NewerFormat(
            f"segment {path} has format {version}, newer than {VERSION}; use the version of the program that wrote it"
        )
    if magic != _HEADER_MAGIC or path.name != name_of(first_index):
        return None
    if version == 1:
        return Head(prev_epoch, 0)
    end += _CRC.size + _NUMBER.size
    if len(data) < end + _CRC.size or _CRC.unpack_from(data, end)[0] != google_crc32c.value(data[:end]):
        return None
    return Head(prev_epoch, _NUMBER.unpack_from(data, end - _NUMBER.size)[0])


def read_mark(disk: Disk, fd: int) -> Mark | None:
    """The newest readable mark; None when both slots are damaged."""
    found = None
    for offset in _MARK_OFFSETS:
        data = read_whatever(disk, fd, _MARK.size + _CRC.size, offset)
        if len(data) < _MARK.size + _CRC.size or _CRC.unpack_from(data, _MARK.size)[0] != google_crc32c.value(data[: _MARK.size]):
            continue
        magic, number, end, index, epoch = _MARK.unpack_from(data)
        if magic == _MARK_MAGIC and (found is None or number > found.number):
            found = Mark(number, end, Position(epoch, index))
    return found


def _packed(mark: Mark) -> tuple[bytes, int]:
    data = _MARK.pack(_MARK_MAGIC, mark.number, mark.end, mark.last.index, mark.last.epoch)
    return data + _CRC.pack(google_crc32c.value(data)), _MARK_OFFSETS[mark.number % 2]


class Window:
    """A file that is read in blocks, including unreadable sectors, so that reading batch after batch takes few calls."""

    def __init__(self, disk: Disk, fd: int, size: int) -> None:
        self._disk = disk
        self._fd = fd
        self.size = size
        self._start = 0
        self._block = b""

    def get(self, offset: int, nbytes: int) -> bytes:
        """Bytes at `offset`; fewer at the end of the file."""
        at = offset - self._start
        if at < 0 or at + nbytes > len(self._block):
            self._block = read_whatever(self._disk, self._fd, min(max(nbytes, _BLOCK), self.size - offset), offset)
            self._start, at = offset, 0
        return self._block[at : at + nbytes]

    def batch(self, offset: int) -> Header:
        """The header of the complete, verified batch at `offset`. BadBatch when there is none."""
        header = parse_header(self.get(offset, HEADER_BYTES))
        if header.length > self.size - offset:
            raise BadBatch(f"batch {header.index}: says {header.length} bytes, the file ends after {self.size - offset}")
        return verify(self.get(offset, header.length))

    def find_magic(self, offset: int) -> int:
        """The first place from `offset` on where a batch may begin; -1 for none."""
        while offset + HEADER_BYTES <= self.size:
            block = self.get(offset, min(_BLOCK, self.size - offset))
            if len(block) < len(MAGIC_START):
                return -1
            at = block.find(MAGIC_START)
            if at >= 0:
                return offset + at
            offset += len(block) - len(MAGIC_START) + 1
        return -1

    def content_end(self, offset: int) -> int:
        """The offset after the last byte that is not zero; `offset` when all bytes from there on are zero."""
        end = offset
        while offset < self.size:
            block = self.get(offset, min(_BLOCK, self.size - offset))
            if not block:
                break
            used = len(block.rstrip(b"\0"))
            end = offset + used if used else end
            offset += len(block)
        return end


def whole_batches(window: Window, before: Position, offset: int = FIRST_BATCH) -> Iterator[tuple[int, Header]]:
    """Offset and header of the batches that follow `before`, which ends at `offset`: their indexes are consecutive, and their
    epochs never fall (Raft §5.3)."""
    epoch, index = before
    while offset + HEADER_BYTES <= window.size:
        try:
            header = window.batch(offset)
        except BadBatch:
            return
        if header.index != index + 1 or header.epoch < epoch:
            return
        epoch, index = header.epoch, header.index
        yield offset, header
        offset += header.length


def newest_beyond(window: Window, offset: int, after: Position) -> Position | None:
    """The newest complete batch of this log at or after `offset`, where a batch is damaged.

    If the damaged batch still has its correct length, the search continues after it, otherwise at the next place that looks like
    the beginning of a batch. Bytes inside messages may look like one too, so the number of bytes that are checked is limited.
    """
    found: Position | None = None
    effort = _SEARCH_EFFORT * window.size
    while offset >= 0 and offset + HEADER_BYTES <= window.size and effort > 0:
        try:
            header = parse_header(window.get(offset, HEADER_BYTES))
        except BadBatch:
            offset = window.find_magic(offset + 1)
            continue
        plausible = header.index > after.index and header.epoch >= after.epoch and header.length <= window.size - offset
        try:
            if plausible:
                effort -= header.length
                window.batch(offset)
                found = max(found or Position(0, 0), Position(header.epoch, header.index))
                offset += header.length
                continue
        except BadBatch:
            if window.get(offset + header.length, len(MAGIC_START)) == MAGIC_START:
                offset += header.length
                continue
        offset = window.find_magic(offset + 1)
    return found
