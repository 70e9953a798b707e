"""The store on a simulated disk, with simulated threads. Whenever the power is cut or the process ends, and in whatever
order its threads have run, acknowledged batches exist afterwards.

A run is a seeded sequence of a replica's calls to its log. It can be ended after any number of events, and most calls
of the disk are events. Then the store is opened again, and its content is compared with what a simple model says that
it must and may have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from twisted.internet.task import Clock

from broker.core.records import BatchBuilder, parse_header
from broker.disk import checkpoint as checkpoints
from broker.disk.checkpoint import Checkpoint
from broker.disk.durable import StorageError
from broker.disk.journal import Journal, Recovered
from broker.disk.store import Store
from broker.disk.transfer import Receiver
from broker.host import Host
from tests.broker.disk.logs import SMALL
from tests.simulation.disk import SimulatedDisk
from tests.simulation.threads import SimulatedThreads

HOME = Path("/store")
LOG = HOME / "cluster"
ASKED = 25


class Model:
    """What the log must hold, and what it may."""

    def __init__(self) -> None:
        self.acknowledged = 0
        """Every batch up to here must be there."""
        self.end = 0
        """The last batch that was asked for."""
        self.generation = 0
        """How often the log was truncated."""
        self.cuts: list[int] = []
        """The ends that this left, in order."""
        self.may: dict[int, list[tuple[int, bytes]]] = {}
        """By index: batches that were appended and are not known to be truncated, each with the generation of that time."""
        self.base = 0
        """The checkpoint there is at least."""
        self.committed = 0
        """The newest that there may be: what it covers is never truncated."""
        self.installing = 0
        """The checkpoint that a peer is sending."""
        self.epochs = {0}
        self.whole = False

    def append(self, first: int, batches: list[bytes]) -> None:
        for index, data in enumerate(batches, first):
            self.may.setdefault(index, []).append((self.generation, data))
        self.end = first + len(batches) - 1

    def durable(self, index: int, generation: int) -> None:
        self.acknowledged = max(self.acknowledged, min([index, *self.cuts[generation:]]))

    def truncate(self, index: int) -> int:
        self.generation += 1
        self.cuts.append(index - 1)
        self.end = index - 1
        self.acknowledged = min(self.acknowledged, self.end)
        return self.generation

    def truncated(self, from_index: int, generation: int) -> None:
        for index in [index for index in self.may if index >= from_index]:
            self.may[index] = [(since, data) for since, data in self.may[index] if since >= generation]

    def covered(self, index: int) -> None:
        self.base = max(self.base, index)

    def installed(self, index: int) -> None:
        self.may.clear()
        self.base = self.committed = self.acknowledged = self.end = index
        self.installing = 0

    def check(self, found: Recovered, journal: Journal) -> None:
        """Compare what was found after a crash, and go on with that."""
        base = 0 if found.checkpoint is None else found.checkpoint.index
        if base and base == self.installing:
            self.installed(base)
        self.installing = 0
        assert found.floor is None, found.notes
        assert found.epoch in self.epochs
        assert not (found.blank and self.whole), found.notes
        assert base >= self.base
        held = [entry.index for entry in found.entries]
        assert held == list(range(base + 1, base + 1 + len(held)))
        last = held[-1] if held else base
        assert last >= self.acknowledged, f"acknowledged {self.acknowledged}, found {last}: {found.notes}"
        stored = [journal.read(index, index, 1)[0] for index in held]
        generations = []
        for index, data in zip(held, stored, strict=True):
            known = [generation for generation, each in self.may.get(index, []) if each == data]
            assert known, f"batch {index} was never appended, or was truncated"
            generations += known
        assert generations == sorted(generations), "batches that were truncated stand behind those that replaced them"
        self.may = {index: [(self.generation, data)] for index, data in zip(held, stored, strict=True)}
        self.acknowledged, self.end, self.base, self.epochs = last, last, base, {found.epoch}
        self.whole = not found.blank


class Machine:
    """A host that runs one log for a replica that asks at random."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.clock = Clock()
        self.disk = SimulatedDisk(Random(-1 - seed))
        self.disk.call_s = 0.0001
        self.disk.sync_s = self.rng.choice((0.0, 0.001, 0.01))
        self.disk.short_writes = self.rng.choice((0.0, 0.3))
        self.model = Model()
        self.errors: list[str] = []
        self.fatal: list[str] = []
        self.events = self.starts = self.appended = self.asked = 0
        self.epoch = 0

    def start(self) -> None:
        """A process begins: it opens the store, compares, and goes on asking."""
        self.starts += 1
        self.threads = threads = SimulatedThreads(self.clock.callLater, self.clock.seconds)
        self.disk.start(threads.sleep)
        self.fatal.clear()
        self.store: Store | None = None
        self.checkpointing = False
        self.asked = 0
        threads.enter(lambda: self.open(threads))

    def open(self, threads: SimulatedThreads) -> None:
        host = Host(disk=self.disk, threads=threads, new_id=lambda: "an id")

        def call_in_reactor(call: Callable[[], None]) -> None:
            self.clock.callLater(0, threads.enter, call)

        try:
            store = Store.open(HOME, host=host, segment_bytes=SMALL)
            self.journal, found = store.journal(
                "cluster",
                call_in_reactor=call_in_reactor,
                on_error=lambda text, fatal: (self.fatal if fatal else self.errors).append(text),
            )
        except StorageError as error:
            self.fatal.append(str(error))
            return
        self.model.check(found, self.journal)
        self.epoch, self.store = found.epoch, store
        self.later()

    def later(self) -> None:
        self.clock.callLater(self.rng.random() * 0.004, self.threads.enter, self.ask)

    def end(self, how: Callable[[], None]) -> None:
        """The host or the process is gone at once: `disk.crash` or `disk.kill`."""
        how()
        self.threads.kill()
        self.clock.calls.clear()

    def run(self, events: int) -> bool:
        """Let so many events happen, fewer when nothing is left to do; whether there were so many."""
        for _ in range(events):
            if not self.clock.calls or (self.asked >= ASKED and self.clock.calls[0].getTime() > self.clock.seconds() + 2):
                return False
            self.clock.advance(self.clock.calls[0].getTime() - self.clock.seconds())
            self.events += 1
            if self.fatal:
                return False
        return True

    # ---- what is asked

    def ask(self) -> None:
        """In the reactor's thread."""
        self.asked += 1
        model, rng = self.model, self.rng
        choice = rng.random() if self.epoch else 0.0
        try:
            if choice < 0.1:
                self.new_epoch()
            elif choice < 0.15:
                self.journal.floor_passed()
                model.whole = True
            elif choice < 0.25 and model.end > model.committed:
                self.truncate(rng.randint(max(model.committed, model.end - 30) + 1, model.end))
            elif choice < 0.33 and model.acknowledged > model.committed and not self.checkpointing:
                self.checkpoint(rng.randint(model.committed + 1, model.acknowledged))
            elif choice < 0.36 and not self.checkpointing:
                self.install(model.end + rng.randint(1, 50))
            else:
                self.append(rng.randint(1, 12), rng.choice((40, 40, 700, 3000)))
        except StorageError as error:
            (self.fatal if error.fatal else self.errors).append(str(error))
        if self.asked < ASKED:
            self.later()

    def sealed(self, index: int, nbytes: int) -> bytes:
        """A batch that is like no other."""
        self.appended += 1
        builder = BatchBuilder()
        builder.messages_for(1, index).append(b"m" * nbytes)
        return builder.seal(self.epoch, index, self.appended)

    def append(self, n: int, nbytes: int) -> None:
        model = self.model
        first, generation = model.end + 1, model.generation
        batches = [self.sealed(first + at, nbytes) for at in range(n)]
        model.append(first, batches)
        self.journal.append(batches, lambda index, epoch, seconds: model.durable(index, generation))

    def new_epoch(self) -> None:
        self.model.epochs.add(self.epoch + 1)
        self.journal.save_hard_state(self.epoch + 1, "a")
        self.epoch += 1
        self.model.epochs = {self.epoch}

    def truncate(self, index: int) -> None:
        """What follows is of a higher epoch: one index of one epoch is only ever one batch."""
        self.new_epoch()
        generation = self.model.truncate(index)
        self.journal.truncate(index, lambda: self.model.truncated(index, generation))

    def checkpoint(self, index: int) -> None:
        def done(checkpoint: Checkpoint | None, why_not: str) -> None:
            self.checkpointing = False
            if checkpoint is not None:
                self.model.covered(index)

        try:
            (data,) = self.journal.read(index, index, 1)
        except LookupError:
            return  # it is being truncated
        self.checkpointing = True
        self.model.committed = index
        content = [self.sealed(1, 300) for _ in range(self.rng.randint(0, 5))]
        self.journal.write_checkpoint(index, parse_header(data).epoch, {"voters": ["a"]}, content, done)

    def install(self, index: int) -> None:
        """A new primary sends a checkpoint, and the log starts anew after it."""
        self.new_epoch()
        theirs = SimulatedDisk(Random(0))
        theirs.make_folder(LOG)
        sent = checkpoints.write(LOG, index, self.epoch, {}, [self.sealed(1, 5000)], disk=theirs)
        data = theirs.content(str(sent.path))
        self.model.installing = index
        receiver = Receiver(LOG, len(data), disk=self.disk)
        for at in range(0, len(data), 2000):
            receiver.write(at, data[at : at + 2000])
        receiver.finish()
        self.model.installed(index)
        self.journal.reset(index, self.epoch)


def ended_after(seed: int, events: int) -> bool:
    """Cut the power after so many events, look, go on, shut down in order, look again; False when there were not so many."""
    machine = Machine(seed)
    machine.start()
    there_were = machine.run(events)
    machine.end(machine.disk.crash)
    machine.start()
    machine.run(50)
    machine.run(10**9)
    assert machine.store is not None
    store = machine.store
    machine.threads.enter(store.close)
    machine.run(10**9)
    machine.end(machine.disk.crash)
    machine.start()
    machine.run(10**9)
    assert machine.store is not None
    assert machine.store.was_clean
    assert machine.fatal == machine.errors == []
    return there_were


@pytest.mark.parametrize("seed", range(2))
def test_a_power_cut_at_any_moment_loses_nothing_that_was_acknowledged(seed: int) -> None:
    moments = 0
    while ended_after(seed, moments):
        moments += 5
    assert moments > 200


KILLED_BEFORE_ITS_SYNC = (8, 115)
"""A process was killed between a write and its sync; the next one counted the batch as durable, and a power cut took it."""


@pytest.mark.parametrize("seed", [*range(40), *KILLED_BEFORE_ITS_SYNC])
def test_neither_do_many_ends_one_after_another_even_while_the_store_is_being_opened(seed: int) -> None:
    machine = Machine(1000 + seed)
    for _ in range(8):
        machine.start()
        machine.run(machine.rng.choice((3, 20, 60, 300, 1000)))
        machine.end(machine.rng.choice((machine.disk.crash, machine.disk.crash, machine.disk.kill)))
    assert machine.fatal == []
    assert machine.starts == 8


NAMES_NOT_SYNCED = (121,)
"""A folder's sync failed; the next process trusted the names that it found, and a power cut brought others back."""
WRONGLY_CLEAN = (32, 44)
"""What a failed sync had dropped stood in the page cache still; the next process counted it as durable."""


@pytest.mark.parametrize("seed", [*range(30), *NAMES_NOT_SYNCED, *WRONGLY_CLEAN])
def test_neither_does_a_sync_that_fails_since_the_process_ends_and_the_next_one_reads_what_is_there(seed: int) -> None:
    machine = Machine(2000 + seed)
    fatal = 0
    for _ in range(8):
        machine.start()
        machine.run(machine.rng.choice((20, 60, 300)))
        machine.disk.bad_syncs = 1
        machine.run(500)
        machine.disk.bad_syncs = 0
        fatal += bool(machine.fatal)
        machine.end(machine.rng.choice((machine.disk.crash, machine.disk.kill)))
    machine.start()
    machine.run(10**9)
    assert machine.store is not None
    assert fatal


@pytest.mark.parametrize("seed", range(20))
def test_a_full_disk_only_takes_time(seed: int) -> None:
    machine = Machine(3000 + seed)
    machine.start()
    machine.run(200)
    machine.disk.capacity = machine.disk.used + machine.rng.randint(0, 20_000)
    machine.run(500)
    machine.disk.capacity = None
    machine.run(10**9)
    assert machine.model.acknowledged == machine.model.end
    machine.end(machine.disk.crash)
    machine.start()
    machine.run(10**9)
    assert machine.store is not None


def test_the_same_seed_gives_the_same_run() -> None:
    def ran(seed: int) -> tuple[object, ...]:
        machine = Machine(seed)
        for _ in range(3):
            machine.start()
            machine.run(400)
            machine.end(machine.disk.crash)
        return machine.events, machine.clock.seconds(), [(path, machine.disk.content(path)) for path in machine.disk.paths()]

    assert ran(7) == ran(7)
    assert ran(7) != ran(8)
