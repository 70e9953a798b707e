"""What belongs to the process of a command: how it ends in an interpreter of its own, for every command the same.

Everywhere else commands are forked from a process that has them loaded (`tests.cli.running`); that this makes no difference is
seen here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tomllib
from typing import Any

import pytest

from cli.programs import MODULES
from tests.cli.running import ROOT, Forked, environment, run, run_afresh

COMMANDS = ("qpid-config", "qpid-ha", "qpid-resource-manager", "qpid-stat", "qpid-verify")
WAITING = {
    "qpid-config": ["queues", "-b"],
    "qpid-ha": ["status", "-b"],
    "qpid-resource-manager": ["--brokers"],
    "qpid-stat": ["-q", "-b"],
    "qpid-verify": ["-b"],
}
"""Words with which a command talks to the broker that comes behind them."""
INTERRUPTED = {"qpid-resource-manager": 0}
"""A daemon that is told to end has done what it was to do."""


def started(command: str, *words: str, **streams: Any) -> subprocess.Popen[str]:
    """A command in an interpreter of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", MODULES[command], *words],
        env=environment(),
        cwd=ROOT,
        text=True,
        stderr=subprocess.PIPE,
        **streams,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_started_afresh_says_and_does_what_a_forked_one_does(command: str) -> None:
    """Breaks when the short way of the other tests hides how a command ends for a user."""
    for words in (["--help"], [*WAITING[command], "a b"]):
        assert run_afresh(command, *words) == run(command, *words), words


def test_a_command_that_asks_a_broker_ends_the_same_way_in_both(peers: Any) -> None:
    broker = peers(ha={"status": "active"})
    for words in (["-b", broker.name], ["-b", "127.0.0.1:1"], ["-b", broker.name, "--expect", "ready"]):
        assert run_afresh("qpid-ha", "status", *words) == run("qpid-ha", "status", *words), words


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_ends_a_command_that_waits_without_a_traceback(command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with started(command, *WAITING[command], address, stdout=subprocess.DEVNULL) as process, silent.accept()[0]:
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
    assert process.returncode == INTERRUPTED.get(command, 130), said
    assert "Traceback" not in said


SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
INTERRUPT_AT_CLICK = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""
"""Each of our commands imports click at its beginning."""


def script(command: str) -> str:
    """What the console script of this command does."""
    module, function = SCRIPTS[command].split(":")
    return f"from {module} import {function} as main\nmain()\n"


@pytest.mark.parametrize("command", SCRIPTS)
def test_an_interrupt_while_a_command_is_loaded_ends_it_without_a_word(command: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPT_AT_CLICK + script(command)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("command", ["qpid-resource-manager", "qpid-stat"])
def test_a_console_script_that_waits_is_interrupted_as_ever(command: str) -> None:
    """Breaks when the default action of SIGINT stays in force after the imports."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = [*WAITING[command], f"127.0.0.1:{silent.getsockname()[1]}"]
        with (
            subprocess.Popen(
                [sys.executable, "-c", script(command), *words], env=environment(), cwd=ROOT, text=True, stderr=subprocess.PIPE
            ) as process,
            silent.accept()[0],
        ):
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
    assert (process.returncode, "Traceback" in said) == (INTERRUPTED.get(command, 130), False), said


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_said_when_the_reader_has_gone(command: str) -> None:
    """As with `qpid-ha help-all | head -1`. Breaks when a pipe that is closed shows a traceback."""
    ours, theirs = os.pipe()
    os.close(ours)
    with contextlib.closing(os.fdopen(theirs, "wb")) as out, started(command, "--help", stdout=out) as process:
        said = process.communicate(timeout=60)[1]
    assert (process.returncode >= 0, said) == (True, "")


@pytest.mark.parametrize("command", ["qpidd", "qpid-lag", "qpid-stat"])
def test_output_that_cannot_be_written_is_told_in_a_line(command: str) -> None:
    """As on a full disk. Each of the three has a `main` of its own, and all others have qpid-stat's."""
    with open("/dev/full", "wb") as full, started(command, "--help", stdout=full) as process:
        said = process.communicate(timeout=60)[1]
    assert (process.returncode, said) == (1, f"{command}: the output could not be written: No space left on device\n")


@pytest.mark.parametrize("command", ["qpidd", "qpid-lag", "qpid-stat"])
def test_closed_standard_streams_are_as_good_as_dev_null(command: str) -> None:
    shell = 'exec "$@" <&- >&-'
    ran = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-m", MODULES[command], "--help"],
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_a_name_outside_the_character_set_of_the_locale_is_escaped(peers: Any) -> None:
    """Breaks when one queue with such a name ends qpid-stat with a traceback, so that it shows none of them."""
    broker = peers(items={"queue": [{"name": "\u0161\xe9\U0001f600"}]})
    ran = subprocess.run(
        [sys.executable, "-m", MODULES["qpid-stat"], "-q", "-b", broker.name],
        capture_output=True,
        env=environment() | {"PYTHONIOENCODING": "latin-1"},
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.decode("latin-1").splitlines()[-1].split()[0] == "\\u0161\xe9\\U0001f600"


def test_a_forked_command_that_is_killed_tells_the_signal(peers: Any) -> None:
    """Breaks when `run` would take a command that crashed for one that ended."""
    broker = peers(ha={}, silent_on=["QUERY ha"])
    with open(os.devnull, "wb") as nothing:
        forked = Forked("cli.commands.qpid_ha", "qpid-ha", ["status", "-b", broker.name], nothing.fileno(), nothing.fileno())
        assert forked.kill() == -signal.SIGKILL
