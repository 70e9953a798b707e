"""The writer of a log: one thread that appends in groups, truncates and resets, in the order of the calls.

Life of a group: the thread takes all waiting batches, writes them with as few calls as possible, syncs **once**, and reports
them in the reactor thread. While one group is synced, the next one gathers, so a busier log needs fewer syncs for each batch.

Invariants: nothing is reported as durable before the sync that covers it and everything before it has returned, and nothing is
reported after a request to drop it, even if its report is already on its way. After a failed sync the writer writes nothing
more: the kernel may have dropped the pages and will report the next sync as good (Rebello et al., "Can Applications Recover from
fsync Failures?", ATC '20). Only a restart, which reads what is really on the disk, can continue.

A full disk is not such a failure: no batch of the group counts, and the same bytes are written to the same place until there is
space.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar, assert_never

from broker.core.records import parse_header
from broker.disk import bodies, recovery, segments
from broker.disk import checkpoint as checkpoints
from broker.disk.checkpoint import Checkpoint
from broker.disk.durable import StorageError, refused, remove_durably, sync_or_stop, unlink_if_there
from broker.disk.files import Disk
from broker.disk.holdings import Holdings
from broker.disk.preparation import Preparation
from broker.disk.segments import FIRST_BATCH, Position, Segment
from broker.disk.threads import Event, Threads

_IOV_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
_IDLE_S = 1.0
ZEROS_PAY_BELOW = 256 * 1024
"""Average bytes for each sync of a segment. Above it, writing zeros in advance costs more than it saves."""
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0
_T = TypeVar("_T")

Reactor = Callable[[Callable[[], None]], None]
OnDurable = Callable[[int, int, float], None]
OnError = Callable[[str, bool], None]


@dataclass(slots=True)
class _Append:
    batches: list[bytes]
    first_index: int
    last: Position
    """The last batch to report. Only the reactor thread uses it."""
    on_durable: OnDurable


@dataclass(frozen=True, slots=True)
class _Truncate:
    from_index: int
    done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Reset:
    before: Position
    listed: bool
    """Whether the files that the received checkpoint lists are known."""
    done: Callable[[], None] | None


class Stopped(Exception):
    """The journal is being closed, and the waiting work is dropped."""


class Written(NamedTuple):
    """Figures of what was written since the start, and the bytes that wait."""

    last_sync_s: float
    nbytes: int
    n_batches: int
    syncs: int
    waiting_bytes: int


class Writer:
    """See the module. All public methods are for the reactor thread. `closing` is set when the journal closes."""

    def __init__(
        self,
        folder: Path,
        holdings: Holdings,
        preparation: Preparation,
        *,
        segment_bytes: int,
        call_in_reactor: Reactor,
        on_error: OnError,
        closing: Event,
        disk: Disk,
        threads: Threads,
    ) -> None:
        self.disk = disk
        self.failed = False
        self._folder = folder
        self._holdings = holdings
        self._preparation = preparation
        self._segment_bytes = segment_bytes
        self._call_in_reactor = call_in_reactor
        self._on_error = on_error
        self._closing = closing
        self._threads = threads
        self._lock = threads.condition()
        self._jobs: deque[_Append | _Truncate | _Reset] = deque()
        self._next_index = holdings.newest.last.index + 1
        self._unreported: deque[_Append] = deque()
        """In order. Only the reactor thread uses it."""
        self._waiting_bytes = 0
        self._last_sync_s = 0.0
        self._bytes_written = self._batches_written = self._syncs = 0
        self._syncs_here = 0
        """Syncs of the newest segment since this start."""
        self._thread = threads.start(f"write {folder.name}", self._run)

    @property
    def written(self) -> Written:
        """The current figures."""
        with self._lock:
            return Written(self._last_sync_s, self._bytes_written, self._batches_written, self._syncs, self._waiting_bytes)

    def append(self, batches: list[bytes], on_durable: OnDurable) -> None:
        """See `Journal.append`."""
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
        """See `Journal.truncate`."""
        assert from_index <= self._next_index, f"truncating at {from_index} a log that ends before {self._next_index}"
        self._next_index = from_index
        while self._unreported and (job := self._unreported[-1]).last.index >= from_index:
            if (kept := from_index - job.first_index) > 0:
                job.last = Position(parse_header(job.batches[kept - 1]).epoch, from_index - 1)
                break
            self._unreported.pop()
        with self._lock:
            self._add_job(_Truncate(from_index, done))

    def reset(self, before: Position, *, listed: bool, done: Callable[[], None] | None) -> None:
        """Drop the whole log and continue after `before`. `listed`: whether the holdings are those of the new checkpoint."""
        self._next_index = before.index + 1
        self._unreported.clear()
        with self._lock:
            self._add_job(_Reset(before, listed, done))

    def give_up(self) -> None:
        """Stop writing for good."""
        with self._lock:
            self.failed = True
            self._jobs.clear()

    def wake(self) -> None:
        """The journal closes: write the waiting batches and end."""
        with self._lock:
            self._lock.notify()

    def join(self) -> None:
        """Return when the thread has ended."""
        self._thread.join()

    # --- Jobs, and the writer thread

    def _add_job(self, job: _Append | _Truncate | _Reset) -> None:
        if not self.failed:
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
        except Stopped:
            pass
        except OSError as error:
            self._fail(str(refused(error, "write the log in", self._folder)))
        except StorageError as error:
            self._fail(str(error))
        except BaseException as error:
            self._fail(f"the writer of the log in {self._folder} has stopped: {error!r}")
            raise

    def _next_jobs(self) -> list[_Append | _Truncate | _Reset] | None:
        """All waiting appends, or one other job; None when the journal closes.

        Writes the mark when no job has come for a second.
        """
        with self._lock:
            while not self._jobs and not self._closing.is_set():
                newest = self._holdings.newest
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
        newest = self._holdings.newest
        if newest.mark.end < newest.end:
            newest.write_mark(self.disk, newest.end, newest.last)
            sync_or_stop(self.disk, newest.fd, newest.path)

    def _write_group(self, jobs: list[_Append]) -> None:
        """Write all batches of these appends, with one sync for each segment that they are written to."""
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
        """Call `write`, and repeat it while the disk is full. It must be safe to repeat.

        Stopped when the journal closes.
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
                raise Stopped

    def _write_some(self, batches: list[bytes]) -> tuple[int, float]:
        """Write and sync as many batches as fit into one segment. Returns their number and the duration of the sync.

        The batches count only after the sync: the segment's `end` moves then, so a repetition before it overwrites the same
        bytes.
        """
        segment = self._holdings.newest
        if segment.room < len(batches[0]):
            segment = self._roll(len(batches[0]))
        n, nbytes = _fitting(batches, segment.room)
        if segment.mark.end < segment.end:
            segment.write_mark(self.disk, segment.end, segment.last)
        self._write_at(segment, batches[:n])
        began = self._threads.seconds()
        sync_or_stop(self.disk, segment.fd, segment.path)
        seconds = self._threads.seconds() - began
        self._holdings.written([(len(batch), parse_header(batch).epoch) for batch in batches[:n]])
        with self._lock:
            self._waiting_bytes -= nbytes
            self._bytes_written += nbytes
            self._batches_written += n
            self._syncs += 1
        self._syncs_here += 1
        if segment.end * 4 > segment.size and segment.end < ZEROS_PAY_BELOW * self._syncs_here:
            self._preparation.want(segments.size_after(segment.size, self._segment_bytes))
        return n, seconds

    def _write_at(self, segment: Segment, batches: list[bytes]) -> None:
        """Write batches without gaps at the segment's end, in calls of at most IOV_MAX buffers, until all bytes are written."""
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
        """Continue in a new segment, with room for a batch of this size. Everything in the previous one is synced.

        A previous segment that is empty but too small is replaced: the new one is renamed over it. A segment with batches that a
        checkpoint covers is not empty, and stays because of its bodies.
        """
        full = self._holdings.newest
        usual = segments.size_after(full.size, self._segment_bytes)
        size = max(usual, FIRST_BATCH + nbytes)
        number, prepared = self._holdings.take_number(), self._preparation.take(size)
        fresh = segments.create(self._folder, number, full.last, size, self.disk, prepared)
        self._syncs_here = 0
        if (replaced := self._holdings.roll(fresh)) is not None:
            replaced.close(self.disk)
        return fresh

    def _truncate(self, from_index: int) -> None:
        """Complete segments are deleted first, the newest before the others. So a crash leaves a shorter log, never one with a
        gap."""
        newest, dirty_end, dropped = self._holdings.truncate(from_index)

        def on_disk() -> None:
            for segment in reversed(dropped):
                segment.close(self.disk)
                remove_durably(self.disk, segment.path)
            newest.clear(self.disk, dirty_end)

        self._until_there_is_room(on_disk)

    def _reset(self, before: Position, listed: bool) -> None:
        dropped = self._holdings.rewrite()
        size = segments.size_after(0, self._segment_bytes)
        fresh = recovery.reset(dropped, self._folder, self._holdings.take_number(), before, size, self.disk)
        newest = self._holdings.checkpoint if listed else Checkpoint.newest(self._folder, disk=self.disk)
        if newest is not None:
            checkpoints.remove_older(newest, disk=self.disk)
        needed = self._holdings.begin_anew(fresh, newest)
        for file in bodies.listed(self.disk, self._folder):
            if self._folder / file.name not in needed:
                unlink_if_there(self.disk, self._folder / file.name)  # the preparation may be deleting it, too
        self.disk.sync_folder(self._folder)

    def _fail(self, text: str) -> None:
        self.give_up()
        self._tell(text, fatal=True)

    def _tell(self, text: str, *, fatal: bool) -> None:
        self._call_in_reactor(lambda: self._on_error(text, fatal))


def _fitting(batches: list[bytes], room: int) -> tuple[int, int]:
    """How many batches fit into `room` bytes, and the sum of their bytes."""
    nbytes = 0
    for n, batch in enumerate(batches):
        if nbytes + len(batch) > room:
            return n, nbytes
        nbytes += len(batch)
    return len(batches), nbytes
