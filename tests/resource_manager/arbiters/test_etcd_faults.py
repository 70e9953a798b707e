"""The arbiter for etcd behind a proxy that breaks etcd's answers in every way: it says so, gives no turn, and never raises.

Each fault stands as long as it takes the daemon to act without its arbiter, twice: once it has its turn, and once it has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import ensureDeferred, gatherResults

from tests.broker.real_time import until
from tests.resource_manager.arbiters.asked import check_one_at_a_time
from tests.resource_manager.arbiters.under_fault import Daemon, check_log, stand
from tests.resource_manager.etcd import Etcd, running_etcd
from tests.resource_manager.fault_proxy import fault_proxy

reactor: Any = installed_reactor


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


def daemon_of(url: str, cluster: str, **options: str) -> Daemon:
    return Daemon("etcd", cluster, {"endpoints": url, "ttl": "2"} | options)


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
    "no store": "the answer is not one of etcd's",
}


async def faced(etcd: Etcd, lines: list[str], fault: str) -> None:
    with fault_proxy(etcd.port) as proxy:
        daemon = daemon_of(proxy.url, f"fault {fault}")
        client: Any = daemon.arbiter._client

        async def ready() -> None:
            await until(lambda: client._revision > 0)
            moved_on = int(etcd.put("/other", "what was read before is stale now")["header"]["revision"])
            await until(lambda: client._revision >= moved_on)

        stale = fault == "stale read"  # of which a transaction is none: the turn that it gives is one
        await stand(proxy, daemon, fault, FAULTS[fault], lines, ready=ready, still_decides=stale)


@pytest_twisted.ensureDeferred
async def test_in_each_fault_the_daemon_waits_for_its_patience_and_acts_and_comes_back(etcd: Etcd, lines: list[str]) -> None:
    """All of them at a time, each behind a proxy of its own."""
    await gatherResults([ensureDeferred(faced(etcd, lines, fault)) for fault in FAULTS], consumeErrors=True)
    check_log(lines, len(FAULTS) - 1, "etcd")


@pytest_twisted.ensureDeferred
async def test_a_turn_that_was_won_ends_with_its_lease_in_a_fault(etcd: Etcd) -> None:
    """Breaks when a daemon that cannot reach etcd any more acts beside the one to which etcd has given the turn."""
    with fault_proxy(etcd.port) as proxy:
        daemon = daemon_of(proxy.url, "won")
        arbiter: Any = daemon.arbiter
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
        daemon = daemon_of(proxy.url, "compacted always", ttl="10")
        other = daemon_of(etcd.url, "compacted always", ttl="10")
        await check_one_at_a_time(daemon, other)


@pytest_twisted.ensureDeferred
async def test_one_endpoint_that_is_at_fault_among_several_is_left_for_another(etcd: Etcd) -> None:
    """Breaks when a daemon waits for an endpoint's Retry-After while the next one would answer."""
    with fault_proxy(etcd.port) as proxy:
        proxy.becomes("503")
        daemon = daemon_of(f"{proxy.url},http://127.0.0.1:1,{etcd.url}", "several")
        client: Any = daemon.arbiter._client
        try:
            await until(lambda: daemon.arbitration.health().reachable)
            daemon.needs()
            await until(daemon.acts)
            assert client._endpoints[client._at] == etcd.url
        finally:
            await daemon.arbitration.close()
