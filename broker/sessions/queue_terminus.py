"""A queue as a terminus: producers enqueue messages, `dispatch` delivers them to subscriptions (broker.sessions.consumer). What
consumers give back returns to the queue or becomes a dead letter (broker.sessions.returns). Bodies that are not in memory are
read ahead (broker.sessions.queue_bodies).

Life of a terminus: it is created by the first link that attaches to the queue, or by work that a term has left; its
subscriptions share the available messages in turn; it ends with the queue, and its links end with it.

Invariants: only one subscription at a time acquires a message; with a single active consumer, no message is given out while
others are about to return; a queue that is nearly full gives its producers no credit until it has fallen below its lower
threshold; no message overtakes one whose body is being read from disk; a message that is leaving as a dead letter is not
delivered; dead letters leave, and their bodies are read, also while consumers get nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Protocol

from broker.amqp.data import Condition
from broker.amqp.links import Standing
from broker.amqp.sender import Sender
from broker.core import limits
from broker.core.acl import questions
from broker.core.acl.questions import Lookups
from broker.core.management import told
from broker.core.nodes import QueueNode, Routed
from broker.core.queues.arguments import BROWSE_ONLY, GROUP_KEY, OWNER_TIMEOUT, SINGLE_ACTIVE, consumer_ms_of
from broker.core.queues.blocks import Lot
from broker.core.queues.discipline import Discipline
from broker.core.selector.selected import SELECTING, Selector
from broker.sessions import routing
from broker.sessions.attach import Attach, Output
from broker.sessions.bodies import BodyReader
from broker.sessions.bulk import Operation
from broker.sessions.consumer import Subscription
from broker.sessions.dead_letters import DeadLetters
from broker.sessions.due import Due
from broker.sessions.events import NOTICE, Events
from broker.sessions.group_owners import GroupOwners
from broker.sessions.last_values import LastValues
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.producer import Producer, Upload
from broker.sessions.queue_bodies import QueueBodies
from broker.sessions.returns import Returns
from broker.sessions.room import has_room, is_crowded
from broker.sessions.schedule import Schedule
from broker.sessions.selecting import Selections, selector_of
from broker.sessions.share import Share
from broker.sessions.turn import Turn
from broker.sessions.unused import Unused
from broker.sessions.uploads import Uploading


class Keeper(Protocol):
    """The owner of named subscriptions (broker.sessions.subscriptions)."""

    def closed(self, queue: QueueTerminus, subscription: Subscription) -> None:
        """A client has closed its link to such a queue."""

    def delete(self, node: QueueNode) -> None:
        """Propose that this queue goes, with which its last consumer has gone."""


class Queues(Protocol):
    """The part of all queues that one queue needs (broker.sessions.queues)."""

    logs: Logs
    turn: Turn
    schedule: Schedule
    searches: Share
    unused: Unused
    last_values: LastValues
    bodies: BodyReader
    events: Events
    consumer_s: float
    crowded: dict[QueueTerminus, None]
    held: bool
    keeper: Keeper
    on_left: Callable[[QueueNode], None]


class QueueTerminus:
    """A queue on a serving broker: its subscriptions in turn, and producers that send to it."""

    __slots__ = (
        *("_awaits_end", "_queues", "bodies", "due", "ledger", "letters", "line", "node", "operation", "owners"),
        *("producers", "returns", "selections", "subscriptions"),
    )
    window = limits.CREDIT_WINDOW
    serves_queues = True
    takes_large = True
    in_transactions = True
    in_any_order = False
    of_any_user = False

    def __init__(self, queues: Queues, node: QueueNode) -> None:
        self._queues = queues
        self._awaits_end = False
        """Whether producers get no credit until it is committed, or not, that the queue goes."""
        self.subscriptions: deque[Subscription] = deque()
        self.line: dict[Subscription, None] = {}
        """Of a queue with a single active consumer: its consumers in the order in which they came; the first one is active."""
        self.producers: dict[Producer, None] = {}
        self.letters = DeadLetters(self, queues.logs, queues.schedule)
        self.due = Due(self, self.letters, queues.schedule)
        self.returns = Returns(self, self.letters, self.due)
        """While a return is under way, consumers in `line` get nothing."""
        self.bodies = QueueBodies(self, queues.bodies)
        self.operation: Operation | None = None
        """The operation of an operator on its messages that is in progress."""
        self.selections: Selections | None = None
        """Of subscriptions with a selector; None: there was none."""
        self.rebuilt(node)
        owner_s = int(node.asked.get(OWNER_TIMEOUT, 0))
        self.owners = GroupOwners(self, queues.logs, queues.schedule, owner_s) if owner_s else None
        """Of a queue whose groups have owners."""

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
        """The timed actions."""
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
        """Condition, when the queue does not accept clients now."""
        self._queues.logs.must_serve()
        if self.node.messages is None or not self.ledger.serving:
            raise Condition("amqp:resource-locked", f"queue {self.node.name!r} is not ready yet; try again")
        if self.node.uuid in self._queues.logs.closing_queues:
            raise Condition("amqp:resource-locked", f"queue {self.node.name!r} is being deleted; try again")

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
        logs = self._queues.logs
        held_back = self.ledger.room.low or logs.closed or node.detects_duplicates or logs.nodes.is_going(node.uuid)
        if node.messages is not None and not held_back and has_room(node, len(messages), nbytes):
            self.ledger.enqueue(node, messages, nbytes, producer.link, first, timed=producer.timed)
        else:
            producer.one_by_one(first, messages, self._put)

    def _put(self, producer: Producer, delivery_id: int, data: bytes) -> None:
        routing.check_stays(self._queues.logs, self.node)
        routing.put(self._queues.logs, Routed([self.node]), producer, delivery_id, data)

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """The queue itself, while it exists. LookupError; Unplaced, while it is being deleted."""
        if self._queues.logs.nodes.queue_by_uuid(self.node.uuid) is None:
            raise LookupError(f"queue {self.node.name!r} was deleted")
        routing.check_stays(self._queues.logs, self.node)
        return Routed([self.node])

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A large message for this queue."""
        return Uploading(self._queues.logs, producer, [self.node], head, named=self.node)

    def may_flow(self, producer: Producer) -> bool:
        """Not while the disk is full, nor while the queue nearly is, nor while it is being deleted: what is sent then is
        released, and some clients send that again at once."""
        if self.ledger.room.text:
            return False
        if self._queues.logs.nodes.is_going(self.node.uuid):
            if not self._awaits_end:
                self._awaits_end = True
                self._queues.logs.when_decided(self.node, self._end_decided)
            return False
        if is_crowded(self.node):
            self._queues.crowded[self] = None
            return False
        return True

    def _end_decided(self) -> None:
        """The queue is gone, and with it its producers' links; or it stays."""
        self._awaits_end = False
        self.resume()

    def void(self) -> None:
        """This broker stops serving: what was proposed has no result here."""
        self._awaits_end = False
        self.letters.clear()
        self.due.clear()
        self.bodies.unreadable.clear()
        self.returns.clear()
        if self.operation is not None:
            self.operation.void()

    def resume(self) -> None:
        """There is room again: give the producers the credit that was held. A route may turn to another node meanwhile."""
        for producer in list(self.producers):
            producer.resume()

    # ---- messages out

    def knows_filter(self, name: str) -> bool:
        """The subscriptions with a selector."""
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
        route: str = "",
        standing: Standing | None = None,
        instead_of: Collection[Subscription] = (),
    ) -> Subscription:
        """Attach this link as one more subscription, which is returned; `needs` are its lookups. Condition when it cannot attach.
        `drains`: it empties the queue of a broker that leaves. `tags`: the tags of deliveries are sequences. `route`: the
        identity of the route that it is for. `standing`: the terms in the answer to the client. `instead_of`: subscriptions that
        the caller ends when this one has attached."""
        node = self.node
        owners = None if browse or drains else self.owners
        owner = None if owners is None else owners.admit(attach, route)
        earlier = None if owners is None or owner is None else owners.attached.get(owner)
        others = (each for each in self.subscriptions if not each.browse and each is not earlier and each not in instead_of)
        if not browse and node.definition.exclusive and next(others, None) is not None:
            raise Condition("amqp:resource-locked", f"queue {node.name!r} is exclusive and has its consumer already")
        if len(self.subscriptions) >= limits.MAX_CONSUMERS_PER_QUEUE and earlier is None:
            text = f"queue {node.name!r} has {limits.MAX_CONSUMERS_PER_QUEUE} subscriptions, its limit"
            raise Condition("amqp:resource-limit-exceeded", text)
        link.browses = browse
        link.accept(standing=standing)
        link.tags_sequences = drains or tags
        subscription = Subscription(attach.session, link, self, needs, browse=browse, selector=selector)
        subscription.drains = drains
        if selector is not None:
            if self.selections is None:
                self.selections = Selections(self, self._queues.searches)
            self.selections.add(selector)
        link.context = subscription
        self.subscriptions.append(subscription)
        if owners is not None and owner is not None:
            owners.joined(owner, subscription)
        elif drains and self.owners is not None:
            self.owners.drained(begins=True)
        if node.asked.get(SINGLE_ACTIVE) and not (browse or drains):
            self.line[subscription] = None
            if len(self.line) == 1:
                self._activated(subscription)
        self._queues.unused.used(node)
        self.dispatch_soon()
        return subscription

    def is_active(self, subscription: Subscription) -> bool:
        """Whether messages go to this subscription while it has credit."""
        return subscription not in self.line or subscription is next(iter(self.line))

    def _activated(self, subscription: Subscription) -> None:
        """This consumer of a queue with a single active consumer has become the active one."""
        session = subscription.session
        whose = {"rhost": session.address, "user": session.principal.user, "container": told(session.container)}
        values = {"qName": self.node.name, "dest": told(subscription.link.name)} | whose
        self._queues.events.send("activeConsumerChanged", NOTICE, values)

    def forget(self, subscription: Subscription) -> None:
        """This subscription ends."""
        if self.node.messages is not None:
            self.node.messages.order.left(subscription.taker)
            if self.node.messages.order.take_opened():
                self.dispatch_soon()
        if self.owners is not None:
            self.owners.left(subscription)
        if subscription in self.line:
            was_active = self.is_active(subscription)
            del self.line[subscription]
            if was_active and self.line:
                self._activated(next(iter(self.line)))
                self.dispatch_soon()
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
            if subscription.selector is not None and self.selections is not None:
                self.selections.drop(subscription.selector)

    def closed(self, subscription: Subscription) -> None:
        """A client has closed its link to the queue of a named subscription, which therefore ends."""
        self._queues.keeper.closed(self, subscription)

    def unsubscribed(self, *, drained: bool = False) -> None:
        """A subscription has ended: a queue that is only there for them goes with the last, or a time after the last link. On a
        broker that leaves, messages that move to the target keep it until the drain is cancelled. `drained`: the subscription was
        that of a drain, and no consumer of a client."""
        logs, node = self._queues.logs, self.node
        if node.auto_delete_s:
            self._queues.unused.left(node)
        elif node.definition.auto_delete and not self.subscriptions and logs.ledgers[node.log].serving:
            moves = logs.closed and node.depth and not node.definition.exclusive and node.terms is None
            if moves and not drained:
                logs.owed[node.uuid] = None
            elif not moves and not drained:
                self._queues.keeper.delete(node)
        else:
            self._queues.on_left(node)

    @property
    def held(self) -> bool:
        """Whether consumers get nothing, because another broker is about to take over."""
        return self._queues.held

    @property
    def serves(self) -> bool:
        """Whether this broker is the primary: a backup, too, writes to the log that only it has."""
        return self._queues.logs.serving

    @property
    def leaves(self) -> bool:
        """Whether a drain takes the messages, with the times at which they expire and the counts of their failures."""
        return self._queues.logs.gives_times

    def leaves_or_stays(self) -> None:
        """The broker begins to leave, or serves again: let messages stay that were to leave, or let them leave again."""
        self.returns.limited()
        self.letters.look_again()
        if self.leaves:
            self.due.stay()
        else:
            self.due.look()
        self.dispatch_soon()

    @property
    def paused(self) -> bool:
        """Whether it is the queue of a subscription that a drain moves here: older messages will still arrive, and must be
        delivered first."""
        node = self.node
        return node.terms is not None and self._queues.logs.ledger_of(node).state.definitions.is_moving(node.uuid)

    def dispatch_soon(self) -> None:
        """Dispatch at the end of this turn."""
        self._queues.turn.dispatch_soon(self)

    def give_back(self, sequences: list[int]) -> None:
        """These are available again, in their old places."""
        if self.node.messages is not None:
            self.node.messages.order.release(sequences)
            self.dispatch_soon()

    def letters_wanted(self) -> Collection[int]:
        """The messages that leave as dead letters and whose bodies are not in memory."""
        return self.letters.wanted()

    def remain(self, sequences: list[int]) -> None:
        """These were dead letters, and do not leave: they are available again, or expire."""
        self.due.remain(sequences)

    def term_begins(self) -> None:
        """Remove the messages that failed too often in the last term and have not left, and wait for the owners of groups."""
        if self.owners is not None:
            self.owners.begin()
        self.due.begin()
        self.returns.limited()

    def has_others_wait(self, subscription: Subscription, hungry: Collection[Subscription]) -> bool:
        """Whether messages wait here that no consumer takes, or another consumer waits for messages, while this one holds some.
        `hungry`: see there."""
        messages = self.node.messages
        if subscription.browse or messages is None:
            return False
        if messages.order.available and subscription.selector is None:
            return True
        return subscription.link.account.n_unsettled > 0 and any(each is not subscription for each in hungry)

    def hungry(self) -> list[Subscription]:
        """Consumers that wait for messages: two, if there are so many."""
        return list(islice((each for each in self.subscriptions if not each.browse and each.link.account.room()), 2))

    def dispatch(self) -> None:
        """Deliver the available messages, in turn among the subscriptions with room, and read bodies that are not in memory."""
        if self.letters.waiting and not self.ledger.pending.interrupted:
            self.letters.send()
        if self.operation is not None and self.operation.reads:
            self.operation.look_again()
        stands = self._queues.logs.closed or self.paused
        if self._queues.held or (stands and not any(each.drains for each in self.subscriptions)):
            if self.node.messages is not None and self.letters.wanted():
                self.bodies.read_ahead(set())
            return
        if self.node.displacing is not None and not self.node.displacing.ready:
            self._queues.last_values.read(self)
            return
        if self.node.messages is not None and (self.subscriptions or self.letters.waiting):
            stops, order = self._give_out(), self.node.messages.order
            if order.searching:  # continue in a later turn, after other queues had theirs
                order.search_on()
                self._queues.schedule.after(("dispatch", self.node.uuid), 0.0, self.dispatch_soon)
            if self.owners is not None:
                self.owners.propose()
            if stops or order.is_spilled or self.letters.waiting:
                self.bodies.read_ahead(stops)

    def _give_out(self) -> set[int]:
        """Deliver messages that are in memory. Returns those that are not, at which subscriptions have stopped."""
        subscriptions = self.subscriptions
        assert self.node.messages is not None
        order, large = self.node.messages.order, self.node.messages.large
        stops: set[int] = set()
        selections = self.selections
        if selections is not None:
            selections.begin()
        idle = held_back = 0
        returning = self.returns.under_way
        while idle < len(subscriptions):
            subscription = subscriptions[0]
            subscriptions.rotate(-1)
            may_get = order.available or subscription.browse or subscription.selector is not None
            asks = may_get or subscription.link.account.draining
            room = subscription.room() if asks and not (returning and subscription in self.line) else 0
            if large and room:
                room = 1  # a large message occupies its link: leave the following messages to other consumers
            lots: list[Lot] = []
            withheld = 0
            if room > 0 and self.is_active(subscription):
                if subscription.selector is not None:
                    assert selections is not None
                    lots = selections.find(subscription, self.node.messages, room)
                elif subscription.browse:
                    lots = order.browse(subscription.cursors, room, limits.MAX_TURN_BYTES)
                elif order.available:
                    lots = order.acquire(subscription.taker, room, limits.MAX_TURN_BYTES)
                    withheld = 0 if self.owners is None else self.owners.withhold()
            if lots or withheld:
                fit = self.due.fit(self.node.messages, lots, browse=subscription.browse)
                if fit:
                    subscription.deliver(fit)
                idle = 0
                if fit is not lots or withheld:
                    held_back += _count(lots) - _count(fit) + withheld
                if held_back >= limits.MAX_HELD_BACK:  # continue in a later turn, after other queues had theirs
                    self._queues.schedule.after(("dispatch", self.node.uuid), 0.0, self.dispatch_soon)
                    break
            else:
                if room > 0 and subscription.wants_more(order) and self.is_active(subscription):
                    stops.add(order.absent)
                elif subscription.link.account.draining and self._gives_back(subscription, order, room):
                    subscription.link.drained()
                    subscription.session.touch()
                idle += 1
        if selections is not None:
            if selections.used_up:
                subscriptions.rotate(-1)  # the next turn begins with the next search
            selections.end()
        return stops

    def _gives_back(self, subscription: Subscription, order: Discipline, room: int) -> bool:
        """Whether nothing goes out for the credit of a subscription that drains it, not even after a commit or more search."""
        if order.searching or (self.owners is not None and self.owners.awaits(subscription)):
            return False
        return subscription.gives_back(room)

    # ---- the end

    def end_consumers(self, condition: Condition) -> None:
        """End the links of all subscriptions: what they held is on the queue again."""
        for subscription in list(self.subscriptions):
            subscription.end_link(condition)

    def gone(self) -> None:
        """The queue was deleted: end its links."""
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
        self.returns.clear()
        if self.selections is not None:
            self.selections.clear()
        self.producers.clear()
        self.letters.clear()
        self.due.clear()
        if self.owners is not None:
            self.owners.clear()
        if self.operation is not None:
            self.operation.gone()


def _count(lots: Iterable[Lot]) -> int:
    return sum([lot.stop - lot.start for lot in lots])
