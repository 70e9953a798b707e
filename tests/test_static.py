"""What is said of the files without running them: format, lint, types, and who may import whom.

Each is a tool with its rules in pyproject.toml, called as its tox environment calls it. As tests they run beside the others, and
one closing line speaks for all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = {
    "types": ("mypy",),
    "imports": ("lint-imports", "--no-cache"),
    "lint": ("ruff", "check", "--quiet", "."),
    "format": ("ruff", "format", "--check", "--quiet", "--diff", "."),
}
LONGEST_S = 1000
"""mypy takes most of a minute of processor time when nothing of its work is kept from before, and may get little of it."""

pytestmark = pytest.mark.static


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_has_nothing_to_object_to(tool: str) -> None:
    program, *words = TOOLS[tool]
    command = [str(Path(sys.executable).with_name(program)), *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert done.returncode == 0, f"{' '.join([program, *words])}:\n{done.stdout}{done.stderr}"


def test_the_tools_are_those_of_tox() -> None:
    """Breaks when `tox -e lint` and `make test` would say different things."""
    commands = {" ".join(command) for command in TOOLS.values()}
    written = {line.removeprefix("commands = ").strip() for line in (ROOT / "tox.ini").read_text().splitlines()}
    assert commands - written == set()
