"""A queue's lag may be rounded up, and never down."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.core.queue_lag import MAX_MARKS, Marks, Standstill, Totals, totals

had = st.lists(st.integers(min_value=0, max_value=5), min_size=1, max_size=120)
"""How many records one queue had in each batch."""


def marked(records: list[int], every: int) -> tuple[Marks, Totals]:
    """Marks taken after every so many batches, and the totals at the end; the queue's number is 4."""
    sums = list(accumulate(records, initial=0))
    marks = Marks()
    for index in range(1, len(records) + 1):
        if index % every == 0:
            marks.add(totals(index, float(index), (4,), [sums[index]], [10 * sums[index]]))
    return marks, totals(len(records), float(len(records)), (4,), [sums[-1]], [10 * sums[-1]])


@given(had, st.integers(min_value=1, max_value=7), st.integers(min_value=0, max_value=120))
def test_what_a_backup_lacks_is_never_understated_and_overstated_by_less_than_a_mark_where_none_was_thinned_out(
    records: list[int], every: int, acked: int
) -> None:
    acked = min(acked, len(records))
    marks, now = marked(records, every)
    (lacks,), (nbytes,) = now.since(marks.acknowledged(acked))
    assert lacks >= sum(records[acked:])
    assert nbytes == 10 * lacks
    if len(records) // every < MAX_MARKS:
        assert lacks <= sum(records[acked - acked % every :])


def test_many_marks_become_few_dense_at_the_end_and_sparse_at_the_beginning() -> None:
    """Breaks when the newest marks are dropped, or the one that says that nothing is acknowledged."""
    marks, now = marked([1] * 5000, 1)
    assert now.since(marks.acknowledged(0))[0] == [5000]
    lacking = [now.since(marks.acknowledged(5000 - age))[0][0] for age in (0, 1, 2, 100, 2000)]
    assert lacking[:2] == [0, 1]
    assert lacking[2] <= 4
    assert 100 <= lacking[3] <= 400
    assert 2000 <= lacking[4] <= 5000


def test_a_queue_that_was_made_meanwhile_lacks_all_that_it_has_had_and_one_that_was_deleted_is_not_spoken_of() -> None:
    before = totals(10, 1.0, (1, 2), [7, 8], [70, 80])
    now = totals(20, 2.0, (2, 3), [9, 5], [90, 50])
    assert now.since(before) == ([1, 5], [10, 50])


def test_marks_come_in_order() -> None:
    marks, _ = marked([1] * 3, 1)
    assert marks.newest is not None
    assert marks.newest.index == 3
    assert Marks().newest is None
    with pytest.raises(AssertionError, match="mark 2 comes after 3"):
        marks.add(totals(2, 9.0, (), [], []))


def test_stall_is_how_long_the_acknowledged_index_stood_still_while_something_waited() -> None:
    standing = Standstill()
    assert standing.stalls_ms(5, 10.0, [None]) == {None: 0}
    assert standing.stalls_ms(5, 12.5, [None, "q"]) == {None: 2500, "q": 2500}, "since the last look, at the longest"
    assert standing.stalls_ms(6, 13.0, [None]) == {None: 0}, "it moved"
    assert standing.stalls_ms(6, 14.0, []) == {}, "nothing waits"
    assert standing.stalls_ms(6, 15.0, [None]) == {None: 1000}, "counted from when the waiting began"
