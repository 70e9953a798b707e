"""Dead letters that cannot leave: who is tried again, and what they cost."""

from __future__ import annotations

import tracemalloc

import hypothesis.strategies as st
from hypothesis import given

from broker.core.letters import DELIVERY_LIMIT, EXPIRED, REJECTED
from broker.sessions.kept_letters import KeptLetters


def test_they_are_tried_again_in_turn() -> None:
    kept = KeptLetters()
    assert (bool(kept), kept.take(3)) == (False, {})
    for sequence, reason in ((1, EXPIRED), (2, REJECTED), (3, EXPIRED), (7, DELIVERY_LIMIT)):
        kept.add(sequence, reason)
    tried = []
    for _ in range(3):
        some = kept.take(3)
        tried.append(list(some.items()))
        for sequence, reason in some.items():
            kept.add(sequence, reason)
    assert tried[0] == [(1, EXPIRED), (2, REJECTED), (3, EXPIRED)]
    assert tried[1] == [(7, DELIVERY_LIMIT), (1, EXPIRED), (2, REJECTED)]
    assert tried[2] == [(3, EXPIRED), (7, DELIVERY_LIMIT), (1, EXPIRED)]


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([EXPIRED, REJECTED])), unique_by=lambda each: each[0]), st.data())
def test_each_is_taken_once_and_what_is_forgotten_is_not(letters: list[tuple[int, str]], data: st.DataObject) -> None:
    kept, there = KeptLetters(), dict(letters)
    for sequence, reason in letters:
        kept.add(sequence, reason)
    for sequence in data.draw(st.lists(st.integers(1, 40), max_size=5)):
        kept.forget(sequence)
        there.pop(sequence, None)
    assert {each for each in range(50) if each in kept} == there.keys()
    for reason in (EXPIRED, REJECTED):
        found = [each for first, count in kept.runs(reason) for each in range(first, first + count)]
        assert found == sorted(each for each, why in there.items() if why == reason)
    taken = kept.take(data.draw(st.integers(1, 50)))
    assert kept.count == len(there) - len(taken)
    rest = kept.take(50)
    assert taken | rest == there
    assert not (taken.keys() & rest.keys())
    assert not kept


def test_a_hundred_thousand_of_them_take_next_to_no_memory() -> None:
    """Breaks when a queue whose messages all expire, and can be put nowhere, costs a hundred bytes for each of them."""
    tracemalloc.start()
    try:
        kept = KeptLetters()
        for sequence in range(1, 100_001):
            kept.add(sequence, EXPIRED)
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()
