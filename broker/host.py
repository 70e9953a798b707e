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
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MAPPED_BYTES = 4 << 20
"""Memory of this size and more is not taken from the heap: it is more than a usual batch needs."""
KEPT_BYTES = 32 << 20
"""Free memory at the end of the heap above this is returned to the machine."""


@cache
def resident_bytes() -> int:
    """The memory of this process that is in the machine's memory now."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def keep_freed_memory() -> None:
    """Tell glibc to keep the memory of freed messages for the next ones. By default it returns much of it to the machine at once,
    and the kernel fills each page with zeros when it is used again: this takes several times as long as copying a message.
    """
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


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
