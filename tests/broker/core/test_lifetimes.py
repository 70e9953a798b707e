"""When a message expires and may be given out, by what it and its queue say."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import arrivals
from broker.core.lifetimes import NOTHING, Said, said, when
from broker.core.log_time import LogTime
from broker.core.queues.times import MAX_MS

NOW = 1_000_000


def sent(**fields: Any) -> bytes:
    return bytes(proton.Message(body="it", **fields).encode())


def annotated(**annotations: Any) -> bytes:
    return sent(annotations={proton.symbol(f"x-opt-delivery-{name}"): value for name, value in annotations.items()})


@pytest.mark.parametrize(
    "data, says",
    [
        (sent(), NOTHING),
        (sent(creation_time=5.0, priority=9, durable=True, annotations={proton.symbol("x"): 1}), NOTHING),
        (sent(ttl=2.5), Said(ttl_ms=2500)),
        (sent(expiry_time=7.0), Said(expires_ms=7000)),
        (sent(expiry_time=7.0, creation_time=5.0, ttl=1.0, subject="s"), Said(ttl_ms=1000, expires_ms=7000)),
        (annotated(delay=proton.ulong(3)), Said(delay_ms=3)),
        (annotated(delay=proton.int32(3), time=proton.timestamp(9)), Said(delay_ms=3, available_ms=9)),
        (annotated(time=1 << 60), Said(available_ms=MAX_MS)),
        (annotated(delay="soon", time=-4), NOTHING),
        (annotated(delay=True, time=0), NOTHING),
        (b"\x00\x53\x70\xc0\x02\x01\x01", NOTHING),
    ],
)
def test_what_a_message_says(data: bytes, says: Said) -> None:
    assert said(data) == says
    assert says == NOTHING or arrivals.Arrivals(None).look([data]) == ([], True), "no time may be passed over"


@pytest.mark.parametrize(
    "data",
    [
        sent(),
        sent(durable=True, priority=7, subject="s"),
        sent(creation_time=5.0, id="an id", reply_to="r", correlation_id=4, content_type="text/plain", durable=True),
        sent(creation_time=5.0, group_id="g", instructions={proton.symbol("x-opt-delivery-delay"): 4}),
        sent(delivery_count=3),
        sent(annotations={proton.symbol("x-opt-jms-msg-type"): proton.byte(5)}, properties={"x-opt-delivery-delay": 4}),
    ],
)
def test_usual_messages_that_say_no_time_are_known_by_a_glance(data: bytes) -> None:
    assert arrivals.Arrivals(None).look([data, data]) == ([], False)


def test_what_is_looked_at_closely_is_known_to_say_nothing_and_what_is_no_message_is_named() -> None:
    wide = b"\x00\x53\x73\xd0" + (21).to_bytes(4, "big") + (9).to_bytes(4, "big") + b"\xb1\x00\x00\x00\x04long" + b"\x40" * 8
    described = b"\x00\x53\x70\xc0\x07\x03\x00\x53\x01\x41\x40\x40"
    assert arrivals.Arrivals(None).look([wide, sent()]) == ([], True)
    assert arrivals.Arrivals(None).look([described]) == ([], True)
    assert arrivals.Arrivals(None).look([sent(), b"\x01", sent(ttl=1)]) == ([1], True)
    assert arrivals.Arrivals(None).look([]) == ([], False)


@pytest.mark.parametrize(
    "says, ttl, expires, available",
    [
        (NOTHING, 0, 0, 0),
        (NOTHING, 50, NOW + 50, 0),
        (Said(ttl_ms=70), 0, NOW + 70, 0),
        (Said(ttl_ms=70), 50, NOW + 50, 0),
        (Said(ttl_ms=40), 50, NOW + 40, 0),
        (Said(expires_ms=NOW - 5), 50, NOW - 5, 0),
        (Said(ttl_ms=70, expires_ms=NOW + 60), 0, NOW + 60, 0),
        (Said(delay_ms=30), 0, 0, NOW + 30),
        (Said(delay_ms=30), 50, NOW + 80, NOW + 30),
        (Said(delay_ms=30, available_ms=NOW + 9), 0, 0, NOW + 9),
        (Said(available_ms=NOW), 0, 0, 0),
        (Said(available_ms=NOW - 9, ttl_ms=5), 50, NOW + 5, 0),
        (Said(ttl_ms=20, delay_ms=30), 50, NOW + 20, NOW + 30),
        (Said(delay_ms=MAX_MS), MAX_MS, MAX_MS, MAX_MS),
    ],
)
def test_the_earliest_end_counts_and_a_queue_counts_from_when_it_may_give_a_message_out(
    says: Said, ttl: int, expires: int, available: int
) -> None:
    assert when(says, NOW, ttl) == (expires, available)


def test_a_message_counts_from_when_it_arrived_and_its_queue_from_when_it_is_put_there() -> None:
    assert when(Said(ttl_ms=70, delay_ms=50), NOW, 90, 30) == (NOW + 40, NOW + 20)
    assert when(Said(ttl_ms=20, delay_ms=20), NOW, 0, 30) == (NOW - 10, 0)
    assert when(Said(delay_ms=50), NOW, 90, 30) == (NOW + 110, NOW + 20)
    assert when(Said(expires_ms=NOW + 5, available_ms=NOW + 3), NOW, 90, 30) == (NOW + 5, NOW + 3)


def test_the_time_of_a_log_is_the_wall_clock_of_its_primary_but_never_before_the_last_batch() -> None:
    time = LogTime()
    time.begin(100.0, 5.0, 4000)
    assert (time.now_ms(100.0), time.now_ms(101.5)) == (5000, 6500)
    time.begin(200.0, 5.0, 9000)
    assert time.now_ms(200.25) == 9250
