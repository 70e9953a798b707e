"""An exchange as a terminus: a producer's messages are routed one by one, and a receiving link gets its own queue.

Life of a subscription to an exchange: a queue is created for it, on this broker only, and bound to the exchange. When both are
committed, the link is attached to the queue. The queue is deleted with the link, and the link ends with its exchange. A selector
is applied when a message is routed, and so is no-local (the subscription gets no messages of its own connection). Messages that
do not match are not enqueued, and do not count for the queue's limits.

Invariant: no link is attached to an exchange that was deleted, also not if another exchange has got its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from broker.amqp.data import Condition
from broker.amqp.sender import Sender
from broker.core import limits, message
from broker.core.acl import questions
from broker.core.acl.questions import Lookups
from broker.core.definitions import Change, ExchangeGone
from broker.core.filters import BINDINGS, NO_LOCAL, Filter
from broker.core.nodes import LOCAL, ExchangeNode, Refused, Routed
from broker.core.planning import binding_of, plan_queue, with_policy
from broker.core.selector.selected import SELECTING
from broker.core.subscriptions import SHARED, Gate
from broker.sessions import routing
from broker.sessions.attach import Attach, Output, refused
from broker.sessions.consumer import Subscription
from broker.sessions.guard import UNAUTHORIZED
from broker.sessions.logs import Logs
from broker.sessions.passing import too_large
from broker.sessions.producer import Denied, Full, Producer, Upload
from broker.sessions.queues import Queues
from broker.sessions.quota import QueueQuota
from broker.sessions.selecting import selector_of
from broker.sessions.subscriptions import Subscriptions, check_binding, deleted
from broker.sessions.uploads import Uploading


class ExchangeTerminus:
    """An exchange, with the routing key that the address names ("" when it names none)."""

    __slots__ = ("_exchanges", "key", "node")
    window = limits.CREDIT_WINDOW
    serves_queues = True
    takes_large = True
    in_transactions = True
    in_any_order = False
    of_any_user = False

    def __init__(self, exchanges: Exchanges, node: ExchangeNode, key: str) -> None:
        self._exchanges = exchanges
        self.node = node
        self.key = key

    # ---- messages in

    @property
    def identity(self) -> str:
        """The exchange's, with the key."""
        return f"{self.node.uuid}/{self.key}"

    def needs_of_sender(self, session: Output) -> Lookups:
        """To send to the exchange; where the address names no key, and the key decides, each message is asked for."""
        access = questions.access_exchange(self.node)
        if self._by_key(session):
            return (access,)
        return access, questions.publish(self.node.name, self.key)

    def _by_key(self, session: Output) -> bool:
        return not self.key and session.rights.decides_by_key(self.node.name)

    def admit(self, attach: Attach) -> None:
        """Condition, when this broker does not serve."""
        self._exchanges.logs.must_serve()

    def attached(self, producer: Producer) -> None:
        """One more producer."""
        self._exchanges.producers.setdefault(self.node.uuid, {})[producer] = None

    def left(self, producer: Producer) -> None:
        """One fewer."""
        self._exchanges.queues.wait_for_disk.pop(producer, None)
        producers = self._exchanges.producers.get(self.node.uuid, {})
        producers.pop(producer, None)
        if not producers:
            self._exchanges.producers.pop(self.node.uuid, None)

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """Each by its own key."""
        producer.one_by_one(first, messages, self._put_if_allowed if self._by_key(producer.session) else self._put)

    def _put(self, producer: Producer, delivery_id: int, data: bytes) -> None:
        routing.put(self._exchanges.logs, self._route(producer, data), producer, delivery_id, data)

    def _put_if_allowed(self, producer: Producer, delivery_id: int, data: bytes) -> None:
        self._check(producer, data)
        self._put(producer, delivery_id, data)

    def _check(self, producer: Producer, data: bytes) -> None:
        denial = producer.session.rights.denial_of_message(self.node.name, message.subject(data) or "")
        if denial:
            raise Denied(denial)

    def _route(self, producer: Producer, data: bytes) -> Routed:
        key = self.key or message.subject(data) or ""
        return routing.route(self._exchanges.logs.nodes, self.node, key, data, producer.session.origin)

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """The queues that it routes this message to. LookupError, Denied."""
        if self._exchanges.logs.nodes.exchanges.get(self.node.name) is not self.node:
            raise LookupError(f"exchange {self.node.name!r} was deleted")
        if self._by_key(producer.session):
            self._check(producer, data)
        return self._route(producer, data)

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A large message: its first part decides its queues."""
        if self._by_key(producer.session):
            self._check(producer, head)
        routed = self._route(producer, head)
        fault = too_large(routed)
        if fault:
            raise Full(fault, self.node.name, "unavailable")
        return Uploading(self._exchanges.logs, producer, routed.queues, head)

    def may_flow(self, producer: Producer) -> bool:
        """Not while a disk is full: an exchange itself holds nothing, and which queues are next is not known."""
        queues = self._exchanges.queues
        if any(ledger.room.text for ledger in queues.logs.ledgers.values()):
            queues.wait_for_disk[producer] = None
            return False
        return True

    # ---- messages out

    def knows_filter(self, name: str) -> bool:
        """Filters for the binding of the link's queue, selectors, and no-local."""
        return name in BINDINGS or name in SELECTING or name == NO_LOCAL

    def subscribe(self, attach: Attach, link: Sender) -> None:
        """A receiving link gets a queue of its own while it lasts."""
        self._exchanges.logs.must_serve()
        key, arguments = self._binding(attach.asked.filters)
        if attach.asked.keep_s is not None or SHARED in attach.asked.capabilities:
            self._exchanges.subscriptions.subscribe(attach, link, self.node, key, arguments)
        else:
            self._exchanges.subscribe(attach, link, self.node, key, arguments)

    def _binding(self, filters: list[Filter]) -> tuple[str, dict[str, Any]]:
        """Key and arguments of the binding that a source's filter names (Apache's legacy-amqp-direct-, -topic-,
        -headers-binding). Condition when there are several.

        Without one, the key is that of the address; a topic exchange without any gives everything.
        """
        asked = [each.value for each in filters if each.name in BINDINGS]
        if len(asked) > 1:
            raise Condition("amqp:invalid-field", "a link may have one binding filter: attach one link for each binding")
        for value in asked:
            if isinstance(value, dict):
                return self.key, {str(each): item for each, item in value.items()}
            return str(value), {}
        return self.key or ("#" if self.node.definition.kind == "topic" else ""), {}


def _gate(attach: Attach) -> Gate | None:
    """The gate that decides which messages are put on the subscription's queue, by its selector and by their connection; None:
    all."""
    selector, own = selector_of(attach), attach.session.number
    no_local = any(each.name == NO_LOCAL for each in attach.asked.filters)
    if selector is None and not no_local:
        return None
    return lambda data, origin: not (no_local and origin[0] == own) and (selector is None or selector.takes(data))


class Exchanges:
    """The exchanges that links are attached to. `new_id` makes names and identities. `subscriptions`: those that last, or are
    shared."""

    def __init__(
        self, logs: Logs, queues: Queues, quota: QueueQuota, subscriptions: Subscriptions, new_id: Callable[[], str]
    ) -> None:
        self.logs = logs
        self.subscriptions = subscriptions
        self.queues = queues
        self._quota = quota
        self._new_id = new_id
        self.producers: dict[str, dict[Producer, None]] = {}
        """Identity of an exchange -> the links that send to it."""

    def follow(self, changes: Iterable[tuple[Change, str]]) -> None:
        """A log has applied these changes: end the links of the exchanges that it has deleted."""
        for change, reason in changes:
            if isinstance(change, ExchangeGone) and not reason:
                self._gone(change)

    def _gone(self, change: ExchangeGone) -> None:
        """This exchange was deleted. Its subscriptions are found by its bindings."""
        uuid = change.exchange.uuid
        ends: list[Producer | Subscription] = list(self.producers.get(uuid, ()))
        local = self.logs.ledgers[LOCAL].state.definitions.bindings_of_exchange(uuid)
        for identity in dict.fromkeys(each.queue for each in (*change.bindings, *local)):
            node = self.logs.nodes.queue_by_uuid(identity)
            if node is not None:
                ends += [each for each in self.queues.at(node).subscriptions if each.exchange == uuid]
        for end in ends:
            end.session.end_link(end.link, deleted(change.exchange.name))

    def named(self, address: str) -> ExchangeTerminus | None:
        """The exchange that an address names, `name` or `name/key`."""
        found = self.logs.nodes.exchange_at(address)
        return None if found is None else ExchangeTerminus(self, *found)

    def subscribe(self, attach: Attach, link: Sender, exchange: ExchangeNode, key: str, arguments: dict[str, Any]) -> None:
        """Make a queue with this binding, and attach the link to it; Condition when that cannot be."""
        nodes, user = self.logs.nodes, attach.session.rights.user
        # Shortened, because an exchange's name may already have the maximum length.
        name = f"{exchange.name[:50]}_{self._new_id()}"
        attributes = {"replicate": "none", "autoDelete": True, "exclusive": True}
        made_with = with_policy(nodes, "queue", name, attributes, own=True)
        needs = questions.subscribe(exchange, name, key, made_with, nodes.default_queue_bytes)
        attach.demand(needs)
        check_binding(exchange, key, arguments)
        gate = _gate(attach)
        if len(nodes.queues) >= limits.MAX_QUEUES:
            raise Condition("amqp:resource-limit-exceeded", f"this broker has {limits.MAX_QUEUES} queues, its limit")
        full = self._quota.denial(user, nodes)
        if full:
            raise Condition("amqp:resource-limit-exceeded", full)
        local = self.logs.ledgers[LOCAL]
        queue_id = self._new_id()
        try:
            _, create = plan_queue(nodes, name, queue_id, attributes, self._quota.owner(user), own=True)
            bind = binding_of(nodes, exchange, queue_id, key, arguments)
        except Refused as refusal:
            raise refused(refusal) from None
        nodes.expect(queue_id, gate)

        def made(reason: str) -> None:
            queue = self.queues.named(name)
            if queue is None:
                return
            denial = attach.session.rights.denial(needs)  # the ACL may have changed meanwhile
            if not link.open:
                self.logs.delete_queue(queue.node)
                return
            try:
                if nodes.find_exchange(exchange.uuid) is None:
                    raise deleted(exchange.name)
                if denial:
                    raise Condition(UNAUTHORIZED, denial)
                queue.add(attach, link, needs, browse=False).exchange = exchange.uuid
            except Condition as condition:
                self.logs.delete_queue(queue.node)
                link.attach_to_nothing()
                attach.session.end_link(link, condition)  # and what was made for it ends, too
            attach.session.touch()
            self.queues.turn.flush()

        local.change(create, self._quota.proposed(user, queue_id, local.name))
        local.change(bind, made)
