"""What clients together, and a client on all of its links, may have the broker keep."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from broker.core import limits
from broker.core.limits import KIB, MIB
from tests.broker.clients import ACCEPTED, Bench, Client, bench, condition, request, statuses
from tests.broker.core.queues.files import calls_of
from tests.broker.core.stream import BEGIN, frame


def begin(client: Client, address: str, nbytes: int) -> Any:
    """Send so much of a message that does not end."""
    link = client.sender(address)
    link.delivery("unfinished")
    link.stream(b"\x00\x53\x75\xb0" + (1 << 30).to_bytes(4, "big") + bytes(nbytes))
    client.bench.settle()
    return link


def mailbox(b: Bench) -> str:
    """The address of one: it takes messages that are whole, so that an unfinished one stays in memory."""
    return str(b.client().receiver(None, dynamic=True).remote_source.address)


def test_unfinished_messages_of_all_connections_have_a_bound_and_who_has_most_of_them_has_to_go() -> None:
    """Breaks when many connections that keep within their own bound take all memory together."""
    with bench(message_memory=32 * MIB) as b:
        address, clients = mailbox(b), [b.client() for _ in range(4)]
        for client, nbytes in zip(clients, (2 * MIB, 3 * MIB, MIB, 2 * MIB + MIB // 2), strict=True):
            begin(client, address, nbytes)
        assert [condition(client.connection) for client in clients] == ["", "amqp:resource-limit-exceeded", "", ""]
        assert (
            "the unfinished messages of all connections may take 8388608 bytes"
            in clients[1].connection.remote_condition.description
        )
        admission = b.broker.admission
        assert sum(client.server.engine.gathering.nbytes for client in clients) == admission._unfinished.nbytes < 6 * MIB
        for client in clients:
            client.lose()
        assert admission._unfinished.nbytes == 0


def test_what_can_go_to_the_log_goes_there_before_anybody_has_to_go() -> None:
    with bench(message_memory=32 * MIB) as b:
        b.queue("q")
        address, clients, uploader = mailbox(b), [b.client() for _ in range(2)], b.client()
        for client in clients:
            begin(client, address, 4 * MIB - 50 * KIB)
        for number in range(8):
            link = uploader.sender("q", name=f"to-q-{number}")
            link.delivery("unfinished")
            link.stream(b"\x00\x53\x75\xb0" + (1 << 30).to_bytes(4, "big") + bytes(100 * KIB))
            b.settle()
        assert [condition(each.connection) for each in (*clients, uploader)] == ["", "", ""]
        assert uploader.server.engine.gathering.nbytes < 200 * KIB


def test_a_client_that_does_not_read_is_sent_no_more_than_a_bound_over_all_of_its_links_and_sessions() -> None:
    """Breaks when each of 256 sessions may have its own megabyte of output in memory."""
    with bench() as b:
        b.queue("q")
        sender = (producer := b.client()).sender("q")
        producer.send(sender, *([bytes(100 * KIB)] * 120))
        client = b.client()
        client.server.pauseProducing()  # its socket is full
        engine, receivers = client.server.engine, []
        for number in range(10):
            session = client.connection.session()
            session.incoming_capacity = 1 << 30
            session.open()
            link = session.receiver(f"r{number}")
            link.source.address = "q"
            link.open()
            link.flow(1000)
            receivers.append(link)
            client.received[link.name] = []
        b.settle()
        assert limits.MAX_SENT_BYTES < engine.sent_bytes < limits.MAX_SENT_BYTES + 2 * MIB
        client.server.resumeProducing()
        b.settle()
        assert sum(len(client.received[link.name]) for link in receivers) == 120
        assert engine.sent_bytes < limits.MAX_SENT_BYTES


def test_large_messages_go_out_a_few_at_a_time_to_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a client with four thousand links has as many large messages read ahead into memory."""
    monkeypatch.setattr(limits, "LARGE_AT_ONCE", 3)
    with bench(part_bytes=4 * KIB) as b:
        b.queue("q")
        sender = (producer := b.client()).sender("q")
        producer.send(sender, *([bytes(100 * KIB)] * 8))
        client = b.client()
        links = [client.receiver("q", 0, name=f"r{number}") for number in range(8)]
        client.server.pauseProducing()
        for link in links:
            link.flow(1)
        b.settle()
        session: Any = client.server.session
        assert session.large == 3
        client.server.resumeProducing()
        b.settle()
        assert sum(len(client.received[link.name]) for link in links) == 8
        assert session.large == 0


def test_answers_wait_in_their_mailbox_while_their_client_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a client that asks and asks, and reads nothing, has all the answers kept in the output."""
    monkeypatch.setattr(limits, "MAX_OUTPUT_BYTES", 10 * KIB)
    monkeypatch.setattr(limits, "MAILBOXES_BYTES", 50 * KIB)
    with bench() as b:
        for number in range(10):
            b.queue(f"q{number}")
        clients = [b.client() for _ in range(2)]
        for client in clients:
            reply = client.receiver(None, credit=10_000, dynamic=True)
            link, numbers = client.sender("$management"), count()
            client.server.pauseProducing()
            for _ in range(20):
                data = request("QUERY", "queue", "", reply.remote_source.address, next(numbers))
                client.server.dataReceived(_wire(client, link, data))
                b.settle()
        boxes = b.broker.mailboxes
        assert 40 * KIB < boxes.nbytes <= 50 * KIB
        assert all(client.server.engine.sent_bytes < 20 * KIB for client in clients)
        clients[0].server.resumeProducing()
        b.settle()
        assert boxes.nbytes < 40 * KIB
        for client in clients:
            client.lose()
        assert boxes.nbytes == 0


def test_answers_about_tokens_make_room_like_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when clients that take no answers about their bad tokens use up the room, and the answers of others are dropped."""
    monkeypatch.setattr(limits, "MAILBOXES_BYTES", 10 * KIB)
    with bench() as b:
        innocent, boxes = b.client(), b.broker.mailboxes
        reply = innocent.receiver(None, credit=0, dynamic=True)
        asking = innocent.sender("$management")
        strangers = [b.client() for _ in range(4)]
        for client in strangers:
            client.receiver("$cbs", credit=0)
            sender = client.sender("$cbs")
            for number in range(20):
                client.send(sender, "no token", id=f"{number:0200}")
            assert statuses(client, sender) == [ACCEPTED] * 20
        assert 9 * KIB < boxes.nbytes <= 10 * KIB
        data = request("QUERY", "broker", "", reply.remote_source.address, 7)
        innocent.send_encoded(asking, data)
        assert statuses(innocent, asking) == [ACCEPTED]
        assert boxes.nbytes <= 10 * KIB
        for client in strangers:
            client.lose()
        reply.flow(1)
        b.settle()
        ((_, answer),) = innocent.received[reply.name]
        assert answer.correlation_id == 7
        assert boxes.nbytes == 0


def test_small_answers_count_with_the_memory_that_each_of_them_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when many messages of a few bytes take twenty times the memory that is counted."""
    with bench() as b:
        client = b.client()
        reply = client.receiver(None, credit=0, dynamic=True)
        sender, boxes = (other := b.client()).sender(reply.remote_source.address, name="s"), b.broker.mailboxes
        tiny = b"\x00\x53\x77\x40"
        other.send_encoded(sender, *[tiny] * 10)
        assert boxes.nbytes == 10 * (len(tiny) + limits.MAILBOX_MESSAGE_BYTES)
        monkeypatch.setattr(limits, "MAILBOX_BYTES", 20 * (len(tiny) + limits.MAILBOX_MESSAGE_BYTES))
        other.send_encoded(sender, *[tiny] * 20)
        assert boxes.nbytes == limits.MAILBOX_BYTES
        reply.flow(100)
        b.settle()
        assert len(client.received[reply.name]) == 20
        assert boxes.nbytes == 0


def test_the_fullest_mailboxes_make_room_and_those_with_half_as_much_keep_what_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAILBOXES_BYTES", 64 * KIB)
    with bench() as b:
        client, other = b.client(), b.client()
        replies = [client.receiver(None, name=f"r{n}", credit=0, dynamic=True) for n in range(3)]
        senders = [other.sender(reply.remote_source.address, name=f"s{n}") for n, reply in enumerate(replies)]
        for sender, n_messages in zip(senders, (200, 300, 10), strict=True):
            for number in range(n_messages):
                other.send(sender, f"{number:0100}")
        assert 63 * KIB < b.broker.mailboxes.nbytes <= 64 * KIB
        for reply in replies:
            reply.flow(1000)
        b.settle()
        got = [[int(answer.body) for _, answer in client.received[reply.name]] for reply in replies]
        assert [numbers[-1] for numbers in got] == [199, 299, 9]
        assert got == [list(range(numbers[0], numbers[-1] + 1)) for numbers in got], "the oldest go first"
        assert len(got[2]) == 10
        assert len(got[0]) < 2 * len(got[1]) < 4 * len(got[0])
        assert b.broker.mailboxes.nbytes == 0


def test_a_message_costs_the_same_however_many_mailboxes_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when for each dropped message all mailboxes are compared: the reactor stands while one client fills its own."""

    def calls(n_mailboxes: int) -> int:
        with bench() as b:
            client, other = b.client(), b.client()
            replies = [client.receiver(None, name=f"r{n}", credit=0, dynamic=True) for n in range(n_mailboxes)]
            senders = [other.sender(reply.remote_source.address, name=f"s{n}") for n, reply in enumerate(replies)]
            monkeypatch.setattr(limits, "MAILBOXES_BYTES", MIB)
            for sender in senders:
                other.send(sender, *["x" * 100] * 4)
            monkeypatch.setattr(limits, "MAILBOXES_BYTES", b.broker.mailboxes.nbytes)
            n_calls = calls_of(lambda: other.send(senders[0], *["x" * 100] * 20))
            assert b.broker.mailboxes.nbytes <= limits.MAILBOXES_BYTES
        return n_calls

    few, many = calls(5), calls(105)
    assert many < few + 200, "each of the 20 messages would cost 100 more"


@pytest.mark.parametrize("by", ["detach", "end", "loss"])
def test_what_is_sent_to_a_mailbox_that_has_gone_is_not_kept(by: str) -> None:
    """Breaks when links to it fill the room for the answers of all clients, which nobody can take any more."""
    with bench() as b:
        client = b.client()
        reply = client.receiver(None, credit=0, dynamic=True)
        sender = (other := b.client()).sender(reply.remote_source.address)
        other.send(sender, "one")
        assert b.broker.mailboxes.nbytes > 0
        if by == "detach":
            reply.close()
        elif by == "end":
            client.session.close()
        else:
            client.lose()
        b.settle()
        assert b.broker.mailboxes.nbytes == 0
        other.send(sender, "two")
        assert statuses(other, sender) == [ACCEPTED] * 2
        assert b.broker.mailboxes.nbytes == 0


def test_a_session_too_many_ends_the_connection() -> None:
    with bench() as b:
        client = b.client()
        assert client.transport.remote_channel_max == limits.MAX_SESSIONS_PER_CONNECTION - 1
        client.server.dataReceived(frame(BEGIN[8:], channel=limits.MAX_SESSIONS_PER_CONNECTION))
        b.settle()
        assert condition(client.connection) == "amqp:connection:framing-error"


def test_a_subscription_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CONSUMERS_PER_QUEUE", 2)
    with bench() as b:
        b.queue("q")
        links = [b.client().receiver("q") for _ in range(3)]
        assert [condition(link) for link in links] == ["", "", "amqp:resource-limit-exceeded"]


def _wire(client: Client, link: Any, data: bytes) -> bytes:
    """The frames of a message of this client's."""
    client.send_encoded(link, data, settle=False)
    waiting = client.transport.pending()
    found = bytes(client.transport.peek(waiting))
    client.transport.pop(waiting)
    return found
