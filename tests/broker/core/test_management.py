"""What management says of the registry, and what its requests mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.core import limits, management, values
from broker.core.commands import QueueDel, Unbind
from broker.core.management import (
    LOOKED_AT,
    Page,
    Place,
    Stream,
    binding_items,
    exchange_items,
    one_by_one,
    plan,
    queue_items,
    told,
)
from broker.core.nodes import CLUSTER, LOCAL, Nodes, QueueNode, Refused
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


def listed(stream: Stream) -> list[dict[str, Any]]:
    """The items of a stream."""
    return [found[1] for found in stream if found is not None]


def test_queues_are_listed_by_name_with_what_is_in_them(nodes: Nodes) -> None:
    items = listed(queue_items(nodes, "", lambda node: len(node.name)))
    assert [item["name"] for item in items] == ["a", "b", "c"]
    a, b, c = items
    assert (b["messages"], b["messagesIn"], b["messagesOut"], b["bytes"], b["bytesIn"], b["bytesOut"]) == (2, 2, 0, 8, 8, 0)
    assert (b["bindings"], a["bindings"]) == (4, 1), "the one to the default exchange counts"
    assert (a["durable"], a["arguments"], a["replicate"], a["consumers"]) == (True, {"x": 1}, "all", 1)
    assert (c["messages"], c["messagesIn"], c["messagesOut"], c["bytes"], c["bytesIn"], c["bytesOut"]) == (0,) * 6
    assert set(a) == {
        *("name", "durable", "autoDelete", "exclusive", "replicate", "uuid", "messages", "messagesIn", "messagesOut", "levels"),
        *("bytes", "rejected", "overLimit", "expired", "dropped", "overdue", "alerts"),
        *("bytesIn", "bytesOut", "consumers", "bindings", "arguments", "alternateExchange"),
    }, "docs/reference/management.md"


def test_one_queue_may_be_asked_for(nodes: Nodes) -> None:
    assert [item["name"] for item in listed(queue_items(nodes, "b", lambda node: 0))] == ["b"]
    with pytest.raises(Refused) as refused:
        listed(queue_items(nodes, "none", lambda node: 0))
    assert refused.value.status == 404


def test_exchanges_are_listed_by_name_and_the_default_one_has_none(nodes: Nodes) -> None:
    nodes.exchanges["mine"].received = 3
    items = listed(exchange_items(nodes, "", all_of_them=True))
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
    assert [item["name"] for item in listed(exchange_items(nodes, "", all_of_them=False))] == [""]
    assert [item["name"] for item in listed(exchange_items(nodes, "mine", all_of_them=False))] == ["mine"]
    with pytest.raises(Refused) as refused:
        listed(exchange_items(nodes, "none", all_of_them=False))
    assert refused.value.status == 404


def test_bindings_are_listed_with_those_that_every_queue_has(nodes: Nodes) -> None:
    assert [(item["exchange"], item["queue"], item["key"], item["replicate"]) for item in listed(binding_items(nodes))] == [
        ("", "a", "a", "all"),
        ("", "b", "b", "all"),
        ("", "c", "c", "configuration"),
        ("amq.topic", "b", "k", "configuration"),
        ("amq.topic", "b", "l", "configuration"),
        ("mine", "b", "k", "none"),
    ]
    assert listed(binding_items(nodes))[-1]["arguments"] == {"colour": "red"}


def test_bindings_of_one_exchange_or_queue_may_be_asked_for(nodes: Nodes) -> None:
    def keys(exchange: str = "", queue: str = "") -> list[str]:
        items = listed(binding_items(nodes, exchange=exchange, queue=queue))
        return [f"{item['exchange']}/{item['queue']}/{item['key']}" for item in items]

    assert keys(exchange="amq.topic") == ["amq.topic/b/k", "amq.topic/b/l"]
    assert keys(queue="b") == ["amq.topic/b/k", "amq.topic/b/l", "mine/b/k"]
    assert keys(queue="b", exchange="mine") == ["mine/b/k"]
    assert keys(queue="a") == keys(exchange="none") == []
    after = listed(binding_items(nodes, ("amq.topic", "b", "k"), queue="b"))
    assert [item["key"] for item in after] == ["l", "k"]
    with pytest.raises(Refused, match="there is no queue named 'none'"):
        keys(queue="none")


# ---- pages


def pages(listing: Callable[[Place, int], Stream], count: int = 3, max_bytes: int = 1 << 20) -> list[list[Any]]:
    """The names of the items of each page, asked for until there is no next one."""
    found, after = [], ()
    while True:
        page = Page(count, max_bytes)
        for _ in page.fill(listing(after, count + 1)):
            pass
        body = values.decode(values.encode(page.body))
        found.append([item.get("key") or item["name"] for item in body["items"]])
        if "next" not in body:
            return found
        after = tuple(body["next"])


@pytest.mark.parametrize("n_queues", [0, 1, 3, 4, 6, LOOKED_AT, 2 * LOOKED_AT + 1])
@pytest.mark.parametrize("count", [1, 3, LOOKED_AT])
def test_pages_together_are_all_there_is_in_order_and_only_the_last_may_have_room(n_queues: int, count: int) -> None:
    names = [f"q{number * 7919 % 10007:05}" for number in range(min(n_queues, 20 * count))]
    cluster = State()
    cluster.apply(batch(1, *map(queue, names)))
    made = Nodes(clustered=True)
    made.rebuild({CLUSTER: cluster, LOCAL: State()})
    found = pages(lambda after, most: queue_items(made, "", lambda node: 0, after, most), count)
    assert [name for page in found for name in page] == sorted(names)
    assert all(len(page) == count for page in found[:-1])
    of_bindings = pages(lambda after, most: binding_items(made, after, most), count)
    assert [name for page in of_bindings for name in page] == sorted(names)


@pytest.mark.parametrize("at_once", [1, LOOKED_AT])
def test_pages_of_bindings_go_on_within_and_between_exchanges(
    nodes: Nodes, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "LOOKED_AT", at_once)
    found = pages(lambda after, most: binding_items(nodes, after, most), 2)
    assert found == [["a", "b"], ["c", "k"], ["l", "k"]]
    found = pages(lambda after, most: exchange_items(nodes, "", all_of_them=True, after=after, most=most), 4)
    assert [name for page in found for name in page] == sorted(nodes.exchanges)


def test_a_page_ends_when_it_has_enough_bytes_and_has_one_item_at_least() -> None:
    items = [{"name": f"{number}" * 40} for number in range(5)]
    assert [len(page) for page in pages(lambda after, most: one_by_one(items, after), 100, 100)] == [2, 2, 1]
    assert [len(page) for page in pages(lambda after, most: one_by_one(items, after), 100, 1)] == [1] * 5


def test_what_was_there_all_the_time_is_told_once_whatever_is_made_or_deleted_between_two_pages(nodes: Nodes) -> None:
    first = Page(2, 1 << 20)
    for _ in first.fill(queue_items(nodes, "", lambda node: 0, (), 3)):
        pass
    assert first.next == ("b",)
    del nodes.queues["a"], nodes.queues["b"]
    assert [item["name"] for item in listed(queue_items(nodes, "", lambda node: 0, first.next, 3))] == ["c"]


@pytest.mark.costs
def test_a_long_listing_is_made_in_small_pieces() -> None:
    """Breaks when a query over twenty thousand queues keeps everybody else waiting."""
    cluster = State()
    cluster.apply(batch(1, *(queue(f"q{number}") for number in range(10 * LOOKED_AT))))
    made = Nodes(clustered=True)
    made.rebuild({CLUSTER: cluster, LOCAL: State()})
    looked: list[int] = [0]

    def consumers(node: QueueNode) -> int:
        looked[0] += 1
        return 0

    page = Page(100, 1 << 20)
    most = n_pieces = 0
    for _ in page.fill(queue_items(made, "", consumers, (), 101)):
        most, looked[0] = max(most, looked[0]), 0
        n_pieces += 1
    assert most == 1, "one item a piece"
    assert n_pieces == 10 + 100


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
    log, change = plan(nodes, "UPDATE", "exchange", "mine", {"alternateExchange": "amq.topic"}, "u", 0)
    assert (log, change.to_dict()["uuid"], change.to_dict()["alternate"]) == (LOCAL, "x-mine", "amq.topic")
    assert plan(nodes, "DELETE", "binding", "", BINDING, "u", 0) == (CLUSTER, Unbind(exchange="amq.topic", queue="u-b", key="k"))


@pytest.mark.parametrize("operation,kind", [("JUGGLE", "queue"), ("CREATE", "weather"), ("DELETE", "")])
def test_what_is_not_known_is_refused_by_name(nodes: Nodes, operation: str, kind: str) -> None:
    with pytest.raises(Refused) as refused:
        plan(nodes, operation, kind, "n", {}, "u", 0)
    assert refused.value.status == 501
    assert operation in refused.value.text


def test_a_long_name_is_told_cut_and_shows_it() -> None:
    most = limits.MAX_TOLD_CHARS
    assert (told("n" * most), told("n" * (most + 1))) == ("n" * most, "n" * (most - 3) + "...")
