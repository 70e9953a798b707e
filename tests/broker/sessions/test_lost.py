"""What a consumer held when its connection is lost counts as failed, where the queue limits or delays failed deliveries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest

from broker.amqp.data import Condition
from broker.core import limits
from broker.core.records import Batch, Kind
from tests.broker.clients import ADMIN, Bench, Client, bench
from tests.broker.sessions.test_slow import holder
from tests.broker.test_departure import leave, source

LIMITED = {"x-delivery-limit": 3}


def filled(b: Bench, arguments: dict[str, Any], *bodies: Any, **attributes: Any) -> None:
    b.queue("q", arguments=arguments, **attributes)
    client = b.client()
    client.send(client.sender("q"), *(bodies or ("a", "b")))


def lost(client: Client) -> None:
    """Its socket ends without a word."""
    client.lose()
    client.bench.settle()


def counts(b: Bench) -> list[tuple[Any, int]]:
    """What is on the queue, with its counts of failed deliveries."""
    client = b.client()
    link = client.receiver("q", browse=True)
    return [(message.body, message.delivery_count) for _, message in client.received[link.name]]


@pytest.mark.parametrize("arguments", [LIMITED, {"x-delayed-retry-min": 1000}], ids=["limited", "delayed"])
def test_what_a_lost_consumer_held_has_failed(arguments: dict[str, int]) -> None:
    with bench() as b:
        filled(b, arguments, "a", "b", "c")
        client, _ = holder(b)
        lost(client)
        b.pass_time(2)
        assert counts(b) == [("a", 1), ("b", 1), ("c", 0)]


def test_the_delays_of_many_messages_of_a_lost_consumer_are_few_records() -> None:
    """Breaks when each has a record of its own: a fifth of a second of every broker's time for 20,000 messages."""
    with bench() as b:
        filled(b, {"x-delayed-retry-min": 1000}, *range(100))
        first, _ = holder(b, 1)
        lost(first)
        b.pass_time(2)
        client = b.client()
        client.auto_accept = False
        client.receiver("q", 90)
        lost(client)
        batch = Batch.parse(b.lead.committed[-1])
        runs = [(run.first_seq, run.count) for run in batch.runs if run.kind is Kind.TIMES]
        assert runs == [(1, 90)]
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        assert messages.delays is not None
        one, other = messages.delays.at(1), messages.delays.at(90)
        assert one - other == 1000, "it has failed twice"
        b.pass_time(1.5)
        assert messages.delays.waiting == 1
        b.pass_time(1)
        assert counts(b) == [(0, 2), *((number, 1) for number in range(1, 90)), *((number, 0) for number in range(90, 100))]


def test_a_message_that_ends_its_consumers_is_a_dead_letter_at_the_limit() -> None:
    with bench() as b:
        b.queue("dead")
        filled(b, LIMITED, "poison", "good", alternateExchange="amq.fanout")
        client = b.client()
        assert client.request("CREATE", "binding", "amq.fanout/dead", {"exchange": "amq.fanout", "queue": "dead"})[0] < 300
        for _ in range(3):
            assert b.depth("dead") == 0
            client, _ = holder(b, 1)
            lost(client)
        assert (counts(b), b.depth("dead")) == ([("good", 0)], 1)
        client = b.client()
        link = client.receiver("dead")
        ((_, message),) = client.received[link.name]
        assert (message.body, message.annotations["x-first-death-reason"]) == ("poison", "delivery_limit")


def test_a_queue_that_neither_limits_nor_delays_failures_writes_nothing_of_a_lost_consumer() -> None:
    with bench() as b:
        filled(b, {})
        client, _ = holder(b)
        before = b.lead.index
        lost(client)
        assert (counts(b), b.lead.index) == ([("a", 0), ("b", 0)], before)


def ends_its_link(client: Client, link: Any) -> None:
    link.close()


def ends_its_session(client: Client, link: Any) -> None:
    client.session.close()


def ends_its_connection(client: Client, link: Any) -> None:
    client.connection.close()


def is_cut_off(client: Client, link: Any) -> None:
    client.server.cut_off()


def is_turned_out(client: Client, link: Any) -> None:
    client.server.turn_out(Condition("amqp:not-allowed", "for a test"))


@pytest.mark.parametrize("end", [ends_its_link, ends_its_session, ends_its_connection, is_cut_off, is_turned_out])
def test_what_is_ended_in_order_has_not_failed(end: Callable[[Client, Any], None]) -> None:
    with bench() as b:
        filled(b, LIMITED)
        client, link = holder(b)
        end(client, link)
        b.settle()
        lost(client)
        assert counts(b) == [("a", 0), ("b", 0)]


@pytest.mark.parametrize("options", [{"browse": True}, {"presettled": True}])
def test_who_holds_nothing_has_failed_at_nothing(options: dict[str, bool]) -> None:
    with bench() as b:
        filled(b, LIMITED, "a", "b", "c")
        client, _ = holder(b, **options)
        lost(client)
        assert {count for _, count in counts(b)} == {0}


def test_what_was_accepted_before_the_connection_was_lost_is_gone() -> None:
    with bench() as b:
        filled(b, LIMITED)
        client, link = holder(b)
        client.give(client.received[link.name][0][0], proton.Delivery.ACCEPTED)
        client.pump()
        lost(client)
        assert counts(b) == [("b", 1)]


def test_a_large_message_that_was_going_out_has_failed() -> None:
    with bench(part_bytes=16 * 1024) as b:
        filled(b, LIMITED, "x" * (limits.LARGE_PARTS * 16 * 1024 + 1))
        client, _ = holder(b, 1)
        lost(client)
        assert [count for _, count in counts(b)] == [1]


def test_a_drain_that_is_killed_changes_nothing_of_what_it_moves() -> None:
    with bench() as b:
        filled(b, LIMITED)
        leave(b)
        for _ in range(4):
            drainer = b.client(ADMIN)
            drainer.auto_accept = False
            link = drainer.receiver(source(b))
            assert drainer.bodies(link) == ["a", "b"]
            lost(drainer)
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        assert (b.depth("q"), messages.order.has_counts) == (2, False)


def test_a_consumer_that_is_silent_for_too_long_has_failed() -> None:
    with bench() as b:
        filled(b, LIMITED)
        client, _ = holder(b)
        client.pump = lambda: False  # type: ignore[method-assign]
        b.pass_time(3 * limits.IDLE_TIMEOUT_S)
        assert client.socket.disconnecting
        lost(client)
        assert counts(b) == [("a", 1), ("b", 1)]
