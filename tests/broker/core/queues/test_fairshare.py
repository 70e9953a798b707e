"""Fair shares of levels against the rule of qpidd, message by message, with bodies that have to be read."""

from __future__ import annotations

from random import Random

import pytest

from broker.core.queues.discipline import discipline_of
from broker.core.queues.fairshare import Fairshare, shares_of
from broker.core.queues.lane import LANE_SHIFT
from broker.core.queues.residency import Residency
from tests.broker.core.queues.files import Files, append, read_back, sequences

PLENTY = 1 << 40


def test_shares_are_said_for_all_levels_and_for_single_ones() -> None:
    assert shares_of({"qpid.priorities": 3, "qpid.fairshare": 5, "qpid.fairshare-1": 2, "our.note": 1}) == [5, 2, 5]
    assert shares_of({"x-max-priority": 1, "x-qpid-fairshare-0": 7}) == [7, 0]
    assert shares_of({"qpid.priorities": 3}) == []


def test_shares_of_no_messages_are_a_plain_priority_queue() -> None:
    assert not isinstance(discipline_of({"qpid.priorities": 2, "qpid.fairshare": 0}, {}, Residency(1)), Fairshare)


class Rule:
    """qpidd's rule, for one message at a time: level -> how many there are."""

    def __init__(self, shares: list[int]) -> None:
        self.shares = shares
        self.there = [0] * len(shares)
        self.level, self.taken = len(shares) - 1, 0

    def next(self) -> int:
        """The level of the next message; -1 when there is none."""
        if not any(self.there):
            return -1
        share = self.shares[self.level]
        while (share and self.taken >= share) or not self.there[self.level]:
            self.level, self.taken = (self.level or len(self.shares)) - 1, 0
            share = self.shares[self.level]
        self.taken += 1
        self.there[self.level] -= 1
        return self.level


@pytest.mark.parametrize("memory", [0, PLENTY])
@pytest.mark.parametrize("seed", range(10))
def test_messages_come_in_the_order_of_the_rule(seed: int, memory: int) -> None:
    rng = Random(seed)
    shares = [rng.choice((0, 1, 2, 5)) for _ in range(rng.randint(2, 4))]
    shares[0] = shares[0] or 1
    arguments = {"qpid.priorities": len(shares)} | {f"qpid.fairshare-{level}": share for level, share in enumerate(shares)}
    residency, files, rule = Residency(memory), Files(), Rule(shares)
    order = discipline_of(arguments, {}, residency)
    assert isinstance(order, Fairshare)
    for _ in range(200):
        if rng.random() < 0.5:
            level, count = rng.randrange(len(shares)), rng.randint(1, 6)
            data = [b"x" * 10] * count
            append(order.lanes[level], order.lanes[level].next_seq, data, files.write(b"".join(data)))
            rule.there[level] += count
            residency.enforce()
            continue
        most = rng.randint(1, 8)
        taken: list[int] = []
        while len(taken) < most:
            lots = order.acquire(object(), most - len(taken), rng.choice((PLENTY, 25)))
            taken += sequences(lots)
            if order.absent >= 0:
                read_back(order.lane_of(order.absent), files, order.absent)
            elif not lots:
                break
        expected = [level for level in (rule.next() for _ in range(most)) if level >= 0]
        assert [sequence >> LANE_SHIFT for sequence in taken] == expected


def test_levels_and_a_plain_queue_open_nothing_for_a_consumer_that_leaves() -> None:
    for asked in ({}, {"qpid.priorities": 2}):
        order = discipline_of(asked, {}, Residency(PLENTY))
        append(order.lanes[0], 1, [b"x"])
        order.acquire(self := object(), 1, PLENTY)
        order.left(self)
        assert order.is_acquired(1), "what it holds is for its queue to release"
        order.remove(1, 1)
        assert not order.take_opened()


def test_a_term_begins_with_the_highest_level() -> None:
    order = discipline_of({"qpid.priorities": 2, "qpid.fairshare": 1}, {}, Residency(PLENTY))
    for lane in order.lanes:
        append(lane, lane.next_seq, [b"x", b"y"])
    assert [s >> LANE_SHIFT for s in sequences(order.acquire(object(), 3, PLENTY))] == [1, 0, 1]
    order.release_all()
    assert [s >> LANE_SHIFT for s in sequences(order.acquire(object(), 9, PLENTY))] == [1, 0, 1, 0]


def test_a_level_that_is_read_from_disk_does_not_go_on_before_those_that_get_messages_meanwhile() -> None:
    """Breaks when a level that was the only one begins its next turn before its message can be delivered."""
    files, residency = Files(), Residency(0)
    order = discipline_of({"qpid.priorities": 2, "qpid.fairshare": 1}, {}, residency)

    def put(level: int) -> None:
        lane = order.lanes[level]
        append(lane, lane.next_seq, [b"x"], files.write(b"x"))
        residency.enforce()

    def take() -> list[int]:
        lots = order.acquire(object(), 1, PLENTY)
        if order.absent >= 0:
            read_back(order.lane_of(order.absent), files, order.absent)
        return [sequence >> LANE_SHIFT for sequence in sequences(lots)]

    put(1)
    put(1)
    assert (take(), take()) == ([], [1]), "the first is read, and comes"
    assert take() == [], "the second is being read"
    put(0)
    assert [take() for _ in range(4)] == [[], [0], [], [1]]
