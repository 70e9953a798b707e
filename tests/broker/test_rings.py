"""Rings and thresholds of flow as clients see them: what leaves, what is refused, when credit stops, what a new primary has."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from tests.broker.clients import ACCEPTED, REJECTED, Bench, Client, bench, statuses
from tests.broker.core.queues.files import calls_of
from tests.broker.test_deferring import DELAY, defer


def ring(b: Bench, name: str = "q", level: str = "all", **more: Any) -> None:
    arguments = {"qpid.policy_type": "ring", "qpid.max_count": 3} | {f"qpid.{key}": value for key, value in more.items()}
    b.queue(name, replicate=level, arguments=arguments)


def left(b: Bench) -> list[Any]:
    client = b.client()
    return client.bodies(client.receiver("q", browse=True))


@pytest.mark.parametrize("at_once", [True, False])
def test_a_ring_keeps_the_newest_and_accepts_all(at_once: bool) -> None:
    with bench() as b:
        ring(b)
        client = b.client()
        producer = client.sender("q")
        for chunk in [range(10)] if at_once else [[n] for n in range(10)]:
            client.send(producer, *chunk)
        assert statuses(client, producer) == [ACCEPTED] * 10
        assert left(b) == [7, 8, 9]


def test_what_is_under_way_counts_so_that_no_batch_leaves_too_many() -> None:
    """Breaks when only what is committed is counted: messages of many turns may wait for a slow disk."""
    with bench() as b:
        ring(b)
        client = b.client()
        producer = client.sender("q")
        b.lead.automatic = False
        for n in range(9):
            client.send(producer, n)
        while b.lead.waiting:
            b.lead.commit(1)
            assert b.depth("q") <= 3
            b.settle()
        assert left(b) == [6, 7, 8]


def test_a_message_that_leaves_while_a_consumer_has_it_is_gone_whatever_becomes_of_it() -> None:
    with bench() as b:
        ring(b)
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), 0, 1, 2)
        receiver = client.receiver("q", credit=2)
        assert client.bodies(receiver) == [0, 1]
        client.send(client.sender("q"), 3)
        first, _ = (delivery for delivery, _ in client.received[receiver.name])
        client.give(first, proton.Delivery.RELEASED)
        receiver.close()
        b.settle()
        assert left(b) == [1, 2, 3]


@pytest.mark.parametrize("how", ["failed", "deferred"])
def test_a_message_that_is_to_wait_and_has_left_meanwhile_leaves_no_time_behind(how: str) -> None:
    """Breaks when the time of a message is kept that no broker has any more: nothing would ever remove it."""
    with bench() as b:
        retry = {"x-delayed-retry-min": 5000} if how == "failed" else {}
        b.queue("q", replicate="all", arguments={"qpid.policy_type": "ring", "qpid.max_count": 2} | retry)
        client = b.client()
        client.auto_accept = False
        producer, receiver = client.sender("q"), client.receiver("q")
        for n in range(6):
            client.send(producer, n)  # a message leaves while the consumer has it
        assert client.bodies(receiver) == list(range(6))
        for delivery, _ in list(client.received[receiver.name]):
            delivery.local.annotations = {} if how == "failed" else {proton.symbol("x-opt-delivery-delay"): 5000}
            client.give(delivery, proton.Delivery.MODIFIED, failed=how == "failed")
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        delays = messages.delays
        assert delays is not None
        assert (b.depth("q"), len(delays), delays.waiting) == (2, 2, 2)
        b.pass_time(6)
        assert client.bodies(receiver) == [*range(6), 4, 5]
        for delivery, _ in client.received[receiver.name][6:]:
            client.give(delivery, proton.Delivery.ACCEPTED)
        b.pass_time(1)
        assert (b.depth("q"), len(delays), delays.waiting) == (0, 0, 0)


def test_a_strict_ring_refuses_while_its_oldest_is_with_a_consumer() -> None:
    with bench() as b:
        ring(b, policy_type="ring_strict")
        client = b.client()
        client.auto_accept = False
        producer = client.sender("q")
        client.send(producer, 0, 1, 2)
        receiver = client.receiver("q", credit=1)
        (delivery,) = client.send(producer, 3)
        assert statuses(client, producer)[-1] == REJECTED
        assert delivery.remote.condition.name == "amqp:resource-limit-exceeded"
        assert "a consumer has acquired that" in delivery.remote.condition.description
        receiver.close()
        b.settle()
        client.send(producer, 4, 5)
        assert statuses(client, producer)[-2:] == [ACCEPTED] * 2
        assert left(b) == [2, 4, 5]


@pytest.mark.parametrize("who", ["producer", "consumer"])
def test_a_strict_ring_lets_a_message_leave_that_waits_for_its_time(who: str) -> None:
    """Breaks when a message that no consumer has, because it waits, is taken for one that a consumer has acquired."""
    with bench() as b:
        ring(b, policy_type="ring_strict")
        client = b.client()
        client.auto_accept = False
        producer = client.sender("q")
        client.send(producer, 0, annotations={DELAY: 3_600_000} if who == "producer" else None)
        receiver = client.receiver("q", credit=1)
        if who == "consumer":
            defer(client, receiver, {DELAY: 3_600_000})
        receiver.close()
        b.settle()
        client.send(producer, 1, 2, 3, 4)
        assert statuses(client, producer) == [ACCEPTED] * 5
        assert left(b) == [2, 3, 4]


def test_a_message_that_is_larger_than_the_ring_is_refused() -> None:
    with bench() as b:
        ring(b, max_size=500)
        client = b.client()
        producer = client.sender("q")
        (delivery,) = client.send(producer, "x" * 1000)
        assert statuses(client, producer) == [REJECTED]
        assert "more than all of the 500 that it may hold" in delivery.remote.condition.description


def test_a_ring_with_levels_drops_what_is_lower_than_all_that_it_has_and_accepts_it() -> None:
    with bench() as b:
        ring(b, priorities=10)
        client = b.client()
        producer = client.sender("q")
        for body, priority in (("a", 5), ("b", 5), ("c", 9), ("d", 1), ("e", 5)):
            client.send(producer, body, priority=priority)
        assert statuses(client, producer) == [ACCEPTED] * 5
        assert left(b) == ["c", "b", "e"]


def test_a_ring_of_large_messages_lets_their_parts_go() -> None:
    with bench() as b:
        ring(b)
        client = b.client()
        producer = client.sender("q")
        size = (limits.LARGE_PARTS + 1) * limits.PART_BYTES
        for n in range(5):
            client.send(producer, f"{n}".ljust(size, "."))
        assert statuses(client, producer) == [ACCEPTED] * 5
        state = b.broker.lead.state
        assert b.depth("q") == 3
        assert 3 * size < state.live_bytes < 3 * size + limits.PART_BYTES


def test_a_large_message_that_a_ring_does_not_keep_leaves_no_parts() -> None:
    with bench() as b:
        ring(b, priorities=10)
        client = b.client()
        producer = client.sender("q")
        client.send(producer, "a", "b", "c", priority=9)
        client.send(producer, "d" * (limits.LARGE_PARTS + 1) * limits.PART_BYTES, priority=1)
        assert statuses(client, producer) == [ACCEPTED] * 4
        assert left(b) == ["a", "b", "c"]
        assert b.broker.lead.state.parts.order.depth == 0


def test_a_new_primary_has_the_same_ring_and_goes_on_with_it() -> None:
    with bench(clustered=True) as b, bench(clustered=True, state="ready") as other:
        b.upgraded()
        ring(b)
        client = b.client()
        client.send(client.sender("q"), *range(5))
        b.lead.replayed_into(other.lead)
        assert other.depth("q") == 3, "a backup drops nothing by itself"
        other.lead.become("active")
        sender = other.client()
        sender.send(sender.sender("q"), 5)
        assert left(other) == [3, 4, 5]


def test_a_term_that_ends_with_messages_under_way_leaves_the_ring_as_it_is_committed() -> None:
    """Breaks when what an old term had proposed counts in the next one."""
    with bench(clustered=True) as b:
        b.upgraded()
        ring(b)
        client = b.client()
        client.send(client.sender("q"), 0, 1, 2)
        b.lead.automatic = False
        client.send(client.sender("q"), 3, 4)
        b.lead.become("ready")
        b.lead.automatic = True
        b.lead.become("active")
        b.settle()
        assert left(b) == [0, 1, 2]
        again = b.client()
        again.send(again.sender("q"), 5)
        assert left(b) == [1, 2, 5]


def test_a_cluster_that_is_not_upgraded_refuses_a_ring() -> None:
    with bench(clustered=True) as b:
        client = b.client({"qpid.ha-admin": True})
        body = {"replicate": "all", "arguments": {"qpid.policy_type": "ring", "qpid.max_count": 3}}
        status, text, _ = client.request("CREATE", "queue", "q", body)
        assert status == 409
        assert "needs machine version 5" in text


def crowd(client: Client, producer: Any, count: int) -> int:
    client.send(producer, *range(count))
    return int(producer.credit)


@pytest.mark.parametrize(
    "arguments, stops_above, resumes_below",
    [
        ({"qpid.flow_stop_count": 10, "qpid.flow_resume_count": 4}, 10, 4),
        ({"qpid.flow_stop_count": 10}, 10, 10),
        ({"qpid.flow_stop_size": 10 * 24, "qpid.flow_resume_size": 4 * 24}, 10, 4),
    ],
)
def test_credit_stops_above_one_threshold_and_comes_back_below_the_other(
    arguments: dict[str, int], stops_above: int, resumes_below: int
) -> None:
    with bench() as b:
        b.queue("q", arguments=arguments)
        client = b.client()
        producer = client.sender("q")
        one = 24
        client.send_encoded(producer, *[sized(one)] * stops_above)
        assert producer.credit == limits.CREDIT_WINDOW
        client.send_encoded(producer, sized(one))
        client.send_encoded(producer, sized(one))
        assert producer.credit == limits.CREDIT_WINDOW - 2
        taker = client.receiver("q", credit=stops_above + 2 - resumes_below)
        b.pass_time(1)
        assert b.depth("q") == resumes_below
        assert producer.credit == limits.CREDIT_WINDOW - 2
        taker.flow(1)
        b.pass_time(1)
        assert producer.credit == limits.CREDIT_WINDOW


def test_a_commit_does_not_look_at_full_queues_that_it_takes_nothing_of() -> None:
    """Their consumers may be away for long. Breaks when each batch that is applied costs something for each of them."""
    with bench() as b:
        b.queue("other")
        for n in range(100):
            b.queue(f"q{n}", arguments={"qpid.max_count": 2})
        client, crowding = b.client(), b.client()
        producer, producers = client.sender("other"), [crowding.sender(f"q{n}") for n in range(100)]
        client.send(producer, 0)
        few = calls_of(lambda: client.send(producer, 1))
        for each in producers:
            crowding.send(each, 1, 2)
        assert len(b.broker.queues.crowded) == 100
        assert calls_of(lambda: client.send(producer, 2)) < few + 50


def test_producers_of_a_full_queue_go_on_when_its_threshold_is_raised() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.max_count": 10})
        client = b.client()
        producer = client.sender("q")
        client.send(producer, *range(10))
        assert producer.credit == limits.CREDIT_WINDOW - 10
        assert client.request("UPDATE", "queue", "q", {"arguments": {"qpid.max_count": 100}})[0] == 200
        assert producer.credit == limits.CREDIT_WINDOW


def sized(nbytes: int) -> bytes:
    """A message of so many bytes."""
    return b"\x00\x53\x75\xa0" + bytes([nbytes - 5]) + b"x" * (nbytes - 5)


def test_a_browse_only_queue_gives_its_messages_to_everybody_and_loses_none() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.browse-only": 1})
        client = b.client()
        client.send(client.sender("q"), 1, 2)
        links = [client.receiver("q", name=name) for name in "ab"]
        assert [client.bodies(link) for link in links] == [[1, 2], [1, 2]]
        assert {link.remote_source.distribution_mode for link in links} == {proton.Terminus.DIST_MODE_COPY}
        b.pass_time(1)
        assert b.depth("q") == 2
