"""Rows of the same key to one: what several partitions, batches or files have of one grain (`combined`), or the grains of a
longer one (`rolled`).

By the column, in Python workers, after Spark has brought a key's rows together: a key with one row passes as it is, and the rest
are sorted by key and reduced. As an aggregation of Spark's the same takes a tenth of a millisecond a row, for its seventy sums
and for the structures that it sorts by, and a second to plan and compile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType

from spark_analytics.transforms import buckets, columnar, partials, told

_PIECES_TO_ONE: Final = 8
_ROWS_AT_ONCE: Final = 5000
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Reduction:
    """Rows of the same `key` to one. Numbers of slots are `added`; as bitmaps they are put over each other."""

    key: tuple[str, ...]
    added: bool = False


_COMBINED: Final = _Reduction(told.KEY)
_ROLLED: Final = _Reduction((*partials.KEY, "start_ms"), added=True)
_COUNTED: Final = StructType(
    [columnar.SUMS[name] for name in (*_ROLLED.key, *partials.COUNTED[:-1])] + [StructField(partials.COUNTED[-1], BooleanType())]
)


def combined(rows: DataFrame, pieces: int | None = None) -> DataFrame:
    """Rows with the columns of `columnar.SUMS` to one row per `told.KEY`.

    `pieces` is how many partitions or files they come from. Where nobody knows Spark is asked, which plans all that made them.
    """
    parts = max(2, (rows.rdd.getNumPartitions() if pieces is None else pieces) // _PIECES_TO_ONE)
    together = rows.select(*columnar.SUMS.names).repartition(parts, "sender", "backup", "queue", "start_ms")
    return together.mapInArrow(partial(in_worker, _COMBINED), columnar.SUMS)


def rolled(rows: DataFrame, length_ms: int) -> DataFrame:
    """`partials.counted` rows to rows of a longer grain, which can be merged like them."""
    start = F.floor(F.col("start_ms") / length_ms) * length_ms
    together = rows.withColumn("start_ms", start).select(*_COUNTED.names).repartition("backup", "queue", "start_ms")
    return together.mapInArrow(partial(in_worker, _ROLLED), _COUNTED)


def in_worker(reduction: _Reduction, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows of some keys, to one row for each."""
    found = list(batches)
    if not found:
        return
    table = pa.Table.from_batches(found)
    code = _codes(table, reduction.key)
    order = np.argsort(code, kind="stable")
    begins = np.flatnonzero(np.diff(code[order], prepend=-1))
    sizes = np.diff(np.append(begins, len(order)))
    alone = table.take(pa.array(order[begins[sizes == 1]]))
    yield from alone.to_batches(max_chunksize=_ROWS_AT_ONCE)
    several = sizes > 1
    if several.any():
        some = table.take(pa.array(order[np.repeat(several, sizes)])).combine_chunks()
        merged = _merged(some, np.append(0, sizes[several].cumsum()[:-1]), reduction)
        yield from merged.to_batches(max_chunksize=_ROWS_AT_ONCE)


def _codes(table: pa.Table, key: Iterable[str]) -> np.ndarray:
    """A number for each row, the same for the same key."""
    code = np.zeros(table.num_rows, np.int64)
    for name in key:
        column = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        code = code * len(column.dictionary) + column.indices.to_numpy()
        code = np.unique(code, return_inverse=True)[1].astype(np.int64)
    return code


def _merged(table: pa.Table, begins: np.ndarray, reduction: _Reduction) -> pa.Table:
    """Rows that are sorted by key, the first of each key at `begins`, to one row each."""
    columns: dict[str, Any] = {name: table.column(name).take(pa.array(begins)) for name in reduction.key}
    for name in partials.SUMS:
        columns[name] = pa.array(np.add.reduceat(_numbers(table, name, 0), begins))
    for name in partials.BITMAPS:
        both = np.add if reduction.added else np.bitwise_or
        columns[name] = pa.array(both.reduceat(_numbers(table, name, 0), begins))
    if "fell" in table.column_names:
        fell = compute.fill_null(table.column("fell").combine_chunks(), False).to_numpy(zero_copy_only=False)
        columns["fell"] = pa.array(np.logical_or.reduceat(fell, begins))
    for names, reduced, worst in ((partials.HIGHEST, np.maximum, _LEAST), (partials.LOWEST, np.minimum, _MOST)):
        for name in names:
            real = pa.types.is_floating(table.schema.field(name).type)
            null = -np.inf if real else worst
            numbers = reduced.reduceat(_numbers(table, name, null), begins)
            columns[name] = pa.array(numbers, mask=numbers == null)
    for name in partials.MEASURES:
        words = np.add.reduceat(table.column(name).combine_chunks().flatten().to_numpy().reshape(-1, buckets.WORDS), begins)
        ends = pa.array(np.arange(0, words.size + 1, buckets.WORDS, dtype=np.int32))
        columns[name] = pa.ListArray.from_arrays(ends, pa.array(words.reshape(-1)))
    columns["first"], columns["last"] = _ends(table, begins)
    return pa.table([columns[name] for name in table.column_names], schema=table.schema)


def _numbers(table: pa.Table, name: str, null: float) -> np.ndarray:
    found: np.ndarray = compute.fill_null(table.column(name).combine_chunks(), null).to_numpy()
    return found


def _ends(table: pa.Table, begins: np.ndarray) -> tuple[pa.Array, pa.Array]:
    """The lowest `first` and the highest `last` of each key, by their fields in order, as Spark compares structures."""
    groups = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, table.num_rows)))
    ends = []
    for name, place in (("first", 0), ("last", -1)):
        looks = table.column(name).combine_chunks()
        fields = [looks.field(field) for field in partials.FIRST]
        keys = [compute.fill_null(field.cast(pa.int64()), _LEAST).to_numpy() for field in fields]
        there = looks.is_valid().to_numpy(zero_copy_only=False)
        keys[0] = np.where(there, keys[0], _MOST if place == 0 else _LEAST)
        order = np.lexsort((*reversed(keys), groups))
        chosen = order[begins] if place == 0 else order[np.append(begins[1:], len(order)) - 1]
        ends.append(looks.take(pa.array(chosen)))
    return ends[0], ends[1]
