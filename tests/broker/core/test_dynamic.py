"""Nodes that are made because somebody attaches to them: their lifetimes, and names that match patterns."""

from __future__ import annotations

import json

import pytest

from broker.core.commands import ExchangeAdd, QueueAdd
from broker.core.dynamic import LifetimePolicy, matches, policy_of
from broker.core.filters import Filter
from broker.core.nodes import LOCAL
from broker.core.planning import plan_dynamic, plan_exchange
from tests.broker.core.test_nodes import Two

ON_CLOSE, ON_NO_LINKS, ON_NO_MESSAGES, ON_NEITHER = LifetimePolicy


@pytest.mark.parametrize("code, policy", [(0x2B, ON_CLOSE), (0x2C, ON_NO_LINKS), (0x2D, ON_NO_MESSAGES), (0x2E, ON_NEITHER)])
def test_a_policy_is_known_by_its_number_and_by_its_symbol(code: int, policy: LifetimePolicy) -> None:
    assert policy_of([Filter("supported-dist-modes", "move"), Filter(hex(code), [])]) is policy
    assert policy_of([Filter(f"amqp:{policy}:list", [])]) is policy


def test_a_node_without_a_policy_goes_with_the_link_that_made_it() -> None:
    assert policy_of([]) is ON_CLOSE


@pytest.mark.parametrize("names", [["lifetime-policy"], ["0x2f"], ["amqp:delete-on-monday:list"], ["0x2b", "0x2c"]])
def test_what_is_no_policy_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="one lifetime policy, of delete-on-close"):
        policy_of([Filter(name, []) for name in names])


@pytest.mark.parametrize(
    "policy, ends", [(ON_CLOSE, "1111"), (ON_NO_LINKS, "1100"), (ON_NO_MESSAGES, "1010"), (ON_NEITHER, "1000")]
)
def test_a_node_goes_when_its_policy_says_so(policy: LifetimePolicy, ends: str) -> None:
    counts = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [policy.ends(links, messages) for links, messages in counts] == [each == "1" for each in ends]


@pytest.mark.parametrize(
    "pattern, name, does",
    [
        ("news", "news", True),
        ("news", "newsroom", True),
        ("news", "old.news", False),
        ("*.news", "old.news", True),
        ("*.news", "old.newsroom", False),
        ("q?", "q1", True),
        ("q[12]", "q3", False),
        ("News*", "news", False),
    ],
)
def test_names_match_patterns(pattern: str, name: str, does: bool) -> None:
    assert matches(["nothing", pattern], name) is does


def test_a_dynamic_node_is_of_this_broker_alone_and_says_its_policy() -> None:
    nodes = Two(default_level="all").nodes
    log, queue = plan_dynamic(nodes, "queue", "q", "u", ON_NO_LINKS, "ann")
    assert isinstance(queue, QueueAdd)
    assert (log, queue.level, queue.owner, json.loads(queue.text)["lifetime"]) == (LOCAL, "none", "ann", "delete-on-no-links")
    log, topic = plan_dynamic(nodes, "exchange", "t", "v", ON_CLOSE, "ann")
    assert isinstance(topic, ExchangeAdd)
    assert (log, topic.kind, topic.level, json.loads(topic.text)["lifetime"]) == (LOCAL, "topic", "none", "delete-on-close")
    assert "lifetime" not in json.loads(plan_exchange(nodes, "plain", "w", {})[1].text)
