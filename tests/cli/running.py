"""Run a command of ours as a user does: in a process of its own, forked from one that has it loaded (`tests.cli.zygote`).

`run` is for what a command says and how it ends. `run_afresh` starts an interpreter for it, which costs a quarter of a second of
processor time: for what belongs to the process, which tests/cli/test_processes.py holds for every command.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.programs import MODULES
from tests.cli.zygote import PID, STATUS, Call

ROOT = Path(__file__).parents[2]
LONGEST_S = 120.0
"""What a command may take, on a machine that is busy with other things too."""


@dataclass(frozen=True)
class Ran:
    """What a command printed, and how it ended."""

    status: int
    out: str
    err: str


class Forked:
    """A process that the zygote has forked, with these descriptors for its output and errors: its id, and how it ends.

    It runs in the network namespace of the thread that makes it, and is killed when this process ends."""

    def __init__(self, module: str, name: str, words: Sequence[str], out: int, err: int) -> None:
        call: Call = {
            "module": module,
            "name": name,
            "words": list(words),
            "environment": environment(),
            "folder": os.getcwd(),
        }
        self._fate, theirs = socket.socketpair()
        with theirs, open("/proc/thread-self/ns/net", "rb") as network:
            socket.send_fds(zygote(), [json.dumps(call).encode()], [out, err, theirs.fileno(), network.fileno()])
        self.returncode: int | None = None
        self._fate.settimeout(LONGEST_S)
        (self.pid,) = PID.unpack(self._fate.recv(PID.size))

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._fate], [], [], 0)[0]:
            (self.returncode,) = STATUS.unpack(self._fate.recv(STATUS.size))
            self._fate.close()
        return self.returncode

    def wait(self, timeout_s: float = LONGEST_S) -> int:
        """The same, when it has ended. TimeoutError when it has not by then."""
        if self.returncode is None:
            select.select([self._fate], [], [], timeout_s)
        if self.poll() is None:
            raise TimeoutError(f"process {self.pid} did not end within {timeout_s} s")
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to it; nothing when it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> int:
        """kill -9, and wait until it is gone."""
        self.send_signal(signal.SIGKILL)
        return self.wait()


@functools.cache
def zygote() -> socket.socket:
    """The socket to this process's zygote, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.cli.zygote"]
        _left_running.append(subprocess.Popen(command, stdin=theirs.fileno(), cwd=ROOT, env=environment()))
    return ours


_left_running: list[subprocess.Popen[bytes]] = []


def environment() -> dict[str, str]:
    """Ours, without what would change a command's options."""
    return {name: value for name, value in os.environ.items() if not name.startswith("QPID_")} | {"PYTHONPATH": str(ROOT)}


def run(command: str, *words: Any) -> Ran:
    """Run `command` (qpid-ha, ...) with these words. No traceback may ever show, and an error is one line."""
    return checked(ended(command, *words))


def ended(command: str, *words: Any) -> Ran:
    """Run it to its end, whatever it says."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        forked = Forked(MODULES[command], command, [str(word) for word in words], out.fileno(), err.fileno())
        try:
            status = forked.wait()
        except TimeoutError:
            forked.kill()
            raise
        out.seek(0)
        err.seek(0)
        return Ran(status, out.read().decode(), err.read().decode())


def run_afresh(command: str, *words: Any) -> Ran:
    """The same in an interpreter that is started for it."""
    done = subprocess.run(
        [sys.executable, "-m", MODULES[command], *map(str, words)],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        env=environment(),
        check=False,
    )
    return checked(Ran(done.returncode, done.stdout, done.stderr))


def checked(ran: Ran) -> Ran:
    """What ran, when it told no traceback, and no error in more than a line."""
    assert "Traceback" not in ran.err, ran.err
    if ran.status:
        assert len(ran.err.splitlines()) <= 1, ran.err
    return ran
