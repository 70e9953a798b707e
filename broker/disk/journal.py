"""The journal: one log on disk. It appends and reads batches, and manages checkpoints, compactions and snapshots.

Life of a batch here: `append` passes it to the writer (`writer`), which reports when it is synced: then it may be acknowledged.
Later `read` finds it by its index, until a checkpoint covers it and its whole segment leaves the log. Its bodies are found by
their place (`places`, `read_spans`) as long as the newest checkpoint lists their file (see `bodies`). `holdings` knows the files
and their content.

Invariants: appends, truncations and resets happen in the order of the calls; batches returned by `read` are durable and have
passed their checksum; a file is deleted only when a durable checkpoint does not need it and no caller has asked to keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from broker.core.queues.blocks import LiveRun
from broker.core.records import BadBatch, verify
from broker.disk import bodies, compaction, hard_state, recovery
from broker.disk import checkpoint as checkpoints
from broker.disk.bodies import BodyWriter, Readers, Unreadable
from broker.disk.checkpoint import Checkpoint, LogFiles
from broker.disk.compaction import Compacted, GivenUp, Pace
from broker.disk.durable import StorageError, opened, remove_if_there, replace_durably, seal_json
from broker.disk.files import REAL_DISK, Disk, Space
from broker.disk.hard_state import HardState
from broker.disk.holdings import Holdings
from broker.disk.preparation import Preparation
from broker.disk.recovery import Alone, Body, Recovered
from broker.disk.segments import Entry, Position, Segment
from broker.disk.threads import REAL_THREADS, Thread, Threads
from broker.disk.transfer import Source
from broker.disk.writer import OnDurable, OnError, Reactor, Stopped, Writer

__all__ = ["Entry", "Figures", "Journal", "Position", "Recovered", "Released"]

SEGMENT_BYTES = 64 * 1024 * 1024
"""A log takes at most twice the live bytes, plus twice this: for the current segment, the prepared one, and the segments that the
next checkpoint will cover."""
FILE_BYTES = SEGMENT_BYTES // 4
"""The full size of a segment's file, so that several fit into SEGMENT_BYTES."""


class Released(LookupError):
    """These batches are before the log's first segment, or were dropped during the read. The peer needs the checkpoint."""


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
    """Bytes of the segments (also the prepared one), the body files and the checkpoint."""
    first_index: int
    last_index: int
    checkpoint_index: int


class Victims(NamedTuple):
    """The files of a compaction by number, and how often the log had been reset when their live runs began to be listed."""

    numbers: list[int]
    resets: int


class Journal:
    """One log on disk. All methods are for the reactor thread, except `read` and `read_spans`, which any thread may call."""

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
        """Only for `open`."""
        self.disk = disk
        self._folder = folder
        self._holdings = Holdings(
            folder, kept, found.bodies, found.checkpoint, origin=origin, next_number=found.next_number, threads=threads
        )
        self._compacting: Thread | None = None
        self._checkpointing: Thread | None = None
        self._resets = self._resetting = 0
        self._when_dropped: list[Callable[[], None]] = []
        self._call_in_reactor = call_in_reactor
        self._segment_bytes = segment_bytes
        self._threads = threads
        self._closing = threads.event()
        self._preparation = Preparation(folder, disk, threads)
        self._readers = Readers(disk, threads, self._holdings.path_of)
        self._writer = Writer(
            folder,
            self._holdings,
            self._preparation,
            segment_bytes=segment_bytes,
            call_in_reactor=call_in_reactor,
            on_error=on_error,
            closing=self._closing,
            disk=disk,
            threads=threads,
        )

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
        alone: Alone = False,
    ) -> tuple[Journal, Recovered]:
        """Recover the log in `folder` (created if missing) and start its threads. Blocks while it reads. DamagedStore,
        StorageError.

        `origin`, 64 bits, identifies the store that writes the files; no other store has the same. `alone`: whether no other
        broker has this log (`recovery`). `call_in_reactor(f)` calls f in the reactor thread, in the order of these calls.
        `on_error(text, fatal)` is also called there. If it is not fatal, the disk is full; the next `on_durable` means that it
        has space again. If it is fatal, the broker must stop.
        """
        found, kept = recovery.recover(folder, segment_bytes, disk, origin, alone=alone)
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
        """The current figures; cheap."""
        written, (n_segments, n_bodies, nbytes) = self._writer.written, self._holdings.counts()
        return Figures(
            last_sync_s=written.last_sync_s,
            bytes_written=written.nbytes,
            batches_written=written.n_batches,
            syncs=written.syncs,
            waiting_bytes=written.waiting_bytes,
            segments=n_segments,
            body_files=n_bodies,
            bytes_on_disk=nbytes + self._preparation.nbytes,
            first_index=self._holdings.first_index,
            last_index=self._holdings.newest.last.index,
            checkpoint_index=self.checkpoint.index if self.checkpoint else 0,
        )

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, to be read or sent to a peer."""
        return self._holdings.checkpoint

    def append(self, batches: list[bytes], on_durable: OnDurable) -> None:
        """Store these sealed batches, which are next in order. From now on the list belongs to the journal.

        `on_durable(last_index, last_epoch, sync_seconds)` is called in the reactor thread when they are synced. It is not called
        if the disk has failed or stays full until `close`, nor for batches that a later call drops first. The caller must limit
        the bytes that wait (`figures.waiting_bytes`).
        """
        self._writer.append(batches, on_durable)

    def truncate(self, from_index: int, done: Callable[[], None]) -> None:
        """Drop the batches from `from_index` on, in order with appends (Raft §5.3: conflicting entries). `done` is called in the
        reactor thread.
        """
        self._writer.truncate(from_index, done)

    def reset(self, index: int, epoch: int, done: Callable[[], None] | None = None, received: Checkpoint | None = None) -> None:
        """Drop the whole log and continue after `index` of `epoch`, whose checkpoint a `Receiver` has made durable (Raft §7).

        From now on, places are those of the `received` checkpoint. Files that a `source` keeps are deleted too: its owner must
        end the transfer before, and ignore what a thread that still reads does not find.

        A crash before the log is dropped leaves a checkpoint and a log that does not fit it. The next start then drops the log.
        """
        self._resets += 1
        self._resetting += 1
        self._holdings.install(received)
        self._readers.forget()  # after `install`, so that a file opened in between is one of the new checkpoint

        def dropped() -> None:
            self._resetting -= 1
            if done is not None:
                done()
            if not self._resetting and not self._closing.is_set():
                calls, self._when_dropped = self._when_dropped, []
                for call in calls:
                    call()

        self._writer.reset(Position(epoch, index), listed=received is not None, done=dropped)

    @property
    def resetting(self) -> bool:
        """Whether `reset` was called and the old log is not dropped yet: its segments stand beside the files of the received
        checkpoint, which may have the same numbers, so no checkpoint can be written."""
        return self._resetting > 0

    def when_dropped(self, call: Callable[[], None]) -> None:
        """Call when no log is being dropped any more, in the reactor thread: only then may a `Receiver` finish. The files of its
        checkpoint would be deleted with the old log, and the checkpoint may have the name of the one that replaces the log.
        There is no call if the journal closes first."""
        if self.resetting:
            self._when_dropped.append(call)
        else:
            call()

    def save_hard_state(self, epoch: int, voted_for: str | None, attested: dict[str, Any] | None = None) -> None:
        """The state is durable when this returns, on a full disk too. After a StorageError, do not send anything that depends on
        it."""
        state = HardState(epoch, voted_for, attested)
        self._save(hard_state.NAME, lambda: hard_state.save(self.disk, self._folder, state))

    def floor_passed(self) -> None:
        """The store has all that the primary has. Note durably that it is no longer blank or below a floor. StorageError."""
        self._save(recovery.WHOLE, lambda: replace_durably(self.disk, self._folder / recovery.WHOLE, b""))
        remove_if_there(self.disk, self._folder / recovery.FLOOR)  # the start of this log has made its names durable

    def damaged(self, place: int, why: str) -> None:
        """An acknowledged body is damaged. Note durably that this store must be fetched from the primary again.

        The next start begins with an empty log, and with a floor: until the store has passed it, it does not vote for a log with
        less than it had. StorageError.
        """
        path = self._holdings.path_of(bodies.file_of(place))
        last = self._holdings.newest.last
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
        """Write a checkpoint in a separate thread. Then delete older checkpoints, remove segments below `keep_from` (default:
        index + 1) from the log, and delete files without live bodies.

        `alive` are the numbers of the files that the places in `batches` refer to. `batches` is consumed in that thread.
        `done(checkpoint, "")` or `done(None, why_not)` is called in the reactor thread. One checkpoint at a time.
        """
        assert self._checkpointing is None, "a checkpoint is being written"
        files, resets, fresh = self._holdings.files_at(index, alive), self._resets, self._holdings.fresh

        def in_thread() -> None:
            found, why_not = self._try_checkpoint(index, epoch, members, batches, files)
            self._call_in_reactor(lambda: finished(found, why_not))

        def finished(found: Checkpoint | None, why_not: str) -> None:
            self._checkpointing = None
            if resets != self._resets:
                found, why_not = None, f"the log in {self._folder} was replaced by a snapshot meanwhile"
            if found is not None:
                self._holdings.listed(fresh, found)
                self.release(index + 1 if keep_from is None else min(keep_from, index + 1))
            done(found, why_not)

        self._checkpointing = self._threads.start(f"checkpoint {self._folder.name}", in_thread)

    def release(self, below_index: int) -> None:
        """Remove complete segments below `below_index` from the log, but only those that the checkpoint covers. The ones that the
        checkpoint lists stay as body files. The others, and body files that it does not list, are deleted in the background.
        """
        gone, numbers, paths = self._holdings.release(below_index)
        for segment in gone:
            segment.close(self.disk)
        self._readers.forget(numbers)
        self._preparation.remove(paths)

    def leave(self, received: Checkpoint) -> None:
        """Do not install this checkpoint, although it was received completely, because the log has passed it. Its files are
        deleted when no start needs them any more."""
        self._holdings.leave(received)
        self.release(0)

    @property
    def fresh(self) -> set[int]:
        """The files that compactions have made and no checkpoint lists yet."""
        return self._holdings.fresh

    def full_segments(self, index: int) -> list[int]:
        """The file numbers of the segments that a checkpoint of this index covers completely."""
        return self._holdings.covered(index)

    def body_files(self) -> list[Body]:
        """The body files, which are not part of the log, in order of their numbers."""
        return self._holdings.body_files()

    def is_pinned(self, number: int) -> bool:
        """Whether this file is kept, listed or not: a snapshot with it is being sent, or it is being compacted."""
        return self._holdings.is_pinned(number)

    @property
    def disk_bytes(self) -> int:
        """Bytes of the log on disk: its segments, the prepared one, body files, and the checkpoint."""
        return self.figures.bytes_on_disk

    @property
    def file_bytes(self) -> int:
        """The full size of a segment's file."""
        return self._segment_bytes

    def free(self) -> Space:
        """The free and total space of its file system. OSError."""
        return self.disk.free(self._folder)

    def begin_compaction(self, numbers: list[int]) -> Victims:
        """The live runs of these files are about to be listed, and then to be copied by `compact`. The files are kept until that
        has ended, even if a checkpoint no longer lists them: their last messages may be removed meanwhile."""
        self._holdings.pin(numbers)
        return Victims(numbers, self._resets)

    def compact(
        self,
        victims: Victims,
        runs: Iterable[tuple[int, LiveRun]],
        bytes_per_s: int,
        done: Callable[[Compacted | None, Unreadable | str], None],
    ) -> None:
        """Copy runs of the victims, each with its queue's number, into a new file in a separate thread: see `compaction`.

        `done(compacted, "")` is called in the reactor thread. There the caller passes the moves to the queues and then writes a
        checkpoint. Or `done(None, why_not)` is called, with an Unreadable if bodies are damaged. If the log was reset since
        `begin_compaction`, the places of the runs no longer exist or mean other files, so neither a copy nor an Unreadable
        counts. One compaction at a time.
        """
        assert self._compacting is None, "a compaction is under way"
        number = self._holdings.take_number()

        def in_thread() -> None:
            found, why_not = self._try_compaction(number, runs, bytes_per_s)
            self._call_in_reactor(lambda: finished(found, why_not))

        def finished(found: Compacted | None, why_not: Unreadable | str) -> None:
            self._compacting = None
            if victims.resets != self._resets:
                if found is not None:
                    self._preparation.remove([self._folder / found.file.name])
                found, why_not = None, f"the log in {self._folder} was replaced by a snapshot meanwhile"
            if found is not None:
                self._holdings.compacted(found.file)
            self._let_go(victims.numbers)
            done(found, why_not)

        self._compacting = self._threads.start(f"compact {self._folder.name}", in_thread)

    def source(self) -> Source:
        """The newest checkpoint with its files, to be sent. The files are kept until the source is closed. OSError if the
        checkpoint is gone."""
        found = self.checkpoint
        assert found is not None, "there is no checkpoint to be sent"
        numbers = [file.number for file in found.files.in_use]
        paths = self._holdings.pin(numbers)

        try:
            return Source(found, paths, lambda: self._let_go(numbers), disk=self.disk)
        except BaseException:
            self._let_go(numbers)
            raise

    def _let_go(self, numbers: list[int]) -> None:
        self._holdings.unpin(numbers)
        self.release(0)

    def places(self, first: int, last: int) -> list[int]:
        """The places of the batches `first` to `last`, which must be durable and in the log."""
        return self._holdings.places(first, last)

    def close(self) -> None:
        """Write and sync the waiting batches (unless the disk fails), then stop the threads. Blocks."""
        self._closing.set()
        self._writer.wake()
        self._writer.join()
        if self._checkpointing is not None:
            self._checkpointing.join()
        if self._compacting is not None:
            self._compacting.join()
        self._preparation.close()
        self._readers.forget()
        for segment in self._holdings.close():
            segment.close(self.disk)

    # --- In any thread ---------------------------------------------------------------------------------------------------

    def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        """Durable batches from `first` to at most `last`: at least one, otherwise at most `max_bytes` in all.

        [] when `first` is not durable yet. Released when it has left the log. BadBatch names the segment and the offset of a
        damaged batch. OSError when a segment cannot be opened: if too many files are open, the read may be repeated.
        """
        found: list[bytes] = []
        while first <= last:
            try:
                span = self._holdings.span(first, last, max_bytes)
            except LookupError as error:
                raise Released(error.args[0]) from None
            if span is None:
                break
            path, bounds, rewrites = span
            nbytes = bounds[-1] - bounds[0]
            if found and nbytes > max_bytes:
                break
            try:
                found += self._read_verified(path, bounds, first)
            except (FileNotFoundError, BadBatch) as error:
                if rewrites == self._holdings.rewrites and isinstance(error, BadBatch):
                    raise
                raise Released(f"batch {first} was dropped while it was read") from error
            first += len(bounds) - 1
            max_bytes -= nbytes
        return found

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes at these places, each as (place, length). They are not verified: the caller has the checksum and does this.

        Unreadable when the disk refuses, or the file no longer exists.
        """
        return self._readers.read(spans)

    def _read_verified(self, path: Path, bounds: list[int], first: int) -> list[bytes]:
        with opened(self.disk, path) as fd:  # a separate descriptor, because the writer may close its own at any time
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

    # --- In the checkpoint's thread, and small files ---------------------------------------------------------------------

    def _try_checkpoint(
        self, index: int, epoch: int, members: dict[str, Any], batches: Iterable[bytes], files: LogFiles
    ) -> tuple[Checkpoint | None, str]:
        try:
            found = checkpoints.write(self._folder, index, epoch, members, self._unless_closing(batches), files, disk=self.disk)
            checkpoints.remove_older(found, disk=self.disk)
        except (StorageError, OSError, Stopped) as error:
            return None, str(error)
        except Exception as error:  # raised by `batches`, which is the caller's: report it
            return None, f"the checkpoint of batch {index} in {self._folder} could not be made: {error!r}"
        return found, ""

    def _try_compaction(
        self, number: int, runs: Iterable[tuple[int, LiveRun]], bytes_per_s: int
    ) -> tuple[Compacted | None, Unreadable | str]:
        try:
            writer = BodyWriter(self.disk, self._folder, number, self._holdings.origin)
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
                raise Stopped(f"the checkpoint in {self._folder} was given up: the journal closes")
            yield batch

    def _save(self, name: str, write: Callable[[], None]) -> None:
        if self._writer.failed:
            raise StorageError(
                f"cannot write {self._folder / name}: the disk has failed before; the broker must stop", fatal=True
            )
        try:
            write()
        except StorageError as error:
            if error.fatal:
                self._writer.give_up()
            raise
