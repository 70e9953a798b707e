"""The interface of arbiters: plug-ins that let several resource-manager daemons agree which one acts, and that publish
the primary.

The votes and epochs of the brokers keep the data safe, whatever an arbiter says. If two daemons act at once, this costs
time, but never a message. An arbiter is asked only when the brokers report that there is no primary. An arbiter ensures
that usually only one daemon acts, and that others (a load balancer, an operator) can see which broker is the primary.
It may use an external system (etcd, a Kubernetes Lease); the built-in one uses none.

**Plug-in.** A module or object with `INTERFACE` (the number below) and `make(settings, reactor, daemon)`, named by an
entry point of the group `understudy.arbiters`. `make` opens no connection and sends no request: an unreachable external
system is not an error at the start. It raises ValueError, with one line of text, for an option that it does not know or
cannot use. Then the daemon ends with that line.

**Life.** The daemon makes one arbiter and calls `watch` once. From then on it makes these calls in the reactor's
thread: `acts_at` repeatedly while a promotion is needed and this daemon could request it; `rest` when no promotion is
needed any more, or this daemon can no longer request it; `hears_of` and `publish` when their arguments have changed;
`health` at any time; `close` once, at its end. While no promotion is needed, an arbiter holds no turn. So a daemon that
is disconnected from the brokers does not block other daemons.

**Time.** All calls return at once. An arbiter with an external system remembers the system's last answer, and calls the
watcher when the answer has changed. The watcher is never called from within a call to the arbiter, nor after `close`.
Times are seconds of `reactor.seconds()`, which is monotonic: no arbiter compares the clocks of two machines.

**Health and patience.** An arbiter reports when its external system last gave an answer that could not be stale and by
which turns can be decided. If that is longer ago than `--arbiter-patience`, and a promotion is needed, the daemon acts
as the built-in arbiter would (`core.patience`). So a failure of the external system delays a promotion by at most that
time, and never affects a serving primary.

**Exceptions.** Only `make` may raise exceptions. A plug-in that raises one in another call counts as unreachable since
its last good answer. The daemon logs this once and continues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Any, Protocol

INTERFACE = 1
"""The version of the interface in this module. A plug-in for another version is refused at the start."""
NEVER = inf
CLOSE_S = 1.0
"""How long an ending daemon waits until an arbiter has released its turn."""


class Guarantee(Enum):
    """What an arbiter promises if two daemons call `acts_at` for the same need."""

    STAGGERED = "their times differ unless they do not know of each other; nothing is promised"
    LEASED = "at most one of them may act while its lease runs; clocks must run at about the same speed"


@dataclass(frozen=True, slots=True)
class Published:
    """The published state: the primary ("" for none) and its epoch."""

    primary: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Health:
    """The health of the external system. `reachable`: turns can be decided now; if not, `reason` says why in half a
    line.

    `answered_s` is the time when the question was sent whose answer is the last one that is not stale (linearizable)
    and by which turns can be decided. It is None before the first such answer, and always for an arbiter without an
    external system.
    """

    reachable: bool
    answered_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ArbiterSettings:
    """The settings for `make`: the cluster's name ("" if none was given) and the plug-in's own options as text, by
    name.
    """

    cluster: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


class Arbiter(Protocol):
    """Decides which daemon acts. Implementations name their guarantee and keep it when their external system is
    unreachable: a LEASED arbiter answers NEVER when its lease has expired, and the cluster continues with its present
    primary.
    """

    @property
    def guarantee(self) -> Guarantee:
        """Its guarantee."""

    def health(self) -> Health:
        """The health of the external system."""

    def acts_at(self, needed_since_s: float, now_s: float) -> float:
        """When this daemon may request the promotion that has been needed since then.

        A time not after `now_s` is the start of this daemon's turn, and stays the same during the turn. A later time is
        when to ask again. NEVER: not before the watcher is called.
        """

    def rest(self) -> None:
        """No promotion is needed any more, or this daemon cannot request it: release the turn, or stop waiting for it."""

    def hears_of(self, daemons: Collection[str]) -> None:
        """The names of the daemons that are connected to the brokers now, with or without our own."""

    def publish(self, view: Published) -> None:
        """Publish this. It is called again when it changes. The last call counts, but a lower epoch never replaces a
        higher one.
        """

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call this whenever the result of `acts_at`, or the reachability in `health`, may have changed."""

    def close(self) -> Any:
        """Release the turn (a lease), so that other daemons need not wait for its end; leave no timer and no
        connection.

        Returns None, or a Deferred of Twisted's that fires when this is done: the daemon waits for it, for at most
        CLOSE_S.
        """


class Plugin(Protocol):
    """The object that an entry point names."""

    INTERFACE: int

    def make(self, settings: ArbiterSettings, reactor: Any, daemon: str) -> Arbiter:
        """The arbiter for the daemon of that name. `reactor` is Twisted's. ValueError, with one line, for wrong options."""
