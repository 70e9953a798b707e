"""Requests of RabbitMQ's AMQP 1.0 clients that create, show and delete nodes, translated into management requests; and their
answers.

They have a method and a path, as in HTTP. A request without an equivalent in management is refused. Only two things in a request
are ignored: `durable` (every queue is on disk), and the requested type of queue, if it is not a stream.

Source: RabbitMQ's documentation of its AMQP 1.0 management, and the requests of its Python client.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from broker.core.addresses import segments

ADDRESS: Final = "/management"
_ARGUMENTS: Final = {"x-max-length": "qpid.max_count", "x-max-length-bytes": "qpid.max_size"}
_POLICIES: Final = {"drop-head": "ring", "reject-publish": "reject"}


class Unserved(ValueError):
    """This request cannot be executed; the text gives the reason and what to do."""


@dataclass(frozen=True, slots=True)
class Native:
    """A request to management."""

    operation: str
    type: str
    name: str
    body: dict[str, Any] = field(default_factory=dict)


def native(method: str, path: str, body: Any) -> Native:
    """Read a request. Unserved."""
    found, given = segments(path), dict(body) if isinstance(body, dict) else {}
    match method, found:
        case "PUT", ["queues", name]:
            return Native("CREATE", "queue", name, _queue(given))
        case "GET", ["queues", name]:
            return Native("QUERY", "queue", name, {"name": name})
        case "DELETE", ["queues", name]:
            return Native("DELETE", "queue", name)
        case "PUT", ["exchanges", name]:
            return Native("CREATE", "exchange", name, _exchange(given))
        case "DELETE", ["exchanges", name]:
            return Native("DELETE", "exchange", name)
        case "POST", ["bindings"]:
            return Native("CREATE", "binding", "", _binding(given))
        case "DELETE", ["bindings", _]:
            return Native("DELETE", "binding", "", _bound(path.rpartition("/")[2]))
        case _:
            raise Unserved(f"{method} {path} is not served: use qpid-config, or requests to $management")


def answer(request: Native, status: int, text: str, body: Any, *, alike: bool) -> tuple[int, Any]:
    """Status and body for an answer of management. `alike`: the object exists already, with the requested attributes."""
    if status == 409 and alike:
        return (200, {}) if request.type == "queue" else (204, None)
    if not 200 <= status < 300:
        return status, text
    if request.operation == "QUERY":
        return 200, _shown(body["items"][0])
    if request.type != "queue":
        return 204, None
    return (201, {}) if request.operation == "CREATE" else (200, {})


def _queue(given: dict[str, Any]) -> dict[str, Any]:
    _refuse(given, "exclusive", "a queue of one connection alone is made by a dynamic source")
    made: dict[str, Any] = {"autoDelete": bool(given.get("auto_delete"))}
    asked = _arguments(given)
    kind = asked.pop("x-queue-type", "quorum")
    if kind not in ("quorum", "classic"):
        raise Unserved(f"a queue of the type {kind!r} cannot be made: quorum and classic are taken, and are the same here")
    arguments = {
        _ARGUMENTS.get(name, name): value for name, value in asked.items() if not name.startswith(("x-overflow", "x-dead"))
    }
    if any(name in arguments for name in _ARGUMENTS.values()) or "x-overflow" in asked:
        overflow = asked.get("x-overflow", "drop-head")
        if overflow not in _POLICIES:
            raise Unserved(f"x-overflow {overflow!r} is not available: drop-head and reject-publish are")
        arguments["qpid.policy_type"] = _POLICIES[overflow]
    for name in asked:
        if name.startswith("x-dead") and name != "x-dead-letter-exchange":
            raise Unserved(f"{name} is not available: dead letters keep their subject, and are routed by it")
    if asked.get("x-dead-letter-exchange"):
        made["alternateExchange"] = asked["x-dead-letter-exchange"]
    return made | {"arguments": arguments}


def _exchange(given: dict[str, Any]) -> dict[str, Any]:
    _refuse(given, "internal", "any client may send to an exchange that the ACL file lets it")
    _refuse(given, "auto_delete", "delete the exchange when it is of no more use")
    return {"exchangeType": _text(given, "type", "direct"), "arguments": _arguments(given)}


def _binding(given: dict[str, Any]) -> dict[str, Any]:
    _refuse(given, "destination_exchange", "exchanges are bound to queues alone")
    ends = {"exchange": _text(given, "source"), "queue": _text(given, "destination_queue")}
    return ends | {"key": _text(given, "binding_key"), "arguments": _arguments(given)}


def _bound(path: str) -> dict[str, Any]:
    """The binding that `src=X;dstq=Q;key=K;args=` names."""
    parts = [part.partition("=") for part in path.split(";")]
    named = {name: (segments(f"/{value}") or [""])[0] for name, _, value in parts}
    if set(named) != {"src", "dstq", "key", "args"} or named["args"]:
        raise Unserved(f"the binding {path!r} is not served: name it by src, dstq and key, without arguments")
    return {"exchange": named["src"], "queue": named["dstq"], "key": named["key"]}


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    found = given.get("arguments")
    return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}


def _text(given: dict[str, Any], name: str, default: str = "") -> str:
    found = given.get(name)
    if found is None:
        return default
    if not isinstance(found, str):
        raise Unserved(f"{name} must be a text, and is a {type(found).__name__}")
    return found


def _refuse(given: dict[str, Any], name: str, instead: str) -> None:
    if given.get(name):
        raise Unserved(f"{name} is not available: {instead}")


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    """A queue in the form of these clients. The leader and the replicas are those of the cluster."""
    kept = {"name": item["name"], "arguments": item["arguments"], "exclusive": False, "auto_delete": item["autoDelete"]}
    counts = {"message_count": item["messages"], "consumer_count": item["consumers"]}
    return kept | counts | {"durable": True, "type": "quorum", "leader": "", "replicas": []}
