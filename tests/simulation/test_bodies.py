"""Bodies on a simulated disk. The power is cut at every step of a compaction, of receiving a snapshot and of a
conversion. Afterwards every acknowledged message is on its queue, with its body unchanged.

A run is a script of a replica's calls to its log. Most calls of the disk are events, and the power is cut after each
number of them in turn. Then the store is opened again, its state is built from checkpoint and log, and every body that
it knows is read from its place. The same runs catch a planted bug.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from twisted.internet.task import Clock

from broker.core.records import Batch, BatchBuilder
from broker.core.state import State
from broker.disk.bodies import Unreadable
from broker.disk.checkpoint import Checkpoint
from broker.disk.compaction import Compacted
from broker.disk.journal import Journal, Recovered
from broker.disk.store import Store
from broker.disk.transfer import Receiver
from broker.host import Host
from tests.broker.disk.contents import contents
from tests.broker.disk.logs import SMALL
from tests.fixtures.test_fixtures import HERE as FIXTURES
from tests.ha.log_on_disk import queue_add
from tests.simulation.bugs import Bug
from tests.simulation.disk import SimulatedDisk
from tests.simulation.mutations import planted_bug
from tests.simulation.threads import SimulatedThreads

HOME = Path("/store")
LOG = HOME / "cluster"
Held = dict[tuple[int, int], bytes]
Script = Iterator[Callable[[], bool]]
QUEUES = 3
LOOK_S = 0.001
"""How often a script looks whether it can go on: ten calls of the disk, so that most events are those of the log."""


class Replica:
    """A host that runs one log with its state. `held[i]`: what the queues hold after batch i."""

    def __init__(self, seed: int, store_id: str = "a") -> None:
        self.clock = Clock()
        self.store_id = store_id
        self.disk = SimulatedDisk(Random(seed))
        self.disk.call_s = 0.0001
        self.disk.sync_s = 0.001
        self.held: dict[int, Held] = {0: {}}
        self.acknowledged = 0
        self.asked = 0
        self.wants = 0
        """The index of a snapshot that is being received."""
        self.errors: list[str] = []
        self.next_seq = dict.fromkeys(range(1, QUEUES + 1), 1)
        self.script: Script | None = None

    # ---- life

    def start(self) -> None:
        """A process begins: it opens the store and builds its state."""
        self.threads = threads = SimulatedThreads(self.clock.callLater, self.clock.seconds)
        self.disk.start(threads.sleep)
        self.ready = False
        self.waits: Callable[[], bool] = lambda: True
        threads.enter(self.open, threads)

    def open(self, threads: SimulatedThreads) -> None:
        host = Host(disk=self.disk, threads=threads, new_id=lambda: self.store_id)

        def call_in_reactor(call: Callable[[], None]) -> None:
            self.clock.callLater(0, threads.enter, call)

        self.store = Store.open(HOME, host=host, segment_bytes=SMALL)
        self.journal, self.found = self.store.journal(
            "cluster",
            call_in_reactor=call_in_reactor,
            on_error=lambda text, fatal: self.errors.append(text),
        )
        self.state = rebuilt(self.found, self.journal)
        if not self.found.epoch:
            self.journal.save_hard_state(1, "a")
            self.journal.floor_passed()
        self.ready = True

    def run(self, script: Script | None = None, events: int = 10**9) -> bool:
        """Let a script go on to its end, or for so many events; whether it came to its end."""
        self.clock.callLater(0.0, self.threads.enter, self.step, script, self.threads)
        self.script = script
        for _ in range(events):
            if self.ready and self.script is None:
                return True
            assert self.clock.calls, "nothing is under way, and the script has not ended"
            self.clock.advance(max(0.0, self.clock.calls[0].getTime() - self.clock.seconds()))
            assert self.threads.raised is None, self.threads.raised
        return self.ready and self.script is None

    def step(self, script: Script | None, threads: SimulatedThreads) -> None:
        if self.ready and self.waits() and script is not None:
            try:
                self.waits = next(script)
            except StopIteration:
                self.script = None
                return
        if not self.ready or script is not None:
            self.clock.callLater(LOOK_S, threads.enter, self.step, script, threads)

    def crash(self) -> None:
        """The power is gone."""
        self.disk.crash()
        self.threads.kill()
        self.clock.calls.clear()

    # ---- what is asked

    def append(self, builder: BatchBuilder, held: Held) -> int:
        self.asked += 1
        index = self.asked
        self.held[index] = held
        data = builder.seal(1, index, 0)

        def durable(last: int, epoch: int, sync_s: float) -> None:
            for each in range(self.acknowledged + 1, last + 1):
                (stored,) = self.journal.read(each, each, 1)
                (place,) = self.journal.places(each, each)
                self.state.apply(Batch.parse(stored, place=place))
            self.acknowledged = last

        self.journal.append([data], durable)
        return index

    def define(self) -> int:
        builder = BatchBuilder()
        for number in range(1, QUEUES + 1):
            builder.define(queue_add(number))
        return self.append(builder, {})

    def change(self, puts: dict[int, list[bytes]], takes: list[tuple[int, int]]) -> int:
        """Put messages on queues and take others off, in one batch."""
        builder, held = BatchBuilder(), dict(self.held[self.asked])
        for number, bodies in puts.items():
            first = self.next_seq[number]
            builder.messages_for(number, first).extend(bodies)
            held |= {(number, sequence): body for sequence, body in enumerate(bodies, first)}
            self.next_seq[number] += len(bodies)
        for number, sequence in takes:
            builder.dequeues_for(number).append(sequence)
            del held[number, sequence]
        return self.append(builder, held)

    def is_durable(self, index: int) -> Callable[[], bool]:
        return lambda: self.acknowledged >= index

    def fill(self, batches: int = 9) -> Script:
        """Definitions, and several files with messages of which most are taken off again."""
        yield self.is_durable(self.define())
        for at in range(batches):
            bodies = {number: [bytes([65 + at]) * (90 + 40 * number)] * 3 for number in range(1, QUEUES + 1)}
            takes = [key for key in self.held[self.asked] if key[1] % 7]
            yield self.is_durable(self.change(bodies, takes))

    def checkpoint(self) -> Script:
        """A checkpoint of what is applied."""
        done: list[str] = []
        index = self.acknowledged
        alive = [number for number, nbytes in self.state.live_by_file.items() if nbytes and number]
        content = [builder.seal(1, index, 0) for builder in self.state.snapshot()]
        self.journal.write_checkpoint(index, 1, {"voters": ["a"]}, content, lambda _, why: done.append(why), None, alive)
        yield lambda: bool(done)
        assert done == [""]

    def compaction(self) -> Script:
        """All body files become one, while messages come and go; then a checkpoint, and a little more time."""
        victims = self.journal.begin_compaction([body.file.number for body in self.journal.body_files()])
        runs = [run for number in victims.numbers for run in self.state.live_runs_in(number)]
        assert runs
        done: list[Any] = []

        def copied(found: Compacted | None, why: Unreadable | str) -> None:
            for queue, moves in found.moves if found is not None else ():
                self.state.moved(queue, moves)
            done.append(found)

        self.journal.compact(victims, iter(runs), 0, copied)
        oldest = min(self.held[self.asked])
        yield self.is_durable(self.change({1: [b"meanwhile" * 10]}, [oldest]))
        yield lambda: bool(done)
        assert done[0] is not None
        yield from self.checkpoint()
        yield from self.pause()

    def pause(self) -> Script:
        until_s = self.clock.seconds() + 0.05
        yield lambda: self.clock.seconds() > until_s

    # ---- what is checked

    def check(self) -> None:
        """What was found after a crash is what was acknowledged, or more of what was asked for; go on with that."""
        found = self.found
        assert found.floor is None, found.notes
        last = self.journal.figures.last_index
        assert last >= self.acknowledged, f"acknowledged {self.acknowledged}, found {last}: {found.notes}"
        assert last in self.held, f"nobody asked for batch {last}"
        assert contents(self.state, self.journal) == self.held[last]
        self.acknowledged = self.asked = last
        for number in self.next_seq:
            messages = self.state.messages.get(number)
            self.next_seq[number] = 1 if messages is None else messages.order.lanes[0].next_seq
        unlisted = {path for path in self.disk.paths() if path.endswith(".bodies")}
        listed = {str(body.path) for body in self.journal.body_files()}
        assert unlisted <= listed, "files that no checkpoint lists were left"


def rebuilt(found: Recovered, journal: Journal) -> State:
    """The state that checkpoint and log come to."""
    state = State(keeps_bodies=False)
    if found.checkpoint is not None:
        for data in Checkpoint.read(found.checkpoint.path, disk=journal.disk):
            state.apply(Batch.parse(data), snapshot=True)
        state.index = found.checkpoint.index
    for entry in found.entries:
        (place,) = journal.places(entry.index, entry.index)
        state.apply(Batch.parse(journal.read(entry.index, entry.index, 1)[0], place=place))
    return state


def more(replica: Replica) -> Script:
    """Messages come and go after a restart."""
    if not replica.state.messages:
        yield replica.is_durable(replica.define())
    for at in range(6):
        takes = [key for key in replica.held[replica.asked] if key[1] % 5]
        yield replica.is_durable(replica.change({1: [bytes([97 + at]) * 300] * 2}, takes))


def crashed_after(events: int, seed: int, scenario: Callable[[Replica], Script]) -> bool:
    """Fill a log, begin the scenario, cut the power after so many events, look, compact all once more, look again.

    False when there were not so many events.
    """
    replica = Replica(seed)
    replica.start()
    replica.run(replica.fill())
    replica.run(replica.checkpoint())
    there_were = not replica.run(scenario(replica), events)
    replica.crash()
    replica.start()
    replica.run(replica.pause())
    replica.check()
    replica.run(more(replica))
    replica.run(replica.checkpoint())
    replica.run(replica.compaction())
    replica.crash()
    replica.start()
    replica.run(replica.pause())
    replica.check()
    return there_were


def every_step(scenario: Callable[[Replica], Script], seeds: int = 0) -> int:
    """The number of steps, after each of which it was found to be right."""
    events = 0
    while crashed_after(events, seeds + events, scenario):
        events += 1
    return events


class Sent:
    """A snapshot as another broker sends it: its bytes, and what its queues hold."""

    def __init__(self) -> None:
        sender = Replica(1_000_000, store_id="b")
        sender.start()
        sender.run(sender.fill(13))
        sender.run(sender.checkpoint())
        source = sender.journal.source()
        assert len(source.checkpoint.files.in_use) > 2
        self.index = source.checkpoint.index
        self.data = source.read(0, source.nbytes)
        self.held = sender.held[self.index]


def receipt(sent: Sent) -> Callable[[Replica], Script]:
    """A snapshot comes in chunks and takes the place of the log."""

    def scenario(replica: Replica) -> Script:
        replica.held[sent.index] = sent.held
        receiver = Receiver(LOG, len(sent.data), disk=replica.disk)
        for at in range(0, len(sent.data), 5000):
            receiver.write(at, sent.data[at : at + 5000])
            yield lambda: True
        found = receiver.finish()
        done: list[bool] = []
        replica.journal.reset(found.index, found.epoch, lambda: done.append(True), received=found)
        replica.asked = replica.acknowledged = found.index
        yield lambda: bool(done)
        yield from replica.pause()

    return scenario


FIXTURE = FIXTURES / "stores" / "0.1"


def old_store(disk: SimulatedDisk) -> None:
    """The store of release 0.1, on this disk."""
    for folder in (HOME, LOG, HOME / "local"):
        disk.make_folder(folder)
        disk.sync_folder(folder.parent)
    for path in sorted((FIXTURE / "store").rglob("*")):
        if path.is_file():
            target = HOME / path.relative_to(FIXTURE / "store")
            fd = disk.open(target, os.O_RDWR | os.O_CREAT)
            data = path.read_bytes()
            assert not data or disk.write(fd, [data], 0) == len(data)
            disk.sync(fd)
            disk.close(fd)
            disk.sync_folder(target.parent)


def converted_after(events: int) -> bool:
    """Open a store of release 0.1, cut the power after so many events, and look; False when there were not so many."""
    replica = Replica(events)
    replica.disk.call_s = None
    old_store(replica.disk)
    replica.disk.call_s = 0.0001
    log = json.loads((FIXTURE / "expected.json").read_text())["logs"]["cluster"]
    expected = {tuple(map(int, key.split("/"))): bytes.fromhex(body) for key, (body, _) in log["messages"].items()}
    replica.start()
    there_were = not replica.run(replica.pause(), events)
    for _ in range(2):
        replica.crash()
        replica.start()
        replica.run(replica.pause())
        assert replica.found.checkpoint is not None
        assert replica.found.checkpoint.version == 2
        assert replica.journal.figures.last_index == log["index"]
        assert contents(replica.state, replica.journal) == expected
    return there_were


def test_a_power_cut_at_any_step_of_a_compaction_loses_and_alters_nothing() -> None:
    assert every_step(Replica.compaction) > 60


def test_neither_does_one_at_any_step_of_a_snapshot_s_receipt_which_leaves_the_old_store_or_the_new_one() -> None:
    assert every_step(receipt(Sent())) > 60


def test_neither_does_one_at_any_step_of_an_old_store_s_conversion() -> None:
    events = 0
    while converted_after(events):
        events += 1
    assert events > 20


NOT_DELETED_IN_ORDER = Bug(
    "deletes the files of a compaction before the checkpoint that does without them",
    "broker.disk.journal",
    "Journal.compact",
    "self._holdings.compacted(found.file)",
    "self._preparation.remove([body.path for body in self._holdings.body_files()])\n            "
    "    self._holdings.compacted(found.file)",
)
NOT_SYNCED = Bug(
    "names received files without having synced them",
    "broker.disk.transfer",
    "Receiver._complete",
    "self._disk.sync(part.fd)",
    "pass",
)
COMPACTED_UNSYNCED = Bug(
    "names the new file of a compaction without having synced it",
    "broker.disk.bodies",
    "BodyWriter.finish",
    "self.sync()",
    "pass",
)


@pytest.mark.parametrize(
    "bug, scenario",
    [
        (NOT_DELETED_IN_ORDER, Replica.compaction),
        (COMPACTED_UNSYNCED, Replica.compaction),
        (NOT_SYNCED, receipt(Sent())),
    ],
    ids=lambda each: each.says if isinstance(each, Bug) else "",
)
def test_a_planted_bug_is_caught(bug: Bug, scenario: Callable[[Replica], Script]) -> None:
    with planted_bug(bug), pytest.raises((AssertionError, Unreadable, KeyError)):
        every_step(scenario)
