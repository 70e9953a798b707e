"""What management says of the registry, and what its requests mean."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.commands import QueueDel, Unbind
from broker.core.management import binding_items, exchange_items, plan, queue_items
from broker.core.nodes import CLUSTER, LOCAL, Nodes, Refused
from broker.core.state import State
from tests.broker.core.definitions import batch, bind, exchange, queue


@pytest.fixture
def nodes() -> Nodes:
    """Queues b (2 messages, bound), a (nothing), c (level configuration, without a place); an exchange of this broker alone."""
    cluster, local = State(), State()
    cluster.apply(batch(1, queue("b"), queue("a", durable=True, arguments={"x": 1}), queue("c", "configuration")))
    cluster.apply(batch(2, bind("amq.topic", "u-b", "k"), bind("amq.topic", "u-b", "l"), enqueue=[(1, 1, [b"one", b"three"])]))
    local.apply(batch(1, exchange("mine", level="none"), bind("x-mine", "u-b", "k", colour="red")))
    made = Nodes(clustered=True)
    made.rebuild({CLUSTER: cluster, LOCAL: local})
    return made


def test_queues_are_listed_by_name_with_what_is_in_them(nodes: Nodes) -> None:
    items = queue_items(nodes, "", lambda node: len(node.name))
    assert [item["name"] for item in items] == ["a", "b", "c"]
    a, b, c = items
    assert (b["messages"], b["messagesIn"], b["messagesOut"], b["bytes"], b["bytesIn"], b["bytesOut"]) == (2, 2, 0, 8, 8, 0)
    assert (b["bindings"], a["bindings"]) == (4, 1), "the one to the default exchange counts"
    assert (a["durable"], a["arguments"], a["replicate"], a["consumers"]) == (True, {"x": 1}, "all", 1)
    assert (c["messages"], c["messagesIn"], c["messagesOut"], c["bytes"], c["bytesIn"], c["bytesOut"]) == (0,) * 6
    assert set(a) == {
        *("name", "durable", "autoDelete", "exclusive", "replicate", "uuid", "messages", "messagesIn", "messagesOut", "levels"),
        "bytes",
        *("bytesIn", "bytesOut", "consumers", "bindings", "arguments", "alternateExchange"),
    }, "docs/reference/management.md"


def test_one_queue_may_be_asked_for(nodes: Nodes) -> None:
    assert [item["name"] for item in queue_items(nodes, "b", lambda node: 0)] == ["b"]
    with pytest.raises(Refused) as refused:
        queue_items(nodes, "none", lambda node: 0)
    assert refused.value.status == 404


def test_exchanges_are_listed_by_name_and_the_default_one_has_none(nodes: Nodes) -> None:
    nodes.exchanges["mine"].received = 3
    items = exchange_items(nodes, "", all_of_them=True)
    assert [item["name"] for item in items] == ["", "amq.direct", "amq.fanout", "amq.match", "amq.topic", "mine"]
    by_name = {item["name"]: item for item in items}
    assert by_name["mine"]["messagesIn"] == 3
    assert (by_name[""]["bindings"], by_name["amq.topic"]["bindings"]) == (3, 2)
    assert by_name["amq.match"]["exchangeType"] == "headers"
    assert set(by_name["mine"]) == {
        *("name", "exchangeType", "durable", "replicate", "uuid", "bindings", "messagesIn", "messagesRouted", "messagesDropped"),
        *("alternateExchange", "arguments"),
    }, "docs/reference/management.md"


def test_one_exchange_may_be_asked_for_and_be_the_default_one(nodes: Nodes) -> None:
    assert [item["name"] for item in exchange_items(nodes, "", all_of_them=False)] == [""]
    assert [item["name"] for item in exchange_items(nodes, "mine", all_of_them=False)] == ["mine"]
    with pytest.raises(Refused) as refused:
        exchange_items(nodes, "none", all_of_them=False)
    assert refused.value.status == 404


def test_bindings_are_listed_with_those_that_every_queue_has(nodes: Nodes) -> None:
    assert [(item["exchange"], item["queue"], item["key"], item["replicate"]) for item in binding_items(nodes)] == [
        ("", "a", "a", "all"),
        ("", "b", "b", "all"),
        ("", "c", "c", "configuration"),
        ("amq.topic", "b", "k", "configuration"),
        ("amq.topic", "b", "l", "configuration"),
        ("mine", "b", "k", "none"),
    ]
    assert binding_items(nodes)[-1]["arguments"] == {"colour": "red"}


BINDING = {"exchange": "amq.topic", "queue": "b", "key": "k"}


@pytest.mark.parametrize(
    "operation,kind,name,body,log,op",
    [
        ("CREATE", "queue", "q", {}, LOCAL, "queue-add"),
        ("CREATE", "queue", "q", {"replicate": "all"}, CLUSTER, "queue-add"),
        ("CREATE", "exchange", "x", {"exchangeType": "topic"}, LOCAL, "exchange-add"),
        ("CREATE", "binding", "", BINDING | {"key": "new", "arguments": None}, CLUSTER, "bind"),
        ("DELETE", "queue", "b", {}, CLUSTER, "queue-del"),
        ("DELETE", "exchange", "mine", {}, LOCAL, "exchange-del"),
        ("DELETE", "binding", "", BINDING, CLUSTER, "unbind"),
    ],
)
def test_a_request_means_one_change_in_one_log(
    nodes: Nodes, operation: str, kind: str, name: str, body: dict[str, Any], log: str, op: str
) -> None:
    found, change = plan(nodes, operation, kind, name, body, "new-uuid", 0)
    assert (found, change.OP) == (log, op)
    if operation == "CREATE" and kind != "binding":
        assert (change.to_dict()["name"], change.to_dict()["uuid"]) == (name, "new-uuid")


def test_a_request_carries_its_conditions(nodes: Nodes) -> None:
    for body, consumers in (({"ifEmpty": True}, 0), ({"ifUnused": True}, 1)):
        with pytest.raises(Refused) as refused:
            plan(nodes, "DELETE", "queue", "b", body, "u", consumers)
        assert refused.value.status == 409
    assert plan(nodes, "DELETE", "queue", "b", {}, "u", 1) == (CLUSTER, QueueDel(uuid="u-b"))
    assert plan(nodes, "DELETE", "binding", "", BINDING, "u", 0) == (CLUSTER, Unbind(exchange="amq.topic", queue="u-b", key="k"))


@pytest.mark.parametrize("operation,kind", [("JUGGLE", "queue"), ("CREATE", "weather"), ("DELETE", "")])
def test_what_is_not_known_is_refused_by_name(nodes: Nodes, operation: str, kind: str) -> None:
    with pytest.raises(Refused) as refused:
        plan(nodes, operation, kind, "n", {}, "u", 0)
    assert refused.value.status == 501
    assert operation in refused.value.text
