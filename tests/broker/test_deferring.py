"""Messages that a consumer defers: they wait for the time that it names in `modified`, or until somebody asks for them by their
sequences."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.nodes import CLUSTER, LOCAL
from broker.sessions.delivering import deliver
from tests.broker.clients import ADMIN, Bench, Client, bench, request
from tests.broker.test_acl import rules
from tests.broker.test_dead_letters import letters_of
from tests.broker.test_peek import body_of, shown

TIME, DELAY = proton.symbol("x-opt-delivery-time"), proton.symbol("x-opt-delivery-delay")
FAR_MS = 1 << 52


def filled(b: Bench, *bodies: Any, **attributes: Any) -> Client:
    """A client of the queue q, which has these messages; it accepts nothing by itself."""
    b.queue("q", **attributes)
    client = b.client()
    client.send(client.sender("q"), *bodies)
    client.auto_accept = False
    return client


def defer(client: Client, link: Any, note: dict[Any, Any], *, failed: bool = False) -> None:
    """Give the last message of this link back, to wait."""
    delivery = client.received[link.name][-1][0]
    delivery.local.annotations = note
    client.give(delivery, proton.Delivery.MODIFIED, failed=failed)


def states(b: Bench) -> list[tuple[Any, str, int]]:
    return [(body_of(each), each["state"], each["failures"]) for each in shown(b)["items"]]


def ask(b: Bench, *sequences: int) -> tuple[int, str, Any]:
    return b.client(ADMIN).request("DELIVER", "queue", "q", {"sequences": list(sequences)})


@pytest.mark.parametrize("failed", [False, True])
def test_a_message_waits_as_long_as_its_consumer_asks_and_others_are_given_out_before_it(failed: bool) -> None:
    with bench() as b:
        client = filled(b, "a", "b")
        link = client.receiver("q", credit=1)
        defer(client, link, {DELAY: 5_000}, failed=failed)
        link.flow(5)
        b.settle()
        assert client.bodies(link) == ["a", "b"], "what waits is not given out again"
        assert states(b) == [("a", "delayed", int(failed)), ("b", "acquired", 0)]
        b.pass_time(6.0)
        assert client.bodies(link) == ["a", "b", "a"]
        assert states(b)[0] == ("a", "acquired", int(failed))


def test_a_time_that_is_named_counts_before_a_delay_and_one_that_is_over_is_none() -> None:
    with bench() as b:
        client = filled(b, "a")
        now_ms = b.lead.ledger.now_ms
        link = client.receiver("q", credit=1)
        for note in (
            {TIME: proton.timestamp(now_ms - 1), DELAY: 60_000},
            {DELAY: 0},
            {DELAY: "soon"},
            {proton.symbol("other"): 1},
        ):
            defer(client, link, note)
            link.flow(1)
            b.settle()
        assert client.bodies(link) == ["a"] * 5
        defer(client, link, {TIME: proton.timestamp(now_ms + 2_000), DELAY: 60_000})
        link.flow(1)
        b.pass_time(3.0)
        assert client.bodies(link) == ["a"] * 6


def test_the_consumer_s_time_counts_before_what_the_queue_says_of_failures() -> None:
    with bench() as b:
        client = filled(b, "a", arguments={"x-delayed-retry-min": 1000})
        link = client.receiver("q", credit=1)
        defer(client, link, {DELAY: 10_000}, failed=True)
        link.flow(1)
        b.pass_time(5.0)
        assert client.bodies(link) == ["a"]
        b.pass_time(6.0)
        assert client.bodies(link) == ["a", "a"]


def test_times_that_consumers_ask_for_in_several_batches_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when messages return as soon as the first batch is committed, before the times of some of them."""
    monkeypatch.setattr(limits, "BATCH_TARGET_BYTES", 1)
    with bench() as b:
        client = filled(b, "a", "b", "c")
        link = client.receiver("q", credit=3)
        b.lead.automatic = False
        for delivery, _ in client.received[link.name]:
            delivery.local.annotations, delivery.local.failed = {DELAY: 60_000}, True
            delivery.update(proton.Delivery.MODIFIED)
            delivery.settle()
        b.settle()
        other = client.receiver("q", credit=3)
        while b.lead.waiting:
            b.lead.commit(1)
            b.settle()
        assert client.bodies(other) == []
        assert states(b) == [(each, "delayed", 1) for each in "abc"]
        b.lead.automatic = True
        b.pass_time(61.0)
        assert client.bodies(other) == ["a", "b", "c"], "they have returned, although nothing else was written to the log"


def test_what_is_deferred_comes_when_somebody_asks_for_its_sequence_and_not_before() -> None:
    with bench() as b:
        client = filled(b, "a", "b")
        link = client.receiver("q", credit=1)
        defer(client, link, {TIME: proton.timestamp(FAR_MS)})
        link.flow(1)
        b.settle()
        defer(client, link, {TIME: proton.timestamp(FAR_MS)})
        link.flow(5)
        b.pass_time(100.0, 50.0)
        assert client.bodies(link) == ["a", "b"]
        status, _, body = ask(b, 2, 2, 77)
        assert (status, body) == (200, {"count": 1, "left": 1})
        b.pass_time(0.1, 0.05)
        assert client.bodies(link) == ["a", "b", "b"]
        assert states(b) == [("a", "delayed", 0), ("b", "acquired", 0)]
        assert ask(b, 2)[2] == {"count": 0, "left": 1}, "a consumer has it"


@pytest.mark.parametrize("twice", [True, False], ids=["asked twice", "asked when the delay ends"])
def test_who_has_got_a_message_that_was_asked_for_keeps_it_when_another_request_is_committed(twice: bool) -> None:
    """Breaks when two consumers have one message at a time."""
    with bench() as b:
        client = filled(b, "a")
        link = client.receiver("q", credit=1)
        defer(client, link, {DELAY: 1 << 40 if twice else 100})
        link.flow(1)
        other = client.receiver("q", credit=0)
        terminus = b.broker.queues.named("q")
        assert terminus is not None
        b.lead.automatic = False
        answers: list[dict[str, Any]] = []
        for _ in range(1 + twice):
            deliver(terminus, [1], answers.append)
            b.settle()
        if twice:
            b.lead.commit(1)
        b.pass_time(0.2, 0.05)
        assert client.bodies(link) == ["a", "a"]
        other.flow(1)
        b.settle()
        b.lead.commit()
        b.pass_time(0.2, 0.05)
        assert client.bodies(other) == []
        assert answers == [{"count": 1, "left": 0}] * (1 + twice)
        assert states(b) == [("a", "acquired", 0)]


def test_what_is_deferred_waits_on_a_new_primary_too() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        client = filled(b, "a", replicate="all")
        link = client.receiver("q", credit=1)
        defer(client, link, {TIME: proton.timestamp(FAR_MS)})
        log = b.logs[CLUSTER]
        log.become("ready")
        log.become("active")
        b.settle()
        client = b.client()
        link = client.receiver("q")
        assert client.bodies(link) == []
        assert ask(b, 1)[2] == {"count": 1, "left": 0}
        b.pass_time(0.1, 0.05)
        assert client.bodies(link) == ["a"]


def test_what_is_deferred_and_undeliverable_here_is_a_dead_letter_as_ever() -> None:
    with bench() as b:
        client = filled(b, "a")
        link = client.receiver("q", credit=1)
        delivery = client.received[link.name][-1][0]
        delivery.local.annotations = {DELAY: 5_000}
        client.give(delivery, proton.Delivery.MODIFIED, undeliverable=True)
        b.pass_time(0.1, 0.05)
        assert b.depth("q") == 0


@pytest.mark.parametrize("asked", [None, [], 5, ["x"], [-1], [True], [1] * 1001])
def test_a_request_that_cannot_be_says_what_it_takes(asked: Any) -> None:
    with bench() as b:
        b.queue("q")
        status, text, _ = b.client(ADMIN).request("DELIVER", "queue", "q", {"sequences": asked})
        assert status == 400
        assert "sequence" in text


def test_who_may_not_consume_may_not_let_messages_out_either() -> None:
    with bench() as b:
        filled(b, "a")
        b.broker.enforce(rules("acl allow anonymous access method\nacl deny all consume queue\nacl allow all all\n"))
        status, text, _ = ask(b, 1)
        assert status == 403, text
        assert b.client(ADMIN).request("DELIVER", "queue", "none", {"sequences": [1]})[0] == 404


def test_a_cluster_with_an_older_member_has_no_messages_that_wait() -> None:
    with bench(clustered=True) as b:
        client = filled(b, "a", replicate="all")
        link = client.receiver("q", credit=1)
        defer(client, link, {DELAY: 60_000})
        link.flow(1)
        b.settle()
        assert client.bodies(link) == ["a", "a"], "as in the release before"
        status, text, _ = ask(b, 1)
        assert (status, "machine version 5" in text) == (409, True)


@pytest.mark.parametrize("operation, body", [("DELIVER", {"sequences": [77]}), ("REROUTE", {"exchange": "amq.fanout"})])
def test_only_a_primary_delivers_messages_or_puts_them_through_an_exchange(operation: str, body: dict[str, Any]) -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        filled(b, "a", replicate="none")
        b.queue("other", replicate="none")
        b.lead.become("ready", "other:5672")
        b.settle()
        admin = b.client(ADMIN)
        status, text, _ = admin.request(operation, "queue", "q", body)
        assert (status, text.startswith("this broker is ready: only the primary ")) == (409, True), text
        assert admin.request("MOVE", "queue", "q", {"to": "other"})[2] == {"count": 1, "left": 0}
        assert admin.request("PURGE", "queue", "other")[2] == {"count": 1, "left": 0}


def test_messages_of_this_broker_alone_expire_in_the_next_term_if_a_request_was_committed_between_two() -> None:
    """Breaks when a backup begins to send an expired message through an exchange: in the next term it would be held by nobody."""
    with bench(clustered=True) as b:
        b.upgraded()
        letters_of(b, replicate="none")
        client = b.client()
        client.send(client.sender("q"), "m", ttl=2)
        client.send(client.sender("q"), "n", annotations={DELAY: 60_000})
        asker = b.client()
        reply, sender = asker.receiver(None, dynamic=True), asker.sender("$management")
        local = b.logs[LOCAL]
        local.automatic = False
        asker.send_encoded(sender, request("DELIVER", "queue", "q", reply.remote_source.address, body={"sequences": [2]}))
        b.pass_time(0.1)
        assert len(local.waiting) == 1
        b.lead.become("ready", "other:5672")
        local.automatic = True
        local.commit()
        b.pass_time(5)
        b.lead.epoch += 1
        for state in ("recovering", "active"):
            b.lead.become(state)
            b.settle()
        b.pass_time(10)
        assert (b.depth("q"), b.depth("dead")) == (1, 1)


@pytest.mark.parametrize("asks", [False, True], ids=["the queue delays them", "the consumer delays them"])
def test_messages_that_fail_together_have_one_consumer_each_however_small_batches_are(
    asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a short delay ends between two batches of one outcome: the message is given out then, and again at the end."""
    monkeypatch.setattr(limits, "BATCH_TARGET_BYTES", 1)
    with bench() as b:
        client = filled(b, "a", "b", "c", arguments={} if asks else {"x-delayed-retry-min": 10})
        client.send(client.sender("q"), "z", annotations={DELAY: 60})
        link = client.receiver("q", credit=3)
        b.lead.automatic = False
        for delivery, _ in client.received[link.name]:
            delivery.local.failed = True
            if asks:
                delivery.local.annotations = {DELAY: 10}
            delivery.update(proton.Delivery.MODIFIED)
            delivery.settle()
        b.settle()
        others = [b.client() for _ in range(2)]
        links = []
        for other, credit in zip(others, (1, 5), strict=True):
            other.auto_accept = False
            links.append(other.receiver("q", credit=credit))
            for _ in range(4 if asks and credit == 1 else 2):  # up to the first time
                b.lead.commit(1)
                b.settle()
            b.pass_time(0.2, 0.02)
        b.commit_all()
        b.pass_time(0.3, 0.02)
        assert sorted(body for other, each in zip(others, links, strict=True) for body in other.bodies(each)) == [
            "a",
            "b",
            "c",
            "z",
        ]
