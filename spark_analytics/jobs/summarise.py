"""The batch summary: a folder of telemetry to one `Report` of plain values, which the page, the terminal table and JSON all show.

Order of work: one light pass takes stock (span, clusters, bad lines), then the additive partials are built once and merged to
each span that the report needs: the windows asked for, a fine timeline of each backup's whole log, a queue by time map, and
totals. What comes back to this process is bounded by the sizes below, whatever the data's size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark_analytics.errors import Refused
from spark_analytics.jobs import spans
from spark_analytics.sources import read_lines
from spark_analytics.transforms import expected, failovers, parse, partials, quality, windows

TIMELINE_STEPS: Final = 360
HEAT_STEPS: Final = 120
HEAT_QUEUES: Final = 40
MAX_EVENTS: Final = 500
MAX_ROWS: Final = 200_000
UNNAMED: Final = ("", "new")
_WHOLE_SPAN_MS: Final = 1 << 50
_CACHE_BELOW_BYTES: Final = 512 << 20

Report = dict[str, Any]
"""Plain values, ready for JSON; docs/reference/telemetry.md lists them."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to summarise. Times in ms since 1970; `window_ms` None picks one by the span; `nbytes` is the input's size, if
    known.
    """

    path: str
    now_ms: int
    objective_ms: float = 1000.0
    window_ms: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    cluster: str | None = None
    nbytes: int | None = None
    files: int | None = None
    unfinished: int = 0


@dataclass(frozen=True, slots=True)
class _Stock:
    """What the first pass found: the span, the cluster, and the counts of lines."""

    begin_ms: int
    end_ms: int
    interval_ms: int
    cluster: str
    names: tuple[str, ...]
    """What the cluster goes by in the lines: its name, and the names of those that did not know it."""
    quality: dict[str, Any]


def summarise(spark: SparkSession, request: Request, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Run it. Refused when the folder holds no telemetry of this schema, or the windows are too many."""
    progress("reading")
    parsed = parse.parse(read_lines(spark, request.path), now_ms=request.now_ms)
    small = request.nbytes is not None and request.nbytes < _CACHE_BELOW_BYTES
    parsed = parsed.cache() if small else parsed
    stock = _take_stock(parsed, request)
    lines = parse.good(_in_span(parsed, stock))
    lines = lines.cache() if small else lines
    progress("adding up")
    cut = _cut(stock, request)
    samples, events, rosters = parse.samples(lines), parse.events(lines), parse.rosters(lines)
    reigns = expected.reigns(samples, rosters, end_ms=stock.end_ms).cache()
    view = partials.current_view(samples, reigns)
    keys = expected.expected_keys(view, rosters, reigns).cache()
    grains = {
        "grain_ms": spans.grain_for(cut.window_ms, cut.step_ms, cut.heat_ms),
        "queue_grain_ms": spans.grain_for(cut.window_ms, cut.heat_ms),
    }
    state = partials.lag_partials(view, **grains, objective_ms=request.objective_ms).cache()

    progress("summarising windows")
    rows = _rows(_summary(state, keys, cut, request.objective_ms).limit(MAX_ROWS + 1))
    if len(rows) > MAX_ROWS:
        raise Refused(f"more than {MAX_ROWS:,} rows of backup, queue and window: choose a longer --window, or a --since")
    totals = _of(rows, _WHOLE_SPAN_MS)
    if not totals:
        raise Refused(
            f"{request.path} holds telemetry, but no sample by a primary of its backups in this span: widen --since and --until"
        )
    worst = _worst_queues(totals)
    steps = [row for row in _of(rows, cut.step_ms) if row["queue"] is None]
    progress("looking for failovers")
    changes = [row.asDict() for row in failovers.failovers(reigns, events).collect()]
    happened = _events(events)
    primaries = [row.asDict() for row in reigns.orderBy("begin_ms").collect()]
    stock.quality["samples_used"] = sum(row["n"] for row in totals)
    stock.quality["repeated"] = stock.quality["usable"] - lines.count()
    stock.quality["examples"] = [row.asDict() for row in quality.examples(parsed).collect()] if stock.quality["bad"] else []
    for cached in (state, keys, reigns, lines, parsed):
        cached.unpersist()
    return {
        "report": 1,
        "cluster": stock.cluster,
        "input": request.path,
        "made_ms": request.now_ms,
        "from_ms": stock.begin_ms,
        "to_ms": stock.end_ms,
        "interval_ms": stock.interval_ms,
        "objective_ms": request.objective_ms,
        "window_ms": cut.window_ms,
        "backups": _backups(totals, steps),
        "queues": worst,
        "windows": _of(rows, cut.window_ms),
        "timeline": _timeline(steps, primaries, cut, stock),
        "heat": _heat(_of(rows, cut.heat_ms), [row["queue"] for row in worst], cut, stock),
        "reigns": primaries,
        "failovers": changes,
        "events": happened,
        "quality": stock.quality,
    }


# -- the first pass


def _take_stock(parsed: DataFrame, request: Request) -> _Stock:
    rows = quality.inventory(parsed).collect()
    bad = {row["problem"]: 0 for row in rows if row["problem"]}
    for row in rows:
        if row["problem"]:
            bad[row["problem"]] += row["lines"]
    usable = [row for row in rows if not row["problem"]]
    if not usable:
        raise Refused(_no_schema(request.path, bad))
    cluster, names = _only_cluster(usable, request.cluster)
    chosen = [row for row in usable if row["cluster"] in names]
    first, last = min(row["first_ms"] for row in chosen), max(row["last_ms"] for row in chosen)
    begin = first if request.since_ms is None else max(first, request.since_ms)
    end = last + 1 if request.until_ms is None else request.until_ms
    interval = max((row["interval_ms"] or 0 for row in chosen), default=0) or spans.SECOND
    if begin >= end or begin > last:
        raise Refused(f"no telemetry in that span: {request.path} covers {_iso(first)} to {_iso(last)}; mind --since and --until")
    counts = {
        "files": len({row["file"] for row in rows}),
        "unreadable_files": max(0, (request.files or 0) - len({row["file"] for row in rows})),
        "unfinished_files": request.unfinished,
        "lines": sum(row["lines"] for row in rows),
        "usable": sum(row["lines"] for row in chosen),
        "other_clusters": sum(row["lines"] for row in usable) - sum(row["lines"] for row in chosen),
        "bad": sum(bad.values()),
        "problems": dict(sorted(bad.items())),
        "holes": quality.holes(chosen),
        "age_ms": request.now_ms - last,
    }
    return _Stock(begin, end, interval, cluster, names, counts)


def _no_schema(path: str, bad: dict[str, int]) -> str:
    if not bad:
        return f"the files in {path} are empty: give --input the folder that the brokers write telemetry to"
    reason = max(bad, key=lambda problem: bad[problem])
    return f"no line in {path} is telemetry of version 1 ({sum(bad.values()):,} lines, mostly: {reason}); is it the right folder?"


def _only_cluster(usable: list[Row], wanted: str | None) -> tuple[str, tuple[str, ...]]:
    """The cluster to summarise, and every name under which its lines may stand.

    Only samples name a cluster for certain. A broker that has not joined yet writes one of UNNAMED, and a resource manager may
    know the cluster by a name of its own: when there is only one cluster, such lines are its.
    """
    sampled = {row["cluster"] for row in usable if row["kind"] != "event"} - set(UNNAMED)
    others = {row["cluster"] for row in usable} - sampled
    some = ", ".join(sorted(sampled)[:5]) or "one without a name"
    if wanted is not None and wanted not in sampled:
        raise Refused(f"no cluster {wanted} in there, only {some}: give --cluster one of those")
    if wanted is None and len(sampled) > 1:
        raise Refused(f"telemetry of {len(sampled)} clusters in there ({some}): choose one with --cluster")
    name = wanted or next(iter(sampled), "")
    return name, (name,) if len(sampled) > 1 else (name, *sorted(others))


def _in_span(parsed: DataFrame, stock: _Stock) -> DataFrame:
    """The lines of the cluster and span, all under the cluster's own name."""
    inside = F.col("ts_ms").between(stock.begin_ms, stock.end_ms - 1) & F.col("cluster").isin(*stock.names)
    return parsed.where(F.col("problem").isNotNull() | inside).withColumn("cluster", F.lit(stock.cluster))


# -- cutting the span


@dataclass(frozen=True, slots=True)
class _Cut:
    """Lengths in ms: the windows asked for, the timeline's step (whole log only), the map's step."""

    window_ms: int
    step_ms: int
    heat_ms: int


def _cut(stock: _Stock, request: Request) -> _Cut:
    """Lengths that divide each other where they can: the coarser the common grain, the fewer the partials."""
    span = stock.end_ms - stock.begin_ms
    slot = max(spans.SECOND, stock.interval_ms)
    window = request.window_ms or spans.window_for(span)
    spans.check_count(span, window)
    step = spans.step_for(span, at_most=TIMELINE_STEPS, multiple_of=slot)
    if HEAT_STEPS // 3 <= span // window <= HEAT_STEPS:
        return _Cut(window, step, window)
    return _Cut(window, step, spans.step_for(span, at_most=HEAT_STEPS, multiple_of=step))


def _summary(state: DataFrame, keys: DataFrame, cut: _Cut, objective_ms: float) -> DataFrame:
    """All lengths in one job: a small job's time is Spark's planning, not its rows."""
    lengths = sorted({cut.window_ms, cut.step_ms, cut.heat_ms, _WHOLE_SPAN_MS})
    coarse = [cut.step_ms] if cut.step_ms not in (cut.window_ms, cut.heat_ms) else []
    merged = partials.merge(state, lengths, whole_log_only=coarse)
    roll = expected.expected_windows(keys, lengths, whole_log_only=coarse)
    return windows.summarise(merged, roll, objective_ms=objective_ms)


# -- from rows to plain values


def _of(rows: list[dict[str, Any]], window_ms: int) -> list[dict[str, Any]]:
    """The rows of one length, in order. Sorted here: Spark would do all the work twice, once to sample."""
    chosen = [row for row in rows if row["window_ms"] == window_ms]
    return sorted(chosen, key=lambda row: (row["start_ms"], row["backup"], row["queue"] is not None, row["queue"] or ""))


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [{name: _plain(value) for name, value in row.asDict().items() if name != "cluster"} for row in frame.collect()]


def _plain(value: Any) -> Any:
    """JSON has no infinity: a forecast of never is -1, which the reference says."""
    if isinstance(value, float):
        return round(value, 4) if isfinite(value) else -1.0
    return value


def _backups(totals: list[dict[str, Any]], steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each backup's whole log over the whole span; `now` is the status at the end, `status` the worst rule over all."""
    latest = {row["backup"]: row for row in steps}
    end_ms = max((row["start_ms"] for row in steps), default=0)
    found = []
    for row in sorted((row for row in totals if row["queue"] is None), key=lambda row: row["backup"]):
        last = latest.get(row["backup"])
        now = last["status"] if last and last["start_ms"] == end_ms else "PRIMARY"
        found.append(row | {"now": now, "forecast_s": last["forecast_s"] if last else None})
    return found


def _worst_queues(totals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per queue, its worst backup over the span; worst queue first."""
    worst: dict[str, dict[str, Any]] = {}
    for row in totals:
        queue = row["queue"]
        if queue is not None and (queue not in worst or _badness(row) > _badness(worst[queue])):
            worst[queue] = row
    return sorted(worst.values(), key=lambda row: (_badness(row), row["queue"]), reverse=True)


def _badness(row: dict[str, Any]) -> tuple[float, float, float]:
    return (row["over_share"], row["p99_ms"] or 0.0, row["worst_ms"])


def _timeline(steps: list[dict[str, Any]], reigns: list[dict[str, Any]], cut: _Cut, stock: _Stock) -> dict[str, Any]:
    start = stock.begin_ms // cut.step_ms * cut.step_ms
    count = -(-(stock.end_ms - start) // cut.step_ms)
    columns = ("p50_ms", "p99_ms", "worst_ms", "max_records", "max_bytes", "status", "silence_ms")
    brokers: dict[str, dict[str, list[Any]]] = {}
    for row in steps:
        series = brokers.setdefault(row["backup"], {name: [None] * count for name in columns})
        at = (row["start_ms"] - start) // cut.step_ms
        for name in columns:
            series[name][at] = row[name]
    for reign in reigns:
        brokers.setdefault(reign["primary"], {name: [None] * count for name in columns})
    return {"start_ms": start, "step_ms": cut.step_ms, "count": count, "backups": dict(sorted(brokers.items()))}


def _heat(cells: list[dict[str, Any]], queues: list[str], cut: _Cut, stock: _Stock) -> dict[str, Any]:
    start = stock.begin_ms // cut.heat_ms * cut.heat_ms
    count = -(-(stock.end_ms - start) // cut.heat_ms)
    shown = queues[:HEAT_QUEUES]
    grid: dict[str, list[Any]] = {queue: [None] * count for queue in shown}
    silent: dict[str, list[int]] = {queue: [] for queue in shown}
    for cell in cells:
        queue = cell["queue"]
        if queue in grid:
            at = (cell["start_ms"] - start) // cut.heat_ms
            grid[queue][at] = max(grid[queue][at] or 0.0, cell["worst_ms"])
            if cell["status"] in ("SILENT", "STOPPED"):
                silent[queue].append(at)
    rows = [{"queue": queue, "worst_ms": grid[queue], "silent": sorted(set(silent[queue]))} for queue in shown]
    return {"start_ms": start, "step_ms": cut.heat_ms, "count": count, "queues_in_all": len(queues), "rows": rows}


def _events(events: DataFrame) -> list[dict[str, Any]]:
    newest = events.orderBy(F.col("ts_ms").desc()).limit(MAX_EVENTS).drop("v", "kind", "cluster", "ts")
    return sorted((row.asDict() for row in newest.collect()), key=lambda row: (row["ts_ms"], row["seq"]))


def _iso(ts_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
