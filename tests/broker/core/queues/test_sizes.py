"""The large ones among the messages of a queue, against a look at each of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.parts import Manifest
from broker.core.queues.lane import LANE_SHIFT, Lane
from broker.core.queues.residency import Residency
from broker.core.queues.sizes import larger
from tests.broker.core.queues.files import append

RUNS = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 40), min_size=1, max_size=5)), max_size=12)


def lanes_of(*runs: list[tuple[int, list[int]]]) -> list[Lane]:
    """A lane for each list of (gap before, sizes)."""
    lanes = []
    for number, each in enumerate(runs):
        lane = Lane((number << LANE_SHIFT) + 1, {}, Residency(1 << 40))
        for gap, sizes in each:
            append(lane, lane.next_seq + gap, [b"m" * size for size in sizes])
        lanes.append(lane)
    return lanes


@given(RUNS, RUNS, st.integers(0, 41), st.integers(1, 8), st.sets(st.integers(1, 60)))
def test_what_is_larger_is_found_by_pages_and_nothing_twice(
    low: list[tuple[int, list[int]]], high: list[tuple[int, list[int]]], than: int, most: int, dead: set[int]
) -> None:
    lanes = lanes_of(low, high)
    for sequence in dead:
        lanes[0].remove(sequence, sequence + 1)
    alive = [each for lane in lanes for each in lane.alive_from(0)]
    manifests = {alive[0][0]: Manifest(1000, ((1, 3),))} if alive else {}
    expected = sorted((s, 1000 if s in manifests else n) for s, n in alive if s in manifests or n > than)
    found, after = list[tuple[int, int]](), 0
    while True:
        page, last = larger(lanes, manifests, than, after, most)
        found += page
        if last is None:
            break
        assert last > after
        after = last
    assert found == expected


@pytest.mark.parametrize("than,looked", [(10_000, 2), (5, 4001)])
def test_a_queue_of_small_messages_is_looked_at_by_the_block(than: int, looked: int) -> None:
    lanes = lanes_of([(0, [1] * 4100), (1, [10])])
    assert larger(lanes, {}, than, 0, looked)[1] == (4102 if than == 10_000 else 4100)
