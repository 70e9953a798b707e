"""Small worlds beside `world.World`: a few machines with one task, and their own checks.

Life of a small world: the seed says what exists; `_live` runs it and makes the checks. Then every machine is killed,
and everything that is not Python's memory is released.

Invariant: every failure is reported: an exception in production code, a broker that refuses to start, and one that ends
by itself are a Violation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from tests.simulation.events import Events
from tests.simulation.history import Violation
from tests.simulation.hosts import BrokerHost
from tests.simulation.messenger import Mail, Weather
from tests.simulation.network import Network
from tests.simulation.operators import Operators
from tests.simulation.plan import Plan
from tests.simulation.reactor import HostReactor
from tests.simulation.world import surroundings


class Machine(Protocol):
    """What runs in a small world."""

    def kill(self) -> None:
        """It is gone at once."""


class SmallWorld(ABC):
    """See the module. Fulfils for machines and operators what `world.World` does."""

    def __init__(self, plan: Plan, rng: Random, say: Callable[[str], None] | None) -> None:
        self.plan, self.rng, self._say = plan, rng, say
        self.events = Events()
        self.network = Network(self.events, Random(f"{plan.seed}/network"), latency_s=plan.latency_s, chunking=0.02)
        self.mail = Mail(self.network, rng, Weather(0.0, 0.0, 0.0, 0.0))
        self.ended = False
        self.operators = Operators(self)  # type: ignore[arg-type]
        self._broken: list[str] = []

    # ---- what machines and operators tell and ask

    def say(self, text: str) -> None:
        """A line of the trace."""
        if self._say is not None:
            self._say(f"{self.events.now:9.4f} {text}")

    def broke(self, failure: Failure) -> None:
        """Something raised where nothing may."""
        self._broken.append(f"crash: {failure.getErrorMessage()}\n{failure.getTraceback()}")

    def cannot_start(self, host: BrokerHost, why: str) -> None:
        """A broker refuses to start, and no disk is at fault here."""
        self._broken.append(f"crash: {host.name} cannot start: {why}")

    def process_ended(self, host: BrokerHost, status: int) -> None:
        """A broker has ended by itself."""
        self._broken.append(f"crash: the process of {host.name} ended with status {status}")

    @abstractmethod
    def primary(self) -> BrokerHost | None:
        """The one whom operators ask."""

    @staticmethod
    def pause(reactor: HostReactor, seconds: float) -> Deferred[None]:
        """Fires after this time."""
        paused: Deferred[None] = Deferred()
        reactor.callLater(seconds, paused.callback, None)
        return paused

    # ---- the run

    def run(self) -> None:
        """Run it. Violation when a promise is broken."""
        try:
            with surroundings(self.plan.chunk_bytes, self._logged):
                self._live()
        finally:
            self.ended = True
            for machine in self._machines():
                machine.kill()
            self.network.release()

    @abstractmethod
    def _live(self) -> None:
        """Let it happen, and draw up the account."""

    @abstractmethod
    def _machines(self) -> Sequence[Machine]:
        """All that runs in it."""

    def _until(self, end: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen until then, or until it is done, which is looked at now and then. Returns whether it is done."""
        events = self.events
        while events.queue and events.queue[0][0] <= end:
            try:
                events.step()
            except Exception as error:
                raise Violation(f"crash: {type(error).__name__}: {error}\n{Failure(error).getTraceback()}") from error
            if self._broken:
                raise Violation(self._broken[0])
            if events.happened % 100 == 0 and done():
                return True
        events.now = max(events.now, end)
        return done()

    def _logged(self, event: dict[str, Any]) -> None:
        """A line of production's log."""
        if "log_failure" in event:
            self.broke(event["log_failure"])
