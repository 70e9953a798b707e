"""Consumers that hold messages up."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from broker.core.links import Outgoing
from broker.sessions.consumer import Subscription
from tests.broker.clients import Bench, Client, bench, condition
from tests.broker.sessions.test_transactions import A, Transactor, refusal

LIMIT_S = 10.0


def holder(b: Bench, credit: int = 2, **options: Any) -> tuple[Client, Any]:
    """A consumer that takes messages and says nothing of them."""
    client = b.client()
    client.auto_accept = False
    return client, client.receiver("q", credit, **options)


def broker_item(b: Bench) -> tuple[int, int]:
    """How many are slow, and how many were ended."""
    (item,) = b.client().request("QUERY", "broker")[2]["items"]
    return item["slowConsumers"], item["slowConsumersEnded"]


def still(b: Bench) -> list[float]:
    return [item["still_s"] for item in b.client().request("QUERY", "subscription")[2]["items"]]


def filled(b: Bench, count: int = 5) -> None:
    b.queue("q")
    client = b.client()
    client.send(client.sender("q"), *range(count))


def test_a_consumer_that_holds_messages_while_others_wait_is_slow_until_it_moves() -> None:
    with bench(slow_s=LIMIT_S) as b:
        filled(b)
        client, link = holder(b)
        b.pass_time(LIMIT_S - 1)
        assert broker_item(b) == (0, 0)
        b.pass_time(5)
        assert broker_item(b) == (1, 0)
        assert still(b) == [pytest.approx(LIMIT_S + 4, abs=1)]
        assert condition(link) == "", "it is told of, and no more"
        delivery, _ = client.received[link.name][0]
        delivery.update(delivery.ACCEPTED)
        delivery.settle()
        b.pass_time(5)
        assert broker_item(b) == (0, 0)


@pytest.mark.parametrize("messages,credit", [(2, 2), (5, 0)], ids=["nothing waits for anybody", "it holds nothing"])
def test_who_holds_nobody_up_is_not_slow(messages: int, credit: int) -> None:
    with bench(slow_s=LIMIT_S, ends_slow=True) as b:
        filled(b, messages)
        _, link = holder(b, credit)
        b.pass_time(5 * LIMIT_S)
        assert broker_item(b) == (0, 0)
        assert condition(link) == ""


def test_a_browser_holds_nobody_up() -> None:
    with bench(slow_s=LIMIT_S, ends_slow=True) as b:
        filled(b)
        _, link = holder(b, browse=True)
        b.pass_time(5 * LIMIT_S)
        assert (broker_item(b), condition(link)) == ((0, 0), "")


@pytest.mark.parametrize("messages", [5, 2], ids=["messages wait", "another consumer waits"])
def test_a_slow_consumer_is_ended_if_the_broker_is_told_to_and_others_get_what_it_held(messages: int) -> None:
    with bench(slow_s=LIMIT_S, ends_slow=True) as b:
        filled(b, messages)
        _, link = holder(b)
        other = b.client()
        receiver = other.receiver("q", 1 if messages == 5 else 10)
        b.pass_time(2 * LIMIT_S)
        assert condition(link) == "amqp:resource-limit-exceeded"
        assert "is slow" in link.remote_condition.description
        assert broker_item(b) == (0, 1)
        receiver.flow(10)
        b.settle()
        assert len(other.received[receiver.name]) == messages


def test_the_connection_of_a_client_that_does_not_read_is_ended() -> None:
    """Its link's end would never reach it; presettled messages have no outcome to wait for."""
    with bench(slow_s=LIMIT_S, ends_slow=True) as b:
        filled(b)
        client = b.client()
        client.server.pauseProducing()  # its socket is full
        client.receiver("q", 2, presettled=True)
        b.pass_time(LIMIT_S / 2)
        (unread,) = [item["unread_s"] for item in b.client().request("QUERY", "connection")[2]["items"] if item["unread_s"]]
        assert unread == pytest.approx(LIMIT_S / 2, abs=1)
        b.pass_time(LIMIT_S * 3)
        assert client.lost, "it does not read the Close either"
        assert broker_item(b) == (0, 1)


@pytest.mark.parametrize("more", [0, 1], ids=["nobody is slow", "all are slow"])
def test_the_cost_of_a_check_does_not_grow_with_the_square_of_the_consumers(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when all other consumers are searched for each: two thousand workers with a long job each cost a fifth of the
    broker's time then."""

    class Consumers(deque[Subscription]):
        def __contains__(self, one: object) -> bool:
            raise AssertionError("all consumers are searched")

    asked: list[Outgoing] = []
    room = Outgoing.room

    def counted(account: Outgoing) -> int:
        asked.append(account)
        return room(account)

    with bench(slow_s=LIMIT_S) as b:
        filled(b, 30 + more)
        client = b.client()
        client.auto_accept = False
        for number in range(30):
            client.receiver("q", 1, name=f"worker-{number}")
        b.pass_time(2 * LIMIT_S)
        assert broker_item(b) == (30 * more, 0)
        (terminus,) = b.broker.queues.termini
        consumers = terminus.subscriptions
        terminus.subscriptions = Consumers(consumers)
        monkeypatch.setattr(Outgoing, "room", counted)
        b.pass_time(LIMIT_S)
        terminus.subscriptions = consumers
        assert len(asked) < 30 * 10
        assert broker_item(b) == (30 * more, 0)


def test_nobody_is_slow_where_that_is_not_asked_for() -> None:
    with bench() as b:
        filled(b)
        holder(b)
        b.pass_time(100)
        assert broker_item(b) == (0, 0)


@pytest.mark.parametrize("ended_by", ["the broker", "its client"])
def test_a_transaction_is_undone_if_the_broker_ends_a_link_whose_client_may_have_sent_an_outcome_in_it(ended_by: str) -> None:
    """Breaks when a transaction is committed without a message that its client has accepted, which another consumer then gets."""
    with bench(slow_s=LIMIT_S, ends_slow=True) as b:
        b.queue("out")
        filled(b)
        work = Transactor(b)
        link = work.client.receiver("q", 2)
        txn_id = work.declare()
        work.post(work.client.sender("out"), txn_id, "result")
        other = b.client()
        taker = other.receiver("q", 3)
        if ended_by == "its client":
            link.close()
            b.settle()
        else:
            other.send(other.sender("q"), "more")
            b.clock.advance(2 * LIMIT_S)
        work.give(work.client.received[link.name][0][0], txn_id)
        discharge = work.discharge(txn_id)
        taker.flow(10)
        b.pass_time(1)
        assert sorted(map(str, other.bodies(taker)))[:5] == list("01234")
        if ended_by == "its client":
            assert (discharge.remote_state, b.depth("out")) == (A, 1)
        else:
            assert condition(link) == "amqp:resource-limit-exceeded"
            why = "messages that this connection held went back to their queue, because the broker ended their link"
            assert refusal(discharge) == ("amqp:transaction:rollback", f"the transaction was undone: {why}")
            assert b.depth("out") == 0
