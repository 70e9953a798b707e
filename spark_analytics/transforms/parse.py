"""Text lines to typed lines. A line that cannot be trusted keeps its text and gets a `problem`; it is never fatal and never
guessed at.

Life of a line: `parse` reads its JSON with the explicit schema, turns `ts` into `ts_ms`, and names the first thing that is
wrong with it; `good` drops those and repeats of the same (cluster, sender, seq); `samples`, `events` and `rosters` pick the
kinds.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_analytics.schemas import CORRUPT, EVENT, KINDS, LINE, ROSTER, SAMPLE, VERSION

DAY_MS = 86_400_000
_ISO = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$"
_JSON_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "allowNonNumericNumbers": "false"}


def parse(lines: DataFrame, *, now_ms: int) -> DataFrame:
    """`schemas.LINES` to the fields of `schemas.LINE` with `ts_ms` (UTC, ms since 1970), `problem` (null when good), `value`,
    `file`.

    Lines from more than a day after `now_ms` are a problem too: one wrong clock must not stretch a summary by years.
    """
    line = lines.select("file", "value", F.from_json("value", LINE, _JSON_OPTIONS).alias("line"))
    typed = line.select("file", "value", "line.*")
    ts_ms = F.when(F.col("ts").rlike(_ISO), F.expr("unix_millis(try_cast(ts AS TIMESTAMP))"))
    return typed.withColumn("ts_ms", ts_ms).withColumn("problem", _problem(now_ms)).drop(CORRUPT)


def _problem(now_ms: int) -> Column:
    col = F.col
    whole = col("value").rlike(r"\}\s*$")
    is_sample, is_roster = col("kind") == "sample", col("kind") == "roster"
    missing = _any_null("cluster", "epoch", "sender", "seq")
    sample_missing = _any_null("interval_ms", "primary", "backup", "lag_records", "lag_ms", "commit_index", "connected")
    impossible = (col("lag_records") < 0) | (col("lag_ms") < 0) | (col("stall_ms") < 0) | (col("interval_ms") <= 0)
    rules = [
        (~whole, "torn"),
        (col("value").rlike(r'\}\s*\{\s*"'), "two records on one line"),
        (col(CORRUPT).isNotNull(), "not telemetry in JSON"),
        (col("v").isNull() | col("kind").isNull(), "no version or kind"),
        (col("v") > VERSION, "written by a newer version"),
        (~col("kind").isin(*KINDS), "unknown kind"),
        (col("ts_ms").isNull(), "no valid time"),
        (col("ts_ms") > now_ms + DAY_MS, "time in the future"),
        (missing, "a field is missing"),
        (is_sample & sample_missing, "a field is missing"),
        (is_roster & _any_null("interval_ms", "primary", "backups", "queues"), "a field is missing"),
        ((col("kind") == "event") & _any_null("broker", "type"), "a field is missing"),
        ((is_sample | is_roster) & impossible, "impossible value"),
    ]
    problem = F.lit(None).cast("string")
    for condition, text in reversed(rules):
        problem = F.when(condition, F.lit(text)).otherwise(problem)
    return problem


def _any_null(*names: str) -> Column:
    condition = F.col(names[0]).isNull()
    for name in names[1:]:
        condition = condition | F.col(name).isNull()
    return condition


def good(parsed: DataFrame) -> DataFrame:
    """The lines without a problem, each once: a line's identity is (cluster, sender, seq), which no restart repeats."""
    return parsed.where(F.col("problem").isNull()).drop("value", "problem").dropDuplicates(["cluster", "sender", "seq"])


def samples(lines: DataFrame) -> DataFrame:
    """The sample lines, with their fields only."""
    return _of_kind(lines, "sample", list(SAMPLE))


def events(lines: DataFrame) -> DataFrame:
    """The event lines, with their fields only."""
    return _of_kind(lines, "event", list(EVENT))


def rosters(lines: DataFrame) -> DataFrame:
    """The roster lines, with their fields only."""
    return _of_kind(lines, "roster", list(ROSTER))


def _of_kind(lines: DataFrame, kind: str, fields: list[str]) -> DataFrame:
    return lines.where(F.col("kind") == kind).select(*(F.col(f"`{name}`") for name in fields), "ts_ms")
