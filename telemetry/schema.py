"""The fields of a telemetry line, version 1: their names, order and types.

A line is one JSON object of one kind. Types: `long` (a 64-bit integer), `real`, `bool`, `text`, `texts` (a list). New fields are
only added at the end of a kind, and new types of events may be added; a changed meaning needs a new version.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 1
"""The value of `v` in each line."""

COMMON: Final = {"v": "long", "kind": "text", "cluster": "text", "epoch": "long", "sender": "text", "seq": "long", "ts": "text"}
"""The first fields of every line."""

SAMPLE: Final = {
    "interval_ms": "long",
    "primary": "text",
    "backup": "text",
    "queue": "text",
    "replicate": "text",
    "commit_index": "long",
    "sent_index": "long",
    "received_index": "long",
    "acked_index": "long",
    "applied_index": "long",
    "lag_records": "long",
    "lag_bytes": "long",
    "lag_ms": "real",
    "stall_ms": "real",
    "state": "text",
    "in_sync": "bool",
    "connected": "bool",
    "headroom_bytes": "long",
    "role": "text",
    "sync_ms": "real",
    "sync_max_ms": "real",
    "round_trip_ms": "real",
    "records_per_s": "real",
    "bytes_per_s": "real",
}
EVENT: Final = {
    "broker": "text",
    "type": "text",
    "from": "text",
    "to": "text",
    "index": "long",
    "lost_records": "long",
    "duration_ms": "real",
    "detail": "text",
    "peer": "text",
    "bytes": "long",
}
ROSTER: Final = {
    "interval_ms": "long",
    "primary": "text",
    "backups": "texts",
    "queues": "texts",
    "voters": "texts",
    "witness": "text",
    "witness_connected": "bool",
}
PROBE: Final = {
    "interval_ms": "long",
    "broker": "text",
    "reach": "text",
    "asked": "long",
    "answered": "long",
    "round_trip_ms": "real",
    "round_trip_max_ms": "real",
    "state": "text",
    "primary": "text",
    "broker_epoch": "long",
    "last_index": "long",
    "detail": "text",
}
KINDS: Final = {"sample": SAMPLE, "event": EVENT, "roster": ROSTER, "probe": PROBE}
"""The kinds of lines, each with its fields after the common ones."""

EVENT_TYPES: Final = frozenset(
    {
        "role",
        "promote_asked",
        "promote_won",
        "promote_refused",
        "discovery",
        "catch_up_begin",
        "catch_up_end",
        "snapshot_begin",
        "snapshot_end",
        "backup_lost",
        "failure_detected",
        "failover_done",
        "fenced",
        "drain",
        "one_copy",
        "more_copies",
        "drop",
    }
)
"""The types of events."""

STATES: Final = ("joining", "catchup", "ready", "recovering", "active", "standalone")
REACHES: Final = ("reachable", "silent", "absent")
