"""The door: every byte from a client's connection is checked here before proton gets it.

Life of a connection at the door: it begins with the SASL header, or directly with the AMQP header. The door handles the SASL
layer itself, up to its outcome, and passes none of it on. Then it passes the AMQP header and an Open. Until this side's Open has
been sent (`admit`), frames must be small, and only frames that a client may send before the answer are allowed. After that, the
door checks the size, the type and the performative of every frame, and how much there is to decode in it. Of a transfer, the
most frequent frame, it checks only the first sixteen bytes; if the client has attached a link like a client that sends bundles,
it also checks for a bundle's message format (`broker.core.bundles`), and marks bundles. After this side's Close (`leave`) only
the client's Close passes.

A frame that is not a transfer passes when it is complete. The bytes of a transfer pass as they arrive; where bundles are looked
for, from its last field on.

Invariants: any bytes give a decision and never an exception; the decision does not depend on how the stream is cut into reads;
the bytes that pass are the stream itself from the AMQP header on, except for what is dropped after a Close, and with bundles
marked; nothing passes after a refusal; the door keeps less than one frame, and, while a login is verified elsewhere
(`login.waits`), no more than a client may send before the answer to its Open; a client to which ANONYMOUS is not offered must
log in. Because the answer to an Open matters for the very next frame, `take` returns the bytes up to the end of an Open, and
must be called again for the rest (`more`).

Begins, attaches, detaches and ends are expensive and transfer no message: after `allowance` of them `take` also stops
(`enough`), and its caller continues after other connections have had their turn. It does so too when the dispositions in it have
named more than `limits.NAMED_AT_ONCE` deliveries: a short one may name all of a session, and proton makes an event of each.

A flow with `echo` asks for the state of a link, or of a session (part 2.7.4). proton does not show this, so the door notes it
(`asked`, `asked_of`). Nothing is noted for a link on which the client receives, because proton sends no flow for it on request. A
new entry counts for the allowance, because of the answer; the same request once more does not.

A begin that answers one of this side does not pass, because this side sends none: proton would give one of its sessions another
channel, and report that once for several such begins, so that `begun` would not be what it has reported.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from enum import Enum, auto

from broker.core import bundles, limits, sasl
from broker.core.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DECODE_ERROR,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    FRAMING_ERROR,
    HARMLESS_BYTES,
    LIMIT_EXCEEDED,
    NAMES,
    NOT_ALLOWED,
    OPEN,
    TRANSFER,
    Refusal,
    code_of,
    deliveries_in,
    echo_in,
    fields_of,
    handle_of,
    is_answer,
    sends,
    uint,
    weigh,
)

HEADER = b"AMQP\x00\x01\x00\x00"
_HEAD = struct.Struct(">IHHII")
"""Size; data offset and type; channel; descriptor and type of the list of fields; its size, which takes one byte or four."""
_HEAD_BYTES = _HEAD.size
_read_head = _HEAD.unpack_from
_FRAME_HEAD_BYTES = 8
_PLAIN = 0x0200
"""A frame of AMQP without an extended header."""
_TRANSFER8, _TRANSFER32 = 0x005314C0, 0x005314D0
_FLOW8, _DISPOSITION8 = 0x005313C0, 0x005315C0
"""A consumer that settles message by message sends both for every message: `weigh` would pass short ones as they are."""
_ARRAY8, _ARRAY32, _TYPE8 = 0xE0, 0xF0, 0xC0
_COUNT, _FIRST, _FIRST_OF_LONG = 2, 3, 9
"""Where the number of fields and the first one are in a list with a size of one byte, and the first one in a list with one of
four."""
_TO_ECHO = 10
"""The number of fields in a flow whose last one is `echo`."""
_TRUE, _BOOLEAN = 0x41, 0x56
"""An `echo` that is true begins with one of these."""
_FIRST8, _FIRST32 = 0x4052, 0x4070
"""The last two bytes of `_HEAD` in the usual dispositions: a role without further bytes, and the type of the first delivery."""
_read_ids = struct.Struct(">IxI").unpack_from
"""The bytes after that: the first and the last delivery, between them the type of the last one."""
_LAST32 = _HEAD_BYTES + 4
"""Where this type is."""
_IDS32_BYTES = _LAST32 + 5
_SHORTEST = _LAST32 + 1
"""Shorter dispositions have no outcome."""
_NULL, _UINT8, _UINT32 = 0x40, 0x52, 0x70
_PLAIN_REST = frozenset(
    settled + b"\x00\x53" + outcome + fields
    for settled in (b"\x40", b"\x41", b"\x42")
    for outcome in (b"\x24", b"\x25", b"\x26")
    for fields in (b"\x45", b"\xc0\x01\x00")
)
"""What follows the ids in most dispositions. There is no array in it."""
_LIST, _LIST8, _LIST32 = 11, 13, 16
"""Offsets in a transfer's frame: where its list of fields begins, and where the counted bytes begin, with a size of one byte or
of four."""
_BUNDLE = bundles.FORMAT
_SMALL = 0x0053
"""The first bytes of a performative whose code has one byte."""
_ANY_SIZE = 0xFFFFFFFF
_COSTLY = frozenset((BEGIN, ATTACH, DETACH, END))
_MAY_COME_EARLY = frozenset((BEGIN, ATTACH, FLOW, DETACH, END, CLOSE))


class _At(Enum):
    """The phase of a connection."""

    START = auto()
    SASL = auto()
    WAITING = auto()
    HEADER = auto()
    OPEN = auto()
    EARLY = auto()
    ADMITTED = auto()
    LEAVING = auto()
    ENDED = auto()


_ADMITTED = _At.ADMITTED
_HEADERS = frozenset((_At.START, _At.HEADER))


class Door:
    """See the module. `max_frame_bytes`: the limit in this side's Open, 0 for none. `sasl_frame_bytes`: the largest frame of the
    SASL layer."""

    def __init__(
        self, max_frame_bytes: int, offer: sasl.Offer = sasl.OFFERED, sasl_frame_bytes: int = limits.SASL_FRAME_BYTES
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._sasl_frame_bytes = sasl_frame_bytes
        self.output = bytearray()
        """Bytes to send before proton's output. The code that sends them empties it."""
        self.refusal: Refusal | None = None
        self.more = False
        """Whether `take` has stopped after an Open, and bytes follow it."""
        self.allowance = _ANY_SIZE
        """How many begins, attaches, detaches, ends and new requests for a state one `take` may pass."""
        self.enough = False
        """Whether `take` has stopped because the allowance was used up, or because many deliveries were named, and bytes follow:
        take them with b""."""
        self._left = 0
        """The rest of the allowance."""
        self.named = 0
        """How many deliveries the dispositions in this `take` have named."""
        self.begun: deque[int] = deque()
        """The channels of begins that have passed, in their order. The code that gets the sessions from proton empties it."""
        self.asked: set[tuple[int, int]] = set()
        """Channel and handle of each link whose state a flow in this `take` asks for."""
        self.asked_of: set[int] = set()
        """The channels of sessions whose state the client waits for. The code that answers empties it."""
        self.login = sasl.Exchange(offer)
        self._at = _At.START
        self._held = b""
        self._through = 0
        """Bytes of a transfer that have not arrived yet and will pass."""
        self._early_bytes = 0
        self._spoke = False
        self._attached: dict[int, dict[int, int]] = {}
        """Channel -> handle of each link that the client has not detached -> bytes that it takes."""
        self._attached_bytes = 0
        self._sending: dict[int, set[int]] = {}
        """Channel -> handles of those links on which the client sends."""
        self._looks = False
        """Whether the client may be one that sends bundles."""
        self._bundles: dict[int, dict[int, int]] = {}
        """Channel -> handle of a link -> the number of the last delivery on the link that is a bundle."""
        self._altered: bytearray | None = None
        """A copy of the bytes in `take` with bundles marked, if there are any."""

    @property
    def granted(self) -> sasl.Grant | None:
        """The login of the client, once the SASL layer has granted it."""
        return self.login.granted

    @property
    def speaks_amqp(self) -> bool:
        """Whether the client's AMQP header has passed, so that an answer can be sent to it."""
        return self._spoke

    @property
    def costly(self) -> bool:
        """Whether some of the allowance was used by the last `take`, or many deliveries were named."""
        return self._left != self.allowance or self.named > limits.NAMED_AT_ONCE

    def admit(self) -> None:
        """This side sends its Open."""
        if self._at is _At.EARLY:
            self._at = _At.ADMITTED

    def leave(self) -> None:
        """This side sends its Close."""
        if self._at in (_At.OPEN, _At.EARLY, _At.ADMITTED):
            self._at = _At.LEAVING

    def take(self, data: bytes) -> bytes:
        """Check received bytes. Returns those that pass. After `more` or `enough`, take b"" for the rest. Then see `refusal`."""
        data = bytes(data)  # which costs nothing if it is; a bytearray could not be looked up
        self.more = self.enough = False
        self._left, self.named = self.allowance, 0
        if self.asked:
            self.asked.clear()
        if self._held:
            data = self._held + data
            self._held = b""
        if self._at is not _ADMITTED:
            return self._one_by_one(data)
        passed, altered = self._admitted(data), self._altered
        if altered is None:
            return passed
        self._altered = None
        return bytes(memoryview(altered)[: len(passed)])

    def resume(self, result: bytes) -> None:
        """Continue the login with the result of its work. There may be `more`, as after `take`."""
        if self._at is _At.WAITING:
            self._at = _At.SASL
            try:
                self.login.resume(result)
            except Refusal as refusal:
                self.refuse(refusal)
            finally:
                self._after_sasl()
            self.more = bool(self._held)

    def give_up_login(self, reason: str) -> None:
        """The work that the login waits for will not be done: the client may try again later."""
        self.output += sasl.frame(sasl.OUTCOME, b"\x50" + bytes((sasl.SYS_TEMP,)))
        self.refuse(Refusal(LIMIT_EXCEEDED, reason))

    def refuse(self, refusal: Refusal) -> None:
        """Pass no more bytes."""
        self.refusal = Refusal(refusal.name, refusal.text)  # a copy without a traceback, which would keep its callers alive
        self._at = _At.ENDED

    # ---- until the Open is admitted, and after a Close: one header or frame after the other

    def _one_by_one(self, data: bytes) -> bytes:
        size = len(data)
        position = min(self._through, size)
        self._through -= position
        passed = [data[:position]]
        while position < size and self._at is not _At.ENDED:
            at = self._at
            if at is _At.WAITING:
                self._held = data[position:]
                if size - position > limits.EARLY_BYTES:
                    text = f"more than {limits.EARLY_BYTES} bytes came before the outcome of a login"
                    self.refuse(Refusal(LIMIT_EXCEEDED, text))
                break
            try:
                stop, passes = self._header(data, position) if at in _HEADERS else self._small_frame(data, position)
            except Refusal as refusal:
                self.refuse(refusal)
                break
            if stop < 0:
                self._held = data[position:]
                break
            if passes:
                passed.append(data[position:stop])
            position = stop
            if at is _At.OPEN:
                self._held = data[position:]
                self.more = position < size
                break
        return b"".join(passed)

    def _header(self, data: bytes, position: int) -> tuple[int, bool]:
        """The end of the protocol header (part 2.2) at `position`, -1 if it is not complete; and whether it passes."""
        found = data[position : position + len(HEADER)]
        stop = position + len(found) if len(found) == len(HEADER) else -1
        if HEADER.startswith(found):
            if stop > 0:
                if self._at is _At.START and not self.login.admits_strangers:
                    self.output += sasl.HEADER  # the required layer (part 5.3.2)
                    raise Refusal(sasl.UNAUTHORIZED, "a login is required: start with the SASL layer before AMQP")
                self._at, self._spoke = _At.OPEN, True
            return stop, stop > 0
        if self._at is _At.START and sasl.HEADER.startswith(found):
            if stop > 0:
                self._at = _At.SASL
                self._say(self.login.output)
            return stop, False
        if found.startswith(b"AMQP"):
            self.output += HEADER  # the version that this side has (part 2.2)
        raise Refusal(FRAMING_ERROR, "this is not AMQP 1.0; if it is TLS: this port does not use TLS")

    def _say(self, output: bytearray) -> None:
        self.output += output
        output.clear()

    def _small_frame(self, data: bytes, position: int) -> tuple[int, bool]:
        """The end of the frame at `position`, -1 if it is not complete; and whether it passes."""
        at = self._at
        max_bytes = self._sasl_frame_bytes if at is _At.SASL else limits.EARLY_FRAME_BYTES
        if at is _At.LEAVING:
            max_bytes = max(limits.MAX_FRAME_BYTES, self.max_frame_bytes)
        elif self.max_frame_bytes and at is not _At.SASL:
            max_bytes = min(max_bytes, self.max_frame_bytes)
        body, stop = _bounds(data, position, 1 if at is _At.SASL else 0, max_bytes)
        if stop < 0 or stop > len(data):
            return -1, False
        if at is _At.SASL:
            self._sasl(data[body:stop])
            return stop, False
        if body == stop:
            return stop, at is not _At.LEAVING
        code, fields = code_of(data, body, stop)
        if at is _At.LEAVING:
            if code == CLOSE:
                self._at = _At.ENDED
            return stop, code == CLOSE
        self._early(code, data, position, fields, stop)
        return stop, True

    def _sasl(self, body: bytes) -> None:
        try:
            self.login.take(body)
        finally:
            self._after_sasl()

    def _after_sasl(self) -> None:
        login = self.login
        self._say(login.output)
        if login.granted is not None:
            self._at = _At.HEADER
        elif login.waits is not None:
            self._at = _At.WAITING

    def _early(self, code: int, data: bytes, position: int, fields: int, stop: int) -> None:
        """Check a frame before this side's Open."""
        if self._at is _At.OPEN:
            if code != OPEN:
                raise Refusal(NOT_ALLOWED, f"the first frame is {_named(code)}, and must be an open")
            weigh(code, data, fields, stop)
            self._at = _At.EARLY
            return
        if code not in _MAY_COME_EARLY:
            raise Refusal(NOT_ALLOWED, f"{_named(code)} may not come before the answer to an open")
        self._early_bytes += stop - position
        if self._early_bytes > limits.EARLY_BYTES:
            raise Refusal(LIMIT_EXCEEDED, f"more than {limits.EARLY_BYTES} bytes came before the answer to an open")
        self._weigh(code, data, position, fields, stop)

    # ---- afterwards: transfers at a glance

    def _admitted(self, data: bytes) -> bytes:
        size, position = len(data), self._through
        last, max_bytes, looks = size - _HEAD_BYTES, self.max_frame_bytes or _ANY_SIZE, self._looks
        while position < size:
            if position <= last:
                nbytes, head, channel, code, extent = _read_head(data, position)
                if (
                    (code == _TRANSFER8 or (code == _TRANSFER32 and extent <= limits.TRANSFER_HEAD_BYTES))
                    and head == _PLAIN
                    and _HEAD_BYTES <= nbytes <= max_bytes
                ):
                    if looks:
                        end = position + (_LIST8 + (extent >> 24) if code == _TRANSFER8 else _LIST32 + extent)
                        if size < end <= position + nbytes:
                            self._held, self._through = data[position:], 0
                            return data[:position]
                        if data.find(_BUNDLE, position + _LIST8, end) >= 0 and end <= position + nbytes:
                            self._mark(data, position, position + _LIST, end)
                    position += nbytes
                    continue
                if (
                    code == _DISPOSITION8
                    and head == _PLAIN
                    and _SHORTEST <= nbytes <= HARMLESS_BYTES
                    and (stop := position + nbytes) <= size
                ):
                    kind = extent & 0xFCFF
                    rest, named = 0, 1
                    if kind == _FIRST32:
                        at = position + _LAST32
                        form = data[at]
                        if form == _NULL:
                            rest = at + 1
                        elif form == _UINT32 and nbytes >= _IDS32_BYTES:
                            rest = at + 5
                            first, final = _read_ids(data, position + _HEAD_BYTES)
                            named = (final - first & _ANY_SIZE) + 1
                    elif kind == _FIRST8:
                        rest, named = _small_ids(data, position + _HEAD_BYTES)
                    if rest and (
                        data[rest:stop] in _PLAIN_REST
                        or (data.find(b"\xe0", rest, stop) < 0 and data.find(b"\xf0", rest, stop) < 0)
                    ):
                        position = stop
                        self.named = named = self.named + named
                        if named > limits.NAMED_AT_ONCE and position < size:
                            return self._stop(data, position)
                        continue
                elif (
                    code == _FLOW8
                    and head == _PLAIN
                    and _HEAD_BYTES <= nbytes <= HARMLESS_BYTES
                    and (stop := position + nbytes) <= size
                    and _ARRAY8 not in (fields := data[position + _LIST : stop])
                    and _ARRAY32 not in fields
                    and (
                        fields[_COUNT] < _TO_ECHO
                        or (_TRUE not in fields and _BOOLEAN not in fields)
                        or self._heed(channel, echo_in(fields, _FIRST))
                    )
                ):
                    position = stop
                    continue
                if self._left <= 0 and code >> 16 == _SMALL and code >> 8 & 0xFF in _COSTLY:
                    return self._stop(data, position)
            position, goes_on = self._at_length(data, position, max_bytes)
            if not goes_on:
                return data[:position]
            looks = self._looks
        self._through = position - size
        return data

    def _at_length(self, data: bytes, position: int, max_bytes: int) -> tuple[int, bool]:
        """Where the frame at `position` ends, or this position if it does not pass; and whether more may pass after it."""
        try:
            stop = self._frame(data, position, max_bytes)
        except Refusal as refusal:
            self.refuse(refusal)
            return position, False
        if stop < 0:
            self._held, self._through = data[position:], 0
            return position, False
        if (self._left < 0 or self.named > limits.NAMED_AT_ONCE) and stop < len(data) and self._at is not _At.ENDED:
            self._stop(data, stop)
            return stop, False
        return stop, self._at is not _At.ENDED

    def _stop(self, data: bytes, position: int) -> bytes:
        """Keep the bytes after `position` until `take` is called again: it was enough for one turn."""
        self._held, self._through, self.enough = data[position:], 0, True
        return data[:position]

    def _frame(self, data: bytes, position: int, max_bytes: int) -> int:
        """Where a frame that is not a plain transfer ends, -1 while it is not whole. Refusal."""
        body, stop = _bounds(data, position, 0, max_bytes)
        if stop < 0 or len(data) - position < min(_HEAD_BYTES, stop - position):
            return -1
        if stop - position > limits.MAX_FRAME_BYTES:
            raise Refusal(FRAMING_ERROR, f"a frame of {stop - position} bytes is not one that carries a message")
        if stop > len(data):
            return -1
        if body == stop:
            return stop
        code, fields = code_of(data, body, stop)
        if code == TRANSFER:
            nbytes = fields_of(data, fields, stop)[2] - body
            if nbytes > limits.TRANSFER_HEAD_BYTES:
                text = f"a transfer may have {limits.TRANSFER_HEAD_BYTES} bytes before its piece of a message, not {nbytes}"
                raise Refusal(LIMIT_EXCEEDED, text)
            if self._looks and data.find(_BUNDLE, fields, body + nbytes) >= 0:
                self._mark(data, position, fields, stop)
        elif code == OPEN:
            raise Refusal(NOT_ALLOWED, "a second open came")
        else:
            self._weigh(code, data, position, fields, stop)
        return stop

    def _mark(self, data: bytes, position: int, fields: int, stop: int) -> None:
        """Mark the transfer at `position`, whose list of fields is complete, if it begins a bundle."""
        found = bundles.found_in(data, fields, stop)
        channel = int.from_bytes(data[position + 6 : position + 8], "big")
        if found is None or found.number is None or found.handle not in self._attached.get(channel, ()):
            return
        last = self._bundles.setdefault(channel, {})
        if last.get(found.handle) != found.number:
            last[found.handle] = found.number
            if self._altered is None:
                self._altered = bytearray(data)
            start, fresh = bundles.marked(data, found)
            self._altered[start : start + len(fresh)] = fresh

    def _weigh(self, code: int, data: bytes, position: int, fields: int, stop: int) -> None:
        """Any performative but an open and a transfer."""
        if code not in NAMES:
            raise Refusal(DECODE_ERROR, f"a frame cannot be decoded: there is no performative {code:#04x}")
        nbytes = weigh(code, data, fields, stop)
        if code == DISPOSITION:
            self.named += deliveries_in(data, fields, stop)
            return
        channel = int.from_bytes(data[position + 6 : position + 8], "big")
        if code in _COSTLY:
            self._left -= 1
        if code == BEGIN:
            if is_answer(data, fields, stop):
                raise Refusal(NOT_ALLOWED, "a begin answers one of this broker, which has sent none")
            self.begun.append(channel)
        if code == ATTACH and not self._looks:
            self._looks = any(data.find(sign, position, stop) >= 0 for sign in bundles.SIGNS)
        if code in (ATTACH, DETACH):
            handle = handle_of(code, data, fields, stop)
            links = self._attached.setdefault(channel, {})
            if handle is None:
                return  # proton will find no link either
            if code == DETACH:
                self._attached_bytes -= links.pop(handle, 0)
                self._sending.get(channel, set()).discard(handle)
                self._bundles.get(channel, {}).pop(handle, None)
                return
            if sends(data, fields, stop):
                self._sending.setdefault(channel, set()).add(handle)
            nbytes += limits.LINK_BYTES
            links[handle] = links.get(handle, 0) + nbytes
            self._attached_bytes += nbytes
            if self._attached_bytes > limits.ATTACHED_BYTES:
                text = f"this connection's links take more than {limits.ATTACHED_BYTES} bytes: detach those that were refused"
                raise Refusal(LIMIT_EXCEEDED, text)
        elif code == END:
            self._attached_bytes -= sum(self._attached.pop(channel, {}).values())
            self._bundles.pop(channel, None)
            self._sending.pop(channel, None)
        elif code == FLOW:
            self._heed(channel, echo_in(data, fields + (_FIRST if data[fields] == _TYPE8 else _FIRST_OF_LONG), stop))
        elif code == CLOSE:
            self._at = _At.ENDED

    def _heed(self, channel: int, echo: re.Match[bytes] | None) -> bool:
        """Note what a flow asks for, if it has an `echo`. Returns whether more frames may pass after it."""
        if echo is not None:
            handle = uint(echo[1], 0, 5)
            if handle is None:
                self._left -= channel not in self.asked_of
                self.asked_of.add(channel)
            elif handle in self._sending.get(channel, ()):
                self._left -= (channel, handle) not in self.asked
                self.asked.add((channel, handle))
        return self._left >= 0


def _bounds(data: bytes, position: int, kind: int, max_bytes: int) -> tuple[int, int]:
    """Where the body of the frame at `position` begins and ends (part 2.3); (-1, -1) while its head is not whole. Refusal."""
    if len(data) - position < _FRAME_HEAD_BYTES:
        return -1, -1
    nbytes, offset = int.from_bytes(data[position : position + 4], "big"), 4 * data[position + 4]
    if not _FRAME_HEAD_BYTES <= offset <= nbytes:
        raise Refusal(FRAMING_ERROR, f"a frame of {nbytes} bytes says that its body begins at byte {offset}")
    if nbytes > max_bytes:
        raise Refusal(FRAMING_ERROR, f"a frame of {nbytes} bytes came where {max_bytes} are the most")
    if data[position + 5] != kind:
        raise Refusal(FRAMING_ERROR, f"a frame of the type {data[position + 5]} came where only the type {kind} may")
    return position + offset, position + nbytes


def _small_ids(data: bytes, position: int) -> tuple[int, int]:
    """Where the ids of a disposition end whose first one is this byte, 0 if the last one is of an unusual type; and how many
    deliveries they name."""
    form = data[position + 1]
    if form == _NULL:
        return position + 2, 1
    return (position + 3 if form == _UINT8 else 0), (data[position + 2] - data[position] & _ANY_SIZE) + 1


def _named(code: int) -> str:
    name = NAMES.get(code)
    return f"a performative {code:#x}" if name is None else f"a frame with the performative {name}"
