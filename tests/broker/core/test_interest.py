"""Which bindings the source of a dynamic route must have, for the bindings that there are here."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import limits
from broker.core.exchange import PATHS
from broker.core.interest import Interest, fault_of_paths, text_of


def interest(kind: str = "topic", here: str = "d", *bindings: tuple[str, str, str, dict[str, Any]]) -> Interest:
    made = Interest(here, kind)
    for binding in bindings:
        made.put(*binding)
    return made


def passed(*paths: str) -> dict[str, Any]:
    """The arguments of a binding with these paths, each a text of letters that stand for clusters."""
    return {PATHS: [list(path) for path in paths]}


def test_a_key_is_wanted_while_there_is_a_binding_with_it_and_equal_keys_of_many_queues_are_one() -> None:
    one = interest()
    assert one.wanted("k", "s") == (None, "")
    assert one.put("u1", "q1", "k", {"note": 1}) == ["k"]
    assert one.put("u2", "q2", "k", {}) == ["k"]
    assert (list(one), one.wanted("k", "s")) == (["k"], (passed("d"), ""))
    assert one.put("u1", "q1", "k", None) == ["k"]
    assert one.wanted("k", "s") == (passed("d"), "")
    assert one.put("u2", "q2", "k", None) == ["k"]
    assert (list(one), one.wanted("k", "s")) == ([], (None, ""))
    assert one.put("u2", "q2", "k", None) == []


def test_a_fanout_exchange_wants_one_binding_whatever_the_keys_are() -> None:
    one = interest("fanout")
    assert one.put("u1", "q1", "a", {}) == [""]
    assert one.put("u2", "q2", "b", {}) == [""]
    assert (list(one), one.wanted("", "s")[0]) == ([""], passed("d"))


def test_a_headers_exchange_wants_a_binding_for_each_set_of_arguments_whatever_the_keys_are() -> None:
    one = interest("headers")
    red, count, flag = {"x-match": "any", "colour": "red"}, {"n": 1}, {"n": True}
    (first,) = one.put("u1", "q1", "k", red)
    assert one.put("u2", "q2", "another", dict(reversed(red.items()))) == [first]
    (second,), (third,) = one.put("u3", "q3", "k", count), one.put("u4", "q4", "k", flag)
    assert len({first, second, third}) == 3, "true is not 1"
    assert one.wanted(first, "s")[0] == red | passed("d")
    assert one.put("u3", "q3", "k", red) == [second, first], "it was bound again with other arguments"
    assert (one.shown(first), one.shown(second)) == ('{"colour":"red","x-match":"any"}', second)
    assert one.put("u5", "qpid-route.r", first, red | passed("b")) == [first], "the path is no argument of the comparison"
    assert one.wanted(first, "s")[0] == red | passed("d", "bd")
    assert interest().shown("a.#") == "a.#"


def test_arguments_that_a_source_could_not_read_or_tell_are_not_propagated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ROUTE_ARGUMENTS_BYTES", 40)
    monkeypatch.setattr(limits, "MAX_ROUTE_ARGUMENTS_DEPTH", 3)
    one = interest("headers")
    for arguments, fault in (
        ({"a": "x" * 32}, ""),
        ({"a": "x" * 33}, "its arguments have more than 40 bytes, and it is not propagated"),
        ({"a": [{"b": 1}, []]}, ""),
        ({"a": [{"b": [1]}]}, "its arguments are nested more than 3 deep, and it is not propagated"),
    ):
        (key,) = one.put("u", "q", "k", arguments)
        assert one.wanted(key, "s") == (None if fault else {**arguments, **passed("d")}, fault)
        one.put("u", "q", "k", None)


def test_a_wish_that_was_passed_on_has_the_path_with_this_cluster_at_its_end_and_does_not_go_back() -> None:
    one = interest()
    one.put("u", "qpid-route.r", "k", passed("ab"))
    assert one.wanted("k", "s") == (passed("abd"), "")
    for source in "ab":
        assert one.wanted("k", source) == (None, ""), "the source has passed it on itself"
    one.put("u2", "mine", "k", {})
    assert one.wanted("k", "a")[0] == passed("d")
    assert one.wanted("k", "s")[0] == passed("d", "abd")


def test_of_several_paths_of_one_origin_the_shortest_is_told() -> None:
    one = interest()
    one.put("u1", "qpid-route.1", "k", passed("ab"))
    one.put("u2", "qpid-route.2", "k", passed("ac", "e"))
    one.put("u3", "qpid-route.3", "k", passed("axy"))
    assert one.wanted("k", "s")[0] == passed("ed", "abd")
    one.put("u1", "qpid-route.1", "k", None)
    assert one.wanted("k", "s")[0] == passed("ed", "acd")
    one.put("u2", "qpid-route.2", "k", passed("e"))
    assert one.wanted("k", "s")[0] == passed("ed", "axyd")


def test_a_wish_that_this_cluster_has_passed_on_before_is_none() -> None:
    one = interest()
    one.put("u", "qpid-route.r", "k", passed("adb", "f"))
    assert one.wanted("k", "s")[0] == passed("fd")


def test_what_somebody_wants_farther_away_than_another_is_wanted_too() -> None:
    """`t` has the nearer wish, of `c`, itself. Without the other one, of `e`, it would get no messages for that."""
    one = interest()
    one.put("u1", "qpid-route.1", "k", passed("ct"))
    one.put("u2", "qpid-route.2", "k", passed("exyz"))
    assert one.wanted("k", "t")[0] == passed("exyzd")


@pytest.mark.parametrize(
    "name, paths",
    [("mine", [["a"]]), ("qpid-route.r", "a"), ("qpid-route.r", [["a", 1]])],
    ids=["of another queue", "no list", "no identity"],
)
def test_paths_that_no_route_has_written_are_none(name: str, paths: Any) -> None:
    one = interest()
    one.put("u", name, "k", {PATHS: paths})
    assert one.wanted("k", "s")[0] == passed("d")


def test_the_binding_of_a_route_that_follows_nothing_is_a_wish_of_this_cluster() -> None:
    one = interest()
    one.put("u", "qpid-route.r", "k", {})
    assert one.wanted("k", "s")[0] == passed("d")


def test_a_wish_passes_so_many_clusters_and_is_not_told_of_more_origins_than_there_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_ROUTE_HOPS", 3)
    monkeypatch.setattr(limits, "MAX_BINDING_ORIGINS", 2)
    one = interest()
    one.put("u", "qpid-route.r", "k", passed("abc"))
    assert one.wanted("k", "s") == (None, "it has passed 3 clusters, and is propagated no further")
    one.put("u1", "q", "k", {})
    assert one.wanted("k", "s") == (passed("d"), "it has passed 3 clusters, and is propagated no further")
    one.put("u", "qpid-route.r", "k", passed("ef"))
    assert one.wanted("k", "s") == (passed("d", "efd"), "")
    one.put("u2", "qpid-route.2", "k", passed("g"))
    assert one.wanted("k", "s") == (passed("d", "gd"), "3 clusters want it, and the source is told of 2")


def test_an_exchange_that_is_another_one_has_other_bindings() -> None:
    one = interest()
    one.put("u", "q", "k", {})
    assert one.become(interest("headers", "d", ("u", "q", "k", {"n": 1}), ("u2", "q2", "l", {"n": 1})))[0] == "k"
    assert (one.kind, len(list(one)), one.wanted("k", "s")) == ("headers", 1, (None, ""))
    assert len(one.become(interest(""))) == 1
    assert (one.kind, list(one)) == ("", [])


@pytest.mark.parametrize(
    "queue, value, fault",
    [
        ("qpid-route.r", [["a", "b"], ["c"]], ""),
        ("mine", [["a"]], "for the queues of dynamic routes"),
        ("qpid-route.r", [], "must be a list"),
        ("qpid-route.r", {"a": 1}, "must be a list"),
        ("qpid-route.r", [[]], "must be a list"),
        ("qpid-route.r", [["a"] * 17], "must be a list"),
        ("qpid-route.r", [["a"]] * 65, "must be a list"),
        ("qpid-route.r", [["x" * 256]], "must be a list"),
        ("qpid-route.r", [[""]], "must be a list"),
        ("qpid-route.r", ["ab"], "must be a list"),
    ],
)
def test_paths_that_a_request_may_have_are_lists_of_identities(queue: str, value: Any, fault: str) -> None:
    found = fault_of_paths(queue, value)
    assert fault in found
    assert bool(found) is bool(fault)


def test_equal_arguments_have_equal_texts_and_no_others() -> None:
    assert text_of({"a": 1, "b": [True]}) == text_of({"b": [True], "a": 1})
    assert len({text_of({"a": value}) for value in (1, True, 1.0, "1", None)}) == 5
