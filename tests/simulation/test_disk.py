"""A simulated disk keeps synced data, loses other data at random, and fails on request."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.disk.durable import read_whatever, replace_durably, write_all
from broker.disk.files import Disk, LockHeld, RealDisk
from tests.simulation.disk import PAGE, SECTOR, PowerOff, SimulatedDisk

HOME = Path("/home")
FILE = HOME / "file"
OLD, NEW = b"o" * (3 * PAGE), b"n" * (3 * PAGE)
FRESH = os.O_RDWR | os.O_CREAT
SEEDS = range(200)


def no_wait(seconds: float) -> None:
    """Time does not matter here."""


def made(seed: int = 0) -> SimulatedDisk:
    """A disk with an empty folder that is durable."""
    disk = SimulatedDisk(Random(seed))
    disk.make_folder(HOME)
    disk.sync_folder(HOME.parent)
    return disk


def stored(disk: SimulatedDisk, content: bytes, path: Path = FILE) -> int:
    """A durable file; its descriptor."""
    fd = disk.open(path, FRESH)
    write_all(disk, fd, content, 0)
    disk.sync(fd)
    disk.sync_folder(path.parent)
    return fd


def after_crashes(prepare: Callable[[SimulatedDisk], object]) -> Counter[bytes | None]:
    """What the file holds after a crash, for each of many seeds; None when it is not there."""
    found: Counter[bytes | None] = Counter()
    for seed in SEEDS:
        disk = made(seed)
        prepare(disk)
        disk.crash()
        disk.start(no_wait)
        found[disk.content(str(FILE)) if str(FILE) in disk.paths() else None] += 1
    return found


class TestDurable:
    """What a power cut can still change, and what not."""

    def test_a_file_is_durable_when_its_content_and_its_name_are_synced(self) -> None:
        disk = made()
        fd = disk.open(FILE, FRESH)
        assert (disk.is_synced(str(FILE)), disk.is_durable(str(FILE))) == (True, False)
        write_all(disk, fd, NEW, 0)
        assert not disk.is_synced(str(FILE))
        disk.sync(fd)
        assert (disk.is_synced(str(FILE)), disk.is_durable(str(FILE))) == (True, False)
        disk.sync_folder(HOME)
        assert disk.is_durable(str(FILE))
        disk.replace(FILE, HOME / "other")
        assert (disk.is_durable(str(FILE)), disk.is_durable(str(HOME / "other"))) == (False, False)

    def test_a_file_that_a_failed_sync_left_is_not_durable_though_no_page_is_dirty(self) -> None:
        disk = made()
        fd = stored(disk, OLD)
        write_all(disk, fd, NEW, 0)
        disk.bad_syncs = 1
        with pytest.raises(OSError, match="error"):
            disk.sync(fd)
        after = disk.is_durable(str(FILE))
        disk.crash()
        disk.start(no_wait)
        assert after == (disk.content(str(FILE)) == NEW)


class TestCrash:
    """The power goes."""

    def test_what_was_synced_with_its_name_survives(self) -> None:
        assert after_crashes(lambda disk: stored(disk, OLD)) == {OLD: len(SEEDS)}

    def test_what_was_not_synced_survives_by_the_page_or_torn_at_sectors(self) -> None:
        def overwrite(disk: SimulatedDisk) -> None:
            write_all(disk, stored(disk, OLD), NEW, 0)

        found = after_crashes(overwrite)
        assert found[OLD]
        assert found[NEW]
        sectors = {content[at : at + SECTOR] for content in found if content for at in range(0, len(content), SECTOR)}
        assert sectors == {OLD[:SECTOR], NEW[:SECTOR]}
        pages = {content[at : at + PAGE] for content in found if content for at in range(0, len(content), PAGE)}
        assert len(pages) > 10, "no page was torn"

    def test_a_name_that_was_not_synced_may_be_gone_though_the_content_was(self) -> None:
        def nameless(disk: SimulatedDisk) -> None:
            fd = disk.open(FILE, FRESH)
            write_all(disk, fd, NEW, 0)
            disk.sync(fd)

        found = after_crashes(nameless)
        assert set(found) == {NEW, None}

    def test_a_named_file_that_was_never_synced_may_be_empty(self) -> None:
        def hollow(disk: SimulatedDisk) -> None:
            write_all(disk, disk.open(FILE, FRESH), NEW, 0)
            disk.sync_folder(HOME)

        found = after_crashes(hollow)
        assert found[b""]
        assert found[NEW]
        assert found[bytes(len(NEW))]
        assert None not in found

    def test_a_rename_over_a_file_leaves_the_old_or_the_new_one_and_never_none(self) -> None:
        def rename(disk: SimulatedDisk) -> None:
            stored(disk, OLD)
            stored(disk, NEW, HOME / "aside")
            disk.replace(HOME / "aside", FILE)

        assert set(after_crashes(rename)) == {OLD, NEW}

    def test_an_unlinked_file_may_come_back(self) -> None:
        def remove(disk: SimulatedDisk) -> None:
            stored(disk, OLD)
            disk.unlink(FILE)

        assert set(after_crashes(remove)) == {OLD, None}

    def test_a_file_replaced_durably_is_whole_whatever_is_lost(self) -> None:
        """The production code for small files, on this disk."""

        def replace(disk: SimulatedDisk) -> None:
            replace_durably(disk, FILE, OLD)
            replace_durably(disk, FILE, NEW)

        assert set(after_crashes(replace)) == {NEW}

    def test_a_folder_that_was_not_synced_may_be_gone_with_all_that_is_in_it(self) -> None:
        kept = Counter[bool]()
        for seed in SEEDS:
            disk = made(seed)
            disk.make_folder(HOME / "deep" / "er")
            stored(disk, OLD, HOME / "deep" / "er" / "file")
            disk.crash()
            disk.start(no_wait)
            kept["/home/deep/er/file" in disk.paths()] += 1
        assert set(kept) == {False, True}

    def test_a_page_may_have_been_written_back_between_two_changes_of_it(self) -> None:
        def twice(disk: SimulatedDisk) -> None:
            fd = stored(disk, OLD[:PAGE])
            write_all(disk, fd, b"m" * PAGE, 0)
            write_all(disk, fd, NEW[:PAGE], 0)

        assert after_crashes(twice)[b"m" * PAGE]

    def test_the_same_seed_loses_the_same(self) -> None:
        def contents(seed: int) -> list[bytes]:
            disk = made(seed)
            fd = stored(disk, OLD)
            for at in range(0, len(OLD), 100):
                disk.write(fd, [b"%d" % at], at)
            disk.crash()
            return [disk.content(path) for path in disk.paths()]

        assert contents(3) == contents(3)
        assert contents(3) != contents(4)

    def test_a_host_that_is_down_takes_no_calls_and_its_descriptors_are_gone(self) -> None:
        disk = made()
        fd = stored(disk, OLD)
        disk.crash()
        for call in (
            lambda: disk.write(fd, [b"x"], 0),
            lambda: disk.unlink(FILE),
            lambda: disk.open(FILE, os.O_RDONLY),
            lambda: disk.sync(fd),
            lambda: disk.replace(FILE, HOME / "other"),
        ):
            with pytest.raises(PowerOff):
                call()
        disk.close(fd)
        disk.start(no_wait)
        disk.close(fd)  # by somebody of the process that is gone
        with pytest.raises(KeyError):
            disk.read(fd, 1, 0)
        again = disk.open(FILE, os.O_RDONLY)
        disk.close(again)
        with pytest.raises(KeyError):
            disk.close(again)  # twice is a mistake


def test_a_killed_process_loses_its_lock_and_nothing_else() -> None:
    disk = made()
    write_all(disk, disk.open(FILE, FRESH), NEW, 0)
    disk.lock(HOME / "lock")
    with pytest.raises(LockHeld):
        disk.lock(HOME / "lock")
    disk.kill()
    disk.start(no_wait)
    disk.lock(HOME / "lock")
    assert disk.content("/home/file") == NEW


class TestFailedSync:
    """A sync that fails."""

    def test_some_pages_are_lost_though_the_next_sync_succeeds(self) -> None:
        def fail(disk: SimulatedDisk) -> None:
            fd = stored(disk, OLD)
            write_all(disk, fd, NEW, 0)
            disk.bad_syncs = 1
            with pytest.raises(OSError, match="Input/output error"):
                disk.sync(fd)
            disk.sync(fd)

        found = after_crashes(fail)
        assert set(Counter(content[::PAGE] for content in found if content)) == {
            bytes(pages) for pages in ((a, b, c) for a in b"on" for b in b"on" for c in b"on")
        }

    def test_the_cache_may_show_what_the_disk_does_not_have_until_it_lets_go(self) -> None:
        shown, kept = Counter[bool](), Counter[bool]()
        for seed in SEEDS:
            disk = made(seed)
            fd = stored(disk, OLD)
            write_all(disk, fd, NEW, 0)
            disk.bad_syncs = 1
            with pytest.raises(OSError, match="Input/output error"):
                disk.sync(fd)
            before = disk.read(fd, len(NEW), 0)
            disk.forget(fd)
            after = disk.read(fd, len(NEW), 0)
            shown[before == NEW] += 1
            kept[before == after] += 1
            disk.crash()
            assert disk.content("/home/file") == after
        assert shown[True]
        assert kept[False]

    def test_a_page_that_was_dropped_and_is_written_again_is_durable_again(self) -> None:
        def again(disk: SimulatedDisk) -> None:
            fd = stored(disk, OLD)
            write_all(disk, fd, b"x" * len(NEW), 0)
            disk.bad_syncs = 1
            with pytest.raises(OSError, match="Input/output error"):
                disk.sync(fd)
            write_all(disk, fd, NEW, 0)
            disk.sync(fd)

        assert set(after_crashes(again)) == {NEW}

    def test_a_folder_s_sync_may_fail_too(self) -> None:
        disk = made()
        disk.bad_syncs = 1
        with pytest.raises(OSError, match="Input/output error"):
            disk.sync_folder(HOME)


class TestSlowCalls:
    """Calls that take simulated time."""

    def test_a_sync_takes_its_time_and_covers_what_was_written_before_it(self) -> None:
        waits: list[float] = []
        disk = made()
        fd = stored(disk, OLD)
        disk.sync_s = 0.01

        def while_it_waits(seconds: float) -> None:
            waits.append(seconds)
            disk.write(fd, [b"late" * (PAGE // 4)], PAGE)

        write_all(disk, fd, NEW[:PAGE], 0)
        disk.start(while_it_waits)
        disk.sync(fd)
        assert len(waits) == 1
        assert 0.005 <= waits[0] <= 0.015
        kept = set()
        for _ in SEEDS:
            disk.crash()
            disk.start(while_it_waits)
            kept.add(disk.content("/home/file")[: 2 * PAGE : PAGE])
        assert kept in ({b"no"}, {b"nl"})

    def test_what_is_written_during_a_sync_is_not_covered_by_it(self) -> None:
        def late(disk: SimulatedDisk) -> None:
            fd = stored(disk, OLD[:PAGE])
            disk.sync_s = 0.01
            disk.start(lambda seconds: write_all(disk, fd, b"l" * PAGE, 0))
            write_all(disk, fd, NEW[:PAGE], 0)
            disk.sync(fd)

        found = after_crashes(late)
        assert found[NEW[:PAGE]]
        assert found[b"l" * PAGE]
        assert not any(b"o" in content for content in found if content)

    def test_any_call_that_changes_something_can_be_where_others_run(self) -> None:
        calls: list[float] = []
        disk = made()
        disk.start(calls.append)
        disk.call_s = 0.0
        fd = stored(disk, OLD)
        disk.replace(FILE, HOME / "other")
        disk.unlink(HOME / "other")
        assert calls == [0.0] * 4
        disk.read(fd, 1, 0)
        assert len(calls) == 4


class TestRefusals:
    """A disk that is full, and one that rots."""

    def test_a_full_disk_takes_what_fits_and_then_refuses_until_there_is_room(self) -> None:
        disk = made()
        other = stored(disk, OLD, HOME / "other")
        disk.capacity = 5 * PAGE
        fd = disk.open(FILE, FRESH)
        assert disk.write(fd, [NEW], 0) == 2 * PAGE
        with pytest.raises(OSError, match="No space left") as refused:
            disk.write(fd, [NEW], 2 * PAGE)
        assert refused.value.errno == errno.ENOSPC
        assert disk.write(fd, [NEW], 0) == 2 * PAGE, "what has its room already can be written over"
        assert disk.write(other, [NEW], 0) == len(NEW)
        disk.unlink(HOME / "other")
        assert disk.write(fd, [NEW], 2 * PAGE) == len(NEW)
        assert disk.used == 5 * PAGE

    def test_writes_may_stop_early_and_a_loop_gets_all_of_it_down(self) -> None:
        disk = made()
        disk.short_writes = 1.0
        fd = disk.open(FILE, FRESH)
        assert 0 < disk.write(fd, [NEW, NEW], 0) < 2 * len(NEW)
        write_all(disk, fd, NEW, 0)
        assert disk.read(fd, len(NEW), 0) == NEW

    def test_a_flipped_bit_stays_flipped_whatever_happens(self) -> None:
        disk = made()
        fd = stored(disk, OLD)
        disk.flip("/home/file", PAGE + 1, 3)
        assert disk.read(fd, 3, PAGE) == b"o" + bytes([ord("o") ^ 8]) + b"o"
        disk.crash()
        assert disk.content("/home/file").count(b"o") == len(OLD) - 1

    def test_a_page_that_is_about_to_be_written_has_rotted_only_on_the_disk(self) -> None:
        disk = made()
        fd = stored(disk, OLD)
        write_all(disk, fd, NEW, 0)
        disk.flip("/home/file", 0, 0)
        disk.sync(fd)
        disk.crash()
        assert disk.content("/home/file") == NEW

    def test_an_unreadable_page_cuts_a_read_short_and_then_fails_it_until_it_is_written(self) -> None:
        disk = made()
        fd = stored(disk, OLD)
        disk.make_unreadable("/home/file", PAGE + 5)
        assert disk.read(fd, len(OLD), 0) == OLD[:PAGE]
        with pytest.raises(OSError, match="Input/output error"):
            disk.read(fd, 1, PAGE)
        assert read_whatever(disk, fd, PAGE, PAGE) == b"\xff" * PAGE
        assert disk.read(fd, PAGE, 2 * PAGE) == OLD[:PAGE]
        disk.write(fd, [NEW[:PAGE]], PAGE)
        assert disk.read(fd, len(OLD), 0) == OLD[:PAGE] + NEW[:PAGE] + OLD[:PAGE]

    def test_a_lost_file_does_not_come_back(self) -> None:
        def lose(disk: SimulatedDisk) -> None:
            stored(disk, OLD, HOME / "aside")
            disk.replace(HOME / "aside", FILE)
            disk.lose("/home/file")

        assert set(after_crashes(lose)) == {None}


def test_zeros_cost_no_memory() -> None:
    disk = made()
    fd = stored(disk, bytes(1000 * PAGE))
    assert len({id(page) for page in disk._descriptors[fd].file.pages.values()}) == 1
    assert disk.used == 1000 * PAGE


ACTIONS = st.one_of(
    st.tuples(st.just("open"), st.sampled_from("ab"), st.sampled_from((os.O_RDWR, FRESH, FRESH | os.O_TRUNC))),
    st.tuples(st.just("write"), st.integers(0, 3 * PAGE), st.binary(min_size=1, max_size=2 * PAGE)),
    st.tuples(st.just("read"), st.integers(0, 4 * PAGE), st.integers(0, 4 * PAGE)),
    st.tuples(st.just("truncate"), st.integers(0, 4 * PAGE)),
    st.tuples(st.just("replace"), st.sampled_from("ab"), st.sampled_from("abc")),
    st.tuples(st.just("unlink"), st.sampled_from("abc")),
    st.tuples(st.just("size")),
    st.tuples(st.just("sync")),
    st.tuples(st.just("forget")),
    st.tuples(st.just("names")),
    st.tuples(st.just("status"), st.sampled_from("abc")),
)


@given(st.lists(ACTIONS, max_size=40))
def test_while_nothing_fails_it_answers_as_the_real_file_system_does(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[object, ...]]
) -> None:
    def answers(disk: Disk, home: Path) -> list[object]:
        found: list[object] = []
        disk.make_folder(home)
        fd = disk.open(home / "a", FRESH)
        for name, *arguments in actions:
            paths = [home / each if isinstance(each, str) else each for each in arguments]
            try:
                match name:
                    case "open":
                        fd = disk.open(*paths)  # type: ignore[arg-type]
                    case "write":
                        found.append(disk.write(fd, [arguments[1]], arguments[0]))  # type: ignore[list-item, arg-type]
                    case "read":
                        found.append(disk.read(fd, arguments[1], arguments[0]))  # type: ignore[arg-type]
                    case "truncate":
                        disk.truncate(fd, arguments[0])  # type: ignore[arg-type]
                    case "size" | "sync" | "forget":
                        found.append(getattr(disk, name)(fd))
                    case "names":
                        found.append(sorted(disk.names(home)))
                    case "status":
                        status = disk.status(paths[0])  # type: ignore[arg-type]
                        found.append((status.nbytes, status.is_folder))
                    case _:
                        found.append(getattr(disk, str(name))(*paths))
            except OSError as error:
                found.append(error.errno)
        return found

    assert answers(SimulatedDisk(Random(0)), HOME) == answers(RealDisk(), tmp_path_factory.mktemp("real"))


def test_a_read_goes_on_behind_a_page_that_cannot_be_read() -> None:
    disk = made()
    fd = stored(disk, OLD + NEW)
    disk.make_unreadable(str(FILE), PAGE)
    expected = OLD[:PAGE] + b"\xff" * PAGE + OLD[2 * PAGE :] + NEW
    assert read_whatever(disk, fd, 100 * PAGE, 0) == expected
    assert read_whatever(disk, fd, 3 * PAGE, 10) == expected[10 : 3 * PAGE + 10]
    assert read_whatever(disk, fd, 3 * PAGE, PAGE + 10) == expected[PAGE + 10 : 4 * PAGE + 10], "the next page is sound"
