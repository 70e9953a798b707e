"""What is read of messages in the usual form, and whether stepping over all others gives the same."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from broker.core.selector import usual
from broker.core.selector.fields import FAULTS, WORTH, Plan
from broker.core.selector.tree import Identifier
from broker.core.values import Symbol, encode

NAMES = ("JMSPriority", "a", "colour", "JMSType", "JMSXDeliveryCount", "größe")
PAIRS = range(6)


def section(code: int, content: bytes) -> bytes:
    return bytes((0, 0x53, code)) + content


def sized(short: int, items: list[bytes], *, long: bool = False) -> bytes:
    """A list (`short` 0xC0) or a map (0xC1)."""
    body = b"".join(items)
    if long:
        return struct.pack(">BII", short + 0x10, len(body) + 4, len(items)) + body
    return bytes((short, len(body) + 1, len(items))) + body


def filled(n_pairs: int, *, long: bool) -> bytes:
    return section(0x74, sized(0xC1, [encode(str(each)) for each in range(2 * n_pairs)], long=long))


def experienced(names: tuple[str, ...] = NAMES) -> Plan:
    """A plan that has read so many messages that it knows each number of pairs."""
    plan = Plan(map(Identifier, names))
    for n_pairs in PAIRS:
        data = filled(n_pairs, long=bool(n_pairs % 2))
        for _ in range(WORTH):
            plan.read(data, 0, len(data), 0)
    return plan


EXPERIENCED = experienced()


def read(plan: Plan, data: bytes, start: int, end: int, failures: int) -> Any:
    try:
        return list(map(repr, plan.read(data, start, end, failures)))
    except FAULTS:
        return "fault"


TEXTS = some.one_of(some.text("aé", max_size=4), some.sampled_from(["x" * 63, "x" * 64, "x" * 300, *NAMES]))
KEYS = some.one_of(some.sampled_from(NAMES), TEXTS)
VALUES = some.one_of(
    TEXTS.map(encode),
    some.sampled_from([None, True, False, 0, 7, -1, 300, 1 << 40, 2.5, b"\xff", [1, "a"], {"a": 1}, Symbol("s")]).map(encode),
    some.sampled_from([0x45, 0x52, 0x56, 0x60, 0x70, 0x73, 0x82, 0x98, 0xA0, 0xA3, 0xF0]).map(
        lambda code: bytes((code,)) + b"\x01" * 17
    ),
    some.sampled_from([b"\xa1\x02\xff\xff", b"\x56\x00", b"\x56\x05", b"\xb1\0\0\0\x01x", b"\xb3\0\0\0\x01x"]),
)
FIELDS = some.lists(some.one_of(VALUES, some.sampled_from([b"\x40", b"\x50\x07", b"\x41", b"\x52\x03"])), max_size=6)
LISTS = some.one_of(
    some.just(b"\x45"),
    some.builds(
        lambda items, long: sized(0xC0, items, long=long), FIELDS.filter(lambda f: len(b"".join(f)) < 250), some.booleans()
    ),
)
MAPS = some.builds(
    lambda pairs, long: sized(
        0xC1, [each for key, value in pairs for each in (encode(key), value)], long=long or len(str(pairs)) > 150
    ),
    some.lists(some.tuples(KEYS, VALUES), max_size=len(PAIRS)),
    some.booleans(),
)
STRANGE = some.sampled_from(
    [each + b"\x03\x01\x40\x40" for each in (b"\xa0", b"\xb0", b"\xb1\x00\x00\x00", b"\xc0", b"\xe0", b"\x71", b"\x98")]
)
"""What is no map."""
MESSAGES = some.tuples(
    some.one_of(some.just(b""), LISTS.map(lambda content: section(0x70, content))),
    some.lists(some.one_of(MAPS, STRANGE).map(lambda content: section(0x72, content)), max_size=2).map(b"".join),
    some.one_of(some.just(b""), LISTS.map(lambda content: section(0x73, content))),
    MAPS.map(lambda content: section(0x74, content)),
    some.sampled_from([b"", b"\x00\x53\x77\xa1\x01x", b"\x00", b"\xff"]),
).map(b"".join)


@given(MESSAGES, some.integers(0, 2))
@example(filled(2, long=False), 1)
@example(section(0x70, sized(0xC0, [b"\x40", b"\x50\x07", b"\x40", b"\x40", b"\x52\x02"])) + filled(2, long=False), 1)
@example(section(0x73, sized(0xC0, [b"\x40", b"\x40", b"\x40", b"\xa1\x01s"])) + filled(2, long=True), 0)
def test_a_message_says_the_same_to_a_plan_that_has_read_many(data: bytes, failures: int) -> None:
    expected = read(Plan(map(Identifier, NAMES)), data, 0, len(data), failures)
    assert read(EXPERIENCED, data, 0, len(data), failures) == expected
    around = b"\x00\x53" + data + b"\x74\xa1"
    assert read(EXPERIENCED, around, 2, 2 + len(data), failures) == expected


@given(MESSAGES, some.data())
def test_a_damaged_message_says_the_same_to_a_plan_that_has_read_many(data: bytes, choice: some.DataObject) -> None:
    damaged = bytearray(data)
    for _ in range(choice.draw(some.integers(1, 3))):
        damaged[choice.draw(some.integers(0, len(data) - 1))] = choice.draw(some.integers(0, 255))
    end = choice.draw(some.integers(0, len(data)))
    assert read(EXPERIENCED, bytes(damaged), 0, end, 0) == read(Plan(map(Identifier, NAMES)), bytes(damaged), 0, end, 0)


@pytest.mark.parametrize("long", [False, True])
def test_the_last_value_of_a_key_counts(long: bool) -> None:
    items = [encode(each) for each in ("a", 1, "colour", "red", "a", 2, "b", "a", "colour", "blue")]
    data = section(0x74, sized(0xC1, items, long=long))
    for plan in (Plan([Identifier("a"), Identifier("colour")]), experienced(("a", "colour"))):
        assert plan.read(data, 0, len(data), 0) == [2, "blue"]


def test_fields_of_one_section_are_read_beside_properties() -> None:
    header = section(0x70, sized(0xC0, [b"\x40", b"\x50\x07"]))
    data = header + section(0x73, sized(0xC0, [b"\x40", b"\x40", b"\x40", b"\xa1\x01s"])) + filled(2, long=False)
    for name, value in (("JMSPriority", 7), ("JMSType", "s")):
        assert experienced((name, "0")).read(data, 0, len(data), 0) == [value, "1"]


@pytest.mark.costs
def test_what_a_plan_keeps_is_bounded() -> None:
    """Thousands of headers, and more numbers of properties than it learns: it reads all of them rightly."""
    plan = experienced(("JMSPriority", "2"))
    tracemalloc.start()
    try:
        for ttl in range(3000):
            header = section(0x70, sized(0xC0, [b"\x40", bytes((0x50, ttl % 10)), struct.pack(">BI", 0x70, ttl)]))
            data = header + filled(2 + ttl % 30, long=True)
            assert plan.read(data, 0, len(data), 0) == [ttl % 10, "3"]
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_a_plan_that_knows_a_number_of_pairs_reads_more_headers_than_it_keeps_and_finds_a_fault() -> None:
    plan, usual_one = Plan(map(Identifier, ("JMSPriority", "2"))), filled(2, long=True)
    for _ in range(WORTH):
        plan.read(usual_one, 0, len(usual_one), 0)
    for ttl in range(100):
        header = section(0x70, sized(0xC0, [b"\x40", bytes((0x50, ttl % 10)), struct.pack(">BI", 0x70, ttl)]))
        assert plan.read(header + usual_one, 0, len(header + usual_one), 0) == [ttl % 10, "3"]
    cut = section(0x74, sized(0xC1, [encode("0"), encode("1"), encode("2"), b"\xa1\x05xx"]))
    assert read(plan, cut, 0, len(cut), 0) == "fault"


def calls(plan: Plan, data: bytes) -> int:
    """Functions in Python that are called to read it."""
    counted = 0

    def count(frame: FrameType, event: str, called: Any) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        plan.read(data, 0, len(data), 0)
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("long", [False, True])
def test_a_plan_that_has_read_many_makes_no_steps(long: bool) -> None:
    names = ("0", "2", "4")
    data = section(0x70, b"\xc0\x02\x01\x41") + section(0x72, b"\xc1\x01\x00") + section(0x73, b"\x45") + filled(5, long=long)
    assert calls(experienced(names), data) == 1 < calls(Plan(map(Identifier, names)), data)


@pytest.mark.parametrize("names", [("n" * usual.MAX_NAME_BYTES, "0"), tuple(map(str, range(0, 80, 2)))])
def test_a_selector_with_long_names_or_many_reads_them_too(names: tuple[str, ...]) -> None:
    plan, data = experienced(names), filled(5, long=False)
    said = {"0": "1", "2": "3", "4": "5", "6": "7", "8": "9"}
    assert plan.read(data, 0, len(data), 0) == [said.get(name) for name in names]


def test_an_odd_number_of_keys_and_values_is_a_fault_however_often_it_comes() -> None:
    plan = experienced(("0",))
    data = section(0x74, b"\xc1\x07\x03" + encode("0") + encode("1"))
    for _ in range(WORTH + 1):
        assert read(plan, data, 0, len(data), 0) == "fault"


@pytest.mark.costs
def test_a_thousand_lengths_that_promise_too_much_are_refused_in_linear_time() -> None:
    """No alternative is tried twice: a map of wanted keys with a fault at its end costs no more than one that is whole."""
    plan = experienced(("a",))
    items = [encode("a"), encode("b")] * 31 + [encode("a"), b"\xa1\x05xx"]
    data = section(0x74, sized(0xC1, items))
    for _ in range(WORTH + 1):
        assert read(plan, data, 0, len(data), 0) == "fault"
