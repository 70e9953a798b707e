"""Definitions: one interpretation, whose cost is that of the change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from broker.core.commands import Command, QueueAdd, QueueDel
from broker.core.definitions import Bound, Definitions, ExchangeGone, Nothing, QueueGone, QueueMade, Unbound
from broker.core.nodes import CLUSTER, LOCAL, Nodes
from broker.core.state import State
from tests.broker.core.definitions import batch, bind, delete, exchange, queue, state_of, unbind


def changes(state: State, *commands: dict[str, Any]) -> list[Any]:
    return [change for change, _ in state.apply(batch(state.index + 1, *commands)).changes]


def test_a_change_says_all_that_a_command_changed() -> None:
    state = state_of(exchange("x"))
    made, bound, again = changes(state, queue("q"), bind("x-x", "u-q", "k"), bind("x-x", "u-q", "k", a=1))
    assert isinstance(made, QueueMade)
    assert made.queue.number == 1
    assert isinstance(bound, Bound)
    assert isinstance(again, Bound)
    assert (bound.binding.arguments, again.binding.arguments) == ({}, {"a": 1})
    unbound, nothing = changes(state, unbind("x-x", "u-q", "k"), unbind("x-x", "u-q", "k"))
    assert unbound == Unbound(again.binding)
    assert isinstance(nothing, Nothing)
    (bound,) = changes(state, bind("x-x", "u-q", "again"))
    (gone,) = changes(state, delete("queue", "u-q"))
    assert gone == QueueGone(made.queue, (bound.binding,))
    (bound,) = changes(state, bind("x-x", "u-elsewhere"))
    (left,) = changes(state, delete("exchange", "x-x"))
    assert isinstance(left, ExchangeGone)
    assert left.bindings == (bound.binding,)
    assert state.definitions.bindings == {}


def test_what_is_no_command_of_a_log_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="no command"):
        Definitions().apply(Command())


def calls_of(work: Callable[[], None]) -> int:
    """How many Python lines a piece of work executes: a measure of its cost that no busy machine moves."""
    lines = 0

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("level", ["all", "configuration"])
def test_a_queue_made_among_many_costs_what_it_costs_among_few(level: str) -> None:
    """Following a change and finding what the local log owes were scans of all queues once."""
    costs = []
    for many in (20, 400):
        cluster, local = State(), State()
        nodes = Nodes(clustered=True)
        nodes.rebuild({CLUSTER: cluster, LOCAL: local})

        def apply(
            log: str, command: dict[str, Any], cluster: State = cluster, local: State = local, nodes: Nodes = nodes
        ) -> None:
            state = {CLUSTER: cluster, LOCAL: local}[log]
            for change, _ in state.apply(batch(state.index + 1, command)).changes:
                nodes.follow(log, change)

        def one(name: str, apply: Callable[[str, dict[str, Any]], None] = apply, nodes: Nodes = nodes) -> None:
            apply(CLUSTER, queue(name, level))
            for command in (*nodes.take_orphans(), *nodes.take_unplaced()):
                apply(LOCAL, command.to_dict())
            apply(CLUSTER, bind("amq.topic", f"u-{name}", name))
            apply(LOCAL, bind("amq.direct", f"u-{name}", name))

        def drop(name: str, apply: Callable[[str, dict[str, Any]], None] = apply, nodes: Nodes = nodes) -> None:
            apply(CLUSTER, delete("queue", f"u-{name}"))
            for command in (*nodes.take_orphans(), *nodes.take_unplaced()):
                apply(LOCAL, command.to_dict())

        for number in range(many):
            one(f"q{number}")

        def one_more(one: Callable[[str], None] = one, drop: Callable[[str], None] = drop) -> None:
            one("one more")
            drop("one more")

        costs.append(calls_of(one_more))
        assert nodes.orphans() == nodes.unplaced() == []
        assert len(nodes.queues) == many
    few, among_many = costs
    assert among_many <= few * 1.05 + 20, f"{few} lines among 20 queues, {among_many} among 400"


def test_what_was_taken_once_is_not_asked_for_again_but_stays_due() -> None:
    """Commands under way would be proposed anew with each change; after a restart all of it is asked for anew."""
    cluster, local = State(), State()
    nodes = Nodes(clustered=True)
    nodes.rebuild({CLUSTER: cluster, LOCAL: local})
    for change in changes(cluster, queue("q", "configuration")):
        nodes.follow(CLUSTER, change)
    assert len(nodes.take_unplaced()) == len(nodes.unplaced()) == 1
    assert nodes.take_unplaced() == []
    assert len(nodes.unplaced()) == 1
    for change in changes(local, {"op": "store-add", "uuid": "u-q"}):
        nodes.follow(LOCAL, change)
    for change in changes(cluster, delete("queue", "u-q")):
        nodes.follow(CLUSTER, change)
    assert len(nodes.take_orphans()) == len(nodes.orphans()) == 1
    assert nodes.take_orphans() == []


def test_a_definition_is_what_was_asked_for() -> None:
    definitions = Definitions()
    made, reason = definitions.apply(QueueAdd(uuid="u", name="q", level="all"))
    assert (isinstance(made, QueueMade), reason) == (True, "")
    assert definitions.apply(QueueDel(uuid="other")) == (Nothing(QueueDel(uuid="other")), "there is no such queue")
