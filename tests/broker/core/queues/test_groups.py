"""Queues of groups against a model that keeps a dictionary: whose turn each message is, whatever is released and removed."""

from __future__ import annotations

from random import Random
from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.queues.discipline import discipline_of
from broker.core.queues.groups import Groups
from broker.core.queues.residency import Residency
from tests.broker.core.queues.files import Files, append, read_back, sequences

A, B, C = "consumer a", "consumer b", "consumer c"
ASIDE = "nobody"
"""In the model, the holder of a message that is set aside."""
PLENTY = 1 << 40


def encoded(group: str) -> bytes:
    made: Any = proton.Message(body="x")
    made.properties = {"g": group}
    return bytes(made.encode())


class Queue:
    """A queue of groups and its model: sequence -> [group, holder or ""]."""

    def __init__(self, *, shared: bool = True) -> None:
        self.residency = Residency(PLENTY)
        found = discipline_of({"qpid.group_header_key": "g", "qpid.shared_msg_group": int(shared)}, {}, self.residency)
        assert isinstance(found, Groups)
        self.order = found
        self.lane = found.lane
        self.files = Files()
        self.model: dict[int, list[str]] = {}
        self.returning: set[int] = set()
        self.owners: dict[str, str] = {}
        """Of the kind that is not shared: group -> consumer."""

    def put(self, groups: str) -> None:
        data = list(map(encoded, groups))
        first = self.lane.next_seq
        append(self.lane, first, data, self.files.write(b"".join(data)))
        self.model |= {first + at: [group, ""] for at, group in enumerate(groups)}

    def owner(self, group: str) -> str:
        holders = {holder for of, holder in self.model.values() if of == group and holder not in ("", ASIDE)}
        assert len(holders) <= 1
        return self.owners.get(group, "") if not self.order.shared else next(iter(holders), "")

    def expected(self, consumer: str, most: int) -> list[int]:
        stand = {self.model[sequence][0] for sequence in self.returning}
        free = [(s, group) for s, (group, holder) in sorted(self.model.items()) if not holder and group not in stand]
        return [s for s, group in free if self.owner(group) in ("", consumer)][:most]

    def take(self, consumer: str, most: int, nbytes: int = PLENTY) -> list[int]:
        taken = sequences(self.order.acquire(consumer, most, nbytes))
        for sequence in taken:
            self.model[sequence][1] = consumer
            self.owners[self.model[sequence][0]] = consumer
        return taken

    def release(self, *chosen: int) -> None:
        self.order.release(chosen)
        self.returning.difference_update(chosen)
        for sequence in chosen:
            if sequence in self.model:
                self.model[sequence][1] = ""

    def will_return(self, *chosen: int) -> None:
        self.order.will_return(chosen)
        self.returning.update(s for s in chosen if s in self.model and self.model[s][1] not in ("", ASIDE))

    def set_aside(self, *chosen: int) -> None:
        """Nobody holds these any more, and nobody gets them."""
        self.order.set_aside(chosen)
        self.returning.difference_update(chosen)
        for sequence in chosen:
            if sequence in self.model and self.model[sequence][1]:
                self.model[sequence][1] = ASIDE

    def remove(self, first: int, count: int = 1) -> None:
        gone = [s for s in range(first, first + count) if self.model.pop(s, None)]
        assert self.order.remove(first, count)[0] == len(gone)
        self.returning.difference_update(gone)

    def leave(self, consumer: str) -> None:
        self.order.left(consumer)
        self.release(*[s for s, (_, holder) in self.model.items() if holder == consumer])
        self.owners = {group: owner for group, owner in self.owners.items() if owner != consumer}


def test_a_group_goes_to_one_consumer_and_others_get_other_groups() -> None:
    q = Queue()
    q.put("xxyxy")
    assert q.take(A, 1) == [1]
    assert q.take(B, 9) == [3, 5]
    assert q.take(C, 9) == []
    assert q.take(A, 9) == [2, 4]


def test_a_shared_group_is_free_when_none_of_its_messages_is_held() -> None:
    q = Queue()
    q.put("xxx")
    q.take(A, 2)
    assert q.take(B, 9) == []
    q.remove(1)
    assert not q.order.take_opened()
    assert q.take(B, 9) == []
    q.remove(2)
    assert q.order.take_opened()
    assert not q.order.take_opened()
    assert q.take(B, 9) == [3]


def test_what_comes_back_goes_out_before_what_follows_in_its_group() -> None:
    q = Queue()
    q.put("xxxx")
    assert q.take(A, 2) == [1, 2]
    q.release(1)
    assert q.take(B, 9) == []
    assert q.take(A, 1) == [1]
    q.release(2, 1)
    assert q.take(B, 9) == [1, 2, 3, 4]


def test_an_exclusive_group_stays_with_its_consumer_until_that_leaves() -> None:
    q = Queue(shared=False)
    q.put("xyx")
    assert q.take(A, 1) == [1]
    q.remove(1)
    assert q.take(B, 9) == [2]
    assert q.take(C, 9) == []
    q.leave(A)
    assert q.take(C, 9) == [3]


def test_a_consumer_that_has_left_keeps_a_group_as_long_as_its_last_accept_is_under_way() -> None:
    """Breaks when the next message of a group goes out while the one before is neither released nor gone."""
    for shared in (True, False):
        q = Queue(shared=shared)
        q.put("xx")
        q.take(A, 1)
        q.order.left(A)
        assert q.take(B, 9) == []
        q.order.remove(1, 1)
        assert sequences(q.order.acquire(B, 9, PLENTY)) == [2]


def test_a_message_that_must_be_read_stops_whoever_is_to_have_it_and_is_looked_at_afterwards() -> None:
    q = Queue()
    q.put("xy")
    q.residency.limit_bytes = 0
    q.residency.enforce()
    assert q.take(A, 9) == []
    assert q.order.absent == 1
    assert list(q.order.upcoming()) == [(q.lane, 1)]
    read_back(q.lane, q.files, 1)
    assert q.take(A, 1) == [1]
    q.residency.enforce()
    assert q.take(B, 1) == []
    assert q.order.absent == 2, "it was looked at, and has to be read again"


def test_consumers_that_stop_at_a_body_on_disk_use_up_no_looks_of_the_turn_in_which_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Breaks when the body, which little memory cannot keep for the next turn, is read from disk again and again."""
    monkeypatch.setattr(limits, "MAX_GROUP_LOOKS", 128)
    q = Queue()
    q.put("x")
    q.lane.drop_bodies()
    for consumer in (A, B, C):
        assert (q.take(consumer, 1), q.order.absent, q.order.searching) == ([], 1, False)
    read_back(q.lane, q.files, 1)
    assert q.take(A, 1) == [1]


def test_what_cannot_be_read_is_passed_over_and_holds_no_group() -> None:
    q = Queue()
    q.put("x")
    q.put("x")
    q.put("x")
    q.take(A, 1)
    q.release(1)
    q.residency.limit_bytes = 0
    q.residency.enforce()
    for sequence in (1, 2):
        block = q.lane.block_of(sequence)
        assert block is not None
        q.lane.give_up(sequence, block.places[block.run_of(sequence - block.first_seq)])
    read_back(q.lane, q.files, 3)
    assert q.take(B, 9) == [3]
    assert q.order.acquired == 3
    q.order.release([2])
    assert q.order.available == 1


def test_what_cannot_be_read_before_it_was_looked_at_is_passed_over_too() -> None:
    q = Queue()
    q.put("x")
    q.put("x")
    q.residency.limit_bytes = 0
    q.residency.enforce()
    block = q.lane.blocks[0]
    q.lane.give_up(1, block.places[0])
    read_back(q.lane, q.files, 2)
    assert q.take(A, 9) == [2]


def test_messages_of_a_turn_end_at_its_bytes() -> None:
    q = Queue()
    q.put("xxx")
    size = len(encoded("x"))
    assert q.take(A, 9, 2 * size) == [1, 2]
    assert q.take(A, 9, 1) == [3], "one at least"


def test_no_more_is_looked_at_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUPS_WAITING", 10)
    q = Queue()
    q.put("x" * 100 + "y")
    q.take(A, 1)
    assert q.take(B, 9) == []
    assert len(q.order._of) <= 10 + 64
    assert q.take(A, 99) == list(range(2, 101))
    assert q.take(B, 9) == [101]


@pytest.mark.parametrize("group", ["a", "b"])
def test_in_a_turn_so_many_are_looked_at_and_the_search_goes_on_in_the_next(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_LOOKS", 128)
    q = Queue()
    q.put("a" * 300 + group)
    assert q.take(A, 1) == [1]
    for taken, searching in (([], True), ([], True), ([301] if group == "b" else [], False)):
        assert (q.take(B, 5), q.order.searching) == (taken, searching)
        assert (q.take(C, 5), q.order.searching) == ([], searching), "others do not look on in this turn"
        q.order.search_on()


def waiting_heads(q: Queue) -> int:
    """Entries in the heaps of everybody, outdated ones too."""
    return len(q.order._heads) + sum(map(len, q.order._own.values()))


@pytest.mark.parametrize("shared", [True, False])
def test_a_backlog_of_one_group_that_everybody_looks_through_is_offered_a_message_at_a_time(shared: bool) -> None:
    """Breaks when each message that is taken leaves an entry behind: then a hot group costs the square of its backlog."""
    q = Queue(shared=shared)
    q.put("x" * 500)
    assert q.take(A, 1) == [1]
    assert q.take(B, 9) == [], "it looks for another group through the whole backlog"
    for first in range(2, 492, 10):
        assert q.take(A, 10) == list(range(first, first + 10))
        q.remove(first, 10)
        assert q.take(B, 9) == []
        assert waiting_heads(q) <= 3
    assert q.take(A, 99) == list(range(492, 501))
    assert q.take(A, 1) == []
    assert (waiting_heads(q), q.order._offered) == (0, {})


@pytest.mark.parametrize("shared", [True, False])
def test_what_expires_while_its_consumer_asks_for_nothing_leaves_nothing_behind(shared: bool) -> None:
    """Breaks when each message that expires leaves an entry in the heap of a consumer that is stuck."""
    q = Queue(shared=shared)
    q.put("x")
    assert q.take(A, 1) == [1]
    for _ in range(100):
        first = q.lane.next_seq
        q.put("xxx")
        assert q.take(B, 9) == []
        q.order.search_on()
        q.order.claim(first, 3)
        q.remove(first, 3)
        assert waiting_heads(q) <= 66
    q.put("xyx")
    assert (q.take(B, 9), q.take(A, 9)) == ([303], [302, 304])


@pytest.mark.parametrize("shared", [True, False])
def test_what_expires_behind_a_message_that_waits_for_a_stuck_consumer_leaves_nothing_behind(shared: bool) -> None:
    q = Queue(shared=shared)
    q.put("xxy")
    assert (q.take(A, 1), q.take(C, 1)) == ([1], [3])
    for _ in range(200):
        first = q.lane.next_seq
        q.put("xy")
        assert q.take(B, 9) == []
        q.order.search_on()
        q.order.claim(first, 2)
        q.remove(first, 2)
        assert sum(map(len, q.order._waiting.values())) == q.order._n_waiting <= 80
    q.put("xyz")
    assert (q.take(B, 9), q.take(A, 9), q.take(C, 9)) == ([406], [2, 404], [405])
    assert (q.order._waiting, q.order._n_waiting) == ({}, 0)


def test_groups_beyond_the_bound_stay_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_OWNERS", 1)
    q = Queue(shared=False)
    q.put("xyxy")
    q.take(A, 2)
    q.remove(2)
    q.remove(1)
    assert sequences(q.order.acquire(B, 9, PLENTY)) == [4]


def test_a_term_that_ends_frees_everything() -> None:
    q = Queue(shared=False)
    q.put("xyx")
    q.take(A, 9)
    q.order.release_all()
    assert sequences(q.order.acquire(B, 9, PLENTY)) == [1, 2, 3]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_everybody_gets_the_oldest_that_it_may_have(seed: int, shared: bool) -> None:
    rng = Random(seed)
    q = Queue(shared=shared)
    consumers = [A, B, C]
    for _ in range(400):
        match rng.randrange(8):
            case 0:
                q.put("".join(rng.choice("uvwxyz") for _ in range(rng.randint(1, 5))))
            case 1 | 2:
                consumer, most = rng.choice(consumers), rng.randint(1, 4)
                taken: list[int] = []
                for _ in range(most):
                    expected = q.expected(consumer, 1)
                    assert q.take(consumer, 1) == expected
                    taken += expected
            case 3 if q.model:
                q.release(*rng.sample(sorted(q.model), min(len(q.model), rng.randint(1, 3))))
            case 4 if q.model:
                q.remove(rng.choice(sorted(q.model)), rng.choice((1, 1, 3)))
            case 5 if rng.random() < 0.3:
                q.leave(rng.choice(consumers))
            case 6 if q.model:
                q.set_aside(*rng.sample(sorted(q.model), min(len(q.model), rng.randint(1, 3))))
            case 7 if q.model:
                q.will_return(*rng.sample(sorted(q.model), min(len(q.model), rng.randint(1, 3))))
            case _:
                pass
        assert q.order.acquired == sum(bool(holder) for _, holder in q.model.values())
        assert q.order.available == len(q.model) - q.order.acquired


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_claimed_out_of_turn_holds_its_group_no_more(shared: bool) -> None:
    """Breaks when what an operator takes off a queue is counted as held by a consumer, or given to one."""
    queue = Queue(shared=shared)
    queue.put("aabbc")
    queue.order.claim(5, 1)  # before anybody has looked at it
    assert sequences(queue.order.acquire(A, 1, PLENTY)) == [1]
    queue.order.claim(2, 2)  # behind one that is held, and the first of its group
    assert sequences(queue.order.acquire(B, 9, PLENTY)) == [4]
    for sequence in (2, 3, 5, 1, 4):
        queue.order.remove(sequence, 1)
    assert (queue.order.depth, queue.order.acquired) == (0, 0)


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_set_aside_holds_its_group_no_more_and_comes_back_into_its_place(shared: bool) -> None:
    q = Queue(shared=shared)
    q.put("xxxy")
    assert q.take(A, 2) == [1, 2]
    q.set_aside(1, 1, 3, 99)
    assert q.take(B, 9) == [4], "the second is held"
    q.leave(A)
    assert q.order.take_opened()
    assert q.take(B, 1) == [2]
    assert (q.order.acquired, q.order.available) == (3, 1)
    q.release(1)
    assert q.take(C, 9) == []
    assert q.take(B, 9) == [1, 3]
    q.set_aside(1, 2, 3)
    q.remove(1, 2)
    q.order.release_all()
    assert sequences(q.order.acquire(A, 9, PLENTY)) == [3, 4]


def test_a_consumer_does_not_keep_a_group_of_which_it_was_given_nothing() -> None:
    """Breaks when a message that waits for its time binds its group to a consumer that happened to ask before."""
    q = Queue(shared=False)
    q.put("xyxyzx")
    assert sequences(q.order.acquire(A, 4, PLENTY)) == [1, 2, 3, 4]
    q.order.set_aside([1, 2, 4], given=False)
    assert q.order.take_opened()
    assert sequences(q.order.acquire(B, 9, PLENTY)) == [5], "the first consumer has the third message"
    q.order.release([2, 4])
    assert sequences(q.order.acquire(B, 1, PLENTY)) == [2], "and nothing of this group"
    q.order.set_aside([2])
    assert sequences(q.order.acquire(A, 9, PLENTY)) == [6], "that was given to the other one"
    q.order.set_aside([3, 6], given=False)
    assert sequences(q.order.acquire(B, 9, PLENTY)) == [4], "a group that a consumer had before stays with it"


def test_what_is_set_aside_does_not_count_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when much that is set aside lets more messages be looked at than may wait."""
    monkeypatch.setattr(limits, "MAX_GROUPS_WAITING", 10)
    q = Queue()
    q.put("x" * 300)
    assert len(q.take(A, 80)) == 80
    q.set_aside(*range(1, 80))
    assert q.take(B, 9) == []
    assert len(q.order._of) <= 1 + 10 + 64


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("end", ["released", "set aside", "removed"])
def test_nothing_of_a_group_goes_out_while_one_of_its_messages_is_about_to_return(end: str, shared: bool) -> None:
    q = Queue(shared=shared)
    q.put("xxxxy")
    assert q.take(A, 2) == [1, 2]
    q.will_return(2, 1, 99)
    assert q.take(A, 9) == [5]
    q.release(2)
    assert q.take(A, 9) == [], "the first one is not back yet"
    assert not q.order.take_opened()
    match end:
        case "released":
            q.release(1)
        case "set aside":
            q.set_aside(1)
        case _:
            q.remove(1)
    assert q.order.take_opened()
    assert q.take(A, 9) == [*([1] if end == "released" else []), 2, 3, 4]
