"""Clients whose frames are small: whatever the broker says to them fits, or it says why it cannot (AMQP 1.0 part 2.8.14)."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core.filters import SELECTOR
from broker.core.limits import HELD_SHOWN
from broker.core.links import HELD
from tests.broker.clients import Bench, Client, bench, condition
from tests.broker.test_numbered_links import attach as numbered
from tests.broker.test_numbered_links import link_of, send
from tests.broker.test_subscriptions import described, subscribe

SMALLEST = 512
"""AMQP's MIN-MAX-FRAME-SIZE."""
TOO_SMALL = "amqp:frame-size-too-small"


def small(b: Bench, frame: int = SMALLEST) -> Client:
    """A client that ends its connection when a larger frame comes."""
    client = Client(b, container="ann")
    client.transport.max_frame_size = frame
    b.clients.append(client)
    return client.open()


def selector(size: int) -> dict[Any, Any]:
    return described(SELECTOR, "a = '" + "x" * (size - 6) + "'")


def is_refused(link: Any, client: Client) -> bool:
    assert condition(client.connection) == ""
    assert client.transport.condition is None
    return bool(condition(link) == TOO_SMALL and link.remote_source.type == proton.Terminus.UNSPECIFIED)


def needed(link: Any) -> int:
    """The max-frame-size that a refusal asks for."""
    return int(link.remote_condition.description.rpartition("set it to ")[2].split()[0])


def test_an_attach_whose_answer_is_too_large_is_refused_and_says_which_frames_it_needs() -> None:
    with bench() as b:
        b.queue("q")
        client = small(b)
        for size in range(100, 600, 20):
            link = client.receiver("q", name=f"s{size}", filters=selector(size))
            assert is_refused(link, client) == (size >= 300), size
        queue = b.broker.queues.named("q")
        assert queue is not None
        assert len(queue.subscriptions) == 10, "those that were refused are not there"
        wider = small(b, needed(client.receiver("q", filters=selector(400), name="from-q-0-0")))
        assert condition(wider.receiver("q", filters=selector(400), name="from-q-0-0")) == ""


def test_nothing_is_made_for_an_attach_whose_answer_is_too_large() -> None:
    with bench() as b:
        client = small(b)
        assert is_refused(subscribe(client, "news", filters=selector(450)), client)
        assert is_refused(subscribe(client, "now", durable=False, filters=selector(450)), client)
        assert not b.broker.nodes.queues


def test_what_was_made_goes_when_the_broker_s_own_part_of_the_answer_is_too_large() -> None:
    """The answer has the address of the new topic, which the attach did not have: one of these names is too long only for it."""
    with bench() as b:
        client, more = small(b), set()
        for size in range(200, 400, 4):
            link = client.session.receiver("n" * size)
            link.source.dynamic = True
            link.source.capabilities.put_object(proton.symbol("topic"))
            link.open()
            b.settle()
            if is_refused(link, client):
                more.add(needed(link) - size)
                assert not b.broker.nodes.queues
                assert not [each for each in b.broker.nodes.exchanges if each and not each.startswith("amq.")]
            link.close()
            b.settle()
        assert len(more) > 1, more


def test_a_subscription_that_another_client_has_made_is_refused_when_its_filters_are_too_large() -> None:
    """A link without a source asks for it: the filters are in the answer only."""
    with bench() as b:
        wide = b.client(container="ann")
        subscribe(wide, "news", filters=selector(500)).detach()
        b.settle()
        client = small(b)
        assert is_refused(subscribe(client, "news", None), client)
        (name,) = b.broker.nodes.queues
        queue = b.broker.queues.named(name)
        assert queue is not None
        assert not queue.subscriptions


def test_a_numbered_link_is_shown_as_many_of_its_newest_runs_as_fit_and_never_none() -> None:
    """Breaks when a producer cannot attach again, or begins to count at 1 because it is shown no number."""
    with bench() as b:
        b.queue("q")
        shown = []
        for size, frame in ((5, 0), (5, SMALLEST), (256, SMALLEST)):
            before, link = link_of(b, "ann", name="n" * size)
            send(before, link, *range(1, 301, 2))
            before.lose()
            client = small(b, frame) if frame else b.client(container="ann")
            again = numbered(client, name="n" * size)
            assert (condition(again), client.transport.condition) == ("", None)
            numbers = again.remote_properties[HELD]
            assert numbers[::2] == [*range(1, 301, 2)][-len(numbers) // 2 :]
            shown.append(len(numbers) // 2)
        assert shown[0] == HELD_SHOWN > shown[1] > shown[2] > 0
        for first, refusal in (("m", ""), ("n", TOO_SMALL)):
            link = small(b).session.sender(first * 256)
            link.source.address, link.target.address = "s" * 70, "q"
            link.target.capabilities.put_object(proton.symbol("qpid.numbered"))
            link.open()
            b.settle()
            assert condition(link) == refusal, "there is room for a list without numbers, and for no number"


@pytest.mark.parametrize("sends", [True, False])
def test_a_link_whose_name_alone_is_too_large_ends_the_connection_and_says_so(sends: bool) -> None:
    """An answer to it, also a refusal, repeats the name."""
    with bench() as b:
        b.queue("q")
        client = small(b)
        (client.sender if sends else client.receiver)("q", name="n" * 380)
        assert condition(client.connection) == ""
        (client.sender if sends else client.receiver)("q", name="n" * 500)
        assert condition(client.connection) == TOO_SMALL
        assert "500 characters" in client.connection.remote_condition.description
