"""The lookups for each action of a client: the broker checks all of them, and acts only if each is allowed.

Invariant: a lookup has every property that rules about it may name, if its object exists or is about to be made, so that no rule
which denies is passed because a property is missing. Texts are unchanged; a limit of a queue is a number of bytes or messages, or
`UNLIMITED`, so that a rule with an upper limit does not allow a queue without one.

Source: qpidd's lookups for AMQP 1.0 (broker/amqp/Authorise.cpp) and for management (broker/Broker.cpp). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.core.acl.lookups import DEFAULT_EXCHANGE, LIMITED
from broker.core.acl.rules import Facts
from broker.core.addresses import exchange_in, queue_in
from broker.core.nodes import AUTO_DELETE_TIMEOUT, ExchangeNode, QueueNode

UNLIMITED: Final = 2**63 - 1
MAX_SHOWN: Final = 100
"""Characters of a fact that a text shows."""
_SAID: Final = ("name", "schemaclass", "routingkey", "queuename", "exchangename", "host")
"""The facts that a denial repeats: all of them came from the client."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """May a user do this `action` to this `kind` of object? See `broker.core.acl.lookups.LOOKUPS`."""

    action: str
    kind: str
    facts: Facts

    def __str__(self) -> str:
        """In the syntax of an ACL file, with the facts that the client has sent itself."""
        told = {name: str(self.facts[name]) for name in _SAID if name in self.facts}
        if self.kind == "exchange" and not told["name"]:
            told["name"] = DEFAULT_EXCHANGE
        return " ".join((self.action, self.kind, *(f"{name}={shown(text)}" for name, text in told.items() if text)))


Lookups = tuple[Lookup, ...]


def shown(text: str) -> str:
    """A text of a client's in a line for people: cut, and quoted unless it is one plain word."""
    cut = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
    return cut if cut and cut.isascii() and cut.isprintable() and not set(cut) & set(" '\"\\") else repr(cut)


# ---- links


def send_to_queue(node: QueueNode) -> Lookups:
    """A producer's link to a queue: its messages go through the exchange without a name, with the queue's name as the key."""
    return _access_queue(node), publish("", node.name)


def take_from_queue(node: QueueNode) -> Lookups:
    """A receiving link on a queue, a browser's too."""
    return _access_queue(node), Lookup("consume", "queue", {"name": node.name})


def access_exchange(node: ExchangeNode) -> Lookup:
    """Whatever is done with an exchange."""
    definition = node.definition
    return Lookup("access", "exchange", _exchange(node.name, definition.kind, definition.durable, definition.alternate))


def publish(exchange: str, key: str) -> Lookup:
    """Messages to an exchange, with this routing key."""
    return Lookup("publish", "exchange", {"name": exchange, "routingkey": key})


def subscribe(node: ExchangeNode, queue: str, key: str, attributes: Mapping[str, Any], default_bytes: int) -> Lookups:
    """A receiving link on an exchange: `queue`, with these attributes, also those of its policy, is created for it, and bound
    with this key."""
    own = _new_queue(queue, attributes, default_bytes)
    return access_exchange(node), Lookup("create", "queue", own), _bind("bind", node.name, queue, key)


def unsubscribe(node: QueueNode) -> Lookups:
    """The end of a subscription, for clients that may consume from it."""
    return (Lookup("delete", "queue", _of_queue(node)),)


def unknown(address: str) -> Lookups:
    """A link to a missing node, checked as a queue and as an exchange: a client that may use neither is not told that the node is
    missing."""
    exchange = exchange_in(address)[0] or address.partition("/")[0]
    return Lookup("access", "queue", {"name": queue_in(address) or address}), Lookup("access", "exchange", {"name": exchange})


REPLICATE: Final = Lookup("create", "link", {})
"""A connection of another broker's, for replication."""
ADMINISTER: Final = Lookup("access", "query", {"name": "", "schemaclass": "ha"})
"""A connection of an administrator's, which a backup serves too, and which is taken when clients' are not."""


# ---- management


def request(
    operation: str,
    kind: str,
    name: str,
    body: Mapping[str, Any],
    *,
    queue: QueueNode | None,
    exchange: ExchangeNode | None,
    default_bytes: int,
) -> Lookup:
    """A request to management. `queue` and `exchange` are those of that name, if there are; `default_bytes` is the limit of
    queues that state none."""
    match operation, kind:
        case "QUERY", _:
            return Lookup("access", "query", {"name": name, "schemaclass": kind})
        case "CREATE", "queue":
            return Lookup("create", "queue", _new_queue(name, body, default_bytes))
        case "CREATE", "exchange":
            alternate = str(body.get("alternateExchange") or "")
            facts = _exchange(name, str(body.get("exchangeType", "direct")), bool(body.get("durable")), alternate)
            return Lookup("create", "exchange", facts)
        case "DELETE", "queue":
            return Lookup("delete", "queue", {"name": name} if queue is None else _of_queue(queue))
        case "DELETE", "exchange":
            return Lookup("delete", "exchange", {"name": name} if exchange is None else access_exchange(exchange).facts)
        case "PURGE", "queue":
            return Lookup("purge", "queue", {"name": name})
        case "MOVE", "queue":
            return Lookup("move", "queue", {"name": name, "queuename": str(body.get("to") or "")})
        case "REROUTE", "queue":
            alternate = "" if queue is None else queue.definition.alternate
            asked = body.get("exchange")
            return Lookup("reroute", "queue", {"name": name, "exchangename": str(alternate if asked is None else asked)})
        case "UPDATE", ("queue" | "exchange"):
            return Lookup("update", kind, {"name": name})
        case (("CREATE" | "DELETE"), "binding"):
            ends = (str(body.get(field) or "") for field in ("exchange", "queue", "key"))
            return _bind("bind" if operation == "CREATE" else "unbind", *ends)
        case _:
            return Lookup("access", "method", {"name": operation.lower(), "schemaclass": kind})


# ---- facts


def _access_queue(node: QueueNode) -> Lookup:
    return Lookup("access", "queue", _of_queue(node))


def _of_queue(node: QueueNode) -> Facts:
    definition = node.definition
    return _queue(
        node.name,
        durable=definition.durable,
        auto_delete=definition.auto_delete,
        exclusive=definition.exclusive,
        alternate=definition.alternate,
        policy=definition.arguments.get("qpid.policy_type", "reject"),
        max_bytes=node.max_bytes,
        max_count=node.max_count,
    )


def _new_queue(name: str, body: Mapping[str, Any], default_bytes: int) -> Facts:
    given = body.get("arguments")
    arguments = given if isinstance(given, dict) else {}
    return _queue(
        name,
        durable=bool(body.get("durable")),
        auto_delete=bool(body.get("autoDelete")) or bool(arguments.get(AUTO_DELETE_TIMEOUT)),
        exclusive=bool(body.get("exclusive")),
        alternate=str(body.get("alternateExchange") or ""),
        policy=arguments.get("qpid.policy_type", "reject"),
        max_bytes=arguments.get("qpid.max_size", default_bytes),
        max_count=arguments.get("qpid.max_count"),
    )


def _queue(
    name: str,
    *,
    durable: bool,
    auto_delete: bool,
    exclusive: bool,
    alternate: str,
    policy: object,
    max_bytes: object,
    max_count: object,
) -> Facts:
    return {
        "name": name,
        "durable": _word(durable),
        "autodelete": _word(auto_delete),
        "exclusive": _word(exclusive),
        "alternate": alternate,
        "policytype": str(policy),
        LIMITED["queuemaxsizeupperlimit"]: _limit(max_bytes),
        LIMITED["queuemaxcountupperlimit"]: _limit(max_count),
    }


def _exchange(name: str, kind: str, durable: bool, alternate: str) -> Facts:
    return {"name": name, "type": kind, "durable": _word(durable), "alternate": alternate}


def _bind(action: str, exchange: str, queue: str, key: str) -> Lookup:
    return Lookup(action, "exchange", {"name": exchange, "routingkey": key, "queuename": queue})


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def _limit(value: object) -> int:
    """A requested limit. 0, or a value that is not a number, is not a limit."""
    return value if isinstance(value, int) and value > 0 else UNLIMITED
