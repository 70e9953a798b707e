"""Policies as clients and operators see them: what is made by a request, by use and for a subscription."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.clients import ACCEPTED, ADMIN, REJECTED, Bench, Client, bench, condition, statuses
from tests.broker.test_acl import enforce
from tests.broker.test_making import attached, dynamic
from tests.broker.test_subscriptions import subscribe


def operator(b: Bench) -> Client:
    return b.client(ADMIN)


def make(b: Bench, pattern: str, kind: str = "QueuePolicy", **body: Any) -> Any:
    status, text, made = operator(b).request("CREATE", kind, pattern, body)
    assert status == 201, text
    return made


def arguments(b: Bench, queue: str) -> dict[str, Any]:
    return dict(b.broker.nodes.queues[queue].definition.arguments)


@pytest.mark.parametrize("clustered", [False, True])
def test_a_queue_is_made_with_what_the_policy_of_its_name_says_by_request_and_by_use(clustered: bool) -> None:
    with bench(clustered=clustered) as b:
        if clustered:
            b.upgraded()
        operator(b).request("CREATE", "exchange", "dlx", {"exchangeType": "fanout", "replicate": "all" if clustered else "none"})
        made = make(b, "orders.", arguments={"qpid.max_count": 2, "x-delivery-limit": 3}, alternateExchange="dlx")
        assert (made["name"], made["byUse"], made["alternateExchange"]) == ("orders.", True, "dlx")
        b.queue("orders.asked", arguments={"qpid.max_count": 9})
        assert arguments(b, "orders.asked") == {"qpid.max_count": 9, "x-delivery-limit": 3}
        client = b.client()
        link = attached(client, "orders.used", sends=True)
        assert condition(link) == ""
        assert arguments(b, "orders.used") == {"qpid.max_count": 2, "x-delivery-limit": 3}
        assert b.broker.nodes.queues["orders.used"].definition.alternate == "dlx"
        assert condition(attached(client, "other", sends=True)) == "amqp:not-found"


def test_a_policy_for_what_is_made_otherwise_makes_nothing_by_use() -> None:
    with bench() as b:
        make(b, "q", byUse=False, arguments={"note": "x"})
        assert condition(attached(b.client(), "q1", sends=True)) == "amqp:not-found"
        b.queue("q1")
        assert arguments(b, "q1") == {"note": "x"}


def test_a_topic_is_made_with_the_type_and_the_alternate_exchange_of_its_policy() -> None:
    with bench() as b:
        make(b, "news.*", "TopicPolicy", exchangeType="fanout", alternateExchange="amq.fanout")
        make(b, "plain", "TopicPolicy")
        assert condition(attached(b.client(), "news.eu/any", sends=True)) == ""
        assert condition(attached(b.client(), "plain", sends=True)) == ""
        made, plain = (b.broker.nodes.exchanges[name].definition for name in ("news.eu", "plain"))
        assert (made.kind, made.alternate, plain.kind, plain.alternate) == ("fanout", "amq.fanout", "topic", "")


def test_queues_of_subscriptions_and_dynamic_ones_have_the_limits_of_their_policy() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        make(b, "*", byUse=False, arguments={"qpid.max_count": 1, "qpid.priorities": 5})
        client = b.client()
        client.receiver("amq.fanout")
        link = dynamic(client, sends=True)
        queues = [node.definition for node in b.broker.nodes.queues.values()]
        assert [(each.arguments, each.level) for each in queues] == [({"qpid.max_count": 1}, "none")] * 2
        assert condition(link) == ""
        sender = client.sender("amq.fanout")
        client.send(sender, 1, 2)
        assert sorted(statuses(client, sender)) == sorted([ACCEPTED, REJECTED])


def test_policies_are_told_in_the_order_in_which_they_count_and_changed_by_the_argument() -> None:
    with bench() as b:
        make(b, "*", arguments={"qpid.max_count": 1})
        make(b, "orders.", arguments={"qpid.max_count": 2, "note": "x"}, durable=True)
        client = operator(b)
        assert client.request("CREATE", "QueuePolicy", "*", {})[0] == 409
        status, _, changed = client.request("UPDATE", "QueuePolicy", "orders.", {"arguments": {"note": None, "qpid.max_size": 5}})
        assert (status, changed["arguments"], changed["durable"]) == (200, {"qpid.max_count": 2, "qpid.max_size": 5}, True)
        items = client.request("QUERY", "QueuePolicy")[2]["items"]
        assert [each["name"] for each in items] == ["orders.", "*"]
        assert client.request("READ", "QueuePolicy", "*")[2]["arguments"] == {"qpid.max_count": 1}
        assert client.request("QUERY", "TopicPolicy")[2]["items"] == []
        assert client.request("DELETE", "QueuePolicy", "orders.")[0] == 204
        assert client.request("DELETE", "QueuePolicy", "orders.")[0] == 404
        assert client.request("UPDATE", "QueuePolicy", "orders.", {})[0] == 404


FROM_A_POLICY: list[tuple[str, dict[str, Any]]] = [
    ("policytype=ring", {"arguments": {"qpid.policy_type": "ring"}}),
    ("alternate=amq.fanout", {"alternateExchange": "amq.fanout"}),
    ("queuemaxcountlowerlimit=100", {"arguments": {"qpid.max_count": 10}}),
    ("queuemaxsizelowerlimit=100", {"arguments": {"qpid.max_size": 10}}),
]


@pytest.mark.parametrize("kind", ["own", "lasting", "shared", "dynamic"])
@pytest.mark.parametrize("rule, attributes", FROM_A_POLICY, ids=str)
def test_rules_are_asked_about_what_a_policy_makes_of_a_queue_of_a_link(rule: str, attributes: dict[str, Any], kind: str) -> None:
    """Breaks when a rule that denies such queues is passed by a subscription, because only the policy makes it so."""
    with bench() as b:
        permission = "allow" if "limit" in rule else "deny"
        enforce(
            b,
            f"acl {permission} anonymous create queue {rule}\nacl allow anonymous access all\nacl allow anonymous all all\n"
            "acl deny all all",
        )

        def attach() -> str:
            client = b.client(container="c")
            match kind:
                case "own":
                    return condition(client.receiver("amq.topic/k"))
                case "lasting":
                    return condition(subscribe(client, "name"))
                case "shared":
                    return condition(subscribe(client, "name", "amq.topic", "shared"))
                case _:
                    return condition(dynamic(client, sends=True))

        policy = {"byUse": False} | attributes
        make(b, "*", **policy)
        assert attach() == "amqp:unauthorized-access"
        assert not b.broker.nodes.queues
        assert operator(b).request("DELETE", "QueuePolicy", "*")[0] == 204
        assert attach() == ""


def test_a_subscription_that_ends_a_time_after_its_link_is_asked_for_as_one_that_is_deleted_by_itself() -> None:
    with bench() as b:
        enforce(b, "acl deny anonymous create queue autodelete=true\nacl allow anonymous all all\nacl deny all all")
        client = b.client(container="c")
        assert condition(subscribe(client, "timed", durable=False, keep_s=60)) == "amqp:unauthorized-access"
        assert condition(subscribe(client, "lasting")) == ""
        (made,) = b.broker.nodes.queues.values()
        assert (made.name, made.definition.auto_delete) == ("c.lasting", False)


def test_rules_are_asked_about_what_a_policy_makes_of_a_queue() -> None:
    with bench() as b:
        make(b, "big", arguments={"qpid.max_count": 1000})
        enforce(
            b,
            "acl allow anonymous create queue name=* queuemaxcountupperlimit=100\n"
            "acl allow anonymous access all\nacl deny-log all all",
        )
        client = b.client()
        assert client.request("CREATE", "queue", "big.1", {})[0] == 403
        assert condition(attached(client, "big.2", sends=True)) == "amqp:unauthorized-access"
        assert client.request("CREATE", "queue", "big.3", {"arguments": {"qpid.max_count": 5}})[0] == 201
