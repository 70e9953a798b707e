"""The cache of recent batches, against a plain dictionary."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.batch_cache import BatchCache

ACTIONS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 40)),
    st.tuples(st.just("truncate"), st.integers(1, 30)),
    st.tuples(st.just("trim"), st.integers(1, 30)),
    st.tuples(st.just("clear"), st.integers(1, 30)),
)


@given(st.lists(ACTIONS, max_size=40), st.integers(0, 30), st.integers(0, 30))
def test_a_cache_holds_what_a_dictionary_would(actions: list[tuple[str, int]], first: int, last: int) -> None:
    """A batch under a wrong index would be sent, and stored, as another one."""
    cache, plain, following = BatchCache(1, max_bytes=60, least_bytes=20), dict[int, bytes](), 1
    for name, number in actions:
        match name:
            case "put":
                plain[following] = bytes(number)
                cache.put(following, plain[following])
                following += 1
            case "truncate" if number <= following:
                cache.truncate(number)
                plain = {index: batch for index, batch in plain.items() if index < number}
                following = number
            case "trim":
                wanted = number // 2
                cache.trim(number, wanted)
                for index in sorted(plain):
                    nbytes = sum(map(len, plain.values()))
                    if (index < number and nbytes > 60) or (index < wanted and nbytes > 20):
                        del plain[index]
            case "clear":
                cache.clear(number)
                plain, following = {}, number
    assert cache.nbytes == sum(map(len, plain.values()))
    assert [index for index in range(60) if index in cache] == sorted(plain)
    assert all(cache.span(index, index) == [batch] for index, batch in plain.items())
    asked = range(first, last + 1)
    if first <= last:
        held = all(index in plain for index in asked)
        assert cache.span(first, last) == ([plain[index] for index in asked] if held else None)
        there = list(takewhile(plain.__contains__, asked))
        some = cache.some(first, last, 50)
        assert some == [plain[index] for index in there[: len(some)]]
        assert len(some) == len(there) or sum(map(len, some[:-1])) < 50 <= sum(map(len, some)), "as many as make that size"


def test_a_gap_is_our_own_bug() -> None:
    """It would shift every batch after it."""
    with pytest.raises(AssertionError, match="batch 3 put after 0"):
        BatchCache(1).put(3, b"")
