"""Which of a batch's lines count, and that what came twice costs a second look at where it did, and no more."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_analytics import ranges
from spark_analytics.jobs.micro_batch import Numbers, Seen
from spark_analytics.store import names
from spark_analytics.transforms import runs
from spark_analytics.transforms.partials import Grains
from tests.spark_analytics.test_ranges import members

GRAINS = Grains(1000, 10_000)
SENDERS = (("c", "a:1"), ("c", "b:0"), ("other", "a:1"))
ITS = st.lists(st.integers(0, 30), max_size=12)
BATCH = st.dictionaries(st.tuples(st.sampled_from(SENDERS), st.sampled_from("xyz")), ITS, max_size=6)
SEEN = st.dictionaries(st.sampled_from(SENDERS), st.sets(st.integers(0, 30), min_size=1), max_size=2)


def row(cluster: str, sender: str, file: str, numbers: list[int]) -> dict[str, Any]:
    """As a worker tells them."""
    _, found, _ = runs.of(np.zeros(len(numbers), np.int64), np.array(numbers))
    return {"cluster": cluster, "sender": sender, "file": file, "runs": found.to_pylist()[0]}


def numbers_of(batch: dict[tuple[tuple[str, str], str], list[int]]) -> Numbers:
    found = Numbers()
    found.add(row(*sender, file, its) for (sender, file), its in batch.items() if its)
    return found


def seen_of(before: dict[tuple[str, str], set[int]]) -> Seen:
    return {names(*sender): ranges.united([[number, number] for number in its]) for sender, its in before.items()}


@given(BATCH, SEEN)
def test_each_number_counts_once_in_all(
    batch: dict[tuple[tuple[str, str], str], list[int]], before: dict[tuple[str, str], set[int]]
) -> None:
    """A worker passes over what is counted elsewhere; what is in the file twice is made single."""
    numbers, seen = numbers_of(batch), seen_of(before)
    again = numbers.again(seen)
    skips = {(skip.cluster, skip.sender, file): skip for file, its in numbers.skips(again, seen).items() for skip in its}
    counted: Counter[tuple[str, str, int]] = Counter()
    for ((cluster, sender), file), its in batch.items():
        skip = skips.get((cluster, sender, file), runs.Skip(cluster, sender, [], []))
        left = [number for number in its if number not in members(skip.counted)]
        assert {number for number in left if left.count(number) > 1} == members(skip.twice) & set(left)
        single = [number for number in left if number not in members(skip.twice)] + sorted(members(skip.twice) & set(left))
        counted.update((cluster, sender, number) for number in single)
    told = {(*sender, number) for (sender, _), its in batch.items() for number in its}
    known = {(*sender, number) for sender, its in before.items() for number in its}
    assert counted == Counter(told - known)
    every = {sender: members(its) for sender, its in numbers.joined(seen).items()}
    assert every == {key: {number for *sender, number in told | known if names(*sender) == key} for key in every}


@given(BATCH, SEEN)
def test_again_are_those_that_came_more_than_once(
    batch: dict[tuple[tuple[str, str], str], list[int]], before: dict[tuple[str, str], set[int]]
) -> None:
    times = Counter((names(*sender), number) for (sender, _), its in batch.items() for number in its)
    known = {(names(*sender), number) for sender, its in before.items() for number in its}
    found = {(sender, number) for sender, its in numbers_of(batch).again(seen_of(before)).items() for number in members(its)}
    assert found == {one for one, count in times.items() if count > 1 or one in known}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1))
def test_runs_have_each_number_as_often_as_it_is_there(lines: list[tuple[int, int]]) -> None:
    group, seq = (np.array(column) for column in zip(*lines, strict=True))
    groups, found, places = runs.of(group, seq)
    told = {}
    for one, ends, place in zip(groups.tolist(), found.to_pylist(), places.to_pylist(), strict=True):
        told[one] = Counter(n for first, last in zip(ends[::2], ends[1::2], strict=True) for n in range(first, last + 1))
        assert lines[place][0] == one
    assert told == {one: Counter(number for of, number in lines if of == one) for one in set(group.tolist())}


def test_a_file_that_is_there_twice_is_two_runs() -> None:
    """And not as many as it has lines."""
    assert row("c", "a:1", "x", [*range(5000)] * 2)["runs"] == [0, 4999] * 2


@given(st.sets(st.integers(0, 60)), st.lists(st.integers(0, 60), min_size=1))
def test_numbers_among_ranges_are_those_of_their_set(some: set[int], numbers: list[int]) -> None:
    its = ranges.united([[number, number] for number in some])
    assert runs.among(its, np.array(numbers)).tolist() == [number in some for number in numbers]


def presence(sender: str, minute: int | None, span: tuple[int, int], **fields: Any) -> dict[str, Any]:
    its = {"cluster": "c", "sender": sender, "kind": "sample", "problem": None, "inside": minute is not None}
    return its | {"start_ms": None if minute is None else 60_000 * minute, "first_seq": span[0], "last_seq": span[1]} | fields


def test_only_times_and_files_with_numbers_that_came_again_are_doubtful() -> None:
    """One line of the second minute came again, and one from before the span."""
    a, b = ("c", "a:1"), ("c", "b:0")
    files = {"outside": [*range(90, 100)], "first": [*range(100, 200)], "second": [*range(200, 280)], "end": [*range(280, 350)]}
    numbers = numbers_of({(a, name): its for name, its in files.items()} | {(b, "other"): [*range(90, 350)], (a, "copy"): [250]})
    seen = {names(*a): [[0, 90]]}
    minutes = {1: (100, 199), 2: (200, 299), 3: (300, 349), None: (90, 99)}
    rows = [presence(sender, minute, span) for minute, span in minutes.items() for sender in ("a:1", "b:0")]
    rows += [presence("a:1", 2, (240, 260), kind="roster"), presence("a:1", 2, (270, 280), kind="event")]
    bad = dict.fromkeys(rows[0]) | {"problem": "torn", "inside": True}
    again = numbers.again(seen)
    assert again == {names(*a): [[90, 90], [250, 250]]}
    found = numbers.doubtful(again, [*rows, bad], GRAINS)
    assert set(found.times) == {(*a, "sample", 2), (*a, "roster", 2), (*a, "sample", None)}
    assert found.files == ["copy", "end", "outside", "second"]


@pytest.mark.parametrize("grain_ms, period", [(10_000, 150), (3_600_000, 2)])
def test_a_doubtful_time_is_as_long_as_the_longest_grain(grain_ms: int, period: int) -> None:
    numbers = numbers_of({(SENDERS[0], "x"): [5, 5]})
    found = numbers.doubtful(numbers.again({}), [presence("a:1", 150, (1, 9))], Grains(1000, grain_ms))
    assert found.times == [(*SENDERS[0], "sample", period)]
