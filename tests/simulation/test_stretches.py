"""Runs with gaps: a repeated message has already left, and is between the others."""

from __future__ import annotations

import pytest

from broker.sessions.ledger import Ledger
from tests.broker.clients import bench
from tests.simulation.stretches import MOST, between, repeated


@pytest.mark.parametrize(
    "sequences, gone, added",
    [
        ((), {2, 3}, []),
        ((5,), {4, 6}, []),
        ((5, 2), {3, 4}, [3, 4]),
        ((2, 5, 7), {3, 6}, [6]),
        ((2, 3, 2), {2, 3}, []),
        ((1, MOST + 2), set(range(MOST + 3)), list(range(2, MOST + 2))),
        ((1, MOST + 3), set(range(MOST + 4)), []),
    ],
)
def test_what_lies_between_two_messages_is_added_when_all_of_it_is_gone(
    sequences: tuple[int, ...], gone: set[int], added: list[int]
) -> None:
    assert between(sequences, gone.__contains__) == added


def test_a_broker_repeats_itself_while_that_lasts_and_its_queue_is_none_the_worse() -> None:
    before = dict(vars(Ledger))
    with bench(clustered=True) as b:
        b.queue("q", replicate="all")
        node = b.broker.nodes.queues["q"]
        client = b.client()
        client.send(client.sender("q"), *(f"m{number}" for number in range(1, 6)))
        assert node.messages is not None
        ledger, number = b.broker.logs.ledger_of(node), node.messages.number
        ledger.dequeue(number, [3])
        b.pass_time(1)
        with repeated(lambda ledger, number, sequence: sequence == 3):
            ledger.dequeue(number, [2, 4])
            assert sorted(ledger.pending.builder.dequeues_for(number)) == [2, 3, 4]
            ledger.count(number, 1)
            ledger.count(number, 5)
            assert sorted(ledger.pending.builder._counts[number]) == [1, 5]
            b.pass_time(1)
            assert b.depth("q") == 2
    assert dict(vars(Ledger)) == before
