"""Checkpoints: what is alive at one index, in one file, so that the log before it can go.

A checkpoint's life: sealed snapshot batches are written end to end into a file aside, synced, renamed in, and only then older
checkpoints and the log's segments before it are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.disk.durable import REAL_DISK, Disk


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
    def newest(folder: Path, *, disk: Disk = REAL_DISK) -> Checkpoint | None:
        """The newest checkpoint of a log's folder that is whole (every byte is read), or None."""
        ...

    @staticmethod
    def read(path: Path, *, disk: Disk = REAL_DISK) -> Iterator[bytes]:
        """The snapshot batches, each verified. BadBatch names the file and the offset where it is damaged."""
        ...


def write(
    folder: Path, index: int, epoch: int, members: dict[str, Any], batches: Iterable[bytes], *, disk: Disk = REAL_DISK
) -> Checkpoint:
    """Write a checkpoint durably; older ones stay. Blocks: call it in a thread (`Journal.write_checkpoint` does)."""
    ...


def read_chunk(path: Path, offset: int, nbytes: int, *, disk: Disk = REAL_DISK) -> bytes:
    """Bytes of the file for a peer; empty at its end. CheckpointGone when it was replaced. Blocks for one read."""
    ...


class Receiver:
    """A checkpoint arriving from a peer in chunks. Blocks: call it in a thread; one at a time for each folder."""

    def __init__(self, folder: Path, nbytes: int, *, disk: Disk = REAL_DISK) -> None:
        """Begin to receive a file of `nbytes`; whatever an earlier Receiver left is dropped."""
        ...

    @property
    def received(self) -> int:
        """The offset that the next chunk must have."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Add a chunk. ValueError when it is not the next one or runs past the end. StorageError when the disk refuses."""
        ...

    def finish(self) -> Checkpoint:
        """Verify the whole, make it durable and rename it in; then call `Journal.reset(index, epoch)`. BadBatch: start again."""
        ...

    def abort(self) -> None:
        """Drop what has arrived."""
        ...
