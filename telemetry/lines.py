"""Encodes telemetry lines as JSON.

The life of a line: the sender makes a `LagSample` or a `Probe`, or names an event. It becomes one JSON object on its own
line. The `..._record` functions put the fields in the order of `telemetry.schema`. Thousands of samples are made in each
second, so `SampleText` builds the same text from parts that are encoded once for many lines.

Invariant: a line that cannot be encoded is an error here; it is never written in part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias

from telemetry.schema import EVENT_TYPES, VERSION


class LagSample(NamedTuple):
    """How far one backup is behind, for one queue or for the whole log (`queue` None). Counts are records, sizes bytes, ages
    ms.

    Indexes that the sender does not know are None: a backup knows its own, the primary knows the acknowledged one.
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
    """Age of the oldest record that is not acknowledged; 0 if all are acknowledged."""
    stall_ms: float
    """How long the acknowledged index has not moved with records to acknowledge; 0 if it moves or nothing waits."""
    state: str
    """One of `schema.STATES`, or "" if the sender does not know it."""
    in_sync: bool
    connected: bool
    headroom_bytes: int | None
    """Bytes that may still be written before the backup would need a snapshot; None if the log has no such bound."""
    role: str = "primary"
    """The role in which the sender writes: `primary` or `backup`."""
    sync_ms: float | None = None
    """The sender's fdatasync: mean over the interval; None if there was none."""
    sync_max_ms: float | None = None
    """The sender's longest fdatasync in the interval."""
    round_trip_ms: float | None = None
    """From the primary's last heartbeat to the backup's answer; None if the sender does not know it."""
    records_per_s: float | None = None
    """Records committed in a second over the last interval, as the sender knows; None in its first interval."""
    bytes_per_s: float | None = None


QueueLag: TypeAlias = tuple[int, int, float, float]
"""The unacknowledged part of one queue at one backup: records, bytes, `lag_ms`, `stall_ms`."""


class Probe(NamedTuple):
    """The answers of one broker to a resource manager in one interval."""

    broker: str
    reach: str
    """One of `schema.REACHES`."""
    asked: int
    answered: int
    round_trip_ms: float | None
    """Mean over the interval's answers; None if there was none."""
    round_trip_max_ms: float | None
    state: str
    """One of `schema.STATES`, or "". This field and the next four are from the broker's last answer."""
    primary: str
    broker_epoch: int | None
    last_index: int | None
    detail: str | None
    """Why it is not reachable."""


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC with milliseconds: `2026-01-02T03:04:05.678Z`."""
    moment = datetime.fromtimestamp(round(seconds * 1000) / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


class Head(NamedTuple):
    """The fields of every line besides `v`, `kind` and `seq`."""

    cluster: str
    epoch: int
    sender: str
    ts: str

    def record(self, kind: str, seq: int, **fields: Any) -> dict[str, Any]:
        """A line as a dict, fields in the schema's order."""
        own = {
            "v": VERSION,
            "kind": kind,
            "cluster": self.cluster,
            "epoch": self.epoch,
            "sender": self.sender,
            "seq": seq,
        }
        return own | {"ts": self.ts} | fields

    def around_seq(self, kind: str) -> tuple[str, str]:
        """The text of a line before its `seq`, and after it up to the kind's own fields."""
        before, after = json.dumps(self.record(kind, 0), separators=(",", ":")).split('"seq":0', 1)
        return f'{before}"seq":', f"{after[:-1]},"


def sample_record(head: Head, seq: int, *, interval_ms: int, primary: str, sample: LagSample) -> dict[str, Any]:
    """A sample line as a dict."""
    return head.record("sample", seq, interval_ms=interval_ms, primary=primary, **sample._asdict())


def probe_record(head: Head, seq: int, *, interval_ms: int, probe: Probe) -> dict[str, Any]:
    """A probe line as a dict."""
    return head.record("probe", seq, interval_ms=interval_ms, **probe._asdict())


def event_record(
    head: Head,
    seq: int,
    *,
    broker: str,
    type: str,
    from_: str | None = None,
    to: str | None = None,
    index: int | None = None,
    lost_records: int | None = None,
    duration_ms: float | None = None,
    detail: str | None = None,
    peer: str | None = None,
    nbytes: int | None = None,
) -> dict[str, Any]:
    """An event line as a dict. `broker` is the broker of the event, `peer` another broker that took part. `from_` and `to`
    are roles or members, depending on the type.
    """
    if type not in EVENT_TYPES:
        raise ValueError(f"{type!r} is not a type of event; there are {', '.join(sorted(EVENT_TYPES))}")
    fields = {
        "broker": broker,
        "type": type,
        "from": from_,
        "to": to,
        "index": index,
        "lost_records": lost_records,
        "duration_ms": duration_ms,
        "detail": detail,
        "peer": peer,
        "bytes": nbytes,
    }
    return head.record("event", seq, **fields)


def roster_record(
    head: Head,
    seq: int,
    *,
    interval_ms: int,
    primary: str,
    backups: Sequence[str],
    queues: Sequence[str],
    voters: Sequence[str] = (),
    witness: str = "",
    witness_connected: bool = False,
) -> dict[str, Any]:
    """A roster line as a dict: the primary expects a sample in each interval from each of `backups`, for each of `queues` and
    for the whole log. `voters` are the members with a vote, the primary and the `witness` among them; empty if not known.
    """
    names = {"backups": list(backups), "queues": list(queues), "voters": list(voters)}
    votes = {"witness": witness, "witness_connected": witness_connected}
    return head.record("roster", seq, interval_ms=interval_ms, primary=primary, **names, **votes)


def line(record: dict[str, Any]) -> bytes:
    """A record as a line. ValueError, TypeError if it cannot be encoded."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


# ---- many samples at once

_BOOL: Final = ("false", "true")


def _whole(value: int | None) -> str:
    return "null" if value is None else f"{value:d}"


def _real(value: float | None) -> str:
    if value is None:
        return "null"
    if not isfinite(value):
        raise ValueError("a measure must be finite")
    return f"{value:.3f}"


class SampleText:
    """The text around the samples of one call: everything that they share, encoded once. ValueError, TypeError if a sample
    cannot be encoded.
    """

    __slots__ = ("_after_seq", "_before_seq", "_quoted")

    def __init__(self, head: Head, *, interval_ms: int, primary: str) -> None:
        self._before_seq, after = head.around_seq("sample")
        self._after_seq = f'{after}"interval_ms":{interval_ms:d},"primary":{json.dumps(primary)},'
        self._quoted: dict[str | None, str] = {None: "null"}

    def line(self, seq: int, row: LagSample) -> str:
        """One sample."""
        return (
            f"{self._before_seq}{seq}{self._after_seq}{self._backup(row)}{queue_text(row.queue, row.replicate)}{_indexes(row)}"
            f"{_lag(row.lag_records, row.lag_bytes, row.lag_ms, row.stall_ms)}{self._condition(row)}"
            f"{rate_text(row.records_per_s, row.bytes_per_s)}"
        )

    def queue_lines(
        self, first_seq: int, whole: LagSample, queues: Sequence[str], waiting: Mapping[int, QueueLag], rates: Sequence[str]
    ) -> str:
        """A backup's samples of these queues, as one text. They are like `whole`, except for the queue (`queue_text`), its
        rates (`rate_text`), and its lag. `waiting` has the lag by position; the other queues have none.
        """
        count = len(queues)
        if not count:
            return ""
        start, indexes, condition = self._before_seq, _indexes(whole), self._condition(whole)
        still = f"{indexes}{_lag(0, 0, 0.0, 0.0)}{condition}"
        after: dict[str, str] = {rate: f"{still}{rate}{start}" for rate in set(rates)}  # most rates are equal
        rests = [after[rate] for rate in rates]
        ages: dict[tuple[float, float], str] = {}  # most ages are equal too
        for position, (records, nbytes, lag_ms, stall_ms) in waiting.items():
            age = ages.get((lag_ms, stall_ms))
            if age is None:
                age = ages[lag_ms, stall_ms] = _ages(lag_ms, stall_ms)
            lag = f'"lag_records":{records:d},"lag_bytes":{nbytes:d},{age}'
            rests[position] = f"{indexes}{lag}{condition}{rates[position]}{start}"
        rests[-1] = rests[-1].removesuffix(start)
        pieces = [f"{self._after_seq}{self._backup(whole)}"] * (4 * count)
        pieces[0::4] = map(str, range(first_seq, first_seq + count))
        pieces[2::4] = queues
        pieces[3::4] = rests
        pieces[0] = f"{start}{first_seq}"
        return "".join(pieces)

    def _backup(self, row: LagSample) -> str:
        return f'"backup":{self._text(row.backup)},'

    def _condition(self, row: LagSample) -> str:
        return (
            f'"state":{self._text(row.state)},"in_sync":{_BOOL[bool(row.in_sync)]},"connected":{_BOOL[bool(row.connected)]},'
            f'"headroom_bytes":{_whole(row.headroom_bytes)},"role":{self._text(row.role)},"sync_ms":{_real(row.sync_ms)},'
            f'"sync_max_ms":{_real(row.sync_max_ms)},"round_trip_ms":{_real(row.round_trip_ms)},'
        )

    def _text(self, value: str) -> str:
        if value not in self._quoted:
            self._quoted[value] = json.dumps(value)
        return self._quoted[value]


def queue_text(queue: str | None, replicate: str) -> str:
    """The part of a sample that names its queue; callers keep it while the queue exists."""
    return f'"queue":{json.dumps(queue)},"replicate":{json.dumps(replicate)},'


def rate_text(records_per_s: float | None, bytes_per_s: float | None) -> str:
    """The end of a sample: its rates."""
    return f'"records_per_s":{_real(records_per_s)},"bytes_per_s":{_real(bytes_per_s)}}}\n'


def rate_texts(records: Iterable[int], nbytes: Iterable[int], elapsed_s: float) -> list[str]:
    """The rates of many queues as `rate_text`, from their records and bytes in that time."""
    idle, per_s = rate_text(0.0, 0.0), 1 / elapsed_s
    return [
        f'"records_per_s":{n * per_s:.3f},"bytes_per_s":{size * per_s:.3f}}}\n' if n else idle
        for n, size in zip(records, nbytes, strict=True)
    ]


def _indexes(row: LagSample) -> str:
    return (
        f'"commit_index":{row.commit_index:d},"sent_index":{_whole(row.sent_index)},"received_index":{_whole(row.received_index)},'
        f'"acked_index":{_whole(row.acked_index)},"applied_index":{_whole(row.applied_index)},'
    )


def _lag(records: int, nbytes: int, lag_ms: float, stall_ms: float) -> str:
    return f'"lag_records":{records:d},"lag_bytes":{nbytes:d},{_ages(lag_ms, stall_ms)}'


def _ages(lag_ms: float, stall_ms: float) -> str:
    return f'"lag_ms":{_real(lag_ms)},"stall_ms":{_real(stall_ms)},'
