"""A user-id that is another user's is found in a message, however it is encoded."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core import arrivals, message

ANN, BOB = b"ann@QPID", b"bob@QPID"


def made(body: Any, user: bytes | None, **fields: Any) -> proton.Message:
    """A message that names this user, or none."""
    return proton.Message(body=body, **fields, **({} if user is None else {"user_id": user}))


USERS = st.one_of(st.none(), st.sampled_from([ANN, BOB, b"", b"\xff" * 300]))


@given(
    USERS,
    st.one_of(st.none(), st.integers(0, 2**64 - 1), st.uuids(), st.text(max_size=300), st.binary(max_size=300)),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.text(max_size=300)),
)
def test_the_short_way_to_a_user_id_finds_what_the_long_one_does(
    user: bytes | None, number: Any, durable: bool, annotated: bool, subject: str | None
) -> None:
    one = made("x", user, id=number, durable=durable, subject=subject)
    if annotated:
        one.annotations = {proton.symbol("x-opt-note"): "n" * 300}
    encoded = one.encode()
    assert (message.user_id(encoded) or b"") == (user or b"")
    assert arrivals.of_others([encoded], {ANN}) == ([0] if user not in (None, b"", ANN) else [])


@pytest.mark.parametrize(
    "one, found",
    [
        (b"", []),
        (b"\x00\x53\x73\xc0", []),
        (b"\x00\x53\x73\x45\x00\x53\x77\x40", []),
        (b"\x00\x53\x73\xc0\x06\x02\x40\xa0\x02me", [0]),
        (b"\x00\x53\x73\xd0\x00\x00\x00\x09\x00\x00\x00\x02\x40\xa0\x02me", [0]),
        (b"\x00\x80" + b"\x00" * 7 + b"\x73\xc0\x06\x02\x40\xa0\x02me", [0]),
        (b"\x00\xa3\x14amqp:properties:list\xc0\x06\x02\x40\xa0\x02me", [0]),
        (b"\x00\x53\x73\xc0\x0a\x02\xb0\x00\x00\x00\x01i\xa0\x01m", [0]),
        (b"\x00\x53\x73\xc0\x06\x02\x40\xa1\x02me", [0]),
        (b"\x00\x53\x73\xc0\x04\x02\x40\x52\x01", [0]),
        (b"\x00\x53\x73\xc0\x06\x02\x40\xa0\x08ann@QPID", [0]),
        (b"\x00\x53\x73\xc0\x0e\x02\xa1\x12m\xa0\x08ann@QPID\x00\x53\x77\x40", [0]),
        (b"\x00\x53\x73\xc0\x02\x01\x40", []),
        (b"\x01" * 20, [0]),
    ],
)
def test_a_user_id_is_found_however_it_is_encoded_and_one_that_cannot_be_read_is_nobody_s(one: bytes, found: list[int]) -> None:
    assert arrivals.of_others([one], {ANN}) == found
