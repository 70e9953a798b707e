"""Queues of groups as clients see them: one consumer for a group, its order, and what a new primary makes of it."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from broker.sessions import due
from tests.broker.clients import REJECTED, Bench, Client, bench, condition, statuses
from tests.broker.test_dead_letters import letters_of
from tests.broker.test_deferring import DELAY, TIME, defer

SHARED = {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1}
EXCLUSIVE = {"qpid.group_header_key": "JMSXGroupID"}


def send(client: Client, *bodies: str, queue: str = "q") -> None:
    """Messages whose group is the first letter of their body, said both ways."""
    producer = client.sender(queue)
    for body in bodies:
        client.send(producer, body, properties={"g": body[0]}, group_id=body[0])


def manual(b: Bench) -> Client:
    client = b.client()
    client.auto_accept = False
    return client


@pytest.mark.parametrize("arguments", [SHARED, EXCLUSIVE])
@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_two_consumers_never_have_messages_of_one_group_and_each_group_comes_in_order(
    arguments: dict[str, Any], memory: int
) -> None:
    with bench(message_memory=memory) as b:
        b.queue("q", arguments=arguments)
        client = manual(b)
        send(client, "a1", "b1", "a2", "c1", "b2", "a3")
        first = client.receiver("q", credit=1, name="first")
        second = client.receiver("q", credit=10, name="second")
        assert client.bodies(first) == ["a1"]
        assert client.bodies(second) == ["b1", "c1", "b2"]
        first.flow(5)
        b.settle()
        assert client.bodies(first) == ["a1", "a2", "a3"]


def test_a_shared_group_goes_to_another_when_the_last_accept_is_committed() -> None:
    """Breaks when nobody is told that a group has become free."""
    with bench() as b:
        b.queue("q", arguments=SHARED)
        client = manual(b)
        send(client, "a1", "a2")
        first = client.receiver("q", credit=1, name="first")
        second = client.receiver("q", credit=1, name="second")
        assert client.bodies(second) == []
        client.give(client.received[first.name][0][0], proton.Delivery.ACCEPTED)
        b.pass_time(1)
        assert client.bodies(second) == ["a2"]


def test_an_exclusive_group_waits_for_its_consumer_and_goes_on_when_that_leaves() -> None:
    with bench() as b:
        b.queue("q", arguments=EXCLUSIVE)
        client = manual(b)
        send(client, "a1", "a2")
        first = client.receiver("q", credit=1, name="first")
        second = client.receiver("q", credit=1, name="second")
        client.give(client.received[first.name][0][0], proton.Delivery.ACCEPTED)
        b.pass_time(1)
        assert client.bodies(second) == []
        first.close()
        b.settle()
        assert client.bodies(second) == ["a2"]


@pytest.mark.parametrize("arguments", [SHARED, EXCLUSIVE])
def test_many_messages_of_another_consumer_s_group_are_examined_in_several_turns(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a consumer is told that nothing is there for the credit that it drains, before all was examined."""
    monkeypatch.setattr(limits, "MAX_GROUP_LOOKS", 64)
    with bench() as b:
        b.queue("q", arguments=arguments)
        client = manual(b)
        send(client, *["a"] * 400, "b")
        first, second = client.receiver("q", credit=1, name="first"), client.receiver("q", credit=0, name="second")
        second.drain(5)
        b.settle()
        assert (client.bodies(first), client.bodies(second), second.drained()) == (["a"], ["b"], 4)


def test_released_messages_come_before_what_follows_in_their_group() -> None:
    with bench() as b:
        b.queue("q", arguments=SHARED)
        client = manual(b)
        send(client, "a1", "b1", "a2", "a3")
        first = client.receiver("q", credit=3, name="first")
        assert client.bodies(first) == ["a1", "b1", "a2"]
        first.close()
        b.settle()
        assert client.bodies(client.receiver("q", name="second")) == ["a1", "b1", "a2", "a3"]


def test_a_new_primary_keeps_groups_together_and_in_order() -> None:
    with bench(clustered=True) as b, bench(clustered=True, state="ready") as other:
        b.upgraded()
        b.queue("q", replicate="all", arguments=SHARED)
        client = manual(b)
        send(client, "a1", "b1", "a2", "b2")
        client.receiver("q", credit=2)
        b.lead.replayed_into(other.lead)
        other.lead.become("active")
        taker = manual(other)
        one, two = taker.receiver("q", credit=1, name="one"), taker.receiver("q", credit=9, name="two")
        assert (taker.bodies(one), taker.bodies(two)) == (["a1"], ["b1", "b2"])


def test_a_selector_on_a_queue_of_groups_is_refused() -> None:
    with bench() as b:
        b.queue("q", arguments=SHARED)
        selector = proton.symbol("apache.org:selector-filter:string")
        described = proton.Described(proton.symbol("apache.org:selector-filter:string"), "g = 'a'")
        link = b.client().receiver("q", filters={selector: described})
        assert condition(link) == "amqp:not-implemented"


def test_a_message_too_large_to_be_looked_at_is_refused() -> None:
    with bench() as b:
        b.queue("q", arguments=SHARED)
        client = b.client()
        producer = client.sender("q")
        (delivery,) = client.send(producer, "x" * ((limits.LARGE_PARTS + 1) * limits.PART_BYTES))
        assert statuses(client, producer) == [REJECTED]
        assert "has groups of messages" in delivery.remote.condition.description


def test_browsers_see_all_groups_in_the_order_of_the_queue() -> None:
    with bench() as b:
        b.queue("q", arguments=SHARED)
        client = manual(b)
        send(client, "a1", "b1", "a2")
        client.receiver("q", credit=1)
        assert client.bodies(client.receiver("q", browse=True)) == ["a1", "b1", "a2"]


@pytest.mark.parametrize("arguments", [SHARED, EXCLUSIVE])
def test_a_deferred_message_holds_its_group_no_more_and_returns_into_its_order(arguments: dict[str, Any]) -> None:
    with bench() as b:
        b.queue("q", arguments=arguments)
        client = manual(b)
        send(client, "a1", "a2", "b1", "a3")
        first = client.receiver("q", credit=1, name="first")
        defer(client, first, {TIME: proton.timestamp(b.lead.ledger.now_ms + 10_000)})
        first.close()
        b.settle()
        second = client.receiver("q", credit=2, name="second")
        assert client.bodies(second) == ["a2", "b1"]
        b.pass_time(11.0)
        third = client.receiver("q", credit=9, name="third")
        assert client.bodies(third) == [], "its group has a consumer again"
        second.flow(9)
        b.settle()
        assert client.bodies(second) == ["a2", "b1", "a1", "a3"]


@pytest.mark.parametrize("arguments", [SHARED, EXCLUSIVE])
def test_a_message_that_its_producer_delays_gives_its_group_to_nobody(arguments: dict[str, Any]) -> None:
    with bench() as b:
        b.queue("q", arguments=arguments)
        client = manual(b)
        first = client.receiver("q", credit=1, name="first")
        producer = client.sender("q")
        said: Any = {"properties": {"g": "a"}, "group_id": "a"}
        client.send(producer, "a1", annotations={DELAY: 60_000}, **said)
        first.close()
        b.settle()
        client.send(producer, "a2", **said)
        assert client.bodies(client.receiver("q", name="second")) == ["a2"]


@pytest.mark.parametrize("arguments", [SHARED, EXCLUSIVE])
def test_a_message_that_waits_for_its_time_does_not_bind_its_group_to_a_consumer(arguments: dict[str, Any]) -> None:
    """The first consumer asks while the message cannot be delivered, and then it asks for nothing any more."""
    with bench() as b:
        b.queue("q", arguments=arguments)
        client = manual(b)
        producer = client.sender("q")
        said: Any = {"properties": {"g": "a"}, "group_id": "a"}
        client.send(producer, "a1", annotations={DELAY: 5000}, **said)
        first = client.receiver("q", credit=0)
        first.drain(9)
        b.settle()
        assert (client.bodies(first), first.credit) == ([], 0)
        b.pass_time(6)
        client.send(producer, "a2", **said)
        second = client.receiver("q")
        assert client.bodies(second) == ["a1", "a2"]


def test_an_expired_message_that_cannot_leave_binds_its_group_to_no_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is nearly full, and so many expired messages wait that a dispatch is the first to meet the next one."""
    monkeypatch.setattr(due, "MOST", 1)
    with bench() as b:
        letters_of(b, arguments=EXCLUSIVE)
        client = manual(b)
        producer = client.sender("q")
        client.send(producer, "z1", group_id="z", ttl=1)
        client.send(producer, "a1", group_id="a", ttl=2)
        b.lead.ledger.on_storage_low("the disk is nearly full", 0)
        b.pass_time(3)
        first = client.receiver("q", credit=0)
        first.drain(9)
        b.settle()
        assert (client.bodies(first), first.credit) == ([], 0)
        b.lead.ledger.on_storage_low("")
        client.send(producer, "a2", group_id="a")
        assert client.bodies(client.receiver("q")) == ["a2"]


@pytest.mark.parametrize("attached", [True, False])
def test_a_shared_group_goes_on_with_another_while_its_consumer_has_only_what_waits(attached: bool) -> None:
    with bench() as b:
        b.queue("q", arguments=SHARED | {"x-delayed-retry-min": 60_000})
        client = manual(b)
        send(client, "a1", "a2")
        first = client.receiver("q", credit=1, name="first")
        if attached:
            second = client.receiver("q", name="second")
        client.give(client.received[first.name][0][0], proton.Delivery.MODIFIED, failed=True)
        if not attached:
            second = client.receiver("q", name="second")
        assert client.bodies(second) == ["a2"]


@pytest.mark.parametrize("arguments", [SHARED, EXCLUSIVE])
@pytest.mark.parametrize("how", ["released", "failed", "annotated"])
def test_a_message_that_its_consumer_gives_back_comes_before_the_next_one_of_its_group(
    how: str, arguments: dict[str, Any]
) -> None:
    """Breaks when later messages of a group are given out while the failure of an earlier one is being committed."""
    with bench() as b:
        b.queue("q", arguments=arguments)
        client = manual(b)
        send(client, "a1", "a2", "a3")
        first = client.receiver("q", credit=1, name="first")
        ((delivery, _),) = client.received[first.name]
        delivery.local.failed = how == "failed"
        if how == "annotated":
            delivery.local.annotations = {proton.symbol("x-seen"): 1}
        delivery.update(proton.Delivery.RELEASED if how == "released" else proton.Delivery.MODIFIED)
        delivery.settle()
        first.flow(1)
        b.settle()
        assert client.bodies(first) == ["a1", "a1"]
        client.give(client.received[first.name][-1][0], proton.Delivery.ACCEPTED)
        first.flow(5)
        b.settle()
        assert client.bodies(first) == ["a1", "a1", "a2", "a3"]
