"""The machine that a broker runs on, as far as it is not the reactor: its disk, threads, wall clock and source of new ids.

Whatever of these a broker needs, it takes from the `Host` that its process was given, so that a simulation can give it another.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from broker.disk.files import REAL_DISK, Disk
from broker.disk.threads import REAL_THREADS, Threads


def new_uuid() -> str:
    """A random UUID (RFC 9562 §5.4)."""
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Host:
    """See the module; by default, the real machine."""

    disk: Disk = REAL_DISK
    threads: Threads = REAL_THREADS
    wall: Callable[[], float] = time.time
    """Seconds since 1970."""
    new_id: Callable[[], str] = new_uuid
    """A text that nothing else will ever have for its id."""


REAL_HOST = Host()
