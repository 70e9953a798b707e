"""Notes: the message annotations that consumers add to messages which they return by `modified` (AMQP 1.0 part 3.4.5).

Life of a note: a consumer settles a message as modified, with annotations. The primary proposes a NOTES record. Every broker
keeps the note of the message, merged with earlier notes, until the message leaves its queue. The next consumer gets the message
with these annotations, which replace those of the same names. The message itself is not changed.

A consumer may also request a time until which the message must wait (`waits_until`). The primary proposes a TIMES record for it,
next to the note.

A note is the encoded map, with symbols as keys: other keys have no meaning in AMQP (part 3.2.10), and are left out.

Invariants: any bytes give a note or none; a note has at most `limits.MAX_NOTE_BYTES`.
"""

from __future__ import annotations

from broker.core import limits, message
from broker.core.lifetimes import DELAY, TIME
from broker.core.message import BadMessage
from broker.core.queues.times import MAX_MS
from broker.core.values import BadValue, Reader, skip

_SYMBOLS = (0xA3, 0xB3)
"""The codes of symbols."""


def _pairs(encoded: bytes) -> dict[str, bytes]:
    """By name, key and value of each pair of the map as bytes. BadValue, when it is not a map."""
    if encoded[:1] not in (b"\xc1", b"\xd1"):
        return {}
    width = 1 if encoded[0] == 0xC1 else 4
    count, position = int.from_bytes(encoded[1 + width : 1 + 2 * width], "big"), 1 + 2 * width
    reader, found = Reader(encoded), dict[str, bytes]()
    for _ in range(count // 2):
        key, after = reader.value(position, len(encoded), 1)
        end = skip(encoded, after, len(encoded), 1)
        if encoded[position] in _SYMBOLS:
            found[key] = encoded[position:end]
        position = end
    return found


def merged(old: bytes, new: bytes) -> bytes:
    """The note `old`, merged with `new`. A `new` that is malformed, or would make the note too long, is ignored."""
    try:
        pairs = (_pairs(old) if old else {}) | _pairs(new)
    except BadValue:
        return old
    body = b"".join(pairs.values())
    both = (2 * len(pairs)).to_bytes(4, "big") + body
    note = b"\xd1" + len(both).to_bytes(4, "big") + both
    return note if pairs and len(note) <= limits.MAX_NOTE_BYTES else old


def waits_until(encoded: bytes, now_ms: int) -> int:
    """Until when a message must wait by a consumer's note: `x-opt-delivery-time`, or `x-opt-delivery-delay` from now on, as in
    producers' messages (broker.core.lifetimes). In ms since 1970; 0: it does not wait."""
    try:
        found = Reader(encoded).value(0, len(encoded), 0)[0]
    except BadValue:
        return 0
    if not isinstance(found, dict):
        return 0
    until, delay = found.get(TIME), found.get(DELAY)
    if type(until) is not int:
        until = now_ms + delay if type(delay) is int else 0
    return min(until, MAX_MS) if until > now_ms else 0


def noted(data: bytes, note: bytes) -> bytes:
    """The message with the annotations of this note. Bytes that are not an AMQP message are not changed."""
    pairs = _pairs(note)
    try:
        return message.with_annotations(data, pairs.keys(), b"".join(pairs.values()))
    except BadMessage:
        return data
