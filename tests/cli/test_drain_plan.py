"""What of a broker that leaves is to be made on the target, and what will not fit there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cli.drain.plan import Inventory, compare, part, share_out


def queue(name: str = "q", **more: Any) -> dict[str, Any]:
    item = {"name": name, "durable": False, "autoDelete": False, "exclusive": False, "replicate": "all"}
    return item | {"arguments": {}, "alternateExchange": ""} | more


def exchange(name: str, **more: Any) -> dict[str, Any]:
    item = {"name": name, "exchangeType": "fanout", "durable": False, "replicate": "all", "arguments": {}}
    return item | {"alternateExchange": ""} | more


def having(*items: dict[str, Any], clustered: bool = False) -> Inventory:
    queues = [each for each in items if "autoDelete" in each]
    exchanges = [each for each in items if "exchangeType" in each]
    return Inventory(queues, exchanges, [each for each in items if "key" in each], clustered)


def test_a_queue_that_is_not_there_is_made_alike_and_its_level_is_asked_for_only_from_cluster_to_cluster() -> None:
    source = queue(durable=True, arguments={"qpid.priorities": 3, "qpid.replicate": "all"}, alternateExchange="dead")
    body = {"durable": True, "autoDelete": False, "exclusive": False, "arguments": {"qpid.priorities": 3}}
    body |= {"alternateExchange": "dead"}
    assert compare(having(source), having()).creates == [("queue", "q", body)]
    found = compare(having(source, clustered=True), having(clustered=True))
    assert found.creates == [("queue", "q", body | {"replicate": "all"})]
    assert found.problems == []


@pytest.mark.parametrize(
    "source,target,why",
    [
        (queue(), queue(arguments={"qpid.max_count": 5}), "its argument qpid.max_count is missing, and the target's 5"),
        (queue(durable=True), queue(), "durable is True, and the target's False"),
        (queue(alternateExchange="x"), queue(), "alternateExchange is x, and the target's "),
        (queue(), queue(replicate="configuration"), "its level of replication is all, and the target's configuration"),
        (queue(replicate="none"), queue(), ""),
        (queue(arguments={"qpid.replicate": "all"}), queue(), ""),
    ],
)
def test_a_queue_that_is_there_must_be_alike_and_keep_as_many_copies(source: Any, target: Any, why: str) -> None:
    plan = compare(having(source, clustered=True), having(target, clustered=True))
    assert plan.creates == []
    assert plan.problems == ([("queue 'q'", why)] if why else [])


def test_a_replicated_queue_does_not_go_to_one_broker_by_itself() -> None:
    plan = compare(having(queue(), queue("other", replicate="none"), clustered=True), having())
    assert [name for _, name, _ in plan.creates] == ["other"]
    assert plan.problems == [("queue 'q'", "its level of replication is all, and the target is one broker by itself")]


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("level", ["none", "configuration", "all"])
def test_a_queue_that_may_be_made_fits_when_it_is_there(level: str, clustered: bool) -> None:
    """Else a drain begins, closes its source to clients, and is refused then."""
    source = having(queue(replicate=level), clustered=True)
    before = compare(source, having(clustered=clustered))
    assert [bool(before.creates), bool(before.problems)] == ([True, False] if clustered or level != "all" else [False, True])
    made = [queue(name, replicate=body["replicate"] if clustered else "none") for _, name, body in before.creates]
    assert compare(source, having(*made, clustered=clustered)).problems == before.problems


def test_exchanges_come_behind_their_alternates_and_in_front_of_what_is_bound_to_them() -> None:
    bound = {"exchange": "x", "queue": "q", "key": "k", "arguments": {"a": 1}, "replicate": "all"}
    by_name = {"exchange": "", "queue": "q", "key": "q", "arguments": {}, "replicate": "all"}
    built_in = exchange("amq.topic", exchangeType="topic")
    source = having(exchange("x", alternateExchange="y"), exchange("y"), built_in, queue(), bound, by_name)
    plan = compare(source, having(built_in))
    assert [(type, name) for type, name, _ in plan.creates] == [
        ("exchange", "y"),
        ("exchange", "x"),
        ("queue", "q"),
        ("binding", ""),
    ]
    assert plan.creates[-1][2] == {"exchange": "x", "queue": "q", "key": "k", "arguments": {"a": 1}}
    assert compare(source, source).creates == []
    other = compare(having(exchange("x")), having(exchange("x", exchangeType="direct")))
    assert other.problems == [("exchange 'x'", "it is a fanout exchange, and the target's of this name a direct one")]


def test_a_binding_that_is_there_must_have_the_same_arguments() -> None:
    """Else messages would go other ways at the target."""

    def bound(**arguments: Any) -> Inventory:
        return having(queue(), exchange("x", exchangeType="headers"), binding("x", "q") | {"arguments": arguments})

    assert compare(bound(a=1), bound(a=1)).problems == compare(bound(), bound()).problems == []
    found = compare(bound(a=1), bound(a=2))
    assert found.creates == []
    why = "its arguments are {'a': 1}, and the target's {'a': 2}"
    assert found.problems == [("binding of queue 'q' to exchange 'x' with key 'k'", why)]


def test_exchanges_that_are_each_others_alternates_are_made_all_the_same() -> None:
    plan = compare(having(exchange("x", alternateExchange="y"), exchange("y", alternateExchange="x")), having())
    assert {name for _, name, _ in plan.creates} == {"x", "y"}


GIB = 1 << 30


def sized(name: str, nbytes: int, **more: Any) -> dict[str, Any]:
    return queue(name, uuid=name, bytes=nbytes, **more)


def shared(source: Inventory, *targets: Inventory) -> dict[str, int]:
    return share_out(source, targets)


def free(nbytes: int, *items: dict[str, Any], clustered: bool = False) -> Inventory:
    return replace(having(*items, clustered=clustered), free_bytes=nbytes)


def test_of_several_targets_the_largest_queue_goes_where_most_is_free_and_what_it_takes_is_free_no_more() -> None:
    source = having(sized("a", 1), sized("b", 6), sized("c", 5), sized("d", 2))
    assert shared(source, free(10), free(8)) == {"b": 0, "c": 1, "d": 0, "a": 1}


def test_a_queue_goes_to_the_target_that_has_its_name_unless_it_was_made_otherwise_there() -> None:
    source = having(sized("a", 5), sized("b", 5))
    there = (queue("a"), queue("b", arguments={"qpid.max_count": 1}))
    assert shared(source, free(99 * GIB), free(1, *there)) == {"a": 1, "b": 0}
    level = having(sized("a", 5), clustered=True)
    assert shared(level, free(99), free(1, clustered=True)) == {"a": 1}, "it needs copies"


def test_queues_that_messages_get_to_together_go_together_with_their_bindings() -> None:
    """Else whoever sends to the exchange at one target would reach the queues there alone, and dead letters would be lost."""
    keys = [binding("x", "a"), binding("x", "b"), binding("dead", "letters"), binding("", "c")]
    queues = [sized("a", 3), sized("b", 3, alternateExchange="dead"), sized("letters", 0), sized("c", 5)]
    source = having(*queues, exchange("x"), exchange("dead"), *keys)
    shares = shared(source, free(10), free(9))
    assert shares == {"a": 0, "b": 0, "letters": 0, "c": 1}
    parts = [part(source, shares, at) for at in range(2)]
    assert [[each["name"] for each in found.queues] for found in parts] == [["a", "b", "letters"], ["c"]]
    assert [len(found.bindings) for found in parts] == [3, 1]
    assert all(found.exchanges == source.exchanges for found in parts)


def binding(source: str, to: str) -> dict[str, Any]:
    return {"exchange": source, "queue": to, "key": "k", "arguments": {}}


def test_topic_subscriptions_move_too_and_meet_no_other() -> None:
    terms = {"container": "c", "name": "n", "address": "amq.topic", "shared": False, "lasting": True, "filters": ""}
    source = queue("c.n", subscription=terms)
    [(_, _, body)] = compare(having(source), having()).creates
    assert body["subscription"] == terms
    for there in (queue("c.n"), queue("c.n", subscription=terms | {"filters": "AAAA"})):
        assert [why for _, why in compare(having(source), having(there)).problems]
