"""The telemetry's schema as Spark reads it, version 1. `broker.telemetry` writes it; a contract test compares the two.

One line is one JSON object of one kind: `sample`, `event`, `roster` or `probe`. All kinds are read with one flat schema, the
union of their fields, because one pass over the files must serve them all. Fields are only ever added: an older file lacks a
field, which then reads as null; a line of a newer version is kept aside and counted.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import ArrayType, BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

VERSION: Final = 1
KINDS: Final = ("sample", "event", "roster", "probe")

_LONG, _TEXT, _REAL, _BOOL = LongType(), StringType(), DoubleType(), BooleanType()

COMMON: Final[dict[str, DataType]] = {
    "v": _LONG,
    "kind": _TEXT,
    "cluster": _TEXT,
    "epoch": _LONG,
    "sender": _TEXT,
    "seq": _LONG,
    "ts": _TEXT,
}
"""The fields of every line. `ts` is read as text and parsed strictly: Spark's own reading turns a number into the year 57742."""

SAMPLE: Final[dict[str, DataType]] = {
    **COMMON,
    "interval_ms": _LONG,
    "primary": _TEXT,
    "backup": _TEXT,
    "queue": _TEXT,
    "replicate": _TEXT,
    "commit_index": _LONG,
    "sent_index": _LONG,
    "received_index": _LONG,
    "acked_index": _LONG,
    "applied_index": _LONG,
    "lag_records": _LONG,
    "lag_bytes": _LONG,
    "lag_ms": _REAL,
    "stall_ms": _REAL,
    "state": _TEXT,
    "in_sync": _BOOL,
    "connected": _BOOL,
    "headroom_bytes": _LONG,
    "role": _TEXT,
    "sync_ms": _REAL,
    "sync_max_ms": _REAL,
    "round_trip_ms": _REAL,
    "records_per_s": _REAL,
    "bytes_per_s": _REAL,
}

EVENT: Final[dict[str, DataType]] = {
    **COMMON,
    "broker": _TEXT,
    "type": _TEXT,
    "from": _TEXT,
    "to": _TEXT,
    "index": _LONG,
    "lost_records": _LONG,
    "duration_ms": _REAL,
    "detail": _TEXT,
    "peer": _TEXT,
    "bytes": _LONG,
}

ROSTER: Final[dict[str, DataType]] = {
    **COMMON,
    "interval_ms": _LONG,
    "primary": _TEXT,
    "backups": ArrayType(_TEXT),
    "queues": ArrayType(_TEXT),
}

PROBE: Final[dict[str, DataType]] = {
    **COMMON,
    "interval_ms": _LONG,
    "broker": _TEXT,
    "reach": _TEXT,
    "asked": _LONG,
    "answered": _LONG,
    "round_trip_ms": _REAL,
    "round_trip_max_ms": _REAL,
    "state": _TEXT,
    "primary": _TEXT,
    "broker_epoch": _LONG,
    "last_index": _LONG,
    "detail": _TEXT,
}

CORRUPT: Final = "_corrupt_record"
LINE: Final = StructType(
    [StructField(name, kind) for name, kind in {**SAMPLE, **EVENT, **ROSTER, **PROBE}.items()] + [StructField(CORRUPT, _TEXT)]
)
"""One line of any kind. Without the corrupt-record column torn lines would read as rows of nulls."""

_LOOKED_AT: Final = (
    *COMMON,
    *(
        "interval_ms",
        "primary",
        "backup",
        "queue",
        "commit_index",
        "acked_index",
        "lag_records",
        "lag_bytes",
        "lag_ms",
        "stall_ms",
    ),
    *("state", "connected", "in_sync", "headroom_bytes", "broker", "type", "reach", "backups", "queues"),
)
LOOK: Final = StructType([LINE[name] for name in (*_LOOKED_AT, CORRUPT)])
"""The fields that a line is judged by, and those that samples are added up from: the rest of a sample is passed over, unread."""

LINES: Final = StructType([StructField("value", _TEXT), StructField("file", _TEXT)])
"""What a source yields: the line's text, and the file that it stands in. Blank lines are no lines."""
