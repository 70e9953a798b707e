"""The command runs seeds, prints a summary, and reports a broken promise in a way that anybody can repeat."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

import ha.core.primary
from tests.simulation.__main__ import main

pytestmark = pytest.mark.simulation
SEED = "400"


def test_one_seed_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", SEED]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"seed {SEED}: ")
    assert "digest" in said
    assert "accepted" in said


def test_a_range_of_seeds_ends_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "21-23", "-j", "2"]) == 0
    assert capsys.readouterr().out.startswith("3 runs in ")


def test_time_bounds_a_soak(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--minutes", "0.02", "--first", "1"]) == 0
    assert " runs in 0." in capsys.readouterr().out


def test_a_broken_promise_names_itself_and_the_command_that_shows_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is planted: a primary that commits what one member has."""

    def held_by_one(indexes: Iterable[int]) -> int:
        return max(indexes)

    monkeypatch.setattr(ha.core.primary, "held_by_majority", held_by_one)
    assert main(["--seed", SEED, "--shrink"]) == 1
    said = capsys.readouterr().out
    assert "BROKEN: commit: " in said
    command = next(line for line in said.splitlines() if "again: " in line).split()
    kept = command[command.index("--keep") + 1]
    assert main(["--seed", SEED, "--keep", kept]) == 1
    assert main(["--seeds", f"{SEED}-{SEED}"]) == 1
    assert f"FAILED {SEED}: commit: " in capsys.readouterr().out
