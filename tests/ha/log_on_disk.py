"""A log of one broker with its real files and its real state, and what the tests of its retention ask of it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from broker.core.records import BatchBuilder
from broker.disk.files import REAL_DISK, Disk
from broker.disk.store import Store
from broker.host import Host
from broker.sessions.ledger import Ledger
from ha.core.membership import Membership
from ha.core.settings import ReplicaSettings
from ha.replicated_log import ReplicatedLog
from tests.broker.disk.contents import contents

FILE = 256 * 1024
PATIENCE_S = 30.0


class Owner:
    """Hears of nothing but what the disk says."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, bool]] = []
        self.writable = 0
        self.applied: Callable[[], None] = lambda: None
        """Called each time that batches are applied."""

    def ledger_applied(self, *_: Any) -> None:
        self.applied()

    def ledger_begins(self, *_: Any) -> None: ...

    def ledger_state(self, *_: Any) -> None: ...

    def ledger_reset(self, *_: Any) -> None: ...

    def ledger_quiesces(self, *_: Any) -> None: ...

    def ledger_resumes(self, *_: Any) -> None: ...

    def ledger_storage_error(self, ledger: Ledger, text: str, fatal: bool) -> None:
        self.errors.append((text, fatal))

    def ledger_writable(self, ledger: Ledger) -> None:
        self.writable += 1

    def touched(self, *_: Any) -> None: ...

    def flush(self) -> None: ...


class LogOnDisk:
    """The log `cluster` of one broker. Messages have numbers; `alive` is the model: which of them are on the queue."""

    def __init__(self, folder: Path, *, disk: Disk = REAL_DISK, queues: int = 1, file_bytes: int = FILE) -> None:
        self.folder = folder
        self.disk = disk
        self.file_bytes = file_bytes
        self.n_queues = queues
        self.clock = Clock()
        self.alive: dict[tuple[int, int], bytes] = {}
        self.next_seq = dict.fromkeys(range(1, queues + 1), 1)
        self.came = 0
        self._work_began = (0, 0)
        self.most_over = -(1 << 60)
        """How far the log was beyond twice what is alive, at most."""
        self.start()

    # ---- life

    def start(self) -> None:
        """Open it, with whatever is there."""
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.owner = Owner()
        self.ledger = Ledger("cluster", self.clock, self.owner)
        host = Host(disk=self.disk)
        self.store = Store.open(self.folder, host=host, segment_bytes=self.file_bytes)
        self.log = ReplicatedLog(
            self.store,
            "cluster",
            me="a",
            settings=ReplicaSettings(standalone=True),
            members=Membership.of("a"),
            clock=self.clock,
            wall=lambda: 1_700_000_000.0,
            listener=self.ledger,
            call_in_reactor=self.calls.put,
            in_thread=in_thread,
            checkpoint_bytes=2 * self.file_bytes,
        )
        self.log.start()
        self.until(lambda: self.log.state == "standalone")
        if not self.ledger.state.messages:
            builder = BatchBuilder()
            for number in range(1, self.n_queues + 1):
                builder.define(queue_add(number))
            self.propose(builder)

    def stop(self, *, clean: bool = True) -> None:
        self.log.stop()
        self.store.close(clean=clean)

    def restart(self) -> None:
        """Stop and start; everything that is alive is there again, at its place and unaltered."""
        self.stop()
        self.start()
        self.check()

    def turn(self) -> None:
        """Run what was called into the reactor, and let a little time pass."""
        with suppress(queue.Empty):
            self.calls.get(timeout=0.001)()
        self.clock.advance(0.02)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(int(PATIENCE_S * 1000)):
            if condition():
                return
            self.turn()
        raise AssertionError("it did not come to that")

    def rest(self) -> None:
        """Until nothing is under way, nor due."""

        def under_way() -> bool:
            return bool(self.busy or self.log.retention._look_call or not self.calls.empty())

        for _ in range(10):
            self.until(lambda: not under_way())
            self.log.retention.look()
        self.until(lambda: not under_way())
        self.log.journal._preparation.wait()

    # ---- what is asked

    def propose(self, builder: BatchBuilder) -> None:
        self.until(lambda: self.log.may_propose)
        index = self.log.propose(builder)
        self.until(lambda: self.log.applied >= index)
        self.look_at_bound()
        self.let_work()

    def let_work(self) -> None:
        """The load is no faster than that half a file comes or goes while a thread writes one, as on a disk that both share."""
        if not self.busy:
            self._work_began = (self.came, self.live_bytes)
        came, live = self._work_began
        if self.came - came + abs(self.live_bytes - live) > self.file_bytes // 2:
            self.until(lambda: not self.busy)
            self._work_began = (self.came, self.live_bytes)

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written, files are being compacted, or some that were given up are still there."""
        removing = self.log.journal._preparation
        given_up = bool(removing._removals or removing._removing)
        return given_up or self.log._snapshots.writing or self.log.retention._compacting

    def put(self, *bodies: bytes, number: int = 1, takes: Sequence[int] = ()) -> None:
        """Put messages on a queue, and take others off it, in one batch."""
        builder, first = BatchBuilder(), self.next_seq[number]
        for sequence in takes:
            builder.dequeues_for(number).append(sequence)
            del self.alive[number, sequence]
        builder.messages_for(number, first).extend(bodies)
        self.alive |= {(number, sequence): body for sequence, body in enumerate(bodies, first)}
        self.next_seq[number] = first + len(bodies)
        self.came += sum(map(len, bodies))
        self.propose(builder)

    def take(self, *keys: tuple[int, int]) -> None:
        """Take messages off, by number of the queue and sequence."""
        builder = BatchBuilder()
        for number, sequence in keys:
            builder.dequeues_for(number).append(sequence)
            del self.alive[number, sequence]
        self.propose(builder)

    # ---- what is checked

    @property
    def live_bytes(self) -> int:
        return sum(map(len, self.alive.values()))

    @property
    def real_bytes(self) -> int:
        """What lies in the log's folder, as the file system has it."""
        nbytes = 0
        for path in (self.folder / "cluster").iterdir():
            with suppress(FileNotFoundError):
                nbytes += path.stat().st_size
        return nbytes

    def look_at_bound(self) -> None:
        self.most_over = max(self.most_over, self.real_bytes - 2 * self.live_bytes)

    def check(self) -> None:
        """Every message that is alive is known, and its body is what was put in, at the place that the queue knows."""
        found = contents(self.ledger.state, self.log.journal)
        assert found.keys() == self.alive.keys()
        assert found == self.alive


def in_thread(call: Callable[[], object]) -> Deferred[Any]:
    return succeed(call())


def queue_add(number: int) -> dict[str, Any]:
    fields = {"name": f"q{number}", "level": "all", "durable": True, "autoDelete": False, "exclusive": False}
    return {"op": "queue-add", "uuid": f"u{number}", "arguments": {}, "alternate": "", **fields}
