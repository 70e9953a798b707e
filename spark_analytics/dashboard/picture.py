"""A page as a picture, by a headless Chromium that runs twice: it first reports the height of the page, then makes a PNG of
it.

It is told to make no requests to the network, and its profile is a temporary folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from spark_analytics.errors import Refused

NAMES: Final = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")
INSTALL: Final = "install Chromium (Debian: apt-get install chromium)"
_TIMEOUT_S: Final = 60.0
_FLAGS: Final = (
    *("--headless", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"),
    *("--disable-default-apps", "--disable-extensions", "--disable-sync", "--hide-scrollbars", "--no-default-browser-check"),
    *("--no-first-run", "--no-pings", "--force-color-profile=srgb"),
)
_FIRST_HEIGHT: Final = 900
_MAX_HEIGHT: Final = 16_000
"""Chromium makes no higher picture."""


def find(path: str | None = None) -> str:
    """The browser's file. Refused if there is none."""
    for name in NAMES:
        if found := shutil.which(name, path=path):
            return found
    raise Refused(f"a picture needs Chromium, and there is none on the PATH: {INSTALL}, or take --output page.html")


def picture_of(page: str, *, width: int = 1440, dark: bool = False, binary: str | None = None) -> bytes:
    """A complete page as a PNG, `width` pixels wide. Refused if Chromium does not make it."""
    with tempfile.TemporaryDirectory(prefix="qpid-lag-picture-", ignore_cleanup_errors=True) as name:
        folder, chromium = Path(name), binary or find()
        (folder / "page.html").write_text(page, encoding="utf-8")
        words = [f"--user-data-dir={folder / 'profile'}"]
        url = f"{(folder / 'page.html').as_uri()}?theme={'dark' if dark else 'light'}"
        drawn = _run(chromium, *words, f"--window-size={width},{_FIRST_HEIGHT}", "--dump-dom", url)
        height = re.search(r'<html[^>]* data-height="(\d+)"', drawn)
        if height is None:
            raise Refused("Chromium has ended before it drew the page; try it by hand: chromium --headless")
        size = f"--window-size={width},{min(int(height[1]), _MAX_HEIGHT)}"
        _run(chromium, *words, size, f"--screenshot={folder / 'page.png'}", url)
        try:
            return (folder / "page.png").read_bytes()
        except FileNotFoundError:
            raise Refused("Chromium has ended before it made the picture; try it by hand: chromium --headless") from None


def _run(chromium: str, *words: str) -> str:
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    try:
        done = subprocess.run(
            [chromium, *_FLAGS, *root, *words], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, errors="replace"
        )
    except OSError as error:
        raise Refused(f"cannot run {chromium}: {error.strerror}: {INSTALL}") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"Chromium did not end within {_TIMEOUT_S:.0f} s; is the machine very busy? Try again") from None
    return done.stdout
