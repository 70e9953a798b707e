"""A checkpoint is whole or it is none, on this disk and on its way to another."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from broker.core.records import BadBatch
from broker.disk import checkpoint
from broker.disk.checkpoint import Checkpoint, CheckpointGone, write
from broker.disk.durable import NewerFormat, StorageError
from broker.disk.files import REAL_DISK, RealDisk
from tests.broker.disk.logs import FailingSync, FullDisk, batches, flip

MEMBERS = {"voters": ["127.0.0.1:5672", "127.0.0.1:5673"]}


def test_a_checkpoint_gives_back_what_was_put_in(tmp_path: Path) -> None:
    content = batches(1, 20, nbytes=1000)
    written = write(tmp_path, 42, 7, MEMBERS, iter(content), disk=REAL_DISK)
    assert Checkpoint.newest(tmp_path, disk=REAL_DISK) == written
    assert (written.index, written.epoch, written.members) == (42, 7, MEMBERS)
    assert written.nbytes == written.path.stat().st_size
    assert list(Checkpoint.read(written.path, disk=REAL_DISK)) == content


def test_an_empty_state_is_a_checkpoint_too(tmp_path: Path) -> None:
    written = write(tmp_path, 1, 1, {}, [], disk=REAL_DISK)
    assert Checkpoint.newest(tmp_path, disk=REAL_DISK) == written
    assert list(Checkpoint.read(written.path, disk=REAL_DISK)) == []


def test_a_checkpoint_cut_at_any_byte_does_not_count(tmp_path: Path) -> None:
    older = write(tmp_path, 3, 1, MEMBERS, batches(1, 1), disk=REAL_DISK)
    newer = write(tmp_path, 9, 2, MEMBERS, batches(1, 3), disk=REAL_DISK)
    for length in reversed(range(newer.nbytes)):
        os.truncate(newer.path, length)
        assert Checkpoint.newest(tmp_path, disk=REAL_DISK) == older, length


def test_a_checkpoint_with_any_byte_altered_does_not_count(tmp_path: Path) -> None:
    written = write(tmp_path, 9, 2, MEMBERS, batches(1, 3), disk=REAL_DISK)
    for at in range(written.nbytes):
        flip(written.path, at, at % 8)
        with pytest.raises(BadBatch, match=str(written.path)):
            checkpoint.load(written.path, disk=REAL_DISK)
        flip(written.path, at, at % 8)
    assert Checkpoint.newest(tmp_path, disk=REAL_DISK) == written


def test_damage_met_while_reading_is_named_with_its_offset(tmp_path: Path) -> None:
    content = batches(1, 5, nbytes=100)
    written = write(tmp_path, 9, 2, {}, content, disk=REAL_DISK)
    head = written.nbytes - sum(map(len, content)) - 24
    flip(written.path, head + 2 * len(content[0]) + 70)
    reading = Checkpoint.read(written.path, disk=REAL_DISK)
    assert [next(reading), next(reading)] == content[:2]
    with pytest.raises(BadBatch, match=rf"is damaged at byte {head + 2 * len(content[0])}: batch 3: checksum"):
        next(reading)


def test_a_checkpoint_of_a_newer_version_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 3, 1, {}, [], disk=REAL_DISK)
    newer = write(tmp_path, 9, 2, {}, [], disk=REAL_DISK)
    fixed = checkpoint._HEAD.pack(b"USC1", 3, 2, 9, 2)
    data = fixed + checkpoint._CRC.pack(google_crc32c.value(fixed + b"{}")) + b"{}"
    newer.path.write_bytes(data)
    with pytest.raises(NewerFormat, match="has format 3, newer than 2"):
        Checkpoint.newest(tmp_path, disk=REAL_DISK)


@pytest.mark.parametrize(
    "disk, fatal", [(FullDisk(), False), (FailingSync(), True), (FullDisk(errno.EIO), True)], ids=["full", "sync", "broken"]
)
def test_a_refused_checkpoint_leaves_nothing_but_the_older_one(tmp_path: Path, disk: FullDisk | FailingSync, fatal: bool) -> None:
    older = write(tmp_path, 3, 1, {}, batches(1, 2), disk=REAL_DISK)
    (disk.full if isinstance(disk, FullDisk) else disk.broken).set()
    with pytest.raises(StorageError, match="cannot write the checkpoint") as refusal:
        write(tmp_path, 9, 1, {}, batches(1, 2), disk=disk)
    assert refusal.value.fatal == fatal
    assert [path.name for path in tmp_path.iterdir()] == [older.path.name]


def test_a_snapshot_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield batches(1, 1)[0]
        raise RuntimeError("the state could not be walked")

    with pytest.raises(RuntimeError, match="could not be walked"):
        write(tmp_path, 9, 1, {}, failing(), disk=REAL_DISK)
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_checkpoint_is_said_to_be_gone(tmp_path: Path) -> None:
    older = write(tmp_path, 3, 1, {}, [], disk=REAL_DISK)
    newer = write(tmp_path, 9, 1, {}, [], disk=REAL_DISK)
    checkpoint.remove_older(newer, disk=REAL_DISK)
    assert checkpoint.listed(REAL_DISK, tmp_path) == [newer.path]
    with pytest.raises(CheckpointGone, match="any more"):
        checkpoint.load(older.path, disk=REAL_DISK)
    with pytest.raises(CheckpointGone):
        list(Checkpoint.read(older.path, disk=REAL_DISK))


class Replacing(RealDisk):
    """A disk on which a newer checkpoint takes an older one's place just before that is opened."""

    def open(self, path: Path, flags: int) -> int:
        if path.exists() and "09.checkpoint" not in path.name and path.suffix == ".checkpoint":
            checkpoint.remove_older(write(path.parent, 9, 1, {}, [], disk=REAL_DISK), disk=REAL_DISK)
        return super().open(path, flags)


def test_the_newest_checkpoint_is_the_one_that_another_thread_writes_while_it_is_looked_for(tmp_path: Path) -> None:
    """A backup's writer looks for it when it has received a snapshot, and may just then have made one itself."""
    write(tmp_path, 3, 1, {}, [], disk=REAL_DISK)
    found = Checkpoint.newest(tmp_path, disk=Replacing())
    assert found is not None
    assert found.index == 9
