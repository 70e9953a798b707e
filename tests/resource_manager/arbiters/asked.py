"""An arbiter as a daemon has it, for tests: whether it has the turn, what its health is, how often it called its watcher."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from twisted.internet import reactor as installed_reactor

from resource_manager.core.arbiter import NEVER
from tests.broker.real_time import time_passes, until
from tests.resource_manager.arbiters import under_fault

reactor: Any = installed_reactor


class Asked:
    """See the module."""

    def __init__(self, arbiter: Any) -> None:
        self.arbiter = arbiter
        self.told = 0

    def watch(self) -> None:
        """Begin, as a daemon does once."""
        self.arbiter.watch(self._tell)

    def _tell(self) -> None:
        self.told += 1

    def has_turn(self) -> bool:
        """Ask for the turn, as a daemon in a need does again and again."""
        now_s: float = reactor.seconds()
        return bool(self.arbiter.acts_at(now_s, now_s) <= now_s)

    @property
    def reachable(self) -> bool:
        return bool(self.arbiter.health().reachable)

    @property
    def reason(self) -> str:
        return str(self.arbiter.health().reason)


A = TypeVar("A", bound=Asked)


@asynccontextmanager
async def reaching(there: Iterable[A]) -> AsyncIterator[list[A]]:
    """Daemons whose arbiters have reached their store."""
    found = list(there)
    try:
        for daemon in found:
            await until(lambda daemon=daemon: daemon.reachable)  # type: ignore[misc]
        yield found
    finally:
        for daemon in found:
            await daemon.arbiter.close()


async def check_one_at_a_time(daemon: under_fault.Daemon, other: under_fault.Daemon) -> None:
    """`other` has the turn for a while, `daemon` has not; then it has."""
    try:
        await until(other.acts)
        daemon.needs()
        for _ in range(10):
            now_s = reactor.seconds()
            assert NEVER in (daemon.arbiter.acts_at(0.0, now_s), other.arbiter.acts_at(0.0, now_s))
            await time_passes(0.1)
        await until(lambda: daemon.reachable)
        other.arbitration.rest()
        await until(daemon.acts)
    finally:
        await daemon.arbitration.close()
        await other.arbitration.close()
