"""The fields of a message that a selector names. No others are read.

Names of fields are those of JMS (`JMSPriority`) and those of Qpid's brokers (`amqp.priority`); see `_NAMES`. Any other name is an
application property, with its type in the message: numbers, texts (strings, symbols, chars) and booleans are values; null and
missing properties are NULL; all other types of AMQP (binary, uuid, decimals, lists, maps, arrays, described values) are an
`Other`: not NULL, and equal to nothing.

Life of a reading: a `Plan` is made once from the names of a selector. `read` steps over sections by their sizes, up to the last
one that is needed, and decodes the requested values. Once a plan has read many messages with the same number of properties, a
regular expression steps over those in the usual form (broker.core.selector.usual).

Invariants: both ways give the same; at most `limits.MAX_SELECTOR_SECTION_BYTES` of a section are read; bytes that cannot be read
give one of FAULTS, and no other error; no returned value contains bytes after the end of the message; a fault has no effect if it
is after the last section that is needed, or in a value that is not requested and not in the structure of a section that is read.

Source: AMQP 1.0 parts 3.2.1 (header), 3.2.4 (properties), 3.2.5 (application properties); JMS 2.0 section 3.8.1.1.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

from broker.core import limits
from broker.core.message import APPLICATION_PROPERTIES, HEADER, PROPERTIES, section_at
from broker.core.selector import usual
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


def _property(data: bytes, position: int, stop: int) -> Value:
    """The value of a property that begins here, in a map that ends at `stop`."""
    code = data[position]
    if code == _STRING_8:
        return data[position + 2 : position + 2 + data[position + 1]].decode()
    if code in _READS:
        value: Value = _READS[code](data, position + 1)
        return value
    if code in _CONSTANTS:
        return _CONSTANTS[code]
    if code in _TEXTS:
        return str(Reader(data).value(position, stop, 0)[0])
    return _OTHER


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
_TWO_UINTS: Final = struct.Struct(">II").unpack_from
_DELIVERY_COUNT: Final = 4
WORTH: Final = 1000
"""Making an expression takes as long as about so many messages gain by it."""
_COUNTS: Final = 8
"""Numbers of properties that a plan learns at most."""
_HEADERS: Final = 64
"""Headers that a plan remembers at most."""


class Plan:
    """What to read for these names: each has its place in what `read` returns."""

    __slots__ = (
        "_application",
        "_counted",
        "_counts",
        "_defaults",
        "_fields",
        "_groups",
        "_header",
        "_headers",
        "_last",
        "_properties",
        "_seen",
        "_usual",
    )

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
        self._counted = _DELIVERY_COUNT if self._counts else -1
        self._fields = bool(self._header or self._properties or self._counts)
        usable = len(self._application) <= usual.MAX_NAMES and max(map(len, self._application), default=0) < usual.MAX_NAME_BYTES
        groups = enumerate(self._application.values() if usable else (), 1)
        self._groups = [(group, place) for group, places in groups for place in places]
        """Groups of an expression, and the places of their values."""
        self._usual: dict[int, Callable[[bytes, int, int], re.Match[bytes] | None]] = {}
        """Keys and values in a message -> what reads so many of the usual form."""
        self._seen: Counter[int] = Counter()
        """Keys and values -> messages with so many, before there is something that reads them."""
        self._headers: dict[bytes, tuple[list[tuple[int, Value]], int]] = {}
        """Header -> the values of places, and how often delivery has failed."""

    @property
    def counts(self) -> bool:
        """Whether it asks how often delivery has failed."""
        return bool(self._counts)

    def read(self, data: bytes, position: int, end: int, failures: int) -> list[Value]:
        """What the message `data[position:end]` says; `failures`: how often its delivery has failed since it came.

        One of FAULTS when that cannot be read.
        """
        if not self._groups:
            return self._step(data, position, end, failures)
        before = usual.before(data, position, end)
        kind, at = before.lastindex, before.end()
        if kind == usual.LONG_MAP:
            size, count = _TWO_UINTS(data, at)
            begin, stop = at + 8, at + 4 + size
        elif kind == usual.SHORT_MAP:
            begin, stop, count = at + 2, at + 1 + data[at], data[at + 1]
        else:
            return self._step(data, position, end, failures)
        match = self._usual.get(count)
        if match is None:
            self._learn(count)
            return self._step(data, position, end, failures)
        items = match(data, begin, stop)
        if items is None or stop > end:
            return self._step(data, position, end, failures)
        values = self._defaults.copy()
        if self._fields:
            self._read_fields(data, before, failures, values)
        start = items.start
        for group, place in self._groups:
            at = start(group)
            if at >= 0:
                if data[at] == _STRING_8:
                    values[place] = data[at + 2 : at + 2 + data[at + 1]].decode()
                else:
                    values[place] = _property(data, at, stop)
        return values

    def _read_fields(self, data: bytes, before: re.Match[bytes], failures: int, values: list[Value]) -> None:
        """Read the fields of the header and of the properties into their places."""
        if self._header or self._counts:
            header = before[usual.HEADER]
            if header is not None:
                failures += self._read_header(header, values)
        if self._properties:
            properties = before[usual.PROPERTIES]
            if properties is not None:
                _read_list(properties, usual.SECTION_HEAD, len(properties), self._properties, values)
        for place, meaning in self._counts:
            values[place] = meaning(failures)

    def _read_header(self, header: bytes, values: list[Value]) -> int:
        """Read a header into its places. Returns how often delivery has failed. Most messages have one of a few headers."""
        known = self._headers.get(header)
        if known is None:
            read = self._defaults.copy()
            number = _read_list(header, usual.SECTION_HEAD, len(header), self._header, read, self._counted)
            if len(self._headers) == _HEADERS:
                self._headers.clear()
            known = self._headers[header] = [(place, read[place]) for each in self._header.values() for place, _ in each], number
        for place, value in known[0]:
            values[place] = value
        return known[1]

    def _learn(self, count: int) -> None:
        """A message has so many keys and values. If many have, an expression that reads them is worth its making."""
        if count % 2 or count > 2 * usual.MAX_PAIRS or (len(self._seen) == _COUNTS and count not in self._seen):
            return
        self._seen[count] += 1
        if self._seen[count] == WORTH:
            self._usual[count] = usual.properties(tuple(self._application), count // 2).fullmatch

    def _step(self, data: bytes, position: int, end: int, failures: int) -> list[Value]:
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
                break
            if code == PROPERTIES:
                if self._properties:
                    _read_list(data, value, position, self._properties, values)
            elif code == HEADER and (self._header or self._counts):
                failures += _read_list(data, value, position, self._header, values, self._counted)
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
    steps = _STEPS
    found: dict[bytes, int] = {}
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
        key, code = data[begin:position], data[position]
        if key in wanted:
            found[key] = position
        if code == _STRING_8:
            position += 2 + data[position + 1]
        elif code in steps:
            position += steps[code]
        else:
            position = skip(data, position, stop, 0)
    if position != stop:
        raise BadValue(f"a map ends at byte {position}, and not at {stop} as its size says")
    for key, position in found.items():
        value = _property(data, position, stop)
        for place in wanted[key]:
            values[place] = value
