"""The results that a correct summary must find in the story. They come from its plan, never from the written lines; only the
lines are counted as they are written.

Shares, counts and times are exact. Percentiles are exact by nearest rank over all slots in which a backup should have been
heard. If the rank falls on a slot in which it was not heard, the percentile is None, because it is worse than every measured
lag.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import ceil
from typing import Any, Final

from spark_analytics.demo_data.incidents import PROBLEMS, REPEATED
from spark_analytics.demo_data.plan import CLUSTER, DROPS, Look, Plan, iso

OBJECTIVE_MS: Final = 1000
_HOUR_MS: Final = 3_600_000
_PERCENTS: Final = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}


def answers(plan: Plan, counts: Counter[str]) -> dict[str, Any]:
    """All answers of a story with these numbers of `lines`, `holes` and `files`; times in ISO 8601, durations in ms."""
    shape, names = plan.shape, plan.shape.brokers
    backups = [_backup(plan, broker) for broker in plan.everybody]
    samples = sum(row["samples"] for row, _ in backups)
    worst = max(share for _, hours in backups for share in hours.values())
    drops = {reason: sum(number for why, number in plan.drops.values() if why == reason) for reason in DROPS.values()}
    spans: dict[str, dict[str, Any]] = {
        name: {"from": iso(plan.begin_ms(begin)), "to": iso(plan.begin_ms(end)), "slots": end - begin}
        | ({} if broker is None else {"backup": names[broker]})
        for name, (begin, end, broker) in plan.spans.items()
    }
    spans["stalled"]["longest_stall_ms"] = plan.look(plan.stalled.end - 1, plan.last).stall_us / 1000
    return {
        "cluster": CLUSTER,
        "from": iso(plan.begin_ms(0)),
        "to": iso(plan.begin_ms(shape.slots)),
        "interval_ms": shape.interval_ms,
        "objective_ms": OBJECTIVE_MS,
        "lines": counts["lines"],
        "samples_used": samples * (1 + shape.queues) - sum(drops.values()),
        "holes": counts["holes"],
        "bad_lines": sum(PROBLEMS.values()),
        "repeated_lines": min(REPEATED, shape.backups * (1 + shape.queues)),
        "drops": {"lines": sum(drops.values()), "reasons": drops},
        "problems": dict(sorted(PROBLEMS.items())),
        "backups": [row for row, _ in backups],
        "worst_hours": [
            {"backup": row["backup"], "from": iso(hour_ms), "over_share": share}
            for row, hours in backups
            for hour_ms, share in hours.items()
            if share == worst
        ],
        "failovers": [
            {
                "kind": new.kind,
                "epoch": new.epoch,
                "from": names[old.primary],
                "to": names[new.primary],
                "at": iso(new.served_ms),
                "gap_ms": new.gap_ms or float(new.served_ms - plan.ts_ms(old.end - 1, old.primary)),
                "measured": new.gap_ms is not None,
            }
            for old, new in pairwise(plan.terms)
        ],
        **spans,
        "files": counts["files"],
    }


def _backup(plan: Plan, broker: int) -> tuple[dict[str, Any], dict[int, float]]:
    """A backup's row, for the time in which it was one: a term lasts until the first sample of the next term. And by the start
    of each hour the share of slots over the objective."""
    looks, slots, over, quiet, longest = Counter[Look | None](), Counter[int](), Counter[int](), 0, 0
    for slot in range(plan.shape.slots):
        term, hour_ms = plan.term(slot), plan.begin_ms(slot) // _HOUR_MS * _HOUR_MS
        if term.primary != broker:
            is_silent = slot >= term.end or plan.lost.holds(slot) or plan.silent.holds(slot, broker)
            look = None if is_silent else plan.look(slot, broker)
            heard = look if look is not None and look.connected else None
            looks[look] += 1
            slots[hour_ms] += 1
            over[hour_ms] += heard is None or heard.lag_us > OBJECTIVE_MS * 1000
            quiet = quiet + 1 if heard is None else 0
            longest = max(longest, quiet)
    expected, told = slots.total(), [look for look in looks.elements() if look is not None]
    lags_us = sorted(look.lag_us for look in told if look.connected)
    ranks = {name: ceil(expected * share) for name, share in _PERCENTS.items()}
    row = {
        "backup": plan.shape.brokers[broker],
        "samples": len(told),
        "expected": expected,
        "missing": expected - len(told),
        "stopped": len(told) - len(lags_us),
        "over_share": round(over.total() / expected, 6),
        **{name: lags_us[rank - 1] / 1000 if rank <= len(lags_us) else None for name, rank in ranks.items()},
        "max_ms": max(look.lag_us for look in told) / 1000,
        "longest_stall_ms": max(look.stall_us for look in told) / 1000,
        "longest_silence_ms": longest * plan.shape.interval_ms,
    }
    return row, {hour_ms: round(over[hour_ms] / number, 6) for hour_ms, number in slots.items()}
