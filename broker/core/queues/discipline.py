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

from broker.core.queues import fairshare, groups, owned, priority
from broker.core.queues.blocks import Lot
from broker.core.queues.fifo import Fifo
from broker.core.queues.lane import Lane
from broker.core.queues.residency import Residency
from broker.core.queues.returned import Returned


class Discipline(Protocol):
    """A queue's messages, and their order. Sequences are of 64 bits: a lane in the upper 8, a counter in the rest."""

    absent: int
    """The message at which the last `acquire` or `browse` stopped because its body is not in memory; -1 when none did."""
    searching: bool
    """Whether the last `acquire` calls have not looked at all messages, because there were many: ask again in a later turn, after
    `search_on`."""
    returned: Returned
    """Has a note of each message that becomes available again."""

    @property
    def lanes(self) -> Sequence[Lane]:
        """The lanes by number."""

    @property
    def depth(self) -> int:
        """Messages alive."""

    @property
    def acquired(self) -> int:
        """Live messages that are acquired."""

    @property
    def available(self) -> int:
        """Live messages that `acquire` may return."""

    @property
    def live_bytes(self) -> int:
        """Encoded bytes of the messages alive."""

    @property
    def is_spilled(self) -> bool:
        """Whether a lane may have bodies that are not in memory (`Lane.spilled`)."""

    @property
    def has_counts(self) -> bool:
        """Whether any message has a delivery count that is not 0."""

    def lane_of(self, sequence: int) -> Lane:
        """The lane that has this sequence. ValueError when this kind of queue has no such lane."""

    def lane_for(self, message: bytes) -> int:
        """The lane for a new message. Only the primary asks."""

    def acquire(self, consumer: object, max_count: int, max_bytes: int) -> list[Lot]:
        """Take the next messages for this consumer, up to `max_count` and `max_bytes`, but at least one if there is one.

        It ends at the first one that is not in memory (see `absent`): no message overtakes it.
        """

    def claim(self, first_seq: int, count: int) -> None:
        """Acquire these messages out of order; all must be available. A selector has picked them (see `scan`)."""

    def available_again(self) -> Iterable[int]:
        """The released messages before the first one that was never delivered (see `upcoming`)."""

    def browse(self, cursors: list[int], max_count: int, max_bytes: int) -> list[Lot]:
        """Return live messages, acquired or not, after the cursors (one for each lane, at first 0), and move the cursors."""

    def upcoming(self) -> Iterable[tuple[Lane, int]]:
        """The lanes in the order of delivery, each with the first sequence that was never delivered."""

    def release(self, sequences: Iterable[int]) -> None:
        """Make acquired messages available again, in their old places. Others are skipped."""

    def will_return(self, sequences: Iterable[int]) -> None:
        """These acquired messages are about to be released, set aside or removed. Others are skipped."""

    def set_aside(self, sequences: Iterable[int], *, given: bool = True) -> None:
        """No consumer has these acquired messages: they are not for delivery until they are released. Others are skipped. Without
        `given`, they are of the last `acquire`, and no consumer has had them."""

    def release_all(self) -> None:
        """Make every acquired message available again: the term in which they were acquired has ended."""

    def left(self, consumer: object) -> None:
        """This consumer has ended."""

    def search_on(self) -> None:
        """A new turn has begun: `acquire` may look at further messages."""

    def take_opened(self) -> bool:
        """Whether messages that some consumer could not have may have become free since this was last asked."""

    def is_acquired(self, sequence: int) -> bool:
        """Whether this message is on the queue and acquired."""

    def remove(self, first_seq: int, count: int) -> tuple[int, int]:
        """Drop these messages for good, in whatever state. Returns how many were alive, and their bytes; again gives (0, 0)."""


Make = Callable[[dict[str, Any], dict[int, int], Residency], Discipline | None]


def _fifo(arguments: dict[str, Any], live_by_file: dict[int, int], residency: Residency) -> Discipline:
    return Fifo(Lane(1, live_by_file, residency))


_KINDS: tuple[Make, ...] = (fairshare.make, priority.make, owned.make, groups.make, _fifo)


def discipline_of(arguments: dict[str, Any], live_by_file: dict[int, int], residency: Residency) -> Discipline:
    """The discipline for a queue's arguments: the first kind that accepts them."""
    return next(found for make in _KINDS if (found := make(arguments, live_by_file, residency)) is not None)
