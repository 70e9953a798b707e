"""A daemon whose arbiter's outside system is behind a fault, from well to well again."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from twisted.internet import reactor as installed_reactor

from resource_manager.arbitration import Arbitration
from resource_manager.core.arbiter import ArbiterSettings, Published
from tests.broker.real_time import until
from tests.resource_manager.fault_proxy import FaultProxy

reactor: Any = installed_reactor
PATIENCE_S = 1.0


class Daemon:
    """The arbiter as the daemon has it, asked as in a need, and how long its calls took."""

    def __init__(self, arbiter: str, cluster: str, options: dict[str, str]) -> None:
        self.name = arbiter
        self.arbitration = Arbitration(reactor, arbiter, ArbiterSettings(cluster, options), "rm-1", PATIENCE_S)
        self.arbitration.start(lambda: None)
        self.took: list[float] = []
        self.needed_s = 0.0

    @property
    def arbiter(self) -> Any:
        """The plug-in itself."""
        return self.arbitration._arbiter

    @property
    def reachable(self) -> bool:
        return self.arbitration.health().reachable

    def needs(self) -> None:
        self.needed_s = reactor.seconds()

    def acts(self) -> bool:
        began_s = reactor.seconds()
        acts_at_s = self.arbitration.acts_at(self.needed_s, began_s)
        self.took.append(reactor.seconds() - began_s)
        self.arbitration.look()
        return bool(acts_at_s <= began_s)


async def stand(
    proxy: FaultProxy,
    daemon: Daemon,
    fault: str,
    said: str,
    lines: list[str],
    *,
    ready: Callable[[], Awaitable[None]],
    in_writes: bool = False,
    still_decides: bool = False,
) -> None:
    """One fault. `said`: the reason that is given. `ready` waits until the daemon has read what makes the fault felt.
    `in_writes`: it is felt when a turn is asked for, and not before. `still_decides`: a turn may be given in it."""
    try:
        await ready()
        proxy.becomes(fault)
        if in_writes:
            daemon.needs()

        def is_told() -> bool:
            if in_writes:
                daemon.acts()
            now = daemon.arbitration.health()
            return not now.reachable and re.search(said, now.reason) is not None

        await until(is_told)
        health = daemon.arbitration.health()
        if not in_writes:
            daemon.needs()
        if not still_decides:
            assert not daemon.acts() or reactor.seconds() >= (health.answered_s or 0.0) + PATIENCE_S, fault
        await until(daemon.acts)
        daemon.arbitration.publish(Published("a:1", 3))
        daemon.arbitration.rest()
        proxy.becomes("")
        await until(lambda: daemon.reachable)
        daemon.needs()
        await until(daemon.acts)
    finally:
        await daemon.arbitration.close()
    assert median(daemon.took) < 0.1, f"{fault}: a call has waited"
    assert any(line.startswith(f"the arbiter {daemon.name} cannot be reached: ") for line in lines), fault


def check_log(lines: list[str], faults: int, arbiter: str) -> None:
    """No plug-in was at fault, and the daemons acted without it when they had to."""
    text = "\n".join(lines)
    assert "at fault" not in text
    assert "mistake" not in text
    assert text.count(f"acts without the arbiter {arbiter}") >= faults
