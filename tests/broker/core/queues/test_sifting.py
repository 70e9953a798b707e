"""What is taken out of lots, against a list."""

from __future__ import annotations

from array import array
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from broker.core.queues.blocks import Block, Lot
from broker.core.queues.sifting import removed, without


def lots_of(sizes: list[int]) -> list[Lot]:
    found, first = [], 1
    for size in sizes:
        block = Block(first)
        block.add_run(array("I", [1] * size), size, 0, 0)
        found.append(Lot(block, 0, size, bytes(size), 0))
        first += size + 3
    return found


def sequences(lots: list[Lot]) -> list[int]:
    return list(chain.from_iterable(range(lot.first_seq, lot.first_seq + lot.n_messages) for lot in lots))


@given(st.lists(st.integers(1, 6), max_size=4), st.sets(st.integers(1, 30)))
def test_what_is_left_is_everything_else_in_its_order(sizes: list[int], unfit: set[int]) -> None:
    lots = lots_of(sizes)
    left = without(lots, unfit.__contains__)
    assert sequences(left) == [each for each in sequences(lots) if each not in unfit]
    assert all(lot.n_messages for lot in left)
    assert list(removed(lots, left)) == [each for each in sequences(lots) if each in unfit]


def test_lots_that_may_go_out_whole_are_the_same_objects() -> None:
    lots = lots_of([3, 2])
    assert [a is b for a, b in zip(without(lots, lambda _: False), lots, strict=True)] == [True, True]
