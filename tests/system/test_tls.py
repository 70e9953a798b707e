"""A cluster over TLS alone: clients, commands, the resource manager and the brokers among themselves."""

from __future__ import annotations

import json
import signal
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from proton import ConnectionException, Message, SSLDomain, symbol
from proton.utils import BlockingConnection

from tests.certificates import CLIENT, authority
from tests.cli.running import checked, run
from tests.system.harness import BrokerProcess, Cluster, eventually, free_ports, spawn
from tests.system.test_verify import Verify

HOST = "localhost"
"""Proton looks for the host of a URL among the names of a certificate alone, and not among its addresses."""


@dataclass
class Secured:
    """A cluster whose links are over TLS, and the files of its authority and of a client. Its first ports are in the clear: the
    tests ask by them what they want to know."""

    cluster: Cluster
    ports: list[int]
    folder: Path
    ca: Path
    client: tuple[Path, Path]

    @property
    def url(self) -> str:
        return "amqps:" + ",".join(f"{HOST}:{port}" for port in self.ports)

    def certify(self, position: int) -> None:
        """A new certificate for that broker, bound to its address."""
        port = self.ports[position]
        authority().issue(f"broker{position}", HOST, f"amqps://{HOST}:{port}").write(self.folder, f"broker{position}")

    def domain(self) -> SSLDomain:
        """A client's side of TLS for proton."""
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(str(self.ca))
        certificate, key = self.client
        domain.set_credentials(str(certificate), str(key), None)
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
        return domain

    def connect(self, position: int, **properties: Any) -> BlockingConnection:
        return BlockingConnection(
            f"amqps://{HOST}:{self.ports[position]}",
            timeout=30,
            ssl_domain=self.domain(),
            properties={symbol(name.replace("_", ".", 1).replace("_", "-")): value for name, value in properties.items()},
        )

    def serial(self, position: int) -> int:
        """Which certificate a handshake is shown now."""
        shown = ssl.get_server_certificate((HOST, self.ports[position]), timeout=30)
        return x509.load_pem_x509_certificate(shown.encode()).serial_number


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Secured]:
    """Three brokers, of which a resource manager has promoted one."""
    cluster = Cluster(tmp_path, 3, [])
    ca, client = authority().write(tmp_path), authority().issue("app", purposes=CLIENT).write(tmp_path, "client")
    secured = Secured(cluster, free_ports(3), tmp_path, ca, client)
    for position, port in enumerate(secured.ports):
        secured.certify(position)
        files = [
            "--ssl-certificate",
            str(tmp_path / f"broker{position}.pem"),
            "--ssl-key",
            str(tmp_path / f"broker{position}.key"),
        ]
        cluster.brokers[position].options = ["--ha-cluster", "yes", "--ha-brokers-url", secured.url, "--ssl-port", str(port)]
        cluster.brokers[position].options += [*files, "--ssl-ca-file", str(ca)]
    daemon = None
    try:
        for broker in cluster.brokers:
            broker.start()
        daemon = spawn(tmp_path / "daemon.log", "qpid-resource-manager", "--brokers", secured.url, "--ssl-ca-file", str(ca))
        for broker in cluster.brokers:
            broker.wait_for("ready", "active")
        yield secured
        for broker in cluster.brokers:
            broker.check_log()
    except BaseException:
        for broker in cluster.brokers:
            print(f"--- {broker.address}\n{broker.log()[-3000:]}")
        raise
    finally:
        if daemon is not None:
            daemon.kill()
        cluster.close()


def primary_of(three: Secured) -> int:
    return three.cluster.brokers.index(three.cluster.primary())


def test_a_cluster_works_over_tls_alone(three: Secured) -> None:
    """Breaks when one of its parts cannot speak TLS, or when a member is not known by its certificate."""
    trusted = ("--ssl-ca-file", str(three.ca))
    with Verify(three.url, "--seconds", "1", *trusted) as running:
        ended = running.end()
    assert ended.status == 0
    assert ended.report["accepted"] > 0
    checked(run("qpid-ha", "switchover", "-b", three.url, *trusted))
    three.cluster.primary()
    views = json.loads(checked(run("qpid-ha", "query", "--all", "-b", three.url, *trusted, "--format", "json")).out)
    active = next(view for view in views if view["status"] == "active")
    assert [member["connected"] for member in active["members"]] == [True, True, True]
    assert all("refused" not in member for member in active["members"])
    refused = run("qpid-ha", "ping", "-b", f"amqps:{HOST}:{three.ports[0]}")
    assert refused.status == 3
    assert "certificate is not trusted" in refused.err


def test_a_client_cannot_replicate_as_a_member(three: Secured) -> None:
    """Breaks when a client's certificate is as good as a broker's, or when the port in the clear takes a member's links."""
    backup = (primary_of(three) + 1) % 3
    other = f"{HOST}:{three.ports[(backup + 1) % 3]}"
    with pytest.raises(ConnectionException, match="unauthorized-access"):
        three.connect(backup, qpid_ha_peer=other)
    plain: BrokerProcess = three.cluster.brokers[backup]
    with pytest.raises(ConnectionException, match="unauthorized-access"):
        BlockingConnection(plain.address, timeout=30, properties={symbol("qpid.ha-peer"): other})
    assert f"it says that it is the member {other}, and has shown a client's certificate, CN=app" in plain.log()
    assert f"it says that it is the member {other}, and has shown no certificate" in plain.log()


def test_new_files_count_at_once_and_cost_no_connection(three: Secured) -> None:
    """Breaks when a connection is lost with the certificate that it began with, or a broken file ends TLS."""
    position = primary_of(three)
    broker = three.cluster.brokers[position]
    broker.create("queue", "q", replicate="all")
    held = three.connect(position)
    sender, receiver = held.create_sender("q"), held.create_receiver("q")
    sender.send(Message("before"))
    before = three.serial(position)
    three.certify(position)
    broker.signal(signal.SIGHUP)
    eventually(lambda: three.serial(position), lambda serial: serial != before, "a new certificate")
    after = three.serial(position)
    (three.folder / f"broker{position}.pem").write_text("nonsense")
    broker.signal(signal.SIGHUP)
    eventually(broker.log, lambda log: f"broker{position}.pem: there is no certificate" in log, "a word of the broken file")
    assert three.serial(position) == after
    sender.send(Message("after"))
    for wanted in ("before", "after"):
        assert receiver.receive(timeout=30).body == wanted
        receiver.accept()
    held.close()
    assert broker.status()["epoch"] == 1
