"""The plug-in that lets several resource-manager daemons agree on who acts, and that publishes what came of it.

Votes and epochs in the brokers are what keeps the data safe, whatever an arbiter says: two daemons that act at once cost time
and never a message, and an arbiter is asked only when the brokers say that there is no primary. An arbiter is there so that
usually just one daemon acts, and so that others (a load balancer, an operator) can see where the primary is. It may use an
outside system (etcd, a Kubernetes Lease, Pacemaker); the built-in one uses none.

**Plug-in.** A module or object with `INTERFACE` (the number below) and `make(settings, reactor, daemon)`, named by an entry point
of the group `understudy.arbiters`. `make` opens no connection and asks nobody: an outside system that is away is not an error at
the start. It raises ValueError, with one line of text, for an option that it does not know or cannot use; the daemon then ends
with that line.

**Life.** The daemon makes one arbiter, calls `watch` once, and from then on, in the reactor's thread: `acts_at` again and again
while a promotion is needed and this daemon could ask for it; `rest` when the need is over, or this daemon cannot ask any more;
`hears_of` and `publish` whenever what they tell has changed; `health` at any time; `close` once, at its end. Outside of a need an
arbiter holds no turn, so that a daemon that is cut off from the brokers is in nobody's way.

**Time.** All calls return at once: who has to wait for an outside system remembers what that said last, and calls the watcher
when it has said something new. The watcher is never called from within a call to the arbiter, nor after `close`. Times are
seconds of `reactor.seconds()`, which is monotonic: no arbiter compares clocks of two machines.

**Health and patience.** An arbiter says when its outside system has last given an answer that could not be stale, by which turns
can be decided. When that is longer ago than `--arbiter-patience`, and a promotion is needed, the daemon acts as the built-in
arbiter would (`core.patience`). So trouble of the outside system delays a promotion by that time at most, and never touches a
primary that serves.

**What a plug-in may raise.** Nothing, in any call but `make`. One that raises all the same is taken for unreachable, from its
last good answer on: the daemon logs it once and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Any, Protocol

INTERFACE = 1
"""The version of all that this module says. A plug-in for another one is refused at the start."""
NEVER = inf
CLOSE_S = 1.0
"""How long a daemon that ends waits for an arbiter to give up what it holds."""


class Guarantee(Enum):
    """What an arbiter promises of two daemons that both ask `acts_at` in the same need."""

    STAGGERED = "their times differ unless they do not know of each other; nothing is promised"
    LEASED = "at most one of them may act while its lease runs; clocks must run at about the same speed"


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome for outsiders: who is the primary ("" when there is none), in which epoch."""

    primary: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Health:
    """How the outside system fares. `reachable`: turns can be decided now; if not, `reason` says why in half a line.

    `answered_s` is when the question was sent to which it has last given an answer that is not stale (linearizable) and by which
    turns can be decided; None before the first, and always for an arbiter that has no outside system.
    """

    reachable: bool
    answered_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ArbiterSettings:
    """What `make` is told: the cluster's name ("" when none was given) and the plug-in's own options as text, by name."""

    cluster: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


class Arbiter(Protocol):
    """Who acts. Implementations name their guarantee and keep to it when their outside system is gone: a LEASED arbiter then
    answers NEVER once its lease has run out, and lets the cluster go on with the primary that it has."""

    @property
    def guarantee(self) -> Guarantee:
        """What it promises."""

    def health(self) -> Health:
        """How the outside system fares."""

    def acts_at(self, needed_since_s: float, now_s: float) -> float:
        """When this daemon may ask for the promotion that has been needed since then.

        A time not after `now_s` is the moment from which it is this daemon's turn, and stays what it is while the turn lasts. A
        later one is when to ask again. NEVER: not before the watcher is called."""

    def rest(self) -> None:
        """No promotion is needed any more, or this daemon cannot ask for it: give up the turn, or the wait for it."""

    def hears_of(self, daemons: Collection[str]) -> None:
        """The names of the daemons that are connected to the brokers now, our own among them or not."""

    def publish(self, view: Published) -> None:
        """Make this known. Called again when it changes; the last call counts, but a view of a lower epoch than one that is known
        already never replaces it."""

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call this whenever `acts_at` may answer something else than before, or `health` tells of another reachability."""

    def close(self) -> Any:
        """Give up what is held (a lease), so that others need not wait for its end; leave no timer and no connection.

        Returns None, or a Deferred of Twisted's that fires when it is done: the daemon waits for it, for CLOSE_S at most."""


class Plugin(Protocol):
    """What an entry point names."""

    INTERFACE: int

    def make(self, settings: ArbiterSettings, reactor: Any, daemon: str) -> Arbiter:
        """The arbiter for the daemon of that name. `reactor` is Twisted's. ValueError, with one line, for wrong options."""
