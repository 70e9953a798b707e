"""The sections of an AMQP 1.0 message, read from its encoded bytes (AMQP 1.0 part 3, section 3.2; types: part 1, section 1.6).

In the broker, a message is the bytes that its producer sent. This module reads a part of them when it is needed for routing or
delivery, and no more than that: it steps over sections by their sizes and decodes only the requested one. A body is decoded only
for management. Two changes are possible: to the header (`with_delivery_state`), and to the message annotations
(`with_annotations`). All other bytes are sent as they arrived.

Invariants: bytes that are not a message give BadMessage with a text, and no other error; nesting and the number of decoded values
are limited (broker.core.limits), so that a few bytes cannot cost much memory or stack; a function reads no section after the one
that it needs, so a fault there has no effect. `check`, which is called for every message of a client, checks the order, the types
and the sizes of all sections, but not the values in them.

The Python types of the values: `broker.core.values`.
"""

from __future__ import annotations

import struct
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from broker.core import limits
from broker.core.values import (
    NULL,
    BadValue,
    Described,
    Encoded,
    Reader,
    Span,
    Ulong,
    described,
    encode,
    items,
    pairs,
    skip,
)

MessageId: TypeAlias = int | UUID | bytes | str

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = 0x70, 0x71, 0x72, 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78

_NAMES = {
    HEADER: "header",
    DELIVERY_ANNOTATIONS: "delivery-annotations",
    MESSAGE_ANNOTATIONS: "message-annotations",
    PROPERTIES: "properties",
    APPLICATION_PROPERTIES: "application-properties",
    DATA: "data",
    SEQUENCE: "amqp-sequence",
    VALUE: "amqp-value",
    FOOTER: "footer",
}
_SYMBOLS = {
    b"amqp:header:list": HEADER,
    b"amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    b"amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
    b"amqp:application-properties:map": APPLICATION_PROPERTIES,
    b"amqp:data:binary": DATA,
    b"amqp:amqp-sequence:list": SEQUENCE,
    b"amqp:amqp-value:*": VALUE,
    b"amqp:footer:map": FOOTER,
}

_MAYBE = frozenset(range(HEADER, APPLICATION_PROPERTIES + 1))
SECTIONS_AFTER = {code: frozenset(after for after in _NAMES if after > code) for code in _MAYBE} | {
    0: frozenset(_NAMES),
    DATA: frozenset((DATA, FOOTER)),
    SEQUENCE: frozenset((SEQUENCE, FOOTER)),
    VALUE: frozenset((FOOTER,)),
    FOOTER: frozenset(),
}
"""Section, 0 before the first -> those that may come next (3.2). A body may be missing: there are clients that send none."""
_LISTS, _MAPS, _BINARIES = (0x45, 0xC0, 0xD0), (0xC1, 0xD1), (0xA0, 0xB0)
TYPES = {
    HEADER: _LISTS,
    DELIVERY_ANNOTATIONS: _MAPS,
    MESSAGE_ANNOTATIONS: _MAPS,
    PROPERTIES: _LISTS,
    APPLICATION_PROPERTIES: _MAPS,
    DATA: _BINARIES,
    SEQUENCE: _LISTS,
    FOOTER: _MAPS,
}
"""Section -> constructors of its value (1.6, 3.2). That of an amqp-value may be any."""

_MESSAGE_ID, USER_ID_FIELD, _TO, _SUBJECT, _REPLY_TO, _CORRELATION_ID, EXPIRY_FIELD, _GROUP_ID = 0, 1, 2, 3, 4, 5, 8, 10
TTL_FIELD = 2
"""The place of the ttl among the fields of the header."""
_KEPT_FIELDS = 3
_MAX_UINT = 0xFFFFFFFF


BadMessage = BadValue
"""These bytes are not an AMQP 1.0 message. The text names the fault and its place."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header section (3.2.1), with the standard's defaults for missing fields. `ttl_ms` None: no expiry."""

    durable: bool = False
    priority: int = 4
    ttl_ms: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


def header(data: Encoded, priority: int = 4) -> Header:
    """The header section, or the standard's defaults when there is none. `priority`: of a message that says none."""
    span = _find(data, HEADER)
    if span is None:
        return Header(priority=priority)
    count, position, stop = _list_items(data, *span, "header")
    reader = Reader(data)
    values: list[Any] = [None] * 5
    for i in range(min(count, 5)):
        values[i], position = reader.value(position, stop, 1)
    durable, asked, ttl_ms, first_acquirer, delivery_count = values
    return Header(
        _field(durable, bool, False, "header", "durable"),
        _field(asked, int, priority, "header", "priority"),
        _field(ttl_ms, int, None, "header", "ttl"),
        _field(first_acquirer, bool, False, "header", "first-acquirer"),
        _field(delivery_count, int, 0, "header", "delivery-count"),
    )


def message_id(data: Encoded) -> MessageId | None:
    """The message-id of the properties (3.2.4)."""
    return _id_property(data, _MESSAGE_ID, "message-id")


def correlation_id(data: Encoded) -> MessageId | None:
    """The correlation-id of the properties."""
    return _id_property(data, _CORRELATION_ID, "correlation-id")


def user_id(data: Encoded) -> bytes | None:
    """The user-id of the properties: who is responsible for the message, by what its producer says."""
    value = _property(data, USER_ID_FIELD)
    if isinstance(value, str):
        return value.encode()
    found: bytes | None = _field(value, bytes, None, "properties", "user-id")
    return found


def to(data: Encoded) -> str | None:
    """The address that the message is meant for: it decides on a link to the anonymous terminus."""
    return _text_property(data, _TO, "to")


def subject(data: Encoded) -> str | None:
    """The subject in the properties: the routing key for an exchange."""
    return _text_property(data, _SUBJECT, "subject")


def reply_to(data: Encoded) -> str | None:
    """The address for replies."""
    return _text_property(data, _REPLY_TO, "reply-to")


def group_id(data: Encoded) -> str | None:
    """The group-id of the properties."""
    return _text_property(data, _GROUP_ID, "group-id")


def absolute_expiry_time(data: Encoded) -> int | None:
    """When the message expires, ms since 1970."""
    found = _property(data, EXPIRY_FIELD)
    return found if type(found) is int else None


def application_properties(data: Encoded) -> dict[str, Any]:
    """The application's properties (3.2.5); {} when there are none. Keys are strings."""
    found = _map(data, APPLICATION_PROPERTIES)
    for key in found:
        if not isinstance(key, str):
            raise BadMessage(f"the application-properties section has a key {key!r:.40} that is not a string")
    return found


def body_value(data: Encoded, max_values: int = limits.MAX_AMQP_ITEMS) -> Any:
    """The one value that is the body (3.2.8); None when the body is data or sequences, or missing."""
    span = _find(data, VALUE)
    return None if span is None else Reader(data, max_values).value(*span, 0)[0]


def described_body(data: Encoded) -> Described | None:
    """The one value that is the body (3.2.8), with its descriptor; None when the body is data or sequences, or missing."""
    span = _find(data, VALUE)
    return None if span is None else described(data, *span)[0]


def encoded(
    *,
    to: str,
    correlation_id: MessageId | None,
    properties: dict[str, Any],
    body: Any,
    message_id: MessageId | None = None,
    reply_to: str | None = None,
    subject: str | None = None,
) -> bytes:
    """A message of ours: properties, the application's properties, and a value for a body."""
    fields = [_encoded_id(message_id), NULL, encode(to), encode(subject), encode(reply_to), _encoded_id(correlation_id)]
    parts = (_head(PROPERTIES), items(fields), _head(APPLICATION_PROPERTIES), encode(properties), _head(VALUE), encode(body))
    return b"".join(parts)


def _head(section: int) -> bytes:
    return bytes((0x00, 0x53, section))


def _encoded_id(value: MessageId | None) -> bytes:
    return encode(Ulong(value) if isinstance(value, int) else value)


def in_order(data: bytes) -> bytes:
    """The same sections, in the order in which they are to stand. BadMessage, when they are none."""
    sections, position, end = [], 0, len(data)
    while position < end:
        code, value = _descriptor(data, position)
        stop = skip(data, value, end, 0)
        sections.append((code, data[position:stop]))
        position = stop
    ordered = b"".join(section for _, section in sorted(sections, key=lambda each: each[0]))
    check(ordered)
    return ordered


def check(data: Encoded) -> None:
    """BadMessage, unless these bytes are sections of the right types, in the right order, to the last byte."""
    position, last, end = 0, 0, len(data)
    try:
        while position < end:
            if data[position] == 0 and data[position + 1] == 0x53 and data[position + 2] in _NAMES:
                code, value = data[position + 2], position + 3  # as all write it: there may be hundreds of thousands
            else:
                code, value = _descriptor(data, position)
            if code not in SECTIONS_AFTER[last]:
                raise BadMessage(f"the {_NAMES[code]} section at byte {position} may not stand behind the {_NAMES[last]} section")
            types = TYPES.get(code)
            if types is not None and data[value] not in types:
                raise BadMessage(f"the {_NAMES[code]} section at byte {position} has a value of the type {data[value]:#04x}")
            position, last = skip(data, value, end, 0), code
    except IndexError:
        raise BadMessage(f"the message ends within the section at byte {position}") from None
    if not last:
        raise BadMessage("the message has no section, but needs at least one")


def is_of_others(data: Encoded, names: Set[bytes]) -> bool:
    """Whether it names another user: its user-id is not empty and not among `names`. BadMessage when it cannot be read."""
    user = user_id(data)
    return bool(user) and user not in names


def body_begins_in(data: Encoded) -> bool:
    """Whether these bytes, with which a message begins, have all sections before its body, and the descriptor of that.

    False when they end before the body, or are not a message.
    """
    position, end = 0, len(data)
    try:
        while position < end:
            code, value = _descriptor(data, position)
            if code in (DATA, SEQUENCE, VALUE):
                return True
            position = skip(data, value, end, 0)
    except (BadMessage, IndexError):
        return False
    return False


KEPT = -1
"""In the place of a time to live: as the producer sent it."""


def delivery_header(
    data: Encoded, delivery_count: int | None = None, first_acquirer: bool | None = None, ttl_ms: int = KEPT
) -> tuple[bytes, int]:
    """A header section with these values, and the position in `data` from which the rest follows unchanged. Durability and
    priority keep the bytes that the producer sent, and so do values of None or `KEPT`; a `ttl_ms` of 0 removes the time to live.
    If `data` has these values already, the result is (b"", 0), which means "unchanged".
    """
    was = header(data)
    count = was.delivery_count if delivery_count is None else delivery_count
    first = was.first_acquirer if first_acquirer is None else first_acquirer
    same_ttl = ttl_ms == KEPT or (ttl_ms or None) == was.ttl_ms
    if same_ttl and (was.delivery_count, was.first_acquirer) == (count, first):
        return b"", 0
    kept = [NULL] * _KEPT_FIELDS
    rest = 0
    span = _find(data, HEADER)
    if span is not None:
        n, position, stop = _list_items(data, *span, "header")
        rest = span[1]
        for i in range(min(n, _KEPT_FIELDS)):
            after = skip(data, position, stop, 1)
            kept[i] = bytes(data[position:after])
            position = after
    if not same_ttl:
        kept[TTL_FIELD] = _uint(ttl_ms) if ttl_ms else NULL
    fields = b"".join((*kept, b"\x41" if first else b"\x42", _uint(count)))
    if len(fields) < 255:
        return b"".join((b"\x00\x53\x70\xc0", bytes((len(fields) + 1, 5)), fields)), rest
    return b"".join((b"\x00\x53\x70\xd0", struct.pack(">II", len(fields) + 4, 5), fields)), rest


def with_delivery_state(
    data: bytes, delivery_count: int | None = None, first_acquirer: bool | None = None, ttl_ms: int = KEPT
) -> bytes:
    """The message with this in its header (see `delivery_header`), which is added if missing; no other byte changes."""
    head, rest = delivery_header(data, delivery_count, first_acquirer, ttl_ms)
    return b"".join((head, data[rest:] if rest else data)) if head else data


def as_delivered(data: bytes, failed: int, left_ms: int) -> bytes:
    """The message as it is delivered: with more failed deliveries in its header, and with `left_ms` as its time to live, if it
    has one (0: as it was sent). Bytes that are not an AMQP message are not changed."""
    try:
        was = header(data)
        ttl_ms = left_ms if left_ms and was.ttl_ms else KEPT
        count, first = (was.delivery_count + failed, False) if failed else (None, None)
        return with_delivery_state(data, count, first, ttl_ms)
    except BadMessage:
        return data


def message_annotations(data: Encoded) -> dict[Any, Any]:
    """The message annotations (3.2.3); {} when there are none."""
    return _map(data, MESSAGE_ANNOTATIONS)


def with_annotations(data: bytes, names: Set[str], added: bytes) -> bytes:
    """The message with these message annotations, keys and values end to end as bytes, in place of those of the same `names`; no
    other section changes, and no other annotation."""
    start = position = 0
    pieces: list[bytes] = []
    end = len(data)
    while position < end:
        code, value = _descriptor(data, position)
        if code > MESSAGE_ANNOTATIONS:
            break
        start, position = position, skip(data, value, end, 0)
        if code == MESSAGE_ANNOTATIONS:
            pieces = _other_pairs(data, value, position, names)
            break
        start = position
    return b"".join((data[:start], _head(MESSAGE_ANNOTATIONS), pairs(pieces, 2 * len(names), added), data[position:]))


def _other_pairs(data: bytes, start: int, stop: int, names: Set[str]) -> list[bytes]:
    """The keys and values of the map that lies there, as bytes, without those of these names."""
    match data[start]:
        case 0xC1:
            count, position = data[start + 2], start + 3
        case 0xD1:
            count, position = int.from_bytes(data[start + 5 : start + 9], "big"), start + 9
        case code:
            raise BadMessage(f"the message-annotations section at byte {start} is not a map, but has type {code:#04x}")
    found: list[bytes] = []
    reader = Reader(data)
    for _ in range(count // 2):
        key, after_key = reader.value(position, stop, 1)
        after = skip(data, after_key, stop, 1)
        if not (isinstance(key, str) and key in names):
            found += (data[position:after_key], data[after_key:after])
        position = after
    return found


def _uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if value < 256 else struct.pack(">BI", 0x70, min(value, _MAX_UINT))


def _descriptor(data: Encoded, position: int) -> tuple[int, int]:
    return section_at(data, position, len(data))


def section_at(data: Encoded, position: int, end: int) -> tuple[int, int]:
    """The code of the section that begins here, in a message that goes up to `end`, and where its value begins."""
    if data[position] != 0:
        raise BadMessage(f"a section should begin at byte {position}, with 0x00, but there is {data[position]:#04x}")
    after = skip(data, position + 1, end, 0)
    kind, encoded = data[position + 1], bytes(data[position + 2 : after])
    code: int | None = None
    if kind in (0x53, 0x80):
        code = int.from_bytes(encoded, "big")
    elif kind == 0xA3:
        code = _SYMBOLS.get(encoded[1:])
    elif kind == 0xB3:
        code = _SYMBOLS.get(encoded[4:])
    if code not in _NAMES:
        raise BadMessage(f"the descriptor at byte {position + 1} names no section of a message")
    return code, after


def _find(data: Encoded, wanted: int) -> Span | None:
    """The value of the wanted section, without its descriptor. None when a later section, or the end, comes first."""
    position, end = 0, len(data)
    while position < end:
        code, value = _descriptor(data, position)
        if code > wanted:
            return None
        position = skip(data, value, end, 0)
        if code == wanted:
            return value, position
    return None


def _list_items(data: Encoded, start: int, stop: int, section: str) -> tuple[int, int, int]:
    """How many items the list at `start` has, and where they lie."""
    match data[start]:
        case 0x45:
            return 0, stop, stop
        case 0xC0:
            return data[start + 2], start + 3, stop
        case 0xD0:
            return int.from_bytes(data[start + 5 : start + 9], "big"), start + 9, stop
        case code:
            raise BadMessage(f"the {section} section at byte {start} is not a list, but has type {code:#04x}")


def _property(data: Encoded, index: int) -> Any:
    span = _find(data, PROPERTIES)
    if span is None:
        return None
    count, position, stop = _list_items(data, *span, "properties")
    if index >= count:
        return None
    for _ in range(index):
        position = skip(data, position, stop, 1)
    return Reader(data).value(position, stop, 1)[0]


def _id_property(data: Encoded, index: int, name: str) -> MessageId | None:
    value = _property(data, index)
    if value is None or (isinstance(value, MessageId) and not isinstance(value, bool)):
        return value
    raise BadMessage(f"the property {name} is a {type(value).__name__}, but must be a number, uuid, binary or string")


def _text_property(data: Encoded, index: int, name: str) -> str | None:
    value: str | None = _field(_property(data, index), str, None, "properties", name)
    return value


def _field(value: Any, kind: type, default: Any, section: str, name: str) -> Any:
    if value is None:
        return default
    if type(value) is not kind or (isinstance(value, int) and not 0 <= value <= _MAX_UINT):
        raise BadMessage(f"the field {name} of the {section} section is {value!r:.40}, but must be a {kind.__name__}")
    return value


def _map(data: Encoded, code: int) -> dict[Any, Any]:
    span = _find(data, code)
    if span is None:
        return {}
    value = Reader(data).value(*span, 0)[0]
    if not isinstance(value, dict):
        raise BadMessage(f"the {_NAMES[code]} section at byte {span[0]} is not a map")
    return value
