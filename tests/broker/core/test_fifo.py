"""The queue against a model that keeps a dict entry for each message, and what the model does not show: cost and memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
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
        assert fifo.delivery_counts() == {s: entry[2] for s, entry in model.items() if entry[2]}
        assert all(fifo.delivery_count(s) == (model[s][2] if s in model else 0) for s in range(self.next_seq))

    @invariant()
    def dead_messages_hold_no_memory(self) -> None:
        assert self.fifo.live_bytes <= self.fifo.held_bytes <= SPARSE_RATIO * self.fifo.live_bytes + 300


FifoMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestAnyOrderOfCalls = FifoMachine.TestCase
