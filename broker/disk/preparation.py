"""What a log needs done beside its writer, in one thread: zeros for the next segment, and the removal of released ones.

A prepared file's life: asked for when the current segment has been used by a quarter; zeros are written aside and synced; the
writer takes it, gives it a header and a name. If it is not ready when it is needed, the writer goes on with a sparse file,
slower but at once, and takes it the next time. Its name ends in `.tmp`: a start removes it.

Large messages do not ask for one: a sync of a mebibyte takes far longer than what the file system notes of a sparse file, and
zeros would double what goes to the disk.
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
    """The thread. Nothing that it fails to do is an error: the writer notices a full or a broken disk by itself."""

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
        """What is prepared, or about to be, takes so many bytes."""
        with self._lock:
            return self._ready or self._wanted

    def want(self, size: int) -> None:
        """Have `size` bytes of zeros ready soon. Asking again for what is there or under way does nothing.

        Nor does it after a failure, until the log has gone on to another segment: a full disk is not filled again and again.
        """
        with self._lock:
            if not self._ready and not self._wanted and not self._gave_up:
                self._wanted = size
                self._lock.notify()

    def take(self, size: int) -> Path | None:
        """The prepared file, now the caller's to rename, if it is ready and has at least this size."""
        with self._lock:
            self._gave_up = False
            if self._ready < size or self._wanted:
                return None
            self._ready = 0
            taken = self._spare.with_name(f"taken{ASIDE}")
            self._disk.replace(self._spare, taken)
            return taken

    def remove(self, paths: list[Path]) -> None:
        """Delete these files in this order. A crash leaves the later ones of them, which the next release finds again."""
        with self._lock:
            self._removals += paths
            self._lock.notify()

    def wait(self) -> None:
        """Return when the files that were to be deleted so far are. Blocks."""
        with self._lock:
            self._lock.wait_for(lambda: not self._removals and not self._removing)

    def close(self) -> None:
        """Finish the removals, drop what is prepared, end the thread."""
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
