"""What of another store's queues has come here: runs of sequences, and the records that say so."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core import limits
from broker.core.commands import OriginAdd, OriginForget, OriginRelease
from broker.core.definitions import DrainForgotten, Nothing, OriginMade, OriginsReleased
from broker.core.origins import (
    PLAIN,
    RESUMED,
    SEQUENCE_BYTES,
    TAG_BYTES,
    Held,
    Leave,
    Traits,
    named,
    read_tags,
    store_and_queue,
    traits_of,
)
from broker.core.records import BadBatch, Batch, BatchBuilder, Kind
from broker.core.state import CannotApply, State
from tests.broker.core.definitions import Change, queue, state_of
from tests.broker.core.test_parts import apply
from tests.broker.core.test_state import rebuilt


def origin(name: str = "q", drain: str = "d", into: str = "u-q", **more: Any) -> Change:
    return {"op": "origin-add", "drain": drain, "store": "s", "queue": name, "into": into, "needs": 5} | more


def release(drain: str = "d") -> Change:
    return {"op": "origin-release", "drain": drain, "needs": 5}


def forget(drain: str = "d") -> Change:
    return {"op": "origin-forget", "drain": drain, "needs": 5}


@pytest.mark.parametrize("store,name", [("", "uuid"), ("store", "store.uuid")])
def test_a_queue_is_named_with_its_store_if_no_other_store_has_its_messages(store: str, name: str) -> None:
    assert named(store, "uuid") == name
    assert store_and_queue(name) == (store, "uuid")


def test_a_queue_is_moved_to_until_the_last_drain_to_it_has_said_that_all_has_come_or_has_ended() -> None:
    state = state_of(queue("q"), queue("p"), origin("a"), origin("b"), origin("c", drain="e"))
    moving = state.definitions.is_moving
    assert (moving("u-q"), moving("u-p")) == (True, False)
    change(state, origin("a", sourceEpoch=RESUMED), origin("b", into="u-p"))
    assert (moving("u-q"), moving("u-p")) == (True, True), "the other drain's, and the queue that b comes to from now on"
    assert rebuilt(state).definitions.is_moving("u-q")
    change(state, origin("a"))
    change(state, release("e"))
    assert (moving("u-q"), moving("u-p")) == (False, True), "what was resumed is not moved again"
    change(state, release("d"))
    assert (moving("u-q"), moving("u-p")) == (False, False)


def test_runs_of_two_places_are_one_account() -> None:
    held = Held()
    held.add(1, 3)
    assert held.with_runs([(3, 2), (9, 1)]).runs() == [(1, 4), (9, 1)]
    assert held.runs() == [(1, 3)]


def change(state: State, *changes: Change) -> list[tuple[Any, str]]:
    builder = BatchBuilder()
    for each in changes:
        builder.define(each)
    return state.apply(Batch.parse(builder.seal(1, state.index + 1, 0))).changes


def put(state: State, number: int, *runs: tuple[int, int]) -> None:
    """A message on queue 1 for each sequence of these runs, and what says that they are of this origin."""
    builder = BatchBuilder()
    first = state.messages[1].order.lanes[0].next_seq
    for start, count in runs:
        builder.messages_for(1, first).extend([b"m"] * count)
        builder.hold(number, start, count)
    apply(state, builder)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), max_size=30), st.integers(0, 80), st.integers(1, 4))
@settings(deadline=None)
def test_runs_are_a_set_whatever_order_their_sequences_come_in(added: list[tuple[int, int]], after: int, most: int) -> None:
    held, model = Held(), set[int]()
    for first, count in added:
        held.add(first, count)
        model |= set(range(first, first + count))
    runs = held.runs()
    assert [sequence for first, count in runs for sequence in range(first, first + count)] == sorted(model)
    assert all(first + count < following for (first, count), (following, _) in pairwise(runs)), "they touch"
    assert [sequence for sequence in range(90) if sequence in held] == sorted(model)
    assert (held.count, held.n_runs) == (len(model), len(runs))
    assert held.runs(after, most) == [run for run in runs if sum(run) > after][:most]


@given(*[st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), max_size=20)] * 2)
@settings(deadline=None)
def test_runs_that_are_taken_out_leave_what_is_beside_them(added: list[tuple[int, int]], removed: list[tuple[int, int]]) -> None:
    held, model = Held(), set[int]()
    for first, count in added:
        held.add(first, count)
        model |= set(range(first, first + count))
    for first, count in removed:
        held.remove(first, count)
        model -= set(range(first, first + count))
    runs = held.runs()
    assert [sequence for first, count in runs for sequence in range(first, first + count)] == sorted(model)
    assert all(first + count < following for (first, count), (following, _) in pairwise(runs)), "they touch"


def test_sequences_that_no_message_can_have_are_left_out_of_a_set() -> None:
    """Breaks when a log of an earlier release that names one cannot be applied."""
    held = Held()
    for first, count in (((1 << 64) - 1, 1), ((1 << 63) - 2, 5), (1 << 63, 7)):
        held.add(first, count)
    assert held.runs() == [((1 << 63) - 2, 2)]
    assert held.with_runs([((1 << 64) - 1, 1)]).runs() == held.runs()


def test_what_comes_in_order_is_one_run_for_each_level_of_priority() -> None:
    held, level = Held(), 3 << 56
    for at in range(1, 1000, 10):
        held.add(at, 10)
        held.add(level | at, 10)
    assert held.runs() == [(1, 1000), (level | 1, 1000)]


def test_a_batch_says_which_messages_of_an_origin_it_puts_and_its_checkpoint_says_it_again() -> None:
    state = state_of(queue("q"), origin("there"), origin("other", into="u-gone"))
    number = state.definitions.origins["d", "there"].number
    assert number == 2, "queues and origins share one count, which a checkpoint holds"
    put(state, number, (7, 3), (10, 2), (40, 1))
    put(state, 3, (5, 1))
    put(state, 99, (1, 1))  # of an origin that was released meanwhile
    assert state.held[number].runs() == [(7, 5), (40, 1)]
    assert state.held_runs == 3
    again = rebuilt(state)
    assert {each: held.runs() for each, held in again.held.items()} == {2: [(7, 5), (40, 1)], 3: [(5, 1)]}
    assert again.held_runs == 3
    assert again.definitions.next_number == state.definitions.next_number == 4
    assert again.definitions.origins == state.definitions.origins


def test_a_checkpoint_of_many_runs_is_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(queue("q"), origin())
    put(state, 2, *((at, 1) for at in range(1, 400, 2)))
    monkeypatch.setattr(limits, "BATCH_TARGET_BYTES", 1000)
    assert len(list(state.snapshot())) > 5
    assert rebuilt(state).held[2].runs() == state.held[2].runs()


def test_runs_that_follow_one_another_are_one_record() -> None:
    builder = BatchBuilder()
    for first, count in ((5, 2), (7, 1), (9, 1)):
        builder.hold(2, first, count)
    assert bool(builder) is True
    assert BatchBuilder().only_dequeues is not builder.only_dequeues
    batch = Batch.parse(builder.seal(1, 1, 0))
    assert [(run.kind, run.queue, run.first_seq, run.count) for run in batch.runs] == [(Kind.HELD, 2, 5, 3), (Kind.HELD, 2, 9, 1)]
    assert batch.header.n_records == 4
    assert builder.seal(1, 1, 0, first_format=True)[:4] == b"USB2"


def test_a_release_forgets_what_is_held_and_takes_nothing_more_until_it_is_forgotten_itself() -> None:
    state = state_of(queue("q"), origin(), origin("b"), origin(drain="e"))
    put(state, 2, (1, 5), (9, 1))
    put(state, 4, (1, 1))
    ((gone, _),) = change(state, release())
    assert isinstance(gone, OriginsReleased)
    assert {each.queue for each in gone.origins} == {"q", "b"}
    assert (list(state.held), state.held_runs) == ([4], 1), "the other drain goes on"
    put(state, 2, (20, 1))
    assert list(state.held) == [4]
    again = change(state, release(), origin(), forget("e"))
    assert [reason for _, reason in again] == [
        "this drain was released already",
        "this drain has ended: its store was released",
        "this drain was not released",
    ]
    assert all(isinstance(each, Nothing) for each, _ in again)
    assert rebuilt(state).definitions.released == state.definitions.released
    assert change(state, forget())[0] == (DrainForgotten("d"), "")
    assert change(state, forget())[0][1] == "this drain was not released"
    assert rebuilt(state).definitions.released == {}


def test_an_origin_that_is_announced_again_keeps_what_is_held_be_it_for_another_queue() -> None:
    state = state_of(queue("q"), origin())
    put(state, 2, (1, 5))
    assert change(state, origin())[0][1] == "this origin is known already"
    ((made, reason),) = change(state, origin(into="u-other"))
    assert isinstance(made, OriginMade)
    assert (made.origin.number, made.origin.into, reason) == (2, "u-other", "")
    assert state.held[2].runs() == [(1, 5)]
    assert rebuilt(state).definitions.origins["d", "q"].into == "u-other"


def test_origins_and_releases_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ORIGINS", 2)
    monkeypatch.setattr(limits, "MAX_RELEASED", 1)
    state = state_of(queue("q"), origin("a"), origin("b"))
    assert change(state, origin("c"))[0][1] == "messages of 2 origins come already"
    assert change(state, origin("b", into="u-x"))[0][1] == "", "one that is there already may change"
    change(state, release("d"))
    assert change(state, release("e"))[0][1].startswith("1 drains were released and not forgotten")


def test_an_older_member_stops_before_the_first_of_these_records() -> None:
    builder = BatchBuilder()
    builder.hold(2, 1, 1)
    with pytest.raises(CannotApply, match="a HELD record needs machine version 5"):
        State(4).apply(Batch.parse(builder.seal(1, 1, 0)))


def test_a_held_record_has_no_payload() -> None:
    builder = BatchBuilder()
    builder.large(1, 1, b"manifest")
    data = bytearray(builder.seal(1, 1, 0))
    data[48] = Kind.HELD
    with pytest.raises(BadBatch, match="HELD record with a payload"):
        Batch.parse(bytes(data), verified=True)


def test_a_leave_says_what_its_setting_says() -> None:
    leave = Leave("d", ("a:1", "b:2"), "2026-01-01T00:00:00Z")
    assert Leave.of(leave.value()) == leave
    assert Leave.of({}) == Leave("", (), "")
    assert leave.addresses_for("any") == leave.to


def test_of_several_targets_each_queue_has_one_and_those_that_are_not_named_the_first() -> None:
    leave = Leave("d", ("a:1", "b:1", "b:2"), "", target="x,y", sizes=(1, 2), queues={"q": 1})
    assert Leave.of(leave.value()) == leave
    found = [leave.addresses_for(queue) for queue in ("q", "another", "")]
    assert found == [("b:1", "b:2"), ("a:1",), ("a:1", "b:1", "b:2")]


@pytest.mark.parametrize(
    "command,text",
    [
        (
            OriginAdd(drain="d", store="s", queue="q", into="i"),
            b'{"drain":"d","into":"i","needs":5,"op":"origin-add","queue":"q","store":"s"}',
        ),
        (OriginRelease(drain="d"), b'{"drain":"d","needs":5,"op":"origin-release"}'),
        (OriginForget(drain="d"), b'{"drain":"d","needs":5,"op":"origin-forget"}'),
    ],
)
def test_the_commands_of_drains_have_their_texts(command: Any, text: bytes) -> None:
    assert command.text == text


def test_traits_stand_behind_the_sequence_in_a_tag() -> None:
    traits = Traits(1 << 51, 2, 255)
    tag = bytes(7) + b"\5" + traits.to_bytes()
    assert len(tag) == TAG_BYTES <= 32, "a tag has 32 bytes at most (part 2.8.7)"
    assert read_tags([tag]) == ((5,), (traits.to_bytes(),))
    some = [PLAIN, traits, PLAIN]
    assert traits_of([each.to_bytes() for each in some]) == some
    assert traits_of([PLAIN.to_bytes()] * 2) == [PLAIN] * 2


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=5), st.integers(0, 40), st.integers(1, 30))
def test_the_stretch_of_sequences_that_a_target_holds(runs: list[tuple[int, int]], first: int, count: int) -> None:
    held = Held().with_runs(runs)
    known, missing = held.covered(first, count)
    present = [sequence in held for sequence in range(first, first + count)]
    assert not any(present[:missing])
    assert all(present[missing : missing + known])
    assert missing + known == count or not present[missing + known]
    assert known or missing == count


def test_tags_are_read_as_sequences_with_or_without_traits_and_others_are_not_read() -> None:
    plain = [(7).to_bytes(8, "big"), (1 << 60).to_bytes(8, "big")]
    assert read_tags(plain) == ((7, 1 << 60), (b"", b""))
    traits = b"t" * (TAG_BYTES - SEQUENCE_BYTES)
    assert read_tags([tag + traits for tag in plain]) == ((7, 1 << 60), (traits, traits))
    for wrong in ([], [b""], [b"short"], [plain[0], b""], [plain[0], plain[1] + b"t"]):
        assert read_tags(wrong) == ((), ())
