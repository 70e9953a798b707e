"""The arbiter for Kubernetes, against an API server: turns by a Lease, and labels of pods that follow the primary.

In `make test` the server is a stand-in of ours; with KUBE_APISERVER=path of a binary (`make test-kubernetes`) it is a real one,
and the first tests hold the stand-in's strictness against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import ensureDeferred, gatherResults

from resource_manager import arbiters
from resource_manager.arbiters import roles
from resource_manager.arbiters.kubernetes import OURS, KubernetesArbiter
from resource_manager.core.arbiter import NEVER, ArbiterSettings, Guarantee, Published
from resource_manager.core.candidate import Renew, Renewed
from tests.broker.real_time import time_passes, until
from tests.resource_manager.api_server import DAEMON, Client, all_leases, path_of, pod
from tests.resource_manager.arbiters.asked import Asked, reaching
from tests.resource_manager.kube_apiserver import KubeApiServer, a_server

reactor: Any = installed_reactor
PODS = ["understudy-0", "understudy-1", "understudy-2"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with a_server(tmp_path_factory.mktemp("kube")) as running:
        for thing in all_leases():
            running.make(thing)
        yield running


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{DAEMON}\n")
    return path


class Daemon(Asked):
    """An arbiter as a daemon has it, and how often its watcher was called."""

    def __init__(self, server: Any, token: Path, name: str, lease: str, **options: str) -> None:
        given = {"server": server.url, "namespace": "default", "token-file": str(token), "lease": lease, "ttl": "10"}
        given |= {"ca-file": str(server.ca)} if isinstance(server, KubeApiServer) else {}
        given |= {key.replace("_", "-"): value for key, value in options.items()}
        arbiter = arbiters.make("kubernetes", ArbiterSettings("orders", given), reactor, name)
        assert isinstance(arbiter, KubernetesArbiter)
        super().__init__(arbiter)

    def begins(self) -> Daemon:
        self.watch()
        return self


def daemons(server: Any, token: Path, lease: str, *names: str, **options: str) -> AbstractAsyncContextManager[list[Daemon]]:
    """Daemons that have reached the server."""
    return reaching(Daemon(server, token, name, lease, **options).begins() for name in names)


def spec(server: Client, lease: str) -> dict[str, Any]:
    return dict(server.get("leases", lease).get("spec") or {})


def holder(server: Client, lease: str) -> str:
    """The name of the daemon whose turn it is."""
    return str(spec(server, lease).get("holderIdentity", "")).partition("_")[0]


# ---- what the server refuses, the stand-in as the real one


def lease_of(name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": fields}


def test_of_two_writes_by_one_version_the_second_is_a_conflict(server: Any) -> None:
    server.make(lease_of("raced"))
    there = server.get("leases", "raced")
    path, answers = path_of("leases", "raced"), list[int]()
    racing = [
        Thread(target=lambda one=one: answers.append(server.request("PUT", path, there | {"spec": {"holderIdentity": one}})[0]))
        for one in ("a", "b")
    ]
    for thread in racing:
        thread.start()
    for thread in racing:
        thread.join()
    assert sorted(answers) == [200, 409]
    patch = {"metadata": {"resourceVersion": there["metadata"]["resourceVersion"], "labels": {"x": "y"}}}
    assert server.request("PATCH", path, patch, content="application/merge-patch+json")[0] == 409


@pytest.mark.parametrize(
    "fields, status",
    [
        ({"renewTime": "2026-11-23T10:00:00Z"}, 400),
        ({"renewTime": "2026-11-23T10:00:00.123Z"}, 400),
        ({"renewTime": "2026-11-23T10:00:00.123456Z"}, 200),
        ({"leaseDurationSeconds": 0}, 422),
        ({"leaseDurationSeconds": "5"}, 400),
        ({"leaseDurationSeconds": 5, "leaseTransitions": -1}, 422),
        ({"holderIdentity": 7}, 400),
        ({"leaseDurationSeconds": 1}, 200),
    ],
)
def test_a_lease_that_is_not_as_its_schema_says_is_refused(server: Any, fields: dict[str, Any], status: int) -> None:
    if not server.get("leases", "checked"):
        server.make(lease_of("checked"))
    there = server.get("leases", "checked")
    answered, said = server.request("PUT", path_of("leases", "checked"), there | {"spec": fields})
    assert answered == status, said
    assert status == 200 or said["kind"] == "Status"


def test_a_lease_is_never_written_without_a_version(server: Any) -> None:
    server.make(lease_of("versioned"))
    assert server.request("PUT", path_of("leases", "versioned"), lease_of("versioned"))[0] == 422
    assert server.request("POST", path_of("leases"), lease_of("versioned"))[0] == 409
    there = server.get("leases", "versioned")
    server.delete("leases", "versioned")
    assert server.request("PUT", path_of("leases", "versioned"), there)[0] in (404, 409), "a Lease that is gone stays gone"
    assert server.request("PUT", path_of("leases", "versioned"), lease_of("versioned"))[0] == 201, "but this makes it"


def test_a_write_that_changes_nothing_makes_no_version(server: Any) -> None:
    """Which is why the mark that a daemon leaves is another each time."""
    server.make(lease_of("same"))
    there = server.get("leases", "same")
    assert server.request("PUT", path_of("leases", "same"), there)[1]["metadata"] == there["metadata"]


@pytest.mark.parametrize(
    "method, path, token, status",
    [
        ("GET", path_of("leases", "understudy-orders"), "strange", 401),
        ("GET", path_of("leases", "understudy-orders"), DAEMON, 404),
        ("DELETE", path_of("leases", "understudy-orders"), DAEMON, 403),
        ("GET", path_of("leases"), DAEMON, 403),
        ("GET", path_of("pods"), DAEMON, 200),
        ("GET", path_of("pods", "understudy-0"), DAEMON, 403),
        ("PATCH", path_of("pods", "strange"), DAEMON, 403),
        ("PATCH", path_of("pods", "understudy-0"), DAEMON, 404),
        ("GET", path_of("roles"), DAEMON, 403),
    ],
)
def test_the_daemons_may_do_what_the_manifests_say_and_nothing_else(
    server: Any, method: str, path: str, token: str, status: int
) -> None:
    answered, _ = server.request(method, path, {} if method == "PATCH" else None, token, "application/merge-patch+json")
    assert answered == status


# ---- turns


@pytest_twisted.ensureDeferred
async def test_of_two_daemons_in_a_need_one_has_the_turn_and_the_other_when_that_one_rests(server: Any, token: Path) -> None:
    async with daemons(server, token, "pair", "rm-1", "rm-2") as two:
        assert two[0].arbiter.guarantee is Guarantee.LEASED
        assert holder(server, "pair") == "", "nobody has it without a need"
        await until(lambda: [daemon.has_turn() for daemon in two] != [False, False])
        first, second = sorted(two, key=lambda daemon: not daemon.has_turn())
        now_s = reactor.seconds()
        since_s = first.arbiter.acts_at(now_s, now_s)
        await time_passes(0.3)
        assert (second.has_turn(), holder(server, "pair")) == (False, first.arbiter._lease.identity.partition("_")[0])
        assert first.arbiter.acts_at(now_s, reactor.seconds()) == since_s, "it does not move"
        before, told = spec(server, "pair"), second.told
        first.arbiter.rest()
        await until(lambda: second.told > told and second.has_turn())
        assert not first.has_turn()
        after = spec(server, "pair")
        assert after["leaseTransitions"] == before["leaseTransitions"] + 1
        assert after["leaseDurationSeconds"] == 10
        second.arbiter.rest()
        await until(lambda: holder(server, "pair") == "" or first.has_turn())


@pytest_twisted.ensureDeferred
async def test_the_turn_of_a_daemon_that_closes_is_free_at_once(server: Any, token: Path) -> None:
    """Breaks when others must wait for the end of its lease."""
    async with (
        daemons(server, token, "closing", "rm-1", ttl="600") as [first],
        daemons(server, token, "closing", "rm-2") as [second],
    ):
        await until(first.has_turn)
        await first.arbiter.close()
        assert "holderIdentity" not in spec(server, "closing")
        await until(second.has_turn)


@pytest_twisted.ensureDeferred
async def test_a_dead_daemons_turn_ends_by_our_own_clock_whatever_its_clock_said(server: Any, token: Path) -> None:
    """Breaks when clocks of two machines are compared: one turn would end at once, the other in 65 years."""

    async def ends(lease: str, renewed: str) -> None:
        times = {"renewTime": renewed, "acquireTime": renewed}
        server.make(lease_of(lease, holderIdentity="rm-0_dead", leaseDurationSeconds=2, leaseTransitions=3, **times))
        seen_s = reactor.seconds()
        async with daemons(server, token, lease, "rm-1") as [daemon]:
            await until(daemon.has_turn)
            assert reactor.seconds() >= seen_s + 2
            assert (holder(server, lease), spec(server, lease)["leaseTransitions"]) == ("rm-1", 4)

    past, future = "2001-01-01T00:00:00.000000Z", "2091-01-01T00:00:00.000000Z"
    await gatherResults(
        [ensureDeferred(ends("dead-past", past)), ensureDeferred(ends("dead-future", future))], consumeErrors=True
    )


@pytest_twisted.ensureDeferred
async def test_who_has_the_turn_renews_it_and_another_waits_on(server: Any, token: Path) -> None:
    async with daemons(server, token, "renewed", "rm-1", "rm-2", ttl="2") as two:
        await until(two[0].has_turn)
        renewals: set[str] = set()
        while len(renewals) < 4:
            assert [daemon.has_turn() for daemon in two] != [True, True]
            renewals.add(spec(server, "renewed")["renewTime"])
            await time_passes(0.05)


@pytest_twisted.ensureDeferred
async def test_who_loses_the_lease_loses_the_turn_and_gets_another(server: Any, token: Path) -> None:
    async with daemons(server, token, "losing", "rm-1") as [daemon]:
        await until(daemon.has_turn)
        server.change("leases", "losing", {"spec": {"holderIdentity": "somebody by hand", "leaseDurationSeconds": 600}})
        await until(lambda: not daemon.has_turn())
        server.change("leases", "losing", {"spec": {"holderIdentity": None}})
        await until(daemon.has_turn)
        told = daemon.told
        server.delete("leases", "losing")
        await until(lambda: daemon.told > told)
        await until(daemon.has_turn)
        assert holder(server, "losing") == "rm-1"


@pytest_twisted.ensureDeferred
async def test_a_turn_that_an_answer_got_lost_of_is_found_and_renewed_before_it_counts(server: Any, token: Path) -> None:
    """Breaks when a daemon counts from its reading a turn for which others count from the write before."""
    async with daemons(server, token, "found", "rm-1") as [daemon]:
        await daemon.arbiter.close()
    arbiter = Daemon(server, token, "rm-1", "found").arbiter
    old = "2001-01-01T00:00:00.000000Z"
    mine = {"holderIdentity": arbiter._lease.identity, "leaseDurationSeconds": 10, "renewTime": old}
    server.change("leases", "found", {"spec": mine})
    found = await arbiter.carry_out(Renew(OURS))
    assert isinstance(found, Renewed)
    assert (found.holder.lease, found.written) == (OURS, True)
    assert spec(server, "found")["renewTime"] > old
    await arbiter.close()
    assert holder(server, "found") == "rm-1", "it has taken nothing, and so gives nothing up"


@pytest_twisted.ensureDeferred
async def test_without_a_right_it_says_which_and_a_token_that_is_replaced_is_read(server: Any, token: Path) -> None:
    token.write_text("expired")
    daemon = Daemon(server, token, "rm-1", "rights", ttl="2").begins()
    await until(lambda: "401" in daemon.reason)
    assert "its token is not taken" in daemon.reason
    assert "expired" not in daemon.reason
    server.delete("rolebindings", "all-leases")
    token.write_text(DAEMON)
    await until(lambda: "403 this account may not get leases in the namespace default" in daemon.reason)
    server.make(all_leases()[1])
    await until(lambda: daemon.reachable)
    await until(daemon.has_turn)
    token.unlink()
    await until(lambda: f"cannot read {token}: No such file" in daemon.reason)
    await until(lambda: not daemon.has_turn())
    token.write_text(DAEMON)
    await until(lambda: daemon.reachable and daemon.has_turn())
    await daemon.arbiter.close()


@pytest_twisted.ensureDeferred
async def test_the_manifests_give_the_daemons_what_they_need_and_only_for_their_own_lease(server: Any, token: Path) -> None:
    """The watch too, without which a daemon learns late, and without a word, that the turn is free."""
    server.delete("rolebindings", "all-leases")
    seen: list[str] = []
    other = Daemon(server, token, "rm-2", "understudy-invoices").begins()
    async with daemons(server, token, "understudy-orders", "rm-1") as [daemon]:
        daemon.arbiter._client.watch(
            "Lease",
            lambda lease, what: None if what == "BOOKMARK" else seen.append(lease["metadata"]["name"]),
            fieldSelector="metadata.name=understudy-orders",
        )
        await until(lambda: bool(seen))
        await until(daemon.has_turn)
    assert set(seen) == {"understudy-orders"}
    await until(lambda: "403 this account may not get leases" in other.reason)
    await other.arbiter.close()
    server.make(all_leases()[1])


@pytest_twisted.ensureDeferred
async def test_in_a_namespace_that_is_not_there_it_is_away(server: Any, token: Path) -> None:
    admin = token.with_name("admin")
    admin.write_text("admin-token")
    daemon = Daemon(server, admin, "rm-1", "lost", namespace="nowhere").begins()
    await until(lambda: '404 namespaces "nowhere" not found' in daemon.reason)
    assert daemon.arbiter.acts_at(0.0, reactor.seconds()) == NEVER
    await daemon.arbiter.close()


@pytest_twisted.ensureDeferred
async def test_after_its_end_there_is_no_timer(server: Any, token: Path) -> None:
    before = set(reactor.getDelayedCalls())
    async with daemons(server, token, "ending", "rm-1", pods="app=understudy") as [daemon]:
        daemon.arbiter.publish(Published("understudy-0:5672", 1))
        await until(daemon.has_turn)
    assert not daemon.has_turn()
    await until(lambda: before.issuperset(reactor.getDelayedCalls()))


# ---- the primary


@pytest.fixture
def pods(server: Any) -> Iterator[None]:
    for name in PODS:
        server.make(pod(name))
    yield
    for name in PODS:
        if server.get("pods", name):
            server.delete("pods", name)


def told(server: Client) -> list[tuple[str, str]]:
    """Role and epoch of each pod."""
    metadata = [server.get("pods", name).get("metadata") or {} for name in PODS]
    return [((one.get("labels") or {}).get("role", ""), (one.get("annotations") or {}).get(roles.EPOCH, "")) for one in metadata]


def selected(server: Client) -> list[str]:
    """The pods of the Service of the primary."""
    items = server.request("GET", path_of("pods", query="labelSelector=app%3Dunderstudy,role%3Dprimary"))[1]["items"]
    return [item["metadata"]["name"] for item in items]


@pytest.mark.usefixtures("pods")
@pytest_twisted.ensureDeferred
async def test_the_service_follows_the_primary_and_an_older_epoch_never_replaces_it(
    server: Any, token: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    monkeypatch.setattr(roles, "_AGAIN_S", 0.2)
    async with daemons(server, token, "told", "rm-1", "rm-2", pods="app=understudy") as [first, second]:
        first.arbiter.publish(Published("understudy-0.understudy-brokers:5672", 3))
        await until(lambda: told(server) == [("primary", "3"), ("backup", "3"), ("backup", "3")])
        second.arbiter.publish(Published("understudy-1.understudy-brokers:5672", 4))
        await until(lambda: told(server) == [("backup", "4"), ("primary", "4"), ("backup", "4")])
        assert selected(server) == ["understudy-1"]
        first.arbiter.publish(Published("understudy-0.understudy-brokers:5672", 3))
        first.arbiter.publish(Published("", 4))
        server.delete("pods", "understudy-2")
        server.make(pod("understudy-2"))
        await until(lambda: told(server) == [("backup", "4"), ("primary", "4"), ("backup", "4")])
        assert selected(server) == ["understudy-1"], "nobody took it back, and a pod that is made anew is given its role"
        text = "pods are labelled for epoch 4, and the cluster is in 3: if it was made anew, delete them"
        await until(lambda: any(text in line for line in lines))


@pytest.mark.usefixtures("pods")
@pytest_twisted.ensureDeferred
async def test_two_daemons_that_tell_the_same_at_the_same_time_agree(server: Any, token: Path, lines: list[str]) -> None:
    async with daemons(server, token, "agreed", "rm-1", "rm-2", "rm-3", pods="app=understudy") as three:
        for epoch in range(1, 6):
            primary = epoch % 3
            for daemon in three:
                daemon.arbiter.publish(Published(f"understudy-{primary}:5672", epoch))
            wanted = [("primary" if number == primary else "backup", str(epoch)) for number in range(3)]
            await until(lambda wanted=wanted: told(server) == wanted)  # type: ignore[misc]
    assert [line for line in lines if "cannot be set" in line and " 409 " in line] == [], "a conflict is not a trouble"


@pytest.mark.usefixtures("pods")
@pytest_twisted.ensureDeferred
async def test_brokers_without_names_of_pods_are_found_by_the_option(server: Any, token: Path, lines: list[str]) -> None:
    names = {"pod_names": "10.0.0.1:5672=understudy-2"}
    async with daemons(server, token, "mapped", "rm-1", pods="app=understudy", **names) as [daemon]:
        daemon.arbiter.publish(Published("10.0.0.1:5672", 1))
        await until(lambda: selected(server) == ["understudy-2"])
        for address, text in (
            ("10.0.0.9:5672", "can be told by an IP address: give pod-names"),
            ("elsewhere:5672", "no pod of app=understudy is named 'elsewhere'"),
        ):
            daemon.arbiter.publish(Published(address, 2))
            await until(lambda text=text: any(text in line for line in lines))  # type: ignore[misc]
        assert selected(server) == ["understudy-2"], "nobody is unlabelled for an address that is not known"
        assert daemon.reachable, "turns do not hang on labels"


@pytest.mark.usefixtures("pods")
@pytest_twisted.ensureDeferred
async def test_without_the_right_to_label_pods_turns_go_on_and_the_log_says_what_is_missing(
    server: Any, token: Path, lines: list[str]
) -> None:
    for name in PODS:
        server.change("pods", name, {"metadata": {"labels": {"app": "other"}}})
    server.make(pod("stranger", app="other"))
    async with daemons(server, token, "unlabelled", "rm-1", pods="app=other") as [daemon]:
        daemon.arbiter.publish(Published("stranger:5672", 1))
        await until(lambda: any("403 this account may not patch pods in the namespace default" in line for line in lines))
        await until(daemon.has_turn)
        server.delete("pods", "stranger")
        daemon.arbiter.publish(Published("understudy-0:5672", 1))
        await until(lambda: "the pods' roles are as they should be again" in lines)
    assert told(server)[0] == ("primary", "1")
    assert len([line for line in lines if "403" in line]) == 1, "once, not at each attempt"
