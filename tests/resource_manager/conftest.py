"""What tests of the resource manager share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from zope.interface import implementer


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What the daemon's log is told."""
    found: list[str] = []

    @implementer(ILogObserver)
    def note(event: LogEvent) -> None:
        if event.get("log_namespace", "").startswith("resource_manager"):
            found.append(formatEvent(event))

    globalLogPublisher.addObserver(note)
    yield found
    globalLogPublisher.removeObserver(note)
