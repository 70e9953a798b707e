"""A thread that works beside the writer of a log: it writes zeros for the next segment, and deletes released files.

Life of a prepared file: the writer requests it when a quarter of the current segment is used. The thread writes zeros to a
temporary file and syncs it. The writer takes the file, and gives it a header and a name. If the file is not ready in time, the
writer continues at once with a sparse file, which is slower, and uses the prepared file for the segment after that. The temporary
name ends in `.tmp`: a start removes such files.

With large messages, no file is requested: a sync of one MiB takes far longer than the file system's own updates for a sparse
file, and zeros would double the bytes that are written to the disk.
"""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path

from broker.disk import segments
from broker.disk.durable import ASIDE, unlink_if_there
from broker.disk.files import Disk
from broker.disk.threads import Threads


class Preparation:
    """See the module. A failure here is not reported: the writer itself detects a full or a faulty disk."""

    def __init__(self, folder: Path, disk: Disk, threads: Threads) -> None:
        self._folder = folder
        self._disk = disk
        self._spare = folder / f"prepared{ASIDE}"
        self._lock = threads.condition()
        self._wanted = 0
        self._ready = 0
        self._gave_up = False
        self._removals: deque[Path] = deque()
        self._removing = False
        self._closing = False
        self._thread = threads.start(f"prepare {folder.name}", self._run)

    @property
    def nbytes(self) -> int:
        """Bytes of the prepared file, or of the one that is being prepared."""
        with self._lock:
            return self._ready or self._wanted

    def want(self, size: int) -> None:
        """Prepare a file of `size` bytes. Does nothing if a file is ready or being prepared.

        After a failure it does nothing until the log begins another segment, so that a full disk is not filled again and again.
        """
        with self._lock:
            if not self._ready and not self._wanted and not self._gave_up:
                self._wanted = size
                self._lock.notify()

    def take(self, size: int) -> Path | None:
        """Take the prepared file, if it is ready and has at least this size. The caller renames it."""
        with self._lock:
            self._gave_up = False
            if self._ready < size or self._wanted:
                return None
            self._ready = 0
            taken = self._spare.with_name(f"taken{ASIDE}")
            self._disk.replace(self._spare, taken)
            return taken

    def remove(self, paths: list[Path]) -> None:
        """Delete these files in this order. After a crash the later ones may be left; the next release finds them again."""
        with self._lock:
            self._removals += paths
            self._lock.notify()

    def wait(self) -> None:
        """Return when all files that were passed to `remove` so far are deleted. Blocks."""
        with self._lock:
            self._lock.wait_for(lambda: not self._removals and not self._removing)

    def close(self) -> None:
        """Finish the deletions, delete the prepared file, end the thread."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._disk.unlink(self._spare)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._removals or self._wanted or self._closing)
                removals = list(self._removals)
                self._removals.clear()
                self._removing = bool(removals)
                wanted = 0 if self._closing else self._wanted
                if not removals and not wanted:
                    return
            for path in removals:
                with contextlib.suppress(OSError):
                    unlink_if_there(self._disk, path)
                    self._disk.sync_folder(self._folder)
            with self._lock:
                self._removing = False
                self._lock.notify(2)
            if wanted:
                self._prepare(wanted)

    def _prepare(self, size: int) -> None:
        try:
            segments.write_zeros(self._disk, self._spare, size)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._spare)
            size = 0
        with self._lock:
            self._wanted, self._ready, self._gave_up = 0, size, size == 0
