"""Messages fetched from another broker are each there once, in order, whatever breaks in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import proton
import pytest
from twisted.logger import ILogObserver, eventAsText, globalLogPublisher
from zope.interface import provider

from broker.core import limits, routes
from broker.core.commands import Setting
from broker.core.hops import HOPS
from broker.core.origins import LEAVING
from broker.core.passage import INITIAL_VALUE, SEQUENCE
from broker.core.records import Batch, Kind
from tests.broker.clients import ADMIN, condition, request
from tests.broker.route_bench import Network, network

LARGE = limits.LARGE_PARTS * limits.PART_BYTES + 1


@pytest.fixture
def net() -> Iterator[Network]:
    """`a` has the queue `out`, `b` has `in` and the topic exchange `news`."""
    with network() as made:
        made.add("a", part_bytes=16 * 1024).queue("out")
        made.add("b", part_bytes=16 * 1024).queue("in")
        yield made


def held(net: Network, at: str = "b") -> int:
    return sum(each.count for each in net.brokers[at].lead.ledger.state.held.values())


@contextmanager
def log_lines(namespace: str) -> Iterator[list[str]]:
    """The lines that are logged there meanwhile."""
    lines: list[str] = []

    @provider(ILogObserver)
    def observe(event: dict[str, Any]) -> None:
        if event.get("log_namespace") == namespace:
            lines.append(eventAsText(event, includeTimestamp=False, includeSystem=False))

    globalLogPublisher.addObserver(observe)
    try:
        yield lines
    finally:
        globalLogPublisher.removeObserver(observe)


def test_a_queues_messages_come_in_order_and_leave_it_and_what_is_held_of_them_is_forgotten(net: Network) -> None:
    net.send("a", "out", *range(5))
    net.route("b", "a", "in", "out")
    net.send("a", "out", *range(5, 9))
    assert net.bodies("b", "in") == list(range(9))
    assert net.brokers["a"].depth("out") == 0
    item = net.item("b")
    assert (item["state"], item["lastError"], item["taken"], item["peer"]) == ("Operational", "", 9, "a:5672")
    assert held(net) == 9
    net.pass_time(2)
    assert held(net) == 0
    net.send("a", "out", 9)
    assert net.bodies("b", "in")[-1] == 9


def test_an_exchange_routes_what_comes_by_its_subject(net: Network) -> None:
    net.brokers["b"].queue("other")
    for queue, key in (("in", "x.#"), ("other", "#")):
        net.ask("b", "CREATE", "binding", exchange="amq.topic", queue=queue, key=key)
    net.route("b", "a", "amq.topic", "out")
    for subject in ("x.1", "y", "x.2", "x.3"):
        net.send("a", "out", subject, subject=subject)
    assert net.bodies("b", "in") == ["x.1", "x.2", "x.3"]
    assert net.bodies("b", "other") == ["x.1", "y", "x.2", "x.3"]
    assert net.brokers["a"].depth("out") == 0


@pytest.mark.parametrize(
    "exchange, section",
    [
        ("amq.topic", b"\x00\x53\x73\xc0\x08\x04\x40\x40\x40\xa0\x02ab"),
        ("amq.match", b"\x00\x53\x74\xc1\x06\x02\x53\x05\xa1\x01x"),
    ],
    ids=["a subject of bytes", "a number as the name of a property"],
)
def test_a_message_that_an_exchange_cannot_read_is_rejected_at_its_source_and_holds_up_no_other(
    net: Network, exchange: str, section: bytes
) -> None:
    how = {"arguments": {"x-match": "all"}} if exchange == "amq.match" else {}
    net.ask("b", "CREATE", "binding", exchange=exchange, queue="in", key="#", **how)
    client = net.brokers["a"].client()
    good = [proton.Message(body=body, subject="x").encode() for body in ("one", "two")]
    client.send_encoded(client.sender("out"), good[0], section + b"\x00\x53\x77\xa1\x03bad", good[1])
    client.connection.close()
    net.route("b", "a", exchange, "out")
    net.pass_time(1)
    assert net.bodies("b", "in") == ["one", "two"]
    assert (net.item("b")["state"], net.item("b")["lastError"], net.brokers["a"].depth("out")) == ("Operational", "", 0)
    assert net.ask("a", "QUERY", "queue", "out")[2]["items"][0]["rejected"] == 1


def test_what_a_route_asks_its_source_leaves_no_lines_in_the_audit_log(net: Network) -> None:
    with log_lines("audit") as lines:
        net.route("b", "a", "in", "out")
        net.send("a", "out", *range(3))
        net.pass_time(3)
    assert held(net) == 0, "it has asked"
    assert [line.rpartition(" schemaclass")[0] for line in lines] == [
        "audit: anonymous from 127.0.0.1:1: access method name=create"
    ]


def test_a_message_comes_as_it_was_but_for_where_it_has_been(net: Network) -> None:
    client = net.brokers["a"].client()
    failing = client.receiver("out", credit=1)
    client.auto_accept = False
    annotated = {"x-opt-mine": "kept"}
    client.send(client.sender("out"), "m", priority=7, ttl=60, durable=True, annotations=annotated, properties={"n": 1})
    ((delivery, _),) = client.received[failing.name]
    failing.close()
    client.give(delivery, 0x27, failed=True)
    net.settle()
    net.route("b", "a", "in", "out", tag="north")
    (found,) = net.messages("b", "in")
    assert (found.priority, found.durable, found.properties, found.body) == (7, True, {"n": 1}, "m")
    assert 0 < found.ttl <= 60
    assert {str(key): value for key, value in found.annotations.items()} == {"x-opt-mine": "kept", HOPS: ["a", "north"]}


@pytest.mark.parametrize("size", [10, LARGE])
def test_what_the_destination_holds_comes_again_and_is_put_nowhere(net: Network, size: int) -> None:
    """The source has forgotten that they were accepted."""
    net.send("a", "out", *(f"{n}".ljust(size) for n in range(3)))
    source = net.brokers["a"].lead
    source.automatic = False
    net.route("b", "a", "in", "out")
    assert net.brokers["b"].depth("in") == 3
    assert source.waiting, "they are about to leave the source"
    source.become("recovering")
    source.automatic = True
    net.cut()
    assert net.brokers["a"].depth("out") == 3
    source.become("standalone")
    net.send("a", "out", "last")
    net.pass_time(3)
    assert [body.strip() for body in net.bodies("b", "in")] == ["0", "1", "2", "last"]
    assert (net.brokers["a"].depth("out"), held(net)) == (0, 0)


@pytest.mark.parametrize("own", [False, True], ids=["replicated queues", "a queue of the local log too"])
def test_what_comes_again_takes_no_number_of_an_exchange_and_is_not_its_last_message(net: Network, own: bool) -> None:
    """A gap in the numbers would be read as a loss, and a queue that is bound later is owed the newest message."""
    p = net.add("p", clustered=True, default_level="all")
    net.ask("p", "CREATE", "exchange", "e", exchangeType="fanout", arguments={SEQUENCE: 1, INITIAL_VALUE: 1})
    p.queue("sq")
    p.queue("own", replicate="none")
    p.queue("late")
    for queue in ("sq", "own") if own else ("sq",):
        net.ask("p", "CREATE", "binding", exchange="e", queue=queue, key="")
    net.send("a", "out", *range(3))
    source = net.brokers["a"].lead
    source.automatic = False
    net.route("p", "a", "e", "out")
    assert source.waiting, "they are about to leave the source"
    net.send("p", "e", "newest")
    source.become("recovering")
    source.automatic = True
    net.cut()
    source.become("standalone")
    net.pass_time(3)
    assert net.brokers["a"].depth("out") == 0, "they came again, and were accepted"
    net.ask("p", "CREATE", "binding", exchange="e", queue="late", key="")
    net.send("p", "e", "last")

    def numbered(queue: str) -> list[tuple[Any, Any]]:
        return [((each.annotations or {}).get(SEQUENCE), each.body) for each in net.messages("p", queue)]

    assert numbered("sq") == [(1, 0), (2, 1), (3, 2), (4, "newest"), (5, "last")]
    assert numbered("late") == [(4, "newest"), (5, "last")]
    if own:
        again = [(None, 0), (None, 1), (None, 2)]
        assert numbered("own") == [*numbered("sq")[:4], *again, (5, "last")], "at least once, and not with a second number"


def test_what_was_put_and_never_committed_comes_again(net: Network) -> None:
    target = net.brokers["b"].lead
    net.route("b", "a", "in", "out")
    target.automatic = False
    net.send("a", "out", *range(3))
    assert target.waiting
    target.become("recovering")
    target.automatic = True
    assert net.brokers["a"].depth("out") == 3, "nothing was accepted"
    target.become("standalone")
    net.pass_time(1)
    assert net.bodies("b", "in") == [0, 1, 2]
    assert net.brokers["a"].depth("out") == 0


def test_the_next_primary_opens_the_route_again_and_knows_what_has_come(net: Network) -> None:
    first, second = (
        net.add(name, clustered=True, state=state, default_level="all") for name, state in (("p1", ""), ("p2", "ready"))
    )
    first.queue("in")
    source = net.brokers["a"].lead
    net.send("a", "out", *range(4))
    source.automatic = False
    net.route("p1", "a", "in", "out")
    assert first.depth("in") == 4
    first.lead.replayed_into(second.lead)
    first.lead.become("ready", "p2")
    source.become("recovering")
    source.automatic = True
    source.become("standalone")
    second.lead.become("active")
    net.pass_time(1)
    net.send("a", "out", 4)
    assert net.bodies("p2", "in") == [0, 1, 2, 3, 4]
    assert net.brokers["a"].depth("out") == 0
    assert net.item("p2")["state"] == "Operational"


def test_a_message_goes_round_a_ring_of_topics_once(net: Network) -> None:
    net.add("c").queue("in")
    for at in "abc":
        net.ask(at, "CREATE", "queue", "all")
        net.ask(at, "CREATE", "binding", exchange="amq.topic", queue="all", key="#")
    for at, source in ("ba", "cb", "ac", "ab", "bc", "ca"):
        net.route(at, source, "amq.topic", "#", "exchange")
    for at in "abc":
        net.send(at, "amq.topic/news", f"from {at}")
    net.pass_time(2)
    for at in "abc":
        assert sorted(set(net.bodies(at, "all"))) == ["from a", "from b", "from c"]
        assert net.bodies(at, "all").count(f"from {at}") == 1, "it does not come back"
        _, _, body = net.ask(at, "QUERY", "queue")
        assert [item["name"] for item in body["items"] if item["messages"] and item["name"] != "all"] == []


def test_what_has_a_name_that_a_route_excludes_is_dropped_and_leaves_the_source(net: Network) -> None:
    net.route("b", "a", "in", "out", exclude=["south", "b"])
    for been in (["south"], ["north"], ["b"], "no list"):
        net.send("a", "out", f"{been}", annotations={HOPS: been})
    assert net.bodies("b", "in") == ["['north']", "no list"]
    assert net.brokers["a"].depth("out") == 0


@pytest.mark.parametrize("size", [10, LARGE])
def test_messages_that_a_queue_route_would_move_back_stay_where_they_are_and_stop_it(net: Network, size: int) -> None:
    """Both queues have had them, and one of them has the only copy."""
    net.send("a", "out", *(f"{n}".ljust(size) for n in range(3)))
    net.route("b", "a", "in", "out")
    assert net.ask("b", "DELETE", "route", kind="queue", source="a", exchange="in", key="out")[0] == 204
    with log_lines("broker.routes.runner") as told:
        net.route("a", "b", "out", "in")
        net.send("b", "in", "new")
        net.pass_time(30)
    assert [body.strip() for body in net.bodies("b", "in")] == ["0", "1", "2", "new"], "nothing overtakes them"
    assert net.brokers["a"].depth("out") == 0
    text = "a message stays on the source's queue: it has been here before, and has passed through a"
    assert (net.item("a")["state"], net.item("a")["lastError"]) == ("Waiting", text)
    assert net.dialed < 20, "it tries again at ever longer intervals"
    ran = "the route from amqp:b:5672 in to out runs, from b:5672"
    assert told == [ran, f"the route from amqp:b:5672 in to out does not run, and tries again: {text}"]
    client = net.brokers["b"].client()
    client.receiver("in", credit=3)
    net.pass_time(12)
    client.connection.close()
    net.settle()
    assert (net.bodies("a", "out"), net.item("a")["lastError"]) == (["new"], "")


def test_what_comes_before_a_message_that_came_back_is_moved(net: Network) -> None:
    for n, been in enumerate((["c"], "no list", ["a", "b"], [])):
        net.send("a", "out", n, annotations={HOPS: been})
    net.route("b", "a", "in", "out")
    net.pass_time(3)
    assert (net.bodies("b", "in"), net.bodies("a", "out")) == ([0, 1], [2, 3])


def test_a_route_from_a_queue_to_itself_moves_nothing(net: Network) -> None:
    net.send("a", "out", *range(3))
    net.route("a", "a", "out", "out")
    net.pass_time(2)
    assert net.bodies("a", "out") == [0, 1, 2]
    assert net.item("a")["lastError"] == "queue 'out' is the source and the destination of this route: delete the route"
    assert net.brokers["a"].lead.ledger.state.definitions.origins == {}


def test_routes_within_a_broker_move_a_message_from_queue_to_queue_and_not_round(net: Network) -> None:
    for queue in ("1", "2"):
        net.brokers["b"].queue(queue)
    for into, source in (("1", "in"), ("2", "1"), ("in", "2")):
        net.route("b", "b", into, source)
    net.send("b", "in", "m")
    net.pass_time(2)
    assert [net.bodies("b", queue) for queue in ("in", "1", "2")] == [["m"], [], []], "it has been on each, and stays"
    assert [item["taken"] for item in net.ask("b", "QUERY", "route")[2]["items"]] == [1, 1, 1]


def test_a_route_of_an_exchange_makes_its_queue_and_deletes_it_at_its_end(net: Network) -> None:
    net.ask("b", "CREATE", "binding", exchange="amq.direct", queue="in", key="k")
    net.route("b", "a", "amq.direct", "k", "exchange")
    net.away.add("a")
    net.cut()
    net.pass_time(1)
    for subject in ("k", "other"):
        net.send("a", "amq.direct", subject, subject=subject)
    assert "no primary among a" in net.item("b")["lastError"]
    net.away.clear()
    net.pass_time(2)
    assert net.bodies("b", "in") == ["k"], "it was kept at the source"
    queue = net.item("b")["queue"]
    assert net.ask("a", "QUERY", "queue", queue)[2]["items"][0]["messages"] == 0
    asked: dict[str, Any] = {"kind": "exchange", "source": "a", "exchange": "amq.direct", "key": "k"}
    net.away.add("a")
    net.cut()
    assert net.ask("b", "DELETE", "route", **asked)[0] == 202
    assert net.item("b")["ending"] is True
    status, text, _ = net.ask("b", "CREATE", "route", **asked)
    assert (status, "is being deleted" in text) == (409, True)
    assert "exists already" not in text, "qpid-route --quiet counts this as made"
    net.away.clear()
    net.pass_time(2)
    assert net.ask("b", "QUERY", "route")[2]["items"] == []
    assert net.ask("b", "CREATE", "route", **asked)[0] == 201
    assert net.ask("b", "DELETE", "route", **asked)[0] == 202
    net.pass_time(2)
    assert net.ask("a", "QUERY", "queue", queue)[0] == 404
    assert net.brokers["b"].lead.ledger.state.definitions.origins == {}


@pytest.mark.parametrize(
    "policy",
    [
        {"autoDelete": True},
        {"arguments": {"qpid.auto_delete_timeout": 1}},
        {"exclusive": True, "arguments": {"qpid.priorities": 2}},
    ],
    ids=["with its last consumer", "after a second without one", "of another kind"],
)
def test_what_waits_on_the_queue_of_a_route_stays_there_whatever_the_policy_for_all_queues_says(
    net: Network, policy: dict[str, Any]
) -> None:
    arguments = {"qpid.max_count": 500} | policy.get("arguments", {})
    assert net.ask("a", "CREATE", "QueuePolicy", "*", **policy | {"arguments": arguments, "byUse": False})[0] == 201
    net.ask("b", "CREATE", "binding", exchange="amq.topic", queue="in", key="#")
    net.route("b", "a", "amq.topic", "#", "exchange")
    queue = net.item("b")["queue"]
    net.away.add("a")
    net.cut()
    net.send("a", "amq.topic", "waits", subject="x")
    net.pass_time(5)
    net.away.clear()
    net.pass_time(12)
    assert net.bodies("b", "in") == ["waits"]
    (made,) = net.ask("a", "QUERY", "queue", queue)[2]["items"]
    assert (made["autoDelete"], made["exclusive"], made["arguments"]) == (False, False, {"qpid.max_count": 500})


def test_a_route_of_an_exchange_that_was_deleted_and_created_again_is_bound_to_the_new_one(net: Network) -> None:
    for at in "ab":
        net.ask(at, "CREATE", "exchange", "news", exchangeType="topic")
    net.ask("b", "CREATE", "binding", exchange="news", queue="in", key="#")
    net.route("b", "a", "news", "#", "exchange")
    net.send("a", "news", "before", subject="x")
    net.ask("a", "DELETE", "exchange", "news")
    net.pass_time(12)
    assert "there is no exchange named 'news'" in net.item("b")["lastError"]
    net.ask("a", "CREATE", "exchange", "news", exchangeType="topic")
    net.pass_time(12)
    net.send("a", "news", "after", subject="x")
    assert (net.bodies("b", "in"), net.item("b")["state"]) == (["before", "after"], "Operational")
    dialed = net.dialed
    net.ask("a", "DELETE", "exchange", "news")
    net.ask("a", "CREATE", "exchange", "news", exchangeType="topic")
    with log_lines("audit") as lines:
        net.pass_time(25)
    net.send("a", "news", "last", subject="x")
    assert (net.bodies("b", "in"), net.dialed) == (["before", "after", "last"], dialed)
    assert len(lines) == 1, "it is bound once"


def test_a_route_of_an_exchange_with_as_many_bindings_as_it_may_have_does_not_run(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_BINDINGS_PER_EXCHANGE", 1)
    net.ask("a", "CREATE", "binding", exchange="amq.topic", queue="out", key="mine")
    net.route("b", "a", "amq.topic", "#", "exchange")
    item = net.item("b")
    assert (item["state"], "has 1 bindings, its limit" in item["lastError"]) == ("Waiting", True)
    net.ask("a", "DELETE", "binding", exchange="amq.topic", queue="out", key="mine")
    net.pass_time(12)
    net.cut()
    net.pass_time(1)
    assert net.item("b")["state"] == "Operational", "its own binding is the one that there may be"


@pytest.mark.parametrize("kind, key", [("exchange", "#"), ("dynamic", "")])
def test_a_route_whose_queue_its_source_does_not_make_says_why(
    net: Network, kind: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_QUEUES", 1)
    net.ask("b", "CREATE", "route", kind=kind, source="a", exchange="amq.topic", key=key)
    net.pass_time(1)
    assert "this broker has 1 queues, its limit" in net.item("b")["lastError"]


def test_a_route_stops_where_there_is_no_room_and_goes_on_when_there_is(net: Network) -> None:
    net.ask("b", "CREATE", "queue", "small", arguments={"qpid.max_count": 3, "qpid.flow_stop_count": 0})
    net.send("a", "out", *range(5))
    net.route("b", "a", "small", "out")
    assert net.bodies("b", "small") == [0, 1, 2]
    assert "would pass its limit of 3 messages" in net.item("b")["lastError"]
    client = net.brokers["b"].client()
    taken = client.receiver("small")
    net.pass_time(12)
    assert client.bodies(taken) == [0, 1, 2, 3, 4]
    assert (net.item("b")["lastError"], net.brokers["a"].depth("out")) == ("", 0)
    client.connection.close()


def test_a_route_whose_destination_queue_is_deleted_says_so_and_goes_on_when_there_is_one_again(net: Network) -> None:
    net.route("b", "a", "in", "out")
    net.send("a", "out", 1)
    with log_lines("broker.routes.runner") as told:
        net.ask("b", "DELETE", "queue", "in")
        net.pass_time(12)
    why = "there is no exchange and no queue named 'in' any more"
    assert (net.item("b")["state"], net.item("b")["taken"], net.item("b")["lastError"]) == ("Waiting", 1, why)
    assert "the queue 'in' was deleted" in told[0]
    net.brokers["b"].queue("in")
    net.send("a", "out", 2)
    net.pass_time(12)
    assert (net.bodies("b", "in"), net.brokers["a"].depth("out")) == ([2], 0)
    assert (net.item("b")["state"], net.item("b")["lastError"]) == ("Operational", "")


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_route_stops_while_its_destination_queue_is_being_deleted_and_the_message_stays(net: Network, size: int) -> None:
    """Breaks when the message is put behind the end of the queue: it leaves the source, and nobody has it."""
    net.route("b", "a", "in", "out")
    there = net.brokers["b"]
    there.begin_deletion("in", ifEmpty=True)
    net.send("a", "out", "x" * size)
    assert net.item("b")["lastError"] in ("queue 'in' is being deleted", "nothing large is taken now")
    there.commit_all()
    net.pass_time(12)
    assert net.item("b")["lastError"] == "there is no exchange and no queue named 'in' any more"
    assert (net.item("b")["taken"], net.brokers["a"].depth("out")) == (0, 1)
    there.queue("in")
    net.pass_time(12)
    assert (net.bodies("b", "in"), net.brokers["a"].depth("out")) == (["x" * size], 0)


def test_a_route_to_an_exchange_goes_on_while_a_queue_there_is_being_deleted(net: Network) -> None:
    for queue in ("stays", "goes"):
        net.ask("b", "CREATE", "queue", queue)
        net.ask("b", "CREATE", "binding", exchange="amq.fanout", queue=queue, key="")
    net.route("b", "a", "amq.fanout", "out")
    there = net.brokers["b"]
    there.begin_deletion("goes")
    net.send("a", "out", 1)
    there.commit_all()
    net.pass_time(0.5)
    assert (net.bodies("b", "stays"), net.item("b")["lastError"], net.brokers["a"].depth("out")) == ([1], "", 0)


@pytest.mark.parametrize("size", [10, LARGE])
def test_an_exchange_counts_what_a_route_has_put_through_it_and_not_what_stays_at_the_source(net: Network, size: int) -> None:
    net.ask("b", "CREATE", "queue", "small", arguments={"qpid.max_count": 3, "qpid.flow_stop_count": 0})
    net.ask("b", "CREATE", "binding", exchange="amq.topic", queue="small", key="x")
    net.send("a", "out", "dropped".ljust(size), subject="y")
    net.send("a", "out", *(f"{n}".ljust(size) for n in range(5)), subject="x")
    net.route("b", "a", "amq.topic", "out")
    net.pass_time(12)
    assert "would pass its limit" in net.item("b")["lastError"]

    def counts() -> tuple[int, int, int]:
        (item,) = net.ask("b", "QUERY", "exchange", name="amq.topic")[2]["items"]
        return item["messagesIn"], item["messagesRouted"], item["messagesDropped"]

    assert counts() == (4, 3, 1)
    client = net.brokers["b"].client()
    client.receiver("small")
    net.pass_time(12)
    assert counts() == (6, 5, 1)
    client.connection.close()


def test_a_route_that_is_older_than_its_destination_queue_goes_on_when_that_has_room_again(net: Network) -> None:
    net.ask("b", "CREATE", "exchange", "to", exchangeType="fanout")
    net.route("b", "a", "to", "out")
    net.ask("b", "DELETE", "exchange", "to")
    net.ask("b", "CREATE", "queue", "to", arguments={"qpid.flow_stop_count": 3, "qpid.flow_resume_count": 1})
    net.send("a", "out", *range(4))
    net.send("a", "out", *range(4, 1500))
    assert 3 < net.brokers["b"].depth("to") < 1500, "the route gets no credit"
    client = net.brokers["b"].client()
    taken = client.receiver("to", credit=2000)
    net.pass_time(1)
    assert client.bodies(taken) == list(range(1500))
    assert net.dialed == 1, "its connection stayed"
    client.connection.close()


def test_a_route_that_waits_for_room_in_its_queue_goes_on_towards_an_exchange_that_has_got_the_same_name(net: Network) -> None:
    net.ask("b", "CREATE", "queue", "to", arguments={"qpid.flow_stop_count": 3, "qpid.flow_resume_count": 1})
    net.route("b", "a", "to", "out")
    net.send("a", "out", *range(4))
    net.send("a", "out", *range(4, 1500))
    waiting = net.brokers["b"].depth("to")
    assert 3 < waiting < 1500, "the route gets no credit"
    net.ask("b", "CREATE", "exchange", "to", exchangeType="fanout")
    net.ask("b", "CREATE", "binding", exchange="to", queue="in", key="")
    client = net.brokers["b"].client()
    taken = client.receiver("to", credit=2000)
    net.pass_time(1)
    assert client.bodies(taken) == list(range(waiting))
    assert net.bodies("b", "in") == list(range(waiting, 1500))
    assert (net.item("b")["state"], net.item("b")["lastError"]) == ("Operational", "")
    client.connection.close()


def test_a_queue_of_the_same_name_is_another_one(net: Network) -> None:
    """Its sequences begin anew: what was held of the one before would be taken for it."""
    net.send("a", "out", *range(3))
    net.brokers["a"].lead.automatic = False
    net.route("b", "a", "in", "out")
    net.brokers["a"].lead.commit()
    net.brokers["a"].lead.automatic = True
    net.ask("a", "DELETE", "queue", "out")
    net.ask("a", "CREATE", "queue", "out")
    net.send("a", "out", "new")
    net.pass_time(3)
    assert net.bodies("b", "in") == [0, 1, 2, "new"]
    assert len(net.brokers["b"].lead.ledger.state.definitions.origins) == 1


def test_what_two_routes_get_in_turn_is_forgotten_as_fast_as_it_comes(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets runs of one message. Breaks when more runs come in a second than are looked at: at their limit a route stops, and
    the runs that it could forget keep it from taking anything ever again."""
    monkeypatch.setattr(routes, "LOOK_RUNS", 10)
    net.add("c").queue("in")
    for at in ("b", "c"):
        net.route(at, "a", "in", "out")
    client = net.brokers["a"].client()
    link = client.sender("out")
    for number in range(60):
        client.send(link, number)
        net.settle()
    client.connection.close()
    net.pass_time(0.5, 0.05)
    (runs,) = net.brokers["b"].lead.ledger.state.held.values()
    assert (runs.n_runs, net.brokers["a"].depth("out")) == (30, 0)
    net.pass_time(1.5, 0.05)
    assert (held(net), held(net, "c")) == (0, 0)


def test_a_primary_of_the_source_that_was_deposed_gives_nothing(net: Network) -> None:
    net.route("b", "a", "in", "out")
    (origin,) = net.brokers["b"].lead.ledger.state.definitions.origins.values()
    net.brokers["b"].broker.lead.change(type(origin)(**{**_fields(origin), "source_epoch": 7}), lambda reason: None)
    net.settle()
    net.cut()
    net.send("a", "out", 1)
    net.pass_time(1)
    assert net.item("b")["lastError"] == "the source's primary is of epoch 0, and there was one of epoch 7"
    assert net.brokers["a"].depth("out") == 1


def _fields(command: Any) -> dict[str, Any]:
    return {name: getattr(command, name) for name in command.__struct_fields__}


def test_queues_of_a_cluster_that_are_not_replicated_get_what_an_exchange_routes_to_them_too(net: Network) -> None:
    cluster = net.add("p", clustered=True, default_level="all")
    for queue, level in (("in", "all"), ("two", "all"), ("own", "none")):
        cluster.queue(queue, replicate=level)
        net.ask("p", "CREATE", "binding", exchange="amq.fanout", queue=queue, key="")
    net.route("p", "a", "amq.fanout", "out")
    net.send("a", "out", *range(3))
    assert [net.bodies("p", queue) for queue in ("in", "two", "own")] == [[0, 1, 2]] * 3
    assert net.brokers["a"].depth("out") == 0
    assert cluster.broker.ledgers["local"].state.held == {}


@pytest.mark.parametrize("size", [10, LARGE])
def test_what_the_local_log_has_not_got_before_a_crash_comes_to_its_queue_again(net: Network, size: int) -> None:
    """Breaks when a message counts as put on the queues of both logs because one of them remembers its sequence."""
    cluster = net.add("p", clustered=True, default_level="all")
    for queue, level in (("in", "all"), ("own", "configuration")):
        cluster.queue(queue, replicate=level)
        net.ask("p", "CREATE", "binding", exchange="amq.fanout", queue=queue, key="")
    net.route("p", "a", "amq.fanout", "out")
    local = cluster.logs["local"]
    local.automatic = False
    net.send("a", "out", "m".ljust(size))
    assert (cluster.depth("in"), cluster.depth("own"), net.brokers["a"].depth("out")) == (1, 0, 1)
    for log in (cluster.lead, local):
        log.become("ready")
    local.automatic = True
    for log, state in ((local, "standalone"), (cluster.lead, "active")):
        log.become(state)
    net.pass_time(1)
    assert (cluster.depth("in"), cluster.depth("own"), net.brokers["a"].depth("out")) == (1, 1, 0)
    assert [log.ledger.state.parts.orphans() for log in (cluster.lead, local)] == [[], []]


@pytest.mark.parametrize("together", [True, False])
def test_the_last_copy_of_a_message_says_that_it_has_come(net: Network, together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when copies that do not fit into one batch are in one, which no link between brokers passes; or when the first one
    says so, and the others are left out after a failover between them."""
    target = net.brokers["b"]
    for queue in ("one", "two", "three"):
        target.queue(queue)
        net.ask("b", "CREATE", "binding", exchange="amq.fanout", queue=queue, key="")
    net.route("b", "a", "amq.fanout", "out")
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", (4 if together else 3) * limits.BATCH_TARGET_BYTES)
    before = len(target.lead.committed)
    net.send("a", "out", bytes(limits.BATCH_TARGET_BYTES + 1))
    batches = [list(Batch.parse(data).runs) for data in target.lead.committed[before:]]
    copies = [sum(run.kind is Kind.ENQUEUE for run in runs) for runs in batches]
    held = [any(run.kind is Kind.HELD for run in runs) for runs in batches]
    assert (copies[:3], held[:3]) == (([3], [True]) if together else ([1, 1, 1], [False, False, True]))
    assert [len(net.bodies("b", queue)) for queue in ("one", "two", "three")] == [1, 1, 1]


@pytest.mark.parametrize(
    "queues", [{"in": "all"}, {"in": "all", "two": "all"}, {"own": "none"}], ids=["one queue", "two queues", "the local log"]
)
def test_a_delay_that_the_source_has_applied_is_not_applied_again_and_the_message_does_not_expire(
    net: Network, queues: dict[str, str]
) -> None:
    cluster = net.add("p", clustered=True, default_level="all")
    for queue, level in queues.items():
        cluster.queue(queue, replicate=level)
        net.ask("p", "CREATE", "binding", exchange="amq.fanout", queue=queue, key="")
    net.route("p", "a", "amq.fanout", "out")
    net.send("a", "out", "m", ttl=40.0, annotations={proton.symbol("x-opt-delivery-delay"): 30_000})
    net.pass_time(29)
    assert net.brokers["a"].depth("out") == 1, "it is delayed there"
    net.pass_time(2)
    assert [net.bodies("p", queue) for queue in queues] == [["m"]] * len(queues)


def test_a_broker_that_leaves_fetches_nothing_more(net: Network) -> None:
    net.route("b", "a", "in", "out")
    net.ask("b", "LEAVE", "drain", to=["c:5672"])
    net.send("a", "out", "stays")
    net.pass_time(2)
    assert (net.brokers["a"].depth("out"), net.brokers["b"].depth("in")) == (1, 0)
    status, text, _ = net.ask("b", "CREATE", "route", kind="queue", source="a", exchange="in", key="other")
    assert (status, "leaves" in text) == (409, True)
    net.brokers["b"].broker.lead.change(Setting(key=LEAVING, value={}), lambda reason: None)
    net.pass_time(1)
    assert net.bodies("b", "in") == ["stays"], "it stays after all"


def test_what_a_route_has_put_when_it_is_deleted_is_settled_at_its_source(net: Network) -> None:
    """Or the source would give it to others, too."""
    target = net.brokers["b"].lead
    net.route("b", "a", "in", "out")
    client = net.brokers["b"].client(ADMIN)
    reply = client.receiver(None, dynamic=True)
    link = client.sender("$management")
    target.automatic = False
    net.send("a", "out", *range(3))
    names = {"kind": "queue", "source": "a", "exchange": "in", "key": "out"}
    client.send_encoded(link, request("DELETE", "route", "", reply.remote_source.address, 1, names))
    net.settle()
    net.send("a", "out", "late")
    target.automatic = True
    while target.waiting:
        target.commit()
        net.settle()
    net.pass_time(0.5)
    assert [answer.properties["statusCode"] for _, answer in client.received[reply.name]] == [204]
    assert net.bodies("b", "in") == [0, 1, 2]
    assert net.bodies("a", "out") == ["late"]
    assert held(net) == 0


def test_what_has_come_to_a_broker_that_leaves_is_settled_at_its_source(net: Network) -> None:
    """Or whoever takes over from it would fetch it again."""
    target = net.brokers["b"].lead
    net.route("b", "a", "in", "out")
    target.automatic = False
    net.send("a", "out", *range(3))
    target.ledger.change(Setting(key=LEAVING, value={"drain": "d"}), lambda reason: None)
    net.settle()
    target.automatic = True
    target.commit()
    net.pass_time(0.5)
    net.send("a", "out", "stays")
    assert (net.brokers["b"].depth("in"), net.bodies("a", "out")) == (3, ["stays"])


@pytest.mark.parametrize(
    "body, status, says",
    [
        ({"kind": "other"}, 501, "it has queue, exchange, dynamic"),
        ({"exchange": "none"}, 404, "there is no queue and no exchange named 'none'"),
        ({"kind": "exchange"}, 404, "there is no exchange named 'in'"),
        ({"source": "ann/secret@a"}, 400, "the file of --route-passwords"),
        ({"source": "a:x"}, 400, "not a port"),
        ({"mechanism": "GSSAPI"}, 400, "not a SASL mechanism"),
        ({"exclude": "x"}, 400, "list of up to"),
        ({"key": ""}, 400, "`key` must be a text"),
        ({"tag": 1}, 400, "`tag` must be a text"),
    ],
)
def test_a_route_that_cannot_be_is_refused(net: Network, body: dict[str, Any], status: int, says: str) -> None:
    found, text, _ = net.ask("b", "CREATE", "route", **{"kind": "queue", "source": "a", "exchange": "in", "key": "out"} | body)
    assert (found, says in text) == (status, True), text


def test_a_route_is_there_once_and_goes_at_once_with_its_queue_at_the_source_left_alone(net: Network) -> None:
    asked: dict[str, Any] = {"kind": "queue", "source": "a", "exchange": "in", "key": "out"}
    net.route("b", "a", "in", "out")
    assert net.ask("b", "CREATE", "route", **asked)[:2] == (409, "this route exists already")
    assert net.ask("b", "DELETE", "route", **asked)[0] == 204
    assert net.ask("b", "DELETE", "route", **asked)[0] == 404
    assert net.ask("b", "JUGGLE", "route")[0] == 501
    net.send("a", "out", 1)
    assert net.brokers["a"].depth("out") == 1


def test_a_cluster_that_is_not_upgraded_takes_no_routes() -> None:
    with network() as net:
        net.add("p", clustered=True, default_level="all", machine_version=5)
        status, text, _ = net.ask("p", "CREATE", "route")
        assert (status, "a route needs machine version 6" in text) == (409, True)


def test_a_route_owns_its_groups_of_messages_whatever_the_broker_that_runs_it_calls_its_link(net: Network) -> None:
    """Breaks when the messages of a route wait for the time of its owner after each failover of its target."""
    net.brokers["a"].queue("groups", arguments={"qpid.group_header_key": "g", "qpid.group_owner_timeout": 600})
    net.send("a", "groups", "x1", "x2", properties={"g": "x"})
    net.send("a", "groups", "y1", properties={"g": "y"})
    places = [net.ask("a", "FIND", "sequence", queue="groups", taker=taker)[2]["address"] for taker in ("t", "u")]
    clients = [net.brokers["a"].client(ADMIN, container="route-1") for _ in places]
    links = [client.receiver(place, credit=1, name="from-1") for client, place in zip(clients, places, strict=True)]
    assert [client.bodies(link) for client, link in zip(clients, links, strict=True)] == [["x1"], ["y1"]]
    assert [condition(link) for link in links] == ["", ""], "another route's link of the same name is another owner"
    clients[0].lose()
    again = net.brokers["a"].client(ADMIN, container="route-2")
    assert again.bodies(again.receiver(places[0], name="from-1"))[-1] == "x2"


def test_whoever_asks_for_sequences_is_told_what_is_wrong(net: Network) -> None:
    found = net.ask("a", "FIND", "sequence", queue="out", taker="t")[2]
    here = {"store": found["store"], "queue": found["queue"]}
    net.send("a", "out", *range(4))
    assert net.ask("a", "LEFT", "sequence", **here, runs=[2, 2, 9, 5])[2] == {"runs": [2, 2]}
    for body, status in (
        (here | {"runs": [1]}, 400),
        (here | {"runs": [1 << 60, 1]}, 400),
        (here | {"runs": [1, 1] * 5001}, 400),
        ({"store": "x", "queue": found["queue"], "runs": []}, 404),
    ):
        assert net.ask("a", "LEFT", "sequence", **body)[0] == status, body
    assert net.ask("a", "FIND", "sequence", queue="none", taker="t")[0] == 404
    assert net.ask("a", "FIND", "sequence", queue="out", taker="a/b")[0] == 400
    assert net.ask("a", "JUGGLE", "sequence")[0] == 501
    client = net.brokers["a"].client(ADMIN)
    first = client.receiver(found["address"])
    assert _tags(client, first) == [number.to_bytes(8, "big") for number in range(1, 5)]
    client.receiver(found["address"], credit=0)
    assert condition(first) == "amqp:link:stolen"
    assert condition(client.receiver("$sequences/x/y/z")) == "amqp:not-found"
    assert condition(client.receiver(found["address"], presettled=True)) == "amqp:invalid-field"
    client.connection.close()


def _tags(client: Any, link: Any) -> list[bytes]:
    from cproton_ffi import ffi, lib

    tags = [lib.pn_delivery_tag(delivery._impl) for delivery, _ in client.received[link.name]]
    return [bytes(ffi.buffer(tag.start, tag.size)) for tag in tags]
