"""Wrong input from clients, on purpose or not: each client gets a precise error, others lose nothing, and the broker serves
on.

One broker runs for the whole module. After each test a message passes through it over a connection that is open all the time,
and its log is searched for faults. So a disturbance shows, whichever test caused it.
"""

from __future__ import annotations

import os
import re
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Message, ProtonException
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton.utils import BlockingConnection, LinkDetached, SendException

from broker.amqp.sender import Sender
from broker.core import limits
from broker.core.door import HEADER
from tests.broker.core.stream import BEGIN, CLOSE, OPEN, SIXTY_KB_OF_EMPTY_LISTS, ZERO, attach_to, echo, frame, performative
from tests.broker.sessions.test_echo import Flow, flows
from tests.system.harness import BrokerProcess, ask, eventually, standalone
from tests.system.wire import Peer, Wire

MAX_FRAME = 32 * 1024
MAX_MESSAGE = 1024 * 1024
NEGOTIATE_S = 2
_ENDED = re.compile(r"connection from 127\.0\.0\.1:\d+ ended: (.*)")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    options = [
        "--max-frame-size",
        str(MAX_FRAME),
        "--max-message-size",
        str(MAX_MESSAGE),
        "--max-negotiate-time",
        str(NEGOTIATE_S * 1000),
    ]
    with standalone(tmp_path_factory.mktemp("bad_input"), *options) as process:
        process.create("queue", "others")
        yield process


@pytest.fixture(scope="module")
def others(broker: BrokerProcess) -> Iterator[BlockingConnection]:
    """A client that does nothing wrong, connected all the time."""
    connection = BlockingConnection(broker.address, timeout=30)
    yield connection
    connection.close()


@pytest.fixture(autouse=True)
def _the_broker_serves_on(broker: BrokerProcess, others: BlockingConnection, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    name = str(request.node.name)
    sender = others.create_sender("others")
    sender.send(Message(id=name))
    sender.close()
    receiver = others.create_receiver("others")
    assert receiver.receive(30).id == name
    receiver.accept()
    receiver.close()
    broker.check_log()


def new_lines(broker: BrokerProcess, before: str) -> list[str]:
    """What the broker has logged since."""
    return broker.log()[len(before) :].splitlines()


# ---- bytes that are not AMQP, or wrong AMQP


@pytest.mark.parametrize(
    "said, condition",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", "amqp:connection:framing-error: this is not AMQP 1.0", id="http"),
        pytest.param(b"\x07" + bytes(range(256)), "amqp:connection:framing-error: this is not AMQP 1.0", id="random"),
        pytest.param(b"AMQP\x00\x00\x09\x01", "amqp:connection:framing-error: this is not AMQP 1.0", id="amqp-0-9-1"),
        pytest.param(
            HEADER + OPEN + b"\0\0\0\4\2\0\0\0", "amqp:connection:framing-error: a frame of 4 bytes", id="frame-too-short"
        ),
        pytest.param(
            HEADER + OPEN + b"\0\0\0\x10\1\0\0\0" + bytes(8), "amqp:connection:framing-error: a frame of 16", id="body-in-header"
        ),
        pytest.param(
            HEADER + OPEN + frame(bytes(MAX_FRAME)), "amqp:connection:framing-error: a frame of 32776", id="frame-too-large"
        ),
        pytest.param(
            HEADER + OPEN + b"\x7f\xff\xff\xff\2\0\0\0",
            "amqp:connection:framing-error: a frame of 2147483647",
            id="frame-of-2-GiB",
        ),
        pytest.param(
            HEADER + OPEN + performative(0x99), "amqp:decode-error: a frame cannot be decoded", id="unknown-performative"
        ),
        pytest.param(HEADER + OPEN + frame(b"\xff" * 9), "amqp:decode-error: a frame cannot be decoded", id="no-performative"),
        pytest.param(HEADER + OPEN + BEGIN[:-4], None, id="half-a-frame"),
        pytest.param(HEADER + OPEN + performative(0x14, ZERO), "amqp:not-allowed: no such channel: 0", id="no-session"),
        pytest.param(
            HEADER + OPEN + BEGIN + performative(0x14, ZERO),
            "amqp:session:window-violation: incoming",
            id="transfer-at-once",
        ),
    ],
)
def test_wrong_bytes_end_their_connection_with_a_condition(broker: BrokerProcess, said: bytes, condition: str | None) -> None:
    """Breaks when proton's silence at what it cannot decode is taken for patience: the client would wait for ever."""
    before = broker.log()
    with Wire(broker.port) as wire:
        wire.say(said)
        if condition is None:
            return  # it hangs up in the middle of a frame
        name, text = condition.split(": ", 1)
        words = wire.last_words()
        if said.startswith(HEADER):
            assert name.encode() in words
            assert text.encode() in words
        else:  # whoever speaks no AMQP 1.0 has no use for a condition of it; AMQP 0-9-1 is told what is spoken here
            assert words == (HEADER if said.startswith(b"AMQP") else b"")
    (line,) = [found[1] for each in new_lines(broker, before) if (found := _ENDED.search(each))]
    assert line.startswith(condition)


def test_a_client_that_speaks_tls_is_hung_up_on_and_the_log_says_why(broker: BrokerProcess) -> None:
    before = broker.log()
    context = ssl.create_default_context()
    with Wire(broker.port) as wire, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(wire.socket, server_hostname="localhost")
    found = eventually(lambda: new_lines(broker, before), bool, "a line in the log")
    assert len(found) == 1
    assert "if it is TLS: this port does not use TLS" in found[0]


def test_who_connects_and_says_nothing_is_dropped_when_the_time_for_it_is_over(broker: BrokerProcess) -> None:
    """Breaks when --max-negotiate-time has no effect: the default is five times as long."""
    before = broker.log()
    with Wire(broker.port) as silent, Wire(broker.port) as slow:
        slow.say(HEADER)
        assert silent.last_words() == b""
        assert slow.last_words().startswith(HEADER)
    assert [line.split(" ", 4)[4] for line in new_lines(broker, before)] == [f"is not open after {NEGOTIATE_S} s: dropped"] * 2


# ---- addresses and links


@pytest.mark.parametrize("make", ["create_sender", "create_receiver"])
def test_an_unknown_address_is_refused_with_what_to_do(broker: BrokerProcess, make: str) -> None:
    connection = BlockingConnection(broker.address, timeout=30)
    with pytest.raises(LinkDetached) as refused:
        getattr(connection, make)("no-such-queue")
    assert refused.value.condition == "amqp:not-found"
    assert "there is no queue and no exchange named 'no-such-queue'; create one with qpid-config add queue" in str(refused.value)
    connection.create_sender("others").close()  # the connection itself is none the worse
    connection.close()


class ManyLinks(MessagingHandler):
    """Opens `per_session` links on each of `sessions` sessions, and counts what became of them."""

    def __init__(self, address: str, sessions: int, per_session: int) -> None:
        super().__init__()
        self.address, self.sessions, self.per_session = address, sessions, per_session
        self.opened = 0
        self.refused: list[str] = []

    def on_start(self, event: Any) -> None:
        event.container.connect(self.address)

    def on_connection_opened(self, event: Any) -> None:
        for number in range(self.sessions):
            session = event.connection.session()
            session.open()
            for position in range(self.per_session):
                link = session.sender(f"{number}.{position}")
                link.target.address = "others"
                link.open()

    def on_link_opened(self, event: Any) -> None:
        if event.link.remote_target.address:
            self.opened += 1

    def on_link_error(self, event: Any) -> None:
        self.refused.append(str(event.link.remote_condition))
        if self.opened + len(self.refused) >= self.sessions * self.per_session:
            event.connection.close()


def test_links_beyond_the_limit_are_refused_and_the_others_stay(broker: BrokerProcess) -> None:
    sessions, beyond = 5, 4
    per_session = (limits.MAX_LINKS_PER_CONNECTION + beyond) // sessions
    client = ManyLinks(broker.address, sessions, per_session)
    Container(client).run()
    assert client.opened == limits.MAX_LINKS_PER_CONNECTION
    assert len(client.refused) == sessions * per_session - limits.MAX_LINKS_PER_CONNECTION
    assert all("amqp:resource-limit-exceeded" in each and "a connection may have 4096 links" in each for each in client.refused)


# ---- messages


def test_a_message_beyond_the_limit_detaches_its_link_and_nothing_else(broker: BrokerProcess) -> None:
    """The message comes in frames, so what was announced in vain is found when too much of it has come."""
    broker.create("queue", "sized")
    connection = BlockingConnection(broker.address, timeout=30)
    sender, other = connection.create_sender("sized"), connection.create_sender("sized", name="other")
    assert sender.link.remote_max_message_size == MAX_MESSAGE
    with pytest.raises(LinkDetached) as refused:
        sender.send(Message(body=bytes(MAX_MESSAGE + 1)))
    assert refused.value.condition == "amqp:link:message-size-exceeded"
    assert f"is larger than the {MAX_MESSAGE} bytes that this broker takes (--max-message-size)" in str(refused.value)
    other.send(Message(body=bytes(MAX_MESSAGE - 1000)))
    assert broker.queue("sized")["messages"] == 1
    connection.close()


class Flood(MessagingHandler):
    """Sends as long as it has credit, whatever happens to its messages, until `enough` have their outcome."""

    def __init__(self, address: str, queue: str, enough: int) -> None:
        super().__init__()
        self.address, self.queue, self.enough = address, queue, enough
        self.accepted = 0
        self.refused: list[str] = []

    def on_start(self, event: Any) -> None:
        event.container.create_sender(event.container.connect(self.address), self.queue)

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit:
            event.sender.send(Message(body="x"))

    def on_accepted(self, event: Any) -> None:
        self.accepted += 1
        self._count(event)

    def on_rejected(self, event: Any) -> None:
        self.refused.append(str(event.delivery.remote.condition))
        self._count(event)

    def _count(self, event: Any) -> None:
        if self.accepted + len(self.refused) >= self.enough:
            event.connection.close()


def test_a_flood_into_a_full_queue_is_refused_message_by_message(broker: BrokerProcess) -> None:
    """The queue never passes its limit, every message has an outcome, and latecomers get no credit until somebody consumes."""
    broker.create("queue", "small", arguments={"qpid.max_count": 100})
    flood = Flood(broker.address, "small", limits.CREDIT_WINDOW)
    Container(flood).run()
    assert flood.accepted == broker.queue("small")["messages"]
    assert 0 < flood.accepted <= 100
    assert flood.accepted + len(flood.refused) >= limits.CREDIT_WINDOW
    assert all(
        "amqp:resource-limit-exceeded" in each and "would pass its limit of 100 messages" in each for each in flood.refused
    )
    latecomer = BlockingConnection(broker.address, timeout=30)
    sender = latecomer.create_sender("small")
    with pytest.raises(ProtonException):  # it waits for credit
        sender.send(Message(body="y"), timeout=1)
    latecomer.close()
    connection = BlockingConnection(broker.address, timeout=30)
    receiver = connection.create_receiver("small", credit=100)
    for _ in range(flood.accepted):
        receiver.receive(30)
        receiver.accept()
    connection.create_sender("small").send(Message(body="z"))
    connection.close()


def rss_bytes(broker: BrokerProcess) -> int:
    """Resident memory of the process."""
    assert broker.process is not None
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{broker.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_a_client_that_never_reads_costs_no_more_memory_than_its_window(broker: BrokerProcess) -> None:
    """100,000 messages wait in the queue; who asks for all of them and reads none must not have them all encoded once more.

    Breaks when the broker sends whatever there is credit for: that would be as much again as the queue holds.
    """
    count, payload = 100_000, os.urandom(1000)
    message = b"\x00\x53\x75\xb0" + struct.pack(">I", len(payload)) + payload
    held = count * len(message)
    empty = rss_bytes(broker)
    broker.create("queue", "deep")
    with Peer(broker.port) as producer:
        producer.send(producer.sender("deep"), message, count)
        eventually(lambda: broker.queue("deep")["messages"], lambda found: found == count, "all messages waiting", 60)
    full = rss_bytes(broker)
    assert full - empty < 1.5 * held
    greedy = BlockingConnection(broker.address, timeout=30)
    greedy.create_receiver("deep", credit=count)

    def delivered() -> int:
        items = ask(broker.address, "QUERY", "subscription")["items"]
        return int(next(item["unacked"] for item in items if item["queue"] == "deep"))

    sent = eventually(lambda: (delivered(), delivered()), lambda two: two[0] == two[1] > 0, "the broker sending no more")
    assert sent[0] <= limits.MAX_UNSETTLED_PER_LINK
    assert rss_bytes(broker) - full < 3 * limits.MAX_UNSETTLED_PER_LINK * len(message)
    greedy.close()
    ask(broker.address, "DELETE", "queue", "deep")


def test_a_client_that_asks_for_its_credit_again_and_again_is_answered_a_few_times(broker: BrokerProcess) -> None:
    """Breaks when each of 100,000 flows with `echo` is answered, or none is."""
    before = rss_bytes(broker)
    with Wire(broker.port) as wire:
        wire.say(HEADER + OPEN + BEGIN + attach_to("others") + echo() * 100_000 + CLOSE)
        told = [each for each in flows(wire.last_words().removeprefix(HEADER)) if each.handle is not None]
    assert set(told) == {Flow(0, 0, 0, limits.CREDIT_WINDOW, False)}
    assert 2 <= len(told) < 5_000, "one gives the credit"
    assert rss_bytes(broker) - before < 20_000_000


# ---- strangers


def test_a_hundred_strangers_with_sixty_thousand_values_each_cost_next_to_nothing(broker: BrokerProcess) -> None:
    """Breaks when proton decodes an Open before its values are bounded: 100 of these took 838 MB and 2.3 s of the processor."""
    before = rss_bytes(broker)
    said = HEADER + SIXTY_KB_OF_EMPTY_LISTS
    wires = [Wire(broker.port) for _ in range(100)]
    for wire in wires:
        wire.say(said)
    for wire in wires:
        wire.last_words()  # the broker ends the connection, with a reset if it has not read all
    assert rss_bytes(broker) - before < 20_000_000
    for wire in wires:
        wire.socket.close()


# ---- too many connections


def test_clients_beyond_the_limit_are_told_and_administrators_come_in_all_the_same(tmp_path: Path) -> None:
    with standalone(tmp_path, "--max-connections", "3") as small:
        small.create("queue", "q")
        clients = [BlockingConnection(small.address, timeout=30) for _ in range(3)]
        with pytest.raises(
            ProtonException, match=r"amqp:resource-limit-exceeded.*serves 3 connections at once \(--max-connections\)"
        ):
            BlockingConnection(small.address, timeout=30)
        assert small.state() == "standalone"  # asked over an administrator's connection
        clients.pop().close()
        clients.append(BlockingConnection(small.address, timeout=30))
        for client in clients:
            client.create_sender("q").send(Message(body="still here"))
            client.close()
        assert small.queue("q")["messages"] == 3


def test_sockets_beyond_the_spare_ones_are_closed_at_once(tmp_path: Path) -> None:
    """However many come, the broker keeps no more than so many, and those that it serves are not disturbed."""
    with standalone(tmp_path, "--max-connections", "1") as small:
        small.create("queue", "q")
        client = BlockingConnection(small.address, timeout=30)
        wires = [Wire(small.port) for _ in range(limits.SPARE_CONNECTIONS + 5)]
        assert [wire.last_words() for wire in wires[-5:]] == [b""] * 5
        client.create_sender("q").send(Message(body="still here"))
        for wire in wires:
            wire.socket.close()
        eventually(lambda: small.queue("q")["messages"], lambda count: count == 1, "an administrator coming in again")
        client.close()


def test_a_forged_peer_is_refused_by_a_broker_that_is_in_no_cluster(broker: BrokerProcess) -> None:
    with (
        Peer(broker.port, {"qpid.ha-peer": "127.0.0.1:1"}) as forged,
        pytest.raises(AssertionError, match="this broker is not in a cluster"),
    ):
        assert isinstance(forged.sender("$ha"), Sender)


def test_a_rejected_message_says_why_to_a_blocking_client_too(broker: BrokerProcess) -> None:
    """Without a target address each message must name its own."""
    connection = BlockingConnection(broker.address, timeout=30)
    anonymous = connection.create_sender(None)
    with pytest.raises(SendException):
        anonymous.send(Message(address="nowhere"))
    anonymous.send(Message(address="others", id="drain"))
    receiver = connection.create_receiver("others")
    assert receiver.receive(30).id == "drain"
    receiver.accept()
    connection.close()
