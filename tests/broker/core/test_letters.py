"""Dead letters: what they say, and that nothing else of the message changes."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import message
from broker.core.letters import EXPIRED, REJECTED, letter
from broker.core.values import Symbol, encode


def sent(**fields: object) -> bytes:
    return bytes(proton.Message(body="it", **fields).encode())


def decoded(data: bytes) -> Any:
    found = proton.Message()
    found.decode(data)
    return found


@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize("instructed", [False, True])
@pytest.mark.parametrize("ttl", [0, 60])
def test_a_letter_says_where_and_why_and_is_the_message_otherwise(annotated: bool, instructed: bool, ttl: float) -> None:
    data = sent(
        ttl=ttl,
        priority=7,
        subject="s",
        annotations={proton.symbol("x-mine"): [1, "two"]} if annotated else None,
        instructions={proton.symbol("x-hop"): 1} if instructed else None,
    )
    found = decoded(letter(data, "q", "dlx", REJECTED))
    was = decoded(data)
    said = dict(found.annotations)
    assert {
        name: said.pop(f"x-{which}-death-{name}") for which in ("first", "last") for name in ("queue", "reason", "exchange")
    } == {
        "queue": "q",
        "reason": "rejected",
        "exchange": "dlx",
    }
    assert said == ({"x-mine": [1, "two"]} if annotated else {})
    assert (found.body, found.subject, found.priority, found.instructions) == (was.body, "s", 7, was.instructions)
    assert found.ttl == 0


def test_a_second_letter_keeps_the_first_reason() -> None:
    found = decoded(letter(letter(sent(), "q", "dlx", REJECTED), "r", "dlx2", EXPIRED)).annotations
    assert [found[f"x-first-death-{name}"] for name in ("queue", "reason")] == ["q", "rejected"]
    assert [found[f"x-last-death-{name}"] for name in ("queue", "reason")] == ["r", "expired"]
    assert len(found) == 6


def test_the_bare_message_is_the_same_bit_for_bit() -> None:
    data = sent(subject="s", properties={"a": 1})
    bare = data[data.index(b"\x00\x53\x73") :]
    assert letter(data, "q", "dlx", REJECTED).endswith(bare)


def test_a_map_with_four_bytes_of_size_and_a_list_among_its_keys_keeps_its_other_pairs() -> None:
    big = {"k" * 200: "v" * 200}
    body = b"\x00\x53\x77" + encode("it")
    data = b"\x00\x53\x72" + encode(big) + body
    kept = message.message_annotations(message.with_annotations(data, {"n"}, encode(Symbol("n")) + encode("new")))
    assert kept == big | {"n": "new"}
    pairs = b"\x45\x41" + encode(Symbol("n")) + encode("old")
    data = b"\x00\x53\x72\xc1" + bytes((len(pairs) + 1, 4)) + pairs + body
    assert message.message_annotations(message.with_annotations(data, {"n"}, encode(Symbol("n")) + encode("new"))) == {
        (): True,
        "n": "new",
    }


@pytest.mark.parametrize("data", [b"\x01", b"\x00\x53\x72\x45", b"\x00\x53\x72\xc1\x02\x01\x40"])
def test_what_is_no_message_stays_as_it_is(data: bytes) -> None:
    assert letter(data, "q", "dlx", REJECTED) == data


def test_a_message_of_nothing_but_a_header_gets_its_annotations_behind_that() -> None:
    header = b"\x00\x53\x70\xc0\x02\x01\x41"
    found = letter(header, "q", "dlx", REJECTED)
    assert found.startswith(header)
    assert message.message_annotations(found)["x-last-death-reason"] == "rejected"


def test_annotations_that_are_no_map_are_named() -> None:
    with pytest.raises(message.BadMessage, match="message-annotations section at byte 3 is not a map"):
        message.with_annotations(b"\x00\x53\x72\x45", set(), b"")
