"""AMQP 1.0 values as bytes: reading and writing them (AMQP 1.0 part 1, section 1.6).

Python types of read values: integers, timestamps (ms since 1970) and decimal32/64 (their bits) `int`; float and double `float`;
string, symbol and char `str`; binary and decimal128 (its bits) `bytes`; `uuid.UUID`; lists and arrays `list`; maps `dict`; null
`None`; of a described value, the value. Written values become null, boolean, long (ulong if the number is too large for that),
double, string, binary, uuid, list or map; `Symbol` and `Ulong` are for the types that plain Python types cannot express.

Invariants: bytes that are not a value give BadValue with a text, and no other error; nesting, and the numbers of decoded values
and of unusual keys, are limited, so that a few bytes cannot cost much memory, stack or time; a written value is read back as the
same value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from broker.core import limits

Encoded: TypeAlias = bytes | bytearray | memoryview
Span: TypeAlias = tuple[int, int]

NULL = b"\x40"
_LARGEST_LONG = (1 << 63) - 1
_LARGEST_ULONG = (1 << 64) - 1
_SMALLEST_LONG = -(1 << 63)


class BadValue(ValueError):
    """These bytes are not valid. The text names the fault and its place."""


class Symbol(str):
    """Text that goes out as an AMQP symbol: ASCII, a name out of some standard."""

    __slots__ = ()


class Ready(bytes):
    """The bytes of a value that is encoded already: they go out as they are."""

    __slots__ = ()


class Ulong(int):
    """A number that goes out as an AMQP ulong, as those in message ids must."""

    __slots__ = ()


# ---- writing


def encode(value: Any) -> bytes:
    """Encode a value. TypeError if AMQP has no type for it, ValueError for a number that is too large for all types."""
    write = _WRITERS.get(type(value))
    if write is None:
        write = next((writer for kind, writer in _WRITERS.items() if isinstance(value, kind)), None)
        if write is None:
            raise TypeError(f"AMQP has no type for {value!r:.80}, a {type(value).__name__}")
    return write(value)


def symbols(names: Iterable[str]) -> bytes:
    """An array of symbols, as AMQP uses it for capabilities."""
    encoded = [name.encode("ascii") for name in names]
    items = b"".join(struct.pack(">I", len(each)) + each for each in encoded)
    return struct.pack(">BIIB", 0xF0, len(items) + 5, len(encoded), 0xB3) + items


def items(fields: Iterable[bytes]) -> bytes:
    """A list of values that are encoded already."""
    fields = list(fields)
    return _sealed(0xC0, len(fields), fields) if fields else b"\x45"


def pairs(pieces: list[bytes], n_more: int, more: bytes) -> bytes:
    """A map of keys and values that are encoded already, one after the other; `more` is the last `n_more` of them, end to end."""
    return _sealed(0xC1, len(pieces) + n_more, [*pieces, more])


def _sealed(code: int, count: int, pieces: list[bytes]) -> bytes:
    """A list or a map: its type, size and count before its items, in one byte each where they fit. `code` is the short one."""
    body = b"".join(pieces)
    if len(body) < 255 and count < 256:
        return bytes((code, len(body) + 1, count)) + body
    return struct.pack(">BII", code + 0x10, len(body) + 4, count) + body


def _long(value: int) -> bytes:
    if -128 <= value < 128:
        return struct.pack(">Bb", 0x55, value)
    return struct.pack(">Bq", 0x81, value) if _SMALLEST_LONG <= value <= _LARGEST_LONG else _ulong(value)


def _ulong(value: int) -> bytes:
    if not 0 <= value <= _LARGEST_ULONG:
        raise ValueError(f"AMQP has no type for a number like {value}")
    if value == 0:
        return b"\x44"
    return bytes((0x53, value)) if value < 256 else struct.pack(">BQ", 0x80, value)


def _sized_writer(code: int, encoding: str = "") -> Callable[[Any], bytes]:
    """Writes a size, then the value; `code` is the code of the short form, whose size is one byte."""
    short = [bytes((code, size)) for size in range(256)]

    def write(value: Any) -> bytes:
        data: bytes = value.encode(encoding) if encoding else value
        size = len(data)
        return short[size] + data if size < 256 else struct.pack(">BI", code + 0x10, size) + data

    return write


def _map(value: dict[Any, Any]) -> bytes:
    pieces: list[bytes] = []
    writer_of = _WRITERS.get
    for key, each in value.items():
        pieces += (writer_of(type(key), encode)(key), writer_of(type(each), encode)(each))
    return _sealed(0xC1, len(pieces), pieces)


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: NULL,
    bool: lambda value: b"\x41" if value else b"\x42",
    Ulong: _ulong,
    int: _long,
    float: lambda value: struct.pack(">Bd", 0x82, value),
    Symbol: _sized_writer(0xA3, "ascii"),
    str: _sized_writer(0xA1, "utf-8"),
    bytes: _sized_writer(0xA0),
    Ready: lambda value: value,
    UUID: lambda value: b"\x98" + value.bytes,
    dict: _map,
    list: lambda value: items(map(encode, value)),
    tuple: lambda value: items(map(encode, value)),
}
"""By type; of a value whose own type is not here, the first that it is an instance of."""


# ---- reading


def decode(data: Encoded, max_values: int = limits.MAX_AMQP_ITEMS) -> Any:
    """The one value that these bytes are. BadValue."""
    value, stop = Reader(data, max_values).value(0, len(data), 0)
    if stop != len(data):
        raise BadValue(f"there are {len(data) - stop} bytes behind the value")
    return value


class Described(NamedTuple):
    """A value with its descriptor: None when it has none; of several, the outermost."""

    descriptor: Any
    value: Any


def described(data: Encoded, position: int, end: int) -> tuple[Described, int]:
    """The value at `position` with its descriptor, and where it ends. BadValue."""
    reader, descriptor = Reader(data), None
    if position < end and data[position] == 0:
        descriptor, position = reader.value(position + 1, end, 0)
    value, stop = reader.value(position, end, 0)
    return Described(descriptor, value), stop


def described_items(data: Encoded) -> list[Described]:
    """The items of the one list that these bytes are, with their descriptors. BadValue."""
    if data[:1] not in (b"\xc0", b"\xd0"):
        decode(data)
        return []
    start, stop = _sized(data, data[0], 1, len(data))
    position, found = start + SIZE_WIDTHS[data[0] >> 4], []
    while position < stop:
        item, position = described(data, position, stop)
        found.append(item)
    return found


def _cut(position: int, nbytes: int, end: int) -> BadValue:
    return BadValue(f"the value at byte {position} needs {nbytes} more bytes, but only {max(0, end - position)} are left for it")


WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""Upper half of a constructor of fixed width -> bytes of the value (1.6)."""
SIZE_WIDTHS = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}
"""Upper half of any other constructor -> bytes of the size field before the value."""


def _sized(data: Encoded, code: int, position: int, end: int) -> Span:
    """Where the contents of a value with a size before it lie; `position` is behind the type code."""
    width = SIZE_WIDTHS[code >> 4]
    start = position + width
    if start > end:
        raise _cut(position, width, end)
    stop = start + int.from_bytes(data[position:start], "big")
    if stop > end:
        raise _cut(start, stop - start, end)
    if code >= 0xC0 and stop - start < width:
        raise BadValue(f"the compound value at byte {position} has a size of {stop - start}, too small for its own count")
    return start, stop


def skip(data: Encoded, position: int, end: int, depth: int) -> int:
    """Where the value that begins at `position` ends, by its type's width or its own size (1.6, "type constructors")."""
    if position >= end:
        raise _cut(position, 1, end)
    code = data[position]
    position += 1
    if code == 0:
        if depth >= limits.MAX_AMQP_DEPTH:
            raise BadValue(f"values are nested more than {limits.MAX_AMQP_DEPTH} deep at byte {position}")
        return skip(data, skip(data, position, end, depth + 1), end, depth + 1)
    width = WIDTHS.get(code >> 4)
    if width is not None:
        if position + width > end:
            raise _cut(position, width, end)
        return position + width
    if code >= 0xA0:
        return _sized(data, code, position, end)[1]
    raise BadValue(f"there is no type with the code {code:#04x} (byte {position - 1})")


class TooMuch(ValueError):
    """These bytes have more or larger values than allowed. The text names the limit."""


class Counter:
    """Walks over values and counts them, without making objects. There is one for each limited thing. `left`: how many further
    values are allowed. A described value counts as three (itself, its descriptor, and its value). An array counts as many
    elements as it claims, because elements may have no bytes. `max_map_bytes`: the largest map, with its keys and values.
    """

    __slots__ = ("_max_map_bytes", "_max_values", "left")

    def __init__(self, max_values: int, max_map_bytes: int) -> None:
        self.left = self._max_values = max_values
        self._max_map_bytes = max_map_bytes

    def walk(self, data: Encoded, position: int, end: int, depth: int = 0) -> int:
        """Where the value that begins at `position` ends. BadValue, TooMuch."""
        if position >= end:
            raise _cut(position, 1, end)
        self._count(1)
        code = data[position]
        if code == 0:
            depth = _deeper_walk(depth, position)
            return self.walk(data, self.walk(data, position + 1, end, depth), end, depth)
        return self._contents(data, code, position + 1, end, depth)

    def _count(self, values: int) -> None:
        if values > self.left:
            raise TooMuch(f"there may be {self._max_values} values")
        self.left -= values

    def _contents(self, data: Encoded, code: int, position: int, end: int, depth: int) -> int:
        """The same for a value whose type code has been read."""
        width = WIDTHS.get(code >> 4)
        if width is not None:
            if position + width > end:
                raise _cut(position, width, end)
            return position + width
        if code < 0xA0:
            raise BadValue(f"there is no type with the code {code:#04x} (byte {position - 1})")
        start, stop = _sized(data, code, position, end)
        if code < 0xC0:
            return stop
        if code in (0xC1, 0xD1) and stop - start > self._max_map_bytes:
            raise TooMuch(f"a map may have {self._max_map_bytes} bytes")
        depth = _deeper_walk(depth, position)
        position = start + SIZE_WIDTHS[code >> 4]
        count = int.from_bytes(data[start:position], "big")
        if code >= 0xE0:
            position = self._elements(data, count, position, stop, depth)
        else:
            for _ in range(count):
                position = self.walk(data, position, stop, depth)
        if position != stop:
            raise BadValue(f"the {count} values at byte {start} end at byte {position}, and not at {stop} as their size says")
        return position

    def _elements(self, data: Encoded, count: int, position: int, stop: int, depth: int) -> int:
        """The constructor of an array, which all elements share, and the elements."""
        while position < stop and data[position] == 0:
            position = self.walk(data, position + 1, stop, depth)
        if position >= stop:
            raise _cut(position, 1, stop)
        code = data[position]
        position += 1
        self._count(count)
        width = WIDTHS.get(code >> 4)
        if width is not None:
            return position + count * width
        for _ in range(count):
            position = self._contents(data, code, position, stop, depth)
        return position


def _deeper_walk(depth: int, position: int) -> int:
    if depth >= limits.MAX_WALK_DEPTH:
        raise TooMuch(f"values may be nested {limits.MAX_WALK_DEPTH} deep (byte {position})")
    return depth + 1


def _number(layout: str) -> Callable[[Encoded, int], Any]:
    unpack = struct.Struct(layout).unpack_from
    return lambda data, position: unpack(data, position)[0]


def _boolean(data: Encoded, position: int) -> bool:
    if data[position] > 1:
        raise BadValue(f"the boolean at byte {position} is {data[position]}, not 0 or 1")
    return data[position] == 1


def _char(data: Encoded, position: int) -> str:
    point = int.from_bytes(data[position : position + 4], "big")
    if point > 0x10FFFF or 0xD800 <= point < 0xE000:
        raise BadValue(f"the char at byte {position} is {point:#x}, which is not a Unicode character")
    return chr(point)


FIXED: dict[int, Callable[[Encoded, int], Any]] = {
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
"""Constructor of fixed width -> the function that reads its value."""
_CONSTANTS = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_TEXT_ALONE = frozenset((str,))
_SECRETLY_HASHED = frozenset((str, bytes))
_TEXT = {0xA1: "utf-8", 0xB1: "utf-8", 0xA3: "ascii", 0xB3: "ascii"}


class Reader:
    """Decodes values, and counts them against the bound. One for each section of a message."""

    __slots__ = ("_data", "_max_values", "_n_keys", "_n_values")

    def __init__(self, data: Encoded, max_values: int = limits.MAX_AMQP_ITEMS) -> None:
        self._data = data
        self._max_values = max_values
        self._n_keys = 0
        """Values that were used as keys, or as parts of keys, and whose hashes can be foreseen."""
        self._n_values = 0

    def value(self, position: int, end: int, depth: int) -> tuple[Any, int]:
        """The value at `position`, and where it ends; no byte from `end` on is part of it."""
        self._count(1)
        return self._value(position, end, depth)

    def _count(self, n_values: int) -> None:
        """So many values more are about to be read."""
        self._n_values += n_values
        if self._n_values > self._max_values:
            raise BadValue(f"there are more than {self._max_values} values in one section")

    def _value(self, position: int, end: int, depth: int) -> tuple[Any, int]:
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
            position = skip(self._data, position, end, depth)
            depth = self._deeper(depth, position)

    def _value_of(self, code: int, position: int, end: int, depth: int) -> tuple[Any, int]:
        if code in _CONSTANTS:
            return _CONSTANTS[code], position
        read = FIXED.get(code)
        if read is not None:
            width = WIDTHS[code >> 4]
            if position + width > end:
                raise _cut(position, width, end)
            return read(self._data, position), position + width
        if code in (0xA0, 0xB0):
            start, stop = _sized(self._data, code, position, end)
            return bytes(self._data[start:stop]), stop
        if code in _TEXT:
            start, stop = _sized(self._data, code, position, end)
            return _text(self._data, start, stop, _TEXT[code]), stop
        if code in (0xC0, 0xD0, 0xC1, 0xD1, 0xE0, 0xF0):
            start, stop = _sized(self._data, code, position, end)
            width = SIZE_WIDTHS[code >> 4]
            count = int.from_bytes(self._data[start : start + width], "big")
            return self._compound(code, count, start + width, stop, self._deeper(depth, position)), stop
        raise BadValue(f"there is no type with the code {code:#04x} (byte {position - 1})")

    def _compound(self, code: int, count: int, position: int, stop: int, depth: int) -> Any:
        self._count(count)
        start, items = position, []
        if code in (0xE0, 0xF0):
            constructor, position = self._constructor(position, stop, depth)
            for _ in range(count):
                item, position = self._value_of(constructor, position, stop, depth)
                items.append(item)
        else:
            position = self._items(items, count, position, stop, depth)
        if position != stop:
            raise BadValue(f"the {count} values at byte {start} end at byte {position}, and not at {stop} as their size says")
        if code not in (0xC1, 0xD1):
            return items
        if count % 2:
            raise BadValue(f"the map at byte {start} has {count} keys and values, which is odd")
        keys = items[::2]
        if not _TEXT_ALONE.issuperset(map(type, keys)):
            keys = list(map(self._key, keys))
        return dict(zip(keys, items[1::2], strict=True))

    def _items(self, items: list[Any], count: int, position: int, stop: int, depth: int) -> int:
        """Read the items of a list or map; the most usual ones right here, without a call for each. Returns where they end."""
        data, constants, fixed, widths = self._data, _CONSTANTS, FIXED, WIDTHS
        for _ in range(count):
            code = data[position] if position < stop else 0
            if code in constants:
                items.append(constants[code])
                position += 1
            elif code == 0xA1 and position + 1 < stop and (after := position + 2 + data[position + 1]) <= stop:
                items.append(_text(data, position + 2, after, "utf-8"))
                position = after
            elif code in fixed and (after := position + 1 + widths[code >> 4]) <= stop:
                items.append(fixed[code](data, position + 1))
                position = after
            else:
                item, position = self._value(position, stop, depth)
                items.append(item)
        return position

    def _key(self, key: Any) -> Hashable:
        """A map's key. Text and binary have hashes with a secret of this process. Of other keys a client could choose thousands
        with the same hash, each of which would be compared with all others, so there may be few of them."""
        return key if type(key) in _SECRETLY_HASHED else self._hashable(key)

    def _hashable(self, key: Any) -> Hashable:
        """Lists and maps may be keys in AMQP, but not in Python."""
        self._n_keys += 1
        if self._n_keys > limits.MAX_OTHER_KEYS:
            raise BadValue(f"there are more than {limits.MAX_OTHER_KEYS} keys of maps that are neither text nor binary")
        if isinstance(key, list):
            return tuple(map(self._hashable, key))
        if isinstance(key, dict):
            return tuple((name, self._hashable(value)) for name, value in key.items())
        result: Hashable = key
        return result

    @staticmethod
    def _deeper(depth: int, position: int) -> int:
        if depth >= limits.MAX_AMQP_DEPTH:
            raise BadValue(f"values are nested more than {limits.MAX_AMQP_DEPTH} deep at byte {position}")
        return depth + 1


def _text(data: Encoded, start: int, stop: int, encoding: str) -> str:
    try:
        return str(data[start:stop], encoding)
    except UnicodeDecodeError as error:
        raise BadValue(f"the text at byte {start} is not {encoding.upper()}: {error.reason}") from None
