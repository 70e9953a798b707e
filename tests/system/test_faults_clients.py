"""Several clients that never read, or that flood: the brokers' memory stays bounded, and all other clients are served.

The faults of a single client are in `test_bad_input`. Here the clients disturb the primary of a cluster, where each byte that
is kept too long adds to the work for all clients. Meanwhile a well-behaved producer and consumer continue, and every message
is accounted for.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from proton import Message
from proton.utils import BlockingConnection

from broker.core import limits
from broker.core.door import HEADER
from cli.verify.run import Run, Workload
from tests.broker.core.stream import BEGIN, OPEN, attach_to, transfer
from tests.system.harness import BrokerProcess, Cluster, ask, cluster, eventually
from tests.system.terms import go_on, traffic
from tests.system.test_bad_input import rss_bytes
from tests.system.traffic import take
from tests.system.wire import Peer

MIB = limits.MIB
POURED_BYTES = 20_000
FLOW = b"\x00\x53\x13"
"""The descriptor of the frame that gives credit (AMQP part 2.7.4)."""
SLACK_BYTES = 48 * MIB
"""What a process may grow by for other reasons: the traffic beside, and memory that its allocator keeps."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("clients"), 3, "--ha-replicate", "all", "--ha-election-timeout", "3") as brokers:
        yield brokers


def encoded(nbytes: int) -> bytes:
    """An encoded message of so many bytes."""
    return b"\x00\x53\x75\xb0" + struct.pack(">I", nbytes) + bytes(nbytes)


def memory(brokers: Cluster) -> list[int]:
    """Resident bytes of each broker."""
    return [rss_bytes(broker) for broker in brokers.brokers]


def check_growth(brokers: Cluster, before: list[int], most: int) -> None:
    """No broker has grown by more than so much, and what may happen for other reasons."""
    grown = [now - then for now, then in zip(memory(brokers), before, strict=True)]
    assert max(grown) < most + SLACK_BYTES, f"the brokers grew by {[each // MIB for each in grown]} MiB"


def kernel_bytes() -> int:
    """What two sockets of loopback may hold between a broker and a client that does not read, roughly."""
    return sum(int(Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[at]) for name, at in (("tcp_wmem", 2), ("tcp_rmem", 1)))


@pytest.mark.parametrize(
    "nbytes, count, most",
    [
        pytest.param(100, 20_000, limits.MAX_UNSETTLED_PER_LINK, id="small messages"),
        pytest.param(
            10_000, 6000, 2 * (limits.MAX_OUTPUT_BYTES + limits.MAX_TURN_BYTES + kernel_bytes()) // 10_000, id="large ones"
        ),
    ],
)
def test_clients_that_never_read_hold_what_they_were_sent_and_no_more(three: Cluster, nbytes: int, count: int, most: int) -> None:
    """Three clients ask for a whole queue each and read nothing of it. Breaks when the broker gives out small messages without
    end, when it encodes large ones for a socket that takes nothing, or when one that is waited for keeps others waiting."""
    greedy = 3
    primary = three.primary()
    primary.create("queue", f"deep-{nbytes}")
    with Peer(primary.port) as producer:
        producer.send(producer.sender(f"deep-{nbytes}"), encoded(nbytes), count)
        eventually(lambda: primary.queue(f"deep-{nbytes}")["messages"], lambda depth: depth == count, "all messages waiting")
    with (
        traffic(three, queue=f"beside-{nbytes}", rate=500, before=100, after=100) as run,
        contextlib.ExitStack() as clients,
    ):
        for _ in range(greedy):
            client = BlockingConnection(primary.address, timeout=30)
            clients.callback(client.close)
            client.create_receiver(f"deep-{nbytes}", credit=count)
        go_on(run, 300)

        def delivered() -> int:
            items = ask(primary.address, "QUERY", "subscription")["items"]
            return sum(int(item["unacked"]) for item in items if item["queue"] == f"deep-{nbytes}")

        sent = eventually(lambda: (delivered(), delivered()), lambda two: two[0] == two[1] > 0, "the broker sending no more")[0]
        assert sent <= greedy * most < count
        go_on(run, 300)
    eventually(lambda: primary.queue(f"deep-{nbytes}")["messages"], lambda depth: depth == count, "all back")
    assert take(primary.address, f"deep-{nbytes}", 1000) == [encoded(nbytes)] * 1000
    ask(primary.address, "DELETE", "queue", f"deep-{nbytes}")


def taken_from(broker: BrokerProcess) -> dict[str, int]:
    """How many messages each connection has brought."""
    return {item["id"]: int(item["messagesIn"]) for item in ask(broker.address, "QUERY", "connection")["items"]}


def test_producers_that_flood_a_queue_are_slowed_to_what_it_holds(three: Cluster) -> None:
    """Breaks when a queue takes more than it may hold, on any of the brokers, or when producers get credit for what it would only
    refuse: they would never wait."""
    most = 1000
    primary = three.primary()
    primary.create("queue", "small", arguments={"qpid.max_count": most})
    with traffic(three, queue="beside-producers", rate=500, before=100, after=100) as run:
        before = memory(three)
        others = taken_from(primary)
        work = Workload(three.addresses, ["small"], producers=4, consumers=0, size=10_000, rate=None)
        with Run(work) as flood:
            flood.wait_for(accepted=most // 2)

            def taken() -> int:
                return sum(count for connection, count in taken_from(primary).items() if connection not in others)

            def more() -> int:
                once = taken()
                flood.pause(0.5)
                return taken() - once

            eventually(more, lambda count: count == 0, "producers waiting")
            assert 0.7 * most < primary.queue("small")["messages"] <= most
            go_on(run, 500)
            check_growth(three, before, 2 * most * work.size)
    ask(primary.address, "DELETE", "queue", "small")


def test_a_client_that_heeds_neither_credit_nor_window_is_cut_off(three: Cluster) -> None:
    """Its queue holds a little, and it sends a gigabyte, if it is let. Breaks when what nobody has asked for is kept, or even
    waited for."""
    most = 2000
    primary = three.primary()
    primary.create("queue", "heedless", arguments={"qpid.max_count": most})
    with traffic(three, queue="beside-heedless", rate=500, before=100, after=100) as run:
        before = memory(three)
        for _ in range(3):
            assert pour(primary.port, limit=1 << 30) < 1 << 29
        check_growth(three, before, 2 * most * POURED_BYTES)
        go_on(run, 500)
    ask(primary.address, "DELETE", "queue", "heedless")


def pour(port: int, limit: int) -> int:
    """Send messages without end, and read nothing once there is credit; how many bytes left before the broker ended it."""
    message = encoded(POURED_BYTES)
    sent, heard = 0, b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client, contextlib.suppress(ConnectionError):
        client.sendall(HEADER + OPEN + BEGIN + attach_to("heedless"))
        while FLOW not in heard:
            heard += client.recv(65_536)
        for number in range(limit // len(message)):
            client.sendall(transfer(message, number=number, settled=True, more=False))
            sent += len(message)
    return sent


def test_questions_without_end_whose_answers_nobody_reads_keep_nobody_waiting(three: Cluster) -> None:
    """Breaks when the broker does nothing else as long as there are questions, or when answers wait for a client without a
    bound: a question is small and its answer is not."""
    primary = three.primary()
    for number in range(50):
        primary.create("queue", f"listed-{number}")
    with traffic(three, queue="beside-questions", rate=500, before=100, after=100) as run:
        asker = BlockingConnection(primary.address, timeout=30)
        mailbox = asker.create_receiver(None, dynamic=True, credit=1)
        address = str(mailbox.link.remote_source.address)
        properties = {"operation": "QUERY", "type": "queue", "name": ""}
        question = Message(body={}, properties=properties, reply_to=address).encode()
        enough = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(keep_asking, primary.port, question, enough)
            try:
                go_on(run, 500)
                assert primary.state() == "active", "an administrator is answered between them"
            finally:
                enough.set()
        assert asked.result() > 100
        # Answers enough to overfill it would take their time; what anybody else sends to the same place counts like them.
        most = limits.MAILBOX_BYTES // MIB
        with Peer(primary.port) as filling:
            link = filling.sender(address)
            filling.send(link, encoded(MIB), most + 5)
            filling.send(link, Message(id="last").encode(), 1)

            def taken() -> list[int]:
                items = ask(primary.address, "QUERY", "connection")["items"]
                return [int(item["messagesIn"]) for item in items if item["container"] == "peer"]

            eventually(taken, lambda counts: most + 6 in counts, "the broker has taken all of them")
            mailbox.link.flow(2 * asked.result() + most)
            kept = 0
            while (message := mailbox.receive()).id != "last":
                kept += isinstance(message.body, (bytes, memoryview)) and len(message.body) == MIB
        assert most - 2 <= kept <= most
        asker.close()


def keep_asking(port: int, question: bytes, enough: threading.Event) -> int:
    """Ask over three connections as often as there is credit for questions; how often. One thread alone may use such engines."""
    asked = 0
    with Peer(port) as one, Peer(port) as two, Peer(port) as three:
        links = [(peer, peer.sender("$management")) for peer in (one, two, three)]
        while not enough.is_set():
            for peer, link in links:
                peer.send(link, question, 10)
                asked += 10
    return asked
