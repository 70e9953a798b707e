"""What becomes of a message by each outcome of its consumer (AMQP 1.0 part 3.4), and what its header says the next time."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from tests.broker.clients import Bench, Client, bench

ACCEPTED, REJECTED, RELEASED, MODIFIED = (
    getattr(proton.Delivery, name) for name in ("ACCEPTED", "REJECTED", "RELEASED", "MODIFIED")
)
Settled = tuple[Any, bool, bool]
"""An outcome, and of `modified` the flags delivery-failed and undeliverable-here."""


def delivered(b: Bench, **fields: Any) -> tuple[Client, Any, Any]:
    """A client, the link on which the first message of `q`, of these fields, has come, and its delivery without an outcome."""
    client = b.client()
    client.send(client.sender("q"), "a", **fields)
    client.auto_accept = False
    link = client.receiver("q", credit=1)
    ((delivery, _),) = client.received[link.name]
    return client, link, delivery


def settled(b: Bench, outcome: Settled, **fields: Any) -> tuple[Client, Any]:
    """A client whose first message of `q`, of these fields, has had this outcome, and the link on which it came."""
    client, link, delivery = delivered(b, **fields)
    what, failed, undeliverable = outcome
    client.give(delivery, what, failed=failed, undeliverable=undeliverable)
    b.pass_time(1)
    return client, link


def depths(b: Bench) -> tuple[int, int]:
    return b.depth("q"), b.depth("dead")


@pytest.mark.parametrize(
    "outcome, left, count",
    [
        ((ACCEPTED, False, False), (0, 0), None),
        ((RELEASED, False, False), (1, 0), 3),
        ((MODIFIED, False, False), (1, 0), 3),
        ((MODIFIED, True, False), (1, 0), 4),
        ((MODIFIED, False, True), (0, 1), None),
        ((MODIFIED, True, True), (0, 1), None),
        ((REJECTED, False, False), (0, 1), None),
    ],
)
def test_an_outcome_says_where_a_message_goes_and_whether_its_delivery_counts(
    outcome: Settled, left: tuple[int, int], count: int | None
) -> None:
    """A message that its sender says has failed 3 times, so that it is seen whether the broker adds to that."""
    with bench() as b:
        b.queue("dead")
        client = b.client({"qpid.ha-admin": True})
        assert client.request("CREATE", "exchange", "dlx", {"exchangeType": "fanout"})[0] == 201
        assert client.request("CREATE", "binding", "", {"exchange": "dlx", "queue": "dead", "key": ""})[0] == 201
        b.queue("q", alternateExchange="dlx")
        client, link = settled(b, outcome, delivery_count=3, first_acquirer=True)
        assert depths(b) == left
        link.flow(1)
        b.settle()
        again = [message for _, message in client.received[link.name][1:]]
        assert [message.delivery_count for message in again] == ([] if count is None else [count])
        assert [message.first_acquirer for message in again] == ([] if count is None else [count == 3])


def test_what_comes_again_has_what_is_left_of_its_time_to_live() -> None:
    with bench() as b:
        b.queue("q")
        client, link = settled(b, (RELEASED, False, False), ttl=10.0)
        b.pass_time(2)
        link.flow(1)
        b.settle()
        assert client.received[link.name][-1][1].ttl == pytest.approx(7, abs=0.5)


@pytest.mark.parametrize("outcome", [ACCEPTED, RELEASED, MODIFIED, REJECTED])
def test_a_consumer_that_settles_second_is_answered_whatever_the_outcome_is(outcome: Any) -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "a")
        client.auto_accept = False
        link = client.receiver("q", credit=1, second=True)
        ((delivery, _),) = client.received[link.name]
        delivery.update(outcome)
        b.pass_time(1)
        assert delivery.settled
        assert delivery.remote_state == outcome, "it is said again: Azure's clients look whether it is what they have said"
        assert b.depth("q") == (1 if outcome in (RELEASED, MODIFIED) else 0)


@pytest.mark.parametrize(
    "failed, note", [(True, None), (False, {"a": 1}), (False, {"x-opt-delivery-delay": 60_000})], ids=["failed", "note", "delay"]
)
def test_what_modified_says_of_a_message_is_committed_before_it_is_settled(failed: bool, note: dict[str, Any] | None) -> None:
    """A client that has the settlement may rely on the count, the annotations and the delay, whoever is the primary then."""
    with bench(clustered=True, default_level="all") as b:
        b.upgraded()
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "a", "b")
        client.auto_accept = False
        link = client.receiver("q", credit=2)
        (first, second), b.lead.automatic = [delivery for delivery, _ in client.received[link.name]], False
        first.local.failed = failed
        if note is not None:
            first.local.annotations = {proton.symbol(name): value for name, value in note.items()}
        first.update(MODIFIED)
        second.update(RELEASED)
        b.pass_time(1)
        assert [first.settled, second.settled] == [False, True], "no record says that a message was released"
        b.lead.commit()
        b.pass_time(1)
        assert first.settled
        assert first.remote_state == MODIFIED
        b.lead.automatic = True


def test_an_outcome_whose_annotations_are_too_long_is_settled_though_nothing_is_to_be_committed() -> None:
    with bench() as b:
        b.queue("q")
        _, _, delivery = delivered(b)
        delivery.local.annotations = {proton.symbol("a"): "x" * limits.MAX_NOTE_BYTES}
        delivery.update(MODIFIED)
        b.settle()
        assert delivery.settled


def test_a_link_that_ends_before_its_outcome_is_committed_holds_nothing_up() -> None:
    with bench() as b:
        b.queue("q")
        client, link, delivery = delivered(b)
        b.lead.automatic = False
        delivery.local.failed = True
        delivery.update(MODIFIED)
        b.pass_time(1)
        link.close()
        b.settle()
        b.lead.automatic = True
        b.lead.commit()
        b.pass_time(1)
        ((_, again),) = client.received[client.receiver("q", name="again").name]
        assert again.delivery_count == 1


def test_who_drains_an_empty_queue_gets_its_credit_back_and_may_give_credit_again() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        link = client.receiver("q", credit=0)
        for _ in range(2):
            link.drain(10)
            b.settle()
            assert link.credit == 0
        client.send(client.sender("q"), "a", "b")
        assert client.bodies(link) == [], "its credit was given back"
        link.drain_mode = False
        link.flow(1)
        b.settle()
        assert client.bodies(link) == ["a"]


@pytest.mark.parametrize("size", [10, 300_000, 3_000_000])
def test_a_message_that_its_sender_gives_up_is_on_no_queue_and_the_next_one_is(size: int) -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        link = client.sender("q")
        delivery = link.delivery("given up")
        link.stream(proton.Message(body="x" * size).encode()[:-1])
        b.settle()
        delivery.abort()
        b.settle()
        client.send(link, "a")
        assert b.depth("q") == 1
        assert b.lead.ledger.state.parts.order.depth == 0
        assert client.bodies(client.receiver("q")) == ["a"]


# ---- annotations of modified


def annotated(b: Bench, client: Client, link: Any, note: dict[str, Any], *, failed: bool = False, dead: bool = False) -> None:
    """Give the last message of this link back, with annotations, and take the next one."""
    delivery, _ = client.received[link.name][-1]
    delivery.local.annotations = {proton.symbol(name): value for name, value in note.items()}
    client.give(delivery, MODIFIED, failed=failed, undeliverable=dead)
    link.flow(1)
    b.pass_time(1)


def consumer(b: Bench) -> tuple[Client, Any]:
    client = b.client()
    client.auto_accept = False
    return client, client.receiver("q", credit=1)


@pytest.mark.parametrize("size", [10, limits.LARGE_PARTS * 16 * 1024 + 1])
@pytest.mark.parametrize("failed", [False, True])
def test_what_a_consumer_notes_on_a_message_is_there_for_whoever_gets_it_next(size: int, failed: bool) -> None:
    with bench(part_bytes=16 * 1024) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "x" * size, annotations={proton.symbol("a"): 1, proton.symbol("keep"): True})
        client, link = consumer(b)
        annotated(b, client, link, {"a": 2, "b": ["c"]}, failed=failed)
        annotated(b, client, link, {"b": "d"}, failed=failed)
        found = [message.annotations for _, message in client.received[link.name]]
        assert found[1:] == [{"a": 2, "b": ["c"], "keep": True}, {"a": 2, "b": "d", "keep": True}]
        assert client.received[link.name][-1][1].body == "x" * size
        browser = b.client()
        ((_, seen),) = browser.received[browser.receiver("q", browse=True).name]
        assert seen.annotations == found[-1]


def test_the_next_primary_knows_what_was_noted_and_a_dead_letter_has_it() -> None:
    cluster: dict[str, Any] = {"clustered": True, "default_level": "all"}
    with bench(**cluster) as b, bench(state="ready", **cluster) as other:
        b.upgraded()
        b.queue("dead")
        b.queue("q", alternateExchange="amq.fanout")
        client = b.client({"qpid.ha-admin": True})
        assert client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "dead", "key": ""})[0] == 201
        client.send(client.sender("q"), "a")
        client, link = consumer(b)
        annotated(b, client, link, {"a": 1})
        b.lead.replayed_into(other.lead)
        other.lead.become("active")
        other.settle()
        client, link = consumer(other)
        assert client.received[link.name][0][1].annotations == {"a": 1}
        annotated(other, client, link, {"b": 2}, dead=True)
        reader = other.client()
        ((_, letter),) = reader.received[reader.receiver("dead").name]
        assert {"a": 1, "b": 2, "x-first-death-reason": "rejected"}.items() <= letter.annotations.items()


@pytest.mark.parametrize("note, newest", [({"a": "x" * limits.MAX_NOTE_BYTES}, True), ({"a": 1}, False)])
def test_a_note_that_is_too_long_or_that_an_older_member_would_not_know_is_not_there(note: dict[str, Any], newest: bool) -> None:
    with bench(clustered=True, default_level="all") as b:
        if newest:
            b.upgraded()
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "a")
        client, link = consumer(b)
        annotated(b, client, link, note)
        assert [message.annotations for _, message in client.received[link.name]] == [None, None]


def test_so_many_messages_of_a_queue_have_notes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as b:
        b.queue("q")
        monkeypatch.setattr(limits, "MAX_NOTES", 1)
        client = b.client()
        client.send(client.sender("q"), "a", "b")
        client, link = consumer(b)
        other, second = consumer(b)
        annotated(b, client, link, {"n": 1})
        annotated(b, other, second, {"n": 2})
        found = sorted(b.lead.ledger.state.messages[1].notes)
        assert found == [1]
