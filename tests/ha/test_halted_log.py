"""A log that holds what this release must not apply: it stops there, says so, and goes on storing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from broker.core.commands import MACHINE_VERSION, Command, MachineVersion, QueueAdd, QueueDelIfEmpty
from broker.core.queues.blocks import LiveRun, Move
from broker.core.records import Batch, BatchBuilder
from broker.core.state import State
from ha.batch_cache import LEAST_BYTES
from ha.core.settings import MIB, ReplicaSettings
from tests.ha.log_cluster import Machine


class Stating:
    """A listener that is nothing but a state, of a release that applies commands up to `version`."""

    def __init__(self, version: int, clock: Clock) -> None:
        self.clock = clock
        self.state = State(version)
        self.states: list[str] = []
        self.errors: list[tuple[str, bool]] = []

    def on_committed(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.state.apply(batch)

    def on_state(self, state: str, epoch: int, primary: str) -> None:
        self.states.append(state)

    def on_reset(self, batches: Iterable[Batch], index: int) -> None:
        state = State(self.state.version)
        for batch in batches:
            state.apply(batch, snapshot=True)
        state.index = index
        self.state = state

    def on_writable(self) -> None:
        """There is nothing that waits."""

    def on_storage_error(self, text: str, fatal: bool) -> None:
        self.errors.append((text, fatal))

    def on_storage_low(self, text: str, spare_bytes: int = 0) -> None:
        """There is room."""

    def on_storage_spare(self, spare_bytes: int, most_bytes: int = 0) -> None:
        """There is room."""

    def on_quiesce(self, within_s: float, done: Callable[[], None]) -> None:
        """It has no clients."""
        self.clock.callLater(0, done)

    def on_resume(self) -> None:
        """It has no clients."""

    def snapshot(self) -> Iterable[BatchBuilder]:
        return self.state.snapshot()

    def live_bytes(self) -> int:
        return self.state.live_bytes

    def live_by_file(self) -> Mapping[int, int]:
        return self.state.live_by_file

    def live_runs_in(self, file: int) -> Iterator[tuple[int, LiveRun]]:
        return self.state.live_runs_in(file)

    def moved(self, queue: int, moves: Iterable[Move]) -> None:
        self.state.moved(queue, moves)


class Mixed:
    """Brokers a and b of this release, c of the one before."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.machine = Machine(folder, **options)
        self.listeners: dict[str, Stating] = {}

    def start(self, address: str, version: int = MACHINE_VERSION, members: str = "abc") -> Any:
        self.listeners[address] = Stating(version, self.machine.clock)
        return self.machine.start(address, members, listener=self.listeners[address])

    def started(self) -> Mixed:
        for address, version in (("a", MACHINE_VERSION), ("b", MACHINE_VERSION), ("c", 1)):
            self.start(address, version)
        self.promote("a")
        return self

    def promote(self, address: str) -> Any:
        return self.machine.promote(address)

    def log(self, address: str) -> Any:
        return self.machine.brokers[address].log

    def write(self, address: str, *commands: Command | dict[str, Any]) -> int:
        """Propose these in one batch and wait until it is applied where it was proposed."""
        log = self.log(address)
        self.machine.run_until(lambda: log.may_propose)
        builder = BatchBuilder()
        for command in commands:
            if isinstance(command, Command):
                builder.define_text(command.text)
            else:
                builder.define(command)
        index = int(log.propose(builder))
        self.machine.run_until(lambda: self.listeners[address].state.index >= index)
        return index

    def applied(self, address: str) -> int:
        return self.listeners[address].state.index

    def level(self, *addresses: str) -> bool:
        return len({self.applied(each) for each in addresses} | {self.log(each).status().last_index for each in addresses}) == 1


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    made = Mixed(tmp_path).started()
    yield made
    made.machine.close()


NEWER: list[Command | dict[str, Any]] = [
    MachineVersion(needs=2),
    {"op": "juggle", "balls": 3},
    QueueAdd(uuid="n", name="n", level="all", needs=2),
]


def queue(name: str) -> QueueAdd:
    return QueueAdd(uuid=f"u-{name}", name=name, level="all")


def test_a_member_stops_before_what_it_does_not_know_and_says_what_to_do(mixed: Mixed) -> None:
    before = mixed.write("a", queue("before"))
    mixed.write("a", queue("beside"), MachineVersion(needs=2))
    last = mixed.write("a", queue("after"))
    machine, c = mixed.machine, mixed.log("c")
    machine.run_until(lambda: c.halted and c.status().last_index == last)
    machine.run_for(1.0)
    assert mixed.applied("c") == before
    assert set(mixed.listeners["c"].state.definitions.queues) == {"u-before"}
    assert c.halted == (
        f"batch {before + 1} cannot be applied: 'machine-version' needs machine version 2; nothing more is applied here: "
        "upgrade this broker"
    )
    assert mixed.applied("b") == last


def test_a_stopped_member_stores_and_its_disk_counts_for_the_majority(mixed: Mixed) -> None:
    mixed.write("a", MachineVersion(needs=2))
    mixed.machine.run_until(lambda: bool(mixed.log("c").halted))
    mixed.machine.kill("b")
    index = mixed.write("a", queue("q"))
    mixed.machine.run_until(lambda: mixed.log("c").status().durable_index >= index)
    assert mixed.log("a").status().commit_index >= index, "by a's disk and c's"
    assert mixed.applied("c") < index


def test_a_stopped_member_is_refused_as_primary_and_votes_for_another(mixed: Mixed) -> None:
    mixed.write("a", MachineVersion(needs=2))
    mixed.machine.run_until(lambda: bool(mixed.log("c").halted))
    refused = mixed.promote("c")
    assert not refused.won
    assert "c cannot apply its log" in refused.reason
    assert "upgrade this broker" in refused.reason
    mixed.machine.kill("a")
    mixed.machine.run_for(2.0)
    assert mixed.promote("b").won


def test_a_member_that_was_elected_before_it_met_what_it_does_not_know_steps_down(mixed: Mixed) -> None:
    """It has what nobody knew to be committed yet, and learns that it is, as primary."""
    machine, a = mixed.machine, mixed.log("a")
    machine.run_until(lambda: mixed.level("a", "b", "c") and a.may_propose)
    builder = BatchBuilder()
    builder.define_text(MachineVersion(needs=2).text)
    index = a.propose(builder)
    machine.run_until(lambda: mixed.log("c").status().durable_index == index)
    machine.kill("a")
    assert mixed.log("c").status().commit_index < index, "the case that is meant"
    machine.run_for(2.0)
    mixed.promote("c")
    machine.run_until(lambda: bool(mixed.log("c").halted))
    machine.run_for(2.0)
    assert "active" not in mixed.listeners["c"].states
    assert mixed.log("c").state not in ("active", "recovering")
    assert mixed.promote("b").won
    assert mixed.listeners["b"].state.definitions.machine_version == 2


def test_after_an_upgrade_the_member_applies_what_it_had_stored(mixed: Mixed) -> None:
    mixed.write("a", MachineVersion(needs=2))
    last = mixed.write("a", queue("after"))
    mixed.machine.run_until(lambda: mixed.log("c").status().durable_index >= last)
    mixed.machine.kill("c")
    mixed.start("c", 1)
    mixed.machine.run_until(lambda: bool(mixed.log("c").halted))
    mixed.machine.kill("c")
    mixed.start("c")
    mixed.machine.run_until(lambda: mixed.applied("c") >= last)
    assert not mixed.log("c").halted
    mixed.machine.run_until(lambda: str(mixed.log("c").state) == "ready")
    assert mixed.promote("c").won


def test_a_stopped_member_keeps_no_more_in_memory_than_another_one_and_applies_all_of_it_after_an_upgrade(mixed: Mixed) -> None:
    """Breaks when it keeps all later batches: it would grow until the system ends it, and its disk would count no more."""
    mixed.write("a", queue("q"), MachineVersion(needs=2))
    machine, a, c = mixed.machine, mixed.log("a"), mixed.log("c")
    machine.run_until(lambda: bool(c.halted))

    def put(sequence: int) -> int:
        machine.run_until(lambda: a.may_propose)
        builder = BatchBuilder()
        builder.messages_for(1, sequence).append(bytes(MIB))
        index: int = a.propose(builder)
        machine.run_until(lambda: min(a.applied, c.status().durable_index) >= index)
        assert c._cache.nbytes < 2 * LEAST_BYTES + 4 * MIB
        return index

    last = [put(sequence) for sequence in range(1, 41)][-1]
    machine.run_until(lambda: c.status().commit_index >= last)
    machine.kill("c")
    mixed.start("c")
    machine.run_until(lambda: mixed.applied("c") >= last)
    assert mixed.listeners["c"].state.messages[1].depth == 40


def test_a_snapshot_that_a_member_must_not_load_stops_it_and_leaves_its_state(tmp_path: Path) -> None:
    mixed = Mixed(tmp_path, checkpoint_bytes=2000).started()
    try:
        before = mixed.write("a", queue("before"))
        mixed.machine.run_until(lambda: mixed.applied("c") == before)
        mixed.machine.kill("c")
        mixed.write("a", MachineVersion(needs=2))
        for number in range(40):
            mixed.write("a", queue(f"q{number}"))
        mixed.machine.run_until(lambda: mixed.log("a").replica.log.first_index > before + 1)
        mixed.start("c", 1)
        mixed.machine.run_until(lambda: bool(mixed.log("c").halted))
        mixed.machine.run_until(lambda: mixed.log("c").status().durable_index == mixed.log("a").status().last_index)
        assert mixed.log("c").journal.figures.checkpoint_index > before, "it came as a snapshot"
        assert "u-q0" not in mixed.listeners["c"].state.definitions.queues
        mixed.machine.kill("c")
        mixed.start("c", 1)
        mixed.machine.run_until(lambda: bool(mixed.log("c").halted))
        mixed.machine.kill("c")
        mixed.start("c")
        mixed.machine.run_until(lambda: mixed.applied("c") == mixed.applied("a"))
        assert len(mixed.listeners["c"].state.definitions.queues) == 41
    finally:
        mixed.machine.close()


def test_a_stopped_member_writes_no_checkpoint_of_its_old_state(tmp_path: Path) -> None:
    mixed = Mixed(tmp_path, checkpoint_bytes=2000).started()
    try:
        mixed.write("a", MachineVersion(needs=2))
        for number in range(40):
            mixed.write("a", queue(f"q{number}"))
        mixed.machine.run_until(lambda: mixed.log("c").status().durable_index == mixed.log("a").status().last_index)
        mixed.machine.run_until(lambda: mixed.log("b").journal.figures.checkpoint_index > 0)
        assert mixed.log("c").journal.figures.checkpoint_index == 0
    finally:
        mixed.machine.close()


@pytest.mark.parametrize("newer", range(len(NEWER)))
def test_a_log_of_one_broker_ends_it_with_the_reason(tmp_path: Path, newer: int) -> None:
    """There is nobody to leave the work to; the store is as it was, for the release that can read it."""
    made = Mixed(tmp_path, settings=ReplicaSettings(standalone=True))
    try:
        made.start("a", 99, "a")
        made.machine.run_until(lambda: str(made.log("a").state) == "standalone")
        command = NEWER[newer]
        log = made.log("a")
        builder = BatchBuilder()
        builder.define(command if isinstance(command, dict) else command.to_dict())
        log.propose(builder)
        made.machine.run_until(lambda: made.applied("a") > 1 or bool(made.listeners["a"].errors))
        made.machine.kill("a")
        made.start("a", 1, "a")
        made.machine.run_until(lambda: bool(made.listeners["a"].errors))
        ((text, fatal),) = made.listeners["a"].errors
        assert fatal
        assert "the cluster log was written by a newer release: batch 2 cannot be applied" in text
        assert "upgrade this broker" in text
        assert "standalone" not in made.listeners["a"].states
    finally:
        made.machine.close()


def test_an_unknown_kind_of_record_stops_a_member_after_what_came_before_it(mixed: Mixed) -> None:
    """Such a batch is whole, by its checksum: it is not a damage, and no reason to drop a link."""
    machine, a = mixed.machine, mixed.log("a")
    first = mixed.write("a", queue("before"))
    machine.run_until(lambda: mixed.level("a", "b", "c") and a.may_propose)

    class Newer(BatchBuilder):
        def seal(self, epoch: int, index: int, timestamp_ms: int, *, first_format: bool = False) -> bytes:
            import google_crc32c

            data = bytearray(super().seal(epoch, index, timestamp_ms, first_format=first_format))
            data[48] = 77
            data[4:8] = google_crc32c.value(bytes(data[8:])).to_bytes(4, "little")
            return bytes(data)

    builder = Newer()
    builder.define_text(queue("newer").text)
    a.propose(builder)
    machine.run_until(lambda: bool(a.halted) and str(a.state) == "joining")
    assert "unknown kind of record 77" in a.halted
    machine.run_for(2.0)
    mixed.promote("b")
    machine.run_until(lambda: bool(mixed.log("b").halted))
    assert [mixed.applied(each) for each in "ab"] == [first] * 2
    assert mixed.log("b").status().durable_index > first
    assert not any(broker.closed for broker in machine.brokers.values())


def test_a_queue_is_deleted_if_it_is_empty_where_the_command_stands_in_the_log(mixed: Mixed) -> None:
    """Not where the primary was asked: what is put on it meanwhile must not go with it."""
    mixed.write("a", queue("q"))
    a, state = mixed.log("a"), mixed.listeners["a"].state

    def written(**parts: bool) -> None:
        mixed.machine.run_until(lambda: a.may_propose)
        builder = BatchBuilder()
        if parts.get("delete"):
            builder.define_text(QueueDelIfEmpty(uuid="u-q").text)
        if parts.get("message"):
            builder.messages_for(1, state.messages[1].next_seqs()[0]).append(b"one")
        if parts.get("taken"):
            builder.dequeues_for(1).append(state.messages[1].next_seqs()[0] - 1)
        index = a.propose(builder)
        mixed.machine.run_until(lambda: mixed.applied("a") >= index and mixed.applied("b") >= index)

    written(delete=True, message=True)
    assert state.messages[1].depth == 1, "the same batch brings a message"
    written(delete=True)
    assert "u-q" in state.definitions.queues
    written(taken=True)
    written(delete=True)
    assert "u-q" not in state.definitions.queues
    assert "u-q" not in mixed.listeners["b"].state.definitions.queues
