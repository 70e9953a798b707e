"""The messages of a move in columns: against a plain reference with one entry for each message."""

from __future__ import annotations

from itertools import pairwise

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.drain.in_flight import InFlight
from cli.drain.move import _runs


def filled(here: InFlight, first: int, first_id: int, sizes: list[int]) -> list[bytes]:
    """Add a run, whose messages and traits all differ. Returns the messages."""
    messages = [bytes([(first + at) % 251]) * size for at, size in enumerate(sizes)]
    assert here.add(first, first_id, messages, [f"{first + at:20}".encode() for at in range(len(sizes))])
    return messages


def sent(here: InFlight, most: int, largest: int = 1000) -> list[tuple[int, list[bytes]]]:
    """All that waits, part by part: the first sequence and the messages of each."""
    parts = []
    while (part := here.next_part(most, largest)) is not None:
        base = -part.ends[part.start]
        ends = part.ends
        parts.append((part.sequence, [part.data[base + ends[at] : base + ends[at + 1]] for at in range(part.start, part.stop)]))
        assert part.nbytes == len(part.data)
    return parts


def test_messages_are_sent_in_the_order_of_arrival_whatever_their_sequences_are() -> None:
    here = InFlight()
    late, early = filled(here, 100, 0, [3, 1]), filled(here, 7, 2, [2])
    assert sent(here, 10) == [(100, late), (7, early)]


def test_a_part_has_as_many_messages_as_the_credit_allows() -> None:
    here = InFlight()
    messages = filled(here, 5, 0, [1, 2, 3, 4, 5])
    assert sent(here, 2) == [(5, messages[:2]), (7, messages[2:4]), (9, messages[4:])]


def test_a_message_above_the_targets_limit_comes_alone_and_the_others_are_not_held_up() -> None:
    here = InFlight()
    messages = filled(here, 1, 0, [5, 11, 12, 5, 5])
    assert sent(here, 10, largest=10) == [(1, messages[:1]), (2, messages[1:2]), (3, messages[2:3]), (4, messages[3:])]


def test_traits_are_those_of_the_message() -> None:
    here = InFlight()
    filled(here, 50, 0, [1, 1, 1])
    filled(here, 10, 3, [1, 1])
    assert here.traits(51, 2) == [f"{51:20}".encode(), f"{52:20}".encode()]
    assert here.traits(10, 1) == [f"{10:20}".encode()]


def test_what_leaves_across_runs_is_named_by_its_deliveries_and_counted_once() -> None:
    here = InFlight()
    first = filled(here, 1, 40, [10, 20])
    second = filled(here, 3, 90, [30, 40])
    gone = here.leave(range(2, 4))
    assert gone == ([(41, 1), (90, 1)], 50, google_crc32c.value(first[1]) + google_crc32c.value(second[0]))
    assert (here.count, here.nbytes) == (2, 50)


@pytest.mark.parametrize("first, count", [(9, 2), (11, 1), (12, 5), (8, 9)])
def test_a_sequence_that_is_here_already_is_refused_and_changes_nothing(first: int, count: int) -> None:
    here = InFlight()
    filled(here, 10, 0, [1, 1, 1])
    assert not here.add(first, 3, [b"x"] * count, [b""] * count)
    assert (here.count, here.nbytes) == (3, 3)
    assert here.leave(range(10, 13)).deliveries == [(0, 3)]
    assert here.add(first, 3, [b"x"] * count, [b""] * count), "they have left"


@given(st.data())
def test_whatever_order_messages_leave_in_it_is_as_if_each_had_an_entry(data: st.DataObject) -> None:
    here, entries, next_id, next_first = InFlight(), dict[int, tuple[int, bytes]](), 0, 0
    for _ in range(data.draw(st.integers(1, 4))):
        next_first += data.draw(st.integers(0, 2))
        sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
        for at, message in enumerate(filled(here, next_first, next_id, sizes)):
            entries[next_first + at] = next_id + at, message
        next_first, next_id = next_first + len(sizes), next_id + len(sizes)
        assert b"".join(each for _, part in sent(here, 3) for each in part) == b"".join(
            entries[sequence][1] for sequence in range(next_first - len(sizes), next_first)
        )
        for sequence in data.draw(st.permutations(sorted(entries)))[: data.draw(st.integers(0, len(entries)))]:
            delivery_id, message = entries.pop(sequence)
            gone = here.leave(range(sequence, sequence + 1))
            assert gone == ([(delivery_id, 1)], len(message), google_crc32c.value(message))
        assert (here.count, here.nbytes) == (len(entries), sum(len(message) for _, message in entries.values()))


@given(st.lists(st.integers(0, 9), max_size=12))
def test_stretches_of_consecutive_sequences_are_found_in_any_order(sequences: list[int]) -> None:
    found = list(_runs(tuple(sequences)))
    assert [at for start, stop in found for at in range(start, stop)] == list(range(len(sequences)))
    for start, stop in found:
        assert sequences[start:stop] == list(range(sequences[start], sequences[start] + stop - start))
    for (_, stop), _ in pairwise(found):
        assert sequences[stop] != sequences[stop - 1] + 1
