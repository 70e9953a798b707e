"""The plug-in that lets several resource-manager daemons agree on who acts, and that publishes what came of it.

Votes and epochs in the brokers are what keeps the data safe, whatever an arbiter says: two daemons that act at once cost time
and never a message. An arbiter is there so that usually just one acts, and so that others (a load balancer, an operator) can
see where the primary is. It may use an outside system (etcd, a Kubernetes Lease, Pacemaker); the built-in one uses none.

Life: the daemon makes one arbiter, calls `watch` once, `hears_of` and `publish` whenever what they tell has changed, `acts_at`
each time it is about to ask for a promotion, and `close` at its end. All calls return at once; an arbiter that has to wait for
an outside system remembers what that said last, and calls the watcher when it says something new.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Protocol

NEVER = inf


class Guarantee(Enum):
    """What an arbiter promises of two daemons that both ask `acts_at` in the same need."""

    STAGGERED = "their times differ unless they do not know of each other; nothing is promised"
    LEASED = "at most one of them may act while its lease runs; clocks must run at about the same speed"


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome for outsiders: who is the primary ("" when there is none), in which epoch."""

    primary: str
    epoch: int


class Arbiter(Protocol):
    """Who acts. Implementations name their guarantee and keep to it when their outside system is gone: a LEASED arbiter then
    answers NEVER once its lease has run out, and lets the cluster go on with the primary that it has."""

    @property
    def guarantee(self) -> Guarantee:
        """What it promises."""

    def acts_at(self, needed_since_s: float, now_s: float) -> float:
        """When this daemon may ask for the promotion that has been needed since then: a time not after `now_s` means now; NEVER
        means not before the watcher is called."""

    def hears_of(self, daemons: Collection[str]) -> None:
        """The names of the daemons that are connected to the brokers now, our own among them or not."""

    def publish(self, view: Published) -> None:
        """Make this known. Called again when it changes; the last call counts."""

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call this whenever `acts_at` may answer something else than before."""

    def close(self) -> None:
        """Give up what is held (a lease), so that others need not wait for its end."""
