"""Large messages in a state: manifests on queues, parts in their store, against a model that knows which queue has which."""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.parts import PARTS_QUEUE, BadManifest, Manifest, Parts
from broker.core.queues.blocks import Columns
from broker.core.queues.discipline import discipline_of
from broker.core.queues.reading import body_of
from broker.core.queues.residency import Residency
from broker.core.records import BadBatch, Batch, BatchBuilder
from broker.core.state import CannotApply, State
from tests.broker.core.definitions import contents, delete, queue, state_of
from tests.broker.core.test_state import rebuilt


def apply(state: State, builder: BatchBuilder, *, place: int = 1 << 32) -> None:
    """Apply as the next batch, one that lies at this place (0: nowhere)."""
    index = state.index + 1
    state.apply(Batch.parse(builder.seal(1, index, 0), place=place and place + (index << 16)))


def put_parts(builder: BatchBuilder, first: int, *parts: bytes) -> Manifest:
    """Add a message's parts, each a run of its own."""
    for sequence, part in enumerate(parts, first):
        builder.enqueue_at(PARTS_QUEUE, sequence, [part])
    return Manifest(sum(map(len, parts)), ((first, len(parts)),))


def parts_of(state: State) -> list[int]:
    """The sequences of the parts alive."""
    blocks = state.parts.order.lanes[0].blocks_from(0)
    return [block.first_seq + at for block in blocks for lo, hi in block.stretches(0, block.count) for at in range(lo, hi)]


def orphans_of(state: State) -> list[int]:
    return [sequence for first, count in state.parts.orphans() for sequence in range(first, first + count)]


def with_large(*numbers: int, queues: int = 2) -> tuple[State, Manifest]:
    """A state with queues 1, 2, ... of which those of `numbers` have a large message of three parts as sequence 5."""
    state = state_of(*(queue(f"q{n}") for n in range(1, queues + 1)))
    builder = BatchBuilder()
    manifest = put_parts(builder, 1, b"one", b"two", b"three")
    for number in numbers:
        builder.large(number, 5, manifest.to_bytes())
    apply(state, builder)
    return state, manifest


def dequeue(state: State, number: int, *sequences: int) -> None:
    builder = BatchBuilder()
    builder.dequeues_for(number).extend(sequences)
    apply(state, builder)


# ---- manifests


@given(st.integers(0, 2**64 - 1), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=9))
def test_a_manifest_reads_back_as_it_was_written(nbytes: int, steps: list[tuple[int, int]]) -> None:
    ranges, at = [], 0
    for gap, count in steps:
        ranges.append((at + gap, count))
        at += gap + count
    manifest = Manifest(nbytes, tuple(ranges))
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert list(manifest.sequences) == [each for first, count in ranges for each in range(first, first + count)]
    assert manifest.key == ranges[0][0]


@pytest.mark.parametrize(
    "data, why",
    [
        (b"short", "too few"),
        (Manifest(1, ()).to_bytes(), "not a manifest of 0 ranges"),
        (Manifest(1, ((1, 1),)).to_bytes() + b"x", "not a manifest of 1 ranges"),
        (Manifest(1, ((1, 2), (2, 1))).to_bytes(), "do not ascend"),
        (Manifest(1, ((1, 0),)).to_bytes(), "do not ascend"),
    ],
)
def test_what_is_no_manifest_is_refused_with_a_text(data: bytes, why: str) -> None:
    """Breaks when parts of other messages could be taken for this one's, or removed with it."""
    with pytest.raises(BadManifest, match=why):
        Manifest.from_bytes(data)


def test_a_batch_with_a_bad_manifest_is_a_bad_batch() -> None:
    state = state_of(queue("q"))
    builder = BatchBuilder()
    builder.large(1, 1, b"nonsense")
    with pytest.raises(BadBatch, match="batch 2: 8 bytes are too few for a manifest"):
        apply(state, builder)


# ---- what a LARGE record does


def test_a_large_message_is_one_message_with_all_of_its_bytes() -> None:
    """The queue's limits and statistics are about what the client sent, not about the manifest."""
    state, manifest = with_large(1)
    messages = state.messages[1]
    assert (messages.depth, messages.live_bytes) == (1, 11)
    assert (messages.enqueued, messages.enqueued_bytes) == (1, 11)
    assert messages.large == {5: manifest}
    dequeue(state, 1, 5)
    assert (messages.depth, messages.live_bytes, messages.large) == (0, 0, {})
    assert (messages.dequeued, messages.dequeued_bytes) == (1, 11)


def test_the_parts_go_with_the_last_queue_that_has_the_message() -> None:
    state, _ = with_large(1, 2)
    dequeue(state, 1, 5)
    assert parts_of(state) == [1, 2, 3], "queue 2 has it still"
    dequeue(state, 1, 5)
    assert parts_of(state) == [1, 2, 3], "what is gone is let go once"
    dequeue(state, 2, 5)
    assert parts_of(state) == []
    assert state.live_bytes == 0


def test_a_queue_that_is_deleted_lets_go_of_its_large_messages() -> None:
    state, _ = with_large(1, 2)
    builder = BatchBuilder()
    builder.define(delete("queue", "u-q1"))
    builder.define(delete("queue", "u-q2"))
    apply(state, builder)
    assert parts_of(state) == []


def test_a_large_message_for_queues_that_are_gone_leaves_no_parts() -> None:
    """The queue was deleted while the message was on its way: its record says nothing any more."""
    state, _ = with_large(8, 9)
    assert parts_of(state) == []
    state, _ = with_large(1, 9)
    assert parts_of(state) == [1, 2, 3]


def test_a_message_that_moves_on_to_another_queue_keeps_its_parts() -> None:
    state, manifest = with_large(1)
    builder = BatchBuilder()
    builder.large(2, 1, manifest.to_bytes())
    builder.dequeues_for(1).append(5)
    apply(state, builder)
    assert parts_of(state) == [1, 2, 3]
    assert state.messages[2].large == {1: manifest}


def test_a_manifest_whose_parts_are_missing_is_never_applied() -> None:
    """A truncated message must not be taken for a whole one: the log stops instead."""
    state, manifest = with_large()
    dequeue(state, PARTS_QUEUE, 2)
    builder = BatchBuilder()
    builder.large(1, 1, manifest.to_bytes())
    with pytest.raises(ValueError, match="1 parts of a large message are missing"):
        apply(state, builder)


def test_a_member_of_version_2_stops_at_a_large_record() -> None:
    state = State(2)
    builder = BatchBuilder()
    builder.define(queue("q"))
    builder.large(1, 1, Manifest(1, ((1, 1),)).to_bytes())
    with pytest.raises(CannotApply, match="a LARGE record needs machine version 3"):
        apply(state, builder)
    assert (state.index, state.messages) == (0, {})


def test_a_queue_with_a_large_message_on_its_way_is_not_empty() -> None:
    state = state_of(queue("q1"))
    builder = BatchBuilder()
    builder.define({"op": "queue-del-if-empty", "uuid": "u-q1", "needs": 2})
    builder.large(1, 1, put_parts(builder, 1, b"x").to_bytes())
    apply(state, builder)
    assert state.messages[1].depth == 1


def test_parts_do_not_stay_in_memory_and_manifests_do() -> None:
    """Twenty uploads at a time must not fill the primary's memory; a manifest is short, and lies in no file."""
    state, _ = with_large(1)
    assert state.residency.held_bytes == 0
    assert all(not block.bodies for block in state.parts.order.lanes[0].blocks)
    state.drop_bodies()
    assert [lot.first_seq for lot in state.messages[1].order.acquire(None, 9, 9)] == [5]


# ---- orphans


def test_parts_that_no_message_refers_to_are_orphans() -> None:
    """Their message never became whole: the primary that took it is gone."""
    state, _ = with_large(1)
    builder = BatchBuilder()
    put_parts(builder, 4, b"a", b"b")
    apply(state, builder)
    assert state.parts.orphans() == [(4, 2)]
    assert rebuilt(state).parts.orphans() == [(4, 2)]
    dequeue(state, PARTS_QUEUE, 4, 5)
    assert state.parts.orphans() == []
    assert state.parts.next_seq == 6


def test_orphans_are_found_between_and_around_the_parts_of_messages() -> None:
    state = state_of(queue("q"))
    builder = BatchBuilder()
    put_parts(builder, 1, *[b"p"] * 9)
    for sequence, ranges in ((1, ((2, 1), (5, 1))), (2, ((3, 1), (8, 1)))):
        builder.large(1, sequence, Manifest(2, ranges).to_bytes())
    builder.dequeues_for(PARTS_QUEUE).append(6)
    apply(state, builder)
    assert orphans_of(state) == [1, 4, 7, 9]


def test_a_part_is_read_from_its_own_place_with_its_own_checksum() -> None:
    """However many parts a batch brings: what is read for one is not what lies beside it."""
    state, _ = with_large(1)
    lane = state.parts.order.lanes[0]
    found = [body_of(lane, sequence) for sequence in (1, 2, 3)]
    places = [body.place for body in found if body is not None]
    assert [body.sequence for body in found if body is not None] == [1, 2, 3]
    assert [body.nbytes for body in found if body is not None] == [3, 3, 5]
    assert [body.crc for body in found if body is not None] == [google_crc32c.value(each) for each in (b"one", b"two", b"three")]
    assert places == [places[0], places[0] + 3, places[0] + 6]
    assert body_of(lane, 4) is None
    dequeue(state, 1, 5)
    assert body_of(lane, 2) is None


# ---- snapshots


def test_a_snapshot_has_large_messages_in_their_places_among_others() -> None:
    state = state_of(queue("q"))
    for sequence in range(1, 9):
        builder = BatchBuilder()
        if sequence % 3:
            builder.enqueue_at(1, sequence, [b"small"])
        else:
            builder.large(1, sequence, put_parts(builder, sequence, b"large").to_bytes())
        apply(state, builder, place=0 if sequence < 5 else 1 << 32)
    other = rebuilt(state)
    assert contents(other) | {"messages": 0} == contents(state) | {"messages": 0}
    assert other.messages[1].large == state.messages[1].large
    assert other.messages[1].live_bytes == state.messages[1].live_bytes
    assert [part for lane in other.messages[1].order.lanes for part in lane.snapshot() if not isinstance(part, Columns)]
    assert other.live_by_file == {file: n for file, n in state.live_by_file.items() if n}


def test_sequences_of_parts_are_never_given_twice_even_after_a_snapshot_without_any() -> None:
    state, _ = with_large(1)
    dequeue(state, 1, 5)
    assert rebuilt(state).parts.next_seq == 4


def test_a_log_without_large_messages_says_nothing_of_parts() -> None:
    """Its snapshots are read by members of version 2."""
    state = state_of(queue("q"))
    assert PARTS_QUEUE not in state.messages
    last = Batch.parse(list(state.snapshot())[-1].seal(1, 1, 0))
    assert last.json(last.runs[0])["seqs"] == [[1, 1]]


def test_a_state_that_is_replaced_counts_none_of_its_parts() -> None:
    state, _ = with_large(1)
    state.discard()
    assert state.live_bytes == 0


STEPS = st.lists(
    st.tuples(st.just("upload"), st.lists(st.integers(1, 3), max_size=3, unique=True), st.integers(1, 4))
    | st.tuples(st.just("dequeue"), st.integers(1, 3), st.integers(1, 12))
    | st.tuples(st.just("delete"), st.integers(1, 3), st.just(0))
    | st.tuples(st.just("snapshot"), st.just(0), st.just(0)),
    max_size=40,
)


@settings(max_examples=150)
@given(STEPS)
def test_the_parts_alive_are_those_of_the_messages_on_queues_and_the_orphans(steps: list[tuple[str, object, int]]) -> None:
    """The law: no part outlives its message, and no message its parts, whatever comes and goes in between."""
    state = state_of(*(queue(f"q{n}") for n in (1, 2, 3)))
    on: dict[int, dict[int, range]] = {1: {}, 2: {}, 3: {}}
    lost: set[int] = set()
    for kind, what, n in steps:
        builder = BatchBuilder()
        if kind == "upload":
            assert isinstance(what, list)
            first = state.parts.next_seq
            manifest = put_parts(builder, first, *[b"part"] * n)
            if not what:
                lost.update(manifest.sequences)
            for number in what:
                known = state.messages.get(number)
                sequence = known.next_seqs()[0] if known is not None else 1
                builder.large(number, sequence, manifest.to_bytes())
                if number in on:
                    on[number][sequence] = range(first, first + n)
        elif kind == "dequeue":
            assert isinstance(what, int)
            builder.dequeues_for(what).append(n)
            on.get(what, {}).pop(n, None)
        elif kind == "delete":
            assert isinstance(what, int)
            builder.define(delete("queue", f"u-q{what}"))
            on.pop(what, None)
        else:
            state = rebuilt(state)
        apply(state, builder)
        held = {sequence for here in on.values() for parts in here.values() for sequence in parts}
        assert set(parts_of(state)) == held | lost
        assert set(orphans_of(state)) == lost
        for number, here in on.items():
            assert set(state.messages[number].large) == set(here)
            assert state.messages[number].live_bytes == sum(4 * len(parts) for parts in here.values())


def test_orphans_of_an_empty_store_are_none() -> None:
    assert Parts(discipline_of({}, {}, Residency(1))).orphans() == []
