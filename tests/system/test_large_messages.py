"""Messages of 15 MiB, one after the other, beside a client with small ones."""

from __future__ import annotations

import threading
from pathlib import Path

from proton import Message
from proton.utils import BlockingConnection

from tests.system.harness import cluster
from tests.system.reigns import healthy, reigns, resource_manager
from tests.system.traffic import send, take

LARGE_BYTES = 15 << 20
LARGE = 12
SMALL = 200


def test_large_messages_cost_no_election_and_let_small_ones_through(tmp_path: Path) -> None:
    """Breaks when heartbeats, replies or other clients wait behind bodies: then backups, or the resource manager, give the
    primary up. On a machine that is too busy for half a second of silence it would say nothing, so the times are generous."""
    times = ("--ha-election-timeout", "3", "--ha-replicate", "all")
    with cluster(tmp_path, 3, *times) as brokers, resource_manager(tmp_path, brokers, detection_s=3.0):
        primary = healthy(brokers)
        primary.create("queue", "large")
        primary.create("queue", "small")
        large = [bytes([number]) * LARGE_BYTES for number in range(LARGE)]
        producer = threading.Thread(target=send, args=(primary.address, "large", large))
        producer.start()
        connection = BlockingConnection(primary.address, timeout=60)
        sender = connection.create_sender("small")
        sent = 0
        while producer.is_alive() or sent < SMALL:
            sender.send(Message(body=b"small"))
            sent += 1
        connection.close()
        producer.join()
        assert len(reigns(primary)) == 1
        assert primary.state() == "active"
        assert primary.queue("small")["messages"] == sent
        assert take(primary.address, "large", LARGE) == large
        for broker in brokers.brokers:
            assert "started anew" not in broker.log()
