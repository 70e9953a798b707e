"""Last value queues as clients see them: the newest of each key, on this primary and on the next."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from tests.broker.clients import ACCEPTED, Bench, Client, bench, statuses
from tests.broker.test_dead_letters import letters_of

KEY = {"qpid.last_value_queue_key": "k"}


def send(client: Client, *sent: tuple[str, Any], queue: str = "q") -> Any:
    producer = client.sender(queue)
    for key, body in sent:
        client.send(producer, body, properties={"k": key})
    return producer


def seen(b: Bench) -> list[Any]:
    client = b.client()
    return [str(body)[:9] for body in client.bodies(client.receiver("q", browse=True))]


def test_browsers_see_the_newest_of_each_key_and_consumers_get_each_once() -> None:
    with bench() as b:
        b.queue("q", arguments=KEY)
        client = b.client()
        producer = send(client, ("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("b", "b2"))
        assert statuses(client, producer) == [ACCEPTED] * 5
        assert seen(b) == ["a2", "c1", "b2"]
        receiver = client.receiver("q")
        send(client, ("a", "a3"))
        assert client.bodies(receiver) == ["a2", "c1", "b2", "a3"]
        b.pass_time(1)
        assert b.depth("q") == 0


def test_a_value_that_is_replaced_while_a_consumer_has_it_does_not_come_back() -> None:
    with bench() as b:
        b.queue("q", arguments=KEY)
        client = b.client()
        client.auto_accept = False
        send(client, ("a", "a1"), ("b", "b1"))
        receiver = client.receiver("q", credit=2)
        assert client.bodies(receiver) == ["a1", "b1"]
        send(client, ("a", "a2"))
        receiver.close()
        b.settle()
        assert seen(b) == ["b1", "a2"]


def test_messages_without_the_key_have_the_same_one() -> None:
    with bench() as b:
        b.queue("q", arguments=KEY)
        client = b.client()
        client.send(client.sender("q"), "x", "y", "z")
        assert seen(b) == ["z"]


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_a_new_primary_reads_the_keys_from_disk_and_gives_out_nothing_before(memory: int) -> None:
    """Breaks when it gives out a value that has been replaced while it did not know the key."""
    with bench(clustered=True) as b, bench(clustered=True, state="ready", message_memory=memory) as other:
        b.upgraded()
        b.queue("q", replicate="all", arguments=KEY)
        client = b.client()
        producer = client.sender("q")
        keys = [f"{n:04}" for n in range(limits.MAX_TURN_MESSAGES + 50)]
        encoded = [proton.Message(body=f"old {key}", properties={"k": key}).encode() for key in keys]
        client.send_encoded(producer, *encoded)
        b.lead.replayed_into(other.lead)
        other.lead.holds_reads = True
        other.lead.become("active")
        taker = other.client()
        receiver = taker.receiver("q", credit=1000)
        send(taker, ("0003", "new 0003"))
        assert taker.bodies(receiver) == []
        other.lead.end_reads()
        other.pass_time(1)
        assert taker.bodies(receiver) == [f"old {key}" for key in keys if key != "0003"] + ["new 0003"]
        send(taker, ("0005", "newer"))
        assert taker.bodies(receiver)[-1] == "newer"


def test_a_new_primary_reads_the_keys_of_a_queue_that_nobody_is_attached_to() -> None:
    with bench(clustered=True) as b, bench(clustered=True, state="ready") as other:
        b.upgraded()
        b.queue("q", replicate="all", arguments=KEY)
        send(b.client(), ("a", "a1"), ("b", "b1"))
        b.lead.replayed_into(other.lead)
        other.lead.become("active")
        other.settle()
        node = other.broker.nodes.queues["q"]
        assert node.displacing is not None
        assert node.displacing.ready


def test_large_values_are_replaced_and_replace_here_and_after_a_failover() -> None:
    large = "x" * ((limits.LARGE_PARTS + 1) * limits.PART_BYTES)
    with bench(clustered=True) as b, bench(clustered=True, state="ready") as other:
        b.upgraded()
        b.queue("q", replicate="all", arguments=KEY)
        client = b.client()
        send(client, ("a", "a1" + large), ("b", "b1"), ("a", "a2" + large), ("b", "b2" + large))
        assert b.depth("q") == 2
        b.lead.replayed_into(other.lead)
        other.lead.become("active")
        taker = other.client()
        send(taker, ("a", "a3"))
        assert other.depth("q") == 2
        assert [body[:2] for body in taker.bodies(taker.receiver("q"))] == ["b2", "a3"]


@pytest.mark.parametrize("size", [1, limits.LARGE_PARTS * 16 * 1024])
def test_a_value_that_is_rejected_while_a_newer_one_is_under_way_is_no_dead_letter(size: int) -> None:
    """Breaks when it is put on another queue between the proposal and the commit of its end: the parts of a large one are gone
    then, and no broker could apply the batch."""
    with bench(part_bytes=16 * 1024) as b:
        letters_of(b, arguments=KEY)
        client = b.client()
        client.auto_accept = False
        producer = send(client, ("a", "a1" + "x" * size))
        receiver = client.receiver("q")
        ((held, _),) = client.received[receiver.name]
        b.lead.automatic = False
        client.send(producer, "a2", properties={"k": "a"})
        client.give(held, proton.Delivery.REJECTED)
        b.pass_time(0.1, step=0.05)
        b.commit_all()
        b.pass_time(2)
        assert (seen(b), b.depth("dead")) == (["a2"], 0)


def test_a_value_that_cannot_be_read_keeps_its_place_and_holds_no_other_back() -> None:
    with bench(clustered=True) as b, bench(clustered=True, state="ready") as other:
        b.upgraded()
        b.queue("q", replicate="all", arguments=KEY)
        send(b.client(), ("a", "a1"), ("b", "b1"))
        b.lead.replayed_into(other.lead)
        messages = other.broker.nodes.queues["q"].messages
        assert messages is not None
        other.lead.spoiled.add(messages.order.lanes[0].blocks[0].places[0])
        other.lead.become("active")
        taker = other.client()
        assert taker.bodies(taker.receiver("q")) == ["b1"]
        other.pass_time(1)
        assert other.depth("q") == 1


def test_a_full_queue_of_values_rejects() -> None:
    with bench() as b:
        b.queue("q", arguments=KEY | {"qpid.max_count": 2})
        client = b.client()
        producer = send(client, ("a", 1), ("a", 2), ("b", 1), ("c", 1))
        assert statuses(client, producer)[:3] == [ACCEPTED] * 3
        assert "2 are allowed" in client.outcomes[-1][1].remote.condition.description
