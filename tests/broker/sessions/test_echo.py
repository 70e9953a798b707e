"""A client asks for the state of a session or of a link: flows with `echo` (AMQP 1.0 part 2.7.4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import proton
import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from broker.core import limits
from broker.core.door import HEADER
from broker.core.identity import Socket
from tests.broker.clients import Bench, bench, one_turn
from tests.broker.core.stream import (
    BEGIN,
    CLOSE,
    END,
    FALSE,
    NULL,
    OPEN,
    TRUE,
    ZERO,
    attach_to,
    echo,
    flow,
    frame,
    performative,
    transfer,
    uint,
)

ATTACH, FLOW = 0x12, 0x13
SESSION = echo(handle=NULL)
OTHER_BEGIN = frame(BEGIN[8:], channel=3)
CREDIT = limits.CREDIT_WINDOW


class Flow(NamedTuple):
    """What a flow of the broker says of a link, or only of its session."""

    channel: int
    handle: int | None = None
    delivery_count: int | None = None
    credit: int | None = None
    drain: bool | None = None


def said(data: bytes) -> Iterator[tuple[int, int, list[Any]]]:
    """Channel, code and fields of every frame."""
    while data:
        nbytes, offset = int.from_bytes(data[:4], "big"), 4 * data[4]
        body: Any = proton.Data()
        body.decode(data[offset:nbytes])
        body.rewind()
        body.next()
        described = body.get_py_described()
        yield int.from_bytes(data[6:8], "big"), int(described.descriptor), described.value
        data = data[nbytes:]


def flows(data: bytes) -> list[Flow]:
    found = []
    for channel, code, fields in said(data):
        if code == FLOW:
            assert fields[1] > 0, "the window is open"
            if len(fields) > 4:
                handle, count, credit, _, drain = fields[4:]
                found.append(Flow(channel, int(handle), int(count), int(credit), drain))
            else:
                found.append(Flow(channel))
    return found


class Caller:
    """A client that says frame by frame what a test tells it."""

    def __init__(self, b: Bench, first: bytes = OPEN) -> None:
        self.bench = b
        found = b.broker.new_connection(Socket("192.0.2.7:1"))
        assert found is not None
        self.server = found
        self.socket = StringTransport()
        self.server.makeConnection(self.socket)
        self.say(HEADER, first, BEGIN)
        self.socket.clear()

    def say(self, *reads: bytes) -> None:
        for read in reads:
            self.server.dataReceived(read)
            self.bench.settle()

    def heard(self) -> bytes:
        data = bytes(self.socket.value())
        self.socket.clear()
        return data

    def hears(self, *reads: bytes) -> list[Flow]:
        """The flows that come when it says this."""
        self.socket.clear()
        self.say(*reads)
        return flows(self.heard())

    def attach(self, count: int = 1, channel: int = 0) -> None:
        """Links to the queue "q" with the handles from 0 on, which have their credit."""
        found = self.hears(*(attach_to("q", handle, channel) for handle in range(count)))
        assert [each[1:] for each in found] == [(handle, 0, CREDIT, False) for handle in range(count)]


def asks_for(*handles: int) -> bytes:
    return b"".join(echo(handle=b"\x52" + bytes((handle,))) for handle in handles)


@contextmanager
def caller(b: Bench, first: bytes = OPEN) -> Iterator[Caller]:
    made = Caller(b, first)
    yield made
    made.server.connectionLost(Failure(ConnectionDone()))


def test_a_producer_that_asks_is_told_its_credit_and_what_has_come_of_it() -> None:
    with bench() as b, caller(b) as client:
        b.queue("q")
        client.attach(2)
        for each in (echo(), echo(wide=True), echo(TRUE, NULL), echo(b"\x56\x01")):
            assert client.hears(each) == [Flow(0, 0, 0, CREDIT, False)]
        client.say(*(transfer(b"\x00\x53\x77\xa1\x01x", number=number, settled=True, more=False) for number in range(3)))
        assert b.depth("q") == 3
        assert client.hears(flow(uint(3), ZERO, NULL, FALSE, TRUE)) == [Flow(0, 0, 3, CREDIT, False)]
        assert client.hears(echo(handle=b"\x52\x01")) == [Flow(0, 1, 0, CREDIT, False)]
        assert client.hears(flow(uint(3), ZERO), flow(uint(3), ZERO, NULL, FALSE, FALSE)) == [], "these do not ask"


def test_who_has_no_credit_because_a_queue_is_full_is_told_so_and_gets_none_by_asking() -> None:
    """Breaks when the answer is a flow that is made by giving credit for a moment."""
    with bench() as b, caller(b) as client:
        b.queue("q", arguments={"qpid.flow_stop_count": 2})
        other = b.client()
        other.send(other.sender("q"), *range(3))
        assert client.hears(attach_to("q")) == []
        assert client.hears(echo(), echo()) == [Flow(0, 0, 0, 0, False)] * 2
        other.receiver("q", 3)
        b.pass_time(1)
        assert flows(client.heard()) == [Flow(0, 0, 0, CREDIT, False)]


def test_a_flow_without_a_handle_asks_for_its_session_and_is_told_no_other_s() -> None:
    with bench() as b, caller(b) as client:
        b.queue("q")
        client.attach()
        client.say(OTHER_BEGIN)
        client.attach(channel=3)
        assert client.hears(SESSION) == [Flow(0)]
        assert client.hears(echo(handle=NULL, channel=3)) == [Flow(1)], "its channel is 1 on this side"
        assert client.hears(echo(channel=3) + SESSION) == [Flow(1, 0, 0, CREDIT, False), Flow(0)]
        assert client.hears(END, echo(handle=NULL, channel=3)) == [Flow(1)]


def test_one_answer_is_enough_for_all_that_is_asked_at_once() -> None:
    with bench() as b, caller(b) as client:
        b.queue("q")
        client.attach(5)
        found = client.hears((asks_for(4, 1, 3) + SESSION) * 20)
        assert found == [*(Flow(0, handle, 0, CREDIT, False) for handle in (4, 1, 3)), Flow(0)]


def test_the_states_of_many_links_are_all_told_whatever_fits_into_a_buffer() -> None:
    """Breaks when proton is told of the next one before it has written the one before: it says one of them. Its buffer does not
    grow for a client that takes small frames."""
    count, small_frames = 250, performative(0x10, b"\xa1\x01c", NULL, uint(512))
    with bench() as b, caller(b, small_frames) as client:
        b.queue("q")
        client.attach(count)
        client.socket.clear()
        client.server.pauseProducing()
        for start in range(0, count, 10):
            client.say(asks_for(*range(start, start + 10)))
        assert client.heard() == b"", "its socket is full"
        client.server.resumeProducing()
        assert sorted(flows(client.heard())) == [Flow(0, handle, 0, CREDIT, False) for handle in range(count)]


def test_who_does_not_read_may_ask_as_often_as_it_likes() -> None:
    """Breaks when each question leaves an answer in memory."""
    with bench() as b, caller(b) as client:
        b.queue("q")
        client.attach()
        client.server.pauseProducing()
        client.say(*[(echo() + SESSION) * 100] * 20)
        assert client.heard() == b""
        client.server.resumeProducing()
        assert len(flows(client.heard())) == 2


def test_a_link_that_is_asked_for_ahead_of_its_attach_is_told_of_behind_it() -> None:
    with bench() as b, caller(b) as client:
        b.queue("q", arguments={"qpid.flow_stop_count": 2})
        other = b.client()
        other.send(other.sender("q"), *range(3))
        client.say(attach_to("q") + echo())
        data = client.heard()
        assert [code for _, code, _ in said(data)] == [ATTACH, FLOW]
        assert flows(data) == [Flow(0, 0, 0, 0, False)]


def test_a_link_that_is_asked_for_while_its_attach_waits_is_told_of_when_that_has_been_answered() -> None:
    with bench(queue_patterns=("*",), automatic=False) as b, caller(b) as client:
        client.say(attach_to("q") + echo())
        assert client.heard() == b"", "its queue is made first"
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        data = client.heard()
        assert [code for _, code, _ in said(data)] == [ATTACH, FLOW, FLOW]
        assert flows(data) == [Flow(0, 0, 0, CREDIT, False)] * 2, "one of them gives the credit"


@pytest.mark.parametrize(
    "end", [performative(0x16, ZERO, TRUE), performative(0x16, ZERO), END, CLOSE], ids=["closed", "detached", "ended", "close"]
)
def test_what_has_ended_meanwhile_is_told_nothing_of(end: bytes) -> None:
    """Breaks when a flow follows a detach, an end or a close, or is of a link that is freed."""
    with bench() as b, caller(b) as client:
        b.queue("q")
        client.attach()
        assert client.hears(echo() + end) == []
        if end not in (END, CLOSE):
            assert client.hears(SESSION) == [Flow(0)]


def test_an_ended_session_is_told_nothing_of_and_a_new_one_on_its_channel_is() -> None:
    with bench() as b, caller(b) as client:
        assert client.hears(SESSION + END) == []
        assert client.hears(BEGIN) == [Flow(0)], "proton says the window of a new session by a flow too"
        assert client.hears(SESSION) == [Flow(0)]


def test_a_client_cannot_give_a_session_a_second_channel() -> None:
    """Breaks when proton reports the session once for several such begins: then the channels of later sessions would be those of
    earlier ones, each more would stay in memory, and an ended session could be asked for."""
    with bench() as b, caller(b) as client:
        for channel in (5, 6, 7):
            client.say(performative(0x11, b"\x60\x00\x00", ZERO, uint(100), uint(100), channel=channel))
        (condition,) = [fields[0] for _, code, fields in said(client.heard()) if code == 0x18]
        assert condition.value[0] == "amqp:not-allowed"
        assert len(client.server.engine.later._sessions) == 1


def test_links_that_came_and_went_are_not_kept_for_an_answer() -> None:
    """Breaks when a client that reads nothing has each link remembered whose state it has asked for."""
    with bench() as b, caller(b) as client:
        b.queue("q")
        client.server.pauseProducing()
        for _ in range(20):
            client.say(attach_to("q") + echo(), performative(0x16, ZERO, TRUE))
        client.say(attach_to("q", 1) + asks_for(1), END)
        assert not client.server.engine.later._asked


def test_a_consumer_that_asks_is_answered_at_the_end_of_a_drain_alone() -> None:
    """proton cannot be made to say the state of a sending link, and counting along with it could go wrong."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.receiver("q", 100)
        client.say(echo() * 50)
        assert flows(client.socket.value()) == []
        client.say(SESSION)
        assert flows(client.socket.value()) == [Flow(0)]
        client.socket.clear()
        client.say(flow(ZERO, b"\x52\x64", NULL, TRUE, TRUE))
        assert flows(client.socket.value()) == [Flow(0, 0, 100, 0, True)]


def test_answers_have_the_share_of_a_turn_that_links_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when questions make a turn of the reactor as long as a client likes."""
    count = 40
    with bench() as b, caller(b) as client:
        b.queue("q")
        client.attach(count)
        b.pass_time(1)
        monkeypatch.setattr(limits, "SHARE_TURN_S", 0.0)
        client.server.dataReceived(asks_for(*range(count)))
        told = [len(flows(client.heard()))]
        while sum(told) < count:
            assert client.socket.producerState == "paused", "nothing more is read of it"
            one_turn(b.clock)
            told.append(len(flows(client.heard())))
        assert told[0] == 1
        assert max(told) == limits.LINKS_AT_ONCE + 1
        assert client.socket.producerState == "producing"
