"""Segments: the files that a log is made of, and what can be known from their bytes alone.

A segment's life: zeros are written and synced aside, long before they are needed; then it gets its header, is synced, renamed
to the index of its first batch and the folder is synced. Batches are appended back to back, exactly as they were sealed. When
one does not fit, everything here is synced and the next segment is made; from then on this one never changes until it is
deleted whole. Once a checkpoint covers it, it is no part of the log any more; while bodies in it are alive, the file stays, to be
read by its file number (see `bodies`).

Layout: one page of header, then batches, then zeros up to the end of the file::

    0     magic "USG1", version, first index, epoch of the batch before it, CRC-32C, file number, CRC-32C of all before it
    512   mark A    magic "MARK", number, end offset, index, epoch, CRC-32C        (the whole mark with the higher number counts)
    1024  mark B
    1536  the header again
    4096  the batches

The **file number** is given once, in order, and never again in this log: a place in the log is a file number and an offset. It
stands twice, because nothing else says it. Version 1 had no number, and its header once: such a segment gets its number when it
is opened.

The **mark** says how far this segment was known to be synced: it is written, into the two slots in turn, along with the group
of batches after the one that it speaks of. It tells damage from a crash, which batches alone cannot (Alagappan et al.,
"Protocol-Aware Recovery for Consensus-Based Storage", FAST '18, §3): what is not whole before the mark was acknowledged and
has rotted; what is not whole after it is the last group, of which a power cut may leave any pages in any order, and which
nobody relies on. One group, the last before a crash, is synced but not yet marked; when the log rests, its mark follows
within a second.

A mark that cannot be read is no sign of damage: a power cut may tear the one that is being written. So the other one counts,
which speaks of a group less. That is why two places that rot at once, the newest mark and a batch of the group that it alone
speaks of, are taken for a torn group. To take such a mark for damage would be worse: after a power cut of a whole cluster each
member might name a floor that no log reaches, and none would vote. One place that rots, whichever, is always noticed.

Because every file is zeros beyond its batches, an append changes neither the file's length nor its blocks, and fdatasync has no
file-system metadata to write. (Where a sync brings much, a sparse file serves as well: see `preparation`.) And whatever shortens
a segment puts the zeros back before it may be appended to again, so that no remains of old batches can ever follow new ones.
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
    """A place in the log. Positions compare as logs do: by epoch, then by index (Raft §5.4.1)."""

    epoch: int
    index: int  # type: ignore[assignment]  # nobody searches in a position

    def __str__(self) -> str:
        return f"epoch {self.epoch}, index {self.index}"


@dataclass(frozen=True, slots=True)
class Mark:
    """Up to the offset `end`, and the batch at `last`, a segment was synced."""

    number: int
    end: int
    last: Position


@dataclass(slots=True)
class Segment:
    """A segment of an open log. Of its batches it keeps 16 bytes each: where they start, and their epochs."""

    path: Path
    number: int
    fd: int
    size: int
    first_index: int
    prev_epoch: int
    mark: Mark
    starts: array[int] = field(default_factory=lambda: array("Q", [FIRST_BATCH]))
    """Where each batch starts, and after them where the next one will."""
    epochs: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def end(self) -> int:
        """Where the next batch will start."""
        return self.starts[-1]

    @property
    def room(self) -> int:
        """Bytes that still fit."""
        return self.size - self.starts[-1]

    @property
    def last(self) -> Position:
        """The last batch here, or the one before the first."""
        return self.position(len(self.epochs))

    def position(self, n: int) -> Position:
        """The last one of the first `n` batches."""
        return Position(self.epochs[n - 1] if n else self.prev_epoch, self.first_index + n - 1)

    def add(self, length: int, epoch: int) -> None:
        """Note a batch that stands at `end`."""
        self.starts.append(self.starts[-1] + length)
        self.epochs.append(epoch)

    def span(self, first: int, last: int, max_bytes: int) -> list[int]:
        """Where the batches `first` to `last` start, as many as make `max_bytes` but at least one, and where they end."""
        at = first - self.first_index
        stop = min(len(self.epochs), last - self.first_index + 1)
        upto = bisect_right(self.starts, self.starts[at] + max_bytes, at + 1, stop + 1)
        return self.starts[at : max(upto, at + 2)].tolist()

    def write_mark(self, disk: Disk, end: int, last: Position) -> None:
        """Say, from the next sync on, that the segment is synced up to `end`. The other slot keeps the mark before."""
        mark = Mark(self.mark.number + 1, end, last)
        write_all(disk, self.fd, *_packed(mark))
        self.mark = mark

    def shorten(self, n: int) -> None:
        """Know of the first `n` batches only; `clear` does it on disk."""
        del self.starts[n + 1 :]
        del self.epochs[n:]

    def clear(self, disk: Disk, dirty_end: int) -> None:
        """Make zeros of everything from `end` to `dirty_end`. Synced when it returns; may be done again.

        First the marks, each with a sync of its own, so that neither can speak of what is about to go; then the zeros. Both are
        written even when the mark that was read says nothing of it: a slot that could not be read then may be readable later,
        and a higher number in it would count. A crash in between leaves batches beyond the mark: whole ones come back, as if
        nobody had asked yet, and what is not whole is taken for a torn group and zeroed then.
        """
        end, last = (self.end, self.last) if self.mark.end > self.end else (self.mark.end, self.mark.last)
        for _ in _MARK_OFFSETS:
            self.write_mark(disk, end, last)
            sync_or_stop(disk, self.fd, self.path)
        for at in range(self.end, dirty_end, len(_ZEROS)):
            write_all(disk, self.fd, _ZEROS[: dirty_end - at], at)
        sync_or_stop(disk, self.fd, self.path)

    def close(self, disk: Disk) -> None:
        """Let go of the file; twice does nothing."""
        if self.fd >= 0:
            disk.close(self.fd)
            self.fd = -1


def name_of(first_index: int) -> str:
    """The file name of the segment that starts with this batch."""
    return f"{first_index:020d}{SUFFIX}"


def listed(disk: Disk, folder: Path) -> list[tuple[int, Path]]:
    """The segments in a folder with their first indexes, in order. Other files are not looked at."""
    names = (name for name in disk.names(folder) if name.endswith(SUFFIX) and len(name) == 20 + len(SUFFIX))
    return [(int(name[:20]), folder / name) for name in sorted(names) if name[:20].isdecimal()]


def size_after(size: int, segment_bytes: int) -> int:
    """The size of the next segment: four times this one, up to the full size, so that a log nobody uses stays small."""
    return min(segment_bytes, max(size, SMALLEST // 4) * 4)


def write_zeros(disk: Disk, path: Path, size: int) -> None:
    """A new file of synced zeros. OSError when the disk refuses; the caller removes what there is then."""
    with opened(disk, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        for at in range(0, size, len(_ZEROS)):
            write_all(disk, fd, _ZEROS[: size - at], at)
            if at % (16 * len(_ZEROS)) == 0:
                disk.sync(fd)  # in portions, so that the log's own syncs do not queue behind all of it
        disk.sync(fd)


def create(folder: Path, number: int, before: Position, size: int, disk: Disk, zeros: Path | None = None) -> Segment:
    """A new, durable segment, file `number`, for the batches after `before`, made of the prepared file `zeros` or, lacking that,
    of a sparse one.

    It appears under its name only when its header is synced: a segment that exists has been whole.
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
    """Write a segment's header into both places, not synced: it is file `number`, and its batches follow `before`."""
    head = _HEADER.pack(_HEADER_MAGIC, VERSION, before.index + 1, before.epoch)
    head += _CRC.pack(google_crc32c.value(head))
    head += _NUMBER.pack(number)
    head += _CRC.pack(google_crc32c.value(head))
    for offset in reversed(_HEADER_OFFSETS):  # of an older version, the first copy is the only one there is
        write_all(disk, fd, head, offset)


class Head(NamedTuple):
    """What a segment's header says: the epoch before its first batch, and its file number, 0 in version 1."""

    prev_epoch: int
    number: int


def read_head(disk: Disk, fd: int, path: Path) -> Head | None:
    """The header, from whichever copy is whole; None when neither is (its batches and its name say most of the same).

    NewerFormat when it cannot be understood.
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
    """How far the segment was known to be synced; None when both slots are damaged."""
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
    """A file read in blocks, unreadable sectors included, so that going through it by the batch costs few calls."""

    def __init__(self, disk: Disk, fd: int, size: int) -> None:
        self._disk = disk
        self._fd = fd
        self.size = size
        self._start = 0
        self._block = b""

    def get(self, offset: int, nbytes: int) -> bytes:
        """Bytes at `offset`; fewer where the file ends."""
        at = offset - self._start
        if at < 0 or at + nbytes > len(self._block):
            self._block = read_whatever(self._disk, self._fd, min(max(nbytes, _BLOCK), self.size - offset), offset)
            self._start, at = offset, 0
        return self._block[at : at + nbytes]

    def batch(self, offset: int) -> Header:
        """The header of the whole, verified batch at `offset`. BadBatch when there is none."""
        header = parse_header(self.get(offset, HEADER_BYTES))
        if header.length > self.size - offset:
            raise BadBatch(f"batch {header.index}: says {header.length} bytes, the file ends after {self.size - offset}")
        return verify(self.get(offset, header.length))

    def find_magic(self, offset: int) -> int:
        """Where, from `offset` on, a batch might begin; -1 for nowhere."""
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
        """Just after the last byte that is not zero, or `offset` when all from there on is."""
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
    """Offset and header of the batches that follow `before`, which ends at `offset`: consecutive indexes, epochs never falling
    (Raft §5.3)."""
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
    """The newest whole batch of this log that stands anywhere at or after `offset`, where something is wrong.

    What is wrong may have kept its length, so the search goes on behind it; else at the next place that looks like the
    beginning of a batch. Bytes inside of messages may look like one too: the effort spent on checking them is bounded.
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
