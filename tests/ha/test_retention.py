"""What stays on the disk is bounded by what is alive, whatever the load, and nothing that is alive goes with the rest."""

from __future__ import annotations

import errno
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from broker.core.records import BatchBuilder
from broker.disk.bodies import Unreadable, offset_of
from broker.disk.files import RealDisk, Space
from broker.sessions.ledger import Ledger
from ha import snapshots
from ha.log.retention import COVER_S, MANY_SMALL, ROOM_S, SPARE
from ha.snapshots import _Sending
from tests.broker.disk.contents import contents
from tests.broker.disk.logs import SlowWriter, flip
from tests.ha.log_cluster import PATIENCE_S, Broker, Machine
from tests.ha.log_on_disk import FILE, LogOnDisk, Owner, queue_add

TWO_SEGMENTS = 8 * FILE


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogOnDisk]:
    made = LogOnDisk(tmp_path)
    yield made
    made.stop()


def body(number: int, nbytes: int = 1000) -> bytes:
    return number.to_bytes(8, "big") * (nbytes // 8)


def test_one_message_of_many_that_is_never_consumed_keeps_little_of_the_disk(log: LogOnDisk) -> None:
    """Breaks when a file stays for the one message in it."""
    for batch in range(1000):
        takes = [sequence for sequence in range(max(1, log.next_seq[1] - 10), log.next_seq[1]) if sequence % 1000]
        log.put(*(body(batch * 10 + at) for at in range(10)), takes=takes)
    assert log.most_over <= TWO_SEGMENTS
    log.rest()
    assert log.log.journal.figures.body_files <= MANY_SMALL
    assert log.real_bytes <= 2 * log.live_bytes + TWO_SEGMENTS
    log.check()
    log.restart()


def test_acknowledgements_in_any_order_keep_the_bound(log: LogOnDisk) -> None:
    rng = Random(1)
    for batch in range(1000):
        takes = [sequence for _, sequence in rng.sample(sorted(log.alive), rng.randint(1, 19))] if len(log.alive) > 1000 else []
        log.put(*(body(batch * 10 + at, rng.choice((200, 1000, 3000))) for at in range(10)), takes=takes)
    assert log.most_over <= TWO_SEGMENTS
    while log.alive:
        log.take(*rng.sample(sorted(log.alive), min(len(log.alive), 12)))
    assert log.most_over <= TWO_SEGMENTS
    log.rest()
    assert log.real_bytes <= TWO_SEGMENTS
    log.restart()


def test_many_idle_queues_with_a_message_now_and_then_keep_the_bound(tmp_path: Path) -> None:
    """A thousand queues, each with one message, which a newer one replaces a minute later."""
    log = LogOnDisk(tmp_path, queues=1000)
    for minute in range(4):
        for number in range(1, 1001):
            takes = [log.next_seq[number] - 1] if minute else []
            log.put(body(minute * 1000 + number, 2000), number=number, takes=takes)
    assert log.most_over <= TWO_SEGMENTS
    log.rest()
    log.check()
    log.restart()
    log.stop()


@pytest.mark.parametrize("short", [False, True], ids=["missing", "short"])
def test_a_standalone_log_loses_only_the_messages_of_a_lost_file_and_goes_on(tmp_path: Path, short: bool) -> None:
    log = LogOnDisk(tmp_path, file_bytes=64 * 1024)
    for batch in range(60):
        log.put(*(body(batch * 10 + at) for at in range(10)))
    log.log.retention.checkpoint(spared=0)
    log.rest()
    lost = log.log.journal.body_files()[0]
    bodies = log.ledger.state.live_by_file[lost.file.number] // 1000
    log.stop()
    if short:
        with lost.path.open("r+b") as file:
            file.truncate(0)
    else:
        lost.path.unlink()
    log.start()
    for _ in range(2):
        assert log.ledger.state.messages[1].depth == 600
        with pytest.raises(Unreadable, match=f"{lost.file.number:010d}-.* cannot be opened: No such file"):
            contents(log.ledger.state, log.log.journal)
        log.rest()
        log.stop()
        log.start()
    log.take(*((1, sequence) for sequence in range(1, bodies + 11)))
    log.check()
    for batch in range(60):
        log.put(*(body(batch * 10 + at) for at in range(10)), takes=sorted(sequence for _, sequence in log.alive)[:10])
    log.rest()
    log.restart()
    assert lost.file.number not in {each.file.number for each in log.log.journal.body_files()}
    log.stop()


def test_what_is_alive_stays_where_it_is_while_nothing_dies(log: LogOnDisk) -> None:
    """A backlog is written once: no checkpoint copies it, and nothing is compacted."""
    for batch in range(200):
        log.put(*(body(batch * 10 + at) for at in range(10)))
    log.rest()
    written = sum(path.stat().st_size for path in (log.folder / "cluster").glob("*.checkpoint"))
    assert 0 < written < log.live_bytes // 50
    assert list((log.folder / "cluster").glob("*.bodies")) == []
    log.restart()


def test_a_queue_that_is_consumed_gives_its_files_back(log: LogOnDisk) -> None:
    for batch in range(200):
        log.put(*(body(batch * 10 + at) for at in range(10)))
    for first in range(1, 2001, 100):
        log.take(*((1, sequence) for sequence in range(first, first + 100)))
    log.rest()
    assert log.real_bytes <= TWO_SEGMENTS
    assert log.log.journal.figures.body_files == 0


def test_a_log_beyond_its_bound_looks_again_though_nothing_happens_until_what_keeps_its_files_has_ended(log: LogOnDisk) -> None:
    for batch in range(200):
        log.put(*(body(batch * 10 + at) for at in range(10)))
    log.log.retention.checkpoint(spared=0)
    log.rest()
    snapshots, retention = log.log._snapshots, log.log.retention
    snapshots._sending["backup"] = _Sending(log.log.journal.source())
    for first in range(1, 2001, 100):
        log.take(*((1, sequence) for sequence in range(first, first + 100)))
    log.until(lambda: not log.busy)
    assert log.real_bytes > TWO_SEGMENTS
    for _ in range(3):
        looked_s = retention._looked_s
        log.until(lambda looked_s=looked_s: retention._looked_s > looked_s)  # type: ignore[misc]
    snapshots.cut_short("the link was lost", "backup")
    log.until(lambda: log.real_bytes <= TWO_SEGMENTS)


def test_what_must_not_be_forgotten_is_soon_in_a_checkpoint(log: LogOnDisk) -> None:
    """Breaks when it waits until the log has grown: a broker that starts would not know it."""
    log.put(body(1))
    assert log.log.journal.checkpoint is None
    log.owner.applied = log.log.retention.cover
    log.put(body(2))
    log.until(lambda: log.log.journal.figures.checkpoint_index == log.log.applied)
    log.owner.applied = lambda: None
    log.put(body(3))
    log.rest()
    assert log.log.journal.figures.checkpoint_index == log.log.applied - 1, "nothing more is due"
    assert log.log.replica.log.first_index == 1, "all of the log is still there"
    log.restart()


def test_what_must_not_be_forgotten_and_changes_all_the_time_is_not_written_all_the_time(log: LogOnDisk) -> None:
    """Breaks when each of many such batches has a checkpoint of its own, or when the last one has none."""
    log.owner.applied = log.log.retention.cover
    began_s, found = log.clock.seconds(), set[int]()
    for number in range(400):
        log.put(body(number, 80))
        found.add(log.log.journal.figures.checkpoint_index)
    passed_s = log.clock.seconds() - began_s
    assert passed_s > 4 * COVER_S, "there was time for more than one"
    assert 4 <= len(found) - 1 <= passed_s / COVER_S + 1
    log.until(lambda: log.log.journal.figures.checkpoint_index == log.log.applied)


def test_a_checkpoint_of_what_must_not_be_forgotten_is_tried_again(tmp_path: Path) -> None:
    disk = NoCheckpoints()
    log = LogOnDisk(tmp_path, disk=disk)
    log.owner.applied = log.log.retention.cover
    log.put(body(1))
    log.until(lambda: disk.refused > 0)
    disk.refuses = False
    log.until(lambda: log.log.journal.figures.checkpoint_index == log.log.applied)
    assert disk.refused == 1
    log.stop()


class NoCheckpoints(RealDisk):
    """A disk on which no checkpoint can be created while `refuses` is set."""

    refuses = True
    refused = 0

    def open(self, path: Path, flags: int) -> int:
        if "checkpoint" in path.name and self.refuses:
            self.refused += 1
            raise OSError(errno.ENOSPC, "injected")
        return super().open(path, flags)


class SmallDisk(RealDisk):
    """A disk of a certain size, of which this log is all."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        self.folder = folder
        self.nbytes = nbytes

    def free(self, folder: Path) -> Space:
        used = 0
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                used += path.stat().st_size
        return Space(max(0, self.nbytes - used), self.nbytes)


def test_before_the_disk_is_full_producers_wait_and_consuming_lets_them_go_on(tmp_path: Path) -> None:
    """Breaks when the last bytes go to producers: then nothing can be consumed any more, and so nothing freed."""
    log = LogOnDisk(tmp_path, disk=SmallDisk(tmp_path, 40 * FILE))
    ledger = log.ledger
    while not ledger.room.text:
        log.put(*(body(at) for at in range(20)))
        assert log.real_bytes < 40 * FILE
    found = re.search(
        r"only \d+ KiB are free where the cluster log lies, and (\d+) KiB .*; make room on that disk, or consume",
        ledger.room.text,
    )
    assert found is not None
    assert log.owner.errors == [(ledger.room.text, False)]
    spare = int(found[1]) * 1024 // SPARE
    assert ledger.room.takes(spare - 1024), "a little of what producers have credit for"
    assert not ledger.room.takes(spare), "and no more"
    while ledger.room.text:
        assert log.alive, "all was consumed, and no room came of it"
        log.take(*sorted(log.alive)[:200])
        assert log.real_bytes < 40 * FILE
    assert log.owner.writable == 1
    log.rest()
    log.check()
    log.stop()


def took_letter(ledger: Ledger, nbytes: int) -> bool:
    """Whether there is room for a dead letter of this size, which then takes it."""
    has_room = ledger.room.fits_letter(nbytes)
    if has_room:
        ledger.room.take_letter(nbytes)
    return has_room


def test_dead_letters_go_on_while_half_of_the_reserve_is_free(tmp_path: Path) -> None:
    """Breaks when they wait for room that only the consumers of these letters can make."""
    disk = SmallDisk(tmp_path, 40 * FILE)
    log = LogOnDisk(tmp_path, disk=disk)
    ledger = log.ledger
    while not ledger.room.text:
        log.put(*(body(at) for at in range(20)))
    found = re.search(r"and (\d+) KiB", ledger.room.text)
    assert found is not None
    reserve = int(found[1]) * 1024
    log.rest()
    assert not ledger.room.takes(reserve)
    for _ in range(3):
        log.clock.advance(ROOM_S)
        assert took_letter(ledger, reserve // SPARE - 1024)
        assert not ledger.room.takes(1), "what producers send is not meant"
        assert not took_letter(ledger, reserve // SPARE)
        assert took_letter(ledger, 1024)
        assert not took_letter(ledger, 1025)
    log.clock.advance(ROOM_S)
    most = disk.free(tmp_path / "cluster").free - log.log.retention.reserve_bytes // 2
    assert most > reserve // SPARE
    assert not took_letter(ledger, most + 1)
    assert took_letter(ledger, most), "one large letter leaves half of the reserve"
    assert not took_letter(ledger, 1), "and nothing else goes with it"
    assert len(log.owner.errors) == 1, "it is said once"
    disk.nbytes -= reserve // 2
    log.clock.advance(ROOM_S)
    assert not took_letter(ledger, 1025)
    log.stop()


def test_a_disk_that_takes_much_between_two_looks_is_not_filled_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the file system is only asked by time: a fast disk lost 30 MB of its reserve before the first question."""
    monkeypatch.setattr("ha.log.retention.LOOK_S", 3600.0)
    log = LogOnDisk(tmp_path, disk=SmallDisk(tmp_path, 40 * FILE))
    while not log.ledger.room.text:
        log.put(*(body(at) for at in range(20)))
        assert log.real_bytes < 40 * FILE
    found = re.search(r"only (\d+) KiB are free where the cluster log lies, and (\d+) KiB", log.ledger.room.text)
    assert found is not None
    free, reserve = int(found[1]), int(found[2])
    assert free >= reserve * (1 - 1 / SPARE) - 21, "what came since the last question, and one batch more"
    log.stop()


def test_room_that_comes_from_outside_lets_producers_go_on_though_nothing_is_written(tmp_path: Path) -> None:
    """Breaks when the file system is asked only after a batch: all is consumed, producers wait, and so no batch comes."""
    disk = SmallDisk(tmp_path, 40 * FILE)
    log = LogOnDisk(tmp_path, disk=disk)
    while not log.ledger.room.text:
        log.put(*(body(at) for at in range(20)))
    log.rest()
    assert log.ledger.room.text
    assert log.owner.writable == 0
    disk.nbytes *= 4
    log.clock.advance(ROOM_S)
    assert log.ledger.room.text == ""
    assert log.owner.writable == 1
    log.stop()
    assert log.clock.getDelayedCalls() == []


class SlowToCompact(RealDisk):
    """A disk on which no file of a compaction is begun while `gate` is closed; `waits` says that one is about to be."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waits = threading.Event()

    def open(self, path: Path, flags: int) -> int:
        if re.fullmatch(r"\d+\.bodies\.tmp", path.name):
            self.waits.set()
            assert self.gate.wait(PATIENCE_S)
        return super().open(path, flags)


class SlowToEndACompaction(SlowToCompact):
    """A disk on which a compaction ends when `gate` is open. While `resets` is set, the writer waits for that. Then it deletes
    the compaction's file at the same time as the thread that deletes files in the background, which is a moment faster."""

    def __init__(self) -> None:
        super().__init__()
        self.resets = threading.Event()
        self.made, self.both, self.gone = threading.Event(), threading.Event(), threading.Event()
        self._file: Path | None = None

    def open(self, path: Path, flags: int) -> int:
        return RealDisk.open(self, path, flags)

    def sync(self, fd: int) -> None:
        if threading.current_thread().name.startswith("compact"):
            self.waits.set()
            assert self.gate.wait(PATIENCE_S)
        super().sync(fd)

    def replace(self, path: Path, target: Path) -> None:
        super().replace(path, target)
        if threading.current_thread().name.startswith("compact"):
            self._file = target
            self.made.set()

    def names(self, folder: Path) -> list[str]:
        if self.resets.is_set() and threading.current_thread().name.startswith("write"):
            assert self.made.wait(PATIENCE_S)
        return super().names(folder)

    def unlink(self, path: Path) -> None:
        if path != self._file:
            super().unlink(path)
        elif threading.current_thread().name.startswith("write"):
            self.both.set()
            assert self.gone.wait(PATIENCE_S)
            super().unlink(path)
        else:
            assert self.both.wait(PATIENCE_S)
            super().unlink(path)
            self.gone.set()


class Cluster:
    """Three members with the state of real brokers, of which the first is the primary. The disk of one of them is slow to
    compact. `alive` is the model: the messages on the queue, by sequence."""

    def __init__(self, folder: Path, slow: str, disk: SlowToCompact | None = None) -> None:
        self.machine = Machine(folder, checkpoint_bytes=128 * 1024)
        self.disk = self.machine.disks[slow] = disk or SlowToCompact()
        self.owners: dict[str, Owner] = {}
        self.ledgers: dict[str, Ledger] = {}
        self.alive: dict[int, bytes] = {}
        self.next_seq = 1
        for each in "abc":
            self.owners[each] = Owner()
            self.ledgers[each] = Ledger("cluster", self.machine.clock, self.owners[each])
            self.machine.start(each, listener=self.ledgers[each])
        self.machine.promote("a")
        brokers = self.machine.brokers
        self.machine.run_until(lambda: [brokers[each].log.state for each in "abc"] == ["active", "ready", "ready"])
        builder = BatchBuilder()
        builder.define(queue_add(1))
        self.propose(builder)

    def __getitem__(self, address: str) -> Broker:
        return self.machine.brokers[address]

    def propose(self, builder: BatchBuilder) -> None:
        log = self["a"].log
        self.machine.run_until(lambda: log.may_propose)
        index = log.propose(builder)
        self.machine.run_until(lambda: log.applied >= index)

    def put(self, n: int) -> None:
        """So many batches of ten messages, each of which takes the ten before it off the queue, but for every thirtieth."""
        for _ in range(n):
            builder = BatchBuilder()
            self.take(builder, [each for each in self.alive if each >= self.next_seq - 10 and each % 30])
            came = {each: body(each) for each in range(self.next_seq, self.next_seq + 10)}
            builder.messages_for(1, self.next_seq).extend(came.values())
            self.alive |= came
            self.next_seq += 10
            self.propose(builder)

    def take(self, builder: BatchBuilder, sequences: list[int]) -> None:
        for sequence in sequences:
            builder.dequeues_for(1).append(sequence)
            del self.alive[sequence]

    def replace(self, address: str, backlog: int) -> Broker:
        """A member has lost its disk. Its new one is empty, and a snapshot with so many batches of ten messages begins."""
        log = self["a"].log
        self.machine.kill(address)
        shutil.rmtree(self.machine.folder / address)
        for _ in range(backlog):
            builder = BatchBuilder()
            came = {each: body(each) for each in range(self.next_seq, self.next_seq + 10)}
            builder.messages_for(1, self.next_seq).extend(came.values())
            self.alive |= came
            self.next_seq += 10
            self.propose(builder)
        log.retention.checkpoint(spared=0)
        self.machine.run_until(lambda: not log._snapshots.writing)
        self.owners[address] = Owner()
        self.ledgers[address] = Ledger("cluster", self.machine.clock, self.owners[address])
        back = self.machine.start(address, listener=self.ledgers[address])
        self.machine.run_until(lambda: bool(back.told("snapshot_begin")))
        return back

    def consume(self, but: int) -> None:
        """All messages but the newest ones."""
        builder = BatchBuilder()
        self.take(builder, sorted(self.alive)[:-but])
        self.propose(builder)

    def until_one_waits(self) -> None:
        """Until the slow disk is about to begin the file of a compaction."""
        for _ in range(200):
            if self.disk.waits.is_set():
                return
            self.put(5)
            self.machine.run_for(0.12)
        raise AssertionError("nothing is compacted")

    def let_compact(self, broker: Broker) -> None:
        """Until that compaction has ended, and what follows from it."""
        self.disk.gate.set()
        self.machine.run_until(lambda: not broker.log.retention._compacting)
        self.machine.run_for(0.5)

    def check(self, address: str) -> None:
        """A member works on without an error, and every message is there, with its body."""
        assert self.owners[address].errors == []
        self.machine.run_until(lambda: self[address].log.applied == self["a"].log.applied)
        found = contents(self.ledgers[address].state, self[address].log.journal)
        assert found == {(1, sequence): each for sequence, each in self.alive.items()}


def test_a_snapshot_that_is_installed_during_a_compaction_ends_it_and_the_backup_works_on(tmp_path: Path) -> None:
    """Breaks when a file that the snapshot has replaced counts as damage: the backup stopped, and fetched everything again."""
    cluster = Cluster(tmp_path, slow="b")
    machine, a, b = cluster.machine, cluster["a"], cluster["b"]
    cluster.until_one_waits()
    machine.isolate("b")
    cluster.put(40)
    a.log.retention.checkpoint(spared=0)
    machine.run_until(lambda: a.log.status().first_index > b.log.status().last_index + 1)
    machine.connect("a", "b")
    machine.connect("b", "c")
    machine.run_until(lambda: bool(b.told("snapshot_end")) and b.log.state == "ready")
    assert b.log.retention._compacting
    cluster.let_compact(b)
    cluster.check("b")
    machine.close()


def test_a_file_that_is_deleted_in_the_background_during_a_reset_does_no_harm(tmp_path: Path) -> None:
    """Breaks when the slower of two threads that delete one file takes this for a failed disk: the backup stopped."""
    disk = SlowToEndACompaction()
    cluster = Cluster(tmp_path, slow="b", disk=disk)
    machine, a, b = cluster.machine, cluster["a"], cluster["b"]
    cluster.until_one_waits()
    machine.isolate("b")
    cluster.put(40)
    a.log.retention.checkpoint(spared=0)
    machine.run_until(lambda: a.log.status().first_index > b.log.status().last_index + 1)
    disk.resets.set()
    machine.connect("a", "b")
    machine.connect("b", "c")
    machine.run_until(lambda: b.log.journal.resetting)
    disk.gate.set()
    machine.run_until(disk.gone.is_set)
    machine.run_until(lambda: b.log.state == "ready")
    cluster.check("b")
    machine.close()


def test_a_new_backup_needs_one_snapshot_though_the_cluster_is_busy_while_it_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when the log after the snapshot is dropped during its transfer: then it does not fit the log, and the next one is
    sent from the beginning, again and again."""
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", 64 * 1024)
    cluster = Cluster(tmp_path, slow="b")
    cluster.disk.gate.set()
    a, back = cluster["a"], cluster.replace("c", backlog=300)
    storing = slow_to_store(cluster.machine, back)
    sent = a.log.journal.checkpoint
    assert sent is not None
    log, retention = a.log.replica.log, a.log.retention
    began = log.last_index
    while a.log.status().peers[1].progress == "snapshot":
        cluster.put(2)
        cluster.machine.run_for(0.12)
        for store in storing[:1]:
            storing.remove(store)
            store()
        assert [how["index"] for _, how in back.told("snapshot_begin")] == [sent.index]
    assert a.log.journal.figures.checkpoint_index > sent.index, "others were written meanwhile"
    assert log.bytes_between(began, log.last_index) > 3 * retention.checkpoint_bytes
    cluster.machine.run_until(lambda: back.log.state == "ready")
    cluster.check("c")
    cluster.put(20)
    retention.checkpoint()
    cluster.machine.run_until(lambda: log.bytes_between(0, a.log.applied) < 3 * retention.checkpoint_bytes)
    cluster.machine.close()


class NearlyFull(SlowToCompact):
    """A disk that has little room while `full` is set."""

    full = False

    def free(self, folder: Path) -> Space:
        return Space(1 << 30 if not self.full else 1, 1 << 30)


@pytest.mark.parametrize("low", [False, True])
def test_the_log_for_a_backup_goes_when_a_snapshot_costs_less_or_the_disk_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, low: bool
) -> None:
    """Breaks when a backup that does not get on fills the disk of the primary."""
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", 64 * 1024)
    disk = NearlyFull()
    disk.gate.set()
    cluster = Cluster(tmp_path, slow="a", disk=disk)
    a, back = cluster["a"], cluster.replace("c", backlog=60)
    slow_to_store(cluster.machine, back)
    sent = a.log.journal.checkpoint
    assert sent is not None
    log, retention = a.log.replica.log, a.log.retention
    grown = live_bytes = 0
    while log.first_index <= sent.index + 1 and grown < 3 * live_bytes + 1:
        live_bytes = sum(map(len, cluster.alive.values()))
        grown = log.bytes_between(sent.index, log.last_index)
        disk.full = low and grown > 3 * retention.checkpoint_bytes
        cluster.put(2)
        cluster.machine.run_for(0.12)
    assert grown > 3 * retention.checkpoint_bytes
    assert (grown > live_bytes) == (not low)
    assert grown < 1.5 * live_bytes
    cluster.machine.close()


def test_a_backup_that_is_far_behind_does_not_cost_another_one_its_log(tmp_path: Path) -> None:
    machine = Machine(tmp_path, checkpoint_bytes=20_000)
    far, near = SlowWriter(), SlowWriter()
    machine.disks |= {"c": far, "d": near}
    a, *_ = machine.cluster(*"abcde")
    far.gate.clear()
    machine.write(a, *(bytes(1000) for _ in range(60)))
    machine.run_until(lambda: a.log.lag()["d"].lag_bytes == 0)
    near.gate.clear()
    machine.write(a, bytes(1000))
    lag = a.log.lag()
    assert lag["c"].lag_bytes > 60_000
    assert 1000 < lag["d"].lag_bytes < 2000
    a.log.retention.checkpoint()
    machine.run_until(lambda: a.log.journal.figures.checkpoint_index == a.log.applied)
    machine.run_until(lambda: a.log.replica.log.first_index > lag["c"].acked_index + 1)
    assert a.log.replica.log.first_index <= lag["d"].acked_index + 1
    far.gate.set()
    near.gate.set()
    machine.close()


def slow_to_store(machine: Machine, broker: Broker) -> list[Callable[[], object]]:
    """From now on, this member stores a chunk of a snapshot when the test calls what is in this list."""
    storing: list[Callable[[], object]] = []

    def in_thread(work: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        storing.append(lambda: machine.in_thread(work).chainDeferred(done))
        return done

    broker.log._snapshots._in_thread = in_thread
    return storing


def test_a_checkpoint_during_a_compaction_leaves_its_files_until_it_has_ended(tmp_path: Path) -> None:
    """A backup's failed read has a checkpoint written at any time. Breaks when that deletes the files that are being compacted,
    because their last messages were consumed meanwhile: the healthy primary stopped, and fetched everything again."""
    cluster = Cluster(tmp_path, slow="a")
    machine, a = cluster.machine, cluster["a"]
    journal, retention = a.log.journal, a.log.retention
    cluster.until_one_waits()
    files = [each.path for each in journal.body_files()]
    cluster.consume(10)
    checkpoint = journal.checkpoint
    retention.checkpoint(spared=0)
    machine.run_until(lambda: journal.checkpoint is not checkpoint)
    journal._preparation.wait()
    assert any(file.exists() for file in files)
    assert retention._compacting
    cluster.let_compact(a)
    machine.run_until(lambda: not any(file.exists() for file in files))
    cluster.check("a")
    machine.close()


@pytest.mark.parametrize("consumed", [True, False])
def test_damage_that_a_compaction_finds_counts_only_if_messages_are_still_alive_there(tmp_path: Path, *, consumed: bool) -> None:
    cluster = Cluster(tmp_path, slow="a")
    machine, a = cluster.machine, cluster["a"]
    cluster.until_one_waits()
    for each in a.log.journal.body_files():
        for _, run in cluster.ledgers["a"].live_runs_in(each.file.number):
            flip(each.path, offset_of(run.place))
    if consumed:
        cluster.consume(10)
    cluster.let_compact(a)
    assert [fatal for _, fatal in cluster.owners["a"].errors] == ([] if consumed else [True])
    if consumed:
        cluster.check("a")
    machine.close()
