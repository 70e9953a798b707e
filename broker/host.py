"""The machine of a broker, except for the reactor: its disk, threads, wall clock and source of new ids.

A broker takes all of these from the `Host` that its process was given, so that a simulation can replace them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from broker.disk.files import REAL_DISK, Disk
from broker.disk.threads import REAL_THREADS, Threads


def new_uuid() -> str:
    """A random UUID (RFC 9562 §5.4)."""
    return str(uuid.uuid4())


_CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> int:
    """The machine's memory, or what the control group of a container leaves of it."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # there is no such file, or it says "max"
        found = min(found, int(_CONTROL_GROUP.read_text()))
    return found


_MAX_OPEN_FILES = 1 << 20
_M_MMAP_THRESHOLD = -3
MAPPED_BYTES = 256 * 1024
"""What a part of a large message takes, at least."""


@cache
def resident_bytes() -> int:
    """The memory of this process that is in the machine's memory now."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def return_large_memory() -> None:
    """Let the C library, where it is glibc, give memory for as much as a part of a message back as soon as it is free.

    By itself it soon takes such memory from its heap, which grows to the sum of all peaks and keeps what lies below something
    small that is still needed: with many large messages that was measured to cost some 20 MiB. Whoever has none does better with
    the heap, so this is for the first large message of a process.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)


def open_files() -> int:
    """How many files and sockets this process may have open at a time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def raise_open_files() -> None:
    """Let this process open as many files as its hard limit allows: the soft one is for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # no limit at all, and the kernel has one; what there was, stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class Host:
    """See the module; by default, the real machine."""

    disk: Disk = REAL_DISK
    threads: Threads = REAL_THREADS
    wall: Callable[[], float] = time.time
    """Seconds since 1970."""
    new_id: Callable[[], str] = new_uuid
    """A text that nothing else will ever have for its id."""
    memory_bytes: Callable[[], int] = memory_bytes
    open_files: Callable[[], int] = open_files


REAL_HOST = Host()
