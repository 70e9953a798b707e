"""The engine against itself and against proton's own client: batches, refusals, limits, and peers that do not behave."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.amqp.data import Condition
from broker.core import limits
from broker.core.door import HEADER
from broker.core.links import ACCEPTED, REJECTED, RELEASED
from tests.broker.amqp.pairs import Pair, Proton, Side
from tests.broker.core.stream import FALSE, TRUE, frame, listed, performative, transfer

ACCEPT = b"\x00\x53\x24\x45"


def test_two_engines_open_attach_and_send_by_the_batch() -> None:
    pair = Pair()
    link = pair.sender()
    assert pair.server.engine.remote.container == "client"
    assert [each.name for each in pair.server.links] == [each.name for each in pair.client.links] == ["link"]
    assert pair.server.links[0].target.address == "q"
    assert pair.server.links[0].presettled
    assert pair.client.credits[-1] == link.credit == 100
    data = b"onetwothree"
    link.send(data, (0, 3, 6, 11), 0, 3, 0, True)
    link.send(data, (0, 3, 6, 11), 1, 2, 0, True)
    pair.settle()
    assert pair.server.batches == [("link", [b"one", b"two", b"three", b"two"], 0)]
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


@pytest.mark.parametrize(
    "nbytes, endless", [(1, False), (60_000, False), (60_000, True)], ids=["small messages", "large ones", "one without end"]
)
def test_a_peer_that_sends_on_and_on_after_the_end_of_its_link_is_cut_off(nbytes: int, endless: bool) -> None:
    """Breaks when what was on its way counts against it, when what comes is dropped for ever, or when it is kept."""
    peer = Proton().open()
    peer.sender()
    peer.into("s").close(Condition("amqp:link:transfer-limit-exceeded", "too much"))
    peer.server.engine.take_output()
    window = limits.SESSION_WINDOW_BYTES // limits.MAX_FRAME_BYTES
    most = limits.SESSION_WINDOW_BYTES // nbytes if endless else window
    came = 0
    while not peer.server.closed and came <= most:
        peer.to_server(transfer(b"x" * nbytes, number=0 if endless else came, more=endless))
        peer.server.engine.take_output()
        came += 1
    assert peer.server.closed == [
        "amqp:resource-limit-exceeded: the client sent more than a session's window on a link after its end"
    ]
    assert came > window
    assert peer.server.messages == []


def named(first: int, last: int, outcome: bytes, *, settled: bool = False, role: bool = True) -> bytes:
    """A disposition."""
    ids = (b"\x70" + first.to_bytes(4, "big"), b"\x70" + last.to_bytes(4, "big"))
    return performative(0x15, TRUE if role else FALSE, *ids, TRUE if settled else FALSE, outcome)


STILL_HERE = b"\x00\x53\x23\xc0\x03\x02\x43\x43"
"""The state `received`, which is no outcome."""


def in_turns(peer: Proton, data: bytes) -> int:
    """Push this as a socket does. Returns the turns that it takes."""
    peer.to_server(data)
    turns = 1
    while peer.server.engine.has_more:
        peer.to_server(b"")
        turns += 1
    return turns


@pytest.mark.parametrize("end", ["consumer", "producer", "closed"])
def test_a_client_that_says_the_same_of_its_deliveries_again_and_again_is_cut_off(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when 10 kB of dispositions take 250 MB and 4 s: proton makes an event for each delivery that each of them names."""
    monkeypatch.setattr(limits, "NAMED_AT_ONCE", 500)
    monkeypatch.setattr(limits, "NAMED_IN_VAIN", 2000)
    peer = Proton().open()
    if end == "producer":
        link = peer.sender()
        for _ in range(100):
            peer.send(link, b"x")
        peer.settle()
        role = False
    else:
        peer.receiver(credit=100)
        for number in range(100):
            peer.out("r").send_one(b"x", number)
        peer.server.engine.take_output()
        if end == "closed":
            peer.out("r").close()
        role = True
    once = named(0, 99, STILL_HERE, role=role)
    assert in_turns(peer, once * 24) == 4
    assert peer.server.closed == []
    assert in_turns(peer, once * 100) < 10
    assert peer.server.closed == ["amqp:resource-limit-exceeded: the client says the same of its deliveries again and again"]


@pytest.mark.parametrize("settled", [True, False])
def test_a_client_that_settles_many_one_by_one_in_one_read_is_none_of_those(
    settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that says twice that it has settled."""
    monkeypatch.setattr(limits, "NAMED_IN_VAIN", 0)
    peer = Proton().open()
    peer.receiver(credit=5000)
    for number in range(5000):
        peer.out("r").send_one(b"x", number)
    peer.server.engine.take_output()
    said = b"".join(named(number, number, ACCEPT, settled=settled) for number in range(5000))
    assert in_turns(peer, said + named(0, 4999, ACCEPT, settled=True)) == 1
    assert peer.server.closed == []
    assert [key for came in peer.server.outcomes for key, _, _ in came] == list(range(5000))


def test_frames_of_messages_that_come_in_turn_are_nothing_that_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proton has an event for each frame of a message that another one interrupts, also when all of it has been taken."""
    monkeypatch.setattr(limits, "NAMED_IN_VAIN", 0)
    monkeypatch.setattr(limits, "NAMED_AGAIN", 0)
    peer = Proton().open()
    peer.sender("one")
    peer.sender("other")
    fields = (b"\xa0\x01t", b"\x43", FALSE)
    frames = b"".join(
        frame(b"\x00\x53\x14" + listed(b"\x52" + bytes((link,)), b"\x52" + bytes((link,)), *fields, more) + b"x" * 50)
        for more in (*[TRUE] * 20, FALSE)
        for link in (0, 1)
    )
    assert in_turns(peer, frames) == 1
    assert (list(map(len, peer.server.messages)), peer.server.closed) == ([1050, 1050], [])


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


def test_a_server_that_says_nothing_before_the_login_is_over_is_given_up_too() -> None:
    """Proton has not begun then, and measures no silence. A host that goes away in that moment ends no connection."""
    client = Side(server=False)
    client.engine.open(idle_timeout_s=10)
    assert not client.engine.tick(1000)
    assert not client.engine.tick(10_000)
    client.engine.push(b"AMQP\x03")
    assert not client.engine.tick(11_500), "a part of a header has come"
    assert not client.engine.tick(21_400)
    assert client.engine.tick(21_500)


def test_what_an_open_says_of_itself_arrives() -> None:
    peer = Proton()
    peer.server.open_at_once = False
    peer.connection.properties = {proton.symbol("product"): "x", proton.symbol("n"): 1}
    peer.open()
    assert peer.server.engine.remote.properties == {"product": "x", "n": 1}
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
    receiver = peer.into("s")
    receiver.settle(0, 2, ACCEPTED)
    receiver.settle(2, 1, REJECTED, Condition("amqp:not-found", "nobody"))
    receiver.settle(3, 1, RELEASED)
    peer.settle()
    assert [str(each.remote_state) for each in deliveries] == [str(each) for each in (ACCEPTED, ACCEPTED, REJECTED, RELEASED)]
    assert all(each.settled for each in deliveries)
    assert (deliveries[2].remote.condition.name, deliveries[2].remote.condition.description) == ("amqp:not-found", "nobody")


def test_a_message_that_comes_settled_has_no_delivery_to_settle() -> None:
    peer = Proton().open()
    link = peer.sender(presettled=True)
    peer.send(link, b"one").settle()
    peer.settle()
    assert peer.server.batches == [("s", [b"one"], 0)]
    peer.into("s").settle(0, 1, ACCEPTED)
    peer.settle()
    assert peer.into("s").deliveries == []


def test_deliveries_are_settled_in_any_order_each_once() -> None:
    """Messages for two logs have their outcomes when both have committed them, and others overtake them meanwhile."""
    peer = Proton().open()
    link = peer.sender()
    first = [peer.send(link, b"%d" % n) for n in range(3)]
    first[1].settle()
    second = [peer.send(link, b"%d" % n) for n in range(3, 6)]
    peer.settle()
    receiver = peer.into("s")
    for start, count, outcome in ((4, 2, REJECTED), (2, 3, ACCEPTED), (2, 4, RELEASED), (0, 1, ACCEPTED), (0, 6, RELEASED)):
        receiver.settle(start, count, outcome)
    peer.settle()
    states = [str(each.remote_state) for each in (first[0], first[2], *second)]
    assert states == [str(each) for each in (ACCEPTED, ACCEPTED, ACCEPTED, REJECTED, REJECTED)]
    assert (receiver._base, receiver.deliveries) == (6, []), "nothing is kept of what is settled"
    third = peer.send(link, b"6")
    peer.settle()
    receiver.settle(5, 2, RELEASED)
    peer.settle()
    assert str(third.remote_state) == str(RELEASED)


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
    assert len(peer.server.batches[0][1]) >= 1
    peer.into("s").settle(0, 2, ACCEPTED)
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


@pytest.mark.parametrize("value", [{"k": [[1]] * 3}, {b"\xff": 1}])
def test_properties_of_any_kind_are_read(value: Any) -> None:
    peer = Proton()
    peer.connection.properties = {proton.symbol("x"): value}
    peer.open()
    assert peer.server.engine.remote.properties == {"x": value}


def test_a_filter_that_cannot_be_read_is_a_fault_of_its_link() -> None:
    """Values in values without end are AMQP, but nothing that this broker can use."""
    peer = Proton().open()
    link = peer.session.receiver("r")
    link.source.address = "q"
    data = link.source.filter
    data.put_map()
    data.enter()
    data.put_symbol("x")
    for _ in range(limits.MAX_AMQP_DEPTH + 1):
        data.put_list()
        data.enter()
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
    assert peer.server.engine.remote.properties == {}
    assert peer.server.closed == []


# ---- peers that do not behave


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        HEADER + frame(b"\x00\x53\x77\xc1\x00"),
        HEADER + frame(b"\x00\x53\x10\xff\xff\xff"),
        HEADER + frame(b"\x00\x53\x14\xc0\x01\x00", channel=7),
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
    peer.to_server(frame(b"\x00\x53\x14" + b"x" * 5000))
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
    out.send_one(b"two", 2)
    engine = peer.server.engine
    engine.free()
    engine.free()
    into.settle(0, 1, ACCEPTED)
    into.flow(1)
    out.settle(0, 1, ACCEPTED)
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


def test_output_that_a_socket_does_not_take_follows_in_order() -> None:
    whole, piecewise = Proton().open(), Proton().open()
    for peer in (whole, piecewise):
        peer.server.engine.close(Condition("amqp:internal-error", "x" * 300))
    expected = b"".join(whole.server.engine.take_output())
    got = bytearray()

    def full_after_a_hundred(data: Any) -> int:
        taken = min(len(data), 100 - len(got))
        got.extend(data[:taken])
        return taken

    assert piecewise.server.engine.send_output(full_after_a_hundred) == (100, False)
    assert piecewise.server.engine.send_output(refuse) == (0, False)
    assert bytes(got) + b"".join(piecewise.server.engine.take_output()) == expected
    assert piecewise.server.engine.send_output(refuse) == (0, True)


def refuse(data: Any) -> int:
    raise BlockingIOError("full")


# ---- messages that never end


class Spool:
    """Takes the parts of large messages and keeps none."""

    kept_bytes = 0

    def __init__(self) -> None:
        self.taken = bytearray()
        self.whole = 0

    def part(self, data: bytes, whole: bool) -> None:
        self.taken += data
        self.whole += whole

    def aborted(self) -> None:
        self.taken.clear()


def unfinished(peer: Proton, count: int, nbytes: int) -> list[Any]:
    """So many links, each on a session of its own, with so much of a message that goes on."""
    links = []
    for number in range(count):
        session = peer.connection.session()
        session.open()
        links.append(peer.sender(f"u{number}", session=session))
    for link in links:
        link.delivery("t")
    for _ in range(nbytes // 50_000):
        for link in links:
            link.stream(b"\x00\x53\x75\xb0\x7f\xff\xff\xff" + bytes(49_992))
        peer.settle()
    return links


def test_messages_that_never_end_take_so_much_of_a_connection_and_then_end_it() -> None:
    """PROTON-2952: twenty sessions with 14 MB of a message each took 290 MB, and nothing was refused."""
    peer = Proton(credit=1).open()
    unfinished(peer, 20, 400_000)
    (reason,) = peer.server.closed
    assert reason.startswith("amqp:resource-limit-exceeded: the unfinished messages of a connection")
    assert peer.server.engine.gathering.nbytes < limits.UNFINISHED_BYTES + 3_000_000


def test_one_message_may_be_larger_than_what_all_others_may_have() -> None:
    peer = Proton(credit=1).open()
    (link,) = unfinished(peer, 1, 6_000_000)
    assert peer.server.closed == []
    assert peer.server.engine.gathering.nbytes == 6_000_000
    link.advance()
    peer.settle()
    assert (peer.server.engine.gathering.nbytes, len(peer.server.messages[0])) == (0, 6_000_000)


def test_unfinished_messages_that_can_go_to_the_log_go_there_before_anything_is_refused() -> None:
    peer = Proton(credit=1).open()
    links = unfinished(peer, 20, 0)
    spools = {link.name: Spool() for link in peer.server.links}
    for link in peer.server.links:
        peer.into(link.name).take_parts(spools[link.name], 100_000_000)
    for _ in range(10):
        for each in links:
            each.stream(b"\x00\x53\x75\xb0\x7f\xff\xff\xff" + bytes(49_992))
        peer.settle()
    assert peer.server.closed == []
    assert peer.server.engine.gathering.nbytes <= limits.UNFINISHED_BYTES
    for each in links:
        each.advance()
    peer.settle()
    whole = {name: bytes(spool.taken) for name, spool in spools.items()}
    whole |= {name: batch[0] for name, batch, _ in peer.server.batches}
    assert {len(data) for data in whole.values()} == {500_000}, "each arrives whole, by the part or in one piece"
    assert any(spool.whole for spool in spools.values())
    assert peer.server.engine.gathering.nbytes == 0


def test_what_comes_on_a_link_that_this_side_has_closed_is_dropped() -> None:
    """Its client may not have heard yet, or not care: proton would keep a session's whole window of it."""
    peer = Proton(credit=10)
    peer.open()
    link = peer.sender("refused")
    server_link = peer.into("refused")
    server_link.close(Condition("amqp:not-found", "nobody"))
    link.delivery("t")
    link.stream(bytes(500_000))
    peer.to_server(peer.output())
    from cproton_ffi import ffi, lib

    current = lib.pn_link_current(server_link.handle)
    assert current == ffi.NULL or lib.pn_delivery_pending(current) == 0
    assert peer.server.closed == []
