"""A body is read from where it lies for as long as a checkpoint lists its file, and no longer than that does a file stay."""

from __future__ import annotations

import errno
import os
from array import array
from contextlib import suppress
from pathlib import Path

import google_crc32c
import pytest

from broker.core.queues.blocks import LiveRun
from broker.core.records import HEADER_BYTES
from broker.disk import bodies, checkpoint, segments
from broker.disk.bodies import FileInUse, Readers, Unreadable, file_of, offset_of, place_of
from broker.disk.checkpoint import Checkpoint
from broker.disk.compaction import Compacted
from broker.disk.files import REAL_DISK, RealDisk
from broker.disk.journal import Victims
from broker.disk.segments import FIRST_BATCH
from broker.disk.threads import REAL_THREADS
from tests.broker.disk.logs import Log, batch, batches, flip, written

PAYLOAD = HEADER_BYTES + 24 + 4
"""Where the one message of a batch of `logs.batch` begins in it."""


def opened(folder: Path) -> Log:
    log = Log(folder)
    log.journal.save_hard_state(1, None)
    log.journal.floor_passed()
    return log


def spans(places: list[int], sealed: list[bytes]) -> list[tuple[int, int]]:
    return [(place, len(one)) for place, one in zip(places, sealed, strict=True)]


def on_disk(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix in (segments.SUFFIX, bodies.SUFFIX))


def read_only(folder: Path) -> int:
    """How many descriptors below a folder are for reading only: meanwhile a thread may open the next segment, to write."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            mine = os.readlink(f"/proc/self/fd/{number}").startswith(str(folder))
            flags = int(Path(f"/proc/self/fdinfo/{number}").read_text().split()[3], 8)
            count += mine and not flags & (os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY)
    return count


class TestPlaces:
    def test_every_durable_batch_is_found_at_its_place(self, tmp_path: Path) -> None:
        log, sealed = opened(tmp_path), batches(1, 200)
        log.store(sealed)
        places = log.journal.places(1, 200)
        assert log.journal.read_spans(spans(places, sealed)) == sealed
        assert len({file_of(place) for place in places}) > 2
        assert log.journal.places(77, 78) == places[76:78]
        log.close()

    def test_they_are_the_same_after_a_restart(self, tmp_path: Path) -> None:
        log, sealed = opened(tmp_path), batches(1, 200)
        log.store(sealed)
        places = log.journal.places(1, 200)
        alive = {file_of(place) for place in places[:150]}
        assert log.checkpoint(150, 1, [], alive=alive) == ""
        log.close()
        log = Log(tmp_path)
        assert log.journal.read_spans(spans(places, sealed)) == sealed
        assert log.journal.places(151, 200) == places[150:]
        assert log.all() == sealed[150:]
        log.close()

    def test_a_body_alone_is_read_without_the_rest_of_its_batch(self, tmp_path: Path) -> None:
        log = opened(tmp_path)
        log.store(batches(1, 3, nbytes=500))
        place = log.journal.places(2, 2)[0] + PAYLOAD
        assert log.journal.read_spans([(place + 10, 5)]) == [batch(2, nbytes=500)[PAYLOAD + 10 : PAYLOAD + 15]]
        log.close()

    def test_file_numbers_go_on_after_a_restart_and_never_come_twice(self, tmp_path: Path) -> None:
        seen: set[int] = set()
        first = 1
        for _ in range(4):
            log = opened(tmp_path)
            log.store(batches(first, first + 99))
            numbers = {file_of(place) for place in log.journal.places(first, first + 99)}
            assert not numbers & (seen - {max(seen, default=0)})
            seen |= numbers
            assert log.checkpoint(first + 99, 1, []) == ""
            first += 100
            log.close()
        assert len(seen) > 6

    def test_a_number_that_only_a_checkpoint_remembers_is_not_given_again(self, tmp_path: Path) -> None:
        log = opened(tmp_path)
        log.store(batches(1, 200))
        newest = file_of(log.journal.places(200, 200)[0])
        assert log.checkpoint(200, 1, []) == ""
        log.close()
        for _, path in segments.listed(REAL_DISK, tmp_path):
            path.unlink()
        log = Log(tmp_path)
        log.store(batches(201, 201))
        assert file_of(log.journal.places(201, 201)[0]) > newest
        log.close()

    def test_many_files_are_read_by_few_descriptors(self, tmp_path: Path) -> None:
        log, sealed = opened(tmp_path), batches(1, 60, nbytes=3000)
        for one in sealed:
            log.store([one])
        places = log.journal.places(1, 60)
        assert len({file_of(place) for place in places}) > 20

        assert read_only(tmp_path) == 0
        bodies_open, bodies.MAX_OPEN = bodies.MAX_OPEN, 5
        try:
            for _ in range(2):
                for span in spans(places, sealed):
                    log.journal.read_spans([span])
                assert read_only(tmp_path) == 5
        finally:
            bodies.MAX_OPEN = bodies_open
        log.close()


class TestReading:
    def test_spans_come_back_in_the_order_in_which_they_were_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(bytes(range(256)) * 64)
        readers = Readers(REAL_DISK, REAL_THREADS, lambda number: tmp_path / "a")
        asked = [(place_of(1, offset), 3) for offset in (9000, 5, 8, 6, 9003, 5)]
        assert readers.read(asked) == [
            bytes([offset % 256, (offset + 1) % 256, (offset + 2) % 256]) for offset in (9000, 5, 8, 6, 9003, 5)
        ]
        assert readers.read([]) == []
        readers.forget()

    def test_a_body_beyond_the_end_of_its_file_is_named_by_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(bytes(100))
        readers = Readers(REAL_DISK, REAL_THREADS, lambda number: tmp_path / "a")
        with pytest.raises(Unreadable, match="ends before byte 104") as error:
            readers.read([(place_of(7, 90), 10), (place_of(7, 94), 10)])
        assert error.value.place == place_of(7, 94)
        readers.forget()

    def test_a_file_that_is_gone_is_named_by_the_place_that_was_looked_for(self, tmp_path: Path) -> None:
        with pytest.raises(Unreadable, match="no file 7") as error:
            Readers(REAL_DISK, REAL_THREADS, lambda number: None).read([(place_of(7, 1), 1)])
        assert error.value.place == place_of(7, 1)
        with pytest.raises(Unreadable, match="cannot be opened: No such file"):
            Readers(REAL_DISK, REAL_THREADS, lambda number: tmp_path / "b").read([(place_of(7, 1), 1)])

    def test_of_bodies_that_one_read_gets_only_the_one_that_the_disk_refuses_is_blamed(self, tmp_path: Path) -> None:
        class Bad(RealDisk):
            def read(self, fd: int, nbytes: int, offset: int) -> bytes:
                if offset <= 500 < offset + nbytes:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return super().read(fd, nbytes, offset)

        (tmp_path / "a").write_bytes(bytes(1000))
        readers = Readers(Bad(), REAL_THREADS, lambda number: tmp_path / "a")
        with pytest.raises(Unreadable, match="cannot be read at byte 499: Input/output error") as error:
            readers.read([(place_of(3, 480), 10), (place_of(3, 499), 2), (place_of(3, 510), 10)])
        assert error.value.place == place_of(3, 499)
        assert readers.read([(place_of(3, 480), 10), (place_of(3, 510), 10)]) == [bytes(10)] * 2
        readers.forget()

    def test_a_file_that_cannot_be_opened_because_too_many_are_is_no_damage_and_read_when_that_is_over(
        self, tmp_path: Path
    ) -> None:
        class Crowded(RealDisk):
            refusals = 0

            def open(self, path: Path, flags: int) -> int:
                if self.refusals:
                    self.refusals -= 1
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return super().open(path, flags)

        for name in "ab":
            (tmp_path / name).write_bytes(name.encode() * 1000)
        disk = Crowded()
        readers = Readers(disk, REAL_THREADS, lambda number: tmp_path / "ab"[number])
        assert readers.read([(place_of(0, 5), 2)]) == [b"aa"]
        disk.refusals = 3
        assert readers.read([(place_of(1, 5), 2)]) == [b"bb"]
        assert (disk.refusals, read_only(tmp_path)) == (0, 1), "it gives back what it does not need first"
        readers.forget()

    def test_readers_that_have_waited_for_a_descriptor_share_one(self, tmp_path: Path) -> None:
        """Breaks when each of them opens the file: the descriptors of all but one would never be closed."""

        class Crowded(RealDisk):
            def __init__(self, readers: int) -> None:
                self.left, self.opened = readers, 0

            def open(self, path: Path, flags: int) -> int:
                if self.left:
                    self.left -= 1
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                self.opened += 1
                return super().open(path, flags)

        (tmp_path / "a").write_bytes(bytes(1000))
        disk, found = Crowded(readers=3), list[bytes]()
        readers = Readers(disk, REAL_THREADS, lambda number: tmp_path / "a")
        threads = [REAL_THREADS.start("reader", lambda: found.extend(readers.read([(place_of(1, 5), 2)]))) for _ in range(3)]
        for thread in threads:
            thread.join()
        assert found == [bytes(2)] * 3
        assert (disk.opened, read_only(tmp_path)) == (1, 1)
        readers.forget()
        assert read_only(tmp_path) == 0

    def test_a_number_that_means_another_file_after_the_wait_for_a_descriptor_is_read_from_that_one(self, tmp_path: Path) -> None:
        """A snapshot has replaced the log meanwhile."""
        paths = {1: tmp_path / "a"}

        class Crowded(RealDisk):
            def open(self, path: Path, flags: int) -> int:
                if paths[1] == tmp_path / "a":
                    paths[1] = tmp_path / "b"
                    raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
                return super().open(path, flags)

        for name in "ab":
            (tmp_path / name).write_bytes(name.encode() * 1000)
        readers = Readers(Crowded(), REAL_THREADS, paths.get)
        assert readers.read([(place_of(1, 5), 2)]) == [b"bb"]
        readers.forget()


class TestFiles:
    def test_a_covered_segment_stays_while_a_checkpoint_lists_it_and_goes_when_none_does(self, tmp_path: Path) -> None:
        log, sealed = opened(tmp_path), batches(1, 200)
        log.store(sealed)
        places = log.journal.places(1, 200)
        files = sorted({file_of(place) for place in places})
        before = on_disk(tmp_path)
        assert log.checkpoint(200, 1, [], alive=[files[1]]) == ""
        assert log.journal.figures.segments == 1
        assert log.journal.figures.body_files == 1
        log.close()
        assert on_disk(tmp_path) == [before[1], before[-1]]
        log = Log(tmp_path)
        alive = [at for at in range(200) if file_of(places[at]) == files[1]]
        assert log.journal.read_spans([(places[at], len(sealed[at])) for at in alive]) == [sealed[at] for at in alive]
        log.store(batches(201, 202))
        assert log.checkpoint(202, 1, []) == ""
        with pytest.raises(Unreadable):
            log.journal.read_spans([(places[alive[0]], 10)])
        log.close()
        assert on_disk(tmp_path) == [before[-1]]

    def test_a_checkpoint_lists_how_much_of_each_file_it_needs(self, tmp_path: Path) -> None:
        log, sealed = opened(tmp_path), batches(1, 100)
        log.store(sealed)
        places = log.journal.places(1, 100)
        files = sorted({file_of(place) for place in places})
        assert log.checkpoint(90, 1, [], alive=files) == ""
        found = log.journal.checkpoint
        assert found is not None
        assert [file.number for file in found.files.in_use] == files
        assert offset_of(found.files.tail) == found.files.in_use[-1].used == offset_of(places[90])
        assert found.files.tail == places[90]
        assert found.files.next_number > files[-1]
        assert Checkpoint.newest(tmp_path, disk=REAL_DISK) == found
        log.close()

    @pytest.mark.parametrize("harm", ["missing", "short"])
    def test_a_listed_file_that_is_not_whole_makes_the_checkpoint_none_and_leaves_a_floor(
        self, tmp_path: Path, harm: str
    ) -> None:
        log = opened(tmp_path)
        log.store(batches(1, 100))
        first = file_of(log.journal.places(1, 1)[0])
        assert log.checkpoint(90, 1, [], alive=[first]) == ""
        log.close()
        path = segments.listed(REAL_DISK, tmp_path)[0][1]
        path.unlink() if harm == "missing" else os.truncate(path, FIRST_BATCH)
        log = Log(tmp_path)
        assert log.found.checkpoint is None
        assert str(path) in log.found.notes[0] if harm == "short" else f"needs file {first}" in log.found.notes[0]
        assert log.found.floor is not None
        assert log.found.floor.index >= 90
        log.close()

    def test_what_a_crash_left_behind_and_no_checkpoint_lists_is_removed_at_the_start(self, tmp_path: Path) -> None:
        log = opened(tmp_path)
        log.store(batches(1, 100))
        first = log.journal.places(1, 1)[0]
        assert log.checkpoint(90, 1, [], alive=[file_of(first)]) == ""
        log.close()
        kept = on_disk(tmp_path)
        (tmp_path / FileInUse(50, 1, 5000).name).write_bytes(bytes(5000))
        (tmp_path / f"0000000051{bodies.SUFFIX}.tmp").write_bytes(b"x")
        log = Log(tmp_path)
        assert on_disk(tmp_path) == kept
        assert log.journal.read_spans([(first, len(batch(1)))]) == [batch(1)]
        log.close()

    def test_what_a_checkpoint_covers_is_not_read_at_the_start(self, tmp_path: Path) -> None:
        log = opened(tmp_path)
        log.store(batches(1, 100))
        places = log.journal.places(1, 100)
        assert log.checkpoint(99, 1, [], alive={file_of(place) for place in places}) == ""
        log.close()
        for place in places[:99]:
            path = next(p for _, p in segments.listed(REAL_DISK, tmp_path) if number_of(p) == file_of(place))
            flip(path, offset_of(place) + PAYLOAD)
        log = Log(tmp_path)
        assert (log.found.floor, log.found.notes) == (None, [])
        assert log.all() == batches(100, 100)
        log.close()

    def test_a_segment_whose_header_has_rotted_in_one_place_keeps_its_number(self, tmp_path: Path) -> None:
        log = opened(tmp_path)
        log.store(batches(1, 100))
        places = log.journal.places(1, 100)
        assert log.checkpoint(50, 1, [], alive={file_of(place) for place in places[:50]}) == ""
        log.close()
        for at, (_, path) in enumerate(segments.listed(REAL_DISK, tmp_path)):
            flip(path, segments._HEADER_OFFSETS[at % 2] + 9)
        log = Log(tmp_path)
        assert log.journal.read_spans([(places[0], len(batch(1)))]) == [batch(1)]
        assert log.journal.places(51, 100) == places[50:]
        log.close()

    def test_segments_of_version_1_get_numbers_in_order(self, tmp_path: Path) -> None:
        written(tmp_path, batches(1, 150))
        for first, path in segments.listed(REAL_DISK, tmp_path):
            with path.open("r+b") as file:
                file.write(bytes(40))
                file.seek(1536)
                file.write(bytes(40))
                file.seek(0)
                head = segments._HEADER.pack(b"USG1", 1, first, 1 if first > 1 else 0)
                file.write(head + segments._CRC.pack(google_crc32c.value(head)))
        for _ in range(2):
            log = Log(tmp_path)
            assert log.found.notes == []
            numbers = [file_of(place) for place in log.journal.places(1, 150)]
            assert numbers == sorted(numbers)
            assert sorted(set(numbers)) == list(range(1, len(set(numbers)) + 1))
            assert log.all() == batches(1, 150)
            log.close()

    def test_files_of_a_checkpoint_that_is_being_sent_stay_until_it_is_through(self, tmp_path: Path) -> None:
        log = opened(tmp_path)
        log.store(batches(1, 100))
        first = file_of(log.journal.places(1, 1)[0])
        assert log.checkpoint(90, 1, batches(1, 3), alive=[first]) == ""
        source = log.journal.source()
        stream = source.read(0, source.nbytes)
        assert log.checkpoint(90, 1, batches(1, 5)) == ""
        assert source.read(0, 1 << 30) == stream
        assert log.journal.figures.body_files == 1
        source.close()
        source.close()
        assert log.journal.figures.body_files == 0
        log.close()
        assert len(on_disk(tmp_path)) == 1

    def test_a_store_marked_damaged_starts_with_nothing_but_a_floor(self, tmp_path: Path) -> None:
        log = opened(tmp_path)
        log.store(batches(1, 100))
        first = log.journal.places(1, 1)[0]
        assert log.checkpoint(90, 1, [], alive=[file_of(first)]) == ""
        log.journal.damaged(first, "the message 1 of queue q in that file has rotted")
        log.store(batches(101, 101))
        log.close()
        for _ in range(2):
            log = Log(tmp_path)
            assert log.found.checkpoint is None
            assert log.found.entries == []
            assert log.found.floor == segments.Position(1, 101)
            assert not log.found.blank
            log.close()
        assert [path.name for path in tmp_path.glob("damaged-*")] == [f"damaged-{segments.name_of(1)}"]


def number_of(path: Path) -> int:
    fd = REAL_DISK.open(path, os.O_RDONLY)
    try:
        head = segments.read_head(REAL_DISK, fd, path)
    finally:
        REAL_DISK.close(fd)
    assert head is not None
    return head.number


class TestCompactions:
    """What may happen between the listing of live runs and the end of their copying."""

    def filled(self, folder: Path) -> tuple[Log, list[tuple[int, LiveRun]]]:
        """A log with body files, and the one run of each of them that is alive, with its queue."""
        log, sealed = opened(folder), batches(1, 200, nbytes=500)
        log.store(sealed)
        places = log.journal.places(1, 150)
        firsts = {file_of(place): index for index, place in reversed(list(enumerate(places, 1)))}
        assert log.checkpoint(150, 1, [], alive=firsts) == ""
        runs = []
        for number, index in firsts.items():
            payload = sealed[index - 1][PAYLOAD : PAYLOAD + 500]
            place = place_of(number, offset_of(places[index - 1]) + PAYLOAD)
            runs.append((1, LiveRun(index, place, 500, google_crc32c.value(payload), array("I", [500]), [(0, 1)])))
        files = [body.file.number for body in log.journal.body_files()]
        return log, [(queue, run) for queue, run in runs if file_of(run.place) in files]

    def copied(self, log: Log, victims: Victims, runs: list[tuple[int, LiveRun]]) -> tuple[Compacted | None, Unreadable | str]:
        done: list[tuple[Compacted | None, Unreadable | str]] = []
        log.journal.compact(victims, iter(runs), 0, lambda *result: done.append(result))
        log.reactor.until(lambda: bool(done))
        log.journal._preparation.wait()
        return done[0]

    def test_a_reset_ends_one_whose_runs_were_being_listed_and_is_no_damage(self, tmp_path: Path) -> None:
        log, runs = self.filled(tmp_path)
        victims = log.journal.begin_compaction([file_of(run.place) for _, run in runs])
        log.reset(500, 3)
        found, why_not = self.copied(log, victims, runs)
        assert found is None
        assert "was replaced by a snapshot meanwhile" in str(why_not)
        assert not isinstance(why_not, Unreadable)
        log.close()

    def test_a_checkpoint_meanwhile_leaves_its_files_until_it_has_ended(self, tmp_path: Path) -> None:
        """Breaks when the thread finds no file any more, which counts as damage."""
        log, runs = self.filled(tmp_path)
        victims = log.journal.begin_compaction([file_of(run.place) for _, run in runs])
        files = [body.path for body in log.journal.body_files()]
        assert log.checkpoint(151, 1, []) == ""
        log.journal._preparation.wait()
        assert all(path.exists() for path in files)
        found, why_not = self.copied(log, victims, runs)
        assert why_not == ""
        assert found is not None
        assert [len(moves) for _, moves in found.moves] == [len(runs)]
        assert [body.file for body in log.journal.body_files()] == [found.file]
        assert not any(path.exists() for path in files)
        log.close()

    def test_what_was_copied_goes_when_the_log_was_reset_meanwhile(self, tmp_path: Path) -> None:
        log, runs = self.filled(tmp_path)
        victims = log.journal.begin_compaction([file_of(run.place) for _, run in runs])
        log.reset(500, 3)
        found, why_not = self.copied(log, victims, [])
        assert found is None
        assert "was replaced by a snapshot meanwhile" in str(why_not)
        assert bodies.listed(REAL_DISK, tmp_path) == []
        log.close()


def test_only_whole_names_of_body_files_are_looked_at(tmp_path: Path) -> None:
    files = [FileInUse(3, 0, 4096), FileInUse(2**32 - 1, 2**64 - 1, 10**10)]
    for file in files:
        (tmp_path / file.name).touch()
    for name in ("0000000003.bodies", "x.bodies", files[0].name + ".tmp", "3-4-5.bodies"):
        (tmp_path / name).touch()
    assert bodies.listed(REAL_DISK, tmp_path) == files
    assert checkpoint.listed(REAL_DISK, tmp_path) == []
