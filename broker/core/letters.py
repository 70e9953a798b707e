"""What a dead letter says of why it is one: message annotations with the names that RabbitMQ gives them.

    x-first-death-queue, x-first-death-reason, x-first-death-exchange     where and why it became a dead letter first
    x-last-death-queue,  x-last-death-reason,  x-last-death-exchange      where and why it did last

Each is a string: the queue that the message left, the reason (`rejected`, `expired` or `delivery_limit`), and the alternate
exchange that it was sent to. A time to live in the header is taken out: it has been used up, or was meant for the queue that the
message was sent to. The bare message (AMQP 1.0 part 3.2) goes on as it was sent, bit for bit, and so do all other annotations.
"""

from __future__ import annotations

from broker.core import message

REJECTED, EXPIRED, DELIVERY_LIMIT = "rejected", "expired", "delivery_limit"
"""The reasons."""


def letter(data: bytes, queue: str, exchange: str, reason: str) -> bytes:
    """The dead letter of this message, which leaves `queue` for this reason. What is no AMQP message stays as it is."""
    facts = {"queue": queue, "reason": reason, "exchange": exchange}
    first = {f"x-first-death-{name}": value for name, value in facts.items()}
    last = {f"x-last-death-{name}": value for name, value in facts.items()}
    try:
        known = message.message_annotations(data).keys()
        added = last if "x-first-death-queue" in known else first | last
        return message.with_annotations(message.with_delivery_state(data, ttl_ms=0), added)
    except message.BadMessage:
        return data
