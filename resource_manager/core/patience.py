"""Decides when a daemon acts without its arbiter: its external system has been unreachable for too long, and a
promotion is needed.

Life: `turn` is called each time that a promotion is needed. While the arbiter is reachable, only its answer counts.
When it is not, its answer still counts (a held lease stays valid), and so does the built-in arbiter's turn. That turn
begins when the patience is over or when the promotion became necessary, whichever is later.

The time counts from the last good answer, or from the daemon's start if there was none. If a plug-in reports that it is
reachable, but its last good answer is older than the patience, it counts as unreachable: it may hang without noticing.
Answers up to `FRESH_S` old are no sign of that, however short the patience is, because arbiters ask only now and then.

Pure: times are in seconds of a monotonic clock, passed in. `patience_s` may be infinite: then the daemon waits for its
arbiter forever.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from resource_manager.core.arbiter import Health

FRESH_S = 5.0
"""More than twice the time between two renewals (`CandidateSettings.longest_interval_s`)."""


@dataclass(frozen=True, slots=True)
class Turn:
    """When this daemon may act. `without`: it acts without the arbiter, because that is unreachable."""

    at_s: float
    without: bool = False


def away_since(health: Health, started_s: float, now_s: float, patience_s: float) -> float:
    """The time since which the arbiter's external system is unreachable; infinity if it is not."""
    answered_s = started_s if health.answered_s is None else health.answered_s
    if health.reachable and (health.answered_s is None or now_s - answered_s <= max(patience_s, FRESH_S)):
        return inf
    return answered_s


def turn(
    said_s: float, health: Health, needed_since_s: float, now_s: float, started_s: float, patience_s: float, delay_s: float
) -> Turn:
    """When to act. `said_s` is the arbiter's `acts_at`; `delay_s` is the time from the start of the need to the
    built-in arbiter's turn.
    """
    without_s = max(away_since(health, started_s, now_s, patience_s) + patience_s, needed_since_s) + delay_s
    return Turn(said_s) if said_s <= max(now_s, without_s) else Turn(without_s, without=True)
