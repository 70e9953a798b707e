"""Compaction: copies the live messages of files that have few of them to one new file, so that the old files can be deleted.

Life of a compaction: the reactor lists the live runs of some files. A thread reads each run, verifies it, and writes its live
messages as ordinary batches to a new body file, at a limited rate. The file is synced and gets its name. The reactor tells the
queues the new places of their messages, and has a checkpoint written with these places. Then the old files are deleted, because
no checkpoint lists them any more. A crash at any step leaves at most files that the newest checkpoint does not list.

Invariants: a run whose checksum is wrong is not copied, and ends the compaction; no place is replaced before the new file is
durable; messages that were removed meanwhile do not come back, because queues replace only the places of messages that they still
have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import google_crc32c

from broker.core import limits
from broker.core.queues.blocks import LiveRun, Move
from broker.core.records import Batch, BatchBuilder
from broker.disk.bodies import BodyWriter, FileInUse, Unreadable
from broker.disk.threads import Event

SYNC_BYTES = 8 * 1024 * 1024
"""Bytes that are written between two syncs, so that a sync of the log never waits for more than this."""

Read = Callable[[list[tuple[int, int]]], list[bytes]]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction: the new file, and for each queue number the moves of its messages; the moves of one run are
    together."""

    file: FileInUse
    moves: list[tuple[int, list[Move]]]


class GivenUp(Exception):
    """The compaction was stopped because the journal closes."""


class Pace:
    """Limits a thread to `bytes_per_s` (0: no limit), and stops it when the journal closes."""

    def __init__(self, bytes_per_s: int, seconds: Callable[[], float], closing: Event) -> None:
        self._bytes_per_s = bytes_per_s
        self._seconds = seconds
        self._closing = closing
        self._began_s = seconds()
        self._done = 0

    def spend(self, nbytes: int) -> None:
        """Count bytes that were read or written, and wait as the limit demands. GivenUp when the journal closes."""
        self._done += nbytes
        ahead_s = 0.0
        if self._bytes_per_s:
            ahead_s = self._began_s + self._done / self._bytes_per_s - self._seconds()
        if self._closing.is_set() or (ahead_s > 0 and self._closing.wait(ahead_s)):
            raise GivenUp


def copy(runs: Iterable[tuple[int, LiveRun]], read: Read, writer: BodyWriter, pace: Pace) -> Compacted:
    """Copy runs, each with the number of its queue, to a new file, and make it durable. Blocks: call it in a thread.

    Unreadable names the place of a run that cannot be read or is damaged; StorageError; GivenUp.
    """
    moves: dict[int, list[Move]] = {}
    waiting: list[tuple[int, int, int, int]] = []
    builder = BatchBuilder()
    unsynced = 0

    def write() -> None:
        nonlocal builder, unsynced
        if not waiting:
            return
        data = builder.seal(0, 0, 0)
        place = writer.add(data)
        for (queue, first_seq, n, was), run in zip(waiting, Batch.parse(data, verified=True).runs, strict=True):
            moves.setdefault(queue, []).append(Move(first_seq, n, was, place + run.start, run.crc))
        unsynced += len(data)
        if unsynced >= SYNC_BYTES:
            writer.sync()
            unsynced = 0
        pace.spend(len(data))
        waiting.clear()
        builder = BatchBuilder()

    try:
        for queue, run in runs:
            for first_seq, was, messages in _live(run, read, pace):
                builder.enqueue_at(queue, first_seq, messages)
                waiting.append((queue, first_seq, len(messages), was))
            if builder.nbytes >= limits.BATCH_TARGET_BYTES:
                write()
        write()
        return Compacted(writer.finish(), list(moves.items()))
    finally:
        writer.abort()


def _live(run: LiveRun, read: Read, pace: Pace) -> Iterator[tuple[int, int, list[bytes]]]:
    """First sequence, place and messages of each stretch of live messages in a run."""
    (payload,) = read([(run.place, run.nbytes)])
    pace.spend(len(payload))
    found = google_crc32c.value(payload)
    if found != run.crc:
        raise Unreadable(
            run.place, f"the bodies at {run.place:#x} are damaged: checksum {found:08x} is not the stored {run.crc:08x}"
        )
    ends = list(accumulate(run.lengths, initial=0))
    for start, stop in run.stretches:
        messages = [payload[lo:hi] for lo, hi in pairwise(ends[start : stop + 1])]
        yield run.first_seq + start, run.place + ends[start], messages
