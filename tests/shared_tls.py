"""Proton's containers in tests share one pair of TLS domains.

Each container makes two domains of its own, which takes 22 ms of processor time apiece, though nothing that tests say goes over
TLS; a `BlockingConnection` makes a container. To ask a broker one question was 47 ms of work, 45 of them for that.
"""

from __future__ import annotations

import functools
from typing import Any

import proton._reactor

_containers: Any = proton._reactor
_pair = functools.cache(_containers.SSLConfig)


def share() -> None:
    """From here on every container of this process, and of those that are forked from it, gets the same pair."""
    _containers.SSLConfig = _pair
    _pair()
