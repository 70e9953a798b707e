"""Consumers that select messages: against a model that looks at everything each time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.core.queues.discipline import Discipline, discipline_of
from broker.core.queues.lane import LANE_SHIFT
from broker.core.queues.residency import Residency
from broker.core.queues.scan import Scan
from tests.broker.core.queues.files import Files, append, calls_of, read_back, sequences

PLENTY = 1 << 40


class Holds:
    """Picks messages that hold a letter, and counts how often it looked at each."""

    def __init__(self, letter: bytes, at_least: int = 0, weight: int = 0) -> None:
        self.letter = letter
        self.weight = weight
        self.at_least = at_least
        self.looks: Counter[bytes] = Counter()

    @property
    def counts(self) -> bool:
        return self.at_least > 0

    def matches(self, data: bytes, start: int, end: int, failures: int) -> bool:
        message = data[start:end]
        self.looks[message] += 1
        return self.letter in message and failures >= self.at_least


def queue_of(*messages: bytes, files: Files | None = None, keep: bool = True, levels: int = 1) -> Discipline:
    order = discipline_of({"qpid.priorities": levels}, {}, Residency(PLENTY))
    for sequence, message in enumerate(messages, 1):
        append(order.lanes[0], sequence, [message], files.write(message) if files else 0, keep=keep)
    return order


def taken(scan: Scan, count: int = 100, nbytes: int = PLENTY, looks: int = 1000, **large: Any) -> list[int]:
    return sequences(scan.take(count, nbytes, looks, **large))


def test_a_message_that_did_not_match_is_looked_at_once_and_again_when_it_was_released() -> None:
    order, picks = queue_of(b"a1", b"b1", b"a2"), Holds(b"b")
    scan = Scan(order, picks)
    assert taken(scan) == [2]
    append(order.lanes[0], 4, [b"b2"])
    assert taken(scan) == [4]
    assert max(picks.looks.values()) == 1
    assert sequences(order.acquire(None, 1, PLENTY)) == [1]
    order.release([1, 2])
    assert taken(scan) == [2]
    assert picks.looks == {b"a1": 2, b"b1": 2, b"a2": 1, b"b2": 1}


def test_an_expensive_selector_examines_fewer_messages_at_once() -> None:
    """Each message has 1 KiB and a search of 8 KiB is a look, so with a weight of 80 a message takes eleven looks."""
    messages = [b"a%03d" % each + bytes(1020) for each in range(100)]
    picks = Holds(b"b", weight=80)
    scan = Scan(queue_of(*messages), picks)
    for examined in (10, 20, 30):
        assert taken(scan, looks=100) == []
        assert (len(picks.looks), scan.has_more) == (examined, True)
    assert taken(scan, looks=1) == []
    assert len(picks.looks) == 31, "one message at least"


def test_consumers_of_one_selector_share_what_was_looked_at() -> None:
    order, picks = queue_of(b"a1", b"b1", b"a2", b"b2", b"a3"), Holds(b"a")
    scan = Scan(order, picks)
    assert [taken(scan, 1) for _ in range(4)] == [[1], [3], [5], []]
    assert max(picks.looks.values()) == 1


def test_a_consumer_without_a_selector_passes_over_what_others_have_picked() -> None:
    order = queue_of(b"a1", b"b1", b"b2", b"a2", b"b3")
    assert taken(Scan(order, Holds(b"b"))) == [2, 3, 5]
    assert (order.acquired, order.available) == (3, 2)
    assert sequences(order.acquire(None, 1, PLENTY)) == [1]
    assert sequences(order.acquire(None, 100, PLENTY)) == [4]
    assert [order.is_acquired(sequence) for sequence in range(1, 7)] == [True] * 5 + [False]
    order.release([3, 4])
    assert sequences(order.acquire(None, 100, PLENTY)) == [3, 4]


def test_a_consumer_without_a_selector_finds_what_is_behind_many_picked_ones() -> None:
    order = queue_of(*[b"b"] * 10, b"a")
    assert len(taken(Scan(order, Holds(b"b")))) == 10
    assert sequences(order.acquire(None, 4, PLENTY)) == [11]
    assert order.acquire(None, 4, PLENTY) == []


def test_a_scan_ends_for_now_when_it_has_looked_at_as_many_as_it_may() -> None:
    order, picks = queue_of(*[b"a"] * 10, b"b"), Holds(b"b")
    scan = Scan(order, picks)
    assert (taken(scan, looks=4), scan.has_more, scan.looks_left) == ([], True, 0)
    assert (taken(scan, looks=4), scan.has_more) == ([], True)
    assert (taken(scan, looks=4), scan.has_more, scan.looks_left) == ([11], False, 1)
    assert picks.looks.total() == 11


def test_what_does_not_fit_waits_and_one_message_always_goes() -> None:
    order = queue_of(b"b" * 10, b"a", b"b" * 10, b"b")
    scan = Scan(order, Holds(b"b"))
    assert [taken(scan, nbytes=5) for _ in range(4)] == [[1], [3], [4], []]
    order.release([1, 3, 4])
    assert [taken(scan, nbytes=12) for _ in range(2)] == [[1], [3, 4]]
    assert taken(scan, 0) == []


def test_a_scan_waits_for_bodies_and_passes_over_what_cannot_be_read() -> None:
    files = Files()
    order = queue_of(b"a1", b"b1", b"b2", b"b3", files=files, keep=False)
    lane, scan = order.lanes[0], Scan(order, Holds(b"b"))
    for absent, found in ((1, []), (2, []), (3, [2])):
        assert (taken(scan), scan.absent) == (found, absent)
        if absent < 3:
            read_back(lane, files, absent)
    lane.give_up(3, lane.blocks[0].places[2])
    assert (taken(scan), scan.absent) == ([], 4)
    order.release([2])
    lane.drop_bodies()
    assert (taken(scan), scan.absent) == ([], 2)
    lane.give_up(2, lane.blocks[0].places[1])
    assert (taken(scan), scan.absent) == ([], 4)
    read_back(lane, files, 4)
    assert (taken(scan), scan.absent) == ([4], -1)


def test_what_cannot_be_read_and_was_picked_before_counts_as_acquired_once() -> None:
    files, order = Files(), discipline_of({}, {}, Residency(PLENTY))
    (lane,) = order.lanes
    append(lane, 1, [b"a", b"b", b"a"], files.write(b"aba"))
    assert taken(Scan(order, Holds(b"b"))) == [2]
    lane.drop_bodies()
    lane.give_up(1, lane.blocks[0].places[0])
    assert order.acquire(None, 9, PLENTY) == []
    assert (order.acquired, order.available) == (3, 0)


def test_a_large_message_is_judged_by_its_first_part_and_waits_for_it() -> None:
    order, picks = queue_of(b"a1", b"b1", b"manifest", b"b2"), Holds(b"b")
    scan = Scan(order, picks)
    assert (taken(scan, large={3}), scan.headless) == ([2], 3)
    assert (taken(scan, large={3}, heads={3: None}), scan.headless) == ([], 3)
    assert (taken(scan, large={3}, heads={3: b"the b"}), scan.headless) == ([3, 4], -1)
    order.release([3])
    assert (taken(scan, large={3}), scan.headless) == ([], 3)
    assert picks.looks[b"b1"] == 1


def test_a_selector_may_ask_how_often_delivery_has_failed() -> None:
    order = queue_of(b"b1", b"b2")
    scan = Scan(order, Holds(b"b", at_least=1))
    assert taken(scan) == []
    assert sequences(order.acquire(None, 2, PLENTY)) == [1, 2]
    order.lanes[0].raise_count(2, 1, 1)
    order.release([1, 2])
    assert taken(scan) == [2]


@pytest.mark.costs
def test_messages_that_are_released_and_gone_do_not_pile_up_in_a_scan_that_nobody_asks() -> None:
    order = queue_of()
    scan = Scan(order, Holds(b"b"))
    for sequence in range(1, 2000):
        append(order.lanes[0], sequence, [b"a"])
        order.acquire(None, 1, PLENTY)
        for _ in range(2):
            order.release([sequence])
            order.acquire(None, 1, PLENTY)
        order.remove(sequence, 1)
    assert len(order.returned.sequences) < 200
    assert taken(scan) == []
    assert sum(len(place.heap) for place in scan._places.values()) < 200
    scan.close()
    assert order.returned.readers == []


@pytest.mark.costs
def test_a_release_is_noted_once_for_all_scans_and_each_of_them_reads_it_in_its_own_time() -> None:
    """Breaks when the end of a consumer with many messages takes seconds on a queue with many selectors."""

    def released_with(n_scans: int) -> tuple[list[Scan], int]:
        order = queue_of(*[b"a"] * 499, b"b")
        scans = [Scan(order, Holds(b"b", at_least=1)) for _ in range(n_scans)]
        assert [taken(scan) for scan in scans] == [[]] * n_scans
        order.acquire(None, 500, PLENTY)
        order.lanes[0].raise_count(500, 1, 1)
        return scans, calls_of(lambda: order.release(range(1, 501)))

    _, calls = released_with(10)
    scans, more_calls = released_with(60)
    assert more_calls <= calls + 60
    for scan in scans[::20]:
        n_looks = 0
        while not (found := taken(scan, looks=10)):
            assert scan.has_more
            assert scan.looks_left <= 0
            n_looks += 10
        assert found == [500]
        assert 550 <= n_looks < 600, "a read note takes an eighth of a look"
        scan.order.release(found)


def test_a_scan_with_no_looks_left_reads_no_notes() -> None:
    order = queue_of(b"b1", b"b2")
    scan = Scan(order, Holds(b"b"))
    assert taken(scan) == [1, 2]
    order.release([1, 2])
    assert (taken(scan, looks=0), scan.has_more) == ([], True)
    assert (taken(scan, looks=1), scan.has_more) == ([], True)
    assert (taken(scan, looks=1), scan.has_more) == ([1], True)
    assert (taken(scan, looks=1), scan.has_more) == ([2], False)


def test_notes_that_a_scan_has_not_read_stay_as_long_as_their_messages_are_available() -> None:
    order = queue_of(*[b"b%d" % number for number in range(100)])
    lazy, eager = Scan(order, Holds(b"b")), Scan(order, Holds(b"b"))
    assert len(taken(lazy)) == 100
    for _ in range(10):
        order.release(range(1, 101))
        assert len(taken(eager)) == 100
        assert len(order.returned.sequences) <= 2 * 100 + 2 + 64
    order.release(range(100, 0, -2))
    assert taken(lazy, 10) == list(range(2, 21, 2))
    order.release([3])
    assert taken(eager) == [3, *range(22, 101, 2)]
    late = Scan(order, Holds(b"b"))
    order.release([5])
    assert taken(late) == [5]
    for scan in (lazy, eager, late):
        assert taken(scan) == []
        scan.close()
    assert order.returned.sequences == []


def test_released_messages_that_wait_for_their_bodies_are_kept_once() -> None:
    files = Files()
    order = queue_of(*[b"b"] * 10, files=files)
    scan = Scan(order, Holds(b"b"))
    assert len(taken(scan)) == 10
    for _ in range(100):
        order.release(range(1, 11))
        order.lanes[0].drop_bodies()
        assert (taken(scan), scan.absent) == ([], 1)
        assert len(scan._places[0].heap) <= 2 * 10 + 64
        order.claim(1, 10)
    order.release(range(1, 11))
    for sequence in range(1, 11):
        assert (taken(scan), scan.absent) == ([sequence - 1] if sequence > 1 else [], sequence)
        read_back(order.lanes[0], files, sequence)
    assert taken(scan) == [10]


def test_a_new_term_begins_with_nothing_looked_at() -> None:
    order = queue_of(b"b1", b"a1", b"b2")
    scan = Scan(order, Holds(b"b"))
    assert taken(scan, 1) == [1]
    order.release_all()
    assert order.acquired == 0
    assert taken(scan) == [1, 3]


@pytest.mark.parametrize("levels", [1, 3])
def test_a_scan_that_begins_late_sees_what_was_released_before(levels: int) -> None:
    order = queue_of(b"b1", b"b2", b"b3", levels=levels)
    order.acquire(None, 3, PLENTY)
    order.release([2])
    assert taken(Scan(order, Holds(b"b"))) == [2]


def test_the_highest_level_is_looked_at_first() -> None:
    order = queue_of(b"b1", b"a1", levels=3)
    high = 2 << LANE_SHIFT
    append(order.lanes[2], high + 1, [b"a2", b"b2"])
    scan = Scan(order, Holds(b"b"))
    assert [taken(scan, 1) for _ in range(3)] == [[high + 2], [1], []]
    assert order.is_acquired(high + 2)


class Queue(RuleBasedStateMachine):
    """Two selectors and a consumer without one, on a queue whose messages lie on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.files = Files()
        self.order: Discipline
        self.scans: dict[bytes, Scan]
        self.picks: dict[bytes, Holds]
        self.alive: dict[int, bytes] = {}
        self.acquired: set[int] = set()
        self.releases: Counter[bytes] = Counter()
        self.restarts = 0

    @initialize(levels=some.sampled_from([1, 3]))
    def begin(self, levels: int) -> None:
        self.order = discipline_of({"qpid.priorities": levels}, {}, Residency(PLENTY))
        self.picks = {letter: Holds(letter) for letter in (b"x", b"y")}
        self.scans = {letter: Scan(self.order, picks) for letter, picks in self.picks.items()}

    @rule(
        data=some.data(),
        kinds=some.lists(some.sampled_from([b"", b"x", b"y", b"xy"]), min_size=1, max_size=4),
        keep=some.booleans(),
    )
    def arrive(self, data: Any, kinds: list[bytes], keep: bool) -> None:
        lane = data.draw(some.sampled_from(self.order.lanes))
        first = lane.next_seq + data.draw(some.integers(0, 2))
        messages = [kind + str(sequence).encode() for sequence, kind in enumerate(kinds, first)]
        append(lane, first, messages, self.files.write(b"".join(messages)), keep=keep)
        self.alive.update(enumerate(messages, first))

    def available(self) -> list[int]:
        """In the order in which they are given out."""
        waiting = self.alive.keys() - self.acquired
        return sorted(waiting, key=lambda sequence: (-(sequence >> LANE_SHIFT), sequence))

    def read_back(self, absent: int) -> None:
        read_back(self.order.lane_of(absent), self.files, absent)

    @rule(letter=some.sampled_from([b"x", b"y"]), count=some.integers(1, 4), looks=some.integers(1, 5))
    def select(self, letter: bytes, count: int, looks: int) -> None:
        scan = self.scans[letter]
        found: list[int] = []
        expected = [sequence for sequence in self.available() if letter in self.alive[sequence]][:count]
        for _ in range(1000):
            lots = scan.take(count - len(found), PLENTY, looks)
            assert [each for lot in lots for each in lot.messages()] == [self.alive[sequence] for sequence in sequences(lots)]
            found += sequences(lots)
            if scan.absent >= 0:
                self.read_back(scan.absent)
            elif not scan.has_more:
                break
        assert found == expected
        self.acquired.update(found)

    @rule(count=some.integers(1, 4))
    def take(self, count: int) -> None:
        found: list[int] = []
        expected = self.available()[:count]
        while len(found) < len(expected):
            found += sequences(self.order.acquire(None, count - len(found), PLENTY))
            if self.order.absent >= 0:
                self.read_back(self.order.absent)
        assert found == expected
        self.acquired.update(found)

    @precondition(lambda self: self.alive)
    @rule(data=some.data())
    def release(self, data: Any) -> None:
        chosen = data.draw(some.lists(some.sampled_from(sorted(self.alive)), unique=True, max_size=3))
        self.order.release(chosen)
        self.releases.update(self.alive[sequence] for sequence in self.acquired.intersection(chosen))
        self.acquired.difference_update(chosen)

    @precondition(lambda self: self.alive)
    @rule(data=some.data(), count=some.integers(1, 3))
    def remove(self, data: Any, count: int) -> None:
        first = data.draw(some.sampled_from(sorted(self.alive)))
        gone = [sequence for sequence in range(first, first + count) if sequence in self.alive]
        assert self.order.remove(first, count)[0] == len(gone)
        for sequence in gone:
            del self.alive[sequence]
        self.acquired.difference_update(gone)

    @rule()
    def drop_bodies(self) -> None:
        for lane in self.order.lanes:
            lane.drop_bodies()

    @rule()
    def end_the_term(self) -> None:
        self.order.release_all()
        self.acquired.clear()
        self.restarts += 1

    @invariant()
    def what_is_acquired_is_counted(self) -> None:
        if hasattr(self, "order"):
            assert self.order.acquired == len(self.acquired)
            assert self.order.available == len(self.alive) - len(self.acquired)
            assert all(self.order.is_acquired(sequence) == (sequence in self.acquired) for sequence in self.alive)

    @invariant()
    def nothing_is_looked_at_again_unless_it_was_released(self) -> None:
        for picks in getattr(self, "picks", {}).values():
            for message, looks in picks.looks.items():
                assert looks <= 1 + self.releases[message] + self.restarts, message


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=150, stateful_step_count=40)
