"""A real kube-apiserver with an etcd of its own, on loopback: the binary that the environment names in KUBE_APISERVER."""

from __future__ import annotations

import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.certificates import Authority
from tests.resource_manager.api_server import ADMIN, DAEMON, USERS, Client, rights
from tests.resource_manager.etcd import running_etcd
from tests.system.harness import free_ports

START_S = 120.0


class KubeApiServer(Client):
    """The process, as an administrator sees it."""

    def __init__(self, port: int, context: ssl.SSLContext, ca: Path) -> None:
        super().__init__(port, context)
        self.ca = ca

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"https://127.0.0.1:{self.port}"


@contextmanager
def running_kube_apiserver(binary: Path, folder: Path) -> Iterator[KubeApiServer]:
    """One that knows what the manifests let the daemons do."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority()
    ca = authority.write(folder)
    certificate, key = authority.issue("kube-apiserver", "127.0.0.1").write(folder, "server")
    [port] = free_ports(1)
    tokens = folder / "tokens.csv"
    groups = {ADMIN: "system:masters", DAEMON: "system:serviceaccounts"}
    tokens.write_text("".join(f'{token},{user},{user},"{groups[token]}"\n' for token, user in USERS.items()))
    with running_etcd(folder / "etcd") as etcd, (folder / "kube-apiserver.log").open("wb") as log:
        words = [str(binary), "--etcd-servers", etcd.url, "--bind-address", "127.0.0.1", "--secure-port", str(port)]
        words += ["--advertise-address", "127.0.0.1", "--cert-dir", str(folder), "--service-cluster-ip-range", "10.0.0.0/24"]
        words += ["--tls-cert-file", str(certificate), "--tls-private-key-file", str(key), "--token-auth-file", str(tokens)]
        words += ["--authorization-mode", "RBAC", "--anonymous-auth=false", "--disable-admission-plugins", "ServiceAccount"]
        words += ["--service-account-key-file", str(certificate), "--service-account-signing-key-file", str(key)]
        words += ["--service-account-issuer", "https://understudy.example"]
        process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            server = KubeApiServer(port, ssl.create_default_context(cafile=str(ca)), ca)
            until_s = time.monotonic() + START_S
            while not _answers(server):
                in_time = process.poll() is None and time.monotonic() < until_s
                assert in_time, (folder / "kube-apiserver.log").read_text()[-3000:]
                time.sleep(0.1)
            for thing in rights():
                server.make(thing)
            yield server
        finally:
            process.terminate()
            process.wait(30)


def _answers(server: KubeApiServer) -> bool:
    """Whether the namespace of the tests is there."""
    try:
        ready = server.request("GET", "/readyz")
    except ValueError:  # which says `ok`, and no JSON
        ready = 200, {}
    except OSError:
        return False
    return ready[0] == 200 and server.request("GET", "/api/v1/namespaces/default")[0] == 200
