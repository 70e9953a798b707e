"""A person at the page: keys, clicks, what they see, and what the browser complained of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spark_analytics.dashboard import page
from spark_analytics.dashboard.browser import Browser, Tab

_KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Escape": 27, "Tab": 9, "Home": 36}


def show(browser: Browser, folder: Path, report: dict[str, Any], *, at: str = "", **window: Any) -> Tab:
    """The page of a report, in a file, as somebody opens it."""
    path = folder / "page.html"
    path.write_text(page.render(report), encoding="utf-8")
    browser.events.clear()
    return browser.open(path.as_uri() + at, **window)


def text(tab: Tab, selector: str) -> str:
    """What stands in the first such element; nothing when there is none."""
    find = f"document.querySelector({json.dumps(selector)})"
    return str(tab.evaluate(f"({find} || {{}}).innerText ?? {find}?.textContent ?? ''"))


def count(tab: Tab, selector: str) -> int:
    """How many such elements there are."""
    return int(tab.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))


def press(tab: Tab, *keys: str) -> None:
    """Press and release, wherever the focus is."""
    for key in keys:
        code = {"windowsVirtualKeyCode": _KEYS.get(key, ord(key[0].upper()))}
        words = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        tab.call("Input.dispatchKeyEvent", type="keyDown", key=key, **code, **words)
        tab.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)


def focus(tab: Tab, selector: str) -> None:
    """Put the focus there."""
    tab.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")


def click(tab: Tab, selector: str, *, across: float = 0.5, down: float = 0.5) -> None:
    """A click with the mouse at a place within the first such element, given as shares of its width and height."""
    find = f"document.querySelector({json.dumps(selector)})"
    tab.evaluate(f"{find}.scrollIntoView({{block: 'center'}})")
    box = tab.evaluate(f"(({{x, y, width, height}}) => ({{x, y, width, height}}))({find}.getBoundingClientRect())")
    place = {"x": box["x"] + box["width"] * across, "y": box["y"] + box["height"] * down}
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)


def complaints(browser: Browser) -> list[str]:
    """Errors, refusals of the policy, and whatever the page wrote to its console."""
    browser.listen(0.05)
    told = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    return [json.dumps(event["params"])[:500] for event in browser.events if event.get("method") in told]


def asked_for(browser: Browser) -> set[str]:
    """Every address that the page asked for."""
    browser.listen(0.05)
    sent = (event["params"]["request"]["url"] for event in browser.events if event.get("method") == "Network.requestWillBeSent")
    return {url for url in sent if not url.startswith("data:")}
