"""Epoch and vote (Raft §5, "persistent state"), in a file that has all its blocks before they are needed; and, of a witness, what
it attests (`ha.core.witness`), which is all that it has in the place of a log.

The file's life: made at the log's first start, with room for two copies, each in a block of its own. To save is to write the
first copy in place and sync it, then the second one and sync that. Nothing is allocated, so a broker can vote on a full disk.
A start syncs what a killed process may have left in the page cache, takes the copy that counts, and makes the other one like it.

Invariants: one copy at least is whole, and as new as anything that `save` has returned for; when it returns, both are. So
whatever becomes of one of them, torn by a power cut or rotten, the other one is the truth or ahead of it; when neither is whole,
nobody can tell any more, and the log is refused. Epoch and vote only grow, as nobody who has voted votes otherwise in that epoch,
and so does what is attested: of two whole copies that differ the greater one is the newer.
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
    """An epoch, and for whom this broker has voted in it. `attested`: of a witness alone, an object with `epoch` and `index`."""

    epoch: int
    voted_for: str | None
    attested: dict[str, Any] | None = None


def read(disk: Disk, folder: Path) -> HardState | None:
    """What was saved; None when there is no file.

    DamagedStore: a broker that forgets its vote could vote twice in an epoch (Raft §5.2).
    """
    path = folder / NAME
    try:
        with opened(disk, path) as fd:
            return _newest(path, _copies(disk, fd))
    except FileNotFoundError:
        return None


def recover(disk: Disk, folder: Path, notes: list[str]) -> HardState | None:
    """Read, and have both copies whole and alike; `notes` gets a sentence when one was not whole. DamagedStore, StorageError."""
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
    """Give a new log its file. StorageError."""
    nothing = HardState(0, None)
    replace_durably(disk, folder / NAME, _sealed(nothing) * len(_OFFSETS))
    return nothing


def save(disk: Disk, folder: Path, state: HardState) -> None:
    """Durable when it returns, and needs no room. StorageError: whether it was saved is unknown."""
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
    """Both copies; None for one that is not whole."""
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
