"""How a route logs in at its source: with the password that stands in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.task import Clock

from broker.client import ConnectError
from broker.core import urls
from broker.options import SettingsError
from broker.routes.dialer import MAX_FILE_BYTES, Dialer, check_passwords, lines_of, password_of
from tests.broker.management_peer import running_peer

reactor: Any = installed_reactor
LINES = ["# ours", "ann secret", "ann@h2:5672 another one", "", "bob"]


@pytest.mark.parametrize(
    "source,password",
    [("h1", None), ("ann@h1", "secret"), ("ann@h2", "another one"), ("ann@h1,h2", "another one"), ("ann@[::1]", "secret")],
)
def test_a_user_has_the_password_of_this_source_or_else_the_one_for_all(source: str, password: str | None) -> None:
    assert password_of(urls.parse(source), LINES) == password


@pytest.mark.parametrize("lines", [None, b"ann secret\n", b"\xff\n"])
def test_a_user_without_a_password_connects_nowhere_and_the_reason_has_no_password(tmp_path: Path, lines: bytes | None) -> None:
    file = tmp_path / "passwords"
    if lines is not None:
        file.write_bytes(lines)
    failures: list[str] = []
    dialed = Dialer(Clock(), file)("amqp:bob@h1:5672", "")
    dialed.addErrback(lambda failure: failures.append(str(failure.trap(ConnectError) and failure.value)))
    assert failures
    assert "--route-passwords" in failures[0]
    assert "secret" not in failures[0]


FORM = "a line is USER PASSWORD or USER@HOST:PORT PASSWORD, with one space between"
PLACE = "after the @ is not HOST:PORT, as in w1:5672 or [::1]:5672"


@pytest.mark.parametrize(
    "line,reason",
    [
        ("ann:secret", FORM),
        ("ann\tsecret", FORM),
        ("ann ", FORM),
        (" ann secret", FORM),
        ("@h1:5672 secret", FORM),
        ("ann@h1 secret", PLACE),
        ("ann@h1:5672,h2:5672 secret", PLACE),
        ("ann@ssl:h1:5672 secret", PLACE),
        ("ann@secret@h1:5672 x", PLACE),
        ("ann@::1 secret", PLACE),
    ],
)
def test_a_line_that_gives_no_user_a_password_is_told_with_its_number_and_without_its_text(
    tmp_path: Path, line: str, reason: str
) -> None:
    """Breaks when it is known only when the route of this user does not connect."""
    file = tmp_path / "passwords"
    file.write_text(f"# ours\nbob secret\n{line}\n")
    with pytest.raises(SettingsError) as raised:
        check_passwords(file)
    assert str(raised.value) == f"--route-passwords {file}:3: {reason}"


def test_two_lines_for_one_user_are_refused(tmp_path: Path) -> None:
    """Breaks when the last of them counts, silently."""
    file = tmp_path / "passwords"
    file.write_text("ann secret\nann@h1:5672 secret\n# ann other\nann other\n")
    with pytest.raises(SettingsError) as raised:
        check_passwords(file)
    assert str(raised.value) == f"--route-passwords {file}:4: is for the same user as line 1: keep one of them"
    lines = file.read_text().splitlines()
    assert password_of(urls.parse("ann@h1"), lines) == "secret", "the other lines remain valid"
    with pytest.raises(ConnectError, match=r"^the file of --route-passwords has several passwords for ann: keep one of them$"):
        password_of(urls.parse("ann@h2"), lines)


def test_a_file_that_is_too_long_is_refused_and_not_cut(tmp_path: Path) -> None:
    """Breaks when users behind the first mebibyte have no password, or the user there a part of it."""
    file = tmp_path / "passwords"
    lines = b"# 4567\n" * (MAX_FILE_BYTES // 7) + b"ann s\n"
    file.write_bytes(b"#" * MAX_FILE_BYTES)
    check_passwords(file)
    file.write_bytes(lines)
    with pytest.raises(SettingsError) as raised:
        check_passwords(file)
    said = f"--route-passwords {file}:149797: here the file has more than 1048576 bytes, which is too many: give a shorter one"
    assert str(raised.value) == said
    failures: list[str] = []
    dialed = Dialer(Clock(), file)("amqp:ann@h1:5672", "")
    dialed.addErrback(lambda failure: failures.append(str(failure.trap(ConnectError) and failure.value)))
    assert failures == [said]


@pytest_twisted.ensureDeferred
async def test_a_source_that_wants_a_login_is_told_of_with_what_a_route_can_be_given() -> None:
    """Breaks when operators are sent to an option of commands, which brokers do not have."""
    with running_peer(logins="PLAIN") as source, pytest.raises(ConnectError) as raised:
        await Dialer(reactor)(f"amqp:{source.name}", "")
    assert "give a user in the URL of the route's source, as in ann@host, and the password in the file of --route-passwords" in (
        said := str(raised.value)
    )
    assert "--password-file" not in said, said


def test_lines_that_give_passwords_comments_and_blank_lines_are_right(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    file.write_text("# ours\n#\n\n  \nann secret\nann@h1:5672 two words\nann@[::1]:5672 x\nJ\u00f6rg x\n")
    check_passwords(file)


def test_a_password_may_have_any_character_but_the_end_of_its_line(tmp_path: Path) -> None:
    """Breaks when lines are split as str.splitlines does."""
    file, password = tmp_path / "passwords", "a\x0bb\x0c\x1c\x85\u2028c\rd"
    file.write_bytes(f"ann {password}\r\nbob x".encode())
    check_passwords(file)
    assert [password_of(urls.parse(f"{user}@h1"), lines_of(file)) for user in ("ann", "bob")] == [password, "x"]


def test_a_comment_is_the_password_of_nobody(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="no password for #"):
        password_of(urls.parse("%23@h1"), LINES)
