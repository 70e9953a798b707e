"""The log against a deliberately dumb one: a list of entries from the base on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.core.log import Log
from ha.core.membership import Membership
from ha.core.messages import Entry

ONE = Membership.of("a")
ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 2), st.integers(0, 500)),
    st.tuples(st.just("members"), st.integers(0, 2), st.integers(1, 5)),
    st.tuples(st.just("truncate"), st.integers(1, 40), st.just(0)),
    st.tuples(st.just("compact"), st.integers(0, 40), st.just(0)),
    st.tuples(st.just("restore"), st.integers(1, 3), st.integers(1, 5)),
)


class DumbLog:
    """What `Log` does, by looking at every entry each time."""

    def __init__(self) -> None:
        self.entries = [Entry(0, 0, 0, ONE)]
        self.all_members = {0: ONE}

    def members_at(self, index: int) -> Membership:
        return self.all_members[max(at for at in self.all_members if at <= max(index, min(self.all_members)))]

    def apply(self, log: Log, action: tuple[str, int, int]) -> None:
        match action:
            case ("append" | "members", step, size):
                last = self.entries[-1]
                members = Membership.of("abcde"[:size]) if action[0] == "members" else None
                entry = Entry(last.index + 1, last.epoch + step // 2, size, members, size % 7)
                self.entries.append(entry)
                log.append(entry)
                if members:
                    self.all_members[entry.index] = members
            case ("truncate", index, _) if self.entries[0].index < index <= self.entries[-1].index:
                self.entries = [entry for entry in self.entries if entry.index < index]
                self.all_members = {at: members for at, members in self.all_members.items() if at < index}
                log.truncate(index)
            case ("compact", first, _):
                log.compact(first)
                base = min(max(first - 1, self.entries[0].index), self.entries[-1].index)
                at_base = self.members_at(base)
                self.entries = [entry for entry in self.entries if entry.index >= base]
                self.all_members = {at: members for at, members in self.all_members.items() if at > base} | {base: at_base}
            case ("restore", further, size):
                last = self.entries[-1]
                members = Membership.of("abcde"[:size])
                self.entries = [Entry(last.index + further, last.epoch + 1, 0, members)]
                self.all_members = {last.index + further: members}
                log.restore(last.index + further, last.epoch + 1, members)


@given(st.lists(ACTIONS, max_size=40), st.integers(-1, 45), st.integers(0, 45), st.integers(0, 1200))
def test_a_log_says_what_a_plain_list_of_entries_says(
    actions: list[tuple[str, int, int]], one: int, other: int, size: int
) -> None:
    """A wrong epoch breaks log matching, a wrong membership quorums, a wrong size flow control and lag."""
    log, dumb = Log(ONE), DumbLog()
    for action in actions:
        dumb.apply(log, action)
    entries = dumb.entries
    base, last = entries[0].index, entries[-1].index
    assert (log.base_index, log.first_index, log.last_index, log.last_epoch) == (base, base + 1, last, entries[-1].epoch)
    assert log.epoch_at(one) == next((entry.epoch for entry in entries if entry.index == one), None)
    assert log.members == dumb.members_at(last)
    assert log.members_index == max(dumb.all_members)
    assert log.members_at(max(one, base)) == dumb.members_at(max(one, base))
    after, through = min(one, other), min(max(one, other), last)
    between = [entry for entry in entries[1:] if after < entry.index <= through]
    assert log.bytes_between(after, through) == sum(entry.nbytes for entry in between)
    assert log.records_between(after, through) == sum(entry.n_records for entry in between)
    agreed = [entry.index for entry in entries if entry.index <= one and entry.epoch <= other]
    if agreed:
        assert log.agreement(one, other) == max(agreed)
    else:
        assert log.agreement(one, other) < base
    if base <= one < last:
        within = log.last_within(one, size)
        assert within >= one + 1
        assert within == one + 1 or log.bytes_between(one, within) <= size
        assert within == last or log.bytes_between(one, within + 1) > size


def test_what_cannot_follow_is_our_own_bug() -> None:
    """A gap, a step back in epochs, or a truncation outside the log would corrupt everything after it without a sound."""
    log = Log(ONE, 5, 2)
    with pytest.raises(AssertionError, match="entry 7 cannot follow entry 5"):
        log.append(Entry(7, 2, 1))
    with pytest.raises(AssertionError, match="epoch 1 cannot follow epoch 2"):
        log.append(Entry(6, 1, 1))
    with pytest.raises(AssertionError, match=r"not in 6\.\.5"):
        log.truncate(5)


def test_what_was_committed_between_two_looks_is_known_though_the_log_was_compacted_meanwhile() -> None:
    """Breaks when a compaction makes the throughput look like nothing, or as if it had gone backwards."""
    log = Log(ONE)
    for index in range(1, 11):
        log.append(Entry(index, 1, 100, None, 3))
    before = log.totals_at(6)
    log.compact(9)
    after = log.totals_at(10)
    assert (after[0] - before[0], after[1] - before[1]) == (12, 400)
    assert log.totals_at(2) == log.totals_at(8), "no further back than there is a log"
