"""A queue with a single active consumer."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.sessions.events import EXCHANGE
from tests.broker.clients import Bench, Client, bench
from tests.broker.sessions.test_transactions import Transactor


def queue(b: Bench, *bodies: int, **arguments: Any) -> None:
    b.queue("q", arguments={"x-single-active-consumer": True} | arguments)
    client = b.client()
    client.send(client.sender("q"), *bodies)


def consumers(b: Bench, count: int, credit: int = 2, **options: Any) -> list[tuple[Client, Any]]:
    found = []
    for _ in range(count):
        client = b.client()
        client.auto_accept = False
        found.append((client, client.receiver("q", credit, **options)))
    return found


def active(b: Bench) -> list[bool]:
    return [item["active"] for item in b.client().request("QUERY", "subscription")[2]["items"] if item["queue"] == "q"]


def test_one_consumer_at_a_time_gets_messages_and_when_it_leaves_the_next_one_goes_on_where_it_was() -> None:
    with bench() as b:
        queue(b, *range(5))
        (first, link), (second, waiting), (third, last) = consumers(b, 3)
        assert (first.bodies(link), second.bodies(waiting)) == ([0, 1], [])
        assert active(b) == [True, False, False]
        first.give(first.received[link.name][0][0], proton.Delivery.ACCEPTED)
        first.lose()
        b.settle()
        assert second.bodies(waiting) == [1, 2], "what the first one held comes first"
        last.close()
        b.settle()
        second.connection.close()
        b.settle()
        assert third.bodies(last) == []
        ((fourth, link),) = consumers(b, 1, credit=10)
        assert fourth.bodies(link) == [1, 2, 3, 4]


def test_an_active_consumer_without_credit_or_work_lets_nobody_else_have_messages() -> None:
    with bench() as b:
        queue(b, *range(3))
        (first, link), (second, waiting) = consumers(b, 1, credit=0) + consumers(b, 1)
        assert (first.bodies(link), second.bodies(waiting)) == ([], [])
        link.flow(3)
        b.settle()
        assert first.bodies(link) == [0, 1, 2]


def test_browsers_are_not_in_line_and_who_waits_and_drains_gets_its_credit_back() -> None:
    with bench() as b:
        queue(b, *range(3))
        ((browser, looking), _, (_, waiting)) = (
            consumers(b, 1, credit=10, browse=True) + consumers(b, 1) + consumers(b, 1, credit=0)
        )
        assert browser.bodies(looking) == [0, 1, 2]
        waiting.drain(5)
        b.settle()
        assert waiting.credit == 0


@pytest.mark.parametrize("argument, consumers_served", [(1, 1), (0, 2)])
def test_the_argument_may_be_said_to_be_off(argument: int, consumers_served: int) -> None:
    with bench() as b:
        queue(b, *range(4), **{"x-single-active-consumer": argument})
        got = [client.bodies(link) for client, link in consumers(b, 2, credit=1)]
        assert sum(map(bool, got)) == consumers_served


def test_a_selector_of_the_active_consumer_leaves_the_rest_where_it_is() -> None:
    """What the active one does not select waits for it to leave, as order asks."""
    with bench() as b:
        b.queue("q", arguments={"x-single-active-consumer": True})
        client = b.client()
        for each in range(4):
            client.send(client.sender("q"), each, properties={"n": each})
        selector = proton.Described(proton.symbol("apache.org:selector-filter:string"), "n > 1")
        (first, link), (second, waiting) = consumers(b, 1, filters={proton.symbol("s"): selector}) + consumers(b, 1)
        assert (first.bodies(link), second.bodies(waiting)) == ([2, 3], [])
        first.lose()
        b.settle()
        assert second.bodies(waiting) == [0, 1]


def notices(client: Client, link: Any) -> list[str]:
    """Whom each notice names as the active consumer: its container."""
    found = []
    for _, message in client.received[link.name]:
        (event,) = message.body
        assert event["_schema_id"]["_class_name"] == "activeConsumerChanged"
        assert message.subject.split(".")[4:6] == ["activeConsumerChanged", "notice"]
        assert (event["_values"]["qName"], event["_values"]["user"]) == ("q", "anonymous")
        assert event["_values"]["rhost"]
        assert event["_values"]["dest"].startswith("from-q-")
        found.append(event["_values"]["container"])
    return found


def test_long_names_of_a_consumer_are_cut_in_its_event() -> None:
    with bench() as b:
        queue(b)
        listener = b.client()
        assert listener.request("CREATE", "exchange", EXCHANGE, {"exchangeType": "topic", "replicate": "all"})[0] == 201
        events = listener.receiver(f"{EXCHANGE}/agent.ind.event.org_apache_qpid_broker.activeConsumerChanged.#", 100)
        b.client(container="c" * 4_000).receiver("q", name="from-q-" + "n" * 16_000)
        assert notices(listener, events) == ["c" * 252 + "..."]
        values = listener.received[events.name][0][1].body[0]["_values"]
        assert values["dest"] == "from-q-" + "n" * 245 + "..."


def test_who_becomes_active_is_told_in_an_event_and_who_only_waits_is_not() -> None:
    with bench() as b:
        queue(b)
        listener = b.client()
        assert listener.request("CREATE", "exchange", EXCHANGE, {"exchangeType": "topic", "replicate": "all"})[0] == 201
        events = listener.receiver(f"{EXCHANGE}/agent.ind.event.org_apache_qpid_broker.activeConsumerChanged.#", 100)
        (first, _), (second, _), (third, last) = consumers(b, 3)
        consumers(b, 1, browse=True)
        names = [each.connection.container for each in (first, third)]
        assert notices(listener, events) == names[:1]
        second.lose()
        b.settle()
        assert notices(listener, events) == names[:1], "it was not active"
        first.lose()
        b.settle()
        assert notices(listener, events) == names
        last.close()
        b.settle()
        assert notices(listener, events) == names, "nobody is left"
        ((fourth, _),) = consumers(b, 1)
        assert notices(listener, events) == [*names, fourth.connection.container]


def test_a_new_primary_tells_anew_who_is_active_and_a_queue_for_many_tells_nothing() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        b.queue("q", replicate="all", arguments={"x-single-active-consumer": True})
        b.queue("many", replicate="all")
        admin = b.client()
        assert admin.request("CREATE", "exchange", EXCHANGE, {"exchangeType": "topic", "replicate": "all"})[0] == 201
        b.client().receiver("many")
        consumers(b, 1)
        b.lead.become("ready", "other:1")
        b.settle()
        b.lead.become("active")
        listener = b.client()
        events = listener.receiver(f"{EXCHANGE}/#", 100)
        ((again, _),) = consumers(b, 1)
        assert notices(listener, events) == [again.connection.container]


@pytest.mark.parametrize("arguments", [{}, {"x-delivery-limit": 5}, {"x-delayed-retry-min": 10_000}], ids=["", "limit", "delay"])
def test_the_next_consumer_begins_with_what_a_lost_one_held(arguments: dict[str, int]) -> None:
    """Breaks when later messages are given out while the failures of the earlier ones are being committed."""
    with bench() as b:
        queue(b, *range(1, 9), **arguments)
        (first, link), (second, waiting) = consumers(b, 1, credit=3) + consumers(b, 1, credit=10)
        assert first.bodies(link) == [1, 2, 3]
        first.lose()
        b.settle()
        waits = "x-delayed-retry-min" in arguments
        assert second.bodies(waiting) == list(range(4 if waits else 1, 9))
        b.pass_time(11)
        assert sorted(second.bodies(waiting)) == list(range(1, 9))


@pytest.mark.parametrize("asks", ["flow", "drain"])
@pytest.mark.parametrize("how", ["released", "failed", "annotated", "rolled back"])
def test_a_message_that_its_consumer_gives_back_comes_before_the_next_one(how: str, asks: str) -> None:
    with bench() as b:
        queue(b, 1, 2, 3)
        ((client, link),) = consumers(b, 1, credit=1)
        ((delivery, _),) = client.received[link.name]
        if how == "rolled back":
            work = Transactor(b, client=client)
            txn_id = work.declare()
            work.give(delivery, txn_id)
            body: Any = proton.Described(proton.symbol("amqp:discharge:list"), [txn_id, True])
            client.send(work.control, body, settle=False)
        elif how == "annotated":
            delivery.local.annotations = {proton.symbol("x-seen"): 1}
            delivery.update(proton.Delivery.MODIFIED)
        else:
            delivery.local.failed = how == "failed"
            delivery.update(proton.Delivery.RELEASED if how == "released" else proton.Delivery.MODIFIED)
        if how != "rolled back":
            delivery.settle()
        if asks == "flow":
            link.flow(1)
        else:
            link.drain(1)
        b.settle()
        assert client.bodies(link) == [1, 1]
        link.flow(5)
        b.settle()
        assert client.bodies(link) == [1, 1, 2, 3]


@pytest.mark.parametrize("level", ["all", "none"])
def test_a_term_that_ends_while_messages_return_holds_up_nobody_in_the_next_one(level: str) -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        b.queue("q", replicate=level, arguments={"x-single-active-consumer": True, "x-delivery-limit": 5})
        client = b.client()
        client.send(client.sender("q"), 1, 2, 3)
        ((first, link),) = consumers(b, 1, credit=1)
        log = b.logs[b.broker.nodes.queues["q"].messages_log]
        log.automatic = False
        first.give(first.received[link.name][0][0], proton.Delivery.MODIFIED, failed=True)
        assert log.waiting, "the failure is proposed and not committed"
        b.lead.become("ready", "other:1")
        b.settle()
        log.automatic = True
        b.lead.become("active")
        b.settle()
        ((second, link),) = consumers(b, 1, credit=3)
        assert second.bodies(link) == [1, 2, 3]
        log.commit()
        b.settle()
        for delivery, _ in list(second.received[link.name]):
            second.give(delivery, proton.Delivery.MODIFIED, failed=True)
        link.flow(3)
        b.settle()
        assert second.bodies(link)[3:] == [1, 2, 3]
