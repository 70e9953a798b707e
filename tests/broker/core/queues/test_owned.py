"""Queues of groups whose owners are in a log: what goes to whom before and after each record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from broker.core import limits
from broker.core.queues import owned
from broker.core.queues.discipline import discipline_of
from broker.core.queues.owned import Owned, Owner, read_owners
from broker.core.queues.residency import Residency
from tests.broker.core.queues.files import Files, append, calls_of, read_back, sequences
from tests.broker.core.queues.test_groups import encoded

A, B, C = (Owner("user", "container", name) for name in "abc")
ARGUMENTS = {"qpid.group_header_key": "g", "qpid.group_owner_timeout": 5}
PLENTY = 1 << 40
Record = tuple[Owner | None, list[bytes]]


class Queue:
    """A queue of groups, and the records about it that are proposed and not committed."""

    def __init__(self) -> None:
        found = discipline_of(ARGUMENTS, {}, Residency(PLENTY))
        assert isinstance(found, Owned)
        self.order = found
        self.lane = found.lane
        self.files = Files()
        self.proposed: list[Record] = []
        self.late: set[int] = set()
        """Messages that cannot be delivered now."""

    def put(self, groups: str) -> None:
        data = list(map(encoded, groups))
        append(self.lane, self.lane.next_seq, data, self.files.write(b"".join(data)))

    def take(self, owner: object, most: int = 9) -> list[int]:
        """What this consumer gets now. What it asks for is proposed."""
        found: list[int] = []
        while True:
            got = sequences(self.order.acquire(owner, most - len(found), PLENTY))
            asked = self.late.intersection(self.order.asked_for)
            self.order.withhold(asked)
            self.order.set_aside(self.late.intersection(got), given=False)
            found += [each for each in got if each not in self.late]
            if not asked and self.late.isdisjoint(got):
                break
        self.proposed += self.order.take_changes()
        return found

    def is_due(self, sequence: int) -> None:
        """This message was one of the `late` and can be delivered now."""
        self.late.discard(sequence)
        self.order.release([sequence])

    def let_go(self, owner: Owner) -> None:
        self.order.let_go(owner)
        self.proposed += self.order.take_changes()

    def commit(self, count: int = 1 << 30) -> None:
        """Apply the records that were proposed first, by their bytes."""
        some, self.proposed = self.proposed[:count], self.proposed[count:]
        for owner, groups in some:
            payload = b"".join(groups) + (b"" if owner is None else owner.to_bytes())
            self.order.own(*read_owners(payload, len(groups)))

    def get(self, owner: Owner, most: int = 9) -> list[int]:
        """What this consumer gets when everything that it asks for is committed."""
        found = self.take(owner, most)
        self.commit()
        return found + self.take(owner, most - len(found))


@contextmanager
def most_groups(count: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MAX_GROUP_OWNERS", count)
        yield


def test_a_message_goes_out_when_the_record_is_applied_that_gives_its_group_to_its_consumer() -> None:
    q = Queue()
    q.put("xx")
    assert q.take(A) == []
    assert [owner for owner, _ in q.proposed] == [A]
    assert q.order.asks(A)
    assert q.take(A) == []
    assert len(q.proposed) == 1, "it is asked for once"
    q.commit()
    assert q.order.take_opened()
    assert not q.order.asks(A)
    assert q.take(A) == [1, 2]
    q.put("x")
    assert q.take(A) == [3]
    assert q.proposed == [], "later messages of the group need no record"


def test_a_group_whose_messages_are_all_late_is_asked_for_by_nobody_before_one_is_due() -> None:
    q = Queue()
    q.put("xyxz")
    q.late |= {1, 2}
    assert q.take(A, 9) == []
    assert [len(groups) for _, groups in q.proposed] == [2], "of the third message and the fourth"
    q.commit()
    assert q.take(A) == [3, 4]
    q.late.add(5)
    q.put("v")
    assert (q.take(B), q.proposed, q.order.asks(B), q.order.available) == ([], [], False, 0)
    q.is_due(2)
    q.is_due(5)
    assert q.get(C) == [2, 5]
    q.is_due(1)
    assert (q.get(C), q.take(A)) == ([], [1])


def test_what_is_late_leaves_nothing_behind_when_it_is_removed() -> None:
    q = Queue()
    q.put("xx")
    q.late.add(1)
    q.take(A, 1)
    assert len(q.proposed) == 1
    for sequence in (1, 2):
        q.order.remove(sequence, 1)
    q.commit()
    assert (q.order.acquired, q.order._aside, q.order._of, q.order.depth) == (0, {}, {}, 0)


def test_a_consumer_looks_on_behind_messages_that_are_late() -> None:
    """Breaks when so many delayed messages hide the others from everybody."""
    q, names = Queue(), "".join(map(chr, range(0x4E00, 0x4E00 + 200)))
    q.put(names + "x")
    q.late |= {*range(1, 201)}
    q.take(A, 1)
    assert [len(groups) for _, groups in q.proposed] == [1]
    q.commit()
    assert q.take(A, 1) == [201]


def test_a_group_that_one_consumer_has_or_has_asked_for_is_not_asked_for_by_another() -> None:
    q = Queue()
    q.put("xy")
    assert q.take(A, 1) == []
    assert q.take(B) == []
    assert [(owner, len(groups)) for owner, groups in q.proposed] == [(A, 1), (B, 1)]
    q.commit()
    assert (q.take(A), q.take(B), q.take(C)) == ([1], [2], [])
    assert q.proposed == []


def test_a_consumer_asks_for_as_many_groups_as_it_has_room_for_and_those_of_one_turn_are_in_one_record() -> None:
    q = Queue()
    q.put("abcdefg")
    assert q.take(A, 3) == []
    assert q.take(A, 3) == []
    assert [len(groups) for _, groups in q.proposed] == [3]
    q.commit()
    assert q.take(A, 5) == [1, 2, 3]
    assert [len(groups) for _, groups in q.proposed] == [2], "what it got takes room, too"


def test_a_consumer_asks_for_no_more_groups_than_have_the_messages_that_it_has_room_for() -> None:
    """Breaks when groups wait for a consumer whose credit the messages of others fill, while another consumer is idle."""
    q = Queue()
    q.put("xxxyyzw")
    assert (q.take(A, 4), q.take(B)) == ([], [])
    assert [(owner, len(groups)) for owner, groups in q.proposed] == [(A, 2), (B, 2)]
    q.commit()
    assert (q.take(A, 4), q.take(B)) == ([1, 2, 3, 4], [6, 7])
    q.put("vvvu")
    assert (q.take(C, 3), [len(groups) for _, groups in q.proposed]) == ([], [1])
    q.order.remove(9, 2)
    q.commit()
    assert (q.take(C, 3), [len(groups) for _, groups in q.proposed]) == ([8], [1]), "there are fewer than it has counted"


def test_a_consumer_with_messages_of_its_own_groups_gets_them_and_asks_for_nothing() -> None:
    q = Queue()
    q.put("xxxy")
    assert q.get(A, 1) == [1]
    assert q.take(A, 2) == [2, 3]
    assert q.proposed == []


def test_no_further_messages_are_looked_at_while_a_consumer_waits_for_a_group() -> None:
    """Breaks when the first consumer of a long queue looks at all of it in one turn."""
    q = Queue()
    q.put("x" * 200)
    q.take(A)
    ((_, looked),) = q.order.upcoming()
    assert looked < 100


def test_the_messages_of_an_owner_that_is_away_wait_for_it_in_order_and_other_groups_go_on() -> None:
    q = Queue()
    q.put("xxy")
    assert q.get(A, 1) == [1]
    q.order.release([1])
    q.order.left(A)
    assert q.get(B) == [3]
    q.put("xy")
    assert q.take(B) == [5]
    assert q.take(A) == [1, 2, 4]


def test_the_groups_that_an_owner_lets_go_are_nobodys_until_that_is_committed_and_then_free() -> None:
    q = Queue()
    q.put("xyz")
    assert q.get(A, 2) == [1, 2]
    q.order.left(A)
    q.order.release([1, 2])
    q.let_go(A)
    q.let_go(A)
    assert [(owner, len(groups)) for owner, groups in q.proposed] == [(None, 2)], "what is to be free is said once"
    assert (q.take(A, 1), q.take(B), q.order.frees) == ([], [], True)
    q.commit()
    assert q.order.owners == [A], "of the third group, which it has asked for since"
    assert not q.order.frees
    assert q.get(B) == [1, 2]
    q.order.release([1, 2])
    q.let_go(B)
    q.commit()
    assert q.order.n_owners == 1
    assert q.get(C) == [1, 2]


def test_the_groups_of_an_owner_become_free_in_pieces_and_those_that_it_asks_for_come_last() -> None:
    q = Queue()
    q.put("xyz")
    assert q.get(A, 2) == [1, 2]
    q.take(A)
    assert q.order.takers == [A]
    assert q.order.let_go(A, 2)
    assert (q.order.let_go(A, 0), q.order.n_freeing) == (True, 2)
    assert not q.order.let_go(A, 1)
    q.proposed += q.order.take_changes()
    assert [(owner, len(groups)) for owner, groups in q.proposed] == [(A, 1), (None, 3)]
    q.commit()
    assert (q.order.n_freeing, q.order.owners, q.order.let_go(A)) == (0, [], False)


def test_what_is_proposed_stays_so_when_the_broker_stops_serving_and_the_log_goes_on() -> None:
    """Breaks when a group is asked for a second time before the first record is applied, or goes out though it becomes free."""
    q = Queue()
    q.put("xyz")
    assert q.get(A, 2) == [1, 2]
    q.order.remove(1, 1)
    q.take(B)
    q.let_go(A)
    q.order.interrupt()
    assert (q.take(A), q.take(B), q.take(C), len(q.proposed)) == ([], [], [], 2)
    q.commit()
    assert (q.take(B, 1), q.get(C)) == ([3], [2])


def test_a_group_that_becomes_free_on_an_interrupted_broker_is_not_freed_again_to_make_room() -> None:
    with most_groups(1):
        q = Queue()
        q.put("x")
        assert q.get(A) == [1]
        q.order.remove(1, 1)
        q.let_go(A)
        q.order.interrupt()
        q.put("y")
        assert (q.take(B), len(q.proposed)) == ([], 1)
        q.commit()
        assert q.get(B) == [2]


def test_a_group_that_becomes_free_is_of_no_interest_while_no_message_waits() -> None:
    q = Queue()
    q.put("x")
    assert q.get(A) == [1]
    q.let_go(A)
    assert not q.order.frees


def test_an_owner_comes_and_goes_at_the_cost_of_its_groups_that_have_messages() -> None:
    """Breaks when an owner whose groups are order numbers holds up the broker with each attach."""
    q = Queue()
    q.put("xx")
    assert q.get(A, 1) == [1]
    q.order.own([str(number) for number in range(1000)], A)
    for _ in range(2):
        assert calls_of(lambda: q.order.left(A)) < 50
        assert calls_of(lambda: q.order.acquire(A, 0, PLENTY)) < 50
    assert q.take(A) == [2]


@pytest.mark.costs
def test_an_owner_whose_groups_all_have_messages_comes_and_goes_at_no_cost() -> None:
    """Breaks when an owner with 100,000 groups, all with messages that wait, holds up the broker when it goes or comes back."""
    q, names = Queue(), "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    q.put(names)
    assert sum(len(q.get(A, 300)) for _ in range(9)) == 300
    q.order.remove(1, 300)
    q.put(names)
    for _ in range(20):
        q.order.search_on()
        assert q.take(B) == []
    for _ in range(2):
        assert calls_of(lambda: q.order.left(A)) < 50
        assert calls_of(lambda: q.order.acquire(A, 0, PLENTY)) < 50
    q.order.left(A)
    q.put(names[0])
    assert q.take(A, 400) == [*range(301, 602)]
    q.order.left(A)
    q.order.release(range(301, 602))
    q.let_go(A)
    q.commit()
    assert (q.order.owners, q.order._own) == ([], {}), "nothing of it is left"
    assert sorted(each for _ in range(9) for each in q.get(B, 400)) == [*range(301, 602)]


def test_what_expires_while_its_owner_asks_for_nothing_leaves_nothing_behind() -> None:
    """Breaks when each message that expires leaves an entry in the heap of an owner that is stuck."""
    q = Queue()
    q.put("x")
    assert q.get(A) == [1]
    for _ in range(100):
        first = q.lane.next_seq
        q.put("xxx")
        assert q.take(B) == []
        q.order.search_on()
        q.order.claim(first, 3)
        q.order.remove(first, 3)
        assert len(q.order._own[A]) <= 66
    q.put("xyx")
    assert (q.get(B), q.take(A)) == ([303], [302, 304])


@pytest.mark.costs
def test_what_expires_while_its_owner_is_away_costs_no_more_because_others_have_many_groups() -> None:
    """Breaks when the heap of each owner that is away may have as many entries as the queue has groups."""
    q, names = Queue(), "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    q.put(names)
    assert sum(len(q.get(C, 300)) for _ in range(9)) == 300
    q.put("x")
    assert q.get(A) == [301]
    q.order.remove(1, 301)
    q.put(names)
    for _ in range(9):
        q.order.search_on()
        assert q.take(B) == []
    q.order.left(A)
    for _ in range(100):
        first = q.lane.next_seq
        q.put("xxx")
        q.order.search_on()
        assert q.take(B) == []
        q.order.claim(first, 3)
        q.order.remove(first, 3)
        assert len(q.order._own[A]) <= 66
    q.put("x")
    q.order.search_on()
    assert q.take(A) == [q.lane.next_seq - 1]


def test_a_group_that_is_asked_for_by_an_owner_that_leaves_becomes_free_behind_its_record() -> None:
    q = Queue()
    q.put("x")
    q.take(A)
    assert q.order.has(A)
    q.let_go(A)
    assert [owner for owner, _ in q.proposed] == [A, None]
    q.commit(1)
    assert (q.take(A), q.take(B)) == ([], [])
    q.commit()
    assert not q.order.has(A)
    assert q.get(B) == [1]


def test_a_free_group_waits_for_the_outcomes_of_its_former_owner() -> None:
    """Breaks when another consumer gets the next message while the accept of the one before can still be lost."""
    q = Queue()
    q.put("xxx")
    assert q.get(A, 2) == [1, 2]
    q.order.left(A)
    q.let_go(A)
    q.commit()
    q.order.take_opened()
    assert (q.take(B), q.proposed) == ([], [])
    q.order.release([2])
    assert not q.order.take_opened()
    q.order.remove(1, 1)
    assert q.order.take_opened()
    assert q.get(B) == [2, 3]


def test_a_group_with_a_message_that_is_about_to_return_waits_for_it() -> None:
    q = Queue()
    q.put("xx")
    assert q.get(A, 1) == [1]
    q.order.will_return([1])
    assert q.take(A) == []
    q.order.release([1])
    assert q.take(A) == [1, 2]


def test_the_next_primary_and_a_checkpoint_have_the_owners() -> None:
    q, other = Queue(), Queue()
    q.put("xyz")
    assert q.get(A, 2) == [1, 2]
    assert q.get(B) == [3]
    other.put("xyz")
    for groups, owner in q.order.columns():
        other.order.own(*read_owners(b"".join(groups) + owner, len(groups)))
    assert other.order.owner_of == q.order.owner_of
    assert (other.take(C), other.take(B), other.take(A)) == ([], [3], [1, 2])


def test_a_group_that_may_make_room_for_another_one_is_news_however_its_last_message_has_gone() -> None:
    """Breaks when a consumer waits for ever for a group, because the last message of another one has expired or was purged."""
    with most_groups(1):
        q = Queue()
        q.put("xxy")
        assert q.get(A, 1) == [1]
        q.order.take_opened()
        q.order.remove(1, 1)
        assert (q.take(B), q.order.take_opened()) == ([], False), "it has a message, and no other group gets its place"
        q.order.claim(2, 1)
        q.order.remove(2, 1)
        assert q.order.take_opened()
        assert (q.get(B), q.get(B)) == ([], [3])


def test_a_checkpoint_has_so_many_groups_in_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned, "GROUPS_AT_ONCE", 2)
    q = Queue()
    q.put("vwxyz")
    q.get(A)
    assert [len(groups) for groups, _ in q.order.columns()] == [2, 2, 1]


def test_the_end_of_a_term_ends_what_is_proposed_and_no_ownership() -> None:
    q = Queue()
    q.put("xyz")
    assert q.get(A, 1) == [1]
    q.take(B, 1)
    q.let_go(A)
    q.proposed.clear()
    q.order.release_all()
    assert q.take(A, 1) == [1]
    assert q.get(C) == [2, 3]


def test_the_record_of_a_later_owner_counts_and_that_of_no_owner_twice_changes_nothing() -> None:
    """The primary proposes no such records; whatever comes, all brokers make the same of it."""
    q = Queue()
    q.put("x")
    q.take(A)
    ((_, groups),) = q.proposed
    q.proposed = [(A, groups), (B, groups)]
    q.commit()
    assert q.order.owners == [B]
    q.proposed = [(None, groups)] * 2
    q.commit()
    assert (q.order.owners, q.order.owner_of) == ([], {})


def test_when_there_are_too_many_groups_those_become_free_that_have_been_without_messages_for_longest() -> None:
    with most_groups(3), pytest.MonkeyPatch.context() as patch:
        patch.setattr(owned, "_EVICTED", 1)
        q = Queue()
        q.put("abc")
        assert q.get(A, 3) == [1, 2, 3]
        for sequence in (2, 1):
            q.order.remove(sequence, 1)
            assert q.order.take_opened(), "there is a group to be freed for another one"
        q.put("dd")
        assert q.take(B, 1) == []
        assert [(owner, len(groups)) for owner, groups in q.proposed] == [(None, 1)]
        assert q.take(B, 1) == []
        assert len(q.proposed) == 1, "one after the other"
        q.commit()
        assert q.get(B, 9) == [4, 5]
        assert len(q.order.owner_of) == 3
        q.put("ba")
        assert q.take(A) == [7], "which was freed later, or not at all, is still its own"


def test_no_group_with_messages_becomes_free_for_another_one() -> None:
    with most_groups(1):
        q = Queue()
        q.put("ab")
        assert q.get(A, 1) == [1]
        assert (q.take(B), q.proposed) == ([], [])
        q.order.release([1])
        assert (q.take(B), q.proposed) == ([], [])
        q.order.remove(1, 1)
        assert q.take(B) == []
        q.commit()
        assert q.get(B) == [2]


def test_a_group_is_without_messages_too_when_the_last_that_waits_is_removed_claimed_or_set_aside() -> None:
    """Breaks when a purge lets groups keep their places for ever."""
    with most_groups(1):
        q = Queue()
        q.put("aab")
        assert q.get(A, 1) == [1]
        q.order.remove(1, 1)
        assert (q.take(B), q.proposed) == ([], []), "one waits"
        q.order.remove(2, 1)
        q.take(B)
        q.commit()
        assert q.get(B) == [3]
        q.put("bc")
        q.order.set_aside([3])
        q.order.claim(4, 1)
        q.take(C)
        q.commit()
        assert q.get(C) == [5]


def test_a_drain_takes_messages_of_all_groups_in_order_and_afterwards_they_have_their_owners_again() -> None:
    q = Queue()
    q.put("xyxz")
    assert q.get(A, 1) == [1]
    q.order.release([1])
    q.order.left(A)
    q.take(B)
    q.order.open_to_all(opened=True)
    assert q.take("a drain") == [1, 2, 3, 4]
    q.order.left("a drain")
    q.order.release([1, 2, 3, 4])
    q.order.open_to_all(opened=False)
    q.commit()
    assert (q.take(C), q.take(B), q.take(A)) == ([], [2, 4], [1, 3])


def test_messages_that_are_not_in_memory_are_asked_for_when_their_group_is_given() -> None:
    q = Queue()
    q.put("xx")
    q.take(A)
    q.lane.drop_bodies()
    q.commit()
    assert q.take(A) == []
    assert q.order.absent == 1
    read_back(q.lane, q.files, 1)
    assert q.take(A) == [1, 2]


@pytest.mark.parametrize("owner", [b"{}", b'["a","b"]', b'["a","b",1]', b"["])
def test_a_record_whose_owner_cannot_be_read_is_none(owner: bytes) -> None:
    with pytest.raises(ValueError, match=r"is not an owner of groups|Expecting value"):
        read_owners(bytes(16) + owner, 1)


def test_messages_without_the_property_are_of_one_group() -> None:
    q = Queue()
    append(q.lane, 1, [b"no message", b"another"], q.files.write(b"no messageanother"))
    assert q.get(A, 1) == [1]
    assert (q.take(B), q.take(A)) == ([], [2])
