"""`qpid-scaledown` over namespaces of Kubernetes: what it writes and tells, against the stand-in of an API server.

There are no brokers. The test is the kubelet, and says how drainers end."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import ensureDeferred
from twisted.internet.protocol import Factory, Protocol

from broker.core import urls
from cli.commands.qpid_scaledown import _words_of_steps
from cli.options import Target
from cli.scaledown import claims, drainer, namespace
from cli.scaledown.claims import TO
from cli.scaledown.controller import Controller
from cli.scaledown.namespace import LEASE_NAME, Namespace, Settings
from cli.scaledown.steps import Do
from resource_manager.net.kubernetes import KubernetesClient, Server
from resource_manager.net.lease import Lease, LeaseOf
from resource_manager.net.mirror import Times
from resource_manager.net.tls import Tls
from tests.broker.real_time import until
from tests.cli.running import Forked, run
from tests.cli.scaledown_world import NAME, a_claim, a_pod, a_set
from tests.resource_manager.api_server import CONTROLLER, ApiServer, Client, path_of, rights
from tests.resource_manager.fault_proxy import KUBERNETES, fault_proxy
from tests.resource_manager.kube_apiserver import KubeApiServer, a_server

reactor: Any = installed_reactor
DRAINERS = ["drain-store-queues-2", "drain-store-queues-1"]
END = {"event": "end", "drain": "d", "empty": True, "queues": 1, "messages": 3, "bytes": 9}


WHERE = ("default", "shop")
MADE = ("statefulsets", "persistentvolumeclaims", "pods", "leases", "roles", "rolebindings")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer | KubeApiServer]:
    with a_server(tmp_path_factory.mktemp("kube")) as there:
        if isinstance(there, ApiServer):
            there.namespaces.add("shop")
        else:
            there.request("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
        yield there


@pytest.fixture
def server(running: ApiServer | KubeApiServer) -> Iterator[ApiServer | KubeApiServer]:
    """A set of three in two namespaces, of which one replica is wanted; gone at the end."""
    for where in WHERE:
        own = {"namespace": where}
        for thing in rights("scale-down/controller.yaml"):
            subjects = [{"kind": "ServiceAccount", "name": "qpid-scaledown", "namespace": "default"}]
            more = {"subjects": subjects} if "subjects" in thing else {}
            running.make(thing | {"metadata": thing["metadata"] | own} | more)
        for thing in (a_set(1), *map(a_claim, range(3))):
            running.make(thing | {"metadata": thing["metadata"] | own})
        seen(running, where)
    yield running
    for where in WHERE:
        for resource in MADE:
            for name in names(running, resource, where):
                if "resource-manager" not in name and running.get(resource, name, where):
                    running.delete(resource, name, where)


def names(server: Client, resource: str, where: str) -> list[str]:
    """Of what there is."""
    return [thing["metadata"]["name"] for thing in server.request("GET", path_of(resource, namespace=where))[1]["items"]]


def seen(server: Client, where: str = "default") -> None:
    """The set's controller has seen it."""
    generation = server.get("statefulsets", NAME, where)["metadata"]["generation"]
    server.change("statefulsets", f"{NAME}/status", {"status": {"replicas": 1, "observedGeneration": generation}}, where)


def scale(server: Client, replicas: int) -> None:
    server.change("statefulsets", NAME, {"spec": {"replicas": replicas}})
    seen(server)


def ends(server: Client, pod: str, code: int = 0, says: str = json.dumps(END), where: str = "default") -> None:
    """The drainer does."""
    state = {"terminated": {"exitCode": code, "message": says}}
    container = {"name": "qpid-drain", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container]}
    server.change("pods", f"{pod}/status", {"status": status}, where)


def pods(server: Client, where: str = "default") -> list[str]:
    return names(server, "pods", where)


def stored(server: Client, where: str = "default") -> list[str]:
    return names(server, "persistentvolumeclaims", where)


class Acting:
    """A controller in this process, and what it tells."""

    def __init__(
        self,
        server: Any,
        where: str = "default",
        times: Times | None = None,
        *,
        parallel: int = 1,
        deletes: bool = False,
        once: bool = False,
        target_of: Callable[[str, Sequence[str]], Target] = lambda address, said: pytest.fail(address),
        of_step: Callable[[Sequence[str], Sequence[str]], Mapping[Do, tuple[str, ...]]] = lambda to, others: {},
    ) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        tls = Tls(server.ca, None, None) if isinstance(server, KubeApiServer) else None
        client = KubernetesClient(reactor, Server(server.url, where, lambda: CONTROLLER), 2.0, tls)
        lease = Lease(client, LeaseOf(LEASE_NAME, f"a_{id(self)}", 2), reactor.seconds)
        settings = Settings(where, "", (), deletes, target_of, ("--timeout", "1"), times or Times(), of_step)
        self.place = Namespace(reactor, client, lease, settings, self._tell, once=once)
        self.controller = Controller(reactor, self.place, self._tell, parallel=parallel, poll_s=0.1, once=once)
        self.done: list[bool] = []
        self.running = ensureDeferred(self.controller.run()).addCallbacks(self.done.append, self._failed)
        self.failure: Any = None

    def _failed(self, failure: Any) -> None:
        self.failure = failure.value

    def _tell(self, event: str, facts: dict[str, Any]) -> None:
        self.told.append((event, facts))

    def events(self, event: str) -> list[dict[str, Any]]:
        return [facts for each, facts in self.told if each == event]


@asynccontextmanager
async def acting(*given: Any, **named: Any) -> AsyncIterator[Acting]:
    made = Acting(*given, **named)
    try:
        yield made
    finally:
        closing = made.controller.close()
        closing.addTimeout(30.0, reactor)  # it would ask the server for ever
        await closing
        await made.running
    assert made.failure is None, made.failure


@pytest_twisted.ensureDeferred
async def test_claims_are_drained_one_after_the_other_marked_and_deleted_with_what_the_manifests_allow(server: Any) -> None:
    async with acting(server, deletes=True) as one:
        await until(lambda: pods(server) == DRAINERS[:1])
        ends(server, DRAINERS[0])
        await until(lambda: pods(server) == DRAINERS[1:] and stored(server) == ["store-queues-0", "store-queues-1"])
        ends(server, DRAINERS[1])
        await until(lambda: pods(server) == [] and stored(server) == ["store-queues-0"])
        await until(lambda: len(one.events("deleting")) == 2)
        assert sorted(event for event, _ in one.told) == sorted(["wanted", *2 * ["drain", "released", "deleting"]])
        assert [facts["store"] for facts in one.events("drain")] == ["store-queues-2", "store-queues-1"]
        assert one.events("drain")[0]["to"] == ["queues-0.queues.default:5672"]
    assert not server.get("leases", LEASE_NAME)["spec"].get("holderIdentity"), "the next one need not wait"
    assert isinstance(server, KubeApiServer) or not [answer for answer in server.answers if answer[3] in (400, 403, 422)]


@pytest_twisted.ensureDeferred
async def test_several_are_drained_at_a_time_if_that_is_asked_for_and_one_that_fails_is_tried_again(server: Any) -> None:
    async with acting(server, parallel=2) as one:
        await until(lambda: pods(server) == sorted(DRAINERS))
        before = server.get("pods", DRAINERS[0])["metadata"]["uid"]
        ends(server, DRAINERS[0], 1, "qpid-drain: the target cannot be reached")
        await until(lambda: bool(one.events("failed")))
        assert one.events("failed")[0]["why"] == "qpid-drain: the target cannot be reached"
        await until(lambda: server.get("pods", DRAINERS[0]).get("metadata", {}).get("uid", before) != before)
        ends(server, DRAINERS[1], 0, "")
        await until(lambda: len(one.events("failed")) == 2)
        assert one.events("released") == [], "an exit status alone is not believed"


@pytest_twisted.ensureDeferred
async def test_a_scale_up_in_the_middle_ends_the_drainer_and_zero_does_too(server: Any) -> None:
    async with acting(server) as one:
        for replicas in (3, 0):
            await until(lambda: DRAINERS[0] in pods(server))
            scale(server, replicas)
            await until(lambda: pods(server) == [])
            scale(server, 2)
        assert len(one.events("stop")) == 2


@pytest_twisted.ensureDeferred
async def test_a_pod_that_still_has_the_claim_and_a_set_that_is_not_seen_yet_hold_it_up(server: Any) -> None:
    server.make(a_pod(2))
    async with acting(server) as one:
        await until(lambda: pods(server) == [DRAINERS[1], "queues-2"])
        server.change("statefulsets", NAME, {"spec": {"replicas": 2}})
        await until(lambda: len(one.events("wanted")) == 2)
        await until(lambda: pods(server) == ["queues-2"])
        server.delete("pods", "queues-2")
        assert one.events("released") == []
        scale(server, 2)
        await until(lambda: pods(server) == DRAINERS[:1])


@pytest_twisted.ensureDeferred
async def test_of_two_controllers_one_acts_and_the_other_takes_over_without_a_second_drainer(server: Any) -> None:
    async with acting(server) as first:
        await until(lambda: bool(first.events("drain")))
        async with acting(server) as second:
            await until(lambda: bool(second.events("waiting")))
            first.place._lease.renew = first.place._lease.take = stuck  # type: ignore[method-assign]  # as if it were frozen
            await until(lambda: bool(second.events("wanted")))
            assert (pods(server), second.events("drain")) == (DRAINERS[:1], [])
            ends(server, DRAINERS[0])
            await until(lambda: bool(second.events("released")))


async def stuck() -> bool:
    raise ValueError("frozen")


@pytest_twisted.ensureDeferred
async def test_a_lease_that_is_deleted_while_it_is_held_is_made_and_taken_again(server: Any) -> None:
    """Breaks when the controller renews for ever what is not there, and drains nothing any more."""

    def holder() -> str:
        return str(server.get("leases", LEASE_NAME).get("spec", {}).get("holderIdentity", ""))

    async with acting(server) as one:
        await until(lambda: bool(one.events("drain")))
        for _ in range(2):
            assert holder() == one.place._lease.identity
            server.delete("leases", LEASE_NAME)
            await until(lambda: holder() == one.place._lease.identity)
        ends(server, DRAINERS[0])
        await until(lambda: pods(server) == DRAINERS[1:])
        assert (one.events("unseen"), one.events("waiting")) == ([], [])


@pytest_twisted.ensureDeferred
async def test_once_ends_where_there_is_no_set_and_is_not_done_where_one_is_unfit(server: Any) -> None:
    """Breaks when a job of cron never ends, and renews the Lease ten times a second."""
    if isinstance(server, ApiServer):  # the release of the real one that is at hand knows no such policy
        server.change("statefulsets", NAME, {"spec": {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}})
        async with acting(server, once=True) as one:
            await until(lambda: bool(one.done))
            assert (one.done, len(one.events("unfit"))) == ([False], 1)
    server.delete("statefulsets", NAME)
    async with acting(server, once=True) as one:
        await until(lambda: bool(one.done))
        assert (one.done, one.told, pods(server)) == ([True], [], [])


class _PortForTls(Protocol):
    def dataReceived(self, data: bytes) -> None:
        """What OpenSSL answers to something else than TLS."""
        self.transport.write(b"\x15\x03\x01\x00\x02\x02\x46")  # type: ignore[union-attr]


@pytest_twisted.ensureDeferred
async def test_a_wanted_broker_that_cannot_be_asked_whether_it_leaves_is_told_and_not_done(server: Any) -> None:
    scale(server, 3)
    server.make(a_pod(0))
    listening = reactor.listenTCP(0, Factory.forProtocol(_PortForTls), interface="127.0.0.1")
    target = Target(urls.parse(f"127.0.0.1:{listening.getHost().port}"), 5.0, "", admin=True)
    try:
        async with acting(server, once=True, target_of=lambda address, said: target) as one:
            await until(lambda: bool(one.done))
            [told] = one.events("denied")
            assert (one.done, told["store"]) == ([False], "store-queues-0")
            assert "this port is for TLS" in told["why"]
    finally:
        await listening.stopListening()


@pytest_twisted.ensureDeferred
async def test_each_namespace_is_looked_after_by_itself(server: Any) -> None:
    async with acting(server) as one, acting(server, "shop") as other:
        await until(lambda: pods(server) == pods(server, "shop") == DRAINERS[:1])
        ends(server, DRAINERS[0], where="shop")
        await until(lambda: bool(other.events("released")))
        assert one.events("released") == []
        assert other.events("released")[0] == {"store": "store-queues-2", "namespace": "shop"}


@pytest_twisted.ensureDeferred
async def test_it_is_not_alive_when_no_list_has_succeeded_for_two_minutes_and_says_why(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.scaledown.controller.STALE_S", 4.0)
    monkeypatch.setattr(namespace, "STALE_S", 4.0)
    with fault_proxy(server.port, KUBERNETES, server.context) as proxy:
        async with acting(proxy, times=Times(relist_s=0.3, watch_s=600, silence_s=600.0)) as one:
            await until(lambda: bool(one.events("drain")))
            assert one.controller.alive
            proxy.becomes("hang")
            await until(lambda: not one.controller.alive)
            await until(lambda: bool(one.events("unseen")))
            assert "no answer for 2 s" in one.events("unseen")[0]["why"]
            proxy.becomes("")
            await until(lambda: one.controller.alive)


@pytest_twisted.ensureDeferred
async def test_what_its_account_may_not_do_is_told_as_the_verb_and_the_resource(server: Any) -> None:
    role = server.get("roles", "qpid-scaledown")
    rules = [rule for rule in role["rules"] if "pods" not in rule["resources"]]
    server.change(
        "roles", "qpid-scaledown", {"rules": [*rules, {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]}
    )
    async with acting(server) as one:
        await until(lambda: bool(one.events("failed")))
        assert "403 this account may not create pods in the namespace default" in one.events("failed")[0]["why"]


@pytest_twisted.ensureDeferred
async def test_a_set_that_is_unfit_and_a_drainer_that_does_not_start_are_told_once(server: Any) -> None:
    async with acting(server) as one:
        await until(lambda: pods(server) == DRAINERS[:1])
        condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
        server.change("pods", f"{DRAINERS[0]}/status", {"status": {"phase": "Pending", "conditions": [condition]}})
        await until(lambda: bool(one.events("pending")))
        assert one.events("pending")[0]["why"] == "0/3 nodes are available"
        if isinstance(server, ApiServer):  # the release of the real one that is at hand knows no such policy
            server.change("statefulsets", NAME, {"spec": {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}})
            await until(lambda: bool(one.events("unfit")))
            assert len(one.events("unfit")) == 1
        assert len(one.events("pending")) == 1


@pytest_twisted.ensureDeferred
async def test_a_password_in_the_annotation_of_a_set_is_shown_nowhere(server: Any) -> None:
    """Breaks when an event, or the command of a drainer pod, has the password."""
    annotation = {TO: "amqp:drainer/s3cret@queues-0.queues:5672"}
    server.change("statefulsets", NAME, {"metadata": {"annotations": annotation}})
    async with acting(server) as one:
        await until(lambda: bool(one.events("failed")))
        why = one.events("failed")[0]["why"]
        assert why.startswith(f"the annotation {TO} has a password, which everybody who may read pods could see")
        assert pods(server) == []
        server.change("statefulsets", NAME, {"metadata": {"annotations": {TO: "amqp:drainer@queues-0.queues:5672"}}})
        seen(server)
        await until(lambda: bool(one.events("drain")))
        assert one.events("drain")[0]["to"] == ["amqp:drainer@queues-0.queues:5672"]
        made = [server.get("pods", pod)["spec"]["containers"][0]["command"] for pod in pods(server)]
        assert made != []
        assert "s3cret" not in json.dumps([one.told, made])


@pytest_twisted.ensureDeferred
async def test_a_user_in_the_annotation_of_a_set_has_the_password_of_the_options(server: Any, tmp_path: Path) -> None:
    """Breaks when a password for the targets alone keeps the controller from asking the set's brokers, which have no logins, and
    so from everything."""
    scale(server, 2)
    server.make(a_pod(0))
    server.change("statefulsets", NAME, {"metadata": {"annotations": {TO: "drainer@far:5672"}}})
    seen(server)
    command = await drainer_with_a_password(server, tmp_path)
    assert command[3:5] == ["--to", "drainer@far:5672"]
    assert command[command.index("--password-file") + 1] == str(tmp_path / "password")
    assert "cannot be asked" not in (tmp_path / "told").read_text()


@pytest_twisted.ensureDeferred
async def test_the_user_of_the_brokers_logs_in_at_the_one_that_is_the_target_too(server: Any, tmp_path: Path) -> None:
    """Breaks when each drainer ends at once, because it has a password and its target has no user."""
    scale(server, 2)
    command = await drainer_with_a_password(server, tmp_path, "--brokers", "ann@{set}-{ordinal}.queues:5672")
    assert command[3:5] == ["--to", "ann@queues-0.queues.default:5672"]
    at = command.index("--password-file")
    ran = run("qpid-drain", "--store", tmp_path / "none", *command[3:5], *command[at : at + 2])
    assert "there is no store in" in ran.err, "the options go together"


async def drainer_with_a_password(server: Any, folder: Path, *more: str) -> list[str]:
    """The command of the first drainer of a controller that has a password file and these options."""
    (folder / "password").write_text("s3cret")
    (folder / "password").chmod(0o600)
    (folder / "token").write_text(CONTROLLER)
    (folder / "token").chmod(0o600)
    words = ["--namespace", "default", "--api-server", server.url, "--api-token-file", str(folder / "token"), "--once", *more]
    words += ["--api-ca-file", str(server.ca)] if isinstance(server, KubeApiServer) else []
    words += ["--password-file", str(folder / "password"), "--timeout", "1", "--format", "json"]
    with (folder / "told").open("w") as told:
        acts = Forked("cli.commands.qpid_scaledown", "qpid-scaledown", words, told.fileno(), told.fileno())
    try:
        await until(lambda: DRAINERS[0] in pods(server) or acts.poll() is not None)
        command: list[str] = server.get("pods", DRAINERS[0])["spec"]["containers"][0]["command"]
    finally:
        acts.kill()
    return command


@pytest.mark.parametrize(
    "to, others, drain, cancel",
    [
        (("ann@t:1",), (), (), ("--to", "ann@t:1")),
        (("t:1",), ("ann@u:1",), ("--login-for", "ann@u:1"), ("--login-for", "ann@u:1")),
        ((), ("ann@u:1", "v:1"), ("--login-for", "ann@u:1", "--login-for", "v:1"), None),
        (("ann@t:1",), ("bob@u:1",), (), ("--to", "ann@t:1")),
        (("t:1",), ("u:1",), (), ()),
    ],
)
def test_the_login_of_a_set_is_tried_at_its_targets_alone(to: Any, others: Any, drain: Any, cancel: Any) -> None:
    found = _words_of_steps({"to": list(to)} if to else {}, others)
    assert found == {Do.DRAIN: drain, Do.CALL_OFF: drain if cancel is None else cancel}


def test_targets_that_are_refused_lend_no_login() -> None:
    """Breaks when a password that somebody has written into an annotation gets into a command line."""
    thing = a_set(1)
    thing["metadata"] |= {"uid": "u", "annotations": {TO: "ann@a:1 amqps:bob:s3cret@b:1 c:1:2:3"}}
    assert drainer.annotated(claims.brokers_of(thing)) == ["ann@a:1"]


@pytest.mark.parametrize(
    "words,why",
    [
        (("--namespace", "a", "--to", "amqp:u/s3cret@h:1"), "--to: other users of this machine can see a password"),
        (("--namespace", "a", "--stores", "."), "--stores is for stores in a folder, and --namespace for those in Kubernetes"),
        (("--namespace", "a", "--namespace", "a"), "a --namespace is given twice"),
        (("--namespace", "A_"), "'A_' is not the name of an object"),
        (("--namespace", "a"), "this is not a pod (KUBERNETES_SERVICE_HOST is not set): give --api-server https://host:6443"),
        (("--namespace", "a", "--api-server", "http://far:1"), "over http a stranger could answer for far"),
        (("--namespace", "a", "--brokers", "h:1"), "--brokers needs {ordinal}"),
        (("--api-server", "https://h:1"), "--api-server goes with --namespace"),
        (("--namespace", "a", "--probe-interface", "far"), "'far' is not an IP address"),
        ((), "--stores is needed, or --namespace"),
        (("--stores", "."), "--replicas-file is needed, or --namespace"),
    ],
)
def test_options_that_do_not_go_together_are_refused_in_a_line(words: tuple[str, ...], why: str) -> None:
    found = run("qpid-scaledown", *words)
    assert found.status == 2
    assert why in found.err
    assert "s3cret" not in found.err


def test_the_last_event_of_a_drain_fits_into_a_termination_message(tmp_path: Any) -> None:
    from cli.commands.qpid_drain import MOST_END_BYTES, _write_end

    refused = [{"queue": f"orders-{number}", "sequence": number, "why": "too large " * 10} for number in range(200)]
    facts = {"event": "end", "drain": "d", "moved": 5, "left": 200, "empty": False, "refused": refused}
    _write_end(tmp_path / "end", facts, [{"moved": 3, "known": 2, "bytes": 99}])
    text = (tmp_path / "end").read_text()
    found = json.loads(text)
    assert len(text.encode()) <= MOST_END_BYTES
    assert (found["refusals"], found["messages"], found["bytes"], found["queues"]) == (200, 5, 99, 1)
    assert refused[: len(found["refused"])] == found["refused"] != []


def test_a_file_of_replicas_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Breaks when a wrong path is told by the number of an error."""
    absent = tmp_path / "replicas"
    words = ["--stores", tmp_path, "--replicas-file", absent, "--brokers", "127.0.0.1:{5672+ordinal}", "--to", "127.0.0.1:1"]
    found = run("qpid-scaledown", *words, "--once")
    assert found.status == 1
    assert f"there is no file {absent}; write the number of brokers that are wanted into it" in found.err


def test_probes_are_answered_on_loopback_and_a_port_in_use_is_told_in_a_line(tmp_path: Path) -> None:
    """Breaks when everybody on the network may ask, or a port in use ends in a traceback."""
    replicas = tmp_path / "replicas"
    replicas.write_text("1\n")
    words = ["--stores", tmp_path, "--replicas-file", replicas, "--brokers", "127.0.0.1:{5672+ordinal}", "--to", "127.0.0.1:1"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        found = run("qpid-scaledown", *words, "--once", "--probe-port", port)
    assert (found.status, found.err.count("\n")) == (1, 1)
    assert f"cannot listen on 127.0.0.1:{port}: " in found.err
    assert "choose another --probe-port or --probe-interface" in found.err
