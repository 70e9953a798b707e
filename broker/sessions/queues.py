"""A queue as links see it: producers put messages on it, `dispatch` gives them out to subscriptions, and what is not wanted comes
back or becomes a dead letter (broker.sessions.dead_letters).

Life of a subscription: a client attaches a receiving link to a queue; while it has credit, `dispatch` gives it messages in
order, sharing a queue among its subscriptions in turn; an acquired message is gone for good when its dequeue is committed, and
back in its old place when it is released, or the link or the term ends. A browsing subscription only looks.

Invariants: a message is acquired by one subscription at a time; a settled `accepted` of a consumer is confirmed only when its
dequeue is committed; what waits unsettled on a link is bounded by the client's credit and by `limits.MAX_UNSETTLED_PER_LINK`; a
queue that is nearly full gives its producers no more credit until it has become emptier; nothing overtakes a message whose body
is being read back from disk; what is to leave as a dead letter is given to nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any, Protocol

from twisted.logger import Logger

from broker.amqp.links import Condition, Sender, Standing
from broker.core import letters, limits, message
from broker.core.acl import questions
from broker.core.acl.questions import Lookups
from broker.core.commands import NOTES_SINCE
from broker.core.links import ACCEPTED, FAILED, REJECTED, TRANSACTION_SHIFT, UNDELIVERABLE
from broker.core.nodes import QueueNode
from broker.core.parts import Manifest
from broker.core.queues.arguments import BROWSE_ONLY, GROUP_KEY, SINGLE_ACTIVE, consumer_ms_of
from broker.core.queues.blocks import Lot
from broker.core.queues.discipline import Discipline
from broker.core.queues.lane import Lane
from broker.core.queues.reading import Body, ReadAhead
from broker.core.selector.selected import SELECTING, Selector
from broker.core.state import Messages
from broker.sessions import routing
from broker.sessions.attach import Attach, LinkEnd, Output
from broker.sessions.bodies import BodyReader
from broker.sessions.bulk import Operation
from broker.sessions.dead_letters import DeadLetters
from broker.sessions.deliveries import LargeDelivery, Parts
from broker.sessions.due import Due
from broker.sessions.last_values import LastValues
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.overdue import Overdue
from broker.sessions.producer import Producer, Upload
from broker.sessions.room import has_room, is_crowded, is_crowded_still
from broker.sessions.schedule import Schedule
from broker.sessions.selecting import Selections, selector_of
from broker.sessions.share import Share
from broker.sessions.turn import Turn
from broker.sessions.unused import Unused
from broker.sessions.uploads import Uploading

_log = Logger()
NO_NOTES: Mapping[int, bytes] = MappingProxyType({})


class Subscription(LinkEnd):
    """A client's receiving link on a queue."""

    __slots__ = (
        *("_large", "_moved_s", "_needs", "browse", "by_name", "cursors", "delivered", "drains", "link", "presettled", "queue"),
        *("overdue", "selector", "unfinished"),
    )

    def __init__(
        self, session: Output, link: Sender, queue: QueueTerminus, needs: Lookups, *, browse: bool, selector: Selector | None
    ) -> None:
        super().__init__(session)
        self._needs = needs
        self.link = link
        self.queue = queue
        self.browse = browse
        self.drains = False
        """Whether it is a drain's: on a broker that leaves, no other gets anything."""
        self.by_name = False
        """Whether it was attached to the subscription that its queue stands for: its close ends that."""
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
        limit_s = 0.0 if browse or self.presettled else queue.consumer_s
        self.overdue = Overdue(self, queue.schedule, limit_s) if limit_s else None
        """When what it holds returns to the queue; None: never."""

    @property
    def node(self) -> QueueNode:
        """The queue that it takes from."""
        return self.queue.node

    def needs(self) -> Lookups:
        """What its client was allowed when it attached."""
        return self._needs

    def credit(self) -> None:
        """The client takes more, or wants to hear that there is no more."""
        self.queue.dispatch_soon()

    def resume(self) -> None:
        """What waited in the output has gone."""
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
        return room

    @property
    def outstanding(self) -> int:
        """How many messages are on their way to its client, or there and not settled; none that come to no end by that."""
        return 0 if self.browse else self.link.account.n_unsettled + (self._large is not None)

    def wants_more(self, order: Discipline) -> bool:
        """Whether what comes next for it is only not in memory."""
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
        """Begin to send a large message. One that cannot be read stays where it is, and counts as acquired, by nobody."""
        if sequence in self.queue.unreadable:
            return
        as_sent = self.link.traits_of is not None
        count = 0 if as_sent else messages.order.lane_of(sequence).delivery_count(sequence)
        left_ms = 0 if as_sent else self.queue.due.left_ms(messages, sequence)
        parts = self.queue.parts_of(messages.large[sequence])
        self.session.large += 1
        if not self.link.account.n_unsettled:
            self._moved_s = self.session.now_s
        noted = partial(messages.noted, sequence)
        self._large = LargeDelivery(parts, self.session, noted, count, left_ms, lambda why: self._large_is_over(sequence, why))
        self.link.send_pieces(self._large, sequence, self.presettled)
        self.delivered += 1
        self.session.touch()

    def _large_is_over(self, sequence: int, why: str | None) -> None:
        """A large message has gone out (`why` None), or will not (with what cannot be read, or "")."""
        large, self._large = self._large, None
        assert large is not None
        self.session.large -= 1
        messages = self.queue.node.messages
        if why is not None:
            mine = self.link.abort_pieces(large) or self.presettled  # else it is in the account still, or has its outcome
            if why or self.queue.lacks_parts(sequence):
                self.queue.unreadable.add(sequence)
            elif mine and not self.browse and messages is not None:
                messages.order.release((sequence,))
        elif self.presettled and not self.browse and messages is not None:
            self.queue.ledger.dequeue(messages.number, (sequence,))
        elif self.overdue is not None:
            self.overdue.sent()
        self.session.touch()
        self.queue.dispatch_soon()

    def _send_anew(self, messages: Messages, lot: Lot) -> None:
        """Messages whose header must say that delivery has failed before, or how much is left of their time to live; or on which
        a consumer has noted something."""
        first, count_of = lot.first_seq, messages.order.lane_of(lot.first_seq).delivery_count
        left_ms, found = self.queue.due.left_ms, lot.messages()
        for at, data in enumerate(found):
            noted = messages.noted(first + at, data)
            if self.link.traits_of is None:  # else they go beside it
                noted = message.as_delivered(noted, count_of(first + at), left_ms(messages, first + at))
            found[at] = noted
        offsets = list(accumulate(map(len, found), initial=0))
        self.link.send(b"".join(found), offsets, 0, len(found), first, self.presettled)

    def describe(self) -> dict[str, Any]:
        """Its item in a query of management, without its connection's part."""
        definition = self.node.definition
        return {
            "id": self.link.name,
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
        """For how long no outcome has come for what it holds, or its client has not read, whichever is longer; 0: neither is."""
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
        self.detached()
        self.link.context = None
        self.link.close(condition)
        self.session.touch()

    # ---- what comes back

    def outcomes(self) -> None:
        """Take the outcomes that have come on the link, run by run."""
        link, account, messages = self.link, self.link.account, self.queue.node.messages
        came, retired, said = link.take_outcomes(), link.take_retired(), link.take_notes()
        self._moved_s = self.session.now_s
        if account.n_unsettled >= limits.MAX_UNSETTLED_PER_LINK:
            self.queue.dispatch_soon()  # it may have credit left, of which nobody will tell again
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
            self.queue.settle(found, outcome, notes)
            if not settled:
                link.settle(first, count)
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
            before = min(before, account.next_id - 1)  # its time begins when all of it has gone out
        sequences = list(chain.from_iterable(account.take(0, before)))
        if sequences:
            self.link.take_back(before)
            self.node.overdue += len(sequences)
            self.queue.undo(sequences, count=True)
            self.session.touch()

    def detached(self) -> None:
        """The link is gone: so is a queue that was there for its subscriptions, with the last of them."""
        self.end()
        if self.link.closed_by_peer and self.by_name:
            self.queue.closed(self)
        else:
            self.queue.unsubscribed()

    def end(self) -> None:
        """What it had acquired goes back to its place."""
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
            if sequences:
                node.messages.order.release(sequences)
                self.queue.dispatch_soon()

    def cut_short(self) -> None:
        """Send no more of a large message that is going out."""
        if self._large is not None:
            self._large.end()


class QueueTerminus:
    """A queue on a serving broker: its subscriptions in turn, and producers that send to it."""

    __slots__ = (
        *("_ahead", "_queues", "due", "ledger", "letters", "line", "node", "operation", "producers"),
        *("selections", "subscriptions", "unreadable"),
    )
    window = limits.CREDIT_WINDOW
    serves_queues = True
    takes_large = True
    in_transactions = True
    in_any_order = False

    def __init__(self, queues: Queues, node: QueueNode) -> None:
        self._queues = queues
        self.subscriptions: deque[Subscription] = deque()
        self.line: dict[Subscription, None] = {}
        """Of a queue with a single active consumer: its consumers in the order in which they came; the first one is active."""
        self.producers: dict[Producer, None] = {}
        self.unreadable: set[int] = set()
        """Large messages that have a part that cannot be read: they are acquired, by nobody."""
        self.letters = DeadLetters(self, queues.logs, queues.schedule)
        self.due = Due(self, self.letters, queues.schedule)
        self.operation: Operation | None = None
        """What an operator has done with its messages at the moment."""
        self.selections: Selections | None = None
        """Of subscriptions with a selector; None: there was none."""
        self._ahead: ReadAhead | None = None
        self.rebuilt(node)

    @property
    def identity(self) -> str:
        """The queue's."""
        return self.node.uuid

    def rebuilt(self, node: QueueNode) -> None:
        """This is the queue's node now; `ledger` holds its messages."""
        self.node = node
        self.ledger: Ledger = self._queues.logs.ledger_of(node)

    @property
    def schedule(self) -> Schedule:
        """What time brings about."""
        return self._queues.schedule

    @property
    def consumer_s(self) -> float:
        """For how long a consumer may keep a message without an outcome; 0: for any time."""
        return consumer_ms_of(self.node.asked) / 1000 or self._queues.consumer_s

    # ---- messages in

    def needs_of_sender(self, session: Output) -> Lookups:
        """To send to the queue."""
        return questions.send_to_queue(self.node)

    def admit(self, attach: Attach) -> None:
        """Condition, when the queue is not there for clients now."""
        self._queues.logs.must_serve()
        if self.node.messages is None or not self.ledger.serving:
            raise Condition("amqp:resource-locked", f"queue {self.node.name!r} is not ready yet; try again")

    def attached(self, producer: Producer) -> None:
        """One more producer."""
        self.producers[producer] = None
        self._queues.unused.used(self.node)

    def left(self, producer: Producer) -> None:
        """One fewer."""
        self.producers.pop(producer, None)
        self._queues.unused.left(self.node)
        self._queues.on_left(self.node)

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """All of it at once if there is room for all of it, and else one by one."""
        node = self.node
        nbytes = sum(map(len, messages))
        held_back = self.ledger.low or self._queues.logs.closed or node.detects_duplicates
        if node.messages is not None and not held_back and has_room(node, len(messages), nbytes):
            self.ledger.enqueue(node, messages, nbytes, producer.link, first, timed=producer.timed)
        else:
            producer.one_by_one(first, messages, self._put)

    def _put(self, producer: Producer, delivery_id: int, data: bytes) -> None:
        routing.put(self._queues.logs, [self.node], producer, delivery_id, data)

    def destinations(self, producer: Producer, data: bytes) -> list[QueueNode]:
        """The queue itself, while it is there. LookupError."""
        if self._queues.logs.nodes.queue_by_uuid(self.node.uuid) is None:
            raise LookupError(f"queue {self.node.name!r} was deleted")
        return [self.node]

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A large message for this queue."""
        return Uploading(self._queues.logs, producer, [self.node], head)

    def may_flow(self, producer: Producer) -> bool:
        """Not while the disk is full, nor while the queue nearly is."""
        if self.ledger.storage_text:
            return False
        if is_crowded(self.node):
            self._queues.crowded[self] = None
            return False
        return True

    def resume(self) -> None:
        """There is room again: give the producers the credit that was held."""
        for producer in self.producers:
            producer.resume()

    # ---- messages out

    def knows_filter(self, name: str) -> bool:
        """Those that select by what a message says."""
        return name in SELECTING

    def subscribe(self, attach: Attach, link: Sender) -> None:
        """A client's receiving link on the queue itself."""
        needs = questions.take_from_queue(self.node)
        attach.demand(needs)
        self.admit(attach)
        browse = attach.asked.copy or bool(self.node.asked.get(BROWSE_ONLY))
        selector = selector_of(attach)
        if selector is not None and self.node.asked.get(GROUP_KEY):
            text = f"queue {self.node.name!r} has groups of messages: its consumers cannot have selectors"
            raise Condition("amqp:not-implemented", text)
        self.add(attach, link, needs, browse=browse, selector=selector)

    def add(
        self,
        attach: Attach,
        link: Sender,
        needs: Lookups,
        *,
        browse: bool,
        selector: Selector | None = None,
        drains: bool = False,
        tags: bool = False,
        standing: Standing | None = None,
    ) -> None:
        """Attach this link as one more subscription, for which its client `needs` so much; Condition when that cannot be.
        `drains`: it is the one that empties the queue of a broker that leaves. `tags`: the tags of deliveries are sequences.
        `standing`: what its client is told of it."""
        node = self.node
        if not browse and node.definition.exclusive and any(not each.browse for each in self.subscriptions):
            raise Condition("amqp:resource-locked", f"queue {node.name!r} is exclusive and has its consumer already")
        if len(self.subscriptions) >= limits.MAX_CONSUMERS_PER_QUEUE:
            text = f"queue {node.name!r} has {limits.MAX_CONSUMERS_PER_QUEUE} subscriptions, its limit"
            raise Condition("amqp:resource-limit-exceeded", text)
        subscription = Subscription(attach.session, link, self, needs, browse=browse, selector=selector)
        subscription.drains, link.tags_sequences = drains, drains or tags
        if selector is not None:
            if self.selections is None:
                self.selections = Selections(self, self._queues.searches)
            self.selections.add(selector)
        link.context = subscription
        link.accept(standing=standing)
        self.subscriptions.append(subscription)
        if node.asked.get(SINGLE_ACTIVE) and not (browse or drains):
            self.line[subscription] = None
        self._queues.unused.used(node)
        self.dispatch_soon()

    def is_active(self, subscription: Subscription) -> bool:
        """Whether messages go to this subscription while it has credit."""
        return subscription not in self.line or subscription is next(iter(self.line))

    def forget(self, subscription: Subscription) -> None:
        """This subscription takes no more."""
        if self.node.messages is not None:
            self.node.messages.order.left(subscription)
            if self.node.messages.order.take_opened():
                self.dispatch_soon()
        if subscription in self.line:
            del self.line[subscription]
            self.dispatch_soon()  # the next one has its turn
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
            if subscription.selector is not None and self.selections is not None:
                self.selections.drop(subscription.selector)

    def closed(self, subscription: Subscription) -> None:
        """A client has closed its link to the queue of a subscription that is known by its name: it wants it no more."""
        self._queues.keeper.closed(self, subscription)

    def unsubscribed(self) -> None:
        """A subscription has ended: a queue that is only there for them goes with the last, or a time after the last link."""
        logs, node = self._queues.logs, self.node
        if node.auto_delete_s:
            self._queues.unused.left(node)
        elif node.definition.auto_delete and not self.subscriptions and logs.ledgers[node.log].serving:
            moves = logs.closed and node.depth and not node.definition.exclusive and node.terms is None
            if not moves:
                self._queues.keeper.delete(node)
        else:
            self._queues.on_left(node)

    @property
    def held(self) -> bool:
        """Whether consumers get nothing, because another broker is about to take over."""
        return self._queues.held

    def dispatch_soon(self) -> None:
        """Dispatch at the end of this turn."""
        self._queues.turn.dispatch_soon(self)

    def give_back(self, sequences: list[int]) -> None:
        """These are available again, in their old places."""
        if self.node.messages is not None:
            self.node.messages.order.release(sequences)
            self.dispatch_soon()

    def settle(self, sequences: list[int], outcome: int, notes: Mapping[int, bytes] = NO_NOTES) -> None:
        """These acquired messages have this outcome, which is not `accepted`, and some of them come with annotations."""
        waits = bool(notes) and self._note(notes)
        if outcome == REJECTED or outcome & UNDELIVERABLE:
            then = self._let_die
        elif outcome & FAILED:
            self.undo(sequences, count=True)
            return
        else:
            then = self.give_back
        if waits:
            self.ledger.when_committed(lambda: then(sequences))  # whoever gets them next is to see the annotations
        else:
            then(sequences)

    def _note(self, notes: Mapping[int, bytes]) -> bool:
        """Propose what a consumer has noted on messages, as far as there is room for it; whether anything was."""
        messages, ledger = self.node.messages, self.ledger
        if messages is None or ledger.version < NOTES_SINCE or not ledger.serving:
            return False
        room = limits.MAX_NOTES - len(messages.notes)
        some = [(sequence, note) for sequence, note in notes.items() if len(note) <= limits.MAX_NOTE_BYTES][: max(0, room)]
        for sequence, note in some:
            ledger.note(messages.number, sequence, note)
        return bool(some)

    def _let_die(self, sequences: list[int]) -> None:
        if self.node.messages is not None:
            self.letters.add(sequences, letters.REJECTED)

    def undo(self, sequences: list[int], *, count: bool) -> None:
        """These acquired messages are available again; `count`: when their delivery counts have been raised by one."""
        messages, ledger = self.node.messages, self.ledger
        if not count or messages is None or not ledger.serving:
            self.give_back(sequences)
            return
        (retry_ms, most_ms), limit = self.node.retry_ms, self.node.delivery_limit
        for sequence in sequences:
            ledger.count(messages.number, sequence)
            failures = messages.order.lane_of(sequence).delivery_count(sequence) + 1
            if retry_ms and not 0 < limit <= failures:
                ledger.let_wait(messages.number, sequence, min(retry_ms * failures, most_ms))
        ledger.when_committed(lambda: self.failed(sequences))  # whoever gets them next is to see the raised count

    def failed(self, sequences: list[int]) -> None:
        """Delivery of these has failed, which is committed: they are available again, or have failed too often."""
        messages, limit = self.node.messages, self.node.delivery_limit
        if limit and messages is not None and self._queues.logs.serving:
            order = messages.order
            over = [each for each in sequences if order.lane_of(each).delivery_count(each) >= limit and order.is_acquired(each)]
            if over:
                self.letters.add(over, letters.DELIVERY_LIMIT)
                sequences = list(set(sequences).difference(over))
        if messages is not None and messages.delays is not None:
            sequences = [each for each in sequences if not messages.delays.is_waiting(each)]
            self.due.look()
        self.give_back(sequences)

    def term_begins(self) -> None:
        """What has failed too often in the last one, and has not left yet, leaves."""
        self.due.begin()
        messages, limit = self.node.messages, self.node.delivery_limit
        if limit and messages is not None and messages.order.has_counts:
            counts = [each for lane in messages.order.lanes for each in lane.delivery_counts().items()]
            self.letters.add(sorted(sequence for sequence, count in counts if count >= limit), letters.DELIVERY_LIMIT)

    def has_others_wait(self, subscription: Subscription) -> bool:
        """Whether messages wait here that nobody takes, or another consumer for messages, while this one holds some."""
        messages = self.node.messages
        if subscription.browse or messages is None:
            return False
        if messages.order.available and subscription.selector is None:
            return True
        if not subscription.link.account.n_unsettled:
            return False
        others = (each for each in self.subscriptions if each is not subscription and not each.browse)
        return any(each.link.account.room() for each in others)

    def dispatch(self) -> None:
        """Give out what is available, in turn among the subscriptions that have room, and have read what is not in memory."""
        if self.letters.waiting:
            self.letters.send()
        if self.operation is not None and self.operation.reads:
            self.operation.look_again()
        if self._queues.held or (self._queues.logs.closed and not any(each.drains for each in self.subscriptions)):
            return
        if self.node.displacing is not None and not self.node.displacing.ready:
            self._queues.last_values.read(self)
            return
        if self.node.messages is not None and (self.subscriptions or self.letters.waiting):
            self._read_ahead(self._give_out())

    def _give_out(self) -> set[int]:
        """Give out what is in memory. Returns the messages that are not, at which subscriptions stopped."""
        subscriptions = self.subscriptions
        assert self.node.messages is not None
        order, large = self.node.messages.order, self.node.messages.large
        stops: set[int] = set()
        selections = self.selections
        if selections is not None:
            selections.begin()
        idle = held_back = 0
        while idle < len(subscriptions):
            subscription = subscriptions[0]
            subscriptions.rotate(-1)
            room = subscription.room()
            if large and room:
                room = 1  # a large one takes its link for itself, so that others may have what comes next
            lots: list[Lot] = []
            if room > 0 and self.is_active(subscription):
                if subscription.selector is not None:
                    assert selections is not None
                    lots = selections.find(subscription, self.node.messages, room)
                elif subscription.browse:
                    lots = order.browse(subscription.cursors, room, limits.MAX_TURN_BYTES)
                elif order.available:
                    lots = order.acquire(subscription, room, limits.MAX_TURN_BYTES)
            if lots:
                fit = self.due.fit(self.node.messages, lots, browse=subscription.browse)
                if fit:
                    subscription.deliver(fit)
                idle = 0
                if fit is not lots:
                    held_back += _count(lots) - _count(fit)
                if held_back >= limits.MAX_HELD_BACK:  # the rest has its turn when others have had theirs
                    self._queues.schedule.after(("dispatch", self.node.uuid), 0.0, self.dispatch_soon)
                    break
            else:
                if room > 0 and subscription.wants_more(order) and self.is_active(subscription):
                    stops.add(order.absent)
                elif room > 0 and subscription.link.account.draining and not subscription.unfinished:
                    subscription.link.drained()
                    subscription.session.touch()
                idle += 1
        if selections is not None:
            if selections.used_up:
                subscriptions.rotate(-1)  # the next search goes on first
            selections.end()
        return stops

    # ---- bodies that are not in memory

    def _read_ahead(self, stops: set[int]) -> None:
        messages = self.node.messages
        assert messages is not None
        if self._ahead is None or self._ahead.order is not messages.order:
            self._ahead = ReadAhead(messages.order)
        ahead = self._ahead
        if not ahead.reading:
            wanted = ahead.plan(stops, self.letters.wanted(), self._queues.bodies.window_bytes)
            if wanted:
                ahead.reading = True
                self._queues.bodies.read(self.ledger, wanted, lambda found: self._came(ahead, wanted, found))

    def fetch(self, sequence: int) -> None:
        """Read the bodies from this message on; then the queue is dispatched."""
        self._read_ahead({sequence})

    def read(self, bodies: list[Body], came: Callable[[list[bytes | str]], None]) -> None:
        """Read these; `came` gets the bytes of each, or the text why they cannot be read. Never at once."""
        self._queues.bodies.read(self.ledger, bodies, came)

    def parts_of(self, manifest: Manifest) -> Parts:
        """The parts of a large message, to be read."""
        return Parts(self.ledger, self._queues.bodies, manifest)

    def lacks_parts(self, sequence: int) -> bool:
        """Whether this large message is on the queue and not all of its parts are there, which is our own bug."""
        messages, state = self.node.messages, self.ledger.state
        manifest = None if messages is None else messages.large.get(sequence)
        if manifest is None or not state.parts.missing(manifest):
            return False
        _log.error("message {sequence} of queue {name!r} lacks parts", sequence=sequence, name=self.node.name)
        return True

    def _came(self, ahead: ReadAhead, wanted: list[Body], found: list[bytes | str]) -> None:
        """Bodies are here: give them out, and ask for the next."""
        ahead.reading = False
        messages = self.node.messages
        if messages is None or messages.order is not ahead.order:
            return
        for body, data in zip(wanted, found, strict=True):
            lane = ahead.order.lane_of(body.sequence)
            if isinstance(data, bytes):
                lane.restore(body.sequence, body.place, data, 0)
            elif lane.lies_at(body.sequence, body.place):
                self._unreadable(lane, body, data)
        self.dispatch()

    def _unreadable(self, lane: Lane, body: Body, text: str) -> None:
        ledger = self.ledger
        n = lane.give_up(body.sequence, body.place)
        what = f"{n} messages of queue {self.node.name!r} from sequence {body.sequence} on cannot be delivered: {text}"
        if ledger.log is not None:
            ledger.log.rotten(body.place, what)

    # ---- the end

    def gone(self) -> None:
        """The queue was deleted: close what hangs on it."""
        condition = Condition("amqp:resource-deleted", f"queue {self.node.name!r} was deleted")
        ends: list[Subscription | Producer] = [*self.subscriptions, *self.producers]
        for end in ends:
            end.link.context = None
            end.link.close(condition)
            end.session.touch()
        for subscription in self.subscriptions:
            subscription.cut_short()
            if subscription.overdue is not None:
                subscription.overdue.close()
            subscription.link.account.take_rest()
        for producer in self.producers:
            producer.aborted()
        self.subscriptions.clear()
        self.line.clear()
        if self.selections is not None:
            self.selections.clear()
        self.producers.clear()
        self.letters.clear()
        self.due.clear()
        if self.operation is not None:
            self.operation.gone()


def _count(lots: Iterable[Lot]) -> int:
    return sum([lot.stop - lot.start for lot in lots])


class Keeper(Protocol):
    """Who keeps subscriptions that are known by a name (broker.sessions.subscriptions)."""

    def closed(self, queue: QueueTerminus, subscription: Subscription) -> None:
        """A client has closed its link to such a queue."""

    def delete(self, node: QueueNode) -> None:
        """Propose that this queue goes, with which its last consumer has gone."""


class Queues:
    """The queues that links are attached to, and those whose producers wait for room."""

    def __init__(self, logs: Logs, turn: Turn, schedule: Schedule, searches: Share, consumer_s: float = 0.0) -> None:
        self.logs = logs
        self.consumer_s = consumer_s
        """For how long a consumer may keep a message without an outcome where its queue does not say; 0: for any time."""
        self.searches = searches
        """The share of each turn that goes into looking for what selectors want."""
        self.turn = turn
        self.schedule = schedule
        self.unused = Unused(logs, schedule, self.users)
        self.last_values = LastValues(schedule)
        self.bodies = BodyReader(logs.residency, turn)
        self.crowded: dict[QueueTerminus, None] = {}
        self.wait_for_disk: dict[Producer, None] = {}
        """Producers of exchanges that get no credit until the disk takes writes again."""
        self.held = False
        """Whether consumers get nothing, because another broker is about to take over."""
        self._termini: dict[str, QueueTerminus] = {}
        self.keeper: Keeper
        """To be set before a link attaches."""
        self.on_left: Callable[[QueueNode], None] = lambda node: None
        """Hears of each queue that a link has left."""

    def at(self, node: QueueNode) -> QueueTerminus:
        """The terminus of this queue."""
        found = self._termini.get(node.uuid)
        if found is None:
            found = self._termini[node.uuid] = QueueTerminus(self, node)
        return found

    @property
    def termini(self) -> list[QueueTerminus]:
        """Those that links have been attached to."""
        return list(self._termini.values())

    def named(self, address: str) -> QueueTerminus | None:
        """The queue of that name, or that the address is of."""
        node = self.logs.nodes.queue_at(address)
        return None if node is None else self.at(node)

    def rebuilt(self) -> None:
        """A snapshot has made the nodes anew: those that are still there stay what they were for their links."""
        for uuid, terminus in list(self._termini.items()):
            node = self.logs.nodes.queue_by_uuid(uuid)
            if node is None:
                self.gone(terminus.node)
            else:
                terminus.rebuilt(node)

    def fed(self, ledger: Ledger, numbers: Iterable[int]) -> None:
        """These queues have got messages, which are committed: give them out."""
        for number in numbers:
            messages = ledger.state.messages.get(number)
            terminus = None if messages is None else self._termini.get(messages.uuid)
            if messages is not None and messages.has_times and self.logs.serving:
                terminus = self._look(messages)
            if terminus is not None:
                terminus.dispatch()

    def _look(self, messages: Messages) -> QueueTerminus | None:
        """Messages with times may have come to this queue."""
        node = self.logs.nodes.queue_by_uuid(messages.uuid)
        if node is None or node.messages is not messages:
            return None
        terminus = self.at(node)
        terminus.due.look()
        return terminus

    def resume_crowded(self) -> None:
        """Let the producers of queues that have become emptier go on."""
        for terminus in [each for each in self.crowded if not is_crowded_still(each.node)]:
            del self.crowded[terminus]
            terminus.resume()

    def resume_all(self, ledger: Ledger) -> None:
        """The disk takes writes again: let all producers of this ledger's queues go on, and of exchanges."""
        for terminus in self._termini.values():
            if terminus.ledger is ledger:
                terminus.resume()
        waiting, self.wait_for_disk = self.wait_for_disk, {}
        for producer in waiting:
            producer.resume()

    def gone(self, node: QueueNode) -> None:
        """This queue was deleted."""
        self.unused.used(node)
        terminus = self._termini.pop(node.uuid, None)
        if terminus is not None:
            self.crowded.pop(terminus, None)
            terminus.gone()

    def begin(self, ledger: Ledger) -> None:
        """This broker serves, and this ledger's log does: look for what the last term has left to be done."""
        for node in self.logs.nodes.queues.values():
            messages = node.messages
            if node.messages_log == ledger.name and messages is not None:
                if node.delivery_limit or messages.has_times:
                    self.at(node).term_begins()
                if node.displacing is not None and not node.displacing.ready:
                    self.at(node).dispatch_soon()

    def hold(self) -> None:
        """Give nothing out until `give_out_again`, or until this broker serves no more."""
        self.held = True

    def give_out_again(self) -> None:
        """Go on to give out."""
        self.held = False
        for terminus in self._termini.values():
            terminus.dispatch_soon()

    def unsettled(self) -> int:
        """How many messages are with consumers that have not settled them."""
        return sum(each.outstanding for terminus in self._termini.values() for each in terminus.subscriptions)

    def release_all(self) -> None:
        """This broker serves no more: what is acquired is available again."""
        for node in self.logs.nodes.queues.values():
            if node.messages is not None:
                node.messages.order.release_all()
        for terminus in self._termini.values():
            terminus.letters.clear()
            terminus.due.clear()
            terminus.unreadable.clear()
            if terminus.operation is not None:
                terminus.operation.void()

    def users(self, node: QueueNode) -> int:
        """How many links are attached to this queue."""
        terminus = self._termini.get(node.uuid)
        return 0 if terminus is None else len(terminus.subscriptions) + len(terminus.producers)

    def consumers(self, node: QueueNode) -> int:
        """How many subscriptions this queue has."""
        terminus = self._termini.get(node.uuid)
        return 0 if terminus is None else len(terminus.subscriptions)
