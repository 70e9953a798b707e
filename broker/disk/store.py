"""The store: a broker's folder, its identity and its lock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker.disk.durable import REAL_DISK, DamagedStore, Disk, StorageError
from broker.disk.journal import SEGMENT_BYTES, Journal, OnError, Reactor, Recovered

__all__ = ["DamagedStore", "LogInfo", "Store", "StoreInUse", "StoreInfo", "StoreOfAnotherCluster", "StorageError", "inspect"]


class StoreInUse(Exception):
    """Another process has the folder locked: "data folder X is in use by process N"."""


class StoreOfAnotherCluster(Exception):
    """The store belongs to a cluster with another id; it was not touched."""


class Store:
    """A locked data folder. `store_id` is this broker's uuid, `cluster_id` "" until learned; `was_clean`: shut down in order."""

    data_dir: Path
    store_id: str
    cluster_id: str
    was_clean: bool

    @classmethod
    def open(cls, data_dir: Path | str, *, create: bool = True) -> Store:
        """Lock the folder and read its identity. StoreInUse, DamagedStore (also: not a store, newer format), FileNotFoundError."""
        ...

    def adopt_cluster(self, cluster_id: str) -> None:
        """Belong to this cluster, durably. The same id again does nothing; another one raises StoreOfAnotherCluster."""
        ...

    def journal(
        self,
        name: str,
        *,
        call_in_reactor: Reactor,
        on_error: OnError,
        segment_bytes: int = SEGMENT_BYTES,
        disk: Disk = REAL_DISK,
    ) -> tuple[Journal, Recovered]:
        """Open the log in the folder `name` ("cluster" or "local")."""
        ...

    def close(self, *, clean: bool = True) -> None:
        """Close the journals, leave the clean-shutdown mark (if `clean`), unlock."""
        ...


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
    """Look at a store without its lock and without changing it. FileNotFoundError, DamagedStore."""
    ...
