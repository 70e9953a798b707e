"""Telemetry files: small JSON-lines files that appear whole, are bounded in all, and never slow or stop the broker.

The life of a line (broker.core.telemetry_lines has its fields): the reactor's thread hands samples over by the batch, and they
become bytes at once, because what they are made of changes; they join a bounded buffer, and a thread of the writer's own appends
them to a hidden file (`.NAME.part`). When that file is big or old enough it is renamed to `NAME.jsonl`, which is when readers see
it; the oldest files are deleted as the sender's share of the disk demands. A file left over from a killed process is cut after
its last whole line and renamed by the next writer of the same sender, so that a kill -9 loses no more than what was still in
memory.

Invariants: no call raises, blocks on a disk, or keeps more than `max_pending_bytes`; a sender's files never hold more than
`max_bytes`, but for what one call brings; whatever is not written, or is deleted with the oldest file, is counted, and the
count is itself written as a `drop` event as soon as the disk takes one; a write that fails leaves the file as it was before
it; `seq` rises by one a line and never repeats for a sender, restarts included, because it starts from the wall clock; every
file begins with the roster, so that each can be understood alone and a reader knows whom to miss.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import index as whole_number
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from broker.core.limits import MIB
from broker.core.telemetry_lines import (
    Head,
    LagSample,
    Probe,
    QueueLag,
    SampleText,
    event_record,
    line,
    probe_record,
    roster_record,
    timestamp,
)

MAX_BYTES: Final = 1024 * MIB
"""What a sender's files may take of the disk by default."""
_STAMP_DIGITS: Final = 15
_SEQ_PER_MS: Final = 1000
_FILES_AT_LEAST: Final = 8
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_CLOSE_TIMEOUT_S: Final = 5.0
_GATHER_S: Final = 0.1
_SAY_AGAIN_S: Final = 60.0
_Submit = Callable[[Callable[[], None]], object]


class Figures(NamedTuple):
    """For management."""

    written: int
    """Lines in files."""
    dropped: int
    """Lines lost: refused because the buffer was full, not taken by the disk, or not to be encoded."""
    deleted: int
    """Lines that were deleted with the oldest files."""
    bytes_on_disk: int
    reason: str
    """Why the newest of the dropped lines was lost, or ""."""
    cpu_s: float
    """Processor time for all of it: what is done within `measured`, and the writing."""


class _Thread:
    """Runs jobs in their order, each a moment late, so that what comes in a row is written in one go. It does not keep the
    process alive: a disk that hangs must not.
    """

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def end(self, timeout_s: float) -> None:
        self._ending.set()
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._ending.wait(_GATHER_S)
            job()


class _Kept(NamedTuple):
    """A whole file. `lines` is None for one of an earlier process: they are counted when it is deleted."""

    path: Path
    nbytes: int
    lines: int | None


class TelemetryWriter:
    """Writes one sender's telemetry into a folder; see the module's text for its promises.

    `cluster` names the cluster and may be set again once it is known. `sender` is the member address (or name) of who writes.
    `clock` gives wall-clock seconds since 1970 (`wall`). A file is rolled when it holds `max_bytes_per_file` or is `max_age_s`
    old at the next write; the oldest are deleted when all of a sender's hold more than `max_bytes`, or are more than `max_files`.
    `submit` runs a function in another thread, one after the other (by default a thread of the writer's own).
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        cluster: str,
        sender: str,
        clock: Callable[[], float] = time.time,
        interval_ms: int = 1000,
        max_bytes: int = MAX_BYTES,
        max_bytes_per_file: int = 4 * MIB,
        max_files: int = 20_000,
        max_age_s: float = 30.0,
        max_pending_bytes: int = 4 * MIB,
        submit: _Submit | None = None,
    ) -> None:
        assert min(interval_ms, max_bytes, max_bytes_per_file, max_files) > 0, "a bound of nothing"
        self.cluster = cluster
        self.sender = sender
        self.interval_ms = interval_ms
        self._directory = Path(directory)
        self._prefix = _UNSAFE.sub("_", sender) or "sender"
        self._names = f"{glob.escape(self._prefix)}.{'[0-9]' * _STAMP_DIGITS}"
        self.wall = clock
        self._max_bytes, self._max_files, self._max_age_s = max_bytes, max_files, max_age_s
        self._max_bytes_per_file = min(max_bytes_per_file, max(max_bytes // _FILES_AT_LEAST, 1))
        self._max_pending_bytes = max_pending_bytes
        self._thread = None if submit else _Thread()
        self._submit: _Submit = submit or self._thread.submit  # type: ignore[union-attr]
        self._epoch = 0
        self._said_dropped, self._said_at = 0, 0.0
        self._text: tuple[object, SampleText] | None = None
        self._caller_cpu_s = self._thread_cpu_s = 0.0
        # Shared with the worker, under _lock.
        self._lock = threading.Lock()
        self._seq = int(clock() * 1000) * _SEQ_PER_MS
        self._pending: list[tuple[bytes, int]] = []
        self._pending_bytes = 0
        self._unreported: dict[str, int] = {}
        self._dropped = self._deleted = self._written = 0
        self._reason = ""
        self._roster: dict[str, Any] | None = None
        self._roster_due = False
        self._roll_wanted = False
        self._scheduled = False
        self._closed = False
        # The worker's own.
        self._fd: int | None = None
        self._part = self._whole = self._directory
        self._file_bytes = self._file_lines = 0
        self._file_since = 0.0
        self._prepared = False
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0

    @property
    def figures(self) -> Figures:
        """As of now; cheap."""
        on_disk, cpu_s = self._kept_bytes + self._file_bytes, self._caller_cpu_s + self._thread_cpu_s
        return Figures(self._written, self._dropped, self._deleted, on_disk, self._reason, cpu_s)

    def news_of_loss(self) -> str:
        """What is to be told in the log: "" unless lines were dropped since the last time, a minute ago or more."""
        now, dropped = self.wall(), self._dropped
        if dropped == self._said_dropped or now - self._said_at < _SAY_AGAIN_S:
            return ""
        self._said_dropped, self._said_at = dropped, now
        return f"{dropped} lines of telemetry were dropped so far ({self._reason}); nothing else suffers"

    # -- in the caller's thread

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Count what is done within as telemetry's, in `figures`."""
        began_s = time.thread_time()
        yield
        self._caller_cpu_s += time.thread_time() - began_s

    def samples(self, *, epoch: int, primary: str, rows: Iterable[LagSample], at: float | None = None) -> None:
        """Take samples of the time `at` (now). One that cannot be encoded is counted as dropped."""
        rows = tuple(rows)
        seq = self._take_seq(len(rows))
        lines: list[str] = []
        with contextlib.suppress(TypeError, ValueError):
            text = self._sample_text(epoch, primary, at)
            for number, row in enumerate(rows, seq):
                with contextlib.suppress(TypeError, ValueError):  # leaves a hole in seq, and is counted below
                    lines.append(text.line(number, row))
        self._add("".join(lines).encode(), len(lines))
        if len(lines) < len(rows):
            self._count_drop("malformed", len(rows) - len(lines))

    def queue_samples(
        self,
        *,
        epoch: int,
        primary: str,
        whole: LagSample,
        queues: Sequence[str],
        waiting: Mapping[int, QueueLag],
        rates: Sequence[str],
        at: float | None = None,
    ) -> None:
        """Take a backup's samples of all its queues: see `SampleText.queue_lines`."""
        seq = self._take_seq(len(queues))
        try:
            text = self._sample_text(epoch, primary, at).queue_lines(seq, whole, queues, waiting, rates)
        except (TypeError, ValueError):
            self._count_drop("malformed", len(queues))
        else:
            self._add(text.encode(), len(queues))

    def probes(self, *, epoch: int, rows: Iterable[Probe]) -> None:
        """Take what a resource manager got from its brokers."""
        for row in rows:
            self._add_record(epoch, partial(probe_record, interval_ms=self.interval_ms, probe=row))

    def event(self, type: str, *, epoch: int | None = None, broker: str | None = None, **fields: Any) -> None:
        """Something that happened: `fields` are from_, to, index, lost_records, duration_ms, detail, peer, nbytes. Without an
        epoch, the last one seen.
        """
        self._add_record(epoch, partial(event_record, broker=broker or self.sender, type=type, **fields))

    def roster(self, *, epoch: int, primary: str, backups: Sequence[str], queues: Sequence[str]) -> None:
        """Say whom to expect. Written when it has changed, and again at the head of each file."""
        roster = {"epoch": epoch, "interval_ms": self.interval_ms, "primary": primary, "backups": backups, "queues": queues}
        self._epoch = epoch
        with self._lock:
            if roster == self._roster:
                return
            self._roster = roster | {"backups": list(backups), "queues": list(queues)}
            self._roster_due = True
        self._schedule()

    def flush(self) -> None:
        """Let what was taken so far appear as a whole file. Returns at once; the worker does it."""
        with self._lock:
            self._roll_wanted = True
        self._schedule()

    def close(self) -> None:
        """Flush, wait for the worker (a few seconds at most), and take nothing more. Calling it again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._roll_wanted = True
        self._schedule(closing=True)
        if self._thread is not None:
            self._thread.end(_CLOSE_TIMEOUT_S)

    def _take_seq(self, count: int = 1) -> int:
        with self._lock:
            self._seq += count
            return self._seq - count

    def _head(self, epoch: int | None = None, at: float | None = None) -> Head:
        if epoch is not None:
            self._epoch = whole_number(epoch)
        return Head(self.cluster, self._epoch, self.sender, timestamp(self.wall() if at is None else at))

    def _sample_text(self, epoch: int, primary: str, at: float | None) -> SampleText:
        asked_for = (self.cluster, epoch, primary, at, self.interval_ms)
        if at is None or self._text is None or self._text[0] != asked_for:
            self._text = asked_for, SampleText(self._head(epoch, at), interval_ms=self.interval_ms, primary=primary)
        return self._text[1]

    def _add_record(self, epoch: int | None, record: Callable[[Head, int], dict[str, Any]]) -> None:
        try:
            data = line(record(self._head(epoch), self._take_seq()))
        except (TypeError, ValueError):
            self._count_drop("malformed", 1)
        else:
            self._add(data, 1)

    def _add(self, data: bytes, lines: int) -> None:
        if not lines:
            return
        with self._lock:
            full = self._pending_bytes + len(data) > self._max_pending_bytes
            refused = "closed" if self._closed else "buffer full" if full else ""
            if not refused:
                self._pending.append((data, lines))
                self._pending_bytes += len(data)
        if refused:
            self._count_drop(refused, lines)
        self._schedule()

    def _count_drop(self, reason: str, lines: int) -> None:
        with self._lock:
            self._dropped += lines
            self._reason = reason
            self._unreported[reason] = self._unreported.get(reason, 0) + lines

    def _schedule(self, *, closing: bool = False) -> None:
        with self._lock:
            if self._scheduled or (self._closed and not closing):
                return
            self._scheduled = True
        self._submit(self._work)

    # -- in the worker's thread

    def _work(self) -> None:
        began_s = time.thread_time()
        with self._lock:
            self._scheduled = False
            chunks = self._pending
            self._pending, self._pending_bytes = [], 0
            roll, self._roll_wanted = self._roll_wanted, False
        for number, (data, lines) in enumerate(chunks or [(b"", 0)], 1):
            try:
                self._write(data, lines)
            except OSError as error:
                self._count_drop(_not_written(error), lines)
            if self._fd is not None and (self._is_due or (roll and number >= len(chunks))):
                try:
                    self._roll()
                except OSError as error:
                    self._lose_file(error)
            self._delete_oldest()
        self._thread_cpu_s += time.thread_time() - began_s

    @property
    def _is_due(self) -> bool:
        return self._file_bytes >= self._max_bytes_per_file or self.wall() - self._file_since >= self._max_age_s

    def _write(self, data: bytes, lines: int) -> None:
        """All of it, with what else is due, or nothing. OSError."""
        if not self._prepared:
            self._prepare()
        with self._lock:
            report, self._unreported = self._unreported, {}
            roster = self._roster if self._roster_due or (self._fd is None and (data or report)) else None
            self._roster_due = False
        events = [line(self._drop_event(reason, count)) for reason, count in report.items()]
        head = [line(self._roster_record(roster))] if roster else []
        try:
            self._append(b"".join((*head, data, *events)) if head or events else data)
        except OSError:
            with self._lock:
                self._roster_due = True
                for reason, count in report.items():
                    self._unreported[reason] = self._unreported.get(reason, 0) + count
            raise
        self._file_lines += len(head) + lines + len(events)
        self._written += len(head) + lines + len(events)

    def _append(self, data: bytes) -> None:
        if not data:
            return
        fd = self._open() if self._fd is None else self._fd
        view, written = memoryview(data), 0
        try:
            while written < len(data):
                written += os.write(fd, view[written:])
        except OSError:
            os.ftruncate(fd, self._file_bytes)
            raise
        self._file_bytes += len(data)

    def _open(self) -> int:
        start_ms = int(self.wall() * 1000)
        if self._kept:  # names rise, whatever the clock does
            start_ms = max(start_ms, int(self._kept[-1].path.name.split(".")[-2]) + 1)
        name = f"{self._prefix}.{start_ms:0{_STAMP_DIGITS}d}"
        self._part, self._whole = self._directory / f".{name}.part", self._directory / f"{name}.jsonl"
        self._fd = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._file_since = self.wall()
        self._file_bytes = self._file_lines = 0
        return self._fd

    def _roll(self) -> None:
        self._close_file()
        self._part.rename(self._whole)
        self._keep(_Kept(self._whole, self._file_bytes, self._file_lines))
        self._file_bytes = self._file_lines = 0

    def _close_file(self) -> None:
        assert self._fd is not None
        fd, self._fd = self._fd, None
        os.close(fd)

    def _lose_file(self, error: OSError) -> None:
        """It cannot be renamed (the folder is gone, say): what is in it counts as lost, and the next write begins anew."""
        self._count_drop(_not_written(error), self._file_lines)
        self._written -= self._file_lines
        self._file_bytes = self._file_lines = 0
        self._prepared = False

    def _drop_event(self, reason: str, count: int) -> dict[str, Any]:
        seq = self._take_seq()
        return event_record(self._head(), seq, broker=self.sender, type="drop", lost_records=count, detail=reason)

    def _roster_record(self, roster: dict[str, Any]) -> dict[str, Any]:
        fields = dict(roster)
        return roster_record(self._head(fields.pop("epoch")), self._take_seq(), **fields)

    # -- in the worker's thread: the files of the folder

    def _prepare(self) -> None:
        """Make the folder, look for what is there, and finish what a killed process has left."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._kept.clear()
        self._kept_bytes = 0
        for part in sorted(self._directory.glob(f".{self._names}.part")):
            data = part.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole:
                os.truncate(part, whole)
                part.rename(self._directory / f"{part.name[1 : -len('.part')]}.jsonl")
            else:
                part.unlink()
        for path in sorted(self._directory.glob(f"{self._names}.jsonl")):
            with contextlib.suppress(FileNotFoundError):  # somebody else tidies up, too
                self._keep(_Kept(path, path.stat().st_size, None))
        self._prepared = True

    def _keep(self, file: _Kept) -> None:
        self._kept.append(file)
        self._kept_bytes += file.nbytes

    def _delete_oldest(self) -> None:
        """Until the rest is within bounds, the hidden file included."""
        while self._kept and (self._kept_bytes + self._file_bytes > self._max_bytes or len(self._kept) > self._max_files):
            oldest = self._kept.popleft()
            self._kept_bytes -= oldest.nbytes
            with contextlib.suppress(OSError):
                lines = oldest.path.read_bytes().count(b"\n") if oldest.lines is None else oldest.lines
                oldest.path.unlink()
                with self._lock:
                    self._deleted += lines
                    reason = "oldest file deleted"
                    self._unreported[reason] = self._unreported.get(reason, 0) + lines


def _not_written(error: OSError) -> str:
    return f"not written: {error.strerror or error}"


def delay_to_next_sample_s(now_s: float, interval_ms: int) -> float:
    """Seconds from the wall-clock time `now_s` to the middle of the next interval, in (0.5, 1.5] intervals.

    Readers count a second without a sample as silence. Sampling in the middle keeps a timer's jitter from moving a sample
    into its neighbour's second.
    """
    interval_s = interval_ms / 1000
    return (now_s // interval_s + 1.5) * interval_s - now_s
