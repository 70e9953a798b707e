"""A turn dispatches and writes once, at its end; and nothing that was registered is left over."""

from __future__ import annotations

from twisted.internet.task import Clock

from broker.sessions.turn import Turn


class Work:
    """A queue and a connection in one: both note that they had their turn."""

    def __init__(self, turn: Turn, *, registers_again: bool = False) -> None:
        self.turn = turn
        self.registers_again = registers_again
        self.did: list[str] = []

    def dispatch(self) -> None:
        self.did.append("dispatched")
        self.turn.touch(self)

    def flush(self) -> None:
        self.did.append("written")
        if self.registers_again:
            self.registers_again = False
            self.turn.dispatch_soon(self)


def test_a_queue_outside_of_an_entry_has_a_call_of_its_own() -> None:
    turn = Turn(clock := Clock())
    work = Work(turn)
    turn.dispatch_soon(work)
    assert (work.did, len(clock.getDelayedCalls())) == ([], 1)
    clock.advance(0)
    assert (work.did, clock.getDelayedCalls()) == (["dispatched", "written"], [])


def test_a_queue_within_an_entry_that_ends_with_a_flush_needs_no_call() -> None:
    """Each call of the clock is a part of the cost of a small message."""
    turn = Turn(clock := Clock())
    work = Work(turn)
    turn.is_open = True
    turn.dispatch_soon(work)
    assert clock.getDelayedCalls() == []
    turn.flush()
    assert (work.did, clock.getDelayedCalls()) == (["dispatched", "written"], [])
    turn.dispatch_soon(work)
    assert len(clock.getDelayedCalls()) == 1, "the entry is over"


def test_a_queue_that_is_registered_while_output_leaves_gets_the_next_turn() -> None:
    """Breaks when a consumer gets nothing more after its output has left, because the turn was past the queues."""
    turn = Turn(clock := Clock())
    work = Work(turn, registers_again=True)
    turn.is_open = True
    turn.dispatch_soon(work)
    turn.flush()
    assert work.did == ["dispatched", "written"]
    clock.advance(0)
    assert work.did == ["dispatched", "written"] * 2
