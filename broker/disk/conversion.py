"""Converts a checkpoint of version 1, which has the bodies in it, to a checkpoint with the places of the bodies.

Life of a conversion: at the first start of a newer program, the batches of the old checkpoint are copied to body files without
changes, and applied to a state that keeps only places. The files are synced and get their names. Then the new checkpoint replaces
the old one under the same name. Until then the disk has all bodies twice. A crash before that leaves the old checkpoint and files
that it does not list; the next start removes these files and converts it again.

The log's segments need no conversion: batches of both formats are read, and each segment gets a file number when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broker.core.records import Batch, Kind
from broker.core.state import State
from broker.disk import checkpoint
from broker.disk.bodies import BodyWriter, FileInUse
from broker.disk.checkpoint import Checkpoint, LogFiles
from broker.disk.files import Disk

FILE_BYTES = 16 * 1024 * 1024


class _Files:
    """Writes body files, one after the other, none much larger than `FILE_BYTES`."""

    def __init__(self, disk: Disk, folder: Path, take_number: Callable[[], int], origin: int) -> None:
        self.done: dict[int, FileInUse] = {}
        self._disk = disk
        self._folder = folder
        self._take_number = take_number
        self._origin = origin
        self._writer: BodyWriter | None = None

    def add(self, batch: bytes) -> int:
        if self._writer is None:
            self._writer = BodyWriter(self._disk, self._folder, self._take_number(), self._origin)
        place = self._writer.add(batch)
        if self._writer.used >= FILE_BYTES:
            self.finish()
        return place

    def finish(self) -> None:
        if self._writer is not None:
            file = self._writer.finish()
            self.done[file.number] = file
            self._writer = None

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()


def converted(old: Checkpoint, take_number: Callable[[], int], origin: int, *, disk: Disk) -> Checkpoint:
    """Replace `old` durably by a checkpoint of this version with the same state. StorageError, BadBatch."""
    folder = old.path.parent
    state, files = State(keeps_bodies=False), _Files(disk, folder, take_number, origin)
    try:
        for data in Checkpoint.read(old.path, disk=disk):
            batch = Batch.parse(data, verified=True)
            if any(run.kind is Kind.ENQUEUE for run in batch.runs):
                batch = Batch.parse(data, place=files.add(data), verified=True)
            state.apply(batch, snapshot=True)
        files.finish()
    finally:
        files.abort()
    alive = sorted(number for number, nbytes in state.live_by_file.items() if nbytes)
    assert all(number in files.done for number in alive), "all bodies are in files that were just written"
    in_use = LogFiles(origin, take_number(), 0, tuple(files.done[number] for number in alive))
    batches = (builder.seal(old.epoch, old.index, 0) for builder in state.snapshot())
    return checkpoint.write(folder, old.index, old.epoch, old.members, batches, in_use, disk=disk)
