"""The store: a broker's folder, its identity and its lock.

Life of a store: a broker's first start creates it, with its own id. It gets the id of its cluster once. It belongs to another
cluster only if an operator starts a new cluster from it (`change_cluster`). A running broker holds the lock; the kernel releases
it when the process ends, even if it is killed. After an orderly shutdown the store has the mark `clean`. The next start removes
this mark durably before it changes anything else.

The files: `store.json` (identity), `lock` (with the process id of its holder, for people), `clean`, and one folder for each log
(see `recovery`). A store that is being deleted has `deleting.json` too; no broker starts on it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from broker.disk.durable import (
    NO_ROOM,
    DamagedStore,
    NewerFormat,
    StorageError,
    exists,
    read_json,
    remove_durably,
    replace_durably,
    seal_json,
    unlink_if_there,
)
from broker.disk.files import REAL_DISK, Disk, LockHeld
from broker.disk.inspection import LogInfo, log_info
from broker.disk.journal import FILE_BYTES, Journal, Recovered
from broker.disk.recovery import Alone
from broker.disk.writer import OnError, Reactor
from broker.host import REAL_HOST, Host

__all__ = ["DamagedStore", "LogInfo", "StorageError", "Store", "StoreInUse", "StoreInfo", "StoreOfAnotherCluster", "inspect"]

FORMAT = 1
LOST_AND_FOUND = "lost+found"
"""A folder that the file system makes at a mount point."""
LOGS = ("cluster", "local")
IDENTITY = "store.json"
LOCK = "lock"
_CLEAN = "clean"
DELETING = "deleting.json"
"""The file that a store has from the beginning of its deletion, by `qpid-drain --delete-released`, until nothing else is left."""


class StoreInUse(Exception):
    """Another process has locked the folder: "data folder X is in use by process N"."""


class StoreOfAnotherCluster(Exception):
    """The store belongs to a cluster with another id; it was not changed."""


class Store:
    """A locked data folder. `store_id` is this broker's uuid; `cluster_id` is "" until it is known; `was_clean`: the last
    shutdown was orderly."""

    def __init__(
        self, data_dir: Path, lock: int, identity: dict[str, Any], was_clean: bool, host: Host, segment_bytes: int
    ) -> None:
        """Only for `open`."""
        self.host = host
        self.data_dir = data_dir
        self.was_clean = was_clean
        self._lock = lock
        self._identity = identity
        self._segment_bytes = segment_bytes
        self._journals: list[Journal] = []

    @classmethod
    def open(cls, data_dir: Path | str, *, create: bool = True, host: Host = REAL_HOST, segment_bytes: int = FILE_BYTES) -> Store:
        """Lock the folder and read its identity. If it is empty or missing and `create` is true, create an identity.

        `segment_bytes` is the full size of the logs' segments. StoreInUse; DamagedStore (also: not a store; NewerFormat);
        FileNotFoundError without `create`; StorageError.
        """
        folder, disk = Path(data_dir), host.disk
        try:
            if create:
                disk.make_folder(folder)
            elif not exists(disk, folder / IDENTITY):
                raise FileNotFoundError(f"there is no store in {folder}")
            _must_be_store(disk, folder)
            lock = _locked(disk, folder)
        except OSError as error:
            if not create and isinstance(error, FileNotFoundError):
                raise
            raise _cannot_open(folder, error) from error
        try:
            identity = _identity(disk, folder)
            was_clean = exists(disk, folder / _CLEAN)
            if identity is None:
                identity = {"format": FORMAT, "store_id": host.new_id(), "cluster_id": ""}
                unlink_if_there(disk, folder / _CLEAN)  # durable when the identity is
                disk.sync_folder(folder.parent)
                replace_durably(disk, folder / IDENTITY, seal_json(identity))
            else:
                remove_durably(disk, folder / _CLEAN)
        except BaseException as error:
            disk.close(lock)
            if isinstance(error, OSError):
                raise _cannot_open(folder, error) from error
            raise
        return cls(folder, lock, identity, was_clean, host, segment_bytes)

    @property
    def store_id(self) -> str:
        """The uuid of this store, and so of this broker, created with the store."""
        return str(self._identity["store_id"])

    @property
    def cluster_id(self) -> str:
        """The id of the store's cluster; "" until it is known."""
        return str(self._identity["cluster_id"])

    def adopt_cluster(self, cluster_id: str) -> None:
        """Store the id of the cluster durably.

        The same id again does nothing; another id raises StoreOfAnotherCluster. StorageError.
        """
        if cluster_id == self.cluster_id:
            return
        if self.cluster_id:
            raise StoreOfAnotherCluster(
                f"the store in {self.data_dir} belongs to cluster {self.cluster_id}, not to cluster {cluster_id}; "
                f"nothing was changed. Give this broker the addresses of its own cluster, or an empty data folder"
            )
        identity = {**self._identity, "cluster_id": cluster_id}
        replace_durably(self.host.disk, self.data_dir / IDENTITY, seal_json(identity))
        self._identity = identity

    def change_cluster(self, cluster_id: str, begun: str = "") -> None:
        """Change durably to another cluster: a new one that begins with the content of this store. `begun` describes this for
        people. StorageError.
        """
        left = [*self.clusters_left, self.cluster_id]
        identity = {**self._identity, "cluster_id": cluster_id, "clusters_left": left, "begun": begun}
        replace_durably(self.host.disk, self.data_dir / IDENTITY, seal_json(identity))
        self._identity = identity

    @property
    def clusters_left(self) -> tuple[str, ...]:
        """The ids of its former clusters, the oldest first."""
        return tuple(map(str, self._identity.get("clusters_left", ())))

    @property
    def begun(self) -> str:
        """The text `begun` of the last `change_cluster`; "" if there was none."""
        return str(self._identity.get("begun", ""))

    def journal(
        self, name: str, *, call_in_reactor: Reactor, on_error: OnError, alone: Alone = False
    ) -> tuple[Journal, Recovered]:
        """Open the log in the folder `name` ("cluster" or "local"). See `Journal.open`; `close` closes it."""
        assert name in LOGS, f"no log is named {name}"
        journal, found = Journal.open(
            self.data_dir / name,
            call_in_reactor=call_in_reactor,
            on_error=on_error,
            segment_bytes=self._segment_bytes,
            disk=self.host.disk,
            threads=self.host.threads,
            origin=origin_of(self.store_id),
            alone=alone,
        )
        self._journals.append(journal)
        return journal, found

    def close(self, *, clean: bool = True) -> None:
        """Close the journals, write the clean-shutdown mark (if `clean`), unlock. A second call does nothing."""
        if self._lock < 0:
            return
        try:
            for journal in self._journals:
                journal.close()
            if clean:
                replace_durably(self.host.disk, self.data_dir / _CLEAN, b"")
        finally:
            self.host.disk.close(self._lock)
            self._lock = -1


def origin_of(store_id: str) -> int:
    """The 64 bits that distinguish the files of this store from those of other stores (`bodies`)."""
    return int.from_bytes(blake2b(store_id.encode(), digest_size=8).digest(), "little")


def _cannot_open(folder: Path, error: OSError) -> StorageError:
    match error.errno:
        case errno.EEXIST | errno.ENOTDIR:
            way_out = "a file is in the place of a folder; move it away, or name another --data-dir"
        case errno.EISDIR:
            way_out = "a folder is in the place of a file; move it away, or name another --data-dir"
        case number if number in NO_ROOM:
            way_out = "make room on that disk, or name another --data-dir"
        case errno.EROFS:
            way_out = "mount it for writing, or name another --data-dir"
        case errno.ENOENT | errno.ENAMETOOLONG:
            way_out = "a folder of this name cannot be made there; name another --data-dir"
        case _:
            way_out = "give this user the right to write there, or name another --data-dir"
    return StorageError(f"cannot open the data folder {folder}: {error.strerror}; {way_out}", fatal=True)


def _must_be_store(disk: Disk, folder: Path) -> None:
    """Refuse a folder with other files: a wrong option must not put a store among somebody's files."""
    names = set(disk.names(folder)) - {LOCK, _CLEAN, LOST_AND_FOUND}
    if DELETING in names:
        raise DamagedStore(
            f"the store in {folder} is being deleted, because it was drained and released: "
            f"run qpid-drain --store {folder} --to URL --delete-released again"
        )
    if IDENTITY not in names and any(not name.startswith((IDENTITY, ".")) for name in names):
        raise DamagedStore(
            f"{folder} is not empty and has no {IDENTITY}, so it is not the data folder of a broker; name another one"
        )


def _locked(disk: Disk, folder: Path) -> int:
    """The descriptor of the lock file, which is locked until it is closed."""
    try:
        return disk.lock(folder / LOCK)
    except LockHeld as held:
        raise StoreInUse(f"data folder {folder} is in use by process {str(held) or 'that is just starting'}") from None


def _identity(disk: Disk, folder: Path) -> dict[str, Any] | None:
    content = read_json(disk, folder / IDENTITY)
    if content is not None and content["format"] > FORMAT:
        raise NewerFormat(
            f"the store in {folder} has format {content['format']}, newer than {FORMAT}; "
            f"use the version of the program that wrote it"
        )
    return content


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store as it is on disk."""

    data_dir: str
    store_id: str
    cluster_id: str
    format: int
    clean: bool
    logs: tuple[LogInfo, ...]


def inspect(data_dir: Path | str) -> StoreInfo:
    """Read a store without its lock and without changes, even while a broker uses it. FileNotFoundError, DamagedStore.

    The result may be a moment old, and a batch that is being written does not count. Damage is listed for each log.
    """
    folder = Path(data_dir)
    identity = _identity(REAL_DISK, folder)
    if identity is None:
        raise FileNotFoundError(f"there is no store in {folder}")
    logs = tuple(log_info(REAL_DISK, folder / name) for name in LOGS if exists(REAL_DISK, folder / name))
    clean = exists(REAL_DISK, folder / _CLEAN)
    return StoreInfo(str(folder), identity["store_id"], identity["cluster_id"], identity["format"], clean, logs)
