"""The self-description of the node `$management`: the types of entities, their attributes, and their operations.

AMQP Management (OASIS, working draft) asks a node for its types, attributes and operations, and queries it in tables: attribute
names, and a row for each entity. An entity has a `name`, an `identity` that is never used again, and a `type`, besides the
attributes in docs/reference/management.md.

Pure. Facts that only a running broker knows, such as the attributes of types that extensions answer, are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.core.management import Item, Stream

NODE: Final = "org.amqp.management"
"""The type of the management node itself; its name is `self`."""
READ, QUERY = "READ", "QUERY"
GET_TYPES, GET_ATTRIBUTES, GET_OPERATIONS = "GET-TYPES", "GET-ATTRIBUTES", "GET-OPERATIONS"
GET_ANNOTATIONS, GET_NODES = "GET-ANNOTATIONS", "GET-MGMT-NODES"
DESCRIBING: Final = frozenset({GET_TYPES, GET_ATTRIBUTES, GET_OPERATIONS, GET_ANNOTATIONS, GET_NODES})
ASKING: Final = DESCRIBING | {QUERY, READ}
"""The operations that change nothing."""
UNAUDITED: Final = ASKING | {"FIND", "LEFT"}
"""These, and the requests of routes to their sources once a second: they are not written to the audit log."""
OWN: Final = ("name", "identity", "type")

ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "broker": (
        *("uptime_s", "cluster", "connections", "sessions", "exchanges", "queues", "slowConsumers", "slowConsumersEnded"),
        "version",
    ),
    "queue": (
        *("uuid", "durable", "autoDelete", "exclusive", "replicate", "messages", "messagesIn", "messagesOut", "levels"),
        *(
            "rejected",
            "overLimit",
            "expired",
            "dropped",
            "overdue",
            "alerts",
            "bytes",
            "bytesIn",
            "bytesOut",
            "consumers",
            "bindings",
            "arguments",
        ),
        "alternateExchange",
    ),
    "exchange": (
        *("uuid", "exchangeType", "durable", "replicate", "bindings", "messagesIn", "messagesRouted", "messagesDropped"),
        *("alternateExchange", "arguments"),
    ),
    "binding": ("exchange", "queue", "key", "arguments", "replicate"),
    "QueuePolicy": ("byUse", "durable", "autoDelete", "exclusive", "replicate", "alternateExchange", "arguments"),
    "TopicPolicy": ("byUse", "durable", "replicate", "exchangeType", "alternateExchange", "arguments"),
    "connection": (
        *("id", "address", "container", "processName", "processId", "mechanism", "user", "encrypted", "certificate"),
        *("connected_s", "idle_s", "unread_s", "messagesIn", "messagesOut"),
    ),
    "subscription": (
        *("id", "queue", "connection", "processName", "processId", "browse", "acknowledged", "exclusive", "creditMode"),
        *("delivered", "unacked", "active", "still_s"),
    ),
    "memory": ("bytes",),
    "history": ("ts", "epoch", "primary", "reason", "gap_ms", "by", "planned", "estimated"),
}
"""Type -> its attributes besides `OWN`, in the order of a table."""

_OPERATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "queue": ("CREATE", "UPDATE", "DELETE", "PURGE", "MOVE", "REROUTE", "PEEK", "DELIVER"),
    "exchange": ("CREATE", "UPDATE", "DELETE"),
    "binding": ("CREATE", "DELETE"),
    "QueuePolicy": ("CREATE", "UPDATE", "DELETE"),
    "TopicPolicy": ("CREATE", "UPDATE", "DELETE"),
    "ha": ("PROMOTE", "STOP", "SET", "BOOTSTRAP", "SET-ROLE", "TAKEOVER", "ADD-BROKER", "REMOVE-BROKER"),
    "acl": ("RELOAD",),
    "log": ("SET",),
    "drain": ("LEAVE", "RELEASED", "TAKE", "RESUME", "REPORT", "DECLINE", "ASSIGN", "LARGER", "HELD", "RELEASE", "FORGET"),
    "route": ("CREATE", "DELETE"),
    "sequence": ("FIND", "LEFT"),
}


def attributes(kind: str, items: Iterable[Item] = ()) -> list[str]:
    """The attributes of a type; of one that is not in the table, those of `items`."""
    found = ATTRIBUTES.get(kind) or dict.fromkeys(field for item in items for field in item)
    return [*OWN, *(name for name in found if name not in OWN)]


def operations(kind: str) -> list[str]:
    """The operations on a type."""
    return sorted(DESCRIBING | {QUERY}) if kind == NODE else [READ, QUERY, *_OPERATIONS.get(kind, ())]


def entity(kind: str, item: Item) -> Item:
    """An item of a query with the attributes that every entity has."""
    match kind:
        case "queue" | "exchange":
            name, identity = item["name"], item["uuid"]
        case "binding":
            name = identity = "/".join((item["exchange"], item["queue"], item["key"]))
        case "subscription":
            name, identity = item["id"], f"{item['connection']}/{item['id']}"
        case "history":
            name = identity = str(item["epoch"])
        case _:
            name = identity = str(item.get("name") or item.get("id") or kind)
    return item | {"name": name, "identity": identity, "type": kind}


def rows(stream: Stream, kind: str, names: list[str], offset: int) -> Iterable[tuple[tuple[int], list[Any]] | None]:
    """The entities of a stream behind the first `offset`, each as a row of these attributes, with its number, from 1 on."""
    number = 0
    for found in stream:
        number += found is not None
        if found is None or number <= offset:
            yield None
        else:
            item = entity(kind, found[1])
            yield (number,), [item.get(name) for name in names]
