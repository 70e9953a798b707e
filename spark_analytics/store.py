"""The folder that a stream writes and a summary reads: immutable Parquet, and one small file that says which of it counts.

    lag.json                            the manifest: replaced by one rename, which is the only commit there is
    parts/batch_id=N/hour=H/            the lines of micro-batch N; written again whole when it is run again
    hours/hour=H/v=K/                   all lines of an hour, in one sorted file (compaction)
    _checkpoint/                        Spark's own

The columns are those of `lines.kept`: each line of telemetry once, typed, by the hour that it was said in; lines with a problem
by the hour in which they came. A reader takes the manifest once and reads the folders that it names, so it sees each row exactly
once whatever happens meanwhile. A folder that is no longer named is deleted some minutes later, when whoever had an older
manifest has finished. Days that are older than what shall be kept leave in the same way. A kill at any moment leaves the old
manifest or the new one, and at worst folders that nobody names, which the next start deletes.
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
FORMAT: Final = "understudy-lag"
VERSION: Final = 2
HOUR_MS: Final = 3_600_000
HOURS_A_DAY: Final = 24
DAY_MS: Final = HOURS_A_DAY * HOUR_MS
GRACE_MS: Final = 10 * 60_000
_ASKED_FILES: Final = 64
MAX_RANGES: Final = 2000
"""Of a sender's numbers; beyond that the oldest gaps are taken for seen, so that what comes that late counts as a repeat."""


@dataclass(slots=True)
class Manifest:
    """What `lag.json` holds."""

    query: str = ""
    batch: int = -1
    updated_ms: int = 0
    parts: dict[int, list[int]] = field(default_factory=dict)
    """Batch → the hours it has rows of; hours that have been compacted are taken out."""
    hours: dict[int, int] = field(default_factory=dict)
    """Hour → the version of its compacted folder."""
    kept_from_ms: int = 0
    """What is older has been dropped; 0: nothing has."""
    garbage: list[tuple[str, int]] = field(default_factory=list)
    seen: dict[str, Ranges] = field(default_factory=dict)
    """Cluster and sender → the numbers of the lines that have been counted, as closed ranges in order."""
    files: list[int] = field(default_factory=list)
    """The last batch's, as hashes of their names, so that one that goes on in the next is counted once."""
    newest: dict[str, int] = field(default_factory=dict)
    heard: dict[str, int] = field(default_factory=dict)
    schema: str = ""
    """The newest, as Spark writes it: older files lack what has been added, and read as null."""
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("lines", "files", "repeated", "late", "bad"), 0))

    def counted_in(self, other: Manifest) -> None:
        """Bring what the newest batch has changed here into the manifest as it is by now. The rest is compaction's to change."""
        for name in _OF_BATCHES:
            setattr(other, name, getattr(self, name))
        if self.batch in self.parts:
            other.parts[self.batch] = self.parts[self.batch]

    def dirty(self) -> set[int]:
        """The hours that have rows outside their compacted folder."""
        return {hour for hours in self.parts.values() for hour in hours}

    def hours_within(self, since_ms: int | None, until_ms: int | None) -> list[int]:
        """All that a span touches."""
        return [
            hour
            for hour in sorted(self.dirty() | self.hours.keys())
            if (since_ms is None or (hour + 1) * HOUR_MS > since_ms) and (until_ms is None or hour * HOUR_MS < until_ms)
        ]

    def named(self) -> set[str]:
        """The folders of batches and hours that count."""
        found = {f"parts/batch_id={batch}" for batch in self.parts}
        return found | {f"hours/hour={hour}/v={version}" for hour, version in self.hours.items()}


_OF_BATCHES: Final = (*("batch", "query", "updated_ms", "seen", "files", "newest", "heard", "counters", "schema"),)


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

    def part(self, batch: int) -> Path:
        """Where a batch writes; hours are folders below."""
        return self.path / "parts" / f"batch_id={batch}"

    def hour(self, hour: int, version: int) -> Path:
        """Where a compacted hour lies."""
        return self.path / "hours" / f"hour={hour}" / f"v={version}"

    def dirs(self, manifest: Manifest, hours: Iterable[int]) -> list[str]:
        """The folders that together hold exactly the rows of those hours."""
        wanted = set(hours)
        found = [str(self.hour(hour, version)) for hour, version in sorted(manifest.hours.items()) if hour in wanted]
        for batch, its in sorted(manifest.parts.items()):
            found += [str(self.part(batch) / f"hour={hour}") for hour in its if hour in wanted]
        return found

    def n_lines(self, manifest: Manifest, hours: Iterable[int]) -> int:
        """About how many lines those hours have: the newest files are asked, the others have as many for their size."""
        files = [file for folder in self.dirs(manifest, hours) for file in Path(folder).glob("*.parquet")]
        sizes = [file.stat().st_size for file in files]
        asked = sum(map(_rows_of, files[-_ASKED_FILES:]))
        return asked * sum(sizes) // max(1, sum(sizes[-_ASKED_FILES:]))

    def sweep(self, manifest: Manifest, now_ms: int) -> None:
        """Delete what nobody names and nobody still reads; the manifest is committed by the caller."""
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
        """At a start: delete folders of batches and versions that were never committed."""
        named = manifest.named() | {name for name, _ in manifest.garbage}
        for pattern in ("parts/batch_id=*", "hours/hour=*/v=*"):
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
