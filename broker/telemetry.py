"""Telemetry of one sender: lines are taken in batches and written by a thread, with limits, and never slow the broker.

Life of a line (`telemetry.lines` has its fields): the reactor's thread passes samples in batches. They are converted to bytes at
once, because the objects behind them change (`TelemetryWriter`). They are added to a `_Backlog` with a limit, which both threads
share. A thread of the writer appends them to files (`telemetry_files`), which readers see.

Invariants: no call raises, blocks on a disk, or keeps more than `max_pending_bytes`; a sender's files never have more than
`max_bytes`, plus the bytes of one call; lines that are not written, or are deleted with the oldest file, are counted, and the
count is written as a `drop` event as soon as the disk accepts one; `seq` rises by one for each line and never repeats for a
sender, even after a restart, because it starts from the wall clock, or above the numbers in the sender's files if the clock is
behind them (a file's stamp is at least its first number in ms); every file begins with the roster, so that each can be
understood alone and a reader knows which senders are missing. Creating a writer lists the folder: only the start waits for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import index as whole_number
from os import PathLike
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from broker.core.limits import MIB
from broker.telemetry_files import TelemetryFiles
from telemetry.lines import (
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
"""Bytes of a sender's files on disk by default."""
_SEQ_PER_MS: Final = 1000
_SEQ_OF_FILE_MS: Final = 10_000
"""More numbers than one file has, in ms: a new process begins so far above the stamp of the newest file."""
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
    """Processor time of telemetry: within `measured`, and for writing."""


class _Thread:
    """Runs jobs in order, each with a short delay, so that several lines are written together. Its thread does not keep the
    process alive, because a disk may hang.
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


class _Backlog:
    """The lines that wait to be written, as bytes, the next number, losses that are not reported yet, and the roster. The
    caller's thread and the worker share it under one lock.
    """

    def __init__(self, first_seq: int, max_bytes: int) -> None:
        self.lock = threading.Lock()
        self.dropped = self.deleted = 0
        self.reason = ""
        self._max_bytes = max_bytes
        self._seq = first_seq
        self._chunks: list[tuple[bytes, int]] = []
        self._bytes = 0
        self._losses: dict[str, int] = {}
        self._roster: dict[str, Any] | None = None
        self._roster_due = False
        self._closed = False

    def take_seq(self, count: int = 1) -> int:
        """The first of so many numbers in a row."""
        with self.lock:
            self._seq += count
            return self._seq - count

    @property
    def seq_ms(self) -> int:
        """The next number in ms, as at the start of the process; no line has a higher number yet."""
        with self.lock:
            return -(-self._seq // _SEQ_PER_MS)

    def add(self, data: bytes, lines: int) -> None:
        """Put them in, or count them as dropped."""
        with self.lock:
            full = self._bytes + len(data) > self._max_bytes
            refused = "closed" if self._closed else "buffer full" if full else ""
            if not refused:
                self._chunks.append((data, lines))
                self._bytes += len(data)
        if refused:
            self.drop(refused, lines)

    def drop(self, reason: str, lines: int) -> None:
        """Count lost lines."""
        with self.lock:
            self.dropped += lines
            self.reason = reason
            self._losses[reason] = self._losses.get(reason, 0) + lines

    def deleted_with_file(self, lines: int) -> None:
        """Count lines that have been on the disk."""
        with self.lock:
            self.deleted += lines
            reason = "oldest file deleted"
            self._losses[reason] = self._losses.get(reason, 0) + lines

    def set_roster(self, roster: dict[str, Any], *, again: bool) -> bool:
        """Store the roster. Returns whether it is to be written: it is new, or it is wanted `again`."""
        with self.lock:
            if roster == self._roster and not again:
                return False
            self._roster = roster | {name: list(roster[name]) for name in ("backups", "queues", "voters")}
            self._roster_due = True
            return True

    def clear_roster(self) -> None:
        """Write no roster until the next one is set."""
        with self.lock:
            self._roster, self._roster_due = None, False

    def close(self) -> bool:
        """Take nothing more; whether it was open."""
        with self.lock:
            was, self._closed = self._closed, True
            return not was

    @property
    def closed(self) -> bool:
        """Whether it takes nothing more."""
        return self._closed

    def take(self) -> list[tuple[bytes, int]]:
        """Take the waiting lines."""
        with self.lock:
            chunks, self._chunks, self._bytes = self._chunks, [], 0
            return chunks

    def take_besides(self, *, begins: bool, data: bytes) -> tuple[dict[str, int], dict[str, Any] | None]:
        """The records to write with `data`: losses, and the roster if it is new or a file `begins`."""
        with self.lock:
            losses, self._losses = self._losses, {}
            roster = self._roster if self._roster_due or (begins and (data or losses)) else None
            self._roster_due = False
            return losses, roster

    def put_back(self, losses: Mapping[str, int]) -> None:
        """They could not be written after all."""
        with self.lock:
            self._roster_due = True
            for reason, count in losses.items():
                self._losses[reason] = self._losses.get(reason, 0) + count


class TelemetryWriter:
    """Writes one sender's telemetry into a folder; see the module's text for its promises.

    `cluster` names the cluster and may be set again once it is known. `sender` is the member address (or name) of who writes.
    `clock` gives wall-clock seconds since 1970 (`wall`). A file is rolled when it holds `max_bytes_per_file` or is `max_age_s`
    old at the next write; the oldest are deleted when all of a sender's hold more than `max_bytes`, or are more than `max_files`.
    `submit` runs a function in another thread, one after the other (by default a thread of the writer's own).
    """

    def __init__(
        self,
        directory: str | PathLike[str],
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
        self.wall = clock
        self._files = TelemetryFiles(
            Path(directory),
            sender,
            clock,
            max_bytes=max_bytes,
            max_bytes_per_file=max_bytes_per_file,
            max_files=max_files,
            max_age_s=max_age_s,
        )
        first_ms = max(int(clock() * 1000), self._files.newest_ms() + _SEQ_OF_FILE_MS)
        self._backlog = _Backlog(first_ms * _SEQ_PER_MS, max_pending_bytes)
        self._thread = None if submit else _Thread()
        self._submit: _Submit = submit or self._thread.submit  # type: ignore[union-attr]
        self._scheduled = self._roll_wanted = False
        self._epoch = 0
        self._max_age_s, self._said_lag_s = max_age_s, 0.0
        self._text: tuple[object, SampleText] | None = None
        self._said_dropped, self._said_at = 0, 0.0
        self._written = 0
        self._caller_cpu_s = self._thread_cpu_s = 0.0

    @property
    def figures(self) -> Figures:
        """As of now; cheap."""
        lost, cpu_s = self._backlog, self._caller_cpu_s + self._thread_cpu_s
        return Figures(self._written, lost.dropped, lost.deleted, self._files.bytes_on_disk, lost.reason, cpu_s)

    def news_of_loss(self) -> str:
        """The line about dropped lines for the log file; "" if none were dropped since the last one, or if that was less than a
        minute ago."""
        now, dropped = self.wall(), self._backlog.dropped
        if dropped == self._said_dropped or now - self._said_at < _SAY_AGAIN_S:
            return ""
        self._said_dropped, self._said_at = dropped, now
        return f"{dropped} lines of telemetry were dropped so far ({self._backlog.reason}); nothing else suffers"

    # -- in the caller's thread

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Count the processor time of this context as telemetry, in `figures`."""
        began_s = time.thread_time()
        yield
        self._caller_cpu_s += time.thread_time() - began_s

    def samples(self, *, epoch: int, primary: str, rows: Iterable[LagSample], at: float | None = None) -> None:
        """Take samples of the time `at` (now). One that cannot be encoded is counted as dropped."""
        rows = tuple(rows)
        if rows:
            self._said_lag_s = self.wall()
        seq = self._backlog.take_seq(len(rows))
        lines: list[str] = []
        with contextlib.suppress(TypeError, ValueError):
            text = self._sample_text(epoch, primary, at)
            for number, row in enumerate(rows, seq):
                # A line that cannot be written is missing in seq, and is counted below.
                with contextlib.suppress(TypeError, ValueError):
                    lines.append(text.line(number, row))
        self._add("".join(lines).encode(), len(lines))
        if len(lines) < len(rows):
            self._backlog.drop("malformed", len(rows) - len(lines))

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
        seq = self._backlog.take_seq(len(queues))
        try:
            text = self._sample_text(epoch, primary, at).queue_lines(seq, whole, queues, waiting, rates)
        except (TypeError, ValueError):
            self._backlog.drop("malformed", len(queues))
        else:
            self._add(text.encode(), len(queues))

    def probes(self, *, epoch: int, rows: Iterable[Probe]) -> None:
        """Take the samples that a resource manager got from its brokers."""
        for row in rows:
            self._add_record(epoch, partial(probe_record, interval_ms=self.interval_ms, probe=row))

    def event(self, type: str, *, epoch: int | None = None, broker: str | None = None, **fields: Any) -> None:
        """Something that happened: `fields` are from_, to, index, lost_records, duration_ms, detail, peer, nbytes. Without an
        epoch, the last one seen.
        """
        self._add_record(epoch, partial(event_record, broker=broker or self.sender, type=type, **fields))

    def roster(
        self,
        *,
        epoch: int,
        primary: str,
        backups: Sequence[str],
        queues: Sequence[str],
        voters: Iterable[str] = (),
        witness: str = "",
        witness_connected: bool = False,
    ) -> None:
        """Set the roster. It is written when it has changed, at the beginning of each file, and every `max_age_s` while there are
        no samples: a primary without backups would otherwise look silent.
        """
        roster = {"epoch": epoch, "interval_ms": self.interval_ms, "primary": primary, "backups": backups, "queues": queues}
        roster |= {"voters": list(voters), "witness": witness, "witness_connected": witness_connected}
        self._epoch = epoch
        now_s = self.wall()
        if self._backlog.set_roster(roster, again=abs(now_s - self._said_lag_s) >= self._max_age_s):
            self._said_lag_s = now_s
            self._schedule()

    def no_roster(self) -> None:
        """Write no roster until the next one is set: the sender is not the primary, or no longer."""
        self._backlog.clear_roster()

    def flush(self) -> None:
        """Complete the file with the lines so far. Returns at once; the worker does it."""
        self._roll_wanted = True
        self._schedule()

    def close(self) -> None:
        """Flush, wait for the worker (a few seconds at most), and take nothing more. Calling it again does nothing."""
        if not self._backlog.close():
            return
        self._roll_wanted = True
        self._schedule(closing=True)
        if self._thread is not None:
            self._thread.end(_CLOSE_TIMEOUT_S)

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
            data = line(record(self._head(epoch), self._backlog.take_seq()))
        except (TypeError, ValueError):
            self._backlog.drop("malformed", 1)
        else:
            self._add(data, 1)

    def _add(self, data: bytes, lines: int) -> None:
        if lines:
            self._backlog.add(data, lines)
            self._schedule()

    def _schedule(self, *, closing: bool = False) -> None:
        with self._backlog.lock:
            if self._scheduled or (self._backlog.closed and not closing):
                return
            self._scheduled = True
        self._submit(self._work)

    # -- in the worker's thread

    def _work(self) -> None:
        began_s = time.thread_time()
        with self._backlog.lock:
            self._scheduled = False
            roll, self._roll_wanted = self._roll_wanted, False
        chunks = self._backlog.take()
        for number, (data, lines) in enumerate(chunks or [(b"", 0)], 1):
            try:
                self._write(data, lines)
            except OSError as error:
                self._backlog.drop(_not_written(error), lines)
            if self._files.is_open and (self._files.is_due or (roll and number >= len(chunks))):
                try:
                    self._files.roll()
                except OSError as error:
                    lost = self._files.give_up()
                    self._backlog.drop(_not_written(error), lost)
                    self._written -= lost
            if deleted := self._files.delete_oldest():
                self._backlog.deleted_with_file(deleted)
        self._thread_cpu_s += time.thread_time() - began_s

    def _write(self, data: bytes, lines: int) -> None:
        """Append all lines, with losses and the roster, or nothing. OSError."""
        self._files.prepare()
        losses, roster = self._backlog.take_besides(begins=not self._files.is_open, data=data)
        events = [line(self._drop_event(reason, count)) for reason, count in losses.items()]
        head = [line(self._roster_record(roster))] if roster else []
        count = len(head) + lines + len(events)
        try:
            whole = b"".join((*head, data, *events)) if head or events else data
            self._files.append(whole, count, least_ms=self._backlog.seq_ms)
        except OSError:
            self._backlog.put_back(losses)
            raise
        self._written += count

    def _drop_event(self, reason: str, count: int) -> dict[str, Any]:
        seq = self._backlog.take_seq()
        return event_record(self._head(), seq, broker=self.sender, type="drop", lost_records=count, detail=reason)

    def _roster_record(self, roster: dict[str, Any]) -> dict[str, Any]:
        fields = dict(roster)
        # Its own epoch, which may be older than that of the newest line.
        head = Head(self.cluster, fields.pop("epoch"), self.sender, timestamp(self.wall()))
        return roster_record(head, self._backlog.take_seq(), **fields)


def _not_written(error: OSError) -> str:
    return f"not written: {error.strerror or error}"


def delay_to_next_sample_s(now_s: float, interval_ms: int) -> float:
    """Seconds from the wall-clock time `now_s` to the middle of the next interval, in (0.5, 1.5] intervals.

    Readers count a second without a sample as silence. Sampling in the middle keeps a timer's jitter from moving a sample
    into its neighbour's second.
    """
    interval_s = interval_ms / 1000
    return (now_s // interval_s + 1.5) * interval_s - now_s
