"""Exchanges that number what goes through them (`--sequence`), and those that give new bindings their last message (`--ive`):
whichever way a message goes through, and whoever is the primary."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.filters import NO_LOCAL, SELECTOR
from broker.core.nodes import CLUSTER, LOCAL
from broker.core.passage import INITIAL_VALUE, SEQUENCE
from broker.core.planning import plan_binding
from tests.broker.clients import ACCEPTED, ADMIN, Bench, bench, statuses
from tests.broker.route_bench import network
from tests.broker.sessions.test_transactions import Transactor
from tests.broker.test_subscriptions import described, subscribe

BOTH = {SEQUENCE: 1, INITIAL_VALUE: 1}


def exchange(b: Bench, name: str = "e", kind: str = "fanout", arguments: dict[str, Any] | None = None, **more: Any) -> None:
    body = {"exchangeType": kind, "arguments": {SEQUENCE: 1} if arguments is None else arguments} | more
    status, text, _ = b.client(ADMIN).request("CREATE", "exchange", name, body)
    assert status == 201, text


def bound(b: Bench, queue: str, key: str = "", name: str = "e", **attributes: Any) -> None:
    b.queue(queue, **attributes)
    bind(b, queue, key, name)


def bind(b: Bench, queue: str, key: str = "", name: str = "e") -> None:
    status, text, _ = b.client(ADMIN).request("CREATE", "binding", "", {"exchange": name, "queue": queue, "key": key})
    assert status == 201, text


def got(b: Bench, queue: str, *, browse: bool = True) -> list[tuple[int | None, Any]]:
    """Number and body of each message on a queue, which stays on it if it is only browsed."""
    client = b.client()
    link = client.receiver(queue, browse=browse)
    found = [message for _, message in client.received[link.name]]
    client.connection.close()
    b.settle()
    return [((message.annotations or {}).get(proton.symbol(SEQUENCE)), message.body) for message in found]


def test_every_way_through_an_exchange_counts_on() -> None:
    """By a link, through the anonymous terminus, as a dead letter, rerouted by an operator and in a transaction."""
    with bench() as b:
        exchange(b)
        bound(b, "q")
        b.queue("source", alternateExchange="e")
        client = b.client()
        client.send(client.sender("e"), "link")
        client.send(client.sender(None), "relay", address="e")
        client.send(client.sender("source"), "rejected", "rerouted")
        taker = b.client()
        taker.auto_accept = False
        link = taker.receiver("source", credit=1)
        taker.give(taker.received[link.name][0][0], proton.Delivery.REJECTED)
        link.close()
        b.settle()
        status, text, _ = b.client(ADMIN).request("REROUTE", "queue", "source", {"exchange": "e"})
        assert status == 200, text
        work = Transactor(b)
        txn_id, sender = work.declare(), work.client.sender("e")
        work.post(sender, txn_id, "one", "two")
        assert work.discharge(txn_id).remote_state == proton.Delivery.ACCEPTED
        client.send(client.sender("e"), "last")
        ways = ["link", "relay", "rejected", "rerouted", "one", "two", "last"]
        assert got(b, "q") == list(enumerate(ways, 1))


def test_a_transaction_that_is_not_carried_out_takes_no_number_and_one_that_nobody_wants_takes_its_own() -> None:
    with bench() as b:
        exchange(b, arguments=BOTH)
        work = Transactor(b)
        sender = work.client.sender("e")
        for fails in (True, False):
            txn_id = work.declare()
            work.post(sender, txn_id, "undone" if fails else "done")
            assert work.discharge(txn_id, fail=fails).remote_state == proton.Delivery.ACCEPTED
        bound(b, "q")
        assert got(b, "q") == [(1, "done")]
        txn_id = work.declare()
        work.post(sender, txn_id, "x" * limits.MAX_INITIAL_VALUE_BYTES)
        assert work.discharge(txn_id).remote_state == proton.Delivery.REJECTED


def test_what_a_route_fetches_is_numbered_whatever_the_levels_of_the_queues_are() -> None:
    with network() as net:
        net.add("a")
        net.ask("a", "CREATE", "queue", "out")
        net.add("p", clustered=True)
        net.ask("p", "CREATE", "exchange", "e", exchangeType="fanout", arguments=BOTH, replicate="all")
        for queue, level in (("all", "all"), ("mine", "none")):
            net.ask("p", "CREATE", "queue", queue, replicate=level)
        net.ask("p", "CREATE", "binding", exchange="e", queue="all", key="")
        net.send("a", "out", 1, 2)
        net.route("p", "a", "e", "out")
        net.ask("p", "CREATE", "binding", exchange="e", queue="mine", key="")
        net.send("a", "out", 3)
        found = {
            queue: [(each.annotations[SEQUENCE], each.body) for each in net.messages("p", queue)] for queue in ("all", "mine")
        }
        assert found == {"all": [(1, 1), (2, 2), (3, 3)], "mine": [(2, 2), (3, 3)]}


def test_what_several_queues_get_has_one_number_and_what_nobody_gets_has_one_too() -> None:
    with bench() as b:
        exchange(b, kind="direct")
        bound(b, "one", "k")
        bound(b, "two", "k")
        client = b.client()
        sender = client.sender("e")
        for subject in ("k", "nobody", "k"):
            client.send(sender, subject, subject=subject)
        assert statuses(client, sender) == [ACCEPTED] * 3
        assert got(b, "one") == got(b, "two") == [(1, "k"), (3, "k")]


def test_a_message_that_is_refused_takes_no_number() -> None:
    with bench() as b:
        exchange(b)
        bound(b, "q", arguments={"qpid.max_count": 1})
        client = b.client()
        sender = client.sender("e")
        client.send(sender, 1, 2)
        assert got(b, "q", browse=False) == [(1, 1)]
        b.pass_time(1.0)
        client.send(sender, 3)
        assert got(b, "q") == [(2, 3)]


def test_an_alternate_exchange_that_numbers_gives_the_number() -> None:
    with bench() as b:
        exchange(b, "spill")
        bound(b, "q", name="spill")
        exchange(b, kind="direct", alternateExchange="spill")
        client = b.client()
        client.send(client.sender("e"), "a", "b")
        assert got(b, "q") == [(1, "a"), (2, "b")]


def test_the_numbers_go_on_behind_what_was_committed_when_a_new_primary_begins() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        exchange(b, arguments=BOTH, replicate="all")
        bound(b, "q", replicate="all")
        log, client = b.logs[CLUSTER], b.client()
        sender = client.sender("e")
        client.send(sender, "a", "b")
        log.automatic = False
        client.send(sender, "lost with its primary")
        log.become("ready")
        log.automatic = True
        passage = b.broker.nodes.exchanges["e"].passage
        assert passage is not None
        passage.go_on(None)  # as a broker has it that was a backup until now
        log.become("active")
        b.settle()
        bound(b, "late", replicate="all")
        client = b.client()
        client.send(client.sender("e"), "c")
        assert got(b, "q") == [(1, "a"), (2, "b"), (3, "c")]
        assert got(b, "late") == [(2, "b"), (3, "c")]


def test_an_accept_waits_until_the_number_is_committed_in_the_exchange_s_log() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        exchange(b, replicate="all")
        bound(b, "q", replicate="none")
        client = b.client()
        sender = client.sender("e")
        b.logs[CLUSTER].automatic = False
        client.send(sender, "a")
        assert b.depth("q") == 1, "the queue is this broker's own"
        assert statuses(client, sender) == []
        b.logs[CLUSTER].automatic = True
        b.logs[CLUSTER].commit()
        b.settle()
        assert statuses(client, sender) == [ACCEPTED]


def test_large_messages_are_refused_where_they_would_be_numbered() -> None:
    with bench() as b:
        exchange(b)
        bound(b, "q")
        client = b.client()
        sender = client.sender("e")
        (delivery,) = client.send(sender, "x" * (2 * limits.LARGE_PARTS * limits.PART_BYTES))
        assert delivery.remote.condition.name == "amqp:resource-limit-exceeded"
        assert "exchange 'e' numbers or keeps its messages" in delivery.remote.condition.description


# ---- initial values


@pytest.mark.parametrize("clustered", [False, True])
def test_a_new_binding_gets_the_last_message_with_its_number_and_others_get_nothing_again(clustered: bool) -> None:
    with bench(clustered=clustered) as b:
        b.upgraded()
        exchange(b, arguments=BOTH, replicate="all")
        bound(b, "there", replicate="all")
        client = b.client()
        client.send(client.sender("e"), "old", "new")
        for queue, level in (("late", "all"), ("mine", "none"), ("kept", "configuration")):
            bound(b, queue, replicate=level)
            assert got(b, queue) == [(2, "new")], level
        assert b.depth("there") == 2
        assert b.broker.nodes.owed() == []
        bind(b, "late", "other")
        assert got(b, "late") == [(2, "new")], "what it has by one binding it does not get by another"


def test_a_value_that_a_binding_does_not_match_or_that_has_expired_is_given_to_nobody() -> None:
    with bench() as b:
        exchange(b, kind="topic", arguments={INITIAL_VALUE: True})
        client = b.client()
        client.send(client.sender("e"), "x", subject="a.b", ttl=1.0)
        bound(b, "other", "b.#")
        bound(b, "in-time", "a.#")
        b.pass_time(2.0)
        bound(b, "late", "a.#")
        assert [b.depth(queue) for queue in ("other", "late")] == [0, 0]
        assert b.broker.nodes.owed() == []


@pytest.mark.parametrize("limit", [{"qpid.max_count": 2}, {"qpid.max_size": 1500}])
@pytest.mark.parametrize("policy", ["reject", "ring"])
def test_who_binds_a_queue_again_and_again_puts_no_more_on_it_than_it_may_hold(limit: dict[str, int], policy: str) -> None:
    with bench() as b:
        exchange(b, arguments={INITIAL_VALUE: True})
        b.queue("q", arguments=limit | {"qpid.policy_type": policy})
        client, admin = b.client(), b.client(ADMIN)
        client.send(client.sender("e"), "x" * 600)
        for _ in range(5):
            bind(b, "q")
            assert admin.request("DELETE", "binding", "", {"exchange": "e", "queue": "q", "key": ""})[0] == 204
        assert b.depth("q") == 2
        assert b.broker.nodes.owed() == []


def test_a_value_takes_no_message_from_the_consumer_that_has_it() -> None:
    with bench() as b:
        exchange(b, arguments={INITIAL_VALUE: True})
        b.queue("q", arguments={"qpid.max_count": 1, "qpid.policy_type": "ring_strict"})
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), "mine")
        link = client.receiver("q")
        client.send(client.sender("e"), "x")
        bind(b, "q")
        client.give(client.received[link.name][0][0], proton.Delivery.RELEASED)
        b.pass_time(0.1)
        assert client.bodies(link) == ["mine", "mine"]


def test_a_value_expires_when_its_message_does_whenever_it_is_given() -> None:
    with bench() as b:
        exchange(b, arguments={INITIAL_VALUE: True})
        client = b.client()
        client.send(client.sender("e"), "x", ttl=3.0)
        b.pass_time(2.0)
        bound(b, "q")
        assert b.depth("q") == 1
        b.pass_time(2.0)
        assert b.depth("q") == 0


@pytest.mark.parametrize("ttl, there_s", [(0.0, 2.0), (3600.0, 2.0), (2.0, 0.5)], ids=["none", "longer", "shorter"])
def test_a_value_expires_by_the_time_of_its_new_queue_or_by_its_own_whichever_ends_first(ttl: float, there_s: float) -> None:
    with bench() as b:
        exchange(b, arguments={INITIAL_VALUE: True})
        client = b.client()
        client.send(client.sender("e"), "x", ttl=ttl)
        b.pass_time(1.0)
        bound(b, "q", arguments={"x-message-ttl": 2_500})
        b.pass_time(there_s)
        assert b.depth("q") == 1
        b.pass_time(1.0)
        assert b.depth("q") == 0


def test_a_value_that_is_delayed_lives_as_long_as_its_new_queue_says_from_then_on() -> None:
    with bench() as b:
        exchange(b, arguments={INITIAL_VALUE: True})
        client = b.client()
        client.send(client.sender("e"), "x", annotations={proton.symbol("x-opt-delivery-delay"): 5_000})
        bound(b, "q", arguments={"x-message-ttl": 2_000})
        b.pass_time(6.0)
        assert got(b, "q") == [(None, "x")]
        b.pass_time(2.0)
        assert b.depth("q") == 0


def test_a_subscriber_gets_the_last_message_and_then_what_comes_as_its_filters_say() -> None:
    with bench() as b:
        exchange(b, arguments=BOTH)
        client = b.client()
        sender = client.sender("e")
        client.send(sender, "one", properties={"n": 1})
        filters = {proton.symbol("s"): proton.Described(proton.symbol(SELECTOR), "n > 1")}
        plain, picky = b.client(), b.client()
        all_of_it, some = plain.receiver("e"), picky.receiver("e", filters=filters)
        client.send(sender, "two", properties={"n": 2})
        assert plain.bodies(all_of_it) == ["one", "two"]
        assert picky.bodies(some) == ["two"]


@pytest.mark.parametrize("way", ["link", "relay", "transaction"])
def test_a_subscriber_that_wants_nothing_of_its_own_does_not_get_it_as_the_last_message_either(way: str) -> None:
    filters = described(NO_LOCAL, [])
    with bench() as b:
        exchange(b, arguments=BOTH)
        one = Transactor(b, client=b.client(container="ann"))
        client = one.client
        sender = client.sender(None if way == "relay" else "e")
        address: Any = {"address": "e"} if way == "relay" else {}
        if way == "transaction":
            txn_id = one.declare()
            one.post(sender, txn_id, "own")
            one.discharge(txn_id)
        else:
            client.send(sender, "own", **address)
        same, other = b.client(container="ann"), b.client(container="bob")
        assert client.bodies(client.receiver("e", filters=filters)) == []
        assert same.bodies(same.receiver("e", filters=filters)) == ["own"], "it is another connection"
        assert same.bodies(subscribe(same, "lasting", "e", filters=filters)) == [], "here the container counts"
        assert other.bodies(other.receiver("e", filters=filters)) == ["own"]
        other.send(other.sender("e"), "another's")
        assert client.bodies(client.receiver("e", name="later", filters=filters)) == ["another's"]


def test_nothing_is_missing_between_the_value_and_what_the_binding_brings() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        exchange(b, arguments={INITIAL_VALUE: 1}, replicate="all")
        b.queue("q", replicate="all")
        client = b.client()
        sender = client.sender("e")
        client.send(sender, "before")
        b.logs[CLUSTER].automatic = False
        b.broker.lead.change(_binding(b), lambda reason: None)
        b.settle()
        client.send(sender, "while the binding is under way")
        b.logs[CLUSTER].automatic = True
        b.logs[CLUSTER].commit()
        b.settle()
        client.send(sender, "after")
        assert [body for _, body in got(b, "q")] == ["while the binding is under way", "after"]


def _binding(b: Bench) -> Any:
    return plan_binding(b.broker.nodes, "e", "q", "", {})[1]


def test_a_new_primary_pays_what_the_one_before_owed() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        exchange(b, arguments={INITIAL_VALUE: 1}, replicate="all")
        b.queue("q", replicate="all")
        client = b.client()
        client.send(client.sender("e"), "x")
        log = b.logs[CLUSTER]
        log.automatic = False
        b.broker.lead.change(_binding(b), lambda reason: None)
        b.settle()
        log.commit(1)
        assert len(b.broker.nodes.owed()) == 1
        log.become("ready")
        log.automatic = True
        log.become("active")
        b.settle()
        assert b.depth("q") == 1
        assert b.broker.nodes.owed() == []


def test_what_is_too_long_to_be_kept_is_refused_with_a_reason() -> None:
    with bench() as b:
        exchange(b, arguments={INITIAL_VALUE: 1})
        client = b.client()
        (delivery,) = client.send(client.sender("e"), "x" * limits.MAX_INITIAL_VALUE_BYTES)
        assert delivery.remote.condition.name == "amqp:resource-limit-exceeded"
        assert "takes messages of up to 65536 bytes" in delivery.remote.condition.description


def test_a_local_log_of_its_own_keeps_its_exchanges_numbers_over_a_restart() -> None:
    with bench() as b, bench(start=False) as other:
        exchange(b, arguments=BOTH)
        bound(b, "q")
        client = b.client()
        client.send(client.sender("e"), "a", "b")
        b.logs[LOCAL].replayed_into(other.logs[LOCAL])
        other.start()
        again = other.client()
        again.send(again.sender("e"), "c")
        assert got(other, "q")[-1] == (3, "c")
        bound(other, "late")
        assert got(other, "late") == [(3, "c")]
