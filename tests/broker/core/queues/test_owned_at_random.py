"""Queues of groups whose owners are in a log, against a model: whatever happens in whatever order."""

from __future__ import annotations

from random import Random

import pytest

from broker.core import limits
from broker.core.queues import owned
from broker.core.queues.owned import Owner
from tests.broker.core.queues.test_groups import encoded
from tests.broker.core.queues.test_owned import A, B, C, Queue, most_groups


def named(group: str) -> str:
    """A group as the queue has it."""
    return owned._digest_of(encoded(group), "g")


class Model:
    """A queue, and what is known of its messages: the group of each, and who has it."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.q = Queue()
        self.groups: dict[int, str] = {}
        self.holder: dict[int, Owner] = {}
        self.here: set[Owner] = set()
        self.names = "uvwxyz"[: rng.randint(1, 6)]

    def put(self) -> None:
        """Some of them are delayed."""
        new = "".join(self.rng.choice(self.names) for _ in range(self.rng.randint(1, 4)))
        numbers = range(self.q.lane.next_seq, self.q.lane.next_seq + len(new))
        self.groups |= dict(zip(numbers, new, strict=True))
        self.q.late.update(each for each in numbers if self.rng.random() < 0.3)
        self.q.put(new)

    def take(self) -> None:
        """What a consumer gets is that of its own groups, the oldest first; it asks only for what it could get now."""
        q, owner = self.q, self.rng.choice((A, B, C))
        self.here.add(owner)
        n_before = len(q.proposed)
        taken = q.take(owner, self.rng.choice((1, 2, 9)))
        asked = {group.decode("latin-1") for whose, some in q.proposed[n_before:] if whose for group in some}
        assert asked <= {named(self.groups[each]) for each in self.groups if each not in q.late and each not in self.holder}
        for sequence in taken:
            group = self.groups[sequence]
            assert q.order.owner_of[named(group)] == owner
            assert not any(named(group).encode("latin-1") in some for _, some in q.proposed)
            alike = [each for each in self.groups if self.groups[each] == group and each not in q.late]
            assert all(each in self.holder for each in alike if each < sequence)
            assert {self.holder[each] for each in alike if each in self.holder} <= {owner}
            self.holder[sequence] = owner

    def commit(self) -> None:
        """Some of what is proposed."""
        self.q.commit(self.rng.randint(1, 2))

    def accept(self) -> None:
        """A message that somebody has."""
        self.remove(self.rng.choice(sorted(self.holder)))

    def purge(self) -> None:
        """Any message."""
        if self.rng.random() < 0.3:
            self.remove(self.rng.choice(sorted(self.groups)))

    def remove(self, sequence: int) -> None:
        """This message is gone."""
        self.q.order.remove(sequence, 1)
        self.q.late.discard(sequence)
        self.holder.pop(sequence, None)
        del self.groups[sequence]

    def release(self) -> None:
        """A message that somebody has."""
        sequence = self.rng.choice(sorted(self.holder))
        self.q.order.release([sequence])
        del self.holder[sequence]

    def defer(self) -> None:
        """A message that somebody has is given back to wait."""
        sequence = self.rng.choice(sorted(self.holder))
        self.q.order.set_aside([sequence])
        self.q.late.add(sequence)
        del self.holder[sequence]

    def end_wait(self) -> None:
        """A delayed message is due."""
        self.q.is_due(self.rng.choice(sorted(self.q.late)))

    def leave(self) -> None:
        """A consumer leaves in order, or is lost."""
        owner = self.rng.choice((A, B, C))
        if owner in self.here and self.rng.random() < 0.4:
            self.here.discard(owner)
            self.q.order.left(owner)
            theirs = [sequence for sequence, whose in self.holder.items() if whose == owner]
            self.q.order.release(theirs)
            for sequence in theirs:
                del self.holder[sequence]
            if self.rng.random() < 0.5:
                self.q.let_go(owner)

    def step(self) -> None:
        """Something that can happen."""
        could = [self.put, self.take, self.take, self.commit, self.leave]
        could += [self.accept, self.release, self.defer] if self.holder else []
        could += [self.purge] if self.groups else []
        could += [self.end_wait] if self.q.late else []
        self.rng.choice(could)()
        assert len(self.holder) <= self.q.order.acquired <= len(self.holder) + len(self.q.late)

    def end(self) -> None:
        """All messages are due, and one consumer gets all that the others do not have."""
        q = self.q
        for sequence in sorted(q.late):
            q.is_due(sequence)
        for sequence in sorted(self.holder):
            self.remove(sequence)
        for owner in (A, B):
            q.let_go(owner)
            q.order.left(owner)
        for _ in range(100):
            for sequence in q.get(C):
                self.remove(sequence)
        assert self.groups == {}
        assert (q.order.acquired, q.order._of, q.order._aside, q.order._held, q.order._waiting) == (0, {}, {}, {}, {})


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_a_message_goes_to_the_owner_of_its_group_by_all_records_and_in_order(seed: int) -> None:
    rng = Random(seed)
    with most_groups(rng.choice((2, 5, 100))):
        model = Model(rng)
        for _ in range(300):
            model.step()
            proposed = [some for owner, some in model.q.proposed if owner]
            assert len(model.q.order.owner_of) + sum(map(len, proposed)) <= limits.MAX_GROUP_OWNERS + 1
        model.end()
