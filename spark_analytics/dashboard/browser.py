"""A headless Chromium on a pipe: it opens a page and makes a picture of it, and nothing else of it is used.

Life of a `Browser`: Chromium is started with a profile in a temporary folder and two pipes, over which it is spoken to in its
DevTools protocol (a JSON object and a NUL byte each way; no port is opened); `open` makes a `Tab`; `close` ends the process group
and removes the profile. It is told to ask nobody on the network for anything of its own.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from spark_analytics.errors import Refused

NAMES: Final = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")
INSTALL: Final = "install Chromium (Debian: apt-get install chromium)"
_TIMEOUT_S: Final = 30.0
_FLAGS: Final = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-pings",
    "--force-color-profile=srgb",
)
MAX_SIDE_PX: Final = 16_000
"""Chromium makes no picture that is higher."""


def find(path: str | None = None) -> str:
    """The browser's file. Refused when there is none."""
    for name in NAMES:
        if found := shutil.which(name, path=path):
            return found
    raise Refused(f"a picture needs Chromium, and there is none on the PATH: {INSTALL}, or take --output page.html")


class Browser:
    """One Chromium; see the module."""

    def __init__(self, binary: str | None = None) -> None:
        binary = binary or find()
        self._folder = tempfile.mkdtemp(prefix="qpid-lag-browser-")
        its_input, self._to = (_above_nine(end) for end in os.pipe())
        self._from, its_output = (_above_nine(end) for end in os.pipe())
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        words = [binary, *_FLAGS, *root, f"--user-data-dir={self._folder}", "about:blank"]
        actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
            *((os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)),
            (os.POSIX_SPAWN_DUP2, its_input, 3),
            (os.POSIX_SPAWN_DUP2, its_output, 4),
        ]
        try:
            self.pid = os.posix_spawn(binary, words, os.environ, file_actions=actions, setsid=True)
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise Refused(f"cannot run {binary}: {error.strerror}: {INSTALL}") from None
        finally:
            os.close(its_input)
            os.close(its_output)
        self._number = 0
        self._read = b""
        self.events: list[dict[str, Any]] = []
        """What Chromium told without being asked, oldest first."""

    def open(self, url: str, *, width: int = 1440, height: int = 900, scale: float = 1.0, dark: bool | None = None) -> Tab:
        """A new tab with that page, once it has loaded. Without `dark`, the page sees no preference of colours."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        tab.resize(width, height, scale)
        if dark is not None:
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.go(url)
        return tab

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """One request and its result. Refused when Chromium is gone, or says no."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        try:
            os.write(self._to, json.dumps(message).encode() + b"\0")
        except OSError:
            raise Refused("Chromium has ended before it made the picture; try it by hand: chromium --headless") from None
        until = time.monotonic() + _TIMEOUT_S
        while True:
            answer = self._next(until, method)
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise Refused(f"Chromium refused {method}: {answer['error'].get('message', '')}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def listen(self, seconds: float) -> None:
        """Take in what Chromium tells meanwhile."""
        until = time.monotonic() + seconds
        with suppress(TimeoutError):
            while True:
                self.events.append(self._next(until, ""))

    def _next(self, until: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._read:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                if not what:
                    raise TimeoutError
                raise Refused(f"Chromium did not answer {what} within {_TIMEOUT_S:.0f} s; is the machine very busy? Try again")
            piece = os.read(self._from, 1 << 20)
            if not piece:
                raise Refused("Chromium has ended before it made the picture; try it by hand: chromium --headless")
            self._read += piece
        line, _, self._read = self._read.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told

    def close(self) -> None:
        """End it, whatever it is doing, and leave nothing behind."""
        for end in (self._to, self._from):
            os.close(end)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Tab:
    """One page in it."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self.session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One request about this page."""
        return self.browser.call(method, self.session, **parameters)

    def go(self, url: str) -> None:
        """Load a page, and wait until it has drawn itself."""
        answer = self.call("Page.navigate", url=url)
        if answer.get("errorText"):
            raise Refused(f"Chromium cannot open {url}: {answer['errorText']}")
        self.wait("document.readyState === 'complete' && document.documentElement.dataset.drawn === 'yes'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise Refused(f"the page failed: {details.get('exception', {}).get('description', details.get('text'))}")
        return answer["result"].get("value")

    def wait(self, script: str, timeout_s: float = _TIMEOUT_S) -> None:
        """Wait until an expression is true. Refused when it does not become so."""
        until = time.monotonic() + timeout_s
        while not self.evaluate(f"Boolean({script})"):
            if time.monotonic() > until:
                raise Refused(f"the page did not come to: {script}")
            self.browser.listen(0.02)

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        """Give the page a window of that many CSS pixels, each `scale` pixels of the picture wide."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the whole page, or of what the window shows."""
        clip: dict[str, Any] = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            height = min(size["height"], MAX_SIDE_PX)
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1}, "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        path.write_bytes(base64.b64decode(data))


def _above_nine(descriptor: int) -> int:
    """The same pipe under a number that does not collide with those that Chromium expects, 3 and 4."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


def picture_of(page: str, *, width: int = 1440, dark: bool = False) -> bytes:
    """A page as a PNG, whole. Refused without Chromium."""
    with tempfile.TemporaryDirectory(prefix="qpid-lag-picture-") as folder, Browser() as browser:
        source, picture = Path(folder, "page.html"), Path(folder, "page.png")
        source.write_text(page, encoding="utf-8")
        browser.open(source.as_uri(), width=width, dark=dark).picture(picture)
        return picture.read_bytes()
