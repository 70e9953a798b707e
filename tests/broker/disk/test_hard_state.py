"""A vote that was said is remembered: on a full disk, after whatever end of the process or the power, and with one copy rotten.

Everything runs on the simulated disk, which loses, tears and drops what a real one may.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from broker.disk import hard_state
from broker.disk.durable import DamagedStore, StorageError
from broker.disk.hard_state import COPY_BYTES, NAME, HardState
from tests.simulation.disk import PowerOff, SimulatedDisk

FOLDER = Path("/log")
FILE = str(FOLDER / NAME)
BOTH = 2 * COPY_BYTES


def no_wait(seconds: float) -> None:
    """Time does not matter here."""


def made(*states: HardState, seed: int = 0) -> SimulatedDisk:
    """A disk with a log's file in which these have been saved."""
    disk = SimulatedDisk(Random(seed))
    disk.make_folder(FOLDER)
    disk.sync_folder(FOLDER.parent)
    hard_state.make(disk, FOLDER)
    for state in states:
        hard_state.save(disk, FOLDER, state)
    return disk


def after_crash(disk: SimulatedDisk) -> HardState | None:
    """What the next start finds."""
    disk.crash()
    disk.start(no_wait)
    return hard_state.recover(disk, FOLDER, [])


def test_where_there_is_no_file_nothing_was_saved() -> None:
    disk = SimulatedDisk(Random(0))
    disk.make_folder(FOLDER)
    notes: list[str] = []
    assert (hard_state.read(disk, FOLDER), hard_state.recover(disk, FOLDER, notes), notes) == (None, None, [])


def test_a_new_log_is_in_no_epoch_and_has_voted_for_nobody() -> None:
    disk = made()
    assert hard_state.read(disk, FOLDER) == HardState(0, None)
    assert after_crash(disk) == HardState(0, None)


def test_many_votes_one_after_another_need_no_room() -> None:
    disk = made()
    disk.capacity = disk.used
    for epoch in range(1, 200):
        for state in (HardState(epoch, None), HardState(epoch, f"broker{epoch}.example.com:5672")):
            hard_state.save(disk, FOLDER, state)
            assert after_crash(disk) == state


def test_what_a_witness_attests_is_saved_with_epoch_and_vote_and_needs_no_room() -> None:
    disk = made()
    disk.capacity = disk.used
    before = disk.content(FILE)
    for index in range(1, 100):
        state = HardState(3, "a:5672", {"epoch": 3, "index": index, "members": {"voters": ["a" * 3000]}})
        hard_state.save(disk, FOLDER, state)
        assert after_crash(disk) == state
    older, newer = (HardState(3, "a:5672", {"epoch": epoch, "index": index}) for epoch, index in ((2, 9), (3, 1)))
    hard_state.save(disk, FOLDER, older)
    both = disk.content(FILE)[:COPY_BYTES]
    hard_state.save(disk, FOLDER, newer)
    fd = disk.open(Path(FILE), 0)
    disk.write(fd, [both], 0)
    disk.sync(fd)
    assert hard_state.read(disk, FOLDER) == newer
    hard_state.save(disk, FOLDER, HardState(0, None))
    assert disk.content(FILE) == before, "of others nothing is written that an older release does not read"


def test_a_rotten_copy_is_noticed_wherever_it_is_and_had_again_from_the_other_one() -> None:
    state = HardState(7, "b:5672")
    disk = made(HardState(6, "a:5672"), state)
    whole = disk.content(FILE)
    for at in range(BOTH):
        disk.flip(FILE, at, at % 8)
        assert hard_state.read(disk, FOLDER) == state
        notes: list[str] = []
        assert hard_state.recover(disk, FOLDER, notes) == state
        assert notes == [f"{FILE}: one of the two copies of epoch and vote was torn or damaged and is written anew"]
        assert disk.content(FILE) == whole
    assert after_crash(disk) == state


@pytest.mark.parametrize("at", [0, COPY_BYTES])
def test_a_copy_that_cannot_be_read_is_had_again_from_the_other_one(at: int) -> None:
    disk = made(HardState(7, "b:5672"))
    disk.make_unreadable(FILE, at)
    notes: list[str] = []
    assert hard_state.recover(disk, FOLDER, notes) == HardState(7, "b:5672")
    assert len(notes) == 1
    assert hard_state.recover(disk, FOLDER, notes) == HardState(7, "b:5672")
    assert len(notes) == 1, "it was written anew"


def test_when_both_copies_are_rotten_nobody_can_tell_any_more() -> None:
    # It could vote twice in one epoch (Raft §5.2).
    for first, second in ((0, COPY_BYTES), (20, COPY_BYTES + 5), (COPY_BYTES - 1, BOTH - 1)):
        disk = made(HardState(6, "a:5672"), HardState(7, "b:5672"))
        disk.flip(FILE, first, 0)
        disk.flip(FILE, second, 3)
        with pytest.raises(DamagedStore, match=rf"{FILE} is damaged: .*; move {FOLDER} away"):
            hard_state.read(disk, FOLDER)
        with pytest.raises(DamagedStore, match=f"{FILE} is damaged"):
            hard_state.recover(disk, FOLDER, [])


@pytest.mark.parametrize(
    "newer",
    [HardState(6, "a:5672"), HardState(7, None), HardState(7, "b:5672"), HardState(6, None, {"epoch": 6, "index": 1})],
)
def test_of_two_whole_copies_the_newer_one_counts_wherever_it_stands(newer: HardState) -> None:
    older = HardState(6, None)
    for first, second in ((older, newer), (newer, older)):
        disk = made(first)
        both = disk.content(FILE)[:COPY_BYTES] + made(second).content(FILE)[:COPY_BYTES]
        fd = disk.open(Path(FILE), 0)
        disk.write(fd, [both], 0)
        disk.sync(fd)
        assert hard_state.read(disk, FOLDER) == newer
        notes: list[str] = []
        assert hard_state.recover(disk, FOLDER, notes) == newer
        assert notes == []
        disk.flip(FILE, 3, 1)
        assert hard_state.read(disk, FOLDER) == newer, "the older one is gone"


class Lives:
    """One log through processes and power cuts that end at any moment, and what its file may say after each."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = made(seed=seed)
        self.disk.call_s = self.disk.sync_s = 0.001
        self.said = self.attempted = HardState(0, None)
        self.rotten = False
        self.epochs: set[int] = set()
        self.calls_left = 0

    def wait(self, seconds: float) -> None:
        """The disk is about to do something: it may be the last thing."""
        self.calls_left -= 1
        if self.calls_left == 0:
            self.rng.choice((self.disk.crash, self.disk.kill))()

    def live(self) -> None:
        """Start, say, vote, and end somewhere."""
        self.calls_left = self.rng.randrange(1, 30)
        self.disk.short_writes = self.rng.choice((0.0, 0.5))
        self.disk.bad_syncs = 0
        self.disk.start(self.wait)
        try:
            self.begin()
            while True:
                if self.rng.random() < 0.05:
                    self.disk.bad_syncs = 1
                epoch, voted_for, _ = self.said
                self.attempted = (
                    HardState(epoch, "a") if voted_for is None else HardState(epoch + 1, self.rng.choice((None, "b")))
                )
                hard_state.save(self.disk, FOLDER, self.attempted)
                self.said = self.attempted
        except PowerOff:
            pass
        except StorageError:
            self.disk.kill()

    def begin(self) -> None:
        """A start finds what was said last, or what was just being saved."""
        found = hard_state.recover(self.disk, FOLDER, [])
        assert found in (self.said, self.attempted)
        assert found is not None
        self.epochs.add(found.epoch)
        self.said = self.attempted = found
        self.rotten = False

    def rest(self) -> None:
        """The power is gone and comes back, and nothing goes wrong from there on."""
        self.disk.crash()
        self.disk.bad_syncs = 0
        self.disk.start(no_wait)


@pytest.mark.parametrize("rots", [False, True])
def test_what_was_said_is_remembered_however_often_and_wherever_the_process_or_the_power_ends(rots: bool) -> None:
    """With `rots`, one of the copies, be they alike or not, decays between two lives, and no other one before it is repaired."""
    for seed in range(150):
        lives = Lives(seed)
        for _ in range(12):
            lives.live()
            if rots and not lives.rotten:
                lives.rest()
                lives.disk.flip(FILE, lives.rng.randrange(BOTH), lives.rng.randrange(8))
                lives.rotten = True
        lives.rest()
        lives.begin()
        assert len(lives.epochs) > 1, "nothing was said"
