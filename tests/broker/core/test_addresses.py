"""Addresses as RabbitMQ's clients write them, and as Azure's do."""

from __future__ import annotations

import pytest

from broker.core.acl import questions
from broker.core.addresses import behind_url, exchange_in, queue_in
from broker.core.nodes import CLUSTER, LOCAL, ExchangeNode, Nodes, QueueNode
from broker.core.state import State
from tests.broker.core.definitions import exchange, queue
from tests.broker.core.test_nodes import Two, named


@pytest.mark.parametrize(
    "address, host, name",
    [
        ("amqps://broker/orders", "broker", "orders"),
        ("amqp://BROKER:5672/a/b%20c", "broker:5671", "a/b c"),
        ("amqps://[::1]:5671/orders", "[::1]", "orders"),
        ("amqps://other/orders", "broker", ""),
        ("amqps://broker/orders", "", ""),
        ("amqps://broker/", "broker", ""),
        ("amqps://broker/100%", "broker", ""),
        ("amqps://me@broker/orders", "broker", ""),
        ("amqps://broker/amqps://broker/orders", "broker", ""),
        ("https://broker/orders", "broker", ""),
        ("orders", "broker", ""),
    ],
)
def test_behind_the_url_of_the_host_that_a_client_has_connected_to_stands_a_name(address: str, host: str, name: str) -> None:
    assert behind_url(address, host) == name


@pytest.mark.parametrize(
    "address, name, at",
    [
        ("/queues/orders", "orders", ("", "")),
        ("/queues/a%2Fb%20%E2%98%83", "a/b \N{SNOWMAN}", ("", "")),
        ("/exchanges/amq.topic", "", ("amq.topic", "")),
        ("/exchanges/amq.topic/a.%2A%2Fb", "", ("amq.topic", "a.*/b")),
        ("/exchanges/amq.topic/", "", ("amq.topic", "")),
        ("/exchanges/x/key/more", "", ("", "")),
        ("/exchanges//key", "", ("", "")),
        ("/queues/", "", ("", "")),
        ("/queues/a/messages", "", ("", "")),
        ("/queues/100%", "", ("", "")),
        ("/queues/%4", "", ("", "")),
        ("/queues/%ff", "", ("", "")),
        ("queues/orders", "", ("", "")),
    ],
)
def test_an_address_names_a_queue_or_an_exchange_or_neither(address: str, name: str, at: tuple[str, str]) -> None:
    assert (queue_in(address), exchange_in(address)) == (name, at)


def nodes() -> Nodes:
    two = Two()
    two.apply(CLUSTER, queue("a/b"), queue("/queues/plain"), queue("plain"), exchange("x"))
    return two.nodes


@pytest.mark.parametrize(
    "address, found, key",
    [
        ("/queues/a%2Fb", "a/b", ""),
        ("/queues/plain", "/queues/plain", ""),
        ("/queues/%70lain", "plain", ""),
        ("/exchanges/x/some%2Fkey", "x", "some/key"),
        ("/exchanges/x", "x", ""),
    ],
)
def test_what_an_address_names_is_found_and_a_node_of_that_very_name_comes_first(address: str, found: str, key: str) -> None:
    node = named(nodes(), address)
    assert node is not None
    assert (node[0].name, node[1]) == (found, key)
    assert isinstance(node[0], ExchangeNode if "/exchanges/" in address else QueueNode)


@pytest.mark.parametrize("address", ["/queues/x", "/exchanges/plain", "/queues/", "/exchanges/", "/other/plain", ""])
def test_what_is_not_there_is_not_found(address: str) -> None:
    assert named(nodes(), address) is None


@pytest.mark.parametrize(
    "address, queue_name, exchange_name",
    [("/queues/q", "q", ""), ("/exchanges/x/k", "/exchanges/x/k", "x"), ("x/k", "x/k", "x")],
)
def test_whoever_may_not_use_a_name_is_asked_about_it_as_it_is(address: str, queue_name: str, exchange_name: str) -> None:
    assert [each.facts["name"] for each in questions.unknown(address)] == [queue_name, exchange_name]


def test_a_store_without_anything_has_no_queue_at_any_address() -> None:
    empty = Nodes(clustered=False)
    empty.rebuild({LOCAL: State()})
    assert empty.queue_at("/queues/q") is None
