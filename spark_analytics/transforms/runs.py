"""The numbers of lines as runs, by the column: what a stream knows its lines by.

A sender's numbers in a file are told as runs, `first, last, first, last, ...`; one that is there twice is in two of them. What
has come before, or stands in another file as well, is left out by a `Skip` when the lines are looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from spark_analytics.ranges import Ranges

TOLD: Final = "cluster string, sender string, file string, runs array<long>"
_KEY: Final = ("cluster", "sender", "file")


@dataclass(frozen=True, slots=True)
class Skip:
    """Of a sender's lines in a file: the numbers of those that are `counted` elsewhere, which are passed over; and of those that
    are there `twice` or more, which are handed back, since one of them is to count.
    """

    cluster: str
    sender: str
    counted: Ranges
    twice: Ranges


def told(lines: DataFrame) -> DataFrame:
    """The `seq` of lines by `cluster`, `sender` and `file`, as runs. A key has a row from each partition."""
    return lines.select(*_KEY, "seq").mapInArrow(_in_worker, TOLD)


def _in_worker(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if not batch.num_rows:
            continue
        group = np.zeros(batch.num_rows, np.int64)
        for name in _KEY:
            column = batch.column(name).dictionary_encode()
            group = group * len(column.dictionary) + column.indices.to_numpy()
        _, runs, places = of(group, batch.column("seq").to_numpy())
        yield pa.RecordBatch.from_arrays([*(batch.column(name).take(places) for name in _KEY), runs], [*_KEY, "runs"])


def of(group: np.ndarray, seq: np.ndarray) -> tuple[np.ndarray, pa.Array, pa.Array]:
    """Numbers of groups: the groups that are there, the runs of each, and where one of its numbers stands."""
    order = np.lexsort((seq, group))
    same = (np.diff(group[order]) == 0) & (np.diff(seq[order]) == 0)
    if same.any():
        # The second of the same are a run among themselves, and so on: a file that is there twice is two runs.
        places = np.arange(len(seq))
        nth = places - np.maximum.accumulate(np.where(np.append(False, same), 0, places))
        order = order[np.lexsort((seq[order], nth, group[order]))]
    in_order, numbers = group[order], seq[order]
    ends = np.flatnonzero((np.diff(in_order) != 0) | (np.diff(numbers) != 1))
    begins, ends = np.append(0, ends + 1), np.append(ends, len(numbers) - 1)
    ranges = np.column_stack((numbers[begins], numbers[ends])).reshape(-1)
    first_run = np.flatnonzero(np.diff(in_order[begins], prepend=-1))
    offsets = np.append(2 * first_run, len(ranges)).astype(np.int32)
    places = order[begins[first_run]]
    return group[places], pa.ListArray.from_arrays(pa.array(offsets), pa.array(ranges)), pa.array(places)


def among(ranges: Ranges, numbers: np.ndarray) -> np.ndarray:
    """Which of the numbers are in the ranges."""
    firsts, lasts = np.array(ranges, np.int64).reshape(-1, 2).T
    at = np.searchsorted(firsts, numbers, "right") - 1
    found: np.ndarray = (at >= 0) & (numbers <= np.append(lasts, -1)[at])
    return found
