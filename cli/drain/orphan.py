"""The store of a broker that does not run: a private broker on this store, and the mark of its release.

Life: `look` checks whether the store can be drained. `Orphan` is a side of a drain whose broker runs in this process
and does not listen. It leaves and is emptied like any broker. When the target has released it, the file `released.json`
in its folder lists what was moved. Then the folder may be deleted, by `--delete-released` or by a person. `delete` notes first,
in a file of its own, that it deletes: if it is interrupted, `delete_rest` goes on.

Invariants: the broker runs no routes, so no message is fetched into the store. The store's lock is held from the first
read until the mark is written, and while the store is deleted. Only the broker's own log, the mark and the note of the
deletion are written there. Nothing is deleted without the mark, and a mark counts only if the store's own log says the
same, because the drain may have been cancelled in the meantime and the broker may have served.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from broker.disk.durable import DamagedStore, StorageError, read_json, remove_durably, replace_durably, seal_json
from broker.disk.files import REAL_DISK, LockHeld
from broker.disk.store import DELETING, IDENTITY, LOCK, LOST_AND_FOUND, inspect
from broker.settings import BrokerSettings
from cli import endings
from cli.drain.inside import Inside
from cli.drain.sides import Clock
from cli.options import Target
from ha.service import CannotStart, Process
from ha.settings import HaSettings

MARK = "released.json"
_LARGEST = 1 << 30


def look(folder: Path) -> dict[str, Any] | None:
    """The mark of this store; None if it has none. Refused if the store cannot be drained alone, or is being deleted."""
    if _noted(folder) is not None:
        raise endings.Refused(
            f"the store in {folder} is being deleted, because it was drained and released: "
            f"run qpid-drain --store {folder} --to URL --delete-released again"
        )
    try:
        found = inspect(folder)
        mark = read_json(REAL_DISK, folder / MARK)
    except FileNotFoundError:
        raise endings.Refused(f"there is no store in {folder}") from None
    except (DamagedStore, OSError) as error:
        raise endings.Refused(f"the store in {folder} cannot be read: {error}") from None
    if found.cluster_id:
        raise endings.Refused(
            f"the store in {folder} belongs to cluster {found.cluster_id}, whose other brokers have the same messages: drain the "
            "cluster with --from and the addresses of its brokers"
        )
    if mark is not None and mark.get("store") != found.store_id:
        raise endings.Refused(f"{folder / MARK} is of another store, {mark.get('store')}: delete it if it is there by mistake")
    return mark


def delete(folder: Path) -> None:
    """Delete a store that is marked as released. Refused if it is not marked, is in use, or cannot be deleted."""
    mark = look(folder)
    if mark is None:
        raise endings.Refused(f"the store in {folder} is not released, so it was not deleted")
    with _locked(folder):
        try:
            replace_durably(REAL_DISK, folder / DELETING, seal_json(mark))
        except StorageError as error:
            raise endings.Refused(f"the store in {folder} was released, and could not be deleted: {error}") from None
        _delete_all(folder)


def delete_rest(folder: Path) -> dict[str, Any] | None:
    """Go on with a deletion that was interrupted. Returns the store's mark; None if none was begun. Refused like `delete`."""
    mark = _noted(folder)
    if mark is not None:
        with _locked(folder):
            _delete_all(folder)
    return mark


def _noted(folder: Path) -> dict[str, Any] | None:
    """The mark of a store whose deletion has begun; None if it has not."""
    try:
        mark = read_json(REAL_DISK, folder / DELETING)
        identity = None if mark is None else read_json(REAL_DISK, folder / IDENTITY)
    except (DamagedStore, OSError) as error:
        raise endings.Refused(f"the store in {folder} cannot be read: {error}") from None
    if mark is not None and identity is not None and mark.get("store") != identity.get("store_id"):
        raise endings.Refused(
            f"{folder / DELETING} is of another store, {mark.get('store')}: delete it if it is there by mistake"
        )
    return mark


def _delete_all(folder: Path) -> None:
    """Delete everything, the identity and the note last. The folder itself stays if it cannot be deleted, as a mount point."""
    try:
        last = (IDENTITY, DELETING)
        for path in folder.iterdir():
            if path.name not in (*last, LOST_AND_FOUND):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for name in last:
            REAL_DISK.sync_folder(folder)
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise endings.Refused(f"the store in {folder} was released, and could not be deleted: {error}") from None
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        lock = REAL_DISK.lock(folder / LOCK)
    except LockHeld as held:
        raise endings.Refused(f"the store in {folder} is in use by process {held}, so it was not deleted") from None
    except OSError as error:
        raise endings.Refused(f"the store in {folder} was released, and could not be deleted: {error}") from None
    try:
        yield
    finally:
        REAL_DISK.close(lock)


class _Hidden(Process):
    """A broker that does not listen."""

    def _listen(self) -> None:
        self.port = 0


class Orphan(Inside):
    """See the module. `start` starts it."""

    def __init__(self, clock: Clock, target: Target, folder: Path) -> None:
        settings = BrokerSettings.from_values({"data_dir": folder, "max_message_size": _LARGEST, "auth": False})
        process = _Hidden(clock.reactor, settings, HaSettings.from_values({}), runs_routes=False)
        super().__init__(clock, target, f"store in {folder}", process)
        self._folder = folder
        self._runs = False

    async def start(self) -> None:
        """Open the store and read its log. Refused if this fails, because another process has the store or it is
        damaged.
        """
        try:
            self._process.start()
        except (CannotStart, StorageError) as error:
            raise endings.Refused(str(error)) from None
        self._runs = True
        while self._process.broker.state != "standalone":
            await self._clock.pause(0.01)

    def is_released(self, mark: Mapping[str, Any]) -> bool:
        """Whether the store's log agrees with this mark."""
        leave = self._process.broker.logs.leave
        return leave is not None and leave.released and leave.drain == mark.get("drain")

    def unmark(self) -> None:
        """Delete the mark, because the store has a broker again."""
        remove_durably(REAL_DISK, self._folder / MARK)

    def mark(self, drain: str, to: list[str], queues: list[dict[str, Any]], now: str) -> None:
        """Write the mark into the store's folder: it was released, and what was moved."""
        content = {"store": self._process.store.store_id, "drain": drain, "to": to, "released": now, "queues": queues}
        replace_durably(REAL_DISK, self._folder / MARK, seal_json(content))

    async def close(self) -> None:
        """Stop the broker in order, and unlock the store."""
        await super().close()
        if self._runs:
            self._runs = False
            await self._process.stop()
