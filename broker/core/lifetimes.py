"""When a message expires, and when it may first be delivered: by the message itself and by its queue.

In a message (AMQP 1.0 part 3.2, and the annotations of Qpid JMS for JMS 2.0's delivery delay)::

    header              ttl                        ms from its arrival until it expires
    properties          absolute-expiry-time       ms since 1970
    annotations         x-opt-delivery-delay       ms from its arrival until it may be given out
                        x-opt-delivery-time        ms since 1970, which counts if both are there

In a queue: the argument `x-message-ttl` (RabbitMQ's name), ms from the time when the message may be delivered until it expires.
The earliest of all ends counts. A time of 0, or of the wrong type, is ignored.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.core import message
from broker.core.queues.times import MAX_MS
from broker.core.values import Encoded

DELAY, TIME = "x-opt-delivery-delay", "x-opt-delivery-time"


class Said(NamedTuple):
    """The times in a message, in ms; 0 for none."""

    ttl_ms: int = 0
    expires_ms: int = 0
    delay_ms: int = 0
    available_ms: int = 0


NOTHING = Said()


def said(data: Encoded) -> Said:
    """The times in this message; none if it cannot be read."""
    try:
        annotations = message.message_annotations(data)
        expires = message.absolute_expiry_time(data)
        return Said(message.header(data).ttl_ms or 0, _ms(expires), _ms(annotations.get(DELAY)), _ms(annotations.get(TIME)))
    except message.BadMessage:
        return NOTHING


def _ms(value: object) -> int:
    return min(value, MAX_MS) if type(value) is int and value > 0 else 0


def when(says: Said, now_ms: int, queue_ttl_ms: int, waited_ms: int = 0) -> tuple[int, int]:
    """When a message that is put on its queue now, and arrived `waited_ms` before, expires, and from when on it may be given out:
    ms since 1970, 0: never, and at once."""
    arrived_ms = now_ms - waited_ms
    available = says.available_ms or (arrived_ms + says.delay_ms if says.delay_ms else 0)
    if available <= now_ms:
        available = 0
    ends = [arrived_ms + says.ttl_ms] if says.ttl_ms else []
    if says.expires_ms:
        ends.append(says.expires_ms)
    if queue_ttl_ms:
        ends.append((available or now_ms) + queue_ttl_ms)
    return min(*ends, MAX_MS) if ends else 0, min(available, MAX_MS)
