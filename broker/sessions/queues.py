"""The queues that links are attached to: their termini, what they share, and the events that concern all of them.

Life of the queues: a link, or work that a term has left, needs the terminus of a queue (broker.sessions.queue_terminus). It is
created then and kept until the queue is deleted. A ledger's events (commits, the disk, the end of the term) go from here to the
termini that they concern.

Invariants: a queue has one terminus, even if a snapshot creates its node again; a queue that is too full to accept more is
`crowded` until its producers may continue, and is looked at when it has lost messages or was altered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from broker.core.definitions import Change, QueueAltered
from broker.core.nodes import QueueNode
from broker.core.queues.arguments import OWNER_TIMEOUT
from broker.core.queues.owned import Owned
from broker.core.state import Messages
from broker.sessions.bodies import BodyReader
from broker.sessions.events import Events
from broker.sessions.last_values import LastValues
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.producer import Producer
from broker.sessions.queue_terminus import Keeper, QueueTerminus
from broker.sessions.removal import Removals, by_itself
from broker.sessions.room import is_crowded_still
from broker.sessions.schedule import Schedule
from broker.sessions.share import Share
from broker.sessions.turn import Turn
from broker.sessions.unused import Unused


class Queues:
    """See the module. It also knows the queues whose producers wait for room."""

    def __init__(
        self, logs: Logs, turn: Turn, schedule: Schedule, searches: Share, events: Events, consumer_s: float = 0.0
    ) -> None:
        self.logs = logs
        self.events = events
        self.consumer_s = consumer_s
        """For how long a consumer may keep a message without an outcome where its queue does not say; 0: for any time."""
        self.searches = searches
        """The share of each turn for searches of selectors."""
        self.turn = turn
        self.schedule = schedule
        self.unused = Unused(logs, schedule, self.users, self.remove_unused)
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
        self.removals: Removals
        """To be set before a queue goes."""
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
        """A snapshot has created the nodes again: the links of queues that still exist stay attached."""
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

    def resume_crowded(self, ledger: Ledger, numbers: Iterable[int]) -> None:
        """These queues have lost messages: let the producers of those that have room again continue."""
        for number in numbers if self.crowded else ():
            messages = ledger.state.messages.get(number)
            self._resume_crowded(None if messages is None else self._termini.get(messages.uuid))

    def _resume_crowded(self, terminus: QueueTerminus | None) -> None:
        if terminus in self.crowded and not is_crowded_still(terminus.node):
            del self.crowded[terminus]
            terminus.resume()

    def resume_all(self, ledger: Ledger) -> None:
        """The disk accepts writes again: let all producers to this ledger's queues and to exchanges continue."""
        for terminus in list(self._termini.values()):  # a route may turn to a queue that has none yet
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

    def remove_unused(self, node: QueueNode) -> None:
        """Let a queue go for as long as no link is attached to it."""
        self.removals.remove(node, by_itself(lambda: not self.users(node), lambda: self.logs.delete_queue(node)))

    def begin(self, ledger: Ledger) -> None:
        """This broker and this ledger's log begin to serve: find the work that the last term has left."""
        for node in self.logs.nodes.queues.values():
            messages = node.messages
            if node.messages_log == ledger.name and messages is not None:
                failed = node.delivery_limit and messages.order.has_counts
                if failed or messages.has_times or node.asked.get(OWNER_TIMEOUT):
                    self.at(node).term_begins()
                if node.displacing is not None and not node.displacing.ready:
                    self.at(node).dispatch_soon()

    def follow(self, changes: Iterable[tuple[Change, str]]) -> None:
        """The thresholds of queues, and their limit of failed deliveries, may be new ones."""
        for change, reason in changes:
            if isinstance(change, QueueAltered) and not reason and self.logs.serving:
                self._resume_crowded(self._termini.get(change.queue.uuid))
                node = self.logs.nodes.queue_by_uuid(change.queue.uuid)
                if node is not None and self.logs.ledger_of(node).serving:
                    self.at(node).returns.limited()

    def hold(self) -> None:
        """Stop delivering until `give_out_again`, or until this broker stops serving."""
        self.held = True

    def give_out_again(self) -> None:
        """Deliver again."""
        self.held = False
        for terminus in self._termini.values():
            terminus.dispatch_soon()

    def unsettled(self) -> int:
        """How many messages are with consumers that have not settled them."""
        return sum(each.outstanding for terminus in self._termini.values() for each in terminus.subscriptions)

    def owe_letters(self) -> bool:
        """Whether messages that were rejected still have to leave their queues."""
        return any(terminus.letters.owed for terminus in self._termini.values())

    def release_all(self) -> None:
        """This broker stops serving: acquired messages are available again. The log of some queues goes on: none of their
        messages is put elsewhere until everything is applied that was proposed to it."""
        for node in self.logs.nodes.queues.values():
            order = None if node.messages is None else node.messages.order
            if isinstance(order, Owned) and self.logs.ledger_of(node).serving:
                order.interrupt()
            elif order is not None:
                order.release_all()
        for terminus in self._termini.values():
            terminus.void()
        for ledger in self.logs.ledgers.values():
            if ledger.serving:
                ledger.pending.interrupt(partial(self._settled, ledger))

    def _settled(self, ledger: Ledger) -> None:
        """What had been proposed to this ledger's log before this broker stopped serving is applied."""
        for terminus in self._termini.values():
            if terminus.ledger is ledger:
                terminus.dispatch_soon()

    def users(self, node: QueueNode) -> int:
        """How many links are attached to this queue."""
        terminus = self._termini.get(node.uuid)
        return 0 if terminus is None else len(terminus.subscriptions) + len(terminus.producers)

    def consumers(self, node: QueueNode) -> int:
        """How many subscriptions this queue has."""
        terminus = self._termini.get(node.uuid)
        return 0 if terminus is None else len(terminus.subscriptions)
