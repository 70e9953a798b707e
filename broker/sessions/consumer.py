"""A client's receiving link on a queue: the messages that it holds, and their outcomes.

Life of a subscription: a client attaches a receiving link to a queue. While the link has credit, the queue's `dispatch` gives it
messages in order. An acquired message is removed when its dequeue is committed. It returns to its old place when it is released,
or when the link or the term ends. If the connection is lost, and the queue limits or delays failed deliveries, this delivery
counts as failed (docs/adr/0060). Deliveries to a drain or a route do not count, and have no deadline, because these only move
messages. A browsing subscription does not acquire messages.

Invariants: `accepted` is confirmed only when the dequeue is committed; `modified` is confirmed only when the count, the delay and
the annotations are committed, unless the message becomes a dead letter; `rejected` is confirmed at once; the number of unsettled
messages of a link is limited by the client's credit and by `limits.MAX_UNSETTLED_PER_LINK`, and that of all deliveries of a
connection by `limits.MAX_UNSETTLED_PER_CONNECTION`, of which each possible link has an equal share of one half that no other
takes; while a large message is being sent, its link sends no other message.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import accumulate, chain
from typing import Any, Protocol

from broker.amqp.data import Condition
from broker.amqp.sender import Sender
from broker.core import limits, message
from broker.core.acl.questions import Lookups
from broker.core.links import ACCEPTED, FAILED, MODIFIED, REJECTED, RELEASED, TRANSACTION_SHIFT, UNDELIVERABLE
from broker.core.management import told
from broker.core.nodes import QueueNode
from broker.core.queues.blocks import Lot
from broker.core.queues.discipline import Discipline
from broker.core.queues.owned import Owner
from broker.core.selector.selected import Selector
from broker.core.state import Messages
from broker.sessions.attach import LinkEnd, Output
from broker.sessions.deliveries import LargeDelivery
from broker.sessions.due import Due
from broker.sessions.ledger import Ledger
from broker.sessions.overdue import Overdue
from broker.sessions.queue_bodies import QueueBodies
from broker.sessions.returns import Returns
from broker.sessions.schedule import Schedule

_REPEATED = frozenset((REJECTED, RELEASED, MODIFIED))
"""Outcomes that are repeated with the settlement, for clients that wait for this."""
_WENT_BACK = "a message that this connection held went back to its queue, because the consumer timeout was over"


class Supplier(Protocol):
    """The queue that it takes from, as far as a subscription needs it."""

    node: QueueNode
    ledger: Ledger
    due: Due
    bodies: QueueBodies
    returns: Returns
    subscriptions: deque[Subscription]

    @property
    def schedule(self) -> Schedule:
        """The timed actions."""

    @property
    def consumer_s(self) -> float:
        """For how long a consumer may keep a message without an outcome; 0: for any time."""

    def dispatch_soon(self) -> None:
        """Dispatch at the end of this turn."""

    def is_active(self, subscription: Subscription) -> bool:
        """Whether messages go to this subscription while it has credit."""

    def give_back(self, sequences: list[int]) -> None:
        """These are available again, in their old places."""

    def forget(self, subscription: Subscription) -> None:
        """This subscription ends."""

    def closed(self, subscription: Subscription) -> None:
        """A client has closed its link to the queue of a named subscription, which therefore ends."""

    def unsubscribed(self, *, drained: bool = False) -> None:
        """A subscription has ended: a queue that is only there for them goes with the last, or a time after the last link. That
        of a drain (`drained`) does not count."""


class Subscription(LinkEnd):
    """A client's receiving link on a queue."""

    __slots__ = (
        *(
            "_large",
            "_moved_s",
            "_needs",
            "browse",
            "by_name",
            "cursors",
            "delivered",
            "drains",
            "exchange",
            "link",
            "presettled",
        ),
        *("overdue", "owner", "queue", "selector", "unfinished"),
    )

    def __init__(
        self, session: Output, link: Sender, queue: Supplier, needs: Lookups, *, browse: bool, selector: Selector | None
    ) -> None:
        super().__init__(session)
        self._needs = needs
        self.link = link
        self.queue = queue
        self.browse = browse
        self.drains = False
        """Whether it is a drain's: on a broker that leaves, no other gets anything."""
        self.by_name = False
        """Whether it was attached to the named subscription of its queue: its close ends the subscription."""
        self.owner: Owner | None = None
        """The owner of groups that it is, on a queue whose groups have owners."""
        self.exchange = ""
        """Identity of the exchange that its client has attached to; "" if it has attached to the queue."""
        self.presettled = link.presettled
        self.cursors = [0]
        self.selector = selector
        self.unfinished = False
        """Whether there are messages that may be for it, at which its selector has not looked."""
        self.delivered = 0
        self._moved_s = 0.0
        """When an outcome has come last, or the first message went out that has none."""
        self._large: LargeDelivery | None = None
        """The large message that is going out: nothing else does until it has gone."""
        limit_s = 0.0 if browse or self.presettled or link.tags_sequences else queue.consumer_s
        self.overdue = Overdue(self, queue.schedule, limit_s) if limit_s else None
        """When its unsettled messages return to the queue; None: never, as for a drain or a route, whose target may have them."""

    @property
    def node(self) -> QueueNode:
        """The queue that it takes from."""
        return self.queue.node

    @property
    def taker(self) -> object:
        """Who takes the messages, for the order of the queue."""
        return self if self.owner is None else self.owner

    def needs(self) -> Lookups:
        """The lookups that were allowed when its client attached."""
        return self._needs

    def credit(self) -> None:
        """The client has more credit, or wants to know that there are no more messages."""
        self.queue.dispatch_soon()

    def resume(self) -> None:
        """The waiting output was written."""
        self.queue.dispatch_soon()

    def room(self) -> int:
        """How many messages may go out on it now."""
        if self._large is not None:
            return 0
        link = self.link
        room = link.account.room()
        session = self.session
        if room and (
            session.is_stuffed or session.large >= limits.LARGE_AT_ONCE or link.buffered_bytes > limits.MAX_OUTPUT_BYTES
        ):
            session.choke()
            return 0
        if room and not self.presettled:
            room = min(room, max(session.unsettled_left(link.account.n_unsettled), 0))
            if not room:
                session.await_outcomes()
        return room

    @property
    def _is_full(self) -> bool:
        """Whether it, with its connection's other links, holds as many messages as it may."""
        account = self.link.account
        return account.is_full or (not self.presettled and self.session.unsettled_left(account.n_unsettled) <= 0)

    def gives_back(self, room: int) -> bool:
        """Whether nothing goes out for the credit that is left, when it drains and has this `room`: no message is for it, or it
        holds as many as it may and must settle some."""
        if room:
            return not self.unfinished
        return self._is_full and self.link.account.credit > 0 and self._large is None

    @property
    def outstanding(self) -> int:
        """How many messages are on their way to its client, or there and not settled, and return to the queue when it ends."""
        return 0 if self.browse else self.link.account.n_unsettled + (self._large is not None)

    def wants_more(self, order: Discipline) -> bool:
        """Whether there is a next message for it, which is not in memory."""
        return order.absent >= 0 and (self.browse or order.available > 0)

    def deliver(self, lots: list[Lot]) -> None:
        """Send these messages."""
        link = self.link
        messages = self.queue.node.messages
        assert messages is not None
        if messages.large and lots[0].first_seq in messages.large:
            self._deliver_large(messages, lots[0].first_seq)
            return
        counts, expiries, notes = messages.order.has_counts, messages.expiries, messages.notes
        if not link.account.n_unsettled:
            self._moved_s = self.session.now_s
        for lot in lots:
            first, start, stop = lot.first_seq, lot.start, lot.stop
            failed = counts and any(map(messages.order.lane_of(first).delivery_count, range(first, first + stop - start)))
            timed = expiries is not None and expiries.any_of(first, stop - start)
            noted = notes and any(each in notes for each in range(first, first + stop - start))
            if noted or ((failed or timed) and link.traits_of is None):
                self._send_anew(messages, lot)
            else:
                link.send(lot.data, lot.block.offsets, start, stop, first, self.presettled, lot.base)
            self.delivered += stop - start
        if self.overdue is not None:
            self.overdue.sent()
        if self.presettled and not self.browse:
            ledger = self.queue.ledger
            for lot in lots:
                ledger.dequeue(messages.number, range(lot.first_seq, lot.first_seq + lot.n_messages))
        self.session.touch()

    def _deliver_large(self, messages: Messages, sequence: int) -> None:
        """Begin to send a large message. If it cannot be read, it stays on the queue as acquired, without a consumer."""
        if sequence in self.queue.bodies.unreadable:
            return
        as_sent = self.link.traits_of is not None
        count = 0 if as_sent else messages.order.lane_of(sequence).delivery_count(sequence)
        left_ms = 0 if as_sent else self.queue.due.left_ms(messages, sequence)
        parts = self.queue.bodies.parts_of(messages.large[sequence])
        self.session.large += 1
        if not self.link.account.n_unsettled:
            self._moved_s = self.session.now_s
        noted = partial(messages.noted, sequence)
        self._large = LargeDelivery(parts, self.session, noted, count, left_ms, lambda why: self._large_is_over(sequence, why))
        self.link.send_pieces(self._large, sequence, self.presettled)
        self.delivered += 1
        self.session.touch()

    def _large_is_over(self, sequence: int, why: str | None) -> None:
        """A large message was sent (`why` None), or cannot be (with the fault, or "")."""
        large, self._large = self._large, None
        assert large is not None
        self.session.large -= 1
        messages = self.queue.node.messages
        if why is not None:
            mine = self.link.abort_pieces(large) or self.presettled  # otherwise it is still in the account, or has its outcome
            if why or self.queue.bodies.lacks_parts(sequence):
                self.queue.bodies.unreadable.add(sequence)
            elif mine and not self.browse and messages is not None:
                messages.order.release((sequence,))
        elif self.presettled and not self.browse and messages is not None:
            self.queue.ledger.dequeue(messages.number, (sequence,))
        elif self.overdue is not None:
            self.overdue.sent()
        self.session.touch()
        self.queue.dispatch_soon()

    def _send_anew(self, messages: Messages, lot: Lot) -> None:
        """Messages whose header must contain failed deliveries or the rest of their time to live, or that have annotations of a
        consumer."""
        first, count_of = lot.first_seq, messages.order.lane_of(lot.first_seq).delivery_count
        left_ms, found = self.queue.due.left_ms, lot.messages()
        for at, data in enumerate(found):
            noted = messages.noted(first + at, data)
            if self.link.traits_of is None:  # otherwise the traits are sent beside the message
                noted = message.as_delivered(noted, count_of(first + at), left_ms(messages, first + at))
            found[at] = noted
        offsets = list(accumulate(map(len, found), initial=0))
        self.link.send(b"".join(found), offsets, 0, len(found), first, self.presettled)

    def describe(self) -> dict[str, Any]:
        """Its item in a query of management, without its connection's part."""
        definition = self.node.definition
        return {
            "id": told(self.link.name),
            "queue": self.node.name,
            "browse": self.browse,
            "acknowledged": not self.presettled,
            "exclusive": definition.exclusive,
            "active": self.queue.is_active(self),
            "creditMode": "CREDIT",
            "delivered": self.delivered,
            "unacked": self.link.account.n_unsettled,
            "still_s": self.still_s,
        }

    @property
    def still_s(self) -> float:
        """For how long it has sent no outcome for its messages, or its client has not read; the longer of both, or 0."""
        session = self.session
        held_s = session.now_s - self._moved_s if self.link.account.n_unsettled else 0.0
        return max(held_s, session.unread_s)

    def end_slow(self, condition: Condition) -> None:
        """It holds others up: end its link, or its connection if that is not read."""
        if self.session.unread_s:
            self.session.turn_out(condition)
        else:
            self.end_link(condition)

    def end_link(self, condition: Condition) -> None:
        """It gets nothing more, and hears why."""
        self.session.end_link(self.link, condition)

    # ---- what comes back

    def outcomes(self) -> None:
        """Take the outcomes that have come on the link, run by run."""
        link, account, messages = self.link, self.link.account, self.queue.node.messages
        came, retired, said = link.take_outcomes(), link.take_retired(), link.take_notes()
        self._moved_s = self.session.now_s
        if (messages is None or messages.order.available or account.draining) and self._is_full:
            self.queue.dispatch_soon()  # the link may have unused credit, and nothing else will start a dispatch
        if self.browse or messages is None:
            for first, count, _, _ in came:
                account.take(first, count)
                link.settle(first, count)
            return
        ledger = self.queue.ledger
        taken: list[int] = []
        confirm: list[tuple[int, int]] = []
        back: list[int] = []
        for first, count, outcome, settled in came:
            ranges = account.take(first, count)
            if outcome >> TRANSACTION_SHIFT:
                txn_id = retired[(outcome >> TRANSACTION_SHIFT) - 1]
                if not self.session.transactions.retire(txn_id, self.queue, ranges, outcome):
                    back += chain.from_iterable(ranges)
                if not settled:
                    link.settle(first, count)
                continue
            if outcome == ACCEPTED:
                for sequences in ranges:
                    taken += sequences
                if not settled:
                    confirm.append((first, count))
                continue
            found = list(chain.from_iterable(ranges))
            notes = {each: said[at] for at, each in enumerate(found, first) if at in said} if said else {}
            self.queue.returns.settle(found, outcome, notes)
            if not settled:
                kind = outcome & 0xFF
                if kind == MODIFIED and not outcome & UNDELIVERABLE and (outcome & FAILED or notes):
                    ledger.settle(link, first, count, kind)
                else:
                    link.settle(first, count, kind if kind in _REPEATED else 0)
        if taken:
            ledger.dequeue(messages.number, taken, link if confirm else None, confirm)
        if back:
            self.queue.give_back(back)
        self.session.touch()

    @property
    def now_s(self) -> float:
        """The reactor's time."""
        return self.session.now_s

    def take_back(self, before: int) -> None:
        """Its deliveries with ids below this one, as far as they have no outcome, are overdue: let others have the messages."""
        account = self.link.account
        if self._large is not None:
            before = min(before, account.next_id - 1)  # the time-out of a large message begins when it is completely sent
        sequences = list(chain.from_iterable(account.take(0, before)))
        if sequences:
            self.link.take_back(before)
            self.node.overdue += len(sequences)
            self.queue.returns.undo(sequences, count=True)
            self.session.transactions.fail_open(_WENT_BACK)  # an outcome in one of them is late now, and would be passed over
            self.session.touch()

    def detached(self) -> None:
        """The link is gone: so is a queue that was there for its subscriptions, with the last of them."""
        self.end()
        if self.link.closed_by_peer and self.by_name:
            self.queue.closed(self)
        else:
            self.queue.unsubscribed(drained=self.drains)

    def end(self) -> None:
        """Its acquired messages return to their places."""
        account, node = self.link.account, self.node
        if self.overdue is not None:
            self.overdue.close()
        self.queue.forget(self)
        if self.drains:
            self.queue.due.hold_back()
        self.cut_short()
        # Outcomes that came but were not looked at, and the unsettled rest: volatile acquisitions end with the link.
        accepted = [
            each
            for first, count, outcome, _ in self.link.take_outcomes()
            if outcome == ACCEPTED
            for each in account.take(first, count)
        ]
        sequences = list(chain.from_iterable(account.take_rest()))
        if node.messages is not None and not self.browse:
            if accepted:
                self.queue.ledger.dequeue(node.messages.number, chain.from_iterable(accepted))
            if sequences and self._has_failed:
                self.queue.returns.undo(sequences, count=True)
            elif sequences:
                node.messages.order.release(sequences)
                self.queue.dispatch_soon()

    @property
    def is_over(self) -> bool:
        """Whether its client has ended it for good, and not only lost or detached it, and the broker has not ended it."""
        return self.link.ended_by_peer or self.session.is_closed

    @property
    def _has_failed(self) -> bool:
        """Whether its end counts as a failed delivery of its messages. See the module."""
        counts = self.node.delivery_limit or self.node.retry_ms[0]
        return bool(counts) and self.session.is_lost and not self.link.tags_sequences

    def cut_short(self) -> None:
        """Stop sending a large message."""
        if self._large is not None:
            self._large.end()
