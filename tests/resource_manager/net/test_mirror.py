"""Copies of what an API server has: by pages, watches that go on past bookmarks, and new lists where a watch tells nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor

from resource_manager.net.kubernetes import PAGE, POD, KubernetesClient, Server
from resource_manager.net.mirror import Mirror, Times
from tests.broker.real_time import time_passes, until
from tests.resource_manager.api_server import ADMIN, DAEMON, ApiServer, pod, running_api_server
from tests.resource_manager.fault_proxy import KUBERNETES, FaultProxy, fault_proxy

reactor: Any = installed_reactor
RARELY = Times(relist_s=600.0, watch_s=600, silence_s=600.0)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running_api_server() as running:
        yield running


@asynccontextmanager
async def mirror(
    url: str, times: Times = RARELY, token: str = ADMIN, timeout_s: float = 1.0, **query: str
) -> AsyncIterator[Mirror]:
    """One of the pods, by name alone."""
    client = KubernetesClient(reactor, Server(url, "default", lambda: token), timeout_s)
    made = Mirror(reactor, client, POD, lambda thing: {"labels": thing["metadata"]["labels"]}, lambda: None, times, **query)
    made.start()
    try:
        yield made
    finally:
        made.stop()
        await client.close()


@pytest_twisted.ensureDeferred
async def test_all_is_listed_by_the_page_and_then_each_change_is_told(server: ApiServer) -> None:
    names = [f"pod-{number:03}" for number in range(2 * PAGE + 3)]
    for name in names:
        server.make(pod(name))
    async with mirror(server.url) as copy:
        await until(lambda: sorted(copy.things) == names)
        assert server.answers.count(("admin", "list", "pods", 200)) == 3
        server.change("pods", names[0], {"metadata": {"labels": {"role": "primary"}}})
        server.delete("pods", names[1])
        server.make(pod("last"))
        await until(lambda: set(copy.things) == {*names, "last"} - {names[1]})
        await until(lambda: copy.things[names[0]]["labels"]["role"] == "primary")
        assert (copy.lists, copy.why) == (1, "")


@pytest_twisted.ensureDeferred
async def test_only_what_is_selected_is_seen(server: ApiServer) -> None:
    server.make(pod("one", app="other"))
    server.make(pod("two"))
    async with mirror(server.url, labelSelector="app=understudy") as copy:
        await until(lambda: copy.lists == 1)
        assert set(copy.things) == {"two"}


@pytest_twisted.ensureDeferred
async def test_a_watch_that_the_server_ends_goes_on_from_the_last_bookmark_without_a_list(server: ApiServer) -> None:
    """Breaks when bookmarks are not heeded: the version of the last pod that changed is too old after the compaction."""
    server.make(pod("one"))
    async with mirror(server.url, Times(relist_s=600.0, watch_s=1, silence_s=600.0)) as copy:
        await until(lambda: bool(copy.things))
        server.make({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "other"}, "spec": {}})
        await until(lambda: copy._version == str(server._version))
        server.compact()
        watches = len(server._sockets)
        await time_passes(1.5)
        server.make(pod("two"))
        await until(lambda: "two" in copy.things)
        assert (copy.lists, watches > 0) == (1, True)


@pytest_twisted.ensureDeferred
async def test_what_is_too_old_for_the_history_is_listed_anew(server: ApiServer) -> None:
    async with mirror(server.url, Times(relist_s=600.0, watch_s=1, silence_s=600.0)) as copy:
        await until(lambda: copy.lists == 1)
        server._oldest = server._version + 100
        server.make(pod("two"))
        await until(lambda: copy.lists > 1 and "two" in copy.things)
        assert copy.why == ""
        server._oldest = 0


@pytest_twisted.ensureDeferred
async def test_all_is_listed_anew_from_time_to_time_whatever_the_watch_tells(server: ApiServer) -> None:
    async with mirror(server.url, Times(relist_s=0.3, watch_s=600, silence_s=600.0)) as copy:
        await until(lambda: copy.lists > 2)
        assert copy.listed_s is not None


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("fault", ["hang", "reset", "410", "nonsense", "500", "401"])
async def test_after_each_fault_all_is_listed_anew_and_why_it_is_old_is_known_meanwhile(server: ApiServer, fault: str) -> None:
    """A watch that is silent, bookmarks and all, is given up: nobody would tell of its end."""
    with fault_proxy(server.port, KUBERNETES) as proxy:
        async with mirror(proxy.url, Times(relist_s=600.0, watch_s=600, silence_s=1.0), timeout_s=0.5) as copy:
            await until(lambda: copy.lists == 1)
            proxy.becomes(fault)
            break_streams(proxy, server, fault)
            if fault == "410":  # the lists succeed, and each watch ends at once
                await until(lambda: copy.lists > 2)
            else:
                await until(lambda: copy.why != "")
            server.make(pod("two"))
            proxy.becomes("")
            await until(lambda: "two" in copy.things and copy.why == "")
            assert copy.lists > 1


def break_streams(proxy: FaultProxy, server: ApiServer, fault: str) -> None:
    """Faults are those of new requests: streams under way end, unless it is silence that is tried."""
    if fault != "hang":
        server.kill()
        server.start()
        proxy._upstream = server.port


@pytest_twisted.ensureDeferred
async def test_who_may_not_list_is_told_what_is_lacking(server: ApiServer) -> None:
    server.delete("rolebindings", "understudy-resource-manager")
    async with mirror(server.url, token=DAEMON) as copy:
        await until(lambda: "403 this account may not list pods in the namespace default" in copy.why)
        assert copy.listed_s is None
