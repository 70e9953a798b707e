"""Priority queues whose lower levels get a share: after some messages of a level, the next lower level has its turn.

Arguments, in addition to those of a priority queue: `qpid.fairshare` (or `x-qpid-fairshare`) is the number of consecutive
messages that a level may deliver; `qpid.fairshare-N` sets it for level N only, the lowest being 0. A share of 0 means no limit:
the level has its turn until it is empty.

Life of a turn: it begins at the highest level. A level that has delivered its share, or has nothing to deliver, passes the turn
to the next lower one, and the lowest one to the highest. The turn is passed on when the next message is delivered: while that one
is read from disk, another level may get messages, and is asked first if it comes before.

Invariants: within a level the order is that of a Fifo; no level delivers more than its share in a row while another level has
available messages. Only the primary knows whose turn it is: a new one begins at the highest level.

Source: qpidd's Fairshare.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from broker.core.queues import priority
from broker.core.queues.blocks import Lot
from broker.core.queues.priority import Priority
from broker.core.queues.residency import Residency

NAMES = ("qpid.fairshare", "x-qpid-fairshare")
_OF_LEVEL = re.compile(r"(?:qpid\.fairshare|x-qpid-fairshare)-(0|[1-9]\d{0,2})")


class Fairshare(Priority):
    """Fulfils Discipline with a share for each level."""

    __slots__ = ("_level", "_shares", "_taken")

    def __init__(self, shares: list[int], live_by_file: dict[int, int], residency: Residency, *, from_zero: bool = False) -> None:
        super().__init__(len(shares), live_by_file, residency, from_zero=from_zero)
        self._shares = shares
        self._begin()

    def _begin(self) -> None:
        self._level = len(self._shares) - 1
        self._taken = 0

    def acquire(self, consumer: object, max_count: int, max_bytes: int) -> list[Lot]:
        """Take the oldest available messages of the level with the turn, then those of the next one."""
        lots: list[Lot] = []
        self.absent = -1
        level, taken = self._level, self._taken
        while max_count > 0 and self.available:
            fifo, share = self._by_level[level], self._shares[level]
            most = min(share - taken, max_count) if share else max_count
            if not most or not fifo.available:
                level, taken = (level or len(self._shares)) - 1, 0
                continue
            before = len(lots)
            _, max_bytes = fifo.take(lots, most, max_bytes)
            took = sum(lot.n_messages for lot in lots[before:])
            if took:
                taken += took
                max_count -= took
                self._level, self._taken = level, taken
            if took < most and fifo.available:
                self.absent = fifo.absent
                break
        return lots

    def release_all(self) -> None:
        """Make every acquired message available again: the term in which they were acquired has ended."""
        super().release_all()
        self._begin()


def is_share(name: str) -> bool:
    """Whether an argument sets the share of one level."""
    return _OF_LEVEL.fullmatch(name) is not None


def shares_of(arguments: Mapping[str, Any]) -> list[int]:
    """The share of each level, the lowest first; [] if no argument sets one. ValueError when a share is not valid."""
    named = [name for name in arguments if name in NAMES or is_share(name)]
    if not named:
        return []
    levels = priority.levels_of(dict(arguments))
    for name in named:
        value = arguments[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} must be a number of 0 (no bound) or more, not {value!r}")
        if levels < 2:
            raise ValueError(f"{name} needs levels of priority ({priority.LEVELS[0]})")
    shares = [next((int(arguments[name]) for name in NAMES if name in arguments), 0)] * levels
    for name in named:
        found = _OF_LEVEL.fullmatch(name)
        if found is not None:
            if int(found[1]) >= levels:
                raise ValueError(f"{name} is for a level that does not exist: the highest of {levels} is {levels - 1}")
            shares[int(found[1])] = int(arguments[name])
    return shares


def make(arguments: dict[str, Any], live_by_file: dict[int, int], residency: Residency) -> Fairshare | None:
    """The discipline of a queue with these arguments, if its levels have shares."""
    shares = shares_of(arguments)
    return Fairshare(shares, live_by_file, residency, from_zero=priority.is_from_zero(arguments)) if any(shares) else None
