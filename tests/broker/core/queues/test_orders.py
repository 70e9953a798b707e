"""Both disciplines against a model that keeps a dict entry for each message: any order of calls, with bodies that come and go."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import google_crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.core.queues.blocks import FILE_SHIFT, Columns, Lot, Move
from broker.core.queues.discipline import discipline_of
from broker.core.queues.lane import LANE_SHIFT
from broker.core.queues.residency import Residency
from tests.broker.core.queues.files import Files, append, message, read_back, sequences

PLENTY = 1 << 40


class OrderMachine(RuleBasedStateMachine):
    """Every call, in any order, against {sequence: [message, state, delivery count]}."""

    def __init__(self) -> None:
        super().__init__()
        self.files = Files()
        self.live_by_file: dict[int, int] = {}
        self.residency = Residency(PLENTY)
        self.model: dict[int, list[Any]] = {}
        self.taken: list[tuple[list[tuple[int, bytes]], list[Columns | Lot]]] = []

    @initialize(levels=st.sampled_from([1, 1, 2, 3]))
    def create(self, levels: int) -> None:
        self.arguments = {"qpid.priorities": levels}
        self.order = discipline_of(self.arguments, self.live_by_file, self.residency)
        self.next_seqs = [lane.next_seq for lane in self.order.lanes]

    def lane(self, level: int) -> int:
        return level % len(self.next_seqs)

    def ranked(self, *states: str) -> list[int]:
        """The messages in these states, in the order in which they go out."""
        found = [s for s in self.model if self.model[s][1] in states]
        return sorted(found, key=lambda s: (-(s >> LANE_SHIFT), s))

    def bounded(self, candidates: Sequence[int], max_count: int, max_bytes: int) -> tuple[list[int], int]:
        """Those that go out at once, and the one at which it stops because it is not in memory, or -1."""
        taken: list[int] = []
        for s in candidates:
            if len(taken) >= max_count:
                break
            if self.order.lane_of(s).lot_of(s) is None:
                return taken, s
            max_bytes -= len(self.model[s][0])
            if max_bytes < 0 and taken:
                break
            taken.append(s)
            if max_bytes < 0:
                break
        return taken, -1

    @rule(
        level=st.integers(0, 2),
        sizes=st.lists(st.integers(0, 40), max_size=12) | st.integers(70, 200).map(lambda n: [9] * n),
        gap=st.sampled_from([0, 0, 0, 1, 7]),
        before=st.integers(0, 60),
        after=st.sampled_from([0, 0, 500]),
        where=st.sampled_from(["here", "here", "here", "new file", "nowhere"]),
        keep=st.booleans(),
    )
    def append(self, level: int, sizes: list[int], gap: int, before: int, after: int, where: str, keep: bool) -> None:
        lane = self.order.lanes[self.lane(level)]
        first = self.next_seqs[self.lane(level)] + gap
        messages = [bytes([(first + i) % 251]) * size for i, size in enumerate(sizes)]
        ends = b"<" * before, b">" * after
        if where == "new file":
            self.files.begin()
        place = 0 if where == "nowhere" else self.files.write(ends[0] + b"".join(messages) + ends[1])
        append(lane, first, messages, place, before=ends[0], after=ends[1], keep=keep)
        self.model.update({first + i: [each, "available", 0] for i, each in enumerate(messages)})
        self.next_seqs[self.lane(level)] = first + len(sizes)

    @rule(level=st.integers(0, 2), count=st.integers(60, 200))
    def append_one_by_one(self, level: int, count: int) -> None:
        for _ in range(count):
            self.append(level, [7], 0, 0, 0, "here", True)

    @rule(max_count=st.integers(0, 40), max_bytes=st.integers(0, 300) | st.just(PLENTY))
    def acquire(self, max_count: int, max_bytes: int) -> None:
        expected, stopped = self.bounded(self.ranked("available"), max_count, max_bytes)
        lots = self.order.acquire(object(), max_count, max_bytes)
        assert sequences(lots) == expected
        assert self.order.absent == stopped
        assert [m for lot in lots for m in lot.messages()] == [self.model[s][0] for s in expected]
        assert sum(lot.nbytes for lot in lots) == sum(len(self.model[s][0]) for s in expected)
        for s in expected:
            self.model[s][1] = "acquired"

    @precondition(lambda self: self.order.absent >= 0)
    @rule()
    def read_what_is_absent(self) -> None:
        if self.order.absent in self.model:
            read_back(self.order.lane_of(self.order.absent), self.files, self.order.absent)

    @precondition(lambda self: self.order.absent >= 0)
    @rule()
    def give_up_what_is_absent(self) -> None:
        """Its disk has rotted: it stays, and nobody gets it."""
        lane = self.order.lane_of(self.order.absent)
        block = lane.block_of(self.order.absent)
        if self.order.absent in self.model and block is not None:
            run = block.run_of(self.order.absent - block.first_seq)
            lo, hi = block.bounds(run)
            gone = [s for s in range(block.first_seq + lo, block.first_seq + hi) if s in self.model]
            assert lane.give_up(self.order.absent, block.places[run] + 1) == 0
            assert lane.give_up(self.order.absent, block.places[run]) == len(gone)
            read_back(lane, self.files, self.order.absent)  # it was a passing fault: whoever reads it again mends it

    @rule(bytes_left=st.integers(0, 3000))
    def drop_bodies(self, bytes_left: int) -> None:
        self.residency.limit_bytes = bytes_left
        self.residency.enforce()
        assert self.residency.held_bytes <= bytes_left
        self.residency.limit_bytes = PLENTY

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Some that are acquired, and some that never were."""
        chosen = data.draw(st.lists(st.sampled_from([0, 99999, *sorted(self.model)]), max_size=20))
        self.order.release(chosen)
        for s in chosen:
            if s in self.model and self.model[s][1] == "acquired":
                self.model[s][1] = "available"

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 5) | st.integers(1, 300))
    def remove(self, data: st.DataObject, count: int) -> None:
        first = max(data.draw(st.sampled_from(sorted(self.model))) - data.draw(st.integers(0, 2)), 0)
        gone = [s for s in range(first, first + count) if s in self.model]
        nbytes = sum(len(self.model.pop(s)[0]) for s in gone)
        assert self.order.remove(first, count) == (len(gone), nbytes)
        assert self.order.remove(first, count) == (0, 0)

    @precondition(lambda self: self.model)
    @rule(seed=st.randoms(use_true_random=False), share=st.sampled_from([0.3, 0.9, 1.0]))
    def remove_scattered(self, seed: Random, share: float) -> None:
        for s in seed.sample(sorted(self.model), int(len(self.model) * share)):
            assert self.order.remove(s, 1) == (1, len(self.model.pop(s)[0]))

    @rule(data=st.data(), max_count=st.integers(0, 40), max_bytes=st.integers(0, 300) | st.just(PLENTY))
    def browse(self, data: st.DataObject, max_count: int, max_bytes: int) -> None:
        cursors = [0] if data.draw(st.booleans()) else [n - data.draw(st.integers(0, 60)) for n in self.next_seqs]
        candidates = [
            s for s in self.ranked("available", "acquired") if s >= cursors[0 if len(cursors) == 1 else s >> LANE_SHIFT]
        ]
        seen, stopped = self.bounded(candidates, max_count, max_bytes)
        assert sequences(self.order.browse(cursors, max_count, max_bytes)) == seen
        assert self.order.absent == stopped
        left = [s for s in self.ranked("available", "acquired") if s >= cursors[0 if len(cursors) == 1 else s >> LANE_SHIFT]]
        assert left == candidates[len(seen) :]

    @rule()
    def release_all(self) -> None:
        self.order.release_all()
        for entry in self.model.values():
            entry[1] = "available"

    @rule(level=st.integers(0, 2), by=st.integers(0, 3))
    def skip_to(self, level: int, by: int) -> None:
        self.next_seqs[self.lane(level)] += by
        self.order.lanes[self.lane(level)].skip_to(self.next_seqs[self.lane(level)])

    @rule(first=st.integers(0, 300), level=st.integers(0, 2), count=st.integers(1, 30), by=st.integers(1, 255))
    def raise_count(self, first: int, level: int, count: int, by: int) -> None:
        first += self.lane(level) << LANE_SHIFT
        self.order.lane_of(first).raise_count(first, count, by)
        for s in range(first, first + count):
            if s in self.model:
                self.model[s][2] += by

    @rule(share=st.sampled_from([0.5, 1.0]), seed=st.randoms(use_true_random=False), late=st.booleans())
    def compact_the_oldest_file(self, share: float, seed: Random, late: bool) -> None:
        """What is alive in a file is copied; while that is done, messages die, or the file is copied by another hand."""
        old = min((file for file in self.files.contents if self.live_by_file.get(file)), default=0)
        if not old:
            return
        self.files.begin()
        for lane in self.order.lanes:
            moves = []
            for run in lane.live_runs_in(old):
                data = self.files.read(run.place, run.nbytes)
                assert google_crc32c.value(data) == run.crc
                ends = [0]
                for length in run.lengths:
                    ends.append(ends[-1] + length)
                alive = [i for i in range(len(run.lengths)) if run.first_seq + i in self.model]
                assert alive
                assert set(alive) <= {i for start, stop in run.stretches for i in range(start, stop)}
                for start, stop in run.stretches:
                    part = data[ends[start] : ends[stop]]
                    was = run.place + ends[start]
                    moves.append(
                        Move(run.first_seq + start, stop - start, was, self.files.write(part), google_crc32c.value(part))
                    )
            if late and self.model:
                self.remove_scattered(seed, share)
            lane.moved(moves)
            lane.moved(moves)
        if not self.live_by_file.get(old):
            del self.files.contents[old]

    @rule()
    def take_snapshot(self) -> None:
        parts = [part for lane in self.order.lanes for part in lane.snapshot()]
        self.taken.append(([(s, self.model[s][0]) for s in sorted(self.model)], parts))

    @precondition(lambda self: self.taken)
    @rule()
    def use_snapshot(self) -> None:
        """It rebuilds what was alive then, where the files are still there."""
        expected, parts = self.taken.pop(0)
        other_files: dict[int, int] = {}
        other = discipline_of(self.arguments, other_files, Residency(PLENTY))
        for part in parts:
            if isinstance(part, Lot):
                append(other.lane_of(part.first_seq), part.first_seq, part.messages())
            else:
                first_seq, count, columns = part.to_bytes()
                lane = other.lane_of(first_seq)
                depth = lane.depth
                found, _ = lane.put_block(first_seq, count, columns)
                assert lane.depth == depth + found > depth
        assert other.depth == len(expected)
        assert other.live_bytes == sum(other_files.values()) == sum(len(body) for _, body in expected)
        assert {s for s, _ in expected} == {s for lane in other.lanes for s in alive_in(lane)}
        for sequence, body in expected:
            lane = other.lane_of(sequence)
            block = lane.block_of(sequence)
            assert block is not None
            place = block.places[block.run_of(sequence - block.first_seq)]
            if not place or place >> FILE_SHIFT in self.files.contents:
                assert message(lane, self.files, sequence) == body
        for level, next_seq in enumerate([lane.next_seq for lane in other.lanes]):
            append(other.lanes[level], next_seq, [b"later"])
            assert other.lanes[level].is_live(next_seq)

    @invariant()
    def counters_and_states_agree(self) -> None:
        order, model = self.order, self.model
        acquired = [s for s in model if model[s][1] == "acquired"]
        assert (order.depth, order.acquired, order.available) == (len(model), len(acquired), len(model) - len(acquired))
        assert order.live_bytes == sum(len(entry[0]) for entry in model.values())
        assert order.has_counts == any(entry[2] for entry in model.values())
        for level, lane in enumerate(order.lanes):
            here = sorted(s for s in model if s >> LANE_SHIFT == level)
            assert lane.next_seq == self.next_seqs[level]
            assert lane.head_seq == min(here, default=self.next_seqs[level])
            assert sorted(alive_in(lane)) == here
            first = level << LANE_SHIFT
            for s in range(max(first, self.next_seqs[level] - 400), self.next_seqs[level] + 3):
                assert lane.is_live(s) == (s in model)
                assert order.is_acquired(s) == (s in model and model[s][1] == "acquired")
                assert message(lane, self.files, s) == (model[s][0] if s in model else None)
                assert lane.delivery_count(s) == (model[s][2] if s in model else 0)
            assert lane.delivery_counts() == {s: model[s][2] for s in here if model[s][2]}

    @invariant()
    def the_ledger_of_files_says_what_lies_where(self) -> None:
        found: dict[int, int] = {}
        for s, (body, _, _) in self.model.items():
            block = self.order.lane_of(s).block_of(s)
            assert block is not None
            file = block.places[block.run_of(s - block.first_seq)] >> FILE_SHIFT
            found[file] = found.get(file, 0) + len(body)
        assert {file: n for file, n in found.items() if n} == {file: n for file, n in self.live_by_file.items() if n}

    @invariant()
    def what_is_counted_is_what_is_held(self) -> None:
        blocks = [block for lane in self.order.lanes for block in lane.blocks]
        assert self.residency.held_bytes == sum(block.held for block in blocks)
        for block in blocks:
            for run in block.bodies:
                assert list(block.stretches(*block.bounds(run))), "the body of a run that is dead"
        for lane in self.order.lanes:
            if not lane.spilled:
                assert all(lane.lot_of(s) is not None for s in alive_in(lane) if self.model[s][1] == "available")


def alive_in(lane: Any) -> list[int]:
    return [
        s
        for block in lane.blocks
        for lo, hi in block.stretches(0, block.count)
        for s in range(block.first_seq + lo, block.first_seq + hi)
    ]


OrderMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestAnyOrderOfCalls = OrderMachine.TestCase
