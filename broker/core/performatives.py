"""AMQP's performatives as bytes: their size and number of values is checked before they are decoded (AMQP 1.0 parts 2.3 and 2.7).

Life of a performative here: it is in the body of a frame. Its code is read, and its values are walked over and counted, unless it
is so short that it can do no harm. No objects are made of them: the code that decodes them later knows that there are few.

Invariants: any bytes give a number or Refusal; in a performative that passes, no map is larger than
`limits.PERFORMATIVE_MAP_BYTES`, and there are at most `limits.PERFORMATIVE_VALUES` values. A performative that passes is well
formed, but may still be wrong.
"""

from __future__ import annotations

import re

from broker.core import limits
from broker.core.values import BadValue, Counter, TooMuch, skip

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
NAMES = dict(
    zip(range(0x10, 0x19), ("open", "begin", "attach", "flow", "transfer", "disposition", "detach", "end", "close"), strict=True)
)

DECODE_ERROR = "amqp:decode-error"
FRAMING_ERROR = "amqp:connection:framing-error"
LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
NOT_ALLOWED = "amqp:not-allowed"

_UNSETTLED = 7
"""The field of an attach that names the deliveries which its sender has not settled (part 2.7.3)."""
HARMLESS_BYTES = 256
"""A performative up to this size has few values, unless one of them is an array, whose elements may have no bytes."""
_TRUE = (b"\x41", b"\x56\x01")
_FIELD = rb"(?:[\x40-\x43]|[\x52\x56].|\x70.{4})"
"""A null, a boolean or a uint."""
echo_in = re.compile(rb"(?s)%b{4}(\x40|\x43|\x52.|\x70.{4})%b{4}(?:\x41|\x56\x01)" % (_FIELD, _FIELD)).match
"""Call it with the bytes of a flow and the place of the first field: finds an `echo` that is true (part 2.7.4). The group is the
handle, or a null: then the flow asks for the state of its session."""
_SERIAL = 0xFFFFFFFF
"""Numbers of deliveries go round after this one (part 2.8.8)."""


class Refusal(Exception):
    """Why a peer is turned away: the `name` of an error condition (part 2.8.15 and following) and a `text` for people."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


def code_of(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """The code of the performative at `start`, and the position of its list of fields. Refusal when there is none."""
    if stop - start > 3 and data[start] == 0:
        if data[start + 1] == 0x53:
            return data[start + 2], start + 3
        if data[start + 1] == 0x80 and stop - start > 10:
            return int.from_bytes(data[start + 2 : start + 10], "big"), start + 10
    raise Refusal(DECODE_ERROR, "a frame cannot be decoded: it begins with no performative")


def fields_of(data: bytes, position: int, stop: int) -> tuple[int, int, int]:
    """How many fields a list has that begins at `position`, where the first one lies, and where the list ends. Refusal."""
    code = data[position]
    if code == 0x45:
        return 0, position + 1, position + 1
    width = {0xC0: 1, 0xD0: 4}.get(code)
    if width is None:
        raise Refusal(DECODE_ERROR, f"a performative has fields of the type {code:#04x}, which is not a list")
    start = position + 1 + width
    end = start + int.from_bytes(data[position + 1 : start], "big")
    first = start + width
    if not first <= end <= stop:
        raise Refusal(DECODE_ERROR, f"a performative has {end - position} bytes of fields where there are {stop - position}")
    return int.from_bytes(data[start:first], "big"), first, end


def weigh(code: int, data: bytes, position: int, stop: int) -> int:
    """Check a performative, whose fields are the list at `position`. Returns its bytes that will be decoded. Refusal."""
    nbytes = stop - position
    if nbytes <= HARMLESS_BYTES and data.find(b"\xe0", position, stop) < 0 and data.find(b"\xf0", position, stop) < 0:
        return nbytes
    data = data[position:stop]  # positions in error texts must not depend on earlier bytes of the same read
    count, position, end = fields_of(data, 0, nbytes)
    counter = Counter(limits.PERFORMATIVE_VALUES, limits.PERFORMATIVE_MAP_BYTES)
    name = NAMES[code]
    try:
        for field in range(count):
            if field == _UNSETTLED and code == ATTACH:
                after = skip(data, position, end, 0)
                nbytes -= after - position
                position = after
            else:
                position = counter.walk(data, position, end)
    except BadValue as error:
        raise Refusal(DECODE_ERROR, f"the {name} cannot be decoded: {error}") from None
    except TooMuch as error:
        raise Refusal(LIMIT_EXCEEDED, f"the {name} has more than this broker takes: {error}") from None
    if nbytes > limits.PERFORMATIVE_BYTES:
        raise Refusal(LIMIT_EXCEEDED, f"the {name} has {nbytes} bytes, and may have {limits.PERFORMATIVE_BYTES}")
    return nbytes


def uint(data: bytes, position: int, end: int) -> int | None:
    """The number that the uint at `position` is; None when there is none."""
    code = data[position] if position < end else 0
    if code == 0x43:
        return 0
    width = {0x52: 1, 0x70: 4}.get(code)
    if width is None or position + 1 + width > end:
        return None
    return int.from_bytes(data[position + 1 : position + 1 + width], "big")


def deliveries_in(data: bytes, position: int, stop: int) -> int:
    """How many deliveries a disposition names, whose fields are the list at `position` (part 2.7.6). Like proton, this does not
    look at the number of fields that the list claims, and takes a first delivery that is not a uint for 0. Refusal."""
    data = data[position:stop]  # positions in error texts must not depend on earlier bytes of the same read
    _, position, end = fields_of(data, 0, len(data))
    try:
        position = skip(data, position, end, 0)
        first, position = uint(data, position, end) or 0, skip(data, position, end, 0)
    except BadValue as error:
        raise Refusal(DECODE_ERROR, f"the disposition cannot be decoded: {error}") from None
    last = uint(data, position, end)
    return 1 if last is None else (last - first & _SERIAL) + 1


def handle_of(code: int, data: bytes, position: int, stop: int) -> int | None:
    """The handle of an attach or a detach; None if it cannot be read, and then proton cannot read it either."""
    count, position, end = fields_of(data, position, stop)
    if code == ATTACH:
        if count < 2:
            return None
        try:
            position = skip(data, position, end, 0)
        except BadValue:
            return None
    return uint(data, position, end)


def sends(data: bytes, position: int, stop: int) -> bool:
    """Whether an attach whose handle can be read is that of a sender, for which proton takes every role that is not true."""
    _, position, end = fields_of(data, position, stop)
    for _ in ("name", "handle"):
        position = skip(data, position, end, 0)
    return not data[position:end].startswith(_TRUE)


def is_answer(data: bytes, position: int, stop: int) -> bool:
    """Whether a begin, whose fields are the list at `position`, names a channel of the other side, as an answer does.
    See part 2.7.2. Refusal."""
    _, position, end = fields_of(data, position, stop)
    return data[position:end][:1] not in (b"", b"\x40")
