"""The journal: one log's batches on disk, appended in groups by one writer thread.

Life of a batch here: `append` hands it over in the reactor thread; the writer takes all that waits, writes it with as few
calls as possible, syncs **once**, and calls back in the reactor thread: now it may be acknowledged. While one group is being
synced the next one gathers, so the busier the log, the fewer syncs a batch costs. Later `read` finds it by its index, until a
checkpoint covers it and its whole segment leaves the log. What it holds is found by its place (`places`, `read_spans`) for as
long as the newest checkpoint lists its file (see `bodies`).

Invariants: appends, truncations and resets happen in the order in which they were asked for; nothing is reported durable
before the sync that covers it and all before it has returned, nor, even if that report is on its way already, after it was to be
dropped; what `read` gives has been durable and has passed its checksum; a file is deleted only when a durable checkpoint does
without it and nobody has asked to keep it.
After a failed sync nothing is written any more: the kernel may have dropped the pages and will report the next sync as good
(Rebello et al., "Can Applications Recover from fsync Failures?", ATC '20), so only a restart, which reads what is really
there, can go on.

A full disk is no such failure: nothing of the group counts, and the same bytes are written to the same place until there is room.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, assert_never

from broker.core.queues.blocks import LiveRun
from broker.core.records import BadBatch, parse_header, verify
from broker.disk import bodies, compaction, hard_state, recovery, segments
from broker.disk import checkpoint as checkpoints
from broker.disk.bodies import BodyWriter, FileInUse, Readers, Unreadable
from broker.disk.checkpoint import Checkpoint, LogFiles
from broker.disk.compaction import Compacted, GivenUp, Pace
from broker.disk.durable import StorageError, opened, refused, remove_durably, replace_durably, seal_json, sync_or_stop
from broker.disk.files import REAL_DISK, Disk, Space
from broker.disk.hard_state import HardState
from broker.disk.preparation import Preparation
from broker.disk.recovery import Body, Recovered
from broker.disk.segments import FIRST_BATCH, Entry, Position, Segment
from broker.disk.threads import REAL_THREADS, Thread, Threads
from broker.disk.transfer import Source

__all__ = ["Entry", "Figures", "Journal", "Position", "Recovered", "Released"]

SEGMENT_BYTES = 64 * 1024 * 1024
"""Beside twice what is alive, a log takes two of these at most: what is written now, what is prepared, what the next checkpoint
will cover."""
FILE_BYTES = SEGMENT_BYTES // 4
"""A segment's file at its full size, so that several fit into that."""
_IOV_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
_IDLE_S = 1.0
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0
_T = TypeVar("_T")

Reactor = Callable[[Callable[[], None]], None]
OnDurable = Callable[[int, int, float], None]
OnError = Callable[[str, bool], None]


class Released(LookupError):
    """These batches are before the log's first segment, or were dropped during the read: the peer needs the checkpoint."""


@dataclass(frozen=True, slots=True)
class Figures:
    """For metrics and `$management`."""

    last_sync_s: float
    bytes_written: int
    batches_written: int
    syncs: int
    waiting_bytes: int
    segments: int
    body_files: int
    bytes_on_disk: int
    """Of segments (the one that is prepared, too), body files and the checkpoint."""
    first_index: int
    last_index: int
    checkpoint_index: int


@dataclass(slots=True)
class _Append:
    batches: list[bytes]
    first_index: int
    last: Position
    """Of those that are to be reported: the reactor thread's."""
    on_durable: OnDurable


@dataclass(frozen=True, slots=True)
class _Truncate:
    from_index: int
    done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Reset:
    before: Position
    listed: bool
    """Whether it is known which files the received checkpoint lists."""
    done: Callable[[], None] | None


class _Stopped(Exception):
    """The journal is being closed; what waits is given up."""


class Journal:
    """One log on disk. All methods are for the reactor thread, but `read`, which any thread may call.

    Shared between threads and guarded by `_lock`: the jobs that wait, and which batches the segments hold. The segments' ends and
    files are the writer's alone.
    """

    def __init__(
        self,
        folder: Path,
        kept: list[Segment],
        found: Recovered,
        *,
        origin: int,
        call_in_reactor: Reactor,
        on_error: OnError,
        segment_bytes: int,
        disk: Disk,
        threads: Threads,
    ) -> None:
        """For `open` alone."""
        self.disk = disk
        self._folder = folder
        self._segments = kept
        self._checkpoint = found.checkpoint
        self._origin = origin
        self._next_number = found.next_number
        self._bodies = found.bodies
        self._pins: Counter[int] = Counter()
        self._fresh: set[int] = set()
        """What compactions made, and no checkpoint that began after it lists, or would."""
        self._compacting: Thread | None = None
        self._resets = 0
        self._call_in_reactor = call_in_reactor
        self._on_error = on_error
        self._segment_bytes = segment_bytes
        self._threads = threads
        self._lock = threads.condition()
        self._jobs: deque[_Append | _Truncate | _Reset] = deque()
        self._waiting_bytes = 0
        self._next_index = kept[-1].last.index + 1
        self._unreported: deque[_Append] = deque()
        """In order. The reactor thread's."""
        self._rewrites = 0
        self._last_sync_s = 0.0
        self._bytes_written = self._batches_written = self._syncs = 0
        self._failed = False
        self._closing = threads.event()
        self._checkpointing: Thread | None = None
        self._preparation = Preparation(folder, disk, threads)
        self._readers = Readers(disk, threads, self._path_of)
        self._writer = threads.start(f"write {folder.name}", self._run)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        call_in_reactor: Reactor,
        on_error: OnError,
        segment_bytes: int = FILE_BYTES,
        disk: Disk = REAL_DISK,
        threads: Threads = REAL_THREADS,
        origin: int = 0,
    ) -> tuple[Journal, Recovered]:
        """Recover the log in `folder` (made if missing) and start its threads. Blocks while it reads. DamagedStore, StorageError.

        `origin`, 64 bits, says whose files it writes, and is like no other store's.
        `call_in_reactor(f)` has f called in the reactor thread, in the order of these calls. `on_error(text, fatal)` is
        called there too: not fatal, the disk is full, and the next `on_durable` says that this is over; fatal, the broker
        must stop.
        """
        found, kept = recovery.recover(folder, segment_bytes, disk, origin)
        journal = cls(
            folder,
            kept,
            found,
            origin=origin,
            call_in_reactor=call_in_reactor,
            on_error=on_error,
            segment_bytes=segment_bytes,
            disk=disk,
            threads=threads,
        )
        return journal, found

    # --- In the reactor thread -------------------------------------------------------------------------------------------

    @property
    def figures(self) -> Figures:
        """As of now; cheap."""
        with self._lock:
            return Figures(
                last_sync_s=self._last_sync_s,
                bytes_written=self._bytes_written,
                batches_written=self._batches_written,
                syncs=self._syncs,
                waiting_bytes=self._waiting_bytes,
                segments=len(self._segments),
                body_files=len(self._bodies),
                bytes_on_disk=sum(segment.size for segment in self._segments)
                + sum(body.nbytes for body in self._bodies.values())
                + self._preparation.nbytes
                + (self._checkpoint.nbytes if self._checkpoint else 0),
                first_index=self._segments[0].first_index,
                last_index=self._segments[-1].last.index,
                checkpoint_index=self._checkpoint.index if self._checkpoint else 0,
            )

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, to be read from or sent to a peer."""
        return self._checkpoint

    def append(self, batches: list[bytes], on_durable: OnDurable) -> None:
        """Store these sealed batches, next in order. The list is the journal's from here on.

        `on_durable(last_index, last_epoch, sync_seconds)` is called in the reactor thread once they are synced; it is never
        called when the disk has failed, or stays full until `close`, nor for what is to be dropped by then. How much waits is for
        the caller to bound (`figures.waiting_bytes`).
        """
        first = parse_header(batches[0])
        last = parse_header(batches[-1]) if len(batches) > 1 else first
        assert first.index == self._next_index, f"batch {first.index} appended where {self._next_index} comes next"
        assert last.index == first.index + len(batches) - 1, "batches are appended without a gap"
        self._next_index = last.index + 1
        job = _Append(batches, first.index, Position(last.epoch, last.index), on_durable)
        self._unreported.append(job)
        with self._lock:
            self._waiting_bytes += sum(map(len, batches))
            self._add_job(job)

    def truncate(self, from_index: int, done: Callable[[], None]) -> None:
        """Drop the batches from `from_index` on, in order with appends (Raft §5.3: conflicting entries).

        `done` in the reactor thread.
        """
        assert from_index <= self._next_index, f"truncating at {from_index} a log that ends before {self._next_index}"
        self._next_index = from_index
        while self._unreported and (job := self._unreported[-1]).last.index >= from_index:
            if (kept := from_index - job.first_index) > 0:
                job.last = Position(parse_header(job.batches[kept - 1]).epoch, from_index - 1)
                break
            self._unreported.pop()
        with self._lock:
            self._add_job(_Truncate(from_index, done))

    def reset(self, index: int, epoch: int, done: Callable[[], None] | None = None, received: Checkpoint | None = None) -> None:
        """Drop the whole log and go on after `index` of `epoch`, whose checkpoint a `Receiver` has made durable (Raft §7).

        From here on, places are those of the `received` checkpoint. A crash before this is carried out leaves the checkpoint with
        a log that does not fit it: the start does the same then.
        """
        self._next_index = index + 1
        self._unreported.clear()
        self._resets += 1
        with self._lock:
            self._readers.forget()
            self._bodies.clear()
            self._fresh.clear()
            if received is not None:
                self._checkpoint = received
                self._next_number = max(self._next_number, received.files.next_number)
                for file in received.files.in_use:
                    self._bodies[file.number] = Body(self._folder / file.name, file, file.used)
            self._add_job(_Reset(Position(epoch, index), received is not None, done))

    def save_hard_state(self, epoch: int, voted_for: str | None) -> None:
        """Durable when it returns, on a full disk too. StorageError: do not send what depends on it."""
        self._save(hard_state.NAME, lambda: hard_state.save(self.disk, self._folder, HardState(epoch, voted_for)))

    def floor_passed(self) -> None:
        """The store is level with a primary: note, synced, that it is neither blank nor below a floor any more. StorageError."""
        self._save(recovery.WHOLE, lambda: replace_durably(self.disk, self._folder / recovery.WHOLE, b""))
        remove_durably(self.disk, self._folder / recovery.FLOOR)

    def damaged(self, place: int, why: str) -> None:
        """A body that was acknowledged has rotted: note, synced, that this store has to come from the primary again.

        The next start begins with an empty log, and a floor that keeps it from voting for less than it had. StorageError.
        """
        path = self._path_of(bodies.file_of(place))
        last = self._segments[-1].last
        note = {"epoch": last.epoch, "index": last.index, "file": "" if path is None else path.name, "why": why}
        self._save(recovery.DAMAGED, lambda: replace_durably(self.disk, self._folder / recovery.DAMAGED, seal_json(note)))

    def write_checkpoint(
        self,
        index: int,
        epoch: int,
        members: dict[str, Any],
        batches: Iterable[bytes],
        done: Callable[[Checkpoint | None, str], None],
        keep_from: int | None = None,
        alive: Iterable[int] = (),
    ) -> None:
        """Write a checkpoint in a thread of its own, then drop older ones, have segments below `keep_from` (default: index + 1)
        leave the log, and delete files without bodies that are alive.

        `alive` are the numbers of the files that places in `batches` lie in. `batches` is consumed in that thread.
        `done(checkpoint, "")` or `done(None, why_not)` in the reactor thread. One at a time.
        """
        assert self._checkpointing is None, "a checkpoint is being written"
        files, resets, fresh = self._files_at(index, alive), self._resets, set(self._fresh)

        def in_thread() -> None:
            found, why_not = self._try_checkpoint(index, epoch, members, batches, files)
            self._call_in_reactor(lambda: finished(found, why_not))

        def finished(found: Checkpoint | None, why_not: str) -> None:
            self._checkpointing = None
            if resets != self._resets:
                found, why_not = None, f"the log in {self._folder} was replaced by a snapshot meanwhile"
            if found is not None:
                self._checkpoint = found
                self._fresh -= fresh
                self.release(index + 1 if keep_from is None else min(keep_from, index + 1))
            done(found, why_not)

        self._checkpointing = self._threads.start(f"checkpoint {self._folder.name}", in_thread)

    def _files_at(self, index: int, alive: Iterable[int]) -> LogFiles:
        """What a checkpoint of this index says of the log's files."""
        with self._lock:
            at = max(0, bisect_right(self._segments, index + 1, key=_first_index) - 1)
            newest = self._segments[at]
            end = newest.starts[min(index + 1 - newest.first_index, len(newest.epochs))]
            used = {number: body.file for number, body in self._bodies.items()}
            for segment in self._segments[: at + 1]:
                in_use = end if segment is newest else segment.end
                used[segment.number] = FileInUse(segment.number, self._origin, in_use)
            tail = bodies.place_of(newest.number, end)
            return LogFiles(self._origin, self._next_number, tail, tuple(used[number] for number in sorted(alive)))

    def release(self, below_index: int) -> None:
        """Have whole segments below `below_index` leave the log; only what the checkpoint covers. Those that the checkpoint lists
        stay as files with bodies; the others, and body files that it does not list, are deleted in the background.
        """
        below = min(below_index, self._checkpoint.index + 1 if self._checkpoint else 0)
        listed = {file.number for file in self._checkpoint.files.in_use} if self._checkpoint else set()
        with self._lock:
            n = bisect_right(self._segments, below, key=_first_index) - 1
            gone = self._segments[: max(n, 0)]
            del self._segments[: len(gone)]
            for segment in gone:
                file = FileInUse(segment.number, self._origin, segment.end)
                self._bodies[segment.number] = Body(segment.path, file, segment.size)
            kept = listed | self._fresh
            dropped = [number for number in self._bodies if number not in kept and not self._pins[number]]
            paths = [self._bodies.pop(number).path for number in dropped]
        for segment in gone:
            segment.close(self.disk)
        self._readers.forget(dropped)
        self._preparation.remove(paths)

    @property
    def fresh(self) -> set[int]:
        """The files that compactions have made and that no checkpoint lists yet."""
        return set(self._fresh)

    def full_segments(self, index: int) -> list[int]:
        """The file numbers of the segments that a checkpoint of this index would cover whole."""
        with self._lock:
            n = bisect_right(self._segments, index + 1, key=_first_index) - 1
            return [segment.number for segment in self._segments[: max(n, 0)]]

    def body_files(self) -> list[Body]:
        """The files with bodies that are no part of the log, in order of their numbers."""
        with self._lock:
            return [body for _, body in sorted(self._bodies.items())]

    def is_pinned(self, number: int) -> bool:
        """Whether this file is kept for a snapshot that is being sent, whatever checkpoints list."""
        return bool(self._pins[number])

    @property
    def disk_bytes(self) -> int:
        """What the log takes: segments, the one that is prepared, files with bodies, and the checkpoint."""
        return self.figures.bytes_on_disk

    @property
    def file_bytes(self) -> int:
        """The full size of a segment's file."""
        return self._segment_bytes

    def free(self) -> Space:
        """What its file system has room for. OSError."""
        return self.disk.free(self._folder)

    def compact(
        self,
        runs: Iterable[tuple[int, LiveRun]],
        bytes_per_s: int,
        done: Callable[[Compacted | None, Unreadable | str], None],
    ) -> None:
        """Copy runs, each with its queue's number, into a new file in a thread of its own: see `compaction`.

        `done(compacted, "")` in the reactor thread, where its moves are to be told to the queues and then a checkpoint written;
        or `done(None, why_not)`, Unreadable when bodies have rotted. One at a time.
        """
        assert self._compacting is None, "a compaction is under way"
        number, resets = self._take_number(), self._resets

        def in_thread() -> None:
            found, why_not = self._try_compaction(number, runs, bytes_per_s)
            self._call_in_reactor(lambda: finished(found, why_not))

        def finished(found: Compacted | None, why_not: Unreadable | str) -> None:
            self._compacting = None
            if found is not None and resets != self._resets:
                self._preparation.remove([self._folder / found.file.name])
                found, why_not = None, f"the log in {self._folder} was replaced by a snapshot meanwhile"
            if found is not None:
                with self._lock:
                    self._bodies[number] = Body(self._folder / found.file.name, found.file, found.file.used)
                    self._fresh.add(number)
            done(found, why_not)

        self._compacting = self._threads.start(f"compact {self._folder.name}", in_thread)

    def source(self) -> Source:
        """The newest checkpoint with its files, to be sent; these are kept until it is closed. OSError when it is gone."""
        found = self._checkpoint
        assert found is not None, "there is no checkpoint to be sent"
        numbers = [file.number for file in found.files.in_use]
        with self._lock:
            paths = [self._path_of(number) for number in numbers]
            self._pins.update(numbers)

        def let_go() -> None:
            with self._lock:
                self._pins.subtract(numbers)
            self.release(0)

        try:
            return Source(found, [path for path in paths if path is not None], let_go, disk=self.disk)
        except BaseException:
            let_go()
            raise

    def places(self, first: int, last: int) -> list[int]:
        """Where the batches `first` to `last` lie; they must be durable, and be in the log still."""
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

    def close(self) -> None:
        """Write and sync what waits (unless the disk refuses), then stop the threads. Blocks."""
        with self._lock:
            self._closing.set()
            self._lock.notify()
        self._writer.join()
        if self._checkpointing is not None:
            self._checkpointing.join()
        if self._compacting is not None:
            self._compacting.join()
        self._preparation.close()
        self._readers.forget()
        for segment in self._segments:
            segment.close(self.disk)

    # --- In any thread ---------------------------------------------------------------------------------------------------

    def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        """Durable batches from `first` on, at most to `last`: at least one, otherwise at most `max_bytes` in all.

        [] when `first` is not durable yet. Released when it is gone; BadBatch, which names segment and offset, when it has
        rotted.
        """
        found: list[bytes] = []
        while first <= last:
            with self._lock:
                at = bisect_right(self._segments, first, key=_first_index) - 1
                if at < 0:
                    raise Released(
                        f"batch {first} is before {self._segments[0].first_index}, the first that is kept in {self._folder}"
                    )
                segment = self._segments[at]
                if first > segment.last.index:
                    break
                path, bounds, rewrites = segment.path, segment.span(first, last, max_bytes), self._rewrites
            nbytes = bounds[-1] - bounds[0]
            if found and nbytes > max_bytes:
                break
            try:
                found += self._read_verified(path, bounds, first)
            except (FileNotFoundError, BadBatch) as error:
                with self._lock:
                    if rewrites == self._rewrites and isinstance(error, BadBatch):
                        raise
                raise Released(f"batch {first} was dropped while it was read") from error
            first += len(bounds) - 1
            max_bytes -= nbytes
        return found

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes at these places, (place, length) each, as they are: whoever has their checksum verifies them.

        Unreadable when the disk refuses, or nothing is there any more.
        """
        return self._readers.read(spans)

    def _path_of(self, number: int) -> Path | None:
        with self._lock:
            body = self._bodies.get(number)
            if body is not None:
                return body.path
            return next((segment.path for segment in reversed(self._segments) if segment.number == number), None)

    def _take_number(self) -> int:
        with self._lock:
            self._next_number += 1
            return self._next_number - 1

    def _read_verified(self, path: Path, bounds: list[int], first: int) -> list[bytes]:
        with opened(self.disk, path) as fd:  # of its own, so that nothing that the writer closes can be read by accident
            try:
                data = self.disk.read(fd, bounds[-1] - bounds[0], bounds[0])
            except OSError as error:
                raise BadBatch(f"segment {path} cannot be read at byte {bounds[0]}: {error.strerror}") from error
        batches = []
        for index, (start, end) in enumerate(pairwise(bounds), first):
            batch = data[start - bounds[0] : end - bounds[0]]
            if len(batch) < end - start:
                raise BadBatch(f"segment {path} ends before byte {end}, within batch {index}, which starts at byte {start}")
            try:
                found = verify(batch).index
            except BadBatch as error:
                raise BadBatch(f"segment {path} is damaged at byte {start}, in batch {index}: {error}") from None
            if found != index:
                raise BadBatch(f"segment {path} has batch {found} at byte {start}, where batch {index} was written")
            batches.append(batch)
        return batches

    # --- In the writer thread --------------------------------------------------------------------------------------------

    def _add_job(self, job: _Append | _Truncate | _Reset) -> None:
        if not self._failed:
            self._jobs.append(job)
            self._lock.notify()

    def _run(self) -> None:
        try:
            while (jobs := self._next_jobs()) is not None:
                match jobs[0]:
                    case _Append():
                        self._write_group([job for job in jobs if isinstance(job, _Append)])
                    case _Truncate(from_index, done):
                        self._truncate(from_index)
                        self._call_in_reactor(done)
                    case _Reset(before, listed, reset_done):
                        self._until_there_is_room(partial(self._reset, before, listed))
                        if reset_done is not None:
                            self._call_in_reactor(reset_done)
                    case other:
                        assert_never(other)
            self._until_there_is_room(self._mark_all)
        except _Stopped:
            pass
        except OSError as error:
            self._fail(str(refused(error, "write the log in", self._folder)))
        except StorageError as error:
            self._fail(str(error))
        except BaseException as error:
            self._fail(f"the writer of the log in {self._folder} has stopped: {error!r}")
            raise

    def _next_jobs(self) -> list[_Append | _Truncate | _Reset] | None:
        """All the appends that wait, or one other job; None when the journal closes.

        Notes, when at rest, that everything is synced.
        """
        with self._lock:
            while not self._jobs and not self._closing.is_set():
                newest = self._segments[-1]
                behind = newest.mark.end < newest.end
                if not self._lock.wait(_IDLE_S if behind else None) and behind:
                    break
            jobs: list[_Append | _Truncate | _Reset] = []
            while self._jobs and (not jobs or (isinstance(jobs[-1], _Append) and isinstance(self._jobs[0], _Append))):
                jobs.append(self._jobs.popleft())
        if jobs:
            return jobs
        if self._closing.is_set():
            return None
        self._until_there_is_room(self._mark_all)
        return self._next_jobs()

    def _mark_all(self) -> None:
        newest = self._segments[-1]
        if newest.mark.end < newest.end:
            newest.write_mark(self.disk, newest.end, newest.last)
            sync_or_stop(self.disk, newest.fd, newest.path)

    def _write_group(self, jobs: list[_Append]) -> None:
        """Store all batches of these appends; one sync for each segment that they go to."""
        rest = [batch for job in jobs for batch in job.batches]
        sync_s = 0.0
        while rest:
            n, seconds = self._until_there_is_room(partial(self._write_some, rest))
            sync_s += seconds
            del rest[:n]
        with self._lock:
            self._last_sync_s = sync_s

        def call_back() -> None:
            for job in jobs:
                if self._unreported and self._unreported[0] is job:
                    self._unreported.popleft()
                    job.on_durable(job.last.index, job.last.epoch, sync_s)

        self._call_in_reactor(call_back)

    def _until_there_is_room(self, write: Callable[[], _T]) -> _T:
        """Call `write` again and again while the disk is full: it must be good for repetition.

        _Stopped when the journal closes.
        """
        delay_s = 0.0
        while True:
            try:
                return write()
            except OSError as error:
                refusal = refused(error, "write the log in", self._folder)
            except StorageError as error:
                refusal = error
            if refusal.fatal:
                raise refusal
            if not delay_s:
                self._tell(str(refusal), fatal=False)
            delay_s = min(max(2 * delay_s, _FIRST_RETRY_S), _LAST_RETRY_S)
            if self._closing.wait(delay_s):
                raise _Stopped

    def _write_some(self, batches: list[bytes]) -> tuple[int, float]:
        """Write and sync as many as fit into one segment; returns how many, and how long the sync took.

        Only then do they count: before, a segment's `end` has not moved, and trying again writes over the same bytes.
        """
        segment = self._segments[-1]
        if segment.room < len(batches[0]):
            segment = self._roll(len(batches[0]))
        n, nbytes = _fitting(batches, segment.room)
        if segment.mark.end < segment.end:
            segment.write_mark(self.disk, segment.end, segment.last)
        self._write_at(segment, batches[:n])
        began = self._threads.seconds()
        sync_or_stop(self.disk, segment.fd, segment.path)
        seconds = self._threads.seconds() - began
        with self._lock:
            for batch in batches[:n]:
                segment.add(len(batch), parse_header(batch).epoch)
            self._waiting_bytes -= nbytes
            self._bytes_written += nbytes
            self._batches_written += n
            self._syncs += 1
        if segment.end * 4 > segment.size:
            self._preparation.want(segments.size_after(segment.size, self._segment_bytes))
        return n, seconds

    def _write_at(self, segment: Segment, batches: list[bytes]) -> None:
        """Write batches end to end at the segment's end, in calls of at most IOV_MAX buffers, whatever each call accepts."""
        offset = segment.end
        for at in range(0, len(batches), _IOV_MAX):
            buffers = batches[at : at + _IOV_MAX]
            while buffers:
                written = self.disk.write(segment.fd, buffers, offset)
                offset += written
                while buffers and written >= len(buffers[0]):
                    written -= len(buffers.pop(0))
                if buffers and written:
                    buffers[0] = buffers[0][written:]

    def _roll(self, nbytes: int) -> Segment:
        """Go on in a new segment, with room for a batch of this size. Everything in the one before has been synced.

        One that is empty, but too small, is replaced: the new one is renamed over it. But one that only looks empty, because a
        checkpoint covers all that is in it, stays for the bodies.
        """
        full = self._segments[-1]
        usual = segments.size_after(full.size, self._segment_bytes)
        size = max(usual, FIRST_BATCH + nbytes)
        fresh = segments.create(self._folder, self._take_number(), full.last, size, self.disk, self._preparation.take(size))
        with self._lock:
            if full.end == FIRST_BATCH:
                self._segments.pop().close(self.disk)
            self._segments.append(fresh)
        return fresh

    def _truncate(self, from_index: int) -> None:
        """Whole segments go first, the newest before the others: what a crash leaves is a shorter log, never one with a hole."""
        with self._lock:
            self._rewrites += 1
            n = max(1, bisect_right(self._segments, from_index, key=_first_index))
            dropped = self._segments[n:]
            del self._segments[n:]
            newest = self._segments[-1]
            dirty_end = newest.end
            newest.shorten(min(len(newest.epochs), max(0, from_index - newest.first_index)))

        def on_disk() -> None:
            for segment in reversed(dropped):
                segment.close(self.disk)
                remove_durably(self.disk, segment.path)
            newest.clear(self.disk, dirty_end)

        self._until_there_is_room(on_disk)

    def _reset(self, before: Position, listed: bool) -> None:
        with self._lock:
            self._rewrites += 1
            dropped = list(self._segments)
        size = segments.size_after(0, self._segment_bytes)
        fresh = recovery.reset(dropped, self._folder, self._take_number(), before, size, self.disk)
        newest = self._checkpoint if listed else Checkpoint.newest(self._folder, disk=self.disk)
        if newest is not None:
            checkpoints.remove_older(newest, disk=self.disk)
        with self._lock:
            self._segments[:] = [fresh]
            self._checkpoint = newest
            needed = {body.path for body in self._bodies.values()}
        for file in bodies.listed(self.disk, self._folder):
            if self._folder / file.name not in needed:
                self.disk.unlink(self._folder / file.name)
        self.disk.sync_folder(self._folder)

    def _fail(self, text: str) -> None:
        """Write nothing any more."""
        with self._lock:
            self._failed = True
            self._jobs.clear()
        self._tell(text, fatal=True)

    def _tell(self, text: str, *, fatal: bool) -> None:
        self._call_in_reactor(lambda: self._on_error(text, fatal))

    # --- In the checkpoint's thread, and small files ---------------------------------------------------------------------

    def _try_checkpoint(
        self, index: int, epoch: int, members: dict[str, Any], batches: Iterable[bytes], files: LogFiles
    ) -> tuple[Checkpoint | None, str]:
        try:
            found = checkpoints.write(self._folder, index, epoch, members, self._unless_closing(batches), files, disk=self.disk)
            checkpoints.remove_older(found, disk=self.disk)
        except (StorageError, OSError, _Stopped) as error:
            return None, str(error)
        except Exception as error:  # in `batches`: the caller's, who must hear of it
            return None, f"the checkpoint of batch {index} in {self._folder} could not be made: {error!r}"
        return found, ""

    def _try_compaction(
        self, number: int, runs: Iterable[tuple[int, LiveRun]], bytes_per_s: int
    ) -> tuple[Compacted | None, Unreadable | str]:
        try:
            writer = BodyWriter(self.disk, self._folder, number, self._origin)
            pace = Pace(bytes_per_s, self._threads.seconds, self._closing)
            return compaction.copy(runs, self.read_spans, writer, pace), ""
        except Unreadable as error:
            return None, error
        except GivenUp:
            return None, f"a compaction in {self._folder} was given up: the journal closes"
        except (StorageError, OSError) as error:
            return None, str(error)

    def _unless_closing(self, batches: Iterable[bytes]) -> Iterator[bytes]:
        for batch in batches:
            if self._closing.is_set():
                raise _Stopped(f"the checkpoint in {self._folder} was given up: the journal closes")
            yield batch

    def _save(self, name: str, write: Callable[[], None]) -> None:
        if self._failed:
            raise StorageError(
                f"cannot write {self._folder / name}: the disk has failed before; the broker must stop", fatal=True
            )
        try:
            write()
        except StorageError as error:
            if error.fatal:
                with self._lock:
                    self._failed = True
                    self._jobs.clear()
            raise


def _first_index(segment: Segment) -> int:
    return segment.first_index


def _fitting(batches: list[bytes], room: int) -> tuple[int, int]:
    """How many batches fit into so many bytes, and their bytes."""
    nbytes = 0
    for n, batch in enumerate(batches):
        if nbytes + len(batch) > room:
            return n, nbytes
        nbytes += len(batch)
    return len(batches), nbytes
