"""The messages of one queue between two brokers in memory: whether anything advances, and what a silent target lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.client import ManagementClient
from broker.core.origins import Held
from cli.drain.move import Move
from tests.broker.clients import Bench
from tests.broker.drain_bench import DRAIN
from tests.broker.route_bench import Network, Road, network


@pytest.fixture
def net() -> Iterator[Network]:
    """`a` leaves and has the queue `q` with five messages, `b` takes them."""
    with network() as made:
        made.add("a").queue("q")
        made.add("b").queue("q", arguments={"qpid.max_count": 5})
        made.send("a", "q", *range(5))
        yield made


def client(net: Network, at: str) -> ManagementClient:
    near: Bench = net.brokers[at]
    road = Road(near, near, at)
    net.roads.append(road)
    net.settle()
    return ManagementClient(near.clock, at, road.wire)


def moving(net: Network, *, commits: bool = True, counted: Held | None = None) -> Move:
    """A move that has begun. `commits`: whether the target does. `counted`: the sequences that earlier moves have counted."""
    queue = net.brokers["a"].broker.nodes.queues["q"].uuid
    assert net.ask("a", "LEAVE", "drain", to=["b:1"])[0] == 200
    _, _, answer = net.ask("b", "TAKE", "drain", drain=DRAIN, store="a", queue=queue, into="q")
    _, _, there = net.ask("b", "HELD", "drain", drain=DRAIN, queue=queue, after=0)
    net.brokers["b"].lead.automatic = commits
    held = Held().with_runs(zip(there["runs"][::2], there["runs"][1::2], strict=True))
    move = Move(client(net, "a"), client(net, "b"), queue, answer["address"], held, Held() if counted is None else counted)
    net.settle()
    return move


def state(move: Move) -> tuple[Any, ...]:
    return move.settled, move.in_flight, move.lacks_credit, move.has_advanced(), move.has_advanced()


def test_messages_that_are_sent_and_not_answered_do_not_lack_credit(net: Network) -> None:
    move = moving(net, commits=False)
    assert state(move) == (0, 5, False, True, False)
    target = net.brokers["b"].lead
    target.automatic = True
    target.commit()
    net.settle()
    assert state(move) == (5, 0, False, True, False)
    move.close()


def test_messages_that_a_full_queue_gives_no_credit_for_lack_it(net: Network) -> None:
    net.send("b", "q", *range(5))
    move = moving(net)
    assert state(move) == (0, 5, True, True, False)
    move.close()


@pytest.mark.parametrize("same", [True, False])
def test_messages_that_come_again_because_their_settlement_was_lost_are_counted_once(net: Network, same: bool) -> None:
    counted = Held()
    first = moving(net, commits=False, counted=counted)
    net.roads[-2].lose()
    target = net.brokers["b"].lead
    target.automatic = True
    target.commit()
    net.settle()
    assert (first.moved, first.known, first.ended[:15]) == (5, 0, "connection lost")
    first.close()
    again = moving(net, counted=counted if same else None)
    assert (again.moved, again.known, again.settled) == (0, 0 if same else 5, 5), "another run knows nothing of the first one"
    net.pass_time(0.04, 0.02)
    assert not net.brokers["a"].broker.departure.status()["messages"]
    again.close()
