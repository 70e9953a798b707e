"""What one backup and queue did in one window: percentiles, silence, and a status decided over the window, not by one sample.

The statuses, worst first; the first whose rule holds is taken (after Burrow's rules for consumers, with silence added):

    SILENT   nobody spoke of the backup at the window's end: no news is the worst news
    STOPPED  the primary says at the window's end that the backup is not connected
    REWOUND  its acknowledged index fell within one epoch: it lost what it had
    STALLED  the acknowledged index stood still all window, with something to acknowledge, for longer than the objective
    LAGGING  over the objective for half the window, or never falling and over it at the end
    GAP      it answers now, but more than a twentieth of the window (and more than one slot) is missing
    OK       none of these
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_analytics.transforms import buckets
from spark_analytics.transforms.partials import BYTES_UNIT

STATUSES: Final = ("SILENT", "STOPPED", "REWOUND", "STALLED", "LAGGING", "GAP", "OK")
"""Worst first."""

_KEY = ("cluster", "backup", "queue", "window_ms", "start_ms")


def summarise(merged: DataFrame, expected: DataFrame, *, objective_ms: float) -> DataFrame:
    """`partials.merge` and `expected.expected_windows` of the same lengths to one row per expected window.

    Lags in ms, records and bytes; `over_share` in 0..1; `forecast_ms` (backlog / (acknowledge rate - commit rate), in batches)
    null when nothing waits, and when the backup does not gain.
    """
    return _answers(_with_status(_with_silence(_joined(merged, expected)), objective_ms))


def _joined(merged: DataFrame, expected: DataFrame) -> DataFrame:
    right = merged.select(*(F.col(name).alias(f"_{name}" if name in _KEY else name) for name in merged.columns))
    same = F.col("queue").eqNullSafe(F.col("_queue"))
    for name in ("cluster", "backup", "window_ms", "start_ms"):
        same = same & (F.col(name) == F.col(f"_{name}"))
    rows = expected.join(right, same, "left").drop(*(f"_{name}" for name in _KEY))
    rows = rows.fillna(dict.fromkeys(("n", "n_unreachable", "told", "heard", "over"), 0))
    return rows.withColumn("expected", F.greatest("expected", "told")).where(F.col("expected") > 0)


def _with_silence(rows: DataFrame) -> DataFrame:
    """Add `silence_ms`: the longest time in which the backup was not heard, as known when the window ended.

    It reaches back before the window. Missing slots inside the window are taken as one gap, so this is an upper bound there.
    """
    col = F.col
    before = (
        Window.partitionBy("cluster", "backup", "queue", "window_ms")
        .orderBy("start_ms")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    previous = F.greatest(F.last("last_heard_ms", ignorenulls=True).over(before), col("since_ms"))
    rows = rows.withColumn("previous_ms", F.coalesce(previous, col("since_ms")))
    unheard = F.greatest(col("expected") - col("heard"), F.lit(0).cast("long"))
    leading = col("first_heard_ms") - col("previous_ms")
    trailing = col("to_ms") - F.coalesce("last_heard_ms", "previous_ms")
    nothing = F.lit(0).cast("long")
    edges = F.greatest(F.coalesce(leading, nothing), trailing)
    longest = F.when(edges > col("slot_ms") * 2, edges).otherwise(unheard * col("slot_ms"))
    silence = F.when(unheard == 0, nothing).otherwise(F.greatest(longest, nothing))
    return rows.withColumns({"trailing_ms": trailing, "silence_ms": silence})


def _with_status(rows: DataFrame, objective_ms: float) -> DataFrame:
    col = F.col
    missing = col("expected") - col("told")
    over = col("over") + missing
    late_at_end = F.coalesce(col("last.lag_ms") > objective_ms, F.lit(False))
    waiting = col("min_records") > 0
    still = col("first.acked_index") == col("last.acked_index")
    never_falls = waiting & (col("first.lag_records") == col("min_records")) & (col("last.lag_records") == col("max_records"))
    quiet = col("trailing_ms") >= 2 * col("slot_ms")
    nobody_spoke = (col("told") == 0) | (quiet & F.coalesce(col("last.connected"), F.lit(False)))
    rules = {
        "SILENT": nobody_spoke,
        "STOPPED": ~col("last.connected"),
        "REWOUND": col("rewound"),
        "STALLED": waiting & still & (col("last.stall_ms") > objective_ms),
        "LAGGING": (over * 2 > col("expected")) | (never_falls & late_at_end),
        "GAP": (missing > 1) & (missing * 20 > col("expected")),
    }
    status = F.lit("OK")
    for name, rule in reversed(rules.items()):
        status = F.when(F.coalesce(rule, F.lit(False)), F.lit(name)).otherwise(status)
    answers = {"missing": missing, "over_slots": over, "over_share": over / col("expected"), "status": status}
    return rows.withColumns(answers)


def _answers(rows: DataFrame) -> DataFrame:
    col = F.col
    worst = F.greatest(F.coalesce("max_ms", F.lit(0.0)), col("silence_ms").cast("double"))
    per_slot = col("slot_ms") / F.coalesce("interval_ms", "slot_ms")
    unreachable = F.coalesce("n_unreachable", F.lit(0).cast("long")) + F.round(col("missing") * per_slot).cast("long")
    rows = rows.withColumns({"worst_ms": worst, "unreachable": unreachable})
    rows = buckets.with_percentiles(
        rows,
        [
            buckets.Measure("m", "ms", highest="max_ms", worse="unreachable", worst="worst_ms"),
            buckets.Measure("r", "records", highest="max_records", worse="0L", worst="max_records"),
            buckets.Measure("b", "bytes", highest="max_bytes", worse="0L", worst="max_bytes", unit=BYTES_UNIT),
        ],
    )
    seconds = (col("last.ts_ms") - col("first.ts_ms")) / 1000
    acked = F.when(seconds > 0, (col("last.acked_index") - col("first.acked_index")) / seconds)
    committed = F.when(seconds > 0, (col("last.commit_index") - col("first.commit_index")) / seconds)
    backlog = F.greatest(col("last.commit_index") - col("last.acked_index"), F.lit(0).cast("long"))
    return rows.select(
        *_KEY,
        "epoch",
        "status",
        *("n", "n_unreachable", "unreachable"),
        "expected",
        "told",
        "heard",
        "over_slots",
        "slot_ms",
        "over_share",
        *("p50_ms", "p95_ms", "p99_ms"),
        "max_ms",
        "worst_ms",
        *("p50_records", "p95_records", "p99_records"),
        "max_records",
        *("p50_bytes", "p95_bytes", "p99_bytes"),
        "max_bytes",
        col("max_stall_ms").alias("stall_ms"),
        "silence_ms",
        acked.alias("ack_rate"),
        committed.alias("commit_rate"),
        (acked - committed).alias("catch_up_rate"),
        backlog.alias("backlog"),
        F.when((backlog > 0) & (acked > committed), backlog / (acked - committed) * 1000).alias("forecast_ms"),
        *(
            col(f"last.{name}").alias(name)
            for name in ("lag_records", "lag_bytes", "lag_ms", "state", "connected", "in_sync", "headroom_bytes")
        ),
        col("last.commit_index").alias("commit_index"),
        col("last.acked_index").alias("acked_index"),
    )
