"""An Ethernet switch in a process: it holds the far ends of TAP devices and forwards each frame after a delay.

Life of a frame: it is read from the device of the host that sent it, and gets a departure time: now, the delay, and a random
part of the jitter from the seed, but never before an earlier frame of the same link. It waits in a heap. Then it is written
to the device of the host that has its destination address, or to all others while that host is not known. The switch ends
when its standard input ends, which is at the end of the test. `python -m tests.system.slow_switch DELAY_S JITTER_S SEED
FD...`
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import random
import select
import sys
import time
from collections.abc import Sequence

_FRAME_BYTES = 65_536
_MOST_WAITING = 20_000
"""Frames beyond that are lost, as on every switch whose memory is full."""


def switch(delay_s: float, jitter_s: float, chance: random.Random, taps: Sequence[int]) -> None:
    """Pass frames on until standard input ends."""
    owner: dict[bytes, int] = {}
    departs_s = dict.fromkeys(taps, 0.0)
    waiting: list[tuple[float, int, int, bytes]] = []
    poll = select.poll()
    for fd in (sys.stdin.fileno(), *taps):
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    number = 0
    while True:
        now_s = time.monotonic()
        while waiting and waiting[0][0] <= now_s:
            _, _, source, frame = heapq.heappop(waiting)
            known = owner.get(frame[:6])
            for tap in taps if known is None else (known,):
                if tap != source:
                    with contextlib.suppress(OSError):  # the host is gone, or does not take it: a frame lost
                        os.write(tap, frame)
        wait_ms = max(0, math.ceil((waiting[0][0] - now_s) * 1000)) if waiting else None
        for fd, _ in poll.poll(wait_ms):
            if fd == sys.stdin.fileno():
                return
            with contextlib.suppress(OSError):  # the interface is not up yet, or no longer
                while len(waiting) < _MOST_WAITING:
                    frame = os.read(fd, _FRAME_BYTES)
                    owner[frame[6:12]] = fd
                    due_s = time.monotonic() + delay_s + chance.random() * jitter_s
                    departs_s[fd] = max(due_s, departs_s[fd])
                    number += 1
                    heapq.heappush(waiting, (departs_s[fd], number, fd, frame))


def main() -> None:
    """See the module."""
    delay_s, jitter_s, seed, *taps = sys.argv[1:]
    switch(float(delay_s), float(jitter_s), random.Random(int(seed)), [int(tap) for tap in taps])


if __name__ == "__main__":
    main()
