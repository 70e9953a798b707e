"""Selectors on a queue: the messages for consumers and browsers with a selector, and the share of each turn for finding them.

Life of a search: a subscription with a selector has credit, and its queue dispatches. A limited number of messages is examined at
once (`limits.SELECTOR_LOOKS`); usually these are the newest ones. If there are more to examine, the queue waits for its share of
the next turns (`broker.sessions.share`), and examines as many in each. So a search through a million messages delays nobody, and
the queue's other consumers get their messages meanwhile. Bodies that are not in memory are read by the queue's read-ahead; of a
large message the first part is read here.

Invariants: searches of one queue take turns; consumers with the same selector share one scan (`broker.core.queues.scan`), which
ends with the last of them; a subscription that was not shown all existing messages is `unfinished`, and is not told that there is
no message for it.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from broker.amqp.data import Condition
from broker.core import limits
from broker.core.parts import Manifest
from broker.core.queues.blocks import Lot
from broker.core.queues.discipline import Discipline
from broker.core.queues.scan import Scan, bytes_of, looks
from broker.core.selector.grammar import BadSelector
from broker.core.selector.selected import Selector, selected
from broker.core.state import Messages
from broker.sessions.attach import Attach
from broker.sessions.queue_bodies import QueueBodies
from broker.sessions.share import Share

_HEADS = 4
"""First parts of large messages that are kept at a time."""
_NOBODY_READS = b"\xff"
"""In place of a first part that cannot be read: no message."""


def selector_of(attach: Attach) -> Selector | None:
    """The selector that a client asks for; None when it wants everything. Condition when it cannot be."""
    try:
        return selected(attach.asked.filters)
    except BadSelector as error:
        raise Condition("amqp:invalid-field", str(error)) from None


class Searcher(Protocol):
    """A subscription with a selector."""

    selector: Selector | None
    browse: bool
    cursors: list[int]
    unfinished: bool


class Searched(Protocol):
    """A queue on which subscriptions have selectors."""

    bodies: QueueBodies

    def dispatch(self) -> None:
        """Give out."""

    def dispatch_soon(self) -> None:
        """Give out at the end of this turn."""


class Selections:
    """See the module. Fulfils `share.Work`."""

    __slots__ = ("_heads", "_looks", "_queue", "_scans", "_share", "_turns", "_users", "_waits", "_wanted")

    def __init__(self, queue: Searched, share: Share) -> None:
        self._queue = queue
        self._share = share
        self._scans: dict[Selector, Scan] = {}
        self._users: dict[Selector, int] = {}
        self._heads: dict[int, bytes | None] = {}
        """Large message -> its first part; None: it is being read."""
        self._wanted: dict[int, Manifest] = {}
        """Large messages whose first parts must be read."""
        self._looks = 0
        self._turns = False
        self._waits = False
        """Whether the queue waits for its share of a turn."""

    # ---- subscriptions

    def add(self, selector: Selector) -> None:
        """One more consumer with this selector."""
        self._users[selector] = self._users.get(selector, 0) + 1

    def drop(self, selector: Selector) -> None:
        """One fewer."""
        self._users[selector] -= 1
        if not self._users[selector]:
            del self._users[selector]
            scan = self._scans.pop(selector, None)
            if scan is not None:
                scan.close()

    def clear(self) -> None:
        """The queue was deleted, or its log stops serving."""
        for scan in self._scans.values():
            scan.close()
        self._scans.clear()
        self._users.clear()
        self._heads.clear()
        self._wanted.clear()
        self._share.forget(self)
        self._waits = False

    # ---- turns

    def begin(self) -> None:
        """The queue begins to give out."""
        self._looks = 0 if self._waits and not self._turns else limits.SELECTOR_LOOKS

    @property
    def used_up(self) -> bool:
        """Whether a subscription could have examined more messages."""
        return self._waits and self._looks <= 0

    def go_on(self) -> bool:
        """See `share.Work`."""
        self._waits, self._turns = False, True
        try:
            self._queue.dispatch()
        finally:
            self._turns = False
        return self._waits

    def _later(self) -> None:
        if not self._waits:
            self._waits = True
            if not self._turns:
                self._share.later(self)

    # ---- messages

    def find(self, searcher: Searcher, messages: Messages, max_count: int) -> list[Lot]:
        """The next messages for this subscription; `order.absent` tells whether it stopped at a body that is not in memory."""
        assert searcher.selector is not None
        order = messages.order
        order.absent = -1
        searcher.unfinished = False
        if searcher.browse:
            return self._browse(searcher, searcher.selector, messages, max_count)
        if not order.available:
            return []
        scan = self._scan(searcher.selector, order)
        lots = scan.take(max_count, limits.MAX_TURN_BYTES, self._looks, messages.large, self._heads)
        self._looks = scan.looks_left
        order.absent = scan.absent
        if scan.headless >= 0:
            self._wanted[scan.headless] = messages.large[scan.headless]
        if scan.has_more:
            self._later()
        searcher.unfinished = scan.has_more or scan.headless >= 0
        return lots

    def _scan(self, selector: Selector, order: Discipline) -> Scan:
        scan = self._scans.get(selector)
        if scan is None or scan.order is not order:
            scan = self._scans[selector] = Scan(order, selector)
        return scan

    def _browse(self, searcher: Searcher, selector: Selector, messages: Messages, max_count: int) -> list[Lot]:
        order = messages.order
        found: list[Lot] = []
        while not found:
            if self._looks <= 0:
                self._later()
                searcher.unfinished = True
                return []
            before = searcher.cursors[:]
            most = min(limits.MAX_TURN_BYTES, bytes_of(self._looks, selector))
            lots = order.browse(searcher.cursors, min(max_count, self._looks), most)
            if not lots:
                break
            for lot in lots:
                offsets = lot.block.offsets
                self._looks -= looks(lot.n_messages, offsets[lot.stop] - offsets[lot.start], selector)
                if messages.large and lot.first_seq in messages.large and self._heads.get(lot.first_seq) is None:
                    searcher.cursors[:] = before
                    searcher.unfinished = True
                    self._wanted[lot.first_seq] = messages.large[lot.first_seq]
                    return []
                found += self._matching(lot, selector, messages)
        return found

    def _matching(self, lot: Lot, selector: Selector, messages: Messages) -> list[Lot]:
        """The parts of a lot that match."""
        lane, first, offsets = messages.order.lane_of(lot.first_seq), lot.block.first_seq, lot.block.offsets
        parts: list[Lot] = []
        counted = selector.counts and lane.has_counts
        for position in range(lot.start, lot.stop):
            failures = lane.delivery_count(first + position) if counted else 0
            head = self._heads.get(first + position) if messages.large and first + position in messages.large else None
            if head is not None:
                matched = selector.matches(head, 0, len(head), failures)
            else:
                matched = selector.matches(lot.data, lot.base + offsets[position], lot.base + offsets[position + 1], failures)
            if matched:
                if parts and parts[-1].stop == position:
                    parts[-1] = parts[-1]._replace(stop=position + 1)
                else:
                    parts.append(lot._replace(start=position, stop=position + 1))
        return parts

    # ---- first parts of large messages

    def end(self) -> None:
        """The queue has given out: everybody has looked at the first parts that were there. Read those that are wanted now."""
        for sequence in [each for each, head in self._heads.items() if head is not None]:
            del self._heads[sequence]
        for sequence, manifest in self._wanted.items():
            if sequence not in self._heads and len(self._heads) < _HEADS:  # the searches that want the others ask again
                self._heads[sequence] = None
                self._queue.bodies.parts_of(manifest).read(partial(self._head_came, sequence), 1)
        self._wanted.clear()

    def _head_came(self, sequence: int, parts: list[bytes] | None, why_not: str) -> None:
        if sequence not in self._heads:
            return
        if parts is None and not why_not:
            del self._heads[sequence]  # the message has left the queue
        else:
            self._heads[sequence] = parts[0] if parts else _NOBODY_READS
        self._queue.dispatch_soon()
