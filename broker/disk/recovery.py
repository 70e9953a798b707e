"""Recovery: reads the folder of a log at the start, and repairs what a crash or decay did to it.

The files of a log::

    hard-state                        epoch and vote, two copies
    00000000000000000042.checkpoint   what was alive at index 42, and the names of the files with the bodies
    00000000000000000043.seg          the batches from 43 on
    0000000007-<origin>-<used>.bodies live bodies; a segment that the checkpoint covers may have some too
    whole                             this store has caught up with its cluster at least once; without this file it is blank
    floor                             the newest batch that is known to be lost by damage
    reset                             the log is being dropped; afterwards it continues after the index in this file
    damaged                           a body of an acknowledged batch has rotted; the file says where
    damaged-*                         damaged bytes that were removed, for people to look at; at most three files
    *.tmp                             unfinished; removed at the start

Life of a recovery: it removes unfinished files, and loads the newest checkpoint that is complete and whose files all exist. It
reads the segments from the end of the checkpoint, as long as each batch follows the one before. At the first fault it decides
whether this is a torn group, which it cuts off because nobody relied on it, or damage. Then it checks that the checkpoint and the
log fit together, and removes the body files that the checkpoint does not list. It does not read the bodies that the checkpoint
covers: a body is verified when it is needed.

Damage means that batches are lost which this broker has acknowledged. The broker must not vote as if it had never had them, or
the cluster could lose them (Alagappan et al., FAST '18). So recovery saves and syncs the newest batch that is known to have been
there, the **floor**, *before* it cuts anything. The floor stays until the log has caught up with a primary. If nobody can tell
how much is lost, the store becomes blank. Bytes that are cut out are copied to another file first. Every step may be interrupted
and done again.

A rotten body is found long after its batch was acknowledged. Then the broker must get the whole store from the primary again: the
file `damaged` makes the next start use the end of the log as the floor, and begin with an empty log.

A log that is **alone** has no copy on another broker: that of a standalone broker, the local log of a member, and that of a
cluster with one store, which the last membership in the log shows. No damage to one file may cost intact data in another file. A
missing or short body file costs its own bodies, which are unreadable from then on. Damage at the end of the newest segment costs
the batches from there on. Any other damage that costs batches is refused with DamagedStore, before anything is moved or deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from broker.core.records import BadBatch, Batch, Kind
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

Alone = bool | Callable[[dict[str, Any]], bool]
"""Whether no other broker has a log, or a function that tells this from the last membership in the log."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery. `entries` are the batches after the checkpoint, or all batches if there is none; their indexes
    are consecutive."""

    epoch: int
    voted_for: str | None
    checkpoint: Checkpoint | None
    entries: list[Entry]
    blank: bool
    """This store has never caught up with its cluster (`Journal.floor_passed` records that it has), or this is unknown because of
    damage."""
    floor: Position | None
    """Acknowledged batches up to this position were lost by damage: while the log is older than this, the broker asks for no
    votes, and it grants none to a log that is older than this (vote_floor)."""
    torn_bytes: int
    """Bytes of an unfinished last write that were cut off. They were never acknowledged."""
    notes: list[str]
    """Sentences for the broker's log that say what was repaired."""
    bodies: dict[int, Body]
    """The body files that are not part of the log, by file number."""
    next_number: int
    """The next file number."""
    attested: dict[str, Any] | None = None
    """The position that a witness attests; a witness has this instead of a log."""


@dataclass(frozen=True, slots=True)
class Body:
    """A body file: its path, its entry in the checkpoint, and its bytes on disk."""

    path: Path
    file: FileInUse
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a segment that belongs to the log: its first batch `first_index` is at `offset` and follows `before`."""

    first_index: int
    path: Path
    offset: int
    before: Position | None = None


@dataclass(slots=True)
class _Recovery:
    """The state of a recovery in one folder."""

    folder: Path
    disk: Disk
    origin: int
    given: Alone = False
    known: bool | None = None
    """What `alone` has found out."""
    spoilt: dict[Path, str] = field(default_factory=dict)
    """In a log that is alone: the damaged checkpoints, and what is wrong with them. They stay until the log is known to be whole
    without them."""
    numbers: dict[Path, int] = field(default_factory=dict)
    """The file number of each segment that has one."""
    next_number: int = 1
    bodies: dict[int, Body] = field(default_factory=dict)
    """The files that the checkpoint lists, by file number."""
    kept: list[Segment] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    torn_bytes: int = 0

    @property
    def alone(self) -> bool:
        """Whether no other broker has this log: see the module. Only damage makes this a question, and it is asked before
        anything is moved or deleted."""
        if self.known is None:
            members = None if isinstance(self.given, bool) else self.last_members()
            self.known = self.given if isinstance(self.given, bool) else members is not None and self.given(members)
        return self.known

    def last_members(self) -> dict[str, Any] | None:
        """The last membership that can still be read: in the log, or else in the newest checkpoint that has one."""
        head = members = None
        for path in checkpoint.listed(self.disk, self.folder):
            with contextlib.suppress(BadBatch), opened(self.disk, path) as fd:
                head = checkpoint.read_head(self.disk, fd, path)
                members = head.members
        for part in self.log_after(head):
            with opened(self.disk, part.path) as fd:
                first = segments.read_head(self.disk, fd, part.path)
                before = part.before or Position(first.prev_epoch if first else 0, part.first_index - 1)
                window = Window(self.disk, fd, self.disk.size(fd))
                for offset, header in segments.whole_batches(window, before, part.offset):
                    if header.holds_members and (head is None or header.index > head.index):
                        batch = Batch.parse(window.get(offset, header.length), verified=True)
                        members = next(batch.json(run) for run in batch.runs if run.kind is Kind.MEMBERS)
        return members

    @property
    def end(self) -> Position | None:
        """The last batch of the log that is known to be good; None before the first segment is open."""
        return self.kept[-1].last if self.kept else None

    def look_at_files(self) -> None:
        """Find out which file numbers are in use."""
        for _, path in segments.listed(self.disk, self.folder):
            with opened(self.disk, path) as fd:
                head = segments.read_head(self.disk, fd, path)
            if head is not None and head.number:
                self.numbers[path] = head.number
        taken = [*self.numbers.values(), *(file.number for file in bodies.listed(self.disk, self.folder))]
        self.next_number = max([self.next_number, *(number + 1 for number in taken)])

    def take_number(self) -> int:
        """Return the next file number, and count it as used."""
        self.next_number += 1
        return self.next_number - 1

    def log_after(self, found: Checkpoint | checkpoint.Head | None) -> list[_Part]:
        """The segments that the checkpoint does not fully cover, each from the offset at which the log after the checkpoint
        begins."""
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
        """Read the segments. Afterwards `kept` and `entries` have the good segments and batches, and the rest is cut off or
        removed."""
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
        """Open a segment and read its header. A segment without a file number gets one, and so does a segment whose number a file
        of the checkpoint has: the checkpoint came from another store, which counts its own files."""
        path = part.path
        fd = self.disk.open(path, os.O_RDWR)
        size = self.disk.size(fd)
        head = segments.read_head(self.disk, fd, path)
        mark = segments.read_mark(self.disk, fd)
        if size < FIRST_BATCH or (head is None and mark is None):
            why = f"segment {path} ({size} bytes) has no readable header, so its content is unknown"
            if self.kept and self.alone:
                self.refuse(why, path)
            self.become_blank(why)
        prev_epoch = head.prev_epoch if head is not None else self.kept[-1].last.epoch if self.kept else 0
        before = part.before or Position(prev_epoch, part.first_index - 1)
        number = self.numbers.get(path, 0)
        listed = self.bodies.get(number)
        renumbered = not number or (listed is not None and listed.path != path)
        if renumbered:
            number = self.take_number()
        if head is None:
            self.notes.append(f"segment {path}: its header was damaged and has been written again")
        if head is None or renumbered:
            segments.write_head(self.disk, fd, number, before)
            sync_or_stop(self.disk, fd, path)
        segment = Segment(path, number, fd, size, before.index + 1, before.epoch, mark or Mark(0, FIRST_BATCH, before))
        segment.starts[0] = part.offset
        self.kept.append(segment)
        return segment, Window(self.disk, fd, size)

    def take(self, segment: Segment, window: Window) -> None:
        """Add the good batches of a segment to `entries`."""
        for _, header in segments.whole_batches(window, segment.last, segment.end):
            segment.add(header.length, header.epoch)
            self.entries.append(Entry(header.index, header.epoch, header.length, header.n_records, header.flags))

    def end_of_log(self, segment: Segment, window: Window) -> None:
        """Decide what follows the good batches of the newest segment: zeros, a torn group or damage.

        The good batches are synced first: a process that was killed may have written them without a sync, and from now on they
        count.
        """
        sync_or_stop(self.disk, segment.fd, segment.path)
        stop = segment.end
        dirty_end = window.content_end(stop)
        unmarked = segment.mark.number == 0  # without a mark, only complete batches behind the fault can show that it is damage
        if stop < segment.mark.end or (unmarked and segments.newest_beyond(window, stop, segment.last)):
            self.lose([], window, _where(segment, window, None))
        elif dirty_end > stop:
            self.torn_bytes = dirty_end - stop
            self.notes.append(
                f"segment {segment.path}: {self.torn_bytes} bytes of an unfinished write at byte {stop} were cut off"
            )
            segment.clear(self.disk, dirty_end)

    def lose(self, later: list[_Part], window: Window | None, what: str) -> None:
        """Handle damage: save the floor, then move the batches that cannot be used out of the log.

        `later` are the segments after the damage; `window` reads the last kept segment, if the damage is in it; `what` describes
        the damage.
        """
        end = self.end or Position(0, 0)
        if self.alone and (later or not end.index):
            self.refuse(what, later[0].path if later and end.index else None)
        floor = max([end, *self.evidence(later, window, end), self.floor() or end])
        copies = "no other broker has it" if self.alone else "the broker fetches it from the primary again"
        self.notes.append(f"{what}; the log from there on, up to at least {floor}, is removed, and {copies}")
        replace_durably(self.disk, self.folder / FLOOR, seal_json(floor._asdict()))
        self.make_room_for_damaged()
        if window is not None:
            self.cut_out(self.kept[-1], window)
        for part in reversed(later):
            self.move_aside(part.path)

    def evidence(self, later: list[_Part], window: Window | None, end: Position) -> list[Position]:
        """Positions of batches that are known to have been in the log after the damage."""
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
        """Copy the bytes after a segment's good batches to another file, then replace them by zeros."""
        dirty_end = window.content_end(segment.end)
        if dirty_end > segment.end:
            target = self.folder / f"{_DAMAGED}{segment.path.stem}-at-{segment.end}"
            self.copy_aside(segment, dirty_end, target)
        segment.clear(self.disk, dirty_end)

    def copy_aside(self, segment: Segment, dirty_end: int, target: Path) -> None:
        """Save the damaged bytes in the file `target`, for people to look at, if there is room for them."""
        try:
            with opened(self.disk, target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
                for at in range(segment.end, dirty_end, _BLOCK):
                    write_all(
                        self.disk, fd, read_whatever(self.disk, segment.fd, min(_BLOCK, dirty_end - at), at), at - segment.end
                    )
                self.disk.sync(fd)
            self.disk.sync_folder(self.folder)
        except OSError as error:
            self.notes.append(f"cannot write {target} ({error.strerror}): no copy of the damaged bytes is kept")
            unlink_if_there(self.disk, target)

    def move_aside(self, path: Path) -> None:
        """Move a file out of the log, durably. It is kept for people if there are fewer than three such files, else deleted."""
        if len(self.damaged()) < _MAX_DAMAGED:
            self.disk.replace(path, path.with_name(_DAMAGED + path.name))
        else:
            self.disk.unlink(path)
        self.disk.sync_folder(self.folder)

    def make_room_for_damaged(self) -> None:
        """Delete the oldest damaged files, so that one more may be kept."""
        damaged = self.damaged()
        for path in damaged[: max(0, len(damaged) - _MAX_DAMAGED + 1)]:
            self.disk.unlink(path)

    def damaged(self) -> list[Path]:
        """The damaged files that were kept, the oldest first."""
        paths = (self.folder / name for name in sorted(self.disk.names(self.folder)) if name.startswith(_DAMAGED))
        return sorted(paths, key=lambda path: self.disk.status(path).modified_ns)

    def floor(self) -> Position | None:
        """The saved floor. If its file is damaged, it is unknown what was lost, so the store becomes blank."""
        try:
            content = read_json(self.disk, self.folder / FLOOR)
        except DamagedStore:
            if not self.alone:
                self.become_blank(f"the file {FLOOR}, which says which batches were lost, is itself damaged")
            remove_durably(self.disk, self.folder / FLOOR)
            return None
        return Position(content["epoch"], content["index"]) if content else None

    def resetting(self) -> Position | None:
        """The position after which the log must continue, if dropping it was interrupted; else None. If the file `reset` is
        damaged, a position after every checkpoint."""
        try:
            content = read_json(self.disk, self.folder / RESET)
        except DamagedStore as error:
            if self.alone:
                self.refuse(str(error))
            return Position(2**64, 0)
        return Position(content["epoch"], content["index"]) if content else None

    def become_blank(self, why: str) -> None:
        """Treat this store as a new one until it has caught up. A log that is alone cannot catch up: it is refused."""
        if self.alone:
            self.refuse(why)
        self.notes.append(f"{self.folder}: {why}; the broker does not vote until it has caught up with a primary")
        remove_durably(self.disk, self.folder / WHOLE)

    def refuse(self, what: str, following: Path | None = None) -> NoReturn:
        """Refuse a log that is alone, and leave its files as they are. `following`: the first segment after the damage, if the
        log before it can be used."""
        less = f", or move only {following.name} and the later segments away, and lose their batches" if following else ""
        raise DamagedStore(
            f"{'; '.join([*self.spoilt.values(), what])}; no other broker has this log, so nothing of it was changed: bring back "
            f"the file from a copy, or move {self.folder} away: the broker then starts without its content{less}"
        )

    def set_spoilt_aside(self) -> None:
        """The log that is alone is whole without its damaged checkpoints: move them out of it."""
        for path, why in self.spoilt.items():
            self.notes.append(f"{why}; it is moved aside, and the log is whole without it")
            self.make_room_for_damaged()
            self.move_aside(path)

    def checkpoint(self) -> Checkpoint | None:
        """The newest complete checkpoint whose files all exist; if the log is alone, they need not exist. Newer ones that are
        damaged are moved out of the log."""
        for path in reversed(checkpoint.listed(self.disk, self.folder)):
            try:
                found = checkpoint.load(path, disk=self.disk)
                self.bodies = {file.number: self.body(file, path) for file in found.files.in_use}
            except BadBatch as error:
                if self.alone:
                    self.spoilt[path] = str(error)
                    continue
                self.notes.append(f"{error}; it is moved aside")
                self.make_room_for_damaged()
                self.move_aside(path)
            else:
                self.next_number = max(self.next_number, found.files.next_number)
                return found
        return None

    def body(self, file: FileInUse, lists: Path) -> Body:
        """A file that the checkpoint `lists` lists. BadBatch when the file is missing, or too short; but if the log is alone,
        only the bodies in it are lost."""
        own = [path for path, number in self.numbers.items() if number == file.number and file.origin == self.origin]
        path = next(iter(own), self.folder / file.name)
        try:
            nbytes = self.disk.status(path).nbytes
        except FileNotFoundError:
            nbytes, fault = 0, f"checkpoint {lists} needs file {file.number} ({path}), which is missing"
        else:
            fault = f"checkpoint {lists} needs {file.used} bytes of {path}, which ends after {nbytes}"
        if nbytes >= file.used:
            return Body(path, file, nbytes)
        if not self.alone:
            raise BadBatch(fault)
        for _, each in segments.listed(self.disk, self.folder):
            if each not in self.numbers and self.disk.status(each).nbytes > FIRST_BATCH:
                self.refuse(f"{fault}, unless it is {each.name}, whose header does not give its number")
        self.notes.append(f"{fault}; no other broker has it, so its messages cannot be delivered, and stay on their queues")
        return Body(path, file, file.used)

    def drop_unlisted(self) -> None:
        """Delete segments and body files that are neither part of the log nor listed by the checkpoint."""
        needed = {segment.path for segment in self.kept} | {body.path for body in self.bodies.values()}
        found = [path for _, path in segments.listed(self.disk, self.folder)]
        found += [self.folder / file.name for file in bodies.listed(self.disk, self.folder)]
        unlisted = [path for path in found if path not in needed]
        for path in unlisted:
            unlink_if_there(self.disk, path)
        if unlisted:
            self.disk.sync_folder(self.folder)

    def take_damage(self) -> None:
        """If the file `damaged` reports a rotten body: make the end of the log, as far as it is known, the floor, and prepare an
        empty log. A log that is alone is left as it is: an earlier release may have written the file there."""
        if exists(self.disk, self.folder / DAMAGED) and self.alone:
            self.notes.append(f"the file {DAMAGED} in {self.folder} is removed: no other broker has this log")
            remove_durably(self.disk, self.folder / DAMAGED)
        try:
            note = read_json(self.disk, self.folder / DAMAGED)
        except DamagedStore:
            note = {"epoch": 0, "index": 0, "file": "", "why": f"the file {DAMAGED} is itself damaged"}
            self.become_blank("it is unknown which batches were lost")
        if note is None:
            return
        said = Position(note["epoch"], note["index"])
        parts = [_Part(first, path, FIRST_BATCH) for first, path in segments.listed(self.disk, self.folder)]
        floor = max([said, *self.evidence(parts, None, Position(0, 0)), self.floor() or said])
        self.notes.append(f"{note['why']}; the broker fetches everything, up to at least {floor}, from the primary again")
        replace_durably(self.disk, self.folder / FLOOR, seal_json(floor._asdict()))
        if note["file"] and exists(self.disk, self.folder / note["file"]):
            self.make_room_for_damaged()
            self.move_aside(self.folder / note["file"])
        replace_durably(self.disk, self.folder / RESET, seal_json(Position(0, 0)._asdict()))
        for path in checkpoint.listed(self.disk, self.folder):
            unlink_if_there(self.disk, path)
        remove_durably(self.disk, self.folder / DAMAGED)

    def fits(self, found: Checkpoint) -> bool:
        """Whether the log continues after this checkpoint: it has the batch of the checkpoint's index, or begins with the next
        one (Raft §7)."""
        for segment in self.kept:
            if segment.first_index - 1 <= found.index <= segment.last.index:
                known = segment.position(found.index - segment.first_index + 1)
                return known.epoch in (found.epoch, 0)
        return False


def recover(
    folder: Path, segment_bytes: int, disk: Disk, origin: int = 0, *, alone: Alone = False
) -> tuple[Recovered, list[Segment]]:
    """Repair the folder of a log; create it if it is missing. `origin` identifies the store that writes its files (`bodies`).
    `alone`: whether no other broker has this log.

    Returns the result and the open segments. DamagedStore when the folder must not be used; StorageError.
    """
    work = _Recovery(folder, disk, origin, alone)
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
    names = disk.names(folder)
    for name in names:
        if name.endswith(ASIDE):
            disk.unlink(folder / name)
    if names:
        disk.sync_folder(folder)  # a killed process may have left names that are not durable; from now on we rely on them
    saved = hard_state.recover(disk, folder, work.notes)
    work.look_at_files()
    work.take_damage()
    found = work.checkpoint()
    if found is not None and found.version == checkpoint.WITH_BODIES:
        work.notes.append(f"{found.path} has an older format and is converted")
        converted(found, work.take_number, work.origin, disk=disk)
        found = work.checkpoint()
    base = Position(found.epoch, found.index) if found else Position(0, 0)
    resetting = work.resetting()
    is_new = not (saved or found or resetting or segments.listed(disk, folder))
    if resetting is None:
        if not segments.listed(disk, folder) and (saved or found or exists(disk, folder / WHOLE)):
            work.become_blank("the log's segments are missing")
        work.walk(base, work.log_after(found))
    elif resetting > base:
        work.become_blank("the checkpoint after which the log must continue is missing")
    if found and work.kept and not work.fits(found):
        if work.alone:
            work.refuse(f"the log does not continue after its checkpoint of batch {found.index}")
        work.notes.append(f"{folder}: the log is older than its checkpoint of batch {found.index}, so a new log begins after it")
    work.set_spoilt_aside()
    if is_new:  # nothing is dropped: a crash before the segment has its name leaves a new log again
        work.kept.append(segments.create(folder, work.take_number(), base, segments.size_after(0, segment_bytes), disk))
    elif resetting is not None or not work.kept or (found and not work.fits(found)):
        spared = {body.path for body in work.bodies.values()}
        size = segments.size_after(0, segment_bytes)
        work.kept[:] = [reset(work.kept, folder, work.take_number(), base, size, disk, spared)]
        work.entries.clear()
    newest = work.end or base
    if saved is None and (newest.index > 0 or exists(disk, folder / WHOLE)):  # WHOLE: a witness has no batches
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
    """Delete all segments, except those in `spared`, which have live bodies. Then create the segment with file number `number`
    for the batches after `before`. `before` must have a durable checkpoint, or be the beginning of the log.

    The file `reset` is synced first and removed last. If it exists at a start, there was a crash in between, and all steps are
    done again.
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
