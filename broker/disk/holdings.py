"""The files of a log, and the batches and bodies in them. All threads of a journal share this object.

Life of a file here: the writer begins a segment; the segment fills; a checkpoint covers it, and it leaves the log. If the
checkpoint lists it, it stays as a file with bodies, until a checkpoint no longer lists it and no caller has asked to keep it.
Compactions and snapshots add files with bodies.

Invariants: segments follow each other without a gap, and the log has at least one; a file number is used once; only files that
the newest checkpoint does not need are dropped here. Only the writer changes the ends and descriptors of segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from broker.disk import bodies
from broker.disk.bodies import FileInUse
from broker.disk.checkpoint import Checkpoint, LogFiles
from broker.disk.recovery import Body
from broker.disk.segments import FIRST_BATCH, Segment
from broker.disk.threads import Threads


class Span(NamedTuple):
    """Consecutive batches in one segment: `bounds` are the offsets at which they start, and the end of the last one. If
    `Holdings.rewrites` is no longer equal to `rewrites`, they may have changed.
    """

    path: Path
    bounds: list[int]
    rewrites: int


class Dropped(NamedTuple):
    """Files that have left the log: segments to close, and the numbers and paths of files to delete."""

    segments: list[Segment]
    numbers: list[int]
    paths: list[Path]


class Holdings:
    """See the module. Every method may be called in any thread, unless its docstring limits this."""

    def __init__(
        self,
        folder: Path,
        segments: list[Segment],
        body_files: dict[int, Body],
        checkpoint: Checkpoint | None,
        *,
        origin: int,
        next_number: int,
        threads: Threads,
    ) -> None:
        self.origin = origin
        self.checkpoint = checkpoint
        """The newest checkpoint. The reactor thread replaces it; the writer does when it resets the log."""
        self.rewrites = 0
        """How often batches were dropped from the end of the log."""
        self._folder = folder
        self._segments = segments
        self._bodies = body_files
        self._pins: Counter[int] = Counter()
        self._fresh: set[int] = set()
        self._unwanted: list[tuple[int, Path]] = []
        """Index and path of files that were received with a checkpoint which is not installed. A start may need them until a
        newer checkpoint is durable: it has taken the place of an own one of the same index."""
        self._next_number = next_number
        self._lock = threads.condition()

    # ---- what there is

    @property
    def newest(self) -> Segment:
        """The segment that the writer appends to."""
        return self._segments[-1]

    @property
    def first_index(self) -> int:
        """The index of the log's first batch."""
        return self._segments[0].first_index

    def counts(self) -> tuple[int, int, int]:
        """The number of segments, the number of body files, and the bytes of all of them and the checkpoint."""
        with self._lock:
            nbytes = sum(segment.size for segment in self._segments) + sum(body.nbytes for body in self._bodies.values())
            return len(self._segments), len(self._bodies), nbytes + (self.checkpoint.nbytes if self.checkpoint else 0)

    @property
    def fresh(self) -> set[int]:
        """The files that compactions have made, until a checkpoint that began after them is the newest."""
        return set(self._fresh)

    def covered(self, index: int) -> list[int]:
        """The file numbers of the segments that a checkpoint of this index covers completely."""
        with self._lock:
            n = bisect_right(self._segments, index + 1, key=_first_index) - 1
            return [segment.number for segment in self._segments[: max(n, 0)]]

    def body_files(self) -> list[Body]:
        """The body files, which are not part of the log, in order of their numbers."""
        with self._lock:
            return [body for _, body in sorted(self._bodies.items())]

    def is_pinned(self, number: int) -> bool:
        """Whether this file is kept, listed or not: a snapshot with it is being sent, or it is being compacted."""
        return bool(self._pins[number])

    def path_of(self, number: int) -> Path | None:
        """The path of the file of this number; None when it no longer exists."""
        with self._lock:
            body = self._bodies.get(number)
            if body is not None:
                return body.path
            return next((segment.path for segment in reversed(self._segments) if segment.number == number), None)

    def places(self, first: int, last: int) -> list[int]:
        """The places of the batches `first` to `last`, which must be durable and in the log."""
        found: list[int] = []
        with self._lock:
            while first <= last:
                segment = self._segments[bisect_right(self._segments, first, key=_first_index) - 1]
                at = first - segment.first_index
                upto = min(len(segment.epochs), last + 1 - segment.first_index)
                assert 0 <= at < upto, f"batch {first} is not in the log of {self._folder}"
                base = bodies.place_of(segment.number, 0)
                found += [base + start for start in segment.starts[at:upto]]
                first = segment.first_index + upto
        return found

    def span(self, first: int, last: int, max_bytes: int) -> Span | None:
        """Durable batches of one segment from `first` on: at least one, otherwise at most `max_bytes`.

        None when `first` is not durable yet. LookupError when it has left the log.
        """
        with self._lock:
            at = bisect_right(self._segments, first, key=_first_index) - 1
            if at < 0:
                raise LookupError(f"batch {first} is before {self.first_index}, the first that is kept in {self._folder}")
            segment = self._segments[at]
            if first > segment.last.index:
                return None
            return Span(segment.path, segment.span(first, last, max_bytes), self.rewrites)

    def files_at(self, index: int, alive: Iterable[int]) -> LogFiles:
        """The files of the log that a checkpoint of this index lists. `alive` are the numbers of the files with live bodies."""
        with self._lock:
            at = max(0, bisect_right(self._segments, index + 1, key=_first_index) - 1)
            newest = self._segments[at]
            end = newest.starts[min(index + 1 - newest.first_index, len(newest.epochs))]
            used = {number: body.file for number, body in self._bodies.items()}
            for segment in self._segments[: at + 1]:
                in_use = end if segment is newest else segment.end
                used[segment.number] = FileInUse(segment.number, self.origin, in_use)
            tail = bodies.place_of(newest.number, end)
            return LogFiles(self.origin, self._next_number, tail, tuple(used[number] for number in sorted(alive)))

    # ---- files come and go

    def take_number(self) -> int:
        """A new file number, which was never used in this log."""
        with self._lock:
            self._next_number += 1
            return self._next_number - 1

    def compacted(self, file: FileInUse) -> None:
        """Add this file, which a compaction has made."""
        with self._lock:
            self._bodies[file.number] = Body(self._folder / file.name, file, file.used)
            self._fresh.add(file.number)

    def listed(self, fresh: set[int], checkpoint: Checkpoint) -> None:
        """This checkpoint is now the newest. The files `fresh` existed when it began: they stay only if it lists them."""
        self.checkpoint = checkpoint
        self._fresh -= fresh

    def pin(self, numbers: list[int]) -> list[Path]:
        """Keep these files until they are unpinned. Returns their paths."""
        with self._lock:
            self._pins.update(numbers)
            return [path for path in map(self.path_of, numbers) if path is not None]

    def unpin(self, numbers: list[int]) -> None:
        """End one `pin` of these files."""
        with self._lock:
            self._pins.subtract(numbers)

    def release(self, below_index: int) -> Dropped:
        """Remove complete segments below `below_index` from the log, but only those that the checkpoint covers. The ones that the
        checkpoint lists stay as body files.
        """
        checkpoint = self.checkpoint
        below = min(below_index, checkpoint.index + 1 if checkpoint else 0)
        listed = {file.number for file in checkpoint.files.in_use} if checkpoint else set()
        with self._lock:
            n = bisect_right(self._segments, below, key=_first_index) - 1
            gone = self._segments[: max(n, 0)]
            del self._segments[: len(gone)]
            for segment in gone:
                file = FileInUse(segment.number, self.origin, segment.end)
                self._bodies[segment.number] = Body(segment.path, file, segment.size)
            kept = listed | self._fresh
            dropped = [number for number in self._bodies if number not in kept and not self._pins[number]]
            paths = [self._bodies.pop(number).path for number in dropped]
            in_use = {body.path for body in self._bodies.values()}
            index = checkpoint.index if checkpoint else -1
            paths += [path for of, path in self._unwanted if of < index and path not in in_use]
            self._unwanted = [(of, path) for of, path in self._unwanted if of >= index]
            return Dropped(gone, dropped, paths)

    def leave(self, received: Checkpoint) -> None:
        """This checkpoint was received completely, but will not be installed. Its files are deleted when a newer checkpoint is
        durable."""
        with self._lock:
            self._unwanted += [(received.index, self._folder / file.name) for file in received.files.in_use]

    def install(self, received: Checkpoint | None) -> None:
        """A snapshot will replace the log: from now on, places are those of the snapshot's checkpoint."""
        with self._lock:
            self._bodies.clear()
            self._fresh.clear()
            self._unwanted.clear()
            if received is not None:
                self.checkpoint = received
                self._next_number = max(self._next_number, received.files.next_number)
                for file in received.files.in_use:
                    self._bodies[file.number] = Body(self._folder / file.name, file, file.used)

    # ---- the writer's changes

    def written(self, batches: list[tuple[int, int]]) -> None:
        """These batches, each as (bytes, epoch), were written and synced at the end of the newest segment."""
        with self._lock:
            newest = self._segments[-1]
            for nbytes, epoch in batches:
                newest.add(nbytes, epoch)

    def roll(self, fresh: Segment) -> Segment | None:
        """Continue in this segment. Returns the previous one if it was empty, because the new one replaces it."""
        with self._lock:
            replaced = self._segments.pop() if self._segments[-1].end == FIRST_BATCH else None
            self._segments.append(fresh)
            return replaced

    def truncate(self, from_index: int) -> tuple[Segment, int, list[Segment]]:
        """Forget the batches from this index on. Returns the segment that is the newest now, its previous end, and the dropped
        segments."""
        with self._lock:
            self.rewrites += 1
            n = max(1, bisect_right(self._segments, from_index, key=_first_index))
            dropped = self._segments[n:]
            del self._segments[n:]
            newest = self._segments[-1]
            dirty_end = newest.end
            newest.shorten(min(len(newest.epochs), max(0, from_index - newest.first_index)))
            return newest, dirty_end, dropped

    def rewrite(self) -> list[Segment]:
        """The whole log will be replaced. Returns its segments."""
        with self._lock:
            self.rewrites += 1
            return list(self._segments)

    def begin_anew(self, fresh: Segment, checkpoint: Checkpoint | None) -> set[Path]:
        """The log now consists of this segment, after that checkpoint. Returns the paths of the body files that stay."""
        with self._lock:
            self._segments[:] = [fresh]
            self.checkpoint = checkpoint
            return {body.path for body in self._bodies.values()}

    def close(self) -> list[Segment]:
        """Returns the segments, which the caller closes."""
        return list(self._segments)


def _first_index(segment: Segment) -> int:
    return segment.first_index
