"""Each reader of strangers' bytes with the corpus, and with inputs that libFuzzer makes of it: the same ones each time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.__main__ import Nursery, fuzzed
from tests.fuzz.seeds import CORPUS, corpus_of
from tests.fuzz.targets import TARGETS

RUNS = {"log": 100, "engine": 1000, "options": 1500, "selector": 1000}
"""Inputs for a target, so that each takes less than a second of a processor."""
USUAL = 4000
MAX_CORPUS_BYTES = 200 * 1024
SEED = 7
"""So that the inputs are the same ones each time."""
LONGEST_S = 300
_COVERED = re.compile(r"^#\d+\s+(INITED|DONE)\s+cov: (\d+)", re.MULTILINE)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """The readers loaded and instrumented, once for all targets."""
    with Nursery() as made:
        yield made


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_is_read_or_refused(target: str) -> None:
    """In this process, where a find has a traceback."""
    inputs = corpus_of(target)
    for data in inputs:
        TARGETS[target](data)
        TARGETS[target](data[: len(data) // 2])
    assert inputs


def test_the_corpus_is_small_and_each_input_has_the_name_of_its_content() -> None:
    found = {path: path.read_bytes() for path in CORPUS.rglob("*") if path.is_file()}
    assert {path.parent.name for path in found} == set(TARGETS)
    assert sum(map(len, found.values())) <= MAX_CORPUS_BYTES
    assert [path for path, data in found.items() if path.name != hashlib.sha256(data).hexdigest()[:16]] == []


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_made_of_the_corpus_is_read_or_refused(
    target: str, nursery: Nursery, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Breaks when bytes from outside end in an error that nobody has foreseen, or in a reader that does not come back; and when
    libFuzzer does not see where its inputs get to, so that it would only guess."""
    status = fuzzed(nursery, target, tmp_path, CORPUS, RUNS.get(target, USUAL), LONGEST_S, SEED, keeping=False)
    said = capfd.readouterr().out
    assert status == 0, said[-4000:]
    covered = dict(_COVERED.findall(said))
    assert int(covered["DONE"]) >= int(covered["INITED"]) > 10


def test_inputs_that_reach_further_are_kept(nursery: Nursery, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made, corpus = tmp_path / "made", tmp_path / "corpus"
    made.mkdir()
    assert fuzzed(nursery, "value", made, corpus, 1000, LONGEST_S, SEED, keeping=True) == 0, capfd.readouterr().out
    kept = corpus_of("value", corpus)
    assert len(kept) > len(corpus_of("value", tmp_path / "none"))
    for data in kept:
        TARGETS["value"](data)
