"""The additive state of lag: what one backup and queue did in one short grain of time, in a form that can be merged to any span.

Every column is a sum, a maximum, a minimum or a bitwise or, so rows of the same key may be merged in any order. Keys carry the
epoch: an index is never compared with one of another epoch. A sample counts as *told* when the primary spoke of the backup, and
as *heard* when it also said that the backup is connected: a primary that reports a dead backup each second is not news of that
backup.

Time is counted in slots: a slot is the sampling interval, but at least a second and the sixtieth part of the grain, so that a
grain fits the 64 bits of a long. (Grains are chosen so that the interval is the longest of the three.) In rows of one grain
`told`, `heard` and `over` are bitmaps of slots; `counted` makes numbers of them, and from then on they are added up. So:
`added_up` (lines to rows), `combine.combined` (rows of the same key, from several batches), `counted` (bits to numbers, a
deposed primary's cut off), `combine.rolled` (to a longer grain), `merge` (to the windows of a report).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_analytics.transforms import buckets

KEY = ("cluster", "epoch", "backup", "queue")
MAX_SLOTS = 60
SLOT_MS = 1000
MINUTE_MS = 60_000
MAX_GRAIN_MS = 60 * MINUTE_MS
BYTES_UNIT = 1024
BITMAPS = ("told", "heard", "over")
MEASURES = ("m", "r", "b")
"""Lag in ms, records and bytes: the columns of packed counts."""
FIRST = ("ts_ms", "acked_index", "commit_index", "lag_records", "connected")
LAST = (*FIRST, "lag_bytes", "lag_ms", "stall_ms", "state", "in_sync", "headroom_bytes")
SUMS = ("lines", "n", "n_unreachable")
STATES = ("", "joining", "catchup", "ready", "recovering", "active", "standalone")
"""What a broker can be, by the number that stands for it while rows are added up."""
_STATES_ROOM = 16
_TRITS = {"connected": _STATES_ROOM, "in_sync": _STATES_ROOM * 3}
_OF_FLAGS = ("state", *_TRITS)
_OF_LOOKS = {
    "max_ms": "lag_ms",
    "max_records": "lag_records",
    "max_bytes": "lag_bytes",
    "max_stall_ms": "stall_ms",
    "max_acked": "acked_index",
}
HIGHEST = ("interval_ms", "last_ms", "last_seq", "last_heard_ms", *_OF_LOOKS)
LOWEST = ("first_ms", "first_seq", "min_records", "first_heard_ms")
PLAIN = (*SUMS, *HIGHEST, *LOWEST, *BITMAPS)
"""The columns that are numbers."""
COUNTED = (*PLAIN, *MEASURES, "first", "last", "fell")
"""What `counted` rows hold beside their key and start."""


@dataclass(frozen=True, slots=True)
class Grains:
    """The shortest times that are told apart, at most an hour: for the whole log, and for queues, of which there are many."""

    whole_ms: int
    queue_ms: int

    def __post_init__(self) -> None:
        for grain in (self.whole_ms, self.queue_ms):
            assert 0 < grain <= MAX_GRAIN_MS, "a grain is an hour at the most"
            assert not MINUTE_MS % grain or not grain % MINUTE_MS, "a grain fits minutes"
        assert not self.queue_ms % self.whole_ms, "a queue's grain is a multiple of the whole log's"

    def of(self, queue: Column) -> Column:
        """The grain of a queue, or of the whole log."""
        return F.when(queue.isNull(), F.lit(self.whole_ms)).otherwise(F.lit(self.queue_ms))


def longest_grain(interval_ms: int) -> int:
    """The longest grain whose slots are as short as that interval."""
    return min(MAX_GRAIN_MS, MAX_SLOTS * max(SLOT_MS, interval_ms))


def slot_ms(interval_ms: Column, grain_ms: Column | None = None) -> Column:
    """The length of a slot for an interval, in ms; in rows of that grain."""
    least = F.lit(SLOT_MS).cast("long")
    return F.greatest(interval_ms, least) if grain_ms is None else F.greatest(interval_ms, least, F.ceil(grain_ms / MAX_SLOTS))


def observed(lines: DataFrame, *, objective_ms: float) -> DataFrame:
    """Add what `added_up` aggregates to lines with `start_ms`, `grain_ms`, and `counts`: whether a line is a look at a backup."""
    col = F.col
    counted, here = col("counts"), col("counts") & col("connected")
    late = counted & (~col("connected") | (col("lag_ms") > objective_ms))
    slot = F.floor((col("ts_ms") - col("start_ms")) / slot_ms(col("interval_ms"), col("grain_ms"))).cast("int")
    bit = F.call_function("shiftleft", F.lit(1).cast("long"), slot)
    nothing = F.lit(0).cast("long")
    looks = {
        "told_bit": F.when(counted, bit).otherwise(nothing),
        "heard_bit": F.when(here, bit).otherwise(nothing),
        "over_bit": F.when(late, bit).otherwise(nothing),
        "m_bucket": F.when(here, buckets.bucket_of(col("lag_ms"))),
        "r_bucket": F.when(counted, buckets.bucket_of(col("lag_records"))),
        "b_bucket": F.when(counted, buckets.bucket_of(col("lag_bytes") / BYTES_UNIT)),
        "look_seq": F.when(counted, col("seq")),
        "flags": _flags(),
        "here": here,
    }
    return lines.withColumns(looks)


def added_up(lines: DataFrame, key: Sequence[str]) -> DataFrame:
    """`observed` lines to one row per key. `lines` counts all of the group, the other columns what is counted.

    The first and last looks are put together from single numbers: with a structure or a text among the aggregates Spark sorts
    all lines by the key instead of hashing it.
    """
    col = F.col
    looks = {
        f"_{end}_{name}": pick(name, "look_seq")
        for end, pick, names in (("first", F.min_by, FIRST), ("last", F.max_by, LAST))
        for name in ("flags", *(name for name in names if name not in _OF_FLAGS))
    }
    sums = lines.groupBy(*key).agg(
        F.count("*").alias("lines"),
        F.count_if(col("counts")).alias("n"),
        F.count_if(col("counts") & ~col("here")).alias("n_unreachable"),
        F.max("interval_ms").alias("interval_ms"),
        F.min("ts_ms").alias("first_ms"),
        F.max("ts_ms").alias("last_ms"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        *(F.bit_or(f"{name}_bit").alias(name) for name in BITMAPS),
        *(F.max(F.when(col("counts"), col(name))).alias(highest) for highest, name in _OF_LOOKS.items()),
        F.min(F.when(col("counts"), col("lag_records"))).alias("min_records"),
        F.min(F.when(col("here"), col("ts_ms"))).alias("first_heard_ms"),
        F.max(F.when(col("here"), col("ts_ms"))).alias("last_heard_ms"),
        *(look.alias(name) for name, look in looks.items()),
        *(buckets.packed_counts(prefix, f"{prefix}_bucket") for prefix in MEASURES),
    )
    ends = (("first", FIRST), ("last", LAST))
    put = {end: F.when(col(f"_{end}_ts_ms").isNotNull(), _look(end, names)) for end, names in ends}
    return sums.withColumns(put | {prefix: buckets.widened(prefix) for prefix in MEASURES}).drop(*looks)


def _flags() -> Column:
    """`state`, `connected` and `in_sync` as one number: an index into STATES, and two trits above it (0 is null)."""
    code = F.lit(0)
    for at, state in enumerate(STATES):
        code = F.when(F.col("state") == state, F.lit(at)).otherwise(code)
    for name, unit in _TRITS.items():
        code = code + F.when(F.col(name).isNull(), 0).when(F.col(name), 2 * unit).otherwise(unit)
    return code


def _look(end: str, names: Sequence[str]) -> Column:
    flags = F.col(f"_{end}_flags")
    fields = {name: F.col(f"_{end}_{name}") for name in names if name not in _OF_FLAGS}
    if "state" in names:
        fields["state"] = F.get(F.array(*(F.lit(state) for state in STATES)), flags % _STATES_ROOM)
    for name, unit in _TRITS.items():
        if name in names:
            trit = F.floor(flags / unit) % 3
            fields[name] = F.when(trit > 0, trit == 2)
    return F.struct(*(fields[name].alias(name) for name in names))


def counted(rows: DataFrame, reigns: DataFrame, grains: Grains) -> DataFrame:
    """Rows of reigning primaries with numbers of slots for their bitmaps, cut where the next primary's reign begins.

    A deposed primary goes on saying that all is well until it notices. The grains that begin after its reign are not used; of
    the one in which it ended, the slots from then on are taken out, while the lags that it told in them stay.
    """
    col = F.col
    ends = F.broadcast(reigns.select("cluster", "epoch", "primary", "next_ms"))
    slot = slot_ms(col("interval_ms"), grains.of(col("queue")))
    slots = F.floor((col("next_ms") - col("start_ms")) / slot).cast("int")
    inside = rows.join(ends, ["cluster", "epoch", "primary"]).where(col("next_ms").isNull() | (slots > 0))
    mask = F.call_function("shiftleft", F.lit(1).cast("long"), slots) - 1
    cut = col("next_ms").isNotNull() & (slots < 63)
    number = {name: F.bit_count(F.when(cut, col(name).bitwiseAND(mask)).otherwise(col(name))).cast("long") for name in BITMAPS}
    settled = number | {"fell": F.coalesce(col("max_acked") > col("last.acked_index"), F.lit(False))}
    return inside.withColumns(settled).select(*KEY, "start_ms", *COUNTED)


def lengths_of(lengths: Sequence[int], whole_log_only: Sequence[int]) -> Column:
    """The window lengths that a row's queue has, as an array: all of them for the whole log."""
    everything, some = (
        F.array(*(F.lit(length).cast("long") for length in chosen))
        for chosen in (lengths, [length for length in lengths if length not in whole_log_only])
    )
    return F.when(F.col("queue").isNull(), everything).otherwise(some)


def merge(rows: DataFrame, lengths: Sequence[int], *, whole_log_only: Sequence[int] = ()) -> DataFrame:
    """`counted` (or `combine.rolled`) rows to one row per cluster, backup, queue, `window_ms` and `start_ms`, for several window
    lengths at once.

    `lengths` in ms are multiples of the grain; those of `whole_log_only` are not made for single queues. Epochs meet here, so
    what compares indexes is settled first: `rewound` within each row's epoch, `first` and `last` from the newest epoch in the
    window.
    """
    col = F.col
    cut = rows.withColumn("window_ms", F.explode(lengths_of(lengths, whole_log_only)))
    newest_first = F.struct((-col("epoch")).alias("minus_epoch"), col("first").alias("state"))
    newest_last = F.struct("epoch", col("last").alias("state"))
    start = (F.floor(col("start_ms") / col("window_ms")) * col("window_ms")).alias("start_ms")
    merged = cut.groupBy("cluster", "backup", "queue", "window_ms", start).agg(
        F.sum("n").alias("n"),
        F.sum("n_unreachable").alias("n_unreachable"),
        F.max("interval_ms").alias("interval_ms"),
        *(F.sum(name).alias(name) for name in BITMAPS),
        F.max("max_ms").alias("max_ms"),
        F.max("max_records").alias("max_records"),
        F.max("max_bytes").alias("max_bytes"),
        F.min("min_records").alias("min_records"),
        F.max("max_stall_ms").alias("max_stall_ms"),
        F.min("first_heard_ms").alias("first_heard_ms"),
        F.max("last_heard_ms").alias("last_heard_ms"),
        F.min(newest_first).alias("newest_first"),
        F.max(newest_last).alias("newest_last"),
        F.max(F.struct("epoch", "max_acked")).alias("acked"),
        F.max("fell").alias("fell"),
        *(buckets.summed(prefix) for prefix in MEASURES),
    )
    newest = col("newest_last.epoch")
    fell_since = (col("acked.epoch") == newest) & (col("acked.max_acked") > col("newest_last.state.acked_index"))
    newest_states = {
        "first": F.when(-col("newest_first.minus_epoch") == newest, col("newest_first.state")),
        "last": col("newest_last.state"),
        "epoch": newest,
        "rewound": F.coalesce(col("fell") | fell_since, F.lit(False)),
    }
    return merged.withColumns(newest_states).drop("newest_first", "newest_last", "acked", "fell")
