"""The engine against itself and against proton's own client: batches, refusals, limits, and peers that do not behave."""

from __future__ import annotations

import struct
from typing import Any

import proton
import pytest

from broker.amqp.engine import Engine
from broker.amqp.links import ACCEPTED, MODIFIED, REJECTED, RELEASED, Condition, Link, Receiver, Sender
from broker.core import limits

HEADER = b"AMQP\x00\x01\x00\x00"


class Side:
    """A listener that keeps what it is told; `server` attaches every link and grants credit."""

    def __init__(self, *, server: bool, credit: int = 100, **options: Any) -> None:
        self.engine = Engine(self, server=server, container="server" if server else "client", **options)
        self.credit = credit
        self.open_at_once = True
        self.refusal: Condition | None = None
        self.links: list[Link] = []
        self.batches: list[tuple[str, list[bytes], list[Any]]] = []
        self.outcomes: list[list[tuple[Any, int, bool]]] = []
        self.credits: list[int] = []
        self.gone: list[str] = []
        self.closed: list[str] = []
        self.free_on_messages = False

    @property
    def messages(self) -> list[bytes]:
        return [data for _, batch, _ in self.batches for data in batch]

    def on_open(self, engine: Engine) -> None:
        if self.open_at_once:
            engine.open()

    def on_link(self, engine: Engine, link: Link) -> None:
        self.links.append(link)
        if self.refusal is not None:
            link.refuse(self.refusal)
            return
        link.accept(max_message_size=engine.max_message_bytes)
        if isinstance(link, Receiver):
            link.flow(self.credit)

    def on_link_open(self, engine: Engine, link: Link) -> None:
        self.links.append(link)

    def on_messages(self, engine: Engine, link: Receiver) -> None:
        batch, deliveries = link.inbox, link.inbox_deliveries
        link.inbox, link.inbox_deliveries = [], []
        self.batches.append((link.name, batch, deliveries))
        if self.free_on_messages:
            engine.free()

    def on_outcomes(self, engine: Engine, link: Sender) -> None:
        came, link.outcomes = link.outcomes, []
        self.outcomes.append([(key, outcome, bool(settled)) for _, key, outcome, settled in came])
        link.settle([delivery for delivery, _, _, _ in came])

    def on_credit(self, engine: Engine, link: Sender) -> None:
        self.credits.append(link.credit)

    def on_link_closed(self, engine: Engine, link: Link) -> None:
        assert link.open, "the listener may still look at what is on the link"
        self.gone.append(link.name)

    def on_close(self, engine: Engine, reason: str) -> None:
        self.closed.append(reason)


class Pair:
    """Two engines joined in memory."""

    def __init__(self, **options: Any) -> None:
        self.server = Side(server=True, **options)
        self.client = Side(server=False)
        self.client.open_at_once = False
        self.client.engine.open(hostname="here")
        self.session = self.client.engine.new_session()
        self.settle()

    def settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for one, other in ((self.client, self.server), (self.server, self.client)):
                for piece in one.engine.take_output():
                    moved = True
                    other.engine.push(piece)
                    other.engine.drain()

    def sender(self, name: str = "link", target: str = "q") -> Sender:
        link = self.client.engine.attach_sender(self.session, name, target)
        self.settle()
        return link


class Proton:
    """proton's own Connection and Transport, joined to a server engine."""

    def __init__(self, *, frame: int = 1 << 16, **options: Any) -> None:
        self.server = Side(server=True, **options)
        self.connection: Any = proton.Connection()
        self.connection.container = "python"
        self.transport: Any = proton.Transport()
        self.transport.max_frame_size = frame
        self.transport.sasl().allowed_mechs("ANONYMOUS")
        self.transport.bind(self.connection)
        self.session: Any = self.connection.session()
        self.tag = 0

    def open(self) -> Proton:
        self.connection.open()
        self.session.open()
        self.settle()
        return self

    def settle(self) -> None:
        while self.to_server(self.output()) | self.from_server():
            pass

    def output(self) -> bytes:
        found = b""
        while (waiting := self.transport.pending()) > 0:
            found += self.transport.peek(waiting)
            self.transport.pop(waiting)
        return found

    def to_server(self, data: bytes) -> bool:
        """All of it in one push."""
        self.server.engine.push(data)
        self.server.engine.drain()
        return bool(data)

    def from_server(self) -> bool:
        pieces = self.server.engine.take_output() if self.server.engine.alive else []
        data = b"".join(pieces)
        while data and (room := self.transport.capacity()) > 0:
            self.transport.push(data[:room])
            data = data[room:]
        return bool(pieces) and not data

    def sender(self, name: str = "s", *, presettled: bool = False, session: Any = None) -> Any:
        link = (session or self.session).sender(name)
        link.target.address = "q"
        link.snd_settle_mode = proton.Link.SND_SETTLED if presettled else proton.Link.SND_UNSETTLED
        link.open()
        self.settle()
        return link

    def receiver(self, name: str = "r", credit: int = 0) -> Any:
        link = self.session.receiver(name)
        link.source.address = "q"
        link.open()
        if credit:
            link.flow(credit)
        self.settle()
        return link

    def send(self, link: Any, data: bytes, tag: str = "") -> Any:
        self.tag += 1
        delivery = link.delivery(tag or f"t{self.tag}")
        link.stream(data)
        link.advance()
        return delivery

    def out(self, name: str) -> Sender:
        """The server's end of one of our receivers."""
        return next(link for link in self.server.links if isinstance(link, Sender) and link.name == name)

    def into(self, name: str) -> Receiver:
        """The server's end of one of our senders."""
        return next(link for link in self.server.links if isinstance(link, Receiver) and link.name == name)


def frame(channel: int, body: bytes) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, 0, channel) + body


# ---- two engines


def test_two_engines_open_attach_and_send_by_the_batch() -> None:
    pair = Pair()
    link = pair.sender()
    assert pair.server.engine.remote_container == "client"
    assert [each.name for each in pair.server.links] == [each.name for each in pair.client.links] == ["link"]
    assert pair.server.links[0].target.address == "q"
    assert pair.server.links[0].presettled
    assert pair.client.credits[-1] == link.credit == 100
    data = b"onetwothree"
    link.send(data, (0, 3, 6, 11), 0, 3, range(3), True)
    link.send(data, (0, 3, 6, 11), 1, 2, range(1), True)
    pair.settle()
    ((name, messages, deliveries),) = pair.server.batches
    assert (name, messages, deliveries) == ("link", [b"one", b"two", b"three", b"two"], [None] * 4)
    assert pair.server.engine.messages_in == 4


def test_a_link_that_this_side_closes_is_told_to_nobody_again() -> None:
    pair = Pair()
    link = pair.sender()
    link.close(Condition("amqp:internal-error", "enough"))
    link.close()
    pair.settle()
    assert not link.open
    assert (pair.client.gone, pair.server.gone) == ([], ["link"])
    assert link.credit == 0
    assert tuple(pair.client.engine.links) == tuple(pair.server.engine.links) == ()


def test_closing_in_order_is_told_once_to_both_and_ends_both() -> None:
    pair = Pair()
    pair.client.engine.close(Condition("amqp:connection:forced", "good bye"))
    pair.settle()
    assert pair.server.closed == ["amqp:connection:forced: good bye"]
    assert pair.client.closed == [""]
    assert pair.server.engine.finished
    assert pair.client.engine.finished
    assert not pair.server.engine.pending


def test_the_end_of_the_stream_is_the_end_of_the_connection() -> None:
    pair = Pair()
    pair.server.engine.end_of_input()
    pair.server.engine.drain()
    assert len(pair.server.closed) == 1


def test_a_peer_that_falls_silent_is_given_up_and_one_that_is_ticked_is_not() -> None:
    pair = Pair()
    other = Side(server=True)
    other.open_at_once = False
    other.engine.open(idle_timeout_s=10)
    client = Side(server=False)
    client.engine.open()
    for now in range(1, 60_000, 1000):
        for one, peer in ((client, other), (other, client)):
            one.engine.tick(now)
            for piece in one.engine.take_output():
                peer.engine.push(piece)
                peer.engine.drain()
    assert other.closed == []
    for now in range(60_000, 100_000, 1000):
        other.engine.tick(now)
        other.engine.drain()
    assert "resource-limit-exceeded" in other.closed[0], "proton's word for a timeout"
    pair.server.engine.free()
    pair.server.engine.tick(1)


def test_what_an_open_says_of_itself_arrives() -> None:
    peer = Proton()
    peer.server.open_at_once = False
    peer.connection.properties = {proton.symbol("product"): "x", proton.symbol("n"): 1}
    peer.open()
    assert peer.server.engine.remote_properties == {"product": "x", "n": 1}
    peer.server.engine.open({proton.symbol("a"): "b"}, offered=("ANONYMOUS-RELAY",))
    peer.settle()
    assert dict(peer.connection.remote_properties) == {"a": "b"}
    assert list(peer.connection.remote_offered_capabilities) == ["ANONYMOUS-RELAY"]


def test_a_session_that_came_before_our_open_begins_behind_it() -> None:
    """proton forgets a Begin that was due before its Open, and the client would wait for ever."""
    peer = Proton()
    peer.server.open_at_once = False
    early = peer.connection.session()
    early.open()
    peer.open()
    early.close()
    peer.settle()
    peer.server.engine.open()
    peer.settle()
    assert peer.session.state & proton.Endpoint.REMOTE_ACTIVE
    assert peer.sender().credit == 100


# ---- messages in


def test_many_deliveries_in_one_push_are_told_at_once() -> None:
    peer = Proton().open()
    first, second = peer.sender("a"), peer.sender("b")
    for n in range(100):
        peer.send(first, b"a%d" % n)
        peer.send(second, b"b%d" % n)
    peer.to_server(peer.output())
    assert len(peer.server.batches) == 2
    assert [messages for _, messages, _ in peer.server.batches] == [
        [b"%s%d" % (each, n) for n in range(100)] for each in (b"a", b"b")
    ]


def test_settling_reaches_the_sender_with_its_outcome() -> None:
    peer = Proton().open()
    link = peer.sender()
    deliveries = [peer.send(link, b"%d" % n) for n in range(4)]
    peer.settle()
    (_, _, came), receiver = peer.server.batches[0], peer.into("s")
    receiver.settle(came[:2], ACCEPTED)
    receiver.settle(came[2:3], REJECTED, Condition("amqp:not-found", "nobody"))
    receiver.settle(came[3:], RELEASED)
    peer.settle()
    assert [str(each.remote_state) for each in deliveries] == [str(each) for each in (ACCEPTED, ACCEPTED, REJECTED, RELEASED)]
    assert all(each.settled for each in deliveries)
    assert (deliveries[2].remote.condition.name, deliveries[2].remote.condition.description) == ("amqp:not-found", "nobody")


def test_a_message_that_comes_settled_has_no_delivery_to_settle() -> None:
    peer = Proton().open()
    link = peer.sender(presettled=True)
    peer.send(link, b"one").settle()
    peer.settle()
    assert peer.server.batches == [("s", [b"one"], [None])]


def test_an_empty_message_is_a_message() -> None:
    peer = Proton().open()
    link = peer.sender()
    peer.send(link, b"")
    peer.send(link, b"one")
    peer.settle()
    assert peer.server.messages == [b"", b"one"]


@pytest.mark.parametrize("size", [100_000, 1 << 20, (1 << 20) + 1, 5_000_000])
def test_a_message_of_many_frames_arrives_whole(size: int) -> None:
    peer = Proton(frame=4096).open()
    link = peer.sender()
    data = bytes(range(256)) * (size // 256 + 1)
    delivery = peer.send(link, data)
    peer.send(link, b"next")
    peer.settle()
    assert peer.server.messages == [data, b"next"]
    assert len(peer.server.batches[0][2]) >= 1
    peer.into("s").settle([each for _, _, came in peer.server.batches for each in came], ACCEPTED)
    peer.settle()
    assert delivery.settled


def test_a_message_in_pieces_waits_for_its_last_one_while_others_pass() -> None:
    peer = Proton().open()
    slow, quick = peer.sender("slow"), peer.sender("quick")
    slow.delivery("t")
    slow.stream(b"one ")
    peer.settle()
    peer.send(quick, b"passed")
    peer.settle()
    assert peer.server.messages == [b"passed"]
    slow.stream(b"message")
    slow.advance()
    peer.settle()
    assert peer.server.messages == [b"passed", b"one message"]


@pytest.mark.parametrize("size", [10, 200_000])
def test_an_aborted_message_never_was_and_gives_its_credit_back(size: int) -> None:
    """Otherwise a sender that gives messages up would be without credit one day, and wait for ever."""
    peer = Proton(credit=3).open()
    link = peer.sender()
    for n in range(7):
        delivery = link.delivery(f"t{n}")
        link.stream(b"x" * size)
        peer.settle()
        delivery.abort()
        peer.settle()
    assert link.credit == 3
    peer.send(link, b"one")
    peer.settle()
    assert peer.server.messages == [b"one"]


@pytest.mark.parametrize("size", [1001, 50_000, 3_000_000])
def test_a_message_that_is_too_large_ends_its_link_and_leaves_its_session_to_the_others(size: int) -> None:
    peer = Proton(frame=1 << 14)
    peer.server.engine.max_message_bytes = 1000
    peer.open()
    link, other = peer.sender("large"), peer.sender("other")
    peer.send(link, b"x" * 1000)
    peer.settle()
    peer.send(link, b"x" * size)
    peer.settle()
    assert link.remote_condition.name == "amqp:link:message-size-exceeded"
    assert "1000 bytes" in link.remote_condition.description
    assert peer.server.gone == ["large"]
    for n in range(40):
        peer.send(other, b"%d" % n * 100)
    peer.settle()
    assert len(peer.server.messages) == 41


def test_tags_may_be_any_bytes() -> None:
    """proton's own wrapper fails on a tag that is not text; the engine never asks for it."""
    from cproton_ffi import ffi, lib

    peer = Proton().open()
    link = peer.sender()
    raw = ffi.new("char[]", b"\xff\xfe\x00\x80")
    tag = ffi.new("pn_delivery_tag_t *", {"size": 4, "start": raw})[0]
    lib.pn_delivery(link._impl, tag)
    link.stream(b"one")
    link.advance()
    peer.settle()
    assert peer.server.messages == [b"one"]


# ---- messages out


def test_outcomes_come_by_the_batch_with_the_keys_that_were_given() -> None:
    peer = Proton().open()
    link = peer.receiver(credit=10)
    out = peer.out("r")
    assert peer.server.credits[-1] == out.credit == 10
    assert not out.presettled
    out.send(b"abcd", (0, 1, 2, 3, 4), 0, 4, "wxyz", False)
    out.send_one(b"late", "late")
    peer.settle()
    assert len(out.unsettled) == 5
    received = []
    for outcome in (proton.Delivery.ACCEPTED, proton.Delivery.RELEASED, proton.Delivery.MODIFIED, proton.Delivery.REJECTED):
        delivery = link.current
        received.append(link.recv(delivery.pending))
        delivery.update(outcome)
        delivery.settle()
    peer.settle()
    assert received == [b"a", b"b", b"c", b"d"]
    (outcomes,) = peer.server.outcomes
    assert sorted(outcomes) == [("w", ACCEPTED, True), ("x", RELEASED, True), ("y", MODIFIED, True), ("z", REJECTED, True)]
    assert list(out.unsettled.values()) == ["late"]


def test_a_disposition_that_is_no_outcome_is_passed_over_and_an_outcome_counts_once() -> None:
    peer = Proton().open()
    link = peer.receiver(credit=1)
    peer.out("r").send_one(b"one", "key")
    peer.settle()
    delivery = link.current
    delivery.update(proton.Delivery.RECEIVED)
    peer.settle()
    assert peer.server.outcomes == []
    delivery.update(proton.Delivery.ACCEPTED)
    peer.settle()
    delivery.settle()
    peer.settle()
    assert peer.server.outcomes == [[("key", ACCEPTED, False)]]


def test_credit_is_given_back_to_who_drains() -> None:
    peer = Proton().open()
    link = peer.receiver()
    link.drain(5)
    peer.settle()
    out = peer.out("r")
    assert out.draining
    out.send_one(b"one", None, True)
    out.drained()
    peer.settle()
    assert link.recv(link.current.pending) == b"one"
    link.advance()
    assert (link.credit, out.credit) == (0, 0)


def test_output_that_the_session_does_not_take_is_counted() -> None:
    peer = Proton()
    peer.session.incoming_capacity = 1 << 17
    peer.open()
    peer.receiver(credit=100)
    out = peer.out("r")
    for _ in range(30):
        out.send_one(b"x" * 60_000)
    peer.settle()
    assert out.buffered_bytes > 1 << 20


# ---- links and sessions


def test_a_link_that_is_refused_says_why_and_leaves_the_session_alone() -> None:
    peer = Proton().open()
    peer.server.refusal = Condition("amqp:not-found", "there is no queue 'q'")
    link = peer.sender()
    assert (link.remote_condition.name, link.remote_condition.description) == ("amqp:not-found", "there is no queue 'q'")
    link.close()
    peer.server.refusal = None
    assert peer.sender("again").credit == 100
    assert len(tuple(peer.server.engine.links)) == 1


def test_a_detached_link_and_a_closed_one_and_a_closed_session_end_what_they_had() -> None:
    peer = Proton().open()
    detached, closed, rest = peer.sender("detached"), peer.sender("closed"), peer.receiver("rest")
    other = peer.connection.session()
    other.open()
    stays = peer.sender("stays", session=other)
    ends = {link.name: link for link in peer.server.links}
    peer.send(closed, b"one")
    detached.detach()
    closed.close()
    peer.settle()
    assert peer.server.gone == ["detached", "closed"]
    assert peer.server.messages == [b"one"], "what came before the end is told before the end"
    peer.session.close()
    peer.settle()
    assert peer.server.gone == ["detached", "closed", "rest"]
    assert [link.open for link in ends.values()] == [False, False, False, True]
    assert rest.state & proton.Endpoint.LOCAL_ACTIVE
    late = ends["closed"]
    assert isinstance(late, Receiver)
    late.settle(peer.server.batches[0][2], ACCEPTED)
    late.flow(5)
    out = ends["rest"]
    assert isinstance(out, Sender)
    out.settle([], ACCEPTED)
    peer.send(stays, b"two")
    peer.settle()
    assert peer.server.messages == [b"one", b"two"]


def test_links_are_limited_and_who_goes_on_asking_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LINKS_PER_CONNECTION", 3)
    peer = Proton().open()
    links = [peer.sender(f"s{n}") for n in range(5)]
    names = [link.remote_condition.name if link.remote_condition else "" for link in links]
    assert names == ["", "", "", *["amqp:resource-limit-exceeded"] * 2]
    for n in range(5, 7):
        peer.sender(f"s{n}")
    assert peer.connection.remote_condition.name == "amqp:resource-limit-exceeded"


def test_a_dynamic_source_is_named_by_this_side() -> None:
    peer = Proton()
    peer.server.on_link = lambda engine, link: link.accept(dynamic_address="made-up")  # type: ignore[method-assign]
    peer.open()
    link = peer.session.receiver("r")
    link.source.dynamic = True
    link.open()
    target = peer.session.sender("s")
    target.target.dynamic = True
    target.open()
    peer.settle()
    assert (link.remote_source.address, target.remote_target.address) == ("made-up", "made-up")


def test_a_terminus_says_what_was_asked_for() -> None:
    peer = Proton().open()
    link = peer.session.receiver("r")
    link.source.address = "q"
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    link.source.filter.put_dict({proton.symbol("f"): 1})
    link.open()
    coordinator = peer.session.sender("c")
    coordinator.target.type = proton.Terminus.COORDINATOR
    coordinator.open()
    peer.settle()
    source, target = peer.server.links[0].source, peer.server.links[1].target
    assert (source.address, source.copy, source.dynamic, source.coordinator, source.filters) == (
        "q",
        True,
        False,
        False,
        {"f": 1},
    )
    assert target.coordinator
    assert peer.server.links[1].source.address == ""


@pytest.mark.parametrize("body,readable", [({"k": [[1]] * 3}, True), ({b"\xff": 1}, False)])
def test_properties_of_any_kind_do_no_harm(body: Any, readable: bool) -> None:
    peer = Proton()
    peer.connection.properties = {proton.symbol("x"): body}
    peer.open()
    assert ("x" in peer.server.engine.remote_properties) == readable


def test_a_filter_that_cannot_be_read_is_a_fault_of_its_link() -> None:
    """A map with a list as its key is AMQP, but nothing that this broker can use."""
    peer = Proton().open()
    link = peer.session.receiver("r")
    link.source.address = "q"
    data = link.source.filter
    data.put_map()
    data.enter()
    data.put_list()
    data.put_int(1)
    data.exit()
    link.open()
    peer.settle()
    with pytest.raises(Condition) as raised:
        _ = peer.server.links[0].source
    assert raised.value.name == "amqp:decode-error"


def test_an_open_whose_properties_cannot_be_read_has_none() -> None:
    peer = Proton()
    peer.connection.properties = {proton.symbol("KKKK"): "v"}
    peer.connection.open()
    while b"KKKK" not in (said := peer.output()):
        peer.to_server(said)
        peer.from_server()
    peer.to_server(said.replace(b"KKKK", b"K\xff\xffK"))
    assert peer.server.engine.remote_open
    assert peer.server.engine.remote_properties == {}
    assert peer.server.closed == []


# ---- peers that do not behave


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        HEADER + frame(0, b"\x00\x53\x77\xc1\x00"),
        HEADER + frame(0, b"\x00\x53\x10\xff\xff\xff"),
        HEADER + frame(7, b"\x00\x53\x14\xc0\x01\x00"),
        HEADER + b"\x00\x00\x00\x01\x02\x00\x00\x00",
        HEADER + b"\xff\xff\xff\xff\x02\x00\x00\x00" + b"x" * 100,
        b"AMQP\x09\x09\x09\x09",
        b"\x00" * 100_000,
    ],
)
def test_bytes_that_are_no_amqp_end_the_connection_with_a_reason(rubbish: bytes) -> None:
    side = Side(server=True)
    side.engine.push(rubbish)
    side.engine.drain()
    assert len(side.closed) == 1
    assert side.closed[0]
    side.engine.push(rubbish)
    side.engine.drain()
    assert len(side.closed) == 1
    side.engine.take_output()
    assert side.engine.finished
    side.engine.free()


def test_a_frame_that_is_larger_than_announced_ends_the_connection() -> None:
    peer = Proton(max_frame=4096).open()
    assert peer.transport.remote_max_frame_size == 4096
    peer.to_server(frame(0, b"\x00\x53\x14" + b"x" * 5000))
    assert "framing-error" in peer.server.closed[0]


def test_bytes_may_come_one_at_a_time() -> None:
    peer = Proton().open()
    link = peer.sender()
    peer.send(link, b"one")
    for byte in peer.output():
        peer.to_server(bytes([byte]))
    assert peer.server.messages == [b"one"]


def test_an_engine_that_is_freed_with_deliveries_outstanding_is_quiet_afterwards() -> None:
    """A commit may come long after the connection went: nobody may touch what is gone."""
    peer = Proton().open()
    link = peer.sender()
    peer.send(link, b"one")
    peer.receiver(credit=10)
    peer.settle()
    out, into = peer.out("r"), peer.into("s")
    out.send_one(b"two", "key")
    engine = peer.server.engine
    engine.free()
    engine.free()
    into.settle(peer.server.batches[0][2], ACCEPTED)
    into.flow(1)
    out.settle(list(out.unsettled), ACCEPTED)
    out.close()
    engine.close()
    engine.end_of_input()
    engine.tick(5)
    assert (out.open, into.open, out.credit, tuple(engine.links)) == (False, False, 0, ())


def test_an_engine_may_be_freed_while_it_tells_of_messages() -> None:
    peer = Proton().open()
    first, second = peer.sender("a"), peer.sender("b")
    peer.server.free_on_messages = True
    for link in (first, second):
        peer.send(link, b"one")
    second.close()
    peer.to_server(peer.output())
    assert len(peer.server.batches) == 1
    assert not peer.server.engine.alive
