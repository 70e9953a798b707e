"""What every client's program sends: a message for each type, with the same header and properties, and a large one.

A program `types...  HOST:PORT EXCHANGE QUEUE CHOSEN` sends them to the exchange, each with its name as the application property
`name`; receives them from QUEUE; has that one chosen from CHOSEN whose name its selector wants; and prints, as JSON, `same`: the
names of those that came back as they were sent, header and properties too, and `chosen`: what its selector gave it.
"""

from __future__ import annotations

import uuid
from typing import Any

from proton import (
    UNDESCRIBED,
    Array,
    Data,
    Described,
    byte,
    char,
    decimal32,
    decimal64,
    decimal128,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)

_UNDESCRIBED: Any = UNDESCRIBED
LARGE_BYTES = 3_000_000
LARGE = b"\xa5" * LARGE_BYTES
"""Above what is kept in one piece."""
CHOSEN = "uuid"
VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "ubyte": ubyte(255),
    "ushort": ushort(65_535),
    "uint": uint((1 << 32) - 1),
    "ulong": ulong((1 << 64) - 1),
    "byte": byte(-128),
    "short": short(-32_768),
    "int": int32(-(1 << 31)),
    "long": -(1 << 63),
    "float": float32(0.5),
    "double": -0.25,
    "decimal32": decimal32(0x22F0_0001),
    "decimal64": decimal64(0x2230_0000_0000_0001),
    "decimal128": decimal128(b"\x22\x08" + b"\x01" * 14),
    "char": char("\N{SNOWMAN}"),
    "timestamp": timestamp(1_700_000_000_123),
    "uuid": uuid.UUID(bytes=bytes(range(16))),
    "binary": b"\x00\xff",
    "string": "\N{SNOWMAN} and snow",
    "symbol": symbol("a-symbol"),
    "list": ["one", True, ["nested"]],
    "map": {"one": "first", "two": ["second"]},
    "array": Array(_UNDESCRIBED, Data.INT, int32(1), int32(-2), int32(3)),
    "described": Described(symbol("example:type"), "inner"),
}
HEADER: dict[str, Any] = {"durable": True, "priority": 7, "id": "the id", "correlation_id": "the question", "group_id": "a group"}
HEADER |= {"subject": "a subject", "reply_to": "answers", "content_type": symbol("text/x-made-up"), "group_sequence": 3}
