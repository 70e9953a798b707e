"""What a client says, byte by byte: headers, frames, performatives, and streams cut into reads."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from broker.core import sasl, values
from broker.core.door import HEADER, Door

NULL, TRUE, FALSE, ZERO = b"\x40", b"\x41", b"\x42", b"\x43"
EMPTY_LIST = b"\x45"
SETTLED = b"\x50\x01"
NOWHERE = b"\x00\x53\x28\x45"
"""A source without an address."""


def frame(body: bytes, *, channel: int = 0, kind: int = 0, extended: bytes = b"") -> bytes:
    """A frame (part 2.3) with this body; the length of `extended` is a multiple of four."""
    return struct.pack(">IBBH", 8 + len(extended) + len(body), 2 + len(extended) // 4, kind, channel) + extended + body


def listed(*fields: bytes, wide: bool = False) -> bytes:
    """A list of encoded values; `wide` in the form with four bytes for its size."""
    content = b"".join(fields)
    if wide or len(content) > 254 or len(fields) > 255:
        return struct.pack(">BII", 0xD0, len(content) + 4, len(fields)) + content
    return struct.pack(">BBB", 0xC0, len(content) + 1, len(fields)) + content


def performative(code: int, *fields: bytes, channel: int = 0, wide: bool = False) -> bytes:
    """A frame that holds a performative."""
    return frame(b"\x00\x53" + bytes((code,)) + listed(*fields, wide=wide), channel=channel)


def transfer(
    payload: bytes,
    *,
    number: int = 0,
    settled: bool = False,
    more: bool = True,
    wide: bool = False,
    tag: bytes = b"t",
    extended: bytes = b"",
    says: bytes = ZERO,
) -> bytes:
    """A frame with a piece of a message on the link with the handle 0: of the delivery with this number, and more to come.
    `says`: the encoded message format."""
    flags = (TRUE if settled else FALSE, TRUE if more else FALSE)
    fields = (ZERO, b"\x70" + struct.pack(">I", number), values.encode(tag), says, *flags)
    return frame(b"\x00\x53\x14" + listed(*fields, wide=wide) + payload, extended=extended)


def uint(number: int) -> bytes:
    """A uint of four bytes."""
    return b"\x70" + struct.pack(">I", number)


def flow(*fields: bytes, handle: bytes = ZERO, channel: int = 0, wide: bool = False, extended: bytes = b"") -> bytes:
    """A flow; `fields` are those behind the handle."""
    body = b"\x00\x53\x13" + listed(NULL, uint(2048), ZERO, ZERO, handle, *fields, wide=wide)
    return frame(body, channel=channel, extended=extended)


def echo(value: bytes = TRUE, *more: bytes, handle: bytes = ZERO, channel: int = 0, **form: Any) -> bytes:
    """A flow whose `echo` has this value; `more` are the fields behind it."""
    return flow(ZERO, b"\x52\x64", NULL, FALSE, value, *more, handle=handle, channel=channel, **form)


def attach(handle: int, *more: bytes, name: bytes = b"\xa1\x01l", channel: int = 0) -> bytes:
    """An attach; `more` are the fields behind the role."""
    return performative(0x12, name, b"\x52" + bytes((handle,)), FALSE, *more, channel=channel)


def attach_to(target: str, handle: int = 0, channel: int = 0) -> bytes:
    """An attach of a sending link to a target, whose messages are all settled."""
    address = b"\xa1" + bytes((len(target),)) + target.encode()
    terminus = b"\x00\x53\x29\xc0" + bytes((len(address) + 1, 1)) + address
    fields = (SETTLED, NULL, NOWHERE, terminus, NULL, NULL, ZERO)
    return attach(handle, *fields, name=values.encode(f"to {target} {handle}"), channel=channel)


OPEN = performative(0x10, b"\xa1\x01c")
BEGIN = performative(0x11, NULL, ZERO, b"\x70\x00\x00\x10\x00", b"\x70\x00\x00\x10\x00")
END, CLOSE = performative(0x17), performative(0x18)
HEARTBEAT = frame(b"")


def properties(encoded: bytes) -> bytes:
    """An Open with these properties, which are not looked at here."""
    return performative(0x10, b"\xa1\x01c", *[NULL] * 8, encoded)


def mapped(*items: bytes) -> bytes:
    """A map of encoded keys and values."""
    content = b"".join(items)
    return struct.pack(">BII", 0xD1, len(content) + 4, len(items)) + content


SIXTY_KB_OF_EMPTY_LISTS = properties(mapped(b"\xa3\x01k", struct.pack(">BII", 0xD0, 60_004, 60_000) + EMPTY_LIST * 60_000))
"""The Open that cost 20 ms of the reactor and 6 MB."""


def init(mechanism: str = "ANONYMOUS", *more: bytes) -> bytes:
    """A client's SASL init."""
    return sasl.frame(sasl.INIT, values.encode(values.Symbol(mechanism)), *more)


class Knock:
    """A door, what has gone through it, and what it has said; the Open is admitted at once unless `admits` is False."""

    def __init__(self, *, admits: bool = True, max_frame_bytes: int = 1 << 16, offer: sasl.Offer = sasl.OFFERED) -> None:
        self.door = Door(max_frame_bytes, offer)
        self.admits = admits
        self.passed = b""
        self.asked: set[tuple[int, int]] = set()

    def say(self, *reads: bytes) -> Knock:
        """What the client sends, a read at a time."""
        for data in reads:
            self._take(data)
            while self.door.more:
                self._answer()
                self._take(b"")
            self._answer()
        return self

    def _take(self, data: bytes) -> None:
        self.passed += self.door.take(data)
        self.asked |= self.door.asked

    def _answer(self) -> None:
        if self.admits:
            self.door.admit()

    @property
    def refusal(self) -> str:
        """The name of the condition, "" while there is none."""
        return "" if self.door.refusal is None else self.door.refusal.name

    @property
    def reason(self) -> str:
        """The text for people."""
        return "" if self.door.refusal is None else self.door.refusal.text


def admitted(max_frame_bytes: int = 1 << 16) -> Knock:
    """A door behind which an Open has been answered; nothing is noted as having gone through."""
    knock = Knock(max_frame_bytes=max_frame_bytes).say(HEADER + OPEN)
    knock.passed = b""
    return knock


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    """The stream in reads that end at these places."""
    edges = [0, *sorted({each % (len(data) + 1) for each in at}), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges) if stop > start]
