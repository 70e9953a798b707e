"""The store: a broker's folder, its identity and its lock.

A store's life: made at a broker's first start, with an id of its own; it learns the id of its cluster once, and never belongs to
another. While a broker runs it holds the lock, which the kernel gives back when the process ends, however it ends. Shut down in
order, it has the mark `clean`, which the next start takes away, synced, before it touches anything else.

The files: `store.json` (identity), `lock` (with the process id of its holder, for people), `clean`, and a folder for each
log, which `recovery` describes.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.core.records import BadBatch
from broker.disk import checkpoint, recovery, segments
from broker.disk.durable import (
    ASIDE,
    REAL_DISK,
    DamagedStore,
    Disk,
    NewerFormat,
    StorageError,
    read_json,
    remove_durably,
    replace_durably,
    seal_json,
    sync_folder,
)
from broker.disk.journal import SEGMENT_BYTES, Journal, OnError, Reactor, Recovered
from broker.disk.segments import Position, Window

__all__ = ["DamagedStore", "LogInfo", "StorageError", "Store", "StoreInUse", "StoreInfo", "StoreOfAnotherCluster", "inspect"]

FORMAT = 1
LOGS = ("cluster", "local")
_IDENTITY = "store.json"
_LOCK = "lock"
_CLEAN = "clean"


class StoreInUse(Exception):
    """Another process has the folder locked: "data folder X is in use by process N"."""


class StoreOfAnotherCluster(Exception):
    """The store belongs to a cluster with another id; it was not touched."""


class Store:
    """A locked data folder. `store_id` is this broker's uuid, `cluster_id` "" until learned; `was_clean`: shut down in order."""

    def __init__(self, data_dir: Path, lock: int, identity: dict[str, Any], was_clean: bool) -> None:
        """For `open` alone."""
        self.data_dir = data_dir
        self.was_clean = was_clean
        self._lock = lock
        self._identity = identity
        self._journals: list[Journal] = []

    @classmethod
    def open(cls, data_dir: Path | str, *, create: bool = True) -> Store:
        """Lock the folder and read its identity, or give it one if it is empty or missing and `create` is true.

        StoreInUse; DamagedStore (also: not a store; NewerFormat); FileNotFoundError without `create`; StorageError.
        """
        folder = Path(data_dir)
        try:
            if create:
                folder.mkdir(parents=True, exist_ok=True)
            elif not (folder / _IDENTITY).exists():
                raise FileNotFoundError(f"there is no store in {folder}")
            _must_be_store(folder)
            lock = _locked(folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(
                f"cannot open the data folder {folder}: {error.strerror}; give this user the right to write there, "
                "or name another --data-dir",
                fatal=True,
            ) from error
        try:
            identity = _identity(folder)
            if identity is None:
                identity = {"format": FORMAT, "store_id": str(uuid.uuid4()), "cluster_id": ""}
                replace_durably(folder / _IDENTITY, seal_json(identity))
                sync_folder(folder.parent)
            was_clean = (folder / _CLEAN).exists()
            remove_durably(folder / _CLEAN)
        except BaseException:
            os.close(lock)
            raise
        return cls(folder, lock, identity, was_clean)

    @property
    def store_id(self) -> str:
        """The uuid that this store, and so this broker, was given when it was made."""
        return str(self._identity["store_id"])

    @property
    def cluster_id(self) -> str:
        """The cluster that the store belongs to; "" until it has learned it."""
        return str(self._identity["cluster_id"])

    def adopt_cluster(self, cluster_id: str) -> None:
        """Belong to this cluster, durably.

        The same id again does nothing; another one raises StoreOfAnotherCluster. StorageError.
        """
        if cluster_id == self.cluster_id:
            return
        if self.cluster_id:
            raise StoreOfAnotherCluster(
                f"the store in {self.data_dir} belongs to cluster {self.cluster_id}, not to cluster {cluster_id}; "
                f"nothing was changed. Give this broker the addresses of its own cluster, or an empty data folder"
            )
        identity = {**self._identity, "cluster_id": cluster_id}
        replace_durably(self.data_dir / _IDENTITY, seal_json(identity))
        self._identity = identity

    def journal(
        self,
        name: str,
        *,
        call_in_reactor: Reactor,
        on_error: OnError,
        segment_bytes: int = SEGMENT_BYTES,
        disk: Disk = REAL_DISK,
    ) -> tuple[Journal, Recovered]:
        """Open the log in the folder `name` ("cluster" or "local"). See `Journal.open`; `close` closes it."""
        assert name in LOGS, f"no log is named {name}"
        journal, found = Journal.open(
            self.data_dir / name, call_in_reactor=call_in_reactor, on_error=on_error, segment_bytes=segment_bytes, disk=disk
        )
        self._journals.append(journal)
        return journal, found

    def close(self, *, clean: bool = True) -> None:
        """Close the journals, leave the clean-shutdown mark (if `clean`), unlock. Twice does nothing."""
        if self._lock < 0:
            return
        try:
            for journal in self._journals:
                journal.close()
            if clean:
                replace_durably(self.data_dir / _CLEAN, b"")
        finally:
            os.close(self._lock)
            self._lock = -1


def _must_be_store(folder: Path) -> None:
    """Refuse a folder that holds something else: a wrong option must not spread a store over somebody's files."""
    names = {path.name for path in folder.iterdir()} - {_LOCK, _CLEAN, "lost+found"}
    if _IDENTITY not in names and any(not name.startswith((_IDENTITY, ".")) for name in names):
        raise DamagedStore(f"{folder} is not empty and has no {_IDENTITY}, so it is no data folder of a broker; name another one")


def _locked(folder: Path) -> int:
    """The lock's file, locked until it is closed."""
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "that is just starting"
        os.close(fd)
        raise StoreInUse(f"data folder {folder} is in use by process {holder}") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def _identity(folder: Path) -> dict[str, Any] | None:
    content = read_json(folder / _IDENTITY)
    if content is not None and content["format"] > FORMAT:
        raise NewerFormat(
            f"the store in {folder} has format {content['format']}, newer than {FORMAT}; "
            f"use the version of the program that wrote it"
        )
    return content


@dataclass(frozen=True, slots=True)
class LogInfo:
    """One log as `qpid-ha store-info` shows it; sizes in bytes."""

    name: str
    epoch: int
    voted_for: str | None
    last_index: int
    last_epoch: int
    checkpoint_index: int
    segments: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store as it lies on disk."""

    data_dir: str
    store_id: str
    cluster_id: str
    format: int
    clean: bool
    logs: tuple[LogInfo, ...]


def inspect(data_dir: Path | str) -> StoreInfo:
    """Look at a store without its lock and without changing it, a running broker's too. FileNotFoundError, DamagedStore.

    What is read may be a moment old, and the batch being written just then does not count.
    """
    folder = Path(data_dir)
    identity = _identity(folder)
    if identity is None:
        raise FileNotFoundError(f"there is no store in {folder}")
    logs = tuple(_log_info(folder / name) for name in LOGS if (folder / name).is_dir())
    clean = (folder / _CLEAN).exists()
    return StoreInfo(str(folder), identity["store_id"], identity["cluster_id"], identity["format"], clean, logs)


def _log_info(folder: Path) -> LogInfo:
    epoch, voted_for = recovery.read_hard_state(folder) or (0, None)
    base = Position(0, 0)
    for path in reversed(checkpoint.listed(folder)):
        try:
            found = checkpoint.load(path)
        except (BadBatch, checkpoint.CheckpointGone):
            continue
        base = Position(found.epoch, found.index)
        break
    listed = segments.listed(folder)
    last = max(base, _last_batch(listed))
    nbytes = sum(map(_size, folder.iterdir()))
    return LogInfo(folder.name, epoch, voted_for, last.index, last.epoch, base.index, len(listed), nbytes)


def _size(path: Path) -> int:
    """Bytes of a file, 0 when it is unfinished or has just gone."""
    try:
        return 0 if path.suffix == ASIDE else path.stat().st_size
    except FileNotFoundError:
        return 0


def _last_batch(listed: list[tuple[int, Path]]) -> Position:
    """The newest batch of the newest segment, which also knows the one before its first."""
    for first_index, path in reversed(listed):
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            last = Position(segments.read_head(REAL_DISK, fd, path) or 0, first_index - 1)
            for _, header in segments.whole_batches(Window(REAL_DISK, fd, os.fstat(fd).st_size), last):
                last = Position(header.epoch, header.index)
            return last
        finally:
            os.close(fd)
    return Position(0, 0)
