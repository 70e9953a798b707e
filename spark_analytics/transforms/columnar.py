"""The pass over every line, by the column: lines of telemetry to `told` rows in Spark's Python workers.

Spark reads the lines and moves them here in Arrow batches; msgspec decodes some thousands at a time, and NumPy adds up a
hundred thousand at a time. Made of Spark's own expressions a whole summary took twice as long: most of it goes into its
parser and into sums that every line is offered to in turn.

Only what is plain is judged here: whole objects of a known kind with every field of its type and a time as brokers write it. A
line that is anything else is *handed back* as text, for `parse` to judge, which names what is wrong with it. So there is one
place that knows every rule, and this one may only be stricter. Events and rosters are few and are handed back as well, since
they are kept as they are. A worker without msgspec hands everything back: slower, and the same sums.

The life of a line: decoded, given the number of its *series* (all of its fields that rarely change, so that whatever follows from
them is worked out once), and put away as a row of numbers; when there are enough of those, or the partition ends, they are sorted
by key and time and each key's are reduced to one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DoubleType, LongType, StringType, StructField, StructType

from spark_analytics.schemas import VERSION
from spark_analytics.transforms import buckets, decode, fingerprint, partials, runs, told
from spark_analytics.transforms.decode import BEYOND, LEAST_LONG, MOST_LONG, NULL, Lines
from spark_analytics.transforms.parse import LEAST_INTERVAL_MS

LINES_AT_ONCE: Final = 2000
"""So many are decoded together: what they become stays in the processor's cache."""
LINES_ADDED_UP: Final = 1 << 17
_MOST_SERIES: Final = 1 << 16
_SAMPLE, _PROBE, _EVENT, _ROSTER, _ODD = range(5)
_KINDS: Final = ("sample", "probe", *told.FEW)
_TEXT, _LONG, _REAL, _BOOL = StringType(), LongType(), DoubleType(), BooleanType()
_IN_LOOKS: Final = {
    "ts_ms": _LONG,
    "acked_index": _LONG,
    "commit_index": _LONG,
    "lag_records": _LONG,
    "connected": _BOOL,
    "lag_bytes": _LONG,
    "lag_ms": _REAL,
    "stall_ms": _REAL,
    "state": _TEXT,
    "in_sync": _BOOL,
    "headroom_bytes": _LONG,
}
_KEY_TYPES: Final = {"epoch": _LONG, "mine": _BOOL, "inside": _BOOL, "start_ms": _LONG}
_REALS: Final = ("max_ms", "max_stall_ms")


def _look_type(names: Sequence[str]) -> StructType:
    return StructType([StructField(name, _IN_LOOKS[name]) for name in names])


SUMS: Final = StructType(
    [StructField(name, _KEY_TYPES.get(name, _TEXT)) for name in told.KEY]
    + [StructField(name, _REAL if name in _REALS else _LONG) for name in partials.PLAIN]
    + [StructField("first", _look_type(partials.FIRST)), StructField("last", _look_type(partials.LAST))]
    + [StructField(name, ArrayType(_LONG)) for name in partials.MEASURES]
)
"""The columns of `told` rows."""
_BESIDES: Final = {"value": _TEXT, "file": _TEXT, "print": _LONG, "range": ArrayType(_LONG), "runs": ArrayType(_LONG)}
FOUND: Final = StructType([*SUMS.fields, *(StructField(name, kind) for name, kind in _BESIDES.items())])
"""What the pass yields: `told` rows, whose `file` is null; lines that are handed back, with their `value`, and the `kind` of
those that are counted already, as events and rosters. If numbers are asked for, also a row for each `file`, whose plain lines lie
from `first_ms` to `last_ms` and of which so many `lines` were handed back uncounted (and one with the `range` of its bytes, of a
stream). As prints, the sum of the hashes of each row's numbers is its `print` (`fingerprint`). As runs, there are rows for each
sender and `file` with the numbers of its plain lines (`runs`)."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the lines are judged and added up by. Times in ms; a line from `future_ms` on has a wrong clock."""

    grains: partials.Grains
    objective_ms: float
    future_ms: int
    since_ms: int | None = None
    until_ms: int | None = None
    numbers: Literal["prints", "runs"] | None = None
    skips: Mapping[str, Sequence[runs.Skip]] = field(default_factory=dict)
    """What is to be left out, by file: of lines that were looked over before. Only with `runs`."""
    lines_at_once: int = LINES_AT_ONCE
    lines_added_up: int = LINES_ADDED_UP


def looked_over(lines: DataFrame, rules: Rules) -> DataFrame:
    """`schemas.LINES` to FOUND. A key has a row from each partition, or several: `combine.combined` makes one of them."""
    return lines.select("value", "file").mapInArrow(partial(in_worker, rules), FOUND)


def sums(found: DataFrame, *, few: bool = True) -> DataFrame:
    """Of what was found, the `told` rows: of all kinds, or without those of the lines that were handed back."""
    rows = found.where("file IS NULL")
    return (rows if few else rows.where(~F.col("kind").isin(*told.FEW))).select(*SUMS.names)


def handed_back(found: DataFrame) -> DataFrame:
    """Of what was found, the lines that are to be judged or kept, as `schemas.LINES` and `counted`: whether they are in a row."""
    return found.where("value IS NOT NULL").select("value", "file", F.col("kind").isNotNull().alias("counted"))


# -- in the workers


def in_worker(rules: Rules, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A partition's lines, `value` and `file`, to batches of FOUND's columns."""
    return added_up(rules, (decode.texts(batch.column("value"), batch.column("file")) for batch in batches))


def added_up(rules: Rules, pieces: Iterable[Lines]) -> Iterator[pa.RecordBatch]:
    """The same for lines of any form."""
    work = _Work(rules)
    for piece in pieces:
        for lines in piece.parts(rules.lines_at_once):
            work.take(lines)
            yield from work.handed_back()
            if work.lines >= rules.lines_added_up:
                yield from work.added_up()
    yield from work.added_up()
    yield from work.files()


_OF_SERIES: Final = (
    *("v", "kind", "cluster", "epoch", "sender", "interval_ms", "primary", "backup", "queue"),
    *("state", "connected", "in_sync", "broker", "type", "reach"),
)
_LONGS: Final = ("commit_index", "acked_index", "lag_records", "lag_bytes", "headroom_bytes")
_DOUBLES: Final = ("lag_ms", "stall_ms")


@dataclass(frozen=True, slots=True)
class _Series:
    """What lines with the same values of _OF_SERIES have in common; `kind` is _ODD when they are not plain."""

    kind: int
    cluster: str = ""
    epoch: int = 0
    sender: str = ""
    interval_ms: int = NULL
    primary: str | None = None
    backup: str | None = None
    queue: str | None = None
    state: str = ""
    connected: bool | None = None
    in_sync: bool | None = None

    @property
    def mine(self) -> bool:
        """Whether the sender spoke as the primary."""
        return self.sender == self.primary

    def key(self, inside: bool) -> tuple[Any, ...]:
        """`told.KEY` without its time."""
        name = _KINDS[self.kind]
        if not inside:
            return (self.cluster, None, self.sender, name, None, False, None, False, None, None)
        backup, queue = (self.backup, self.queue) if self.kind == _SAMPLE else (None, None)
        told_of = queue if self.mine else None
        return (self.cluster, self.epoch, self.sender, name, self.primary, self.mine, None, True, backup, told_of)


def _series_of(key: tuple[Any, ...]) -> _Series:
    v, name, cluster, epoch, sender, interval_ms, primary, backup, queue, state, connected, in_sync, broker, what, reach = key
    needs = {
        "sample": (interval_ms, primary, backup, connected),
        "roster": (interval_ms, primary),
        "event": (broker, what),
        "probe": (interval_ms, broker, reach),
    }.get(name)
    longs = [number for number in (v, epoch, interval_ms) if number is not None]
    plain = (
        needs is not None
        and None not in (v, cluster, epoch, sender, *needs)
        and v <= VERSION
        and all(LEAST_LONG <= number <= MOST_LONG for number in longs)
        and (name not in ("sample", "roster") or interval_ms >= LEAST_INTERVAL_MS)
    )
    if not plain:
        return _Series(_ODD)
    interval_ms = NULL if interval_ms is None else interval_ms
    state = state if state in partials.STATES else ""
    kind = _KINDS.index(name)
    return _Series(kind, cluster, epoch, sender, interval_ms, primary, backup, queue, state, connected, in_sync)


class _Work:
    """One task's lines: those that wait to be added up, and those to hand back."""

    def __init__(self, rules: Rules) -> None:
        self.lines = 0
        self._rules = rules
        self._decode = decode.decoder()
        self._codes: dict[tuple[Any, ...], int] = {}
        self._series: list[_Series] = []
        self._senders: dict[tuple[str, str], int] = {}
        self._sender_of: list[int] = []
        self._waiting: list[dict[str, np.ndarray]] = []
        self._back: list[tuple[pa.Array, pa.Array, pa.Array]] = []
        self._spans: dict[str, tuple[int, int]] = {}
        self._odd: dict[str, int] = {}
        self._files: dict[str, int] = {}

    # -- lines to numbers

    def take(self, lines: Lines) -> None:
        """Take some lines in."""
        at, records, strange = decode.records_of(lines, self._decode)
        span = _NEVER
        if records:
            columns, plain = self._columns(records)
            if self._rules.numbers == "runs":
                columns["file"] = self._coded_files(lines, at)
            counted, twice = self._left_out(lines, columns)
            strange = np.concatenate((strange, at[~plain | twice]))
            plain &= ~counted & ~twice
            few = plain & (columns["kind"] >= _EVENT)
            if few.any():
                kinds = pa.array([_KINDS[kind] for kind in columns["kind"][few]], pa.string())
                self._hand_back(lines, at[few], kinds)
            if not plain.all():
                columns = {name: column[plain] for name, column in columns.items()}
            self._waiting.append(columns)
            self.lines += len(columns["seq"])
            span = int(columns["ts_ms"].min(initial=span[0])), int(columns["ts_ms"].max(initial=span[1]))
        for name in lines.names() if self._rules.numbers else ():
            first_ms, last_ms = self._spans.get(name, _NEVER)
            self._spans[name] = min(first_ms, span[0]), max(last_ms, span[1])
        if len(strange):
            said = compute.ascii_trim_whitespace(lines.texts(strange))
            strange = strange[compute.binary_length(said).to_numpy() > 0]
        if len(strange):
            self._hand_back(lines, np.sort(strange), pa.nulls(len(strange), pa.string()))
            for name, count in Counter(lines.files(strange).to_pylist()).items():
                self._odd[name] = self._odd.get(name, 0) + count

    def _coded_files(self, lines: Lines, at: np.ndarray) -> np.ndarray:
        """The number of each line's file."""
        names = lines.names()
        if len(names) == 1:
            return np.full(len(at), self._files.setdefault(names.pop(), len(self._files)))
        coded = lines.files(at).dictionary_encode()
        numbers = [self._files.setdefault(name, len(self._files)) for name in coded.dictionary.to_pylist()]
        found: np.ndarray = np.array(numbers, np.int64)[coded.indices.to_numpy()]
        return found

    def _left_out(self, lines: Lines, columns: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Which lines are counted elsewhere, and which are in their file twice, as far as the rules say so."""
        left_out = np.zeros((2, len(columns["seq"])), bool)
        if not self._rules.skips:
            return left_out[0], left_out[1]
        senders = np.array(self._sender_of)[columns["code"]]
        for name in lines.names() & self._rules.skips.keys():
            for skip in self._rules.skips[name]:
                sender, file = self._senders.get((skip.cluster, skip.sender), -1), self._files.get(name, -1)
                its = (senders == sender) & (columns["file"] == file)
                left_out[:, its] |= [runs.among(ranges, columns["seq"][its]) for ranges in (skip.counted, skip.twice)]
        return left_out[0], left_out[1]

    def _hand_back(self, lines: Lines, at: np.ndarray, kinds: pa.Array) -> None:
        self._back.append((lines.texts(at), lines.files(at), kinds))

    def _columns(self, records: list[Any]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Records to columns of numbers, and which of them are plain. Columns of samples are null in other lines."""
        codes = self._coded(records)
        kind = np.array([series.kind for series in self._series], np.int8)[codes]
        ts_ms, plain = decode.times([record.ts for record in records])
        seq = decode.longs(records, "seq")
        plain &= (kind != _ODD) & (seq >= 0) & (ts_ms < self._rules.future_ms)
        is_sample = kind == _SAMPLE
        every = bool(is_sample.all())
        samples = records if every else [record for record, sample in zip(records, is_sample, strict=True) if sample]
        columns: dict[str, np.ndarray] = {"code": codes, "kind": kind, "seq": seq, "ts_ms": ts_ms}
        for name in (*_LONGS, *_DOUBLES):
            of_samples = (decode.longs if name in _LONGS else decode.doubles)(samples, name)
            if every:
                columns[name] = of_samples
            else:
                columns[name] = np.full(len(records), NULL if name in _LONGS else np.nan, of_samples.dtype)
                columns[name][is_sample] = of_samples
        of_sample = (columns["commit_index"] != NULL) & (columns["lag_records"] >= 0) & (columns["lag_ms"] >= 0)
        plain &= ~is_sample | of_sample
        plain &= ~((columns["stall_ms"] < 0) | np.logical_or.reduce([columns[name] == BEYOND for name in _LONGS]))
        for at in np.flatnonzero(kind == _ROSTER):
            roster = records[at]
            plain[at] &= None not in (roster.backups, roster.queues)
            plain[at] &= all(value is None for value in (roster.lag_records, roster.lag_ms, roster.stall_ms))
        return columns, plain

    def _coded(self, records: list[Any]) -> np.ndarray:
        """The number of each record's series."""
        keys = map(_KEY_OF, records)
        known = self._codes
        try:
            codes = [known[key] for key in keys]
        except KeyError:
            codes = [self._code(_KEY_OF(record)) for record in records]
        return np.array(codes, np.int64)

    def _code(self, key: tuple[Any, ...]) -> int:
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = len(self._series)
            series = _series_of(key)
            self._series.append(series)
            self._sender_of.append(self._senders.setdefault((series.cluster, series.sender), len(self._senders)))
        return code

    # -- numbers to rows

    def handed_back(self) -> Iterator[pa.RecordBatch]:
        """The lines that were not added up, or shall be kept besides."""
        for value, file, kind in self._back:
            yield batch_of(len(value), {"value": value, "file": file, "kind": kind})
        self._back.clear()

    def files(self) -> Iterator[pa.RecordBatch]:
        """A row for each file that was met, if these were asked for."""
        if self._spans:
            firsts, lasts = (np.array(ends) for ends in zip(*self._spans.values(), strict=True))
            spans = {"first_ms": _or_null(firsts, _NEVER[0]), "last_ms": _or_null(lasts, _NEVER[1])}
            odd = pa.array([self._odd.get(name, 0) for name in self._spans])
            yield batch_of(len(self._spans), {"file": pa.array(self._spans, pa.string()), "lines": odd} | spans)

    def added_up(self) -> Iterator[pa.RecordBatch]:
        """Rows of the lines that wait, which are forgotten."""
        if self.lines:
            names = list(self._waiting[0])
            columns = {name: np.concatenate([waiting[name] for waiting in self._waiting]) for name in names}
            self._waiting.clear()
            self.lines = 0
            yield _added_up(columns, self._series, self._rules)
            if self._rules.numbers == "runs":
                yield self._runs(columns)
        if len(self._series) > _MOST_SERIES:
            self._codes.clear()
            self._series.clear()
            self._sender_of.clear()

    def _runs(self, columns: dict[str, np.ndarray]) -> pa.RecordBatch:
        """The numbers by sender and file."""
        senders = np.array(self._sender_of)[columns["code"]]
        groups, found, _ = runs.of(senders * len(self._files) + columns["file"], columns["seq"])
        whose, which = np.divmod(groups, len(self._files))
        clusters, names = (pa.array(part, pa.string()).take(pa.array(whose)) for part in zip(*self._senders, strict=True))
        files = pa.array(self._files, pa.string()).take(pa.array(which))
        return batch_of(len(groups), {"cluster": clusters, "sender": names, "file": files, "runs": found})


_KEY_OF: Final = attrgetter(*_OF_SERIES)
_NEVER: Final = (MOST_LONG, LEAST_LONG)
"""From its last to its first ms: the span of nothing."""


def bucket_of(values: np.ndarray) -> np.ndarray:
    """`buckets.bucket_of` of numbers that are not negative."""
    fraction, exponent = np.frexp(values)
    steps = 2 * exponent - (fraction <= _ROOT) - (fraction <= _HALF) + 1
    found: np.ndarray = np.where(values <= 0, 0, np.where(values <= 1, 1, np.minimum(steps, buckets.BUCKETS - 1)))
    return found


_ROOT: Final = float(np.sqrt(0.5)) * (1 + 1e-10)
_HALF: Final = 0.5 * (1 + 1e-10)


def _added_up(columns: dict[str, np.ndarray], series: Sequence[_Series], rules: Rules) -> pa.RecordBatch:
    """Lines of those series to one row per key and grain."""
    keys: dict[tuple[Any, ...], int] = {}
    inner, outer = (
        np.array([keys.setdefault(one.key(inside), len(keys)) if one.kind != _ODD else 0 for one in series])
        for inside in (True, False)
    )
    code, ts_ms, seq = columns["code"], columns["ts_ms"], columns["seq"]
    inside = np.ones(len(code), bool)
    if rules.since_ms is not None:
        inside &= ts_ms >= rules.since_ms
    if rules.until_ms is not None:
        inside &= ts_ms < rules.until_ms
    grain = np.array([_grain_of(one, rules.grains) for one in series])[code]
    start = np.where(inside, ts_ms // grain * grain, 0)
    starts, nth = np.unique(start, return_inverse=True)
    group = np.where(inside, inner[code], outer[code]) * len(starts) + nth
    order = np.lexsort((seq, group))
    group, code, ts_ms, seq, inside, start = (column[order] for column in (group, code, ts_ms, seq, inside, start))
    begins = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
    rows = _Groups(begins, len(group))
    key_of = list(keys)
    key_ids = group[begins] // len(starts)
    found: dict[str, pa.Array] = {}
    for at, name in enumerate(told.KEY[:-1]):
        values = pa.array([key[at] for key in key_of], _arrow(_KEY_TYPES.get(name, _TEXT)))
        found[name] = values.take(pa.array(key_ids))
    found["start_ms"] = pa.array(start[begins], mask=~inside[begins])
    found["lines"] = pa.array(np.diff(np.append(begins, len(group))))
    if rules.numbers == "prints":
        found["print"] = pa.array(rows.sum(fingerprint.hashed(seq)))
    found |= {"first_ms": pa.array(rows.min(ts_ms)), "last_ms": pa.array(rows.max(ts_ms))}
    found |= {"first_seq": pa.array(seq[begins]), "last_seq": pa.array(rows.max(seq))}
    interval = np.array([one.interval_ms for one in series])[code]
    found["interval_ms"] = _or_null(rows.max(np.where(inside, interval, NULL)))
    values = {name: columns[name][order] for name in (*_LONGS, *_DOUBLES)}
    counts = np.array([one.kind == _SAMPLE and (one.mine or one.queue is None) for one in series])[code] & inside
    here = counts & np.array([one.connected is True for one in series])[code]
    found |= _summed(rows, counts, here, values, ts_ms, _slots(ts_ms - start, interval, grain[order]), rules.objective_ms)
    firsts, lasts = rows.min(np.where(counts, rows.places, len(group))), rows.max(np.where(counts, rows.places, -1))
    values["ts_ms"] = ts_ms
    found["first"] = _look(partials.FIRST, firsts, lasts >= 0, values, code, series)
    found["last"] = _look(partials.LAST, lasts, lasts >= 0, values, code, series)
    return batch_of(len(begins), found)


def _grain_of(series: _Series, grains: partials.Grains) -> int:
    if series.kind != _SAMPLE:
        return partials.MINUTE_MS
    return grains.whole_ms if series.queue is None or not series.mine else grains.queue_ms


def _slots(into_ms: np.ndarray, interval_ms: np.ndarray, grain_ms: np.ndarray) -> np.ndarray:
    """In which slot of its grain a line lies (`partials.slot_ms`)."""
    least = np.maximum(partials.SLOT_MS, -(-grain_ms // partials.MAX_SLOTS))
    found: np.ndarray = into_ms // np.maximum(interval_ms, least)
    return found


class _Groups:
    """Rows that are sorted by group, and what is made of each group's."""

    def __init__(self, begins: np.ndarray, rows: int) -> None:
        self._begins = begins
        self.count = len(begins)
        self.places = np.arange(rows)
        self.of = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, rows)))

    def min(self, values: np.ndarray) -> np.ndarray:
        return np.minimum.reduceat(values, self._begins)

    def max(self, values: np.ndarray) -> np.ndarray:
        return np.maximum.reduceat(values, self._begins)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, self._begins)

    def bits(self, values: np.ndarray) -> np.ndarray:
        return np.bitwise_or.reduceat(values, self._begins)

    def packed(self, which: np.ndarray, values: np.ndarray) -> pa.Array:
        """Counts of the buckets of some rows' values, as `buckets.summed` takes them."""
        size = buckets.WORDS * buckets.PER_WORD
        counts = np.bincount(self.of[which] * size + bucket_of(values[which]), minlength=self.count * size)
        words = counts.reshape(-1, buckets.PER_WORD)
        packed = words[:, 0] | words[:, 1] << buckets.BITS
        ends = np.arange(0, len(packed) + 1, buckets.WORDS, dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), pa.array(packed))


def _summed(
    rows: _Groups,
    counts: np.ndarray,
    here: np.ndarray,
    values: dict[str, np.ndarray],
    ts_ms: np.ndarray,
    slots: np.ndarray,
    objective_ms: float,
) -> dict[str, pa.Array]:
    """What `partials.added_up` makes of samples, but for their first and last looks."""
    lag_ms, lag_bytes = values["lag_ms"], values["lag_bytes"]
    bit = np.left_shift(np.int64(1), slots & 63)
    nothing = np.int64(0)
    late = counts & (~here | (lag_ms > objective_ms))
    sized = counts & (lag_bytes != NULL)
    count = counts.astype(np.int64)
    return {
        "n": pa.array(rows.sum(count)),
        "n_unreachable": pa.array(rows.sum(count - here)),
        "told": pa.array(rows.bits(np.where(counts, bit, nothing))),
        "heard": pa.array(rows.bits(np.where(here, bit, nothing))),
        "over": pa.array(rows.bits(np.where(late, bit, nothing))),
        "max_ms": _or_nan(rows.max(np.where(counts, lag_ms, -np.inf))),
        "max_records": _or_null(rows.max(np.where(counts, values["lag_records"], NULL))),
        "max_bytes": _or_null(rows.max(np.where(counts, lag_bytes, NULL))),
        "max_stall_ms": _or_nan(rows.max(np.where(counts & ~np.isnan(values["stall_ms"]), values["stall_ms"], -np.inf))),
        "max_acked": _or_null(rows.max(np.where(counts, values["acked_index"], NULL))),
        "min_records": _or_null(rows.min(np.where(counts, values["lag_records"], MOST_LONG)), MOST_LONG),
        "first_heard_ms": _or_null(rows.min(np.where(here, ts_ms, MOST_LONG)), MOST_LONG),
        "last_heard_ms": _or_null(rows.max(np.where(here, ts_ms, NULL))),
        "m": rows.packed(here, lag_ms),
        "r": rows.packed(counts, values["lag_records"].astype(np.float64)),
        "b": rows.packed(sized, lag_bytes / partials.BYTES_UNIT),
    }


def _look(
    names: Sequence[str],
    at: np.ndarray,
    there: np.ndarray,
    values: dict[str, np.ndarray],
    code: np.ndarray,
    series: Sequence[_Series],
) -> pa.Array:
    """The lines at those places as structures; null where there is none."""
    at = np.where(there, at, 0)
    fields = []
    for name in names:
        if name in _DOUBLES:
            fields.append(_or_nan(values[name][at]))
        elif name in values:
            fields.append(_or_null(values[name][at]))
        else:
            of_series = pa.array([getattr(one, name) for one in series], _arrow(_IN_LOOKS[name]))
            fields.append(of_series.take(pa.array(code[at])))
    return pa.StructArray.from_arrays(fields, names=list(names), mask=pa.array(~there))


def _or_null(numbers: np.ndarray, null: int = NULL) -> pa.Array:
    return pa.array(numbers, mask=numbers == null)


def _or_nan(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers, mask=~np.isfinite(numbers))


def _arrow(kind: Any) -> pa.DataType:
    return {"string": pa.string(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_()}[kind.simpleString()]


def batch_of(rows: int, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """FOUND's columns; those that are not given are null."""
    fields = [(field.name, _arrow_of(field.dataType)) for field in FOUND.fields]
    arrays = [columns[name] if name in columns else pa.nulls(rows, kind) for name, kind in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _arrow_of(kind: Any) -> pa.DataType:
    if isinstance(kind, StructType):
        return pa.struct([(field.name, _arrow_of(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow_of(kind.elementType))
    return _arrow(kind)
