"""Which messages a queue has had lately."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core import limits
from broker.core.commands import QueueAdd
from broker.core.duplicates import COUNT, PROPERTY, TIME_MS, UnderWay, Window, id_of, window_of
from broker.core.nodes import QueueNode
from broker.core.records import Batch, BatchBuilder
from broker.core.state import State


def encoded(body: str = "", **fields: Any) -> bytes:
    return bytes(proton.Message(body=body, **fields).encode())


def test_the_id_is_the_property_of_artemis_or_else_the_message_id() -> None:
    one = encoded("a", id="order 1")
    assert id_of(one) == id_of(encoded("another body", id="order 1", subject="x"))
    assert id_of(one) != id_of(encoded("a", id="order 2"))
    by_property = encoded("a", id="order 1", properties={PROPERTY: "order 9"})
    assert id_of(by_property) == id_of(encoded("b", id="order 9"))
    assert id_of(encoded("a", id="order 1", properties={"other": PROPERTY})) == id_of(one)


def test_ids_of_different_types_differ() -> None:
    same = uuid.UUID(int=7)
    ids = [7, "7", b"7", same, str(same), same.bytes]
    found = [id_of(encoded(id=each)) for each in ids]
    assert None not in found
    assert len(set(found)) == len(ids)


@pytest.mark.parametrize("data", [encoded("a"), b"\x00\x53", b"", encoded("a", properties={PROPERTY: None})])
def test_a_message_without_an_id_has_none(data: bytes) -> None:
    assert id_of(data) is None


def test_an_id_leaves_when_so_many_others_have_come() -> None:
    window = Window(2)
    window.came([encoded(id="a"), encoded(), encoded(id="b")], 1)
    window.came([encoded(id="c")], 2)
    assert len(window) == 2
    assert [window.has(_id(each), 9) for each in "abc"] == [False, True, True]


def test_an_id_that_comes_again_is_the_newest() -> None:
    window = Window(2)
    for each in "abac":
        window.came([encoded(id=each)], 1)
    assert [window.has(_id(each), 9) for each in "abc"] == [True, False, True]


def test_an_id_is_there_for_a_time_by_the_clock_of_who_asks_and_by_what_comes() -> None:
    window = Window(10, 1000)
    window.came([encoded(id="a")], 5000)
    assert window.has(_id("a"), 6000)
    assert not window.has(_id("a"), 6001)
    window.came([encoded(id="b")], 6000)
    assert len(window) == 2
    window.came([encoded(id="c")], 6001)
    assert len(window) == 2
    assert not window.has(_id("a"), 5000)


def _id(name: str) -> bytes:
    found = id_of(encoded(id=name))
    assert found is not None
    return found


@given(
    st.integers(1, 5),
    st.integers(0, 50),
    st.lists(st.tuples(st.lists(st.sampled_from("abcdefgh"), max_size=4), st.integers(0, 30)), max_size=20),
)
def test_a_window_is_what_a_plain_model_says_and_comes_back_from_a_snapshot(
    count: int, time_ms: int, batches: list[tuple[list[str], int]]
) -> None:
    window, model, now = Window(count, time_ms), OrderedDict[str, int](), 0
    for names, later_ms in batches:
        now += later_ms
        window.came([encoded(id=name) for name in names], now)
        for name in names:
            model[name] = now
            model.move_to_end(name)
        while len(model) > count:
            model.popitem(last=False)
        for name in [name for name, made in model.items() if time_ms and now - made > time_ms]:
            del model[name]
    again = Window(count, time_ms)
    for ids, times_ms in window.chunks():
        again.load(ids, times_ms)
    assert list(again.chunks()) == list(window.chunks())
    assert [name for name in "abcdefgh" if again.has(_id(name), now)] == [name for name in "abcdefgh" if name in model]


@pytest.mark.parametrize(
    "ids, times_ms, text",
    [("AAAA", [1], "3 bytes of ids for 1 times"), ("!", [], "base64"), ("", [1], "0 bytes of ids for 1 times")],
)
def test_a_snapshot_that_does_not_fit_is_refused(ids: str, times_ms: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Window(1).load(ids, times_ms)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({COUNT: 0}, "number of ids"),
        ({COUNT: limits.MAX_DUPLICATE_IDS + 1}, "number of ids"),
        ({COUNT: True}, "number of ids"),
        ({COUNT: "7"}, "number of ids"),
        ({TIME_MS: 1000}, "number of ids"),
        ({COUNT: 7, TIME_MS: 0}, "milliseconds"),
        ({COUNT: 7, TIME_MS: "1s"}, "milliseconds"),
        ({COUNT: 7, TIME_MS: True}, "milliseconds"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_a_text(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        window_of(arguments)


def test_what_is_under_way_is_known_until_so_many_messages_have_come() -> None:
    under_way = UnderWay()
    under_way.put([encoded(id="a"), encoded(), encoded(id="b")], 3, 0)
    under_way.put([encoded(id="a")], 4, 0)
    assert [under_way.has(_id(each), 2) for each in "ab"] == [True, True]
    assert [under_way.has(_id(each), 3) for each in "ab"] == [True, False]
    under_way.put([encoded(id="c")], 5, 4)
    assert [under_way.has(_id(each), 4) for each in "abc"] == [False, False, True]


def test_arguments_ask_for_a_window_or_for_none() -> None:
    assert window_of({"other": 1}) is None
    by_count, by_time = window_of({COUNT: 7}), window_of({COUNT: 7, TIME_MS: 1000})
    assert by_count is not None
    assert by_time is not None
    assert (by_count.count, by_count.time_ms, by_time.time_ms) == (7, 0, 1000)


def log(*writes: Callable[[BatchBuilder], None], made_ms: int = 1000) -> State:
    """A state that has applied these, one batch each, behind a queue `q` that detects duplicates."""
    state = State()
    change = {"op": "queue-add", "uuid": "u", "name": "q", "level": "all", "arguments": {COUNT: 7}, "needs": 5}
    for index, write in enumerate([lambda builder: builder.define(change), *writes], 1):
        builder = BatchBuilder()
        write(builder)
        state.apply(Batch.parse(builder.seal(1, index, made_ms)))
    return state


def test_what_comes_on_a_queue_is_in_the_window_of_every_state_and_of_one_from_a_snapshot() -> None:
    state = log(lambda builder: builder.messages_for(1, 1).extend([encoded(id="a"), encoded(id="b")]))
    again = State()
    for builder in state.snapshot():
        again.apply(Batch.parse(builder.seal(1, 2, 9)), snapshot=True)
    for each in (state, again):
        window = each.by_uuid["u"].window
        assert window is not None
        assert [window.has(_id(name), 1000) for name in "abc"] == [True, True, False]
        assert list(window.chunks()) == [(next(iter(window.chunks()))[0], [1000, 1000])]


def test_a_queue_knows_what_repeats_a_message_that_came_or_is_under_way() -> None:
    state = log(lambda builder: builder.messages_for(1, 1).append(encoded(id="a")))
    node = QueueNode(QueueAdd(uuid="u", name="q", level="all"), "cluster", "cluster", state.by_uuid["u"])
    node.go_on()
    assert node.detects_duplicates
    node.under_way.put([encoded(id="b")], 2, 1)
    repeats = [node.repeats(encoded(id=name), 1000) for name in "abc"]
    assert repeats == [True, True, False]
    assert not node.repeats(encoded("no id"), 1000)


def test_a_queue_without_a_window_or_without_its_messages_here_knows_of_no_repeats() -> None:
    plain = State()
    builder = BatchBuilder()
    builder.define({"op": "queue-add", "uuid": "u", "name": "q", "level": "all"})
    plain.apply(Batch.parse(builder.seal(1, 1, 0)))
    for messages in (None, plain.by_uuid["u"]):
        node = QueueNode(QueueAdd(uuid="u", name="q", level="all"), "cluster", "cluster", messages)
        assert not node.detects_duplicates
        assert not node.repeats(encoded(id="a"), 1000)


@pytest.mark.parametrize("ids, times", [("!!", [1]), ("AAAA", [1, 2])])
def test_a_snapshot_whose_ids_cannot_be_read_is_no_snapshot(ids: str, times: list[int]) -> None:
    builder = BatchBuilder()
    change = {"op": "queue-add", "uuid": "u", "name": "q", "level": "all", "arguments": {COUNT: 7}, "needs": 5}
    builder.define(change)
    builder.define({"op": "recent-ids", "uuid": "u", "ids": ids, "times": times, "needs": 5})
    with pytest.raises(ValueError, match="batch 1: "):
        State().apply(Batch.parse(builder.seal(1, 1, 0)), snapshot=True)


def test_ids_for_a_queue_that_detects_no_duplicates_are_no_snapshot() -> None:
    builder = BatchBuilder()
    builder.define({"op": "recent-ids", "uuid": "u", "ids": "", "times": [], "needs": 5})
    with pytest.raises(ValueError, match="a queue that detects none"):
        State().apply(Batch.parse(builder.seal(1, 1, 0)), snapshot=True)
