"""Addresses and what they name, however the two logs come together; and what may be asked of the registry."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core import limits
from broker.core.commands import (
    Alter,
    Bind,
    Command,
    ExchangeAdd,
    PolicyAdd,
    QueueAdd,
    QueueDel,
    StoreAdd,
    decode,
)
from broker.core.definitions import ExchangeGone, QueueMade, Unbound
from broker.core.dynamic import LifetimePolicy
from broker.core.exchange import PATHS
from broker.core.nodes import BUILT_IN, CLUSTER, LOCAL, ExchangeNode, Nodes, QueueNode, Refused
from broker.core.planning import (
    plan_alteration,
    plan_binding,
    plan_dynamic,
    plan_exchange,
    plan_exchange_removal,
    plan_policy,
    plan_queue,
    plan_queue_removal,
    plan_unbinding,
)
from broker.core.state import State
from tests.broker.core.definitions import Change, batch, bind, delete, exchange, histories, play, queue, unbind


def nodes_of(cluster: State | None, local: State | None = None, **options: Any) -> Nodes:
    """The registry of a clustered broker with these states, or of a standalone one."""
    states = {CLUSTER: cluster, LOCAL: local}
    nodes = Nodes(clustered=cluster is not None, **options)
    nodes.rebuild({name: state for name, state in states.items() if state is not None})
    return nodes


class Two:
    """A clustered broker's states and the registry that follows them."""

    def __init__(self, **options: Any) -> None:
        self.states = {CLUSTER: State(), LOCAL: State()}
        self.nodes = Nodes(clustered=True, **options)
        self.nodes.rebuild(self.states)

    def apply(self, log: str, *changes: Change) -> None:
        state = self.states[log]
        for change, reason in state.apply(batch(state.index + 1, *changes)).changes:
            if not reason:
                self.nodes.follow(log, change)

    def plan(self, planned: tuple[str, Command]) -> str:
        """Carry out what was planned; returns the log that it went to."""
        log, command = planned
        self.apply(log, command.to_dict())
        return log


def picture(nodes: Nodes) -> dict[str, Any]:
    """Everything that can be seen of a registry."""
    return {
        "queues": {
            name: (node.uuid, node.log, node.messages_log, id(node.messages), node.max_count, node.definition.text, node.flow)
            for name, node in nodes.queues.items()
        },
        "exchanges": {
            name: (node.uuid, node.log, node.definition.text, node.replicated) for name, node in nodes.exchanges.items()
        },
        "routing": {
            name: {(each.queue, each.key, tuple(each.arguments.items())) for each in node.routing.bindings()}
            for name, node in nodes.exchanges.items()
        },
        "bindings": sorted((e.uuid, q.uuid, c.key, log) for e, q, c, log in nodes.bindings()),
        "found": {address: _found(nodes, address) for address in ("a", "b", "c", "a/k", "amq.topic/k", "", "/", "nothing")},
        "orphans": sorted(map(str, nodes.orphans())),
        "unplaced": sorted(map(str, nodes.unplaced())),
    }


def _found(nodes: Nodes, address: str) -> tuple[str, str] | None:
    found = named(nodes, address)
    return None if found is None else (found[0].uuid, found[1])


def named(nodes: Nodes, address: str) -> tuple[QueueNode | ExchangeNode, str] | None:
    """What an address names, a queue before an exchange, and the routing key in it."""
    queue = nodes.queue_at(address)
    return nodes.exchange_at(address) if queue is None else (queue, "")


def refusal(call: Any, *args: Any, **kwargs: Any) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == caught.value.text
    return caught.value.status, caught.value.text


def refusals_as_alternate(two: Two, name: str) -> list[tuple[int, str]]:
    """What each request is told that names this alternate exchange. There are a queue "q" and an exchange "other"."""
    asked = {"alternateExchange": name}
    return [
        refusal(call, two.nodes, *wish)
        for call, wish in (
            (plan_queue, ("new", "u", asked)),
            (plan_exchange, ("new", "u", asked)),
            (plan_alteration, ("queue", "q", asked)),
            (plan_alteration, ("exchange", "other", asked)),
            (partial(plan_policy, there=False), ("queue", "new", asked)),
        )
    ]


# ---- following


@settings(max_examples=60)
@given(histories(messages=False), histories(messages=False, level=st.just("none")), st.integers(0, 2**16))
def test_following_two_logs_in_any_order_comes_to_the_same_as_reading_them_anew(
    cluster: list[list[Change]], local: list[list[Change]], order: int
) -> None:
    """A restart reads the logs one after the other; a running broker sees their changes interleaved: both must route alike."""
    two = Two()
    for one in local:
        for change in one:  # what belongs to the local log has uuids of its own, but it may bind what belongs to the other
            for field in ("uuid", "exchange"):
                if field in change and change["op"] not in ("bind", "unbind", "store-add", "store-del"):
                    change[field] = "local-" + change[field]
    waiting = {CLUSTER: list(cluster), LOCAL: list(local)}
    while any(waiting.values()):
        name = CLUSTER if waiting[CLUSTER] and (order & 1 or not waiting[LOCAL]) else LOCAL
        order = order >> 1 or 0xA5A5
        two.apply(name, *waiting[name].pop(0))
    anew = Nodes(clustered=True)
    anew.rebuild(two.states)
    assert picture(two.nodes) == picture(anew)


@settings(max_examples=40)
@given(histories(messages=False))
def test_a_standalone_registry_follows_its_only_log(history: list[list[Change]]) -> None:
    state = State()
    nodes = nodes_of(None, state)
    for data in play(State(), history):
        for change, reason in state.apply(data).changes:
            if not reason:
                nodes.follow(LOCAL, change)
    assert picture(nodes) == picture(nodes_of(None, state))


def test_a_queue_that_came_and_went_in_one_go_leaves_nothing() -> None:
    two = Two()
    two.apply(LOCAL, {"op": "store-add", "uuid": "u-c"}, delete("store", "u-c"))
    two.apply(CLUSTER, queue("c", "configuration"))
    two.apply(LOCAL, {"op": "store-add", "uuid": "u-c"}, delete("store", "u-c"))
    assert two.nodes.queues["c"].messages is None
    two.apply(CLUSTER, queue("q"), delete("queue", "u-q"))
    assert "q" not in two.nodes.queues


def test_the_queue_that_a_change_removed_is_returned() -> None:
    two = Two()
    two.apply(CLUSTER, queue("q"))
    node = two.nodes.queues["q"]
    ((gone, _),) = two.states[CLUSTER].apply(batch(2, delete("queue", "u-q"))).changes
    assert two.nodes.follow(CLUSTER, gone) is node
    assert two.nodes.follow(CLUSTER, gone) is None
    assert two.nodes.queue_by_uuid("u-q") is None


def test_a_replicated_object_hides_a_local_one_of_its_name_while_it_lives() -> None:
    """A primary cannot know the names that other brokers use for themselves: its definition must hold there too."""
    for first, second in ((CLUSTER, LOCAL), (LOCAL, CLUSTER)):
        two = Two()
        objects = {CLUSTER: (queue("n"), exchange("n", "topic")), LOCAL: (queue("n", "none", uuid="l"), exchange("n", uuid="lx"))}
        two.apply(first, *objects[first])
        two.apply(second, *objects[second])
        two.apply(LOCAL, bind("lx", "l", "k"))
        nodes = two.nodes
        assert (nodes.queues["n"].uuid, nodes.exchanges["n"].uuid) == ("u-n", "x-n")
        assert nodes.exchanges[""].routing.route("n", dict) == ("u-n",)
        two.apply(CLUSTER, delete("queue", "u-n"), delete("exchange", "x-n"))
        assert (nodes.queues["n"].uuid, nodes.exchanges["n"].uuid) == ("l", "lx")
        assert nodes.exchanges[""].routing.route("n", dict) == ("l",)
        assert nodes.exchanges["n"].routing.route("k", dict) == ("l",)
        two.apply(LOCAL, delete("queue", "l"))
        assert nodes.exchanges[""].routing.route("n", dict) == ()


def test_a_hidden_object_may_go_first() -> None:
    two = Two()
    two.apply(LOCAL, queue("n", "none", uuid="l"))
    two.apply(CLUSTER, queue("n"))
    two.apply(LOCAL, delete("queue", "l"))
    assert two.nodes.queues["n"].uuid == "u-n"
    two.apply(CLUSTER, delete("queue", "u-n"))
    assert not two.nodes.queues


def test_a_queue_that_is_deleted_leaves_hidden_exchanges_too() -> None:
    two = Two()
    two.apply(LOCAL, exchange("n", uuid="lx"), queue("q", "none"), bind("lx", "u-q"))
    two.apply(CLUSTER, exchange("n"))
    two.apply(LOCAL, delete("queue", "u-q"))
    two.apply(CLUSTER, delete("exchange", "x-n"))
    assert (two.nodes.exchanges["n"].uuid, len(two.nodes.exchanges["n"].routing)) == ("lx", 0)


def test_a_local_binding_waits_for_what_the_other_log_has_yet_to_say() -> None:
    two = Two()
    two.apply(LOCAL, bind("x-x", "u-q", "k"), bind("x-x", "u-q", "other"), unbind("x-x", "u-q", "other"))
    two.apply(CLUSTER, queue("q"))
    two.apply(CLUSTER, exchange("x"))
    routing = two.nodes.exchanges["x"].routing
    assert [each.key for each in routing.bindings()] == ["k"]
    two.apply(LOCAL, unbind("x-x", "u-q", "k"))
    assert len(routing) == 0


def test_reading_anew_keeps_where_a_queue_s_next_message_goes() -> None:
    two = Two()
    two.apply(CLUSTER, queue("q"), queue("p"))
    node = two.nodes.queues["q"]
    node.proposed_seqs, node.proposed_bytes = [7], 700
    two.nodes.rebuild(two.states)
    again = two.nodes.queues["q"]
    assert again is not node
    assert (again.proposed_seqs, again.proposed_bytes) == ([7], 700)


def test_a_queue_that_was_read_anew_with_other_messages_goes_on_behind_those() -> None:
    two = Two()
    two.apply(CLUSTER, queue("q"))
    two.nodes.queues["q"].proposed_seqs = [7]
    other = State()
    other.apply(batch(1, queue("q")))
    other.apply(batch(2, enqueue=[(1, 1, [b"one", b"two"])]))
    two.nodes.rebuild({CLUSTER: other, LOCAL: State()})
    node = two.nodes.queues["q"]
    assert (node.proposed_seqs, node.proposed_bytes, node.depth) == ([3], 6, 2)


def test_a_queue_of_level_configuration_has_its_messages_in_the_local_log() -> None:
    two = Two()
    two.apply(CLUSTER, queue("q", "configuration"))
    node = two.nodes.queues["q"]
    assert (node.messages, node.depth, node.messages_log) == (None, 0, LOCAL)
    (place,) = two.nodes.unplaced()
    two.apply(LOCAL, place.to_dict())
    assert node.messages is two.states[LOCAL].by_uuid["u-q"]
    assert two.nodes.unplaced() == two.nodes.orphans() == []
    two.apply(LOCAL, bind("amq.topic", "u-q"))
    two.apply(CLUSTER, delete("queue", "u-q"))
    two.apply(LOCAL, *(command.to_dict() for command in two.nodes.orphans()))
    assert not two.states[LOCAL].definitions.stores
    assert not two.states[LOCAL].definitions.bindings
    assert two.nodes.orphans() == []


def test_a_registry_without_logs_has_what_is_built_in() -> None:
    nodes = Nodes(clustered=False)
    assert {name: node.definition.kind for name, node in nodes.exchanges.items()} == BUILT_IN
    assert all(node.built_in and node.replicated for node in nodes.exchanges.values())
    assert nodes.orphans() == []


# ---- looking up


def test_an_address_is_a_queue_or_an_exchange_or_an_exchange_with_a_key() -> None:
    two = Two()
    two.apply(CLUSTER, queue("amq.topic"), queue("with/slash"), exchange("x"))
    nodes = two.nodes

    def found(address: str) -> tuple[str, str, bool] | None:
        at = named(nodes, address)
        return None if at is None else (at[0].name, at[1], isinstance(at[0], ExchangeNode))

    assert found("amq.topic") == ("amq.topic", "", False), "a queue is found first"
    assert nodes.exchange_at("amq.topic") == (nodes.exchanges["amq.topic"], ""), "who asks for an exchange finds that"
    assert found("amq.topic/key") == ("amq.topic", "key", True)
    assert found("with/slash") == ("with/slash", "", False)
    assert found("x") == ("x", "", True)
    assert found("x/a/b") == ("x", "a/b", True)
    assert found("x/") == ("x", "", True)
    for address in ("", "/", "/key", "none", "none/key"):
        assert found(address) is None


def test_the_bindings_that_were_asked_for_are_listed_with_their_log() -> None:
    two = Two()
    two.apply(CLUSTER, queue("q"), bind("amq.topic", "u-q", "k"))
    two.apply(LOCAL, bind("amq.topic", "u-q", "l"), bind("amq.topic", "u-none", "l"), bind("x-none", "u-q", "l"))
    assert [(e.name, q.name, c.key, log) for e, q, c, log in two.nodes.bindings()] == [
        ("amq.topic", "q", "k", CLUSTER),
        ("amq.topic", "q", "l", LOCAL),
    ]


# ---- planning


def test_a_level_decides_which_log_holds_a_definition() -> None:
    two = Two(default_level="all")
    for level, log in (("all", CLUSTER), ("configuration", CLUSTER), ("none", LOCAL), (None, CLUSTER)):
        planned = plan_queue(two.nodes, f"q-{level}", f"u-{level}", {"replicate": level} if level else {})
        assert two.plan(planned) == log
        planned = plan_exchange(two.nodes, f"x-{level}", f"x-{level}", {"replicate": level} if level else {})
        assert two.plan(planned) == log
    assert two.nodes.queues["q-None"].definition.level == "all"
    assert two.plan(plan_queue(two.nodes, "argument", "u", {"arguments": {"qpid.replicate": "none"}})) == LOCAL
    assert refusal(plan_queue, two.nodes, "q", "u", {"replicate": "some"})[0] == 400


def test_a_standalone_broker_keeps_everything_in_its_log() -> None:
    state = State()
    nodes = nodes_of(None, state)
    for level in ("all", "configuration", "none"):
        log, command = plan_queue(nodes, level, f"u-{level}", {"replicate": level})
        assert log == LOCAL
        ((change, _),) = state.apply(batch(state.index + 1, command.to_dict())).changes
        nodes.follow(log, change)
        assert nodes.queues[level].messages is not None
    assert plan_binding(nodes, "amq.topic", "all", "k", {})[0] == LOCAL


def test_a_queue_gets_what_was_asked_for() -> None:
    nodes = nodes_of(None, State(), default_queue_bytes=77)
    wanted = {"durable": True, "exclusive": True, "autoDelete": 1, "alternateExchange": "amq.fanout"}
    _, command = plan_queue(nodes, "q", "u", wanted | {"arguments": {"qpid.max_count": 5, "our.note": "kept"}})
    assert isinstance(command, QueueAdd)
    assert (command.durable, command.exclusive, command.auto_delete) == (True, True, True)
    assert command.alternate == "amq.fanout"
    nodes.follow(LOCAL, QueueMade(command))
    assert (nodes.queues["q"].max_count, nodes.queues["q"].max_bytes) == (5, 77)
    assert nodes.queues["q"].definition.arguments["our.note"] == "kept"


@pytest.mark.parametrize(
    "name,attributes,status,word",
    [
        ("", {}, 400, "needs a name"),
        ("$q", {}, 400, "cannot name"),
        ("a\nb", {}, 400, "control"),
        ("ä" * 128, {}, 400, "255 bytes"),
        ("taken", {}, 409, "exists"),
        ("q", {"alternateExchange": "none"}, 404, "'none'"),
        ("q", {"lifetimePolicy": "delete-on-close"}, 400, "'lifetimePolicy'"),
        ("q", {"arguments": {"qpid.last_value_queue": 1}}, 501, "qpid.last_value_queue"),
        ("q", {"arguments": {"qpid.policy_type": "self-destruct"}}, 501, "self-destruct"),
        ("q", {"arguments": {"qpid.policy_type": "ring"}, "alternateExchange": "amq.fanout"}, 501, "alternate exchange"),
        ("q", {"arguments": {"qpid.max_count": -1}}, 400, "qpid.max_count"),
        ("q", {"arguments": {"qpid.max_size": True}}, 400, "qpid.max_size"),
        ("q", {"arguments": {"qpid.max_size": "big"}}, 400, "qpid.max_size"),
        ("q", {"arguments": {7: "x"}}, 400, "7"),
        ("q", {"arguments": "a text"}, 400, "a map of names to values"),
        ("q", {"arguments": {"qpid.priorities": 0}}, 400, "qpid.priorities"),
        *(
            ("q", {"arguments": {"qpid.auto_delete_timeout": bad}}, 400, "qpid.auto_delete_timeout must be a whole number")
            for bad in (-1, 1.5, True, "soon", limits.MAX_AUTO_DELETE_S + 1)
        ),
        *(
            ("q", {"arguments": bad}, 400, "x-delayed-retry-max is less than x-delayed-retry-min, or is there without it")
            for bad in ({"x-delayed-retry-max": 5}, {"x-delayed-retry-min": 6, "x-delayed-retry-max": 5})
        ),
        *(
            ("q", {"arguments": {"x-message-ttl": bad}}, 400, f"a number of milliseconds from 1 to {limits.MAX_MESSAGE_TTL_MS}")
            for bad in (0, 1.5, True, "soon", limits.MAX_MESSAGE_TTL_MS + 1)
        ),
        *(
            ("q", {"arguments": {"x-delivery-limit": bad}}, 400, f"number of failed deliveries from 1 to 100000, not {bad!r}")
            for bad in (0, -1, True, "3", limits.MAX_DELIVERY_LIMIT + 1)
        ),
    ],
)
def test_a_queue_that_cannot_be_is_refused_with_a_reason(name: str, attributes: dict[str, Any], status: int, word: str) -> None:
    two = Two()
    two.apply(CLUSTER, queue("taken"))
    found, text = refusal(plan_queue, two.nodes, name, "u", attributes)
    assert found == status
    assert word in text


UNSTORABLE: list[tuple[Any, str]] = [
    (b"x", "b'x' is binary or a uuid"),
    (UUID(int=7), "UUID('00000000-0000-0000-0000-000000000007') is binary or a uuid"),
    ([1, [b"a"]], "b'a' is binary or a uuid"),
    ({"a": {"b": b"c"}}, "b'c' is binary or a uuid"),
    ({1: 2, "a": 3}, "1 is the name of an entry of a map, but not a text"),
    ([{"a": {b"b": 1}}], "b'b' is the name of an entry of a map, but not a text"),
    (float("nan"), "nan is not a finite number"),
    (float("inf"), "inf is not a finite number"),
    ([1, {"a": [-float("inf")]}], "-inf is not a finite number"),
    ({"a": {"b": float("nan")}}, "nan is not a finite number"),
]


@pytest.mark.parametrize("value, word", UNSTORABLE)
def test_an_argument_that_no_log_can_hold_is_refused_and_named(value: Any, word: str) -> None:
    """Breaks when a request is found to be impossible only after it was planned, and counted."""
    two = Two()
    two.apply(CLUSTER, {"op": "machine-version", "needs": 7}, queue("q"))
    nodes, asked = two.nodes, {"arguments": {"fine": 1, "note": value}}
    for call, wish in (
        (plan_queue, ("new", "u", asked)),
        (plan_exchange, ("new", "u", asked)),
        (plan_binding, ("amq.match", "q", "k", asked["arguments"])),
        (plan_alteration, ("queue", "q", asked)),
        (partial(plan_policy, there=False), ("queue", "new", asked)),
        (partial(plan_policy, there=False), ("topic", "new", asked)),
    ):
        status, text = refusal(call, nodes, *wish)
        assert (status, "'note'" in text, word in text) == (400, True, True), text
    for kind in ("queue", "topic"):
        status, text = refusal(plan_policy, nodes, kind, "new", {"durable": value}, there=False)
        assert (status, "'durable'" in text, word in text) == (400, True, True), text
    assert "7 is" in refusal(plan_binding, nodes, "amq.match", "q", "k", {7: "x"})[1]


def test_an_argument_that_is_not_a_number_in_the_store_of_an_earlier_release_stays_until_it_is_removed() -> None:
    two = Two()
    note = {"arguments": {"note": float("nan"), "other": float("inf")}}
    two.apply(CLUSTER, {"op": "machine-version", "needs": 7}, queue("q") | note, exchange("x") | note)
    assert repr(two.nodes.queues["q"].definition.arguments) == "{'note': nan, 'other': inf}"
    assert repr(two.nodes.exchanges["x"].definition.arguments) == "{'note': nan, 'other': inf}"
    status, text = refusal(plan_alteration, two.nodes, "queue", "q", {"arguments": {"qpid.max_count": 5, "other": None}})
    assert (status, "argument 'note': nan is not a finite number" in text) == (400, True), text
    gone = {"arguments": {"note": None, "other": None}}
    two.plan(plan_alteration(two.nodes, "queue", "q", gone))
    assert two.nodes.queues["q"].definition.arguments == {}
    two.plan(plan_alteration(two.nodes, "exchange", "x", {"alternateExchange": "amq.fanout"}))
    assert two.nodes.exchanges["x"].definition.alternate == "amq.fanout"


def test_a_change_starts_from_the_changes_of_the_same_thing_that_are_under_way() -> None:
    """Breaks when a second change undoes the first, because it came before that was committed."""
    two = Two()
    two.apply(CLUSTER, {"op": "machine-version", "needs": 7}, queue("q", arguments={"note": "x"}), exchange("x"), queue("r"))
    under_way: list[Command] = [QueueDel(uuid="u-r")]
    two.nodes.under_way = lambda: iter(under_way)
    for kind, name, asked in (
        ("queue", "q", {"arguments": {"x-message-ttl": 5}}),
        ("queue", "r", {"arguments": {"qpid.max_count": 1}}),
        ("queue", "q", {"alternateExchange": "amq.fanout"}),
        ("queue", "q", {"arguments": {"qpid.max_count": 7, "note": None}}),
        ("exchange", "x", {"alternateExchange": "amq.fanout"}),
        ("exchange", "x", {}),
    ):
        under_way.append(plan_alteration(two.nodes, kind, name, asked)[1])
    status, text = refusal(plan_alteration, two.nodes, "queue", "q", {"arguments": {"x-delayed-retry-max": 5}})
    assert (status, "x-delayed-retry-max is less than" in text) == (400, True), text
    two.apply(CLUSTER, *(command.to_dict() for command in under_way[1:]))
    changed = two.nodes.queues["q"].definition
    assert (changed.arguments, changed.alternate) == ({"x-message-ttl": 5, "qpid.max_count": 7}, "amq.fanout")
    assert two.nodes.queues["q"].ttl_ms == 5
    assert two.nodes.queues["r"].definition.arguments == {"qpid.max_count": 1}
    assert two.nodes.exchanges["x"].definition.alternate == "amq.fanout"


@pytest.mark.parametrize("going, text", [("u-q", "this queue is being deleted"), ("x-x", "exchange 'x' is being deleted")])
def test_what_is_being_deleted_is_bound_no_more(going: str, text: str) -> None:
    """Breaks when the cluster's log gets a binding that nothing can remove, because its queue or exchange is not there."""
    two = Two()
    two.apply(CLUSTER, queue("q"), queue("other"), exchange("x"), exchange("y"))
    two.nodes.is_going = going.__eq__
    assert refusal(plan_binding, two.nodes, "x", "q", "k", {}) == (404, text)
    assert plan_binding(two.nodes, "y", "other", "k", {})[0] == CLUSTER


def test_a_binding_costs_the_same_however_many_commands_are_under_way() -> None:
    """Breaks when n subscriptions cost n * n while the log is slow, which is when a primary has no time for that."""
    two = Two()
    two.apply(CLUSTER, queue("q"), exchange("x"))
    looks: list[None] = []

    def under_way() -> Iterator[Command]:
        looks.append(None)
        return iter(())

    two.nodes.under_way = under_way
    plan_binding(two.nodes, "x", "q", "k", {})
    assert not looks


def test_arguments_of_all_types_that_a_log_can_hold_are_read_back_as_they_were_asked_for() -> None:
    values = [None, True, 1, -(2**63), 2**64 - 1, 1.5, "text\0", [1, ["a"]], {"a": {"b": [None]}}]
    arguments = {f"note {number}": value for number, value in enumerate(values)}
    nodes = nodes_of(None, State())
    _, made = plan_queue(nodes, "q", "u", {"arguments": arguments})
    again = decode(made.text)
    assert isinstance(again, QueueAdd)
    assert again.arguments == arguments


def test_an_exchange_that_cannot_be_is_refused_with_a_reason() -> None:
    nodes = nodes_of(None, State())
    assert refusal(plan_exchange, nodes, "", "u", {})[0] == 400
    assert refusal(plan_exchange, nodes, "x", "u", {"exchangeType": "xml"})[0] == 400
    assert refusal(plan_exchange, nodes, "amq.topic", "u", {})[0] == 409


def test_there_is_a_limit_to_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two()
    two.apply(CLUSTER, queue("q"), bind("amq.topic", "u-q"))
    for name, limit in (("MAX_QUEUES", 1), ("MAX_EXCHANGES", len(BUILT_IN)), ("MAX_BINDINGS_PER_EXCHANGE", 1)):
        monkeypatch.setattr(limits, name, limit)
    assert refusal(plan_queue, two.nodes, "p", "u", {})[0] == 409
    assert refusal(plan_exchange, two.nodes, "x", "u", {})[0] == 409
    assert refusal(plan_binding, two.nodes, "amq.topic", "q", "k", {})[0] == 409
    assert plan_binding(two.nodes, "amq.topic", "q", "", {"n": 1})[0] == CLUSTER, "a binding that is there may change"


def test_a_binding_of_two_replicated_objects_is_replicated_and_any_other_is_local() -> None:
    two = Two()
    two.apply(CLUSTER, queue("ours"), exchange("our-x"))
    two.apply(LOCAL, queue("mine", "none"), exchange("my-x"))
    expected = {("our-x", "ours"): CLUSTER, ("amq.topic", "ours"): CLUSTER, ("my-x", "ours"): LOCAL, ("our-x", "mine"): LOCAL}
    for (at, name), log in expected.items():
        assert two.plan(plan_binding(two.nodes, at, name, "k", {})) == log
        assert two.nodes.exchanges[at].routing.bindings()[-1].queue == f"u-{name}"
    for (at, name), log in expected.items():
        assert two.plan(plan_unbinding(two.nodes, at, name, "k")) == log
    assert list(two.nodes.bindings()) == []


def test_a_binding_that_cannot_be_is_refused_with_a_reason() -> None:
    two = Two()
    two.apply(CLUSTER, queue("q"))
    nodes = two.nodes
    assert refusal(plan_binding, nodes, "none", "q", "", {})[0] == 404
    assert refusal(plan_binding, nodes, "amq.topic", "none", "", {})[0] == 404
    assert refusal(plan_binding, nodes, "", "q", "other", {})[0] == 409
    assert refusal(plan_binding, nodes, "amq.topic", "q", "k" * 300, {})[0] == 400
    assert "is for the queues of dynamic routes" in refusal(plan_binding, nodes, "amq.topic", "q", "k", {PATHS: [["c"]]})[1]
    two.apply(CLUSTER, queue("qpid-route.r"))
    assert "must be a list" in refusal(plan_binding, nodes, "amq.topic", "qpid-route.r", "k", {PATHS: "c"})[1]
    full = {PATHS: [["c"]]} | {str(number): number for number in range(limits.MAX_BINDING_ARGUMENTS)}
    assert plan_binding(nodes, "amq.match", "qpid-route.r", "k", full)[0] == CLUSTER
    assert refusal(plan_binding, nodes, "amq.match", "q", "k", {"x-match": "some"})[0] == 400
    assert refusal(plan_unbinding, nodes, "amq.topic", "q", "k")[0] == 404


def test_deleting_asks_for_what_is_there_and_may_ask_that_nobody_needs_it() -> None:
    two = Two()
    two.apply(CLUSTER, queue("q", alternate="x"), exchange("x"), exchange("y"))
    two.states[CLUSTER].apply(batch(9, enqueue=[(1, 1, [b"one"])]))
    nodes = two.nodes
    assert refusal(plan_queue_removal, nodes, "none", if_empty=False, if_unused=False, consumers=0)[0] == 404
    assert "1 messages" in refusal(plan_queue_removal, nodes, "q", if_empty=True, if_unused=False, consumers=0)[1]
    assert "2 consumers" in refusal(plan_queue_removal, nodes, "q", if_empty=False, if_unused=True, consumers=2)[1]
    assert plan_queue_removal(nodes, "q", if_empty=False, if_unused=True, consumers=0) == (CLUSTER, QueueDel(uuid="u-q"))
    assert plan_queue_removal(nodes, "q", if_empty=False, if_unused=False, consumers=2)[0] == CLUSTER
    assert refusal(plan_exchange_removal, nodes, "none")[0] == 404
    assert refusal(plan_exchange_removal, nodes, "amq.topic")[0] == 409
    assert "'q'" in refusal(plan_exchange_removal, nodes, "x")[1]
    assert two.plan(plan_exchange_removal(nodes, "y")) == CLUSTER
    assert "y" not in nodes.exchanges
    two.apply(CLUSTER, unbind("x-y", "u-q"))
    binding = Bind(exchange="x-y", queue="u-q", key="")
    assert nodes.follow(CLUSTER, Unbound(binding)) is None
    assert nodes.follow(CLUSTER, ExchangeGone(ExchangeAdd(uuid="x-y", name="y", kind="direct", level="all"), (binding,))) is None


def test_an_exchange_that_another_one_sends_to_is_deleted_after_that_one() -> None:
    """Breaks when messages that an exchange cannot route are accepted and lost, because its alternate exchange was deleted."""
    two = Two()
    own = exchange("own", alternate="own")  # an older release may have made it
    two.apply(CLUSTER, {"op": "machine-version", "needs": 6}, exchange("alt"), exchange("main", alternate="alt"), own)
    two.apply(LOCAL, exchange("mine", level="none", alternate="alt"))
    nodes = two.nodes
    for user in ("main", "mine"):
        text = f"exchange 'alt' is the alternate exchange of exchange {user!r}; delete or update that first"
        assert refusal(plan_exchange_removal, nodes, "alt") == (409, text)
        if user == "main":
            two.plan(plan_alteration(nodes, "exchange", user, {"alternateExchange": ""}))
        else:
            two.plan(plan_exchange_removal(nodes, user))
    for name in ("alt", "own"):
        assert two.plan(plan_exchange_removal(nodes, name)) == CLUSTER
    assert "main" in nodes.exchanges


@pytest.mark.parametrize(
    "command",
    [
        QueueAdd(uuid="u", name="new", level="all", alternate="alt"),
        ExchangeAdd(uuid="u", name="new", kind="fanout", level="all", alternate="alt"),
        Alter(uuid="u-q", alternate="alt"),
        PolicyAdd(kind="queue", pattern="new", attributes={"alternateExchange": "alt"}),
    ],
)
def test_an_exchange_that_a_command_under_way_makes_an_alternate_exchange_cannot_be_deleted(command: Command) -> None:
    two = Two()
    two.apply(CLUSTER, queue("q"), exchange("alt"), exchange("other"))
    two.nodes.under_way = lambda: iter([command])
    status, text = refusal(plan_exchange_removal, two.nodes, "alt")
    assert (status, "'alt' is about to be an alternate exchange" in text) == (409, True), text
    assert plan_exchange_removal(two.nodes, "other")[0] == CLUSTER
    two.nodes.under_way = lambda: iter([QueueDel(uuid="u-q")])
    assert plan_exchange_removal(two.nodes, "alt")[0] == CLUSTER


def test_an_exchange_that_is_being_deleted_cannot_become_an_alternate_exchange() -> None:
    two = Two()
    two.apply(CLUSTER, {"op": "machine-version", "needs": 7}, queue("q"), exchange("alt"), exchange("other"))
    _, command = plan_exchange_removal(two.nodes, "alt")
    two.nodes.under_way = lambda: iter([command])
    for status, text in refusals_as_alternate(two, "alt"):
        assert (status, "no exchange named 'alt'" in text) == (404, True), text
    assert plan_queue(two.nodes, "new", "u", {"alternateExchange": "other"})[0] == LOCAL


def test_a_dynamic_topic_cannot_become_an_alternate_exchange() -> None:
    """Breaks when dead letters are lost, because their exchange has gone with the link that made it."""
    two = Two()
    two.apply(CLUSTER, {"op": "machine-version", "needs": 7}, queue("q"), exchange("other"))
    two.plan(plan_dynamic(two.nodes, "exchange", "temporary.1", "u-1", LifetimePolicy.ON_CLOSE, ""))
    for status, text in refusals_as_alternate(two, "temporary.1"):
        assert (status, "is deleted with the link that made it" in text) == (409, True), text


def test_a_log_in_which_an_alternate_exchange_was_deleted_is_read_as_it_was_written() -> None:
    """Breaks when a store of an earlier release is refused, or is read as something else."""
    two = Two()
    two.apply(CLUSTER, exchange("alt"), exchange("main", alternate="alt"))
    two.apply(CLUSTER, delete("exchange", "x-alt"))
    assert "alt" not in two.nodes.exchanges
    assert two.nodes.exchanges["main"].definition.alternate == "alt"


# ---- what the local log owes


def test_a_binding_that_both_logs_have_goes_on_while_one_of_them_has_it() -> None:
    two = Two()
    two.apply(CLUSTER, queue("q"), bind("amq.topic", "u-q", "k", a=1))
    two.apply(LOCAL, bind("amq.topic", "u-q", "k", a=2))
    two.apply(LOCAL, unbind("amq.topic", "u-q", "k"))
    assert [dict(each.arguments) for each in two.nodes.exchanges["amq.topic"].routing.bindings()] == [{"a": 1}]


def test_a_place_that_is_gone_while_its_queue_stands_is_owed_again() -> None:
    two = Two()
    two.apply(CLUSTER, queue("q", "configuration"))
    two.apply(LOCAL, {"op": "store-add", "uuid": "u-q"})
    assert two.nodes.take_unplaced() == two.nodes.unplaced() == []
    two.apply(LOCAL, delete("store", "u-q"))
    assert two.nodes.queues["q"].messages is None
    assert two.nodes.take_unplaced() == two.nodes.unplaced() == [StoreAdd(uuid="u-q")]


def test_an_orphan_that_ends_by_itself_is_owed_no_more() -> None:
    two = Two()
    two.apply(LOCAL, queue("q", "none"), exchange("x", level="none"), bind("x-far", "u-q"), bind("x-x", "u-far"))
    assert len(two.nodes.orphans()) == 2
    two.apply(LOCAL, delete("queue", "u-q"), delete("exchange", "x-x"))
    assert two.nodes.take_orphans() == two.nodes.orphans() == []


def test_a_binding_whose_arguments_change_in_type_only_waits_for_the_cluster_s_version() -> None:
    """An older release would take the new ones for the old ones, and its state would differ."""
    two = Two()
    two.apply(CLUSTER, {"op": "machine-version", "needs": 9}, queue("q"), bind("amq.match", "u-q", "k", a=1))
    has = "the cluster has version 9 until all its brokers are connected and support a newer one"
    text = f"this change of a binding needs machine version 10, and {has}"
    assert refusal(plan_binding, two.nodes, "amq.match", "q", "k", {"a": True}) == (409, f"{text}; unbind it first")
    assert plan_binding(two.nodes, "amq.match", "q", "k", {"a": 1})[1].needs == 1
    assert plan_binding(two.nodes, "amq.match", "q", "k", {"a": 2})[1].needs == 1
    two.apply(CLUSTER, {"op": "machine-version", "needs": 10})
    log, command = plan_binding(two.nodes, "amq.match", "q", "k", {"a": True})
    assert (log, command.needs) == (CLUSTER, 10)


def test_a_kind_of_queue_that_the_first_version_did_not_have_waits_for_the_cluster_s_version() -> None:
    """A member of that version would make a queue of another kind of the same command."""
    two = Two()
    ranked = {"replicate": "all", "arguments": {"qpid.priorities": 4}}
    status, text = refusal(plan_queue, two.nodes, "q", "u", ranked)
    assert status == 409
    assert (
        "needs machine version 2, and the cluster has version 1 until all its brokers are connected and support a newer one"
        in text
    )
    two.nodes.rises_to = lambda: 2
    assert plan_queue(two.nodes, "q", "u", ranked)[1].needs == 2, "a rise that is under way is applied before"
    two.nodes.rises_to = int
    two.apply(CLUSTER, {"op": "machine-version", "needs": 2})
    assert two.plan(plan_queue(two.nodes, "q", "u", ranked)) == CLUSTER
    assert two.nodes.queues["q"].definition.needs == 2
    messages = two.nodes.queues["q"].messages
    assert messages is not None
    assert len(messages.order.lanes) == 4
    assert two.plan(plan_queue(two.nodes, "kept", "v", ranked | {"replicate": "configuration"})) == CLUSTER
    (place,) = two.nodes.unplaced()
    two.apply(LOCAL, place.to_dict())
    messages = two.nodes.queues["kept"].messages
    assert messages is not None
    assert len(messages.order.lanes) == 4


def test_a_queue_with_a_time_to_be_deleted_after_waits_for_the_cluster_s_version_and_is_an_auto_delete_queue() -> None:
    """A primary of the first version would delete it with its last consumer, at once."""
    two = Two()
    timed = {"replicate": "all", "arguments": {"qpid.auto_delete_timeout": 30}}
    status, text = refusal(plan_queue, two.nodes, "q", "u", timed)
    assert status == 409
    assert "needs machine version 2" in text
    two.plan(plan_queue(two.nodes, "plain", "p", {"replicate": "all", "arguments": {"qpid.auto_delete_timeout": 0}}))
    plain = two.nodes.queues["plain"]
    assert (plain.auto_delete_s, plain.definition.auto_delete, plain.definition.needs) == (0, False, 1)
    two.apply(CLUSTER, {"op": "machine-version", "needs": 2})
    two.plan(plan_queue(two.nodes, "q", "u", timed))
    node = two.nodes.queues["q"]
    assert (node.auto_delete_s, node.definition.auto_delete, node.definition.needs) == (30, True, 2)


def test_a_queue_whose_messages_leave_by_themselves_waits_for_the_cluster_s_version() -> None:
    two = Two()
    leaving = {"replicate": "all", "arguments": {"x-delivery-limit": 3, "x-message-ttl": 60_000}}
    status, text = refusal(plan_queue, two.nodes, "q", "u", leaving)
    assert status == 409
    assert "needs machine version 5" in text
    two.apply(CLUSTER, {"op": "machine-version", "needs": 5})
    two.plan(plan_queue(two.nodes, "q", "u", leaving))
    node = two.nodes.queues["q"]
    assert (node.delivery_limit, node.ttl_ms) == (3, 60_000)
    two.apply(CLUSTER, queue("old", arguments={"x-delivery-limit": "any", "x-message-ttl": "any"}))
    old = two.nodes.queues["old"]
    assert (old.delivery_limit, old.ttl_ms) == (0, 0)


def test_a_queue_that_the_first_version_made_has_no_such_time_whatever_its_arguments() -> None:
    two = Two()
    two.apply(CLUSTER, queue("q", arguments={"qpid.auto_delete_timeout": "soon"}))
    assert two.nodes.queues["q"].auto_delete_s == 0


def test_a_queue_that_the_first_version_made_keeps_its_kind_whatever_its_arguments() -> None:
    """It took any argument that begins with x-, and gave its messages sequences of one lane."""
    two = Two()
    two.apply(CLUSTER, queue("q", arguments={"x-max-priority": 9}))
    messages = two.nodes.queues["q"].messages
    assert messages is not None
    assert len(messages.order.lanes) == 1


# ---- owners


def test_queues_count_for_their_owner_in_both_logs_until_they_are_gone() -> None:
    two = Two()
    for name, level, owner in [("a", "all", "ann"), ("b", "none", "ann"), ("c", "all", "eve"), ("d", "none", "")]:
        two.plan(plan_queue(two.nodes, name, f"u-{name}", {"replicate": level}, owner))
    assert [two.nodes.queues_of(user) for user in ("ann", "eve", "bob")] == [2, 1, 0]
    two.nodes.rebuild(two.states)
    assert [two.nodes.queues_of(user) for user in ("ann", "eve", "bob")] == [2, 1, 0]
    for name in "abd":
        two.plan(plan_queue_removal(two.nodes, name, if_empty=False, if_unused=False, consumers=0))
    assert [two.nodes.queues_of(user) for user in ("ann", "eve")] == [0, 1]
    assert list(two.nodes._owned) == ["eve"], "who has none any more takes no place"


def test_what_can_be_changed_of_a_queue_or_an_exchange_is_in_force_at_once_and_the_rest_stays() -> None:
    """Breaks when a change brings arguments into force that an older release had taken and not applied."""
    two = Two()
    old = {"qpid.flow_stop_count": 1, "x-message-ttl": 5, "qpid.auto_delete_timeout": 7, "qpid.colour": "red", "note": 1}
    two.apply(CLUSTER, queue("q", arguments=old | {"qpid.max_count": 10}), exchange("x"), exchange("y"))
    node = two.nodes.queues["q"]
    wish = {"arguments": {"qpid.max_count": 20, "note": None, "note 2": "b"}, "alternateExchange": "x"}
    status, text = refusal(plan_alteration, two.nodes, "queue", "q", wish)
    assert (status, "needs machine version 6, and the cluster has version 1" in text) == (409, True)
    two.apply(CLUSTER, {"op": "machine-version", "needs": 6})
    assert two.plan(plan_alteration(two.nodes, "queue", "q", wish)) == CLUSTER
    assert two.nodes.queues["q"] is node
    assert (node.max_count, node.definition.alternate) == (20, "x")
    assert node.definition.arguments == {"qpid.max_count": 20, "note 2": "b"}
    assert (node.flow.stop_count, node.ttl_ms, node.auto_delete_s, node.definition.needs) == (16, 0, 0, 1)
    two.plan(plan_alteration(two.nodes, "queue", "q", {"arguments": {"x-message-ttl": 60_000, "qpid.flow_stop_count": 4}}))
    assert (node.ttl_ms, node.flow.stop_count, node.definition.alternate, node.definition.needs) == (60_000, 4, "x", 5)
    two.plan(plan_alteration(two.nodes, "queue", "q", {"arguments": {"x-message-ttl": None}, "alternateExchange": ""}))
    assert (node.ttl_ms, node.flow.stop_count, node.definition.alternate) == (0, 4, "")
    timed = {
        "replicate": "all",
        "arguments": {"qpid.auto_delete_timeout": 9, "qpid.replicate": "all", "qpid.policy_type": "ring"},
    }
    two.plan(plan_alteration(two.nodes, "queue", "q", {"arguments": {"qpid.alert_count_up": 4, "qpid.alert_size_up": 8}}))
    node.raised |= {"count", "size"}
    assert (two.nodes.alerting, node.definition.needs) == ({"u-q": node}, 6)
    two.plan(plan_alteration(two.nodes, "queue", "q", {"arguments": {"qpid.alert_size_up": 9}}))
    assert node.raised == {"count", "size"}
    two.plan(plan_alteration(two.nodes, "queue", "q", {"arguments": {"qpid.alert_size_up": 0}}))
    assert (two.nodes.alerting, node.raised) == ({"u-q": node}, {"count"})
    two.plan(plan_alteration(two.nodes, "queue", "q", {"arguments": {"qpid.alert_count_up": None}}))
    assert (two.nodes.alerting, node.raised) == ({}, set())
    two.plan(plan_queue(two.nodes, "ring", "u-ring", timed))
    ring = two.nodes.queues["ring"]
    two.plan(plan_alteration(two.nodes, "queue", "ring", {"arguments": {"qpid.max_count": 3}}))
    assert ring.displacing is not None
    assert (ring.displacing.max_count, ring.auto_delete_s, ring.definition.arguments["qpid.replicate"]) == (3, 9, "all")
    assert not ring.displaces(1)
    assert not node.displaces(1)
    two.plan(plan_alteration(two.nodes, "exchange", "x", {"alternateExchange": "y"}))
    assert two.nodes.exchanges["x"].definition.alternate == "y"
    for kind, name, attributes, status, word in (
        ("queue", "none", {}, 404, "no queue named 'none'"),
        ("exchange", "none", {}, 404, "no exchange named 'none'"),
        ("queue", "q", {"durable": True}, 400, "'durable' cannot be changed (alternateExchange, arguments can)"),
        ("exchange", "x", {"arguments": {}}, 400, "'arguments' cannot be changed"),
        ("exchange", "amq.topic", {"alternateExchange": "x"}, 409, "built in"),
        ("exchange", "x", {"alternateExchange": "x"}, 400, "its own alternate exchange"),
        ("queue", "q", {"alternateExchange": "none"}, 404, "no exchange named 'none'"),
        ("queue", "q", {"arguments": {"qpid.priorities": 3}}, 409, "'qpid.priorities' cannot be changed while"),
        ("queue", "q", {"arguments": {"qpid.max_count": -1}}, 400, "qpid.max_count must be"),
        ("queue", "ring", {"alternateExchange": "x"}, 501, "a ring"),
    ):
        found = refusal(plan_alteration, two.nodes, kind, name, attributes)
        assert (found[0], word in found[1]) == (status, True), found


def test_what_every_broker_has_gets_no_alternate_exchange_that_only_this_broker_has() -> None:
    """Breaks when the next primary has a queue whose dead letters it can send nowhere."""
    two = Two()
    two.apply(CLUSTER, {"op": "machine-version", "needs": 7}, queue("q"), exchange("x"), queue("told", "configuration"))
    two.apply(LOCAL, exchange("dlx", level="none"), queue("own", "none"))
    nodes, wish = two.nodes, {"alternateExchange": "dlx"}
    text = (
        "exchange 'dlx' is on this broker only, and the {0} is on all brokers; the alternate exchange of such a {0} must be "
        "replicated, too"
    )
    for level in ("all", "configuration"):
        asked = wish | {"replicate": level}
        assert refusal(plan_queue, nodes, "new", "u", asked) == (409, "queue 'new': " + text.format("queue"))
        assert refusal(plan_exchange, nodes, "new", "u", asked) == (409, "exchange 'new': " + text.format("exchange"))
        for plan in (plan_queue, plan_exchange):
            assert plan(nodes, "new", "u", asked | {"asIs": True})[0] == CLUSTER, "a drain creates what there is on its source"
    for name in ("q", "told"):
        assert refusal(plan_alteration, nodes, "queue", name, wish) == (409, f"queue {name!r}: " + text.format("queue"))
    assert refusal(plan_alteration, nodes, "exchange", "x", wish) == (409, "exchange 'x': " + text.format("exchange"))
    assert refusal(plan_policy, nodes, "queue", "p", wish, there=False) == (409, "queue policy 'p': " + text.format("policy"))
    for alternate in ("x", "amq.fanout"):
        assert plan_alteration(nodes, "queue", "q", {"alternateExchange": alternate})[0] == CLUSTER
    assert plan_alteration(nodes, "queue", "own", wish)[0] == LOCAL
    assert plan_queue(nodes, "new", "u", wish | {"replicate": "none"})[0] == LOCAL


def test_an_alternate_exchange_of_this_broker_alone_from_an_earlier_release_does_not_keep_other_changes_away() -> None:
    two = Two()
    two.apply(LOCAL, exchange("dlx", level="none"))
    two.apply(CLUSTER, {"op": "machine-version", "needs": 7}, queue("q", alternate="dlx"))
    log, change = plan_alteration(two.nodes, "queue", "q", {"arguments": {"qpid.max_count": 5}})
    assert isinstance(change, Alter)
    assert (log, change.alternate) == (CLUSTER, "dlx")


@pytest.mark.parametrize("one, other", [(1, True), (True, 1.0), ([1], [True]), ({"a": 0}, {"a": False})])
def test_a_binding_is_compared_exactly_with_one_that_is_under_way(one: Any, other: Any) -> None:
    """Breaks when the second of two requests that are committed together is answered as if nothing had changed."""
    two = Two()
    two.apply(CLUSTER, {"op": "machine-version", "needs": 10}, queue("q"))
    plans = [plan_binding(two.nodes, "amq.match", "q", "k", {"p": each}) for each in (one, other)]
    for planned in plans:
        assert two.plan(planned) == CLUSTER
    made = two.nodes.exchanges["amq.match"].routing.binding("u-q", "k")
    assert made is not None
    assert repr(made.arguments) == repr({"p": other})


@pytest.mark.parametrize("log, clustered", [(CLUSTER, True), (LOCAL, True), (LOCAL, False)])
@pytest.mark.parametrize("version", [9, 10])
def test_only_a_binding_with_numbers_needs_the_version_that_compares_exactly(version: int, log: str, clustered: bool) -> None:
    """A broker of an earlier release can read the others."""
    states = {CLUSTER: State(), LOCAL: State()} if clustered else {LOCAL: State()}
    nodes = Nodes(clustered=clustered)
    nodes.rebuild(states)
    first = {"op": "machine-version", "needs": version} if clustered else bind("amq.match", "u-none")
    for change, _ in states[CLUSTER if clustered else LOCAL].apply(batch(1, first)).changes:
        nodes.follow(CLUSTER if clustered else LOCAL, change)
    level = "all" if log == CLUSTER or not clustered else "none"
    at = states[log]
    for change, _ in at.apply(batch(at.index + 1, queue("q", level))).changes:
        nodes.follow(log, change)
    found = []
    for value in (None, "x", ["x", {"a": "b"}], 1, ["x", {"a": False}], [[1.0]]):
        planned, command = plan_binding(nodes, "amq.match", "q", "k", {"p": value})
        assert planned == log
        found.append(command.needs)
    exact = 10 if version == 10 or not clustered else 1
    assert found == [1, 1, 1, exact, exact, exact]
