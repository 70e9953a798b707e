"""Turns a request for a summary, in the words of the command line, into a `Request`. The command that runs once and the
worker behind a dashboard both use it.
"""

from __future__ import annotations

from typing import Any, Final

from spark_analytics import sources
from spark_analytics.jobs import spans
from spark_analytics.jobs.summarise import OBJECTIVE_MS, Request
from spark_analytics.locations import is_remote
from spark_analytics.session import Work
from spark_analytics.sources import Kafka
from spark_analytics.store import Store, is_store

LONG_BYTES: Final = 200 << 20
LONG_LINES: Final = LONG_BYTES // 600
"""The same of a stream's folder, whose bytes say little: a line has 4 to 26 in Parquet, and 600 as text."""
Asked = dict[str, Any]
"""`path`, `objective_ms`, `target`, `master`; and, None or missing if not given, `window`, `since`, `until`, `compare`,
`compare_since`, `compare_until`, `cluster`, `windows_to`, all in the form of the command line."""


def times_of(asked: Asked, now_ms: int) -> dict[str, Any]:
    """The fields of a Request that are times. Refused if one cannot be read."""

    def moment(name: str) -> int | None:
        return spans.parse_moment(asked[name], now_ms, f"--{name.replace('_', '-')}") if asked.get(name) else None

    since, until = moment("compare_since"), moment("compare_until")
    return {
        "window_ms": spans.parse_length(asked["window"]) if asked.get("window") else None,
        "since_ms": moment("since"),
        "until_ms": moment("until"),
        "compare_ms": None if since is None or until is None else (since, until),
        "compare_before_ms": spans.parse_span(asked["compare"], "--compare") if asked.get("compare") else None,
    }


def request_of(asked: Asked, now_ms: int, kafka: Kafka | None = None) -> Request:
    """The request; a local folder of lines is inspected. Refused if it cannot be read, or makes no sense."""
    path = asked["path"]
    times = times_of(asked, now_ms)
    looked_at = kafka is None and not is_remote(path) and not is_store(path)
    folder = sources.inspect(path) if looked_at else None
    return Request(
        path=path if kafka is None else f"{kafka.topic} at {kafka.servers}",
        now_ms=now_ms,
        objective_ms=OBJECTIVE_MS if asked["objective_ms"] is None else asked["objective_ms"],
        target=asked["target"],
        windows_to=asked.get("windows_to"),
        cluster=asked.get("cluster"),
        kafka=kafka,
        nbytes=folder.nbytes if folder else None,
        files=folder.files if folder else None,
        unfinished=folder.unfinished if folder else 0,
        unreadable=folder.unreadable if folder else 0,
        **times,
    )


def work_of(request: Request) -> Work:
    """Whether Spark's slower start is worth it: if there is much to read, or if the size is not known. Refused when the folder of
    a stream cannot be read."""
    if request.nbytes is not None:
        return "long" if request.nbytes > LONG_BYTES else "short"
    if request.kafka is not None or not is_store(request.path):
        return "long"
    store = Store(request.path)
    manifest = store.load()
    lines = store.n_lines(manifest, manifest.hours_within(request.since_ms, request.until_ms))
    return "long" if lines > LONG_LINES else "short"
