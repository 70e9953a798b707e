"""The registry of nodes: the queues and exchanges of both logs by their addresses, and the routing between them.

Life of the registry: `rebuild` makes it from the states (at start, after a snapshot); `follow` applies each change that a log's
definitions report. It holds no messages, interprets no commands and decides nothing: `broker.core.planning` turns a request (a
queue to create, a binding) into a command.

An address names a queue or an exchange; `exchange/key` names an exchange with a routing key (subject). A queue takes precedence.

Invariants: over both logs, a name belongs to at most one queue and one exchange: if a replicated object has the name of a local
one (the primary cannot know the names on other brokers), it hides the local one; every QueueNode that is not of level
`configuration` has its messages; the binding between two replicated objects is replicated, any other belongs to the local log;
the result does not depend on the order in which the two logs are followed; the cost of a change does not depend on the number of
queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from broker.core import limits
from broker.core.addresses import exchange_in, queue_in
from broker.core.commands import (
    TIMES_SINCE,
    Bind,
    Command,
    ExchangeAdd,
    Key,
    PolicyAdd,
    QueueAdd,
    StoreAdd,
    StoreDel,
    Unbind,
)
from broker.core.definitions import (
    Bound,
    Change,
    ExchangeAltered,
    ExchangeGone,
    ExchangeMade,
    PlaceGone,
    PlaceMade,
    QueueAltered,
    QueueGone,
    QueueMade,
    Unbound,
)
from broker.core.duplicates import UnderWay, id_of
from broker.core.exchange import Exchange
from broker.core.passage import Passage, passage_of
from broker.core.queues import arguments as queue_arguments
from broker.core.queues.alerts import Thresholds, thresholds_of
from broker.core.queues.arguments import Flow, flow_of, in_force
from broker.core.queues.displacement import Displacing, displacing_of
from broker.core.state import Messages, State
from broker.core.subscriptions import NOWHERE, Gate, Origin, Terms

BUILT_IN = {"": "direct", "amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.match": "headers"}
CLUSTER, LOCAL = "cluster", "local"
AUTO_DELETE_TIMEOUT = "qpid.auto_delete_timeout"
DELIVERY_LIMIT = "x-delivery-limit"
MESSAGE_TTL = "x-message-ttl"
RETRY_MIN, RETRY_MAX = "x-delayed-retry-min", "x-delayed-retry-max"


class Refused(Exception):
    """A refused request: `status` is the management status (HTTP's numbers), the text says what is refused and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Unplaced(Exception):
    """A queue has no place for messages on this broker now. This is temporary."""


@dataclass(slots=True, eq=False)
class QueueNode:
    """A queue at run time. `proposed_seqs` are, by lane, the sequences of the next proposed messages. `proposed` and
    `proposed_bytes` count all messages so far, including proposed ones, as `messages` counts them (primary only).
    """

    definition: QueueAdd
    log: str
    messages_log: str
    messages: Messages | None
    proposed_seqs: list[int] = field(default_factory=lambda: [1])
    proposed: int = 0
    proposed_bytes: int = 0
    max_count: int = 0
    max_bytes: int = 0
    auto_delete_s: int = 0
    """Seconds after the end of its last link when the queue is deleted; 0: never for this reason."""
    asked: dict[str, Any] = field(default_factory=dict)
    """Its arguments that are in force."""
    flow: Flow = field(default_factory=Flow)
    displacing: Displacing | None = None
    """Decides which messages leave when one arrives, for kinds of queues that need this (primary only)."""
    gate: Gate | None = None
    """Which messages an exchange puts on it, of those that its bindings match; None: all (primary only)."""
    terms: Terms | None = None
    """The terms of its subscription; None: it is an ordinary queue."""
    under_way: UnderWay = field(default_factory=UnderWay)
    """The ids of proposed messages that are not committed, if the queue detects duplicates (primary only)."""
    delivery_limit: int = 0
    """A message leaves the queue after this number of failed deliveries; 0: no limit."""
    ttl_ms: int = 0
    """The longest time of a message on the queue after it may be delivered; 0: no limit."""
    thresholds: Thresholds | None = None
    """Its alert thresholds; None: it has none."""
    raised: set[str] = field(default_factory=set)
    """The alerts that are raised, each of which has a threshold (primary only)."""
    retry_ms: tuple[int, int] = (0, 0)
    """The delay after a failed delivery, multiplied by the number of failures, and the longest delay; (0, 0): none."""
    rejected: int = 0
    over_limit: int = 0
    expired: int = 0
    """How many messages have left the queue for each reason, since this broker knows the queue (primary only)."""
    dropped: int = 0
    """The number of these that no queue has accepted."""
    overdue: int = 0
    """How often consumers have kept a message for too long, so that it came back (primary only)."""

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.definition.name

    @property
    def uuid(self) -> str:
        """Its identity, never used again after deletion."""
        return self.definition.uuid

    @property
    def replicated(self) -> bool:
        """Whether the definition is in the cluster's log."""
        return self.log == CLUSTER

    @property
    def depth(self) -> int:
        """Messages on the queue."""
        return 0 if self.messages is None else self.messages.depth

    @property
    def detects_duplicates(self) -> bool:
        """Whether `repeats` is to be asked before a message is put on it."""
        return self.messages is not None and self.messages.window is not None

    def repeats(self, data: bytes, now_ms: int) -> bool:
        """Whether this message has come lately, or is under way."""
        messages = self.messages
        if messages is None or messages.window is None:
            return False
        one = id_of(data)
        return one is not None and (self.under_way.has(one, messages.enqueued) or messages.window.has(one, now_ms))

    def displaces(self, sequence: int) -> bool:
        """Whether it is proposed that this message, which is on the queue, leaves it for another one."""
        return self.displacing is not None and self.displacing.leaves(sequence)

    def go_on(self) -> None:
        """Later proposals get sequences after the existing messages."""
        messages = self.messages
        if messages is not None:
            self.displacing = displacing_of(self.asked, messages, self.max_count, self.max_bytes)
            self.proposed_seqs = messages.next_seqs()
            self.proposed, self.proposed_bytes = messages.enqueued, messages.enqueued_bytes
            self.under_way = UnderWay()


@dataclass(slots=True, eq=False)
class ExchangeNode:
    """An exchange at run time."""

    definition: ExchangeAdd
    log: str
    routing: Exchange[str]
    received: int = 0
    routed: int = 0
    dropped: int = 0
    passage: Passage | None = None
    """Numbers its messages, or keeps the last one (primary only); None: neither."""

    @property
    def name(self) -> str:
        """The exchange's name."""
        return self.definition.name

    @property
    def uuid(self) -> str:
        """Its identity; a built-in one's is its name."""
        return self.definition.uuid

    @property
    def built_in(self) -> bool:
        """Whether it exists on every broker from the start, and cannot be deleted."""
        return self.uuid == self.name

    @property
    def replicated(self) -> bool:
        """Whether every broker of the cluster has it."""
        return self.log == CLUSTER or self.built_in

    @property
    def keeps(self) -> bool:
        """Whether a newly bound queue gets the last message that has passed through it."""
        return self.passage is not None and self.passage.keeps


class Routed(NamedTuple):
    """The route of a message: its queues, and the exchanges on its way that number or keep messages, in order, each with the key
    that the message has there; and its origin."""

    queues: list[QueueNode]
    key: str = ""
    through: tuple[ExchangeNode, ...] = ()
    origin: Origin = NOWHERE


class Nodes:
    """The registry. `clustered`: whether there is a cluster log; without one everything is local."""

    def __init__(
        self, *, clustered: bool, default_level: str = "none", default_queue_bytes: int = limits.MAX_QUEUE_BYTES
    ) -> None:
        self.clustered = clustered
        self.default_level = default_level
        self.default_queue_bytes = default_queue_bytes
        self.queues: dict[str, QueueNode] = {}
        self.exchanges: dict[str, ExchangeNode] = {}
        self.alerting: dict[str, QueueNode] = {}
        """Identity of a queue that has thresholds -> the queue."""
        self._queues_by_uuid: dict[str, QueueNode] = {}
        self._exchanges_by_uuid: dict[str, ExchangeNode] = {}
        self._hidden_queues: dict[str, QueueNode] = {}
        self._hidden_exchanges: dict[str, ExchangeNode] = {}
        self._unplaced: dict[str, Command] = {}
        self._fresh_unplaced: dict[str, None] = {}
        self._owned: Counter[str] = Counter()
        self._gates: dict[str, Gate] = {}
        """Queues that are proposed -> which messages an exchange puts on them."""
        self._orphans: dict[str | Key, Command] = {}
        self._fresh_orphans: dict[str | Key, None] = {}
        self._states: dict[str, State] = {}
        self.under_way: Callable[[], Iterable[Command]] = tuple
        """The commands that are proposed to the logs and are not followed yet. There may be thousands: a look at all of them is
        for requests that are rare."""
        self.is_going: Callable[[str], bool] = lambda uuid: False
        """Whether one of them deletes the queue or exchange with this identity."""
        self.rises_to: Callable[[], int] = int
        """The machine version to which one of them raises the cluster; 0: to none."""
        self.rebuild({})

    # ---- following the logs

    def rebuild(self, states: dict[str, State]) -> None:
        """Forget everything and read these states: log name → state. Where a queue's next message goes stays as it was."""
        before, passages = self._queues_by_uuid, {uuid: each.passage for uuid, each in self._exchanges_by_uuid.items()}
        self._states = dict(states)
        self.queues, self._queues_by_uuid, self._hidden_queues, self._owned = {}, {}, {}, Counter()
        self.alerting = {}
        self.exchanges, self._exchanges_by_uuid, self._hidden_exchanges = {}, {}, {}
        self._unplaced, self._fresh_unplaced, self._orphans, self._fresh_orphans = {}, {}, {}, {}
        for name, kind in BUILT_IN.items():
            self._enter_exchange(LOCAL, ExchangeAdd(uuid=name, name=name, kind=kind, level="configuration", durable=True))
        for log, state in states.items():
            for exchange in state.definitions.exchanges.values():
                self._enter_exchange(log, exchange)
            for queue in state.definitions.queues.values():
                self._enter_queue(log, queue)
        for log, state in states.items():
            for place in state.definitions.stores.values():
                self._place_made(log, place)
            for binding in state.definitions.bindings.values():
                self._bind(log, binding)
        for uuid in before.keys() & self._queues_by_uuid.keys():
            was, node = before[uuid], self._queues_by_uuid[uuid]
            if was.messages is node.messages:
                node.proposed_seqs, node.proposed, node.proposed_bytes = was.proposed_seqs, was.proposed, was.proposed_bytes
                node.displacing = was.displacing
                node.gate = was.gate
        for uuid in passages.keys() & self._exchanges_by_uuid.keys():
            self._exchanges_by_uuid[uuid].passage = passages[uuid]

    def follow(self, log: str, change: Change) -> QueueNode | None:
        """Take up what `log` has changed. Returns the queue that it removed, if it did."""
        match change:
            case QueueMade(queue):
                self._enter_queue(log, queue)
                for other, state in self._states.items():
                    self._bind_all(other, state.definitions.bindings_of_queue(queue.uuid))
            case QueueGone(queue, bindings):
                return self._remove_queue(queue, bindings)
            case QueueAltered(queue):
                self._settle(self._queues_by_uuid[queue.uuid], queue)
            case ExchangeAltered(exchange):
                self._exchanges_by_uuid[exchange.uuid].definition = exchange
            case PlaceMade(place):
                self._place_made(log, place)
            case PlaceGone(place):
                self._place_gone(place)
            case ExchangeMade(exchange):
                self._enter_exchange(log, exchange)
                for other, state in self._states.items():
                    self._bind_all(other, state.definitions.bindings_of_exchange(exchange.uuid))
            case ExchangeGone(exchange, bindings):
                self._remove_exchange(exchange, bindings)
            case Bound(binding):
                self._bind(log, binding)
            case Unbound(binding):
                self._unbind(log, binding)
            case _:
                pass
        return None

    def _enter_queue(self, log: str, queue: QueueAdd) -> None:
        messages_log = log if queue.level != "configuration" else LOCAL
        state = self._states.get(messages_log)
        node = QueueNode(queue, log, messages_log, None)
        self._settle(node, queue)
        _place(node, None if state is None else state.by_uuid.get(queue.uuid))
        if queue.subscription:
            node.terms = Terms.of(queue.subscription)
            node.gate = node.terms.gate()
        node.gate = self._gates.pop(node.uuid, node.gate)
        self._queues_by_uuid[node.uuid] = node
        if queue.owner:
            self._owned[queue.owner] += 1
        self._orphans.pop(node.uuid, None)
        if node.messages is None:
            self._needs_place(queue)
        self._route_by_name(_give_name(self.queues, self._hidden_queues, node), node.name)

    def _settle(self, node: QueueNode, queue: QueueAdd) -> None:
        """From now on this is the definition of the queue, and its arguments are in force."""
        node.definition = queue
        asked = node.asked = in_force(queue.arguments, queue.needs)
        node.max_count = int(asked.get(queue_arguments.MAX_COUNT, 0))
        node.max_bytes = int(asked.get(queue_arguments.MAX_BYTES, self.default_queue_bytes))
        node.flow = flow_of(asked, node.max_count, node.max_bytes, limits.FLOW_STOP_RATIO, limits.FLOW_RESUME_RATIO)
        node.auto_delete_s = queue.arguments.get(AUTO_DELETE_TIMEOUT, 0) if queue.needs > 1 else 0
        if queue.needs >= TIMES_SINCE:
            node.delivery_limit, node.ttl_ms = queue.arguments.get(DELIVERY_LIMIT, 0), queue.arguments.get(MESSAGE_TTL, 0)
            node.retry_ms = queue.arguments.get(RETRY_MIN, 0), queue.arguments.get(RETRY_MAX, limits.MAX_MESSAGE_TTL_MS)
        node.thresholds = thresholds_of(asked)
        if node.thresholds is not None:
            self.alerting[queue.uuid] = node
            node.raised.intersection_update(node.thresholds.of)
        else:
            self.alerting.pop(queue.uuid, None)
            node.raised.clear()
        if node.displacing is not None:
            node.displacing.max_count, node.displacing.max_bytes = node.max_count, node.max_bytes

    def _place_made(self, log: str, place: StoreAdd) -> None:
        node = self._queues_by_uuid.get(place.uuid)
        if node is None:
            self._is_orphan(place.uuid, StoreDel(uuid=place.uuid))
            return
        _place(node, self._states[log].by_uuid.get(place.uuid))
        if node.messages is not None:
            self._unplaced.pop(place.uuid, None)

    def _place_gone(self, place: StoreAdd) -> None:
        self._orphans.pop(place.uuid, None)
        node = self._queues_by_uuid.get(place.uuid)
        if node is not None and node.definition.level == "configuration":
            node.messages = None
            self._needs_place(node.definition)

    def _route_by_name(self, was: QueueNode | None, name: str) -> None:
        """Let the default exchange's binding of that name be the queue's that has it now."""
        routing = self.exchanges[""].routing
        if was is not None:
            routing.unbind(was.uuid, name)
        now = self.queues.get(name)
        if now is not None:
            routing.bind(now.uuid, name, {})

    def _remove_queue(self, queue: QueueAdd, bindings: Iterable[Bind]) -> QueueNode | None:
        for binding in bindings:
            self._orphans.pop(binding.identity, None)
        node = self._queues_by_uuid.pop(queue.uuid, None)
        if node is None:
            return None
        self._unplaced.pop(node.uuid, None)
        self.alerting.pop(node.uuid, None)
        if queue.owner:
            self._owned[queue.owner] -= 1
            if not self._owned[queue.owner]:
                del self._owned[queue.owner]
        elsewhere = [each for state in self._states.values() for each in state.definitions.bindings_of_queue(node.uuid)]
        for binding in (*bindings, *elsewhere):
            exchange = self._exchanges_by_uuid.get(binding.exchange)
            if exchange is not None:
                exchange.routing.unbind(node.uuid, binding.key)
        self.exchanges[""].routing.unbind(node.uuid, node.name)
        _take_name(self.queues, self._hidden_queues, node)
        self._route_by_name(None, node.name)
        local = self._states[LOCAL].definitions
        if node.uuid in local.stores:
            self._is_orphan(node.uuid, StoreDel(uuid=node.uuid))
        self._forsake(local.bindings_of_queue(node.uuid))
        return node

    def _enter_exchange(self, log: str, exchange: ExchangeAdd) -> None:
        routing: Exchange[str] = Exchange(exchange.name, exchange.kind)
        node = ExchangeNode(exchange, log, routing, passage=passage_of(exchange.arguments, exchange.needs))
        self._exchanges_by_uuid[node.uuid] = node
        _give_name(self.exchanges, self._hidden_exchanges, node)

    def _remove_exchange(self, exchange: ExchangeAdd, bindings: Iterable[Bind]) -> None:
        for binding in bindings:
            self._orphans.pop(binding.identity, None)
        node = self._exchanges_by_uuid.pop(exchange.uuid, None)
        if node is not None:
            _take_name(self.exchanges, self._hidden_exchanges, node)
            self._forsake(self._states[LOCAL].definitions.bindings_of_exchange(node.uuid))

    def _forsake(self, bindings: Iterable[Bind]) -> None:
        """Local bindings whose queue or exchange was deleted, or is not known yet."""
        for each in bindings:
            self._is_orphan(each.identity, Unbind(exchange=each.exchange, queue=each.queue, key=each.key))

    def _bind(self, log: str, binding: Bind) -> None:
        exchange = self._exchanges_by_uuid.get(binding.exchange)
        if exchange is not None and binding.queue in self._queues_by_uuid:
            exchange.routing.bind(binding.queue, binding.key, binding.arguments)
            self._orphans.pop(binding.identity, None)
        elif log == LOCAL:
            self._forsake((binding,))

    def _unbind(self, log: str, binding: Bind) -> None:
        exchange = self._exchanges_by_uuid.get(binding.exchange)
        if exchange is not None:
            exchange.routing.unbind(binding.queue, binding.key)
        if log == LOCAL:
            self._orphans.pop(binding.identity, None)
        for other, state in self._states.items():
            still = state.definitions.bindings.get(binding.identity)
            if still is not None:
                self._bind(other, still)

    def _bind_all(self, log: str, bindings: Iterable[Bind]) -> None:
        """Make the bindings of this log whose queue or exchange the other log did not have before."""
        for binding in bindings:
            self._bind(log, binding)

    def orphans(self) -> list[Command]:
        """Commands that remove data from the local log about objects which the cluster's log has deleted."""
        return list(self._orphans.values())

    def unplaced(self) -> list[Command]:
        """Commands for the local log that make a place for the messages of `configuration` queues which have none."""
        return list(self._unplaced.values())

    def take_orphans(self) -> list[Command]:
        """Those of `orphans` that have come since this was last asked for."""
        fresh, self._fresh_orphans = self._fresh_orphans, {}
        return [self._orphans[key] for key in fresh if key in self._orphans]

    def take_unplaced(self) -> list[Command]:
        """Those of `unplaced` that have come since this was last asked for."""
        fresh, self._fresh_unplaced = self._fresh_unplaced, {}
        return [self._unplaced[uuid] for uuid in fresh if uuid in self._unplaced]

    def _needs_place(self, queue: QueueAdd) -> None:
        self._unplaced[queue.uuid] = StoreAdd(uuid=queue.uuid, arguments=queue.arguments, needs=queue.needs)
        self._fresh_unplaced[queue.uuid] = None

    def _is_orphan(self, key: str | Key, command: Command) -> None:
        self._orphans[key] = command
        self._fresh_orphans[key] = None

    # ---- looking up

    def exchange_at(self, address: str) -> tuple[ExchangeNode, str] | None:
        """The exchange that an address names, whether a queue has that name or not, and the routing key in it ("" when there is
        none)."""
        exchange = self.exchanges.get(address) if address else None
        if exchange is not None:
            return exchange, ""
        name, slash, key = address.partition("/")
        if slash and not name:
            name, key = exchange_in(address)
        exchange = self.exchanges.get(name) if slash and name else None
        return None if exchange is None else (exchange, key)

    def queue_at(self, address: str) -> QueueNode | None:
        """The queue of that name, or else the one that the address is of (see `broker.core.addresses`)."""
        return self.queues.get(address) or self.queues.get(queue_in(address))

    def queue_by_uuid(self, uuid: str) -> QueueNode | None:
        """The queue of that identity."""
        return self._queues_by_uuid.get(uuid)

    def exchange_by_uuid(self, uuid: str) -> ExchangeNode:
        """The existing exchange of this identity."""
        return self._exchanges_by_uuid[uuid]

    def find_exchange(self, uuid: str) -> ExchangeNode | None:
        """The exchange of that identity, if there is one."""
        return self._exchanges_by_uuid.get(uuid)

    def go_on(self, log: str) -> None:
        """A term of this log begins: later messages get sequences after the existing ones."""
        self._gates.clear()
        for node in self._queues_by_uuid.values():
            if node.messages_log == log and node.messages is not None:
                node.go_on()
        for exchange in self._exchanges_by_uuid.values():
            if exchange.log == log and exchange.passage is not None:
                exchange.passage.go_on(self._states[log].definitions.passed.get(exchange.uuid))

    def expect(self, queue: str, gate: Gate | None) -> None:
        """A queue of this identity is proposed with a gate: from its first message on, exchanges put only messages on it that the
        gate accepts."""
        if gate is not None:
            self._gates[queue] = gate

    def owed(self) -> list[Bind]:
        """The bindings that owe their queues the last message of their exchange."""
        return [each for state in self._states.values() for each in state.definitions.bindings.values() if each.owes]

    def bindings_of(self, queue: str) -> list[Bind]:
        """The bindings that name the queue of this identity, in either log."""
        return [each for state in self._states.values() for each in state.definitions.bindings_of_queue(queue)]

    def binding(self, identity: Key) -> tuple[str, Bind] | None:
        """The binding with this identity, and the log that holds it."""
        found = ((log, state.definitions.bindings.get(identity)) for log, state in self._states.items())
        return next(((log, binding) for log, binding in found if binding is not None), None)

    def log_of_binding(self, identity: Key) -> str | None:
        """The log that holds this binding."""
        found = self.binding(identity)
        return None if found is None else found[0]

    def queues_of(self, user: str) -> int:
        """How many queues name this user as their owner."""
        return self._owned[user]

    def bindings(self, of: QueueNode | None = None) -> Iterable[tuple[ExchangeNode, QueueNode, Bind, str]]:
        """Every binding that was asked for, or those of one queue: exchange, queue, its record, its log. Those of the default
        exchange are not among them."""
        for log, state in self._states.items():
            definitions = state.definitions
            found = definitions.bindings.values() if of is None else definitions.bindings_of_queue(of.uuid)
            for binding in found:
                exchange = self._exchanges_by_uuid.get(binding.exchange)
                queue = self._queues_by_uuid.get(binding.queue)
                if exchange is not None and queue is not None:
                    yield exchange, queue, binding, log

    def bindings_at(self, queue: QueueNode) -> int:
        """How many bindings this queue has, the one to the default exchange among them."""
        found = (each for state in self._states.values() for each in state.definitions.bindings_of_queue(queue.uuid))
        return 1 + sum(binding.exchange in self._exchanges_by_uuid for binding in found)

    def policy_in(self, log: str, kind: str, pattern: str) -> PolicyAdd | None:
        """The policy for that pattern that this log has."""
        state = self._states.get(log)
        return None if state is None else state.definitions.policies.get((kind, pattern))

    def policies(self) -> list[PolicyAdd]:
        """Every policy, the cluster's before those of this broker."""
        states = [self._states[log] for log in (CLUSTER, LOCAL) if log in self._states]
        return [policy for state in states for policy in state.definitions.policies.values()]

    def version_of(self, log: str) -> int:
        """The machine version that a command may need which is proposed to this log now: after what is under way."""
        state = self._states[log]
        return max(state.definitions.machine_version, self.rises_to()) if log == CLUSTER else state.version

    def lacks(self, log: str, needs: int) -> str:
        """Why a command that needs this machine version may not be proposed to this log now; "" if it may. Not on a standalone
        broker, whose log has every version."""
        has = self.version_of(log)
        if needs <= has:
            return ""
        until = "until all its brokers are connected and support a newer one"
        return f"needs machine version {needs}, and the cluster has version {has} {until}"

    def is_bound(self, queue: QueueNode, binding: Bind) -> bool:
        """Whether this queue has this binding, in either log."""
        return any((binding.exchange, queue.uuid, binding.key) in state.definitions.bindings for state in self._states.values())


Node = TypeVar("Node", QueueNode, ExchangeNode)


def _give_name(named: dict[str, Node], hidden: dict[str, Node], node: Node) -> Node | None:
    """Let a node have its name, unless a replicated one has it: then it is hidden. Returns the one that it hides itself."""
    was = named.get(node.name)
    if was is not None and was.log == CLUSTER:
        hidden[node.name] = node
        return None
    if was is not None:
        hidden[node.name] = was
    named[node.name] = node
    return was


def _take_name(named: dict[str, Node], hidden: dict[str, Node], node: Node) -> None:
    """A node was removed: a node that it has hidden has the name again."""
    other = hidden.pop(node.name, None)
    if named.get(node.name) is node:
        del named[node.name]
        if other is not None:
            named[node.name] = other


def _place(node: QueueNode, messages: Messages | None) -> None:
    """These are the queue's messages; the next one proposed goes behind them."""
    node.messages = messages
    node.go_on()
