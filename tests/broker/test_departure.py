"""A broker that leaves: closed first, then emptied, and empty for good."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import proton
import pytest
from twisted.logger import capturedLogs, formatEvent

from broker import drains
from broker.core.nodes import LOCAL
from broker.core.origins import LEAVING, Traits, read_tags, traits_of
from tests.broker.clients import ACCEPTED, ADMIN, RELEASED, Bench, bench, condition, creating, statuses
from tests.broker.drain_bench import tag_of
from tests.broker.sessions.test_transactions import Transactor
from tests.broker.test_origins import LARGE

TO = ["other:5672", "another:5673"]


def ask(b: Bench, operation: str, **body: Any) -> tuple[int, str, Any]:
    client = b.client(ADMIN)
    answer = client.request(operation, "drain", "", body)
    client.connection.close()
    b.settle()
    return answer


def leave(b: Bench, spread: float = 0) -> dict[str, Any]:
    status, text, body = ask(b, "LEAVE", to=TO, spread=spread)
    assert status == 200, text
    return dict(body)


def left(b: Bench) -> dict[str, Any]:
    (item,) = ask(b, "QUERY")[2]["items"]
    return dict(item)


def source(b: Bench, name: str = "q") -> str:
    return f"$drain/{b.broker.nodes.queues[name].uuid}"


def traits_in(delivery: Any) -> Traits:
    """The traits in the tag of a delivery."""
    (found,) = traits_of(read_tags([tag_of(delivery)])[1])
    return found


def test_producers_hear_where_the_queues_go_and_everybody_is_cut_off_without_a_close() -> None:
    with bench() as b:
        b.queue("q")
        producer, consumer = b.client(), b.client()
        out, relay, taking = producer.sender("q"), producer.sender(None), consumer.receiver("q")
        leave(b)
        assert condition(out) == condition(taking) == "amqp:link:redirect"
        info = {str(key): value for key, value in out.remote_condition.info.items()}
        assert info == {"hostname": "other", "network-host": "other", "port": 5672, "address": "q"}
        assert condition(relay) == ""
        assert producer.lost
        assert consumer.lost
        assert condition(producer.connection) == ""
        late = b.client()
        assert late.lost
        assert not late.connection.remote_container, "without an Open, it goes on to its next address"


def test_what_was_sent_before_is_accepted_and_nothing_after_it_is_taken() -> None:
    """All that comes before the record is committed with it or before it; what comes behind it is for the target."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        out, relay, exchange = client.sender("q"), client.sender(None), client.sender("amq.fanout")
        b.lead.automatic = False
        client.send(out, 1)
        b.broker.departure.begin(leave_of(b), 5, lambda reason: None)
        client.send(out, 2)
        client.send(relay, 3, address="q")
        client.send(exchange, 4)
        assert statuses(client, out) == statuses(client, relay) == statuses(client, exchange) == [RELEASED]
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert sorted(statuses(client, out)) == sorted([RELEASED, ACCEPTED])
        assert b.depth("q") == 1
        b.pass_time(6)


def leave_of(b: Bench) -> Any:
    from broker.core.origins import Leave

    return Leave("d", tuple(TO), "")


def test_a_transaction_that_is_discharged_behind_the_record_puts_nothing() -> None:
    with bench() as b:
        b.queue("q")
        one = Transactor(b)
        txn_id = one.declare()
        one.post(one.client.sender("q"), txn_id, "late")
        b.lead.automatic = False
        b.broker.departure.begin(leave_of(b), 5, lambda reason: None)
        assert one.discharge(txn_id).remote_state == proton.Delivery.REJECTED
        b.lead.automatic = True
        b.lead.commit()
        b.pass_time(6)
        assert b.depth("q") == 0


def test_a_large_message_that_ends_behind_the_record_is_not_taken_and_leaves_no_parts() -> None:
    with bench(part_bytes=16 * 1024) as b:
        b.queue("q")
        client = b.client()
        link = client.sender("q")
        data = bytes(proton.Message(body="x" * 200_000).encode())
        delivery = link.delivery("large")
        link.stream(data[:150_000])
        b.settle()
        assert b.broker.lead.state.parts.order.depth > 1
        b.broker.departure.begin(leave_of(b), 5, lambda reason: None)
        link.stream(data[150_000:])
        link.advance()
        b.settle()
        b.pass_time(6)
        assert delivery.remote_state != proton.Delivery.ACCEPTED
        assert (b.depth("q"), b.broker.lead.state.parts.order.depth) == (0, 0)


def test_a_queue_that_would_go_when_nobody_uses_it_waits_for_its_drain() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.auto_delete_timeout": 3})
        client = b.client()
        client.send(client.sender("q"), 1)
        leave(b)
        b.pass_time(10)
        assert b.depth("q") == 1


def test_connections_end_over_the_time_that_was_asked_for_the_idle_ones_first() -> None:
    with bench() as b:
        b.queue("q")
        clients = []
        for _ in range(20):
            clients.append(b.client())
            b.clock.advance(0.01)
        clients[0].sender("q")
        leave(b, spread=5)
        assert [client.lost for client in clients] == [False, True, True, *[False] * 17]
        b.pass_time(2)
        assert sum(client.lost for client in clients) == 10
        assert not clients[0].lost
        b.pass_time(3)
        assert all(client.lost for client in clients)


def test_consumers_get_nothing_more_and_may_settle_what_they_have() -> None:
    with bench() as b:
        b.queue("q")
        producer, consumer = b.client(), b.client()
        producer.send(producer.sender("q"), *range(10))
        consumer.auto_accept = False
        taking = consumer.receiver("q", credit=4)
        leave(b, spread=5)
        assert producer.lost
        taking.flow(10)
        b.settle()
        assert consumer.bodies(taking) == [0, 1, 2, 3]
        consumer.give(consumer.received[taking.name][0][0], proton.Delivery.ACCEPTED)
        assert left(b)["unsettled"] == 3
        b.pass_time(6)
        assert (left(b)["messages"], left(b)["unsettled"], left(b)["clients"]) == (9, 0, 0)


def test_a_drain_gets_what_the_others_had_and_its_tags_are_the_sequences() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.priorities": 4})
        producer, consumer = b.client(), b.client()
        out = producer.sender("q")
        for number, priority in enumerate((0, 0, 3, 0)):
            producer.send(out, number, priority=priority)
        consumer.auto_accept = False
        taking = consumer.receiver("q", credit=2)
        drainer = b.client(ADMIN)
        assert condition(drainer.receiver(source(b))) == "amqp:not-allowed", "it does not leave"
        consumer.give(consumer.received[taking.name][1][0], proton.Delivery.MODIFIED, failed=True)
        leave(b, spread=5)
        assert condition(drainer.receiver(source(b))) in ("amqp:resource-locked", "")
        b.pass_time(6)
        drain = drainer.receiver(source(b), name="the drain's")
        found = [(delivery, message) for delivery, message in drainer.received["the drain's"]]
        assert {message.body for _, message in found} == {0, 1, 2, 3}
        counts = {message.body: message.delivery_count for _, message in found}
        assert sum(counts.values()) == 1, "the one that has failed says so"
        assert drain.remote_source.address == source(b)
        b.pass_time(0.1, 0.01)
        assert left(b)["empty"]


def test_a_broker_that_is_not_the_primary_any_more_does_not_say_that_it_is_empty() -> None:
    """What it had proposed may be committed by the new primary. Breaks when a drain that asks it releases the target."""
    with bench(clustered=True) as b:
        b.upgraded()
        leave(b)
        b.pass_time(0.1, 0.01)
        assert left(b)["empty"]
        b.lead.become("ready")
        assert (left(b)["empty"], left(b)["messages"]) == (False, 0)


def test_a_later_link_of_a_drain_takes_the_place_of_an_earlier_one_and_gets_its_messages_in_order() -> None:
    """The earlier drainer may be frozen, and hold messages for as long as its connection is open."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), *range(6))
        leave(b)
        frozen, drainer = b.client(ADMIN), b.client(ADMIN)
        frozen.auto_accept = False
        first = frozen.receiver(f"{source(b)}/traits", credit=4)
        assert frozen.bodies(first) == [0, 1, 2, 3]
        second = drainer.receiver(f"{source(b)}/traits")
        assert condition(first) == "amqp:link:stolen"
        assert drainer.bodies(second) == list(range(6))
        b.pass_time(0.1, 0.01)
        assert left(b)["empty"]


def test_messages_that_only_one_broker_of_a_cluster_has_go_to_a_drain_that_names_its_store() -> None:
    """Their sequences are those of other messages at another broker, and the target may hold those."""
    with bench(clustered=True, default_level="configuration", identity="s1") as b:
        b.upgraded()
        b.queue("q")
        b.queue("all", replicate="all")
        client = b.client()
        for queue in ("q", "all"):
            client.send(client.sender(queue), queue)
        leave(b)
        assert left(b)["local"] == "s1"
        drainer = b.client(ADMIN)
        uuid, other = b.broker.nodes.queues["q"].uuid, b.broker.nodes.queues["all"].uuid
        for address in (uuid, f"s2.{uuid}", f"s1.{other}", "s1.unknown", "s2.unknown"):
            assert condition(drainer.receiver(f"$drain/{address}")) == "amqp:not-found"
        for address, comes in ((f"s1.{uuid}", "q"), (f"{other}/traits", "all")):
            assert drainer.bodies(drainer.receiver(f"$drain/{address}")) == [comes]


def test_a_single_broker_needs_no_store_in_the_names_of_its_queues() -> None:
    with bench() as b:
        assert left(b)["local"] == ""


def test_a_broker_is_empty_only_behind_the_record_and_stays_so() -> None:
    with bench() as b:
        b.queue("q")
        assert not left(b)["empty"], "it does not leave"
        assert ask(b, "RELEASED")[0] == 409
        client = b.client()
        client.send(client.sender("q"), 1)
        first = leave(b)
        assert leave(b)["drain"] == first["drain"] != "", "again it is the same drain"
        status, text, _ = ask(b, "LEAVE", to=["x:1"], target="another one", spread=0)
        assert (status, text) == (
            409,
            f"this broker is already being drained to {', '.join(TO)}: finish or cancel that drain first",
        )
        assert not left(b)["empty"]
        drainer = b.client(ADMIN)
        drainer.receiver(source(b))
        b.pass_time(0.1, 0.01)
        assert left(b)["empty"]
        assert [ask(b, "RELEASED")[0] for _ in range(2)] == [200, 200]
        assert left(b)["released"]
        status, text, _ = ask(b, "CREATE")
        assert status == 501
        admin = b.client(ADMIN)
        status, text, _ = admin.request("CREATE", "queue", "new", {})
        assert (status, text) == (409, "this broker leaves; its queues are moved to other:5672, another:5673")
        assert condition(admin.sender("q")) == "amqp:link:redirect"
        assert condition(admin.receiver("q")) == "amqp:link:redirect"


def test_its_state_says_that_it_takes_no_clients_and_what_ends_that() -> None:
    """Breaks when a drained broker that was started again is `standalone`, closes all connections, and nothing says why."""
    with bench() as b:

        def notice() -> str:
            client = b.client(ADMIN)
            (item,) = client.request("QUERY", "ha")[2]["items"]
            return str(item["notice"])

        assert notice() == ""
        leave(b)
        end = "to other:5672, another:5673; qpid-drain --cancel ends that"
        assert notice() == f"this broker accepts no clients, because it is drained {end}"
        assert ask(b, "RELEASED")[0] == 200
        assert notice() == f"this broker accepts no clients, because it is empty: a drain has moved its messages {end}"


def test_a_subscriptions_own_queue_goes_and_one_that_others_use_stays_with_its_messages() -> None:
    with bench() as b:
        b.queue("shared", autoDelete=True)
        consumer, producer = b.client(), b.client()
        consumer.auto_accept = False
        consumer.receiver("shared")
        consumer.receiver("amq.fanout")
        producer.send(producer.sender("shared"), 1)
        assert len(b.broker.nodes.queues) == 2
        leave(b)
        assert list(b.broker.nodes.queues) == ["shared"]
        assert b.depth("shared") == 1


def test_a_primary_that_takes_over_finds_the_record_and_takes_no_client() -> None:
    with bench(clustered=True, default_level="all") as b, bench(clustered=True, state="ready", default_level="all") as other:
        b.upgraded()
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), 1)
        leave(b)
        b.lead.replayed_into(other.lead)
        other.lead.become("recovering")
        early = other.client()
        with capturedLogs() as events:
            other.lead.become("active")
        other.settle()
        why = "this broker accepts no clients, because it is drained to other:5672, another:5673; qpid-drain --cancel ends that"
        assert why in map(formatEvent, events)
        assert early.lost
        assert other.client().lost
        assert left(other)["drain"] == left(b)["drain"]
        assert other.client(ADMIN).receiver(source(other)).remote_source.address


def test_a_departure_that_is_not_committed_has_not_begun() -> None:
    """The term ends first: the next primary serves on."""
    with bench(clustered=True, default_level="all") as b:
        b.upgraded()
        b.queue("q")
        b.lead.automatic = False
        admin = b.client(ADMIN)
        reply = admin.receiver(None, dynamic=True)
        from tests.broker.clients import request

        admin.send_encoded(admin.sender("$management"), request("LEAVE", "drain", "", reply.remote_source.address, 1, {"to": TO}))
        assert b.broker.logs.closed
        b.lead.become("ready", "another:1")
        b.settle()
        ((_, answer),) = admin.received[reply.name]
        assert answer.properties["statusCode"] == 503
        b.lead.automatic = True
        b.lead.become("active")
        b.settle()
        assert LEAVING not in b.broker.lead.state.definitions.settings
        client = b.client()
        link = client.sender("q")
        client.send(link, 1)
        assert statuses(client, link) == [ACCEPTED]


@pytest.mark.parametrize("full", [True, False])
def test_a_record_that_does_not_fit_changes_nothing(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.core.limits.MAX_SETTINGS", 0 if full else 1)
    with bench() as b:
        b.queue("q")
        client = b.client()
        link = client.sender("q")
        assert ask(b, "LEAVE", to=TO, spread=0)[0] == (409 if full else 200)
        client.send(link, 1) if full else None
        assert statuses(client, link) == ([ACCEPTED] if full else [])


def test_the_page_on_management_lists_every_attribute_of_a_drain() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/management.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| `QUERY` | `drain` |"))
    with bench() as b:
        assert sorted(set(left(b)).difference(re.findall(r"\w+", row))) == []


def test_messages_that_are_larger_than_a_target_takes_are_told_before_anything_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drains, "LOOKED_AT", 2)
    with bench(part_bytes=16 * 1024, max_message_bytes=1 << 20) as b:
        b.queue("q")
        client = b.client()
        link = client.sender("q")
        for size in (10, 3000, 300_000, 10, 5000):
            client.send(link, "x" * size)
        assert left(b)["maxMessageBytes"] == 1 << 20
        found, after = list[tuple[int, int]](), 0
        while True:
            status, text, answer = ask(b, "LARGER", queue="q", than=2000, after=after)
            assert status == 200, text
            found.append((answer["count"], answer["first"]))
            if "next" not in answer:
                break
            after = answer["next"]
        assert sum(count for count, _ in found) == 3
        assert next(first for _, first in found if first) == 2
        assert ask(b, "LARGER", queue="q", than=200_000)[2]["largest"] > 300_000
        assert ask(b, "LARGER", queue="none", than=2000)[0] == 404
        assert [ask(b, "LARGER", queue="q", than=than, after=after)[0] for than, after in ((-1, 0), (5, "x"))] == [400, 400]


def test_of_several_targets_a_producer_hears_of_the_one_to_which_its_queue_goes() -> None:
    with bench() as b:
        for name in ("here", "there"):
            b.queue(name)
        uuid = b.broker.nodes.queues["there"].uuid
        producer = b.client()
        links = [producer.sender(name) for name in ("here", "there")]
        for sizes, queues in (([1], {}), ([1, 0], {}), (["1", 1], {}), ([1, 1], {uuid: 2}), ([1, 1], [uuid]), ([], {uuid: 0})):
            assert ask(b, "LEAVE", to=TO, sizes=sizes, queues=queues)[0] == 400
        for _ in range(2):
            answer = ask(b, "LEAVE", to=TO, target="x,y", sizes=[1, 1], queues={uuid: 1})[2]
            assert answer["queues"] == {uuid: 1}
        ports = [link.remote_condition.info["port"] for link in links]
        assert ports == [5672, 5673]


def test_a_drain_that_knows_traits_gets_messages_as_they_were_sent_and_delayed_ones_too() -> None:
    with bench() as b:
        b.queue("q", arguments={"x-message-ttl": 90_000, "x-delivery-limit": 5})
        client = b.client()
        client.auto_accept = False
        out = client.sender("q")
        client.send(out, "failed", ttl=60)
        taking = client.receiver("q", credit=1)
        client.give(client.received[taking.name][0][0], proton.Delivery.MODIFIED, failed=True)
        taking.close()
        delay = {proton.symbol("x-opt-delivery-delay"): 3_600_000}
        client.send(out, "delayed", annotations=delay)
        client.send(out, "plain")
        b.pass_time(5)
        leave(b)
        assert left(b)["traits"]
        drainer = b.client(ADMIN)
        drainer.auto_accept = False
        drainer.receiver(f"{source(b)}/traits", name="the drain's")
        found = {message.body: (traits_in(each), message) for each, message in drainer.received["the drain's"]}
        traits = {text: found_traits for text, (found_traits, _) in found.items()}
        now_ms = b.lead.ledger.now_ms
        assert found["failed"][1].delivery_count == 0, "as it was sent: the tag has its count"
        assert found["failed"][1].ttl == 60
        assert traits["failed"].failures == 1
        assert 0 < traits["failed"].expires_ms - now_ms <= 55_000, "what is left of its time"
        assert 0 < traits["plain"].expires_ms - now_ms <= 85_000
        assert 3_590_000 < traits["delayed"].available_ms - now_ms <= 3_595_000
        assert (traits["plain"].available_ms, traits["plain"].failures) == (0, 0)
        drainer.connection.close()
        b.settle()
        drainer = b.client(ADMIN)
        drainer.auto_accept = False
        drainer.receiver(source(b), name="the drain's")
        assert sorted(message.body for _, message in drainer.received["the drain's"]) == ["failed", "plain"], "it waits again"


def test_messages_do_not_expire_on_a_broker_that_leaves_but_at_its_target_or_when_it_serves_again() -> None:
    """The target may have them already, and would get them once more as dead letters."""
    with bench() as b:
        b.queue("dead")
        admin = b.client(ADMIN)
        admin.request("CREATE", "exchange", "dlx", {"exchangeType": "fanout"})
        admin.request("CREATE", "binding", "", {"exchange": "dlx", "queue": "dead", "key": ""})
        admin.connection.close()
        b.queue("q", alternateExchange="dlx")
        client = b.client()
        client.send(client.sender("q"), "m", ttl=2)
        drain = leave(b)["drain"]
        b.pass_time(4)
        assert (b.depth("q"), b.depth("dead")) == (1, 0)
        drainer = b.client(ADMIN)
        drainer.auto_accept = False
        drainer.receiver(f"{source(b)}/traits", name="the drain's")
        [(delivery, _)] = drainer.received["the drain's"]
        assert 0 < traits_in(delivery).expires_ms < b.lead.ledger.now_ms
        drainer.connection.close()
        b.pass_time(2)
        assert (b.depth("q"), b.depth("dead")) == (1, 0)
        assert [ask(b, operation, drain=drain)[0] for operation in ("HALT", "REOPEN")] == [200, 200]
        b.pass_time(1)
        assert (b.depth("q"), b.depth("dead")) == (0, 1)


@pytest.mark.parametrize("why", ["expired", "failed"])
def test_a_message_whose_dead_letter_waits_when_a_drain_begins_goes_one_way_with_the_drain(why: str) -> None:
    """Breaks when the target gets it from the drain, and once more as the dead letter that the source sends meanwhile."""
    with bench(clustered=True) as b:
        b.upgraded()
        local = b.logs[LOCAL]
        local.automatic = False  # the queue of dead letters has no place for messages until this is committed
        b.lead.take(creating("dead", level="configuration"))
        client = b.client()
        client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "dead", "key": ""})
        body = {"alternateExchange": "amq.fanout", "replicate": "all", "arguments": {"x-delivery-limit": 1}}
        assert client.request("CREATE", "queue", "q", body)[0] == 201
        client.auto_accept = False
        client.send(client.sender("q"), "m", ttl=2 if why == "expired" else 600)
        if why == "failed":
            client.give(client.received[client.receiver("q", credit=1).name][0][0], proton.Delivery.MODIFIED, failed=True)
        b.pass_time(4)
        client.connection.close()
        b.settle()
        assert b.depth("q") == 1
        drain = leave(b)["drain"]
        drainer = b.client(ADMIN)
        drainer.auto_accept = False
        drainer.receiver(f"{source(b)}/traits", name="the drain's")
        [(delivery, _)] = drainer.received["the drain's"]
        assert traits_in(delivery).failures == int(why == "failed")
        local.commit()
        local.automatic = True
        b.pass_time(3)
        assert (b.depth("q"), b.depth("dead")) == (1, 0)
        drainer.connection.close()
        b.settle()
        assert [ask(b, operation, drain=drain)[0] for operation in ("HALT", "REOPEN")] == [200, 200]
        b.pass_time(2)
        assert (b.depth("q"), b.depth("dead")) == (0, 1), "the drain was cancelled"


@pytest.mark.parametrize("before", [True, False])
def test_a_large_message_that_has_failed_too_often_and_cannot_become_a_dead_letter_goes_with_the_drain(before: bool) -> None:
    """Breaks when a drain never ends because of it. `before`: the last failure comes before the drain begins."""
    with bench(part_bytes=16 * 1024) as b:
        b.queue("dead", arguments={"qpid.group_header_key": "g"})
        b.client()  # silent for longer, and so the first that is cut off
        client = b.client()
        client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "dead", "key": ""})
        b.queue("q", alternateExchange="amq.fanout", arguments={"x-delivery-limit": 1})
        client.auto_accept = False
        client.send(client.sender("q"), "x" * LARGE)
        [(delivery, _)] = client.received[client.receiver("q", credit=1).name]
        if before:
            client.give(delivery, proton.Delivery.MODIFIED, failed=True)
            b.pass_time(3)
        leave(b, spread=0 if before else 10)
        if not before:
            client.give(delivery, proton.Delivery.MODIFIED, failed=True)
            b.pass_time(12)
        drainer = b.client(ADMIN)
        drainer.receiver(f"{source(b)}/traits", name="the drain's")
        b.pass_time(2)
        [(delivery, message)] = drainer.received["the drain's"]
        assert (traits_in(delivery).failures, len(message.body)) == (1, LARGE)
        assert b.depth("q") == 0


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("why", ["the disk is nearly full", "a queue with groups"])
def test_a_rejected_message_that_cannot_become_a_dead_letter_goes_with_the_drain(why: str, before: bool) -> None:
    """Breaks when a drain never ends because of it. `before`: it is rejected before the drain begins."""
    with bench(part_bytes=16 * 1024) as b:
        b.queue("dead", arguments={"qpid.group_header_key": "g"})
        b.client()  # silent for longer, and so the first that is cut off
        client = b.client()
        client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "dead", "key": ""})
        b.queue("q", alternateExchange="amq.fanout")
        client.auto_accept = False
        client.send(client.sender("q"), *(["x" * LARGE] if why == "a queue with groups" else ["a", "b", "c"]))
        n = b.depth("q")
        if why == "the disk is nearly full":
            b.lead.ledger.on_storage_low(why, 0)
        receiver = client.receiver("q", credit=10)
        held = [delivery for delivery, _ in client.received[receiver.name]]
        for delivery in held if before else ():
            client.give(delivery, proton.Delivery.REJECTED)
        b.pass_time(3)
        leave(b, spread=0 if before else 10)
        for delivery in () if before else held:
            client.give(delivery, proton.Delivery.REJECTED)
        b.pass_time(12)
        drainer = b.client(ADMIN)
        drainer.receiver(f"{source(b)}/traits", name="the drain's")
        b.pass_time(3)
        assert (len(drainer.received["the drain's"]), b.depth("q")) == (n, 0)


def test_a_large_message_comes_as_it_was_sent_with_traits_too() -> None:
    with bench(part_bytes=16 * 1024) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "x" * LARGE, ttl=60)
        b.pass_time(5)
        leave(b)
        drainer = b.client(ADMIN)
        drainer.auto_accept = False
        drainer.receiver(f"{source(b)}/traits", name="the drain's")
        [(delivery, message)] = drainer.received["the drain's"]
        assert message.ttl == 60
        assert 0 < traits_in(delivery).expires_ms - b.lead.ledger.now_ms <= 55_000
        assert condition(b.client(ADMIN).receiver(f"{source(b)}/else")) == "amqp:link:redirect", "it is no such source"
