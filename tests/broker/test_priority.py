"""Priority queues as clients see them: the highest level first, the order of sending within one, on every broker."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import limits
from tests.broker.clients import Bench, Client, bench

SENT = [(f"{priority}-{n}", priority) for n in range(3) for priority in (4, 0, 9, 5, 1)]


def wanted(levels: int = 10) -> list[str]:
    """What is to come out: by level, then as it was sent."""
    first = 5 - (levels + 1) // 2
    return [body for body, _ in sorted(SENT, key=lambda sent: -min(max(sent[1] - first, 0), levels - 1))]


def send(client: Client, queue: str = "q") -> None:
    producer = client.sender(queue)
    for body, priority in SENT:
        client.send(producer, body, priority=priority)


def levels_of(client: Client) -> Any:
    return client.request("QUERY", "queue", "q")[2]["items"][0]["levels"]


@pytest.mark.parametrize("memory", [0, 1 << 30])
@pytest.mark.parametrize(
    "argument, value, levels", [("qpid.priorities", 10, 10), ("qpid.priorities", 3, 3), ("x-qpid-priorities", 3, 3)]
)
def test_the_highest_level_comes_first_and_within_one_the_order_is_kept(
    argument: str, value: int, levels: int, memory: int
) -> None:
    with bench(message_memory=memory) as b:
        b.queue("q", arguments={argument: value})
        client = b.client()
        send(client)
        assert client.bodies(client.receiver("q")) == wanted(levels)
        b.pass_time(1)
        assert b.depth("q") == 0


@pytest.mark.parametrize(
    "highest, order", [(3, [3, 9, 2, 1, 0, None]), (5, [5, 9, None, 3, 2, 1, 0]), (9, [9, 5, None, 3, 2, 1, 0])]
)
def test_rabbitmqs_name_has_a_level_for_each_priority_up_to_the_highest(highest: int, order: list[int | None]) -> None:
    with bench() as b:
        b.queue("q", arguments={"x-max-priority": highest})
        client = b.client()
        producer = client.sender("q")
        for priority in (0, None, 1, 2, 3, *((5,) if highest > 3 else ()), 9):
            client.send(producer, priority, **({} if priority is None else {"priority": priority}))
        assert client.bodies(client.receiver("q")) == order


def test_a_browser_sees_the_same_order_and_takes_nothing() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.priorities": 10})
        client = b.client()
        send(client)
        assert client.bodies(client.receiver("q", browse=True)) == wanted()
        assert b.depth("q") == len(SENT)


def test_what_comes_back_goes_before_younger_messages_of_its_level_and_before_lower_levels() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.priorities": 10})
        client = b.client()
        client.auto_accept = False
        send(client)
        receiver = client.receiver("q", credit=4)
        assert client.bodies(receiver) == wanted()[:4]
        receiver.close()
        b.settle()
        client.send(client.sender("q"), "younger", priority=9)
        client.auto_accept = True
        assert client.bodies(client.receiver("q", name="again")) == [*wanted()[:3], "younger", *wanted()[3:]]


def order_after(other: Bench) -> list[str]:
    client = other.client()
    return [str(body) for body in client.bodies(client.receiver("q"))]


def test_another_primary_gives_them_out_in_the_same_order() -> None:
    """The sequence says the level: a backup reads no message to know it."""
    with bench(clustered=True) as b, bench(clustered=True, state="ready") as other:
        b.upgraded()
        b.queue("q", replicate="all", arguments={"qpid.priorities": 10})
        send(b.client())
        b.lead.replayed_into(other.lead)
        other.lead.become("active")
        assert order_after(other) == wanted()


def test_a_queue_of_level_configuration_has_its_levels_in_the_local_log() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        b.queue("q", replicate="configuration", arguments={"qpid.priorities": 10})
        b.pass_time(1)
        client = b.client()
        send(client)
        assert client.bodies(client.receiver("q")) == wanted()


def test_limits_count_all_levels() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.priorities": 10, "qpid.max_count": 3})
        client = b.client()
        send(client)
        assert b.depth("q") == 3


def test_management_says_how_many_messages_each_level_has() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.priorities": 10})
        client = b.client()
        send(client)
        assert levels_of(client) == [3, 3, 0, 0, 3, 3, 0, 0, 0, 3]


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"qpid.priorities": 0}, "queue 'q': qpid.priorities is 0: it must be a number from 1 to 256"),
        ({"x-qpid-priorities": True}, "queue 'q': x-qpid-priorities is True: it must be a number from 1 to 256"),
        ({"x-max-priority": 256}, "queue 'q': x-max-priority is 256: it must be a number from 0 to 255"),
    ],
)
def test_levels_that_cannot_be_are_refused(arguments: dict[str, Any], text: str) -> None:
    with bench() as b:
        status, said, _ = b.client().request("CREATE", "queue", "q", {"arguments": arguments})
        assert (status, said) == (400, text)


FAIR = {"qpid.priorities": 3, "qpid.fairshare": 2, "qpid.fairshare-0": 1}


def send_fair(client: Client) -> None:
    """Four messages of each of three levels: the lowest is for priorities up to 3."""
    producer = client.sender("q")
    for n in range(4):
        for priority in (3, 4, 5):
            client.send(producer, f"{priority - 3}-{n}", priority=priority)


FAIR_ORDER = "2-0 2-1 1-0 1-1 0-0 2-2 2-3 1-2 1-3 0-1 0-2 0-3"


@pytest.mark.parametrize("memory", [0, 1 << 30])
@pytest.mark.parametrize("credit", [1, 100])
def test_a_level_that_has_had_its_share_lets_the_next_one_have_its_turn(memory: int, credit: int) -> None:
    with bench(message_memory=memory) as b:
        b.queue("q", arguments=FAIR)
        client = b.client()
        send_fair(client)
        receiver = client.receiver("q", credit=credit)
        for _ in range(12 if credit == 1 else 0):
            receiver.flow(1)
            b.settle()
        assert client.bodies(receiver) == FAIR_ORDER.split()


def test_a_new_primary_gives_shares_too() -> None:
    with bench(clustered=True) as b, bench(clustered=True, state="ready") as other:
        b.upgraded()
        b.queue("q", replicate="all", arguments=FAIR)
        send_fair(b.client())
        b.lead.replayed_into(other.lead)
        other.lead.become("active")
        assert order_after(other) == FAIR_ORDER.split()


def test_a_turn_of_one_consumer_is_bounded_over_all_levels() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.priorities": 2})
        client = b.client()
        producer = client.sender("q")
        big = "x" * (limits.MAX_TURN_BYTES // 2 + 1)
        client.send(producer, big, priority=9)
        client.send(producer, big, priority=0)
        assert [len(body) for body in client.bodies(client.receiver("q"))] == [len(big)] * 2
