"""The arbiter that needs nothing but the brokers: daemons take turns by the order of their names.

Each daemon sees in the brokers' lists of connections which others there are. The first by name acts at once; the second waits
one step, the third two, and each looks again before it asks: by then the first one's promotion shows, unless that daemon is
dead too. A daemon that is alone, or does not know of others, acts at once. Nothing is published outside: the brokers themselves
tell where the primary is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from resource_manager.core.arbiter import Guarantee, Published

DEFAULT_STEP_S = 0.2
MAX_RANK = 15


class BuiltinArbiter:
    """Fulfils `resource_manager.core.arbiter.Arbiter` for the daemon of this name. `step_s` is the time between two ranks."""

    guarantee = Guarantee.STAGGERED

    def __init__(self, name: str, step_s: float = DEFAULT_STEP_S) -> None:
        self._name = name
        self._step_s = step_s
        self._daemons: frozenset[str] = frozenset({name})
        self._on_change: Callable[[], None] = lambda: None

    @property
    def rank(self) -> int:
        """How many daemons come before this one."""
        return min(sorted(self._daemons).index(self._name), MAX_RANK)

    def acts_at(self, needed_since_s: float, now_s: float) -> float:
        """Rank times step after the need arose."""
        return needed_since_s + self.rank * self._step_s

    def hears_of(self, daemons: Collection[str]) -> None:
        """Their order is the order of turns. When one of them goes, those behind it move up."""
        daemons = frozenset(daemons) | {self._name}
        if daemons != self._daemons:
            self._daemons = daemons
            self._on_change()

    def publish(self, view: Published) -> None:
        """Nothing: the brokers tell."""

    def watch(self, on_change: Callable[[], None]) -> None:
        """See Arbiter."""
        self._on_change = on_change

    def close(self) -> None:
        """Nothing is held."""
