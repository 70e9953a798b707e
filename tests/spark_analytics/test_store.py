"""Where a folder of growing files has been read to, against plain reading; and what of a store is kept."""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from spark_analytics import store, tail
from spark_analytics.jobs import compact
from spark_analytics.schemas import LINES
from telemetry import lines as written


def taken(folder: Path, start: tail.Offset, end: tail.Offset) -> list[str]:
    return [
        line
        for name, first, last in tail.ranges_of(start, end)
        for lines in tail.lines_of(folder / name, first, last)
        for line in lines.to_pylist()
    ]


def test_a_growing_file_is_taken_by_whole_lines_once_and_on_under_its_final_name(tmp_path: Path) -> None:
    part = tmp_path / ".b.000000000000001.part"
    part.write_text("one\ntwo\nthr")
    first = tail.next_offset(tmp_path, {}, None, None)
    assert taken(tmp_path, {}, first) == ["one", "two"]
    part.write_text("one\ntwo\nthree\nfour\n")
    part.rename(tmp_path / "b.000000000000001.jsonl")
    second = tail.next_offset(tmp_path, first, None, None)
    assert taken(tmp_path, first, second) == ["three", "four"]
    assert tail.next_offset(tmp_path, second, None, None) == second
    assert taken(tmp_path, {}, second) == ["one", "two", "three", "four"], "a batch that is run again reads the same"


@given(budget=st.integers(1, 60), sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_batches_of_any_size_take_each_line_once_in_order_of_time(budget: int, sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = []
        for i, size in enumerate(sizes):
            lines = [f"{i}-{n}" for n in range(size)]
            wanted += lines
            (folder / f"{'ba'[i % 2]}.{i:015d}.jsonl").write_text("".join(line + "\n" for line in lines))
        offset: tail.Offset = {}
        found: list[str] = []
        while (end := tail.next_offset(folder, offset, budget, None)) != offset:
            found += taken(folder, offset, end)
            offset = end
        assert found == wanted


def test_the_first_batches_of_a_process_take_a_part_of_what_the_others_take(tmp_path: Path) -> None:
    """Most of their time goes into compiling; an empty folder is not a batch."""
    reader = tail.Telemetry({"path": str(tmp_path), "bytes": "1600"}).streamReader(LINES)
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset({}, limit) == {}
    (tmp_path / "a.000000000000001.jsonl").write_text("123456789\n" * 500)
    ends: list[tail.Offset] = [{}]
    for _ in range(4):
        ends.append(reader.latestOffset(ends[-1], limit))
    sizes = [10 * len(taken(tmp_path, *batch)) for batch in pairwise(ends)]
    expected = (100, 400, 1600, 1600)
    assert all(wanted <= size <= wanted + 10 for size, wanted in zip(sizes, expected, strict=True)), sizes


def test_what_comes_after_the_target_waits_and_what_has_gone_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "a.000000000000001.jsonl"
    file.write_text("one\n")
    target = {file.name: 4}
    file.write_text("one\ntwo\n")
    first = tail.next_offset(tmp_path, {}, None, target)
    assert first["files"] == target
    file.unlink()
    (tmp_path / "b.000000000000002.jsonl").write_text("three\n")
    second = tail.next_offset(tmp_path, first, None, None)
    assert second["files"] == {"b.000000000000002.jsonl": 6}
    assert taken(tmp_path, {}, first) == []


def test_of_complete_files_only_the_numbers_are_kept_and_they_are_not_read_again(tmp_path: Path) -> None:
    for stamp in (1, 2, 30_000):
        (tmp_path / f"a.{stamp:015d}.jsonl").write_text("line\n")
    later = time.time() + 1000
    first = tail.next_offset(tmp_path, {}, None, None, now_s=later)
    (tmp_path / "a.000000000040000.jsonl").write_text("new\n")
    second = tail.next_offset(tmp_path, first, None, None, now_s=later)
    assert second == {"files": {"a.000000000040000.jsonl": 4}, "done": {"a": "1,1,752e"}}
    assert taken(tmp_path, first, second) == ["new"]
    (tmp_path / "a.000000000000003.jsonl").write_text("late\n")
    third = tail.next_offset(tmp_path, second, None, None, now_s=later)
    assert taken(tmp_path, second, third) == ["late"], "a file that comes late is not taken for a complete one"
    assert third["done"] == {"a": "1,1,752e,2710"}


HOURS = st.sampled_from((0, 1, 23, 24, 25, 47, 48, 71, 72, 95))
BATCHES = st.dictionaries(st.integers(0, 5), st.sets(HOURS, min_size=1))


@given(
    hours=st.sets(HOURS),
    parts=BATCHES,
    newest=st.integers(0, 96 * 60),
    ahead=st.integers(0, 48 * 60),
    keep=st.integers(1, 3),
)
def test_exactly_the_days_that_are_too_old_are_dropped_and_what_counts_is_never_garbage(
    hours: set[int], parts: dict[int, set[int]], newest: int, ahead: int, keep: int
) -> None:
    """Lines after now, of a clock that is ahead, make no day older."""

    def manifest() -> store.Manifest:
        return store.Manifest(
            parts={batch: sorted(its) for batch, its in parts.items()},
            hours=dict.fromkeys(hours, 1),
            newest={"a": (newest + ahead) * 60_000, "b": 0},
        )

    whole, kept, place = manifest(), manifest(), store.Store("/lag")
    old = {hour for hour in range(96) if (hour // 24 + 1) * store.DAY_MS + keep * store.DAY_MS <= newest * 60_000}
    dropped = store.drop(kept, keep * store.DAY_MS, now_ms=newest * 60_000)
    assert place.dirs(kept, range(96)) == place.dirs(whole, set(range(96)) - old)
    garbage = {name for name, _ in kept.garbage}
    assert not any(named == name or named.startswith(f"{name}/") for named in kept.named() for name in garbage)
    gone = place.dirs(whole, old)
    assert all(any(f"{folder}/".startswith(f"/lag/{name}/") for name in garbage) for folder in gone), "every folder is deleted"
    assert dropped == bool(garbage)
    assert (kept.kept_from_ms > 0) == dropped


def test_an_hour_is_not_over_before_its_end_though_a_clock_is_ahead() -> None:
    noon = 20_458 * 24 + 12
    for ahead_h, hours in itertools.product((0, 13, 36), ({}, {noon: 3})):
        newest = {"a": noon * store.HOUR_MS, "rm": (noon + ahead_h) * store.HOUR_MS}
        manifest = store.Manifest(parts={5: [noon]}, hours=hours, newest=newest)
        assert compact.due_hours(manifest, noon * store.HOUR_MS + 600_000) == []
    newest = {"a": (noon + 1) * store.HOUR_MS + compact.WAIT_MS}
    assert compact.due_hours(store.Manifest(parts={5: [noon]}, newest=newest), (noon + 9) * store.HOUR_MS) == [noon]


def test_what_counts_again_is_not_swept(tmp_path: Path) -> None:
    place = store.Store(tmp_path)
    for hour in (1, 2):
        place.hour(hour, 1).mkdir(parents=True)
    garbage = [("hours/hour=1/v=1", 0), ("hours/hour=2/v=1", 0)]
    manifest = store.Manifest(hours={2: 1}, garbage=garbage)
    place.sweep(manifest, store.GRACE_MS - 1)
    assert place.hour(1, 1).exists(), "somebody may still read it"
    place.sweep(manifest, store.GRACE_MS)
    assert sorted(path.name for path in (tmp_path / "hours").iterdir()) == ["hour=2"]
    assert place.hour(2, 1).exists()
    assert manifest.garbage == []


def test_lines_are_texts_without_the_blank_ones_whatever_their_bytes() -> None:
    odd = "x" * (tail.MAX_LINE + 5)
    assert tail.texts(b'{"a":1}\n{"b":22}\n').to_pylist() == ['{"a":1}', '{"b":22}']
    assert tail.texts(b"a\n\n  \nb\n").to_pylist() == ["a", "b"]
    assert tail.texts("é\n\n".encode() + b"\xff\n").to_pylist() == ["é", "\N{REPLACEMENT CHARACTER}"]
    assert tail.texts(f"{odd}\nb\n".encode()).to_pylist() == [odd[: tail.MAX_LINE], "b"]


def test_a_roster_of_twenty_thousand_queues_is_a_whole_line() -> None:
    names = [f"orders.region-{number:05}.customer-notifications.of.the.shop" for number in range(20_000)]
    head = written.Head("c", 1, "p", "2026-01-01T00:00:00.000Z")
    line = written.line(written.roster_record(head, 1, interval_ms=1000, primary="p", backups=["b"], queues=names))
    (text,) = tail.texts(line).to_pylist()
    assert json.loads(text)["queues"] == names
