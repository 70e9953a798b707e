"""A report's newest figures as Prometheus metrics: the answer of `/metrics` of the dashboard.

Names, units and labels are a contract (docs/reference/lag-metrics.md): the alert rules and the board in deploy/ use them.
Times are in seconds and sizes in bytes, as Prometheus requires.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from spark_analytics.jobs.series import NO_BACKUP
from spark_analytics.transforms.windows import STATUSES
from telemetry.exposition import CONTENT_TYPE, Family, labels, lines

__all__ = ["CONTENT_TYPE", "render"]

_PREFIX: Final = "understudy_lag_"
_QUEUES: Final = 50
_ANSWERS: Final = {"yes": 1, "at risk": 1, "no": 0}
Report = dict[str, Any]
Sample = tuple[dict[str, str], float | None]


def render(report: Report | None, refresh_s: float = 0.0) -> str:
    """The metrics of a report, which a new one follows after `refresh_s`; without a report, only the metric that there is none
    yet."""
    said = [
        ("up", "Whether there is a report.", [({}, float(report is not None))]),
        *(_families(report, refresh_s) if report is not None else ()),
    ]
    made = (Family(_PREFIX + name, meaning, [(labels(at), value) for at, value in samples]) for name, meaning, samples in said)
    return "".join(f"{line}\n" for family in made for line in lines(family))


def _families(report: Report, refresh_s: float) -> Iterator[tuple[str, str, list[Sample]]]:
    cluster = {"cluster": report["cluster"]}
    loss = report["loss"]
    yield "report_timestamp_seconds", "When the report was made.", [(cluster, report["made_ms"] / 1000)]
    yield "refresh_seconds", "Time between two reports.", [(cluster, refresh_s)]
    yield (
        "telemetry_timestamp_seconds",
        "The time of the newest telemetry.",
        [(cluster, (report["made_ms"] - report["quality"]["age_ms"]) / 1000)],
    )
    yield "objective_seconds", "Lag above this is over the objective.", [(cluster, report["objective_ms"] / 1000)]
    yield "primary_can_be_lost", "1 when the backups are a majority without the primary.", [(cluster, _ANSWERS[loss["answer"]])]
    yield "records_at_risk", "Records that are on no backup.", [(cluster, loss["records"])]
    yield "members", "Brokers that have a vote.", [(cluster, loss["members"])]
    standing = [(cluster | {"backup": row["backup"]}, row) for row in report["backups"] if row["now"] not in NO_BACKUP]
    yield (
        "status",
        "1 for the backup's status, 0 for the others.",
        [(labels | {"status": status}, float(row["now"] == status)) for labels, row in standing for status in STATUSES],
    )
    last = {name: _last(series) for name, series in report["timeline"]["backups"].items()}
    for name, field in (("p50", "p50_ms"), ("p99", "p99_ms"), ("worst", "worst_ms")):
        yield (
            f"{name}_seconds",
            f"Lag in the newest step of the timeline: {name}.",
            [(labels, _seconds(last[row["backup"]].get(field))) for labels, row in standing],
        )
    yield (
        "backlog_batches",
        "Batches that the backup has not acknowledged.",
        [(labels, row["backlog"]) for labels, row in standing],
    )
    yield (
        "headroom_bytes",
        "What may be written before the backup needs a snapshot.",
        [(labels, row.get("headroom_bytes")) for labels, row in standing],
    )
    yield (
        "over_objective_ratio",
        "Share of the span over the objective.",
        [(labels, row["over_share"]) for labels, row in standing],
    )
    yield (
        "burn_rate",
        "How fast the error budget is spent; 1 spends it exactly.",
        [
            (cluster | {"backup": row["backup"], "window": window}, rate)
            for row in report["slo"]["backups"]
            if row["backup"] is not None
            for window, rate in row["rates"].items()
        ],
    )
    yield (
        "failovers",
        "Changes of primary in the span, by kind.",
        [
            (cluster | {"kind": kind}, sum(row["kind"] == kind for row in report["failovers"]))
            for kind in ("failover", "switchover")
        ],
    )
    yield (
        "last_gap_seconds",
        "Time without a primary at the newest change of primary.",
        [(cluster, row["gap_ms"] / 1000) for row in report["failovers"][-1:]],
    )
    yield (
        "queue_p99_seconds",
        f"99th percentile of the {_QUEUES} worst queues over the span, of each queue's worst backup.",
        [
            (cluster | {"queue": row["queue"], "backup": row["backup"]}, _seconds(row["p99_ms"]))
            for row in report["queues"][:_QUEUES]
        ],
    )
    yield "bad_lines", "Lines of telemetry that were kept aside.", [(cluster, report["quality"]["bad"])]
    yield "missing_lines", "Lines that were numbered and are not there.", [(cluster, report["quality"]["holes"])]


def _last(series: dict[str, list[Any]]) -> dict[str, Any]:
    """The newest step in which a sample was expected. At the end of a span, another may have just begun."""
    at = next((at for at, status in reversed([*enumerate(series["status"])]) if status is not None), -1)
    return {name: values[at] if values else None for name, values in series.items()}


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000
