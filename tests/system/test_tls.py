"""A cluster that uses only TLS: clients, commands, the resource manager and the brokers among themselves."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import ConnectionException, Message, symbol
from proton.utils import BlockingConnection

from tests.cli.running import checked, run
from tests.system.harness import BrokerProcess, eventually, spawn
from tests.system.secured import HOST, Secured, secured
from tests.system.test_verify import Verify


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Secured]:
    """Three brokers, of which a resource manager has promoted one."""
    with secured(tmp_path) as brokers:
        watching = ("--brokers", brokers.url, "--ssl-ca-file", str(brokers.ca))
        daemon = spawn(tmp_path / "daemon.log", "qpid-resource-manager", *watching)
        try:
            for broker in brokers.brokers:
                broker.wait_for("ready", "active")
            yield brokers
        finally:
            daemon.kill()


def primary_of(three: Secured) -> int:
    return three.brokers.index(three.primary())


def test_a_cluster_works_over_tls_alone(three: Secured) -> None:
    """Breaks when one of its parts cannot speak TLS, or when a member is not known by its certificate."""
    trusted = ("--ssl-ca-file", str(three.ca))
    with Verify(three.url, "--seconds", "2", *trusted) as running:
        eventually(lambda: three.primary().queue("qpid-verify-1")["consumers"], bool, "a run under way")
        checked(run("qpid-ha", "switchover", "-b", three.url, *trusted))
        ended = running.end()
    assert ended.status == 0
    assert ended.report["accepted"] > 0
    assert ended.report["measures"]["connections"] > 2, "nobody has gone on to the next address"
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
        three.connect(backup, {"qpid.ha-peer": other})
    plain: BrokerProcess = three.brokers[backup]
    with pytest.raises(ConnectionException, match="unauthorized-access"):
        BlockingConnection(plain.address, timeout=30, properties={symbol("qpid.ha-peer"): other})
    assert f"it says that it is the member {other}, and presented a client's certificate, CN=app" in plain.log()
    assert f"it says that it is the member {other}, and presented no certificate" in plain.log()


def test_new_files_count_at_once_and_cost_no_connection(three: Secured) -> None:
    """Breaks when a connection is lost with the certificate that it began with, or a broken file ends TLS."""
    position = primary_of(three)
    broker = three.brokers[position]
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
