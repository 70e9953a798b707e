"""Messages that a consumer keeps for too long return to their queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest

from broker.core import limits
from tests.broker.clients import ADMIN, Bench, Client, bench, condition
from tests.broker.sessions.test_slow import holder
from tests.broker.sessions.test_transactions import A, Transactor, refusal
from tests.broker.test_departure import leave, source

RELEASED = proton.Delivery.RELEASED
LATE_S = 11.0
"""A sixteenth more than the time of the queues here, and some."""


def filled(b: Bench, *bodies: Any, **arguments: Any) -> None:
    b.queue("q", arguments={"x-consumer-timeout": 10_000} | arguments)
    client = b.client()
    client.send(client.sender("q"), *(bodies or ("a", "b")))


def overdue(b: Bench) -> int:
    return b.broker.nodes.queues["q"].overdue


def states(client: Client, link: Any) -> list[Any]:
    """What the broker has said of the deliveries on a link."""
    return [delivery.remote_state for delivery, _ in client.received[link.name] if delivery.settled]


def test_what_a_consumer_keeps_for_too_long_goes_to_another_and_its_link_lives() -> None:
    with bench() as b:
        filled(b)
        client, link = holder(b)
        other = b.client()
        taker = other.receiver("q")
        b.pass_time(9)
        assert other.bodies(taker) == []
        b.pass_time(2)
        assert other.bodies(taker) == ["a", "b"]
        assert [message.delivery_count for _, message in other.received[taker.name]] == [1, 1]
        assert (states(client, link), condition(link), overdue(b)) == ([RELEASED, RELEASED], "", 2)
        link.flow(1)
        other.connection.close()
        other.send(b.client().sender("q"), "c")
        b.pass_time(1)
        assert client.bodies(link)[-1:] == ["c"]


def test_only_what_is_late_returns_and_an_outcome_that_comes_later_changes_nothing() -> None:
    with bench() as b:
        filled(b, "a", "b", "c")
        client, link = holder(b)
        b.pass_time(5)
        (first, _), (second, _) = client.received[link.name]
        client.give(first, proton.Delivery.ACCEPTED)
        link.flow(1)
        b.pass_time(LATE_S - 5)
        assert states(client, link) == [RELEASED]
        client.give(second, proton.Delivery.ACCEPTED)
        b.pass_time(1)
        assert (b.depth("q"), overdue(b)) == (2, 1), "the third has its time still"
        b.pass_time(5)
        assert overdue(b) == 2


def test_a_delivery_that_was_late_counts_for_the_limit_of_the_queue() -> None:
    with bench() as b:
        filled(b, "a", **{"x-delivery-limit": 2})
        for _ in range(2):
            client, link = holder(b)
            assert client.bodies(link) == ["a"]
            b.pass_time(LATE_S)
            client.connection.close()
            b.settle()
        assert b.depth("q") == 0


@pytest.mark.parametrize("options", [{"browse": True}, {"presettled": True}])
def test_who_holds_nothing_up_is_not_late(options: dict[str, bool]) -> None:
    with bench() as b:
        filled(b)
        client, link = holder(b, **options)
        b.pass_time(2 * LATE_S)
        assert (client.bodies(link), overdue(b)) == (["a", "b"], 0)


def drain(b: Bench) -> tuple[Client, str]:
    """The client of a drain, and its source."""
    leave(b)
    b.pass_time(1)
    return b.client(ADMIN), source(b)


def route(b: Bench) -> tuple[Client, str]:
    """The client of a route from the queue, and its source."""
    client = b.client(ADMIN)
    status, text, found = client.request("FIND", "sequence", "", {"queue": "q", "taker": "route-1"})
    assert status == 200, text
    return client, found["address"]


@pytest.mark.parametrize("mover", [drain, route])
@pytest.mark.parametrize("limit", [0, 1])
def test_a_drain_or_a_route_may_hold_messages_for_any_time(mover: Callable[[Bench], tuple[Client, str]], limit: int) -> None:
    """The target may have them already: they would be lost at the limit, or be there twice."""
    with bench() as b:
        filled(b, **({"x-delivery-limit": limit} if limit else {}))
        client, address = mover(b)
        client.auto_accept = False
        link = client.receiver(address)
        b.pass_time(2 * LATE_S)
        assert (client.bodies(link), states(client, link), overdue(b), b.depth("q")) == (["a", "b"], [], 0, 2)
        for delivery, _ in client.received[link.name]:
            client.give(delivery, proton.Delivery.ACCEPTED)
        b.pass_time(1)
        assert (b.depth("q"), b.broker.nodes.queues["q"].dropped) == (0, 0)


@pytest.mark.parametrize("own, late", [({}, 2), ({"x-consumer-timeout-ms": 60_000}, 0)])
def test_the_broker_says_a_time_for_queues_that_say_none(own: dict[str, int], late: int) -> None:
    with bench(consumer_s=10.0) as b:
        b.queue("q", arguments=own)
        client = b.client()
        client.send(client.sender("q"), "a", "b")
        holder(b)
        b.pass_time(LATE_S)
        assert overdue(b) == late


def test_what_a_transaction_has_is_left_to_it() -> None:
    with bench() as b:
        filled(b, "a")
        work = Transactor(b)
        work.client.auto_accept = False
        link = work.client.receiver("q")
        txn_id = work.declare()
        ((delivery, _),) = work.client.received[link.name]
        work.give(delivery, txn_id)
        b.pass_time(LATE_S)
        assert overdue(b) == 0
        work.discharge(txn_id)
        b.pass_time(1)
        assert b.depth("q") == 0


@pytest.mark.parametrize("crosses", [True, False], ids=["the outcome crosses the time-out", "the outcome comes later"])
def test_a_transaction_whose_message_went_back_is_undone_whole(crosses: bool) -> None:
    with bench() as b:
        b.queue("out")
        filled(b, "a")
        work = Transactor(b)
        link = work.client.receiver("q", credit=1)
        txn_id = work.declare()
        work.post(work.client.sender("out"), txn_id, "result")
        ((delivery, _),) = work.client.received[link.name]
        if crosses:
            b.clock.advance(LATE_S)
        else:
            b.pass_time(LATE_S)
        assert overdue(b) == 1
        work.give(delivery, txn_id)
        why = "a message that this connection held went back to its queue, because the consumer timeout was over"
        assert refusal(work.discharge(txn_id)) == ("amqp:transaction:rollback", f"the transaction was undone: {why}")
        assert (b.depth("q"), b.depth("out")) == (1, 0)
        link.flow(1)
        again = work.declare()
        work.post(work.client.sender("out"), again, "result")
        work.give(work.client.received[link.name][-1][0], again)
        assert work.discharge(again).remote_state == A
        assert (b.depth("q"), b.depth("out")) == (0, 1)


def test_a_message_that_goes_back_from_one_connection_undoes_no_transaction_of_another() -> None:
    with bench() as b:
        b.queue("out")
        filled(b, "a")
        work = Transactor(b)
        txn_id = work.declare()
        work.post(work.client.sender("out"), txn_id, "result")
        holder(b)
        b.pass_time(LATE_S)
        assert overdue(b) == 1
        assert work.discharge(txn_id).remote_state == A
        assert b.depth("out") == 1


def test_the_time_of_a_large_message_begins_when_all_of_it_has_gone_out() -> None:
    with bench(part_bytes=16 * 1024) as b:
        filled(b, "x" * (limits.LARGE_PARTS * 16 * 1024 + 1))
        client, link = holder(b, 1)
        b.pass_time(9)
        assert len(client.received[link.name]) == 1
        assert overdue(b) == 0
        b.pass_time(2)
        assert (states(client, link), overdue(b)) == ([RELEASED], 1)


@pytest.mark.parametrize(
    "arguments",
    [{"x-consumer-timeout": 0}, {"x-consumer-timeout-ms": "soon"}, {"x-consumer-timeout": 5, "x-consumer-timeout-ms": 5}],
)
def test_a_time_for_consumers_that_cannot_be_is_refused(arguments: dict[str, Any]) -> None:
    with bench() as b:
        status, text, _ = b.client(ADMIN).request("CREATE", "queue", "q", {"arguments": arguments})
        assert status == 400
        assert "x-consumer-timeout" in text


def test_a_client_that_does_not_read_in_time_gets_no_part_of_a_message_and_no_empty_one() -> None:
    """Breaks when messages behind a large one reach their consumer without content, and it takes them for messages."""
    with bench() as b:
        filled(b, "x" * 600_000, "two", "three")
        client = b.client()
        client.auto_accept = False
        link = client.receiver("q", credit=0)
        client.server.pauseProducing()
        link.flow(10)
        b.settle()
        b.pass_time(LATE_S)
        assert overdue(b) == 3
        client.server.resumeProducing()
        b.settle()
        b.pass_time(1)
        assert [len(body) for body in client.bodies(link)] == [600_000, 3, 5]
