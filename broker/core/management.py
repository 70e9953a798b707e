"""What management asks of the registry: the items that queries answer with, and the changes that requests mean.

Pure: the service passes in what only it knows (consumers, connections) and carries out the changes that come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.commands import Command
from broker.core.nodes import ExchangeNode, Nodes, QueueNode, Refused, arguments_of

Item = dict[str, Any]


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
        "bytes": messages.live_bytes if messages else 0,
        "bytesIn": messages.enqueued_bytes if messages else 0,
        "bytesOut": messages.dequeued_bytes if messages else 0,
        "consumers": consumers,
        "bindings": bindings,
        "arguments": definition.arguments,
        "alternateExchange": definition.alternate,
    }


def queue_items(nodes: Nodes, name: str, consumers_of: Callable[[QueueNode], int]) -> list[Item]:
    """All queues, or the one of that name; Refused when there is none."""
    if name and name not in nodes.queues:
        raise Refused(404, f"there is no queue named {name!r}")
    # Every queue has its binding to the default exchange.
    bound = dict.fromkeys(nodes.queues, 1)
    for _, queue, _, _ in nodes.bindings():
        bound[queue.name] += 1
    chosen = [nodes.queues[name]] if name else sorted(nodes.queues.values(), key=lambda node: node.name)
    return [queue_item(nodes, node, consumers_of(node), bound[node.name]) for node in chosen]


def exchange_items(nodes: Nodes, name: str, *, all_of_them: bool) -> list[Item]:
    """All exchanges, or the one of that name; Refused when there is none."""
    if not all_of_them and name not in nodes.exchanges:
        raise Refused(404, f"there is no exchange named {name!r}")
    chosen = sorted(nodes.exchanges.values(), key=lambda node: node.name) if all_of_them else [nodes.exchanges[name]]
    return [_exchange_item(nodes, node) for node in chosen]


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


def binding_items(nodes: Nodes) -> list[Item]:
    """Every binding, the implicit ones to the default exchange first."""
    items = [_binding_item("", node, node.name, {}, node.definition.level) for node in nodes.queues.values()]
    for exchange, queue, binding, log in nodes.bindings():
        level = "configuration" if log == "cluster" else "none"
        items.append(_binding_item(exchange.name, queue, binding.key, binding.arguments, level))
    return sorted(items, key=lambda item: (item["exchange"], item["queue"], item["key"]))


def _binding_item(exchange: str, queue: QueueNode, key: str, arguments: dict[str, Any], level: str) -> Item:
    return {"exchange": exchange, "queue": queue.name, "key": key, "arguments": arguments, "replicate": level}


def plan(
    nodes: Nodes, operation: str, kind: str, name: str, body: Item, uuid: str, consumers: int, owner: str = ""
) -> tuple[str, Command]:
    """(log, command) that a CREATE or DELETE means; a queue is made for `owner`. Refused when it cannot be, with the status and
    text for the answer."""
    match operation, kind:
        case "CREATE", "queue":
            return nodes.plan_queue(name, uuid, body, owner)
        case "CREATE", "exchange":
            return nodes.plan_exchange(name, uuid, body)
        case "CREATE", "binding":
            exchange, queue, key = _binding_names(body)
            return nodes.plan_binding(exchange, queue, key, arguments_of(body))
        case "DELETE", "queue":
            return nodes.plan_queue_removal(
                name, if_empty=bool(body.get("ifEmpty")), if_unused=bool(body.get("ifUnused")), consumers=consumers
            )
        case "DELETE", "exchange":
            return nodes.plan_exchange_removal(name)
        case "DELETE", "binding":
            return nodes.plan_unbinding(*_binding_names(body))
        case _:
            raise Refused(501, f"this broker does not have the operation {operation!r} on {kind!r}")


def _binding_names(body: Item) -> tuple[str, str, str]:
    return str(body.get("exchange") or ""), str(body.get("queue") or ""), str(body.get("key") or "")
