"""The queue against a model that keeps a dict entry for each message, and what the model does not show: cost and memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.core.fifo import SPARSE_RATIO, Fifo, Lot

PLENTY = 1 << 40


def run(messages: list[bytes], before: bytes = b"", after: bytes = b"") -> tuple[bytes, array[int]]:
    """The bytes and offsets of one ENQUEUE run, among what else is in its batch."""
    offsets = array("Q", (len(before),))
    for message in messages:
        offsets.append(offsets[-1] + len(message))
    return before + b"".join(messages) + after, offsets


def sequences(lots: list[Lot]) -> list[int]:
    return [lot.chunk.first_seq + i for lot in lots for i in range(lot.start, lot.stop)]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % i for i in range(first, first + count)]


def fifo_with(*counts: int, sparse_limit: int = PLENTY) -> Fifo:
    """A queue of chunks with so many messages each, sequences from 0 without gaps."""
    fifo = Fifo(sparse_limit=sparse_limit)
    for count in counts:
        fifo.append(fifo.next_seq, *run(numbered(count, fifo.next_seq)))
    return fifo


class FifoMachine(RuleBasedStateMachine):
    """Every call, in any order, against {sequence: [message, state, delivery count]}."""

    def __init__(self) -> None:
        super().__init__()
        self.fifo = Fifo(next_seq=5, sparse_limit=300)
        self.model: dict[int, list[Any]] = {}  # [message, state, delivery count]
        self.next_seq = 5
        self.checkpoints: list[tuple[list[tuple[int, bytes]], Iterator[Lot]]] = []

    def state(self, wanted: str) -> list[int]:
        return [s for s in sorted(self.model) if self.model[s][1] == wanted]

    def bounded(self, candidates: list[int], max_count: int, max_bytes: int) -> list[int]:
        taken: list[int] = []
        for s in candidates[:max_count]:
            max_bytes -= len(self.model[s][0])
            if max_bytes < 0 and taken:
                break
            taken.append(s)
            if max_bytes < 0:
                break
        return taken

    @rule(
        sizes=st.lists(st.integers(0, 40), max_size=12) | st.integers(70, 200).map(lambda n: [9] * n),
        gap=st.sampled_from([0, 0, 0, 1, 7]),
        before=st.integers(0, 60),
        after=st.sampled_from([0, 0, 500]),
    )
    def append(self, sizes: list[int], gap: int, before: int, after: int) -> None:
        first = self.next_seq + gap
        messages = [bytes([(first + i) % 251]) * size for i, size in enumerate(sizes)]
        self.fifo.append(first, *run(messages, b"<" * before, b">" * after))
        self.model.update({first + i: [message, "available", 0] for i, message in enumerate(messages)})
        self.next_seq = first + len(sizes)

    @rule(max_count=st.integers(0, 40), max_bytes=st.integers(0, 300) | st.just(PLENTY))
    def acquire(self, max_count: int, max_bytes: int) -> None:
        lots = self.fifo.acquire(max_count, max_bytes)
        expected = self.bounded(self.state("available"), max_count, max_bytes)
        assert sequences(lots) == expected
        assert [m for lot in lots for m in lot.messages()] == [self.model[s][0] for s in expected]
        for s in expected:
            self.model[s][1] = "acquired"

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Some that are acquired, and some that never were."""
        chosen = data.draw(st.lists(st.sampled_from([0, 99999, *sorted(self.model)]), max_size=20))
        self.fifo.release(chosen)
        for s in chosen:
            if s in self.model and self.model[s][1] == "acquired":
                self.model[s][1] = "available"

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 5) | st.integers(1, 300))
    def remove(self, data: st.DataObject, count: int) -> None:
        first = data.draw(st.integers(min(self.model) - 2, self.next_seq))
        gone = [s for s in range(first, first + count) if s in self.model]
        nbytes = sum(len(self.model.pop(s)[0]) for s in gone)
        assert self.fifo.remove(first, count) == (len(gone), nbytes)
        assert self.fifo.remove(first, count) == (0, 0)

    @precondition(lambda self: self.model)
    @rule(seed=st.randoms(use_true_random=False), share=st.sampled_from([0.3, 0.9]))
    def remove_scattered(self, seed: Random, share: float) -> None:
        for s in seed.sample(sorted(self.model), int(len(self.model) * share)):
            assert self.fifo.remove(s, 1) == (1, len(self.model.pop(s)[0]))

    @rule(cursor=st.integers(0, 400), max_count=st.integers(0, 40), max_bytes=st.integers(0, 300) | st.just(PLENTY))
    def browse(self, cursor: int, max_count: int, max_bytes: int) -> None:
        lots, then = self.fifo.browse(cursor, max_count, max_bytes)
        candidates = [s for s in sorted(self.model) if s >= cursor]
        seen = self.bounded(candidates, max_count, max_bytes)
        assert sequences(lots) == seen
        assert [s for s in sorted(self.model) if s >= then] == candidates[len(seen) :]

    @rule()
    def release_all(self) -> None:
        self.fifo.release_all()
        for entry in self.model.values():
            entry[1] = "available"

    @rule(by=st.integers(0, 3))
    def skip_to(self, by: int) -> None:
        self.next_seq += by
        self.fifo.skip_to(self.next_seq)

    @rule(first=st.integers(0, 300), count=st.integers(1, 30), by=st.integers(1, 255))
    def raise_count(self, first: int, count: int, by: int) -> None:
        self.fifo.raise_count(first, count, by)
        for s in range(first, first + count):
            if s in self.model:
                self.model[s][2] += by

    @rule()
    def take_checkpoint(self) -> None:
        self.checkpoints.append(([(s, self.model[s][0]) for s in sorted(self.model)], self.fifo.lots()))

    @precondition(lambda self: self.checkpoints)
    @rule()
    def write_checkpoint(self) -> None:
        expected, lots = self.checkpoints.pop(0)
        found = list(lots)
        assert list(zip(sequences(found), [m for lot in found for m in lot.messages()], strict=True)) == expected
        assert [lot.first_seq for lot in found] == [lot.chunk.first_seq + lot.start for lot in found]
        assert sum(lot.n_messages for lot in found) == len(expected)
        assert sum(lot.nbytes for lot in found) == sum(len(message) for _, message in expected)

    @invariant()
    def counters_and_states_agree(self) -> None:
        fifo, model = self.fifo, self.model
        acquired = self.state("acquired")
        assert (fifo.depth, fifo.acquired, fifo.available) == (len(model), len(acquired), len(model) - len(acquired))
        assert fifo.live_bytes == sum(len(entry[0]) for entry in model.values())
        assert fifo.next_seq == self.next_seq
        assert fifo.head_seq == min(model, default=self.next_seq)
        assert [s for s in range(self.next_seq + 3) if fifo.is_live(s)] == sorted(model)
        assert [s for s in range(self.next_seq + 3) if fifo.is_acquired(s)] == acquired
        assert [fifo.message(s) for s in range(self.next_seq + 3)] == [
            model[s][0] if s in model else None for s in range(self.next_seq + 3)
        ]
        assert fifo.has_counts == any(entry[2] for entry in model.values())
        assert fifo.delivery_counts() == {s: entry[2] for s, entry in model.items() if entry[2]}
        assert all(fifo.delivery_count(s) == (model[s][2] if s in model else 0) for s in range(self.next_seq))

    @invariant()
    def dead_messages_hold_no_memory(self) -> None:
        assert self.fifo.live_bytes <= self.fifo.held_bytes <= SPARSE_RATIO * self.fifo.live_bytes + 300


FifoMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestAnyOrderOfCalls = FifoMachine.TestCase


def test_a_run_is_given_out_as_one_lot_and_needs_no_bitmap() -> None:
    """Per-message bookkeeping would show as more lots, or as bitmaps, and would cost what chunks are there to save."""
    fifo = fifo_with(1000, 1000)
    lots = fifo.acquire(1500, PLENTY)
    assert [(lot.first_seq, lot.n_messages) for lot in lots] == [(0, 1000), (1000, 500)]
    assert fifo.remove(0, 1200) == (1200, sum(len(message) for message in numbered(1200)))
    assert lots[1].chunk.dead is None
    assert fifo.remove(1900, 100)[0] == 100
    assert lots[1].chunk.dead is None
    assert sequences(list(fifo.lots())) == list(range(1200, 1900))


def test_a_lot_stays_true_after_its_messages_are_gone() -> None:
    """A sender may still be writing a lot's bytes when the queue copies or drops its chunk."""
    fifo = fifo_with(100, sparse_limit=0)
    (lot,) = fifo.acquire(100, PLENTY)
    for sequence in range(1, 100, 2):
        fifo.remove(sequence, 1)
    fifo.remove(2, 96)
    assert fifo.held_bytes == fifo.live_bytes
    assert lot.messages() == numbered(100)


def test_the_first_message_is_given_out_however_large_and_alone() -> None:
    """A message above the byte bound would otherwise block its queue for ever."""
    fifo = fifo_with(3)
    assert sequences(fifo.acquire(10, 0)) == [0]
    fifo.release([0])
    assert sequences(fifo.acquire(10, 0)) == [0]


def test_who_has_no_room_gets_nothing_and_stays_where_it_was() -> None:
    fifo = fifo_with(3)
    assert fifo.browse(1, 0, PLENTY) == ([], 1)
    assert fifo.acquire(0, PLENTY) == []
    lots, cursor = fifo.browse(1, 10, PLENTY)
    assert (sequences(lots), cursor) == ([1, 2], 3)
    assert sequences(fifo.acquire(10, PLENTY)) == [0, 1, 2]


def test_no_message_overtakes_a_released_one_that_is_too_large_for_now() -> None:
    """Filling the room that is left with younger messages would break the order of the queue."""
    fifo = Fifo()
    fifo.append(0, *run([b"a", b"bbbbbbbb", b"c"]))
    fifo.acquire(2, PLENTY)
    fifo.release([1, 0])
    assert sequences(fifo.acquire(10, 4)) == [0]
    assert sequences(fifo.acquire(10, 8)) == [1]
    assert sequences(fifo.acquire(10, 8)) == [2]
    fifo.append(3, *run([b"dddddddd"]))
    fifo.acquire(1, PLENTY)
    fifo.release([2, 3])
    assert sequences(fifo.acquire(10, 4)) == [2]
    assert sequences(fifo.acquire(10, 4)) == [3]


def test_a_sequence_is_never_given_twice() -> None:
    """Applying a batch a second time must fail loudly, and not put its messages on the queue again."""
    fifo = fifo_with(3)
    with pytest.raises(ValueError, match="sequence 2 was given already: the next one is 3"):
        fifo.append(2, *run([b"again"]))
    with pytest.raises(ValueError, match="sequence 1 was given already: the next one is 3"):
        fifo.skip_to(1)
    assert (fifo.depth, fifo.next_seq) == (3, 3)


def test_stuck_messages_do_not_pin_what_was_consumed_around_them() -> None:
    """One message left in each of a thousand batches would otherwise keep all thousand in memory."""
    fifo = Fifo(sparse_limit=10_000)
    for _ in range(1000):
        fifo.append(fifo.next_seq, *run([b"x" * 10] * 100))
    for first in range(0, 100_000, 100):
        fifo.remove(first, 50)
        fifo.remove(first + 51, 49)
    assert (fifo.depth, fifo.live_bytes) == (1000, 10_000)
    assert fifo.held_bytes <= 4 * 10_000 + 10_000
    assert sequences(fifo.acquire(1000, PLENTY)) == list(range(50, 100_000, 100))


def test_a_small_part_of_a_large_batch_does_not_pin_the_batch() -> None:
    """A slow queue that shares batches with a busy one would otherwise hold the busy one's messages."""
    fifo = Fifo(sparse_limit=10_000)
    for i in range(100):
        fifo.append(i, *run([b"mine"], before=b"somebody else's" * 300))
    assert fifo.live_bytes == 400
    assert fifo.held_bytes <= 4 * 400 + 10_000
    assert [m for lot in fifo.lots() for m in lot.messages()] == [b"mine"] * 100


def test_a_copied_chunk_keeps_no_room_for_long_gaps() -> None:
    """The offsets of dead messages are memory too: 8 bytes each, more than a short message has."""
    fifo = fifo_with(10_000, sparse_limit=0)
    fifo.remove(1, 4998)
    fifo.remove(5001, 30)
    fifo.remove(5032, 4967)
    lots = list(fifo.lots())
    assert sequences(lots) == [0, 4999, 5000, 5031, 9999]
    assert [len(lot.chunk.offsets) for lot in lots] == [2, 34, 34, 2]


def test_chunks_that_are_gone_leave_no_trace_when_consumers_finish_out_of_order() -> None:
    """The table of chunks must shrink although the first chunk stays: else a stuck message would cost a slot a batch for ever."""
    fifo = fifo_with(*[1] * 500)
    fifo.remove(1, 498)
    assert len(fifo._chunks) < 300
    assert (fifo.head_seq, fifo.depth) == (0, 2)
    assert sequences(fifo.browse(1, 10, PLENTY)[0]) == [499]
    fifo.append(600, *run([b"later"]))
    fifo.remove(499, 1)
    assert fifo.remove(1, 600) == (1, 5)


@pytest.mark.parametrize("given_out", [0, 4, 9])
@pytest.mark.parametrize("gone", [(4,), (2, 4, 7), (3, 4, 5), tuple(range(4, 8))])
def test_a_stretch_is_removed_whole_though_messages_in_its_middle_were_gone_before(gone: tuple[int, ...], given_out: int) -> None:
    """In one chunk, over several, and over chunks of which nothing is left; be its messages acquired or not."""
    for counts in ((10,), (5, 5), (4, 4, 2), (1,) * 10):
        fifo = fifo_with(*counts)
        fifo.acquire(given_out, PLENTY)
        for sequence in gone:
            assert fifo.remove(sequence, 1)[0] == 1
        left = [sequence for sequence in range(1, 9) if sequence not in gone]
        assert fifo.remove(1, 8) == (len(left), sum(len(numbered(1, sequence)[0]) for sequence in left))
        assert [sequence for sequence in range(10) if fifo.is_live(sequence)] == [0, 9]
        assert (fifo.depth, fifo.acquired) == (2, min(given_out, 1))
        assert sequences(fifo.acquire(10, PLENTY)) == [sequence for sequence in (0, 9) if sequence >= given_out]


def test_the_counts_of_a_stretch_are_raised_though_messages_in_its_middle_are_gone() -> None:
    fifo = fifo_with(5, 1, 4)
    for sequence in (2, 5, 7):
        fifo.remove(sequence, 1)
    fifo.raise_count(1, 8, 3)
    assert fifo.delivery_counts() == dict.fromkeys((1, 3, 4, 6, 8), 3)


def test_released_messages_that_are_removed_are_forgotten() -> None:
    """An expiring queue whose consumers release everything would otherwise collect sequences without end."""
    fifo = fifo_with(1000)
    fifo.acquire(1000, PLENTY)
    fifo.release(range(1000))
    fifo.remove(0, 10)
    assert sequences(fifo.acquire(1, PLENTY)) == [10]
    fifo.remove(10, 900)
    assert len(fifo._heap) < 300
    assert sequences(fifo.acquire(1000, PLENTY)) == list(range(910, 1000))
    assert (fifo.acquired, fifo.available) == (90, 0)


def test_delivery_counts_go_with_their_messages() -> None:
    """A sparse table that is not cleared is a leak, and would be written into each checkpoint."""
    fifo = fifo_with(10, 10, 10)
    fifo.remove(20, 10)
    fifo.append(30, *run([b"later"]))
    fifo.raise_count(8, 4, 1)
    fifo.raise_count(20, 10, 1)
    fifo.raise_count(8, 1, 2)
    assert fifo.delivery_counts() == {8: 3, 9: 1, 10: 1, 11: 1}
    fifo.remove(0, 9)
    fifo.remove(10, 5)
    assert fifo.delivery_counts() == {9: 1}
    assert (fifo.delivery_count(9), fifo.delivery_count(8)) == (1, 0)
