"""Several ReplicatedLogs in one process: real stores on disk, a clock that the test moves, and links that only deliver when told
to.

A `Machine` is what the reactor is to a broker: `run_until` carries on with everything that can go on (callbacks of the journals'
threads, messages, work for threads, timers) until a condition holds, and moves the clock a little whenever nothing else is left
to do.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from broker.commit_log import LogListener
from broker.core.records import Batch, BatchBuilder, Kind
from broker.disk.files import REAL_DISK, Disk
from broker.disk.store import Store
from broker.host import Host
from ha.core.membership import Membership
from ha.core.messages import Message
from ha.core.settings import ReplicaSettings
from ha.replicated_log import ReplicatedLog
from tests.ha.counted_threads import CountedThreads

PATIENCE_S = 20.0
HELD_UP_S = 0.1
"""A test may keep a thread from its work: time passes for the others all the same, if slowly."""
QUEUE = 1
ONE = "one"


class Ledger:
    """A listener that keeps the messages of one queue, and notes what it is told."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.messages: dict[int, bytes] = {}
        self.applied = 0
        self.told: list[str] = []
        self.states: list[tuple[str, int, str]] = []
        self.errors: list[tuple[str, bool]] = []
        self.resets: list[int] = []
        self.proposing = False

    def on_committed(self, batches: list[Batch]) -> None:
        self._outside("batches")
        for batch in batches:
            assert batch.header.index == self.applied + 1, f"batch {batch.header.index} told after {self.applied}"
            self._apply(batch)
            self.applied = batch.header.index

    def on_state(self, state: str, epoch: int, primary: str) -> None:
        self._outside(state)
        self.states.append((state, epoch, primary))

    def on_reset(self, batches: Iterable[Batch], index: int) -> None:
        self._outside("reset")
        self.messages = {}
        for batch in batches:
            self._apply(batch)
        self.applied = index
        self.resets.append(index)

    def on_writable(self) -> None:
        self._outside("writable")

    def on_storage_error(self, text: str, fatal: bool) -> None:
        self.errors.append((text, fatal))

    def snapshot(self) -> Iterable[BatchBuilder]:
        builder = BatchBuilder()
        if self.messages:
            builder.enqueue_at(QUEUE, min(self.messages), list(self.messages.values()))
        return [builder]

    def live_bytes(self) -> int:
        return sum(map(len, self.messages.values()))

    def live_by_file(self) -> dict[int, int]:
        """None: what is alive is in the checkpoint itself."""
        return {}

    def live_runs_in(self, file: int) -> Iterator[Any]:
        return iter(())

    def moved(self, queue: int, moves: Iterable[Any]) -> None:
        raise AssertionError("nothing lies in a file")

    def on_storage_low(self, text: str, spare_bytes: int = 0) -> None:
        self.errors.append((text, False))

    def on_storage_spare(self, spare_bytes: int, most_bytes: int = 0) -> None:
        """It has no dead letters."""

    def on_quiesce(self, within_s: float, done: Callable[[], None]) -> None:
        self.told.append("quiesce")
        self.clock.callLater(0, done)

    def on_resume(self) -> None:
        self.told.append("resume")

    def _apply(self, batch: Batch) -> None:
        for run in batch.runs:
            match run.kind:
                case Kind.ENQUEUE:
                    self.messages.update(enumerate(batch.messages(run), run.first_seq))
                case Kind.DEQUEUE:
                    for sequence in range(run.first_seq, run.first_seq + run.count):
                        del self.messages[sequence]

    def _outside(self, what: str) -> None:
        assert not self.proposing, f"the listener is told of {what} from within propose"
        self.told.append(what)


@dataclass
class Broker:
    """One member: its log, its listener, and the next sequence that it would give to a message."""

    address: str
    store: Store
    ledger: Ledger
    log: ReplicatedLog
    closed: list[tuple[str, str]] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """What it has told telemetry."""

    def told(self, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
        """Its events of these types."""
        return [event for event in self.events if event[0] in kinds]

    def propose(self, *messages: bytes) -> int:
        """Put messages on the queue; returns the batch's index."""
        builder = BatchBuilder()
        first = self.machine_next()
        builder.messages_for(QUEUE, first).extend(messages)
        self.ledger.proposing = True
        try:
            return self.log.propose(builder)
        finally:
            self.ledger.proposing = False

    machine_next: Callable[[], int] = field(default=lambda: 0)


def bodies(broker: Broker) -> list[bytes]:
    """What is on its queue."""
    return list(broker.ledger.messages.values())


class Link:
    """What one member's log sends through."""

    def __init__(self, machine: Machine, address: str) -> None:
        self.machine = machine
        self.address = address

    def send(self, peer: str, message: Message, batches: Sequence[bytes]) -> None:
        if frozenset((self.address, peer)) in self.machine.links:
            self.machine.wires.append((self.address, peer, message, b"".join(batches)))

    def set_members(self, members: Membership) -> None:
        self.machine.memberships[self.address] = members

    def close(self, peer: str, reason: str) -> None:
        self.machine.brokers[self.address].closed.append((peer, reason))

    def reads_snapshots(self, peer: str) -> bool:
        return peer not in self.machine.older


class Machine:
    """All brokers of a test, and the world that they share."""

    def __init__(self, folder: Path, settings: ReplicaSettings | None = None, checkpoint_bytes: int = 1 << 30) -> None:
        self.folder = folder
        self.settings = settings or ReplicaSettings()
        self.checkpoint_bytes = checkpoint_bytes
        self.clock = Clock()
        self.threads = CountedThreads()
        self.callbacks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.jobs: list[tuple[Callable[[], object], Deferred[Any]]] = []
        self.wires: list[tuple[str, str, Message, bytes]] = []
        self.links: set[frozenset[str]] = set()
        self.memberships: dict[str, Membership] = {}
        self.cluster_ids: dict[str, set[str]] = {}
        self.brokers: dict[str, Broker] = {}
        self.disks: dict[str, Disk] = {}
        self.sequence = 0
        self.witness = ""
        """The member that is one, as all are told."""
        self.older: set[str] = set()
        """Members that cannot read a snapshot of the others."""
        self.ends: list[tuple[str, str, list[type[Message]]]] = []
        """Each time that a broker said that it is about to be no primary: who, its state, and what was under way to others."""

    # ---- brokers

    def start(self, address: str, members: str = "abc", *, connect: bool = True, listener: LogListener | None = None) -> Broker:
        """A broker comes up, with whatever its store holds. Its log tells `listener`, or else a ledger that keeps everything."""
        ledger, events = Ledger(self.clock), list[tuple[str, dict[str, Any]]]()
        host = Host(disk=self.disks.get(address, REAL_DISK), threads=self.threads)
        store = Store.open(self.folder / address, host=host, segment_bytes=64 * 1024)
        log = ReplicatedLog(
            store,
            "cluster",
            me=address,
            settings=replace(self.settings, witness=address == self.witness),
            members=Membership.of(
                members.split(",") if "," in members else members, witness=self.witness if self.witness in members else ""
            ),
            clock=self.clock,
            wall=lambda: 1_700_000_000.0 + self.clock.seconds(),
            listener=ledger if listener is None else listener,
            call_in_reactor=self.callbacks.put,
            in_thread=self.in_thread,
            peers=Link(self, address),
            on_members=lambda told: self.cluster_ids.setdefault(address, set()).add(told.cluster_id),
            on_event=lambda kind, **fields: events.append((kind, fields)),
            checkpoint_bytes=self.checkpoint_bytes,
            before_end=lambda: self.ends.append((address, log.state, [type(wire[2]) for wire in self.wires])),
        )
        broker = Broker(address, store, ledger, log, events=events, machine_next=self.next_sequence)
        self.brokers[address] = broker
        log.start()
        if connect:
            for other in self.brokers:
                self.connect(address, other)
        return broker

    def kill(self, address: str) -> None:
        """The process ends; what its journal's thread has begun to write may still reach the disk, as after a kill -9."""
        broker = self.brokers.pop(address)
        broker.log.stop()
        for other in self.brokers:
            self.disconnect(address, other)
        broker.store.close(clean=False)

    def close(self) -> None:
        for address in list(self.brokers):
            self.kill(address)

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def connect(self, one: str, other: str) -> None:
        link = frozenset((one, other))
        if len(link) == 2 and link not in self.links:
            self.links.add(link)
            self.brokers[one].log.connected(other)
            self.brokers[other].log.connected(one)

    def disconnect(self, one: str, other: str) -> None:
        link = frozenset((one, other))
        if link in self.links:
            self.links.discard(link)
            self.wires = [wire for wire in self.wires if frozenset(wire[:2]) != link]
            for here, there in ((one, other), (other, one)):
                if here in self.brokers:
                    self.brokers[here].log.disconnected(there)

    def isolate(self, address: str) -> None:
        for other in self.brokers:
            self.disconnect(address, other)

    # ---- the reactor

    def in_thread(self, work: Callable[[], object]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.jobs.append((work, done))
        return done

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Carry on until the condition holds. Real time bounds it; nothing is waited for blindly."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, {name: each.log.status() for name, each in self.brokers.items()}
            if not self.turn():
                self._wait()

    def _wait(self) -> None:
        """For what a thread reports; if none has anything to do, or is held up for `HELD_UP_S`, for the clock."""
        held_up = time.monotonic() + HELD_UP_S
        while True:
            try:
                self.callbacks.get(timeout=0.002)()
                return
            except queue.Empty:
                if (not self.threads.busy or time.monotonic() > held_up) and self.callbacks.empty():
                    self.clock.advance(0.02)
                    return

    def run_for(self, seconds: float) -> None:
        """Carry on for a time of the clock."""
        until = self.clock.seconds() + seconds
        self.run_until(lambda: self.clock.seconds() >= until)

    def turn(self) -> bool:
        """One turn; whether there was anything to do."""
        worked = False
        while not self.callbacks.empty():
            self.callbacks.get()()
            worked = True
        wires, self.wires = self.wires, []
        for sender, receiver, message, payload in wires:
            if receiver in self.brokers and frozenset((sender, receiver)) in self.links:
                self.brokers[receiver].log.receive(sender, message, payload)
        jobs, self.jobs = self.jobs, []
        for work, done in jobs:
            try:
                result = work()
            except Exception:
                done.errback()
            else:
                done.callback(result)
        due = any(call.active() and call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls())
        self.clock.advance(0)
        return worked or bool(wires) or bool(jobs) or due

    # ---- what tests ask for

    def cluster(self, *addresses: str) -> list[Broker]:
        """Brokers of which the first is promoted, and all are up to date."""
        members = ",".join(addresses)
        brokers = [self.start(address, members) for address in addresses]
        self.promote(addresses[0])
        self.run_until(lambda: [each.log.state for each in brokers] == ["active"] + ["ready"] * (len(brokers) - 1))
        self.run_for(0.3)
        return brokers

    def promote(self, address: str) -> Any:
        """Ask for a promotion; returns its end."""
        return self.result(self.brokers[address].log.requests.promote())

    def result(self, deferred: Deferred[Any]) -> Any:
        found: list[Any] = []
        deferred.addBoth(found.append)
        self.run_until(lambda: bool(found))
        return found[0]

    def level(self, *brokers: Broker) -> bool:
        """Whether these hold and have applied the same."""
        ends = {each.log.status().last_index for each in brokers} | {each.ledger.applied for each in brokers}
        return len(ends) == 1

    def write(self, broker: Broker, *messages: bytes) -> None:
        """Propose each message in a batch of its own as soon as that may be, and wait until all are applied here."""
        for message in messages:
            self.run_until(lambda: broker.log.may_propose)
            index = broker.propose(message)
        self.run_until(lambda: broker.ledger.applied >= index)
