"""A person at the page, by Playwright: keys, clicks, what they see, and what the browser complained of.

Playwright's calls belong to the thread that has started it, and the tests' own may have a reactor in it: a `Browser` has a thread
of its own, and whoever asks waits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from playwright.sync_api import ConsoleMessage, Page, sync_playwright

from spark_analytics.dashboard import page, picture

T = TypeVar("T")
TIMEOUT_S = 30.0


class Browser:
    """The Chromium of this machine, headless."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "playwright")
        self._complaints: list[str] = []
        self._urls: set[str] = set()
        self.call(self._start)

    def _start(self) -> None:
        self._playwright = sync_playwright().start()
        self._chromium = self._playwright.chromium.launch(executable_path=picture.find(), args=["--disable-gpu"])
        self._page = self._chromium.new_page()
        self._page.set_default_timeout(TIMEOUT_S * 1000)
        self._page.on("console", lambda message: self._complaints.append(_said(message)))
        self._page.on("pageerror", lambda error: self._complaints.append(str(error)))
        self._page.on("request", lambda request: self._urls.add(request.url))

    def call(self, work: Callable[[], T]) -> T:
        """Do it in the browser's thread."""
        return self._thread.submit(work).result()

    def open(self, url: str, *, width: int = 1440, height: int = 900, dark: bool | None = None) -> Tab:
        """That page in the only tab, once it has drawn itself; what was heard of others before is forgotten.

        Nothing in it moves: without a graphics card each frame of an animation costs the processor more than the test does.
        """

        def opened() -> None:
            self._page.goto("about:blank")
            self._complaints.clear()
            self._urls.clear()
            scheme: Literal["dark", "light", "null"] = "null" if dark is None else "dark" if dark else "light"
            self._page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            self._page.set_viewport_size({"width": width, "height": height})
            self._page.goto(url)

        self.call(opened)
        tab = Tab(self, self._page)
        tab.wait("document.documentElement.dataset.drawn === 'yes'")
        return tab

    def complaints(self) -> list[str]:
        """Errors, refusals of the policy, and whatever the page wrote to its console."""
        return self.call(lambda: list(self._complaints))

    def asked_for(self) -> set[str]:
        """Every address that the page asked for."""
        return self.call(lambda: {url for url in self._urls if not url.startswith("data:")})

    def close(self) -> None:
        """End it."""

        def end() -> None:
            self._chromium.close()
            self._playwright.stop()

        self.call(end)
        self._thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Tab:
    """One page in it."""

    def __init__(self, browser: Browser, its: Page) -> None:
        self._browser, self._page = browser, its

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self._browser.call(lambda: self._page.evaluate(script))

    def wait(self, script: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until an expression is true. Asked from outside: the page's policy lets nothing in it evaluate a text."""
        until = time.monotonic() + timeout_s
        while not self.evaluate(f"Boolean({script})"):
            assert time.monotonic() < until, f"the page did not come to: {script}"
            self._browser.call(lambda: self._page.wait_for_timeout(20))

    def text(self, selector: str) -> str:
        """What stands in the first such element; nothing when there is none."""
        find = f"document.querySelector({json.dumps(selector)})"
        return str(self.evaluate(f"({find} || {{}}).innerText ?? {find}?.textContent ?? ''"))

    def count(self, selector: str) -> int:
        """How many such elements there are."""
        return self._browser.call(lambda: self._page.locator(selector).count())

    def press(self, *keys: str) -> None:
        """Press and release, wherever the focus is."""
        for key in keys:
            self._browser.call(lambda key=key: self._page.keyboard.press(key))  # type: ignore[misc]

    def focus(self, selector: str) -> None:
        """Put the focus there."""

        def focused() -> None:
            self._page.locator(selector).first.focus()

        self._browser.call(focused)

    def click(self, selector: str, *, across: float = 0.5, down: float = 0.5) -> None:
        """A click with the mouse at a place within the first such element, given as shares of its width and height."""

        def clicked() -> None:
            element = self._page.locator(selector).first
            box = element.bounding_box()
            assert box is not None, f"{selector} is not shown"
            element.click(position={"x": box["width"] * across, "y": box["height"] * down})

        self._browser.call(clicked)

    def close(self) -> None:
        """Close it."""
        self._browser.call(self._page.close)


def _said(message: ConsoleMessage) -> str:
    return f"{message.type}: {message.text}"


def show(browser: Browser, folder: Path, report: dict[str, Any], *, at: str = "", **window: Any) -> Tab:
    """The page of a report, in a file, as somebody opens it."""
    path = folder / "page.html"
    path.write_text(page.render(report), encoding="utf-8")
    return browser.open(path.as_uri() + at, **window)
