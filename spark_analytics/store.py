"""The folder that a stream writes and a summary reads: immutable Parquet, and one small file that names the valid folders.

    lag.json                            the manifest: replaced by one rename, which is the only commit there is
    parts/batch_id=N/hour=H/            the lines of micro-batch N; written again whole when it is run again
    hours/hour=H/v=K/                   all lines of an hour, in one sorted file (compaction)
    _checkpoint/                        Spark's own

The columns are those of `lines.kept`: each line of telemetry once, typed, by the hour of its time; lines with a problem by the
hour in which they arrived. A reader reads the manifest once, and then the folders that it names. So it sees each row exactly
once, whatever happens meanwhile. A folder that is no longer named is deleted some minutes later, when readers of an older
manifest have finished. Days that are older than `--keep` are removed in the same way. A kill at any moment leaves the old
manifest or the new one. It may leave folders that no manifest names; the next start deletes them.
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

from pyarrow import parquet

from spark_analytics.errors import Refused
from spark_analytics.locations import here
from spark_analytics.ranges import Ranges

MANIFEST: Final = "lag.json"
ASIDE: Final = f".{MANIFEST}.part"
"""The next manifest while it is written."""
FORMAT: Final = "understudy-lag"
VERSION: Final = 2
HOUR_MS: Final = 3_600_000
HOURS_A_DAY: Final = 24
DAY_MS: Final = HOURS_A_DAY * HOUR_MS
GRACE_MS: Final = 10 * 60_000
_ASKED_FILES: Final = 64
MAX_RANGES: Final = 2000
"""Maximum number of ranges of a sender's numbers. Above it the oldest gaps are closed, so a line that late counts as repeated."""


@dataclass(slots=True)
class Manifest:
    """The content of `lag.json`."""

    query: str = ""
    batch: int = -1
    updated_ms: int = 0
    parts: dict[int, list[int]] = field(default_factory=dict)
    """Batch → the hours of its rows, without the hours that have been compacted."""
    hours: dict[int, int] = field(default_factory=dict)
    """Hour → the version of its compacted folder."""
    kept_from_ms: int = 0
    """Older lines have been dropped; 0: none have."""
    garbage: list[tuple[str, int]] = field(default_factory=list)
    seen: dict[str, Ranges] = field(default_factory=dict)
    """Cluster and sender → the numbers of the lines that have been counted, as closed ranges in order."""
    files: list[int] = field(default_factory=list)
    """The files of the last batch, as hashes of their names, so that a file that continues in the next batch is counted once."""
    newest: dict[str, int] = field(default_factory=dict)
    heard: dict[str, int] = field(default_factory=dict)
    """Backup → when its primary last heard it."""
    heard_in: dict[str, str] = field(default_factory=dict)
    """Backup → its cluster. A store of an older release does not know it."""
    schema: str = ""
    """The newest schema, in Spark's form. Columns that older files lack are read as null."""
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("lines", "files", "repeated", "late", "bad"), 0))

    def counted_in(self, other: Manifest) -> None:
        """Copy what the newest batch has changed here to the current manifest. Only compaction changes the rest."""
        for name in _OF_BATCHES:
            setattr(other, name, getattr(self, name))
        if self.batch in self.parts:
            other.parts[self.batch] = self.parts[self.batch]

    def dirty(self) -> set[int]:
        """The hours that have rows outside their compacted folder."""
        return {hour for hours in self.parts.values() for hour in hours}

    def newest_ms(self, now_ms: int) -> int:
        """The time of the newest line, but not after now: a clock that is ahead makes nothing old."""
        return min(max(self.newest.values(), default=0), now_ms)

    def hours_within(self, since_ms: int | None, until_ms: int | None) -> list[int]:
        """All hours that overlap with a span."""
        return [
            hour
            for hour in sorted(self.dirty() | self.hours.keys())
            if (since_ms is None or (hour + 1) * HOUR_MS > since_ms) and (until_ms is None or hour * HOUR_MS < until_ms)
        ]

    def named(self) -> set[str]:
        """The folders of batches and hours that are valid."""
        found = {f"parts/batch_id={batch}" for batch in self.parts}
        return found | {f"hours/hour={hour}/v={version}" for hour, version in self.hours.items()}


_OF_BATCHES: Final = (*("batch", "query", "updated_ms", "seen", "files", "newest", "heard", "heard_in", "counters", "schema"),)


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
        """The current manifest. Refused when it is damaged, or of another version."""
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
        """Make this the current manifest, by one rename."""
        aside = self.path / ASIDE
        body = {"format": FORMAT, "version": VERSION, "manifest": _plain(manifest)}
        with aside.open("w", encoding="utf-8") as file:
            json.dump(body, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.path / MANIFEST)

    @contextmanager
    def changing(self) -> Iterator[Manifest]:
        """The current manifest, for changes; it is committed at the end. Threads that share this Store take turns."""
        with self._changing:
            manifest = self.load()
            yield manifest
            self.commit(manifest)

    def part(self, batch: int) -> Path:
        """The folder of a batch; hours are folders in it."""
        return self.path / "parts" / f"batch_id={batch}"

    def hour(self, hour: int, version: int) -> Path:
        """The folder of a compacted hour."""
        return self.path / "hours" / f"hour={hour}" / f"v={version}"

    def dirs(self, manifest: Manifest, hours: Iterable[int]) -> list[str]:
        """The folders that together contain exactly the rows of those hours."""
        wanted = set(hours)
        found = [str(self.hour(hour, version)) for hour, version in sorted(manifest.hours.items()) if hour in wanted]
        for batch, its in sorted(manifest.parts.items()):
            found += [str(self.part(batch) / f"hour={hour}") for hour in its if hour in wanted]
        return found

    def n_lines(self, manifest: Manifest, hours: Iterable[int]) -> int:
        """About how many lines those hours have: the newest files tell their number, the others are estimated by their size."""
        files = [file for folder in self.dirs(manifest, hours) for file in Path(folder).glob("*.parquet")]
        sizes = [file.stat().st_size for file in files]
        asked = sum(map(_rows_of, files[-_ASKED_FILES:]))
        return asked * sum(sizes) // max(1, sum(sizes[-_ASKED_FILES:]))

    def sweep(self, manifest: Manifest, now_ms: int) -> None:
        """Delete the folders that no manifest names and no reader still reads; the caller commits the manifest."""
        kept, named = [], manifest.named()
        for name, since_ms in manifest.garbage:
            if now_ms - since_ms < GRACE_MS:
                kept.append((name, since_ms))
            elif name not in named:
                shutil.rmtree(self.path / name, ignore_errors=True)
                with suppress(OSError):
                    (self.path / name).parent.rmdir()  # removes the folder of the hour if it is empty
        manifest.garbage = kept

    def tidy(self, manifest: Manifest) -> None:
        """At the start: delete the folders of batches and versions that were never committed."""
        named = manifest.named() | {name for name, _ in manifest.garbage}
        for pattern in ("parts/batch_id=*", "hours/hour=*/v=*"):
            for folder in self.path.glob(pattern):
                if str(folder.relative_to(self.path)) not in named:
                    shutil.rmtree(folder, ignore_errors=True)


def drop(manifest: Manifest, keep_ms: int, now_ms: int) -> bool:
    """Drop the days that ended `keep_ms` or more before the newest line: the manifest no longer names their folders, which become
    garbage.

    Returns whether there were any. Counters stay: a dropped line that arrives again counts as repeated.
    """
    first_day = (manifest.newest_ms(now_ms) - keep_ms) // DAY_MS
    first_hour = first_day * HOURS_A_DAY
    before = len(manifest.garbage)
    for hour in [hour for hour in manifest.hours if hour < first_hour]:
        manifest.garbage.append((f"hours/hour={hour}/v={manifest.hours.pop(hour)}", now_ms))
    for batch, hours in list(manifest.parts.items()):
        left = [hour for hour in hours if hour >= first_hour]
        if left:
            manifest.garbage += [(f"parts/batch_id={batch}/hour={hour}", now_ms) for hour in hours if hour < first_hour]
            manifest.parts[batch] = left
        else:
            manifest.garbage.append((f"parts/batch_id={batch}", now_ms))
            del manifest.parts[batch]
    if len(manifest.garbage) == before:
        return False
    manifest.kept_from_ms = max(manifest.kept_from_ms, first_day * DAY_MS)
    return True


def _rows_of(file: Path) -> int:
    """How many rows a Parquet file has; 0 if it is damaged, as Spark reads it."""
    try:
        return int(parquet.read_metadata(file).num_rows)
    except (OSError, ValueError):
        return 0


def _plain(manifest: Manifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in Manifest.__dataclass_fields__}


def _manifest(plain: dict[str, Any]) -> Manifest:
    found = Manifest(**plain)
    found.parts = {int(batch): hours for batch, hours in found.parts.items()}
    found.hours = {int(hour): version for hour, version in found.hours.items()}
    found.garbage = [(name, since_ms) for name, since_ms in found.garbage]
    return found
