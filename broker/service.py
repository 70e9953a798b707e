"""The broker: its ledgers, its nodes, its connections, and what happens between them.

Life of a broker: its logs are plugged in (`attach_log`); states come and go with them. While it serves (active or standalone) it
admits clients and attaches their links to nodes; a batch of messages goes link → Producer → Ledger → log, and when committed
ledger → `ledger_applied` → dispatch → Subscription → link. When it stops serving, every client is cut off and everything volatile
is undone. A standalone broker begins as "recovering": it has its log to read first.

Invariants: clients are admitted only while serving; `flush` runs once at the end of every entry from the reactor, so that a
turn's output to a connection is one write; the local log forgets what the cluster's log has deleted only while this broker is
active, because only then has the cluster's log been read to its end; nothing here depends on what the logs are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from broker.administration import Administration
from broker.amqp.links import Condition, Link, Receiver, Sender
from broker.commit_log import CommitLog
from broker.consumers import Mailbox, Queueing, Subscription, dispatch
from broker.core import limits, message
from broker.core.commands import Bind, QueueDel
from broker.core.definitions import Change
from broker.core.exchange import fault_of
from broker.core.nodes import CLUSTER, LOCAL, ExchangeNode, Nodes, QueueNode
from broker.host import new_uuid
from broker.ledger import SERVING, Ledger
from broker.net.connection import BrokerConnection
from broker.producers import Producer, check_places, is_crowded, route

_log = Logger()


class HaAdmin(Protocol):
    """What the cluster part answers for management; absent on a standalone broker."""

    def ha_item(self) -> dict[str, Any]:
        """The one item of `QUERY ha`."""

    def act(self, operation: str, body: dict[str, Any]) -> Deferred[tuple[int, str, dict[str, Any]]]:
        """PROMOTE, ADD-BROKER, REMOVE-BROKER: status, text and body of the answer."""


class PeerAcceptor(Protocol):
    """Who takes the replication links that other brokers open."""

    def accept(self, connection: BrokerConnection) -> Any:
        """A listener with `received(messages)` and `lost()`, or a text: why this peer is refused."""


class Broker:
    """A broker's services; the sockets are given to it by `broker.net.listener`."""

    def __init__(
        self,
        clock: IReactorTime,
        *,
        broker_id: str,
        version: str,
        clustered: bool,
        default_level: str = "none",
        max_message_bytes: int = limits.MAX_MESSAGE_BYTES,
        max_connections: int = limits.MAX_CONNECTIONS,
        max_frame_bytes: int = limits.MAX_FRAME_BYTES,
        open_timeout_s: float = limits.OPEN_TIMEOUT_S,
        default_queue_bytes: int = limits.MAX_QUEUE_BYTES,
        on_fatal: Callable[[str], None],
        new_id: Callable[[], str] = new_uuid,
    ) -> None:
        self.clock = clock
        self.broker_id = broker_id
        self.container = broker_id
        self.version = version
        self.new_id = new_id
        self.max_message_bytes = max_message_bytes
        self.max_connections = max_connections
        self.max_frame_bytes = max_frame_bytes
        self.open_timeout_s = open_timeout_s
        self.started = clock.seconds()
        self.nodes = Nodes(clustered=clustered, default_level=default_level, default_queue_bytes=default_queue_bytes)
        self.ledgers: dict[str, Ledger] = {LOCAL: Ledger(LOCAL, clock, self)}
        if clustered:
            self.ledgers[CLUSTER] = Ledger(CLUSTER, clock, self)
        self.lead = self.ledgers[CLUSTER] if clustered else self.ledgers[LOCAL]
        self.state = "joining" if clustered else "recovering"
        self.primary = ""
        self.failover_urls: Callable[[], list[dict[str, Any]]] = list
        self.ha: HaAdmin | None = None
        self.peers: PeerAcceptor | None = None
        self.peer_refusal = "this broker is not in a cluster"
        self.on_state: Callable[[str, int, str], None] = lambda state, epoch, primary: None
        self._on_fatal = on_fatal
        self.connections: dict[int, BrokerConnection] = {}
        self._next_connection = 1
        self.administration = Administration(self)
        self._mailboxes: dict[str, Mailbox] = {}
        self._dirty: dict[BrokerConnection, None] = {}
        self._dispatch: dict[QueueNode, None] = {}
        self._dispatch_call: Any = None
        self._crowded: dict[QueueNode, None] = {}
        self._held_opens: list[BrokerConnection] = []
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = clock
        self._ticker.start(1.0, now=False)
        self._rebuild()

    # ---- logs

    def attach_log(self, name: str, log: CommitLog) -> Ledger:
        """Plug a log in; returns the ledger, which is the log's listener."""
        ledger = self.ledgers[name]
        ledger.log = log
        return ledger

    def ledger_of(self, node: QueueNode) -> Ledger:
        """The ledger that holds this queue's messages."""
        return self.ledgers[node.messages_log]

    def _rebuild(self) -> None:
        self.nodes.rebuild({name: ledger.state for name, ledger in self.ledgers.items()})

    def ledger_reset(self, ledger: Ledger) -> None:
        """A snapshot replaced what this ledger said."""
        self._rebuild()
        self._tidy_local(anew=True)

    def ledger_applied(self, ledger: Ledger, fed: Iterable[int], changes: Iterable[tuple[Change, str]]) -> None:
        """Follow the definitions, then give out what has come, then write."""
        changed = False
        for change, reason in changes:
            if not reason:
                changed = True
                gone = self.nodes.follow(ledger.name, change)
                if gone is not None:
                    self._queue_gone(gone)
        if changed:
            self._tidy_local()
        for number in fed:
            messages = ledger.state.messages.get(number)
            node = None if messages is None else self.nodes.queue_by_uuid(messages.uuid)
            if node is not None and node.context is not None:
                dispatch(node)
        self._resume_producers()
        self.flush()

    def _tidy_local(self, *, anew: bool = False) -> None:
        """Keep the local log level with what the cluster's log has made or deleted: lately, or, `anew`, ever.

        A backup makes the places that messages will need when it is the primary. What seems to be deleted may be what it has
        not heard of yet: only a primary forgets.
        """
        local = self.ledgers[LOCAL]
        if local.serving:
            nodes, forgets = self.nodes, self.state in SERVING
            orphans, unplaced = nodes.take_orphans() if forgets else [], nodes.take_unplaced()
            if anew:
                orphans, unplaced = nodes.orphans() if forgets else [], nodes.unplaced()
            for command in (*orphans, *unplaced):
                local.change(command, lambda reason: None)

    def ledger_state(self, ledger: Ledger, state: str, epoch: int, primary: str) -> None:
        """A log's state changed: begin or end to serve."""
        if ledger is not self.lead:
            self._tidy_local(anew=True)
            return
        was, self.state, self.primary = self.state, state, primary
        if was in SERVING and state not in SERVING:
            self._stop_serving(primary)
        elif state in SERVING:
            self._tidy_local(anew=True)
            self._admit_held()
        elif state != "recovering":
            self._drop_held()
        self.on_state(state, epoch, primary)
        self.flush()

    def ledger_begins(self, ledger: Ledger) -> None:
        """What comes next goes behind what is there; subscriptions that ended with the last process leave no queues."""
        for node in self.nodes.queues.values():
            if node.messages_log == ledger.name and node.messages is not None:
                node.go_on()
        if ledger is self.ledgers[LOCAL]:
            for node in self.nodes.queues.values():
                definition = node.definition
                if node.log == LOCAL and definition.auto_delete and definition.exclusive and not definition.durable:
                    self._delete_queue(node)

    def _stop_serving(self, primary: str) -> None:
        where = f"; the primary is {primary}" if primary else ""
        for connection in list(self.connections.values()):
            if connection.admin:
                self._close_queue_links(connection, Condition("amqp:not-allowed", f"this broker is a backup now{where}"))
            elif connection.opened and not connection.peer:
                connection.cut_off()
        for node in self.nodes.queues.values():
            if node.messages is not None:
                node.messages.order.release_all()

    def _close_queue_links(self, connection: BrokerConnection, condition: Condition) -> None:
        """Leave an administrator's connection nothing but management."""
        for link in connection.engine.links:
            context = link.context
            if isinstance(context, Subscription) or (
                isinstance(context, Producer) and isinstance(context.node, QueueNode | ExchangeNode)
            ):
                self.detached(link)
                link.context = None
                link.close(condition)
                self.touched(link)

    def ledger_storage_error(self, ledger: Ledger, text: str, fatal: bool) -> None:
        """The disk refused a write."""
        if fatal:
            self._on_fatal(text)
        else:
            _log.error("{text}; producers wait until there is room", text=text)

    def ledger_writable(self, ledger: Ledger) -> None:
        """The disk takes writes again: let the producers go on."""
        _log.info("the disk takes writes again; producers go on")
        for node in self.nodes.queues.values():
            if node.context is not None and node.messages_log == ledger.name:
                for producer in node.context.producers:
                    producer.resume()
        self.flush()

    def _resume_producers(self) -> None:
        for node in [node for node in self._crowded if not is_crowded(node, limits.FLOW_RESUME_RATIO)]:
            del self._crowded[node]
            if node.context is not None:
                for producer in node.context.producers:
                    producer.resume()

    def crowded(self, node: QueueNode) -> None:
        """Producers wait for room on this queue."""
        self._crowded[node] = None

    # ---- connections

    def connection_made(self, connection: BrokerConnection) -> None:
        """A socket was accepted."""
        self.connections[connection.number] = connection

    def connection_lost(self, connection: BrokerConnection) -> None:
        """A socket is gone."""
        self.connections.pop(connection.number, None)
        self._dirty.pop(connection, None)
        if connection in self._held_opens:
            self._held_opens.remove(connection)
        self.flush()

    def new_connection(self, address: str) -> BrokerConnection | None:
        """A connection object for a socket from `address`; None when there are too many."""
        limit = self.max_connections + limits.SPARE_CONNECTIONS
        if len(self.connections) >= limit:
            _log.warn("{address} refused: there are {limit} connections, with the spare ones", address=address, limit=limit)
            return None
        number, self._next_connection = self._next_connection, self._next_connection + 1
        return BrokerConnection(self, number, address)

    def admit(self, connection: BrokerConnection) -> None:
        """A client's Open: answer it, keep it waiting, or turn the client away."""
        if len(self.connections) > self.max_connections and not connection.admin:
            text = f"this broker serves {self.max_connections} connections at once (--max-connections): close some first"
            connection.refuse(Condition("amqp:resource-limit-exceeded", text))
        elif self.state in SERVING or connection.admin:
            connection.complete_open()
        elif self.state == "recovering":
            connection.waiting = True
            self._held_opens.append(connection)
        else:
            connection.drop()

    def _admit_held(self) -> None:
        held, self._held_opens = self._held_opens, []
        for connection in held:
            connection.complete_open()
            connection.engine.drain()
            self.touch(connection)

    def _drop_held(self) -> None:
        held, self._held_opens = self._held_opens, []
        for connection in held:
            connection.drop()

    def accept_peer(self, connection: BrokerConnection) -> Any:
        """A replication link: its listener, or None with `peer_refusal` set."""
        if self.peers is None:
            return None
        listener = self.peers.accept(connection)
        if isinstance(listener, str):
            self.peer_refusal = listener
            return None
        return listener

    def open_properties(self, max_frame: int) -> dict[str, Any]:
        """The properties of this broker's Open: one frame, which the peer takes up to `max_frame` bytes (0: any size)."""
        properties: dict[str, Any] = {"product": "understudy", "version": self.version, "platform": "Python"}
        urls = self.failover_urls()
        if urls and (not max_frame or limits.PLAIN_OPEN_BYTES + len(str(urls)) <= max_frame):
            properties["failover-server-list"] = urls
        return properties

    def _tick(self) -> None:
        now = self.clock.seconds()
        for connection in list(self.connections.values()):
            connection.tick(now)
        self.flush()

    # ---- links

    def attach(self, connection: BrokerConnection, link: Link) -> None:
        """Attach a client's link to the node that it names; Condition when that cannot be."""
        if isinstance(link, Sender):
            self._attach_consumer(connection, link)
        elif isinstance(link, Receiver):
            self._attach_producer(connection, link)

    def _attach_producer(self, connection: BrokerConnection, link: Receiver) -> None:
        target = link.target
        node: QueueNode | ExchangeNode | Mailbox | str | None
        key = ""
        if target.coordinator:
            raise Condition("amqp:not-implemented", "this broker has no transactions")
        if target.dynamic:
            raise Condition(
                "amqp:not-implemented",
                "a dynamic target is not available: create a queue, or use a dynamic source for answers",
            )
        if not target.address:
            node = None
        elif target.address == "$management":
            node = "$management"
        elif target.address in self._mailboxes:
            node = self._mailboxes[target.address]
        else:
            node, key = self._serving_node(target.address)
        producer = Producer(self, link, node, key)
        link.context = producer
        link.accept(max_message_size=self.max_message_bytes)
        if isinstance(node, QueueNode):
            self._queueing(node).producers[producer] = None
        producer.start()

    def _serving_node(self, address: str) -> tuple[QueueNode | ExchangeNode, str]:
        if self.state not in SERVING:
            where = self.primary or "unknown"
            raise Condition("amqp:not-allowed", f"this broker is {self.state}: it serves no queues; the primary is {where}")
        found = self.nodes.find(address)
        if found is None:
            text = f"there is no queue and no exchange named {address!r}; create one with qpid-config add queue or add exchange"
            raise Condition("amqp:not-found", text)
        node = found[0]
        if isinstance(node, QueueNode) and (node.messages is None or not self.ledger_of(node).serving):
            raise Condition("amqp:resource-locked", f"queue {address!r} is not ready yet; try again")
        return found

    def _attach_consumer(self, connection: BrokerConnection, link: Sender) -> None:
        source = link.source
        if source.dynamic:
            box = Mailbox(self, link, f"$reply/{self.new_id()}")
            self._mailboxes[box.address] = box
            link.context = box
            link.accept(dynamic_address=box.address)
            return
        if not source.address:
            raise Condition("amqp:invalid-field", "a receiving link needs the address of a queue or exchange as its source")
        node, key = self._serving_node(source.address)
        if isinstance(node, QueueNode):
            self._subscribe(link, node, browse=source.copy)
        else:
            self._subscribe_exchange(link, node, *_binding_of(node, source.filters, key))

    def _subscribe(self, link: Sender, node: QueueNode, *, browse: bool) -> None:
        queueing = self._queueing(node)
        if not browse and node.definition.exclusive and any(not each.browse for each in queueing.subscriptions):
            raise Condition("amqp:resource-locked", f"queue {node.name!r} is exclusive and has its consumer already")
        if len(queueing.subscriptions) >= limits.MAX_CONSUMERS_PER_QUEUE:
            text = f"queue {node.name!r} has {limits.MAX_CONSUMERS_PER_QUEUE} subscriptions, its limit"
            raise Condition("amqp:resource-limit-exceeded", text)
        subscription = Subscription(self, link, node, browse=browse)
        link.context = subscription
        link.accept()
        queueing.subscriptions.append(subscription)
        self.dispatch_soon(node)

    def _subscribe_exchange(self, link: Sender, exchange: ExchangeNode, key: str, arguments: dict[str, Any]) -> None:
        """A receiving link on an exchange gets a queue of its own while it lasts: this broker's alone, bound before it."""
        fault = fault_of(exchange.definition.kind, key, arguments)
        if fault:
            raise Condition("amqp:invalid-field", f"the filter of this subscription cannot be: {fault}")
        for name, value in arguments.items():
            if not isinstance(value, str | int | float | None):
                raise Condition("amqp:invalid-field", f"the filter compares {name!r} with what is no text, number or boolean")
        if len(self.nodes.queues) >= limits.MAX_QUEUES:
            raise Condition("amqp:resource-limit-exceeded", f"this broker has {limits.MAX_QUEUES} queues, its limit")
        name = f"{exchange.name[:50]}_{self.new_id()}"  # a name that was as long as may be would have no room for more
        attributes = {"replicate": "none", "autoDelete": True, "exclusive": True}
        local = self.ledgers[LOCAL]
        queue_id = self.new_id()
        _, create = self.nodes.plan_queue(name, queue_id, attributes)
        bind = Bind(exchange=exchange.uuid, queue=queue_id, key=key, arguments=arguments)

        def made(reason: str) -> None:
            node = self.nodes.queues.get(name)
            if node is None or not link.open:
                if node is not None:
                    self._delete_queue(node)
                return
            self._subscribe(link, node, browse=False)
            self.touched(link)
            self.flush()

        local.change(create, lambda reason: None)
        local.change(bind, made)

    def detached(self, link: Link) -> None:
        """A link went away: undo what hung on it."""
        context = link.context
        if isinstance(context, Subscription):
            context.end()
            node = context.node
            if node.definition.auto_delete and not node.context.subscriptions and self.ledgers[node.log].serving:
                self._delete_queue(node)
        elif isinstance(context, Mailbox):
            self._mailboxes.pop(context.address, None)
        elif isinstance(context, Producer) and isinstance(context.node, QueueNode) and context.node.context is not None:
            context.node.context.producers.pop(context, None)

    def _delete_queue(self, node: QueueNode) -> None:
        self.ledgers[node.log].change(QueueDel(uuid=node.uuid), lambda reason: None)

    def _queue_gone(self, node: QueueNode) -> None:
        queueing: Queueing | None = node.context
        node.context = None
        self._crowded.pop(node, None)
        if queueing is None:
            return
        condition = Condition("amqp:resource-deleted", f"queue {node.name!r} was deleted")
        for each in (*queueing.subscriptions, *queueing.producers):
            link: Link = each.link
            link.context = None
            if isinstance(link, Sender):
                link.unsettled.clear()
            link.close(condition)
            self.touched(link)

    def _queueing(self, node: QueueNode) -> Queueing:
        if node.context is None:
            node.context = Queueing()
        context: Queueing = node.context
        return context

    def credit(self, link: Sender) -> None:
        """A consumer has credit: send what is there."""
        context = link.context
        if isinstance(context, Subscription):
            self.dispatch_soon(context.node)
        elif isinstance(context, Mailbox):
            context.flush()

    def room_again(self, connection: BrokerConnection) -> None:
        """A socket takes bytes again: its subscriptions may go on."""
        for link in connection.engine.links:
            if isinstance(link.context, Subscription):
                self.dispatch_soon(link.context.node)

    def choked(self, link: Sender) -> None:
        """Dispatch to this link again when its connection has written what waits."""
        connection = link.engine.listener
        assert isinstance(connection, BrokerConnection)
        connection.choked = True

    def mailbox(self, address: str) -> Mailbox | None:
        """The mailbox of that address."""
        return self._mailboxes.get(address)

    def dead_letter(self, node: QueueNode, data: bytes, done: Callable[[], None]) -> bool:
        """Send a rejected message by the queue's alternate exchange, with its subject as the key.

        It is in the same batch as its dequeue where both are in one log. Limits of the queues there do not hold it back: it is on
        this broker already. What is no AMQP message cannot be routed. Unplaced, when one of them has no place for it yet.
        """
        exchange = self.nodes.exchanges.get(node.definition.alternate) if node.definition.alternate else None
        try:
            found = [] if exchange is None else route(self.nodes, exchange, message.subject(data) or "", data)
        except message.BadMessage:
            found = []
        queues = [queue for queue in found if queue is not node]
        if not queues:
            return False
        check_places(queues)
        ledgers = {id(self.ledger_of(queue)): self.ledger_of(queue) for queue in queues}
        for queue in queues:
            self.ledger_of(queue).enqueue(queue, [data], len(data), None, [])
        own = self.ledger_of(node)
        others = [ledger for ledger in ledgers.values() if ledger is not own]
        if not others:
            done()
        else:
            outstanding = [len(others)]

            def committed() -> None:
                outstanding[0] -= 1
                if not outstanding[0]:
                    done()

            for ledger in others:
                ledger.when_committed(committed)
        return True

    # ---- turns

    def touched(self, link: Link) -> None:
        """This link's connection has output."""
        connection = link.engine.listener
        if isinstance(connection, BrokerConnection):
            self._dirty[connection] = None

    def touch(self, connection: BrokerConnection) -> None:
        """This connection has output."""
        self._dirty[connection] = None

    def dispatch_soon(self, node: QueueNode) -> None:
        """Dispatch the queue at the end of this entry from the reactor."""
        self._dispatch[node] = None
        if self._dispatch_call is None:
            self._dispatch_call = self.clock.callLater(0, self._dispatch_turn)

    def _dispatch_turn(self) -> None:
        self._dispatch_call = None
        self.flush()

    def flush(self) -> None:
        """Dispatch what asked for it, then write each connection's output once."""
        while self._dispatch:
            waiting, self._dispatch = self._dispatch, {}
            for node in waiting:
                if node.context is not None:
                    dispatch(node)
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for connection in dirty:
                connection.flush()

    def manage(self, link: Receiver, request_bytes: bytes, served: Callable[[], None]) -> None:
        """A management request: answer it in its turn, then or when what it asks is committed."""
        self.administration.take(link, request_bytes, served)

    # ---- the end

    def close(self) -> None:
        """Stop: cut the clients off in order; the logs are closed by whoever made them."""
        if self._ticker.running:
            self._ticker.stop()
        for connection in list(self.connections.values()):
            connection.cut_off()
        if self._dispatch_call is not None and self._dispatch_call.active():
            self._dispatch_call.cancel()
        for ledger in self.ledgers.values():
            ledger.close()


def _binding_of(exchange: ExchangeNode, filters: dict[Any, Any], key: str) -> tuple[str, dict[str, Any]]:
    """Key and arguments of the binding that a source's filter names (Apache's legacy-amqp-direct-, -topic-, -headers-binding).

    Without one, the key is that of the address; a topic exchange without any gives everything.
    """
    for name, value in filters.items():
        if "binding" in str(name):
            if isinstance(value, dict):
                return key, {str(each): item for each, item in value.items()}
            return str(value), {}
    return key or ("#" if exchange.definition.kind == "topic" else ""), {}
