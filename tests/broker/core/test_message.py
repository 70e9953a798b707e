"""Sections read from encoded bytes, against proton's own codec, and against bytes that are not a message."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import proton
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.core import arrivals, limits, message
from broker.core.message import BadMessage, Header
from broker.core.values import skip

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ADDRESSES = TEXT.filter(lambda text: "\0" not in text)  # which ends a string in C
SYMBOLS = st.text(st.characters(max_codepoint=127, min_codepoint=32), max_size=30).map(proton.symbol)
ULONGS = st.integers(0, 2**64 - 1).map(proton.ulong)
BINARY = st.binary(max_size=30) | st.sampled_from([b"x" * 255, b"x" * 256, b"x" * 70_000])
IDS = st.none() | ULONGS | st.uuids() | BINARY | TEXT
UNDESCRIBED: Any = proton.UNDESCRIBED
SIMPLE = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | ULONGS
    | st.integers(0, 2**32 - 1).map(proton.uint)
    | st.integers(-(2**31), 2**31 - 1).map(proton.int32)
    | st.integers(0, 2**16 - 1).map(proton.ushort)
    | st.integers(-(2**15), 2**15 - 1).map(proton.short)
    | st.integers(0, 255).map(proton.ubyte)
    | st.integers(-128, 127).map(proton.byte)
    | st.floats(allow_nan=False)
    | st.floats(allow_nan=False, width=32).map(proton.float32)
    | st.integers(-(2**63), 2**63 - 1).map(proton.timestamp)
    | st.integers(0, 2**32 - 1).map(proton.decimal32)
    | st.integers(0, 2**64 - 1).map(proton.decimal64)
    | st.binary(min_size=16, max_size=16).map(proton.decimal128)
    | st.characters(exclude_categories=["Cs"], exclude_characters="\0").map(proton.char)
    | st.uuids()
    | BINARY
    | TEXT
    | SYMBOLS
)
NESTED = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT, inner, max_size=4)
        | st.builds(proton.Described, SYMBOLS, SIMPLE)
        | st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4).map(
            lambda items: proton.Array(UNDESCRIBED, proton.Data.INT, *items)
        )
        | st.lists(TEXT, max_size=4).map(lambda items: proton.Array(proton.symbol("d"), proton.Data.STRING, *items))
    ),
    max_leaves=8,
)


@st.composite
def messages(draw: st.DrawFn) -> proton.Message:
    made: Any = proton.Message(body=draw(st.none() | TEXT | BINARY | st.lists(SIMPLE, max_size=3)))
    made.inferred = draw(st.booleans())
    made.durable = draw(st.booleans())
    made.priority = draw(st.integers(0, 255))
    made.ttl = draw(st.just(0) | st.integers(0, 2**32 - 1)) / 1000
    made.first_acquirer = draw(st.booleans())
    made.delivery_count = draw(st.just(0) | st.integers(0, 2**31 - 1))
    made.id, made.correlation_id = draw(IDS), draw(IDS)
    made.address, made.subject, made.reply_to, made.group_id = (draw(st.none() | TEXT) for _ in range(4))
    made.user_id = draw(st.binary(max_size=20))
    made.properties = draw(st.none() | st.dictionaries(TEXT, SIMPLE, max_size=5))
    made.annotations = draw(st.none() | st.dictionaries(SYMBOLS | ULONGS, NESTED, max_size=4))
    made.instructions = draw(st.none() | st.dictionaries(SYMBOLS, NESTED, max_size=2))
    result: proton.Message = made
    return result


def plain(value: Any) -> Any:
    """What proton decoded, in the Python types that we use."""
    if isinstance(value, proton.Described):
        return plain(value.value)
    if isinstance(value, proton.Array):
        return [plain(item) for item in value.elements]
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    kinds: tuple[Any, ...] = (bool, int, float, str, bytes)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    return bytes(value) if isinstance(value, memoryview) else value


def decoded(data: bytes) -> proton.Message:
    result = proton.Message()
    result.decode(data)
    return result


def encoded(value: Any) -> bytes:
    """One value, as proton encodes it."""
    data = proton.Data()
    data.put_object(value)
    return bytes(data.encode())


def listed(*fields: bytes) -> bytes:
    content = b"".join(fields)
    return b"\xd0" + struct.pack(">II", len(content) + 4, len(fields)) + content


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


def section_ends(data: bytes) -> list[int]:
    """Where each section ends, as the readers skip from one to the next; BadMessage when one of them is not whole."""
    ends = [0]
    while ends[-1] < len(data):
        _, value = message._descriptor(data, ends[-1])
        ends.append(skip(data, value, len(data), 0))
    return ends


def header_end(data: bytes) -> int:
    """Where what follows the header begins, 0 where there is none."""
    return section_ends(data)[1] if data[:3] == b"\x00\x53\x70" else 0


READERS: list[Callable[[bytes], Any]] = [
    message.header,
    message.message_id,
    message.correlation_id,
    message.to,
    message.subject,
    message.reply_to,
    message.application_properties,
    message.body_value,
    lambda data: message.with_delivery_state(data, 1, True),
]


def must_read_or_refuse(read: Callable[[bytes], Any], data: bytes) -> None:
    """Any other error than BadMessage ends the test."""
    with suppress(BadMessage):
        read(data)


@settings(max_examples=150)
@given(made=messages(), view=st.booleans())
def test_every_field_reads_as_proton_reads_it(made: proton.Message, view: bool) -> None:
    """A field read otherwise than clients read it would route messages where nobody expects them."""
    data = bytes(made.encode())
    seen = decoded(data)
    given_data = memoryview(data) if view else data
    assert message.header(given_data) == Header(
        seen.durable, seen.priority, round(seen.ttl * 1000) or None, seen.first_acquirer, seen.delivery_count
    )
    assert message.message_id(given_data) == plain(seen.id)
    assert message.correlation_id(given_data) == plain(seen.correlation_id)
    assert message.to(given_data) == seen.address
    assert message.subject(given_data) == seen.subject
    assert message.reply_to(given_data) == seen.reply_to
    assert message.application_properties(given_data) == plain(seen.properties or {})


@settings(max_examples=80)
@given(made=messages(), delivery_count=st.sampled_from([0, 1, 255, 256, 2**31 - 1]), first_acquirer=st.booleans())
def test_the_delivery_state_is_all_that_a_broker_changes(made: proton.Message, delivery_count: int, first_acquirer: bool) -> None:
    """Message-ids and annotations that come back altered after a failover were the original's worst habit."""
    data = bytes(made.encode())
    for sent in (data, data[header_end(data) :]):
        found = message.with_delivery_state(sent, delivery_count, first_acquirer)
        was, now = message.header(sent), message.header(found)
        assert now == Header(was.durable, was.priority, was.ttl_ms, first_acquirer, delivery_count)
        assert decoded(found).delivery_count == delivery_count
        assert decoded(found).first_acquirer == first_acquirer
        rest, kept = (of[header_end(of) :] for of in (sent, found))
        assert rest == kept
        assert message.with_delivery_state(found, delivery_count, first_acquirer) == found
        if (was.delivery_count, was.first_acquirer) == (delivery_count, first_acquirer):
            assert found == sent


@settings(max_examples=100)
@given(made=messages(), seed=st.data())
def test_a_message_cut_or_damaged_anywhere_is_must_read_or_refused_and_nothing_else(
    made: proton.Message, seed: st.DataObject
) -> None:
    """An IndexError in the reactor would take the broker down, and any client could send the bytes for it."""
    data = bytearray(made.encode())
    for _ in range(seed.draw(st.integers(0, 3))):
        data[seed.draw(st.integers(0, len(data) - 1))] = seed.draw(st.integers(0, 255))
    cut = bytes(data[: seed.draw(st.integers(0, len(data)))])
    for read in READERS:
        for victim in (bytes(data), cut):
            must_read_or_refuse(read, victim)


@settings(max_examples=300)
@given(code=st.sampled_from([0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x78, None]), junk=st.binary(max_size=60))
@example(code=0x70, junk=b"\xc0\x01")
@example(code=0x73, junk=b"\xd0\x00\x00\x00\x04")
@example(code=0x74, junk=b"\xc1\x03\x02\xa1\x01")
@example(code=None, junk=b"\x00")
@example(code=None, junk=b"\x00\x00\x00")
def test_arbitrary_bytes_are_must_read_or_refused_and_nothing_else(code: int | None, junk: bytes) -> None:
    """The same from the other side: what proton would never encode."""
    data = junk if code is None else section(code, junk)
    for read in READERS:
        must_read_or_refuse(read, data)


@settings(max_examples=40)
@given(made=messages())
def test_every_truncation_that_matters_is_noticed(made: proton.Message) -> None:
    """A message cut within a section must not pass as a whole one."""
    data = bytes(made.encode())
    ends = section_ends(data)
    for stop in [*range(min(len(data), 400)), len(data) - 1]:
        if stop not in ends:
            with pytest.raises(BadMessage):
                section_ends(data[:stop])


def refused(data: bytes) -> str:
    """Why this is not a message; "" when it is one."""
    try:
        message.check(data)
    except BadMessage as error:
        return str(error)
    return ""


@settings(max_examples=100)
@given(made=messages(), seed=st.data())
def test_what_proton_sends_is_a_message_and_what_is_cut_or_damaged_is_one_for_both_ways_to_look_or_for_none(
    made: proton.Message, seed: st.DataObject
) -> None:
    """There is a quick look for most messages and a slow one for the rest. Breaks when the quick one takes what the slow one
    refuses: that would be stored, and no consumer could read it."""
    data = bytearray(made.encode())
    assert not refused(bytes(data))
    assert arrivals.malformed([bytes(data)] * 2) == []
    for _ in range(seed.draw(st.integers(0, 3))):
        data[seed.draw(st.integers(0, min(len(data) - 1, 40)))] = seed.draw(st.integers(0, 255))
    cut = bytes(data[: seed.draw(st.integers(0, len(data)))])
    for victim in (bytes(data), cut):
        assert arrivals.malformed([victim]) == [0] * bool(refused(victim))


HEAD, DATA, VALUE, FOOT = (
    section(0x70, b"\x45"),
    section(0x75, b"\xa0\x01x"),
    section(0x77, b"\x40"),
    section(0x78, b"\xc1\x01\x00"),
)
LONG = section(0x77, b"\x00\x80" + bytes(8) + b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00")


@pytest.mark.parametrize(
    "good", [HEAD, DATA, VALUE, LONG, HEAD + DATA + DATA + FOOT, section(0x76, b"\x45") * 2, HEAD + LONG + FOOT]
)
def test_sections_in_their_order_are_a_message(good: bytes) -> None:
    """A body of many data sections, a described value, and no body at all: there are clients that send each of them."""
    assert refused(good) == ""
    assert arrivals.malformed([good]) == []


@pytest.mark.parametrize(
    "bad, text",
    [
        (b"", "the message has no section, but needs at least one"),
        (b"plain text", "a section should begin at byte 0, with 0x00, but there is 0x70"),
        (HEAD + HEAD, "the header section at byte 4 may not stand behind the header section"),
        (DATA + HEAD, "the header section at byte 6 may not stand behind the data section"),
        (VALUE + VALUE, "the amqp-value section at byte 4 may not stand behind the amqp-value section"),
        (DATA + VALUE, "the amqp-value section at byte 6 may not stand behind the data section"),
        (FOOT + DATA, "the data section at byte 6 may not stand behind the footer section"),
        (section(0x70, b"\x40"), "the header section at byte 0 has a value of the type 0x40"),
        (section(0x75, b"\xa1\x01x"), "the data section at byte 0 has a value of the type 0xa1"),
        (section(0x73, b"\xc0\x00"), "the compound value at byte 4 has a size of 0, too small for its own count"),
        (DATA[:-1], "the value at byte 5 needs 1 more bytes, but only 0 are left for it"),
        (DATA + b"x", "a section should begin at byte 6, with 0x00, but there is 0x78"),
        (DATA + b"\x00\x53\x75", "the message ends within the section at byte 6"),
    ],
)
def test_what_is_no_message_is_refused_with_its_place(bad: bytes, text: str) -> None:
    """The text reaches the producer's author."""
    assert refused(bad) == text
    assert arrivals.malformed([DATA, bad, VALUE, bad]) == [1, 3]


def test_sections_may_be_named_by_symbols() -> None:
    """The standard gives each section a name and a number, and both are right."""
    for width, name in ((1, b"\xa3"), (4, b"\xb3")):
        text = b"amqp:properties:list"
        data = b"\x00" + name + len(text).to_bytes(width, "big") + text + listed(b"\x40", b"\x40", b"\x40", encoded("here"))
        assert message.subject(data) == "here"
    assert (
        message.subject(b"\x00\x80" + (0x73).to_bytes(8, "big") + listed(b"\x40", b"\x40", b"\x40", encoded("there"))) == "there"
    )


def test_what_stands_behind_a_section_is_not_looked_at() -> None:
    """Reading a subject must cost nothing for the body, and so cannot fail on it."""
    assert message.subject(section(0x73, listed(b"\x40", b"\x40", b"\x40", encoded("s"))) + b"\xff\xff") == "s"
    assert message.header(section(0x75, encoded(b"body")) + b"\xff") == Header()
    assert message.application_properties(section(0x74, encoded({"a": 1})) + b"\xff") == {"a": 1}


def test_empty_and_short_lists_leave_the_other_fields_at_their_defaults() -> None:
    """Trailing nulls may be left out, and all fields may be."""
    assert message.header(section(0x70, b"\x45")) == Header()
    assert message.header(section(0x70, listed(b"\x41"))) == Header(durable=True)
    assert message.message_id(section(0x73, b"\x45")) is None
    assert message.reply_to(section(0x73, listed(b"\x40", b"\x40"))) is None


def test_a_long_header_is_written_as_a_long_list() -> None:
    """The short list holds 255 bytes; a client may wrap a field in a descriptor of any length."""
    for length in (*range(240, 255), 300):
        durable = b"\x00" + encoded(proton.symbol("x" * length)) + b"\x41"
        data = section(0x70, listed(durable)) + section(0x77, b"\x40")
        found = message.with_delivery_state(data, 7, False)
        assert message.header(found) == Header(durable=True, delivery_count=7)
        assert durable in found


def test_a_count_beyond_what_amqp_can_say_stays_at_the_highest() -> None:
    """A message that is released for ever must not become one that cannot be encoded."""
    assert message.header(message.with_delivery_state(b"", 2**40, True)).delivery_count == 2**32 - 1


def test_every_way_to_encode_a_value_is_understood() -> None:
    """Clients that are not proton choose the long forms."""
    forms = {
        b"\x40": None,
        b"\x41": True,
        b"\x42": False,
        b"\x56\x01": True,
        b"\x56\x00": False,
        b"\x43": 0,
        b"\x44": 0,
        b"\x45": [],
        b"\x52\xff": 255,
        b"\x53\xff": 255,
        b"\x54\xff": -1,
        b"\x55\xff": -1,
        b"\x80" + b"\xff" * 8: 2**64 - 1,
        b"\x81" + b"\xff" * 8: -1,
        b"\x83" + b"\xff" * 8: -1,
        b"\x73\x00\x01\xf6\x00": "\U0001f600",
        b"\x98" + bytes(range(16)): UUID(bytes=bytes(range(16))),
        b"\xb0\x00\x00\x00\x02hi": b"hi",
        b"\xb1\x00\x00\x00\x02hi": "hi",
        b"\xb3\x00\x00\x00\x02hi": "hi",
        b"\xe0\x04\x02\x50\x01\x02": [1, 2],
        b"\xe0\x02\x00\x50": [],
        b"\xf0\x00\x00\x00\x07\x00\x00\x00\x02\x54\xff\x01": [-1, 1],
        b"\xe0\x05\x02\x00\x53\x07\x41": [True, True],
        b"\xd1\x00\x00\x00\x06\x00\x00\x00\x02\x43\x41": {0: True},
        b"\x00\x53\x07\x41": True,
    }
    for form, value in forms.items():
        found = message.body_value(section(0x77, b"\xd1" + struct.pack(">II", len(form) + 7, 2) + b"\xa3\x01k" + form))
        assert found == {"k": value}
        assert type(found["k"]) is type(value)


def test_lists_and_maps_may_be_keys() -> None:
    """AMQP allows it, and a message must not be refused for what Python cannot hash."""
    key = {"a": [1, [2]], "b": None}
    assert message.body_value(section(0x77, b"\xc1" + bytes((len(encoded(key)) + 2, 2)) + encoded(key) + b"\x41")) == {
        (("a", (1, (2,))), ("b", None)): True
    }


def nested(depth: int, kind: str) -> bytes:
    value = b"\x40"
    for _ in range(depth):
        value = b"\x00\x43" + value if kind == "described" else listed(value)
    return value


@pytest.mark.parametrize("kind", ["described", "list"])
def test_nesting_is_bounded_before_it_costs_stack(kind: str) -> None:
    """Three bytes a level: without a bound 64 KiB would end in a RecursionError."""
    assert message.body_value(section(0x77, b"\xc1\x01\x00")) == {}
    fits = nested(limits.MAX_AMQP_DEPTH - 1, kind)
    within = section(0x77, b"\xd1" + struct.pack(">II", len(fits) + 5, 2) + b"\x43" + fits)
    message.body_value(within)
    for depth in (limits.MAX_AMQP_DEPTH + 1, 20_000):
        deep = nested(min(depth, 2_000), kind)
        with pytest.raises(BadMessage, match="nested more than 32 deep"):
            message.body_value(section(0x77, b"\xd1" + struct.pack(">II", len(deep) + 5, 2) + b"\x43" + deep))
    with pytest.raises(BadMessage, match="nested more than 32 deep"):
        message.body_value(b"\x00" * 20_000)


def test_an_array_cannot_claim_more_than_the_bound() -> None:
    """Ten bytes that say "four thousand million times null" must not be taken at their word."""
    bomb = b"\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40"
    with pytest.raises(BadMessage, match="more than 65536 values"):
        message.body_value(section(0x77, b"\xd1" + struct.pack(">II", len(bomb) + 5, 2) + b"\x43" + bomb))


@pytest.mark.parametrize(
    "read, data, text",
    [
        (message.body_value, b"\x41", "a section should begin at byte 0, with 0x00, but there is 0x41"),
        (message.body_value, b"\x00", "the value at byte 1 needs 1 more bytes, but only 0 are left for it"),
        (message.body_value, b"\x00\x53\x79\x40", "the descriptor at byte 1 names no section of a message"),
        (message.body_value, b"\x00\x00\x43\x40\x40", "the descriptor at byte 1 names no section of a message"),
        (message.body_value, b"\x00\xa3\x01x\x40", "the descriptor at byte 1 names no section of a message"),
        (message.body_value, section(0x77, b"\x1f"), "there is no type with the code 0x1f (byte 3)"),
        (message.body_value, section(0x77, b"\x70\x00"), "the value at byte 4 needs 4 more bytes, but only 1 are left for it"),
        (message.body_value, section(0x77, b"\xb0\x00"), "the value at byte 4 needs 4 more bytes, but only 1 are left for it"),
        (message.body_value, section(0x77, b"\xa0\x09x"), "the value at byte 5 needs 9 more bytes, but only 1 are left for it"),
        (
            message.body_value,
            section(0x77, b"\xc0\x00"),
            "the compound value at byte 4 has a size of 0, too small for its own count",
        ),
        (message.header, section(0x70, b"\x40"), "the header section at byte 3 is not a list, but has type 0x40"),
        (message.header, section(0x70, b"\xc0\x01\x01"), "the value at byte 6 needs 1 more bytes, but only 0 are left for it"),
        (message.header, section(0x70, listed(b"\x43")), "the field durable of the header section is 0, but must be a bool"),
        (
            message.header,
            section(0x70, listed(b"\x41", b"\x54\xff")),
            "the field priority of the header section is -1, but must be a int",
        ),
        (message.header, section(0x70, listed(b"\x56\x02")), "the boolean at byte 13 is 2, not 0 or 1"),
        (message.header, section(0x70, listed(b"\x4f")), "there is no type with the code 0x4f (byte 12)"),
        (
            message.header,
            section(0x70, listed(b"\x70\x00")),
            "the value at byte 13 needs 4 more bytes, but only 1 are left for it",
        ),
        (
            message.subject,
            section(0x73, listed(b"\x40", b"\x40", b"\x40", b"\x41")),
            "the field subject of the properties section is True, but must be a str",
        ),
        (
            message.message_id,
            section(0x73, listed(b"\x41")),
            "the property message-id is a bool, but must be a number, uuid, binary or string",
        ),
        (message.message_id, section(0x73, listed(b"\xa1\x01\xff")), "the text at byte 14 is not UTF-8: invalid start byte"),
        (
            message.message_id,
            section(0x73, listed(b"\xa3\x01\xff")),
            "the text at byte 14 is not ASCII: ordinal not in range(128)",
        ),
        (
            message.message_id,
            section(0x73, listed(b"\x73\x00\x00\xd8\x00")),
            "the char at byte 13 is 0xd800, which is not a Unicode character",
        ),
        (message.application_properties, section(0x74, b"\x45"), "the application-properties section at byte 3 is not a map"),
        (
            message.application_properties,
            section(0x74, b"\xc1\x03\x02\x43\x43"),
            "the application-properties section has a key 0 that is not a string",
        ),
        (
            message.application_properties,
            section(0x74, b"\xc1\x68\x02\xa0\x64" + b"k" * 100 + b"\x43"),
            f"the application-properties section has a key b'{'k' * 38} that is not a string",
        ),
        (
            message.application_properties,
            section(0x74, b"\xc1\x02\x01\x43"),
            "the map at byte 6 has 1 keys and values, which is odd",
        ),
        (
            message.application_properties,
            section(0x74, b"\xc1\x04\x02\x43\x43\x43"),
            "the 2 values at byte 6 end at byte 8, and not at 9 as their size says",
        ),
    ],
)
def test_a_fault_is_named_with_its_place(read: Callable[[bytes], Any], data: bytes, text: str) -> None:
    """The text reaches the client's author, who has nothing else to find the fault by."""
    with pytest.raises(BadMessage) as caught:
        read(data)
    assert str(caught.value) == text


@given(
    IDS, IDS, ADDRESSES, st.none() | ADDRESSES, st.dictionaries(TEXT, st.integers(0, 9) | TEXT), st.none() | TEXT | st.lists(TEXT)
)
def test_a_message_of_ours_says_the_same_to_proton_and_to_us(
    number: Any, correlation: Any, address: str, reply_to: str | None, properties: dict[str, Any], body: Any
) -> None:
    data = message.encoded(
        to=address, correlation_id=correlation, properties=properties, body=body, message_id=number, reply_to=reply_to
    )
    theirs: Any = proton.Message()
    theirs.decode(data)
    found = [bytes(each) if isinstance(each, memoryview) else each for each in (theirs.id, theirs.correlation_id)]
    assert found == [number, correlation]
    assert (theirs.address, theirs.reply_to, theirs.properties, theirs.body) == (address, reply_to, properties, body)
    assert (message.message_id(data), message.correlation_id(data)) == (number, correlation)
    assert (message.to(data), message.reply_to(data)) == (address, reply_to)
    assert (message.application_properties(data), message.body_value(data)) == (properties, body)


def test_a_body_of_data_is_no_value() -> None:
    assert message.body_value(bytes(proton.Message(body=b"bytes", inferred=True).encode())) is None
    assert message.body_value(b"") is None


def test_a_message_that_comes_by_parts_says_whether_its_first_part_has_all_before_the_body() -> None:
    """Where a message goes, and its priority, are read from there; a route that ends within a part would be a wrong one."""
    data = bytes(proton.Message(body=b"x" * 300, subject="s", durable=True, properties={"a": "b" * 100}).encode())
    body = data.index(b"\x00\x53\x77")
    for stop in range(len(data)):
        assert message.body_begins_in(data[:stop]) == (stop >= body + 3), stop
    assert message.body_begins_in(b"\x00\x53\x75")
    assert message.body_begins_in(b"\x00\x53\x76")
    assert not message.body_begins_in(data[:body]), "sections alone are not a message"
    assert not message.body_begins_in(b"nonsense")


def test_sections_are_put_in_their_order_and_what_is_no_message_is_refused() -> None:
    whole = proton.Message(subject="s", body="b", properties={"a": 1}).encode()
    spans, position = [], 0
    while position < len(whole):
        stop = skip(whole, position + 3, len(whole), 0)
        spans.append(whole[position:stop])
        position = stop
    assert message.in_order(b"".join(reversed(spans))) == whole
    parts = b"\x00\x53\x75\xa0\x01b" + b"\x00\x53\x75\xa0\x01a"
    assert message.in_order(parts) == parts, "sections of one kind keep their order"
    for bad in (b"", b"\x00", b"\x00\x53", whole[:-1], spans[-1] * 2):
        with pytest.raises(BadMessage):
            message.in_order(bad)
