"""Management requests and answers as AMQP messages, for both sides (docs/reference/management.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.core import limits, message
from broker.core.message import BadMessage

ADDRESS = "$management"


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `name` is "" and `body` {} where they are missing. `properties` are all that the application has set."""

    operation: str
    type: str
    name: str
    body: dict[str, Any]
    reply_to: str
    correlation_id: Any
    properties: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `status` is an HTTP number, None where there is none; `body` {} where it is missing or no map."""

    status: int | None
    text: str
    body: dict[str, Any]
    correlation_id: Any


class BadRequest(ValueError):
    """The message is not a management request; the text says what is missing."""


def decode(data: bytes) -> Request:
    """Read a request; BadRequest when it is not one that can be answered."""
    if len(data) > limits.MAX_REQUEST_BYTES:
        raise BadRequest(f"a management request may have {limits.MAX_REQUEST_BYTES} bytes, this one has {len(data)}")
    try:
        properties = message.application_properties(data)
        body = message.body_value(data)
        correlation_id = message.correlation_id(data)
        if correlation_id is None:
            correlation_id = message.message_id(data)
        reply_to = message.reply_to(data)
    except BadMessage as error:
        raise BadRequest(f"this is not an AMQP message: {error}") from None
    if not reply_to:
        raise BadRequest("a management request needs a reply-to")
    return Request(
        str(properties.get("operation", "")),
        str(properties.get("type", "")),
        str(properties.get("name") or ""),
        _body(body),
        reply_to,
        correlation_id,
        properties,
    )


def encode(request: Request, status: int, text: str, body: Any) -> bytes:
    """An answer to that request."""
    return message.encoded(
        to=request.reply_to,
        correlation_id=request.correlation_id,
        properties={"statusCode": status, "statusDescription": text},
        body=body,
    )


def encode_request(
    number: int, reply_to: str, operation: str, type: str, name: str | None, body: Mapping[str, Any] | None
) -> bytes:
    """Encode a request, whose answer will have its number. TypeError or ValueError when the body cannot be encoded in AMQP."""
    properties = {"operation": operation, "type": type} | ({} if name is None else {"name": name})
    return message.encoded(
        to=ADDRESS,
        message_id=number,
        correlation_id=number,
        reply_to=reply_to,
        properties=properties,
        body=None if body is None else dict(body),
    )


def decode_answer(data: bytes) -> Answer:
    """Read an answer. BadMessage."""
    properties = message.application_properties(data)
    status = properties.get("statusCode")
    return Answer(
        status if type(status) is int else None,
        str(properties.get("statusDescription") or ""),
        _body(message.body_value(data, max_values=len(data))),
        message.correlation_id(data),
    )


def _body(value: Any) -> dict[str, Any]:
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}
