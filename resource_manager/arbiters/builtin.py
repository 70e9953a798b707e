"""The arbiter that needs only the brokers: daemons take turns in the order of their names.

Each daemon finds the others in the brokers' lists of connections. The first by name acts at once, the second waits one
step, the third two. Each checks the state again before it acts: by then the first one's promotion shows, unless that
daemon has failed too. A daemon that is alone, or does not know of others, acts at once. Nothing is published: the
brokers themselves report the primary.

A daemon also uses it if another arbiter's external system has been unreachable for too long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from resource_manager.arbiters.options import read
from resource_manager.core import arbiter
from resource_manager.core.arbiter import ArbiterSettings, Guarantee, Health, Published

INTERFACE = arbiter.INTERFACE
DEFAULT_STEP_S = 0.2
MAX_RANK = 15


class BuiltinArbiter:
    """Fulfils `resource_manager.core.arbiter.Arbiter` for the daemon of this name. `step_s` is the time between two ranks."""

    guarantee = Guarantee.STAGGERED

    def __init__(self, name: str, step_s: float = DEFAULT_STEP_S) -> None:
        self._name = name
        self._step_s = step_s
        self._daemons: frozenset[str] = frozenset({name})

    @property
    def rank(self) -> int:
        """The number of daemons before this one."""
        return min(sorted(self._daemons).index(self._name), MAX_RANK)

    @property
    def delay_s(self) -> float:
        """The time from the start of a need to this daemon's turn."""
        return self.rank * self._step_s

    def health(self) -> Health:
        """Always good: there is no external system."""
        return Health(True)

    def acts_at(self, needed_since_s: float, now_s: float) -> float:
        """The time of the need plus rank times step."""
        return needed_since_s + self.delay_s

    def rest(self) -> None:
        """Nothing is held."""

    def hears_of(self, daemons: Collection[str]) -> None:
        """The order of their names is the order of turns. When one of them ends, those after it move up."""
        self._daemons = frozenset(daemons) | {self._name}

    def publish(self, view: Published) -> None:
        """Nothing: the brokers report the primary."""

    def watch(self, on_change: Callable[[], None]) -> None:
        """Nothing changes by itself."""

    def close(self) -> None:
        """Nothing is held."""


def make(settings: ArbiterSettings, reactor: Any, daemon: str) -> BuiltinArbiter:
    """See `resource_manager.core.arbiter.Plugin`. It has no options."""
    read((), settings.options, "builtin")
    return BuiltinArbiter(daemon)
