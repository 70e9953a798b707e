"""What the queues of a log hold, read from where it lies, and verified."""

from __future__ import annotations

from itertools import pairwise

import google_crc32c

from broker.core.queues.blocks import Block
from broker.core.state import State
from broker.disk.journal import Journal


def contents(state: State, journal: Journal) -> dict[tuple[int, int], bytes]:
    """The messages alive, by number of the queue and sequence. AssertionError when a body is not what was put in."""
    found: dict[tuple[int, int], bytes] = {}
    for number, messages in state.messages.items():
        for lane in messages.order.lanes:
            for block in lane.blocks:
                for run in range(len(block.run_starts)):
                    lo, hi = block.bounds(run)
                    for start, stop in block.stretches(lo, hi):
                        payload, base = payload_of(block, run, journal)
                        bounds = pairwise(block.offsets[start : stop + 1])
                        for sequence, (at, end) in enumerate(bounds, block.first_seq + start):
                            found[number, sequence] = payload[base + at : base + end]
    return found


def payload_of(block: Block, run: int, journal: Journal) -> tuple[bytes, int]:
    """The bytes that a run lies in, and what to add to an offset of the block."""
    if not block.places[run]:
        return block.bodies[run]
    (payload,) = journal.read_spans([(block.places[run], block.run_bytes(run))])
    assert google_crc32c.value(payload) == block.crcs[run], f"run {run} at {block.places[run]:#x} is not what was put in"
    return payload, -block.offsets[block.bounds(run)[0]]
