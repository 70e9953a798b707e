"""Waiting in tests of what runs on the real reactor, without holding it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

reactor: Any = installed_reactor
PATIENCE_S = 60.0
"""How long to wait for what takes a moment; it matters only when a test fails."""


async def until(condition: Callable[[], bool]) -> None:
    """Let the reactor's time pass until it is so. AssertionError when it is not in PATIENCE_S."""
    until_s = reactor.seconds() + PATIENCE_S
    while not condition():
        assert reactor.seconds() < until_s, f"it is not so after {PATIENCE_S} s"
        await time_passes(0.01)


def time_passes(delay_s: float) -> Deferred[None]:
    """The reactor's time, passing."""
    return deferLater(reactor, delay_s, lambda: None)
