"""Responders that stand for brokers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cli.running import Forked

STDERR = 2


@dataclass(frozen=True)
class Peer:
    """Where a responder listens."""

    name: str


@contextmanager
def _running(given: dict[str, Any]) -> Iterator[Peer]:
    """A responder (`tests.broker.management_peer`) in a forked process, gone when the block is left."""
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as said:
        peer = Forked("tests.cli.peer", "peer", [json.dumps(given)], theirs, STDERR)
        os.close(theirs)
        try:
            yield Peer(f"127.0.0.1:{int(said.readline())}")
        finally:
            peer.kill()


@pytest.fixture(scope="module")
def peers() -> Iterator[Callable[..., Peer]]:
    """Start responders with `peers(**given)`; they are gone after the module."""
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(_running(given))
