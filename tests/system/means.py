"""What some faults need of the machine (root, kernel features, programs), and what becomes of a test where that is missing.

A test that cannot be tried warns loudly, naming itself and what it needs, and passes: a developer's laptop without root must not
fail for that, and a machine that is meant to try everything shows in its summary what it did not.
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
