"""Management requests and answers as AMQP messages."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
import pytest

from broker.amqp.management_node import BadRequest, Request, decode, encode
from broker.core import limits


def message(**fields: Any) -> bytes:
    made: Any = proton.Message(**fields)
    return bytes(made.encode())


def test_a_request_is_read_with_what_it_says() -> None:
    data = message(
        reply_to="$reply/1",
        id="m",
        correlation_id="c",
        properties={"operation": "CREATE", "type": "queue", "name": "q"},
        body={"a": 1},
    )
    assert decode(data) == Request("CREATE", "queue", "q", {"a": 1}, "$reply/1", "c")


def test_what_a_request_does_not_say_is_empty_and_its_message_id_correlates() -> None:
    assert decode(message(reply_to="r", id="m")) == Request("", "", "", {}, "r", "m")
    assert decode(message(reply_to="r", properties={"name": None}, body="text")) == Request("", "", "", {}, "r", None)
    assert decode(message(reply_to="r", body={1: 2})).body == {"1": 2}


@pytest.mark.parametrize("data", [b"", b"\xff rubbish", b"\x00\x53\x77\xa1\x02\xff\xfe", b"\x00\x53\x77", message(body={})])
def test_what_is_no_request_is_refused_with_a_text(data: bytes) -> None:
    with pytest.raises(BadRequest, match=r"reply-to|not an AMQP"):
        decode(data)


def test_a_request_whose_properties_are_no_map_is_refused() -> None:
    data = message(reply_to="r", properties={"operation": "QUERY"})
    start = data.index(b"\x00\x53\x74")
    with pytest.raises(BadRequest):
        decode(data[:start] + b"\x00\x53\x74\xa1\x03abc")


def test_a_request_that_is_too_large_is_not_read() -> None:
    with pytest.raises(BadRequest, match="may have"):
        decode(b"\x00" * (limits.MAX_REQUEST_BYTES + 1))


@pytest.mark.parametrize("head", [b"\xd0%b\x00\x00\x00\x01", b"\xc0\x00\x01"])
def test_a_request_that_is_nested_without_end_is_refused_and_crashes_nothing(head: bytes) -> None:
    deep = b"\x40"
    for _ in range(50_000):
        deep = b"\xd0" + (len(deep) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + deep
        if len(deep) > limits.MAX_REQUEST_BYTES - 200:
            break
    with pytest.raises(BadRequest):
        decode(message(reply_to="r") + b"\x00\x53\x77" + deep + head)


@pytest.mark.parametrize("number", ["text", 7, UUID(int=5), b"bytes", None])
def test_an_answer_carries_status_text_body_and_the_requests_number(number: Any) -> None:
    request = decode(message(reply_to="r", correlation_id=number))
    body = {"n": 1, "large": 1 << 63, "yes": True, "none": None, "list": [1, ("a",)], "map": {"x": -1, "y": 0.5}}
    answer: Any = proton.Message()
    answer.decode(encode(request, 201, "created", body))
    found = answer.correlation_id
    assert (answer.address, bytes(found) if isinstance(found, memoryview) else found) == ("r", number)
    assert answer.properties == {"statusCode": 201, "statusDescription": "created"}
    assert answer.body == {"n": 1, "large": 1 << 63, "yes": True, "none": None, "list": [1, ["a"]], "map": {"x": -1, "y": 0.5}}
