"""The share of a turn that strangers, and links that come and go, may take."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from broker.core import limits, sasl, values
from broker.core.door import HEADER
from broker.core.identity import Socket
from broker.sessions.share import Allowance, Share
from tests.broker.clients import Bench, Client, bench, one_turn
from tests.broker.core.stream import BEGIN, OPEN, attach, init


class Digging:
    """Work that takes a tenth of a turn's share a piece."""

    def __init__(self, clock: Clock, pieces: int) -> None:
        self.clock = clock
        self.pieces = pieces
        self.done: list[float] = []

    def go_on(self) -> bool:
        self.done.append(self.clock.seconds())
        self.clock.rightNow += limits.SHARE_TURN_S / 10
        self.pieces -= 1
        return self.pieces > 0


def has_time(share: Share) -> bool:
    return share.is_left


def test_a_turn_does_so_much_of_it_and_each_has_its_piece_in_turn() -> None:
    clock, flushed = Clock(), []
    share = Share(clock, lambda: flushed.append(clock.seconds()))
    first, second, gone = Digging(clock, 15), Digging(clock, 4), Digging(clock, 1)
    assert has_time(share)
    for work in (first, second, gone):
        share.later(work)
    share.forget(gone)
    assert not has_time(share), "who comes now waits behind them"
    one_turn(clock)
    assert (len(first.done), len(second.done), len(flushed)) == (6, 4, 1)
    one_turn(clock)
    assert len(first.done) == 6, "others have as much time first"
    clock.rightNow += 2 * limits.SHARE_TURN_S
    one_turn(clock)
    assert (first.pieces, has_time(share), len(flushed)) == (0, True, 2)
    assert gone.done == []
    share.close()


def test_what_was_done_at_once_counts_until_the_next_turn() -> None:
    clock = Clock()
    share = Share(clock, lambda: None)
    share.spent(limits.SHARE_TURN_S / 2)
    assert has_time(share)
    share.spent(limits.SHARE_TURN_S / 2)
    assert not has_time(share)
    clock.rightNow += limits.SHARE_TURN_S
    one_turn(clock)
    assert has_time(share)
    assert clock.getDelayedCalls() == [], "a broker with nothing to do sleeps"


def test_while_messages_come_and_go_a_turn_does_less_of_it_and_others_have_longer() -> None:
    """Breaks when a flood has as much of the time as before: a message passes several turns, and waits in each."""
    clock, moved = Clock(), [0.0]
    share = Share(clock, lambda: None, Allowance(clock, lambda: moved[0]))
    digging = Digging(clock, 100)
    share.later(digging)

    def pieces_of_a_turn() -> int:
        before = len(digging.done)
        one_turn(clock)
        return len(digging.done) - before

    few = 10 * limits.BUSY_SHARE
    assert few <= pieces_of_a_turn() <= few + 1
    clock.rightNow += 1.9 * limits.SHARE_TURN_S
    assert pieces_of_a_turn() == 0, "others have twice as long"
    clock.rightNow += 0.2 * limits.SHARE_TURN_S
    assert few <= pieces_of_a_turn() <= few + 1
    clock.rightNow += limits.BUSY_S
    assert 10 <= pieces_of_a_turn() <= 11, "when no message comes any more it is as before"
    share.close()


def test_a_message_makes_the_broker_busy_when_it_comes_and_when_it_is_committed() -> None:
    with bench() as b:
        b.queue("q")
        b.lead.automatic = False
        allowance = Allowance(b.clock, b.broker.logs.moved_s)
        b.clock.advance(limits.BUSY_S)
        assert allowance.turn_s(1.0) == 1.0
        client = b.client()
        client.send(client.sender("q"), "it", settle=False)
        b.settle()
        assert allowance.turn_s(1.0) == limits.BUSY_SHARE
        b.clock.advance(limits.BUSY_S)
        assert allowance.turn_s(1.0) == 1.0
        b.lead.commit()
        assert allowance.turn_s(1.0) == limits.BUSY_SHARE


def stranger(b: Bench, number: int) -> Client:
    """One that has connected, and has said nothing."""
    return Client(b, socket=Socket(f"192.0.2.{number}:1"))


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece of such work a turn."""
    monkeypatch.setattr(limits, "SHARE_TURN_S", 0.0)


@pytest.mark.usefixtures("no_time")
def test_many_that_connect_at_once_are_let_in_one_after_the_other_and_messages_do_not_wait_for_them() -> None:
    """Breaks when a flood of connections makes one turn of the reactor as long as there are connections."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        sender = client.sender("q")
        many = [stranger(b, number) for number in range(20)]
        for one in many:
            one.server.dataReceived(sasl.HEADER + init() + HEADER + OPEN)
        assert sum(one.server.opened for one in many) == 0
        assert all(one.socket.producerState == "paused" for one in many), "nothing more is read of them"
        one_turn(b.clock)
        assert sum(one.server.opened for one in many) == 1
        client.send(sender, "now", settle=False)
        while not client.outcomes:
            client.pump()
            one_turn(b.clock)
        assert 0 < sum(one.server.opened for one in many) < 20
        b.settle()
        assert all(one.server.opened and one.socket.producerState == "producing" for one in many)
        for one in many:
            one.lose()


@pytest.mark.usefixtures("no_time")
def test_links_that_come_and_go_wait_and_a_connection_s_are_looked_at_a_few_at_once() -> None:
    with bench() as b:
        client = b.client()
        said = b"".join(attach(number, name=values.encode(f"l{number}")) for number in range(3 * limits.LINKS_AT_ONCE))
        client.server.dataReceived(said)
        engine = client.server.engine
        assert engine.n_links == 0
        for turn in range(1, 4):
            one_turn(b.clock)
            assert engine.n_links == turn * limits.LINKS_AT_ONCE
        assert client.socket.producerState == "producing"
        client.lose()


@pytest.mark.usefixtures("no_time")
def test_who_goes_while_it_waits_is_forgotten() -> None:
    with bench() as b:
        one = stranger(b, 1)
        one.server.dataReceived(sasl.HEADER + init() + HEADER + OPEN + BEGIN)
        one.lose()
        b.settle()
        assert b.broker.connections == {}
