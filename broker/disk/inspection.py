"""A report for people about a log's folder. It is read without its lock and without changes, even while a broker uses it.

The report lists as damage what a start would have to repair (see `broker.disk.recovery`): a segment whose batches end before the
offset in its mark, missing batches between two segments, and the notes of earlier starts about losses. Bodies that a checkpoint
covers are not read: a broker detects damaged ones when it needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from broker.core.records import BadBatch
from broker.disk import checkpoint, hard_state, segments
from broker.disk.durable import ASIDE, DamagedStore, exists, opened, read_json
from broker.disk.files import Disk
from broker.disk.recovery import DAMAGED, FLOOR, RESET, WHOLE
from broker.disk.segments import Position, Window


@dataclass(frozen=True, slots=True)
class LogInfo:
    """One log as `qpid-ha store-info` shows it; sizes in bytes."""

    name: str
    epoch: int
    voted_for: str | None
    last_index: int
    last_epoch: int
    checkpoint_index: int
    segments: int
    nbytes: int
    written: str
    """The time when its primary made the last batch, in ISO 8601; "" if there is none."""
    blank: bool
    """Whether the store has never had all that its cluster had, or this is no longer known."""
    damage: tuple[str, ...]
    """The damage, in sentences."""


def log_info(disk: Disk, folder: Path) -> LogInfo:
    """Read one log. See the module."""
    damage: list[str] = []
    epoch, voted_for = 0, None
    try:
        epoch, voted_for, _ = hard_state.read(disk, folder) or (0, None, None)
    except DamagedStore as error:
        damage.append(str(error))
    base, written = Position(0, 0), ""
    for path in reversed(checkpoint.listed(disk, folder)):
        try:
            found = checkpoint.load(path, disk=disk)
        except BadBatch as error:
            damage.append(f"{path.name} is damaged: {error}")
            continue
        except checkpoint.CheckpointGone:
            continue
        base = Position(found.epoch, found.index)
        written = _iso(disk.status(path).modified_ns // 1_000_000)
        break
    listed = segments.listed(disk, folder)
    last, made_ms = _last_batch(disk, listed, base, damage)
    damage += _notes(disk, folder)
    return LogInfo(
        folder.name,
        epoch,
        voted_for,
        last.index,
        last.epoch,
        base.index,
        len(listed),
        sum(_size(disk, folder / name) for name in disk.names(folder)),
        _iso(made_ms) if made_ms else written,
        not exists(disk, folder / WHOLE),
        tuple(damage),
    )


def _last_batch(disk: Disk, listed: list[tuple[int, Path]], base: Position, damage: list[str]) -> tuple[Position, int]:
    """The newest batch, and the time when it was made, in ms since 1970 (0: unknown). Reads like a start does, from the segment
    in which the checkpoint ends."""
    last, made_ms = base, 0
    needed = [number for number, (first, _) in enumerate(listed) if first <= base.index + 1]
    for first_index, path in listed[needed[-1] if needed else 0 :]:
        if first_index > last.index + 1:
            damage.append(f"batches {last.index + 1} to {first_index - 1} are missing before {path.name}")
            return last, made_ms
        try:
            for position, at_ms, text in _batches(disk, first_index, path):
                if text:
                    damage.append(text)
                    return last, made_ms
                last, made_ms = max(last, position), at_ms
        except FileNotFoundError:
            continue  # it was just deleted
    return last, made_ms


def _batches(disk: Disk, first_index: int, path: Path) -> Iterator[tuple[Position, int, str]]:
    """The batches of a segment, each with the time when it was made, and "". If the segment is damaged, the last item has a text
    instead."""
    with opened(disk, path) as fd:
        mark = segments.read_mark(disk, fd)  # read before the batches, because a running broker writes it after them
        head = segments.read_head(disk, fd, path)
        last, end = Position(head.prev_epoch if head is not None else 0, first_index - 1), segments.FIRST_BATCH
        for offset, header in segments.whole_batches(Window(disk, fd, disk.size(fd)), last):
            last, end = Position(header.epoch, header.index), offset + header.length
            yield last, header.timestamp_ms, ""
        if mark is not None and end < mark.end:
            yield last, 0, f"{path.name} is damaged at byte {end}: it went up to ({mark.last}), and is whole up to ({last})"


def _notes(disk: Disk, folder: Path) -> list[str]:
    """The notes of earlier starts and of the broker itself."""
    found = []
    try:
        floor = read_json(disk, folder / FLOOR)
    except DamagedStore as error:
        found.append(str(error))
    else:
        if floor is not None:
            found.append(f"batches up to ({Position(floor['epoch'], floor['index'])}) were lost, and come from a primary again")
    if exists(disk, folder / DAMAGED):
        found.append("a message has rotted: everything comes from a primary again at the next start")
    if exists(disk, folder / RESET):
        found.append("a checkpoint was being received: the next start continues with it")
    aside = sorted(name for name in disk.names(folder) if name.startswith(f"{DAMAGED}-"))
    if aside:
        found.append(f"earlier damage was moved aside: {', '.join(aside)}")
    return found


def _size(disk: Disk, path: Path) -> int:
    """Bytes of a file; 0 if it is unfinished or was just deleted."""
    try:
        return 0 if path.suffix == ASIDE else disk.status(path).nbytes
    except FileNotFoundError:
        return 0


def _iso(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
