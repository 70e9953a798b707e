"""`qpid-passwd`: users come and go, passwords are never shown or kept, and the file is whole at any moment."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker import users_file
from broker.core import limits, users
from broker.core.users import BadUsers
from broker.secret_files import warning
from broker.users_file import Accounts, BadUsersFile
from cli.commands.qpid_passwd import command
from cli.endings import Refused
from cli.programs import MODULES
from tests.cli.running import ROOT, environment, run

SECRET = "hunter2"


def passwd(*words: object, password: str = "") -> list[str]:
    """The lines that it printed. Refused."""
    ran = CliRunner().invoke(command, [str(word) for word in words], input=f"{password}\n", standalone_mode=False)
    if ran.exception is not None:
        raise ran.exception
    assert SECRET not in ran.output
    return ran.output.splitlines()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


def test_a_user_is_added_checked_listed_and_deleted(file: Path) -> None:
    passwd("add", file, "ann", password=SECRET)
    passwd("add", file, "bob", "--iterations", 5000, password="other")
    assert passwd("list", file) == ["ann", "bob"]
    assert passwd("list", file, "--format", "json") == ["[", '  "ann",', '  "bob"', "]"]
    passwd("check", file, "ann", password=SECRET)
    passwd("delete", file, "ann")
    assert passwd("list", file) == ["bob"]
    assert users.parse(file.read_text())["bob"][users.SHA_256].iterations == 5000


@pytest.mark.parametrize("name, password", [("ann", "wrong"), ("bob", SECRET)])
def test_a_wrong_password_and_a_stranger_are_told_the_same(file: Path, name: str, password: str) -> None:
    passwd("add", file, "ann", password=SECRET)
    with pytest.raises(Refused, match=r"^name or password is wrong$"):
        passwd("check", file, name, password=password)


def test_what_is_no_file_is_refused_and_never_replaced(tmp_path: Path) -> None:
    """Breaks when `qpid-passwd add /dev/null ann` as root leaves a file in the place of the device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(Refused, match=rf"^cannot write {pipe}: it is not a file$"):
        passwd("add", pipe, "ann", password=SECRET)
    assert pipe.is_fifo()


def test_another_password_replaces_the_old_one_and_comments_stay(file: Path) -> None:
    file.write_text("# ours\n")
    passwd("add", file, "ann", password="old")
    passwd("add", file, "ann", password=SECRET)
    passwd("check", file, "ann", password=SECRET)
    with pytest.raises(Refused):
        passwd("check", file, "ann", password="old")
    assert file.read_text().startswith("# ours\nann SCRAM-SHA-512$4096:")
    assert len(file.read_text().splitlines()) == 2


def test_the_file_is_its_owner_s_alone_and_has_no_password_in_it(file: Path) -> None:
    old = os.umask(0)
    try:
        passwd("add", file, "ann", password=SECRET)
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SECRET not in file.read_text()
    assert [path.name for path in file.parent.iterdir()] == ["users"], "nothing is left beside it"


def test_a_link_to_the_file_stays_one(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    passwd("add", link, "ann", password=SECRET)
    assert link.is_symlink()
    assert passwd("list", file) == ["ann"]


def test_two_changes_at_a_time_both_count(file: Path) -> None:
    """Breaks when a change reads before it holds the lock: one of them is lost."""
    threads = [
        threading.Thread(target=users_file.change, args=(file, lambda text, i=i: users.with_line(text, f"u{i}", line(f"u{i}"))))
        for i in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert passwd("list", file) == sorted(f"u{i}" for i in range(16))


def line(name: str) -> str:
    return users.line_of(name, {users.SHA_256: users.Keys(b"x" * 16, 4096, b"s" * 32, b"v" * 32)})


@pytest.mark.parametrize(
    "words, password, said",
    [
        (("add", "{}", "a b"), SECRET, "a name has no spaces"),
        (("add", "{}", "ann"), "", "the password is empty"),
        (("add", "{}", "ann"), f"{SECRET}\x07", "the password has a character that SASL does not allow"),
        (("add", "{}", "ann"), SECRET * 200, "a password has at most 1024 characters"),
        (("add", "{}/nowhere/users", "ann"), SECRET, "cannot write .*/users/nowhere/users: No such file or directory"),
        (("delete", "{}", "ann"), "", "there is no file .*/users"),
        (("list", "{}"), "", "there is no file .*/users"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_changes_nothing(
    file: Path, words: tuple[str, ...], password: str, said: str
) -> None:
    with pytest.raises(Refused, match=f"^{said}") as caught:
        passwd(*(word.format(file) for word in words), password=password)
    assert SECRET not in str(caught.value)
    assert not file.exists()


def test_a_user_who_is_not_there_cannot_be_deleted(file: Path) -> None:
    passwd("add", file, "ann", password=SECRET)
    with pytest.raises(Refused, match=r"^there is no user bob in "):
        passwd("delete", file, "bob")


@pytest.mark.parametrize(
    "content, said",
    [
        (b"# ours\nann hunter2\n", r"users:2: ann has keys that cannot be read; they look like SCRAM"),
        (b"# ours\n\xff\n", r"users:2: not UTF-8 text: is it a users' file\?"),
    ],
)
def test_a_bad_file_is_named_with_its_line_and_stays_as_it_is(file: Path, content: bytes, said: str) -> None:
    file.write_bytes(content)
    for words in (("list", file), ("add", file, "bob"), ("check", file, "ann")):
        with pytest.raises(Refused, match=said) as caught:
            passwd(*words, password=SECRET)
        assert SECRET not in str(caught.value)
    assert file.read_bytes() == content


def test_a_file_that_is_too_long_or_a_folder_is_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_USERS_BYTES", 3)
    file.write_text("# ours\n")
    with pytest.raises(BadUsersFile, match=r"users has more than 3 bytes: it is not a users' file$"):
        users_file.read(file)
    with pytest.raises(BadUsersFile, match=r"^cannot read the users' file .*: Is a directory$"):
        users_file.read(file.parent)


def test_a_broker_reads_the_file_as_it_is_now(file: Path) -> None:
    accounts = Accounts(file, b"secret")
    with pytest.raises(BadUsersFile, match=r"^there is no users' file .*: make one with qpid-passwd add .*/users NAME$"):
        accounts.load()
    passwd("add", file, "ann", password=SECRET)
    assert len(accounts.load()) == 1
    assert warning(file, "its keys are") == ""
    file.chmod(0o644)
    assert warning(file, "its keys are").startswith(f"{file} can be read or written by other users, but its keys are secret")
    file.write_text("ann x\n")
    with pytest.raises(BadUsersFile, match=r"users:1: "):
        accounts.load()
    with pytest.raises(BadUsers):
        users.parse(file.read_text())


def test_the_command_itself_takes_a_password_from_its_standard_input(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", MODULES["qpid-passwd"], "add", str(file), "ann"],
        input=f"{SECRET}\n",
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert run("qpid-passwd", "list", file).out == "ann\n"
    refused = run("qpid-passwd", "delete", file, "bob")
    assert (refused.status, refused.err) == (1, f"qpid-passwd: there is no user bob in {file}\n")
