"""What stays on the disk is bounded by what is alive, whatever the load, and nothing that is alive goes with the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from broker.disk.files import RealDisk, Space
from ha.log.retention import MANY_SMALL, ROOM_S, SPARE
from ha.snapshots import _Sending
from tests.ha.log_on_disk import FILE, LogOnDisk

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
    while not ledger.storage_text:
        log.put(*(body(at) for at in range(20)))
        assert log.real_bytes < 40 * FILE
    found = re.search(
        r"only \d+ KiB are free where the cluster log lies, and (\d+) KiB .*; make room on that disk, or consume",
        ledger.storage_text,
    )
    assert found is not None
    assert log.owner.errors == [(ledger.storage_text, False)]
    spare = int(found[1]) * 1024 // SPARE
    assert ledger.takes(spare - 1024), "a little of what producers have credit for"
    assert not ledger.takes(spare), "and no more"
    while ledger.storage_text:
        assert log.alive, "all was consumed, and no room came of it"
        log.take(*sorted(log.alive)[:200])
        assert log.real_bytes < 40 * FILE
    assert log.owner.writable == 1
    log.rest()
    log.check()
    log.stop()


def test_a_disk_that_takes_much_between_two_looks_is_not_filled_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the file system is only asked by time: a fast disk lost 30 MB of its reserve before the first question."""
    monkeypatch.setattr("ha.log.retention.LOOK_S", 3600.0)
    log = LogOnDisk(tmp_path, disk=SmallDisk(tmp_path, 40 * FILE))
    while not log.ledger.storage_text:
        log.put(*(body(at) for at in range(20)))
        assert log.real_bytes < 40 * FILE
    found = re.search(r"only (\d+) KiB are free where the cluster log lies, and (\d+) KiB", log.ledger.storage_text)
    assert found is not None
    free, reserve = int(found[1]), int(found[2])
    assert free >= reserve * (1 - 1 / SPARE) - 21, "what came since the last question, and one batch more"
    log.stop()


def test_room_that_comes_from_outside_lets_producers_go_on_though_nothing_is_written(tmp_path: Path) -> None:
    """Breaks when the file system is asked only after a batch: all is consumed, producers wait, and so no batch comes."""
    disk = SmallDisk(tmp_path, 40 * FILE)
    log = LogOnDisk(tmp_path, disk=disk)
    while not log.ledger.storage_text:
        log.put(*(body(at) for at in range(20)))
    log.rest()
    assert log.ledger.storage_text
    assert log.owner.writable == 0
    disk.nbytes *= 4
    log.clock.advance(ROOM_S)
    assert log.ledger.storage_text == ""
    assert log.owner.writable == 1
    log.stop()
    assert log.clock.getDelayedCalls() == []
