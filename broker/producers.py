"""Messages on their way in: from a client's link to the queues that they are for.

Life of a producer: a client attaches a sending link to a node (or to none: then each message's `to` names its node); it gets
credit; each batch of messages that comes is routed, put into the ledger of its queues, and accepted when committed; the credit
comes back with the accept.

Invariants: a message gets `accepted` only when every queue that it was routed to holds it durably (or no queue wanted it), and
`released` while one of them has no place for messages on this broker yet, which takes a moment on a new primary; credit
out plus messages that wait for their commit never exceed `limits.CREDIT_WINDOW`: the link of a client that sends more than it has
credit for ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from broker.amqp.links import ACCEPTED, REJECTED, RELEASED, Condition, Receiver
from broker.consumers import Mailbox
from broker.core import limits, message
from broker.core.nodes import ExchangeNode, Nodes, QueueNode, Unplaced
from broker.ledger import Ledger


class ProducerHost(Protocol):
    """What a producer needs of its broker."""

    nodes: Nodes

    def ledger_of(self, node: QueueNode) -> Ledger:
        """The ledger that holds this queue's messages."""

    def mailbox(self, address: str) -> Mailbox | None:
        """The mailbox of that address."""

    def touched(self, link: Receiver) -> None:
        """The link's connection has output."""

    def detached(self, link: Receiver) -> None:
        """The link ends: forget what hung on it."""

    def crowded(self, node: QueueNode) -> None:
        """Producers wait for room on this queue: tell them when there is."""

    def manage(self, link: Receiver, request: bytes, served: Callable[[], None]) -> None:
        """A request for the management node has come; `served` when it has had its turn."""


class Full(Exception):
    """A queue takes no more; the text says which and why."""


class Producer:
    """A client's sending link. `node` is where it sends: a queue, an exchange (`key` then names the subject), a mailbox, the
    management node, or None for messages that say it themselves."""

    __slots__ = ("_held", "host", "key", "link", "node")

    def __init__(
        self, host: ProducerHost, link: Receiver, node: QueueNode | ExchangeNode | Mailbox | str | None, key: str
    ) -> None:
        self.host = host
        self.link = link
        self.node = node
        self.key = key
        self._held = 0

    def start(self) -> None:
        """Give the first credit."""
        self._grant(limits.MANAGEMENT_WINDOW if self.node == "$management" else limits.CREDIT_WINDOW)

    def accepted(self, count: int) -> None:
        """So many of its messages have their outcome: the credit they took may come back."""
        self._grant(count)

    def _grant(self, count: int) -> None:
        self._held += count
        if self._held and self.may_flow():
            self.link.flow(self._held)
            self._held = 0
        self.host.touched(self.link)

    def may_flow(self) -> bool:
        """Whether more messages are welcome now."""
        node = self.node
        if not isinstance(node, QueueNode):
            return True
        if self.host.ledger_of(node).storage_text:
            return False
        if is_crowded(node):
            self.host.crowded(node)
            return False
        return True

    def resume(self) -> None:
        """Give back credit that was held, if there is room again."""
        if self._held and self.link.open:
            self._grant(0)

    # ---- the hot path

    def take(self) -> None:
        """Route what has come on the link."""
        link = self.link
        messages, deliveries = link.inbox, link.inbox_deliveries
        link.inbox, link.inbox_deliveries = [], []
        if link.credit < 0:
            self._end_heedless()
            return
        node = self.node
        if isinstance(node, QueueNode):
            nbytes = sum(map(len, messages))
            if has_room(node, len(messages), nbytes):
                self.host.ledger_of(node).enqueue(node, messages, nbytes, link, deliveries)
                return
        elif node == "$management":
            for data, delivery in zip(messages, deliveries, strict=True):
                self.host.manage(link, data, partial(self._done, [delivery]))
            return
        for data, delivery in zip(messages, deliveries, strict=True):
            self._take_one(data, delivery)

    def _end_heedless(self) -> None:
        """More came than was asked for (part 2.6.7): nothing bounds what such a client would have us keep."""
        link = self.link
        text = f"{-link.credit} more messages came than this link had credit for: send only while there is credit"
        self.host.detached(link)
        link.context = None
        link.close(Condition("amqp:link:transfer-limit-exceeded", text))
        self.host.touched(link)

    def _take_one(self, data: bytes, delivery: Any) -> None:
        try:
            node, key = self._node_for(data)
            if isinstance(node, Mailbox):
                node.put(data)
                self._done([delivery])
            elif node == "$management":
                self.host.manage(self.link, data, partial(self._done, [delivery]))
            else:
                self._put(self._queues(node, key, data), data, delivery)
        except Unplaced:
            if delivery is not None:
                self.link.settle([delivery], RELEASED)
            self.accepted(1)
        except Full as error:
            self._refuse(delivery, Condition("amqp:resource-limit-exceeded", str(error)))
        except message.BadMessage as error:
            self._refuse(delivery, Condition("amqp:decode-error", str(error)))
        except LookupError as error:
            self._refuse(delivery, Condition("amqp:not-found", str(error.args[0])))

    def _node_for(self, data: bytes) -> tuple[QueueNode | ExchangeNode | Mailbox | str, str]:
        if self.node is not None:
            return self.node, self.key
        address = message.to(data)
        if not address:
            raise LookupError("a message sent on a link without a target address needs an address in its 'to'")
        if address == "$management":
            return address, ""
        box = self.host.mailbox(address)
        if box is not None:
            return box, ""
        found = self.host.nodes.find(address)
        if found is None:
            raise LookupError(f"there is no queue and no exchange named {address!r}")
        return found

    def _queues(self, node: QueueNode | ExchangeNode | str, key: str, data: bytes) -> list[QueueNode]:
        if isinstance(node, QueueNode):
            return [node]
        assert isinstance(node, ExchangeNode)
        return route(self.host.nodes, node, key or message.subject(data) or "", data)

    def _put(self, queues: list[QueueNode], data: bytes, delivery: Any) -> None:
        size = len(data)
        check_places(queues)
        for queue in queues:
            if not has_room(queue, 1, size):
                raise Full(full_text(queue, size))
        if not queues:
            self._done([delivery])
            return
        ledgers = {self.host.ledger_of(queue).name: self.host.ledger_of(queue) for queue in queues}
        if len(ledgers) == 1:
            for position, queue in enumerate(queues):
                last = position == len(queues) - 1
                ledger = self.host.ledger_of(queue)
                ledger.enqueue(queue, [data], size, self.link if last else None, [delivery] if last else [])
            return
        outstanding = set(ledgers)

        def committed(name: str) -> None:
            outstanding.discard(name)
            if not outstanding:
                self._done([delivery])

        for queue in queues:
            self.host.ledger_of(queue).enqueue(queue, [data], size, None, [])
        for name, ledger in ledgers.items():
            ledger.when_committed(lambda name=name: committed(name))  # type: ignore[misc]

    def _done(self, deliveries: list[Any]) -> None:
        if not self.link.open:
            return
        self.link.settle([delivery for delivery in deliveries if delivery is not None], ACCEPTED)
        self.accepted(len(deliveries))

    def _refuse(self, delivery: Any, condition: Condition) -> None:
        if delivery is not None:
            self.link.settle([delivery], REJECTED, condition)
        self.accepted(1)


def route(nodes: Nodes, exchange: ExchangeNode, key: str, data: bytes) -> list[QueueNode]:
    """The queues that an exchange sends this message to; those of its alternate exchange when it has none for it."""
    exchange.received += 1
    seen: set[str] = set()
    at: ExchangeNode | None = exchange
    while at is not None and at.name not in seen:
        seen.add(at.name)
        uuids = at.routing.route(key, lambda: message.application_properties(data))
        found = [queue for queue in map(nodes.queue_by_uuid, uuids) if queue is not None]
        if found:
            exchange.routed += 1
            return found
        at = nodes.exchanges.get(at.definition.alternate) if at.definition.alternate else None
    exchange.dropped += 1
    return []


def check_places(queues: Iterable[QueueNode]) -> None:
    """Unplaced, when a message for all of these queues cannot go to one of them."""
    if any(queue.messages is None for queue in queues):
        raise Unplaced


def has_room(node: QueueNode, count: int, nbytes: int) -> bool:
    """Whether so many more messages stay within the queue's own limits, those under way counted too."""
    messages = node.messages
    assert messages is not None, "a queue without a place for its messages is not attached to"
    if node.max_bytes and messages.live_bytes + pending_bytes(node) + nbytes > node.max_bytes:
        return False
    return not (node.max_count and messages.depth + node.proposed - messages.enqueued + count > node.max_count)


def pending_bytes(node: QueueNode) -> int:
    """Bytes proposed for the queue that are not committed yet."""
    assert node.messages is not None
    return node.proposed_bytes - node.messages.enqueued_bytes


def is_crowded(node: QueueNode, ratio: float = limits.FLOW_STOP_RATIO) -> bool:
    """Whether the queue has come so near its limit that producers must wait: Qpid stops them at 80 %, and resumes at 70 %."""
    messages = node.messages
    if messages is None:
        return False
    limit_bytes, limit_count = node.max_bytes * ratio, node.max_count * ratio
    return bool((limit_bytes and messages.live_bytes > limit_bytes) or (limit_count and messages.depth > limit_count))


def full_text(node: QueueNode, nbytes: int) -> str:
    """Why a queue has no room for a message of `nbytes`, for people."""
    assert node.messages is not None
    messages = node.messages
    held, held_bytes = messages.depth + node.proposed - messages.enqueued, messages.live_bytes + pending_bytes(node)
    limit = f"{node.max_bytes} bytes" if node.max_bytes and held_bytes + nbytes > node.max_bytes else f"{node.max_count} messages"
    return f"queue {node.name!r} holds {held} messages, {held_bytes} bytes: one of {nbytes} bytes would pass its limit of {limit}"
