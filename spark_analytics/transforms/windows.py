"""One backup and queue in one window: percentiles, silence, and a status decided over the window, not by one sample.

The statuses, worst first; the status is the first one whose rule holds (after Burrow's rules for consumers, with silence added):

    SILENT   there is no report about the backup at the window's end: missing reports count as the worst case
    STOPPED  the primary says at the window's end that the backup is not connected
    REWOUND  its acknowledged index decreased within one epoch: it lost data that it had
    STALLED  the acknowledged index did not move in the whole window, with records to acknowledge, for longer than the objective
    LAGGING  over the objective for half the window, or never falling and over it at the end
    GAP      it answers now, but more than a twentieth of the window (and more than one sample) is missing
    OK       none of these
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_analytics.transforms import expected, lag
from spark_analytics.transforms.lag import PERCENTS, WINDOW

STATUSES: Final = ("SILENT", "STOPPED", "REWOUND", "STALLED", "LAGGING", "GAP", "OK")
"""The worst one first."""


def summarise(
    rows: DataFrame,
    histogram: DataFrame,
    segments: DataFrame,
    lengths: Sequence[int],
    *,
    whole_log_only: Sequence[int] = (),
    grain_ms: int | None = None,
    objective_ms: float,
    materialised: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """`lag.gaps`, `lag.histogram` and `expected.segments` to one row per expected window.

    Lags are in ms, records and bytes; `over_share` is in 0..1; `forecast_ms` (backlog / (acknowledge rate - commit rate), in
    batches) is null if nothing waits, and if the backup does not catch up. `materialised` evaluates a frame that is needed
    twice. `grain_ms` is for `lag.percentiles`.
    """
    wanted = expected.windows(segments, lengths, whole_log_only=whole_log_only)
    found = _joined(wanted, lag.merged(rows, lengths, whole_log_only=whole_log_only))
    found = materialised(_with_status(_with_silence(_with_time(found)), objective_ms))
    lags = lag.percentiles(histogram, found, lengths, whole_log_only=whole_log_only, grain_ms=grain_ms)
    return _answers(_joined(found, lags))


def _joined(left: DataFrame, right: DataFrame) -> DataFrame:
    renamed = right.select(*(F.col(name).alias(f"_{name}" if name in WINDOW else name) for name in right.columns))
    return left.join(renamed, lag.same_window(), "left").drop(*(f"_{name}" for name in WINDOW))


def _with_time(rows: DataFrame) -> DataFrame:
    """Add `missing_ms` (expected and not sampled) and `total_ms`."""
    col = F.col
    rows = rows.fillna(dict.fromkeys(("n", "sampled_ms", "heard_ms", "over_ms", "gap_ms"), 0)).fillna({"rewound": False})
    rows = rows.withColumn("slot_ms", F.greatest("slot_ms", "interval_ms"))
    # A window that is no multiple of the interval has sometimes one sample less: that one is in the window beside it.
    is_uneven = (col("window_ms") % col("slot_ms") != 0) & (col("n") > 0) & (col("n") * col("slot_ms") == col("sampled_ms"))
    is_whole = is_uneven & (col("expected_ms") - col("sampled_ms") < col("slot_ms"))
    expected_ms = F.when(is_whole, col("sampled_ms")).otherwise(F.greatest("expected_ms", "sampled_ms"))
    rows = rows.withColumn("expected_ms", expected_ms)
    missing = col("expected_ms") - col("sampled_ms")
    return rows.withColumns({"missing_ms": missing, "total_ms": col("expected_ms")})


def _with_silence(rows: DataFrame) -> DataFrame:
    """Add `trailing_ms` and `silence_ms`: the longest time in which the backup was not heard, as known at the window's end.

    The time may begin before the window.
    """
    col = F.col
    before = Window.partitionBy("backup", "queue", "window_ms").orderBy("start_ms").rowsBetween(Window.unboundedPreceding, -1)
    previous = F.greatest(F.last("last_heard_ms", ignorenulls=True).over(before), col("since_ms"))
    heard = F.greatest(F.coalesce("last_heard_ms", F.coalesce(previous, "since_ms")), col("since_ms"))
    rows = rows.withColumn("trailing_ms", F.greatest(col("to_ms") - heard, F.lit(0).cast("long")))
    trailing = F.when(col("trailing_ms") * 2 > col("slot_ms") * 3, col("trailing_ms")).otherwise(0)
    silence = F.when(col("heard_ms") >= col("expected_ms"), 0).otherwise(F.greatest("gap_ms", trailing))
    return rows.withColumn("silence_ms", silence.cast("long"))


def _with_status(rows: DataFrame, objective_ms: float) -> DataFrame:
    col = F.col
    over = col("over_ms") + col("missing_ms")
    late_at_end = F.coalesce(col("last.lag_ms") > objective_ms, F.lit(False))
    waiting = col("min_records") > 0
    still = col("first.acked_index") == col("last.acked_index")
    never_falls = waiting & (col("first.lag_records") == col("min_records")) & (col("last.lag_records") == col("max_records"))
    quiet = col("trailing_ms") >= 2 * col("slot_ms")
    nobody_spoke = (col("sampled_ms") == 0) | (quiet & F.coalesce(col("last.connected"), F.lit(False)))
    rules = {
        "SILENT": nobody_spoke,
        "STOPPED": ~col("last.connected"),
        "REWOUND": col("rewound"),
        "STALLED": waiting & still & (col("last.stall_ms") > objective_ms),
        "LAGGING": (over * 2 > col("expected_ms")) | (never_falls & late_at_end),
        "GAP": (col("missing_ms") > col("slot_ms")) & (col("missing_ms") * 20 > col("expected_ms")),
    }
    status = F.lit("OK")
    for name, rule in reversed(rules.items()):
        status = F.when(F.coalesce(rule, F.lit(False)), F.lit(name)).otherwise(status)
    return rows.withColumns({"over_ms": over, "over_share": over / col("expected_ms"), "status": status})


def _answers(rows: DataFrame) -> DataFrame:
    col = F.col
    worst = F.greatest(F.coalesce("max_ms", F.lit(0.0)), col("silence_ms").cast("double"))
    rows = rows.withColumn("worst_ms", worst)
    percentiles = [F.coalesce(f"p{percent}_ms", "worst_ms").alias(f"p{percent}_ms") for percent in PERCENTS]
    seconds = (col("last.ts_ms") - col("first.ts_ms")) / 1000
    acked = F.when(seconds > 0, (col("last.acked_index") - col("first.acked_index")) / seconds)
    committed = F.when(seconds > 0, (col("last.commit_index") - col("first.commit_index")) / seconds)
    backlog = F.greatest(col("last.commit_index") - col("last.acked_index"), F.lit(0).cast("long"))
    rows = rows.withColumns({"acked": acked, "committed": committed, "backlog": backlog})
    gains = col("acked") - col("committed")
    return rows.select(
        *WINDOW,
        "epoch",
        "status",
        "n",
        *(F.round(col(f"{name}_ms") / col("slot_ms")).cast("long").alias(name) for name in ("expected", "sampled", "heard")),
        *("expected_ms", "over_ms", "slot_ms", "over_share"),
        *percentiles,
        *("max_ms", "worst_ms", "max_records", "max_bytes"),
        col("max_stall_ms").alias("stall_ms"),
        "silence_ms",
        col("acked").alias("ack_rate"),
        col("committed").alias("commit_rate"),
        gains.alias("catch_up_rate"),
        "backlog",
        F.when((col("backlog") > 0) & (gains > 0), col("backlog") / gains * 1000).alias("forecast_ms"),
        *(
            col(f"last.{name}").alias(name)
            for name in ("lag_records", "lag_bytes", "lag_ms", "state", "connected", "in_sync", "headroom_bytes")
        ),
        col("last.commit_index").alias("commit_index"),
        col("last.acked_index").alias("acked_index"),
    )
