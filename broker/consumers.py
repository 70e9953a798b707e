"""Messages on their way out: from a queue to the links that take from it, and back when they were not wanted.

Life of a subscription: a client attaches a receiving link to a queue; while it has credit, `dispatch` gives it messages in
order, sharing a queue among its subscriptions in turn; an acquired message is gone for good when its dequeue is committed, and
back in its old place when it is released, or the link or the reign ends. A browsing subscription only looks.

A mailbox is a node of one link: the volatile place for answers that a client asks for with a dynamic source. It dies with its
link.

Invariants: a message is acquired by one subscription at a time; a settled `accepted` of a consumer is confirmed only when its
dequeue is committed; what waits unsettled on a link is bounded by the client's credit and by `limits.MAX_UNSETTLED_PER_LINK`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from cproton_ffi import lib

from broker.amqp.links import ACCEPTED, MODIFIED, REJECTED, RELEASED, Sender
from broker.core import limits, message
from broker.core.nodes import QueueNode, Unplaced
from broker.core.queues.blocks import Lot
from broker.ledger import Ledger


class ConsumerHost(Protocol):
    """What a subscription needs of its broker."""

    def ledger_of(self, node: QueueNode) -> Ledger:
        """The ledger that holds this queue's messages."""

    def touched(self, link: Sender) -> None:
        """The link's connection has output."""

    def dispatch_soon(self, node: QueueNode) -> None:
        """The queue has messages to give out again."""

    def choked(self, link: Sender) -> None:
        """Too much output waits on this link: ask for its queue's dispatch when that has gone."""

    def dead_letter(self, node: QueueNode, data: bytes, done: Callable[[], None]) -> bool:
        """Send a rejected message to the queue's alternate exchange; `done` when it is safe there. False: there is none.

        Unplaced: it cannot go there yet.
        """


class Subscription:
    """A client's receiving link on a queue."""

    __slots__ = ("browse", "cursors", "delivered", "host", "link", "node", "presettled")

    def __init__(self, host: ConsumerHost, link: Sender, node: QueueNode, *, browse: bool) -> None:
        self.host = host
        self.link = link
        self.node = node
        self.browse = browse
        self.presettled = link.presettled
        self.cursors = [0]
        self.delivered = 0

    def room(self) -> int:
        """How many messages may go out on it now."""
        link = self.link
        credit = link.credit
        if credit <= 0:
            return 0
        if link.buffered_bytes > limits.MAX_OUTPUT_BYTES:
            self.host.choked(link)
            return 0
        return min(credit, limits.MAX_UNSETTLED_PER_LINK - len(link.unsettled), limits.MAX_TURN_MESSAGES)

    def deliver(self, lots: list[Lot]) -> None:
        """Send these messages."""
        link = self.link
        messages = self.node.messages
        assert messages is not None
        counts = messages.order.has_counts
        for lot in lots:
            block = lot.block
            first = block.first_seq
            keys = range(first + lot.start, first + lot.stop)
            if counts and any(map(messages.order.lane_of(lot.first_seq).delivery_count, keys)):
                self._redeliver(lot)
            else:
                link.send(lot.data, block.offsets, lot.start, lot.stop, keys, self.presettled, lot.base)
            self.delivered += lot.stop - lot.start
            link.engine.messages_out += lot.stop - lot.start
        if self.presettled and not self.browse:
            ledger = self.host.ledger_of(self.node)
            for lot in lots:
                ledger.dequeue(messages.number, range(lot.first_seq, lot.first_seq + lot.n_messages))
        self.host.touched(link)

    def _redeliver(self, lot: Lot) -> None:
        """Messages whose header must say that delivery has failed before."""
        assert self.node.messages is not None
        lane = self.node.messages.order.lane_of(lot.first_seq)
        for sequence, stored in enumerate(lot.messages(), lot.first_seq):
            one, count = stored, lane.delivery_count(sequence)
            if count:
                with suppress(message.BadMessage):  # what is no AMQP message goes out as it came in
                    one = message.with_delivery_state(one, message.header(one).delivery_count + count, False)
            self.link.send_one(one, sequence, self.presettled)

    # ---- what comes back

    def outcomes(self) -> None:
        """Take the outcomes that have come on the link."""
        link, node = self.link, self.node
        came, link.outcomes = link.outcomes, []
        if self.browse or node.messages is None:
            link.settle([delivery for delivery, _, _, _ in came])
            return
        ledger = self.host.ledger_of(node)
        taken: list[int] = []
        confirm: list[Any] = []
        settled: list[Any] = []
        back: list[int] = []
        failed: list[int] = []
        for delivery, sequence, outcome, is_settled in came:
            if outcome == ACCEPTED:
                taken.append(sequence)
                (settled if is_settled else confirm).append(delivery)
            elif outcome == REJECTED or (outcome == MODIFIED and self._undeliverable(delivery)):
                if not self._rejected(ledger, sequence):
                    back.append(sequence)
                settled.append(delivery)
            else:
                if outcome == MODIFIED and lib.pn_disposition_is_failed(lib.pn_delivery_remote(delivery)):
                    ledger.count(node.messages.number, sequence)
                    failed.append(sequence)
                else:
                    back.append(sequence)
                settled.append(delivery)
        if taken:
            ledger.dequeue(node.messages.number, taken, link if confirm else None, confirm)
        link.settle(settled, 0)
        if failed:  # whoever gets them next is to see the raised count
            ledger.when_committed(lambda: self._give_back(failed))
        if back:
            node.messages.order.release(back)
            self.host.dispatch_soon(node)
        self.host.touched(link)

    def _give_back(self, sequences: list[int]) -> None:
        if self.node.messages is not None:
            self.node.messages.order.release(sequences)
            self.host.dispatch_soon(self.node)

    @staticmethod
    def _undeliverable(delivery: Any) -> bool:
        return bool(lib.pn_disposition_is_undeliverable(lib.pn_delivery_remote(delivery)))

    def _rejected(self, ledger: Ledger, sequence: int) -> bool:
        """A rejected message goes to the alternate exchange if there is one, and off the queue in any case; False: it cannot go
        there yet.
        """
        node = self.node
        assert node.messages is not None
        number = node.messages.number
        lot = node.messages.order.lane_of(sequence).lot_of(sequence)
        data = None if lot is None else lot.messages()[0]
        try:
            if data is None or not self.host.dead_letter(node, data, lambda: ledger.dequeue(number, (sequence,))):
                ledger.dequeue(number, (sequence,))
        except Unplaced:
            return False
        return True

    def end(self) -> None:
        """The link is gone: what it had acquired goes back to its place."""
        link, node = self.link, self.node
        queue: Queueing = node.context
        if self in queue.subscriptions:
            queue.subscriptions.remove(self)
        sequences = list(link.unsettled.values())
        link.unsettled.clear()
        if node.messages is not None and not self.browse:
            # Outcomes that came but were not looked at, and the unsettled rest: volatile acquisitions end with the link.
            sequences += [sequence for _, sequence, outcome, _ in link.outcomes if outcome != ACCEPTED]
            accepted = [sequence for _, sequence, outcome, _ in link.outcomes if outcome == ACCEPTED]
            if accepted:
                self.host.ledger_of(node).dequeue(node.messages.number, accepted)
            if sequences:
                node.messages.order.release(sequences)
                self.host.dispatch_soon(node)


class Queueing:
    """What a queue node carries at run time on a serving broker: its subscriptions in turn, and producers that send to it."""

    __slots__ = ("producers", "subscriptions")

    def __init__(self) -> None:
        self.subscriptions: deque[Subscription] = deque()
        self.producers: dict[Any, None] = {}


def dispatch(node: QueueNode) -> None:
    """Give out what is available, in turn among the subscriptions that have room."""
    queueing: Queueing | None = node.context
    if queueing is None or node.messages is None or not queueing.subscriptions:
        return
    order = node.messages.order
    subscriptions = queueing.subscriptions
    idle = 0
    while idle < len(subscriptions):
        subscription = subscriptions[0]
        subscriptions.rotate(-1)
        room = subscription.room()
        lots: list[Lot] = []
        if room > 0:
            if subscription.browse:
                lots = order.browse(subscription.cursors, room, limits.MAX_TURN_BYTES)
            elif order.available:
                lots = order.acquire(subscription, room, limits.MAX_TURN_BYTES)
        if lots:
            subscription.deliver(lots)
            idle = 0
        else:
            if room > 0 and subscription.link.draining:
                subscription.link.drained()
                subscription.host.touched(subscription.link)
            idle += 1


class Mailbox:
    """The volatile node behind a dynamic source: messages go straight to its one link, or wait, boundedly, for credit."""

    __slots__ = ("_nbytes", "_waiting", "address", "host", "link")

    def __init__(self, host: ConsumerHost, link: Sender, address: str) -> None:
        self.host = host
        self.link = link
        self.address = address
        self._waiting: deque[bytes] = deque()
        self._nbytes = 0

    def put(self, data: bytes) -> None:
        """Send or keep a message. When it is full the oldest goes: whoever asks so much at once does not read the answers."""
        self._waiting.append(data)
        self._nbytes += len(data)
        while len(self._waiting) > limits.MAILBOX_MESSAGES or (self._nbytes > limits.MAILBOX_BYTES and len(self._waiting) > 1):
            self._nbytes -= len(self._waiting.popleft())
        self.flush()

    def flush(self) -> None:
        """Send what there is credit for. Nothing is redelivered: it is settled as it goes."""
        while self._waiting and self.link.credit > 0:
            data = self._waiting.popleft()
            self._nbytes -= len(data)
            self.link.send_one(data, None, True)
            self.link.engine.messages_out += 1
        if self.link.open and self.link.draining and not self._waiting:
            self.link.drained()
        self.host.touched(self.link)


__all__ = ["RELEASED", "ConsumerHost", "Mailbox", "Queueing", "Subscription", "dispatch"]
