"""The reason of a dead letter, in message annotations with RabbitMQ's names.

    x-first-death-queue, x-first-death-reason, x-first-death-exchange     where and why it became a dead letter first
    x-last-death-queue,  x-last-death-reason,  x-last-death-exchange      where and why it did last

Each is a string: the queue that the message left, the reason (`rejected`, `expired` or `delivery_limit`), and the alternate
exchange that it was sent to. A time to live in the header is removed: it is over, or was meant for the queue that the message was
sent to. The bare message (AMQP 1.0 part 3.2) and all other annotations are unchanged, bit for bit.
"""

from __future__ import annotations

from functools import lru_cache

from broker.core import message
from broker.core.values import Symbol, encode

REJECTED, EXPIRED, DELIVERY_LIMIT = "rejected", "expired", "delivery_limit"
"""The reasons."""


def letter(data: bytes, queue: str, exchange: str, reason: str) -> bytes:
    """The dead letter of this message, which leaves `queue` for this reason. Bytes that are not a message stay as they are."""
    try:
        which = "last" if "x-first-death-queue" in message.message_annotations(data) else "first last"
        return message.with_annotations(message.with_delivery_state(data, ttl_ms=0), *_added(which, queue, reason, exchange))
    except message.BadMessage:
        return data


@lru_cache(maxsize=64)
def _added(which: str, *facts: str) -> tuple[frozenset[str], bytes]:
    """The names of the annotations, and these with their values as bytes: many letters in a row have the same."""
    each = zip(("queue", "reason", "exchange"), facts, strict=True)
    pairs = [(f"x-{word}-death-{name}", fact) for name, fact in each for word in which.split()]
    return frozenset(name for name, _ in pairs), b"".join(encode(Symbol(name)) + encode(fact) for name, fact in pairs)
