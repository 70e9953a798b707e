"""The scope of a summary, found before the summary itself: the cluster, the span, and how many lines can be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from spark_analytics.errors import Refused
from spark_analytics.jobs import spans
from spark_analytics.transforms import expected
from spark_analytics.transforms.expected import Term
from spark_analytics.transforms.lines import MINUTE_MS

GONE_MS: Final = 120_000
"""If others continue for so long after the current primary's last line, the primary has failed; before that, its newest file may
only be hidden."""
UNNAMED: Final = ("", "new")


@dataclass(frozen=True, slots=True)
class Scope:
    """The span, the cluster, and the counts of lines."""

    begin_ms: int
    end_ms: int
    said_ms: int
    """The end of the lines; `end_ms` is the end of the last sampling interval, or the requested end."""
    interval_ms: int
    cluster: str
    names: tuple[str, ...]
    """The names of the cluster in the lines: its name, and the names in lines of senders that did not know it."""
    quality: dict[str, Any]
    samples: int
    """The number of samples from primaries."""
    shortest_ms: int
    """The shortest sampling interval."""
    terms: list[Term]
    """`expected.terms` of the cluster."""
    kinds: frozenset[str]
    """The kinds of its lines in the span; `own` for samples by others than the primary. Missing kinds are not queried."""

    def own(self, frame: DataFrame) -> DataFrame:
        """The cluster's own rows."""
        return frame.where(F.col("cluster").isin(*self.names))


def find(
    rows: Sequence[Row],
    path: str,
    *,
    now_ms: int,
    since_ms: int | None,
    until_ms: int | None,
    cluster: str | None,
    whole: bool = True,
) -> Scope:
    """Find the scope in the rows of `quality.inventory`, which are of all lines (`whole`) or of those of the span. Refused if
    there is nothing to summarise, or if the cluster is not clear.
    """
    bad: dict[str, int] = {}
    for row in rows:
        if row["problem"]:
            bad[row["problem"]] = bad.get(row["problem"], 0) + row["lines"]
    usable = [row for row in rows if not row["problem"]]
    if not usable:
        raise Refused(_no_schema(path, bad) if whole else f"{path} holds nothing of that span: mind --since and --until")
    name, names = _only_cluster(usable, cluster)
    chosen = [row for row in usable if row["cluster"] in names]
    inside = [row for row in chosen if row["inside"]]
    if not inside or (since_ms is not None and until_ms is not None and since_ms >= until_ms):
        first, last = _range(chosen)
        raise Refused(f"no telemetry in that span: {path} covers {iso(first)} to {iso(last)}; mind --since and --until")
    first, last = _span(inside, now_ms)
    counts = {
        "lines": sum(row["lines"] for row in rows),
        "usable": sum(row["lines"] for row in chosen),
        "other_clusters": sum(row["lines"] for row in usable) - sum(row["lines"] for row in chosen),
        "bad": sum(bad.values()),
        "problems": dict(sorted(bad.items())),
        "age_ms": max(0, now_ms - _range(chosen)[1]),
    }
    interval_ms = max((row["interval_ms"] or 0 for row in inside if row["mine"]), default=0) or spans.SECOND
    begin_ms = first // interval_ms * interval_ms
    said_ms = last + 1 if until_ms is None else until_ms
    return Scope(
        begin_ms=begin_ms if since_ms is None else max(begin_ms, since_ms),
        end_ms=(last // interval_ms + 1) * interval_ms if until_ms is None else until_ms,
        said_ms=said_ms,
        interval_ms=interval_ms,
        cluster=name,
        names=names,
        quality=counts,
        samples=sum(row["lines"] for row in inside if row["mine"] and row["kind"] == "sample"),
        shortest_ms=min((row["shortest_ms"] for row in inside if row["shortest_ms"]), default=0) or spans.SECOND,
        terms=expected.terms((row.asDict() for row in chosen), end_ms=said_ms),
        kinds=frozenset("own" if row["kind"] == "sample" and not row["mine"] else row["kind"] for row in inside),
    )


def _span(inside: list[Row], now_ms: int) -> tuple[int, int]:
    """From the first line of a primary to the last of the current one.

    A line of others does not begin it: a clock may be wrong until it is set, and then show the year 1970. Lines of others do not
    lengthen it: their clocks may be ahead, and their files newer. Only if they continue for minutes after the primary's last
    line, the primary has failed, and the span ends with them. Times after `now_ms` show nothing but a wrong clock, and so does a
    minority of the others that continues, unless it continues until now and not a minute longer: then all others have failed too.
    The lines that the same broker writes when it is no longer the primary suffice.
    """
    first, last = _range(inside)
    mine = [row for row in inside if row["mine"] and row["epoch"] is not None]
    if not mine:
        return first, last
    first = min(row["first_ms"] for row in mine)
    epoch = max(row["epoch"] for row in mine)
    newest = max((row for row in mine if row["epoch"] == epoch), key=lambda row: row["last_ms"])
    said_ms, primary = newest["last_ms"], newest["sender"]
    others: dict[Any, list[Row]] = {}
    for row in inside:
        others.setdefault((row["sender"], row["cluster"], row["epoch"], row["kind"], row["mine"]), []).append(row)
    spoke: set[str] = set()
    after: dict[str, int] = {}
    for (sender, *_), rows in others.items():
        begin, end = _range(rows)
        if end >= said_ms - GONE_MS:
            spoke.add(sender)
        if min(end, now_ms) > said_ms + GONE_MS and begin // MINUTE_MS < end // MINUTE_MS:
            after[sender] = max(end, after.get(sender, 0))
    is_live = any(now_ms - GONE_MS <= end <= now_ms + MINUTE_MS for end in after.values())
    is_gone = is_live or primary in after or 2 * len(after) >= len(spoke - {primary})
    return first, max([said_ms, *(min(end, now_ms) for end in after.values())]) if is_gone else said_ms


def _range(rows: Iterable[Row]) -> tuple[int, int]:
    rows = list(rows)
    return min(row["first_ms"] for row in rows), max(row["last_ms"] for row in rows)


def _no_schema(path: str, bad: dict[str, int]) -> str:
    if not bad:
        return f"the files in {path} are empty, or none is named *.jsonl: is it the folder that the brokers write to?"
    reason = max(bad, key=lambda problem: bad[problem])
    return f"no line in {path} is telemetry of version 1 ({sum(bad.values()):,} lines, mostly: {reason}); is it the right folder?"


def _only_cluster(usable: list[Row], wanted: str | None) -> tuple[str, tuple[str, ...]]:
    """The cluster to summarise, and all names of it in the lines.

    Only samples and rosters name a cluster for certain. A broker that has not joined yet writes one of UNNAMED, and a
    resource manager may use its own name for the cluster. If there is only one cluster, these lines belong to it.
    """
    sampled = {row["cluster"] for row in usable if row["kind"] in ("sample", "roster")} - set(UNNAMED)
    others = {row["cluster"] for row in usable} - sampled
    some = ", ".join(sorted(sampled)[:5]) or "one without a name"
    if wanted is not None and wanted not in sampled:
        raise Refused(f"no cluster {wanted} in there, only {some}: give --cluster one of those")
    if wanted is None and len(sampled) > 1:
        raise Refused(f"telemetry of {len(sampled)} clusters in there ({some}): choose one with --cluster")
    name = wanted or next(iter(sampled), "")
    return name, (name,) if len(sampled) > 1 else (name, *sorted(others))


def iso(ts_ms: int) -> str:
    """A moment in a form for people, to the second."""
    return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
