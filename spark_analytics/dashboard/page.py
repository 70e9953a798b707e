"""A report as one HTML file that needs nothing else: no network, no other file, scripts and styles named by their hashes.

Everything that is a fact stands in tables that work without scripts and for screen readers; `page.js` draws the pictures from
the JSON that the page carries.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from typing import Any

from spark_analytics.dashboard.words import MEANING, count, duration, moment, share, size, span

_NOT_DRAWN = ("windows", "events", "quality")
_EVENTS_SHOWN = 200
_QUEUES_SHOWN = 20
_ROLE_BAD = ("SILENT", "STOPPED", "REWOUND", "STALLED")


def render(report: dict[str, Any]) -> str:
    """The page as text; write it as UTF-8."""
    style, script = _asset("page.css"), _asset("page.js")
    drawn = {name: value for name, value in report.items() if name not in _NOT_DRAWN} | {"queues": []}
    drawn["meaning"] = MEANING
    data = json.dumps(drawn, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"
    parts = {
        "POLICY": policy,
        "STYLE": style,
        "SCRIPT": script,
        "DATA": data,
        "TITLE": escape(f"Replication lag · {report['cluster'] or 'cluster'}"),
        "CLUSTER": escape(report["cluster"] or "cluster"),
        "SPAN": escape(span(report["from_ms"], report["to_ms"])),
        "MADE": escape(moment(report["made_ms"], day=True)),
        "OBJECTIVE": escape(duration(report["objective_ms"])),
        "WINDOW": escape(duration(report["window_ms"])),
        "STEP": escape(duration(report["timeline"]["step_ms"])),
        "VERDICT": _verdict(report),
        "FIGURES": _figures(report),
        "BACKUPS": _backups(report),
        "QUEUES": _queues(report),
        "HEAT_NOTE": _heat_note(report),
        "FAILOVERS": _failovers(report),
        "EVENTS": _events(report),
        "QUALITY": _quality(report["quality"]),
    }
    page = _asset("page.html")
    for name, text in parts.items():
        page = page.replace(f"%%{name}%%", text, 1)
    return page


def _asset(name: str) -> str:
    return files("spark_analytics.dashboard").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _badge(status: str) -> str:
    return f'<span class="badge s-{status}" title="{escape(MEANING.get(status, ""))}">{status}</span>'


def _verdict(report: dict[str, Any]) -> str:
    now = {row["backup"]: row["now"] for row in report["backups"]}
    bad = [f"{escape(name)} is {_badge(status)}" for name, status in now.items() if status not in ("OK", "PRIMARY")]
    if bad:
        return f'<p class="verdict bad">At the end of this span {", ".join(bad)}.</p>'
    return '<p class="verdict good">At the end of this span every backup is keeping up.</p>'


def _figures(report: dict[str, Any]) -> str:
    backups, failovers = report["backups"], report["failovers"]
    last = report["reigns"][-1]
    standing = [row for row in backups if row["now"] != "PRIMARY"]
    well = sum(row["now"] == "OK" for row in standing)
    over, expected = sum(row["over_share"] * row["expected"] for row in backups), sum(row["expected"] for row in backups)
    worst = max(backups, key=lambda row: row["p99_ms"] or 0.0)
    silent = max(backups, key=lambda row: row["silence_ms"])
    stalled = max(backups, key=lambda row: row["stall_ms"] or 0.0)
    gap = max((row["gap_ms"] for row in failovers), default=None)
    tiles = [
        ("Primary", escape(last["primary"]), f"epoch {last['epoch']}", "name"),
        ("Keeping up now", f"{well} of {len(standing)}", "backups with status OK", "" if well == len(standing) else "bad"),
        (
            "Within objective",
            share(1 - over / expected if expected else None),
            f"of all seconds ≤ {duration(report['objective_ms'])}",
            "",
        ),
        ("Worst p99", duration(worst["p99_ms"]), escape(worst["backup"]), ""),
        (
            "Longest silence",
            duration(silent["silence_ms"]),
            escape(silent["backup"]) if silent["silence_ms"] else "everybody was heard",
            "",
        ),
        (
            "Longest stall",
            duration(stalled["stall_ms"]),
            escape(stalled["backup"]) if stalled["stall_ms"] else "nobody stalled",
            "",
        ),
        ("Changes of primary", str(len(failovers)), f"longest gap {duration(gap)}" if failovers else "none in this span", ""),
        ("Newest sample", duration(max(0, report["quality"]["age_ms"])), "old when this was made", ""),
    ]
    return "".join(
        f'<div class="tile {kind}"><dt>{label}</dt><dd>{value}</dd><dd class="note">{note}</dd></div>'
        for label, value, note, kind in tiles
    )


def _table(caption: str, heads: list[str], rows: list[list[str]], *, numeric: int) -> str:
    """A table whose last `numeric` columns are figures. Cells are HTML already."""
    text = len(heads) - numeric

    def cells(values: list[str], tag: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        return "".join(f"<{tag}{scope}{' class=num' if i >= text else ''}>{value}</{tag}>" for i, value in enumerate(values))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
        f'<table><caption class="unseen">{caption}</caption>'
        f"<thead><tr>{cells(heads, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _backups(report: dict[str, Any]) -> str:
    heads = [
        "Backup",
        "Now",
        "p50",
        "p95",
        "p99",
        "Worst",
        "Over objective",
        "Longest stall",
        "Longest silence",
        "Most records",
        "Most bytes",
    ]
    rows = [
        [
            f'<span class="key" data-backup="{escape(row["backup"])}"></span>{escape(row["backup"])}',
            _badge(row["now"]),
            duration(row["p50_ms"]),
            duration(row["p95_ms"]),
            duration(row["p99_ms"]),
            duration(row["worst_ms"]),
            share(row["over_share"]),
            duration(row["stall_ms"]),
            duration(row["silence_ms"]),
            count(row["max_records"]),
            size(row["max_bytes"]),
        ]
        for row in report["backups"]
    ]
    return _table("Each backup over the whole span", heads, rows, numeric=9)


def _queues(report: dict[str, Any]) -> str:
    if not report["queues"]:
        return '<p class="empty">No replicated queue was sampled in this span.</p>'
    heads = ["Queue", "Its worst backup", "p50", "p99", "Worst", "Over objective", "Most records", "Most bytes"]
    rows = [
        [
            escape(row["queue"]),
            escape(row["backup"]),
            duration(row["p50_ms"]),
            duration(row["p99_ms"]),
            duration(row["worst_ms"]),
            share(row["over_share"]),
            count(row["max_records"]),
            size(row["max_bytes"]),
        ]
        for row in report["queues"][:_QUEUES_SHOWN]
    ]
    return _table("Worst queues", heads, rows, numeric=6)


def _heat_note(report: dict[str, Any]) -> str:
    heat = report["heat"]
    shown, all_ = len(heat["rows"]), heat["queues_in_all"]
    which = f"the worst {shown} of {all_:,} queues" if all_ > shown else f"all {all_} queues"
    dotted = "dotted where a backup was silent or not connected"
    return f"Worst lag of any backup, {which}, in steps of {duration(heat['step_ms'])}; {dotted}."


def _failovers(report: dict[str, Any]) -> str:
    if not report["failovers"]:
        return '<p class="empty">The primary did not change in this span.</p>'
    heads = ["When (UTC)", "What", "From", "To", "Why", "Epoch", "Gap", "Asked after notice", "Records lost"]
    rows = []
    for row in report["failovers"]:
        noticed = row["asked_ms"] - row["detected_ms"] if row["asked_ms"] and row["detected_ms"] else None
        gap = (
            duration(row["gap_ms"])
            if row["measured"]
            else f'<span title="estimated from samples">≈ {duration(row["gap_ms"])}</span>'
        )
        rows.append(
            [
                moment(row["at_ms"]),
                f'<span class="badge k-{row["kind"]}">{row["kind"]}</span>',
                escape(row["previous"]),
                escape(row["primary"]),
                escape(row["detail"] or "–"),
                str(row["epoch"]),
                gap,
                duration(noticed),
                count(row["lost_records"]),
            ]
        )
    return _table("Failovers and switchovers", heads, rows, numeric=4)


def _events(report: dict[str, Any]) -> str:
    events = report["events"][-_EVENTS_SHOWN:]
    if not events:
        return '<p class="empty">No event in this span.</p>'
    heads = ["When (UTC)", "Event", "Broker", "Said by", "Detail", "Epoch", "Took"]
    rows = []
    for event in reversed(events):
        change = f"{event['from'] or ''} → {event['to']}" if event["to"] else ""
        detail = " · ".join(text for text in (change, event["detail"] or "", _lost(event)) if text)
        names = [escape(event[name] or "") for name in ("broker", "sender")]
        rows.append(
            [
                moment(event["ts_ms"]),
                escape(event["type"].replace("_", " ")),
                *names,
                escape(detail),
                str(event["epoch"]),
                duration(event["duration_ms"]),
            ]
        )
    return _table("Events, newest first", heads, rows, numeric=2)


def _lost(event: dict[str, Any]) -> str:
    return f"{event['lost_records']:,} records" if event["lost_records"] else ""


def _quality(quality: dict[str, Any]) -> str:
    facts = [
        ("Lines read", quality["lines"]),
        ("Files", quality["files"]),
        ("Samples used", quality["samples_used"]),
        ("Kept aside as unreadable", quality["bad"]),
        ("Repeated, counted once", quality["repeated"]),
        ("Numbered but missing", quality["holes"]),
        ("Files not finished yet", quality["unfinished_files"]),
        ("Files that could not be read", quality["unreadable_files"]),
    ]
    listed = "".join(f"<div><dt>{name}</dt><dd>{value:,}</dd></div>" for name, value in facts)
    text = f'<dl class="facts">{listed}</dl>'
    if quality["problems"]:
        rows = [[escape(problem), f"{lines:,}"] for problem, lines in quality["problems"].items()]
        text += _table("Why lines were kept aside", ["Problem", "Lines"], rows, numeric=1)
    if quality["examples"]:
        items = "".join(
            f"<li><b>{escape(row['problem'])}</b> <code>{escape(row['text'])}</code></li>" for row in quality["examples"]
        )
        text += f"<details><summary>Examples of them</summary><ul class=lines>{items}</ul></details>"
    return text
