"""The telemetry's schema as Spark reads it, version 1. `broker.telemetry` writes it; a contract test compares the two.

One line is one JSON object of one kind: `sample`, `event` or `roster`. All kinds are read with one flat schema, the union of
their fields, because one pass over the files must serve them all. Fields are only ever added: an older file lacks a field,
which then reads as null; a line of a newer version is kept aside and counted.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import ArrayType, BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

VERSION: Final = 1
KINDS: Final = ("sample", "event", "roster")

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
}

ROSTER: Final[dict[str, DataType]] = {
    **COMMON,
    "interval_ms": _LONG,
    "primary": _TEXT,
    "backups": ArrayType(_TEXT),
    "queues": ArrayType(_TEXT),
}

CORRUPT: Final = "_corrupt_record"
LINE: Final = StructType(
    [StructField(name, kind) for name, kind in {**SAMPLE, **EVENT, **ROSTER}.items()] + [StructField(CORRUPT, _TEXT)]
)
"""One line of any kind. Without the corrupt-record column torn lines would read as rows of nulls."""

LINES: Final = StructType([StructField("value", _TEXT), StructField("file", _TEXT)])
"""What a source yields: the line's text, and the file that it stands in."""
