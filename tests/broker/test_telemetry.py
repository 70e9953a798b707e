"""Telemetry must appear whole, stay bounded, and never get in the broker's way."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import telemetry
from broker.telemetry import LagSample, StallMeter, TelemetryWriter

PRIMARY = "127.0.0.1:5672"
BACKUP = "127.0.0.1:5673"
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


ages = st.floats(min_value=0, max_value=1e12, allow_nan=False)
counts = st.integers(min_value=0, max_value=2**53)
perhaps = st.none() | counts
rows = st.builds(
    LagSample,
    backup=st.text(),
    queue=st.none() | st.text(),
    replicate=st.sampled_from(["all", "configuration"]),
    commit_index=counts,
    sent_index=perhaps,
    received_index=perhaps,
    acked_index=perhaps,
    applied_index=perhaps,
    lag_records=counts,
    lag_bytes=counts,
    lag_ms=ages,
    stall_ms=ages,
    state=st.sampled_from(telemetry.STATES),
    in_sync=st.booleans(),
    connected=st.booleans(),
    headroom_bytes=perhaps,
)


@given(st.lists(rows, max_size=4), st.text(), st.text())
def test_the_fast_encoder_says_the_same_as_the_dict_that_defines_the_schema(
    batch: list[LagSample], cluster: str, primary: str
) -> None:
    writer = TelemetryWriter("unused", cluster=cluster, sender="s", clock=Clock(), submit=lambda work: None)
    writer.samples(epoch=7, primary=primary, rows=batch)
    found = [json.loads(line) for chunk in writer._pending for line in chunk.splitlines()]
    first = 1_767_600_000_000 * 1000
    for i, row in enumerate(batch):
        expected = telemetry.sample_record(
            cluster=cluster,
            epoch=7,
            sender="s",
            seq=first + i,
            ts="2026-01-05T08:00:00.000Z",
            interval_ms=1000,
            primary=primary,
            sample=row._replace(lag_ms=float(f"{row.lag_ms:.3f}"), stall_ms=float(f"{row.stall_ms:.3f}")),
        )
        assert found[i] == expected
        assert list(found[i]) == list(expected), "the fields stand in the schema's order"


def test_a_file_is_rolled_when_it_is_big_and_when_it_is_old(tmp_path: Path) -> None:
    clock = Clock()
    writer = writer_in(tmp_path, clock=clock, max_bytes_per_file=1000, max_age_s=30)
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW] * 3)
    assert len(list(tmp_path.glob("*.jsonl"))) == 1, "over 1000 bytes"
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    clock.now_s += 29
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    clock.now_s += 1
    writer.event("snapshot")
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
    assert writer.dropped == 2, "the sample of each of the two oldest files"


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
    writer.sample(epoch=1, primary=PRIMARY, colour="blue")
    writer.event("no such type")
    writer.event("role", colour="blue")
    assert writer.dropped == 6
    writer.flush()
    found = lines_in(tmp_path)
    assert sum(line["kind"] == "sample" for line in found) == 1
    assert sum(line["lost_records"] for line in found if line["kind"] == "event") == 6


def test_a_disk_that_refuses_costs_lines_and_not_the_broker(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    writer = writer_in(blocked)
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW, ROW])
    assert writer.dropped == 2
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


def test_every_file_begins_with_the_roster_so_that_it_can_be_read_alone(tmp_path: Path) -> None:
    clock = Clock()
    writer = writer_in(tmp_path, clock=clock)
    for _ in range(3):
        writer.roster(epoch=4, primary=PRIMARY, backups=[BACKUP], queues=["b", "a"])
        writer.samples(epoch=4, primary=PRIMARY, rows=[ROW])
        writer.flush()
        clock.now_s += 1
    for path in tmp_path.glob("*.jsonl"):
        head = json.loads(path.read_text().splitlines()[0])
        assert (head["kind"], head["epoch"], head["backups"], head["queues"]) == ("roster", 4, [BACKUP], ["a", "b"])


def test_close_leaves_no_thread_and_no_hidden_file(tmp_path: Path) -> None:
    writer = TelemetryWriter(tmp_path, cluster="c", sender=PRIMARY, clock=Clock())
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW] * 5)
    writer.close()
    writer.close()
    assert len(lines_in(tmp_path)) == 5
    assert not list(tmp_path.glob(".*"))
    writer.samples(epoch=1, primary=PRIMARY, rows=[ROW])
    assert writer.dropped == 1, "after close, nothing is taken, and that is counted"


def test_stall_is_how_long_the_acknowledged_index_stood_still_while_records_waited() -> None:
    meter = StallMeter()
    assert meter.stall_ms("b", 5, 3, 10.0) == 0
    assert meter.stall_ms("b", 5, 4, 12.5) == 2500
    assert meter.stall_ms("b", 6, 4, 13.0) == 0, "it moved"
    assert meter.stall_ms("b", 6, 0, 14.0) == 0, "nothing waits"
    assert meter.stall_ms("b", 6, 2, 15.0) == 1000, "counted from when the waiting began"
    meter.keep([])
    assert meter.stall_ms("b", 6, 2, 99.0) == 0, "a member that was removed and came back starts anew"


@pytest.mark.parametrize("now_s", [1000.0, 1000.2, 1000.5, 1000.999])
def test_a_sample_is_due_in_the_middle_of_the_next_interval_where_jitter_cannot_move_it_to_another(now_s: float) -> None:
    delay_s = telemetry.delay_to_next_sample_s(now_s, 1000)
    assert now_s + delay_s == pytest.approx(1001.5)


def test_milliseconds_are_rounded_before_the_text_is_cut_so_that_no_second_shows_a_thousand() -> None:
    assert telemetry.timestamp(1_767_600_000.9996) == "2026-01-05T08:00:01.000Z"
