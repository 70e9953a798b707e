"""Large messages that are coming in, and what they take of the disk before they are complete.

Invariants: the bytes that have come of a queue's incomplete messages count for its limit when another part of one comes, so that
they take no more of the disk than the queue may hold; complete messages do not wait for them. An incomplete message gives way, so
that it is dropped and gets the outcome `released`, when the disk is nearly full, or when nothing has come of it for
`limits.UPLOAD_SILENT_S` and another one needs the room.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from twisted.internet.interfaces import IReactorTime

from broker.core import limits
from broker.sessions.ledger import Ledger


class Incomplete(Protocol):
    """A message of which parts have come. `counted_bytes`: what of it is counted; `uuids`: its queues."""

    counted_bytes: int
    uuids: tuple[str, ...]

    def lies_in(self, ledger: Ledger) -> bool:
        """Whether its parts are in this log."""

    def abandon(self) -> None:
        """It is given up: no more of it is taken."""


class _Place:
    """Those of one queue, each with the time of its last part, the longest silent first."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.heard_s: dict[Incomplete, float] = {}


class Coming:
    """See the module."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._places: defaultdict[str, _Place] = defaultdict(_Place)
        self._all: dict[Incomplete, None] = {}

    def came(self, one: Incomplete, nbytes: int) -> None:
        """Now so many bytes of it have come."""
        now_s, more = self._clock.seconds(), nbytes - one.counted_bytes
        one.counted_bytes = nbytes
        self._all[one] = None
        for uuid in one.uuids:
            place = self._places[uuid]
            place.nbytes += more
            place.heard_s.pop(one, None)
            place.heard_s[one] = now_s

    def ended(self, one: Incomplete) -> None:
        """It is complete, or given up."""
        if one not in self._all:
            return
        del self._all[one]
        for uuid in one.uuids:
            place = self._places[uuid]
            place.nbytes -= one.counted_bytes
            del place.heard_s[one]
            if not place.heard_s:
                del self._places[uuid]

    def beside(self, one: Incomplete, uuid: str) -> int:
        """The bytes that have come of the queue's other incomplete messages."""
        return self._places[uuid].nbytes - one.counted_bytes

    def make_room(self, uuid: str) -> bool:
        """Give up the message of this queue of which nothing has come for the longest time; False: all are on their way."""
        one, heard_s = next(iter(self._places[uuid].heard_s.items()))
        if self._clock.seconds() - heard_s < limits.UPLOAD_SILENT_S:
            return False
        one.abandon()
        return True

    def give_up(self, ledger: Ledger) -> None:
        """The disk is nearly full: give up all that have parts in this log."""
        for one in [each for each in self._all if each.lies_in(ledger)]:
            one.abandon()
