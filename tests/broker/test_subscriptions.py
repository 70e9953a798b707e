"""Subscriptions to exchanges that outlast their links, or are shared: with the fields that clients of JMS send."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.commands import MACHINE_VERSION, MachineVersion
from broker.core.filters import NO_LOCAL, SELECTOR
from broker.sessions.origins import origin_address
from tests.broker import test_departure
from tests.broker.clients import ADMIN, Bench, Client, bench, condition, request
from tests.broker.drain_bench import body as encoded
from tests.broker.drain_bench import send
from tests.broker.test_acl import enforce

NEVER, DELIVERIES = proton.Terminus.EXPIRE_NEVER, proton.Terminus.DELIVERIES


def described(name: str, value: Any) -> dict[Any, Any]:
    return {proton.symbol(name): proton.Described(proton.symbol(name), value)}


def subscribe(
    client: Client,
    name: str,
    address: str | None = "amq.topic",
    *capabilities: str,
    durable: bool = True,
    keep_s: int = 0,
    credit: int = 100,
    filters: dict[Any, Any] | None = None,
) -> Any:
    """Attach as Qpid JMS does: durable 2 and never to expire, or neither. No address: a source that is null."""
    link: Any = client.session.receiver(name)
    if address is None:
        link.source.type = proton.Terminus.UNSPECIFIED
    else:
        link.source.address = address
        if durable:
            link.source.durability, link.source.expiry_policy = DELIVERIES, NEVER
        else:
            link.source.expiry_policy = proton.Terminus.EXPIRE_WITH_LINK
        if keep_s:
            link.source.timeout = keep_s
        if capabilities:
            link.source.capabilities.put_object([proton.symbol(each) for each in capabilities])
        if filters:
            link.source.filter.put_dict(filters)
    link.open()
    client.received[name] = []
    if credit:
        link.flow(credit)
    client.bench.settle()
    return link


def publish(b: Bench, *bodies: Any, address: str = "amq.topic", **fields: Any) -> None:
    client = b.client(container="publisher")
    client.send(client.sender(address), *bodies, **fields)
    client.lose()


def leave(client: Client, link: Any, how: str) -> None:
    """End a link: detach it, close it, or lose its connection."""
    if how == "lose":
        client.lose()
    else:
        getattr(link, how)()
    client.bench.settle()


def queues(b: Bench) -> list[str]:
    return sorted(b.broker.nodes.queues)


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"durability": 1}, (NEVER, 0)),
        ({"durability": 2, "timeout": 0}, (NEVER, 0)),
        ({"expiry_policy": NEVER, "timeout": 30}, (NEVER, 0)),
        ({"timeout": 30}, (proton.Terminus.EXPIRE_WITH_LINK, 30)),
    ],
)
def test_the_attach_of_a_subscription_says_how_long_it_stays(asked: dict[str, int], said: tuple[int, int]) -> None:
    with bench() as b:
        client = b.client(container="ann")
        link = client.session.receiver("news")
        link.source.address = "amq.topic"
        for name, value in asked.items():
            setattr(link.source, name, value)
        link.open()
        b.settle()
        resumed = subscribe(b.client(container="ann"), "news", None)
        for source in (link.remote_source, resumed.remote_source):
            assert (source.durability, source.expiry_policy, source.timeout) == (DELIVERIES, *said)
            assert source.address == "amq.topic"


def test_a_subscription_s_messages_are_not_browsed_and_its_attach_says_so() -> None:
    with bench() as b:
        client = b.client(container="ann")
        link = client.session.receiver("news")
        link.source.address, link.source.durability = "amq.topic", DELIVERIES
        link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
        link.open()
        b.settle()
        assert link.remote_source.distribution_mode == proton.Terminus.DIST_MODE_MOVE
        volatile = subscribe(client, "some|volatile1", "amq.topic", "shared", durable=False)
        source = volatile.remote_source
        assert (source.durability, source.expiry_policy) == (0, proton.Terminus.EXPIRE_WITH_LINK), "as it was asked for"


@pytest.mark.parametrize("how", ["detach", "lose"])
def test_what_is_published_while_a_durable_subscription_is_away_comes_when_it_is_back(how: str) -> None:
    with bench() as b:
        client = b.client(container="ann")
        link = subscribe(client, "news")
        assert (link.remote_source.durability, link.remote_source.expiry_policy) == (DELIVERIES, NEVER)
        publish(b, "one")
        leave(client, link, how)
        publish(b, "two", "three")
        again = b.client(container="ann")
        assert client.bodies(link) + again.bodies(subscribe(again, "news")) == ["one", "two", "three"]
        assert queues(b) == ["ann.news"]


def test_a_subscription_belongs_to_its_container_and_its_name() -> None:
    """Breaks when names that differ become one: the dots and delimiters in them are told apart."""
    with bench() as b:
        for container, name in (("a.b", "c"), ("a", "b.c"), ("a", "b"), ("a|b", "c"), ("$a", "b"), ("a", "b%2E")):
            assert condition(subscribe(b.client(container=container), name)) == ""
        assert len(queues(b)) == 6
        assert "a%2Eb.c" in queues(b)
        assert "%24a.b" in queues(b)
        assert condition(subscribe(b.client(container=""), "c")) == "amqp:invalid-field"
        assert condition(subscribe(b.client(container="a" * 250), "news!")) == "amqp:invalid-field"


def test_a_link_that_is_closed_ends_its_subscription_and_hears_so_when_it_is_committed() -> None:
    with bench(automatic=False) as b:
        client = b.client(container="ann")
        link = subscribe(client, "news")
        b.lead.commit()
        b.settle()
        assert link.state & proton.Endpoint.REMOTE_ACTIVE
        link.close()
        b.settle()
        assert link.state & proton.Endpoint.REMOTE_ACTIVE, "the end is not committed"
        b.lead.commit()
        b.settle()
        assert link.state & proton.Endpoint.REMOTE_CLOSED
        assert queues(b) == []


def test_who_attaches_while_a_subscription_ends_or_begins_waits_for_that() -> None:
    """Breaks when it gets a queue that is about to go, or when two queues are proposed for one name."""
    with bench(automatic=False) as b:
        one, two = b.client(container="ann"), b.client(container="bob")
        links = [subscribe(each, f"news|global{n}", "amq.topic", "shared", "global") for n, each in enumerate((one, two))]
        b.lead.commit()
        b.settle()
        b.lead.commit()
        b.settle()
        (queue,) = b.broker.nodes.queues.values()
        assert b.broker.queues.consumers(queue) == 2
        links[0].detach()
        links[1].close()
        b.settle()
        late = subscribe(b.client(container="eve"), "news|global", "amq.topic", "shared", "global")
        gone = subscribe(b.client(container="joe"), "news|global", "amq.topic", "shared", "global")
        gone.close()
        b.settle()
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert condition(late) == ""
        assert late.remote_source.address == "amq.topic"
        assert queues(b) == [".news"]
        assert b.broker.nodes.queues[".news"].uuid != queue.uuid


def test_a_null_source_finds_what_stands_and_its_close_ends_that() -> None:
    """As Qpid JMS unsubscribes: by a link of the first one's name, without a source, which it closes."""
    with bench() as b:
        client = b.client(container="ann")
        wanted = described(SELECTOR, "n > 1")
        subscribe(client, "news", filters=wanted).detach()
        subscribe(client, "mine|global", "amq.topic/a.#", "shared", "global").detach()
        b.settle()
        for name, address in (("news", "amq.topic"), ("mine|global", "amq.topic/a.#")):
            found = subscribe(client, name, None, credit=0)
            assert found.remote_source.address == address
            assert found.remote_source.expiry_policy == NEVER
            if name == "news":
                found.remote_source.filter.rewind()
                found.remote_source.filter.next()
                assert found.remote_source.filter.get_object() == wanted
            found.close()
            b.settle()
            missing = subscribe(client, name, None)
            assert (condition(missing), missing.remote_source.type) == ("amqp:not-found", proton.Terminus.UNSPECIFIED)
        assert queues(b) == []


def test_a_subscription_that_others_use_is_not_ended_by_who_comes_to_unsubscribe() -> None:
    with bench() as b:
        client, other = b.client(container="ann"), b.client(container="bob")
        subscribe(other, "news|global", "amq.topic", "shared", "global")
        found = subscribe(client, "news|global", None, credit=0)
        found.close()
        b.settle()
        assert condition(found) == "amqp:resource-locked"
        left = subscribe(client, "news|global2", "amq.topic", "shared", "global")
        left.close()
        b.settle()
        assert condition(left) == "", "it only leaves the others alone"
        assert queues(b) == [".news"]


@pytest.mark.parametrize("browse", [True, False])
def test_who_takes_from_the_queue_of_a_subscription_does_not_keep_it(browse: bool) -> None:
    """Breaks when the subscription of a client that has closed its link stays for ever, because somebody looked into it."""
    with bench() as b:
        client, other = b.client(container="ann"), b.client()
        link = subscribe(client, "news", "amq.topic", *(() if browse else ("shared",)))
        reader = other.receiver("ann.news", browse=browse)
        link.close()
        b.settle()
        assert (condition(link), queues(b)) == ("", [])
        assert condition(reader) == "amqp:resource-deleted"


@pytest.mark.parametrize("how", ["close", "detach", "lose"])
@pytest.mark.parametrize("denied", [False, True])
def test_a_link_that_is_closed_before_its_attach_is_answered_leaves_no_subscription(how: str, denied: bool) -> None:
    """Breaks when it collects messages that nobody wants any more."""
    with bench(automatic=False) as b:
        if denied:
            enforce(b, "acl deny all delete queue\nacl allow all all")
        client = b.client(container="ann")
        leave(client, subscribe(client, "news"), how)
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert queues(b) == ([] if how == "close" and not denied else ["ann.news"])


def test_links_that_share_a_subscription_share_its_messages() -> None:
    with bench() as b:
        ann = b.client(container="ann")
        shared = [subscribe(ann, name, "amq.topic", "topic", "shared", credit=1) for name in ("news", "news|2")]
        publish(b, "one", "two")
        assert sorted(body for link in shared for body in ann.bodies(link)) == ["one", "two"]
        assert [len(ann.bodies(link)) for link in shared] == [1, 1]
        assert condition(subscribe(b.client(container="bob"), "news", "amq.topic", "shared")) == "", "another's, with that name"
        assert queues(b) == ["ann.news", "bob.news"]


def test_a_shared_subscription_that_is_not_durable_goes_with_its_last_link_and_with_its_broker() -> None:
    with bench() as b:
        ann, bob = b.client(container="ann"), b.client(container="bob")
        first = subscribe(ann, "news|global-volatile1", "amq.topic", "shared", "global", durable=False)
        subscribe(bob, "news|global-volatile1", "amq.topic", "shared", "global", durable=False)
        durable = subscribe(ann, "news|global", "amq.topic", "shared", "global")
        assert queues(b) == [".news", ".news|volatile"]
        first.close()
        b.settle()
        publish(b, "one")
        assert len(queues(b)) == 2
        committed = b.lead
        other = Bench(start=False)
        committed.replayed_into(other.lead)
        other.start()
        assert queues(other) == [".news"], "who starts again has nobody that uses it"
        other.close()
        bob.lose()
        durable.detach()
        b.settle()
        assert queues(b) == [".news"]


@pytest.mark.parametrize("shared", [(), ("shared",)], ids=["alone", "shared"])
@pytest.mark.parametrize("change", [{"address": "amq.topic/a"}, {"filters": described(SELECTOR, "n > 1")}])
def test_other_terms_make_a_new_subscription_when_nobody_uses_the_old_one(shared: tuple[str, ...], change: Any) -> None:
    with bench() as b:
        client = b.client(container="ann")
        first = subscribe(client, "news", "amq.topic", *shared)
        publish(b, "old")
        if shared:
            other = {"address": "amq.topic"} | change
            refused = subscribe(client, "news|2", other["address"], *shared, filters=other.get("filters"))
            assert condition(refused) == "amqp:resource-locked"
        first.detach()
        b.settle()
        publish(b, "lost with the old one")
        again = b.client(container="ann")
        given = {"address": "amq.topic"} | change
        link = subscribe(again, "news", given["address"], *shared, filters=given.get("filters"))
        publish(b, "not wanted", properties={"n": 1}, subject="b")
        publish(b, "wanted", properties={"n": 2}, subject="a")
        assert again.bodies(link) == ["wanted"]
        assert queues(b) == ["ann.news"]


def test_who_takes_from_the_queue_of_a_subscription_by_its_address_does_not_end_it() -> None:
    """Breaks when a browser that closes its link, or a command that empties the queue, unsubscribes somebody else."""
    with bench() as b:
        subscribe(b.client(container="ann"), "news").detach()
        b.settle()
        publish(b, "one")
        other = b.client()
        for browse in (True, False):
            link = other.receiver("ann.news", browse=browse)
            assert other.bodies(link) == ["one"]
            if not browse:
                assert condition(subscribe(b.client(container="ann"), "news")) == "amqp:resource-locked"
            link.close()
            b.settle()
        assert queues(b) == ["ann.news"]


def test_a_shared_subscription_that_is_not_durable_is_not_moved_when_its_broker_leaves() -> None:
    """Its links are cut off, and with the last of them it is gone, with what it held."""
    with bench() as b:
        client = b.client(container="ann")
        client.auto_accept = False
        subscribe(client, "news|volatile1", "amq.topic", "shared", durable=False)
        publish(b, "one")
        test_departure.leave(b)
        assert client.lost
        assert queues(b) == []


def test_a_name_is_shared_or_not() -> None:
    with bench() as b:
        client = b.client(container="ann")
        subscribe(client, "news").detach()
        b.queue("ann.other")
        b.settle()
        assert condition(subscribe(client, "news", "amq.topic", "shared")) == "amqp:not-allowed"
        assert condition(subscribe(client, "other")) == "amqp:resource-locked"


def test_a_subscription_that_is_attached_again_over_another_connection_moves_there() -> None:
    with bench() as b:
        old, new = b.client(container="ann"), b.client(container="ann")
        first = subscribe(old, "news")
        second = subscribe(new, "news")
        publish(b, "one")
        assert (condition(first), condition(second)) == ("amqp:link:stolen", "")
        assert (old.bodies(first), new.bodies(second)) == ([], ["one"])


def test_a_subscription_moves_to_another_connection_also_if_it_is_bound_again() -> None:
    """Breaks when a client whose old connection is dead is told that its subscription is in use."""
    with bench() as b:
        old, new = b.client(container="ann"), b.client(container="ann")
        first = subscribe(old, "news", "amq.fanout")
        body = {"exchange": "amq.fanout", "queue": "ann.news", "key": ""}
        assert b.client(ADMIN).request("DELETE", "binding", "", body)[0] == 204
        second = subscribe(new, "news", "amq.fanout")
        assert (condition(first), condition(second)) == ("amqp:link:stolen", "")
        publish(b, "one", address="amq.fanout")
        assert (old.bodies(first), new.bodies(second)) == ([], ["one"])


def test_a_subscription_stays_where_it_is_if_the_other_connection_cannot_have_it() -> None:
    """Breaks when the old link ends before it is known that the new one can attach: then the client has none."""
    with bench() as b:
        old = b.client(container="ann")
        first = subscribe(old, "news", filters=described(SELECTOR, "a = '" + "x" * 600 + "'"))
        narrow = Client(b, container="ann")
        narrow.transport.max_frame_size = 512
        b.clients.append(narrow)
        second = subscribe(narrow.open(), "news", None)
        assert condition(second) == "amqp:frame-size-too-small"
        taking = b.client()
        third = taking.receiver(queues(b)[0])
        assert (condition(first), condition(third)) == ("", "amqp:resource-locked")
        publish(b, "one", properties={"a": "x" * 600})
        assert old.bodies(first) == ["one"]


def test_no_local_keeps_away_what_the_same_client_sends_over_any_connection() -> None:
    with bench() as b:
        subscribe(b.client(container="ann"), "news", filters=described(NO_LOCAL, [])).detach()
        b.settle()
        sender = b.client(container="ann")
        sender.send(sender.sender("amq.topic"), "own")
        publish(b, "another's")
        again = b.client(container="ann")
        assert again.bodies(subscribe(again, "news", filters=described(NO_LOCAL, []))) == ["another's"]
        shared = subscribe(again, "ours", "amq.topic", "shared", filters=described(NO_LOCAL, []))
        assert condition(shared) == "amqp:not-implemented"


def test_a_subscription_with_a_time_goes_when_nobody_has_used_it_for_so_long() -> None:
    with bench() as b:
        client = b.client(container="ann")
        link = subscribe(client, "news", durable=False, keep_s=15)
        b.pass_time(20, 5)
        link.detach()
        b.settle()
        b.pass_time(10, 5)
        publish(b, "one")
        found = subscribe(client, "news", None)
        assert found.remote_source.timeout == 15
        assert client.bodies(found) == ["one"]
        found.detach()
        b.settle()
        b.pass_time(20, 5)
        assert queues(b) == []
        assert condition(subscribe(client, "news", durable=False, keep_s=limits.MAX_AUTO_DELETE_S + 1)) == "amqp:invalid-field"


def test_a_subscription_whose_exchange_was_made_again_is_bound_again_and_keeps_its_messages() -> None:
    with bench() as b:
        client = b.client(container="ann")
        client.request("CREATE", "exchange", "events", {"exchangeType": "fanout"})
        subscribe(client, "news", "events").detach()
        b.settle()
        publish(b, "one", address="events")
        for operation in ("DELETE", "CREATE"):
            client.request(operation, "exchange", "events", {"exchangeType": "fanout"} if operation == "CREATE" else {})
        again = b.client(container="ann")
        link = subscribe(again, "news", "events")
        publish(b, "two", address="events")
        assert again.bodies(link) == ["one", "two"]


def test_a_new_primary_has_the_subscription_its_messages_and_its_filters() -> None:
    """Breaks when the filters of who is away are the old primary's alone, or when what was published is not in the log."""
    with bench(clustered=True) as old:
        old.upgraded()
        client = old.client(container="ann")
        subscribe(client, "news", filters=described(SELECTOR, "n > 1")).detach()
        old.settle()
        publish(old, "kept", properties={"n": 2})
        new = Bench(clustered=True, state="ready")
        old.lead.replayed_into(new.lead)
        new.lead.become("active")
        publish(new, "not wanted", properties={"n": 1})
        publish(new, "wanted", properties={"n": 3})
        again = new.client(container="ann")
        assert again.bodies(subscribe(again, "news", filters=described(SELECTOR, "n > 1"))) == ["kept", "wanted"]
        new.close()


def test_a_term_that_ends_leaves_nobody_waiting_for_what_it_had_under_way() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        b.lead.automatic = False
        subscribe(b.client(container="ann"), "news")
        b.lead.become("ready")
        b.lead.automatic = True
        b.settle()
        b.lead.become("active")
        link = subscribe(b.client(container="ann"), "news")
        assert (condition(link), queues(b)) == ("", ["ann.news"])


def test_a_subscription_is_refused_until_every_broker_of_the_cluster_knows_what_it_is() -> None:
    with bench(clustered=True) as b:
        link = subscribe(b.client(container="ann"), "news")
        assert condition(link) == "amqp:not-implemented"
        assert "until all its brokers are connected and support a newer one" in link.remote_condition.description


def test_a_client_that_waited_for_a_new_cluster_has_the_version_that_its_first_primary_proposes() -> None:
    """Breaks when those who wait are let in before the primary has put what counts for them."""
    with bench(clustered=True, state="recovering") as b:

        def rise(state: str, epoch: int, primary: str) -> None:
            if state == "active":
                b.broker.lead.change(MachineVersion(needs=MACHINE_VERSION), lambda reason: None)

        b.broker.on_state = rise
        client = b.client(container="ann")
        link = subscribe(client, "news")
        assert client.server.waiting
        b.lead.become("active")
        b.settle()
        assert (condition(link), queues(b)) == ("", ["ann.news"])


def test_a_subscription_to_an_exchange_of_one_broker_is_this_broker_s() -> None:
    with bench(clustered=True) as b:
        client = b.client(container="ann")
        client.request("CREATE", "exchange", "events", {"exchangeType": "fanout", "replicate": "none"})
        assert condition(subscribe(client, "news", "events")) == ""
        assert b.broker.nodes.queues["ann.news"].log == "local"
        subscribe(client, "more", "events").detach()
        b.upgraded()
        refused = subscribe(client, "more", "amq.topic")
        assert condition(refused) == "amqp:resource-limit-exceeded"
        assert "unsubscribe first" in refused.remote_condition.description


def test_a_topic_and_a_queue_of_one_name_are_told_apart_by_their_capabilities() -> None:
    with bench() as b:
        b.queue("news")
        client = b.client()
        client.request("CREATE", "exchange", "news", {"exchangeType": "topic"})
        b.queue("other")
        subscriber = subscribe(client, "subscriber", "news", "topic", durable=False)
        fallback = subscribe(client, "fallback", "other", "topic", durable=False)
        for kind in ("topic", "queue"):
            sender = client.session.sender(f"to-{kind}")
            sender.target.address = "news"
            sender.target.capabilities.put_object(proton.symbol(kind))
            sender.open()
            b.settle()
            client.send(sender, f"to the {kind}")
        assert client.bodies(subscriber) == ["to the topic"]
        assert b.depth("news") == 1
        assert client.bodies(subscribe(client, "consumer", "news", "queue", durable=False)) == ["to the queue"]
        assert condition(fallback) == "", "there is no topic of that name"


SOLE = ("sole-connection-for-container", "SHARED-SUBS")


def test_a_container_that_is_to_have_one_connection_is_refused_while_it_is_in_use() -> None:
    """With what Qpid JMS makes an InvalidClientIDException of."""
    with bench() as b:
        first = b.client(container="ann", desired=SOLE)
        assert set(SOLE) <= {str(each) for each in first.connection.remote_offered_capabilities}
        assert condition(b.client(container="bob", desired=SOLE).connection) == ""
        second = b.client(container="ann", desired=SOLE)
        assert condition(second.connection) == "amqp:invalid-field"
        assert second.connection.remote_condition.info == {"invalid-field": "container-id"}
        assert isinstance(second.connection.remote_condition.info["invalid-field"], proton.symbol)
        assert second.connection.remote_properties == {"amqp:connection-establishment-failed": True}
        assert condition(b.client(container="ann").connection) == "", "who does not ask shares"
        first.lose()
        assert condition(b.client(container="ann", desired=SOLE).connection) == "amqp:invalid-field"
        for client in b.clients:
            client.lose()
        assert condition(b.client(container="ann", desired=SOLE).connection) == ""


def test_a_durable_subscription_that_another_broker_tells_of_stands_here_for_the_same_client() -> None:
    """So a drain moves it: filters, what is unsettled, and all."""
    color = described(SELECTOR, "color = 'red'")
    with bench() as b, bench() as other:
        client = b.client(container="c")
        leave(client, subscribe(client, "n", filters=color), "detach")
        (item,) = b.client(ADMIN).request("QUERY", "queue", "")[2]["items"]
        body = {name: item[name] for name in ("durable", "exclusive", "arguments", "subscription")}
        assert other.client(ADMIN).request("CREATE", "queue", item["name"], body)[0] == 201
        bound = {"exchange": "amq.topic", "queue": item["name"], "key": "#"}
        assert other.client(ADMIN).request("CREATE", "binding", "", bound)[0] == 201
        publish(other, "red", properties={"color": "red"})
        publish(other, "blue", properties={"color": "blue"})
        there = other.client(container="c")
        assert there.bodies(subscribe(there, "n", filters=color)) == ["red"]
        assert queues(other) == [item["name"]]


def moved_to(other: Bench) -> tuple[str, Client]:
    """A durable subscription that a drain has made here and announced, and its subscriber, who has come here."""
    terms = {"container": "c", "name": "n", "address": "amq.topic", "shared": False, "lasting": True, "filters": ""}
    name = "c.n"
    body = {"durable": True, "exclusive": True, "subscription": terms}
    assert other.client(ADMIN).request("CREATE", "queue", name, body)[0] == 201
    assert drain(other, "TAKE", store="s", into=name, pause=True) == 200
    assert other.client(ADMIN).request("CREATE", "binding", "", {"exchange": "amq.topic", "queue": name, "key": "#"})[0] == 201
    return name, other.client(container="c")


def drain(other: Bench, operation: str, **body: Any) -> int:
    found: int = other.client(ADMIN).request(operation, "drain", "", {"drain": "d", "queue": "u"} | body)[0]
    return found


def test_topic_subscriptions_are_created_paused_then_moved_then_resumed() -> None:
    """Breaks when what is published at the target overtakes what the subscription had where it was."""
    with bench() as b:
        name, subscriber = moved_to(b)
        link = subscribe(subscriber, "n")
        publish(b, "published here")
        assert subscriber.bodies(link) == []
        drainer = b.client(ADMIN)
        send(drainer, drainer.sender(origin_address("d", "u")), 1, encoded("had before"))
        b.settle()
        assert subscriber.bodies(link) == []
        assert drain(b, "RESUME") == 200
        b.settle()
        assert subscriber.bodies(link) == ["published here", "had before"]
        assert drain(b, "RESUME") == 200, "again, without harm"
        assert drain(b, "TAKE", store="s", into=name, pause=True) == 200
        publish(b, "later")
        assert subscriber.bodies(link)[-1:] == ["later"], "who begins the drain again does not pause it again"
        assert drain(b, "RESUME", queue="another") == 404


def test_a_paused_subscription_stays_so_for_the_next_primary_and_goes_on_when_its_drain_has_ended() -> None:
    with bench(clustered=True, default_level="all") as b:
        b.upgraded()
        moved_to(b)
        publish(b, "1")
        b.lead.become("ready", "another:1")
        b.lead.become("active")
        b.settle()
        subscriber = b.client(container="c")
        link = subscribe(subscriber, "n")
        assert subscriber.bodies(link) == []
        assert drain(b, "RELEASE") == 200
        b.settle()
        assert subscriber.bodies(link) == ["1"]


def test_a_drain_of_an_earlier_release_pauses_no_subscription_and_no_other_queue_is_paused() -> None:
    with bench() as b:
        name, subscriber = moved_to(b)
        link = subscribe(subscriber, "n")
        assert drain(b, "RELEASE") == drain(b, "FORGET") == 200
        b.queue("q")
        for queue, into, pause in (("v", name, False), ("w", "q", True)):
            assert drain(b, "TAKE", drain="e", queue=queue, store="s", into=into, pause=pause) == 200
        publish(b, "1")
        publish(b, "2", address="q")
        assert subscriber.bodies(link) == ["1"]
        taker = b.client()
        assert taker.bodies(taker.receiver("q", credit=10)) == ["2"]


@pytest.mark.parametrize("durable", [True, False])
def test_an_exchange_that_is_being_deleted_gets_no_more_subscriptions(durable: bool) -> None:
    """Breaks when the link waits for messages that cannot come, and a binding to nothing stays in the cluster's log."""
    with bench(clustered=True) as b:
        b.upgraded()
        admin = b.client(ADMIN)
        assert admin.request("CREATE", "exchange", "x", {"exchangeType": "fanout", "replicate": "all"})[0] == 201
        client, before = b.client(container="c1"), set(b.broker.nodes.queues)
        reply, link = admin.receiver(None, dynamic=True), admin.sender("$management")
        b.lead.automatic = False
        admin.send_encoded(link, request("DELETE", "exchange", "x", reply.remote_source.address))
        subscription = subscribe(client, "news", "x", durable=True) if durable else client.receiver("x")
        assert condition(subscription) == "amqp:not-found"
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert "x" not in b.broker.nodes.exchanges
        assert set(b.broker.nodes.queues) == before
        assert not any(log.ledger.state.definitions.bindings for log in b.logs.values())


def test_a_subscription_that_is_being_deleted_is_not_bound_again() -> None:
    """Breaks when its exchange was made anew, and the binding for it stays in the cluster's log without the queue."""
    with bench(clustered=True) as b:
        b.upgraded()
        admin, client = b.client(ADMIN), b.client(container="c1")
        made = {"exchangeType": "fanout", "replicate": "all"}
        assert admin.request("CREATE", "exchange", "x", made)[0] == 201
        subscribe(client, "news", "x").detach()
        b.settle()
        assert admin.request("DELETE", "exchange", "x")[0] == 204
        assert admin.request("CREATE", "exchange", "x", made)[0] == 201
        (name,) = (node.name for node in b.broker.nodes.queues.values() if node.terms is not None)
        reply, link = admin.receiver(None, dynamic=True), admin.sender("$management")
        b.lead.automatic = False
        admin.send_encoded(link, request("DELETE", "queue", name, reply.remote_source.address))
        again = b.client(container="c1")
        assert condition(subscribe(again, "news", "x")) == "amqp:not-found"
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert name not in b.broker.nodes.queues
        assert not b.lead.ledger.state.definitions.bindings


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("replicate", ["all", "none"])
def test_an_exchange_that_is_deleted_ends_the_links_of_its_subscriptions_and_the_durable_ones_stay(
    clustered: bool, replicate: str
) -> None:
    """Breaks when a subscriber waits for what cannot come, although the exchange may have been made again."""
    with bench(clustered=clustered) as b:
        b.upgraded()
        admin, client = b.client(ADMIN), b.client(container="ann")
        made = {"exchangeType": "fanout", "replicate": replicate if clustered else "none"}
        assert admin.request("CREATE", "exchange", "x", made)[0] == 201
        durable = subscribe(client, "news", "x")
        shared = subscribe(client, "some", "x", "shared", durable=False)
        plain, other = client.receiver("x"), client.receiver("amq.fanout")
        reader = client.receiver("ann.news", browse=True)
        publish(b, "one", address="x")
        assert admin.request("DELETE", "exchange", "x")[0] == 204
        for link in (durable, shared, plain):
            assert condition(link) == "amqp:resource-deleted"
            assert "'x'" in link.remote_condition.description
        assert (condition(other), condition(reader)) == ("", ""), "they are not links to this exchange"
        assert [name for name in queues(b) if not name.startswith("amq.fanout")] == ["ann.news"]
        assert admin.request("CREATE", "exchange", "x", made)[0] == 201
        again = b.client(container="ann")
        back = subscribe(again, "news", "x")
        publish(b, "two", address="x")
        assert client.bodies(durable) + again.bodies(back) == ["one", "two"]


@pytest.mark.parametrize("kind", ["durable", "shared", "plain"])
def test_a_subscription_whose_exchange_goes_while_it_is_made_is_refused(kind: str) -> None:
    with bench() as b:
        client, admin = b.client(container="ann"), b.client(ADMIN)
        assert admin.request("CREATE", "exchange", "x", {"exchangeType": "fanout"})[0] == 201
        reply, management = admin.receiver(None, dynamic=True), admin.sender("$management")
        b.lead.automatic = False
        if kind == "plain":
            link = client.receiver("x")
        else:
            capabilities = ("shared",) if kind == "shared" else ()
            link = subscribe(client, "n", "x", *capabilities, durable=kind == "durable")
        admin.send_encoded(management, request("DELETE", "exchange", "x", reply.remote_source.address))
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert "x" not in b.broker.nodes.exchanges
        assert condition(link) == "amqp:resource-deleted"
        assert queues(b) == (["ann.n"] if kind == "durable" else [])
