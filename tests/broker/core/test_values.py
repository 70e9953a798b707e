"""AMQP values, written and read back, and read by proton, which shares no code with us."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as some

from broker.core import limits
from broker.core.values import BadValue, Symbol, Ulong, decode, encode, items, pairs, symbols

_PLAIN = (
    some.none()
    | some.booleans()
    | some.integers(-(1 << 63), (1 << 64) - 1)
    | some.floats(allow_nan=False)
    | some.text(max_size=300)
    | some.binary(max_size=300)
    | some.uuids()
)
_KEYS = some.text(max_size=20) | some.integers(0, 300)
_VALUES = some.recursive(_PLAIN, lambda inner: some.lists(inner, max_size=5) | some.dictionaries(_KEYS, inner, max_size=5))


def as_proton_reads(data: bytes) -> Any:
    found = proton.Data()
    assert found.decode(data) == len(data)
    found.rewind()
    found.next()
    return _own(found.get_object())


def _own(value: Any) -> Any:
    """With bytes of its own: proton shows its memory, which goes with the data."""
    match value:
        case memoryview():
            return bytes(value)
        case list():
            return [_own(each) for each in value]
        case dict():
            return {key: _own(each) for key, each in value.items()}
        case _:
            return value


@given(_VALUES)
def test_what_is_written_is_read_back_as_the_same(value: Any) -> None:
    assert decode(encode(value)) == value


@given(_VALUES)
def test_proton_reads_the_same_out_of_it(value: Any) -> None:
    assert as_proton_reads(encode(value)) == value


@pytest.mark.parametrize(
    "value,kind",
    [
        (Symbol("name"), proton.symbol),
        ("name", str),
        (Ulong(0), proton.ulong),
        (Ulong(255), proton.ulong),
        (Ulong(256), proton.ulong),
        (7, int),
        (1 << 40, int),
        (1 << 63, proton.ulong),
        (UUID(int=3), UUID),
        (True, bool),
    ],
)
def test_a_value_has_the_type_that_is_meant(value: Any, kind: type) -> None:
    found = as_proton_reads(encode(value))
    assert (type(found), found) == (kind, value)


def test_long_lists_and_maps_have_long_heads() -> None:
    for value in ([1] * 300, ["x" * 200] * 3, {str(number): number for number in range(200)}, (), []):
        assert decode(encode(value)) == as_proton_reads(encode(value)) == (list(value) if isinstance(value, tuple) else value)
    assert decode(items([encode(1), encode("a")])) == [1, "a"]


def test_capabilities_are_an_array_of_symbols() -> None:
    found = as_proton_reads(symbols(["ONE", "two"]))
    assert (found.type, list(found.elements)) == (proton.Data.SYMBOL, ["ONE", "two"])
    assert decode(symbols(["ONE", "two"])) == ["ONE", "two"]


@pytest.mark.parametrize(
    "value,error", [(object(), TypeError), ([{1, 2}], TypeError), (1 << 64, ValueError), (Ulong(-1), ValueError)]
)
def test_what_amqp_has_no_type_for_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="AMQP has no type"):
        encode(value)


def test_a_value_of_a_kind_of_a_known_type_is_written_as_that_type() -> None:
    class Text(str):
        pass

    assert encode(Text("a")) == encode("a")


@pytest.mark.parametrize("data", [b"", b"\xa1\x05abc", encode(1) + b"\x40", b"\xb1\xff\xff\xff\xff", b"\xa1\x01\xff"])
def test_bytes_that_are_no_value_or_more_than_one_are_refused(data: bytes) -> None:
    with pytest.raises(BadValue):
        decode(data)


def test_the_number_of_values_that_are_read_is_bounded() -> None:
    assert decode(encode([1, 2]), max_values=3) == [1, 2]
    with pytest.raises(BadValue, match="more than 2 values"):
        decode(encode([1, 2]), max_values=2)


_ALIKE = (1 << 61) - 1
"""Numbers that differ by this have the same hash."""


def _map_of(keys: list[bytes]) -> bytes:
    """A map of these encoded keys, each with a value of null."""
    return pairs([piece for key in keys for piece in (key, encode(None))], 0, b"")


def test_keys_that_a_client_can_choose_with_the_same_hash_are_few() -> None:
    chosen = [UUID(int=at * _ALIKE) for at in range(1, limits.MAX_OTHER_KEYS + 2)]
    assert len(set(map(hash, chosen))) == 1
    encoded = list(map(encode, chosen))
    assert decode(_map_of(encoded[:-1])) == dict.fromkeys(chosen[:-1])
    with pytest.raises(BadValue, match=f"more than {limits.MAX_OTHER_KEYS} keys of maps"):
        decode(_map_of(encoded))
    with pytest.raises(BadValue, match=f"more than {limits.MAX_OTHER_KEYS} keys of maps"):
        decode(items([_map_of(encoded[:-1]), _map_of(encoded[-1:])]))


def test_keys_of_text_and_binary_may_be_as_many_as_values() -> None:
    many = [str(at) for at in range(2 * limits.MAX_OTHER_KEYS)]
    mixed = [*many, *(each.encode() for each in many), 1]
    assert decode(_map_of(list(map(encode, mixed)))) == dict.fromkeys(mixed)


def test_what_a_key_consists_of_counts() -> None:
    """Lists of -1 and -2 have the same hash, and are compared item by item."""
    long = [-1] * (limits.MAX_OTHER_KEYS - 1)
    assert decode(_map_of([encode(long)])) == {tuple(long): None}
    with pytest.raises(BadValue, match="keys of maps"):
        decode(_map_of([encode([*long, -2])]))
    assert decode(_map_of([encode({"a": [1], "b": 2})])) == {(("a", (1,)), ("b", 2)): None}
