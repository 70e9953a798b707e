"""What the tests of the store share: batches, a stand-in for the reactor, and disks that fail in chosen ways."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from broker.core.records import BatchBuilder
from broker.disk import hard_state
from broker.disk.files import RealDisk
from broker.disk.journal import Journal, Recovered
from broker.disk.recovery import Alone

SECTOR = 512
PATIENCE_S = 30.0
SMALL = 8192
"""Bytes of a small segment: its page of header, and one page of batches."""


def batch(index: int, epoch: int = 1, nbytes: int = 40) -> bytes:
    """A sealed batch with one message of `nbytes`, whose bytes depend on the index."""
    builder = BatchBuilder()
    builder.messages_for(1, index).append(bytes((index * 7 + at) % 255 + 1 for at in range(nbytes)))
    return builder.seal(epoch, index, 1_700_000_000_000 + index)


def batches(first: int, last: int, epoch: int = 1, nbytes: int = 40) -> list[bytes]:
    return [batch(index, epoch, nbytes) for index in range(first, last + 1)]


class Reactor:
    """Runs what is called into it, in the test's own thread, when the test says so."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.durable: list[tuple[int, int]] = []
        self.errors: list[tuple[str, bool]] = []

    def call(self, function: Callable[[], None]) -> None:
        self._calls.put(function)

    def on_durable(self, index: int, epoch: int, sync_seconds: float) -> None:
        assert sync_seconds >= 0
        self.durable.append((index, epoch))

    def on_error(self, text: str, fatal: bool) -> None:
        self.errors.append((text, fatal))

    def until(self, condition: Callable[[], bool]) -> None:
        """Run calls until the condition holds."""
        while not condition():
            self._calls.get(timeout=PATIENCE_S)()

    def turn(self) -> None:
        """Run one call."""
        self._calls.get(timeout=PATIENCE_S)()

    def drain(self) -> None:
        """Run what has been called so far."""
        while not self._calls.empty():
            self._calls.get()()


class Log:
    """An open journal with its reactor, and shorthands that wait."""

    def __init__(
        self, folder: Path, *, segment_bytes: int = SMALL, disk: RealDisk | None = None, origin: int = 0, alone: Alone = False
    ) -> None:
        self.reactor = Reactor()
        self.journal: Journal
        self.found: Recovered
        self.journal, self.found = Journal.open(
            folder,
            call_in_reactor=self.reactor.call,
            on_error=self.reactor.on_error,
            segment_bytes=segment_bytes,
            disk=disk or RealDisk(),
            origin=origin,
            alone=alone,
        )

    def store(self, sealed: list[bytes]) -> None:
        """Append, and wait until it is durable."""
        already = len(self.reactor.durable)
        self.journal.append(list(sealed), self.reactor.on_durable)
        self.reactor.until(lambda: len(self.reactor.durable) > already)

    def truncate(self, from_index: int) -> None:
        done: list[bool] = []
        self.journal.truncate(from_index, lambda: done.append(True))
        self.reactor.until(lambda: bool(done))

    def reset(self, index: int, epoch: int) -> None:
        done: list[bool] = []
        self.journal.reset(index, epoch, lambda: done.append(True))
        self.reactor.until(lambda: bool(done))

    def checkpoint(
        self, index: int, epoch: int, content: list[bytes], keep_from: int | None = None, alive: Iterable[int] = ()
    ) -> str:
        """Write a checkpoint that needs the files `alive`; returns why not, or ""."""
        said: list[str] = []
        self.journal.write_checkpoint(
            index, epoch, {"voters": ["a"]}, content, lambda _, why_not: said.append(why_not), keep_from, alive
        )
        self.reactor.until(lambda: bool(said))
        return said[0]

    def all(self) -> list[bytes]:
        return self.journal.read(self.journal.figures.first_index, 2**40, 2**30)

    def close(self) -> None:
        self.journal.close()
        self.reactor.drain()


def written(folder: Path, sealed: list[bytes], *, epoch: int = 1, segment_bytes: int = SMALL) -> None:
    """A log that was written in groups of one batch and shut down in order."""
    log = Log(folder, segment_bytes=segment_bytes)
    log.journal.save_hard_state(epoch, "a")
    log.journal.floor_passed()
    for one in sealed:
        log.store([one])
    log.close()
    assert log.reactor.errors == []


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit at rest."""
    with path.open("r+b") as file:
        file.seek(offset)
        (value,) = file.read(1)
        file.seek(offset)
        file.write(bytes([value ^ (1 << bit)]))


class FullDisk(RealDisk):
    """A disk that has no room for anything new while `full` is set; only hard-state has its blocks already."""

    def __init__(self, error: int = errno.ENOSPC) -> None:
        self.full = threading.Event()
        self.refused = threading.Semaphore(0)
        self._error = error

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        if self.full.is_set() and Path(os.readlink(f"/proc/self/fd/{fd}")).name != hard_state.NAME:
            self.refused.release()
            raise OSError(self._error, os.strerror(self._error))
        return super().write(fd, buffers, offset)


class GatedDisk(RealDisk):
    """A disk whose syncs wait for `gate`, and that counts them."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.syncs = 0
        self.writes: list[int] = []

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        self.writes.append(len(buffers))
        return super().write(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        self.entered.release()
        assert self.gate.wait(PATIENCE_S)
        super().sync(fd)


class SlowWriter(RealDisk):
    """The threads that write logs wait with their syncs while `gate` is not set; other threads do not."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def sync(self, fd: int) -> None:
        if threading.current_thread().name.startswith("write"):
            assert self.gate.wait(PATIENCE_S)
        super().sync(fd)


class FailingSync(RealDisk):
    """A disk whose syncs fail once `broken` is set; it counts the writes after that."""

    def __init__(self, error: int = errno.EIO) -> None:
        self.broken = threading.Event()
        self.writes_after = 0
        self._error = error

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        if self.broken.is_set():
            self.writes_after += 1
        return super().write(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        if self.broken.is_set():
            raise OSError(self._error, os.strerror(self._error))
        super().sync(fd)


class PowerCutDisk(RealDisk):
    """A disk that loses power at its n-th call, and of what was not synced keeps only the sectors that `keeps` says."""

    def __init__(self, calls: int) -> None:
        self._calls_left = calls
        self._before: dict[tuple[int, int], bytes] = {}
        self._names: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def dead(self) -> bool:
        return self._calls_left <= 0

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        with self._lock:
            if self.dead:
                raise OSError(errno.EIO, "no power")
            inode = os.fstat(fd).st_ino
            end = offset + sum(map(len, buffers))
            for at in range(offset - offset % SECTOR, end, SECTOR):
                self._before.setdefault((inode, at), os.pread(fd, SECTOR, at))
            done = super().write(fd, buffers, offset)
            self._spend()
            return done

    def sync(self, fd: int) -> None:
        with self._lock:
            self._spend()
            if self.dead:
                raise OSError(errno.EIO, "no power")
            inode = os.fstat(fd).st_ino
            super().sync(fd)
            for key in [key for key in self._before if key[0] == inode]:
                del self._before[key]

    def _spend(self) -> None:
        self._calls_left -= 1

    def lose(self, folder: Path, loses: Callable[[], bool]) -> None:
        """Put back what stood in those unsynced sectors that are lost."""
        files = {path.stat().st_ino: path for path in folder.iterdir()}
        for (inode, at), content in sorted(self._before.items()):
            if inode in files and loses():
                with files[inode].open("r+b") as file:
                    file.seek(at)
                    file.write(content)
