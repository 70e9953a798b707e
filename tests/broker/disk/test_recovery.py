"""A crash is cut off, damage is noticed, and neither is taken for the other."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.core.records import HEADER_BYTES, BatchBuilder
from broker.disk import checkpoint, hard_state, recovery, segments
from broker.disk.durable import DamagedStore, NewerFormat, replace_durably, seal_json
from broker.disk.files import REAL_DISK, RealDisk
from broker.disk.recovery import Alone, Recovered, recover
from broker.disk.segments import FIRST_BATCH, Position
from tests.broker.disk.logs import SMALL, Log, PowerCutDisk, batch, batches, flip, written

FIRST = segments.name_of(1)
MEMORY = "/dev/shm"


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder of a file system in memory, where there is one: for tests of hundreds of stores, each of which is synced again and
    again, and which lose by themselves what a disk would lose."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="understudy-", dir=MEMORY) as folder:
        yield Path(folder)


def recovered(folder: Path, disk: RealDisk = REAL_DISK, *, alone: Alone = False) -> Recovered:
    found, kept = recover(folder, SMALL, disk, alone=alone)
    for segment in kept:
        segment.close(disk)
    return found


def refused(folder: Path, why: str) -> None:
    """A log that no other broker has is refused, again and again, and every file of it stays as it is."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for _ in range(2):
        with pytest.raises(DamagedStore, match=rf"{why}.*; no other broker has this log, so .* move {folder} away"):
            recovered(folder, alone=True)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def indexes(found: Recovered) -> list[int]:
    return [entry.index for entry in found.entries]


def test_a_folder_that_never_was_a_log_is_blank_and_starts_at_one(tmp_path: Path) -> None:
    found = recovered(tmp_path / "cluster")
    assert found == Recovered(0, None, None, [], True, None, 0, [], {}, 2)


def test_an_orderly_log_comes_back_as_it_was(tmp_path: Path) -> None:
    sealed = batches(1, 200)
    written(tmp_path, sealed, epoch=3)
    found = recovered(tmp_path)
    assert len(segments.listed(REAL_DISK, tmp_path)) > 2
    assert [(entry.index, entry.epoch, entry.nbytes, entry.n_records, entry.flags) for entry in found.entries] == [
        (index, 1, len(one), 1, 0) for index, one in enumerate(sealed, 1)
    ]
    assert (found.epoch, found.voted_for, found.blank, found.floor, found.torn_bytes, found.notes) == (3, "a", False, None, 0, [])


def test_a_store_stays_blank_until_it_has_been_level_with_its_cluster(tmp_path: Path) -> None:
    # Otherwise a broker killed half-way through its first catch-up would vote with half a log.
    log = Log(tmp_path)
    log.journal.save_hard_state(1, None)
    log.store(batches(1, 2))
    log.close()
    log = Log(tmp_path)
    assert log.found.blank
    log.journal.floor_passed()
    log.close()
    assert not recovered(tmp_path).blank


def test_a_segment_cut_at_any_byte_gives_a_prefix_and_says_that_something_is_lost(in_memory: Path) -> None:
    sealed = batches(1, 3, nbytes=4)
    written(in_memory / "whole", sealed)
    ends = [FIRST_BATCH + sum(map(len, sealed[:n])) for n in range(len(sealed) + 1)]
    for length in [*range(0, 64, 7), *range(500, 1100, 41), *range(FIRST_BATCH - 3, ends[-1] + 3)]:
        folder = in_memory / "cut"
        shutil.copytree(in_memory / "whole", folder)
        os.truncate(folder / FIRST, length)
        found = recovered(folder)
        n = sum(end <= length for end in ends[1:])
        assert indexes(found) == list(range(1, n + 1)), length
        if n < len(sealed):
            assert found.blank or found.floor == (1, 3), length
            assert found.notes
        else:
            assert (found.blank, found.floor) == (False, None)
        again = recovered(folder)
        assert (again.entries, again.floor, again.blank) == (found.entries, found.floor, found.blank), "a repaired log stays so"
        shutil.rmtree(folder)


def test_a_bit_that_flips_at_rest_anywhere_is_noticed_or_harmless(in_memory: Path) -> None:
    sealed = [batch(1, nbytes=5), batch(2, epoch=2, nbytes=9), batch(3, epoch=2, nbytes=1)]
    written(in_memory / "whole", sealed, epoch=2)
    ends = [FIRST_BATCH + sum(map(len, sealed[:n])) for n in range(len(sealed) + 1)]
    header = [*range(40), *range(510, 560), *range(1020, 1072)]
    flips = [(at, at % 8) for at in header] + [(at, bit) for at in range(FIRST_BATCH, ends[-1]) for bit in (at % 8, (at + 3) % 8)]
    for at, bit in [*flips, (ends[-1] + 100, 3), (SMALL - 1, 7)]:
        folder = in_memory / "flipped"
        shutil.copytree(in_memory / "whole", folder)
        flip(folder / FIRST, at, bit)
        try:
            found = recovered(folder)
        except NewerFormat:
            pytest.fail("a flipped bit passed a checksum")
        n = sum(end <= at for end in ends[1:]) if FIRST_BATCH <= at < ends[-1] else 3
        assert indexes(found) == list(range(1, n + 1)), (at, bit)
        assert found.floor == (None if n == 3 else (2, 3)), (at, bit)
        assert not found.blank
        assert (found.torn_bytes > 0) == (at >= ends[-1])
        shutil.rmtree(folder)


def test_damage_before_other_segments_is_noticed_by_them(tmp_path: Path) -> None:
    written(tmp_path, [*batches(1, 60), *batches(61, 120, epoch=4)], epoch=4)
    first, second, *_ = segments.listed(REAL_DISK, tmp_path)
    flip(first[1], FIRST_BATCH + 10)
    found = recovered(tmp_path)
    assert indexes(found) == []
    assert found.floor == Position(4, 120)
    assert f"segment {first[1]} is damaged at byte {FIRST_BATCH}, in batch 1;" in found.notes[0]
    assert not second[1].exists()


def test_the_floor_holds_over_restarts_until_the_log_has_passed_it(tmp_path: Path) -> None:
    # A broker that forgot its floor could give a candidate the vote that loses acknowledged batches.
    written(tmp_path, batches(1, 9))
    flip(tmp_path / FIRST, FIRST_BATCH + HEADER_BYTES)
    assert recovered(tmp_path).floor == (1, 9)
    log = Log(tmp_path)
    assert log.found.floor == (1, 9)
    log.store(batches(1, 9))
    log.journal.floor_passed()
    log.close()
    assert recovered(tmp_path).floor is None


def test_damage_twice_keeps_the_higher_floor(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 9))
    flip(tmp_path / FIRST, FIRST_BATCH + 8 * len(batch(1)))
    assert recovered(tmp_path).floor == (1, 9)
    flip(tmp_path / FIRST, FIRST_BATCH)
    found = recovered(tmp_path)
    assert (indexes(found), found.floor) == ([], (1, 9))


def test_zeros_in_the_place_of_a_synced_batch_are_damage_and_no_end(tmp_path: Path) -> None:
    # A disk that lost a write gives back what was there before: the zeros of the prepared segment.
    written(tmp_path, batches(1, 9))
    with (tmp_path / FIRST).open("r+b") as file:
        file.seek(FIRST_BATCH + 4 * len(batch(1)))
        file.write(bytes(10 * len(batch(1))))
    found = recovered(tmp_path)
    assert (indexes(found), found.floor) == ([1, 2, 3, 4], (1, 9))


def test_unreadable_sectors_are_damage_and_not_a_crash_of_the_broker(tmp_path: Path) -> None:
    class BadSectors(RealDisk):
        def read(self, fd: int, nbytes: int, offset: int) -> bytes:
            if offset <= FIRST_BATCH + 300 < offset + nbytes:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(fd, nbytes, offset)

    written(tmp_path, batches(1, 30))
    found = recovered(tmp_path, BadSectors())
    assert indexes(found) == []
    assert found.floor == (1, 30)


def test_a_mark_that_could_not_be_read_does_not_speak_again_of_what_was_dropped(tmp_path: Path) -> None:
    # A sector that fails once may be readable later. Its mark then says: synced up to there. That would be taken for damage.
    class BadSector(RealDisk):
        def read(self, fd: int, nbytes: int, offset: int) -> bytes:
            if offset in (512, 1024):
                raise OSError(errno.EIO, "Input/output error")
            return super().read(fd, nbytes, offset)

    written(tmp_path, batches(1, 9))
    log = Log(tmp_path, disk=BadSector())
    assert indexes(log.found) == list(range(1, 10))
    log.truncate(6)
    log.close()
    found = recovered(tmp_path)
    assert (indexes(found), found.floor) == ([1, 2, 3, 4, 5], None)


def test_both_marks_gone_whole_batches_further_on_still_tell_damage(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 9))
    for slot in (512, 1024):
        flip(tmp_path / FIRST, slot + 6)
    shutil.copytree(tmp_path, tmp_path / "end")
    flip(tmp_path / FIRST, FIRST_BATCH + 3 * len(batch(1)) + 9, 1)  # a stated length that leads nowhere
    assert recovered(tmp_path).floor == (1, 9)
    flip(tmp_path / "end" / FIRST, FIRST_BATCH + 9 * len(batch(1)) - 1)  # the last one: as good as torn
    found = recovered(tmp_path / "end")
    assert (len(found.entries), found.floor, found.torn_bytes) == (8, None, len(batch(1)))


def test_a_missing_segment_takes_what_follows_it_along_and_is_told(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 150))
    listed = segments.listed(REAL_DISK, tmp_path)
    listed[1][1].unlink()
    found = recovered(tmp_path)
    assert indexes(found) == list(range(1, listed[1][0]))
    assert found.floor == (1, 150)
    assert f"batches {listed[1][0]} to {listed[2][0] - 1} are missing" in found.notes[0]


def test_a_missing_first_segment_empties_the_log_and_is_told(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 150))
    segments.listed(REAL_DISK, tmp_path)[0][1].unlink()
    found = recovered(tmp_path)
    assert (indexes(found), found.floor) == ([], (1, 150))
    log = Log(tmp_path)
    log.store(batches(1, 3))
    log.close()
    assert indexes(recovered(tmp_path)) == [1, 2, 3]


def test_a_store_whose_segments_are_all_gone_is_blank_again(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 3))
    (tmp_path / FIRST).unlink()
    found = recovered(tmp_path)
    assert (found.blank, found.epoch) == (True, 1)
    assert "the log's segments are missing" in found.notes[0]


def test_damaged_files_are_kept_for_people_but_never_more_than_three(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 200))
    cut = (tmp_path / FIRST).read_bytes()[FIRST_BATCH + len(batch(1)) :].rstrip(b"\0")
    flip(tmp_path / FIRST, FIRST_BATCH + len(batch(1)))
    recovered(tmp_path)
    kept = tmp_path / f"damaged-{FIRST[:-4]}-at-{FIRST_BATCH + len(batch(1))}"
    assert kept.read_bytes()[1:] == cut[1:]
    assert len(list(tmp_path.glob("damaged-*"))) == 3
    log = Log(tmp_path)
    log.store(batches(2, 5))
    log.close()
    flip(tmp_path / FIRST, FIRST_BATCH)
    recovered(tmp_path)
    assert len(list(tmp_path.glob("damaged-*"))) == 3


def test_damage_that_the_checkpoint_covers_costs_nothing(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 150))
    listed = segments.listed(REAL_DISK, tmp_path)
    checkpoint.write(tmp_path, listed[1][0] + 3, 1, {}, [batch(1)], disk=REAL_DISK)
    flip(listed[0][1], FIRST_BATCH + 5)
    found = recovered(tmp_path)
    assert indexes(found) == list(range(listed[1][0] + 4, 151))
    assert (found.floor, found.blank) == (None, False)
    assert not listed[0][1].exists()


def test_a_hole_that_the_checkpoint_covers_costs_nothing(tmp_path: Path) -> None:
    # Released segments may vanish in any order when the power goes.
    written(tmp_path, batches(1, 200))
    listed = segments.listed(REAL_DISK, tmp_path)
    checkpoint.write(tmp_path, listed[2][0] + 3, 1, {}, [batch(1)], disk=REAL_DISK)
    listed[1][1].unlink()
    found = recovered(tmp_path)
    assert indexes(found) == list(range(listed[2][0] + 4, 201))
    assert found.floor is None


def test_a_damaged_checkpoint_falls_back_to_the_one_before_it(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 20))
    checkpoint.write(tmp_path, 5, 1, {"voters": ["a"]}, batches(1, 2), disk=REAL_DISK)
    newer = checkpoint.write(tmp_path, 9, 1, {"voters": ["b"]}, batches(1, 2), disk=REAL_DISK)
    flip(newer.path, newer.nbytes - 30)
    found = recovered(tmp_path)
    assert found.checkpoint is not None
    assert (found.checkpoint.index, found.checkpoint.members) == (5, {"voters": ["a"]})
    assert indexes(found) == list(range(6, 21))
    assert not newer.path.exists()


def test_a_damaged_checkpoint_that_was_the_only_one_leaves_a_floor(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.journal.save_hard_state(1, "a")
    log.journal.floor_passed()
    log.store(batches(1, 150))
    assert log.checkpoint(100, 1, batches(1, 2)) == ""
    log.close()
    assert segments.listed(REAL_DISK, tmp_path)[0][0] > 1
    flip(checkpoint.listed(REAL_DISK, tmp_path)[0], 90)
    found = recovered(tmp_path)
    assert (found.checkpoint, indexes(found), found.floor) == (None, [], (1, 150))


def test_a_checkpoint_beyond_the_log_or_of_another_history_replaces_it(tmp_path: Path) -> None:
    # Killed between receiving a checkpoint and resetting the log.
    for index, epoch in ((40, 1), (10, 2)):
        folder = tmp_path / str(index)
        written(folder, batches(1, 30), epoch=2)
        checkpoint.write(folder, index, epoch, {}, [batch(1)], disk=REAL_DISK)
        found = recovered(folder)
        assert (indexes(found), found.floor, found.blank) == ([], None, False)
        assert [first for first, _ in segments.listed(REAL_DISK, folder)] == [index + 1]
        assert recovered(folder).entries == []


@pytest.mark.parametrize("left", [0, 1, 2])
def test_an_interrupted_reset_is_finished_whatever_is_left_of_the_old_log(tmp_path: Path, left: int) -> None:
    written(tmp_path, batches(1, 200))
    checkpoint.write(tmp_path, 300, 1, {}, [batch(1)], disk=REAL_DISK)
    replace_durably(REAL_DISK, tmp_path / recovery.RESET, seal_json({"epoch": 1, "index": 300}))
    for _, path in segments.listed(REAL_DISK, tmp_path)[: len(segments.listed(REAL_DISK, tmp_path)) - left]:
        path.unlink()
    found = recovered(tmp_path)
    assert (indexes(found), found.floor, found.blank) == ([], None, False)
    assert [first for first, _ in segments.listed(REAL_DISK, tmp_path)] == [301]
    assert not (tmp_path / recovery.RESET).exists()


def test_a_log_without_its_epoch_and_vote_is_refused(tmp_path: Path) -> None:
    # It could vote twice in one epoch (Raft §5.2).
    written(tmp_path, batches(1, 3))
    (tmp_path / "hard-state").unlink()
    with pytest.raises(DamagedStore, match=r"hard-state \(epoch and vote\) is missing; move .* away"):
        recovered(tmp_path)


def test_an_altered_epoch_and_vote_is_had_again_from_its_copy_and_refused_when_both_are_altered(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 3), epoch=4)
    path = tmp_path / "hard-state"
    whole = path.read_bytes()
    flip(path, 3)
    found = recovered(tmp_path)
    assert (found.epoch, found.voted_for) == (4, "a")
    assert found.notes == [f"{path}: one of the two copies of epoch and vote was torn or damaged and is written anew"]
    assert path.read_bytes() == whole
    flip(path, 3)
    flip(path, hard_state.COPY_BYTES + 3)
    with pytest.raises(DamagedStore, match=f"{path} is damaged: .*; move {tmp_path} away"):
        recovered(tmp_path)


def test_a_first_start_makes_room_for_epoch_and_vote_and_one_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "hard-state"
    assert recovered(tmp_path).blank
    assert path.stat().st_blocks * 512 >= 2 * hard_state.COPY_BYTES, "written, not sparse"
    path.unlink()
    found = recovered(tmp_path)
    assert (found.epoch, found.voted_for, found.notes) == (0, None, [])
    assert path.exists()


def test_an_epoch_older_than_the_log_is_refused(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 3, epoch=5), epoch=4)
    with pytest.raises(DamagedStore, match="says epoch 4, the log has batches of epoch 5"):
        recovered(tmp_path)


def test_a_damaged_note_of_the_floor_makes_the_store_blank(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 9))
    flip(tmp_path / FIRST, FIRST_BATCH)
    recovered(tmp_path)
    flip(tmp_path / "floor", 3)
    assert recovered(tmp_path).blank
    assert recovered(tmp_path).blank


def test_a_segment_of_a_newer_version_is_refused_untouched(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 3))
    path = tmp_path / FIRST
    head = segments._HEADER.pack(b"USG1", 3, 1, 0)
    with path.open("r+b") as file:
        file.write(head + segments._CRC.pack(google_crc32c.value(head)))
    before = path.read_bytes()
    with pytest.raises(NewerFormat, match="has format 3, newer than 2"):
        recovered(tmp_path)
    assert path.read_bytes() == before


def test_what_was_unfinished_is_removed(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 3))
    (tmp_path / "prepared.tmp").write_bytes(bytes(100))
    (tmp_path / "hard-state.tmp").write_bytes(b"{")
    recovered(tmp_path)
    assert list(tmp_path.glob("*.tmp")) == []


# ---- a log that no other broker has


def with_body_files(folder: Path) -> list[Path]:
    """A log of 150 batches, of which a checkpoint covers 100. The first segments are gone; returns the ones that are not part of
    the log, but have bodies."""
    log = Log(folder, alone=True)
    log.journal.save_hard_state(1, "a")
    log.journal.floor_passed()
    log.store(batches(1, 150))
    alive = log.journal.full_segments(100)[1:]
    assert log.checkpoint(100, 1, batches(1, 2), alive=alive) == ""
    found = [body.path for body in log.journal.body_files()]
    log.close()
    assert len(found) == len(alive) > 0
    return found


def test_a_log_that_no_other_broker_has_is_refused_and_left_as_it_is_if_its_only_checkpoint_is_damaged(tmp_path: Path) -> None:
    with_body_files(tmp_path)
    damaged = checkpoint.listed(REAL_DISK, tmp_path)[0]
    nbytes = damaged.stat().st_size
    flip(damaged, nbytes - 30)
    refused(tmp_path, f"{damaged} is damaged: .*; the log's batches 1 to [0-9]+ are missing")
    flip(damaged, nbytes - 30)
    assert indexes(recovered(tmp_path, alone=True)) == list(range(101, 151))
    flip(damaged, nbytes - 30)
    for _, path in segments.listed(REAL_DISK, tmp_path):
        path.unlink()
    refused(tmp_path, f"{damaged} is damaged: .*; the log's segments are missing")


def test_a_damaged_checkpoint_does_no_harm_if_the_log_is_whole_without_it(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 20))
    for index in (5, 9):
        newest = checkpoint.write(tmp_path, index, 1, {}, batches(1, 2), disk=REAL_DISK)
    flip(newest.path, newest.nbytes - 30)
    found = recovered(tmp_path, alone=True)
    assert found.checkpoint is not None
    assert (found.checkpoint.index, indexes(found)) == (5, list(range(6, 21)))
    assert [path.name for path in tmp_path.glob("damaged-*")] == [f"damaged-{newest.path.name}"]
    flip(found.checkpoint.path, 90)
    found = recovered(tmp_path, alone=True)
    assert (found.checkpoint, indexes(found)) == (None, list(range(1, 21)))
    assert "is moved aside, and the log is whole without it" in found.notes[0]


@pytest.mark.parametrize("used", [None, 0, FIRST_BATCH + 100], ids=["missing", "empty", "short"])
def test_a_file_that_no_other_broker_has_costs_only_its_own_bodies(tmp_path: Path, used: int | None) -> None:
    files = with_body_files(tmp_path)
    if used is None:
        files[0].unlink()
    else:
        os.truncate(files[0], used)
    before = {path.name for path in tmp_path.iterdir()}
    for _ in range(2):
        found = recovered(tmp_path, alone=True)
        assert found.checkpoint is not None
        assert (found.checkpoint.index, indexes(found)) == (100, list(range(101, 151)))
        assert len(found.bodies) == len(files)
        assert "no other broker has it, so its messages cannot be delivered, and stay on their queues" in found.notes[0]
        assert before - {path.name for path in tmp_path.iterdir()} <= {files[0].name}


@pytest.mark.parametrize(
    "added, damaged, alone",
    [([], False, True), (["ab"], False, False), (["ab", "a"], False, True), ([], True, True), (["ab"], True, False)],
)
def test_the_last_membership_in_the_log_decides_whether_another_broker_has_it(
    tmp_path: Path, added: list[str], damaged: bool, alone: bool
) -> None:
    """The checkpoint names the broker a only. It may be the very file that is damaged."""
    files = with_body_files(tmp_path)
    log = Log(tmp_path, alone=True)
    for index, voters in enumerate(added, 151):
        builder = BatchBuilder()
        builder.members({"voters": [*voters]})
        log.store([builder.seal(1, index, 0)])
    log.close()
    (known,) = checkpoint.listed(REAL_DISK, tmp_path)
    if damaged:
        flip(known, known.stat().st_size - 30)
    else:
        files[0].unlink()
    if alone and damaged:
        with pytest.raises(DamagedStore, match="no other broker has this log, so nothing of it was changed"):
            recovered(tmp_path, alone=lambda members: members == {"voters": ["a"]})
    else:
        found = recovered(tmp_path, alone=lambda members: members == {"voters": ["a"]})
        assert (found.checkpoint is not None) == alone
    assert known.exists() == alone


def test_a_note_of_damage_in_a_log_that_no_other_broker_has_costs_nothing(tmp_path: Path) -> None:
    """Breaks when the store that an earlier release has given up for one damaged body is emptied."""
    with_body_files(tmp_path)
    for note in (seal_json({"epoch": 1, "index": 150, "file": "", "why": "a body is damaged"}), b"{"):
        (tmp_path / recovery.DAMAGED).write_bytes(note)
        found = recovered(tmp_path, alone=True)
        assert (found.floor, found.blank, indexes(found)) == (None, False, list(range(101, 151)))
        assert found.notes == [f"the file damaged in {tmp_path} is removed: no other broker has this log"]
        assert recovered(tmp_path, alone=True).notes == []


def test_a_file_that_may_be_the_missing_one_is_not_deleted(tmp_path: Path) -> None:
    files = with_body_files(tmp_path)
    with files[0].open("r+b") as file:
        file.write(bytes(FIRST_BATCH))
    refused(tmp_path, f"which is missing, unless it is {files[0].name}, whose header does not give its number")


@pytest.mark.parametrize("damage", ["flip", "lose", "header"])
def test_no_segment_is_deleted_because_of_damage_before_it_if_no_other_broker_has_it(tmp_path: Path, damage: str) -> None:
    written(tmp_path, batches(1, 200))
    _, (index, victim), *later = segments.listed(REAL_DISK, tmp_path)
    if damage == "flip":
        flip(victim, FIRST_BATCH + 5)
        why = f"{victim} is damaged at byte {FIRST_BATCH}, in batch {index}"
    elif damage == "lose":
        victim.unlink()
        why = f"the log's batches {index} to {later[0][0] - 1} are missing"
    else:
        with victim.open("r+b") as file:
            file.write(bytes(FIRST_BATCH))
        why = rf"{victim} \([0-9]+ bytes\) has no readable header"
    refused(tmp_path, why)
    if damage != "header":
        with pytest.raises(DamagedStore, match=f"or move only {later[0][1].name} and the later segments away"):
            recovered(tmp_path, alone=True)
        for _, path in later:
            path.unlink()
        found = recovered(tmp_path, alone=True)
        assert indexes(found) == list(range(1, index))
        assert all("fetches" not in note for note in found.notes)


def test_damage_at_the_end_costs_the_end_of_a_log_that_no_other_broker_has_and_never_all_of_it(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 5))
    flip(tmp_path / FIRST, FIRST_BATCH + 5)
    refused(tmp_path, f"{tmp_path / FIRST} is damaged at byte {FIRST_BATCH}, in batch 1")
    flip(tmp_path / FIRST, FIRST_BATCH + 5)
    flip(tmp_path / FIRST, FIRST_BATCH + 3 * len(batch(1)))
    found = recovered(tmp_path, alone=True)
    assert indexes(found) == [1, 2, 3]
    assert (
        "in batch 4; the log from there on, up to at least epoch 1, index 5, is removed, and no other broker has it"
        in (found.notes[0])
    )


def test_an_empty_newest_segment_of_a_log_that_no_other_broker_has_can_be_moved_away_alone(tmp_path: Path) -> None:
    """As a check of the file system may leave it. Breaks when the only way out is to give up all of the log."""
    written(tmp_path, batches(1, 60))
    first, path = segments.listed(REAL_DISK, tmp_path)[-1]
    path.write_bytes(b"")
    refused(tmp_path, rf"{path} \(0 bytes\) has no readable header")
    with pytest.raises(DamagedStore, match=f"or move only {path.name} and the later segments away, and lose their batches"):
        recovered(tmp_path, alone=True)
    path.unlink()
    assert indexes(recovered(tmp_path, alone=True)) == list(range(1, first))


def test_a_log_that_no_other_broker_has_and_that_lost_its_newest_segment_is_refused(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 60))
    newest = segments.listed(REAL_DISK, tmp_path)[-1]
    checkpoint.write(tmp_path, newest[0] + 1, 1, {}, [batch(1)], disk=REAL_DISK)
    newest[1].unlink()
    refused(tmp_path, f"the log does not continue after its checkpoint of batch {newest[0] + 1}")


def test_notes_of_a_start_that_are_damaged_delete_nothing_that_no_other_broker_has(tmp_path: Path) -> None:
    written(tmp_path, batches(1, 9))
    (tmp_path / recovery.FLOOR).write_bytes(b"{")
    assert indexes(recovered(tmp_path, alone=True)) == list(range(1, 10))
    assert not (tmp_path / recovery.FLOOR).exists()
    (tmp_path / recovery.RESET).write_bytes(b"{")
    refused(tmp_path, f"{tmp_path / recovery.RESET} is damaged")


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "append", "truncate"]), st.integers(1, 12)), min_size=1, max_size=8
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS, calls=st.integers(1, 60), alone=st.booleans(), data=st.data())
def test_a_power_cut_at_any_call_loses_nothing_that_was_durable_and_is_never_taken_for_damage(
    in_memory: Path, steps: list[Step], calls: int, alone: bool, data: st.DataObject
) -> None:
    """Unsynced sectors survive in any combination. A floor here would stop a cluster whose brokers lost power together."""
    folder = in_memory / "log"
    shutil.rmtree(folder, ignore_errors=True)
    log = Log(folder)
    log.journal.save_hard_state(100, "a")
    log.close()
    disk = PowerCutDisk(2 + calls)  # two calls are made by the start
    log = Log(folder, disk=disk)
    durable: list[bytes] = []
    attempted: list[bytes] = []
    truncating = False
    for epoch, (step, n) in enumerate(steps, 1):
        if step == "append":
            more = batches(len(attempted) + 1, len(attempted) + n, epoch, nbytes=300 * n)
            attempted = attempted + more
            log.journal.append(list(more), log.reactor.on_durable)
            log.reactor.turn()
        else:
            truncating = True
            durable = durable[: max(0, len(attempted) - n)]
            log.journal.truncate(max(1, len(attempted) - n + 1), lambda: None)
            log.reactor.turn()
        if log.reactor.errors:
            break
        if step == "truncate":
            attempted, truncating = list(durable), False
        else:
            durable = list(attempted)
    if not disk.dead:
        disk._calls_left = 0  # the power goes now, before the journal is closed in order
    log.close()
    disk.lose(folder, lambda: data.draw(st.booleans()))

    log = Log(folder, alone=alone)
    found = log.all()
    assert found[: len(durable)] == durable, "what was reported durable is there"
    assert found == attempted[: len(found)], "and nothing but what was written"
    assert log.found.floor is None
    assert not truncating or len(found) >= len(durable)
    following = batches(len(found) + 1, len(found) + 2, 99)
    log.store(following)
    log.close()
    log = Log(folder)
    assert log.all() == found + following, "no remains of the old log come back behind the new one"
    assert (log.found.floor, log.found.torn_bytes) == (None, 0)
    log.close()
