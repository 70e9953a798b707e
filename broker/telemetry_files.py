"""A sender's telemetry files: one hidden file that is being written, and the complete ones, of which the oldest are deleted.

Life of a file: `append` opens it as `.NAME.part`. `roll` closes it and renames it to `NAME.jsonl`; from then on readers take it
as complete. `delete_oldest` deletes it when the sender's share of the disk or the number of its files requires it. If a killed
process has left a file, the first `append` of the sender's next writer cuts it after its last complete line and renames it.

Invariants: a failed `append` leaves the file as it was before; names rise, whatever the clock does; files of other senders are
not touched. Everything belongs to one thread, except `newest_ms`, which is asked before the thread begins.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from broker.options import SettingsError

_STAMP_DIGITS: Final = 15
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_FILES_AT_LEAST: Final = 8


def must_take_files(directory: Path) -> None:
    """SettingsError if no telemetry can ever be written to this folder. A full disk is no such reason, because it passes."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise SettingsError(
                f"--telemetry-dir {directory}: no telemetry can be written there: {error.strerror or error}"
            ) from None


class _Whole(NamedTuple):
    """A whole file. `lines` is None for one of an earlier process: they are counted when it is deleted."""

    path: Path
    nbytes: int
    lines: int | None


class TelemetryFiles:
    """The files of `sender` in a folder, bounded by `max_bytes` and `max_files`. `wall` gives seconds since 1970.

    A file is due to be rolled when it holds `max_bytes_per_file` or is `max_age_s` old.
    """

    def __init__(
        self,
        directory: Path,
        sender: str,
        wall: Callable[[], float],
        *,
        max_bytes: int,
        max_bytes_per_file: int,
        max_files: int,
        max_age_s: float,
    ) -> None:
        self._directory, self._wall = directory, wall
        self._prefix = _UNSAFE.sub("_", sender) or "sender"
        self._names = f"{glob.escape(self._prefix)}.{'[0-9]' * _STAMP_DIGITS}"
        self._max_bytes, self._max_files, self._max_age_s = max_bytes, max_files, max_age_s
        self._max_bytes_per_file = min(max_bytes_per_file, max(max_bytes // _FILES_AT_LEAST, 1))
        self._fd: int | None = None
        self._part = self._final = directory
        self._bytes = self._lines = 0
        self._since_s = 0.0
        self._prepared = False
        self._whole: deque[_Whole] = deque()
        self._whole_bytes = 0

    @property
    def bytes_on_disk(self) -> int:
        """Of all files."""
        return self._whole_bytes + self._bytes

    @property
    def is_open(self) -> bool:
        """Whether there is a file that is being written."""
        return self._fd is not None

    @property
    def is_due(self) -> bool:
        """Whether it is big or old enough to be rolled."""
        return self._bytes >= self._max_bytes_per_file or self._wall() - self._since_s >= self._max_age_s

    def newest_ms(self) -> int:
        """The highest stamp in the names of the sender's files that are there; 0 if there is none, or if none can be listed."""
        found: list[Path] = []
        with contextlib.suppress(OSError):
            found += self._directory.glob(f"{self._names}.jsonl")
            found += self._directory.glob(f".{self._names}.part")
        return max((_stamp_ms(path) for path in found), default=0)

    def prepare(self) -> None:
        """Before the first `append`: create the folder, list its files, and complete the file of a killed process. OSError."""
        if self._prepared:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        self._whole.clear()
        self._whole_bytes = 0
        for part in sorted(self._directory.glob(f".{self._names}.part")):
            data = part.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole:
                os.truncate(part, whole)
                part.rename(self._directory / f"{part.name[1 : -len('.part')]}.jsonl")
            else:
                part.unlink()
        for path in sorted(self._directory.glob(f"{self._names}.jsonl")):
            with contextlib.suppress(FileNotFoundError):  # another process may have deleted it
                self._keep(_Whole(path, path.stat().st_size, None))
        self._prepared = True

    def append(self, data: bytes, lines: int, *, least_ms: int = 0) -> None:
        """Write all of it, or nothing. The stamp of a new file is at least `least_ms`. OSError."""
        if data:
            fd = self._open(least_ms) if self._fd is None else self._fd
            view, written = memoryview(data), 0
            try:
                while written < len(data):
                    written += os.write(fd, view[written:])
            except OSError:
                os.ftruncate(fd, self._bytes)
                raise
            self._bytes += len(data)
        self._lines += lines

    def roll(self) -> None:
        """Let the file appear whole. OSError when it cannot be renamed: `give_up` then."""
        assert self._fd is not None, "only what is open is rolled"
        fd, self._fd = self._fd, None
        os.close(fd)
        self._part.rename(self._final)
        self._keep(_Whole(self._final, self._bytes, self._lines))
        self._bytes = self._lines = 0

    def give_up(self) -> int:
        """The file cannot be renamed (for example the folder was deleted): begin a new one. Returns the number of lost lines."""
        lost, self._bytes, self._lines, self._prepared = self._lines, 0, 0, False
        return lost

    def delete_oldest(self) -> int:
        """Until the rest is within bounds, the hidden file included. Returns how many lines were deleted."""
        deleted = 0
        while self._whole and (self.bytes_on_disk > self._max_bytes or len(self._whole) > self._max_files):
            oldest = self._whole.popleft()
            self._whole_bytes -= oldest.nbytes
            with contextlib.suppress(OSError):
                lines = oldest.path.read_bytes().count(b"\n") if oldest.lines is None else oldest.lines
                oldest.path.unlink()
                deleted += lines
        return deleted

    def _open(self, least_ms: int) -> int:
        start_ms = max(int(self._wall() * 1000), least_ms)
        if self._whole:  # names must increase even if the clock goes back
            start_ms = max(start_ms, _stamp_ms(self._whole[-1].path) + 1)
        name = f"{self._prefix}.{start_ms:0{_STAMP_DIGITS}d}"
        self._part, self._final = self._directory / f".{name}.part", self._directory / f"{name}.jsonl"
        self._fd = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._since_s = self._wall()
        self._bytes = self._lines = 0
        return self._fd

    def _keep(self, file: _Whole) -> None:
        self._whole.append(file)
        self._whole_bytes += file.nbytes


def _stamp_ms(path: Path) -> int:
    return int(path.name.split(".")[-2])
