"""Large messages, which go to proton by the piece, and what shares their connection."""

from __future__ import annotations

from functools import partial

import pytest
from cproton_ffi import lib

from broker.amqp.receiver import Receiver
from broker.core import limits
from broker.core.links import ACCEPTED
from tests.broker.amqp.pairs import Pair, Proton
from tests.broker.amqp.test_engine import ACCEPT, STILL_HERE, named
from tests.broker.core.test_definitions import calls_of

LARGE = bytes(range(256)) * (limits.PIECE_BYTES * 5 // 256) + b"the end"


@pytest.mark.parametrize("presettled", [True, False])
def test_large_and_small_messages_of_a_link_come_whole_and_in_order(presettled: bool) -> None:
    """What is small waits behind what is large, on the same link."""
    pair = Pair()
    link = pair.sender()
    sent = [b"first", LARGE, b"between", LARGE[::-1], b"", b"last"]
    before = link.credit
    link.send(b"".join(sent), [sum(map(len, sent[:n])) for n in range(7)], 0, 6, 40, presettled)
    assert link.credit == link.account.credit == before - 6
    pair.settle()
    assert pair.server.messages == sent
    assert link.credit == link.account.credit == before - 6
    assert link.buffered_bytes == 0
    assert not link.feeds
    if not presettled:
        into = next(each for each in pair.server.links if isinstance(each, Receiver))
        into.settle(0, 6, ACCEPTED)
        pair.settle()
        assert [key for came in pair.client.outcomes for key, _, _ in came] == [40, 41, 42, 43, 44, 45]


def test_proton_holds_no_more_than_two_pieces_of_it() -> None:
    """It moves all that it holds of a message for each frame that it makes: with 15 MiB a message costs a second."""
    pair = Pair()
    link = pair.sender()
    link.send_one(LARGE, 0, True)
    assert link.buffered_bytes == len(LARGE), "proton has nothing of it before it has something to write"
    written = b""
    while link.buffered_bytes:
        written += b"".join(pair.client.engine.take_output(1000))
        assert len(LARGE) - link.buffered_bytes - len(written) < 2 * limits.PIECE_BYTES
    pair.server.engine.push(written)
    pair.server.engine.drain()
    pair.settle()
    assert pair.server.messages == [LARGE]


def test_a_message_of_another_link_overtakes_the_pieces_that_wait() -> None:
    """A client with a small message need not wait for somebody's large one."""
    pair = Pair()
    slow, quick = pair.sender("slow"), pair.sender("quick")
    slow.send_one(LARGE, 0, True)
    pair.server.engine.push(b"".join(pair.client.engine.take_output(1)))
    quick.send_one(b"small", 0, True)
    pair.settle()
    assert pair.server.messages == [b"small", LARGE]


def test_a_link_that_ends_in_the_midst_of_a_message_leaves_the_others_alone() -> None:
    """Its pieces are forgotten."""
    pair = Pair()
    link, other = pair.sender("link"), pair.sender("other")
    link.send_one(LARGE, 0, False)
    pair.server.engine.push(b"".join(pair.client.engine.take_output(1)))
    pair.server.engine.drain()
    next(each for each in pair.server.links if each.name == "link").close()
    pair.settle()
    assert not link.open
    other.send_one(LARGE, 0, True)
    pair.settle()
    assert pair.server.messages == [LARGE]


def test_a_delivery_that_its_receiver_settles_early_takes_its_pieces_with_it() -> None:
    """What comes after it goes out as it is, not as the rest of it."""
    pair = Pair()
    link = pair.sender()
    link.send_one(LARGE, 0, False)
    link.send_one(b"next", 1, False)
    pair.client.engine.take_output(1)
    lib.pn_link_advance(link.handle)
    assert link.feed()
    assert link.buffered_bytes == lib.pn_session_outgoing_bytes(link.session)


def test_a_drain_is_answered_when_all_messages_have_gone_out() -> None:
    """Breaks when the credit of messages is given back that proton does not have yet: they would not go out."""
    peer = Proton().open()
    receiver = peer.receiver()
    receiver.drain(10)
    peer.to_server(peer.output())
    link = peer.out("r")
    for _ in range(3):
        link.send_one(LARGE)
    link.drained()
    peer.settle()
    assert (receiver.queued, receiver.credit, receiver.drained()) == (3, 3, 7)
    assert (link.credit, link.account.credit, link.feeds) == (0, 0, False)


def test_a_peer_that_no_longer_drains_keeps_its_credit() -> None:
    peer = Proton().open()
    receiver = peer.receiver()
    receiver.drain(10)
    peer.to_server(peer.output())
    link = peer.out("r")
    link.send_one(LARGE)
    link.drained()
    receiver.drain_mode = False
    receiver.flow(1)
    peer.settle()
    assert (receiver.queued, receiver.credit, receiver.drained()) == (1, 11, 0)
    assert link.credit == link.account.credit == 10


@pytest.mark.parametrize("begun_is_last", [False, True], ids=["in their order", "the one that is going out is the last"])
def test_messages_that_are_taken_back_before_all_of_them_has_gone_out_are_no_messages_for_the_peer(begun_is_last: bool) -> None:
    """Breaks when a consumer that reads slowly gets the beginning of a message as a message, and empty ones after it: proton
    ends a delivery that is settled as if it were complete. Or when a message that has not begun is aborted before the one that
    is going out: proton would write the next message into memory that is free."""
    peer = Proton().open()
    receiver = peer.receiver(credit=10)
    link = peer.out("r")
    for number, data in enumerate((b"whole", LARGE, b"small", b"", LARGE)):
        link.send_one(data, number)
    peer.transport.push(b"".join(peer.server.engine.take_output(5000)))
    if begun_is_last:
        peer.to_server(named(1, 1, STILL_HERE))
    list(link.account.take(0, 4))
    link.take_back(4)
    assert (link.credit, link.account.credit) == (7, 7), "what has not begun takes no credit"
    peer.settle()
    found = []
    while receiver.current and not receiver.current.partial:
        delivery = receiver.current
        found.append("aborted" if delivery.aborted else len(receiver.recv(1 << 24)))
        receiver.advance()
    assert found == [5, "aborted", len(LARGE)]
    assert (receiver.credit, link.credit, link.account.credit) == (7, 7, 7)
    link.send_one(b"next", 5)
    peer.settle()
    assert receiver.recv(100) == b"next"


def test_a_drain_is_answered_although_the_last_message_is_settled_before_all_of_it_has_gone_out() -> None:
    pair = Pair()
    link = pair.sender()
    into = next(each for each in pair.server.links if isinstance(each, Receiver))
    lib.pn_link_set_drain(into.handle, True)
    pair.settle()
    link.send_one(LARGE)
    link.drained()
    pair.client.engine.take_output(1)
    link.take_back(1)
    pair.settle()
    assert (link.credit, link.account.credit, link.feeds) == (0, 0, False)


class NotRead:
    """A source whose pieces are not in memory."""

    has_more = True

    def next_piece(self) -> bytes | None:
        return None

    def sent(self) -> None: ...
    def dropped(self) -> None: ...


def test_a_message_is_aborted_behind_one_that_the_peer_settles_before_all_of_it_has_gone_out() -> None:
    """Breaks when proton makes the aborted one the current delivery, after it has freed it."""
    peer = Proton().open()
    receiver = peer.receiver(credit=10)
    link = peer.out("r")
    link.send_one(LARGE, 40)
    source = NotRead()
    link.send_pieces(source, 41, False)
    peer.transport.push(b"".join(peer.server.engine.take_output(5000)))
    assert link.abort_pieces(source)
    assert (link.credit, link.account.credit, link.unsettled) == (9, 9, 1), "what has not begun takes no credit"
    peer.to_server(named(0, 0, ACCEPT, settled=True))
    peer.settle()
    for number in range(42, 45):
        link.send_one(b"%d" % number, number)
    peer.settle()
    receiver.advance()
    found = []
    while receiver.current:
        found.append(receiver.recv(100))
        receiver.advance()
    assert found == [b"42", b"43", b"44"]
    assert (link.credit, link.account.credit, link.feeds) == (6, 6, False)


def test_a_drain_is_answered_after_messages_that_were_aborted_before_they_began() -> None:
    """Breaks when their credit is given back as if they took it, or never."""
    peer = Proton().open()
    receiver = peer.receiver()
    receiver.drain(10)
    peer.to_server(peer.output())
    link = peer.out("r")
    for number in range(3):
        link.send_one(LARGE, number)
    peer.transport.push(b"".join(peer.server.engine.take_output(5000)))
    peer.to_server(named(0, 0, STILL_HERE))
    link.take_back(3)
    assert link.credit == link.account.credit == 9
    link.drained()
    peer.settle()
    assert (receiver.queued, receiver.credit, receiver.drained()) == (1, 1, 9)
    assert (link.credit, link.account.credit, link.feeds) == (0, 0, False)


def behind_a_large_one(held: int, waiting: int) -> Proton:
    """A consumer that holds so many small messages, and for which so many wait behind a large one, while its socket is full."""
    peer = Proton().open()
    peer.receiver(credit=held + waiting + 1)
    link = peer.out("r")
    link.send(b"x" * held, range(held + 1), 0, held, 0, False)
    peer.settle()
    link.send_one(LARGE, held)
    link.send(b"x" * waiting, range(waiting + 1), 0, waiting, held + 1, False)
    peer.transport.push(b"".join(peer.server.engine.take_output(5000)))
    assert link.unsettled == held + waiting + 1
    return peer


@pytest.mark.parametrize("settled", [True, False])
def test_an_outcome_costs_the_same_however_many_messages_wait_behind_a_large_one(settled: bool) -> None:
    """Breaks when the broker looks for each settled message among all that wait: a consumer's disposition then takes seconds."""
    costs = []
    for waiting in (10, 1000):
        peer = behind_a_large_one(300, waiting)
        peer.server.engine.push(named(0, 299, ACCEPT, settled=settled))
        costs.append(calls_of(peer.server.engine.drain))
        assert [key for came in peer.server.outcomes for key, _, _ in came] == list(range(300))
        assert peer.out("r").unsettled == waiting + 1
    few, many = costs
    assert many < few * 1.5


def test_what_is_taken_back_costs_the_same_for_each_however_many_messages_wait() -> None:
    """Breaks when each of them is searched among those that are aborted and have not begun, which stay where they are while
    the peer still gets the first one."""
    costs = []
    for waiting in (100, 1000):
        peer = behind_a_large_one(1, waiting)
        link = peer.out("r")
        peer.to_server(named(1, 1, STILL_HERE))
        costs.append(calls_of(partial(link.take_back, link.account.next_id)))
        assert link.unsettled == 0
    few, many = costs
    assert many < few * 15


@pytest.mark.parametrize("presettled", [True, False])
def test_an_engine_says_that_there_is_more_though_all_that_proton_had_was_just_taken(presettled: bool) -> None:
    """Breaks when whoever writes the output asks for no more: the rest of the message would wait for the next event."""
    pair = Pair()
    engine, link = pair.client.engine, pair.sender()
    link.send_one(LARGE, 0, presettled)
    written = b"".join(engine.take_output(1))
    while engine.pending:
        waiting = int(lib.pn_transport_pending(engine.transport))
        written += b"".join(engine.take_output(waiting))
    assert not link.feeds
    pair.server.engine.push(written)
    pair.server.engine.drain()
    assert pair.server.messages == [LARGE]
