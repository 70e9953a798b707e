"""What a log's folder holds at the start, and how what a crash or decay did to it is put right.

The files of a log::

    hard-state                        epoch and vote, twice
    00000000000000000042.checkpoint   what was alive at index 42, and in which files the bodies lie
    00000000000000000043.seg          the batches from 43 on
    0000000007-<origin>-<used>.bodies bodies that are alive; a segment that the checkpoint covers may hold some too
    whole                             this store has once caught up with its cluster; without it, it is blank
    floor                             the newest batch known to have been lost to damage
    reset                             the log is being dropped, to go on after the index that it says
    damaged                           a body that was acknowledged has rotted, and where
    damaged-*                         what was cut out, for people; at most three
    *.tmp                             unfinished; removed

Recovery's life: remove what is unfinished; load the newest checkpoint that is whole and whose files are all there; walk through
the segments, from where the checkpoint ends, for as long as batches follow each other; at the first thing that is wrong, decide
between a torn group (cut it, nobody relied on it) and damage; then see whether the checkpoint and the log fit together, and
remove the files with bodies that it does not list. What it covers is not read: a body is verified when it is needed.

Damage means that batches are gone which this broker has acknowledged. It must not vote as if it had never had them, or they
could be lost for all (Alagappan et al., FAST '18): so the newest batch known to have been there is noted, synced, as the
**floor** *before* anything is cut, and stays until the log is level with a primary again. If the very extent of the loss is
unknown, the store becomes blank. Whatever is cut out is moved aside first. Each step may be interrupted and done again.

A body that rots is found long after its batch was acknowledged. Then the whole store has to come from the primary again: the note
`damaged` has the next start take the log's end as the floor and begin with an empty log.
"""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.core.records import BadBatch
from broker.disk import bodies, checkpoint, hard_state, segments
from broker.disk.bodies import FileInUse
from broker.disk.checkpoint import Checkpoint
from broker.disk.conversion import converted
from broker.disk.durable import (
    ASIDE,
    DamagedStore,
    exists,
    opened,
    read_json,
    read_whatever,
    refused,
    remove_durably,
    replace_durably,
    seal_json,
    sync_or_stop,
    unlink_if_there,
    write_all,
)
from broker.disk.files import Disk
from broker.disk.segments import FIRST_BATCH, Entry, Mark, Position, Segment, Window

WHOLE = "whole"
FLOOR = "floor"
RESET = "reset"
DAMAGED = "damaged"
_DAMAGED = "damaged-"
_MAX_DAMAGED = 3
_BLOCK = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start found. `entries` are the batches after the checkpoint (all of them without one), consecutive."""

    epoch: int
    voted_for: str | None
    checkpoint: Checkpoint | None
    entries: list[Entry]
    blank: bool
    """This store has never been level with its cluster (`Journal.floor_passed` says that it is), or nobody can tell any more."""
    floor: Position | None
    """Acknowledged batches up to here were lost to damage: grant no vote and seek none for a log that is older (vote_floor)."""
    torn_bytes: int
    """Bytes of an unfinished last write that were cut off; nobody was told that they were durable."""
    notes: list[str]
    """What was repaired, in sentences for the broker's log."""
    bodies: dict[int, Body]
    """By number, the files with bodies that are no part of the log."""
    next_number: int
    """The file number that comes next."""
    attested: dict[str, Any] | None = None
    """What a witness has in the place of a log."""


@dataclass(frozen=True, slots=True)
class Body:
    """A file with bodies: where it lies, how it is listed, and the bytes that it takes on the disk."""

    path: Path
    file: FileInUse
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment as far as it belongs to the log: its first batch there, which stands at `offset` and follows `before`."""

    first_index: int
    path: Path
    offset: int
    before: Position | None = None


@dataclass(slots=True)
class _Recovery:
    """Recovery under way in one folder."""

    folder: Path
    disk: Disk
    origin: int
    numbers: dict[Path, int] = field(default_factory=dict)
    """The file number of each segment that has one."""
    next_number: int = 1
    bodies: dict[int, Body] = field(default_factory=dict)
    """What the checkpoint lists, by number."""
    kept: list[Segment] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    torn_bytes: int = 0

    @property
    def end(self) -> Position | None:
        """The last batch of the log as far as it is known to be good."""
        return self.kept[-1].last if self.kept else None

    def look_at_files(self) -> None:
        """Learn which file numbers are taken."""
        for _, path in segments.listed(self.disk, self.folder):
            with opened(self.disk, path) as fd:
                head = segments.read_head(self.disk, fd, path)
            if head is not None and head.number:
                self.numbers[path] = head.number
        taken = [*self.numbers.values(), *(file.number for file in bodies.listed(self.disk, self.folder))]
        self.next_number = max([self.next_number, *(number + 1 for number in taken)])

    def take_number(self) -> int:
        """The next file number."""
        self.next_number += 1
        return self.next_number - 1

    def log_after(self, found: Checkpoint | None) -> list[_Part]:
        """The segments that the checkpoint does not cover, and where in them the log after it begins."""
        parts = [_Part(first, path, FIRST_BATCH) for first, path in segments.listed(self.disk, self.folder)]
        if found is None:
            return parts
        base, files = found.index, found.files
        tail = bodies.file_of(files.tail) if files.origin == self.origin else 0
        for at, part in enumerate(parts):
            if tail and self.numbers.get(part.path) == tail:
                offset = bodies.offset_of(files.tail)
                return [_Part(base + 1, part.path, offset, Position(found.epoch, base)), *parts[at + 1 :]]
        at = max((at for at, part in enumerate(parts) if part.first_index <= base + 1), default=0)
        return parts[at:]

    def walk(self, base: Position, parts: list[_Part]) -> None:
        """Go through the segments; afterwards `kept` and `entries` are the good ones, and all else is cut or gone."""
        for at, part in enumerate(parts):
            following = parts[at + 1].first_index if at + 1 < len(parts) else None
            before = self.end or Position(0, min(base.index, part.first_index - 1))
            if part.first_index != before.index + 1:
                self.lose(parts[at:], None, f"the log's batches {before.index + 1} to {part.first_index - 1} are missing")
                return
            segment, window = self.open(part)
            self.take(segment, window)
            if following is None:
                self.end_of_log(segment, window)
            elif segment.last.index + 1 != following:
                self.lose(parts[at + 1 :], window, _where(segment, window, following))
                return

    def open(self, part: _Part) -> tuple[Segment, Window]:
        """Open a segment and read what its head says; one that has no file number gets one."""
        path = part.path
        fd = self.disk.open(path, os.O_RDWR)
        size = self.disk.size(fd)
        head = segments.read_head(self.disk, fd, path)
        mark = segments.read_mark(self.disk, fd)
        if size < FIRST_BATCH or (head is None and mark is None):
            self.become_blank(f"segment {path} ({size} bytes) has lost its header, so its content is unknown")
        prev_epoch = head.prev_epoch if head is not None else self.kept[-1].last.epoch if self.kept else 0
        before = part.before or Position(prev_epoch, part.first_index - 1)
        number = self.numbers.get(path) or self.take_number()
        if head is None:
            self.notes.append(f"segment {path}: its header was damaged and is written anew")
        if head is None or not head.number:
            segments.write_head(self.disk, fd, number, before)
            sync_or_stop(self.disk, fd, path)
        segment = Segment(path, number, fd, size, before.index + 1, before.epoch, mark or Mark(0, FIRST_BATCH, before))
        segment.starts[0] = part.offset
        self.kept.append(segment)
        return segment, Window(self.disk, fd, size)

    def take(self, segment: Segment, window: Window) -> None:
        """Enter the good batches of a segment."""
        for _, header in segments.whole_batches(window, segment.last, segment.end):
            segment.add(header.length, header.epoch)
            self.entries.append(Entry(header.index, header.epoch, header.length, header.n_records, header.flags))

    def end_of_log(self, segment: Segment, window: Window) -> None:
        """The newest segment's good batches end: in zeros, in a torn group, or in damage.

        They are synced first: a process that was killed may have written what was never synced, and it counts from here on.
        """
        sync_or_stop(self.disk, segment.fd, segment.path)
        stop = segment.end
        dirty_end = window.content_end(stop)
        unmarked = segment.mark.number == 0  # then whole batches further on are the only sign left
        if stop < segment.mark.end or (unmarked and segments.newest_beyond(window, stop, segment.last)):
            self.lose([], window, _where(segment, window, None))
        elif dirty_end > stop:
            self.torn_bytes = dirty_end - stop
            self.notes.append(
                f"segment {segment.path}: {self.torn_bytes} bytes of an unfinished write at byte {stop} were cut off"
            )
            segment.clear(self.disk, dirty_end)

    def lose(self, later: list[_Part], window: Window | None, what: str) -> None:
        """Damage: note the floor, move aside what cannot be used, and cut it out of the log.

        `window`: the last kept segment's.
        """
        end = self.end or Position(0, 0)
        floor = max([end, *self.evidence(later, window, end), self.floor() or end])
        self.notes.append(
            f"{what}; what stood from there on, up to {floor} at least, is cut out and has to come from the primary again"
        )
        replace_durably(self.disk, self.folder / FLOOR, seal_json(floor._asdict()))
        self.make_room_for_damaged()
        if window is not None:
            self.cut_out(self.kept[-1], window)
        for part in reversed(later):
            self.move_aside(part.path)

    def evidence(self, later: list[_Part], window: Window | None, end: Position) -> list[Position]:
        """Batches that are known to have stood beyond the damage."""
        found = []
        if window is not None:
            segment = self.kept[-1]
            found += [segment.mark.last, segments.newest_beyond(window, segment.end, end)]
        for part in later:
            with opened(self.disk, part.path) as fd:
                head = segments.read_head(self.disk, fd, part.path)
                mark = segments.read_mark(self.disk, fd)
                found.append(Position(head.prev_epoch if head and head.prev_epoch else end.epoch, part.first_index - 1))
                found.append(mark.last if mark else None)
                found.append(segments.newest_beyond(Window(self.disk, fd, self.disk.size(fd)), FIRST_BATCH, end))
        return [position for position in found if position is not None]

    def cut_out(self, segment: Segment, window: Window) -> None:
        """Copy what follows a segment's good batches aside, then make zeros of it."""
        dirty_end = window.content_end(segment.end)
        if dirty_end > segment.end:
            target = self.folder / f"{_DAMAGED}{segment.path.stem}-at-{segment.end}"
            self.copy_aside(segment, dirty_end, target)
        segment.clear(self.disk, dirty_end)

    def copy_aside(self, segment: Segment, dirty_end: int, target: Path) -> None:
        """Keep the bytes for people, if there is room for them."""
        try:
            with opened(self.disk, target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
                for at in range(segment.end, dirty_end, _BLOCK):
                    write_all(
                        self.disk, fd, read_whatever(self.disk, segment.fd, min(_BLOCK, dirty_end - at), at), at - segment.end
                    )
                self.disk.sync(fd)
        except OSError as error:
            self.notes.append(f"{target} could not be written ({error.strerror}): the damaged bytes are not kept")
            unlink_if_there(self.disk, target)

    def move_aside(self, path: Path) -> None:
        """Take a file out of the log, durably; keep it for people while there are few."""
        if len(self.damaged()) < _MAX_DAMAGED:
            self.disk.replace(path, path.with_name(_DAMAGED + path.name))
        else:
            self.disk.unlink(path)
        self.disk.sync_folder(self.folder)

    def make_room_for_damaged(self) -> None:
        """Drop the oldest damaged file when there are as many as may be kept."""
        damaged = self.damaged()
        for path in damaged[: max(0, len(damaged) - _MAX_DAMAGED + 1)]:
            self.disk.unlink(path)

    def damaged(self) -> list[Path]:
        """What was moved aside, the oldest first."""
        paths = (self.folder / name for name in sorted(self.disk.names(self.folder)) if name.startswith(_DAMAGED))
        return sorted(paths, key=lambda path: self.disk.status(path).modified_ns)

    def floor(self) -> Position | None:
        """The floor noted so far. When the note is damaged, the store becomes blank: it is unknown what was lost."""
        try:
            content = read_json(self.disk, self.folder / FLOOR)
        except DamagedStore:
            self.become_blank("the note of what was lost to damage is itself damaged")
            remove_durably(self.disk, self.folder / FLOOR)
            return None
        return Position(content["epoch"], content["index"]) if content else None

    def resetting(self) -> Position | None:
        """Where the log was to go on from when dropping it was interrupted. Beyond every checkpoint, if the note is damaged."""
        try:
            content = read_json(self.disk, self.folder / RESET)
        except DamagedStore:
            return Position(2**64, 0)
        return Position(content["epoch"], content["index"]) if content else None

    def become_blank(self, why: str) -> None:
        """Have this store treated as a new one until it has caught up."""
        self.notes.append(f"{self.folder}: {why}; the broker does not vote before it has caught up with a primary")
        remove_durably(self.disk, self.folder / WHOLE)

    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, with its files; damaged ones that are newer are moved aside."""
        for path in reversed(checkpoint.listed(self.disk, self.folder)):
            try:
                found = checkpoint.load(path, disk=self.disk)
                self.bodies = {file.number: self.body(file, path) for file in found.files.in_use}
            except BadBatch as error:
                self.notes.append(f"{error}; it is moved aside")
                self.make_room_for_damaged()
                self.move_aside(path)
            else:
                self.next_number = max(self.next_number, found.files.next_number)
                return found
        return None

    def body(self, file: FileInUse, lists: Path) -> Body:
        """A file that a checkpoint lists. BadBatch when it is not there, or shorter than it was."""
        own = [path for path, number in self.numbers.items() if number == file.number and file.origin == self.origin]
        path = next(iter(own), self.folder / file.name)
        try:
            nbytes = self.disk.status(path).nbytes
        except FileNotFoundError:
            raise BadBatch(f"checkpoint {lists} needs file {file.number} ({path}), which is missing") from None
        if nbytes < file.used:
            raise BadBatch(f"checkpoint {lists} needs {file.used} bytes of {path}, which ends after {nbytes}")
        return Body(path, file, nbytes)

    def drop_unlisted(self) -> None:
        """Delete what holds no body that is alive, and is no part of the log."""
        needed = {segment.path for segment in self.kept} | {body.path for body in self.bodies.values()}
        found = [path for _, path in segments.listed(self.disk, self.folder)]
        found += [self.folder / file.name for file in bodies.listed(self.disk, self.folder)]
        for path in found:
            if path not in needed:
                unlink_if_there(self.disk, path)
        self.disk.sync_folder(self.folder)

    def take_damage(self) -> None:
        """Carry out what the note of a rotten body says: the log begins anew, and its end, as far as known, is the floor."""
        try:
            note = read_json(self.disk, self.folder / DAMAGED)
        except DamagedStore:
            note = {"epoch": 0, "index": 0, "file": "", "why": "a note of damage is itself damaged"}
            self.become_blank("it is unknown what was lost")
        if note is None:
            return
        said = Position(note["epoch"], note["index"])
        parts = [_Part(first, path, FIRST_BATCH) for first, path in segments.listed(self.disk, self.folder)]
        floor = max([said, *self.evidence(parts, None, Position(0, 0)), self.floor() or said])
        self.notes.append(f"{note['why']}; everything, up to {floor} at least, has to come from the primary again")
        replace_durably(self.disk, self.folder / FLOOR, seal_json(floor._asdict()))
        if note["file"] and exists(self.disk, self.folder / note["file"]):
            self.make_room_for_damaged()
            self.move_aside(self.folder / note["file"])
        replace_durably(self.disk, self.folder / RESET, seal_json(Position(0, 0)._asdict()))
        for path in checkpoint.listed(self.disk, self.folder):
            unlink_if_there(self.disk, path)
        remove_durably(self.disk, self.folder / DAMAGED)

    def fits(self, found: Checkpoint) -> bool:
        """Whether the log goes on after this checkpoint: it holds, or begins after, the batch at that index (Raft §7)."""
        for segment in self.kept:
            if segment.first_index - 1 <= found.index <= segment.last.index:
                known = segment.position(found.index - segment.first_index + 1)
                return known.epoch in (found.epoch, 0)
        return False


def recover(folder: Path, segment_bytes: int, disk: Disk, origin: int = 0) -> tuple[Recovered, list[Segment]]:
    """Bring a log's folder (made if missing) in order. `origin` says whose files it writes (`bodies`).

    DamagedStore when it must not be used; StorageError.
    """
    work = _Recovery(folder, disk, origin)
    try:
        disk.make_folder(folder)
        disk.sync_folder(folder.parent)
        return _recover(work, segment_bytes)
    except BaseException as error:
        for segment in work.kept:
            segment.close(disk)
        if isinstance(error, OSError):
            raise refused(error, "recover the log in", folder) from error
        raise


def _recover(work: _Recovery, segment_bytes: int) -> tuple[Recovered, list[Segment]]:
    folder, disk = work.folder, work.disk
    for name in disk.names(folder):
        if name.endswith(ASIDE):
            disk.unlink(folder / name)
    disk.sync_folder(folder)  # a process that was killed may have left names that no power cut must change any more
    saved = hard_state.recover(disk, folder, work.notes)
    work.take_damage()
    work.look_at_files()
    found = work.checkpoint()
    if found is not None and found.version == checkpoint.WITH_BODIES:
        work.notes.append(f"{found.path} is of an older version and is converted")
        converted(found, work.take_number, work.origin, disk=disk)
        found = work.checkpoint()
    base = Position(found.epoch, found.index) if found else Position(0, 0)
    resetting = work.resetting()
    if resetting is None:
        if not segments.listed(disk, folder) and (saved or found or exists(disk, folder / WHOLE)):
            work.become_blank("the log's segments are gone")
        work.walk(base, work.log_after(found))
    elif resetting > base:
        work.become_blank("the checkpoint that the log was to go on from is gone")
    if found and work.kept and not work.fits(found):
        work.notes.append(f"{folder}: the log is older than its checkpoint of batch {found.index} and starts anew after it")
    if resetting is not None or not work.kept or (found and not work.fits(found)):
        spared = {body.path for body in work.bodies.values()}
        size = segments.size_after(0, segment_bytes)
        work.kept[:] = [reset(work.kept, folder, work.take_number(), base, size, disk, spared)]
        work.entries.clear()
    newest = work.end or base
    if saved is None and (newest.index > 0 or exists(disk, folder / WHOLE)):  # a witness has no batches
        raise DamagedStore(
            f"{folder / hard_state.NAME} (epoch and vote) is missing; move {folder} away: the broker then starts as a new one"
        )
    epoch, voted_for, attested = saved or hard_state.make(disk, folder)
    if epoch < newest.epoch:
        raise DamagedStore(
            f"{folder / hard_state.NAME} says epoch {epoch}, the log has batches of epoch {newest.epoch}: "
            f"it was altered or restored from an older copy; move {folder} away: the broker then starts as a new one"
        )
    work.drop_unlisted()
    in_log = {segment.path for segment in work.kept}
    left = {number: body for number, body in work.bodies.items() if body.path not in in_log}
    entries = [entry for entry in work.entries if entry.index > base.index]
    floor, blank = work.floor(), not exists(disk, folder / WHOLE)
    recovered = Recovered(
        epoch, voted_for, found, entries, blank, floor, work.torn_bytes, work.notes, left, work.next_number, attested
    )
    return recovered, work.kept


def reset(
    kept: list[Segment], folder: Path, number: int, before: Position, size: int, disk: Disk, spared: Set[Path] = frozenset()
) -> Segment:
    """Drop every segment but those `spared` for their bodies, and make file `number`, which follows `before`, whose checkpoint is
    durable (or which is the log's beginning).

    The note `reset` is synced first and removed last: a crash in between is seen by it, and all of this done again.
    """
    replace_durably(disk, folder / RESET, seal_json(before._asdict()))
    for segment in kept:
        segment.close(disk)
    for _, path in segments.listed(disk, folder):
        if path not in spared:
            unlink_if_there(disk, path)
    disk.sync_folder(folder)
    fresh = segments.create(folder, number, before, size, disk)
    remove_durably(disk, folder / RESET)
    return fresh


def _where(segment: Segment, window: Window, following: int | None) -> str:
    index = segment.last.index + 1
    if following is not None and segment.mark.end <= segment.end == window.content_end(segment.end):
        return f"the log's batches {index} to {following - 1} are missing: no segment has them"
    if segment.size < segment.mark.end:
        return f"segment {segment.path} ends after {segment.size} bytes, in or before batch {index}"
    return f"segment {segment.path} is damaged at byte {segment.end}, in batch {index}"
