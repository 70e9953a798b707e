"""Messages that come as one (bundles), and addresses that are URLs: what Azure's clients send, over links of a broker."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits, values
from broker.core.bundles import FORMAT
from broker.core.performatives import fields_of
from tests.broker.clients import ACCEPTED, ADMIN, REJECTED, Bench, Client, bench, condition, statuses

FRAME_BYTES = 30_000


def data(content: bytes) -> bytes:
    """A data section."""
    return b"\x00\x53\x75\xb0" + len(content).to_bytes(4, "big") + content


def bundle(*bodies: Any) -> bytes:
    return b"".join(data(proton.Message(body=body).encode()) for body in bodies)


def with_format(stream: bytes) -> bytes:
    """What Proton's client has written, with the message format of a bundle in each transfer."""
    pieces, position = [], 0
    while position < len(stream):
        size = int.from_bytes(stream[position : position + 4], "big")
        one = stream[position : position + size]
        position += size
        if one[8:11] == b"\x00\x53\x14":
            count, at, end = fields_of(one, 11, size)
            first = at
            for _ in range(3):
                at = values.skip(one, at, end, 0)
            fields = one[first:at] + FORMAT + one[values.skip(one, at, end, 0) : end]
            body = b"\x00\x53\x14\xd0" + (len(fields) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + fields + one[end:]
            one = (len(body) + 8).to_bytes(4, "big") + one[4:8] + body
        pieces.append(one)
    return b"".join(pieces)


def azure(b: Bench) -> Client:
    """A client that has put a token, or tried to."""
    client = b.client()
    client.sender("$cbs")
    return client


def say(client: Client) -> None:
    """What it has written goes to the broker, with that format."""
    stream = b""
    while (waiting := client.transport.pending()) > 0:
        said = client.transport.peek(waiting)
        client.transport.pop(len(said))
        stream += said
    client.say(with_format(stream))


def send(client: Client, link: Any, *bundles: bytes) -> None:
    """Send these, each as a bundle, in frames that have room for the format."""
    for one in bundles:
        link.delivery(f"bundle {len(client.outcomes)} {len(one)}")
        for start in range(0, len(one), FRAME_BYTES):
            link.stream(one[start : start + FRAME_BYTES])
            say(client)
        link.advance()
        say(client)
    client.bench.settle()


def refusal(client: Client) -> tuple[str, str]:
    """Name and text of the error in the last outcome."""
    found = client.outcomes[-1][1].remote.condition
    return found.name, found.description


def depth(b: Bench, name: str) -> int:
    node = b.broker.nodes.queues[name]
    assert node.messages is not None
    return node.depth


def test_the_messages_of_a_bundle_are_put_one_by_one_in_one_batch_and_in_order_with_others() -> None:
    with bench() as b:
        b.queue("q")
        client = azure(b)
        link = client.sender("q")
        before = len(b.lead.committed)
        send(client, link, bundle("one", "two", "three"))
        assert len(b.lead.committed) == before + 1
        client.send(link, "four")
        assert statuses(client, link) == [ACCEPTED, ACCEPTED]
        assert client.bodies(client.receiver("q")) == ["one", "two", "three", "four"]


def test_a_bundle_in_many_frames_is_one_and_so_is_the_next() -> None:
    with bench() as b:
        b.queue("q")
        client = azure(b)
        link = client.sender("q")
        large = [str(number) * 30_000 for number in range(8)]
        send(client, link, bundle(*large), bundle("behind"))
        assert client.bodies(client.receiver("q")) == [*large, "behind"]


def test_a_bundle_through_an_exchange_goes_to_every_queue_that_each_message_is_for() -> None:
    with bench() as b:
        for name in ("a", "b"):
            b.queue(name)
            admin = b.client({"qpid.ha-admin": True})
            admin.request("CREATE", "binding", "", {"exchange": "amq.topic", "queue": name, "key": f"{name}.#"})
        client = azure(b)
        link = client.sender("amq.topic")
        messages = [proton.Message(body=key, subject=key).encode() for key in ("a.1", "b.1", "nobody", "a.2")]
        send(client, link, b"".join(map(data, messages)))
        assert statuses(client, link) == [ACCEPTED]
        assert client.bodies(client.receiver("a")) == ["a.1", "a.2"]
        assert client.bodies(client.receiver("b")) == ["b.1"]


@pytest.mark.parametrize(
    "sent, name, why",
    [
        (b"", "amqp:decode-error", "has no message in it"),
        (bundle("one") + data(b"two"), "amqp:decode-error", "item 2 of a batch is not a message"),
        (bundle(*["x" * 100] * 30), "amqp:resource-limit-exceeded", "'q'"),
        (bundle("x" * limits.LARGE_PARTS * limits.PART_BYTES), "amqp:link:message-size-exceeded", "send fewer at a time"),
    ],
)
def test_of_a_bundle_that_cannot_be_taken_nothing_is(sent: bytes, name: str, why: str) -> None:
    """Breaks when a part of what a client sent as one is there, and it sends all of it again."""
    with bench() as b:
        b.queue("q", arguments={"qpid.max_size": 2000})
        client = azure(b)
        link = client.sender("q")
        send(client, link, sent)
        assert statuses(client, link) == [REJECTED]
        found, text = refusal(client)
        assert (found, why in text) == (name, True), text
        assert depth(b, "q") == 0
        send(client, link, bundle("it goes on"))
        assert depth(b, "q") == 1


def test_a_bundle_is_for_queues_and_exchanges_and_for_no_transaction() -> None:
    with bench() as b:
        client = azure(b)
        link = client.sender("$management")
        send(client, link, bundle("one"))
        assert refusal(client)[0] == "amqp:not-implemented"


def test_what_bundles_hold_until_they_are_committed_counts_with_transactions() -> None:
    with bench() as b:
        b.queue("q")
        client = azure(b)
        link = client.sender("q")
        budget = b.broker.transactions.budget
        b.lead.automatic = False
        send(client, link, bundle("one"))
        assert budget.nbytes > 0
        b.lead.commit()
        b.settle()
        assert (budget.nbytes, budget.n_open) == (0, 0)
        budget.limit_bytes = 0
        b.lead.automatic = True
        send(client, link, bundle("two"))
        assert refusal(client)[0] == "amqp:resource-limit-exceeded"
        assert (budget.nbytes, budget.n_open) == (0, 0)


def test_a_bundle_that_was_under_way_when_a_term_ended_holds_nothing_any_more() -> None:
    with bench(clustered=True) as b:
        b.queue("q", replicate="all")
        client = azure(b)
        link = client.sender("q")
        budget = b.broker.transactions.budget
        b.lead.automatic = False
        send(client, link, bundle("one"))
        assert (budget.nbytes > 0, budget.n_open) == (True, 1)
        b.lead.become("ready", "other")
        b.settle()
        assert (client.lost, budget.nbytes, budget.n_open) == (True, 0, 0)


def test_a_backup_rejects_a_bundle_that_an_anonymous_link_brings_for_a_queue() -> None:
    with bench(clustered=True) as b:
        b.queue("q", replicate="all")
        b.lead.become("ready", "other")
        b.settle()
        admin = b.client(ADMIN)
        admin.sender("$cbs")
        inner = [bytes(proton.Message(body=each, address="q").encode()) for each in ("one", "two")]
        send(admin, admin.sender(None), b"".join(map(data, inner)))
        assert refusal(admin) == ("amqp:not-allowed", "this broker is ready: it serves no queues; the primary is other")
        budget = b.broker.transactions.budget
        assert (budget.nbytes, budget.n_open, b.broker.logs.inflow.nbytes) == (0, 0, 0)


# ---- addresses


def at(host: str, b: Bench) -> Client:
    """A client that has connected to this host, as it says."""
    client = Client(b)
    b.clients.append(client)
    client.connection.hostname = host
    return client.open()


def test_an_address_that_is_a_url_of_the_client_s_own_host_names_the_node_behind_it() -> None:
    with bench() as b:
        b.queue("orders")
        client = at("Broker.example", b)
        link = client.sender("amqps://broker.example:5671/orders")
        client.send(link, "it")
        assert link.remote_target.address == "amqps://broker.example:5671/orders", "it is told what it has asked for"
        assert client.bodies(client.receiver("amqps://broker.example/orders")) == ["it"]


def test_a_url_of_another_host_names_nothing_and_a_queue_of_that_name_comes_first() -> None:
    with bench() as b:
        b.queue("orders")
        client = at("broker.example", b)
        assert condition(client.sender("amqps://elsewhere/orders")) == "amqp:not-found"
        assert condition(client.sender("amqps://broker.example/missing")) == "amqp:not-found"
        url = "amqps://broker.example/orders"
        b.queue(url)
        client.send(client.sender(url), "it")
        assert (depth(b, url), depth(b, "orders")) == (1, 0)


def test_a_client_that_says_no_host_has_no_urls() -> None:
    with bench() as b:
        b.queue("orders")
        assert condition(b.client().sender("amqps://broker.example/orders")) == "amqp:not-found"
