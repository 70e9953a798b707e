"""Snapshots on their way, as telemetry hears of them: a beginning and an end on both sides, whatever happens in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, LogLevel, eventAsText, globalLogPublisher
from zope.interface import provider

from broker.core.commands import QueueAdd
from broker.core.records import BatchBuilder
from broker.disk import bodies, segments
from broker.disk.bodies import file_of
from broker.disk.checkpoint import Checkpoint
from broker.disk.durable import ASIDE
from broker.disk.files import RealDisk
from broker.disk.recovery import DAMAGED
from broker.disk.transfer import Receiver, RottenBodies
from broker.sessions.ledger import Ledger
from ha.core.effects import State
from ha.core.membership import Change
from ha.core.messages import SnapshotChunk
from ha.snapshots import CHUNK_BYTES
from tests.broker.disk.logs import FailingSync, FullDisk, Log, SlowWriter, batches
from tests.ha.log_cluster import Broker, Machine
from tests.ha.log_on_disk import Owner, queue_add
from tests.ha.test_halted_log import Mixed


def behind_a_checkpoint(folder: Path) -> tuple[Machine, Broker, Broker]:
    """Three members, of which the third is down and needs a snapshot of several chunks: the machine, the primary, a backup."""
    machine = Machine(folder, checkpoint_bytes=1024 * 1024)
    a, b, _ = machine.cluster("a", "b", "c")
    machine.kill("c")
    for number in range(30):
        machine.write(a, b"%02d" % number * 50_000)
        builder = BatchBuilder()
        builder.count(1, 1)
        machine.run_until(lambda: a.log.may_propose)
        a.log.propose(builder)
    machine.run_until(lambda: a.log.journal.figures.checkpoint_index > 2)
    return machine, a, b


@contextmanager
def error_lines() -> Iterator[list[str]]:
    """The errors that are logged meanwhile."""
    lines: list[str] = []

    @provider(ILogObserver)
    def observe(event: dict[str, Any]) -> None:
        if event.get("log_level") in (LogLevel.error, LogLevel.critical):
            lines.append(eventAsText(event, includeTimestamp=False, includeSystem=False))

    globalLogPublisher.addObserver(observe)
    try:
        yield lines
    finally:
        globalLogPublisher.removeObserver(observe)


def test_both_sides_tell_when_it_began_how_long_it_is_and_when_it_was_through(tmp_path: Path) -> None:
    machine, a, b = behind_a_checkpoint(tmp_path)
    back = machine.start("c")
    machine.run_until(lambda: machine.level(a, b, back))
    checkpoint = a.log.journal.checkpoint
    assert checkpoint is not None
    for broker, peer in ((a, "c"), (back, "a")):
        (begun, about), (ended, how) = broker.told("snapshot_begin", "snapshot_end")
        assert (begun, ended) == ("snapshot_begin", "snapshot_end")
        assert about == {"epoch": 1, "peer": peer, "index": checkpoint.index, "nbytes": checkpoint.nbytes}
        assert how.pop("duration_ms") >= 0
        assert how == {"peer": peer, "index": checkpoint.index, "nbytes": checkpoint.nbytes, "detail": None}
    machine.close()


def test_a_backup_whose_release_cannot_read_a_snapshot_comes_back_with_a_log_that_goes_as_far(tmp_path: Path) -> None:
    """After a restart it does not know what is committed. The beginning of a snapshot, which is older than its log, tells it."""
    machine = Machine(tmp_path)
    a, b, c = machine.cluster("a", "b", "c")
    machine.older.add("c")
    for number in range(5):
        machine.write(a, b"%02d" % number)
    machine.run_until(lambda: machine.level(a, b, c))
    a.log.retention.checkpoint(spared=0)
    machine.run_until(lambda: a.log.replica.log.base_index > 3)
    machine.kill("c")
    machine.write(a, b"away")
    back = machine.start("c")
    assert back.log.status().commit_index == 0
    machine.run_until(lambda: machine.level(a, b, back))
    assert not back.told("snapshot_begin")
    machine.close()


def test_a_backup_whose_release_cannot_read_a_snapshot_is_sent_none_before_it_is_upgraded(tmp_path: Path) -> None:
    """It fetched the whole snapshot, refused it, and fetched it again, for ever. The first chunk is a question, too: whether its
    log goes as far."""
    machine, a, b = behind_a_checkpoint(tmp_path)
    machine.older.add("c")
    back = machine.start("c")
    machine.run_for(5)
    assert not back.told("snapshot_end")
    assert back.log.status().commit_index < 3
    assert back.log.replica.log.last_index < a.log.replica.log.base_index
    machine.kill("c")
    machine.older.clear()
    back = machine.start("c")
    machine.run_until(lambda: machine.level(a, b, back))
    machine.close()


def test_one_that_is_cut_short_is_told_with_the_reason_and_its_repetition_anew(tmp_path: Path) -> None:
    """Breaks when a transfer that will never end looks as if it went on."""
    machine, a, b = behind_a_checkpoint(tmp_path)
    back = machine.start("c")
    machine.run_until(lambda: bool(back.told("snapshot_begin")))
    machine.disconnect("a", "c")
    for broker in (a, back):
        assert broker.told("snapshot_end")[-1][1]["detail"] == "cut short: the link was lost"
    machine.connect("a", "c")
    machine.run_until(lambda: machine.level(a, b, back))
    for broker in (a, back):
        kinds = [kind for kind, _ in broker.told("snapshot_begin", "snapshot_end")]
        assert kinds == ["snapshot_begin", "snapshot_end"] * 2
        assert broker.told("snapshot_end")[-1][1]["detail"] is None
    machine.close()


def test_a_transfer_to_a_backup_that_has_everything_ends_and_keeps_no_files(tmp_path: Path) -> None:
    """A chunk may be asked for once more when all has arrived; whoever asked will ask for nothing after that."""
    machine, a, b = behind_a_checkpoint(tmp_path)
    back = machine.start("c")
    machine.run_until(lambda: machine.level(a, b, back))
    machine.run_until(lambda: not a.log._snapshots.sending)
    a.log._snapshots.send("c", a.log.epoch, 0, 0)
    assert a.log._snapshots.sending == {"c"}
    machine.run_until(lambda: not a.log._snapshots.sending)
    assert a.told("snapshot_end")[-1][1]["detail"] == "cut short: it is not needed any more"
    checkpoint = a.log.journal.checkpoint
    assert checkpoint is not None
    machine.run_until(lambda: not any(a.log.journal.is_pinned(file.number) for file in checkpoint.files.in_use))
    machine.close()


def test_what_has_come_of_a_snapshot_goes_when_the_log_needs_it_no_more(tmp_path: Path) -> None:
    """Breaks when a backup that has caught up by its log keeps the files, open and on its disk, until its next start."""
    machine, _, b = behind_a_checkpoint(tmp_path)
    snapshots = b.log._snapshots
    members = b.log.replica.members
    part = SnapshotChunk(epoch=1, index=99, index_epoch=1, members=members, offset=0, nbytes=4, total_bytes=1000)
    snapshots.store(part, b"part", "a")
    begun = snapshots._folder / "received.tmp"
    machine.run_until(begun.exists)
    machine.disconnect("a", "b")
    machine.run_until(lambda: b.log.state != State.READY)
    assert begun.exists(), "it may go on"
    machine.connect("a", "b")
    machine.run_until(lambda: b.log.state == State.READY and not begun.exists())
    machine.close()


def test_a_snapshot_that_takes_long_to_verify_is_installed_though_a_newer_one_is_offered(tmp_path: Path) -> None:
    """Breaks when the beginning of the newer one makes the backup drop what it has whole: it got one after the other in vain."""
    machine, a, b = behind_a_checkpoint(tmp_path)
    back = machine.start("c")
    snapshots, plain = back.log._snapshots, back.log._snapshots._in_thread
    verified: Deferred[None] = Deferred()

    def in_thread(work: Callable[[], Any]) -> Deferred[Any]:
        receiver = snapshots._receiver
        if receiver is None or receiver.nbytes - receiver.received > CHUNK_BYTES:
            return plain(work)
        held.append(receiver)
        return verified.addCallback(lambda _: plain(work))

    held: list[Receiver] = []
    snapshots._in_thread = in_thread
    machine.run_until(lambda: bool(held))
    first = a.log.journal.checkpoint
    assert first is not None
    machine.write(a, b"newer")
    a.log.retention.checkpoint()
    machine.run_until(lambda: a.told("snapshot_begin")[-1][1]["index"] > first.index)
    machine.run_for(0.5)
    verified.callback(None)
    machine.run_until(lambda: machine.level(a, b, back))
    assert [how["index"] for _, how in back.told("snapshot_end")] == [first.index]
    assert len(held) == 1
    machine.close()


def test_a_slow_verification_at_the_primary_does_not_hold_up_its_heartbeats(tmp_path: Path) -> None:
    """Breaks when they wait for it: the primary, which needs the backup for its majority, resigned in each term."""
    machine, a, _ = behind_a_checkpoint(tmp_path)
    snapshots, plain = a.log._snapshots, a.log._snapshots._in_thread
    held: list[Deferred[Any]] = []

    def in_thread(work: Callable[[], Any]) -> Deferred[Any]:
        if held:
            return plain(work)
        held.append(Deferred())
        return held[0].addCallback(lambda _: plain(work))

    snapshots._in_thread = in_thread
    back = machine.start("c")
    machine.run_until(lambda: bool(held))
    machine.isolate("b")
    machine.run_for(3 * machine.settings.election_s)
    assert a.told("fenced") == []
    held[0].callback(None)
    machine.run_until(lambda: machine.level(a, back))
    assert (a.log.state, a.told("fenced"), len(back.told("snapshot_begin"))) == ("active", [], 1)
    machine.close()


def test_a_checkpoint_found_damaged_after_its_transfer_was_cut_short_is_not_replaced(tmp_path: Path) -> None:
    """Its files may belong to another log by then."""
    machine, a, _ = behind_a_checkpoint(tmp_path)
    snapshots = a.log._snapshots
    checking: Deferred[Any] = Deferred()
    snapshots._in_thread = lambda work: checking
    snapshots.send("c", a.log.epoch, 0, 0)
    snapshots.cut_short("the link was lost", "c")
    with error_lines() as lines:
        checking.errback(OSError(errno.EIO, "the disk is bad"))
    assert (lines, snapshots.sending) == ([], set())
    machine.close()


def dropping_its_log(tmp_path: Path) -> tuple[Machine, SlowWriter, Broker]:
    """A broker that has received a snapshot, and whose writer drops the old log as soon as the gate is set."""
    machine, _, _ = behind_a_checkpoint(tmp_path)
    slow = machine.disks["c"] = SlowWriter()
    back = machine.start("c", connect=False)
    slow.gate.clear()
    machine.connect("c", "a")
    machine.run_until(lambda: back.log.journal.resetting)
    return machine, slow, back


def test_a_snapshot_that_comes_while_one_replaces_the_log_waits_until_the_old_log_is_dropped(tmp_path: Path) -> None:
    """Breaks when the second one, of the same batch from another primary, takes the name of the first one's checkpoint, and its
    files are deleted with the old log: the next start would find it without them, and give up the whole log."""
    machine, slow, back = dropping_its_log(tmp_path)
    first = back.log.journal.checkpoint
    assert first is not None
    (tmp_path / "other").mkdir()
    other = Log(tmp_path / "other", origin=2)
    other.journal.save_hard_state(1, None)
    other.journal.floor_passed()
    other.store(batches(1, first.index + 5))
    alive = {file_of(place) for place in other.journal.places(1, first.index)}
    assert other.checkpoint(first.index, 1, batches(1, 3), alive=alive) == ""
    source, snapshots, kept = other.journal.source(), back.log._snapshots, list[Checkpoint | None]()
    assert (source.checkpoint.index, bool(source.checkpoint.files.in_use)) == (first.index, True)
    chunk = SnapshotChunk(2, first.index, 1, back.log.replica.members, 0, source.nbytes, source.nbytes)
    snapshots.store(chunk, source.read(0, source.nbytes), "b").addCallback(kept.append)
    machine.run_for(0.3)
    assert kept == []
    slow.gate.set()
    machine.run_until(lambda: bool(kept) and not back.log.journal.resetting)
    snapshots.leave_received()
    folder = snapshots._folder
    newest = Checkpoint.newest(folder, disk=RealDisk())
    assert newest is not None
    assert newest.files.in_use == source.checkpoint.files.in_use
    assert all((folder / file.name).exists() for file in newest.files.in_use)
    other.close()
    machine.close()


def test_a_chunk_that_waits_while_a_log_is_dropped_and_is_not_needed_then_leaves_nothing(tmp_path: Path) -> None:
    """Breaks when what waits is not known to be given up: its file would stay open, and on the disk."""
    machine, slow, back = dropping_its_log(tmp_path)
    snapshots, kept = back.log._snapshots, list[Checkpoint | None]()
    chunk = SnapshotChunk(2, 1_000, 1, back.log.replica.members, 0, 5, 50)
    snapshots.store(chunk, b"USC1.", "b").addCallback(kept.append)
    snapshots.give_up_receiving()
    slow.gate.set()
    machine.run_until(lambda: kept == [None] and snapshots._receiver is None and not back.log.journal.resetting)
    assert not list(snapshots._folder.glob("received*"))
    machine.close()


def test_no_checkpoint_begins_between_a_snapshot_s_receipt_and_the_end_of_the_old_log(tmp_path: Path) -> None:
    """The old segments stand beside the received files and may have the same numbers: a checkpoint would list the wrong ones."""
    cluster = Machine(tmp_path, checkpoint_bytes=128 * 1024)
    slow = cluster.disks["b"] = SlowWriter()
    for name in "abc":
        cluster.start(name, "a,b,c", listener=Ledger("cluster", cluster.clock, Owner()))
    assert cluster.promote("a").won
    a, b, c = (cluster.brokers[name] for name in "abc")
    cluster.run_until(lambda: [each.log.state for each in (a, b, c)] == ["active", "ready", "ready"])

    def propose(builder: BatchBuilder) -> None:
        cluster.run_until(lambda: a.log.may_propose)
        index = a.log.propose(builder)
        cluster.run_until(lambda: a.log.applied >= index)

    made = BatchBuilder()
    made.define(queue_add(1))
    propose(made)

    def send(first: int, count: int) -> None:
        """Batches of ten messages, of which one of thirty stays."""
        for sequence in range(first, first + 10 * count, 10):
            builder = BatchBuilder()
            for gone in range(max(1, sequence - 10), sequence):
                if gone % 30:
                    builder.dequeues_for(1).append(gone)
            builder.messages_for(1, sequence).extend(bytes([sequence % 251]) * 1000 for _ in range(10))
            propose(builder)

    b.log.retention.checkpoint_bytes = 1 << 30  # its log grows, so that a checkpoint would be due
    send(1, 60)
    cluster.run_until(lambda: b.log.applied == a.log.applied)
    cluster.isolate("b")
    send(601, 20)
    a.log.retention.checkpoint(spared=0)
    cluster.run_until(lambda: a.log.status().first_index > b.log.status().last_index + 1)
    slow.gate.clear()
    cluster.connect("b", "a")
    cluster.connect("b", "c")
    cluster.run_until(lambda: b.log.journal.resetting)
    b.log.retention.checkpoint_bytes = 1024
    b.log.retention.look()
    b.log.retention.checkpoint()
    assert not b.log._snapshots.writing
    slow.gate.set()
    cluster.run_until(lambda: not b.log.journal.resetting)
    send(801, 5)
    cluster.run_until(lambda: b.log.applied == a.log.applied)
    received = b.log.journal.checkpoint
    cluster.run_until(lambda: b.log.journal.checkpoint is not received)
    cluster.close()


class Crowded(RealDisk):
    """A disk that opens no file with bodies while `full` is set, as if too many files were open."""

    full = False

    def open(self, path: Path, flags: int) -> int:
        if self.full and flags == os.O_RDONLY and path.suffix in (bodies.SUFFIX, segments.SUFFIX):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(path, flags)


class Interrupted(Crowded):
    """A disk on which something happens once, just before a file with bodies is opened to be read."""

    meanwhile: Callable[[], None] | None = None

    def open(self, path: Path, flags: int) -> int:
        if self.meanwhile and flags == os.O_RDONLY and path.suffix in (bodies.SUFFIX, segments.SUFFIX):
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return super().open(path, flags)


def with_bodies(folder: Path, disk: RealDisk, members: str = "abc") -> tuple[Mixed, Any]:
    """Three members, of which the third is down and needs a snapshot of several files, or one; and the log of the primary."""
    mixed = Mixed(folder)
    mixed.machine.disks["a"] = disk
    for address in members:
        mixed.start(address, members=members)
    mixed.promote("a")
    mixed.write("a", QueueAdd(uuid="u", name="q", level="all"))
    if "c" in members:
        mixed.machine.kill("c")
    log = mixed.log("a")

    def put(sequence: int) -> None:
        mixed.machine.run_until(lambda: log.may_propose)
        builder = BatchBuilder()
        builder.messages_for(1, sequence).append(bytes(50_000))
        index = log.propose(builder)
        mixed.machine.run_until(lambda: log.applied >= index)

    for sequence in range(1, 11):
        put(sequence)
    log.retention.checkpoint(spared=0)
    mixed.machine.run_until(lambda: log.journal.checkpoint is not None and log.status().first_index > 2)
    assert len(log.journal.checkpoint.files.in_use) > 2
    return mixed, log


def test_a_snapshot_waits_while_too_many_files_are_open_and_nothing_counts_as_damaged(tmp_path: Path) -> None:
    """Breaks when the primary stops and drops its store, or writes one checkpoint after another that it cannot send either."""
    disk = Crowded()
    mixed, log = with_bodies(tmp_path, disk)
    machine, known = mixed.machine, log.journal.checkpoint
    disk.full = True
    mixed.start("c")
    machine.run_for(5.0)
    assert log.status().peers[1].progress == "snapshot"
    assert mixed.listeners["a"].errors == []
    assert log.journal.checkpoint is known
    disk.full = False
    machine.run_until(lambda: mixed.level("a", "b", "c"))
    assert mixed.listeners["c"].state.messages[1].depth == 10
    machine.close()


class Room(FullDisk):
    """A disk with so many bytes of room for what is received, while it is `full`."""

    room = 0

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        if self.full.is_set() and os.readlink(f"/proc/self/fd/{fd}").endswith(f"received{ASIDE}") and self.room:
            taken, self.room = min(self.room, sum(map(len, buffers))), max(0, self.room - sum(map(len, buffers)))
            return RealDisk.write(self, fd, [b"".join(buffers)[:taken]], offset)
        return super().write(fd, buffers, offset)


def test_a_full_disk_that_gets_a_snapshot_is_told_once_and_what_was_kept_does_not_come_again(tmp_path: Path) -> None:
    """Breaks when it all begins again at once, as fast as the network is, with a line for each time."""
    machine, a, _ = behind_a_checkpoint(tmp_path)
    disk = machine.disks["c"] = Room()
    back = machine.start("c", connect=False)
    disk.full.set()
    disk.room = CHUNK_BYTES + 1000
    chunks: list[int] = []
    plain = back.log._snapshots.store

    def counted(chunk: SnapshotChunk, data: bytes, source: str) -> Deferred[Checkpoint | None]:
        chunks.append(chunk.offset)
        return plain(chunk, data, source)

    back.log._snapshots.store = counted  # type: ignore[method-assign]
    with error_lines() as lines:
        machine.connect("c", "a")
        machine.run_for(5.0)
        assert chunks[:2] == [0, CHUNK_BYTES]
        assert set(chunks[1:]) == {CHUNK_BYTES}, "what is on the disk does not come again"
        assert 3 <= len(chunks) <= 7, "it comes at the pace at which the primary repeats itself"
        ((text, fatal),) = back.ledger.errors
        assert "make room" in text
        assert not fatal
        disk.full.clear()
        machine.run_until(lambda: machine.level(a, back))
    assert lines == []
    assert "writable" in back.ledger.told
    machine.close()


def test_a_snapshot_that_a_disk_cannot_sync_does_not_begin_again_at_once(tmp_path: Path) -> None:
    """What was written before is not kept then. Breaks when it comes again as fast as the network is."""
    machine, a, _ = behind_a_checkpoint(tmp_path)
    disk = machine.disks["c"] = FailingSync()
    back = machine.start("c", connect=False)
    disk.broken.set()
    with error_lines() as lines:
        machine.connect("c", "a")
        machine.run_for(5.0)
        assert 1 <= len(lines) <= 5
        assert all("cannot be kept" in line for line in lines)
        disk.broken.clear()
        machine.run_until(lambda: machine.level(a, back))
    machine.close()


def test_messages_are_accepted_while_a_new_broker_gets_its_first_snapshot(tmp_path: Path) -> None:
    """Breaks when a short log makes it a voter with an empty disk: then nothing is committed before it has everything."""
    mixed, log = with_bodies(tmp_path, RealDisk(), "a")
    machine = mixed.machine
    mixed.start("b", members="ab")
    snapshots = mixed.log("b")._snapshots
    plain, held = snapshots.store, []

    def slow(*chunk: Any) -> Deferred[Any]:
        stored: Deferred[Any] = Deferred()
        held.append((chunk, stored))
        return stored

    snapshots.store = slow
    log.requests.change_member("b", Change.ADD)
    machine.run_until(lambda: bool(held))
    machine.run_for(1.0)
    mixed.write("a", QueueAdd(uuid="v", name="v", level="all"))
    assert (log.replica.members.voters, log.replica.members.learners) == (("a",), ("b",))
    snapshots.store = plain
    chunk, stored = held[0]
    plain(*chunk).chainDeferred(stored)
    machine.run_until(lambda: log.replica.members.voters == ("a", "b") and mixed.level("a", "b"))
    machine.close()


def test_what_a_transfer_that_was_cut_short_does_not_find_is_not_missed(tmp_path: Path) -> None:
    """A thread still reads while another primary's snapshot replaces the log: its files are gone, but nothing is damaged."""
    mixed, log = with_bodies(tmp_path, Crowded())
    log._snapshots.send("c", log.epoch, 0, 0)
    log._snapshots.cut_short("the primary is none any more")
    for file in log.journal.checkpoint.files.in_use:
        log.journal._holdings.path_of(file.number).unlink()
    assert mixed.machine.jobs
    mixed.machine.run_until(lambda: not mixed.machine.jobs)
    assert mixed.listeners["a"].errors == []
    mixed.machine.close()


def test_a_log_that_a_snapshot_replaces_ends_what_is_still_sent_of_it(tmp_path: Path) -> None:
    """A broker that was the primary still sends when the next primary's snapshot replaces its log, and the files go under the
    reading thread. Breaks when the broker takes the missing files for damage, and drops the store that it has just received."""
    disk = Interrupted()
    mixed, a = with_bodies(tmp_path, disk)
    machine = mixed.machine
    mixed.start("c")
    machine.run_until(lambda: mixed.level("a", "b", "c"))
    machine.isolate("a")
    machine.run_until(lambda: mixed.log("b").primary == "")
    mixed.promote("b")
    b = mixed.log("b")
    mixed.write("b", QueueAdd(uuid="v", name="v", level="all"))
    b.retention.checkpoint(spared=0)
    machine.run_until(lambda: b.journal.checkpoint is not None and b.status().first_index > a.status().last_index + 1)
    machine.connect("a", "c")
    machine.run_until(lambda: str(a.state) == "joining")
    machine.connect("a", "b")

    def last_chunk(message: object) -> bool:
        return isinstance(message, SnapshotChunk) and message.offset + message.nbytes == message.total_bytes

    machine.run_until(lambda: any(wire[1] == "a" and last_chunk(wire[2]) for wire in machine.wires))
    a._snapshots.send("c", a.epoch, 0, 0)  # a checkpoint for which c had waited is written only now
    ((read, done),) = machine.jobs
    machine.jobs = []

    def replaced() -> None:
        machine.run_until(lambda: a.journal.resetting)
        ends = [(how["peer"], how["detail"]) for _, how in machine.brokers["a"].told("snapshot_end")]
        assert ("c", "cut short: another primary's snapshot replaces the log") in ends
        machine.run_until(lambda: not a.journal.resetting)
        assert a.journal.checkpoint.index == b.journal.checkpoint.index

    disk.meanwhile = replaced
    with pytest.raises(RottenBodies) as found:
        read()
    done.errback(found.value)
    assert mixed.listeners["a"].errors == []
    assert a._snapshots.sending == set()
    machine.run_until(lambda: mixed.level("a", "b", "c"))
    assert mixed.listeners["a"].state.messages[1].depth == 10
    machine.close()


def test_a_snapshot_that_cannot_be_loaded_after_it_has_replaced_the_log_stops_the_broker(tmp_path: Path) -> None:
    """Breaks when later batches are applied to the state before the snapshot. The next start loads it."""

    class Shut(RealDisk):
        shut = True

        def open(self, path: Path, flags: int) -> int:
            if self.shut and flags == os.O_RDONLY and path.suffix == ".checkpoint":
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().open(path, flags)

    mixed, _ = with_bodies(tmp_path, Crowded())
    machine, disk = mixed.machine, Shut()
    machine.disks["c"] = disk
    mixed.start("c")
    machine.run_until(lambda: bool(mixed.listeners["c"].errors))
    ((text, fatal),) = mixed.listeners["c"].errors
    assert (fatal, os.strerror(errno.EMFILE) in text) == (True, True)
    mixed.write("a", QueueAdd(uuid="v", name="v", level="all"))
    machine.run_for(1.0)
    assert mixed.listeners["c"].state.definitions.queues == {}
    machine.kill("c")
    disk.shut = False
    mixed.start("c")
    machine.run_until(lambda: mixed.level("a", "b", "c"))
    assert mixed.listeners["c"].state.messages[1].depth == 10
    machine.close()


@pytest.mark.parametrize("damage", ["missing", "noted"])
def test_damage_costs_the_only_store_of_a_cluster_no_intact_message(tmp_path: Path, damage: str) -> None:
    """A file with bodies is missing, or an earlier release has noted damage. Breaks when the broker moves its checkpoint aside to
    fetch everything from another one: it would begin with an empty log, and never be elected again."""
    mixed, log = with_bodies(tmp_path, RealDisk(), "a")
    missing = log.journal.body_files()[0].path
    if damage == "noted":
        log.journal.damaged(0, "a body is damaged")
    mixed.machine.kill("a")
    if damage == "missing":
        missing.unlink()
    mixed.start("a", members="a")
    assert mixed.promote("a").won
    assert mixed.listeners["a"].state.messages[1].depth == 10
    lost = [body for body in mixed.log("a").journal.body_files() if not body.path.exists()]
    assert len(lost) == (damage == "missing")
    assert not (tmp_path / "a" / "cluster" / DAMAGED).exists()
    mixed.machine.close()


def test_a_lost_file_that_no_other_broker_has_is_told_once_and_its_messages_can_be_purged_for_a_copy(tmp_path: Path) -> None:
    """Breaks when the log gets a line each second, for ever, or when the purge alone does not end it: no checkpoint is due."""
    mixed, log = with_bodies(tmp_path, RealDisk(), "a")
    machine, missing = mixed.machine, log.journal.body_files()[0].path
    machine.kill("a")
    missing.unlink()
    mixed.start("a", members="a")
    assert mixed.promote("a").won
    log = mixed.log("a")
    (lost,) = [body for body in log.journal.body_files() if not body.path.exists()]
    runs = [run for _, run in mixed.listeners["a"].live_runs_in(lost.file.number)]
    messages = [run.first_seq + at for run in runs for at in range(len(run.lengths))]
    mixed.start("b", members="ab")
    with error_lines() as told:
        log.requests.change_member("b", Change.ADD)
        machine.run_for(10.0)
        (line,) = told
        assert lost.path.name in line
        assert "none can get a copy of this log" in line
        assert log.obstacle == line
        assert (log.replica.members.voters, mixed.listeners["a"].errors) == (("a",), [])
        machine.run_until(lambda: log.may_propose)
        builder = BatchBuilder()
        builder.dequeues_for(1).extend(messages)
        log.propose(builder)
        machine.run_until(lambda: log.replica.members.voters == ("a", "b") and mixed.level("a", "b"))
        assert "b, which needs a checkpoint, gets a new one" in told[1]
    assert log.obstacle == ""
    assert mixed.listeners["b"].state.messages[1].depth == 10 - len(messages) > 0
    machine.close()


def test_what_keeps_a_primary_from_sending_a_snapshot_is_forgotten_when_it_is_none_any_more(tmp_path: Path) -> None:
    mixed, log = with_bodies(tmp_path, RealDisk())
    missing = log.journal.body_files()[0].path
    missing.unlink()
    mixed.machine.kill("b")
    mixed.machine.run_until(lambda: not any(each.connected for each in log.status().peers))
    mixed.start("c")
    mixed.machine.run_until(lambda: log.obstacle != "" or bool(mixed.listeners["a"].errors))
    assert missing.stem in log.obstacle
    mixed.machine.isolate("a")
    mixed.machine.run_until(lambda: log.state != State.ACTIVE)
    assert log.obstacle == ""
    mixed.machine.close()


def test_a_missing_file_is_fetched_from_another_broker_that_was_added_after_the_checkpoint(tmp_path: Path) -> None:
    mixed, log = with_bodies(tmp_path, RealDisk(), "a")
    missing = log.journal.body_files()[0].path
    mixed.start("b", members="ab")
    log.requests.change_member("b", Change.ADD)
    mixed.machine.run_until(lambda: log.replica.members.voters == ("a", "b") and mixed.level("a", "b"))
    assert log.journal.checkpoint.members["voters"] == ["a"]
    mixed.machine.kill("a")
    missing.unlink()
    mixed.start("a", members="ab")
    assert mixed.log("a").replica.status(0.0).last_index == 0
    mixed.machine.close()
