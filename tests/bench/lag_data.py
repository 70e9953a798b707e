"""Telemetry by the million with known answers, written by Spark itself: what tests/bench/lag.py measures on.

One primary, two backups, a hundred queues, a sample a second of each and of the whole log, in files of 30 s as a broker rolls
them. Lines have the broker's own fields in the broker's own order. Lags lie between 1 ms and 1 s, the same thousand values for
each queue in an order of its own; once, for a hundredth of the span, the second backup stands still. Nothing is left to chance.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from telemetry.lines import Head, LagSample, sample_record, timestamp

CLUSTER: Final = "bench"
PRIMARY: Final = "127.0.0.1:5672"
BACKUPS: Final = ("127.0.0.1:5673", "127.0.0.1:5674")
QUEUES: Final = 100
KEYS: Final = len(BACKUPS) * (QUEUES + 1)
"""Samples a second: each queue's and the whole log's, for each backup."""
START_MS: Final = 1_767_600_000_000
BYTES_PER_LINE: Final = 640
_SECONDS_PER_FILE: Final = 30
_FILES_PER_TASK: Final = 20
_FIRST_SEQ: Final = START_MS * 1000
_HEAD: Final = Head(CLUSTER, 1, PRIMARY, timestamp(START_MS / 1000))


@dataclass(frozen=True, slots=True)
class Backlog:
    """What was written where, and what a truthful summary finds in it."""

    folder: Path
    seconds: int
    files: int
    nbytes: int

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return self.seconds * KEYS

    @property
    def end_ms(self) -> int:
        """When the last second is over."""
        return START_MS + self.seconds * 1000

    @property
    def longest_stall_ms(self) -> float:
        """Of the second backup; the first has none."""
        return (_stalled_s(self.seconds) - 1) * 1000 + 500.0


def write(spark: SparkSession, folder: Path, samples: int) -> Backlog:
    """About so many samples, in whole seconds. The same number gives the same bytes."""
    seconds = max(2 * _SECONDS_PER_FILE, samples // KEYS)
    per_file = _SECONDS_PER_FILE * KEYS
    tasks = -(-seconds * KEYS // (per_file * _FILES_PER_TASK))
    rows = spark.range(0, tasks * per_file * _FILES_PER_TASK, 1, tasks).where(F.col("id") < seconds * KEYS)
    aside = folder.with_name(f"{folder.name}.parts")
    rows.select(_line(seconds)).write.option("maxRecordsPerFile", per_file).text(str(aside))
    folder.mkdir()
    parts = sorted(aside.glob("part-*"))
    for number, part in enumerate(parts, 1):
        part.rename(_file(folder, START_MS + number))
    _file(folder, START_MS).write_text(json.dumps(_roster(), separators=(",", ":")) + "\n")
    nbytes = sum(file.stat().st_size for file in folder.iterdir())
    return Backlog(folder, seconds, len(parts) + 1, nbytes)


def _file(folder: Path, stamp_ms: int) -> Path:
    return folder / f"{PRIMARY.replace(':', '_')}.{stamp_ms:015d}.jsonl"


def _stalled_s(seconds: int) -> int:
    return max(10, seconds // 100)


def _roster() -> dict[str, Any]:
    queues = [f"orders.{number}" for number in range(1, QUEUES + 1)]
    return _HEAD.record("roster", _FIRST_SEQ, interval_ms=1000, primary=PRIMARY, backups=list(BACKUPS), queues=queues)


def _line(seconds: int) -> Column:
    """A line as text: what never changes is encoded once, by the broker's own functions."""
    changing = _changing(seconds)
    sample = LagSample(
        *("", "", "all", 0, 0, None, 0, None, 0, 0, 0.0, 0.0, "ready", True, True, None),
        *("primary", 0.21, 0.9, 0.15, 400.0, 409600.0),
    )
    record = sample_record(_HEAD, 0, interval_ms=1000, primary=PRIMARY, sample=sample)
    pieces: list[Column] = []
    text = "{"
    for name, value in record.items():
        text += f'"{name}":'
        if name in changing:
            pieces += [F.lit(text), changing[name].cast("string")]
            text = ","
        else:
            text += f"{json.dumps(value)},"
    return F.concat(*pieces, F.lit(f"{text.removesuffix(',')}}}")).alias("value")


def _changing(seconds: int) -> dict[str, Column]:
    number = F.col("id")
    second, key = F.floor(number / KEYS), number % KEYS
    backup, queue = F.floor(key / (QUEUES + 1)), key % (QUEUES + 1)
    begin, length = seconds // 4, _stalled_s(seconds)
    stalled = (backup == 1) & (second >= begin) & (second < begin + length)
    stall_ms = F.when(stalled, (second - begin) * 1000 + 500.0).otherwise(F.lit(0.0))
    lag_ms = F.when(stalled, stall_ms).otherwise(F.round(F.exp((second * 7919 + key * 104_729) % 1000 * 0.0069), 3))
    commit, records = 1000 + 400 * second, F.ceil(lag_ms * 0.4)
    acked = F.when(stalled, F.lit(999 + 400 * begin)).otherwise(commit - records)
    names = F.when(backup == 0, F.lit(f'"{BACKUPS[0]}"')).otherwise(F.lit(f'"{BACKUPS[1]}"'))
    moment = F.timestamp_millis(second * 1000 + START_MS + 500)
    return {
        "seq": number + _FIRST_SEQ + 1,
        "ts": F.date_format(moment, "'\"'yyyy-MM-dd'T'HH:mm:ss.SSS'Z\"'"),
        "backup": names,
        "queue": F.when(queue == 0, F.lit("null")).otherwise(F.concat(F.lit('"orders.'), queue.cast("string"), F.lit('"'))),
        "commit_index": commit,
        "sent_index": commit,
        "acked_index": acked,
        "lag_records": records,
        "lag_bytes": records * 1024,
        "lag_ms": lag_ms,
        "stall_ms": stall_ms,
    }
