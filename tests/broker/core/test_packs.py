"""Packs: messages in one delivery, the outcomes of a pack, and credit that is counted in packs."""

from __future__ import annotations

import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as some

from broker.core import values
from broker.core.links import ACCEPTED, MODIFIED, REJECTED, RELEASED
from broker.core.packs import (
    CAPACITY,
    MAX_OUTCOMES_BYTES,
    PACK_BYTES,
    BadPack,
    Credit,
    Outcome,
    encoded,
    fitting,
    messages_in,
    outcomes,
    read_outcomes,
)


def offsets_of(messages: list[bytes]) -> list[int]:
    return list(accumulate(map(len, messages), initial=0))


def packed(messages: list[bytes], tags: list[bytes], base: int = 0) -> bytes:
    return encoded(b"#" * base + b"".join(messages), offsets_of(messages), 0, len(messages), base, tags)


@given(some.lists(some.binary(max_size=50), min_size=2, max_size=CAPACITY), some.sampled_from([8, 28]), some.integers(0, 9))
def test_what_goes_in_comes_out(messages: list[bytes], width: int, base: int) -> None:
    tags = [at.to_bytes(width, "big") for at in range(len(messages))]
    assert messages_in(packed(messages, tags, base)) == (tags, messages)


@given(some.lists(some.integers(0, 3000), min_size=1, max_size=150), some.sampled_from([8, 28]), some.integers(0, 70_000))
def test_a_pack_is_as_long_as_it_may_be(sizes: list[int], width: int, largest: int) -> None:
    offsets = list(accumulate(sizes, initial=0))
    data, most = bytes(offsets[-1]), min(largest, PACK_BYTES)
    start = 0
    while start < len(sizes):
        stop = fitting(offsets, start, len(sizes), width, largest)
        count = stop - start
        assert 1 <= count <= CAPACITY
        assert count == 1 or len(encoded(data, offsets, start, stop, 0, [bytes(width)] * count)) <= most
        if stop < len(sizes) and count < CAPACITY:
            assert len(encoded(data, offsets, start, stop + 1, 0, [bytes(width)] * (count + 1))) > most
        start = stop


@pytest.mark.parametrize(
    "data, why",
    [
        (b"\x02\x08", "up to 65536 bytes, not 2"),
        (bytes(PACK_BYTES + 1), "up to 65536 bytes, not 65537"),
        (packed([b"a"], [bytes(8)]), "says 1 with tags of 8 bytes"),
        (packed([b"a"] * 65, [bytes(8)] * 65), "says 65 with tags of 8 bytes"),
        (packed([b"a", b"b"], [bytes(4)] * 2), "says 2 with tags of 4 bytes"),
        (b"\x40\xff" + bytes(100), "says 64 with tags of 255 bytes"),
        (packed([b"a", b"b"], [bytes(8)] * 2) + b"c", "end at byte 28, and the pack at byte 29"),
        (packed([b"a", b"b"], [bytes(8)] * 2)[:-1], "end at byte 28, and the pack at byte 27"),
    ],
)
def test_what_is_no_pack_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(BadPack, match=why):
        messages_in(data)


def test_outcomes_come_back_with_the_reasons() -> None:
    found = [
        Outcome(0, 3, ACCEPTED),
        Outcome(3, 1, REJECTED, "too blue"),
        Outcome(5, 1, RELEASED),
        Outcome(6, 1, REJECTED, "small"),
    ]
    assert read_outcomes(outcomes(found), 7) == found


def test_of_many_reasons_each_one_is_cut_so_that_the_state_stays_small() -> None:
    found = [Outcome(at, 1, REJECTED, f"{at} is not what this queue is for, " + "ü" * 200) for at in range(CAPACITY)]
    assert len(outcomes(found)) <= MAX_OUTCOMES_BYTES
    assert [each[:3] for each in read_outcomes(outcomes(found), CAPACITY)] == [each[:3] for each in found]
    (one,) = read_outcomes(outcomes(found[:1]), CAPACITY)
    assert len(one.text) > 100
    assert found[0].text.startswith(one.text)


@pytest.mark.parametrize(
    "fields",
    [
        b"",
        b"\xff",
        values.encode([]),
        values.encode([7]),
        values.encode(["text"]),
        values.encode([bytes(5)]),
        values.encode([bytes((0, 1, REJECTED, 3)), "only one"]),
        values.encode([bytes((0, 0, ACCEPTED, 255))]),
        values.encode([bytes((0, 1, 0x99, 255))]),
        values.encode([bytes((1, 1, ACCEPTED, 255, 0, 1, ACCEPTED, 255))]),
        values.encode([bytes((0, 2, ACCEPTED, 255, 1, 1, MODIFIED, 255))]),
        values.encode([bytes((6, 2, ACCEPTED, 255))]),
    ],
)
def test_outcomes_that_make_no_sense_are_refused(fields: bytes) -> None:
    """Breaks when a peer can name a message of another pack, or one twice."""
    with pytest.raises(BadPack):
        read_outcomes(fields, 7)


@given(some.lists(some.integers(1, CAPACITY), min_size=60, max_size=200), some.integers(1, 3000), some.integers(1, CAPACITY))
def test_credit_follows_what_the_deliveries_bring(brought: list[int], window: int, at_last: int) -> None:
    """Breaks when a sender of short packs or single messages gets a smaller window, or a sender of full ones an unbounded one."""
    credit = Credit()
    given = credit.grant(window, 0)
    for count in brought + [at_last] * 100:
        assert given > 0, "each message that came has its outcome at once, so there is always credit"
        given -= 1
        credit.used(count)
        assert credit.grant(0, given) * 1 <= max(0, credit.allowed), "a message is expected of each delivery"
        given += credit.grant(count, given)
        assert credit.allowed == window
    assert window <= given * at_last or given >= window
    assert given <= max(CAPACITY, len(brought)) * window, "it is bounded"


def test_no_credit_is_given_while_more_has_come_than_was_allowed() -> None:
    credit = Credit()
    given = credit.grant(1000, 0)
    assert given == 16
    for _ in range(100):
        credit.used(1)
    given = credit.grant(0, 0)
    assert given == 900
    for _ in range(given):
        credit.used(CAPACITY)
    assert credit.allowed == 900 - 900 * CAPACITY
    assert credit.grant(900 * CAPACITY - 900, 0) == 0
    assert credit.grant(1000, 0) == 16


def test_a_pack_is_read_as_it_is_written() -> None:
    """Breaks when two releases would not understand each other."""
    data = packed([b"one", b"three"], [b"tag-of-1", b"tag-of-2"])
    assert data == b"\x02\x08tag-of-1tag-of-2" + struct.pack(">II", 3, 5) + b"onethree"
