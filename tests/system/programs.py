"""Client programs by other authors: compiled, or installed from a registry, once for all tests that run them.

The modules of these tests are one group (`tests/groups.py`), and the fixture `programs` is their shared folder. What is compiled
stays below build/, and is compiled again when its source, the compiler or Proton's headers have changed. What comes from PyPI
stays there for the day. Not every machine has what a program needs: then a warning says why it was not run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.cli.running import ROOT, environment

T = TypeVar("T")
HERE = Path(__file__).parent / "interop"
KEPT = ROOT / "build" / "programs"
INSTALL_S = 60
_CPP_PACKAGES = ("g++", "libqpid-proton-cpp12-dev")
AZURE = "azure-servicebus>=7.14,<8"


class NotHere(Exception):
    """This client cannot be tried on this machine; the text says what it needs."""


def tried(client: str, make: Callable[[Path], T], folder: Path) -> T | None:
    """What is made of this client; None, and a warning, where it cannot be tried."""
    try:
        return make(folder)
    except NotHere as reason:
        warnings.warn(f"{client} was not tried: it {reason}", stacklevel=2)
        return None


def answer(*words: str) -> Any:
    """What a program says, as JSON, when it has ended well."""
    made = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment(), check=False)
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


def compiled(source: Path, folder: Path) -> Path:
    """The program, compiled; NotHere where that cannot be. It is kept for later runs, as long as it would be the same."""
    header = Path("/usr/include/proton/container.hpp")
    if shutil.which("g++") is None or not header.exists():
        _install(*_CPP_PACKAGES)
    command = ["g++", "-std=c++17", "-O1", "-o", str(folder / source.stem), str(source), "-lqpid-proton-cpp"]
    by = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    made_of = (source.read_bytes(), " ".join(command[:3]).encode(), by, str(header.stat().st_mtime_ns).encode())
    binary = KEPT / f"{source.stem}-{hashlib.sha256(b'|'.join(made_of)).hexdigest()[:16]}"
    if binary.exists():
        return binary
    made = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    KEPT.mkdir(parents=True, exist_ok=True)
    for former in KEPT.glob(f"{source.stem}-*"):
        former.unlink(missing_ok=True)
    shutil.move(folder / source.stem, aside := binary.with_suffix(".new"))
    return aside.replace(binary)


def _install(*packages: str) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotHere(f"needs {' and '.join(packages)}, which only root can install through apt")
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    made = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, check=False
    )
    if made.returncode != 0:
        raise NotHere(f"needs {' and '.join(packages)}; apt-get: {made.stderr.strip().splitlines()[-1]}")


def with_rhea(program: str, folder: Path) -> list[str]:
    """The command that runs a program on rhea, which is installed beside it; NotHere where that cannot be."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NotHere("needs node and npm")
    shutil.copy(HERE / program, folder)
    if (folder / "node_modules/rhea").exists():
        return [node, str(folder / program)]
    install = [npm, "install", "--no-audit", "--no-fund", "--fetch-retries", "1", "--prefix", str(folder), "rhea@3"]
    try:
        made = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotHere(f"needs rhea from npm, which did not come within {INSTALL_S} s") from None
    if made.returncode != 0:
        raise NotHere(f"needs rhea from npm: {made.stderr.strip().splitlines()[-1]}")
    return [node, str(folder / program)]


def from_pypi(program: str, folder: Path, *requirements: str) -> list[str]:
    """The command that runs a program in Python beside packages that are installed for it alone, once a day; NotHere where that
    cannot be."""
    name = re.sub(r"\W.*", "", requirements[-1].replace("-", "_"))
    packages, fresh = KEPT / name, folder / name
    stamp, these = packages / "stamp.txt", f"{requirements}, {sys.version}, {time.strftime('%Y-%m-%d')}"
    path = f"import sys; sys.path.insert(0, {str(packages)!r}); sys.argv.pop(0); import runpy; "
    command = [sys.executable, "-c", path + "runpy.run_path(sys.argv[0], run_name='__main__')", str(HERE / program)]
    if stamp.exists() and stamp.read_text() == these:
        return command
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(fresh), *requirements]
    try:
        made = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotHere(f"needs {requirements[-1]} from PyPI, which did not come within {INSTALL_S} s") from None
    if made.returncode != 0:
        raise NotHere(f"needs {requirements[-1]} from PyPI: {made.stderr.strip().splitlines()[-1]}")
    shutil.rmtree(packages, ignore_errors=True)
    KEPT.mkdir(parents=True, exist_ok=True)
    shutil.move(fresh, packages)
    stamp.write_text(these)
    return command
