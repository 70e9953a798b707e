"""The annotation that says where a routed message has been."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits, message
from broker.core.hops import HOPS, CameBack, Hops, TooFar

DELIVERY = {proton.symbol("x"): 1}


def encoded(**fields: Any) -> bytes:
    made = proton.Message(body="b", properties={"p": 1}, **fields)
    return bytes(made.encode())


def bare(data: bytes) -> bytes:
    """From the properties on."""
    return data[data.index(b"\x00\x53\x73") if b"\x00\x53\x73" in data else data.index(b"\x00\x53\x74") :]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"priority": 7, "durable": True},
        {"instructions": DELIVERY},
        {"priority": 7, "instructions": DELIVERY, "annotations": {proton.symbol("x-opt-a"): "b"}},
    ],
)
def test_a_message_is_marked_and_nothing_else_of_it_changes(fields: dict[str, Any]) -> None:
    data = encoded(**fields)
    found = Hops("d", "s", "tag").mark(data)
    assert found is not None
    assert message.message_annotations(found) == message.message_annotations(data) | {HOPS: ["s", "tag"]}
    assert bare(found) == bare(data)
    assert message.header(found) == message.header(data)
    again = Hops("e", "d").mark(found)
    assert again is not None
    assert message.message_annotations(again)[HOPS] == ["s", "tag", "d"]
    assert len(message.message_annotations(again)) == len(message.message_annotations(found))
    message.check(again)


def test_the_beginning_of_a_message_is_marked_as_the_whole_is_and_one_of_a_header_alone() -> None:
    data = encoded()
    assert (Hops("d", "s").mark(data[:40]) or b"") + data[40:] == Hops("d", "s").mark(data)
    only = b"\x00\x53\x70\x45"
    assert message.message_annotations(Hops("d", "s").mark(only) or b"") == {HOPS: ["s"]}


def test_what_has_been_here_came_back_and_what_is_not_wanted_from_where_it_was_is_dropped() -> None:
    been = Hops("b", "a", "tag").mark(encoded()) or b""
    with pytest.raises(CameBack, match="it has been here before, and has passed through a, tag"):
        Hops("a", "b").mark(been)
    assert Hops("a", "b", exclude=["a"]).mark(been) is None, "what is excluded is dropped, and need not be looked at further"
    assert Hops("c", "b", exclude=["other", "tag"]).mark(been) is None
    assert Hops("c", "b", exclude=["other"]).mark(been) is not None


def test_within_a_cluster_a_message_goes_from_queue_to_queue_and_not_round() -> None:
    first, second = Hops("a", "a", queue="1"), Hops("a", "a", queue="2")
    once = first.mark(encoded()) or b""
    twice = second.mark(once) or b""
    assert message.message_annotations(twice)[HOPS] == ["a/1", "a/2"]
    with pytest.raises(CameBack):
        first.mark(twice)
    elsewhere = Hops("b", "a").mark(twice) or b""
    with pytest.raises(CameBack):
        Hops("a", "b").mark(elsewhere)


@pytest.mark.parametrize("value", ["a", ["a", 1], {"a": "a"}, None])
def test_what_a_client_has_written_there_is_no_list_of_names_and_counts_as_none(value: Any) -> None:
    data = encoded(annotations={proton.symbol(HOPS): value})
    assert message.message_annotations(Hops("a", "b").mark(data) or b"")[HOPS] == ["b"]


def test_a_message_comes_through_so_many_clusters_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ROUTE_HOPS", 2)
    first = Hops("b", "a").mark(encoded()) or b""
    second = Hops("c", "b").mark(first) or b""
    with pytest.raises(TooFar, match="it has passed through a, b: routes pass a message through at most 2 clusters"):
        Hops("d", "c").mark(second)


def test_what_is_no_message_is_said_to_be_none() -> None:
    with pytest.raises(message.BadMessage):
        Hops("a", "b").mark(b"no message")
