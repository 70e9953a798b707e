"""When a daemon acts without its arbiter: its outside system has been away for too long, and a promotion is needed.

Life: `turn` is asked each time that a promotion is needed. While the arbiter is reachable, its answer counts alone. Once it is
not, its answer still counts (a lease that is held runs on), and beside it the built-in arbiter's turn, which begins when
the patience is over or the need arose, whichever is later.

How long it has been away counts from its last good answer, or from the daemon's start if there was none. A plug-in that says that
it is reachable, and whose last good answer is older than the patience, is not believed: it may hang without a notice.

Pure: times in seconds of a monotonic clock, passed in. `patience_s` may be infinite: then an arbiter is waited for for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from resource_manager.core.arbiter import Health


@dataclass(frozen=True, slots=True)
class Turn:
    """When this daemon may act; `without`: the arbiter has no part in it, since it is away."""

    at_s: float
    without: bool = False


def away_since(health: Health, started_s: float, now_s: float, patience_s: float) -> float:
    """Since when the arbiter's outside system is away; infinity when it is not."""
    answered_s = started_s if health.answered_s is None else health.answered_s
    if health.reachable and (health.answered_s is None or now_s - answered_s <= patience_s):
        return inf
    return answered_s


def turn(
    said_s: float, health: Health, needed_since_s: float, now_s: float, started_s: float, patience_s: float, delay_s: float
) -> Turn:
    """When to act. `said_s` is the arbiter's `acts_at`; `delay_s` is how long after the start of a need the built-in arbiter's
    turn begins."""
    without_s = max(away_since(health, started_s, now_s, patience_s) + patience_s, needed_since_s) + delay_s
    return Turn(said_s) if said_s <= max(now_s, without_s) else Turn(without_s, without=True)
