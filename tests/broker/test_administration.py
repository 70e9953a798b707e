"""What management answers over the wire."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, PredicateResult, capturedLogs, formatEvent

from broker.core import limits, schema
from broker.core.commands import Term
from broker.core.nodes import CLUSTER, LOCAL
from broker.log_levels import LogLevels, text_of
from broker.sessions.principal import Principal
from tests.broker.clients import (
    ACCEPTED,
    ADMIN,
    REJECTED,
    bench,
    condition,
    creating,
    one_turn,
    request,
    statuses,
)


def test_management_shows_connections_and_subscriptions() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client({"qpid.client_process": "worker", "qpid.client_pid": 42, "product": "x"}, container="c1")
        client.send(client.sender("q"), "one")
        client.auto_accept = False
        client.receiver("q", name="sub")
        admin = b.client({"qpid.client_pid": "no number"})
        items = admin.request("QUERY", "connection")[2]["items"]
        one = next(item for item in items if item["container"] == "c1")
        assert (one["processName"], one["processId"], one["messagesIn"], one["messagesOut"]) == ("worker", 42, 1, 1)
        assert {item["processId"] for item in items} == {42, 0}
        (subscription,) = admin.request("QUERY", "subscription")[2]["items"]
        assert (subscription["queue"], subscription["processId"], subscription["unacked"]) == ("q", 42, 1)
        assert (subscription["browse"], subscription["acknowledged"], subscription["delivered"]) == (False, True, 1)


def test_of_the_properties_of_a_client_the_name_of_its_process_is_kept_up_to_a_limit() -> None:
    """Breaks when ten thousand connections keep whatever their clients said."""
    with bench() as b:
        client = b.client({"qpid.client_process": "w" * 1000, "more": "x" * 1000}, container="c1")
        admin = b.client(ADMIN)
        items = {item["container"]: item for item in admin.request("QUERY", "connection")[2]["items"]}
        assert items["c1"]["processName"] == "w" * (limits.MAX_TOLD_CHARS - 3) + "..."
        assert client.server.properties == {}


def test_a_name_that_a_client_chose_has_so_many_characters_in_an_answer_and_shows_that_it_was_cut() -> None:
    """Breaks when one client with links of long names makes the answers for all others large."""
    with bench() as b:
        b.queue("q")
        most = limits.MAX_TOLD_CHARS
        whole, long = b.client(container="c" * most), b.client(container="c" * 4_000)
        whole.receiver("q", name="n" * most)
        long.receiver("q", name="n" * 4_000)
        admin = b.client(ADMIN)
        names, containers = (
            {item[field] for item in admin.request("QUERY", kind)[2]["items"]}
            for kind, field in (("subscription", "id"), ("connection", "container"))
        )
        assert names == {"n" * most, "n" * (most - 3) + "..."}
        assert {"c" * most, "c" * (most - 3) + "..."} < containers
        assert len(long.server.container) == 4_000, "the broker itself knows it whole"


def test_a_broker_by_itself_says_why_its_producers_wait_for_the_disk() -> None:
    with bench() as b:

        def disk() -> str:
            (item,) = b.client(ADMIN).request("QUERY", "ha")[2]["items"]
            return str(item["disk"])

        assert disk() == ""
        b.lead.ledger.on_storage_low("only 9 KiB are free")
        assert disk() == "only 9 KiB are free"
        b.lead.ledger.on_storage_low("")
        assert disk() == ""


def test_management_answers_what_it_is_asked() -> None:
    with bench() as b:
        client = b.client()
        (item,) = client.request("QUERY", "broker")[2]["items"]
        assert (item["name"], item["version"], item["cluster"], item["connections"]) == ("broker-1", "1", "", 1)
        (ha,) = client.request("QUERY", "ha")[2]["items"]
        assert ha["status"] == "standalone"
        assert client.request("PROMOTE", "ha")[:2] == (
            409,
            "this broker is standalone: it was started without --ha-cluster yes",
        )
        term = Term(epoch=3, primary="a:1", reason="asked", ts="2026-01-01", gap_ms=7)
        b.lead.ledger.change(term, lambda reason: None)
        b.settle()
        (row,) = client.request("QUERY", "history")[2]["items"]
        assert row == {
            "ts": "2026-01-01",
            "epoch": 3,
            "primary": "a:1",
            "reason": "asked",
            "gap_ms": 7,
            "by": "",
            "planned": False,
            "estimated": False,
        }
        assert client.request("QUERY", "weather")[0] == 404
        assert client.request("JUGGLE", "queue")[0] == 501
        assert client.request("CREATE", "queue", "q", {"arguments": [1]})[0] == 400
        assert client.request("CREATE", "queue", "q", {"arguments": {1: 2}})[0] == 400
        assert client.request("CREATE", "queue", "q", {"arguments": {"x": b"no text"}})[0] == 400
        assert client.request("CREATE", "queue", "q")[0] == 201
        assert client.request("CREATE", "queue", "q")[0] == 409
        assert client.request("QUERY", "queue", "none")[0] == 404
        assert len(client.request("QUERY", "binding")[2]["items"]) == 1
        assert client.request("QUERY", "exchange")[0] == 200


def test_two_that_create_one_queue_at_once_hear_who_was_second() -> None:
    with bench(automatic=False) as b:
        client = b.client()
        reply = client.receiver(None, dynamic=True)
        sender = client.sender("$management")
        for number in range(2):
            client.send_encoded(sender, request("CREATE", "queue", "q", reply.remote_source.address, number))
        b.lead.commit()
        b.settle()
        answers = [message for _, message in client.received[reply.name]]
        assert [(each.correlation_id, each.properties["statusCode"]) for each in answers] == [(0, 201), (1, 409)]
        assert "exists already" in answers[1].properties["statusDescription"]
        b.lead.automatic = True


@pytest.mark.parametrize("kind, body", [("queue", {}), ("exchange", {"exchangeType": "fanout"})])
@pytest.mark.parametrize("deleted_first, level", [(False, "all"), (False, "none"), (True, "all"), (True, "none")])
def test_an_exchange_is_not_deleted_while_something_that_names_it_as_its_alternate_exchange_is_being_made(
    kind: str, body: dict[str, Any], deleted_first: bool, level: str
) -> None:
    """Breaks when the dead letters of a queue are lost, because its alternate exchange was deleted in the turn that made it."""
    with bench(clustered=True) as b:
        client = b.client()
        assert client.request("CREATE", "exchange", "dead", {"replicate": "all"})[0] == 201
        reply, link = client.receiver(None, dynamic=True), client.sender("$management")
        box = reply.remote_source.address
        made = request("CREATE", kind, "new", box, 1, {"alternateExchange": "dead", "replicate": level} | body)
        gone = request("DELETE", "exchange", "dead", box, 2)
        client.send_encoded(link, *((gone, made) if deleted_first else (made, gone)))
        answers = {answer.correlation_id: answer.properties["statusCode"] for _, answer in client.received[reply.name]}
        assert answers == ({1: 404, 2: 204} if deleted_first else {1: 201, 2: 409})
        nodes = b.broker.nodes
        assert ("dead" in nodes.exchanges, "new" in (nodes.queues if kind == "queue" else nodes.exchanges)) == (
            not deleted_first,
            not deleted_first,
        )
        assert not list(nodes.under_way())
        if not deleted_first:
            assert client.request("DELETE", kind, "new")[0] == 204
            assert client.request("DELETE", "exchange", "dead")[0] == 204


def test_two_changes_that_come_together_both_take_effect_and_a_policy_is_made_once() -> None:
    """Breaks when an operator's change is answered with 200, and a second one of that moment undoes it."""
    with bench(automatic=False) as b:
        client = b.client()
        b.lead.automatic = True
        b.queue("q")
        b.lead.automatic = False
        reply, link = client.receiver(None, dynamic=True), client.sender("$management")
        box = reply.remote_source.address
        client.send_encoded(
            link,
            request("UPDATE", "queue", "q", box, 1, {"arguments": {"x-message-ttl": 5}}),
            request("UPDATE", "queue", "q", box, 2, {"arguments": {"qpid.max_count": 7}, "alternateExchange": "amq.fanout"}),
            request("CREATE", "QueuePolicy", "orders.", box, 3, {"durable": True}),
            request("CREATE", "QueuePolicy", "orders.", box, 4, {}),
            request("UPDATE", "QueuePolicy", "orders.", box, 5, {"arguments": {"qpid.max_count": 3}}),
        )
        b.lead.commit()
        b.settle()
        answers = {answer.correlation_id: answer.properties["statusCode"] for _, answer in client.received[reply.name]}
        assert answers == {1: 200, 2: 200, 3: 201, 4: 409, 5: 200}
        b.lead.automatic = True
        changed = client.request("READ", "queue", "q")[2]
        assert changed["arguments"] == {"x-message-ttl": 5, "qpid.max_count": 7}
        assert changed["alternateExchange"] == "amq.fanout"
        policy = client.request("READ", "QueuePolicy", "orders.")[2]
        assert (policy["durable"], policy["arguments"]) == (True, {"qpid.max_count": 3})


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_a_binding_to_what_is_deleted_in_the_same_moment_is_refused_and_not_in_the_log(kind: str) -> None:
    """Breaks when such a binding is answered with 201, and stays in the log of every member for ever."""
    with bench(clustered=True) as b:
        client = b.client()
        assert client.request("CREATE", "queue", "q", {"replicate": "all"})[0] == 201
        assert client.request("CREATE", "exchange", "x", {"replicate": "all"})[0] == 201
        reply, link = client.receiver(None, dynamic=True), client.sender("$management")
        box = reply.remote_source.address
        gone = request("DELETE", kind, "q" if kind == "queue" else "x", box, 1)
        bound = request("CREATE", "binding", "", box, 2, {"exchange": "x", "queue": "q", "key": "k"})
        client.send_encoded(link, gone, bound)
        answers = {answer.correlation_id: answer.properties["statusCode"] for _, answer in client.received[reply.name]}
        assert answers == {1: 204, 2: 404}
        assert not b.lead.ledger.state.definitions.bindings


def test_a_queue_is_being_deleted_until_that_is_committed_or_its_term_is_over() -> None:
    with bench(clustered=True) as b:
        b.lead.automatic = False
        admin = b.client(ADMIN)
        reply, link = admin.receiver(None, dynamic=True), admin.sender("$management")
        nodes, asked = b.broker.nodes, iter(range(100))

        def ask(operation: str, *names: str) -> None:
            for name in names:
                body = {"replicate": "all"} if operation == "CREATE" else {"ifEmpty": name == "r"}
                made = request(operation, "queue", name, reply.remote_source.address, next(asked), body)
                admin.send_encoded(link, made)

        def commit() -> None:
            while b.lead.waiting:
                b.lead.commit()
                b.settle()

        ask("CREATE", "q", "r")
        commit()
        q, r = (nodes.queues[name].uuid for name in "qr")
        ask("DELETE", "q", "q", "r")
        assert [nodes.is_going(uuid) for uuid in (q, r, "other")] == [True, True, False]
        b.lead.commit(1)
        b.settle()
        assert [nodes.is_going(uuid) for uuid in (q, r)] == [True, True], "it was asked for twice"
        b.lead.commit(1)
        b.settle()
        assert [nodes.is_going(uuid) for uuid in (q, r)] == [False, True]
        b.lead.become("ready")
        assert not nodes.is_going(r)


def test_changes_of_a_term_that_is_over_are_under_way_no_more() -> None:
    with bench(clustered=True) as b:
        b.lead.automatic = False
        admin = b.client(ADMIN)
        reply, link = admin.receiver(None, dynamic=True), admin.sender("$management")
        for number in range(6):  # more than the log takes at a time
            made = request("CREATE", "queue", f"q{number}", reply.remote_source.address, number, {"replicate": "all"})
            admin.send_encoded(link, made)
        assert len(list(b.broker.nodes.under_way())) == 6
        b.lead.become("ready")
        assert not list(b.broker.nodes.under_way())


@pytest.mark.parametrize("named", ["there", "new"])
def test_a_backup_says_that_only_the_primary_creates_whatever_else_it_would_object_to(named: str) -> None:
    """Breaks when what a backup does not know yet, such as a deletion or the cluster's version, is told as the reason."""
    with bench(clustered=True) as b:
        b.queue("there", replicate="all")
        b.lead.become("ready", primary="far:5672")
        asked = {"replicate": "all", "arguments": {"qpid.priorities": 4}}
        status, text, _ = b.client(ADMIN).request("CREATE", "queue", named, asked)
        assert (status, text.partition(": ")[0]) == (409, "this broker is ready")
        assert text.endswith("send it to the primary, far:5672")


def test_a_primary_whose_own_log_is_not_ready_says_to_try_again() -> None:
    """Breaks when it sends whoever asks to the primary, which it is itself."""
    with bench(clustered=True) as b:
        b.logs[LOCAL].become("recovering")
        status, text, _ = b.client(ADMIN).request("CREATE", "queue", "q", {"replicate": "none"})
        assert (status, text) == (409, "queue 'q' belongs to this broker's own log, which is not ready yet: try again")


def test_an_answer_may_go_to_a_queue_but_not_beyond_its_limit() -> None:
    with bench() as b:
        b.queue("answers", arguments={"qpid.max_count": 1})
        client = b.client()
        sender = client.sender("$management")
        asked, lost = request("QUERY", "broker", "", "answers"), request("QUERY", "broker", "", "nobody")
        client.send_encoded(sender, asked, asked, lost, b"\x00\x53\x77\xa1\x0ano request")
        b.pass_time(1)
        assert statuses(client, sender) == [ACCEPTED] * 4
        assert b.depth("answers") == 1


def test_a_queue_of_level_configuration_is_answered_when_its_messages_have_a_place() -> None:
    with bench(clustered=True) as b:
        client = b.client()
        status, _, item = client.request("CREATE", "queue", "q", {"replicate": "configuration"})
        assert (status, item["replicate"]) == (201, "configuration")
        node = b.broker.nodes.queues["q"]
        assert (node.log, node.messages_log) == (CLUSTER, LOCAL)
        assert node.messages is not None
        client.send(client.sender("q"), "one")
        assert b.broker.ledgers[LOCAL].live_bytes() > 0
        assert b.broker.ledgers[CLUSTER].live_bytes() == 0


def test_a_link_to_a_queue_whose_messages_have_no_place_yet_is_to_be_tried_again() -> None:
    with bench(clustered=True) as b:
        b.logs[LOCAL].automatic = False
        b.lead.take(creating("q", level="configuration"))
        b.settle()
        client = b.client()
        assert condition(client.sender("q")) == "amqp:resource-locked"
        b.logs[LOCAL].commit()
        b.logs[LOCAL].automatic = True
        b.settle()
        assert condition(client.sender("q")) == ""


def test_the_level_of_the_log_is_told_and_set_and_nothing_else_can_be_done_with_it() -> None:
    with bench() as b:
        levels = b.broker.administration.extensions["log"] = LogLevels("notice")
        client = b.client()
        event = {"log_namespace": "any", "log_level": LogLevel.debug}
        assert client.request("QUERY", "log")[2]["items"] == [{"level": "notice+"}]
        assert levels.predicate(event) is PredicateResult.no
        assert client.request("SET", "log", "", {"level": "debug+"})[2] == {"level": "debug+"}
        assert levels.predicate(event) is PredicateResult.maybe
        assert client.request("SET", "log", "", {"level": "loud"})[0] == 400
        assert client.request("CREATE", "log")[0] == 501


def test_memory_is_told_by_what_it_is_for() -> None:
    with bench(message_memory=5_000_000) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "x" * 1000)
        found = {item["name"]: item["bytes"] for item in client.request("QUERY", "memory")[2]["items"]}
        assert found["resident"] > found["bodies-limit"] == 5_000_000
        assert found["bodies"] >= 1000
        assert (found["not-committed"], found["requests-waiting"]) == (0, 0)


class Cluster:
    """The cluster part's side of management."""

    def __init__(self) -> None:
        self.ended: Deferred[tuple[int, str, dict[str, Any]]] = Deferred()

    def items(self) -> list[dict[str, Any]]:
        return [{"status": "ready"}]

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[tuple[int, str, dict[str, Any]]]:
        return self.ended


@pytest.mark.parametrize("fails", [False, True])
def test_what_concerns_the_cluster_is_answered_by_its_part_when_that_is_done(fails: bool) -> None:
    with bench(clustered=True) as b:
        b.broker.administration.extensions["ha"] = cluster = Cluster()
        client = b.client()
        assert client.request("QUERY", "ha")[2]["items"] == [{"status": "ready"}]
        reply, sender = client.receiver(None, dynamic=True), client.sender("$management")
        client.send_encoded(sender, request("PROMOTE", "ha", "", reply.remote_source.address))
        assert client.received[reply.name] == []
        if fails:
            cluster.ended.errback(RuntimeError("no luck"))
        else:
            cluster.ended.callback((200, "active", {"epoch": 3}))
        b.settle()
        ((_, answer),) = client.received[reply.name]
        status, text = (500, "PROMOTE failed: no luck") if fails else (200, "active")
        assert (answer.properties["statusCode"], answer.properties["statusDescription"]) == (status, text)
        assert answer.body == ({} if fails else {"epoch": 3})


def test_requests_that_take_too_long_for_one_turn_wait_link_by_link_and_none_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Breaks when a client with many questions keeps messages, heartbeats and everybody else's one question waiting."""
    monkeypatch.setattr(limits, "MANAGEMENT_TURN_S", 0.0)
    with bench() as b:
        clients = {name: b.client() for name in ("eager", "modest", "gone")}
        links = {name: client.sender("$management") for name, client in clients.items()}
        assert links["eager"].credit == limits.MANAGEMENT_WINDOW
        for name, count in (("eager", 5), ("gone", 3), ("modest", 1)):
            requests = [request("CREATE", "queue", f"{name}-{number}", "nowhere") for number in range(count)]
            clients[name].send_encoded(links[name], *requests, settle=False)
            clients[name].pump()
        clients["gone"].lose()
        assert not b.broker.nodes.queues, "all of them wait for their turns"
        b.settle()
        assert list(b.broker.nodes.queues) == ["eager-0", "modest-0", "eager-1", "eager-2", "eager-3", "eager-4"]
        assert statuses(clients["eager"], links["eager"]) == [ACCEPTED] * 5
        assert links["eager"].credit == limits.MANAGEMENT_WINDOW


def test_a_query_is_answered_by_the_page_and_its_next_page_begins_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAGE_ITEMS", 2)
    with bench() as b:
        for number in range(5):
            b.queue(f"q{number}")
        client = b.client()
        client.receiver("q3"), client.receiver("q1"), client.receiver("q2")
        others = [b.client(), b.client()]
        for kind, field, wanted in (
            ("queue", "name", [f"q{number}" for number in range(5)]),
            ("binding", "key", [f"q{number}" for number in range(5)]),
            ("subscription", "queue", ["q3", "q1", "q2"]),
            ("connection", "id", [f"qpid.{one.server.number}" for one in (client, *others)]),
        ):
            found: list[Any] = []
            body: dict[str, Any] | None = {}
            while body is not None:
                items, after = (answer := client.request("QUERY", kind, "", body)[2])["items"], answer.get("next")
                assert 0 < len(items) <= 2
                found += [item[field] for item in items]
                body = None if after is None else {"after": after}
            assert found == wanted, kind
        assert len(client.request("QUERY", "queue", "", {"count": 1})[2]["items"]) == 1
        for wrong in ({"count": 0}, {"count": "2"}, {"after": "q1"}, {"after": [7]}):
            assert client.request("QUERY", "queue", "", wrong)[0] == 400, wrong
        assert client.request("QUERY", "subscription", "", {"after": [client.server.number, "x"]})[0] == 400
        assert all(other.request("QUERY", "queue", "", {"after": ["q9"]})[2] == {"items": []} for other in others)


def test_a_query_that_takes_too_long_for_one_turn_goes_on_in_the_next_ones_and_others_have_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Breaks when a listing of many queues keeps messages and everybody else's question waiting until it is done."""
    monkeypatch.setattr(limits, "MANAGEMENT_TURN_S", 0.0)
    with bench() as b:
        for number in range(20):
            b.queue(f"q{number:02}")
        eager, modest = b.client(), b.client()
        replies = {one: one.receiver(None, dynamic=True) for one in (eager, modest)}
        links = {one: one.sender("$management") for one in (eager, modest)}
        for one, kind in ((eager, "queue"), (modest, "broker")):
            one.send_encoded(links[one], request("QUERY", kind, "", replies[one].remote_source.address), settle=False)
            one.pump()
        turns = 0
        while not modest.received[replies[modest].name]:
            one_turn(b.clock)
            modest.pump()
            eager.pump()
            turns += 1
            assert turns < 20
        assert eager.received[replies[eager].name] == []
        b.settle()
        ((_, answer),) = eager.received[replies[eager].name]
        assert [item["name"] for item in answer.body["items"]] == [f"q{number:02}" for number in range(20)]


def test_requests_that_wait_have_a_bound_over_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a client with thousands of links has gigabytes of requests wait."""
    monkeypatch.setattr(limits, "MANAGEMENT_TURN_S", 0.0)
    monkeypatch.setattr(limits, "MANAGEMENT_WAITING_BYTES", 1000)
    with bench() as b:
        client, other = b.client(), b.client()
        link = client.sender("$management")
        requests = [request("CREATE", "queue", f"q{number}", "nowhere") for number in range(20)]
        room = 1000 // len(requests[0])
        client.send_encoded(link, *requests, settle=False)
        b.settle()
        assert statuses(client, link).count(REJECTED) == 20 - room
        assert len(b.broker.nodes.queues) == room
        assert other.request("QUERY", "queue")[0] == 200, "they have been served, and made room"


def test_requests_that_get_no_answer_are_a_few_lines_in_the_log() -> None:
    """Breaks when a client without any right fills the disk of the log, with many lines or a long one."""
    with bench() as b, capturedLogs() as events:
        client = b.client()
        link = client.sender("$management")
        key = b"\xb0" + (1 << 16).to_bytes(4, "big") + bytes(1 << 16)
        odd = b"\x00\x53\x74\xd1" + (len(key) + 5).to_bytes(4, "big") + (2).to_bytes(4, "big") + key + b"\x40"
        for _ in range(30):
            client.send(link, None)
        assert statuses(client, link) == [ACCEPTED] * 30
        b.pass_time(11)
        client.send_encoded(link, odd)
        told = [line for line in map(formatEvent, events) if "management request" in line]
        assert told[0] == "management request dropped: a management request needs a reply-to"
        assert len(told) == 22
        assert told[20].startswith("10 more dropped management requests or answers in the ")
        assert "that is not a string" in told[21]
        assert len(told[21]) < 200


def test_answers_that_find_no_room_are_a_few_lines_in_the_log() -> None:
    with bench() as b, capturedLogs() as events:
        client = b.client()
        assert client.request("CREATE", "queue", "q", {"arguments": {"qpid.max_count": 1}})[0] == 201
        link = client.sender("$management")
        for number in range(31):
            client.send_encoded(link, request("QUERY", "broker", "", "q", number))
        told = [line for line in map(formatEvent, events) if "was dropped" in line]
        assert len(told) == 20
        assert "would pass its limit of 1 messages" in told[0]


def test_no_answer_is_put_on_a_queue_that_is_being_deleted() -> None:
    """Breaks when it is accepted, and goes with the queue, or keeps a queue that is to go only if it is empty."""
    with bench() as b, capturedLogs() as events:
        b.queue("q")
        client = b.client()
        link = client.sender("$management")
        b.begin_deletion("q", ifEmpty=True)
        client.send_encoded(link, request("QUERY", "broker", "", "q"))
        b.commit_all()
        assert statuses(client, link) == [ACCEPTED]
        assert "q" not in b.broker.nodes.queues
        told = [line for line in map(formatEvent, events) if "was dropped" in line]
        assert told == ["the answer to a management request was dropped: queue 'q' is being deleted"]


class Broken(Cluster):
    """A part of the broker with a defect."""

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[tuple[int, str, dict[str, Any]]]:
        raise RuntimeError(f"{operation} has no end")


@pytest.mark.parametrize("later", [False, True])
def test_a_request_that_fails_in_the_broker_is_rejected_and_those_behind_it_are_served(
    monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """Breaks when the requests that wait on its link are lost with it, and are counted as waiting for ever."""
    if later:
        monkeypatch.setattr(limits, "MANAGEMENT_TURN_S", 0.0)
    with bench() as b, capturedLogs() as events:
        b.broker.administration.extensions["ha"] = Broken()
        client, other = b.client(), b.client()
        link, others = client.sender("$management"), other.sender("$management")
        requests = [request("STOP", "ha", "", "nowhere")] * 30
        client.send_encoded(link, *requests, request("CREATE", "queue", "q", "nowhere"), settle=False)
        other.send_encoded(others, request("CREATE", "queue", "r", "nowhere"), settle=False)
        client.pump()
        other.pump()
        b.settle()
        assert statuses(client, link) == [REJECTED] * 30 + [ACCEPTED]
        assert statuses(other, others) == [ACCEPTED]
        assert set(b.broker.nodes.queues) == {"q", "r"}
        found = {item["name"]: item["bytes"] for item in client.request("QUERY", "memory")[2]["items"]}
        assert found["requests-waiting"] == 0
        told = [line for line in map(text_of, events) if "STOP has no end" in line]
        assert 0 < len(told) <= 20
        assert told[0].startswith("a management request failed in this broker\n\tTraceback")


def test_the_node_tells_its_types_and_what_they_have_by_amqp_management() -> None:
    """Breaks when an attribute is told that no entity has, or is not told."""
    with bench() as b:
        b.broker.administration.extensions["ha"] = Cluster()
        b.queue("q")
        client = b.client()
        client.request("CREATE", "binding", "", {"exchange": "amq.topic", "queue": "q", "key": "k"})
        client.receiver("q")
        for kind in ("QueuePolicy", "TopicPolicy"):
            client.request("CREATE", kind, "x", {"byUse": True})
        b.lead.ledger.change(Term(epoch=3, primary="a:1", reason="asked", ts="2026-01-01", gap_ms=7), lambda reason: None)
        b.settle()

        def asked(operation: str, body: Any = None, **properties: Any) -> tuple[int, str, Any]:
            return client.request(operation, schema.NODE, "self", body, **properties)

        kinds = asked("GET-TYPES")[2]
        assert (
            kinds
            == {kind: [] for kind in (*schema.ATTRIBUTES, *b.broker.administration.extensions, schema.NODE)}
            == asked("GET-ANNOTATIONS")[2]
        )
        assert asked("GET-MGMT-NODES")[2] == ["$management"]
        attributes = asked("GET-ATTRIBUTES")[2]
        assert attributes["ha"] == ["name", "identity", "type", "status"]
        for kind in schema.ATTRIBUTES:
            (item, *_) = client.request("QUERY", kind)[2]["items"]
            assert sorted(attributes[kind]) == sorted({*item, "name", "identity", "type"}), kind
            assert asked("GET-ATTRIBUTES", entityType=kind)[2] == {kind: attributes[kind]}
            table = asked("QUERY", entityType=kind)[2]
            assert (table["attributeNames"], len(table["results"][0])) == (attributes[kind], len(attributes[kind]))
            row = dict(zip(table["attributeNames"], table["results"][0], strict=True))
            assert row["type"] == kind
            if row["name"]:
                assert client.request("READ", kind, row["name"])[2].keys() == row.keys()
            assert client.request("READ", kind, identity=row["identity"])[2]["name"] == row["name"]
        operations = asked("GET-OPERATIONS")[2]
        assert operations["queue"] == [
            "READ",
            "QUERY",
            "CREATE",
            "UPDATE",
            "DELETE",
            "PURGE",
            "MOVE",
            "REROUTE",
            "PEEK",
            "DELIVER",
        ]
        assert operations[schema.NODE] == sorted(schema.DESCRIBING | {"QUERY"})
        assert asked("QUERY", entityType="ha")[2]["results"] == [["ha", "ha", "ha", "ready"]]


def test_what_is_made_is_told_as_it_is_read() -> None:
    with bench() as b:
        client = b.client()
        for kind, name, body in (
            ("queue", "q", {"arguments": {"note": 1}}),
            ("exchange", "x", {"exchangeType": "topic"}),
            ("binding", "", {"exchange": "x", "queue": "q", "key": "a.*"}),
        ):
            status, text, made = client.request("CREATE", kind, name, body)
            assert (status, text) == (201, "created")
            read = client.request("READ", kind, identity=made["identity"])[2]
            assert read | made == read, kind


def test_a_table_has_the_attributes_and_the_rows_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as b:
        for number in range(5):
            b.queue(f"q{number}")
        b.broker.administration.extensions["log"] = LogLevels("notice")
        client = b.client()

        def table(body: Any = None, **properties: Any) -> tuple[int, str, Any]:
            return client.request("QUERY", schema.NODE, "self", body, **({"entityType": "queue"} | properties))

        names = {"attributeNames": ["name", "messages"]}
        assert table(names, offset=1, count=2)[2] == names | {"results": [["q1", 0], ["q2", 0]], "next": 3}
        assert table(names, offset=3, count=2)[2] == names | {"results": [["q3", 0], ["q4", 0]]}
        assert table(names, offset=9)[2] == names | {"results": []}
        monkeypatch.setattr(limits, "PAGE_BYTES", 20)
        assert table({"attributeNames": ["uuid"]})[2]["next"] == 1
        for body, properties, status in (
            (names, {"offset": -1}, 400),
            (names, {"count": 0}, 400),
            ({"attributeNames": "name"}, {}, 400),
            ({"attributeNames": ["colour"]}, {}, 400),
            ({"attributeNames": ["name", "messages", "name"]}, {}, 400),
            ({"attributeNames": [f"a{number}" for number in range(101)]}, {"entityType": "log"}, 400),
            (names, {"entityType": None}, 400),
            (names, {"entityType": schema.NODE}, 400),
            (names, {"entityType": "weather"}, 404),
        ):
            assert table(body, **properties)[0] == status, (body, properties)
        names = {"attributeNames": [f"a{number}" for number in range(100)]}
        assert table(names, entityType="log")[2] == names | {"results": [[None] * 100]}
        assert client.request("REGISTER", schema.NODE, "self")[0] == 501
        assert [client.request("READ", "queue", name)[0] for name in ("", "none")] == [400, 404]
        assert client.request("READ", "queue", identity="none")[0] == 404
        assert client.request("READ", "weather", "x")[0] == 404


def test_what_is_updated_is_in_force_when_it_is_answered_and_on_another_primary_too() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.max_count": 2})
        client = b.client()
        sender = client.sender("q")
        client.send(sender, 1, 2, 3)
        assert sorted(statuses(client, sender)) == [ACCEPTED, ACCEPTED, REJECTED]
        assert client.request("CREATE", "exchange", "x", {"exchangeType": "fanout"})[0] == 201
        status, text, item = client.request(
            "UPDATE", "queue", "q", {"arguments": {"qpid.max_count": 3}, "alternateExchange": "x"}
        )
        assert (status, text, item["arguments"], item["alternateExchange"]) == (200, "updated", {"qpid.max_count": 3}, "x")
        client.send(sender, 3, 4)
        assert sorted(statuses(client, sender)[3:]) == [ACCEPTED, REJECTED]
        assert (
            client.request("UPDATE", "exchange", "x", {"alternateExchange": "amq.topic"})[2]["alternateExchange"] == "amq.topic"
        )
        assert client.request("UPDATE", "queue", "none")[0] == 404
        with bench() as other:
            b.lead.replayed_into(other.lead)
            other.settle()
            (item,) = other.client().request("QUERY", "queue", "q")[2]["items"]
            assert (item["arguments"], item["alternateExchange"]) == ({"qpid.max_count": 3}, "x")
