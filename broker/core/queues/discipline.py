"""The interface for the order of delivery: what a kind of queue decides, and the table of kinds.

The lanes know which messages are alive and where their bodies are. A discipline knows in which order consumers get them, and
which consumer has which message. It has no bodies. The primary also asks it once, when a message is enqueued, for the lane of
the message. The lane is part of the sequence, so that a backup needs no rule.

A new kind of queue needs a module here, a line in `_KINDS`, its arguments in docs/reference, a checker in the simulation and a
planted bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from broker.core.queues import fairshare, groups, priority
from broker.core.queues.blocks import Lot
from broker.core.queues.fifo import Fifo, Watcher
from broker.core.queues.lane import Lane
from broker.core.queues.residency import Residency


class Discipline(Protocol):
    """A queue's messages, and their order. Sequences are of 64 bits: a lane in the upper 8, a counter in the rest."""

    absent: int
    """The message at which the last `acquire` or `browse` stopped because its body is not in memory; -1 when none did."""
    watchers: list[Watcher]
    """Who hears of messages that become available again."""

    @property
    def lanes(self) -> Sequence[Lane]:
        """The lanes by number."""

    @property
    def depth(self) -> int:
        """Messages alive."""

    @property
    def acquired(self) -> int:
        """Messages alive that somebody has acquired."""

    @property
    def available(self) -> int:
        """Messages alive that `acquire` may give out."""

    @property
    def live_bytes(self) -> int:
        """Encoded bytes of the messages alive."""

    @property
    def has_counts(self) -> bool:
        """Whether any message has a delivery count that is not 0."""

    def lane_of(self, sequence: int) -> Lane:
        """The lane that has this sequence. ValueError when this kind of queue has no such lane."""

    def lane_for(self, message: bytes) -> int:
        """The lane that a new message belongs to: asked by the primary alone."""

    def acquire(self, consumer: object, max_count: int, max_bytes: int) -> list[Lot]:
        """Take the messages that come next for this consumer, up to `max_count` and `max_bytes`, but one at least if there is.

        It ends at the first one that is not in memory (see `absent`): nothing overtakes it.
        """

    def claim(self, first_seq: int, count: int) -> None:
        """Acquire these messages, all of which are available, out of turn: a selector has picked them (see `scan`)."""

    def available_again(self) -> Iterable[int]:
        """The messages that were released, and lie before what was never given out (see `upcoming`)."""

    def browse(self, cursors: list[int], max_count: int, max_bytes: int) -> list[Lot]:
        """Look at live messages, acquired or not, behind the cursors (one for each lane, at first 0), and move these on."""

    def upcoming(self) -> Iterable[tuple[Lane, int]]:
        """The lanes in the order in which they are given out, each with the sequence from which on nothing was yet."""

    def release(self, sequences: Iterable[int]) -> None:
        """Make acquired messages available again, in their old places. Those that are not acquired are passed over."""

    def release_all(self) -> None:
        """Make every acquired message available again: the term in which they were acquired has ended."""

    def left(self, consumer: object) -> None:
        """This consumer asks no more."""

    def take_opened(self) -> bool:
        """Whether messages that some consumer could not have may have become free since this was last asked."""

    def is_acquired(self, sequence: int) -> bool:
        """Whether this message is on the queue and acquired."""

    def remove(self, first_seq: int, count: int) -> tuple[int, int]:
        """Drop these messages for good, in whatever state. Returns how many were alive, and their bytes; again gives (0, 0)."""


Make = Callable[[dict[str, Any], dict[int, int], Residency], Discipline | None]


def _fifo(arguments: dict[str, Any], live_by_file: dict[int, int], residency: Residency) -> Discipline:
    return Fifo(Lane(1, live_by_file, residency))


_KINDS: tuple[Make, ...] = (fairshare.make, priority.make, groups.make, _fifo)


def discipline_of(arguments: dict[str, Any], live_by_file: dict[int, int], residency: Residency) -> Discipline:
    """The discipline that a queue's arguments ask for: the first kind that finds itself meant. Others are passed over."""
    return next(found for make in _KINDS if (found := make(arguments, live_by_file, residency)) is not None)
