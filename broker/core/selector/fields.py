"""The fields of a message that a selector names. No others are read.

Names of fields are those of JMS (`JMSPriority`) and those of Qpid's brokers (`amqp.priority`); see `_NAMES`. Any other name is an
application property, with its type in the message: numbers, texts (strings, symbols, chars) and booleans are values; null and
missing properties are NULL; all other types of AMQP (binary, uuid, decimals, lists, maps, arrays, described values) are an
`Other`: not NULL, and equal to nothing.

Life of a reading: a `Plan` is made once from the names of a selector. `read` steps over sections by their sizes, up to the last
one that is needed, and decodes the requested values.

Invariants: at most `limits.MAX_SELECTOR_SECTION_BYTES` of a section are read; bytes that cannot be read give one of FAULTS, and
no other error; no returned value contains bytes after the end of the message; a fault in a value that is not requested has no
effect, unless it is in the structure of a section that is read.

Source: AMQP 1.0 parts 3.2.1 (header), 3.2.4 (properties), 3.2.5 (application properties); JMS 2.0 section 3.8.1.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

from broker.core import limits
from broker.core.message import APPLICATION_PROPERTIES, HEADER, PROPERTIES, section_at
from broker.core.selector.tree import Identifier
from broker.core.values import FIXED, WIDTHS, BadValue, Encoded, Reader, skip


class Truth(Enum):
    """A truth value that a message holds: unlike Python's own, it is not a number."""

    TRUE = True
    FALSE = False


class Other:
    """A value of a type that selectors do not have."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """It equals nothing, itself included."""
        return False

    def __hash__(self) -> int:
        """It may be looked for in a set, and is in none."""
        return 0


Value: TypeAlias = int | float | str | Truth | Other | None

FAULTS: Final = (BadValue, IndexError, UnicodeDecodeError, struct.error)
"""What bytes that cannot be read end with."""

# ---- names

_FIELDS: Final = {
    "durable": (HEADER, 0),
    "delivery_mode": (HEADER, 0),
    "priority": (HEADER, 1),
    "delivery_count": (HEADER, 4),
    "redelivered": (HEADER, 4),
    "deliveries": (HEADER, 4),
    "message_id": (PROPERTIES, 0),
    "user_id": (PROPERTIES, 1),
    "to": (PROPERTIES, 2),
    "subject": (PROPERTIES, 3),
    "reply_to": (PROPERTIES, 4),
    "correlation_id": (PROPERTIES, 5),
    "content_type": (PROPERTIES, 6),
    "content_encoding": (PROPERTIES, 7),
    "absolute_expiry_time": (PROPERTIES, 8),
    "creation_time": (PROPERTIES, 9),
    "group_id": (PROPERTIES, 10),
    "group_sequence": (PROPERTIES, 11),
    "reply_to_group_id": (PROPERTIES, 12),
}
"""What can be asked for -> section, and place in its list."""
_JMS: Final = {
    "JMSDeliveryMode": "delivery_mode",
    "JMSPriority": "priority",
    "JMSMessageID": "message_id",
    "JMSTimestamp": "creation_time",
    "JMSCorrelationID": "correlation_id",
    "JMSType": "subject",
    "JMSDestination": "to",
    "JMSReplyTo": "reply_to",
    "JMSExpiration": "absolute_expiry_time",
    "JMSRedelivered": "redelivered",
    "JMSXGroupID": "group_id",
    "JMSXGroupSeq": "group_sequence",
    "JMSXUserID": "user_id",
    "JMSXDeliveryCount": "deliveries",
}
FIELD_PREFIX: Final = "amqp."
_NAMES: Final = _JMS | {FIELD_PREFIX + field: field for field in _FIELDS if field != "deliveries"}
"""Name in a selector -> field."""
HEADER_FIELDS: Final = frozenset(("durable", "priority", "delivery_count"))
"""The fields of the header that a message has on the wire, as far as selectors read them."""
PROPERTIES_FIELDS: Final = frozenset(field for field, (section, _) in _FIELDS.items() if section == PROPERTIES)
"""The fields of the properties, with _ where AMQP has -."""


def fault_of_name(name: str) -> str:
    """Why no selector can have this name, "" when it can."""
    if name in _NAMES:
        return ""
    if name.startswith(FIELD_PREFIX):
        known = ", ".join(sorted(each for each in _NAMES if each.startswith(FIELD_PREFIX)))
        return f"there is no {name}; there are {known}"
    if name.startswith("JMS") and not name.startswith(("JMSX", "JMS_")):
        known = ", ".join(sorted(_JMS))
        return f"JMS has no header field {name} for selectors; there are {known}"
    return ""


# ---- values

_OTHER: Final = Other()
_NULL, _TRUE, _FALSE, _BOOLEAN = 0x40, 0x41, 0x42, 0x56
_STRING_8, _STRING_32 = 0xA1, 0xB1
_CONSTANTS: Final[dict[int, Value]] = {_NULL: None, _TRUE: Truth.TRUE, _FALSE: Truth.FALSE, 0x43: 0, 0x44: 0}
_NUMBERS: Final = frozenset((0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x60, 0x61, 0x70, 0x71, 0x72, 0x80, 0x81, 0x82, 0x83))
_CHAR: Final = 0x73
_READS: Final[dict[int, Callable[[Encoded, int], Any]]] = {code: FIXED[code] for code in (*_NUMBERS, _CHAR)} | {
    _BOOLEAN: lambda data, position: Truth(FIXED[_BOOLEAN](data, position))
}
_TEXTS: Final = frozenset((_STRING_8, _STRING_32, 0xA3, 0xB3))
_STEPS: Final = {code: WIDTHS[code >> 4] + 1 for code in range(0x40, 0xA0)}
"""Constructor of fixed width -> bytes of it and the value."""


def _value(data: bytes, position: int, stop: int) -> tuple[Value, int]:
    """The value that begins here, and where it ends. Its type is not among `_READS`."""
    code = data[position]
    if code in _CONSTANTS:
        return _CONSTANTS[code], position + 1
    if code in _TEXTS:
        text, position = Reader(data).value(position, stop, 0)
        return str(text), position
    return _OTHER, skip(data, position, stop, 0)


def _text_or_null(raw: Any) -> Value:
    if raw is None or isinstance(raw, str):
        return raw
    raise BadValue(f"a property is a {type(raw).__name__}, but must be a text")


def _number_or(default: int | None) -> Callable[[Any], Value]:
    def number(raw: Any) -> Value:
        if raw is None:
            return default
        if isinstance(raw, int) and not isinstance(raw, bool):
            return raw
        raise BadValue(f"a field is a {type(raw).__name__}, but must be a number")

    return number


def _id_or_null(raw: Any) -> Value:
    """An id as a text: of a number its digits, of a uuid the usual form, of bytes hexadecimal digits."""
    match raw:
        case None | str():
            return raw
        case bytes():
            return raw.hex()
        case UUID() | int() if not isinstance(raw, bool):
            return str(raw)
        case _:
            raise BadValue(f"an id is a {type(raw).__name__}, but must be a number, uuid, binary or string")


def user_text(raw: bytes) -> str:
    """A user's id as its characters; as hexadecimal digits, if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.hex()


def _durable(raw: Any) -> Value:
    if raw is None or isinstance(raw, bool):
        return Truth(bool(raw))
    raise BadValue(f"the field durable is a {type(raw).__name__}, but must be a boolean")


_MEANINGS: Final[dict[str, Callable[[Any], Value]]] = {
    "durable": _durable,
    "delivery_mode": lambda raw: "PERSISTENT" if _durable(raw) is Truth.TRUE else "NON_PERSISTENT",
    "priority": _number_or(4),
    "delivery_count": lambda count: count,
    "redelivered": lambda count: Truth(count > 0),
    "deliveries": lambda count: count + 1,
    "message_id": _id_or_null,
    "user_id": lambda raw: user_text(raw) if isinstance(raw, bytes) else _id_or_null(raw),
    "correlation_id": _id_or_null,
    "absolute_expiry_time": _number_or(0),
    "creation_time": _number_or(None),
    "group_sequence": _number_or(None),
}
"""Field -> what a selector sees of the value in the message (None where there is none). Others are texts.

Of those that count deliveries, the value is how often delivery has failed."""

# ---- plans

_MOST_BYTES: Final = limits.MAX_SELECTOR_SECTION_BYTES
_UINT: Final = struct.Struct(">I").unpack_from
_LISTS: Final = {0x45: 0, 0xC0: 1, 0xD0: 4}
_MAPS: Final = {0xC1: 1, 0xD1: 4}
"""Constructors of lists and maps -> how many bytes their size and their count have each."""
_SHORT: Final = frozenset((0xC0, 0xC1))
_LONG: Final = frozenset((0xD0, 0xD1))
"""Those whose size has one byte, and those whose size has four."""
_DELIVERY_COUNT: Final = 4


class Plan:
    """What to read for these names: each has its place in what `read` returns."""

    __slots__ = ("_application", "_counts", "_defaults", "_header", "_last", "_properties")

    def __init__(self, identifiers: Iterable[Identifier]) -> None:
        self._header: dict[int, list[tuple[int, Callable[[Any], Value]]]] = {}
        self._properties: dict[int, list[tuple[int, Callable[[Any], Value]]]] = {}
        self._application: dict[bytes, list[int]] = {}
        self._defaults: list[Value] = []
        self._last = 0
        for place, identifier in enumerate(identifiers):
            field = None if identifier.is_property else _NAMES.get(identifier.name)
            if field is None:
                self._application.setdefault(identifier.name.encode(), []).append(place)
                self._last = APPLICATION_PROPERTIES
                self._defaults.append(None)
                continue
            section, index = _FIELDS[field]
            meaning = _MEANINGS.get(field, _text_or_null)
            self._last = max(self._last, section)
            (self._header if section == HEADER else self._properties).setdefault(index, []).append((place, meaning))
            self._defaults.append(meaning(0 if index == _DELIVERY_COUNT and section == HEADER else None))
        self._counts = self._header.pop(_DELIVERY_COUNT, [])

    @property
    def counts(self) -> bool:
        """Whether it asks how often delivery has failed."""
        return bool(self._counts)

    def read(self, data: bytes, position: int, end: int, failures: int) -> list[Value]:
        """What the message `data[position:end]` says; `failures`: how often its delivery has failed since it came.

        One of FAULTS when that cannot be read.
        """
        values, last = self._defaults.copy(), self._last
        while position < end:
            if data[position] == 0 and data[position + 1] == 0x53:
                code, value = data[position + 2], position + 3
            else:
                code, value = section_at(data, position, end)
            if code > last:
                break
            kind = data[value]
            if kind in _SHORT:
                position = value + 2 + data[value + 1]
            elif kind in _LONG:
                position = value + 5 + _UINT(data, value + 1)[0]
            else:
                position = skip(data, value, end, 0)
            if position > end:
                raise BadValue(f"the section at byte {value} ends behind the message")
            if code == APPLICATION_PROPERTIES:
                _read_map(data, value, position, self._application, values)
            elif code == PROPERTIES:
                if self._properties:
                    _read_list(data, value, position, self._properties, values)
            elif code == HEADER and (self._header or self._counts):
                counted = _DELIVERY_COUNT if self._counts else -1
                failures += _read_list(data, value, position, self._header, values, counted)
        for place, meaning in self._counts:
            values[place] = meaning(failures)
        return values


def _contents(data: bytes, position: int, stop: int, kinds: dict[int, int]) -> tuple[int, int]:
    """How many items the list or map has that begins here, and where the first one is."""
    if stop - position > _MOST_BYTES:
        raise BadValue(f"a section of {stop - position} bytes is too long for selectors")
    width = kinds.get(data[position], -1)
    if width == 4:
        return _UINT(data, position + 5)[0], position + 9
    if width == 1:
        return data[position + 2], position + 3
    if width < 0:
        raise BadValue(f"the section at byte {position} is of the type {data[position]:#04x}")
    return 0, position + 1


def _read_list(
    data: bytes,
    position: int,
    stop: int,
    wanted: dict[int, list[tuple[int, Callable[[Any], Value]]]],
    values: list[Value],
    counted: int = -1,
) -> int:
    """Read the items that are wanted into their places. Returns the number at the index `counted`, 0 when there is none."""
    count, position = _contents(data, position, stop, _LISTS)
    number, steps = 0, _STEPS
    for index in range(min(count, max((*wanted, counted)) + 1)):
        code = data[position]
        if index in wanted or index == counted:
            raw: Any
            if code in _NUMBERS:
                raw, position = FIXED[code](data, position + 1), position + steps[code]
            else:
                raw, position = Reader(data).value(position, stop, 0)
            for place, meaning in wanted.get(index, ()):
                values[place] = meaning(raw)
            if index == counted:
                found = _number_or(0)(raw)
                assert isinstance(found, int)
                number = found
        elif code in steps:
            position += steps[code]
        else:
            position = skip(data, position, stop, 0)
    if position > stop:
        raise BadValue(f"a list ends at byte {position}, behind {stop} as its size says")
    return number


def _read_map(data: bytes, position: int, stop: int, wanted: dict[bytes, list[int]], values: list[Value]) -> None:
    """Read the values whose keys are wanted into their places; the last one of a key counts."""
    count, position = _contents(data, position, stop, _MAPS)
    if count % 2:
        raise BadValue(f"a map has {count} keys and values, which is odd")
    places_of, steps, reads = wanted.get, _STEPS, _READS
    for _ in range(count // 2):
        if data[position] == _STRING_8:
            begin = position + 2
            position = begin + data[position + 1]
        elif data[position] == _STRING_32:
            begin = position + 5
            position = begin + int.from_bytes(data[position + 1 : begin], "big")
        else:
            raise BadValue(f"the key at byte {position} is not a string")
        if position >= stop:
            raise BadValue(f"the map ends within a key, at byte {stop}")
        places = places_of(data[begin:position])
        code = data[position]
        if code == _STRING_8:
            begin = position + 2
            position = begin + data[position + 1]
            if places is not None:
                text = data[begin:position].decode()
                for place in places:
                    values[place] = text
        elif places is not None:
            if code in reads:
                value: Value = reads[code](data, position + 1)
                position += steps[code]
            else:
                value, position = _value(data, position, stop)
            for place in places:
                values[place] = value
        elif code in steps:
            position += steps[code]
        else:
            position = skip(data, position, stop, 0)
    if position != stop:
        raise BadValue(f"a map ends at byte {position}, and not at {stop} as its size says")
