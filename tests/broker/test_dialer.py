"""How a route logs in at its source: with the password that stands in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.task import Clock

from broker.client import ConnectError
from broker.core import urls
from broker.routes.dialer import Dialer, password_of

LINES = ["ann secret", "ann@h2:5672 another one", "", "bob"]


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
