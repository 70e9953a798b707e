"""A report as one self-contained HTML file: no network, no other file; scripts and styles are allowed by their hashes.

The page contains the report as JSON, and its script draws everything from it: figures, tables, charts, and details of the
selection. Without scripts it shows the table of the terminal. A *live* page, from the dashboard's server, is the same page with
one more permission: to ask this server for the next report.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib.resources import files
from math import isfinite
from typing import Any, Final

from spark_analytics.dashboard import text
from spark_analytics.dashboard.formatting import MEANING

_SCRIPTS: Final = ("base.js", "charts.js", "panels.js", "details.js", "main.js")
_NOT_DRAWN: Final = ("windows",)
_QUEUES: Final = 200
_FIGURES: Final = 4
"""Significant figures of a series' values: more are not visible."""


def render(
    report: dict[str, Any] | None, *, live: str = "", problem: str = "", doing: str = "", tag: str = "", refresh_ms: int = 0
) -> str:
    """The page as text; write it as UTF-8.

    `live` is the address on the server that has the next report. With it, `report` may be None (there is none yet), `problem`
    is the last error, `doing` the progress of the first report, `tag` names the report, and `refresh_ms` is the time between two.
    """
    carried = {
        "report": drawn(report) if report else None,
        "problem": problem,
        "doing": doing,
        "tag": tag,
        "refresh_ms": refresh_ms,
    }
    title = f"Replication lag · {(report or {}).get('cluster') or 'cluster'}"
    parts = {
        "LIVE": f' data-live="{escape(live)}"' if live else "",
        "POLICY": policy(live=bool(live)),
        "TITLE": escape(title),
        "STYLE": _style(),
        "TEXT": escape(_table(report) if report else problem),
        "DATA": json.dumps(carried, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "SCRIPT": _script(),
    }
    pieces = _asset("page.html").split("%%")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def drawn(report: dict[str, Any]) -> dict[str, Any]:
    """The part of a report that the page draws, with the meanings of its words. Its size is bounded, whatever the data's
    size."""
    kept = {name: _rounded(value) for name, value in report.items() if name not in _NOT_DRAWN}
    return kept | {"queues": kept.get("queues", [])[:_QUEUES], "meaning": MEANING}


def policy(*, live: bool) -> str:
    """The content security policy, for the page's head and for the server's answer: its own script and style, and nothing
    else."""
    ask = "connect-src 'self'; " if live else ""
    own = f"default-src 'none'; style-src '{_hash(_style())}'; script-src '{_hash(_script())}'; {ask}"
    return f"{own}base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"


def _table(report: dict[str, Any]) -> str:
    """The terminal's table. An unexpected report has no table; the script then draws what it can."""
    try:
        return text.render(report)
    except (KeyError, TypeError, ValueError, AttributeError):
        return "This report is not as expected: no table of it can be made."


def _rounded(value: Any) -> Any:
    """The same with the values of series rounded to visible precision. Times and counts are whole and stay unchanged."""
    if isinstance(value, list):
        return [_figures(one) if isinstance(one, float) else _rounded(one) for one in value]
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return value


def _figures(value: float) -> float | int | None:
    if not isfinite(value):
        return None
    cut = float(f"{value:.{_FIGURES}g}")
    return int(cut) if cut.is_integer() else cut


@cache
def _script() -> str:
    """One program from the files in script/. Their names are not visible outside."""
    program = "\n".join(_asset("script", name) for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{program}}})();\n'


@cache
def _style() -> str:
    return _asset("page.css")


def _asset(*name: str) -> str:
    return files("spark_analytics.dashboard").joinpath(*name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
