"""The sections of an AMQP 1.0 message, read from its encoded bytes (AMQP 1.0 part 3, section 3.2; types: part 1, section 1.6).

A message lives in the broker as the bytes that its producer sent. This module looks into them when something must be known, for
routing or for delivery, and at no more than it must: it steps from section to section by their sizes and decodes the one asked
for; the body is never decoded. The one change that a broker may make is to the header (`with_delivery_state`): every other byte
goes out as it came in.

Invariants: bytes that are no message give BadMessage with a text, and no other error; nesting and the number of decoded values
are bounded (broker.core.limits), so that a few bytes cannot cost much memory or stack; a function reads no section behind the
one that it is about, so a fault there does not matter to it.

Values become Python's: integers, timestamps (ms since 1970) and decimal32/64 (their bits) `int`; float and double `float`;
string, symbol and char `str`; binary and decimal128 (its bits) `bytes`; `uuid.UUID`; lists and arrays `list`; maps `dict`; null
`None`; of a described value, the value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from broker.core import limits

Encoded: TypeAlias = bytes | bytearray | memoryview
Span: TypeAlias = tuple[int, int]
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

_MESSAGE_ID, _TO, _SUBJECT, _REPLY_TO, _CORRELATION_ID, _GROUP_ID = 0, 2, 3, 4, 5, 10
_TTL_FIELDS = 3
_NULL = b"\x40"
_MAX_UINT = 0xFFFFFFFF


class BadMessage(ValueError):
    """These bytes are not an AMQP 1.0 message. The text says what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header section (3.2.1), with the standard's defaults where it says nothing. `ttl_ms` None: lives for ever."""

    durable: bool = False
    priority: int = 4
    ttl_ms: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


class Sections(NamedTuple):
    """Where each section lies: (start, stop) with its descriptor, None when absent. The body is all its sections together."""

    header: Span | None
    delivery_annotations: Span | None
    message_annotations: Span | None
    properties: Span | None
    application_properties: Span | None
    body: Span | None
    footer: Span | None


def sections(data: Encoded) -> Sections:
    """Where the sections lie, without decoding any. BadMessage when they are not whole, or not in the standard's order."""
    spans: dict[int, Span] = {}
    position, last = 0, 0
    while position < len(data):
        start = position
        code, position = _descriptor(data, position)
        if code < last or (code == last and code not in (DATA, SEQUENCE)) or (code != last and last >= DATA and code != FOOTER):
            raise BadMessage(f"the {_NAMES[code]} section at byte {start} may not stand behind a {_NAMES[last]} section")
        position = _skip(data, position, len(data), 0)
        slot = VALUE if code in (DATA, SEQUENCE) else code
        spans[slot] = (spans.get(slot, (start, 0))[0], position)
        last = code
    return Sections(
        *map(spans.get, (HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, VALUE, FOOTER))
    )


def header(data: Encoded) -> Header:
    """The header section, or the standard's defaults when there is none."""
    span = _find(data, HEADER)
    if span is None:
        return Header()
    count, position, stop = _list_items(data, *span, "header")
    reader = _Reader(data)
    values: list[Any] = [None] * 5
    for i in range(min(count, 5)):
        values[i], position = reader.value(position, stop, 1)
    durable, priority, ttl_ms, first_acquirer, delivery_count = values
    return Header(
        _field(durable, bool, False, "header", "durable"),
        _field(priority, int, 4, "header", "priority"),
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


def to(data: Encoded) -> str | None:
    """The address that the message is meant for: it decides on a link to the anonymous terminus."""
    return _text_property(data, _TO, "to")


def subject(data: Encoded) -> str | None:
    """The subject of the properties: what an exchange routes by."""
    return _text_property(data, _SUBJECT, "subject")


def reply_to(data: Encoded) -> str | None:
    """The address for replies."""
    return _text_property(data, _REPLY_TO, "reply-to")


def group_id(data: Encoded) -> str | None:
    """The group that the message belongs to."""
    return _text_property(data, _GROUP_ID, "group-id")


def application_properties(data: Encoded) -> dict[str, Any]:
    """The application's properties (3.2.5); {} when there are none. Keys are strings."""
    found = _map(data, APPLICATION_PROPERTIES)
    for key in found:
        if not isinstance(key, str):
            raise BadMessage(f"the application-properties section has a key {key!r} that is not a string")
    return found


def message_annotations(data: Encoded) -> dict[Any, Any]:
    """The message annotations (3.2.3); {} when there are none. Keys are symbols (str) or numbers."""
    return _map(data, MESSAGE_ANNOTATIONS)


def delivery_header(data: Encoded, delivery_count: int, first_acquirer: bool) -> tuple[bytes, int]:
    """A header section that says this of the delivery, and the position in `data` from which the rest follows it unchanged.

    Durability, priority and time to live keep the very bytes that the producer sent. When `data` says the same already, its
    own header: (b"", 0) stands for "as it is".
    """
    was = header(data)
    if (was.delivery_count, was.first_acquirer) == (delivery_count, first_acquirer):
        return b"", 0
    kept = [_NULL] * _TTL_FIELDS
    rest = 0
    span = _find(data, HEADER)
    if span is not None:
        count, position, stop = _list_items(data, *span, "header")
        rest = span[1]
        for i in range(min(count, _TTL_FIELDS)):
            after = _skip(data, position, stop, 1)
            kept[i] = bytes(data[position:after])
            position = after
    fields = b"".join((*kept, b"\x41" if first_acquirer else b"\x42", _uint(delivery_count)))
    if len(fields) < 255:
        return b"".join((b"\x00\x53\x70\xc0", bytes((len(fields) + 1, 5)), fields)), rest
    return b"".join((b"\x00\x53\x70\xd0", struct.pack(">II", len(fields) + 4, 5), fields)), rest


def with_delivery_state(data: bytes, delivery_count: int, first_acquirer: bool) -> bytes:
    """The message with this delivery count and first-acquirer in its header, added if missing; no other byte changes."""
    head, rest = delivery_header(data, delivery_count, first_acquirer)
    return b"".join((head, data[rest:] if rest else data)) if head else data


def _uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if value < 256 else struct.pack(">BI", 0x70, min(value, _MAX_UINT))


def _descriptor(data: Encoded, position: int) -> tuple[int, int]:
    """The code of the section that begins here, and where its value begins."""
    end = len(data)
    if data[position] != 0:
        raise BadMessage(f"a section should begin at byte {position}, with 0x00, but there is {data[position]:#04x}")
    after = _skip(data, position + 1, end, 0)
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
        position = _skip(data, value, end, 0)
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
        position = _skip(data, position, stop, 1)
    return _Reader(data).value(position, stop, 1)[0]


def _id_property(data: Encoded, index: int, name: str) -> MessageId | None:
    value = _property(data, index)
    if value is None or (isinstance(value, MessageId) and not isinstance(value, bool)):
        return value
    raise BadMessage(f"the property {name} is a {type(value).__name__}, where a number, uuid, binary or string is due")


def _text_property(data: Encoded, index: int, name: str) -> str | None:
    value: str | None = _field(_property(data, index), str, None, "properties", name)
    return value


def _field(value: Any, kind: type, default: Any, section: str, name: str) -> Any:
    if value is None:
        return default
    if type(value) is not kind or (isinstance(value, int) and not 0 <= value <= _MAX_UINT):
        raise BadMessage(f"the field {name} of the {section} section is {value!r:.40}, where a {kind.__name__} is due")
    return value


def _map(data: Encoded, code: int) -> dict[Any, Any]:
    span = _find(data, code)
    if span is None:
        return {}
    value = _Reader(data).value(*span, 0)[0]
    if not isinstance(value, dict):
        raise BadMessage(f"the {_NAMES[code]} section at byte {span[0]} is not a map")
    return value


def _cut(position: int, nbytes: int, end: int) -> BadMessage:
    return BadMessage(
        f"the value at byte {position} needs {nbytes} more bytes, but only {max(0, end - position)} are left for it"
    )


_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZE_WIDTHS = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}


def _sized(data: Encoded, code: int, position: int, end: int) -> Span:
    """Where the contents of a value with a size before it lie; `position` is behind the type code."""
    width = _SIZE_WIDTHS[code >> 4]
    start = position + width
    if start > end:
        raise _cut(position, width, end)
    stop = start + int.from_bytes(data[position:start], "big")
    if stop > end:
        raise _cut(start, stop - start, end)
    if code >= 0xC0 and stop - start < width:
        raise BadMessage(f"the compound value at byte {position} has a size of {stop - start}, too small for its own count")
    return start, stop


def _skip(data: Encoded, position: int, end: int, depth: int) -> int:
    """Where the value that begins at `position` ends, by its type's width or its own size (1.6, "type constructors")."""
    if position >= end:
        raise _cut(position, 1, end)
    code = data[position]
    position += 1
    if code == 0:
        if depth >= limits.MAX_AMQP_DEPTH:
            raise BadMessage(f"values are nested more than {limits.MAX_AMQP_DEPTH} deep at byte {position}")
        return _skip(data, _skip(data, position, end, depth + 1), end, depth + 1)
    width = _WIDTHS.get(code >> 4)
    if width is not None:
        if position + width > end:
            raise _cut(position, width, end)
        return position + width
    if code >= 0xA0:
        return _sized(data, code, position, end)[1]
    raise BadMessage(f"there is no type with the code {code:#04x} (byte {position - 1})")


def _number(layout: str) -> Callable[[Encoded, int], Any]:
    unpack = struct.Struct(layout).unpack_from
    return lambda data, position: unpack(data, position)[0]


def _boolean(data: Encoded, position: int) -> bool:
    if data[position] > 1:
        raise BadMessage(f"the boolean at byte {position} is {data[position]}, not 0 or 1")
    return data[position] == 1


def _char(data: Encoded, position: int) -> str:
    point = int.from_bytes(data[position : position + 4], "big")
    if point > 0x10FFFF or 0xD800 <= point < 0xE000:
        raise BadMessage(f"the char at byte {position} is {point:#x}, which is no Unicode character")
    return chr(point)


_FIXED: dict[int, Callable[[Encoded, int], Any]] = {
    0x40: lambda data, position: None,
    0x41: lambda data, position: True,
    0x42: lambda data, position: False,
    0x43: lambda data, position: 0,
    0x44: lambda data, position: 0,
    0x45: lambda data, position: [],
    0x50: _number(">B"),
    0x51: _number(">b"),
    0x52: _number(">B"),
    0x53: _number(">B"),
    0x54: _number(">b"),
    0x55: _number(">b"),
    0x56: _boolean,
    0x60: _number(">H"),
    0x61: _number(">h"),
    0x70: _number(">I"),
    0x71: _number(">i"),
    0x72: _number(">f"),
    0x73: _char,
    0x74: _number(">I"),
    0x80: _number(">Q"),
    0x81: _number(">q"),
    0x82: _number(">d"),
    0x83: _number(">q"),
    0x84: _number(">Q"),
    0x94: lambda data, position: bytes(data[position : position + 16]),
    0x98: lambda data, position: UUID(bytes=bytes(data[position : position + 16])),
}
_TEXT = {0xA1: "utf-8", 0xB1: "utf-8", 0xA3: "ascii", 0xB3: "ascii"}


class _Reader:
    """Decodes values, and counts them against the bound. One for each section."""

    __slots__ = ("_data", "_n_values")

    def __init__(self, data: Encoded) -> None:
        self._data = data
        self._n_values = 0

    def value(self, position: int, end: int, depth: int) -> tuple[Any, int]:
        """The value at `position`, and where it ends; no byte from `end` on is part of it."""
        code, position = self._constructor(position, end, depth)
        return self._value_of(code, position, end, depth)

    def _constructor(self, position: int, end: int, depth: int) -> tuple[int, int]:
        """The type code at `position`, behind any descriptors, and where its value begins."""
        while True:
            if position >= end:
                raise _cut(position, 1, end)
            code = self._data[position]
            position += 1
            if code != 0:
                return code, position
            position = _skip(self._data, position, end, depth)
            depth = self._deeper(depth, position)

    def _value_of(self, code: int, position: int, end: int, depth: int) -> tuple[Any, int]:
        self._n_values += 1
        if self._n_values > limits.MAX_AMQP_ITEMS:
            raise BadMessage(f"a section of the message has more than {limits.MAX_AMQP_ITEMS} values")
        read = _FIXED.get(code)
        if read is not None:
            width = _WIDTHS[code >> 4]
            if position + width > end:
                raise _cut(position, width, end)
            return read(self._data, position), position + width
        if code in (0xA0, 0xB0):
            start, stop = _sized(self._data, code, position, end)
            return bytes(self._data[start:stop]), stop
        if code in _TEXT:
            start, stop = _sized(self._data, code, position, end)
            try:
                return str(self._data[start:stop], _TEXT[code]), stop
            except UnicodeDecodeError as error:
                raise BadMessage(f"the text at byte {start} is not {_TEXT[code].upper()}: {error.reason}") from None
        if code in (0xC0, 0xD0, 0xC1, 0xD1, 0xE0, 0xF0):
            start, stop = _sized(self._data, code, position, end)
            width = _SIZE_WIDTHS[code >> 4]
            count = int.from_bytes(self._data[start : start + width], "big")
            return self._compound(code, count, start + width, stop, self._deeper(depth, position)), stop
        raise BadMessage(f"there is no type with the code {code:#04x} (byte {position - 1})")

    def _compound(self, code: int, count: int, position: int, stop: int, depth: int) -> Any:
        start, constructor, items = position, 0, []
        if code in (0xE0, 0xF0):
            constructor, position = self._constructor(position, stop, depth)
        for _ in range(count):
            if constructor:
                item, position = self._value_of(constructor, position, stop, depth)
            else:
                item, position = self.value(position, stop, depth)
            items.append(item)
        if position != stop:
            raise BadMessage(f"the {count} values at byte {start} end at byte {position}, and not at {stop} as their size says")
        if code not in (0xC1, 0xD1):
            return items
        if count % 2:
            raise BadMessage(f"the map at byte {start} has {count} keys and values, which is odd")
        return {_hashable(key): value for key, value in zip(items[::2], items[1::2], strict=True)}

    @staticmethod
    def _deeper(depth: int, position: int) -> int:
        if depth >= limits.MAX_AMQP_DEPTH:
            raise BadMessage(f"values are nested more than {limits.MAX_AMQP_DEPTH} deep at byte {position}")
        return depth + 1


def _hashable(key: Any) -> Hashable:
    """A map's key: lists and maps may be keys in AMQP, but not in Python."""
    if isinstance(key, list):
        return tuple(map(_hashable, key))
    if isinstance(key, dict):
        return tuple((name, _hashable(value)) for name, value in key.items())
    result: Hashable = key
    return result
