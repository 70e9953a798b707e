"""Times by sequence, against a dictionary."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.queues.times import CHUNK, OVER, Times

LANE = 3 << 56


def column(*times: int) -> array[int]:
    return array("Q", times)


class Model:
    """A dictionary that is looked through whole."""

    def __init__(self) -> None:
        self.times: dict[int, int] = {}
        self.taken: set[int] = set()
        self.later: dict[int, int] = {}

    def due(self, now_ms: int) -> set[int]:
        return {
            each
            for each, when_ms in self.times.items()
            if when_ms <= now_ms and each not in self.taken and self.later.get(each, 0) <= now_ms
        }


sequences = st.one_of(st.integers(1, 40), st.integers(CHUNK - 5, CHUNK + 5), st.integers(LANE + 1, LANE + 20))
steps = st.one_of(
    st.tuples(st.just("put"), sequences, st.lists(st.integers(0, 30), min_size=1, max_size=12)),
    st.tuples(st.just("removed"), sequences, st.integers(1, 3 * CHUNK)),
    st.tuples(st.just("take"), st.integers(0, 30), st.just(1 << 30)),
    st.tuples(st.just("claim"), sequences, st.none()),
    st.tuples(st.just("rewind"), st.none(), st.none()),
    st.tuples(st.just("rewind after"), st.integers(0, 30), st.none()),
)


@settings(max_examples=200)
@given(st.lists(steps, max_size=25))
def test_times_do_what_a_dictionary_does(plan: list[tuple[str, Any, Any]]) -> None:
    times, model = Times(), Model()
    for what, first, more in plan:
        match what:
            case "put":
                times.put(first, column(*more))
                for each, when_ms in enumerate(more, first):
                    if when_ms:
                        model.times[each] = when_ms
                        if when_ms != OVER:
                            model.taken.discard(each)
            case "removed":
                times.removed(first, more)
                for each in [each for each in model.times if first <= each < first + more]:
                    del model.times[each]
                    model.taken.discard(each)
            case "take":
                assert set(times.take(first, more)) == model.due(first)
                model.taken |= model.due(first)
            case "claim":
                assert times.claim(first) == (first in model.times and first not in model.taken)
                model.taken |= {first} & set(model.times)
            case "rewind after":
                times.rewind_after(first)
                model.taken -= {each for each in model.taken if model.times[each] > first}
            case _:
                times.rewind()
                model.taken.clear()
        assert len(times) == len(model.times)
        assert times.waiting == len(model.times) - len(model.taken)
        left = [when_ms for each, when_ms in model.times.items() if each not in model.taken]
        assert (times.next_ms is None) <= (not left)
        assert times.next_ms is None or not left or times.next_ms <= min(left)
        for each in {*range(1, 60), *range(CHUNK - 8, CHUNK + 20), *range(LANE, LANE + 40)}:
            assert times.at(each) == model.times.get(each, 0)
            assert times.is_waiting(each) == (each in model.times and each not in model.taken)
            assert times.any_of(each, 1) or each not in model.times
        copied = {first + at: when for first, its in times.columns() for at, when in enumerate(its) if when}
        assert copied == model.times


def test_about_as_many_are_taken_as_were_asked_for_and_the_rest_later() -> None:
    times = Times()
    times.put(1, column(*([5] * (4 * CHUNK))))
    found = times.take(5, 10)
    assert 10 <= len(found) <= CHUNK
    while more := times.take(5, 10):
        found += more
    assert sorted(found) == list(range(1, 4 * CHUNK + 1))
    assert times.next_ms is None


def test_what_is_put_again_is_taken_at_its_new_time_and_not_before() -> None:
    times = Times()
    times.put(1, column(5, 6, 90))
    assert times.take(10, 100) == [1, 2]
    times.again([2, 77, CHUNK * 9], 50)
    assert (times.take(49, 100), times.next_ms, times.waiting) == ([], 50, 2)
    assert times.take(50, 100) == [2]
    times.again([1], 95)
    assert times.take(100, 100) == [1, 3]


def test_a_time_is_claimed_once_and_only_where_there_is_one() -> None:
    times = Times()
    times.put(1, column(5, 0))
    assert [times.claim(each) for each in (1, 1, 2, CHUNK * 2)] == [True, False, False, False]
    assert (times.waiting, times.take(9, 100)) == (0, [])


def test_nothing_is_kept_of_a_stretch_in_which_nobody_has_a_time() -> None:
    times = Times()
    times.put(1, column(*([0] * (5 * CHUNK))))
    assert (len(times), times._chunks) == (0, {})


def test_a_time_that_is_over_ends_a_wait_and_lets_nothing_be_taken_twice() -> None:
    times = Times()
    times.put(1, column(5, 90))
    assert times.take(10, 100) == [1]
    times.put(1, column(OVER, OVER))
    assert times.take(10, 100) == [2]
    times.put(1, column(OVER, 20))
    assert (times.take(19, 100), times.take(20, 100)) == ([], [2])


def test_only_later_times_are_rewound_when_they_are_to_wait_again() -> None:
    times = Times()
    times.put(1, column(5, 60, 50))
    times.put(CHUNK * 3, column(7))
    assert times.take(90, 100) == [1, 2, 3, CHUNK * 3]
    times.rewind_after(7)
    assert (times.waiting, times.next_ms, times.take(55, 100), times.take(60, 100)) == (2, 50, [3], [2])
