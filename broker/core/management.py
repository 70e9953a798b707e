"""The rules of management requests: the items of query answers, and the meaning of requested changes.

Life of a query: a `Stream` gives the items of its type after a position, in order, and None where it may be interrupted. A `Page`
takes items until it is full, and notes where the next page begins. So a query of any size is done in small pieces, and an answer
is one message of limited size. Nothing is kept between two pages: an object that was created or deleted meanwhile may be listed
or not, and an object that existed the whole time is listed exactly once.

Pure: the service passes in the facts that only it knows (consumers, connections), and carries out the returned changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeVar

from broker.core import limits, values
from broker.core.commands import Bind, Command, QueueAdd
from broker.core.nodes import ExchangeNode, Nodes, QueueNode, Refused
from broker.core.planning import (
    arguments_of,
    plan_alteration,
    plan_binding,
    plan_exchange,
    plan_exchange_removal,
    plan_policy,
    plan_policy_removal,
    plan_queue,
    plan_queue_removal,
    plan_unbinding,
)
from broker.core.policies import KINDS, order_of
from broker.core.queues.owned import Owned
from broker.core.state import Messages

Item = dict[str, Any]
Place = tuple[Any, ...]
"""The unique position of an item within its type: names, or numbers."""
Stream = Iterator[tuple[Place, Item] | None]
T = TypeVar("T")
LOOKED_AT = 500
"""Things that are looked at in one piece of work."""


def told(name: str) -> str:
    """A name that a client has chosen, as answers and events have it."""
    return name if len(name) <= limits.MAX_TOLD_CHARS else f"{name[: limits.MAX_TOLD_CHARS - 3]}..."


class Page:
    """The items of one answer: at most `count`, and no more after `max_bytes`. `next` is None if no items follow, else the
    position after which the next page begins."""

    def __init__(self, count: int, max_bytes: int) -> None:
        self.next: Place | None = None
        self._count = count
        self._max_bytes = max_bytes
        self._items: list[bytes] = []

    def fill(self, stream: Iterable[tuple[Place, Any] | None]) -> Iterator[None]:
        """Take from this stream, a small piece of work at a time."""
        nbytes, last = 0, None
        for found in stream:
            if found is not None:
                place, item = found
                if len(self._items) == self._count or nbytes >= self._max_bytes:
                    self.next = last
                    return
                self._items.append(values.encode(item))
                nbytes, last = nbytes + len(self._items[-1]), place
            yield

    @property
    def items(self) -> values.Ready:
        """The taken items, as a list."""
        return values.Ready(values.items(self._items))

    @property
    def body(self) -> Item:
        """The body of the answer."""
        return {"items": self.items} | ({} if self.next is None else {"next": list(self.next)})


def one_by_one(items: Iterable[Item], after: Place) -> Stream:
    """Existing items in order; their positions are numbers from 0 on."""
    for number, item in enumerate(items):
        if (number,) > after:
            yield (number,), item


def _in_order(things: list[T], place_of: Callable[[T], Place], after: Place, most: int) -> Iterator[tuple[Place, T] | None]:
    """The first `most` of them that come behind a place, by their places."""
    found: list[tuple[Place, T]] = []
    last: Place | None = None
    for number, thing in enumerate(things, 1):
        place = place_of(thing)
        if place > after and (last is None or place < last):
            found.append((place, thing))
            if len(found) >= 2 * most:
                found.sort(key=itemgetter(0))
                del found[most:]
                last = found[-1][0]
        if not number % LOOKED_AT:
            yield None
    found.sort(key=itemgetter(0))
    yield from found[:most]


def queue_item(nodes: Nodes, node: QueueNode, consumers: int, bindings: int) -> Item:
    """A queue as `qpid-stat -q` and `qpid-config queues` show it."""
    definition, messages = node.definition, node.messages
    return {
        "name": node.name,
        "uuid": node.uuid,
        "durable": definition.durable,
        "autoDelete": definition.auto_delete,
        "exclusive": definition.exclusive,
        "replicate": definition.level,
        "messages": node.depth,
        "messagesIn": messages.enqueued if messages else 0,
        "messagesOut": messages.dequeued if messages else 0,
        "levels": messages.depths() if messages else [],
        "rejected": node.rejected,
        "overLimit": node.over_limit,
        "expired": node.expired,
        "alerts": sorted(node.raised),
        "dropped": node.dropped,
        "overdue": node.overdue,
        "bytes": messages.live_bytes if messages else 0,
        "bytesIn": messages.enqueued_bytes if messages else 0,
        "bytesOut": messages.dequeued_bytes if messages else 0,
        "consumers": consumers,
        "bindings": bindings,
        "arguments": definition.arguments,
        "alternateExchange": definition.alternate,
    } | _of_some_queues(definition, messages)


def _of_some_queues(definition: QueueAdd, messages: Messages | None) -> Item:
    """What only some kinds of queues have."""
    found: Item = {"subscription": definition.subscription} if definition.subscription else {}
    if messages is not None and isinstance(messages.order, Owned):
        found |= {"owners": messages.order.n_owners, "ownedGroups": len(messages.order.owner_of)}
    return found


def queue_items(
    nodes: Nodes, name: str, consumers_of: Callable[[QueueNode], int], after: Place = (), most: int = 1 << 30
) -> Stream:
    """The first `most` queues behind a place, by name, or the one of that name; Refused when there is none."""
    if name and name not in nodes.queues:
        raise Refused(404, f"there is no queue named {name!r}")
    chosen = [nodes.queues[name]] if name else list(nodes.queues.values())
    for found in _in_order(chosen, lambda node: (node.name,), after, most):
        if found is None:
            yield None
        else:
            place, node = found
            yield place, queue_item(nodes, node, consumers_of(node), nodes.bindings_at(node))


def exchange_items(nodes: Nodes, name: str, *, all_of_them: bool, after: Place = (), most: int = 1 << 30) -> Stream:
    """The first `most` exchanges behind a place, by name, or the one of that name; Refused when there is none."""
    if not all_of_them and name not in nodes.exchanges:
        raise Refused(404, f"there is no exchange named {name!r}")
    chosen = list(nodes.exchanges.values()) if all_of_them else [nodes.exchanges[name]]
    for found in _in_order(chosen, lambda node: (node.name,), after, most):
        yield None if found is None else (found[0], _exchange_item(nodes, found[1]))


def _exchange_item(nodes: Nodes, node: ExchangeNode) -> Item:
    definition = node.definition
    return {
        "name": node.name,
        "uuid": node.uuid,
        "exchangeType": definition.kind,
        "durable": definition.durable,
        "replicate": definition.level,
        "bindings": len(node.routing),
        "messagesIn": node.received,
        "messagesRouted": node.routed,
        "messagesDropped": node.dropped,
        "alternateExchange": definition.alternate,
        "arguments": definition.arguments,
    }


def binding_items(nodes: Nodes, after: Place = (), most: int = 1 << 30, *, exchange: str = "", queue: str = "") -> Stream:
    """The first `most` bindings behind a place, by exchange, queue and key; first those of all queues to the default exchange.
    With `exchange` or `queue`, those of this exchange, or of this queue, without the ones to the default exchange; Refused when
    there is no such queue."""
    if exchange or queue:
        yield from _bindings_between(nodes, after, most, exchange, queue)
        return
    if not after or not after[0]:
        for found in _in_order(list(nodes.queues.values()), lambda node: ("", node.name, node.name), after, most):
            if found is not None:
                place, node = found
                yield place, _binding_item("", node, node.name, {}, node.definition.level)
            else:
                yield None
    yield from _bindings_in_order(list(nodes.bindings()), after, most)


def _bindings_between(nodes: Nodes, after: Place, most: int, exchange: str, queue: str) -> Stream:
    """Those of this exchange and this queue, as far as they are named. A local exchange that the cluster's one of this name hides
    is not meant: nobody reaches it."""
    node, of = nodes.queues.get(queue), nodes.exchanges.get(exchange)
    if queue and node is None:
        raise Refused(404, f"there is no queue named {queue!r}")
    found = [bound for bound in nodes.bindings(node) if not exchange or bound[0] is of]
    yield from _bindings_in_order(found, after, most)


def _bindings_in_order(found: list[tuple[ExchangeNode, QueueNode, Bind, str]], after: Place, most: int) -> Stream:
    for bound in _in_order(found, _place_of_binding, after, most):
        if bound is not None:
            place, (exchange, queue, binding, log) = bound
            level = "configuration" if log == "cluster" else "none"
            yield place, _binding_item(exchange.name, queue, binding.key, binding.arguments, level)
        else:
            yield None


def _place_of_binding(found: tuple[ExchangeNode, QueueNode, Bind, str]) -> Place:
    exchange, queue, binding, _ = found
    return exchange.name, queue.name, binding.key


def _binding_item(exchange: str, queue: QueueNode, key: str, arguments: dict[str, Any], level: str) -> Item:
    return {"exchange": exchange, "queue": queue.name, "key": key, "arguments": arguments, "replicate": level}


def policy_items(nodes: Nodes, kind: str) -> list[Item]:
    """The policies of this type, in the order in which they are asked for a name that several fit."""
    found = sorted((each for each in nodes.policies() if each.kind == KINDS[kind]), key=order_of)
    topic = {"exchangeType": "topic"} if kind == "TopicPolicy" else {}
    flags = {} if topic else {"autoDelete": False, "exclusive": False}
    default = {"byUse": False, "durable": False, **flags, "replicate": "", **topic, "alternateExchange": "", "arguments": {}}
    return [{"name": each.pattern} | default | each.attributes | {"byUse": each.by_use} for each in found]


def plan(
    nodes: Nodes, operation: str, kind: str, name: str, body: Item, uuid: str, consumers: int, owner: str = ""
) -> tuple[str, Command]:
    """(log, command) that a CREATE or DELETE means; a queue is made for `owner`. Refused when it cannot be, with the status and
    text for the answer."""
    match operation, kind:
        case "CREATE", "queue":
            return plan_queue(nodes, name, uuid, body, owner)
        case "CREATE", "exchange":
            return plan_exchange(nodes, name, uuid, body)
        case "CREATE", "binding":
            exchange, queue, key = _binding_names(body)
            return plan_binding(nodes, exchange, queue, key, arguments_of(body))
        case "UPDATE", ("queue" | "exchange"):
            return plan_alteration(nodes, kind, name, body)
        case "DELETE", "queue":
            return plan_queue_removal(
                nodes, name, if_empty=bool(body.get("ifEmpty")), if_unused=bool(body.get("ifUnused")), consumers=consumers
            )
        case "DELETE", "exchange":
            return plan_exchange_removal(nodes, name)
        case (("CREATE" | "UPDATE"), ("QueuePolicy" | "TopicPolicy")):
            return plan_policy(nodes, KINDS[kind], name, body, there=operation == "UPDATE")
        case "DELETE", ("QueuePolicy" | "TopicPolicy"):
            return plan_policy_removal(nodes, KINDS[kind], name)
        case "DELETE", "binding":
            return plan_unbinding(nodes, *_binding_names(body))
        case _:
            raise Refused(501, f"this broker does not have the operation {operation!r} on {kind!r}")


def _binding_names(body: Item) -> tuple[str, str, str]:
    return str(body.get("exchange") or ""), str(body.get("queue") or ""), str(body.get("key") or "")
