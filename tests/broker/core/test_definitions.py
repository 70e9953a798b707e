"""Definitions: one interpretation, whose cost is that of the change."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from broker.core import limits
from broker.core.commands import EXACT_SINCE, Command, MachineVersion, QueueAdd, QueueDel, QueueDelIfEmpty, Setting
from broker.core.definitions import (
    Bound,
    Definitions,
    ExchangeAltered,
    ExchangeGone,
    Nothing,
    QueueAltered,
    QueueGone,
    QueueMade,
    SettingMade,
    Unbound,
    VersionRose,
)
from broker.core.nodes import CLUSTER, LOCAL, Nodes
from broker.core.planning import plan_queue_removal
from broker.core.state import State
from tests.broker.core.definitions import alter, batch, bind, delete, exchange, queue, state_of, unbind


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


@pytest.mark.parametrize("one, other", [(1, True), (True, 1), (0, False), (1, 1.0), ([1], [True]), ({"b": 0}, {"b": False})])
def test_a_binding_has_the_arguments_of_the_last_request_although_python_takes_them_for_equal(one: Any, other: Any) -> None:
    state = state_of(exchange("x", "headers"), queue("q"), bind("x-x", "u-q", "k", a=one))
    again = bind("x-x", "u-q", "k", a=other)
    (older,) = changes(state, again)
    assert isinstance(older, Nothing), "as every release applies it: the primary may be of an older one"
    (bound,) = changes(state, again | {"needs": EXACT_SINCE})
    assert isinstance(bound, Bound)
    assert json.dumps(bound.binding.arguments) == json.dumps({"a": other})
    (nothing,) = changes(state, again | {"needs": EXACT_SINCE})
    assert isinstance(nothing, Nothing)


def test_what_is_altered_keeps_what_it_is_known_by_and_what_nobody_knows() -> None:
    state = state_of(queue("q", number=4, colour="red"), exchange("x"))
    one, other, nothing = changes(state, alter("u-q", "x", 5, a=1), alter("x-x", "y"), alter("u-none"))
    assert isinstance(one, QueueAltered)
    assert (one.queue.number, one.queue.arguments, one.queue.alternate, one.queue.needs) == (4, {"a": 1}, "x", 5)
    assert b'"colour":"red"' in one.queue.text
    assert isinstance(other, ExchangeAltered)
    assert (other.exchange.alternate, other.exchange.needs) == ("y", 1)
    assert isinstance(nothing, Nothing)
    assert [command.text for command in state.definitions.commands()] == [one.queue.text, other.exchange.text]


def test_what_is_no_command_of_a_log_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="not a command"):
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


@pytest.mark.costs
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


def test_the_version_only_rises_and_stands_first_in_a_snapshot() -> None:
    definitions = Definitions()
    assert definitions.machine_version == 1
    assert definitions.commands() == []
    definitions.apply(QueueAdd(uuid="u", name="q", level="none"))
    rose, reason = definitions.apply(MachineVersion(needs=3))
    assert (rose, reason) == (VersionRose(MachineVersion(needs=3)), "")
    for version in (2, 3):
        _, reason = definitions.apply(MachineVersion(needs=version))
        assert reason == "the cluster's version is 3 already"
    assert definitions.machine_version == 3
    assert definitions.commands()[0] == MachineVersion(needs=3)


def test_a_setting_holds_until_another_value_or_none_comes() -> None:
    definitions = Definitions()
    for value in ({"n": 1}, {"n": 2}):
        setting = Setting(key="k", value=value)
        assert definitions.apply(setting) == (SettingMade(setting), "")
    assert definitions.settings == {"k": Setting(key="k", value={"n": 2})}
    assert definitions.commands() == [Setting(key="k", value={"n": 2})]
    assert definitions.apply(Setting(key="k")) == (SettingMade(Setting(key="k")), "")
    assert definitions.apply(Setting(key="k")) == (Nothing(Setting(key="k")), "nothing is set there")
    assert definitions.commands() == []


def test_a_cluster_has_so_many_settings_and_no_more() -> None:
    definitions = Definitions()
    for number in range(limits.MAX_SETTINGS):
        definitions.apply(Setting(key=f"k{number}", value={"n": 1}))
    one_more = Setting(key="k", value={"n": 1})
    assert definitions.apply(one_more) == (Nothing(one_more), "the cluster has 64 settings already")
    assert definitions.apply(Setting(key="k0", value={"n": 2}))[1] == "", "what is there may change"


def test_a_queue_that_holds_messages_is_not_deleted_as_empty() -> None:
    definitions = Definitions()
    definitions.apply(QueueAdd(uuid="u", name="q", level="all"))
    _, reason = definitions.apply(QueueDelIfEmpty(uuid="u"), {"u": 2}.__getitem__)
    assert reason == "the queue holds 2 messages; empty it first, or use --force"
    assert definitions.apply(QueueDelIfEmpty(uuid="other"))[1] == "there is no such queue"
    gone, reason = definitions.apply(QueueDelIfEmpty(uuid="u"))
    assert (isinstance(gone, QueueGone), reason) == (True, "")


def test_messages_of_a_queue_count_where_its_deletion_stands_with_those_of_the_same_batch() -> None:
    state = state_of(queue("q"), queue("far", "configuration"))
    deletion = QueueDelIfEmpty(uuid="u-q").to_dict()
    ((_, reason),) = state.apply(batch(2, deletion, enqueue=[(1, 1, [b"one"]), (7, 1, [b"x"])])).changes
    assert "1 messages" in reason
    ((_, reason),) = state.apply(batch(3, deletion)).changes
    assert "1 messages" in reason
    ((_, reason),) = state.apply(batch(4, QueueDelIfEmpty(uuid="u-far").to_dict())).changes
    assert reason == "", "another log has its messages, and decides nothing here"


def test_a_deletion_on_condition_is_left_to_the_log_as_soon_as_every_member_can_apply_it() -> None:
    cluster, local = state_of(queue("q")), state_of(queue("mine", "none"))
    nodes = Nodes(clustered=True)
    nodes.rebuild({CLUSTER: cluster, LOCAL: local})

    def planned(name: str, *, if_empty: bool) -> Command:
        return plan_queue_removal(nodes, name, if_empty=if_empty, if_unused=False, consumers=0)[1]

    assert planned("q", if_empty=True) == QueueDel(uuid="u-q"), "the cluster has version 1"
    assert planned("mine", if_empty=True) == QueueDelIfEmpty(uuid="u-mine"), "this log is this release's alone"
    cluster.apply(batch(2, MachineVersion().to_dict()))
    assert planned("q", if_empty=True) == QueueDelIfEmpty(uuid="u-q")
    assert planned("q", if_empty=False) == QueueDel(uuid="u-q")
    older = State(1)
    older.apply(batch(1, queue("mine", "none")))
    nodes.rebuild({CLUSTER: cluster, LOCAL: older})
    assert planned("mine", if_empty=True) == QueueDel(uuid="u-mine")
