"""deploy/kubernetes/scale-down: brokers by themselves, the hook that drains one which is not wanted any more, and the controller
that drains what the hook has left."""

from __future__ import annotations

import json
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from cli.scaledown.claims import SELECTED
from cli.scaledown.namespace import LEASE_NAME
from ha import settings as ha_settings
from tests.certificates import authority
from tests.cli.running import run
from tests.resource_manager.api_server import Thing, manifests
from tests.resource_manager.test_manifests import NEWEST, OLDEST, command

EACH = manifests("scale-down/brokers.yaml")
OF = {thing["kind"]: thing for thing in EACH}
POD = OF["StatefulSet"]["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
HOOK = OF["ConfigMap"]["data"]["pre_stop.py"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("thing", EACH, ids=lambda thing: thing["kind"])
def test_each_object_is_one_that_kubernetes_knows(thing: Thing, version: str) -> None:
    assert kubernetes_validate.validate(thing, version, strict=True) == version


def test_the_brokers_stand_alone_and_the_hook_has_ten_seconds_less_than_the_grace_period() -> None:
    broker, ha = ha_settings.read(command(OF["StatefulSet"], "queues-0"), {})
    assert (ha.ha_cluster, broker.drain_to, broker.port) == (False, None, 5672), "a restart is not a scale-down"
    given = {each["name"]: each.get("value") for each in CONTAINER["env"]}
    assert int(given["GRACE_SECONDS"]) == POD["terminationGracePeriodSeconds"] <= 600
    assert given["SERVICE"] == OF["StatefulSet"]["spec"]["serviceName"] == OF["Service"]["metadata"]["name"]
    assert "/hook/pre_stop.py" in CONTAINER["lifecycle"]["preStop"]["exec"]["command"][-1]
    [volume] = POD["volumes"]
    assert volume["configMap"]["name"] == OF["ConfigMap"]["metadata"]["name"]
    [rule] = OF["Role"]["rules"]
    assert (rule["verbs"], rule["resourceNames"]) == (["get"], [OF["StatefulSet"]["metadata"]["name"]])
    assert POD["serviceAccountName"] == OF["ServiceAccount"]["metadata"]["name"] == OF["RoleBinding"]["subjects"][0]["name"]


CONTROLLER = manifests("scale-down/controller.yaml")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("thing", CONTROLLER, ids=lambda thing: thing["kind"])
def test_each_object_of_the_controller_is_one_that_kubernetes_knows(thing: Thing, version: str) -> None:
    assert kubernetes_validate.validate(thing, version, strict=True) == version


def test_the_controller_takes_its_options_sees_the_brokers_set_and_has_what_its_account_needs() -> None:
    of = {thing["kind"]: thing for thing in CONTROLLER}
    pod = of["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["serviceAccountName"] == of["ServiceAccount"]["metadata"]["name"] == of["RoleBinding"]["subjects"][0]["name"]
    assert of["RoleBinding"]["roleRef"]["name"] == of["Role"]["metadata"]["name"]
    assert of["RoleBinding"]["subjects"][0]["namespace"] == "default", "else a second namespace would name an account of its own"
    [lease] = [rule for rule in of["Role"]["rules"] if "resourceNames" in rule]
    assert lease["resourceNames"] == [LEASE_NAME]
    assert pod["enableServiceLinks"] is False
    words = [word.replace("$(POD_NAMESPACE)", "shop") for word in container["args"]]
    words.remove(f"--probe-port={container['ports'][0]['containerPort']}")
    found = run(container["command"][0], *words, "--api-server", "http://127.0.0.1:1", "--once")
    assert (found.status, "127.0.0.1:1" in found.err) == (1, True), "it takes these words, and asks the server"
    assert OF["StatefulSet"]["metadata"]["labels"][SELECTED] == "yes"
    template = OF["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert SELECTED not in template


@contextmanager
def api(folder: Path, answer: Thing) -> Iterator[int]:
    """An API server that knows the set, asked for by the account's token over TLS."""
    path = "/apis/apps/v1/namespaces/shop/statefulsets/queues"

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == path and self.headers["Authorization"] == "Bearer secret"
            body = json.dumps(answer).encode()
            self.send_response(200 if known else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: Any, **named: Any) -> None:
            """To nobody."""

    authority().write(folder).rename(folder / "ca.crt")
    (folder / "token").write_text("secret\n")
    certificate, key = authority().issue("api", "localhost").write(folder, "api")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with HTTPServer(("127.0.0.1", 0), Api) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "wanted,metadata,pod,target,first",
    [
        (2, {}, "queues-2", "queues-0.queues:5672", 0),
        (2, {}, "queues-5", "queues-0.queues:5672", 0),
        (2, {}, "queues-5", "", 5),
        (2, {}, "queues-7", "queues-5.queues:5672", 5),
        (3, {}, "queues-2", "", 0),
        (0, {}, "queues-2", "", 0),
        (2, {"deletionTimestamp": "2026-11-24T00:00:00Z"}, "queues-2", "", 0),
    ],
)
def test_the_pre_stop_hook_drains_a_pod_that_is_scaled_away_into_one_that_stays_and_no_other(
    wanted: int, metadata: Thing, pod: str, target: str, first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began: list[list[str]] = []
    monkeypatch.setattr(os, "execvp", lambda program, words: began.append([program, *words]))
    with api(
        tmp_path, {"metadata": metadata, "spec": {"replicas": wanted} | ({"ordinals": {"start": first}} if first else {})}
    ) as port:
        given = {"ACCOUNT": str(tmp_path), "KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(port)}
        given |= {"POD_NAME": pod, "POD_NAMESPACE": "shop", "SERVICE": "queues", "GRACE_SECONDS": "120"}
        given["QPID_CONFIG"] = "/etc/qpidd.conf"
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        exec(compile(HOOK, "pre_stop.py", "exec"), {})
    if not target:
        assert began == []
        return
    [[program, _, *words]] = began
    assert (program, words[words.index("--to") + 1], words[words.index("--deadline") + 1]) == ("qpid-drain", target, "110")
    assert "QPID_CONFIG" not in os.environ, "its options are qpidd's"
    words[words.index("--from") + 1] = "127.0.0.1:1"
    assert run(program, *words).status == 3, "it takes these words, and asks for the broker"
