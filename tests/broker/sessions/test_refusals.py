"""Faults of clients in the log: a line each, and not more of them than a person can read."""

from __future__ import annotations

from twisted.internet.task import Clock

from broker.sessions.refusals import Refusals


def test_each_fault_is_a_line_until_there_are_too_many_and_then_their_number_is_said() -> None:
    clock, lines = Clock(), list[str]()
    refusals = Refusals(clock.seconds, lines.append)
    for number in range(1000):
        refusals.told(f"10.0.0.1:{number}", "amqp:connection:framing-error: no")
    assert lines[0] == "connection from 10.0.0.1:0 ended: amqp:connection:framing-error: no"
    assert len(lines) == 20
    clock.advance(11)
    refusals.told("10.0.0.2:1", "amqp:not-allowed: no")
    assert lines[20:] == [
        "980 more connections ended with a fault in the 11 s before",
        "connection from 10.0.0.2:1 ended: amqp:not-allowed: no",
    ]
    clock.advance(11)
    refusals.told("10.0.0.2:2", "amqp:not-allowed: no")
    assert len(lines) == 23


def test_a_line_is_cut_however_long_a_name_is_that_it_repeats() -> None:
    clock, lines = Clock(), list[str]()
    refusals = Refusals(clock.seconds, lines.append)
    refusals.line("a" * 4096)
    refusals.line("a" * 4097)
    assert lines == ["a" * 4096, "a" * 4093 + "..."]
