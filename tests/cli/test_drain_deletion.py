"""The deletion of a released store, which is killed on its way, and given again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.disk.durable import replace_durably, seal_json
from broker.disk.files import REAL_DISK
from broker.disk.store import DamagedStore, Store
from cli import endings
from cli.drain.orphan import MARK, delete, delete_rest, look
from tests.cli.running import run

QUEUE = {"name": "q", "uuid": "u", "moved": 3, "known": 0, "bytes": 9, "checksum": 1}


class Killed(BaseException):
    """The end of the process."""


def released(folder: Path) -> Path:
    """A store that was drained and released, with more files than one folder has."""
    store = Store.open(folder)
    store.journal("local", call_in_reactor=lambda function: None, on_error=lambda text, fatal: None)
    store.close()
    mark = {"store": store.store_id, "drain": "d", "to": ["b:1"], "released": "now", "queues": [QUEUE]}
    replace_durably(REAL_DISK, folder / MARK, seal_json(mark))
    (folder / "lost+found").mkdir()
    return folder


def killed_after(n: int, folder: Path, patch: pytest.MonkeyPatch) -> bool:
    """Delete the store, in a process that ends before the step after the first n of the deletion. Returns whether it did."""
    left = iter(range(n))

    def step(real: object) -> object:
        def done(*args: object, **kwargs: object) -> object:
            if next(left, None) is None:
                raise Killed
            return real(*args, **kwargs)  # type: ignore[operator]

        return done

    with patch.context() as patched:
        for name in ("unlink", "rmdir", "rename", "replace"):
            patched.setattr(os, name, step(getattr(os, name)))
        try:
            delete(folder)
        except Killed:
            return True
    return False


def test_a_deletion_that_was_killed_anywhere_goes_on_with_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when what is left is neither a store that can be drained nor one whose deletion goes on."""
    n = 0
    while killed_after(n, folder := released(tmp_path / f"store{n}"), monkeypatch):
        names = set(os.listdir(folder))
        if "deleting.json" in names:
            with pytest.raises(endings.Refused, match="is being deleted"):
                look(folder)
            with pytest.raises(DamagedStore, match=r"is being deleted, because it was drained and released: run .*again"):
                Store.open(folder)
            found = delete_rest(folder)
            assert found is not None
            assert (found["drain"], found["queues"]) == ("d", [QUEUE])
        elif "store.json" in names:
            assert n <= 1, "nothing is deleted before that is noted"
            delete(folder)
        assert set(os.listdir(folder)) <= {"lost+found"}
        n += 1
    assert n > 8
    assert set(os.listdir(folder)) == {"lost+found"}


def test_the_command_says_that_it_has_deleted_the_rest_and_asks_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = released(tmp_path / "store")
    (folder / "lost+found").rmdir()
    assert killed_after(4, folder, monkeypatch)
    words = ("qpid-drain", "--store", folder, "--to", "127.0.0.1:1")
    for more in ((), ("--check",), ("--check", "--delete-released")):
        refused = run(*words, *more)
        assert (refused.status, refused.err) == (
            1,
            f"qpid-drain: the store in {folder} is being deleted, because it was drained and released: "
            f"run qpid-drain --store {folder} --to URL --delete-released again\n",
        )
    end = tmp_path / "end"
    done = run(*words, "--delete-released", "--end-file", end)
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[0] == f"deleted: the rest of the released store in {folder}"
    assert '"empty": true' in end.read_text()
    assert not folder.exists()


def test_a_deletion_is_not_continued_in_the_store_of_another_broker_nor_while_a_broker_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = released(tmp_path / "store"), Store.open(tmp_path / "other")
    assert killed_after(4, folder, monkeypatch)
    (other.data_dir / "deleting.json").write_bytes((folder / "deleting.json").read_bytes())
    with pytest.raises(endings.Refused, match=r"deleting.json is of another store"):
        delete_rest(other.data_dir)
    (other.data_dir / "deleting.json").unlink()
    other.close()
    used = Store.open(released(tmp_path / "used"))
    with pytest.raises(endings.Refused, match="is in use by process"):
        delete(used.data_dir)
    used.close()
