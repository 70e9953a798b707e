"""A program is told of roles: real programs, started by the real reactor."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.logger import ILogObserver, globalLogPublisher
from zope.interface import provider

from ha.role_callback import RoleCallback
from tests.broker.real_time import until

reactor: Any = installed_reactor


def script(folder: Path, body: str) -> str:
    """A program of the shell."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def told(folder: Path) -> list[str]:
    """What the program has written so far."""
    path = folder / "told"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def log() -> Any:
    """The lines of the log."""
    lines: list[str] = []

    @provider(ILogObserver)
    def observe(event: Any) -> None:
        if event.get("log_format"):
            lines.append(event["log_format"].format(**event))

    globalLogPublisher.addObserver(observe)
    yield lines
    globalLogPublisher.removeObserver(observe)


@pytest_twisted.ensureDeferred
async def test_a_program_is_told_each_role_once_with_its_arguments(tmp_path: Path) -> None:
    """Breaks when a state that is no other role is told, or when two run at once."""
    program = script(tmp_path, f'echo "$@" >> {tmp_path}/told')
    callback = RoleCallback(reactor, [program, "--vip", "10.0.0.9"], 30.0, "a:1")
    callback.changed("joining", 1, "")
    await until(lambda: len(told(tmp_path)) == 1)
    callback.changed("catchup", 1, "b:1")
    await until(lambda: len(told(tmp_path)) == 2)
    callback.changed("ready", 1, "b:1")
    callback.changed("recovering", 2, "a:1")
    callback.changed("active", 2, "a:1")
    await until(lambda: len(told(tmp_path)) == 3)
    await until(lambda: callback._running is None)
    own = "--vip 10.0.0.9"
    assert told(tmp_path) == [f"{own} joining 1 - a:1", f"{own} backup 1 b:1 a:1", f"{own} primary 2 a:1 a:1"]


@pytest_twisted.ensureDeferred
async def test_what_changes_while_it_runs_is_told_afterwards_the_newest_alone(tmp_path: Path) -> None:
    program = script(tmp_path, f'echo "$1" >> {tmp_path}/told; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done')
    callback = RoleCallback(reactor, [program], 30.0, "a:1")
    callback.changed("active", 1, "a:1")
    await until(lambda: told(tmp_path) == ["primary"])
    for state in ("joining", "ready", "active", "joining"):
        callback.changed(state, 2, "")
    (tmp_path / "go").touch()
    await until(lambda: len(told(tmp_path)) == 2)
    await until(lambda: callback._running is None)
    assert told(tmp_path) == ["primary", "joining"]


@pytest_twisted.ensureDeferred
async def test_a_program_that_hangs_is_killed_and_the_next_role_is_told(tmp_path: Path, log: list[str]) -> None:
    """Breaks when one hanging program keeps every later role from being told."""
    program = script(tmp_path, f'echo "$1" >> {tmp_path}/told; if [ "$1" = primary ]; then exec sleep 1000; fi')
    callback = RoleCallback(reactor, [program], 0.3, "a:1")
    callback.changed("active", 1, "a:1")
    callback.changed("joining", 2, "")
    await until(lambda: told(tmp_path) == ["primary", "joining"])
    await until(lambda: callback._running is None)
    assert f"{program} has not ended within 0.3 s, and is killed" in log


@pytest_twisted.ensureDeferred
async def test_what_a_program_leaves_in_the_background_does_not_hold_up_the_next_role(tmp_path: Path, log: list[str]) -> None:
    """Breaks when the end of the program counts only once its output is closed, which its child keeps open."""
    program = script(
        tmp_path, f'echo "$1" >> {tmp_path}/told; if [ "$1" = primary ]; then sleep 60 & echo $! > {tmp_path}/pid; fi'
    )
    callback = RoleCallback(reactor, [program], 30.0, "a:1")
    callback.changed("active", 1, "a:1")
    await until(lambda: told(tmp_path) == ["primary"])
    callback.changed("joining", 2, "")
    await until(lambda: told(tmp_path) == ["primary", "joining"])
    await until(lambda: callback._running is None)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert not [line for line in log if "killed" in line or "ended with" in line]


@pytest_twisted.ensureDeferred
async def test_a_program_that_fails_has_a_line_in_the_log(tmp_path: Path, log: list[str]) -> None:
    program = script(tmp_path, "echo first; echo no such address >&2; exit 3")
    callback = RoleCallback(reactor, [program], 30.0, "a:1")
    callback.changed("active", 1, "a:1")
    await until(lambda: callback._running is None)
    assert f"{program} primary ended with 3: no such address" in log


def test_without_a_program_nothing_is_called() -> None:
    callback = RoleCallback(None, (), 1.0, "a:1")
    callback.changed("active", 1, "a:1")
    assert callback._running is None
