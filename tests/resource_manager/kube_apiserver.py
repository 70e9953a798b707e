"""A real kube-apiserver with an etcd of its own, on loopback: the binary that the environment names in KUBE_APISERVER. Tests that
can do with the stand-in take what `a_server` gives."""

from __future__ import annotations

import os
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.certificates import Authority
from tests.resource_manager.api_server import ADMIN, USERS, ApiServer, Client, rights, running_api_server
from tests.resource_manager.etcd import Etcd, running_etcd
from tests.system.harness import free_ports

START_S = 120.0


class KubeApiServer(Client):
    """The process, as an administrator sees it, through all its lives."""

    def __init__(self, binary: Path, folder: Path, etcd: Etcd) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        authority = Authority()
        self.ca = authority.write(folder)
        certificate, key = authority.issue("kube-apiserver", "127.0.0.1").write(folder, "server")
        [port] = free_ports(1)
        super().__init__(port, ssl.create_default_context(cafile=str(self.ca)))
        tokens = folder / "tokens.csv"
        groups = {ADMIN: "system:masters"}
        lines = [f'{token},{user},{user},"{groups.get(token, "system:serviceaccounts")}"\n' for token, user in USERS.items()]
        tokens.write_text("".join(lines))
        self._log = folder / "kube-apiserver.log"
        words = [str(binary), "--etcd-servers", etcd.url, "--bind-address", "127.0.0.1", "--secure-port", str(port)]
        words += ["--advertise-address", "127.0.0.1", "--cert-dir", str(folder), "--service-cluster-ip-range", "10.0.0.0/24"]
        words += ["--tls-cert-file", str(certificate), "--tls-private-key-file", str(key), "--token-auth-file", str(tokens)]
        words += ["--authorization-mode", "RBAC", "--anonymous-auth=false", "--disable-admission-plugins"]
        words += ["ServiceAccount,StorageObjectInUseProtection"]  # nobody here would take the finalizers away
        words += ["--service-account-key-file", str(certificate), "--service-account-signing-key-file", str(key)]
        self._words = [*words, "--service-account-issuer", "https://understudy.example"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether it was started, and not killed since."""
        return self._process is not None

    def start(self) -> None:
        """Start, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._words, stdout=log, stderr=log)
        until_s = time.monotonic() + START_S
        while not _answers(self):
            in_time = self._process.poll() is None and time.monotonic() < until_s
            assert in_time, self._log.read_text()[-3000:]
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None


@contextmanager
def running_kube_apiserver(binary: Path, folder: Path) -> Iterator[KubeApiServer]:
    """One that knows what the manifests let the daemons do."""
    with running_etcd(folder / "etcd") as etcd:
        server = KubeApiServer(binary, folder, etcd)
        try:
            server.start()
            for thing in rights():
                server.make(thing)
            yield server
        finally:
            server.kill()


@contextmanager
def a_server(folder: Path) -> Iterator[ApiServer | KubeApiServer]:
    """The real one that KUBE_APISERVER names, or else the stand-in."""
    binary = os.environ.get("KUBE_APISERVER", "")
    with running_kube_apiserver(Path(binary), folder) if binary else running_api_server() as server:
        yield server


def _answers(server: KubeApiServer) -> bool:
    """Whether the namespace of the tests is there."""
    try:
        ready = server.request("GET", "/readyz")
    except ValueError:  # which says `ok`, and no JSON
        ready = 200, {}
    except OSError:
        return False
    return ready[0] == 200 and server.request("GET", "/api/v1/namespaces/default")[0] == 200
