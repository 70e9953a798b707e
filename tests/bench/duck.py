"""DuckDB over the same files, in a process of its own: an engine that has nothing to do with Spark, and exact percentiles.

`python -m tests.bench.duck lines|rows` reads file names or patterns from its standard input, and prints as JSON DuckDB's
version, what it has spent, and a row for each backup's whole log; without files the version alone.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any, Final

import duckdb

COLUMNS: Final = {
    "kind": "VARCHAR",
    "cluster": "VARCHAR",
    "epoch": "BIGINT",
    "sender": "VARCHAR",
    "seq": "BIGINT",
    "ts": "VARCHAR",
    "interval_ms": "BIGINT",
    "primary": "VARCHAR",
    "backup": "VARCHAR",
    "queue": "VARCHAR",
    "commit_index": "BIGINT",
    "acked_index": "BIGINT",
    "lag_records": "BIGINT",
    "lag_bytes": "BIGINT",
    "lag_ms": "DOUBLE",
    "stall_ms": "DOUBLE",
    "state": "VARCHAR",
    "in_sync": "BOOLEAN",
    "connected": "BOOLEAN",
    "headroom_bytes": "BIGINT",
}
"""The columns of a sample that a summary looks at, and their types in SQL."""
NUMBERS: Final = tuple(name for name, kind in COLUMNS.items() if kind in ("BIGINT", "DOUBLE"))
TEXTS: Final = tuple(name for name in COLUMNS if name not in NUMBERS and name not in ("kind", "backup", "queue"))
_PERCENTS: Final = "[0.5, 0.95, 0.99]"


def asked(source: str) -> str:
    """What Spark's plain aggregation asks, and the exact percentiles of all three measures."""
    numbers = ", ".join(f'max("{name}"), sum("{name}")' for name in NUMBERS)
    texts = ", ".join(f'count("{name}")' for name in TEXTS)
    percentiles = ", ".join(f"quantile_disc({name}, {_PERCENTS}) AS p_{name}" for name in ("lag_ms", "lag_records", "lag_bytes"))
    return (
        f"SELECT backup, queue, count(*) AS n, max(lag_ms) AS max_ms, sum(lag_records) AS records, {numbers}, {texts}, "
        f"{percentiles} FROM {source} WHERE kind = 'sample' GROUP BY backup, queue"
    )


def of_lines(files: list[str]) -> str:
    """Lines of JSON."""
    kinds = ", ".join(f"'{name}': '{kind}'" for name, kind in COLUMNS.items())
    return asked(f"read_json({files!r}, format = 'newline_delimited', columns = {{{kinds}}})")


def of_rows(files: list[str]) -> str:
    """What a stream has kept."""
    return asked(f"read_parquet({files!r})")


def main() -> int:
    """Run one of them."""
    files = sys.stdin.read().splitlines()
    rows = _rows(sys.argv[1], files) if files else []
    spent = resource.getrusage(resource.RUSAGE_SELF)
    cost = {"cpu_s": spent.ru_utime + spent.ru_stime, "peak_bytes": spent.ru_maxrss * 1024}
    whole = [row for row in rows if row["queue"] is None]
    print(json.dumps({"version": duckdb.__version__, "rows": whole} | cost, default=str))
    return 0


def _rows(what: str, files: list[str]) -> list[dict[str, Any]]:
    with duckdb.connect() as engine:
        engine.execute(f"SET threads = {os.cpu_count() or 1}")
        answer = engine.execute({"lines": of_lines, "rows": of_rows}[what](files))
        names = [column[0] for column in answer.description or ()]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


if __name__ == "__main__":
    sys.exit(main())
