"""Producers whose flows say that they have used credit up without messages, as they may (AMQP 1.0 part 2.6.7)."""

from __future__ import annotations

import pytest

from tests.broker.clients import bench
from tests.broker.core.stream import FALSE, NULL, TRUE, ZERO, flow, transfer, uint
from tests.broker.sessions.test_echo import CREDIT, Caller, Flow, caller, flows, said

DETACH = 0x16
ONE = b"\x00\x53\x77\xa1\x01x"


def messages(first: int, count: int) -> list[bytes]:
    return [transfer(ONE, number=number, settled=True, more=False) for number in range(first, first + count)]


def counted(delivery_count: bytes, *more: bytes) -> bytes:
    """A producer's flow."""
    return flow(delivery_count, ZERO, *more)


def ends(client: Caller) -> list[tuple[str, str]]:
    """Name and text of the conditions with which links were ended."""
    found = [fields[2].value for _, code, fields in said(client.heard()) if code == DETACH]
    return [(str(name), text) for name, text, *_ in found]


def test_credit_that_a_producer_has_used_up_without_messages_comes_back() -> None:
    """Breaks when a producer that does so again and again has no credit in the end, and waits for ever."""
    with bench() as b, caller(b) as client:
        b.queue("q")
        client.attach()
        count = 0
        for skipped in (1, CREDIT // 2, CREDIT, CREDIT):
            count += skipped
            assert client.hears(counted(uint(count)))[-1:] == [Flow(0, 0, count, CREDIT, False)]
        client.say(*messages(0, 3))
        count += 3
        assert client.hears(counted(uint(count), NULL, FALSE, TRUE)) == [Flow(0, 0, count, CREDIT, False)]
        assert b.depth("q") == 3
        client.say(*messages(3, CREDIT))
        assert (b.depth("q"), ends(client)) == (CREDIT + 3, [])


def test_a_producer_may_not_use_more_credit_up_than_it_has() -> None:
    with bench() as b, caller(b) as client:
        b.queue("q")
        client.attach()
        client.say(counted(uint(CREDIT + 7)))
        ((name, text),) = ends(client)
        assert (name, text[:10]) == ("amqp:link:transfer-limit-exceeded", "7 messages")


def test_credit_that_was_used_up_waits_as_any_other_while_the_queue_is_full() -> None:
    with bench() as b, caller(b) as client:
        b.queue("q", arguments={"qpid.flow_stop_count": 2, "qpid.flow_resume_count": 1})
        client.attach()
        client.say(*messages(0, 3))
        found = client.hears(counted(uint(100), NULL, FALSE, TRUE))
        assert found == [Flow(0, 0, 100, CREDIT - 98, False)], "two came back before the queue was full"
        client.socket.clear()
        b.client().receiver("q")
        b.pass_time(0.5)
        assert flows(client.heard()) == [Flow(0, 0, 100, CREDIT, False)]


@pytest.mark.parametrize("count", [NULL, ZERO, uint(3), uint(0xFFFFFFFF)])
def test_a_delivery_count_that_is_lower_than_before_or_missing_ends_the_link(count: bytes) -> None:
    """Breaks when proton tells the producer of more credit than it has, and of less after that."""
    with bench() as b, caller(b) as client:
        b.queue("q")
        client.attach()
        client.say(*messages(0, 5))
        client.say(counted(count))
        ((name, text),) = ends(client)
        assert name == "amqp:invalid-field"
        assert "delivery-count" in text
        assert b.depth("q") == 5


def test_a_producer_that_counts_a_message_at_its_end_may_send_a_flow_in_its_midst() -> None:
    with bench() as b, caller(b) as client:
        b.queue("q")
        client.attach()
        client.say(*messages(0, 2))
        first, last = transfer(ONE[:4], number=2, settled=True), transfer(ONE[4:], number=2, settled=True, more=False)
        client.say(first, counted(uint(2)), last)
        assert client.hears(counted(uint(3), NULL, FALSE, TRUE)) == [Flow(0, 0, 3, CREDIT, False)]
        client.say(counted(uint(3)), *messages(3, 1))
        assert (b.depth("q"), ends(client)) == (4, [])
