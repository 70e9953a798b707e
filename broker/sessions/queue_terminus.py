"""A queue as a terminus: producers enqueue messages, `dispatch` delivers them to subscriptions (broker.sessions.consumer), and
messages that are given back return to the queue or become dead letters (broker.sessions.dead_letters).

Life of a terminus: it is created by the first link that attaches to the queue, or by work that a term has left; its
subscriptions share the available messages in turn; it ends with the queue, and its links end with it.

Invariants: only one subscription at a time acquires a message; with a single active consumer, no message is given out while
others are about to return; a queue that is nearly full gives its producers no credit until it has fallen below its lower
threshold; no message overtakes one whose body is being read from disk; a message that is leaving as a dead letter is not
delivered; dead letters leave, and their bodies are read, also while consumers get nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

from twisted.logger import Logger

from broker.amqp.data import Condition
from broker.amqp.links import Sender, Standing
from broker.core import letters, limits
from broker.core.acl import questions
from broker.core.acl.questions import Lookups
from broker.core.commands import NOTES_SINCE, TIMES_SINCE
from broker.core.links import FAILED, REJECTED, UNDELIVERABLE
from broker.core.nodes import QueueNode, Routed, Unplaced
from broker.core.notes import waits_until
from broker.core.parts import Manifest
from broker.core.queues.arguments import BROWSE_ONLY, GROUP_KEY, OWNER_TIMEOUT, SINGLE_ACTIVE, consumer_ms_of
from broker.core.queues.blocks import Lot
from broker.core.queues.discipline import Discipline
from broker.core.queues.lane import Lane
from broker.core.queues.reading import Body, ReadAhead
from broker.core.selector.selected import SELECTING, Selector
from broker.sessions import routing
from broker.sessions.attach import Attach, Output
from broker.sessions.bodies import BodyReader
from broker.sessions.bulk import Operation
from broker.sessions.consumer import Subscription
from broker.sessions.dead_letters import DeadLetters
from broker.sessions.deliveries import Parts
from broker.sessions.due import Due
from broker.sessions.events import NOTICE, Events
from broker.sessions.group_owners import GroupOwners
from broker.sessions.last_values import LastValues
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.producer import Producer, Upload
from broker.sessions.room import has_room, is_crowded
from broker.sessions.schedule import Schedule
from broker.sessions.selecting import Selections, selector_of
from broker.sessions.share import Share
from broker.sessions.turn import Turn
from broker.sessions.unused import Unused
from broker.sessions.uploads import Uploading

_log = Logger()
NO_NOTES: Mapping[int, bytes] = MappingProxyType({})


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
        *("_ahead", "_queues", "due", "ledger", "letters", "line", "node", "operation", "producers"),
        *("owners", "returning", "selections", "subscriptions", "unreadable"),
    )
    window = limits.CREDIT_WINDOW
    serves_queues = True
    takes_large = True
    in_transactions = True
    in_any_order = False
    of_any_user = False

    def __init__(self, queues: Queues, node: QueueNode) -> None:
        self._queues = queues
        self.subscriptions: deque[Subscription] = deque()
        self.line: dict[Subscription, None] = {}
        """Of a queue with a single active consumer: its consumers in the order in which they came; the first one is active."""
        self.producers: dict[Producer, None] = {}
        self.unreadable: set[int] = set()
        """Large messages with an unreadable part: they are acquired, without a consumer."""
        self.returning: set[object] = set()
        """A token for each return of messages that waits for a commit. Meanwhile, consumers in `line` get nothing."""
        self.letters = DeadLetters(self, queues.logs, queues.schedule)
        self.due = Due(self, self.letters, queues.schedule)
        self.operation: Operation | None = None
        """The operation of an operator on its messages that is in progress."""
        self.selections: Selections | None = None
        """Of subscriptions with a selector; None: there was none."""
        self._ahead: ReadAhead | None = None
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
        routing.put(self._queues.logs, Routed([self.node]), producer, delivery_id, data)

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """The queue itself, while it exists. LookupError; Unplaced, while it is being deleted."""
        nodes = self._queues.logs.nodes
        if nodes.queue_by_uuid(self.node.uuid) is None:
            raise LookupError(f"queue {self.node.name!r} was deleted")
        if nodes.is_going(self.node.uuid):
            raise Unplaced
        return Routed([self.node])

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
    ) -> Subscription:
        """Attach this link as one more subscription, which is returned; `needs` are its lookups. Condition when it cannot attach.
        `drains`: it empties the queue of a broker that leaves. `tags`: the tags of deliveries are sequences. `route`: the
        identity of the route that it is for. `standing`: the terms in the answer to the client."""
        node = self.node
        owners = None if browse or drains else self.owners
        owner = None if owners is None else owners.admit(attach, route)
        earlier = None if owners is None or owner is None else owners.attached.get(owner)
        others = (each for each in self.subscriptions if not each.browse and each is not earlier)
        if not browse and node.definition.exclusive and next(others, None) is not None:
            raise Condition("amqp:resource-locked", f"queue {node.name!r} is exclusive and has its consumer already")
        if len(self.subscriptions) >= limits.MAX_CONSUMERS_PER_QUEUE and earlier is None:
            text = f"queue {node.name!r} has {limits.MAX_CONSUMERS_PER_QUEUE} subscriptions, its limit"
            raise Condition("amqp:resource-limit-exceeded", text)
        link.tags_sequences = drains or tags
        subscription = Subscription(attach.session, link, self, needs, browse=browse, selector=selector)
        subscription.drains = drains
        if selector is not None:
            if self.selections is None:
                self.selections = Selections(self, self._queues.searches)
            self.selections.add(selector)
        link.context = subscription
        link.browses = browse
        link.accept(standing=standing)
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
        whose = {"rhost": session.address, "user": session.principal.user, "container": session.container}
        values = {"qName": self.node.name, "dest": subscription.link.name} | whose
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

    @property
    def serves(self) -> bool:
        """Whether this broker is the primary: a backup, too, writes to the log that only it has."""
        return self._queues.logs.serving

    @property
    def leaves(self) -> bool:
        """Whether a drain takes the messages, with the times at which they expire and the counts of their failures."""
        return self._queues.logs.gives_times

    @property
    def _limit(self) -> int:
        """After how many failures a message leaves; 0: it stays however often it fails, for example for a drain's target."""
        return 0 if self.leaves else self.node.delivery_limit

    def leaves_or_stays(self) -> None:
        """The broker begins to leave, or serves again: let messages stay that were to leave, or let them leave again."""
        self.limited()
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

    def remain(self, sequences: list[int]) -> None:
        """These were dead letters, and do not leave: they are available again, or expire."""
        self.due.remain(sequences)

    def settle(self, sequences: list[int], outcome: int, notes: Mapping[int, bytes] = NO_NOTES) -> None:
        """These acquired messages have this outcome, which is not `accepted`, and some of them come with annotations."""
        if notes:
            with self.ledger.one_batch(sum(map(len, notes.values()))):
                self._settle(sequences, outcome, notes)
        else:
            self._settle(sequences, outcome, notes)

    def _settle(self, sequences: list[int], outcome: int, notes: Mapping[int, bytes]) -> None:
        noted = bool(notes) and self._note(notes)  # the next consumer must get the message with its annotations
        if outcome == REJECTED or outcome & UNDELIVERABLE:
            if noted:
                self._when_committed(sequences, self._let_die)
            else:
                self._let_die(sequences)
        elif outcome & FAILED:
            self.undo(sequences, count=True, notes=notes)
        elif self._let_wait(notes):
            self._when_committed(sequences, self.failed)
        elif noted:
            self._when_committed(sequences, self.give_back)
        else:
            self.give_back(sequences)

    def _when_committed(self, sequences: list[int], then: Callable[[list[int]], None]) -> None:
        """Let these acquired messages return, or leave, by `then` when everything that was put so far is committed, in the same
        step: no other code sees them with their new counts and times, but still acquired, because these are in one batch. Until
        then, nothing that must come after them is given out."""
        if self.node.messages is not None:
            self.node.messages.order.will_return(sequences)
        one = object()
        self.returning.add(one)

        def committed() -> None:
            if one in self.returning:  # otherwise the term has ended, and with it all that was acquired
                self.returning.remove(one)
                then(sequences)

        self.ledger.when_applied(committed)

    def _note(self, notes: Mapping[int, bytes]) -> bool:
        """Propose the annotations of a consumer, as far as there is room for them. Returns whether there were any."""
        messages, ledger = self.node.messages, self.ledger
        if messages is None or ledger.version < NOTES_SINCE or not ledger.serving:
            return False
        room = limits.MAX_NOTES - len(messages.notes)
        some = [(sequence, note) for sequence, note in notes.items() if len(note) <= limits.MAX_NOTE_BYTES][: max(0, room)]
        for sequence, note in some:
            ledger.note(messages.number, sequence, note)
        return bool(some)

    def _let_wait(self, notes: Mapping[int, bytes]) -> bool:
        """Propose the delays that consumers request by annotations. Returns whether there were any."""
        messages, ledger = self.node.messages, self.ledger
        if not notes or messages is None or ledger.version < TIMES_SINCE or not ledger.serving:
            return False
        now_ms, found = ledger.now_ms, False
        for sequence, note in notes.items():
            until_ms = waits_until(note, now_ms) if len(note) <= limits.MAX_NOTE_BYTES else 0
            if until_ms:
                ledger.let_wait(messages.number, sequence, until_ms - now_ms)
                found = True
        return found

    def _let_die(self, sequences: list[int]) -> None:
        if self.node.messages is not None:
            self.letters.add(sequences, letters.REJECTED)

    def undo(self, sequences: list[int], *, count: bool, notes: Mapping[int, bytes] = NO_NOTES) -> None:
        """These acquired messages are available again; `count`: when their delivery counts have been raised by one. `notes`: the
        annotations of their consumer."""
        messages, ledger = self.node.messages, self.ledger
        if not count or messages is None or not ledger.serving:
            self.give_back(sequences)
            return
        (retry_ms, most_ms), limit = self.node.retry_ms, self.node.delivery_limit
        with ledger.one_batch(0):  # no delay may end while others of them are still to be counted
            for sequence in sequences:
                ledger.count(messages.number, sequence)
                failures = messages.order.lane_of(sequence).delivery_count(sequence) + 1
                if retry_ms and not 0 < limit <= failures:
                    ledger.let_wait(messages.number, sequence, min(retry_ms * failures, most_ms))
            self._let_wait(notes)  # the consumer's own delay has precedence over that of the queue
            self._when_committed(sequences, self.failed)  # the next consumer must get the message with the increased count

    def failed(self, sequences: list[int]) -> None:
        """The outcomes of these messages are committed: they are available again, wait, or have failed too often."""
        messages, limit, given = self.node.messages, self._limit, sequences
        if limit and messages is not None and self._queues.logs.serving:
            order = messages.order
            over = [each for each in sequences if order.lane_of(each).delivery_count(each) >= limit and order.is_acquired(each)]
            if over:
                self.letters.add(over, letters.DELIVERY_LIMIT)
                sequences = list(set(sequences).difference(over))
        if messages is not None and messages.delays is not None:
            sequences = [each for each in sequences if not messages.delays.is_waiting(each)]
            self.due.look()
        if messages is not None and sequences is not given:
            messages.order.set_aside(set(given).difference(sequences))
        self.give_back(sequences)

    def term_begins(self) -> None:
        """Remove the messages that failed too often in the last term and have not left, and wait for the owners of groups."""
        if self.owners is not None:
            self.owners.begin()
        self.due.begin()
        self.limited()

    def limited(self) -> None:
        """Remove the messages that have failed too often for the limit, which may be a new one, and keep those that were to leave
        and have not. What a consumer has stays, and leaves when it has come back and is about to be delivered."""
        messages, limit = self.node.messages, self._limit
        if messages is None:
            return
        order, delays = messages.order, messages.delays
        stay = self.letters.recall(letters.DELIVERY_LIMIT, lambda each: not 0 < limit <= order.lane_of(each).delivery_count(each))
        self.due.remain(stay)
        if limit and order.has_counts:
            over = sorted(each for lane in order.lanes for each, count in lane.delivery_counts().items() if count >= limit)
            free = [each for each in over if not order.is_acquired(each) or (delays is not None and delays.is_waiting(each))]
            self.letters.add([each for each in free if each not in self.letters], letters.DELIVERY_LIMIT)

    def has_others_wait(self, subscription: Subscription) -> bool:
        """Whether messages wait here that no consumer takes, or another consumer waits for messages, while this one holds
        some."""
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
        """Deliver the available messages, in turn among the subscriptions with room, and read bodies that are not in memory."""
        if self.letters.waiting:
            self.letters.send()
        if self.operation is not None and self.operation.reads:
            self.operation.look_again()
        stands = self._queues.logs.closed or self.paused
        if self._queues.held or (stands and not any(each.drains for each in self.subscriptions)):
            if self.node.messages is not None and self.letters.wanted():
                self._read_ahead(set())
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
            self._read_ahead(stops)

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
        returning = bool(self.returning)
        while idle < len(subscriptions):
            subscription = subscriptions[0]
            subscriptions.rotate(-1)
            room = 0 if returning and subscription in self.line else subscription.room()
            if large and room:
                room = 1  # a large message occupies its link: leave the following messages to other consumers
            lots: list[Lot] = []
            if room > 0 and self.is_active(subscription):
                if subscription.selector is not None:
                    assert selections is not None
                    lots = selections.find(subscription, self.node.messages, room)
                elif subscription.browse:
                    lots = order.browse(subscription.cursors, room, limits.MAX_TURN_BYTES)
                elif order.available:
                    lots = order.acquire(subscription.taker, room, limits.MAX_TURN_BYTES)
            if lots:
                fit = self.due.fit(self.node.messages, lots, browse=subscription.browse)
                if fit:
                    subscription.deliver(fit)
                idle = 0
                if fit is not lots:
                    held_back += _count(lots) - _count(fit)
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
        """Whether this large message is on the queue and some of its parts are missing, which is a bug of ours."""
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
        self.returning.clear()
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
