"""What a source's filters are, by their descriptors, and by their keys where they have none."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core.filters import HEADERS_BINDING, NO_LOCAL, SELECTOR, Filter, filters_of
from broker.core.values import BadValue, encode


def encoded(filters: dict[Any, Any]) -> bytes:
    data: Any = proton.Data()
    data.put_dict(filters)
    return bytes(data.encode())


def test_a_filter_is_what_its_descriptor_says_whatever_its_key_is() -> None:
    described: dict[Any, Any] = {
        proton.symbol("jms-selector"): proton.Described(proton.ulong(0x468C00000004), "a = 1"),
        proton.symbol("mine"): proton.Described(proton.symbol(SELECTOR), "b = 1"),
        proton.symbol("no-local"): proton.Described(proton.ulong(0x468C00000003), [1]),
        proton.symbol("other"): proton.Described(proton.ulong(0x77), "x"),
    }
    found = filters_of(encoded(described))
    assert sorted(found, key=repr) == [
        Filter("0x77", "x"),
        Filter(NO_LOCAL, [1]),
        Filter(SELECTOR, "a = 1"),
        Filter(SELECTOR, "b = 1"),
    ]


def test_a_filter_without_a_descriptor_is_what_its_key_says() -> None:
    assert filters_of(encode({HEADERS_BINDING: {"k": 1}, "x": 2})) == [Filter(HEADERS_BINDING, {"k": 1}), Filter("x", 2)]
    assert filters_of(encode({f"k{n}": "." * 90 for n in range(3)}))[2] == Filter("k2", "." * 90)


def test_what_is_no_map_is_no_filter() -> None:
    nothing: list[Any] = [None, [1], "text", {}]
    for value in nothing:
        assert filters_of(encode(value)) == []


@pytest.mark.parametrize(
    "data", [b"\xc1\x02\x02\x40", b"\xc1\x03\x02\x40\x00", b"\xc1\x01\x00\x40", b"\xc1\x03\x04\x40\x40", b"\xc1\x00"]
)
def test_filters_that_cannot_be_read_are_a_fault(data: bytes) -> None:
    with pytest.raises(BadValue):
        filters_of(data)
