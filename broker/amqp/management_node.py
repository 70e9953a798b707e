"""Management requests and answers as AMQP messages (docs/reference/management.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proton import Message, ProtonException, ulong

from broker.core import limits


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `name` is "" and `body` {} where they are missing."""

    operation: str
    type: str
    name: str
    body: dict[str, Any]
    reply_to: str
    correlation_id: Any


class BadRequest(ValueError):
    """Not a management request; the text says what is missing."""


def decode(data: bytes) -> Request:
    """Read a request; BadRequest when it is not one that can be answered."""
    if len(data) > limits.MAX_REQUEST_BYTES:
        raise BadRequest(f"a management request may have {limits.MAX_REQUEST_BYTES} bytes, this one has {len(data)}")
    message: Any = Message()
    try:
        message.decode(data)
        properties: dict[Any, Any] = message.properties or {}
        body = message.body
        correlation_id = message.correlation_id if message.correlation_id is not None else message.id
        if isinstance(correlation_id, memoryview):
            correlation_id = bytes(correlation_id)  # proton shows its own memory, which goes with the message
        reply_to = message.reply_to
    except (ProtonException, ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadRequest(f"this is not an AMQP message: {error}") from None
    if not isinstance(properties, dict):
        raise BadRequest("the application-properties of a management request are a map")
    if not reply_to:
        raise BadRequest("a management request needs a reply-to")
    return Request(
        str(properties.get("operation", "")),
        str(properties.get("type", "")),
        str(properties.get("name") or ""),
        {str(key): value for key, value in body.items()} if isinstance(body, dict) else {},
        str(reply_to),
        correlation_id,
    )


def encode(request: Request, status: int, text: str, body: dict[str, Any]) -> bytes:
    """An answer to that request."""
    message: Any = Message(body=_amqp(body))
    message.properties = {"statusCode": status, "statusDescription": text}
    message.correlation_id = request.correlation_id
    message.address = request.reply_to
    return bytes(message.encode())


def _amqp(value: Any) -> Any:
    """Plain values as AMQP ones: large whole numbers do not fit proton's default int."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return ulong(value) if value > 0x7FFFFFFFFFFFFFFF else value
    if isinstance(value, dict):
        return {str(key): _amqp(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_amqp(item) for item in value]
    return value
