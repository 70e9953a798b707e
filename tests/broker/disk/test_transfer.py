"""A checkpoint with its files is the same on another broker, or none; and nothing of it stands before all of it does."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import pytest

from broker.core.records import BadBatch
from broker.disk import bodies, checkpoint, segments
from broker.disk.bodies import file_of, offset_of
from broker.disk.checkpoint import Checkpoint
from broker.disk.durable import StorageError
from broker.disk.files import REAL_DISK, RealDisk
from broker.disk.transfer import Receiver, RottenBodies, Source
from tests.broker.disk.logs import FailingSync, FullDisk, Log, batch, batches, flip


def sender(folder: Path, n: int = 100, disk: RealDisk | None = None) -> tuple[Log, list[tuple[int, int]]]:
    """A log whose checkpoint lists several files, and the spans of the batches that it covers."""
    log = Log(folder / "a", origin=1, disk=disk)
    log.journal.save_hard_state(1, None)
    log.journal.floor_passed()
    log.store(batches(1, n))
    places = log.journal.places(1, n - 10)
    assert log.checkpoint(n - 10, 1, batches(1, 3), alive={file_of(place) for place in places}) == ""
    return log, [(place, len(batch(at))) for at, place in enumerate(places, 1)]


def received(source: Source, receiver: Receiver, nbytes: int) -> Checkpoint:
    while data := source.read(receiver.received, nbytes):
        receiver.write(receiver.received, data)
    return receiver.finish()


def blank(folder: Path, origin: int) -> None:
    """A log that knows its epoch and nothing else."""
    log = Log(folder, origin=origin)
    log.journal.save_hard_state(1, None)
    log.close()


def fed(receiver: Receiver, data: bytes) -> Checkpoint:
    for at in range(0, len(data), 3000):
        receiver.write(at, data[at : at + 3000])
    return receiver.finish()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    return tmp_path


@pytest.mark.parametrize("nbytes", [7, 1000, 10**6])
def test_sent_in_chunks_it_comes_whole_with_its_files_and_every_place_is_right_there(folder: Path, nbytes: int) -> None:
    log, spans = sender(folder)
    blank(folder / "b", 2)
    source = log.journal.source()
    assert len(source.checkpoint.files.in_use) > 1
    found = received(source, Receiver(folder / "b", source.nbytes, disk=REAL_DISK), nbytes)
    assert found.path.read_bytes() == source.checkpoint.path.read_bytes()
    assert found == Checkpoint.newest(folder / "b", disk=REAL_DISK)
    files = [path for path in (folder / "b").iterdir() if path.suffix == bodies.SUFFIX]
    assert sum(path.stat().st_size for path in [*files, found.path]) == source.nbytes
    other = Log(folder / "b", origin=2)
    assert other.found.checkpoint == found
    assert other.journal.read_spans(spans) == batches(1, len(spans))
    other.close()
    log.close()


def test_the_receivers_own_files_stand_until_its_log_starts_anew(folder: Path) -> None:
    """Both have files of the same numbers. Breaks when one takes the other's place too early, or not at all."""
    log, spans = sender(folder)
    other = Log(folder / "b", origin=2)
    own = batches(1, 60, epoch=2, nbytes=41)
    other.store(own)
    places = other.journal.places(1, 60)
    assert other.checkpoint(50, 2, [], alive={file_of(place) for place in places[:50]}) == ""
    source = log.journal.source()
    found = received(source, Receiver(folder / "b", source.nbytes, disk=REAL_DISK), 5000)
    own_spans = [(place, len(one)) for place, one in zip(places, own, strict=True)]
    assert other.journal.read_spans(own_spans) == own
    done: list[bool] = []
    other.journal.reset(found.index, found.epoch, lambda: done.append(True), received=found)
    assert other.journal.read_spans(spans) == batches(1, len(spans))
    other.reactor.until(lambda: bool(done))
    assert other.journal.read_spans(spans) == batches(1, len(spans))
    other.store(batches(found.index + 1, found.index + 5))
    assert file_of(other.journal.places(found.index + 1, found.index + 1)[0]) >= found.files.next_number
    other.close()
    log.close()
    assert {path.name for path in (folder / "b").iterdir() if path.suffix == bodies.SUFFIX} == {
        file.name for file in found.files.in_use
    }


def test_files_that_came_for_nothing_go_when_a_newer_checkpoint_stands_and_not_before(folder: Path) -> None:
    """The log went on beyond the checkpoint while it came. Until a newer one stands, a start would take the one that came.

    Breaks when the files stay until the next start, as many as the sender had, or go while a checkpoint lists them.
    """
    log, _ = sender(folder)
    source = log.journal.source()
    other = Log(folder / "b", origin=2)
    other.journal.save_hard_state(1, None)
    other.store(batches(1, 95))
    found = received(source, Receiver(folder / "b", source.nbytes, disk=REAL_DISK), 5000)

    def came() -> list[str]:
        other.journal._preparation.wait()
        return [file.name for file in found.files.in_use if (folder / "b" / file.name).exists()]

    assert len(came()) > 1
    other.journal.leave(found)
    assert len(came()) == len(found.files.in_use), "a start would need them"
    assert other.checkpoint(91, 1, batches(1, 3)) == ""
    assert came() == []
    again = received(source, Receiver(folder / "b", source.nbytes, disk=REAL_DISK), 5000)
    other.journal.leave(again)
    assert came() == [], "a newer one stands"
    assert other.all()[-1] == batch(95)
    other.close()
    log.close()


def test_files_that_came_for_nothing_stay_if_their_checkpoint_took_the_place_of_the_own_one(folder: Path) -> None:
    """Both are of the same batch, and so have the same name. Breaks when the next start finds the checkpoint without its files:
    the store would be fetched again.
    """
    log, covered = sender(folder)
    source = log.journal.source()
    base = source.checkpoint.index
    other = Log(folder / "b", origin=2)
    other.journal.save_hard_state(1, None)
    other.journal.floor_passed()
    other.store(batches(1, base + 5))
    own = {file_of(place) for place in other.journal.places(1, base)}
    assert other.checkpoint(base, 1, batches(1, 3), alive=own) == ""
    other.journal.leave(received(source, Receiver(folder / "b", source.nbytes, disk=REAL_DISK), 5000))
    other.close()
    log.close()
    again = Log(folder / "b", origin=2)
    assert (again.found.notes, again.found.floor) == ([], None)
    assert again.journal.read_spans(covered) == batches(1, len(covered))
    assert [entry.index for entry in again.found.entries] == list(range(base + 1, base + 6))
    assert again.checkpoint(base + 1, 1, batches(1, 3)) == ""
    again.close()


def test_files_that_came_for_nothing_do_not_hide_a_segment_with_the_same_number(folder: Path) -> None:
    """Both stores count their files from 1. A restart takes the checkpoint that came, beside this broker's own log behind it.

    Breaks when places in the segment are read in the other store's file, and the next checkpoint lists only one of the two.
    """
    log, covered = sender(folder)
    source = log.journal.source()
    theirs = [file.number for file in source.checkpoint.files.in_use]
    base = source.checkpoint.index
    other = Log(folder / "b", origin=2)
    other.journal.save_hard_state(1, None)
    other.journal.floor_passed()
    other.store(batches(1, base + 5))
    other.journal.leave(received(source, Receiver(folder / "b", source.nbytes, disk=REAL_DISK), 5000))
    other.close()
    log.close()

    again = Log(folder / "b", origin=2)
    assert again.journal.checkpoint is not None
    assert again.journal.checkpoint.index == base
    places = again.journal.places(base + 1, base + 5)
    own = {file_of(place) for place in places}
    assert not own & set(theirs)
    spans = [*covered, *((place, len(batch(index))) for index, place in enumerate(places, base + 1))]
    bodies = [*batches(1, len(covered)), *batches(base + 1, base + 5)]
    assert again.journal.read_spans(spans) == bodies
    assert again.checkpoint(base + 5, 1, batches(1, 3), alive={*map(file_of, (place for place, _ in covered)), *own}) == ""
    again.journal._preparation.wait()
    assert again.journal.read_spans(spans) == bodies
    again.close()
    last = Log(folder / "b", origin=2)
    assert last.journal.read_spans(spans) == bodies
    last.close()


def test_a_broker_that_received_files_can_pass_them_on(folder: Path) -> None:
    log, spans = sender(folder)
    blank(folder / "b", 2)
    blank(folder / "c", 3)
    source = log.journal.source()
    received(source, Receiver(folder / "b", source.nbytes, disk=REAL_DISK), 10**6)
    other = Log(folder / "b", origin=2)
    last = other.journal.figures.last_index
    other.store(batches(last + 1, last + 100))
    places = other.journal.places(last + 1, last + 100)
    alive = {file_of(place) for place, _ in spans} | {file_of(place) for place in places}
    assert other.checkpoint(last + 100, 1, [], alive=alive) == ""
    again = other.journal.source()
    received(again, Receiver(folder / "c", again.nbytes, disk=REAL_DISK), 10**6)
    third = Log(folder / "c", origin=3)
    spans += [(place, len(batch(at))) for at, place in enumerate(places, last + 1)]
    assert third.journal.read_spans(spans) == batches(1, last + 100)
    for each in (third, other, log):
        each.close()


def test_a_checkpoint_that_has_just_given_its_name_to_another_one_is_not_sent(folder: Path) -> None:
    """After a compaction there is a second checkpoint of the same index, perhaps as long, in which other files stand.

    Breaks when that one is sent with the files of the first: a backup would look for messages where others lie.
    """
    log, _ = sender(folder)
    known = log.journal.checkpoint
    assert known is not None
    other = known.files._replace(in_use=known.files.in_use[:1])
    written = checkpoint.write(known.path.parent, known.index, 1, {}, batches(1, 3), other, disk=REAL_DISK)
    assert written.path == known.path
    with pytest.raises(OSError, match="replaced by one of the same index"):
        log.journal.source()
    assert not any(log.journal.is_pinned(file.number) for file in known.files.in_use)
    log.close()


def test_two_checkpoints_of_one_index_are_told_apart_by_their_checksums(folder: Path) -> None:
    log, _ = sender(folder)
    source = log.journal.source()
    before = source.identity
    source.close()
    assert log.checkpoint(90, 1, batches(2, 4)) == ""
    assert log.journal.source().identity != before
    log.close()


def test_a_checkpoint_without_files_is_sent_too(folder: Path) -> None:
    log = Log(folder / "a")
    log.store(batches(1, 9))
    assert log.checkpoint(9, 1, []) == ""
    source = log.journal.source()
    found = received(source, Receiver(folder / "b", source.nbytes, disk=REAL_DISK), 10)
    assert (found.index, found.epoch, found.files.in_use) == (9, 1, ())
    assert [path.name for path in (folder / "b").iterdir()] == [found.path.name]
    log.close()


def test_chunks_out_of_place_are_refused_and_the_rest_goes_on(folder: Path) -> None:
    receiver = Receiver(folder / "b", 10, disk=REAL_DISK)
    receiver.write(0, b"12345")
    for offset, data in ((0, b"12345"), (6, b"1"), (5, b"678901")):
        with pytest.raises(ValueError, match="do not fit 5 received of 10"):
            receiver.write(offset, data)
    assert receiver.received == 5
    receiver.abort()
    assert list((folder / "b").iterdir()) == []


def test_whatever_is_altered_or_cut_on_its_way_is_refused_whole(folder: Path) -> None:
    log, _ = sender(folder, n=40)
    source = log.journal.source()
    data = source.read(0, source.nbytes)

    def altered() -> Iterator[bytes]:
        yield data[:-1]
        yield b""
        yield b"USC1" * 20
        start = source.checkpoint.nbytes
        for file in source.checkpoint.files.in_use:
            yield data[: start + 4200] + bytes([data[start + 4200] ^ 1]) + data[start + 4201 :]
            start += file.used
        for at in range(0, source.checkpoint.nbytes, 5):
            yield data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    for each in altered():
        receiver = Receiver(folder / "b", len(data), disk=REAL_DISK)
        with pytest.raises((BadBatch, ValueError)):
            fed(receiver, each)
        receiver.abort()
        assert list((folder / "b").iterdir()) == []
    source.close()
    log.close()


def test_what_has_rotted_at_the_sender_is_found_there_and_named(folder: Path) -> None:
    log, spans = sender(folder)
    source = log.journal.source()
    source.check(0, source.nbytes)
    number = source.checkpoint.files.in_use[1].number
    span = next(place for place, _ in spans if file_of(place) == number)
    flip(segments.listed(REAL_DISK, folder / "a")[1][1], offset_of(span) + 60)
    with pytest.raises(RottenBodies, match="is damaged at byte") as error:
        source.check(0, source.nbytes)
    assert file_of(error.value.place) == number
    source.check(0, source.checkpoint.nbytes)
    flip(source.checkpoint.path, 5)
    with pytest.raises(BadBatch):
        source.check(0, 10)
    source.close()
    log.close()


@pytest.mark.parametrize("error, rotten", [(errno.EMFILE, False), (errno.ENFILE, False), (errno.EIO, True), (errno.ENOENT, True)])
def test_a_file_that_cannot_be_opened_is_damaged_unless_too_many_files_are_open(folder: Path, error: int, rotten: bool) -> None:
    """Breaks when a primary at its limit of open files throws its own store away."""

    class Refusing(RealDisk):
        refuses = False

        def open(self, path: Path, flags: int) -> int:
            if self.refuses and path.suffix == segments.SUFFIX:
                raise OSError(error, os.strerror(error), str(path))
            return super().open(path, flags)

    disk = Refusing()
    log, _ = sender(folder, disk=disk)
    source = log.journal.source()
    disk.refuses = True
    with pytest.raises(RottenBodies if rotten else OSError, match=os.strerror(error)) as found:
        source.check(0, source.nbytes)
    assert rotten or not isinstance(found.value, RottenBodies)
    disk.refuses = False
    source.check(0, source.nbytes)
    source.close()
    log.close()


def test_a_full_disk_while_receiving_is_told_and_what_was_not_written_can_come_again(folder: Path) -> None:
    log, _ = sender(folder)
    source = log.journal.source()
    data = source.read(0, source.nbytes)
    disk = FullDisk()
    receiver = Receiver(folder / "b", source.nbytes, disk=disk)
    for full_at in (0, source.checkpoint.nbytes + 10):
        receiver.write(receiver.received, data[receiver.received : full_at])
        disk.full.set()
        with pytest.raises(StorageError, match=r"cannot receive a checkpoint into .*make room") as refusal:
            receiver.write(receiver.received, data[receiver.received : receiver.received + 4000])
        assert not refusal.value.fatal
        disk.full.clear()
    receiver.write(receiver.received, data[receiver.received :])
    assert receiver.finish().index == source.checkpoint.index
    source.close()
    log.close()


@pytest.mark.parametrize("file", [0, 1, -1])
def test_a_sync_that_fails_at_the_end_of_a_file_leaves_nothing_and_all_must_come_again(folder: Path, file: int) -> None:
    """What is written again into the same file might be synced, without what the failed sync has lost."""
    log, _ = sender(folder)
    source = log.journal.source()
    data = source.read(0, source.nbytes)
    ends = list(accumulate((each.used for each in source.checkpoint.files.in_use), initial=source.checkpoint.nbytes))
    disk = FailingSync()
    receiver = Receiver(folder / "b", source.nbytes, disk=disk)
    receiver.write(0, data[: ends[file] - 1])
    disk.broken.set()
    with pytest.raises(StorageError, match="cannot receive a checkpoint into"):
        receiver.write(ends[file] - 1, data[ends[file] - 1 :])
    assert list((folder / "b").iterdir()) == []
    disk.broken.clear()
    for offset in {0, ends[file] - 1, receiver.received}:
        with pytest.raises(ValueError, match="do not fit"):
            receiver.write(offset, data[offset:])
    assert received(source, Receiver(folder / "b", source.nbytes, disk=disk), 5000).index == source.checkpoint.index
    source.close()
    log.close()


class CountedDisk(RealDisk):
    """A disk that knows how many files are open, at most, and opens no more while `none_left`."""

    def __init__(self) -> None:
        self.open_now = self.most_open = 0
        self.none_left = False

    def open(self, path: Path, flags: int) -> int:
        if self.none_left:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        fd = super().open(path, flags)
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self.open_now -= 1


def descriptors(path: Path) -> int:
    """How often this process has a file open."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of another thread, or of the listing
            found += descriptor.readlink() == path
    return found


def test_a_checkpoint_with_a_rotten_head_keeps_no_descriptor(folder: Path) -> None:
    log, _ = sender(folder)
    assert log.journal.checkpoint is not None
    with log.journal.checkpoint.path.open("r+b") as file:
        file.write(bytes(64))
    for _ in range(3):
        with pytest.raises(BadBatch):
            log.journal.source()
    assert descriptors(log.journal.checkpoint.path) == 0
    log.close()


def test_a_receiver_has_few_files_open_however_many_come(folder: Path) -> None:
    """Breaks when each file stays open until the last one is there: a large store reached the limit of open files, and the
    transfer began again without end."""
    log, _ = sender(folder, 1000)
    source, disk = log.journal.source(), CountedDisk()
    assert len(source.checkpoint.files.in_use) > 20
    assert received(source, Receiver(folder / "b", source.nbytes, disk=disk), 5000).index == 990
    assert disk.most_open == 1
    assert disk.open_now == 0
    source.close()
    log.close()


def test_without_a_free_descriptor_a_receiver_keeps_what_has_come_and_the_rest_can_come_again(folder: Path) -> None:
    log, _ = sender(folder)
    source, disk = log.journal.source(), CountedDisk()
    data, end = source.read(0, source.nbytes), source.checkpoint.nbytes
    receiver = Receiver(folder / "b", source.nbytes, disk=disk)
    disk.none_left = True
    with pytest.raises(StorageError, match=r"cannot receive a checkpoint into .*close connections") as refusal:
        receiver.write(0, data[: end + 100])
    assert not refusal.value.fatal
    assert receiver.received == end
    disk.none_left = False
    receiver.write(end, data[end:])
    assert receiver.finish().index == source.checkpoint.index
    source.close()
    log.close()


def test_a_file_that_was_cut_under_the_sender_is_no_part_of_a_stream(folder: Path) -> None:
    log, _ = sender(folder)
    source = log.journal.source()
    os.truncate(segments.listed(REAL_DISK, folder / "a")[0][1], 5000)
    with pytest.raises(BadBatch, match="ends after"):
        source.read(0, source.nbytes)
    source.close()
    log.close()


def test_neither_side_holds_more_than_a_chunk_and_the_head(folder: Path) -> None:
    log, _ = sender(folder)
    source = log.journal.source()
    receiver = Receiver(folder / "b", source.nbytes, disk=REAL_DISK)
    assert len(source.read(100, 50)) == 50
    while receiver.received < source.nbytes:
        receiver.write(receiver.received, source.read(receiver.received, 100))
        assert len(receiver._head) < 1000
    receiver.finish()
    source.close()
    log.close()
