"""Bundles: what the door says of the transfer of one, and the messages that come out."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as some

from broker.core import arrivals, limits, message, values
from broker.core.bundles import FORMAT, Found, found_in, is_bundle, marked, messages_of
from broker.core.performatives import Refusal
from tests.broker.core.stream import FALSE, NULL, TRUE, ZERO, listed

MARK = b"\x00\x53\x00\x40"
ONE, OTHER = b"\x00\x53\x77\xa1\x03one", b"\x00\x53\x70\x45\x00\x53\x77\xa1\x05other"
ID, TAG = b"\x52\x07", b"\xa0\x02tt"


def data(content: bytes, *, wide: bool = False) -> bytes:
    """A data section."""
    return b"\x00\x53\x75" + (b"\xb0" + struct.pack(">I", len(content)) if wide else bytes((0xA0, len(content)))) + content


@pytest.mark.parametrize("wide", [False, True])
def test_a_transfer_with_the_format_of_a_bundle_is_found_and_marked_in_as_many_bytes(wide: bool) -> None:
    fields = listed(b"\x52\x03", ID, TAG, FORMAT, FALSE, TRUE, wide=wide)
    said = b"before" + fields + b"behind"
    found = found_in(said, 6, len(said))
    assert found is not None
    assert (found.handle, found.number, found.end) == (3, 7, 6 + len(fields))
    start, fresh = marked(said, found)
    now = said[:start] + fresh + said[start + len(fresh) :]
    shorter = listed(b"\x52\x03", ID, TAG, ZERO, FALSE, TRUE, wide=wide)
    assert now == b"before" + shorter + MARK + b"behind"


@pytest.mark.parametrize(
    "fields, found",
    [
        ((ZERO, ID, TAG, FORMAT), Found(0, 7, 0, 10, 15)),
        ((ZERO, NULL, NULL, FORMAT), Found(0, None, 0, 6, 11)),
        ((ZERO, ID, TAG, ZERO), None),
        ((ZERO, ID, TAG), None),
        ((ZERO, ID, TAG, FORMAT[:3]), None),
        ((NULL, ID, TAG, FORMAT), None),
        ((ZERO, ID, b"\xa0\x05" + FORMAT, ZERO), None),
        ((ZERO, ID, b"\xa0\x7ftt", FORMAT), None),
        ((b"\x3c", ID, TAG, FORMAT), None),
    ],
)
def test_only_the_field_for_the_format_says_it(fields: tuple[bytes, ...], found: Found | None) -> None:
    """Breaks when a tag that has the bytes of the format in it makes a message one of several."""
    said = listed(*fields)
    assert found_in(said, 0, len(said)) == found


def test_fields_that_are_no_list_are_refused() -> None:
    with pytest.raises(Refusal):
        found_in(b"\xa1\x02ab" + FORMAT, 0, 9)


def test_the_messages_of_a_bundle_are_its_data_sections_and_what_else_it_says_is_left() -> None:
    envelope = b"\x00\x53\x73" + values.encode(["the first one's id"])
    bundle = MARK + envelope + data(ONE) + data(OTHER, wide=True)
    assert is_bundle(bundle)
    assert not is_bundle(ONE)
    assert messages_of(bundle) == [ONE, OTHER]
    assert arrivals.malformed([bundle]) == [0], "nobody takes it for a message"


@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "has no message in it"),
        (ONE, "has no message in it"),
        (data(ONE) + data(b""), "item 2 of a batch is not a message"),
        (data(ONE) + data(b"\x00\x53\x75\xa0"), "item 2 of a batch is not a message"),
        (data(MARK + data(ONE)), "item 1 of a batch is not a message"),
        (data(ONE)[:-1], "bytes"),
        (data(ONE) + b"\x00", "needs 1 more"),
        (b"\x00\x53\x75\xa1\x01x", "holds no binary"),
        (b"\x07", "a section should begin"),
        (data(ONE) * (limits.MAX_TRANSACTION_OPERATIONS + 1), "more than 10000 messages"),
    ],
)
def test_a_bundle_of_anything_else_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(message.BadMessage, match=why):
        messages_of(MARK + content)


def test_as_many_messages_as_a_transaction_may_have_come_as_one() -> None:
    most = limits.MAX_TRANSACTION_OPERATIONS
    assert messages_of(MARK + data(ONE) * most) == [ONE] * most


@given(some.binary(max_size=60))
def test_any_bytes_are_messages_or_a_bad_message(content: bytes) -> None:
    try:
        found = messages_of(MARK + content)
    except message.BadMessage:
        return
    assert found
    assert arrivals.malformed(found) == []
