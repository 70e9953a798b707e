"""The arbiter as the daemon uses it: catches errors of a plug-in, and decides what its absence means.

Life of `Arbitration`: it creates the plug-in and, beside it, the built-in arbiter. Each call to the plug-in is guarded: an
exception is logged once for each type, and the plug-in then counts as unreachable. `acts_at` combines the answers of the plug-in
and the built-in arbiter by `core.patience`. It logs when the external system becomes unreachable, when it is back, and when the
daemon acts without it.

Invariants: no exception of a plug-in passes through here; after `close` the plug-in's watcher has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf, isnan
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger

from resource_manager import arbiters
from resource_manager.arbiters.builtin import BuiltinArbiter
from resource_manager.core import patience
from resource_manager.core.arbiter import CLOSE_S, NEVER, ArbiterSettings, Health, Published

T = TypeVar("T")


class Arbitration:
    """The arbiter with its guard. SettingsError if there is no such arbiter, or its options are wrong. `patience_s` may
    be infinite.
    """

    log = Logger(namespace="resource_manager")

    def __init__(self, reactor: Any, name: str, settings: ArbiterSettings, daemon: str, patience_s: float) -> None:
        self._reactor = reactor
        self._name = name
        self._patience_s = patience_s
        self._arbiter = arbiters.make(name, settings, reactor, daemon)
        self._builtin = self._arbiter if isinstance(self._arbiter, BuiltinArbiter) else BuiltinArbiter(daemon)
        self._on_change: Callable[[], None] | None = None
        self._started_s = reactor.seconds()
        self._fault, self._fault_text = "", ""
        self._logged: set[str] = set()
        self._fault_s = self._started_s
        self._answered_s: float | None = None
        self._news: Any = None
        self._away = False
        self._without = False

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin. `on_change` is called when the result of `acts_at` may have changed."""
        self._on_change = on_change
        self._started_s = self._reactor.seconds()
        self._guarded("watch", lambda: self._arbiter.watch(self._changed), None)

    def close(self) -> Deferred[None]:
        """Release the turn. Fires when this is done, or after CLOSE_S."""
        self._on_change = None
        if self._news is not None and self._news.active():
            self._news.cancel()
        done = maybeDeferred(lambda: self._guarded("close", self._arbiter.close, None))
        return done.addTimeout(CLOSE_S, self._reactor).addBoth(lambda _: None)

    def acts_at(self, needed_since_s: float, now_s: float) -> float:
        """When this daemon may request the promotion that has been needed since then; NEVER: not before `on_change` is
        called.
        """
        said_s = self._guarded("acts_at", lambda: float(self._arbiter.acts_at(needed_since_s, now_s)), NEVER)
        turn = patience.turn(
            NEVER if isnan(said_s) else said_s,
            self.health(),
            needed_since_s,
            now_s,
            self._started_s,
            self._patience_s,
            self._builtin.delay_s,
        )
        if turn.without and turn.at_s <= now_s and not self._without:
            self._without = True
            self.log.warn(
                "acts without the arbiter {name}, which has been away for {patience:g} s",
                name=self._name,
                patience=self._patience_s,
            )
        return turn.at_s

    def rest(self) -> None:
        """No promotion is needed any more."""
        self._without = False
        self._guarded("rest", self._arbiter.rest, None)

    def hears_of(self, daemons: Collection[str]) -> None:
        """The names of all daemons. Call `acts_at` again afterwards, because the turns may have changed."""
        self._builtin.hears_of(daemons)
        if self._arbiter is not self._builtin:
            self._guarded("hears_of", lambda: self._arbiter.hears_of(daemons), None)
        self.look()

    def publish(self, view: Published) -> None:
        """Publish this."""
        self._guarded("publish", lambda: self._arbiter.publish(view), None)

    def health(self) -> Health:
        """The plug-in's health. If it raises an exception, it counts as unreachable since its last good answer."""
        said = self._guarded("health", self._arbiter.health, None)
        if isinstance(said, Health) and not self._fault:
            self._answered_s = said.answered_s
            return said
        since_s = self._fault_s if self._answered_s is None else self._answered_s
        return Health(False, since_s, self._fault_text or f"its health is {said!r}, and not a Health")

    def look(self) -> None:
        """Log when the external system has become unreachable, or is back."""
        now_s, health = self._reactor.seconds(), self.health()
        away = patience.away_since(health, self._started_s, now_s, self._patience_s) < inf
        if away == self._away:
            return
        self._away = away
        if not away:
            self.log.info("the arbiter {name} is reachable again", name=self._name)
            return
        then = "promotions wait for it" if self._patience_s == inf else f"{self._patience_s:g} s later promotions go without it"
        self.log.warn(
            "the arbiter {name} cannot be reached: {reason}; {then}; a primary that serves is not touched",
            name=self._name,
            reason=health.reason or "it has not answered",
            then=then,
        )

    def _changed(self) -> None:
        """Called in a separate turn, so that a plug-in may call the watcher from anywhere without a nested call."""
        if self._on_change is not None and (self._news is None or not self._news.active()):
            self._news = self._reactor.callLater(0, self._tell)

    def _tell(self) -> None:
        self.look()
        if self._on_change is not None:
            self._on_change()

    def _guarded(self, call: str, function: Callable[[], T], otherwise: T) -> T:
        try:
            result = function()
        except Exception as error:
            fault = f"{call} {type(error).__name__}"
            if not self._fault:
                self._fault_s = self._reactor.seconds()
            self._fault, self._fault_text = fault, f"{call} raised {type(error).__name__}: {' '.join(str(error).split())}"
            if fault not in self._logged:
                self._logged.add(fault)
                self.log.failure("the arbiter {name} is at fault: {text}", name=self._name, text=self._fault_text)
            return otherwise
        if self._fault.startswith(f"{call} "):
            self._fault = self._fault_text = ""
        return result
