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


def moving(net: Network, *, commits: bool = True, counted: Held | None = None, packed: bool = True) -> Move:
    """A move that has begun. `commits`: whether the target does. `counted`: the sequences that earlier moves have counted."""
    queue = net.brokers["a"].broker.nodes.queues["q"].uuid
    assert net.ask("a", "LEAVE", "drain", to=["b:1"])[0] == 200
    _, _, answer = net.ask("b", "TAKE", "drain", drain=DRAIN, store="a", queue=queue, into="q")
    _, _, there = net.ask("b", "HELD", "drain", drain=DRAIN, queue=queue, after=0)
    net.brokers["b"].lead.automatic = commits
    held = Held().with_runs(zip(there["runs"][::2], there["runs"][1::2], strict=True))
    known = Held() if counted is None else counted
    ends = client(net, "a"), client(net, "b")
    move = Move(*ends, queue, answer["address"], held, known, traits=packed, packed=packed)
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


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("size", [1, 5_000, 40_000])
def test_messages_that_a_full_queue_gives_no_credit_for_lack_it(net: Network, size: int, packed: bool) -> None:
    """Breaks when the drainer says that the target does not answer, and it only waits for room."""
    net.ask("b", "DELETE", "queue", "q")
    limits = {"qpid.max_count": 3000, "qpid.flow_stop_count": 30, "qpid.flow_resume_count": 15}
    net.brokers["b"].queue("q", arguments=limits)
    net.send("a", "q", *("x" * size for _ in range(1300)))
    move = moving(net, packed=packed)
    net.pass_time(0.04, 0.02)
    assert (move.in_flight > 0, move.ended, move.lacks_credit) == (True, "", True)
    move.close()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_messages_that_come_again_because_their_settlement_was_lost_are_counted_once(
    net: Network, same: bool, packed: bool
) -> None:
    """`packed`: false with a broker of an earlier release."""
    counted = Held()
    first = moving(net, commits=False, counted=counted, packed=packed)
    net.roads[-2].lose()
    target = net.brokers["b"].lead
    target.automatic = True
    target.commit()
    net.settle()
    assert (first.moved, first.known, first.ended[:15]) == (5, 0, "connection lost")
    first.close()
    again = moving(net, counted=counted if same else None, packed=packed)
    assert (again.moved, again.known, again.settled) == (0, 0 if same else 5, 5), "another run knows nothing of the first one"
    net.pass_time(0.04, 0.02)
    assert not net.brokers["a"].broker.departure.status()["messages"]
    again.close()


def roomy(net: Network) -> None:
    """Let the target's queue take any number of messages."""
    net.ask("b", "DELETE", "queue", "q")
    net.brokers["b"].queue("q")
    net.settle()


SIZES = [0, 10, 20_000, 40_000, 300_000, 2_000_000, 100, 70_000, 5]


def test_consecutive_messages_come_in_packs_and_in_order(net: Network) -> None:
    """Breaks when a drain costs the protocol engine a delivery for each message, or large messages overtake."""
    roomy(net)
    net.send("a", "q", *("x" * size for size in SIZES), *map(str, range(1000)))
    move = moving(net)
    net.pass_time(0.04, 0.02)
    assert (move.moved, move.in_flight, move.ended) == (5 + len(SIZES) + 1000, 0, "")
    assert move._out is not None
    assert move._out._next_tag <= 40
    move.close()
    sizes = [len(each) for each in net.bodies("b", "q")[5 : 5 + len(SIZES)]]
    assert sizes == SIZES
    assert net.bodies("b", "q")[5 + len(SIZES) :] == list(map(str, range(1000)))
    assert net.brokers["a"].depth("q") == 0


def test_messages_that_the_target_does_not_take_keep_no_other_of_their_pack(net: Network) -> None:
    """Breaks when the messages beside a refused one stay at the source, although the target has them."""
    net.add("b", max_message_bytes=2000).queue("q")
    net.send("a", "q", *(("x" * 5000 if at % 20 == 7 else str(at)) for at in range(100)))
    move = moving(net)
    net.pass_time(0.04, 0.02)
    assert (move.moved, len(move.refused), move.in_flight) == (100, 5, 0)
    assert net.brokers["a"].broker.departure.status()["messages"] == 5
    move.close()
    net.settle()
    left = net.brokers["a"].broker.departure.status()
    assert (left["messages"], left["unsettled"]) == (5, 0)
    assert net.bodies("b", "q") == [0, 1, 2, 3, 4, *(str(at) for at in range(100) if at % 20 != 7)]


def test_a_queue_that_becomes_full_within_a_pack_takes_what_fits_and_the_rest_later(net: Network) -> None:
    """Breaks when the messages of a pack that was taken in part come twice, or never."""
    net.send("a", "q", *range(5, 24))
    taking = net.brokers["b"].client()
    link = taking.receiver("q", credit=100)
    moved = 0
    for _ in range(9):
        move = moving(net)
        net.pass_time(0.04, 0.02)
        moved += move.moved + move.known
        move.close()
        net.settle()
    assert taking.bodies(link) == list(range(24))
    assert moved == 24, "a message that the target had is told once"
    assert not net.brokers["a"].broker.departure.status()["messages"]
