"""Feed the targets with inputs that libFuzzer makes: `python -m tests.fuzz [TARGET ...] [--runs N | --seconds S]`.

Life of a run: each target gets a process of its own, in which Atheris instruments the modules that read its bytes, so that
libFuzzer sees which input reaches a new place; it begins with the seeds and the corpus of the target, and ends after so many
inputs or seconds, or with the first find, whose bytes are then in a file that the output names. `--keep` makes those inputs the
corpus that reach what all of them reach.

Invariant: nothing of ours is imported in the process of a target before Atheris is told what to instrument. That is why this
module imports nothing of ours at its top.

Exit status: 0 when nothing was found, else 1.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

INSTRUMENTED = ("broker", "ha")
LONGEST_S = 10
"""For one input. More is a find: a reader that does not come back."""
MEMORY_MIB = 2048
LARGEST = 4096
"""Bytes of an input."""


def command_of(target: str, folder: Path) -> Path:
    """A command that feeds a target, made in that folder: to merge, libFuzzer starts its own program again."""
    path = folder / f"fuzz-{target}"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tests.fuzz --inside {target} "$0" "$@"\n')
    path.chmod(0o700)
    return path


def fuzzed(target: str, folder: Path, corpus: Path, runs: int, seconds: int, seed: int, keeping: bool) -> int:
    """Feed a target; 0 when nothing was found. What is written goes to that folder, but for a find and what is kept."""
    from tests.fuzz.seeds import corpus_of, keep

    command = command_of(target, folder)
    inputs, merged = folder / "inputs", folder / "merged"
    inputs.mkdir()
    merged.mkdir()
    for number, one in enumerate(corpus_of(target, corpus)):
        (inputs / str(number)).write_bytes(one)
    bounds = [f"-timeout={LONGEST_S}", f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={LARGEST}"]
    words = [f"-max_total_time={seconds}", f"-runs={runs}", f"-seed={seed}", f"-artifact_prefix={Path.cwd()}/fuzz-{target}-"]
    if _ran(command, *words, *bounds, "-print_final_stats=1", str(inputs)):
        return 1
    if keeping:
        if _ran(command, "-merge=1", "-use_counters=0", *bounds, str(merged), str(inputs)):
            return 1
        keep(target, corpus, [path.read_bytes() for path in merged.iterdir()])
    return 0


def _ran(command: Path, *words: str) -> int:
    return subprocess.run([command, *words], check=False, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT).returncode


def inside(target: str, words: list[str]) -> None:
    """The process of one target. `words`: the command that started it, and libFuzzer's options. Does not return."""
    import atheris

    early = [name for name in sys.modules if name.partition(".")[0] in INSTRUMENTED]
    assert not early, f"these were imported too early to be instrumented: {', '.join(early)}"
    with atheris.instrument_imports(include=list(INSTRUMENTED), enable_loader_override=False):
        from tests.fuzz.targets import TARGETS

    atheris.Setup(words, TARGETS[target])
    atheris.Fuzz()


def main() -> int:
    """The command. Returns its exit status."""
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2], sys.argv[3:])
    from tests.fuzz.seeds import CORPUS
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Feed readers with any bytes.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"what to feed (default: all): {', '.join(TARGETS)}")
    parser.add_argument("--runs", type=int, default=-1, help="inputs for each")
    parser.add_argument("--seconds", type=int, default=60, help="at most so long for each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="where libFuzzer's randomness begins (default: another each time)")
    parser.add_argument("--keep", action="store_true", help="add what reaches further to the corpus")
    parser.add_argument("--corpus", type=Path, default=CORPUS, metavar="DIR", help="where it is (default: the project's)")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    found = []
    for target in given.targets or TARGETS:
        print(f"== {target}", flush=True)
        with tempfile.TemporaryDirectory(prefix="understudy-fuzz-") as folder:
            if fuzzed(target, Path(folder), given.corpus, given.runs, given.seconds, given.seed, given.keep):
                found.append(target)
    print(f"found something in: {', '.join(found)}" if found else "nothing was found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
