"""The arbiter for etcd behind a proxy that breaks etcd's answers in every way: it says so, gives no turn, and never raises.

Each fault stands as long as it takes the daemon to act without its arbiter, twice: once it has its turn, and once it has not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import ensureDeferred, gatherResults
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from zope.interface import implementer

from resource_manager.arbitration import Arbitration
from resource_manager.core.arbiter import ArbiterSettings, Published
from tests.broker.real_time import time_passes, until
from tests.resource_manager.etcd import Etcd, running_etcd
from tests.resource_manager.fault_proxy import fault_proxy

reactor: Any = installed_reactor
PATIENCE_S = 1.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What the daemon's log is told."""
    found: list[str] = []

    @implementer(ILogObserver)
    def note(event: LogEvent) -> None:
        if event.get("log_namespace", "").startswith("resource_manager"):
            found.append(formatEvent(event))

    globalLogPublisher.addObserver(note)
    yield found
    globalLogPublisher.removeObserver(note)


class Daemon:
    """The arbiter as the daemon has it, asked as in a need, and how long its calls took."""

    def __init__(self, url: str, cluster: str, **options: str) -> None:
        settings = ArbiterSettings(cluster, {"endpoints": url, "ttl": "2"} | options)
        self.arbitration = Arbitration(reactor, "etcd", settings, "rm-1", PATIENCE_S)
        self.arbitration.start(lambda: None)
        self.took: list[float] = []
        self.needed_s = 0.0

    def needs(self) -> None:
        self.needed_s = reactor.seconds()

    def acts(self) -> bool:
        began_s = reactor.seconds()
        acts_at_s = self.arbitration.acts_at(self.needed_s, began_s)
        self.took.append(reactor.seconds() - began_s)
        self.arbitration.look()
        return bool(acts_at_s <= began_s)


FAULTS = {
    "hang after accept": "no answer for 0.4 s",
    "hang": "no answer for 0.4 s",
    "delay": "no answer for 0.4 s",
    "hang in half a body": "no answer for 0.4 s",
    "reset": "closed the connection|connection.*lost|reset",
    "500": "500 Internal Server Error",
    "503": "503 Service Unavailable",
    "429": "429 too many requests",
    "401": "401 etcdserver: invalid auth token",
    "no leader": "503 etcdserver: no leader",
    "stale read": "a stale answer, of revision [0-9]+ after [0-9]+",
    "nonsense": "the answer cannot be read",
    "not etcd": "the answer is not one of etcd's",
}


async def stand(etcd: Etcd, lines: list[str], fault: str) -> None:
    """One fault, from a daemon that is well to one that is well again. What goes wrong names the fault."""
    with fault_proxy(etcd.port) as proxy:
        daemon = Daemon(proxy.url, f"fault {fault}")
        client: Any = daemon.arbitration._arbiter._client  # type: ignore[attr-defined]
        try:
            await until(lambda: client._revision > 0)
            moved_on = int(etcd.put("/other", "what was read before is stale now")["header"]["revision"])
            await until(lambda: client._revision >= moved_on)
            proxy.becomes(fault)
            await until(lambda: not daemon.arbitration.health().reachable)
            health = daemon.arbitration.health()
            assert re.search(FAULTS[fault], health.reason), fault
            daemon.needs()
            if fault != "stale read":  # of which a transaction is none: the turn that it gives is one
                assert not daemon.acts() or reactor.seconds() >= (health.answered_s or 0.0) + PATIENCE_S, fault
            await until(daemon.acts)
            daemon.arbitration.publish(Published("a:1", 3))
            daemon.arbitration.rest()
            proxy.becomes("")
            await until(lambda: daemon.arbitration.health().reachable)
            daemon.needs()
            await until(daemon.acts)
        finally:
            await daemon.arbitration.close()
        assert median(daemon.took) < 0.1, f"{fault}: a call has waited"
        assert any(line.startswith(f"the arbiter etcd cannot be reached: {proxy.url}: ") for line in lines), fault


@pytest_twisted.ensureDeferred
async def test_in_each_fault_the_daemon_waits_for_its_patience_and_acts_and_comes_back(etcd: Etcd, lines: list[str]) -> None:
    """All of them at a time, each behind a proxy of its own."""
    await gatherResults([ensureDeferred(stand(etcd, lines, fault)) for fault in FAULTS], consumeErrors=True)
    text = "\n".join(lines)
    assert "at fault" not in text
    assert "mistake" not in text
    assert text.count("acts without the arbiter etcd") >= len(FAULTS) - 1


@pytest_twisted.ensureDeferred
async def test_a_turn_that_was_won_ends_with_its_lease_in_a_fault(etcd: Etcd) -> None:
    """Breaks when a daemon that cannot reach etcd any more acts beside the one to which etcd has given the turn."""
    with fault_proxy(etcd.port) as proxy:
        daemon = Daemon(proxy.url, "won")
        arbiter: Any = daemon.arbitration._arbiter
        try:
            await until(daemon.acts)
            proxy.becomes("hang")
            ends_s = arbiter._candidate._lease_ends_s
            await until(lambda: reactor.seconds() > ends_s)
            assert not arbiter.acts_at(0.0, reactor.seconds()) <= reactor.seconds()
        finally:
            await daemon.arbitration.close()


@pytest_twisted.ensureDeferred
async def test_a_watch_that_is_always_told_of_compactions_does_no_harm(etcd: Etcd) -> None:
    with fault_proxy(etcd.port) as proxy:
        proxy.becomes("compacted")
        daemon = Daemon(proxy.url, "compacted always", ttl="10")
        other = Daemon(etcd.url, "compacted always", ttl="10")
        try:
            await until(other.acts)
            daemon.needs()
            for _ in range(10):
                assert not daemon.acts()
                await time_passes(0.1)
            assert daemon.arbitration.health().reachable
            other.arbitration.rest()
            await until(daemon.acts)
        finally:
            await daemon.arbitration.close()
            await other.arbitration.close()


@pytest_twisted.ensureDeferred
async def test_one_endpoint_that_is_at_fault_among_several_is_left_for_another(etcd: Etcd) -> None:
    """Breaks when a daemon waits for an endpoint's Retry-After while the next one would answer."""
    with fault_proxy(etcd.port) as proxy:
        proxy.becomes("503")
        daemon = Daemon(f"{proxy.url},http://127.0.0.1:1,{etcd.url}", "several")
        client: Any = daemon.arbitration._arbiter._client  # type: ignore[attr-defined]
        try:
            await until(lambda: daemon.arbitration.health().reachable)
            daemon.needs()
            await until(daemon.acts)
            assert client._endpoints[client._at] == etcd.url
        finally:
            await daemon.arbitration.close()
