"""What leaves a ring, against a model that keeps a list: with what is proposed and not applied, and what consumers take."""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

import pytest

from broker.core.parts import Manifest
from broker.core.queues.arguments import in_force
from broker.core.queues.discipline import Discipline, discipline_of
from broker.core.queues.displacement import displacing_of
from broker.core.queues.lane import LANE_SHIFT
from broker.core.queues.residency import Residency
from broker.core.queues.times import Times
from tests.broker.core.queues.files import append, calls_of, sequences


class Queue:
    """A queue's messages, and a log in which batches wait to be applied: [enqueued, dequeued] of each."""

    def __init__(self, **asked: Any) -> None:
        self.asked = in_force({name.replace("__", "."): value for name, value in asked.items()}, 5)
        self.order: Discipline = discipline_of(self.asked, {}, Residency(1 << 40))
        self.large: dict[int, Manifest] = {}
        self.delays: Times | None = None
        self.next_seqs = [lane.next_seq for lane in self.order.lanes]
        self.waiting: list[tuple[list[tuple[int, int]], list[int]]] = []
        limits = self.asked.get("qpid.max_count", 0), self.asked.get("qpid.max_size", 0)
        found = displacing_of(self.asked, self, *limits)
        assert found is not None
        self.ring = found

    def put(self, *messages: tuple[int, int]) -> list[int]:
        """Propose messages of these (level, bytes). Returns what leaves."""
        self.ring.begin()
        put: list[tuple[int, int]] = []
        gone: list[int] = []
        for level, nbytes in messages:
            leaving = self.ring.put(self.next_seqs[level], b"", nbytes)
            if leaving is not None:
                gone += leaving
                put.append((self.next_seqs[level], nbytes))
                self.next_seqs[level] += 1
        self.waiting.append((put, gone))
        return gone

    def apply(self) -> None:
        """The oldest batch that waits is committed."""
        put, gone = self.waiting.pop(0)
        for sequence, nbytes in put:
            append(self.order.lane_of(sequence), sequence, [b"x" * nbytes])
        for sequence in gone:
            self.order.remove(sequence, 1)

    def take(self, sequence: int) -> None:
        """A consumer's accept is committed."""
        self.waiting.append(([], [sequence]))

    def alive(self) -> list[int]:
        return [sequence for lane in self.order.lanes for sequence, _ in lane.alive_from(0)]


def at(level: int, number: int) -> int:
    return (level << LANE_SHIFT) + number


def test_the_oldest_leaves_for_what_comes_even_before_it_has_come_itself() -> None:
    q = Queue(qpid__policy_type="ring", qpid__max_count=3)
    assert q.put((0, 1), (0, 1), (0, 1)) == []
    assert q.put((0, 1), (0, 1)) == [1, 2]
    q.apply()
    q.apply()
    assert q.alive() == [3, 4, 5]
    assert q.put((0, 1)) == [3]


def test_a_ring_knows_what_leaves_before_that_is_applied() -> None:
    q = Queue(qpid__policy_type="ring", qpid__max_count=2, qpid__priorities=2)
    q.put((0, 1), (1, 1))
    q.apply()
    assert not any(map(q.ring.leaves, (at(0, 1), at(1, 1))))
    assert q.put((1, 1)) == [at(0, 1)]
    assert [q.ring.leaves(each) for each in (at(0, 1), at(1, 1), at(1, 2))] == [True, False, False]


def test_a_burst_that_is_longer_than_the_ring_leaves_its_own_end() -> None:
    q = Queue(qpid__policy_type="ring", qpid__max_count=2)
    q.put(*[(0, 1)] * 1000)
    q.apply()
    assert q.alive() == [999, 1000]


@pytest.mark.costs
@pytest.mark.parametrize("ordered", [{}, {"qpid.priorities": 3}])
def test_messages_that_come_one_by_one_cost_the_same_each_however_many_are_under_way(ordered: dict[str, Any]) -> None:
    """Through an exchange they do, in one turn. Breaks when each one counts again all that were put since the last commit."""
    q = Queue(qpid__policy_type="ring", qpid__max_count=500, **ordered)
    q.put(*[(0, 1)] * 500)
    q.apply()
    gone: list[int] = []

    def come(n: int) -> None:
        for _ in range(n):
            gone.extend(q.put((0, 1)))

    first, rest = calls_of(lambda: come(10)), calls_of(lambda: come(490))
    assert rest < 2 * 49 * first
    assert gone == list(range(1, 501))
    while q.waiting:
        q.apply()
        assert len(q.alive()) == 500
    assert q.put((0, 1)) == [501]


def test_a_ring_of_bytes_lets_as_many_go_as_it_must() -> None:
    q = Queue(qpid__policy_type="ring", qpid__max_size=10)
    q.put((0, 4), (0, 4))
    assert q.put((0, 2)) == []
    assert q.put((0, 5)) == [1, 2]
    assert q.ring.fault(1, 11) == "11 bytes are more than all of the 10 that it may hold"
    assert q.put((0, 11)) == [], "what comes all the same does not stay, and nothing leaves for it"
    assert [len(put) for put, _ in q.waiting] == [2, 1, 1, 0]


def test_the_lowest_level_leaves_first_and_nothing_leaves_for_a_lower_one() -> None:
    q = Queue(qpid__policy_type="ring", qpid__max_count=3, qpid__priorities=3)
    q.put((1, 1), (2, 1), (1, 1))
    assert q.put((2, 1)) == [at(1, 1)]
    assert q.put((1, 1)) == [at(1, 2)]
    assert q.put((0, 1)) == []
    for _ in range(4):
        q.apply()
    assert q.alive() == [at(1, 3), at(2, 1), at(2, 2)]


def test_what_a_consumer_has_acquired_leaves_a_ring_and_holds_a_strict_one() -> None:
    ring, strict = (Queue(qpid__policy_type=policy, qpid__max_count=2) for policy in ("ring", "ring_strict"))
    for q in (ring, strict):
        q.put((0, 1), (0, 1))
        q.apply()
        assert sequences(q.order.acquire(object(), 1, 1000)) == [1]
    assert ring.ring.fault(1, 1) == ""
    assert ring.put((0, 1)) == [1]
    assert "a consumer has acquired" in strict.ring.fault(1, 1)
    strict.order.release([1])
    assert strict.ring.fault(1, 1) == ""
    assert strict.put((0, 1)) == [1]


def test_a_strict_ring_takes_several_at_once_as_it_takes_them_one_by_one() -> None:
    q = Queue(qpid__policy_type="ring_strict", qpid__max_count=3, qpid__max_size=30)
    assert q.ring.fault(5, 50, 10) == "", "the first ones leave for the last ones"
    q.put((0, 5), (0, 5), (0, 5))
    assert q.ring.fault(9, 90, 10) == "", "nor has a consumer what is not applied"
    q.apply()
    assert q.ring.fault(9, 90, 10) == ""
    assert sequences(q.order.acquire(object(), 2, 1000)) == [1, 2]
    q.order.release([1])
    assert q.ring.fault(1, 20, 20) == "", "only the first leaves"
    assert "a consumer has acquired" in q.ring.fault(2, 2, 1)
    assert "a consumer has acquired" in q.ring.fault(1, 21, 21)
    assert q.ring.fault(2, 31, 31) == "31 bytes are more than all of the 30 that it may hold"
    assert q.ring.fault(2, 31) == "31 bytes are more than all of the 30 that it may hold", "the size of one is not known"


def test_what_waits_for_its_time_is_with_no_consumer_and_leaves_a_strict_ring() -> None:
    q = Queue(qpid__policy_type="ring_strict", qpid__max_count=2)
    q.put((0, 1), (0, 1))
    q.apply()
    assert sequences(q.order.acquire(object(), 1, 1000)) == [1]
    q.delays = Times()
    assert "a consumer has acquired" in q.ring.fault(1, 1)
    q.delays.put(1, array("Q", [1000]))
    assert q.ring.fault(1, 1) == ""
    assert q.put((0, 1)) == [1]


def test_a_large_message_counts_with_all_of_its_parts() -> None:
    q = Queue(qpid__policy_type="ring", qpid__max_size=100)
    manifest = Manifest(90, ((1, 2),))
    q.ring.begin()
    assert q.ring.put(1, b"", 90) == []
    append(q.order.lanes[0], 1, [manifest.to_bytes()])
    q.large[1] = manifest
    q.next_seqs[0] = 2
    assert q.put((0, 10)) == []
    assert q.put((0, 1)) == [1]
    assert q.put((0, 80)) == []


@pytest.mark.parametrize("seed", range(12))
def test_a_ring_is_within_its_limits_after_every_batch_and_lets_go_no_more_than_it_must(seed: int) -> None:
    rng = Random(seed)
    levels, most, most_bytes = rng.choice((1, 1, 3)), rng.choice((0, 1, 5, 30)), rng.choice((0, 40, 200))
    q = Queue(qpid__policy_type="ring", qpid__priorities=levels, qpid__max_count=most, qpid__max_size=most_bytes)
    there: dict[int, int] = {}
    """Sequence -> bytes, once all is applied; what consumers take counts until that is applied."""
    for _ in range(300):
        match rng.randrange(4):
            case 0 | 1:
                messages = [(rng.randrange(levels), rng.randint(1, 40)) for _ in range(rng.randint(1, 12))]
                expected: list[int] = []
                firsts = list(q.next_seqs)
                for level, nbytes in messages:
                    ranked = sorted(there)
                    leaving: list[int] = []
                    left = dict(there)
                    while (most and len(left) + 1 > most) or (most_bytes and sum(left.values()) + nbytes > most_bytes):
                        oldest = next((each for each in ranked if each in left and each >> LANE_SHIFT <= level), None)
                        if oldest is None:
                            break
                        leaving.append(oldest)
                        del left[oldest]
                    else:
                        there = left | {firsts[level]: nbytes}
                        firsts[level] += 1
                        expected += leaving
                assert q.put(*messages) == expected
                assert q.next_seqs == firsts
            case 2 if q.waiting:
                taken = q.waiting[0][1]
                q.apply()
                there = {sequence: nbytes for sequence, nbytes in there.items() if sequence not in taken}
                assert not most or len(q.alive()) <= most
                assert not most_bytes or sum(lane.live_bytes for lane in q.order.lanes) <= most_bytes
            case _ if q.alive():
                q.take(rng.choice(q.alive()))
            case _:
                pass
