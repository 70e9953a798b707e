"""Feed the targets with inputs that libFuzzer makes: `python -m tests.fuzz [TARGET ...] [--runs N | --seconds S]`.

Life of a run: one process, the nursery, loads the modules that read bytes and has Atheris instrument them, so that libFuzzer sees
which input reaches a new place. That takes seconds, so it is done once. Each target gets a process of its own, forked from the
nursery; it begins with the seeds and the corpus of the target, and ends after so many inputs or seconds, or with the first find,
whose bytes are then in a file that the output names. `--keep` makes those inputs the corpus that reach what all of them reach:
to find them, libFuzzer starts its own program again, which has the nursery fork once more.

Invariant: nothing of ours is imported in the nursery before Atheris is told what to instrument. That is why this module imports
nothing of ours at its top.

Exit status: 0 when nothing was found, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shlex
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

INSTRUMENTED = ("broker", "ha")
LONGEST_S = 10
"""For one input. More is a find: a reader that does not come back."""
MEMORY_MIB = 2048
LARGEST = 4096
"""Bytes of an input."""
_MOST_BYTES = 1 << 16
"""The length of a call of the nursery."""


def command_of(target: str, folder: Path, address: str) -> Path:
    """A command that has the nursery feed a target, made in that folder: to merge, libFuzzer starts its own program again."""
    path = folder / f"fuzz-{target}"
    words = shlex.join([sys.executable, "-m", "tests.fuzz", "--again", address, target])
    path.write_text(f'#!/bin/sh\nexec {words} "$0" "$@"\n')
    path.chmod(0o700)
    return path


class Nursery:
    """The process from which those of the targets are forked; it ends with the `with`, or with us."""

    def __init__(self) -> None:
        self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._folder = tempfile.TemporaryDirectory(prefix="understudy-nursery-")
        self.address = f"{self._folder.name}/again"
        """Where those call that it has forked."""
        with theirs:
            command = [sys.executable, "-m", "tests.fuzz", "--nursery", self.address]
            self._process = subprocess.Popen(command, stdin=theirs.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._calls.close()
        self._process.wait()
        self._folder.cleanup()

    def ran(self, target: str, *words: str) -> int:
        """The exit status of libFuzzer with these words, the first of which is its own program. It writes where we write."""
        return called(self._calls, target, *words)


def called(calls: socket.socket, target: str, *words: str) -> int:
    """The exit status of what the nursery was asked for."""
    socket.send_fds(calls, [json.dumps([target, *words]).encode()], [1])
    status = calls.recv(_MOST_BYTES)
    assert status, "the nursery has ended"
    return int(status)


def fuzzed(nursery: Nursery, target: str, folder: Path, corpus: Path, runs: int, seconds: int, seed: int, keeping: bool) -> int:
    """Feed a target; 0 when nothing was found. What is written goes to that folder, but for a find and what is kept."""
    from tests.fuzz.seeds import corpus_of, keep

    command = str(command_of(target, folder, nursery.address))
    inputs, merged = folder / "inputs", folder / "merged"
    inputs.mkdir()
    merged.mkdir()
    for number, one in enumerate(corpus_of(target, corpus)):
        (inputs / str(number)).write_bytes(one)
    bounds = [f"-timeout={LONGEST_S}", f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={LARGEST}"]
    words = [f"-max_total_time={seconds}", f"-runs={runs}", f"-seed={seed}", f"-artifact_prefix={Path.cwd()}/fuzz-{target}-"]
    if nursery.ran(target, command, *words, *bounds, "-print_final_stats=1", str(inputs)):
        return 1
    if keeping:
        if nursery.ran(target, command, "-merge=1", "-use_counters=0", *bounds, str(merged), str(inputs)):
            return 1
        keep(target, corpus, [path.read_bytes() for path in merged.iterdir()])
    return 0


def loaded() -> None:
    """Load the targets, instrumented."""
    import atheris

    early = [name for name in sys.modules if name.partition(".")[0] in INSTRUMENTED]
    assert not early, f"these were imported too early to be instrumented: {', '.join(early)}"
    with atheris.instrument_imports(include=list(INSTRUMENTED), enable_loader_override=False):
        import tests.fuzz.targets  # noqa: F401


def inside(target: str, words: list[str]) -> NoReturn:
    """The process of one target. `words`: the command that started it, and libFuzzer's options."""
    import atheris

    from tests.fuzz.targets import TARGETS

    atheris.Setup(words, TARGETS[target])
    atheris.Fuzz()
    sys.exit(0)


def serve(calls: socket.socket, again: socket.socket) -> NoReturn:
    """The nursery: a child for every call, one after another, until there are no more calls."""
    while served(calls, again):
        pass
    sys.exit(0)


def served(calls: socket.socket, again: socket.socket) -> bool:
    """Answer one call with a child, which ends in `inside`, and meanwhile whatever it starts that calls again. False when there
    are no more calls."""
    said, descriptors, _, _ = socket.recv_fds(calls, _MOST_BYTES, 1)
    if not said:
        return False
    child = os.fork()
    if child == 0:
        calls.close()
        again.close()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for standard in (1, 2):
            os.dup2(descriptors[0], standard)
        target, *words = json.loads(said)
        inside(target, words)
    os.close(descriptors[0])
    ended = os.pidfd_open(child)
    while ended not in select.select([ended, again.fileno()], [], [])[0]:
        with again.accept()[0] as caller:
            served(caller, again)
    os.close(ended)
    _, status = os.waitpid(child, 0)
    calls.send(b"%d" % os.waitstatus_to_exitcode(status))
    return True


def main() -> int:
    """The command. Returns its exit status."""
    if sys.argv[1:2] == ["--nursery"]:
        calls, again = socket.socket(fileno=os.dup(0)), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        again.bind(sys.argv[2])
        again.listen()
        loaded()
        serve(calls, again)
    if sys.argv[1:2] == ["--again"]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as calls:
            calls.connect(sys.argv[2])
            return called(calls, *sys.argv[3:])
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
    with Nursery() as nursery:
        for target in given.targets or TARGETS:
            print(f"== {target}", flush=True)
            with tempfile.TemporaryDirectory(prefix="understudy-fuzz-") as folder:
                if fuzzed(nursery, target, Path(folder), given.corpus, given.runs, given.seconds, given.seed, given.keep):
                    found.append(target)
    print(f"found something in: {', '.join(found)}" if found else "nothing was found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
