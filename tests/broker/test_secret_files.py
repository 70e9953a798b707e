"""Files with secrets that other users can read or write are told, wherever an option names one."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.logger import capturedLogs, formatEvent

import broker.settings
import ha.settings
from broker.options import Option, gather
from broker.secret_files import is_exposed, warning, warnings, way_out
from broker.tls_files import TlsFiles
from cli import options as command
from cli.verify import qpid_verify
from resource_manager import settings as manager
from resource_manager.arbiters import etcd, kubernetes
from resource_manager.arbiters.options import read
from tests.cli.running import ended

ALICE, ROOT = 1000, 0
WHAT = ("password", "key")
TABLES = {
    "qpidd": (*broker.settings.OPTIONS, *ha.settings.OPTIONS),
    "commands": command.CONNECTION,
    "qpid-verify": qpid_verify.OPTIONS,
    "qpid-resource-manager": manager.OPTIONS,
}


@pytest.mark.parametrize(
    "mode,owner,exposed",
    [
        (0o600, ALICE, False),
        (0o400, ALICE, False),
        (0o640, ALICE, True),
        (0o604, ALICE, True),
        (0o602, ALICE, True),
        (0o600, ROOT, False),
        (0o440, ROOT, False),  # a Secret with `defaultMode: 0440`, or any Secret's file in a pod with `fsGroup`
        (0o640, ROOT, False),
        (0o660, ROOT, True),
        (0o644, ROOT, True),
    ],
)
def test_the_owner_may_read_a_secret_and_of_root_s_files_their_group(mode: int, owner: int, exposed: bool) -> None:
    assert is_exposed(0o100000 | mode, owner) is exposed


def test_a_link_counts_as_the_file_that_it_leads_to_and_what_is_no_file_is_not_told(tmp_path: Path) -> None:
    """A Secret's files are links to links."""
    (tmp_path / "..2026_01").mkdir(mode=0o755)
    (tmp_path / "..data").symlink_to("..2026_01")
    (tmp_path / "..data" / "password").write_text("pencil\n")
    link = tmp_path / "password"
    link.symlink_to("..data/password")
    (tmp_path / "..data" / "password").chmod(0o600)
    assert warning(link, "its password is") == ""
    (tmp_path / "..data" / "password").chmod(0o644)
    way = "set defaultMode: 0440 for the volume, and fsGroup for the pod"
    told = f"{link} can be read or written by other users, but its password is secret: {way}"
    assert warning(link, "its password is") == told
    nobodys = Path("~no-such-user/password")
    assert warnings([(tmp_path, "x"), (tmp_path / "none", "x"), (nobodys, "x"), (link, "its password is")]) == [told]


@pytest.mark.parametrize(
    "owner,user,way",
    [
        (ALICE, ALICE, "run chmod 600"),
        (ALICE, ROOT, "run chmod 600"),
        (ROOT, ROOT, "run chmod 600"),
        (ROOT, ALICE, "give it to the user of this process, and run chmod 600"),
    ],
)
def test_the_advice_keeps_the_file_readable_for_who_reads_it(owner: int, user: int, way: str) -> None:
    """Breaks when a service that follows the advice cannot read its password at its next start."""
    assert way_out(owner, user, mounted=False) == way


@pytest.mark.parametrize("program", TABLES)
def test_each_option_that_names_a_file_with_a_password_tells_of_one_that_others_may_read(tmp_path: Path, program: str) -> None:
    """Breaks when an option that names such a file is added without `hides`."""
    file = tmp_path / "password"
    file.write_text("pencil\n")
    file.chmod(0o644)
    named = [each for each in TABLES[program] if each.name.endswith("password-file") and each.name != "ssl-cert-password-file"]
    assert named
    for option in named:
        told: list[str] = []
        gather([option], {option.field: str(file)}, {}, note=told.append)
        assert told == [f"{file} can be read or written by other users, but its password is secret: run chmod 600"]


def test_a_configuration_file_is_told_only_when_it_has_a_password(tmp_path: Path) -> None:
    config, table = tmp_path / "qpidd.conf", TABLES["qpidd"]
    config.write_text("port=0\n")
    config.chmod(0o644)
    told: list[str] = []
    gather(table, {"config": str(config)}, {}, note=told.append)
    assert told == []
    for line in ("ha-password=pencil", "drain-to=ann/pencil@a:1"):
        config.write_text(f"{line}\n")
        gather(table, {"config": str(config)}, {}, note=told.append)
    assert told == [f"{config} can be read or written by other users, but its password is secret: run chmod 600"] * 2


def test_a_private_key_is_in_a_file_of_its_own_or_in_that_of_its_certificate() -> None:
    certificate, key, password, other = map(Path, ("c.pem", "c.key", "password", "other.pem"))
    assert TlsFiles(certificate).private == ((certificate, "its key is"),)
    files = TlsFiles(certificate, key, password, further=(other,))
    assert files.private == ((key, "its key is"), (other, "its key is"), (password, "its password is"))
    assert TlsFiles(authorities=other).private == ()


@pytest.mark.parametrize(
    "table,option,what",
    [
        (etcd.OPTIONS, "password-file", "password"),
        (etcd.OPTIONS, "key", "key"),
        (etcd.OPTIONS, "certificate", "key"),
        (kubernetes.OPTIONS, "token-file", "token"),
    ],
)
def test_an_arbiter_s_file_with_a_secret_is_told(tmp_path: Path, table: tuple[Option, ...], option: str, what: str) -> None:
    file = tmp_path / "secret"
    file.write_text("pencil\n")
    told = f"{file} can be read or written by other users, but its {what} is secret: run chmod 600"
    for mode, lines in ((0o600, []), (0o644, [told])):
        file.chmod(mode)
        with capturedLogs() as logged:
            read(table, {option: str(file)}, "the arbiter")
        assert [formatEvent(event) for event in logged] == lines


@pytest.mark.parametrize("command_line", ["qpid-stat -g", "qpid-verify"])
def test_a_command_tells_it_before_it_does_anything(tmp_path: Path, command_line: str) -> None:
    file = tmp_path / "password"
    file.write_text("pencil\n")
    file.chmod(0o644)
    ran = ended(*command_line.split(), "-b", "ann@127.0.0.1:1", "--password-file", file, "--timeout", "0.1")
    assert ran.status == 3
    told = f"warning: {file} can be read or written by other users, but its password is secret: run chmod 600"
    assert ran.err.splitlines()[0] == told


def test_the_controller_of_scale_down_tells_of_its_token_once_and_only_on_stderr(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a.b.c")
    file.chmod(0o644)
    words = ["--namespace", "default", "--api-server", "http://127.0.0.1:1", "--api-token-file", file, "--once", "--poll", "0.1"]
    ran = ended("qpid-scaledown", *words, "--format", "json")
    told = f"warning: {file} can be read or written by other users, but its token is secret: run chmod 600"
    assert (ran.err.splitlines()[0], ran.err.count("chmod"), "chmod" in ran.out) == (told, 1, False)


def test_the_resource_manager_notes_it(tmp_path: Path) -> None:
    file, told = tmp_path / "password", list[str]()
    file.write_text("pencil\n")
    file.chmod(0o644)
    given = {"brokers": "ann@a:1,b:1", "password_file": str(file), "ssl_certificate": str(file)}
    manager.read(given, {}, told.append)
    assert told == [f"{file} can be read or written by other users, but its {what} is secret: run chmod 600" for what in WHAT]
