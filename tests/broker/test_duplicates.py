"""A queue that detects duplicates takes each message once, whoever sends it again, and however often the primary changes."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core.duplicates import COUNT, PROPERTY, TIME_MS
from broker.core.records import Batch
from broker.sessions.pending import DEQUEUE_DELAY_S
from tests.broker.clients import Bench
from tests.broker.sessions.test_transactions import Transactor

ACCEPTED = proton.Delivery.ACCEPTED


def bench(count: int = 100, *, time_ms: int = 0, **options: Any) -> Bench:
    made = Bench(clustered=True, **options)
    made.upgraded()
    made.queue("orders", replicate="all", arguments={COUNT: count} | ({TIME_MS: time_ms} if time_ms else {}))
    return made


def test_a_message_that_comes_again_is_accepted_and_not_there_twice() -> None:
    b = bench()
    client = b.client()
    link = client.sender("orders")
    first, again, other = client.send(link, "a", id="1") + client.send(link, "a", id="1") + client.send(link, "b", id="2")
    assert [each.remote_state for each in (first, again, other)] == [ACCEPTED] * 3
    assert b.depth("orders") == 2


def test_a_message_without_an_id_may_come_as_often_as_it_is_sent() -> None:
    b = bench()
    client = b.client()
    client.send(client.sender("orders"), "a", "a")
    assert b.depth("orders") == 2


def test_the_property_of_artemis_counts_before_the_message_id() -> None:
    b = bench()
    client = b.client()
    link = client.sender("orders")
    for number in (1, 2):
        client.send(link, "a", id=str(number), properties={PROPERTY: "same"})
    assert b.depth("orders") == 1


def test_a_message_is_a_duplicate_when_the_first_has_left_the_queue() -> None:
    b = bench()
    client = b.client()
    link = client.sender("orders")
    client.send(link, "a", id="1")
    client.receiver("orders")
    b.clock.advance(DEQUEUE_DELAY_S)
    b.settle()
    assert b.depth("orders") == 0
    client.send(link, "a", id="1")
    assert b.depth("orders") == 0


def test_a_duplicate_of_what_is_under_way_is_accepted_when_that_is_committed() -> None:
    b = bench()
    b.lead.automatic = False
    client = b.client()
    link = client.sender("orders")
    (first,) = client.send(link, "a", id="1")
    (again,) = client.send(link, "a", id="1")
    assert (first.remote_state, again.remote_state) == (0, 0)
    b.lead.commit()
    b.settle()
    assert (first.remote_state, again.remote_state) == (ACCEPTED, ACCEPTED)
    assert b.depth("orders") == 1


def test_what_was_proposed_and_lost_with_its_term_is_no_duplicate() -> None:
    b = bench()
    b.lead.automatic = False
    client = b.client()
    client.send(client.sender("orders"), "a", id="1")
    b.lead.become("ready", "other")
    b.settle()
    b.lead.automatic = True
    b.lead.become("active")
    b.settle()
    client = b.client()
    client.send(client.sender("orders"), "a", id="1")
    assert b.depth("orders") == 1


def test_another_primary_knows_the_ids_and_so_does_one_that_has_a_snapshot() -> None:
    first, second = bench(), Bench(clustered=True, state="ready")
    client = first.client()
    client.send(client.sender("orders"), "a", id="1")
    first.lead.replayed_into(second.lead)
    third = Bench(clustered=True, state="ready")
    ledger = first.broker.lead
    batches = [Batch.parse(builder.seal(1, first.lead.index, 0), place=0) for builder in ledger.snapshot()]
    third.lead.index = first.lead.index
    third.broker.lead.on_reset(batches, first.lead.index)
    for other in (second, third):
        other.lead.become("active")
        other.settle()
        client = other.client()
        (again,) = client.send(client.sender("orders"), "a", id="1")
        assert again.remote_state == ACCEPTED
        client.send(client.sender("orders"), "b", id="2")
        assert other.depth("orders") == 2


def test_an_id_is_forgotten_when_so_many_others_have_come() -> None:
    b = bench(2)
    client = b.client()
    link = client.sender("orders")
    for each in ("1", "2", "3", "1"):
        client.send(link, "a", id=each)
    assert b.depth("orders") == 4


def test_an_id_is_forgotten_after_its_time() -> None:
    b = bench(time_ms=5_000)
    b.lead.stamp_ms = b.broker.lead.now_ms
    client = b.client()
    link = client.sender("orders")
    client.send(link, "a", id="1")
    b.clock.advance(4)
    client.send(link, "a", id="1")
    assert b.depth("orders") == 1
    b.clock.advance(1.1)
    client.send(link, "a", id="1")
    assert b.depth("orders") == 2


def test_through_an_exchange_each_queue_decides_for_itself() -> None:
    b = bench()
    b.queue("all", replicate="all")
    client = b.client()
    for queue in ("orders", "all"):
        assert client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": queue, "key": ""})[0] == 201
    link = client.sender("amq.fanout")
    (first,) = client.send(link, "a", id="1")
    (again,) = client.send(link, "a", id="1")
    assert (first.remote_state, again.remote_state) == (ACCEPTED, ACCEPTED)
    assert (b.depth("orders"), b.depth("all")) == (1, 2)


def test_a_transaction_puts_a_message_once() -> None:
    b = bench()
    one = Transactor(b)
    link = one.client.sender("orders")
    one.client.send(link, "a", id="1")
    txn_id = one.declare()
    for each in ("1", "2", "2"):
        one.post(link, txn_id, "a", id=each)
    one.post(link, txn_id, "no id", "no id")
    assert one.discharge(txn_id).remote_state == ACCEPTED
    assert b.depth("orders") == 4


@pytest.mark.parametrize("sent", [["a"], ["a", "b"]], ids=["some", "all"])
def test_what_came_while_a_transaction_over_two_logs_was_committed_is_not_put_again(sent: list[str]) -> None:
    """Breaks when only the discharge looks for duplicates: its messages for this broker's log come later, and their sender may
    have lost its connection meanwhile and sent them again."""
    b = bench()
    b.queue("own", replicate="none", arguments={COUNT: 100})
    one = Transactor(b)
    txn_id = one.declare()
    for queue in ("orders", "own"):
        for each in ("a", "b"):
            one.post(one.client.sender(queue), txn_id, each, id=each)
    b.lead.automatic = False
    request = one.discharge(txn_id)
    client = b.client()
    link = client.sender("own")
    for each in sent:
        (again,) = client.send(link, each, id=each)
        assert again.remote_state == ACCEPTED
    b.lead.automatic = True
    b.lead.commit()
    b.settle()
    assert request.remote_state == ACCEPTED
    assert (b.depth("orders"), b.depth("own")) == (2, 2)
    assert client.bodies(client.receiver("own")) == ["a", "b"]


def test_a_full_queue_forgets_no_message_that_it_did_not_take() -> None:
    b = Bench(clustered=True)
    b.upgraded()
    b.queue("orders", replicate="all", arguments={COUNT: 10, "qpid.max_count": 1})
    client = b.client()
    link = client.sender("orders")
    client.send(link, "a", id="1")
    (refused,) = client.send(link, "b", id="2")
    assert refused.remote_state == proton.Delivery.REJECTED
    (again,) = client.send(link, "a", id="1")
    assert again.remote_state == ACCEPTED
    client.receiver("orders")
    b.clock.advance(DEQUEUE_DELAY_S)
    b.settle()
    (now,) = client.send(link, "b", id="2")
    assert now.remote_state == ACCEPTED
    assert b.broker.nodes.queues["orders"].messages.enqueued == 2  # type: ignore[union-attr]


def test_a_window_waits_for_the_clusters_version() -> None:
    b = Bench(clustered=True)
    status, text, _ = b.client().request("CREATE", "queue", "orders", {"replicate": "all", "arguments": {COUNT: 10}})
    assert status == 409 or "version" in text


def test_a_time_needs_a_count() -> None:
    b = bench()
    status, text, _ = b.client().request("CREATE", "queue", "other", {"replicate": "all", "arguments": {TIME_MS: 10}})
    assert (status, text) == (400, f"queue 'other': {TIME_MS} needs {COUNT}")
