"""The summary: from telemetry, or from the sums of a stream, to one `Report` of plain values. The page, the terminal and JSON
all show this report (docs/reference/lag-report.md).

Order of work: `inputs` gives typed lines; `scope` finds the cluster and the span. Then samples are added up once, by a short
grain, and merged to each length that the report needs: the requested windows, a fine timeline of each backup's whole log, a
queue by time map, hours, and totals. If all of these rows are few, one job makes them, because the time of a small job is
mostly Spark's planning. If they are many, the totals are made first, and the rest only for the worst queues. The rows that
return to this process are bounded by the sizes below, whatever the data's size; but those of who is expected (`lag.seen`,
`lines.rosters`) are one for each backup and queue, and one for each change of the roster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_analytics import sources
from spark_analytics.dashboard.formatting import span as span_of
from spark_analytics.errors import Refused
from spark_analytics.jobs import clocks, compare, inputs, loss, scope, series, slo, spans
from spark_analytics.jobs.inputs import Inputs, compiled, materialised
from spark_analytics.jobs.scope import Scope
from spark_analytics.jobs.series import Axis, Rows
from spark_analytics.locations import first_line, located
from spark_analytics.transforms import expected, failovers, lag, quality, windows
from spark_analytics.transforms import lines as of_lines
from spark_analytics.transforms.expected import Segment
from spark_analytics.transforms.lag import Grains

OBJECTIVE_MS: Final = 1000.0
"""The default objective: longer lag is over the objective."""
TIMELINE_STEPS: Final = 360
HEAT_STEPS: Final = 120
MAX_EVENTS: Final = 500
MAX_FAILOVERS: Final = 500
MAX_QUEUES: Final = 200
MAX_WINDOWS: Final = 4000
MAX_ROWS: Final = 60_000
"""With more rows in total than this, only the worst queues get details."""
CLOCK_SPAN_MS: Final = spans.HOUR
_HOURS_SHOWN_MS: Final = 92 * spans.DAY
_FINE_BURN_MS: Final = 31 * spans.DAY
_STATE_SLOTS: Final = 10
"""The state at the end is told from at least so many samples, and at least a minute, or from a step of the timeline."""
_WHOLE_SPAN_MS: Final = 1 << 50
EXACT_SAMPLES: Final = 200_000
"""Up to so many samples, percentiles are exact. With more samples, lags are rounded to 2.2 %."""
_TERM: Final = ("epoch", "primary", "begin_ms", "end_ms", "last_said_ms", "interval_ms")
_VIEW_MS: Final = 10 * spans.SECOND
_INTERNAL: Final = ("over_ms", "expected_ms", "slot_ms")
_OF_QUERY: Final = ("newest", "dropped")

Report = dict[str, Any]
"""Plain values, ready for JSON."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to summarise. Times are in ms since 1970; `window_ms` None chooses it by the span; `nbytes` is the input's size,
    if known. `compare_ms` is the other span for the comparison, or `compare_before_ms` is the length of a span just before
    this one.

    With more than `max_rows` windows, only the worst queues get details. `windows_to` is a folder for all windows of all
    queues.
    """

    path: str
    now_ms: int
    objective_ms: float = OBJECTIVE_MS
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
    windows_to: str | None = None
    max_rows: int = MAX_ROWS
    kafka: sources.Kafka | None = None


def summarise(spark: SparkSession, request: Request, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Make the summary. Refused if there is nothing of this schema to read, or if there are too many windows.

    Lines are read once for both spans of a comparison. Of a stream's folder, each span has hours of its own.
    """
    with _reading(spark, request, progress) as read:
        report = _report(read, request, progress)
        other = request.compare_ms
        if other is None and request.compare_before_ms is not None:
            other = (report["from_ms"] - request.compare_before_ms, report["from_ms"])
        if other is None:
            return report
        progress("summarising the span to compare with")
        asked = replace(request, since_ms=other[0], until_ms=other[1], windows_to=None, cluster=report["cluster"] or None)
        try:
            with _reading(spark, asked, progress) if read.source == "stream" else nullcontext(read) as its:
                before = _report(its, asked, progress)
        except Refused as refused:
            raise Refused(f"the span to compare with ({span_of(*other)}) cannot be summarised: {refused}") from None
        return report | {"comparison": compare.compare(before, report)}


@contextmanager
def _reading(spark: SparkSession, request: Request, progress: Callable[[str], None]) -> Iterator[Inputs]:
    """The input, while the context lasts."""
    progress("reading")
    read = inputs.read(
        spark,
        request.path,
        request.kafka,
        now_ms=request.now_ms,
        since_ms=request.since_ms,
        until_ms=request.until_ms,
        nbytes=request.nbytes,
    )
    try:
        yield read
    finally:
        read.release()


@dataclass(frozen=True, slots=True)
class _State:
    """The state of lag, added up: `lag.seen`, `lag.gaps` and `lag.histogram`, and `expected.segments`. `votes` are those of the
    last term's `lines.rosters` with which the votes changed; none if it has no roster."""

    seen: Rows
    votes: Rows
    rows: DataFrame
    histogram: DataFrame
    segments: list[Segment]
    grain_ms: int | None
    """The grain of queues if there is much to add up; None otherwise."""

    def of_queues(self, names: list[str]) -> _State:
        """The state of those queues only."""
        some, chosen = F.col("queue").isin(*names), set(names)
        segments = [one for one in self.segments if one.queue in chosen]
        return _State(self.seen, self.votes, self.rows.where(some), self.histogram.where(some), segments, self.grain_ms)

    def windows(self, lengths: list[int], of_whole_log: list[int], objective_ms: float) -> DataFrame:
        """Rows of `windows.summarise`."""
        return windows.summarise(
            self.rows,
            self.histogram,
            expected.as_frame(self.rows.sparkSession, self.segments),
            lengths,
            whole_log_only=of_whole_log,
            grain_ms=self.grain_ms,
            objective_ms=objective_ms,
            materialised=materialised,
        )


def _report(read: Inputs, request: Request, progress: Callable[[str], None]) -> Report:
    def tagged(lines: DataFrame) -> DataFrame:
        return of_lines.tagged(lines, since_ms=request.since_ms, until_ms=request.until_ms)

    every = tagged(read.lines)
    presence = materialised(of_lines.with_leaps(of_lines.presence(every)))
    inventory = quality.inventory(presence).collect()
    if any(row["problem"] == of_lines.WRONG_CLOCK for row in inventory):
        every = tagged(of_lines.without_leaps(read.lines, presence))
        presence = materialised(of_lines.presence(every))
        inventory = quality.inventory(presence).collect()
    found = scope.find(
        inventory,
        request.path,
        now_ms=request.now_ms,
        since_ms=request.since_ms,
        until_ms=request.until_ms,
        cluster=request.cluster,
        whole=read.source != "stream" or (request.since_ms is None and request.until_ms is None),
    )
    cut = cut_of(found, request.window_ms)
    present, lines = found.own(presence), found.own(every)
    progress("adding up samples")
    with compiled(read.lines.sparkSession, lines=found.samples):
        state = _state(lines, cut, found, request)
        progress("summarising windows")
        rows = _found(state, cut, found, request)
    totals = _of(rows, _WHOLE_SPAN_MS)
    if not totals and not state.votes:  # a roster without backups tells that there are none
        raise Refused(
            f"{request.path} holds telemetry, but no sample by a primary of its backups in this span: widen --since and --until"
        )
    if request.windows_to:
        progress("writing windows")
        _write_windows(state, cut, request.windows_to, request.objective_ms)
    progress("looking for failovers")
    return _put_together(read, request, found, cut, rows, totals, state, lines, present)


def _state(lines: DataFrame, cut: Cut, found: Scope, request: Request) -> _State:
    samples = lag.samples(lines, found.terms)
    grains = materialised(lag.grains(samples, cut.grains, objective_ms=request.objective_ms))
    seen = [row.asDict() for row in lag.seen(grains).collect()]
    told = of_lines.rosters(lines).collect() if "roster" in found.kinds else []
    rosters = sorted((row.asDict() for row in told), key=lambda row: (row["from_ms"], row["seq"]))
    segments = expected.segments(seen, rosters, found.terms)
    segments = expected.within(segments, found.begin_ms, found.end_ms, interval_ms=found.interval_ms)
    votes: Rows = []
    for one in (one for one in rosters if found.terms and one["epoch"] == found.terms[-1]["epoch"]):
        if not votes or loss.vote(one) != loss.vote(votes[-1]):
            votes.append({name: one[name] for name in ("from_ms", "voters", "witness", "witness_connected")})
    rows = lag.gaps(grains, expected.as_frame(lines.sparkSession, segments))
    if found.samples <= EXACT_SAMPLES:
        return _State(seen, votes, rows, lag.histogram(samples, cut.grains, exact=True), segments, None)
    histogram = materialised(lag.histogram(samples, cut.grains, exact=False))
    return _State(seen, votes, materialised(rows), histogram, segments, cut.grains.queue_ms)


def _put_together(
    read: Inputs,
    request: Request,
    found: Scope,
    cut: Cut,
    rows: Rows,
    totals: Rows,
    state: _State,
    lines: DataFrame,
    present: DataFrame,
) -> Report:
    worst = series.worst_queues(totals)
    names = [row["queue"] for row in worst]
    steps = [row for row in _of(rows, cut.step_ms) if row["queue"] is None]
    fine = [row for row in _of(rows, cut.burn_ms) if row["queue"] is None]
    terms = sorted(found.terms, key=lambda term: term["begin_ms"])
    primaries = [{name: term[name] for name in _TERM} for term in terms]
    axis, heat_axis = (Axis.over(found.begin_ms, found.end_ms, step) for step in (cut.step_ms, cut.heat_ms))
    lanes = series.lanes(steps, primaries, axis, begin_ms=found.begin_ms, end_ms=found.end_ms, interval_ms=found.interval_ms)
    short = [row for row in _of(rows, cut.state_ms) if row["queue"] is None]
    states = series.states(short, length_ms=cut.state_ms, end_ms=found.end_ms)
    backups, timeline = _backups(totals, states, state.segments, found), series.timeline(steps, primaries, axis)
    told = _told(lines) if "event" in found.kinds else []
    cells = _of(rows, cut.heat_ms)
    chosen, left_out = _windows(_of(rows, cut.window_ms), {name: i for i, name in enumerate(names)})
    left_out = left_out or len(names) > len({row["queue"] for row in chosen if row["queue"] is not None})
    return {
        "report": 4,
        "cluster": found.cluster,
        "input": request.path,
        "source": read.source,
        "made_ms": request.now_ms,
        "from_ms": found.begin_ms,
        "to_ms": found.end_ms,
        "dropped_before_ms": read.counters.get("dropped_before_ms"),
        "interval_ms": found.interval_ms,
        "objective_ms": request.objective_ms,
        "window_ms": cut.window_ms,
        "exact": found.samples <= EXACT_SAMPLES,
        "loss": loss.primary_loss(backups, timeline, primaries, begin_ms=found.begin_ms, end_ms=found.end_ms, votes=state.votes),
        "backups": [_public(row) for row in backups],
        "queues": [_public(row) for row in worst[:MAX_QUEUES]],
        "windows": [_public(row) for row in chosen],
        "windows_left_out": left_out,
        "timeline": timeline,
        "lanes": lanes,
        "heat": series.heat(cells, names, heat_axis),
        "detail": series.detail(cells, names, heat_axis),
        "worst_hours": series.worst_hours(
            _of(rows, cut.hour_ms), length_ms=cut.hour_ms, begin_ms=found.begin_ms, end_ms=found.end_ms
        ),
        "slo": slo.burn(
            steps,
            fine,
            axis,
            Axis.over(found.begin_ms, found.end_ms, cut.burn_ms),
            end_ms=found.end_ms,
            target=request.target,
        ),
        "terms": primaries,
        "failovers": _failovers(_changes(terms, told), state.seen, steps, primaries),
        "events": _events(told),
        "comparison": None,
        "quality": _quality(read, found, request, totals, lines, present, told),
    }


# -- cutting the span


@dataclass(frozen=True, slots=True)
class Cut:
    """Lengths in ms: the requested windows, the timeline's step (whole log only), the map's step, the burn's step (whole log
    only), the hours (days in long spans) of which the worst are shown, and the short windows of which the last ones tell the
    state at the end (whole log only)."""

    window_ms: int
    step_ms: int
    heat_ms: int
    burn_ms: int
    hour_ms: int
    state_ms: int
    grains: Grains

    @property
    def all(self) -> list[int]:
        """All lengths that are merged."""
        return sorted({*self._throughout, self.state_ms, _WHOLE_SPAN_MS})

    @property
    def of_whole_log(self) -> list[int]:
        """The lengths that single queues do not need."""
        return sorted({self.step_ms, self.burn_ms, self.state_ms} - {self.window_ms, self.heat_ms, self.hour_ms})

    @property
    def _throughout(self) -> set[int]:
        return {self.window_ms, self.step_ms, self.heat_ms, self.burn_ms, self.hour_ms}

    def rows(self, frame: DataFrame, end_ms: int) -> Rows:
        """The rows of `windows.summarise`. Of windows that only tell the state at the end, there are many, and the last are
        enough."""
        if self.state_ms not in self._throughout:
            frame = frame.where((F.col("window_ms") != self.state_ms) | (F.col("start_ms") >= end_ms - 2 * self.state_ms))
        return _rows(frame)


def cut_of(found: Scope, window_ms: int | None) -> Cut:
    """Lengths that divide each other if possible, the coarser the better, and grains that divide all of them."""
    span = found.end_ms - found.begin_ms
    window = window_ms or spans.window_for(span, found.interval_ms)
    spans.check_count(span, window)
    slot = -(-spans.SECOND // found.interval_ms) * found.interval_ms
    step = spans.step_for(span, at_most=TIMELINE_STEPS, multiple_of=slot)
    burn = 5 * spans.MINUTE if step > 5 * spans.MINUTE and span <= _FINE_BURN_MS else step
    hour = spans.HOUR if span <= _HOURS_SHOWN_MS else spans.DAY
    is_map = HEAT_STEPS // 3 <= span // window <= HEAT_STEPS and not window % found.interval_ms
    heat = window if is_map else spans.step_for(span, at_most=HEAT_STEPS, multiple_of=step)
    state = min(step, spans.step_for(max(spans.MINUTE, _STATE_SLOTS * slot), at_most=1, multiple_of=slot))
    queue = spans.grain_for(found.shortest_ms, window, heat, hour)
    whole = spans.grain_for(found.shortest_ms, step, burn, state, queue)
    return Cut(window, step, heat, burn, hour, state, Grains(whole, queue))


# -- the rows


def _found(state: _State, cut: Cut, found: Scope, request: Request) -> Rows:
    """All rows of all lengths, in one job if they are few. Otherwise the rows of the whole log and the totals first, then the
    rest for the worst queues only."""
    span = found.end_ms - found.begin_ms
    rows_a_key = sum(1 + span // length for length in (cut.window_ms, cut.heat_ms, cut.hour_ms))
    if len(state.segments) * rows_a_key <= request.max_rows:
        return cut.rows(state.windows(cut.all, cut.of_whole_log, request.objective_ms), found.end_ms)
    rest = [length for length in cut.all if length != _WHOLE_SPAN_MS]
    rows = cut.rows(state.windows(cut.all, rest, request.objective_ms), found.end_ms)
    queues = [row["queue"] for row in series.worst_queues(_of(rows, _WHOLE_SPAN_MS))]
    backups = len({row["backup"] for row in rows})
    lengths = [length for length in rest if length not in cut.of_whole_log]
    if cut.window_ms not in (cut.heat_ms, cut.hour_ms) and len(_of(rows, cut.window_ms)) >= MAX_WINDOWS:
        lengths.remove(cut.window_ms)  # the report has no room for windows of queues
    rows_a_key = sum(1 + span // length for length in lengths)
    chosen = queues[: max(1, min(series.HEAT_QUEUES, request.max_rows // rows_a_key // backups))]
    return rows + (_rows(state.of_queues(chosen).windows(lengths, [], request.objective_ms)) if queues else [])


def _write_windows(state: _State, cut: Cut, path: str, objective_ms: float) -> None:
    rows = state.windows([cut.window_ms], [], objective_ms).drop(*_INTERNAL)
    try:
        rows.write.parquet(located(path))
    except Exception as error:
        raise Refused(f"cannot write {path}: {first_line(error)}; choose a new folder") from None


def _of(rows: Rows, window_ms: int) -> Rows:
    """The rows of one length, in order. They are sorted here, because Spark would do all the work twice, once to sample."""
    chosen = [row for row in rows if row["window_ms"] == window_ms]
    return sorted(chosen, key=lambda row: (row["start_ms"], row["backup"], row["queue"] is not None, row["queue"] or ""))


def _rows(frame: DataFrame) -> Rows:
    return [_plain_row(row.asDict()) for row in frame.collect()]


def _plain_row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """The value for JSON, which has no infinity: an infinite number becomes None, other floats are rounded."""
    if isinstance(value, float):
        return round(value, 4) if isfinite(value) else None
    return value


def _public(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _INTERNAL}


# -- the parts of the report


def _backups(totals: Rows, states: dict[str, dict[str, Any]], segments: list[Segment], found: Scope) -> Rows:
    """Each backup's whole log over the whole span; `now` is the status at the end, `status` the worst rule over all. `states`
    are `series.states`.

    At the end, the primary of the last term is no backup, and neither is a broker that is not expected any more.
    """
    primary = found.terms[-1]["primary"] if found.terms else None
    # The end of the span and the end of a segment are rounded to intervals in different ways.
    expected_ms = found.end_ms - 2 * found.interval_ms
    expected_now = {one.backup for one in segments if one.queue is None and one.to_ms > expected_ms}
    rows = []
    for row in sorted((row for row in totals if row["queue"] is None), key=lambda row: row["backup"]):
        last = states.get(row["backup"], {})
        now = "PRIMARY" if row["backup"] == primary else last["status"] if row["backup"] in expected_now else series.REMOVED
        ending = {name: last.get(name) for name in series.STATE}
        rows.append(row | ending | {"now": now})
    return rows


def _windows(rows: Rows, places: dict[str, int]) -> tuple[Rows, bool]:
    """The windows that fit in the report, in order of time, and whether some were left out."""
    newest = sorted((row for row in rows if row["queue"] is None), key=lambda row: row["start_ms"], reverse=True)[:MAX_WINDOWS]
    queues = sorted((row for row in rows if row["queue"] is not None), key=lambda row: places[row["queue"]])
    chosen = (newest + queues)[:MAX_WINDOWS]
    order = sorted(chosen, key=lambda row: (row["start_ms"], row["backup"], row["queue"] is not None, row["queue"] or ""))
    return order, len(chosen) < len(rows)


def _told(lines: DataFrame) -> Rows:
    return [row.asDict() for row in of_lines.newest_events(lines, MAX_EVENTS, failovers.TYPES).collect()]


def _changes(terms: Rows, events: Rows) -> Rows:
    told = [row for row in events if row["type"] in failovers.TYPES]
    return [_plain_row(row) for row in failovers.failovers(terms, told)][-MAX_FAILOVERS:]


def _failovers(rows: Rows, seen: Rows, steps: Rows, terms: Rows) -> Rows:
    looks: dict[int, Rows] = {}
    for look in (one for one in seen if one["queue"] is None):
        looks.setdefault(look["epoch"], []).append({name: look[name] for name in ("backup", "connected", "records")})
    ends = {term["epoch"]: term["end_ms"] for term in terms}
    return [row | _aftermath(row, looks.get(row["epoch"], []), steps, ends[row["epoch"]]) for row in rows]


def _aftermath(change: dict[str, Any], peers: Rows, steps: Rows, end_ms: int) -> dict[str, Any]:
    """What the new primary's peers lacked, and how long it took until all of them were OK.

    If a member was not connected, like a killed primary, it is not known what it has. It does not count for the records.
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


def _events(events: Rows) -> Rows:
    newest = (row for row in events if row["newest"] <= MAX_EVENTS)
    rows = [{name: value for name, value in row.items() if name not in _OF_QUERY} for row in newest]
    return sorted(rows, key=lambda row: (row["ts_ms"], row["sender"], row["seq"]))


def _quality(
    read: Inputs, found: Scope, request: Request, totals: Rows, lines: DataFrame, present: DataFrame, events: Rows
) -> dict[str, Any]:
    drops = {row["detail"] or "": row["dropped"] or 0 for row in events if row["type"] == "drop"}
    views = of_lines.views(lines, since_ms=found.end_ms - CLOCK_SPAN_MS, every_ms=_VIEW_MS)
    counts = found.quality
    return counts | {
        "files": request.files or read.counters["files"] or 0,
        "unreadable_files": request.unreadable,
        "unfinished_files": request.unfinished,
        "lines": counts["lines"] + read.repeated,
        "usable": counts["usable"] + read.repeated,
        "samples_used": sum(row["n"] for row in totals),
        "repeated": read.repeated,
        "late": read.counters["late"],
        "holes": quality.holes(present).collect()[0]["holes"],
        "drops": {
            "lines": sum(drops.values()),
            "reasons": dict(sorted(drops.items())),
        },
        "clocks": clocks.offsets(row.asDict() for row in views.collect()) if "own" in found.kinds else [],
        "examples": [row.asDict() for row in quality.examples(read.lines).collect()] if counts["bad"] else [],
    }
