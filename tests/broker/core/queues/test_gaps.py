"""Stretches of messages with gaps: some of them were gone before, were never given, or lie in another file."""

from __future__ import annotations

import pytest

from broker.core.queues.discipline import Discipline, discipline_of
from broker.core.queues.residency import Residency
from tests.broker.core.queues.files import Files, append, sequences

PLENTY = 1 << 40
SIZES = range(1, 11)
"""The bytes of each message, by its sequence from 1 on: all differ, so that a sum says which they are."""


def queue_of(*counts: int, files: bool) -> Discipline:
    """A queue of runs with so many messages each; each run in a file of its own, or all in one."""
    order = discipline_of({}, {}, Residency(PLENTY))
    written, (lane,) = Files(), order.lanes
    first = 1
    for count in counts:
        messages = [b"." * SIZES[sequence - 1] for sequence in range(first, first + count)]
        if files:
            written.begin()
        append(lane, first, messages, written.write(b"".join(messages)))
        first += count
    return order


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("given_out", [0, 4, 9])
@pytest.mark.parametrize("gone", [(5,), (3, 5, 8), (4, 5, 6), (5, 6, 7, 8), (2, 9)])
def test_a_stretch_is_removed_whole_though_messages_in_it_were_gone_before(
    gone: tuple[int, ...], given_out: int, files: bool
) -> None:
    for counts in ((10,), (5, 5), (4, 4, 2), (1,) * 10):
        order = queue_of(*counts, files=files)
        order.acquire("somebody", given_out, PLENTY)
        for sequence in gone:
            assert order.remove(sequence, 1) == (1, sequence)
        left = [sequence for sequence in range(2, 10) if sequence not in gone]
        assert order.remove(2, 8) == (len(left), sum(left))
        assert [sequence for sequence in range(1, 12) if order.lanes[0].is_live(sequence)] == [1, 10]
        assert (order.depth, order.live_bytes, order.acquired) == (2, 11, min(given_out, 1))
        assert sequences(order.acquire("somebody", 10, PLENTY)) == ([10] if given_out else [1, 10])


def test_a_stretch_is_removed_whole_though_some_of_it_was_never_given() -> None:
    order = queue_of(3, files=False)
    append(order.lanes[0], 6, [b"abcd", b"abcde"])
    assert order.remove(2, 6) == (4, 2 + 3 + 4 + 5)
    assert order.depth == 1


def test_the_counts_of_a_stretch_are_raised_though_messages_in_it_are_gone() -> None:
    for files in (False, True):
        order = queue_of(5, 1, 4, files=files)
        for sequence in (3, 6, 8):
            order.remove(sequence, 1)
        order.lanes[0].raise_count(2, 8, 3)
        assert order.lanes[0].delivery_counts() == dict.fromkeys((2, 4, 5, 7, 9), 3)
