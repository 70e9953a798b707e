"""Queues that are deleted with messages, which go through their alternate exchange first: over the wire, with logs in memory."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from twisted.logger import ILogObserver, eventAsText, globalLogPublisher
from zope.interface import provider

from broker.core import limits
from broker.sessions import removal
from tests.broker.clients import ACCEPTED, ADMIN, RELEASED, Bench, Client, bench, condition, request, statuses
from tests.broker.sessions.test_transactions import Transactor
from tests.broker.test_acl import enforce
from tests.broker.test_bulk import KINDS, LARGE, bodies, fill
from tests.broker.test_dead_letters import letters_of
from tests.broker.test_deferring import DELAY
from tests.broker.test_departure import ask as drain_ask
from tests.broker.test_departure import leave, source
from tests.broker.test_making import NO_MESSAGES, dynamic
from tests.broker.test_subscriptions import publish, subscribe


def delete(b: Bench, queue: str = "q", **body: Any) -> tuple[int, str]:
    status, text, _ = b.client(ADMIN).request("DELETE", "queue", queue, body)
    return status, text


def ask(b: Bench, queue: str, **body: Any) -> tuple[Client, Any]:
    """A request for the end of a queue, whose answer may come late: its client, and the link for the answer."""
    client = b.client(ADMIN)
    reply, link = client.receiver(None, dynamic=True), client.sender("$management")
    client.send_encoded(link, request("DELETE", "queue", queue, reply.remote_source.address, body=body))
    return client, reply


def answer(asked: tuple[Client, Any]) -> tuple[int, str] | None:
    """What it was answered, if it was."""
    found = asked[0].received[asked[1].name]
    return (found[0][1].properties["statusCode"], found[0][1].properties["statusDescription"]) if found else None


def route(b: Bench, exchange: str, queue: str, key: str = "", kind: str = "fanout", **attributes: Any) -> None:
    """An exchange, if it is not there, and a queue that is bound to it."""
    admin = b.client(ADMIN)
    admin.request("CREATE", "exchange", exchange, {"exchangeType": kind, "replicate": attributes.get("replicate", "none")})
    b.queue(queue, **attributes)
    assert admin.request("CREATE", "binding", "", {"exchange": exchange, "queue": queue, "key": key})[0] == 201


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"ring"}))
@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["in memory", "on disk"])
def test_what_is_left_on_a_deleted_queue_goes_through_its_alternate_exchange(kind: str, memory: int) -> None:
    """Breaks when messages are deleted with their queue, for any kind of queue."""
    with bench(message_memory=memory) as b:
        letters_of(b, arguments=KINDS[kind])
        fill(b.client(), "q", *range(20))
        assert delete(b) == (
            204,
            "deleted; 20 messages went through the alternate exchange 'dlx'; 0 that it routes to no queue are dropped",
        )
        assert "q" not in b.broker.nodes.queues
        assert sorted(bodies(b, "dead")) == list(range(20))


def test_what_a_consumer_holds_returns_and_goes_the_same_way() -> None:
    """Breaks when what is with a consumer, or what it gives back in the last moment, is deleted with the queue."""
    with bench() as b:
        letters_of(b)
        client = b.client()
        client.auto_accept = False
        holder = client.receiver("q", credit=5)
        fill(client, "q", *range(20))
        assert len(client.bodies(holder)) == 5
        producer = client.sender("q")
        assert delete(b)[0] == 204
        assert (condition(holder), condition(producer)) == ("amqp:resource-deleted",) * 2
        assert sorted(bodies(b, "dead")) == list(range(20))


def test_a_queue_without_an_alternate_exchange_goes_with_its_messages() -> None:
    with bench() as b:
        b.queue("q")
        fill(b.client(), "q", 1, 2)
        assert delete(b) == (204, "deleted")
        assert "q" not in b.broker.nodes.queues


def test_what_the_exchange_routes_nowhere_goes_with_the_queue_and_is_counted() -> None:
    """As in qpidd. The exchange leads back to the queue itself, which counts as no queue."""
    with bench() as b:
        route(b, "dlx", "some", "some", kind="direct")
        b.queue("q", alternateExchange="dlx")
        b.client().request("CREATE", "binding", "", {"exchange": "dlx", "queue": "q", "key": "back"})
        client = b.client()
        link = client.sender("q")
        for subject in ("some", "back", "none"):
            client.send(link, subject, subject=subject)
        client.send(link, "x" * LARGE, subject="none")
        status, text = delete(b)
        assert (status, text) == (
            204,
            "deleted; 1 messages went through the alternate exchange 'dlx'; 3 that it routes to no queue are dropped",
        )
        assert bodies(b, "some") == ["some"]
        exchange = b.broker.nodes.exchanges["dlx"]
        assert (exchange.received, exchange.routed, exchange.dropped) == (4, 1, 3)


def test_messages_that_are_being_enqueued_when_a_queue_goes_are_not_lost() -> None:
    """Breaks when the deletion follows a batch with messages that were accepted, and takes them along."""
    with bench() as b:
        letters_of(b, replicate="none")
        client = b.client()
        link = client.sender("q")
        b.lead.automatic = False
        client.send(link, 1, 2)
        assert b.depth("q") == 0
        asked = ask(b, "q")
        b.commit_all()
        b.settle()
        assert answer(asked) is not None
        assert "q" not in b.broker.nodes.queues
        assert bodies(b, "dead") == [1, 2]
        assert statuses(client, link) == [ACCEPTED] * 2


def test_large_and_delayed_messages_and_their_times_go_too() -> None:
    with bench() as b:
        letters_of(b)
        client = b.client()
        link = client.sender("q")
        client.send(link, "x" * LARGE)
        client.send(link, "later", annotations={DELAY: 5000})
        assert delete(b)[0] == 204
        assert (b.depth("dead"), [len(each) for each in bodies(b, "dead")]) == (2, [LARGE])
        b.pass_time(6)
        assert bodies(b, "dead")[1] == "later"


def test_expired_messages_and_dead_letters_leave_with_their_reason() -> None:
    """Breaks when an expired message goes to the dead letters with its time, and expires there at once."""
    with bench(wall=lambda: 1_000_000.0) as b:
        letters_of(b)
        client = b.client()
        fill(client, "q", *range(5), ttl=0.5)
        b.lead.ledger.on_storage_low("the disk is nearly full", 0)
        b.pass_time(1)
        assert b.depth("q") == 5, "they have expired, and cannot leave"
        asked = ask(b, "q")
        b.pass_time(1, 0.1)
        assert answer(asked) is None
        assert not b.broker.nodes.is_going(b.broker.nodes.queues["q"].uuid), "clients may use it while it waits"
        b.lead.ledger.on_storage_low("")
        fill(client, "q", 5)
        b.pass_time(3, 0.1)
        found = answer(asked)
        assert found is not None
        assert (found[0], found[1].split(" through")[0]) == (204, "deleted; 1 messages went")
        reader = b.client()
        link = reader.receiver("dead", credit=100, browse=True)
        reasons = {m.body: (m.annotations or {}).get("x-first-death-reason") for _, m in reader.received[link.name]}
        assert reasons == dict.fromkeys(range(5), "expired") | {5: None}


def test_a_full_queue_there_or_one_in_another_log_refuses_the_request_and_the_queue_stays_usable() -> None:
    """Breaks when messages that cannot go are lost, or when a queue that stays is not as it was."""
    with bench(clustered=True) as b:
        letters_of(b, replicate="none")
        route(b, "small", "full", arguments={"qpid.max_count": 3})
        b.queue("other", alternateExchange="small")
        client = b.client()
        client.auto_accept = False
        consumer = client.receiver("q", credit=1)
        fill(client, "q", 1, 2)
        fill(client, "other", *range(5))
        producer = client.sender("q")
        status, text = delete(b)
        assert status == 409
        assert text == (
            "queue 'q' is not deleted: messages cannot go through its alternate exchange 'dlx': 1 are with consumers, or in "
            "transactions that are not over, 1 go to a queue with another replication level, whose messages are stored in "
            "another log; purge or move them, or change the alternate exchange, and delete the queue again"
        )
        assert not b.broker.nodes.is_going(b.broker.nodes.queues["q"].uuid)
        client.auto_accept = True
        consumer.flow(10)
        b.settle()
        client.send(producer, 3)
        assert client.bodies(consumer) == [1, 2, 3]
        status, text = delete(b, "other")
        assert status == 409
        assert "3 others went" in text
        assert "would pass its limit of 3 messages" in text
        assert (b.depth("other"), b.depth("full")) == (2, 3)
        client.receiver("full")
        b.pass_time(1)
        assert delete(b, "other")[0] == 204
        b.pass_time(1)
        assert b.depth("full") == 0, "its consumer has got the rest"


def test_a_queue_whose_consumers_messages_cannot_go_serves_its_clients_again() -> None:
    """Breaks when a queue that was closed stays closed: nobody could use it or delete it."""
    with bench() as b:
        route(b, "small", "full", arguments={"qpid.max_count": 1})
        b.queue("q", alternateExchange="small")
        client = b.client()
        client.auto_accept = False
        consumer = client.receiver("q", credit=2)
        fill(client, "q", 1, 2)
        producer = client.sender("q")
        status, text = delete(b)
        assert (status, "would pass its limit" in text) == (409, True)
        assert condition(consumer) == "amqp:resource-deleted"
        client.send(producer, 3)
        assert client.bodies(client.receiver("q")) == [2, 3]


def test_an_auto_delete_queue_that_lost_its_consumers_to_a_refused_request_goes_by_itself() -> None:
    """Breaks when it stays for ever: its last consumer has ended."""
    with bench() as b:
        route(b, "small", "full", arguments={"qpid.max_count": 1})
        b.queue("q", autoDelete=True, alternateExchange="small")
        client = b.client()
        client.auto_accept = False
        client.receiver("q", credit=2)
        fill(client, "q", 1, 2)
        assert delete(b)[0] == 409
        assert b.depth("q") == 1
        b.client().receiver("full")
        b.pass_time(5)
        assert "q" not in b.broker.nodes.queues


def test_messages_in_an_open_transaction_hold_a_queue_for_a_while() -> None:
    with bench() as b:
        letters_of(b)
        client = b.client()
        fill(client, "q", 1)
        terminus = b.broker.queues.at(b.broker.nodes.queues["q"])
        messages = terminus.node.messages
        assert messages is not None
        messages.order.claim(1, 1)  # as a transaction that was rolled back by the end of its link has it
        producer = client.sender("q")
        asked = ask(b, "q")
        b.pass_time(1, 0.1)
        assert answer(asked) is None
        assert b.broker.nodes.is_going(terminus.node.uuid)
        while producer.credit:
            client.send(producer, *range(producer.credit))
        assert set(statuses(client, producer)) == {RELEASED}
        late = b.client().sender("q")
        assert condition(late) == "amqp:resource-locked"
        assert delete(b)[1].startswith("queue 'q' is being deleted already: 0 of its messages have left it")
        b.pass_time(removal.CLOSED_S, 0.1)
        found = answer(asked)
        assert found is not None
        assert (found[0], "1 are with consumers, or in transactions" in found[1]) == (409, True)
        assert producer.credit > 0, "it may send again"
        terminus.give_back([1])
        assert delete(b)[0] == 204
        assert bodies(b, "dead") == [1]


def local_letters(b: Bench, *queues: str, **attributes: Any) -> None:
    """Queues that only this broker has messages of, whose messages go to the queue "near" when they are deleted."""
    b.queue("shared", replicate="all")
    level = attributes.get("replicate", "none")
    route(b, "local", "near", replicate=level)
    for queue in queues:
        b.queue(queue, **{"replicate": level, "alternateExchange": "local"} | attributes)


def discharged(b: Bench, *queues: str) -> Any:
    """A transaction over two logs, whose part for the cluster's log waits for its commit: the request for its end."""
    one = Transactor(b)
    txn_id = one.declare()
    for queue in ("shared", *queues):
        one.post(one.client.sender(queue), txn_id, f"for {queue}")
    b.lead.automatic = False
    return one.discharge(txn_id)


@pytest.mark.parametrize("level", ["none", "configuration"])
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("late", [False, True])
def test_what_a_transaction_over_two_logs_has_promised_to_a_queue_is_not_deleted_with_it(
    level: str, count: int, *, late: bool
) -> None:
    """Breaks when the queue goes between the two commits, or while the second one waits: the client has its `accepted`, and
    nobody has the message."""
    with bench(clustered=True) as b:
        local_letters(b, "own", replicate=level)
        fill(b.client(), "own", *range(count))
        request = discharged(b, "own")
        asked = ask(b, "own")
        b.pass_time(0.5, 0.1)
        assert answer(asked) is None
        b.logs["local"].automatic = not late
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        if late:
            b.pass_time(0.2, 0.1)
            b.logs["local"].automatic = True
            b.logs["local"].commit()
        b.pass_time(0.5, 0.1)
        assert request.remote_state == proton.Delivery.ACCEPTED
        found = answer(asked)
        assert found is not None
        assert (found[0], "own" in b.broker.nodes.queues) == (204, False)
        assert bodies(b, "near") == [*range(count), "for own"]


def test_a_closed_queue_waits_for_what_it_was_promised_and_not_only_for_what_was_on_its_way_before() -> None:
    """Breaks when the last pass begins with the commit of an older message, while that of the transaction is being written."""
    with bench(clustered=True) as b:
        local_letters(b, "own")
        b.logs["local"].automatic = False
        fill(b.client(), "own", 7)
        request = discharged(b, "own")
        asked = ask(b, "own")
        assert b.broker.nodes.queues["own"].uuid in b.broker.logs.closing_queues
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        b.logs["local"].commit(1)
        b.settle()
        b.logs["local"].automatic = True
        b.logs["local"].commit()
        b.pass_time(0.5, 0.1)
        assert request.remote_state == proton.Delivery.ACCEPTED
        found = answer(asked)
        assert (found is not None and found[0], bodies(b, "near")) == (204, [7, "for own"])


def test_a_queue_whose_transaction_is_not_committed_in_time_stays_and_takes_messages_again() -> None:
    with bench(clustered=True) as b:
        local_letters(b, "own")
        request = discharged(b, "own")
        asked = ask(b, "own")
        b.pass_time(removal.CLOSED_S + 0.5, 0.1)
        found = answer(asked)
        assert found is not None
        assert (found[0], "a transaction that is being committed puts messages on it" in found[1]) == (409, True)
        b.commit_all()
        b.settle()
        assert request.remote_state == proton.Delivery.ACCEPTED
        fill(b.client(), "own", 1)
        assert bodies(b, "own") == ["for own", 1]
        assert (delete(b, "own")[0], bodies(b, "near")) == (204, ["for own", 1])


def test_a_queue_that_a_transaction_is_about_to_fill_is_not_deleted_as_an_empty_one() -> None:
    with bench(clustered=True) as b:
        local_letters(b, "own", alternateExchange="")
        client = b.client()
        client.auto_accept = False
        made = dynamic(client, sends=True, policy=NO_MESSAGES)
        name = made.remote_target.address
        fill(client, name, 1)
        ((delivery, _),) = client.received[(held := client.receiver(name)).name]
        made.close()
        request = discharged(b, "own", name)
        assert delete(b, "own", ifEmpty=True) == (
            409,
            "queue 'own' is not empty: a transaction that is being committed puts messages on it",
        )
        client.give(delivery, proton.Delivery.ACCEPTED)
        held.close()
        b.pass_time(0.5, 0.1)
        assert (name in b.broker.nodes.queues, b.depth(name)) == (True, 0)
        b.commit_all()
        b.pass_time(0.5, 0.1)
        assert request.remote_state == proton.Delivery.ACCEPTED
        assert (b.depth("own"), b.depth(name)) == (1, 1)
        client.auto_accept = True
        assert client.bodies(client.receiver(name)) == [f"for {name}"]
        b.pass_time(0.5, 0.1)
        assert name not in b.broker.nodes.queues


def test_what_was_promised_in_a_term_holds_no_queue_in_the_next_one() -> None:
    with bench(clustered=True) as b:
        local_letters(b, "own")
        discharged(b, "own")
        b.lead.become("ready", "other")
        b.settle()
        b.lead.automatic = True
        b.lead.become("active")
        b.settle()
        assert delete(b, "own") == (204, "deleted")
        assert b.depth("near") == 0


def test_a_deletion_that_asks_for_no_consumers_stops_when_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BULK_READS", 1)
    with bench() as b:
        letters_of(b, replicate="none")
        client = b.client()
        fill(client, "q", *range(20))
        b.lead.automatic = False
        asked = ask(b, "q", ifUnused=True)
        client.auto_accept = False
        client.receiver("q", credit=1)
        b.commit_all()
        b.settle()
        found = answer(asked)
        assert found is not None
        assert (found[0], found[1].split(";")[0]) == (409, "queue 'q' is not deleted: it is in use again")
        assert delete(b, ifEmpty=True)[0] == 409


def test_an_operation_that_runs_on_the_queue_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BULK_READS", 1)
    with bench() as b:
        letters_of(b)
        b.queue("other", replicate="all")
        client = b.client()
        fill(client, "q", *range(10))
        b.lead.automatic = False
        mover = b.client(ADMIN)
        reply, link = mover.receiver(None, dynamic=True), mover.sender("$management")
        mover.send_encoded(link, request("MOVE", "queue", "q", reply.remote_source.address, body={"to": "other", "count": 9}))
        asked = ask(b, "q")
        b.commit_all()
        b.pass_time(1, 0.1)
        assert answer(asked) is not None
        assert (bodies(b, "other"), bodies(b, "dead")) == (list(range(9)), [9])
        ((_, moved),) = mover.received[reply.name]
        assert moved.body["count"] == 9


def test_a_long_one_goes_on_beyond_the_time_of_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BULK_READS", 2)
    monkeypatch.setattr(limits, "BULK_S", 0.05)
    with bench() as b:
        letters_of(b)
        fill(b.client(), "q", *range(50))
        b.lead.automatic = False
        asked = ask(b, "q")
        for _ in range(40):
            b.lead.commit()
            b.pass_time(0.1, 0.1)
        b.lead.automatic = True
        b.settle()
        found = answer(asked)
        assert found is not None
        assert found[1].startswith("deleted; 50 messages")
        assert bodies(b, "dead") == list(range(50))


def test_each_message_is_in_one_place_after_each_batch_and_the_queue_lives_until_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A primary that dies in the middle: breaks when a message is in both places or in none."""
    monkeypatch.setattr(limits, "BULK_READS", 1)
    with bench() as b:
        letters_of(b)
        fill(b.client(), "q", *range(10))
        before = len(b.lead.committed)
        assert delete(b)[0] == 204
        assert len(b.lead.committed) > before + 2
        for stop in range(before, len(b.lead.committed)):
            with bench() as other:
                b.lead.committed, whole = b.lead.committed[:stop], b.lead.committed
                b.lead.replayed_into(other.lead)
                b.lead.committed = whole
                other.settle()
                assert bodies(other, "dead") + bodies(other, "q") == list(range(10)), stop
                assert delete(other)[0] == 204, "the client repeats its request"
                assert bodies(other, "dead") == list(range(10))


@pytest.mark.parametrize("cause", ["last consumer", "timeout", "dynamic", "subscription"])
def test_a_queue_that_goes_by_itself_sends_on_what_is_left(cause: str) -> None:
    """Breaks when one of the ways in which queues go by themselves takes messages along."""
    with bench() as b:
        letters_of(b, queue="unused", replicate="none")
        admin = b.client(ADMIN)
        admin.request("CREATE", "QueuePolicy", "temporary.", {"alternateExchange": "dlx"})
        admin.request("CREATE", "QueuePolicy", "amq.topic_", {"alternateExchange": "dlx"})
        client, holder = b.client(), b.client()
        holder.auto_accept = False
        name = "q"
        if cause == "last consumer":
            b.queue("q", autoDelete=True, alternateExchange="dlx")
        elif cause == "timeout":
            b.queue("q", arguments={"qpid.auto_delete_timeout": 2}, alternateExchange="dlx")
        elif cause == "dynamic":
            maker = dynamic(client, sends=True, capability="temporary-queue")
            name = maker.remote_target.address
        if cause == "subscription":
            link = holder.receiver("amq.topic/x", credit=0)
            name = next(each for each in b.broker.nodes.queues if each.startswith("amq.topic_"))
        else:
            link = holder.receiver(name, credit=0)
        link.flow(1)
        assert b.broker.nodes.queues[name].definition.alternate == "dlx"
        fill(client, name, *range(5))
        (maker if cause == "dynamic" else link).close()
        b.settle()
        b.pass_time(3)
        assert name not in b.broker.nodes.queues
        assert sorted(bodies(b, "dead")) == list(range(5))


def test_a_queue_that_cannot_go_by_itself_stays_and_is_tried_again_while_nobody_uses_it() -> None:
    """Breaks when messages that cannot go are lost, when the queue is given up, or when one that is in use again goes."""
    with bench() as b:
        route(b, "small", "full", arguments={"qpid.max_count": 3})
        for name in ("q", "used"):
            b.queue(name, autoDelete=True, alternateExchange="small")
        client = b.client()
        for name in ("q", "used"):
            consumer = client.receiver(name, credit=0)
            fill(client, name, 1, 2, 3, 4)
            consumer.close()
            b.settle()
        assert (b.depth("q"), b.depth("used"), b.depth("full")) == (1, 4, 3)
        assert delete(b)[0] == 409, "a request that is refused changes nothing in this"
        client.receiver("used", credit=0)
        b.pass_time(5)
        assert b.depth("q") == 1
        client.receiver("full")
        b.pass_time(20)
        assert "q" not in b.broker.nodes.queues
        assert b.depth("used") == 4


def test_many_queues_at_once_and_two_that_lead_to_each_other() -> None:
    """Breaks when the queues of a client that goes are removed in one turn, or when two of them wait for each other for ever."""
    with bench() as b:
        route(b, "dlx", "dead")
        admin = b.client(ADMIN)
        for name in ("a", "b"):
            admin.request("CREATE", "exchange", f"to-{name}", {"exchangeType": "fanout"})
        for name, to in (("a", "to-b"), ("b", "to-a")):
            b.queue(name, autoDelete=True, alternateExchange=to)
            admin.request("CREATE", "binding", "", {"exchange": f"to-{name}", "queue": name, "key": ""})
        for at in range(50):
            b.queue(f"q{at}", autoDelete=True, exclusive=True, alternateExchange="dlx")
        client, owner = b.client(), b.client()
        owner.auto_accept = False
        for name in ("a", "b", *(f"q{at}" for at in range(50))):
            owner.receiver(name, credit=1)
            fill(client, name, 1, 2)
        owner.lose()
        b.settle()
        b.pass_time(3)
        assert set(b.broker.nodes.queues) == {"dead"}
        assert b.depth("dead") == 100


def test_nothing_is_sent_on_by_a_broker_that_leaves() -> None:
    """Breaks when a message moves within a broker while a drain empties it: the drain may be done with that queue."""
    with bench() as b:
        letters_of(b, replicate="none")
        b.queue("auto", autoDelete=True, exclusive=True, alternateExchange="dlx")
        b.queue("long", alternateExchange="dlx")
        client = b.client()
        client.receiver("auto", credit=0)
        for name in ("q", "auto"):
            fill(client, name, 1)
        fill(client, "long", *range(20))
        held = b.broker.nodes.queues["long"].messages
        assert held is not None
        held.order.claim(20, 1)
        asked = ask(b, "long")
        drain = leave(b)["drain"]
        b.pass_time(1)
        found = answer(asked)
        assert found is not None
        assert (found[0], "this broker leaves" in found[1]) == (409, True)
        assert (b.depth("long"), b.depth("dead")) == (1, 19)
        status, text = delete(b)
        assert (status, "this broker leaves" in text) == (409, True)
        b.pass_time(2)
        assert client.lost
        assert (b.depth("q"), b.depth("auto"), b.depth("dead")) == (1, 1, 19)
        assert [drain_ask(b, operation, drain=drain)[0] for operation in ("HALT", "REOPEN")] == [200, 200]
        b.pass_time(1)
        assert "auto" not in b.broker.nodes.queues
        assert b.depth("dead") == 20


def test_a_broker_that_stops_serving_gives_no_answer_and_its_queue_is_not_closed_in_its_next_term() -> None:
    with bench(clustered=True) as b:
        letters_of(b)
        fill(b.client(), "q", *range(20))
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        messages.order.claim(20, 1)
        asked = ask(b, "q")
        assert b.depth("q") == 1
        assert b.broker.nodes.is_going(b.broker.nodes.queues["q"].uuid)
        b.lead.become("ready")
        b.settle()
        assert answer(asked) is None
        assert not b.broker.nodes.is_going(b.broker.nodes.queues["q"].uuid)
        b.lead.become("active")
        b.pass_time(5)
        assert b.depth("q") == 1, "the client repeats its request"
        assert delete(b)[0] == 204
        assert b.depth("dead") == 20


def test_a_backup_cannot_send_messages_on_and_says_what_to_do() -> None:
    """Level `none`: a queue that only this broker has. A dynamic one goes when the broker serves."""
    with bench(clustered=True) as b:
        letters_of(b, replicate="none")
        admin = b.client(ADMIN)
        b.queue("near", replicate="none")
        admin.request("CREATE", "exchange", "local", {"exchangeType": "fanout", "replicate": "none"})
        admin.request("CREATE", "binding", "", {"exchange": "local", "queue": "near", "key": ""})
        b.queue("auto", autoDelete=True, replicate="none", alternateExchange="local")
        client = b.client()
        client.receiver("auto", credit=0)
        fill(client, "q", 1)
        fill(client, "auto", 1)
        b.lead.become("ready")
        b.settle()
        assert "auto" in b.broker.nodes.queues
        status, text = delete(b)
        assert (status, "purge the queue before you delete it here" in text) == (409, True)
        assert b.client(ADMIN).request("PURGE", "queue", "q")[0] == 200
        assert delete(b)[0] == 204
        b.lead.become("active")
        b.settle()
        assert "auto" not in b.broker.nodes.queues
        assert b.depth("near") == 1


def test_a_dynamic_queue_of_an_earlier_process_sends_on_what_it_has() -> None:
    with bench() as b, bench(start=False) as again:
        letters_of(b, replicate="none")
        b.client(ADMIN).request("CREATE", "QueuePolicy", "temporary.", {"alternateExchange": "dlx"})
        client = b.client()
        fill(client, dynamic(client, sends=True, capability="temporary-queue").remote_target.address, 1, 2)
        b.lead.replayed_into(again.lead)
        again.start()
        assert not [each for each in again.broker.nodes.queues if each.startswith("temporary.")]
        assert bodies(again, "dead") == [1, 2]


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("end", ["unsubscribed", "replaced"])
def test_a_subscription_that_ends_or_is_replaced_sends_on_what_it_has(end: str, *, room: bool) -> None:
    """Breaks when the messages of the old subscription go with its queue, or when a client waits for ever."""
    with bench() as b:
        b.upgraded()
        route(b, "small", "full", arguments={"qpid.max_count": 3 if room else 1})
        b.client(ADMIN).request("CREATE", "QueuePolicy", "sub-client.", {"alternateExchange": "small"})
        client = b.client(container="sub-client")
        subscribe(client, "s", "amq.topic/a").detach()
        b.settle()
        publish(b, 1, 2, subject="a")
        queue = next(each for each in b.broker.nodes.queues.values() if each.terms is not None)
        assert (queue.depth, queue.definition.alternate) == (2, "small")
        if end == "replaced":
            link = subscribe(client, "s", "amq.topic/b")
            now = b.broker.nodes.queues.get(queue.name)
            assert now is not None
            assert (now is not queue, condition(link)) == ((True, "") if room else (False, "amqp:resource-locked"))
        else:
            link = subscribe(client, "s", "amq.topic/a", credit=0)
            link.close()
            b.settle()
            assert (queue.name in b.broker.nodes.queues, condition(link)) == (
                (False, "") if room else (True, "amqp:resource-locked")
            )
        b.pass_time(1)
        assert b.depth("full") == (2 if room else 1)
        assert not b.broker.subscriptions._under_way


def test_a_message_that_its_target_has_is_not_put_there_again() -> None:
    """Breaks when a duplicate keeps its queue for ever, or is there twice."""
    with bench() as b:
        route(b, "dlx", "dead", arguments={"x-duplicate-window": 100})
        b.queue("q", alternateExchange="dlx")
        client = b.client()
        client.send(client.sender("dead"), "one", id="1")
        client.send(client.sender("q"), "one again", id="1")
        client.send(client.sender("q"), "two", id="2")
        client.send(client.sender("q"), "two again", id="2")
        assert delete(b)[0] == 204
        assert bodies(b, "dead") == ["one", "two"]


def test_the_right_to_delete_a_queue_is_enough() -> None:
    """As in qpidd: whoever gave the queue its alternate exchange had the right to use that."""
    with bench() as b:
        letters_of(b)
        fill(b.client(), "q", 1)
        enforce(b, "acl deny all publish exchange\nacl deny all access exchange\nacl allow all all")
        assert delete(b)[0] == 204
        assert bodies(b, "dead") == [1]


def test_who_attaches_to_a_subscription_whose_queue_is_closed_gets_a_new_one() -> None:
    """Breaks when such a client is refused, or waits for ever."""
    with bench() as b:
        letters_of(b)
        b.upgraded()
        b.client(ADMIN).request("CREATE", "QueuePolicy", ".news", {"alternateExchange": "dlx"})
        ann, bob = b.client(container="ann"), b.client(container="bob")
        shared: Any = ("news|global-volatile1", "amq.topic", "shared", "global")
        first = subscribe(ann, *shared, durable=False, credit=0)
        publish(b, "one", "two")
        node = next(each for each in b.broker.nodes.queues.values() if each.terms is not None)
        assert node.messages is not None
        node.messages.order.claim(1, 1)
        first.close()
        b.settle()
        assert b.broker.nodes.is_going(node.uuid)
        second = subscribe(bob, *shared, durable=False)
        assert not second.state & proton.Endpoint.REMOTE_ACTIVE
        b.broker.queues.at(node).give_back([1])
        b.pass_time(1, 0.1)
        publish(b, "three")
        assert (condition(second), bob.bodies(second)) == ("", ["three"])
        assert sorted(bodies(b, "dead")) == ["one", "two"]


def test_a_queue_that_stays_is_told_once() -> None:
    lines: list[str] = []

    @provider(ILogObserver)
    def observe(event: dict[str, Any]) -> None:
        lines.append(eventAsText(event, includeTimestamp=False, includeSystem=False))

    with bench() as b:
        route(b, "small", "full", arguments={"qpid.max_count": 1})
        b.queue("q", autoDelete=True, alternateExchange="small")
        client = b.client()
        consumer = client.receiver("q", credit=0)
        fill(client, "q", 1, 2)
        globalLogPublisher.addObserver(observe)
        try:
            consumer.close()
            b.settle()
            b.pass_time(30)
        finally:
            globalLogPublisher.removeObserver(observe)
        (line,) = [line for line in lines if "'q'" in line]
        assert line.startswith("queue 'q' is not deleted: its messages cannot go: queue 'full' holds 1 messages")
        assert line.endswith("; it is tried again")


def test_an_expired_message_that_a_consumer_holds_does_not_keep_the_queue() -> None:
    """Breaks when the removal waits for the message to leave, while the consumer may hold it for ever."""
    with bench(wall=lambda: 1_000_000.0) as b:
        letters_of(b)
        client = b.client()
        client.auto_accept = False
        holder = client.receiver("q", credit=5)
        fill(client, "q", 1, ttl=0.5)
        fill(client, "q", 2)
        assert client.bodies(holder) == [1, 2]
        b.pass_time(2)
        asked = ask(b, "q")
        b.pass_time(1, 0.1)
        found = answer(asked)
        assert found is not None
        assert (found[0], sorted(bodies(b, "dead"))) == (204, [1, 2])


@pytest.mark.parametrize("kind", ["auto-delete", "dynamic"])
def test_a_queue_that_was_to_go_by_itself_while_a_request_failed_goes_later(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the end of its last consumer is forgotten, because the queue is being deleted on request at that moment."""
    monkeypatch.setattr(limits, "BULK_READS", 1)
    with bench() as b:
        route(b, "small", "full", arguments={"qpid.max_count": 15})
        client, name = b.client(), "q"
        if kind == "dynamic":
            b.client(ADMIN).request("CREATE", "QueuePolicy", "temporary.", {"alternateExchange": "small"})
            link = dynamic(client, sends=True, capability="temporary-queue")
            name = link.remote_target.address
        else:
            b.queue("q", autoDelete=True, alternateExchange="small")
            link = client.receiver("q", credit=0)
        fill(client, name, *range(20))
        b.lead.automatic = False
        asked = ask(b, name)
        link.close()
        b.settle()
        assert answer(asked) is None
        b.commit_all()
        found = answer(asked)
        assert found is not None
        assert found[0] == 409
        b.client().receiver("full")
        b.pass_time(5)
        assert name not in b.broker.nodes.queues


def test_a_drain_keeps_its_links_to_queues_that_wait_to_be_closed() -> None:
    """Breaks when the next queue in the line is closed, and ends the links of its drain, though this broker leaves."""
    with bench() as b:
        letters_of(b, replicate="none")
        b.queue("next", alternateExchange="dlx")
        client = b.client()
        client.auto_accept = False
        for name in ("q", "next"):
            fill(client, name, 1)
        first = b.broker.nodes.queues["q"].messages
        assert first is not None
        first.order.claim(1, 1)
        client.receiver("next", credit=1)
        one, two = ask(b, "q"), ask(b, "next")
        assert [b.broker.nodes.is_going(b.broker.nodes.queues[name].uuid) for name in ("q", "next")] == [True, False]
        leave(b)
        drain = b.client(ADMIN).receiver(source(b, "next"), name="the drain's")
        b.pass_time(3, 0.1)
        for asked in (one, two):
            found = answer(asked)
            assert found is not None
            assert (found[0], "this broker leaves" in found[1]) == (409, True)
        assert condition(drain) == ""


def test_a_queue_is_not_closed_for_long_after_a_long_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a closed queue, with one message that cannot go, is looked at again only after ten times the last pass."""
    monkeypatch.setattr(limits, "BULK_READS", 1)
    with bench() as b:
        letters_of(b, replicate="none")
        client = b.client()
        client.auto_accept = False
        client.receiver("q", credit=20)
        fill(client, "q", *range(21))
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        messages.order.claim(21, 1)
        b.lead.automatic = False
        asked = ask(b, "q")
        assert b.broker.nodes.is_going(b.broker.nodes.queues["q"].uuid)
        b.pass_time(1.5)
        b.commit_all()
        assert (b.depth("q"), answer(asked)) == (1, None)
        b.pass_time(removal.CLOSED_S + 0.5)
        found = answer(asked)
        assert found is not None
        assert found[0] == 409
        assert not b.broker.nodes.is_going(b.broker.nodes.queues["q"].uuid)


def test_an_alternate_exchange_that_changes_meanwhile_gets_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the rest goes through the old exchange, which is deleted and leads nowhere any more: it would be dropped."""
    monkeypatch.setattr(limits, "BULK_READS", 1)
    with bench() as b:
        letters_of(b, replicate="none")
        route(b, "other", "there")
        fill(b.client(), "q", *range(100))
        b.lead.automatic = False
        asked = ask(b, "q")
        admin = b.client(ADMIN)
        reply, link = admin.receiver(None, dynamic=True), admin.sender("$management")
        steps: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
            ("UPDATE", "queue", "q", {"alternateExchange": "other"}),
            ("DELETE", "exchange", "dlx", {}),
            ("DELETE", "queue", "dead", {}),
        )
        for operation, kind, name, body in steps:
            admin.send_encoded(link, request(operation, kind, name, reply.remote_source.address, body=body))
            b.lead.commit()
            b.settle()
        b.commit_all()
        b.pass_time(1)
        assert [m.properties["statusCode"] for _, m in admin.received[reply.name]] == [200, 204, 204]
        found = answer(asked)
        assert found is not None
        assert (found[0], "0 that it routes to no queue" in found[1]) == (204, True)
        assert len(bodies(b, "there")) > 80


def test_a_request_to_reroute_stops_when_its_exchange_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when messages go on through an exchange that is gone."""
    monkeypatch.setattr(limits, "BULK_READS", 1)
    with bench() as b:
        route(b, "way", "there")
        b.queue("q")
        fill(b.client(), "q", *range(50))
        b.lead.automatic = False
        admin, other = b.client(ADMIN), b.client(ADMIN)
        for client, operation, kind, name, body in (
            (admin, "REROUTE", "queue", "q", {"exchange": "way"}),
            (other, "DELETE", "exchange", "way", {}),
        ):
            reply, link = client.receiver(None, dynamic=True), client.sender("$management")
            client.send_encoded(link, request(operation, kind, name, reply.remote_source.address, body=body))
        b.commit_all()
        ((_, said),) = next(found for name, found in admin.received.items() if found)
        text = said.properties["statusDescription"]
        assert (said.properties["statusCode"], text.split(";")[0]) == (409, "exchange 'way' was deleted")
        assert b.depth("q") + b.depth("there") == 50
        assert b.depth("q")


def test_a_queue_that_goes_with_its_last_message_answers_the_request_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dynamic queue that goes without messages: its own end comes first. Breaks when the answer says that it stays."""
    monkeypatch.setattr(limits, "BULK_READS", 1)
    with bench() as b:
        route(b, "dlx", "dead")
        b.client(ADMIN).request("CREATE", "QueuePolicy", "temporary.", {"alternateExchange": "dlx"})
        client = b.client()
        maker = dynamic(client, sends=True, policy=0x2D)
        name = maker.remote_target.address
        fill(client, name, *range(20))
        b.lead.automatic = False
        asked = ask(b, name)
        maker.close()
        b.settle()
        b.commit_all()
        told = "was deleted by somebody else meanwhile; 20 of its messages went through the alternate exchange, 0 to no queue"
        assert answer(asked) == (409, f"queue {name!r} {told}")
        assert (name in b.broker.nodes.queues, b.depth("dead")) == (False, 20)


@pytest.mark.parametrize("rests", [False, True])
def test_what_an_exchange_routes_to_a_closed_queue_meanwhile_goes_too(monkeypatch: pytest.MonkeyPatch, *, rests: bool) -> None:
    """Breaks when messages that were accepted behind the last pass are deleted, or when a queue waits for an end of them."""
    monkeypatch.setattr(limits, "BULK_READS", 1)
    with bench() as b:
        letters_of(b, replicate="none")
        b.client(ADMIN).request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "q", "key": ""})
        client = b.client()
        client.auto_accept = False
        client.receiver("q", credit=20)
        fill(client, "q", *range(20))
        link = client.sender("amq.fanout")
        b.lead.automatic = False
        asked = ask(b, "q")
        assert b.broker.nodes.is_going(b.broker.nodes.queues["q"].uuid)
        sent = 20
        while rests and answer(asked) is None and sent < 500:
            client.send(link, sent)
            sent += 1
            b.lead.commit()
            b.pass_time(0.1, 0.1)
        client.send(link, sent)
        b.commit_all()
        b.pass_time(0.1, 0.1)
        found = answer(asked)
        assert found is not None
        assert found[0] == 204
        if not rests:
            assert statuses(client, link) == [ACCEPTED]
            assert sorted(bodies(b, "dead")) == list(range(21))
        else:
            assert sent < 200


@pytest.mark.parametrize("size", [1, LARGE])
def test_no_dead_letter_is_sent_behind_the_end_of_its_queue(size: int) -> None:
    """Breaks when a queue gets an alternate exchange just before it is deleted as one without, and a dead letter is put behind
    that in the log: the parts of a large one are gone then, and no broker could apply the batch."""
    with bench(part_bytes=16 * 1024) as b:
        letters_of(b, alternateExchange="")
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), "x" * size)
        receiver = client.receiver("q")
        ((held, _),) = client.received[receiver.name]
        admin = b.client(ADMIN)
        reply, link = admin.receiver(None, dynamic=True), admin.sender("$management")
        b.lead.automatic = False
        for operation, body in (("UPDATE", {"alternateExchange": "dlx"}), ("DELETE", {})):
            admin.send_encoded(link, request(operation, "queue", "q", reply.remote_source.address, body=body))
        b.lead.commit(1)
        assert b.broker.nodes.queues["q"].definition.alternate == "dlx"
        client.give(held, proton.Delivery.REJECTED)
        b.pass_time(0.1, step=0.05)
        b.commit_all()
        b.pass_time(2)
        assert ("q" in b.broker.nodes.queues, b.depth("dead")) == (False, 0)
