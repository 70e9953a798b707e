"""Epoch and vote (Raft §5, "persistent state"), in a file whose blocks are all allocated when it is created. A witness also
stores the position here that it attests (`ha.core.witness`), because it has no log.

Life of the file: the first start of the log creates it, with space for two copies, each in its own block. `save` writes the first
copy in place and syncs it, then writes and syncs the second copy. This allocates nothing, so a broker can vote on a full disk. A
start first syncs what a killed process may have left in the page cache. Then it takes the newer complete copy, and makes the
other one equal to it.

Invariants: at least one copy is complete, and at least as new as the last state that `save` has returned for; when `save`
returns, both copies are. So if a power failure or bit rot damages one copy, the other one has this state or a newer one. If
neither copy is complete, the state is unknown, and the log is refused. Epoch and vote only grow, because a broker that has voted
does not change its vote in that epoch. The attested position only grows too. So if two complete copies differ, the greater one is
the newer.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from broker.disk.durable import (
    DamagedStore,
    opened,
    read_whatever,
    refused,
    replace_durably,
    seal_json,
    sync_or_stop,
    unseal_json,
    write_all,
)
from broker.disk.files import Disk

NAME = "hard-state"
COPY_BYTES = 4096
_OFFSETS = (0, COPY_BYTES)


class HardState(NamedTuple):
    """An epoch, and the broker that this broker has voted for in it. `attested`: only of a witness, an object with `epoch` and
    `index`."""

    epoch: int
    voted_for: str | None
    attested: dict[str, Any] | None = None


def read(disk: Disk, folder: Path) -> HardState | None:
    """Read the saved state; None when there is no file.

    DamagedStore: a broker that forgets its vote could vote twice in an epoch (Raft §5.2).
    """
    path = folder / NAME
    try:
        with opened(disk, path) as fd:
            return _newest(path, _copies(disk, fd))
    except FileNotFoundError:
        return None


def recover(disk: Disk, folder: Path, notes: list[str]) -> HardState | None:
    """Read the state, and repair both copies if they differ; `notes` gets a sentence when a copy was damaged. DamagedStore,
    StorageError."""
    path = folder / NAME
    try:
        with opened(disk, path, os.O_RDWR) as fd:
            sync_or_stop(disk, fd, path)
            copies = _copies(disk, fd)
            newest = _newest(path, copies)
            for offset, copy in zip(_OFFSETS, copies, strict=True):
                if copy is None:
                    notes.append(f"{path}: one of the two copies of epoch and vote was torn or damaged and is written anew")
                if copy != newest:
                    _put(disk, fd, path, offset, _sealed(newest))
            return newest
    except FileNotFoundError:
        return None


def make(disk: Disk, folder: Path) -> HardState:
    """Create the file of a new log. StorageError."""
    nothing = HardState(0, None)
    replace_durably(disk, folder / NAME, _sealed(nothing) * len(_OFFSETS))
    return nothing


def save(disk: Disk, folder: Path, state: HardState) -> None:
    """The state is durable when this returns. It needs no free space. After a StorageError, it is unknown whether the state was
    saved."""
    path, sealed = folder / NAME, _sealed(state)
    try:
        with opened(disk, path, os.O_RDWR) as fd:
            for offset in _OFFSETS:
                _put(disk, fd, path, offset, sealed)
    except OSError as error:
        raise refused(error, "write", path) from error


def _put(disk: Disk, fd: int, path: Path, offset: int, sealed: bytes) -> None:
    write_all(disk, fd, sealed, offset)
    sync_or_stop(disk, fd, path)


def _sealed(state: HardState) -> bytes:
    sealed = seal_json({name: value for name, value in state._asdict().items() if name != "attested" or value is not None})
    assert len(sealed) <= COPY_BYTES, f"{state} does not fit its block"
    return sealed.ljust(COPY_BYTES, b"\0")


def _copies(disk: Disk, fd: int) -> list[HardState | None]:
    """Both copies; None for a damaged one."""
    contents = (unseal_json(read_whatever(disk, fd, COPY_BYTES, offset).rstrip(b"\0")) for offset in _OFFSETS)
    return [None if content is None else HardState(**content) for content in contents]


def _newest(path: Path, copies: list[HardState | None]) -> HardState:
    whole = [copy for copy in copies if copy is not None]
    if not whole:
        raise DamagedStore(
            f"{path} is damaged: the checksum of neither copy of epoch and vote fits its content; "
            f"move {path.parent} away: the broker then starts as a new one and fetches everything"
        )
    return max(whole, key=_age)


def _age(state: HardState) -> Any:
    attested = state.attested or {}
    return state.epoch, state.voted_for is not None, attested.get("epoch", 0), attested.get("index", 0)
