"""Sending in order, though some of it must be read from disk first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from ha.core.messages import Message, TimeoutNow
from ha.outbox import Outbox


class Wire:
    """Keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, list[bytes]]] = []

    def send(self, peer: str, message: Message, batches: Sequence[bytes]) -> None:
        self.sent.append((peer, message.epoch, list(batches)))


def nothing_fails(peer: str, error: Exception) -> None:
    raise AssertionError(f"{peer}: {error}")


def test_what_comes_after_a_slow_message_waits_behind_it() -> None:
    """Out of order, a heartbeat would be refused by a backup that has not got what was before it. Others do not wait."""
    wire = Wire()
    outbox = Outbox(wire)
    first: Deferred[Any] = Deferred()
    second: Deferred[Any] = Deferred()
    outbox.send_later("b", TimeoutNow(1), first, lambda: True, nothing_fails)
    outbox.send_later("b", TimeoutNow(2), second, lambda: True, nothing_fails)
    outbox.send("b", TimeoutNow(3), ())
    outbox.send("c", TimeoutNow(4), ())
    second.callback([b"2"])
    assert wire.sent == [("c", 4, [])]
    first.callback([b"1"])
    assert wire.sent[1:] == [("b", 1, [b"1"]), ("b", 2, [b"2"]), ("b", 3, [])]
    outbox.send("b", TimeoutNow(5), ())
    assert wire.sent[-1] == ("b", 5, [])


def test_what_is_no_longer_wanted_is_left_out() -> None:
    """The term in which it was to be sent is over; what waits behind it leaves."""
    wire = Wire()
    outbox = Outbox(wire)
    reading: Deferred[Any] = Deferred()
    outbox.send_later("b", TimeoutNow(1), reading, lambda: False, nothing_fails)
    outbox.send("b", TimeoutNow(2), ())
    reading.callback([b"1"])
    assert wire.sent == [("b", 2, [])]


def test_a_lost_link_takes_its_line_with_it() -> None:
    """What is still being read for it then is nobody's any more, whether it can be read or not."""
    wire = Wire()
    outbox = Outbox(wire)
    before: list[Deferred[Any]] = [Deferred(), Deferred()]
    for each in before:
        outbox.send_later("b", TimeoutNow(1), each, lambda: True, nothing_fails)
    outbox.clear("b")
    outbox.send("b", TimeoutNow(2), ())
    before[0].callback([b"1"])
    before[1].errback(OSError("gone"))
    assert wire.sent == [("b", 2, [])]


def test_what_cannot_be_read_is_said_once_and_drops_the_line() -> None:
    """What stands behind it could not be understood without it."""
    wire = Wire()
    outbox = Outbox(wire)
    failed: list[tuple[str, str]] = []
    reading: Deferred[Any] = Deferred()
    outbox.send_later("b", TimeoutNow(1), reading, lambda: True, lambda peer, error: failed.append((peer, str(error))))
    outbox.send("b", TimeoutNow(2), ())
    reading.errback(OSError("rotten"))
    assert failed == [("b", "rotten")]
    assert wire.sent == []
