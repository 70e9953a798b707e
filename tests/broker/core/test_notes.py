"""What consumers note on messages that they give back."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits, message
from broker.core.notes import merged, noted, waits_until
from broker.core.records import Batch, BatchBuilder, Kind
from broker.core.state import CannotApply, State
from broker.core.values import Symbol, decode, encode
from tests.broker.core.definitions import delete, queue, state_of
from tests.broker.core.test_parts import apply
from tests.broker.core.test_state import rebuilt


def note(**pairs: Any) -> bytes:
    return encode({Symbol(name): value for name, value in pairs.items()})


def wide(encoded: bytes) -> bytes:
    """The same map in its other form."""
    return b"\xd1" + (encoded[1] + 3).to_bytes(4, "big") + encoded[2].to_bytes(4, "big") + encoded[3:]


def filled() -> State:
    state = state_of(queue("q"))
    builder = BatchBuilder()
    builder.enqueue_at(1, 1, [b"a", b"b", b"c"])
    apply(state, builder)
    return state


def put(state: State, number: int, *said: tuple[int, bytes], gone: tuple[int, ...] = ()) -> Batch:
    builder = BatchBuilder()
    for sequence, encoded in said:
        builder.note(number, sequence, encoded)
    builder.dequeues_for(number).extend(gone)
    batch = Batch.parse(builder.seal(1, state.index + 1, 0))
    state.apply(batch)
    return batch


@pytest.mark.parametrize("form", [bytes, wide])
def test_what_is_noted_later_counts_and_the_rest_stays(form: Any) -> None:
    assert decode(merged(form(note(a=1, b=[2])), form(note(b=3, c="d")))) == {"a": 1, "b": 3, "c": "d"}


@pytest.mark.parametrize(
    "new",
    [
        b"",
        b"\x40",
        encode({}),
        encode({"text": 1}),
        encode([1]),
        b"\xc1\x05\x02\xa3\x01x",
        b"\xd1\0",
        note(a="x" * limits.MAX_NOTE_BYTES),
    ],
)
def test_what_is_no_map_of_symbols_or_too_long_notes_nothing(new: bytes) -> None:
    assert merged(b"", new) == b""
    old = merged(b"", note(a=1))
    assert merged(old, new) == old


def test_a_message_gets_the_annotations_in_place_of_those_of_the_same_names_and_stays_as_it_was() -> None:
    sent: Any = proton.Message(body="b", annotations={proton.symbol("a"): 1, proton.symbol("keep"): "k"}, durable=True, id="7")
    data = bytes(sent.encode())
    found = noted(data, merged(b"", note(a=2, b=True)))
    assert message.message_annotations(found) == {"a": 2, "b": True, "keep": "k"}
    assert found.endswith(data[data.index(b"\x00\x53\x73") :])
    assert noted(b"no message", merged(b"", note(a=2))) == b"no message"


def test_notes_stay_with_their_messages_through_a_checkpoint_and_go_with_them() -> None:
    state = filled()
    batch = put(state, 1, (1, note(a=1)), (2, note(b=2)), (9, note(c=3)), (1, note(a=4)))
    assert [run.kind for run in batch.runs] == [Kind.NOTES] * 4
    assert batch.header.n_records == 4
    put(state, 7, (1, note(a=1)))  # of a queue that is gone
    put(state, 1, (3, b"\x40"))  # which notes nothing
    found = state.messages[1]
    assert {sequence: decode(each) for sequence, each in found.notes.items()} == {1: {"a": 4}, 2: {"b": 2}}
    assert rebuilt(state).messages[1].notes == found.notes
    body = bytes(proton.Message(body="a").encode())
    assert message.message_annotations(found.noted(1, body)) == {"a": 4}
    assert found.noted(3, body) == body
    put(state, 1, (2, note(b=5)), gone=(2, 3))
    assert list(found.notes) == [1]
    state.apply(Batch.parse(_deleted().seal(1, state.index + 1, 0)))
    assert rebuilt(state).messages == {}


def _deleted() -> BatchBuilder:
    builder = BatchBuilder()
    builder.define(delete("queue", "u-q"))
    return builder


def test_a_checkpoint_of_many_notes_is_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    state = filled()
    put(state, 1, *((sequence, note(a="x" * 900)) for sequence in (1, 2, 3)))
    monkeypatch.setattr(limits, "BATCH_TARGET_BYTES", 1000)
    assert len(list(state.snapshot())) == 3
    assert rebuilt(state).messages[1].notes == state.messages[1].notes


def test_a_member_of_an_older_version_stops_at_a_note_and_the_first_format_has_none() -> None:
    builder = BatchBuilder()
    builder.note(1, 1, note(a=1))
    assert builder.only_dequeues is False
    with pytest.raises(CannotApply, match="a NOTES record needs machine version 6"):
        State(5).apply(Batch.parse(builder.seal(1, 1, 0)))
    assert builder.seal(1, 1, 0, first_format=True)[:4] == b"USB2"


@pytest.mark.parametrize(
    "encoded, until_ms",
    [
        (note(**{"x-opt-delivery-time": 5_000}), 5_000),
        (note(**{"x-opt-delivery-delay": 7}), 1_007),
        (note(**{"x-opt-delivery-time": 5_000, "x-opt-delivery-delay": 7}), 5_000),
        (note(**{"x-opt-delivery-time": 1_000}), 0),
        (note(**{"x-opt-delivery-time": 1 << 60}), 1 << 52),
        (note(**{"x-opt-delivery-delay": "soon"}), 0),
        (note(other=1), 0),
        (encode([1]), 0),
        (b"\xc1\x05\x02\xa3\x01x", 0),
    ],
)
def test_a_note_may_say_until_when_a_message_is_to_wait(encoded: bytes, until_ms: int) -> None:
    assert waits_until(encoded, 1_000) == until_ms
