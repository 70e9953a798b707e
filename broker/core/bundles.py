"""Bundles: several messages in one delivery. Clients of Azure Service Bus send batches in this form.

Life of a bundle: the message format in its transfer says that each following data section is an encoded message. Only the door
reads the fields of a transfer, so it marks a bundle (`marked`): the format field makes room for a section that no message has,
before the first section that arrived. Code that takes messages recognises a bundle by this section (`is_bundle`), and gets its
messages (`messages_of`).

Invariants: a marked frame has the same size as before, and the bytes after its fields keep their place; a bundle gives complete
messages, at least one and at most `limits.MAX_TRANSACTION_OPERATIONS`, and none of them is a bundle.

Source: "AMQP 1.0 in Azure Service Bus and Event Hubs protocol guide", and what `azure-servicebus` 7.15 for Python sends.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.core import arrivals, limits, message
from broker.core.message import BadMessage
from broker.core.performatives import fields_of, uint
from broker.core.values import BadValue, skip

FORMAT = b"\x70\x80\x01\x37\x00"
"""The message format 0x80013700, as a uint has to be encoded."""
SIGNS = b"$cbs", b"://"
"""One of these is in an attach of every client that sends bundles: it puts a token, or has a URL for an address. Other clients'
transfers are not looked at, which would cost each of their messages a quarter of a microsecond."""
_MARK = b"\x00\x53\x00\x40"
"""An empty section with a descriptor that no message has. It takes the bytes that become free when the format is set to 0."""
_NO_FORMAT = b"\x43"
_FIELD = 3
"""The position of the message format in the fields of a transfer (part 2.7.5), after handle, delivery-id and delivery-tag."""


class Found(NamedTuple):
    """The transfer of a bundle: its link's handle, its delivery's number (None in a frame that continues one), the beginning of
    its list of fields, the place of the format in it, and the end of the list."""

    handle: int
    number: int | None
    fields: int
    at: int
    end: int


def found_in(data: bytes, fields: int, stop: int) -> Found | None:
    """Read a transfer, whose list of fields begins at this place, in a frame that ends at `stop`; None if it is not of a bundle.
    Refusal if there is no list."""
    count, position, end = fields_of(data, fields, stop)
    if count <= _FIELD:
        return None
    handle = uint(data, position, end)
    try:
        position = skip(data, position, end, 0)
        number = uint(data, position, end)
        for _ in range(1, _FIELD):
            position = skip(data, position, end, 0)
    except BadValue:
        return None  # proton reports what is wrong with it
    if handle is None or data[position : min(end, position + len(FORMAT))] != FORMAT:
        return None
    return Found(handle, number, fields, position, end)


def marked(data: bytes, found: Found) -> tuple[int, bytes]:
    """The new bytes for the fields of this transfer, which begins a bundle, and their place."""
    fields, at, end = found.fields, found.at, found.end
    width = 1 if data[fields] == 0xC0 else 4
    start = fields + 1 + width
    nbytes = int.from_bytes(data[fields + 1 : start], "big") - len(_MARK)
    return fields + 1, b"".join((nbytes.to_bytes(width, "big"), data[start:at], _NO_FORMAT, data[at + len(FORMAT) : end], _MARK))


def is_bundle(data: bytes) -> bool:
    """Whether this, which has come as a message, is a bundle."""
    return data.startswith(_MARK)


def messages_of(bundle: bytes) -> list[bytes]:
    """The messages in a bundle. BadMessage, when it is not a bundle of messages."""
    position, end, found = len(_MARK), len(bundle), []
    while position < end:
        code, value = message.section_at(bundle, position, end)
        position = skip(bundle, value, end, 0)
        if code == message.DATA:
            width = {0xA0: 1, 0xB0: 4}.get(bundle[value])
            if width is None:
                raise BadMessage(f"the data section before byte {position} of a batch holds no binary")
            found.append(bundle[value + 1 + width : position])
        if len(found) > limits.MAX_TRANSACTION_OPERATIONS:
            raise BadMessage(f"a batch has more than {limits.MAX_TRANSACTION_OPERATIONS} messages, the most that come as one")
    if not found:
        raise BadMessage("a batch has no message in it")
    for at in arrivals.malformed(found)[:1]:
        raise BadMessage(f"item {at + 1} of a batch is not a message")
    return found
