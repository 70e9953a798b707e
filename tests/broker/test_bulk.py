"""Messages of a queue that an operator has purged, moved or rerouted, over the wire and through real logs in memory."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.nodes import LOCAL
from tests.broker.clients import ADMIN, Bench, Client, bench, request
from tests.broker.test_dead_letters import letters_of
from tests.broker.test_deferring import DELAY

LARGE = limits.LARGE_PARTS * 16 * 1024 + 1
KINDS: dict[str, dict[str, Any]] = {
    "fifo": {},
    "levels": {"qpid.priorities": 10},
    "fairshare": {"qpid.priorities": 10, "qpid.fairshare": 2},
    "groups": {"qpid.group_header_key": "g"},
    "shared groups": {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1},
    "last values": {"qpid.last_value_queue_key": "k"},
    "ring": {"qpid.policy_type": "ring", "qpid.max_count": 1000},
}


def fill(client: Client, queue: str, *bodies: Any, **fields: Any) -> None:
    link = client.sender(queue)
    for body in bodies:
        client.send(link, body, properties={"n": body, "g": str(body % 3), "k": body}, priority=body % 10, **fields)
    link.close()


def bodies(b: Bench, queue: str) -> list[Any]:
    """What browsers see."""
    client = b.client()
    found = client.bodies(client.receiver(queue, credit=1000, browse=True))
    client.connection.close()
    b.settle()
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["in memory", "on disk"])
@pytest.mark.parametrize("operation", ["PURGE", "MOVE"])
def test_what_nobody_holds_and_the_selector_picks_is_taken_and_the_rest_stays_in_its_place(
    kind: str, memory: int, operation: str
) -> None:
    """Breaks when what a consumer holds is taken, a kind of queue loses count, or a body that is on disk is passed by."""
    with bench(message_memory=memory) as b:
        b.queue("q", arguments=KINDS[kind])
        b.queue("other")
        client = b.client()
        client.auto_accept = False
        holder = client.receiver("q", credit=2)
        fill(client, "q", *range(20))
        held = client.bodies(holder)
        assert len(held) == 2
        body: dict[str, Any] = {"filter": "n >= 8"} | ({"to": "other"} if operation == "MOVE" else {})
        status, text, answer = client.request(operation, "queue", "q", body)
        picked = [each for each in range(8, 20) if each not in held]
        assert (status, text, answer["count"]) == (200, f"{len(picked)} messages", len(picked))
        assert sorted(bodies(b, "q")) == sorted({*range(8), *held})
        assert sorted(bodies(b, "other")) == (picked if operation == "MOVE" else [])
        holder.close()
        b.settle()
        client.auto_accept = True
        assert sorted(client.bodies(client.receiver("q"))) == sorted({*range(8), *held}), "what was held comes again"
        b.pass_time(1)
        assert b.depth("q") == 0
        fill(client, "q", 5)
        assert client.request("PURGE", "queue", "q")[0] == 200


def test_all_of_it_or_so_many_go_in_the_order_in_which_consumers_would_get_them() -> None:
    with bench() as b:
        b.queue("q", arguments=KINDS["levels"])
        b.queue("other", arguments=KINDS["levels"])
        client = b.client()
        fill(client, "q", *range(20))
        assert client.request("MOVE", "queue", "q", {"to": "other", "count": 3})[2] == {"count": 3, "left": 0}
        assert bodies(b, "other") == [9, 19, 8]
        assert client.request("PURGE", "queue", "q", {"count": 2})[2]["count"] == 2
        assert bodies(b, "q")[:3] == [17, 6, 16]
        assert client.request("PURGE", "queue", "q")[2]["count"] == 15
        assert b.depth("q") == 0


def test_a_message_is_in_one_place_after_each_batch_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when what is put and what is taken stand in two batches: a failover between them has messages twice, or not."""
    monkeypatch.setattr(limits, "BULK_LOOKS", 1)
    with bench() as b:
        b.queue("q")
        for name in ("a", "b"):
            b.queue(name)
            b.client().request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": name, "key": ""})
        client = b.client()
        fill(client, "q", *range(10))
        before = len(b.lead.committed)
        assert client.request("REROUTE", "queue", "q", {"exchange": "amq.fanout"})[2]["count"] == 10
        assert len(b.lead.committed) > before + 1
        for stop in range(before, len(b.lead.committed) + 1):
            with bench() as other:
                b.lead.committed, whole = b.lead.committed[:stop], b.lead.committed
                b.lead.replayed_into(other.lead)
                b.lead.committed = whole
                other.settle()
                found = [bodies(other, name) for name in ("q", "a", "b")]
                assert found[1] == found[2]
                assert found[1] + found[0] == list(range(10)), stop


def test_times_go_with_a_message_and_what_is_delayed_is_taken_too() -> None:
    with bench(wall=lambda: 1_000_000.0) as b:
        b.queue("q")
        b.queue("other")
        client = b.client()
        consumer = client.receiver("q")
        fill(client, "q", 1, annotations={proton.symbol("x-opt-delivery-delay"): 2000})
        fill(client, "q", 2, annotations={proton.symbol("x-opt-delivery-delay"): 3000}, ttl=5)
        b.pass_time(1)
        assert client.request("MOVE", "queue", "q", {"to": "other"})[2]["count"] == 2
        new = client.receiver("other")
        b.pass_time(0.5)
        assert (client.bodies(consumer), client.bodies(new)) == ([], [])
        b.pass_time(1)
        assert client.bodies(new) == [1]
        new.close()
        b.settle()
        assert b.depth("other") == 1
        b.pass_time(3)
        assert b.depth("other") == 0, "it has expired when it would have, had it stayed"


def test_a_request_that_has_used_up_its_time_says_where_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when an answer has no bound, or when a busy queue is purged for ever."""
    monkeypatch.setattr(limits, "BULK_LOOKS", 4)
    monkeypatch.setattr(limits, "BULK_S", 0.0)
    with bench() as b:
        b.queue("q", arguments=KINDS["levels"])
        client = b.client()
        fill(client, "q", *range(20))
        answer = client.request("PURGE", "queue", "q")[2]
        assert (answer["count"], "next" in answer) == (0, True)
        fill(client, "q", *range(20, 24))
        monkeypatch.setattr(limits, "BULK_S", 60.0)
        assert client.request("PURGE", "queue", "q", {"after": answer["next"]})[2] == {"count": 20, "left": 0}
        assert sorted(bodies(b, "q")) == list(range(20, 24))
        for wrong in ([1], ["a"], "x", [1, 11, *[5] * 10], [-1, 0, *[5] * 10]):
            assert client.request("PURGE", "queue", "q", {"after": wrong})[0] == 400, wrong


def test_a_queue_that_is_full_ends_a_move_with_what_was_taken_before() -> None:
    with bench() as b:
        b.queue("q")
        b.queue("small", arguments={"qpid.max_count": 3})
        client = b.client()
        fill(client, "q", *range(5))
        status, text, answer = client.request("MOVE", "queue", "q", {"to": "small"})
        assert (status, answer) == (409, {"count": 3, "left": 0})
        assert "'small' holds 3 messages" in text
        assert text.endswith("; 3 messages were processed before that")
        assert (bodies(b, "q"), bodies(b, "small")) == ([3, 4], [0, 1, 2])
        assert client.request("MOVE", "queue", "q", {"to": "small"})[2] == {"count": 0, "left": 0}


def test_what_no_queue_takes_stays_and_so_does_what_would_go_to_another_log() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        b.queue("q", replicate="all", alternateExchange="amq.topic")
        b.queue("here", replicate="none")
        b.queue("there", replicate="all", arguments={"x-duplicate-window": 10})
        client = b.client()
        for queue, key in (("here", "local.*"), ("there", "all.*"), ("q", "all.*")):
            client.request("CREATE", "binding", "", {"exchange": "amq.topic", "queue": queue, "key": key})
        link = client.sender("q")
        for subject, number in (("local.x", 1), ("all.x", 2), ("none", 3), ("all.x", 2), ("all.y", 4)):
            client.send(link, number, subject=subject, id=str(number))
        client.send_encoded(link, b"\x00\x53\x75\xa0\x01x")
        assert client.request("REROUTE", "queue", "q")[2] == {"count": 2, "left": 4, "repeated": 1}
        assert (bodies(b, "q"), bodies(b, "there"), bodies(b, "here")) == ([1, 3, 2, b"x"], [2, 4], [])
        status, text, _ = client.request("MOVE", "queue", "q", {"to": "here"})
        assert (status, "another log" in text) == (501, True)


def test_a_message_that_the_other_queue_has_had_stays_and_is_counted_apart() -> None:
    """Breaks when an operator looks for a consumer that holds it."""
    with bench() as b:
        client = b.client()
        b.queue("q")
        b.queue("other", arguments={"x-duplicate-window": 10})
        link = client.sender("q")
        for number in (1, 2, 1, 3):
            client.send(link, number, id=str(number))
        client.send(client.sender("other"), 3, id="3")
        assert client.request("MOVE", "queue", "q", {"to": "other"})[2] == {"count": 2, "left": 2, "repeated": 2}
        assert (bodies(b, "q"), bodies(b, "other")) == ([1, 3], [3, 1, 2])


def test_an_exchange_counts_what_is_rerouted_through_it_and_not_what_stays() -> None:
    with bench() as b:
        b.queue("q")
        b.queue("small", arguments={"qpid.max_count": 3})
        client = b.client()
        for queue, key in (("small", "x"), ("q", "y")):
            client.request("CREATE", "binding", "", {"exchange": "amq.direct", "queue": queue, "key": key})
        fill(client, "q", 0, 1, subject="y")
        fill(client, "q", *range(2, 4), subject="z")
        fill(client, "q", *range(4, 9), subject="x")
        status, text, body = client.request("REROUTE", "queue", "q", {"exchange": "amq.direct"})
        assert (status, "would pass its limit" in text, body["count"], body["left"]) == (409, True, 3, 4)
        (item,) = client.request("QUERY", "exchange", "", {"name": "amq.direct"})[2]["items"]
        assert (item["messagesIn"], item["messagesRouted"], item["messagesDropped"]) == (3, 3, 0)


def test_large_messages_are_moved_with_their_parts_and_purged_with_them() -> None:
    with bench(part_bytes=16 * 1024) as b:
        b.queue("q")
        b.queue("other", arguments=KINDS["levels"])
        client = b.client()
        link = client.sender("q")
        for number in range(3):
            client.send(link, b"x" * LARGE, properties={"n": number}, priority=number)
            client.send(link, number, properties={"n": number}, priority=9)
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        assert len(messages.large) == 3
        assert client.request("MOVE", "queue", "q", {"to": "other", "filter": "n > 0"})[2] == {"count": 4, "left": 0}
        assert [each if isinstance(each, int) else len(each) for each in bodies(b, "other")] == [1, 2, LARGE, LARGE]
        for queue in ("q", "other"):
            assert client.request("PURGE", "queue", queue)[0] == 200
        assert b.broker.ledgers[LOCAL].live_bytes() == 0


def two_queues_of_a_large_message(b: Bench) -> Client:
    """It is on q and on second."""
    client = b.client({"qpid.ha-admin": True})
    for queue in ("q", "second"):
        b.queue(queue)
        assert client.request("CREATE", "binding", "", {"exchange": "amq.topic", "queue": queue, "key": "k"})[0] == 201
    client.send(client.sender("amq.topic"), b"x" * LARGE, subject="k", priority=1)
    return client


@pytest.mark.parametrize("operation", ["MOVE", "REROUTE"])
def test_a_large_message_that_goes_to_a_ring_which_does_not_keep_it_stays_whole_on_another_queue(operation: str) -> None:
    with bench(part_bytes=16 * 1024) as b:
        client = two_queues_of_a_large_message(b)
        b.queue("ring", arguments={"qpid.policy_type": "ring", "qpid.max_count": 2, "qpid.priorities": 10})
        assert client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "ring", "key": ""})[0] == 201
        client.send(client.sender("ring"), "higher", "higher", priority=9)
        to = {"to": "ring"} if operation == "MOVE" else {"exchange": "amq.fanout"}
        assert client.request(operation, "queue", "q", to)[2] == {"count": 1, "left": 0}
        assert (b.depth("q"), bodies(b, "ring")) == (0, ["higher", "higher"])
        assert [len(each) for each in bodies(b, "second")] == [LARGE]
        for queue in ("second", "ring"):
            assert client.request("PURGE", "queue", queue)[0] == 200
        assert b.broker.ledgers[LOCAL].live_bytes() == 0


@pytest.mark.parametrize("operation", ["MOVE", "REROUTE"])
def test_a_large_message_is_left_that_would_go_to_a_queue_of_groups(operation: str) -> None:
    """Breaks when its group is read from its manifest: then it comes with no group, to any consumer."""
    with bench(part_bytes=16 * 1024) as b:
        client = b.client({"qpid.ha-admin": True})
        b.queue("q")
        b.queue("other", arguments=KINDS["groups"])
        assert client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "other", "key": ""})[0] == 201
        link = client.sender("q")
        for body in (1, b"x" * LARGE, 2):
            client.send(link, body, properties={"g": "a"})
        to = {"to": "other"} if operation == "MOVE" else {"exchange": "amq.fanout"}
        assert client.request(operation, "queue", "q", to)[2] == {"count": 2, "left": 1}
        assert ([len(each) for each in bodies(b, "q")], bodies(b, "other")) == ([LARGE], [1, 2])


def test_a_large_message_whose_parts_are_gone_is_left_and_the_messages_behind_it_are_moved() -> None:
    """Earlier releases could write a log that removes the parts of a message which is still on a queue."""
    with bench(part_bytes=16 * 1024) as b:
        client = two_queues_of_a_large_message(b)
        b.queue("other")
        fill(client, "second", 1, 2)
        (manifest,) = b.broker.nodes.queues["second"].messages.large.values()  # type: ignore[union-attr]
        b.broker.lead.drop_parts(manifest.ranges)
        b.pass_time(0.1, 0.02)
        assert client.request("MOVE", "queue", "second", {"to": "other"})[2] == {"count": 2, "left": 1}
        assert bodies(b, "other") == [1, 2]


@pytest.mark.parametrize("operation, body", [("MOVE", {"to": "other"}), ("REROUTE", {"exchange": "amq.fanout"}), ("PURGE", {})])
def test_a_broker_that_begins_to_leave_puts_no_more_messages_on_its_queues(
    operation: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when an operation that runs goes on: the drain may be done with the queue that gets the messages."""
    monkeypatch.setattr(limits, "BULK_LOOKS", 2)
    with bench() as b:
        b.queue("q")
        b.queue("other")
        admin = b.client(ADMIN)
        admin.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "other", "key": ""})
        fill(b.client(), "q", *range(100))
        reply, link = admin.receiver(None, dynamic=True), admin.sender("$management")
        b.lead.automatic = False
        admin.send_encoded(link, request(operation, "queue", "q", reply.remote_source.address, body=body))
        assert len(b.lead.waiting) > 0
        b.broker.logs.closing = True  # its departure is proposed
        b.commit_all()
        b.settle()
        ((_, answer),) = admin.received[reply.name]
        status, text = answer.properties["statusCode"], answer.properties["statusDescription"]
        count = answer.body["count"]
        if operation == "PURGE":
            assert (status, count, b.depth("q")) == (200, 100, 0)
        else:
            assert (status, 0 < count < 100) == (409, True)
            leaves = "this broker leaves; its queues are moved to another broker"
            assert text == f"{leaves}; {count} messages were processed before that"
            assert (b.depth("q"), b.depth("other")) == (100 - count, count)


@pytest.mark.parametrize("log", ["all", "none"])
def test_a_term_that_ends_leaves_each_message_in_one_place_and_answers_nobody(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BULK_LOOKS", 2)
    with bench(clustered=True) as b:
        for name in ("q", "other"):
            b.queue(name, replicate=log)
        client = b.client()
        fill(client, "q", *range(20))
        stopped = b.broker.ledgers[b.broker.nodes.queues["q"].log].log
        stopped.automatic = False  # type: ignore[union-attr]
        reply, sender = client.receiver(None, dynamic=True), client.sender("$management")
        message: Any = proton.Message(body={"to": "other"}, reply_to=reply.remote_source.address, id=1)
        message.properties = {"operation": "MOVE", "type": "queue", "name": "q"}
        client.send_encoded(sender, bytes(message.encode()))
        status, text, _ = b.client().request("PURGE", "queue", "q")
        assert (status, text) == (409, "messages of queue 'q' are already being purged or moved: wait until that request is done")
        stopped.commit(1)  # type: ignore[union-attr]
        b.settle()
        b.lead.become("ready", "other:1")
        b.settle()
        assert client.received[reply.name] == []
        stopped.commit()  # type: ignore[union-attr]
        stopped.automatic = True  # type: ignore[union-attr]
        b.lead.become("active")
        b.settle()
        moved = bodies(b, "other")
        assert moved
        assert moved + bodies(b, "q") == list(range(20))
        again = b.client().request("MOVE", "queue", "q", {"to": "other"})[2]
        assert again["count"] == 20 - len(moved)


def begin_move(client: Client) -> Any:
    """Ask for all messages of q to be moved to the queue "other"; returns the link of the answer."""
    reply, sender = client.receiver(None, dynamic=True), client.sender("$management")
    message: Any = proton.Message(body={"to": "other"}, reply_to=reply.remote_source.address, id=1)
    message.properties = {"operation": "MOVE", "type": "queue", "name": "q"}
    client.send_encoded(sender, bytes(message.encode()))
    return reply


@pytest.mark.parametrize("how", ["expired", "expired while it waits", "expired, without an exchange", "failed in the last term"])
@pytest.mark.parametrize("kind", ["fifo", "levels", "groups"])
def test_a_message_whose_end_is_proposed_is_not_moved(kind: str, how: str) -> None:
    """Breaks when a dead letter is taken for free between its proposal and its commit: then it is in two places."""
    with bench() as b:
        b.queue("other")
        alternate = {"alternateExchange": ""} if how == "expired, without an exchange" else {}
        letters_of(b, arguments=KINDS[kind] | {"x-delivery-limit": 1}, **alternate)
        client = b.client()
        client.auto_accept = False
        said: dict[str, Any] = {"annotations": {DELAY: 60_000}} if how == "expired while it waits" else {}
        fill(client, "q", 1, **said | ({} if how == "failed in the last term" else {"ttl": 1}))
        if how == "failed in the last term":
            receiver = client.receiver("q", credit=1)
            b.lead.automatic = False
            client.give(client.received[receiver.name][-1][0], proton.Delivery.MODIFIED, failed=True)
            b.lead.commit(1)
            b.lead.become("ready")
            b.lead.epoch += 1
            b.lead.become("standalone")
            b.settle()
        b.lead.automatic = False
        b.pass_time(2)
        assert (len(b.lead.waiting), b.depth("q")) == (1, 1), "the end of it is proposed and not committed"
        asker = b.client()
        reply = begin_move(asker)
        b.pass_time(0.1, step=0.05)
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert [message.body for _, message in asker.received[reply.name]] == [{"count": 0, "left": 1}]
        assert (b.depth("q"), b.depth("dead"), b.depth("other")) == (0, 0 if alternate else 1, 0)


@pytest.mark.parametrize("operation", ["PURGE", "MOVE"])
@pytest.mark.parametrize("where", ["swept", "met by a consumer", "rejected"])
def test_dead_letters_that_cannot_leave_are_purged_and_moved(operation: str, where: str) -> None:
    """Breaks when a backlog whose time is over while the disk is nearly full stays, though an operator purges it."""
    with bench() as b:
        letters_of(b, arguments={"qpid.group_header_key": "g"})
        b.queue("to", replicate="all", alternateExchange="")
        client = b.client()
        client.auto_accept = False
        for _ in range(12):
            client.send(client.sender("q"), *range(100), ttl=1e6 if where == "rejected" else 5, properties={"g": "one"})
        client.send(client.sender("q"), "alive")
        b.lead.ledger.on_storage_low("the disk is nearly full", 0)
        consumer = client.receiver("q", credit=1300 if where == "rejected" else 0)
        for delivery, message in client.received[consumer.name]:
            client.give(delivery, proton.Delivery.REJECTED if message.body != "alive" else proton.Delivery.RELEASED)
        b.pass_time(6)
        if where == "met by a consumer":
            consumer.flow(1)
            b.pass_time(2)
        consumer.close()
        b.settle()
        assert (b.depth("q"), b.depth("dead")) == (1201, 0)
        assert client.request("PURGE", "queue", "q", {"count": 10})[2]["count"] == 10
        if operation == "PURGE":
            assert client.request("PURGE", "queue", "q", {})[2] == {"count": 1191, "left": 0}
        else:
            b.lead.ledger.on_storage_low("the disk is nearly full", 100_000)
            body = {"to": "to", "count": 1}
            assert client.request("MOVE", "queue", "q", body)[2]["count"] == 1
            assert b.depth("to") <= 1
        b.lead.ledger.on_storage_low("")
        b.pass_time(5)
        total = b.depth("dead") + b.depth("q")
        assert total == (0 if operation == "PURGE" else 1190), "each is in one place, and nothing was sent twice"


def test_a_queue_that_is_deleted_meanwhile_ends_it() -> None:
    with bench() as b:
        for name in ("q", "other"):
            b.queue(name)
        client = b.client()
        fill(client, "q", 1)
        b.lead.automatic = False
        reply, sender = client.receiver(None, dynamic=True), client.sender("$management")
        for operation in ("PURGE", "DELETE"):
            message: Any = proton.Message(body={}, reply_to=reply.remote_source.address, id=operation)
            message.properties = {"operation": operation, "type": "queue", "name": "q"}
            client.send_encoded(sender, bytes(message.encode()))
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        answers = {message.correlation_id: message for _, message in client.received[reply.name]}
        assert answers["DELETE"].properties["statusCode"] == 204
        assert answers["PURGE"].properties["statusCode"] in (200, 409)


@pytest.mark.parametrize("body", [{}, {"ifEmpty": True}])
@pytest.mark.parametrize("n", [10, 2000])
def test_no_message_is_moved_to_a_queue_whose_deletion_is_not_committed_yet(n: int, body: dict[str, Any]) -> None:
    """Breaks when a batch of a move comes behind the end of its target in the log: the messages are on neither queue then."""
    with bench() as b:
        for name in ("q", "other"):
            b.queue(name)
        client = b.client()
        fill(client, "q", *range(n))
        b.begin_deletion("other", **body)
        asker = b.client()
        reply = begin_move(asker)
        b.pass_time(0.2, step=0.02)
        b.commit_all()
        b.pass_time(0.5, step=0.05)
        ((_, answer),) = asker.received[reply.name]
        text = "queue 'other' is being deleted; 0 messages were processed before that"
        assert (answer.properties["statusDescription"], answer.body["count"]) == (text, 0)
        assert ("other" in b.broker.nodes.queues, b.depth("q")) == (False, n)


@pytest.mark.parametrize("kind", ["ring", "last values"])
def test_a_message_that_leaves_for_another_one_is_not_moved(kind: str) -> None:
    """Breaks when it is put on another queue between the proposal and the commit of its end: the parts of a large one are gone
    then, and no broker could apply the batch."""
    with bench(part_bytes=16 * 1024) as b:
        b.queue("other")
        b.queue("q", arguments=KINDS[kind] | {"qpid.max_count": 1 if kind == "ring" else 2})
        client = b.client()
        sender = client.sender("q")
        client.send(sender, b"x" * LARGE, properties={"k": 1})
        b.lead.automatic = False
        client.send(sender, "newer", properties={"k": 1})
        asker = b.client()
        reply = begin_move(asker)
        b.pass_time(0.1, step=0.05)
        b.commit_all()
        b.settle()
        assert [message.body for _, message in asker.received[reply.name]] == [{"count": 0, "left": 1}]
        assert (bodies(b, "q"), b.depth("other")) == (["newer"], 0)


@pytest.mark.parametrize("large", [False, True])
def test_no_message_is_moved_from_a_queue_whose_deletion_is_not_committed_yet(large: bool) -> None:
    """Breaks when a message is put on another queue behind the end of its own: the parts of a large one are gone then, and no
    broker could apply the batch."""
    with bench(part_bytes=16 * 1024) as b:
        for name in ("q", "other"):
            b.queue(name)
        client = b.client()
        client.send(client.sender("q"), b"x" * LARGE if large else "small")
        b.begin_deletion("q")
        asker = b.client()
        reply = begin_move(asker)
        b.pass_time(0.1, step=0.05)
        b.commit_all()
        b.settle()
        ((_, answer),) = asker.received[reply.name]
        text = "queue 'q' is being deleted; 0 messages were processed before that"
        assert (answer.properties["statusDescription"], answer.body["count"]) == (text, 0)
        assert ("q" in b.broker.nodes.queues, b.depth("other")) == (False, 0)


@pytest.mark.parametrize("level", ["all", "configuration"])
def test_a_large_message_that_was_moved_from_a_queue_is_safe_from_its_deletion_in_the_same_turn(level: str) -> None:
    """Breaks when both are in one batch: its commands are applied first, so the parts are gone when the message is put on the
    other queue, and no broker could apply the batch."""
    with bench(clustered=True, part_bytes=16 * 1024) as b:
        b.upgraded()
        for name in ("q", "other", "more"):
            b.queue(name, replicate=level)
        client = b.client()
        client.send(client.sender("q"), b"x" * LARGE)
        log = b.logs[b.broker.nodes.queues["q"].messages_log]
        log.automatic = False
        for number in range(log.window):
            client.send(client.sender("more"), number)
        assert not log.may_propose, "what is put from now on is gathered"
        asker, admin = b.client(), b.client(ADMIN)
        reply = begin_move(asker)
        b.pass_time(0.1, step=0.05)
        answers, link = admin.receiver(None, dynamic=True), admin.sender("$management")
        admin.send_encoded(link, request("DELETE", "queue", "q", answers.remote_source.address, body={}))
        while log.waiting:
            log.commit(1)
            b.settle()
        log.automatic = True
        assert [message.body for _, message in asker.received[reply.name]] == [{"count": 1, "left": 0}]
        assert ("q" in b.broker.nodes.queues, [len(body) for body in bodies(b, "other")]) == (False, [LARGE])


def test_what_was_moved_to_a_queue_before_its_deletion_was_proposed_keeps_it_if_it_is_to_be_empty() -> None:
    with bench() as b:
        for name in ("q", "other"):
            b.queue(name)
        client = b.client()
        fill(client, "q", *range(2000))
        asker = b.client()
        b.lead.automatic = False
        reply = begin_move(asker)
        b.begin_deletion("other", ifEmpty=True)
        b.commit_all()
        b.pass_time(0.5, step=0.05)
        ((_, answer),) = asker.received[reply.name]
        assert 0 < answer.body["count"] == b.depth("other")
        assert b.depth("q") + b.depth("other") == 2000


@pytest.mark.parametrize("body", [{}, {"ifEmpty": True}])
def test_what_an_exchange_would_put_on_a_queue_that_is_being_deleted_stays(body: dict[str, Any]) -> None:
    with bench() as b:
        for name in ("q", "other"):
            b.queue(name)
        client = b.client()
        client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "other", "key": ""})
        fill(client, "q", *range(10))
        b.begin_deletion("other", **body)
        assert client.request("REROUTE", "queue", "q", {"exchange": "amq.fanout"})[2] == {"count": 0, "left": 10}
        b.commit_all()
        assert b.depth("q") == 10


@pytest.mark.parametrize(
    "operation, name, body, status, text",
    [
        ("PURGE", "none", {}, 404, "there is no queue named 'none'"),
        ("PURGE", "q", {"count": -1}, 400, "`count` must be a number"),
        ("PURGE", "q", {"count": "1"}, 400, "`count` must be a number"),
        ("PURGE", "q", {"filter": 1}, 400, "`filter` must be the text of a selector"),
        ("PURGE", "q", {"filter": "a = "}, 400, ""),
        ("PURGE", "q", {"filter": ""}, 400, "`filter` is empty: leave it out for all messages"),
        ("MOVE", "q", {"to": "other", "filter": " \t"}, 400, "`filter` is empty: leave it out for all messages"),
        ("PURGE", "q", {"to": "other"}, 400, "PURGE of messages has no 'to'"),
        ("MOVE", "q", {}, 400, "`to` must be the name of the queue"),
        ("MOVE", "q", {"to": "q"}, 400, "cannot be moved to itself"),
        ("MOVE", "q", {"to": "none"}, 404, "there is no queue named 'none'"),
        ("REROUTE", "q", {}, 409, "has no alternate exchange"),
        ("REROUTE", "q", {"exchange": "none"}, 404, "there is no exchange named 'none'"),
        ("PURGE", "/queues/q", {}, 404, "there is no queue named '/queues/q'"),
        ("MOVE", "/queues/q", {"to": "other"}, 404, "there is no queue named '/queues/q'"),
        ("SHUFFLE", "q", {}, 501, ""),
    ],
)
def test_what_cannot_be_is_refused_and_says_why(operation: str, name: str, body: dict[str, Any], status: int, text: str) -> None:
    with bench() as b:
        b.queue("q")
        b.queue("other")
        answer = b.client().request(operation, "queue", name, body)
        assert answer[0] == status, answer
        assert text in answer[1], answer


def lose_and_regain_the_lead(b: Bench) -> None:
    for state in ("ready", "active"):
        b.lead.epoch += 1
        b.lead.become(state)
        b.settle()


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_message_whose_end_is_under_way_on_this_broker_alone_is_not_moved_after_a_change_of_roles(size: int) -> None:
    """Breaks when it is free again because this broker has stopped serving meanwhile, while the log of its queue goes on: the
    parts of a large one are gone then before it is put on the other queue, and this broker could not apply the batch."""
    with bench(clustered=True, part_bytes=16 * 1024) as b:
        b.upgraded()
        for name in ("q", "other"):
            b.queue(name, replicate="none")
        client = b.client()
        client.send(client.sender("q"), b"x" * size, "second")
        local = b.logs[LOCAL]
        local.automatic = False
        client.receiver("q", credit=1)
        b.pass_time(0.1, step=0.05)
        assert local.waiting, "it was accepted"
        lose_and_regain_the_lead(b)
        asker = b.client()
        reply = begin_move(asker)
        b.pass_time(0.1, step=0.05)
        assert not asker.received[reply.name]
        local.automatic = True
        local.commit()
        b.pass_time(0.1, step=0.05)
        ((_, answer),) = asker.received[reply.name]
        assert (answer.body["count"], b.depth("q"), bodies(b, "other")) == (1, 0, ["second"])


def test_a_message_whose_end_is_under_way_on_this_broker_alone_is_no_dead_letter_after_a_change_of_roles() -> None:
    """Breaks when a message is rejected in the next term, and put on another queue behind its end in the log."""
    with bench(clustered=True, part_bytes=16 * 1024) as b:
        b.upgraded()
        letters_of(b, replicate="none")
        b.queue("lost", replicate="none")
        assert b.client(ADMIN).request("CREATE", "binding", "", {"exchange": "dlx", "queue": "lost", "key": ""})[0] == 201
        client = b.client()
        client.send(client.sender("q"), "accepted")
        local = b.logs[LOCAL]
        local.automatic = False
        client.receiver("q")
        b.pass_time(0.1, step=0.05)
        assert local.waiting, "it was accepted"
        lose_and_regain_the_lead(b)
        second = b.client()
        second.auto_accept = False
        receiver = second.receiver("q")
        for delivery, _ in list(second.received[receiver.name]):
            second.give(delivery, proton.Delivery.REJECTED)
        b.pass_time(0.1, step=0.05)
        local.automatic = True
        local.commit()
        b.pass_time(1)
        assert [b.depth(name) for name in ("q", "dead", "lost")] == [0, 0, 0]
