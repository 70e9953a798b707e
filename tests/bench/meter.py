"""How long something took, what processor time, and how much memory at the most: of this process and all that it has started."""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.system.harness import BrokerProcess

_LOOK_S: Final = 0.2
_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_BLOCK: Final = bytes(1 << 20)


@dataclass(slots=True)
class Reading:
    """What was spent. `peak_bytes` is resident memory; pages that two processes share count twice, but for a process that is just
    being started: until it is its own it has all the memory of its parent, Java's gigabytes among it.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0


@contextmanager
def measured() -> Iterator[Reading]:
    """Measure the block; the reading is complete when it has ended."""
    reading, ended = Reading(), threading.Event()
    cpu_s, _ = _tree()

    def watch() -> None:
        while True:
            reading.peak_bytes = max(reading.peak_bytes, _tree()[1])
            if ended.wait(_LOOK_S):
                return

    watching = threading.Thread(target=watch)
    watching.start()
    began = time.perf_counter()
    try:
        yield reading
    finally:
        reading.wall_s = time.perf_counter() - began
        ended.set()
        watching.join()
        reading.cpu_s = _tree()[0] - cpu_s


def _tree() -> tuple[float, int]:
    """Processor time so far, and resident memory, of this process and its descendants.

    The time of those that have ended counts in their parents.
    """
    found: dict[int, tuple[int, int, tuple[str, str]]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        found[int(entry)] = int(fields[1]), sum(map(int, fields[11:15])), (fields[20], fields[21])
    ours = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, (parent, _, _) in found.items() if parent in ours} - ours
        ours |= more
        grown = bool(more)
    chosen = [found[pid] for pid in ours if pid in found]
    own = [memory for parent, _, memory in chosen if parent not in found or found[parent][2] != memory]
    return sum(ticks for _, ticks, _ in chosen) / _TICKS_A_S, sum(int(pages) for _, pages in own) * _PAGE


def cpu_s(broker: BrokerProcess) -> float:
    """Processor time that a broker's process has used so far."""
    assert broker.process is not None
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_S


def machine(folder: Path) -> str:
    """The machine in a line, with what it gives to anybody now: figures of different runs compare no better than these."""
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * _PAGE / (1 << 30)
    one, all_ = _hash_mb_s(1), _hash_mb_s(cores)
    load = os.getloadavg()[0]
    return (
        f"{cores} cores ({_model()}), {memory:.0f} GiB, load {load:.1f}; "
        f"SHA-256 {one:.0f} MB/s on one core, {all_:.0f} on all; {_write_mb_s(folder):.0f} MB/s written and synced"
    )


def _model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _hash_mb_s(threads: int) -> float:
    blocks = 128

    def run() -> None:
        digest = hashlib.sha256()
        for _ in range(blocks):
            digest.update(_BLOCK)

    running = [threading.Thread(target=run) for _ in range(threads)]
    began = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return threads * blocks * len(_BLOCK) / 1e6 / (time.perf_counter() - began)


def _write_mb_s(folder: Path) -> float:
    blocks, path = 128, folder / "calibration"
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(blocks):
            file.write(_BLOCK)
        file.flush()
        os.fdatasync(file.fileno())
    took = time.perf_counter() - began
    path.unlink()
    return blocks * len(_BLOCK) / 1e6 / took
