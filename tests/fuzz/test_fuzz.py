"""Each reader of strangers' bytes with the corpus, and with inputs that libFuzzer makes of it: the same ones each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.seeds import corpus_of
from tests.fuzz.targets import TARGETS

RUNS = {"log": 400, "engine": 3000, "options": 6000, "sections": 8000, "replication": 60_000, "batch": 60_000, "command": 60_000}
"""Inputs for a target, so that each takes about four seconds of a processor."""
USUAL = 25_000
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_is_read_or_refused(target: str) -> None:
    """In this process, where a find has a traceback."""
    inputs = corpus_of(target)
    for data in inputs:
        TARGETS[target](data)
        TARGETS[target](data[: len(data) // 2])
    assert inputs


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_made_of_the_corpus_is_read_or_refused(target: str, tmp_path: Path) -> None:
    """Breaks when bytes from outside end in an error that nobody has foreseen, or in a reader that does not come back."""
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        target,
        "--runs",
        str(RUNS.get(target, USUAL)),
        "--seconds",
        "300",
        "--seed",
        "7",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "nothing was found" in done.stdout
