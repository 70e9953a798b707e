"""A streaming source that follows telemetry folders by byte offset, including files that are still being written.

Life of a line: a broker appends it to `.NAME.part`, which is later renamed to `NAME.jsonl`. Here both are one file with the final
name, and only complete lines are read. An offset is the number of bytes of each file that have been read. So a restart continues
where the last committed batch ended, and a batch that runs again reads the same bytes. A sender may have twenty thousand files.
Of files that have been read to their end and are no longer written, an offset keeps only the numbers in their names, as
differences. Deleted files are forgotten. A batch reads a limited number of bytes, from the oldest files first, because lines of
all senders from the same time belong together. The first batches of a process read less, because Spark must first compile its
code.

Lines are text in Arrow batches. A task that reads the same bytes again after a failure gets the same lines.
"""

from __future__ import annotations

import gzip
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_analytics.errors import Refused
from spark_analytics.schemas import LINES

NAME: Final = "understudy_telemetry"
BYTES_PER_BATCH: Final = 448 << 20
FIRST_PARTS: Final = (16, 4)
"""The first batches of a process read 1/16 and 1/4 of the bytes."""
MAX_LINE: Final = 32 << 20
"""A roster names all queues, and there may be 50,000."""
_SLICES: Final = 2
"""Number of tasks of a batch."""
_BLOCK: Final = 1 << 16
_CHUNK: Final = 4 << 20
_STAMP: Final = re.compile(r"(.*)\.(\d{15})\.jsonl")
_QUIET_S: Final = 60.0
"""A file with its final name counts as complete if it was not written for this time."""
_PACKED: Final = ".gz"
_ARROW: Final = pa.schema([("value", pa.string()), ("file", pa.string())])
Offset = dict[str, Any]
"""`files`: file → bytes that were read; `done`: beginning of files' names → the packed numbers of the complete ones."""


class Telemetry(DataSource):
    """`spark.readStream.format(NAME).option("path", DIR)`: rows of `schemas.LINES`. Option `bytes`: maximum bytes of a batch."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> StructType:
        """`schemas.LINES`."""
        return LINES

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader for one query."""
        return _Reader(Path(self.options["path"]), int(self.options.get("bytes", BYTES_PER_BATCH)))


class _Slice(InputPartition):
    """Byte ranges of files, for one task."""

    def __init__(self, ranges: list[tuple[str, int, int]]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, folder: Path, nbytes: int) -> None:
        self._folder, self._bytes = folder, nbytes
        self._target: dict[str, int] | None = None
        self._batches = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {name: _whole_bytes(self._folder / name) for name in listed(self._folder)}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        budget = None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_bytes", self._bytes)
        if budget is not None and self._batches < len(FIRST_PARTS):
            budget = max(1, budget // FIRST_PARTS[self._batches])
        end = next_offset(self._folder, start, budget, self._target)
        self._batches += end != start
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = ranges_of(start, end)
        slices: list[list[tuple[str, int, int]]] = [[] for _ in range(_SLICES)]
        for part in sorted(ranges, key=lambda item: item[1] - item[2]):
            min(slices, key=lambda taken: sum(last - first for _, first, last in taken)).append(part)
        return [_Slice(taken) for taken in slices if taken]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _Slice)
        for name, first, last in partition.ranges:
            path = (self._folder / name).absolute()
            file = path.as_uri()
            for lines in lines_of(path, first, last):
                yield pa.RecordBatch.from_arrays([lines, pa.repeat(file, len(lines))], schema=_ARROW)


def ranges_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """The bytes between two offsets, as (file, first byte, end)."""
    before = start.get("files", {})
    return [(name, before.get(name, 0), last) for name, last in end.get("files", {}).items() if last > before.get(name, 0)]


def listed(folder: Path) -> list[str]:
    """The files in a folder and below by their final names, oldest first."""
    names = set()
    for where, _, files in os.walk(folder):
        inside = os.path.relpath(where, folder)
        for name in files:
            if name.startswith(".") and name.endswith(".part"):
                name = name[1:].removesuffix(".part") + ".jsonl"  # noqa: PLW2901
            if name.endswith((".jsonl", ".jsonl.gz")) and not name.startswith((".", "_")):
                names.add(os.path.normpath(os.path.join(inside, name)))
    return sorted(names, key=lambda name: (found[2] if (found := _STAMP.match(name)) else "", name))


def next_offset(
    folder: Path, start: Mapping[str, Any], budget: int | None, target: Mapping[str, int] | None, *, now_s: float | None = None
) -> Offset:
    """The end of the next batch: at most `budget` bytes after `start`, but at least one line, and never beyond `target`.

    It is `start` when there is nothing to read.
    """
    before: dict[str, int] = start.get("files", {})
    done = {prefix: _unpacked(text) for prefix, text in start.get("done", {}).items()}
    known = {prefix: set(stamps) for prefix, stamps in done.items()}
    files: dict[str, int] = {}
    here: dict[str, list[int]] = {}
    left = budget
    for name in listed(folder):
        stamp = _STAMP.fullmatch(name)
        if stamp and int(stamp[2]) in known.get(stamp[1], ()):
            here.setdefault(stamp[1], []).append(int(stamp[2]))
            continue
        taken = before.get(name, 0)
        there = _whole_bytes(folder / name) if left is None or left > 0 else taken
        if target is not None:
            there = min(there, target.get(name, 0))
        if left is not None and there - taken > left:
            there = _line_end(folder / name, taken + left, there)
        there = max(there, taken)
        if left is not None:
            left = max(0, left - (there - taken))
        if there:
            files[name] = there
    if not ranges_of(start, {"files": files}):
        return dict(start)
    for name in [name for name, there in files.items() if before.get(name) == there]:
        stamp = _STAMP.fullmatch(name)
        if stamp and _is_complete(folder / name, files[name], time.time() if now_s is None else now_s):
            here.setdefault(stamp[1], []).append(int(stamp[2]))
            del files[name]
    return {"files": files, "done": {prefix: _packed(stamps) for prefix, stamps in here.items()}}


def _packed(numbers: Iterable[int]) -> str:
    """Numbers as their differences in hexadecimal."""
    before, parts = 0, []
    for number in sorted(numbers):
        parts.append(f"{number - before:x}")
        before = number
    return ",".join(parts)


def _unpacked(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(",") if text else ():
        numbers.append(int(part, 16) + (numbers[-1] if numbers else 0))
    return numbers


def _is_complete(path: Path, nbytes: int, now_s: float) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_size == nbytes and found.st_mtime < now_s - _QUIET_S


def _opened(path: Path) -> Any:
    """The file with its final name or, before the rename, with its hidden one. FileNotFoundError if it is deleted."""
    for name in (path.name, f".{path.name.removesuffix('.jsonl')}.part"):
        with suppress(FileNotFoundError):
            return path.with_name(name).open("rb")
    return path.open("rb")  # the broker may have renamed it between the two attempts


def _whole_bytes(path: Path) -> int:
    """The number of bytes of the file that are complete lines. A file with its final name is complete, and a compressed one is
    read at once."""
    try:
        return path.stat().st_size
    except OSError:
        pass
    try:
        with _opened(path) as file:
            size = int(file.seek(0, 2))
            at = size
            while at > 0:
                begin = max(0, at - _BLOCK)
                file.seek(begin)
                found = file.read(at - begin).rfind(b"\n")
                if found >= 0:
                    return begin + int(found) + 1
                at = begin
    except OSError:
        return 0
    return 0


def _line_end(path: Path, at: int, last: int) -> int:
    """The end of the line that contains `at`; a compressed file counts as one line. 0 when the file is deleted."""
    if path.name.endswith(_PACKED):
        return last
    try:
        with _opened(path) as file:
            file.seek(at)
            while at < last and (block := file.read(_BLOCK)):
                found = int(block.find(b"\n"))
                if found >= 0:
                    return min(at + found + 1, last)
                at += len(block)
    except OSError:
        return 0
    return last


def lines_of(path: Path, first: int, last: int) -> Iterator[pa.StringArray]:
    """The lines in a range of bytes that begins and ends with complete lines, some thousands at a time; none when the file is
    deleted."""
    return map(texts, blocks_of(path, first, last))


def blocks_of(path: Path, first: int, last: int) -> Iterator[bytes]:
    """The bytes of `lines_of`, in pieces that each end with a newline."""
    try:
        with _opened(path) as raw:
            if path.name.endswith(_PACKED):
                with gzip.open(raw) as unpacked:
                    yield from _blocks(unpacked)
            else:
                raw.seek(first)
                yield from _blocks(raw, last - first)
    except (FileNotFoundError, EOFError, zlib.error, gzip.BadGzipFile):
        return
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}; check its owner and mode") from None


def _blocks(file: Any, nbytes: int | None = None) -> Iterator[bytes]:
    """The rest of an open file, or this many bytes of it, in pieces that each end with a newline. A line longer than MAX_LINE is
    cut.
    """
    rest = b""
    while block := file.read(_CHUNK if nbytes is None else min(_CHUNK, nbytes)):
        nbytes = None if nbytes is None else nbytes - len(block)
        end = block.rfind(b"\n")
        if end >= 0:
            yield rest + block[: end + 1]
            rest = block[end + 1 :]
        else:
            rest += block
        rest = rest[:MAX_LINE]
    if rest:
        yield rest + b"\n"


def texts(lines: bytes) -> pa.StringArray:
    """The lines as text, without empty ones; each ends with a newline in `lines`. Lines longer than MAX_LINE are cut."""
    found = lines.decode("utf-8", "replace").split("\n")
    return pa.array([line[:MAX_LINE] for line in found if line.strip()], pa.string())
