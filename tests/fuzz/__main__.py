"""Feed the targets with inputs that libFuzzer makes: `python -m tests.fuzz [TARGET ...] [--runs N | --seconds S]`.

Life of a run: each target gets a process of its own, in which Atheris instruments the modules that read its bytes, so that
libFuzzer sees which input reaches a new place; it begins with the seeds and the corpus of the target, and ends after so many
inputs or seconds, or with the first find, whose bytes are then in a file that the output names. `--keep` makes those inputs the
corpus that reach what all of them reach.

Exit status: 0 when nothing was found, else 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.seeds import corpus_of, keep

INSTRUMENTED = ("broker", "ha")
LONGEST_S = 10
"""For one input. More is a find: a reader that does not come back."""
MEMORY_MIB = 2048
LARGEST = 4096
"""Bytes of an input."""


def libfuzzer(target: str, words: list[str]) -> int:
    """Run libFuzzer over a target in a process; its output goes to ours."""
    command = [sys.executable, "-m", "tests.fuzz", "--inside", target, *words]
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode


def fuzzed(target: str, folder: Path, runs: int, seconds: int, seed: int, keeping: bool) -> int:
    """Feed a target; 0 when nothing was found. What is written goes to that folder, but for a find."""
    inputs, merged = folder / "inputs", folder / "merged"
    inputs.mkdir()
    merged.mkdir()
    for number, one in enumerate(corpus_of(target)):
        (inputs / str(number)).write_bytes(one)
    bounds = [f"-timeout={LONGEST_S}", f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={LARGEST}", "-verbosity=0"]
    words = [f"-max_total_time={seconds}", f"-runs={runs}", f"-seed={seed}", "-print_final_stats=1"]
    status = libfuzzer(target, [*words, *bounds, f"-artifact_prefix={Path.cwd()}/fuzz-{target}-", str(inputs)])
    if keeping and not status:
        libfuzzer(target, ["-merge=1", *bounds, str(merged), str(inputs)])
        keep(target, [path.read_bytes() for path in merged.iterdir()])
    return status


def inside(target: str, words: list[str]) -> None:
    """The process of one target. Does not return."""
    import atheris

    with atheris.instrument_imports(include=list(INSTRUMENTED), enable_loader_override=False):
        from tests.fuzz.targets import TARGETS

    atheris.Setup([f"fuzz-{target}", *words], TARGETS[target])
    atheris.Fuzz()


def main() -> int:
    """The command. Returns its exit status."""
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2], sys.argv[3:])
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Feed readers with any bytes.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"what to feed (default: all): {', '.join(TARGETS)}")
    parser.add_argument("--runs", type=int, default=-1, help="inputs for each")
    parser.add_argument("--seconds", type=int, default=60, help="at most so long for each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="where libFuzzer's randomness begins (default: another each time)")
    parser.add_argument("--keep", action="store_true", help="add what reaches further to the corpus")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    found = []
    for target in given.targets or TARGETS:
        print(f"== {target}", flush=True)
        with tempfile.TemporaryDirectory(prefix="understudy-fuzz-") as folder:
            if fuzzed(target, Path(folder), given.runs, given.seconds, given.seed, given.keep):
                found.append(target)
    print(f"found something in: {', '.join(found)}" if found else "nothing was found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
