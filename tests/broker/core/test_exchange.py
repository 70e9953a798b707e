"""Routing against a model that tries each binding by itself, with topic patterns matched by plain recursion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.core import limits
from broker.core.exchange import DIRECT, FANOUT, HEADERS, KINDS, PATHS, TOPIC, Exchange, fault_of, matches

WORDS = ["a", "b", "*", "#", ""]
PATTERNS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(".".join)
SUBJECTS = st.none() | st.lists(st.sampled_from(["a", "b", "c", "", "#", "*"]), max_size=5).map(".".join)
VALUES = st.sampled_from([None, 0, 1, True, False, "x", 1.0])
PROPERTIES = st.dictionaries(st.sampled_from(["p", "q", "x-r"]), VALUES)
ARGUMENTS = st.builds(
    lambda match, asked: asked | match, st.sampled_from([{}, {"x-match": "all"}, {"x-match": "any"}]), PROPERTIES
)
CALLS = st.lists(
    st.tuples(st.just("bind"), st.integers(0, 3), PATTERNS, ARGUMENTS)
    | st.tuples(st.just("unbind"), st.integers(0, 3), PATTERNS, st.just({}))
    | st.tuples(st.just("unbind_queue"), st.integers(0, 3), st.just(""), st.just({}))
    | st.tuples(st.just("route"), st.just(0), SUBJECTS, PROPERTIES),
    max_size=40,
)


def none_asked() -> NoReturn:
    raise AssertionError("only a headers exchange may decode the application properties")


def topic_matches(pattern: list[str], subject: list[str]) -> bool:
    if not pattern:
        return not subject
    if pattern[0] == "#":
        return topic_matches(pattern[1:], subject) or (bool(subject) and topic_matches(pattern, subject[1:]))
    return bool(subject) and pattern[0] in ("*", subject[0]) and topic_matches(pattern[1:], subject[1:])


def wanted(kind: str, key: str, arguments: Mapping[str, Any], subject: str, properties: Mapping[str, Any]) -> bool:
    if kind == DIRECT:
        return key == subject
    if kind == TOPIC:
        return topic_matches(key.split("."), subject.split("."))
    if kind == FANOUT:
        return True
    hits = []
    for name, value in arguments.items():
        if name[:2] != "x-":
            equal = name in properties and type(value) is type(properties[name]) and value == properties[name]
            numbers = {type(value), type(properties.get(name))} == {int, float} and value == properties[name]
            hits.append(name in properties and (value is None or equal or numbers))
    return True in hits if arguments.get("x-match") == "any" else False not in hits


@settings(max_examples=500)
@given(kind=st.sampled_from(KINDS), calls=CALLS)
@example(kind=TOPIC, calls=[("bind", 0, "#.#", {}), ("bind", 0, "#", {}), ("unbind", 0, "#.#", {}), ("route", 0, None, {})])
@example(kind=TOPIC, calls=[("bind", 0, "a.#.*", {}), ("bind", 1, "a", {}), ("unbind", 0, "a.#.*", {}), ("route", 0, "a", {})])
def test_any_order_of_calls_routes_as_trying_each_binding_would(kind: str, calls: list[tuple[str, int, str, Any]]) -> None:
    """The tree, the indexes and the remembered routes must never show."""
    exchange: Exchange[int] = Exchange("e", kind)
    model: dict[tuple[int, str], dict[str, Any]] = {}
    for call, queue, key, more in calls:
        if call == "bind":
            was = model.get((queue, key))
            assert exchange.bind(queue, key, more) == (
                repr(sorted((was or {}).items())) != repr(sorted(more.items())) or was is None
            )
            model[queue, key] = more
        elif call == "unbind":
            assert exchange.unbind(queue, key) == (model.pop((queue, key), None) is not None)
        elif call == "unbind_queue":
            gone = [identity for identity in model if identity[0] == queue]
            assert exchange.unbind_queue(queue) == len(gone)
            for identity in gone:
                del model[identity]
        expected = [q for (q, k), arguments in model.items() if wanted(kind, k, arguments, key or "", more)]
        subject = key if call == "route" else (key or "")
        properties = (lambda more=more: more) if kind == HEADERS else none_asked
        assert exchange.route(subject, properties) == tuple(dict.fromkeys(expected))
        assert [((b.queue, b.key), b.arguments) for b in exchange.bindings()] == list(model.items())
        assert len(exchange) == len(model)


@pytest.mark.parametrize(
    "pattern, subject, matched",
    [
        ("#", "", True),
        ("#", "a.b.c", True),
        ("*", "", True),
        ("*", "a.b", False),
        ("a.*", "a", False),
        ("a.#", "a", True),
        ("#.a", "b.c.a", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("a.#.b", "a.x.y", False),
        ("*.#.*", "a", False),
        ("*.#.*", "a.b", True),
        ("a", "#", False),
        ("#.x", "#", False),
        ("a.b", "a..b", False),
        ("a.*.b", "a..b", True),
        ("stock.*", "stock.*", True),
    ],
)
def test_topic_patterns_follow_the_rules_of_amqp_0_10(pattern: str, subject: str, matched: bool) -> None:
    """What a user reads about "*" and "#" in any book on AMQP must hold, at the edges too."""
    exchange = Exchange[str]("t", TOPIC)
    exchange.bind("q", pattern, {})
    assert exchange.route(subject, none_asked) == (("q",) if matched else ())
    assert topic_matches(pattern.split("."), subject.split(".")) == matched


def test_patterns_made_to_be_slow_are_not() -> None:
    """Trying every way to split the words between twenty "#" would take longer than the broker will live."""
    exchange = Exchange[str]("t", TOPIC)
    exchange.bind("never", ".".join(["#", "a"] * 60) + ".b", {})
    exchange.bind("always", ".".join(["#", "a"] * 60), {})
    assert exchange.route(".".join(["a"] * 500), none_asked) == ("always",)


def test_a_subject_goes_the_same_way_again_until_a_binding_changes() -> None:
    exchange = Exchange[str]("t", TOPIC)
    exchange.bind("q", "a.*", {})
    assert [exchange.route("a.b", none_asked) for _ in range(2)] == [("q",), ("q",)]
    exchange.bind("r", "#", {})
    assert exchange.route("a.b", none_asked) == ("q", "r")


def test_a_subject_of_megabytes_reaches_who_wants_everything_and_costs_nothing() -> None:
    """It must neither be compared word by word, nor be remembered, nor be lost for a queue that is bound with "#"."""
    exchange = Exchange[str]("t", TOPIC)
    exchange.bind("some", "a.#", {})
    subject = "a." * limits.MAX_SUBJECT_CHARS
    assert exchange.route(subject, none_asked) == ()
    exchange.bind("all", "#", {})
    assert exchange.route(subject, none_asked) == ("all",)
    assert not exchange._routes
    assert exchange.route("a." * 10, none_asked) == ("some", "all")


def test_routes_are_remembered_and_their_number_is_bounded() -> None:
    """Producers choose subjects freely: a route kept for each one ever seen would be a leak."""
    exchange = Exchange[str]("", DIRECT)
    exchange.bind("q", "7", {})
    for i in range(limits.MAX_ROUTES_CACHED + 100):
        assert exchange.route(str(i), none_asked) == (("q",) if i == 7 else ())
    assert len(exchange._routes) == limits.MAX_ROUTES_CACHED
    assert exchange.route("7", none_asked) == ("q",)


def test_unbinding_leaves_no_place_in_the_tree() -> None:
    """Temporary queues bind and go all day: places that stay behind would be a leak."""
    exchange = Exchange[str]("t", TOPIC)
    exchange.bind("stays", "a.b", {})
    for i in range(10):
        exchange.bind(f"goes{i}", f"a.b.c{i}.#.x", {})
        assert exchange.unbind_queue(f"goes{i}") == 1
    assert list(exchange._root.children) == ["a"]
    assert not exchange._root.children["a"].children["b"].children
    assert exchange.unbind("stays", "a.b")
    assert not exchange._root.children
    assert exchange.unbind_queue("stays") == 0


def test_a_headers_exchange_without_bindings_does_not_decode_the_message() -> None:
    """Decoding is the dear part, and malformed properties matter to nobody here."""
    assert Exchange[str]("h", HEADERS).route("x", none_asked) == ()


def test_binding_again_keeps_the_place_in_the_order() -> None:
    """The order of queues must not depend on how often an operator's script has run."""
    for kind in KINDS:
        exchange = Exchange[str]("e", kind)
        exchange.bind("first", "a", {})
        exchange.bind("second", "a", {})
        assert exchange.bind("first", "a", {"x-match": "all"})
        assert not exchange.bind("first", "a", {"x-match": "all"})
        assert exchange.route("a", dict) == ("first", "second")


def test_a_binding_is_found_by_its_queue_and_key_and_those_of_a_queue_are_counted() -> None:
    exchange = Exchange[str]("e", TOPIC)
    exchange.bind("q", "k", {"n": 1})
    exchange.bind("q", "l", {})
    found = exchange.binding("q", "k")
    assert found is not None
    assert found.arguments == {"n": 1}
    assert exchange.binding("other", "k") is None
    assert (exchange.bindings_of("q"), exchange.bindings_of("other")) == (2, 0)
    exchange.unbind_queue("q")
    assert (exchange.bindings_of("q"), exchange.binding("q", "k")) == (0, None)


def test_binding_arguments_are_copied() -> None:
    """A change of the caller's dict must not change a binding behind its back."""
    arguments = {"p": 1}
    exchange = Exchange[str]("h", HEADERS)
    exchange.bind("q", "k", arguments)
    arguments["p"] = 2
    assert exchange.route(None, lambda: {"p": 1}) == ("q",)


@pytest.mark.parametrize("one, other", [(1, True), (1, 1.0), ([1], [True]), ({"a": [0]}, {"a": [False]})])
def test_a_binding_has_the_last_arguments_although_python_takes_them_for_equal(one: Any, other: Any) -> None:
    """Breaks when a dynamic route tells its source the arguments of before."""
    exchange = Exchange[str]("h", HEADERS)
    assert exchange.bind("q", "k", {"p": one})
    assert exchange.bind("q", "k", {"p": other})
    assert not exchange.bind("q", "k", {"p": other})
    found = exchange.binding("q", "k")
    assert found is not None
    assert repr(found.arguments) == repr({"p": other})


def test_true_is_not_one_but_one_is_one_point_nought() -> None:
    """Python says that True == 1; an AMQP user does not."""
    assert not matches({"p": 1}, {"p": True})
    assert not matches({"p": False}, {"p": 0})
    assert matches({"p": 1}, {"p": 1.0})
    assert matches({"p": None}, {"p": False})


def test_an_unknown_kind_is_refused_with_the_kinds_there_are() -> None:
    with pytest.raises(ValueError, match='"direkt" is not a kind of exchange: there are direct, topic, fanout, headers'):
        Exchange("e", "direkt")


@pytest.mark.parametrize(
    "kind, key, arguments, fault",
    [
        (HEADERS, "k", {"x-match": "any"}, ""),
        (HEADERS, "k", {}, ""),
        (DIRECT, "k", {"x-match": "some"}, ""),
        (HEADERS, "k", {"x-match": "some"}, 'x-match is "some", but it must be "all" or "any"'),
        (TOPIC, "é" * 128, {}, f'the binding key "{"é" * 40}..." has more than 255 bytes'),
        (HEADERS, "k", {str(i): i for i in range(65)}, "the binding has 65 arguments; at most 64 are allowed"),
        (TOPIC, "k", {PATHS: [["a"]]}, "the argument x-qpid-route-paths is for the queues of dynamic routes"),
    ],
)
def test_a_faulty_binding_is_explained_before_it_is_made(kind: str, key: str, arguments: dict[str, Any], fault: str) -> None:
    """What the log holds must apply on every broker, so the check comes before the record."""
    assert fault_of(kind, key, arguments) == fault
