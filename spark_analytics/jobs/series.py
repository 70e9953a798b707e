"""Rows of windows to the data of pictures: series over time, lanes of statuses, the map of queues. Plain values only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from spark_analytics.transforms.windows import STATUSES

HEAT_QUEUES: Final = 40
DETAIL_ROWS: Final = 120
WORST_HOURS: Final = 60
GONE: Final = ("SILENT", "STOPPED")
REMOVED: Final = "REMOVED"
"""What a former backup is at the end of the span, if no sample of it is expected any more."""
NO_BACKUP: Final = ("PRIMARY", REMOVED)
"""The words for brokers that are not backups at the end of the span."""
LETTERS: Final = {"SILENT": "S", "STOPPED": "X", "REWOUND": "R", "STALLED": "T", "LAGGING": "L", "GAP": "G", "OK": "O"}
NOT_EXPECTED: Final = "."
TIMELINE: Final = (
    *("p50_ms", "p99_ms", "max_ms", "worst_ms", "max_records", "max_bytes", "status", "silence_ms", "over_share", "stall_ms"),
    *("ack_rate", "commit_rate", "backlog", "forecast_ms"),
)
STATE: Final = ("ack_rate", "commit_rate", "catch_up_rate", "backlog", "forecast_ms")
"""The figures of a backup that are told of the end of the span."""
_DETAIL: Final = ("p50_ms", "p99_ms", "max_ms", "worst_ms")
_HOUR: Final = ("backup", "queue", "start_ms", "status", "over_share", "p99_ms", "worst_ms", "stall_ms")
Rows = list[dict[str, Any]]

assert set(LETTERS) == set(STATUSES)


@dataclass(frozen=True, slots=True)
class Axis:
    """Steps of time: the first one begins at `start_ms`, at or before the start of the span."""

    start_ms: int
    step_ms: int
    count: int

    @classmethod
    def over(cls, begin_ms: int, end_ms: int, step_ms: int) -> Axis:
        """The steps that cover a span."""
        start = begin_ms // step_ms * step_ms
        return cls(start, step_ms, -(-(end_ms - start) // step_ms))

    def at(self, row: dict[str, Any]) -> int:
        """The step of a row."""
        return int((row["start_ms"] - self.start_ms) // self.step_ms)

    def head(self) -> dict[str, int]:
        """Its form in the report."""
        return {"start_ms": self.start_ms, "step_ms": self.step_ms, "count": self.count}


def badness(row: dict[str, Any]) -> tuple[float, float, float]:
    """The ranking key of rows."""
    return (row["over_share"], row["p99_ms"] or 0.0, row["worst_ms"])


def worst_queues(totals: Rows) -> Rows:
    """For each queue, its worst backup over the span; worst queue first."""
    worst: dict[str, dict[str, Any]] = {}
    for row in totals:
        queue = row["queue"]
        if queue is not None and (queue not in worst or badness(row) > badness(worst[queue])):
            worst[queue] = row
    return sorted(worst.values(), key=lambda row: (badness(row), row["queue"]), reverse=True)


def states(short: Rows, *, length_ms: int, end_ms: int) -> dict[str, dict[str, Any]]:
    """Each backup's `status` and STATE at the end of the span, from rows of its whole log in short windows, in order of time.

    If less than half of the last window is over, a single sample would decide, and there would be no rates. Then the status
    is the worse one of the last two windows, and the rates are those of the one before; the backlog is always the newest.
    """
    newest: dict[str, dict[str, Any]] = {}
    before: dict[str, dict[str, Any]] = {}
    for row in short:
        if row["backup"] in newest:
            before[row["backup"]] = newest[row["backup"]]
        newest[row["backup"]] = row
    found = {}
    for backup, row in newest.items():
        last, earlier = row, before.get(backup)
        begun = (end_ms - row["start_ms"]) * 2 < length_ms
        if begun and earlier is not None and earlier["start_ms"] == row["start_ms"] - length_ms:
            worse, backlog, gains = (
                min(row["status"], earlier["status"], key=STATUSES.index),
                row["backlog"],
                earlier["catch_up_rate"],
            )
            forecast = round(backlog / gains * 1000, 4) if backlog and gains and gains > 0 else None
            last = earlier | {"status": worse, "backlog": backlog, "forecast_ms": forecast}
        found[backup] = {name: last[name] for name in ("status", *STATE)}
    return found


def timeline(steps: Rows, terms: Rows, axis: Axis) -> dict[str, Any]:
    """Each broker's series, from rows of the whole log."""
    brokers: dict[str, dict[str, list[Any]]] = {
        term["primary"]: {name: [None] * axis.count for name in TIMELINE} for term in terms
    }
    for row in steps:
        series = brokers.setdefault(row["backup"], {name: [None] * axis.count for name in TIMELINE})
        for name in TIMELINE:
            series[name][axis.at(row)] = row[name]
    return axis.head() | {"backups": dict(sorted(brokers.items()))}


def lanes(steps: Rows, terms: Rows, axis: Axis, *, begin_ms: int, end_ms: int, interval_ms: int) -> dict[str, Any]:
    """Each broker's statuses as `[from_ms, to_ms, status]`, neighbours of one status joined."""
    pieces: dict[str, list[list[Any]]] = {}
    for row in steps:
        first, last = max(row["start_ms"], begin_ms), min(row["start_ms"] + axis.step_ms, end_ms)
        pieces.setdefault(row["backup"], []).append([first, last, row["status"]])
    for term in terms:
        last = min(term["end_ms"], term["last_said_ms"] + interval_ms)
        pieces.setdefault(term["primary"], []).append([term["begin_ms"], last, "PRIMARY"])
    return {broker: _joined(sorted(lane, key=lambda piece: piece[0])) for broker, lane in sorted(pieces.items())}


def _joined(lane: list[list[Any]]) -> list[list[Any]]:
    joined: list[list[Any]] = []
    for first, last, status in lane:
        if joined and joined[-1][2] == status and joined[-1][1] >= first:
            joined[-1][1] = max(last, joined[-1][1])
        else:
            joined.append([first, last, status])
    return joined


def spells(lane: list[list[Any]], statuses: Iterable[str]) -> int:
    """How often a lane changed to one of those statuses."""
    wanted = set(statuses)
    return sum(piece[2] in wanted and (i == 0 or lane[i - 1][2] not in wanted) for i, piece in enumerate(lane))


def heat(cells: Rows, queues: list[str], axis: Axis) -> dict[str, Any]:
    """Queue by time: the worst lag of its backups in each step, and the silent steps, for the queues with details."""
    looked_at = {cell["queue"] for cell in cells}
    shown = [queue for queue in queues if queue in looked_at][:HEAT_QUEUES]
    grid: dict[str, list[Any]] = {queue: [None] * axis.count for queue in shown}
    silent: dict[str, set[int]] = {queue: set() for queue in shown}
    for cell in cells:
        queue = cell["queue"]
        if queue in grid:
            at = axis.at(cell)
            grid[queue][at] = max(grid[queue][at] or 0.0, cell["worst_ms"])
            if cell["status"] in GONE:
                silent[queue].add(at)
    rows = [{"queue": queue, "worst_ms": grid[queue], "silent": sorted(silent[queue])} for queue in shown]
    return axis.head() | {"queues_in_all": len(queues), "rows": rows}


def detail(cells: Rows, queues: list[str], axis: Axis) -> dict[str, Any]:
    """One queue of one backup over time, for the worst queues."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    places = {queue: i for i, queue in enumerate(queues)}
    for cell in cells:
        queue, backup = cell["queue"], cell["backup"]
        if queue not in places:
            continue
        empty: dict[str, Any] = {name: [None] * axis.count for name in _DETAIL} | {"status": [NOT_EXPECTED] * axis.count}
        row = found.setdefault((queue, backup), empty)
        at = axis.at(cell)
        for name in _DETAIL:
            row[name][at] = None if cell[name] is None else round(cell[name], 1)
        row["status"][at] = LETTERS[cell["status"]]
    chosen = sorted(found, key=lambda key: (places[key[0]], key[1]))[:DETAIL_ROWS]
    rows = [{"backup": b, "queue": q} | found[q, b] | {"status": "".join(found[q, b]["status"])} for q, b in chosen]
    letters = {letter: status for status, letter in LETTERS.items()}
    return axis.head() | {"letters": letters, "rows": rows}


def worst_hours(hours: Rows, *, length_ms: int, begin_ms: int, end_ms: int) -> Rows:
    """The worst hours of the whole log, and those of the queues, worst first."""
    over = sorted((row for row in hours if row["over_ms"]), key=lambda row: (badness(row), -row["start_ms"]), reverse=True)
    chosen: Rows = []
    for of_queues in (False, True):
        chosen += [row for row in over if (row["queue"] is not None) == of_queues][:WORST_HOURS]
    return [
        {name: row[name] for name in _HOUR}
        | {"length_ms": min(row["start_ms"] + length_ms, end_ms) - max(row["start_ms"], begin_ms)}
        for row in chosen
    ]
