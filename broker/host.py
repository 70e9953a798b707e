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
    """The memory of the machine, or the limit of a container's control group."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # there is no such file, or its content is "max"
        found = min(found, int(_CONTROL_GROUP.read_text()))
    return found


_MAX_OPEN_FILES = 1 << 20
_M_MMAP_THRESHOLD = -3
MAPPED_BYTES = 256 * 1024
"""Memory of this size and more is not taken from the heap. A part of a large message needs at least as much."""


@cache
def resident_bytes() -> int:
    """The memory of this process that is in the machine's memory now."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def return_large_memory() -> None:
    """Tell glibc to return freed memory of a part's size at once. By default it soon takes such memory from its heap. The heap
    grows to the sum of all peaks, and a small used block keeps the free memory below it: many large messages cost some 20 MiB in
    a measurement. Without large messages the heap is better, so this is called at the first large message of a process.
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
    # The hard limit is infinite, but the kernel has a lower one: the soft limit stays as it was.
    with suppress(OSError, ValueError):
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
