"""Reports as plain values, of any size and without Spark: what a page must draw, with everything that can happen in them.

They have the shape that docs/reference/lag-report.md describes, and tell one story: a backup that stalls, a primary that is
killed and comes back, a backup of which nothing is heard, and a switchover.
"""

from __future__ import annotations

import math
import random
from typing import Any

from spark_analytics.jobs import loss

START_MS = 1_767_600_000_000
HOUR_MS = 3_600_000
LETTERS = {"SILENT": "S", "STOPPED": "X", "REWOUND": "R", "STALLED": "T", "LAGGING": "L", "GAP": "G", "OK": "O"}
Report = dict[str, Any]


def made(*, span_ms: int = 600_000, brokers: int = 3, queues: int = 12, seed: int = 1) -> Report:
    """A report of a cluster of that size over that time. The same arguments give the same report."""
    return _Story(span_ms, brokers, queues, seed).report()


def empty() -> Report:
    """A cluster of one broker: a primary, and nobody to follow it."""
    report = made(brokers=3, queues=0)
    alone = next(iter(report["timeline"]["backups"]))
    nothing = {name: [None] * report["timeline"]["count"] for name in report["timeline"]["backups"][alone]}
    timeline = report["timeline"] | {"backups": {alone: nothing}}
    return report | {
        "loss": loss.primary_loss([], timeline, report["terms"][:1], begin_ms=START_MS, end_ms=report["to_ms"]),
        "backups": [],
        "queues": [],
        "timeline": timeline,
        "lanes": {alone: [[report["from_ms"], report["to_ms"], "PRIMARY"]]},
        "terms": report["terms"][:1],
        "failovers": [],
        "events": [],
        "worst_hours": [],
        "comparison": None,
        "slo": report["slo"] | {"backups": [], "series": report["slo"]["series"] | {"backups": {}}},
    }


class _Story:
    def __init__(self, span_ms: int, brokers: int, queues: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.span_ms = span_ms
        self.names = [f"127.0.0.1:{5672 + i}" for i in range(brokers)]
        self.queues = [f"{stem}.{i // 4}" for i, stem in zip(range(queues), ["orders", "billing", "mail", "audit"] * queues)]  # noqa: B905
        self.step_ms = max(1000, span_ms // 300)
        self.count = -(-span_ms // self.step_ms)
        self.heat_ms = max(5000, span_ms // 100)
        self.heat_count = -(-span_ms // self.heat_ms)

    def report(self) -> Report:
        span, names = self.span_ms, self.names
        changed = [int(span * 0.5), int(span * 0.92)]
        primaries = [names[0], names[1], names[2 % len(names)]]
        edges = [0, *changed, span]
        timeline = {name: self._series(i) for i, name in enumerate(names)}
        series = {"start_ms": START_MS, "step_ms": self.step_ms, "count": self.count}
        heat = {"start_ms": START_MS, "step_ms": self.heat_ms, "count": self.heat_count}
        rows = [self._row(name, timeline[name]) for name in names]
        return {
            "report": 4,
            "exact": True,
            "cluster": "demo",
            "source": "telemetry",
            "input": "telemetry",
            "made_ms": START_MS + span + 8000,
            "from_ms": START_MS,
            "to_ms": START_MS + span,
            "dropped_before_ms": None,
            "interval_ms": 1000,
            "objective_ms": 1000.0,
            "window_ms": 10_000,
            "loss": loss.primary_loss(
                rows,
                series | {"backups": timeline},
                [{"begin_ms": START_MS + edge} for edge in edges[:3]],
                begin_ms=START_MS,
                end_ms=START_MS + span,
            ),
            "backups": rows,
            "queues": [self._row(names[0], timeline[names[0]]) | {"queue": queue} for queue in self.queues[:200]],
            "windows": [],
            "timeline": series | {"backups": timeline},
            "lanes": {name: self._lanes(i, timeline[name], primaries, edges) for i, name in enumerate(names)},
            "heat": heat | {"queues_in_all": len(self.queues), "rows": [self._heat(q) for q in self.queues[:40]]},
            "detail": heat
            | {
                "letters": {letter: status for status, letter in LETTERS.items()},
                "rows": [self._detail(q, b) for q in self.queues[:40] for b in names[:3]],
            },
            "worst_hours": self._hours(),
            "slo": self._slo(series),
            "terms": [
                {
                    "epoch": i + 1,
                    "primary": primary,
                    "begin_ms": START_MS + edges[i],
                    "end_ms": START_MS + edges[i + 1],
                    "last_said_ms": START_MS + edges[i + 1],
                }
                for i, primary in enumerate(primaries)
            ],
            "failovers": [
                self._failover("failover", changed[0], 2, primaries[0], primaries[1], 1240.0),
                self._failover("switchover", changed[1], 3, primaries[1], primaries[2], 180.0),
            ],
            "events": self._events(changed),
            "comparison": self._comparison(),
            "quality": {
                "files": 6,
                "unreadable_files": 0,
                "unfinished_files": 1,
                "lines": 15127,
                "usable": 15121,
                "samples_used": 15080,
                "other_clusters": 0,
                "bad": 6,
                "problems": {"torn": 4, "no valid time": 2},
                "examples": [{"problem": "torn", "file": "a.jsonl", "text": '{"v":1,"kind":"sam'}],
                "repeated": 25,
                "holes": 0,
                "late": None,
                "drops": {"lines": 12, "reasons": {"buffer full": 12}},
                "clocks": [{"sender": names[1], "against": names[0], "offset_ms": -3.5, "pairs": 288}],
                "age_ms": 8000,
            },
        }

    def _status(self, broker: int, at: float) -> str | None:
        primary = 0 if at < 0.5 else 1 if at < 0.92 else 2
        if broker == primary:
            return None
        if broker == 2 and 0.25 <= at < 0.33:
            return "STALLED"
        if broker == 2 and 0.78 <= at < 0.84:
            return "SILENT"
        if broker == 0 and 0.5 <= at < 0.6:
            return "STOPPED"
        if broker == 0 and 0.6 <= at < 0.64:
            return "LAGGING"
        return "OK"

    def _series(self, broker: int) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {
            name: []
            for name in (
                *("p50_ms", "p99_ms", "max_ms", "worst_ms", "max_records", "max_bytes", "status", "silence_ms"),
                *("over_share", "stall_ms", "ack_rate", "commit_rate", "backlog", "forecast_ms"),
            )
        }
        away = 0
        for i in range(self.count):
            at = i / self.count
            status = self._status(broker, at)
            away = away + 1 if status not in (None, "OK") else 0
            load = 400 + 300 * math.sin(2 * math.pi * at * max(1, self.span_ms / 86_400_000))
            calm = (2.0, 3.0, 6.0)[broker % 3] * (0.5 + load / 600) * math.exp(self.chance.gauss(0, 0.4))
            lag = (
                away * self.step_ms if status not in (None, "OK", "LAGGING") else calm + (12_000.0 if status == "LAGGING" else 0)
            )
            gone = status in ("SILENT", "STOPPED")
            values = {
                "p50_ms": calm * 0.6 if not away else float(lag),
                "p99_ms": float(lag),
                "max_ms": float(lag),
                "worst_ms": float(lag) * 1.2,
                "max_records": round(lag * load / 1000) + 1,
                "max_bytes": (round(lag * load / 1000) + 1) * 1024,
                "status": status,
                "silence_ms": away * self.step_ms if gone else 0,
                "over_share": 1.0 if away else 0.0,
                "stall_ms": float(lag) if status == "STALLED" else 0.0,
                "ack_rate": 0.0 if away else load,
                "commit_rate": load,
                "backlog": round(lag * load / 1000) if away else 0,
                "forecast_ms": None,
            }
            for name, column in columns.items():
                column.append(values[name] if status else None)
        return columns

    def _row(self, name: str, s: dict[str, list[Any]]) -> dict[str, Any]:
        def most(column: str) -> float:
            return max((value for value in s[column] if value is not None), default=0.0)

        seen = [value for value in s["p99_ms"] if value is not None]
        expected = len(seen) * self.step_ms // 1000
        return {
            "backup": name,
            "queue": None,
            "status": "OK",
            "now": s["status"][-1] or "PRIMARY",
            "n": expected,
            "expected": expected,
            "over_share": sum(value > 1000 for value in seen) / max(1, len(seen)),
            "p50_ms": sorted(seen)[len(seen) // 2] if seen else None,
            "p95_ms": sorted(seen)[len(seen) * 95 // 100] if seen else None,
            "p99_ms": sorted(seen)[len(seen) * 99 // 100] if seen else None,
            "max_ms": most("p99_ms"),
            "worst_ms": most("worst_ms"),
            "max_records": most("max_records"),
            "max_bytes": most("max_bytes"),
            "stall_ms": most("stall_ms"),
            "silence_ms": most("silence_ms"),
            "backlog": 0,
            "forecast_ms": None,
            "in_sync": True,
            "connected": True,
            "lag_records": 0,
            "headroom_bytes": 1 << 30,
        }

    def _lanes(self, broker: int, s: dict[str, list[Any]], primaries: list[str], edges: list[int]) -> list[list[Any]]:
        lanes: list[list[Any]] = []
        for i, status in enumerate(s["status"]):
            begin = START_MS + i * self.step_ms
            if status is None:
                continue
            if lanes and lanes[-1][2] == status and lanes[-1][1] == begin:
                lanes[-1][1] = begin + self.step_ms
            else:
                lanes.append([begin, begin + self.step_ms, status])
        as_primary = [
            [START_MS + edges[i], START_MS + edges[i + 1], "PRIMARY"]
            for i, name in enumerate(primaries)
            if name == self.names[broker]
        ]
        return sorted(lanes + as_primary)

    def _heat(self, queue: str) -> dict[str, Any]:
        worst, silent = [], []
        for i in range(self.heat_count):
            at = i / self.heat_count
            states = [self._status(broker, at) for broker in (0, 1, 2)]
            bad = any(state not in (None, "OK") for state in states)
            worst.append(self.chance.uniform(2000, 60_000) if bad else self.chance.lognormvariate(1.5, 0.8))
            if any(state in ("SILENT", "STOPPED") for state in states):
                silent.append(i)
        return {"queue": queue, "worst_ms": worst, "silent": silent}

    def _detail(self, queue: str, backup: str) -> dict[str, Any]:
        broker = self.names.index(backup)
        states = [self._status(broker, i / self.heat_count) for i in range(self.heat_count)]
        lags = [None if s is None else self.chance.lognormvariate(1.5, 0.8) * (1 if s == "OK" else 5000) for s in states]
        return {
            "backup": backup,
            "queue": queue,
            **dict.fromkeys(("p50_ms", "p99_ms", "max_ms", "worst_ms"), lags),
            "status": "".join(LETTERS[s] if s else "." for s in states),
        }

    def _hours(self) -> list[dict[str, Any]]:
        hours = []
        for i in range(min(24, max(1, self.span_ms // HOUR_MS))):
            for queue in (None, *self.queues[:1]):
                hours.append(
                    {
                        "backup": self.names[2 % len(self.names)],
                        "queue": queue,
                        "start_ms": START_MS + i * HOUR_MS,
                        "length_ms": min(HOUR_MS, self.span_ms),
                        "status": "STALLED",
                        "over_share": 0.5 / (i + 1),
                        "p99_ms": 48_000.0,
                        "worst_ms": 60_000.0,
                        "stall_ms": 47_000.0,
                    }
                )
        return hours

    def _slo(self, series: dict[str, int]) -> dict[str, Any]:
        def row(name: str | None, spent: float) -> dict[str, Any]:
            rates = {"5m": spent * 1.5, "1h": spent, "6h": None, "3d": None}
            return {
                "backup": name,
                "over_ms": spent * self.span_ms / 100,
                "spent": spent,
                "rates": rates,
                "alerts": ["fast"] if spent > 14.4 else [],
            }

        def burn(broker: int) -> list[float]:
            return [
                30.0 if self._status(broker, i / self.count) not in (None, "OK") else self.chance.random()
                for i in range(self.count)
            ]

        rates = {name: {"5m": burn(i), "1h": burn(i), "6h": [None] * self.count} for i, name in enumerate(self.names)}
        return {
            "target": 0.99,
            "budget_ms": self.span_ms // 100,
            "backups": [row(None, 15.2), *(row(name, 0.4 + 6 * i) for i, name in enumerate(self.names))],
            "series": series | {"backups": rates},
        }

    def _failover(self, kind: str, at: int, epoch: int, previous: str, primary: str, gap_ms: float) -> dict[str, Any]:
        planned = kind == "switchover"
        return {
            "kind": kind,
            "at_ms": START_MS + at,
            "epoch": epoch,
            "previous": previous,
            "primary": primary,
            "detail": "planned switchover" if planned else "primary lost",
            "gap_ms": gap_ms,
            "measured": True,
            "detected_ms": None if planned else START_MS + at - 340,
            "asked_ms": START_MS + at - 290,
            "detection_ms": None if planned else 900.0,
            "decision_ms": 40.0 if planned else 50.0,
            "promotion_ms": 140.0 if planned else 290.0,
            "recovery_ms": 24_000.0,
            "lost_records": 0,
            "peers": [
                {"backup": previous, "connected": planned, "records": 17 if planned else 40_000},
                {
                    "backup": next(name for name in self.names if name not in (previous, primary)),
                    "connected": True,
                    "records": 17,
                },
            ],
            "unreplicated_records": 17,
        }

    def _events(self, changed: list[int]) -> list[dict[str, Any]]:
        def event(at: int, type_: str, epoch: int, broker: int, **more: Any) -> dict[str, Any]:
            empty = {"from": None, "to": None, "index": None, "lost_records": None, "duration_ms": None, "detail": None}
            who = {"broker": self.names[broker], "sender": self.names[broker], "seq": at}
            return empty | who | {"epoch": epoch, "type": type_, "ts_ms": START_MS + at} | more

        return [
            event(10, "role", 1, 0, **{"from": "recovering", "to": "active"}),
            event(changed[0] - 340, "failure_detected", 1, 0, duration_ms=900.0, detail="connection lost"),
            event(changed[0] - 290, "promote_asked", 2, 1, detail="primary lost"),
            event(changed[0], "failover_done", 2, 1, duration_ms=1240.0, lost_records=0),
            event(changed[1], "failover_done", 3, 2, duration_ms=180.0, detail="planned switchover"),
        ]

    def _comparison(self) -> dict[str, Any]:
        before = {"p50_ms": 4.0, "p99_ms": 20.0, "worst_ms": 900.0, "over_share": 0.0, "stall_ms": 0.0, "stalls": 0}
        after = {"p50_ms": 3.0, "p99_ms": 48_000.0, "worst_ms": 60_000.0, "over_share": 0.155, "stall_ms": 47_000.0, "stalls": 1}
        change = {name: after[name] - before[name] for name in before}
        whole = {"before": before | {"failovers": 0}, "after": after | {"failovers": 2}, "change": change | {"failovers": 2}}
        return {
            "from_ms": START_MS - self.span_ms,
            "to_ms": START_MS,
            "all": whole,
            "backups": [{"backup": name, "before": before, "after": after, "change": change} for name in self.names],
        }
