"""A sound arbiter over a store in memory, and ones with a fault planted in each, for the kit of conformance to find."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from twisted.internet.task import LoopingCall

from resource_manager.core.arbiter import NEVER, ArbiterSettings, Guarantee, Health, Published

AWAY = False
"""Whether the store in memory is cut off."""
TURNS: dict[str, Sound] = {}
WATCHERS: dict[str, list[Sound]] = {}
INTERFACE = 1
_LEASE_S = 0.3


def cut() -> None:
    global AWAY  # noqa: PLW0603 - it stands for a system outside of this process
    AWAY = True


def mend() -> None:
    global AWAY  # noqa: PLW0603 - see above
    AWAY = False


class Sound:
    """Fulfils Arbiter, with leases, for daemons of one process."""

    guarantee: Any = Guarantee.LEASED

    def __init__(self, settings: ArbiterSettings, reactor: Any, daemon: str) -> None:
        self.reactor, self.cluster = reactor, settings.cluster
        self.answered_s: float | None = None
        self.since_s = NEVER
        self.waits = False
        self.closed = False
        self.on_change: Callable[[], None] = lambda: None
        self.renewing = LoopingCall(self.renew)
        self.renewing.clock = reactor

    def watch(self, on_change: Callable[[], None]) -> None:
        self.on_change = on_change
        WATCHERS.setdefault(self.cluster, []).append(self)
        self.renewing.start(0.03, now=False)

    def renew(self) -> None:
        if not AWAY:
            self.answered_s = self.reactor.seconds()
            if self.waits and self.since_s == NEVER and self.may_take():
                TURNS[self.cluster], self.since_s = self, self.reactor.seconds()
                self.tell()

    def may_take(self) -> bool:
        return TURNS.get(self.cluster) is None

    def tell(self) -> None:
        if not self.closed:
            self.on_change()

    def runs(self) -> bool:
        return self.answered_s is not None and self.reactor.seconds() - self.answered_s < _LEASE_S

    def health(self) -> Any:
        away = AWAY or self.answered_s is None
        return Health(not away, self.answered_s, "cut off" if away else "")

    def acts_at(self, needed_since_s: float, now_s: float) -> Any:
        self.waits = not self.closed
        return self.since_s if self.runs() else NEVER

    def rest(self) -> None:
        self.waits, self.since_s = False, NEVER
        if TURNS.get(self.cluster) is self:
            TURNS[self.cluster] = None  # type: ignore[assignment]
            for other in WATCHERS[self.cluster]:
                self.reactor.callLater(0, other.tell)

    def hears_of(self, daemons: Collection[str]) -> None:
        """They are told by the store."""

    def publish(self, view: Published) -> None:
        """Nobody asks."""

    def close(self) -> Any:
        self.rest()
        self.closed = True
        if self.renewing.running:
            self.renewing.stop()


def make(settings: ArbiterSettings, reactor: Any, daemon: str) -> Sound:
    """The sound one. See `resource_manager.core.arbiter.Plugin`."""
    return Sound(settings, reactor, daemon)


class MovesItsTurn(Sound):
    def acts_at(self, needed_since_s: float, now_s: float) -> Any:
        return now_s if super().acts_at(needed_since_s, now_s) <= now_s else NEVER


class LetsAllAct(Sound):
    def may_take(self) -> bool:
        return True


class LetsNobodyAct(Sound):
    def may_take(self) -> bool:
        return False


class Blocks(Sound):
    def acts_at(self, needed_since_s: float, now_s: float) -> Any:
        time.sleep(0.3)
        return super().acts_at(needed_since_s, now_s)


class CallsFromWithin(Sound):
    def acts_at(self, needed_since_s: float, now_s: float) -> Any:
        self.on_change()
        return super().acts_at(needed_since_s, now_s)


class RaisesInPublish(Sound):
    def publish(self, view: Published) -> None:
        raise ConnectionError("nobody is there")


class KeepsItsTurnInRest(Sound):
    def rest(self) -> None:
        if self.closed:
            super().rest()


class SaysItIsWellWhenItIsNot(Sound):
    def health(self) -> Any:
        return Health(True, self.answered_s)


class ActsOnAfterItsLease(Sound):
    def runs(self) -> bool:
        return True


class LeavesATimer(Sound):
    def close(self) -> Any:
        super().close()
        self.left = self.reactor.callLater(120, lambda: None)


class CallsAfterClose(Sound):
    def tell(self) -> None:
        self.on_change()

    def close(self) -> Any:
        super().close()
        self.reactor.callLater(0.05, self.tell)


class TellsNobody(Sound):
    def tell(self) -> None:
        """Not a word."""


class HasNoGuarantee(Sound):
    guarantee = "yes"


class AnswersNothing(Sound):
    def acts_at(self, needed_since_s: float, now_s: float) -> Any:
        return None
