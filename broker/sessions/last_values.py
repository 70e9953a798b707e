"""The keys of last value queues after a change of primary: the new primary reads them from the messages, a few in each turn.

Life of a reading: a term begins, and a last value queue holds messages. Their bodies are read back from disk, as for consumers,
and their keys are added to the index (broker.core.queues.last_value). Messages that a newer one has replaced meanwhile leave the
queue. When all keys are read, the queue delivers again. Producers are served all the time.

Invariants: a turn examines at most `limits.MAX_TURN_MESSAGES` of a queue; nothing is delivered before all keys are known, so that
no consumer gets a replaced value; a message that cannot be read keeps its place, does not replace another one and is not
replaced.
"""

from __future__ import annotations

from typing import Protocol

from broker.core import limits
from broker.core.nodes import QueueNode
from broker.core.queues.blocks import Lot
from broker.core.queues.last_value import LastValue
from broker.sessions.ledger import Ledger
from broker.sessions.queue_bodies import QueueBodies
from broker.sessions.schedule import Schedule


class Place(Protocol):
    """A queue on a serving broker."""

    node: QueueNode
    ledger: Ledger
    bodies: QueueBodies

    def dispatch_soon(self) -> None:
        """Dispatch at the end of this turn."""


class LastValues:
    """See the module."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._heads: set[LastValue] = set()
        """Views that wait for the first part of a large message."""

    def read(self, place: Place) -> None:
        """Read some keys of this queue; it is dispatched when more can be done."""
        values, messages = place.node.displacing, place.node.messages
        if messages is None or not place.ledger.serving or not isinstance(values, LastValue) or values in self._heads:
            return
        lane = messages.order.lanes[0]
        lots: list[Lot] = []
        end, absent = lane.walk(lots, values.next_unread, limits.MAX_TURN_MESSAGES, limits.MAX_TURN_BYTES)
        gone: list[int] = []
        for lot in lots:
            for sequence, data in enumerate(lot.messages(), lot.first_seq):
                if sequence in messages.large:
                    end, absent = sequence, True
                    break
                gone += values.found(sequence, data)
            if end < lot.first_seq + lot.n_messages:
                break
        values.read_to(end)
        if gone:
            place.ledger.dequeue(messages.number, gone)
        if values.has_read:
            place.ledger.pending.when_committed(place.dispatch_soon)
        elif not absent:
            self._schedule.after(("last values", place.node.uuid), 0.0, place.dispatch_soon)
        elif end in messages.large:
            self._heads.add(values)
            place.bodies.parts_of(messages.large[end]).read(lambda parts, _: self._came(place, values, end, parts), 1)
        elif passed := lane.unreadable(end)[0]:
            values.read_to(passed)
            place.dispatch_soon()
        else:
            place.bodies.fetch(end)

    def _came(self, place: Place, values: LastValue, sequence: int, parts: list[bytes] | None) -> None:
        """The first part of a large message is here, or cannot be had."""
        self._heads.discard(values)
        messages = place.node.messages
        if messages is None or place.node.displacing is not values or not place.ledger.serving:
            return
        gone = () if parts is None else values.found(sequence, parts[0])
        if gone:
            place.ledger.dequeue(messages.number, gone)
        values.read_to(sequence + 1)
        place.dispatch_soon()
