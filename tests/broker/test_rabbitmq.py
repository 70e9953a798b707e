"""What RabbitMQ's AMQP 1.0 clients need of a broker: their addresses, and an Open that says what they look for."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from tests.broker.clients import ACCEPTED, Bench, bench, condition, statuses


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


class Asker:
    """A pair of links to `/management`."""

    def __init__(self, b: Bench) -> None:
        self.client = b.client()
        self.sender = self.client.sender("/management", name="pair")
        self.receiver = self.client.receiver("/management", name="pair")

    def ask(self, method: str, path: str, body: Any = None) -> tuple[str, Any]:
        """Status and body of the answer."""
        before = len(self.client.received[self.receiver.name])
        self.client.send(self.sender, body, address=path, subject=method, reply_to="$me", id=f"request {before}")
        (answer,) = [each for _, each in self.client.received[self.receiver.name][before:]]
        assert answer.correlation_id == f"request {before}"
        return answer.subject, answer.body


QUORUM = {"arguments": {"x-queue-type": "quorum", "x-max-length": 5, "x-overflow": "reject-publish"}}


def test_rabbitmqs_requests_make_show_and_delete_nodes() -> None:
    with bench() as b:
        asker = Asker(b)
        assert asker.ask("PUT", "/queues/a%2Fb", QUORUM) == ("201", {})
        assert asker.ask("PUT", "/queues/a%2Fb", QUORUM) == ("200", {}), "it is there as it was to be"
        status, text = asker.ask("PUT", "/queues/a%2Fb", {"arguments": {"x-max-length": 6}})
        assert (status, "exists" in text) == ("409", True)
        binding = {"source": "x", "destination_queue": "a/b", "binding_key": "k", "arguments": {}}
        for _ in range(2):
            assert asker.ask("PUT", "/exchanges/x", {"type": "direct", "durable": True}) == ("204", None)
            assert asker.ask("POST", "/bindings", binding) == ("204", None)
        assert asker.ask("PUT", "/exchanges/x", {"type": "fanout"})[0] == "409"
        asker.client.send(asker.client.sender("/exchanges/x/k"), "hello")
        status, shown = asker.ask("GET", "/queues/a%2Fb")
        assert (status, shown["name"], shown["message_count"], shown["type"]) == ("200", "a/b", 1, "quorum")
        assert shown["arguments"] == {"qpid.max_count": 5, "qpid.policy_type": "reject"}
        assert asker.ask("DELETE", "/bindings/src=x;dstq=a%2Fb;key=k;args=") == ("204", None)
        assert asker.ask("DELETE", "/exchanges/x") == ("204", None)
        assert asker.ask("DELETE", "/queues/a%2Fb") == ("200", {})
        assert asker.ask("GET", "/queues/a%2Fb")[0] == "404"
        assert asker.ask("POST", "/bindings", binding)[0] == "404"


def test_a_client_declares_its_queue_again_whatever_a_policy_or_an_operator_gives_it_beside() -> None:
    """RabbitMQ's clients do so at each start."""
    with bench() as b:
        asker = Asker(b)
        admin = b.client()
        assert admin.request("CREATE", "exchange", "dlx", {"exchangeType": "fanout"})[0] == 201
        policy = {"x-delivery-limit": 5, "x-single-active-consumer": True, "qpid.auto_delete_timeout": 60, "qpid.max_size": 9}
        attributes = {"arguments": policy, "alternateExchange": "dlx"}
        assert admin.request("CREATE", "QueuePolicy", "orders", attributes)[0] == 201
        overflow = {"arguments": {"x-max-length": 5, "x-overflow": "reject-publish"}}
        assert asker.ask("PUT", "/queues/orders", overflow) == ("201", {})
        assert asker.ask("PUT", "/queues/orders", overflow) == ("200", {})
        assert admin.request("UPDATE", "queue", "orders", {"arguments": {"x-message-ttl": 1000}})[0] == 200
        for changed in ({"x-delivery-limit": 7, "qpid.max_size": None}, {"qpid.max_count": 8}):
            assert admin.request("UPDATE", "QueuePolicy", "orders", {"arguments": changed})[0] == 200
            assert asker.ask("PUT", "/queues/orders", overflow) == ("200", {})
        same = {"x-message-ttl": 1000, "x-delivery-limit": 5, "x-dead-letter-exchange": "dlx"}
        assert asker.ask("PUT", "/queues/orders", {"auto_delete": True, "arguments": same}) == ("200", {})
        for other in (
            {"x-max-length": 6},
            {"x-delivery-limit": 7},
            {"x-max-priority": 3},
            {"x-dead-letter-exchange": "amq.topic"},
        ):
            assert asker.ask("PUT", "/queues/orders", {"arguments": other})[0] == "409"
        assert admin.request("DELETE", "QueuePolicy", "orders")[0] == 204
        assert asker.ask("PUT", "/queues/orders", overflow)[0] == "409", "now nothing says that one consumer is active"
        active = {"x-single-active-consumer": True}
        assert asker.ask("PUT", "/queues/orders", {"arguments": active}) == ("200", {})
        assert asker.ask("PUT", "/queues/plain", overflow) == ("201", {})
        assert asker.ask("PUT", "/queues/plain", {"auto_delete": True})[0] == "409"


def test_a_request_whose_body_stands_before_its_properties_is_understood() -> None:
    """As that of RabbitMQ's client for Python does that has none: to a queue such a message is rejected."""
    with bench() as b:
        asker = Asker(b)
        asker.ask("PUT", "/queues/q")
        request = b"\x00\x53\x77\x40" + proton.Message(subject="GET", address="/queues/q", id="1", reply_to="$me").encode()
        asker.client.send_encoded(asker.sender, request)
        assert asker.client.received[asker.receiver.name][-1][1].subject == "200"
        (bad,) = asker.client.send_encoded(asker.sender, b"\x00\x53")
        assert bad.remote.condition.name == "amqp:decode-error"
        queue = asker.client.sender("/queues/q")
        (refused,) = asker.client.send_encoded(queue, request)
        assert refused.remote.condition.name == "amqp:decode-error"


def test_what_is_not_served_is_answered_with_what_to_do() -> None:
    with bench() as b:
        asker = Asker(b)
        status, text = asker.ask("PUT", "/queues/s", {"arguments": {"x-queue-type": "stream"}})
        assert (status, "'stream'" in text) == ("400", True)
        status, text = asker.ask("DELETE", "/queues/q/messages")
        assert (status, "qpid-config" in text) == ("400", True)
        assert asker.ask("PUT", "/queues/q", {"arguments": {"x-quorum-target-group-size": 3}})[0] == "501"


@pytest.mark.parametrize("wrong", [[], ["x"], {}, {"x": 1}, 7, 1.5, True, b"x"], ids=repr)
@pytest.mark.parametrize("field", ["source", "destination_queue", "binding_key"])
def test_a_binding_of_anything_but_texts_is_refused_and_its_connection_goes_on(field: str, wrong: Any) -> None:
    """Breaks when a list is looked up among the names of exchanges: then the connection is dropped, and no answer comes."""
    with bench() as b:
        asker = Asker(b)
        asker.ask("PUT", "/queues/q")
        binding = {"source": "amq.direct", "destination_queue": "q", "binding_key": "k", "arguments": {}}
        status, text = asker.ask("POST", "/bindings", binding | {field: wrong})
        assert (status, field in text) == ("400", True)
        assert asker.ask("PUT", "/exchanges/x", {"type": wrong})[0] == "400"
        assert asker.ask("POST", "/bindings", binding) == ("204", None)


def test_a_pair_is_of_one_name_and_one_connection() -> None:
    with bench() as b:
        asker = Asker(b)
        session = asker.client.connection.session()
        session.open()
        again = session.receiver("pair")
        again.source.address = "/management"
        again.open()
        b.settle()
        assert condition(again) == "amqp:not-allowed"
        alone = asker.client.sender("/management", name="alone")
        (sent,) = asker.client.send(alone, None, address="/queues/q", subject="GET", id="1")
        assert sent.remote.condition.name == "amqp:precondition-failed"
        other = b.client().sender("/management", name="pair")
        assert not condition(other)
        asker.receiver.close()
        b.settle()
        (late,) = asker.client.send(asker.sender, None, address="/queues/q", subject="GET", id="1")
        assert late.remote.condition.name == "amqp:precondition-failed"


def test_a_request_that_management_rejects_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a pair of links that was refused often enough has all its later requests refused, and holds their bodies."""
    monkeypatch.setattr(limits, "MAILBOX_MESSAGES", 3)
    with bench() as b:
        asker = Asker(b)
        with monkeypatch.context() as patch:
            patch.setattr(limits, "MANAGEMENT_WAITING_BYTES", 10)
            for _ in range(5):
                (sent,) = asker.client.send(asker.sender, QUORUM, address="/queues/q", subject="PUT", id="1")
                assert "wait already: ask again later" in sent.remote.condition.description
        assert asker.ask("PUT", "/queues/q", QUORUM) == ("201", {})
        assert len(asker.client.received[asker.receiver.name]) == 1


def test_a_request_that_is_dropped_with_its_link_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAILBOX_MESSAGES", 3)
    with bench() as b:
        asker = Asker(b)
        with monkeypatch.context() as patch:
            patch.setattr(limits, "MANAGEMENT_TURN_S", 0.0)  # each waits for the next turn
            for number in range(3):
                encoded = proton.Message(address=f"/queues/q{number}", subject="PUT", id=f"{number}", body=QUORUM).encode()
                asker.client.send_encoded(asker.sender, encoded, settle=False)
            asker.sender.close()
            b.settle()
        assert (b.broker.nodes.queues, asker.client.received[asker.receiver.name]) == ({}, [])
        asker.sender = asker.client.sender("/management", name="pair")
        assert asker.ask("PUT", "/queues/q", QUORUM) == ("201", {})


@pytest.mark.parametrize("as_rabbitmq, product", [(True, "RabbitMQ"), (False, "understudy")])
def test_an_open_says_what_rabbitmqs_clients_look_for_only_where_that_is_asked_for(as_rabbitmq: bool, product: str) -> None:
    with bench(as_rabbitmq=as_rabbitmq) as b:
        properties = b.client().connection.remote_properties
        assert properties["product"] == product
        assert (properties["version"] == "4.0.0") == as_rabbitmq
