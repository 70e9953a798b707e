"""The results that a correct summary must find in the story. They come from its plan, never from the written lines; only the
lines are counted as they are written.

Shares, counts and times are exact. Percentiles are exact by nearest rank over all slots in which a backup should have been
heard. If the rank falls on a slot in which it was not heard, the percentile is None, because it is worse than every measured
lag.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from spark_analytics.demo_data import incidents
from spark_analytics.demo_data.plan import CLUSTER, GAP_MS, OBJECTIVE_MS, SWITCH_MS, Look, Plan, iso
from spark_analytics.demo_data.story import Story

_HOUR_MS: Final = 3_600_000
_PERCENTS: Final = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}


@dataclass(slots=True)
class _Backup:
    """One backup's whole log, with totals over the slots."""

    told: int = 0
    stopped: int = 0
    stall_us: int = 0
    most_us: int = 0
    quiet: int = 0
    longest_quiet: int = 0
    lags_us: Counter[int] = field(default_factory=Counter)
    over: Counter[int] = field(default_factory=Counter)
    """By the start of the hour: slots over the objective; `slots` are those in which it was expected."""
    slots: Counter[int] = field(default_factory=Counter)

    def add(self, look: Look | None, hour_ms: int) -> None:
        """Add one slot; `look` is None if nothing was reported."""
        heard = look is not None and look.connected
        self.slots[hour_ms] += 1
        self.over[hour_ms] += look is None or not heard or look.lag_us > OBJECTIVE_MS * 1000
        self.quiet = 0 if heard else self.quiet + 1
        self.longest_quiet = max(self.longest_quiet, self.quiet)
        if look is not None:
            self.told, self.stopped = self.told + 1, self.stopped + (not heard)
            self.stall_us, self.most_us = max(self.stall_us, look.stall_us), max(self.most_us, look.lag_us)
            self.lags_us[look.lag_us] += heard

    def row(self, name: str, interval_ms: int) -> dict[str, Any]:
        """The backup's row in the answers."""
        slots, seen, percentiles = self.slots.total(), 0, dict[str, float | None].fromkeys(_PERCENTS)
        for lag_us in sorted(self.lags_us):
            before, seen = seen, seen + self.lags_us[lag_us]
            percentiles |= {rank: lag_us / 1000 for rank, share in _PERCENTS.items() if before < ceil(slots * share) <= seen}
        return {
            "backup": name,
            "samples": self.told,
            "expected": slots,
            "missing": slots - self.told,
            "stopped": self.stopped,
            "over_share": round(self.over.total() / slots, 6),
            **percentiles,
            "max_ms": self.most_us / 1000,
            "longest_stall_ms": self.stall_us / 1000,
            "longest_silence_ms": self.longest_quiet * interval_ms,
        }


def answers(story: Story) -> dict[str, Any]:
    """All answers of a written story; times in ISO 8601, durations in ms."""
    shape, plan, counts = story.shape, story.plan, story.counts
    backups, names = _backups(plan), shape.brokers
    reasons = {name.removeprefix("drop "): number for name, number in sorted(counts.items()) if name.startswith("drop ")}
    hours = {
        (name, hour_ms): round(backup.over[hour_ms] / expected, 6)
        for name, backup in zip(names, backups, strict=True)
        for hour_ms, expected in backup.slots.items()
    }
    weakest = {"backup": names[plan.last]}
    stall_ms = float(plan.sample_ms(plan.stall.end - 1) - plan.stall.begin * shape.interval_ms)
    spans = {name: _span(plan, *getattr(plan, name)) for name in ("slow", "stall", "down", "silence", "lost", "outage")}
    return {
        "cluster": CLUSTER,
        "from": iso(shape.start_ms),
        "to": iso(shape.start_ms + shape.seconds * 1000),
        "interval_ms": shape.interval_ms,
        "objective_ms": OBJECTIVE_MS,
        **{name: counts[name] for name in ("lines", "samples_used", "holes", "bad_lines", "repeated_lines")},
        "drops": {"lines": sum(reasons.values()), "reasons": reasons},
        "problems": dict(sorted(incidents.PROBLEMS.items())),
        "backups": [backup.row(name, shape.interval_ms) for name, backup in zip(names, backups, strict=True)],
        "worst_hours": [
            {"backup": name, "from": iso(hour_ms), "over_share": share}
            for (name, hour_ms), share in hours.items()
            if share == max(hours.values())
        ],
        "failovers": _failovers(plan),
        "slow_disk": spans["slow"] | weakest,
        "stalled": spans["stall"] | weakest | {"longest_stall_ms": stall_ms},
        "stopped": spans["down"] | {"backup": names[0]},
        "silent": spans["silence"] | weakest,
        "lost": spans["lost"],
        "outage": spans["outage"],
    }


def _span(plan: Plan, begin: int, end: int) -> dict[str, Any]:
    first, last = (iso(plan.shape.start_ms + slot * plan.interval_ms) for slot in (begin, end))
    return {"from": first, "to": last, "slots": end - begin}


def _backups(plan: Plan) -> list[_Backup]:
    """Every broker, for the time in which it was a backup: a term lasts until the first sample of the next term."""
    found, ends = [_Backup() for _ in plan.everybody], [*(term.begin for term in plan.terms[1:]), plan.shape.slots]
    for term, until in zip(plan.terms, ends, strict=True):
        for slot in range(term.begin, until):
            hour_ms = (plan.shape.start_ms + slot * plan.interval_ms) // _HOUR_MS * _HOUR_MS
            nobody = slot >= term.end or plan.lost.holds(slot)
            for broker in plan.backups(term):
                found[broker].add(None if nobody else plan.look(slot, broker), hour_ms)
    return found


def _failovers(plan: Plan) -> list[dict[str, Any]]:
    """When each primary served, and for how long none did: measured by the new primary, or seen between the last sample and
    its start of service."""
    said_ms = plan.ts_ms(plan.outage.begin - 1, 1) - plan.shape.start_ms
    back_ms = incidents.outage_served_ms(plan)
    changes = [
        ("failover", plan.serving_ms, float(GAP_MS), True),
        ("failover", back_ms, float(back_ms - said_ms), False),
        ("switchover", incidents.switch_served_ms(plan), float(SWITCH_MS), True),
    ]
    return [
        {
            "kind": kind,
            "epoch": new.epoch,
            "from": plan.shape.brokers[old.primary],
            "to": plan.shape.brokers[new.primary],
            "at": iso(plan.shape.start_ms + at_ms),
            "gap_ms": gap_ms,
            "measured": measured,
        }
        for (kind, at_ms, gap_ms, measured), old, new in zip(changes, plan.terms, plan.terms[1:], strict=False)
    ]
