"""Replication-lag telemetry: small JSON-lines files that appear whole, are bounded in all, and never slow or stop the broker.

The life of a line: the broker gathers a `LagSample` per backup and per replicated queue each interval and hands them over in
one call of `TelemetryWriter.samples`. They become bytes at once (the shared fields are encoded once a call), join a bounded
buffer, and a worker thread appends them to a hidden file (`.NAME.part`). When that file is big or old enough it is renamed to
`NAME.jsonl`, which is when readers see it; the oldest files are deleted beyond `max_files`. A file left over from a killed
process is cut after its last whole line and renamed by the next writer of the same sender, so that a kill -9 loses no more than
what was still in memory.

Invariants: no call raises, blocks on a disk, or keeps more than `max_pending_bytes`; whatever is not written, or is deleted
before its time, is counted, and the count is itself written as a `drop` event as soon as the disk takes one; `seq` rises by one
a line and never repeats for a sender, restarts included, because it starts from the wall clock; every file begins with the
roster, so that each can be understood alone and a reader knows whom to miss.

The fields of the three kinds of line, version 1, are in docs/reference/telemetry.md; `spark_analytics.schemas` reads them.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

VERSION: Final = 1
"""The schema's version, carried by each line as `v`. New fields only ever get added; a changed meaning needs a new version."""

EVENT_TYPES: Final = frozenset(
    {
        "role",
        "promote_asked",
        "promote_won",
        "promote_refused",
        "discovery",
        "catch_up_begin",
        "catch_up_end",
        "snapshot",
        "backup_lost",
        "failure_detected",
        "failover_done",
        "fenced",
        "drain",
        "drop",
    }
)
"""What an event can be."""

STATES: Final = ("joining", "catchup", "ready", "recovering", "active", "standalone")
_SEQ_PER_MS: Final = 1000
_STAMP_DIGITS: Final = 15
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_CLOSE_TIMEOUT_S: Final = 5.0
_Submit = Callable[[Callable[[], None]], object]


class LagSample(NamedTuple):
    """How far one backup is behind, for one queue or (`queue` None) for the whole log. Counts are records, sizes bytes, ages ms.

    Indexes that the sender does not know are None: a backup knows its own, the primary knows what was acknowledged.
    """

    backup: str
    """Member address of the backup."""
    queue: str | None
    """The queue's name; None for the whole log."""
    replicate: str
    """The object's replication level; that of the cluster for the whole log."""
    commit_index: int
    sent_index: int | None
    received_index: int | None
    acked_index: int | None
    applied_index: int | None
    lag_records: int
    """Records (for a queue, its messages and dequeues) committed or proposed here that the backup has not acknowledged."""
    lag_bytes: int
    lag_ms: float
    """Age of the oldest record that is not acknowledged; 0 when all are."""
    stall_ms: float
    """How long the acknowledged index has stood still with something to acknowledge; 0 when it moves or nothing waits."""
    state: str
    """One of STATES, or "" when the sender does not know it."""
    in_sync: bool
    connected: bool
    headroom_bytes: int | None
    """Bytes that may still be written before the backup would need a snapshot; None when the log has no such bound."""


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC with milliseconds: `2026-01-02T03:04:05.678Z`."""
    moment = datetime.fromtimestamp(round(seconds * 1000) / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def delay_to_next_sample_s(now_s: float, interval_ms: int) -> float:
    """Seconds from the wall-clock time `now_s` to the middle of the next interval, in (0.5, 1.5] intervals.

    Readers count a second without a sample as silence. Sampling in the middle keeps a timer's jitter from moving a sample
    into its neighbour's second.
    """
    interval_s = interval_ms / 1000
    return (now_s // interval_s + 1.5) * interval_s - now_s


def sample_record(
    *, cluster: str, epoch: int, sender: str, seq: int, ts: str, interval_ms: int, primary: str, sample: LagSample
) -> dict[str, Any]:
    """A sample line as a dict, fields in the schema's order."""
    return {
        "v": VERSION,
        "kind": "sample",
        "cluster": cluster,
        "epoch": epoch,
        "sender": sender,
        "seq": seq,
        "ts": ts,
        "interval_ms": interval_ms,
        "primary": primary,
        **sample._asdict(),
    }


def event_record(
    *,
    cluster: str,
    epoch: int,
    sender: str,
    seq: int,
    ts: str,
    broker: str,
    type: str,
    from_: str | None = None,
    to: str | None = None,
    index: int | None = None,
    lost_records: int | None = None,
    duration_ms: float | None = None,
    detail: str | None = None,
) -> dict[str, Any]:
    """An event line as a dict. `broker` is whom it happened to; `from_` and `to` are roles or members, as the type asks."""
    if type not in EVENT_TYPES:
        raise ValueError(f"{type!r} is no type of event; there are {', '.join(sorted(EVENT_TYPES))}")
    return {
        "v": VERSION,
        "kind": "event",
        "cluster": cluster,
        "epoch": epoch,
        "sender": sender,
        "seq": seq,
        "ts": ts,
        "broker": broker,
        "type": type,
        "from": from_,
        "to": to,
        "index": index,
        "lost_records": lost_records,
        "duration_ms": duration_ms,
        "detail": detail,
    }


def roster_record(
    *,
    cluster: str,
    epoch: int,
    sender: str,
    seq: int,
    ts: str,
    interval_ms: int,
    primary: str,
    backups: Sequence[str],
    queues: Sequence[str],
) -> dict[str, Any]:
    """A roster line as a dict: each of `backups` is expected to have a sample per interval for each of `queues` and for the
    whole log.
    """
    return {
        "v": VERSION,
        "kind": "roster",
        "cluster": cluster,
        "epoch": epoch,
        "sender": sender,
        "seq": seq,
        "ts": ts,
        "interval_ms": interval_ms,
        "primary": primary,
        "backups": list(backups),
        "queues": list(queues),
    }


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


_BOOL: Final = ("false", "true")


def _null(value: int | None) -> str:
    return "null" if value is None else f"{value:d}"


def _row_fields(row: LagSample, quoted: dict[str | None, str]) -> str:
    """The rest of a sample line, from `backup` on: the hot path, so by hand. `quoted` remembers JSON strings from row to row."""
    (
        backup,
        queue,
        replicate,
        commit,
        sent,
        received,
        acked,
        applied,
        records,
        nbytes,
        lag,
        stall,
        state,
        in_sync,
        connected,
        room,
    ) = row
    for text in (backup, queue, replicate, state):
        if text not in quoted:
            quoted[text] = json.dumps(text)
    if not (isfinite(lag) and isfinite(stall)):
        raise ValueError("an age must be finite")
    return (
        f'"backup":{quoted[backup]},"queue":{quoted[queue]},"replicate":{quoted[replicate]},"commit_index":{commit:d},'
        f'"sent_index":{_null(sent)},"received_index":{_null(received)},"acked_index":{_null(acked)},"applied_index":{_null(applied)},'
        f'"lag_records":{records:d},"lag_bytes":{nbytes:d},"lag_ms":{lag:.3f},"stall_ms":{stall:.3f},"state":{quoted[state]},'
        f'"in_sync":{_BOOL[bool(in_sync)]},"connected":{_BOOL[bool(connected)]},"headroom_bytes":{_null(room)}}}\n'
    )


class StallMeter:
    """Turns acknowledged indexes into `stall_ms`: one entry per key (backup, or backup and queue), forgotten by `keep`."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[object, tuple[int | None, float]] = {}

    def stall_ms(self, key: object, acked_index: int | None, lag_records: int, now_s: float) -> float:
        """How long, in ms, `acked_index` has not moved while records waited. `now_s` is from a monotonic clock."""
        known = self._since.get(key)
        if known is None or known[0] != acked_index or lag_records <= 0:
            self._since[key] = (acked_index, now_s)
            return 0.0
        return max(0.0, (now_s - known[1]) * 1000)

    def keep(self, keys: Iterable[object]) -> None:
        """Forget every key that is not in `keys` (a member that was removed, a queue that was deleted)."""
        wanted = set(keys)
        self._since = {key: value for key, value in self._since.items() if key in wanted}


class TelemetryWriter:
    """Writes one sender's telemetry into a folder; see the module's text for its promises.

    `cluster` names the cluster and may be set again once it is known. `sender` is the member address (or name) of who writes.
    `clock` gives wall-clock seconds since 1970. A file is rolled when it holds `max_bytes_per_file` or is `max_age_s` old at
    the next write; `max_files` whole ones are kept per sender. `submit` runs a function in another thread, one at a time or not
    (by default a thread of the writer's own).
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        cluster: str,
        sender: str,
        clock: Callable[[], float] = time.time,
        interval_ms: int = 1000,
        max_bytes_per_file: int = 4 << 20,
        max_files: int = 256,
        max_age_s: float = 30.0,
        max_pending_bytes: int = 4 << 20,
        submit: _Submit | None = None,
    ) -> None:
        if interval_ms <= 0 or max_bytes_per_file <= 0 or max_files <= 0:
            raise ValueError("interval_ms, max_bytes_per_file and max_files must be above zero")
        self.cluster = cluster
        self.sender = sender
        self.interval_ms = interval_ms
        self._directory = Path(directory)
        self._prefix = _UNSAFE.sub("_", sender) or "sender"
        self._names = f"{glob.escape(self._prefix)}.{'[0-9]' * _STAMP_DIGITS}"
        self._clock = clock
        self._max_bytes, self._max_files, self._max_age_s = max_bytes_per_file, max_files, max_age_s
        self._max_pending_bytes = max_pending_bytes
        self._executor = None if submit else ThreadPoolExecutor(1, thread_name_prefix="telemetry")
        self._submit: _Submit = submit or self._executor.submit  # type: ignore[union-attr]
        self._seq = int(clock() * 1000) * _SEQ_PER_MS
        self._epoch = 0
        # Shared with the worker, under _lock.
        self._lock = threading.Lock()
        self._pending: list[bytes] = []
        self._pending_lines = 0
        self._pending_bytes = 0
        self._unreported: dict[str, int] = {}
        self._dropped = 0
        self._roster: dict[str, Any] | None = None
        self._roster_due = False
        self._roll_wanted = False
        self._scheduled = False
        self._closed = False
        # The worker's own, under _disk_lock.
        self._disk_lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._part = self._whole = self._directory
        self._file_bytes = 0
        self._file_since = 0.0
        self._salvaged = False
        self._owed: list[bytes] = []

    @property
    def dropped(self) -> int:
        """Lines lost so far: refused because the buffer was full, not written, or deleted with the oldest files."""
        return self._dropped

    def samples(self, *, epoch: int, primary: str, rows: Iterable[LagSample]) -> None:
        """Take one interval's samples, in one call for all backups and queues. A row that cannot be encoded is counted as
        dropped.
        """
        rows = tuple(rows)
        seq = self._take_seq(len(rows))
        try:
            head, middle = self._shared_fields(epoch, primary)
        except (TypeError, ValueError):
            self._count_drop("malformed", len(rows))
            return
        self._epoch = epoch
        quoted: dict[str | None, str] = {None: "null"}
        lines: list[str] = []
        for row in rows:
            with contextlib.suppress(TypeError, ValueError):  # a row left out leaves a hole in seq, and is counted below
                lines.append(f"{head}{seq}{middle}{_row_fields(row, quoted)}")
            seq += 1
        self._add("".join(lines).encode(), len(lines))
        if len(lines) < len(rows):
            self._count_drop("malformed", len(rows) - len(lines))

    def sample(self, *, epoch: int, primary: str, **fields: Any) -> None:
        """One sample by the names of `LagSample`; `samples` is the call for many."""
        try:
            row = LagSample(**fields)
        except TypeError:
            self._count_drop("malformed", 1)
        else:
            self.samples(epoch=epoch, primary=primary, rows=(row,))

    def event(self, type: str, *, epoch: int | None = None, broker: str | None = None, **fields: Any) -> None:
        """Something that happened: `fields` are from_, to, index, lost_records, duration_ms, detail. Without an epoch, the last
        one seen.
        """
        try:
            self._epoch = self._epoch if epoch is None else epoch
            line = _line(self._event(type, broker=broker or self.sender, **fields))
        except (TypeError, ValueError):
            self._count_drop("malformed", 1)
        else:
            self._add(line, 1)

    def roster(self, *, epoch: int, primary: str, backups: Sequence[str], queues: Sequence[str]) -> None:
        """Say whom to expect. Written when it has changed, and again at the head of each file."""
        roster = {"epoch": epoch, "primary": primary, "backups": sorted(backups), "queues": sorted(queues)}
        self._epoch = epoch
        with self._lock:
            if roster == self._roster:
                return
            self._roster = roster
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
        if self._executor is not None:
            done = threading.Event()
            with contextlib.suppress(RuntimeError):
                self._executor.submit(done.set)
                done.wait(_CLOSE_TIMEOUT_S)
            self._executor.shutdown(wait=False, cancel_futures=True)

    # -- in the caller's thread

    def _take_seq(self, count: int = 1) -> int:
        with self._lock:
            self._seq += count
            return self._seq - count

    def _shared_fields(self, epoch: int, primary: str) -> tuple[str, str]:
        cluster, sender, ts = json.dumps(self.cluster), json.dumps(self.sender), timestamp(self._clock())
        return (
            f'{{"v":{VERSION},"kind":"sample","cluster":{cluster},"epoch":{epoch:d},"sender":{sender},"seq":',
            f',"ts":"{ts}","interval_ms":{self.interval_ms},"primary":{json.dumps(primary)},',
        )

    def _event(self, type: str, *, broker: str, **fields: Any) -> dict[str, Any]:
        ts = timestamp(self._clock())
        seq = self._take_seq()
        return event_record(
            cluster=self.cluster, epoch=self._epoch, sender=self.sender, seq=seq, ts=ts, broker=broker, type=type, **fields
        )

    def _roster_record(self, roster: dict[str, Any]) -> dict[str, Any]:
        ts = timestamp(self._clock())
        seq = self._take_seq()
        return roster_record(cluster=self.cluster, sender=self.sender, seq=seq, ts=ts, interval_ms=self.interval_ms, **roster)

    def _add(self, data: bytes, lines: int) -> None:
        if not lines:
            return
        with self._lock:
            refused = (
                "closed" if self._closed else "buffer full" if self._pending_bytes + len(data) > self._max_pending_bytes else ""
            )
            if not refused:
                self._pending.append(data)
                self._pending_lines += lines
                self._pending_bytes += len(data)
        if refused:
            self._count_drop(refused, lines)
        self._schedule()

    def _count_drop(self, reason: str, lines: int) -> None:
        with self._lock:
            self._dropped += lines
            self._unreported[reason] = self._unreported.get(reason, 0) + lines

    def _schedule(self, *, closing: bool = False) -> None:
        with self._lock:
            if self._scheduled or (self._closed and not closing):
                return
            self._scheduled = True
        try:
            self._submit(self._work)
        except RuntimeError:  # the thread pool is shutting down with the process
            with self._lock:
                self._scheduled = False

    # -- in the worker's thread

    def _work(self) -> None:
        with self._disk_lock:
            with self._lock:
                self._scheduled = False
                chunks, lines = self._pending, self._pending_lines
                self._pending, self._pending_lines, self._pending_bytes = [], 0, 0
                roll, self._roll_wanted = self._roll_wanted, False
            try:
                self._write(b"".join(chunks), roll)
            except OSError as error:
                self._count_drop(f"not written: {error.strerror or error}", lines)
                self._abandon()

    def _write(self, data: bytes, roll: bool) -> None:
        if not self._salvaged:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._salvage()
            self._salvaged = True
        report = self._drop_report()
        head = self._roster_line() if data or report or self._roster_due else b""
        if data or report or head:
            try:
                file = self._file or self._open()
                file.write(head + data + report)
                file.flush()
            except OSError:
                self._owed = [report]  # a line per reason, so few
                self._roster_due = True
                raise
            self._file_bytes += len(head) + len(data) + len(report)
        too_old = self._clock() - self._file_since >= self._max_age_s
        if self._file is not None and (roll or too_old or self._file_bytes >= self._max_bytes):
            self._roll()

    def _drop_report(self) -> bytes:
        with self._lock:
            unreported, self._unreported = self._unreported, {}
        fresh = [
            _line(self._event("drop", broker=self.sender, lost_records=count, detail=reason))
            for reason, count in unreported.items()
        ]
        owed, self._owed = self._owed, []
        return b"".join((*owed, *fresh))

    def _roster_line(self) -> bytes:
        """The roster, when it has changed or a new file begins."""
        with self._lock:
            due, self._roster_due = self._roster_due or self._file is None, False
            roster = self._roster if due else None
        return _line(self._roster_record(roster)) if roster else b""

    def _open(self) -> BinaryIO:
        start_ms = int(self._clock() * 1000)
        while True:
            name = f"{self._prefix}.{start_ms:0{_STAMP_DIGITS}d}"
            self._part, self._whole = self._directory / f".{name}.part", self._directory / f"{name}.jsonl"
            if not self._whole.exists():
                break
            start_ms += 1
        self._file = self._part.open("ab")
        self._file_since = self._clock()
        self._file_bytes = 0
        return self._file

    def _roll(self) -> None:
        assert self._file is not None
        file, self._file = self._file, None
        file.close()
        self._part.rename(self._whole)
        self._delete_oldest()

    def _abandon(self) -> None:
        """After a failed write: let go of the file. The next writer, or the next write, salvages what is whole in it."""
        file, self._file = self._file, None
        self._salvaged = False
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _salvage(self) -> None:
        for part in sorted(self._directory.glob(f".{self._names}.part")):
            data = part.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole:
                os.truncate(part, whole)
                part.rename(self._directory / f"{part.name[1 : -len('.part')]}.jsonl")
            else:
                part.unlink()
        self._delete_oldest()

    def _delete_oldest(self) -> None:
        whole = sorted(self._directory.glob(f"{self._names}.jsonl"))
        for path in whole[: max(0, len(whole) - self._max_files)]:
            lines = path.read_bytes().count(b"\n")
            path.unlink()
            self._count_drop("oldest file deleted", lines)
