"""Policies: which one counts for a name, what it adds to what was asked for, and what may be one."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import limits
from broker.core.commands import Bind, Command, PolicyAdd, PolicyDel, QueueAdd
from broker.core.definitions import Nothing, PolicyGone, PolicyMade
from broker.core.dynamic import LifetimePolicy
from broker.core.management import plan, policy_items
from broker.core.nodes import CLUSTER, LOCAL, Refused
from broker.core.planning import (
    plan_dynamic,
    plan_exchange,
    plan_exchange_removal,
    plan_policy,
    plan_policy_removal,
    plan_queue,
    plan_subscription,
    with_policy,
)
from broker.core.policies import best, merged, order_of
from broker.core.state import State
from broker.core.subscriptions import Terms
from tests.broker.core.definitions import batch, exchange
from tests.broker.core.test_nodes import Two

VERSION = {"op": "machine-version", "needs": 7}


def policy(pattern: str, kind: str = "queue", **attributes: Any) -> PolicyAdd:
    return PolicyAdd(kind=kind, pattern=pattern, attributes=attributes)


def two(*planned: tuple[str, str, dict[str, Any]]) -> Two:
    """A cluster of version 7 with these policies: kind, pattern and what was asked for."""
    both = Two()
    both.apply(CLUSTER, VERSION, exchange("dlx", "fanout"))
    for kind, pattern, body in planned:
        both.plan(plan_policy(both.nodes, kind, pattern, body, there=False))
    return both


@pytest.mark.parametrize(
    "name, found",
    [
        ("orders.eu.1", "orders.eu"),
        ("orders.us", "orders.*"),
        ("orders", "*"),
        ("orders.x9", "orders.x?"),
        ("orders.x", "orders.*"),
        ("x", "*"),
        ("y1", "y[0-5]"),
    ],
)
def test_the_policy_with_the_longest_beginning_counts_and_no_other(name: str, found: str) -> None:
    patterns = ["*", "orders.*", "orders.x?", "orders.eu", "y[0-5]", "y[1-7]"]
    for order in (patterns, patterns[::-1]):
        chosen = best(map(policy, order), "queue", name)
        assert chosen is not None
        assert chosen.pattern == found
    assert best(map(policy, patterns), "topic", name) is None


def test_of_two_with_the_same_beginning_the_longer_and_then_the_first_by_its_text_counts() -> None:
    assert sorted(map(policy, ["a*", "ab", "a?b", "a*b"]), key=order_of) == list(map(policy, ["ab", "a*b", "a?b", "a*"]))


def test_what_is_asked_for_goes_before_the_policy_argument_by_argument() -> None:
    found = policy("q", arguments={"a": 1, "b": 2}, alternateExchange="dlx", durable=True, replicate="none")
    asked = {"arguments": {"b": 3, "c": 4}, "durable": False, "autoDelete": False, "alternateExchange": ""}
    expected = {"arguments": {"a": 1, "b": 3, "c": 4}, "alternateExchange": "dlx", "durable": True, "replicate": "none"}
    assert merged(found, asked) == expected | {"autoDelete": False}
    assert merged(found, {"alternateExchange": "other", "replicate": "all"}) | {"arguments": {}} == {
        "arguments": {},
        "alternateExchange": "other",
        "durable": True,
        "replicate": "all",
    }
    assert "replicate" not in merged(found, {"arguments": {"qpid.replicate": "all"}})
    assert merged(found, {}, only={"b"}) == {"arguments": {"b": 2}, "alternateExchange": "dlx"}
    assert merged(found, {"arguments": 5})["arguments"] == 5, "for whoever refuses it"
    assert merged(policy("q"), {"arguments": None}) == {"arguments": {}}


def test_what_is_asked_for_goes_before_the_policy_under_another_name_of_the_argument_too() -> None:
    theirs = {"qpid.priorities": 10, "qpid.alert_count": 100, "x-consumer-timeout": 1000, "x-qpid-fairshare-1": 3, "note": 1}
    both = two(("queue", "*", {"arguments": theirs}))
    own = {"x-max-priority": 2, "qpid.alert_count_up": 5, "x-consumer-timeout-ms": 5, "qpid.fairshare-1": 4}
    assert plan_queue(both.nodes, "q", "u", {"arguments": own})[1].to_dict()["arguments"] == own | {"note": 1}
    with pytest.raises(Refused, match="names of arguments must be texts"):
        plan_queue(both.nodes, "q", "u", {"arguments": {7: 1}})


def test_a_queue_that_a_request_makes_has_no_two_names_of_one_argument_and_one_that_a_drain_moves_may_have_them() -> None:
    both, arguments = two(), {"qpid.priorities": 10, "x-max-priority": 2}
    with pytest.raises(Refused, match="names of one argument"):
        plan_queue(both.nodes, "q", "u", {"arguments": arguments})
    assert plan_queue(both.nodes, "q", "u", {"arguments": arguments, "asIs": True})[1].to_dict()["arguments"] == arguments


def test_a_queue_has_in_its_definition_what_its_policy_says_and_a_later_policy_changes_nothing_of_it() -> None:
    both = two(("queue", "orders.", {"arguments": {"qpid.max_count": 5, "x-message-ttl": 9}, "alternateExchange": "dlx"}))
    log, made = plan_queue(both.nodes, "orders.1", "u", {"arguments": {"qpid.max_count": 7}})
    assert isinstance(made, QueueAdd)
    assert (log, made.alternate, made.arguments) == (LOCAL, "dlx", {"qpid.max_count": 7, "x-message-ttl": 9})
    both.plan((log, made))
    both.plan(plan_policy(both.nodes, "queue", "orders.", {"arguments": {"x-message-ttl": None}}, there=True))
    assert both.nodes.queues["orders.1"].ttl_ms == 9
    assert plan_queue(both.nodes, "orders.2", "v", {})[1].to_dict()["arguments"] == {"qpid.max_count": 5}
    assert plan_queue(both.nodes, "other", "v", {})[1].to_dict()["arguments"] == {}
    assert plan_queue(both.nodes, "orders.3", "v", {"asIs": True})[1].to_dict()["arguments"] == {}
    both.plan(plan_policy_removal(both.nodes, "queue", "orders."))
    assert plan_queue(both.nodes, "orders.2", "v", {})[1].to_dict()["arguments"] == {}


def test_an_exchange_that_says_no_type_has_that_of_its_policy() -> None:
    both = two(("topic", "news", {"exchangeType": "fanout", "alternateExchange": "dlx", "byUse": False}))
    made = plan_exchange(both.nodes, "news.eu", "u", {})[1].to_dict()
    assert (made["kind"], made["alternate"]) == ("fanout", "dlx")
    assert plan_exchange(both.nodes, "news.eu", "u", {"exchangeType": "direct"})[1].to_dict()["kind"] == "direct"
    name, command = plan_dynamic(both.nodes, "exchange", "news.temporary", "u", LifetimePolicy.ON_CLOSE, "")
    assert (name, command.to_dict()["alternate"]) == (LOCAL, "")


def test_queues_that_are_made_for_links_get_what_any_queue_may_have_and_stay_what_they_are() -> None:
    limited = {"qpid.max_size": 9, "qpid.policy_type": "ring", "qpid.auto_delete_timeout": 3}
    both = two(("queue", "*", {"arguments": limited | {"qpid.priorities": 4}, "replicate": "all", "autoDelete": True}))
    log, made = plan_dynamic(both.nodes, "queue", "temporary.1", "u", LifetimePolicy.ON_CLOSE, "")
    assert isinstance(made, QueueAdd)
    kept = {"qpid.max_size": 9, "qpid.policy_type": "ring"}
    assert (log, made.auto_delete, made.arguments) == (LOCAL, False, kept)
    terms = Terms("ann", "news", "amq.topic", shared=False, lasting=True)
    binding = Bind(exchange="amq.topic", queue="u", key="#")
    _, (queue, _) = plan_subscription(both.nodes, terms, "u", binding, keep_s=5, owner="")
    assert isinstance(queue, QueueAdd)
    assert queue.arguments == kept | {"qpid.auto_delete_timeout": 5}


@pytest.mark.parametrize(
    "kind, pattern, body, status, word",
    [
        ("queue", "", {}, 400, "needs a name"),
        ("queue", "$x", {}, 400, "cannot name"),
        ("queue", "q", {"exclusiv": True}, 400, "'exclusiv'"),
        ("topic", "q", {"autoDelete": True}, 400, "'autoDelete'"),
        ("queue", "q", {"arguments": 5}, 400, "map"),
        ("queue", "q", {"arguments": {"x-unknown": 1}}, 501, "'x-unknown'"),
        ("queue", "q", {"arguments": {"qpid.max_count": -1}}, 400, "qpid.max_count"),
        ("queue", "q", {"arguments": {"qpid.policy_type": "ring"}, "alternateExchange": "dlx"}, 501, "ring"),
        ("queue", "q", {"arguments": {"qpid.priorities": 3, "x-max-priority": 2}}, 400, "names of one argument"),
        ("queue", "q", {"replicate": "some"}, 400, "'some'"),
        ("queue", "q", {"alternateExchange": "nowhere"}, 404, "'nowhere'"),
        ("topic", "q", {"alternateExchange": "mine"}, 409, "is on this broker only"),
        ("topic", "q", {"exchangeType": "round"}, 400, "'round'"),
        ("topic", "q", {"arguments": {"qpid.msg_sequence": 1}}, 409, "needs machine version 8"),
        ("topic", "q", {"arguments": {"qpid.queue_msg_sequence": 1}}, 501, "qpid.queue_msg_sequence"),
        ("queue", "there", {}, 409, "exists already"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_a_reason(
    kind: str, pattern: str, body: dict[str, Any], status: int, word: str
) -> None:
    both = two(("queue", "there", {}))
    both.apply(LOCAL, exchange("mine", "fanout", level="none"))
    with pytest.raises(Refused, match=word) as refused:
        plan_policy(both.nodes, kind, pattern, body, there=False)
    assert refused.value.status == status


def test_what_is_not_there_is_not_changed_or_deleted() -> None:
    both = two()
    for attempt in (
        lambda: plan_policy(both.nodes, "queue", "q", {}, there=True),
        lambda: plan_policy_removal(both.nodes, "queue", "q"),
    ):
        with pytest.raises(Refused, match="there is no queue policy 'q'"):
            attempt()


def test_a_change_of_a_policy_starts_from_those_of_it_that_are_under_way() -> None:
    """Breaks when a second change undoes the first, or a policy is made twice, because neither was committed."""
    both = two(("queue", "there", {"arguments": {"note": "x"}}))
    under_way: list[Command] = [plan_policy(both.nodes, "topic", "there", {"durable": True}, there=False)[1]]
    both.nodes.under_way = lambda: iter(under_way)
    for pattern, body, there in (
        ("there", {"arguments": {"qpid.max_count": 1}}, True),
        ("there", {"arguments": {"qpid.max_size": 2}}, True),
        ("new", {"durable": True}, False),
        ("new", {"byUse": False}, True),
    ):
        under_way.append(plan_policy(both.nodes, "queue", pattern, body, there=there)[1])
    with pytest.raises(Refused, match="queue policy 'new' exists already"):
        plan_policy(both.nodes, "queue", "new", {}, there=False)
    both.apply(CLUSTER, *(command.to_dict() for command in under_way))
    items = {
        item["name"]: (item["arguments"], item["durable"], item["byUse"]) for item in policy_items(both.nodes, "QueuePolicy")
    }
    changed = {"note": "x", "qpid.max_count": 1, "qpid.max_size": 2}
    assert items == {"there": (changed, False, True), "new": ({}, True, False)}
    under_way[:] = [plan_policy_removal(both.nodes, "queue", "there")[1]]
    with pytest.raises(Refused, match="there is no queue policy 'there'"):
        plan_policy(both.nodes, "queue", "there", {}, there=True)
    assert plan_policy(both.nodes, "queue", "there", {}, there=False)[0] == CLUSTER


def test_a_refusal_names_the_policy_that_has_a_part_in_it() -> None:
    both = two(("queue", "q", {"arguments": {"qpid.policy_type": "ring"}}))
    with pytest.raises(Refused, match="the queue policy 'q' adds to the arguments"):
        plan_queue(both.nodes, "q1", "u", {"alternateExchange": "dlx"})
    with pytest.raises(Refused, match=r"nowhere' to be the alternate exchange$"):
        plan_queue(both.nodes, "other", "u", {"alternateExchange": "nowhere"})


def test_an_exchange_that_a_policy_names_is_not_deleted() -> None:
    both = two(("queue", "q", {"alternateExchange": "dlx"}))
    with pytest.raises(Refused, match="of the queue policy 'q'"):
        plan_exchange_removal(both.nodes, "dlx")
    both.plan(plan_policy(both.nodes, "queue", "q", {"alternateExchange": ""}, there=True))
    assert plan_exchange_removal(both.nodes, "dlx")[0] == CLUSTER


def test_a_policy_waits_for_the_cluster_s_version_and_a_standalone_broker_has_it_in_its_log() -> None:
    old = Two()
    old.apply(CLUSTER, {"op": "machine-version", "needs": 6})
    with pytest.raises(Refused, match="machine version 7"):
        plan_policy(old.nodes, "queue", "q", {}, there=False)
    log, made = plan_policy(two().nodes, "queue", "q", {}, there=False)
    assert (log, made.to_dict()) == (
        CLUSTER,
        {"op": "policy-add", "kind": "queue", "pattern": "q", "attributes": {}, "byUse": True, "needs": 7},
    )


def test_the_policies_of_a_log_are_bounded_and_stand_in_its_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_POLICIES", 2)
    state = State()
    first, other = policy("a", durable=True), policy("b", "topic")
    changes = state.apply(batch(1, first.to_dict(), other.to_dict(), policy("c").to_dict(), policy("a").to_dict())).changes
    assert [type(change) for change, _ in changes] == [PolicyMade, PolicyMade, Nothing, PolicyMade]
    assert "2 policies already" in changes[2][1]
    assert [each for each in state.definitions.commands() if isinstance(each, PolicyAdd)] == [policy("a"), other]
    gone, missing = state.apply(batch(2, *[PolicyDel(kind="queue", pattern="a").to_dict()] * 2)).changes
    assert isinstance(gone[0], PolicyGone)
    assert missing[1] == "there is no such policy"


def test_a_request_that_names_the_attribute_asis_and_says_false_gets_its_policy() -> None:
    both = two(("queue", "a", {"exclusive": True}))
    assert with_policy(both.nodes, "queue", "a", {"asIs": False}) == {"exclusive": True, "arguments": {}}


def test_a_policy_gives_the_queue_of_a_route_what_any_queue_may_have_and_no_other_kind() -> None:
    kind = {"autoDelete": True, "exclusive": True, "arguments": {"qpid.max_count": 1, "qpid.auto_delete_timeout": 9}}
    both = two(("queue", "*", kind))
    asked = {"durable": True, "replicate": "all"}
    assert with_policy(both.nodes, "queue", "qpid-route.r", asked) == asked | {"arguments": {"qpid.max_count": 1}}
    assert with_policy(both.nodes, "queue", "qpid-routes", asked) == asked | kind
    topics = two(("topic", "*", {"exchangeType": "fanout"}))
    assert with_policy(topics.nodes, "exchange", "qpid-route.r", {})["exchangeType"] == "fanout"


def test_requests_about_policies_are_planned_and_policies_are_told_in_their_order() -> None:
    both = two()
    for operation, kind, name, body in (
        ("CREATE", "QueuePolicy", "*", {"arguments": {"qpid.max_count": 1}}),
        ("CREATE", "QueuePolicy", "orders.", {"durable": True}),
        ("CREATE", "TopicPolicy", "news", {"byUse": False}),
        ("UPDATE", "TopicPolicy", "news", {"exchangeType": "fanout"}),
    ):
        both.plan(plan(both.nodes, operation, kind, name, body, "u", 0))
    assert [(each["name"], each["durable"], each["arguments"]) for each in policy_items(both.nodes, "QueuePolicy")] == [
        ("orders.", True, {}),
        ("*", False, {"qpid.max_count": 1}),
    ]
    (topic,) = policy_items(both.nodes, "TopicPolicy")
    assert topic == {
        "name": "news",
        "byUse": False,
        "durable": False,
        "replicate": "",
        "exchangeType": "fanout",
        "alternateExchange": "",
        "arguments": {},
    }
    both.plan(plan(both.nodes, "DELETE", "TopicPolicy", "news", {}, "u", 0))
    assert policy_items(both.nodes, "TopicPolicy") == []
