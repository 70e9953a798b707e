"""The arbiter for Kubernetes behind a proxy that breaks the API server's answers in every way: it says so, gives no turn, and
never raises. And how it finds its server."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import ensureDeferred, gatherResults

from broker.options import SettingsError
from resource_manager import arbiters
from resource_manager.arbiters import kubernetes
from resource_manager.arbiters.roles import EPOCH
from resource_manager.conformance import RULES, Subject, examine
from resource_manager.core.arbiter import NEVER, ArbiterSettings, Published
from resource_manager.net.web import StoreError
from tests.broker.real_time import time_passes, until
from tests.certificates import Authority
from tests.resource_manager.api_server import ADMIN, DAEMON, USERS, ApiServer, all_leases, path_of, pod, running_api_server
from tests.resource_manager.arbiters.asked import check_one_at_a_time
from tests.resource_manager.arbiters.under_fault import Daemon, check_log, stand
from tests.resource_manager.fault_proxy import KUBERNETES, fault_proxy
from tests.resource_manager.kube_apiserver import a_server

reactor: Any = installed_reactor


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with a_server(tmp_path_factory.mktemp("kube")) as running:
        for thing in all_leases():
            running.make(thing)
        yield running


@pytest.fixture
def stand_in() -> Iterator[ApiServer]:
    """One that tests may look into, whichever the server is."""
    with running_api_server() as running:
        for thing in all_leases():
            running.make(thing)
        yield running


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{DAEMON}\n")
    return path


def options_of(url: str, token: Path) -> dict[str, str]:
    return {"server": url, "namespace": "default", "token-file": str(token), "ttl": "2"}


FAULTS = {
    "hang after accept": "no answer for 0.4 s",
    "hang": "no answer for 0.4 s",
    "delay": "no answer for 0.4 s",
    "hang in half a body": "no answer for 0.4 s",
    "reset": "closed the connection|connection.*lost|reset",
    "500": "500 Internal Server Error",
    "503": "503 Service Unavailable",
    "429": "429 too many requests, please try again later",
    "401": "401 Unauthorized: its token is not taken",
    "no leader": "500 etcdserver: no leader",
    "stale read": "a stale answer, of resource version [0-9]+ after [0-9]+",
    "nonsense": "the answer cannot be read",
    "no store": "the answer is not one of Kubernetes'",
    # The server reads well, and writes nothing: no turn can be decided, however fresh its answers are.
    "409 for ever": "409 the object has been modified",
    "403 on writes": "403 this account may not update leases in the namespace default",
    "500 on writes": "500 etcdserver: request timed out",
    "hang in writes": "no answer for 0.4 s",
}
IN_WRITES = list(FAULTS)[-4:]


async def faced(server: Any, token: Path, lines: list[str], fault: str) -> None:
    lease = f"fault-{fault.replace(' ', '-')}"
    with fault_proxy(server.port, KUBERNETES, server.context) as proxy:
        daemon = Daemon("kubernetes", "orders", options_of(proxy.url, token) | {"lease": lease})

        async def ready() -> None:
            await until(lambda: proxy.read_first is not None)
            moved_on = server.change("leases", lease, {"metadata": {"labels": {"read": "before"}}})
            await until(lambda: daemon.arbiter._lease.version >= int(moved_on["metadata"]["resourceVersion"]))

        stale = fault == "stale read"  # of which a write by a version is none: the turn that it gives is one
        await stand(proxy, daemon, fault, FAULTS[fault], lines, ready=ready, in_writes=fault in IN_WRITES, still_decides=stale)


@pytest_twisted.ensureDeferred
async def test_in_each_fault_the_daemon_waits_for_its_patience_and_acts_and_comes_back(
    server: Any, token: Path, lines: list[str]
) -> None:
    """All of them at a time, each behind a proxy of its own."""
    await gatherResults([ensureDeferred(faced(server, token, lines, fault)) for fault in FAULTS], consumeErrors=True)
    check_log(lines, len(FAULTS) - 1, "kubernetes")


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("ending", ["changed", "deleted"])
async def test_an_answer_that_the_watch_has_overtaken_is_not_stale(server: Any, token: Path, ending: str) -> None:
    """It says what was true after the question: an API server that is well does this whenever two daemons write at a time."""
    name = f"overtaken-{ending}"
    with fault_proxy(server.port, KUBERNETES, server.context) as proxy:
        options = options_of(proxy.url, token) | {"lease": name, "ttl": "200", "timeout": "50"}
        arbiter = kubernetes.make(ArbiterSettings("orders", options), reactor, "rm-1")
        lease = arbiter._lease
        await ensureDeferred(lease.mark())
        proxy.becomes("late answers")
        taken = ensureDeferred(lease.take())
        await until(lambda: proxy.late > 0)
        newer = server.change("leases", name, {"metadata": {"labels": {"changed": "meanwhile"}}})
        lease.sees(newer)
        if ending == "deleted":
            lease.is_gone(lease.version + 1)
        proxy.becomes("")
        if ending == "deleted":
            with pytest.raises(StoreError, match="was deleted meanwhile"):
                await taken
        else:
            assert await taken
            assert (lease.version, lease.is_ours) == (int(newer["metadata"]["resourceVersion"]), True)
        await arbiter.release()


@pytest_twisted.ensureDeferred
async def test_a_server_that_only_reads_stays_away_until_a_write_succeeds(server: Any, token: Path) -> None:
    """Breaks when readings, which go on to succeed, make each need wait for the patience anew."""
    with fault_proxy(server.port, KUBERNETES, server.context) as proxy:
        daemon = Daemon("kubernetes", "reads", options_of(proxy.url, token))
        await until(lambda: daemon.reachable)
        proxy.becomes("500 on writes")
        await until(lambda: not (daemon.acts() or daemon.reachable))
        daemon.arbitration.rest()
        answered_s = daemon.arbitration.health().answered_s
        for _ in range(15):
            assert (daemon.reachable, daemon.arbitration.health().answered_s) == (False, answered_s)
            await time_passes(0.1)
        proxy.becomes("")
        await until(lambda: daemon.reachable)
        await daemon.arbitration.close()


@pytest.mark.parametrize("fault", ["hang", "500 on writes"])
@pytest_twisted.ensureDeferred
async def test_a_turn_that_was_won_ends_with_its_lease_in_a_fault(server: Any, token: Path, fault: str) -> None:
    """Breaks when a daemon that cannot renew any more acts beside the one that has taken the Lease over."""
    with (
        fault_proxy(server.port, KUBERNETES, server.context) as proxy,
        fault_proxy(server.port, KUBERNETES, server.context) as sound,
    ):
        options = {"lease": f"won-{len(fault)}"}
        daemon = Daemon("kubernetes", "won", options_of(proxy.url, token) | options)
        other = Daemon("kubernetes", "won", options_of(sound.url, token) | options)
        try:
            await until(daemon.acts)
            proxy.becomes(fault)
            while True:
                both = daemon.arbiter.acts_at(0.0, reactor.seconds()), other.arbiter.acts_at(0.0, reactor.seconds())
                assert NEVER in both, "two have the turn"
                if both[1] != NEVER:
                    break
                await time_passes(0.02)
        finally:
            proxy.becomes("")
            await daemon.arbitration.close()
            await other.arbitration.close()


@pytest_twisted.ensureDeferred
async def test_a_watch_that_always_ends_with_410_does_no_harm(server: Any, token: Path) -> None:
    with (
        fault_proxy(server.port, KUBERNETES, server.context) as proxy,
        fault_proxy(server.port, KUBERNETES, server.context) as sound,
    ):
        proxy.becomes("410")
        daemon = Daemon("kubernetes", "gone", options_of(proxy.url, token) | {"ttl": "10"})
        other = Daemon("kubernetes", "gone", options_of(sound.url, token) | {"ttl": "10"})
        await check_one_at_a_time(daemon, other)


@pytest_twisted.ensureDeferred
async def test_a_watch_is_told_of_changes_past_bookmarks_and_why_it_ended(stand_in: ApiServer, token: Path) -> None:
    """Also after a compaction: it begins with what is there, so no version of its own can be too old."""
    stand_in.make({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "watched"}, "spec": {}})
    stand_in.make(pod("something-else"))
    stand_in.compact()
    arbiter: Any = arbiters.make("kubernetes", ArbiterSettings("watched", options_of(stand_in.url, token)), reactor, "rm-1")
    seen, ended = list[tuple[str, bool]](), list[str]()
    client = arbiter._client  # without the arbiter's own writes

    def sees(lease: dict[str, Any], what: str) -> None:
        if what != "BOOKMARK":
            seen.append((lease["spec"].get("holderIdentity", ""), what == "DELETED"))

    client.watch("Lease", sees, fieldSelector="metadata.name=watched").addCallback(ended.append)
    await until(lambda: seen == [("", False)])
    await time_passes(0.5)  # in which bookmarks come
    stand_in.change("leases", "watched", {"spec": {"holderIdentity": "a"}})
    await until(lambda: seen[1:] == [("a", False)])
    stand_in.delete("leases", "watched")
    await until(lambda: seen[2:] == [("a", True)])
    stand_in._oldest = stand_in._version + 100
    stand_in.change("pods", "something-else", {"metadata": {"labels": {"app": "x"}}})
    await until(lambda: bool(ended))
    assert ended[0].startswith("the history that the watch needs is gone: too old resource version")
    await arbiter.close()


@pytest_twisted.ensureDeferred
async def test_a_label_that_comes_late_does_not_replace_what_was_written_meanwhile(stand_in: ApiServer, token: Path) -> None:
    """Breaks when a patch goes without the version that was read: it would bring an old primary back, with its old epoch."""
    stand_in.make(pod("understudy-0", app="late"))
    with fault_proxy(stand_in.port, KUBERNETES) as proxy:
        options = options_of(proxy.url, token) | {"pods": "app=late"}
        daemon = Daemon("kubernetes", "late", options)
        await until(lambda: daemon.reachable)
        proxy.becomes("hang in writes")
        daemon.arbitration.publish(Published("understudy-0:5672", 3))
        await until(lambda: daemon.arbiter._roles._failures > 0)
        newer = {"labels": {"role": "backup"}, "annotations": {EPOCH: "4"}}
        stand_in.change("pods", "understudy-0", {"metadata": newer})
        proxy.becomes("")
        account = USERS[DAEMON]
        await until(lambda: (account, "patch", "pods") in {answer[:3] for answer in stand_in.answers})
        await daemon.arbitration.close()
    patched = [code for *what, code in stand_in.answers if what == [account, "patch", "pods"]]
    assert set(patched) == {409}
    there = stand_in.get("pods", "understudy-0")["metadata"]
    assert (there["labels"]["role"], there["annotations"][EPOCH]) == ("backup", "4")


@pytest_twisted.ensureDeferred
async def test_the_kit_finds_every_rule_kept(server: Any, token: Path) -> None:
    with fault_proxy(server.port, KUBERNETES, server.context) as proxy:
        subject = Subject(
            "kubernetes",
            options_of(proxy.url, token),
            cut=lambda: proxy.becomes("hang"),
            mend=lambda: proxy.becomes(""),
            still_s=0.3,
        )
        found = await examine(reactor, subject)
    assert [(one.sentence, one.verdict, one.why) for one in found] == [(sentence, "holds", "") for sentence, _ in RULES]


# ---- where the server is


@pytest_twisted.ensureDeferred
async def test_in_a_pod_it_finds_the_server_its_account_and_whom_to_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS. Breaks when a stranger could answer for the API server, or a token that is replaced needs a restart."""
    ours = Authority()
    ca = ours.write(tmp_path, "ca")
    certificate, key = ours.issue("kube-apiserver", "127.0.0.1").write(tmp_path, "server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    account = tmp_path / "account"
    account.mkdir()
    for name, content in (
        ("token", "old"),
        ("namespace", "default"),
        ("ca.crt", Authority("Somebody").write(tmp_path, "other").read_text()),
    ):
        (account / name).write_text(content)
    monkeypatch.setattr(kubernetes, "_ACCOUNT", account)
    with running_api_server(tls, ssl.create_default_context(cafile=str(ca))) as server:
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        arbiter = kubernetes._make(ArbiterSettings("orders", {"ttl": "2"}), reactor, "rm-1", environ)
        arbiter.watch(lambda: None)
        await until(lambda: "TLS failed: certificate verify failed" in arbiter.health().reason)
        (account / "ca.crt").write_text(ca.read_text())
        await until(lambda: "401" in arbiter.health().reason)
        (account / "token").write_text(DAEMON)
        await until(lambda: arbiter.health().reachable)
        assert server.get("leases", "understudy-orders")
        await arbiter.close()


@pytest.mark.parametrize(
    "cluster, options, text",
    [
        ("c", {}, r"this is not a pod \(KUBERNETES_SERVICE_HOST is not set\): give server=https://host:6443"),
        ("", {"server": "http://localhost:1"}, "a name for the cluster is needed.*give --cluster-name"),
        (
            "Orders",
            {"server": "http://localhost:1"},
            "--cluster-name 'Orders' cannot be a part of a Lease's name: give lease=NAME",
        ),
        ("c", {"server": "http://localhost:1"}, "with server a namespace is needed: give namespace=NAME"),
        ("c", {"server": "localhost:8001"}, "server: 'localhost:8001' is not an endpoint as https://host:443"),
        ("c", {"server": "http://api:8001"}, "over http a stranger could answer for api: use https, or `kubectl proxy`"),
        ("c", {"namespace": "a/b"}, "namespace: 'a/b' is not the name of an object"),
        ("c", {"lease": "../x"}, "lease: '../x' is not the name of an object"),
        ("c", {"pods": "app"}, "pods: 'app' is not LABEL=VALUE,..., as in app=understudy"),
        ("c", {"pods": "a=b", "pod-names": "host1"}, "pod-names: 'host1' is not HOST:PORT=POD, as in host1:5672=broker-0"),
        ("c", {"pod-names": "a:1=b"}, "pod-names has no effect without pods"),
        ("c", {"server": "http://[::1]", "namespace": "n", "token-file": "/no"}, "cannot read /no: No such file"),
        (
            "c",
            {"server": "http://[::1]", "namespace": "n", "token-file": "/dev/null"},
            "/dev/null: there is no token of one line",
        ),
        ("c", {"server": "http://[::1]", "namespace": "n", "ca-file": "/no"}, "/no has no effect: the server is not https"),
        ("c", {"server": "https://a", "namespace": "n", "ca-file": "/no"}, "cannot read /no: No such file"),
        ("c", {"ttl": "1"}, "ttl: '1' is not a whole number from 2 to 600"),
        ("c", {"timeout": "2"}, "timeout: 2 is too long for a ttl of 5"),
        ("c", {"token": "x"}, "kubernetes has no option 'token'; there are: server, namespace"),
    ],
)
def test_wrong_options_are_one_line(monkeypatch: pytest.MonkeyPatch, cluster: str, options: dict[str, str], text: str) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match=text) as raised:
        arbiters.make("kubernetes", ArbiterSettings(cluster, options), reactor, "rm-1")
    assert "\n" not in str(raised.value)


# ---- the stand-in, beyond what a real server of any version does


@pytest.mark.parametrize(
    "method, path, body, content, status",
    [
        ("PUT", path_of("pods", "strict"), {"spec": {"unheard": 1}}, "application/json", 400),
        ("PATCH", path_of("pods", "strict"), {"metadata": {"labels": {"role": 7}}}, "application/merge-patch+json", 400),
        ("PATCH", path_of("pods", "strict"), {"metadata": {"role": "x"}}, "application/merge-patch+json", 400),
        ("PATCH", path_of("pods", "strict"), {}, "application/json", 415),
        ("PUT", path_of("pods", "strict"), {"kind": "Lease"}, "application/json", 400),
        ("GET", path_of("pods") + "?watch=true&fieldSelector=spec.x=y", None, "", 400),
        ("GET", "/api/v2/pods", None, "", 404),
    ],
)
def test_the_stand_in_refuses_what_a_real_server_drops_or_refuses(
    stand_in: ApiServer, method: str, path: str, body: Any, content: str, status: int
) -> None:
    if not stand_in.get("pods", "strict"):
        stand_in.make(pod("strict"))
    there = stand_in.get("pods", "strict")
    answered, said = stand_in.request(method, path, there | body if method == "PUT" else body, ADMIN, content)
    assert answered == status, said
