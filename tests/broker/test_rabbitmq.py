"""What RabbitMQ's AMQP 1.0 clients need of a broker: their addresses, and an Open that says what they look for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.clients import ACCEPTED, bench, condition, statuses


@pytest.mark.parametrize(
    "address, fields", [("/queues/a%2Fb", {}), ("/exchanges/x/k%2F1", {}), ("/exchanges/x", {"subject": "k/1"})]
)
@pytest.mark.parametrize("relay", [False, True])
def test_messages_go_where_an_address_says_whether_it_is_the_links_or_the_messages(
    address: str, fields: Any, relay: bool
) -> None:
    with bench() as b:
        b.queue("a/b")
        admin = b.client()
        assert admin.request("CREATE", "exchange", "x", {"exchangeType": "direct"})[0] == 201
        assert admin.request("CREATE", "binding", "", {"exchange": "x", "queue": "a/b", "key": "k/1"})[0] == 201
        client = b.client()
        sender = client.sender(None if relay else address)
        client.send(sender, "hello", **fields | ({"address": address} if relay else {}))
        assert statuses(client, sender) == [ACCEPTED]
        receiver = client.receiver("/queues/a%2Fb")
        assert receiver.remote_source.address == "/queues/a%2Fb", "clients insist on what they asked for"
        assert client.bodies(receiver) == ["hello"]


def test_management_by_requests_of_rabbitmq_is_refused_with_what_to_do() -> None:
    with bench() as b:
        client = b.client()
        for link in (client.sender("/management"), client.receiver("/management")):
            assert condition(link) == "amqp:not-implemented"
            assert "qpid-config" in link.remote_condition.description


@pytest.mark.parametrize("as_rabbitmq, product", [(True, "RabbitMQ"), (False, "understudy")])
def test_an_open_says_what_rabbitmqs_clients_look_for_only_where_that_is_asked_for(as_rabbitmq: bool, product: str) -> None:
    with bench(as_rabbitmq=as_rabbitmq) as b:
        properties = b.client().connection.remote_properties
        assert properties["product"] == product
        assert (properties["version"] == "4.0.0") == as_rabbitmq
