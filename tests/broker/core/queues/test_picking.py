"""A walk over a queue's messages by requests, against a list: each that was there is looked at once, and none that came later."""

from __future__ import annotations

import pytest

from broker.core.queues.discipline import discipline_of
from broker.core.queues.lane import LANE_SHIFT
from broker.core.queues.picking import Walk
from broker.core.queues.residency import Residency
from tests.broker.core.queues.files import append


@pytest.mark.parametrize("most", [1, 2, 3, 100])
@pytest.mark.parametrize("levels", [1, 3])
def test_each_message_is_looked_at_once_the_highest_level_first_whatever_comes_and_goes_meanwhile(levels: int, most: int) -> None:
    order = discipline_of({"qpid.priorities": levels}, {}, Residency(1 << 40))

    def put(level: int, count: int) -> list[int]:
        first = order.lanes[level].next_seq
        append(order.lanes[level], first, [b"x"] * count, 0)
        return list(range(first, first + count))

    there = [sequence for level in range(levels - 1, -1, -1) for sequence in put(level, 5)]
    order.remove(there[1], 1)
    expected = [sequence for sequence in there if sequence != there[1]]
    walk, seen = Walk(order), []
    while found := walk.look(most):
        assert len(found) <= most
        seen += found
        put(levels - 1, 1)
        order.remove(found[-1], 1)
        walk = Walk(order, walk.place)
    assert seen == expected
    assert walk.look(most) == []
    (last,) = put(0, 1)
    walk = Walk(order)
    assert walk.look(1000)[-1] == last
    walk.back(last)
    assert walk.look(most) == [last]


@pytest.mark.parametrize("place", [[1], [1, 0], [1, 1, 5], [1, 0, 5, 5], [-1, 0, 5], ["1", 0, 5], [True, 0, 5], [1 << 63, 0, 5]])
def test_what_is_no_place_on_the_queue_is_refused(place: list[object]) -> None:
    order = discipline_of({}, {}, Residency(1 << 40))
    with pytest.raises(ValueError, match="not a position"):
        Walk(order, place)
    assert Walk(order, [1 << LANE_SHIFT, 0, 5]).look(1) == []
