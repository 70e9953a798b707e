"""A report for a terminal: 80 columns, no colour needed to understand it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spark_analytics.dashboard.words import count, duration, moment, share, span, sparkline

_WIDTH = 80
_QUEUES = 8


def render(report: dict[str, Any]) -> str:
    """The whole report as text, ending in a newline."""
    return "\n".join(line.rstrip() for line in _lines(report)) + "\n"


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"Replication lag of {report['cluster'] or 'the cluster'}   {span(report['from_ms'], report['to_ms'])}"
    yield f"objective {duration(report['objective_ms'])}, windows of {duration(report['window_ms'])}"
    yield ""
    yield from _backups(report)
    yield ""
    yield from _queues(report)
    yield from _failovers(report)
    yield from _quality(report["quality"])


def _backups(report: dict[str, Any]) -> Iterator[str]:
    line = report["timeline"]["backups"]
    name_width = max([6, *(len(row["backup"]) for row in report["backups"])])
    name_width = min(name_width, 21)
    chart_width = _WIDTH - name_width - 49
    head = f"{'BACKUP':{name_width}} {'NOW':8}{'P50':>7}{'P99':>7}{'WORST':>8}{'OVER':>8}{'STALL':>8}  OVER TIME"
    yield head[:_WIDTH]
    for row in report["backups"]:
        series = line[row["backup"]]
        silent = [status in ("SILENT", "STOPPED") for status in series["status"]]
        chart = sparkline(series["worst_ms"], silent, max(9, chart_width))
        yield (
            f"{_cut(row['backup'], name_width):{name_width}} {row['now']:8}{_tight(row['p50_ms']):>7}{_tight(row['p99_ms']):>7}"
            f"{_tight(row['worst_ms']):>8}{share(row['over_share']):>8}{_tight(row['stall_ms']):>8}  {chart}"
        )[:_WIDTH]
    if any("SILENT" in series["status"] or "STOPPED" in series["status"] for series in line.values()):
        yield "× = silent or not connected, which counts as over the objective"


def _queues(report: dict[str, Any]) -> Iterator[str]:
    queues = report["queues"]
    if not queues:
        return
    more = f" (worst {_QUEUES} of {len(queues)})" if len(queues) > _QUEUES else ""
    yield f"{'QUEUE' + more:31} {'WORST BACKUP':17}{'P99':>7}{'WORST':>7}{'OVER':>8}{'RECORDS':>8}"
    for row in queues[:_QUEUES]:
        figures = (
            f"{_tight(row['p99_ms']):>7}{_tight(row['worst_ms']):>7}{share(row['over_share']):>8}{count(row['max_records']):>8}"
        )
        yield f"{_cut(row['queue'], 31):31} {_cut(row['backup'], 17):17}{figures}"[:_WIDTH]
    yield ""


def _failovers(report: dict[str, Any]) -> Iterator[str]:
    changes = report["failovers"]
    if not changes:
        yield "No failover in this span."
    else:
        yield f"{'WHEN (UTC)':11}{'WHAT':11}{'FROM':22}{'TO':22}{'GAP':>8}{'EPOCH':>6}"
        for row in changes:
            gap = ("" if row["measured"] else "~") + _tight(row["gap_ms"])
            yield (
                f"{moment(row['at_ms']):11}{row['kind']:11}{_cut(row['previous'], 21):22}{_cut(row['primary'], 21):22}"
                f"{gap:>8}{row['epoch']:>6}"
            )
    yield ""


def _quality(quality: dict[str, Any]) -> Iterator[str]:
    notes = [
        f"{quality['bad']:,} unreadable" if quality["bad"] else "",
        f"{quality['repeated']:,} repeated" if quality["repeated"] else "",
    ]
    notes += [f"{quality['holes']:,} missing" if quality["holes"] else ""]
    notes += [f"{quality['unfinished_files']} unfinished files" if quality["unfinished_files"] else ""]
    said = ", ".join(note for note in notes if note) or "none bad, none missing"
    yield f"{quality['lines']:,} lines in {quality['files']:,} files: {said}; newest {duration(max(0, quality['age_ms']))} old."


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _tight(ms: float | None) -> str:
    return duration(ms).replace(" ", "")
