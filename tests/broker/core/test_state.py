"""What a log says, applied: the same everywhere, rebuilt by its own snapshot, and unmoved by definitions that do not fit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from broker.core import limits
from broker.core.commands import QueueAdd
from broker.core.definitions import Nothing
from broker.core.queues.blocks import Move
from broker.core.queues.residency import Residency
from broker.core.records import BadBatch, Batch, BatchBuilder
from broker.core.state import CannotApply, State
from tests.broker.core.definitions import (
    Change,
    alive,
    batch,
    bind,
    contents,
    delete,
    exchange,
    histories,
    play,
    queue,
    state_number,
    state_of,
    unbind,
)
from tests.broker.core.queues.files import Files, all_messages


def rebuilt(state: State) -> State:
    """The state that another broker makes of this one's snapshot."""
    other = State()
    for builder in state.snapshot():
        other.apply(Batch.parse(builder.seal(1, state.index, 0)), snapshot=True)
    return other


def reasons(state: State, *changes: Change) -> list[str]:
    """What became of each change in one batch."""
    return [reason for _, reason in state.apply(batch(state.index + 1, *changes)).changes]


# ---- the two laws


@settings(max_examples=60)
@given(histories())
def test_a_snapshot_rebuilds_the_state_that_it_was_taken_of(history: list[list[Change]]) -> None:
    """Otherwise a backup that caught up by snapshot would differ from one that was there all the time."""
    state = State()
    play(state, history)
    other = rebuilt(state)
    assert contents(other) == contents(state)
    assert other.index == state.index


@settings(max_examples=40)
@given(histories(), histories())
def test_brokers_that_apply_the_same_batches_agree_even_if_one_began_with_a_snapshot(
    before: list[list[Change]], after: list[list[Change]]
) -> None:
    primary, backup = State(), State()
    for data in play(primary, before):
        backup.apply(data)
    late = rebuilt(primary)
    for data in play(primary, after):
        backup.apply(data)
        late.apply(data)
    assert contents(backup) == contents(late) == contents(primary)


def test_a_snapshot_is_of_the_moment_of_its_call() -> None:
    """It is written by another thread while the broker goes on."""
    state = state_of(queue("q"))
    state.apply(batch(2, enqueue=[(1, 1, [b"one", b"two"])]))
    taken, expected = state.snapshot(), contents(state)
    builder = BatchBuilder()
    builder.dequeues_for(1).append(1)
    builder.define(queue("later"))
    state.apply(Batch.parse(builder.seal(1, 3, 0)))
    state.apply(batch(4, delete("queue", "u-q")))
    other = State()
    for each in taken:
        other.apply(Batch.parse(each.seal(1, 2, 0)), snapshot=True)
    assert contents(other) == expected


# ---- batches


def test_batches_come_in_the_order_of_their_indexes() -> None:
    state = state_of(queue("q"))
    with pytest.raises(AssertionError, match="batch 1 after 1"):
        state.apply(batch(1))


def test_applying_tells_which_queues_got_messages_and_what_became_of_each_change() -> None:
    state = state_of(queue("q"), queue("other"))
    applied = state.apply(batch(2, queue("q", uuid="second"), enqueue=[(1, 1, [b"one"]), (99, 1, [b"nobody's"])]))
    assert applied.fed == {1}
    ((change, reason),) = applied.changes
    assert isinstance(change, Nothing)
    assert change.command.text == batch(2, queue("q", uuid="second")).data[-len(change.command.text) :]
    assert "exists already" in reason


def test_applying_tells_which_queues_have_lost_messages_and_which_their_last_one() -> None:
    state = state_of(queue("q"), queue("other"))
    state.apply(batch(2, enqueue=[(1, 1, [b"one", b"two"]), (2, 1, [b"one"])]))
    cases = [({1: [1], 2: []}, {1}, set[int]()), ({1: [2], 2: [1], 9: [1]}, {1, 2}, {1, 2})]
    for index, (taken, drained, emptied) in enumerate(cases, 3):
        builder = BatchBuilder()
        for number, sequences in taken.items():
            builder.dequeues_for(number).extend(sequences)
        applied = state.apply(Batch.parse(builder.seal(1, index, 0)))
        assert (applied.drained, applied.emptied) == (drained, emptied)


def test_messages_are_counted_as_they_come_and_go() -> None:
    state = state_of(queue("q"))
    state.apply(batch(2, enqueue=[(1, 1, [b"one", b"three"])]))
    builder = BatchBuilder()
    builder.dequeues_for(1).append(2)
    builder.dequeues_for(7).append(2)
    builder.count(1, 1)
    builder.count(7, 1)
    state.apply(Batch.parse(builder.seal(1, 3, 0)))
    messages = state.messages[1]
    assert (messages.enqueued, messages.enqueued_bytes) == (2, 8)
    assert (messages.dequeued, messages.dequeued_bytes) == (1, 5)
    assert alive(state) == {1: {1: (b"one", 1)}}
    assert state.live_bytes == 3


def test_records_for_a_queue_that_is_gone_do_nothing() -> None:
    state = state_of(queue("q"))
    state.apply(batch(2, enqueue=[(1, 1, [b"one"])]))
    applied = state.apply(batch(3, delete("queue", "u-q"), enqueue=[(1, 2, [b"two"])]))
    assert applied.fed == set()
    assert state.live_bytes == 0
    assert state.messages == {}


def test_a_batch_that_changes_the_members_changes_nothing_here() -> None:
    builder = BatchBuilder()
    builder.members({"voters": []})
    state = State()
    assert state.apply(Batch.parse(builder.seal(1, 1, 0))).changes == []
    assert state.index == 1


# ---- places


def placed(files: Files, index: int, *runs: tuple[int, int, list[bytes]]) -> Batch:
    """A batch with messages (queue number, first sequence, messages) that lies on disk."""
    data = batch(index, enqueue=runs).data
    return Batch.parse(data, place=files.write(data))


def test_a_snapshot_of_what_lies_on_disk_holds_places_and_no_message() -> None:
    files, state = Files(), state_of(queue("q"), queue("other"))
    state.apply(placed(files, 2, (1, 1, [b"x" * 1000] * 5), (2, 1, [b"y" * 1000])))
    state.apply(batch(3, enqueue=[(1, 6, [b"nowhere"])]))
    state.apply(placed(files, 4, (1, 7, [b"x" * 1000])))
    assert sum(len(builder.seal(1, 4, 0)) for builder in state.snapshot()) < 1500
    other = rebuilt(state)
    assert other.live_bytes == state.live_bytes == 7007
    assert {file: n for file, n in other.live_by_file.items() if n} == {0: 7, 1: 7000}
    for number in (1, 2):
        lanes = [each.messages[number].order.lanes[0] for each in (state, other)]
        assert list(all_messages(lanes[1], files.read_spans)) == list(all_messages(lanes[0], files.read_spans))
    assert (other.messages[1].enqueued, other.messages[1].enqueued_bytes) == (7, 6007)


def test_places_of_a_queue_that_is_gone_do_nothing_and_wrong_ones_are_a_bad_batch() -> None:
    builder = BatchBuilder()
    builder.places(1, 1, 1, b"no columns")
    data = Batch.parse(builder.seal(1, 2, 0))
    State().apply(data, snapshot=True)
    with pytest.raises(BadBatch, match="batch 2: 10 bytes are too few for the columns of a block"):
        state_of(queue("q")).apply(data, snapshot=True)


def test_a_file_that_is_compacted_has_nothing_left_alive() -> None:
    files, state = Files(), state_of(queue("q"), queue("other"), queue("p", arguments={"qpid.priorities": 2}, needs=2))
    high = (1 << 56) + 1
    state.apply(placed(files, 2, (1, 1, [b"one", b"two"]), (2, 1, [b"three"]), (3, 1, [b"low"]), (3, high, [b"high"])))
    files.begin()
    found = state.live_runs_in(1)
    moves: dict[int, list[Move]] = {}
    for number, run in found:
        place = files.write(files.read(run.place, run.nbytes))
        moves.setdefault(number, []).append(Move(run.first_seq, len(run.lengths), run.place, place, run.crc))
        if number == 1:
            state.apply(batch(3, delete("queue", "u-other")))
    assert list(moves) == [1, 3]
    for number, each in moves.items():
        state.moved(number, each)
    state.moved(2, [])
    list(state.snapshot())
    assert list(state.live_by_file) == [2]
    assert state.live_bytes == 13


def test_bodies_are_kept_where_a_broker_serves_and_forgotten_when_its_state_is() -> None:
    files, residency = Files(), Residency(1 << 30)
    state = State(residency=residency)
    state.apply(batch(1, queue("q")))
    state.apply(placed(files, 2, (1, 1, [b"one"])))
    assert residency.held_bytes > 0
    state.drop_bodies()
    assert residency.held_bytes == 0
    state.keeps_bodies = False
    state.apply(placed(files, 3, (1, 2, [b"two"])))
    assert residency.held_bytes == 0
    assert (state.messages[1].depth, state.messages[1].live_bytes) == (2, 6)
    state.discard()
    assert state.live_bytes == 0


# ---- definitions


def test_a_queue_number_is_never_used_again() -> None:
    """Records of a deleted queue may still be under way: they must not hit its successor."""
    state = state_of(queue("q"), delete("queue", "u-q"), queue("q", uuid="second"))
    assert list(state.messages) == [2]
    assert state_number(rebuilt(state)) == 3


def test_a_queue_of_level_configuration_has_no_messages_here_and_a_store_has_nothing_else() -> None:
    state = state_of(queue("q", "configuration"), {"op": "store-add", "uuid": "u-of-another-log"})
    assert list(state.by_uuid) == ["u-of-another-log"]
    assert reasons(state, {"op": "store-add", "uuid": "u-of-another-log"}) == ["this queue's messages have a place already"]
    assert reasons(state, *[delete("store", "u-of-another-log")] * 2) == ["", "there is no place for this queue's messages"]
    assert state.messages == {}


def test_what_is_gone_takes_its_bindings_with_it_and_frees_its_name() -> None:
    state = state_of(queue("q"), queue("p"), exchange("x"), bind("x-x", "u-q", "k"), bind("x-x", "u-p"), bind("amq.topic", "u-q"))
    assert reasons(state, *[delete("queue", "u-q")] * 2) == ["", "there is no such queue"]
    assert list(state.definitions.bindings) == [("x-x", "u-p", "")]
    assert reasons(state, *[delete("exchange", "x-x")] * 2) == ["", "there is no such exchange"]
    assert not state.definitions.bindings
    assert reasons(state, queue("q"), exchange("x")) == ["", ""]


def test_a_name_is_one_queue_and_one_exchange() -> None:
    state = state_of(queue("n"), exchange("n"))
    assert reasons(state, queue("n", uuid="2"), exchange("n", uuid="3")) == [
        "a queue named 'n' exists already",
        "an exchange named 'n' exists already",
    ]


def test_binding_again_changes_the_arguments_or_nothing() -> None:
    state = state_of(queue("q"), exchange("x", "headers"))
    first, second = bind("x-x", "u-q", "k", a=1), bind("x-x", "u-q", "k", a=2)
    assert reasons(state, first, first, second) == ["", "this binding exists already", ""]
    assert state.definitions.bindings["x-x", "u-q", "k"].arguments == {"a": 2}
    assert reasons(state, *[unbind("x-x", "u-q", "k")] * 2) == ["", "there is no such binding"]


@pytest.mark.parametrize(
    "newer,why",
    [
        ({"op": "juggle"}, "'juggle' is unknown"),
        (queue("q") | {"needs": 99}, "'queue-add' needs machine version 99"),
        ({"op": "queue-add", "uuid": 7}, "is not a command: Expected `str`, got `int`"),
        ({}, "'' is unknown"),
    ],
)
def test_a_batch_with_a_command_that_this_version_cannot_apply_is_not_applied_at_all(newer: Change, why: str) -> None:
    """Whoever went on without it would say of itself that it is level, and would not be."""
    state = state_of(queue("before"))
    expected = contents(state)
    with pytest.raises(CannotApply, match="batch 2 cannot be applied") as caught:
        state.apply(batch(2, queue("with it"), newer, enqueue=[(1, 1, [b"one"])]))
    assert why in caught.value.why
    assert caught.value.index == 2
    assert (contents(state), state.index) == (expected, 1)


def test_fields_that_this_version_does_not_know_are_kept_for_those_that_do() -> None:
    known = queue("q") | {"colour": {"red": [1, 2.5]}, "name": "\u00e4\u2028"}
    state = state_of(known, bind("amq.topic", "u-q") | {"weight": 3}, {"op": "store-add", "uuid": "s", "why": None})
    texts = [command.text for command in rebuilt(state).definitions.commands()]
    assert [json.loads(text) for text in texts] == [
        known | {"number": 1},
        {"op": "store-add", "uuid": "s", "why": None, "number": 2},
        bind("amq.topic", "u-q") | {"weight": 3},
    ]


def test_only_the_latest_terms_are_remembered() -> None:
    state = state_of(*({"op": "reign", "epoch": n} for n in range(limits.MAX_HISTORY + 5)))
    assert [term.epoch for term in state.definitions.terms] == list(range(5, limits.MAX_HISTORY + 5))


def test_a_state_knows_when_the_epoch_before_was_last_heard_of() -> None:
    """Breaks when an outage of all brokers has no beginning."""
    state = State()
    assert state.ended_ms == 0
    for index, (epoch, made_ms) in enumerate([(1, 100), (1, 250), (3, 900), (3, 950)], 1):
        state.apply(Batch.parse(BatchBuilder().seal(epoch, index, made_ms)))
    assert (state.ended_ms, state.made_ms) == (250, 950)


# ---- snapshots of much


def test_a_snapshot_of_much_comes_in_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of everything would have to fit in memory three times over."""
    monkeypatch.setattr(limits, "BATCH_TARGET_BYTES", 200)
    state = state_of(*(queue(f"queue-{n}") for n in range(5)))
    for first in range(1, 20, 2):
        state.apply(batch(first + 1, enqueue=[(n, first, [b"x" * 90] * 2) for n in (1, 2)]))
    sizes = [len(builder.seal(1, 2, 0)) for builder in state.snapshot()]
    assert len(sizes) > 10
    assert max(sizes) < 600
    assert contents(rebuilt(state)) == contents(state)


def test_an_empty_queue_goes_on_counting_behind_a_snapshot() -> None:
    """A sequence that came twice would let the end of one message take the other off."""
    state = state_of(queue("q"))
    builder = BatchBuilder()
    builder.messages_for(1, 1).extend([b"one", b"two"])
    builder.dequeues_for(1).extend([1, 2])
    state.apply(Batch.parse(builder.seal(1, 2, 0)))
    assert rebuilt(state).messages[1].next_seqs() == [3]


def test_a_delivery_count_beyond_one_record_survives_a_snapshot() -> None:
    state = state_of(queue("q"))
    state.apply(batch(2, enqueue=[(1, 1, [b"one", b"two", b"three"])]))
    for index in range(3, 6):
        builder = BatchBuilder()
        builder.count(1, 1, 255)
        builder.count(1, 2, 85)
        state.apply(Batch.parse(builder.seal(1, index, 0)))
    assert alive(rebuilt(state))[1] == {1: (b"one", 765), 2: (b"two", 255), 3: (b"three", 0)}


@pytest.mark.parametrize("bodies,taken", [([b"one", b"two"], [2]), ([b""], []), ([b""], [1])])
def test_a_queue_goes_after_a_checkpoint_whatever_is_left_of_its_messages(bodies: list[bytes], taken: list[int]) -> None:
    """A checkpoint forgets the files in which nothing is alive, and a block may still name one."""
    state = state_of(queue("q"))
    state.apply(batch(2, enqueue=[(1, 1, bodies)]))
    builder = BatchBuilder()
    builder.dequeues_for(1).extend(range(1, len(bodies)))
    builder.count(1, 1)
    state.apply(Batch.parse(builder.seal(1, 3, 0)))
    list(state.snapshot())
    builder = BatchBuilder()
    builder.dequeues_for(1).extend(taken)
    state.apply(Batch.parse(builder.seal(1, 4, 0)))
    list(state.snapshot())
    state.apply(batch(5, delete("queue", "u-q")))
    assert (state.messages, state.live_bytes) == ({}, 0)


def test_a_dequeue_that_frees_a_group_feeds_its_queue_as_a_message_does() -> None:
    """Otherwise nobody gives out the rest of the group before something else happens."""
    state = State()
    command = QueueAdd(
        uuid="u", name="q", level="all", arguments={"qpid.group_header_key": "g", "qpid.shared_msg_group": 1}, needs=5
    )
    builder = BatchBuilder()
    builder.define_text(command.text)
    builder.enqueue_at(1, 1, [b"one", b"two"])
    state.apply(Batch.parse(builder.seal(1, 1, 0)))
    order = state.messages[1].order
    order.acquire("somebody", 1, 1000)
    for index, (sequence, fed) in enumerate([(2, set[int]()), (1, {1})], 2):
        builder = BatchBuilder()
        builder.dequeues_for(1).append(sequence)
        assert state.apply(Batch.parse(builder.seal(1, index, 0))).fed == fed
