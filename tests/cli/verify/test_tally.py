"""Sets of numbers against Python's own, and counts against Counter's."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from cli.verify.core.tally import CHUNK, MOST_TIMES, Numbers, Tally

FIRSTS = st.one_of(st.integers(0, 40), st.integers(CHUNK - 20, CHUNK + 20), st.integers(3 * CHUNK - 5, 3 * CHUNK + 5))
RUNS = st.lists(st.tuples(FIRSTS, st.one_of(st.integers(0, 30), st.just(CHUNK + 1))), max_size=6)


def members(runs: list[tuple[int, int]]) -> Iterator[int]:
    """Every number of the runs, as often as it is in them."""
    return chain.from_iterable(range(first, first + count) for first, count in runs)


def numbers(runs: list[tuple[int, int]]) -> Numbers:
    made = Numbers()
    for first, count in runs:
        made.add(first, count)
    return made


def tally(runs: list[tuple[int, int]]) -> Tally:
    made = Tally()
    for first, count in runs:
        made.add(first, count)
    return made


@given(RUNS, RUNS)
def test_a_set_of_numbers_is_like_any_other_set(mine: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> None:
    one, other, mine_set, their_set = numbers(mine), numbers(theirs), set(members(mine)), set(members(theirs))
    assert len(one) == len(mine_set)
    assert one.first(10) == sorted(mine_set)[:10]
    for made, wanted in (
        (one - other, mine_set - their_set),
        (one & other, mine_set & their_set),
        (one | other, mine_set | their_set),
    ):
        assert made.first(20) == sorted(wanted)[:20]
        assert len(made) == len(wanted)
    for number in (0, 7, CHUNK - 1, CHUNK, 2 * CHUNK, 3 * CHUNK + 4):
        assert (number in one) == (number in mine_set)


@given(RUNS, RUNS)
def test_a_tally_counts_like_a_counter(seen: list[tuple[int, int]], allowed: list[tuple[int, int]]) -> None:
    counts, limit = Counter(members(seen)), Counter(members(allowed))
    counted, how_many = tally(seen), Counter(counts.values())
    for times in (1, 2, 3):
        assert len(counted.at_least(times)) == sum(each for count, each in how_many.items() if count >= times)
    assert counted.repeats() == counts.total() - len(counts)
    over = sum(max(count - 1 - limit[number], 0) for number, count in counts.items() if count > 1)
    assert counted.repeats_not_in(tally(allowed)) == over


def test_a_number_that_is_seen_without_end_is_counted_without_end_in_bounded_memory() -> None:
    counted = Tally()
    for _ in range(3 * MOST_TIMES):
        counted.add(5)
    assert counted.repeats() == 3 * MOST_TIMES - 1
    assert counted.repeats_not_in(Tally()) == 3 * MOST_TIMES - 1
    assert len(counted.at_least(MOST_TIMES + 1)) == 0


def test_a_hundred_million_numbers_without_a_gap_take_no_room_to_speak_of() -> None:
    made = Numbers()
    made.add(0, 100_000_000)
    assert len(made) == 100_000_000
    assert sys.getsizeof(made._chunks) + sum(map(sys.getsizeof, set(made._chunks.values()))) < 500_000


def test_with_holes_everywhere_a_number_takes_little_more_than_a_bit() -> None:
    made, count = Numbers(), 3 * CHUNK
    for number in range(0, count, 2):
        made.add(number)
    assert sum(map(sys.getsizeof, made._chunks.values())) < count / 8 * 1.2
