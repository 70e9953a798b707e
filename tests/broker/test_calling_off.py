"""A drain that is called off: what the target has is settled at the source, and the source serves the rest."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from tests.broker.clients import ACCEPTED, ADMIN, Bench, bench, condition, request, statuses
from tests.broker.drain_bench import DRAIN, QUEUE, STORE, Taking
from tests.broker.test_dead_letters import letters_of, reasons
from tests.broker.test_departure import ask, leave, left, source
from tests.broker.test_expiry import clocked

LARGE = limits.LARGE_PARTS * 16 * 1024 + 1


def filled(b: Bench, *bodies: Any, **attributes: Any) -> dict[str, Any]:
    """A broker with messages on its queue, that has begun to leave. Returns what a request about its drain names."""
    b.queue("q", **attributes)
    client = b.client()
    client.send(client.sender("q"), *bodies)
    return {"drain": leave(b)["drain"], "queue": b.broker.nodes.queues["q"].uuid}


def served(b: Bench) -> list[Any]:
    """What a client gets."""
    client = b.client()
    return client.bodies(client.receiver("q"))


def test_a_rejected_message_that_was_given_back_for_the_drain_after_its_time_expires_when_the_drain_is_cancelled() -> None:
    """Breaks when it stays on the queue until the next term, and no consumer gets it: its time has come while it was a dead
    letter that could not leave."""
    with clocked() as b:
        letters_of(b)
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), "m", ttl=5)
        b.lead.ledger.on_storage_low("the disk is nearly full", 0)
        receiver = client.receiver("q", credit=1)
        client.give(client.received[receiver.name][0][0], proton.Delivery.REJECTED)
        b.pass_time(7)
        drain = leave(b)["drain"]
        b.pass_time(3)
        assert (b.depth("q"), b.depth("dead")) == (1, 0)
        assert [ask(b, operation, drain=drain)[0] for operation in ("HALT", "REOPEN")] == [200, 200]
        b.lead.ledger.on_storage_low("")
        b.pass_time(3)
        assert (b.depth("q"), reasons(b.client())) == (0, [("m", "q", "expired")])


def test_what_the_target_holds_is_settled_and_the_rest_is_served_again_in_its_order() -> None:
    with bench() as b:
        names = filled(b, *range(6))
        drainer = b.client(ADMIN)
        drainer.auto_accept = False
        taking = drainer.receiver(source(b), credit=4)
        assert drainer.bodies(taking) == [0, 1, 2, 3]
        drainer.give(drainer.received[taking.name][1][0], proton.Delivery.ACCEPTED)
        assert ask(b, "HALT", **names)[0] == 200
        assert condition(taking) == condition(drainer.receiver(source(b))) == "amqp:link:detach-forced"
        runs = [1, 3, 5, 40]  # the target has 0, 1 and 2, and has been sent what does not exist here
        assert [ask(b, "SETTLE", **names, runs=runs[:2])[0] for _ in range(2)] == [200, 200]
        assert left(b)["messages"] == 3
        assert b.client().lost
        assert ask(b, "REOPEN", **names)[0] == 200
        assert served(b) == [3, 4, 5]
        again = ask(b, "REOPEN", **names)
        assert (again[0], again[1], again[2]["leaving"], again[2]["halted"]) == (200, "it does not leave", False, False)


def test_a_drain_that_goes_on_is_not_called_off_and_neither_is_one_of_another_name() -> None:
    with bench() as b:
        names = filled(b, 1)
        for operation in ("SETTLE", "REOPEN"):
            status, text, _ = ask(b, operation, **names, runs=[1, 1])
            assert (status, text) == (409, "the drain of this broker is running: ask for HALT first")
        assert ask(b, "HALT", drain="another")[0] == 409
        assert ask(b, "HALT", **names)[2]["halted"]
        assert not leave(b)["halted"], "who asks last is heeded"
        assert ask(b, "REOPEN", **names)[0] == 409
        drainer = b.client(ADMIN)
        assert drainer.bodies(drainer.receiver(source(b))) == [1]


@pytest.mark.parametrize("runs", [[1], ["1", 2], [-1, 1], [1, 50_001], [1, 1] * 5001, [1 << 60, 1]])
def test_runs_that_cannot_be_are_refused(runs: list[Any]) -> None:
    with bench() as b:
        names = filled(b, 1)
        ask(b, "HALT", **names)
        assert ask(b, "SETTLE", **names, runs=runs)[0] == 400


def test_what_is_settled_goes_with_its_level_and_its_parts() -> None:
    with bench(part_bytes=16 * 1024) as b:
        names = filled(b, "a", arguments={"qpid.priorities": 3}) | {"runs": [1, 9, (2 << 56) + 1, 1]}
        assert ask(b, "SETTLE", **names | {"queue": "gone"})[0] == 409
        ask(b, "HALT", **names)
        assert ask(b, "SETTLE", **names | {"queue": "gone"})[0] == 200
        assert ask(b, "SETTLE", **names)[0] == 200
        assert left(b)["messages"] <= 1


def test_what_another_broker_of_the_cluster_has_is_not_settled_here() -> None:
    """Its sequences are those of other messages here."""
    with bench(clustered=True, default_level="configuration", identity="s1") as b:
        b.upgraded()
        names = filled(b, *range(3)) | {"runs": [1, 2]}
        uuid = names["queue"]
        ask(b, "HALT", **names)
        for named in ({}, {"queue": f"s2.{uuid}"}, {"store": "s2"}, {"queue": "s2.gone"}):
            assert ask(b, "SETTLE", **names | named)[0] == 421
        assert left(b)["messages"] == 3
        assert ask(b, "SETTLE", **names | {"queue": f"s1.{uuid}"})[0] == 200
        assert ask(b, "SETTLE", **names | {"store": "s1", "runs": [3, 1]})[0] == 200, "an earlier release announced it"
        assert ask(b, "SETTLE", **names | {"queue": "s1.gone"})[0] == 200
        assert left(b)["messages"] == 0


def test_a_large_message_that_is_settled_leaves_no_parts() -> None:
    with bench(part_bytes=16 * 1024) as b:
        names = filled(b, "x" * LARGE)
        assert b.broker.lead.state.parts.order.depth > 1
        ask(b, "HALT", **names)
        assert ask(b, "SETTLE", **names, runs=[1, 1])[0] == 200
        b.pass_time(0.1, 0.01)
        assert (b.depth("q"), b.broker.lead.state.parts.order.depth) == (0, 0)


def test_a_new_primary_leaves_on_and_knows_of_no_halt() -> None:
    with bench(clustered=True, default_level="all") as b:
        b.upgraded()
        names = filled(b, 1)
        ask(b, "HALT", **names)
        b.lead.become("ready", "another:1")
        b.lead.become("active")
        b.settle()
        assert ask(b, "REOPEN", **names)[0] == 409
        ask(b, "HALT", **names)
        assert ask(b, "REOPEN", **names)[0] == 200
        assert served(b) == [1]


def test_a_queue_that_nobody_has_used_meanwhile_has_its_whole_time_again() -> None:
    with bench() as b:
        names = filled(b, 1, arguments={"qpid.auto_delete_timeout": 3})
        b.pass_time(10)
        ask(b, "HALT", **names)
        ask(b, "REOPEN", **names)
        b.pass_time(2)
        assert b.depth("q") == 1
        b.pass_time(2)
        assert "q" not in b.broker.nodes.queues


@pytest.mark.parametrize("consumed", [True, False])
@pytest.mark.parametrize("cut", ["HALT", "drained"])
def test_a_queue_that_lost_its_last_consumer_meanwhile_goes_when_the_drain_is_cancelled(cut: str, *, consumed: bool) -> None:
    """Breaks when nobody remembers that it was to go, or when the end of the drain's link counts as that of a consumer: then a
    queue that waits for its first consumer is deleted."""
    with bench() as b:
        b.queue("q", autoDelete=True)
        b.queue("bare", autoDelete=True)
        client = b.client()
        client.send(client.sender("q"), 1)
        if consumed:
            client.auto_accept = False
            client.receiver("q")
            client.receiver("bare")
        drain = leave(b)["drain"]
        assert ("q" in b.broker.nodes.queues, "bare" in b.broker.nodes.queues) == (True, not consumed)
        taking = b.client(ADMIN)
        taking.auto_accept = cut == "drained"
        links = [taking.receiver(source(b, name)) for name in ("q", "bare") if name in b.broker.nodes.queues]
        assert taking.bodies(links[0]) == [1]
        b.pass_time(0.1, 0.01)
        ask(b, "HALT", drain=drain)
        assert "q" in b.broker.nodes.queues
        assert ask(b, "REOPEN", drain=drain)[0] == 200
        b.settle()
        assert ("q" in b.broker.nodes.queues, "bare" in b.broker.nodes.queues) == (not consumed, not consumed)


def test_a_drain_is_released_only_if_the_target_holds_what_was_settled() -> None:
    """What is under way when the target is asked counts: it is waited for."""
    with bench() as b:
        taking = Taking(b)
        link = taking.link()
        taking.send(link, 1, 2)
        b.lead.automatic = False
        taking.send(link, 3)
        admin = b.client(ADMIN)
        reply = admin.receiver(None, dynamic=True)
        body = {"drain": DRAIN, "held": 2}
        admin.send_encoded(
            admin.sender("$management"), request("RELEASE", "drain", "", reply.remote_source.address, 1, body), settle=True
        )
        assert condition(link) == condition(taking.link()) == "amqp:not-found"
        assert taking.ask("TAKE", store="s", queue=QUEUE, into="q")[:2] == (409, f"drain {DRAIN} is cancelled")
        assert admin.received[reply.name] == []
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        ((_, answer),) = admin.received[reply.name]
        assert answer.properties["statusCode"] == 409
        assert "3 messages of drain drain-1 are held here, and not 2" in answer.properties["statusDescription"]
        again = taking.link()
        taking.send(again, 4)
        assert statuses(taking.client, again) == [ACCEPTED], "it goes on"
        assert taking.ask("ORIGINS")[2] == {"released": False, "held": 4, "queues": [QUEUE], "stores": [STORE]}
        assert [taking.ask("RELEASE", held=4)[0] for _ in range(2)] == [200, 200]
        assert taking.ask("ORIGINS")[2] == {"released": True, "held": 0, "queues": [], "stores": []}
        assert condition(taking.link()) == "amqp:not-found"
        assert taking.ask("FORGET")[0] == 200
        assert taking.ask("RELEASE", held="4")[0] == 400
        assert taking.bodies() == ["1", "2", "3", "4"]


def test_what_came_to_a_queue_that_is_gone_is_held_as_before() -> None:
    with bench() as b:
        taking = Taking(b)
        taking.send(taking.link(), 1, 2, 7)
        b.client(ADMIN).request("DELETE", "queue", "q")
        b.settle()
        assert taking.ask("HELD", queue=QUEUE)[2] == {"count": 3, "runs": [1, 2, 7, 1]}
        assert taking.ask("ORIGINS")[2]["held"] == 3
        assert taking.ask("HELD", queue="another")[0] == 404


def test_the_queues_of_a_drain_come_by_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.drains.ORIGINS", 2)
    with bench() as b:
        taking = Taking(b)
        for queue in ("b", "c", "a"):
            taking.ask("TAKE", store="s", queue=queue, into="q")
        first = taking.ask("ORIGINS")[2]
        assert (first["queues"], first["next"]) == (["a", "b"], "b")
        assert taking.ask("ORIGINS", after="b")[2]["queues"] == ["c", QUEUE]
        assert taking.ask("ORIGINS", after=QUEUE)[2]["queues"] == []
        assert first["stores"] == ["s", "s"]
