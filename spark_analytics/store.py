"""The folder that a stream writes and a summary reads: immutable Parquet folders, and one small file that says which count.

    lag.json                                      the manifest: replaced by one rename, which is the only commit there is
    parts/batch_id=N/TABLE/hour=H/                what micro-batch N has added; written again whole when it is run again
    hours/hour=H/v=K/TABLE/                       all of an hour, one file a table (compaction), and its roll-ups
    days/day=D/v=K/lag_1d/                        roll-ups of a whole day
    _checkpoint/                                  Spark's own

A reader takes the manifest once and reads the folders that it names, so it sees each row exactly once whatever happens meanwhile.
A folder that is no longer named is deleted some minutes later, when whoever had an older manifest has finished. Days that are
older than what shall be kept leave in the same way. A kill at any
moment leaves the old manifest or the new one, and at worst folders that nobody names, which the next start deletes.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spark_analytics.errors import Refused
from spark_analytics.places import here
from spark_analytics.ranges import Ranges

MANIFEST: Final = "lag.json"
FORMAT: Final = "understudy-lag"
VERSION: Final = 1
HOUR_MS: Final = 3_600_000
HOURS_A_DAY: Final = 24
DAY_MS: Final = HOURS_A_DAY * HOUR_MS
GRACE_MS: Final = 10 * 60_000
TABLES: Final = ("told", "events", "rosters", "quarantine")
"""What a batch adds; an hour has besides: `presence`, `views`, `lag_1m` (whole log) and `lag_1h`."""
MAX_RANGES: Final = 2000
"""Of a sender's numbers; beyond that the oldest gaps are taken for seen, so that what comes that late counts as a repeat."""


@dataclass(slots=True)
class Manifest:
    """What `lag.json` holds."""

    settings: dict[str, Any]
    query: str = ""
    batch: int = -1
    updated_ms: int = 0
    parts: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    """Batch → table → the hours it has rows of; hours that have been compacted are taken out."""
    hours: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Hour → `v`, `tables`, and `rolled`: whether its roll-ups are of all its rows."""
    days: dict[int, int] = field(default_factory=dict)
    kept_from_ms: int = 0
    """What is older has been dropped; 0: nothing has."""
    garbage: list[tuple[str, int]] = field(default_factory=list)
    seen: dict[str, Ranges] = field(default_factory=dict)
    """Cluster and sender → the numbers of the lines that have been counted, as closed ranges in order."""
    files: list[int] = field(default_factory=list)
    """The last batch's, as hashes of their names, so that one that goes on in the next is counted once."""
    newest: dict[str, int] = field(default_factory=dict)
    heard: dict[str, int] = field(default_factory=dict)
    reigns: dict[str, list[Any]] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)
    """Table → its newest schema, as Spark writes it: older files lack what has been added, and read as null."""
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("lines", "files", "repeated", "late", "bad"), 0))

    def counted_in(self, other: Manifest) -> None:
        """Bring what the newest batch has changed here into the manifest as it is by now. The rest is compaction's to change."""
        for name in _OF_BATCHES:
            setattr(other, name, getattr(self, name))
        if self.batch in self.parts:
            other.parts[self.batch] = self.parts[self.batch]
        other.schemas |= {table: schema for table, schema in self.schemas.items() if table in TABLES}

    def dirty(self) -> set[int]:
        """The hours that have rows outside their compacted folder."""
        return {hour for tables in self.parts.values() for hours in tables.values() for hour in hours}

    def named(self) -> set[str]:
        """The folders of batches, hours and days that count."""
        found = {f"parts/batch_id={batch}" for batch in self.parts}
        found |= {f"hours/hour={hour}/v={entry['v']}" for hour, entry in self.hours.items()}
        return found | {f"days/day={day}/v={version}" for day, version in self.days.items()}

    def hours_of(self, day: int) -> list[int]:
        """The compacted hours of a day."""
        return [hour for hour in self.hours if hour // HOURS_A_DAY == day]


_OF_BATCHES: Final = (*("batch", "query", "updated_ms", "seen", "files", "newest", "heard", "reigns", "counters"),)


def names(*parts: str) -> str:
    """Several names as one key."""
    return json.dumps(parts)


def names_of(key: str) -> list[str]:
    """The names of a key."""
    return [str(name) for name in json.loads(key)]


def is_store(path: str | Path) -> bool:
    """Whether a stream has written there."""
    return (here(path) / MANIFEST).is_file()


class Store:
    """One such folder. Only one stream writes to it at a time; any number may read."""

    def __init__(self, path: str | Path) -> None:
        self.path = here(path)
        self._changing = threading.Lock()

    def load(self) -> Manifest:
        """The manifest as it is now. Refused when it is none, or of another version."""
        try:
            text = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
            if text.get("format") != FORMAT:
                raise ValueError("not a manifest")
            version = text["version"]
            if version != VERSION:
                raise Refused(
                    f"{self.path} was written as version {version}, this qpid-lag reads version {VERSION}: "
                    "use the qpid-lag that wrote it, or stream into a new folder"
                )
            return _manifest(text["manifest"])
        except OSError as error:
            raise Refused(f"cannot read {self.path / MANIFEST}: {error.strerror}; check its owner and mode") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refused(f"{self.path / MANIFEST} is damaged: stream the telemetry again into a new folder") from None

    def commit(self, manifest: Manifest) -> None:
        """Make it the one that counts, by one rename."""
        aside = self.path / f".{MANIFEST}.part"
        body = {"format": FORMAT, "version": VERSION, "manifest": _plain(manifest)}
        with aside.open("w", encoding="utf-8") as file:
            json.dump(body, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.path / MANIFEST)

    @contextmanager
    def changing(self) -> Iterator[Manifest]:
        """The manifest as it is now, to be changed, and committed at the end. Threads that share this Store take turns."""
        with self._changing:
            manifest = self.load()
            yield manifest
            self.commit(manifest)

    def part(self, batch: int, table: str) -> Path:
        """Where a batch writes a table; hours are folders below."""
        return self.path / "parts" / f"batch_id={batch}" / table

    def hour(self, hour: int, version: int, table: str) -> Path:
        """Where a table of a compacted hour lies."""
        return self.path / "hours" / f"hour={hour}" / f"v={version}" / table

    def day(self, day: int, version: int) -> Path:
        """Where the roll-up of a day lies."""
        return self.path / "days" / f"day={day}" / f"v={version}" / "lag_1d"

    def dirs(self, manifest: Manifest, table: str, hours: Iterable[int]) -> list[str]:
        """The folders that together hold exactly the table's rows of those hours."""
        wanted = set(hours)
        found = [
            str(self.hour(hour, entry["v"], table))
            for hour, entry in sorted(manifest.hours.items())
            if hour in wanted and table in entry["tables"]
        ]
        for batch, tables in sorted(manifest.parts.items()):
            found += [str(self.part(batch, table) / f"hour={hour}") for hour in tables.get(table, []) if hour in wanted]
        return found

    def sweep(self, manifest: Manifest, now_ms: int) -> None:
        """Delete what nobody names and nobody still reads; the manifest is committed by the caller."""
        kept, named = [], manifest.named()
        for name, since_ms in manifest.garbage:
            if now_ms - since_ms < GRACE_MS:
                kept.append((name, since_ms))
            elif name not in named:
                shutil.rmtree(self.path / name, ignore_errors=True)
                with suppress(OSError):
                    (self.path / name).parent.rmdir()  # an hour or a day that has no version any more
        manifest.garbage = kept

    def tidy(self, manifest: Manifest) -> None:
        """At a start: delete folders of batches and versions that were never committed."""
        named = manifest.named() | {name for name, _ in manifest.garbage}
        for pattern in ("parts/batch_id=*", "hours/hour=*/v=*", "days/day=*/v=*"):
            for folder in self.path.glob(pattern):
                if str(folder.relative_to(self.path)) not in named:
                    shutil.rmtree(folder, ignore_errors=True)


def drop(manifest: Manifest, keep_ms: int, now_ms: int) -> bool:
    """Drop the days that ended `keep_ms` or more before the newest line: they are no longer named, and their folders garbage.

    Whether there were any. What was counted stays counted: a dropped line that comes again is a repeat.
    """
    first_day = (max(manifest.newest.values(), default=0) - keep_ms) // DAY_MS
    first_hour = first_day * HOURS_A_DAY
    before = len(manifest.garbage)
    for hour in [hour for hour in manifest.hours if hour < first_hour]:
        manifest.garbage.append((f"hours/hour={hour}/v={manifest.hours.pop(hour)['v']}", now_ms))
    for day in [day for day in manifest.days if day < first_day]:
        manifest.garbage.append((f"days/day={day}/v={manifest.days.pop(day)}", now_ms))
    for batch, tables in list(manifest.parts.items()):
        left = {table: [hour for hour in hours if hour >= first_hour] for table, hours in tables.items()}
        if any(left.values()):
            gone = [(table, hour) for table, hours in tables.items() for hour in hours if hour < first_hour]
            manifest.garbage += [(f"parts/batch_id={batch}/{table}/hour={hour}", now_ms) for table, hour in gone]
            manifest.parts[batch] = {table: hours for table, hours in left.items() if hours}
        else:
            manifest.garbage.append((f"parts/batch_id={batch}", now_ms))
            del manifest.parts[batch]
    if len(manifest.garbage) == before:
        return False
    manifest.kept_from_ms = max(manifest.kept_from_ms, first_day * DAY_MS)
    return True


def _plain(manifest: Manifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in Manifest.__dataclass_fields__}


def _manifest(plain: dict[str, Any]) -> Manifest:
    found = Manifest(**plain)
    found.parts = {int(batch): tables for batch, tables in found.parts.items()}
    found.hours = {int(hour): entry for hour, entry in found.hours.items()}
    found.days = {int(day): version for day, version in found.days.items()}
    found.garbage = [(name, since_ms) for name, since_ms in found.garbage]
    return found
