"""Responders that stand for brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.broker.management_peer import Peer, running_peer


@pytest.fixture(scope="module")
def peers() -> Iterator[Callable[..., Peer]]:
    """Start responders with `peers(**given)`; they are gone after the module."""
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(running_peer(**given))
