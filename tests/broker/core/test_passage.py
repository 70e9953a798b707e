"""Exchanges that number what goes through them, or keep the last of it: what a message gets, what the log says, who is owed."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import limits, message
from broker.core.commands import Bind, ExchangeAdd, ExchangeDel, ExchangePassed, ValueGiven, decode
from broker.core.definitions import Nothing, Paid, Passed
from broker.core.nodes import CLUSTER, LOCAL, Refused
from broker.core.passage import INITIAL_VALUE, SEQUENCE, Passage, Value, fault_of, passage_of
from broker.core.planning import plan_binding, plan_exchange, plan_policy
from broker.core.state import State
from tests.broker.core.definitions import batch, exchange, queue
from tests.broker.core.test_nodes import Two

VERSION = {"op": "machine-version", "needs": 8}


def sent(text: str = "x", **properties: Any) -> bytes:
    return message.encoded(to="e", subject="k", correlation_id=None, properties=properties, body=text)


def number_of(data: bytes) -> int:
    return int(message.message_annotations(data)[SEQUENCE])


def add(**arguments: Any) -> dict[str, Any]:
    return exchange("e", "topic") | {"arguments": arguments, "needs": 8}


def two(**arguments: Any) -> Two:
    """A cluster with the exchange e, which has these arguments, and the queue q."""
    both = Two()
    both.apply(CLUSTER, VERSION, add(**arguments), queue("q"))
    return both


def test_messages_are_numbered_from_one_on_and_nothing_else_of_them_changes() -> None:
    passage, data = Passage(numbers=True, keeps=False), sent(n=1)
    first, second = passage.pass_on("k", data, 0), passage.pass_on("k", data, 0)
    assert [number_of(first), number_of(second)] == [1, 2]
    assert first.endswith(data), "the bare message goes on bit for bit"
    assert passage.value is None


def test_another_exchange_s_number_takes_the_place_of_the_one_before() -> None:
    one, other = Passage(numbers=True, keeps=False), Passage(numbers=True, keeps=False)
    one.pass_on("k", sent(), 0)
    data = other.pass_on("k", one.pass_on("k", sent(), 0), 0)
    assert number_of(data) == 1


def test_what_is_no_message_goes_on_as_it_is_and_counts() -> None:
    passage = Passage(numbers=True, keeps=False)
    assert passage.pass_on("k", b"\x01", 0) == b"\x01"
    assert number_of(passage.pass_on("k", sent(), 0)) == 2


def test_the_origin_of_the_last_message_is_known_in_the_term_and_not_in_the_log() -> None:
    passage = Passage(numbers=False, keeps=True)
    data = passage.pass_on("k", sent(), 0, (7, "ann"))
    assert passage.value == Value("k", data, 0, 0, (7, "ann"))
    passage.go_on(passage.command("e"))
    assert passage.value == Value("k", data, 0, 0)


def test_the_last_message_is_kept_with_its_key_number_and_times_and_comes_back_from_what_the_log_says() -> None:
    passage = Passage(numbers=True, keeps=True)
    passage.pass_on("a", sent("old"), 0)
    timed = message.with_annotations(
        sent("new"), {"x-opt-delivery-time"}, b"\xa3\x13x-opt-delivery-time\x81" + bytes(6) + b"\x10\x00"
    )
    data = passage.pass_on("b", timed, 100)
    assert passage.value == Value("b", data, 0, 0x1000)
    said = passage.command("e")
    assert decode(said.text) == said
    again = Passage(numbers=True, keeps=True)
    again.go_on(said)
    assert (again.sequence, again.value) == (2, passage.value)
    again.go_on(None)
    assert (again.sequence, again.value) == (0, None)


def test_a_message_that_is_too_long_to_be_kept_leaves_no_older_one_in_its_place() -> None:
    passage = Passage(numbers=False, keeps=True)
    passage.pass_on("k", sent(), 0)
    assert not passage.takes(limits.MAX_INITIAL_VALUE_BYTES + 1)
    assert passage.takes(limits.MAX_INITIAL_VALUE_BYTES)
    passage.pass_on("k", sent("x" * limits.MAX_INITIAL_VALUE_BYTES), 0)
    assert passage.value is None
    assert passage.command("e") == ExchangePassed(exchange="e", sequence=0)
    passage.go_on(passage.command("e"))
    assert passage.value is None
    assert Passage(numbers=True, keeps=False).takes(1 << 30), "only what is kept has a limit"


@pytest.mark.parametrize(
    "kind, binding, found",
    [
        ("direct", Bind(exchange="e", queue="q", key="a.b"), True),
        ("direct", Bind(exchange="e", queue="q", key="a"), False),
        ("topic", Bind(exchange="e", queue="q", key="a.*"), True),
        ("topic", Bind(exchange="e", queue="q", key="b.*"), False),
        ("fanout", Bind(exchange="e", queue="q", key=""), True),
        ("headers", Bind(exchange="e", queue="q", key="", arguments={"n": 1}), True),
        ("headers", Bind(exchange="e", queue="q", key="", arguments={"n": 2}), False),
    ],
)
def test_a_value_is_for_the_bindings_that_match_it(kind: str, binding: Bind, found: bool) -> None:
    assert Value("a.b", sent(n=1), 0, 0).is_for(kind, binding) is found


def test_a_value_that_cannot_be_read_is_for_no_binding_by_headers() -> None:
    assert not Value("k", b"\x01", 0, 0).is_for("headers", Bind(exchange="e", queue="q", key="", arguments={"n": 1}))


def test_arguments_that_an_older_release_took_without_effect_have_none() -> None:
    assert passage_of({SEQUENCE: 1, INITIAL_VALUE: True}, 1) is None
    assert passage_of({SEQUENCE: 0}, 8) is None
    found = passage_of({INITIAL_VALUE: True}, 8)
    assert found is not None
    assert (found.numbers, found.keeps) == (False, True)


def test_the_arguments_are_yes_or_no() -> None:
    assert fault_of({SEQUENCE: True, INITIAL_VALUE: 0}) == ""
    assert fault_of({INITIAL_VALUE: "yes"}) == "qpid.ive is 1 or true, or 0 or false, and not 'yes'"
    with pytest.raises(Refused, match=r"exchange 'e': qpid.msg_sequence is 1"):
        plan_exchange(Two().nodes, "e", "u", {"arguments": {SEQUENCE: 5}})


def test_such_an_exchange_waits_for_the_cluster_s_version() -> None:
    old = Two()
    old.apply(CLUSTER, {"op": "machine-version", "needs": 7})
    with pytest.raises(Refused, match="this request needs machine version 8"):
        plan_exchange(old.nodes, "e", "u", {"replicate": "all", "arguments": {SEQUENCE: 1}})
    with pytest.raises(Refused, match="needs machine version 8"):
        plan_policy(old.nodes, "topic", "e", {"arguments": {SEQUENCE: 1}}, there=False)
    log, command = plan_exchange(two().nodes, "e2", "u", {"replicate": "all", "arguments": {SEQUENCE: 1}})
    assert (log, command.needs) == (CLUSTER, 8)


def test_the_exchanges_that_keep_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_KEEPING_EXCHANGES", 1)
    both = two(**{INITIAL_VALUE: 1})
    with pytest.raises(Refused, match="1 exchanges of this broker keep their last message, its limit"):
        plan_exchange(both.nodes, "e2", "u", {"arguments": {INITIAL_VALUE: 1}})
    assert plan_exchange(both.nodes, "e2", "u", {"arguments": {SEQUENCE: 1}})[0] == LOCAL
    assert plan_exchange(two().nodes, "e2", "u", {"arguments": {INITIAL_VALUE: 1}})[0] == LOCAL


def test_a_new_binding_is_owed_the_last_message_until_it_is_said_to_be_paid() -> None:
    both = two(**{INITIAL_VALUE: 1})
    both.plan(plan_binding(both.nodes, "e", "q", "#", {}))
    (owed,) = both.nodes.owed()
    assert (owed.identity, owed.needs) == (("x-e", "u-q", "#"), 8)
    assert both.nodes.bindings_of("u-q") == [owed]
    again = plan_binding(both.nodes, "e", "q", "#", {"x": 1})[1]
    assert isinstance(again, Bind)
    assert not again.owes, "bound anew with other arguments it is not a new binding"
    definitions = both.states[CLUSTER].definitions
    change, why = definitions.apply(ValueGiven(exchange="x-e", queue="u-q", key="#"))
    assert isinstance(change, Paid)
    assert (change.binding.owes, b"owes" in change.binding.text, why) == (False, False, "")
    assert both.nodes.owed() == []
    for key in ("#", "other"):
        assert isinstance(definitions.apply(ValueGiven(exchange="x-e", queue="u-q", key=key))[0], Nothing)


def test_a_binding_that_is_made_again_with_other_arguments_owes_what_it_owed() -> None:
    """Breaks when a queue never gets the last message, because its binding was made again before that was given."""
    both = two(**{INITIAL_VALUE: 1})
    both.apply(CLUSTER, {"op": "machine-version", "needs": 10})
    for arguments in ({}, {"x": 1}):
        both.plan(plan_binding(both.nodes, "e", "q", "#", arguments))
    (owed,) = both.nodes.owed()
    assert (owed.arguments, owed.owes, owed.needs) == ({"x": 1}, True, 10)
    assert decode(owed.text) == owed, "a snapshot says it too"
    change, _ = both.states[CLUSTER].definitions.apply(ValueGiven(exchange="x-e", queue="u-q", key="#"))
    assert isinstance(change, Paid)
    assert (change.binding.arguments, change.binding.owes, both.nodes.owed()) == ({"x": 1}, False, [])


def test_a_binding_that_an_older_primary_makes_again_owes_nothing_on_any_broker() -> None:
    """Breaks when the brokers of a cluster differ while they are upgraded, because only the newer ones keep the debt."""
    both = two(**{INITIAL_VALUE: 1})
    for arguments in ({}, {"x": 1}):
        both.plan(plan_binding(both.nodes, "e", "q", "#", arguments))
    (made,) = both.nodes.bindings_of("u-q")
    assert (made.arguments, made.owes, made.needs) == ({"x": 1}, False, 1)


def test_an_exchange_that_does_not_keep_owes_nothing() -> None:
    both = two(**{SEQUENCE: 1})
    both.plan(plan_binding(both.nodes, "e", "q", "#", {}))
    assert both.nodes.owed() == []
    assert both.nodes.find_exchange("x-e") is both.nodes.exchanges["e"]
    assert both.nodes.find_exchange("u-other") is None


def test_a_term_goes_on_where_the_log_is_and_a_snapshot_has_it() -> None:
    state = State()
    state.apply(batch(1, add(**{SEQUENCE: 1}), {"op": "exchange-passed", "exchange": "x-e", "sequence": 7, "needs": 8}))
    assert state.definitions.passed["x-e"].sequence == 7
    other = State()
    for index, builder in enumerate(state.snapshot(), 1):
        other.apply(type(batch(1)).parse(builder.seal(1, index, 0)), snapshot=True)
    assert other.definitions.passed == state.definitions.passed
    both = two(**{SEQUENCE: 1})
    passage = both.nodes.exchanges["e"].passage
    assert passage is not None
    passage.pass_on("k", sent(), 0)
    both.nodes.rebuild(both.states)
    assert both.nodes.exchanges["e"].passage is passage, "a snapshot of one log leaves what the other one's exchanges count"
    both.apply(CLUSTER, {"op": "exchange-passed", "exchange": "x-e", "sequence": 9, "needs": 8})
    both.nodes.go_on(LOCAL)
    assert passage.sequence == 1
    both.nodes.go_on(CLUSTER)
    assert passage.sequence == 9


def test_what_has_passed_goes_with_its_exchange_and_of_another_nothing_is_known() -> None:
    state = State()
    passed = ExchangePassed(exchange="x-e", sequence=1)
    change, why = state.definitions.apply(passed)
    assert (change, why) == (Nothing(passed), "there is no such exchange")
    state.definitions.apply(ExchangeAdd(uuid="x-e", name="e", kind="fanout", level="all"))
    assert state.definitions.apply(passed) == (Passed(passed), "")
    state.definitions.apply(ExchangeDel(uuid="x-e"))
    assert state.definitions.passed == {}


def test_a_queue_that_is_to_come_has_its_gate_from_the_first_message_on() -> None:
    both = Two()
    both.nodes.expect("u-q", lambda data, origin: False)
    both.nodes.expect("u-r", None)
    both.apply(CLUSTER, queue("q"), queue("r"))
    gate = both.nodes.queues["q"].gate
    assert gate is not None
    assert not gate(b"", (0, ""))
    assert both.nodes.queues["r"].gate is None
