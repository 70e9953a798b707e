"""Messages of a queue as management shows them: by their sequences, whoever holds them, and without a change."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from broker.sessions import peek
from tests.broker.clients import ADMIN, Bench, bench
from tests.broker.test_acl import rules


def shown(b: Bench, **body: Any) -> dict[str, Any]:
    client = b.client(ADMIN)
    status, text, answer = client.request("PEEK", "queue", "q", body)
    assert status == 200, text
    client.connection.close()
    b.settle()
    return dict(answer)


def body_of(item: dict[str, Any]) -> Any:
    message = proton.Message()
    message.decode(bytes(item["message"]))
    return message.body


def filled(b: Bench, *bodies: Any, arguments: dict[str, Any] | None = None, **fields: Any) -> None:
    b.queue("q", arguments=arguments or {})
    client = b.client()
    client.send(client.sender("q"), *bodies, **fields)


@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["in memory", "on disk"])
def test_messages_are_shown_from_a_sequence_on_and_stay_as_they_were(memory: int) -> None:
    with bench(message_memory=memory) as b:
        filled(b, *range(5))
        first = shown(b, count=2)
        assert [(each["sequence"], each["state"], body_of(each)) for each in first["items"]] == [(1, "ready", 0), (2, "ready", 1)]
        rest = shown(b, **{"from": first["next"]})
        assert [body_of(each) for each in rest["items"]] == [2, 3, 4]
        assert "next" not in rest
        client = b.client()
        assert client.bodies(client.receiver("q")) == [0, 1, 2, 3, 4]


def test_it_says_who_holds_a_message_how_often_it_has_failed_and_that_it_waits() -> None:
    with bench() as b:
        filled(b, "a", "b")
        client = b.client()
        client.auto_accept = False
        link = client.receiver("q", credit=1)
        client.give(client.received[link.name][0][0], proton.Delivery.MODIFIED, failed=True)
        link.flow(1)
        b.settle()
        client.send(client.sender("q"), "c", annotations={proton.symbol("x-opt-delivery-delay"): 60_000})
        found = shown(b)["items"]
        assert [(each["state"], each["failures"]) for each in found] == [("acquired", 1), ("ready", 0), ("delayed", 0)]
        assert body_of(found[0]) == "a"


def test_all_levels_are_shown_and_what_is_large_without_its_bytes() -> None:
    with bench(part_bytes=16 * 1024) as b:
        filled(b, "low", priority=0, arguments={"qpid.priorities": 3})
        client = b.client()
        client.send(client.sender("q"), "high", priority=9)
        client.send(client.sender("q"), "x" * (limits.LARGE_PARTS * 16 * 1024 + 1), "y" * peek.SHOWN_BYTES, priority=4)
        found = shown(b)["items"]
        assert [each["message"] is None for each in found] == [False, True, True, False]
        assert found[1]["bytes"] > limits.LARGE_PARTS * 16 * 1024
        assert shown(b, **{"from": found[-1]["sequence"] + 1}) == {"items": []}


def test_an_answer_has_a_bound_in_messages_and_in_bytes() -> None:
    with bench() as b:
        filled(b, *range(peek.MOST + 1))
        answer = shown(b)
        assert (len(answer["items"]), answer["next"]) == (peek.MOST, peek.MOST + 1)
        client = b.client()
        client.send(client.sender("q"), *("x" * 60_000 for _ in range(9)))
        answer = shown(b, **{"from": answer["next"] + 1})
        assert 60_000 * (len(answer["items"]) - 1) < limits.PAGE_BYTES
        assert answer["next"] == answer["items"][-1]["sequence"] + 1


@pytest.mark.parametrize(
    "name, body, status",
    [("q", {"from": -1}, 400), ("q", {"from": "a"}, 400), ("q", {"count": 0}, 400), ("q", {"count": 101}, 400), ("x", {}, 404)],
)
def test_what_cannot_be_shown_is_refused(name: str, body: dict[str, Any], status: int) -> None:
    with bench() as b:
        b.queue("q")
        assert b.client(ADMIN).request("PEEK", "queue", name, body)[0] == status


def test_a_message_that_leaves_while_it_is_read_is_gone() -> None:
    with bench(message_memory=0) as b:
        filled(b, "a", "b")
        b.lead.holds_reads = True
        answers: list[dict[str, Any]] = []
        queue = b.broker.queues.at(b.broker.nodes.queues["q"])
        peek.peek(queue, 0, 2, answers.append)
        b.lead.ledger.dequeue(1, (1,))
        b.pass_time(1)
        b.lead.end_reads()
        b.settle()
        ((gone, there),) = [each["items"] for each in answers]
        assert (gone["state"], gone["message"], there["state"]) == ("gone", None, "ready")


@pytest.mark.parametrize("rule, status", [("acl deny all consume queue\n", 403), ("", 200)])
def test_who_may_not_consume_from_a_queue_may_not_look_at_its_messages(rule: str, status: int) -> None:
    with bench() as b:
        filled(b, "a")
        b.broker.enforce(rules(f"acl allow anonymous access method\n{rule}acl allow all all\n"))
        assert b.client(ADMIN).request("PEEK", "queue", "q", {})[0] == status
