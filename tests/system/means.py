"""The requirements of some faults on the machine (root, kernel features, programs), and the result of a test without them.

A test that cannot be run warns with its name and its requirement, and passes. So a developer's laptop without root does not
fail, and the summary of a machine that is meant to run all tests shows what it did not run.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import warnings
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


class NotHere(Exception):
    """This fault cannot be made on this machine; the text says what it needs."""


def where_possible(test: Callable[P, None]) -> Callable[P, None]:
    """A test that warns instead of failing where its means are missing."""

    @functools.wraps(test)
    def attempt(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            test(*args, **kwargs)
        except NotHere as reason:
            warnings.warn(f"NOT TRIED: {getattr(test, '__name__', test)}: it needs {reason}", stacklevel=2)

    return attempt


def program(name: str, package: str) -> str:
    """The path of a program of the system. NotHere when it is not installed."""
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise NotHere(f"{name} (Debian: apt install {package})")
    return found


def must_be_root() -> None:
    """NotHere unless this process may change the system."""
    if os.geteuid() != 0:
        raise NotHere("root")


def run(*words: str, stdin: str = "") -> str:
    """Run a program to its end; what it printed. AssertionError with what it complained of when it fails."""
    made = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, f"{' '.join(words)} {stdin}: {made.stderr.strip() or made.stdout.strip()}"
    return made.stdout
