"""A store belongs to one process at a time and to one cluster for good."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.core.records import parse_header
from broker.disk.durable import DamagedStore, NewerFormat, StorageError, seal_json
from broker.disk.files import RealDisk
from broker.disk.store import LogInfo, Store, StoreInUse, StoreOfAnotherCluster, inspect
from broker.host import Host
from tests.broker.disk.logs import SMALL, Log, Reactor, batch, batches, flip

ROOT = Path(__file__).parents[3]


def filled(folder: Path) -> Store:
    """A store with some batches in its cluster log, left open."""
    store = Store.open(folder, segment_bytes=SMALL)
    reactor = Reactor()
    journal, _ = store.journal("cluster", call_in_reactor=reactor.call, on_error=reactor.on_error)
    journal.save_hard_state(4, "127.0.0.1:5672")
    journal.append(batches(1, 100, epoch=3), reactor.on_durable)
    reactor.until(lambda: bool(reactor.durable))
    return store


class Syncs(RealDisk):
    """A disk that notes the name of each file and folder that is synced."""

    def __init__(self) -> None:
        self.names_of: dict[int, str] = {}
        self.synced: list[str] = []

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self.names_of[fd] = path.name
        return fd

    def sync(self, fd: int) -> None:
        self.synced.append(self.names_of[fd])
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        self.synced.append(f"{folder.name}/")
        super().sync_folder(folder)


def test_a_start_syncs_what_a_crash_must_not_undo_and_nothing_twice(tmp_path: Path) -> None:
    """Breaks when the first start of a store, or any other one, waits for its disk without a reason."""
    disk, reactor = Syncs(), Reactor()
    segment = "00000000000000000001.seg"

    def started() -> list[str]:
        disk.synced.clear()
        store = Store.open(tmp_path / "data", host=Host(disk=disk), segment_bytes=SMALL)
        journal, found = store.journal("local", call_in_reactor=reactor.call, on_error=reactor.on_error)
        if found.blank:
            journal.floor_passed()
        synced = disk.synced[:]
        store.close()
        return synced

    identity = [f"{tmp_path.name}/", "store.json.tmp", "data/"]
    log = ["data/", f"{segment}.tmp", "local/", "hard-state.tmp", "local/"]
    assert started() == [*identity, *log, "whole.tmp", "local/"]
    names = ["data/", "data/", "local/"]
    assert started() == [*names, "hard-state", segment], "what a killed process may have left, and the mark of the clean end"


def test_a_store_keeps_its_id(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "new" / "data")
    store_id = store.store_id
    assert len(store_id) == 36
    assert store.cluster_id == ""
    store.close()
    store = Store.open(tmp_path / "new" / "data", create=False)
    assert store.store_id == store_id
    store.close()


def test_two_processes_cannot_share_a_store(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    program = """
import sys
from broker.disk.store import Store, StoreInUse
try:
    Store.open(sys.argv[1])
except StoreInUse as error:
    print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert said == f"data folder {tmp_path} is in use by process {os.getpid()}\n"
    with pytest.raises(StoreInUse):
        Store.open(tmp_path)
    store.close()
    store.close()
    Store.open(tmp_path).close()


def test_a_killed_process_leaves_no_lock_and_no_clean_mark(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    program = "import os, sys\nfrom broker.disk.store import Store\nstore = Store.open(sys.argv[1])\nos.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, cwd=ROOT).returncode == -9
    assert not inspect(tmp_path).clean
    store = Store.open(tmp_path)
    assert not store.was_clean
    store.close()
    assert inspect(tmp_path).clean
    store = Store.open(tmp_path)
    assert store.was_clean
    store.close(clean=False)
    assert not Store.open(tmp_path).was_clean


def test_a_cluster_is_adopted_once(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.adopt_cluster("c1")
    store.adopt_cluster("c1")
    with pytest.raises(StoreOfAnotherCluster, match=rf"the store in {tmp_path} belongs to cluster c1, not to cluster c2"):
        store.adopt_cluster("c2")
    store.close()
    store = Store.open(tmp_path)
    assert store.cluster_id == "c1"
    store.close()


def test_a_store_begins_another_cluster_when_an_operator_has_it_and_knows_which_it_has_left(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.adopt_cluster("c1")
    assert store.begun == ""
    for cluster in ("c2", "c3"):
        store.change_cluster(cluster, f"{cluster} begins after batch 9")
    store.close()
    store = Store.open(tmp_path)
    assert (store.cluster_id, store.clusters_left, store.begun) == ("c3", ("c1", "c2"), "c3 begins after batch 9")
    with pytest.raises(StoreOfAnotherCluster):
        store.adopt_cluster("c1")
    store.close()


def test_opening_without_create_does_not_make_a_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no store in"):
        Store.open(tmp_path / "nowhere", create=False)
    assert not (tmp_path / "nowhere").exists()


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("Dear ...")
    with pytest.raises(DamagedStore, match=r"is not empty and has no store\.json"):
        Store.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


def test_a_start_killed_before_it_gave_the_store_an_id_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1\n")
    (tmp_path / "store.json.tmp").write_text("{")
    store = Store.open(tmp_path)
    assert store.store_id
    store.close()


def test_an_altered_identity_is_refused_and_unlocked(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    whole = (tmp_path / "store.json").read_bytes()
    for at in range(len(whole)):
        flip(tmp_path / "store.json", at, at % 8)
        with pytest.raises(DamagedStore, match=r"store\.json is damaged"):
            Store.open(tmp_path)
        (tmp_path / "store.json").write_bytes(whole)
    Store.open(tmp_path).close()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    (tmp_path / "store.json").write_bytes(seal_json({"format": 2, "store_id": "x", "cluster_id": ""}))
    with pytest.raises(NewerFormat, match="has format 2, newer than 1"):
        Store.open(tmp_path)
    with pytest.raises(NewerFormat):
        inspect(tmp_path)


def test_a_data_folder_that_is_a_file_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StorageError, match=r"cannot open the data folder .*file: File exists; a file is in the place of a folder"
    ):
        Store.open(tmp_path / "file")
    with pytest.raises(StorageError, match=r"below: Not a directory; a file is in the place of a folder; move it away, or name"):
        Store.open(tmp_path / "file" / "below")


def test_a_data_folder_that_cannot_be_made_gets_a_sentence() -> None:
    with pytest.raises(StorageError, match=r"cannot open the data folder /proc/no/store: No such file .*; a folder of this name"):
        Store.open("/proc/no/store")


def test_a_store_that_cannot_be_read_gets_a_sentence(tmp_path: Path) -> None:
    """Breaks when a folder in the place of a file is told by the number of an error."""
    (tmp_path / "store.json").mkdir()
    with pytest.raises(StorageError, match=r"cannot open the data folder .*: Is a directory; a folder is in the place of a file"):
        Store.open(tmp_path)
    (tmp_path / "store.json").rmdir()
    Store.open(tmp_path).close()


def test_inspect_tells_what_a_running_brokers_store_holds(tmp_path: Path) -> None:
    store = filled(tmp_path)
    info = inspect(tmp_path)
    assert (info.store_id, info.cluster_id, info.clean, info.format) == (store.store_id, "", False, 1)
    (log,) = info.logs
    nbytes = sum(path.stat().st_size for path in (tmp_path / "cluster").iterdir() if path.suffix != ".tmp")
    at = log.written
    assert log == LogInfo("cluster", 4, "127.0.0.1:5672", 100, 3, 0, log.segments, nbytes, at, blank=log.blank, damage=())
    assert log.segments == len(list((tmp_path / "cluster").glob("*.seg")))
    store.close()


def test_inspect_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path).close()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert inspect(tmp_path).clean
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_inspect_of_damage_does_not_repair_it(tmp_path: Path) -> None:
    filled(tmp_path).close()
    newest = sorted((tmp_path / "cluster").glob("*.seg"))[-1]
    flip(newest, 4096)
    shutil.copytree(tmp_path, tmp_path.parent / "copy")
    first_index = int(newest.stem)
    (log,) = inspect(tmp_path).logs
    assert (log.last_index, log.last_epoch) == (first_index - 1, 3)
    assert log.damage == (
        f"{newest.name} is damaged at byte 4096: it went up to (epoch 3, index 100), and is whole up to "
        f"(epoch 3, index {first_index - 1})",
    )
    for path in (tmp_path / "cluster").iterdir():
        assert path.read_bytes() == (tmp_path.parent / "copy" / "cluster" / path.name).read_bytes()


def test_inspect_tells_when_the_last_batch_was_made(tmp_path: Path) -> None:
    """Breaks when stores cannot be told apart by their age after an outage of all."""
    filled(tmp_path).close()
    (log,) = inspect(tmp_path).logs
    assert log.written == datetime.fromtimestamp(parse_header(batch(100, 3)).timestamp_ms / 1000, UTC).isoformat(
        timespec="milliseconds"
    ).replace("+00:00", "Z")


@pytest.mark.parametrize("lost", [True, False], ids=["a lost segment", "a damaged one"])
def test_inspect_tells_of_a_hole_in_the_log(tmp_path: Path, lost: bool) -> None:
    """Breaks when what follows damage counts as whole, or a lost file goes unnoticed."""
    filled(tmp_path).close()
    first, second, *_ = sorted((tmp_path / "cluster").glob("*.seg"))
    if lost:
        second.unlink()
    else:
        flip(first, 4096)
    (log,) = inspect(tmp_path).logs
    assert log.last_index < 100
    (line,) = log.damage
    assert "are missing before" in line


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("floor", seal_json({"epoch": 3, "index": 200}), "batches up to (epoch 3, index 200) were lost"),
        ("floor", b"garbled", "floor"),
        ("hard-state", b"garbled", "hard-state"),
        ("damaged", seal_json({"why": "rot"}), "a message has rotted"),
        ("reset", seal_json({"index": 7}), "a checkpoint was being received"),
        ("damaged-1.seg", b"", "earlier damage was moved aside: damaged-1.seg"),
        ("00000000000000000060.checkpoint", b"garbled", "00000000000000000060.checkpoint is damaged"),
    ],
)
def test_inspect_tells_what_was_noted_and_what_cannot_be_read(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    filled(tmp_path).close()
    (tmp_path / "cluster" / name).write_bytes(content)
    (log,) = inspect(tmp_path).logs
    assert any(said in line for line in log.damage), log.damage


def test_inspect_knows_checkpoints(tmp_path: Path) -> None:
    filled(tmp_path).close()
    log = Log(tmp_path / "cluster")
    assert log.checkpoint(60, 3, [batch(1)]) == ""
    log.close()
    (info,) = inspect(tmp_path).logs
    assert (info.checkpoint_index, info.last_index, info.last_epoch) == (60, 100, 3)


def test_inspect_of_no_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"there is no store in {tmp_path}"):
        inspect(tmp_path)
