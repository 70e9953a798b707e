"""The summary: telemetry, or what a stream has kept of it, to one `Report` of plain values, which the page, the terminal and JSON
all show (docs/reference/lag-report.md).

Order of work: `evidence` adds up what was told; `stock` finds the cluster and the span; then the additive rows are merged to each
length that the report needs: the windows asked for, a fine timeline of each backup's whole log, a queue by time map, hours, and
totals. Where all of these rows are few they come in one job, since a small job's time is Spark's planning; where they are many
the totals come first, and the rest for the worst queues alone. What comes back to this process is bounded by the sizes below,
whatever the data's size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_analytics import sources
from spark_analytics.errors import Refused
from spark_analytics.jobs import clocks, compare, series, slo, spans
from spark_analytics.jobs.evidence import Evidence, from_lines, settled
from spark_analytics.jobs.kept import from_store
from spark_analytics.jobs.series import Axis, Rows
from spark_analytics.jobs.stock import Stock, take
from spark_analytics.places import first_line, is_remote, located, size
from spark_analytics.sources import Peek
from spark_analytics.store import Store, is_store
from spark_analytics.transforms import expected, failovers, partials, quality, windows
from spark_analytics.transforms.partials import Grains

OBJECTIVE_MS: Final = 1000.0
"""What is over the objective, where nothing else is said."""
TIMELINE_STEPS: Final = 360
HEAT_STEPS: Final = 120
MAX_EVENTS: Final = 500
MAX_FAILOVERS: Final = 500
MAX_QUEUES: Final = 200
MAX_WINDOWS: Final = 4000
MAX_ROWS: Final = 60_000
"""With more rows than this in all, only the worst queues are looked at in detail."""
CLOCK_SPAN_MS: Final = spans.HOUR
_HOURS_SHOWN_MS: Final = 92 * spans.DAY
_FINE_BURN_MS: Final = 31 * spans.DAY
_WHOLE_SPAN_MS: Final = 1 << 50
_CACHE_BELOW_BYTES: Final = 512 << 20
_PEEK_BELOW_BYTES: Final = 256 << 20
"""So much at a URL is read twice, once to see its span; of more, windows are a minute or as asked for."""
_INTERNAL: Final = ("cluster", "over_slots", "slot_ms", "n_unreachable", "unreachable")
_PERCENTS: Final = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}

Report = dict[str, Any]
"""Plain values, ready for JSON."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to summarise. Times in ms since 1970; `window_ms` None picks one by the span; `nbytes` is the input's size, if
    known. `compare_ms` is the other span to set beside this one, or `compare_before_ms` its length, just before this one.

    With more than `max_rows` windows only the worst queues are looked at in detail. `grains` are chosen by the span unless given;
    `windows_to` is a folder for all windows of all queues.
    """

    path: str
    now_ms: int
    objective_ms: float | None = None
    window_ms: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    cluster: str | None = None
    nbytes: int | None = None
    files: int | None = None
    unfinished: int = 0
    unreadable: int = 0
    target: float = 0.99
    compare_ms: tuple[int, int] | None = None
    compare_before_ms: int | None = None
    grains: Grains | None = None
    windows_to: str | None = None
    max_rows: int = MAX_ROWS
    kafka: sources.Kafka | None = None


def summarise(spark: SparkSession, request: Request, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Run it. Refused when there is nothing of this schema to read, or the windows are too many."""
    report = _summarise(spark, request, progress)
    other = request.compare_ms
    if other is None and request.compare_before_ms is not None:
        other = (report["from_ms"] - request.compare_before_ms, report["from_ms"])
    if other is None:
        return report
    progress("summarising the span to compare with")
    asked = replace(request, since_ms=other[0], until_ms=other[1], windows_to=None, cluster=report["cluster"] or None)
    return report | {"comparison": compare.compare(_summarise(spark, asked, progress), report)}


def _summarise(spark: SparkSession, request: Request, progress: Callable[[str], None]) -> Report:
    progress("reading")
    evidence = _evidence(spark, request)
    try:
        stock = take(
            evidence.presence,
            request.path,
            now_ms=request.now_ms,
            since_ms=request.since_ms,
            until_ms=request.until_ms,
            cluster=request.cluster,
        )
        return _report(evidence, stock, request, progress)
    finally:
        evidence.release()


def _evidence(spark: SparkSession, request: Request) -> Evidence:
    if request.kafka is None and is_store(request.path):
        return from_store(
            spark,
            Store(request.path),
            objective_ms=request.objective_ms,
            since_ms=request.since_ms,
            until_ms=request.until_ms,
        )
    lines = _lines(spark, request)
    nbytes, seen = request.nbytes, None
    if request.kafka is None and is_remote(request.path):
        nbytes = size(spark, request.path)
        if nbytes is not None and nbytes < _PEEK_BELOW_BYTES:
            seen = sources.peek_lines(lines.text, now_ms=request.now_ms)
    elif request.kafka is None:
        seen = sources.peek(Path(request.path), now_ms=request.now_ms)
    small = nbytes is not None and nbytes < _CACHE_BELOW_BYTES
    evidence = from_lines(
        lines,
        request.grains or _grains(request, seen),
        now_ms=request.now_ms,
        objective_ms=OBJECTIVE_MS if request.objective_ms is None else request.objective_ms,
        since_ms=request.since_ms,
        until_ms=request.until_ms,
        small=small,
    )
    if request.files is None and request.kafka is None:
        evidence.counters["files"] = len(lines.text.inputFiles())
    return evidence


def _lines(spark: SparkSession, request: Request) -> sources.Lines:
    if request.kafka is not None:
        return sources.Lines(sources.read_kafka(spark, request.kafka))
    return sources.lines_below(spark, request.path)


def _report(evidence: Evidence, stock: Stock, request: Request, progress: Callable[[str], None]) -> Report:
    cut = _cut(stock, request.window_ms, evidence.grains)
    reigns = settled(expected.reigns(stock.own(evidence.presence), end_ms=stock.end_ms))
    lag = evidence.lag_of(stock.own, reigns, cut.all, cut.of_whole_log)
    rosters = stock.own(evidence.rosters)
    keys = settled(expected.expected_keys(lag, rosters, reigns, evidence.grains))
    progress("summarising windows")
    found = _found(lag, keys, cut, stock, evidence.objective_ms, request.max_rows)
    totals = _of(found, _WHOLE_SPAN_MS)
    if not totals:
        raise Refused(
            f"{request.path} holds telemetry, but no sample by a primary of its backups in this span: widen --since and --until"
        )
    if request.windows_to:
        progress("writing windows")
        _write_windows(lag, keys, cut, request.windows_to, evidence.objective_ms)
    progress("looking for failovers")
    worst = series.worst_queues(totals)
    names = [row["queue"] for row in worst]
    steps = [row for row in _of(found, cut.step_ms) if row["queue"] is None]
    fine = [row for row in _of(found, cut.burn_ms) if row["queue"] is None]
    primaries = [_plain_row(row.asDict()) for row in reigns.drop("next_ms").orderBy("begin_ms").collect()]
    axis, heat_axis = (Axis.over(stock.begin_ms, stock.end_ms, step) for step in (cut.step_ms, cut.heat_ms))
    lanes = series.lanes(steps, primaries, axis, begin_ms=stock.begin_ms, end_ms=stock.end_ms, interval_ms=stock.interval_ms)
    own_events = stock.own(evidence.events)
    happened = _events(own_events)
    cells = _of(found, cut.heat_ms)
    chosen, left_out = _windows(_of(found, cut.window_ms), {name: i for i, name in enumerate(names)})
    left_out = left_out or len(names) > len({row["queue"] for row in chosen if row["queue"] is not None})
    return {
        "report": 2,
        "cluster": stock.cluster,
        "input": request.path,
        "source": evidence.source,
        "made_ms": request.now_ms,
        "from_ms": stock.begin_ms,
        "to_ms": stock.end_ms,
        "dropped_before_ms": evidence.counters.get("dropped_before_ms"),
        "interval_ms": stock.interval_ms,
        "objective_ms": evidence.objective_ms,
        "window_ms": cut.window_ms,
        "backups": [_public(row) for row in _backups(totals, steps)],
        "queues": [_public(row) for row in worst[:MAX_QUEUES]],
        "windows": [_public(row) for row in chosen],
        "windows_left_out": left_out,
        "timeline": series.timeline(steps, primaries, axis),
        "lanes": lanes,
        "heat": series.heat(cells, names, heat_axis),
        "detail": series.detail(cells, names, heat_axis),
        "worst_hours": series.worst_hours(
            _of(found, cut.hour_ms), length_ms=cut.hour_ms, begin_ms=stock.begin_ms, end_ms=stock.end_ms
        ),
        "slo": slo.burn(steps, fine, axis, Axis.over(stock.begin_ms, stock.end_ms, cut.burn_ms), target=request.target),
        "reigns": primaries,
        "failovers": _failovers(_changes(reigns, own_events), lag, steps, primaries),
        "events": happened,
        "comparison": None,
        "quality": _quality(evidence, stock, request, totals),
    }


# -- cutting the span


@dataclass(frozen=True, slots=True)
class Cut:
    """Lengths in ms: the windows asked for, the timeline's step (whole log only), the map's step, the burn's (whole log),
    and the hours (days in long spans) of which the worst are shown."""

    window_ms: int
    step_ms: int
    heat_ms: int
    burn_ms: int
    hour_ms: int

    @property
    def all(self) -> list[int]:
        """Every length that is merged."""
        return sorted({self.window_ms, self.step_ms, self.heat_ms, self.burn_ms, self.hour_ms, _WHOLE_SPAN_MS})

    @property
    def of_whole_log(self) -> list[int]:
        """Those that single queues do without."""
        return sorted({self.step_ms, self.burn_ms} - {self.window_ms, self.heat_ms, self.hour_ms})


def _cut(stock: Stock, window_ms: int | None, grains: Grains | None) -> Cut:
    """Lengths that divide each other where they can, the coarser the better; multiples of the grains where those are given."""
    span = stock.end_ms - stock.begin_ms
    slot = max(spans.SECOND, stock.interval_ms)
    step_of, queue_of = (grains.whole_ms, grains.queue_ms) if grains else (1, 1)
    window = window_ms or spans.multiple(spans.window_for(span, stock.interval_ms), queue_of)
    if window % queue_of:
        raise Refused(f"windows are no multiple of {queue_of // 1000} s, by which queues were kept: ask for a longer --window")
    spans.check_count(span, window)
    step = spans.step_for(span, at_most=TIMELINE_STEPS, multiple_of=spans.multiple(slot, step_of))
    burn = 5 * spans.MINUTE if step > 5 * spans.MINUTE and span <= _FINE_BURN_MS else step
    hour = spans.HOUR if span <= _HOURS_SHOWN_MS else spans.DAY
    if HEAT_STEPS // 3 <= span // window <= HEAT_STEPS:
        return Cut(window, step, window, burn, hour)
    heat = spans.step_for(span, at_most=HEAT_STEPS, multiple_of=spans.multiple(step, queue_of))
    return Cut(window, step, heat, burn, hour)


def _grains(request: Request, seen: Peek | None) -> Grains:
    """Grains that fit the span as far as it is known before anything is added up; those of the windows, if only these are."""
    first_ms, last_ms = request.since_ms, request.until_ms
    interval = shortest = spans.SECOND
    if (first_ms is None or last_ms is None) and seen is not None:
        first_ms = max(seen.first_ms, first_ms or seen.first_ms)
        last_ms = last_ms or seen.last_ms + 1
        interval, shortest = seen.interval_ms or interval, seen.shortest_ms or shortest
    if first_ms is None or last_ms is None or last_ms <= first_ms:
        whole_ms, queue_ms = spans.STANDARD_GRAINS.whole_ms, spans.STANDARD_GRAINS.queue_ms
        queue_ms = spans.grain_for(shortest, queue_ms, request.window_ms or queue_ms)
        return Grains(spans.grain_for(shortest, whole_ms, queue_ms), queue_ms)
    stock = Stock(first_ms, last_ms, interval, "", (), {})
    cut = _cut(stock, request.window_ms, None)
    queue = spans.grain_for(shortest, cut.window_ms, cut.heat_ms, cut.hour_ms)
    return Grains(spans.grain_for(shortest, cut.step_ms, cut.burn_ms, queue), queue)


# -- the rows


def _found(lag: DataFrame, keys: DataFrame, cut: Cut, stock: Stock, objective_ms: float, max_rows: int) -> Rows:
    """All rows of all lengths, in one job if they are few; else the totals first, and the rest for the worst queues alone."""
    span = stock.end_ms - stock.begin_ms
    rows_a_key = sum(1 + span // length for length in (cut.window_ms, cut.heat_ms, cut.hour_ms))
    if keys.count() * rows_a_key <= max_rows:
        return _rows(_summary(lag, keys, cut.all, cut.of_whole_log, objective_ms))
    rest = [length for length in cut.all if length != _WHOLE_SPAN_MS]
    found = _rows(_summary(lag, keys, cut.all, rest, objective_ms))
    queues = [row["queue"] for row in series.worst_queues(_of(found, _WHOLE_SPAN_MS))]
    backups = len({row["backup"] for row in found})
    lengths = [length for length in rest if length not in cut.of_whole_log]
    if cut.window_ms not in (cut.heat_ms, cut.hour_ms) and len(_of(found, cut.window_ms)) >= MAX_WINDOWS:
        lengths.remove(cut.window_ms)  # the report has no room for those of queues
    rows_a_key = sum(1 + span // length for length in lengths)
    chosen = queues[: max(1, min(series.HEAT_QUEUES, max_rows // rows_a_key // backups))]
    few_lag, few_keys = (frame.where(F.col("queue").isin(*chosen)) for frame in (lag, keys))
    return found + (_rows(_summary(few_lag, few_keys, lengths, [], objective_ms)) if queues else [])


def _summary(lag: DataFrame, keys: DataFrame, lengths: list[int], of_whole_log: list[int], objective_ms: float) -> DataFrame:
    merged = partials.merge(lag, lengths, whole_log_only=of_whole_log)
    roll = expected.expected_windows(keys, lengths, whole_log_only=of_whole_log)
    return windows.summarise(merged, roll, objective_ms=objective_ms)


def _write_windows(lag: DataFrame, keys: DataFrame, cut: Cut, path: str, objective_ms: float) -> None:
    rows = _summary(lag, keys, [cut.window_ms], [], objective_ms).drop(*_INTERNAL[1:])
    try:
        rows.write.parquet(located(path))
    except Exception as error:
        raise Refused(f"cannot write {path}: {first_line(error)}; choose a new folder") from None


def _of(rows: Rows, window_ms: int) -> Rows:
    """The rows of one length, in order. Sorted here: Spark would do all the work twice, once to sample."""
    chosen = [row for row in rows if row["window_ms"] == window_ms]
    return sorted(chosen, key=lambda row: (row["start_ms"], row["backup"], row["queue"] is not None, row["queue"] or ""))


def _rows(frame: DataFrame) -> Rows:
    return [_plain_row(row.asDict()) for row in frame.collect()]


def _plain_row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in row.items() if name != "cluster"}


def _plain(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, float):
        return round(value, 4) if isfinite(value) else None
    return value


def _public(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _INTERNAL}


# -- the parts of the report


def _backups(totals: Rows, steps: Rows) -> Rows:
    """Each backup's whole log over the whole span; `now` is the status at the end, `status` the worst rule over all."""
    latest = {row["backup"]: row for row in steps}
    end_ms = max((row["start_ms"] for row in steps), default=0)
    found = []
    for row in sorted((row for row in totals if row["queue"] is None), key=lambda row: row["backup"]):
        last = latest.get(row["backup"], {})
        now = last["status"] if last.get("start_ms") == end_ms else "PRIMARY"
        ending = {name: last.get(name) for name in ("ack_rate", "commit_rate", "catch_up_rate", "backlog", "forecast_ms")}
        own = [step["silence_ms"] or 0 for step in steps if step["backup"] == row["backup"]]
        found.append(row | _longest_silence(row, max(own, default=0)) | ending | {"now": now})
    return found


def _longest_silence(row: dict[str, Any], silence_ms: float) -> dict[str, Any]:
    """The row's silence, and what is as bad as it, by the steps of the timeline: over the whole span several times in which
    nothing was heard would count as one.
    """
    worst = max(row["max_ms"] or 0.0, float(silence_ms))
    reached = row["n"] - row["n_unreachable"]
    total = reached + row["unreachable"]
    silent = [name for name, percent in _PERCENTS.items() if ceil(total * percent) > reached]
    return {"silence_ms": silence_ms, "worst_ms": worst} | dict.fromkeys(silent, worst)


def _windows(rows: Rows, places: dict[str, int]) -> tuple[Rows, bool]:
    """The windows that the report has room for, in order of time, and whether some were left out."""
    newest = sorted((row for row in rows if row["queue"] is None), key=lambda row: row["start_ms"], reverse=True)[:MAX_WINDOWS]
    queues = sorted((row for row in rows if row["queue"] is not None), key=lambda row: places[row["queue"]])
    chosen = (newest + queues)[:MAX_WINDOWS]
    order = sorted(chosen, key=lambda row: (row["start_ms"], row["backup"], row["queue"] is not None, row["queue"] or ""))
    return order, len(chosen) < len(rows)


def _changes(reigns: DataFrame, events: DataFrame) -> Rows:
    told = events.where(F.col("type").isin(*failovers.TYPES)).drop("cluster").collect()
    found = failovers.failovers([row.asDict() for row in reigns.collect()], [row.asDict() for row in told])
    return [_plain_row(row) for row in found][-MAX_FAILOVERS:]


def _failovers(rows: Rows, lag: DataFrame, steps: Rows, reigns: Rows) -> Rows:
    if not rows:
        return []
    looks: dict[int, Rows] = {}
    for look in failovers.first_looks(lag).collect():
        looks.setdefault(look["epoch"], []).append({name: look[name] for name in ("backup", "connected", "records")})
    ends = {reign["epoch"]: reign["end_ms"] for reign in reigns}
    return [row | _aftermath(row, looks.get(row["epoch"], []), steps, ends[row["epoch"]]) for row in rows]


def _aftermath(change: dict[str, Any], peers: Rows, steps: Rows, end_ms: int) -> dict[str, Any]:
    """What the new primary's peers lacked, and how long until the last of them was well.

    Of a member that was not there, as the primary that was killed, nobody knows what it holds: it is told apart.
    """
    well: dict[str, int | None] = {peer["backup"]: None for peer in peers}
    for step in steps:
        backup = step["backup"]
        inside = change["at_ms"] < step["start_ms"] + step["window_ms"] and step["start_ms"] < end_ms
        if inside and backup in well and well[backup] is None and step["status"] == "OK":
            well[backup] = max(0, step["start_ms"] - change["at_ms"])
    times = [time for time in well.values() if time is not None]
    return {
        "recovery_ms": max(times) if times and len(times) == len(well) else None,
        "peers": sorted(peers, key=lambda peer: str(peer["backup"])),
        "unreplicated_records": max((peer["records"] for peer in peers if peer["connected"]), default=None),
    }


def _events(events: DataFrame) -> Rows:
    newest = events.orderBy(F.col("ts_ms").desc(), F.col("sender"), F.col("seq").desc()).limit(MAX_EVENTS)
    rows = [row.asDict() for row in newest.drop("v", "kind", "cluster", "ts").collect()]
    return sorted(rows, key=lambda row: (row["ts_ms"], row["sender"], row["seq"]))


def _quality(evidence: Evidence, stock: Stock, request: Request, totals: Rows) -> dict[str, Any]:
    own = stock.own(evidence.presence)
    drops = stock.own(evidence.events).where(F.col("type") == "drop")
    reasons = drops.groupBy(F.coalesce("detail", F.lit("")).alias("reason")).agg(F.sum("lost_records").alias("lines")).collect()
    views = stock.own(evidence.views).where(F.col("start_ms") >= stock.end_ms - CLOCK_SPAN_MS).collect()
    repeated = evidence.counters["repeated"]
    counts = stock.quality
    return counts | {
        "files": request.files or evidence.counters.get("files", 0),
        "unreadable_files": request.unreadable,
        "unfinished_files": request.unfinished,
        "lines": counts["lines"] + repeated,
        "usable": counts["usable"] + repeated,
        "samples_used": sum(row["n"] for row in totals),
        "repeated": repeated,
        "late": evidence.counters["late"],
        "holes": quality.holes(own).collect()[0]["holes"],
        "drops": {
            "lines": sum(row["lines"] or 0 for row in reasons),
            "reasons": {row["reason"]: row["lines"] or 0 for row in sorted(reasons, key=lambda row: str(row["reason"]))},
        },
        "clocks": clocks.offsets(row.asDict() for row in views),
        "examples": [row.asDict() for row in quality.examples(evidence.quarantine).collect()] if counts["bad"] else [],
    }
