"""Checks that logs keep their limit on the disk: at most twice the live bytes, and two segments (docs/adr/0013).

The files on the simulated disk are measured, not the broker's own figures. Files that were set aside from a damaged
store are for people, and do not count. Simulated files and messages are so small that three things count which are
otherwise negligible: the heads of the files that the live messages would fill; the newest segment, if it was made for a
batch larger than a segment; and in the checkpoint, the places of dead messages between two live ones
(broker.core.queues.lane).

The limit holds when a disk has had time to copy. While it is slow or full, or while its broker is down, only the disk
limits the log. So this is checked when everything is at rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker.core.queues.lane import SPLIT_GAP
from broker.core.state import Messages
from broker.disk.segments import FIRST_BATCH
from ha.log.retention import FILES_IN_TWO_SEGMENTS
from ha.service import Process
from tests.simulation.disk import SimulatedDisk

POSITION_BYTES = 20
"""Of a message that came by itself: where it ends, and its run."""


def overfull(processes: Iterable[Process]) -> Iterator[str]:
    """The logs of these brokers that take more than they may, in sentences."""
    for process in processes:
        for name, log in process.logs.items():
            disk = process.host.disk
            assert isinstance(disk, SimulatedDisk)
            folder = f"{process.settings.data_dir}/{name}/"
            found = [path for path in disk.paths() if path.startswith(folder) and "/damaged-" not in path]
            nbytes = sum(len(disk.content(path)) for path in found)
            live = process.broker.ledgers[name].live_bytes()
            size = log.journal.file_bytes
            heads = FIRST_BATCH * (live // size)
            larger = max(0, log.journal._holdings.newest.size - size)
            positions = POSITION_BYTES * sum(map(_between, process.broker.ledgers[name].state.messages.values()))
            allowed = 2 * (live + heads) + FILES_IN_TWO_SEGMENTS * size + larger + positions
            if nbytes > allowed:
                takes = f"takes {nbytes} bytes in {len(found)} files"
                yield f"the {name} log of {log.me} {takes}, where {allowed} are allowed for {live} that are alive"


def _between(messages: Messages) -> int:
    """How many dead messages stand in blocks with those that are alive, and may."""
    dead = sum(block.count - block.live for lane in messages.order.lanes for block in lane.blocks)
    return min(dead, messages.depth * SPLIT_GAP)
