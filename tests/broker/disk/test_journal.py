"""What the journal reports durable is durable, in order, and cheap by the batch."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker.core.records import BadBatch
from broker.disk import checkpoint, segments
from broker.disk.durable import StorageError
from broker.disk.files import REAL_DISK, RealDisk
from broker.disk.journal import Released
from broker.disk.segments import FIRST_BATCH
from tests.broker.disk.logs import PATIENCE_S, FailingSync, FullDisk, GatedDisk, Log, batch, batches, flip

ROOT = Path(__file__).parents[3]


def opened(folder: Path, **options: object) -> Log:
    log = Log(folder, **options)  # type: ignore[arg-type]
    if log.found.epoch == 0:
        log.journal.save_hard_state(1, "a")
    return log


def test_batches_come_back_byte_for_byte_over_many_segments(tmp_path: Path) -> None:
    sealed = batches(1, 150)
    log = opened(tmp_path)
    log.store(sealed[:40])
    log.store(sealed[40:])
    assert log.all() == sealed
    assert log.journal.figures.segments > 3
    log.close()
    log = opened(tmp_path)
    assert log.all() == sealed
    log.close()


def test_a_read_gives_at_least_one_batch_and_otherwise_keeps_to_its_bytes(tmp_path: Path) -> None:
    sealed = batches(1, 150)
    size = len(sealed[0])
    log = opened(tmp_path)
    log.store(sealed)
    read = log.journal.read
    assert read(1, 150, 1) == sealed[:1]
    assert read(1, 150, 2 * size) == sealed[:2]
    assert read(1, 150, 3 * size - 1) == sealed[:2]
    assert read(34, 150, 4 * size) == sealed[33:37], "from one segment into the next"
    assert read(149, 150, 10**6) == sealed[148:]
    assert read(5, 7, 10**6) == sealed[4:7]
    assert read(150, 400, 10**6) == sealed[149:]
    assert read(151, 400, 10**6) == []
    log.close()


def test_what_waits_is_synced_together_and_called_back_in_order_in_one_turn(tmp_path: Path) -> None:
    disk = GatedDisk()
    log = opened(tmp_path, disk=disk, segment_bytes=10**6)
    while disk.entered.acquire(blocking=False):
        pass
    disk.gate.clear()
    log.journal.append([batch(1)], log.reactor.on_durable)
    assert disk.entered.acquire(timeout=PATIENCE_S)
    before = disk.syncs
    for index in range(2, 60):
        log.journal.append([batch(index)], log.reactor.on_durable)
    assert log.journal.figures.waiting_bytes == 59 * len(batch(1))
    disk.gate.set()
    log.reactor.turn()
    assert log.reactor.durable == [(1, 1)]
    log.reactor.turn()
    assert log.reactor.durable == [(index, 1) for index in range(1, 60)]
    assert disk.syncs == before + 1
    figures = log.journal.figures
    assert (figures.syncs, figures.batches_written, figures.waiting_bytes) == (2, 59, 0)
    assert figures.bytes_written == 59 * len(batch(1))
    log.close()


def test_more_batches_than_one_call_takes_are_all_written(tmp_path: Path) -> None:
    disk = GatedDisk()
    sealed = batches(1, 2500, nbytes=1)
    log = opened(tmp_path, disk=disk, segment_bytes=10**6)
    log.store(sealed)
    assert max(disk.writes) <= os.sysconf("SC_IOV_MAX")
    assert log.all() == sealed
    log.close()


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(tmp_path: Path) -> None:
    class Sipping(GatedDisk):
        def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
            return os.pwrite(fd, b"".join(buffers)[:37], offset)

    sealed = batches(1, 50)
    log = opened(tmp_path, disk=Sipping())
    log.store(sealed)
    log.close()
    assert opened_and_read(tmp_path) == sealed


def opened_and_read(folder: Path) -> list[bytes]:
    log = Log(folder)
    try:
        return log.all()
    finally:
        log.close()


def test_a_batch_larger_than_a_segment_gets_one_of_its_own_size(tmp_path: Path) -> None:
    sealed = [batch(1, nbytes=50_000), batch(2), batch(3, nbytes=20_000), batch(4)]
    log = opened(tmp_path)
    for one in sealed:
        log.store([one])
    assert log.all() == sealed
    assert [first for first, _ in segments.listed(REAL_DISK, tmp_path)] == [1, 2, 3, 4]
    assert log.journal.figures.segments == 4
    log.close()
    assert opened_and_read(tmp_path) == sealed


def wait_for_zeros(log: Log) -> None:
    for _ in range(int(PATIENCE_S / 0.005)):
        if log.journal._preparation._ready:
            return
        threading.Event().wait(0.005)
    raise AssertionError("nothing was prepared")


def test_the_next_segment_is_prepared_with_zeros_in_time(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=1 << 20)
    for one in batches(1, 5, nbytes=80_000):
        log.store([one])
    spare = tmp_path / "prepared.tmp"
    wait_for_zeros(log)
    assert spare.stat().st_blocks * 512 >= 1 << 20, "written, not sparse"
    inode = spare.stat().st_ino
    log.store(batches(6, 14, nbytes=80_000))
    assert segments.listed(REAL_DISK, tmp_path)[1][1].stat().st_ino == inode
    log.close()
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_log_of_large_batches_writes_no_zeros_and_one_that_becomes_small_does_again(tmp_path: Path) -> None:
    class Counting(GatedDisk):
        zeros = 0

        def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
            self.zeros += 0 if any(map(any, buffers)) else sum(map(len, buffers))
            return super().write(fd, buffers, offset)

    disk = Counting()
    log = opened(tmp_path, disk=disk, segment_bytes=4 << 20)
    large = batches(1, 12, nbytes=600_000)
    for one in large:
        log.store([one])
    log.journal._preparation.wait()
    assert (log.journal.figures.segments, disk.zeros) == (3, 0)
    small = batches(13, 130, nbytes=60_000)
    for one in small:
        log.store([one])
    wait_for_zeros(log)
    assert disk.zeros >= 4 << 20
    assert log.all() == large + small
    log.close()


def test_a_preparation_that_fails_costs_nothing_but_speed_and_is_not_tried_all_the_time(tmp_path: Path) -> None:
    # On a disk that is nearly full, each try would take the room that the log itself needs.
    class NoZeros(GatedDisk):
        tries = 0

        def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
            if not any(map(any, buffers)):
                self.tries += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(fd, buffers, offset)

    disk = NoZeros()
    log = opened(tmp_path, disk=disk)
    sealed = batches(1, 100)
    for one in sealed:
        log.store([one])
    assert log.reactor.errors == []
    assert log.all() == sealed
    assert 0 < disk.tries <= log.journal.figures.segments
    log.close()


def test_a_log_that_nobody_uses_stays_small(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=64 << 20)
    assert log.journal.figures.bytes_on_disk == 1 << 20
    log.close()


def test_appending_with_a_gap_is_our_own_bug(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(AssertionError, match="batch 2 appended where 1 comes next"):
        log.journal.append([batch(2)], log.reactor.on_durable)
    with pytest.raises(AssertionError, match="without a gap"):
        log.journal.append([batch(1), batch(3)], log.reactor.on_durable)
    log.close()


def test_truncation_keeps_its_place_between_appends(tmp_path: Path) -> None:
    log = opened(tmp_path)
    order: list[str] = []
    journal = log.journal
    journal.append(batches(1, 100), lambda *_: order.append("first"))
    journal.truncate(31, lambda: order.append("truncated"))
    journal.append(batches(31, 50, epoch=2), lambda *_: order.append("second"))
    log.reactor.until(lambda: len(order) == 3)
    assert order == ["first", "truncated", "second"]
    expected = batches(1, 30) + batches(31, 50, epoch=2)
    assert log.all() == expected
    journal.save_hard_state(2, "a")
    log.close()
    assert opened_and_read(tmp_path) == expected


@pytest.mark.parametrize(
    "first, kept", [(3, [(2, 1)]), (4, [(2, 1), (3, 1)]), (7, [(2, 1), (6, 1)]), pytest.param(11, [], id="a reset")]
)
def test_what_is_to_be_dropped_is_not_reported_any_more_though_its_report_is_on_its_way(
    tmp_path: Path, first: int, kept: list[tuple[int, int]]
) -> None:
    # What is appended next may be of the same index and epoch, when two elections follow each other quickly: it would pass for
    # durable without having been synced.
    disk = GatedDisk()
    log = opened(tmp_path, disk=disk)
    journal, reactor = log.journal, log.reactor
    journal.append(batches(1, 2), reactor.on_durable)
    journal.append(batches(3, 10), reactor.on_durable)
    journal.append(batches(11, 12), reactor.on_durable)
    while journal.figures.waiting_bytes:
        threading.Event().wait(0.005)
    disk.gate.clear()
    if kept:
        journal.truncate(8, lambda: None)
        journal.truncate(first, lambda: None)
    else:
        checkpoint.write(tmp_path, 10, 1, {}, [], disk=REAL_DISK)
        journal.reset(10, 1)
    following = batches(first, 12, nbytes=11)
    journal.append(list(following), reactor.on_durable)
    reactor.until(lambda: len(reactor.durable) == len(kept))
    disk.gate.set()
    reactor.until(lambda: len(reactor.durable) > len(kept))
    assert reactor.durable == [*kept, (12, 1)]
    assert journal.read(first, 12, 10**6) == following
    log.close()


@pytest.mark.parametrize("from_index", [1, 2, 35, 36, 37, 100, 101])
def test_a_truncated_log_has_no_remains(tmp_path: Path, from_index: int) -> None:
    # Remains of the old batches behind the new ones would be taken for damage, or come back.
    log = opened(tmp_path)
    for index in range(1, 101):
        log.store([batch(index)])
    log.truncate(from_index)
    assert log.all() == batches(1, from_index - 1)
    newest = segments.listed(REAL_DISK, tmp_path)[-1][1]
    assert newest.read_bytes()[FIRST_BATCH:].rstrip(b"\0") in b"".join(batches(1, 100))
    following = [batch(from_index, 1, nbytes=11)]
    log.store(following)
    log.close()
    log = Log(tmp_path)
    assert (log.found.floor, log.found.torn_bytes) == (None, 0)
    assert log.all() == batches(1, from_index - 1) + following
    log.close()


def test_a_full_disk_acknowledges_nothing_but_votes_says_so_once_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    room, files = "make room on that disk", "close connections, or raise the limit of open files (LimitNOFILE=)"
    for error, way_out in (
        (errno.ENOSPC, room),
        (errno.EDQUOT, room),
        (errno.EFBIG, room),
        (errno.EMFILE, files),
        (errno.ENFILE, files),
    ):
        folder = tmp_path / str(error)
        disk = FullDisk(error)
        log = opened(folder, disk=disk)
        log.store(batches(1, 3))
        disk.full.set()
        log.journal.append(batches(4, 60), log.reactor.on_durable)
        for _ in range(3):
            assert disk.refused.acquire(timeout=PATIENCE_S)
        log.reactor.turn()
        assert log.reactor.durable == [(3, 1)]
        assert log.reactor.errors == [(f"cannot write the log in {folder}: {os.strerror(error)}; {way_out}", False)]
        log.journal.save_hard_state(2, "b")
        log.journal.floor_passed()
        disk.full.clear()
        log.reactor.until(lambda log=log: len(log.reactor.durable) == 2)  # type: ignore[misc]
        assert log.all() == batches(1, 60)
        assert len(log.reactor.errors) == 1
        log.close()
        log = Log(folder)
        assert (log.found.epoch, log.found.voted_for, log.found.blank) == (2, "b", False)
        assert log.all() == batches(1, 60)
        log.close()


def test_closing_on_a_full_disk_gives_up_what_waits_and_reports_none_of_it(tmp_path: Path) -> None:
    disk = FullDisk()
    log = opened(tmp_path, disk=disk)
    log.store(batches(1, 3))
    disk.full.set()
    log.journal.append(batches(4, 6), log.reactor.on_durable)
    assert disk.refused.acquire(timeout=PATIENCE_S)
    log.close()
    assert log.reactor.durable == [(3, 1)]
    log = Log(tmp_path)
    assert log.all() == batches(1, 3)
    assert log.found.floor is None
    log.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_sync_nothing_is_acknowledged_or_written_ever_again(tmp_path: Path, error: int) -> None:
    # The kernel drops the pages and calls the next sync a success.
    disk = FailingSync(error)
    log = opened(tmp_path, disk=disk)
    log.store(batches(1, 3))
    disk.broken.set()
    log.journal.append(batches(4, 5), log.reactor.on_durable)
    log.reactor.until(lambda: bool(log.reactor.errors))
    ((text, fatal),) = log.reactor.errors
    assert fatal
    assert text.startswith("cannot sync")
    assert "the broker must stop" in text
    writes = disk.writes_after
    disk.broken.clear()
    log.journal.append(batches(6, 9), log.reactor.on_durable)
    log.journal.truncate(2, lambda: pytest.fail("truncated"))
    with pytest.raises(StorageError, match="the disk has failed before") as refusal:
        log.journal.save_hard_state(2, "b")
    assert refusal.value.fatal
    log.close()
    assert disk.writes_after == writes
    assert log.reactor.durable == [(3, 1)]
    log = Log(tmp_path)
    assert log.all()[:3] == batches(1, 3)
    log.close()


def test_a_vote_that_could_not_be_synced_stops_the_journal_and_the_next_start_sees_what_became_of_it(tmp_path: Path) -> None:
    disk = FailingSync()
    log = opened(tmp_path, disk=disk)
    disk.broken.set()
    with pytest.raises(StorageError) as refusal:
        log.journal.save_hard_state(7, "b")
    assert refusal.value.fatal
    disk.broken.clear()
    with pytest.raises(StorageError, match="the disk has failed before"):
        log.journal.save_hard_state(7, "b")
    log.close()
    log = Log(tmp_path)
    assert (log.found.epoch, log.found.voted_for) in ((1, "a"), (7, "b"))
    log.close()


def test_epoch_and_vote_come_back(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.journal.save_hard_state(7, None)
    log.close()
    log = Log(tmp_path)
    assert (log.found.epoch, log.found.voted_for) == (7, None)
    log.close()


def test_a_batch_that_has_rotted_since_is_named_with_segment_and_offset(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.store(batches(1, 9))
    path, offset = segments.listed(REAL_DISK, tmp_path)[0][1], FIRST_BATCH + 4 * len(batch(1))
    flip(path, offset + 60)
    assert log.journal.read(1, 4, 10**6) == batches(1, 4)
    with pytest.raises(BadBatch, match=rf"segment {path} is damaged at byte {offset}, in batch 5: batch 5: checksum"):
        log.journal.read(1, 9, 10**6)
    assert log.journal.read(6, 9, 10**6) == batches(6, 9)
    log.close()


def test_a_segment_that_was_cut_under_us_is_named(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.store(batches(1, 9))
    path = segments.listed(REAL_DISK, tmp_path)[0][1]
    os.truncate(path, FIRST_BATCH + len(batch(1)) + 9)
    with pytest.raises(BadBatch, match=rf"segment {path} ends before byte \d+, within batch 2"):
        log.journal.read(1, 9, 10**6)
    log.close()


def test_a_checkpoint_lets_the_segments_before_it_go_and_no_others(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.store(batches(1, 150))
    listed = segments.listed(REAL_DISK, tmp_path)
    log.journal.release(150)
    assert log.all() == batches(1, 150), "without a checkpoint nothing goes"
    index = listed[2][0] + 1
    assert log.checkpoint(index, 1, batches(1, 2)) == ""
    with pytest.raises(Released, match=rf"batch 1 is before {listed[2][0]}, the first that is kept"):
        log.journal.read(1, 5, 1000)
    assert log.all() == batches(listed[2][0], 150)
    assert log.journal.figures.checkpoint_index == index
    log.journal.release(10**9)
    assert log.all() == batches(listed[2][0], 150), "nor what the checkpoint does not cover"
    log.close()
    assert segments.listed(REAL_DISK, tmp_path) == listed[2:]
    log = Log(tmp_path)
    assert log.found.entries[0].index == index + 1
    log.close()


def test_a_checkpoint_may_leave_older_batches_for_slow_backups(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.store(batches(1, 150))
    second = segments.listed(REAL_DISK, tmp_path)[1][0]
    assert log.checkpoint(150, 1, [], keep_from=second + 2) == ""
    assert log.journal.figures.first_index == second
    assert log.checkpoint(150, 1, []) == ""
    assert log.journal.figures.first_index == segments.listed(REAL_DISK, tmp_path)[-1][0]
    log.close()


def test_a_checkpoint_that_cannot_be_written_leaves_log_and_older_checkpoint(tmp_path: Path) -> None:
    disk = FullDisk()
    log = opened(tmp_path, disk=disk)
    log.store(batches(1, 100))
    assert log.checkpoint(5, 1, [batch(1)]) == ""
    disk.full.set()
    assert "make room on that disk" in log.checkpoint(90, 1, [batch(1)])
    disk.full.clear()
    log.close()
    log = Log(tmp_path)
    assert log.found.checkpoint is not None
    assert log.found.checkpoint.index == 5
    assert log.all() == batches(6, 100)
    log.close()


def test_a_snapshot_that_breaks_is_told_and_the_next_one_works(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.store(batches(1, 10))
    assert log.checkpoint(5, 1, ["not bytes"]) != ""  # type: ignore[list-item]
    assert log.checkpoint(5, 1, [batch(1)]) == ""
    log.close()


def test_a_reset_drops_the_log_and_goes_on_after_the_checkpoint(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.store(batches(1, 150))
    log.journal.save_hard_state(9, None)
    checkpoint.write(tmp_path, 3, 1, {}, [], disk=REAL_DISK)
    received = checkpoint.write(tmp_path, 500, 7, {"voters": ["z"]}, [batch(1)], disk=REAL_DISK)
    log.reset(500, 7)
    assert log.journal.checkpoint == received
    assert checkpoint.listed(REAL_DISK, tmp_path) == [received.path]
    with pytest.raises(Released):
        log.journal.read(150, 150, 1000)
    log.store(batches(501, 503, epoch=8))
    assert log.all() == batches(501, 503, epoch=8)
    log.close()
    log = Log(tmp_path)
    assert log.found.checkpoint == received
    assert log.all() == batches(501, 503, epoch=8)
    log.close()


def test_who_waits_for_the_end_of_a_reset_is_called_once_and_not_when_the_journal_closes(tmp_path: Path) -> None:
    """Breaks when a chunk of a snapshot that has waited is written into the folder of a store that is closed."""
    log, calls = opened(tmp_path), list[str]()
    log.store(batches(1, 3))
    log.journal.reset(500, 1)
    log.journal.when_dropped(lambda: calls.append("waits"))
    assert calls == []
    log.reactor.until(lambda: not log.journal.resetting)
    log.journal.when_dropped(lambda: calls.append("at once"))
    assert calls == ["waits", "at once"]
    log.journal.reset(600, 1)
    log.journal.when_dropped(lambda: calls.append("too late"))
    log.close()
    assert calls == ["waits", "at once"]
    assert not log.journal.resetting


def test_a_reset_that_is_interrupted_after_the_old_log_is_gone_is_no_loss(tmp_path: Path) -> None:
    # Without its note, the next start would find a log without segments and take the store for a blank one.
    class NoNewSegments(GatedDisk):
        refusing = False

        def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
            if self.refusing and buffers[0].startswith(b"USG1"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(fd, buffers, offset)

    disk = NoNewSegments()
    log = opened(tmp_path, disk=disk)
    log.journal.floor_passed()
    log.journal.save_hard_state(7, None)
    log.store(batches(1, 100))
    checkpoint.write(tmp_path, 500, 7, {}, [], disk=REAL_DISK)
    disk.refusing = True
    log.journal.reset(500, 7)
    log.reactor.until(lambda: bool(log.reactor.errors))
    assert not log.reactor.errors[0][1]
    log.close()
    assert segments.listed(REAL_DISK, tmp_path) == []
    log = opened(tmp_path)
    assert (log.found.blank, log.found.floor, log.found.notes) == (False, None, [])
    log.store(batches(501, 502, epoch=7))
    log.close()


def test_the_mark_before_stands_while_the_next_one_is_written(tmp_path: Path) -> None:
    # The sector of a mark may be torn like any other.
    log = opened(tmp_path, segment_bytes=10**6)
    for index in range(1, 6):
        log.store([batch(index)])
    path = segments.listed(REAL_DISK, tmp_path)[0][1]
    log.close()
    ends = []
    for slot in (512, 1024):
        flip(path, slot)
        fd = os.open(path, os.O_RDONLY)
        mark = segments.read_mark(RealDisk(), fd)
        os.close(fd)
        assert mark is not None
        ends.append(mark.last.index)
        flip(path, slot)
    assert sorted(ends) == [4, 5]


def test_a_log_at_rest_is_marked_so_that_damage_to_its_last_batch_is_noticed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.store(batches(1, 3))
    path = segments.listed(REAL_DISK, tmp_path)[0][1]
    end = FIRST_BATCH + 3 * len(batch(1))
    fd = os.open(path, os.O_RDONLY)
    for _ in range(600):
        mark = segments.read_mark(log.journal.disk, fd)
        if mark is not None and mark.end == end:
            break
        threading.Event().wait(0.02)
    else:
        pytest.fail("no mark within 12 seconds of rest")
    os.close(fd)
    assert mark.last == (1, 3)
    log.close()


WRITER = """
import sys
from pathlib import Path
from tests.broker.disk.logs import Log, batches
log = Log(Path(sys.argv[1]), segment_bytes=65536)
log.journal.save_hard_state(1, "a")
next_index = log.journal.figures.last_index + 1
def durable(index, epoch, seconds):
    print(index, flush=True)
while True:
    n = next_index % 7 + 1
    log.journal.append(batches(next_index, next_index + n - 1, nbytes=next_index % 3000), durable)
    next_index += n
    if log.journal.figures.waiting_bytes > 50_000:
        log.reactor.turn()
"""


def test_kill_nine_in_the_middle_of_writing_keeps_all_that_was_reported(tmp_path: Path) -> None:
    for round_number in range(6):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        reported = 0
        for _ in range(10 + 17 * round_number):
            reported = int(process.stdout.readline())
        process.kill()
        reported = max([reported, *map(int, process.stdout.read().split("\n")[:-1])])
        process.wait()
        process.stdout.close()
        log = Log(tmp_path, segment_bytes=65536)
        assert log.found.floor is None
        found = log.all()
        assert len(found) >= reported
        first = log.found.entries[0].index
        assert first == 1
        assert [entry.index for entry in log.found.entries] == list(range(1, len(found) + 1))
        log.close()


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.journal.append(batches(1, 20), log.reactor.on_durable)
    log.close()
    assert log.reactor.durable == [(20, 1)]
    assert opened_and_read(tmp_path) == batches(1, 20)


def test_a_batch_that_is_truncated_while_it_is_read_is_gone_and_not_damaged(tmp_path: Path) -> None:
    # A broker that took this for damage would stop, or fetch what it never lost.
    class SlowReads(GatedDisk):
        def __init__(self) -> None:
            super().__init__()
            self.reading = threading.Event()
            self.go_on = threading.Event()

        def read(self, fd: int, nbytes: int, offset: int) -> bytes:
            if threading.current_thread() is reader:
                self.reading.set()
                assert self.go_on.wait(PATIENCE_S)
            return super().read(fd, nbytes, offset)

    said: list[object] = []

    def read() -> None:
        try:
            said.append(log.journal.read(1, 9, 10**6))
        except (Released, BadBatch) as error:
            said.append(error)

    reader = threading.Thread(target=read)
    disk = SlowReads()
    log = opened(tmp_path, disk=disk)
    log.store(batches(1, 9))
    reader.start()
    assert disk.reading.wait(PATIENCE_S)
    log.truncate(5)
    disk.go_on.set()
    reader.join()
    (answer,) = said
    assert isinstance(answer, Released)
    assert str(answer) == "batch 1 was dropped while it was read"
    log.close()
