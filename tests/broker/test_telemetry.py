"""Telemetry must appear whole, stay bounded, and never get in the broker's way."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker import telemetry
from broker.telemetry import TelemetryWriter
from telemetry.lines import LagSample, queue_text, rate_text

PRIMARY = "127.0.0.1:5672"
BACKUP = "127.0.0.1:5673"
RATES = [rate_text(1.0, 2.0)]
ROW = LagSample(BACKUP, "orders", "all", 9, 9, None, 8, None, 3, 3072, 12.5, 0.0, "ready", True, True, 1 << 30)


class Clock:
    """Wall-clock seconds that move when told."""

    def __init__(self, now_s: float = 1_767_600_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def now(work: Callable[[], None]) -> None:
    """Runs the writer's work at once, in this thread."""
    work()


def writer_in(folder: Path, **settings: Any) -> TelemetryWriter:
    """A writer without a thread and with a still clock."""
    defaults: dict[str, Any] = {"cluster": "c", "sender": PRIMARY, "clock": Clock(), "submit": now}
    return TelemetryWriter(folder, **(defaults | settings))


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """Every line of every whole file, oldest file first."""
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_nothing_is_seen_of_a_file_until_it_is_whole(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    assert lines_in(tmp_path) == []
    assert [path.name[0] for path in tmp_path.iterdir()] == ["."], "what is being written must be hidden from readers"
    writer.flush()
    assert [line["kind"] for line in lines_in(tmp_path)] == ["sample"]
    assert not list(tmp_path.glob(".*")), "the hidden file became the whole one"


def test_a_file_is_rolled_when_it_is_big_and_when_it_is_old(tmp_path: Path) -> None:
    clock = Clock()
    writer = writer_in(tmp_path, clock=clock, max_bytes_per_file=1200, max_age_s=30)
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW] * 3)
    assert len(list(tmp_path.glob("*.jsonl"))) == 1, "over 1200 bytes"
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    clock.now_s += 29
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    clock.now_s += 1
    writer.event("discovery")
    assert len(list(tmp_path.glob("*.jsonl"))) == 2, "30 seconds old"


def test_the_folder_is_bounded_and_what_was_deleted_is_reported(tmp_path: Path) -> None:
    clock = Clock()
    writer = writer_in(tmp_path, clock=clock, max_files=2)
    other = tmp_path / "127.0.0.1_5673.000000000000001.jsonl"
    other.write_text("another broker's\n")
    for _ in range(4):
        clock.now_s += 1
        writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
        writer.flush()
    assert len(list(tmp_path.glob("127.0.0.1_5672.*.jsonl"))) == 2
    assert other.exists(), "only a sender's own files are its to delete"
    other.unlink()
    drops = [line for line in lines_in(tmp_path) if line["kind"] == "event"]
    assert [(line["type"], line["detail"]) for line in drops] == [("drop", "oldest file deleted")]
    assert writer.figures.deleted == 2, "the sample of each of the two oldest files"
    assert writer.figures.dropped == 0


def test_all_files_together_hold_no_more_than_they_may_those_of_the_last_process_among_them(tmp_path: Path) -> None:
    """Breaks when a restarted broker begins to count anew: its folder would grow with each restart."""
    clock = Clock()
    most = 20_000
    for _ in range(4):
        writer = writer_in(tmp_path, clock=clock, max_bytes=most)
        for _ in range(30):
            clock.now_s += 1
            writer.samples(epoch=1, primary=PRIMARY, rows=[ROW] * 3)
            assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= most
            assert writer.figures.bytes_on_disk <= most
        writer.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > most / 2, "and what may be kept is kept"
    kept = [line for line in lines_in(tmp_path) if line["kind"] == "sample"]
    assert kept[-1]["seq"] == max(line["seq"] for line in kept), "it is the oldest that goes"
    assert writer.figures.deleted > 0


def test_the_names_of_files_rise_though_the_clock_was_put_back(tmp_path: Path) -> None:
    """Or the newest file would be taken for the oldest, and deleted first."""
    clock = Clock()
    writer = writer_in(tmp_path, clock=clock)
    for _ in range(3):
        writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
        writer.flush()
        clock.now_s -= 100
    assert len(list(tmp_path.glob("*.jsonl"))) == 3
    numbers = [line["seq"] for line in lines_in(tmp_path)]
    assert numbers == sorted(numbers)


def test_a_folder_that_somebody_removes_costs_what_was_in_it_and_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "lag"
    writer = writer_in(folder)
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW] * 3)
    shutil.rmtree(folder)
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    writer.flush()
    assert not folder.exists()
    assert writer.figures.dropped == 4
    assert "4 lines of telemetry were dropped so far (not written: No such file" in writer.news_of_loss()
    assert writer.news_of_loss() == "", "once a minute is enough"
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    writer.flush()
    found = lines_in(folder)
    assert [line["kind"] for line in found] == ["sample", "event"]
    assert (found[1]["type"], found[1]["lost_records"]) == ("drop", 4)


def test_a_file_of_the_folder_that_somebody_else_deletes_is_none_of_our_trouble(tmp_path: Path) -> None:
    clock = Clock()
    writer = writer_in(tmp_path, clock=clock, max_files=1)
    for _ in range(3):
        writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
        writer.flush()
        for path in tmp_path.glob("*.jsonl"):
            path.unlink()
        clock.now_s += 1
    assert writer.figures.dropped == 0


def test_who_reads_while_files_are_rolled_and_deleted_sees_whole_files_only(tmp_path: Path) -> None:
    """With the writer's own thread. Breaks when a file appears before its last line is in it."""
    writer = TelemetryWriter(
        tmp_path, cluster="c", sender=PRIMARY, max_bytes_per_file=20_000, max_bytes=400_000, max_pending_bytes=1 << 30
    )
    sizes: dict[Path, int] = {}
    numbers: set[int] = set()
    deadline = time.monotonic() + 30
    while len(sizes) < 30 and time.monotonic() < deadline:
        writer.samples(epoch=1, primary=PRIMARY, rows=[ROW] * 10)
        for path in tmp_path.glob("*.jsonl"):
            with contextlib.suppress(FileNotFoundError):
                data = path.read_bytes()
                assert data.endswith(b"\n")
                assert sizes.setdefault(path, len(data)) == len(data), "a file that was seen does not change"
                numbers |= {json.loads(line)["seq"] for line in data.splitlines()}
    writer.close()
    assert len(sizes) >= 30
    assert writer.figures.deleted > 0, "and some were deleted meanwhile"
    assert writer.figures.dropped == 0
    assert len(numbers) > 200


def test_a_disk_that_hangs_holds_up_neither_the_broker_nor_its_end(tmp_path: Path) -> None:
    """A named pipe that nobody reads where the file should be: to open it takes for ever."""
    writer = TelemetryWriter(tmp_path, cluster="c", sender=PRIMARY, clock=Clock(), max_pending_bytes=10_000)
    os.mkfifo(tmp_path / ".127.0.0.1_5672.001767600000000.part")
    for _ in range(100):
        writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    assert 0 < writer.figures.dropped < 100


def test_a_full_buffer_drops_and_counts_instead_of_growing_or_waiting(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []
    writer = writer_in(tmp_path, submit=waiting.append, max_pending_bytes=1500)
    for _ in range(10):
        writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    assert len(waiting) == 1, "one piece of work at a time"
    waiting.pop()()
    writer.flush()
    waiting.pop()()
    found = lines_in(tmp_path)
    kept = [line for line in found if line["kind"] == "sample"]
    report = [line for line in found if line["kind"] == "event"]
    assert 0 < len(kept) < 10
    assert [(line["type"], line["detail"], line["lost_records"]) for line in report] == [("drop", "buffer full", 10 - len(kept))]


def test_nothing_that_it_is_given_makes_it_raise(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW._replace(lag_ms=float("nan")), ROW, ROW._replace(commit_index="x")])  # type: ignore[arg-type]
    writer.samples(epoch="one", primary=PRIMARY, rows=[ROW])  # type: ignore[arg-type]
    broken = ROW._replace(queue=None, sync_ms=float("inf"))
    writer.queue_samples(epoch=1, primary=PRIMARY, whole=broken, queues=[queue_text("q", "all")], waiting={}, rates=RATES)
    writer.event("no such type")
    writer.event("role", colour="blue")
    assert writer.figures.dropped == 6
    writer.flush()
    found = lines_in(tmp_path)
    assert sum(line["kind"] == "sample" for line in found) == 1
    assert sum(line["lost_records"] for line in found if line["kind"] == "event") == 6


def test_a_disk_that_refuses_costs_lines_and_not_the_broker(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    writer = writer_in(blocked)
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW, ROW])
    assert writer.figures.dropped == 2
    blocked.unlink()
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    writer.flush()
    found = lines_in(blocked)
    assert [line["kind"] for line in found] == ["sample", "event"], "it went on as soon as it could, and said what is missing"
    assert found[1]["lost_records"] == 2
    assert os.strerror(errno.EEXIST) in found[1]["detail"]


def test_what_a_killed_process_left_is_cut_after_its_last_whole_line_and_kept(tmp_path: Path) -> None:
    first = writer_in(tmp_path)
    first.samples(epoch=1, primary=PRIMARY, rows=[ROW, ROW])
    (part,) = tmp_path.glob(".*.part")
    with part.open("ab") as file:
        file.write(b'{"v":1,"kind":"sam')
    second = writer_in(tmp_path, clock=Clock(1_767_600_060.0))
    second.event("discovery")
    assert [line["kind"] for line in lines_in(tmp_path)] == ["sample", "sample"]
    second.close()
    assert [line["kind"] for line in lines_in(tmp_path)] == ["sample", "sample", "event"]


def test_a_sequence_number_is_never_used_twice_by_a_sender_even_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    seen: list[int] = []
    for _ in range(3):
        writer = writer_in(tmp_path, clock=clock)
        writer.roster(epoch=1, primary=PRIMARY, backups=[BACKUP], queues=[])
        writer.samples(epoch=1, primary=PRIMARY, rows=[ROW] * 50)
        writer.close()
        clock.now_s += 1
    seen = [line["seq"] for line in lines_in(tmp_path)]
    assert len(seen) == len(set(seen))


def test_numbers_and_names_rise_over_restarts_also_if_the_clock_is_behind_when_a_process_begins(tmp_path: Path) -> None:
    """The first process began with a clock that was an hour ahead. A killed one leaves a hidden file."""
    clock = Clock()
    for ahead_s in (3600, 0, -3600, 5):
        clock.now_s += ahead_s
        writer = writer_in(tmp_path, clock=clock)
        for _ in range(3):
            writer.samples(epoch=1, primary=PRIMARY, rows=[ROW] * 50)
            writer.flush()
        writer.event("discovery")
    writer.close()
    firsts = {int(path.name.split(".")[-2]): json.loads(path.read_text().splitlines()[0]) for path in tmp_path.glob("*.jsonl")}
    assert all(stamp * 1000 >= line["seq"] for stamp, line in firsts.items()), "so the name tells how far the numbers are"
    numbers = [line["seq"] for line in lines_in(tmp_path)]
    assert len(numbers) == 4 * 151
    assert numbers == sorted(set(numbers))


def test_every_file_begins_with_the_roster_so_that_it_can_be_read_alone(tmp_path: Path) -> None:
    clock = Clock()
    writer = writer_in(tmp_path, clock=clock)
    for _ in range(3):
        writer.roster(epoch=4, primary=PRIMARY, backups=[BACKUP], queues=["a", "b"])
        writer.samples(epoch=4, primary=PRIMARY, rows=[ROW])
        writer.flush()
        clock.now_s += 1
    for path in tmp_path.glob("*.jsonl"):
        head = json.loads(path.read_text().splitlines()[0])
        assert (head["kind"], head["epoch"], head["backups"], head["queues"]) == ("roster", 4, [BACKUP], ["a", "b"])


def test_a_primary_without_backups_repeats_its_roster_so_that_it_does_not_look_silent(tmp_path: Path) -> None:
    clock = Clock()
    writer = writer_in(tmp_path, clock=clock, max_age_s=30)
    for _ in range(600):
        writer.roster(epoch=1, primary=PRIMARY, backups=[], queues=["q"], voters=[PRIMARY])
        writer.samples(epoch=1, primary=PRIMARY, rows=[], at=clock())
        clock.now_s += 1
    assert [line["kind"] for line in lines_in(tmp_path)] == ["roster"] * 20, "one every 30 s, in files that readers see"
    assert len(list(tmp_path.glob("*.jsonl"))) == 10
    for _ in range(60):
        writer.roster(epoch=1, primary=PRIMARY, backups=[BACKUP], queues=["q"], voters=[PRIMARY])
        writer.samples(epoch=1, primary=PRIMARY, rows=[ROW], at=clock())
        clock.now_s += 1
    rosters = [line for line in lines_in(tmp_path)[20:] if line["kind"] == "roster"]
    assert 1 <= len(rosters) <= 3, "samples tell that it is there: only new files repeat it"


def test_a_broker_that_is_no_longer_the_primary_does_not_repeat_its_roster(tmp_path: Path) -> None:
    """Readers would take it for a second primary, of an older epoch and of now."""
    clock = Clock()
    writer = writer_in(tmp_path, clock=clock)
    for epoch, primary in ((4, PRIMARY), (5, BACKUP), (6, PRIMARY)):
        if primary == PRIMARY:
            writer.roster(epoch=epoch, primary=primary, backups=[BACKUP], queues=[])
        else:
            writer.no_roster()
        writer.samples(epoch=epoch, primary=primary, rows=[ROW])
        writer.flush()
        clock.now_s += 1
    assert [(line["kind"], line["epoch"]) for line in lines_in(tmp_path)] == [
        ("roster", 4),
        ("sample", 4),
        ("sample", 5),
        ("roster", 6),
        ("sample", 6),
    ]


def test_a_roster_at_the_beginning_of_a_file_does_not_change_the_epoch_of_later_lines(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.roster(epoch=4, primary=PRIMARY, backups=[BACKUP], queues=[])
    writer.samples(epoch=4, primary=PRIMARY, rows=[ROW])
    writer.flush()
    writer.samples(epoch=5, primary=BACKUP, rows=[ROW])
    writer.event("promote_asked")
    writer.flush()
    assert [(line["kind"], line["epoch"]) for line in lines_in(tmp_path)][2:] == [("roster", 4), ("sample", 5), ("event", 5)]


def test_close_leaves_no_thread_and_no_hidden_file(tmp_path: Path) -> None:
    writer = TelemetryWriter(tmp_path, cluster="c", sender=PRIMARY, clock=Clock())
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW] * 5)
    writer.close()
    writer.close()
    assert len(lines_in(tmp_path)) == 5
    assert not list(tmp_path.glob(".*"))
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    assert writer.figures.dropped == 1, "after close, nothing is taken, and that is counted"


@pytest.mark.parametrize("now_s", [1000.0, 1000.2, 1000.5, 1000.999])
def test_a_sample_is_due_in_the_middle_of_the_next_interval_where_jitter_cannot_move_it_to_another(now_s: float) -> None:
    delay_s = telemetry.delay_to_next_sample_s(now_s, 1000)
    assert now_s + delay_s == pytest.approx(1001.5)
