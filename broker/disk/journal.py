"""The journal: one log's batches on disk, appended in groups by one writer thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from broker.disk.checkpoint import Checkpoint
from broker.disk.durable import REAL_DISK, Disk

SEGMENT_BYTES = 64 * 1024 * 1024

Reactor = Callable[[Callable[[], None]], None]
OnDurable = Callable[[int, int, float], None]
OnError = Callable[[str, bool], None]


class Entry(NamedTuple):
    """One batch of the log, without its bytes."""

    index: int
    epoch: int
    nbytes: int
    n_records: int
    flags: int


class Position(NamedTuple):
    """A place in the log. Positions compare as logs do: by epoch, then by index (Raft §5.4.1)."""

    epoch: int
    index: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start found. `entries` are the batches after the checkpoint (all of them without one), consecutive."""

    epoch: int
    voted_for: str | None
    checkpoint: Checkpoint | None
    entries: list[Entry]
    blank: bool
    """Nothing was ever stored here."""
    floor: Position | None
    """Acknowledged batches up to here were lost to damage: grant no vote and seek none for a log that is older (vote_floor)."""
    torn_bytes: int
    """Bytes of an unfinished last write that were cut off; nobody was told that they were durable."""
    notes: list[str]
    """What was repaired, in sentences for the broker's log."""


class Released(LookupError):
    """The batches asked for are before the log's first segment: the peer needs the checkpoint."""


@dataclass(frozen=True, slots=True)
class Figures:
    """For metrics and `$management`."""

    last_sync_s: float
    bytes_written: int
    batches_written: int
    syncs: int
    waiting_bytes: int
    segments: int
    bytes_on_disk: int
    first_index: int
    last_index: int
    checkpoint_index: int


class Journal:
    """One log on disk. All methods are for the reactor thread, but `read`, which any thread may call."""

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        call_in_reactor: Reactor,
        on_error: OnError,
        segment_bytes: int = SEGMENT_BYTES,
        disk: Disk = REAL_DISK,
    ) -> tuple[Journal, Recovered]:
        """Recover the log in `folder` (made if missing) and start its threads. Blocks while it reads. DamagedStore, StorageError."""
        ...

    @property
    def figures(self) -> Figures:
        """As of now; cheap."""
        ...

    def append(self, batches: list[bytes], on_durable: OnDurable) -> None:
        """Store these batches, next in order. `on_durable(last_index, last_epoch, sync_seconds)` is called in the reactor thread once
        they are synced; it is never called when the disk failed, or was full until `close`."""
        ...

    def truncate(self, from_index: int, done: Callable[[], None]) -> None:
        """Drop the batches from `from_index` on, in order with appends (Raft §5.3: conflicting entries)."""
        ...

    def reset(self, index: int, epoch: int, done: Callable[[], None] | None = None) -> None:
        """Drop the whole log and go on after `index` of `epoch`, whose checkpoint a `Receiver` has made durable (Raft §7)."""
        ...

    def save_hard_state(self, epoch: int, voted_for: str | None) -> None:
        """Durable when it returns. StorageError: not saved; do not send what depends on it."""
        ...

    def floor_passed(self) -> None:
        """The log is level with the floor again: forget it."""
        ...

    def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        """Durable batches from `first` on, at most to `last`, at least one and otherwise at most `max_bytes` in all; [] when `first` is
        not durable yet. Any thread. Released when they are gone; BadBatch (segment and offset) when they have rotted."""
        ...

    def write_checkpoint(
        self,
        index: int,
        epoch: int,
        members: dict[str, Any],
        batches: Iterable[bytes],
        done: Callable[[Checkpoint | None, str], None],
        keep_from: int | None = None,
    ) -> None:
        """Write a checkpoint in a thread of its own, then drop older ones and release segments below `keep_from` (default: index + 1).
        `done(checkpoint, "")` or `done(None, why_not)` in the reactor thread. One at a time."""
        ...

    def release(self, below_index: int) -> None:
        """Delete, in the background, whole segments that hold only batches below `below_index`. Never below no checkpoint."""
        ...

    def close(self) -> None:
        """Write and sync what waits (unless the disk refuses), then stop the threads. Blocks."""
        ...
