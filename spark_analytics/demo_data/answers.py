"""What a truthful summary must find in the story, worked out from its plan, never from what was written.

Shares, counts and lengths are exact. Percentiles are exact by nearest rank over every slot in which a backup should have been
heard; one that falls among the slots in which it was not is None: it is worse than every lag that was measured. (The summary has
its percentiles from buckets, and so is up to a step of the square root of two off.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from spark_analytics.demo_data import incidents
from spark_analytics.demo_data.plan import CLUSTER, GAP_MS, OBJECTIVE_MS, SWITCH_MS, Look, Plan, Reign, Span, iso
from spark_analytics.demo_data.story import Story

_HOUR_MS: Final = 3_600_000
_TELL_EACH: Final = 10_000
_PERCENTS: Final = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}


@dataclass(slots=True)
class _Backup:
    """One backup's whole log, added up slot by slot."""

    slots: int = 0
    """In which it was expected."""
    told: int = 0
    stopped: int = 0
    over: int = 0
    stall_us: int = 0
    most_us: int = 0
    quiet: int = 0
    longest_quiet: int = 0
    lags_us: Counter[int] = field(default_factory=Counter)
    hours: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the hour's beginning: slots over the objective, and expected."""

    def add(self, look: Look | None, hour_ms: int) -> None:
        """One slot; `look` None when nothing was told."""
        heard = look is not None and look.connected
        is_over = look is None or not heard or look.lag_us > OBJECTIVE_MS * 1000
        self.slots += 1
        self.over += is_over
        self.quiet = 0 if heard else self.quiet + 1
        self.longest_quiet = max(self.longest_quiet, self.quiet)
        over, expected = self.hours.get(hour_ms, (0, 0))
        self.hours[hour_ms] = (over + is_over, expected + 1)
        if look is None:
            return
        self.told += 1
        self.stopped += not heard
        self.stall_us, self.most_us = max(self.stall_us, look.stall_us), max(self.most_us, look.lag_us)
        if heard:
            self.lags_us[look.lag_us] += 1

    def row(self, name: str, interval_ms: int) -> dict[str, Any]:
        """As it stands among the answers."""
        return {
            "backup": name,
            "samples": self.told,
            "expected": self.slots,
            "missing": self.slots - self.told,
            "stopped": self.stopped,
            "over_share": round(self.over / self.slots, 6),
            **self._percentiles(),
            "max_ms": self.most_us / 1000,
            "longest_stall_ms": self.stall_us / 1000,
            "longest_silence_ms": self.longest_quiet * interval_ms,
        }

    def _percentiles(self) -> dict[str, float | None]:
        ranks = {name: ceil(self.slots * percent) for name, percent in _PERCENTS.items()}
        found: dict[str, float | None] = dict.fromkeys(ranks)
        seen = 0
        for lag_us in sorted(self.lags_us):
            before, seen = seen, seen + self.lags_us[lag_us]
            found |= {name: lag_us / 1000 for name, rank in ranks.items() if before < rank <= seen}
        return found


def answers(story: Story, progress: Callable[[str, float], None] = lambda _, __: None) -> dict[str, Any]:
    """All of them; times in ISO 8601, lengths in ms. `progress` is told what is done, and its share."""
    shape, plan = story.shape, story.plan

    def half(begin: float) -> Callable[[int], None]:
        return lambda slot: progress("working out the answers", begin + slot / shape.slots / 2)

    backups, lines = _backups(plan, half(0)), _lines(story, half(0.5))
    names = shape.brokers
    return {
        "cluster": CLUSTER,
        "from": iso(shape.start_ms),
        "to": iso(shape.end_ms),
        "interval_ms": shape.interval_ms,
        "objective_ms": OBJECTIVE_MS,
        **lines,
        "backups": [backup.row(name, shape.interval_ms) for name, backup in zip(names, backups, strict=True)],
        "worst_hours": _worst_hours(plan, backups),
        "failovers": _failovers(plan),
        "slow_disk": _span(plan, plan.slow) | {"backup": names[plan.last]},
        "stalled": _span(plan, plan.stall)
        | {
            "backup": names[plan.last],
            "longest_stall_ms": (plan.sample_ms(plan.stall.end - 1) - plan.stall.begin * shape.interval_ms) * 1.0,
        },
        "stopped": _span(plan, plan.down) | {"backup": names[0]},
        "silent": _span(plan, plan.silence) | {"backup": names[plan.last]},
        "lost": _span(plan, plan.lost),
        "outage": _span(plan, plan.outage),
    }


def _span(plan: Plan, span: Span) -> dict[str, Any]:
    begin_ms, end_ms = (plan.shape.start_ms + slot * plan.interval_ms for slot in span)
    return {"from": iso(begin_ms), "to": iso(end_ms), "slots": span.end - span.begin}


def _backups(plan: Plan, progress: Callable[[int], None]) -> list[_Backup]:
    """Every broker, for as long as it was a backup: a reign lasts until the next one's first sample."""
    found = [_Backup() for _ in plan.shape.brokers]
    for number, reign in enumerate(plan.reigns):
        last = number + 1 == len(plan.reigns)
        until = plan.shape.slots if last else plan.reigns[number + 1].begin
        for slot in range(reign.begin, until):
            if slot % _TELL_EACH == 0:
                progress(slot)
            hour_ms = (plan.shape.start_ms + slot * plan.interval_ms) // _HOUR_MS * _HOUR_MS
            for broker in plan.backups(reign):
                found[broker].add(_told(plan, reign, slot, broker), hour_ms)
    return found


def _told(plan: Plan, reign: Reign, slot: int, broker: int) -> Look | None:
    nobody = slot >= reign.end or plan.lost.holds(slot)
    return None if nobody else plan.look(slot, broker)


def _worst_hours(plan: Plan, backups: list[_Backup]) -> list[dict[str, Any]]:
    """The hours with the largest share over the objective: one, or several that are equal."""
    shares = {
        (name, hour_ms): over / expected
        for name, backup in zip(plan.shape.brokers, backups, strict=True)
        for hour_ms, (over, expected) in backup.hours.items()
    }
    most = max(shares.values())
    return [
        {"backup": name, "from": iso(hour_ms), "over_share": round(share, 6)}
        for (name, hour_ms), share in shares.items()
        if share == most
    ]


def _failovers(plan: Plan) -> list[dict[str, Any]]:
    """When each served, and how long nobody did: measured by the new primary, or seen between the last sample and its serving."""
    names = plan.shape.brokers
    last_said_ms = plan.ts_ms(plan.outage.begin - 1, 1) - plan.shape.start_ms
    served_ms = incidents.outage_served_ms(plan)
    changes = [
        ("failover", plan.serving_ms, float(GAP_MS), True),
        ("failover", served_ms, float(served_ms - last_said_ms), False),
        ("switchover", incidents.switch_served_ms(plan), float(SWITCH_MS), True),
    ]
    return [
        {
            "kind": kind,
            "epoch": new.epoch,
            "from": names[old.primary],
            "to": names[new.primary],
            "at": iso(plan.shape.start_ms + at_ms),
            "gap_ms": gap_ms,
            "measured": measured,
        }
        for (kind, at_ms, gap_ms, measured), old, new in zip(changes, plan.reigns, plan.reigns[1:], strict=False)
    ]


def _lines(story: Story, progress: Callable[[int], None]) -> dict[str, Any]:
    """How many lines of which kind there are, and are not."""
    numbered: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    in_spoils = 0
    repeated_slot = next(slot for slot, problems in story.spoils.items() if "" in problems)
    for slot in range(story.shape.slots):
        if slot % _TELL_EACH == 0:
            progress(slot)
        for piece in story.pieces(slot):
            numbered[piece.kind] += piece.lines
            lost[piece.kind] += piece.lost
            if slot == repeated_slot and piece.kind in ("whole", "queues"):
                in_spoils += piece.lines
    bad = sum(incidents.PROBLEMS.values())
    repeated = min(incidents.REPEATED, in_spoils)
    reasons: Counter[str] = Counter()
    for drop in story.plan.drops.values():
        reasons[drop.reason] += drop.lines
    return {
        "lines": numbered.total() - lost.total() + bad + repeated,
        "samples_used": sum(numbered[kind] - lost[kind] for kind in ("whole", "queues")),
        "holes": lost.total(),
        "drops": {"lines": reasons.total(), "reasons": dict(sorted(reasons.items()))},
        "bad_lines": bad,
        "problems": dict(sorted(incidents.PROBLEMS.items())),
        "repeated_lines": repeated,
    }
