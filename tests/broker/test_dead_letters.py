"""Messages whose delivery fails too often, and what dead letters say, as clients see it."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from twisted.logger import capturedLogs, eventAsText

from broker.core import limits
from broker.core.letters import DELIVERY_LIMIT
from broker.core.nodes import LOCAL
from broker.core.records import Batch, Kind
from tests.broker.clients import ADMIN, Bench, Client, bench, creating
from tests.broker.core.test_definitions import calls_of

LARGE = limits.LARGE_PARTS * 16 * 1024 + 1


def letters_of(b: Bench, queue: str = "q", arguments: dict[str, Any] | None = None, **attributes: Any) -> None:
    """A queue whose dead letters go to the queue "dead"."""
    admin = b.client({"qpid.ha-admin": True})
    assert admin.request("CREATE", "exchange", "dlx", {"exchangeType": "fanout", "replicate": "all"})[0] == 201
    b.queue("dead", replicate="all")
    assert admin.request("CREATE", "binding", "", {"exchange": "dlx", "queue": "dead", "key": ""})[0] == 201
    body = {"alternateExchange": "dlx", "replicate": "all"} | attributes | {"arguments": arguments or {}}
    status, text, _ = admin.request("CREATE", "queue", queue, body)
    assert status == 201, text
    b.settle()


def fail(client: Client, receiver: Any, times: int = 1, outcome: Any = proton.Delivery.MODIFIED, **how: Any) -> None:
    """Give the next messages back, one after the other."""
    for _ in range(times):
        before = len(client.received[receiver.name])
        receiver.flow(1)
        client.bench.settle()
        for delivery, _ in client.received[receiver.name][before:]:
            client.give(delivery, outcome, **how)
        client.bench.settle()


def figures(b: Bench, queue: str = "q") -> tuple[int, int, int, int]:
    """Rejected, failed too often, expired, and how many of these no queue took."""
    (item,) = b.client().request("QUERY", "queue", queue)[2]["items"]
    return item["rejected"], item["overLimit"], item["expired"], item["dropped"]


def reasons(client: Client, queue: str = "dead") -> list[tuple[Any, Any, Any]]:
    """Body, queue and reason of each dead letter that is there, the last ones that they say."""
    found = client.received[client.receiver(queue, browse=True).name]
    return [(each.body, each.annotations["x-last-death-queue"], each.annotations["x-last-death-reason"]) for _, each in found]


def test_a_message_whose_delivery_has_failed_as_often_as_the_limit_says_is_a_dead_letter() -> None:
    with bench() as b:
        letters_of(b, arguments={"x-delivery-limit": 3})
        client = b.client()
        client.send(client.sender("q"), "poison", "sound")
        client.auto_accept = False
        receiver = client.receiver("q", credit=0)
        fail(client, receiver, 2, failed=True)
        assert (b.depth("q"), b.depth("dead")) == (2, 0)
        fail(client, receiver, 1, failed=True)
        assert (b.depth("q"), b.depth("dead")) == (1, 1)
        assert [each.delivery_count for _, each in client.received[receiver.name]] == [0, 1, 2]
        assert reasons(client) == [("poison", "q", "delivery_limit")]
        assert figures(b) == (0, 1, 0, 0)
        receiver.flow(5)
        b.settle()
        assert client.bodies(receiver)[3:] == ["sound"]


@pytest.mark.parametrize("outcome", ["RELEASED", "MODIFIED"])
def test_a_message_that_is_given_back_without_a_failure_may_come_for_ever(outcome: str) -> None:
    with bench() as b:
        b.queue("q", arguments={"x-delivery-limit": 1})
        client = b.client()
        client.send(client.sender("q"), "patient")
        client.auto_accept = False
        fail(client, client.receiver("q", credit=0), 5, getattr(proton.Delivery, outcome))
        assert (b.depth("q"), figures(b)) == (1, (0, 0, 0, 0))


def test_one_that_no_queue_takes_is_dropped_and_counted() -> None:
    with bench() as b:
        b.queue("q", arguments={"x-delivery-limit": 1})
        client = b.client()
        client.send(client.sender("q"), "poison")
        client.auto_accept = False
        fail(client, client.receiver("q", credit=0), failed=True)
        b.pass_time(0.1)
        assert (b.depth("q"), figures(b)) == (0, (0, 1, 0, 1))


def test_without_a_limit_a_message_comes_again_however_often_it_failed() -> None:
    with bench() as b:
        letters_of(b)
        client = b.client()
        client.send(client.sender("q"), "stubborn")
        client.auto_accept = False
        fail(client, client.receiver("q", credit=0), 30, failed=True)
        assert (b.depth("q"), b.depth("dead")) == (1, 0)


@pytest.mark.parametrize("left", ["one failure", "nothing but to leave"])
def test_another_primary_goes_on_with_the_count_of_the_last_one(left: str) -> None:
    """A primary that dies when the last failure is committed leaves a message that nobody may have, consumers or none."""
    with bench(clustered=True) as b, bench(clustered=True, state="ready") as other:
        for each in (b, other):
            each.logs[LOCAL].become("standalone")
        b.upgraded()
        letters_of(b, arguments={"x-delivery-limit": 3})
        client = b.client()
        client.send(client.sender("q"), "poison")
        client.auto_accept = False
        failures = 2 if left == "one failure" else 3
        fail(client, client.receiver("q", credit=0), failures, failed=True)
        if failures == 3:  # what came of the last failure is not committed
            del b.lead.committed[-1]
        b.lead.replayed_into(other.lead)
        client = other.client()
        other.lead.become("active")
        other.settle()
        if failures == 2:
            client = other.client()
            client.auto_accept = False
            fail(client, client.receiver("q", credit=0), 1, failed=True)
            other.pass_time(0.1)
        assert (other.depth("q"), other.depth("dead")) == (0, 1)


def test_nobody_gets_a_message_that_is_on_its_way_out() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        letters_of(b, arguments={"x-delivery-limit": 1})
        client = b.client()
        client.send(client.sender("q"), "poison", "sound")
        client.auto_accept = False
        fail(client, client.receiver("q", credit=0), failed=True)
        del b.lead.committed[-1]
        with bench(clustered=True, state="ready") as other:
            b.lead.replayed_into(other.lead)
            other.lead.automatic = False
            other.lead.become("active")
            client = other.client()
            browsing, consuming = client.receiver("q", browse=True), client.receiver("q")
            assert client.bodies(browsing) == client.bodies(consuming) == ["sound"]
            other.lead.automatic = True
            other.lead.commit()
            other.settle()
            assert (client.bodies(consuming), reasons(client)) == (["sound"], [("poison", "q", "delivery_limit")])


def test_one_whose_dead_letter_has_no_place_yet_waits_for_it_and_is_given_to_nobody() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        b.logs[LOCAL].automatic = False
        b.lead.take(creating("morgue", level="configuration"))
        client = b.client()
        assert client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "morgue", "key": ""})[0] == 201
        body = {"alternateExchange": "amq.fanout", "replicate": "all", "arguments": {"x-delivery-limit": 1}}
        assert client.request("CREATE", "queue", "q", body)[0] == 201
        client.send(client.sender("q"), "poison")
        client.auto_accept = False
        receiver = client.receiver("q", credit=0)
        fail(client, receiver, failed=True)
        receiver.flow(10)
        b.pass_time(3)
        assert (b.depth("q"), len(client.received[receiver.name])) == (1, 1)
        exchange = b.broker.nodes.exchanges["amq.fanout"]
        assert (exchange.received, exchange.routed, exchange.dropped) == (0, 0, 0), "it has not left"
        b.logs[LOCAL].commit()
        b.logs[LOCAL].automatic = True
        b.pass_time(1.5)
        assert (b.depth("q"), b.depth("morgue")) == (0, 1)
        assert (exchange.received, exchange.routed, exchange.dropped) == (1, 1, 0), "however often it was tried"


def odd(body: str, subject: bytes = b"\xa1\x01\xff", properties: bytes = b"") -> bytes:
    """A message with a subject that is no text, by default, and these application properties."""
    fields = b"\x40\x40\x40" + subject
    text = body.encode()
    section = b"\x00\x53\x73\xc0" + bytes([len(fields) + 1, 4]) + fields
    return section + properties + b"\x00\x53\x77\xa1" + bytes([len(text)]) + text


@pytest.mark.parametrize("end", ["reject", "expire"])
@pytest.mark.parametrize("subject", [b"\xa1\x01\xff", b"\x54\x07"], ids=["no text", "a number"])
def test_a_dead_letter_whose_subject_is_no_text_goes_where_no_subject_is_needed(subject: bytes, end: str) -> None:
    with bench() as b:
        letters_of(b, arguments={"x-message-ttl": 1000} if end == "expire" else {}, replicate="none")
        client = b.client()
        client.send_encoded(client.sender("q"), odd("one", subject))
        if end == "reject":
            client.auto_accept = False
            fail(client, client.receiver("q", credit=0), outcome=proton.Delivery.REJECTED)
        b.pass_time(2)
        assert (b.depth("q"), b.depth("dead")) == (0, 1)
        assert figures(b)[3] == 0


@pytest.mark.parametrize("end", ["reject", "expire", "limit"])
@pytest.mark.parametrize("kind, unreadable", [("direct", "subject"), ("topic", "subject"), ("headers", "properties")])
def test_a_dead_letter_whose_key_cannot_be_read_is_kept_until_a_queue_takes_everything(
    kind: str, unreadable: str, end: str
) -> None:
    """Breaks when it is dropped although a queue may be there for it, or when somebody gets it meanwhile."""
    with bench() as b:
        b.queue("dead")
        admin = b.client({"qpid.ha-admin": True})
        assert admin.request("CREATE", "exchange", "dlx", {"exchangeType": kind})[0] == 201
        comparing = {"exchange": "dlx", "queue": "dead", "key": "some", "arguments": {"x-match": "all", "n": 1}}
        assert admin.request("CREATE", "binding", "", comparing if kind == "headers" else comparing | {"arguments": {}})[0] == 201
        arguments = {"expire": {"x-message-ttl": 1000}, "limit": {"x-delivery-limit": 1}}.get(end, {})
        b.queue("q", alternateExchange="dlx", arguments=arguments)
        client = b.client()
        bad = odd("bad") if unreadable == "subject" else odd("bad", b"\xa1\x01x", b"\x00\x53\x74\xc1\x05\x02\x54\x01\x54\x01")
        client.send_encoded(client.sender("q"), bad, odd("good", b"\xa1\x01x"))
        client.auto_accept = False
        receiver = client.receiver("q", credit=0)
        if end != "expire":
            outcome = proton.Delivery.REJECTED if end == "reject" else proton.Delivery.MODIFIED
            fail(client, receiver, times=2, outcome=outcome, failed=end == "limit")
        b.pass_time(3)
        assert (b.depth("q"), b.depth("dead"), figures(b)[3]) == (1, 0, 1), "what can be read is dropped, and counted"
        receiver.flow(10)
        b.pass_time(3)
        assert len(client.received[receiver.name]) == (0 if end == "expire" else 2)
        if kind == "headers":
            altered = {"alternateExchange": "amq.fanout"}
            assert admin.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "dead", "key": ""})[0] == 201
            status, text, _ = admin.request("UPDATE", "queue", "q", altered)
            assert status == 200, text
        else:
            all_keys = {"exchange": "dlx", "queue": "dead", "key": "" if kind == "direct" else "#"}
            assert admin.request("CREATE", "binding", "", all_keys)[0] == 201
        b.pass_time(2)
        assert (b.depth("q"), b.depth("dead")) == (0, 1)


def test_a_kept_dead_letter_is_tried_again_while_others_come_all_the_time() -> None:
    with bench() as b:
        b.queue("dead")
        admin = b.client({"qpid.ha-admin": True})
        assert admin.request("CREATE", "exchange", "dlx", {"exchangeType": "direct"})[0] == 201
        b.queue("q", alternateExchange="dlx")
        client = b.client()
        client.auto_accept = False
        sender, receiver = client.sender("q"), client.receiver("q", credit=0)
        client.send_encoded(sender, odd("bad"))
        fail(client, receiver, outcome=proton.Delivery.REJECTED)
        assert admin.request("CREATE", "binding", "", {"exchange": "dlx", "queue": "dead", "key": ""})[0] == 201
        for _ in range(6):
            client.send(sender, "another", subject="x")
            fail(client, receiver, outcome=proton.Delivery.REJECTED)
            b.pass_time(0.5)
        assert (b.depth("q"), b.depth("dead")) == (0, 1)


@pytest.mark.parametrize("shared", [False, True])
def test_a_rejected_message_that_is_kept_does_not_hold_its_group(shared: bool) -> None:
    """Breaks when nobody gets the messages of a group any more because a dead letter of it has no place to go to."""
    with bench() as b:
        assert b.client().request("CREATE", "exchange", "dlx", {"exchangeType": "direct"})[0] == 201
        arguments = {"qpid.group_header_key": "g"} | ({"qpid.shared_msg_group": 1} if shared else {})
        b.queue("q", alternateExchange="dlx", arguments=arguments)
        client = b.client()
        client.send_encoded(client.sender("q"), odd("bad"), odd("good", b"\xa1\x01x"))
        client.auto_accept = False
        first = client.receiver("q", credit=0)
        fail(client, first, outcome=proton.Delivery.REJECTED)
        first.close()
        b.settle()
        second = client.receiver("q", credit=5)
        b.pass_time(3)
        assert (client.bodies(second), b.depth("q")) == (["good"], 2)


def test_dead_letters_that_are_kept_are_tried_again_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_TURN_LETTERS", 3)
    with bench() as b:
        b.queue("dead")
        admin = b.client({"qpid.ha-admin": True})
        assert admin.request("CREATE", "exchange", "dlx", {"exchangeType": "direct"})[0] == 201
        b.queue("q", alternateExchange="dlx", arguments={"x-message-ttl": 100})
        client = b.client()
        client.send_encoded(client.sender("q"), *(odd(str(n)) for n in range(8)))
        b.pass_time(2.5, 0.01)
        assert b.depth("q") == 8
        assert admin.request("CREATE", "binding", "", {"exchange": "dlx", "queue": "dead", "key": ""})[0] == 201
        left = []
        for _ in range(40):
            b.pass_time(0.1, 0.01)
            left.append(8 - b.depth("q"))
        assert sorted(set(left)) == [0, 3, 6, 8]
        client.request("DELETE", "queue", "q")


def test_dead_letters_that_are_kept_are_all_looked_at_again_by_the_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a broker that begins to leave gives each an entry in memory at once, or says that it owes none of them."""
    for name, most in (("MAX_TURN_LETTERS", 3), ("MAX_TURN_MESSAGES", 5)):
        monkeypatch.setattr(limits, name, most)
    with bench() as b:
        b.queue("dead")
        admin = b.client({"qpid.ha-admin": True})
        assert admin.request("CREATE", "exchange", "dlx", {"exchangeType": "direct"})[0] == 201
        b.queue("q", alternateExchange="dlx", arguments={"x-delivery-limit": 1})
        client = b.client()
        client.auto_accept = False
        client.send_encoded(client.sender("q"), *(odd(str(n)) for n in range(40)))
        receiver = client.receiver("q", credit=40)
        for number, (delivery, _) in enumerate(client.received[receiver.name]):
            client.give(delivery, proton.Delivery.MODIFIED if number < 10 else proton.Delivery.REJECTED, failed=number < 10)
        b.settle()
        terminus = b.broker.queues.at(b.broker.nodes.queues["q"])
        letters = terminus.letters
        for place, depths in ((False, (40, 0)), (True, (0, 40))):
            if place:
                assert admin.request("CREATE", "binding", "", {"exchange": "dlx", "queue": "dead", "key": ""})[0] == 201
            assert (letters.waiting, letters.owed) == ({}, False)
            letters.look_again()
            assert list(letters.waiting.values()) == 5 * [DELIVERY_LIMIT]
            assert letters.owed, "there are rejected ones behind these"
            terminus.dispatch_soon()
            b.settle()
            assert (b.depth("q"), b.depth("dead")) == depths
        assert not letters.owed


def test_many_leave_by_turns_of_which_none_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as b:
        letters_of(b)
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), *map(str, range(600)))
        receiver = client.receiver("q", credit=600)
        terminus = b.broker.queues.named("q")
        assert terminus is not None
        sends: list[int] = []
        send = type(terminus.letters).send

        def watched(letters: Any) -> None:
            before = len(letters.waiting)
            send(letters)
            sends.append(before - len(letters.waiting))

        monkeypatch.setattr(type(terminus.letters), "send", watched)
        for delivery, _ in client.received[receiver.name]:
            delivery.update(proton.Delivery.REJECTED)
            delivery.settle()
        b.settle()
        client.auto_accept = True
        assert client.bodies(client.receiver("dead", credit=600)) == list(map(str, range(600)))
        assert 0 < max(sends) <= limits.MAX_TURN_LETTERS


@pytest.mark.parametrize("replicate", ["all", "none"])
def test_many_that_expire_together_leave_no_faster_than_they_are_committed(
    replicate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when the memory of a primary grows with a backlog that expires, and all producers wait until it has left."""
    most, size = 400_000, 10_000
    monkeypatch.setattr(limits, "LETTERS_INFLOW_BYTES", most)
    monkeypatch.setattr(limits, "BATCH_TARGET_BYTES", 50_000)
    with bench(clustered=True) as b:
        b.upgraded()
        letters_of(b, arguments={"x-message-ttl": 1000}, replicate=replicate)
        client = b.client()
        bodies = [str(n).zfill(size) for n in range(300)]
        client.send(client.sender("q"), *bodies)
        b.lead.automatic = False
        b.pass_time(3)
        inflow, under_way = b.broker.logs.inflow, []
        while b.lead.waiting:
            under_way.append(inflow.nbytes)
            b.lead.commit(1)
            b.pass_time(0.1, 0.1)
        assert most <= max(under_way) <= most + 2 * size
        b.lead.automatic = True
        b.pass_time(1)
        assert (b.depth("q"), b.depth("dead"), inflow.nbytes) == (0, 300, 0)
        assert client.bodies(client.receiver("dead", credit=300)) == bodies


def test_a_dead_letter_keeps_the_first_reason_and_has_the_last_one_too() -> None:
    with bench() as b:
        letters_of(b)
        admin = b.client()
        assert admin.request("CREATE", "exchange", "again", {"exchangeType": "fanout"})[0] == 201
        b.queue("deader")
        assert admin.request("CREATE", "binding", "", {"exchange": "again", "queue": "deader", "key": ""})[0] == 201
        b.queue("second", alternateExchange="again", arguments={"x-delivery-limit": 1})
        assert admin.request("CREATE", "binding", "", {"exchange": "dlx", "queue": "second", "key": ""})[0] == 201
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), "twice", ttl=60, annotations={proton.symbol("x-mine"): 7})
        fail(client, client.receiver("q", credit=0), outcome=proton.Delivery.REJECTED)
        fail(client, client.receiver("second", credit=0), failed=True)
        b.pass_time(0.1)
        ((_, found),) = client.received[client.receiver("deader").name]
        assert found.annotations == {
            "x-mine": 7,
            "x-first-death-queue": "q",
            "x-first-death-reason": "rejected",
            "x-first-death-exchange": "dlx",
            "x-last-death-queue": "second",
            "x-last-death-reason": "delivery_limit",
            "x-last-death-exchange": "again",
        }
        assert (found.body, found.ttl, found.delivery_count) == ("twice", 0, 0)
        assert figures(b) == (1, 0, 0, 0)


def test_a_cluster_that_an_older_release_may_lead_refuses_a_limit() -> None:
    with bench(clustered=True) as b:
        body = {"arguments": {"x-delivery-limit": 3}, "replicate": "all"}
        status, text, _ = b.client().request("CREATE", "queue", "q", body)
        assert status == 409
        assert "needs machine version 5" in text


def test_a_dead_letter_stands_in_one_batch_with_the_end_of_its_message_however_long_it_is() -> None:
    """Breaks when a batch is cut between the two: a failover there leaves the message, and its dead letter."""
    with bench() as b:
        letters_of(b)
        client = b.client()
        client.send(client.sender("q"), b"x" * (limits.BATCH_TARGET_BYTES + 1))
        client.auto_accept = False
        fail(client, client.receiver("q", credit=0), outcome=proton.Delivery.REJECTED)
        assert (b.depth("q"), b.depth("dead")) == (0, 1)
        kinds = [{run.kind for run in Batch.parse(data).runs} for data in b.lead.committed[-2:]]
        assert {Kind.ENQUEUE, Kind.DEQUEUE} in kinds


def test_a_dead_letter_for_so_many_queues_that_no_batch_holds_it_goes_in_several_and_its_message_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Breaks when the batch grows with the number of queues: no link between brokers passes what is too large, ever."""
    with bench() as b:
        letters_of(b)
        admin = b.client({"qpid.ha-admin": True})
        names = [f"dead{number}" for number in range(5)]
        for name in names:
            b.queue(name, replicate="all")
            assert admin.request("CREATE", "binding", "", {"exchange": "dlx", "queue": name, "key": ""})[0] == 201
        monkeypatch.setattr(limits, "MAX_BATCH_BYTES", 4 * limits.BATCH_TARGET_BYTES)
        client = b.client()
        client.send(client.sender("q"), b"x" * (limits.BATCH_TARGET_BYTES + 1))
        client.auto_accept = False
        before = len(b.lead.committed)
        fail(client, client.receiver("q", credit=0), outcome=proton.Delivery.REJECTED)
        assert [b.depth(name) for name in ("q", "dead", *names)] == [0] + [1] * 6
        kinds = [[run.kind for run in Batch.parse(data).runs] for data in b.lead.committed[before:]]
        assert max(map(len, b.lead.committed[before:])) < limits.MAX_BATCH_BYTES
        assert sum(each.count(Kind.ENQUEUE) for each in kinds) == 6
        assert Kind.DEQUEUE in kinds[-1]
        assert all(Kind.DEQUEUE not in each for each in kinds[:-1])


def limited(b: Bench, limit: int) -> None:
    """Set the limit of failed deliveries of q to this."""
    assert b.client({"qpid.ha-admin": True}).request("UPDATE", "queue", "q", {"arguments": {"x-delivery-limit": limit}})[0] == 200
    b.settle()


@pytest.mark.parametrize("before", [0, 10])
@pytest.mark.parametrize("kind", [{}, {"qpid.priorities": 10}, {"qpid.group_header_key": "g"}, {"x-single-active-consumer": 1}])
def test_messages_that_are_over_a_limit_which_is_set_later_leave_at_once(kind: dict[str, int], before: int) -> None:
    with bench() as b:
        letters_of(b, arguments=kind | {"x-delivery-limit": before} if before else kind)
        client = b.client()
        client.send(client.sender("q"), "often", "sound")
        client.auto_accept = False
        receiver = client.receiver("q", credit=0)
        fail(client, receiver, 3, failed=True)
        limited(b, 4)
        assert (b.depth("q"), b.depth("dead")) == (2, 0)
        limited(b, 3)
        assert (b.depth("q"), b.depth("dead"), figures(b)) == (1, 1, (0, 1, 0, 0))
        assert reasons(client) == [("often", "q", "delivery_limit")]
        receiver.flow(1)
        b.settle()
        assert client.bodies(receiver)[-1] == "sound"


@pytest.mark.parametrize("end", ["accepted", "released", "closed", "lost"])
def test_a_message_that_a_consumer_has_when_its_limit_is_set_stays_with_it_and_leaves_when_it_comes_back(end: str) -> None:
    with bench() as b:
        letters_of(b)
        client, holder = b.client(), b.client()
        client.send(client.sender("q"), "often")
        client.auto_accept = holder.auto_accept = False
        first = client.receiver("q", credit=0)
        fail(client, first, 2, failed=True)
        second = holder.receiver("q", credit=1)
        limited(b, 2)
        assert (b.depth("q"), b.depth("dead")) == (1, 0)
        ((delivery, _),) = holder.received[second.name]
        if end == "lost":
            holder.lose()
        elif end == "closed":
            second.close()
        else:
            holder.give(delivery, proton.Delivery.ACCEPTED if end == "accepted" else proton.Delivery.RELEASED)
        first.flow(1)
        b.pass_time(1)
        assert len(client.received[first.name]) == 2, "nobody gets it any more"
        assert (b.depth("q"), b.depth("dead")) == (0, int(end != "accepted"))


@pytest.mark.parametrize("failed", [False, True])
def test_a_message_beyond_a_new_limit_that_is_given_back_with_a_delay_leaves_at_once(*, failed: bool) -> None:
    """Breaks when it waits for a time at which nobody gets it."""
    with bench() as b:
        letters_of(b)
        client, holder = b.client(), b.client()
        client.send(client.sender("q"), "often")
        client.auto_accept = holder.auto_accept = False
        fail(client, client.receiver("q", credit=0), 2, failed=True)
        second = holder.receiver("q", credit=1)
        limited(b, 2)
        ((delivery, _),) = holder.received[second.name]
        delivery.local.annotations = {proton.symbol("x-opt-delivery-delay"): 60_000}
        holder.give(delivery, proton.Delivery.MODIFIED, failed=failed)
        assert (b.depth("q"), b.depth("dead")) == (0, 1)


def test_a_message_that_waits_for_its_redelivery_leaves_when_its_limit_is_set() -> None:
    with bench() as b:
        letters_of(b, arguments={"x-delayed-retry-min": 60_000})
        client = b.client()
        client.send(client.sender("q"), "often")
        client.auto_accept = False
        fail(client, client.receiver("q", credit=0), 1, failed=True)
        limited(b, 1)
        assert (b.depth("q"), b.depth("dead")) == (0, 1)


@pytest.mark.parametrize("takes", [True, False])
def test_a_dead_letter_of_a_limit_that_is_set_later_is_sent_once(takes: bool) -> None:
    """Breaks when a message that is about to be delivered is added again while its dead letter waits for its commit."""
    with bench() as b:
        exchange: dict[str, Any] = {} if takes else {"alternateExchange": ""}
        letters_of(b, **exchange)
        client = b.client()
        client.send(client.sender("q"), "often")
        client.auto_accept = False
        fail(client, client.receiver("q", credit=0), 2, failed=True)
        b.lead.automatic = False
        client.receiver("q", credit=0)
        admin = b.client({"qpid.ha-admin": True})
        reply, sender = admin.receiver(None, dynamic=True), admin.sender("$management")
        for limit in (2, 1):
            message: Any = proton.Message(body={"arguments": {"x-delivery-limit": limit}}, reply_to=reply.remote_source.address)
            message.id, message.properties = limit, {"operation": "UPDATE", "type": "queue", "name": "q"}
            admin.send_encoded(sender, bytes(message.encode()))
            b.lead.commit(1)
            b.settle()
            client.receiver("q", credit=1)
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert (b.depth("q"), b.depth("dead"), figures(b)) == (0, int(takes), (0, 1, 0, int(not takes)))


def update(b: Bench, limit: int | None) -> None:
    """Ask for another limit, without waiting for the answer."""
    admin = b.client({"qpid.ha-admin": True})
    message: Any = proton.Message(body={"arguments": {"x-delivery-limit": limit}}, reply_to="nobody")
    message.id, message.properties = 1, {"operation": "UPDATE", "type": "queue", "name": "q"}
    admin.send_encoded(admin.sender("$management"), bytes(message.encode()))


def test_a_failure_and_a_lower_limit_in_one_commit_send_one_dead_letter() -> None:
    """Breaks when a message that is about to wait for its redelivery is seen, in between, as one that nobody holds."""
    with bench() as b:
        letters_of(b, arguments={"x-delayed-retry-min": 60_000})
        client = b.client()
        client.send(client.sender("q"), "often")
        client.auto_accept = False
        b.lead.automatic = False
        fail(client, client.receiver("q", credit=0), 1, failed=True)
        update(b, 1)
        b.lead.commit()
        b.settle()
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert (b.depth("q"), b.depth("dead"), figures(b)) == (0, 1, (0, 1, 0, 0))


@pytest.mark.parametrize("limit", [None, 3])
def test_a_limit_that_is_raised_or_removed_keeps_the_messages_that_have_not_left(limit: int | None) -> None:
    """Breaks when what was to leave by the former limit leaves later, although consumers get it meanwhile."""
    some = limits.MAX_TURN_LETTERS + 10
    with bench() as b:
        letters_of(b)
        client = b.client()
        sender = client.sender("q")
        for each in range(some):
            client.send(sender, each)
        client.auto_accept = False
        receiver = client.receiver("q", credit=0)
        receiver.flow(some)
        b.settle()
        for delivery, _ in client.received[receiver.name]:
            client.give(delivery, proton.Delivery.MODIFIED, failed=True)
        b.settle()
        b.lead.automatic = False
        update(b, 1)
        update(b, limit)
        assert len(b.lead.waiting) == 2
        b.lead.commit(1)
        b.lead.commit(1)
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert (b.depth("q"), b.depth("dead")) == (10, limits.MAX_TURN_LETTERS)
        other = client.receiver("q")
        b.settle()
        assert client.bodies(other) == list(range(limits.MAX_TURN_LETTERS, some))


@pytest.mark.parametrize("nbytes", [1, LARGE])
@pytest.mark.parametrize("body", [{}, {"ifEmpty": True}])
def test_a_dead_letter_waits_while_a_queue_for_it_is_being_deleted(body: dict[str, Any], nbytes: int) -> None:
    """Breaks when it is put behind the end of that queue: it is lost then, and counted as one that a queue has taken."""
    with bench(part_bytes=16 * 1024) as b:
        letters_of(b)
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), bytes(nbytes))
        receiver = client.receiver("q", credit=10)
        b.begin_deletion("dead", **body)
        client.give(client.received[receiver.name][-1][0], proton.Delivery.REJECTED)
        b.pass_time(0.1, 0.05)
        assert figures(b) == (0, 0, 0, 0)
        b.commit_all()
        b.pass_time(0.1, 0.05)
        assert (b.depth("q"), figures(b)) == (0, (1, 0, 0, 1))
        assert len(client.received[receiver.name]) == 1, "it has not come to its consumer again"


@pytest.mark.parametrize("reason", ["rejected", "expired"])
def test_a_dead_letter_stays_on_a_broker_that_does_not_have_the_alternate_exchange(reason: str) -> None:
    """Breaks when a queue of the cluster loses its dead letters with a failover, because the exchange was only on one broker."""
    with bench(clustered=True) as b:
        b.upgraded()
        b.client(ADMIN).request("CREATE", "exchange", "dlx", {"exchangeType": "fanout", "replicate": "none"})
        b.queue("q", replicate="all", alternateExchange="dlx", asIs=True)
        client = b.client()
        client.send(client.sender("q"), *["a"] * 200, ttl=60_000 if reason == "rejected" else 1)
        with bench(clustered=True) as other, capturedLogs() as said:
            b.lead.replayed_into(other.lead)
            other.lead.become("active")
            other.pass_time(3)
            consumer = other.client()
            consumer.auto_accept = False
            receiver = consumer.receiver("q", credit=300)
            for delivery, _ in consumer.received[receiver.name]:
                consumer.give(delivery, proton.Delivery.REJECTED)
            other.pass_time(10)
            assert (other.depth("q"), figures(other)) == (200, (0, 0, 0, 0))
            assert len(consumer.received[receiver.name]) == (200 if reason == "rejected" else 0)
            text = "messages stay on queue 'q': its alternate exchange 'dlx' does not exist on this broker"
            assert [eventAsText(each, includeTimestamp=False, includeSystem=False) for each in said].count(text) == 1
            admin = other.client(ADMIN)
            assert admin.request("CREATE", "exchange", "dlx", {"exchangeType": "fanout", "replicate": "all"})[0] == 201
            other.queue("dead", replicate="all")
            admin.request("CREATE", "binding", "", {"exchange": "dlx", "queue": "dead", "key": ""})
            other.pass_time(2)
            assert (other.depth("q"), other.depth("dead")) == (0, 200), "all leave at once"


def test_a_dispatch_costs_the_same_however_many_dead_letters_wait_for_the_alternate_exchange() -> None:
    """Breaks when each dispatch of a queue with groups looks at all of them: the queue becomes slower for all its consumers."""
    costs = []
    for many in (20, 1000):
        with bench(clustered=True) as b, bench(clustered=True) as other:
            b.upgraded()
            b.client(ADMIN).request("CREATE", "exchange", "dlx", {"exchangeType": "fanout", "replicate": "none"})
            arguments = {"qpid.group_header_key": "g"}
            b.queue("q", replicate="all", alternateExchange="dlx", asIs=True, arguments=arguments)
            client = b.client()
            link = client.sender("q")
            for _ in range(many // 20):
                client.send(link, *["a"] * 20, ttl=1, properties={"g": "one"})
            b.lead.replayed_into(other.lead)
            other.lead.become("active")
            other.pass_time(3)
            other.client().receiver("q")
            assert other.depth("q") == many
            costs.append(calls_of(other.broker.queues.at(other.broker.nodes.queues["q"]).dispatch))
    few, many = costs
    assert many < few * 1.5


def test_a_message_that_is_rejected_while_the_alternate_exchange_does_not_exist_holds_no_group() -> None:
    """Breaks when a consumer that rejects gets one message of a group a second, because the last one still waits."""
    with bench(clustered=True) as b, bench(clustered=True) as other:
        b.upgraded()
        b.client(ADMIN).request("CREATE", "exchange", "dlx", {"exchangeType": "fanout", "replicate": "none"})
        arguments = {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1}
        b.queue("q", replicate="all", alternateExchange="dlx", asIs=True, arguments=arguments)
        client = b.client()
        client.send(client.sender("q"), *range(5), properties={"g": "one"})
        b.lead.replayed_into(other.lead)
        other.lead.become("active")
        other.pass_time(1)
        one, another = other.client(), other.client()
        one.auto_accept = another.auto_accept = False
        receiver = one.receiver("q", credit=1)
        one.give(one.received[receiver.name][0][0], proton.Delivery.REJECTED)
        receiver.flow(1)
        other.settle()
        one.give(one.received[receiver.name][1][0], proton.Delivery.REJECTED)
        assert another.bodies(another.receiver("q", credit=1)) == [2]


@pytest.mark.parametrize("back", ["before the commit", "after it"])
@pytest.mark.parametrize("alternate", [True, False])
def test_a_rejection_whose_annotations_are_committed_after_the_term_has_no_effect(alternate: bool, back: str) -> None:
    """The log of this broker alone goes on over terms. Breaks when the message is claimed for a letter that is void."""
    with bench(clustered=True) as b:
        b.upgraded()
        letters_of(b, replicate="none", alternateExchange="dlx" if alternate else None)
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), "m")
        ((delivery, _),) = client.received[client.receiver("q").name]
        local = b.logs[LOCAL]
        local.automatic = False
        delivery.local.annotations = {proton.symbol("x-why"): "bad"}
        client.give(delivery, proton.Delivery.MODIFIED, undeliverable=True)

        def commit() -> None:
            local.commit()
            b.settle()
            local.automatic = True

        b.lead.become("ready", "other")
        b.settle()
        if back == "after it":
            commit()
        b.lead.epoch += 1
        b.lead.become("active")
        b.settle()
        client = b.client()
        client.auto_accept = False
        receiver = client.receiver("q")
        if back == "before the commit":
            commit()
        b.pass_time(10)
        assert client.bodies(receiver) == ["m"]
        assert (b.depth("q"), b.depth("dead")) == (1, 0)
        client.give(client.received[receiver.name][0][0], proton.Delivery.REJECTED)
        b.pass_time(10)
        assert (b.depth("q"), b.depth("dead")) == (0, int(alternate))


@pytest.mark.parametrize("reason", ["rejected", "expired"])
def test_dead_letters_wait_while_the_disk_is_nearly_full_and_consumers_go_on(reason: str) -> None:
    """Breaks when a backlog that expires is written once more into the space that is kept for what consuming writes."""
    with bench() as b:
        letters_of(b, arguments={"x-message-ttl": 60_000, "qpid.group_header_key": "g"})
        client = b.client()
        client.auto_accept = False
        link = client.sender("q")
        for _ in range(10):
            client.send(link, *[bytes(1000)] * 40, properties={"g": "one"})
        b.lead.ledger.on_storage_low("the disk is nearly full", 5_000)
        before = len(b.lead.committed)
        if reason == "rejected":
            receiver = client.receiver("q", credit=10)
            for delivery, _ in client.received[receiver.name]:
                client.give(delivery, proton.Delivery.REJECTED)
        b.pass_time(50 if reason == "rejected" else 70)
        assert sum(map(len, b.lead.committed[before:])) < 10_000
        assert b.depth("q") + b.depth("dead") == 400
        if reason == "rejected":
            assert len(client.received[receiver.name]) == 10
            receiver.flow(5)
            b.settle()
            assert len(client.received[receiver.name]) == 15, "what must wait holds no group"
            receiver.close()
        b.lead.ledger.on_storage_low("")
        b.pass_time(70)
        assert (b.depth("q"), b.depth("dead")) == (0, 400)


def test_dead_letters_leave_while_the_disk_is_nearly_full_if_it_takes_some_from_time_to_time() -> None:
    """Breaks when consumers of the dead letters, who would free the space, get nothing for as long as there is no space."""
    with bench() as b:
        letters_of(b)
        client = b.client()
        for _ in range(10):
            client.send(client.sender("q"), *[bytes(1000)] * 100, ttl=1)
        b.lead.ledger.on_storage_low("the disk is nearly full", 100_000)
        dead = client.receiver("dead", credit=1000)
        b.pass_time(3)
        found = len(client.received[dead.name])
        assert 0 < found < 100
        for _ in range(12):
            b.lead.ledger.on_storage_spare(100_000)
            b.pass_time(1.5)
            assert len(client.received[dead.name]) <= found + 100
            found = len(client.received[dead.name])
        assert (found, b.depth("q")) == (1000, 0)


@pytest.mark.parametrize("most, goes", [(0, False), (140_000, True)])
def test_a_dead_letter_for_several_queues_takes_room_for_all_its_copies_or_none(most: int, goes: bool) -> None:
    """Breaks when the first copies use up the room each second, and the last one never fits: no dead letter of the log leaves."""
    with bench() as b:
        admin = b.client(ADMIN)
        admin.request("CREATE", "exchange", "fan", {"exchangeType": "fanout", "replicate": "all"})
        for queue in ("d0", "d1", "d2", "d3"):
            b.queue(queue, replicate="all")
            admin.request("CREATE", "binding", "", {"exchange": "fan", "queue": queue, "key": ""})
        b.queue("a", replicate="all", alternateExchange="fan")
        letters_of(b)
        client = b.client()
        client.send(client.sender("a"), bytes(33_000), ttl=1)
        client.send(client.sender("a"), *[bytes(10)] * 50, ttl=1)
        client.send(client.sender("q"), *[bytes(1000)] * 500, ttl=1)
        b.lead.ledger.on_storage_low("the disk is nearly full", 0)
        for _ in range(20):
            b.lead.ledger.on_storage_spare(100_000, most)
            b.pass_time(1.0)
        copies = 51 if goes else 0
        assert (b.depth("a"), [b.depth(f"d{n}") for n in range(4)]) == (51 - copies, [copies] * 4)
        assert (b.depth("q"), b.depth("dead")) == (0, 500)


def test_a_dead_letter_that_waits_for_the_disk_of_another_log_takes_no_room_in_this_one() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        letters_of(b)
        b.queue("here", replicate="none")
        admin = b.client(ADMIN)
        admin.request("CREATE", "exchange", "fan", {"exchangeType": "fanout", "replicate": "all"})
        for queue in ("dead", "here"):
            admin.request("CREATE", "binding", "", {"exchange": "fan", "queue": queue, "key": ""})
        b.queue("a", replicate="all", alternateExchange="fan")
        client = b.client()
        client.send(client.sender("a"), bytes(90_000), ttl=1)
        client.send(client.sender("q"), *[bytes(1000)] * 90, ttl=1)
        for ledger in b.broker.logs.ledgers.values():
            ledger.on_storage_low("the disk is nearly full", 0)
        for _ in range(3):
            b.lead.ledger.on_storage_spare(100_000)
            b.pass_time(1.5)
        assert (b.depth("a"), b.depth("here")) == (1, 0)
        assert (b.depth("q"), b.depth("dead")) == (0, 90)
        for log in b.broker.logs.ledgers.values():
            log.on_storage_spare(200_000)
        b.pass_time(1.5)
        assert (b.depth("a"), b.depth("here"), b.depth("dead")) == (0, 1, 91)


def beside(b: Bench) -> None:
    """A queue "r" whose dead letters go to the queue "here", both in the log of this broker alone."""
    admin = b.client(ADMIN)
    admin.request("CREATE", "exchange", "fan", {"exchangeType": "fanout", "replicate": "all"})
    b.queue("here", replicate="none")
    admin.request("CREATE", "binding", "", {"exchange": "fan", "queue": "here", "key": ""})
    b.queue("r", replicate="none", alternateExchange="fan")


def expire_in_both_logs(b: Bench) -> None:
    """500 messages of 1,000 bytes expire on each of "q" and "r", and wait, because the disk is nearly full."""
    b.upgraded()
    letters_of(b)
    beside(b)
    client = b.client()
    for queue in ("q", "r"):
        client.send(client.sender(queue), *[bytes(1000)] * 500, ttl=1)
    for ledger in b.broker.logs.ledgers.values():
        ledger.on_storage_low("the disk is nearly full", 0)
    b.pass_time(2)


def test_dead_letters_of_both_logs_share_the_room_of_their_disk() -> None:
    """Breaks when each log counts all of the room for itself: together they write twice as much as there is."""
    with bench(clustered=True) as b:
        expire_in_both_logs(b)
        assert (b.depth("q"), b.depth("r")) == (500, 500)
        for ledger in b.broker.logs.ledgers.values():
            ledger.on_storage_spare(100_000, 250_000)
        b.pass_time(1.5)
        assert 50 < b.depth("dead") + b.depth("here") <= 100
        for _ in range(12):
            for ledger in b.broker.logs.ledgers.values():
                ledger.on_storage_spare(100_000)
                b.pass_time(1.5)
        assert (b.depth("q"), b.depth("r"), b.depth("dead"), b.depth("here")) == (0, 0, 500, 500)


def test_room_on_the_disk_counts_once_while_dead_letters_are_not_written() -> None:
    """Breaks when a slow disk shows the same room again: what was put before is not on it yet."""
    with bench(clustered=True) as b:
        expire_in_both_logs(b)
        for log in b.logs.values():
            log.automatic = False
        for _ in range(5):
            for ledger in b.broker.logs.ledgers.values():
                ledger.on_storage_spare(100_000, 250_000)
                b.pass_time(1.5)
        for log in b.logs.values():
            log.commit()
        b.settle()
        assert 50 < b.depth("dead") + b.depth("here") <= 250
