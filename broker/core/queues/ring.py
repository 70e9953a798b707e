"""The messages that leave a ring queue when another one arrives: its oldest ones; on a priority queue, those of the lowest level.

Only the primary maintains a ring, when it proposes: the dequeues of the leaving messages are in the same batch as the arriving
message. So the queue is within its limits after every batch, on every broker. A backup only applies records.

Life of a view: `begin` reads the applied state. Then for each message that will be proposed, `put` returns the sequences that
leave. Proposed messages count like existing ones before they are applied: a message may arrive and leave in one batch. When a
term ends, its proposals are void: then there is a new view (`QueueNode.go_on`).

The oldest message leaves, even if a consumer has acquired it. The strict kind refuses a message if one would have to leave that a
consumer has acquired; one that waits for its time leaves. On a priority queue, no message leaves for one of a lower level: then
the new message does not stay.

Invariants: the result of `put` is proposed, in this order; sequences of a lane are put in the order in which they are assigned.

Source: qpidd's LossyQueue.cpp and QueueCursor.cpp; the strict kind by its documents (Managing-CPP-Broker.xml).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from broker.core.queues.discipline import Discipline
from broker.core.queues.lane import LANE_SHIFT, Lane
from broker.core.queues.times import Times


class Sized(Protocol):
    """A large message, by its manifest."""

    @property
    def nbytes(self) -> int:
        """Its encoded bytes in all."""


class Held(Protocol):
    """The messages of a queue, as far as they are applied."""

    @property
    def order(self) -> Discipline:
        """Where they stand."""

    @property
    def large(self) -> Mapping[int, Sized]:
        """Those of them that are large."""

    @property
    def delays(self) -> Times | None:
        """The times from which on they may be delivered; None: none has one."""


class _End:
    """The old end of a lane. `head`: messages below it have left already; `sizes`: bytes of the proposed messages from `first`
    on; `count` and `nbytes`: the content when all proposals are applied."""

    __slots__ = ("_seen", "count", "first", "head", "lane", "large", "nbytes", "sizes")

    def __init__(self, lane: Lane, large: Mapping[int, Sized]) -> None:
        self.lane = lane
        self.large = large
        self.head = lane.head_seq
        self.first = lane.next_seq
        self.sizes: list[int] = []
        self.count = self.nbytes = 0
        self._seen = (-1, 0, 0)

    def begin(self) -> None:
        """Count the content, unless the lane is as it was when this was last done: what was proposed since is counted by `put`.

        A message that has come makes `next_seq` larger, and otherwise one that has gone makes `depth` smaller.
        """
        lane = self.lane
        seen = (lane.next_seq, lane.depth, lane.live_bytes)
        if seen == self._seen:
            return
        self._seen = seen
        applied = lane.next_seq - self.first
        if applied:
            del self.sizes[:applied]
            self.first = lane.next_seq
        ahead = self.sizes[max(self.head - self.first, 0) :]
        self.count, self.nbytes = lane.depth + len(ahead), lane.live_bytes + sum(ahead)
        if self.large:
            self.nbytes += sum(
                manifest.nbytes - lane.size_of(sequence)
                for sequence, manifest in self.large.items()
                if sequence >> LANE_SHIFT == lane.next_seq >> LANE_SHIFT
            )
        for sequence, nbytes in self._applied(lane.head_seq):
            if sequence >= self.head:
                break
            self.count -= 1
            self.nbytes -= nbytes

    def oldest(self) -> Iterator[tuple[int, int]]:
        """Sequence and bytes of the messages, the oldest first."""
        yield from self._applied(self.head)
        for at in range(max(self.head - self.first, 0), len(self.sizes)):
            yield self.first + at, self.sizes[at]

    def _applied(self, sequence: int) -> Iterator[tuple[int, int]]:
        for found, nbytes in self.lane.alive_from(sequence):
            manifest = self.large.get(found) if self.large else None
            yield found, nbytes if manifest is None else manifest.nbytes


class Ring:
    """See the module. A bound of 0 is none. Fulfils Displacing."""

    __slots__ = ("_count", "_ends", "_held", "_nbytes", "max_bytes", "max_count", "strict")
    ready = True

    def __init__(self, held: Held, max_count: int, max_bytes: int, *, strict: bool) -> None:
        self._held = held
        self._count = self._nbytes = 0
        self._ends = [_End(lane, held.large) for lane in held.order.lanes]
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.strict = strict

    def begin(self) -> None:
        """Messages will be put: update the view from the applied state."""
        for end in self._ends:
            end.begin()
        self._count = sum(end.count for end in self._ends)
        self._nbytes = sum(end.nbytes for end in self._ends)

    def put(self, sequence: int, data: bytes, nbytes: int) -> Sequence[int] | None:
        """A message of so many bytes gets this sequence: those that leave for it; None, and it gets none, when it cannot stay."""
        end = self._ends[sequence >> LANE_SHIFT]
        leaving = self._leaving(sequence >> LANE_SHIFT, nbytes)
        if leaving is None:
            return None
        for gone, gone_bytes in leaving:
            other = self._ends[gone >> LANE_SHIFT]
            other.head = gone + 1
            other.count -= 1
            other.nbytes -= gone_bytes
            self._count -= 1
            self._nbytes -= gone_bytes
        end.sizes.append(nbytes)
        end.count += 1
        end.nbytes += nbytes
        self._count += 1
        self._nbytes += nbytes
        return [gone for gone, _ in leaving]

    def fault(self, count: int, nbytes: int, largest: int = 0) -> str:
        """See Displacing. Several messages may be more than all that it may hold: then those in front leave for those behind."""
        largest = largest or nbytes
        if self.max_bytes and largest > self.max_bytes:
            return f"{largest} bytes are more than all of the {self.max_bytes} that it may hold"
        if self.strict:
            self.begin()
            for gone, gone_bytes in self._ends[0].oldest():
                if not self._over(count, nbytes):
                    break
                if self._has_consumer(gone):
                    return "its oldest message would have to leave, and a consumer has acquired that"
                count -= 1
                nbytes -= gone_bytes
        return ""

    def leaves(self, sequence: int) -> bool:
        """See Displacing. The oldest ones of a level have left."""
        return sequence < self._ends[sequence >> LANE_SHIFT].head

    def _has_consumer(self, sequence: int) -> bool:
        """Whether this message is acquired, and does not just wait for its time."""
        delays = self._held.delays
        return self._held.order.is_acquired(sequence) and (delays is None or not delays.is_waiting(sequence))

    def _over(self, count: int, nbytes: int) -> bool:
        """Whether so much more would pass the limits."""
        too_many = self.max_count and self._count + count > self.max_count
        return bool(too_many or (self.max_bytes and self._nbytes + nbytes > self.max_bytes))

    def _leaving(self, level: int, nbytes: int) -> list[tuple[int, int]] | None:
        """The messages that leave for a message of this level, with their bytes; None if the new message cannot stay."""
        found: list[tuple[int, int]] = []
        count = 1
        for number, end in enumerate(self._ends):
            if not self._over(count, nbytes):
                return found
            if number > level:
                break
            for gone, gone_bytes in end.oldest() if end.count else ():
                found.append((gone, gone_bytes))
                count -= 1
                nbytes -= gone_bytes
                if not self._over(count, nbytes):
                    return found
        return found if not self._over(count, nbytes) else None
