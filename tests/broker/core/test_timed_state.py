"""TIMES records: how they are written, what a state makes of them, and that checkpoints keep them."""

from __future__ import annotations

from array import array

import pytest

from broker.core import limits, message
from broker.core.commands import LARGE_SINCE, TIMES_SINCE, QueueAdd, QueueDel
from broker.core.parts import PARTS_QUEUE, Manifest
from broker.core.queues.times import CHUNK
from broker.core.records import AVAILABLE, EXPIRES, HEADER_BYTES, BadBatch, Batch, BatchBuilder, Kind
from broker.core.state import CannotApply, State


def applied(state: State, builder: BatchBuilder, index: int) -> State:
    state.apply(Batch.parse(builder.seal(1, index, 0)))
    return state


def timed(count: int = 4, *, version: int = TIMES_SINCE) -> State:
    """A queue with so many messages; each odd one expires at ten times its sequence, each fourth waits until its sequence."""
    state, builder = State(version), BatchBuilder()
    builder.define_text(QueueAdd(uuid="u", name="q", level="all").text)
    applied(state, builder, 1)
    builder = BatchBuilder()
    builder.messages_for(1, 1).extend([b"m"] * count)
    builder.times(1, EXPIRES, 1, array("Q", [10 * each if each % 2 else 0 for each in range(1, count + 1)]))
    builder.times(1, AVAILABLE, 1, array("Q", [0 if each % 4 else each for each in range(1, count + 1)]))
    return applied(state, builder, 2)


def times_of(state: State) -> tuple[dict[int, int], dict[int, int]]:
    """What expires when, and what waits until when."""
    (messages,) = [each for each in state.messages.values() if each.uuid]
    both = []
    for times in (messages.expiries, messages.delays):
        columns = [] if times is None else list(times.columns())
        both.append({first + at: when for first, its in columns for at, when in enumerate(its) if when})
    return both[0], both[1]


def test_a_batch_has_its_times_behind_the_messages_and_a_state_has_them_until_their_messages_go() -> None:
    state = timed()
    assert times_of(state) == ({1: 10, 3: 30}, {4: 4})
    builder = BatchBuilder()
    builder.dequeues_for(1).extend([1, 4])
    assert times_of(applied(state, builder, 3)) == ({3: 30}, {})


def test_the_next_time_of_a_queue_is_the_earliest_of_both_kinds() -> None:
    state = timed()
    messages = state.messages[1]
    assert (messages.next_due_ms, messages.has_times) == (4, True)
    assert messages.delays is not None
    messages.delays.take(4, 9)
    assert messages.next_due_ms == 10
    untimed = State()
    builder = BatchBuilder()
    builder.define_text(QueueAdd(uuid="u", name="q", level="all").text)
    applied(untimed, builder, 1)
    assert (untimed.messages[1].next_due_ms, untimed.messages[1].has_times) == (None, False)


@pytest.mark.parametrize("count", [4, 3 * CHUNK + 7])
@pytest.mark.parametrize("target", [64, limits.BATCH_TARGET_BYTES])
def test_a_checkpoint_has_all_times_and_nothing_of_what_was_taken(
    count: int, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_TARGET_BYTES", target)
    state = timed(count)
    expiries = state.messages[1].expiries
    assert expiries is not None
    expiries.take(15, 99)
    other = State()
    for builder in state.snapshot():
        other.apply(Batch.parse(builder.seal(1, 2, 0)), snapshot=True)
    assert times_of(other) == times_of(state)
    copied = other.messages[1].expiries
    assert copied is not None
    assert copied.take(10, 1) == [1]


def test_times_for_a_queue_that_is_gone_do_nothing() -> None:
    builder = BatchBuilder()
    builder.times(7, EXPIRES, 1, array("Q", [5]))
    assert builder
    assert not builder.only_dequeues
    assert times_of(applied(timed(), builder, 3)) == times_of(timed())


def test_a_queue_that_goes_keeps_no_times_for_who_still_refers_to_it() -> None:
    state, builder = timed(), BatchBuilder()
    messages = state.messages[1]
    builder.define_text(QueueDel(uuid="u").text)
    applied(state, builder, 3)
    assert (messages.depth, messages.has_times, messages.next_due_ms) == (0, False, None)


@pytest.mark.parametrize("what", [EXPIRES, AVAILABLE])
def test_times_of_messages_that_have_left_are_not_kept(what: int) -> None:
    """Breaks when a consumer gives back what has left its queue meanwhile: nothing would ever remove the time that it gets."""
    last = 3 * CHUNK
    state, at = timed(last), (EXPIRES, AVAILABLE).index(what)
    builder = BatchBuilder()
    builder.dequeues_for(1).extend([1, *range(3, last - 1)])
    applied(state, builder, 3)
    builder = BatchBuilder()
    builder.times(1, what, 1, array("Q", [5] * (last + 9)))  # nine of them have not come yet
    builder.times(1, what, CHUNK, array("Q", [7]))
    builder.dequeues_for(1).append(last)
    applied(state, builder, 4)
    assert times_of(state)[at] == {2: 5, last - 1: 5}
    builder = BatchBuilder()
    builder.dequeues_for(1).extend([2, last - 1])
    applied(state, builder, 5)
    builder = BatchBuilder()
    builder.times(1, what, 2, array("Q", [9]))
    applied(state, builder, 6)
    messages = state.messages[1]
    assert messages.next_due_ms is None
    assert [len(each) for each in (messages.expiries, messages.delays) if each is not None] == [0, 0]


def test_a_checkpoint_of_an_earlier_release_is_read_without_the_times_of_what_has_left() -> None:
    state = timed(8)
    builder = BatchBuilder()
    builder.dequeues_for(1).extend(range(1, 7))
    applied(state, builder, 3)
    messages = state.messages[1]
    messages.put_times(EXPIRES, 1, array("Q", [3] * 6))  # as an earlier release did
    assert times_of(state) == (dict.fromkeys(range(1, 7), 3) | {7: 70}, {8: 8})
    other = State()
    for builder in state.snapshot():
        other.apply(Batch.parse(builder.seal(1, 3, 0)), snapshot=True)
    assert times_of(other) == ({7: 70}, {8: 8})


def test_a_large_message_and_its_time_come_in_one_batch() -> None:
    state, builder = timed(), BatchBuilder()
    builder.enqueue_at(PARTS_QUEUE, 1, [b"part"])
    applied(state, builder, 3)
    builder = BatchBuilder()
    builder.times(1, EXPIRES, 5, array("Q", [50]))
    builder.large(1, 5, Manifest(4, ((1, 1),)).to_bytes())
    applied(state, builder, 4)
    assert times_of(state) == ({1: 10, 3: 30, 5: 50}, {4: 4})


def test_a_member_of_an_older_version_stops_at_the_first_time() -> None:
    with pytest.raises(CannotApply, match="a TIMES record needs machine version 5"):
        timed(version=LARGE_SINCE)


def test_the_first_format_has_no_times() -> None:
    builder = BatchBuilder()
    builder.times(1, EXPIRES, 1, array("Q", [5]))
    assert builder.seal(1, 1, 0, first_format=True)[:4] == b"USB2"


def test_times_of_no_known_kind_and_too_few_of_them_are_refused() -> None:
    builder = BatchBuilder()
    builder.times(1, 9, 1, array("Q", [5]))
    with pytest.raises(ValueError, match="times of an unknown kind 9"):
        applied(timed(), builder, 3)
    builder = BatchBuilder()
    builder.times(1, EXPIRES, 1, array("Q", [5, 6]))
    data = bytearray(builder.seal(1, 1, 0))
    data[HEADER_BYTES + 16] = 3  # the count of its messages
    with pytest.raises(BadBatch, match="the times of 3 messages in 16 bytes"):
        Batch.parse(bytes(data), verified=True)
    assert Batch.parse(builder.seal(1, 1, 0)).runs[0].kind is Kind.TIMES


@pytest.mark.parametrize(
    "failed, left, count, first, ttl", [(0, 0, 2, True, 900), (0, 7, 2, True, 7), (3, 0, 5, False, 900), (3, 7, 5, False, 7)]
)
def test_what_goes_out_says_the_failures_and_what_is_left_of_its_time(
    failed: int, left: int, count: int, first: bool, ttl: int
) -> None:
    data = message.with_delivery_state(b"\x00\x53\x77\x40", 2, True, 900)
    found = message.header(message.as_delivered(data, failed, left))
    assert (found.delivery_count, found.first_acquirer, found.ttl_ms) == (count, first, ttl)


@pytest.mark.parametrize("data", [b"\x00\x53\x77\x40", b"\x01"])
def test_what_has_no_time_to_live_gets_none_and_what_is_no_message_stays(data: bytes) -> None:
    assert message.as_delivered(data, 0, 7) == data
