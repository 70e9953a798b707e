"""deploy/kubernetes: what `kubectl apply` is told is valid, fits together, and gives our commands options that they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from twisted.internet import reactor

from ha import settings as ha_settings
from resource_manager import settings
from resource_manager.arbiters import kubernetes
from resource_manager.core.pod_roles import PRIMARY, pod_of
from resource_manager.net.tls import Tls
from tests.resource_manager.api_server import MANIFESTS, manifests

Thing = dict[str, Any]
ALL = {file.name: manifests(file.name) for file in sorted(MANIFESTS.glob("*.yaml"))}
EACH = [thing for things in ALL.values() for thing in things]
OLDEST, NEWEST = "1.25", "1.36"


def one(kind: str, name: str = "") -> Thing:
    [found] = [thing for thing in EACH if thing["kind"] == kind and name in ("", thing["metadata"]["name"])]
    return found


def command(workload: Thing, pod: str) -> dict[str, str | None]:
    """The options of its only container in the pod of that name, as a command line would give them."""
    [container] = workload["spec"]["template"]["spec"]["containers"]
    options: dict[str, str | None] = {}
    for word in container["args"]:
        name, _, value = word.removeprefix("--").partition("=")
        options[name.replace("-", "_")] = value.replace("$(POD_NAME)", pod)
    return options


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("thing", EACH, ids=lambda thing: f"{thing['kind']} {thing['metadata']['name']}")
def test_each_object_is_one_that_kubernetes_knows(thing: Thing, version: str) -> None:
    assert kubernetes_validate.validate(thing, version, strict=True) == version


def test_an_object_with_a_field_that_kubernetes_does_not_know_would_be_found() -> None:
    broken = one("PodDisruptionBudget")
    with pytest.raises(kubernetes_validate.ValidationError, match="maxUnavailible"):
        kubernetes_validate.validate(broken | {"spec": broken["spec"] | {"maxUnavailible": 1}}, NEWEST, strict=True)


def test_selectors_select_the_pods_that_they_are_for() -> None:
    brokers, daemons = (one(kind)["spec"]["template"]["metadata"]["labels"] for kind in ("StatefulSet", "Deployment"))
    assert "role" not in brokers, "a pod that is made anew is not the primary"
    service = dict(one("Service", "understudy")["spec"]["selector"])
    assert service.pop("role") == PRIMARY
    for selector in (
        service,
        one("Service", "understudy-brokers")["spec"]["selector"],
        one("StatefulSet")["spec"]["selector"]["matchLabels"],
        one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= brokers.items()
        assert not selector.items() <= daemons.items()
    assert one("Deployment")["spec"]["selector"]["matchLabels"] == daemons
    allowed = [peer["podSelector"]["matchLabels"] for peer in one("NetworkPolicy")["spec"]["ingress"][0]["from"]]
    assert brokers in allowed
    assert daemons in allowed


def test_the_daemons_account_has_the_role() -> None:
    account, role, binding = one("ServiceAccount")["metadata"]["name"], one("Role")["metadata"]["name"], one("RoleBinding")
    assert one("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account
    assert (binding["roleRef"]["name"], [subject["name"] for subject in binding["subjects"]]) == (role, [account])
    assert one("StatefulSet")["spec"]["template"]["spec"]["automountServiceAccountToken"] is False, "brokers need no rights"


def test_brokers_are_told_of_each_other_by_the_names_that_the_set_gives_them() -> None:
    brokers = one("StatefulSet")
    pods = [f"{brokers['metadata']['name']}-{number}" for number in range(brokers["spec"]["replicas"])]
    assert brokers["spec"]["serviceName"] == one("Service", "understudy-brokers")["metadata"]["name"]
    for pod in pods:
        broker, ha = ha_settings.read(command(brokers, pod), {})
        assert (broker.port, ha.ha_cluster, ha.ha_replicate) == (5672, True, "all")
        assert ha_settings.own_address(ha, broker.interface, broker.port).name == f"{pod}.{brokers['spec']['serviceName']}:5672"
    assert [pod_of(address) for address in ha.members] == pods
    [labels] = [rule for rule in one("Role")["rules"] if "patch" in rule["verbs"]]
    assert labels["resourceNames"] == pods
    assert settings.read(command(one("Deployment"), "rm-1"), {}).brokers == ha.ha_brokers_url


def test_the_daemons_options_make_an_arbiter_in_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("token", "namespace", "ca.crt"):
        (tmp_path / name).write_text("default")
    monkeypatch.setattr(kubernetes, "_ACCOUNT", tmp_path)
    monkeypatch.setattr(Tls, "read", lambda _: {})
    read = settings.read(command(one("Deployment"), "rm-1"), {})
    assert (read.arbiter, read.name) == ("kubernetes", "rm-1")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    arbiter = kubernetes._make(read.for_arbiter, reactor, "rm-1", environ)
    [lease] = [rule for rule in one("Role")["rules"] if "update" in rule["verbs"]]
    assert lease["resourceNames"] == [arbiter._lease.name]
    assert arbiter._roles is not None
    labels = one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert arbiter._roles._selector in {f"{label}={value}" for label, value in labels.items()}
    arbiter.close()


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])
def test_no_variable_of_kubernetes_is_read_as_an_option(kind: str) -> None:
    """A Service called `qpid` would else set QPID_PORT=tcp://..., and the daemon would not start."""
    pod = one(kind)["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert one(kind)["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
