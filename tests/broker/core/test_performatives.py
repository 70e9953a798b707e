"""Performatives are weighed without being decoded: how many values they hold, how large their maps are, how deep they go."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as some

from broker.core import limits, values
from broker.core.performatives import ATTACH, DETACH, OPEN, Refusal, code_of, echo_in, fields_of, handle_of, sends, uint, weigh
from broker.core.values import BadValue, Counter, TooMuch
from tests.broker.core.stream import EMPTY_LIST, FALSE, NULL, ZERO, listed, mapped

_PLAIN = (
    some.none() | some.booleans() | some.integers(-(1 << 63), (1 << 63) - 1) | some.text(max_size=300) | some.binary(max_size=9)
)
_VALUES = some.recursive(_PLAIN, lambda inner: some.lists(inner, max_size=5) | some.dictionaries(some.text(max_size=5), inner))


def number_of(value: Any) -> int:
    match value:
        case list():
            return 1 + sum(map(number_of, value))
        case dict():
            return 1 + sum(number_of(key) + number_of(each) for key, each in value.items())
        case _:
            return 1


def walked(data: bytes, max_values: int = 1000, max_map_bytes: int = 1000) -> int:
    """How many values there are."""
    counter = Counter(max_values, max_map_bytes)
    assert counter.walk(data, 0, len(data)) == len(data)
    return max_values - counter.left


# ---- counting


@given(_VALUES)
def test_every_value_is_counted_once(value: Any) -> None:
    assert walked(values.encode(value), 100_000, 100_000) == number_of(value)


@given(some.binary(max_size=60))
def test_bytes_of_any_kind_are_walked_within_their_bound_or_refused(data: bytes) -> None:
    counter = Counter(20, 30)
    try:
        assert 0 < counter.walk(data, 0, len(data)) <= len(data)
    except (BadValue, TooMuch):
        return
    assert counter.left >= 0


@given(some.binary(max_size=60))
def test_what_is_walked_to_its_end_is_as_long_as_proton_finds_it(data: bytes) -> None:
    """Whoever decodes after us must not read more of it than we have counted."""
    counter = Counter(1000, 1000)
    try:
        stop = counter.walk(data, 0, len(data))
    except (BadValue, TooMuch):
        return
    try:
        assert proton.Data().decode(data) == stop
    except proton.DataException:
        return  # a type that AMQP does not have, of a width that it has


@pytest.mark.parametrize(
    "data, count",
    [
        (b"\xe0\x02\x05\x43", 6),  # five zeros that take no bytes
        (b"\xe0\x04\x02\x50\x01", 0),
        (b"\xe0\x04\x02\x50\x01\x02", 3),
        (b"\xf0\x00\x00\x00\x05\x00\x00\x00\x00\x40", 1),
        (b"\xe0\x06\x01\x00\x43\x50\x07", 0),
        (b"\xe0\x05\x01\x00\x43\x50\x07", 3),  # one descriptor for all
        (b"\xe0\x07\x02\xa1\x01a\x02bc", 3),
        (b"\xe0\x06\x02\xc0\x01\x00\x01\x00", 3),
        (b"\x00\x53\x24\x45", 3),
        (b"\x94" + bytes(16), 1),
    ],
)
def test_arrays_and_descriptors_count_by_what_comes_out_of_them(data: bytes, count: int) -> None:
    if count:
        assert walked(data) == count
    else:
        with pytest.raises(BadValue):
            walked(data)


def test_an_array_of_four_thousand_million_values_in_ten_bytes_is_too_much() -> None:
    with pytest.raises(TooMuch, match="there may be 1000 values"):
        walked(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x45")


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x10", b"\x70\x00", b"\xa1\x05ab", b"\xc0\x02\x03\x43", b"\xe0\x01\x00", b"\xe0\x02\x01\x00"]
)
def test_what_is_cut_off_or_of_no_type_is_no_value(data: bytes) -> None:
    with pytest.raises(BadValue):
        walked(data)


def test_depth_has_a_bound_for_lists_and_for_descriptors() -> None:
    deep = EMPTY_LIST
    for _ in range(limits.MAX_WALK_DEPTH):
        deep = listed(deep, wide=True)
    assert walked(deep, 1000, 10_000) == limits.MAX_WALK_DEPTH + 1
    for data in (listed(deep), b"\x00" * 100 + b"\x43" * 101):
        with pytest.raises(TooMuch, match="nested"):
            walked(data)


# ---- performatives


def weighed(code: int, *fields: bytes) -> int:
    body = b"\x00\x53" + bytes((code,)) + listed(*fields, wide=True)
    assert code_of(body, 0, len(body)) == (code, 3)
    return weigh(code, body, 3, len(body))


def refused(code: int, *fields: bytes) -> tuple[str, str]:
    with pytest.raises(Refusal) as raised:
        weighed(code, *fields)
    return raised.value.name, raised.value.text


def test_properties_may_have_so_many_values_and_so_many_bytes() -> None:
    key = b"\xa3\x01k"
    most = limits.PERFORMATIVE_VALUES - 1 - 3
    assert weighed(OPEN, key, mapped(key, listed(*[EMPTY_LIST] * most))) > 0
    assert refused(OPEN, key, mapped(key, listed(*[EMPTY_LIST] * (most + 1)))) == (
        "amqp:resource-limit-exceeded",
        "the open has more than this broker takes: there may be 1024 values",
    )
    text = bytes(limits.PERFORMATIVE_MAP_BYTES - 12)
    assert weighed(OPEN, key, mapped(key, b"\xb1" + struct.pack(">I", len(text)) + text)) > 0
    text += b"x"
    name, why = refused(OPEN, key, mapped(key, b"\xb1" + struct.pack(">I", len(text)) + text))
    assert (name, why) == ("amqp:resource-limit-exceeded", "the open has more than this broker takes: a map may have 12288 bytes")


def test_a_performative_has_a_largest_size_whatever_is_in_it() -> None:
    text = bytes(limits.PERFORMATIVE_BYTES)
    assert refused(ATTACH, b"\xb1" + struct.pack(">I", len(text)) + text)[0] == "amqp:resource-limit-exceeded"


def test_the_unsettled_map_of_an_attach_weighs_nothing_for_nobody_decodes_it() -> None:
    many = mapped(*[b"\xa0\x02aa", NULL] * 8000)
    plain = weighed(ATTACH, b"\xa1\x01n", ZERO, FALSE, *[NULL] * 300)
    assert plain == weighed(ATTACH, b"\xa1\x01n", ZERO, FALSE, *[NULL] * 4, many, *[NULL] * 295)
    assert refused(DETACH, b"\xa1\x01n", ZERO, FALSE, *[NULL] * 4, many)[0] == "amqp:resource-limit-exceeded"


def test_a_short_performative_is_looked_through_for_arrays_alone() -> None:
    """What is so short holds few values, and proton says what is wrong with it; but ten bytes of an array may hold any number."""
    assert weighed(DETACH, b"\xff") > 0
    for array in (b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x45", b"\xe0\x03\xff\x45" * 40):
        assert refused(DETACH, *[array] * (len(array) > 4 or 1))[0] in ("amqp:resource-limit-exceeded", "amqp:decode-error")
    assert refused(DETACH, b"\xff" + b"\xe0")[0] == "amqp:decode-error"


@pytest.mark.parametrize(
    "body", [b"", b"\x00\x53\x10", b"\x00\x54\x10\x45", b"\x53\x10\x45\x45", b"\x00\x80" + bytes(8), b"\x00\xa3\x01a\x45"]
)
def test_a_body_that_begins_with_no_performative_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal, match="cannot be decoded"):
        code_of(body, 0, len(body))


def test_the_long_form_of_a_descriptor_is_the_same_performative() -> None:
    body = b"\x00\x80" + struct.pack(">Q", 0x10) + EMPTY_LIST
    assert code_of(body, 0, len(body)) == (0x10, 10)


@pytest.mark.parametrize(
    "encoded", [b"\x40", b"\xc0\x05\x01", b"\xd0\x00\x00", b"\xc0\x00\x00", b"\xd0\x00\x00\x00\x03\x00\x00\x00\x00"]
)
def test_fields_lie_in_a_list_that_ends_within_its_frame(encoded: bytes) -> None:
    with pytest.raises(Refusal):
        fields_of(encoded, 0, len(encoded))


def test_handles_are_read_where_they_can_be() -> None:
    def handle(code: int, *fields: bytes) -> int | None:
        encoded = listed(*fields) if fields else EMPTY_LIST
        return handle_of(code, encoded, 0, len(encoded))

    name = b"\xa1\x01n"
    assert [handle(ATTACH, name, each) for each in (ZERO, b"\x52\x07", b"\x70\x00\x00\x01\x00")] == [0, 7, 256]
    assert handle(DETACH, b"\x52\x07") == 7
    assert [handle(ATTACH), handle(ATTACH, name), handle(ATTACH, b"\xa1\x09n", ZERO), handle(DETACH)] == [None] * 4
    assert [uint(b"\x70\x00", 0, 2), uint(b"\x52", 0, 1), uint(b"\x80", 0, 1)] == [None] * 3


def test_an_attach_is_a_sender_s_unless_its_role_is_true() -> None:
    def role(*fields: bytes) -> bool:
        encoded = listed(b"\xa1\x01n", b"\x52\x07", *fields)
        return sends(encoded, 0, len(encoded))

    assert [role(FALSE), role(b"\x56\x00"), role(NULL), role(), role(ZERO, b"\x41")] == [True] * 5
    assert [role(b"\x41"), role(b"\x56\x01")] == [False] * 2


@given(
    some.binary(max_size=40)
    | some.lists(some.sampled_from([NULL, FALSE, ZERO, b"\x41", b"\x52\x41"]), min_size=9, max_size=11).map(b"".join)
)
def test_an_echo_is_found_where_proton_reads_the_tenth_field(data: bytes) -> None:
    """proton decodes the values one after the other, of whatever types they are."""
    found = echo_in(data, 0, len(data))
    read: Any = proton.Data()
    position = 0
    try:
        for _ in range(10):
            position += read.decode(data[position:])
    except proton.DataException:
        assert found is None
        return
    fields = list(each_of(read))
    expected = fields[9] is True and all(each is None or isinstance(each, (bool, proton.uint)) for each in fields[:9])
    assert (found is not None) == (expected and not isinstance(fields[4], bool))


def each_of(read: Any) -> Iterator[Any]:
    read.rewind()
    while read.next() is not None:
        yield read.get_object()
