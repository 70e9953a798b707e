"""What the receiving edge checks before it lets the core see a message."""

from __future__ import annotations

import pytest

from ha.core.membership import Membership
from ha.core.messages import Append, Entry, SnapshotChunk, fault_of


def append(*entries: Entry, prev: tuple[int, int] = (4, 2), first: int = 5, last: int = 6) -> Append:
    return Append(3, 0, prev[0], prev[1], first, last, 0, entries)


def test_an_append_whose_batches_fit_its_header_is_sound() -> None:
    """Heartbeats too: they have no batches."""
    assert fault_of(append(Entry(5, 2, 9), Entry(6, 3, 9))) == ""
    assert fault_of(append(last=4)) == ""


@pytest.mark.parametrize(
    "message, text",
    [
        (append(first=6), "batches 6 to 6 cannot follow batch 4"),
        (append(prev=(-1, 0), first=0, last=-1), "cannot follow batch -1"),
        (append(Entry(5, 2, 9)), "1 batches came where 5 to 6 were announced"),
        (append(Entry(5, 2, 9), Entry(7, 2, 9)), "batch 7 came where batch 6 was announced"),
        (append(Entry(5, 2, 9), Entry(6, 1, 9)), "batch 6 is of epoch 1, between epoch 2"),
        (append(Entry(5, 2, 9), Entry(6, 4, 9)), "batch 6 is of epoch 4, between epoch 2 and the primary's epoch 3"),
    ],
)
def test_an_append_that_does_not_fit_together_is_named(message: Append, text: str) -> None:
    """A peer's fault must not trip the core's assertions, nor reach the log."""
    assert text in fault_of(message)


@pytest.mark.parametrize(
    "offset, nbytes, index, index_epoch, text",
    [
        (0, 10, 7, 2, ""),
        (-1, 5, 7, 2, "not part of a snapshot of 10 bytes"),
        (0, 0, 7, 2, "not part"),
        (6, 5, 7, 2, "5 bytes at 6 are not part"),
        (0, 10, 0, 2, "snapshot of index 0"),
        (0, 10, 7, 4, "cannot be a primary's of epoch 3"),
    ],
)
def test_a_chunk_outside_its_snapshot_is_named(offset: int, nbytes: int, index: int, index_epoch: int, text: str) -> None:
    """An empty chunk would be asked for again and again; one beyond the end would never complete."""
    fault = fault_of(SnapshotChunk(3, index, index_epoch, Membership.of("a"), offset, nbytes, 10))
    assert text in fault
    assert bool(fault) == bool(text)
