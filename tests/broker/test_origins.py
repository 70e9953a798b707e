"""Messages of another store's queue are put once, whoever sends them how often."""

from __future__ import annotations

from collections import Counter
from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.origins import Traits
from broker.core.records import Batch, Kind
from broker.sessions.origins import origin_address
from tests.broker.clients import ACCEPTED, ADMIN, bench, condition, request, statuses
from tests.broker.drain_bench import DRAIN, QUEUE, STORE, Taking, body, send

LARGE = limits.LARGE_PARTS * 16 * 1024 + 1


def test_what_has_come_before_is_accepted_and_put_nowhere() -> None:
    with bench() as b:
        taking = Taking(b)
        link = taking.link()
        taking.send(link, 5, 6, 7, 9)
        taking.send(link, 6, 7, 8, 9, 10)
        assert statuses(taking.client, link) == [ACCEPTED] * 9
        assert taking.bodies() == ["5", "6", "7", "9", "8", "10"]
        assert taking.held.runs() == [(5, 6)]


def test_what_is_under_way_is_put_nowhere_either_and_accepted_when_it_is_committed() -> None:
    with bench() as b:
        taking = Taking(b)
        b.lead.automatic = False
        first, link = taking.client, taking.link()
        taking.send(link, 1, 2)
        first.lose()
        taking.client = b.client(ADMIN)
        again = taking.link()
        taking.send(again, 1, 2, 3)
        assert statuses(taking.client, again) == []
        while b.lead.waiting:
            b.lead.commit()
            b.settle()
        assert statuses(taking.client, again) == [ACCEPTED] * 3
        b.lead.automatic = True
        assert taking.bodies() == ["1", "2", "3"]


def test_what_was_put_and_never_committed_comes_again_in_the_next_term() -> None:
    with bench(clustered=True, default_level="all") as b:
        b.upgraded()
        taking = Taking(b)
        b.lead.automatic = False
        taking.send(taking.link(), 1, 2)
        b.lead.become("ready", "another:1")
        b.lead.automatic = True
        b.lead.become("active")
        b.settle()
        taking.client = b.client(ADMIN)
        again = taking.link()
        taking.send(again, 1, 2)
        assert statuses(taking.client, again) == [ACCEPTED] * 2
        assert taking.bodies() == ["1", "2"]


def test_the_next_primary_knows_what_has_come() -> None:
    with bench(clustered=True, default_level="all") as b, bench(clustered=True, state="ready", default_level="all") as other:
        b.upgraded()
        taking = Taking(b)
        taking.send(taking.link(), 1, 2, 3)
        b.lead.replayed_into(other.lead)
        other.lead.become("active")
        other.settle()
        there = object.__new__(Taking)
        there.bench, there.client = other, other.client(ADMIN)
        link = there.link()
        there.send(link, 3, 4)
        assert there.bodies() == ["1", "2", "3", "4"]


def test_each_batch_says_which_of_its_messages_are_an_origins() -> None:
    """The record and the message are of one batch, or a crash between them would lose or repeat it."""
    with bench() as b:
        taking = Taking(b)
        link, own = taking.link(), b.client()
        taking.send(link, *range(1, 50))
        own.send(own.sender("q"), "of its own client")
        counts = [Counter[Kind]() for _ in b.lead.committed]
        for data, count in zip(b.lead.committed, counts, strict=True):
            for run in Batch.parse(data).runs:
                count[run.kind] += run.count
        assert sum(count[Kind.HELD] for count in counts) == 49
        assert all(count[Kind.ENQUEUE] == count[Kind.HELD] for count in counts if count[Kind.HELD])


@pytest.mark.parametrize("arguments", [{"qpid.max_count": 4}, {"qpid.max_size": 4 * 600}])
def test_a_queue_that_is_full_takes_what_fits_and_ends_the_link_so_that_nothing_overtakes(arguments: dict[str, int]) -> None:
    with bench() as b:
        taking = Taking(b, arguments=arguments)
        link = taking.link()
        for sequence in range(1, 8):
            send(taking.client, link, sequence, body(f"{sequence}" + "x" * (500 if sequence < 5 else 1500)))
        send(taking.client, link, 8, body("8"))
        b.settle()
        assert condition(link) == "amqp:resource-limit-exceeded"
        assert taking.bodies() == ["1", "2", "3", "4"]
        assert taking.held.runs() == [(1, 4)]


@pytest.mark.parametrize(
    "arguments, stay",
    [
        ({"qpid.policy_type": "ring", "qpid.max_size": 500}, 4),
        ({"qpid.policy_type": "ring_strict", "qpid.max_count": 3}, 3),
        ({"qpid.policy_type": "ring_strict", "qpid.max_size": 500}, 4),
        ({"qpid.last_value_queue_key": "k", "qpid.max_count": 3}, 1),
    ],
)
def test_a_queue_whose_messages_make_others_leave_takes_all_of_a_queue_over_one_link(
    arguments: dict[str, Any], stay: int
) -> None:
    with bench() as b:
        taking = Taking(b, arguments=arguments)
        link = taking.link()
        for sequence in range(1, 13):
            send(taking.client, link, sequence, body(f"{sequence}" + "x" * 100))
        b.settle()
        assert condition(link) == ""
        assert taking.bodies() == [str(sequence) for sequence in range(1, 13)][-stay:]
        assert taking.held.runs() == [(1, 12)]


def test_a_strict_ring_takes_of_a_queue_what_comes_before_a_message_that_a_consumer_has() -> None:
    with bench() as b:
        taking = Taking(b, arguments={"qpid.policy_type": "ring_strict", "qpid.max_count": 4})
        taking.send(taking.link(), 1, 2)
        b.client().receiver("q", credit=2)
        consumer = b.client()
        link = taking.link()
        for sequence in range(3, 8):
            send(taking.client, link, sequence, body(f"{sequence}"))
        b.settle()
        assert condition(link) == "amqp:resource-limit-exceeded"
        assert "a consumer has acquired that" in link.remote_condition.description
        assert consumer is not None
        assert taking.held.runs() == [(1, 4)]


def test_a_large_message_that_does_not_fit_ends_the_link_and_leaves_no_parts() -> None:
    with bench(part_bytes=16 * 1024) as b:
        taking = Taking(b, arguments={"qpid.max_size": LARGE // 2})
        link = taking.link()
        taking.send(link, 1, size=LARGE)
        assert condition(link) == "amqp:resource-limit-exceeded"
        assert b.lead.ledger.state.parts.order.depth == 0
        assert taking.held.count == 0


def test_a_large_message_is_put_once_and_its_parts_go_when_it_comes_again() -> None:
    with bench(part_bytes=16 * 1024) as b:
        taking = Taking(b)
        link = taking.link()
        taking.send(link, 1, size=LARGE)
        parts = b.lead.ledger.state.parts.order.depth
        taking.send(link, 1, size=LARGE)
        taking.send(link, 2)
        assert statuses(taking.client, link) == [ACCEPTED] * 3
        assert b.depth("q") == 2
        assert b.lead.ledger.state.parts.order.depth == parts > 1
        assert taking.held.runs() == [(1, 2)]


def test_an_origin_that_an_earlier_release_announced_without_its_store_is_that_of_this_store() -> None:
    """Breaks when a drain goes on after an upgrade, and what the target has comes again."""
    with bench() as b:
        taking = Taking(b)
        taking.send(taking.link(), 1, 2)
        own, other = f"{STORE}.{QUEUE}", f"store-2.{QUEUE}"
        assert taking.ask("TAKE", store=STORE, queue=own, into="q")[2]["address"] == origin_address(DRAIN, QUEUE)
        assert taking.ask("TAKE", store="store-2", queue=other, into="q")[2]["address"] == origin_address(DRAIN, other)
        assert taking.ask("HELD", queue=own)[2]["runs"] == [1, 2]
        assert taking.ask("HELD", queue=other)[2]["runs"] == []
        assert taking.ask("ORIGINS")[2]["queues"] == [QUEUE, other]
        link = taking.client.sender(origin_address(DRAIN, other))
        taking.send(link, 1)
        assert taking.bodies() == ["1", "2", "1"], "another message has this sequence there"


def test_another_link_takes_the_place_of_the_one_before() -> None:
    with bench() as b:
        taking = Taking(b)
        first = taking.link()
        taking.send(first, 1)
        second = taking.link()
        assert condition(first) == "amqp:link:stolen"
        taking.send(second, 2)
        assert taking.bodies() == ["1", "2"]


def test_a_link_needs_an_origin_tags_and_a_peer_that_waits_for_outcomes() -> None:
    with bench() as b:
        taking = Taking(b)
        client = taking.client
        assert condition(client.sender(origin_address(DRAIN, "another"))) == "amqp:not-found"
        for presettled in (True, False):
            link = client.sender(origin_address(DRAIN, QUEUE), presettled=presettled)
            client.send(link, "its tag is not a sequence")
            assert condition(link) == "amqp:invalid-field"
        assert b.depth("q") == 0


def test_a_link_ends_with_its_queue_and_the_origin_may_come_to_another() -> None:
    with bench() as b:
        taking = Taking(b)
        link = taking.link()
        taking.send(link, 1)
        assert taking.client.request("DELETE", "queue", "q", {})[0] == 204
        assert condition(link) == "amqp:resource-deleted"
        assert condition(taking.link()) == "amqp:not-found"
        b.queue("q")
        assert taking.ask("TAKE", store=STORE, queue=QUEUE, into="q")[0] == 200
        taking.send(taking.link(), 1, 2)
        assert taking.bodies() == ["2"], "the first was on the queue before, and went with it"


@pytest.mark.parametrize("size", [0, LARGE])
def test_what_comes_while_the_queue_is_being_deleted_stays_at_the_source(size: int) -> None:
    """Breaks when it is put behind the end of the queue, and remembered: it leaves the source, and nobody has it."""
    with bench(part_bytes=16 * 1024) as b:
        taking = Taking(b)
        link = taking.link()
        b.begin_deletion("q", ifEmpty=True)
        taking.send(link, 1, size=size)
        assert (condition(link), statuses(taking.client, link)) == ("amqp:resource-limit-exceeded", [])
        b.commit_all()
        assert ("q" in b.broker.nodes.queues, taking.held.runs()) == (False, [])
        b.queue("q")
        assert taking.ask("TAKE", store=STORE, queue=QUEUE, into="q")[0] == 200
        taking.send(taking.link(), 1, size=size)
        assert (b.depth("q"), taking.held.runs()) == (1, [(1, 1)])


def test_a_bound_on_what_is_remembered_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as b:
        taking = Taking(b)
        monkeypatch.setattr(limits, "MAX_HELD_RUNS", 3)
        link = taking.link()
        for sequence in (1, 3, 5, 7):
            taking.send(link, sequence)
        assert condition(link) == "amqp:resource-limit-exceeded"
        assert taking.bodies() == ["1", "3", "5"]


def test_a_message_whose_delay_was_kept_by_its_old_broker_waits_no_second_time_and_its_life_goes_on() -> None:
    with bench() as b:
        taking = Taking(b)
        waits: Any = proton.Message(body="1", ttl=5.0, annotations={proton.symbol("x-opt-delivery-delay"): 60_000})
        own = b.client()
        own.send_encoded(own.sender("q"), waits.encode())
        assert taking.bodies() == [], "one of its own clients"
        link = taking.link()
        send(taking.client, link, 1, waits.encode())
        b.settle()
        assert taking.bodies() == ["1"]
        b.pass_time(6)
        assert taking.bodies() == []


# ---- management


def test_a_target_tells_what_it_holds_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.drains.HELD_RUNS", 2)
    with bench() as b:
        taking = Taking(b)
        taking.send(taking.link(), 1, 2, 5, 9)
        status, _, found = taking.ask("HELD", queue=QUEUE)
        assert (status, found) == (200, {"count": 4, "runs": [1, 2, 5, 1], "next": 6})
        assert taking.ask("HELD", queue=QUEUE, after=found["next"])[2] == {"count": 4, "runs": [9, 1]}


def test_a_release_and_what_forgets_it_may_be_asked_for_twice() -> None:
    with bench() as b:
        taking = Taking(b)
        link = taking.link()
        taking.send(link, 1)
        assert [taking.ask("RELEASE")[0] for _ in range(2)] == [200, 200]
        assert condition(link) == "amqp:not-found"
        assert b.lead.ledger.state.held == {}
        status, text, _ = taking.ask("TAKE", store=STORE, queue=QUEUE, into="q")
        assert (status, text) == (409, "this drain has ended: its store was released")
        assert [taking.ask("FORGET")[0] for _ in range(2)] == [200, 200]
        assert b.lead.ledger.state.definitions.released == {}


@pytest.mark.parametrize(
    "operation,asked,status,text",
    [
        ("TAKE", {"store": STORE, "queue": QUEUE, "into": "nowhere"}, 404, "there is no queue named 'nowhere'"),
        ("TAKE", {"store": "broker-1", "queue": QUEUE, "into": "q"}, 409, "this broker is the source of the drain"),
        ("TAKE", {"store": STORE, "queue": "", "into": "q"}, 400, "`queue` must be a text"),
        ("TAKE", {"store": STORE}, 400, "does not fit the operation TAKE"),
        ("HELD", {"queue": "another"}, 404, "no messages of queue another are expected"),
        ("HELD", {"queue": QUEUE, "after": -1}, 400, "`after` must be a sequence"),
        ("JUGGLE", {}, 501, "does not have the operation 'JUGGLE' on a drain"),
        ("LEAVE", {"to": []}, 400, "`to` must have the addresses"),
        ("LEAVE", {"to": ["nowhere"]}, 400, "`to` must have the addresses"),
        ("LEAVE", {"to": ["a:1"], "spread": -1}, 400, "`spread` must be a number"),
        ("RELEASED", {}, 409, "this broker is not empty"),
    ],
)
def test_what_cannot_be_is_refused_with_why(operation: str, asked: dict[str, object], status: int, text: str) -> None:
    with bench() as b:
        taking = Taking(b)
        found = taking.ask(operation, **asked)
        assert found[0] == status
        assert text in found[1]


def test_a_cluster_with_an_older_member_takes_nothing_over() -> None:
    with bench(clustered=True, default_level="all") as b:
        taking = Taking(b)
        status, text, _ = taking.ask("TAKE", store=STORE, queue=QUEUE, into="q")
        assert status == 409
        assert "a drain needs machine version 5" in text
        assert taking.ask("LEAVE", to=["a:1"])[0] == 409


def test_a_backup_says_who_is_to_be_asked() -> None:
    with bench(clustered=True, state="ready") as b:
        b.lead.become("ready", "a:1")
        assert b.client(ADMIN).request("HELD", "drain", "", {"drain": DRAIN})[:2] == (
            409,
            "this broker is ready: ask the primary, a:1",
        )


GIVEN = [
    Traits(),
    Traits(expires_ms=1 << 42),
    Traits(available_ms=1 << 41),
    Traits(failures=3),
    Traits(1 << 42, 1 << 41, 300),
    Traits(),
]


@pytest.mark.parametrize(
    "arguments", [{}, {"qpid.priorities": 4}, {"x-message-ttl": 1000}, {"qpid.policy_type": "ring", "qpid.max_count": 9}]
)
@pytest.mark.parametrize("size", [1, LARGE])
def test_what_another_store_knows_of_a_message_goes_on_with_it_whatever_the_queue_says(arguments: Any, size: int) -> None:
    """Its time to live is what is left of it, its delay goes on, and its failures count."""
    with bench(part_bytes=16 * 1024) as b:
        taking = Taking(b, arguments=arguments)
        link = taking.link()
        for sequence, traits in enumerate(GIVEN, 1):
            send(taking.client, link, sequence, body("x" * size), traits.to_bytes())
            if sequence % 2:
                b.settle()
        b.settle()
        assert statuses(taking.client, link) == [ACCEPTED] * 6
        assert taking.held.runs() == [(1, 6)]
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        found = []
        for lane in messages.order.lanes:
            for sequence, _ in lane.alive_from(0):
                times = [0 if each is None else each.at(sequence) for each in (messages.expiries, messages.delays)]
                found.append((*times, lane.delivery_count(sequence)))
        assert found == [(*traits[:2], min(traits.failures, 255)) for traits in GIVEN]


@pytest.mark.parametrize("traits", [b"x", bytes(19), bytes(21)])
def test_traits_that_are_none_ends_the_link(traits: bytes) -> None:
    with bench() as b:
        taking = Taking(b)
        link = taking.link()
        send(taking.client, link, 1, body("1"), traits)
        b.settle()
        assert condition(link) == "amqp:invalid-field"
        assert taking.bodies() == []


def test_telemetry_hears_what_a_drain_begins_has_done_and_ends_and_what_was_refused_once_each() -> None:
    with bench() as b:
        told: list[str] = []
        b.broker.drains.tell = told.append
        taking = Taking(b)
        taking.ask("TAKE", store=STORE, queue=QUEUE, into="q")
        assert taking.ask("REPORT", queue="q", moved=5)[0] == 200
        assert taking.ask("REPORT", queue="q", moved=5, stays=2, why="it is too large")[0] == 200
        assert taking.ask("REPORT", queue="q", moved="5")[0] == 400
        assert taking.ask("TAKE", store=STORE, queue=QUEUE, into="none")[0] == 404
        assert taking.ask("RELEASE")[0] == taking.ask("RELEASE")[0] == 200
        assert told == [
            f"drain {DRAIN} brings queue 'q'",
            f"drain {DRAIN}: queue 'q' is done, 5 messages have moved",
            f"drain {DRAIN}: queue 'q' is done, 5 messages have moved; 2 stay: it is too large",
            "TAKE is refused: there is no queue named 'none' for the messages",
            f"drain {DRAIN} is released",
        ]


def test_telemetry_hears_of_a_broker_that_leaves_and_is_called_off_or_empty() -> None:
    with bench() as b:
        told: list[str] = []
        b.broker.drains.tell = told.append
        client = b.client(ADMIN)
        drain = client.request("LEAVE", "drain", "", {"to": ["there:5672"]})[2]["drain"]
        for operation in ("LEAVE", "HALT", "REOPEN", "LEAVE", "RELEASED", "RELEASED"):
            assert client.request(operation, "drain", "", {"to": ["there:5672"], "drain": drain})[0] == 200, operation
        assert [text.replace(drain, "D") for text in told[:2]] == [
            "drain D of this broker begins, to there:5672",
            "drain D is cancelled",
        ]
        assert [text.partition(" has ended: ")[2] for text in told[3:]] == ["this broker is empty"]


def test_a_queue_of_which_nothing_has_come_is_declined_for_good_and_one_that_has_begun_to_come_is_not() -> None:
    with bench(clustered=True, default_level="all") as b:
        b.upgraded()
        taking = Taking(b)
        link = taking.link()
        assert taking.ask("DECLINE", store=STORE, queue=QUEUE)[0] == 200
        assert condition(link) == "amqp:not-found"
        assert condition(taking.link()) == "amqp:not-found"
        for _ in range(2):
            status, text, _ = taking.ask("TAKE", store=STORE, queue=QUEUE, into="q")
            assert (status, "for another target" in text) == (409, True)
            assert taking.ask("DECLINE", store=STORE, queue=QUEUE)[0] == 200, "again, without harm"
            b.lead.become("ready", "another:1")
            b.lead.become("active")
            b.settle()
        taking.client = b.client(ADMIN)
        assert taking.ask("TAKE", store=STORE, queue="another", into="q")[0] == 200
        taking.send(taking.client.sender(origin_address(DRAIN, "another")), 1)
        status, text, _ = taking.ask("DECLINE", store=STORE, queue="another")
        assert (status, text.partition(":")[0]) == (409, "1 messages of queue another have come")
        taking.send(taking.client.sender(origin_address(DRAIN, "another")), 2)
        assert taking.bodies() == ["1", "2"], "it goes on"


def test_what_is_under_way_when_a_queue_is_declined_has_come() -> None:
    with bench() as b:
        taking = Taking(b)
        b.lead.automatic = False
        taking.send(taking.link(), 1)
        admin = b.client(ADMIN)
        reply = admin.receiver(None, dynamic=True)
        asked = {"drain": DRAIN, "store": STORE, "queue": QUEUE}
        admin.send_encoded(
            admin.sender("$management"), request("DECLINE", "drain", "", reply.remote_source.address, 1, asked), settle=True
        )
        assert (taking.held.count, admin.received[reply.name]) == (0, []), "it is not committed"
        assert condition(taking.link()) == "amqp:not-found"
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        ((_, answer),) = admin.received[reply.name]
        assert answer.properties["statusCode"] == 409


def test_a_queue_is_assigned_to_another_target_only_from_the_one_that_has_it() -> None:
    with bench() as b:
        client = b.client(ADMIN)
        b.queue("q")
        asked = {"to": ["a:1", "b:1", "c:1"], "sizes": [1, 1, 1], "queues": {}}
        drain = client.request("LEAVE", "drain", "", asked)[2]["drain"]

        def assign(was: int, at: int, **more: Any) -> tuple[int, Any]:
            status, _, found = client.request("ASSIGN", "drain", "", {"drain": drain, "queue": "u", "was": was, "at": at} | more)
            return status, (found or {}).get("queues")

        assert assign(0, 2) == (200, {"u": 2})
        assert assign(0, 2) == (200, {"u": 2}), "again, without harm"
        assert assign(0, 1)[0] == 409, "somebody who was frozen meanwhile"
        assert assign(2, 3)[0] == assign(2, 1, drain="another")[0] == 409
        assert assign(2, -1)[0] == 400
        assert assign(2, 0) == (200, {})
