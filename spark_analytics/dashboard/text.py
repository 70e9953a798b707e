"""A report for a terminal of any width from MIN_WIDTH on: tables if they fit; below NARROW a block of lines for each backup,
queue and failover.

All information is in words; colours, if the terminal has them, only repeat it. Lines are laid out without colours and
coloured last, so that no line is wider than the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_analytics.dashboard.formatting import MEANING, count, duration, moment, share, shown, span, sparkline

MIN_WIDTH: Final = 32
NARROW: Final = 80
USUAL: Final = 80
WIDEST: Final = 160
_QUEUES: Final = 8
_HOURS: Final = 3
_GONE: Final = ("SILENT", "STOPPED")
_NO_BACKUP: Final = ("PRIMARY", "REMOVED")
_COLOURS: Final = {
    **dict.fromkeys(("SILENT", "STOPPED", "REWOUND"), "1;31"),
    **dict.fromkeys(("STALLED", "LAGGING"), "33"),
    "GAP": "36",
    "OK": "32",
    "PRIMARY": "1",
}
Report = dict[str, Any]


def render(report: Report, *, width: int = USUAL, colour: bool = False) -> str:
    """The whole report as text, ending in a newline; no line is longer than `width`."""
    paper = _Paper(max(MIN_WIDTH, min(width, WIDEST)), colour)
    return "\n".join(line.rstrip() for line in _lines(shown(report), paper)) + "\n"


def terminal(environment: Mapping[str, str], *, columns: int, is_terminal: bool) -> dict[str, Any]:
    """The arguments of `render` for that terminal. Output to a pipe or a file always has the width USUAL and no colours
    (https://no-color.org)."""
    if not is_terminal:
        return {"width": USUAL, "colour": False}
    return {"width": columns, "colour": not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"}


@dataclass(frozen=True, slots=True)
class _Paper:
    width: int
    colour: bool

    @property
    def narrow(self) -> bool:
        return self.width < NARROW

    def status(self, status: str, room: int = 0) -> str:
        """A status, padded before the colour is added."""
        text = f"{status:{room}}"
        return f"\x1b[{_COLOURS[status]}m{text}\x1b[0m" if self.colour and status in _COLOURS else text

    def cut(self, text: str) -> str:
        """A plain line, cut to the width."""
        return _cut(text, self.width)


def _lines(report: Report, paper: _Paper) -> Iterator[str]:
    yield paper.cut(f"Replication lag of {report['cluster'] or 'the cluster'}")
    yield paper.cut(span(report["from_ms"], report["to_ms"]))
    if report.get("dropped_before_ms"):
        yield from _wrapped(f"older than {moment(report['dropped_before_ms'], day=True)} UTC: dropped by the stream", paper)
    yield paper.cut(f"objective {duration(report['objective_ms'])}, windows of {duration(report['window_ms'])}")
    yield ""
    yield from _verdict(report, paper)
    yield ""
    yield from _backups(report, paper)
    yield ""
    yield from _budget(report, paper)
    yield from _queues(report, paper)
    yield from _hours(report, paper)
    yield from _failovers(report, paper)
    yield from _comparison(report, paper)
    yield from _quality(report["quality"], paper)


def _verdict(report: Report, paper: _Paper) -> Iterator[str]:
    standing = [row for row in report["backups"] if row["now"] not in _NO_BACKUP]
    bad = [row for row in standing if row["now"] != "OK"]
    if not standing:
        yield from _wrapped("Can I lose the primary now? No: there is no backup, every record stands on one broker.", paper)
        return
    said, why = report["loss"]["said"], report["loss"]["why"]
    since = moment(report["loss"]["since_ms"], day=True)
    yield from _wrapped(f"Can I lose the primary now? {said}: {why} (since {since} UTC)", paper)
    yield paper.cut(f"{len(standing) - len(bad)} of {len(standing)} backups keep up at the end.")
    for row in bad:
        meaning = _cut(f": {MEANING.get(row['now'], '')}", paper.width - len(row["now"]) - 2 - min(len(row["backup"]), 20))
        yield f"{_cut(row['backup'], 20)} {paper.status(row['now'])}{meaning}"


def _backups(report: Report, paper: _Paper) -> Iterator[str]:
    line = report["timeline"]["backups"]
    if not report["backups"]:
        return
    room = min(21, max(6, *(len(row["backup"]) for row in report["backups"])))
    chart = max(9, min(paper.width - room - 49, 90))
    if not paper.narrow:
        yield f"{'BACKUP':{room}} {'NOW':8}{'P50':>7}{'P99':>7}{'WORST':>8}{'OVER':>8}{'STALL':>8}  OVER TIME"
    for row in report["backups"]:
        series = line[row["backup"]]
        silent = [status in _GONE for status in series["status"]]
        if paper.narrow:
            yield f"{_cut(row['backup'], paper.width - 9)} {paper.status(row['now'])}"
            yield paper.cut(f"  p50 {_tight(row['p50_ms'])} p99 {_tight(row['p99_ms'])} worst {_tight(row['worst_ms'])}")
            yield paper.cut(f"  over {share(row['over_share'])} stall {_tight(row['stall_ms'])}")
            yield f"  {sparkline(series['worst_ms'], silent, paper.width - 2)}"
        else:
            figures = f"{_tight(row['p50_ms']):>7}{_tight(row['p99_ms']):>7}{_tight(row['worst_ms']):>8}"
            shares = f"{share(row['over_share']):>8}{_tight(row['stall_ms']):>8}"
            bars = sparkline(series["worst_ms"], silent, chart)
            yield f"{_cut(row['backup'], room):{room}} {paper.status(row['now'], 8)}{figures}{shares}  {bars}"
    legend = "worst lag: ▁ to 1 ms, ▄ to 100 ms, █ over 15 s"
    if any(status in _GONE for series in line.values() for status in series["status"]):
        legend += "; × silent or not connected, which is over the objective"
    yield from _wrapped(legend, paper)


def _budget(report: Report, paper: _Paper) -> Iterator[str]:
    slo = report.get("slo")
    rows = [row for row in slo["backups"] if row["backup"] is None] if slo else []
    if not slo or not rows or rows[0]["spent"] is None:
        return
    spent, target = rows[0]["spent"], f"{slo['target'] * 100:g} %"
    left = f"{share(1 - spent)} left" if spent <= 1 else f"overspent {spent:.1f} times"
    alerts = [(row["backup"], ", ".join(row["alerts"])) for row in slo["backups"] if row["backup"] and row["alerts"]]
    burning = ", ".join(f"{backup} ({names})" for backup, names in alerts)
    alarm = f"; burning: {burning}" if burning else ""
    yield from _wrapped(f"budget of the objective ({target} of the time): {left}{alarm}", paper)
    yield ""


def _queues(report: Report, paper: _Paper) -> Iterator[str]:
    queues = report["queues"]
    if not queues:
        return
    of = report["heat"]["queues_in_all"]
    more = f" (worst {min(_QUEUES, len(queues))} of {of:,})" if of > _QUEUES else ""
    if paper.narrow:
        yield paper.cut(f"QUEUES{more}")
    else:
        room = paper.width - 47
        yield f"{'QUEUE' + more:{room}}{'WORST BACKUP':17}{'P99':>7}{'WORST':>7}{'OVER':>8}{'RECORDS':>8}"
    for row in queues[:_QUEUES]:
        over, records = share(row["over_share"]), count(row["max_records"])
        if paper.narrow:
            yield paper.cut(row["queue"])
            yield paper.cut(f"  p99 {_tight(row['p99_ms'])} worst {_tight(row['worst_ms'])} over {over}")
        else:
            figures = f"{_tight(row['p99_ms']):>7}{_tight(row['worst_ms']):>7}{over:>8}{records:>8}"
            yield f"{_cut(row['queue'], room - 1):{room}}{_cut(row['backup'], 16):17}{figures}"
    yield ""


def _hours(report: Report, paper: _Paper) -> Iterator[str]:
    hours = [row for row in report.get("worst_hours") or [] if row["queue"] is None][:_HOURS]
    if not hours or report["to_ms"] - report["from_ms"] <= hours[0]["length_ms"]:
        return
    yield "WORST HOURS"
    for row in hours:
        when = moment(row["start_ms"], day=True)[5:16]
        over, worst = share(row["over_share"]), duration(row["worst_ms"])
        yield from _wrapped(f"  {when} {row['backup']}: {over} over the objective, worst {worst}", paper)
    yield ""


def _failovers(report: Report, paper: _Paper) -> Iterator[str]:
    changes = report["failovers"]
    room = (paper.width - 37) // 2
    days = moment(report["from_ms"], day=True)[:10], moment(report["to_ms"], day=True)[:10]
    if not changes:
        yield "No failover in this span."
    elif not paper.narrow:
        yield f"{'WHEN (UTC)':12}{'WHAT':11}{'FROM':{room}}{'TO':{room}}{'GAP':>8}{'EPOCH':>6}"
    for row in changes:
        gap = ("" if row["measured"] else "~") + _tight(row["gap_ms"])
        when = moment(row["at_ms"]) if days[0] == days[1] else moment(row["at_ms"], day=True)[5:16]
        if paper.narrow:
            yield paper.cut(f"{when} {row['kind']}, gap {gap}")
            yield paper.cut(f"  {row['previous']} → {row['primary']}")
        else:
            brokers = f"{_cut(row['previous'], room - 1):{room}}{_cut(row['primary'], room - 1):{room}}"
            yield f"{when:12}{row['kind']:11}{brokers}{gap:>8}{row['epoch']:>6}"
        phases = _phases(row)
        if phases:
            yield from _wrapped(f"  {phases}", paper)
    yield ""


def _phases(row: dict[str, Any]) -> str:
    """The parts of the gap, as far as they are known, and the peers after it."""
    names = {"detection_ms": "noticed after", "decision_ms": "asked for +", "promotion_ms": "promoted +"}
    told = [f"{said} {duration(row[name])}" for name, said in names.items() if row.get(name) is not None]
    if row.get("recovery_ms") is not None:
        told.append(f"all level after {duration(row['recovery_ms'])}" if row["recovery_ms"] else "all level at once")
    if row.get("unreplicated_records"):
        told.append(f"{count(row['unreplicated_records'])} records not yet on its peers")
    away = [str(peer["backup"]) for peer in row.get("peers") or [] if peer.get("connected") is False]
    if away:
        told.append(f"{' and '.join(away)} away")
    return ", ".join(told)


def _comparison(report: Report, paper: _Paper) -> Iterator[str]:
    other = report.get("comparison")
    if not other:
        return
    yield from _wrapped(f"compared with {span(other['from_ms'], other['to_ms'])}:", paper)
    for row in other["backups"]:
        before, after = row["before"] or {}, row["after"] or {}
        parts = [
            f"{name} {write(before.get(column))} → {write(after.get(column))}"
            for column, name, write in (
                ("p99_ms", "p99", duration),
                ("worst_ms", "worst", duration),
                ("over_share", "over", share),
            )
        ]
        yield from _wrapped(f"  {row['backup']}: {', '.join(parts)}", paper)
    yield ""


def _quality(quality: dict[str, Any], paper: _Paper) -> Iterator[str]:
    notes = [
        f"{quality['bad']:,} unreadable" if quality["bad"] else "",
        f"{quality['repeated']:,} repeated" if quality["repeated"] else "",
        f"{quality['holes']:,} missing" if quality["holes"] else "",
        f"{quality['late']:,} late" if quality.get("late") else "",
        f"{quality['drops']['lines']:,} not written" if (quality.get("drops") or {}).get("lines") else "",
        f"{quality['unreadable_files']} files that cannot be read" if quality["unreadable_files"] else "",
        f"{quality['unfinished_files']} unfinished files" if quality["unfinished_files"] else "",
    ]
    said = ", ".join(note for note in notes if note) or "none bad, none missing"
    newest = f"newest {duration(max(0, quality['age_ms']))} old"
    yield from _wrapped(f"{quality['lines']:,} lines in {quality['files']:,} files: {said}; {newest}.", paper)


def _wrapped(text: str, paper: _Paper) -> Iterator[str]:
    """A text over several lines; the later lines are indented by two more columns."""
    indent = len(text) - len(text.lstrip())
    line = " " * indent
    for word in text.split():
        if len(line.strip()) and len(line) + 1 + len(word) > paper.width:
            yield line
            line = " " * (indent + 2)
        line = f"{line} {word}" if line.strip() else line + word
        line = paper.cut(line)
    yield line


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _tight(ms: float | None) -> str:
    return duration(ms).replace(" ", "")
