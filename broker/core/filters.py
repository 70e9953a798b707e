"""The filters that a client requests for a source: a map of names to values (AMQP 1.0 part 3.5.8).

The descriptor of a filter, a symbol or a number, defines its kind. Its key in the map is a name of the client's choice. For a
filter without a descriptor, which clients of AMQP 1.0's drafts sent, the key defines the kind. Source of the names and numbers:
the registered filters of Apache Qpid (`apache-filters`), and AMQP Filter Expressions Version 1.0.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from broker.core.values import SIZE_WIDTHS, BadValue, Encoded, Reader, skip

SELECTOR: Final = "apache.org:selector-filter:string"
NO_LOCAL: Final = "apache.org:no-local-filter:list"
SQL: Final = "amqp:sql-filter"
PROPERTIES: Final = "amqp:properties-filter"
APPLICATION_PROPERTIES: Final = "amqp:application-properties-filter"
DIRECT_BINDING: Final = "apache.org:legacy-amqp-direct-binding:string"
TOPIC_BINDING: Final = "apache.org:legacy-amqp-topic-binding:string"
HEADERS_BINDING: Final = "apache.org:legacy-amqp-headers-binding:map"
BINDINGS: Final = frozenset((DIRECT_BINDING, TOPIC_BINDING, HEADERS_BINDING))
"""Filters that are the binding of a link's queue."""
_BY_NUMBER: Final = {
    0x120: SQL,
    0x173: PROPERTIES,
    0x174: APPLICATION_PROPERTIES,
    0x0000468C_00000000: DIRECT_BINDING,
    0x0000468C_00000001: TOPIC_BINDING,
    0x0000468C_00000002: HEADERS_BINDING,
    0x0000468C_00000003: NO_LOCAL,
    0x0000468C_00000004: SELECTOR,
}


class Filter(NamedTuple):
    """A filter: its kind, and its value."""

    name: str
    value: Any


def filters_of(data: Encoded) -> list[Filter]:
    """The filters that these bytes are, a map or any other value, which has none. BadValue when they cannot be read."""
    end = len(data)
    if skip(data, 0, end, 0) != end:
        raise BadValue("there are bytes behind the filters")
    if data[0] not in (0xC1, 0xD1):
        return []
    width = SIZE_WIDTHS[data[0] >> 4]
    position = 1 + 2 * width
    reader = Reader(data)
    found: list[Filter] = []
    for _ in range(int.from_bytes(data[1 + width : position], "big") // 2):
        name, position = reader.value(position, end, 1)
        if position < end and data[position] == 0:
            descriptor, _ = reader.value(position + 1, end, 2)
            name = _BY_NUMBER.get(descriptor, descriptor) if isinstance(descriptor, int) else descriptor
        value, position = reader.value(position, end, 1)
        found.append(Filter(hex(name) if isinstance(name, int) else str(name), value))
    return found
