"""Run a command of ours as a user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from tests.broker.management_peer import ROOT


@dataclass(frozen=True)
class Ran:
    """What a command printed, and how it ended."""

    status: int
    out: str
    err: str


def run(command: str, *words: Any) -> Ran:
    """Run `command` (qpid-ha, ...) with these words. No traceback may ever show, and an error is one line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QPID_")} | {"PYTHONPATH": str(ROOT)}
    module = f"cli.{command.replace('-', '_')}"
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    if done.returncode:
        assert len(done.stderr.splitlines()) <= 1, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)
